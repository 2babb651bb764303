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
        "{package}: none of the {locked} hashes in the lock file fits its verified archive ({proven}), so a client would refuse it: lock it again with `terraform providers lock -platform={}`, or find out why it differs", .package.platform
    )]
    LockedToAnother { package: Package, locked: usize, proven: String },
}

/// Result of comparing an archive with a lock file's hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LockFit {
    /// One of them matches, or there are none.
    Its,
    /// Its `h1:`, which is not known yet, may match.
    ItsPackageHashTells,
    /// None of them can match.
    None,
}

impl LockFit {
    /// Compares the hashes of one lock file with an archive of this digest.
    pub(super) fn of(locked: &[String], digest: Digest) -> Self {
        let is_package_hash = |hash: &&String| hash.starts_with("h1:");
        if !locked.iter().any(|hash| hash.starts_with("zh:") || hash.starts_with("h1:"))
            || locked.contains(&digest.zh())
        {
            Self::Its
        } else if locked.iter().any(|hash| is_package_hash(&hash)) {
            Self::ItsPackageHashTells
        } else {
            Self::None
        }
    }

    /// Compares several lock files: an archive must match each of them.
    pub(super) fn of_all(lists: &[Vec<String>], digest: Digest) -> Self {
        let each = || lists.iter().map(|locked| Self::of(locked, digest));
        if each().any(|fit| fit == Self::None) {
            Self::None
        } else if each().any(|fit| fit == Self::ItsPackageHashTells) {
            Self::ItsPackageHashTells
        } else {
            Self::Its
        }
    }
}

/// Checks that every list which needs the package hash contains this one.
pub(super) fn all_have(lists: &[Vec<String>], digest: Digest, hash: &String) -> bool {
    lists.iter().all(|locked| LockFit::of(locked, digest) == LockFit::Its || locked.contains(hash))
}

impl LockMismatch {
    pub(super) fn locked_to_another(package: &Package, locked: &[String], proven: String) -> Self {
        Self::LockedToAnother { package: package.clone(), locked: locked.len(), proven }
    }
}

impl AsError for LockMismatch {
    fn as_error(&self) -> Option<&Error> {
        match self {
            Self::Mirror(error) => Some(error),
            Self::LockedToAnother { .. } => None,
        }
    }
}
