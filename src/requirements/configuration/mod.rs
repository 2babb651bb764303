//! The modules and providers that one configuration folder needs, as the clients read it: its files and override files,
//! in both syntaxes. A problem in one place hides nothing elsewhere.

mod block;
mod declarations;
mod expression;
mod file_selection;
mod json;
mod module;
mod provider;
mod required_version;
mod source;
#[cfg(test)]
mod tests;
mod values;

use std::collections::BTreeSet;
use std::fmt;

pub(super) use self::expression::Inputs;
pub(super) use self::file_selection::{TEST_FOLDER, is_configuration, is_for_opentofu_only, is_test};
pub(super) use self::provider::check_name;
pub(super) use self::source::{ModuleSource, without_secrets};
pub use self::values::GivenValues;
pub(super) use self::values::keep_deciding_values;
use super::Files;
use super::request::ClientKind;
use crate::address::{Constraint, ModuleConstraint, ProviderAddress};

/// The requirements of a folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Module {
    /// The called modules.
    pub(super) calls: Vec<ModuleCall>,
    /// The required providers: one entry for each location.
    pub(super) provider_requirements: Vec<ProviderRequirement>,
    /// The variables whose values decide which modules the folder calls.
    pub(super) inputs: BTreeSet<String>,
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
    pub(super) inputs: Inputs,
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
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SourceLine {
    /// The path of the file; for a file of a registry module, after the module's name.
    pub(super) file: String,
    /// The number of the line.
    pub(super) line: usize,
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
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

/// Reads the module in a folder. `package_prefix` precedes the paths of files in problems and locations. `inputs` are the
/// values that a caller gives to the variables of a child module; a root has its values in files.
pub(super) fn read(
    files: &Files,
    folder: &str,
    role: ModuleRole,
    client: ClientKind,
    package_prefix: &str,
    inputs: &Inputs,
) -> Module {
    let selected = file_selection::in_folder(files, folder, role, client);
    let mut declarations = declarations::Declarations::default();
    for file in selected {
        let shown = format!("{package_prefix}{}", file.path);
        if declarations.exceed_limit() {
            let reason = "the files before this one declare too much: larder does not read this file".to_owned();
            declarations.add_problem(Problem {
                subject: shown.clone(),
                reason,
                location: SourceLine { file: shown, line: 1 },
            });
            continue;
        }
        let parsed = file
            .text
            .map_err(|reason| (reason.to_string(), 1))
            .and_then(|text| block::Parsed::read(&file.path, text).map_err(|bad| (bad.to_string(), bad.line())));
        match parsed {
            Ok(parsed) => declarations.add(&parsed.body(), file.role, &shown),
            Err((reason, line)) => declarations.add_problem(Problem {
                subject: shown.clone(),
                reason: format!("{reason}: larder does not read this file"),
                location: SourceLine { file: shown, line },
            }),
        }
    }
    match role {
        ModuleRole::Root => module::interpret(declarations, role, client, &values::values_of_root(files, folder)),
        ModuleRole::Child => module::interpret(declarations, role, client, inputs),
    }
}
