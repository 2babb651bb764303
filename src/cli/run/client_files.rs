//! The configuration for the client of a run: a copy of the user's own, with `host` blocks that lead to larder. Where the
//! user's configuration already decides where packages come from, it wins, and the run says so.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use url::Url;

use crate::address::Hostname;
use crate::config::{Config, text};
use crate::doctor::is_own_listener;
use crate::requirements::cli_config::{CliConfig, CliConfigCopy, Environment, SearchPaths, ServiceValue, Services};
use crate::requirements::{ClientKind, hcl};

/// The user's files.
#[derive(Debug, Default)]
pub(super) struct ClientFiles {
    /// `None` until the first file is read.
    copy: Option<CliConfigCopy>,
    read: Vec<PathBuf>,
    /// The `host` blocks of the user, with their file.
    hosts: BTreeMap<Hostname, (Services, PathBuf)>,
    /// The file with the first `provider_installation`.
    installation: Option<PathBuf>,
    /// True if a plugin cache is set: the client installs into it.
    has_plugin_cache: bool,
    notes: Vec<String>,
}

impl ClientFiles {
    /// Reads the files that the client would read without larder. A script may run either client: then the files of those
    /// that are installed count.
    pub(super) fn read(program: &OsStr, environment: &Environment) -> Self {
        let mut all = Self::default();
        for client in clients_of(program, environment) {
            let search_paths = SearchPaths::of(client, environment, &|path: &Path| path.exists());
            let mut copy: Option<CliConfigCopy> = None;
            for file in search_paths.files() {
                if !all.read.contains(&file)
                    && let Some(contents) = all.read_file(&file, search_paths.named_by)
                {
                    match &mut copy {
                        Some(earlier) => earlier.merge(contents),
                        None => copy = Some(contents),
                    }
                }
            }
            match (&mut all.copy, copy) {
                (Some(present), Some(copy)) => present.add_missing(copy),
                (present @ None, copy) => *present = copy,
                (Some(_), None) => {}
            }
        }
        all
    }

    /// Reads one file. What the client would report of it is noted, because the client gets the copy instead.
    fn read_file(&mut self, file: &Path, named_by: Option<&str>) -> Option<CliConfigCopy> {
        self.read.push(file.to_owned());
        let shown = file.display();
        let contents = match text(file, hcl::MAX_FILE_BYTES as u64) {
            Ok(contents) => contents,
            Err(unreadable) if unreadable.is_absent() => {
                let note = named_by.map(|variable| format!("{variable} names {shown}, which does not exist"));
                self.notes.extend(note);
                return None;
            }
            Err(unreadable) => {
                self.notes.push(format!("{shown} cannot be read, so the client goes without it: {unreadable}"));
                return None;
            }
        };
        let parsed = CliConfig::read(contents.as_bytes())
            .and_then(|config| Ok((config, CliConfigCopy::read(contents.as_bytes())?)));
        match parsed {
            Ok((config, copy)) => {
                let hosts = config.hosts.into_iter().map(|(host, services)| (host, (services, file.to_owned())));
                self.hosts.extend(hosts);
                self.has_plugin_cache |= config.plugin_cache_dir.is_some();
                if config.installation.is_some() {
                    self.installation.get_or_insert_with(|| file.to_owned());
                }
                Some(copy)
            }
            Err(bad) => {
                self.notes.push(format!("{shown} does not parse, so the client goes without it: {bad}"));
                None
            }
        }
    }

    /// True if the user's files leave it to larder where providers come from.
    pub(super) fn may_link(&self) -> bool {
        self.installation.is_none() && !self.has_plugin_cache
    }

    /// Returns the file for the client, and one line for each setting of the user that keeps a registry's packages from
    /// coming through larder. `host_blocks` are larder's.
    ///
    /// # Errors
    /// The blocks of a running larder do not parse.
    pub(super) fn with_hosts(mut self, host_blocks: &str, config: &Config) -> anyhow::Result<(String, Vec<String>)> {
        let bad_blocks = "the running larder is of another version";
        let mirrored = CliConfig::read(host_blocks.as_bytes()).context(bad_blocks)?.hosts;
        let mut blocks = CliConfigCopy::read(host_blocks.as_bytes()).context(bad_blocks)?;
        for (host, (services, file)) in &self.hosts {
            // The lines that `larder serve` prints lead to larder, too; this run may have it on other ports.
            if mirrored.contains_key(host) && !leads_to_larder(services, &mirrored, config) {
                blocks.remove_host(host);
                let shown = file.display();
                self.notes
                    .push(format!("{shown} has a host block for {host}, which stays: larder is not asked for {host}"));
            }
        }
        if let Some(file) = &self.installation {
            let shown = file.display();
            let note = format!(
                "{shown} has provider_installation, which stays: only providers that it installs `direct` come through larder"
            );
            self.notes.push(note);
        }
        let mut copy = self.copy.unwrap_or_default();
        copy.set_hosts(blocks);
        Ok((copy.text(), self.notes))
    }
}

/// True if every service of a `host` block is one of this configuration's larder, or of the larder with these `host` blocks:
/// the user's file may be the copy of another run.
fn leads_to_larder(services: &Services, mirrored: &BTreeMap<Hostname, Services>, config: &Config) -> bool {
    let urls = mirrored.values().flat_map(|services| services.values());
    let origins: BTreeSet<String> = urls
        .filter_map(|value| match value {
            ServiceValue::Url(url) => Some(Url::parse(url).ok()?.origin().ascii_serialization()),
            ServiceValue::Other => None,
        })
        .collect();
    let is_larder = |name: &str| match services.get(name) {
        Some(ServiceValue::Url(url)) => Url::parse(url)
            .is_ok_and(|url| is_own_listener(&url, config) || origins.contains(&url.origin().ascii_serialization())),
        Some(ServiceValue::Other) => false,
        None => true,
    };
    !services.is_empty() && is_larder("providers.v1") && is_larder("modules.v1")
}

/// The clients whose configuration counts for a program.
fn clients_of(program: &OsStr, environment: &Environment) -> Vec<ClientKind> {
    let name = Path::new(program).file_name().unwrap_or(program);
    if let Some(client) = ClientKind::ALL.into_iter().find(|client| name == OsStr::new(client.program())) {
        return vec![client];
    }
    ClientKind::installed(environment)
}
