//! Where each client looks for its CLI configuration (PROTOCOL, section 1.3).

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// The environment variables of a client.
pub type Environment = BTreeMap<String, String>;

/// A program that uses registries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientProgram {
    /// Terraform, by HashiCorp.
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
    /// The path of the main file, which may not exist.
    pub file: Option<PathBuf>,
    /// The environment variable that names the file. With it, the file must exist, and no other file is read.
    pub named_by: Option<&'static str>,
    /// The folder of further `*.tfrc` and `*.tfrc.json` files.
    pub folder: Option<PathBuf>,
}

impl SearchPaths {
    /// The search paths of `client` in this environment; `exists` checks the disk.
    pub fn of(client: ClientProgram, environment: &Environment, exists: &dyn Fn(&Path) -> bool) -> Self {
        let value_of = |name: &str| environment.get(name).filter(|value| !value.is_empty());
        for name in ["TF_CLI_CONFIG_FILE", "TERRAFORM_CONFIG"] {
            if let Some(file) = value_of(name) {
                return Self { file: Some(PathBuf::from(file)), named_by: Some(name), folder: None };
            }
        }
        let Some(home) = value_of("HOME").map(PathBuf::from) else {
            return Self { file: None, named_by: None, folder: None };
        };
        let (file, folder) = (home.join(".terraformrc"), home.join(".terraform.d"));
        let (file, folder) = match client {
            ClientProgram::Terraform => (file, folder),
            ClientProgram::Tofu => {
                let tofurc = home.join(".tofurc");
                let xdg = value_of("XDG_CONFIG_HOME").map(|folder| Path::new(folder).join("opentofu"));
                let file = match &xdg {
                    _ if exists(&tofurc) => tofurc,
                    _ if exists(&file) => file,
                    Some(xdg) => xdg.join("tofurc"),
                    None => tofurc,
                };
                (file, xdg.filter(|_| !exists(&folder)).unwrap_or(folder))
            }
        };
        Self { file: Some(file), named_by: None, folder: Some(folder) }
    }

    /// Returns true if clients read a file with this name in the folder.
    pub fn is_read(name: &str) -> bool {
        name.ends_with(".tfrc") || name.ends_with(".tfrc.json")
    }
}
