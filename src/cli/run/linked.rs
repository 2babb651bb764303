//! Unpacked providers for the client of a run: `init` links what the project's lock file names instead of unpacking copies.
//! Everything else is as without links.
#![expect(clippy::disallowed_methods, reason = "the links are in the data folder of the client, not in the store")]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::config::text;
use crate::digest::Digest;
use crate::protocol::linked_providers::{LinkAnswer, LinkRequest, LinkedProvider};
use crate::requirements::cli_config::Environment;
use crate::requirements::hcl::quoted;
use crate::requirements::{ClientKind, lock_file};
use crate::store::{INSTALLED_FOLDERS, Store};

/// The name of the lock file in a project.
const LOCK_FILE: &str = ".terraform.lock.hcl";
/// The names in the place of a package below the installed providers: `HOST/NS/TYPE/VERSION/OS_ARCH`.
const DEPTH: usize = 5;
/// The most packages of a project that are looked at.
const MAX_PACKAGES: usize = 4096;
/// Flags of `init` whose value may be an argument of its own.
const FLAGS_WITH_VALUE: [&str; 6] = ["backend-config", "var", "var-file", "lock-timeout", "lockfile", "test-directory"];
/// Flags of `init` that change where packages come from, or into which folder the configuration is copied.
const OTHER_SOURCES: [&str; 2] = ["plugin-dir", "from-module"];

/// The project of an `init`.
#[derive(Debug)]
pub(super) struct Project {
    client: ClientKind,
    may_link: bool,
    folder: PathBuf,
    data_folder: PathBuf,
}

/// An installed package of a project.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Installed {
    /// A folder of its own, at this place below the installed providers.
    Copy(PathBuf),
    /// A link, its place, and where it leads.
    Link { link: PathBuf, place: PathBuf, target: PathBuf },
}

/// The unpacked providers that a run links.
#[derive(Debug)]
pub(super) struct Linking {
    project: Project,
    providers: Vec<LinkedProvider>,
    before: BTreeSet<PathBuf>,
    upstream: BTreeMap<String, u64>,
}

/// The providers that a run has linked.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct LinkSummary {
    /// The number of providers.
    pub(super) providers: u64,
    /// Those of the lock file about which a registry was asked for that, or of which it was fetched.
    pub(super) upstream: BTreeMap<String, u64>,
}

impl Project {
    /// The project of a command that is an `init` of one of the clients, in the folder `working`. `None` for any other command. Where
    /// it may not link, it gets no links, and those of before are removed.
    pub(super) fn of_init(
        command: &[OsString],
        environment: &Environment,
        working: &Path,
        mut may_link: bool,
    ) -> Option<Self> {
        let (program, arguments) = command.split_first()?;
        let name = Path::new(program).file_name()?;
        let client = ClientKind::ALL.into_iter().find(|client| name == OsStr::new(client.program()))?;
        let mut folder = working.to_owned();
        let mut arguments = arguments.iter().map(|argument| argument.as_os_str());
        loop {
            let argument = arguments.next()?;
            match argument.as_bytes().strip_prefix(b"-chdir=") {
                Some(changed) => folder = folder.join(OsStr::from_bytes(changed)),
                None if argument == "init" => break,
                None => return None,
            }
        }
        while let Some(argument) = arguments.next() {
            let Some(flag) = argument.as_bytes().strip_prefix(b"-") else {
                // The folder of an old client, or the value of a flag that is not known here.
                may_link = false;
                continue;
            };
            let flag = String::from_utf8_lossy(flag.strip_prefix(b"-").unwrap_or(flag));
            let name = flag.split('=').next().unwrap_or(&flag);
            may_link &= !OTHER_SOURCES.contains(&name);
            if FLAGS_WITH_VALUE.contains(&&*flag) || OTHER_SOURCES.contains(&&*flag) {
                arguments.next();
            }
        }
        let variable = |name: &str| environment.get(name).filter(|value| !value.is_empty());
        let has_plugins = implicit_folders(client, environment, &folder).iter().any(|folder| folder.is_dir());
        may_link &= variable("TF_PLUGIN_CACHE_DIR").is_none() && !has_plugins;
        let data_folder = folder.join(variable("TF_DATA_DIR").map_or(".terraform", String::as_str));
        Some(Self { client, may_link, folder, data_folder })
    }

    /// The request for what this project's lock file names; `None` where nothing may be linked.
    pub(super) fn request(&self) -> Option<LinkRequest> {
        if !self.may_link {
            return None;
        }
        let lock_file = text(&self.folder.join(LOCK_FILE), lock_file::MAX_LOCK_FILE_BYTES as u64).ok();
        let copy = |package| if let Installed::Copy(place) = package { Some(place) } else { None };
        let copies = self.installed().into_iter().filter_map(copy).collect();
        Some(LinkRequest { lock_file, client: self.client, data_folder: self.data_folder.clone(), copies })
    }

    /// Removes the links to unpacked providers but for those to what the client may link now. Through any other a client would
    /// unpack an archive into the tree behind it, run it as it is, or fail.
    pub(super) fn apply(self, answer: LinkAnswer) -> Linking {
        let mut before = BTreeSet::new();
        for package in self.installed() {
            let Installed::Link { link, place, target } = package else { continue };
            if answer.providers.iter().any(|provider| provider.tree == target) {
                before.insert(link);
            } else if leads_to_a_tree(&place, &target)
                && let Err(error) = fs::remove_file(&link)
            {
                tracing::warn!(link = %link.display(), %error, "a link to an unpacked provider stays");
            }
        }
        Linking { providers: answer.providers, project: self, before, upstream: answer.upstream }
    }

    /// The installed packages.
    fn installed(&self) -> Vec<Installed> {
        let mut found = Vec::new();
        for root in INSTALLED_FOLDERS.map(|folder| self.data_folder.join(folder)) {
            let mut waiting = vec![PathBuf::new()];
            while let Some(below) = waiting.pop() {
                if found.len() + waiting.len() >= MAX_PACKAGES {
                    break;
                }
                let Ok(entries) = fs::read_dir(root.join(&below)) else { continue };
                for entry in entries.flatten() {
                    let (place, link) = (below.join(entry.file_name()), entry.path());
                    let Ok(kind) = entry.file_type() else { continue };
                    match place.components().count() {
                        DEPTH if kind.is_symlink() => {
                            let target = fs::read_link(&link).ok();
                            found.extend(target.map(|target| Installed::Link { link, place, target }));
                        }
                        DEPTH if kind.is_dir() => found.push(Installed::Copy(place)),
                        depth if depth < DEPTH && kind.is_dir() => waiting.push(place),
                        _ => {}
                    }
                }
            }
        }
        found.sort();
        found
    }
}

impl Linking {
    /// The block for the client's configuration; empty where there is nothing to link.
    pub(super) fn installation(&self) -> String {
        if self.providers.is_empty() {
            return String::new();
        }
        let mut block = "provider_installation {\n".to_owned();
        for LinkedProvider { provider, mirror, .. } in &self.providers {
            let (path, provider) = (quoted(&mirror.to_string_lossy()), quoted(provider));
            let _ = write!(block, "  filesystem_mirror {{\n    path    = {path}\n    include = [{provider}]\n  }}\n");
        }
        block.push_str("  direct {}\n}\n");
        block
    }

    /// The providers that the client has linked in this run.
    pub(super) fn summary(self) -> LinkSummary {
        let trees: BTreeSet<&Path> = self.providers.iter().map(|provider| provider.tree.as_path()).collect();
        let is_new = |package: &Installed| match package {
            Installed::Link { link, target, .. } => trees.contains(target.as_path()) && !self.before.contains(link),
            Installed::Copy(_) => false,
        };
        let providers = self.project.installed().iter().filter(|package| is_new(package)).count() as u64;
        LinkSummary { providers, upstream: self.upstream }
    }
}

/// True for the target of a link at this place that leads to an unpacked provider of any store, also of one that is gone or that
/// was named in another way.
fn leads_to_a_tree(place: &Path, target: &Path) -> bool {
    let names: Vec<&OsStr> = target.iter().collect();
    let tail = names.len().checked_sub(DEPTH + 3).and_then(|start| names.get(start..));
    let Some([version, unpacked, digest, below @ ..]) = tail else { return false };
    let is_digest = digest.to_str().is_some_and(|digest| Digest::parse(digest).is_ok());
    Path::new(version).join(unpacked) == Store::unpacked_folder(Path::new(""))
        && is_digest
        && place.iter().eq(below.iter().copied())
}

/// The folders in which a client looks for plugins where its configuration has no `provider_installation`. With one it would not
/// look there (`provider_source.go`).
fn implicit_folders(client: ClientKind, environment: &Environment, project: &Path) -> Vec<PathBuf> {
    let variable = |name: &str| environment.get(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = variable("HOME");
    let mut folders = vec![project.join("terraform.d/plugins")];
    let of_home = [".terraform.d/plugins", "Library/Application Support/io.terraform/plugins"];
    folders.extend(home.iter().flat_map(|home| of_home.map(|folder| home.join(folder))));
    let config = variable("XDG_CONFIG_HOME").or_else(|| Some(home.as_ref()?.join(".config")));
    let data = variable("XDG_DATA_HOME").or_else(|| Some(home.as_ref()?.join(".local/share")));
    let shared = environment.get("XDG_DATA_DIRS").filter(|folders| !folders.is_empty());
    let shared = shared.map_or("/usr/local/share:/usr/share", String::as_str).split(':').map(PathBuf::from);
    let names: &[&str] = match client {
        ClientKind::Terraform => &["terraform"],
        ClientKind::Opentofu => &["terraform", "opentofu"],
    };
    let places = config.into_iter().chain(data).chain(shared);
    folders.extend(places.flat_map(|place| names.iter().map(move |name| place.join(name).join("plugins"))));
    folders
}
