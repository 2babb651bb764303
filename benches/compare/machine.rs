//! The machine and the programs of a run.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use crate::tls::SUITE;
use crate::{Options, catalog};

/// Describes the machine, for the lines below the tables.
pub(crate) fn circumstances<'a>(
    programs: impl Iterator<Item = &'a Path>,
    options: &Options,
) -> anyhow::Result<Vec<String>> {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("an unknown processor");
    let cpu = cpu.trim_start_matches(['\t', ' ', ':']);
    let of_speed = ["sha_ni", "avx2", "avx512f", "vaes", "vpclmulqdq"];
    let all_flags = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let all_flags = all_flags.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let flags: Vec<&str> = all_flags.split_whitespace().filter(|flag| of_speed.contains(flag)).collect();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let date = httpdate::fmt_http_date(SystemTime::now());
    let date: Vec<&str> = date.split(' ').skip(1).take(3).collect();
    let versions: Vec<String> = programs.map(version).collect();
    let (plain, gzip) = catalog::long_list()?.sizes();
    Ok(vec![
        format!("{cpu} ({}), {cores} cores, Linux {}, {}.", flags.join(", "), kernel.trim(), date.join(" ")),
        format!("larder {}, {}; {SUITE}.", env!("CARGO_PKG_VERSION"), versions.join(", ")),
        format!(
            "Medians of {} rounds; in each, the servers take turns of {} s. A ratio is the median of the rounds' \
             ratios. CPU is what the server's processes take, in user and kernel mode.",
            options.rounds(),
            options.seconds
        ),
        format!("The version list has {plain} bytes, {gzip} in gzip. Server, clients and registry share the machine."),
    ])
}

/// Name and version, as the program reports them.
fn version(program: &Path) -> String {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let argument = match &*name {
        "terraform" => "version",
        "varnishd" => "-V",
        _ => "-v",
    };
    let output = Command::new(program).arg(argument).output();
    let output = output.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
    let output = String::from_utf8_lossy(&output).into_owned();
    let words = output.split(|letter: char| letter.is_whitespace() || ['/', '-'].contains(&letter));
    let is_version =
        |word: &&str| word.contains('.') && word.trim_start_matches('v').starts_with(|c: char| c.is_ascii_digit());
    format!("{name} {}", words.into_iter().find(is_version).unwrap_or("of an unknown version"))
}
