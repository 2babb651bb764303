//! The keys of issuers as documents (`[[client]] oidc`): they age, are served stale, and count offline at any age.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::timeout_at;
use url::{ParseError, Url};

use crate::address::Hostname;
use crate::cdn_loop::CdnLoop;
use crate::clock::Timestamp;
use crate::config::FreshnessLifetimes;
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::documents::{DocumentFetch, DocumentKind, Documents, RETRIES};
use crate::mirror::freshness::{Confirmation, FreshnessRule};
use crate::mirror::last_answers::is_of_upstream;
use crate::mirror::library::Library;
use crate::mirror::library::stored_document::{DocumentFlightResult, StoredDocument};
use crate::mirror::request_context::RequestContext;
use crate::mirror::{Limits, Outcome, RuntimeConfig};
use crate::store::{DocumentKey, Key};
use crate::upstream::Upstream;
use crate::upstream::backoff::Origin;
use crate::upstream::discovery::Service;
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::issuers::{Issuer, MAX_DOCUMENT_BYTES};
use crate::upstream::outbound::Outbound;
use crate::upstream::request::{AcceptedCoding, Document, Fetched, Validators};
use crate::verify::jwt::IssuerKeys;

/// The shortest time between two requests for keys that a token names and nobody has. Anybody can send such tokens.
const NEWER_AGAIN: Duration = Duration::from_secs(60);
/// The shortest time between two requests to an issuer after one that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(10);

impl DocumentKind for Arc<Issuer> {
    fn label(&self) -> String {
        format!("the keys of the issuer {}", self.name)
    }

    fn host(&self) -> &Hostname {
        &self.upstream.settings.host
    }

    fn upstream<'a>(&'a self, _: &'a RequestContext) -> Result<&'a Arc<Upstream>, Error> {
        Ok(&self.upstream)
    }

    fn outbound<'a>(&'a self, _: &'a RequestContext) -> &'a Outbound {
        &self.outbound
    }

    fn key(&self, _: &RuntimeConfig) -> Key {
        Key::Document(DocumentKey::IssuerKeys(self.host().clone(), self.id))
    }

    fn service(&self) -> Option<Service> {
        None
    }

    fn lifetime(lifetimes: &FreshnessLifetimes) -> Duration {
        lifetimes.discovery
    }

    fn max_bytes(_: &Limits) -> u64 {
        MAX_DOCUMENT_BYTES
    }

    /// Those of a former configuration may be what a certificate proved that is trusted no longer, or what was withdrawn since.
    fn rule(&self, rule: FreshnessRule) -> FreshnessRule {
        if self.was_asked.load(Ordering::Acquire) { rule } else { rule.at_new_location() }
    }

    /// Keys are no package.
    fn record_missing(&self, _: &Arc<Library>, _: &Error, _: &RequestContext) {}

    fn url(&self, _: &Url, _: &DocumentFetch<'_>) -> Result<Url, ParseError> {
        self.configuration_url()
    }

    /// Asks where the configuration says that the keys are. They are what is stored.
    async fn check_answer(
        &self,
        fetch: &DocumentFetch<'_>,
        answer: Document,
        url: Url,
    ) -> Result<StoredDocument, Error> {
        require_https(fetch, &answer)?;
        let (keys_url, scope) = self.keys_url(&answer.body).map_err(|reason| fetch.unusable(reason))?;
        let retries = if fetch.before.is_some() { 0 } else { RETRIES };
        let subject = &fetch.request.subject;
        let ask = fetch.call.upstream_request(subject, &keys_url, self.host(), &scope, retries);
        let keys = match self.outbound.document(AcceptedCoding::Any, ask, None, MAX_DOCUMENT_BYTES).await {
            Ok(Fetched::New(keys)) => keys,
            Ok(Fetched::Unchanged) => return Err(fetch.unusable("304 to an unconditional request").into()),
            Err(error) => return Err(no_absence(fetch, "keys", error)),
        };
        require_https(fetch, &keys)?;
        let parsed = IssuerKeys::parse(&keys.body).map_err(|reason| fetch.unusable(format!("its keys: {reason}")))?;
        if fetch.before.as_ref().is_some_and(|before| Digest::of(&before.body) != *parsed.id()) {
            tracing::info!(issuer = self.name, "the issuer has new keys");
        }
        let mut document = StoredDocument::of(keys, url, fetch.call.now);
        // Those of the keys say nothing about the configuration, which is what is asked for.
        document.metadata.validators = Validators::default();
        document.metadata.origins.extend(answer.origins);
        Ok(document)
    }

    async fn store_answer(&self, fetch: &DocumentFetch<'_>, document: StoredDocument) -> DocumentFlightResult {
        let stored = fetch.store(document).await;
        // Not before: until now the copy of a former configuration would count as the answer to this one.
        self.was_asked.store(true, Ordering::Release);
        stored
    }

    /// An issuer without a configuration must not look like a missing package.
    async fn handle_not_found(&self, fetch: &DocumentFetch<'_>, error: UpstreamError) -> Result<StoredDocument, Error> {
        Err(no_absence(fetch, "OpenID configuration", error))
    }
}

/// Refuses an answer that came in plain text on any hop: whoever is on the way could have put keys into it.
fn require_https(fetch: &DocumentFetch<'_>, answer: &Document) -> Result<(), Error> {
    if answer.origins.iter().all(Origin::is_https) {
        return Ok(());
    }
    Err(fetch.unusable("a redirect led over plain http, and keys count over https only").into())
}

/// The error of an issuer that answers with a 404.
fn no_absence(fetch: &DocumentFetch<'_>, what: &str, error: UpstreamError) -> Error {
    match error.fault {
        Fault::Absent(status) => fetch.unusable(format!("it has no {what} ({status})")).into(),
        _ => error.into(),
    }
}

/// Asks an issuer for its keys, under one configuration.
#[derive(Debug, Clone)]
pub struct IssuerKeyring {
    documents: Arc<Documents>,
    config: Arc<RuntimeConfig>,
    issuer: Arc<Issuer>,
}

/// The keys of an issuer, as they were at a time.
#[derive(Debug, Clone)]
pub struct KeysAtTime {
    /// The keys.
    pub keys: IssuerKeys,
    confirmed: Confirmation,
}

impl Documents {
    /// The keyrings of all issuers that are asked, by the name of the issuer.
    pub fn keyrings(self: &Arc<Self>, config: &Arc<RuntimeConfig>) -> HashMap<String, IssuerKeyring> {
        let keyring = |issuer: &Arc<Issuer>| IssuerKeyring {
            documents: Arc::clone(self),
            config: Arc::clone(config),
            issuer: Arc::clone(issuer),
        };
        config.issuers.all().map(|issuer| (issuer.name.clone(), keyring(issuer))).collect()
    }
}

impl KeysAtTime {
    /// Returns true if the issuer may have made keys for a token after it was asked.
    pub fn are_older_than(&self, token_made: Option<Timestamp>) -> bool {
        token_made.is_none_or(|made| self.confirmed.checked < made)
    }
}

impl IssuerKeyring {
    /// The keys of the issuer: the stored ones while they are fresh or the issuer does not answer. After a start and after a
    /// reload it is asked, however fresh they are.
    ///
    /// # Errors
    /// None are stored, and the issuer gives none.
    pub async fn keys(&self, now: Timestamp) -> Result<KeysAtTime, Error> {
        let key = self.issuer.key(&self.config);
        if let Some(Some(failure)) = self.config.asked_issuers.get(&self.issuer.name, now) {
            let stored = self.documents.library.stored_document(&key).await?.ok_or(failure)?;
            return self.parsed(stored.value, stored.confirmed).await;
        }
        let answer = self.asking(now, move |keyring: Self, call| async move {
            let answer = keyring.documents.get(&keyring.issuer, &call).await;
            let failure = match &answer {
                Err(error) => Some(error.clone()),
                Ok(answer) if answer.outcome == Outcome::Stale => {
                    let last = &keyring.config.last_answers;
                    last.replay(&key, &keyring.issuer.label(), Duration::MAX, call.present()).err()
                }
                Ok(_) => None,
            };
            failure.inspect(|failure| keyring.note_asked(&call, Some(failure)));
            answer
        });
        let answer = answer.await?;
        let confirmed = Confirmation { checked: answer.checked, gone: answer.outcome == Outcome::Gone };
        self.parsed(answer.value, confirmed).await
    }

    /// The keys of the issuer after it was asked for newer ones, once a minute at most.
    ///
    /// # Errors
    /// It gives none.
    pub async fn newer(&self, known: &KeysAtTime, now: Timestamp) -> Result<KeysAtTime, Error> {
        match self.config.asked_issuers.get(&self.issuer.name, now) {
            Some(Some(failure)) => return Err(failure),
            Some(None) => return self.keys(now).await,
            None => self.documents.runtime.must_be_online(&self.issuer.label())?,
        }
        let seen = known.confirmed;
        let fetched = self.asking(now, move |keyring: Self, call| async move {
            let subject = keyring.issuer.label();
            let _place = keyring.documents.runtime.take_waiting_place(&subject, &call)?;
            let slow = || Error::Slow(subject.clone());
            // Without turns, a token that comes between the answer and the note of it would have it asked once more.
            let _turn = timeout_at(call.deadline, keyring.issuer.turn.lock()).await.map_err(|_| slow())?;
            if let Some(asked) = keyring.config.asked_issuers.get(&keyring.issuer.name, call.present()) {
                return asked.map_or(Ok(None), Err);
            }
            let fetch = keyring.documents.fetch_now(&keyring.issuer, Some(seen), &call);
            let fetched = timeout_at(call.deadline, fetch).await.unwrap_or_else(|_| Err(slow()));
            keyring.note_asked(&call, fetched.as_ref().err());
            fetched.map(Some)
        });
        match fetched.await? {
            Some(fetched) => self.parsed(fetched.value, fetched.confirmed).await,
            None => self.keys(now).await,
        }
    }

    /// Asks in a task of its own: a client that leaves ends neither the request nor the note of it.
    async fn asking<T: Send + 'static, F>(
        &self,
        now: Timestamp,
        ask: impl FnOnce(Self, RequestContext) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let runtime = &self.documents.runtime;
        // Requests that pass through other larders do not lead to an issuer: its keys are for this one.
        let call = runtime.request_context(now, Arc::clone(&self.config), CdnLoop::default(), None, true);
        let asked = runtime.tasks.spawn(ask(self.clone(), call)).await;
        asked.ok().flatten().unwrap_or_else(|| Err(Error::Interrupted(self.issuer.label())))
    }

    async fn parsed(&self, document: Arc<StoredDocument>, confirmed: Confirmation) -> Result<KeysAtTime, Error> {
        let keys = document.parse_as(|document| IssuerKeys::parse(&document.body)).await;
        let keys = keys.map_err(|reason| Error::Unreadable { subject: self.issuer.label(), reason })?;
        Ok(KeysAtTime { keys, confirmed })
    }

    /// Notes that the issuer was asked, and logs a failure: once for all the tokens that meet it.
    fn note_asked(&self, call: &RequestContext, failure: Option<&Error>) {
        let failure = failure.filter(|failure| is_of_upstream(failure));
        if let Some(failure) = failure {
            tracing::warn!(issuer = self.issuer.name, error = %failure, "the issuer gives no keys; those that are stored count");
        }
        let until = if failure.is_some() { AFTER_FAILURE } else { NEWER_AGAIN };
        let (asked, name) = (&self.config.asked_issuers, self.issuer.name.clone());
        asked.insert(call.effects(), name, failure.cloned(), until, call.present());
    }
}
