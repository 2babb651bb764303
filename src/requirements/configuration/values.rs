//! Values of a root's variables, from files beside it and from the command line.

use std::collections::BTreeSet;

use super::super::ClientKind;
use super::super::Files;
use super::super::files::{child_path, is_values_file};
use super::ModuleRole;
use super::block::Parsed;
use super::expression::{Constant, Inputs};

/// Values from the command line: they override those of files beside a root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GivenValues(Inputs);

impl GivenValues {
    /// Adds the values of a file, as `-var-file` reads it; `name` selects the syntax.
    ///
    /// # Errors
    /// The reason, with its line.
    pub fn add_file(&mut self, name: &str, text: &str) -> Result<(), String> {
        let parsed = Parsed::read(name, text).map_err(|bad| bad.to_string())?;
        self.0.extend(values_of(&parsed));
        Ok(())
    }

    /// Adds `NAME=VALUE`, as `-var` reads it: a list or an object in HCL, anything else literally.
    ///
    /// # Errors
    /// The reason.
    pub fn add(&mut self, argument: &str) -> Result<(), String> {
        let (name, value) = argument.split_once('=').ok_or_else(|| format!("{argument:?} is not NAME=VALUE"))?;
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Err(format!("{name:?} is not a variable name"));
        }
        let value = match value.trim_start().starts_with(['[', '{']) {
            false => Constant::Text(value.to_owned()),
            true => {
                let text = format!("value = {value}\n");
                let parsed = Parsed::read("", &text).map_err(|bad| format!("{name}: {bad}"))?;
                values_of(&parsed).remove("value").unwrap_or(Constant::Null)
            }
        };
        self.0.insert(name.to_owned(), value);
        Ok(())
    }

    /// A file with the same values, which clients read after all others beside a root.
    pub(in super::super) fn as_file(&self) -> Option<(String, Vec<u8>)> {
        Some((LAST_VALUES.to_owned(), json_file(&self.0)?.into_bytes()))
    }
}

fn values_of(parsed: &Parsed<'_>) -> Inputs {
    let attributes = parsed.body().attributes().into_iter();
    attributes.map(|(name, attribute)| (name, attribute.value.formula().constant())).collect()
}

/// A values file whose name sorts after users' files, so that its values win.
const LAST_VALUES: &str = "~.auto.tfvars.json";

/// The values file that replaces all others of a folder.
const MERGED_VALUES: &str = "terraform.tfvars.json";

/// The values of a root's variables in the clients' order: the last file wins, then the command line. The client's own
/// command line and environment are unknown here.
pub(super) fn values_of_root(files: &Files, folder: &str) -> Inputs {
    let mut inputs = Inputs::new();
    for (name, text) in values_files(files, folder) {
        // The client reports an unreadable file; the values of the other files still count.
        let Ok(parsed) = Parsed::read(name, text) else { continue };
        inputs.extend(values_of(&parsed));
    }
    inputs
}

/// The readable values files of a folder in the clients' order: `terraform.tfvars`, `terraform.tfvars.json`, and then all
/// `*.auto.tfvars` and `*.auto.tfvars.json` by their names.
fn values_files<'a>(files: &'a Files, folder: &str) -> Vec<(&'a str, &'a str)> {
    let values_files = files.in_folder(folder).into_iter().filter(|(name, _)| is_values_file(name));
    let mut readable: Vec<_> = values_files.filter_map(|(name, text)| Some((name, text.ok()?))).collect();
    let rank = |name: &str| match name {
        "terraform.tfvars" => 0,
        "terraform.tfvars.json" => 1,
        _ => 2,
    };
    readable.sort_by_key(|(name, _)| (rank(name), *name));
    readable
}

/// Drops all values except those that decide which modules are called, and merges them into one file per folder. The
/// others may be secrets and are not needed.
pub(in super::super) fn keep_deciding_values(files: &mut Files) {
    let folders: Vec<String> = files.folders().into_iter().map(str::to_owned).collect();
    for folder in folders {
        let names: Vec<String> = values_files(files, &folder).into_iter().map(|(name, _)| name.to_owned()).collect();
        if names.is_empty() {
            continue;
        }
        let deciding: BTreeSet<String> = [ClientKind::Terraform, ClientKind::Opentofu]
            .into_iter()
            .flat_map(|client| {
                super::read(files, &folder, ModuleRole::Root, client, super::NO_PACKAGE, &Inputs::new()).inputs
            })
            .collect();
        let mut values = values_of_root(files, &folder);
        values.retain(|name, _| deciding.contains(name));
        names.iter().for_each(|name| files.remove(&child_path(&folder, name)));
        if let Some(text) = json_file(&values) {
            // The merged file is smaller than the files it replaces, so it exceeds no limit.
            let _ = files.insert(&child_path(&folder, MERGED_VALUES), text.as_bytes());
        }
    }
}

/// A JSON file of values; `None` without values.
fn json_file(values: &Inputs) -> Option<String> {
    let members: serde_json::Map<_, _> = values.iter().map(|(name, value)| (name.clone(), as_json(value))).collect();
    (!members.is_empty()).then(|| serde_json::Value::Object(members).to_string())
}

/// A value as JSON. Unknown values become null: neither can be a source.
fn as_json(value: &Constant) -> serde_json::Value {
    match value {
        Constant::Null | Constant::Unknown(_) => serde_json::Value::Null,
        Constant::Text(text) => text.clone().into(),
        Constant::List(parts) => parts.iter().map(as_json).collect(),
        Constant::Object(members) => {
            members.iter().map(|(name, value)| (name.clone(), as_json(value))).collect::<serde_json::Map<_, _>>().into()
        }
    }
}
