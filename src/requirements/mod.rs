//! Requirements: users' own files, and what they need from a mirror. The only user of HCL. An order has addresses with
//! constraints, lock files, and configuration files. `resolve` computes its requirements with the queries of
//! [`Registries`], which `jobs` implements over a mirror.

pub mod cli_config;
mod configuration;
pub mod disk;
mod files;
pub mod hcl;
pub mod lock_file;
mod resolve;

use std::fmt::Display;
use std::path::PathBuf;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use self::cli_config::Environment;
use self::configuration::keep_deciding_values;
use self::lock_file::LockedProvider;
use crate::address::{
    Address, Artifact, Constraint, ModulePackage, OPENTOFU_REGISTRY, PackageSelector, Platform, ProviderAddress,
    TERRAFORM_REGISTRY, Version,
};
use crate::labels::labelled_enum;

pub use self::configuration::CommandLineValues;
pub use self::disk::{ArgumentKind, Collected, collect};
pub use self::files::{BadFiles, FileContents, Files, MAX_BYTES, Unreadable};
pub use self::resolve::resolve;

/// The maximum number of platforms in one order.
pub const MAX_PLATFORMS: usize = 32;

/// The content of one command or request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The entries.
    pub given: Vec<OrderEntry>,
    /// The platforms: at least one, each once.
    pub platforms: Vec<Platform>,
}

/// One entry of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderEntry {
    /// A provider or a module, with selected versions.
    Address {
        /// The selector.
        what: PackageSelector,
        /// The platforms of this entry; if empty, those of the order.
        #[serde(default)]
        platforms: Vec<Platform>,
    },
    /// A `.terraform.lock.hcl`.
    LockFile {
        /// The file's name, for people.
        name: String,
        /// The locked providers.
        locked: Vec<LockedProvider>,
    },
    /// Root directories, with the local modules that they call.
    Configurations(Configurations),
}

/// Configurations in a user's own directories.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configurations {
    /// The files of these directories, and of the local modules that they call.
    pub files: Files,
    /// The folders in which `init` is run; `""` is the top.
    pub roots: Vec<String>,
    /// The client whose rules apply; `None` detects it from each root's files.
    #[serde(default)]
    pub client: Option<ClientKind>,
    /// The part of the roots' lock files in the choice of versions.
    #[serde(default)]
    pub locked_versions: LockedVersions,
}

/// The part of a lock file in the choice of versions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LockedVersions {
    /// A locked version is chosen, as by `init`.
    #[default]
    Kept,
    /// The newest version that the constraints allow is chosen, as by `init -upgrade`.
    Upgraded,
}

labelled_enum! {
    /// A client: the program that reads configurations and uses registries.
    #[derive(Serialize, Deserialize, ValueEnum)]
    #[cfg_attr(test, derive(schemars::JsonSchema))]
    #[serde(rename_all = "snake_case")]
    pub ClientKind {
        /// Terraform, by HashiCorp.
        Terraform "terraform",
        /// OpenTofu.
        #[value(alias = "tofu")]
        Opentofu "opentofu",
    }
}

impl ClientKind {
    /// Parses the label, which is the client in options and orders, or the name of the program.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|client| client.label() == text || client.program() == text)
    }

    /// The clients on the `PATH`, or both where neither is installed.
    pub fn installed(environment: &Environment) -> Vec<Self> {
        let folders: Vec<PathBuf> =
            environment.get("PATH").map(|path| std::env::split_paths(path).collect()).unwrap_or_default();
        let is_installed = |client: &Self| folders.iter().any(|folder| folder.join(client.program()).is_file());
        let installed: Vec<Self> = Self::ALL.into_iter().filter(is_installed).collect();
        if installed.is_empty() { Self::ALL.to_vec() } else { installed }
    }

    /// The program's name.
    pub fn program(self) -> &'static str {
        match self {
            Self::Terraform => "terraform",
            Self::Opentofu => "tofu",
        }
    }

    /// The registry of an address without a host.
    pub fn default_host(self) -> &'static str {
        match self {
            Self::Terraform => TERRAFORM_REGISTRY,
            Self::Opentofu => OPENTOFU_REGISTRY,
        }
    }
}

impl Order {
    /// Builds an order. Without platforms, the order is for this machine's platform.
    ///
    /// # Errors
    /// The order is empty, or exceeds the limit of platforms.
    pub fn new(given: Vec<OrderEntry>, mut platforms: Vec<Platform>) -> Result<Self, Vec<String>> {
        if platforms.is_empty() {
            platforms.push(Platform::of_this_machine());
        }
        platforms.sort();
        platforms.dedup();
        let mut problems = Vec::new();
        if given.is_empty() {
            problems.push("no address, lock file or folder is named".to_owned());
        }
        if platforms.len() > MAX_PLATFORMS {
            problems.push(format!("{} platforms are named; the maximum is {MAX_PLATFORMS}", platforms.len()));
        }
        if problems.is_empty() { Ok(Self { given, platforms }) } else { Err(problems) }
    }
}

impl Configurations {
    /// Builds configurations with these roots. Without roots, every folder with a configuration that no other folder calls
    /// as a local module, or that has a lock file, is a root.
    ///
    /// # Errors
    /// There are no files, or a root has no files.
    pub fn new(mut files: Files, roots: Vec<String>, client: Option<ClientKind>) -> Result<Self, String> {
        keep_deciding_values(&mut files);
        if files.is_empty() {
            return Err("there is no file that a client reads: .tf, .tofu, .tf.json or .tofu.json".to_owned());
        }
        let folders = files.folders();
        if let Some(empty_root) = roots.iter().find(|root| !folders.contains(&root.as_str())) {
            return Err(format!("there is no file that a client reads in {empty_root:?}"));
        }
        Ok(Self { files, roots, client, locked_versions: LockedVersions::Kept })
    }
}

/// Access to versions and module files.
pub trait Registries: Sync {
    /// The reason why an item is unavailable.
    type Error: Display + Send;

    /// The versions of a provider or module that larder lists for clients.
    fn versions(&self, address: &Address) -> impl Future<Output = Result<Vec<Version>, Self::Error>> + Send;

    /// The versions in upstream's cached list, where larder lists fewer for clients. `None` if it lists all.
    fn upstream_versions(
        &self,
        _: &Address,
    ) -> impl Future<Output = Result<Option<UpstreamVersions>, Self::Error>> + Send {
        async { Ok(None) }
    }

    /// Why upstream's list does not name a version that upstream has, if that is so. Used only if that version is asked for.
    fn late_version(&self, _: &Address, _: &Version) -> impl Future<Output = Option<String>> + Send {
        async { None }
    }

    /// The files of one module version that a client reads.
    fn module_files(&self, package: &ModulePackage) -> impl Future<Output = Result<ModuleFiles, Self::Error>> + Send;
}

/// Upstream's versions, of which larder lists fewer for clients.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpstreamVersions {
    /// The versions that larder lists, or would list if they were stored.
    pub permitted: Vec<Version>,
    /// The versions that a policy hides.
    pub hidden: Vec<Version>,
    /// Platforms for which a version must be stored before larder lists it.
    pub platforms: Vec<Platform>,
}

/// The files in a module's archive.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModuleFiles {
    /// All files of the module that a client reads.
    pub files: Files,
    /// The module's folder in the archive, as the registry names it; `""` is the top.
    pub subdir: String,
}

/// The result of resolving an order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResolvedRequirements {
    /// Required archives, each once, in order of address.
    pub archives: Vec<RequiredArchive>,
    /// The items that no registry provides, with reasons.
    pub unavailable: Vec<UnavailableItem>,
    /// Sentences about choices that the files leave open, for people.
    pub notes: Vec<String>,
    /// The roots of the configurations.
    pub roots: Vec<ResolvedRoot>,
}

/// A folder in which `init` runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedRoot {
    /// The folder in the order's files; `""` is the top.
    pub folder: String,
    /// The client whose rules apply.
    pub client: ClientKind,
    /// The entries of its lock file, as the client reads them; `None` without such a file.
    pub locked: Option<Vec<LockedProvider>>,
    /// The version of each required provider, where one could be chosen.
    pub providers: Vec<ChosenProvider>,
    /// The items that no registry provides, with reasons. With any, `init` fails here.
    pub unavailable: Vec<UnavailableItem>,
}

impl ResolvedRoot {
    /// The path of its lock file, which may not exist.
    pub fn lock_file(&self) -> String {
        disk::lock_file_of(&self.folder)
    }
}

/// A required provider with the version that `init` chooses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChosenProvider {
    /// The provider.
    pub provider: ProviderAddress,
    /// The version.
    pub version: Version,
    /// The constraints of all modules together.
    pub constraint: Constraint,
}

/// One archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequiredArchive {
    /// The artifact.
    pub artifact: Artifact,
    /// The accepted hashes of each lock file that lists any. The archive must match each list; without lists, any
    /// archive is accepted.
    pub hashes: Vec<Vec<String>>,
    /// The requirements that name it: an address as given, a lock file, or a file with its line.
    pub required_by: Vec<String>,
}

/// An item that no registry provides.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UnavailableItem {
    /// The name of the item: a source as written, an address, or a file.
    pub subject: String,
    /// The reason and the remedy.
    #[serde(rename = "why")]
    pub reason: String,
    /// The requirements that name it: a file with its line.
    #[serde(rename = "by", default, skip_serializing_if = "Vec::is_empty")]
    pub required_by: Vec<String>,
}
