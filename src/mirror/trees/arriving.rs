//! Archives of an imported tree in staging: hashed, not published, waiting for a verdict.

use std::collections::VecDeque;
use std::io::{self, Read};

use super::super::library::Zip;
use super::import::{Stop, TreeImport};
use crate::address::Package;
use crate::digest::{Digest, FastHash};
use crate::filesystem_mirror::carried::TarFileContents;
use crate::store::{Staged, StagedNote, StoreError};

const WRITTEN_AT_ONCE: usize = 256 << 10;
/// Maximum number of archives that wait for proof later in the tar.
const MOST_WAITING: usize = 64;
/// Maximum total size of waiting archives, in bytes.
const MOST_WAITING_BYTES: u64 = 4 << 30;

/// A staged archive, not published yet.
pub(super) struct StagedTreeArchive {
    /// The path in the tree; for a repacked package, its folder.
    pub(super) file: String,
    pub(super) package: Package,
    pub(super) staged: Staged,
    pub(super) digest: Digest,
    pub(super) fast: FastHash,
    pub(super) made: ArchiveOrigin,
}

pub(super) enum ArchiveOrigin {
    Before,
    /// larder packed it from an unpacked package with this `h1:`.
    Anew {
        h1: String,
    },
}

impl ArchiveOrigin {
    pub(super) fn zip(&self) -> Zip {
        match self {
            Self::Before => Zip::Published,
            Self::Anew { .. } => Zip::PackedAnew,
        }
    }
}

impl StagedTreeArchive {
    pub(super) fn discard(self) {
        discard(self.staged);
    }
}

fn discard(staged: Staged) {
    if let Err(error) = staged.discard() {
        tracing::warn!(%error, "what was staged of a tree could not be removed; it is swept in a day");
    }
}

/// The waiting archives, oldest first.
#[derive(Default)]
pub(super) struct StagedArchives {
    archives: VecDeque<StagedTreeArchive>,
    bytes: u64,
}

impl StagedArchives {
    pub(super) fn push(&mut self, arrived: StagedTreeArchive) {
        self.bytes += arrived.staged.written();
        self.archives.push_back(arrived);
    }

    pub(super) fn next(&mut self) -> Option<StagedTreeArchive> {
        let first = self.archives.pop_front()?;
        self.bytes -= first.staged.written();
        Some(first)
    }

    /// The oldest archive, if more wait than the limits allow.
    pub(super) fn too_much(&mut self) -> Option<StagedTreeArchive> {
        let is_too_much = self.archives.len() > MOST_WAITING || self.bytes > MOST_WAITING_BYTES;
        if is_too_much { self.next() } else { None }
    }

    pub(super) fn has(&self, package: &Package) -> bool {
        self.archives.iter().any(|waits| waits.package == *package)
    }

    /// True if another archive of the package waits, with other bytes.
    pub(super) fn has_another(&self, of: &StagedTreeArchive) -> bool {
        let is_another = |waits: &StagedTreeArchive| {
            matches!(waits.made, ArchiveOrigin::Before) && waits.package == of.package && waits.digest != of.digest
        };
        self.archives.iter().any(is_another)
    }

    /// Removes the repacked archive of a package.
    pub(super) fn take_packed(&mut self, package: &Package) -> Option<StagedTreeArchive> {
        let is_it =
            |waits: &StagedTreeArchive| matches!(waits.made, ArchiveOrigin::Anew { .. }) && waits.package == *package;
        let at = self.archives.iter().position(is_it)?;
        let taken = self.archives.remove(at)?;
        self.bytes -= taken.staged.written();
        Some(taken)
    }

    pub(super) fn discard(&mut self) {
        while let Some(arrived) = self.next() {
            arrived.discard();
        }
    }
}

impl TreeImport {
    /// Stages an archive. The inner error is the reason that it is refused.
    pub(super) fn arrive<R: Read>(
        &mut self,
        file: &str,
        package: &Package,
        contents: &mut TarFileContents<'_, R>,
    ) -> Result<Result<StagedTreeArchive, String>, Stop> {
        let size_bytes = contents.size_bytes();
        if let Err(error) = self.call.upstream(&package.provider.host) {
            return Ok(Err(error.to_string()));
        }
        let most = self.mirror.limits.archive_bytes.min(self.mirror.store_bytes_now());
        if size_bytes > most {
            return Ok(Err(format!("it has {size_bytes} bytes, and no archive here may have more than {most}")));
        }
        let mut staged = self.stage(file, size_bytes)?;
        match copy(contents, &mut staged) {
            Ok(()) => Ok(Ok(arrived(file, package, staged, ArchiveOrigin::Before))),
            Err(NotCopied::Read(broken)) => {
                discard(staged);
                Err(Stop::Tar(broken))
            }
            Err(NotCopied::Write(error)) => {
                discard(staged);
                Err(Stop::over(file)(error))
            }
        }
    }

    /// Creates a staging file with disk space allocated. On a full disk the waiting archives are judged first, then
    /// others are evicted as for a download.
    pub(super) fn stage(&mut self, file: &str, size_bytes: u64) -> Result<Staged, Stop> {
        let failed = Stop::over(file);
        let name = format!("import~{}", &FastHash::of(file.as_bytes()).to_string()[..16]);
        // Leftovers of an interrupted import may have other bytes.
        self.mirror.store.blobs.stage(&name).and_then(Staged::discard).map_err(&failed)?;
        let mut staged = self.mirror.store.blobs.stage(&name).map_err(&failed)?;
        let note = StagedNote { length: Some(size_bytes), ..StagedNote::default() };
        let Err(full) = staged.remember(note.clone(), size_bytes) else { return Ok(staged) };
        let again = if full.is_full() {
            match self.judge_what_waits() {
                Ok(()) => {
                    self.mirror.make_room_on_disk(size_bytes, &full).and_then(|()| staged.remember(note, size_bytes))
                }
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
pub(super) fn arrived(file: &str, package: &Package, staged: Staged, made: ArchiveOrigin) -> StagedTreeArchive {
    let (digest, fast) = staged.hashes();
    StagedTreeArchive { file: file.to_owned(), package: package.clone(), staged, digest, fast, made }
}

enum NotCopied {
    Read(io::Error),
    Write(StoreError),
}

fn copy(from: &mut impl Read, to: &mut Staged) -> Result<(), NotCopied> {
    let mut buffer = vec![0; WRITTEN_AT_ONCE];
    loop {
        match from.read(&mut buffer).map_err(NotCopied::Read)? {
            0 => return Ok(()),
            read => to.append(&buffer[..read]).map_err(NotCopied::Write)?,
        }
    }
}
