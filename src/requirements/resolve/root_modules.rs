//! The roots of an order, and the client of each.

use std::collections::BTreeSet;

use super::super::configuration::{
    self, Inputs, ModuleRole, ModuleSource, NO_PACKAGE, TEST_FOLDER, is_configuration, is_for_opentofu_only, is_test,
};
use super::super::request::ClientKind;
use super::super::{Configurations, Files, Unreadable, lock_file, path};
use super::resolution_result::ResolutionResult;

/// The most roots of one order.
const MAX_ROOTS: usize = 512;
/// The registry in OpenTofu's lock files.
const OPENTOFU_REGISTRY: &str = "registry.opentofu.org";
/// A client's lock file.
pub(super) const LOCK_FILE: &str = ".terraform.lock.hcl";

/// A root module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Root {
    /// The folder of the root in the order's files; `""` is the top.
    pub(super) folder: String,
    /// The client whose rules apply.
    pub(super) client: ClientKind,
}

/// The roots that the order names; if it names none, the folders with a configuration that no other folder calls.
pub(super) fn find(configurations: &Configurations, result: &mut ResolutionResult) -> Vec<Root> {
    let Configurations { files, roots, client } = configurations;
    let folders: BTreeSet<String> = match roots.as_slice() {
        [] => uncalled_folders(files).into_iter().collect(),
        roots => roots.iter().cloned().collect(),
    };
    let root = |folder: String| Root { client: client.unwrap_or_else(|| client_of(files, &folder)), folder };
    let mut roots: Vec<Root> = folders.into_iter().map(root).collect();
    if roots.is_empty() {
        let reason = "every folder is called as a module by another one: name the folders in which init runs";
        result.add_unavailable("the configuration", reason, []);
    }
    if roots.len() > MAX_ROOTS {
        let reason = format!(
            "there are {} folders in which init would run, and at most {MAX_ROOTS} can be resolved at once: name fewer",
            roots.len()
        );
        result.add_unavailable("the configuration", reason, []);
        roots.truncate(MAX_ROOTS);
    }
    roots
}

/// The folders with a configuration that no other folder calls. Calls in test files count too. A folder of tests is not a
/// root.
pub(in super::super) fn uncalled_folders(files: &Files) -> Vec<String> {
    let has_file =
        |folder: &str, matches: fn(&str) -> bool| files.in_folder(folder).iter().any(|(name, _)| matches(name));
    let has_configuration = |folder: &str| has_file(folder, is_configuration);
    let is_test_folder = |folder: &str| {
        let (parent, name) = folder.rsplit_once('/').unwrap_or(("", folder));
        name == TEST_FOLDER && has_file(folder, is_test) && has_configuration(parent)
    };
    let folders: Vec<&str> = files.folders().into_iter().filter(|folder| has_configuration(folder)).collect();
    let mut called = BTreeSet::new();
    for folder in &folders {
        let module =
            configuration::read(files, folder, ModuleRole::Root, client_of(files, folder), NO_PACKAGE, &Inputs::new());
        for call in module.calls {
            let ModuleSource::Local(call_path) = call.source else { continue };
            called.extend(path::join(folder, &call_path).filter(|target| target != folder));
        }
    }
    let uncalled_folders = folders.into_iter().filter(|folder| !called.contains(*folder) && !is_test_folder(folder));
    uncalled_folders.map(str::to_owned).collect()
}

/// The client of a root: OpenTofu if a file there is for OpenTofu only, or if OpenTofu wrote the lock file; otherwise
/// Terraform.
fn client_of(files: &Files, folder: &str) -> ClientKind {
    let is_for_opentofu = |(name, text): &(&str, Result<&str, Unreadable>)| match *name {
        LOCK_FILE => lock_file::parse(text.unwrap_or_default().as_bytes())
            .is_ok_and(|locked| locked.iter().any(|locked| locked.provider.host.as_str() == OPENTOFU_REGISTRY)),
        name => is_for_opentofu_only(name),
    };
    if files.in_folder(folder).iter().any(is_for_opentofu) { ClientKind::Opentofu } else { ClientKind::Terraform }
}
