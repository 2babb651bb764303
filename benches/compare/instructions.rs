//! Instructions of one answer, counted by valgrind: the cost of a change, whatever else the machine does. It counts nothing
//! that the kernel does, so it is for documents only.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::Bench;
use crate::cached;
use crate::clients::{self, RequestLoad};
use crate::compared_server::ComparedServer;
use crate::larder::Log;
use crate::process;
use crate::report::{ResultTable, Target};
use crate::servers;

/// Requests before the count, so that every lazily made thing is made.
const WARM_UP: usize = 500;
/// Requests that are counted.
const COUNTED: usize = 4_000;
/// The growth that is a failure.
const MAX_GROWTH: f64 = 1.03;

/// Counts the instructions of each document, compares them with those of the file, and writes the file if it has none.
/// Returns the table, and the rows that grew too much.
///
/// # Errors
/// Something could not be counted, or the file could not be read.
pub(crate) fn table(bench: &Bench, recorded_file: &Path) -> anyhow::Result<(ResultTable, Vec<String>)> {
    let valgrind = process::find("valgrind").context("valgrind is not installed")?;
    let recorded = Recorded::read(recorded_file)?;
    let title = "Cached documents: instructions of one answer, outside the kernel";
    let mut table = ResultTable::new(title, &["", "now", "recorded", "now/recorded"]);
    let (mut counts, mut grown) = (Vec::new(), Vec::new());
    for log in [Log::Off, Log::On] {
        let rows: Vec<_> =
            cached::document_rows().into_iter().filter(|row| row.log == log && row.is_typical()).collect();
        let rows: Vec<_> = rows.into_iter().filter(|row| bench.wants(&row.name)).collect();
        if rows.is_empty() {
            continue;
        }
        let resources: HashSet<_> = rows.iter().map(|row| row.resource).collect();
        let (_larders, server) = servers::start_larders_under(bench, &resources, log, Some(&valgrind))?;
        for row in rows {
            bench.progress(&row.name);
            let name = row.name.trim_end_matches(", 64 connections").to_owned();
            let load = RequestLoad::new(&server, row.protocol, server.path(row.resource)?, &bench.certificate)?;
            let count = instructions_of_one(&server, row.protocol.is_tls(), &load.gzip(row.gzip))?;
            let before = recorded.of(&name);
            let ratio = before.map(|before| count / before);
            let cells = [Some(count), before].map(|count| count.map_or("-".into(), |count| format!("{count:.0}")));
            let ratio_cell = ratio.map_or("-".into(), |ratio| format!("{ratio:.3}"));
            let target = ratio.map(|ratio| Target { met: ratio <= MAX_GROWTH, text: format!("at most {MAX_GROWTH}") });
            grown.extend(target.iter().filter(|target| !target.met).map(|_| name.clone()));
            table.add_row(&name, cells.into_iter().chain([ratio_cell]).collect(), target.into_iter().collect());
            counts.push((name, count));
        }
    }
    if recorded.0.is_empty() {
        let lines: String = counts.iter().map(|(name, count)| format!("{count:.0} {name}\n")).collect();
        fs::write(recorded_file, lines)?;
    }
    Ok((table, grown))
}

/// The counts of the file: one `COUNT NAME` in each line.
struct Recorded(Vec<(String, f64)>);

impl Recorded {
    fn read(file: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(file).unwrap_or_default();
        let counts = text.lines().map(|line| {
            let (count, name) = line.split_once(' ').with_context(|| format!("no count in {line:?}"))?;
            Ok((name.to_owned(), count.parse()?))
        });
        counts.collect::<anyhow::Result<_>>().map(Self)
    }

    fn of(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(recorded, _)| recorded == name).map(|(_, count)| *count)
    }
}

fn instructions_of_one(server: &ComparedServer, is_tls: bool, load: &RequestLoad) -> anyhow::Result<f64> {
    let process = if is_tls { &server.processes.tls } else { &server.processes.plain };
    let process = *process.first().context("larder has a process")?;
    control(process, &["--instr=on"])?;
    let mut connection = clients::Repeated::connect(load)?;
    connection.request(WARM_UP)?;
    control(process, &["--zero"])?;
    connection.request(COUNTED)?;
    control(process, &["--dump=counted"])?;
    control(process, &["--instr=off"])?;
    let folder = fs::read_link(format!("/proc/{process}/cwd"))?;
    newest_total(&folder, process).map(|total| total / COUNTED as f64)
}

fn control(process: u32, arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("callgrind_control").args(arguments).arg(process.to_string()).output()?;
    ensure!(output.status.success(), "callgrind_control {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// The total of the last profile that callgrind wrote.
fn newest_total(folder: &Path, process: u32) -> anyhow::Result<f64> {
    let mut newest: Option<(u32, PathBuf)> = None;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let number = name.strip_prefix(&format!("callgrind.out.{process}.")).and_then(|number| number.parse().ok());
        newest = newest.into_iter().chain(number.map(|number| (number, path))).max_by_key(|(number, _)| *number);
    }
    let (_, path) = newest.with_context(|| format!("callgrind wrote no profile to {}", folder.display()))?;
    let text = fs::read_to_string(&path)?;
    let total = text.lines().find_map(|line| line.strip_prefix("totals: ")).context("a profile without a total")?;
    Ok(total.trim().parse()?)
}
