//! A version that is missing from upstream's list does not exist: larder requests, stores and records nothing of it
//! (promises 1 and 11).

use crate::support::http::get;
use crate::support::larder::{HOST, Larder};
use crate::support::module_fixture::{ModuleFixture, tar_gz};
use crate::support::upstream::{FakeUpstream, Module, Provider, Target};

/// Promise 11: a registry that answers for any version fills neither the store nor the first-seen records.
#[tokio::test]
async fn a_version_that_is_missing_from_a_readable_list_is_404() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let list = {
        let larder = Larder::mirroring(&upstream).start().await;
        larder.versions("null").await.expect(200).text()
    };
    for number in 0..20 {
        upstream.publish(Provider::new("acme", "null").version(&format!("9.0.{number}")));
    }
    // The registry has documents of these versions, and its list names none of them.
    upstream.serve_json("/v1/providers/acme/null/versions", &list);
    let larder = Larder::mirroring(&upstream).start().await;
    larder.document("null", "1.2.0").await.expect(200);
    let records_before = (larder.folder.files("seen"), larder.folder.files("documents"));
    upstream.forget_requests();
    for number in 0..20 {
        let refused = larder.document("null", &format!("9.0.{number}")).await.expect(404).text();
        assert!(refused.contains("does not name"), "{refused}");
    }
    assert_eq!((larder.folder.files("seen"), larder.folder.files("documents")), records_before);
    assert_eq!(upstream.count_of(Target::Everything), 0, "the list was fresh, and nothing else is requested");
}

/// For an unlisted module version no first-seen record is written, because such records survive a purge.
#[tokio::test]
async fn an_invented_version_of_a_module_leaves_no_record() {
    let fixture = ModuleFixture::with_one_module().await;
    let larder = fixture.larder().start().await;
    larder.get(&download_path("1.0.0")).await.expect(204);
    // A registry that answers for any version.
    let url = fixture.file("any.tar.gz", &tar_gz(&[("main.tf", b"# any\n")]));
    for number in 0..20 {
        let location = http::Response::builder().status(204).header("x-terraform-get", &url).body(String::new());
        fixture.registry.serve(&format!("/v1/modules/acme/one/test/9.0.{number}/download"), location.unwrap());
    }
    let records_before = larder.folder.files("seen");
    for number in 0..20 {
        let refused = larder.get(&download_path(&format!("9.0.{number}"))).await.expect(404).text();
        assert!(refused.contains("does not name"), "{refused}");
    }
    assert_eq!(larder.folder.files("seen"), records_before);
}

fn download_path(version: &str) -> String {
    format!("/registry/{HOST}/v1/modules/acme/one/test/{version}/download")
}

/// A version that was just published is found although the cached list without it is still fresh.
#[tokio::test]
async fn a_list_without_the_version_is_revalidated_before_the_404() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let larder = Larder::mirroring(&upstream).start().await;
    larder.versions("null").await.expect(200);
    upstream.publish(Provider::new("acme", "null").version("1.3.0"));
    larder.document("null", "1.3.0").await.expect(404);
    // The default of `not_found`, for which larder remembers the 404, is 30 s.
    larder.clock.advance(std::time::Duration::from_secs(31));
    larder.document("null", "1.3.0").await.expect(200);
    larder.document("null", "9.9.9").await.expect(404);
    assert_eq!(upstream.count_of(Target::Versions), 2);
}

/// If the list cannot be read, larder requests the version itself.
#[tokio::test]
async fn a_version_is_requested_if_no_list_can_be_read() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    upstream.fault(Target::Versions, crate::support::upstream::Fault::Html);
    let larder = Larder::mirroring(&upstream).start().await;
    larder.document("null", "1.2.0").await.expect(200);
}

/// Promise 11: a list of more than 20,000 versions is refused with the reason.
#[tokio::test]
async fn a_list_of_too_many_versions_is_refused() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    upstream.publish_module(Module::new("acme", "net", "test").version("1.0.0"));
    let larder = Larder::mirroring(&upstream).start().await;
    let versions = |number: usize| {
        let versions = (0..number).map(|patch| format!(r#"{{"version":"1.0.{patch}"}}"#)).collect::<Vec<_>>();
        format!("[{}]", versions.join(","))
    };
    for (number, status) in [(20_000, 200), (20_001, 502)] {
        upstream.serve_json("/v1/providers/acme/null/versions", &format!(r#"{{"versions":{}}}"#, versions(number)));
        upstream.serve_json(
            "/v1/modules/acme/net/test/versions",
            &format!(r#"{{"modules":[{{"versions":{}}}]}}"#, versions(number)),
        );
        let larder = if status == 200 { &larder } else { &Larder::mirroring(&upstream).start().await };
        for service in ["providers/acme/null", "modules/acme/net/test"] {
            let answer = larder.get(&format!("/registry/{HOST}/v1/{service}/versions")).await.expect(status);
            assert_eq!(answer.text().contains("at most 20000"), status == 502, "{service} {number}");
        }
    }
}

/// First-seen records are never evicted, so the status says how many there are.
#[tokio::test]
async fn the_status_counts_first_seen_records() {
    let upstream = FakeUpstream::start().await;
    for version in ["1.2.0", "1.3.0"] {
        upstream.publish(Provider::new("acme", "null").version(version));
    }
    let larder = Larder::mirroring(&upstream).start().await;
    let first_seen_counts = async |larder: &Larder| {
        let status = get(&format!("{}/admin/v1/status", larder.admin())).await.expect(200).json();
        (status["first_seen_records"].as_u64().unwrap(), status["first_seen_bytes"].as_u64().unwrap() > 0)
    };
    assert_eq!(first_seen_counts(&larder).await, (0, false));
    larder.document("null", "1.2.0").await.expect(200);
    larder.document("null", "1.3.0").await.expect(200);
    assert_eq!(first_seen_counts(&larder).await, (2, true));
    larder.run_command("purge", "acme/null").await;
    let folder = larder.stop().await;
    let larder = Larder::mirroring(&upstream).store_at(&folder).start().await;
    assert_eq!(first_seen_counts(&larder).await, (2, true));
}
