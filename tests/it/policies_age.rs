//! The age that a rule demands, by its two clocks: the dates of the registry, and larder's own lists.

use std::time::Duration;

use larder::clock::{Clock, Timestamp};
use serde_json::{Value, json};

use crate::support::bundle_transfer::{BundleKey, applied_receipt, bundle, sealed};
use crate::support::http::get;
use crate::support::larder::{Builder, Folder, HOST, Larder};
use crate::support::module_fixture::{ModuleFixture, tar_gz};
use crate::support::terraform::{Terraform, host_override};
use crate::support::upstream::{FakeUpstream, Fault, Module, Provider, Target};
use crate::support::verify_steps::verify;
use crate::support::{eventually, until};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Seven days, with a reason.
const WEEK: &str = "[[policy]]\nmatch = \"acme/*\"\nminimum_age = \"7d\"\nreason = \"we wait a week\"\n";

const DATES: &str = "/v2/providers/acme/null";

/// The version numbers of acme/null that larder lists.
async fn listed(larder: &Larder) -> Vec<String> {
    let list = larder.versions("null").await.expect(200).json();
    list["versions"].as_array().unwrap().iter().map(|entry| entry["version"].as_str().unwrap().to_owned()).collect()
}

fn warnings(list: &Value) -> Vec<String> {
    list["warnings"].as_array().into_iter().flatten().map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// The registry's document of dates: each version, and its age in days by this clock.
fn dates(now: Timestamp, ages: &[(&str, i64)]) -> String {
    let included = ages.iter().map(|(version, days)| {
        let published = Timestamp(now.0.checked_add_signed(-days * 24 * 3600).unwrap()).date_time();
        json!({ "type": "provider-versions", "attributes": { "version": version, "published-at": published } })
    });
    json!({ "data": {}, "included": included.collect::<Vec<_>>() }).to_string()
}

fn publish(upstream: &FakeUpstream, versions: &[&str]) {
    for version in versions {
        upstream.publish(Provider::new("acme", "null").version(version));
    }
}

fn larder(upstream: &FakeUpstream, folder: &Folder) -> Builder {
    Larder::mirroring(upstream).store_at(folder).config_lines(WEEK)
}

/// A new version is hidden for a week from the list that first named it, is refused by number with the date, and then opens by
/// itself. The list before it is served meanwhile.
#[tokio::test]
async fn a_new_version_is_held_back_until_its_time_has_come() {
    let upstream = FakeUpstream::start().await;
    publish(&upstream, &["1.0.0", "1.1.0"]);
    let larder = larder(&upstream, &Folder::new()).clock(&Clock::frozen()).start().await;
    assert_eq!(listed(&larder).await, ["1.0.0", "1.1.0"], "the first list is old where no date is told");
    larder.clock.advance(DAY);
    publish(&upstream, &["1.2.0"]);
    let first_listed = larder.clock.now();
    let opens = first_listed.after(7 * DAY).date_time().replace('T', " ").replace('Z', " UTC");
    let list = larder.versions("null").await.expect(200).json();
    assert_eq!(
        warnings(&list),
        [format!(
            "this mirror hides 1.2.0 (until {opens}): the policy for acme/* holds versions back for 7 days: we wait a week"
        )]
    );
    assert_eq!(listed(&larder).await, ["1.0.0", "1.1.0"]);
    let refused = larder.document("null", "1.2.0").await.expect(421).text();
    assert!(
        refused.contains(&format!("the policy for acme/* holds it back until {opens}: we wait a week")),
        "{refused}"
    );
    larder.get(&format!("/mirror/{HOST}/acme/null/1.2.0.json")).await.expect(503);
    larder.clock.advance(7 * DAY - Duration::from_secs(1));
    larder.document("null", "1.2.0").await.expect(421);
    larder.clock.advance(Duration::from_secs(60));
    assert_eq!(listed(&larder).await, ["1.0.0", "1.1.0", "1.2.0"]);
    larder.document("null", "1.2.0").await.expect(200);
}

/// A date counts where larder's own lists do not contradict it: one that lies before the list before is not believed.
#[tokio::test]
async fn a_publisher_cannot_make_a_version_look_older() {
    let upstream = FakeUpstream::start().await;
    publish(&upstream, &["1.0.0"]);
    let larder = larder(&upstream, &Folder::new()).start().await;
    let now = larder.clock.now();
    upstream.serve_json(DATES, &dates(now, &[("1.0.0", 400)]));
    assert_eq!(listed(&larder).await, ["1.0.0"]);
    // Ten days later the list is read again: nothing new.
    larder.clock.advance(10 * DAY);
    assert_eq!(listed(&larder).await, ["1.0.0"]);
    // Two days later there are two new versions. One says that it is two years old; the other that it is one day old.
    larder.clock.advance(2 * DAY);
    let now = larder.clock.now();
    publish(&upstream, &["1.1.0", "1.2.0", "1.3.0"]);
    upstream.serve_json(DATES, &dates(now, &[("1.0.0", 412), ("1.1.0", 730), ("1.2.0", 1), ("1.3.0", -900)]));
    assert_eq!(listed(&larder).await, ["1.0.0"]);
    // The dates come behind the list.
    until("the dates of the new versions are stored", async || dates_stored(&larder, "1.2.0")).await;
    larder.clock.advance(6 * DAY + Duration::from_secs(120));
    assert_eq!(listed(&larder).await, ["1.0.0", "1.2.0"], "1.2.0 is seven days old by its date, 1.1.0 by the list six");
    larder.clock.advance(DAY);
    assert_eq!(listed(&larder).await, ["1.0.0", "1.1.0", "1.2.0"]);
    // A date in the future counts as now, however long that lasts.
    larder.clock.advance(100 * DAY);
    assert_eq!(listed(&larder).await, ["1.0.0", "1.1.0", "1.2.0"]);
}

fn dates_stored(larder: &Larder, version: &str) -> bool {
    let dates = larder.folder.files("documents").into_iter().filter(|path| path.ends_with("dates"));
    dates.into_iter().any(|path| String::from_utf8_lossy(&larder.folder.bytes(&path)).contains(version))
}

/// The versions of a first list have their published dates: a typosquat of yesterday is held back although larder never saw it
/// before. The first list waits for the dates, and for no longer than the patience.
#[tokio::test]
async fn the_first_list_has_the_dates_of_the_registry() {
    let upstream = FakeUpstream::start().await;
    publish(&upstream, &["1.0.0", "1.1.0"]);
    let folder = Folder::new();
    let larder = larder(&upstream, &folder).start().await;
    upstream.serve_json(DATES, &dates(larder.clock.now(), &[("1.0.0", 30), ("1.1.0", 1)]));
    assert_eq!(listed(&larder).await, ["1.0.0"]);
    assert_eq!(dates_requests(&upstream), 1);
    larder.document("null", "1.1.0").await.expect(421);
    // Every date is known, so none is asked for again.
    larder.clock.advance(DAY);
    assert_eq!(listed(&larder).await, ["1.0.0"]);
    assert_eq!(dates_requests(&upstream), 1);
    // Also offline, and after a restart.
    larder.stop().await;
    let offline = Larder::mirroring(&upstream).store_at(&folder).config_lines(WEEK).network("offline = true");
    let offline = offline.start().await;
    let refused = offline.versions("null").await;
    assert_eq!(refused.status, 503, "nothing that may be used is stored: {}", refused.text());
}

/// Without an age in a rule, no date is asked for. `dates = "none"` asks for none either, and `first_list = "new"` holds what a
/// first list names.
#[tokio::test]
async fn dates_are_asked_for_where_a_rule_needs_them() {
    let upstream = FakeUpstream::start().await;
    publish(&upstream, &["1.0.0"]);
    for rules in [
        "[[policy]]\nmatch = \"other/*\"\nminimum_age = \"7d\"\n",
        "[[policy]]\nmatch = \"acme/*\"\n[[policy]]\nmatch = \"*\"\nminimum_age = \"7d\"\n",
    ] {
        let plain = Larder::mirroring(&upstream).config_lines(rules).start().await;
        assert_eq!(listed(&plain).await, ["1.0.0"]);
        plain.document("null", "1.0.0").await.expect(200);
    }
    let without =
        Larder::mirroring(&upstream).upstream_lines("dates = \"none\"\nfirst_list = \"new\"").config_lines(WEEK);
    let without = without.start().await;
    let refused = without.versions("null").await.expect(421).text();
    assert!(refused.contains("the policy for acme/* holds versions back for 7 days: we wait a week"), "{refused}");
    without.clock.advance(8 * DAY);
    assert_eq!(listed(&without).await, ["1.0.0"]);
    assert_eq!(dates_requests(&upstream), 0);
}

/// A registry that tells no dates of a package is asked once an hour at most, and `first_list` counts.
#[tokio::test]
async fn a_registry_without_dates_is_not_asked_each_time() {
    let upstream = FakeUpstream::start().await;
    publish(&upstream, &["1.0.0"]);
    let larder = larder(&upstream, &Folder::new()).start().await;
    for _ in 0..3 {
        assert_eq!(listed(&larder).await, ["1.0.0"]);
        larder.document("null", "1.0.0").await.expect(200);
        larder.clock.advance(Duration::from_secs(600));
    }
    assert_eq!(dates_requests(&upstream), 1);
}

/// While the dates cannot be fetched, a version without one counts from the first list, and few requests ask for them. They
/// count as soon as they come, and an answer without dates takes none away.
#[tokio::test]
async fn what_has_no_date_yet_is_held_back() {
    let upstream = FakeUpstream::start().await;
    publish(&upstream, &["1.0.0", "1.1.0"]);
    let response = http::Response::builder().status(503).body("{}".to_owned()).unwrap();
    upstream.serve(DATES, response);
    let larder = larder(&upstream, &Folder::new()).start().await;
    let refused = larder.versions("null").await.expect(421).text();
    assert!(refused.contains("holds versions back for 7 days"), "{refused}");
    let asked = dates_requests(&upstream);
    for _ in 0..5 {
        larder.document("null", "1.0.0").await.expect(421);
        larder.clock.advance(Duration::from_secs(30));
    }
    assert_eq!(dates_requests(&upstream), asked);
    upstream.serve_json(DATES, &dates(larder.clock.now(), &[("1.0.0", 30), ("1.1.0", 1)]));
    larder.clock.advance(Duration::from_secs(600));
    assert_eq!(listed(&larder).await, ["1.0.0"]);
    let asked = dates_requests(&upstream);
    upstream.serve_json(DATES, "{}");
    publish(&upstream, &["1.2.0"]);
    larder.clock.advance(DAY);
    assert_eq!(listed(&larder).await, ["1.0.0"]);
    until("the registry has told no dates", async || dates_requests(&upstream) > asked).await;
    larder.clock.advance(Duration::from_secs(120));
    assert_eq!(listed(&larder).await, ["1.0.0"]);
}

/// Where upstream does not answer, that is the reason that the client gets, so that it asks again.
#[tokio::test]
async fn a_list_that_upstream_does_not_give_is_no_question_of_age() {
    let upstream = FakeUpstream::start().await;
    publish(&upstream, &["1.0.0"]);
    upstream.fault(Target::Versions, Fault::Status(503));
    let larder = larder(&upstream, &Folder::new()).start().await;
    let answer = larder.document("null", "1.0.0").await;
    assert!(answer.status >= 500 && !answer.text().contains("its age is not known"), "{}", answer.text());
}

fn dates_requests(upstream: &FakeUpstream) -> usize {
    upstream.requests().iter().filter(|request| request.path.contains("/v2/")).count()
}

/// A clock that was set back does not make new versions look older, also after a restart.
#[tokio::test]
async fn a_clock_that_is_set_back_opens_nothing() {
    let upstream = FakeUpstream::start().await;
    publish(&upstream, &["1.0.0"]);
    let folder = Folder::new();
    let larder_before = larder(&upstream, &folder).upstream_lines("").start().await;
    larder_before.clock.advance(40 * DAY);
    assert_eq!(listed(&larder_before).await, ["1.0.0"]);
    let right = larder_before.clock.now();
    larder_before.stop().await;
    // The clock is thirty days behind while 1.1.0 appears.
    let behind = larder(&upstream, &folder).start().await;
    assert!(behind.clock.now() < right);
    publish(&upstream, &["1.1.0"]);
    behind.clock.advance(10 * DAY);
    behind.run_command("refresh", "acme/null").await;
    assert_eq!(listed(&behind).await, ["1.0.0"]);
    // Set right again, the version has the age since the latest time that larder had seen, not since thirty days ago.
    behind.clock.advance(30 * DAY + Duration::from_secs(60));
    assert_eq!(listed(&behind).await, ["1.0.0"]);
    behind.clock.advance(7 * DAY);
    assert_eq!(listed(&behind).await, ["1.0.0", "1.1.0"]);
}

/// A record of times that cannot be read holds everything back and says so, until the next list.
#[tokio::test]
async fn a_damaged_record_of_times_holds_versions_back() {
    let upstream = FakeUpstream::start().await;
    publish(&upstream, &["1.0.0", "1.1.0"]);
    let larder = larder(&upstream, &Folder::new()).start().await;
    assert_eq!(listed(&larder).await, ["1.0.0", "1.1.0"]);
    let record = larder.folder.files("seen").into_iter().find(|path| path.ends_with("listed.json")).unwrap();
    larder.folder.damage(&record);
    larder.clock.advance(Duration::from_secs(120));
    let refused = larder.document("null", "1.0.0").await.expect(421).text();
    assert!(refused.contains("holds it back, because its age is not known: we wait a week"), "{refused}");
    // `verify` leaves it, and the next list does not count as a first one.
    verify(&larder).await;
    larder.document("null", "1.0.0").await.expect(421);
    publish(&upstream, &["1.2.0"]);
    larder.clock.advance(DAY);
    larder.versions("null").await.expect(421);
    larder.clock.advance(7 * DAY + Duration::from_secs(60));
    assert_eq!(listed(&larder).await, ["1.0.0", "1.1.0", "1.2.0"]);
}

/// A list that was stored before larder recorded times is a first list: what the next one names anew is new.
#[tokio::test]
async fn the_first_list_after_an_upgrade_holds_what_is_new() {
    let upstream = FakeUpstream::start().await;
    publish(&upstream, &["1.0.0"]);
    let folder = Folder::new();
    let before = larder(&upstream, &folder).start().await;
    assert_eq!(listed(&before).await, ["1.0.0"]);
    before.stop().await;
    let record = folder.files("seen").into_iter().find(|path| path.ends_with("listed.json")).unwrap();
    folder.lose(&record);
    publish(&upstream, &["1.1.0"]);
    let larder = larder(&upstream, &folder).start().await;
    larder.clock.advance(DAY);
    assert_eq!(listed(&larder).await, ["1.0.0"]);
}

/// Modules have the same clocks.
#[tokio::test]
async fn a_new_version_of_a_module_is_held_back() {
    let fixture = ModuleFixture::with_one_module().await;
    let larder = fixture.larder().config_lines(WEEK).start().await;
    let list = format!("/registry/{HOST}/v1/modules/acme/one/test/versions");
    larder.get(&list).await.expect(200);
    larder.clock.advance(DAY);
    let url = fixture.file("two.tar.gz", &tar_gz(&[("main.tf", b"# two\n")]));
    fixture.registry.publish_module(Module::new("acme", "one", "test").version("2.0.0").at(&url));
    let text = larder.get(&list).await.expect(200).text();
    assert!(text.contains("1.0.0") && !text.contains("2.0.0"), "{text}");
    let download = format!("/registry/{HOST}/v1/modules/acme/one/test/2.0.0/download");
    assert!(larder.get(&download).await.expect(421).text().contains("holds it back until"));
    larder.clock.advance(7 * DAY);
    assert!(larder.get(&list).await.expect(200).text().contains("2.0.0"));
    larder.get(&download).await.expect(204);
}

/// A registry may take every spelling of a module's name, and larder cannot know. A spelling that nobody asked for before must not
/// make a new version look as old as a first list; what was on the list before stays free.
#[tokio::test]
async fn another_spelling_of_a_module_does_not_make_a_version_older() {
    let fixture = ModuleFixture::with_one_module().await;
    let publish = |namespace: &str, version: &str| {
        let url = fixture.file(&format!("{version}.tar.gz"), &tar_gz(&[("main.tf", version.as_bytes())]));
        fixture.registry.publish_module(Module::new(namespace, "one", "test").version(version).at(&url));
    };
    publish("Acme", "1.0.0");
    let larder = fixture.larder().config_lines(&format!("fold_case = false\n{WEEK}")).start().await;
    let modules = |rest: &str| format!("/registry/{HOST}/v1/modules/{rest}");
    larder.get(&modules("acme/one/test/versions")).await.expect(200);
    larder.clock.advance(DAY);
    publish("acme", "2.0.0");
    publish("Acme", "2.0.0");
    let refused = larder.get(&modules("Acme/one/test/2.0.0/download")).await.expect(421).text();
    assert!(refused.contains("holds it back until"), "{refused}");
    let list = larder.get(&modules("Acme/one/test/versions")).await.expect(200).text();
    assert!(list.contains("1.0.0") && !list.contains("2.0.0"), "{list}");
    larder.get(&modules("Acme/one/test/1.0.0/download")).await.expect(204);
    larder.clock.advance(7 * DAY);
    larder.get(&modules("Acme/one/test/2.0.0/download")).await.expect(204);
}

/// A bundle brings a version that is too young: it is stored, hidden, and opens a week after its arrival, whatever times the
/// bundle says.
#[tokio::test]
async fn a_bundle_brings_versions_that_open_later() {
    let (upstream, key) = (FakeUpstream::start().await, BundleKey::new());
    publish(&upstream, &["1.0.0", "1.1.0"]);
    let first = bundle(&upstream, &key, &["acme/null@1.0.0"], &["linux_amd64"]).await;
    publish(&upstream, &["1.2.0"]);
    let second = bundle(&upstream, &key, &["acme/null@1.2.0"], &["linux_amd64"]).await;
    // Nobody can ask for dates there.
    let importer = key.with_trusted_key(sealed().upstream_lines("dates = \"none\"")).config_lines(WEEK).start().await;
    assert!(applied_receipt(&importer, first).await.ok);
    assert_eq!(listed(&importer).await, ["1.0.0"]);
    importer.clock.advance(DAY);
    assert!(applied_receipt(&importer, second).await.ok);
    assert_eq!(importer.folder.blobs().len(), 2);
    importer.clock.advance(Duration::from_secs(60));
    assert_eq!(listed(&importer).await, ["1.0.0"]);
    assert!(importer.document("null", "1.2.0").await.expect(421).text().contains("holds it back until"));
    importer.clock.advance(7 * DAY);
    assert_eq!(listed(&importer).await, ["1.0.0", "1.2.0"]);
    importer.document("null", "1.2.0").await.expect(200);
}

/// The real client takes the newest version that is old enough, and prints why it does not take the newest.
#[tokio::test]
async fn the_client_gets_the_newest_version_that_is_old_enough() {
    let Some(client) = Terraform::find() else { return };
    let upstream = FakeUpstream::start().await;
    publish(&upstream, &["1.0.0", "1.1.0"]);
    let larder = larder(&upstream, &Folder::new()).start().await;
    listed(&larder).await;
    larder.clock.advance(DAY);
    publish(&upstream, &["1.2.0"]);
    let mut workspace = client.workspace();
    workspace.require(&format!("{HOST}/acme/null"), ">= 1.0.0");
    workspace.cli_config(&host_override(HOST, &larder.providers_url(HOST), "http://127.0.0.1:9/v1/modules/"));
    let output = workspace.init().await.expect_success().one_line();
    assert!(workspace.lock_file().contains("\"1.1.0\""), "{}", workspace.lock_file());
    assert!(output.contains("this mirror hides 1.2.0 (until") && output.contains("we wait a week"), "{output}");
}

/// A stale list obeys the ages too: time passes while upstream is down.
#[tokio::test]
async fn a_version_opens_while_upstream_is_down() {
    let upstream = FakeUpstream::start().await;
    publish(&upstream, &["1.0.0"]);
    let larder = larder(&upstream, &Folder::new()).start().await;
    listed(&larder).await;
    larder.clock.advance(DAY);
    publish(&upstream, &["1.1.0"]);
    assert_eq!(listed(&larder).await, ["1.0.0"]);
    upstream.fault(Target::Versions, Fault::Status(503));
    larder.clock.advance(6 * DAY);
    assert_eq!(listed(&larder).await, ["1.0.0"]);
    larder.clock.advance(DAY + Duration::from_secs(60));
    let opened = eventually("the stale list names 1.1.0", async || {
        let versions = listed(&larder).await;
        (versions.len() == 2).then_some(versions)
    });
    assert_eq!(opened.await, ["1.0.0", "1.1.0"]);
}

/// A version that is withdrawn while its successor is held back: the alarm names the successor and the date, on the page too.
#[tokio::test]
async fn the_alarm_of_a_withdrawn_version_names_the_successor_that_is_held_back() {
    let upstream = FakeUpstream::start().await;
    publish(&upstream, &["1.0.0", "1.1.0"]);
    let larder = larder(&upstream, &Folder::new()).start().await;
    listed(&larder).await;
    larder.get(&larder.archive_path("null", "1.1.0").await).await.expect(200);
    larder.clock.advance(DAY);
    upstream.withdraw("acme", "null", "1.1.0");
    publish(&upstream, &["1.2.0"]);
    assert_eq!(listed(&larder).await, ["1.0.0", "1.1.0"]);
    let alarms = larder.alarms().await;
    let detail = alarms[0].3["detail"].as_str().unwrap();
    assert!(detail.contains("1.2.0, which may replace it, is held back until"), "{detail}");
    let page = get(&format!("{}/", larder.admin())).await.expect(200).text();
    assert!(page.contains("which may replace it, is held back until"), "{page}");
}
