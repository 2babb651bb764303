//! The advice of `larder explain` and of alarms: it does what it says. After the publisher has mended what is wrong, the
//! advised `larder refresh` asks for it again.

use std::time::Duration;

use serde_json::{Value, json};

use crate::explain::explain;
use crate::support::git_module_fixture::{download_module, download_path};
use crate::support::larder::Larder;
use crate::support::module_fixture::{ModuleFixture, tar_gz};
use crate::support::null_provider::{NULL_120, PACKAGE, always_revalidating, edition, install, upstream_with};
use crate::support::upstream::{Fault, SigningKey, Target};

const MODULE: &str = "acme/one/test@1.0.0";

/// The verdict, and the rule of the step that decides.
fn verdict(report: &Value) -> (&str, &str) {
    let decisive = report["decided_by"].as_u64().map(|index| &report["steps"][index as usize]);
    (report["verdict"].as_str().unwrap(), decisive.map_or("", |step| step["rule"].as_str().unwrap()))
}

/// Runs the advised `larder refresh`; returns the outcomes, each with its package.
async fn refresh_as_advised(larder: &Larder, report: &Value) -> Vec<(String, String)> {
    let mut commands = report["to_do"].as_array().unwrap().iter().filter_map(|advice| advice["command"].as_str());
    let address = commands.find_map(|command| command.strip_prefix("larder refresh "));
    let address = address.unwrap_or_else(|| panic!("no refresh is advised: {report:#}"));
    let done = larder.run_command("refresh", address).await;
    assert!(done.ok, "{done}");
    done.outcomes().into_iter().map(|(package, outcome)| (package.to_owned(), outcome.to_owned())).collect()
}

#[tokio::test]
async fn the_advised_refresh_asks_again_for_a_set_that_did_not_verify() {
    let upstream = upstream_with(edition(1)).await;
    let larder = Larder::mirroring(&upstream).start().await;
    upstream.fault(Target::Everything, Fault::SignedByAnotherKey);
    larder.document("null", "1.2.0").await.expect(502);
    let report = explain(&larder, "address", NULL_120).await;
    assert_eq!(verdict(&report), ("refused", "not-verified"), "{report:#}");
    upstream.clear_faults();
    let outcomes = refresh_as_advised(&larder, &report).await;
    assert!(outcomes.contains(&(PACKAGE.to_owned(), "new".to_owned())), "{outcomes:?}");
    let report = explain(&larder, "address", NULL_120).await;
    assert_eq!(verdict(&report), ("asks-upstream", "not-stored"), "{report:#}");
    assert_eq!(report["decided_by"], 3, "only the archive is not stored: {report:#}");
}

/// An archive that failed is explained by its last answer, until the set that names it is asked for again.
#[tokio::test]
async fn the_advised_command_asks_again_for_an_archive_that_failed() {
    let upstream = upstream_with(edition(1)).await;
    let larder = Larder::mirroring(&upstream).start().await;
    let path = larder.archive_path("null", "1.2.0").await;
    upstream.fault(Target::Archive, Fault::WrongBytes);
    larder.get(&path).await.expect(502);
    let report = explain(&larder, "address", NULL_120).await;
    assert_eq!((report["verdict"].as_str(), &report["decided_by"]), (Some("refused"), &json!(3)), "{report:#}");
    let advised = report["to_do"].as_array().unwrap().iter().filter_map(|advice| advice["command"].as_str());
    let advised: Vec<&str> = advised.collect();
    assert_eq!(advised, ["larder warm registry.terraform.io/acme/null@1.2.0 --platform linux_amd64"], "{report:#}");
    upstream.clear_faults();
    larder.run_command("refresh", NULL_120).await;
    let report = explain(&larder, "address", NULL_120).await;
    assert_eq!(verdict(&report), ("asks-upstream", "not-stored"), "{report:#}");
}

/// A remembered 404 is forgotten, as it is for clients; it is no failure of the refresh.
#[tokio::test]
async fn the_advised_refresh_forgets_that_a_platform_did_not_exist() {
    let upstream = upstream_with(edition(1).platform("linux_amd64")).await;
    let larder = Larder::mirroring(&upstream).start().await;
    larder.document("null", "1.2.0").await.expect(200);
    let path = format!("/registry/{}/v1/providers/acme/null/1.2.0/download/linux/arm", crate::support::larder::HOST);
    larder.get(&path).await.expect(404);
    larder.clock.advance(Duration::from_secs(31));
    let report = explain(&larder, "url", &path).await;
    assert_eq!(verdict(&report), ("refused", "not-listed"), "{report:#}");
    upstream.publish(edition(1).platform("linux_amd64").platform("linux_arm"));
    refresh_as_advised(&larder, &report).await;
    assert_eq!(verdict(&explain(&larder, "url", &path).await).0, "asks-upstream");
    larder.get(&path).await.expect(200);
}

#[tokio::test]
async fn the_advised_refresh_asks_again_for_a_module_that_could_not_be_fetched() {
    let fixture = ModuleFixture::with_one_module().await;
    for of_location in [true, false] {
        let larder = fixture.larder().start().await;
        let (server, target) =
            if of_location { (&fixture.registry, Target::Location) } else { (&fixture.archives, Target::Everything) };
        server.fault(target, Fault::Status(500));
        larder.get(&download_path("one")).await.expect(502);
        let report = explain(&larder, "address", MODULE).await;
        assert_eq!(verdict(&report), ("refused", "last-answer-failed"), "{report:#}");
        server.clear_faults();
        refresh_as_advised(&larder, &report).await;
        let report = explain(&larder, "address", MODULE).await;
        let expected = if of_location { "asks-upstream" } else { "served" };
        assert_eq!(verdict(&report).0, expected, "{report:#}");
        larder.get(&download_path("one")).await.expect(204);
    }
}

/// The finding of a version that is not stored ends when the publisher takes the change back. After a restart only the
/// alarm remembers it.
#[tokio::test]
async fn a_refresh_ends_the_alarm_of_a_version_that_is_not_stored() {
    let other_key = |provider: crate::support::upstream::Provider| provider.signed_by(&SigningKey::new_key());
    for (row, changed, kind) in [
        ("republished", other_key(edition(2)), "waits-for-accept"),
        ("no keys", edition(1).without_keys(), "signature-lost"),
    ] {
        for is_restarted in [false, true] {
            let upstream = upstream_with(edition(1)).await;
            let builder = || always_revalidating(&upstream).upstream_lines("verification = \"signature-if-keys\"");
            let mut larder = builder().start().await;
            install(&larder).await;
            larder.run_command("purge", NULL_120).await;
            upstream.publish(changed.clone());
            larder.document("null", "1.2.0").await.expect(502);
            assert_eq!(larder.alarms().await[0].0, kind, "{row}");
            if is_restarted {
                let folder = larder.stop().await;
                larder = builder().store_at(&folder).start().await;
            }
            upstream.publish(edition(1));
            let done = larder.run_command("refresh", NULL_120).await;
            assert!(done.ok, "{row}: {done}");
            assert_eq!(larder.alarms().await.len(), 0, "{row}, restarted: {is_restarted}: {done}");
            assert_eq!(verdict(&explain(&larder, "address", NULL_120).await).0, "asks-upstream", "{row}");
        }
    }
}

#[tokio::test]
async fn a_refresh_ends_the_alarm_of_a_module_that_is_not_stored() {
    for is_restarted in [false, true] {
        let fixture = ModuleFixture::start().await;
        let original = tar_gz(&[("main.tf", b"# one\n")]);
        fixture.publish_archive("one", &original);
        let mut larder = fixture.larder().start().await;
        let (_, archive) = download_module(larder.base(), "one").await;
        larder.run_command("purge", MODULE).await;
        fixture.publish_archive("one", &tar_gz(&[("main.tf", b"# another\n")]));
        larder.get(&download_path("one")).await.expect(502);
        assert_eq!(larder.alarms().await[0].0, "moved");
        if is_restarted {
            let folder = larder.stop().await;
            larder = fixture.larder_on(&folder).start().await;
        }
        let refused = larder.run_command("refresh", MODULE).await;
        assert!(!refused.ok && larder.alarms().await.len() == 1, "{refused}");
        fixture.publish_archive("one", &original);
        let done = larder.run_command("refresh", MODULE).await;
        assert!(done.ok, "{done}");
        assert_eq!(larder.alarms().await.len(), 0, "restarted: {is_restarted}: {done}");
        assert_eq!(verdict(&explain(&larder, "address", MODULE).await).0, "served");
        assert!(download_module(larder.base(), "one").await.1 == archive);
    }
}
