//! A user's own folders: the roots of an order with the client of each, and the local modules. Each folder is parsed once
//! for all its callers, on a blocking thread.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::super::configuration::{
    self, Inputs, Module, ModuleRole, ModuleSource, NO_PACKAGE, Problem, SourceLine, TEST_FOLDER, is_configuration,
    is_for_opentofu_only, is_test,
};
use super::super::files::LOCK_FILE;
use super::super::request::ClientKind;
use super::super::{Configurations, Files, Unreadable, lock_file, path};
use super::registry_queries::{AnswerCache, answer_cell};
use super::resolution_result::ResolutionResult;

/// The maximum number of folders that are parsed at a time.
const MAX_CONCURRENT_PARSES: usize = 2;
/// The error after a panic of the parser.
const PARSER_PANICKED: &str = "the parser failed: larder's log says why";

/// The folders of one configuration that a user sent, with the modules parsed so far.
pub(super) struct LocalModules {
    configurations: Arc<Configurations>,
    permits: Arc<Semaphore>,
    modules: AnswerCache<(String, ModuleRole, ClientKind, Arc<Inputs>), Module>,
}

impl LocalModules {
    pub(super) fn new(configurations: &Configurations) -> Self {
        let configurations = Arc::new(configurations.clone());
        Self {
            configurations,
            permits: Arc::new(Semaphore::new(MAX_CONCURRENT_PARSES)),
            modules: AnswerCache::default(),
        }
    }

    /// The files of the configuration.
    pub(super) fn files(&self) -> &Files {
        &self.configurations.files
    }

    /// The root modules. Problems are added to `result`.
    pub(super) async fn roots(&self, result: &mut ResolutionResult) -> Vec<Root> {
        let configurations = Arc::clone(&self.configurations);
        let parsing = tokio::task::spawn_blocking(move || {
            let mut root_problems = ResolutionResult::default();
            (find(&configurations, &mut root_problems), root_problems)
        });
        match parsing.await {
            Ok((roots, root_problems)) => {
                *result = std::mem::take(result).merge(root_problems);
                roots
            }
            Err(_) => {
                result.add_unavailable("the configuration", PARSER_PANICKED, []);
                Vec::new()
            }
        }
    }

    /// The module in a folder, parsed with these values of its variables. A failure is a problem of that module.
    pub(super) async fn module(
        &self,
        folder: &str,
        role: ModuleRole,
        client: ClientKind,
        inputs: &Arc<Inputs>,
    ) -> Arc<Module> {
        let key = (folder.to_owned(), role, client, Arc::clone(inputs));
        let cell = answer_cell(&self.modules, &key);
        let parse = async || {
            // The semaphore is never closed.
            let permit = Arc::clone(&self.permits).acquire_owned().await;
            let configurations = Arc::clone(&self.configurations);
            let parse = move || {
                // Parsing continues after its caller is cancelled, and holds the permit to its end.
                let _permit = permit;
                let (folder, role, client, inputs) = key;
                configuration::read(&configurations.files, &folder, role, client, NO_PACKAGE, &inputs)
            };
            tokio::task::spawn_blocking(parse).await.map(Arc::new).map_err(|_| PARSER_PANICKED.to_owned())
        };
        cell.get_or_init(parse).await.clone().unwrap_or_else(|reason| {
            let location = SourceLine { file: folder.to_owned(), line: 1 };
            let problem = Problem { subject: folder.to_owned(), reason, location };
            Arc::new(Module { problems: vec![problem], ..Module::default() })
        })
    }
}

/// The most roots of one order.
const MAX_ROOTS: usize = 512;
/// The registry in OpenTofu's lock files.
pub(super) const OPENTOFU_REGISTRY: &str = "registry.opentofu.org";

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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn parsing_keeps_its_permit_after_its_caller_is_cancelled() {
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            let mut files = Files::default();
            files.insert("main.tf", b"").unwrap();
            let local = LocalModules::new(&Configurations { files, roots: Vec::new(), client: None });
            // The only blocking thread is busy, so parsing is queued behind it.
            let (release, released) = mpsc::channel();
            let busy = tokio::task::spawn_blocking(move || released.recv());
            let inputs = Arc::default();
            let cancelled = local.module("", ModuleRole::Root, ClientKind::Terraform, &inputs).now_or_never();
            assert_eq!((cancelled, local.permits.available_permits()), (None, MAX_CONCURRENT_PARSES - 1));
            release.send(()).unwrap();
            busy.await.unwrap().unwrap();
            let all = u32::try_from(MAX_CONCURRENT_PARSES).unwrap();
            assert!(local.permits.acquire_many(all).await.is_ok());
        });
    }
}
