//! acme/null, the provider of most tests: its upstream, its larder and its archive.

use super::http::Answer;
use super::larder::{Builder, Larder};
use super::upstream::{FakeUpstream, Provider};

pub(crate) const NULL: &str = "acme/null";

pub(crate) const NULL_120: &str = "acme/null@1.2.0";

pub(crate) async fn upstream_with(provider: Provider) -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    upstream.publish(provider);
    upstream
}

pub(crate) fn impatient(upstream: &FakeUpstream) -> Builder {
    Larder::mirroring(upstream).nothing_stays_fresh()
}

pub(crate) fn zip(upstream: &FakeUpstream) -> Vec<u8> {
    upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64")
}

/// Asks for the document, and then for the archive that it names.
pub(crate) async fn install(larder: &Larder) -> (Answer, String, Vec<u8>) {
    let document = larder.document("null", "1.2.0").await.expect(200);
    let path = document.json()["download_url"].as_str().unwrap().to_owned();
    let archive = larder.get(&path).await.expect(200).body;
    (document, path, archive)
}

pub(crate) const LIST: &str = "the version list of registry.terraform.io/acme/null";

pub(crate) const PACKAGE: &str = "registry.terraform.io/acme/null 1.2.0 (linux_amd64)";

pub(crate) fn edition(edition: u64) -> Provider {
    Provider::new("acme", "null").edition(edition)
}
