//! Imports a provider tree from a tar, one provider folder at a time. Each package is stored whole or not at all. A
//! reported package is final whatever happens to the rest. Importing the same tree again continues an interrupted
//! import.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::{self, Read};
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::mpsc::{Receiver, channel};

use crate::address::{Package, ProviderAddress};
use crate::error::Error;
use crate::filesystem_mirror::layout::{enclosing_package, enclosing_package_folder};
use crate::filesystem_mirror::provider_tar::{ProviderTreeReader, TarEntry, TarFileContents};
use crate::filesystem_mirror::{MirrorFileKind, MirrorPath, PathMeaning};
use crate::mirror::transfer::tree::progress::{ImportAbort, TreeImport};
use crate::mirror::transfer::tree::repack::{PackageRepack, RepackError};
use crate::mirror::transfer::tree::sidecar_files::SidecarFiles;
use crate::mirror::transfer::tree::staging::{ArchiveOrigin, WaitingArchives, staged_archive};
use crate::mirror::transfer::tree::{ImportCounts, ImportStep, UnsignedPolicy};
use crate::mirror::{RequestContext, Transfers};
use crate::verify::{PackageLimits, package_hashes};

/// Maximum number of steps queued for the reader.
const IMPORT_STEP_QUEUE: usize = 16;

impl Transfers {
    /// Imports a tree that arrives as a tar, with the files of one provider together. Their order within the provider
    /// does not matter, unless too many archives wait for their proof. Reports each file, and stops when the receiver
    /// is dropped.
    ///
    /// # Errors
    /// [`Error::Busy`] while another tree is imported; [`Error::Store`] if the store is gone.
    pub fn import(
        self: &Arc<Self>,
        tar: impl Read + Send + 'static,
        unsigned: UnsignedPolicy,
        call: &RequestContext,
    ) -> Result<Receiver<ImportStep>, Error> {
        let alone = Arc::clone(&self.tree_import_lock).try_lock_owned();
        let busy =
            |_| Error::Busy { subject: "the import".to_owned(), reason: "another tree is being imported".to_owned() };
        let alone = alone.map_err(busy)?;
        self.library.store.check()?;
        let (sender, steps) = channel(IMPORT_STEP_QUEUE);
        let import = TreeImport {
            transfers: Arc::clone(self),
            runtime: Handle::current(),
            call: self.runtime.flight_context(call),
            unsigned,
            steps: sender,
            sidecars: SidecarFiles::default(),
            waiting: WaitingArchives::default(),
            repack: None,
            packed: HashSet::new(),
            proven: HashMap::new(),
            disputed: HashSet::new(),
            affected_providers: BTreeSet::new(),
            vouched_for: BTreeSet::new(),
            counts: ImportCounts::default(),
        };
        let last_step = import.steps.clone();
        self.runtime.tasks.spawn_blocking(move || {
            let last = import.run(tar);
            // Released before the last step is sent: a script that reads it may start its next import at once.
            drop(alone);
            // The receiver may be gone.
            let _ = last_step.blocking_send(last);
        });
        Ok(steps)
    }
}

impl TreeImport {
    fn run(mut self, tar: impl Read) -> ImportStep {
        let read = ProviderTreeReader::new(tar).for_each_entry(|entry| self.read_entry(entry));
        let ended = match read {
            Ok(()) => self.end_of_folder(),
            Err(ImportAbort::Tar(broken)) => {
                // Complete archives are judged. An unpacked package may lack files, so it is dropped.
                self.repack = None;
                self.judge_waiting().and(Err(ImportAbort::Tar(broken)))
            }
            Err(stop) => Err(stop),
        };
        self.waiting.discard();
        // Packages reported as stored are settled even if the import failed.
        let settled = self.sync_shared_documents();
        match (ended, settled) {
            (Ok(()), Ok(())) => ImportStep::Done(self.counts),
            (Err(stop), _) => stop.into_step(),
            (Ok(()), Err(error)) => ImportStep::Stopped { error: error.to_string() },
        }
    }

    fn read_entry<R: Read>(&mut self, entry: TarEntry<'_, R>) -> Result<(), ImportAbort> {
        let (path, meaning, mut contents) = match entry {
            TarEntry::File { path, meaning, contents } => (path, meaning, contents),
            TarEntry::Refused { path, reason } => {
                return match enclosing_package(&path) {
                    // A package that lacks a refused file is refused as a whole.
                    Some(package) => self.add_to_package(package, enclosing_package_folder(&path), |packing| {
                        packing.refuse(format!("a file in it is refused, {path:?}: {reason}"));
                        Ok(())
                    }),
                    None => self.refused(path, None, 0, reason),
                };
            }
        };
        match meaning {
            PathMeaning::Foreign => Ok(()),
            PathMeaning::Misnamed(reason) => self.refused(path, None, contents.size_bytes(), reason),
            PathMeaning::Unpacked(package, file) => {
                self.add_to_package(package, enclosing_package_folder(&path), |packing| {
                    packing.add_file(&path, &file, &mut contents)
                })
            }
            PathMeaning::File(MirrorPath { provider, kind: MirrorFileKind::Archive(version, platform) }) => {
                self.enter_provider(&provider)?;
                self.archive(path, Package { provider, version, platform }, &mut contents)
            }
            PathMeaning::File(file) => {
                self.enter_provider(&file.provider)?;
                match self.sidecars.take(file, &mut contents)? {
                    Ok(()) => Ok(()),
                    Err(reason) => self.refused(path, None, contents.size_bytes(), reason),
                }
            }
        }
    }

    /// Switches to the folder of another provider.
    fn enter_provider(&mut self, provider: &ProviderAddress) -> Result<(), ImportAbort> {
        if self.sidecars.provider() == Some(provider) {
            return Ok(());
        }
        self.end_of_folder()?;
        self.sidecars.switch_to(provider);
        Ok(())
    }

    fn end_of_folder(&mut self) -> Result<(), ImportAbort> {
        self.finish_package()?;
        self.judge_waiting()
    }

    fn archive<R: Read>(
        &mut self,
        path: String,
        package: Package,
        contents: &mut TarFileContents<'_, R>,
    ) -> Result<(), ImportAbort> {
        let arrived = match self.stage_archive(&path, &package, contents)? {
            Ok(arrived) => arrived,
            Err(reason) => return self.refused(path, Some(&package), contents.size_bytes(), reason),
        };
        if self.sidecars.can_prove(&package) && !self.waiting.has(&package) {
            return self.judge_archive(arrived);
        }
        self.enqueue(arrived)
    }

    /// Adds a file to the unpacked package at this place, and starts the package if it is new.
    fn add_to_package(
        &mut self,
        package: Package,
        place: &str,
        part: impl FnOnce(&mut PackageRepack) -> Result<(), ImportAbort>,
    ) -> Result<(), ImportAbort> {
        self.enter_provider(&package.provider)?;
        if self.repack.as_ref().is_none_or(|packing| packing.folder != place) {
            self.finish_package()?;
            let begun = PackageRepack::begin(&self.transfers.library, package.clone(), place.to_owned());
            let mut packing = begun.map_err(ImportAbort::store_failed_at(place))?;
            if !self.packed.insert(package.clone()) {
                let reason = "its files are in two places of the tree, so neither is known to be complete";
                if let Some(before) = self.waiting.remove_repacked(&package) {
                    let file = before.file.clone();
                    before.discard();
                    self.refused(file, Some(&package), 0, reason.to_owned())?;
                }
                packing.refuse(reason.to_owned());
            }
            self.repack = Some(packing);
        }
        self.repack.as_mut().map_or(Ok(()), part)
    }

    /// Completes and syncs the documents that several archives share.
    fn sync_shared_documents(&self) -> Result<(), Error> {
        self.runtime.block_on(async {
            let call = self.transfers.runtime.step_context(self.call.now.after(self.call.started.elapsed()));
            for (provider, version) in &self.vouched_for {
                self.transfers.complete_sums(provider, version, &call).await?;
            }
            let providers: BTreeSet<_> = self.vouched_for.iter().map(|(provider, _)| provider).collect();
            for provider in providers {
                self.transfers.list_imported(provider, &call).await?;
            }
            for provider in &self.affected_providers {
                self.transfers.library.sync_provider_documents(provider).await?;
                self.transfers.library.bump_revision(provider);
            }
            Ok(())
        })
    }

    /// Zips the unpacked package that is complete now, and queues it for its verdict.
    pub(in crate::mirror) fn finish_package(&mut self) -> Result<(), ImportAbort> {
        let Some(packing) = self.repack.take() else { return Ok(()) };
        let (package, place) = (packing.package.clone(), packing.folder.clone());
        let bytes = packing.tree.bytes();
        let known = self.call.upstream(&package.provider.host).map(drop);
        if let Some(reason) = known.err().map(|error| error.to_string()).or_else(|| packing.flaw()) {
            return self.refused(place, Some(&package), bytes, reason);
        }
        let mut staged = self.stage(&place, packing.max_zip_bytes())?;
        let hashed = packing.zip_into(&mut staged).and_then(|()| {
            let zip = io::BufReader::new(staged.file().map_err(RepackError::Store)?);
            package_hashes(zip, PackageLimits::default()).map_err(|bad| RepackError::Refused(bad.to_string()))
        });
        match hashed {
            Ok(hashes) => {
                self.enqueue(staged_archive(&place, &package, staged, ArchiveOrigin::Repacked { h1: hashes.directory }))
            }
            Err(RepackError::Refused(reason)) => {
                staged_archive(&place, &package, staged, ArchiveOrigin::FromTree).discard();
                self.refused(place, Some(&package), bytes, reason)
            }
            Err(RepackError::Store(error)) => {
                staged_archive(&place, &package, staged, ArchiveOrigin::FromTree).discard();
                Err(ImportAbort::store_failed_at(&place)(error))
            }
        }
    }
}
