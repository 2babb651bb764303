//! The other public registry's word about a release. registry.terraform.io and registry.opentofu.org both name archives of one
//! release page for most providers, so where their documents name the same `download_url`, the digests that they give tell
//! whether a release was re-created. The other registry is asked to explain a failure, and never decides about one.

use std::sync::Arc;
use std::time::Duration;

use url::Url;

use crate::address::{Hostname, Package, ProviderAddress};
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::documents::Documents;
use crate::mirror::documents::discovery::DiscoveryTrust;
use crate::mirror::effects::Effects;
use crate::mirror::{Connectivity, RequestContext};
use crate::upstream::discovery::Service;
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::outbound::origin;
use crate::upstream::providers::{DownloadDocument, download_url};
use crate::upstream::request::{AcceptedCoding, Fetched};

/// The most bytes of a download document.
pub const MAX_DOWNLOAD_DOCUMENT: u64 = 2 << 20;

/// The namespace whose providers the two registries build themselves: their archives differ.
const OWN_BUILDS: &str = "hashicorp";

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

    /// Names the case of a version that was verified with the archive `before`, and of which a set gives `now`.
    pub fn of_change(&self, before: Digest, now: Digest) -> String {
        let Self { registry, shasum } = self;
        let [before_text, now_text, other] = [&before, &now, shasum].map(Digest::in_brief);
        match shasum {
            _ if *shasum == now => {
                format!("re-created upstream: it was {before_text}, is {now_text} now; {registry} says {other} too")
            }
            _ => format!("changed upstream: it was {before_text}, is {now_text} now; {registry} says {other}"),
        }
    }
}

impl Documents {
    /// Asks the other public registry about the archive at `archive_url`. `None` if it has no opinion: the package is of no public
    /// registry, or of one that builds it itself, the other registry is no upstream here, does not answer within the patience of
    /// its upstream, or names another archive.
    pub async fn second_opinion(
        self: &Arc<Self>,
        package: &Package,
        archive_url: &Url,
        call: &RequestContext,
    ) -> Option<SecondOpinion> {
        let registry = self.other_registry(&package.provider, call)?;
        let patience = call.upstream(&registry).ok()?.settings.patience;
        let asked = self.opinion_of(registry, package, archive_url, call);
        let opinion = tokio::time::timeout(self.wait_for_opinion(patience, call), asked).await.ok()?;
        opinion
            .inspect_err(|error| tracing::debug!(%package, %error, "the other public registry has no opinion"))
            .ok()?
    }

    /// The longest wait for the other registry: a client that waits must get an answer even where the opinion does not come.
    pub(super) fn wait_for_opinion(&self, patience: Duration, call: &RequestContext) -> Duration {
        patience.min(self.runtime.limits.answer_within.saturating_sub(call.started.elapsed()) / 2)
    }

    /// The other public registry, where it is an upstream that may be asked about a provider.
    pub(super) fn other_registry(&self, provider: &ProviderAddress, call: &RequestContext) -> Option<Hostname> {
        let other = provider.host.other_public_registry().filter(|other| call.upstream(other).is_ok())?;
        let may_ask = self.runtime.connectivity() == Connectivity::Online && call.effects() == Effects::Real;
        (may_ask && provider.namespace.as_str() != OWN_BUILDS).then_some(other)
    }

    /// The opinion of the other registry; `None` if it has no such document, or one that names another archive.
    ///
    /// # Errors
    /// It cannot be asked now.
    pub(super) async fn opinion_of(
        self: &Arc<Self>,
        registry: Hostname,
        package: &Package,
        archive_url: &Url,
        call: &RequestContext,
    ) -> Result<Option<SecondOpinion>, Error> {
        let provider = ProviderAddress { host: registry.clone(), ..package.provider.clone() };
        let elsewhere = Package { provider, ..package.clone() };
        let document = self.download_document(&elsewhere, call).await?;
        let is_same = |document: &DownloadDocument| document.archive_url == *archive_url;
        Ok(document.filter(is_same).map(|document| SecondOpinion { registry, shasum: document.shasum }))
    }

    /// Fetches a download document, of which nothing is verified or stored. `None` if the registry has none.
    ///
    /// # Errors
    /// The registry does not answer as it should.
    pub(super) async fn download_document(
        self: &Arc<Self>,
        package: &Package,
        call: &RequestContext,
    ) -> Result<Option<DownloadDocument>, Error> {
        let upstream = call.upstream(&package.provider.host)?;
        let resolved = self.resolve_service(Service::Providers, upstream, DiscoveryTrust::AnyStored, call);
        let (base, credentials) = resolved.await?;
        let subject = format!("the download document of {package}");
        let unusable = |reason: String| UpstreamError::unusable(&subject, origin(&base), reason);
        let url = download_url(&base, &package.provider, package.version.as_str(), &package.platform)
            .map_err(|e| unusable(e.to_string()))?;
        let request = call.upstream_request(&subject, &url, &package.provider.host, &credentials, 0);
        let limit = self.runtime.limits.document_bytes.min(MAX_DOWNLOAD_DOCUMENT);
        match call.config.outbound.document(AcceptedCoding::Any, request, None, limit).await {
            Ok(Fetched::New(document)) => {
                let parsed = DownloadDocument::parse(&document.body, &document.url, &package.platform);
                Ok(Some(parsed.map_err(unusable)?))
            }
            Ok(Fetched::Unchanged) => Err(unusable("304 to an unconditional request".to_owned()).into()),
            Err(error) if matches!(error.fault, Fault::Absent(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}
