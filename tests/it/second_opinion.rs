//! A second opinion: both public registries name the archives of one release page, so where a proof set of one is refused, the
//! digests that the other one lists tell the person at the client what happened.

use serde_json::Value;
use url::Url;

use crate::support::http::get;
use crate::support::larder::{Builder, HOST, Larder};
use crate::support::terraform::{Terraform, Workspace};
use crate::support::upstream::{FakeUpstream, Provider, Target, sha256_hex};

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
        let entries: Vec<String> =
            versions.iter().map(|version| format!(r#"{{"version":"{version}","protocols":["5.0"]}}"#)).collect();
        for registry in registries {
            let list = format!(r#"{{"versions":[{}]}}"#, entries.join(","));
            registry.serve_json("/v1/providers/acme/null/versions", &list);
        }
    }

    fn digest(&self, version: &str) -> String {
        sha256_hex(&self.releases.archive_bytes("acme", "null", version, "linux_amd64"))[..8].to_owned()
    }
}

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
    registries.releases.publish(edition("1.2.0", 2).signed_by(&other_key));
    registries.read_release(&registries.both(), "1.2.0").await;
    let now = registries.digest("1.2.0");
    larder.run_command("purge", "acme/null").await;
    let refused = larder.document("null", "1.2.0").await.expect(502);
    let (reason, text) = (refused.reason.clone(), refused.text());
    assert!(reason.starts_with(&format!("larder: re-created upstream: {TOFU} says {now}... too; ")), "{reason}");
    assert!(reason.ends_with(&format!("(if that is right: `larder accept {HOST}/acme/null@1.2.0`)")), "{reason}");
    assert!(text.contains("it was published again: "), "{text}");
    assert!(larder.folder.proof_sets().is_empty());
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
