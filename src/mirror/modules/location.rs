//! Answers where a client downloads a module version: resolves upstream's location and points it to larder's own
//! archive.

use crate::mirror::{Documents, Modules};
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::timeout_at;

use crate::address::ModulePackage;
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::documents::discovery::DiscoveryTrust;
use crate::mirror::documents::document_fetch::DocumentRequest;
use crate::mirror::documents::listed::ListingState;
use crate::mirror::documents::revalidate::{Aged, too_many_waiting};
use crate::mirror::freshness::Age;
use crate::mirror::library::StoredArchive;
use crate::mirror::library::module_history::{self, FirstSeenLookup};
use crate::mirror::library::stored_document::{DocumentFlight, StoredDocument};
use crate::mirror::modules::{ModuleArchiveRef, ModuleLocation};
use crate::mirror::offline::STORED_ANSWER_LIFETIME;
use crate::mirror::single_flight::SharedResult;
use crate::mirror::{AlarmKind, Answer, Connectivity, FetchReason, Outcome, RequestContext, default_if_gone};
use crate::store::Key;
use crate::upstream::discovery::Service;
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::modules::download_url;
use crate::upstream::outbound::origin;
use crate::upstream::request::Fetched;
use crate::upstream::source::{BadSource, LocatedSource, PackageSource, Subdir, Unsupported, location_in_download};

/// The location document of a version: a source address, parsed relative to the URL it came from.
#[derive(Debug, Clone)]
pub(in crate::mirror) struct LocationDocument {
    pub(in crate::mirror) located: LocatedSource,
    /// The SHA-256 of the address as upstream wrote it. The address itself may hold secrets.
    pub(in crate::mirror) digest: Digest,
    pub(in crate::mirror) age: Age,
}

impl Modules {
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
        let key = call.config.key_of_package(package);
        if self.runtime.connectivity() == Connectivity::Offline
            && self.library.stored_document(&Key::ModuleLocation(key.clone())).await?.is_none()
            && let Some(archive) = self.library.stored_module(&key).await?
        {
            // A bundle or another import stored the archive without its location.
            let fresh_until = call.now.after(STORED_ANSWER_LIFETIME);
            return Ok(Answer {
                value: local_location(package, Some(&archive)),
                outcome: Outcome::Stale,
                fresh_until,
                checked: archive.kept,
            });
        }
        let answer = match self.documents.location(package, call).await {
            Ok(answer) => answer,
            Err(error) => return self.location_without_upstream(package, &key, error, call).await,
        };
        let location = Arc::clone(&answer.value).as_location(package)?;
        let located =
            |value| Answer { value, outcome: answer.outcome, fresh_until: answer.fresh_until, checked: answer.checked };
        let archive = self.library.stored_module(&key).await?;
        if let PackageSource::Unsupported(source) = &location.located.source {
            return match archive {
                Some(archive) => {
                    if let Err(error) = self.check_external_move(package, &key, source, call).await {
                        tracing::error!(%package, %error, "the move of a module could not be recorded; the stored copy is served");
                    }
                    Ok(located(local_location(package, Some(&archive))))
                }
                None => match self.check_external_move(package, &key, source, call).await? {
                    Some(moved) => Err(moved),
                    None => self.external_location(package, source).map(located),
                },
            };
        }
        if let Some(archive) = archive {
            self.recheck_if_due(package, &key, location, call);
            return Ok(located(local_location(package, Some(&archive))));
        }
        if self.runtime.connectivity() == Connectivity::Offline {
            return Err(self.library.missing_error(&key, format!("the archive of {package}"), call).await);
        }
        let _place =
            self.runtime.try_wait(call).ok_or_else(|| too_many_waiting(&format!("the archive of {package}")))?;
        let (value, outcome) = match timeout_at(call.deadline, self.module_fill(package, call)).await {
            Ok(filled) => (filled.map(|archive| local_location(package, Some(&archive)))?, Outcome::Miss),
            // The folder of the module within the archive is in the page that the location names. Without it, a client
            // would use the root.
            Err(_) if matches!(location.located.source, PackageSource::Indirect(_)) => {
                match call.config.pending_subdirs.get(&key, call.now) {
                    Some(subdir) => (pending_location(package, subdir), Outcome::Pending),
                    None => return Err(Error::Slow(format!("the archive of {package}"))),
                }
            }
            Err(_) => (
                pending_location(package, subdir_in_archive(package, location.located.subdir.as_ref())?),
                Outcome::Pending,
            ),
        };
        Ok(Answer { value, outcome, fresh_until: answer.fresh_until, checked: answer.checked })
    }

    /// Handles a move to a source that larder cannot fetch, and so cannot verify. Raises an alarm and returns the error
    /// for a client without a stored archive. `None` if no tree of the version was ever recorded.
    async fn check_external_move(
        self: &Arc<Self>,
        package: &ModulePackage,
        key: &ModulePackage,
        source: &Unsupported,
        call: &RequestContext,
    ) -> Result<Option<Error>, Error> {
        let (owned_key, kind) = (key.clone(), source.kind_name());
        let before = match self
            .library
            .on_disk(move |library| default_if_gone(module_history::record_external_move(library, &owned_key, kind)))
            .await?
        {
            FirstSeenLookup::Never => return Ok(None),
            FirstSeenLookup::Recorded(seen) => format!("the first-seen tree has digest {}", seen.pinned.tree),
            FirstSeenLookup::Lost => "the first-seen record is damaged".to_owned(),
        };
        let (kind, host) = (source.kind_name(), source.host().unwrap_or_else(|| "an unknown host".to_owned()));
        tracing::error!(%package, kind, host, before, "ALARM: upstream has moved a version of a module to a source that larder cannot fetch; it is not served from there until it is accepted");
        let (owned_key, detail, now) =
            (key.clone(), format!("upstream has it at {kind} at {host}; {before}"), call.now);
        self.library
            .on_disk(move |library| {
                library.raise_alarm(AlarmKind::Moved, &owned_key.module, &owned_key.version, detail, now);
                Ok(())
            })
            .await?;
        let verdict = format!("upstream has moved it to {kind} at {host}, which larder cannot fetch, and {before}");
        let command = format!("`larder accept {key}`");
        Ok(Some(Error::Unaccepted { subject: format!("the location of {package}"), verdict, command }))
    }

    /// Serves a stored archive if upstream fails or has deleted the version (DESIGN, promise 6).
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
            Error::NotFound(_) => Outcome::Gone,
            _ => Outcome::Stale,
        };
        let Some(archive) = self.library.stored_module(key).await? else { return Err(error) };
        if self.runtime.connectivity() == Connectivity::Online {
            tracing::warn!(%package, %error, "upstream gave no location; the stored copy is served");
        }
        Ok(Answer {
            value: local_location(package, Some(&archive)),
            outcome,
            fresh_until: call.now,
            checked: archive.kept,
        })
    }

    /// Passes an unsupported source on to the client, unless larder is offline or the address may hold secrets.
    fn external_location(&self, package: &ModulePackage, source: &Unsupported) -> Result<ModuleLocation, Error> {
        let host = source.host().unwrap_or_else(|| "an unknown host".to_owned());
        let refused = |reason: String| -> Error {
            let fault = Fault::Unusable(reason);
            UpstreamError {
                subject: format!("the location of {package}"),
                origin: package.module.host.to_string(),
                fault,
            }
            .into()
        };
        let kind = source.kind_name();
        if self.runtime.connectivity() == Connectivity::Offline {
            let reason = "is a source that larder cannot fetch, and this mirror is offline, so no client is sent there";
            return Err(refused(format!("{kind} at {host} {reason}")));
        }
        let Some(text) = source.for_client() else {
            let reason =
                "is a source that larder cannot fetch, and its address may hold secrets, so clients do not get it";
            return Err(refused(format!("{kind} at {host} {reason}")));
        };
        self.runtime.counters.elsewhere.inc();
        tracing::warn!(%package, kind, host, "a module is at a source that larder cannot fetch; clients fetch it directly, and nothing is stored");
        Ok(ModuleLocation::External(text.to_owned()))
    }
}

impl Documents {
    /// Fetches or revalidates the location document.
    pub(in crate::mirror) async fn location(
        self: &Arc<Self>,
        package: &ModulePackage,
        call: &RequestContext,
    ) -> Result<Answer<Arc<StoredDocument>>, Error> {
        let wanted = location_request(package, call)?;
        let (stored, rule) = self.stored_or_not_found(&wanted, call).await?;
        let seen = stored.as_ref().map(|stored| stored.age);
        let fly =
            |fetch_reason, call: &RequestContext| self.join_location_fetch(&wanted, package, seen, fetch_reason, call);
        let pulled = self.serve_or_fetch(&wanted.subject, &package.module.host, call, &rule, stored, fly).await;
        pulled.inspect_err(|error| {
            self.library.record_if_offline(error, call, || (&call.config.key_of_package(package)).into())
        })
    }

    /// Fetches the location document even if the cached copy is fresh, unless it changed since `seen`.
    pub(in crate::mirror) async fn fetch_location_now(
        self: &Arc<Self>,
        package: &ModulePackage,
        seen: Option<Age>,
        call: &RequestContext,
    ) -> DocumentFlight {
        self.join_location_fetch(&location_request(package, call)?, package, seen, FetchReason::Fetch, call).await
    }

    fn join_location_fetch(
        self: &Arc<Self>,
        wanted: &DocumentRequest,
        package: &ModulePackage,
        seen: Option<Age>,
        fetch_reason: FetchReason,
        call: &RequestContext,
    ) -> SharedResult<DocumentFlight> {
        let (request, package) = (wanted.clone(), package.clone());
        self.join_document_flight(wanted, seen, fetch_reason, call, |documents, before, call| async move {
            documents.fetch_location(&request, &package, before, &call).await
        })
    }

    async fn fetch_location(
        self: &Arc<Self>,
        wanted: &DocumentRequest,
        package: &ModulePackage,
        before: Option<Arc<StoredDocument>>,
        call: &RequestContext,
    ) -> DocumentFlight {
        let (subject, upstream) = (&wanted.subject, &*wanted.upstream);
        let unusable = |reason: String| wanted.unusable(reason);
        let trust = DiscoveryTrust::for_what_is_held(before.as_ref());
        let (base, credential_scope) = self.resolve_service(Service::Modules, upstream, trust, call).await?;
        let listed = match before {
            None => self.module_must_be_listed(package, wanted, call).await?,
            Some(_) => self.module_listed(package, call).await,
        };
        let spelled = listed.spelled(&package.version);
        let url = download_url(&base, &package.module, &spelled).map_err(|e| unusable(e.to_string()))?;
        let fetched = self
            .fetch_from(
                subject,
                &url,
                upstream,
                &credential_scope,
                before.as_deref(),
                self.runtime.limits.document_bytes,
                call,
            )
            .await;
        let stored_document = match (fetched, before) {
            (Ok(Fetched::Unchanged), Some(before)) => before.confirmed(call.now, false),
            (Ok(Fetched::Unchanged), None) => return Err(unusable("304 to an unconditional request".into()).into()),
            (Ok(Fetched::New(mut document)), _) => {
                let location = location_in_download(document.location.as_deref(), &document.body);
                let location = location.ok_or_else(|| {
                    unusable("neither X-Terraform-Get nor its JSON has a location of the module".into())
                })?;
                // The rest of the response means nothing to a client.
                document.body = Bytes::from(location);
                let stored_document = Arc::new(StoredDocument::of(document, url, call.now));
                let located = Arc::clone(&stored_document).as_location(package)?;
                if matches!(&located.located.source, PackageSource::Unsupported(source) if source.for_client().is_none())
                {
                    // An unusable answer is not cached: the next request asks again.
                    return Ok(Aged { age: stored_document.age(), value: stored_document });
                }
                Arc::unwrap_or_clone(stored_document)
            }
            (Err(error), before) if matches!(error.fault, Fault::Absent(_)) => match &listed {
                // While the version list cannot be read, the version may exist in another spelling, so a 404 proves
                // nothing.
                ListingState::Unknown(Some(unread)) => return Err(unread.clone()),
                _ => {
                    let gone_copy = self.keep_gone_copy(wanted, before, &error, call).await;
                    gone_copy.inspect_err(|_| self.library.bump_module_revision(&package.module))?
                }
            },
            (Err(error), _) => return Err(error.into()),
        };
        if matches!(listed, ListingState::Unlisted { .. } | ListingState::Unknown(None)) {
            // A registry may answer for any version. Caching unlisted ones would let anyone fill the store.
            return Ok(Aged { age: stored_document.age(), value: Arc::new(stored_document) });
        }
        let stored = self.library.store_document(wanted.key.clone(), stored_document).await;
        self.library.bump_module_revision(&package.module);
        stored
    }
}

impl StoredDocument {
    /// Parses the document as the location of a version.
    pub(in crate::mirror) fn as_location(self: Arc<Self>, package: &ModulePackage) -> Result<LocationDocument, Error> {
        let unusable = |reason: String| -> Error {
            UpstreamError {
                subject: location_label(package),
                origin: origin(&self.metadata.asked),
                fault: Fault::Unusable(reason),
            }
            .into()
        };
        let text = std::str::from_utf8(&self.body).map_err(|_| unusable("a location that is not UTF-8".into()))?;
        let located =
            PackageSource::parse(text, &self.metadata.asked).map_err(|bad: BadSource| unusable(bad.to_string()))?;
        Ok(LocationDocument { located, digest: Digest::of(&self.body), age: self.age() })
    }
}

/// The location of a stored archive.
fn local_location(package: &ModulePackage, archive: Option<&StoredArchive>) -> ModuleLocation {
    let digest = archive.map(|archive| archive.digest);
    ModuleLocation::Local {
        archive: ModuleArchiveRef { package: package.clone(), digest: digest.map(|digest| digest.prefix()) },
        checksum: digest,
        subdir: archive.and_then(|archive| archive.proof.how.tree()).and_then(|packed| packed.subdir.clone()),
    }
}

/// The location of an archive that is still being filled.
fn pending_location(package: &ModulePackage, subdir: Option<String>) -> ModuleLocation {
    let archive = ModuleArchiveRef { package: package.clone(), digest: None };
    ModuleLocation::Local { archive, checksum: None, subdir }
}

/// The module's folder within larder's archive, as written in a location.
pub(in crate::mirror) fn subdir_in_archive(
    package: &ModulePackage,
    subdir: Option<&Subdir>,
) -> Result<Option<String>, Error> {
    subdir.and_then(Subdir::in_package).map(|below| subdir_text(package, below)).transpose()
}

/// A subfolder as written in a location.
pub(in crate::mirror) fn subdir_text(
    package: &ModulePackage,
    subdir: &crate::packaging::TreePath,
) -> Result<String, Error> {
    let text =
        std::str::from_utf8(subdir.as_bytes()).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_graphic()));
    text.map(str::to_owned).ok_or_else(|| {
        let fault = Fault::Unusable(format!("its //{subdir} has characters invalid in a header"));
        UpstreamError { subject: location_label(package), origin: package.module.host.to_string(), fault }.into()
    })
}

/// The location request of a version: asked in the caller's spelling, cached under the canonical one.
fn location_request(package: &ModulePackage, call: &RequestContext) -> Result<DocumentRequest, Error> {
    let upstream = Arc::clone(call.upstream(&package.module.host)?);
    let rule = upstream.rule(|fresh| fresh.download);
    let (subject, key) = (location_label(package), Key::ModuleLocation(call.config.key_of_package(package)));
    Ok(DocumentRequest { subject, key, upstream, service: Service::Modules, rule })
}

/// Names the document for error messages.
pub(in crate::mirror) fn location_label(package: &ModulePackage) -> String {
    format!("the location of {package}")
}
