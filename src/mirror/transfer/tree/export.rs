//! Exports a provider tree as a tar, sorted by path, which can be imported unchanged. Everything is looked up before
//! the first byte is written. Each archive is verified again when it is written.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::{self, Read, Write};
use std::sync::Arc;

use bytes::{Buf, Bytes};

use crate::address::{Package, ProviderAddress, Version};
use crate::digest::Digest;
use crate::error::Error;
use crate::filesystem_mirror::index::{ArchiveHashes, VersionIndex, index_files};
use crate::filesystem_mirror::{MirrorFileKind, MirrorPath, Mode, SumsScope};
use crate::mirror::archives::Archive;
use crate::mirror::library::proof_set::ProofSet;
use crate::mirror::transfer::set_of;
use crate::mirror::{RequestContext, Transfers};
use crate::packaging::TarWriter;
use crate::verify::ProofBasis;

/// A package that cannot be exported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotExported {
    /// The package.
    pub package: Package,
    /// The reason.
    pub reason: String,
}

/// A tree ready to be written.
#[derive(Debug)]
pub struct Export {
    files: Vec<(MirrorPath, ExportedFile)>,
    call: RequestContext,
    /// The packages that cannot be exported.
    pub missing: Vec<NotExported>,
}

#[derive(Debug)]
enum ExportedFile {
    Small(Bytes),
    Archive(Box<Package>, Digest),
}

impl Transfers {
    /// Looks up the files of a tree with these packages. Archives in `excluded` are left out; the index and proof files
    /// still list them.
    ///
    /// # Errors
    /// The store failed.
    pub async fn export(
        self: &Arc<Self>,
        packages: Vec<(Package, Digest)>,
        excluded: &HashSet<Digest>,
        call: &RequestContext,
    ) -> Result<Export, Error> {
        let mut export = Export { files: Vec::new(), call: call.clone(), missing: Vec::new() };
        let mut indexes: BTreeMap<ProviderAddress, BTreeMap<Version, VersionIndex>> = BTreeMap::new();
        let mut sums: BTreeMap<(ProviderAddress, Version), Digest> = BTreeMap::new();
        let packages: BTreeSet<_> = packages.into_iter().collect();
        for (package, digest) in packages {
            let (set, hashes) = match self.to_export(&package, digest, call).await {
                Ok(exported) => exported,
                Err(Error::Store(error)) => return Err(error.into()),
                Err(error) => {
                    export.missing.push(NotExported { package, reason: error.to_string() });
                    continue;
                }
            };
            let archive = MirrorPath::archive(&package);
            let Package { provider, version, platform } = &package;
            let versions = indexes.entry(provider.clone()).or_default();
            versions.entry(version.clone()).or_default().add(&archive.name_of_file(), platform, &hashes);
            if set.proof().how != ProofBasis::Imported {
                // The first SHA256SUMS of a version is its shared file. A package with another one gets a separate
                // file.
                let first = *sums.entry((provider.clone(), version.clone())).or_insert(set.sums_digest());
                let scope = if first == set.sums_digest() {
                    SumsScope::Version(version.clone())
                } else {
                    SumsScope::Package(version.clone(), platform.clone())
                };
                export.add_proof(&archive, &package, &set, scope)?;
            }
            if !excluded.contains(&digest) {
                export.files.push((archive, ExportedFile::Archive(Box::new(package), digest)));
            }
        }
        for (provider, versions) in indexes {
            let files = index_files(&provider, &versions).into_iter();
            export.files.extend(files.map(|(path, bytes)| (path, ExportedFile::Small(bytes.into()))));
        }
        export.files.sort_by_cached_key(|(path, _)| path.to_string());
        export.files.dedup_by(|one, other| one.0 == other.0);
        Ok(export)
    }

    async fn to_export(
        self: &Arc<Self>,
        package: &Package,
        digest: Digest,
        call: &RequestContext,
    ) -> Result<(Arc<ProofSet>, ArchiveHashes), Error> {
        self.proof_sets.documents.permit(&package.provider, &package.version, call).await?;
        let no_set = || Error::NotStored(format!("the proof set for the archive of {package}"));
        let stored = self.proof_sets.usable_set(package, call).await?.ok_or_else(no_set)?;
        let set = set_of(&stored.stored_set, digest).ok_or_else(no_set)?;
        if self.library.stored_archive(package, digest).await?.is_none()
            || !self.library.file_is_at_hand(digest).await?
        {
            return Err(Error::NotStored(format!("the archive of {package}")));
        }
        let h1 = self.library.package_hash(package, digest).await?;
        Ok((Arc::clone(set), ArchiveHashes { digest, h1 }))
    }
}

impl Export {
    /// Adds the proof of an archive: sums and signature byte for byte, and the document with its URLs replaced by file
    /// names in the tree.
    fn add_proof(
        &mut self,
        archive: &MirrorPath,
        package: &Package,
        set: &ProofSet,
        scope: SumsScope,
    ) -> Result<(), Error> {
        let Package { version, platform, .. } = package;
        let sums = archive.sibling(MirrorFileKind::Sums(scope.clone()));
        let signature = archive.sibling(MirrorFileKind::Signature(scope));
        let urls = [archive.name_of_file(), sums.name_of_file(), signature.name_of_file()];
        let document = set.document.rendered(urls, None);
        let document = document.map_err(|e| Error::unreadable_download_document(package, e))?;
        let place = archive.sibling(MirrorFileKind::Document(version.clone(), platform.clone()));
        self.files.push((place, ExportedFile::Small(document.into())));
        self.files.push((sums, ExportedFile::Small(set.sums.clone())));
        if !set.signature.is_empty() {
            self.files.push((signature, ExportedFile::Small(set.signature.clone())));
        }
        Ok(())
    }

    /// Writes the tree as a tar and returns the writer. `out` may block: it is written on a blocking thread, one file
    /// per job.
    ///
    /// # Errors
    /// The reader is gone, or an archive is damaged or missing. The tar is then incomplete.
    pub async fn write<W: Write + Send + 'static>(self, transfers: &Arc<Transfers>, out: W) -> io::Result<W> {
        let mut tar = TarWriter::new(out);
        for (path, file) in self.files {
            let (size_bytes, contents) = match file {
                ExportedFile::Small(bytes) => (bytes.len() as u64, Box::new(bytes.reader()) as Box<dyn Read + Send>),
                ExportedFile::Archive(package, digest) => {
                    open(transfers, &package, digest, &self.call).await.map_err(io::Error::other)?
                }
            };
            let writing = transfers.runtime.tasks.spawn_blocking(move || {
                tar.file(path.to_string().as_bytes(), Mode::Plain.bits(), size_bytes, contents)?;
                Ok::<_, io::Error>(tar)
            });
            tar = writing.await.map_err(io::Error::other)??;
        }
        transfers.runtime.tasks.spawn_blocking(move || tar.end()).await.map_err(io::Error::other)?
    }

    /// The number of archives to be written.
    pub fn archives(&self) -> usize {
        self.files.iter().filter(|(_, file)| matches!(file, ExportedFile::Archive(..))).count()
    }
}

/// Opens an archive that is checked as for a client, and returns its size with its contents.
async fn open(
    transfers: &Arc<Transfers>,
    package: &Package,
    digest: Digest,
    call: &RequestContext,
) -> Result<(u64, Box<dyn Read + Send>), Error> {
    let gone = || Error::NotStored(format!("the archive of {package}"));
    let stored_archive = transfers.library.stored_archive(package, digest).await?.ok_or_else(gone)?;
    // As work that no client waits for: it is opened when it is whole.
    let call = transfers.library.runtime.flight_context(call);
    match transfers.reader.open_stored(package, &stored_archive, &call).await? {
        Ok(Archive::InMemory { bytes, .. }) => Ok((bytes.len() as u64, Box::new(bytes.reader()))),
        Ok(Archive::OnDisk { blob, .. }) => Ok((blob.size_bytes(), Box::new(blob.reader()))),
        Ok(Archive::Arriving { .. } | Archive::PassedThrough { .. }) | Err(_) => Err(gone()),
    }
}
