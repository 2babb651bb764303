//! Downloads from the admin listener: a few exports and bundles at a time, however slow their clients.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::join_all;
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use serde_json::json;
use tempfile::NamedTempFile;

use crate::support::bundle_transfer::warm_up;
use crate::support::http::{client, get};
use crate::support::larder::Larder;
use crate::support::until;
use crate::support::upstream::{FakeUpstream, Provider};

const EXPORT: &str = "/admin/v1/export";
const BUNDLE: &str = "/admin/v1/bundle";
/// Larger than the socket buffers between larder and a client that reads nothing.
const LARGE_BYTES: usize = 16_000_000;

/// The response head for a client that requests a job's packages and reads no body yet.
async fn job_download(larder: &Larder, path: &str, job: &str) -> reqwest::Response {
    let request = client().post(format!("{}{path}", larder.admin())).bearer_auth(larder.token());
    request.header("content-type", "application/json").body(json!({ "job": job }).to_string()).send().await.unwrap()
}

async fn upstream_with_large_provider() -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(LARGE_BYTES));
    upstream
}

/// Promise 11: exports and bundles have a limit; beyond it the answer says why and what to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_exports_and_bundles_run_at_a_time_and_one_more_is_refused() {
    let upstream = upstream_with_large_provider().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let job = warm_up(&larder, &["acme/null"], &["linux_amd64"]).await;
    let mut stalled = join_all([EXPORT, BUNDLE, EXPORT, BUNDLE].map(|path| job_download(&larder, path, &job))).await;
    assert!(stalled.iter().all(|answer| answer.status() == 200));
    for path in [EXPORT, BUNDLE] {
        let refused = job_download(&larder, path, &job).await;
        assert_eq!(refused.status(), 503, "{path}");
        let text = refused.text().await.unwrap();
        assert!(text.contains("4 exports and bundles are being made") && text.contains("ask again"), "{text}");
    }
    larder.versions("null").await.expect(200);
    // A client that disconnects or finishes frees its permit.
    stalled.truncate(3);
    until("a permit is free", async || job_download(&larder, EXPORT, &job).await.status() == 200).await;
    assert!(stalled.remove(0).bytes().await.unwrap().len() > LARGE_BYTES);
}

/// Promise 11: a client that reads nothing is disconnected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_an_export_is_disconnected() {
    let upstream = upstream_with_large_provider().await;
    let larder = Larder::mirroring(&upstream).idle(Duration::from_millis(300)).start().await;
    let job = warm_up(&larder, &["acme/null"], &["linux_amd64"]).await;
    let stalled = join_all([EXPORT, BUNDLE, EXPORT, BUNDLE].map(|path| job_download(&larder, path, &job))).await;
    assert!(stalled.iter().all(|answer| answer.status() == 200));
    until("a permit is free", async || job_download(&larder, BUNDLE, &job).await.status() == 200).await;
}

/// A stored file that is replaced by a named pipe, so that its reader waits.
struct PipedFile {
    path: PathBuf,
    contents: Vec<u8>,
}

impl PipedFile {
    fn replace(path: PathBuf) -> Self {
        let contents = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        Self { path, contents }
    }

    /// Gives the waiting reader the contents, and restores the file. False if no reader waits.
    fn release_reader(&self) -> bool {
        if !fs::metadata(&self.path).unwrap().file_type().is_fifo() {
            return false;
        }
        let without_waiting = OFlags::NONBLOCK.bits().try_into().unwrap();
        let opened = OpenOptions::new().write(true).custom_flags(without_waiting).open(&self.path);
        opened.is_ok_and(|mut pipe| {
            pipe.write_all(&self.contents).unwrap();
            // A reader that has not reached the end would read later writes as well.
            let mut restored = NamedTempFile::new().unwrap();
            restored.write_all(&self.contents).unwrap();
            restored.persist(&self.path).unwrap();
            true
        })
    }
}

/// Promise 9: admin requests have ended when larder has stopped, so that the store is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_waits_for_running_admin_requests() {
    for request_kind in ["inventory", "bundle"] {
        let upstream = FakeUpstream::start().await;
        for name in ["one", "two"] {
            upstream.publish(Provider::new("acme", name));
        }
        let larder = Larder::mirroring(&upstream).drain(Duration::from_millis(10)).start().await;
        let job = warm_up(&larder, &["acme/one", "acme/two"], &["linux_amd64"]).await;
        let pipes: Vec<PipedFile> = larder.folder.proof_sets().into_iter().map(PipedFile::replace).collect();
        let pending_request = match request_kind {
            "inventory" => {
                let url = format!("{}/admin/v1/inventory", larder.admin());
                tokio::spawn(async move { drop(client().get(url).send().await) })
            }
            _ => {
                let request = client().post(format!("{}{BUNDLE}", larder.admin())).bearer_auth(larder.token());
                let request = request.header("content-type", "application/json");
                let request = request.body(json!({ "job": job }).to_string());
                tokio::spawn(async move { drop(request.send().await) })
            }
        };
        let release_reader = || pipes.iter().any(PipedFile::release_reader);
        // A released reader goes on to the next pipe, so that the request stays in progress.
        until("the request is in progress", async || release_reader()).await;
        let folder = larder.folder.clone();
        let mut stopping = tokio::spawn(larder.stop());
        let stopped = tokio::time::timeout(Duration::from_secs(1), &mut stopping).await;
        // Released before any assertion can fail: otherwise a failed test would wait for the thread of the reader.
        until("the request has ended", async || {
            release_reader();
            pending_request.is_finished() && (stopped.is_ok() || stopping.is_finished())
        })
        .await;
        assert!(stopped.is_err(), "{request_kind}: larder stopped before the request ended");
        stopping.await.unwrap();
        pending_request.await.unwrap();
        pipes.iter().for_each(|pipe| fs::remove_file(&pipe.path).unwrap());
        let restarted = Larder::mirroring(&upstream).store_at(&folder).start().await;
        assert_eq!(get(&format!("{}/readyz", restarted.base())).await.status, 200);
    }
}
