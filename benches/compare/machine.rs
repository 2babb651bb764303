//! Where and with what the figures came about.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use crate::tls::SUITE;

/// Lines for below the tables.
pub(crate) fn circumstances(nginx: Option<&Path>, wrk: Option<&Path>, terraform: Option<&Path>) -> Vec<String> {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("an unknown processor");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let date = httpdate::fmt_http_date(SystemTime::now());
    let date: Vec<&str> = date.split(' ').skip(1).take(3).collect();
    let version = |program: Option<&Path>, argument: &str| {
        let said = program.and_then(|program| Command::new(program).arg(argument).output().ok());
        let said = said.map(|said| [said.stdout, said.stderr].concat()).unwrap_or_default();
        String::from_utf8_lossy(&said).lines().next().unwrap_or("-").trim().to_owned()
    };
    vec![
        format!(
            "{} with {cores} cores, Linux {}; {}.",
            cpu.trim_start_matches([' ', '\t', ':']),
            kernel.trim(),
            date.join(" ")
        ),
        format!(
            "larder {}; {}; {}; {}. {SUITE}.",
            env!("CARGO_PKG_VERSION"),
            version(nginx, "-v"),
            version(terraform, "version"),
            version(wrk, "-v"),
        ),
        "Server, client and registry share the machine, on loopback: processor time is the fairer figure.".into(),
    ]
}
