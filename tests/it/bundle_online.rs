//! Bundles imported by a larder that also has upstreams and serves clients.

use std::io::Write;
use std::time::Duration;

use larder::clock::Clock;

use crate::support::bundle_transfer::{BundleKey, applied_receipt, apply_bundle, bundle, bundle_of, outcomes, warm_up};
use crate::support::larder::{HOST, Larder};
use crate::support::published_module::publish_net_module;
use crate::support::until;
use crate::support::upstream::{FakeUpstream, Module, Provider, Target};

/// The time between two uses of archives. Eviction compares the seconds of their last uses, so each use needs a later
/// second than the one before.
const BETWEEN_USES: Duration = Duration::from_secs(120);

/// An upstream with version 1.2.0 of these providers of acme; each archive has 300 kB.
async fn upstream_publishing(names: &[&str]) -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    for name in names {
        upstream.publish(Provider::new("acme", name).size(300_000));
    }
    upstream
}

/// Fetches an archive by its download document and returns its path. The clock then advances, so that a later use
/// counts as more recent.
async fn install(larder: &Larder, name: &str) -> String {
    let path = larder.archive_path(name, "1.2.0").await;
    larder.get(&path).await.expect(200);
    larder.clock.advance(BETWEEN_USES);
    path
}

/// The receipt reports stored entries as `held`, so they must still be stored when the import ends.
#[tokio::test]
async fn stored_archives_of_a_bundle_are_not_evicted_for_its_other_archives() {
    let (upstream, key) = (upstream_publishing(&["one", "other", "two", "three", "four"]).await, BundleKey::new());
    let bytes = bundle(&upstream, &key, &["acme/one", "acme/other"], &["linux_amd64"]).await;
    let larder = key.with_trusted_key(Larder::mirroring(&upstream)).store("max_size = \"1MiB\"").start().await;
    let one = install(&larder, "one").await;
    for name in ["two", "three"] {
        install(&larder, name).await;
    }
    let receipt = applied_receipt(&larder, bytes).await;
    assert!(receipt.ok, "{receipt:#?}");
    let outcomes = outcomes(&receipt);
    let entry_name = |name: &str| format!("{HOST}/acme/{name} 1.2.0 (linux_amd64)");
    assert!(
        outcomes.contains(&(entry_name("one"), "held".to_owned()))
            && outcomes.contains(&(entry_name("other"), "applied".to_owned()))
    );
    assert!(larder.get(&one).await.expect(200).has_cache_status("larder; hit"), "acme/one was evicted");
    let other = larder.archive_path("other", "1.2.0").await;
    assert!(larder.get(&other).await.expect(200).has_cache_status("larder; hit"));
    assert_eq!(larder.folder.blobs().len(), 3);
    // After the import, the archives of the bundle are evicted like any other.
    larder.clock.advance(BETWEEN_USES);
    for name in ["two", "three", "four"] {
        install(&larder, name).await;
    }
    assert!(larder.get(&one).await.expect(200).has_cache_status("fwd=miss"), "acme/one is still not evicted");
}

/// An import does not evict stored archives of the bundle, so it has less space for the others.
#[tokio::test]
async fn a_bundle_that_fits_only_if_its_own_archives_are_evicted_is_refused_at_once() {
    let (upstream, key) = (upstream_publishing(&["one"]).await, BundleKey::new());
    upstream.publish(Provider::new("acme", "large").size(800_000));
    let both_archives = bundle(&upstream, &key, &["acme/one", "acme/large"], &["linux_amd64"]).await;
    let large = bundle(&upstream, &key, &["acme/large"], &["linux_amd64"]).await;
    let larder = key.with_trusted_key(Larder::mirroring(&upstream)).store("max_size = \"1MiB\"").start().await;
    let one = install(&larder, "one").await;
    let text = apply_bundle(&larder, both_archives).await.expect(507).text();
    assert!(text.contains("stored ones of the bundle"), "{text}");
    assert!(larder.get(&one).await.expect(200).has_cache_status("larder; hit"));
    // The large archive alone fits: acme/one, which that bundle does not list, is evicted.
    assert!(applied_receipt(&larder, large).await.ok);
    until("acme/one is evicted", async || larder.folder.blobs().len() == 1).await;
}

/// Promise 8: a discovery document may come from a bundle. The origin that it names gets no credential until a
/// discovery document of the upstream itself names it.
#[tokio::test]
async fn an_origin_that_only_a_bundle_names_gets_no_credential() {
    let (registry, services, key) = (FakeUpstream::start().await, FakeUpstream::start().await, BundleKey::new());
    for name in ["null", "other", "third"] {
        services.publish(Provider::new("acme", name));
    }
    let discovery = format!("{{\"providers.v1\":\"{}\"}}", services.providers_url());
    registry.serve_json("/.well-known/terraform.json", &discovery);
    let mirroring = || Larder::mirroring(&registry).allow_private(&services.origin());
    let exporter = key.with_signing_key(mirroring()).start().await;
    let job = warm_up(&exporter, &["acme/null"], &["linux_amd64"]).await;
    let bytes = bundle_of(&exporter, &job, None).await;

    let mut token = tempfile::NamedTempFile::new().unwrap();
    token.write_all(b"of-this-larder-alone").unwrap();
    let with_token = mirroring().upstream_lines(&format!("token = {{ file = {:?} }}", token.path()));
    let larder = key.with_trusted_key(with_token).start().await;
    assert!(applied_receipt(&larder, bytes).await.ok);
    let sent_credentials = || {
        let requests = services.requests().into_iter().filter(|request| request.target == Target::Versions);
        requests.map(|request| request.header("authorization").map(str::to_owned)).collect::<Vec<_>>()
    };
    services.forget_requests();
    registry.forget_requests();
    larder.versions("other").await.expect(200);
    assert_eq!(sent_credentials(), [None]);
    assert_eq!(registry.count_of(Target::Discovery), 0, "larder did not use the discovery document of the bundle");

    // After the revalidation the upstream itself names the origin.
    larder.clock.advance(Duration::from_secs(2 * 3600));
    services.forget_requests();
    larder.versions("third").await.expect(200);
    assert_eq!(registry.count_of(Target::Discovery), 1);
    assert_eq!(sent_credentials(), [Some("Bearer of-this-larder-alone".to_owned())]);
}

/// A bundle from a larder whose clock is half a minute ahead, so that its documents are newer.
async fn newer_bundle(upstream: &FakeUpstream, key: &BundleKey, addresses: &[&str]) -> Vec<u8> {
    let clock = Clock::system();
    clock.advance(Duration::from_secs(30));
    let exporter = key.with_signing_key(Larder::mirroring(upstream)).clock(&clock).start().await;
    let job = warm_up(&exporter, addresses, &["linux_amd64"]).await;
    bundle_of(&exporter, &job, None).await
}

fn null(version: &str) -> Provider {
    Provider::new("acme", "null").version(version)
}

/// Publishes acme/net/test 1.0.0, and the same archive as this version.
fn publish_net_module_twice(upstream: &FakeUpstream, version: &str) {
    publish_net_module(upstream);
    upstream.publish_module(Module::new("acme", "net", "test").version(version).at("/files/net.tar.gz"));
}

/// Stored versions stay listed whatever version list is imported, and their entries stay as their own upstream wrote
/// them.
#[tokio::test]
async fn an_imported_version_list_hides_no_stored_version() {
    let (mut upstream, elsewhere, key) = (FakeUpstream::start().await, FakeUpstream::start().await, BundleKey::new());
    for version in ["1.2.0", "1.3.0"] {
        upstream.publish(null(version).protocols(&["5.7"]));
    }
    elsewhere.publish(null("1.2.0"));
    publish_net_module_twice(&upstream, "2.0.0");
    publish_net_module(&elsewhere);
    let bytes = newer_bundle(&elsewhere, &key, &["acme/null", "acme/net/test"]).await;
    let larder = key.with_trusted_key(Larder::mirroring(&upstream)).start().await;
    warm_up(&larder, &["acme/null@1.3.0", "acme/net/test@2.0.0"], &["linux_amd64"]).await;
    let entry = async |text: String| {
        let list: serde_json::Value = serde_json::from_str(&text).unwrap();
        list["versions"].as_array().unwrap().iter().find(|entry| entry["version"] == "1.3.0").cloned()
    };
    let entry_before = entry(larder.versions("null").await.expect(200).text()).await;
    upstream.stop().await;
    larder.clock.advance(Duration::from_secs(60));
    for expected in ["applied", "held"] {
        let receipt = applied_receipt(&larder, bytes.clone()).await;
        assert!(receipt.ok, "{receipt:#?}");
        // The first entry is the discovery document: the cached one came from the upstream itself and is kept.
        assert!(outcomes(&receipt)[1..].iter().all(|(_, outcome)| outcome == expected), "{receipt:#?}");
        let listed = larder.versions("null").await.expect(200).text();
        assert!(listed.contains("\"1.2.0\""), "{listed}");
        assert_eq!(entry(listed).await, entry_before);
        let listed = larder.get(&format!("/registry/{HOST}/v1/modules/acme/net/test/versions")).await.expect(200);
        assert!(listed.text().contains("\"2.0.0\"") && listed.text().contains("\"1.0.0\""), "{}", listed.text());
    }
}

/// The cached version list may be newer than the bundle and not have the versions of the bundle.
#[tokio::test]
async fn versions_of_a_bundle_are_listed_beside_a_newer_cached_list() {
    let (mut upstream, key) = (FakeUpstream::start().await, BundleKey::new());
    upstream.publish(null("1.2.0"));
    publish_net_module_twice(&upstream, "2.0.0");
    let bytes = bundle(&upstream, &key, &["acme/null", "acme/net/test"], &["linux_amd64"]).await;
    let zip = upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64");
    upstream.publish(null("1.3.0"));
    upstream.withdraw("acme", "null", "1.2.0");
    upstream.withdraw_module("acme", "net", "test", "2.0.0");
    let larder = key.with_trusted_key(Larder::mirroring(&upstream)).start().await;
    larder.clock.advance(Duration::from_secs(60));
    let modules = format!("/registry/{HOST}/v1/modules/acme/net/test/versions");
    larder.versions("null").await.expect(200);
    larder.get(&modules).await.expect(200);
    upstream.stop().await;
    let receipt = applied_receipt(&larder, bytes).await;
    assert!(receipt.ok, "{receipt:#?}");
    let list = (format!("the version list of {HOST}/acme/null"), "held".to_owned());
    assert!(outcomes(&receipt).contains(&list), "{receipt:#?}");
    let listed = larder.versions("null").await.expect(200).text();
    assert!(listed.contains("\"1.2.0\"") && listed.contains("\"1.3.0\""), "{listed}");
    let listed = larder.get(&modules).await.expect(200).text();
    assert!(listed.contains("\"2.0.0\"") && listed.contains("\"1.0.0\""), "{listed}");
    let path = larder.archive_path("null", "1.2.0").await;
    assert!(larder.get(&path).await.expect(200).body == zip);
}

/// A request that began before the import yields an older document, whenever it completes.
#[tokio::test]
async fn a_fetch_in_flight_does_not_replace_a_newer_document_of_a_bundle() {
    let (upstream, key) = (FakeUpstream::start().await, BundleKey::new());
    upstream.publish(null("1.2.0"));
    upstream.publish(null("1.3.0"));
    let bytes = newer_bundle(&upstream, &key, &["acme/null@1.2.0"]).await;
    upstream.withdraw("acme", "null", "1.3.0");
    let long_timeout = Duration::from_secs(600);
    let larder = key
        .with_trusted_key(Larder::mirroring(&upstream))
        .answer_within(long_timeout)
        .upstream_timeout(long_timeout)
        .start()
        .await;
    upstream.forget_requests();
    let gate = upstream.hold_body(Target::Versions);
    let list_request = async { larder.versions("null").await.expect(200).text() };
    let import = async {
        upstream.wait_for(Target::Versions, 1).await;
        larder.clock.advance(Duration::from_secs(60));
        let receipt = applied_receipt(&larder, bytes).await;
        assert!(receipt.ok, "{receipt:#?}");
        gate.open();
    };
    let (listed, ()) = tokio::join!(list_request, import);
    assert!(listed.contains("\"1.3.0\""), "{listed}");
    let listed = larder.versions("null").await.expect(200).text();
    assert!(listed.contains("\"1.3.0\""), "{listed}");
    assert_eq!(upstream.count_of(Target::Versions), 1);
}

/// The larder that made a bundle may have fetched the discovery document from another `url` than this larder would.
/// Such a document is never used here: the import keeps the cached one.
#[tokio::test]
async fn a_discovery_document_from_another_url_does_not_replace_the_upstreams_own() {
    let (mut upstream, elsewhere, key) = (FakeUpstream::start().await, FakeUpstream::start().await, BundleKey::new());
    elsewhere.publish(null("1.2.0"));
    let bytes = newer_bundle(&elsewhere, &key, &["acme/null"]).await;
    let larder = key.with_trusted_key(Larder::mirroring(&upstream)).start().await;
    let discovery = format!("/registry/{HOST}/.well-known/terraform.json");
    larder.get(&discovery).await.expect(200);
    upstream.stop().await;
    larder.clock.advance(Duration::from_secs(60));
    let receipt = applied_receipt(&larder, bytes).await;
    assert!(receipt.ok, "{receipt:#?}");
    assert_eq!(outcomes(&receipt)[0], (format!("the discovery document of {HOST}"), "held".to_owned()));
    larder.get(&discovery).await.expect(200);
}
