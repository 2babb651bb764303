//! Unpacked providers: what the library stores of them, and how an archive becomes one.

use std::io::{self, Read, Seek};
use std::path::Path;
use std::sync::Arc;

use crate::address::{Address, Package, Versions};
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::Library;
use crate::store::{SealedTree, StoreError, TreeWriter};
use crate::verify::{BadPackage, PackageFiles, PackageLimits, unpack_package};

/// A guess at the bytes that a provider unpacks to, for each byte of its zip: programs of Go take a quarter when they are packed.
const UNPACKED_BYTES_PER_BYTE: u64 = 5;

/// Why an archive was not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum NotUnpacked {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its contents are not what a client could use from a folder.
    #[error(transparent)]
    Package(#[from] BadPackage),
}

struct TreeFiles<'a>(&'a mut TreeWriter);

impl PackageFiles for TreeFiles<'_> {
    fn folder(&mut self, path: &[u8]) -> io::Result<()> {
        self.0.folder(path)
    }

    fn file(&mut self, path: &[u8], mode: Option<u32>) -> io::Result<()> {
        self.0.file(path, mode)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write(bytes)
    }
}

impl Library {
    /// The tree of a package's archive, if there is one and it is as it was unpacked. Blocks.
    pub fn sealed_tree(&self, package: &Package, archive: &Digest) -> Result<Option<SealedTree>, StoreError> {
        self.store.local.unpacked.find(package, archive)
    }

    /// Unpacks the verified bytes of an archive into a tree. Blocks.
    ///
    /// # Errors
    /// The store cannot take the tree, or the contents are not what a client could use from a folder.
    pub fn unpack(
        &self,
        package: &Package,
        archive: &Digest,
        size_bytes: u64,
        bytes: impl Read + Seek,
        now: Timestamp,
    ) -> Result<SealedTree, NotUnpacked> {
        let unpacked_bytes = size_bytes.saturating_mul(UNPACKED_BYTES_PER_BYTE);
        self.store.local.unpacked.build(package, archive, unpacked_bytes, now, |tree| {
            let hashes = unpack_package(bytes, PackageLimits::default(), &mut TreeFiles(tree))?;
            Ok(hashes.directory)
        })
    }

    /// Notes that a client with this data folder may link to a tree. False if the tree is gone.
    ///
    /// # Errors
    /// The disk failed. Then the client must not link to it.
    pub async fn note_tree_use(
        self: &Arc<Self>,
        package: &Package,
        archive: Digest,
        data_folder: &Path,
        now: Timestamp,
    ) -> Result<bool, Error> {
        let (package, data_folder) = (package.clone(), data_folder.to_owned());
        self.on_disk(move |library| library.store.local.unpacked.note_use(&package, &archive, &data_folder, now)).await
    }

    /// True where providers can be unpacked: not in a store that cannot be written.
    pub fn may_unpack(&self) -> bool {
        self.store.local.unpacked.is_writable()
    }

    /// Removes the trees of the selected versions of a provider, with the links to them. Blocks.
    pub fn remove_trees(&self, address: &Address, versions: &Versions) -> Result<(), StoreError> {
        match address {
            Address::Provider(provider) => {
                self.store.local.unpacked.remove_of(provider, |version| versions.include(version))
            }
            Address::Module(_) => Ok(()),
        }
    }

    /// Removes the trees that nobody has used for 30 days.
    ///
    /// # Errors
    /// The disk failed.
    pub async fn sweep_trees(self: &Arc<Self>, now: Timestamp) -> Result<(), Error> {
        self.on_disk(move |library| library.store.local.unpacked.sweep(now)).await
    }
}
