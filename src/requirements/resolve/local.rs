//! The local modules of a configuration: each folder is parsed once for all its callers, on a blocking thread.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::super::configuration::{self, Inputs, Module, ModuleRole, NO_PACKAGE, Problem, SourceLine};
use super::super::request::ClientKind;
use super::super::{Configurations, Files};
use super::registry_queries::{AnswerCache, answer_cell};
use super::resolution_result::ResolutionResult;
use super::root_modules::{self, Root};

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
            (root_modules::find(&configurations, &mut root_problems), root_problems)
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
