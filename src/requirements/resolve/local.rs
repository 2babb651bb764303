//! A user's own folders: each is parsed once for all its callers, in the background.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::super::configuration::{self, FolderRole, Inputs, Module, Problem, SourceLine};
use super::super::request::ClientKind;
use super::super::{Configurations, Files};
use super::registry_queries::{Answers, cell};
use super::resolution_result::ResolutionResult;
use super::root_modules::{self, Root};

/// Folders read at a time.
const MAX_CONCURRENT_READS: usize = 2;
/// The error after a panic while parsing.
const READ_PANICKED: &str = "reading it ended unexpectedly";

/// A user's own folders.
pub(super) struct LocalFolders {
    configurations: Arc<Configurations>,
    permits: Semaphore,
    modules: Answers<(String, FolderRole, ClientKind, Arc<Inputs>), Module>,
}

impl LocalFolders {
    pub(super) fn new(configurations: &Configurations) -> Self {
        let configurations = Arc::new(configurations.clone());
        Self { configurations, permits: Semaphore::new(MAX_CONCURRENT_READS), modules: Answers::default() }
    }

    /// All files.
    pub(super) fn files(&self) -> &Files {
        &self.configurations.files
    }

    /// The roots.
    pub(super) async fn roots(&self, found: &mut ResolutionResult) -> Vec<Root> {
        let configurations = Arc::clone(&self.configurations);
        let reading = tokio::task::spawn_blocking(move || {
            let mut found = ResolutionResult::default();
            (root_modules::of(&configurations, &mut found), found)
        });
        match reading.await {
            Ok((roots, more)) => {
                *found = std::mem::take(found).and(more);
                roots
            }
            Err(_) => {
                found.add_unavailable("the configuration", READ_PANICKED, []);
                Vec::new()
            }
        }
    }

    /// Parses a folder with these values.
    pub(super) async fn module(
        &self,
        folder: &str,
        role: FolderRole,
        client: ClientKind,
        inputs: &Arc<Inputs>,
    ) -> Arc<Module> {
        let key = (folder.to_owned(), role, client, Arc::clone(inputs));
        let cell = cell(&self.modules, &key);
        let read = async || {
            // The semaphore is never closed.
            let _turn = self.permits.acquire().await;
            let configurations = Arc::clone(&self.configurations);
            let read = move || configuration::read(&configurations.files, &key.0, key.1, key.2, "", &key.3);
            tokio::task::spawn_blocking(read).await.map(Arc::new).map_err(|_| READ_PANICKED.to_owned())
        };
        cell.get_or_init(read).await.clone().unwrap_or_else(|reason| {
            let location = SourceLine { file: folder.to_owned(), line: 1 };
            let problem = Problem { subject: folder.to_owned(), reason, location };
            Arc::new(Module { problems: vec![problem], ..Module::default() })
        })
    }
}
