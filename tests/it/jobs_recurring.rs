//! Recurring warm-ups: they run at the start unless they ran recently, then at their interval, and earlier after a
//! failure. A reload replaces them.

use std::time::Duration;

use serde_json::Value;

use crate::support::command_setup;
use crate::support::eventually;
use crate::support::http::get;
use crate::support::larder::{Builder, Folder, HOST, Larder};
use crate::support::process::command;
use crate::support::process::{Process, run};
use crate::support::reports::{JobReport, seconds};
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target};
use crate::support::warm_fixture::{WarmFixture, both_platforms, items};

const HOUR: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);

async fn upstream() -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    upstream.publish(both_platforms(Provider::new("acme", "null")));
    upstream
}

/// Adds a recurring warm-up of these packages (a TOML list).
fn recurring(builder: Builder, packages: &str) -> Builder {
    builder.upstream_lines(&format!("[[warm]]\nwhat = {packages}\nplatforms = [\"linux_amd64\"]\nevery = \"1d\""))
}

/// The jobs, newest first.
async fn jobs(larder: &Larder) -> Vec<Value> {
    let listed = get(&format!("{}/admin/v1/jobs", larder.admin())).await.expect(200).json();
    listed["jobs"].as_array().unwrap().clone()
}

/// The first recurring job as the status reports it.
async fn recurring_job_status(larder: &Larder) -> Value {
    get(&format!("{}/admin/v1/status", larder.admin())).await.expect(200).json()["warm_ups"][0].clone()
}

/// Waits until the last run differs from `previous`, and returns it.
async fn next_run(larder: &Larder, previous: &Value) -> Value {
    eventually("the recurring job has run", async || {
        let status = recurring_job_status(larder).await;
        Some(status["last"].clone()).filter(|last| !last.is_null() && last != previous && status["running"].is_null())
    })
    .await
}

async fn job_of(larder: &Larder, last: &Value) -> JobReport {
    WarmFixture::for_larder(larder).job(&format!("/admin/v1/jobs/{}", last["job"].as_str().unwrap())).await
}

#[tokio::test]
async fn a_recurring_job_runs_at_the_start_and_at_its_interval_but_not_after_a_restart() {
    let upstream = upstream().await;
    let larder = recurring(Larder::mirroring(&upstream), "[\"acme/null@~> 1.0\"]").start().await;
    let first = next_run(&larder, &Value::Null).await;
    assert_eq!((&first["state"], &first["items"]["fetched"]), (&"done".into(), &1.into()), "{first}");
    assert_eq!(items(&job_of(&larder, &first).await), ["null@1.2.0 linux_amd64 fetched"]);
    let clock = larder.clock.clone();
    let folder = larder.stop().await;

    upstream.publish(both_platforms(Provider::new("acme", "null").version("1.3.0")));
    upstream.forget_requests();
    clock.advance(10 * HOUR);
    let restarted =
        || recurring(Larder::mirroring(&upstream), "[\"acme/null@~> 1.0\"]").store_at(&folder).clock(&clock);
    let larder = restarted().start().await;
    let status_now = recurring_job_status(&larder).await;
    assert_eq!((&status_now["last"], &status_now["running"]), (&first, &Value::Null));
    assert_eq!(seconds(&status_now["next"]), seconds(&first["ended"]) + 24 * 3600);
    assert_eq!(
        (jobs(&larder).await.len(), upstream.requests().len()),
        (1, 0),
        "the recurring job ran again after the restart"
    );

    // Together with the 10 hours above, this is more than the interval and its maximal jitter.
    clock.advance(16 * HOUR);
    let second = next_run(&larder, &first).await;
    assert_eq!(items(&job_of(&larder, &second).await), ["null@1.3.0 linux_amd64 fetched"]);
    // Of each recurring job only the last run is listed.
    assert_eq!(jobs(&larder).await.len(), 1);
    let folder = larder.stop().await;
    // A run that was due while larder was stopped starts at once.
    clock.advance(30 * HOUR);
    let larder = restarted().store_at(&folder).start().await;
    assert_eq!(next_run(&larder, &second).await["items"]["held"], 1);
}

#[tokio::test]
async fn a_failing_recurring_job_is_retried_with_growing_intervals() {
    let upstream = upstream().await;
    upstream.fault(Target::Versions, Fault::Status(404));
    let builder =
        recurring(Larder::mirroring(&upstream).upstream_lines("fresh = { not_found = \"0s\" }"), "[\"acme/null\"]");
    let larder = builder.start().await;
    let first = next_run(&larder, &Value::Null).await;
    assert_eq!((&first["state"], &first["failures"]), (&"failed".into(), &1.into()), "{first}");
    let seconds_to_next = |job: &Value| seconds(&job["next"]) - seconds(&job["last"]["ended"]);
    assert_eq!(seconds_to_next(&recurring_job_status(&larder).await), 300);
    larder.clock.advance(6 * MINUTE);
    let second = next_run(&larder, &first).await;
    assert_eq!((&second["failures"], seconds_to_next(&recurring_job_status(&larder).await)), (&2.into(), 600));
    upstream.clear_faults();
    larder.clock.advance(11 * MINUTE);
    let third = next_run(&larder, &second).await;
    assert_eq!((&third["state"], &third["failures"]), (&"done".into(), &0.into()));
    assert_eq!(seconds_to_next(&recurring_job_status(&larder).await), 24 * 3600);
}

/// Files are read for each run, and a file's problem is reported by that run.
#[tokio::test]
async fn a_lock_file_is_read_again_each_time() {
    let upstream = upstream().await;
    upstream.publish(both_platforms(Provider::new("acme", "null").version("1.3.0")));
    let folder = Folder::new();
    let lock = folder.path().join("prod.lock.hcl");
    let write = |version: &str| {
        let text = format!("provider \"{HOST}/acme/null\" {{\n  version = \"{version}\"\n}}\n");
        std::fs::write(&lock, text).unwrap();
    };
    write("1.2.0");
    let larder = recurring(Larder::mirroring(&upstream), &format!("[{lock:?}]")).start().await;
    let first = next_run(&larder, &Value::Null).await;
    assert_eq!(items(&job_of(&larder, &first).await), ["null@1.2.0 linux_amd64 fetched"]);
    write("1.3.0");
    larder.clock.advance(26 * HOUR);
    let second = next_run(&larder, &first).await;
    assert_eq!(items(&job_of(&larder, &second).await), ["null@1.3.0 linux_amd64 fetched"]);
    std::fs::remove_file(&lock).unwrap();
    larder.clock.advance(26 * HOUR);
    let third = next_run(&larder, &second).await;
    assert!(third["error"].as_str().unwrap().contains("prod.lock.hcl cannot be read"), "{third}");
    assert_eq!((&third["job"], &third["failures"]), (&Value::Null, &1.into()));
}

#[tokio::test]
async fn a_reload_replaces_recurring_jobs_and_none_runs_offline() {
    let upstream = upstream().await;
    upstream.publish(both_platforms(Provider::new("acme", "other")));
    let offline = recurring(Larder::mirroring(&upstream).network("offline = true"), "[\"acme/null\"]");
    let larder = offline.start().await;
    assert_eq!(recurring_job_status(&larder).await["next"], Value::Null);
    larder.reload(recurring(Larder::mirroring(&upstream), "[\"acme/null\"]")).await.unwrap();
    let first = next_run(&larder, &Value::Null).await;
    assert_eq!((&first["state"], jobs(&larder).await.len()), (&"done".into(), 1));
    larder.reload(recurring(Larder::mirroring(&upstream), "[\"acme/other\"]")).await.unwrap();
    let manual_run = next_run(&larder, &Value::Null).await;
    assert_eq!(items(&job_of(&larder, &manual_run).await), ["other@1.2.0 linux_amd64 fetched"]);
    larder.reload(Larder::mirroring(&upstream)).await.unwrap();
    assert_eq!(recurring_job_status(&larder).await, Value::Null);
    larder.clock.advance(26 * HOUR);
    // A job started by hand shows that no recurring run preceded it.
    WarmFixture::for_larder(&larder).warm(&serde_json::json!({ "what": ["acme/null"] })).await;
    assert_eq!(jobs(&larder).await.len(), 3);
}

#[tokio::test]
async fn recurring_jobs_beyond_the_limit_wait_and_leave_a_slot_for_other_jobs() {
    let upstream = FakeUpstream::start().await;
    let names: Vec<String> = (0..12).map(|number| format!("p{number}")).collect();
    names.iter().for_each(|name| upstream.publish(Provider::new("acme", name).size(100_000)));
    let gate = upstream.hold_after(Target::Archive, 1000);
    let builder = names
        .iter()
        .fold(Larder::mirroring(&upstream), |builder, name| recurring(builder, &format!("[\"acme/{name}\"]")));
    let larder = builder.start().await;
    let running = async || jobs(&larder).await.iter().filter(|job| job["state"] == "running").count();
    eventually("all job slots but one are in use", async || (running().await == 7).then_some(())).await;
    let fixture = WarmFixture::for_larder(&larder);
    fixture.start_job(&serde_json::json!({ "what": ["acme/p0"], "platforms": ["linux_amd64"] })).await;
    assert_eq!(running().await, 8);
    gate.open();
    let all = eventually("each recurring job has run", async || {
        let status = get(&format!("{}/admin/v1/status", larder.admin())).await.expect(200).json();
        let all: Vec<Value> =
            status["warm_ups"].as_array().unwrap().iter().map(|entry| entry["last"].clone()).collect();
        all.iter().all(|last| !last.is_null()).then_some(all)
    })
    .await;
    assert_eq!(all.len(), 12);
    assert!(all.iter().all(|last| last["state"] == "done" && last["failures"] == 0), "{all:?}");
}

#[tokio::test]
async fn a_run_that_ends_after_a_reload_to_offline_is_recorded_and_not_repeated() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(100_000));
    let gate = upstream.hold_after(Target::Archive, 1000);
    let builder = || recurring(Larder::mirroring(&upstream), "[\"acme/null\"]");
    let larder = builder().start().await;
    upstream.wait_for(Target::Archive, 1).await;
    let run = recurring_job_status(&larder).await["running"].clone();
    assert!(run.is_string(), "{run}");
    larder.reload(builder().network("offline = true")).await.unwrap();
    gate.open();
    let last = next_run(&larder, &Value::Null).await;
    assert_eq!((&last["job"], recurring_job_status(&larder).await["next"].is_null()), (&run, true), "{last}");
    larder.reload(builder()).await.unwrap();
    let current = recurring_job_status(&larder).await;
    assert_eq!((&current["last"], &current["running"]), (&last, &Value::Null));
    assert!(seconds(&current["next"]) > seconds(&last["ended"]), "{current}");
}

/// Nothing recurs offline: a run that a restart interrupted is not resumed, and its packages are not listed as missing.
#[tokio::test]
async fn a_run_that_a_restart_interrupted_does_not_continue_offline_and_begins_again_later() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(100_000));
    let gate = upstream.hold_after(Target::Archive, 1000);
    let folder = Folder::new();
    let builder = || recurring(Larder::mirroring(&upstream), "[\"acme/null\"]").store_at(&folder);
    let larder = Process::start(&builder(), folder.path());
    upstream.wait_for(Target::Archive, 1).await;
    larder.kill();
    gate.open();
    upstream.forget_requests();
    let status = async |larder: &Process| get(&format!("{}/admin/v1/status", larder.admin())).await.expect(200).json();
    let larder = Process::start(&builder().network("offline = true"), folder.path());
    let current = status(&larder).await;
    let entry = &current["warm_ups"][0];
    assert_eq!(
        (&entry["running"], &entry["last"], &entry["next"]),
        (&Value::Null, &Value::Null, &Value::Null),
        "{current}"
    );
    assert!(!current["missing"].to_string().contains("acme/null"), "{current}");
    assert_eq!(larder.terminate().await, Some(0));
    assert_eq!((upstream.requests().len(), folder.files("jobs").len()), (0, 0));
    let larder = Process::start(&builder(), folder.path());
    let last = eventually("the recurring job has run", async || {
        Some(status(&larder).await["warm_ups"][0]["last"].clone()).filter(|last| !last.is_null())
    })
    .await;
    assert_eq!(last["state"], "done");
    assert_eq!(larder.terminate().await, Some(0));
}

/// A share may be mounted after larder starts.
#[tokio::test]
async fn a_path_in_warm_may_be_missing_and_is_read_at_each_run() {
    let upstream = upstream().await;
    let mut setup = command_setup::CommandSetup::new(&upstream);
    setup.text += "[[warm]]\nwhat = [\"./gone\", \"no.lock.hcl\"]\nplatforms = [\"linux_amd64\"]\n";
    let output = setup.run(&["check"]).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    for part in ["warm.what", "no file and no folder \"./gone\"", "\"no.lock.hcl\"", "checked again at each run"] {
        assert!(output.err.contains(part), "{part} is not in {}", output.err);
    }
    let larder = setup.serve();
    let last = eventually("the recurring job has failed", async || {
        let status = get(&format!("{}/admin/v1/status", larder.admin())).await.json();
        Some(status["warm_ups"][0]["last"].clone()).filter(|last| !last.is_null())
    })
    .await;
    for part in ["gone cannot be read", "no.lock.hcl cannot be read"] {
        assert!(last["error"].as_str().unwrap().contains(part), "{last}");
    }
    assert_eq!(larder.terminate().await, Some(0));
}

/// `check` reports every problem, and `status` works without a running larder.
#[tokio::test]
async fn check_reports_problems_of_recurring_jobs_and_status_lists_them_without_a_larder() {
    let upstream = upstream().await;
    let mut setup = command_setup::CommandSetup::new(&upstream);
    let good = setup.text.clone();
    setup.text = format!(
        "{good}[[warm]]\nwhat = [\"acme/null@=> 1\", \"~/gone\"]\nplatforms = [\"linux\"]\nevery = \"1m\"\nclient = \"pulumi\"\n[[warm]]\npin = true\n"
    );
    let output = setup.run(&["check"]).await;
    assert_eq!(output.code, Some(78), "{output:?}");
    for part in ["=> 1", "write the home folder in place of ~", "\"linux\"", "minimum of 5m", "\"pulumi\"", "missing"] {
        assert!(output.err.contains(part), "{part} is not in {}", output.err);
    }
    setup.text = format!("{good}[[warm]]\nwhat = [\"acme/null\"]\nplatforms = [\"linux_amd64\"]\n");
    assert_eq!(setup.run(&["check"]).await.code, Some(0));
    let larder = setup.serve();
    let last = eventually("the recurring job has run", async || {
        let status = get(&format!("{}/admin/v1/status", larder.admin())).await.json();
        Some(status["warm_ups"][0]["last"].clone()).filter(|last| !last.is_null())
    });
    assert_eq!(last.await["state"], "done");
    assert_eq!(larder.terminate().await, Some(0));
    let file = setup.file();
    let status = ["status", "--config", file.to_str().unwrap()];
    let output = run(command(setup.home.path(), &status)).await;
    assert!(output.out.contains("every 1 day: 1 archive stored, 1 of them new"), "{output:?}");
}
