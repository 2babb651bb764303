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

async fn publishing() -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(LARGE_BYTES));
    upstream
}

/// Promise 11: exports and bundles have a limit; beyond it the answer says why and what to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_exports_and_bundles_run_at_a_time_and_one_more_is_refused() {
    let upstream = publishing().await;
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
    let upstream = publishing().await;
    let larder = Larder::mirroring(&upstream).idle(Duration::from_millis(300)).start().await;
    let job = warm_up(&larder, &["acme/null"], &["linux_amd64"]).await;
    let stalled = join_all([EXPORT, BUNDLE, EXPORT, BUNDLE].map(|path| job_download(&larder, path, &job))).await;
    assert!(stalled.iter().all(|answer| answer.status() == 200));
    until("a permit is free", async || job_download(&larder, BUNDLE, &job).await.status() == 200).await;
}

/// A named pipe that blocks its reader.
struct Blocked {
    path: PathBuf,
    contents: Vec<u8>,
}

impl Blocked {
    fn at(path: PathBuf) -> Self {
        let contents = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        Self { path, contents }
    }

    /// Releases the reader, and reports if there was one.
    fn release_reader(&self) -> bool {
        if !fs::metadata(&self.path).unwrap().file_type().is_fifo() {
            return false;
        }
        let or_fail = OFlags::NONBLOCK.bits().try_into().unwrap();
        let opened = OpenOptions::new().write(true).custom_flags(or_fail).open(&self.path);
        opened.is_ok_and(|mut reader| {
            reader.write_all(&self.contents).unwrap();
            // A reader that has not reached the end would read later writes as well.
            let mut whole = NamedTempFile::new().unwrap();
            whole.write_all(&self.contents).unwrap();
            whole.persist(&self.path).unwrap();
            true
        })
    }
}

/// Promise 9: admin requests have ended when larder has stopped, so that the store is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_waits_for_running_admin_requests() {
    for works in ["inventory", "bundle"] {
        let upstream = FakeUpstream::start().await;
        for name in ["one", "two"] {
            upstream.publish(Provider::new("acme", name));
        }
        let larder = Larder::mirroring(&upstream).drain(Duration::from_millis(10)).start().await;
        let job = warm_up(&larder, &["acme/one", "acme/two"], &["linux_amd64"]).await;
        let sets: Vec<Blocked> = larder.folder.proof_sets().into_iter().map(Blocked::at).collect();
        let work = match works {
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
        let let_go_on = || sets.iter().any(Blocked::release_reader);
        // From here on the reader reads another pipe, or is about to.
        until("the request is in progress", async || let_go_on()).await;
        let folder = larder.folder.clone();
        let mut stopping = tokio::spawn(larder.stop());
        let stopped = tokio::time::timeout(Duration::from_secs(1), &mut stopping).await;
        // Released before any assertion can fail: otherwise the test would wait for that thread.
        until("the request has ended", async || {
            let_go_on();
            work.is_finished() && (stopped.is_ok() || stopping.is_finished())
        })
        .await;
        assert!(stopped.is_err(), "{works}: larder stopped before the request ended");
        stopping.await.unwrap();
        work.await.unwrap();
        sets.iter().for_each(|set| fs::remove_file(&set.path).unwrap());
        let again = Larder::mirroring(&upstream).store_at(&folder).start().await;
        assert_eq!(get(&format!("{}/readyz", again.base())).await.status, 200);
    }
}
