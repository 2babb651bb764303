//! What a phase came to, for people.
#![expect(clippy::print_stdout, reason = "printing is what it is for")]

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};

use crate::Site;
use crate::audit::Found;
use crate::chaos::Done;
use crate::ledger::{Broken, Kind};

/// Prints it; gives how many promises were broken.
pub(crate) fn print(title: &str, site: &Site, done: Done, found: Found, took: Duration) -> u64 {
    let ledger = &site.ledger;
    let answers = ledger.answers();
    println!("\n{title}, {:.0} s", took.as_secs_f64());
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    let mut hows: Vec<String> = answers.keys().map(|(_, how)| how.clone()).filter(|how| how != "audited").collect();
    hows.sort();
    hows.dedup();
    table.set_header(["asked for".to_owned()].into_iter().chain(hows.iter().cloned()));
    let mut kinds: Vec<Kind> = answers.keys().map(|(kind, _)| *kind).collect();
    kinds.dedup();
    for kind in kinds {
        let cell = |how: &String| answers.get(&(kind, how.clone())).map_or("-".to_owned(), u64::to_string);
        table.add_row([kind.name().to_owned()].into_iter().chain(hows.iter().map(cell)));
    }
    right(&mut table);
    println!("{table}");

    let taken = site.lives.taken();
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    let mib = |bytes: u64| format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20));
    let requests: u64 = answers.iter().filter(|((_, how), _)| how != "audited").map(|(_, count)| count).sum();
    let slowest = |is: fn(Kind) -> bool| format!("{:.1} s", ledger.slowest(is).as_secs_f64());
    for (what, figure) in [
        ("requests of clients", requests.to_string()),
        ("bytes to clients", mib(ledger.bytes())),
        ("requests to upstream", done.asked.to_string()),
        ("bytes from upstream", mib(done.sent)),
        ("slowest document (headers)", slowest(|kind| kind != Kind::Archive)),
        ("slowest archive (headers)", slowest(|kind| kind == Kind::Archive)),
        ("faults", done.faults.to_string()),
        ("upstream away", done.away.to_string()),
        ("kill -9 and restart", done.kills.to_string()),
        ("versions published", done.versions.to_string()),
        ("editions published over old ones", done.editions.to_string()),
        ("versions withdrawn", done.withdrawn.to_string()),
        ("times that all URLs expired", done.expired.to_string()),
        ("archives acknowledged", ledger.archives().len().to_string()),
        ("documents acknowledged", ledger.documents().len().to_string()),
        ("archives in the store, each hashed", format!("{} ({})", found.blobs, mib(found.bytes))),
        ("broken downloads staged at the end", found.staged.to_string()),
        ("memory at most", mib(taken.peak_kib * 1024)),
        ("descriptors at most, at the end", format!("{}, {}", taken.most_descriptors, taken.descriptors)),
        ("errors in the log", taken.log_errors.to_string()),
    ] {
        table.add_row([what.to_owned(), figure]);
    }
    right(&mut table);
    println!("{table}");

    let broken = ledger.broken_promises();
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    for what in Broken::ALL {
        table.add_row([what.name().to_owned(), broken.get(&what).map_or(0, |(count, _)| *count).to_string()]);
    }
    right(&mut table);
    println!("{table}");
    for (what, (_, examples)) in &broken {
        for example in examples {
            println!("{}: {example}", what.name());
        }
    }
    broken.values().map(|(count, _)| count).sum()
}

fn right(table: &mut Table) {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}
