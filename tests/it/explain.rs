//! `larder explain`: what it says a client would get is what the client then gets, for each row of the caching rules, and
//! it asks no upstream and changes nothing.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::command_setup::{CommandSetup, json as parse};
use crate::support::eventually;
use crate::support::http::get;
use crate::support::larder::{Builder, Folder, HOST, Larder};
use crate::support::module_fixture::{ModuleFixture, tar_gz};
use crate::support::null_provider::{always_revalidating, edition, install, upstream_with};
use crate::support::terraform::Terraform;
use crate::support::upstream::{FakeUpstream, Fault, Provider, SigningKey, Target};

/// The longest time that the breaker of an upstream stays open.
const LONGEST_BREAK: Duration = Duration::from_secs(3600);

fn discovery() -> String {
    format!("/registry/{HOST}/.well-known/terraform.json")
}

fn list() -> String {
    format!("/registry/{HOST}/v1/providers/acme/null/versions")
}

fn document() -> String {
    format!("/registry/{HOST}/v1/providers/acme/null/1.2.0/download/linux/amd64")
}

fn mirror_version() -> String {
    format!("/mirror/{HOST}/acme/null/1.2.0.json")
}

/// The status line and the headers of a client's answer.
#[derive(Debug)]
struct Seen {
    status: u16,
    reason: String,
    cache_status: String,
}

/// Requests a path over a connection of its own, as a client does; reads the reason phrase, too.
async fn request(larder: &Larder, path: &str) -> Seen {
    let mut stream = TcpStream::connect(larder.address()).await.unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", larder.address());
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // A body may break off.
    let _ = stream.read_to_end(&mut answer).await;
    let text = String::from_utf8_lossy(&answer).into_owned();
    let head = text.split("\r\n\r\n").next().unwrap();
    let (status, reason) = head.lines().next().unwrap().strip_prefix("HTTP/1.1 ").unwrap().split_once(' ').unwrap();
    let cache_status = head.lines().find_map(|line| line.strip_prefix("cache-status: ")).unwrap_or("");
    Seen { status: status.parse().unwrap(), reason: reason.to_owned(), cache_status: cache_status.to_owned() }
}

pub(crate) async fn explain(larder: &Larder, name: &str, value: &str) -> Value {
    let query: String = url::form_urlencoded::Serializer::new(String::new())
        .append_pair(name, value)
        .append_pair("platform", "linux_amd64")
        .finish();
    get(&format!("{}/admin/v1/explain?{query}", larder.admin())).await.expect(200).json()
}

/// The step of the requested URL.
fn requested(report: &Value) -> &Value {
    let steps = report["steps"].as_array().unwrap();
    steps.iter().find(|step| step["requested"] == true).unwrap_or_else(|| panic!("{report:#}"))
}

/// Explains a URL, and then requests it: both answers are the same, and the explanation asked nobody. Returns the step.
async fn assert_agrees(larder: &Larder, upstream: &FakeUpstream, path: &str, row: &str) -> Value {
    let (requests, connections) = (upstream.requests().len(), upstream.connections());
    let report = explain(larder, "url", path).await;
    assert_eq!((upstream.requests().len(), upstream.connections()), (requests, connections), "{row}: {path}");
    let step = requested(&report).clone();
    let seen = request(larder, path).await;
    assert_eq!(step["status"], json!(seen.status), "{row}: {path}: {seen:?}\n{step:#}");
    match step["answer"].as_str().unwrap() {
        "served" => assert_eq!(step["cache_status"], seen.cache_status.as_str(), "{row}: {path}: {seen:?}\n{step:#}"),
        "refused" => assert_eq!(step["reason"], seen.reason.as_str(), "{row}: {path}: {seen:?}\n{step:#}"),
        other => panic!("{row}: {path}: {other}: {seen:?}\n{step:#}"),
    }
    step
}

/// With nothing stored: upstream fails once for each path, and from then on the explanation knows.
async fn assert_agrees_with_empty_store(
    builder: impl Fn(&FakeUpstream) -> Builder,
    fault: &Fault,
    paths: &[(Target, String)],
) {
    for (target, path) in paths {
        let upstream = upstream_with(edition(1)).await;
        let larder = builder(&upstream).start().await;
        upstream.fault(target.clone(), fault.clone());
        let report = explain(&larder, "url", path).await;
        assert_eq!(requested(&report)["answer"], "asks-upstream", "{fault:?}: {report:#}");
        let first = request(&larder, path).await;
        assert_ne!(first.status, 200, "{fault:?} {path}");
        for _ in 0..2 {
            let step = assert_agrees(&larder, &upstream, path, &format!("{fault:?}, nothing stored")).await;
            assert_eq!(step["status"], json!(first.status), "{step:#}");
            // The breaker of the origin may be open: what is not stored is requested all the same.
            larder.clock.advance(LONGEST_BREAK);
        }
        upstream.clear_faults();
        assert_eq!(request(&larder, path).await.status, 200, "{fault:?} {path}");
        assert_agrees(&larder, &upstream, path, &format!("{fault:?}, after it")).await;
    }
}

/// With everything stored: the stored copies are served, as the explanation says, while the breaker is open and after.
async fn assert_agrees_with_full_store(
    builder: impl Fn(&FakeUpstream) -> Builder,
    fault: &Fault,
    paths: &[(Target, String)],
    detail: &str,
) {
    for (target, path) in paths {
        let upstream = upstream_with(edition(1)).await;
        let larder = builder(&upstream).start().await;
        install(&larder).await;
        for path in [discovery(), list(), document(), mirror_version()] {
            assert_eq!(request(&larder, &path).await.status, 200);
        }
        assert_agrees(&larder, &upstream, path, &format!("{fault:?}, before it")).await;
        upstream.fault(target.clone(), fault.clone());
        assert_eq!(request(&larder, path).await.status, 200, "{fault:?} {path}");
        for _ in 0..2 {
            let step = assert_agrees(&larder, &upstream, path, &format!("{fault:?}, stored")).await;
            assert_eq!(step["cache_status"], format!("larder; hit; detail={detail}"), "{fault:?}: {step:#}");
            larder.clock.advance(LONGEST_BREAK);
        }
        upstream.clear_faults();
        larder.clock.advance(LONGEST_BREAK);
        request(&larder, path).await;
        larder.clock.advance(LONGEST_BREAK);
        let step = assert_agrees(&larder, &upstream, path, &format!("{fault:?}, after it")).await;
        assert_eq!(step["cache_status"], "larder; fwd=stale; stored", "{fault:?}: {step:#}");
    }
}

fn documents() -> [(Target, String); 2] {
    [(Target::Versions, list()), (Target::Document, document())]
}

async fn assert_row(fault: Fault, detail: &str) {
    assert_agrees_with_empty_store(always_revalidating, &fault, &documents()).await;
    assert_agrees_with_full_store(always_revalidating, &fault, &documents(), detail).await;
}

/// 404 and 410; 401, 403 and 451.
#[tokio::test]
async fn deleted_and_denied_documents_are_explained_as_a_client_gets_them() {
    for status in [404, 410] {
        assert_row(Fault::Status(status), "gone").await;
    }
    for status in [401, 403, 451] {
        assert_row(Fault::Status(status), "stale").await;
    }
}

/// A 404 is remembered: the explanation says so before and after larder forgets it.
#[tokio::test]
async fn a_remembered_404_is_explained_as_a_client_gets_it() {
    let upstream = upstream_with(edition(1)).await;
    let larder = Larder::mirroring(&upstream).start().await;
    for path in
        [list().replace("null", "later"), document().replace("1.2.0", "9.9.9"), document().replace("amd64", "arm")]
    {
        assert_eq!(request(&larder, &path).await.status, 404);
        for _ in 0..2 {
            assert_agrees(&larder, &upstream, &path, "404").await;
            larder.clock.advance(Duration::from_secs(31));
        }
    }
}

/// Other 4xx; 429, 5xx and 508; an upstream that resets, or answers what is no document.
#[tokio::test]
async fn failures_of_an_upstream_are_explained_as_a_client_gets_them() {
    for fault in [
        Fault::StatusBody(422, "{\"errors\":[\"no such thing as that\"]}"),
        Fault::RetryAfter(429, 3600),
        Fault::Status(500),
        Fault::RetryAfter(503, 3600),
        Fault::Status(508),
        Fault::InvalidJson,
        Fault::Html,
        Fault::HugeJson,
        Fault::Status(204),
    ] {
        assert_row(fault, "stale").await;
    }
    assert_agrees_with_empty_store(always_revalidating, &Fault::Truncated(10), &documents()).await;
}

/// Connections are refused, and the certificate is not trusted.
#[tokio::test]
async fn an_unreachable_upstream_is_explained_as_a_client_gets_it() {
    let mut upstream = upstream_with(edition(1)).await;
    let (empty, full) = (always_revalidating(&upstream).start().await, always_revalidating(&upstream).start().await);
    install(&full).await;
    request(&full, &list()).await;
    upstream.stop().await;
    for path in [list(), document()] {
        assert_eq!((request(&empty, &path).await.status, request(&full, &path).await.status), (502, 200));
        for _ in 0..2 {
            assert_agrees(&empty, &upstream, &path, "refused, nothing stored").await;
            assert_agrees(&full, &upstream, &path, "refused, stored").await;
            full.clock.advance(LONGEST_BREAK);
        }
    }
    let untrusted = FakeUpstream::builder().tls().start().await;
    untrusted.publish(edition(1));
    let larder = always_revalidating(&untrusted).start().await;
    assert_eq!(request(&larder, &list()).await.status, 502);
    assert_agrees(&larder, &untrusted, &list(), "not trusted").await;
}

/// An upstream that is silent, or that answers later than a client waits.
#[tokio::test]
async fn a_slow_upstream_is_explained_as_a_client_gets_it() {
    let impatient = |upstream: &FakeUpstream| {
        always_revalidating(upstream).answer_within(Duration::from_millis(500)).upstream_timeout(Duration::from_secs(1))
    };
    for (target, path) in documents() {
        let upstream = upstream_with(edition(1)).await;
        let larder = impatient(&upstream).start().await;
        upstream.fault(target, Fault::NeverAnswers);
        assert_eq!(request(&larder, &path).await.status, 504);
        for _ in 0..2 {
            // A request that joins the running fetch may see its end.
            eventually("the fetch is given up", async || {
                let report = explain(&larder, "url", &path).await;
                let failure = requested(&report)["last_answer"]["failure"].as_str().unwrap().to_owned();
                failure.contains("no whole answer").then_some(())
            })
            .await;
            let step = assert_agrees(&larder, &upstream, &path, "silent, nothing stored").await;
            assert_eq!((&step["status"], &step["rule"]), (&json!(504), &json!("last-answer-late")), "{step:#}");
        }
    }
    let late = |upstream: &FakeUpstream| {
        always_revalidating(upstream).answer_within(Duration::from_millis(900)).upstream_lines("patience = \"300ms\"")
    };
    for (target, path) in documents() {
        let upstream = upstream_with(edition(1)).await;
        let larder = late(&upstream).start().await;
        let gate = upstream.hold_headers(target.clone());
        assert_eq!(request(&larder, &path).await.status, 504);
        assert_agrees(&larder, &upstream, &path, "late, nothing stored").await;
        gate.open();
        eventually("the late document is stored", async || (request(&larder, &path).await.status == 200).then_some(()))
            .await;
        let gate = upstream.hold_headers(target);
        assert_eq!(request(&larder, &path).await.cache_status, "larder; hit; detail=stale");
        assert_agrees(&larder, &upstream, &path, "late, stored").await;
        gate.open();
    }
}

/// An archive whose URL is refused, that is slow, or whose bytes are wrong; and files of the proof set.
#[tokio::test]
async fn a_failing_archive_is_explained_as_a_client_gets_it() {
    for fault in [Fault::Status(404), Fault::Status(403), Fault::Status(500), Fault::WrongBytes, Fault::Stalls(10)] {
        let upstream = upstream_with(edition(1)).await;
        let builder = always_revalidating(&upstream).stall_timeout(Duration::from_millis(300));
        let larder = builder.upstream_timeout(Duration::from_secs(1)).start().await;
        let path = larder.archive_path("null", "1.2.0").await;
        assert_eq!(requested(&explain(&larder, "url", &path).await)["answer"], "asks-upstream", "{fault:?}");
        upstream.fault(Target::Archive, fault.clone());
        let first = request(&larder, &path).await;
        assert!(first.status >= 500, "{fault:?}: {first:?}");
        assert_agrees(&larder, &upstream, &path, &format!("{fault:?}, nothing stored")).await;
        upstream.clear_faults();
        assert_eq!(request(&larder, &path).await.status, 200);
        upstream.fault(Target::Archive, fault.clone());
        let step = assert_agrees(&larder, &upstream, &path, &format!("{fault:?}, stored")).await;
        assert_eq!(step["cache_status"], "larder; hit");
    }
    let of_document = [(Target::Sums, document()), (Target::Signature, document())];
    for fault in [Fault::Status(404), Fault::Status(403), Fault::Status(451), Fault::Status(500)] {
        assert_agrees_with_empty_store(always_revalidating, &fault, &of_document).await;
        assert_agrees_with_full_store(always_revalidating, &fault, &of_document, "stale").await;
    }
}

/// A large archive streams before it is verified: the client has a good status, and the body breaks off. The explanation
/// says what happened last time.
#[tokio::test]
async fn an_archive_that_broke_off_is_explained_by_its_last_answer() {
    let upstream = upstream_with(edition(1).size(3 << 20)).await;
    let larder = Larder::mirroring(&upstream).start().await;
    let path = larder.archive_path("null", "1.2.0").await;
    upstream.fault(Target::Archive, Fault::WrongLastByte);
    assert_eq!(request(&larder, &path).await.status, 200);
    let step = eventually("the end of the download is known", async || {
        let report = explain(&larder, "url", &path).await;
        let step = requested(&report).clone();
        step["last_answer"]["broke_off"].as_bool().map(|_| step)
    })
    .await;
    assert_eq!(step["answer"], "asks-upstream", "{step:#}");
    assert!(step["last_answer"]["failure"].as_str().unwrap().contains("SHA-256"), "{step:#}");
}

/// Discovery is 404, is not JSON, or lacks the service.
#[tokio::test]
async fn a_registry_without_discovery_is_explained_as_a_client_gets_it() {
    for fault in [Fault::Status(404), Fault::Html, Fault::InvalidJson, Fault::ContentType("text/plain")] {
        let upstream = upstream_with(edition(1)).await;
        let (empty, full) =
            (always_revalidating(&upstream).start().await, always_revalidating(&upstream).start().await);
        install(&full).await;
        for path in [discovery(), list(), document()] {
            assert_eq!(request(&full, &path).await.status, 200);
        }
        upstream.fault(Target::Discovery, fault.clone());
        for path in [discovery(), list(), document()] {
            assert_eq!(request(&empty, &path).await.status, 502);
            assert_agrees(&empty, &upstream, &path, &format!("discovery {fault:?}, nothing stored")).await;
            request(&full, &path).await;
            assert_agrees(&full, &upstream, &path, &format!("discovery {fault:?}, stored")).await;
        }
        // Once discovery is back, the explanation of what it led to is not that of the time before.
        upstream.clear_faults();
        assert_eq!(request(&empty, &discovery()).await.status, 200);
        assert_eq!(requested(&explain(&empty, "url", &list()).await)["answer"], "asks-upstream", "{fault:?}");
    }
    let upstream = upstream_with(edition(1)).await;
    let (empty, full) = (always_revalidating(&upstream).start().await, always_revalidating(&upstream).start().await);
    install(&full).await;
    request(&full, &list()).await;
    upstream.serve_json("/.well-known/terraform.json", "{\"modules.v1\":\"/v1/modules/\"}");
    for path in [list(), document()] {
        assert_eq!((request(&empty, &path).await.status, request(&full, &path).await.status), (502, 200));
        assert_agrees(&empty, &upstream, &path, "no providers.v1, nothing stored").await;
        assert_agrees(&full, &upstream, &path, "no providers.v1, stored").await;
    }
}

/// A signature or a digest is wrong.
#[tokio::test]
async fn a_set_that_does_not_verify_is_explained_as_a_client_gets_it() {
    let paths = [(Target::Everything, document())];
    for fault in [Fault::SumsChangedAfterSigning, Fault::UnparsableKey, Fault::ArchiveNotInSums, Fault::WrongShasum] {
        assert_agrees_with_empty_store(always_revalidating, &fault, &paths).await;
    }
    let upstream = upstream_with(edition(1)).await;
    let larder = Larder::mirroring(&upstream).start().await;
    upstream.fault(Target::Everything, Fault::SignedByAnotherKey);
    request(&larder, &document()).await;
    let report = explain(&larder, "address", "acme/null@1.2.0").await;
    assert_eq!((&report["verdict"], &report["steps"][2]["status"]), (&json!("refused"), &json!(502)), "{report:#}");
    assert_eq!(report["decided_by"], 2, "{report:#}");
    assert!(report["steps"][2]["cause"].as_str().unwrap().contains("key"), "{report:#}");
}

/// A version was published again by another key, or lists no key any more: the version waits for `accept`.
#[tokio::test]
async fn a_version_that_waits_for_accept_is_explained_as_a_client_gets_it() {
    let changed = |edition: Provider| edition.signed_by(&SigningKey::new_key());
    for (row, republished) in [("republished", changed(edition(2))), ("no keys", edition(1).without_keys())] {
        let upstream = upstream_with(edition(1)).await;
        let larder =
            always_revalidating(&upstream).upstream_lines("verification = \"signature-if-keys\"").start().await;
        install(&larder).await;
        request(&larder, &list()).await;
        upstream.publish(republished);
        assert_eq!(request(&larder, &document()).await.status, 200, "{row}");
        assert_agrees(&larder, &upstream, &document(), &format!("{row}, stored")).await;
        larder.run_command("purge", "acme/null@1.2.0").await;
        assert_eq!(request(&larder, &document()).await.status, 502, "{row}");
        let step = assert_agrees(&larder, &upstream, &document(), &format!("{row}, nothing stored")).await;
        assert_eq!(step["rule"], "waits-for-accept", "{row}: {step:#}");
        let report = explain(&larder, "address", "acme/null@1.2.0").await;
        let commands: Vec<&str> =
            report["to_do"].as_array().unwrap().iter().filter_map(|advice| advice["command"].as_str()).collect();
        assert!(commands.iter().any(|command| command.starts_with("larder accept ")), "{row}: {report:#}");
        larder.run_command("accept", "acme/null@1.2.0").await;
        let step = assert_agrees(&larder, &upstream, &document(), &format!("{row}, accepted")).await;
        assert_eq!(step["status"], 200, "{row}: {step:#}");
    }
}

/// Offline: what is stored, what is not, and a known version on another platform. Nothing is listed as missing by an
/// explanation.
#[tokio::test]
async fn an_offline_larder_is_explained_as_a_client_gets_it() {
    let upstream = upstream_with(edition(1).platform("linux_amd64").platform("darwin_arm64")).await;
    let larder = Larder::mirroring(&upstream).start().await;
    install(&larder).await;
    let archive = larder.archive_path("null", "1.2.0").await;
    for path in [discovery(), list()] {
        request(&larder, &path).await;
    }
    let folder = larder.stop().await;
    let larder = Larder::mirroring(&upstream).network("offline = true").store_at(&folder).start().await;
    let absent = [
        document().replace("linux/amd64", "darwin/arm64"),
        document().replace("1.2.0", "9.9.9"),
        document().replace("null", "never"),
        list().replace("null", "never"),
        mirror_version().replace("1.2.0", "9.9.9"),
        archive.replace("linux_amd64/", "darwin_arm64/"),
    ];
    for path in &absent {
        explain(&larder, "url", path).await;
    }
    explain(&larder, "address", "acme/never@1.0.0").await;
    let missing = get(&format!("{}/admin/v1/missing", larder.admin())).await.json();
    assert_eq!(missing["what"], Value::Null, "an explanation is no request of a client: {missing}");
    for advance in [Duration::ZERO, Duration::from_secs(48 * 3600)] {
        larder.clock.advance(advance);
        for path in [&[discovery(), list(), document(), mirror_version(), archive.clone()], &absent[..]].concat() {
            assert_agrees(&larder, &upstream, &path, "offline").await;
        }
    }
    let report = explain(&larder, "address", "acme/never@1.0.0").await;
    assert_eq!((&report["verdict"], &report["rules"]["offline"]), (&json!("refused"), &json!(true)), "{report:#}");
    let mut commands = report["to_do"].as_array().unwrap().iter().filter_map(|advice| advice["command"].as_str());
    assert!(commands.any(|command| command.starts_with("larder bundle create")), "{report:#}");
    assert_eq!(upstream.count_where(|request| request.path.contains("never")), 0);
}

/// Fresh documents, unknown hosts, paths that lead nowhere, and the network mirror.
#[tokio::test]
async fn any_of_larders_urls_is_explained_as_a_client_gets_it() {
    let upstream = upstream_with(edition(1)).await;
    let larder = Larder::mirroring(&upstream).start().await;
    install(&larder).await;
    let archive = larder.archive_path("null", "1.2.0").await;
    let sums = larder.document("null", "1.2.0").await.json()["shasums_url"].as_str().unwrap().to_owned();
    let index = format!("/mirror/{HOST}/acme/null/index.json");
    for path in [discovery(), list(), document(), mirror_version(), index, archive.clone(), sums] {
        request(&larder, &path).await;
        assert_agrees(&larder, &upstream, &path, "stored").await;
    }
    for path in [
        "/registry/elsewhere.example/v1/providers/acme/null/versions",
        "/mirror/elsewhere.example/acme/null/index.json",
        "/registry/registry.terraform.io/v1/providers/acme/null/versions/",
        "/v1/providers/acme/null/versions",
        "/archive/registry.terraform.io/nothing",
        "/registry/registry.terraform.io/v1/providers/a..b/null/versions",
        "/nowhere",
    ] {
        let step = assert_agrees(&larder, &upstream, path, "no route").await;
        assert_eq!(step["rule"], "no-route", "{step:#}");
    }
    // The same URL as a client sees it, as a log shows it, and as a client of `larder run` sees it.
    let run = format!("/run/{}", "0123456789abcdef".repeat(2));
    assert_agrees(&larder, &upstream, &format!("{run}{}", document()), "of a run").await;
    for url in [
        format!("{}{archive}", larder.base()),
        format!("http://mirror.corp.example{archive}?x=1"),
        format!("{}{run}{archive}", larder.base()),
    ] {
        let report = explain(&larder, "url", &url).await;
        assert_eq!((&report["version"], &report["platform"]), (&json!("1.2.0"), &json!("linux_amd64")), "{url}");
        assert_eq!(requested(&report)["step"], "archive", "{url}");
    }
    assert_eq!(requested(&explain(&larder, "url", "/healthz").await)["answer"], "refused");
}

/// An upstream with a port whose name leads to larder: its URLs are those of that upstream, and of no other.
#[tokio::test]
async fn a_url_with_the_port_of_an_upstream_is_explained_as_a_client_gets_it() {
    let (other, upstream) = (upstream_with(edition(1)).await, upstream_with(edition(1)).await);
    let larder = Larder::mirroring(&other)
        .upstream("registry.corp:8443", &upstream.origin(), "")
        .server(&format!("default_upstream = \"{HOST}\""))
        .start()
        .await;
    let path = "/v1/providers/acme/null/versions";
    let report = explain(&larder, "url", &format!("https://registry.corp:8443{path}")).await;
    assert_eq!(report["address"], "registry.corp:8443/acme/null", "{report:#}");
    larder.get_with(path, &[("host", "registry.corp:8443")]).await.expect(200);
    assert_eq!((other.requests().len(), upstream.count_where(|request| request.path == path)), (0, 1));
    let report = explain(&larder, "url", &format!("https://mirror.corp:8443{path}")).await;
    assert_eq!(report["address"], format!("{HOST}/acme/null"), "{report:#}");
}

/// A module: its list, its location and its archive.
#[tokio::test]
async fn modules_are_explained_as_a_client_gets_them() {
    let fixture = ModuleFixture::with_one_module().await;
    let (list, location) = (
        format!("/registry/{HOST}/v1/modules/acme/one/test/versions"),
        format!("/registry/{HOST}/v1/modules/acme/one/test/1.0.0/download"),
    );
    let larder = fixture.larder().always_revalidate().start().await;
    for (target, path) in [(Target::ModuleVersions, &list), (Target::Location, &location)] {
        for status in [404, 403, 500] {
            fixture.registry.fault(target.clone(), Fault::Status(status));
            request(&larder, path).await;
            assert_agrees(&larder, &fixture.registry, path, &format!("module {status}, nothing stored")).await;
            fixture.registry.clear_faults();
            larder.clock.advance(LONGEST_BREAK);
        }
    }
    fixture.archives.fault(Target::Everything, Fault::Status(500));
    assert_eq!(request(&larder, &location).await.status, 502);
    assert_agrees(&larder, &fixture.registry, &location, "the source of a module fails").await;
    fixture.archives.clear_faults();
    larder.clock.advance(LONGEST_BREAK);
    let report = explain(&larder, "address", "acme/one/test@1.0.0").await;
    assert_eq!(report["steps"][2]["step"], "location", "{report:#}");
    let answer = larder.get(&location).await.expect(204);
    let archive = answer.header("x-terraform-get").to_owned();
    for (target, path, detail) in [(Target::ModuleVersions, &list, "stale"), (Target::Location, &location, "stale")] {
        request(&larder, path).await;
        fixture.registry.fault(target, Fault::Status(500));
        request(&larder, path).await;
        let step = assert_agrees(&larder, &fixture.registry, path, "module, stored").await;
        assert_eq!(step["cache_status"], format!("larder; hit; detail={detail}"), "{step:#}");
        fixture.registry.clear_faults();
        larder.clock.advance(LONGEST_BREAK);
    }
    let path = archive.split('?').next().unwrap();
    assert_agrees(&larder, &fixture.registry, path, "the archive of a module").await;
    let report = explain(&larder, "url", &archive.replace("module.tar.gz", "module.tar.gz//modules/x")).await;
    assert_eq!(requested(&report)["step"], "archive", "{report:#}");

    // Another tree for the same version waits for accept.
    fixture.publish_archive("one", &tar_gz(&[("main.tf", b"# another\n")]));
    larder.run_command("purge", "acme/one/test@1.0.0").await;
    assert_eq!(request(&larder, &location).await.status, 502);
    let step = assert_agrees(&larder, &fixture.registry, &location, "another tree").await;
    assert_eq!(step["rule"], "waits-for-accept", "{step:#}");
}

/// A module at a source that larder cannot fetch: the client gets the location, and fetches the module there itself.
/// Offline it gets an error.
#[tokio::test]
async fn a_module_at_a_source_that_larder_cannot_fetch_is_explained_as_a_client_gets_it() {
    let fixture = ModuleFixture::start().await;
    fixture.publish("one", "s3::https://s3-eu-west-1.amazonaws.com/acme-modules/net.zip");
    let path = format!("/registry/{HOST}/v1/modules/acme/one/test/1.0.0/download");
    let larder = fixture.larder().start().await;
    request(&larder, &path).await;
    for _ in 0..2 {
        let step = assert_agrees(&larder, &fixture.registry, &path, "elsewhere").await;
        assert_eq!((&step["rule"], &step["status"]), (&json!("elsewhere"), &json!(204)), "{step:#}");
        larder.clock.advance(Duration::from_secs(48 * 3600));
    }
    for (name, value) in [("address", "acme/one/test@1.0.0"), ("url", &*path)] {
        let report = explain(&larder, name, value).await;
        assert_eq!((&report["verdict"], &report["decided_by"]), (&json!("elsewhere"), &json!(2)), "{report:#}");
        let advice = report["to_do"][0]["text"].as_str().unwrap_or_else(|| panic!("{report:#}"));
        assert!(advice.contains("the client fetches it from there"), "{report:#}");
    }
    let folder = larder.stop().await;
    let larder = fixture.larder_on(&folder).network("offline = true").start().await;
    let step = assert_agrees(&larder, &fixture.registry, &path, "elsewhere, offline").await;
    assert_eq!(step["rule"], "elsewhere", "{step:#}");
    let report = explain(&larder, "address", "acme/one/test@1.0.0").await;
    assert_eq!((&report["verdict"], &report["decided_by"]), (&json!("refused"), &json!(2)), "{report:#}");
    let advice = report["to_do"].as_array().unwrap();
    assert!(advice.len() == 1 && advice[0]["text"].as_str().unwrap().contains("no bundle"), "{report:#}");
}

/// The bytes of every file of the store but its index, by path.
fn content(folder: &Folder) -> BTreeMap<PathBuf, Vec<u8>> {
    let below = ["names", "documents", "seen", "alarms", "blobs", "jobs", "staging", "aside"];
    let files = below.iter().flat_map(|below| folder.files(below));
    files.map(|file| (file.clone(), folder.bytes(&file))).collect()
}

/// An explanation asks no upstream, changes no file, and is no use of an archive.
#[tokio::test]
async fn an_explanation_has_no_effect() {
    let upstream = upstream_with(edition(1)).await;
    upstream.publish(edition(1).version("1.3.0"));
    let larder = always_revalidating(&upstream).start().await;
    install(&larder).await;
    let archive = larder.archive_path("null", "1.2.0").await;
    request(&larder, &list()).await;
    let listed = || async { get(&format!("{}/admin/v1/list", larder.admin())).await.expect(200).json() };
    // The hashes of a new archive are written a moment later.
    eventually("the hashes are stored", async || larder.folder.has_all_hashes().then_some(())).await;
    larder.clock.advance(Duration::from_secs(7200));
    let (before, listed_before) = (content(&larder.folder), listed().await);
    let served = larder.metric("larder_upstream_requests_total").await;
    upstream.forget_requests();
    let connections = upstream.connections();
    let urls = [
        discovery(),
        list(),
        document(),
        mirror_version(),
        archive,
        document().replace("1.2.0", "1.3.0"),
        document().replace("null", "never"),
    ];
    for url in urls {
        explain(&larder, "url", &url).await;
    }
    for address in [
        "acme/null",
        "acme/null@1.2.0",
        "acme/null@1.3.0",
        "acme/null@~> 1.0",
        "acme/never",
        "acme/x/y@1.0.0",
        "elsewhere.example/acme/null@1.0.0",
    ] {
        explain(&larder, "address", address).await;
    }
    assert_eq!((upstream.requests().len(), upstream.connections()), (0, connections));
    assert_eq!(larder.metric("larder_upstream_requests_total").await, served);
    assert!(content(&larder.folder) == before, "an explanation changed the store");
    assert_eq!(listed().await, listed_before);
    let missing = get(&format!("{}/admin/v1/missing", larder.admin())).await.json();
    assert_eq!(missing["what"], Value::Null, "{missing}");
}

/// The whole provider: its versions, what is stored of them, what upstream has dropped.
#[tokio::test]
async fn a_provider_as_a_whole_is_explained_by_its_versions() {
    let upstream = upstream_with(edition(1)).await;
    for version in ["1.3.0", "2.0.0-rc.1"] {
        upstream.publish(edition(1).version(version));
    }
    let larder = always_revalidating(&upstream).start().await;
    install(&larder).await;
    upstream.withdraw("acme", "null", "1.2.0");
    request(&larder, &list()).await;
    let report = explain(&larder, "address", "acme/null").await;
    let versions = &report["versions"];
    assert_eq!(
        (&versions["listed"], &versions["newest"], &versions["stored_versions"]),
        (&json!(3), &json!("1.3.0"), &json!(1)),
        "{report:#}"
    );
    assert_eq!(
        (&versions["stored"], &versions["dropped"]),
        (&json!([{"version": "1.2.0", "platforms": ["linux_amd64"]}]), &json!(["1.2.0"])),
        "{report:#}"
    );
    let chosen = explain(&larder, "address", "acme/null@>= 1.0").await;
    assert_eq!(chosen["version"], "1.3.0", "{chosen:#}");
    let none = explain(&larder, "address", "acme/null@> 3").await;
    assert_eq!(
        (&none["verdict"], &none["version"], &none["choice"]["by"]),
        (&json!("refused"), &Value::Null, &json!("none"))
    );
    assert!(none["choice"]["reason"].as_str().unwrap().contains("none of the 3 listed versions"), "{none:#}");
    for (query, problem) in
        [("", "what to explain"), ("?address=x", "is not an address"), ("?address=a/b&platform=x", "platform")]
    {
        let refused = get(&format!("{}/admin/v1/explain{query}", larder.admin())).await.expect(400);
        assert!(refused.text().contains(problem), "{query}: {}", refused.text());
    }
}

/// Without a version the answer is that about the version which `init` chooses now, however many others are stored.
#[tokio::test]
async fn without_a_version_the_verdict_is_that_of_what_init_chooses() {
    let Some(terraform) = Terraform::find() else { return };
    let upstream = upstream_with(edition(1)).await;
    let larder = always_revalidating(&upstream).start().await;
    install(&larder).await;
    let init = async || {
        let mut workspace = terraform.workspace();
        workspace.require("acme/null", ">= 0").cli_config(larder.client_config());
        workspace.init().await
    };
    let explained = async |address: &str| {
        let report = explain(&larder, "address", address).await;
        let [verdict, version, by] = [&report["verdict"], &report["version"], &report["choice"]["by"]];
        [verdict, version, by].map(|text| text.as_str().unwrap_or("-").to_owned())
    };
    let everyone = ["acme/null", "acme/null@>= 1.0"];
    for address in everyone {
        assert_eq!(explained(address).await, ["served", "1.2.0", "client"], "{address}");
    }
    assert!(init().await.status.success());

    upstream.publish(edition(1).version("1.3.0"));
    upstream.fault(Target::Everything, Fault::SignedByAnotherKey);
    larder.clock.advance(Duration::from_secs(600));
    let failed = init().await;
    assert!(!failed.status.success() && failed.one_line().contains("1.3.0"), "{}", failed.one_line());
    for address in everyone {
        assert_eq!(explained(address).await, ["refused", "1.3.0", "client"], "{address}");
    }
    assert_eq!(explained("acme/null@1.2.0").await, ["served", "1.2.0", "request"]);
    assert_eq!(explained("acme/null@~> 1.2.0").await, ["served", "1.2.0", "client"]);
}

/// The command prints the cause first, then the chain with a URL for each step, with the running larder and without.
#[tokio::test]
async fn the_command_names_the_cause_before_the_chain() {
    let upstream = upstream_with(edition(1)).await;
    let setup = CommandSetup::new(&upstream);
    let running = setup.serve();
    let path = running.archive_path("null").await;
    running.get(&path).await.expect(200);
    let good = setup.stdout_of(&["explain", "acme/null@1.2.0", "--platform", "linux_amd64"]).await;
    let first = good.lines().next().unwrap();
    assert!(first.starts_with("acme/null 1.2.0 (linux_amd64): SERVED from the store"), "{good}");
    for part in ["discovery", "version list", "download document", "archive", "signed by ", "curl -sSi '"] {
        assert!(good.contains(part), "{part} is not in\n{good}");
    }
    for line in good.lines().filter_map(|line| line.trim().strip_prefix("curl -sSi '")) {
        let url = line.strip_suffix('\'').unwrap();
        assert!(url.starts_with(&setup.base()), "{url}");
        assert!([200, 204].contains(&get(url).await.status), "{url}");
    }

    upstream.publish(edition(1).version("1.3.0"));
    upstream.fault(Target::Everything, Fault::SignedByAnotherKey);
    let refused = document().replace("1.2.0", "1.3.0");
    running.get(&refused).await.expect(404);
    setup.run(&["refresh", "acme/null"]).await;
    running.get(&refused).await.expect(502);
    let text = setup.stdout_of(&["explain", &refused]).await;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "acme/null 1.3.0 (linux_amd64): REFUSED with 502", "{text}");
    assert!(lines[1].starts_with("  cause") && lines[1].contains("key"), "{text}");
    assert!(text.find("to do").unwrap() < text.find("What a client asks").unwrap(), "{text}");
    assert!(text.contains("REFUSED  download document  502  for the cause above"), "{text}");
    let report = parse(&setup.stdout_of(&["explain", "acme/null@1.3.0", "--platform", "linux_amd64", "--json"]).await);
    assert_eq!(report["verdict"], "refused");
    let text = setup.stdout_of(&["explain", "acme/null", "--platform", "linux_amd64"]).await;
    assert!(text.starts_with("acme/null 1.3.0 (linux_amd64): REFUSED with 502\n  cause "), "{text}");
    assert!(
        text.contains("\n  version    `init` without a lock file chooses 1.3.0 now, of 2 listed versions\n"),
        "{text}"
    );
    assert!(
        text.contains("Versions: 2 listed versions, the newest is 1.3.0; 1 can be installed from the store."),
        "{text}"
    );
    let text = setup.stdout_of(&["explain", "acme/null@> 9"]).await;
    let none = "acme/null: NO VERSION that a client would choose\n  cause      none of the 2 listed versions matches ";
    assert!(text.starts_with(none), "{text}");
    running.terminate_promptly().await;

    // Without a larder, what it last heard of upstream is not known.
    let alone = setup.stdout_of(&["explain", "acme/null@1.3.0", "--platform", "linux_amd64"]).await;
    assert!(alone.lines().next().unwrap().contains("FETCHED from upstream"), "{alone}");
    assert!(alone.contains("larder warm registry.terraform.io/acme/null@1.3.0 --platform linux_amd64"), "{alone}");
}
