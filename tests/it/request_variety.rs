//! Varied requests: thousands of names and queries that are requested once leave no files and no memory.

use futures_util::{StreamExt, stream};

use crate::support::http::{client, get, send};
use crate::support::larder::{Folder, HOST, Larder};
use crate::support::process::Process;
use crate::support::upstream::{FakeUpstream, Provider};

const REQUESTS_PER_KIND: usize = 2000;
const MAX_GROWTH: u64 = 32 << 20;

/// A path under an unknown name: a provider, a registry, or a module.
fn unknown_path(number: usize) -> String {
    match number % 8 {
        0 | 1 => format!("/registry/{HOST}/v1/providers/acme/absent{number}/versions"),
        2 => format!("/registry/{HOST}/v1/providers/absent{number}/null/1.2.0/download/linux/amd64"),
        3 => format!("/mirror/{HOST}/acme/absent{number}/index.json"),
        4 => format!("/registry/absent{number}.example/v1/providers/acme/null/versions"),
        5 => format!("/archive/{HOST}/providers/acme/null/1.{number}.0/linux_amd64/0123456789abcdef/f{number}.zip"),
        6 => format!("/registry/{HOST}/v1/modules/acme/absent{number}/aws/versions"),
        _ => format!("/v1/modules/acme/absent{number}/aws/1.0.0/download"),
    }
}

async fn request_all(base: &str, paths: impl Iterator<Item = String>, expected: &[u16]) {
    let client = client();
    let answers = stream::iter(paths.map(|path| send(client.get(format!("{base}{path}")))));
    let mut answers = answers.buffer_unordered(8);
    while let Some(answer) = answers.next().await {
        let answer = answer.unwrap();
        assert!(expected.contains(&answer.status), "{} {}", answer.status, answer.text());
    }
}

/// Promise 11: memory does not grow with the variety of requests; neither do the store and the metrics.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_unknown_names_and_queries_leave_no_files() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(100_000));
    let folder = Folder::new();
    let larder = Process::start(&Larder::mirroring(&upstream).store_at(&folder), folder.path());
    let base = larder.base().to_owned();
    let archive = larder.archive_path("null").await;
    let stored = [
        format!("/registry/{HOST}/v1/providers/acme/null/versions"),
        format!("/registry/{HOST}/.well-known/terraform.json"),
        format!("/mirror/{HOST}/acme/null/1.2.0.json"),
        archive,
    ];
    let path_with_query = |number: usize| format!("{}?q{number}={}", stored[number % stored.len()], "x".repeat(200));
    let metrics = async || get(&format!("{}/metrics", larder.admin())).await.expect(200).text().lines().count();

    // Warm-up: every kind of request has run once, so its one-time memory is in use.
    request_all(&base, (0..400).map(|number| unknown_path(number + 1_000_000)), &[404, 421]).await;
    request_all(&base, (0..400).map(|number| path_with_query(number + 1_000_000)), &[200]).await;
    let (memory_before, file_count, metric_lines) = (larder.resident_bytes(), folder.files("").len(), metrics().await);

    request_all(&base, (0..REQUESTS_PER_KIND).map(unknown_path), &[404, 421]).await;
    let after_names = larder.resident_bytes();
    request_all(&base, (0..REQUESTS_PER_KIND).map(path_with_query), &[200]).await;
    let after = larder.resident_bytes();
    println!(
        "resident: {memory_before} bytes warm, {after_names} after {REQUESTS_PER_KIND} names, {after} after {REQUESTS_PER_KIND} queries"
    );
    assert!(
        after_names.max(after) < memory_before + MAX_GROWTH,
        "{memory_before} bytes became {after_names}, then {after}"
    );
    assert_eq!(metrics().await, metric_lines, "the metrics grew with the names that were asked for");
    assert!(folder.files("").len() <= file_count + 8, "{} files became {}", file_count, folder.files("").len());
}
