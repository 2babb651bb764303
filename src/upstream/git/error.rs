//! Errors of git fetches: upstream failures, refused trees, and local disk errors.

use std::io;
use std::sync::Arc;

use super::blocking_bridge::BridgeBroken;
use crate::packaging::TreeError;
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::request::UpstreamRequest;

/// An error of a git fetch.
#[derive(Debug, Clone, thiserror::Error)]
pub enum GitError {
    /// The repository or the connection failed.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// The repository's content is not allowed in a tree.
    #[error("{subject}: {origin} sent a tree that is refused: {error}")]
    Tree {
        /// Label of the request.
        subject: String,
        /// The origin of the repository.
        origin: String,
        /// The reason.
        error: TreeError,
    },
    /// A local disk failed.
    #[error("{subject}: its packs could not be stored: {error}")]
    Disk {
        /// Label of the request.
        subject: String,
        /// The disk's error.
        error: Arc<io::Error>,
    },
}

/// Errors inside git's code.
#[derive(Debug)]
pub(super) enum GitCodeError {
    /// The connection broke, or the fetch was cancelled. The connector's own error has the reason.
    BridgeClosed,
    /// The repository sent unusable data.
    Unusable {
        /// The repository's origin.
        origin: String,
        reason: String,
    },
    /// The transfer is too slow or too large.
    Fault {
        /// The repository's origin.
        origin: String,
        fault: Fault,
    },
    /// The server has no such commit, or does not serve it.
    NoSuchId {
        /// The repository's origin.
        origin: String,
    },
    /// The repository's tree is refused.
    Tree {
        /// The repository's origin.
        origin: String,
        error: TreeError,
    },
    /// A local disk failed.
    Disk(io::Error),
}

impl GitCodeError {
    pub(super) fn unusable(origin: &str, reason: impl Into<String>) -> Self {
        Self::Unusable { origin: origin.to_owned(), reason: reason.into() }
    }

    pub(super) fn tree(origin: &str, error: TreeError) -> Self {
        Self::Tree { origin: origin.to_owned(), error }
    }

    /// Converts an error of gix, which may come from the bridge, the disk or the received data.
    pub(super) fn of(origin: &str, max_object_bytes: usize, error: &gix_error::Error) -> Self {
        let mut causes: Vec<String> = Vec::new();
        for cause in error.iter_errors() {
            if let Some(found) = cause.downcast_ref::<io::Error>().and_then(|error| Self::of_io(origin, error)) {
                return found;
            }
            let text = cause.to_string();
            if !causes.iter().any(|previous| previous.contains(&text)) {
                causes.push(text);
            }
        }
        if error.is_resource_exhausted() {
            return Self::tree(origin, TreeError::TooLarge(format!("{max_object_bytes} bytes in one object")));
        }
        Self::unusable(origin, causes.join(": "))
    }

    /// Finds larder's own error or an error of the operating system inside a nested I/O error.
    fn of_io(origin: &str, error: &io::Error) -> Option<Self> {
        if let Some(code) = error.raw_os_error() {
            return Some(Self::Disk(io::Error::from_raw_os_error(code)));
        }
        let is_full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        let disk_full = is_full.then(|| Self::Disk(error.kind().into()));
        let Some(inner) = error.get_ref() else { return disk_full };
        if inner.is::<BridgeBroken>() {
            return Some(Self::BridgeClosed);
        }
        if let Some(fault) = inner.downcast_ref::<Fault>() {
            return Some(Self::Fault { origin: origin.to_owned(), fault: fault.clone() });
        }
        if let Some(error) = inner.downcast_ref::<TreeError>() {
            return Some(Self::tree(origin, error.clone()));
        }
        let nested = inner.downcast_ref::<io::Error>().and_then(|inner| Self::of_io(origin, inner));
        nested.or(disk_full)
    }

    /// Converts to the public error. A server's text may quote a credential, so it is filtered.
    pub(super) fn into_git_error(self, request: &UpstreamRequest<'_>) -> GitError {
        let filtered = |text: String| request.credentials.text_without_credentials(&text).to_owned();
        match self {
            Self::BridgeClosed => {
                request.failed(String::new(), Fault::Unreachable("the job was stopped".into())).into()
            }
            Self::Unusable { origin, reason } => request.failed(origin, Fault::Unusable(filtered(reason))).into(),
            Self::Fault { origin, fault } => request.failed(origin, fault).into(),
            Self::NoSuchId { origin } => {
                let reason = "an answer that the repository does not have this commit, or does not serve it".to_owned();
                request.failed(origin, Fault::Unusable(reason)).into()
            }
            Self::Tree { origin, error: TreeError::Refused { entry, reason } } => {
                let error = TreeError::Refused { entry: filtered(entry), reason: filtered(reason) };
                GitError::Tree { subject: request.label.to_owned(), origin, error }
            }
            Self::Tree { error: TreeError::Spool(error), .. } => {
                GitError::Disk { subject: request.label.to_owned(), error }
            }
            Self::Tree { origin, error } => GitError::Tree { subject: request.label.to_owned(), origin, error },
            Self::Disk(error) => GitError::Disk { subject: request.label.to_owned(), error: Arc::new(error) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A full disk must be recognisable, so that its handler can free space and retry.
    #[test]
    fn a_full_disk_is_recognised_in_nested_errors() {
        let full = || io::Error::from_raw_os_error(28);
        for error in [
            full(),
            io::Error::other(full()),
            io::Error::other(io::Error::new(io::ErrorKind::InvalidInput, full())),
            io::ErrorKind::StorageFull.into(),
        ] {
            let text = error.to_string();
            let error = gix_error::Error::from_error(error);
            match GitCodeError::of("https://h.example", 1, &error) {
                GitCodeError::Disk(error) => assert_eq!(error.kind(), io::ErrorKind::StorageFull),
                other => panic!("{text}: {other:?}"),
            }
        }
        let nested = gix_error::Error::from_error(io::Error::other(io::Error::other(Fault::TooLarge(7))));
        assert!(matches!(GitCodeError::of("", 1, &nested), GitCodeError::Fault { fault: Fault::TooLarge(7), .. }));
    }
}
