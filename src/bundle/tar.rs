//! The tar of a bundle: plain files in one canonical form. The reader accepts a header only if it equals, byte for
//! byte, the header that the writer makes for the name and size.

use std::io::{self, Read, Write};

const BLOCK: usize = 512;
/// Sizes from here on exceed eleven octal digits and are written in base 256, as GNU tar does.
const MAX_IN_OCTAL: u64 = 8 << 30;

type Block = [u8; BLOCK];

#[derive(Debug, thiserror::Error)]
pub(super) enum BadTar {
    #[error("it ends too early: truncated, or not completely written")]
    Truncated,
    #[error("it cannot be read: {0}")]
    Unreadable(#[source] io::Error),
    /// The bytes differ from the canonical form.
    #[error("{0}")]
    Differs(String),
}

/// The header of a plain file: mode 0644, owner 0, time 0.
fn header(name: &str, size: u64) -> Block {
    let mut header = [0; BLOCK];
    let mut put = |offset: usize, bytes: &[u8]| {
        for (to, from) in header.iter_mut().skip(offset).zip(bytes) {
            *to = *from;
        }
    };
    put(0, name.as_bytes());
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    if size < MAX_IN_OCTAL {
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
    let sum: u64 = header.iter().map(|byte| u64::from(*byte)).sum();
    for (to, from) in header.iter_mut().skip(148).zip(format!("{sum:06o}\0 ").bytes()) {
        *to = from;
    }
    header
}

/// Reads the size field of a header without checking the rest.
fn size_in(header: &Block) -> Option<u64> {
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
pub(super) fn bytes_of(size: u64) -> u64 {
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

    /// Writes a file of exactly `size` bytes. `give` is called once and passes all bytes to its argument.
    ///
    /// # Errors
    /// Those of `give` and of the writer, and more or fewer bytes than `size`.
    pub(super) fn file(
        &mut self,
        name: &str,
        size: u64,
        mut give: impl FnMut(&mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()>,
    ) -> io::Result<()> {
        self.out.write_all(&header(name, size))?;
        let mut left = size;
        let out = &mut self.out;
        give(&mut |bytes| {
            left = left.checked_sub(bytes.len() as u64).ok_or_else(|| io::Error::other("it has become larger"))?;
            out.write_all(bytes)
        })?;
        if left > 0 {
            return Err(io::Error::other("it has become smaller"));
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
    from: R,
    /// A header that was read ahead and belongs to the next file.
    next_header: Option<Block>,
}

impl<R: Read> TarReader<R> {
    pub(super) fn new(from: R) -> Self {
        Self { from, next_header: None }
    }

    /// Checks that the first file has this name. Must be called before any other read.
    ///
    /// # Errors
    /// The tar cannot be read, or ends within a first header that matches so far.
    pub(super) fn first_is(&mut self, name: &str) -> Result<bool, BadTar> {
        let mut head = Vec::with_capacity(BLOCK);
        (&mut self.from).take(BLOCK as u64).read_to_end(&mut head).map_err(BadTar::Unreadable)?;
        let wanted = [name.as_bytes(), b"\0"].concat();
        if let Ok(block) = Block::try_from(head.as_slice()) {
            self.next_header = Some(block);
            return Ok(head.starts_with(&wanted));
        }
        if wanted.starts_with(&head) || head.starts_with(&wanted) { Err(BadTar::Truncated) } else { Ok(false) }
    }

    /// Returns the size of the next file if it has this name. Otherwise its header stays unread.
    ///
    /// # Errors
    /// The header is not canonical, or the file has more than `largest` bytes.
    pub(super) fn next_size_if(&mut self, name: &str, largest: u64) -> Result<Option<u64>, BadTar> {
        let next = self.block()?;
        if next.get(..name.len()) != Some(name.as_bytes()) || next.get(name.len()) != Some(&0) {
            self.next_header = Some(next);
            return Ok(None);
        }
        let size = size_in(&next).filter(|size| header(name, *size) == next);
        match size {
            Some(size) if size <= largest => Ok(Some(size)),
            Some(size) => Err(BadTar::Differs(format!("{name} has {size} bytes, the limit is {largest}"))),
            None => Err(BadTar::Differs(format!("the tar header of {name} is malformed"))),
        }
    }

    /// Reads the next header, which must be that of this name and size.
    pub(super) fn expect_header(&mut self, name: &str, size: u64) -> Result<(), BadTar> {
        if self.block()? == header(name, size) {
            return Ok(());
        }
        Err(BadTar::Differs(format!("the tar header of {name} ({size} bytes) is malformed")))
    }

    /// Reads the contents of a file piece by piece, then its padding.
    pub(super) fn content<E: From<BadTar>>(
        &mut self,
        name: &str,
        size: u64,
        buffer: &mut [u8],
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut left = size;
        while left > 0 {
            let some = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            let Some(piece) = buffer.get_mut(..some).filter(|piece| !piece.is_empty()) else {
                return Err(BadTar::Differs("the read buffer is empty".to_owned()).into());
            };
            self.exactly(piece)?;
            take(piece)?;
            left -= some as u64;
        }
        let mut zeros = [0; BLOCK];
        let zeros = zeros.get_mut(..padding(size)).unwrap_or_default();
        self.exactly(zeros)?;
        if zeros.iter().any(|byte| *byte != 0) {
            return Err(BadTar::Differs(format!("the padding of {name} is not zero")).into());
        }
        Ok(())
    }

    /// Reads the end: two zero blocks and nothing after them.
    pub(super) fn end(&mut self) -> Result<(), BadTar> {
        for _ in 0..2 {
            if self.block()? != [0; BLOCK] {
                return Err(BadTar::Differs("the tar does not end after its manifest's files".to_owned()));
            }
        }
        let mut more = [0];
        loop {
            match self.from.read(&mut more) {
                Ok(0) => return Ok(()),
                Ok(_) => return Err(BadTar::Differs("data follows the end of the tar".to_owned())),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(BadTar::Unreadable(e)),
            }
        }
    }

    fn block(&mut self) -> Result<Block, BadTar> {
        if let Some(seen) = self.next_header.take() {
            return Ok(seen);
        }
        let mut block = [0; BLOCK];
        self.exactly(&mut block)?;
        Ok(block)
    }

    fn exactly(&mut self, buffer: &mut [u8]) -> Result<(), BadTar> {
        self.from.read_exact(buffer).map_err(|e| match e.kind() {
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
            tar.file(name, bytes.len() as u64, |out| out(bytes)).unwrap();
        }
        tar.end().unwrap()
    }

    fn read(tar: &[u8], files: &[(String, Vec<u8>)]) -> Result<Vec<Vec<u8>>, BadTar> {
        let mut tar = TarReader::new(tar);
        let mut found = Vec::new();
        for (name, bytes) in files {
            let size = bytes.len() as u64;
            tar.expect_header(name, size)?;
            let mut content = Vec::new();
            tar.content(name, size, &mut [0; 100], |piece| {
                content.extend_from_slice(piece);
                Ok::<_, BadTar>(())
            })?;
            found.push(content);
        }
        tar.end()?;
        Ok(found)
    }

    /// Other programs can list a bundle: the tar crate reads equal names, sizes and contents.
    #[test]
    fn other_programs_read_it() {
        let files = [("larder-bundle.json".to_owned(), b"{}".to_vec()), ("sha256/ab".to_owned(), vec![7; 1024])];
        let tar = written(&files);
        let mut archive = ::tar::Archive::new(&tar[..]);
        let mut found = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            found.push((name, bytes));
        }
        assert_eq!(found, files);
    }

    /// Sizes from 8 GiB on do not fit into eleven octal digits.
    #[test]
    fn sizes_of_any_length_are_written_as_others_read_them() {
        for size in [0, 1, 512, MAX_IN_OCTAL - 1, MAX_IN_OCTAL, 1 << 40, u64::MAX] {
            let header = header("sha256/ab", size);
            assert_eq!(size_in(&header), Some(size));
            let read_back = ::tar::Header::from_byte_slice(&header);
            assert_eq!(read_back.entry_size().unwrap(), size);
            assert!(read_back.as_ustar().is_some());
        }
    }

    proptest! {
        #[test]
        fn any_altered_byte_of_a_tar_is_detected(
            sizes in prop::collection::vec(0usize..1100, 0..4),
            at in any::<prop::sample::Index>(),
            flip in 1u8..,
        ) {
            let files: Vec<_> =
                sizes.iter().enumerate().map(|(n, size)| (format!("sha256/{n}"), vec![n as u8; *size])).collect();
            let mut tar = written(&files);
            let contents: Vec<Vec<u8>> = files.iter().map(|(_, bytes)| bytes.clone()).collect();
            prop_assert_eq!(read(&tar, &files).unwrap(), contents.clone());
            let index = at.index(tar.len());
            tar[index] ^= flip;
            // Contents are not checked here; the bundle's reader compares their digests.
            prop_assert!(read(&tar, &files).map_or(true, |found| found != contents));
            tar[index] ^= flip;
            prop_assert!(matches!(read(&tar[..index], &files), Err(BadTar::Truncated)));
            tar.push(flip);
            prop_assert!(read(&tar, &files).is_err());
        }

        #[test]
        fn foreign_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..1600)) {
            let mut tar = TarReader::new(&bytes[..]);
            let _ = tar.next_size_if("larder-bundle.json", 100);
            let _ = tar.end();
        }
    }
}
