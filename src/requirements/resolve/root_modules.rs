//! The roots of an order, and the client of each.

use std::collections::BTreeSet;

use super::super::configuration::{
    self, FolderRole, Inputs, ModuleSource, TEST_FOLDER, is_configuration, is_for_opentofu_only, is_test,
};
use super::super::request::ClientKind;
use super::super::{Configurations, Files, Unreadable, lock_file, path};
use super::resolution_result::ResolutionResult;

/// The most roots of one order.
const MAX_ROOTS: usize = 512;
/// The registry in OpenTofu's lock files.
const OPENTOFU: &str = "registry.opentofu.org";
/// A client's lock file.
pub(super) const LOCK_FILE: &str = ".terraform.lock.hcl";

/// A root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Root {
    /// Its path.
    pub(super) folder: String,
    /// Its client.
    pub(super) client: ClientKind,
}

/// The named roots; without any, the folders with a configuration that no other calls.
pub(super) fn of(configurations: &Configurations, found: &mut ResolutionResult) -> Vec<Root> {
    let Configurations { files, roots, client } = configurations;
    let folders: BTreeSet<String> = match roots.as_slice() {
        [] => uncalled(files).into_iter().collect(),
        named => named.iter().cloned().collect(),
    };
    let root = |folder: String| Root { client: client.unwrap_or_else(|| client_of(files, &folder)), folder };
    let mut roots: Vec<Root> = folders.into_iter().map(root).collect();
    if roots.is_empty() {
        let reason = "each of the folders is called as a module by another: name those that init is run in";
        found.add_unavailable("the configuration", reason, []);
    }
    if roots.len() > MAX_ROOTS {
        let reason = format!(
            "there are {} folders in which init would run, and at most {MAX_ROOTS} can be resolved at once: name fewer",
            roots.len()
        );
        found.add_unavailable("the configuration", reason, []);
        roots.truncate(MAX_ROOTS);
    }
    roots
}

/// The folders with a configuration that no other calls. The calls of tests count, and a folder of tests is not a root.
pub(in super::super) fn uncalled(files: &Files) -> Vec<String> {
    let has = |folder: &str, is: fn(&str) -> bool| files.in_folder(folder).iter().any(|(name, _)| is(name));
    let has_configuration = |folder: &str| has(folder, is_configuration);
    let is_of_tests = |folder: &str| {
        let (above, name) = folder.rsplit_once('/').unwrap_or(("", folder));
        name == TEST_FOLDER && has(folder, is_test) && has_configuration(above)
    };
    let folders: Vec<&str> = files.folders().into_iter().filter(|folder| has_configuration(folder)).collect();
    let mut called = BTreeSet::new();
    for folder in &folders {
        let module = configuration::read(files, folder, FolderRole::Root, client_of(files, folder), "", &Inputs::new());
        for call in module.calls {
            let ModuleSource::Local(to) = call.source else { continue };
            called.extend(path::join(folder, &to).filter(|to| to != folder));
        }
    }
    let uncalled = folders.into_iter().filter(|folder| !called.contains(*folder) && !is_of_tests(folder));
    uncalled.map(str::to_owned).collect()
}

/// OpenTofu if it alone reads one of the files or wrote the lock file; else Terraform.
fn client_of(files: &Files, folder: &str) -> ClientKind {
    let is_opentofus = |(name, text): &(&str, Result<&str, Unreadable>)| match *name {
        LOCK_FILE => lock_file::parse(text.unwrap_or_default().as_bytes())
            .is_ok_and(|locked| locked.iter().any(|one| one.provider.host.as_str() == OPENTOFU)),
        name => is_for_opentofu_only(name),
    };
    if files.in_folder(folder).iter().any(is_opentofus) { ClientKind::Opentofu } else { ClientKind::Terraform }
}
