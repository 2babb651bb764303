//! `larder status`: store, clients, upstreams, warm-ups, alarms and missing packages.

use std::collections::BTreeMap;

use bytesize::ByteSize;

use super::admin_service::{ask, config_to_ask};
use super::terminal::{
    Column, TextPage, escape_for_terminal, format_seconds, format_timestamp, percent, plural, shell_word,
    width_of_stdout,
};
use super::{CommonOptions, print_json, print_line};
use crate::address::{Hostname, PackageRef};
use crate::bundle::BundleKeyIds;
use crate::jobs::job_report::JobState;
use crate::jobs::{LastRun, RecurringState};
use crate::mirror::{
    Alarm, AlarmKind, FileAmount, LastBundle, RunTotals, Status, StoreFailure, StoreState, UpstreamState, Usage,
};
use crate::policy::Approval;
use crate::protocol::admin::verdict::Verdict;
use crate::protocol::admin::{ProcessKind, RecentFailure, RecentRefusal, STATUS, SinceStart, StatusReport};

/// Maximum number of entries shown of each list.
const MAX_LISTED: usize = 20;
/// Maximum number of failed requests shown here; `larder explain` without an address shows more.
const MAX_SHOWN_FAILURES: usize = 5;

pub(super) fn run(common: &CommonOptions) -> anyhow::Result<()> {
    let config = config_to_ask(common)?;
    let report: StatusReport = ask(&config, async |larder| larder.get(STATUS).await)?;
    if common.json {
        print_json(&report);
    } else {
        print_line(&page(&report, &config.default_host(), width_of_stdout()));
    }
    Ok(())
}

/// Renders the report for a terminal of this width.
fn page(report: &StatusReport, host: &Hostname, width: Option<usize>) -> String {
    let (mirror, since) = (&report.mirror, report.since_start.as_ref());
    let mut page = TextPage::of_width(width);
    let running = match (since, mirror.offline) {
        (None, _) if mirror.usage.is_by_runs_alone() => "(`larder run` starts it for each run)".to_owned(),
        (None, _) => "(not running)".to_owned(),
        (Some(since), offline) => {
            let offline = if offline { ", offline" } else { "" };
            let purpose = if report.process == ProcessKind::Run { " for `larder run` alone" } else { "" };
            format!(
                "(running{purpose}{offline}) since {}, for {}",
                format_timestamp(since.started),
                format_seconds(since.seconds)
            )
        }
    };
    findings(&mut page, report, MAX_SHOWN_FAILURES);
    page.group("larder", &format!("{} {running}", mirror.version));
    store(&mut page, mirror);
    runs(&mut page, &mirror.usage);
    if let Some(since) = since {
        clients(&mut page, since);
        upstreams(&mut page, &since.upstreams);
    } else {
        page.group("upstreams", &mirror.upstreams.join(", "));
    }
    warm_ups(&mut page, &report.warm_ups);
    approvals(&mut page, &mirror.approvals, host);
    bundles(&mut page, &report.bundle_keys);
    let archives = plural(mirror.imported.len() as u64, "archive");
    let text = format!("{archives} without signatures: only this mirror's operator vouches for them");
    list_packages(&mut page, "imported", &text, &mirror.imported, host);
    let text = format!("{} requested while offline and not stored", mirror.missing.len());
    let missing: Vec<PackageRef> = mirror.missing.iter().map(|request| request.package.clone()).collect();
    list_packages(&mut page, "missing", &text, &missing, host);
    if !mirror.missing.is_empty() {
        page.item("`larder missing` says who asked for them, how often and when, and how they come here", None);
    }
    page.text()
}

/// The verdict, the alarms, and at most this many failed requests.
pub(super) fn findings(page: &mut TextPage, report: &StatusReport, shown: usize) {
    let Verdict { title, lines, .. } = Verdict::of(report);
    page.group("verdict", &title);
    lines.iter().for_each(|line| page.item(&line.text, None));
    alarms(page, &report.mirror.alarms);
    failures(page, report.since_start.as_ref().map_or(&[], |since| &since.failures), shown);
    let default_host = report.default_host.as_ref().map_or("", Hostname::as_str);
    refusals(page, report.since_start.as_ref().map_or(&[], |since| &since.refusals), default_host, shown);
}

/// The refused requests of the last day, each with its reason, client and count.
fn refusals(page: &mut TextPage, refusals: &[RecentRefusal], default_host: &str, shown: usize) {
    if refusals.is_empty() {
        return;
    }
    page.group("refusals", "the last of each client within a day, the newest first");
    for refusal in refusals.iter().take(shown) {
        let RecentRefusal { subject, reason, times, last, .. } = refusal;
        let what = subject.as_deref().unwrap_or("any request");
        let path = what.strip_prefix(default_host).and_then(|path| path.strip_prefix('/'));
        let what = escape_for_terminal(path.unwrap_or(what));
        page.item(&format!("{what}, for {}", escape_for_terminal(&refusal.whom())), Some(&escape_for_terminal(reason)));
        page.push_with_prefix(
            "    ",
            &format!("{}, the last at {}", plural(*times, "request"), format_timestamp(*last)),
        );
    }
    if refusals.len() > shown {
        page.item(&format!("… and {} more (`larder status --json` lists them)", refusals.len() - shown), None);
    }
}

/// The failed requests of the last day, each with its cause, remedy, client and count.
fn failures(page: &mut TextPage, failures: &[RecentFailure], shown: usize) {
    if failures.is_empty() {
        return;
    }
    page.group("failures", &format!("failed requests of the last day, for {}", plural(failures.len() as u64, "URL")));
    for failure in failures.iter().take(shown) {
        let RecentFailure { path, subject, status, cause, remedy, client, times, last, is_over, .. } = failure;
        let what = escape_for_terminal(subject.as_deref().unwrap_or(path));
        let state = if *is_over { "answered since".to_owned() } else { status.to_string() };
        page.item(&format!("{what}: {state}"), Some(&escape_for_terminal(cause)));
        let last = format_timestamp(*last);
        page.push_with_prefix("    ", &format!("{}, the last for {client} at {last}", plural(*times, "request")));
        if let Some(remedy) = remedy {
            page.push_with_prefix("    ", &escape_for_terminal(remedy));
        }
        page.command(&format!("larder explain {}", shell_word(path)));
    }
    if failures.len() > shown {
        page.item(&format!("… and {} more (`larder explain` shows them)", failures.len() - shown), None);
    }
}

fn store(page: &mut TextPage, mirror: &Status) {
    let state = match mirror.store_state {
        StoreState::Ready => "ready",
        StoreState::NotKeeping => {
            "NOT KEEPING: the last archive or document could not be stored; stored copies are served"
        }
        StoreState::ReadOnly => "READ-ONLY: nothing new is stored; stored copies are served",
        StoreState::Gone => {
            "GONE: removed, replaced or inaccessible; nothing there is read or written until it is back"
        }
    };
    page.group("store", state);
    if let Some(StoreFailure { why: reason, to_do }) = &mirror.trouble {
        page.row("why", &escape_for_terminal(reason));
        page.row("to do", to_do);
    }
    page.row("folder", &mirror.store);
    let counted = |number: u64, bytes: u64| format!("{number} ({})", ByteSize(bytes));
    page.row("archives", &counted(mirror.archives, mirror.archive_bytes));
    if mirror.owed.count > 0 {
        let owed = counted(mirror.owed.count, mirror.owed.bytes);
        page.row("owed", &format!("{owed}: the bucket does not take them; they are served from here, and sent later"));
    }
    page.row("documents", &counted(mirror.documents, mirror.document_bytes));
    if let Some(LastBundle { created, applied, .. }) = mirror.last_bundle {
        let age = format_seconds(applied.since(created).as_secs());
        page.row("bundle", &format!("made {}, applied {age} later", format_timestamp(created)));
    }
    page.row("first-seen", &counted(mirror.first_seen_records, mirror.first_seen_bytes));
    let used = percent(mirror.archive_bytes.saturating_add(mirror.document_bytes), mirror.max_size_bytes);
    let used = used.map(|percent| format!(", {percent} % of it used")).unwrap_or_default();
    page.row("limit", &format!("{}{used}", ByteSize(mirror.max_size_bytes)));
    let free = mirror.free_bytes.map_or_else(|| "unknown".to_owned(), |free| ByteSize(free).to_string());
    page.row("disk free", &free);
    page.row("index", &ByteSize(mirror.index_bytes).to_string());
}

/// The packages of all runs.
fn runs(page: &mut TextPage, usage: &Usage) {
    let Some(RunTotals { first, last, packages }) = usage.runs else { return };
    let first = format_timestamp(first);
    page.group("runs", &format!("of `larder run`, since {first}, the last with packages {}", format_timestamp(last)));
    let amount = |FileAmount { count, bytes }| format!("{} ({})", plural(count, "package"), ByteSize(bytes));
    page.row("saved", &format!("{}, from the store", amount(packages.store)));
    page.row("fetched", &format!("{}, from upstream", amount(packages.upstream)));
}

fn bundles(page: &mut TextPage, keys: &BundleKeyIds) {
    if let Some(key) = &keys.signing {
        page.group("bundles", &format!("signed by key {key}"));
    }
    if !keys.trusted.is_empty() {
        let trusted: Vec<String> = keys.trusted.iter().map(ToString::to_string).collect();
        page.group("trusted", &format!("bundles signed by key {}", trusted.join(", ")));
    }
}

fn clients(page: &mut TextPage, since: &SinceStart) {
    page.group("clients", "since the start");
    page.row("requests", &count_list(&since.requests, "none yet"));
    let saved =
        percent(since.saved_bytes, since.sent_bytes).map(|percent| format!(" ({percent} %)")).unwrap_or_default();
    page.row("served", &ByteSize(since.sent_bytes).to_string());
    page.row("saved", &format!("{}{saved}, from the store without an upstream request", ByteSize(since.saved_bytes)));
    page.row("now", &{
        let downloads = u64::try_from(since.fills_under_way).unwrap_or_default();
        let waiting = plural(since.waiting_requests, "request");
        format!("{} running, {waiting} waiting for an upstream", plural(downloads, "download"))
    });
    page.row("refused", &count_list(&since.refused, "none"));
}

/// Renders counts as `12 hit, 3 miss`, largest first.
fn count_list(counts: &BTreeMap<String, u64>, none: &str) -> String {
    let mut counts: Vec<(&String, &u64)> = counts.iter().collect();
    counts.sort_by(|(_, left), (_, right)| right.cmp(left));
    let listed: Vec<String> = counts.into_iter().map(|(label, count)| format!("{count} {label}")).collect();
    if listed.is_empty() { none.to_owned() } else { listed.join(", ") }
}

fn upstreams(page: &mut TextPage, upstreams: &[UpstreamState]) {
    page.group("upstreams", "since the start");
    let row = |upstream: &UpstreamState| {
        let UpstreamState { host, requests, failed, bytes, refused, left_alone } = upstream;
        let counts = [requests, failed, refused].map(u64::to_string);
        let [requests, failed, refused] = counts;
        let origins =
            left_alone.iter().map(|backoff| format!("{} for {}", backoff.origin, format_seconds(backoff.seconds)));
        let state = match origins.collect::<Vec<_>>() {
            origins if origins.is_empty() => String::new(),
            origins => format!("BACKING OFF after failures: {}", origins.join(", ")),
        };
        ([host.clone(), requests, failed, refused, ByteSize(*bytes).to_string()], state)
    };
    let rows: Vec<_> = upstreams.iter().map(row).collect();
    let [requests, failed, refused, received] = ["requests", "failed", "refused", "received"].map(Column::Right);
    page.columns([Column::Left(""), requests, failed, refused, received], &rows);
}

fn warm_ups(page: &mut TextPage, warm_ups: &[RecurringState]) {
    if warm_ups.is_empty() {
        return;
    }
    page.group("warm-ups", "recurring ([[warm]])");
    for warm_up in warm_ups.iter().take(MAX_LISTED) {
        let RecurringState { targets, every_seconds, running, running_on, last, next } = warm_up;
        let schedule = match (running, running_on, next) {
            (Some(job), _, _) => format!("; runs now (job {job})"),
            (None, Some(url), _) => format!("; runs now on {}", escape_for_terminal(url)),
            (None, None, Some(next)) => format!("; due {}", format_timestamp(*next)),
            (None, None, None) => String::new(),
        };
        let last = match last {
            None => "has not run yet".to_owned(),
            Some(last) => last_run(last),
        };
        let targets: Vec<String> = targets.iter().map(|target| escape_for_terminal(target)).collect();
        page.item(&targets.join(", "), Some(&format!("every {}: {last}{schedule}", format_seconds(*every_seconds))));
    }
    and_more(page, warm_ups.len());
}

fn approvals(page: &mut TextPage, approvals: &[Approval], host: &Hostname) {
    if approvals.is_empty() {
        return;
    }
    page.group(
        "approved",
        &format!("{} that rules would hold back while too young", plural(approvals.len() as u64, "version")),
    );
    for approval in approvals.iter().take(MAX_LISTED) {
        let default = format!("{host}/");
        let address = approval.address.strip_prefix(&default).unwrap_or(&approval.address);
        page.item(&format!("{address}@{}", approval_text(approval)), None);
    }
    and_more(page, approvals.len());
}

/// The approval of a version: `1.2.0 until 2026-12-31 23:59:59 UTC by Ada: fixes CVE-2026-1234`.
pub(super) fn approval_text(approval: &Approval) -> String {
    let Approval { version, until, reason, by, from_bundle, .. } = approval;
    let until = until.map(|until| format!(" until {}", format_timestamp(until))).unwrap_or_default();
    let by = by.as_ref().map(|by| format!(" by {}", escape_for_terminal(by))).unwrap_or_default();
    let from = if *from_bundle { " (came with a bundle)" } else { "" };
    format!("{version}{until}{by}{from}: {}", escape_for_terminal(reason))
}

fn last_run(last: &LastRun) -> String {
    let LastRun { ended, state, items, error, failures, .. } = last;
    let outcome = match (state, error) {
        (_, Some(reason)) => format!("COULD NOT START: {}", escape_for_terminal(reason)),
        (JobState::Failed, None) => format!("FAILED for {} of {}", items.failed, plural(items.all, "archive")),
        (JobState::Cancelled, None) => "was cancelled".to_owned(),
        (JobState::Done | JobState::Running, None) => {
            format!("{} stored, {} of them new", plural(items.already_stored + items.fetched, "archive"), items.fetched)
        }
    };
    let repeated = if *failures > 1 { format!(", {failures} times in a row") } else { String::new() };
    format!("{outcome}{repeated}, {}", format_timestamp(*ended))
}

fn alarm_text(kind: AlarmKind) -> &'static str {
    match kind {
        AlarmKind::WaitsForAccept => "changed upstream, the new bytes are not served",
        AlarmKind::Republished => "changed upstream, the new bytes are served",
        AlarmKind::Moved => "moved upstream, the new tree is not served",
        AlarmKind::NewKey => "signed by a new key, served",
        AlarmKind::SignatureLost => "no longer signed, not served",
        AlarmKind::Dropped => "dropped upstream, served",
        AlarmKind::DamagedRecord => "first-seen record damaged, not served",
        AlarmKind::ImportedDiffers => "differs from the imported archive, served",
    }
}

fn alarms(page: &mut TextPage, alarms: &[Alarm]) {
    if alarms.is_empty() {
        return;
    }
    page.group("alarms", &alarms.len().to_string());
    // Alarms about refused versions come first.
    let (refusing, others): (Vec<&Alarm>, Vec<&Alarm>) = alarms.iter().partition(|alarm| alarm.kind.refuses());
    for alarm in refusing.iter().chain(&others).take(MAX_LISTED) {
        let Alarm { kind, address, version, detail, since, resolve, evidence } = alarm;
        let text = format!("{}: {}", alarm_text(*kind), escape_for_terminal(detail));
        page.item(&format!("{address} {version}, {}", format_timestamp(*since)), Some(&text));
        if let Some(command) = resolve {
            page.item("if the publisher released this:", None);
            page.command(command);
        }
        if let Some(evidence) = evidence {
            page.item(&format!("evidence {evidence}"), None);
        }
    }
    and_more(page, alarms.len());
}

/// Lists packages under a heading; nothing where there are none.
fn list_packages(page: &mut TextPage, heading: &str, text: &str, packages: &[PackageRef], host: &Hostname) {
    if packages.is_empty() {
        return;
    }
    page.group(heading, text);
    for package in packages.iter().take(MAX_LISTED) {
        page.item(&escape_for_terminal(&package.without(host).to_string()), None);
    }
    and_more(page, packages.len());
}

fn and_more(page: &mut TextPage, total: usize) {
    let hidden = total.saturating_sub(MAX_LISTED);
    if hidden > 0 {
        page.item(&format!("… and {hidden} more (--json lists them)"), None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bundle::BundleKeyIds;
    use crate::clock::Timestamp;
    use crate::config::StoreNaming;
    use crate::jobs::job_report::ItemCounts;
    use crate::mirror::{MissingRequest, OriginBackoff, OwedAmount, PackageAmounts, Served};
    use crate::protocol::admin::RefusalKind;

    fn host() -> Hostname {
        Hostname::parse("registry.terraform.io").unwrap()
    }

    fn refusal(kind: RefusalKind, subject: Option<&str>, name: Option<&str>, times: u64) -> RecentRefusal {
        RecentRefusal {
            kind,
            subject: subject.map(str::to_owned),
            reason: "it is not among the addresses that this \u{1b}[2J client may use".to_owned(),
            rules: Vec::new(),
            status: 421,
            client: "10.0.0.9".to_owned(),
            name: name.map(str::to_owned),
            times,
            first: Timestamp(1_795_293_761),
            last: Timestamp(1_795_293_770),
        }
    }

    fn warm_up(last: Option<LastRun>, running: Option<&str>) -> RecurringState {
        let targets = vec![
            "hashicorp/aws@~> 5.0".to_owned(),
            "/etc/larder/configurations/a-folder-with-a-long-name/production".to_owned(),
        ];
        let next = running.is_none().then_some(Timestamp(1_795_300_000));
        RecurringState {
            targets,
            every_seconds: 86_400,
            running: running.map(str::to_owned),
            running_on: None,
            last,
            next,
        }
    }

    fn last_run_of(state: JobState, error: Option<&str>, failures: u32) -> LastRun {
        let items = ItemCounts { all: 30, already_stored: 20, fetched: 5, failed: 5, cancelled: 0 };
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
            evidence: None,
        };
        let accept = format!("larder accept {address}@12.34.56");
        let trouble = StoreFailure {
            why: "could not write /var/lib/larder/v1/staging/record-1: No space left on device (os error 28)"
                .to_owned(),
            to_do: "free space on the store's disk; larder continues by itself".to_owned(),
        };
        let changed = "its proof set gives terraform-provider-null_1.2.0\u{1b}[2J_linux_amd64.zip another SHA-256";
        StatusReport {
            bundle_keys: BundleKeyIds::default(),
            process: ProcessKind::Service,
            store_named_by: StoreNaming::Configuration,
            config_file: Some("/etc/larder/mirror.toml".to_owned()),
            default_host: Some(host()),
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
                owed: OwedAmount { count: 3, bytes: 30 << 20, refusal: Some("it is full".to_owned()) },
                first_seen_records: 321,
                first_seen_bytes: 1 << 20,
                last_bundle: Some(LastBundle {
                    manifest: crate::digest::Digest::of(b"manifest"),
                    created: Timestamp(1_795_000_000),
                    applied: Timestamp(1_795_293_000),
                }),
                imported: vec![PackageRef::requested("registry.terraform.io/acme/null@1.2.0")],
                usage: Usage {
                    served: Served::At(Timestamp(1_795_293_761)),
                    runs: Some(RunTotals {
                        first: Timestamp(1_795_200_000),
                        last: Timestamp(1_795_293_000),
                        packages: PackageAmounts {
                            store: FileAmount { count: 41, bytes: 1_200_000_000 },
                            upstream: FileAmount { count: 1, bytes: 90_000_000 },
                        },
                    }),
                },
                fleet_alarms: Vec::new(),
                approvals: Vec::new(),
                offline: true,
                upstreams: vec!["registry.terraform.io".to_owned()],
                missing: (0..25)
                    .map(|n| MissingRequest {
                        package: PackageRef::requested(&format!("registry.terraform.io/hashicorp/aws@5.{n}.0")),
                        times: 3,
                        last: Timestamp(1_795_293_000),
                        client: Some("10.0.0.7".to_owned()),
                    })
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
                refusals: vec![
                    refusal(RefusalKind::Policy, Some("registry.terraform.io/acme/evil"), Some("payments"), 16),
                    refusal(RefusalKind::Token, None, None, 1),
                ],
                lost_audit_lines: 0,
                failures: vec![RecentFailure {
                    path: "/registry/registry.terraform.io/v1/providers/hashicorp/aws/6.0.0/download/linux/amd64"
                        .to_owned(),
                    subject: Some("the proof set of hashicorp/aws 6.0.0 (linux_amd64)".to_owned()),
                    status: 502,
                    cause: "SHA256SUMS is signed by \u{1b}[2J another key".to_owned(),
                    remedy: Some("not stored, not served; its publisher or registry must mend it".to_owned()),
                    client: "10.0.0.7".to_owned(),
                    times: 16,
                    first: Timestamp(1_795_293_761),
                    last: Timestamp(1_795_293_770),
                    is_over: false,
                }],
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
            let lines = shown.lines().filter(|line| !line.starts_with("    larder "));
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
            "verdict      The store needs you\n  The last archive or document could not be stored.",
            "16 requests, the last for 10.0.0.7 at 2026-11-21 20:42:50 UTC",
            "    larder explain /registry/registry.terraform.io/v1/providers/hashicorp/aws/6.0.0/download/linux/amd64\n",
            "NOT KEEPING",
            "No space left on device",
            "free space on the store's disk",
            "99999 hit, 4000 revalidated",
            "2.0 TiB (66 %)",
            "12 no-route, 3 client",
            "BACKING OFF after failures: https://releases.hashicorp.example for 42 s",
            "larder accept registry.terraform.io/a-namespace-that-is-long/a-provider-with-a-long-name@12.34.56",
            "\\u{1b}[2J",
            "41 packages (1.1 GiB), from the store",
            "1 package (85.8 MiB), from upstream",
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
}
