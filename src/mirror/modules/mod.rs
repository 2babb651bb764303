//! Modules: version lists, locations, and the archives that larder packs. Public registries answer with git addresses,
//! which no cache can store (DESIGN 6).

pub(in crate::mirror) mod archive;
pub(in crate::mirror) mod fetch;
pub(in crate::mirror) mod fill;
pub(in crate::mirror) mod location;
pub(in crate::mirror) mod recheck;
pub(in crate::mirror) mod source_download;

pub(in crate::mirror) use crate::mirror::library::module_history::ModuleFirstSeenRecord;
pub(in crate::mirror) use crate::mirror::modules::fetch::UNPACK_LIMITS;
pub(in crate::mirror) use crate::mirror::modules::source_download::StageNames;

use crate::address::ModulePackage;
use crate::digest::{Digest, DigestPrefix};
use crate::error::Error;
use crate::mirror::AlarmKind;
use crate::mirror::StoredArchive;
use crate::mirror::archives::unattended::FillsByClient;
use crate::mirror::request_context::FlightGroup;
use crate::mirror::runtime_config::ConfigGeneration;
use crate::mirror::single_flight::{SharedResult, SingleFlights};
use crate::mirror::{Documents, Library, Runtime, VerifiedReader};
use crate::upstream::concurrency_limits::ConcurrencyLimits;
use std::sync::Arc;

/// A module archive, as larder's URLs name it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ModuleArchiveRef {
    /// The version of the module.
    pub package: ModulePackage,
    /// The first digits of its SHA-256; none while it is unknown.
    pub digest: Option<DigestPrefix>,
}

/// The download location of a module version.
#[expect(clippy::large_enum_variant, reason = "short-lived: it is handled where it arrives")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModuleLocation {
    /// An archive of this mirror.
    Local {
        /// The archive.
        archive: ModuleArchiveRef,
        /// Its SHA-256, which the client verifies; none while it is unknown.
        checksum: Option<Digest>,
        /// The module's folder in the archive, with `/` between names; none for the root.
        subdir: Option<String>,
    },
    /// A source that larder cannot fetch, as upstream wrote it.
    External(String),
}

/// The module alarms that `accept` resolves.
pub(in crate::mirror) const RESOLVED_BY_ACCEPT: &[AlarmKind] = &[AlarmKind::Moved, AlarmKind::DamagedRecord];

/// Serves locations and archives of modules, and fills them.
#[derive(Debug)]
pub struct Modules {
    pub(in crate::mirror) runtime: Arc<Runtime>,
    pub(in crate::mirror) library: Arc<Library>,
    pub(in crate::mirror) documents: Arc<Documents>,
    pub(in crate::mirror) reader: Arc<VerifiedReader>,
    started_fills: FillsByClient,
    work: ModuleWork,
}

/// The work in progress, and its limits.
#[derive(Debug)]
struct ModuleWork {
    fill_flights: SingleFlights<(ModulePackage, FlightGroup), SharedResult<Result<StoredArchive, Error>>>,
    recheck_flights: SingleFlights<(ModulePackage, ConfigGeneration), SharedResult<()>>,
    unpacking: ConcurrencyLimits,
    stage_names: StageNames,
}

impl Modules {
    pub(in crate::mirror) fn new(
        documents: Arc<Documents>,
        reader: Arc<VerifiedReader>,
        started_fills: FillsByClient,
    ) -> Arc<Self> {
        Arc::new(Self {
            runtime: Arc::clone(&documents.runtime),
            library: Arc::clone(&documents.library),
            documents,
            reader,
            started_fills,
            work: ModuleWork {
                fill_flights: SingleFlights::default(),
                recheck_flights: SingleFlights::default(),
                unpacking: ConcurrencyLimits::new(UNPACK_LIMITS),
                stage_names: StageNames::default(),
            },
        })
    }
}
