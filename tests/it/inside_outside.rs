//! Inside, outside, inside: a person who carries packages across an air gap does at each step what the output says, to
//! the letter. Each remedy makes the next verdict better, until `init` works offline.

use std::path::Path;

use crate::support::command_setup::CommandSetup;
use crate::support::process::{CommandOutput, Process, command_of, run};
use crate::support::terraform::Terraform;
use crate::support::upstream::{FakeUpstream, Fault, Provider, SigningKey, Target};

const PLATFORMS: [&str; 3] = ["darwin_arm64", "linux_amd64", "windows_amd64"];

/// One side of the gap: a running larder, and the folder in which its operator works.
struct Side {
    setup: CommandSetup,
    _larder: Process,
}

impl Side {
    /// Starts the larder of a side whose configuration has these further lines.
    fn start(mut setup: CommandSetup, lines: &str) -> Self {
        setup.text.push_str(lines);
        setup.file();
        let larder = setup.serve();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_larder"), setup.home.path().join("larder")).unwrap();
        Self { setup, _larder: larder }
    }

    fn folder(&self) -> &Path {
        self.setup.home.path()
    }

    /// Runs a line in a shell.
    async fn shell(&self, line: &str) -> CommandOutput {
        let mut shell = command_of(Path::new("/bin/sh"), self.folder(), &["-c", line]);
        let path = std::env::var("PATH").unwrap();
        shell
            .env("PATH", format!("{}:{path}", self.folder().display()))
            .env("LARDER_CONFIG", self.folder().join("mirror.toml"))
            .current_dir(self.folder());
        run(shell).await
    }

    /// Runs a line that must succeed; returns what it prints.
    async fn succeeds(&self, line: &str) -> String {
        let output = self.shell(line).await;
        assert_eq!(output.code, Some(0), "{line}: {output:?}");
        output.out
    }

    /// The verdict of `larder explain`, and the commands that it advises.
    async fn explain(&self, address: &str) -> (Verdict, Vec<String>, String) {
        let text = self.succeeds(&format!("larder explain '{address}'")).await;
        let advice = text.split("What a client asks").next().unwrap();
        (Verdict::of(&text), commands_in(advice), text)
    }
}

/// The verdicts of `explain`, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Refused,
    /// Served, and a person must decide about something.
    WithAlarm,
    Fetched,
    Served,
}

impl Verdict {
    fn of(text: &str) -> Self {
        let first = text.lines().next().unwrap();
        match () {
            () if first.contains("REFUSED") || first.contains("NOT LISTED") || first.contains("NO VERSION") => {
                Self::Refused
            }
            () if text.contains("\n  alarm ") => Self::WithAlarm,
            () if first.contains("FETCHED") => Self::Fetched,
            () if first.contains("SERVED") => Self::Served,
            () => panic!("no verdict in {text}"),
        }
    }
}

/// The commands to paste in a text.
fn commands_in(text: &str) -> Vec<String> {
    text.lines().map(str::trim).filter(|line| line.starts_with("larder ")).map(str::to_owned).collect()
}

/// Carries a file to the other side.
fn carry(file: &Path, to: &Side) {
    std::fs::copy(file, to.folder().join(file.file_name().unwrap())).unwrap();
}

/// Does what a text says that both sides must do: each bundle is made outside, carried, and applied inside.
async fn do_as_told(commands: &[String], outside: &Side, inside: &Side) {
    for command in commands {
        match () {
            () if command.starts_with("larder bundle create ") => {
                let bundle = command.split(' ').nth(3).unwrap();
                outside.succeeds(command).await;
                carry(&outside.folder().join(bundle), inside);
            }
            () if command.contains(" --json > ") => {
                // The plan of a folder that is not ready.
                let output = inside.shell(command).await;
                assert!(matches!(output.code, Some(0 | 3)), "{command}: {output:?}");
                carry(&inside.folder().join(command.rsplit(' ').next().unwrap()), outside);
            }
            () => drop(inside.succeeds(command).await),
        }
    }
}

fn provider(name: &str) -> Provider {
    PLATFORMS.into_iter().fold(Provider::new("acme", name).size(20_000 + name.len() * 1_000), Provider::platform)
}

#[tokio::test]
async fn each_remedy_that_is_printed_makes_the_next_verdict_better_until_init_works_offline() {
    let Some(terraform) = Terraform::find() else { return };
    let mut upstream = FakeUpstream::start().await;
    for name in ["null", "other", "third"] {
        upstream.publish(provider(name));
    }
    let keys = CommandSetup::new(&upstream);
    // Not in the folder of the tests: the command writes where it runs.
    let key_file = keys.home.path().join("bundle.key");
    let printed = keys.stdout_of(&["bundle", "keygen", key_file.to_str().unwrap()]).await;
    let line = |name: &str| printed.lines().map(str::trim).find(|line| line.starts_with(name)).unwrap().to_owned();
    let outside = Side::start(CommandSetup::new(&upstream), &format!("[bundle]\n{}\n", line("signing_key = ")));
    let inside = Side::start(
        CommandSetup::new(&upstream),
        &format!(
            "[network]\noffline = true\nsealed_platforms = {PLATFORMS:?}\n[bundle]\n{}\n",
            line("trusted_keys = ")
        ),
    );
    let mut workspace = terraform.workspace();
    workspace.cli_config(&inside.succeeds("larder client-config").await);
    workspace.require("acme/null", "~> 1.0");

    // The first trip brings the platform of the machine outside only, and every answer inside says what is left.
    let created = outside.succeeds("larder bundle create first.tar --for acme/null --for acme/other").await;
    assert!(created.starts_with("for linux_amd64: this machine's, as no other is named (--platform)\n"), "{created}");
    carry(&outside.folder().join("first.tar"), &inside);
    let applied = inside.succeeds("larder bundle apply first.tar").await;
    let sentence = "stored for linux_amd64, waits for darwin_arm64 and windows_amd64";
    let failed = workspace.init().await.expect_failure();
    let (before, advice, explained) = inside.explain("acme/null").await;
    let plan = inside.shell("larder plan acme/null --platform linux_amd64").await;
    let listed = inside.succeeds("larder list acme/null").await;
    let (_, _, of_version) = inside.explain("acme/null@1.2.0").await;
    let said = [&applied, &failed.one_line(), &explained, &of_version, &plan.out, &listed];
    for text in said {
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(sentence), "{text}");
    }
    assert_eq!((before, plan.code), (Verdict::Refused, Some(3)), "{explained}");

    // The advice of `explain` completes the one, and that of `apply` the other.
    do_as_told(&advice, &outside, &inside).await;
    assert_eq!(inside.explain("acme/null").await.0, Verdict::Served);
    workspace.init().await.expect_success();
    assert_eq!(inside.explain("acme/other").await.0, Verdict::Refused);
    let receipt = applied.lines().map(str::trim).find(|line| line.ends_with(".json") && line.starts_with('/')).unwrap();
    carry(Path::new(receipt), &outside);
    do_as_told(&commands_in(&applied), &outside, &inside).await;
    assert_eq!(inside.explain("acme/other").await.0, Verdict::Served);

    // A newer list may name a version that no stored list names, and a person's platforms are those of the whole order.
    let (verdict, advice, text) = inside.explain("acme/null@~> 9.0").await;
    assert_eq!((verdict, advice.len()), (Verdict::Refused, 2), "{text}");
    assert!(advice[0].contains("--for 'registry.terraform.io/acme/null@~> 9.0'"), "{text}");
    let plan = inside.shell("larder plan 'acme/null@~> 9.0'").await;
    assert!(plan.out.contains("larder bundle create plan.tar --for plan.json --partial"), "{plan:?}");
    let order = r#"{"what": [{"address": "acme/null@1.2.0", "platforms": ["linux_amd64"]}]}"#;
    std::fs::write(outside.folder().join("order.json"), order).unwrap();
    let created = outside.succeeds("larder bundle create x.tar --for order.json --platform windows_amd64").await;
    assert!(created.starts_with("for windows_amd64\n") && created.contains("(windows_amd64)"), "{created}");

    // A provider is published again, by a key that never signed it.
    let key = SigningKey::new_key();
    upstream.publish(provider("other").size(40_000).signed_by(&key));
    outside.shell("larder refresh acme/other@1.2.0").await;
    let (before, advice, explained) = outside.explain("acme/other").await;
    assert_eq!((before, advice.len()), (Verdict::WithAlarm, 1), "{explained}");
    // Three platforms, and one event.
    assert_eq!(explained.matches("\n  alarm ").count(), 1, "{explained}");
    assert!(explained.contains("the same for linux_amd64, windows_amd64"), "{explained}");
    // Without a terminal it asks for the evidence, and prints the command with it.
    let shown = outside.shell(&advice[0]).await;
    let with_evidence = commands_in(&shown.err);
    assert_eq!((shown.code, with_evidence.len()), (Some(2), 1), "{shown:?}");
    outside.succeeds(&with_evidence[0]).await;
    let (after, _, explained) = outside.explain("acme/other").await;
    assert!(after > before, "{explained}");
    outside.succeeds("larder bundle create again.tar --for acme/other --platform linux_amd64 --platform darwin_arm64 --platform windows_amd64").await;
    carry(&outside.folder().join("again.tar"), &inside);
    let refused = inside.shell("larder bundle apply again.tar").await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let remedy = commands_in(&refused.out);
    assert_eq!(remedy.len(), 1, "{}", refused.out);
    inside.succeeds(&remedy[0]).await;
    assert_eq!(inside.explain("acme/other").await.0, Verdict::Served);

    // A signature is refused until its publisher mends it.
    upstream.fault(Target::Everything, Fault::SignedByAnotherKey);
    let failed = outside.shell("larder bundle create third.tar --for acme/third").await;
    assert!(failed.code == Some(1) && failed.out.contains("signed by key"), "{failed:?}");
    let (before, advice, explained) = outside.explain("acme/third").await;
    assert_eq!((before, advice.len()), (Verdict::Refused, 1), "{explained}");
    upstream.clear_faults();
    outside.succeeds(&advice[0]).await;
    assert!(outside.explain("acme/third").await.0 > before);

    // The last trip brings what a whole configuration needs.
    workspace.require("acme/other", "~> 1.0").require("acme/third", ">= 1.0");
    workspace.remove_lock_and_installed();
    workspace.init().await.expect_failure();
    let work = inside.folder().join("work");
    std::fs::create_dir(&work).unwrap();
    std::fs::copy(workspace.path().join("main.tf"), work.join("main.tf")).unwrap();
    let plan = inside.shell("larder plan work").await;
    assert_eq!(plan.code, Some(3), "{plan:?}");
    do_as_told(&commands_in(&plan.out), &outside, &inside).await;
    let plan = inside.shell("larder plan work").await;
    assert!(plan.code == Some(0) && plan.out.contains("`init` will work offline"), "{plan:?}");
    upstream.stop().await;
    workspace.init().await.expect_success();
    let lock = workspace.lock_file();
    assert!(["null", "other", "third"].iter().all(|name| lock.contains(&format!("acme/{name}\""))), "{lock}");
}
