//! Downloads that a kill of larder interrupts.

use std::path::{Path, PathBuf};

use super::eventually;
use super::http::{client, send};
use super::larder::{Builder, Folder, Larder};
use super::process::Process;
use super::upstream::{FakeUpstream, Provider, Target};

/// The size of the archive.
pub(crate) const LARGE_BYTES: usize = 3_000_000;

/// The size of the partial download when larder is killed.
pub(crate) const HALF_BYTES: usize = LARGE_BYTES / 2;

/// Starts a larder on this store in a process of its own.
pub(crate) fn start(upstream: &FakeUpstream, folder: &Folder) -> Process {
    Process::start(&mirroring(upstream, folder), folder.path())
}

/// acme/null with a large archive.
pub(crate) fn large() -> Provider {
    Provider::new("acme", "null").size(LARGE_BYTES)
}

/// The published archive of acme/NAME.
pub(crate) fn bytes(upstream: &FakeUpstream, name: &str) -> Vec<u8> {
    upstream.archive_bytes("acme", name, "1.2.0", "linux_amd64")
}

/// The file of the only partial download.
pub(crate) fn partial_download(folder: &Folder) -> Option<PathBuf> {
    folder.files("staging").into_iter().find(|file| file.extension().is_some_and(|extension| extension == "part"))
}

/// Requests the large archive, holds the upstream in the middle of it, and kills larder there. Returns the archive's
/// path.
pub(crate) async fn kill_half_way(upstream: &FakeUpstream, folder: &Folder) -> String {
    let gate = upstream.hold_after(Target::Archive, HALF_BYTES);
    let larder = start(upstream, folder);
    let path = larder.archive_path("null").await;
    let download = tokio::spawn(send(client().get(format!("{}{path}", larder.base()))));
    eventually("half of the archive is downloaded", async || {
        let size = partial_download(folder)?.metadata().ok()?.len();
        (size == HALF_BYTES as u64).then_some(())
    })
    .await;
    larder.kill();
    assert!(download.await.unwrap().is_err(), "a client took half an archive for a whole one");
    assert_eq!(folder.blobs(), Vec::<PathBuf>::new());
    gate.open();
    upstream.forget_requests();
    path
}

/// The names of quarantined files (those in `aside`) and of quarantined indexes.
pub(crate) fn quarantined(folder: &Path) -> Vec<String> {
    let names = |folder: PathBuf| {
        let entries = std::fs::read_dir(folder).into_iter().flatten();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    let indexes = names(folder.join("v1")).into_iter().filter(|name| name.starts_with("index."));
    names(folder.join("v1/aside")).into_iter().chain(indexes).collect()
}

/// A larder on this store that revalidates documents at each request.
pub(crate) fn mirroring(upstream: &FakeUpstream, folder: &Folder) -> Builder {
    Larder::mirroring(upstream).always_revalidate().store_at(folder)
}
