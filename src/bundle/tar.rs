//! The tar of a bundle: plain files in one canonical form. The reader accepts a header only if it equals, byte for
//! byte, the header that the writer makes for the name and size.

use std::io::{self, Read, Write};

const BLOCK: usize = 512;
/// The length of the name field in a header.
const NAME_BYTES: usize = 100;
/// The first size that does not fit into eleven octal digits. Such sizes are written in base 256, as GNU tar does.
const FIRST_BASE_256_SIZE: u64 = 8 << 30;

type Block = [u8; BLOCK];

#[derive(Debug, thiserror::Error)]
pub(super) enum BadTar {
    #[error("it ends too early: truncated, or not completely written")]
    Truncated,
    #[error("it cannot be read: {0}")]
    Unreadable(#[source] io::Error),
    /// The tar is not in the canonical form; the text says where.
    #[error("{0}")]
    NotCanonical(String),
}

/// The header of a plain file: mode 0644, owner 0, time 0.
fn header(name: &str, size: u64) -> Block {
    let mut header = [0; BLOCK];
    let mut put = |offset: usize, bytes: &[u8]| {
        for (target, byte) in header.iter_mut().skip(offset).zip(bytes) {
            *target = *byte;
        }
    };
    put(0, name.as_bytes());
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    if size < FIRST_BASE_256_SIZE {
        put(124, format!("{size:011o}\0").as_bytes());
    } else {
        put(124, &[0x80, 0, 0, 0]);
        put(128, &size.to_be_bytes());
    }
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    put(329, b"0000000\0");
    put(337, b"0000000\0");
    let checksum: u64 = header.iter().map(|byte| u64::from(*byte)).sum();
    for (target, byte) in header.iter_mut().skip(148).zip(format!("{checksum:06o}\0 ").bytes()) {
        *target = byte;
    }
    header
}

/// Reads the size field of a header. The other fields are not checked.
fn header_size(header: &Block) -> Option<u64> {
    let field = header.get(124..136)?;
    match field.first()? {
        0x80 => Some(u64::from_be_bytes(field.get(4..)?.try_into().ok()?)),
        _ => u64::from_str_radix(std::str::from_utf8(field.get(..11)?).ok()?, 8).ok(),
    }
}

/// The number of zero bytes that follow a file of this size.
fn padding(size: u64) -> usize {
    // The remainder is below 512, so the cast loses nothing.
    (BLOCK - (size % BLOCK as u64) as usize) % BLOCK
}

/// The bytes that a file takes in a tar: header, contents and padding.
pub(super) fn tar_bytes_of_file(size: u64) -> u64 {
    size.saturating_add(padding(size) as u64).saturating_add(BLOCK as u64)
}

/// The two zero blocks that end a tar, in bytes.
pub(super) const END_BYTES: u64 = 2 * BLOCK as u64;

#[derive(Debug)]
pub(super) struct TarWriter<W> {
    out: W,
}

impl<W: Write> TarWriter<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out }
    }

    /// Writes a file of exactly `size` bytes. `write_contents` passes all bytes to its argument.
    ///
    /// # Errors
    /// The name is too long, or the contents are not `size` bytes; also errors of `write_contents` and of the writer.
    pub(super) fn file(
        &mut self,
        name: &str,
        size: u64,
        write_contents: impl FnOnce(&mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()>,
    ) -> io::Result<()> {
        // A longer name would be cut off, or run into the next field.
        if name.len() >= NAME_BYTES {
            return Err(io::Error::other(format!("the file name {name} is too long for a tar header")));
        }
        self.out.write_all(&header(name, size))?;
        let mut remaining_bytes = size;
        let out = &mut self.out;
        write_contents(&mut |bytes| {
            remaining_bytes = remaining_bytes
                .checked_sub(bytes.len() as u64)
                .ok_or_else(|| io::Error::other("the file has become larger"))?;
            out.write_all(bytes)
        })?;
        if remaining_bytes > 0 {
            return Err(io::Error::other("the file has become smaller"));
        }
        self.out.write_all([0; BLOCK].get(..padding(size)).unwrap_or_default())
    }

    pub(super) fn end(mut self) -> io::Result<W> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        self.out.flush()?;
        Ok(self.out)
    }
}

/// Reads files in order. The caller names each file that must follow.
#[derive(Debug)]
pub(super) struct TarReader<R> {
    input: R,
    /// The header of the next file, if it was read ahead.
    next_header: Option<Block>,
}

impl<R: Read> TarReader<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, next_header: None }
    }

    /// Returns true if the first file has this name. Must be called before any other read.
    ///
    /// # Errors
    /// The tar cannot be read, or ends within its first header after bytes that match the name.
    pub(super) fn first_file_is(&mut self, name: &str) -> Result<bool, BadTar> {
        let mut start = Vec::with_capacity(BLOCK);
        (&mut self.input).take(BLOCK as u64).read_to_end(&mut start).map_err(BadTar::Unreadable)?;
        let name_field = [name.as_bytes(), b"\0"].concat();
        if let Ok(block) = Block::try_from(start.as_slice()) {
            self.next_header = Some(block);
            return Ok(start.starts_with(&name_field));
        }
        if name_field.starts_with(&start) || start.starts_with(&name_field) {
            Err(BadTar::Truncated)
        } else {
            Ok(false)
        }
    }

    /// Returns the size of the next file if the file has this name. Otherwise its header stays unread.
    ///
    /// # Errors
    /// The header is not canonical, or the file has more than `max_bytes` bytes.
    pub(super) fn next_size_if(&mut self, name: &str, max_bytes: u64) -> Result<Option<u64>, BadTar> {
        let next = self.read_block()?;
        if next.get(..name.len()) != Some(name.as_bytes()) || next.get(name.len()) != Some(&0) {
            self.next_header = Some(next);
            return Ok(None);
        }
        let size = header_size(&next).filter(|size| header(name, *size) == next);
        match size {
            Some(size) if size <= max_bytes => Ok(Some(size)),
            Some(size) => Err(BadTar::NotCanonical(format!("{name} has {size} bytes, the limit is {max_bytes}"))),
            None => Err(BadTar::NotCanonical(format!("the tar header of {name} is malformed"))),
        }
    }

    /// Reads the next header, which must have this name and size.
    pub(super) fn expect_header(&mut self, name: &str, size: u64) -> Result<(), BadTar> {
        if self.read_block()? == header(name, size) {
            return Ok(());
        }
        Err(BadTar::NotCanonical(format!("the tar header of {name} ({size} bytes) is malformed")))
    }

    /// Reads the contents of a file in chunks and passes each to `on_chunk`, then reads the padding.
    pub(super) fn content<E: From<BadTar>>(
        &mut self,
        name: &str,
        size: u64,
        buffer: &mut [u8],
        mut on_chunk: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut remaining_bytes = size;
        while remaining_bytes > 0 {
            let length = usize::try_from(remaining_bytes).unwrap_or(usize::MAX).min(buffer.len());
            let Some(chunk) = buffer.get_mut(..length).filter(|chunk| !chunk.is_empty()) else {
                return Err(BadTar::NotCanonical("the read buffer is empty".to_owned()).into());
            };
            self.read_exact(chunk)?;
            on_chunk(chunk)?;
            remaining_bytes -= length as u64;
        }
        let mut zeros = [0; BLOCK];
        let zeros = zeros.get_mut(..padding(size)).unwrap_or_default();
        self.read_exact(zeros)?;
        if zeros.iter().any(|byte| *byte != 0) {
            return Err(BadTar::NotCanonical(format!("the padding of {name} is not zero")).into());
        }
        Ok(())
    }

    /// Reads the end: two zero blocks and nothing after them.
    pub(super) fn end(&mut self) -> Result<(), BadTar> {
        for _ in 0..2 {
            if self.read_block()? != [0; BLOCK] {
                return Err(BadTar::NotCanonical("the tar does not end after its manifest's files".to_owned()));
            }
        }
        let mut extra_byte = [0];
        loop {
            match self.input.read(&mut extra_byte) {
                Ok(0) => return Ok(()),
                Ok(_) => return Err(BadTar::NotCanonical("data follows the end of the tar".to_owned())),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(BadTar::Unreadable(e)),
            }
        }
    }

    /// Reads one block, or returns the header that was read ahead.
    fn read_block(&mut self) -> Result<Block, BadTar> {
        if let Some(header) = self.next_header.take() {
            return Ok(header);
        }
        let mut block = [0; BLOCK];
        self.read_exact(&mut block)?;
        Ok(block)
    }

    fn read_exact(&mut self, buffer: &mut [u8]) -> Result<(), BadTar> {
        self.input.read_exact(buffer).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => BadTar::Truncated,
            _ => BadTar::Unreadable(e),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(files: &[(String, Vec<u8>)]) -> Vec<u8> {
        let mut tar = TarWriter::new(Vec::new());
        for (name, bytes) in files {
            tar.file(name, bytes.len() as u64, |write| write(bytes)).unwrap();
        }
        tar.end().unwrap()
    }

    fn read(tar: &[u8], files: &[(String, Vec<u8>)]) -> Result<Vec<Vec<u8>>, BadTar> {
        let mut tar = TarReader::new(tar);
        let mut contents = Vec::new();
        for (name, bytes) in files {
            let size = bytes.len() as u64;
            tar.expect_header(name, size)?;
            let mut content = Vec::new();
            tar.content(name, size, &mut [0; 100], |chunk| {
                content.extend_from_slice(chunk);
                Ok::<_, BadTar>(())
            })?;
            contents.push(content);
        }
        tar.end()?;
        Ok(contents)
    }

    /// The tar crate stands for any other program that lists a bundle.
    #[test]
    fn other_tar_readers_read_the_same_files() {
        let files = [("larder-bundle.json".to_owned(), b"{}".to_vec()), ("sha256/ab".to_owned(), vec![7; 1024])];
        let tar = written(&files);
        let mut archive = ::tar::Archive::new(&tar[..]);
        let mut contents = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            contents.push((name, bytes));
        }
        assert_eq!(contents, files);
    }

    /// Sizes from 8 GiB on do not fit into eleven octal digits.
    #[test]
    fn other_tar_readers_read_sizes_of_any_length() {
        for size in [0, 1, 512, FIRST_BASE_256_SIZE - 1, FIRST_BASE_256_SIZE, 1 << 40, u64::MAX] {
            let header = header("sha256/ab", size);
            assert_eq!(header_size(&header), Some(size));
            let read_back = ::tar::Header::from_byte_slice(&header);
            assert_eq!(read_back.entry_size().unwrap(), size);
            assert!(read_back.as_ustar().is_some());
        }
    }

    #[test]
    fn a_name_that_does_not_fit_the_header_is_an_error() {
        let write = |name: &str| TarWriter::new(Vec::new()).file(name, 0, |_| Ok(()));
        assert!(write(&"a".repeat(99)).is_ok());
        assert!(write(&"a".repeat(100)).is_err());
    }

    proptest! {
        #[test]
        fn any_altered_byte_of_a_tar_is_detected(
            sizes in prop::collection::vec(0usize..1100, 0..4),
            changed_byte in any::<prop::sample::Index>(),
            flip in 1u8..,
        ) {
            let files: Vec<_> =
                sizes.iter().enumerate().map(|(n, size)| (format!("sha256/{n}"), vec![n as u8; *size])).collect();
            let mut tar = written(&files);
            let contents: Vec<Vec<u8>> = files.iter().map(|(_, bytes)| bytes.clone()).collect();
            prop_assert_eq!(read(&tar, &files).unwrap(), contents.clone());
            let index = changed_byte.index(tar.len());
            tar[index] ^= flip;
            // Contents are not checked here; the bundle's reader compares their digests.
            prop_assert!(read(&tar, &files).map_or(true, |altered| altered != contents));
            tar[index] ^= flip;
            prop_assert!(matches!(read(&tar[..index], &files), Err(BadTar::Truncated)));
            tar.push(flip);
            prop_assert!(read(&tar, &files).is_err());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..1600)) {
            let mut tar = TarReader::new(&bytes[..]);
            let _ = tar.next_size_if("larder-bundle.json", 100);
            let _ = tar.end();
        }
    }
}
