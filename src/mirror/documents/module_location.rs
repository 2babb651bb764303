//! Fetches the location of a module version: the source address that upstream answers a download request with.

use std::sync::Arc;

use bytes::Bytes;

use crate::address::ModulePackage;
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::documents::discovery::DiscoveryTrust;
use crate::mirror::documents::document_fetch::DocumentRequest;
use crate::mirror::documents::listed::ListingState;
use crate::mirror::documents::revalidate::Aged;
use crate::mirror::freshness::Age;
use crate::mirror::library::stored_document::{DocumentFlight, StoredDocument};
use crate::mirror::single_flight::SharedResult;
use crate::mirror::{Answer, Documents, FetchReason, RequestContext};
use crate::store::Key;
use crate::upstream::discovery::Service;
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::modules::download_url;
use crate::upstream::outbound::origin;
use crate::upstream::request::Fetched;
use crate::upstream::source::{BadSource, LocatedSource, PackageSource, Subdir, location_in_download};

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

    pub(in crate::mirror) fn join_location_fetch(
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

    pub(in crate::mirror) async fn fetch_location(
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
                    gone_copy.inspect_err(|_| self.library.bump_revision(&package.module))?
                }
            },
            (Err(error), _) => return Err(error.into()),
        };
        if matches!(listed, ListingState::Unlisted { .. } | ListingState::Unknown(None)) {
            // A registry may answer for any version. Caching unlisted ones would let anyone fill the store.
            return Ok(Aged { age: stored_document.age(), value: Arc::new(stored_document) });
        }
        let stored = self.library.store_document(wanted.key.clone(), stored_document).await;
        self.library.bump_revision(&package.module);
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

/// The location document of a version: a source address, parsed relative to the URL it came from.
#[derive(Debug, Clone)]
pub(in crate::mirror) struct LocationDocument {
    pub(in crate::mirror) located: LocatedSource,
    /// The SHA-256 of the address as upstream wrote it. The address itself may hold secrets.
    pub(in crate::mirror) digest: Digest,
    pub(in crate::mirror) age: Age,
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
