//! The summary of a phase, for people.
#![expect(clippy::print_stdout, reason = "this module prints the summary")]

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};

use crate::audit::AuditResult;
use crate::ledger::{BrokenPromise, Kind};
use crate::{MEMORY_BOUND_KIB, SoakSetup, chaos, hostile};

/// Totals of a phase.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Totals {
    pub(crate) faults: chaos::FaultCounts,
    pub(crate) attacks: hostile::AttackCounts,
    /// The unresolved alarms at the end.
    pub(crate) alarms: usize,
    pub(crate) audit: AuditResult,
}

/// Prints the summary; returns the number of broken promises.
pub(crate) fn print(title: &str, setup: &SoakSetup, totals: Totals, took: Duration) -> u64 {
    let Totals { faults, attacks, alarms, audit } = totals;
    let ledger = &setup.ledger;
    let answers = ledger.answers();
    println!("\n{title}, {:.0} s", took.as_secs_f64());
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    let mut outcomes: Vec<String> =
        answers.keys().map(|(_, outcome)| outcome.clone()).filter(|outcome| outcome != "audited").collect();
    outcomes.sort();
    outcomes.dedup();
    table.set_header(["request".to_owned()].into_iter().chain(outcomes.iter().cloned()));
    let mut kinds: Vec<Kind> = answers.keys().map(|(kind, _)| *kind).collect();
    kinds.dedup();
    for kind in kinds {
        let cell = |outcome: &String| answers.get(&(kind, outcome.clone())).map_or("-".to_owned(), u64::to_string);
        table.add_row([kind.name().to_owned()].into_iter().chain(outcomes.iter().map(cell)));
    }
    align_figures(&mut table);
    println!("{table}");

    let usage = setup.processes.usage();
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    let mib = |bytes: u64| format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20));
    let requests: u64 = answers.iter().filter(|((_, outcome), _)| outcome != "audited").map(|(_, count)| count).sum();
    let slowest = |is_included: fn(Kind) -> bool| format!("{:.1} s", ledger.slowest(is_included).as_secs_f64());
    for (subject, figure) in [
        ("requests of clients", requests.to_string()),
        ("bytes to clients", mib(ledger.bytes())),
        ("requests to upstream", faults.requests.to_string()),
        ("bytes from upstream", mib(faults.bytes_sent)),
        ("slowest document (headers)", slowest(|kind| !kind.is_archive())),
        ("slowest archive (headers)", slowest(Kind::is_archive)),
        ("faults", faults.faults.to_string()),
        ("upstream down", faults.outages.to_string()),
        ("kill -9 and restart", faults.kills.to_string()),
        ("versions published", faults.versions.to_string()),
        ("editions published over old ones", faults.editions.to_string()),
        ("versions withdrawn", faults.withdrawn.to_string()),
        ("times that all URLs expired", faults.expired.to_string()),
        ("attacks: old versions published anew", attacks.attacks.to_string()),
        ("of these, under other names; unsigned", format!("{}; {}", attacks.renamed, attacks.unsigned)),
        ("foreign keys that signed new versions first", attacks.strangers.to_string()),
        ("foreign keys that signed the same bytes first", attacks.re_signed.to_string()),
        ("attacks taken back", attacks.taken_back.to_string()),
        ("changes by a key known before", attacks.lawful.to_string()),
        ("modules moved", attacks.moved.to_string()),
        ("times that upstreams fell silent", attacks.silences.to_string()),
        ("streams that were never read", setup.unread.count().to_string()),
        ("unresolved alarms", alarms.to_string()),
        ("archives acknowledged", ledger.archives().len().to_string()),
        ("documents acknowledged", ledger.documents().len().to_string()),
        ("archives in the store, each hashed", format!("{} ({})", audit.blobs, mib(audit.bytes))),
        ("broken downloads staged at the end", audit.staged.to_string()),
        (
            "anonymous memory at most, its bound",
            format!("{}, {}", mib(usage.max_anonymous_kib << 10), mib(MEMORY_BOUND_KIB << 10)),
        ),
        ("memory samples", usage.memory_samples.to_string()),
        ("memory at most, with files", mib(usage.peak_kib * 1024)),
        ("descriptors at most, at the end", format!("{}, {}", usage.max_descriptors, usage.descriptors)),
        ("errors in the log", usage.log_errors.to_string()),
    ] {
        table.add_row([subject.to_owned(), figure]);
    }
    align_figures(&mut table);
    println!("{table}");

    let broken = ledger.broken_promises();
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    for subject in BrokenPromise::ALL {
        table.add_row([subject.name().to_owned(), broken.get(&subject).map_or(0, |(count, _)| *count).to_string()]);
    }
    align_figures(&mut table);
    println!("{table}");
    for (subject, (_, examples)) in &broken {
        for example in examples {
            println!("{}: {example}", subject.name());
        }
    }
    broken.values().map(|(count, _)| count).sum()
}

fn align_figures(table: &mut Table) {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}
