//! The operator commands `refresh`, `purge` and `accept`, over HTTP and on the command line.

use std::time::Duration;

use larder::address::{Artifact, Hostname, Name, Package, Platform, ProviderAddress, Version};
use larder::clock::Timestamp;
use larder::store::{Durability, Key};
use serde_json::Value;

use crate::support::command_setup::{CommandSetup, json};
use crate::support::larder::{Folder, HOST, Larder, open_store};
use crate::support::null_provider::{LIST, NULL, NULL_120, PACKAGE, edition, install, upstream_with, zip};
use crate::support::upstream::{Fault, Provider, SigningKey, Target, sha256_hex};

const NEVER_FRESH: &str =
    "fresh = { versions = \"0s\", discovery = \"0s\", download = \"0s\", api = \"0s\", not_found = \"0s\" }";

const DISCOVERY: &str = "the discovery document of registry.terraform.io";

#[tokio::test]
async fn refresh_revalidates_fresh_documents_too() {
    let upstream = upstream_with(edition(1)).await;
    let larder = Larder::mirroring(&upstream).start().await;
    install(&larder).await;
    upstream.publish(edition(2));
    upstream.publish(edition(1).version("1.3.0"));
    upstream.forget_requests();
    assert_ne!(install(&larder).await.2, zip(&upstream));
    assert_eq!(upstream.requests().len(), 0);

    let report = larder.run_command("refresh", NULL).await;
    assert_eq!((report.outcomes(), report.ok), (vec![(LIST, "new"), (PACKAGE, "new")], true));
    assert!(install(&larder).await.2 == zip(&upstream));
    assert!(larder.versions("null").await.expect(200).text().contains("1.3.0"));

    upstream.forget_requests();
    let report = larder.run_command("refresh", NULL).await;
    assert_eq!(report.outcomes(), [(LIST, "unchanged"), (PACKAGE, "unchanged")]);
    assert_eq!((upstream.count_of(Target::Versions), upstream.count_of(Target::Document)), (1, 1));
    assert_eq!(larder.run_command("refresh", "acme/null@9.9.9").await.outcomes(), [(LIST, "unchanged")]);
}

#[tokio::test]
async fn refresh_reports_gone_and_failed_documents_and_keeps_both() {
    let mut upstream = upstream_with(edition(1)).await;
    let larder = Larder::mirroring(&upstream).start().await;
    let (_, _, stored) = install(&larder).await;
    upstream.publish(edition(1).version("1.3.0"));
    upstream.withdraw("acme", "null", "1.2.0");
    let report = larder.run_command("refresh", NULL).await;
    assert_eq!(report.outcomes(), [(LIST, "new"), (PACKAGE, "gone")]);
    assert!(install(&larder).await.2 == stored);

    upstream.stop().await;
    let report = larder.run_command("refresh", NULL).await;
    let failed = vec![(DISCOVERY, "failed"), (LIST, "failed"), (PACKAGE, "failed")];
    assert_eq!((report.outcomes(), report.ok), (failed, false));
    assert!(report.items[0].error.as_deref().unwrap().contains(&upstream.origin()), "{report}");
    assert!(install(&larder).await.2 == stored);
}

/// An operator's refresh ignores the backoff of a failing origin.
#[tokio::test]
async fn refresh_sends_requests_to_an_upstream_whose_breaker_is_open() {
    let upstream = upstream_with(edition(1)).await;
    let larder = Larder::mirroring(&upstream).start().await;
    install(&larder).await;
    larder.versions("null").await.expect(200);
    larder.clock.advance(Duration::from_secs(7200));
    upstream.fault(Target::Everything, Fault::RetryAfter(429, 3600));
    larder.versions("null").await.expect(200);
    upstream.clear_faults();
    upstream.publish(edition(1).version("1.3.0"));
    upstream.forget_requests();
    assert!(!larder.versions("null").await.expect(200).text().contains("1.3.0"));
    assert_eq!(upstream.requests().len(), 0, "the breaker did not open");

    let report = larder.run_command("refresh", NULL).await;
    assert_eq!(report.outcomes(), [(LIST, "new"), (PACKAGE, "unchanged")]);
    assert!(larder.versions("null").await.expect(200).text().contains("1.3.0"));
}

#[tokio::test]
async fn refresh_replaces_a_cached_404() {
    let upstream = upstream_with(edition(1)).await;
    let larder = Larder::mirroring(&upstream).start().await;
    larder.versions("later").await.expect(404);
    larder.document_for("null", "1.2.0", "darwin_arm64").await.expect(404);
    upstream.publish(Provider::new("acme", "later"));
    upstream.publish(edition(1).platform("linux_amd64").platform("darwin_arm64"));
    larder.versions("later").await.expect(404);
    larder.document_for("null", "1.2.0", "darwin_arm64").await.expect(404);
    assert_eq!(larder.run_command("refresh", "acme/later").await.items[0].outcome.as_deref(), Some("new"));
    larder.run_command("refresh", NULL_120).await;
    larder.versions("later").await.expect(200);
    larder.document_for("null", "1.2.0", "darwin_arm64").await.expect(200);
    let absent = larder.run_command("refresh", "acme/never").await;
    assert_eq!((absent.items[0].outcome.as_deref(), absent.ok), (Some("absent"), false));
}

/// Promise 12: an offline larder sends nothing, and the error says that larder is offline.
#[tokio::test]
async fn offline_nothing_is_refreshed_or_accepted() {
    let upstream = upstream_with(edition(1)).await;
    let larder = Larder::mirroring(&upstream).start().await;
    install(&larder).await;
    let folder = larder.stop().await;
    upstream.forget_requests();
    let larder = Larder::mirroring(&upstream).network("offline = true").store_at(&folder).start().await;
    for command in ["refresh", "accept"] {
        let report = larder.run_command(command, NULL_120).await;
        assert!(!report.ok);
        assert!(report.errors[0].contains("this mirror is offline"), "{report}");
    }
    let unknown = larder.run_command("refresh", "elsewhere.example/acme/null").await;
    assert!(!unknown.ok);
    assert_eq!(upstream.requests().len(), 0);
}

#[tokio::test]
async fn purge_forgets_a_version_and_the_next_request_fetches_it_again() {
    let upstream = upstream_with(edition(1)).await;
    upstream.publish(edition(5).version("1.3.0"));
    upstream.publish(Provider::new("acme", "other").edition(7));
    let larder = Larder::mirroring(&upstream).start().await;
    let (document, path, stored) = install(&larder).await;
    let other_paths = [larder.archive_path("null", "1.3.0").await, larder.archive_path("other", "1.2.0").await];
    for path in &other_paths {
        larder.get(path).await.expect(200);
    }
    larder.get(&path).await.expect(200);
    upstream.forget_requests();

    let report = larder.run_command("purge", NULL_120).await;
    let item = &report.items[0];
    assert_eq!((item.archives, item.archive_bytes), (Some(1), Some(stored.len() as u64)), "{report}");
    assert_eq!((item.documents, item.shared, report.ok), (Some(1), Some(0), true), "{report}");
    assert_eq!((larder.folder.blobs().len(), larder.folder.proof_sets().len()), (2, 2));
    assert_eq!(upstream.requests().len(), 0);

    let (again, _, archive) = install(&larder).await;
    assert!(again.has_cache_status("fwd=miss") && again.body == document.body && archive == stored);
    assert_eq!((upstream.count_of(Target::Document), upstream.count_of(Target::Archive)), (1, 1));
    for path in &other_paths {
        assert!(larder.get(path).await.expect(200).has_cache_status("larder; hit"));
    }
    let nothing_stored = larder.run_command("purge", "acme/null@7.7.7").await;
    assert_eq!((nothing_stored.items[0].archives, nothing_stored.ok), (Some(0), true));
}

/// First-seen records survive a purge, because they reveal a republished version.
#[tokio::test]
async fn purge_of_a_provider_removes_all_but_its_first_seen_records() {
    let mut upstream = upstream_with(edition(1)).await;
    let larder = Larder::mirroring(&upstream).start().await;
    install(&larder).await;
    larder.versions("null").await.expect(200);
    let report = larder.run_command("purge", NULL).await;
    assert_eq!((&report.items[0].documents, &report.items[0].archives), (&2.into(), &1.into()), "{report}");
    assert_eq!(report.items[0].seen_is_kept, Some(true));
    assert!(
        larder.folder.blobs().is_empty()
            && larder.folder.proof_sets().is_empty()
            && larder.folder.files("names").is_empty()
    );
    let seen = larder.folder.files("seen");
    assert!(seen.iter().any(|file| file.ends_with("null/1.2.0.json")), "{seen:?}");

    upstream.stop().await;
    larder.versions("null").await.expect(502);
    larder.document("null", "1.2.0").await.expect(502);
    upstream.restart().await;
    upstream.publish(edition(2).signed_by(&SigningKey::new_key()));
    let refused = larder.document("null", "1.2.0").await.expect(502);
    assert!(refused.text().contains("larder accept registry.terraform.io/acme/null@1.2.0"), "{}", refused.text());
}

/// An archive is deleted when no name record lists it.
#[tokio::test]
async fn purge_keeps_an_archive_that_another_package_lists() {
    let upstream = upstream_with(edition(1)).await;
    upstream.publish(Provider::new("other", "null"));
    let larder = Larder::mirroring(&upstream).start().await;
    let (_, path, stored) = install(&larder).await;
    let document = larder.get(&format!("/registry/{HOST}/v1/providers/other/null/1.2.0/download/linux/amd64")).await;
    let other_path = document.expect(200).json()["download_url"].as_str().unwrap().to_owned();
    larder.get(&other_path).await.expect(200);
    assert_eq!(larder.folder.blobs().len(), 1);

    let report = larder.run_command("purge", NULL).await;
    assert_eq!((&report.items[0].archives, &report.items[0].shared), (&0.into(), &1.into()), "{report}");
    upstream.forget_requests();
    assert!(larder.get(&other_path).await.expect(200).body == stored);
    assert!(larder.get(&path).await.expect(200).body == stored);
    assert_eq!(upstream.count_of(Target::Archive), 0);
    larder.run_command("purge", NULL).await;
    let report = larder.run_command("purge", "other/null").await;
    assert_eq!((&report.items[0].archives, larder.folder.blobs().len()), (&1.into(), 0), "{report}");
}

/// A version that upstream withdrew is listed only while it is stored.
#[tokio::test]
async fn a_withdrawn_version_is_no_longer_listed_after_a_purge() {
    let upstream = upstream_with(edition(1)).await;
    upstream.publish(edition(1).version("1.3.0"));
    let larder = Larder::mirroring(&upstream).start().await;
    install(&larder).await;
    upstream.withdraw("acme", "null", "1.2.0");
    larder.run_command("refresh", NULL).await;
    assert!(larder.versions("null").await.expect(200).text().contains("1.2.0"));
    larder.run_command("purge", NULL_120).await;
    let listed = larder.versions("null").await.expect(200);
    assert!(!listed.text().contains("1.2.0") && listed.text().contains("1.3.0"), "{}", listed.text());
    larder.document("null", "1.2.0").await.expect(404);
}

fn package() -> Package {
    let provider = ProviderAddress {
        host: Hostname::parse(HOST).unwrap(),
        namespace: Name::parse("acme").unwrap(),
        type_: Name::parse("null").unwrap(),
    };
    let (version, platform) = (Version::parse("1.2.0").unwrap(), Platform::parse("linux_amd64").unwrap());
    Package { provider, version, platform }
}

#[tokio::test]
async fn purge_leaves_and_reports_pinned_packages() {
    let upstream = upstream_with(edition(1)).await;
    let larder = Larder::mirroring(&upstream).start().await;
    let (_, path, _) = install(&larder).await;
    let folder = larder.stop().await;
    let store = open_store(folder.path(), Timestamp(1));
    let key = Key::Name(Artifact::Provider(package()));
    let mut record: Value = serde_json::from_slice(&store.records.get(&key).unwrap().unwrap()).unwrap();
    record["pinned"] = true.into();
    store.records.put(&key, record.to_string().as_bytes(), Durability::Synced).unwrap();
    store.close().unwrap();
    drop(store);

    let larder = Larder::mirroring(&upstream).store_at(&folder).start().await;
    for subject in [NULL, NULL_120] {
        let report = larder.run_command("purge", subject).await;
        assert_eq!((&report.items[0].pinned, report.ok), (&Some(vec![PACKAGE.into()]), false), "{report}");
        assert_eq!(report.items[0].documents, Some(0));
    }
    assert!(larder.get(&path).await.expect(200).has_cache_status("larder; hit"));
}

/// Commands talk to the running larder; without one, they open the store themselves.
#[tokio::test]
async fn the_commands_report_the_same_whether_larder_runs_or_not() {
    let upstream = upstream_with(edition(1)).await;
    let mut setup = CommandSetup::new(&upstream);
    setup.text.push_str(NEVER_FRESH);
    let no_store = setup.run(&["purge", NULL]).await;
    assert_eq!(no_store.code, Some(1), "{no_store:?}");
    assert!(no_store.err.contains("no larder runs here, and there is no store"), "{no_store:?}");
    for running in [true, false] {
        upstream.publish(edition(1));
        let larder = setup.serve();
        let path = larder.archive_path("null").await;
        larder.get(&path).await.expect(200);
        let larder = if running {
            Some(larder)
        } else {
            assert_eq!(larder.terminate().await, Some(0));
            None
        };
        let output = setup.stdout_of(&["refresh", NULL]).await;
        assert_eq!(output, "the version list of acme/null  unchanged\nacme/null 1.2.0 (linux_amd64)  unchanged\n");
        upstream.publish(edition(2).signed_by(&SigningKey::new_key()));
        let refused = setup.run(&["refresh", NULL]).await;
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(
            refused.out.contains("failed; what is stored stays") && refused.out.contains("larder accept"),
            "{refused:?}"
        );

        let output = setup.accept(NULL_120).await;
        for part in [
            "acme/null 1.2.0 (linux_amd64): accepted",
            "signed by ",
            ", new",
            &format!("is  {}", sha256_hex(&zip(&upstream))),
        ] {
            assert!(output.contains(part), "{part} is not in: {output}");
        }
        assert!(setup.accept(NULL_120).await.contains("nothing to accept"));
        let output = json(&setup.stdout_of(&["purge", NULL, "--json"]).await);
        assert_eq!((&output["ok"], &output["items"][0]["archives"]), (&true.into(), &1.into()), "{output}");
        let output = setup.stdout_of(&["purge", NULL]).await;
        assert!(output.contains("acme/null: nothing was stored"), "{output}");
        let refused = setup.run(&["purge", "acme/vpc/AWS"]).await;
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.err.contains("is not a module system"), "{refused:?}");
        drop(larder);
        let seen: Vec<_> = Folder::files(&setup.home, "seen");
        setup.home.lose(&seen[0]);
    }
}
