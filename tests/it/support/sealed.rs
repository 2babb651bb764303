//! Four versions of a provider, and storing some of their archives, for tests of offline larders.

use super::larder::Larder;
use super::upstream::{FakeUpstream, Provider};

/// Publishes acme/null 1.0.0, 1.1.0, 1.2.0 and 1.3.0 for two platforms.
pub(crate) async fn upstream_with_four_versions() -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    for version in ["1.0.0", "1.1.0", "1.2.0", "1.3.0"] {
        let provider = Provider::new("acme", "null").version(version);
        upstream.publish(provider.platform("linux_amd64").platform("darwin_arm64"));
    }
    upstream
}

/// Makes a larder with upstreams store an archive of acme/null; returns the archive's path.
pub(crate) async fn store_archive(larder: &Larder, version: &str, platform: &str) -> String {
    let document = larder.document_for("null", version, platform).await.expect(200).json();
    let path = document["download_url"].as_str().unwrap().to_owned();
    larder.get(&path).await.expect(200);
    path
}
