//! The modules and providers that one configuration folder needs, as the clients read it: its files and override files,
//! in both syntaxes, and for a root the values of its variables, from files beside it and from the command line. A problem
//! in one place hides nothing elsewhere.

mod block;
mod expression;
mod module;
mod source;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use derive_more::Display;

use self::block::Parsed;
use self::expression::Constant;
pub(super) use self::expression::VariableValues;
use self::module::Declarations;
pub(super) use self::source::{ModuleSource, parse_address, without_secrets};
use super::ClientKind;
use super::files::{child_path, is_values_file};
use super::{Files, Unreadable};
use crate::address::{Constraint, ModuleConstraint, ProviderAddress};

/// The requirements of a folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Module {
    /// The called modules.
    pub(super) calls: Vec<ModuleCall>,
    /// The required providers: one entry for each location.
    pub(super) provider_requirements: Vec<ProviderRequirement>,
    /// The variables whose values decide which modules the folder calls.
    pub(super) deciding_variables: BTreeSet<String>,
    /// Problems, and unreadable parts.
    pub(super) problems: Vec<Problem>,
}

/// One call of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ModuleCall {
    /// The source.
    pub(super) source: ModuleSource,
    /// The constraint; only for a registry.
    pub(super) versions: ModuleConstraint,
    /// Values for the module's variables.
    pub(super) arguments: VariableValues,
    /// The location.
    pub(super) location: SourceLine,
}

/// A required provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProviderRequirement {
    /// The provider.
    pub(super) provider: ProviderAddress,
    /// Its version constraint, where given.
    pub(super) versions: Option<Constraint>,
    /// The location.
    pub(super) location: SourceLine,
}

/// A configuration problem that clients would refuse, or that cannot be decided here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    /// The source as written, the block or the file with the problem.
    pub(super) subject: String,
    /// The problem, and the remedy.
    pub(super) reason: String,
    /// The location.
    pub(super) location: SourceLine,
}

/// A line of a file, from 1.
#[derive(Debug, Display, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[display("{file}:{line}")]
pub(super) struct SourceLine {
    /// The path of the file; for a file of a registry module, after the module's name.
    pub(super) file: Arc<str>,
    /// The number of the line.
    pub(super) line: usize,
}

/// Role of a module in a configuration, as the clients call it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum ModuleRole {
    /// The root module, where `init` runs: its test files are read too.
    Root,
    /// A module that another one calls.
    Child,
}

/// The `package_prefix` of a user's own files, which are in no package.
pub(super) const NO_PACKAGE: &str = "";

/// Reads the module in a folder. `package_prefix` precedes the paths of files in problems and locations. `values` are those
/// values that a caller gives to the variables of a child module; a root has its values in files.
pub(super) fn read(
    files: &Files,
    folder: &str,
    role: ModuleRole,
    client: ClientKind,
    package_prefix: &str,
    values: &VariableValues,
) -> Module {
    let (mut declarations, mut problems) = (Declarations::default(), Vec::new());
    for file in in_folder(files, folder, role, client) {
        let shown = format!("{package_prefix}{}", file.path);
        let parsed = match file.text {
            _ if declarations.exceed_limit() => Err(("the files before this one declare too much".to_owned(), 1)),
            Err(unreadable) => Err((unreadable.to_string(), 1)),
            Ok(text) => Parsed::read(&shown, text).map_err(|bad| (bad.to_string(), bad.line())),
        };
        match parsed {
            Ok(parsed) => declarations.add(parsed.body(), file.role),
            Err((reason, line)) => problems.push(Problem {
                location: SourceLine { file: shown.as_str().into(), line },
                subject: shown,
                reason: format!("{reason}: larder does not read this file"),
            }),
        }
    }
    let values_of_root = (role == ModuleRole::Root).then(|| values_of_root(files, folder));
    let mut module = module::interpret(&declarations, role, client, values_of_root.as_ref().unwrap_or(values));
    module.problems.extend(problems);
    module.problems.sort_by(|a, b| a.location.cmp(&b.location));
    module
}

/// A file that is read.
struct SelectedFile<'a> {
    /// The path of the file.
    path: String,
    /// The text of the file.
    text: Result<&'a str, Unreadable>,
    /// The role of the file in its folder.
    role: FileRole,
}

/// Role of a file in its folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum FileRole {
    /// A primary file.
    Primary,
    /// An override file; read after all primary ones.
    Override,
    /// A test file.
    Test,
}

/// Endings of configuration files, `(OpenTofu, Terraform)`. For OpenTofu, a file with its own ending replaces the other.
const CONFIGURATION: [(&str, &str); 2] = [(".tofu", ".tf"), (".tofu.json", ".tf.json")];
/// Endings of test files, `(OpenTofu, Terraform)`.
const TESTS: [(&str, &str); 2] = [(".tofutest.hcl", ".tftest.hcl"), (".tofutest.json", ".tftest.json")];
/// The second folder of tests, besides the root itself.
pub(super) const TEST_FOLDER: &str = "tests";

/// Returns true for configuration files of any client: no tests, no lock files.
pub(super) fn is_configuration(name: &str) -> bool {
    CONFIGURATION.iter().any(|(tofu, terraform)| name.ends_with(tofu) || name.ends_with(terraform))
}

/// Returns true for test files of any client.
pub(super) fn is_test(name: &str) -> bool {
    TESTS.iter().any(|(tofu, terraform)| name.ends_with(tofu) || name.ends_with(terraform))
}

/// Returns true for files that only OpenTofu reads.
pub(super) fn is_for_opentofu_only(name: &str) -> bool {
    CONFIGURATION.iter().any(|(tofu, _)| name.ends_with(tofu))
}

/// The files of a folder that a client reads, in order.
fn in_folder<'a>(files: &'a Files, folder: &str, role: ModuleRole, client: ClientKind) -> Vec<SelectedFile<'a>> {
    let mut selected = Vec::new();
    select(&mut selected, files, folder, &CONFIGURATION, client);
    if role == ModuleRole::Root {
        select(&mut selected, files, folder, &TESTS, client);
        select(&mut selected, files, &child_path(folder, TEST_FOLDER), &TESTS, client);
    }
    selected.sort_by(|a, b| (a.role, &a.path).cmp(&(b.role, &b.path)));
    selected
}

/// Adds the files of a folder that have one of these endings and that the client reads.
fn select<'a>(
    selected: &mut Vec<SelectedFile<'a>>,
    files: &'a Files,
    folder: &str,
    endings: &[(&str, &str)],
    client: ClientKind,
) {
    for (name, text) in files.in_folder(folder) {
        let stem_if_read = |(tofu, terraform): &(&str, &str)| {
            if let Some(stem) = name.strip_suffix(tofu) {
                return (client == ClientKind::Opentofu).then(|| stem.to_owned());
            }
            let stem = name.strip_suffix(terraform)?;
            let replacement = child_path(folder, &format!("{stem}{tofu}"));
            let is_replaced = client == ClientKind::Opentofu && files.get(&replacement).is_some();
            (!is_replaced).then(|| stem.to_owned())
        };
        let Some(stem) = endings.iter().find_map(stem_if_read) else { continue };
        let role = match () {
            () if endings == TESTS => FileRole::Test,
            () if stem == "override" || stem.ends_with("_override") => FileRole::Override,
            () => FileRole::Primary,
        };
        selected.push(SelectedFile { path: child_path(folder, name), text, role });
    }
}

/// Values of variables from the command line (`--var`, `--var-file`): they override those of files beside a root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommandLineValues(VariableValues);

impl CommandLineValues {
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
    pub(super) fn as_file(&self) -> Option<(String, Vec<u8>)> {
        Some((LAST_VALUES.to_owned(), json_file(&self.0)?.into_bytes()))
    }
}

fn values_of(parsed: &Parsed<'_>) -> VariableValues {
    let attributes = parsed.body().attributes().into_iter();
    attributes.map(|(name, attribute)| (name, attribute.value.text().constant())).collect()
}

/// A values file whose name sorts after users' files, so that its values win.
const LAST_VALUES: &str = "~.auto.tfvars.json";

/// The values file that replaces all others of a folder.
const MERGED_VALUES: &str = "terraform.tfvars.json";

/// The values of a root's variables in the clients' order: the last file wins, then the command line. The client's own
/// command line and environment are unknown here.
fn values_of_root(files: &Files, folder: &str) -> VariableValues {
    let mut values = VariableValues::new();
    for (name, text) in values_files(files, folder) {
        // The client reports an unreadable file; the values of the other files still count.
        let Ok(parsed) = Parsed::read(name, text) else { continue };
        values.extend(values_of(&parsed));
    }
    values
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
pub(super) fn keep_deciding_values(files: &mut Files) {
    let folders: Vec<String> = files.folders().into_iter().map(str::to_owned).collect();
    for folder in folders {
        let names: Vec<String> = values_files(files, &folder).into_iter().map(|(name, _)| name.to_owned()).collect();
        if names.is_empty() {
            continue;
        }
        let deciding_for = |client| {
            read(files, &folder, ModuleRole::Root, client, NO_PACKAGE, &VariableValues::new()).deciding_variables
        };
        let deciding: BTreeSet<String> = ClientKind::ALL.into_iter().flat_map(deciding_for).collect();
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
fn json_file(values: &VariableValues) -> Option<String> {
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
