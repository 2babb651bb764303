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
    permits: Arc<Semaphore>,
    modules: Answers<(String, FolderRole, ClientKind, Arc<Inputs>), Module>,
}

impl LocalFolders {
    pub(super) fn new(configurations: &Configurations) -> Self {
        let configurations = Arc::new(configurations.clone());
        Self { configurations, permits: Arc::new(Semaphore::new(MAX_CONCURRENT_READS)), modules: Answers::default() }
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
            let permit = Arc::clone(&self.permits).acquire_owned().await;
            let configurations = Arc::clone(&self.configurations);
            let read = move || {
                // Parsing continues after its caller is cancelled, and holds the permit to its end.
                let _permit = permit;
                configuration::read(&configurations.files, &key.0, key.1, key.2, "", &key.3)
            };
            tokio::task::spawn_blocking(read).await.map(Arc::new).map_err(|_| READ_PANICKED.to_owned())
        };
        cell.get_or_init(read).await.clone().unwrap_or_else(|reason| {
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
            let local = LocalFolders::new(&Configurations { files, roots: Vec::new(), client: None });
            // The only blocking thread is busy, so parsing is queued behind it.
            let (release, released) = mpsc::channel();
            let busy = tokio::task::spawn_blocking(move || released.recv());
            let inputs = Arc::default();
            let cancelled = local.module("", FolderRole::Root, ClientKind::Terraform, &inputs).now_or_never();
            assert_eq!((cancelled, local.permits.available_permits()), (None, MAX_CONCURRENT_READS - 1));
            release.send(()).unwrap();
            busy.await.unwrap().unwrap();
            let all = u32::try_from(MAX_CONCURRENT_READS).unwrap();
            assert!(local.permits.acquire_many(all).await.is_ok());
        });
    }
}
