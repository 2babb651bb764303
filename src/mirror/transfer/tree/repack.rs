//! Repacks an unpacked package of a tree into a deterministic zip. Its files are spooled first.

use crate::mirror::Library;
use std::io::{self, Read, Write};
use std::sync::Arc;

use crate::address::Package;
use crate::filesystem_mirror::Mode;
use crate::filesystem_mirror::provider_tar::TarFileContents;
use crate::mirror::transfer::tree::progress::ImportAbort;
use crate::packaging::{Tree, TreeEntry, TreeError, TreeLimits, TreePath, pack_zip};
use crate::store::{Scratch, Staged, StoreError};
use crate::verify::PackageLimits;

/// Maximum zip overhead per file: its name twice, and two headers.
const ZIP_OVERHEAD_PER_FILE: u64 = 2 * (4096 + 128);

/// An unpacked package that is being read.
pub(in crate::mirror) struct PackageRepack {
    pub(in crate::mirror) package: Package,
    /// The package's folder, as spelled in the tree.
    pub(in crate::mirror) folder: String,
    pub(in crate::mirror) tree: Tree,
    flaw: Option<String>,
    scratch: Scratch,
}

impl PackageRepack {
    /// Starts a package.
    ///
    /// # Errors
    /// The spool could not be created.
    pub(in crate::mirror) fn begin(library: &Library, package: Package, place: String) -> Result<Self, StoreError> {
        let scratch = library.store.blobs.scratch()?;
        let limits =
            TreeLimits { entries: PackageLimits::default().entries, bytes: library.runtime.limits.archive_bytes };
        Ok(Self { package, folder: place, tree: Tree::new(scratch.file()?, limits), flaw: None, scratch })
    }

    pub(in crate::mirror) fn refuse(&mut self, reason: String) {
        self.flaw.get_or_insert(reason);
    }

    /// Adds a file. `path` is relative to the tree, `file` to the package.
    ///
    /// # Errors
    /// The tar broke off, or the disk failed.
    pub(in crate::mirror) fn add_file<R: Read>(
        &mut self,
        path: &str,
        file: &str,
        contents: &mut TarFileContents<'_, R>,
    ) -> Result<(), ImportAbort> {
        if self.flaw.is_some() {
            return Ok(());
        }
        // Clients execute the plugin, even if the tree's file system lost its mode.
        let mode = if self.is_plugin(file) { Mode::Executable } else { contents.mode() };
        let taken = match TreePath::parse(file.as_bytes()) {
            Ok(path) => self.tree.add_file(&path, mode.bits(), contents),
            Err(bad) => Err(TreeError::bad_path(file.as_bytes(), &bad)),
        };
        match taken {
            Ok(_) => Ok(()),
            Err(TreeError::Unreadable(reason)) => {
                Err(ImportAbort::Tar(io::Error::new(io::ErrorKind::UnexpectedEof, reason)))
            }
            Err(TreeError::Spool(error)) => Err(ImportAbort::store_failed_at(path)(self.spool_failed(&error))),
            Err(bad @ (TreeError::Refused { .. } | TreeError::TooLarge(_))) => {
                self.refuse(bad.to_string());
                Ok(())
            }
        }
    }

    fn spool_failed(&self, error: &Arc<io::Error>) -> StoreError {
        let path = self.scratch.path().join("spool");
        StoreError::Io { doing: "write unpacked files to", path, source: Arc::clone(error) }
    }

    /// True if the file is the executable that clients run.
    fn is_plugin(&self, file: &str) -> bool {
        !file.contains('/') && file.starts_with(&self.plugin())
    }

    fn plugin(&self) -> String {
        format!("terraform-provider-{}", self.package.provider.type_)
    }

    /// The reason that no client could install the package, if there is one.
    pub(in crate::mirror) fn flaw(&self) -> Option<String> {
        let is_plugin = |(path, entry): (&TreePath, &TreeEntry)| {
            matches!(entry, TreeEntry::File { .. }) && self.is_plugin(&path.to_string())
        };
        self.flaw.clone().or_else(|| {
            let has_plugin = self.tree.entries().any(is_plugin);
            (!has_plugin).then(|| format!("no file in it is named {}…, so no client could run it", self.plugin()))
        })
    }

    /// Maximum size of its zip.
    pub(in crate::mirror) fn max_zip_bytes(&self) -> u64 {
        let files = self.tree.entries().count() as u64;
        // Deflate adds at most five bytes to each 16 KiB that it cannot compress.
        self.tree.bytes() + self.tree.bytes() / 1024 + (files + 1) * ZIP_OVERHEAD_PER_FILE
    }

    pub(in crate::mirror) fn zip_into(&self, staged: &mut Staged) -> Result<(), RepackError> {
        let mut stage = RepackStage { staged, failed: None };
        let zipped = pack_zip(&self.tree, &mut stage);
        match (zipped, stage.failed) {
            (Ok(()), None) => Ok(()),
            (_, Some(error)) => Err(RepackError::Store(error)),
            (Err(TreeError::Spool(error)), None) => Err(RepackError::Store(self.spool_failed(&error))),
            (Err(bad), None) => Err(RepackError::Refused(bad.to_string())),
        }
    }
}

pub(in crate::mirror) enum RepackError {
    Store(StoreError),
    Refused(String),
}

/// Writes to a staging file and keeps the store error, which [`io::Error`] would hide.
struct RepackStage<'a> {
    staged: &'a mut Staged,
    failed: Option<StoreError>,
}

impl Write for RepackStage<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.staged.append(bytes).map_err(|error| {
            let io_error = io::Error::other(error.to_string());
            self.failed = Some(error);
            io_error
        })?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
