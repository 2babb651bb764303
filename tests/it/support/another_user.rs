//! A second user: `nobody` where root runs the test, else the same user.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::process::command_of;

const NOBODY: u32 = 65534;

/// Another user with a folder of their own and a copy of the binary in it.
pub(crate) struct AnotherUser {
    folder: TempDir,
}

impl AnotherUser {
    pub(crate) fn new() -> Self {
        let user = Self { folder: tempfile::tempdir().unwrap() };
        Self::set_mode(user.folder.path(), 0o777);
        std::fs::copy(env!("CARGO_BIN_EXE_larder"), user.path("larder")).unwrap();
        user
    }

    /// A path in the folder of this user.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file that this user may read.
    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        Self::set_mode(path.parent().unwrap(), 0o777);
        Self::set_mode(&path, 0o644);
        path
    }

    /// Makes a file or folder unreadable for this user.
    pub(crate) fn make_unreadable(path: &Path) {
        Self::set_mode(path, if rustix::process::geteuid().is_root() { 0o700 } else { 0o000 });
    }

    /// Makes a folder that this user may read and not write.
    pub(crate) fn make_unwritable(path: &Path) {
        Self::set_mode(path, if rustix::process::geteuid().is_root() { 0o755 } else { 0o555 });
    }

    /// Takes the permission to write from a folder of this user, and from everything in it.
    pub(crate) fn make_unwritable_with_contents(path: &Path) {
        Self::change_modes(path, &|mode| mode & !0o222);
    }

    /// Gives this user the permission to write a folder and everything in it.
    pub(crate) fn make_writable(path: &Path) {
        Self::change_modes(path, &|mode| mode | 0o200);
    }

    fn change_modes(path: &Path, change: &dyn Fn(u32) -> u32) {
        Self::set_mode(path, change(std::fs::metadata(path).unwrap().permissions().mode()));
        if path.is_dir() {
            for entry in std::fs::read_dir(path).unwrap() {
                Self::change_modes(&entry.unwrap().path(), change);
            }
        }
    }

    /// `larder ARGUMENTS`, run by this user.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command_of(&self.path("larder"), self.folder.path(), arguments);
        if rustix::process::geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
}
