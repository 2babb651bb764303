//! The fixture of most archive tests: one archive that is not stored, with its proof set stored.

use std::time::Duration;

use super::http::Received;
use super::larder::{Folder, Larder};
use super::upstream::{FakeUpstream, Provider, RecordedRequest, Target};

/// Size of a small archive: larder verifies the whole archive before it sends the status line.
pub(crate) const SMALL_BYTES: usize = 200_000;
/// Size of a large archive: larder streams it to the client while it downloads.
pub(crate) const LARGE_BYTES: usize = 3_000_000;
/// The last bytes of a large archive, which larder withholds until the archive is verified and committed.
pub(crate) const TAIL_BYTES: usize = 64 * 1024;

/// acme/null 1.2.0 for linux_amd64, its upstream, and a larder with its proof set stored.
pub(crate) struct PackageFixture {
    pub(crate) upstream: FakeUpstream,
    pub(crate) larder: Larder,
    /// The path of the archive at larder.
    pub(crate) path: String,
    pub(crate) zip: Vec<u8>,
}

impl PackageFixture {
    /// An archive of this size (in bytes) that is not stored, with its proof set stored.
    pub(crate) async fn with_archive_size(size: usize) -> Self {
        Self::with_stall_timeout(size, Duration::from_secs(30)).await
    }

    /// The same fixture with this time after which larder gives up a download that stops.
    pub(crate) async fn with_stall_timeout(size: usize, stall_timeout: Duration) -> Self {
        let upstream = FakeUpstream::start().await;
        upstream.publish(Provider::new("acme", "null").size(size));
        Self::from_upstream(upstream, stall_timeout).await
    }

    /// The fixture for an upstream that already publishes acme/null 1.2.0.
    pub(crate) async fn from_upstream(upstream: FakeUpstream, stall_timeout: Duration) -> Self {
        let larder = Larder::mirroring(&upstream).stall_timeout(stall_timeout).start().await;
        let path = larder.archive_path("null", "1.2.0").await;
        let zip = upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64");
        Self { upstream, larder, path, zip }
    }

    /// The URL of the archive.
    pub(crate) fn url(&self) -> String {
        format!("{}{}", self.larder.base(), self.path)
    }

    pub(crate) fn folder(&self) -> &Folder {
        &self.larder.folder
    }

    /// The requests for the archive that the upstream received.
    pub(crate) fn archive_requests(&self) -> Vec<RecordedRequest> {
        self.upstream.requests().into_iter().filter(|request| request.target == Target::Archive).collect()
    }

    /// Ends all faults and asserts that the next request gets the whole archive.
    pub(crate) async fn assert_recovers(&self) {
        self.upstream.clear_faults();
        self.assert_stored_and_served().await;
    }

    /// Asserts that the whole archive is served and stored, and that no partial download remains.
    pub(crate) async fn assert_stored_and_served(&self) {
        let response = self.larder.get(&self.path).await.expect(200);
        assert!(response.body == self.zip);
        assert_eq!((self.folder().blobs().len(), self.folder().partial_downloads().len()), (1, 0));
    }

    /// Asserts that the body ended early, that the received bytes are right, and that none of them belong to the tail.
    pub(crate) fn assert_truncated(&self, received: &Received) {
        assert_eq!((received.status, received.is_complete), (200, false));
        assert!(received.body.len() <= self.zip.len() - TAIL_BYTES, "{}", received.body.len());
        assert!(self.zip.starts_with(&received.body));
        assert!(self.folder().blobs().is_empty());
    }
}
