//! Views: a client that chooses a stricter policy by its URLs, `/age/7d/…` and `/as-of/2026-08-01/…`.

use std::collections::BTreeSet;
use std::time::Duration;

use larder::clock::{Clock, Timestamp};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::command_setup::CommandSetup;
use crate::support::larder::{Folder, HOST, Larder};
use crate::support::module_fixture::{ModuleFixture, tar_gz};
use crate::support::terraform::{Terraform, network_mirror};
use crate::support::tls::TestCa;
use crate::support::upstream::{FakeUpstream, Module, Provider};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn publish(upstream: &FakeUpstream, version: &str) {
    upstream.publish(Provider::new("acme", "null").version(version));
}

fn list_path(view: &str) -> String {
    format!("{view}/registry/{HOST}/v1/providers/acme/null/versions")
}

/// The versions of a list, and its warnings.
async fn listed(larder: &Larder, view: &str) -> (Vec<String>, Vec<String>) {
    let list = larder.get(&list_path(view)).await.expect(200).json();
    let texts = |values: &Value, text: fn(&Value) -> &Value| -> Vec<String> {
        values.as_array().into_iter().flatten().map(|value| text(value).as_str().unwrap().to_owned()).collect()
    };
    (texts(&list["versions"], |entry| &entry["version"]), texts(&list["warnings"], |text| text))
}

async fn versions(larder: &Larder, view: &str) -> Vec<String> {
    listed(larder, view).await.0
}

fn day_of(time: Timestamp) -> String {
    time.date_time()[..10].to_owned()
}

/// The view of a day.
fn as_of(time: Timestamp) -> String {
    format!("/as-of/{}", day_of(time))
}

/// The CLI configuration that leads a client to a view.
fn override_in(larder: &Larder, view: &str) -> String {
    larder.client_config().replace(larder.base(), &format!("{}{view}", larder.base()))
}

/// A larder whose first list names 1.0.0, and whose list of today names 1.1.0 too.
async fn with_a_new_version(upstream: &FakeUpstream, policies: &str) -> Larder {
    publish(upstream, "1.0.0");
    let larder = Larder::mirroring(upstream).config_lines(policies).clock(&Clock::frozen()).start().await;
    larder.versions("null").await;
    larder.clock.advance(DAY);
    publish(upstream, "1.1.0");
    larder.versions("null").await;
    larder
}

/// Clients of the view see versions that are old enough, and others see all. Every route of the view obeys it.
#[tokio::test]
async fn a_view_by_age_hides_young_versions_from_its_clients() {
    let upstream = FakeUpstream::start().await;
    let larder = with_a_new_version(&upstream, "").await;
    let opens = larder.clock.now().after(7 * DAY).date_time().replace('T', " ").replace('Z', " UTC");
    assert_eq!(versions(&larder, "").await, ["1.0.0", "1.1.0"]);
    let (shown, warnings) = listed(&larder, "/age/7d").await;
    assert_eq!(shown, ["1.0.0"]);
    let warning = format!("this mirror hides 1.1.0 (until {opens}): this client asks for older versions");
    assert!(warnings.len() == 1 && warnings[0].starts_with(&warning), "{warnings:?}");
    let document = |view: &str, version: &str| {
        format!("{view}/registry/{HOST}/v1/providers/acme/null/{version}/download/linux_amd64")
            .replace("linux_", "linux/")
    };
    let index = |view: &str| format!("{view}/mirror/{HOST}/acme/null/index.json");
    let version = |view: &str| format!("{view}/mirror/{HOST}/acme/null/1.1.0.json");
    let latest = |view: &str| format!("{view}/registry/{HOST}/v1/providers/acme/null");
    for _ in 0..2 {
        larder.get(&document("/age/7d", "1.1.0")).await.expect(421);
        larder.get(&document("", "1.1.0")).await.expect(200);
        assert!(!larder.get(&index("/age/7d")).await.expect(200).text().contains("1.1.0"));
        assert!(larder.get(&index("")).await.expect(200).text().contains("1.1.0"));
        larder.get(&version("/age/7d")).await.expect(503);
        larder.get(&version("")).await.expect(200);
        assert_ne!(larder.get(&latest("/age/7d")).await.status, 500);
    }
    // Archives are the same for all.
    let url = larder.get(&document("/age/7d", "1.0.0")).await.expect(200).json()["download_url"].clone();
    assert!(url.as_str().unwrap().starts_with("/archive/"), "{url}");
    larder.clock.advance(7 * DAY + Duration::from_secs(60));
    assert_eq!(versions(&larder, "/age/7d").await, ["1.0.0", "1.1.0"]);
    larder.get(&document("/age/7d", "1.1.0")).await.expect(200);
}

/// Discovery below the prefix names services below it, and the services of other hosts as they are.
#[tokio::test]
async fn discovery_of_a_view_names_services_in_it() {
    let upstream = FakeUpstream::start().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let path = format!("/registry/{HOST}/.well-known/terraform.json");
    for view in ["/age/7d", "/as-of/2026-08-01", ""] {
        let services = larder.get(&format!("{view}{path}")).await.expect(200).json();
        let expected = format!("{view}/registry/{HOST}/v1/providers/");
        assert!(services["providers.v1"].as_str().unwrap().ends_with(&expected), "{services}");
    }
}

/// A view is never looser than the rules: the longer age counts.
#[tokio::test]
async fn a_view_is_never_looser_than_the_rules() {
    let upstream = FakeUpstream::start().await;
    let rules = "[[policy]]\nmatch = \"acme/*\"\nminimum_age = \"7d\"\n";
    let larder = with_a_new_version(&upstream, rules).await;
    for view in ["", "/age/1d", "/age/7d", "/age/14d", &as_of(larder.clock.now())] {
        assert_eq!(versions(&larder, view).await, ["1.0.0"], "{view}");
    }
    larder.clock.advance(7 * DAY + Duration::from_secs(60));
    for (view, is_shown) in [("", true), ("/age/1d", true), ("/age/7d", true), ("/age/14d", false)] {
        assert_eq!(versions(&larder, view).await.len() == 2, is_shown, "{view}");
    }
    let denied = format!("{rules}[[policy]]\nmatch = \"*\"\naction = \"deny\"\n");
    let denied = denied.replace("acme/*", "other/*");
    larder.reload(Larder::mirroring(&upstream).config_lines(&denied)).await.unwrap();
    for view in ["", "/age/1d", &as_of(larder.clock.now())] {
        larder.get(&list_path(view)).await.expect(421);
    }
}

/// Other spellings are refused as malformed, and only registry and mirror routes have views.
#[tokio::test]
async fn malformed_views_are_refused() {
    let larder = Larder::mirroring(&FakeUpstream::start().await).start().await;
    for malformed in ["/age/0d", "/age/07d", "/age/7", "/age/7h", "/age/10000d", "/as-of/2026-8-1", "/as-of/2026-02-30"]
    {
        let answer = larder.get(&list_path(malformed)).await.expect(400);
        assert!(answer.text().contains("is not a"), "{malformed}: {}", answer.text());
    }
    for nowhere in
        ["/age/7d/healthz", "/age/7d/archive/x", "/age/7d/", "/age/7d/age/7d/mirror/x", "/as-of/2026-08-01/v1/x"]
    {
        larder.get(nowhere).await.expect(404);
    }
}

/// What a first list named counts from its dates; without them, days before that list are not known, and the answer names the
/// first one that is.
#[tokio::test]
async fn days_before_the_first_list_count_by_dates_or_are_refused() {
    let upstream = FakeUpstream::start().await;
    let larder = with_a_new_version(&upstream, "").await;
    let first = Timestamp(larder.clock.now().0 - DAY.as_secs());
    let before = Timestamp(first.0 - DAY.as_secs());
    let refused = larder.get(&list_path(&as_of(before))).await.expect(421).text();
    assert!(refused.contains(&format!("larder knows what was listed from {} on", day_of(first))), "{refused}");
    assert!(refused.contains("ask for that day or a later one"), "{refused}");
    assert_eq!(versions(&larder, &as_of(first)).await, ["1.0.0"]);
    assert_eq!(versions(&larder, &as_of(larder.clock.now())).await, ["1.0.0", "1.1.0"]);
    let dated = FakeUpstream::start().await;
    publish(&dated, "1.0.0");
    publish(&dated, "1.1.0");
    let larder = Larder::mirroring(&dated).start().await;
    let now = larder.clock.now();
    let entry = |version: &str, days: u64| {
        let published = Timestamp(now.0 - days * DAY.as_secs()).date_time();
        json!({ "type": "provider-versions", "attributes": { "version": version, "published-at": published } })
    };
    let dates = json!({ "data": {}, "included": [entry("1.0.0", 30), entry("1.1.0", 10)] });
    dated.serve_json("/v2/providers/acme/null", &dates.to_string());
    let ago = |days: u64| as_of(Timestamp(now.0 - days * DAY.as_secs()));
    assert_eq!(versions(&larder, &ago(10)).await, ["1.0.0", "1.1.0"]);
    assert_eq!(versions(&larder, &ago(11)).await, ["1.0.0"]);
    larder.get(&list_path(&ago(31))).await.expect(421);
}

/// Offline, what is built from the store obeys the view, also the pages of the registry API.
#[tokio::test]
async fn views_hold_offline() {
    let upstream = FakeUpstream::start().await;
    let folder = Folder::new();
    publish(&upstream, "1.0.0");
    let online = Larder::mirroring(&upstream).store_at(&folder).clock(&Clock::frozen()).start().await;
    online.get(&online.archive_path("null", "1.0.0").await).await.expect(200);
    online.clock.advance(DAY);
    publish(&upstream, "1.1.0");
    online.versions("null").await.expect(200);
    online.get(&online.archive_path("null", "1.1.0").await).await.expect(200);
    let yesterday = as_of(Timestamp(online.clock.now().0 - DAY.as_secs()));
    online.stop().await;
    let offline = Larder::mirroring(&upstream).store_at(&folder).network("offline = true").start().await;
    offline.clock.advance(DAY);
    let details = format!("/registry/{HOST}/v1/providers/acme/null");
    let all = format!("/registry/{HOST}/v1/providers/acme");
    for path in [list_path(""), details, all] {
        assert!(offline.get(&path).await.expect(200).text().contains("\"1.1.0\""), "{path}");
        let seen = offline.get(&format!("{yesterday}{path}")).await.expect(200).text();
        assert!(seen.contains("\"1.0.0\"") && !seen.contains("\"1.1.0\""), "{path}: {seen}");
    }
}

/// Modules have views too.
#[tokio::test]
async fn modules_have_views() {
    let fixture = ModuleFixture::with_one_module().await;
    let larder = fixture.larder().start().await;
    let list = format!("/registry/{HOST}/v1/modules/acme/one/test/versions");
    larder.get(&list).await.expect(200);
    larder.clock.advance(DAY);
    let url = fixture.file("two.tar.gz", &tar_gz(&[("main.tf", b"# two\n")]));
    fixture.registry.publish_module(Module::new("acme", "one", "test").version("2.0.0").at(&url));
    assert!(larder.get(&list).await.expect(200).text().contains("2.0.0"));
    let yesterday = as_of(Timestamp(larder.clock.now().0 - DAY.as_secs()));
    for view in ["/age/7d", &yesterday] {
        let text = larder.get(&format!("{view}{list}")).await.expect(200).text();
        assert!(text.contains("1.0.0") && !text.contains("2.0.0"), "{view}: {text}");
        let download = format!("{view}/registry/{HOST}/v1/modules/acme/one/test/2.0.0/download");
        larder.get(&download).await.expect(421);
        larder.get(&download.replace("2.0.0", "1.0.0")).await.expect(204);
    }
    larder.get(&format!("/registry/{HOST}/v1/modules/acme/one/test/2.0.0/download")).await.expect(204);
}

/// The changes of one day at the registry: the number of new versions, and whether the oldest version is withdrawn.
type DayAtRegistry = (u32, bool);

/// Plays days at the registry. Somebody installs each new version, and larder reads the list once a day. Returns the day and
/// what the registry listed on it.
async fn play(upstream: &FakeUpstream, larder: &Larder, days: &[DayAtRegistry]) -> Vec<(Timestamp, Vec<String>)> {
    let mut history = Vec::new();
    let (mut listed, mut next) = (vec![], 0);
    for (number, (added, withdraws)) in days.iter().enumerate() {
        if number > 0 {
            larder.clock.advance(DAY);
        }
        if *withdraws && listed.len() > 1 {
            let oldest: String = listed.remove(0);
            upstream.withdraw("acme", "null", &oldest);
        }
        let before = listed.len();
        // A package without a version has no list.
        for _ in 0..if number == 0 { 1 } else { *added } {
            let version = format!("1.{next}.0");
            publish(upstream, &version);
            listed.push(version);
            next += 1;
        }
        larder.versions("null").await.expect(200);
        for version in &listed[before..] {
            larder.get(&larder.archive_path("null", version).await).await.expect(200);
        }
        history.push((larder.clock.now(), listed.clone()));
    }
    history
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2, max_shrink_iters: 8, failure_persistence: None, ..ProptestConfig::default() })]

    /// Each of a hundred days shows what the registry listed on it, also what was withdrawn later.
    #[test]
    fn a_day_shows_what_the_registry_listed_on_it(
        days in prop::collection::vec((prop_oneof![4 => Just(0u32), 1 => 1..3u32], prop::bool::weighted(0.1)), 100),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let upstream = FakeUpstream::start().await;
            let larder = Larder::mirroring(&upstream).start().await;
            for (day, expected) in play(&upstream, &larder, &days).await {
                // What upstream lists stands before what is only stored.
                let shown: BTreeSet<String> = versions(&larder, &as_of(day)).await.into_iter().collect();
                assert_eq!(shown, expected.into_iter().collect(), "{day:?}");
            }
        });
    }
}

/// The real client resolves ten of a hundred days to the newest version of each.
#[tokio::test]
async fn the_client_resolves_a_day_to_its_newest_version() {
    let Some(client) = Terraform::find() else { return };
    let upstream = FakeUpstream::start().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let days: Vec<DayAtRegistry> = (0..100).map(|day| (u32::from(day % 7 == 3), day % 23 == 11)).collect();
    let history = play(&upstream, &larder, &days).await;
    for (day, expected) in history.iter().step_by(10) {
        let mut workspace = client.workspace();
        workspace.require(&format!("{HOST}/acme/null"), ">= 1.0.0");
        workspace.cli_config(&override_in(&larder, &as_of(*day)));
        workspace.init().await.expect_success();
        let newest = format!("version     = \"{}\"", expected.last().unwrap());
        assert!(workspace.lock_file().contains(&newest), "{day:?}: {}", workspace.lock_file());
    }
}

/// By an age too, and by a network mirror; the client prints why it does not take the newest.
#[tokio::test]
async fn the_client_takes_the_newest_version_of_a_view() {
    let Some(client) = Terraform::find() else { return };
    let upstream = FakeUpstream::start().await;
    let larder = with_a_new_version(&upstream, "").await;
    let mut workspace = client.workspace();
    workspace.require(&format!("{HOST}/acme/null"), ">= 1.0.0");
    workspace.cli_config(&override_in(&larder, "/age/7d"));
    let output = workspace.init().await.expect_success().one_line();
    assert!(workspace.lock_file().contains("\"1.0.0\""), "{}", workspace.lock_file());
    assert!(output.contains("this mirror hides 1.1.0 (until"), "{output}");
    let (ca, upstream) = (TestCa::new(), FakeUpstream::start().await);
    publish(&upstream, "1.0.0");
    let larder = Larder::mirroring(&upstream).tls(&ca, &["localhost"]).start().await;
    let warm = |view: &str| network_mirror(&format!("https://localhost:{}{view}/mirror/", larder.address().port()));
    for (view, expected) in [("", "1.0.0"), ("/age/7d", "1.0.0"), ("", "1.1.0")] {
        let mut workspace = client.workspace();
        workspace.trust(&ca.pem());
        workspace.require(&format!("{HOST}/acme/null"), ">= 1.0.0");
        workspace.cli_config(&warm(view));
        workspace.init().await.expect_success();
        assert!(workspace.lock_file().contains(&format!("\"{expected}\"")), "{view}: {}", workspace.lock_file());
        if view.is_empty() {
            larder.clock.advance(DAY);
            publish(&upstream, "1.1.0");
        }
    }
}

/// The client configuration for a view has its prefix in every URL, from a running larder and from a stopped one; a URL of a
/// view is explained as its clients see it.
#[tokio::test]
async fn the_command_line_knows_views() {
    let upstream = FakeUpstream::start().await;
    publish(&upstream, "1.0.0");
    let setup = CommandSetup::new(&upstream);
    let stopped = setup.stdout_of(&["client-config", "--age", "7d"]).await;
    let serving = setup.serve();
    let running = setup.stdout_of(&["client-config", "--as-of", "2026-08-01"]).await;
    for (text, view) in [(stopped, "/age/7d"), (running, "/as-of/2026-08-01")] {
        assert!(text.contains(&format!("{view}/registry/{HOST}/v1/providers/")), "{text}");
        assert!(text.contains(&format!("{view}/registry/{HOST}/v1/modules/")), "{text}");
        assert_eq!(text.matches("/registry/").count(), text.matches(&format!("{view}/registry/")).count(), "{text}");
    }
    for wrong in [&["--age", "7"][..], &["--as-of", "yesterday"], &["--age", "7d", "--as-of", "2026-08-01"]] {
        let refused = setup.run(&[&["client-config"], wrong].concat()).await;
        assert_eq!(refused.code, Some(2), "{refused:?}");
    }
    serving.get(&list_path("")).await.expect(200);
    let url = list_path("/as-of/2020-01-01");
    let explained = setup.run(&["explain", &url]).await;
    assert!(explained.out.contains("larder knows what was listed from"), "{explained:?}");
    assert!(explained.out.contains(&url), "{explained:?}");
    serving.kill();
}
