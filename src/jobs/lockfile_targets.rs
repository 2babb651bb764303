//! Compares archives with the hashes in lock files.

use super::job_limits::AsError;
use crate::address::Package;
use crate::digest::Digest;
use crate::error::Error;

/// The error of an archive that matches no lock file.
#[derive(Debug, thiserror::Error)]
pub(super) enum LockMismatch {
    #[error(transparent)]
    Mirror(#[from] Error),
    #[error(
        "{package}: none of the {locked} hashes in the lock file matches the verified archive ({archive_hash}), so a client would refuse the archive: run `terraform providers lock -platform={}` again, or find out why the hashes differ", .package.platform
    )]
    HashMismatch { package: Package, locked: usize, archive_hash: String },
}

/// Result of comparing an archive with a lock file's hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LockFit {
    /// One of the hashes matches, or the lock file has no hashes.
    Matches,
    /// No `zh:` hash matches. The archive's `h1:`, which is not computed yet, may match one.
    NeedsPackageHash,
    /// No hash can match.
    Mismatch,
}

impl LockFit {
    /// Compares the hashes of one lock file with an archive of this digest.
    pub(super) fn of(locked: &[String], digest: Digest) -> Self {
        let is_package_hash = |hash: &&String| hash.starts_with("h1:");
        if !locked.iter().any(|hash| hash.starts_with("zh:") || hash.starts_with("h1:"))
            || locked.contains(&digest.zh())
        {
            Self::Matches
        } else if locked.iter().any(|hash| is_package_hash(&hash)) {
            Self::NeedsPackageHash
        } else {
            Self::Mismatch
        }
    }

    /// Compares several lock files: an archive must match each of them.
    pub(super) fn of_all(lists: &[Vec<String>], digest: Digest) -> Self {
        let each = || lists.iter().map(|locked| Self::of(locked, digest));
        if each().any(|fit| fit == Self::Mismatch) {
            Self::Mismatch
        } else if each().any(|fit| fit == Self::NeedsPackageHash) {
            Self::NeedsPackageHash
        } else {
            Self::Matches
        }
    }
}

/// Returns true if each list accepts the archive: by its `zh:`, or else by this `h1:`.
pub(super) fn all_lists_accept(lists: &[Vec<String>], digest: Digest, package_hash: &String) -> bool {
    lists.iter().all(|locked| LockFit::of(locked, digest) == LockFit::Matches || locked.contains(package_hash))
}

impl LockMismatch {
    pub(super) fn hash_mismatch(package: &Package, locked: &[String], archive_hash: String) -> Self {
        Self::HashMismatch { package: package.clone(), locked: locked.len(), archive_hash }
    }
}

impl AsError for LockMismatch {
    fn as_error(&self) -> Option<&Error> {
        match self {
            Self::Mirror(error) => Some(error),
            Self::HashMismatch { .. } => None,
        }
    }
}
