//! The provider network mirror protocol: responses are made of version lists and verified sums, without fetching
//! archives.

use std::collections::BTreeMap;
use std::io::{Cursor, Read};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use larder::clock::Clock;
use serde_json::{Value, json};

use crate::support::eventually;
use crate::support::http::{Answer, get};
use crate::support::larder::{HOST, Larder};
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target, sha256_hex};

const PLATFORMS: [&str; 4] = ["darwin_arm64", "freebsd_386", "linux_amd64", "windows_amd64"];

fn for_all_platforms(provider: Provider) -> Provider {
    PLATFORMS.iter().fold(provider, |provider, platform| provider.platform(platform))
}

fn mirror_path(name: &str, file: &str) -> String {
    format!("/mirror/{HOST}/acme/{name}/{file}.json")
}

async fn archives(larder: &Larder, version: &str) -> serde_json::Map<String, Value> {
    let answer = larder.get(&mirror_path("null", version)).await.expect(200);
    assert_eq!(answer.header("content-type"), "application/json");
    answer.json()["archives"].as_object().expect("archives are an object").clone()
}

fn zh(upstream: &FakeUpstream, version: &str, platform: &str) -> String {
    format!("zh:{}", sha256_hex(&upstream.archive_bytes("acme", "null", version, platform)))
}

/// The `h1:` hash that clients compute of a zip: one line for every entry, directories included (lock file hashes).
fn h1_of_zip(bytes: &[u8], has_directories: bool) -> String {
    let mut zip = zip::ZipArchive::new(Cursor::new(bytes)).unwrap();
    let mut lines = BTreeMap::new();
    for index in 0..zip.len() {
        let mut entry = zip.by_index(index).unwrap();
        let name = entry.name().unwrap().into_owned();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        if has_directories || !name.ends_with('/') {
            lines.insert(name.clone(), format!("{}  {name}\n", sha256_hex(&content)));
        }
    }
    let listing: String = lines.into_values().collect();
    format!("h1:{}", base64::prelude::BASE64_STANDARD.encode(digest(&SHA256, listing.as_bytes())))
}

/// The hashes of a platform, once they include an `h1:`: larder computes it in the background.
async fn hashes_with_h1(larder: &Larder, version: &str, platform: &str) -> Value {
    eventually("an `h1:` hash is listed", async || {
        let hashes = archives(larder, version).await[platform]["hashes"].clone();
        let has_h1 = hashes.as_array().unwrap().iter().any(|hash| hash.as_str().unwrap().starts_with("h1:"));
        has_h1.then_some(hashes)
    })
    .await
}

fn errors(answer: &Answer) -> String {
    answer.json()["errors"].as_array().expect("errors are a list")[0].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn the_index_lists_every_version_that_a_client_can_read() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").version("1.2.0").invalid_version("v1.3.0"));
    upstream.publish(Provider::new("acme", "null").version("01.3"));
    upstream.publish(Provider::new("acme", "null").version("2.0.0-beta.1+build.5"));
    let larder = Larder::mirroring(&upstream).start().await;
    let answer = larder.get(&mirror_path("null", "index")).await.expect(200);
    assert_eq!(answer.header("content-type"), "application/json");
    assert_eq!(answer.json(), json!({"versions": {"1.2.0": {}, "1.3.0": {}, "2.0.0-beta.1+build.5": {}}}));
    let counts = [Target::Versions, Target::Document, Target::Archive].map(|target| upstream.count_of(target));
    assert_eq!(counts, [1, 0, 0]);
}

/// A cold `VERSION.json` needs the version list, one proof set, and no archive.
#[tokio::test]
async fn an_uncached_version_has_the_zh_of_every_platform_from_one_proof_set_and_no_archive() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(for_all_platforms(Provider::new("acme", "null")));
    let larder = Larder::mirroring(&upstream).start().await;
    let archives = archives(&larder, "1.2.0").await;
    assert_eq!(archives.keys().collect::<Vec<_>>(), PLATFORMS);
    for platform in PLATFORMS {
        let hash = zh(&upstream, "1.2.0", platform);
        let url = format!(
            "/archive/{HOST}/providers/acme/null/1.2.0/{platform}/{}/terraform-provider-null_1.2.0_{platform}.zip",
            &hash[3..19]
        );
        assert_eq!(archives[platform], json!({"url": url, "hashes": [hash]}));
    }
    let targets = [Target::Versions, Target::Document, Target::Sums, Target::Signature, Target::Archive];
    assert_eq!(targets.map(|target| upstream.count_of(target)), [1, 1, 1, 1, 0]);
}

#[tokio::test]
async fn an_archive_url_works_for_a_platform_whose_proof_set_was_never_fetched() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(for_all_platforms(Provider::new("acme", "null")));
    let larder = Larder::mirroring(&upstream).start().await;
    let listed = archives(&larder, "1.2.0").await;
    assert_eq!(upstream.count_of(Target::Document), 1);
    for platform in PLATFORMS {
        let archive = larder.get(listed[platform]["url"].as_str().unwrap()).await.expect(200);
        assert!(archive.body == upstream.archive_bytes("acme", "null", "1.2.0", platform), "{platform}");
    }
    assert_eq!(upstream.count_of(Target::Archive), PLATFORMS.len());
    assert_eq!(upstream.count_of(Target::Document), PLATFORMS.len(), "each platform's own set proves its archive");
}

/// The `h1:` of the zip, also where directory entries make it differ from that of the unpacked folder.
#[tokio::test]
async fn the_h1_of_the_zip_is_listed_once_its_archive_is_stored() {
    for has_directories in [false, true] {
        let upstream = FakeUpstream::start().await;
        let provider = for_all_platforms(Provider::new("acme", "null")).size(50_000);
        upstream.publish(if has_directories { provider.directory_entries() } else { provider });
        let larder = Larder::mirroring(&upstream).start().await;
        let cold = archives(&larder, "1.2.0").await;
        larder.get(cold["linux_amd64"]["url"].as_str().unwrap()).await.expect(200);

        let bytes = upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64");
        let (zip, unpacked) = (h1_of_zip(&bytes, true), h1_of_zip(&bytes, false));
        assert_eq!(zip != unpacked, has_directories);
        let hashes = hashes_with_h1(&larder, "1.2.0", "linux_amd64").await;
        assert_eq!(hashes, json!([zh(&upstream, "1.2.0", "linux_amd64"), zip]));

        let stored = archives(&larder, "1.2.0").await;
        assert_eq!(stored["linux_amd64"]["url"], cold["linux_amd64"]["url"]);
        assert_eq!(stored["darwin_arm64"], cold["darwin_arm64"], "only the stored archive has an h1");
        assert_eq!(upstream.count_of(Target::Archive), 1);
    }
}

/// A platform whose file name does not follow the convention needs its own download document.
#[tokio::test]
async fn an_unconventional_file_name_requires_a_download_document_per_platform() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(for_all_platforms(Provider::new("acme", "null")).filename("null-for-{platform}.zip"));
    let larder = Larder::mirroring(&upstream).start().await;
    let archives = archives(&larder, "1.2.0").await;
    assert_eq!(archives.keys().collect::<Vec<_>>(), PLATFORMS);
    for platform in PLATFORMS {
        assert_eq!(archives[platform]["hashes"], json!([zh(&upstream, "1.2.0", platform)]));
        let url = archives[platform]["url"].as_str().unwrap();
        assert!(url.ends_with(&format!("/null-for-{platform}.zip")), "{url}");
    }
    assert_eq!((upstream.count_of(Target::Document), upstream.count_of(Target::Archive)), (4, 0));
}

#[tokio::test]
async fn the_platforms_of_a_version_come_from_the_version_list() {
    let upstream = FakeUpstream::start().await;
    let provider = Provider::new("acme", "null").platform("linux_amd64").platform("darwin_arm64");
    upstream.publish(provider.unlisted_platform("freebsd_386"));
    let larder = Larder::mirroring(&upstream).start().await;
    assert_eq!(archives(&larder, "1.2.0").await.keys().collect::<Vec<_>>(), ["darwin_arm64", "linux_amd64"]);
}

#[tokio::test]
async fn without_platforms_in_the_list_those_of_the_sums_are_used() {
    for entry in
        [r#"{"version":"1.2.0"}"#, r#"{"version":"1.2.0","platforms":[]}"#, r#"{"version":"1.2.0","platforms":null}"#]
    {
        let upstream = FakeUpstream::start().await;
        upstream.publish(for_all_platforms(Provider::new("acme", "null")));
        upstream.serve_json("/v1/providers/acme/null/versions", &format!("{{\"versions\":[{entry}]}}"));
        let larder = Larder::mirroring(&upstream).start().await;
        let archives = archives(&larder, "1.2.0").await;
        assert_eq!(archives.keys().collect::<Vec<_>>(), PLATFORMS, "{entry}");
        assert_eq!(archives["freebsd_386"]["hashes"], json!([zh(&upstream, "1.2.0", "freebsd_386")]));
        assert_eq!((upstream.count_of(Target::Document), upstream.count_of(Target::Archive)), (1, 0), "{entry}");
    }
}

/// A list may name a platform that does not exist: the other platforms are still served.
#[tokio::test]
async fn a_listed_platform_that_does_not_exist_is_omitted() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").platform("linux_amd64"));
    let list = get(&format!("{}/v1/providers/acme/null/versions", upstream.origin())).await.text();
    let list_with_plan9 = list.replace("[{\"os\"", "[{\"os\":\"plan9\",\"arch\":\"arm\"},{\"os\"");
    assert_ne!(list, list_with_plan9);
    upstream.serve_json("/v1/providers/acme/null/versions", &list_with_plan9);
    let larder = Larder::mirroring(&upstream).start().await;
    assert_eq!(archives(&larder, "1.2.0").await.keys().collect::<Vec<_>>(), ["linux_amd64"]);
}

/// A 404 for a version that the index lists would be fatal to the client.
#[tokio::test]
async fn a_platform_that_upstream_deleted_does_not_hide_the_others() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(for_all_platforms(Provider::new("acme", "null")));
    let larder = Larder::mirroring(&upstream).always_revalidate().upstream_lines("keep_gone = false").start().await;
    for platform in ["linux_amd64", "darwin_arm64"] {
        larder.document_for("null", "1.2.0", platform).await.expect(200);
    }
    upstream.fault(Target::Path("/download/darwin/arm64".into()), Fault::Status(404));
    assert!(archives(&larder, "1.2.0").await.contains_key("linux_amd64"));
}

#[tokio::test]
async fn a_version_is_found_under_its_normal_form() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(for_all_platforms(Provider::new("acme", "null").version("01.3")));
    let larder = Larder::mirroring(&upstream).start().await;
    let listed = archives(&larder, "1.3.0").await;
    assert_eq!(listed.keys().collect::<Vec<_>>(), PLATFORMS);
    assert_eq!(upstream.count_of(Target::Document), 1, "names in the upstream's own spelling follow the convention");
    let archive = larder.get(listed["windows_amd64"]["url"].as_str().unwrap()).await.expect(200);
    assert!(archive.body == upstream.archive_bytes("acme", "null", "01.3", "windows_amd64"));
}

/// With 404 the client would give up instead of asking its next installation method.
#[tokio::test]
async fn an_unknown_version_has_no_archives_and_is_no_error() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let larder = Larder::mirroring(&upstream).start().await;
    let answer = larder.get(&mirror_path("null", "9.9.9")).await.expect(200);
    assert_eq!(answer.text(), r#"{"archives":{}}"#);
    assert_eq!(answer.header("content-type"), "application/json");
    assert_eq!(upstream.count_of(Target::Document), 0);
}

/// An empty list says what upstream said a moment ago. Nothing is stored by it, so once it is stale and upstream is down,
/// the failure is reported.
#[tokio::test]
async fn a_version_whose_documents_are_all_404_has_no_archives_until_that_is_stale() {
    let mut upstream = FakeUpstream::start().await;
    upstream.publish(for_all_platforms(Provider::new("acme", "null")));
    upstream.fault(Target::Document, Fault::Status(404));
    let larder = Larder::mirroring(&upstream).clock(&Clock::frozen()).start().await;
    assert!(archives(&larder, "1.2.0").await.is_empty());
    upstream.stop().await;
    assert!(archives(&larder, "1.2.0").await.is_empty());
    larder.clock.advance(Duration::from_secs(31));
    larder.get(&mirror_path("null", "1.2.0")).await.expect(502);
}

#[tokio::test]
async fn an_unknown_provider_is_404() {
    let upstream = FakeUpstream::start().await;
    let larder = Larder::mirroring(&upstream).start().await;
    for file in ["index", "1.2.0"] {
        let answer = larder.get(&mirror_path("nothing", file)).await.expect(404);
        assert!(errors(&answer).contains(&format!("{HOST}/acme/nothing")), "{}", answer.text());
    }
    larder.get(&format!("/mirror/{HOST}/acme/null/index.html")).await.expect(404);
}

/// An upstream failure is never a 404, which would look like "no such provider".
#[tokio::test]
async fn a_failing_upstream_is_502_and_the_failure_is_not_cached() {
    for (target, file) in [(Target::Versions, "index"), (Target::Versions, "1.2.0"), (Target::Document, "1.2.0")] {
        for fault in [Fault::Status(501), Fault::Html, Fault::Status(401)] {
            let upstream = FakeUpstream::start().await;
            upstream.publish(Provider::new("acme", "null"));
            upstream.fault(target.clone(), fault.clone());
            let larder = Larder::mirroring(&upstream).start().await;
            let answer = larder.get(&mirror_path("null", file)).await;
            assert_eq!(answer.status, 502, "{target:?} {fault:?}: {}", answer.text());
            upstream.clear_faults();
            larder.get(&mirror_path("null", file)).await.expect(200);
        }
    }
}

/// Promise 1: hashes that fail verification are not listed.
#[tokio::test]
async fn hashes_are_never_taken_from_sums_that_do_not_verify() {
    for fault in [Fault::SumsChangedAfterSigning, Fault::SignedByAnotherKey] {
        let upstream = FakeUpstream::start().await;
        upstream.publish(for_all_platforms(Provider::new("acme", "null")));
        upstream.fault(Target::Everything, fault.clone());
        let larder = Larder::mirroring(&upstream).start().await;
        let answer = larder.get(&mirror_path("null", "1.2.0")).await;
        assert_eq!(answer.status, 502, "{fault:?}: {}", answer.text());
        assert!(!answer.text().contains("zh:"), "{}", answer.text());
        upstream.clear_faults();
        assert_eq!(archives(&larder, "1.2.0").await.len(), 4, "{fault:?}");
    }
}

#[tokio::test]
async fn archive_urls_begin_with_public_url_if_it_is_configured() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let larder = Larder::mirroring(&upstream).server("public_url = \"https://mirror.example/tf/\"").start().await;
    // The real address of the larder; the public URL is for clients.
    let larder_url = format!("http://{}", larder.address());
    let listed = get(&format!("{larder_url}{}", mirror_path("null", "1.2.0"))).await.expect(200).json();
    let url = listed["archives"]["linux_amd64"]["url"].as_str().unwrap();
    let path = url.strip_prefix("https://mirror.example").unwrap_or_else(|| panic!("{url}"));
    let archive = get(&format!("{larder_url}{path}")).await.expect(200);
    assert!(archive.body == upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64"));
}
