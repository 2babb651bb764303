//! Imports a provider tree from a tar, one provider folder at a time. Each package is stored whole or not at all. A
//! reported package is final whatever happens to the rest. Importing the same tree again continues an interrupted
//! import.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::{self, Read};
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::super::{Mirror, RequestContext};
use super::arriving::{StagedArchives, StagedTreeArchive};
use super::beside::Beside;
use super::packing::Packing;
use super::{FileVerdict, ImportCounts, ImportStep, ImportedFile, Unsigned};
use crate::address::{Package, PackageRef, ProviderAddress, Version};
use crate::digest::Digest;
use crate::error::Error;
use crate::filesystem_mirror::carried::{ProviderTreeReader, TarEntry, TarFileContents};
use crate::filesystem_mirror::layout::{enclosing_package, enclosing_package_folder};
use crate::filesystem_mirror::{MirrorFileKind, MirrorPath, PathMeaning};
use crate::store::StoreError;

/// Maximum number of steps queued for the reader.
const STEPS_WAITING: usize = 16;

impl Mirror {
    /// Imports a tree that arrives as a tar, with the files of one provider together. Their order within the provider
    /// does not matter, unless too many archives wait for their proof. Reports each file, and stops when the receiver
    /// is dropped.
    ///
    /// # Errors
    /// [`Error::Busy`] while another tree is imported; [`Error::Store`] if the store is gone.
    pub fn import(
        self: &Arc<Self>,
        tar: impl Read + Send + 'static,
        unsigned: Unsigned,
        call: &RequestContext,
    ) -> Result<Receiver<ImportStep>, Error> {
        let alone = Arc::clone(&self.importing).try_lock_owned();
        let busy = |_| Error::Busy { what: "the import".to_owned(), why: "another tree is being imported".to_owned() };
        let alone = alone.map_err(busy)?;
        self.store.check()?;
        let (tell, told) = channel(STEPS_WAITING);
        let import = TreeImport {
            mirror: Arc::clone(self),
            runtime: Handle::current(),
            call: self.inner(call),
            unsigned,
            tell,
            beside: Beside::default(),
            waiting: StagedArchives::default(),
            packing: None,
            packed: HashSet::new(),
            proven: HashMap::new(),
            disputed: HashSet::new(),
            touched: BTreeSet::new(),
            vouched_for: BTreeSet::new(),
            counts: ImportCounts::default(),
        };
        let last_step = import.tell.clone();
        self.tasks.spawn_blocking(move || {
            let last = import.go(tar);
            // Released before the last step is sent: a script that reads it may start its next import at once.
            drop(alone);
            // The receiver may be gone.
            let _ = last_step.blocking_send(last);
        });
        Ok(told)
    }
}

pub(super) struct TreeImport {
    pub(super) mirror: Arc<Mirror>,
    pub(super) runtime: Handle,
    pub(super) call: RequestContext,
    pub(super) unsigned: Unsigned,
    tell: Sender<ImportStep>,
    pub(super) beside: Beside,
    /// Staged archives whose proof may follow later in the tar.
    pub(super) waiting: StagedArchives,
    /// The unpacked package that is being read.
    pub(super) packing: Option<Packing>,
    /// Every package that lies unpacked in the tree.
    pub(super) packed: HashSet<Package>,
    /// The digests proven so far, by package.
    pub(super) proven: HashMap<Package, Digest>,
    /// Packages with several different files in the tree, none of them proven.
    pub(super) disputed: HashSet<Package>,
    pub(super) touched: BTreeSet<ProviderAddress>,
    /// Versions with unproven archives that the operator vouches for.
    pub(super) vouched_for: BTreeSet<(ProviderAddress, Version)>,
    counts: ImportCounts,
}

/// Reasons to stop before the end of the tree.
pub(super) enum Stop {
    /// The tar is truncated or invalid.
    Tar(io::Error),
    /// The store failed while this file was processed. The file is not to blame.
    Store { file: String, error: StoreError },
    /// The receiver was dropped.
    Unheard,
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Tar(error)
    }
}

impl Stop {
    /// Attributes a store failure to the file that was processed.
    pub(super) fn over(file: &str) -> impl Fn(StoreError) -> Self {
        |error| Self::Store { file: file.to_owned(), error }
    }

    fn told(self) -> ImportStep {
        let error = match self {
            Self::Tar(error) => format!("the tree could not be read: {error}"),
            Self::Store { file, error } => {
                tracing::error!(file, %error, to_do = error.to_do(), "an import ended, because the store failed");
                format!("{file}: the store failed: {error}; {}", error.to_do())
            }
            Self::Unheard => "nobody listens any more".to_owned(),
        };
        ImportStep::Stopped { error }
    }
}

impl TreeImport {
    fn go(mut self, tar: impl Read) -> ImportStep {
        let read = ProviderTreeReader::new(tar).for_each_entry(|entry| self.entry(entry));
        let ended = match read {
            Ok(()) => self.end_of_folder(),
            Err(Stop::Tar(broken)) => {
                // Complete archives are judged. An unpacked package may lack files, so it is dropped.
                self.packing = None;
                self.judge_what_waits().and(Err(Stop::Tar(broken)))
            }
            Err(stop) => Err(stop),
        };
        self.waiting.discard();
        // Packages reported as stored are settled even if the import failed.
        let settled = self.settle();
        match (ended, settled) {
            (Ok(()), Ok(())) => ImportStep::Done(self.counts),
            (Err(stop), _) => stop.told(),
            (Ok(()), Err(error)) => ImportStep::Stopped { error: error.to_string() },
        }
    }

    fn entry<R: Read>(&mut self, entry: TarEntry<'_, R>) -> Result<(), Stop> {
        let (path, meaning, mut contents) = match entry {
            TarEntry::File { path, meaning, contents } => (path, meaning, contents),
            TarEntry::Refused { path, why } => {
                return match enclosing_package(&path) {
                    // A package that lacks a refused file is refused as a whole.
                    Some(package) => self.part_of(package, enclosing_package_folder(&path), |packing| {
                        packing.refuse(format!("a file of it stays out, {path:?}: {why}"));
                        Ok(())
                    }),
                    None => self.refused(path, None, 0, why),
                };
            }
        };
        match meaning {
            PathMeaning::Foreign => Ok(()),
            PathMeaning::Misnamed(why) => self.refused(path, None, contents.size_bytes(), why),
            PathMeaning::Unpacked(package, file) => self
                .part_of(package, enclosing_package_folder(&path), |packing| packing.take(&path, &file, &mut contents)),
            PathMeaning::File(MirrorPath { provider, member: MirrorFileKind::Archive(version, platform) }) => {
                self.at(&provider)?;
                self.archive(path, Package { provider, version, platform }, &mut contents)
            }
            PathMeaning::File(file) => {
                self.at(&file.provider)?;
                match self.beside.take(file, &mut contents)? {
                    Ok(()) => Ok(()),
                    Err(why) => self.refused(path, None, contents.size_bytes(), why),
                }
            }
        }
    }

    /// Switches to the folder of another provider.
    fn at(&mut self, provider: &ProviderAddress) -> Result<(), Stop> {
        if self.beside.of() == Some(provider) {
            return Ok(());
        }
        self.end_of_folder()?;
        self.beside.at(provider);
        Ok(())
    }

    fn end_of_folder(&mut self) -> Result<(), Stop> {
        self.end_packing()?;
        self.judge_what_waits()
    }

    /// Judges all waiting archives: at the end of a folder, or if disk space is short.
    pub(super) fn judge_what_waits(&mut self) -> Result<(), Stop> {
        while let Some(arrived) = self.waiting.next() {
            self.judge(arrived)?;
        }
        Ok(())
    }

    fn archive<R: Read>(
        &mut self,
        path: String,
        package: Package,
        contents: &mut TarFileContents<'_, R>,
    ) -> Result<(), Stop> {
        let arrived = match self.arrive(&path, &package, contents)? {
            Ok(arrived) => arrived,
            Err(why) => return self.refused(path, Some(&package), contents.size_bytes(), why),
        };
        if self.beside.speaks_for(&package) && !self.waiting.has(&package) {
            return self.judge(arrived);
        }
        self.wait(arrived)
    }

    /// Queues an archive whose proof may follow. If too many wait, the oldest is judged.
    pub(super) fn wait(&mut self, arrived: StagedTreeArchive) -> Result<(), Stop> {
        self.waiting.push(arrived);
        while let Some(arrived) = self.waiting.too_much() {
            self.judge(arrived)?;
        }
        Ok(())
    }

    /// Adds a file to the unpacked package at this place, and starts the package if it is new.
    fn part_of(
        &mut self,
        package: Package,
        place: &str,
        part: impl FnOnce(&mut Packing) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        self.at(&package.provider)?;
        if self.packing.as_ref().is_none_or(|packing| packing.place != place) {
            self.end_packing()?;
            let begun = Packing::begin(&self.mirror, package.clone(), place.to_owned());
            let mut packing = begun.map_err(Stop::over(place))?;
            if !self.packed.insert(package.clone()) {
                let why = "its files lie in two places of the tree, so neither is known to be all of it";
                if let Some(before) = self.waiting.take_packed(&package) {
                    let file = before.file.clone();
                    before.discard();
                    self.refused(file, Some(&package), 0, why.to_owned())?;
                }
                packing.refuse(why.to_owned());
            }
            self.packing = Some(packing);
        }
        self.packing.as_mut().map_or(Ok(()), part)
    }

    /// Completes and syncs the documents that several archives share.
    fn settle(&self) -> Result<(), Error> {
        self.runtime.block_on(async {
            let call = self.mirror.step(self.call.now.after(self.call.began.elapsed()));
            for (provider, version) in &self.vouched_for {
                self.mirror.complete_sums(provider, version, &call).await?;
            }
            let providers: BTreeSet<_> = self.vouched_for.iter().map(|(provider, _)| provider).collect();
            for provider in providers {
                self.mirror.list_imported(provider, &call).await?;
            }
            for provider in &self.touched {
                self.mirror.sync_what_leads_to(provider).await?;
                self.mirror.changed(provider);
            }
            Ok(())
        })
    }

    pub(super) fn refused(
        &mut self,
        file: String,
        of: Option<&Package>,
        size_bytes: u64,
        why: String,
    ) -> Result<(), Stop> {
        self.tell(file, of, size_bytes, FileVerdict::Refused { why }, Vec::new())
    }

    pub(super) fn tell(
        &mut self,
        file: String,
        of: Option<&Package>,
        size_bytes: u64,
        judged: FileVerdict,
        notes: Vec<String>,
    ) -> Result<(), Stop> {
        if let FileVerdict::Refused { why } = &judged {
            tracing::warn!(file, why, "a file of a tree stays out");
        }
        self.counts.count(&judged);
        let package = of.map(PackageRef::from);
        let told = ImportStep::File(ImportedFile { file, package, size_bytes, judged, notes });
        self.tell.blocking_send(told).map_err(|_| Stop::Unheard)
    }
}
