//! Many `larder run -- terraform init` at once, in folders of their own with one lock file: with links to unpacked providers, with
//! copies as without them, and the client alone with the unpacked providers as `filesystem_mirror`.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, ensure};

use crate::Bench;
use crate::catalog::{self, PLATFORM, Release};
use crate::interrupt;
use crate::measure::{median, rounds};
use crate::process::own_children_time;
use crate::report::{ResultTable, Target};
use crate::support::larder::HOST;
use crate::support::run_setup::{INIT, RunSetup};

const PROVIDERS: usize = 20;
const RUNS: usize = 100;
const VERSION: &str = "1.0.0";

/// The most runs with copies at a time. Each client leaves some forty connections open, and larder has 4096.
const MAX_COPIES_AT_ONCE: usize = 40;

/// The most processor time of runs with links beyond that of the client alone, as a share of that of runs with copies.
const MAX_SHARE: f64 = 0.25;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Way {
    Copies,
    Links,
    ClientAlone,
}

/// The figures of one round.
struct Figures {
    seconds: f64,
    processor_seconds: f64,
    disk_bytes: u64,
}

/// Measures the selected rows.
pub(crate) fn table(bench: &Bench) -> anyhow::Result<Option<ResultTable>> {
    let (runs, megabytes) = if bench.options.quick { (4, 1) } else { (RUNS, 5) };
    let name = format!("{runs} parallel runs of init, {PROVIDERS} providers of {megabytes} MB");
    if !bench.wants(&name) || bench.terraform.is_none() {
        return Ok(None);
    }
    bench.progress(&name);
    let setup = RunSetup::with_config(&format!(
        "[[upstream]]\nhost = \"{HOST}\"\nurl = \"http://{}/\"\n",
        bench.upstream.address()
    ));
    let names: Vec<String> = (0..PROVIDERS).map(|number| format!("link{number}")).collect();
    for name in &names {
        bench.publish(&Release {
            name,
            version: VERSION,
            platforms: &[PLATFORM],
            archive_bytes: megabytes * 1_000_000,
        })?;
        bench.upstream.publish(catalog::list_path(name), catalog::list(VERSION)?);
    }
    let sources: Vec<String> = names.iter().map(|name| format!("{HOST}/acme/{name}")).collect();
    setup.require(&sources.iter().map(String::as_str).collect::<Vec<_>>());
    // Fills the store and writes the lock file; then the trees for the client alone.
    run_all(vec![setup.command(&["--copy"], &INIT)])?;
    let lock_file = setup.read("work/.terraform.lock.hcl");
    fs::remove_dir_all(setup.path("work/.terraform"))?;
    run_all(vec![setup.command(&[], &INIT)])?;
    let mirrors = setup.path("mirrors");
    copy_folder(&unpacked(&setup), &mirrors)?;
    let cli_config = setup.write("mirrors.tfrc", &installation(&mirrors)?);

    let round = |way: &Way| {
        remove_trees(&unpacked(&setup))?;
        let folders: Vec<PathBuf> = (0..runs).map(|number| setup.path(&format!("run{number}"))).collect();
        let mut commands = Vec::new();
        for folder in &folders {
            fs::create_dir_all(folder)?;
            fs::write(folder.join("main.tf"), setup.read("work/main.tf"))?;
            fs::write(folder.join(".terraform.lock.hcl"), &lock_file)?;
            let mut command = match way {
                Way::Copies => setup.command(&["--copy"], &INIT),
                Way::Links => setup.command(&[], &INIT),
                Way::ClientAlone => setup.plain_command(&INIT),
            };
            if *way == Way::ClientAlone {
                command.env("TF_CLI_CONFIG_FILE", &cli_config);
            }
            command.current_dir(folder);
            commands.push(command);
        }
        let (began, before) = (Instant::now(), own_children_time());
        let at_once = if *way == Way::Copies { MAX_COPIES_AT_ONCE } else { commands.len() };
        while !commands.is_empty() {
            run_all(commands.drain(..at_once.min(commands.len())).collect())?;
        }
        let (seconds, processor) = (began.elapsed().as_secs_f64(), own_children_time() - before);
        let mut disk_bytes = disk_usage(&unpacked(&setup))?;
        for folder in &folders {
            ensure!(
                fs::read_to_string(folder.join(".terraform.lock.hcl"))? == lock_file,
                "{way:?} changed a lock file"
            );
            disk_bytes += disk_usage(&folder.join(".terraform"))?;
            fs::remove_dir_all(folder)?;
        }
        Ok(Figures { seconds, processor_seconds: processor.as_secs_f64(), disk_bytes })
    };
    let ways = [Way::Copies, Way::Links, Way::ClientAlone];
    let figures = rounds(&ways, bench.options.rounds(), round)?;
    let figures: HashMap<Way, Vec<Figures>> = ways.into_iter().zip(figures).collect();
    let of = |way: Way, figure: fn(&Figures) -> f64| median(figures[&way].iter().map(figure));
    let processor = |way| of(way, |figures| figures.processor_seconds);
    let share = (processor(Way::Links) - processor(Way::ClientAlone)) / processor(Way::Copies);
    let mut table = ResultTable::new(&name, &["", "seconds", "processor seconds", "on disk"]);
    for (way, label) in
        [(Way::Copies, "copies"), (Way::Links, "links"), (Way::ClientAlone, "client alone, filesystem_mirror")]
    {
        let mebibytes = of(way, |figures| figures.disk_bytes as f64) / f64::from(1 << 20);
        let cells = vec![
            format!("{:.1} s", of(way, |figures| figures.seconds)),
            format!("{:.1} s", processor(way)),
            format!("{mebibytes:.0} MiB"),
        ];
        let text = format!("beyond the client alone {share:.2} x copies: at most {MAX_SHARE}");
        let target = (way == Way::Links).then_some(Target { met: share <= MAX_SHARE, text });
        table.add_row(label, cells, target.into_iter().collect());
    }
    remove_trees(&unpacked(&setup))?;
    Ok(Some(table))
}

/// Runs all commands at once; an error if one fails.
fn run_all(commands: Vec<Command>) -> anyhow::Result<()> {
    let mut running: Vec<Child> = Vec::new();
    for mut command in commands {
        interrupt::check()?;
        running.push(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?);
    }
    for child in running {
        let output = child.wait_with_output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

fn unpacked(setup: &RunSetup) -> PathBuf {
    setup.store().join("v1/unpacked")
}

/// The configuration of a client that has each of these folders as a mirror.
fn installation(mirrors: &Path) -> anyhow::Result<String> {
    let mut text = "provider_installation {\n".to_owned();
    for mirror in fs::read_dir(mirrors)? {
        let path = mirror?.path();
        if path.file_name().is_some_and(|name| name != "seals") {
            text.push_str(&format!("  filesystem_mirror {{\n    path = {:?}\n  }}\n", path.display().to_string()));
        }
    }
    Ok(text + "}\n")
}

fn copy_folder(from: &Path, to: &Path) -> anyhow::Result<()> {
    let copied = Command::new("cp").arg("-a").args([from, to]).status().context("cp")?;
    ensure!(copied.success(), "the trees could not be copied");
    Ok(())
}

/// Removes trees, whose folders are not writable.
fn remove_trees(folder: &Path) -> anyhow::Result<()> {
    if folder.exists() {
        Command::new("chmod").args(["-R", "u+w"]).arg(folder).status().context("chmod")?;
        fs::remove_dir_all(folder)?;
    }
    Ok(())
}

/// The bytes that a folder takes on the disk, without what its links lead to.
fn disk_usage(folder: &Path) -> anyhow::Result<u64> {
    let Ok(metadata) = fs::symlink_metadata(folder) else { return Ok(0) };
    let mut bytes = metadata.blocks() * 512;
    if metadata.is_dir() {
        for entry in fs::read_dir(folder)? {
            bytes += disk_usage(&entry?.path())?;
        }
    }
    Ok(bytes)
}
