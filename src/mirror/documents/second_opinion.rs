//! The other public registry's word about a release. registry.terraform.io and registry.opentofu.org both name archives of one
//! release page for most providers, so where their documents name the same `download_url`, the digests that they give tell
//! whether a release was re-created. The other registry is asked to explain a failure, and never decides about one.

use std::sync::Arc;

use url::Url;

use crate::address::{Hostname, Package, ProviderAddress};
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::documents::Documents;
use crate::mirror::documents::discovery::DiscoveryTrust;
use crate::mirror::effects::Effects;
use crate::mirror::{Connectivity, RequestContext};
use crate::upstream::discovery::Service;
use crate::upstream::error::UpstreamError;
use crate::upstream::outbound::origin;
use crate::upstream::providers::{DownloadDocument, download_url};
use crate::upstream::request::{AcceptedCoding, Fetched};

/// The most bytes of a download document.
pub const MAX_DOWNLOAD_DOCUMENT: u64 = 2 << 20;

/// The digest that the other public registry gives for the same archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecondOpinion {
    /// The other registry.
    pub registry: Hostname,
    /// The `shasum` of its download document.
    pub shasum: Digest,
}

impl SecondOpinion {
    /// Names the case of a document that gives `stated` where SHA256SUMS lists `listed`. Fits a reason phrase.
    pub fn of_contradiction(&self, stated: Digest, listed: Digest) -> String {
        let Self { registry, shasum } = self;
        let [stated_text, listed_text, other] = [&stated, &listed, shasum].map(Digest::in_brief);
        let registries = match shasum {
            // The registry read the release before it was re-created, and the other one afterwards.
            _ if *shasum == listed => {
                return format!(
                    "re-created upstream: the registry lists {stated_text}, SHA256SUMS says {listed_text}; {registry} \
                     says {other} too"
                );
            }
            _ if *shasum == stated => format!("the registry lists {stated_text}, as {registry} does"),
            _ => format!("the registry lists {stated_text}, {registry} {other}"),
        };
        format!("changed upstream: {registries}; SHA256SUMS says {listed_text}")
    }

    /// Names the case of a set that gives `now` where the version was verified with other bytes before.
    pub fn of_change(&self, now: Digest) -> String {
        let Self { registry, shasum } = self;
        match *shasum == now {
            true => format!("re-created upstream: {registry} says {} too", now.in_brief()),
            false => format!("{registry} says {}, not {}", shasum.in_brief(), now.in_brief()),
        }
    }
}

impl Documents {
    /// Asks the other public registry about the archive at `archive_url`. `None` if the package is of no public registry, the
    /// other one is no upstream here, does not answer within the patience of its upstream, or names another archive.
    pub async fn second_opinion(
        self: &Arc<Self>,
        package: &Package,
        archive_url: &Url,
        call: &RequestContext,
    ) -> Option<SecondOpinion> {
        let registry = package.provider.host.other_public_registry()?;
        let upstream = call.upstream(&registry).ok()?;
        if self.runtime.connectivity() == Connectivity::Offline || call.effects() == Effects::None {
            return None;
        }
        let provider = ProviderAddress { host: registry.clone(), ..package.provider.clone() };
        let elsewhere = Package { provider, ..package.clone() };
        // A client that waits must get the cause even where the opinion does not come.
        let left = self.runtime.limits.answer_within.saturating_sub(call.started.elapsed());
        let wait = upstream.settings.patience.min(left / 2);
        let asked = tokio::time::timeout(wait, self.download_document(&elsewhere, call));
        let document = match asked.await {
            Ok(Ok(document)) => document,
            Ok(Err(error)) => {
                tracing::debug!(package = %elsewhere, %error, "the other public registry has no opinion");
                return None;
            }
            Err(_) => return None,
        };
        (document.archive_url == *archive_url).then_some(SecondOpinion { registry, shasum: document.shasum })
    }

    /// Fetches a download document, of which nothing is verified or stored.
    pub(super) async fn download_document(
        self: &Arc<Self>,
        package: &Package,
        call: &RequestContext,
    ) -> Result<DownloadDocument, Error> {
        let upstream = call.upstream(&package.provider.host)?;
        let resolved = self.resolve_service(Service::Providers, upstream, DiscoveryTrust::AnyStored, call);
        let (base, credentials) = resolved.await?;
        let subject = format!("the download document of {package}");
        let unusable = |reason: String| UpstreamError::unusable(&subject, origin(&base), reason);
        let url = download_url(&base, &package.provider, package.version.as_str(), &package.platform)
            .map_err(|e| unusable(e.to_string()))?;
        let request = call.upstream_request(&subject, &url, &package.provider.host, &credentials, 0);
        let limit = self.runtime.limits.document_bytes.min(MAX_DOWNLOAD_DOCUMENT);
        match call.config.outbound.document(AcceptedCoding::Any, request, None, limit).await? {
            Fetched::New(document) => {
                Ok(DownloadDocument::parse(&document.body, &document.url, &package.platform).map_err(unusable)?)
            }
            Fetched::Unchanged => Err(unusable("304 to an unconditional request".to_owned()).into()),
        }
    }
}
