//! Commands against a running larder.

use std::path::Path;

use super::larder::Folder;
use super::process::{CommandOutput, Process, command, run};

/// Runs `larder ARGUMENTS` in the working folder `work`, with the configuration file that `write_config_of_running`
/// wrote.
pub(crate) async fn run_larder_in(work: &Path, folder: &Folder, arguments: &[&str]) -> CommandOutput {
    let config = folder.path().join("mirror.toml");
    let arguments = [arguments, &["--config", config.to_str().unwrap()]].concat();
    let mut command = command(folder.path(), &arguments);
    command.current_dir(work);
    run(command).await
}

/// Writes a configuration by which commands find a running larder, which listens on a random port.
pub(crate) fn write_config_of_running(folder: &Folder, running: &Process) {
    let (admin, store) = (running.announcement()["admin"].as_str().unwrap(), folder.path());
    let text = format!("[admin]\nlisten = \"{admin}\"\n[store]\npath = {store:?}\n");
    std::fs::write(folder.path().join("mirror.toml"), text).unwrap();
}
