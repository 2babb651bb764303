//! Writes a provider tree as a tar.

use std::io::{self, Read, Write};

use tar::{Builder, Header};

use super::Mode;

/// A tar writer. If the writer is dropped before [`ProviderTreeWriter::end`], the tar has no end marker, so that a
/// reader notices the truncation.
pub struct ProviderTreeWriter<W: Write> {
    tar: Builder<ClosableOutput<W>>,
}

/// The output; `None` once the writer is finished or dropped. Otherwise a dropped `Builder` would write the end marker.
struct ClosableOutput<W>(Option<W>);

impl<W: Write> Write for ClosableOutput<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.as_mut().map_or(Err(io::ErrorKind::BrokenPipe.into()), |out| out.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.as_mut().map_or(Ok(()), Write::flush)
    }
}

impl<W: Write> Drop for ProviderTreeWriter<W> {
    fn drop(&mut self) {
        self.tar.get_mut().0 = None;
    }
}

impl<W: Write> ProviderTreeWriter<W> {
    /// Creates a writer.
    pub fn new(out: W) -> Self {
        Self { tar: Builder::new(ClosableOutput(Some(out))) }
    }

    /// Adds a file of `size_bytes` bytes that is not executable. Equal files give equal bytes of tar.
    ///
    /// # Errors
    /// The file cannot be read or written, or has fewer bytes than `size_bytes`.
    pub fn add(&mut self, path: &str, size_bytes: u64, contents: impl Read) -> io::Result<()> {
        self.add_with_mode(path, Mode::Plain, size_bytes, contents)
    }

    /// Adds a file with a mode.
    ///
    /// # Errors
    /// As for [`add`](Self::add).
    pub fn add_with_mode(&mut self, path: &str, mode: Mode, size_bytes: u64, contents: impl Read) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_size(size_bytes);
        header.set_mode(mode.bits());
        header.set_mtime(0);
        let mut counting_reader = CountingReader { inner: contents.take(size_bytes), bytes: 0 };
        self.tar.append_data(&mut header, path, &mut counting_reader)?;
        if counting_reader.bytes == size_bytes {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("{path} became shorter while it was read")))
    }

    /// Writes the end marker, flushes and returns the output.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn end(mut self) -> io::Result<W> {
        self.tar.finish()?;
        let mut out = self.tar.get_mut().0.take().ok_or(io::ErrorKind::BrokenPipe)?;
        out.flush()?;
        Ok(out)
    }
}

struct CountingReader<R> {
    inner: R,
    bytes: u64,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.bytes += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_writer_writes_no_end_marker() {
        let mut out = Vec::new();
        let mut tar = ProviderTreeWriter::new(&mut out);
        tar.add("a", 1, &b"x"[..]).unwrap();
        drop(tar);
        assert_eq!(out.len(), 2 * 512, "a header and a block, and no blocks of zeros");
    }
}
