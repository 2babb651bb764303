//! Stored archives are read again: by `verify` at once, by the scrub over weeks (promise 10). Damaged ones are
//! quarantined and fetched again.

use std::path::Path;
use std::time::Duration;

use larder::clock::Clock;

use crate::support::command_setup::{CommandSetup, json};
use crate::support::http::send;
use crate::support::larder::{Folder, HOST, Larder};
use crate::support::package_fixture::{LARGE_BYTES, SMALL_BYTES};
use crate::support::until;
use crate::support::upstream::{FakeUpstream, Fault, Provider, RecordedRequest, Target};
use crate::support::verify_steps::{steps, verify, verify_request};

const NAMES: [(&str, usize); 2] = [("small", SMALL_BYTES), ("large", LARGE_BYTES)];
const DAY: Duration = Duration::from_secs(24 * 3600);

async fn upstream_with_both() -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    for (name, size) in NAMES {
        upstream.publish(Provider::new("acme", name).size(size));
    }
    upstream
}

fn bytes(upstream: &FakeUpstream, name: &str) -> Vec<u8> {
    upstream.archive_bytes("acme", name, "1.2.0", "linux_amd64")
}

/// Fetches both archives and requests each once more: from then on neither is checked before it is served.
async fn install(larder: &Larder) -> [String; 2] {
    let paths = [larder.archive_path("small", "1.2.0").await, larder.archive_path("large", "1.2.0").await];
    for path in paths.iter().chain(&paths) {
        larder.get(path).await.expect(200);
    }
    paths
}

/// Flips one bit in the middle of every archive and keeps the modification times.
fn damage(folder: &Folder) {
    for file in folder.blobs() {
        flip(&file);
    }
}

fn flip(file: &Path) {
    let changed = file.metadata().unwrap().modified().unwrap();
    let mut content = std::fs::read(file).unwrap();
    let middle = content.len() / 2;
    content[middle] ^= 1;
    std::fs::write(file, content).unwrap();
    std::fs::File::options().write(true).open(file).unwrap().set_modified(changed).unwrap();
}

fn has_all_archives(folder: &Folder, upstream: &FakeUpstream) -> bool {
    let mut wanted: Vec<_> = NAMES.iter().map(|(name, _)| bytes(upstream, name)).collect();
    let mut stored: Vec<_> = folder.blobs().iter().filter_map(|file| std::fs::read(file).ok()).collect();
    wanted.sort();
    stored.sort();
    wanted == stored
}

/// Promise 10: verify uses SHA-256; a mismatch is quarantined and fetched again.
#[tokio::test]
async fn verify_finds_damaged_archives_and_fetches_them_again() {
    let upstream = upstream_with_both().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let paths = install(&larder).await;
    let report_before = verify(&larder).await;
    let all: usize = NAMES.iter().map(|(name, _)| bytes(&upstream, name).len()).sum();
    assert_eq!(
        (&report_before[0]["step"], &report_before[0]["archives"], &report_before[0]["bytes"]),
        (&"begun".into(), &2.into(), &all.into())
    );
    assert_eq!(
        (&report_before[1]["step"], &report_before[1]["wrong"], report_before.len()),
        (&"done".into(), &0.into(), 2)
    );

    damage(&larder.folder);
    upstream.forget_requests();
    let output = verify(&larder).await;
    assert_eq!((output.len(), &output[3]["wrong"]), (4, &2.into()), "{output:?}");
    for step in &output[1..3] {
        assert_eq!(
            (&step["step"], &step["found"], &step["healed"]),
            (&"wrong_archive".into(), &"damaged".into(), &"fetched_again".into())
        );
        assert_eq!(step["of"].as_array().unwrap().len(), 1, "{step}");
    }
    assert_eq!((upstream.count_of(Target::Archive), larder.folder.files("aside").len()), (2, 2));
    assert!(has_all_archives(&larder.folder, &upstream));
    for (path, (name, _)) in paths.iter().zip(NAMES) {
        let answer = larder.get(path).await.expect(200);
        assert!(answer.has_cache_status("larder; hit") && answer.body == bytes(&upstream, name), "{name}");
    }
    assert_eq!(verify(&larder).await.last().unwrap()["wrong"], 0);
}

/// Promise 10: `verify` finds a missing archive that a package record lists, and records with a wrong checksum.
#[tokio::test]
async fn verify_finds_missing_archives_and_damaged_records() {
    let upstream = upstream_with_both().await;
    let larder = Larder::mirroring(&upstream).start().await;
    install(&larder).await;
    let removed = larder.folder.blobs().remove(0);
    std::fs::remove_file(removed).unwrap();
    until("the package records are complete", async || larder.folder.has_all_hashes()).await;
    larder.folder.damage(&larder.folder.files("names")[0]);
    larder.folder.damage(&larder.folder.proof_sets()[1]);
    let output = verify(&larder).await;
    assert_eq!(output.last().unwrap()["wrong"], 3, "{output:?}");
    let records: Vec<_> = output.iter().filter_map(|step| step["record"].as_str()).collect();
    assert!(records.len() == 2 && records.iter().any(|record| record.starts_with("the name of ")), "{records:?}");
    assert!(output.iter().any(|step| step["found"] == "missing"), "{output:?}");
    assert!(has_all_archives(&larder.folder, &upstream));
    assert_eq!(verify(&larder).await.last().unwrap()["wrong"], 0);
}

/// `verify` ends each fault that it finds: the next run finds nothing, although upstream has nothing to fetch.
#[tokio::test]
async fn verify_ends_what_nobody_can_fetch_again() {
    let clock = Clock::system();
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "small").size(SMALL_BYTES));
    let larder = Larder::mirroring(&upstream).always_revalidate().clock(&clock).start().await;
    let path = larder.archive_path("small", "1.2.0").await;
    larder.get(&path).await.expect(200);
    let [replaced] = larder.folder.blobs().try_into().unwrap();
    upstream.publish(Provider::new("acme", "small").size(5000));
    larder.get(&larder.archive_path("small", "1.2.0").await).await.expect(200);
    assert_eq!(larder.folder.blobs().len(), 2, "the name lists both");

    // The archive that a later one replaced: no document names it after a day.
    clock.advance(Duration::from_secs(25 * 3600));
    std::fs::remove_file(replaced).unwrap();
    larder.folder.damage(&larder.folder.at(&format!("documents/{HOST}/discovery")));
    let output = verify(&larder).await;
    assert_eq!(output.last().unwrap()["wrong"], 2, "{output:?}");
    assert!(output.iter().any(|step| step["healed"] == "nobody_needs_it"), "{output:?}");
    let again = verify(&larder).await;
    assert_eq!(again.last().unwrap()["wrong"], 0, "{again:?}");
    assert_eq!(larder.folder.files("aside").len(), 1, "a damaged record is set aside");

    // The only archive, which upstream has deleted.
    upstream.withdraw("acme", "small", "1.2.0");
    upstream.fault(Target::Archive, Fault::Status(403));
    let left = larder.folder.blobs().remove(0);
    std::fs::remove_file(left).unwrap();
    verify(&larder).await;
    let again = verify(&larder).await;
    assert_eq!(again.last().unwrap()["wrong"], 0, "{again:?}");
}

/// Promise 12: offline, damage is quarantined too, and listed as missing.
#[tokio::test]
async fn verify_offline_quarantines_damage_and_lists_it_as_missing() {
    let upstream = upstream_with_both().await;
    let larder = Larder::mirroring(&upstream).start().await;
    install(&larder).await;
    let folder = larder.stop().await;
    damage(&folder);
    upstream.forget_requests();
    let larder = Larder::mirroring(&upstream).network("offline = true").store_at(&folder).start().await;
    let output = verify(&larder).await;
    assert!(output[1..3].iter().all(|step| step["healed"] == "offline"), "{output:?}");
    let status = crate::support::http::get(&format!("{}/admin/v1/status", larder.admin())).await.expect(200).json();
    assert_eq!((status["missing"].as_array().unwrap().len(), &status["archives"]), (2, &0.into()), "{status}");
    assert_eq!((upstream.requests().len(), folder.blobs().len(), folder.files("aside").len()), (0, 0, 2));
}

/// Promise 10: an archive that the store refuses is not stored, so it is not fetched again; `verify` passes nothing
/// through.
#[tokio::test]
async fn verify_reports_an_archive_that_could_not_be_stored() {
    let upstream = upstream_with_both().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let path = larder.archive_path("large", "1.2.0").await;
    larder.get(&path).await.expect(200);
    // The pin keeps the smaller store from evicting the archive before its check.
    larder.run_command("pin", "acme/large").await;
    let folder = larder.stop().await;
    damage(&folder);
    let larder = Larder::mirroring(&upstream).store("max_size = \"1MiB\"").store_at(&folder).start().await;
    let output = verify(&larder).await;
    assert_eq!((&output[1]["found"], &output[1]["healed"]), (&"damaged".into(), &"not_now".into()), "{output:?}");
    assert!(output[1]["error"].as_str().unwrap().contains("max_size"), "{output:?}");
    assert_eq!((folder.blobs().len(), larder.metric("larder_passed_through_total").await), (0, 0.0));
    larder.get(&path).await.expect(200);
    assert_eq!(larder.metric("larder_passed_through_total").await, 1.0);
}

/// Promise 10: an archive that is verified again but cannot get a package record is reported.
#[tokio::test]
async fn verify_reports_a_verified_archive_without_a_package_record() {
    for (name, _) in NAMES {
        let upstream = upstream_with_both().await;
        let larder = Larder::mirroring(&upstream).start().await;
        let path = larder.archive_path(name, "1.2.0").await;
        larder.get(&path).await.expect(200);
        let folder = larder.folder.clone();
        damage(&folder);
        let gate = upstream.hold_headers(Target::Archive);
        let verifying = async { verify(&larder).await };
        let block_record_folder = async {
            upstream.wait_for(Target::Archive, 2).await;
            let names = folder.path().join("v1/names");
            std::fs::rename(&names, folder.path().join("away")).unwrap();
            std::fs::write(&names, "in the way").unwrap();
            gate.open();
        };
        let (output, ()) = tokio::join!(verifying, block_record_folder);
        assert_eq!((&output[1]["healed"], output.len()), (&"not_now".into(), 3), "{name}: {output:?}");
        assert!(output[1]["error"].as_str().unwrap().contains("the store failed"), "{name}: {output:?}");
        assert_eq!(larder.metric("larder_passed_through_total").await, 0.0, "{name}");
    }
}

/// Only one `verify` runs at a time, and only while a client reads its report.
#[tokio::test]
async fn a_verify_ends_when_its_client_disconnects() {
    let upstream = upstream_with_both().await;
    let larder = Larder::mirroring(&upstream).start().await;
    install(&larder).await;
    damage(&larder.folder);
    upstream.forget_requests();
    let gate = upstream.hold_headers(Target::Archive);
    let first = verify_request(&larder).send().await.unwrap();
    upstream.wait_for(Target::Archive, 1).await;
    let refused = send(verify_request(&larder)).await.unwrap().expect(503);
    assert!(refused.text().contains("verified already"), "{}", refused.text());
    drop(first);
    // The running fill continues; the verification ends.
    until("another `verify` is admitted", async || {
        let next = verify_request(&larder).send().await.unwrap();
        next.status() == 200
    })
    .await;
    gate.open();
    until("the first archive is repaired", async || larder.folder.blobs().len() == 2).await;
    until("no other `verify` is running", async || verify_request(&larder).send().await.unwrap().status() == 200).await;
}

/// Progress and the result on the command line, with a running larder and without.
#[tokio::test]
async fn the_verify_command_reports_damage_and_exits_with_3() {
    let upstream = upstream_with_both().await;
    let setup = CommandSetup::new(&upstream);
    let none_yet = setup.run(&["verify"]).await;
    assert_eq!(none_yet.code, Some(1), "{none_yet:?}");
    for running in [true, false] {
        let larder = setup.serve();
        for (name, _) in NAMES {
            let path = larder.archive_path(name).await;
            larder.get(&path).await.expect(200);
        }
        let larder = if running {
            Some(larder)
        } else {
            assert_eq!(larder.terminate().await, Some(0));
            None
        };
        let intact = setup.stdout_of(&["verify"]).await;
        assert!(intact.contains("and 2 archives") && intact.contains("everything is intact"), "{intact}");
        damage(&setup.home);
        let output = setup.run(&["verify"]).await;
        assert_eq!(output.code, Some(3), "{output:?}");
        assert_eq!(output.out.matches("damaged: the archive of registry.terraform.io/acme/").count(), 2, "{output:?}");
        assert!(
            output.out.contains("fetched again") && output.out.contains("2 items failed verification"),
            "{output:?}"
        );
        assert!(output.err.contains("100 %"), "{output:?}");
        // The archives are told once, and what else is found is told in sentences, with no line of a log.
        assert!(!output.err.contains("acme/small"), "{output:?}");
        for raw in ["ERROR", "WARN", "Some(", "=\"", "larder::"] {
            assert!(!output.err.contains(raw), "{raw}: {output:?}");
        }
        assert!(has_all_archives(&setup.home, &upstream));
        let lines = setup.stdout_of(&["verify", "--json"]).await;
        assert_eq!(json(lines.lines().last().unwrap())["wrong"], 0);
        drop(larder);
    }
}

/// The verification of a large store takes hours: it fetches from the upstreams of the current configuration.
#[tokio::test]
async fn verify_fetches_again_by_the_current_configuration() {
    let upstream = upstream_with_both().await;
    let larder = Larder::mirroring(&upstream).start().await;
    install(&larder).await;
    damage(&larder.folder);
    upstream.forget_requests();
    let gate = upstream.hold_body(Target::Archive);
    let verifying = tokio::spawn(send(verify_request(&larder)));
    upstream.wait_for(Target::Archive, 1).await;

    let token = larder.folder.path().join("token");
    std::fs::write(&token, "s3cret").unwrap();
    let with_token =
        Larder::mirroring(&upstream).upstream_lines(&format!("token = {{ file = \"{}\" }}", token.display()));
    larder.reload(with_token).await.unwrap();
    gate.open();
    let steps = steps(&verifying.await.unwrap().unwrap().expect(200));
    assert_eq!(steps.last().unwrap()["wrong"], 2, "{steps:?}");
    assert!(has_all_archives(&larder.folder, &upstream));
    let requests_with_token = |target| {
        let with_token = |request: &RecordedRequest| request.header("authorization").is_some();
        upstream.count_where(|request| request.target == target && with_token(request))
    };
    assert_eq!((upstream.count_of(Target::Archive), requests_with_token(Target::Archive)), (2, 1));
}

/// The interval scrub, whose due times survive a restart.
#[tokio::test]
async fn the_scrub_finds_damage_when_it_is_due() {
    let upstream = upstream_with_both().await;
    let clock = Clock::default();
    let builder =
        |folder: &Folder| Larder::mirroring(&upstream).store("scrub = \"30d\"").clock(&clock).store_at(folder);
    let larder = builder(&Folder::new()).start().await;
    let paths = install(&larder).await;
    let folder = larder.stop().await;

    clock.advance(20 * DAY);
    let larder = builder(&folder).start().await;
    for path in &paths {
        larder.get(path).await.expect(200);
    }
    damage(&folder);
    upstream.forget_requests();
    clock.advance(11 * DAY);
    until("both archives were fetched again", async || has_all_archives(&folder, &upstream)).await;
    assert_eq!((upstream.count_of(Target::Archive), folder.files("aside").len()), (2, 2));

    // The archives were just fetched, so they are due again in thirty days.
    damage(&folder);
    clock.advance(29 * DAY);
    assert!(!has_all_archives(&folder, &upstream));
    clock.advance(2 * DAY);
    until("both archives were fetched once more", async || has_all_archives(&folder, &upstream)).await;
}

/// A clock that was years ahead once must not put off the scrub for years.
#[tokio::test]
async fn the_scrub_checks_archives_whose_last_check_lies_in_the_future() {
    let upstream = upstream_with_both().await;
    let ahead = Clock::default();
    ahead.advance(2000 * DAY);
    let builder = |clock: &Clock| Larder::mirroring(&upstream).store("scrub = \"30d\"").clock(clock);
    let larder = builder(&ahead).start().await;
    install(&larder).await;
    let folder = larder.stop().await;
    damage(&folder);
    let larder = builder(&Clock::default()).store_at(&folder).start().await;
    until("both archives were fetched again", async || has_all_archives(&folder, &upstream)).await;
    until("both archives are recorded as checked", async || folder.files("aside").len() == 2).await;
    drop(larder);
}
