//! Varied requests: thousands of names and queries that are requested once leave no files and no memory.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use larder::clock::Clock;

use crate::support::http::{client, get, send};
use crate::support::larder::{Folder, HOST, Larder};
use crate::support::process::Process;
use crate::support::until;
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

/// Lets a registry list 2,000 versions of a name and serve none of them.
fn list_only(upstream: &FakeUpstream, name: &str) {
    let versions: Vec<_> = (0..2_000).map(|patch| serde_json::json!({"version": format!("1.0.{patch}")})).collect();
    let list = serde_json::json!({ "versions": versions }).to_string();
    upstream.serve_json(&format!("/v1/providers/acme/{name}/versions"), &list);
}

async fn document_bytes(larder: &Larder) -> u64 {
    get(&format!("{}/admin/v1/status", larder.admin())).await.expect(200).json()["document_bytes"].as_u64().unwrap()
}

/// Promise 11: what a registry lists and nobody installs leaves no record that is not counted, and none after a purge.
#[tokio::test]
async fn the_times_of_versions_that_are_only_listed_are_counted_and_go_with_the_list() {
    let upstream = FakeUpstream::start().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let names: Vec<String> = (0..20).map(|number| format!("listed{number}")).collect();
    for name in &names {
        list_only(&upstream, name);
        larder.versions(name).await.expect(200);
    }
    let times = larder.folder.files("seen");
    assert_eq!(times.len(), names.len());
    let bytes = larder.folder.size_of(&times);
    assert!(bytes < 20 * 200, "{bytes} bytes for {} first lists", names.len());
    let lists = larder.folder.size_of(&larder.folder.files("documents"));
    assert!(document_bytes(&larder).await >= lists + 20 * 4096, "each record takes a block of the disk");

    // The index counts them also after it was lost.
    let counted = document_bytes(&larder).await;
    let folder = larder.stop().await;
    folder.lose_index();
    let larder = Larder::mirroring(&upstream).store_at(&folder).start().await;
    until("the index is whole", async || document_bytes(&larder).await == counted).await;

    for name in &names {
        larder.run_command("purge", &format!("{HOST}/acme/{name}")).await;
    }
    assert_eq!(larder.folder.files("seen"), Vec::<PathBuf>::new());
}

/// Promise 11: the size limit holds for lists of names that nobody installs, and for their records.
#[tokio::test]
async fn lists_that_nobody_installs_from_stay_within_the_size_limit() {
    let upstream = FakeUpstream::start().await;
    let larder = Larder::mirroring(&upstream).store("max_size = \"1MiB\"").start().await;
    for number in 0..40 {
        let name = format!("listed{number}");
        list_only(&upstream, &name);
        larder.versions(&name).await.expect(200);
        larder.clock.advance(Duration::from_secs(60));
    }
    let size = |subfolder: &str| larder.folder.size_of(&larder.folder.files(subfolder));
    until("the store is within its limit", async || size("documents") + size("seen") <= 1 << 20).await;
    let has_list = |times: &PathBuf| {
        let name = times.parent().and_then(Path::file_name).unwrap();
        let list = format!("documents/{HOST}/providers/acme/{}/versions", name.display());
        larder.folder.record(&larder.folder.at(&list)).is_some()
    };
    let times = larder.folder.files("seen");
    assert!(times.len() > 5, "the newest lists stay");
    assert!(times.iter().all(has_list), "times are left without their list: {times:?}");
}

/// The times of a provider with a verified version stay without its list, and are right for each version.
#[tokio::test]
async fn the_times_of_a_provider_in_use_outlast_its_list() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").version("1.1.0"));
    upstream.publish(Provider::new("acme", "null"));
    let larder = Larder::mirroring(&upstream).always_revalidate().clock(&Clock::frozen()).start().await;
    let first = larder.clock.now().0;
    let path = larder.archive_path("null", "1.2.0").await;
    larder.get(&path).await.expect(200);
    larder.clock.advance(Duration::from_secs(100));
    upstream.publish(Provider::new("acme", "null").version("1.3.0"));
    larder.versions("null").await.expect(200);
    let times = larder.folder.at(&format!("seen/{HOST}/providers/acme/null/listed.json"));
    let read = || larder.folder.record(&times).unwrap();
    let later = first + 100;
    let while_listed = format!(r#"{{"first_list":{first},"others":{{"1.3.0":{later}}},"before":{{"1.3.0":{first}}}}}"#);
    assert!(read().contains(&while_listed), "{}", read());

    larder.run_command("purge", &format!("{HOST}/acme/null")).await;
    let without_list = format!(
        r#"{{"first_list":{first},"others":{{"1.1.0":{first},"1.2.0":{first},"1.3.0":{later}}},"before":{{"1.3.0":{first}}}}}"#
    );
    assert!(read().contains(&without_list), "{}", read());

    larder.clock.advance(Duration::from_secs(100));
    larder.versions("null").await.expect(200);
    assert!(read().contains(&while_listed), "{}", read());
}
