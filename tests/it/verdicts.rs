//! Each verdict, question by question and state by state, beside what the real client then gets. The questions are
//! those that a person asks: `explain` with a version, without one and with a constraint, `status`, `list`, `plan`, and the
//! status page.

use std::process::Command;

use crate::support::command_setup::{CommandSetup, json};
use crate::support::git_module_fixture::override_through;
use crate::support::http::get;
use crate::support::process::{CommandOutput, Process, command, run};
use crate::support::terraform::Terraform;
use crate::support::until;
use crate::support::upstream::{FakeUpstream, Fault, Gate, Provider, SigningKey, Target};

const PLATFORM: [&str; 2] = ["--platform", "linux_amd64"];

/// A larder in one state, and what is true of acme/null there.
struct State {
    name: &'static str,
    upstream: FakeUpstream,
    setup: CommandSetup,
    larder: Process,
    /// `init` succeeds.
    works: bool,
    /// The archive for linux_amd64 is stored and current.
    is_stored: bool,
    /// A person must act or look: before anybody asks, and after the client has asked.
    needs_a_look: [bool; 2],
    /// A download that waits.
    held: Option<Gate>,
}

fn provider(edition: u64) -> Provider {
    Provider::new("acme", "null").platform("linux_amd64").platform("darwin_arm64").size(200_000).edition(edition)
}

async fn upstream() -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    upstream.publish(provider(1).version("1.1.0"));
    upstream.publish(provider(1));
    upstream
}

impl State {
    /// A running larder with an empty store.
    async fn empty() -> Self {
        let upstream = upstream().await;
        let setup = CommandSetup::new(&upstream);
        let larder = setup.serve();
        let (works, is_stored, needs_a_look, held) = (true, false, [false, false], None);
        Self { name: "nothing stored", upstream, setup, larder, works, is_stored, needs_a_look, held }
    }

    /// One with both versions stored for a platform.
    async fn with(platform: &str) -> Self {
        let state = Self::empty().await;
        for version in ["1.1.0", "1.2.0"] {
            state.setup.stdout_of(&["warm", &format!("acme/null@{version}"), "--platform", platform]).await;
        }
        Self { name: "stored", is_stored: platform == PLATFORM[1], ..state }
    }

    /// The same with a larder that has started again, with these further lines.
    async fn restarted(self, lines: &str) -> Self {
        let Self { mut setup, larder, .. } = self;
        larder.terminate_promptly().await;
        setup.text.push_str(lines);
        let larder = setup.serve();
        Self { setup, larder, ..self }
    }

    /// The same with a larder on a copy of the store.
    async fn restored_elsewhere(self) -> Self {
        let Self { setup: original, larder, .. } = self;
        larder.terminate_promptly().await;
        let setup = CommandSetup::new(&self.upstream);
        let mut copying = Command::new("cp");
        copying.arg("-a").arg(original.home.path().join("v1")).arg(setup.home.path());
        assert!(copying.status().unwrap().success());
        let larder = setup.serve();
        Self { name: "restored from a backup", setup, larder, ..self }
    }

    /// Asks as a client does, with this constraint.
    async fn init(&self, terraform: &Terraform, constraint: &str) -> bool {
        let mut workspace = terraform.workspace();
        workspace.require("acme/null", constraint).cli_config(&override_through(&self.setup.base()));
        workspace.init().await.status.success()
    }

    async fn ask(&self, arguments: &[&str]) -> CommandOutput {
        // The file may be broken by now, so it is not written again.
        let file = self.setup.home.path().join("mirror.toml");
        let arguments = [arguments, &["--config", file.to_str().unwrap()]].concat();
        run(command(self.setup.home.path(), &arguments)).await
    }

    /// The titles of the verdicts of `status` and of the page, which are one.
    async fn title(&self) -> String {
        let status = self.ask(&["status"]).await;
        assert_eq!(status.code, Some(0), "{}: {status:?}", self.name);
        let title = status.out.lines().next().unwrap().trim_start_matches("verdict").trim().to_owned();
        let page = get(&self.larder.admin()).await.expect(200).text();
        assert!(page.contains(&format!(">{title}<")), "{}: {title}: {page}", self.name);
        title
    }

    async fn assert_needs_a_look(&self, needed: bool) {
        let title = self.title().await;
        let is_good = ["All is well", "Ready"].contains(&title.as_str());
        assert_eq!(!is_good, needed, "{}: {title}", self.name);
    }
}

/// Each state, as a person comes to it.
async fn states(terraform: &Terraform) -> Vec<State> {
    let nothing_stored = State::empty().await;
    let stored = State::with("linux_amd64").await;

    let refused = State::empty().await;
    refused.upstream.fault(Target::Archive, Fault::WrongBytes);
    assert!(!refused.init(terraform, ">= 0").await);
    let refused = State { name: "refused", works: false, needs_a_look: [true, true], ..refused };

    let changed = State::with("linux_amd64").await;
    changed.setup.stdout_of(&["purge", "acme/null"]).await;
    let unknown = SigningKey::new_key();
    changed.upstream.publish(provider(2).signed_by(&unknown));
    changed.upstream.publish(provider(2).version("1.1.0").signed_by(&unknown));
    assert!(!changed.init(terraform, "1.2.0").await && !changed.init(terraform, "1.1.0").await);
    let changed =
        State { name: "waits for accept", works: false, is_stored: false, needs_a_look: [true, true], ..changed };

    let other = State::with("darwin_arm64").await.restarted("[network]\noffline = true\n").await;
    let other = State { name: "another platform only", works: false, needs_a_look: [false, true], ..other };

    let offline = State::with("linux_amd64").await.restarted("[network]\noffline = true\n").await;
    let offline = State { name: "offline", ..offline };

    let missing = State::empty().await.restarted("[network]\noffline = true\n").await;
    let missing = State { name: "offline and missing", works: false, needs_a_look: [false, true], ..missing };

    let fetched = State::empty().await;
    let gate = fetched.upstream.hold_after(Target::Archive, 10_000);
    let file = fetched.setup.file();
    let warm = ["warm", "acme/null@1.2.0", PLATFORM[0], PLATFORM[1], "--config", file.to_str().unwrap()];
    tokio::spawn(run(command(fetched.setup.home.path(), &warm)));
    fetched.upstream.wait_for(Target::Archive, 1).await;
    let fetched = State { name: "being fetched", held: Some(gate), ..fetched };

    let restored = State::with("linux_amd64").await.restored_elsewhere().await;

    let broken = State::with("linux_amd64").await;
    std::fs::write(broken.setup.home.path().join("mirror.toml"), format!("{}[typo\n", broken.setup.text)).unwrap();
    let broken = State { name: "beside a running larder with a broken mirror.toml", ..broken };

    vec![nothing_stored, stored, refused, changed, other, offline, missing, fetched, restored, broken]
}

#[tokio::test]
async fn every_verdict_is_what_the_client_then_gets() {
    let Some(terraform) = Terraform::find() else { return };
    for mut state in states(&terraform).await {
        let name = state.name;
        state.assert_needs_a_look(state.needs_a_look[0]).await;
        for address in ["acme/null@1.2.0", "acme/null", "acme/null@~> 1.0"] {
            let output = state.ask(&[&["explain", address, "--json"], &PLATFORM[..]].concat()).await;
            assert_eq!(output.code, Some(0), "{name}, {address}: {output:?}");
            let report = json(&output.out);
            let verdict = report["verdict"].as_str().unwrap();
            assert_eq!(["served", "asks-upstream"].contains(&verdict), state.works, "{name}, {address}: {report:#}");
            assert_eq!(verdict == "served", state.works && state.is_stored, "{name}, {address}: {report:#}");
            let says_what_to_do = report["to_do"].as_array().is_some_and(|advice| !advice.is_empty());
            assert!(state.works || says_what_to_do, "{name}, {address}: {report:#}");
        }
        let list = json(&state.ask(&["list", "acme/null@1.2.0", "--json"]).await.out);
        let packages = list["packages"].as_array().unwrap();
        let is_listed = packages.iter().any(|package| package["platform"] == "linux_amd64");
        assert_eq!(is_listed, state.is_stored, "{name}: {list:#}");
        let plan = state.ask(&[&["plan", "acme/null@1.2.0"], &PLATFORM[..]].concat()).await;
        assert_eq!(plan.code, Some(if state.is_stored { 0 } else { 3 }), "{name}: {plan:?}");

        if let Some(held) = state.held.take() {
            held.open();
            until("the download has ended", async || {
                json(&state.ask(&["status", "--json"]).await.out)["archives"] == 1
            })
            .await;
        }
        for constraint in ["1.2.0", ">= 0", "~> 1.0"] {
            assert_eq!(state.init(&terraform, constraint).await, state.works, "{name}, {constraint}");
        }
        state.assert_needs_a_look(state.needs_a_look[1]).await;
        if state.is_stored {
            // A plan that is ready promises more than the client has just got.
            state.upstream.stop().await;
            assert!(state.init(&terraform, "1.2.0").await, "{name}, without the registry");
        }
        state.larder.terminate_promptly().await;
    }
}
