//! Approvals: a person lets a version be used before it has the age that a rule demands, and takes that back. Every way in
//! obeys at once, and each decision stays on record.

use std::time::Duration;

use larder::clock::{Clock, Timestamp};
use serde_json::{Value, json};

use crate::support::bundle_transfer::{BundleKey, applied_receipt, bundle_made_at, sealed, warm_up};
use crate::support::command_setup::CommandSetup;
use crate::support::http::{Answer, client, get, send};
use crate::support::larder::{Builder, Folder, HOST, Larder};
use crate::support::module_fixture::{ModuleFixture, tar_gz};
use crate::support::pages::{assert_self_contained, readable_text};
use crate::support::terraform::Terraform;
use crate::support::upstream::{FakeUpstream, Module, Provider};

const DAY: Duration = Duration::from_secs(24 * 3600);

const WEEK: &str = "[[policy]]\nmatch = \"acme/evil\"\naction = \"deny\"\n[[policy]]\nmatch = \"acme/*\"\n\
                    minimum_age = \"7d\"\nreason = \"we wait a week\"\n";

fn publish(upstream: &FakeUpstream, version: &str) {
    upstream.publish(Provider::new("acme", "null").version(version));
}

/// A larder that listed 1.0.0 first, and 1.1.0 a day later.
async fn with_a_young_version(upstream: &FakeUpstream, folder: &Folder) -> Larder {
    publish(upstream, "1.0.0");
    let larder = mirror(upstream, folder).clock(&Clock::frozen()).start().await;
    larder.versions("null").await.expect(200);
    larder.clock.advance(DAY);
    publish(upstream, "1.1.0");
    larder.versions("null").await.expect(200);
    larder
}

fn mirror(upstream: &FakeUpstream, folder: &Folder) -> Builder {
    Larder::mirroring(upstream).store_at(folder).config_lines(WEEK)
}

async fn listed(larder: &Larder) -> Vec<String> {
    let list = larder.versions("null").await.expect(200).json();
    list["versions"].as_array().unwrap().iter().map(|entry| entry["version"].as_str().unwrap().to_owned()).collect()
}

/// Sends a decision; returns its report.
async fn decide(larder: &Larder, command: &str, body: Value) -> Value {
    post(larder, command, body).await.expect(200).json()
}

async fn post(larder: &Larder, command: &str, body: Value) -> Answer {
    let request = client().post(format!("{}/admin/v1/{command}", larder.admin())).bearer_auth(larder.token());
    send(request.header("content-type", "application/json").body(body.to_string())).await.unwrap()
}

async fn approve(larder: &Larder, what: &str) -> Value {
    decide(larder, "approve", json!({ "what": [what], "reason": "fixes CVE-2026-1", "by": "Ada" })).await
}

async fn read(larder: &Larder, path: &str) -> Value {
    get(&format!("{}{path}", larder.admin())).await.expect(200).json()
}

fn index() -> String {
    format!("/mirror/{HOST}/acme/null/index.json")
}

/// An approval opens the version at once on every way in, and its end closes it again: also for answers in memory.
#[tokio::test]
async fn an_approval_opens_a_version_at_once_and_taking_it_back_closes_it() {
    let upstream = FakeUpstream::start().await;
    let folder = Folder::new();
    let larder = with_a_young_version(&upstream, &folder).await;
    let rule = "the policy for acme/* holds versions back for 7 days: we wait a week";
    for _ in 0..2 {
        assert_eq!(listed(&larder).await, ["1.0.0"]);
        larder.document("null", "1.1.0").await.expect(421);
        let report = approve(&larder, "acme/null@1.1.0").await;
        let item = &report["items"][0];
        assert_eq!(
            (&report["ok"], &item["outcome"], &item["lifted"], &item["unlisted"]),
            (&json!(true), &json!("approved"), &json!(rule), &json!(false)),
            "{report}"
        );
        let list = larder.versions("null").await.expect(200).json();
        assert!(list["warnings"].as_array().is_none_or(Vec::is_empty), "{list}");
        assert_eq!(listed(&larder).await, ["1.0.0", "1.1.0"]);
        assert!(larder.get(&index()).await.expect(200).text().contains("1.1.0"));
        larder.get(&format!("/mirror/{HOST}/acme/null/1.1.0.json")).await.expect(200);
        let archive = larder.archive_path("null", "1.1.0").await;
        larder.get(&archive).await.expect(200);
        let report = decide(&larder, "unapprove", json!({ "what": ["acme/null@1.1.0"] })).await;
        assert_eq!(report["items"][0]["outcome"], "taken_back", "{report}");
        assert_eq!(report["items"][0]["held"], rule, "{report}");
        assert!(larder.get(&index()).await.expect(200).text().contains("1.0.0"));
        assert!(!larder.get(&index()).await.expect(200).text().contains("1.1.0"));
        larder.get(&archive).await.expect(403);
    }
    // Each decision is on record, in its order.
    let record = folder.files("approvals").pop().unwrap();
    let record: Value = serde_json::from_str(folder.record(&record).unwrap().lines().last().unwrap()).unwrap();
    let decisions: Vec<&str> =
        record["entries"].as_array().unwrap().iter().map(|entry| entry["decision"].as_str().unwrap()).collect();
    assert_eq!(decisions, ["approved", "taken-back", "approved", "taken-back"], "{record}");
}

/// An approval with an end closes by itself, to the second, for documents that are fresh in memory too. A clock that is set back
/// does not revive it.
#[tokio::test]
async fn an_approval_ends_by_itself() {
    let upstream = FakeUpstream::start().await;
    let folder = Folder::new();
    let larder = with_a_young_version(&upstream, &folder).await;
    let end = Timestamp(larder.clock.now().0 + 3600);
    let body = json!({ "what": ["acme/null@1.1.0"], "reason": "tonight", "until": end.date_time() });
    let report = decide(&larder, "approve", body).await;
    assert_eq!(report["items"][0]["until"], json!(end.date_time()), "{report}");
    larder.document("null", "1.1.0").await.expect(200);
    assert_eq!(listed(&larder).await, ["1.0.0", "1.1.0"]);
    larder.clock.advance(Duration::from_secs(3600));
    larder.document("null", "1.1.0").await.expect(200);
    larder.clock.advance(Duration::from_secs(1));
    let refused = larder.document("null", "1.1.0").await.expect(421).text();
    assert!(refused.contains("holds it back until"), "{refused}");
    assert_eq!(listed(&larder).await, ["1.0.0"], "the list ends with the document");
    assert_eq!(read(&larder, "/admin/v1/status").await["approvals"], json!([]));
    // The latest time is written with a list, at most every hour.
    larder.clock.advance(2 * Duration::from_secs(3600));
    publish(&upstream, "1.2.0");
    larder.versions("null").await.expect(200);
    larder.stop().await;
    let set_back = mirror(&upstream, &folder).clock(&Clock::frozen()).start().await;
    set_back.document("null", "1.1.0").await.expect(421);
    let body = json!({ "what": ["acme/null@1.1.0"], "reason": "late", "until": end.date_time() });
    let late = post(&set_back, "approve", body).await.expect(200).json();
    assert!(late["ok"] == false && late["errors"][0].as_str().unwrap().contains("it would have ended"), "{late}");
}

/// An approval lifts an age and nothing else: what is denied stays denied, a stricter view stays strict, and what nobody lists is
/// noted for the person.
#[tokio::test]
async fn an_approval_lifts_only_the_age_of_the_rules() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "evil"));
    let larder = with_a_young_version(&upstream, &Folder::new()).await;
    let report = approve(&larder, "acme/evil@1.2.0").await;
    assert_eq!((&report["ok"], &report["items"][0]["outcome"]), (&json!(false), &json!("denied")), "{report}");
    larder.document("evil", "1.2.0").await.expect(421);
    approve(&larder, "acme/null@1.1.0").await;
    let of_view = format!("/age/7d{}", index());
    assert!(!larder.get(&of_view).await.expect(200).text().contains("1.1.0"));
    let unlisted = approve(&larder, "acme/null@9.9.9").await;
    assert_eq!((&unlisted["ok"], &unlisted["items"][0]["outcome"]), (&json!(false), &json!("unlisted")), "{unlisted}");
    let body = json!({ "what": ["acme/null@9.9.9"], "reason": "comes tonight", "until": "2099-12-31" });
    let ahead = decide(&larder, "approve", body).await;
    assert_eq!(
        (&ahead["items"][0]["outcome"], &ahead["items"][0]["unlisted"]),
        (&json!("approved"), &json!(true)),
        "{ahead}"
    );
    let old = approve(&larder, "acme/null@1.0.0").await;
    assert_eq!(old["items"][0]["lifted"], Value::Null, "{old}");
    let other = decide(&larder, "unapprove", json!({ "what": ["acme/null@1.0.1"] })).await;
    assert_eq!((&other["ok"], &other["items"][0]["outcome"]), (&json!(false), &json!("not_approved")), "{other}");
    for (body, problem) in [
        (json!({ "what": ["acme/null"], "reason": "x" }), "is not one version"),
        (json!({ "what": ["acme/null@1.1.0"] }), "give a reason"),
        (json!({ "what": ["acme/null@1.1.0"], "reason": "x", "until": "2001-01-01" }), "has passed"),
    ] {
        let refused = post(&larder, "approve", body).await.expect(400).text();
        assert!(refused.contains(problem), "{refused}");
    }
}

/// Approvals survive a restart, work offline for what is stored, and a damaged record approves nothing until the next approval.
#[tokio::test]
async fn approvals_last_and_a_damaged_record_approves_nothing() {
    let upstream = FakeUpstream::start().await;
    let folder = Folder::new();
    let larder = with_a_young_version(&upstream, &folder).await;
    let clock = larder.clock.clone();
    approve(&larder, "acme/null@1.1.0").await;
    let archive = larder.archive_path("null", "1.1.0").await;
    larder.get(&archive).await.expect(200);
    larder.stop().await;
    let offline = mirror(&upstream, &folder).network("offline = true").clock(&clock).start().await;
    assert_eq!(listed(&offline).await, ["1.1.0"]);
    offline.get(&archive).await.expect(200);
    offline.stop().await;
    folder.damage(&folder.files("approvals")[0]);
    let larder = mirror(&upstream, &folder).clock(&clock).start().await;
    assert_eq!(listed(&larder).await, ["1.0.0"]);
    larder.document("null", "1.1.0").await.expect(421);
    approve(&larder, "acme/null@1.1.0").await;
    assert_eq!(listed(&larder).await, ["1.0.0", "1.1.0"]);
}

/// A module has approvals as a provider has, under every spelling of its name.
#[tokio::test]
async fn a_module_version_is_approved_under_every_spelling() {
    let fixture = ModuleFixture::start().await;
    let publish = |version: &str| {
        let url = fixture.file(&format!("net-{version}.tar.gz"), &tar_gz(&[("main.tf", b"# net\n")]));
        fixture.registry.publish_module(Module::new("acme", "net", "test").version(version).at(&url));
    };
    publish("1.0.0");
    let larder = fixture.larder_on(&Folder::new()).config_lines(WEEK).clock(&Clock::frozen()).start().await;
    let versions = format!("/registry/{HOST}/v1/modules/acme/net/test/versions");
    let download = format!("/registry/{HOST}/v1/modules/acme/net/test/1.1.0/download");
    larder.get(&versions).await.expect(200);
    larder.clock.advance(DAY);
    publish("1.1.0");
    assert!(!larder.get(&versions).await.expect(200).text().contains("1.1.0"));
    larder.get(&download).await.expect(421);
    let report = approve(&larder, "Acme/Net/test@1.1.0").await;
    assert_eq!(report["items"][0]["outcome"], "approved", "{report}");
    assert!(larder.get(&versions).await.expect(200).text().contains("1.1.0"));
    larder.get(&download).await.expect(204);
}

/// `larder approve` and `unapprove` say what they did, and `status`, `explain` and `policy test` show the approval; by a running
/// larder and without one.
#[tokio::test]
async fn the_commands_show_approvals() {
    let upstream = FakeUpstream::start().await;
    publish(&upstream, "1.0.0");
    let mut setup = CommandSetup::new(&upstream);
    setup.text.push_str("first_list = \"new\"\n");
    setup.text.push_str(WEEK);
    let running = setup.serve();
    let held = setup.run(&["policy", "test", "acme/null@1.0.0"]).await;
    assert!(held.code == Some(3) && held.out.contains("held until"), "{held:?}");
    let usage = setup.run(&["approve", "acme/null@1.0.0"]).await;
    assert!(usage.code == Some(2) && usage.err.contains("--reason"), "{usage:?}");
    let approve =
        ["approve", "acme/null@1.0.0", "--reason", "fixes CVE-2026-1", "--by", "Ada", "--until", "2099-12-31"];
    assert_eq!(
        setup.stdout_of(&approve).await,
        "acme/null 1.0.0: approved until 2099-12-31 23:59:59 UTC\n  although the policy for acme/* holds versions back for 7 days: we wait a week\n"
    );
    let text = "1.0.0 until 2099-12-31 23:59:59 UTC by Ada: fixes CVE-2026-1";
    drop(running);
    let status = setup.stdout_of(&["status"]).await;
    assert!(status.contains(&format!("acme/null@{text}")), "{status}");
    let explained = setup.stdout_of(&["explain", "acme/null"]).await;
    assert!(explained.contains("approved") && explained.contains(text), "{explained}");
    let tested = setup.stdout_of(&["policy", "test", "acme/null"]).await;
    assert!(tested.contains("1.0.0  approved"), "{tested}");
    let taken = setup.stdout_of(&["unapprove", "acme/null@1.0.0", "--json"]).await;
    assert_eq!(serde_json::from_str::<Value>(&taken).unwrap()["items"][0]["outcome"], "taken_back");
    let again = setup.run(&["unapprove", "acme/null@1.0.0"]).await;
    assert!(again.code == Some(1) && again.out.contains("it was not approved"), "{again:?}");
}

/// The page of held versions: what, until when, by which rule; its form approves with the token, and says what is missing.
#[tokio::test]
async fn the_page_of_held_versions_approves_them() {
    let upstream = FakeUpstream::start().await;
    let larder = with_a_young_version(&upstream, &Folder::new()).await;
    let opens = larder.clock.now().after(7 * DAY);
    assert_eq!(
        read(&larder, "/admin/v1/held").await,
        json!({
            "held": [{
                "address": format!("{HOST}/acme/null"), "version": "1.1.0", "until": opens.date_time(),
                "reason": "the policy for acme/* holds versions back for 7 days: we wait a week",
            }],
            "next": null,
        })
    );
    let open = async || {
        let page = get(&format!("{}/held", larder.admin())).await.expect(200);
        assert_self_contained(&page);
        page
    };
    let (page, what) = (open().await, "acme/null@1.1.0");
    let text = readable_text(&page);
    for expected in [what, "in 7 days", "we wait a week", "Reason", "Approve"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert!(page.text().contains(&format!("name=\"what\" value=\"{what}\"")), "{}", page.text());
    let token = larder.token();
    let press = async |fields: &[(&str, &str)]| {
        let body = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let request = client().post(format!("{}/held", larder.admin())).body(body);
        send(request.header("content-type", "application/x-www-form-urlencoded")).await.unwrap()
    };
    press(&[("do", "approve"), ("what", what), ("reason", "x"), ("token", "wrong")]).await.expect(403);
    let unclear = press(&[("do", "approve"), ("what", what), ("reason", " "), ("token", &token)]).await.expect(400);
    assert!(readable_text(&unclear).contains("give a reason"), "{}", readable_text(&unclear));
    let nothing = press(&[("do", "approve"), ("reason", "x"), ("token", &token)]).await.expect(400);
    assert!(readable_text(&nothing).contains("1 to 256"), "{}", readable_text(&nothing));
    assert_eq!(listed(&larder).await, ["1.0.0"]);
    let fields =
        [("do", "approve"), ("what", what), ("reason", "<b>now</b>"), ("by", "Ada"), ("until", ""), ("token", &token)];
    let done = press(&fields).await.expect(200);
    assert!(readable_text(&done).contains("acme/null 1.1.0: approved"), "{}", readable_text(&done));
    assert_eq!(listed(&larder).await, ["1.0.0", "1.1.0"]);
    let page = open().await;
    let text = readable_text(&page);
    for expected in ["No version is too young", "<b>now</b>", "Ada", "no end", "Take back"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    press(&[("do", "unapprove"), ("what", what), ("until", "2020-01-01"), ("token", &token)]).await.expect(200);
    assert_eq!(listed(&larder).await, ["1.0.0"]);
}

/// The real client gets the approved version, without a warning.
#[tokio::test]
async fn the_real_client_installs_an_approved_version() {
    let Some(client) = Terraform::find() else { return };
    let upstream = FakeUpstream::start().await;
    let larder = with_a_young_version(&upstream, &Folder::new()).await;
    let mut workspace = client.workspace();
    workspace.cli_config(larder.client_config());
    workspace.require(&format!("{HOST}/acme/null"), ">= 1.0.0");
    let before = workspace.init().await.expect_success().one_line();
    assert!(before.contains("this mirror hides 1.1.0") && workspace.lock_file().contains("\"1.0.0\""), "{before}");
    approve(&larder, "acme/null@1.1.0").await;
    let after = workspace.run(&["init", "-upgrade", "-no-color", "-input=false"]).await.expect_success().one_line();
    assert!(!after.contains("this mirror hides") && workspace.lock_file().contains("\"1.1.0\""), "{after}");
}

/// A sealed larder that trusts a key, with more lines in `[bundle]`.
fn receiver(key: &BundleKey, more: &str) -> Builder {
    let sealed = sealed().upstream_lines("dates = \"none\"");
    key.with_trusted_key(sealed).upstream_lines(more).config_lines(WEEK)
}

/// A bundle of what a warm-up stores, made at the time of the sender's clock.
async fn bundle_of(sender: &Larder, what: &str) -> Vec<u8> {
    let job = warm_up(sender, &[what], &["linux_amd64"]).await;
    bundle_made_at(sender, &job, None, sender.clock.now().0).await
}

/// A signed bundle carries what persons decided and from when ages count; the receiving side may refuse both, and takes nothing
/// from a bundle that no trusted key signed. A decision that is taken back is taken back there, too.
#[tokio::test]
async fn a_signed_bundle_carries_approvals() {
    let upstream = FakeUpstream::start().await;
    let (key, folder) = (BundleKey::new(), Folder::new());
    publish(&upstream, "1.0.0");
    let clock = Clock::frozen();
    let sender = key.with_signing_key(mirror(&upstream, &folder)).clock(&clock).start().await;
    let made = async |what: &str| bundle_of(&sender, what).await;
    let first = made("acme/null@1.0.0").await;
    clock.advance(DAY);
    publish(&upstream, "1.1.0");
    sender.versions("null").await.expect(200);
    approve(&sender, "acme/null@1.1.0").await;
    let carried = made("acme/null@1.1.0").await;
    let receiver = |more: &str| receiver(&key, more).clock(&clock);

    let (refusing, taking) = (receiver("approvals = false").start().await, receiver("").start().await);
    for (larder, expected) in [(&refusing, &["1.0.0"][..]), (&taking, &["1.0.0", "1.1.0"])] {
        // The first bundle with a package is its first list; then one comes with a younger version.
        applied_receipt(larder, first.clone()).await;
        let receipt = applied_receipt(larder, carried.clone()).await;
        assert!(receipt.ok, "{receipt:?}");
        let approvals: Vec<_> = receipt.approvals.iter().map(|approval| approval.version.to_string()).collect();
        assert_eq!(approvals, expected.iter().skip(1).map(|version| (*version).to_owned()).collect::<Vec<_>>());
        assert_eq!(listed(larder).await, expected);
    }
    let status = read(&taking, "/admin/v1/status").await;
    assert_eq!(
        (&status["approvals"][0]["reason"], &status["approvals"][0]["from_bundle"]),
        (&json!("fixes CVE-2026-1"), &json!(true))
    );
    taking.document("null", "1.1.0").await.expect(200);
    // Taken back there, and with the next bundle here; the old one, applied once more, does not bring it back.
    decide(&sender, "unapprove", json!({ "what": ["acme/null@1.1.0"] })).await;
    let next = made("acme/null@1.0.0").await;
    for bundle in [next, carried] {
        clock.advance(Duration::from_secs(10));
        applied_receipt(&taking, bundle).await;
        assert_eq!(listed(&taking).await, ["1.0.0"]);
        taking.document("null", "1.1.0").await.expect(421);
    }
}

/// A version that is old enough where the bundle was made is old enough where it is applied.
#[tokio::test]
async fn a_signed_bundle_carries_the_ages_of_versions() {
    let upstream = FakeUpstream::start().await;
    let (key, folder, clock) = (BundleKey::new(), Folder::new(), Clock::frozen());
    publish(&upstream, "1.0.0");
    let sender = key.with_signing_key(mirror(&upstream, &folder)).clock(&clock).start().await;
    sender.versions("null").await.expect(200);
    let made = async |what: &str| bundle_of(&sender, what).await;
    let first = made("acme/null@1.0.0").await;
    clock.advance(DAY);
    publish(&upstream, "1.1.0");
    sender.versions("null").await.expect(200);
    clock.advance(8 * DAY);
    let second = made("acme/null@1.1.0").await;
    let receiver = |more: &str| receiver(&key, more).clock(&clock);
    for (more, expected) in [("approvals = false", &["1.0.0"][..]), ("", &["1.0.0", "1.1.0"])] {
        let larder = receiver(more).start().await;
        for bundle in [&first, &second] {
            applied_receipt(&larder, bundle.clone()).await;
        }
        assert_eq!(listed(&larder).await, expected, "{more}");
    }
    // Nobody vouches for the notes of an unsigned bundle, so it has none.
    let plain = mirror(&upstream, &Folder::new()).clock(&clock).start().await;
    approve(&plain, "acme/null@1.1.0").await;
    let job = warm_up(&plain, &["acme/null@1.1.0"], &["linux_amd64"]).await;
    let unsigned = bundle_made_at(&plain, &job, None, clock.now().0).await;
    assert!(!String::from_utf8_lossy(&unsigned).contains("\"notes\""));
    assert!(String::from_utf8_lossy(&second).contains("\"notes\""));
}
