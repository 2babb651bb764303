//! The tokens of clients (`[[client]]`): which client a request is of, and what that may use. A token is compared by its digest,
//! in constant time. Archives are fetched without credentials: their URLs carry a proof (`protocol/rights.rs`).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use http::StatusCode;
use http::header::{AUTHORIZATION, HeaderMap};
use ipnet::IpNet;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use subtle::{Choice, ConstantTimeEq as _};

use super::clients::RequestClient;
use crate::clock::Timestamp;
use crate::config::{ClaimPattern, Client, KeySource, Oidc};
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::IssuerKeyring;
use crate::protocol::rights::{BadArchiveUrl, RightsClass};
use crate::verify::jwt::{BadJwt, IssuerKeys, Jwt, claimed_issuer, made_at};

/// The requests of one address within a minute, without a right token, that are answered in full. Further ones are neither logged
/// nor remembered.
const STRANGERS: u32 = 60;
/// The time after its last such request at which an address counts as new.
const STRANGERS_WITHIN: Duration = Duration::from_secs(60);
/// The most addresses that are counted.
const MAX_ADDRESSES: u64 = 4096;
/// The most verified tokens of CI systems in memory.
const MAX_VERIFIED: u64 = 4096;
/// The time after which a token of a CI system is verified again, because its issuer may have withdrawn the key.
const VERIFIED_FOR: Duration = Duration::from_secs(300);
/// The most characters of the id of a token.
const MAX_JOB_ID_CHARS: usize = 128;
/// The prefix that counts as one address of IPv6.
const IPV6_PREFIX: u8 = 64;

/// The clients that authenticate. Without any, nobody needs to.
#[derive(Debug)]
pub struct ClientTokens {
    clients: Vec<KnownClient>,
    /// The tokens of CI systems that were verified, by their digests.
    verified: Cache<Digest, VerifiedToken>,
    /// The issuers that are asked for their keys, by their names.
    keyrings: HashMap<String, IssuerKeyring>,
}

/// The token of a CI system: the clients whose claims it has, and the last moment at which that needs no other look.
#[derive(Debug, Clone)]
struct VerifiedToken {
    clients: Arc<[usize]>,
    job: Option<Arc<str>>,
    until: Timestamp,
}

/// A client that authenticated.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Its name.
    pub name: Arc<str>,
    /// The id of the token of a CI system (`jti`).
    pub job: Option<Arc<str>>,
    /// Its rights.
    pub class: Arc<RightsClass>,
}

/// A client that authenticates.
#[derive(Debug)]
struct KnownClient {
    name: Arc<str>,
    tokens: Vec<Digest>,
    oidc: Option<Oidc>,
    networks: Option<Vec<IpNet>>,
    class: Arc<RightsClass>,
}

/// Text by which the doctor recognises a token that does not count from its address.
pub const COUNTS_NOT_FROM: &str = "does not count from";

/// Why the keys of an issuer cannot be had.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NoKeys {
    /// Asking it failed, or larder is offline.
    #[error("{}{}", .0.explain().cause, remedy_of(.0))]
    Failed(Error),
    /// It made the key after it was asked, perhaps.
    #[error("it had no key {0} when it was asked a moment ago; it is asked again within a minute")]
    AskedBefore(String),
}

/// The remedy: others than that of a refused address are about registries.
fn remedy_of(error: &Error) -> String {
    let of_refusal = error.explain().remedy.filter(|_| error.is_refused_address());
    format!("; {}", of_refusal.as_deref().unwrap_or("`larder doctor` on larder's machine says more"))
}

impl NoKeys {
    /// The status of the answer: larder's own failure, whatever the issuer said.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Failed(error) if error.status().is_server_error() => error.status(),
            Self::Failed(_) => StatusCode::BAD_GATEWAY,
            Self::AskedBefore(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// Why a request is not that of a client.
#[derive(Debug, Clone, thiserror::Error)]
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
    /// A CI system signed the token, and its keys cannot be had.
    #[error("the token cannot be checked: the keys of its issuer {0} cannot be had: {1}")]
    NoKeys(String, NoKeys),
    /// A CI system signed the token, and no client has its claims.
    #[error(
        "the token of {0} counts for no client of this mirror: its claim {1} is not what a [[client]] of that issuer asks for"
    )]
    Claims(String, String),
    /// The token does not count from this address.
    #[error(
        "the token of client {name} {COUNTS_NOT_FROM} {1}; its operator can add that network to the client's networks",
        name = .0.name
    )]
    WrongNetwork(Identity, String),
    /// The request came in plain text.
    #[error(
        "larder takes tokens over https only, and this one came in plain text: have its operator replace it, and write https in the \
         client's URL"
    )]
    PlainText(Identity),
    /// The proof in the URL of an archive does not count.
    #[error(transparent)]
    ArchiveUrl(#[from] BadArchiveUrl),
}

impl ClientTokens {
    /// The clients of a configuration, and the issuers that it asks, by their names.
    pub fn new(clients: &[Client], keyrings: HashMap<String, IssuerKeyring>) -> Self {
        let known = |Client { name, tokens, oidc, networks, allow }: &Client| KnownClient {
            name: name.as_str().into(),
            tokens: tokens.clone(),
            oidc: oidc.clone(),
            networks: networks.clone(),
            class: Arc::new(RightsClass::new(allow.clone())),
        };
        let verified = Cache::builder().max_capacity(MAX_VERIFIED).eviction_policy(EvictionPolicy::lru()).build();
        Self { clients: clients.iter().map(known).collect(), verified, keyrings }
    }

    /// Returns true if no client needs to authenticate.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// The classes of rights of all clients.
    pub fn classes(&self) -> impl Iterator<Item = Arc<RightsClass>> {
        self.clients.iter().map(|client| Arc::clone(&client.class))
    }

    /// The client that sent a request with these headers.
    ///
    /// # Errors
    /// [`NotAuthenticated`].
    pub async fn identity_of(
        &self,
        headers: &HeaderMap,
        client: &RequestClient,
        now: Timestamp,
    ) -> Result<Identity, NotAuthenticated> {
        let token = bearer_token(headers).ok_or(NotAuthenticated::NoToken)?;
        let digest = Digest::of(token);
        let has_token = |known: &KnownClient| {
            let compared = known.tokens.iter().map(|token| token.as_bytes().ct_eq(digest.as_bytes()));
            compared.fold(Choice::from(0), |any, equal| any | equal)
        };
        // All are compared: the time says nothing about which one it was.
        let found =
            self.clients.iter().fold(None, |found, known| if has_token(known).into() { Some(known) } else { found });
        let (candidates, job) = match found {
            Some(known) => (vec![known], None),
            // Boxed, or every request would reserve the memory for a fetch of keys.
            None => Box::pin(self.of_ci_system(token, digest, now)).await?,
        };
        let counts_here =
            |known: &&&KnownClient| known.networks.as_ref().is_none_or(|networks| client.is_within(networks));
        let identity =
            |known: &KnownClient| Identity { name: Arc::clone(&known.name), job, class: Arc::clone(&known.class) };
        match (candidates.iter().find(counts_here), candidates.first()) {
            (Some(known), _) => Ok(identity(known)),
            (None, Some(known)) => Err(NotAuthenticated::WrongNetwork(identity(known), client.shown())),
            (None, None) => Err(NotAuthenticated::WrongToken),
        }
    }

    /// The clients that the token of a CI system counts for, in the order of the configuration, and its id.
    async fn of_ci_system(
        &self,
        token: &[u8],
        digest: Digest,
        now: Timestamp,
    ) -> Result<(Vec<&KnownClient>, Option<Arc<str>>), NotAuthenticated> {
        let known = |clients: &[usize]| clients.iter().filter_map(|index| self.clients.get(*index)).collect();
        // A time that lies further ahead is from before the clock was set back.
        let latest = now.after(VERIFIED_FOR);
        if let Some(verified) = self.verified.get(&digest).filter(|verified| (now..=latest).contains(&verified.until)) {
            return Ok((known(&verified.clients), verified.job));
        }
        let token = std::str::from_utf8(token).map_err(|_| NotAuthenticated::WrongToken)?;
        let issuer = claimed_issuer(token).ok_or(NotAuthenticated::WrongToken)?;
        // Many clients can have the keys of one issuer: each set of keys is tried once.
        let mut judgements: BTreeMap<Option<Digest>, Result<Jwt, BadJwt>> = BTreeMap::new();
        let (mut matching, mut job, mut until, mut refusals) = (Vec::new(), None, latest, Vec::new());
        for (index, client) in self.clients.iter().enumerate() {
            let Some(oidc) = client.oidc.as_ref().filter(|oidc| oidc.issuer == issuer) else { continue };
            let keys = if let KeySource::File(keys) = &oidc.keys { Some(*keys.id()) } else { None };
            let judgement = match judgements.entry(keys) {
                Entry::Occupied(judged) => judged.into_mut(),
                Entry::Vacant(place) => place.insert(self.judged(token, oidc, now).await?),
            };
            match counting(judgement, oidc) {
                Ok(jwt) => {
                    tracing::info!(client = &*client.name, issuer, jti = jwt.id, "the token of a CI system counts");
                    until = until.min(jwt.expires);
                    job = jwt.id.as_deref().map(job_id);
                    matching.push(index);
                }
                Err(refusal) => refusals.push(refusal),
            }
        }
        if matching.is_empty() {
            return Err(refusals.into_iter().max_by_key(nearness).unwrap_or(NotAuthenticated::WrongToken));
        }
        let clients = known(&matching);
        self.verified.insert(digest, VerifiedToken { clients: matching.into(), job: job.clone(), until });
        Ok((clients, job))
    }
}

impl ClientTokens {
    /// Verifies the token of a CI system with the keys that a client names. The issuer may have made new ones since it was asked.
    async fn judged(&self, token: &str, oidc: &Oidc, now: Timestamp) -> Result<Result<Jwt, BadJwt>, NotAuthenticated> {
        let verified = |keys: &IssuerKeys| Jwt::verified(token, keys, &oidc.issuer, now);
        let keyring = match &oidc.keys {
            KeySource::File(keys) => return Ok(verified(keys)),
            KeySource::Issuer(_) => self.keyrings.get(&oidc.issuer).ok_or(NotAuthenticated::WrongToken)?,
        };
        let no_keys = |cause| NotAuthenticated::NoKeys(oidc.issuer.clone(), cause);
        let failed = |error| no_keys(NoKeys::Failed(error));
        let known = keyring.keys(now).await.map_err(failed)?;
        let judgement = verified(&known.keys);
        if !judgement.as_ref().is_err_and(BadJwt::may_be_of_another_key) {
            return Ok(judgement);
        }
        let newer = keyring.newer(&known, now).await.map_err(failed)?;
        match verified(&newer.keys) {
            Err(BadJwt::UnknownKey(key)) if newer.are_older_than(made_at(token)) => {
                Err(no_keys(NoKeys::AskedBefore(key)))
            }
            judgement => Ok(judgement),
        }
    }
}

/// The token that a CI system signed, if it counts for a client.
fn counting<'a>(judgement: &'a Result<Jwt, BadJwt>, oidc: &Oidc) -> Result<&'a Jwt, NotAuthenticated> {
    let refused = |bad| NotAuthenticated::Jwt(oidc.issuer.clone(), bad);
    let jwt = judgement.as_ref().map_err(|bad| refused(bad.clone()))?;
    if !jwt.is_for(&oidc.audience) {
        return Err(refused(BadJwt::Audience(oidc.audience.clone())));
    }
    let lacks = |(name, pattern): &&(String, ClaimPattern)| !jwt.has_claim(name, |text| pattern.matches(text));
    match oidc.claims.iter().find(lacks) {
        Some((name, _)) => Err(NotAuthenticated::Claims(oidc.issuer.clone(), name.clone())),
        None => Ok(jwt),
    }
}

/// The id of a token, as far as it is kept.
fn job_id(id: &str) -> Arc<str> {
    id.chars().take(MAX_JOB_ID_CHARS).collect::<String>().into()
}

/// Ranks refusals of a CI system's token: the higher one came nearer to a client, and helps more.
fn nearness(refusal: &NotAuthenticated) -> u8 {
    match refusal {
        NotAuthenticated::Claims(..) => 2,
        NotAuthenticated::Jwt(_, BadJwt::Audience(_)) => 1,
        _ => 0,
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

/// Counts the requests by address that are those of no client.
#[derive(Debug, Clone)]
pub struct Strangers {
    counts: Cache<IpAddr, Arc<AtomicU32>>,
    /// The text of the log about an address beyond the limit.
    beyond: &'static str,
}

/// An address for counts: one of IPv6 has a whole network to choose from.
pub(super) fn counted_address(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(_) => IpNet::new(address, IPV6_PREFIX).map_or(address, |network| network.network()),
    }
}

impl Strangers {
    fn new(beyond: &'static str) -> Self {
        Self { counts: Cache::builder().max_capacity(MAX_ADDRESSES).time_to_live(STRANGERS_WITHIN).build(), beyond }
    }

    /// Those with wrong tokens.
    pub fn with_wrong_tokens() -> Self {
        Self::new(
            "sent 60 wrong tokens within a minute; for the rest of it further ones are answered 401 and not logged",
        )
    }

    /// All those that are refused before they are known.
    pub fn refused() -> Self {
        Self::new("was refused 60 times within a minute; for the rest of it the audit trail has no further lines")
    }

    /// Counts a request of an address. Returns true if it is beyond the limit of a minute.
    pub fn exceeds(&self, address: IpAddr) -> bool {
        let count = self.counts.get_with(counted_address(address), Arc::default).fetch_add(1, Ordering::Relaxed);
        if count == STRANGERS {
            tracing::warn!(client = %address, "{}", self.beyond);
        }
        count >= STRANGERS
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

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
        ClientTokens::new(&[client("one", &["first", "second"]), client("two", &["third"])], HashMap::new())
    }

    fn class_of(tokens: &ClientTokens, values: &[&str], address: &str) -> Result<(), String> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, value.parse().unwrap());
        }
        let client = Clients::default().client(address.parse().unwrap(), &headers);
        tokens
            .identity_of(&headers, &client, Timestamp(0))
            .now_or_never()
            .unwrap()
            .map(drop)
            .map_err(|refusal| refusal.to_string())
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
            assert_eq!(class_of(&all, values, "10.0.0.1"), Err(refusal.to_string()), "{values:?}");
        }
        let of_network = tokens(Some("10.0.0.0/8"));
        assert_eq!(class_of(&of_network, &["Bearer first"], "::ffff:10.1.1.1"), Ok(()));
        let foreign = class_of(&of_network, &["Bearer first"], "192.0.2.1").unwrap_err();
        assert!(foreign.starts_with("the token of client one does not count from 192.0.2.1"), "{foreign}");
    }

    #[test]
    fn wrong_tokens_of_one_address_are_counted_together() {
        let wrong = Strangers::with_wrong_tokens();
        let address = |last: u16| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, last]);
        assert!((0..60).all(|last| !wrong.exceeds(address(last))));
        assert!(wrong.exceeds(address(99)) && !wrong.exceeds([192, 0, 2, 1].into()));
    }
}
