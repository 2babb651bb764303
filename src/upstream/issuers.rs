//! The issuers of tokens that larder asks for their keys (OpenID Connect Discovery 1.0, section 4): the configuration of an issuer
//! is at `/.well-known/openid-configuration` below its name, and its `jwks_uri` is where its keys are (RFC 7517).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustls_pki_types::CertificateDer;
use serde::Deserialize;
use url::{ParseError, Url};

use super::clients::{ConnectorError, read_authorities};
use super::outbound::Outbound;
use super::{CredentialScope, Upstream};
use crate::config::{self, Config, IssuerSettings, KeySource};
use crate::digest::Digest;

/// The most bytes of an issuer's configuration, and of its keys.
pub const MAX_DOCUMENT_BYTES: u64 = 256 << 10;

/// An issuer that is asked. Naming it permits its origin, and other ports of its host.
#[derive(Debug)]
pub struct Issuer {
    /// Its name in tokens, a URL.
    pub name: String,
    /// The digest of its name, and of the authorities that it needs: keys that others proved are not its own.
    pub id: Digest,
    /// True once it has given its keys under this configuration.
    pub was_asked: AtomicBool,
    /// Held by the one that asks it for newer keys, until that is noted.
    pub turn: tokio::sync::Mutex<()>,
    /// The one upstream of its documents, without credentials.
    pub upstream: Arc<Upstream>,
    /// The connector to it, which trusts its `ca`.
    pub outbound: Outbound,
}

/// The issuers that are asked, by their names.
#[derive(Debug, Default)]
pub struct Issuers(BTreeMap<String, Arc<Issuer>>);

impl Issuers {
    /// The issuers of a configuration. Reads the certificates that they trust.
    ///
    /// # Errors
    /// [`ConnectorError`] for unusable certificates.
    pub fn new(config: &Config, outbound: &Outbound) -> Result<Self, ConnectorError> {
        let mut issuers = BTreeMap::new();
        for oidc in config.clients.iter().filter_map(|client| client.oidc.as_ref()) {
            let KeySource::Issuer(IssuerSettings { host, url, ca }) = &oidc.keys else { continue };
            if issuers.contains_key(&oidc.issuer) {
                continue;
            }
            let authorities = ca.as_deref().map(|ca| read_authorities("[[client]] oidc.ca", ca)).transpose()?;
            let settings = config::Upstream::at(host.clone(), url.clone());
            let issuer = Issuer {
                name: oidc.issuer.clone(),
                upstream: Arc::new(Upstream {
                    credential_scope: CredentialScope::of(&settings, &[], &config.network.allow_private),
                    settings,
                }),
                id: id(&oidc.issuer, authorities.as_deref().unwrap_or_default()),
                was_asked: AtomicBool::new(false),
                turn: tokio::sync::Mutex::default(),
                outbound: match authorities {
                    Some(authorities) => outbound.trusting(config, authorities)?,
                    None => outbound.clone(),
                },
            };
            issuers.insert(oidc.issuer.clone(), Arc::new(issuer));
        }
        Ok(Self(issuers))
    }

    /// The issuer of this name, if it is asked.
    pub fn get(&self, name: &str) -> Option<&Arc<Issuer>> {
        self.0.get(name)
    }

    /// All issuers.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Issuer>> {
        self.0.values()
    }
}

fn id(name: &str, authorities: &[CertificateDer<'_>]) -> Digest {
    let digests = authorities.iter().map(|authority| Digest::of(authority.as_ref()).to_string());
    Digest::of(std::iter::once(name.to_owned()).chain(digests).collect::<Vec<_>>().join("\n").as_bytes())
}

impl Issuer {
    /// The URL of its configuration.
    pub fn configuration_url(&self) -> Result<Url, ParseError> {
        self.upstream.settings.url.join(".well-known/openid-configuration")
    }

    /// The URL of its keys in its configuration, and the origins that may be asked for them.
    ///
    /// # Errors
    /// The reason why this is not its configuration.
    pub fn keys_url(&self, configuration: &[u8]) -> Result<(Url, CredentialScope), String> {
        #[derive(Deserialize)]
        struct Configuration {
            issuer: String,
            jwks_uri: Url,
        }
        let Configuration { issuer, jwks_uri } = serde_json::from_slice(configuration)
            .map_err(|bad| format!("its OpenID configuration is not JSON with an issuer and a jwks_uri: {bad}"))?;
        if issuer != self.name {
            let issuer: String = issuer.chars().filter(char::is_ascii_graphic).take(200).collect();
            return Err(format!("its OpenID configuration is that of another issuer, {issuer}"));
        }
        if jwks_uri.scheme() != "https" {
            return Err("its jwks_uri is not an https URL, and keys count over https only".to_owned());
        }
        let scope = self.upstream.credential_scope.clone().with_permitted_service(&jwks_uri);
        Ok((jwks_uri, scope))
    }
}
