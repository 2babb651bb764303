//! Archives of an imported tree in staging: hashed, not published, waiting for a verdict.

use std::collections::VecDeque;
use std::io::{self, Read};

use crate::address::Package;
use crate::digest::{Digest, FastHash};
use crate::filesystem_mirror::provider_tar::TarFileContents;
use crate::mirror::library::ZipOrigin;
use crate::mirror::transfer::tree::progress::ImportAbort;
use crate::mirror::transfer::tree::progress::TreeImport;
use crate::store::{Staged, StagedNote, StoreError};

const COPY_BUFFER_BYTES: usize = 256 << 10;
/// Maximum number of archives that wait for proof later in the tar.
const MAX_WAITING: usize = 64;
/// Maximum total size of waiting archives, in bytes.
const MAX_WAITING_BYTES: u64 = 4 << 30;

/// A staged archive, not published yet.
pub(in crate::mirror) struct StagedTreeArchive {
    /// The path in the tree; for a repacked package, its folder.
    pub(in crate::mirror) file: String,
    pub(in crate::mirror) package: Package,
    pub(in crate::mirror) staged: Staged,
    pub(in crate::mirror) digest: Digest,
    pub(in crate::mirror) fast: FastHash,
    pub(in crate::mirror) origin: ArchiveOrigin,
}

pub(in crate::mirror) enum ArchiveOrigin {
    FromTree,
    /// larder packed it from an unpacked package with this `h1:`.
    Repacked {
        h1: String,
    },
}

impl ArchiveOrigin {
    pub(in crate::mirror) fn zip_origin(&self) -> ZipOrigin {
        match self {
            Self::FromTree => ZipOrigin::Published,
            Self::Repacked { .. } => ZipOrigin::PackedAnew,
        }
    }
}

impl StagedTreeArchive {
    pub(in crate::mirror) fn discard(self) {
        discard(self.staged);
    }
}

fn discard(staged: Staged) {
    if let Err(error) = staged.discard() {
        tracing::warn!(%error, "a staging file of a tree could not be removed; it is removed within a day");
    }
}

/// The waiting archives, oldest first.
#[derive(Default)]
pub(in crate::mirror) struct WaitingArchives {
    archives: VecDeque<StagedTreeArchive>,
    bytes: u64,
}

impl WaitingArchives {
    pub(in crate::mirror) fn push(&mut self, arrived: StagedTreeArchive) {
        self.bytes += arrived.staged.written();
        self.archives.push_back(arrived);
    }

    pub(in crate::mirror) fn pop_oldest(&mut self) -> Option<StagedTreeArchive> {
        let first = self.archives.pop_front()?;
        self.bytes -= first.staged.written();
        Some(first)
    }

    /// The oldest archive, if more wait than the limits allow.
    pub(in crate::mirror) fn pop_excess(&mut self) -> Option<StagedTreeArchive> {
        let is_too_much = self.archives.len() > MAX_WAITING || self.bytes > MAX_WAITING_BYTES;
        if is_too_much { self.pop_oldest() } else { None }
    }

    pub(in crate::mirror) fn has(&self, package: &Package) -> bool {
        self.archives.iter().any(|waits| waits.package == *package)
    }

    /// True if another archive of the package waits, with other bytes.
    pub(in crate::mirror) fn has_conflicting(&self, archive: &StagedTreeArchive) -> bool {
        let is_another = |waits: &StagedTreeArchive| {
            matches!(waits.origin, ArchiveOrigin::FromTree)
                && waits.package == archive.package
                && waits.digest != archive.digest
        };
        self.archives.iter().any(is_another)
    }

    /// Removes the repacked archive of a package.
    pub(in crate::mirror) fn remove_repacked(&mut self, package: &Package) -> Option<StagedTreeArchive> {
        let is_it = |waits: &StagedTreeArchive| {
            matches!(waits.origin, ArchiveOrigin::Repacked { .. }) && waits.package == *package
        };
        let index = self.archives.iter().position(is_it)?;
        let taken = self.archives.remove(index)?;
        self.bytes -= taken.staged.written();
        Some(taken)
    }

    pub(in crate::mirror) fn discard(&mut self) {
        while let Some(arrived) = self.pop_oldest() {
            arrived.discard();
        }
    }
}

impl TreeImport {
    /// Stages an archive. The inner error is the reason that it is refused.
    pub(in crate::mirror) fn stage_archive<R: Read>(
        &mut self,
        file: &str,
        package: &Package,
        contents: &mut TarFileContents<'_, R>,
    ) -> Result<Result<StagedTreeArchive, String>, ImportAbort> {
        let size_bytes = contents.size_bytes();
        if let Err(error) = self.call.upstream(&package.provider.host) {
            return Ok(Err(error.to_string()));
        }
        let most = self.transfers.runtime.limits.archive_bytes.min(self.transfers.library.refresh_size_limit());
        if size_bytes > most {
            return Ok(Err(format!("it has {size_bytes} bytes, the limit for archives is {most}")));
        }
        let mut staged = self.stage(file, size_bytes)?;
        match copy(contents, &mut staged) {
            Ok(()) => Ok(Ok(staged_archive(file, package, staged, ArchiveOrigin::FromTree))),
            Err(NotCopied::Read(broken)) => {
                discard(staged);
                Err(ImportAbort::Tar(broken))
            }
            Err(NotCopied::Write(error)) => {
                discard(staged);
                Err(ImportAbort::store_failed_at(file)(error))
            }
        }
    }

    /// Creates a staging file with disk space allocated. On a full disk the waiting archives are judged first, then
    /// others are evicted as for a download.
    pub(in crate::mirror) fn stage(&mut self, file: &str, size_bytes: u64) -> Result<Staged, ImportAbort> {
        let failed = ImportAbort::store_failed_at(file);
        let name = format!("import~{}", &FastHash::of(file.as_bytes()).to_string()[..16]);
        // Leftovers of an interrupted import may have other bytes.
        self.transfers.library.store.blobs.stage(&name).and_then(Staged::discard).map_err(&failed)?;
        let mut staged = self.transfers.library.store.blobs.stage(&name).map_err(&failed)?;
        let note = StagedNote { length: Some(size_bytes), ..StagedNote::default() };
        let Err(full) = staged.remember(note.clone(), size_bytes) else { return Ok(staged) };
        let again = if full.is_full() {
            match self.judge_waiting() {
                Ok(()) => self
                    .transfers
                    .library
                    .free_disk_space(size_bytes, &full)
                    .and_then(|()| staged.remember(note, size_bytes)),
                Err(stop) => {
                    discard(staged);
                    return Err(stop);
                }
            }
        } else {
            Err(full)
        };
        match again {
            Ok(()) => Ok(staged),
            Err(error) => {
                discard(staged);
                Err(failed(error))
            }
        }
    }
}

/// Wraps a complete staging file.
pub(in crate::mirror) fn staged_archive(
    file: &str,
    package: &Package,
    staged: Staged,
    made: ArchiveOrigin,
) -> StagedTreeArchive {
    let (digest, fast) = staged.hashes();
    StagedTreeArchive { file: file.to_owned(), package: package.clone(), staged, digest, fast, origin: made }
}

enum NotCopied {
    Read(io::Error),
    Write(StoreError),
}

fn copy(from: &mut impl Read, to: &mut Staged) -> Result<(), NotCopied> {
    let mut buffer = vec![0; COPY_BUFFER_BYTES];
    loop {
        match from.read(&mut buffer).map_err(NotCopied::Read)? {
            0 => return Ok(()),
            read => to.append(&buffer[..read]).map_err(NotCopied::Write)?,
        }
    }
}
