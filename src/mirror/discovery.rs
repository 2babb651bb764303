//! Pull-through for discovery documents, and what they say about where providers and modules come from.

use std::sync::Arc;

use bytes::Bytes;
use url::Url;

use super::documents::{DocumentFlight, DocumentSubject, KeptDocument, Meanwhile};
use super::freshness::{Age, Rule};
use super::pull::{AskedAgain, Landed};
use super::single_flight::Awaited;
use super::{Answer, FetchReason, Mirror, Outcome, RequestContext};
use crate::address::Hostname;
use crate::clock::Timestamp;
use crate::error::Error;
use crate::store::{Key, StoreError};
use crate::upstream::ask::Fetched;
use crate::upstream::breaker::Origin;
use crate::upstream::discovery::{self, Discovery, Service};
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::outbound::{Link, origin};
use crate::upstream::providers::RawObject;
use crate::upstream::{Grant, Upstream};

/// Which discovery document a fetch may go by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DiscoveryTrust {
    /// One that upstream stands by: what is held is served stale rather than asked for at an old place.
    InConfirmed,
    /// Any that is held: the thing asked for is not held, and is always tried.
    InAny,
}

impl DiscoveryTrust {
    pub(super) fn for_what_is_held<T>(held: Option<&T>) -> Self {
        if held.is_some() { Self::InConfirmed } else { Self::InAny }
    }
}

impl KeptDocument {
    /// Whether it is the upstream's own word: no redirect led to another origin (promise 8).
    fn is_from_whom_was_asked(self: &Arc<Self>) -> bool {
        self.origins().iter().all(|origin| *origin == Origin::of(&self.about.url))
    }

    /// Which of the services that larder asks for it names.
    fn services(&self) -> Vec<Service> {
        let discovery = self.discovery().ok();
        let names = |service: &Service| discovery.as_ref().is_some_and(|named| named.base(*service).is_some());
        Service::ALL.into_iter().filter(names).collect()
    }

    /// The document as discovery, with the services that upstream has dropped from it: what is held of them is served
    /// all the same, so clients must find them here.
    pub fn discovery_for_clients(&self) -> Result<Discovery, String> {
        let mut discovery = self.discovery()?;
        for (name, entry) in self.dropped_services() {
            discovery.entries.insert(name, entry);
        }
        Ok(discovery)
    }

    fn dropped_services(&self) -> RawObject {
        serde_json::from_slice(&self.dropped).unwrap_or_default()
    }

    /// The same document with the services that another names, or carries on, and it does not name.
    pub(super) fn with_services_of(self, before: &Self) -> Self {
        let mut dropped: RawObject = serde_json::from_slice(&before.dropped_in(&self)).unwrap_or_default();
        dropped.extend(self.dropped_services());
        if dropped.is_empty() {
            return self;
        }
        Self { dropped: serde_json::to_vec(&dropped).unwrap_or_default().into(), ..self }
    }

    /// The entries of services that this document names, or whose entries it carries on, and `now` does not name.
    fn dropped_in(&self, now: &Self) -> Bytes {
        let names = now.services();
        let before = self.discovery_for_clients();
        let mut dropped = RawObject::new();
        for service in Service::ALL.into_iter().filter(|service| !names.contains(service)) {
            let entry = before.as_ref().ok().filter(|before| before.base(service).is_some());
            let entry = entry.and_then(|before| before.entries.get(service.key()));
            dropped.extend(entry.map(|entry| (service.key().to_owned(), entry.clone())));
        }
        if dropped.is_empty() { Bytes::new() } else { serde_json::to_vec(&dropped).unwrap_or_default().into() }
    }
}

impl Mirror {
    /// The discovery document of an upstream.
    pub async fn discovery(
        self: &Arc<Self>,
        host: &Hostname,
        call: &RequestContext,
    ) -> Result<Answer<Arc<KeptDocument>>, Error> {
        let upstream = Arc::clone(call.upstream(host)?);
        let rule = upstream.rule(|fresh| fresh.discovery);
        let asked = discovery_url(&upstream)?;
        let held = self.held_document(&Key::Discovery(host.clone())).await?;
        let held = held.filter(|held| self.link() == Link::Offline || held.value.about.asked == asked);
        let seen = held.as_ref().map(|held| held.age);
        let fly = |errand, call: &RequestContext| self.fly_for_discovery(upstream, asked, seen, errand, call);
        let pulled = self.pull(&what(host), host, call, &rule, held, fly).await;
        pulled.inspect_err(|error| self.record_text_if_offline(error, call))
    }

    /// Asks for the discovery document of an upstream again, however fresh it is.
    pub(super) async fn refresh_discovery(
        self: &Arc<Self>,
        host: &Hostname,
        call: &RequestContext,
    ) -> Result<(), Error> {
        let upstream = Arc::clone(call.upstream(host)?);
        let asked = discovery_url(&upstream)?;
        let seen = self.held_document(&Key::Discovery(host.clone())).await?.map(|held| held.age);
        self.fly_for_discovery(upstream, asked, seen, FetchReason::Fetch, call).await.map(drop)
    }

    /// Joins the flight for a discovery document, or starts it. `seen` is what the caller saw held.
    fn fly_for_discovery(
        self: &Arc<Self>,
        upstream: Arc<Upstream>,
        asked: Url,
        seen: Option<Age>,
        errand: FetchReason,
        call: &RequestContext,
    ) -> Awaited<DocumentFlight> {
        let host = upstream.settings.host.clone();
        let (what, key) = (what(&host), Key::Discovery(host.clone()));
        let rule = upstream.rule(|fresh| fresh.discovery);
        let of = (key.clone(), errand, call.company());
        self.documents.share(&self.tasks, of, Err(Error::Interrupted(what.clone())), || {
            let (mirror, call) = (Arc::clone(self), self.inner(call));
            async move {
                // What another `url` said says nothing of this one: its services would be shown this one's credential.
                let is_of_this = |kept: &KeptDocument| kept.about.asked == asked;
                match mirror.landed_meanwhile(&key, seen, &rule, &call).await? {
                    Meanwhile::Landed(landed) if is_of_this(&landed.value) => Ok(landed),
                    Meanwhile::Held(Some(before)) if is_of_this(&before) => {
                        mirror.spend(&what, &host, errand, 1, &call)?;
                        mirror.fetch_discovery(&what, &upstream, Some(before), &call).await
                    }
                    Meanwhile::Landed(_) | Meanwhile::Held(_) => {
                        mirror.fetch_discovery(&what, &upstream, None, &call).await
                    }
                }
            }
        })
    }

    /// The held discovery of an upstream, without asking anybody.
    pub async fn held_discovery(self: &Arc<Self>, host: &Hostname) -> Result<Option<Arc<KeptDocument>>, Error> {
        Ok(self.held_document(&Key::Discovery(host.clone())).await?.map(|held| held.value))
    }

    /// The rule for what was asked of a service at `asked`: where that is at another place since, its time is over. As
    /// far as the held discovery document tells, which the first that is asked for replaces.
    pub(super) async fn rule_for_what_is_of(
        self: &Arc<Self>,
        service: Service,
        asked: &Url,
        upstream: &Upstream,
        rule: Rule,
    ) -> Result<Rule, Error> {
        let Some(discovery) = self.held_discovery(&upstream.settings.host).await? else { return Ok(rule) };
        let of_now = discovery.about.asked == discovery_url(upstream)?;
        let base = discovery.discovery().ok().and_then(|discovery| discovery.base(service));
        // The list of all is at the base itself, without its slash.
        let path = format!("{}/", asked.path());
        let is_below = |base: Url| {
            let base = base.join(".");
            base.is_ok_and(|base| base.origin() == asked.origin() && path.starts_with(base.path()))
        };
        Ok(if of_now && base.is_none_or(is_below) { rule } else { rule.of_another_place() })
    }

    /// Whether a discovery document is held that is of where this upstream is asked, and the one that comes is not: that
    /// would not be used while anybody can be asked, and would hide this one.
    pub(super) fn holds_discovery_of_its_own(&self, key: &Key, coming: &KeptDocument) -> Result<bool, StoreError> {
        let terms = self.terms();
        let Key::Discovery(host) = key else { return Ok(false) };
        let asked = terms.upstreams.get(host).and_then(|upstream| discovery_url(upstream).ok());
        let held = self.store.records.get(key)?.and_then(KeptDocument::read);
        let is_of_it = |kept: &KeptDocument| asked.as_ref() == Some(&kept.about.asked);
        Ok(self.link() == Link::Online && held.as_ref().is_some_and(is_of_it) && !is_of_it(coming))
    }

    /// The base URL of one of an upstream's services, and who may see its credential there.
    pub(super) async fn service(
        self: &Arc<Self>,
        service: Service,
        upstream: &Upstream,
        faith: DiscoveryTrust,
        call: &RequestContext,
    ) -> Result<(Url, Grant), Error> {
        let host = &upstream.settings.host;
        let unusable = |why: &str| UpstreamError {
            asked: format!("{} of {host}", service.key()),
            at: origin(&upstream.settings.url),
            fault: Fault::Unusable(format!("its discovery document {why}")),
        };
        let answer = Box::pin(self.discovery(host, call)).await?;
        if faith == DiscoveryTrust::InConfirmed && answer.outcome == Outcome::Stale {
            return Err(unusable("could not be confirmed").into());
        }
        let base_in = |kept: &KeptDocument| kept.discovery().ok().and_then(|discovery| discovery.base(service));
        let mut base = base_in(&answer.value);
        let mut named_by = Arc::clone(&answer.value);
        if base.is_none() && answer.outcome == Outcome::Hit {
            // That it lacks the service is not remembered, although it may be held for another that it names.
            let (asked, seen) = (discovery_url(upstream)?, Some(answer.value.age()));
            let again = call.upstream(host).map(Arc::clone)?;
            let landed = Box::pin(self.fly_for_discovery(again, asked, seen, FetchReason::Fetch, call)).await?;
            base = base_in(&landed.value);
            named_by = landed.value;
        }
        let base = base.ok_or_else(|| unusable(&format!("names no usable {}", service.key())))?;
        let grant = upstream.grant.clone();
        let grant = match &named_by.about {
            // It was not this upstream that named the origin.
            DocumentSubject { carried: true, .. } => grant,
            _ if named_by.is_from_whom_was_asked() => grant.and(&base),
            _ => grant.permitting(&base),
        };
        Ok((base, grant))
    }

    async fn fetch_discovery(
        self: &Arc<Self>,
        what: &str,
        upstream: &Upstream,
        before: Option<Arc<KeptDocument>>,
        call: &RequestContext,
    ) -> DocumentFlight {
        let settings = &upstream.settings;
        let unusable = |why: String| UpstreamError {
            asked: what.to_owned(),
            at: origin(&settings.url),
            fault: Fault::Unusable(why),
        };
        let asked = discovery_url(upstream)?;
        let fetched =
            self.ask(what, &asked, upstream, &upstream.grant, before.as_deref(), discovery::LIMIT, call).await;
        let had_services = before.as_ref().is_some_and(|before| !before.services().is_empty());
        let kept = match (fetched, before) {
            (Ok(Fetched::Unchanged), Some(before)) => before.checked_again(call.now, false),
            (Ok(Fetched::Unchanged), None) => return Err(unusable("304 to an unconditional request".into()).into()),
            (Ok(Fetched::New(document)), before) => {
                if !Discovery::accepts(document.content_type.as_deref()) {
                    let sent = document.content_type.unwrap_or_else(|| "no media type".into());
                    return Err(
                        unusable(format!("its discovery document must be application/json, and is {sent}")).into()
                    );
                }
                Discovery::parse(&document.body, document.url.clone()).map_err(unusable)?;
                if settings.credential.is_some() && !document.is_from_whom_was_asked() {
                    let (host, at) = (&settings.host, origin(&document.url));
                    tracing::warn!(%host, at, "a redirect to another origin led to the discovery document of this upstream: the services that it names are asked without the upstream's credential; to show it to them all the same, add their hosts to credentials_for, or set url to where the document is");
                }
                let kept = KeptDocument::of(document, asked, call.now);
                let dropped = before.filter(|_| settings.keep_gone).map(|before| before.dropped_in(&kept));
                KeptDocument { dropped: dropped.unwrap_or_default(), ..kept }
            }
            // A registry without discovery is no registry: that is never "the provider does not exist".
            (Err(UpstreamError { fault: Fault::Absent(status), .. }), _) => {
                return Err(unusable(format!("it has no discovery document ({status}): it is no registry")).into());
            }
            (Err(error), _) => return Err(error.into()),
        };
        let names = kept.services();
        // One that names the other service is the registry's word; one that names neither is no registry's.
        if names.is_empty() && had_services {
            return Err(unusable("its discovery document names no service any more that larder asks for".into()).into());
        }
        if names.is_empty() {
            // It is given out, and asked for again the next time, like anything that is not held.
            let kept = kept.checked_again(Timestamp(0), false);
            return Ok(Landed { age: kept.age(), value: Arc::new(kept) });
        }
        self.keep_document(Key::Discovery(settings.host.clone()), kept).await
    }
}

/// Where an upstream's discovery document is.
fn discovery_url(upstream: &Upstream) -> Result<Url, Error> {
    let settings = &upstream.settings;
    settings.url.join(".well-known/terraform.json").map_err(|e| {
        let (asked, at) = (what(&settings.host), origin(&settings.url));
        UpstreamError { asked, at, fault: Fault::Unusable(e.to_string()) }.into()
    })
}

fn what(host: &Hostname) -> String {
    format!("the discovery document of {host}")
}
