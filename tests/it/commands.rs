//! The operator commands `refresh` and `purge` (section 3), over HTTP and on the command line.

use std::time::Duration;

use larder::address::{Artifact, Hostname, Name, Package, Platform, ProviderAddress, Version};
use larder::clock::Timestamp;
use larder::store::{Durability, Key, Store};
use serde_json::Value;

use crate::support::command_setup::{CommandSetup, json};
use crate::support::larder::{Folder, HOST, Larder};
use crate::support::null_provider::{LIST, NULL, NULL_120, PACKAGE, edition, install, upstream_with, zip};
use crate::support::upstream::{Fault, Provider, SigningKey, Target, sha256_hex};

const NEVER_FRESH: &str =
    "fresh = { versions = \"0s\", discovery = \"0s\", download = \"0s\", api = \"0s\", not_found = \"0s\" }";

const DISCOVERY: &str = "the discovery document of registry.terraform.io";

#[tokio::test]
async fn refresh_asks_upstream_however_fresh_everything_is() {
    let upstream = upstream_with(edition(1)).await;
    let larder = Larder::mirroring(&upstream).start().await;
    install(&larder).await;
    upstream.publish(edition(2));
    upstream.publish(edition(1).version("1.3.0"));
    upstream.forget_requests();
    assert_ne!(install(&larder).await.2, zip(&upstream));
    assert_eq!(upstream.requests().len(), 0);

    let done = larder.tell("refresh", NULL).await;
    assert_eq!((done.outcomes(), done.ok), (vec![(LIST, "new"), (PACKAGE, "new")], true));
    assert!(install(&larder).await.2 == zip(&upstream));
    assert!(larder.versions("null").await.expect(200).text().contains("1.3.0"));

    upstream.forget_requests();
    let done = larder.tell("refresh", NULL).await;
    assert_eq!(done.outcomes(), [(LIST, "unchanged"), (PACKAGE, "unchanged")]);
    assert_eq!((upstream.count_of(Target::Versions), upstream.count_of(Target::Document)), (1, 1));
    assert_eq!(larder.tell("refresh", "acme/null@9.9.9").await.outcomes(), [(LIST, "unchanged")]);
}

#[tokio::test]
async fn refresh_reports_gone_and_failed_documents_and_keeps_both() {
    let mut upstream = upstream_with(edition(1)).await;
    let larder = Larder::mirroring(&upstream).start().await;
    let (_, _, stored) = install(&larder).await;
    upstream.publish(edition(1).version("1.3.0"));
    upstream.withdraw("acme", "null", "1.2.0");
    let done = larder.tell("refresh", NULL).await;
    assert_eq!(done.outcomes(), [(LIST, "new"), (PACKAGE, "gone")]);
    assert!(install(&larder).await.2 == stored);

    upstream.stop().await;
    let done = larder.tell("refresh", NULL).await;
    let failed = vec![(DISCOVERY, "failed"), (LIST, "failed"), (PACKAGE, "failed")];
    assert_eq!((done.outcomes(), done.ok), (failed, false));
    assert!(done.items[0].error.as_deref().unwrap().contains(&upstream.origin()), "{done}");
    assert!(install(&larder).await.2 == stored);
}

/// An operator's refresh ignores the backoff of a failing origin.
#[tokio::test]
async fn refresh_asks_an_upstream_whose_breaker_is_open() {
    let upstream = upstream_with(edition(1)).await;
    let larder = Larder::mirroring(&upstream).start().await;
    install(&larder).await;
    larder.versions("null").await.expect(200);
    larder.clock.advance(Duration::from_secs(7200));
    upstream.fault(Target::Everything, Fault::RetryAfter(429, 3600));
    larder.versions("null").await.expect(200);
    upstream.heal();
    upstream.publish(edition(1).version("1.3.0"));
    upstream.forget_requests();
    assert!(!larder.versions("null").await.expect(200).text().contains("1.3.0"));
    assert_eq!(upstream.requests().len(), 0, "it was not left alone");

    let done = larder.tell("refresh", NULL).await;
    assert_eq!(done.outcomes(), [(LIST, "new"), (PACKAGE, "unchanged")]);
    assert!(larder.versions("null").await.expect(200).text().contains("1.3.0"));
}

#[tokio::test]
async fn refresh_forgets_a_remembered_404() {
    let upstream = upstream_with(edition(1)).await;
    let larder = Larder::mirroring(&upstream).start().await;
    larder.versions("later").await.expect(404);
    larder.document_for("null", "1.2.0", "darwin_arm64").await.expect(404);
    upstream.publish(Provider::new("acme", "later"));
    upstream.publish(edition(1).platform("linux_amd64").platform("darwin_arm64"));
    larder.versions("later").await.expect(404);
    larder.document_for("null", "1.2.0", "darwin_arm64").await.expect(404);
    assert_eq!(larder.tell("refresh", "acme/later").await.items[0].outcome.as_deref(), Some("new"));
    larder.tell("refresh", NULL_120).await;
    larder.versions("later").await.expect(200);
    larder.document_for("null", "1.2.0", "darwin_arm64").await.expect(200);
    let absent = larder.tell("refresh", "acme/never").await;
    assert_eq!((absent.items[0].outcome.as_deref(), absent.ok), (Some("absent"), false));
}

/// DESIGN, promise 12: nothing leaves, and the error says that larder is offline.
#[tokio::test]
async fn offline_nothing_is_refreshed_or_accepted() {
    let upstream = upstream_with(edition(1)).await;
    let larder = Larder::mirroring(&upstream).start().await;
    install(&larder).await;
    let folder = larder.stop().await;
    upstream.forget_requests();
    let larder = Larder::mirroring(&upstream).network("offline = true").on(&folder).start().await;
    for command in ["refresh", "accept"] {
        let done = larder.tell(command, NULL_120).await;
        assert!(!done.ok);
        assert!(done.errors[0].contains("this mirror is offline"), "{done}");
    }
    let unknown = larder.tell("refresh", "elsewhere.example/acme/null").await;
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
    let kept = [larder.archive_path("null", "1.3.0").await, larder.archive_path("other", "1.2.0").await];
    for path in &kept {
        larder.get(path).await.expect(200);
    }
    larder.get(&path).await.expect(200);
    upstream.forget_requests();

    let done = larder.tell("purge", NULL_120).await;
    let item = &done.items[0];
    assert_eq!((item.archives, item.archive_bytes), (Some(1), Some(stored.len() as u64)), "{done}");
    assert_eq!((item.documents, item.shared, done.ok), (Some(1), Some(0), true), "{done}");
    assert_eq!((larder.folder.blobs().len(), larder.folder.sets().len()), (2, 2));
    assert_eq!(upstream.requests().len(), 0);

    let (again, _, archive) = install(&larder).await;
    assert!(again.has_cache_status("fwd=miss") && again.body == document.body && archive == stored);
    assert_eq!((upstream.count_of(Target::Document), upstream.count_of(Target::Archive)), (1, 1));
    for path in &kept {
        assert!(larder.get(path).await.expect(200).has_cache_status("larder; hit"));
    }
    let nothing = larder.tell("purge", "acme/null@7.7.7").await;
    assert_eq!((nothing.items[0].archives, nothing.ok), (Some(0), true));
}

/// First-seen records survive a purge, because they reveal a republished version.
#[tokio::test]
async fn purge_of_a_provider_removes_all_but_its_first_seen_records() {
    let mut upstream = upstream_with(edition(1)).await;
    let larder = Larder::mirroring(&upstream).start().await;
    install(&larder).await;
    larder.versions("null").await.expect(200);
    let done = larder.tell("purge", NULL).await;
    assert_eq!((&done.items[0].documents, &done.items[0].archives), (&2.into(), &1.into()), "{done}");
    assert_eq!(done.items[0].seen_is_kept, Some(true));
    assert!(
        larder.folder.blobs().is_empty() && larder.folder.sets().is_empty() && larder.folder.files("names").is_empty()
    );
    let seen = larder.folder.files("seen");
    assert!(seen.iter().any(|file| file.ends_with("null/1.2.0.json")), "{seen:?}");

    upstream.stop().await;
    larder.versions("null").await.expect(502);
    larder.document("null", "1.2.0").await.expect(502);
    upstream.restart().await;
    upstream.publish(edition(2).signed_by(&SigningKey::another()));
    let refused = larder.document("null", "1.2.0").await.expect(502);
    assert!(refused.text().contains("larder accept registry.terraform.io/acme/null@1.2.0"), "{}", refused.text());
}

/// DESIGN 5: an archive is deleted when no package record lists it.
#[tokio::test]
async fn purge_leaves_bytes_that_another_package_names() {
    let upstream = upstream_with(edition(1)).await;
    upstream.publish(Provider::new("other", "null"));
    let larder = Larder::mirroring(&upstream).start().await;
    let (_, path, stored) = install(&larder).await;
    let document = larder.get(&format!("/registry/{HOST}/v1/providers/other/null/1.2.0/download/linux/amd64")).await;
    let other = document.expect(200).json()["download_url"].as_str().unwrap().to_owned();
    larder.get(&other).await.expect(200);
    assert_eq!(larder.folder.blobs().len(), 1);

    let done = larder.tell("purge", NULL).await;
    assert_eq!((&done.items[0].archives, &done.items[0].shared), (&0.into(), &1.into()), "{done}");
    upstream.forget_requests();
    assert!(larder.get(&other).await.expect(200).body == stored);
    assert!(larder.get(&path).await.expect(200).body == stored);
    assert_eq!(upstream.count_of(Target::Archive), 0);
    larder.tell("purge", NULL).await;
    let done = larder.tell("purge", "other/null").await;
    assert_eq!((&done.items[0].archives, larder.folder.blobs().len()), (&1.into(), 0), "{done}");
}

/// A dropped version is listed only while it is stored.
#[tokio::test]
async fn a_dropped_version_that_is_purged_is_listed_no_more() {
    let upstream = upstream_with(edition(1)).await;
    upstream.publish(edition(1).version("1.3.0"));
    let larder = Larder::mirroring(&upstream).start().await;
    install(&larder).await;
    upstream.withdraw("acme", "null", "1.2.0");
    larder.tell("refresh", NULL).await;
    assert!(larder.versions("null").await.expect(200).text().contains("1.2.0"));
    larder.tell("purge", NULL_120).await;
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
    let store = Store::open(folder.path(), Timestamp(1)).unwrap();
    let key = Key::Name(Artifact::Provider(package()));
    let mut name: Value = serde_json::from_slice(&store.records.get(&key).unwrap().unwrap()).unwrap();
    name["pinned"] = true.into();
    store.records.put(&key, name.to_string().as_bytes(), Durability::Synced).unwrap();
    store.close().unwrap();
    drop(store);

    let larder = Larder::mirroring(&upstream).on(&folder).start().await;
    for subject in [NULL, NULL_120] {
        let done = larder.tell("purge", subject).await;
        assert_eq!((&done.items[0].pinned, done.ok), (&Some(vec![PACKAGE.into()]), false), "{done}");
        assert_eq!(done.items[0].documents, Some(0));
    }
    assert!(larder.get(&path).await.expect(200).has_cache_status("larder; hit"));
}

/// DESIGN 3: commands talk to the running larder; without one, they open the store themselves.
#[tokio::test]
async fn the_commands_report_the_same_whether_larder_runs_or_not() {
    let upstream = upstream_with(edition(1)).await;
    let mut setup = CommandSetup::new(&upstream);
    setup.text.push_str(NEVER_FRESH);
    let none_yet = setup.run(&["purge", NULL]).await;
    assert_eq!(none_yet.code, Some(1), "{none_yet:?}");
    assert!(none_yet.err.contains("no larder runs here, and there is no store"), "{none_yet:?}");
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
        let output = setup.out(&["refresh", NULL]).await;
        assert_eq!(output, "the version list of acme/null  unchanged\nacme/null 1.2.0 (linux_amd64)  unchanged\n");
        upstream.publish(edition(2).signed_by(&SigningKey::another()));
        let refused = setup.run(&["refresh", NULL]).await;
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(
            refused.out.contains("failed; what is stored stays") && refused.out.contains("larder accept"),
            "{refused:?}"
        );

        let output = setup.out(&["accept", NULL_120]).await;
        for part in [
            "acme/null 1.2.0 (linux_amd64): accepted",
            "signed by ",
            ", new",
            &format!("is  {}", sha256_hex(&zip(&upstream))),
        ] {
            assert!(output.contains(part), "{part} is not in: {output}");
        }
        assert!(setup.out(&["accept", NULL_120]).await.contains("nothing to accept"));
        let output = json(&setup.out(&["purge", NULL, "--json"]).await);
        assert_eq!((&output["ok"], &output["items"][0]["archives"]), (&true.into(), &1.into()), "{output}");
        let output = setup.out(&["purge", NULL]).await;
        assert!(output.contains("acme/null: nothing was stored"), "{output}");
        let refused = setup.run(&["purge", "acme/vpc/AWS"]).await;
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.err.contains("is not a module system"), "{refused:?}");
        drop(larder);
        let seen: Vec<_> = Folder::files(&setup.home, "seen");
        std::fs::remove_file(&seen[0]).unwrap();
    }
}
