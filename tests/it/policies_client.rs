//! Policies as the person at the real client sees them: by a host override, by a network mirror, and by larder's own host name.

use std::time::Duration;

use larder::clock::Clock;

use crate::support::larder::{Builder, HOST, Larder};
use crate::support::module_fixture::{ModuleFixture, tar_gz};
use crate::support::terraform::{Terraform, Workspace, network_mirror};
use crate::support::tls::TestCa;
use crate::support::upstream::{FakeUpstream, Module, Provider};

const POLICIES: &str = r#"
[[policy]]
match = "acme/null"
versions = "= 1.3.0"
action = "deny"
reason = "1.3.0 loses state"
[[policy]]
match = "acme/evil"
action = "deny"
reason = "a typosquat"
[[policy]]
match = "acme/one/test"
versions = "< 2.0"
reason = "2.x is not reviewed"
"#;

/// The cause, on one line.
const CAUSE: &str = "the policy for acme/null denies the versions = 1.3.0: 1.3.0 loses state";

fn publish(upstream: &FakeUpstream) {
    for version in ["1.1.0", "1.2.0", "1.3.0"] {
        upstream.publish(Provider::new("acme", "null").version(version).size(10_000));
    }
    upstream.publish(Provider::new("acme", "evil"));
}

/// A way from the client to larder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WayIn {
    Override,
    Mirror,
    OwnHost,
}

const WAYS_IN: [WayIn; 3] = [WayIn::Override, WayIn::Mirror, WayIn::OwnHost];

/// A larder and its client, for one way in.
struct Site {
    larder: Larder,
    client: Terraform,
    ca: TestCa,
    way: WayIn,
}

impl Site {
    async fn start(client: &Terraform, larder: Builder, way: WayIn) -> Self {
        let ca = TestCa::new();
        let larder = larder.server(&format!("default_upstream = \"{HOST}\""));
        let larder = if way == WayIn::Override { larder } else { larder.tls(&ca, &["localhost", "127.0.0.1"]) };
        Self { larder: larder.start().await, client: client.clone(), ca, way }
    }

    fn own_name(&self) -> String {
        format!("localhost:{}", self.larder.address().port())
    }

    fn workspace(&self) -> Workspace {
        let mut workspace = self.client.workspace();
        match self.way {
            WayIn::Override => drop(workspace.cli_config(self.larder.client_config())),
            WayIn::Mirror => {
                workspace.trust(&self.ca.pem());
                workspace.cli_config(&network_mirror(&format!("https://{}/mirror/", self.own_name())));
            }
            WayIn::OwnHost => drop(workspace.trust(&self.ca.pem())),
        }
        workspace
    }

    /// The address of acme/NAME for this way in.
    fn source(&self, name: &str) -> String {
        let host = if self.way == WayIn::OwnHost { self.own_name() } else { HOST.to_owned() };
        format!("{host}/acme/{name}")
    }
}

/// A constraint resolves to the newest permitted version by every way in; the registry protocol tells the person why.
#[tokio::test]
async fn a_constraint_resolves_to_the_newest_permitted_version() {
    let Some(client) = Terraform::find() else { return };
    let upstream = FakeUpstream::start().await;
    publish(&upstream);
    for way in WAYS_IN {
        let site = Site::start(&client, Larder::mirroring(&upstream).config_lines(POLICIES), way).await;
        let mut workspace = site.workspace();
        workspace.require(&site.source("null"), ">= 1.0.0");
        let output = workspace.init().await.expect_success().one_line();
        assert!(workspace.lock_file().contains("version     = \"1.2.0\""), "{way:?}: {}", workspace.lock_file());
        let is_warned = output.contains(&format!("this mirror hides 1.3.0: {CAUSE}"));
        assert_eq!(is_warned, way != WayIn::Mirror, "{way:?}: {output}");
    }
}

/// A locked version that is denied afterwards fails with a text that names the rule.
#[tokio::test]
async fn a_locked_version_that_is_denied_names_the_rule() {
    let Some(client) = Terraform::find() else { return };
    let upstream = FakeUpstream::start().await;
    publish(&upstream);
    for way in WAYS_IN {
        let open = Site::start(&client, Larder::mirroring(&upstream), way).await;
        let mut workspace = open.workspace();
        workspace.require(&open.source("null"), ">= 1.0.0");
        workspace.init().await.expect_success();
        assert!(workspace.lock_file().contains("\"1.3.0\""), "{}", workspace.lock_file());
        workspace.remove_installed();
        let policies = Larder::mirroring(&upstream).config_lines(POLICIES);
        let policies = policies.server(&format!("default_upstream = \"{HOST}\""));
        let policies = if way == WayIn::Override { policies } else { policies.tls(&open.ca, &["localhost"]) };
        open.larder.reload(policies).await.unwrap();
        let output = workspace.init().await.expect_failure().one_line();
        // The network mirror protocol has no warnings: clients say that no release matches.
        let text = if way == WayIn::Mirror { "1.3.0" } else { CAUSE };
        assert!(output.contains(text), "{way:?}: {output}");
    }
}

/// A provider without a permitted version: the client prints the rule and its reason, once.
#[tokio::test]
async fn a_denied_provider_is_refused_with_the_reason() {
    let Some(client) = Terraform::find() else { return };
    let upstream = FakeUpstream::start().await;
    publish(&upstream);
    for way in WAYS_IN {
        let site = Site::start(&client, Larder::mirroring(&upstream).config_lines(POLICIES), way).await;
        let mut workspace = site.workspace();
        workspace.require(&site.source("evil"), ">= 1.0.0");
        let output = workspace.init().await.expect_failure().one_line();
        let text = "larder: the policy for acme/evil denies it: a typosquat";
        assert!(output.contains(text), "{way:?}: {output}");
    }
}

/// A provider and a module with a version that is too young: the constraint resolves to the newest that is old enough, until a person
/// approves it.
#[tokio::test]
async fn a_young_version_is_held_back_until_it_is_approved() {
    let Some(client) = Terraform::find() else { return };
    let rule = "[[policy]]\nmatch = \"acme/*\"\nminimum_age = \"7d\"\nreason = \"we wait a week\"\n";
    for way in WAYS_IN {
        let fixture = ModuleFixture::with_one_module().await;
        fixture.registry.publish(Provider::new("acme", "null").version("1.0.0"));
        let larder = fixture.larder().config_lines(rule).clock(&Clock::frozen());
        let site = Site::start(&client, larder, way).await;
        let has_modules = way != WayIn::Mirror;
        let init = async |version: &str| {
            let mut workspace = site.workspace();
            workspace.require(&site.source("null"), ">= 1.0.0");
            if has_modules {
                let source = site.source("one").replace("localhost", "127.0.0.1");
                workspace.file("modules.tf", &format!("module \"one\" {{\n  source  = \"{source}/test\"\n}}\n"));
            }
            let output = workspace.init().await.expect_success().one_line();
            assert!(workspace.lock_file().contains(&format!("version     = \"{version}\"")), "{way:?}: {output}");
            if has_modules {
                let installed = workspace.path().join(".terraform/modules/modules.json");
                let installed = std::fs::read_to_string(installed).unwrap();
                assert!(installed.contains(&format!("\"Version\":\"{version}\"")), "{way:?}: {installed}");
            }
            output
        };
        init("1.0.0").await;
        site.larder.clock.advance(Duration::from_secs(24 * 3600));
        fixture.registry.publish(Provider::new("acme", "null").version("1.1.0"));
        let url = fixture.file("next.tar.gz", &tar_gz(&[("main.tf", b"# next\n")]));
        fixture.registry.publish_module(Module::new("acme", "one", "test").version("1.1.0").at(&url));
        let output = init("1.0.0").await;
        let is_warned = output.contains("this mirror hides 1.1.0 (until") && output.contains("we wait a week");
        assert_eq!(is_warned, has_modules, "{way:?}: {output}");
        let what = ["acme/null@1.1.0", "acme/one/test@1.1.0"];
        site.larder.send_command("approve", serde_json::json!({ "what": what, "reason": "reviewed" })).await;
        let output = init("1.1.0").await;
        assert!(!output.contains("this mirror hides"), "{way:?}: {output}");
    }
}

/// A module: the newest permitted version by a constraint, and the rule for one by number.
#[tokio::test]
async fn modules_obey_the_policies() {
    let Some(client) = Terraform::find() else { return };
    let fixture = ModuleFixture::with_one_module().await;
    let url = fixture.file("two.tar.gz", &tar_gz(&[("main.tf", b"# two\n")]));
    fixture.registry.publish_module(Module::new("acme", "one", "test").version("2.0.0").at(&url));
    // A network mirror has no modules.
    for way in [WayIn::Override, WayIn::OwnHost] {
        let site = Site::start(&client, fixture.larder().config_lines(POLICIES), way).await;
        // A source address of a module takes no host name without a dot.
        let source = site.source("one").replace("localhost", "127.0.0.1");
        let call = |version: &str| {
            format!("module \"one\" {{\n  source  = \"{source}/test\"\n  version = \"{version}\"\n}}\n")
        };
        let mut workspace = site.workspace();
        workspace.file("main.tf", &call(">= 1.0.0"));
        workspace.init().await.expect_success();
        let installed = std::fs::read_to_string(workspace.path().join(".terraform/modules/modules.json")).unwrap();
        assert!(installed.contains("\"Version\":\"1.0.0\""), "{way:?}: {installed}");
        let mut exact = site.workspace();
        exact.file("main.tf", &call("2.0.0"));
        // Module lists have no warnings: `explain` tells the rule.
        let output = exact.init().await.expect_failure().one_line();
        assert!(output.contains("The newest available version is 1.0.0"), "{way:?}: {output}");
    }
}
