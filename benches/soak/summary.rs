//! The summary of a phase, for people.
#![expect(clippy::print_stdout, reason = "this module prints the summary")]

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};

use crate::audit::AuditResult;
use crate::ledger::{BrokenPromise, RequestKind};
use crate::{MAX_MEMORY_KIB, SoakSetup, chaos, hostile};

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
    let mut outcomes: Vec<String> = answers.keys().map(|(_, outcome)| outcome.clone()).collect();
    outcomes.sort();
    outcomes.dedup();
    table.set_header(["request".to_owned()].into_iter().chain(outcomes.iter().cloned()));
    let mut kinds: Vec<RequestKind> = answers.keys().map(|(kind, _)| *kind).collect();
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
    let requests: u64 = answers.values().sum();
    let slowest = |is_included: fn(RequestKind) -> bool| format!("{:.1} s", ledger.slowest(is_included).as_secs_f64());
    for (subject, figure) in [
        ("requests of clients", requests.to_string()),
        ("bytes to clients", mib(ledger.bytes())),
        ("requests to upstream", faults.requests.to_string()),
        ("bytes from upstream", mib(faults.bytes_sent)),
        ("slowest document (headers)", slowest(|kind| !kind.is_archive())),
        ("slowest archive (headers)", slowest(RequestKind::is_archive)),
        ("faults", faults.faults.to_string()),
        ("upstream down", faults.outages.to_string()),
        ("kill -9 and restart", faults.kills.to_string()),
        ("versions published", faults.versions.to_string()),
        ("editions published over old ones", faults.editions.to_string()),
        ("versions withdrawn", faults.withdrawn.to_string()),
        ("times that all URLs expired", faults.expired.to_string()),
        ("attacks: versions republished without the right", attacks.attacks.to_string()),
        ("of these, under other names; unsigned", format!("{}; {}", attacks.renamed, attacks.unsigned)),
        ("foreign keys that signed a new version first", attacks.keys_with_new_version.to_string()),
        ("foreign keys that signed the same bytes first", attacks.keys_with_same_bytes.to_string()),
        ("attacks reverted by the owner", attacks.reverted.to_string()),
        ("rightful changes by a known key", attacks.rightful_changes.to_string()),
        ("modules moved", attacks.moved.to_string()),
        ("times that upstreams fell silent", attacks.silences.to_string()),
        ("answers that were never read", setup.unread_answers.count().to_string()),
        ("unresolved alarms", alarms.to_string()),
        ("archives acknowledged", ledger.archives().len().to_string()),
        ("documents acknowledged", ledger.documents().len().to_string()),
        ("archives in the store, each hashed", format!("{} ({})", audit.blobs, mib(audit.bytes))),
        ("partial downloads in staging at the end", audit.partial_downloads.to_string()),
        (
            "largest anonymous memory, its limit",
            format!("{}, {}", mib(usage.max_anonymous_kib << 10), mib(MAX_MEMORY_KIB << 10)),
        ),
        ("memory samples", usage.memory_samples.to_string()),
        ("largest resident memory, with mapped files", mib(usage.max_resident_kib * 1024)),
        ("descriptors: most, at the end", format!("{}, {}", usage.max_descriptors, usage.descriptors)),
        ("errors in the log", usage.log_errors.to_string()),
    ] {
        table.add_row([subject.to_owned(), figure]);
    }
    align_figures(&mut table);
    println!("{table}");

    let broken = ledger.broken_promises();
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    for promise in BrokenPromise::ALL {
        table.add_row([promise.name().to_owned(), broken.get(&promise).map_or(0, |(count, _)| *count).to_string()]);
    }
    align_figures(&mut table);
    println!("{table}");
    for (promise, (_, examples)) in &broken {
        for example in examples {
            println!("{}: {example}", promise.name());
        }
    }
    broken.values().map(|(count, _)| count).sum()
}

fn align_figures(table: &mut Table) {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}
