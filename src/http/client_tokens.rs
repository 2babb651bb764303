//! The tokens of clients (`[[client]]`): which client a request is of, and what that may use. A token is compared by its digest,
//! in constant time. Archives are fetched without credentials: their URLs carry a proof (`protocol/rights.rs`).

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use http::header::{AUTHORIZATION, HeaderMap};
use ipnet::IpNet;
use moka::sync::Cache;
use subtle::{Choice, ConstantTimeEq as _};

use super::clients::RequestClient;
use crate::clock::Timestamp;
use crate::config::{Client, Oidc};
use crate::digest::Digest;
use crate::protocol::rights::{BadArchiveUrl, RightsClass};
use crate::verify::jwt::{BadJwt, Jwt, claimed_issuer};

/// The wrong tokens of one address within a minute that are answered in full. Further ones are neither logged nor remembered.
const WRONG_TOKENS: u32 = 60;
/// The time after its last wrong token at which an address counts as new.
const WRONG_TOKENS_WITHIN: Duration = Duration::from_secs(60);
/// The most addresses whose wrong tokens are counted.
const MAX_ADDRESSES: u64 = 4096;
/// The most verified tokens of CI systems in memory.
const MAX_VERIFIED: u64 = 4096;
/// The prefix that counts as one address of IPv6.
const IPV6_PREFIX: u8 = 64;

/// The clients that authenticate. Without any, nobody needs to.
#[derive(Debug)]
pub struct ClientTokens {
    clients: Vec<KnownClient>,
    /// The tokens of CI systems that were verified, by their digests: the client, and the last moment at which one counts.
    verified: Cache<Digest, (usize, Timestamp)>,
}

/// A client that authenticates.
#[derive(Debug)]
struct KnownClient {
    name: String,
    tokens: Vec<Digest>,
    oidc: Option<Oidc>,
    networks: Option<Vec<IpNet>>,
    class: Arc<RightsClass>,
}

/// Text by which the doctor recognises a token that does not count from its address.
pub const COUNTS_NOT_FROM: &str = "does not count from";

/// Why a request is not that of a client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAuthenticated {
    /// It has no token.
    #[error(
        "this mirror needs a token of its clients, and the request has none; the CLI configuration names it: credentials \"HOST\" {{ token = \
         … }} for the host name in source addresses"
    )]
    NoToken,
    /// No client has this token.
    #[error("this mirror does not know the token of the request; its operator can give you one")]
    WrongToken,
    /// A CI system signed the token, and it does not count.
    #[error("the token of {0} does not count: {1}")]
    Jwt(String, BadJwt),
    /// A CI system signed the token, and no client has its claims.
    #[error(
        "the token of {0} counts for no client of this mirror: its claims are others; its operator can name them in [[client]] oidc"
    )]
    Claims(String),
    /// The token does not count from this address.
    #[error(
        "the token of client {0} {COUNTS_NOT_FROM} {1}; its operator can add that network to the client's networks"
    )]
    WrongNetwork(String, String),
    /// The request came in plain text.
    #[error(
        "larder takes tokens over https only, and this one came in plain text: have its operator replace it, and write https in the \
         client's URL"
    )]
    PlainText,
    /// The proof in the URL of an archive does not count.
    #[error(transparent)]
    ArchiveUrl(#[from] BadArchiveUrl),
}

impl ClientTokens {
    /// The clients of a configuration.
    pub fn new(clients: &[Client]) -> Self {
        let known = |Client { name, tokens, oidc, networks, allow }: &Client| KnownClient {
            name: name.clone(),
            tokens: tokens.clone(),
            oidc: oidc.clone(),
            networks: networks.clone(),
            class: Arc::new(RightsClass::new(allow.clone())),
        };
        Self { clients: clients.iter().map(known).collect(), verified: Cache::new(MAX_VERIFIED) }
    }

    /// Returns true if no client needs to authenticate.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// The classes of rights of all clients.
    pub fn classes(&self) -> impl Iterator<Item = Arc<RightsClass>> {
        self.clients.iter().map(|client| Arc::clone(&client.class))
    }

    /// The class of rights of the client that sent a request with these headers.
    ///
    /// # Errors
    /// [`NotAuthenticated`].
    pub fn class_of(
        &self,
        headers: &HeaderMap,
        client: &RequestClient,
        now: Timestamp,
    ) -> Result<&Arc<RightsClass>, NotAuthenticated> {
        let token = bearer_token(headers).ok_or(NotAuthenticated::NoToken)?;
        let digest = Digest::of(token);
        let has_token = |known: &KnownClient| {
            let compared = known.tokens.iter().map(|token| token.as_bytes().ct_eq(digest.as_bytes()));
            compared.fold(Choice::from(0), |any, equal| any | equal)
        };
        // All are compared: the time says nothing about which one it was.
        let found =
            self.clients.iter().fold(None, |found, known| if has_token(known).into() { Some(known) } else { found });
        let known = match found {
            Some(known) => known,
            None => self.of_ci_system(token, digest, now)?,
        };
        match &known.networks {
            Some(networks) if !client.is_within(networks) => {
                Err(NotAuthenticated::WrongNetwork(known.name.clone(), client.shown()))
            }
            _ => Ok(&known.class),
        }
    }
}

impl ClientTokens {
    /// The client that the token of a CI system counts for. One that was verified counts until its end.
    fn of_ci_system(&self, token: &[u8], digest: Digest, now: Timestamp) -> Result<&KnownClient, NotAuthenticated> {
        if let Some((index, expires)) = self.verified.get(&digest)
            && now <= expires
            && let Some(known) = self.clients.get(index)
        {
            return Ok(known);
        }
        let token = std::str::from_utf8(token).map_err(|_| NotAuthenticated::WrongToken)?;
        let issuer = claimed_issuer(token).ok_or(NotAuthenticated::WrongToken)?;
        let mut refusal = NotAuthenticated::WrongToken;
        for (index, known) in self.clients.iter().enumerate() {
            let Some(oidc) = known.oidc.as_ref().filter(|oidc| oidc.issuer == issuer) else { continue };
            let jwt = match Jwt::verified(token, &oidc.keys, &oidc.issuer, now) {
                Ok(jwt) if jwt.is_for(&oidc.audience) => jwt,
                Ok(_) => {
                    refusal = NotAuthenticated::Jwt(issuer.clone(), BadJwt::Audience(oidc.audience.clone()));
                    continue;
                }
                Err(bad) => {
                    refusal = NotAuthenticated::Jwt(issuer.clone(), bad);
                    continue;
                }
            };
            if oidc.claims.iter().all(|(name, pattern)| jwt.has_claim(name, |text| pattern.matches(text))) {
                tracing::info!(client = known.name, issuer, jti = jwt.id, "the token of a CI system counts");
                self.verified.insert(digest, (index, jwt.expires));
                return Ok(known);
            }
            refusal = NotAuthenticated::Claims(issuer.clone());
        }
        Err(refusal)
    }
}

/// The token of an `Authorization: Bearer` header (RFC 6750). Two of them are none.
fn bearer_token(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next()?;
    if values.next().is_some() {
        return None;
    }
    let (scheme, token) = value.as_bytes().split_at_checked("Bearer ".len())?;
    (scheme.eq_ignore_ascii_case(b"Bearer ")).then(|| token.trim_ascii())
}

/// Counts wrong tokens by address.
#[derive(Debug, Clone)]
pub struct WrongTokens(Cache<IpAddr, Arc<AtomicU32>>);

impl Default for WrongTokens {
    fn default() -> Self {
        Self(Cache::builder().max_capacity(MAX_ADDRESSES).time_to_live(WRONG_TOKENS_WITHIN).build())
    }
}

impl WrongTokens {
    /// Counts a wrong token of an address. Returns true if it is beyond the limit of a minute.
    pub fn exceeds(&self, address: IpAddr) -> bool {
        let counted = match address {
            IpAddr::V4(_) => address,
            IpAddr::V6(_) => IpNet::new(address, IPV6_PREFIX).map_or(address, |network| network.network()),
        };
        let count = self.0.get_with(counted, Arc::default).fetch_add(1, Ordering::Relaxed);
        if count == WRONG_TOKENS {
            tracing::warn!(client = %address, "sent {WRONG_TOKENS} wrong tokens within a minute; for the rest of it further ones are answered 401 and not logged");
        }
        count >= WRONG_TOKENS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::clients::Clients;

    fn tokens(networks: Option<&str>) -> ClientTokens {
        let client = |name: &str, tokens: &[&str]| Client {
            name: name.to_owned(),
            tokens: tokens.iter().map(|token| Digest::of(token.as_bytes())).collect(),
            oidc: None,
            networks: networks.map(|network| vec![network.parse().unwrap()]),
            allow: None,
        };
        ClientTokens::new(&[client("one", &["first", "second"]), client("two", &["third"])])
    }

    fn class_of(tokens: &ClientTokens, values: &[&str], address: &str) -> Result<(), NotAuthenticated> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, value.parse().unwrap());
        }
        let client = Clients::default().client(address.parse().unwrap(), &headers);
        tokens.class_of(&headers, &client, Timestamp(0)).map(drop)
    }

    #[test]
    fn a_client_is_known_by_any_of_its_tokens() {
        let all = tokens(None);
        for value in ["Bearer first", "bearer second", "BEARER   third "] {
            assert_eq!(class_of(&all, &[value], "10.0.0.1"), Ok(()), "{value}");
        }
        for (values, refusal) in [
            (&[][..], NotAuthenticated::NoToken),
            (&["Basic Zmlyc3Q6"], NotAuthenticated::NoToken),
            (&["Bearer"], NotAuthenticated::NoToken),
            (&["Bearer first", "Bearer first"], NotAuthenticated::NoToken),
            (&["Bearer "], NotAuthenticated::WrongToken),
            (&["Bearer First"], NotAuthenticated::WrongToken),
            (&["Bearer firs"], NotAuthenticated::WrongToken),
            (&["Bearer first, second"], NotAuthenticated::WrongToken),
        ] {
            assert_eq!(class_of(&all, values, "10.0.0.1"), Err(refusal), "{values:?}");
        }
        let of_network = tokens(Some("10.0.0.0/8"));
        assert_eq!(class_of(&of_network, &["Bearer first"], "::ffff:10.1.1.1"), Ok(()));
        let foreign = NotAuthenticated::WrongNetwork("one".to_owned(), "192.0.2.1".to_owned());
        assert_eq!(class_of(&of_network, &["Bearer first"], "192.0.2.1"), Err(foreign));
    }

    #[test]
    fn wrong_tokens_of_one_address_are_counted_together() {
        let wrong = WrongTokens::default();
        let address = |last: u16| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, last]);
        assert!((0..60).all(|last| !wrong.exceeds(address(last))));
        assert!(wrong.exceeds(address(99)) && !wrong.exceeds([192, 0, 2, 1].into()));
    }
}
