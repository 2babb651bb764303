//! A tree as a tar on its way out.

use std::io::{self, Read, Write};

use tar::{Builder, Header};

use super::Mode;

/// A tar under way.
pub struct Writing<W: Write> {
    tar: Builder<W>,
}

impl<W: Write> Writing<W> {
    /// Begins one.
    pub fn to(out: W) -> Self {
        Self { tar: Builder::new(out) }
    }

    /// Adds a file of `size_bytes` bytes that nobody executes. The same file is always the same bytes of tar.
    ///
    /// # Errors
    /// It could not be written, or what was read has another size.
    pub fn add(&mut self, path: &str, size_bytes: u64, contents: impl Read) -> io::Result<()> {
        self.add_with(path, Mode::Plain, size_bytes, contents)
    }

    /// The same for a file that may be one to be executed.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn add_with(&mut self, path: &str, mode: Mode, size_bytes: u64, contents: impl Read) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_size(size_bytes);
        header.set_mode(mode.bits());
        header.set_mtime(0);
        let mut counted = Counted { inner: contents.take(size_bytes), bytes: 0 };
        self.tar.append_data(&mut header, path, &mut counted)?;
        if counted.bytes == size_bytes {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("{path} became shorter while it was read")))
    }

    /// Ends it.
    ///
    /// # Errors
    /// It could not be written.
    pub fn end(self) -> io::Result<W> {
        self.tar.into_inner()
    }
}

struct Counted<R> {
    inner: R,
    bytes: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.bytes += read as u64;
        Ok(read)
    }
}
