//! Where each client looks for its CLI configuration (PROTOCOL 1.3).

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// The environment variables of a client.
pub type Environment = BTreeMap<String, String>;

/// A program that uses registries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientProgram {
    /// HashiCorp's.
    Terraform,
    /// OpenTofu.
    Tofu,
}

impl ClientProgram {
    /// Both programs.
    pub const ALL: [Self; 2] = [Self::Terraform, Self::Tofu];

    /// The program's name.
    pub fn program(self) -> &'static str {
        match self {
            Self::Terraform => "terraform",
            Self::Tofu => "tofu",
        }
    }

    /// The registry of an address without a host.
    pub fn default_host(self) -> &'static str {
        match self {
            Self::Terraform => "registry.terraform.io",
            Self::Tofu => "registry.opentofu.org",
        }
    }
}

impl fmt::Display for ClientProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.program())
    }
}

/// The search paths of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchPaths {
    /// The main file; it may be absent.
    pub file: Option<PathBuf>,
    /// The variable that names the file: then no other file is read, and the file must exist.
    pub named_by: Option<&'static str>,
    /// The folder of further `*.tfrc` and `*.tfrc.json` files.
    pub folder: Option<PathBuf>,
}

impl SearchPaths {
    /// The search paths of `client` in this environment; `is_there` checks the disk.
    pub fn of(client: ClientProgram, environment: &Environment, is_there: &dyn Fn(&Path) -> bool) -> Self {
        let set = |name: &str| environment.get(name).filter(|value| !value.is_empty());
        for name in ["TF_CLI_CONFIG_FILE", "TERRAFORM_CONFIG"] {
            if let Some(file) = set(name) {
                return Self { file: Some(PathBuf::from(file)), named_by: Some(name), folder: None };
            }
        }
        let Some(home) = set("HOME").map(PathBuf::from) else {
            return Self { file: None, named_by: None, folder: None };
        };
        let (file, folder) = (home.join(".terraformrc"), home.join(".terraform.d"));
        let (file, folder) = match client {
            ClientProgram::Terraform => (file, folder),
            ClientProgram::Tofu => {
                let own = home.join(".tofurc");
                let xdg = set("XDG_CONFIG_HOME").map(|folder| Path::new(folder).join("opentofu"));
                let file = match &xdg {
                    _ if is_there(&own) => own,
                    _ if is_there(&file) => file,
                    Some(xdg) => xdg.join("tofurc"),
                    None => own,
                };
                (file, xdg.filter(|_| !is_there(&folder)).unwrap_or(folder))
            }
        };
        Self { file: Some(file), named_by: None, folder: Some(folder) }
    }

    /// Returns true if a file of the folder is read.
    pub fn is_read(name: &str) -> bool {
        name.ends_with(".tfrc") || name.ends_with(".tfrc.json")
    }
}
