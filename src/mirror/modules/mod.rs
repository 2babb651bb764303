//! Modules: version lists, locations, and the archives that larder packs. Public registries answer with git addresses,
//! which no cache can store.
//!
//! Throughout, `package` is spelled as it was requested, and `key` as it is stored, which may differ in case.

pub mod fetch;
pub mod fill;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::time::timeout_at;

use crate::address::ModulePackage;
use crate::digest::{Digest, DigestPrefix};
use crate::error::Error;
use crate::mirror::archives::unattended::FillsByClient;
use crate::mirror::documents::module_location::{location_label, subdir_in_archive};
use crate::mirror::effects::Effects;
use crate::mirror::library::{default_if_store_unavailable, module_history};
use crate::mirror::modules::fetch::{StageNames, UNPACK_LIMITS};
use crate::mirror::request_context::ConfigAndProxyPath;
use crate::mirror::runtime::ConfigGeneration;
use crate::mirror::single_flight::{SharedResult, SingleFlights};
use crate::mirror::{
    Answer, Archive, Connectivity, Documents, Library, Outcome, RequestContext, Runtime, StoredArchive, VerifiedReader,
};
use crate::store::Key;
use crate::upstream::error::UpstreamError;
use crate::upstream::limits::ConcurrencyLimits;
use crate::upstream::source::{PackageSource, Unsupported};

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

/// Serves locations and archives of modules, and fills them.
#[derive(Debug)]
pub struct Modules {
    pub(in crate::mirror) runtime: Arc<Runtime>,
    pub(in crate::mirror) library: Arc<Library>,
    pub(in crate::mirror) documents: Arc<Documents>,
    pub(in crate::mirror) reader: Arc<VerifiedReader>,
    /// The fills that each client started; they go on if the client disconnects.
    started_fills: FillsByClient,
    work: ModuleWork,
}

/// The work in progress, and its limits.
#[derive(Debug)]
struct ModuleWork {
    fill_flights: SingleFlights<(ModulePackage, ConfigAndProxyPath), SharedResult<Result<StoredArchive, Error>>>,
    /// Checks that a stored version still resolves to the first-seen tree.
    recheck_flights: SingleFlights<(ModulePackage, ConfigGeneration), SharedResult<()>>,
    unpacking: ConcurrencyLimits,
    /// The names of staging files in use.
    stage_names: StageNames,
    /// The number of packed archives, which makes the names of their staging files unique.
    packed: AtomicU64,
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
                packed: AtomicU64::new(0),
            },
        })
    }

    /// The download location of a module version. A missing archive is filled. If the fill outlasts the client's
    /// deadline, the location is returned without a digest and the fill continues in the background.
    ///
    /// # Errors
    /// [`Error::NotFound`] if upstream has no such version; the error of the fetch if it fails within the deadline.
    pub async fn module_location(
        self: &Arc<Self>,
        package: &ModulePackage,
        call: &RequestContext,
    ) -> Result<Answer<ModuleLocation>, Error> {
        self.documents.permit(&package.module, &package.version, call).await?;
        let key = call.config.key_of_package(package);
        let is_offline = self.runtime.connectivity() == Connectivity::Offline;
        if is_offline
            && self.library.stored_document(&Key::location(&key)).await?.is_none()
            && let Some(archive) = self.library.stored_module(&key).await?
        {
            // A bundle or another import stored the archive without its location.
            return Ok(Answer::of_store(local_location(package, &archive), archive.stored_at, call));
        }
        let answer = match self.documents.get(package, call).await {
            Ok(answer) => answer,
            Err(error) => return self.location_without_upstream(package, &key, error, call).await,
        };
        let location = Arc::clone(&answer.value).as_location(package)?;
        let archive = self.library.stored_module(&key).await?;
        if let PackageSource::Unsupported(source) = &location.parsed.source {
            let refusal = self.check_external_move(package, &key, source, call).await;
            let value = match archive {
                Some(archive) => {
                    if let Err(error) = refusal {
                        tracing::error!(%package, %error, "the move of a module could not be recorded; the stored copy is served");
                    }
                    local_location(package, &archive)
                }
                None => match refusal? {
                    Some(refusal) => return Err(refusal),
                    None => self.external_location(package, source, call)?,
                },
            };
            return Ok(answer.map(|_| value));
        }
        if let Some(archive) = archive {
            self.recheck_if_due(package, &key, location, call);
            return Ok(answer.map(|_| local_location(package, &archive)));
        }
        let subject = format!("the archive of {package}");
        if is_offline {
            return Err(self.library.missing_error(&key, subject, call).await);
        }
        let filled = match call.effects() {
            Effects::Real => {
                let _place = self.runtime.take_waiting_place(&subject, call)?;
                timeout_at(call.deadline, self.module_fill(package, call)).await.ok().transpose()?
            }
            Effects::None => match self.replay_fill(package, self.runtime.limits.answer_within, call) {
                // The client's deadline comes before the end of the fill.
                Error::Slow(_) => None,
                error => return Err(error),
            },
        };
        if let Some(archive) = filled {
            return Ok(Answer { outcome: Outcome::Miss, ..answer.map(|_| local_location(package, &archive)) });
        }
        let subdir = match &location.parsed.source {
            // The folder of the module within the archive is in the page that the location names. Without it, a client
            // would use the root.
            PackageSource::Indirect(_) => {
                call.config.pending_subdirs.get(&key, call.now).ok_or(Error::Slow(subject))?
            }
            _ => subdir_in_archive(package, location.parsed.subdir.as_ref())?,
        };
        let archive = ModuleArchiveRef { package: package.clone(), digest: None };
        let pending = ModuleLocation::Local { archive, checksum: None, subdir };
        Ok(Answer { outcome: Outcome::Pending, ..answer.map(|_| pending) })
    }

    /// Handles a move to a source that larder cannot fetch, and so cannot verify. Raises an alarm and returns the error
    /// for a client without a stored archive. `None` if no tree of the version was ever recorded.
    pub async fn check_external_move(
        self: &Arc<Self>,
        package: &ModulePackage,
        key: &ModulePackage,
        source: &Unsupported,
        call: &RequestContext,
    ) -> Result<Option<Error>, Error> {
        let (owned_key, now, owned_source, effects) = (key.clone(), call.now, source.clone(), call.effects());
        let source = source.describe();
        let record = move |library: &Library| {
            let before = match effects {
                Effects::None => module_history::read_first_seen(library, &owned_key)
                    .map(|seen| module_history::describe_seen(&seen)),
                Effects::Real => module_history::record_external_move(library, &owned_key, &owned_source, now),
            };
            default_if_store_unavailable(before)
        };
        let Some(before) = self.library.on_disk(record).await? else { return Ok(None) };
        effects.run(|| tracing::error!(%package, source, before, "ALARM: upstream has moved a version of a module to a source that larder cannot fetch; it is not served from there until it is accepted"));
        let verdict = format!("upstream has moved it to {source}, which larder cannot fetch, and {before}");
        let command = format!("`larder accept {key}`");
        Ok(Some(Error::Unaccepted { subject: format!("the location of {package}"), verdict, command, instead: None }))
    }

    /// Serves a stored archive if upstream fails or has deleted the version (promise 6).
    async fn location_without_upstream(
        self: &Arc<Self>,
        package: &ModulePackage,
        key: &ModulePackage,
        error: Error,
        call: &RequestContext,
    ) -> Result<Answer<ModuleLocation>, Error> {
        let keep_gone = call.upstream(&package.module.host)?.settings.keep_gone;
        let outcome = match &error {
            Error::NotFound(_) if !keep_gone => return Err(error),
            Error::WouldAsk(_) => return Err(error),
            Error::NotFound(_) => Outcome::Gone,
            _ => Outcome::Stale,
        };
        let Some(archive) = self.library.stored_module(key).await? else { return Err(error) };
        if self.runtime.connectivity() == Connectivity::Online {
            call.effects()
                .run(|| tracing::warn!(%package, %error, "upstream gave no location; the stored copy is served"));
        }
        let location = local_location(package, &archive);
        Ok(Answer { checked: archive.stored_at, ..Answer::of_now(location, outcome, call) })
    }

    /// Passes an unsupported source on to the client, unless larder is offline or the address may hold secrets.
    fn external_location(
        &self,
        package: &ModulePackage,
        source: &Unsupported,
        call: &RequestContext,
    ) -> Result<ModuleLocation, Error> {
        let refused = |reason: &str| {
            let reason = format!("{} is a source that larder cannot fetch, and {reason}", source.describe());
            UpstreamError::unusable(location_label(package), &package.module.host, reason)
        };
        if self.runtime.connectivity() == Connectivity::Offline {
            return Err(refused("this mirror is offline, so no client is sent there").into());
        }
        let text =
            source.for_client().ok_or_else(|| refused("its address may hold secrets, so clients do not get it"))?;
        call.effects().run(|| {
            self.runtime.counters.elsewhere.inc();
            tracing::warn!(%package, source = source.describe(), "a module is at a source that larder cannot fetch; clients fetch it directly, and nothing is stored");
        });
        Ok(ModuleLocation::External(text.to_owned()))
    }
}

/// A module whose archive was to be opened.
enum OpenedModule {
    /// The open archive.
    Archive(Box<Archive>),
    /// It has a name, and its bytes cannot be had.
    NotHad,
    /// No archive has this digest.
    NotNamed,
}

/// The location of a stored archive.
fn local_location(package: &ModulePackage, archive: &StoredArchive) -> ModuleLocation {
    ModuleLocation::Local {
        archive: ModuleArchiveRef { package: package.clone(), digest: Some(archive.digest.prefix()) },
        checksum: Some(archive.digest),
        subdir: archive.proof.how.tree().and_then(|packed| packed.subdir.clone()),
    }
}

impl Modules {
    /// The archive that one of larder's URLs names. A missing one is fetched and packed, however long that takes:
    /// clients wait for an archive without a limit.
    ///
    /// # Errors
    /// [`Error::NotFound`] if no archive of the version has this digest, even after asking upstream.
    pub async fn module_archive(
        self: &Arc<Self>,
        wanted: &ModuleArchiveRef,
        call: &RequestContext,
    ) -> Result<Answer<Archive>, Error> {
        let package = &wanted.package;
        call.upstream(&package.module.host)?;
        self.documents.permit(&package.module, &package.version, call).await?;
        let key = call.config.key_of_package(package);
        let named = match self.open_module(&key, wanted.digest.as_ref(), call).await? {
            OpenedModule::Archive(archive) => return Ok(Answer::of_now(*archive, Outcome::Hit, call)),
            OpenedModule::NotHad => self.library.stored_module_here(&key).await?,
            OpenedModule::NotNamed => self.library.stored_module(&key).await?,
        };
        // Upstream's location was fetched a moment ago, for an earlier request, and did not lead to an archive with the
        // wanted digest.
        if call.config.refetched_locations.get(&key, call.now).is_some() && named.is_some() {
            return Err(no_such_archive(wanted));
        }
        let subject = format!("the archive of {package}");
        if self.runtime.connectivity() == Connectivity::Offline {
            return Err(self.library.missing_error(&key, subject, call).await);
        }
        let _place = self.runtime.take_waiting_place(&subject, call)?;
        if named.is_some() {
            // An archive with another digest is stored. The wanted one may come from another mirror, where an operator
            // accepted that the version was republished: upstream's location leads to it then.
            let confirmation = self.documents.get(package, call).await.ok().map(|answer| answer.value.confirmation());
            self.documents.fetch_now(package, confirmation, call).await?;
        } else if call.effects() == Effects::None {
            return Err(self.replay_fill(package, Duration::MAX, call));
        } else {
            self.module_fill(package, call).await?;
        }
        match self.open_module(&key, wanted.digest.as_ref(), call).await? {
            OpenedModule::Archive(archive) => Ok(Answer::of_now(*archive, Outcome::Miss, call)),
            OpenedModule::NotHad | OpenedModule::NotNamed => {
                let lifetime = call.upstream(&package.module.host)?.not_found_lifetime();
                call.config.refetched_locations.insert(call.effects(), key, (), lifetime, call.now);
                Err(no_such_archive(wanted))
            }
        }
    }

    /// Opens and verifies a stored archive: the one with this digest, or the current one.
    async fn open_module(
        self: &Arc<Self>,
        key: &ModulePackage,
        digest: Option<&DigestPrefix>,
        call: &RequestContext,
    ) -> Result<OpenedModule, Error> {
        let stored_archive = match digest {
            None => self.library.stored_module(key).await?,
            Some(prefix) => {
                let prefix = *prefix;
                self.library.archive_in_name(key, move |name| name.find(&prefix).cloned()).await?
            }
        };
        let Some(stored_archive) = stored_archive else { return Ok(OpenedModule::NotNamed) };
        let opened = self.reader.open_stored(key, &stored_archive, call).await?;
        Ok(opened.map_or(OpenedModule::NotHad, |archive| OpenedModule::Archive(Box::new(archive))))
    }

    /// Fills the archive of a version unless it is stored.
    ///
    /// # Errors
    /// The error of the fill, or of a mirror that is offline.
    pub async fn ensure_module_stored(
        self: &Arc<Self>,
        package: &ModulePackage,
        call: &RequestContext,
    ) -> Result<(), Error> {
        let key = call.config.key_of_package(package);
        match self.library.stored_module(&key).await? {
            Some(_) => Ok(()),
            None if self.runtime.connectivity() == Connectivity::Offline => {
                Err(self.library.missing_error(&key, format!("the archive of {package}"), call).await)
            }
            None => self.module_fill(package, call).await.map(drop),
        }
    }
}

fn no_such_archive(ModuleArchiveRef { package, digest }: &ModuleArchiveRef) -> Error {
    let digest = digest.as_ref().map(ToString::to_string).unwrap_or_default();
    Error::NotFound(format!("{package} has no archive with SHA-256 prefix {digest}; request its download again"))
}
