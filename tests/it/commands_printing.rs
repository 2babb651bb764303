//! Output of commands: an incomplete output is a failure, and no output has terminal control sequences.

use std::fs::File;

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
