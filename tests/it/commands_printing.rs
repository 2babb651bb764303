//! Output of commands: an incomplete output is a failure, and no output has terminal control sequences.

use std::fs::File;

use crate::support::command_setup::CommandSetup;
use crate::support::larder::{Folder, Larder};
use crate::support::process::{command, run};
use crate::support::upstream::FakeUpstream;

/// A list cut off by a full disk must not look like success; a reader that closed the pipe wanted no more.
#[tokio::test]
async fn a_failed_write_to_standard_output_is_an_error_unless_the_reader_has_gone() {
    let (upstream, folder) = (FakeUpstream::start().await, Folder::new());
    let builder = || Larder::mirroring(&upstream).store_at(&folder);
    builder().start().await.stop().await;
    let config = folder.path().join("mirror.toml");
    std::fs::write(&config, builder().config_text()).unwrap();
    for arguments in ["inventory", "missing --json", "missing", "status", "status --json", "client-config", "check"] {
        let new_command = || {
            let mut command = command(folder.path(), &arguments.split(' ').collect::<Vec<_>>());
            command.arg("--config").arg(&config);
            command
        };
        let mut to_full_disk = new_command();
        to_full_disk.stdout(File::options().write(true).open("/dev/full").unwrap());
        let output = run(to_full_disk).await;
        assert_eq!(output.code, Some(1), "{arguments}: {output:?}");
        assert_eq!(output.err.matches("could not print").count(), 1, "{arguments}: {output:?}");

        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut to_closed_pipe = new_command();
        to_closed_pipe.stdout(writer);
        let output = run(to_closed_pipe).await;
        assert_eq!((output.code, output.err.contains("could not print")), (Some(0), false), "{arguments}: {output:?}");
    }
}

/// The author of a tar chooses the names in it, so they may contain control sequences.
#[tokio::test]
async fn no_error_contains_terminal_control_sequences() {
    let folder = Folder::new();
    let mut header = vec![0; 1024];
    let name = b"\x1b]0;owned\x07\x1b[31m";
    header[..name.len()].copy_from_slice(name);
    header[148..156].copy_from_slice(b"\xff\x1b[2Jno\xff");
    header[257..263].copy_from_slice(b"ustar\0");
    let tar = folder.path().join("hostile.tar");
    std::fs::write(&tar, header).unwrap();
    let config = folder.path().join("mirror.toml");
    std::fs::write(&config, format!("[store]\npath = {:?}\n", folder.path().join("store"))).unwrap();
    let mut plan = command(folder.path(), &["plan", "--config"]);
    plan.arg(&config).arg(&tar);
    let output = run(plan).await;
    assert!(output.code == Some(1) && output.err.contains("hostile.tar"), "{output:?}");
    assert!(output.err.contains("owned"), "the name is not shown at all: {output:?}");
    assert!(!output.err.contains(|c: char| c.is_control() && c != '\n'), "{output:?}");
}

/// A command tells trouble with the store in a sentence among its other messages, not in a line of a log; with LARDER_LOG
/// it logs.
#[tokio::test]
async fn what_a_command_notices_is_a_sentence() {
    let upstream = FakeUpstream::start().await;
    let setup = CommandSetup::new(&upstream);
    let larder = setup.serve();
    larder.get("/registry/registry.terraform.io/.well-known/terraform.json").await.expect(200);
    larder.terminate_promptly().await;
    let document = setup.home.at("documents/registry.terraform.io/discovery");
    setup.home.damage(&document);
    let output = setup.run(&["client-config"]).await;
    let lines: Vec<&str> = output.err.lines().collect();
    assert!(output.code == Some(0) && lines.iter().all(|line| line.starts_with("larder: ")), "{output:?}");
    assert!(output.err.contains("quarantine") && !output.err.contains(" ERROR "), "{output:?}");

    setup.home.damage(&document);
    let file = setup.file();
    let mut logged = command(setup.home.path(), &["client-config", "--config", file.to_str().unwrap()]);
    logged.env("LARDER_LOG", "warn");
    let output = run(logged).await;
    assert!(output.err.contains("ERROR") && output.err.contains("quarantine"), "{output:?}");
}

/// A word that is no command gets the tip that a person needs, and none that leads elsewhere.
#[tokio::test]
async fn a_word_that_is_no_command_gets_a_tip_that_helps() {
    let folder = Folder::new();
    for (arguments, tip) in [
        (&["terraform", "init", "-upgrade"][..], "larder run -- terraform init -upgrade"),
        (&["tofu", "plan", "-var", "a=b c"], "larder run -- tofu plan -var 'a=b c'"),
        (&["init"], "larder run -- terraform init"),
        (&["--store", "init", "init"], "larder --store init run -- terraform init"),
        (&["--config", "x y.toml", "tofu", "init"], "larder --config 'x y.toml' run -- tofu init"),
        (&["lits"], "'list'"),
        (&["bundle", "aply"], "'apply'"),
    ] {
        let output = run(command(folder.path(), arguments)).await;
        assert!(
            output.code == Some(2) && format!("{}{}", output.out, output.err).contains(tip),
            "{arguments:?}: {output:?}"
        );
    }
    for words in [&["cache"][..], &["fetch"], &["validate", "mirror.toml"], &["bundle", "init"]] {
        let output = run(command(folder.path(), words)).await;
        assert!(output.code == Some(2) && !output.err.contains("tip:") && !output.err.contains("accept"), "{output:?}");
    }
}
