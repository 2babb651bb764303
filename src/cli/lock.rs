//! `larder lock`: completes lock files for every platform.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::{Args, ValueHint};
use serde::Serialize;

use super::admin_service::{StoreNeed, config_to_ask, with_larder};
use super::order::{OrderOptions, address_request};
use super::terminal::{TextPage, escape_for_terminal, plural, this_command, width_of_stdout};
use super::warm::{WarmOutput, say_where_it_fetches, warm_with};
use super::{
    CaughtSignals, CommonOptions, Interrupted, block_on, catch_file_size_signal, print_error, print_json, print_line,
};
use crate::address::{Hostname, PackageRef, Platform};
use crate::config::Config;
use crate::http::admin_client::AdminClient;
use crate::jobs::job_report::{ItemState, Job, JobItem, JobState};
use crate::jobs::{LockFileReport, LockFileState, LockReport};
use crate::protocol::admin::LOCK;
use crate::protocol::admin::order::OrderRequest;
use crate::requirements::lock_file::LockChange;
use crate::requirements::{FileContents, UnavailableItem, disk};

/// The most warm-ups of one command: while the first one runs, upstream may list a newer version.
const MAX_WARM_UPS: usize = 3;

#[derive(Debug, Args)]
pub(super) struct LockCommand {
    /// Folder in which init runs, or with such folders below it [default: .]
    #[arg(value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    folders: Vec<PathBuf>,
    #[command(flatten)]
    options: OrderOptions,
    /// Write nothing: print what the lock files lack, and exit with 3 if they lack anything
    #[arg(long)]
    check: bool,
    /// Lock the newest versions that the constraints allow, as `init -upgrade` does
    #[arg(long)]
    upgrade: bool,
}

/// The JSON of this command: the report as it is now, and the files that were written.
#[derive(Serialize)]
struct LockResult<'a> {
    #[serde(flatten)]
    report: LockReport,
    written: Vec<WrittenFile<'a>>,
}

/// A file that was written, with its differences from the one before.
#[derive(Serialize)]
struct WrittenFile<'a> {
    path: &'a str,
    changes: &'a [LockChange],
}

/// The result of the command, for its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LockOutcome {
    /// Every lock file is complete.
    Complete,
    /// `--check`: every lock file is known, and some lack something.
    Incomplete,
    /// Some cannot be completed, or could not be checked.
    Failed,
}

impl LockCommand {
    /// Completes the lock files, or compares them.
    pub(super) fn run(mut self, common: &CommonOptions) -> anyhow::Result<LockOutcome> {
        let config = config_to_ask(common)?;
        if self.folders.is_empty() {
            self.folders.push(PathBuf::from("."));
        }
        let (mut order, top) = self.options.order_of_folders(&self.folders, &config.lock_platforms)?;
        order.upgrade = self.upgrade;
        if order.platforms.is_empty() {
            let own = Platform::of_this_machine();
            print_error(&format!(
                "no platform is named, so this is for {own}, this machine's: set --platform or [lock] platforms"
            ));
        }
        let mut report = block_on(complete_report(&config, &order))?;
        let mut written = BTreeSet::new();
        if !self.check {
            for file in &mut report.files {
                match write(file, &order, &top) {
                    Ok(true) => drop(written.insert(file.path.clone())),
                    Ok(false) => {}
                    Err(reason) => file.state = impossible(&file.path, reason),
                }
            }
        }
        let outcome = self.outcome(&report);
        if common.json {
            print_json(&LockResult::of(&report, &written));
        } else {
            let page = LockPage { host: config.default_host(), top, written, is_check: self.check };
            print_line(&page.text(&report));
        }
        Ok(outcome)
    }

    fn outcome(&self, report: &LockReport) -> LockOutcome {
        let has = |predicate: fn(&LockFileState) -> bool| report.files.iter().any(|file| predicate(&file.state));
        if !report.problems.is_empty()
            || has(|state| matches!(state, LockFileState::Unknown { .. } | LockFileState::Impossible { .. }))
        {
            LockOutcome::Failed
        } else if self.check && has(|state| matches!(state, LockFileState::Incomplete { .. })) {
            LockOutcome::Incomplete
        } else {
            LockOutcome::Complete
        }
    }
}

impl<'a> LockResult<'a> {
    fn of(report: &'a LockReport, written: &'a BTreeSet<String>) -> Self {
        let mut now = report.clone();
        for file in &mut now.files {
            if let LockFileState::Incomplete { text, .. } = &file.state
                && written.contains(&file.path)
            {
                file.state = LockFileState::Complete { text: text.clone() };
            }
        }
        let is_complete = |file: &LockFileReport| matches!(file.state, LockFileState::Complete { .. });
        now.complete = now.problems.is_empty() && now.files.iter().all(is_complete);
        let files = report.files.iter().filter(|file| written.contains(&file.path));
        let written = files.map(|file| WrittenFile {
            path: &file.path,
            changes: match &file.state {
                LockFileState::Incomplete { changes, .. } => changes,
                _ => &[],
            },
        });
        Self { report: now, written: written.collect() }
    }
}

/// The state of a file for which nothing was written.
fn impossible(subject: &str, reason: String) -> LockFileState {
    let problem = UnavailableItem { subject: subject.to_owned(), reason, required_by: Vec::new() };
    LockFileState::Impossible { problems: vec![problem] }
}

/// Asks larder for the lock files, and warms the archives whose hashes it does not know.
async fn complete_report(config: &Config, order: &OrderRequest) -> anyhow::Result<LockReport> {
    let mut interrupts = CaughtSignals::catch_stop()?;
    let _file_size_signal = catch_file_size_signal()?;
    with_larder(config, StoreNeed::Any, async |larder| {
        let mut report = ask(larder, order, &mut interrupts).await?;
        let mut failures = BTreeMap::new();
        for _ in 0..MAX_WARM_UPS {
            let unknown: BTreeSet<&PackageRef> = report.files.iter().flat_map(archives_to_fetch).collect();
            if unknown.is_empty() || unknown.iter().all(|package| failures.contains_key(*package)) {
                break;
            }
            say_where_it_fetches(larder, config);
            let wanted = OrderRequest::of_addresses(unknown.into_iter().map(address_request));
            let job = warm_with(larder, config, &wanted, WarmOutput::Quiet, &mut interrupts).await?;
            if job.state == JobState::Cancelled {
                bail!("the warm-up {} was cancelled, so some hashes are unknown: nothing was written", job.id);
            }
            failures = failures_of(job);
            report = ask(larder, order, &mut interrupts).await?;
        }
        for file in &mut report.files {
            explain_unknown(file, &failures);
        }
        Ok(report)
    })
    .await
}

async fn ask(larder: &AdminClient, order: &OrderRequest, interrupts: &mut CaughtSignals) -> anyhow::Result<LockReport> {
    tokio::select! {
        report = larder.post_for_large_answer(LOCK, order) => Ok(report?),
        _ = interrupts.next() => Err(Interrupted::with_text("stopped")),
    }
}

fn archives_to_fetch(file: &LockFileReport) -> &[PackageRef] {
    match &file.state {
        LockFileState::Unknown { to_fetch } => to_fetch,
        _ => &[],
    }
}

/// The archives that a warm-up could not fetch, with the reasons.
fn failures_of(job: Job) -> BTreeMap<PackageRef, String> {
    let failure = |item: JobItem| match item.state {
        ItemState::Failed { error } => Some((item.package, error)),
        _ => None,
    };
    job.items.into_iter().filter_map(failure).collect()
}

/// Gives a file whose hashes stayed unknown the reasons.
fn explain_unknown(file: &mut LockFileReport, failures: &BTreeMap<PackageRef, String>) {
    let unknown = archives_to_fetch(file);
    if unknown.is_empty() {
        return;
    }
    let problem = |package: &PackageRef| {
        let reason = failures.get(package).cloned();
        let reason = reason
            .unwrap_or_else(|| format!("its hashes are unknown after {MAX_WARM_UPS} warm-ups: run the command again"));
        UnavailableItem { subject: package.to_string(), reason, required_by: Vec::new() }
    };
    file.state = LockFileState::Impossible { problems: unknown.iter().map(problem).collect() };
}

/// Writes a lock file, unless it is on disk already. Returns true if it was written.
fn write(file: &LockFileReport, order: &OrderRequest, top: &Path) -> Result<bool, String> {
    let (LockFileState::Complete { text } | LockFileState::Incomplete { text, .. }) = &file.state else {
        return Ok(false);
    };
    let before = match order.files.get(&file.path) {
        Some(FileContents::Text(before)) => Some(before.as_str()),
        _ => None,
    };
    if before == Some(text) {
        return Ok(false);
    }
    // The paths of an answer are a stranger's.
    if !order.roots.iter().any(|root| disk::lock_file_of(root) == file.path) {
        return Err(format!("larder answered with a lock file that nobody asked for: {:?}", file.path));
    }
    disk::replace_lock_file(&top.join(&file.path), before, text).map(|()| true)
}

/// The number of hashes of each scheme; `None` for none.
fn hash_counts(hashes: &[String]) -> Option<String> {
    let count = |scheme: &str| hashes.iter().filter(|hash| hash.starts_with(scheme)).count();
    let noun = if hashes.len() == 1 { "hash" } else { "hashes" };
    match (count("h1:"), count("zh:")) {
        (0, 0) => None,
        (h1, 0) => Some(format!("{h1} h1 {noun}")),
        (0, zh) => Some(format!("{zh} zh {noun}")),
        (h1, zh) => Some(format!("{h1} h1 and {zh} zh {noun}")),
    }
}

/// The report for people.
struct LockPage {
    host: Hostname,
    /// The folder that the paths in the report are relative to.
    top: PathBuf,
    written: BTreeSet<String>,
    is_check: bool,
}

impl LockPage {
    fn text(&self, report: &LockReport) -> String {
        let mut page = TextPage::with_whole_words(width_of_stdout());
        for file in &report.files {
            self.file(&mut page, file);
        }
        if !report.problems.is_empty() {
            page.group("problems", "some lock files could not be checked:");
            self.problems(&mut page, &report.problems);
        }
        if !report.unpublished.is_empty() {
            page.group("unpublished", "no lock file can have the hashes of these:");
            let names = report.unpublished.iter().map(|package| package.without(&self.host).to_string());
            names.for_each(|name| page.item(&escape_for_terminal(&name), None));
        }
        if report.offline {
            page.group("offline", "this mirror is offline: versions are those of its stored lists");
        } else if !report.unconfirmed.is_empty() {
            page.group("unconfirmed", "stored documents that upstream did not confirm just now");
            report.unconfirmed.iter().for_each(|note| page.item(&escape_for_terminal(note), None));
        }
        if !report.notes.is_empty() {
            page.group("note", "");
            report.notes.iter().for_each(|note| page.item(&escape_for_terminal(note), None));
        }
        let platforms: Vec<String> = report.platforms.iter().map(ToString::to_string).collect();
        page.push(String::new());
        page.push_with_prefix("", &self.verdict(report, &platforms.join(", ")));
        page.text()
    }

    fn file(&self, page: &mut TextPage, file: &LockFileReport) {
        let state = match &file.state {
            LockFileState::Complete { .. } if self.written.contains(&file.path) => {
                "complete; written in the client's form"
            }
            LockFileState::Complete { .. } => "complete",
            LockFileState::Incomplete { .. } if self.is_check => "incomplete",
            LockFileState::Incomplete { .. } => "written",
            LockFileState::Unknown { .. } | LockFileState::Impossible { .. } => "not written",
        };
        page.push(format!("{}: {state}", escape_for_terminal(&self.shown(&file.path))));
        match &file.state {
            LockFileState::Incomplete { changes, .. } => changes.iter().for_each(|change| self.change(page, change)),
            LockFileState::Impossible { problems } => self.problems(page, problems),
            LockFileState::Complete { .. } | LockFileState::Unknown { .. } => {}
        }
    }

    fn problems(&self, page: &mut TextPage, problems: &[UnavailableItem]) {
        for UnavailableItem { subject, reason, required_by } in problems {
            let places = if required_by.is_empty() { String::new() } else { format!(" ({})", required_by.join(", ")) };
            let subject = subject.strip_prefix(&format!("{}/", self.host)).unwrap_or(subject);
            page.item(&escape_for_terminal(&format!("{subject}{places}")), Some(&escape_for_terminal(reason)));
        }
    }

    /// The path as the working folder sees it.
    fn shown(&self, path: &str) -> String {
        let whole = self.top.join(path);
        let working_folder = std::env::current_dir().and_then(|folder| folder.canonicalize());
        let relative = working_folder.ok().and_then(|folder| whole.strip_prefix(folder).ok().map(Path::to_owned));
        relative.unwrap_or(whole).display().to_string()
    }

    fn change(&self, page: &mut TextPage, change: &LockChange) {
        let LockChange { package, version_before, constraints, added } = change;
        let version = match version_before {
            None => Some("a new entry".to_owned()),
            Some(before) if Some(before) == package.version.as_ref() => None,
            Some(before) => Some(format!("in place of {before}")),
        };
        let constraints = constraints.as_ref().map(|text| format!("constraints = {text:?}"));
        let differences: Vec<String> = [version, constraints, hash_counts(added)].into_iter().flatten().collect();
        page.item(&escape_for_terminal(&format!("{}: {}", package.without(&self.host), differences.join(", "))), None);
        if self.is_check {
            added.iter().for_each(|hash| page.push(format!("    {}", escape_for_terminal(&format!("{hash:?},")))));
        }
    }

    fn verdict(&self, report: &LockReport, platforms: &str) -> String {
        let count = |predicate: fn(&LockFileState) -> bool| {
            report.files.iter().filter(|file| predicate(&file.state)).count() as u64
        };
        let incomplete = count(|state| matches!(state, LockFileState::Incomplete { .. }));
        let failed = count(|state| matches!(state, LockFileState::Impossible { .. } | LockFileState::Unknown { .. }));
        let all = plural(report.files.len() as u64, "lock file");
        let published = if report.unpublished.is_empty() { "" } else { ", as far as the providers are published" };
        match (failed, incomplete) {
            (0, _) if !report.problems.is_empty() => {
                format!("{all}; some could not be checked: see the problems above")
            }
            (0, 0) => format!("{all}, complete for {platforms}{published}"),
            (0, _) if !self.is_check => format!("{all}, now complete for {platforms}{published}"),
            (0, incomplete) => {
                let command = this_command().replace(" --check", "");
                let them = if incomplete == 1 { "it" } else { "them" };
                format!("{incomplete} of {all} incomplete for {platforms}: `{command}` completes {them}")
            }
            (failed, _) => format!("{failed} of {all} cannot be completed for {platforms}: see the reasons above"),
        }
    }
}
