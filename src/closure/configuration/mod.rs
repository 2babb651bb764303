//! What one folder of a configuration says about modules and providers, as the clients read it: its files and those that
//! override them, in both syntaxes. What is wrong in one place never hides what another says.

mod body;
mod declared;
mod expression;
mod json;
mod module;
mod provider;
mod required_version;
mod source;
#[cfg(test)]
mod tests;
mod values;
mod which;

use std::collections::BTreeSet;
use std::fmt;

pub(super) use self::expression::Inputs;
pub(super) use self::provider::checked;
pub(super) use self::source::{ModuleSource, shown};
pub use self::values::GivenValues;
pub(super) use self::values::forget_others as forget_other_values;
pub(super) use self::which::{TEST_FOLDER, is_configuration, is_for_opentofu_only, is_test};
use super::Files;
use super::order::ClientKind;
use crate::address::{Constraint, ModuleConstraint, ProviderAddress};

/// What a folder says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Module {
    /// The modules it calls.
    pub(super) calls: Vec<ModuleCall>,
    /// The providers it needs: one entry for each place that says something about one.
    pub(super) needs: Vec<Need>,
    /// The variables whose values decide which modules it calls.
    pub(super) inputs: BTreeSet<String>,
    /// What is wrong with it, or could not be read.
    pub(super) problems: Vec<Problem>,
}

/// One call of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ModuleCall {
    /// Where from.
    pub(super) source: ModuleSource,
    /// Which versions; only of a registry's.
    pub(super) versions: ModuleConstraint,
    /// What it gives to the variables of the module.
    pub(super) inputs: Inputs,
    /// Where it stands.
    pub(super) at: SourceLine,
}

/// That a provider is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Need {
    /// Which.
    pub(super) provider: ProviderAddress,
    /// Which of its versions, where that is said.
    pub(super) versions: Option<Constraint>,
    /// Where it stands.
    pub(super) at: SourceLine,
}

/// Something that a client would refuse, or that cannot be told from here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    /// What it is about: a source as it is written, a file.
    pub(super) what: String,
    /// What is wrong, and what to do.
    pub(super) why: String,
    /// Where it stands.
    pub(super) at: SourceLine,
}

/// A line of a file, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SourceLine {
    /// Its path, with the module that it is in where it is no file of the user's.
    pub(super) file: String,
    /// Its line.
    pub(super) line: usize,
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// What a folder is to the client that reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum FolderRole {
    /// The one that `init` is run in: its tests are read too.
    Root,
    /// A module that is called.
    Called,
}

/// Reads a folder. `within` names the package that the files are of, for people; it is empty for a user's own. `inputs`
/// are the values that its variables are given where it is called; those of a root stand in files beside it.
pub(super) fn read(
    files: &Files,
    folder: &str,
    standing: FolderRole,
    client: ClientKind,
    within: &str,
    inputs: &Inputs,
) -> Module {
    let read = which::in_folder(files, folder, standing, client);
    let mut declared = declared::Declared::default();
    for file in read {
        let shown = format!("{within}{}", file.path);
        if declared.is_too_much() {
            let why = "too much is declared in the files before it: larder does not read it".to_owned();
            declared.problem(Problem { what: shown.clone(), why, at: SourceLine { file: shown, line: 1 } });
            continue;
        }
        let parsed = file
            .text
            .map_err(|why| (why.to_string(), 1))
            .and_then(|text| body::Parsed::read(&file.path, text).map_err(|bad| (bad.to_string(), bad.line())));
        match parsed {
            Ok(parsed) => declared.add(&parsed.body(), file.kind, &shown),
            Err((why, line)) => declared.problem(Problem {
                what: shown.clone(),
                why: format!("{why}: larder does not read it"),
                at: SourceLine { file: shown, line },
            }),
        }
    }
    match standing {
        FolderRole::Root => module::of(declared, standing, client, &values::of_root(files, folder)),
        FolderRole::Called => module::of(declared, standing, client, inputs),
    }
}
