//! Fetches the location of a module version: the source address that upstream answers a download request with.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use url::{ParseError, Url};

use crate::address::{Address, Hostname, ModulePackage};
use crate::config::FreshnessLifetimes;
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::documents::version_lists::ListingState;
use crate::mirror::documents::{DocumentFetch, DocumentKind};
use crate::mirror::freshness::Confirmation;
use crate::mirror::library::stored_document::{DocumentFlightResult, StoredDocument};
use crate::mirror::{Library, RequestContext, RuntimeConfig};
use crate::store::Key;
use crate::upstream::discovery::Service;
use crate::upstream::error::UpstreamError;
use crate::upstream::modules::download_url;
use crate::upstream::outbound::origin;
use crate::upstream::request::Document;
use crate::upstream::source::{LocatedSource, PackageSource, Subdir, location_in_download};

impl DocumentKind for ModulePackage {
    fn label(&self) -> String {
        location_label(self)
    }

    fn host(&self) -> &Hostname {
        &self.module.host
    }

    fn key(&self, config: &RuntimeConfig) -> Key {
        Key::location(&config.key_of_package(self))
    }

    fn service(&self) -> Option<Service> {
        Some(Service::Modules)
    }

    fn lifetime(lifetimes: &FreshnessLifetimes) -> Duration {
        lifetimes.download
    }

    fn record_missing(&self, library: &Arc<Library>, error: &Error, call: &RequestContext) {
        library.record_if_offline(error, call, || (&call.config.key_of_package(self)).into());
    }

    /// A version that is not stored must be listed; a stored one is looked up for its spelling.
    async fn listing(&self, fetch: &DocumentFetch<'_>) -> Result<Option<ListingState>, Error> {
        let DocumentFetch { documents, request, call, before, .. } = fetch;
        let address = Address::from(&self.module);
        let listed = match before {
            None => documents.must_be_listed(&address, &self.version, &request.key, call).await?,
            Some(_) => documents.listing_state(&address, &self.version, call).await,
        };
        Ok(Some(listed))
    }

    fn url(&self, base: &Url, fetch: &DocumentFetch<'_>) -> Result<Url, ParseError> {
        let spelled = fetch.listed.as_ref().and_then(ListingState::upstream_spelling);
        download_url(base, &self.module, spelled.unwrap_or(self.version.as_str()))
    }

    async fn check_answer(
        &self,
        fetch: &DocumentFetch<'_>,
        mut answer: Document,
        url: Url,
    ) -> Result<StoredDocument, Error> {
        let location = location_in_download(answer.location.as_deref(), &answer.body);
        let location = location
            .ok_or_else(|| fetch.unusable("neither X-Terraform-Get nor its JSON has a location of the module"))?;
        // The rest of the response means nothing to a client.
        answer.body = Bytes::from(location);
        let document = StoredDocument::of(answer, url, fetch.call.now);
        document.as_location(self)?;
        Ok(document)
    }

    async fn handle_not_found(&self, fetch: &DocumentFetch<'_>, error: UpstreamError) -> Result<StoredDocument, Error> {
        match &fetch.listed {
            // While the version list cannot be read, the version may exist in another spelling, so a 404 proves nothing.
            Some(ListingState::Unknown(Some(unread))) => Err(unread.clone()),
            _ => fetch.keep_gone_copy(&error).await,
        }
    }

    async fn store_answer(&self, fetch: &DocumentFetch<'_>, document: StoredDocument) -> DocumentFlightResult {
        // A registry may answer for any version. Caching unlisted ones would let anyone fill the store. An answer that
        // no client can use is not cached either: the next request asks again.
        let is_listed = !matches!(&fetch.listed, Some(ListingState::Unlisted { .. } | ListingState::Unknown(None)));
        let is_useless = || document.as_location(self).is_ok_and(|location| location.is_useless());
        if !is_listed || (!document.metadata.gone && is_useless()) {
            return Ok(document.into());
        }
        fetch.store(document).await
    }
}

impl StoredDocument {
    /// Parses the document as the location of a version.
    pub fn as_location(&self, package: &ModulePackage) -> Result<LocationDocument, Error> {
        let asked = &self.metadata.asked;
        let unusable = |reason: &str| UpstreamError::unusable(location_label(package), origin(asked), reason);
        let text = std::str::from_utf8(&self.body).map_err(|_| unusable("a location that is not UTF-8"))?;
        let parsed = PackageSource::parse(text, asked).map_err(|bad| unusable(&bad.to_string()))?;
        Ok(LocationDocument { parsed, digest: Digest::of(&self.body), confirmed: self.confirmation() })
    }
}

/// The location document of a version: a source address, parsed relative to the URL it came from.
#[derive(Debug, Clone)]
pub struct LocationDocument {
    /// The parsed source.
    pub parsed: LocatedSource,
    /// The SHA-256 of the address as upstream wrote it. The address itself may hold secrets.
    pub digest: Digest,
    pub confirmed: Confirmation,
}

impl LocationDocument {
    /// Returns true for a source that neither larder nor a client can fetch.
    fn is_useless(&self) -> bool {
        matches!(&self.parsed.source, PackageSource::Unsupported(source) if source.for_client().is_none())
    }
}

/// Names the document for error messages.
pub fn location_label(package: &ModulePackage) -> String {
    format!("the location of {package}")
}

/// The module's folder within larder's archive, as written in a location.
pub fn subdir_in_archive(package: &ModulePackage, subdir: Option<&Subdir>) -> Result<Option<String>, Error> {
    let Some(subdir) = subdir.and_then(Subdir::in_package) else { return Ok(None) };
    let text = std::str::from_utf8(subdir.as_bytes()).ok();
    match text.filter(|text| text.bytes().all(|byte| byte.is_ascii_graphic())) {
        Some(text) => Ok(Some(text.to_owned())),
        None => {
            let reason = format!("its //{subdir} has characters invalid in a header");
            Err(UpstreamError::unusable(location_label(package), &package.module.host, reason).into())
        }
    }
}
