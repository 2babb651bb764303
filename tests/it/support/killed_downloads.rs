//! Large downloads that a kill interrupts.

use std::path::{Path, PathBuf};

use super::eventually;
use super::http::{client, send};
use super::larder::{Builder, Folder, Larder};
use super::process::Process;
use super::upstream::{FakeUpstream, Provider, Target};

pub(crate) const LARGE: usize = 3_000_000;

pub(crate) const HALF: usize = LARGE / 2;

pub(crate) fn start(upstream: &FakeUpstream, folder: &Folder) -> Process {
    Process::start(&mirroring(upstream, folder), folder.path())
}

pub(crate) fn large() -> Provider {
    Provider::new("acme", "null").size(LARGE)
}

pub(crate) fn bytes(upstream: &FakeUpstream, name: &str) -> Vec<u8> {
    upstream.archive_bytes("acme", name, "1.2.0", "linux_amd64")
}

/// The stage with a download's bytes.
pub(crate) fn stage(folder: &Folder) -> Option<PathBuf> {
    folder.files("staging").into_iter().find(|file| file.extension().is_some_and(|kind| kind == "part"))
}

/// Asks for a large archive whose upstream stops in the middle, and kills larder there. Gives the archive's path.
pub(crate) async fn killed_half_way(upstream: &FakeUpstream, folder: &Folder) -> String {
    let stored = upstream.hold_after(Target::Archive, HALF);
    let larder = start(upstream, folder);
    let path = larder.archive_path("null").await;
    let asking = tokio::spawn(send(client().get(format!("{}{path}", larder.base()))));
    eventually("half of it is staged", async || {
        let staged = stage(folder)?.metadata().ok()?.len();
        (staged == HALF as u64).then_some(())
    })
    .await;
    larder.kill();
    assert!(asking.await.unwrap().is_err(), "half an archive looked whole");
    assert_eq!(folder.blobs(), Vec::<PathBuf>::new());
    stored.open();
    upstream.forget_requests();
    path
}

/// The files in `aside`, and the indexes that were set aside.
pub(crate) fn set_aside(folder: &Path) -> Vec<String> {
    let names = |folder: PathBuf| {
        let entries = std::fs::read_dir(folder).into_iter().flatten();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    let indexes = names(folder.join("v1")).into_iter().filter(|name| name.starts_with("index."));
    names(folder.join("v1/aside")).into_iter().chain(indexes).collect()
}

/// A configuration under which documents are asked about again each time.
pub(crate) fn mirroring(upstream: &FakeUpstream, folder: &Folder) -> Builder {
    Larder::mirroring(upstream).nothing_stays_fresh().on(folder)
}
