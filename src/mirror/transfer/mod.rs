//! Archives carried in and out: bundles and provider trees. What arrives is staged, verified and committed like a
//! download. Files are read and written on blocking threads; nothing blocks on a future.

mod bundle;
mod tree;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use url::Url;

pub use self::bundle::export::{GatherError, GatheredBundle, PlannedSignature};
pub use self::bundle::import::{ApplyError, ApplyOptions};
pub use self::tree::export::{Export, NotExported};
pub use self::tree::{FileVerdict, ImportCounts, ImportStep, ImportedFile, ProvenBy, UnsignedPolicy};
use crate::address::Package;
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::library::intake::ArchiveBytes;
use crate::mirror::library::proof_set::{ProofSet, ProofSetMetadata, StoredProofSet};
use crate::mirror::{Library, ProofSets, Runtime, VerifiedReader};
use crate::store::{ResumeNote, Scratch, Staged, StoreError};
use crate::upstream::error::sanitized;
use crate::upstream::request::Validators;
use crate::verify::{Proof, VerificationError, Verified};

/// The most exports and bundles created at a time. Each may occupy a thread for as long as its client takes.
const MAX_TRANSFERS: usize = 4;
/// The most events queued for the client that watches an import.
const EVENT_QUEUE: usize = 16;

/// Imports and exports bundles and provider trees.
#[derive(Debug)]
pub struct Transfers {
    runtime: Arc<Runtime>,
    library: Arc<Library>,
    proof_sets: Arc<ProofSets>,
    reader: Arc<VerifiedReader>,
    export_permits: Arc<Semaphore>,
    tree_import_lock: Arc<Mutex<()>>,
    /// Held while the shared documents of imported archives are completed: by an import, and for killed ones after a start.
    completion_lock: Mutex<()>,
    bundle_import_lock: Arc<Mutex<()>>,
}

/// A permit for one export or bundle, released on drop.
#[derive(Debug)]
pub struct TransferPermit(#[expect(dead_code, reason = "held only for its Drop")] OwnedSemaphorePermit);

impl Transfers {
    pub(super) fn new(proof_sets: Arc<ProofSets>, reader: Arc<VerifiedReader>) -> Arc<Self> {
        Arc::new(Self {
            runtime: Arc::clone(&proof_sets.runtime),
            library: Arc::clone(&proof_sets.library),
            proof_sets,
            reader,
            export_permits: Arc::new(Semaphore::new(MAX_TRANSFERS)),
            tree_import_lock: Arc::default(),
            completion_lock: Mutex::default(),
            bundle_import_lock: Arc::default(),
        })
    }

    /// Takes a permit for an export or a bundle.
    ///
    /// # Errors
    /// [`Error::Busy`] where none is free.
    pub fn transfer(&self) -> Result<TransferPermit, Error> {
        let reason = || format!("{MAX_TRANSFERS} exports and bundles are being made, as many as may be at one time");
        let busy = || Error::Busy { subject: "the transfer".to_owned(), reason: reason() };
        Arc::clone(&self.export_permits).try_acquire_owned().map(TransferPermit).map_err(|_| busy())
    }
}

/// Builds a proof set from files that no upstream sent. The URLs are the requested one and that after redirects.
fn set_of_files(
    package: &Package,
    [asked, url]: [Url; 2],
    fetched: Timestamp,
    proof: Proof,
    [body, sums, signature]: [Bytes; 3],
) -> Result<ProofSet, String> {
    let metadata = ProofSetMetadata {
        asked,
        url,
        origins: Vec::new(),
        validators: Validators::default(),
        sums_validators: Validators::default(),
        signature_validators: Validators::default(),
        fetched,
        proof,
    };
    ProofSet::new(metadata, body, sums, signature, package).map_err(|reason| sanitized(&reason))
}

/// The current or previous set that names this archive.
fn set_of(stored_set: &StoredProofSet, digest: Digest) -> Option<&Arc<ProofSet>> {
    let predecessor = stored_set.predecessor.as_ref().map(|(set, _)| set);
    [Some(&stored_set.current), predecessor].into_iter().flatten().find(|set| set.document.shasum == digest)
}

/// A staging file of an import, removed on drop unless its bytes are committed.
#[derive(Debug)]
struct TransferStage(Option<Staged>);

impl TransferStage {
    /// Creates a staging file with disk space for `bytes`. Leftovers of an interrupted import may have other bytes and
    /// are discarded.
    fn create_stage(library: &Library, name: &str, bytes: u64) -> Result<Self, StoreError> {
        let mut stage = Self(Some(library.stage_anew(name)?));
        // Also reserves the disk space. The note itself is never read, because leftovers are discarded.
        stage.remember(ResumeNote { length: Some(bytes), ..ResumeNote::default() }, bytes)?;
        Ok(stage)
    }

    /// Creates a staging file at the second attempt. `first_error` is the error of the first: if the disk was full,
    /// larder evicts as for a download.
    fn create_after(library: &Library, name: &str, bytes: u64, first_error: StoreError) -> Result<Self, StoreError> {
        if !first_error.is_full() {
            return Err(first_error);
        }
        library.free_disk_space(bytes, &first_error)?;
        Self::create_stage(library, name, bytes)
    }

    /// Marks the bytes as verified, if they have this digest, so that they can be committed.
    fn verify(mut self, expected: Digest) -> Result<ArchiveBytes, VerificationError> {
        let (actual, _) = self.hashes();
        match self.0.take_if(|_| actual == expected) {
            Some(staged) => Ok(ArchiveBytes::Staged(Box::new(Verified::by_digest(staged, actual, expected)?))),
            None => Err(VerificationError::Bytes { actual, expected }),
        }
    }
}

impl Deref for TransferStage {
    type Target = Staged;

    fn deref(&self) -> &Staged {
        self.0.as_ref().expect("only verify and drop take it")
    }
}

impl DerefMut for TransferStage {
    fn deref_mut(&mut self) -> &mut Staged {
        self.0.as_mut().expect("only verify and drop take it")
    }
}

impl Drop for TransferStage {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.0.take().map(Staged::discard) {
            tracing::warn!(%error, "a staging file of an import could not be removed; it is removed within a day");
        }
    }
}

/// Small files of a bundle, concatenated in an unnamed file and found by digest. An export spools all small files, an
/// import only those that several entries share.
#[derive(Debug)]
struct Spool {
    places: HashMap<Digest, (u64, usize)>,
    file: File,
    written: u64,
    _scratch: Scratch,
}

impl Spool {
    fn new(library: &Library) -> Result<Self, StoreError> {
        let scratch = library.scratch()?;
        Ok(Self { places: HashMap::new(), file: scratch.file()?, written: 0, _scratch: scratch })
    }

    /// Adds a file, unless it is there already.
    fn put(&mut self, digest: Digest, bytes: &[u8]) -> io::Result<()> {
        if !self.places.contains_key(&digest) {
            self.file.write_all_at(bytes, self.written)?;
            self.places.insert(digest, (self.written, bytes.len()));
            self.written += bytes.len() as u64;
        }
        Ok(())
    }

    /// Reads a file; `None` if it was never added.
    fn get(&self, digest: &Digest) -> io::Result<Option<Vec<u8>>> {
        let Some((offset, size_bytes)) = self.places.get(digest) else { return Ok(None) };
        let mut bytes = vec![0; *size_bytes];
        self.file.read_exact_at(&mut bytes, *offset)?;
        Ok(Some(bytes))
    }
}
