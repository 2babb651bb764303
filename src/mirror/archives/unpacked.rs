//! Unpacked providers for the clients of this machine: verified archives as read-only trees, to which a client links instead of
//! unpacking a copy of its own. Each archive is unpacked once, whoever asks.

use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::address::Package;
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::archives::download::until_stored;
use crate::mirror::archives::{Archive, Archives};
use crate::mirror::library::proof_set::ProofSet;
use crate::mirror::library::unpacked::NotUnpacked;
use crate::mirror::single_flight::{SharedResult, SingleFlights};
use crate::mirror::tasks::WorkLimit;
use crate::mirror::{Connectivity, RequestContext};
use crate::store::SealedTree;

/// The most archives that are unpacked at a time.
const MAX_CONCURRENT_UNPACKING: usize = 2;
/// The tries to open an archive that another fill stores meanwhile.
const ATTEMPTS: u32 = 2;
/// The shortest time between two searches for unused trees.
const SWEEP_PERIOD: Duration = Duration::from_secs(24 * 3600);

/// Unpacks provider archives.
#[derive(Debug)]
pub struct UnpackedProviders {
    archives: Arc<Archives>,
    flights: SingleFlights<(Package, Digest), SharedResult<Result<SealedTree, Error>>>,
    limit: WorkLimit,
    swept: Mutex<Option<Timestamp>>,
}

impl UnpackedProviders {
    pub(in crate::mirror) fn new(archives: Arc<Archives>) -> Arc<Self> {
        let (flights, limit) = (SingleFlights::default(), WorkLimit::of(MAX_CONCURRENT_UNPACKING));
        Arc::new(Self { archives, flights, limit, swept: Mutex::default() })
    }

    /// The tree of the archive of a set: the one that is there, or one that is unpacked now. The archive is fetched if it is not
    /// stored, and then the second value is true.
    ///
    /// # Errors
    /// Those of a request for the archive; [`Error::Unreadable`] for one that a client could not use from a folder; the disk failed
    /// or is nearly full.
    pub async fn tree(
        self: &Arc<Self>,
        package: &Package,
        set: &ProofSet,
        call: &RequestContext,
    ) -> Result<(SealedTree, bool), Error> {
        let (library, digest) = (&self.archives.library, set.document.shasum);
        // Before what is there is used: what a rule denies now may have been unpacked before.
        self.archives.proof_sets.documents.permit(&package.provider, &package.version, call).await?;
        let wanted = package.clone();
        if let Some(tree) = library.on_disk(move |library| library.sealed_tree(&wanted, &digest)).await? {
            return Ok((tree, false));
        }
        let is_fetched = !library.file_is_at_hand(digest).await?;
        let key = (package.clone(), digest);
        let if_task_dies = Err(Error::Interrupted(format!("unpacking {package}")));
        let work = || {
            let (unpacked, package, wanted) = (Arc::clone(self), package.clone(), set.refs(package).archive);
            let call = self.archives.runtime.flight_context(call);
            async move {
                for _ in 0..ATTEMPTS {
                    let archive = unpacked.archives.archive(&wanted, &call).await?.value;
                    if let Some(tree) = unpacked.unpack(&package, digest, archive, &call).await? {
                        return Ok(tree);
                    }
                }
                Err(Error::NotStored(format!("the archive of {package}")))
            }
        };
        let runtime = &self.archives.runtime;
        let tree = self.flights.join_or_spawn(call.effects(), &runtime.tasks, key, if_task_dies, work).await?;
        Ok((tree, is_fetched))
    }

    /// Unpacks an archive; `None` for one that was not stored yet, and may be now.
    async fn unpack(
        self: &Arc<Self>,
        package: &Package,
        digest: Digest,
        archive: Archive,
        call: &RequestContext,
    ) -> Result<Option<SealedTree>, Error> {
        let (library, owned_package, now) = (Arc::clone(&self.archives.library), package.clone(), call.present());
        let tasks = &self.archives.runtime.tasks;
        let unpacked = match archive {
            Archive::Arriving { progress, .. } => {
                until_stored(progress, &format!("the archive of {package}"), |_, _| {}).await?;
                return Ok(None);
            }
            Archive::PassedThrough { .. } => return Err(Error::NotStored(format!("the archive of {package}"))),
            Archive::InMemory { bytes, .. } => {
                let size_bytes = bytes.len() as u64;
                let unpack = move || library.unpack(&owned_package, &digest, size_bytes, Cursor::new(bytes), now);
                self.limit.run(tasks, unpack).await
            }
            Archive::OnDisk { blob, .. } => {
                let unpack = move || library.unpack(&owned_package, &digest, blob.size_bytes(), blob.reader(), now);
                self.limit.run(tasks, unpack).await
            }
        };
        match unpacked {
            Some(Ok(tree)) => Ok(Some(tree)),
            Some(Err(NotUnpacked::Store(error))) => Err(error.into()),
            Some(Err(NotUnpacked::Package(bad))) => {
                Err(Error::Unreadable { subject: format!("the archive of {package}"), reason: bad.to_string() })
            }
            None => Err(Error::Interrupted(format!("unpacking {package}"))),
        }
    }

    /// Notes that a client with this data folder may link to the tree of a set; false if it must not.
    ///
    /// # Errors
    /// The disk failed. Then the client must not link to it.
    pub async fn note_use(
        self: &Arc<Self>,
        package: &Package,
        set: &ProofSet,
        data_folder: &Path,
        now: Timestamp,
    ) -> Result<bool, Error> {
        self.archives.library.note_tree_use(package, set.document.shasum, data_folder, now).await
    }

    /// Removes trees that nobody uses, at most once a day, in the background. Offline nothing is removed.
    pub fn sweep_if_due(self: &Arc<Self>, now: Timestamp) {
        if self.archives.runtime.connectivity() == Connectivity::Offline {
            return;
        }
        {
            let mut swept = self.swept.lock();
            if swept.is_some_and(|swept| now < swept.after(SWEEP_PERIOD) && now >= swept) {
                return;
            }
            *swept = Some(now);
        }
        let library = Arc::clone(&self.archives.library);
        self.archives.runtime.tasks.spawn(async move {
            if let Err(error) = library.sweep_trees(now).await {
                tracing::warn!(%error, "unused unpacked providers could not be removed");
            }
        });
    }
}
