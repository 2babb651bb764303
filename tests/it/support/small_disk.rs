//! A private disk of a few megabytes: a tmpfs in a mount namespace that no other process sees. Needs user namespaces,
//! and no root.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::larder::{Builder, Folder};
use super::process::{CommandOutput, Process};
use super::programs::cannot;

/// A larder whose store is on a private disk.
pub(crate) struct SmallDisk {
    pub(crate) larder: Process,
    store: PathBuf,
    ballast: PathBuf,
}

impl SmallDisk {
    /// True where namespaces work; otherwise prints a note. The tests with a file size limit run anywhere.
    pub(crate) fn is_possible() -> bool {
        let folder = Folder::new();
        let mount = format!("mount -t tmpfs -o size=64k none '{}'", folder.path().display());
        let tried = Command::new("unshare").args(["-rm", "/bin/sh", "-c", &mount]).stderr(Stdio::null()).status();
        let is_possible = tried.is_ok_and(|status| status.success());
        if !is_possible {
            cannot("`unshare -rm` with a tmpfs is not possible here");
        }
        is_possible
    }

    /// Starts a larder whose store has a disk of this many bytes, copied from `folder` and in the state that
    /// `preparation`, a line of shell with the store's folder as `$V1`, leaves it in.
    pub(crate) fn start(
        builder: &Builder,
        folder: &Folder,
        bytes: usize,
        preparation: &str,
    ) -> Result<Self, CommandOutput> {
        let v1 = folder.path().join("v1");
        std::fs::create_dir_all(&v1).unwrap();
        let v1 = v1.display();
        let inside = format!(
            "V1='{v1}'; mkdir \"$V1.old\" && cp -a \"$V1\"/. \"$V1.old\" && mount -t tmpfs -o size={bytes} none \"$V1\" \
             && cp -a \"$V1.old\"/. \"$V1\" && rm -r \"$V1.old\" && {preparation} && exec \"$@\""
        );
        let inside = inside.replace('\'', "'\\''");
        let outside = format!("set -- unshare -rm /bin/sh -c '{inside}' sh \"$@\"");
        let larder = Process::serve_after(&outside, builder, folder.path())?;
        let store = PathBuf::from(format!("/proc/{}/root{v1}", larder.id()));
        let ballast = store.join("ballast");
        Ok(Self { larder, store, ballast })
    }

    /// The store's folder, as it is seen from outside.
    pub(crate) fn store(&self) -> &Path {
        &self.store
    }

    /// Leaves this many bytes free, and a page or two less.
    pub(crate) fn leave_free(&self, bytes: u64) {
        let mut ballast = std::fs::File::create(&self.ballast).unwrap();
        let disk = rustix::fs::statvfs(&self.store).unwrap();
        let mut left = (disk.f_bavail * disk.f_frsize).saturating_sub(bytes);
        let page = [7; 4096];
        while left > 0 && ballast.write_all(&page[..page.len().min(left as usize)]).is_ok() {
            left = left.saturating_sub(page.len() as u64);
        }
    }

    /// Takes the ballast away.
    pub(crate) fn make_room(&self) {
        // Emptied first: a child that another test forks meanwhile may have the file open until it executes.
        std::fs::File::create(&self.ballast).unwrap();
        std::fs::remove_file(&self.ballast).unwrap();
    }

    /// Mounts it again with this option: `ro` or `rw`.
    pub(crate) fn remount(&self, option: &str) {
        let id = self.larder.id().to_string();
        let v1 = self.store.to_str().unwrap().strip_prefix(&format!("/proc/{id}/root")).unwrap();
        let mut command = Command::new("nsenter");
        command.args([
            "--preserve-credentials",
            "-U",
            "-m",
            "-t",
            &id,
            "mount",
            "-o",
            &format!("remount,bind,{option}"),
            v1,
        ]);
        assert!(command.status().unwrap().success());
    }
}
