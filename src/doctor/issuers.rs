//! Checks that the issuers of clients' tokens give their keys.

use tokio::time::Instant;

use super::Check;
use super::machine::AnnouncedTimes;
use super::upstreams::{UpstreamCheck, fault_text};
use crate::clock::Timestamp;
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::issuers::{Issuer, MAX_DOCUMENT_BYTES};
use crate::upstream::outbound::origin;
use crate::verify::jwt::IssuerKeys;

pub(super) const KEYS: &str = "issuer.keys";

const UNTRUSTED_ADVICE: &str = "if the certificate is from an authority of its own, name that authority's PEM file: [[client]] \
     oidc.ca";
const NO_KEYS_ADVICE: &str = "check the spelling in [[client]] oidc.issuer; an issuer that larder cannot ask needs its keys in a \
     file: jwks = { file = … }; keys that are stored count meanwhile";

/// Asks an issuer for its keys, as larder does.
pub(super) async fn check_keys(issuer: &Issuer, now: Timestamp, times: &AnnouncedTimes) -> Check {
    let started = Instant::now();
    match keys(issuer, now, times).await {
        Ok(keys) => {
            let (count, ms) = (keys.count(), started.elapsed().as_millis());
            Check::passed(KEYS, format!("{count} key{}, in {ms} ms", if count == 1 { "" } else { "s" }))
        }
        Err(error) => {
            let advice = if matches!(error.fault, Fault::Untrusted(_)) { UNTRUSTED_ADVICE } else { NO_KEYS_ADVICE };
            Check::fail(KEYS, format!("{} {}", error.origin, fault_text(&error.fault))).advise(advice)
        }
    }
    .about(&issuer.name)
}

async fn keys(issuer: &Issuer, now: Timestamp, times: &AnnouncedTimes) -> Result<IssuerKeys, UpstreamError> {
    let (upstream, outbound) = (&*issuer.upstream, &issuer.outbound);
    let unusable = |reason: String| UpstreamError::unusable(KEYS, origin(&upstream.settings.url), reason);
    let check = UpstreamCheck { upstream, outbound, host: &upstream.settings.host, now };
    let url = issuer.configuration_url().map_err(|bad| unusable(bad.to_string()))?;
    let configuration =
        check.fetch("its OpenID configuration", &url, &upstream.credential_scope, MAX_DOCUMENT_BYTES).await?;
    times.record(&issuer.name, configuration.date);
    let (url, scope) = issuer.keys_url(&configuration.body).map_err(unusable)?;
    let keys = check.fetch("its keys", &url, &scope, MAX_DOCUMENT_BYTES).await?;
    IssuerKeys::parse(&keys.body).map_err(unusable)
}
