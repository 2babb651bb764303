//! A folder for one run, which only this user can read, removed at its end. It holds tokens, so the next run removes the
//! folder of one that was killed.
#![expect(clippy::disallowed_methods, reason = "the folder belongs to one run, not to the store")]

use std::fs::{
    DirBuilder, DirEntry, File, OpenOptions, TryLockError, read_dir, remove_dir, remove_dir_all, remove_file,
};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustix::process::geteuid;

use crate::protocol::run::RunId;

/// The name of a folder, without the random part.
const PREFIX: &str = "larder-run-";
/// The file that a run locks as long as its folder is in use.
const LOCK: &str = "lock";
/// The tries to make a folder that no other run removes at that moment.
const ATTEMPTS: u32 = 10;
/// Folders that a run looks at for those of killed runs.
const MAX_OTHERS: usize = 1000;

/// The folder; dropping the value removes it with its contents.
#[derive(Debug)]
pub(super) struct TempFolder {
    path: PathBuf,
    /// Locked. The system unlocks it when the process is killed.
    lock: Option<File>,
}

impl TempFolder {
    /// Creates a folder, and removes those of killed runs.
    pub(super) fn new() -> anyhow::Result<Self> {
        // The client and other runs may have another working folder.
        let parent = std::path::absolute(std::env::temp_dir()).context("TMPDIR names no folder")?;
        remove_leftovers(&parent);
        let created = (0..ATTEMPTS).find_map(|_| Self::try_new(&parent).transpose());
        let nameless = || Err(io::Error::other("other runs remove it"));
        created
            .unwrap_or_else(nameless)
            .with_context(|| format!("could not make a folder in {}; TMPDIR names another place", parent.display()))
    }

    /// `None` where another run has taken the folder, before it was locked, for one that a killed run left.
    fn try_new(parent: &Path) -> io::Result<Option<Self>> {
        let id = RunId::random().map_err(|_| io::Error::other("the system returned no random bytes"))?;
        let path = parent.join(format!("{PREFIX}{id}"));
        // A folder that exists, even as a link of another user, is an error.
        DirBuilder::new().mode(0o700).create(&path)?;
        let lock = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path.join(LOCK)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            lock => lock?,
        };
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let is_there = path.join(LOCK).try_exists()?;
        Ok(is_there.then_some(Self { path, lock: Some(lock) }))
    }

    /// Writes a file that only this user can read (mode 0600).
    pub(super) fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let path = self.file(name);
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()));
        written.with_context(|| format!("could not write {}", path.display()))
    }

    /// The path of a file in the folder.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Removes a file, if it is there.
    pub(super) fn remove_file(&self, name: &str) {
        self.report(remove_file(self.file(name)));
    }

    fn report(&self, removed: io::Result<()>) {
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %self.path.display(), %error, "a temporary file could not be removed");
            }
            _ => {}
        }
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let emptied = remove_contents(&self.path);
        // A network file system keeps the name of an open file.
        self.lock = None;
        self.report(emptied.and_then(|()| remove_dir_all(&self.path)));
    }
}

/// Removes the folders of this user's runs that have ended without it.
fn remove_leftovers(parent: &Path) {
    let Ok(entries) = read_dir(parent) else { return };
    // Before they are counted: another user may fill the folder with names like ours.
    let is_ours = |entry: &DirEntry| {
        entry.file_name().to_string_lossy().starts_with(PREFIX)
            && entry.metadata().is_ok_and(|metadata| metadata.uid() == geteuid().as_raw())
    };
    let ours = entries.flatten().filter(is_ours);
    for entry in ours.take(MAX_OTHERS) {
        if let Err(error) = remove_leftover(&entry.path()) {
            tracing::debug!(path = %entry.path().display(), %error, "the folder of another run stays");
        }
    }
}

fn remove_leftover(folder: &Path) -> io::Result<()> {
    // Others may put links in a folder that all can write.
    let metadata = folder.symlink_metadata()?;
    if !metadata.is_dir() || metadata.uid() != geteuid().as_raw() {
        return Ok(());
    }
    let lock = match OpenOptions::new().write(true).open(folder.join(LOCK)) {
        // It holds nothing: its run has just made it, or was killed then or at its end.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return remove_dir(folder),
        lock => lock?,
    };
    lock.try_lock()?;
    remove_contents(folder)?;
    drop(lock);
    remove_dir_all(folder)
}

/// Removes everything but the lock: a removal that breaks off is completed by the next run.
fn remove_contents(folder: &Path) -> io::Result<()> {
    for entry in read_dir(folder)? {
        let entry = entry?;
        if entry.file_name() == LOCK {
            continue;
        }
        if entry.file_type()?.is_dir() { remove_dir_all(entry.path())? } else { remove_file(entry.path())? }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Only root can make folders of another user.
    #[test]
    fn folders_of_another_user_do_not_hide_the_one_of_a_killed_run() {
        if !geteuid().is_root() {
            return;
        }
        let parent = tempfile::tempdir().unwrap();
        let killed = parent.path().join(format!("{PREFIX}killed"));
        std::fs::create_dir(&killed).unwrap();
        std::fs::write(killed.join("cli.tfrc"), "a token").unwrap();
        std::fs::write(killed.join(LOCK), "").unwrap();
        for number in 0..4 * MAX_OTHERS {
            let folder = parent.path().join(format!("{PREFIX}{number}"));
            std::fs::create_dir(&folder).unwrap();
            std::os::unix::fs::chown(&folder, Some(65534), None).unwrap();
        }
        remove_leftovers(parent.path());
        assert!(!killed.exists());
        assert_eq!(read_dir(parent.path()).unwrap().count(), 4 * MAX_OTHERS, "another user's folders are left alone");
    }

    /// Whatever a run had done when it was killed, the next one removes it.
    #[test]
    fn every_state_of_a_killed_run_is_removed() {
        let parent = tempfile::tempdir().unwrap();
        for (name, files) in [
            ("made", &[][..]),
            ("locked", &[LOCK]),
            ("in-use", &[LOCK, "cli.tfrc", "next", "store/v1/blobs/one"]),
            ("half-removed", &[LOCK, "store/v1/lock"]),
        ] {
            let folder = parent.path().join(format!("{PREFIX}{name}"));
            std::fs::create_dir(&folder).unwrap();
            for file in files {
                std::fs::create_dir_all(folder.join(file).parent().unwrap()).unwrap();
                std::fs::write(folder.join(file), "").unwrap();
            }
        }
        // A folder that no run makes stays.
        let strange = parent.path().join(format!("{PREFIX}strange"));
        std::fs::create_dir(&strange).unwrap();
        std::fs::write(strange.join("file"), "").unwrap();
        remove_leftovers(parent.path());
        let left: Vec<_> = read_dir(parent.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(left, [strange]);
    }

    #[test]
    fn a_folder_in_use_is_never_taken_for_one_of_a_killed_run() {
        let parent = tempfile::tempdir().unwrap();
        let is_done = AtomicBool::new(false);
        let made: Vec<TempFolder> = std::thread::scope(|threads| {
            threads.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    remove_leftovers(parent.path());
                }
            });
            let made: anyhow::Result<Vec<_>> = (0..500)
                .filter_map(|_| TempFolder::try_new(parent.path()).transpose())
                .map(|made| {
                    made.map_err(anyhow::Error::from)
                        .and_then(|folder| folder.write("token", "secret").map(|()| folder))
                })
                .collect();
            is_done.store(true, Ordering::Relaxed);
            made.unwrap()
        });
        assert!(!made.is_empty());
        assert!(made.iter().all(|folder| folder.file("token").exists()));
        drop(made);
        assert_eq!(read_dir(parent.path()).unwrap().count(), 0);
    }
}
