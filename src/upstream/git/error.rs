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

/// A failure inside git's code, with the origin of the repository that it concerns.
#[derive(Debug)]
pub(super) struct RepositoryError {
    pub(super) origin: String,
    pub(super) failure: RepositoryFailure,
}

/// A failure inside git's code.
#[derive(Debug)]
pub(super) enum RepositoryFailure {
    /// The connection broke, or the fetch was cancelled. The connector's own error has the reason.
    BridgeClosed,
    /// The repository sent unusable data, or the transfer is too slow or too large.
    Fault(Fault),
    /// The server has no such commit, or does not serve it.
    NoSuchId,
    /// gix refused to hold an object of this size in memory.
    LargeObject,
    /// The repository's tree is refused.
    Tree(TreeError),
    /// A local disk failed.
    Disk(Arc<io::Error>),
}

impl From<TreeError> for RepositoryFailure {
    fn from(error: TreeError) -> Self {
        match error {
            TreeError::Spool(error) => Self::Disk(error),
            error => Self::Tree(error),
        }
    }
}

/// An error of gix may come from the bridge, the disk or the received data.
impl From<gix_error::Error> for RepositoryFailure {
    fn from(error: gix_error::Error) -> Self {
        let mut causes: Vec<String> = Vec::new();
        for cause in error.iter_errors() {
            if let Some(found) = cause.downcast_ref::<io::Error>().and_then(Self::inside_io_error) {
                return found;
            }
            let text = cause.to_string();
            if !causes.iter().any(|previous| previous.contains(&text)) {
                causes.push(text);
            }
        }
        if error.is_resource_exhausted() { Self::LargeObject } else { Self::unusable(causes.join(": ")) }
    }
}

impl RepositoryFailure {
    pub(super) fn unusable(reason: impl Into<String>) -> Self {
        Self::Fault(Fault::Unusable(reason.into()))
    }

    pub(super) fn disk(error: io::Error) -> Self {
        Self::Disk(Arc::new(error))
    }

    /// Finds larder's own error or an error of the operating system inside a nested I/O error.
    fn inside_io_error(error: &io::Error) -> Option<Self> {
        if let Some(code) = error.raw_os_error() {
            return Some(Self::disk(io::Error::from_raw_os_error(code)));
        }
        let is_full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        let disk_full = is_full.then(|| Self::disk(error.kind().into()));
        let Some(inner) = error.get_ref() else { return disk_full };
        if inner.is::<BridgeBroken>() {
            return Some(Self::BridgeClosed);
        }
        if let Some(fault) = inner.downcast_ref::<Fault>() {
            return Some(Self::Fault(fault.clone()));
        }
        if let Some(error) = inner.downcast_ref::<TreeError>() {
            return Some(error.clone().into());
        }
        inner.downcast_ref().and_then(Self::inside_io_error).or(disk_full)
    }
}

impl RepositoryError {
    /// Converts to the public error. A server's text may quote a credential, so it is filtered. `max_object_bytes` is the
    /// size limit of one object.
    pub(super) fn into_git_error(self, request: &UpstreamRequest<'_>, max_object_bytes: usize) -> GitError {
        let Self { origin, failure } = self;
        let filtered = |text: String| request.credentials.text_without_credentials(&text).to_owned();
        let subject = request.subject.to_owned();
        let error = match failure {
            RepositoryFailure::BridgeClosed => {
                return request.failed(String::new(), Fault::Unreachable("the job was stopped".into())).into();
            }
            RepositoryFailure::Fault(Fault::Unusable(reason)) => {
                return request.failed(origin, Fault::Unusable(filtered(reason))).into();
            }
            RepositoryFailure::Fault(fault) => return request.failed(origin, fault).into(),
            RepositoryFailure::NoSuchId => {
                let reason = "an answer that the repository does not have this commit, or does not serve it";
                return request.failed(origin, Fault::Unusable(reason.to_owned())).into();
            }
            RepositoryFailure::Disk(error) => return GitError::Disk { subject, error },
            RepositoryFailure::LargeObject => TreeError::TooLarge(format!("{max_object_bytes} bytes in one object")),
            RepositoryFailure::Tree(TreeError::Refused { entry, reason }) => {
                TreeError::Refused { entry: filtered(entry), reason: filtered(reason) }
            }
            RepositoryFailure::Tree(error) => error,
        };
        GitError::Tree { subject, origin, error }
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
            match error.into() {
                RepositoryFailure::Disk(error) => assert_eq!(error.kind(), io::ErrorKind::StorageFull),
                other => panic!("{text}: {other:?}"),
            }
        }
        let nested = gix_error::Error::from_error(io::Error::other(io::Error::other(Fault::TooLarge(7))));
        assert!(matches!(nested.into(), RepositoryFailure::Fault(Fault::TooLarge(7))));
    }
}
