//! A second opinion: both public registries name the archives of one release page, so where a proof set of one is refused, the
//! digests that the other one lists tell the person at the client what happened.

use std::time::Duration;

use larder::clock::{Clock, Timestamp};
use serde_json::{Value, json};
use url::Url;

use crate::support::eventually;

use crate::support::http::get;
use crate::support::larder::{Builder, HOST, Larder};
use crate::support::terraform::{Terraform, Workspace};
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target, sha256_hex};
use crate::support::warm_fixture::WarmFixture;

const TOFU: &str = "registry.opentofu.org";
/// The platforms of a release that was published again as a whole.
const PLATFORMS: [&str; 13] = [
    "darwin_amd64",
    "darwin_arm64",
    "freebsd_386",
    "freebsd_amd64",
    "freebsd_arm",
    "freebsd_arm64",
    "linux_386",
    "linux_amd64",
    "linux_arm",
    "linux_arm64",
    "windows_386",
    "windows_amd64",
    "windows_arm64",
];

fn edition(version: &str, edition: u64) -> Provider {
    let provider = Provider::new("acme", "null").version(version).edition(edition).size(1000);
    PLATFORMS.iter().fold(provider, |provider, platform| provider.platform(platform))
}

/// The two public registries, and the release page whose archives both name.
struct PublicRegistries {
    releases: FakeUpstream,
    terraform: FakeUpstream,
    opentofu: FakeUpstream,
}

impl PublicRegistries {
    async fn start() -> Self {
        let [releases, terraform, opentofu] =
            [FakeUpstream::start().await, FakeUpstream::start().await, FakeUpstream::start().await];
        Self { releases, terraform, opentofu }
    }

    fn both(&self) -> [&FakeUpstream; 2] {
        [&self.terraform, &self.opentofu]
    }

    fn larder(&self) -> Builder {
        Larder::mirroring(&self.terraform)
            .upstream(TOFU, &format!("{}/", self.opentofu.origin()), "")
            .allow_private(&self.releases.origin())
    }

    /// Makes registries read the release page as it is now: a version with every platform of its documents.
    async fn read_release(&self, registries: &[&FakeUpstream], version: &str) {
        for platform in PLATFORMS {
            let document = self.document(version, platform).await;
            for registry in registries {
                registry.serve_json(&document_path(version, platform), &document.to_string());
            }
        }
    }

    /// The download document of the release page, with absolute URLs.
    async fn document(&self, version: &str, platform: &str) -> Value {
        let url = format!("{}{}", self.releases.origin(), document_path(version, platform));
        let mut document = get(&url).await.expect(200).json();
        for name in ["download_url", "shasums_url", "shasums_signature_url"] {
            let absolute = Url::parse(&url).unwrap().join(document[name].as_str().unwrap()).unwrap();
            document[name] = absolute.as_str().into();
        }
        document
    }

    fn list(&self, registries: &[&FakeUpstream], versions: &[&str]) {
        self.list_of(registries, versions, None);
    }

    /// Serves a list that a registry wrote at a time.
    fn list_of(&self, registries: &[&FakeUpstream], versions: &[&str], written: Option<Timestamp>) {
        let platforms = r#"[{"os":"linux","arch":"amd64"}]"#;
        let entry =
            |version: &&str| format!(r#"{{"version":"{version}","protocols":["5.0"],"platforms":{platforms}}}"#);
        let entries: Vec<String> = versions.iter().map(entry).collect();
        for registry in registries {
            let list = http::Response::builder().header("content-type", "application/json");
            let list = match written {
                Some(written) => list.header("last-modified", written.http_date()),
                None => list,
            };
            let list = list.body(format!(r#"{{"versions":[{}]}}"#, entries.join(",")));
            registry.serve(LIST, list.unwrap());
        }
    }

    fn digest(&self, version: &str) -> String {
        sha256_hex(&self.releases.archive_bytes("acme", "null", version, "linux_amd64"))[..8].to_owned()
    }
}

const LIST: &str = "/v1/providers/acme/null/versions";

fn document_path(version: &str, platform: &str) -> String {
    format!("/v1/providers/acme/null/{version}/download/{}", platform.replace('_', "/"))
}

fn workspace(client: &Terraform, larder: &Larder, host: &str, constraint: &str) -> Workspace {
    let mut workspace = client.workspace();
    workspace.cli_config(larder.client_config());
    workspace.require(&format!("{host}/acme/null"), constraint);
    workspace
}

/// A release of 13 platforms was re-created after one registry had read it, and before the other one did.
#[tokio::test]
async fn a_release_that_was_recreated_is_named_with_the_digests_of_both_registries() {
    let registries = PublicRegistries::start().await;
    for version in ["3.14.0", "3.14.1"] {
        registries.releases.publish(edition(version, 1));
        registries.read_release(&registries.both(), version).await;
    }
    registries.list(&registries.both(), &["3.14.0", "3.14.1"]);
    let old = registries.digest("3.14.1");
    registries.releases.publish(edition("3.14.1", 2));
    registries.read_release(&[&registries.terraform], "3.14.1").await;
    let new = registries.digest("3.14.1");
    let larder = registries.larder().start().await;
    let document = |version: &str| format!("/registry/{TOFU}{}", document_path(version, "linux_amd64"));

    let cause =
        format!("re-created upstream: the registry lists {old}..., SHA256SUMS says {new}...; {HOST} says {new}... too");
    let refused = larder.get(&document("3.14.1")).await.expect(502);
    assert_eq!(
        refused.reason,
        format!("larder: {cause} (not stored, not served; its publisher or registry must mend it)")
    );
    // A version that is stored is named, and nothing of the other registry.
    let stored = larder.get(&document("3.14.0")).await.expect(200).json();
    larder.get(stored["download_url"].as_str().unwrap()).await.expect(200);
    let refused = larder.get(&document("3.14.1")).await.expect(502);
    let remedy = "use 3.14.0, which is stored, until its registry mends it";
    assert_eq!(refused.reason, format!("larder: {cause} ({remedy})"));
    assert_eq!(larder.folder.proof_sets().len(), 1);

    let Some(client) = Terraform::find() else { return };
    let output = workspace(&client, &larder, TOFU, "3.14.1").init().await.expect_failure().one_line();
    assert!(output.contains(&cause) && output.contains(remedy), "{output}");
}

/// Both registries read the release before it was re-created, or each of them something else.
#[tokio::test]
async fn two_registries_that_disagree_are_named_with_their_digests() {
    let registries = PublicRegistries::start().await;
    registries.releases.publish(edition("1.2.0", 1));
    registries.read_release(&registries.both(), "1.2.0").await;
    registries.list(&registries.both(), &["1.2.0"]);
    let first = registries.digest("1.2.0");
    registries.releases.publish(edition("1.2.0", 2));
    let second = registries.digest("1.2.0");
    let larder = registries.larder().start().await;
    let cause =
        format!("changed upstream: the registry lists {first}..., as {TOFU} does; SHA256SUMS says {second}... (");
    let refused = larder.document("null", "1.2.0").await.expect(502);
    assert!(refused.reason.contains(&cause), "{}", refused.reason);

    registries.read_release(&[&registries.opentofu], "1.2.0").await;
    registries.releases.publish(edition("1.2.0", 3));
    let third = registries.digest("1.2.0");
    let cause =
        format!("changed upstream: the registry lists {first}..., {TOFU} {second}...; SHA256SUMS says {third}... (");
    let refused = larder.document("null", "1.2.0").await.expect(502);
    assert!(refused.reason.contains(&cause), "{}", refused.reason);

    let Some(client) = Terraform::find() else { return };
    let output = workspace(&client, &larder, HOST, "1.2.0").init().await.expect_failure().one_line();
    assert!(output.contains(&cause), "{output}");
}

/// Promise 14: a version that was verified before and changes waits for `accept`; the other registry vouches for nothing.
#[tokio::test]
async fn a_changed_version_waits_for_accept_whatever_the_other_registry_says() {
    let registries = PublicRegistries::start().await;
    let other_key = crate::support::upstream::SigningKey::new_key();
    registries.releases.publish(edition("1.2.0", 1));
    registries.read_release(&registries.both(), "1.2.0").await;
    registries.list(&registries.both(), &["1.2.0"]);
    let larder = registries.larder().start().await;
    larder.document("null", "1.2.0").await.expect(200);
    let before = registries.digest("1.2.0");
    registries.releases.publish(edition("1.2.0", 2).signed_by(&other_key));
    registries.read_release(&registries.both(), "1.2.0").await;
    let now = registries.digest("1.2.0");
    larder.run_command("purge", "acme/null").await;
    let refused = larder.document("null", "1.2.0").await.expect(502);
    let (reason, text) = (refused.reason.clone(), refused.text());
    let cause = format!("re-created upstream: it was {before}..., is {now}... now; {TOFU} says {now}... too");
    assert_eq!(reason, format!("larder: {cause} (if that is right: `larder accept {HOST}/acme/null@1.2.0`)"));
    assert!(text.contains(&cause.replace("...", "\u{2026}")), "{text}");
    assert!(larder.folder.proof_sets().is_empty());
    // Nothing was re-created where the registry only lists no key any more.
    let lines = "verification = \"signature-if-keys\"";
    let lax = registries.larder().upstream_lines(lines);
    let larder = larder_for_tofu(lax, &registries).await;
    let refused = larder.get(&format!("/registry/{TOFU}{}", document_path("1.2.0", "linux_amd64"))).await.expect(502);
    let expected = "larder: this provider was signed before, and the registry lists no key for it now";
    assert!(refused.reason.starts_with(expected), "{}", refused.reason);
}

/// A larder that has verified a signed set of registry.opentofu.org, which lists no key any more.
async fn larder_for_tofu(larder: Builder, registries: &PublicRegistries) -> Larder {
    let larder = larder.start().await;
    registries.releases.publish(edition("1.2.0", 1));
    registries.read_release(&registries.both(), "1.2.0").await;
    larder.get(&format!("/registry/{TOFU}{}", document_path("1.2.0", "linux_amd64"))).await.expect(200);
    registries.releases.publish(edition("1.2.0", 1).without_keys());
    registries.read_release(&registries.both(), "1.2.0").await;
    larder.run_command("purge", &format!("{TOFU}/acme/null")).await;
    larder
}

/// Where only one of the two is an upstream, where their documents name other archives, or where the other one does not
/// answer, nobody else is asked and nothing else is said.
#[tokio::test]
async fn nothing_is_said_of_another_build_or_of_a_registry_that_does_not_answer() {
    let registries = PublicRegistries::start().await;
    registries.releases.publish(edition("1.2.0", 1));
    registries.read_release(&registries.both(), "1.2.0").await;
    registries.list(&registries.both(), &["1.2.0"]);
    let old = registries.digest("1.2.0");
    registries.releases.publish(edition("1.2.0", 2));
    let plain = format!("_1.2.0_linux_amd64.zip\", SHA256SUMS says {}", registries.digest("1.2.0"));
    let without_opinion = async |larder: Larder, case: &str| {
        let refused = larder.document("null", "1.2.0").await.expect(502);
        let reason = &refused.reason;
        assert!(reason.contains(&format!("the registry lists {old}")) && reason.contains(&plain), "{case}: {reason}");
        assert!(!reason.contains("upstream:") && !reason.contains(TOFU), "{case}: {reason}");
    };
    let alone = Larder::mirroring(&registries.terraform).allow_private(&registries.releases.origin());
    without_opinion(alone.start().await, "one upstream").await;
    assert_eq!(registries.opentofu.count_of(Target::Everything), 0);

    let mut other_build = registries.document("1.2.0", "linux_amd64").await;
    other_build["download_url"] = format!("{}/another.zip", registries.releases.origin()).into();
    registries.opentofu.serve_json(&document_path("1.2.0", "linux_amd64"), &other_build.to_string());
    without_opinion(registries.larder().start().await, "another build").await;
    registries.opentofu.serve_json(&document_path("1.2.0", "linux_amd64"), "{}");
    without_opinion(registries.larder().start().await, "an unusable document").await;
    registries.opentofu.fall_silent();
    without_opinion(registries.larder().upstream_lines("patience = \"500ms\"").start().await, "a silent registry")
        .await;
}

/// A time as larder writes it for people.
fn larder_time(time: Timestamp) -> String {
    time.date_time().replace('T', " ").replace('Z', " UTC")
}

/// The warnings of a list that a client gets, once there are any.
async fn warnings(larder: &Larder, host: &str) -> Value {
    eventually("a warning", async || {
        let warnings = larder.get(&format!("/registry/{host}{LIST}")).await.expect(200).json()["warnings"].clone();
        warnings.is_array().then_some(warnings)
    })
    .await
}

/// One registry lists a version, and the list of the other one leaves it out although it has the documents.
#[tokio::test]
async fn a_version_that_a_list_leaves_out_is_told_to_the_client() {
    let clock = Clock::frozen();
    let registries = PublicRegistries::start().await;
    for version in ["0.9.0", "1.0.0", "1.1.0"] {
        registries.releases.publish(edition(version, 1));
        registries.read_release(&registries.both(), version).await;
    }
    // Only one registry has this one, and of this one each its own build.
    registries.releases.publish(edition("0.8.0", 1));
    registries.read_release(&[&registries.terraform], "0.8.0").await;
    registries.list(&[&registries.terraform], &["0.8.0", "0.9.0", "1.0.0", "1.1.0"]);
    let written = Timestamp(clock.now().0 - 76 * 60);
    registries.list_of(&[&registries.opentofu], &["1.0.0"], Some(written));
    let larder = registries.larder().clock(&clock).start().await;

    // Nobody asks for the provider at the other registry yet, so that is not asked. One search ends before another list begins.
    for _ in 0..2 {
        larder.get(&format!("/registry/{TOFU}{LIST}")).await.expect(200);
        clock.advance(Duration::from_secs(301));
    }
    assert_eq!(registries.terraform.count_of(Target::Everything), 0);
    larder.versions("null").await.expect(200);
    // For this list a search confirms that of the other registry, and starts no other search.
    eventually("the search", async || (registries.opentofu.count(LIST) == 3).then_some(())).await;
    clock.advance(Duration::from_secs(301));
    let written = larder_time(written);
    let note = |version: &str| {
        format!(
            "{version} cannot be chosen: {HOST} lists it and this registry does not, although its document answers; the \
             list is of {written}"
        )
    };
    assert_eq!(warnings(&larder, TOFU).await, json!([note("1.1.0"), note("0.9.0")]));
    // A list that did not change is looked at once in an hour, and so is a version that is not late.
    let paths = ["0.8.0", "0.9.0", "1.1.0"].map(|version| document_path(version, "linux_amd64"));
    let counts = || paths.each_ref().map(|path| registries.opentofu.count(path));
    assert_eq!(counts(), [1, 1, 1]);
    for seconds in [301, 301, 3001] {
        clock.advance(Duration::from_secs(seconds));
        larder.get(&format!("/registry/{TOFU}{LIST}")).await.expect(200);
    }
    eventually("the second search", async || (counts() == [2, 2, 2]).then_some(())).await;
    assert_eq!(warnings(&larder, TOFU).await, json!([note("1.1.0"), note("0.9.0")]));

    if let Some(client) = Terraform::find() {
        let output = workspace(&client, &larder, TOFU, "1.1.0").init().await.expect_failure().one_line();
        assert!(output.contains(&note("1.1.0")), "{output}");
    }
    // It is over as soon as the list names the version.
    registries.list(&[&registries.opentofu], &["0.9.0", "1.0.0", "1.1.0"]);
    clock.advance(Duration::from_secs(301));
    let listed = larder.get(&format!("/registry/{TOFU}{LIST}")).await.expect(200).json();
    assert_eq!((&listed["warnings"], listed["versions"].as_array().unwrap().len()), (&Value::Null, 3));
}

/// A list is confirmed upstream while a search goes on: what the search finds stays.
#[tokio::test]
async fn a_late_version_that_is_found_while_the_list_is_confirmed_is_told() {
    let clock = Clock::frozen();
    let registries = PublicRegistries::start().await;
    for version in ["1.0.0", "1.1.0"] {
        registries.releases.publish(edition(version, 1));
        registries.read_release(&registries.both(), version).await;
    }
    registries.list(&[&registries.terraform], &["1.0.0", "1.1.0"]);
    registries.list(&[&registries.opentofu], &["1.0.0"]);
    let larder = registries.larder().upstream_lines("patience = \"100ms\"").clock(&clock).start().await;
    larder.versions("null").await.expect(200);

    let path = document_path("1.1.0", "linux_amd64");
    let document = registries.opentofu.hold_headers(Target::Path(path.clone()));
    let list_here = format!("/registry/{TOFU}{LIST}");
    larder.get(&list_here).await.expect(200);
    eventually("the search", async || (registries.opentofu.count(&path) == 1).then_some(())).await;
    let list = registries.opentofu.hold_headers(Target::Path(LIST.to_owned()));
    clock.advance(Duration::from_secs(301));
    let stale = larder.get(&list_here).await.expect(200);
    assert_eq!(stale.header("cache-status"), "larder; hit; detail=stale");
    assert_eq!(stale.json()["warnings"], Value::Null);

    document.open();
    let found = warnings(&larder, TOFU).await;
    list.open();
    let confirmed = eventually("the list is confirmed", async || {
        let answer = larder.get(&list_here).await.expect(200);
        (answer.header("cache-status") == "larder; hit").then_some(answer)
    });
    assert_eq!(confirmed.await.json()["warnings"], found);
}

/// Neither registry lists a version that both have. Once somebody asked for it by its number, each client is told.
#[tokio::test]
async fn a_version_that_no_list_names_yet_is_told_to_the_client() {
    let clock = Clock::frozen();
    let registries = PublicRegistries::start().await;
    for version in ["1.0.0", "1.1.0"] {
        registries.releases.publish(edition(version, 1));
        registries.read_release(&registries.both(), version).await;
    }
    let written = Timestamp(clock.now().0 - 45 * 60);
    registries.list_of(&registries.both(), &["1.0.0"], Some(written));
    let larder = registries.larder().clock(&clock).start().await;
    larder.versions("null").await.expect(200);
    let cause = format!(
        "listed by neither public registry, although its document answers; the list is of {}",
        larder_time(written)
    );
    let refused = larder.document("null", "1.1.0").await.expect(404).text();
    assert!(refused.contains(&format!("does not name 1.1.0: {cause}")), "{refused}");
    assert_eq!(warnings(&larder, HOST).await, json!([format!("1.1.0 cannot be chosen: {cause}")]));
    // Promises 1 and 11: nothing of it is stored.
    assert!(larder.folder.proof_sets().is_empty() && larder.folder.first_seen().is_empty());
    let documents = registries.terraform.count(&document_path("1.1.0", "linux_amd64"));
    larder.document("null", "1.1.0").await.expect(404);
    assert_eq!((documents, registries.terraform.count(&document_path("1.1.0", "linux_amd64"))), (1, 1));
    // Commands say so, too, and so does the plan of a folder that requires or locks it.
    let announced = format!("1.1.0 cannot be chosen: {cause}");
    let commands = WarmFixture::for_larder(&larder);
    let folder = |constraint: &str| {
        format!(
            "terraform {{\n  required_providers {{\n    null = {{\n      source = \"acme/null\"\n      version = \"{constraint}\"\n    }}\n  }}\n}}\n"
        )
    };
    let locked = format!("provider \"{HOST}/acme/null\" {{\n  version = \"1.1.0\"\n}}\n");
    let by_address = json!({"what": ["acme/null@1.1.0"], "platforms": ["linux_amd64"]});
    for order in [
        by_address.clone(),
        json!({"files": {"main.tf": folder("1.1.0")}, "platforms": ["linux_amd64"]}),
        json!({"files": {"main.tf": folder(">= 1.0.0"), ".terraform.lock.hcl": locked}, "platforms": ["linux_amd64"]}),
    ] {
        let plan = commands.post("/admin/v1/plan", &order).await.expect(200).text();
        assert!(plan.contains(&announced), "{order}: {plan}");
    }
    let warmed = commands.warm(&by_address).await;
    assert!(format!("{warmed:?}").contains(&announced), "{warmed:?}");
    // An invented version is not late.
    let refused = larder.document("null", "9.9.9").await.expect(404).text();
    assert!(refused.contains("does not name 9.9.9") && !refused.contains("document answers"), "{refused}");

    let Some(client) = Terraform::find() else { return };
    let output = workspace(&client, &larder, HOST, "1.1.0").init().await.expect_failure().one_line();
    assert!(output.contains(&cause) && output.contains("no available releases match"), "{output}");
    let folder = larder.stop().await;
    let larder = registries.larder().clock(&clock).store_at(&folder).start().await;
    assert_eq!(warnings(&larder, HOST).await, json!([format!("1.1.0 cannot be chosen: {cause}")]));
}

/// A version that the policies hide is not announced.
#[tokio::test]
async fn a_version_that_may_not_be_used_is_not_announced() {
    let registries = PublicRegistries::start().await;
    for version in ["1.0.0", "1.1.0"] {
        registries.releases.publish(edition(version, 1));
        registries.read_release(&registries.both(), version).await;
    }
    registries.list(&registries.both(), &["1.0.0"]);
    let policy = "[[policy]]\nmatch = \"acme/null\"\nversions = \"<= 1.0\"\nreason = \"not reviewed\"\n";
    let larder = registries.larder().config_lines(policy).start().await;
    larder.versions("null").await.expect(200);
    let refused = larder.document("null", "1.1.0").await.expect(421);
    assert!(refused.reason.contains("not reviewed"), "{}", refused.reason);
    let open = registries.larder().start().await;
    open.versions("null").await.expect(200);
    open.document("null", "1.1.0").await.expect(404);
    warnings(&open, HOST).await;
    let folder = open.stop().await;
    let larder = registries.larder().config_lines(policy).store_at(&folder).start().await;
    assert_eq!(larder.versions("null").await.expect(200).json()["warnings"], Value::Null);
}

/// A locked version that is listed, and that the configuration does not allow: nothing is late, and nobody is asked.
#[tokio::test]
async fn a_listed_version_is_never_called_late() {
    let registries = PublicRegistries::start().await;
    for version in ["1.0.0", "1.1.0"] {
        registries.releases.publish(edition(version, 1));
        registries.read_release(&registries.both(), version).await;
    }
    registries.list(&registries.both(), &["1.0.0", "1.1.0"]);
    let larder = registries.larder().start().await;
    let main = "terraform {\n  required_providers {\n    null = {\n      source = \"acme/null\"\n      version = \">= 1.1\"\n    }\n  }\n}\n";
    let locked = format!("provider \"{HOST}/acme/null\" {{\n  version = \"1.0.0\"\n}}\n");
    let order = json!({"files": {"main.tf": main, ".terraform.lock.hcl": locked}, "platforms": ["linux_amd64"]});
    let plan = WarmFixture::for_larder(&larder).post("/admin/v1/plan", &order).await.expect(200).text();
    assert!(plan.contains("larder lock --upgrade") && !plan.contains("cannot be chosen"), "{plan}");
    assert_eq!(registries.opentofu.count_of(Target::Everything), 0);
}

/// Of hashicorp/* each registry has its own builds, so nobody is asked about them.
#[tokio::test]
async fn providers_that_the_registries_build_themselves_are_not_compared() {
    let registries = PublicRegistries::start().await;
    registries.terraform.publish(Provider::new("hashicorp", "null"));
    registries.terraform.fault(Target::Document, Fault::WrongShasum);
    let larder = registries.larder().start().await;
    let document =
        |version: &str| format!("/registry/{HOST}/v1/providers/hashicorp/null/{version}/download/linux/amd64");
    larder.get(&document("1.2.0")).await.expect(502);
    larder.get(&document("1.3.0")).await.expect(404);
    assert_eq!(registries.opentofu.count_of(Target::Everything), 0);
}

/// A 404 stays a 404, and comes in time, while the other registry is silent.
#[tokio::test]
async fn a_silent_registry_delays_no_404() {
    let registries = PublicRegistries::start().await;
    registries.releases.publish(edition("1.0.0", 1));
    registries.read_release(&registries.both(), "1.0.0").await;
    registries.list(&registries.both(), &["1.0.0"]);
    registries.opentofu.fall_silent();
    let larder = registries.larder().upstream_lines("patience = \"500ms\"").start().await;
    let refused = larder.document("null", "1.1.0").await.expect(404).text();
    assert!(refused.contains("does not name 1.1.0") && !refused.contains("neither"), "{refused}");
}
