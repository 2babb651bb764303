//! The bytes of archives: the files on this machine, and the place that keeps them for the whole larder.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use parking_lot::Mutex;

use super::disk::{self, Quarantine};
use super::locks::StoreLock;
use super::{Blob, Durability, FileBytes, FileVersion, Staged, StoreError, Striped};
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::verify::Verified;

/// The place that keeps the archives of a larder. Where that is this machine, its files are all.
pub trait Archives: fmt::Debug + Send + Sync {
    /// Begins to keep an archive that arrives. It is kept when [`Intake::secure`] has said so.
    fn intake(&self, digest: Digest) -> Arc<dyn Intake>;

    /// Removes what no archive needs, where the larder keeps them. Blocks.
    ///
    /// # Errors
    /// The place does not answer. The next sweep tries again.
    fn sweep(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Ends all waiting for the place: larder stops.
    fn stop(&self) {}

    /// The archives that many larders share; `None` where the files on this machine are all.
    fn shared(&self) -> Option<&dyn SharedArchives> {
        None
    }
}

/// Archives that many larders share. A file on this machine is a copy of one.
pub trait SharedArchives: Send + Sync {
    /// The place that keeps them, for messages.
    fn place(&self) -> String;

    /// The object that has the bytes of an archive; `None` if there is none, or if it was found to have others. Blocks.
    ///
    /// # Errors
    /// Nobody knows.
    fn object(&self, digest: &Digest) -> Result<Option<String>, StoreError>;

    /// As [`Self::object`], by what all replicas know at this moment. Blocks.
    ///
    /// # Errors
    /// Nobody knows.
    fn object_now(&self, digest: &Digest) -> Result<Option<String>, StoreError>;

    /// True if the notes of this machine name an object for an archive. Asks nobody: whoever knows the name of an archive has the note.
    /// Blocks.
    ///
    /// # Errors
    /// The notes cannot be read.
    fn is_noted(&self, digest: &Digest) -> Result<bool, StoreError>;

    /// The bytes of an object, from byte `from` on. Nobody has verified them.
    ///
    /// # Errors
    /// The place does not send them.
    fn fetch(&self, digest: Digest, object: &str, from: u64) -> BoxFuture<'static, Result<ArrivingBytes, StoreError>>;

    /// Notes that an object has other bytes than its archive, with what was found of which archive: the next one that is secured takes
    /// its place.
    fn contradicts(&self, digest: Digest, object: &str, found: &str);
}

/// Bytes that arrive.
pub struct ArrivingBytes {
    /// The length of the whole archive, in bytes.
    pub length: u64,
    /// The bytes, from the requested one on.
    pub bytes: BoxStream<'static, Result<Bytes, StoreError>>,
}

/// An archive on its way to where the larder keeps it.
pub trait Intake: Send + Sync {
    /// Notes that the first `written` bytes are staged. Never waits.
    fn staged(&self, bytes: &FileBytes, written: u64);

    /// Keeps the bytes, before the archive gets a name. May take minutes, and no lock is held. Blocks.
    ///
    /// # Errors
    /// They are not kept: the archive must not get a name.
    fn secure(&self, whole: &Verified<dyn ArchiveFile>) -> Result<(), StoreError>;
}

/// A file with all bytes of an archive: a staged one, or one of this machine.
pub trait ArchiveFile: Send + Sync {
    /// Its bytes, for reads at offsets.
    fn bytes(&self) -> FileBytes;

    /// Its size in bytes.
    fn size_bytes(&self) -> u64;
}

impl ArchiveFile for Staged {
    fn bytes(&self) -> FileBytes {
        self.bytes()
    }

    fn size_bytes(&self) -> u64 {
        self.written()
    }
}

impl ArchiveFile for Blob {
    fn bytes(&self) -> FileBytes {
        self.bytes()
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes()
    }
}

/// Archives that are kept on this machine: publishing syncs them and their folder.
#[derive(Debug)]
pub(super) struct OnThisMachine;

impl Archives for OnThisMachine {
    fn intake(&self, _: Digest) -> Arc<dyn Intake> {
        Arc::new(Self)
    }
}

impl Intake for OnThisMachine {
    fn staged(&self, _: &FileBytes, _: u64) {}

    fn secure(&self, _: &Verified<dyn ArchiveFile>) -> Result<(), StoreError> {
        Ok(())
    }
}

/// The archives on this machine: the files below `blobs/sha256`, named by digest. Staged ones are invisible; visible ones
/// are complete and verified.
///
/// All functions block.
#[derive(Debug)]
pub struct LocalArchives {
    folder: PathBuf,
    quarantine: Quarantine,
    lock: StoreLock,
    opened: OpenedArchives,
}

/// The archives that are open, so that any number of readers share one file descriptor of each. They read at offsets.
#[derive(Debug, Default)]
struct OpenedArchives {
    files: Mutex<HashMap<Digest, Weak<File>>>,
    /// Held while an archive is opened, so that two readers do not open it twice.
    opening: Striped<Mutex<()>>,
}

/// Entries of closed archives that are dropped together.
const MAX_CLOSED: usize = 64;

impl OpenedArchives {
    /// The file at `path`, if it is open already. A file that was put in its place is another one.
    fn get(&self, digest: &Digest, path: &Path) -> Option<Arc<File>> {
        let opened = self.files.lock().get(digest)?.upgrade()?;
        let is_in_place = disk::identity_of(path).ok()? == Some(disk::identity(&opened).ok()?);
        is_in_place.then_some(opened)
    }

    fn insert(&self, digest: Digest, opened: &Arc<File>) {
        let mut files = self.files.lock();
        if files.len() >= MAX_CLOSED && files.len().is_multiple_of(MAX_CLOSED) {
            files.retain(|_, file| file.strong_count() > 0);
        }
        files.insert(digest, Arc::downgrade(opened));
    }
}

impl LocalArchives {
    pub(super) fn open_folder(quarantine: Quarantine, lock: StoreLock) -> Result<Self, StoreError> {
        let folder = lock.root().join("blobs/sha256");
        disk::create_folder(&folder)?;
        Ok(Self { folder, quarantine, lock, opened: OpenedArchives::default() })
    }

    fn path(&self, digest: &Digest) -> PathBuf {
        let hex = digest.to_string();
        self.folder.join(&hex[..2]).join(hex)
    }

    /// Makes a verified archive visible, in this order: sync, rename, and the sync of the folder unless it is a copy. Returns the
    /// version of its file.
    pub fn publish(&self, staged: Verified<Staged>, durability: Durability) -> Result<FileVersion, StoreError> {
        let target = self.path(&staged.digest());
        staged.into_inner().move_to(&target, durability)
    }

    /// Makes a visible archive survive a power cut, with its folder. One that is not here is no error.
    pub fn sync(&self, digest: &Digest) -> Result<(), StoreError> {
        let path = self.path(digest);
        let Some(file) = self.lock.if_ours(disk::open(&path))? else { return Ok(()) };
        file.sync_all().map_err(|e| StoreError::io("sync", &path, e))?;
        disk::sync_folder_of(&path)
    }

    /// Opens an archive; `None` if it is not here.
    pub fn open(&self, digest: &Digest) -> Result<Option<Blob>, StoreError> {
        let path = self.path(digest);
        let _opening = self.opened.opening.of(digest).lock();
        if let Some(opened) = self.opened.get(digest, &path) {
            self.lock.check()?;
            return Blob::new(opened, path).map(Some);
        }
        let Some(file) = self.lock.if_ours(open_patiently(&path))? else { return Ok(None) };
        let file = Arc::new(file);
        self.opened.insert(*digest, &file);
        Blob::new(file, path).map(Some)
    }

    /// Size in bytes and modification time of an archive, without opening it; `None` if it is not here.
    pub fn stat(&self, digest: &Digest) -> Result<Option<(u64, Timestamp)>, StoreError> {
        self.lock.if_ours(disk::file_metadata(&self.path(digest)))
    }

    /// Removes an archive. Open readers continue to read it.
    pub fn remove(&self, digest: &Digest, durability: Durability) -> Result<(), StoreError> {
        self.lock.check()?;
        let path = self.path(digest);
        disk::remove(&path)?;
        disk::sync_removal(&path, durability)
    }

    /// Quarantines an archive whose bytes do not match its name.
    pub fn quarantine(&self, digest: &Digest) -> Result<(), StoreError> {
        self.lock.check()?;
        let target = self.quarantine.add(&self.path(digest))?;
        tracing::error!(digest = %digest, aside = %target.display(), "a damaged archive was quarantined");
        Ok(())
    }

    /// Returns true if an archive is here, without opening it.
    pub fn contains(&self, digest: &Digest) -> Result<bool, StoreError> {
        Ok(self.stat(digest)?.is_some())
    }

    /// Quarantines an archive if it is still the opened one; returns true if it was.
    pub fn quarantine_unless_replaced(&self, digest: &Digest, opened: &Blob) -> Result<bool, StoreError> {
        let Some(stored) = self.open(digest)? else { return Ok(false) };
        if !stored.version().is_of_same_file(&opened.version()) {
            return Ok(false);
        }
        self.quarantine(digest)?;
        Ok(true)
    }

    /// Every archive, with its size in bytes.
    pub fn all(&self) -> Result<Vec<(Digest, u64)>, StoreError> {
        let mut archives = Vec::new();
        self.each(|digest, size_bytes| {
            archives.push((digest, size_bytes));
            ControlFlow::Continue(())
        })?;
        Ok(archives)
    }

    /// Visits every archive, with its size in bytes, until `visit` breaks.
    pub fn each(&self, mut visit: impl FnMut(Digest, u64) -> ControlFlow<()>) -> Result<(), StoreError> {
        let digest = |path: &Path| Digest::parse(path.file_name()?.to_str()?).ok();
        let visit_file = &mut |path: PathBuf, size_bytes| match digest(&path) {
            Some(digest) => visit(digest, size_bytes),
            None => ControlFlow::Continue(()),
        };
        disk::each_file_after(&self.folder, None, visit_file).map(drop)
    }
}

/// The longest wait for a free file descriptor.
const DESCRIPTOR_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause between two tries to get one.
const DESCRIPTOR_PAUSE: Duration = Duration::from_millis(20);

/// Opens a stored file. Where the process has no file descriptor left for a moment, it waits for one: what is stored is no
/// error.
fn open_patiently(path: &Path) -> Result<Option<File>, StoreError> {
    let deadline = Instant::now() + DESCRIPTOR_TIMEOUT;
    loop {
        match disk::open(path) {
            Err(error) if error.lacks_descriptors() && Instant::now() < deadline => thread::sleep(DESCRIPTOR_PAUSE),
            opened => return opened,
        }
    }
}
