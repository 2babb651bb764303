//! `providers.v1` through larder: what changes, what stays, and which requests are refused.

use http::header::AUTHORIZATION;
use indexmap::IndexMap;
use serde_json::value::RawValue;

use crate::support::http::{Answer, client, get, send};
use crate::support::larder::{HOST, Larder};
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target, sha256_hex};

/// The members of the download document that name files.
const URLS: [&str; 3] = ["download_url", "shasums_url", "shasums_signature_url"];

/// A JSON object with its members as they were written, in their order.
type RawObject = IndexMap<String, Box<RawValue>>;

fn parse_raw(text: &str) -> RawObject {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// The members that are not file URLs, as text.
fn fields_without_urls(text: &str) -> Vec<(String, String)> {
    let members = parse_raw(text).into_iter().filter(|(name, _)| !URLS.contains(&name.as_str()));
    members.map(|(name, value)| (name, value.get().to_owned())).collect()
}

/// The three paths that a document names.
fn urls(document: &Answer) -> [String; 3] {
    let json = document.json();
    URLS.map(|name| json[name].as_str().unwrap().to_owned())
}

fn document_path(version: &str) -> String {
    format!("/v1/providers/acme/null/{version}/download/linux/amd64")
}

fn first_error(answer: &Answer) -> String {
    answer.json()["errors"].as_array().expect("errors are a list")[0].as_str().unwrap().to_owned()
}

/// Fetches every document and file of acme/null 1.2.0 and compares them with upstream's.
async fn assert_all_files_served(larder: &Larder, upstream: &FakeUpstream, case: &str) {
    let document = larder.document("null", "1.2.0").await.expect(200);
    let expected_files = [
        upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64"),
        upstream.sums_bytes("acme", "null", "1.2.0"),
        upstream.signature_bytes("acme", "null", "1.2.0"),
    ];
    for (url, expected) in urls(&document).into_iter().zip(expected_files) {
        let answer = larder.get(&url).await.expect(200);
        assert_eq!(answer.header("location"), "", "{case}: {url}");
        assert!(answer.body == expected, "{case}: other bytes at {url}");
    }
}

/// Promise 5: of the download document only the three URLs change.
#[tokio::test]
async fn only_the_three_urls_of_a_download_document_change() {
    let upstream = FakeUpstream::start().await;
    let provider = Provider::new("acme", "null").platform("linux_amd64").platform("darwin_arm64");
    upstream.publish(provider.unknown_fields().packages_member().protocols(&["5.1", "6"]));
    let larder = Larder::mirroring(&upstream).start().await;
    let upstream_document = get(&format!("{}{}", upstream.origin(), document_path("1.2.0"))).await.expect(200).text();
    let larder_document = larder.document("null", "1.2.0").await.expect(200);
    assert_eq!(fields_without_urls(&larder_document.text()), fields_without_urls(&upstream_document));
    let (names, upstream_names) = (parse_raw(&larder_document.text()), parse_raw(&upstream_document));
    assert_eq!(names.keys().collect::<Vec<_>>(), upstream_names.keys().collect::<Vec<_>>());
    for part in ["1e400", "[ 1 ,{\"er\":null} ]", "\"\\u00e9 \\/\"", "\"packages\""] {
        assert!(
            upstream_document.contains(part) && larder_document.text().contains(part),
            "{part}: {}",
            larder_document.text()
        );
    }
}

/// Promise 2: each URL contains the digest of the file that it names.
#[tokio::test]
async fn each_url_carries_the_digest_of_its_own_file() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let larder = Larder::mirroring(&upstream).start().await;
    let version = format!("/archive/{HOST}/providers/acme/null/1.2.0");
    let folder = format!("{version}/linux_amd64");
    let digest = |bytes: Vec<u8>| sha256_hex(&bytes)[..16].to_owned();
    let archive = digest(upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64"));
    let sums = digest(upstream.sums_bytes("acme", "null", "1.2.0"));
    let signature = digest(upstream.signature_bytes("acme", "null", "1.2.0"));
    let expected = [
        format!("{folder}/{archive}/terraform-provider-null_1.2.0_linux_amd64.zip"),
        format!("{version}/{sums}/SHA256SUMS"),
        format!("{version}/{signature}/SHA256SUMS.sig"),
    ];
    assert_eq!(urls(&larder.document("null", "1.2.0").await.expect(200)), expected);

    let wrong_path = format!("{folder}/{sums}/terraform-provider-null_1.2.0_linux_amd64.zip");
    larder.get(&wrong_path).await.expect(404);
    larder.get(&format!("{folder}/{archive}/other.zip")).await.expect(404);
    assert_eq!(upstream.count_of(Target::Archive), 0);
}

/// Promise 5: archives, SHA256SUMS and signatures are byte-identical to upstream's.
#[tokio::test]
async fn archive_sums_and_signature_are_byte_identical_when_cold_and_when_stored() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(2_000_000));
    let larder = Larder::mirroring(&upstream).start().await;
    assert_all_files_served(&larder, &upstream, "cold").await;
    assert_all_files_served(&larder, &upstream, "stored").await;
    assert_eq!(upstream.count_of(Target::Archive), 1);
    assert_eq!((upstream.count_of(Target::Sums), upstream.count_of(Target::Signature)), (1, 1));
}

/// One invalid version string would make the whole list fail in older clients.
#[tokio::test]
async fn versions_that_no_client_can_parse_are_removed_from_the_list_and_all_else_is_kept() {
    let upstream = FakeUpstream::start().await;
    let provider = Provider::new("acme", "null").version("1.2.0").unknown_fields().warning("moved to \"acme2\"");
    upstream.publish(provider.invalid_version("v1.2.3").invalid_version("latest").invalid_version("1.2.3.4"));
    upstream.publish(Provider::new("acme", "null").version("2.0.0-beta.1+build.5"));
    let larder = Larder::mirroring(&upstream).start().await;
    let upstream_document =
        parse_raw(&get(&format!("{}/v1/providers/acme/null/versions", upstream.origin())).await.text());
    let answer = larder.versions("null").await.expect(200);
    let larder_document = parse_raw(&answer.text());
    let entries = |list: &RawObject| -> Vec<String> {
        let entries: Vec<Box<RawValue>> = serde_json::from_str(list["versions"].get()).unwrap();
        entries.iter().map(|entry| entry.get().to_owned()).collect()
    };
    assert_eq!((entries(&upstream_document).len(), entries(&larder_document).len()), (5, 2));
    assert_eq!(entries(&larder_document), entries(&upstream_document)[..2]);
    for (name, value) in upstream_document.iter().filter(|(name, _)| *name != "versions") {
        assert_eq!(larder_document[name].get(), value.get(), "{name}");
    }
    assert_eq!(answer.text().matches("1e400").count(), 3);
    assert!(larder_document["warnings"].get().contains("moved to"));
    assert_eq!(answer.header("content-type"), "application/json");
}

/// Clients request the normalised version, and upstream only knows its own spelling.
#[tokio::test]
async fn a_normalised_version_is_requested_from_upstream_in_upstreams_spelling() {
    for (spelling, normal) in [("01.2", "1.2.0"), ("3", "3.0.0"), ("1.0.0-beta.1+build.5", "1.0.0-beta.1+build.5")] {
        let upstream = FakeUpstream::start().await;
        upstream.publish(Provider::new("acme", "null").version(spelling));
        let larder = Larder::mirroring(&upstream).start().await;
        let document = larder.document("null", normal).await.expect(200);
        assert_eq!(upstream.count(&document_path(spelling)), 1, "{spelling}");
        assert_eq!(upstream.count_of(Target::Document), 1, "{spelling}");
        let archive = larder.get(&urls(&document)[0]).await.expect(200);
        assert!(archive.body == upstream.archive_bytes("acme", "null", spelling, "linux_amd64"));
        let list = larder.versions("null").await.expect(200).json();
        assert_eq!(list["versions"][0]["version"], spelling);
    }
}

/// An upper-case shasum is accepted and passed on unchanged.
#[tokio::test]
async fn an_upper_case_shasum_is_relayed_as_it_is() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let upstream_document = get(&format!("{}{}", upstream.origin(), document_path("1.2.0"))).await.text();
    let shasum = sha256_hex(&upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64"));
    upstream.serve_json(&document_path("1.2.0"), &upstream_document.replace(&shasum, &shasum.to_uppercase()));
    let larder = Larder::mirroring(&upstream).start().await;
    assert_eq!(larder.document("null", "1.2.0").await.expect(200).json()["shasum"], shasum.to_uppercase());
    assert_all_files_served(&larder, &upstream, "upper case").await;
}

/// Relative URLs resolve against the final URL of the document.
#[tokio::test]
async fn relative_urls_in_a_redirected_document_resolve_against_its_final_url() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let upstream_document = get(&format!("{}{}", upstream.origin(), document_path("1.2.0"))).await.text();
    let relative = upstream_document.replace(&format!("{}/releases/", upstream.origin()), "../../releases/");
    assert_ne!(upstream_document, relative);
    upstream.serve_json("/moved/to/here.json", &relative);
    upstream.fault(Target::Document, Fault::RedirectTo(307, "/moved/to/here.json".into()));
    let larder = Larder::mirroring(&upstream).start().await;
    assert_all_files_served(&larder, &upstream, "relative").await;
}

/// Promise 7: larder follows redirects itself and never passes them to the client.
#[tokio::test]
async fn larder_follows_every_kind_of_redirect_for_every_document_and_file() {
    for status in [301, 302, 303, 307, 308] {
        let upstream = FakeUpstream::start().await;
        upstream.publish(Provider::new("acme", "null"));
        upstream.fault(Target::Everything, Fault::Redirect(status));
        let larder = Larder::mirroring(&upstream).start().await;
        assert_eq!(larder.versions("null").await.expect(200).header("location"), "");
        assert_all_files_served(&larder, &upstream, &status.to_string()).await;
        for target in [Target::Versions, Target::Document, Target::Sums, Target::Signature, Target::Archive] {
            assert_eq!(upstream.count_of(target.clone()), 2, "{status} {target:?}");
        }
    }
}

#[tokio::test]
async fn files_on_another_origin_behind_redirects_are_served_completely() {
    for status in [302, 307] {
        let upstream = FakeUpstream::builder().releases_elsewhere().redirected_urls(status).start().await;
        upstream.publish(Provider::new("acme", "null").size(1_500_000));
        let larder = Larder::mirroring(&upstream).start().await;
        assert_all_files_served(&larder, &upstream, &status.to_string()).await;
        let shown = larder.document("null", "1.2.0").await.text();
        assert!(!shown.contains(&upstream.releases_origin()), "the client is shown the other origin: {shown}");
    }
}

/// Promise 13: all spellings of a host have one key, so they cause one upstream request.
#[tokio::test]
async fn every_spelling_of_a_host_is_one_key_and_one_upstream_request() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let origin = format!("{}/", upstream.origin());
    let larder = Larder::builder()
        .upstream("registry.example", &origin, "")
        .upstream("Bücher.example", &origin, "")
        .start()
        .await;
    for spellings in [
        &[
            "registry.example",
            "REGISTRY.Example",
            "registry%2Eexample",
            "registry.example:443",
            "registry.example%3A443",
        ] as &[&str],
        &["b%C3%BCcher.example", "B%C3%9Ccher.example", "xn--bcher-kva.example", "XN--BCHER-KVA.example:443"],
    ] {
        upstream.forget_requests();
        let mut bodies = Vec::new();
        for host in spellings {
            for name in ["acme/null", "Acme/NULL"] {
                let path = format!("/registry/{host}/v1/providers/{name}/1.2.0/download/linux/amd64");
                bodies.push(larder.get(&path).await.expect(200).body);
                larder.get(&format!("/mirror/{host}/{name}/index.json")).await.expect(200);
            }
        }
        bodies.dedup();
        assert_eq!(bodies.len(), 1, "{spellings:?}");
        for target in [Target::Discovery, Target::Versions, Target::Document, Target::Sums, Target::Signature] {
            assert_eq!(upstream.count_of(target.clone()), 1, "{spellings:?} {target:?}");
        }
    }
    larder.get("/registry/registry.example./v1/providers/acme/null/versions").await.expect(421);
    larder.get("/registry/registry.example:8443/v1/providers/acme/null/versions").await.expect(421);
}

/// Promise 13: two registries never mix.
#[tokio::test]
async fn the_same_version_of_two_registries_keeps_its_own_bytes() {
    let (first, second) = (FakeUpstream::start().await, FakeUpstream::start().await);
    first.publish(Provider::new("acme", "null"));
    second.publish(Provider::new("acme", "null").edition(2));
    let other = "registry.opentofu.org";
    let larder = Larder::mirroring(&first).upstream(other, &format!("{}/", second.origin()), "").start().await;
    for (host, upstream) in [(HOST, &first), (other, &second)] {
        let document = larder.get(&format!("/registry/{host}{}", document_path("1.2.0"))).await.expect(200);
        let archive = larder.get(&urls(&document)[0]).await.expect(200);
        assert!(archive.body == upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64"), "{host}");
        // The digest of one registry's archive is 404 under the other registry.
        let elsewhere = urls(&document)[0].replace(host, if host == HOST { other } else { HOST });
        larder.get(&elsewhere).await.expect(404);
    }
}

/// Promise 7: larder only sends requests to configured upstreams.
#[tokio::test]
async fn a_host_that_is_not_configured_is_reported_with_the_reason() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let larder = Larder::mirroring(&upstream).start().await;
    for host in ["registry.elsewhere.example", &upstream.host(), "registry.terraform.io:8443"] {
        for path in [
            format!("/registry/{host}/v1/providers/acme/null/versions"),
            format!("/registry/{host}{}", document_path("1.2.0")),
            format!("/mirror/{host}/acme/null/index.json"),
            format!("/mirror/{host}/acme/null/1.2.0.json"),
            format!("/archive/{host}/providers/acme/null/1.2.0/linux_amd64/0123456789abcdef/SHA256SUMS"),
        ] {
            // With 404 a network mirror lets the client go on to its other installation methods.
            let status = if path.starts_with("/registry/") { 421 } else { 404 };
            let text = first_error(&larder.get(&path).await.expect(status));
            assert!(text.contains(host) && text.contains("[[upstream]]"), "{path}: {text}");
        }
    }
    assert_eq!(upstream.count_of(Target::Everything), 0);
}

#[tokio::test]
async fn invalid_names_versions_platforms_and_digests_are_400() {
    let upstream = FakeUpstream::start().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let long = "a".repeat(129);
    let providers = format!("/registry/{HOST}/v1/providers");
    let archive = format!("/archive/{HOST}/providers/acme/null");
    for path in [
        format!("{providers}/acme/-null/versions"),
        format!("{providers}/ac%20me/null/versions"),
        format!("{providers}/acme%2Fevil/null/versions"),
        format!("{providers}/acme/%00/versions"),
        format!("{providers}/acme/%FF/versions"),
        format!("{providers}/acme/n%C3%BCll/versions"),
        format!("{providers}//null/versions"),
        format!("{providers}/acme/{long}/versions"),
        format!("{providers}/{long}/null/1.2.0/download/linux/amd64"),
        format!("{providers}/acme/null/v1.2.0/download/linux/amd64"),
        format!("{providers}/acme/null/1.2.3.4/download/linux/amd64"),
        format!("{providers}/acme/null/latest/download/linux/amd64"),
        format!("{providers}/acme/null/1.2.0-{long}/download/linux/amd64"),
        format!("{providers}/acme/null/1.2.0/download/Linux/amd64"),
        format!("{providers}/acme/null/1.2.0/download/linux/amd_64"),
        format!("/mirror/{HOST}/acme/null/v1.2.0.json"),
        format!("/mirror/{HOST}/acme/null/{long}.json"),
        format!("{archive}/1.2.0/linux_amd64/0123456789ABCDEF/f.zip"),
        format!("{archive}/1.2.0/linux_amd64/0123456789abcde/f.zip"),
        format!("{archive}/1.2.0/linux_amd64/0123456789abcdeg/f.zip"),
        format!("{archive}/1.2.0/linux/0123456789abcdef/f.zip"),
        format!("{archive}/1.2.0/linux_amd64/0123456789abcdef/{long}"),
        format!("{archive}/1.2.0/linux_amd64/0123456789abcdef/a%20b.zip"),
        format!("/registry/{long}/v1/providers/acme/null/versions"),
        "/registry/under_score.example/v1/providers/acme/null/versions".to_owned(),
    ] {
        let answer = larder.get(&path).await;
        assert_eq!(answer.status, 400, "{path}: {}", answer.text());
        assert!(!first_error(&answer).is_empty());
    }
    assert_eq!(larder.get("/v1/providers/acme/null/versions").await.status, 421);
    for path in ["/", "/v2/", "/git/x", "/archive/~x/y", "/admin/v1/status"] {
        assert_eq!(larder.get(path).await.status, 404, "{path}");
    }
    assert_eq!(upstream.count_of(Target::Everything), 0);
}

#[tokio::test]
async fn only_get_and_head_are_answered() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let larder = Larder::mirroring(&upstream).start().await;
    let url = format!("{}acme/null/versions", larder.providers_url(HOST));
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PURGE"] {
        let request = client().request(method.parse().unwrap(), &url).body("x");
        let answer = send(request).await.unwrap().expect(405);
        assert_eq!(answer.header("allow"), "GET, HEAD", "{method}");
        assert!(!first_error(&answer).is_empty(), "{method}");
    }
    assert_eq!(upstream.count_of(Target::Everything), 0);
}

#[tokio::test]
async fn an_unknown_platform_version_or_provider_is_404() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let larder = Larder::mirroring(&upstream).start().await;
    for answer in [
        larder.document_for("null", "1.2.0", "plan9_arm").await,
        larder.document("null", "9.9.9").await,
        larder.document("nothing", "1.2.0").await,
        larder.versions("nothing").await,
    ] {
        let output = first_error(&answer.expect(404));
        assert!(
            output.contains(HOST) && (output.contains("404") || output.contains("does not name 9.9.9")),
            "{output}"
        );
    }
    larder.document("null", "1.2.0").await.expect(200);
}

/// A well-formed but unlisted archive URL costs one upstream request while its 404 is cached (option `not_found`).
#[tokio::test]
async fn an_unlisted_archive_url_is_404_and_costs_one_upstream_request() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let larder = Larder::mirroring(&upstream).start().await;
    for (name, version) in [("null", "1.2.0"), ("null", "9.9.9"), ("nothing", "1.2.0")] {
        upstream.forget_requests();
        let folder = format!("/archive/{HOST}/providers/acme/{name}/{version}/linux_amd64");
        for digest in ["0123456789abcdef", "0123456789abcdef", "fedcba9876543210"] {
            let text = first_error(&larder.get(&format!("{folder}/{digest}/f.zip")).await.expect(404));
            assert!(text.contains(&format!("{HOST}/acme/{name}")), "{text}");
        }
        // A version that the list lacks is not requested.
        let requests = usize::from(version != "9.9.9");
        assert_eq!(upstream.count_of(Target::Document), requests, "{name} {version}");
        assert_eq!(upstream.count_of(Target::Archive), 0, "{name} {version}");
    }
    // The default of `not_found` is 30 s.
    larder.clock.advance(std::time::Duration::from_secs(31));
    upstream.forget_requests();
    larder
        .get(&format!("/archive/{HOST}/providers/acme/null/9.9.9/linux_amd64/0123456789abcdef/f.zip"))
        .await
        .expect(404);
    assert_eq!((upstream.count_of(Target::Versions), upstream.count_of(Target::Document)), (1, 0));
}

/// The document is fetched again once, because registries sign URLs that expire; then the answer is 502.
#[tokio::test]
async fn a_listed_file_that_upstream_does_not_serve_is_502_and_not_cached() {
    for target in [Target::Sums, Target::Signature, Target::Archive] {
        for status in [400, 401, 403, 404, 410] {
            let upstream = FakeUpstream::start().await;
            upstream.publish(Provider::new("acme", "null"));
            upstream.fault(target.clone(), Fault::Status(status));
            let larder = Larder::mirroring(&upstream).start().await;
            let document = larder.document("null", "1.2.0").await;
            let refused = match target {
                Target::Archive => larder.get(&urls(&document.expect(200))[0]).await,
                _ => document,
            };
            assert_eq!(refused.status, 502, "{target:?} {status}: {}", refused.text());
            assert!(first_error(&refused).contains(&status.to_string()), "{}", refused.text());
            assert_eq!(upstream.count_of(Target::Document), 2, "{target:?} {status}");
            assert_eq!(upstream.count_of(target.clone()), 2, "{target:?} {status}");
            upstream.clear_faults();
            assert_all_files_served(&larder, &upstream, "recovered").await;
        }
    }
}

/// An expired URL is replaced from a fresh document, and the client sees no failure.
#[tokio::test]
async fn an_archive_whose_signed_url_has_expired_is_fetched_from_its_new_one() {
    for size in [100_000, 2_000_000] {
        let upstream = FakeUpstream::builder().signed_urls().start().await;
        upstream.publish(Provider::new("acme", "null").size(size));
        let larder = Larder::mirroring(&upstream).start().await;
        larder.document("null", "1.2.0").await.expect(200);
        upstream.expire_urls();
        assert_all_files_served(&larder, &upstream, "expired").await;
        assert_eq!(upstream.count_of(Target::Document), 2);
    }
}

/// Promise 7: a URL names everything that is needed to find its file, so it outlives a store.
#[tokio::test]
async fn the_urls_of_a_document_work_at_a_larder_that_never_fetched_it() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let first = Larder::mirroring(&upstream).start().await;
    let expected_files = [
        upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64"),
        upstream.sums_bytes("acme", "null", "1.2.0"),
        upstream.signature_bytes("acme", "null", "1.2.0"),
    ];
    for (url, expected) in urls(&first.document("null", "1.2.0").await.expect(200)).into_iter().zip(expected_files) {
        let new_larder = Larder::mirroring(&upstream).start().await;
        assert!(new_larder.get(&url).await.expect(200).body == expected, "{url}");
    }
}

/// Promise 8: a client's credentials are never sent upstream.
#[tokio::test]
async fn the_clients_own_credentials_are_never_forwarded() {
    let upstream = FakeUpstream::builder().releases_elsewhere().start().await;
    upstream.publish(Provider::new("acme", "null"));
    let larder = Larder::mirroring(&upstream).start().await;
    let secret = [("authorization", "Bearer client-secret"), ("cookie", "session=client-secret")];
    let path = format!("/registry/{HOST}{}", document_path("1.2.0"));
    let document = larder.get_with(&path, &secret).await.expect(200);
    for url in urls(&document) {
        larder.get_with(&url, &secret).await.expect(200);
    }
    assert_eq!(upstream.count_of(Target::Archive), 1);
    for request in upstream.requests() {
        assert!(!format!("{:?}", request.headers).contains("client-secret"), "{request:?}");
        assert!(!request.headers.contains_key(AUTHORIZATION), "{request:?}");
    }
}

/// Promise 8: an upstream's credentials go to its own origin, never to one that a document or a redirect leads to.
#[tokio::test]
async fn the_upstreams_token_goes_to_the_registry_and_not_to_the_origin_of_the_files() {
    let upstream = FakeUpstream::builder().releases_elsewhere().redirected_urls(302).token("t0ken").start().await;
    upstream.publish(Provider::new("acme", "null"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "t0ken\n").unwrap();
    let line = format!("token = {{ file = \"{}\" }}", file.display());
    let larder = Larder::mirroring(&upstream).upstream_lines(&line).start().await;
    assert_all_files_served(&larder, &upstream, "with a token").await;

    let moved = get_as("t0ken", &format!("{}{}", upstream.origin(), document_path("1.2.0"))).await.text();
    upstream.serve_json("/moved.json", &moved.replace("linux", "darwin").replace("amd64", "arm64"));
    let elsewhere = format!("{}/moved.json", upstream.releases_origin());
    upstream.fault(Target::Document, Fault::RedirectTo(302, elsewhere));
    upstream.forget_requests();
    larder.document_for("null", "1.2.0", "darwin_arm64").await;
    let authorized = |target: Target| {
        let all = upstream.requests().into_iter().filter(move |request| request.target == target);
        all.map(|request| request.header("authorization").map(str::to_owned)).collect::<Vec<_>>()
    };
    assert_eq!(authorized(Target::Document), [Some("Bearer t0ken".to_owned())]);
    assert_eq!(upstream.count("/moved.json"), 1);
    for request in upstream.requests().iter().filter(|request| request.path == "/moved.json") {
        assert_eq!(request.header("authorization"), None);
    }
}

/// Promise 8: every request of a plain installation to the registry carries the token, and no other request does.
#[tokio::test]
async fn the_token_is_on_every_request_to_the_registry_and_on_no_other() {
    let upstream = FakeUpstream::builder().releases_elsewhere().redirected_urls(307).token("t0ken").start().await;
    upstream.publish(Provider::new("acme", "null"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "t0ken").unwrap();
    let line = format!("token = {{ file = \"{}\" }}", file.display());
    let larder = Larder::mirroring(&upstream).upstream_lines(&line).start().await;
    larder.versions("null").await.expect(200);
    assert_all_files_served(&larder, &upstream, "with a token").await;
    for request in upstream.requests() {
        let is_registry = matches!(request.target, Target::Discovery | Target::Versions | Target::Document);
        let expected = is_registry.then_some("Bearer t0ken");
        assert_eq!(request.header("authorization"), expected, "{} {}", request.path, request.query);
    }
    let files = [Target::Sums, Target::Signature, Target::Archive].map(|target| upstream.count_of(target));
    assert_eq!(files, [1, 1, 1]);
}

async fn get_as(token: &str, url: &str) -> Answer {
    send(client().get(url).bearer_auth(token)).await.unwrap().expect(200)
}

#[tokio::test]
async fn the_short_paths_work_where_the_host_is_an_upstream() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let larder = Larder::mirroring(&upstream).start().await;
    let long = larder.document("null", "1.2.0").await.expect(200);
    let with_port = format!("{HOST}:{}", larder.address().port());
    for host in [HOST, with_port.as_str()] {
        let short = larder.get_with(&document_path("1.2.0"), &[("host", host)]).await.expect(200);
        assert_eq!(short.body, long.body);
        let list = larder.get_with("/v1/providers/acme/null/versions", &[("host", host)]).await.expect(200);
        assert_eq!(list.json()["versions"][0]["version"], "1.2.0");
    }
    assert_eq!(upstream.count_of(Target::Document), 1);
}
