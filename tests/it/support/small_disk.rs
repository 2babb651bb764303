//! A private disk of a few megabytes: a tmpfs in a mount namespace that no other process sees. Needs user namespaces,
//! and no root.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::larder::{Builder, Folder};
use super::process::{CommandOutput, Process};
use super::programs::skip;

/// A larder whose store is on a private disk.
pub(crate) struct SmallDisk {
    pub(crate) larder: Process,
    store: PathBuf,
    /// The file that fills the disk.
    ballast: PathBuf,
}

impl SmallDisk {
    /// True if namespaces work on this machine; otherwise prints a note. (Tests with a file size limit run anywhere.)
    pub(crate) fn is_possible() -> bool {
        let folder = Folder::new();
        let mount = format!("mount -t tmpfs -o size=64k none '{}'", folder.path().display());
        let status = Command::new("unshare").args(["-rm", "/bin/sh", "-c", &mount]).stderr(Stdio::null()).status();
        let is_possible = status.is_ok_and(|status| status.success());
        if !is_possible {
            skip("`unshare -rm` with a tmpfs is not possible here");
        }
        is_possible
    }

    /// Starts a larder whose store is on a new disk of `bytes` bytes. Copies the store from `folder` to the disk, and
    /// then runs `preparation`: a shell command with the store's folder as `$V1`.
    pub(crate) fn start(
        builder: &Builder,
        folder: &Folder,
        bytes: usize,
        preparation: &str,
    ) -> Result<Self, CommandOutput> {
        let v1 = folder.path().join("v1");
        std::fs::create_dir_all(&v1).unwrap();
        let v1 = v1.display();
        let script = format!(
            "V1='{v1}'; mkdir \"$V1.old\" && cp -a \"$V1\"/. \"$V1.old\" && mount -t tmpfs -o size={bytes} none \"$V1\" \
             && cp -a \"$V1.old\"/. \"$V1\" && rm -r \"$V1.old\" && {preparation} && exec \"$@\""
        );
        let script = script.replace('\'', "'\\''");
        let command = format!("set -- unshare -rm /bin/sh -c '{script}' sh \"$@\"");
        let larder = Process::serve_after(&command, builder, folder.path())?;
        let store = PathBuf::from(format!("/proc/{}/root{v1}", larder.id()));
        let ballast = store.join("ballast");
        Ok(Self { larder, store, ballast })
    }

    /// The store's folder, as a path that works outside the namespace.
    pub(crate) fn store(&self) -> &Path {
        &self.store
    }

    /// Fills the disk until this many bytes are free, or a page or two less.
    pub(crate) fn leave_free(&self, bytes: u64) {
        let mut ballast = std::fs::File::create(&self.ballast).unwrap();
        let disk = rustix::fs::statvfs(&self.store).unwrap();
        let mut remaining = (disk.f_bavail * disk.f_frsize).saturating_sub(bytes);
        let page = [7; 4096];
        while remaining > 0 && ballast.write_all(&page[..page.len().min(remaining as usize)]).is_ok() {
            remaining = remaining.saturating_sub(page.len() as u64);
        }
    }

    /// Removes the file that fills the disk.
    pub(crate) fn remove_ballast(&self) {
        // Truncates the file first: a child of another test may have the file open until it executes its program.
        std::fs::File::create(&self.ballast).unwrap();
        std::fs::remove_file(&self.ballast).unwrap();
    }

    /// Remounts the disk with an option: `ro` or `rw`.
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
