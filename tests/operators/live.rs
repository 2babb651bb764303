//! A larder that has had traffic of every kind: hits, misses, errors, refusals, alarms, evictions, jobs.

use std::time::Duration;

use serde_json::json;

use crate::support::http::{client, send};
use crate::support::larder::{HOST, Larder};
use crate::support::upstream::{FakeUpstream, Fault, Provider, SigningKey, Target};
use crate::support::warm_fixture::WarmFixture;

/// Providers whose archives together are larger than the store.
const ARCHIVES: [&str; 5] = ["random", "one", "two", "three", "four"];

/// A larder with its upstream.
pub(crate) struct Live {
    pub(crate) larder: Larder,
    upstream: FakeUpstream,
}

impl Live {
    pub(crate) async fn start() -> Self {
        let upstream = FakeUpstream::start().await;
        for name in ARCHIVES.into_iter().chain(["null"]) {
            upstream.publish(Provider::new("acme", name).size(300_000));
        }
        let larder = Larder::mirroring(&upstream).always_revalidate().store("max_size = \"1MiB\"").start().await;
        larder.document("null", "1.2.0").await.expect(200);
        let live = Self { larder, upstream };
        live.make_traffic().await;
        live
    }

    /// Makes requests, so that every counter of ordinary traffic grows.
    pub(crate) async fn make_traffic(&self) {
        let Self { larder, upstream } = self;
        for name in ARCHIVES {
            for _ in 0..3 {
                let path = larder.archive_path(name, "1.2.0").await;
                larder.get(&path).await.expect(200);
            }
            larder.clock.advance(Duration::from_secs(120));
        }
        larder.versions("absent").await.expect(404);
        larder.get("/nowhere").await.expect(404);
        send(client().post(format!("{}/registry/{HOST}/", larder.base()))).await.unwrap().expect(405);
        upstream.fault(Target::Versions, Fault::Status(500));
        larder.versions("broken").await.expect(502);
        upstream.clear_faults();
        upstream.fault(Target::Signature, Fault::SignedByAnotherKey);
        larder.document("four", "1.2.0").await;
        upstream.clear_faults();
        // Another key signs other bytes of a version that was verified before.
        upstream.publish(Provider::new("acme", "null").edition(2).signed_by(&SigningKey::new_key()));
        larder.document("null", "1.2.0").await;
        let fixture = WarmFixture::for_larder(larder);
        for subject in ["acme/one", "acme/absent"] {
            fixture.warm(&json!({ "what": [subject], "platforms": ["linux_amd64"] })).await;
        }
    }
}
