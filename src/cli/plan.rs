//! `larder plan`: reports whether `init` will work offline, and which packages are stored, needed or unavailable.

use std::path::{Path, PathBuf};

use anyhow::bail;
use bytesize::ByteSize;
use clap::{Args, ValueHint};

use super::admin_service::{ask, config_to_ask};
use super::order::{OrderArgs, order_of_plan};
use super::terminal::{Column, TextPage, escape_for_terminal, plural, this_command, width_of_stdout};
use super::{CommonOptions, print_error, print_json, print_line};
use crate::address::Hostname;
use crate::config::ConfigReading;
use crate::jobs::{Installs, LockFileGap, Plan, PlanState, PlannedItem};
use crate::protocol::admin::PLAN;
use crate::protocol::admin::policy::{RuleText, rules_of};

#[derive(Debug, Args)]
pub(super) struct PlanCommand {
    #[command(flatten)]
    order: OrderArgs,
    /// List stored packages too, and the places that require each
    #[arg(long, short)]
    verbose: bool,
    /// Plan under the policies of this configuration file instead of larder's own: what would they break?
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    policy: Option<PathBuf>,
}

impl PlanCommand {
    /// Prints the plan; returns true if `init` will work offline.
    pub(super) fn run(self, common: &CommonOptions) -> anyhow::Result<bool> {
        let config = config_to_ask(common)?;
        let mut order = self.order.options.to_order(&self.order.names, &config.default_host(), &[])?;
        order.lock_platforms = config.lock_platforms.iter().map(ToString::to_string).collect();
        order.policy = self.policy.as_deref().map(policy_of_file).transpose()?.or(order.policy);
        let plan: Plan = ask(&config, async |larder| larder.post(PLAN, &order).await)?;
        if common.json {
            print_json(&plan);
        } else {
            let to_do = to_do(&plan, common);
            print_line(&page(&plan, &config.default_host(), self.verbose, &to_do, width_of_stdout()));
        }
        Ok(plan.ready)
    }
}

/// Reads the policies of a configuration file. Other sections may have problems: they are of another machine.
fn policy_of_file(file: &Path) -> anyhow::Result<Vec<RuleText>> {
    let ConfigReading { config, warnings, problems } = ConfigReading::of(Some(file));
    let is_of_policies = |key: &str| key.is_empty() || key.split('.').next() == Some("policy");
    let problems = problems.iter().flat_map(|problems| problems.diagnostics());
    let problems: Vec<String> =
        problems.filter(|problem| is_of_policies(&problem.key)).map(ToString::to_string).collect();
    if !problems.is_empty() {
        bail!("{}", problems.join("\n"));
    }
    for warning in warnings.iter().filter(|warning| is_of_policies(&warning.key)) {
        print_error(&warning.to_string());
    }
    match rules_of(&config.policy) {
        rules if rules.is_empty() => bail!("{} has no [[policy]]", file.display()),
        rules => Ok(rules),
    }
}

/// Maximum number of places listed per item.
const MAX_PLACES: usize = 3;

fn page(plan: &Plan, host: &Hostname, verbose: bool, to_do: &[String], width: Option<usize>) -> String {
    let mut page = TextPage::of_width(width);
    let matching =
        |predicate: fn(&PlanState) -> bool| plan.items.iter().filter(|item| predicate(&item.state)).collect::<Vec<_>>();
    let stored = matching(|state| matches!(state, PlanState::Stored { .. }));
    let needed = matching(|state| matches!(state, PlanState::ToFetch { .. }));
    let unavailable = matching(|state| matches!(state, PlanState::Unavailable { .. }));
    let unknown = matching(|state| matches!(state, PlanState::Unknown { .. }));
    let counts = &plan.counts;
    page.group("have", &format!("{}, {}", plural(counts.stored, "archive"), ByteSize(counts.stored_bytes)));
    let shown: Vec<&PlannedItem> = stored.into_iter().filter(|item| verbose || note(&item.state).is_some()).collect();
    rows(&mut page, &shown, host, verbose);
    page.group("need", &format!("{}, {}", plural(counts.to_fetch, "archive"), needed_bytes(plan)));
    rows(&mut page, &needed, host, verbose);
    page.group("unavailable", &plural(counts.unavailable, "item"));
    reasons(&mut page, &unavailable, host, verbose);
    if !unknown.is_empty() {
        let number = plural(counts.unknown, "item");
        page.group("unknown", &format!("{number}: upstream gave no answer just now; try again"));
        reasons(&mut page, &unknown, host, verbose);
    }
    if !plan.unconfirmed.is_empty() {
        page.group("unconfirmed", "cached version lists that upstream did not confirm just now");
        plan.unconfirmed.iter().for_each(|subject| page.item(&escape_for_terminal(subject), None));
    }
    if !plan.lock_files.is_empty() {
        page.group("lock files", "they lack hashes, which `larder lock` of their folders adds, with these platforms:");
        for LockFileGap { path, platform, providers } in &plan.lock_files {
            let names = providers.iter().map(|package| escape_for_terminal(&package.without(host).to_string()));
            let names: Vec<String> = names.collect();
            page.item(&escape_for_terminal(&format!("{path}, for {platform}")), Some(&listed(&names, verbose)));
        }
    }
    if !plan.notes.is_empty() {
        page.group("note", "choices that the files leave open");
        plan.notes.iter().for_each(|note| page.item(&escape_for_terminal(note), None));
    }
    page.push(String::new());
    page.push_with_prefix("", verdict(plan));
    if !to_do.is_empty() {
        page.group("to do", "with upstream access, make a bundle of what is needed, and carry it here:");
        to_do.iter().for_each(|command| page.command(command));
    }
    page.text()
}

/// The commands that bring the packages that an offline larder does not have; none where it needs no bundle.
fn to_do(plan: &Plan, common: &CommonOptions) -> Vec<String> {
    if !plan.offline || order_of_plan(plan).what.is_empty() {
        return Vec::new();
    }
    // A version that no stored list names may exist nowhere.
    let partial = if plan.counts.unavailable > 0 { " --partial" } else { "" };
    vec![
        format!("{} --json > plan.json", this_command()),
        format!("larder bundle create plan.tar --for plan.json{partial}"),
        format!("larder bundle apply plan.tar{}", common.as_given()),
    ]
}

fn reasons(page: &mut TextPage, items: &[&PlannedItem], host: &Hostname, verbose: bool) {
    for item in items {
        let reason = match &item.state {
            PlanState::Unavailable { reason } | PlanState::Unknown { reason } => reason.as_str(),
            PlanState::Stored { .. } | PlanState::ToFetch { .. } => "",
        };
        page.item(&item_name(item, host), Some(&escape_for_terminal(reason)));
        required_by(&item.required_by, verbose).iter().for_each(|places| page.push_with_prefix("    ", places));
    }
}

/// Remark about an item besides its state.
fn note(state: &PlanState) -> Option<&str> {
    match state {
        PlanState::Stored { installs: Installs::NetworkMirrorOnly, .. } => {
            Some("imported without signatures: the package installs through the network mirror only")
        }
        PlanState::ToFetch { note, .. } => note.as_deref(),
        PlanState::Stored { installs: Installs::AnyWay, .. }
        | PlanState::Unavailable { .. }
        | PlanState::Unknown { .. } => None,
    }
}

fn needed_bytes(plan: &Plan) -> String {
    let counts = &plan.counts;
    match (counts.to_fetch_bytes, counts.unknown_sizes) {
        (bytes, 0) => ByteSize(bytes).to_string(),
        (0, _) => "of unknown size".to_owned(),
        (bytes, unknown) => format!("{} and {unknown} of unknown size", ByteSize(bytes)),
    }
}

fn rows(page: &mut TextPage, items: &[&PlannedItem], host: &Hostname, verbose: bool) {
    let row = |item: &&PlannedItem| {
        let size_bytes = match item.state {
            PlanState::Stored { size_bytes, .. } => Some(size_bytes),
            PlanState::ToFetch { size_bytes, .. } => size_bytes,
            PlanState::Unavailable { .. } | PlanState::Unknown { .. } => None,
        };
        let size = size_bytes.map_or_else(|| "?".to_owned(), |size_bytes| ByteSize(size_bytes).to_string());
        let places = required_by(&item.required_by, true).filter(|_| verbose);
        let remarks: Vec<String> = places.into_iter().chain(note(&item.state).map(str::to_owned)).collect();
        ([item_name(item, host), size], remarks.join("; "))
    };
    let rows: Vec<_> = items.iter().map(row).collect();
    if !rows.is_empty() {
        page.columns([Column::Left(""), Column::Right("size")], &rows);
    }
}

fn item_name(item: &PlannedItem, host: &Hostname) -> String {
    escape_for_terminal(&item.package.without(host).to_string())
}

/// The places that require an item, if any: the first few, or all.
fn required_by(places: &[String], all: bool) -> Option<String> {
    let places: Vec<String> = places.iter().map(|place| escape_for_terminal(place)).collect();
    (!places.is_empty()).then(|| format!("required by {}", listed(&places, all)))
}

/// The first few names, or all.
fn listed(names: &[String], all: bool) -> String {
    let shown = if all { names.len() } else { MAX_PLACES.min(names.len()) };
    let hidden = names.len() - shown;
    let more = if hidden > 0 { format!(" and {hidden} more") } else { String::new() };
    format!("{}{more}", names[..shown].join(", "))
}

fn verdict(plan: &Plan) -> &'static str {
    let counts = &plan.counts;
    match (plan.ready, counts.unavailable, plan.offline) {
        (true, ..) if plan.unconfirmed.is_empty() => "`init` will work offline",
        (true, ..) => "`init` will work offline, with the version lists that upstream sent last",
        (false, 0, _) if counts.unknown > 0 => {
            "unknown whether `init` will work offline: upstream gave no answer for some items; try again"
        }
        (false, 0, _) if counts.to_fetch == 0 => {
            "`init` will work through the network mirror only: with a host override clients refuse unsigned archives"
        }
        (false, 0, false) => {
            "`init` will fail offline; `larder warm` with the same arguments fetches the missing items"
        }
        (false, 0, true) => "`init` will fail: items are missing",
        (false, _, true) => {
            "`init` will fail: see the unavailable items; a newer list may name what the stored ones lack"
        }
        (false, ..) => "`init` will fail offline even after `larder warm`; see the unavailable items",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::PackageRef;
    use crate::jobs::PlanCounts;

    fn host() -> Hostname {
        Hostname::parse("registry.terraform.io").unwrap()
    }

    fn item(subject: &str, platform: Option<&str>, state: PlanState) -> PlannedItem {
        let places = vec!["envs/prod/main.tf:12".to_owned(), "envs/dev/main.tf:3".to_owned()];
        let package = PackageRef { platform: platform.map(str::to_owned), ..PackageRef::requested(subject) };
        PlannedItem { package, state, required_by: places }
    }

    fn plan() -> Plan {
        let reason = "git::https://git.corp.example/net.git is not a registry's: the client fetches it itself, so it is not there without the network";
        let items = vec![
            item(
                "registry.terraform.io/hashicorp/aws@5.31.0",
                Some("linux_amd64"),
                PlanState::Stored { size_bytes: 104_857_600, installs: Installs::AnyWay },
            ),
            item(
                "registry.terraform.io/hashicorp/random@3.6.0",
                Some("linux_amd64"),
                PlanState::ToFetch { size_bytes: Some(4_700_000), note: None },
            ),
            item(
                "registry.terraform.io/terraform-aws-modules/vpc/aws@5.1.2",
                None,
                PlanState::ToFetch {
                    size_bytes: None,
                    note: Some("this mirror is offline: bring it in a bundle".to_owned()),
                },
            ),
            item("git::https://git.corp.example/net.git", None, PlanState::Unavailable { reason: reason.to_owned() }),
        ];
        let counts = PlanCounts {
            stored: 1,
            stored_bytes: 104_857_600,
            to_fetch: 2,
            to_fetch_bytes: 4_700_000,
            unknown_sizes: 1,
            unavailable: 1,
            ..PlanCounts::default()
        };
        Plan {
            ready: false,
            offline: false,
            platforms: Vec::new(),
            counts,
            items,
            unconfirmed: Vec::new(),
            lock_files: Vec::new(),
            notes: Vec::new(),
        }
    }

    #[test]
    fn a_plan_fits_the_terminal_and_ends_with_the_verdict() {
        for width in [80, 160] {
            for verbose in [false, true] {
                let text = page(&plan(), &host(), verbose, &[], Some(width));
                assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
                assert!(text.lines().last().unwrap().contains("see the unavailable items") || width == 80, "{text}");
                assert_eq!(text.contains("  hashicorp/aws 5.31.0 (linux_amd64) "), verbose, "{text}");
                assert!(text.contains("required by envs/prod/main.tf:12"), "{text}");
            }
        }
        let ready = Plan {
            ready: true,
            counts: PlanCounts { stored: 1, ..PlanCounts::default() },
            items: Vec::new(),
            ..plan()
        };
        assert!(page(&ready, &host(), false, &[], Some(80)).ends_with("`init` will work offline"));
    }

    #[test]
    fn foreign_names_cannot_control_the_terminal() {
        let mut plan = plan();
        plan.items[3].package.address = "a\u{1b}[2K\u{202e}".to_owned();
        plan.items[3].required_by = vec!["\u{9b}main.tf:1".to_owned()];
        let text = page(&plan, &host(), true, &[], None);
        assert!(!text.contains(|c: char| c != '\n' && !super::super::terminal::is_plain(c)), "{text:?}");
    }
}
