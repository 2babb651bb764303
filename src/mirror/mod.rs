//! The cache core: decides between hit, stale, fill and refusal. Contains no HTTP and no client wire format.
//!
//! A request carries its own time. Documents age, archives do not. Upstream work runs in single flights, so a client
//! that disconnects cancels nothing for others.

#![expect(
    unreachable_pub,
    reason = "the rooms are private, so `pub` of an item in one means the mirror; only what is handed on below is wider"
)]

mod alarm_kind;
mod archives;
mod counters;
mod documents;
mod effects;
mod freshness;
mod last_answers;
mod library;
mod modules;
mod offline;
mod operate;
mod proof_sets;
mod request_context;
mod required_platforms;
mod runtime;
mod single_flight;
mod tasks;
mod transfer;
mod wanted_hashes;

use std::sync::Arc;

pub use self::archives::Archives;
use self::archives::unpacked::UnpackedProviders;
use self::archives::verified_open::VerifiedReader;
pub use self::documents::Documents;
pub use self::library::Library;
pub use self::modules::Modules;
pub use self::offline::stored_pages::{PageSource, StoredEntry, StoredList, latest as latest_version};
pub use self::offline::{Offline, UpstreamVersions};
pub use self::operate::Operations;
pub use self::proof_sets::{ProofSets, is_absent};
pub use self::runtime::Runtime;
pub use self::transfer::{
    ApplyError, ApplyOptions, Export, FileVerdict, GatherError, GatheredBundle, ImportCounts, ImportStep, ImportedFile,
    NotExported, PlannedSignature, ProvenBy, TransferPermit, Transfers, UnsignedPolicy,
};
pub use crate::mirror::alarm_kind::AlarmKind;
pub use crate::mirror::archives::Archive;
pub use crate::mirror::archives::download::tail_stream;
pub use crate::mirror::archives::pass_through::PassThrough;
pub use crate::mirror::counters::{Counters, DamageFinding};
pub use crate::mirror::documents::issuer_keys::IssuerKeyring;
pub use crate::mirror::documents::pages::UpstreamPage;
pub use crate::mirror::library::access::{
    Access, AddressAccess, ClientList, HiddenVersion, HiddenVersions, JudgedVersion, VerdictKind,
};
pub use crate::mirror::library::evidence::EvidenceName;
pub use crate::mirror::library::file_refs::{ArchiveRef, ProofFile, ProofFileBytes, ProofFileRef, ProofSetRefs};
pub use crate::mirror::library::missing::{MissingPackage, MissingRequest};
pub use crate::mirror::library::owed::OwedAmount;
pub use crate::mirror::library::pins::{PinChange, PinOutcome, PinResult};
pub use crate::mirror::library::proof_set::ProofSet;
pub use crate::mirror::library::record_format as record;
pub use crate::mirror::library::stored_document::StoredDocument;
pub use crate::mirror::library::usage::{FileAmount, PackageAmounts, RunTotals, Served, Usage};
pub use crate::mirror::library::{
    Alarm, KnownArchive, NotReady, PackageHashState, StoreFailure, StoreState, StoredArchive, VersionArchives,
    ZipOrigin,
};
pub use crate::mirror::modules::{ModuleArchiveRef, ModuleLocation};
pub use crate::mirror::operate::accept::{
    AcceptOutcome, AcceptResult, ChangedFile, KnownKey, UndecidedEvidence, UndecidedVersion,
};
pub use crate::mirror::operate::approve::{
    ApprovalOutcome, ApprovalResult, ApprovalWords, DecidedVersion, HeldPage, HeldVersion,
};
pub use crate::mirror::operate::explain::{
    AnswerFacts, ExplainedObject, ObjectFacts, SetProof, StoredCopy, StoredVersion, UpstreamRules, VersionFacts,
};
pub use crate::mirror::operate::list::{PackageArchive, StoredPackage, StoredPage, VerifiedBy};
pub use crate::mirror::operate::notable::{NotableArchives, StoredArchiveNames};
pub use crate::mirror::operate::policy::PolicyVerdicts;
pub use crate::mirror::operate::purge::PurgeResult;
pub use crate::mirror::operate::refresh::{RefreshOutcome, RefreshResult};
pub use crate::mirror::operate::rehash::{DamagedArchive, RepairOutcome, VerifyEvent};
pub use crate::mirror::operate::status::{LastBundle, MirrorGauges, OriginBackoff, Status, UpstreamState};
pub use crate::mirror::operate::warm::WarmedArchive;
pub use crate::mirror::request_context::{Answer, ClientAddress, Outcome, RequestContext, Urgency, WarmedDocument};
pub use crate::mirror::required_platforms::RequiredPlatforms;
pub use crate::mirror::runtime::{Limits, RuntimeConfig, SMALL_ARCHIVE_BYTES};

use crate::mirror::archives::unattended::FillsByClient;
use crate::mirror::request_context::FetchReason;
pub use crate::mirror::wanted_hashes::RETRY_AFTER as RETRY_HASHES_AFTER;
use crate::mirror::wanted_hashes::WantedHashes;
use crate::store::{Store, StoreError};
use crate::supervisor::Supervisor;
pub use crate::upstream::outbound::Connectivity;

/// The cache core: one service for each concern, and no logic of its own.
#[derive(Debug)]
pub struct Mirror {
    /// Configuration, limits, tasks and counters.
    pub runtime: Arc<Runtime>,
    /// The stored documents, archives and module trees.
    pub library: Arc<Library>,
    /// Documents, which age.
    pub documents: Arc<Documents>,
    /// Proof sets of providers.
    pub proof_sets: Arc<ProofSets>,
    /// Archives of providers.
    pub archives: Arc<Archives>,
    /// Unpacked providers for clients on this machine.
    pub unpacked: Arc<UnpackedProviders>,
    /// Locations and archives of modules.
    pub modules: Arc<Modules>,
    /// The answers to clients while larder is offline.
    pub offline: Arc<Offline>,
    /// The commands of an operator.
    pub operations: Arc<Operations>,
    /// Bundles and provider trees.
    pub transfers: Arc<Transfers>,
    /// The archives whose hashes documents lack.
    pub wanted_hashes: WantedHashes,
}

impl Mirror {
    /// Creates the services and starts the background tasks: eviction, and rebuilding the index where needed.
    ///
    /// # Errors
    /// The stored alarms cannot be read.
    pub fn new(
        store: Arc<Store>,
        config: RuntimeConfig,
        limits: Limits,
        counters: Counters,
        supervisor: &Supervisor,
    ) -> Result<Arc<Self>, StoreError> {
        let runtime = Arc::new(Runtime::new(config, limits, counters));
        let library = Library::open(store, Arc::clone(&runtime))?;
        library.spawn_background_tasks(supervisor);
        let documents = Documents::new(Arc::clone(&runtime), Arc::clone(&library));
        let proof_sets = ProofSets::new(Arc::clone(&runtime), Arc::clone(&library), Arc::clone(&documents));
        let reader = VerifiedReader::new(Arc::clone(&runtime), Arc::clone(&library));
        let started_fills = FillsByClient::default();
        let archives = Archives::new(Arc::clone(&proof_sets), Arc::clone(&reader), started_fills.clone());
        let unpacked = UnpackedProviders::new(Arc::clone(&archives));
        let modules = Modules::new(Arc::clone(&documents), Arc::clone(&reader), started_fills);
        let offline = Offline::new(Arc::clone(&documents));
        let operations = Operations::new(Arc::clone(&archives), Arc::clone(&modules), Arc::clone(&offline));
        let transfers = Transfers::new(Arc::clone(&proof_sets), Arc::clone(&reader));
        Ok(Arc::new(Self {
            runtime,
            library,
            documents,
            proof_sets,
            archives,
            unpacked,
            modules,
            offline,
            operations,
            transfers,
            wanted_hashes: WantedHashes::default(),
        }))
    }
}
