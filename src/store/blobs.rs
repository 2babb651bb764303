//! Reads of the bytes of archives: at once, streamed, or piece by piece.
//!
//! Bytes on their way to clients take memory from one budget for all connections, and one small piece for each
//! connection when the budget is used up. Clients that do not read never fill the memory or delay other clients.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use futures_util::{Stream, stream};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::StoreError;
use super::disk::FileVersion;
use crate::digest::{Digest, FastHash, FastHasher, Hasher};

/// The buffer size of one read, in bytes.
pub const READ_BUFFER_BYTES: usize = 256 * 1024;

/// Bytes of an open file, read at offsets without a mapping.
#[derive(Debug, Clone)]
pub struct FileBytes {
    pub(super) file: Arc<File>,
}

impl FileBytes {
    /// True for bytes of the same open file.
    pub fn is_of_same_file(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.file, &other.file)
    }

    /// Reads `length` bytes from byte `from` on, in a blocking task.
    ///
    /// # Errors
    /// The file cannot be read, or is shorter.
    pub async fn part(&self, from: u64, length: u64) -> io::Result<Bytes> {
        let (file, length) = (Arc::clone(&self.file), usize::try_from(length).map_err(io::Error::other)?);
        let read = move || {
            let mut part = vec![0; length];
            file.read_exact_at(&mut part, from).map(|()| Bytes::from(part))
        };
        tokio::task::spawn_blocking(read).await.map_err(io::Error::other)?
    }

    /// Reads the first `length` bytes, which have this hash. Blocks.
    ///
    /// # Errors
    /// The disk gives other bytes back, or none.
    pub fn read_back(&self, length: u64, fast: FastHash) -> Result<Vec<u8>, StoreError> {
        let mut content = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
        let read = self.file.read_exact_at(&mut content, 0);
        let right = read.and_then(|()| match FastHash::of(&content) == fast {
            true => Ok(()),
            false => Err(io::Error::other("the disk gave other bytes back")),
        });
        right.map_err(|e| StoreError::io("read", Path::new("the staged bytes"), e))?;
        Ok(content)
    }

    /// Hashes the whole file as it is on disk now. Blocks.
    pub fn fast_hash(&self) -> Result<FastHash, StoreError> {
        let mut hasher = FastHasher::new();
        each_piece(&self.file, Path::new("the staged bytes"), |piece| hasher.update(piece))?;
        Ok(hasher.finish())
    }
}

/// An open stored archive.
#[derive(Debug, Clone)]
pub struct Blob {
    bytes: FileBytes,
    path: PathBuf,
    version: FileVersion,
}

impl Blob {
    pub(super) fn new(file: Arc<File>, path: PathBuf) -> Result<Self, StoreError> {
        let version = FileVersion::of(&file).map_err(|e| StoreError::io("look at", &path, e))?;
        Ok(Self { bytes: FileBytes { file }, path, version })
    }

    /// Its size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.version.size_bytes()
    }

    /// Its bytes, for reads at offsets.
    pub fn bytes(&self) -> FileBytes {
        self.bytes.clone()
    }

    /// Reads the whole archive into memory.
    pub fn read_all(&self) -> Result<Vec<u8>, StoreError> {
        let mut contents = vec![0; usize::try_from(self.size_bytes()).unwrap_or(usize::MAX)];
        let read = self.bytes.file.read_exact_at(&mut contents, 0);
        read.map_err(|e| StoreError::io("read", &self.path, e))?;
        Ok(contents)
    }

    /// Hashes the whole archive with SHA-256 and the fast hash.
    pub fn hashes(&self) -> Result<(Digest, FastHash), StoreError> {
        let mut hasher = Hasher::new();
        self.each_piece(|piece| hasher.update(piece))?;
        Ok(hasher.finish())
    }

    /// Hashes the whole archive with the fast hash alone.
    pub fn fast_hash(&self) -> Result<FastHash, StoreError> {
        let mut hasher = FastHasher::new();
        self.each_piece(|piece| hasher.update(piece))?;
        Ok(hasher.finish())
    }

    /// Starts to read and hash the archive from its start, a piece at a time.
    pub fn read_again(&self) -> ReadCursor {
        let (reader, path) = (Box::new(self.reader()), self.path.clone());
        ReadCursor { reader, path, hasher: Hasher::new(), buffer: vec![0; READ_BUFFER_BYTES] }
    }

    /// The version of the file when it was opened.
    pub fn version(&self) -> FileVersion {
        self.version
    }

    fn each_piece(&self, consume: impl FnMut(&[u8])) -> Result<(), StoreError> {
        each_piece(&self.bytes.file, &self.path, consume)
    }

    /// A reader over the whole archive, with its own position.
    pub fn reader(&self) -> impl Read + Seek + use<> {
        ReaderAt { file: Arc::clone(&self.bytes.file), position: 0, size_bytes: self.size_bytes() }
    }

    /// Streams the bytes of `range`, within the limits of `memory`. Ends with an error if the file ends early.
    pub fn stream(&self, range: Range<u64>, memory: ReadShare) -> impl Stream<Item = io::Result<Bytes>> + Send + use<> {
        let pieces = (self.bytes.clone(), PieceReader::new(memory));
        stream::try_unfold((range.start, pieces), move |(offset, (bytes, mut reader))| async move {
            if offset >= range.end {
                return Ok(None);
            }
            let max_bytes = usize::try_from(range.end - offset).unwrap_or(usize::MAX);
            let piece = reader.read_at(&bytes, offset, max_bytes).await?;
            if piece.is_empty() {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
            let next = offset + piece.len() as u64;
            Ok(Some((piece, (next, (bytes, reader)))))
        })
    }
}

/// Reads the pieces of one answer. The memory of a piece that was sent serves for a later one: new memory would have to be
/// cleared each time.
#[derive(Debug)]
pub struct PieceReader {
    memory: ReadShare,
    sent: Arc<Mutex<Vec<GrantedBuffer>>>,
}

impl PieceReader {
    /// A reader that takes its memory from this share.
    pub fn new(memory: ReadShare) -> Self {
        Self { memory, sent: Arc::default() }
    }

    /// Reads up to `max_bytes` bytes at `offset`, as many as there is memory for; waits while there is none. Empty past the end
    /// of the file.
    ///
    /// Cached pages are read inline; anything else in a blocking task.
    ///
    /// # Errors
    /// The file cannot be read.
    pub async fn read_at(&mut self, file: &FileBytes, offset: u64, max_bytes: usize) -> io::Result<Bytes> {
        let mut piece = self.buffer(max_bytes).await;
        let length = max_bytes.min(piece.buffer.len());
        let read = match read_cached(&file.file, &mut piece.buffer[..length], offset) {
            Some(read) => read,
            None => {
                let file = Arc::clone(&file.file);
                let joined = tokio::task::spawn_blocking(move || {
                    let read = file.read_at(&mut piece.buffer[..length], offset);
                    (piece, read)
                });
                let (returned, read) = joined.await.map_err(io::Error::other)?;
                piece = returned;
                read?
            }
        };
        Ok(Bytes::from_owner(SentPiece { piece: Some(piece), length: read, sent: Arc::downgrade(&self.sent) }))
    }

    /// Gives the memory of sent pieces back, before a wait for more to read.
    pub fn release(&self) {
        self.sent.lock().clear();
    }

    /// Memory for up to `max_bytes` bytes: that of a piece that was sent, if it is large enough.
    async fn buffer(&self, max_bytes: usize) -> GrantedBuffer {
        let sent = self.sent.lock().pop();
        let wanted = max_bytes.min(READ_BUFFER_BYTES);
        // A buffer that is much too large would keep memory from others.
        match sent.filter(|sent| (wanted..=2 * wanted).contains(&sent.buffer.len())) {
            Some(sent) => sent,
            None => {
                let grant = self.memory.grant(max_bytes).await;
                GrantedBuffer { buffer: vec![0; grant.bytes], grant }
            }
        }
    }
}

/// A buffer with the memory grant that covers it.
#[derive(Debug)]
struct GrantedBuffer {
    buffer: Vec<u8>,
    grant: ReadGrant,
}

/// A piece of a file. Once it is sent, its memory is for the next one, or for others if they need it.
struct SentPiece {
    piece: Option<GrantedBuffer>,
    length: usize,
    sent: Weak<Mutex<Vec<GrantedBuffer>>>,
}

impl AsRef<[u8]> for SentPiece {
    fn as_ref(&self) -> &[u8] {
        self.piece.as_ref().and_then(|piece| piece.buffer.get(..self.length)).unwrap_or_default()
    }
}

impl Drop for SentPiece {
    fn drop(&mut self) {
        // The answer may have ended.
        if let (Some(sent), Some(piece)) = (self.sent.upgrade(), self.piece.take())
            && !piece.grant.is_needed_by_others()
        {
            sent.lock().push(piece);
        }
    }
}

/// Calls `consume` with each piece of a file, in order.
pub(super) fn each_piece(file: &File, path: &Path, mut consume: impl FnMut(&[u8])) -> Result<(), StoreError> {
    let mut buffer = vec![0; READ_BUFFER_BYTES];
    let mut offset = 0;
    loop {
        let read = file.read_at(&mut buffer, offset).map_err(|e| StoreError::io("read", path, e))?;
        if read == 0 {
            return Ok(());
        }
        consume(&buffer[..read]);
        offset += read as u64;
    }
}

/// Reads an open file at its own position, independent of the file's offset.
struct ReaderAt {
    file: Arc<File>,
    position: u64,
    size_bytes: u64,
}

impl Read for ReaderAt {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.position)?;
        self.position += read as u64;
        Ok(read)
    }
}

impl Seek for ReaderAt {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(offset) => self.size_bytes.checked_add_signed(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        self.position = position.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.position)
    }
}

/// Position and hash state of the read.
pub struct ReadCursor {
    reader: Box<dyn Read + Send>,
    path: PathBuf,
    hasher: Hasher,
    buffer: Vec<u8>,
}

impl ReadCursor {
    /// Reads and hashes the next piece; returns its length in bytes, 0 at the end.
    pub fn read_next(&mut self) -> Result<u64, StoreError> {
        let read = self.reader.read(&mut self.buffer).map_err(|e| StoreError::io("read", &self.path, e))?;
        self.hasher.update(&self.buffer[..read]);
        Ok(read as u64)
    }

    /// The digest of the bytes read so far.
    pub fn digest(self) -> Digest {
        self.hasher.finish().0
    }
}

/// The bytes that each connection may have in memory beyond the budget, when the budget is used up.
const RESERVED_BYTES: usize = 16 * 1024;

/// The memory budget of all connections; clones share it.
#[derive(Debug, Clone)]
pub struct ReadBudget(Arc<Semaphore>);

/// One connection's claim on the budget: it takes what is free, and when nothing is free, one piece of
/// 16 KiB at a time. Clones belong to the same connection.
#[derive(Debug, Clone)]
pub struct ReadShare {
    /// The free bytes of the budget of all connections.
    budget: Arc<Semaphore>,
    /// One permit: for the piece of 16 KiB beyond the budget.
    reserve: Arc<Semaphore>,
}

impl ReadBudget {
    /// A budget of so many bytes.
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS))))
    }

    /// The claim of a new connection.
    pub fn share(&self) -> ReadShare {
        ReadShare { budget: Arc::clone(&self.0), reserve: Arc::new(Semaphore::new(1)) }
    }

    /// Memory for so many bytes, if it is free now.
    pub fn try_grant(&self, bytes: usize) -> Option<ReadGrant> {
        let permit = Arc::clone(&self.0).try_acquire_many_owned(u32::try_from(bytes).ok()?).ok()?;
        Some(ReadGrant { bytes, permit: Some(permit) })
    }

    /// Copies bytes if the budget has space now.
    pub fn copy(&self, bytes: &[u8]) -> Option<Bytes> {
        Some(self.try_grant(bytes.len())?.fill(bytes.to_vec()))
    }
}

impl ReadShare {
    /// Memory for up to `max_bytes` bytes. If the budget is used up: for a small piece, once the previous one is released.
    async fn grant(&self, max_bytes: usize) -> ReadGrant {
        let permits = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        let bytes = max_bytes.min(READ_BUFFER_BYTES);
        if let Ok(permit) = Arc::clone(&self.budget).try_acquire_many_owned(permits(bytes)) {
            return ReadGrant { bytes, permit: Some(permit) };
        }
        let bytes = bytes.min(RESERVED_BYTES);
        let permit = tokio::select! {
            biased;
            reserved = Arc::clone(&self.reserve).acquire_owned() => reserved,
            from_budget = Arc::clone(&self.budget).acquire_many_owned(permits(bytes)) => from_budget,
        };
        // Fails only on a closed semaphore, which does not happen.
        ReadGrant { bytes, permit: permit.ok() }
    }
}

/// Memory that was granted for `bytes` bytes, in use until it is dropped. [`ReadGrant::fill`] ties it to the bytes that
/// are sent, so that it is free again once they are sent.
#[derive(Debug)]
pub struct ReadGrant {
    bytes: usize,
    permit: Option<OwnedSemaphorePermit>,
}

impl ReadGrant {
    /// True if the budget that it is of is nearly used up.
    fn is_needed_by_others(&self) -> bool {
        self.permit.as_ref().is_none_or(|permit| permit.semaphore().available_permits() < READ_BUFFER_BYTES)
    }

    /// Fills the granted memory; `buffer` is no longer than the grant.
    pub fn fill(self, buffer: Vec<u8>) -> Bytes {
        Bytes::from_owner(GrantedPiece { buffer, _grant: self })
    }
}

/// Bytes with the memory grant that covers them.
struct GrantedPiece {
    buffer: Vec<u8>,
    _grant: ReadGrant,
}

impl AsRef<[u8]> for GrantedPiece {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

/// Reads what the page cache has, without a wait for the disk. `None` if it has nothing, at the end of the file, where the file
/// system cannot tell, and on systems without such a read.
#[cfg(target_os = "linux")]
fn read_cached(file: &File, buffer: &mut [u8], offset: u64) -> Option<usize> {
    let flags = rustix::io::ReadWriteFlags::NOWAIT;
    rustix::io::preadv2(file, &mut [io::IoSliceMut::new(buffer)], offset, flags).ok().filter(|read| *read > 0)
}

#[cfg(not(target_os = "linux"))]
fn read_cached(_: &File, _: &mut [u8], _: u64) -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// Clients that fill the budget and read nothing leave every other connection one piece at a time (promise 11).
    #[tokio::test]
    async fn a_connection_continues_when_others_use_up_the_budget() {
        let memory = ReadBudget::new(100_000);
        let (hog, other) = (memory.share(), memory.share());
        let piece = async |share: &ReadShare, max_bytes: usize| {
            let grant = share.grant(max_bytes).await;
            let bytes = grant.bytes;
            grant.fill(vec![0; bytes])
        };
        let mut hogged = vec![piece(&hog, 60_000).await, piece(&hog, 40_000).await];
        assert_eq!(hogged.iter().map(Bytes::len).collect::<Vec<_>>(), [60_000, 40_000]);
        hogged.push(piece(&hog, 60_000).await);
        assert_eq!(hogged[2].len(), RESERVED_BYTES);
        let mut further = std::pin::pin!(piece(&hog, 60_000));
        assert!(further.as_mut().now_or_never().is_none());

        for _ in 0..3 {
            assert_eq!(piece(&other, 1 << 20).await.len(), RESERVED_BYTES);
        }
        let held = piece(&other, 100).await;
        assert_eq!(held.len(), 100);
        assert!(piece(&other, 100).now_or_never().is_none());

        // A part of a piece keeps all of it in memory.
        let part = hogged[0].slice(..1);
        drop(hogged.remove(0));
        assert!(further.as_mut().now_or_never().is_none());
        drop(part);
        assert_eq!(further.await.len(), RESERVED_BYTES);
    }
}
