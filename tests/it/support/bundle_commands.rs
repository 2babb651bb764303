//! Bundle commands run beside a running larder.

use std::path::Path;

use super::larder::Folder;
use super::process::{CommandOutput, Process, command, run};

/// `larder ARGUMENTS` beside the folders of an estate, for the larder whose folder this is.
pub(crate) async fn larder_in(work: &Path, folder: &Folder, arguments: &[&str]) -> CommandOutput {
    let config = folder.path().join("mirror.toml");
    let arguments = [arguments, &["--config", config.to_str().unwrap()]].concat();
    let mut command = command(folder.path(), &arguments);
    command.current_dir(work);
    run(command).await
}

/// Commands then find the running larder, which listens on a random port.
pub(crate) fn write_beside(folder: &Folder, running: &Process) {
    let (admin, store) = (running.said()["admin"].as_str().unwrap(), folder.path());
    let text = format!("[admin]\nlisten = \"{admin}\"\n[store]\npath = {store:?}\n");
    std::fs::write(folder.path().join("mirror.toml"), text).unwrap();
}
