//! Eviction and purge consult the index instead of all package records. A missing index is rebuilt in the background.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use larder::clock::Timestamp;
use larder::digest::Digest;
use larder::store::IndexedName;

use crate::support::git_module_fixture::download_module;
use crate::support::http::{client, get, send};
use crate::support::larder::{Builder, Folder, HOST, Larder, open_store};
use crate::support::module_fixture::ModuleFixture;
use crate::support::until;
use crate::support::upstream::{FakeUpstream, Provider, Target};

const NAMES: [&str; 4] = ["one", "two", "three", "blocked"];

/// A record that is replaced by a FIFO: reading it blocks, like a disk that does not answer. Dropping restores the
/// record.
struct BlockedFile {
    path: PathBuf,
    original_content: Vec<u8>,
}

impl BlockedFile {
    fn at(path: &Path) -> Self {
        let original_content = std::fs::read(path).unwrap();
        std::fs::remove_file(path).unwrap();
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
        Self { path: path.to_owned(), original_content }
    }

    /// The write end of the FIFO, if a reader is waiting.
    fn writer_if_read(&self) -> Option<std::fs::File> {
        OpenOptions::new().write(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32).open(&self.path).ok()
    }
}

impl Drop for BlockedFile {
    fn drop(&mut self) {
        let writer = self.writer_if_read();
        let restored_path = self.path.with_extension("restored");
        let restored = std::fs::write(&restored_path, &self.original_content)
            .and_then(|()| std::fs::rename(&restored_path, &self.path));
        let unblocked = writer.map_or(Ok(()), |mut writer| writer.write_all(&self.original_content));
        assert!(std::thread::panicking() || (restored.is_ok() && unblocked.is_ok()), "{restored:?} {unblocked:?}");
    }
}

fn record_path(folder: &Folder, provider: &str) -> PathBuf {
    let is_wanted = |file: &PathBuf| file.to_string_lossy().contains(&format!("/{provider}/"));
    folder.files("names").into_iter().find(is_wanted).unwrap()
}

/// The digests of archives that no file has.
fn digests(numbers: std::ops::Range<u32>) -> impl Iterator<Item = Digest> {
    numbers.map(|number| Digest::of(&number.to_be_bytes()))
}

/// Promise 10: the background check of a sound index counts it right while fills and evictions change it.
#[test]
fn an_index_that_changes_while_it_is_checked_is_not_called_damaged() {
    let folder = Folder::new();
    let store = open_store(folder.path(), Timestamp(1));
    let index = &store.local.index;
    digests(0..5_000).for_each(|digest| index.archive_stored(&digest, 7, Timestamp(1)));
    index.completed(Ok(()));
    let (is_over, changes) = (AtomicBool::new(false), AtomicUsize::new(0));
    let is_damaged = std::thread::scope(|scope| {
        scope.spawn(|| {
            for digest in digests(0..10_000).collect::<Vec<_>>().iter().cycle().step_by(7) {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                match index.archive(digest) {
                    Ok(Some(_)) => index.archive_gone(digest),
                    _ => index.archive_stored(digest, u64::from(digest.as_bytes()[0]), Timestamp(2)),
                }
                changes.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut is_damaged = false;
        while !is_damaged && changes.load(Ordering::Relaxed) < 20_000 {
            is_damaged = index.begin_completion(&|| false);
        }
        is_over.store(true, Ordering::Relaxed);
        is_damaged
    });
    assert!(!is_damaged);
    let archives = index.archives_by_age().unwrap();
    let totals = (archives.len() as u64, archives.iter().map(|archive| archive.size_bytes).sum::<u64>());
    assert_eq!((index.totals().archives, index.totals().archive_bytes), totals);
}

/// A stop does not wait until every entry of a large index was read, and the next start checks again.
#[test]
fn the_check_of_an_index_ends_where_larder_stops() {
    let folder = Folder::new();
    let store = open_store(folder.path(), Timestamp(1));
    digests(0..5_000).for_each(|digest| store.local.index.archive_stored(&digest, 7, Timestamp(1)));
    store.local.index.completed(Ok(()));
    // As after a kill: it is not closed.
    drop(store);
    let store = open_store(folder.path(), Timestamp(2));
    let asked = AtomicUsize::new(0);
    let is_behind = store.local.index.begin_completion(&|| asked.fetch_add(1, Ordering::Relaxed) == 2);
    assert!(is_behind && asked.into_inner() == 3 && !store.local.index.is_complete());
    assert!(store.local.index.begin_completion(&|| false));
    assert_eq!(store.local.index.totals().archives, 5_000);
}

async fn upstream_with_providers() -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    for name in NAMES.iter().chain(&["four"]) {
        upstream.publish(Provider::new("acme", name).size(if *name == "blocked" { 10_000 } else { 300_000 }));
    }
    upstream
}

fn larder_of_one_mebibyte(upstream: &FakeUpstream) -> Builder {
    Larder::mirroring(upstream).store("max_size = \"1MiB\"")
}

/// A larder that has stored all providers but `four`, with complete records; `one` is the least recently used.
async fn filled_larder(upstream: &FakeUpstream) -> (Larder, Vec<String>) {
    let larder = larder_of_one_mebibyte(upstream).start().await;
    let mut paths = Vec::new();
    for name in NAMES {
        let path = larder.archive_path(name, "1.2.0").await;
        larder.get(&path).await.expect(200);
        // Eviction compares the seconds of the last uses.
        larder.clock.advance(Duration::from_secs(120));
        paths.push(path);
    }
    until("the package records are complete", async || larder.folder.has_all_hashes()).await;
    (larder, paths)
}

fn is_stored(larder: &Larder, upstream: &FakeUpstream, name: &str) -> bool {
    let archive = upstream.archive_bytes("acme", name, "1.2.0", "linux_amd64");
    larder.folder.blobs().iter().any(|blob| std::fs::read(blob).unwrap() == archive)
}

/// Promise 11: one record that the disk does not return delays only the requests for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eviction_and_purge_read_only_the_package_records_that_they_change() {
    let upstream = upstream_with_providers().await;
    let (larder, _) = filled_larder(&upstream).await;
    let blocked = BlockedFile::at(&record_path(&larder.folder, "blocked"));
    let four = larder.archive_path("four", "1.2.0").await;
    assert!(larder.get(&four).await.expect(200).has_cache_status("larder; fwd=miss; stored"));
    assert!(!is_stored(&larder, &upstream, "one") && is_stored(&larder, &upstream, "two"));
    assert_eq!(larder.run_command("purge", "registry.terraform.io/acme/two").await.items[0].archives, Some(1));
    assert!(!is_stored(&larder, &upstream, "two") && is_stored(&larder, &upstream, "three"));
    assert!(blocked.writer_if_read().is_none());
}

/// Promises 9 and 10: without its index larder serves at once; eviction and purge wait until the index is rebuilt.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn larder_serves_while_its_index_is_rebuilt_and_evicts_and_purges_afterwards() {
    let upstream = upstream_with_providers().await;
    let (larder, paths) = filled_larder(&upstream).await;
    let four = larder.archive_path("four", "1.2.0").await;
    let folder = larder.stop().await;
    folder.lose_index();
    let blocked = BlockedFile::at(&record_path(&folder, "blocked"));
    let larder = larder_of_one_mebibyte(&upstream).store_at(&folder).start().await;
    get(&format!("{}/readyz", larder.base())).await.expect(200);
    assert_eq!(larder.metric("larder_index_whole").await, 0.0);
    // `three` is used all the time, so that eviction chooses others.
    let three = &paths[2];
    assert!(larder.get(three).await.expect(200).has_cache_status("larder; hit"));

    upstream.forget_requests();
    let download = tokio::spawn(send(client().get(format!("{}{four}", larder.base()))));
    upstream.wait_for(Target::Archive, 1).await;
    let purge = async {
        let output = larder.run_command("purge", "registry.terraform.io/acme/three").await;
        (output, larder.metric("larder_index_whole").await)
    };
    let unblock = async {
        // A use counts once a minute, and the first one was before the index had an entry.
        larder.clock.advance(Duration::from_secs(61));
        // While the index is being rebuilt, other archives are served and nothing is evicted.
        assert!(larder.get(three).await.expect(200).has_cache_status("larder; hit"));
        assert!(folder.blobs().len() == 4 && !download.is_finished());
        drop(blocked);
    };
    let ((purge_report, is_index_complete), ()) = tokio::join!(purge, unblock);
    assert_eq!((purge_report.items[0].archives, is_index_complete), (Some(1), 1.0), "{purge_report}");
    download.await.unwrap().unwrap().expect(200);
    until("`four` is stored", async || is_stored(&larder, &upstream, "four")).await;
    let stored: u64 = folder.blobs().iter().map(|blob| blob.metadata().unwrap().len()).sum();
    let status = get(&format!("{}/admin/v1/status", larder.admin())).await.expect(200).json();
    assert_eq!(status["archive_bytes"], stored, "{status}");
}

/// The entries of the index, without the times of use and of checks, and without what is computed in the background. `None`
/// if work did not stop in time: then the next start makes the index again.
fn index_entries(folder: &Folder) -> Option<Vec<String>> {
    let store = open_store(folder.path(), Timestamp(1));
    let index = &store.local.index;
    if !index.is_complete() {
        return None;
    }
    let named = |artifact, IndexedName { pinned, imported, archives }: IndexedName| {
        let digests: Vec<String> = archives.iter().map(|archive| archive.digest.to_string()).collect();
        Some(format!("{artifact}: pinned {pinned}, imported {imported}, {digests:?}"))
    };
    let mut entries = store.records.names(named).unwrap();
    let archives = index.archives_by_age().unwrap().into_iter();
    entries.extend(archives.map(|archive| format!("{}: {} bytes", archive.digest, archive.size_bytes)));
    for documents in [index.documents_by_age().unwrap(), index.pages_by_age().unwrap()] {
        entries.extend(documents.into_iter().map(|(key, _)| key.to_string()));
    }
    let totals = index.totals();
    entries.push(format!("{totals:?}"));
    entries.sort();
    store.close().unwrap();
    Some(entries)
}

fn copy(from: &Path, into: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, into]).status().unwrap().success(), "{from:?} to {into:?}");
}

/// Promise 9: whatever moment of a store its index is from, the next start makes of it the one that the files alone would
/// make. A kill between any two writes leaves such an index.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_index_of_any_moment_becomes_the_index_of_the_files() {
    let fixture = ModuleFixture::with_one_module().await;
    let upstream = &fixture.registry;
    for name in ["one", "two"] {
        upstream.publish(Provider::new("acme", name).size(30_000));
    }
    let larder = fixture.larder().always_revalidate().start().await;
    let mut moments: Vec<Folder> = Vec::new();
    let keep = |moments: &mut Vec<Folder>| {
        let moment = Folder::new();
        copy(&larder.folder.path().join("v1"), moment.path());
        moments.push(moment);
    };
    keep(&mut moments);
    let is_complete = |file: &PathBuf| {
        let record = std::fs::read_to_string(file);
        record.is_ok_and(|record| record.contains("h1:") || record.contains("tree"))
    };
    let settled = async || larder.folder.files("names").iter().all(is_complete);
    let fetch = async |name: &str| {
        let path = larder.archive_path(name, "1.2.0").await;
        larder.get(&path).await.expect(200);
        until("its hashes are known", settled).await;
    };
    fetch("one").await;
    keep(&mut moments);
    fetch("two").await;
    download_module(larder.base(), "one").await;
    larder.get(&format!("/registry/{HOST}/v1/modules/search?q=one")).await;
    keep(&mut moments);
    larder.run_command("pin", "acme/two").await;
    upstream.publish(Provider::new("acme", "two").size(40_000).edition(2));
    fetch("two").await;
    keep(&mut moments);
    larder.run_command("purge", "acme/one").await;
    keep(&mut moments);
    drop(larder);

    let sealed = |folder: &Folder| Larder::mirroring(upstream).network("offline = true").store_at(folder);
    let rebuilt = async |files: &Folder, index: Option<&Folder>| {
        let folder = Folder::new();
        copy(&files.path().join("v1"), folder.path());
        folder.lose_index();
        if let Some(index) = index {
            copy(&index.path().join("v1/index"), &folder.path().join("v1"));
        }
        for _ in 0..10 {
            let larder = sealed(&folder).start().await;
            until("the index is whole", async || larder.metric("larder_index_whole").await == 1.0).await;
            if let Some(entries) = index_entries(&larder.stop().await) {
                return entries;
            }
        }
        panic!("larder never closed its index whole");
    };
    let mut all_entries = BTreeSet::new();
    for files in &moments {
        let expected = rebuilt(files, None).await;
        for index in &moments {
            assert_eq!(rebuilt(files, Some(index)).await, expected);
        }
        all_entries.insert(expected);
    }
    assert_eq!(all_entries.len(), moments.len(), "each moment has other entries");
}
