//! How a git job fails: upstream's trouble, a tree that is refused, and a disk of ours are three things.

use std::io;
use std::sync::Arc;

use super::GitAsk;
use super::wire::Broken;
use crate::pack::TreeError;
use crate::upstream::error::{Fault, UpstreamError};

/// Why there is no tree.
#[derive(Debug, Clone, thiserror::Error)]
pub enum GitError {
    /// The repository, or the way there.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// What is in the repository cannot be in a tree.
    #[error("{asked}: {at} sent a tree that is refused: {error}")]
    Tree {
        /// What was asked for, for people.
        asked: String,
        /// The origin of the repository.
        at: String,
        /// Why.
        error: TreeError,
    },
    /// A disk of ours failed.
    #[error("{asked}: its packs could not be kept meanwhile: {error}")]
    Disk {
        /// What was asked for, for people.
        asked: String,
        /// How.
        error: Arc<io::Error>,
    },
}

/// The same, where git's code runs.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The connection broke off, or the job was stopped. Whoever knows why is at the other end of the wire.
    Broken,
    /// A repository sent, or is, something unusable.
    Unusable {
        /// Its origin.
        at: String,
        /// What it is.
        why: String,
    },
    /// Its tree is refused.
    Tree {
        /// The repository's origin.
        at: String,
        /// Why.
        error: TreeError,
    },
    /// The disk failed.
    Disk(io::Error),
}

impl Trouble {
    pub(super) fn unusable(at: &str, why: impl Into<String>) -> Self {
        Self::Unusable { at: at.to_owned(), why: why.into() }
    }

    pub(super) fn tree(at: &str, error: TreeError) -> Self {
        Self::Tree { at: at.to_owned(), error }
    }

    /// What gix says: it may be the wire's failure, the disk's, or about what was sent.
    pub(super) fn of(at: &str, largest_object: usize, error: &gix_error::Error) -> Self {
        let mut said: Vec<String> = Vec::new();
        for cause in error.iter_errors() {
            if let Some(io) = cause.downcast_ref::<io::Error>() {
                if io.get_ref().is_some_and(|inner| inner.is::<Broken>()) {
                    return Self::Broken;
                }
                if let Some(code) = io.raw_os_error() {
                    return Self::Disk(io::Error::from_raw_os_error(code));
                }
            }
            let text = cause.to_string();
            if !said.iter().any(|before| before.contains(&text)) {
                said.push(text);
            }
        }
        if error.is_resource_exhausted() {
            return Self::tree(at, TreeError::TooLarge(format!("{largest_object} bytes in one object")));
        }
        Self::unusable(at, said.join(": "))
    }

    pub(super) fn told(self, ask: &GitAsk<'_>) -> GitError {
        match self {
            Self::Broken => ask.failed(String::new(), Fault::Unreachable("the job was stopped".into())).into(),
            Self::Unusable { at, why } => ask.failed(at, Fault::Unusable(why)).into(),
            Self::Tree { error: TreeError::Spool(error), .. } => GitError::Disk { asked: ask.what.to_owned(), error },
            Self::Tree { at, error } => GitError::Tree { asked: ask.what.to_owned(), at, error },
            Self::Disk(error) => GitError::Disk { asked: ask.what.to_owned(), error: Arc::new(error) },
        }
    }
}
