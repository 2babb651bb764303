//! wrk, which sends small requests faster than any server here answers them.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

use crate::compared_server::{ClientProtocol, ComparedServer};
use crate::measure::Sample;
use crate::process::Running;

/// Requests a path over this many keep-alive connections from one thread.
pub(crate) fn sample(
    program: &Path,
    server: &ComparedServer,
    path: &str,
    gzip: bool,
    connections: usize,
    seconds: u64,
) -> anyhow::Result<Sample> {
    let processor_before = server.processor_seconds(ClientProtocol::Http1);
    let mut command = Command::new(program);
    command.args(["-t1", &format!("-c{connections}"), &format!("-d{seconds}s"), "--timeout", "10s"]);
    if gzip {
        command.args(["-H", "Accept-Encoding: gzip"]);
    }
    command.arg(format!("http://{}{path}", server.address(ClientProtocol::Http1)));
    let mut running = Running::start(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()))?;
    let mut out = running.child().stdout.take().context("its output is piped")?;
    let output = std::io::read_to_string(&mut out)?;
    let processor_seconds = server.processor_seconds(ClientProtocol::Http1) - processor_before;
    ensure!(!output.contains("Non-2xx") && !output.contains("Socket errors"), "{}: {output}", server.name.text());
    let (requests, rest) = output.split_once(" requests in ").with_context(|| format!("wrk printed: {output}"))?;
    let requests = requests.rsplit(char::is_whitespace).next().unwrap_or_default().parse()?;
    let took = rest.split(',').next().unwrap_or_default();
    let seconds = match (took.strip_suffix("ms"), took.strip_suffix('m'), took.strip_suffix('s')) {
        (Some(milliseconds), ..) => milliseconds.parse::<f64>()? / 1000.0,
        (_, Some(minutes), _) => minutes.parse::<f64>()? * 60.0,
        (.., seconds) => seconds.unwrap_or_default().parse()?,
    };
    Ok(Sample { amount: requests, seconds, processor_seconds })
}
