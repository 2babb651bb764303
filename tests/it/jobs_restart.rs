//! Jobs across restarts: an unfinished job continues under its id and fetches nothing twice; a finished one is listed
//! as it ended.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::command_setup::CommandSetup;
use crate::support::eventually;
use crate::support::http::get;
use crate::support::larder::{Builder, Folder, Larder};
use crate::support::process::{Process, command, spawn_captured};
use crate::support::reports::{JobItemReport, JobReport};
use crate::support::upstream::{FakeUpstream, Fault, Provider, RecordedRequest, Target};
use crate::support::warm_fixture::WarmFixture;

const HALF_BYTES: usize = 1_500_000;

fn token(folder: &Folder) -> String {
    std::fs::read_to_string(folder.path().join("admin-token")).unwrap()
}

fn start(builder: &Builder, folder: &Folder) -> (Process, WarmFixture) {
    let larder = Process::start(builder, folder.path());
    let fixture = WarmFixture::for_process(&larder, token(folder));
    (larder, fixture)
}

fn job_request(names: &[String]) -> Value {
    let addresses: Vec<String> = names.iter().map(|name| format!("acme/{name}")).collect();
    json!({ "what": addresses, "platforms": ["linux_amd64"] })
}

/// `pFIRST` up to `pEND`, without the latter.
fn names(first: usize, end: usize) -> Vec<String> {
    (first..end).map(|number| format!("p{number}")).collect()
}

fn archive_requests(upstream: &FakeUpstream) -> Vec<RecordedRequest> {
    upstream.requests().into_iter().filter(|request| request.target == Target::Archive).collect()
}

fn job_records(folder: &Folder) -> Vec<PathBuf> {
    folder.files("jobs")
}

async fn listed_jobs(fixture: &WarmFixture) -> Value {
    fixture.get("/admin/v1/jobs").await.expect(200).json()["jobs"].clone()
}

#[tokio::test]
async fn a_job_of_thirty_items_that_is_killed_in_the_middle_finishes_and_fetches_nothing_twice() {
    let upstream = FakeUpstream::start().await;
    let (small, large) = (names(0, 18), names(18, 30));
    small.iter().for_each(|name| upstream.publish(Provider::new("acme", name).size(60_000)));
    large.iter().for_each(|name| upstream.publish(Provider::new("acme", name).size(2 * HALF_BYTES)));
    let all = [large.clone(), small.clone()].concat();
    let folder = Folder::new();
    let builder = || Larder::mirroring(&upstream).always_revalidate().store_at(&folder);
    let gates: Vec<_> = large
        .iter()
        .map(|name| (name, upstream.hold_after(Target::Archive.with_path_part(&format!("-{name}_")), HALF_BYTES)))
        .collect();

    let (larder, fixture) = start(&builder(), &folder);
    let path = fixture.start_job(&job_request(&all)).await;
    let is_half_fetched = |item: &JobItemReport| item.state == "fetching" && item.bytes == HALF_BYTES as u64;
    let half_fetched_count = |job: &JobReport| job.items.iter().filter(|item| is_half_fetched(item)).count();
    let fetched = |job: &JobReport| job.states().iter().filter(|state| **state == "fetched").count();
    // Every concurrent fetch waits in the middle of a large archive. Three go on, and others take their places.
    let held = fixture.wait_for_job(&path, |job| half_fetched_count(job) == 8).await;
    let opened: Vec<String> =
        held.items.iter().filter(|item| is_half_fetched(item)).take(3).map(JobItemReport::name).collect();
    for (_, gate) in gates.iter().filter(|(name, _)| opened.iter().any(|item| item.contains(&format!("/{name}@")))) {
        gate.open();
    }
    // Then nothing else happens when larder is killed.
    let is_quiet = |job: &JobReport| {
        let is_opened = |item: &&JobItemReport| opened.contains(&item.name());
        let is_still = |item: &JobItemReport| ["waiting", "fetched"].contains(&&*item.state) || is_half_fetched(item);
        job.items.iter().filter(is_opened).all(|item| item.state == "fetched")
            && half_fetched_count(job) == 8
            && job.items.iter().all(is_still)
    };
    let before = fixture.wait_for_job(&path, is_quiet).await;
    assert!(fetched(&before) >= 3, "{before}");
    larder.kill();
    let stored_count = folder.blobs().len();
    assert!(stored_count >= fetched(&before) && stored_count < 30, "{stored_count}: {before}");
    let (requests_before, partial_count) = (archive_requests(&upstream), folder.partial_downloads().len());
    gates.iter().for_each(|(_, gate)| gate.open());

    let (larder, fixture) = start(&builder(), &folder);
    let job = fixture.finished_job(&path).await;
    assert_eq!((&*job.state, &job.id, job.started), ("done", &before.id, before.started), "{job}");
    assert_eq!(job.states().iter().filter(|state| **state == "held").count(), stored_count, "{job}");
    assert_eq!((job.states().len(), folder.blobs().len(), folder.partial_downloads().len()), (30, 30, 0));
    assert_eq!(listed_jobs(&fixture).await.as_array().unwrap().len(), 1);

    let requests = archive_requests(&upstream);
    assert!(partial_count >= 8, "{partial_count}");
    assert_eq!(requests.len() - requests_before.len(), 30 - stored_count, "a stored archive was fetched again");
    for name in &all {
        let size = upstream.archive_bytes("acme", name, "1.2.0", "linux_amd64").len() as u64;
        let its_requests = requests.iter().filter(|request| request.path.contains(&format!("-{name}_")));
        let sent: u64 = its_requests.map(|request| request.bytes_sent).sum();
        // Bytes that a cut connection lost are sent again, but never the whole archive.
        assert!((size..2 * size).contains(&sent), "{name}: {sent} of {size}");
    }
    let resumed = requests[requests_before.len()..].iter().filter(|request| request.header("range").is_some());
    assert!(resumed.count() >= 8);
    assert_eq!(larder.terminate().await, Some(0));
}

#[tokio::test]
async fn finished_jobs_are_listed_with_their_final_state_after_restarts() {
    let upstream = FakeUpstream::start().await;
    for name in ["good", "bad", "slow"] {
        upstream.publish(Provider::new("acme", name).size(2 * HALF_BYTES));
    }
    upstream.fault(Target::Archive.with_path_part("bad"), Fault::WrongBytes);
    let gate = upstream.hold_after(Target::Archive.with_path_part("slow"), HALF_BYTES);
    let folder = Folder::new();
    let builder = || Larder::mirroring(&upstream).store_at(&folder);
    let (larder, fixture) = start(&builder(), &folder);
    let mut jobs = Vec::new();
    for name in ["good", "bad"] {
        let path = fixture.start_job(&job_request(&[name.to_owned()])).await;
        jobs.push((fixture.finished_job(&path).await, path));
    }
    let path = fixture.start_job(&job_request(&["slow".to_owned()])).await;
    upstream.wait_for(Target::Archive.with_path_part("slow"), 1).await;
    let cancelled = fixture.cancel(&path).await;
    larder.kill();
    jobs.push((cancelled, path));
    let ended: Vec<&str> = jobs.iter().map(|(job, _)| job.state.as_str()).collect();
    assert_eq!(ended, ["done", "failed", "cancelled"]);
    gate.open();
    upstream.forget_requests();

    let (larder, fixture) = start(&builder(), &folder);
    for (job, path) in &jobs {
        assert_eq!(fixture.job(path).await, *job);
    }
    let newest_first: Vec<&str> = jobs.iter().rev().map(|(job, _)| job.id.as_str()).collect();
    let listed = listed_jobs(&fixture).await;
    let listed_ids: Vec<&str> = listed.as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap()).collect();
    assert_eq!(listed_ids, newest_first);
    // The packages of a finished job can still be pinned together.
    let done = fixture.post("/admin/v1/pin", &json!({ "job": jobs[0].0.id })).await.expect(200).json();
    assert_eq!(done["items"][0]["outcome"], "pinned", "{done}");
    assert_eq!(fixture.job(&jobs[0].1).await, jobs[0].0, "the report of an ended job has changed");
    assert_eq!(upstream.requests().len(), 0, "an ended job continues");
    assert_eq!(larder.terminate().await, Some(0));
}

/// The last record on disk says that the job runs, but it was cancelled.
#[tokio::test]
async fn a_job_whose_end_could_not_be_written_does_not_continue() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "slow").size(2 * HALF_BYTES));
    let gate = upstream.hold_after(Target::Archive, HALF_BYTES);
    let folder = Folder::new();
    let builder = || Larder::mirroring(&upstream).store_at(&folder);
    let (larder, fixture) = start(&builder(), &folder);
    let path = fixture.start_job(&job_request(&["slow".to_owned()])).await;
    // Before that, the job may still create files in the folder that is removed below, and would fail by itself.
    fixture.wait_for_job(&path, |job| job.items[0].bytes == HALF_BYTES as u64).await;
    assert_eq!(job_records(&folder).len(), 1);
    // Records are created in staging, so no record can be written; existing ones can be deleted.
    let staging = folder.path().join("v1/staging");
    std::fs::rename(&staging, folder.path().join("v1/elsewhere")).unwrap();
    std::fs::write(&staging, "").unwrap();
    let cancelled = fixture.send("DELETE", &path, "application/json", "").await.expect(200).json();
    assert_eq!(cancelled["state"], "cancelled");
    assert_eq!(job_records(&folder).len(), 0);
    let message = "the result of a job could not be recorded";
    eventually("the log has the message", async || larder.log().text().contains(message).then_some(())).await;
    larder.kill();
    std::fs::remove_file(&staging).unwrap();
    std::fs::rename(folder.path().join("v1/elsewhere"), &staging).unwrap();
    gate.open();
    upstream.forget_requests();

    let (larder, fixture) = start(&builder(), &folder);
    assert_eq!((listed_jobs(&fixture).await, upstream.requests().len()), (json!([]), 0), "the cancelled job continues");
    assert_eq!(larder.terminate().await, Some(0));
}

/// A pin requested while the job runs is part of its record.
#[tokio::test]
async fn a_job_that_was_pinned_while_it_ran_pins_after_a_restart() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(2 * HALF_BYTES));
    let gate = upstream.hold_after(Target::Archive, HALF_BYTES);
    let folder = Folder::new();
    let builder = || Larder::mirroring(&upstream).store_at(&folder);
    let (larder, fixture) = start(&builder(), &folder);
    let path = fixture.start_job(&job_request(&["null".to_owned()])).await;
    upstream.wait_for(Target::Archive, 1).await;
    let id = path.rsplit('/').next().unwrap();
    fixture.post("/admin/v1/pin", &json!({ "job": id })).await.expect(200);
    larder.kill();
    gate.open();
    let (larder, fixture) = start(&builder(), &folder);
    let job = fixture.finished_job(&path).await;
    assert_eq!((&*job.state, job.pin), ("done", true), "{job}");
    let done = fixture.post("/admin/v1/pin", &json!({ "what": ["acme/null"] })).await.expect(200).json();
    assert_eq!(done["items"][0]["outcome"], "as_before", "{done}");
    assert_eq!(larder.terminate().await, Some(0));
}

/// A damaged record is logged and quarantined.
#[tokio::test]
async fn an_unreadable_job_record_is_quarantined_and_logged_and_the_others_are_listed() {
    let upstream = FakeUpstream::start().await;
    ["one", "two", "three"].iter().for_each(|name| upstream.publish(Provider::new("acme", name)));
    let folder = Folder::new();
    let builder = || Larder::mirroring(&upstream).store_at(&folder);
    let (larder, fixture) = start(&builder(), &folder);
    let mut paths = Vec::new();
    for name in ["one", "two", "three"] {
        let path = fixture.start_job(&job_request(&[name.to_owned()])).await;
        fixture.finished_job(&path).await;
        paths.push(path);
    }
    assert_eq!(larder.terminate().await, Some(0));
    let file = |path: &str| folder.at(&format!("jobs/{}.json", path.rsplit('/').next().unwrap()));
    let mut torn = std::fs::read(file(&paths[0])).unwrap();
    let middle = torn.len() / 2;
    torn[middle] ^= 1;
    std::fs::write(file(&paths[0]), &torn).unwrap();
    // This record is intact, but does not describe a job.
    let other = b"{\"job\":17}";
    let checksum_line =
        json!({ "format": 1, "blake3": blake3::hash(other).to_hex().to_string(), "bytes": other.len() });
    std::fs::write(file(&paths[1]), [checksum_line.to_string().as_bytes(), b"\n", other].concat()).unwrap();

    let (larder, fixture) = start(&builder(), &folder);
    for path in &paths[..2] {
        fixture.get(path).await.expect(404);
    }
    assert_eq!(fixture.job(&paths[2]).await.state, "done");
    assert_eq!((folder.files("aside").len(), job_records(&folder).len()), (2, 1));
    let log = larder.log().text();
    assert_eq!(log.matches("a damaged record was quarantined").count(), 2, "{log}");
    assert_eq!(larder.terminate().await, Some(0));
}

#[tokio::test]
async fn the_job_list_has_one_limit_in_memory_and_on_disk() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let folder = Folder::new();
    let larder = Larder::mirroring(&upstream).store_at(&folder).start().await;
    let fixture = WarmFixture::for_larder(&larder);
    for _ in 0..20 {
        fixture.warm(&job_request(&["null".to_owned()])).await;
    }
    assert_eq!(listed_jobs(&fixture).await.as_array().unwrap().len(), 16);
    eventually("the oldest jobs are removed", async || (job_records(&folder).len() == 16).then_some(())).await;
    let listed_before = listed_jobs(&fixture).await;
    larder.stop().await;
    let larder = Larder::mirroring(&upstream).store_at(&folder).start().await;
    assert_eq!(listed_jobs(&WarmFixture::for_larder(&larder)).await, listed_before);
}

/// Promise 12: an offline larder sends nothing, and the packages of the job are listed as missing.
#[tokio::test]
async fn a_job_resumed_in_a_sealed_larder_fails_and_lists_missing_packages() {
    let upstream = FakeUpstream::start().await;
    ["held", "slow"].iter().for_each(|name| upstream.publish(Provider::new("acme", name).size(2 * HALF_BYTES)));
    let gate = upstream.hold_after(Target::Archive.with_path_part("slow"), HALF_BYTES);
    let folder = Folder::new();
    let (larder, fixture) = start(&Larder::mirroring(&upstream).store_at(&folder), &folder);
    let path = fixture.start_job(&job_request(&["held".to_owned(), "slow".to_owned()])).await;
    fixture.wait_for_job(&path, |job| job.states()[0] == "fetched" && job.items[1].bytes == HALF_BYTES as u64).await;
    larder.kill();
    gate.open();
    upstream.forget_requests();
    let (larder, fixture) = start(&Larder::mirroring(&upstream).network("offline = true").store_at(&folder), &folder);
    let job = fixture.finished_job(&path).await;
    assert_eq!((job.states(), &*job.state), (vec!["held", "failed"], "failed"), "{job}");
    assert!(job.error(1).contains("offline"), "{job}");
    let status = get(&format!("{}/admin/v1/status", larder.admin())).await.expect(200).json();
    assert!(status["missing"].to_string().contains("acme/slow"), "{status}");
    assert_eq!(upstream.requests().len(), 0);
    assert_eq!(larder.terminate().await, Some(0));
}

/// A command's job belongs to that command: a larder that starts later does not resume it unasked.
#[tokio::test]
async fn an_interrupted_command_line_job_resumes_only_with_the_same_command() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(2 * HALF_BYTES));
    let gate = upstream.hold_after(Target::Archive, HALF_BYTES);
    let setup = CommandSetup::new(&upstream);
    let file = setup.file();
    let warm = ["warm", "acme/null", "--platform", "linux_amd64"];
    let (child, _, _) =
        spawn_captured(command(setup.home.path(), &[&warm[..], &["--config", file.to_str().unwrap()]].concat()));
    upstream.wait_for(Target::Archive, 1).await;
    let staged = async || {
        let bytes = setup
            .home
            .partial_downloads()
            .iter()
            .map(|path| path.metadata().map_or(0, |metadata| metadata.len()))
            .max();
        bytes.filter(|bytes| *bytes >= HALF_BYTES as u64)
    };
    eventually("half of the archive is downloaded", staged).await;
    // Dropping the child kills it, like a power cut.
    drop(child);
    gate.open();
    upstream.forget_requests();

    let larder = setup.serve();
    let fixture = WarmFixture::for_process(&larder, token(&setup.home));
    assert_eq!(listed_jobs(&fixture).await, json!([]));
    assert_eq!(larder.terminate().await, Some(0));
    assert_eq!((upstream.requests().len(), setup.home.blobs().len()), (0, 0));

    let output = setup.run(&warm).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    let requests = archive_requests(&upstream);
    assert_eq!((requests.len(), requests[0].header("range")), (1, Some(format!("bytes={HALF_BYTES}-").as_str())));
}
