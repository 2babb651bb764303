//! A second user: `nobody` where root runs the test, else the same user.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::process::command_of;

const NOBODY: u32 = 65534;

/// Another user, with a folder and a copy of the binary that they may use.
pub(crate) struct AnotherUser {
    place: TempDir,
}

impl AnotherUser {
    pub(crate) fn new() -> Self {
        let user = Self { place: tempfile::tempdir().unwrap() };
        Self::may(user.place.path(), 0o777);
        std::fs::copy(env!("CARGO_BIN_EXE_larder"), user.path("larder")).unwrap();
        user
    }

    /// A path in their folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// Writes a file that they may read.
    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        Self::may(path.parent().unwrap(), 0o777);
        Self::may(&path, 0o644);
        path
    }

    /// Makes a file or folder one that they may not read.
    pub(crate) fn may_not_read(path: &Path) {
        Self::may(path, if rustix::process::geteuid().is_root() { 0o700 } else { 0o000 });
    }

    /// `larder ARGUMENTS`, run by them.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command_of(&self.path("larder"), self.place.path(), arguments);
        if rustix::process::geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    fn may(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
}
