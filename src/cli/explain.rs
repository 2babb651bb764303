//! `larder explain`: what a client gets for an address or a URL, and why. The cause comes first, then the chain of
//! requests, then the facts.

use std::time::Duration;

use anstyle::{AnsiColor, Style};
use bytesize::ByteSize;
use clap::Args;
use serde::Serialize;

use super::admin_service::{ask, config_to_ask};
use super::list::proof_text;
use super::terminal::{
    TextPage, escape_for_terminal, format_age, format_seconds, plural, stdout_has_colour, styled, width_of_stdout,
};
use super::{CommonOptions, print_json, print_line, status};
use crate::address::{Hostname, Platform, WaitingVersion};
use crate::clock::Timestamp;
use crate::config::Config;
use crate::mirror::{Alarm, AnswerFacts, PackageArchive, StoredCopy, StoredVersion, UpstreamRules};
use crate::protocol::admin::explain::{
    ExpectedAnswer, ExplainReport, ExplainStep, Rule, StepKind, Verdict, VersionChoice, VersionSummary, explain_path,
};
use crate::protocol::admin::{RecentFailure, STATUS, StatusReport};

/// The most versions that are shown.
const MAX_SHOWN: usize = 10;
/// Longer lines are hard to read on any terminal.
const MAX_WIDTH: usize = 120;
/// Column where the text about a step begins.
const STEP_MARGIN: &str = "           ";

#[derive(Debug, Args)]
pub(super) struct Explain {
    /// `[HOST/]NAMESPACE/TYPE[@VERSION]`, `[HOST/]NAMESPACE/NAME/SYSTEM[@VERSION]`, or one of larder's URLs, absolute or as
    /// a path [default: all that failed in the last day]
    #[arg(value_name = "ADDRESS|URL")]
    what: Option<String>,
    /// The platform of the client [default: that of this machine]
    #[arg(long, value_name = "OS_ARCH", value_parser = Platform::parse)]
    platform: Option<Platform>,
}

impl Explain {
    pub(super) fn run(self, common: &CommonOptions) -> anyhow::Result<()> {
        let config = config_to_ask(common)?;
        let Some(what) = &self.what else { return print_failures(&config, common.json) };
        let platform = self.platform.unwrap_or_else(Platform::of_this_machine);
        let path = explain_path(what, Some(&platform));
        let report: ExplainReport = ask(&config, async |larder| larder.get(&path).await)?;
        if common.json {
            print_json(&report);
        } else {
            let width = width_of_stdout().map(|columns| columns.min(MAX_WIDTH));
            let text = page(&report, &config.default_host(), width);
            print_line(&if stdout_has_colour() { coloured(&text) } else { text });
        }
        Ok(())
    }
}

/// The alarms and the failed requests, in JSON.
#[derive(Serialize)]
struct Findings<'a> {
    alarms: &'a [Alarm],
    failures: &'a [RecentFailure],
}

/// Prints the verdict, the alarms and the failed requests of the last day.
fn print_failures(config: &Config, json: bool) -> anyhow::Result<()> {
    let report: StatusReport = ask(config, async |larder| larder.get(STATUS).await)?;
    if json {
        let failures = report.since_start.as_ref().map_or(&[][..], |since| &since.failures);
        print_json(&Findings { alarms: &report.mirror.alarms, failures });
        return Ok(());
    }
    let mut page = TextPage::of_width(width_of_stdout().map(|columns| columns.min(MAX_WIDTH)));
    status::findings(&mut page, &report, usize::MAX);
    print_line(&page.text());
    Ok(())
}

/// Renders the report for a terminal of this width.
fn page(report: &ExplainReport, host: &Hostname, width: Option<usize>) -> String {
    let mut page = TextPage::with_whole_words(width);
    let subject = escape_for_terminal(&report.package.without(host).to_string());
    let decisive = report.decided_by.and_then(|index| report.steps.get(index));
    let verdict = match &report.choice {
        Some(VersionChoice::None { .. }) => "NO VERSION that a client would choose",
        _ => &verdict_text(report.verdict, decisive),
    };
    page.push_with_prefix("", &format!("{subject}: {verdict}"));
    match (&report.choice, decisive) {
        (Some(VersionChoice::None { reason }), _) => page.row("cause", &escape_for_terminal(reason)),
        (_, Some(step)) => cause(&mut page, step, report.now),
        (_, None) => {}
    }
    if let (Some(VersionChoice::Client { listed }), Some(version)) = (&report.choice, &report.package.version) {
        let of = plural(*listed as u64, "listed version");
        let text = format!("`init` without a lock file chooses {version} now, of {of}");
        page.row("version", &escape_for_terminal(&text));
    }
    if let Some(waiting) = &report.waiting {
        let text = format!("{} is {waiting} ([network] sealed_platforms)", waiting.version);
        page.row("waits", &escape_for_terminal(&text));
    }
    for (index, advice) in report.to_do.iter().enumerate() {
        page.row(if index == 0 { "to do" } else { "" }, &escape_for_terminal(&advice.text));
        if let Some(command) = &advice.command {
            page.push(format!("{STEP_MARGIN}    {}", escape_for_terminal(command)));
        }
    }
    for alarm in &report.alarms {
        let since = format_age(report.now.since(alarm.since));
        page.row("alarm", &escape_for_terminal(&format!("{}: {} ({since})", alarm.version, alarm.detail)));
        if let Some(evidence) = &alarm.evidence {
            page.row("", &format!("evidence {evidence}"));
        }
    }
    for approval in &report.approvals {
        page.row("approved", &status::approval_text(approval));
    }
    page.push(String::new());
    page.push_with_prefix("", "What a client asks, in its order, if upstream answers as it last did:");
    for (index, step) in report.steps.iter().enumerate().filter(|(_, step)| is_shown(step, &report.steps)) {
        chain_step(&mut page, step, report.decided_by == Some(index), report.now);
    }
    if let Some(versions) = &report.versions {
        let is_whole = report.package.version.is_none() || matches!(report.choice, Some(VersionChoice::Client { .. }));
        if is_whole || decisive.is_some_and(|step| step.rule == Rule::NotListed) {
            version_summary(&mut page, versions);
        }
    }
    if let Some(rules) = &report.rules {
        page.push(String::new());
        page.push_with_prefix("", &rules_text(rules));
    }
    page.text()
}

fn verdict_text(verdict: Verdict, decisive: Option<&ExplainStep>) -> String {
    let answer = decisive.map(|step| &step.answer);
    match (verdict, answer) {
        (Verdict::Refused, Some(ExpectedAnswer::Refused { status, .. })) => format!("REFUSED with {status}"),
        (Verdict::Refused, _) => "NOT LISTED, so no client finds it".to_owned(),
        (Verdict::AsksUpstream, _) => "FETCHED from upstream when a client asks".to_owned(),
        (Verdict::Elsewhere, _) => "PASSED ON to a source that the client fetches itself".to_owned(),
        (Verdict::Served, None) => "SERVED from the store alone".to_owned(),
        (Verdict::Served, Some(_)) => "SERVED from the store".to_owned(),
    }
}

/// The reason for the verdict.
fn cause(page: &mut TextPage, step: &ExplainStep, now: Timestamp) {
    match &step.answer {
        ExpectedAnswer::Refused { cause, status, reason, remedy } => {
            page.row("cause", &escape_for_terminal(cause));
            if let Some(remedy) = remedy {
                page.row("remedy", &escape_for_terminal(remedy));
            }
            page.row("printed", &format!("{status} {}", escape_for_terminal(reason)));
        }
        _ => page.row("because", &format!("{}: {}", step.step.label(), why(step, now))),
    }
}

/// The network mirror is shown where its answer differs from the registry's, or where its URL was requested.
fn is_shown(step: &ExplainStep, steps: &[ExplainStep]) -> bool {
    let is_of_registry = |step: &&ExplainStep| matches!(step.step, StepKind::VersionList | StepKind::DownloadDocument);
    let registry = || steps.iter().rfind(is_of_registry);
    let is_same = |other: &ExplainStep| mark(step) == mark(other);
    step.step != StepKind::NetworkMirror || step.requested || !registry().is_some_and(is_same)
}

/// The state of a step in a word.
fn mark(step: &ExplainStep) -> &'static str {
    match (&step.answer, step.rule) {
        (ExpectedAnswer::Refused { .. }, _) => "REFUSED",
        (ExpectedAnswer::AsksUpstream, _) => "fetch",
        (ExpectedAnswer::Unknown, _) => "-",
        (ExpectedAnswer::Served { .. }, rule) => match rule {
            Rule::Gone => "gone",
            Rule::NotStored => "fetch",
            Rule::NotListed => "ABSENT",
            Rule::Elsewhere => "passed",
            Rule::Offline | Rule::LeftAlone | Rule::LastAnswerFailed | Rule::LastAnswerLate | Rule::NotConfirmed => {
                "stale"
            }
            _ => "ok",
        },
    }
}

fn chain_step(page: &mut TextPage, step: &ExplainStep, is_decisive: bool, now: Timestamp) {
    let answer = match &step.answer {
        ExpectedAnswer::Served { status, cache_status } => {
            let outcome = cache_status.strip_prefix("larder; ").unwrap_or(cache_status);
            format!("{status}  {}", escape_for_terminal(outcome))
        }
        ExpectedAnswer::Refused { status, .. } if is_decisive => format!("{status}  for the cause above"),
        ExpectedAnswer::Refused { status, reason, .. } => format!("{status}  {}", escape_for_terminal(reason)),
        ExpectedAnswer::AsksUpstream => "asks upstream".to_owned(),
        ExpectedAnswer::Unknown => String::new(),
    };
    let requested = if step.requested { "  (the URL in question)" } else { "" };
    page.push(String::new());
    page.push_with_prefix(&format!("  {:9}{:19}", mark(step), step.step.label()), &format!("{answer}{requested}"));
    page.push_with_prefix(STEP_MARGIN, &why(step, now));
    if let Some(proof) = step.facts.stored.as_ref().and_then(|stored| stored.proof.as_ref()) {
        let mut text = proof_text(&proof.verified);
        proof.warnings.iter().for_each(|warning| text.push_str(&format!("; {}", escape_for_terminal(warning))));
        if proof.predecessor_served {
            text.push_str(
                "; the set before it is served where upstream cannot be asked, because only its archive is stored",
            );
        }
        page.push_with_prefix(STEP_MARGIN, &text);
    }
    step.facts.archives.iter().for_each(|archive| page.push_with_prefix(STEP_MARGIN, &archive_text(archive, now)));
    if let Some(last) = &step.facts.last_answer {
        let is_cause =
            |failure: &String| matches!(&step.answer, ExpectedAnswer::Refused { cause, .. } if cause == failure);
        let text = match &last.failure {
            Some(failure) if is_cause(failure) => format!("upstream's last answer, {}", format_age(now.since(last.at))),
            _ => answer_text(last, now),
        };
        page.push_with_prefix(STEP_MARGIN, &text);
    }
    if let Some(url) = step.url.as_ref().filter(|url| !url.starts_with('/')) {
        page.push(format!("{STEP_MARGIN}curl -sSi '{}'", escape_for_terminal(url)));
    }
}

fn archive_text(archive: &PackageArchive, now: Timestamp) -> String {
    let proof = proof_text(&archive.verified);
    let [used, verified] = [archive.last_use, archive.last_verified].map(|time| format_age(now.since(time)));
    let size = ByteSize(archive.bytes);
    format!("{size}, {proof}, used {used}, read in full {verified}, SHA-256 {:.16}", archive.sha256.to_string())
}

/// Upstream's last answer.
fn answer_text(last: &AnswerFacts, now: Timestamp) -> String {
    let age = format_age(now.since(last.at));
    let took = Duration::from_millis(last.milliseconds);
    match &last.failure {
        Some(failure) if last.broke_off => {
            format!("upstream, {age}: the body broke off after the status line: {}", escape_for_terminal(failure))
        }
        Some(failure) => format!("upstream, {age}: {}", escape_for_terminal(failure)),
        None => format!("upstream, {age}: a good answer after {:.1} s", took.as_secs_f32()),
    }
}

/// The reason for the answer of a step.
fn why(step: &ExplainStep, now: Timestamp) -> String {
    let stored = step.facts.stored.as_ref();
    let confirmed = stored.map(|copy| confirmed_text(copy, now)).unwrap_or_default();
    let pause = step.facts.left_alone.as_ref();
    match step.rule {
        Rule::Fresh => match stored.map(|copy| copy.fresh_until.since(now).as_secs()) {
            Some(seconds @ 1..) => format!("stored and fresh for {}; {confirmed}", format_seconds(seconds)),
            Some(0) | None => "made from what is stored".to_owned(),
        },
        Rule::Stored => "stored; an archive never ages".to_owned(),
        Rule::Revalidated => format!("stored and no longer fresh: upstream is asked first; {confirmed}"),
        Rule::Offline if matches!(step.answer, ExpectedAnswer::Refused { .. }) => {
            "not stored, and larder is offline".to_owned()
        }
        Rule::Offline => format!("larder is offline, so nothing is revalidated; {confirmed}"),
        Rule::LeftAlone => {
            let (origin, seconds) = pause.map_or(("its origin", 0), |pause| (pause.origin.as_str(), pause.seconds));
            let pause = format_seconds(seconds);
            format!(
                "stored and no longer fresh; {} is left alone for {pause} after failures; {confirmed}",
                escape_for_terminal(origin)
            )
        }
        Rule::LastAnswerFailed if stored.is_some() => {
            format!("stored and no longer fresh, and upstream's last answer was a failure; {confirmed}")
        }
        Rule::LastAnswerFailed => "not stored, and upstream's last answer was a failure".to_owned(),
        Rule::Policy => "refused by a policy of this mirror".to_owned(),
        Rule::NotVerified => "not stored, and what upstream sent does not verify".to_owned(),
        Rule::LastAnswerLate if stored.is_some() => {
            format!("stored and no longer fresh, and upstream answers later than a client waits; {confirmed}")
        }
        Rule::LastAnswerLate => "not stored, and upstream answers later than a client waits".to_owned(),
        Rule::NotConfirmed => format!("stored and no longer fresh, and upstream cannot be asked for it; {confirmed}"),
        Rule::Gone => format!("upstream has deleted it; the stored copy stays (keep_gone); {confirmed}"),
        Rule::NotStored => "not stored: fetched from upstream when a client asks".to_owned(),
        Rule::NotListed if matches!(step.answer, ExpectedAnswer::Served { .. }) => {
            format!("this answer does not name it, so no client asks for it; {confirmed}")
                .trim_end_matches("; ")
                .to_owned()
        }
        Rule::NotListed => "upstream does not have it".to_owned(),
        Rule::WaitsForAccept => "changed since it was first verified; the change waits for `larder accept`".to_owned(),
        Rule::Elsewhere if matches!(step.answer, ExpectedAnswer::Refused { .. }) => {
            "at a source that larder cannot fetch, and larder is offline".to_owned()
        }
        Rule::Elsewhere => "at a source that larder cannot fetch; clients fetch it there".to_owned(),
        Rule::NoRoute => "none of larder's URLs, or a host that is no upstream here".to_owned(),
        Rule::Own => "a limit or a failure of larder itself".to_owned(),
        Rule::StepBefore => "its URL is in the answer before".to_owned(),
    }
}

fn confirmed_text(copy: &StoredCopy, now: Timestamp) -> String {
    let age = format_age(now.since(copy.checked));
    match (copy.checked, copy.from_bundle) {
        (Timestamp(0), _) => "upstream has not confirmed it".to_owned(),
        (_, true) => format!("confirmed {age} by the sender of a bundle"),
        (_, false) => format!("confirmed {age}"),
    }
}

fn version_summary(page: &mut TextPage, versions: &VersionSummary) {
    page.push(String::new());
    let listed = match (versions.listed, &versions.newest) {
        (Some(listed), Some(newest)) => {
            format!("{}, the newest is {}", plural(listed as u64, "listed version"), escape_for_terminal(newest))
        }
        (Some(_), None) => "an empty list".to_owned(),
        (None, _) => "no list".to_owned(),
    };
    let stored = versions.stored_versions;
    page.push_with_prefix("", &format!("Versions: {listed}; {stored} can be installed from the store."));
    for hidden in &versions.hidden {
        page.push_with_prefix("  ", &format!("hidden: {}", escape_for_terminal(hidden)));
    }
    for StoredVersion { version, platforms, waits_for } in versions.facts.stored.iter().take(MAX_SHOWN) {
        let platforms = match waits_for.is_empty() {
            true => platforms.join(", "),
            false => WaitingVersion::sentence(platforms, waits_for),
        };
        page.push_with_prefix(&format!("  {:14} ", escape_for_terminal(version)), &escape_for_terminal(&platforms));
    }
    if stored > MAX_SHOWN {
        page.item(&format!("… and {} more (`larder list` shows them)", stored - MAX_SHOWN), None);
    }
    for (title, versions) in [
        ("dropped by upstream, and still listed", &versions.facts.dropped),
        ("listed by upstream, and no version that larder can read", &versions.facts.unreadable),
    ] {
        let shown: Vec<String> = versions.iter().take(MAX_SHOWN).map(|version| escape_for_terminal(version)).collect();
        if !shown.is_empty() {
            page.push_with_prefix("  ", &format!("{title}: {}", shown.join(", ")));
        }
    }
}

fn rules_text(rules: &UpstreamRules) -> String {
    let UpstreamRules { verification, keep_gone, offline, sealed_platforms } = rules;
    let mut parts = vec![format!("verification = {verification}"), format!("keep_gone = {keep_gone}")];
    if *offline {
        parts.push("offline".to_owned());
    }
    if !sealed_platforms.is_empty() {
        parts.push(format!("sealed_platforms = {}", sealed_platforms.join(" ")));
    }
    format!("Rules: {}", parts.join(", "))
}

/// Colours the marks of the steps and the verdict of a laid out page.
fn coloured(text: &str) -> String {
    let colour = |colour: AnsiColor| Style::new().fg_color(Some(colour.into()));
    let styles = [
        ("REFUSED", colour(AnsiColor::Red).bold()),
        ("NOT LISTED", colour(AnsiColor::Red).bold()),
        ("ABSENT", colour(AnsiColor::Red).bold()),
        ("FETCHED", colour(AnsiColor::Yellow).bold()),
        ("PASSED ON", colour(AnsiColor::Yellow).bold()),
        ("SERVED", colour(AnsiColor::Green).bold()),
        ("fetch", colour(AnsiColor::Yellow)),
        ("stale", colour(AnsiColor::Yellow)),
        ("gone", colour(AnsiColor::Yellow)),
        ("passed", colour(AnsiColor::Yellow)),
        ("ok", colour(AnsiColor::Green)),
    ];
    let coloured_line = |(number, line): (usize, &str)| {
        let is_mark = |mark: &str| line.strip_prefix("  ").is_some_and(|line| line.starts_with(&format!("{mark} ")));
        let style =
            styles.iter().find(|(mark, _)| is_mark(mark) || (number == 0 && line.contains(&format!(": {mark}"))));
        match style {
            Some((mark, style)) => styled(line, mark, *style),
            None if line.trim_start().starts_with("curl ") => {
                let dimmed = Style::new().dimmed();
                styled(line, line.trim_start(), dimmed)
            }
            None => line.to_owned(),
        }
    };
    text.lines().enumerate().map(coloured_line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::super::terminal::is_plain;
    use super::*;
    use crate::address::PackageRef;
    use crate::mirror::{ObjectFacts, OriginBackoff, SetProof, VerifiedBy};
    use crate::protocol::admin::explain::Advice;

    const NOW: Timestamp = Timestamp(1_795_300_000);

    fn step(kind: StepKind, answer: ExpectedAnswer, rule: Rule, facts: ObjectFacts) -> ExplainStep {
        let url = Some(format!("https://mirror.example/{}", "a-long-segment/".repeat(8)));
        ExplainStep { step: kind, url, requested: false, answer, rule, facts }
    }

    fn report() -> ExplainReport {
        let served = || ExpectedAnswer::Served { status: 200, cache_status: "larder; hit; detail=stale".to_owned() };
        let cause = "SHA256SUMS is signed by \u{1b}[2Ja key 1F743E6D3BAB3135, which the registry does not list";
        let refused = ExpectedAnswer::Refused {
            status: 502,
            reason: format!("larder: {cause}; not stored"),
            cause: cause.to_owned(),
            remedy: Some("its publisher or registry must mend it, and until then nothing of it is stored".to_owned()),
        };
        let proof =
            SetProof { verified: VerifiedBy::NoKeys, warnings: vec!["it is old".to_owned()], predecessor_served: true };
        let stored = StoredCopy {
            fetched: Timestamp(1_795_200_000),
            checked: Timestamp(1_795_290_000),
            fresh_until: Timestamp(1_795_290_300),
            gone: false,
            from_bundle: false,
            proof: Some(proof),
        };
        let failure = Some("https://registry.terraform.io answered 503".to_owned());
        let facts = ObjectFacts {
            stored: Some(stored),
            archives: Vec::new(),
            last_answer: Some(AnswerFacts { at: Timestamp(1_795_299_000), milliseconds: 7, failure, broke_off: false }),
            left_alone: Some(OriginBackoff { origin: "https://registry.terraform.io".to_owned(), seconds: 99 }),
            elsewhere: false,
        };
        let unknown = ExplainStep {
            url: None,
            ..step(StepKind::Archive, ExpectedAnswer::Unknown, Rule::StepBefore, ObjectFacts::default())
        };
        ExplainReport {
            package: PackageRef::requested("registry.terraform.io/hashicorp/aws@5.1.0"),
            choice: Some(VersionChoice::Request),
            now: NOW,
            verdict: Verdict::Refused,
            decided_by: Some(1),
            rules: Some(UpstreamRules {
                verification: "signature".to_owned(),
                keep_gone: true,
                offline: false,
                sealed_platforms: vec!["linux_amd64".to_owned()],
            }),
            steps: vec![
                step(StepKind::VersionList, served(), Rule::LeftAlone, facts),
                step(StepKind::DownloadDocument, refused, Rule::NotVerified, ObjectFacts::default()),
                unknown,
                step(StepKind::NetworkMirror, served(), Rule::NotListed, ObjectFacts::default()),
            ],
            waiting: None,
            versions: None,
            approvals: Vec::new(),
            alarms: Vec::new(),
            to_do: vec![Advice {
                text: "ask again:".to_owned(),
                command: Some("larder refresh hashicorp/aws".to_owned()),
            }],
        }
    }

    #[test]
    fn the_page_fits_80_and_120_columns_and_controls_no_terminal() {
        let host = Hostname::parse("registry.terraform.io").unwrap();
        let unwrapped = page(&report(), &host, None);
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        for width in [80, 120] {
            let text = page(&report(), &host, Some(width));
            // A command to paste is never wrapped.
            let mut lines = text.lines().filter(|line| !line.trim_start().starts_with("curl "));
            assert!(lines.all(|line| line.chars().count() <= width && line == line.trim_end()), "{text}");
            assert!(text.chars().all(|c| c == '\n' || is_plain(c)), "{text}");
            assert_eq!(words(&text), words(&unwrapped));
        }
        for expected in [
            "hashicorp/aws 5.1.0: REFUSED with 502\n  cause      SHA256SUMS is signed by \\u{1b}[2Ja key",
            "ask again:\n               larder refresh hashicorp/aws\n",
            "  stale    version list       200  hit; detail=stale\n           stored and no longer fresh; \
             https://registry.terraform.io is left alone for 1 min after failures; confirmed 2 h ago",
            "upstream, 16 min ago: https://registry.terraform.io answered 503",
            "checksums, no key listed; it is old; the set before it",
            "  ABSENT   network mirror",
        ] {
            assert!(unwrapped.contains(expected), "{expected} is not in:\n{unwrapped}");
        }
        let coloured = coloured(&unwrapped);
        assert!(coloured.lines().next().unwrap().contains("\u{1b}[1m\u{1b}[31mREFUSED\u{1b}[0m"), "{coloured}");
        assert_eq!(anstyle_free(&coloured), unwrapped);
    }

    /// The text without the sequences that colour it.
    fn anstyle_free(text: &str) -> String {
        let mut pieces = text.split("\u{1b}[");
        let first = pieces.next().unwrap_or_default().to_owned();
        pieces.fold(first, |text, piece| text + piece.split_once('m').map_or("", |(_, rest)| rest))
    }
}
