//! Imports a provider tree from a tar, one provider folder at a time. Each package is stored whole or not at all. A
//! reported package is final whatever happens to the rest. Importing the same tree again continues an interrupted
//! import.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::io::{self, BufReader, Read};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::address::{Package, PackageRef, ProviderAddress};
use crate::digest::{Digest, FastHash};
use crate::error::Error;
use crate::filesystem_mirror::layout::{enclosing_package, enclosing_package_folder};
use crate::filesystem_mirror::provider_tar::{ProviderTreeReader, TarEntry};
use crate::filesystem_mirror::{MirrorFileKind, MirrorPath, Mode, PathMeaning};
use crate::mirror::archives::download::StageWriter;
use crate::mirror::library::ZipOrigin;
use crate::mirror::transfer::tree::local_sets::{ImportedVersions, SidecarFiles};
use crate::mirror::transfer::tree::{FileVerdict, ImportCounts, ImportStep, ImportedFile, UnsignedPolicy};
use crate::mirror::transfer::{EVENT_QUEUE, TransferStage};
use crate::mirror::{Library, RequestContext, Transfers, Urgency};
use crate::packaging::{Tree, TreeEntry, TreeError, TreeLimits, TreePath, pack_zip};
use crate::store::{Scratch, StoreError};
use crate::verify::{PackageLimits, package_hashes};

const COPY_BUFFER_BYTES: usize = 256 << 10;
/// Maximum number of archives that wait for proof later in the tar.
const MAX_WAITING: usize = 64;
/// Maximum total size of waiting archives, in bytes.
const MAX_WAITING_BYTES: u64 = 4 << 30;
/// Maximum zip overhead per file: its name twice, and two headers.
const ZIP_OVERHEAD_PER_FILE: u64 = 2 * (4096 + 128);
/// The refusal of a package that lies unpacked in two folders.
const IN_TWO_PLACES: &str = "its files are in two places of the tree, so neither is known to be complete";

impl Transfers {
    /// Imports a tree that arrives as a tar, with the files of one provider together. Their order within the provider
    /// does not matter, unless too many archives wait for their proof. Reports each file, and stops when the receiver
    /// is dropped. A shutdown waits for it.
    ///
    /// # Errors
    /// [`Error::Busy`] while another tree is imported; [`Error::Store`] if the store is gone.
    pub fn import(
        self: &Arc<Self>,
        tar: impl Read + Send + 'static,
        unsigned: UnsignedPolicy,
        call: &RequestContext,
    ) -> Result<Receiver<ImportStep>, Error> {
        let import_lock = Arc::clone(&self.tree_import_lock).try_lock_owned();
        let busy =
            |_| Error::Busy { subject: "the import".to_owned(), reason: "another tree is being imported".to_owned() };
        let import_lock = import_lock.map_err(busy)?;
        self.library.require_store()?;
        let (sender, steps) = channel(EVENT_QUEUE);
        let import = TreeImport {
            transfers: Arc::clone(self),
            call: self.runtime.flight_context(call),
            unsigned,
            steps: sender.clone(),
            tar: Arc::new(Mutex::new(TreeTar { reader: ProviderTreeReader::new(Box::new(tar)), repack: None })),
            sidecars: SidecarFiles::default(),
            waiting: VecDeque::new(),
            seen_unpacked: HashSet::new(),
            proven: HashMap::new(),
            disputed: HashSet::new(),
            affected_providers: BTreeSet::new(),
            vouched_for: ImportedVersions::new(),
            counts: ImportCounts::default(),
        };
        self.runtime.tasks.spawn_to_end(async move {
            let last = Box::pin(import.run()).await;
            // Released before the last step is sent: a script that reads it may start its next import at once.
            drop(import_lock);
            // The receiver may be gone.
            let _ = sender.send(last).await;
        });
        Ok(steps)
    }
}

/// Reasons to stop before the end of the tree.
pub(super) enum ImportAbort {
    /// The tar is truncated or invalid.
    Tar(io::Error),
    /// The store failed while this file was processed. The file is not to blame.
    Store { file: String, error: StoreError },
    /// The receiver was dropped.
    ReceiverGone,
}

impl From<io::Error> for ImportAbort {
    fn from(error: io::Error) -> Self {
        Self::Tar(error)
    }
}

impl ImportAbort {
    /// Attributes a store failure to the file that was processed.
    pub(super) fn store_failed_at(file: &str) -> impl Fn(StoreError) -> Self {
        |error| Self::Store { file: file.to_owned(), error }
    }

    fn into_step(self) -> ImportStep {
        let error = match self {
            Self::Tar(error) => format!("the tree could not be read: {error}"),
            Self::Store { file, error } => {
                tracing::error!(file, %error, to_do = error.remedy(), "an import stopped because the store failed");
                format!("{file}: the store failed: {error}; {}", error.remedy())
            }
            Self::ReceiverGone => "the client has disconnected".to_owned(),
        };
        ImportStep::Stopped { error }
    }
}

/// The state of an import.
pub(super) struct TreeImport {
    pub(super) transfers: Arc<Transfers>,
    pub(super) call: RequestContext,
    pub(super) unsigned: UnsignedPolicy,
    steps: Sender<ImportStep>,
    /// Locked by one blocking thread at a time.
    tar: Arc<Mutex<TreeTar>>,
    pub(super) sidecars: SidecarFiles,
    /// Staged archives whose proof may follow later in the tar, oldest first.
    pub(super) waiting: VecDeque<StagedTreeArchive>,
    /// Every package that lies unpacked in the tree.
    seen_unpacked: HashSet<Package>,
    /// The digests proven so far, by package.
    pub(super) proven: HashMap<Package, Digest>,
    /// Packages with several different files in the tree, none of them proven.
    pub(super) disputed: HashSet<Package>,
    pub(super) affected_providers: BTreeSet<ProviderAddress>,
    /// Versions with unproven archives that the operator vouches for.
    pub(super) vouched_for: ImportedVersions,
    counts: ImportCounts,
}

/// The input that blocking threads read: the tar, and the unpacked package that is being read from it.
struct TreeTar {
    reader: ProviderTreeReader<Box<dyn Read + Send>>,
    repack: Option<PackageRepack>,
}

impl TreeImport {
    async fn run(mut self) -> ImportStep {
        let ended = match self.read_entries().await {
            Err(ImportAbort::Tar(broken)) => {
                // Complete archives are judged. An unpacked package may lack files, so it is dropped.
                self.tar.lock().repack = None;
                self.judge_waiting().await.and(Err(ImportAbort::Tar(broken)))
            }
            ended => ended,
        };
        self.waiting.clear();
        // Packages reported as stored are settled even if the import failed.
        let settled = self.sync_shared_documents().await;
        match (ended, settled) {
            (Ok(()), Ok(())) => ImportStep::Done(self.counts),
            (Err(stop), _) => stop.into_step(),
            (Ok(()), Err(error)) => ImportStep::Stopped { error: error.to_string() },
        }
    }

    /// Reads on, on a blocking thread.
    async fn on_tar<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut TreeTar) -> Result<T, ImportAbort> + Send + 'static,
    ) -> Result<T, ImportAbort> {
        let tar = Arc::clone(&self.tar);
        let reading = self.transfers.runtime.tasks.spawn_blocking(move || work(&mut tar.lock()));
        reading.await.unwrap_or_else(|error| Err(io::Error::other(error).into()))
    }

    async fn read_entries(&mut self) -> Result<(), ImportAbort> {
        while let Some(entry) = self.on_tar(|tar| Ok(tar.reader.next_entry()?)).await? {
            self.read_entry(entry).await?;
        }
        self.end_of_folder().await
    }

    async fn read_entry(&mut self, entry: TarEntry) -> Result<(), ImportAbort> {
        let TarEntry { path, meaning, size_bytes, mode } = entry;
        match meaning {
            Ok(PathMeaning::Foreign) => Ok(()),
            Ok(PathMeaning::Misnamed(reason)) => self.refused(path, None, size_bytes, reason).await,
            Ok(PathMeaning::Unpacked(package, file)) => {
                self.enter_package(package, &path).await?;
                self.on_tar(move |tar| tar.repack_file(&path, &file, mode)).await
            }
            Ok(PathMeaning::File(MirrorPath { provider, kind: MirrorFileKind::Archive(version, platform) })) => {
                self.enter_provider(&provider).await?;
                self.archive(path, Package { provider, version, platform }, size_bytes).await
            }
            Ok(PathMeaning::File(MirrorPath { provider, kind })) => {
                self.enter_provider(&provider).await?;
                let Some(max_bytes) = SidecarFiles::max_sidecar_bytes(&kind) else { return Ok(()) };
                let bytes = self.on_tar(move |tar| Ok(tar.reader.read_at_most(max_bytes)?)).await?;
                let too_large = || format!("it has {size_bytes} bytes; at most {max_bytes} are read");
                match bytes.ok_or_else(too_large).and_then(|bytes| self.sidecars.insert(kind, bytes)) {
                    Ok(()) => Ok(()),
                    Err(reason) => self.refused(path, None, size_bytes, reason).await,
                }
            }
            Err(reason) => match enclosing_package(&path) {
                // A package that lacks a refused file is refused as a whole.
                Some(package) => {
                    self.enter_package(package, &path).await?;
                    if let Some(repack) = &mut self.tar.lock().repack {
                        repack.refuse(format!("a file in it is refused, {path:?}: {reason}"));
                    }
                    Ok(())
                }
                None => self.refused(path, None, 0, reason).await,
            },
        }
    }

    /// Switches to the folder of another provider.
    async fn enter_provider(&mut self, provider: &ProviderAddress) -> Result<(), ImportAbort> {
        if self.sidecars.provider.as_ref() != Some(provider) {
            self.end_of_folder().await?;
            self.sidecars = SidecarFiles::of(provider);
        }
        Ok(())
    }

    async fn end_of_folder(&mut self) -> Result<(), ImportAbort> {
        self.finish_package().await?;
        self.judge_waiting().await
    }

    /// Switches to the unpacked package that contains this path, and starts it if it is new.
    async fn enter_package(&mut self, package: Package, path: &str) -> Result<(), ImportAbort> {
        let folder = enclosing_package_folder(path).to_owned();
        self.enter_provider(&package.provider).await?;
        if self.tar.lock().repack.as_ref().is_some_and(|repack| repack.folder == folder) {
            return Ok(());
        }
        self.finish_package().await?;
        let library = Arc::clone(&self.transfers.library);
        let is_second = !self.seen_unpacked.insert(package.clone());
        let is_same = |waiting: &StagedTreeArchive| waiting.repacked_h1.is_some() && waiting.package == package;
        if is_second
            && let Some(index) = self.waiting.iter().position(is_same)
            && let Some(first) = self.waiting.remove(index)
        {
            self.refused(first.file, Some(&package), 0, IN_TWO_PLACES.to_owned()).await?;
        }
        self.on_tar(move |tar| {
            let begun = PackageRepack::begin(&library, package, folder.clone());
            let repack = tar.repack.insert(begun.map_err(ImportAbort::store_failed_at(&folder))?);
            if is_second {
                repack.refuse(IN_TWO_PLACES.to_owned());
            }
            Ok(())
        })
        .await
    }

    /// Zips the unpacked package that is complete now, and queues it for its verdict.
    async fn finish_package(&mut self) -> Result<(), ImportAbort> {
        let Some(repack) = self.tar.lock().repack.take() else { return Ok(()) };
        let (package, folder, bytes) = (repack.package.clone(), repack.folder.clone(), repack.tree.bytes());
        let unknown = self.call.upstream(&package.provider.host).err().map(|error| error.to_string());
        if let Some(reason) = unknown.or_else(|| repack.flaw()) {
            return self.refused(folder, Some(&package), bytes, reason).await;
        }
        let stage = self.stage(&folder, repack.max_zip_bytes()).await?;
        let zipped = self.on_tar(move |_| {
            let folder = repack.folder.clone();
            repack.zip_into(stage).map_err(ImportAbort::store_failed_at(&folder))
        });
        match zipped.await? {
            Ok(arrived) => self.enqueue(arrived).await,
            Err(reason) => self.refused(folder, Some(&package), bytes, reason).await,
        }
    }

    /// Stages an archive, and judges it once its proof is there.
    async fn archive(&mut self, file: String, package: Package, size_bytes: u64) -> Result<(), ImportAbort> {
        if let Err(error) = self.call.upstream(&package.provider.host) {
            return self.refused(file, Some(&package), size_bytes, error.to_string()).await;
        }
        let library = Arc::clone(&self.transfers.library);
        let limit = self.on_tar(move |_| Ok(library.refresh_size_limit())).await?;
        let limit = self.transfers.runtime.limits.archive_bytes.min(limit);
        if size_bytes > limit {
            let reason = format!("it has {size_bytes} bytes, the limit for archives is {limit}");
            return self.refused(file, Some(&package), size_bytes, reason).await;
        }
        let mut stage = self.stage(&file, size_bytes).await?;
        let arrived = self.on_tar(move |tar| {
            let mut writer = StageWriter::new(&mut stage);
            let copied = io::copy(&mut BufReader::with_capacity(COPY_BUFFER_BYTES, &mut tar.reader), &mut writer);
            writer.end(copied).map_err(ImportAbort::store_failed_at(&file))??;
            Ok(StagedTreeArchive::new(file, package, stage, None))
        });
        let arrived = arrived.await?;
        let another_waits = self.waiting.iter().any(|waiting| waiting.package == arrived.package);
        if self.sidecars.can_prove(&arrived.package) && !another_waits {
            return self.judge_archive(arrived).await;
        }
        self.enqueue(arrived).await
    }

    /// Creates a staging file with disk space allocated. On a full disk the waiting archives are judged first, then
    /// others are evicted as for a download.
    async fn stage(&mut self, file: &str, bytes: u64) -> Result<TransferStage, ImportAbort> {
        let name = format!("import~{}", &FastHash::of(file.as_bytes()).to_string()[..16]);
        let (library, again) = (Arc::clone(&self.transfers.library), name.clone());
        let stage = self.on_tar(move |_| Ok(TransferStage::create_stage(&library, &name, bytes))).await?;
        let full = match stage {
            Err(full) if full.is_full() => full,
            stage => return stage.map_err(ImportAbort::store_failed_at(file)),
        };
        self.judge_waiting().await?;
        let library = Arc::clone(&self.transfers.library);
        let stage = self.on_tar(move |_| Ok(TransferStage::create_after(&library, &again, bytes, full)));
        stage.await?.map_err(ImportAbort::store_failed_at(file))
    }

    /// Judges all waiting archives: at the end of a folder, or if disk space is short.
    async fn judge_waiting(&mut self) -> Result<(), ImportAbort> {
        self.judge_oldest(0, 0).await
    }

    /// Queues an archive whose proof may follow.
    async fn enqueue(&mut self, arrived: StagedTreeArchive) -> Result<(), ImportAbort> {
        self.waiting.push_back(arrived);
        self.judge_oldest(MAX_WAITING, MAX_WAITING_BYTES).await
    }

    /// Judges the oldest waiting archives until no more than these wait.
    async fn judge_oldest(&mut self, max_archives: usize, max_bytes: u64) -> Result<(), ImportAbort> {
        let bytes =
            |waiting: &VecDeque<StagedTreeArchive>| -> u64 { waiting.iter().map(|one| one.stage.written()).sum() };
        while (self.waiting.len() > max_archives || bytes(&self.waiting) > max_bytes)
            && let Some(oldest) = self.waiting.pop_front()
        {
            self.judge_archive(oldest).await?;
        }
        Ok(())
    }

    /// Completes and syncs the documents that several archives share.
    async fn sync_shared_documents(&self) -> Result<(), Error> {
        let transfers = &self.transfers;
        let call = transfers.runtime.step_context(Urgency::Job, self.call.present());
        for (provider, versions) in &self.vouched_for {
            transfers.complete_documents(provider, versions, &call).await?;
        }
        for provider in &self.affected_providers {
            transfers.library.sync_provider_documents(provider).await?;
        }
        Ok(())
    }

    async fn refused(
        &mut self,
        file: String,
        package: Option<&Package>,
        size_bytes: u64,
        reason: String,
    ) -> Result<(), ImportAbort> {
        let (package, judged) = (package.map(PackageRef::from), FileVerdict::Refused { why: reason });
        self.report(ImportedFile { file, package, size_bytes, judged, notes: Vec::new() }).await
    }

    pub(super) async fn report(&mut self, file: ImportedFile) -> Result<(), ImportAbort> {
        if let FileVerdict::Refused { why: reason } = &file.judged {
            tracing::warn!(file = file.file, reason, "a file of a tree was refused");
        }
        self.counts.count(&file.judged);
        self.steps.send(ImportStep::File(file)).await.map_err(|_| ImportAbort::ReceiverGone)
    }
}

/// A staged archive, not committed to the store yet.
pub(super) struct StagedTreeArchive {
    /// The path in the tree; for a repacked package, its folder.
    pub(super) file: String,
    pub(super) package: Package,
    pub(super) stage: TransferStage,
    pub(super) digest: Digest,
    pub(super) fast: FastHash,
    /// The `h1:` of the unpacked package that larder packed it from; `None` for an archive of the tree.
    pub(super) repacked_h1: Option<String>,
}

impl StagedTreeArchive {
    fn new(file: String, package: Package, stage: TransferStage, repacked_h1: Option<String>) -> Self {
        let (digest, fast) = stage.hashes();
        Self { file, package, stage, digest, fast, repacked_h1 }
    }

    pub(super) fn zip_origin(&self) -> ZipOrigin {
        if self.repacked_h1.is_some() { ZipOrigin::PackedAnew } else { ZipOrigin::Published }
    }
}

/// An unpacked package that is being read. Its files are spooled, and then packed into a deterministic zip.
struct PackageRepack {
    package: Package,
    /// The package's folder, as spelled in the tree.
    folder: String,
    tree: Tree,
    flaw: Option<String>,
    scratch: Scratch,
}

impl TreeTar {
    /// Adds a file to the unpacked package that is being read. `path` is relative to the tree, `file` to the package.
    ///
    /// # Errors
    /// The tar broke off, or the disk failed.
    fn repack_file(&mut self, path: &str, file: &str, mode: Mode) -> Result<(), ImportAbort> {
        let Some(repack) = self.repack.as_mut().filter(|repack| repack.flaw.is_none()) else { return Ok(()) };
        // Clients execute the plugin, even if the tree's file system lost its mode.
        let mode = if repack.is_plugin(file) { Mode::Executable } else { mode };
        let added = match TreePath::parse(file.as_bytes()) {
            Ok(file) => repack.tree.add_file(&file, mode.bits(), &mut self.reader),
            Err(bad) => Err(TreeError::bad_path(file.as_bytes(), &bad)),
        };
        match added {
            Ok(_) => Ok(()),
            Err(TreeError::Unreadable(reason)) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason).into()),
            Err(TreeError::Spool(error)) => Err(ImportAbort::store_failed_at(path)(repack.spool_failed(error))),
            Err(bad @ (TreeError::Refused { .. } | TreeError::TooLarge(_) | TreeError::LargeFile { .. })) => {
                repack.refuse(bad.to_string());
                Ok(())
            }
        }
    }
}

impl PackageRepack {
    /// Starts a package.
    ///
    /// # Errors
    /// The spool could not be created.
    fn begin(library: &Library, package: Package, folder: String) -> Result<Self, StoreError> {
        let scratch = library.scratch()?;
        let bytes = library.runtime.limits.archive_bytes;
        let limits = TreeLimits { entries: PackageLimits::default().entries, bytes, file_bytes: bytes };
        Ok(Self { package, folder, tree: Tree::new(scratch.file()?, limits), flaw: None, scratch })
    }

    fn refuse(&mut self, reason: String) {
        self.flaw.get_or_insert(reason);
    }

    fn spool_failed(&self, source: Arc<io::Error>) -> StoreError {
        StoreError::Io { doing: "write unpacked files to", path: self.scratch.path().join("spool"), source }
    }

    /// True if the file is the executable that clients run.
    fn is_plugin(&self, file: &str) -> bool {
        !file.contains('/') && file.starts_with(&self.plugin())
    }

    fn plugin(&self) -> String {
        format!("terraform-provider-{}", self.package.provider.type_)
    }

    /// The reason that no client could install the package, if there is one.
    fn flaw(&self) -> Option<String> {
        let mut files = self.tree.entries().filter(|(_, entry)| matches!(entry, TreeEntry::File(_)));
        let has_plugin = files.any(|(path, _)| self.is_plugin(&path.to_string()));
        let no_plugin = || format!("no file in it is named {}…, so no client could run it", self.plugin());
        self.flaw.clone().or_else(|| (!has_plugin).then(no_plugin))
    }

    /// Maximum size of its zip.
    fn max_zip_bytes(&self) -> u64 {
        let files = self.tree.entries().count() as u64;
        // Deflate adds at most five bytes to each 16 KiB that it cannot compress.
        self.tree.bytes() + self.tree.bytes() / 1024 + (files + 1) * ZIP_OVERHEAD_PER_FILE
    }

    /// Packs the zip. The inner error is the reason that the package is refused.
    fn zip_into(self, mut stage: TransferStage) -> Result<Result<StagedTreeArchive, String>, StoreError> {
        let mut writer = StageWriter::new(&mut stage);
        let zipped = pack_zip(&self.tree, &mut writer);
        match writer.end(zipped)? {
            Ok(()) => {}
            Err(TreeError::Spool(error)) => return Err(self.spool_failed(error)),
            Err(bad) => return Ok(Err(bad.to_string())),
        }
        let hashes = package_hashes(BufReader::new(stage.file()?), PackageLimits::default());
        let archive =
            hashes.map(|hashes| StagedTreeArchive::new(self.folder, self.package, stage, Some(hashes.directory)));
        Ok(archive.map_err(|bad| bad.to_string()))
    }
}
