//! Output of commands: all of it or a failure, and never terminal control sequences.

use std::fs::File;

use crate::support::larder::{Folder, Larder};
use crate::support::process::{command, run};
use crate::support::upstream::FakeUpstream;

/// A list cut off by a full disk must not look like success; a reader that closed the pipe wanted no more.
#[tokio::test]
async fn a_failed_write_to_standard_output_is_an_error_unless_the_reader_has_gone() {
    let (upstream, folder) = (FakeUpstream::start().await, Folder::new());
    let builder = || Larder::mirroring(&upstream).on(&folder);
    builder().start().await.stop().await;
    let config = folder.path().join("mirror.toml");
    std::fs::write(&config, builder().config_text()).unwrap();
    for requests in ["inventory", "missing --json", "missing", "status", "status --json", "client-config", "check"] {
        let asked_for = || {
            let mut command = command(folder.path(), &requests.split(' ').collect::<Vec<_>>());
            command.arg("--config").arg(&config);
            command
        };
        let mut onto_a_full_disk = asked_for();
        onto_a_full_disk.stdout(File::options().write(true).open("/dev/full").unwrap());
        let output = run(onto_a_full_disk).await;
        assert_eq!(output.code, Some(1), "{requests}: {output:?}");
        assert_eq!(output.err.matches("could not print").count(), 1, "{requests}: {output:?}");

        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut for_nobody = asked_for();
        for_nobody.stdout(writer);
        let output = run(for_nobody).await;
        assert_eq!((output.code, output.err.contains("could not print")), (Some(0), false), "{requests}: {output:?}");
    }
}

/// The author of a tar chooses the names in it, so they may contain control sequences.
#[tokio::test]
async fn no_error_contains_terminal_control_sequences() {
    let folder = Folder::new();
    let mut hostile = vec![0; 1024];
    let name = b"\x1b]0;owned\x07\x1b[31m";
    hostile[..name.len()].copy_from_slice(name);
    hostile[148..156].copy_from_slice(b"\xff\x1b[2Jno\xff");
    hostile[257..263].copy_from_slice(b"ustar\0");
    let tar = folder.path().join("hostile.tar");
    std::fs::write(&tar, hostile).unwrap();
    let config = folder.path().join("mirror.toml");
    std::fs::write(&config, format!("[store]\npath = {:?}\n", folder.path().join("store"))).unwrap();
    let mut planning = command(folder.path(), &["plan", "--config"]);
    planning.arg(&config).arg(&tar);
    let output = run(planning).await;
    assert!(output.code == Some(1) && output.err.contains("hostile.tar"), "{output:?}");
    assert!(output.err.contains("owned"), "the name is not shown at all: {output:?}");
    assert!(!output.err.contains(|c: char| c.is_control() && c != '\n'), "{output:?}");
}
