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
pub(super) use self::provider::checked;
pub(super) use self::source::{ModuleSource, without_secrets};
pub use self::values::GivenValues;
pub(super) use self::values::keep_deciding_values as forget_other_values;
use super::Files;
use super::request::ClientKind;
use crate::address::{Constraint, ModuleConstraint, ProviderAddress};

/// The requirements of a folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Module {
    /// The called modules.
    pub(super) calls: Vec<ModuleCall>,
    /// The required providers: one entry for each place.
    pub(super) needs: Vec<ProviderRequirement>,
    /// The variables whose values decide which modules it calls.
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
    /// Its subject: a source as written, a file.
    pub(super) subject: String,
    /// The problem, and the remedy.
    pub(super) reason: String,
    /// The location.
    pub(super) location: SourceLine,
}

/// A line of a file, from 1.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SourceLine {
    /// Its path, with the module for a file of a module.
    pub(super) file: String,
    /// Its line.
    pub(super) line: usize,
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// Role of a folder for its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum FolderRole {
    /// A root, where `init` runs: its tests are read too.
    Root,
    /// A called module.
    Called,
}

/// Reads a folder. `within` names the package that the files are of, for people; it is empty for a user's own. `inputs`
/// are the values that its variables are given where it is called; those of a root stand in files beside it.
pub(super) fn read(
    files: &Files,
    folder: &str,
    role: FolderRole,
    client: ClientKind,
    within: &str,
    inputs: &Inputs,
) -> Module {
    let read = file_selection::in_folder(files, folder, role, client);
    let mut declared = declarations::Declarations::default();
    for file in read {
        let shown = format!("{within}{}", file.path);
        if declared.is_too_much() {
            let reason = "too much is declared in the files before it: larder does not read it".to_owned();
            declared.problem(Problem { subject: shown.clone(), reason, location: SourceLine { file: shown, line: 1 } });
            continue;
        }
        let parsed = file
            .text
            .map_err(|reason| (reason.to_string(), 1))
            .and_then(|text| block::Parsed::read(&file.path, text).map_err(|bad| (bad.to_string(), bad.line())));
        match parsed {
            Ok(parsed) => declared.add(&parsed.body(), file.kind, &shown),
            Err((reason, line)) => declared.problem(Problem {
                subject: shown.clone(),
                reason: format!("{reason}: larder does not read it"),
                location: SourceLine { file: shown, line },
            }),
        }
    }
    match role {
        FolderRole::Root => module::of(declared, role, client, &values::of_root(files, folder)),
        FolderRole::Called => module::of(declared, role, client, inputs),
    }
}
