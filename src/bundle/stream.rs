//! The stream of a bundle: the manifest first, its signature, then each file in the manifest's order, in a tar of plain
//! files in one canonical form. The reader accepts a header only if it equals, byte for byte, the header that the writer
//! makes for the name and size, and checks every byte against the manifest.

use std::io::{self, Read, Write};
use std::sync::Arc;

use tar::Header;

use super::{BadManifest, BundleTrust, EntryFile, MAX_MANIFEST, Manifest, Signature, SignatureStatus, SigningKey};
use crate::digest::{Digest, Hasher, HashingReader};
use crate::packaging::{BLOCK, TarWriter, padding_bytes};

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

impl From<BadBundle> for io::Error {
    fn from(bad: BadBundle) -> Self {
        match bad {
            BadBundle::Truncated => Self::new(io::ErrorKind::UnexpectedEof, bad),
            BadBundle::Unreadable(e) => e,
            bad => Self::other(bad),
        }
    }
}

/// An opened bundle: the manifest is read and accepted, the files are still to be read. [`Read`] reads the file that
/// [`BundleReader::begin_file`] began: exactly its size, or an error.
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
        let mut tar = TarReader::new(input);
        if !tar.first_file_is(MANIFEST_NAME)? {
            return Err(BadBundle::NotABundle);
        }
        let manifest = tar.read_file_if_next(MANIFEST_NAME, MAX_MANIFEST)?.ok_or(BadBundle::NotABundle)?;
        let malformed = || BadBundle::Altered(format!("{SIGNATURE_NAME} is malformed"));
        let signature = tar
            .read_file_if_next(SIGNATURE_NAME, MAX_SIGNATURE_BYTES)?
            .map(|bytes| Signature::read(&bytes).ok_or_else(malformed))
            .transpose()?;
        let signature_status = trust.verify_manifest(&manifest, signature.as_ref()).map_err(BadBundle::Untrusted)?;
        let digest = Digest::of(&manifest);
        let manifest = Arc::new(Manifest::read(&manifest)?);
        Ok(Self { tar, buffer: vec![0; BUFFER_BYTES], manifest, digest, signature_status, signature })
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

    /// Reads the header of the next of [`Manifest::files`].
    ///
    /// # Errors
    /// [`BadBundle`], after which nothing more can be read.
    pub fn begin_file(&mut self, file: &EntryFile) -> Result<(), BadBundle> {
        self.tar.begin_file(&file.name(), file.file.bytes)
    }

    /// Reads the next of [`Manifest::files`], passes its bytes to `on_chunk`, and returns its digest. The caller compares
    /// that with the manifest's.
    ///
    /// # Errors
    /// [`BadBundle`], after which nothing more can be read.
    pub fn file(&mut self, file: &EntryFile, mut on_chunk: impl FnMut(&[u8])) -> Result<Digest, BadBundle> {
        self.begin_file(file)?;
        let mut hasher = Hasher::new();
        loop {
            let chunk_bytes = self.tar.read_contents(&mut self.buffer)?;
            if chunk_bytes == 0 {
                return Ok(hasher.finish().0);
            }
            let chunk = &self.buffer[..chunk_bytes];
            hasher.update(chunk);
            on_chunk(chunk);
        }
    }

    /// Reads the end of the tar. Nothing may follow the last file.
    ///
    /// # Errors
    /// [`BadBundle`].
    pub fn end(&mut self) -> Result<(), BadBundle> {
        self.tar.end()
    }
}

impl<R: Read> Read for BundleReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(self.tar.read_contents(buffer)?)
    }
}

/// A writer of bundles. Equal manifests, keys and files give equal bytes.
pub struct BundleWriter<W: Write> {
    tar: TarWriter<W>,
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
        tar.file_with_header(&header(MANIFEST_NAME, manifest.len() as u64), manifest)?;
        if let Some(signature) = signature {
            tar.file_with_header(&header(SIGNATURE_NAME, signature.len() as u64), signature)?;
        }
        Ok(Self { tar })
    }

    /// Writes the next of [`Manifest::files`].
    ///
    /// # Errors
    /// The size or digest is not the manifest's; also errors of `contents` and the writer.
    pub fn file(&mut self, file: &EntryFile, contents: impl Read) -> io::Result<()> {
        let mut contents = HashingReader::new(contents);
        self.tar.file_with_header(&header(&file.name(), file.file.bytes), &mut contents)?;
        file.check_digest(contents.digest()).map_err(io::Error::other)
    }

    /// Writes the end of the tar and returns the inner writer.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn end(self) -> io::Result<W> {
        self.tar.end()
    }
}

impl EntryFile {
    /// Compares the digest of the bytes that were read with the manifest's.
    ///
    /// # Errors
    /// The reason to refuse the bytes.
    pub fn check_digest(&self, actual: Digest) -> Result<(), String> {
        if actual == self.file.sha256 {
            return Ok(());
        }
        Err(format!("its {} was altered: the SHA-256 of {} is now {actual}", self.role, self.name()))
    }
}

type Block = [u8; BLOCK];

/// The header of a plain file in the canonical form: mode 0644, owner 0, time 0.
fn header(name: &str, size: u64) -> Header {
    let mut header = Header::new_ustar();
    if let Some(ustar) = header.as_ustar_mut() {
        for (target, byte) in ustar.name.iter_mut().zip(name.bytes()) {
            *target = byte;
        }
        (ustar.dev_major, ustar.dev_minor) = (*b"0000000\0", *b"0000000\0");
    }
    header.set_entry_type(tar::EntryType::Regular);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size);
    header.set_cksum();
    // The checksum has GNU tar's form: six digits, a zero byte, a space. The tar crate writes seven digits.
    let checksum = &mut header.as_old_mut().cksum;
    checksum.rotate_left(1);
    checksum[7] = b' ';
    header
}

/// The bytes that a file takes in a tar: header, contents and padding.
pub(super) fn tar_bytes_of_file(size: u64) -> u64 {
    size.saturating_add(padding_bytes(size)).saturating_add(BLOCK as u64)
}

/// The two zero blocks that end a tar, in bytes.
pub(super) const END_BYTES: u64 = 2 * BLOCK as u64;

/// Reads files in order. The caller names each file that must follow.
#[derive(Debug)]
struct TarReader<R> {
    input: R,
    /// The header of the next file, if it was read ahead.
    next_header: Option<Block>,
    /// The unread contents of the current file, in bytes.
    remaining_bytes: u64,
    /// The padding after them, in bytes.
    padding_bytes: u64,
}

impl<R: Read> TarReader<R> {
    fn new(input: R) -> Self {
        Self { input, next_header: None, remaining_bytes: 0, padding_bytes: 0 }
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

    /// Reads the next file into memory if it has this name; otherwise returns `None` and its header stays unread.
    ///
    /// # Errors
    /// The header is not canonical, or the file has more than `max_bytes` bytes.
    fn read_file_if_next(&mut self, name: &str, max_bytes: u64) -> Result<Option<Vec<u8>>, BadBundle> {
        let block = self.read_block()?;
        if !block.starts_with(&[name.as_bytes(), b"\0"].concat()) {
            self.next_header = Some(block);
            return Ok(None);
        }
        let size = Header::from_byte_slice(&block).entry_size();
        let size = size.ok().filter(|size| *header(name, *size).as_bytes() == block);
        let size = size.ok_or_else(|| BadBundle::Altered(format!("the tar header of {name} is malformed")))?;
        if size > max_bytes {
            return Err(BadBundle::Altered(format!("{name} has {size} bytes, the limit is {max_bytes}")));
        }
        (self.remaining_bytes, self.padding_bytes) = (size, padding_bytes(size));
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
        self.read_contents(&mut bytes)?;
        Ok(Some(bytes))
    }

    /// Reads the next header, which must have this name and size.
    fn begin_file(&mut self, name: &str, size: u64) -> Result<(), BadBundle> {
        if self.read_block()? != *header(name, size).as_bytes() {
            return Err(BadBundle::Altered(format!("the tar header of {name} ({size} bytes) is malformed")));
        }
        (self.remaining_bytes, self.padding_bytes) = (size, padding_bytes(size));
        Ok(())
    }

    /// Fills the buffer with the next contents of the current file, or with all that are left, and returns their length.
    /// Reads the padding after the last.
    fn read_contents(&mut self, buffer: &mut [u8]) -> Result<usize, BadBundle> {
        let length = usize::try_from(self.remaining_bytes).unwrap_or(usize::MAX).min(buffer.len());
        self.read_exact(&mut buffer[..length])?;
        self.remaining_bytes -= length as u64;
        if self.remaining_bytes == 0 {
            let mut padding = [0; BLOCK];
            let padding_bytes = std::mem::take(&mut self.padding_bytes);
            let padding = &mut padding[..usize::try_from(padding_bytes).unwrap_or(0)];
            self.read_exact(padding)?;
            if padding.iter().any(|byte| *byte != 0) {
                return Err(BadBundle::Altered("the padding of a file is not zero".to_owned()));
            }
        }
        Ok(length)
    }

    /// Reads the end: two zero blocks and nothing after them.
    fn end(&mut self) -> Result<(), BadBundle> {
        for _ in 0..2 {
            if self.read_block()? != [0; BLOCK] {
                return Err(BadBundle::Altered("the tar does not end after its manifest's files".to_owned()));
            }
        }
        match io::copy(&mut (&mut self.input).take(1), &mut io::sink()).map_err(BadBundle::Unreadable)? {
            0 => Ok(()),
            _ => Err(BadBundle::Altered("data follows the end of the tar".to_owned())),
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
        let manifest = Manifest::new(Timestamp(1), None, Vec::new(), Vec::new());
        let file = BundledFile { sha256: Digest::of(b"contents"), bytes: 8 };
        let file = EntryFile { role: FileRole::Document, file, left_out: false };
        let mut writer = BundleWriter::begin(Vec::new(), &manifest, None).unwrap();
        writer.file(&file, Interrupted { contents: b"contents", is_interrupted: false }).unwrap();
    }

    fn written(files: &[(String, Vec<u8>)]) -> Vec<u8> {
        let mut tar = TarWriter::new(Vec::new());
        for (name, bytes) in files {
            tar.file_with_header(&header(name, bytes.len() as u64), &bytes[..]).unwrap();
        }
        tar.end().unwrap()
    }

    fn read(tar: &[u8], files: &[(String, Vec<u8>)]) -> Result<Vec<Vec<u8>>, BadBundle> {
        let mut tar = TarReader::new(tar);
        let mut contents = Vec::new();
        for (name, bytes) in files {
            tar.begin_file(name, bytes.len() as u64)?;
            let (mut content, mut buffer) = (Vec::new(), [0; 100]);
            loop {
                match tar.read_contents(&mut buffer)? {
                    0 => break,
                    length => content.extend_from_slice(&buffer[..length]),
                }
            }
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
        for size in [0, 1, 512, (8 << 30) - 1, 8 << 30, 1 << 40, u64::MAX] {
            let header = header("sha256/ab", size);
            assert_eq!(header.entry_size().unwrap(), size);
            assert!(header.as_ustar().is_some());
        }
    }

    /// A bundle is read only if its headers equal those of an earlier larder byte for byte.
    #[test]
    fn the_header_has_fixed_bytes() {
        let header = header("sha256/ab", 8);
        assert_eq!(
            Digest::of(header.as_bytes()).to_string(),
            "d8d9d51684b807041cfa1aa3dd36e08a7ee2a04ca30b05ac177f5e87e0a84d1f"
        );
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
            let _ = tar.read_file_if_next("larder-bundle.json", 100);
            let _ = tar.end();
        }
    }
}
