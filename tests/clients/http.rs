//! General HTTP clients and checkers, against a larder that has its archives stored.

use std::path::Path;

use crate::Tools;
use crate::report::{Report, Verdict};
use crate::support::larder::{HOST, Larder};
use crate::support::programs::find;
use crate::support::upstream::{FakeUpstream, Provider, sha256_hex};
use crate::tools::output_of;

const BYTES: usize = 8_000_000;

pub(crate) async fn rows(tools: &Tools, report: &mut Report) {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(BYTES));
    let larder = Larder::mirroring(&upstream).start().await;
    let archive = format!("{}{}", larder.base(), larder.archive_path("null", "1.2.0").await);
    let document = format!("{}/registry/{HOST}/v1/providers/acme/null/1.2.0/download/linux/amd64", larder.base());
    let digest = sha256_hex(&upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64"));
    for state in ["cold", "stored"] {
        add_row(report, "aria2c", &format!("an archive in eight parts, {state}"), aria2c(&archive, &digest).await);
    }
    add_row(report, "wget", "an archive once, and `-N` does not fetch it again", wget(&archive, &digest).await);
    for (url, subject) in [(&document, "a document"), (&archive, "an archive")] {
        add_row(report, "h2load", &format!("{subject}, 500 times"), h2load(url).await);
    }
    for (url, subject) in [(&document, "a document"), (&archive, "an archive")] {
        add_row(report, "REDbot", &format!("{subject}: no note of a fault"), redbot(tools, url).await);
    }
    add_row(
        report,
        "schemathesis",
        "every path, with anything in it: no 5xx",
        schemathesis(tools, larder.base()).await,
    );
}

/// Result of a program; `None` where the program is not installed.
type Outcome = Option<Result<(), String>>;

fn add_row(report: &mut Report, client: &str, subject: &str, outcome: Outcome) {
    let verdict = match outcome {
        None => Verdict::NotRun("the program is not installed".to_owned()),
        Some(Ok(())) => Verdict::Same,
        Some(Err(output)) => Verdict::Wrong(output),
    };
    report.row(client, "http", subject, verdict);
}

fn verify_archive(path: &Path, digest: &str) -> Result<(), String> {
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    if sha256_hex(&bytes) == digest { Ok(()) } else { Err(format!("{} other bytes", bytes.len())) }
}

async fn aria2c(url: &str, digest: &str) -> Outcome {
    let program = find("aria2c")?;
    let folder = tempfile::tempdir().unwrap();
    let arguments =
        ["--split=8", "--max-connection-per-server=8", "--min-split-size=1M", "--out=archive.zip", "--no-conf", url];
    let fetched = output_of(&program, &arguments, folder.path(), &[]).await;
    Some(fetched.and_then(|_| verify_archive(&folder.path().join("archive.zip"), digest)))
}

async fn wget(url: &str, digest: &str) -> Outcome {
    let program = find("wget")?;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(url.rsplit('/').next().unwrap_or_default());
    let fetch = async || output_of(&program, &["--no-config", "-N", "-o", "log", url], folder.path(), &[]).await;
    let fetched = fetch().await.and_then(|_| verify_archive(&file, digest));
    if fetched.is_err() {
        return Some(fetched);
    }
    if let Err(output) = fetch().await {
        return Some(Err(output));
    }
    let log = std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
    Some(if log.contains("304 Not Modified") { Ok(()) } else { Err(log) })
}

async fn h2load(url: &str) -> Outcome {
    let program = find("h2load")?;
    let folder = tempfile::tempdir().unwrap();
    let output = output_of(&program, &["--h1", "-n", "500", "-c", "4", url], folder.path(), &[]).await;
    Some(
        output.and_then(
            |output| if output.contains("500 succeeded, 0 failed, 0 errored") { Ok(()) } else { Err(output) },
        ),
    )
}

async fn redbot(tools: &Tools, url: &str) -> Outcome {
    let program = tools.program("redbot")?;
    let folder = tempfile::tempdir().unwrap();
    let output = output_of(&program, &["-o", "har", url], folder.path(), &[]).await;
    Some(output.and_then(|output| {
        let har: serde_json::Value = serde_json::from_str(&output).map_err(|error| format!("{error}: {output}"))?;
        let entry = &har["log"]["entries"][0];
        let notes = entry["_red_messages"].as_array().cloned().unwrap_or_default();
        let faults = notes.iter().filter(|note| ["BAD", "WARN"].iter().any(|level| note["level"] == *level));
        let faults: Vec<String> = faults.map(|note| note["summary"].to_string()).collect();
        let is_good = entry["response"]["status"] == 200 && !notes.is_empty() && faults.is_empty();
        if is_good { Ok(()) } else { Err(format!("{} {faults:?}", entry["response"]["status"])) }
    }))
}

async fn schemathesis(tools: &Tools, base: &str) -> Outcome {
    let program = tools.program("schemathesis")?;
    let folder = tempfile::tempdir().unwrap();
    let schema = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/paths.yaml");
    let arguments = [
        "run",
        schema,
        "--url",
        base,
        "--checks",
        "not_a_server_error",
        "--max-examples",
        "50",
        "--no-color",
        "--seed",
        "7",
    ];
    Some(output_of(&program, &arguments, folder.path(), &[]).await.map(drop))
}
