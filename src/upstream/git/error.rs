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
    /// It was too slow, or said too much.
    Fault {
        /// Its origin.
        at: String,
        /// What it did.
        fault: Fault,
    },
    /// It has no such commit, or does not hand it out.
    NoSuchId {
        /// Its origin.
        at: String,
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
            if let Some(trouble) = cause.downcast_ref::<io::Error>().and_then(|io| Self::of_io(at, io)) {
                return trouble;
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

    /// What there is in an error of a reader or a writer: one of ours, or the system's, perhaps in others.
    fn of_io(at: &str, error: &io::Error) -> Option<Self> {
        if let Some(code) = error.raw_os_error() {
            return Some(Self::Disk(io::Error::from_raw_os_error(code)));
        }
        let is_full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        let full = is_full.then(|| Self::Disk(error.kind().into()));
        let Some(inner) = error.get_ref() else { return full };
        if inner.is::<Broken>() {
            return Some(Self::Broken);
        }
        if let Some(fault) = inner.downcast_ref::<Fault>() {
            return Some(Self::Fault { at: at.to_owned(), fault: fault.clone() });
        }
        if let Some(error) = inner.downcast_ref::<TreeError>() {
            return Some(Self::tree(at, error.clone()));
        }
        let inside = inner.downcast_ref::<io::Error>().and_then(|inner| Self::of_io(at, inner));
        inside.or(full)
    }

    /// As whoever asked is told it. What a server says may quote what it was shown.
    pub(super) fn told(self, ask: &GitAsk<'_>) -> GitError {
        let told = |text: String| ask.grant.unless_quoted_in(&text).to_owned();
        match self {
            Self::Broken => ask.failed(String::new(), Fault::Unreachable("the job was stopped".into())).into(),
            Self::Unusable { at, why } => ask.failed(at, Fault::Unusable(told(why))).into(),
            Self::Fault { at, fault } => ask.failed(at, fault).into(),
            Self::NoSuchId { at } => {
                let why = "an answer that it has no such commit, or does not hand it out".to_owned();
                ask.failed(at, Fault::Unusable(why)).into()
            }
            Self::Tree { at, error: TreeError::Refused { entry, why } } => {
                let error = TreeError::Refused { entry: told(entry), why: told(why) };
                GitError::Tree { asked: ask.what.to_owned(), at, error }
            }
            Self::Tree { error: TreeError::Spool(error), .. } => GitError::Disk { asked: ask.what.to_owned(), error },
            Self::Tree { at, error } => GitError::Tree { asked: ask.what.to_owned(), at, error },
            Self::Disk(error) => GitError::Disk { asked: ask.what.to_owned(), error: Arc::new(error) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever sees a full disk makes room and tries again: its kind has to arrive.
    #[test]
    fn a_disk_that_is_full_is_told_as_such_however_deep_that_lies() {
        let full = || io::Error::from_raw_os_error(28);
        for error in [
            full(),
            io::Error::other(full()),
            io::Error::other(io::Error::new(io::ErrorKind::InvalidInput, full())),
            io::ErrorKind::StorageFull.into(),
        ] {
            let shown = error.to_string();
            let error = gix_error::Error::from_error(error);
            match Trouble::of("https://h.example", 1, &error) {
                Trouble::Disk(error) => assert_eq!(error.kind(), io::ErrorKind::StorageFull),
                other => panic!("{shown}: {other:?}"),
            }
        }
        let ours = gix_error::Error::from_error(io::Error::other(io::Error::other(Fault::TooLarge(7))));
        assert!(matches!(Trouble::of("", 1, &ours), Trouble::Fault { fault: Fault::TooLarge(7), .. }));
    }
}
