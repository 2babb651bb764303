//! The record of how a store is used, by services and by runs, and what the commands make of it.

use std::time::SystemTime;

use larder::clock::Timestamp;
use larder::store::{Durability, Key};
use serde_json::{Value, json};

use crate::support::command_setup;
use crate::support::doctor_setup::DoctorReport;
use crate::support::http::get;
use crate::support::larder::{Folder, HOST, Larder, open_store, wait_until_unlocked};
use crate::support::process::{CommandOutput, Process, run};
use crate::support::run_setup::RunSetup;
use crate::support::small_disk::SmallDisk;
use crate::support::upstream::{FakeUpstream, Provider};

const SIZE: usize = 200_000;
const DAY: u64 = 24 * 3600;

async fn upstream() -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    for name in ["null", "other"] {
        upstream.publish(Provider::new("acme", name).platform("linux_amd64").size(SIZE));
    }
    upstream
}

async fn larder(setup: &RunSetup, arguments: &[&str]) -> CommandOutput {
    run(setup.larder_command(arguments)).await
}

async fn doctor(setup: &RunSetup) -> DoctorReport {
    DoctorReport::from_output(&larder(setup, &["doctor", "--json"]).await)
}

async fn usage(setup: &RunSetup) -> Value {
    command_setup::json(&larder(setup, &["status", "--json"]).await.out)["usage"].clone()
}

/// A person who only ever ran clients needs no service: `status` counts what the runs saved, `doctor` finds nothing wrong and
/// advises no host blocks, and `explain` names no URL where nobody listens.
#[tokio::test]
async fn without_a_service_the_commands_are_about_the_runs() {
    let upstream = upstream().await;
    let Some(setup) = RunSetup::with_terraform(&upstream) else { return };
    assert_eq!(doctor(&setup).await.ids("fail"), ["running"], "nothing was run yet");
    setup.require(&["acme/null"]).init(&[]).await;
    setup.require(&["acme/null", "acme/other"]).init(&[]).await;
    let archives = ["null", "other"].map(|name| upstream.archive_bytes("acme", name, "1.2.0", "linux_amd64").len());
    let runs = usage(&setup).await["runs"].clone();
    assert_eq!((&runs["store"]["count"], &runs["upstream"]["count"]), (&1.into(), &2.into()), "{runs}");
    assert_eq!(runs["upstream"]["bytes"], archives.iter().sum::<usize>(), "{runs}");
    let status = larder(&setup, &["status"]).await.out;
    assert!(status.contains("(`larder run` starts it for each run)"), "{status}");
    assert!(status.contains("  saved      1 package (") && status.contains("  fetched    2 packages ("), "{status}");
    doctor(&setup).await.assert_healthy();
    let report = larder(&setup, &["doctor"]).await.out;
    assert!(report.contains("1 package (") && !report.contains("client-config"), "{report}");
    let explained = larder(&setup, &["explain", "acme/null"]).await.out;
    assert!(explained.contains("SERVED") && !explained.contains("curl"), "{explained}");
}

#[tokio::test]
async fn a_damaged_record_counts_as_one_of_a_service_which_is_missed() {
    let upstream = upstream().await;
    let Some(setup) = RunSetup::with_terraform(&upstream) else { return };
    setup.require(&["acme/null"]).init(&[]).await;
    let record = setup.store().join("v1/usage.json");
    let kept = std::fs::read(&record).unwrap();
    std::fs::write(&record, "ruined").unwrap();
    assert_eq!(doctor(&setup).await.ids("fail"), ["running"]);
    for _ in 0..2 {
        assert!(usage(&setup).await.as_object().unwrap().contains_key("served"), "a look does not forget it");
    }
    setup.require(&["acme/null"]).init(&[]).await;
    assert_eq!(doctor(&setup).await.ids("fail"), ["running"], "a run made the record again");
    assert_eq!(usage(&setup).await["served"], Value::Null);
    assert!(usage(&setup).await.as_object().unwrap().contains_key("served"), "not the same as never");
    std::fs::write(&record, kept).unwrap();
    doctor(&setup).await.assert_healthy();
    assert!(!usage(&setup).await.as_object().unwrap().contains_key("served"));
}

#[tokio::test]
async fn a_service_that_could_not_begin_is_missed() {
    let upstream = upstream().await;
    let Some(setup) = RunSetup::with_terraform(&upstream) else { return };
    setup.require(&["acme/null"]).init(&[]).await;
    doctor(&setup).await.assert_healthy();
    let config = setup.read("home/config/larder/mirror.toml");
    let port = config.split("listen = \"127.0.0.1:").nth(1).unwrap().split('"').next().unwrap().parse::<u16>().unwrap();
    let occupied = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    let failed = larder(&setup, &["serve"]).await;
    assert!(failed.code == Some(1) && failed.err.contains("in use"), "{failed:?}");
    drop(occupied);
    assert_eq!(doctor(&setup).await.ids("fail"), ["running"], "it was wanted, and does not run");
}

#[tokio::test]
async fn with_a_service_runs_count_and_the_commands_are_about_its_clients() {
    let upstream = upstream().await;
    let Some(setup) = RunSetup::with_terraform(&upstream) else { return };
    setup.require(&["acme/null"]).init(&[]).await;
    let config = setup.read("home/config/larder/mirror.toml");
    let served = Process::serve(&format!("{config}[store]\npath = {:?}\n", setup.store()), &setup.path("home"));
    let served = served.unwrap_or_else(|error| panic!("{error:?}"));
    let explained = larder(&setup, &["explain", "acme/null"]).await.out;
    assert!(explained.contains("curl -sSi 'http://127.0.0.1:"), "{explained}");
    assert!(larder(&setup, &["doctor"]).await.out.contains("write these lines there"), "its clients need them");
    setup.require(&["acme/null"]).init(&[]).await;
    assert_eq!(usage(&setup).await["runs"]["store"]["count"], 1, "runs through a service count, too");
    served.terminate_promptly().await;
    assert_eq!(doctor(&setup).await.ids("fail"), ["running"]);
    assert!(usage(&setup).await["served"].is_string());
}

/// A person who served once, and has only run clients for a week, may have forgotten the service, or given it up.
#[tokio::test]
async fn runs_long_after_the_last_service_make_a_warning_of_the_failure() {
    let setup = RunSetup::new(&upstream().await);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    for (served, expected) in [(now - 6 * DAY, "fail"), (now - 8 * DAY, "warn")] {
        let amount = json!({ "count": 1, "bytes": 7 });
        let runs = json!({ "first": now - 9 * DAY, "last": now, "store": amount, "upstream": amount });
        let store = open_store(&setup.store(), Timestamp(now));
        let record = json!({ "served": served, "runs": runs }).to_string();
        store.records.put(&Key::Usage, record.as_bytes(), Durability::Synced).unwrap();
        store.close().unwrap();
        drop(store);
        wait_until_unlocked(&setup.store());
        let report = doctor(&setup).await;
        assert!(report.ids(expected).contains(&"running"), "{served} {report:?}");
    }
}

/// A larder keeps the counts of some runs only. Those of the others are in the totals.
#[tokio::test]
async fn every_run_is_in_the_totals_however_many_there_are() {
    let upstream = upstream().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let archive = larder.archive_path("null", "1.2.0").await;
    for id in 0..100 {
        get(&format!("{}/run/{id:032x}{archive}", larder.base())).await.expect(200);
    }
    let [store, fetched] = totals(&larder.admin(), 99).await;
    assert_eq!((store, fetched), (99, 1));
}

/// Totals that a full disk does not take are written with those of the next report.
#[tokio::test]
async fn totals_that_could_not_be_written_are_written_later() {
    if !SmallDisk::is_possible() {
        return;
    }
    let upstream = upstream().await;
    let folder = Folder::new();
    let disk = SmallDisk::start(&Larder::mirroring(&upstream).store_at(&folder), &folder, 8 << 20, "true");
    let disk = disk.unwrap_or_else(|error| panic!("{error:?}"));
    let (base, admin) = (disk.larder.base(), disk.larder.admin());
    let document = format!("{base}/registry/{HOST}/v1/providers/acme/null/1.2.0/download/linux/amd64");
    let archive = get(&document).await.expect(200).json()["download_url"].as_str().unwrap().to_owned();
    let install = async |id: u32| {
        get(&format!("{base}/run/{id:032x}{archive}")).await.expect(200);
        totals(&admin, id).await
    };
    assert_eq!(install(1).await, [0, 1]);
    disk.leave_free(0);
    assert_eq!(install(2).await, [0, 1], "the disk is full");
    disk.remove_ballast();
    assert_eq!(install(3).await, [2, 1]);
}

/// The packages of all runs from the store and from upstream, after the report of this run.
async fn totals(admin: &str, run: u32) -> [u64; 2] {
    get(&format!("{admin}/admin/v1/runs/{run:032x}")).await.expect(200);
    let runs = get(&format!("{admin}/admin/v1/status")).await.expect(200).json()["usage"]["runs"].clone();
    ["store", "upstream"].map(|source| runs[source]["count"].as_u64().unwrap_or_default())
}
