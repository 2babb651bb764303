//! A folder for one run, which only this user can read, removed at its end.
#![expect(clippy::disallowed_methods, reason = "the folder belongs to one run, not to the store")]

use std::fs::{DirBuilder, OpenOptions, remove_dir_all, remove_file};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use anyhow::Context as _;

use crate::protocol::run::RunId;

/// The folder; dropping the value removes it with its contents.
#[derive(Debug)]
pub(super) struct TempFolder {
    path: PathBuf,
}

impl TempFolder {
    /// Creates an empty folder.
    pub(super) fn new() -> anyhow::Result<Self> {
        let id = RunId::random().context("the system returned no random bytes")?;
        let path = std::env::temp_dir().join(format!("larder-run-{id}"));
        // A folder that exists, even as a link of another user, is an error.
        let created = DirBuilder::new().mode(0o700).create(&path);
        created.with_context(|| format!("could not make the folder {}; TMPDIR names another place", path.display()))?;
        Ok(Self { path })
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
        self.report(remove_dir_all(&self.path));
    }
}
