//! The configuration files that the clients of this machine read.

use std::path::{Path, PathBuf};

use super::{Check, FILES};
use crate::config::{Unreadable, text};
use crate::requirements::cli_config::{CliConfig, ClientProgram, Environment, SearchPaths};
use crate::requirements::hcl;

/// Configuration files of one client, or of both where they are identical.
#[derive(Debug)]
pub(super) struct ClientFiles {
    pub(super) clients: Vec<ClientProgram>,
    search_paths: Vec<SearchPaths>,
    files: Vec<PathBuf>,
    problems: Vec<String>,
    pub(super) config: CliConfig,
}

/// Reads the files of every client on the `PATH`, or of both where neither is installed.
pub(super) fn read_all(environment: &Environment) -> Vec<ClientFiles> {
    let folders: Vec<PathBuf> =
        environment.get("PATH").map(|path| std::env::split_paths(path).collect()).unwrap_or_default();
    let is_installed = |client: &ClientProgram| folders.iter().any(|folder| folder.join(client.program()).is_file());
    let mut clients: Vec<ClientProgram> = ClientProgram::ALL.into_iter().filter(is_installed).collect();
    if clients.is_empty() {
        clients = ClientProgram::ALL.to_vec();
    }
    let mut all_client_files: Vec<ClientFiles> = Vec::new();
    for client in clients {
        let client_files = read(client, environment);
        match all_client_files
            .iter_mut()
            .find(|existing| existing.files == client_files.files && existing.problems == client_files.problems)
        {
            Some(existing) => {
                existing.clients.push(client);
                existing.search_paths.extend(client_files.search_paths);
            }
            None => all_client_files.push(client_files),
        }
    }
    all_client_files
}

fn read(client: ClientProgram, environment: &Environment) -> ClientFiles {
    let search_paths = SearchPaths::of(client, environment, &|path: &Path| path.exists());
    let mut client_files = ClientFiles {
        clients: vec![client],
        files: Vec::new(),
        problems: Vec::new(),
        config: CliConfig::default(),
        search_paths: vec![search_paths.clone()],
    };
    if let Some(file) = search_paths.file {
        client_files.add(file, search_paths.named_by);
    }
    let entries =
        search_paths.folder.as_deref().and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| SearchPaths::is_read(name)).collect();
    names.sort_unstable();
    for name in names {
        let folder = search_paths.folder.as_deref().unwrap_or(Path::new(""));
        client_files.add(folder.join(name), None);
    }
    client_files
}

impl ClientFiles {
    /// Reads a file; `named_by` is the environment variable that names it.
    fn add(&mut self, file: PathBuf, named_by: Option<&str>) {
        let shown = file.display().to_string();
        match text(&file, hcl::MAX_FILE_BYTES as u64) {
            Ok(text) => {
                match CliConfig::read(text.as_bytes()) {
                    Ok(config) => {
                        let earlier = std::mem::take(&mut self.config);
                        self.config = earlier.merge(config);
                    }
                    Err(bad) => self.problems.push(format!("{shown} does not parse: {bad}")),
                }
                self.files.push(file);
            }
            Err(unreadable) => match (named_by, unreadable) {
                (None, unreadable) if unreadable.is_absent() => {}
                (Some(variable), unreadable) if unreadable.is_absent() => {
                    self.problems.push(format!("{variable} names {shown}, which does not exist"));
                }
                (
                    _,
                    unreadable @ (Unreadable::Refused(_)
                    | Unreadable::Folder
                    | Unreadable::TooLarge(_)
                    | Unreadable::NotText(_)),
                ) => {
                    self.problems.push(format!("{shown} cannot be read: {unreadable}"));
                }
            },
        }
    }

    /// The names of the clients, for people.
    pub(super) fn clients(&self) -> String {
        let clients: Vec<&str> = self.clients.iter().map(|client| client.program()).collect();
        clients.join(" and ")
    }

    /// True where no configuration file exists.
    pub(super) fn no_files(&self) -> bool {
        self.files.is_empty() && self.problems.is_empty()
    }

    /// The configuration files that were searched for, for people.
    pub(super) fn searched_paths(&self) -> String {
        let files = self.search_paths.iter().filter_map(|search_paths| search_paths.file.as_ref());
        let mut searched: Vec<String> = files.map(|file| file.display().to_string()).collect();
        searched.dedup();
        if searched.is_empty() { "HOME is not set".to_owned() } else { format!("no {}", searched.join(", no ")) }
    }

    /// Checks the files themselves.
    pub(super) fn checks(&self) -> Vec<Check> {
        let advice = "the client prints an error, continues without it, and asks registries directly; fix the file";
        let problems = self.problems.iter().map(|problem| Check::fail(FILES, problem).advise(advice));
        let complaint = |message: &String| {
            Check::fail(FILES, message).advise("the client prints an error and continues; fix the file")
        };
        let mut checks: Vec<Check> = problems.chain(self.config.complaints.iter().map(complaint)).collect();
        if checks.is_empty() && !self.files.is_empty() {
            let files: Vec<String> = self.files.iter().map(|file| file.display().to_string()).collect();
            checks.push(Check::ok(FILES, files.join(", ")));
        }
        checks
    }
}
