//! The stream of a bundle: the manifest first, its signature, then each file in the manifest's order, in a tar of plain
//! files in one canonical form. The reader accepts a header only if it equals, byte for byte, the header that the writer
//! makes for the name and size, and checks every byte against the manifest.

use std::io::{self, Read, Write};
use std::sync::Arc;

use super::{BadManifest, BundleTrust, EntryFile, MAX_MANIFEST, Manifest, Signature, SignatureStatus, SigningKey};
use crate::digest::{Digest, Hasher};

const MANIFEST_NAME: &str = "larder-bundle.json";
const SIGNATURE_NAME: &str = "larder-bundle.sig";
const MAX_SIGNATURE_BYTES: u64 = 4 << 10;
const BUFFER_BYTES: usize = 256 * 1024;

/// Why reading a bundle stopped.
#[derive(Debug, thiserror::Error)]
pub enum BadBundle {
    /// The stream is truncated.
    #[error("the bundle ends too early: truncated, or not completely written")]
    Truncated,
    /// The stream cannot be read.
    #[error("the bundle cannot be read: {0}")]
    Unreadable(#[source] io::Error),
    /// The stream is not a bundle.
    #[error("not a larder bundle: it does not begin with {MANIFEST_NAME}")]
    NotABundle,
    /// A part of the bundle is not in the canonical form.
    #[error("the bundle was altered: {0}")]
    Altered(String),
    /// The manifest is refused.
    #[error(transparent)]
    Manifest(#[from] BadManifest),
    /// The signature is missing, wrong or by a key that is not trusted.
    #[error("the bundle is refused: {0}")]
    Untrusted(String),
}

/// The result of checking a file against the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DigestCheck {
    /// The digest matches.
    Matches,
    /// The digest differs.
    Differs {
        /// The digest of the bytes that were read.
        actual: Digest,
    },
}

/// An opened bundle: the manifest is read and accepted, the files are still to be read.
#[derive(Debug)]
pub struct BundleReader<R> {
    tar: TarReader<R>,
    buffer: Vec<u8>,
    /// The manifest.
    pub manifest: Arc<Manifest>,
    /// The SHA-256 of the manifest's bytes.
    pub digest: Digest,
    /// The outcome of the signature check.
    pub signature_status: SignatureStatus,
    signature: Option<Signature>,
}

impl<R: Read> BundleReader<R> {
    /// Reads and verifies the manifest and the signature.
    ///
    /// # Errors
    /// [`BadBundle`].
    pub fn open(input: R, trust: &BundleTrust) -> Result<Self, BadBundle> {
        let (mut tar, mut buffer) = (TarReader::new(input), vec![0; BUFFER_BYTES]);
        if !tar.first_file_is(MANIFEST_NAME)? {
            return Err(BadBundle::NotABundle);
        }
        let manifest =
            read_file_if_next(&mut tar, &mut buffer, MANIFEST_NAME, MAX_MANIFEST)?.ok_or(BadBundle::NotABundle)?;
        let signature = match read_file_if_next(&mut tar, &mut buffer, SIGNATURE_NAME, MAX_SIGNATURE_BYTES)? {
            None => None,
            Some(bytes) => {
                let malformed = || BadBundle::Altered(format!("{SIGNATURE_NAME} is malformed"));
                Some(Signature::read(&bytes).ok_or_else(malformed)?)
            }
        };
        let signature_status = trust.verify_manifest(&manifest, signature.as_ref()).map_err(BadBundle::Untrusted)?;
        let digest = Digest::of(&manifest);
        let manifest = Arc::new(Manifest::read(&manifest)?);
        Ok(Self { tar, buffer, manifest, digest, signature_status, signature })
    }

    /// The bytes of the manifest and of the signature, as they are in the bundle.
    pub(super) fn manifest_and_signature(&self) -> (Vec<u8>, Option<Vec<u8>>) {
        (self.manifest.to_bytes(), self.signature.as_ref().map(Signature::to_bytes))
    }

    /// The size of the whole bundle in bytes, by its manifest.
    pub fn bundle_bytes(&self) -> u64 {
        let (manifest, signature) = self.manifest_and_signature();
        self.manifest.bundle_bytes(manifest.len(), signature.map(|signature| signature.len()))
    }

    /// Reads the next of [`Manifest::files`] and passes its bytes to `on_chunk`. The bytes are verified only once this
    /// returns [`DigestCheck::Matches`].
    ///
    /// # Errors
    /// [`BadBundle`], after which nothing more can be read; also errors of `on_chunk`.
    pub fn file<E: From<BadBundle>>(
        &mut self,
        file: &EntryFile,
        mut on_chunk: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<DigestCheck, E> {
        let name = file.name();
        self.tar.expect_header(&name, file.file.bytes)?;
        let mut hasher = Hasher::new();
        self.tar.content(&name, file.file.bytes, &mut self.buffer, |chunk| {
            hasher.update(chunk);
            on_chunk(chunk)
        })?;
        let (actual, _) = hasher.finish();
        Ok(if actual == file.file.sha256 { DigestCheck::Matches } else { DigestCheck::Differs { actual } })
    }

    /// Reads the end of the tar. Nothing may follow the last file.
    ///
    /// # Errors
    /// [`BadBundle`].
    pub fn end(&mut self) -> Result<(), BadBundle> {
        self.tar.end()
    }
}

/// Reads the next file into memory if it has this name; otherwise returns `None` and reads nothing.
fn read_file_if_next<R: Read>(
    tar: &mut TarReader<R>,
    buffer: &mut [u8],
    name: &str,
    max_bytes: u64,
) -> Result<Option<Vec<u8>>, BadBundle> {
    let Some(size) = tar.next_size_if(name, max_bytes)? else { return Ok(None) };
    let mut bytes = Vec::new();
    tar.content(name, size, buffer, |chunk| {
        bytes.extend_from_slice(chunk);
        Ok::<_, BadBundle>(())
    })?;
    Ok(Some(bytes))
}

/// A writer of bundles. Equal manifests, keys and files give equal bytes.
#[derive(Debug)]
pub struct BundleWriter<W> {
    tar: TarWriter<W>,
    buffer: Vec<u8>,
}

impl<W: Write> BundleWriter<W> {
    /// The size of the bundle with this manifest, in bytes.
    pub fn bundle_bytes(manifest: &Manifest, key: Option<&SigningKey>) -> u64 {
        let manifest_bytes = manifest.to_bytes();
        let signature = key.map(|key| key.sign(&manifest_bytes).to_bytes().len());
        manifest.bundle_bytes(manifest_bytes.len(), signature)
    }

    /// Checks and writes the manifest, then its signature.
    ///
    /// # Errors
    /// The manifest is one that a reader would refuse; also errors of the writer.
    pub fn begin(out: W, manifest: &Manifest, key: Option<&SigningKey>) -> io::Result<Self> {
        manifest.check().map_err(io::Error::other)?;
        let manifest_bytes = manifest.to_bytes();
        let signature = key.map(|key| key.sign(&manifest_bytes).to_bytes());
        Self::begin_serialized(out, &manifest_bytes, signature.as_deref())
    }

    /// Writes a manifest and a signature that are already serialised.
    pub(super) fn begin_serialized(out: W, manifest: &[u8], signature: Option<&[u8]>) -> io::Result<Self> {
        let mut tar = TarWriter::new(out);
        tar.file(MANIFEST_NAME, manifest.len() as u64, |write| write(manifest))?;
        if let Some(signature) = signature {
            tar.file(SIGNATURE_NAME, signature.len() as u64, |write| write(signature))?;
        }
        Ok(Self { tar, buffer: vec![0; BUFFER_BYTES] })
    }

    /// Writes the next of [`Manifest::files`].
    ///
    /// # Errors
    /// The size or digest is not the manifest's; also errors of `contents` and the writer.
    pub fn file(&mut self, file: &EntryFile, mut contents: impl Read) -> io::Result<()> {
        let (mut hasher, buffer) = (Hasher::new(), &mut self.buffer);
        self.tar.file(&file.name(), file.file.bytes, |write| {
            loop {
                let read = match contents.read(buffer) {
                    Ok(read) => read,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                    Err(e) => return Err(e),
                };
                let Some(chunk) = buffer.get(..read).filter(|chunk| !chunk.is_empty()) else { return Ok(()) };
                hasher.update(chunk);
                write(chunk)?;
            }
        })?;
        let (actual, _): (Digest, _) = hasher.finish();
        if actual != file.file.sha256 {
            let expected = file.file.sha256;
            return Err(io::Error::other(format!("expected SHA-256 {expected}, got {actual}")));
        }
        Ok(())
    }

    /// Writes the next file. `write_contents` passes the bytes to its argument, and checks their digest itself.
    pub(super) fn write_file_with(
        &mut self,
        file: &EntryFile,
        write_contents: impl FnOnce(&mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()>,
    ) -> io::Result<()> {
        self.tar.file(&file.name(), file.file.bytes, write_contents)
    }

    /// Writes the end of the tar and returns the inner writer.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn end(self) -> io::Result<W> {
        self.tar.end()
    }
}

const BLOCK: usize = 512;
/// The length of the name field in a header.
const NAME_BYTES: usize = 100;
/// The first size that does not fit into eleven octal digits. Such sizes are written in base 256, as GNU tar does.
const FIRST_BASE_256_SIZE: u64 = 8 << 30;

type Block = [u8; BLOCK];

/// The header of a plain file in the canonical form: mode 0644, owner 0, time 0.
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
struct TarWriter<W> {
    out: W,
}

impl<W: Write> TarWriter<W> {
    fn new(out: W) -> Self {
        Self { out }
    }

    /// Writes a file of exactly `size` bytes. `write_contents` passes all bytes to its argument.
    ///
    /// # Errors
    /// The name is too long, or the contents are not `size` bytes; also errors of `write_contents` and of the writer.
    fn file(
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

    fn end(mut self) -> io::Result<W> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        self.out.flush()?;
        Ok(self.out)
    }
}

/// Reads files in order. The caller names each file that must follow.
#[derive(Debug)]
struct TarReader<R> {
    input: R,
    /// The header of the next file, if it was read ahead.
    next_header: Option<Block>,
}

impl<R: Read> TarReader<R> {
    fn new(input: R) -> Self {
        Self { input, next_header: None }
    }

    /// Returns true if the first file has this name. Must be called before any other read.
    ///
    /// # Errors
    /// The tar cannot be read, or ends within its first header after bytes that match the name.
    fn first_file_is(&mut self, name: &str) -> Result<bool, BadBundle> {
        let mut start = Vec::with_capacity(BLOCK);
        (&mut self.input).take(BLOCK as u64).read_to_end(&mut start).map_err(BadBundle::Unreadable)?;
        let name_field = [name.as_bytes(), b"\0"].concat();
        if let Ok(block) = Block::try_from(start.as_slice()) {
            self.next_header = Some(block);
            return Ok(start.starts_with(&name_field));
        }
        if name_field.starts_with(&start) || start.starts_with(&name_field) {
            Err(BadBundle::Truncated)
        } else {
            Ok(false)
        }
    }

    /// Returns the size of the next file if the file has this name. Otherwise its header stays unread.
    ///
    /// # Errors
    /// The header is not canonical, or the file has more than `max_bytes` bytes.
    fn next_size_if(&mut self, name: &str, max_bytes: u64) -> Result<Option<u64>, BadBundle> {
        let next = self.read_block()?;
        if next.get(..name.len()) != Some(name.as_bytes()) || next.get(name.len()) != Some(&0) {
            self.next_header = Some(next);
            return Ok(None);
        }
        let size = header_size(&next).filter(|size| header(name, *size) == next);
        match size {
            Some(size) if size <= max_bytes => Ok(Some(size)),
            Some(size) => Err(BadBundle::Altered(format!("{name} has {size} bytes, the limit is {max_bytes}"))),
            None => Err(BadBundle::Altered(format!("the tar header of {name} is malformed"))),
        }
    }

    /// Reads the next header, which must have this name and size.
    fn expect_header(&mut self, name: &str, size: u64) -> Result<(), BadBundle> {
        if self.read_block()? == header(name, size) {
            return Ok(());
        }
        Err(BadBundle::Altered(format!("the tar header of {name} ({size} bytes) is malformed")))
    }

    /// Reads the contents of a file in chunks and passes each to `on_chunk`, then reads the padding.
    fn content<E: From<BadBundle>>(
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
                return Err(BadBundle::Altered("the read buffer is empty".to_owned()).into());
            };
            self.read_exact(chunk)?;
            on_chunk(chunk)?;
            remaining_bytes -= length as u64;
        }
        let mut zeros = [0; BLOCK];
        let zeros = zeros.get_mut(..padding(size)).unwrap_or_default();
        self.read_exact(zeros)?;
        if zeros.iter().any(|byte| *byte != 0) {
            return Err(BadBundle::Altered(format!("the padding of {name} is not zero")).into());
        }
        Ok(())
    }

    /// Reads the end: two zero blocks and nothing after them.
    fn end(&mut self) -> Result<(), BadBundle> {
        for _ in 0..2 {
            if self.read_block()? != [0; BLOCK] {
                return Err(BadBundle::Altered("the tar does not end after its manifest's files".to_owned()));
            }
        }
        let mut extra_byte = [0];
        loop {
            match self.input.read(&mut extra_byte) {
                Ok(0) => return Ok(()),
                Ok(_) => return Err(BadBundle::Altered("data follows the end of the tar".to_owned())),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(BadBundle::Unreadable(e)),
            }
        }
    }

    /// Reads one block, or returns the header that was read ahead.
    fn read_block(&mut self) -> Result<Block, BadBundle> {
        if let Some(header) = self.next_header.take() {
            return Ok(header);
        }
        let mut block = [0; BLOCK];
        self.read_exact(&mut block)?;
        Ok(block)
    }

    fn read_exact(&mut self, buffer: &mut [u8]) -> Result<(), BadBundle> {
        self.input.read_exact(buffer).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => BadBundle::Truncated,
            _ => BadBundle::Unreadable(e),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BundledFile, FileRole};
    use super::*;
    use crate::clock::Timestamp;
    use proptest::prelude::*;

    /// Reads one byte after the other; a signal interrupts every second read.
    struct Interrupted<'a> {
        contents: &'a [u8],
        is_interrupted: bool,
    }

    impl Read for Interrupted<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.is_interrupted = !self.is_interrupted;
            if self.is_interrupted {
                return Err(io::ErrorKind::Interrupted.into());
            }
            (&mut self.contents).take(1).read(buffer)
        }
    }

    #[test]
    fn an_interrupted_read_is_repeated() {
        let manifest = Manifest::new(Timestamp(1), None, Vec::new());
        let file = BundledFile { sha256: Digest::of(b"contents"), bytes: 8 };
        let file = EntryFile { role: FileRole::Document, file, left_out: false };
        let mut writer = BundleWriter::begin(Vec::new(), &manifest, None).unwrap();
        writer.file(&file, Interrupted { contents: b"contents", is_interrupted: false }).unwrap();
    }

    fn written(files: &[(String, Vec<u8>)]) -> Vec<u8> {
        let mut tar = TarWriter::new(Vec::new());
        for (name, bytes) in files {
            tar.file(name, bytes.len() as u64, |write| write(bytes)).unwrap();
        }
        tar.end().unwrap()
    }

    fn read(tar: &[u8], files: &[(String, Vec<u8>)]) -> Result<Vec<Vec<u8>>, BadBundle> {
        let mut tar = TarReader::new(tar);
        let mut contents = Vec::new();
        for (name, bytes) in files {
            let size = bytes.len() as u64;
            tar.expect_header(name, size)?;
            let mut content = Vec::new();
            tar.content(name, size, &mut [0; 100], |chunk| {
                content.extend_from_slice(chunk);
                Ok::<_, BadBundle>(())
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
            prop_assert!(matches!(read(&tar[..index], &files), Err(BadBundle::Truncated)));
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
