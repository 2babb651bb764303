//! A folder for one run, which only this user can read, removed at its end.
#![expect(clippy::disallowed_methods, reason = "the folder belongs to one run, not to the store")]

use std::fs::{DirBuilder, OpenOptions, remove_dir_all};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::protocol::run::RunId;

/// The folder; dropping the value removes it with its contents.
#[derive(Debug)]
pub(super) struct TempFolder {
    path: PathBuf,
    is_removed: bool,
}

impl TempFolder {
    /// Creates an empty folder.
    pub(super) fn new() -> anyhow::Result<Self> {
        let id = RunId::random().context("the system returned no random bytes")?;
        let path = std::env::temp_dir().join(format!("larder-run-{id}"));
        // A folder that exists, even as a link of another user, is an error.
        let created = DirBuilder::new().mode(0o700).create(&path);
        created.with_context(|| format!("could not make the folder {}; TMPDIR names another place", path.display()))?;
        Ok(Self { path, is_removed: false })
    }

    /// Creates a folder with one file, which holds the user's tokens (mode 0600).
    pub(super) fn with_file(name: &str, text: &str) -> anyhow::Result<Self> {
        let folder = Self::new()?;
        let path = folder.file(name);
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()));
        written.with_context(|| format!("could not write {}", path.display()))?;
        Ok(folder)
    }

    /// The folder.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file in the folder.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Removes the folder.
    pub(super) fn remove(mut self) {
        self.remove_now();
    }

    fn remove_now(&mut self) {
        if std::mem::replace(&mut self.is_removed, true) {
            return;
        }
        match remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %self.path.display(), %error, "a temporary folder could not be removed");
            }
            _ => {}
        }
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        self.remove_now();
    }
}
