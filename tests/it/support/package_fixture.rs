//! The fixture of most archive tests: one archive that is not stored, with its proof set stored.

use std::time::Duration;

use super::http::Received;
use super::larder::{Folder, Larder};
use super::upstream::{FakeUpstream, Provider, RecordedRequest, Target};

/// Size of an archive that is verified before the status line.
pub(crate) const SMALL: usize = 200_000;
/// The size of one that streams while it arrives.
pub(crate) const LARGE: usize = 3_000_000;
/// The part of a large archive that is withheld until it is verified and committed.
pub(crate) const TAIL: usize = 64 * 1024;

/// acme/null 1.2.0 for linux_amd64, its upstream, and a larder with its proof set stored.
pub(crate) struct PackageFixture {
    pub(crate) upstream: FakeUpstream,
    pub(crate) larder: Larder,
    pub(crate) path: String,
    pub(crate) zip: Vec<u8>,
}

impl PackageFixture {
    /// An archive of this size that is not stored, with its proof set stored.
    pub(crate) async fn with(size: usize) -> Self {
        Self::with_stall(size, Duration::from_secs(30)).await
    }

    pub(crate) async fn with_stall(size: usize, stall: Duration) -> Self {
        let upstream = FakeUpstream::start().await;
        upstream.publish(Provider::new("acme", "null").size(size));
        Self::over(upstream, stall).await
    }

    pub(crate) async fn over(upstream: FakeUpstream, stall: Duration) -> Self {
        let larder = Larder::mirroring(&upstream).stall(stall).start().await;
        let path = larder.archive_path("null", "1.2.0").await;
        let zip = upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64");
        Self { upstream, larder, path, zip }
    }

    pub(crate) fn url(&self) -> String {
        format!("{}{}", self.larder.base(), self.path)
    }

    pub(crate) fn folder(&self) -> &Folder {
        &self.larder.folder
    }

    pub(crate) fn archive_requests(&self) -> Vec<RecordedRequest> {
        self.upstream.requests().into_iter().filter(|request| request.target == Target::Archive).collect()
    }

    /// The next request without the fault succeeds.
    pub(crate) async fn heals(&self) {
        self.upstream.heal();
        self.arrives_whole().await;
    }

    pub(crate) async fn arrives_whole(&self) {
        let answer = self.larder.get(&self.path).await.expect(200);
        assert!(answer.body == self.zip);
        assert_eq!((self.folder().blobs().len(), self.folder().staged().len()), (1, 0));
    }

    /// Panics unless the body broke off, its bytes are right, and none of them are of its tail.
    pub(crate) fn broke_off(&self, received: &Received) {
        assert_eq!((received.status, received.is_whole), (200, false));
        assert!(received.body.len() <= self.zip.len() - TAIL, "{}", received.body.len());
        assert!(self.zip.starts_with(&received.body));
        assert!(self.folder().blobs().is_empty());
    }
}
