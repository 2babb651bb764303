//! Interprets one word of an operator: an address, a file or a folder.

use std::path::Path;

use super::configuration::is_configuration;
use super::file::{self, FolderEntry};
use crate::address::{Hostname, PackageSelector};

/// Meaning of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelKind {
    /// A provider or a module.
    Address,
    /// A `.terraform.lock.hcl`, under any name.
    LockFile,
    /// A folder where `init` runs, or with such folders below it.
    Folder,
    /// A tar of such folders.
    Tar,
    /// The JSON of an order, as larder itself prints it.
    Told,
}

impl LabelKind {
    /// Interprets a word; `path` is its meaning as a path. The spellings `./NAME`, `/NAME` and `NAME/` are paths. A
    /// possible address is one, unless a folder of that name has a configuration.
    ///
    /// # Errors
    /// Nothing is there, or the word is ambiguous; with the remedy.
    pub fn of(given: &str, path: &Path, default_host: &Hostname) -> Result<Self, String> {
        if given.is_empty() {
            return Err("nothing is named".to_owned());
        }
        let is_written_as_path = given.starts_with(['.', '/']) || given.ends_with('/');
        if is_configuration(&path.file_name().unwrap_or_default().to_string_lossy()) && path.is_file() {
            return Err(format!("{given:?} is one file of a configuration: name the folder that it is in"));
        }
        let of_path = || Self::of_path(path).ok_or_else(|| format!("there is no file and no folder {given:?}"));
        if is_written_as_path || Self::by_ending(path).is_some_and(|named| named == Self::LockFile) {
            return of_path();
        }
        match PackageSelector::parse(given, default_host) {
            Ok(_) if path.is_dir() && has_configuration(path) => Err(format!(
                "{given:?} is a folder with a configuration, and could be an address: write \"./{given}\" for the folder, or \"{default_host}/{given}\" for the address"
            )),
            Ok(_) if path.is_dir() => Ok(Self::Address),
            Ok(_) => Ok(Self::of_path(path).unwrap_or(Self::Address)),
            Err(bad) => of_path().map_err(|none| format!("{none}, and: {bad}")),
        }
    }

    /// The kind of an existing path, by its name and type; `None` if it does not exist.
    pub fn of_path(path: &Path) -> Option<Self> {
        match path.metadata().ok()? {
            path if path.is_dir() => Some(Self::Folder),
            _ => Some(Self::by_ending(path).unwrap_or(Self::LockFile)),
        }
    }

    fn by_ending(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "hcl" => Some(Self::LockFile),
            "tar" => Some(Self::Tar),
            "json" => Some(Self::Told),
            _ => None,
        }
    }
}

fn has_configuration(folder: &Path) -> bool {
    let names = file::entries(folder).unwrap_or_default();
    names.iter().any(|(name, entry)| *entry != FolderEntry::Folder && is_configuration(name))
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a user's own files are no part of the store")]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_word_that_could_be_a_folder_and_an_address_is_refused_with_what_to_write() {
        let top = tempfile::tempdir().unwrap();
        fs::create_dir_all(top.path().join("envs/prod")).unwrap();
        fs::create_dir_all(top.path().join("hashicorp/null")).unwrap();
        for file in ["envs/prod/main.tf", "x.tar", "envs/x", ".terraform.lock.hcl"] {
            fs::write(top.path().join(file), "").unwrap();
        }
        let host = Hostname::parse("registry.example").unwrap();
        let named = |given: &str| LabelKind::of(given, &top.path().join(given), &host);
        let refused = named("envs/prod").unwrap_err();
        assert!(refused.contains("\"./envs/prod\"") && refused.contains("registry.example/envs/prod"), "{refused}");
        for (given, is) in [
            ("./envs/prod", LabelKind::Folder),
            ("envs/prod/", LabelKind::Folder),
            ("envs", LabelKind::Folder),
            ("hashicorp/null", LabelKind::Address),
            ("hashicorp/null@~> 3.0", LabelKind::Address),
            ("envs/x", LabelKind::LockFile),
            (".terraform.lock.hcl", LabelKind::LockFile),
            ("x.tar", LabelKind::Tar),
        ] {
            assert_eq!(named(given), Ok(is), "{given}");
        }
        for given in ["./none", "none.tar", "none/", "none"] {
            assert!(named(given).unwrap_err().contains("there is no file and no folder"), "{given}");
        }
        for given in ["./envs/prod/main.tf", "envs/prod/main.tf"] {
            assert!(named(given).unwrap_err().contains("name the folder"), "{given}");
        }
    }
}
