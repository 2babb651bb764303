//! The first command of the README, as a newcomer runs it.

use std::process::Command;

use rustix::process::Signal;

use crate::support::larder::Folder;
use crate::support::process::{command_of, demo, run, spawn_captured};
use crate::support::programs::find;

/// The demonstration with a home of its own, and with this `PATH` in place of the present one.
fn demonstration(home: &Folder, arguments: &[&str], path: Option<&str>) -> Option<Command> {
    let mut command = command_of(&demo()?, home.path(), arguments);
    let folder = home.path().join("a folder");
    std::fs::create_dir(&folder).unwrap();
    command.env("TMPDIR", &folder).env_remove("TF_CLI_CONFIG_FILE").env_remove("LARDER_REQUIRE_CLIENT");
    if let Some(path) = path {
        command.env("PATH", path);
    }
    Some(command)
}

/// The rows of the table: label, requests at the registry.
fn rows(out: &str) -> Vec<(String, u32)> {
    let cells = |line: &str| {
        line.trim_matches('│')
            .split("  ")
            .filter(|cell| !cell.trim().is_empty())
            .map(|cell| cell.trim().to_owned())
            .collect::<Vec<_>>()
    };
    let rows = out.lines().filter(|line| line.starts_with('│')).skip(1).map(cells);
    rows.map(|row| (row[0].clone(), row[2].parse().unwrap())).collect()
}

fn assert_shows_four_installs(out: &str) {
    let rows = rows(out);
    let [(direct, _), (_, cold), (again, 0), (stopped, 0)] = &rows[..] else { panic!("{rows:?}\n{out}") };
    assert!(direct.contains("directly") && again.contains("again") && stopped.contains("stopped"), "{rows:?}");
    assert!(*cold > 0, "{rows:?}");
}

#[tokio::test]
async fn the_demonstration_installs_with_the_registry_stopped_and_says_what_to_do_next() {
    let home = Folder::new();
    let (Some(_), Some(command)) = (find("terraform"), demonstration(&home, &[], None)) else { return };
    let output = run(command).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    assert_shows_four_installs(&output.out);
    assert!(output.out.contains("All 4 lock files are the same"), "{output:?}");
    assert!(output.out.contains("cargo run --example demo -- --keep"), "{output:?}");
    assert!(!output.out.contains("not yet confirmed") && output.err.is_empty(), "{output:?}");
    assert_eq!(std::fs::read_dir(home.path().join("a folder")).unwrap().count(), 0, "nothing stays");
}

#[tokio::test]
async fn without_terraform_the_demonstration_asks_itself_and_says_so() {
    let home = Folder::new();
    let Some(command) = demonstration(&home, &[], Some("/nowhere")) else { return };
    let output = run(command).await;
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""), "{output:?}");
    assert!(output.out.contains("no terraform on the PATH"), "{output:?}");
    assert_shows_four_installs(&output.out);
}

#[tokio::test]
async fn a_demonstration_that_stays_answers_the_commands_that_it_prints() {
    let home = Folder::new();
    let Some(command) = demonstration(&home, &["--keep"], Some("/nowhere")) else { return };
    let (mut running, out, err) = spawn_captured(command);
    let line = out.line_with("export LARDER_CONFIG=").await;
    out.line_with("-- doctor").await;
    let text = out.text();
    let commands = text.lines().filter_map(|line| line.trim().strip_prefix("cargo run -- "));
    let commands: Vec<&str> = commands.map(|line| line.split("  ").next().unwrap()).collect();
    assert_eq!(commands, ["status", "list", "explain acme/cloud", "doctor"]);
    for arguments in commands {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let mut command = command_of(env!("CARGO_BIN_EXE_larder").as_ref(), home.path(), &arguments);
        command
            .env_remove("TF_CLI_CONFIG_FILE")
            .env("LARDER_CONFIG", line.split_once('=').unwrap().1.trim_matches('\''));
        let output = run(command).await;
        assert_eq!(output.code, Some(0), "{arguments:?}: {output:?}\n{}", err.text());
        assert!(
            arguments == ["doctor"] || output.out.contains("cloud") || output.out.contains("archives   3"),
            "{output:?}"
        );
    }
    running.send(Signal::TERM);
    assert_eq!(running.wait_for_exit().await, Some(0), "{}", err.text());
    assert_eq!(std::fs::read_dir(home.path().join("a folder")).unwrap().count(), 0, "nothing stays");
}
