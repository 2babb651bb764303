//! Orders: addresses with constraints, lock files, and configuration files. `resolve` computes their requirements.

use serde::{Deserialize, Serialize};

use super::Files;
use super::configuration::forget_other_values;
use super::lock_file::LockedProvider;
use crate::address::{PackageSelector, Platform};

/// The most platforms of one order.
pub const MAX_PLATFORMS: usize = 32;

/// Everything that one command or one request is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The entries.
    pub given: Vec<OrderEntry>,
    /// For which platforms; never none, and each once.
    pub platforms: Vec<Platform>,
}

/// One entry of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderEntry {
    /// A provider or a module, and which of its versions.
    Address {
        /// Which.
        what: PackageSelector,
        /// For which platforms; those of the order where none is named.
        #[serde(default)]
        platforms: Vec<Platform>,
    },
    /// A `.terraform.lock.hcl`.
    LockFile {
        /// Its name, for people.
        name: String,
        /// Its providers.
        locked: Vec<LockedProvider>,
    },
    /// Root directories, with the local modules that they call.
    Configurations(Configurations),
}

/// Users' own directories.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configurations {
    /// Their files, and those of the local modules that they call.
    pub files: Files,
    /// The folders in which `init` is run; `""` is the top.
    pub roots: Vec<String>,
    /// The client whose rules apply; without it each root decides by its files.
    #[serde(default)]
    pub client: Option<ClientKind>,
}

/// A client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientKind {
    /// HashiCorp's.
    Terraform,
    /// OpenTofu.
    Opentofu,
}

impl Order {
    /// An order for these platforms; for this machine's where none is named.
    ///
    /// # Errors
    /// It is about nothing, or for more platforms than one may be.
    pub fn new(given: Vec<OrderEntry>, mut platforms: Vec<Platform>) -> Result<Self, Vec<String>> {
        if platforms.is_empty() {
            platforms.push(Platform::of_this_machine());
        }
        platforms.sort();
        platforms.dedup();
        let mut problems = Vec::new();
        if given.is_empty() {
            problems.push("nothing is named".to_owned());
        }
        if platforms.len() > MAX_PLATFORMS {
            problems.push(format!("{} platforms are named; at most {MAX_PLATFORMS} can be", platforms.len()));
        }
        if problems.is_empty() { Ok(Self { given, platforms }) } else { Err(problems) }
    }
}

impl Configurations {
    /// Configurations with these roots; where none is named, every folder that has a configuration and that no other
    /// calls as a local module.
    ///
    /// # Errors
    /// There are no files, or a root has none.
    pub fn new(mut files: Files, roots: Vec<String>, client: Option<ClientKind>) -> Result<Self, String> {
        forget_other_values(&mut files);
        if files.is_empty() {
            return Err("there is no file that a client reads: .tf, .tofu, .tf.json or .tofu.json".to_owned());
        }
        let folders = files.folders();
        if let Some(none) = roots.iter().find(|root| !folders.contains(&root.as_str())) {
            return Err(format!("there is no file that a client reads in {none:?}"));
        }
        Ok(Self { files, roots, client })
    }
}
