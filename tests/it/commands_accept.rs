//! The operator command `accept`, for versions that upstream republished with a foreign key or unsigned.

use std::path::Path;
use std::time::Duration;

use larder::clock::Clock;
use larder::digest::Digest;

use crate::support::command_setup::CommandSetup;
use crate::support::git_module_fixture::download_module;
use crate::support::larder::Larder;
use crate::support::module_fixture::{ModuleFixture, tar_gz};
use crate::support::null_provider::{
    NULL, NULL_120, PACKAGE, always_revalidating, edition, install, upstream_with, zip,
};
use crate::support::process::{CommandOutput, command_of, run};
use crate::support::upstream::{FakeUpstream, Fault, Provider, SigningKey, Target, sha256_hex};

/// Until `accept`, a version that an unknown key republished is 502, or its old proof set is served.
#[tokio::test]
async fn accept_stores_a_version_that_an_unknown_key_republished() {
    let upstream = upstream_with(edition(1)).await;
    let clock = Clock::default();
    let larder = always_revalidating(&upstream).clock(&clock).start().await;
    let (_, old_path, old_zip) = install(&larder).await;
    let file = "terraform-provider-null_1.2.0_linux_amd64.zip";
    upstream.publish(edition(2).signed_by(&SigningKey::new_key()));
    assert!(install(&larder).await.2 == old_zip);

    let report = larder.run_command("accept", NULL_120).await;
    assert_eq!((report.outcomes(), report.ok), (vec![(PACKAGE, "accepted")], true), "{report}");
    let item = &report.items[0];
    let changed =
        serde_json::json!({"file": file, "before": [sha256_hex(&old_zip)], "now": sha256_hex(&zip(&upstream))});
    assert!(item.files.as_ref().unwrap().contains(&changed), "{report}");
    let keys_before = item.keys_before.as_ref().unwrap();
    assert!(keys_before.len() == 1 && !keys_before.contains(item.key.as_ref().unwrap()), "{report}");

    let (document, _, new_zip) = install(&larder).await;
    assert!(document.has_cache_status("fwd=stale; stored") && new_zip == zip(&upstream));
    clock.advance(Duration::from_secs(23 * 3600));
    assert!(larder.get(&old_path).await.expect(200).body == old_zip);
    assert_eq!(larder.run_command("accept", NULL_120).await.outcomes(), [(PACKAGE, "nothing_to_accept")]);
}

/// The accepted key may republish the version again without another accept.
#[tokio::test]
async fn an_accepted_key_needs_no_second_accept() {
    let upstream = upstream_with(edition(1)).await;
    let larder = always_revalidating(&upstream).start().await;
    install(&larder).await;
    let key = SigningKey::new_key();
    upstream.publish(edition(2).signed_by(&key));
    larder.run_command("accept", NULL_120).await;
    upstream.publish(edition(3).signed_by(&key));
    assert!(install(&larder).await.2 == zip(&upstream));
    upstream.publish(edition(4).signed_by(&SigningKey::new_key()));
    assert!(install(&larder).await.2 != zip(&upstream));
}

/// The version is 502 where nothing is stored. Its platforms are then found in the version list only.
#[tokio::test]
async fn accept_stores_a_version_that_was_not_stored() {
    let upstream = upstream_with(edition(1)).await;
    let larder = Larder::mirroring(&upstream).start().await;
    install(&larder).await;
    larder.run_command("purge", NULL).await;
    upstream.publish(edition(2).platform("linux_amd64").platform("darwin_arm64").signed_by(&SigningKey::new_key()));
    larder.document("null", "1.2.0").await.expect(502);

    let report = larder.run_command("accept", "acme/null@< 1.0").await;
    assert_eq!(report.items, []);
    let report = larder.run_command("accept", NULL_120).await;
    let other_platform = "registry.terraform.io/acme/null 1.2.0 (darwin_arm64)";
    assert_eq!(report.outcomes(), [(other_platform, "accepted"), (PACKAGE, "accepted")], "{report}");
    upstream.forget_requests();
    assert!(install(&larder).await.2 == zip(&upstream));
    assert_eq!(upstream.count_of(Target::Document), 0, "the accepted proof set was fetched again");
    let unlisted = larder.run_command("accept", "acme/null@9.9.9").await;
    assert!(unlisted.errors[0].contains("lists no registry.terraform.io/acme/null@9.9.9"));
}

/// A stored platform may be gone upstream, and a listed one may never have been stored: neither stops the other.
#[tokio::test]
async fn accept_of_a_version_fetches_stored_and_listed_platforms() {
    let upstream = upstream_with(edition(1)).await;
    let larder = always_revalidating(&upstream).start().await;
    install(&larder).await;
    upstream.publish(edition(2).platform("darwin_arm64").signed_by(&SigningKey::new_key()));
    larder.document_for("null", "1.2.0", "darwin_arm64").await.expect(502);
    let report = larder.run_command("accept", NULL_120).await;
    let other_platform = "registry.terraform.io/acme/null 1.2.0 (darwin_arm64)";
    assert_eq!(report.outcomes(), [(other_platform, "accepted"), (PACKAGE, "failed")], "{report}");
    larder.document_for("null", "1.2.0", "darwin_arm64").await.expect(200);
}

/// `accept` applies to unsigned sets too.
#[tokio::test]
async fn accept_stores_an_unsigned_version_where_checksums_suffice() {
    let upstream = upstream_with(edition(1).without_keys()).await;
    let larder = always_revalidating(&upstream).upstream_lines("verification = \"signature-if-keys\"").start().await;
    let (_, _, old_zip) = install(&larder).await;
    upstream.publish(edition(2).without_keys());
    assert!(install(&larder).await.2 == old_zip);
    let report = larder.run_command("accept", NULL).await;
    assert_eq!((report.outcomes(), &report.items[0].key), (vec![(PACKAGE, "accepted")], &None));
    assert!(install(&larder).await.2 == zip(&upstream));
}

/// Promise 1: a set that does not verify cannot be accepted.
#[tokio::test]
async fn accept_refuses_a_proof_set_that_does_not_verify() {
    for fault in
        [Fault::SumsChangedAfterSigning, Fault::SignedByAnotherKey, Fault::ArchiveNotInSums, Fault::Status(503)]
    {
        let upstream = upstream_with(edition(1)).await;
        let larder = always_revalidating(&upstream).start().await;
        let (_, _, old_zip) = install(&larder).await;
        upstream.publish(edition(2).signed_by(&SigningKey::new_key()));
        upstream.fault(Target::Document, fault.clone());
        let report = larder.run_command("accept", NULL_120).await;
        assert_eq!((report.outcomes(), report.ok), (vec![(PACKAGE, "failed")], false), "{fault:?}: {report}");
        upstream.clear_faults();
        assert!(install(&larder).await.2 == old_zip, "{fault:?}");
    }
}

/// A file that upstream exchanges after a person has looked is not accepted, and its alarm shows what upstream has now.
#[tokio::test]
async fn accept_takes_only_what_was_shown() {
    let upstream = upstream_with(edition(1)).await;
    let larder = always_revalidating(&upstream).start().await;
    let old_zip = install(&larder).await.2;
    upstream.publish(edition(2).signed_by(&SigningKey::new_key()));
    install(&larder).await;
    let shown = evidence(&larder, "waits-for-accept").await;

    let strange = SigningKey::new_key();
    upstream.publish(edition(3).signed_by(&strange));
    let refused = larder.accept_seen(NULL_120, &shown).await;
    let by_now = refused.undecided().expect("the evidence of now").to_owned();
    assert!(!refused.ok && by_now != shown, "{refused}");
    let version = &refused.items[0].versions.as_ref().unwrap()[0];
    assert_eq!(version["key"], strange.fingerprint(), "{refused}");
    assert_eq!(version["file"]["now"], sha256_hex(&zip(&upstream)), "{refused}");
    assert!(install(&larder).await.2 == old_zip, "the exchanged archive is served");
    let alarms = larder.alarms().await;
    assert_eq!(alarms.len(), 1, "{alarms:?}");
    assert!(alarms[0].3["detail"].as_str().unwrap().contains(&strange.fingerprint()), "{alarms:?}");
    assert_eq!(alarms[0].3["evidence"], by_now, "{alarms:?}");

    assert!(larder.accept_seen(NULL_120, &by_now).await.ok);
    assert!(install(&larder).await.2 == zip(&upstream));
}

/// The same for a key that is to vouch for every version of a provider.
#[tokio::test]
async fn accept_of_a_provider_makes_no_other_key_known_than_the_shown_one() {
    let upstream = upstream_with(edition(1)).await;
    let larder = always_revalidating(&upstream).start().await;
    install(&larder).await;
    let [second, third] = [SigningKey::new_key(), SigningKey::new_key()];
    upstream.publish(edition(1).version("1.3.0").signed_by(&second));
    larder.document("null", "1.3.0").await.expect(200);
    let shown = evidence(&larder, "new-key").await;
    upstream.publish(edition(2).version("1.3.0").signed_by(&third));
    let refused = larder.accept_seen(NULL, &shown).await;
    assert!(refused.undecided().is_some_and(|now| now != shown), "{refused}");
    // The third key vouches for nothing, and the second one for no other version.
    for key in [&second, &third] {
        upstream.publish(edition(9).signed_by(key));
        assert!(install(&larder).await.2 != zip(&upstream));
    }
    upstream.publish(edition(1));
    upstream.publish(edition(1).version("1.3.0").signed_by(&second));
    // The other findings end when upstream has taken them back.
    for version in ["1.2.0", "1.3.0"] {
        larder.document("null", version).await.expect(200);
    }
    assert!(larder.accept_seen(NULL, &shown).await.ok);
    upstream.publish(edition(9).signed_by(&second));
    assert!(install(&larder).await.2 == zip(&upstream), "the accepted key vouches for every version");
}

/// The same for the tree of a module.
#[tokio::test]
async fn accept_of_a_module_takes_no_other_tree_than_the_shown_one() {
    let fixture = ModuleFixture::with_one_module().await;
    let larder = fixture.larder().always_revalidate().start().await;
    let first = download_module(larder.base(), "one").await.1;
    fixture.publish_archive("one", &tar_gz(&[("main.tf", b"# shown\n")]));
    larder.run_command("refresh", "acme/one/test").await;
    let shown = evidence(&larder, "moved").await;
    fixture.publish_archive("one", &tar_gz(&[("main.tf", b"# exchanged\n")]));
    let refused = larder.accept_seen("acme/one/test@1.0.0", &shown).await;
    let by_now = refused.undecided().expect("the evidence of now").to_owned();
    assert_ne!(by_now, shown);
    assert_eq!(evidence(&larder, "moved").await, by_now);
    assert!(download_module(larder.base(), "one").await.1 == first);
    fixture.publish_archive("one", &tar_gz(&[("main.tf", b"# shown\n")]));
    let accepted = larder.accept_seen("acme/one/test@1.0.0", &shown).await;
    assert!(accepted.ok, "{accepted}");
    assert!(download_module(larder.base(), "one").await.1 != first);
    assert_eq!(larder.alarms().await.len(), 0);
}

/// The evidence that an alarm shows is what `accept` asks for, as long as upstream changes nothing.
#[tokio::test]
async fn the_evidence_of_an_alarm_is_that_of_its_command() {
    for (kind, is_signed) in
        [("waits-for-accept", true), ("republished", true), ("new-key", true), ("signature-lost", false)]
    {
        let upstream = upstream_with(edition(1)).await;
        let larder =
            always_revalidating(&upstream).upstream_lines("verification = \"signature-if-keys\"").start().await;
        install(&larder).await;
        let changed = match kind {
            "waits-for-accept" => edition(2).signed_by(&SigningKey::new_key()),
            "republished" => edition(2),
            _ if is_signed => edition(1).version("1.3.0").signed_by(&SigningKey::new_key()),
            _ => edition(1).version("1.3.0").without_keys(),
        };
        upstream.publish(changed);
        for version in ["1.2.0", "1.3.0"] {
            larder.document("null", version).await;
        }
        let alarm = larder.alarms().await.into_iter().find(|alarm| alarm.0 == kind).unwrap().3;
        let command = alarm["resolve"].as_str().unwrap().strip_prefix("larder accept ").unwrap();
        let done = larder.accept_seen(command, alarm["evidence"].as_str().unwrap()).await;
        assert!(done.ok && done.undecided().is_none(), "{kind}: {done}");
        assert_eq!(larder.alarms().await.len(), 0, "{kind}");
    }
}

/// An `accept` that shows nothing gives no trust either: the first key of a provider that was unsigned goes on to vouch for no
/// version from before it.
#[tokio::test]
async fn accept_without_evidence_gives_no_trust() {
    let upstream = upstream_with(edition(1).without_keys()).await;
    let larder = always_revalidating(&upstream).upstream_lines("verification = \"signature-if-keys\"").start().await;
    let unsigned = install(&larder).await.2;
    upstream.publish(edition(1).version("1.3.0"));
    larder.document("null", "1.3.0").await.expect(200);
    let report = larder.send_command("accept", serde_json::json!({ "what": [NULL] })).await;
    assert!(report.undecided().is_none(), "{report}");
    upstream.publish(edition(2));
    assert!(install(&larder).await.2 == unsigned, "its key vouched for a version from before it");
    assert_eq!(larder.alarms().await[0].0, "waits-for-accept");
}

/// The evidence of the alarm of this kind.
async fn evidence(larder: &Larder, kind: &str) -> String {
    let alarms = larder.alarms().await;
    let alarm = alarms.iter().find(|alarm| alarm.0 == kind).unwrap_or_else(|| panic!("no {kind} in {alarms:?}"));
    alarm.3["evidence"].as_str().unwrap().to_owned()
}

/// A version with many platforms that another key published again.
async fn setup_with_refused_version() -> (FakeUpstream, CommandSetup, SigningKey) {
    let upstream = FakeUpstream::start().await;
    let published = |edition: u64| {
        let platforms = (0..30).map(|number| format!("linux_a{number}"));
        platforms
            .fold(Provider::new("acme", "null").edition(edition), |provider, platform| provider.platform(&platform))
    };
    upstream.publish(published(1));
    let mut setup = CommandSetup::new(&upstream);
    setup.text.push_str("fresh = { versions = \"0s\", discovery = \"0s\", download = \"0s\", not_found = \"0s\" }\n");
    setup.stdout_of(&["warm", NULL_120, "--platform", "linux_a0", "--platform", "linux_a1"]).await;
    let key = SigningKey::new_key();
    upstream.publish(published(2).signed_by(&key));
    let refused = setup.run(&["refresh", NULL]).await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    (upstream, setup, key)
}

/// Without a terminal nobody can be asked: the command shows what is to be decided, each fact once, and how to say so.
#[tokio::test]
async fn without_a_terminal_accept_needs_the_evidence() {
    let (_upstream, setup, key) = setup_with_refused_version().await;
    let shown = setup.run(&["accept", NULL_120]).await;
    assert_eq!(shown.code, Some(2), "{shown:?}");
    for part in ["nothing is accepted yet", &key.fingerprint(), "never signed for this provider", "keys known so far: "]
    {
        assert!(shown.out.contains(part), "{part} is not in {}", shown.out);
    }
    assert!(shown.out.contains("31 files changed, such as"), "{}", shown.out);
    assert!(shown.out.lines().count() < 12, "{}", shown.out);
    let evidence = shown.err.split("--evidence ").nth(1).unwrap().trim();
    assert!(shown.err.contains(&format!("  larder accept {NULL_120} --evidence {evidence}")), "{shown:?}");
    for command in [&["status"][..], &["explain", NULL_120]] {
        let output = setup.run(command).await.out;
        assert!(output.contains(&format!("evidence {evidence}")), "{output}");
    }
    let json = setup.run(&["accept", NULL_120, "--json"]).await;
    assert!(json.code == Some(2) && json.out.contains(evidence) && json.err.is_empty(), "{json:?}");
    let other = Digest::of(b"other").to_string();
    let wrong = setup.run(&["accept", NULL_120, "--evidence", &other[..32]]).await;
    assert!(wrong.code == Some(2) && wrong.err.contains(evidence), "{wrong:?}");
    let bad = setup.run(&["accept", NULL_120, "--evidence", "12"]).await;
    assert!(bad.code == Some(2) && bad.err.contains("32 hex digits"), "{bad:?}");
    let accepted = setup.stdout_of(&["accept", NULL_120, "--evidence", evidence]).await;
    assert!(accepted.contains("accepted") && accepted.contains("and 26 files more"), "{accepted}");
    assert!(accepted.lines().count() < 25, "{accepted}");
    assert!(!setup.stdout_of(&["status"]).await.contains("alarms"));
}

/// In a terminal the command shows the same and asks. Only a clear yes accepts.
#[tokio::test]
async fn in_a_terminal_accept_shows_the_evidence_and_asks() {
    let (_upstream, setup, key) = setup_with_refused_version().await;
    for (answer, code, part) in
        [("n\n", 2, "nothing was accepted"), ("\n", 2, "nothing was accepted"), ("yes\n", 0, ": accepted")]
    {
        let output = in_terminal(&setup, &["accept", NULL_120], answer).await;
        assert_eq!(output.code, Some(code), "{answer:?}: {output:?}");
        for expected in [&*key.fingerprint(), "Accept this? [y/N]", part] {
            assert!(output.out.contains(expected), "{expected} is not in {}", output.out);
        }
    }
    assert!(!setup.stdout_of(&["status"]).await.contains("alarms"));
}

/// Runs a command in a terminal of its own, in which a person types the answer.
async fn in_terminal(setup: &CommandSetup, arguments: &[&str], answer: &str) -> CommandOutput {
    let line = format!("{} {} --config {}", env!("CARGO_BIN_EXE_larder"), arguments.join(" "), setup.file().display());
    let typed = answer.replace('\n', "\\n");
    let script = format!("printf '{typed}' | script --quiet --return --command '{line}' /dev/null");
    run(command_of(Path::new("sh"), setup.home.path(), &["-c", &script])).await
}
