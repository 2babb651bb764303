use super::*;
use crate::bundle::BundleKeyIds;
use crate::clock::Timestamp;
use crate::jobs::job_report::ItemCounts;
use crate::mirror::OriginBackoff;

fn host() -> Hostname {
    Hostname::parse("registry.terraform.io").unwrap()
}

fn warm_up(last: Option<LastRun>, running: Option<&str>) -> RecurringState {
    let subjects = vec![
        "hashicorp/aws@~> 5.0".to_owned(),
        "/etc/larder/configurations/a-folder-with-a-long-name/production".to_owned(),
    ];
    let next = running.is_none().then_some(Timestamp(1_795_300_000));
    RecurringState { what: subjects, every_seconds: 86_400, running: running.map(str::to_owned), last, next }
}

fn last_run_of(state: JobState, error: Option<&str>, failures: u32) -> LastRun {
    let items = ItemCounts { all: 30, held: 20, fetched: 5, failed: 5, cancelled: 0 };
    let error = error.map(str::to_owned);
    LastRun { ended: Timestamp(1_795_293_000), state, job: Some("00".repeat(8)), items, error, failures }
}

/// A report with every kind of problem.
fn report_with_every_problem() -> StatusReport {
    let upstream = |host: &str, left_alone| UpstreamState {
        host: host.to_owned(),
        requests: 123_456,
        failed: 17,
        bytes: 98 << 30,
        refused: 2,
        left_alone,
    };
    let backoff = OriginBackoff { origin: "https://releases.hashicorp.example".to_owned(), seconds: 42 };
    let address = "registry.terraform.io/a-namespace-that-is-long/a-provider-with-a-long-name";
    let alarm = |kind, detail: &str, resolve: Option<&str>| Alarm {
        kind,
        address: address.to_owned(),
        version: "12.34.56".to_owned(),
        detail: detail.to_owned(),
        since: Timestamp(1_795_293_000),
        resolve: resolve.map(str::to_owned),
    };
    let accept = format!("larder accept {address}@12.34.56");
    let trouble = StoreFailure {
        why: "could not write /var/lib/larder/v1/staging/record-1: No space left on device (os error 28)".to_owned(),
        to_do: "free space on the store's disk; larder continues by itself".to_owned(),
    };
    let changed = "its proof set gives terraform-provider-null_1.2.0\u{1b}[2J_linux_amd64.zip another SHA-256";
    StatusReport {
        bundle_keys: BundleKeyIds::default(),
        mirror: Status {
            version: "0.1.0".to_owned(),
            store: "/var/lib/larder/v1".to_owned(),
            store_state: StoreState::NotKeeping,
            trouble: Some(trouble),
            max_size_bytes: 200 << 30,
            free_bytes: Some(4096),
            index_bytes: 2 << 20,
            archives: 1234,
            archive_bytes: 150 << 30,
            documents: 4321,
            document_bytes: 100 << 20,
            first_seen_records: 321,
            first_seen_bytes: 1 << 20,
            last_bundle: Some(LastBundle {
                manifest: crate::digest::Digest::of(b"manifest"),
                created: Timestamp(1_795_000_000),
                applied: Timestamp(1_795_293_000),
            }),
            imported: vec![PackageRef::requested("registry.terraform.io/acme/null@1.2.0")],
            offline: true,
            upstreams: vec!["registry.terraform.io".to_owned()],
            missing: (0..25)
                .map(|n| PackageRef::requested(&format!("registry.terraform.io/hashicorp/aws@5.{n}.0")))
                .collect(),
            alarms: vec![
                alarm(AlarmKind::Dropped, "upstream lists it no more", None),
                alarm(AlarmKind::Republished, changed, Some(&accept)),
                alarm(AlarmKind::WaitsForAccept, changed, Some(&accept)),
            ],
        },
        since_start: Some(SinceStart {
            started: Timestamp(1_795_293_761),
            seconds: 259_200,
            requests: [
                ("hit", 99_999),
                ("miss", 1),
                ("stale", 100),
                ("revalidated", 4000),
                ("absent", 12),
                ("refused", 3),
                ("error", 9),
                ("gone", 4),
                ("passed", 5),
            ]
            .map(|(label, count)| (label.to_owned(), count))
            .into(),
            refused: [("client", 3), ("no-route", 12)].map(|(label, count)| (label.to_owned(), count)).into(),
            waiting_requests: 1,
            sent_bytes: 3 << 40,
            saved_bytes: 2 << 40,
            upstream_bytes: 1 << 40,
            fills_under_way: 2,
            upstreams: vec![
                upstream("registry.opentofu.org", vec![]),
                upstream("registry.terraform.io", vec![backoff]),
            ],
        }),
        warm_ups: vec![
            warm_up(None, Some("0123456789abcdef")),
            warm_up(Some(last_run_of(JobState::Done, None, 0)), None),
            warm_up(Some(last_run_of(JobState::Failed, None, 3)), None),
            warm_up(Some(last_run_of(JobState::Failed, Some("there is no folder \u{1b}[2J"), 1)), None),
        ],
    }
}

#[test]
fn the_status_fits_80_and_160_columns_without_losing_text() {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let unwrapped = page(&report_with_every_problem(), &host(), None);
    for width in [80, 160] {
        let shown = page(&report_with_every_problem(), &host(), Some(width));
        // Commands to paste are never wrapped.
        let lines = shown.lines().filter(|line| !line.starts_with("    larder accept"));
        let longest = lines.map(|line| line.chars().count()).max().unwrap();
        assert!(longest <= width, "{longest} of {width}:\n{shown}");
        assert!(shown.lines().all(|line| line == line.trim_end()));
        let (mut shown_words, mut all_words) = (words(&shown).concat(), words(&unwrapped).concat());
        assert_eq!(shown_words.len(), all_words.len(), "something was left out at {width}");
        (shown_words, all_words) = (shown_words.replace(' ', ""), all_words.replace(' ', ""));
        assert_eq!(shown_words, all_words);
    }
}

#[test]
fn problems_are_shown_and_refused_versions_come_first() {
    let shown = page(&report_with_every_problem(), &host(), None);
    for expected in [
        "0.1.0 (running, offline) since 2026-11-21 20:42:41 UTC, for 3 days",
        "NOT KEEPING",
        "No space left on device",
        "free space on the store's disk",
        "99999 hit, 4000 revalidated",
        "2.0 TiB (66 %)",
        "12 no-route, 3 client",
        "BACKING OFF after failures: https://releases.hashicorp.example for 42 s",
        "larder accept registry.terraform.io/a-namespace-that-is-long/a-provider-with-a-long-name@12.34.56",
        "\\u{1b}[2J",
        "1 archive without signatures",
        "25 requested while offline",
        "every 1 day: has not run yet; runs now (job 0123456789abcdef)",
        "25 archives stored, 5 of them new, 2026-11-21",
        "FAILED for 5 of 30 archives, 3 times in a row",
        "COULD NOT START: there is no folder \\u{1b}[2J",
        "… and 5 more",
    ] {
        assert!(shown.contains(expected), "{expected} is not in:\n{shown}");
    }
    assert!(shown.find("are not served") < shown.find("bytes are served"));
    assert!(!shown.contains('\u{1b}'));
}

#[test]
fn without_a_running_larder_the_status_shows_the_store_alone() {
    let report = StatusReport { since_start: None, ..report_with_every_problem() };
    let shown = page(&report, &host(), Some(80));
    assert!(shown.contains("(not running)") && shown.contains("1234 (150.0 GiB)"), "{shown}");
    assert!(!shown.contains("requests"), "{shown}");
}
