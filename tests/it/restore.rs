//! A backup that is restored into an empty folder, as docs/operations.md describes it.

use std::path::Path;
use std::process::Command;

use crate::support::command_setup::CommandSetup;
use crate::support::larder::HOST;
use crate::support::upstream::{FakeUpstream, Provider};

/// The folders of a backup.
const BACKED_UP: [&str; 6] = ["names", "seen", "documents", "alarms", "approvals", "blobs"];

/// A copy of a running larder's folders is a store: every command reads it, and offline it serves what the other served.
#[tokio::test]
async fn a_restored_backup_answers_every_command_and_serves_offline() {
    let mut upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(300_000));
    let original = CommandSetup::new(&upstream);
    let running = original.serve();
    let archive = running.archive_path("null").await;
    running.get(&archive).await.expect(200);
    // As a bundle or a client would have it stored.
    original.stdout_of(&["warm", "acme/null@1.2.0", "--platform", "linux_amd64"]).await;

    let mut restored = CommandSetup::new(&upstream);
    restored.text.push_str("[network]\noffline = true\n");
    let (from, to) = (original.home.path().join("v1"), restored.home.path().join("v1"));
    std::fs::create_dir(&to).unwrap();
    for folder in BACKED_UP {
        copy(&from.join(folder), &to);
    }
    // The larder of the original still runs.
    upstream.stop().await;
    for (command, expected) in [
        (&["list"][..], "acme/null"),
        (&["verify"], "everything is intact"),
        (&["status"], "archives   1 ("),
        (&["explain", "acme/null", "--platform", "linux_amd64"], "acme/null 1.2.0 (linux_amd64): SERVED"),
        (&["plan", "acme/null", "--platform", "linux_amd64"], "`init` will work offline"),
    ] {
        let output = restored.run(command).await;
        assert!(output.code == Some(0) && output.out.contains(expected), "{command:?}: {output:?}");
        assert!(!output.err.contains("in use"), "{command:?}: {output:?}");
    }
    let larder = restored.serve();
    let served = larder.get(&archive).await.expect(200);
    assert!(served.body == upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64"));
    larder.get(&format!("/registry/{HOST}/v1/providers/acme/null/versions")).await.expect(200);
    let explained = restored.stdout_of(&["explain", "acme/null", "--platform", "linux_amd64"]).await;
    assert!(explained.starts_with("acme/null 1.2.0 (linux_amd64): SERVED"), "{explained}");
    assert_eq!((larder.terminate().await, running.terminate().await), (Some(0), Some(0)));
}

/// Copies a folder into another one, as a backup program does.
fn copy(folder: &Path, into: &Path) {
    let copied = Command::new("cp").arg("-a").args([folder, into]).status().unwrap();
    assert!(copied.success(), "{folder:?}");
}
