//! acme/null, the provider of most tests: its upstream, its larder and its archive.

use super::http::Answer;
use super::larder::{Builder, Larder};
use super::upstream::{FakeUpstream, Provider};

pub(crate) const NULL: &str = "acme/null";

pub(crate) const NULL_120: &str = "acme/null@1.2.0";

/// An upstream that publishes this provider version.
pub(crate) async fn upstream_with(provider: Provider) -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    upstream.publish(provider);
    upstream
}

/// A larder that revalidates documents at each request.
pub(crate) fn always_revalidating(upstream: &FakeUpstream) -> Builder {
    Larder::mirroring(upstream).always_revalidate()
}

/// The zip of acme/null 1.2.0 for linux_amd64.
pub(crate) fn zip(upstream: &FakeUpstream) -> Vec<u8> {
    upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64")
}

/// Requests the download document and then the archive that it names, as a client does; returns both and the archive's
/// path.
pub(crate) async fn install(larder: &Larder) -> (Answer, String, Vec<u8>) {
    let document = larder.document("null", "1.2.0").await.expect(200);
    let path = document.json()["download_url"].as_str().unwrap().to_owned();
    let archive = larder.get(&path).await.expect(200).body;
    (document, path, archive)
}

/// The version list of acme/null, as messages name it.
pub(crate) const LIST: &str = "the version list of registry.terraform.io/acme/null";

/// The package acme/null 1.2.0, as messages name it.
pub(crate) const PACKAGE: &str = "registry.terraform.io/acme/null 1.2.0 (linux_amd64)";

/// acme/null 1.2.0 in this edition: another edition of a version has other bytes.
pub(crate) fn edition(edition: u64) -> Provider {
    Provider::new("acme", "null").edition(edition)
}
