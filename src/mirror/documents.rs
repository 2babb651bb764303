//! Pull-through for documents that stand alone: discovery and version lists.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use url::Url;

use super::freshness::{Age, Rule, Verdict, decide};
use super::pull::{Flight, Landed};
use super::{Answer, Call, Mirror, Outcome, parts, seen};
use crate::address::{Hostname, Package, Platform, ProviderAddress, Version};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::store::{Durability, Key};
use crate::upstream::discovery::{self, Discovery};
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::outbound::{Ask, Document, Fetched, Validators, origin};
use crate::upstream::providers::{VersionList, versions_url};
use crate::upstream::{Grant, Upstream};

/// The service that providers come from.
const PROVIDERS: &str = "providers.v1";

/// How often a fetch of something not held is tried again before it fails.
pub(super) const RETRIES: usize = 2;

pub(super) type DocumentFlight = Flight<Arc<KeptDocument>>;

/// Which discovery document a fetch may go by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Faith {
    /// One that upstream stands by: what is held is served stale rather than asked for at an old place.
    InConfirmed,
    /// Any that is held: the thing asked for is not held, and is always tried.
    InAny,
}

impl Faith {
    pub(super) fn for_what_is_held<T>(held: Option<&T>) -> Self {
        if held.is_some() { Self::InConfirmed } else { Self::InAny }
    }
}

/// What a flight finds when it begins.
enum Meanwhile {
    /// What it was to fetch.
    Landed(Landed<Arc<KeptDocument>>),
    /// What it may build on.
    Held(Option<Arc<KeptDocument>>),
}

/// A document as it is held: upstream's bytes, and what is known of them.
#[derive(Debug, Clone)]
pub struct KeptDocument {
    about: About,
    /// The bytes upstream sent.
    pub body: Bytes,
    /// Entries of an earlier version list that upstream has dropped and that are still held: a JSON list.
    dropped: Bytes,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct About {
    /// Which URL was asked.
    asked: Url,
    /// Where the bytes came from, after redirects.
    url: Url,
    #[serde(default)]
    validators: Validators,
    fetched: Timestamp,
    checked: Timestamp,
    #[serde(default)]
    gone: bool,
}

impl KeptDocument {
    fn age(&self) -> Age {
        Age { checked: self.about.checked, gone: self.about.gone }
    }

    fn read(record: Vec<u8>) -> Option<Self> {
        let (about, mut parts) = parts::read(record)?;
        let dropped = parts.pop()?;
        Some(Self { about, body: parts.pop()?, dropped })
    }

    fn write(&self) -> Vec<u8> {
        parts::write(&self.about, &[&self.body, &self.dropped])
    }

    fn of(document: Document, asked: Url, now: Timestamp) -> Self {
        let Document { body, validators, url, .. } = document;
        let about = About { asked, url, validators, fetched: now, checked: now, gone: false };
        Self { about, body, dropped: Bytes::new() }
    }

    fn checked_again(&self, now: Timestamp, gone: bool) -> Self {
        let about = About { checked: now, gone, ..self.about.clone() };
        Self { about, ..self.clone() }
    }

    fn names_providers(&self) -> bool {
        self.discovery().is_ok_and(|discovery| discovery.service(PROVIDERS).is_some())
    }

    fn dropped(&self) -> Vec<Box<RawValue>> {
        serde_json::from_slice(&self.dropped).unwrap_or_default()
    }

    /// The document as discovery.
    pub fn discovery(&self) -> Result<Discovery, String> {
        Discovery::parse(&self.body, self.about.url.clone())
    }

    /// The document as a version list, with what upstream has dropped and larder still holds.
    pub fn versions(&self) -> Result<VersionList, String> {
        let mut list = VersionList::parse(&self.body)?;
        list.add(self.dropped());
        Ok(list)
    }
}

impl Upstream {
    pub(super) fn rule(&self, fresh: impl Fn(&crate::config::Fresh) -> std::time::Duration) -> Rule {
        let settings = &self.settings;
        Rule { fresh: fresh(&settings.fresh), not_found: settings.fresh.not_found, patience: settings.patience }
    }
}

impl Mirror {
    /// The discovery document of an upstream.
    pub async fn discovery(self: &Arc<Self>, host: &Hostname, call: &Call) -> Result<Answer<Arc<KeptDocument>>, Error> {
        let upstream = Arc::clone(self.upstream(host)?);
        let what = format!("the discovery document of {host}");
        let rule = upstream.rule(|fresh| fresh.discovery);
        let key = Key::Discovery(host.clone());
        let held = self.held_document(&key).await?;
        let seen = held.as_ref().map(|held| held.age);
        self.pull(&what, call, &rule, held, || {
            self.documents.share(&self.tasks, key.clone(), Err(Error::Interrupted(what.clone())), || {
                let (mirror, what, call) = (Arc::clone(self), what.clone(), self.inner(call));
                async move {
                    let work = async {
                        match mirror.landed_meanwhile(&key, seen, &rule, &call).await? {
                            Meanwhile::Landed(landed) => Ok(landed),
                            Meanwhile::Held(before) => mirror.fetch_discovery(&what, &upstream, before, &call).await,
                        }
                    };
                    mirror.within_limits(&what, &upstream.settings.host, work).await
                }
            })
        })
        .await
    }

    /// What is held now that a flight begins: another may have landed since its caller looked.
    async fn landed_meanwhile(
        self: &Arc<Self>,
        key: &Key,
        seen: Option<Age>,
        rule: &Rule,
        call: &Call,
    ) -> Result<Meanwhile, Error> {
        let held = self.held_document(key).await?;
        if held.is_none()
            && let Some(said) = self.absent.get(key, call.now)
        {
            return Err(Error::NotFound(said));
        }
        Ok(match held {
            Some(held)
                if seen != Some(held.age) && decide(Some(held.age), rule, self.link(), call.now) == Verdict::Serve =>
            {
                Meanwhile::Landed(held)
            }
            held => Meanwhile::Held(held.map(|held| held.value)),
        })
    }

    /// The held discovery of an upstream, without asking anybody.
    pub async fn held_discovery(self: &Arc<Self>, host: &Hostname) -> Result<Option<Arc<KeptDocument>>, Error> {
        Ok(self.held_document(&Key::Discovery(host.clone())).await?.map(|held| held.value))
    }

    /// The version list of a provider.
    pub async fn provider_versions(
        self: &Arc<Self>,
        address: &ProviderAddress,
        call: &Call,
    ) -> Result<Answer<Arc<KeptDocument>>, Error> {
        let upstream = Arc::clone(self.upstream(&address.host)?);
        let what = format!("the version list of {address}");
        let rule = upstream.rule(|fresh| fresh.versions);
        let key = Key::ProviderVersions(address.clone());
        let held = self.held_document(&key).await?;
        if held.is_none()
            && let Some(said) = self.absent.get(&key, call.now)
        {
            return Err(Error::NotFound(said));
        }
        let seen = held.as_ref().map(|held| held.age);
        self.pull(&what, call, &rule, held, || {
            self.documents.share(&self.tasks, key.clone(), Err(Error::Interrupted(what.clone())), || {
                let (mirror, what, call) = (Arc::clone(self), what.clone(), self.inner(call));
                let address = address.clone();
                async move {
                    let work = async {
                        match mirror.landed_meanwhile(&key, seen, &rule, &call).await? {
                            Meanwhile::Landed(landed) => Ok(landed),
                            Meanwhile::Held(before) => {
                                mirror.fetch_versions(&what, &upstream, &address, before, &call).await
                            }
                        }
                    };
                    mirror.within_limits(&what, &address.host, work).await
                }
            })
        })
        .await
    }

    /// The base URL of an upstream's `providers.v1`, and who may see its credential there.
    pub(super) async fn providers_service(
        self: &Arc<Self>,
        upstream: &Upstream,
        faith: Faith,
        call: &Call,
    ) -> Result<(Url, Grant), Error> {
        let host = &upstream.settings.host;
        let answer = Box::pin(self.discovery(host, call)).await?;
        if faith == Faith::InConfirmed && answer.outcome == Outcome::Stale {
            let fault = Fault::Unusable("its discovery document could not be confirmed".into());
            let asked = format!("the provider registry of {host}");
            return Err(UpstreamError { asked, at: origin(&upstream.settings.url), fault }.into());
        }
        let service = answer.value.discovery().ok().and_then(|discovery| discovery.service(PROVIDERS));
        let base = service.ok_or_else(|| UpstreamError {
            asked: format!("the provider registry of {host}"),
            at: origin(&upstream.settings.url),
            fault: Fault::Unusable("its discovery document names no usable providers.v1".into()),
        })?;
        let grant = upstream.grant.clone().and(&base);
        Ok((base, grant))
    }

    pub(super) async fn held_document(self: &Arc<Self>, key: &Key) -> Result<Option<Landed<Arc<KeptDocument>>>, Error> {
        let wanted = key.clone();
        self.on_disk(move |mirror| {
            let Some(record) = mirror.store.records.get(&wanted)? else { return Ok(None) };
            let Some(kept) = KeptDocument::read(record) else {
                mirror.store.records.set_aside(&wanted)?;
                return Ok(None);
            };
            Ok(Some(Landed { age: kept.age(), value: Arc::new(kept) }))
        })
        .await
    }

    async fn fetch_discovery(
        self: &Arc<Self>,
        what: &str,
        upstream: &Upstream,
        before: Option<Arc<KeptDocument>>,
        call: &Call,
    ) -> DocumentFlight {
        let settings = &upstream.settings;
        let unusable = |why: String| UpstreamError {
            asked: what.to_owned(),
            at: origin(&settings.url),
            fault: Fault::Unusable(why),
        };
        let asked = settings.url.join(".well-known/terraform.json").map_err(|e| unusable(e.to_string()))?;
        let fetched =
            self.ask(what, &asked, upstream, &upstream.grant, before.as_deref(), discovery::LIMIT, call).await;
        let had_service = before.as_ref().is_some_and(|before| before.names_providers());
        let kept = match (fetched, before) {
            (Ok(Fetched::Unchanged), Some(before)) => before.checked_again(call.now, false),
            (Ok(Fetched::Unchanged), None) => return Err(unusable("304 to an unconditional request".into()).into()),
            (Ok(Fetched::New(document)), _) => {
                if !Discovery::accepts(document.content_type.as_deref()) {
                    let sent = document.content_type.unwrap_or_else(|| "no media type".into());
                    return Err(
                        unusable(format!("its discovery document must be application/json, and is {sent}")).into()
                    );
                }
                Discovery::parse(&document.body, document.url.clone()).map_err(unusable)?;
                KeptDocument::of(document, asked, call.now)
            }
            // A registry without discovery is no registry: that is never "the provider does not exist".
            (Err(UpstreamError { fault: Fault::Absent(status), .. }), _) => {
                return Err(unusable(format!("it has no discovery document ({status}): it is no registry")).into());
            }
            (Err(error), _) => return Err(error.into()),
        };
        let kept = match (kept.names_providers(), had_service) {
            (true, _) => kept,
            (false, true) => {
                return Err(unusable(format!("its discovery document names no {PROVIDERS} any more")).into());
            }
            // It is given out, and asked for again the next time.
            (false, false) => kept.checked_again(Timestamp(0), false),
        };
        self.keep_document(Key::Discovery(settings.host.clone()), kept).await
    }

    async fn fetch_versions(
        self: &Arc<Self>,
        what: &str,
        upstream: &Upstream,
        address: &ProviderAddress,
        before: Option<Arc<KeptDocument>>,
        call: &Call,
    ) -> DocumentFlight {
        let unusable = |why: String| UpstreamError {
            asked: what.to_owned(),
            at: origin(&upstream.settings.url),
            fault: Fault::Unusable(why),
        };
        let (base, grant) = self.providers_service(upstream, Faith::for_what_is_held(before.as_ref()), call).await?;
        let asked = versions_url(&base, address).map_err(|e| unusable(e.to_string()))?;
        let fetched =
            self.ask(what, &asked, upstream, &grant, before.as_deref(), self.limits.document_bytes, call).await;
        let key = Key::ProviderVersions(address.clone());
        let kept = match (fetched, before) {
            (Ok(Fetched::Unchanged), Some(before)) => {
                let list = VersionList::parse(&before.body).map_err(&unusable)?;
                let dropped = self.dropped_but_held(upstream, address, &list, Some(&before)).await?;
                KeptDocument { dropped, ..before.checked_again(call.now, false) }
            }
            (Ok(Fetched::Unchanged), None) => return Err(unusable("304 to an unconditional request".into()).into()),
            (Ok(Fetched::New(document)), before) => {
                let list =
                    VersionList::parse(&document.body).map_err(|why| unusable(format!("its version list: {why}")))?;
                let mut kept = KeptDocument::of(document, asked, call.now);
                kept.dropped = self.dropped_but_held(upstream, address, &list, before.as_deref()).await?;
                self.note_new_versions(address, &list, call.now).await?;
                kept
            }
            (Err(error), Some(before)) if matches!(error.fault, Fault::Absent(_)) && upstream.settings.keep_gone => {
                if !before.about.gone {
                    tracing::warn!(provider = %address, %error, "upstream has deleted the provider; what is held is kept (keep_gone)");
                }
                before.checked_again(call.now, true)
            }
            (Err(error), before) if matches!(error.fault, Fault::Absent(_)) => {
                let until = call.now.after(upstream.rule(|fresh| fresh.versions).believed());
                self.absent.put(key.clone(), error.to_string(), until, call.now);
                if before.is_some() {
                    self.drop_document(key).await?;
                }
                return Err(Error::NotFound(error.to_string()));
            }
            (Err(error), _) => return Err(error.into()),
        };
        let landed = self.keep_document(key, kept).await;
        self.changed(address);
        landed
    }

    #[expect(clippy::too_many_arguments, reason = "an Ask and what it is made of")]
    async fn ask(
        &self,
        what: &str,
        url: &Url,
        upstream: &Upstream,
        grant: &Grant,
        before: Option<&KeptDocument>,
        limit: u64,
        call: &Call,
    ) -> Result<Fetched, UpstreamError> {
        let retries = if before.is_some() { 0 } else { RETRIES };
        let ask = Ask { what, url, upstream: &upstream.settings.host, grant, via: &call.via, retries };
        let held = before.filter(|before| before.about.asked == *url).map(|before| &before.about.validators);
        self.outbound.document(ask, held, limit).await
    }

    /// The entries of versions that upstream has dropped and whose archives are held: as upstream wrote
    /// them, or made anew where nobody remembers that.
    async fn dropped_but_held(
        self: &Arc<Self>,
        upstream: &Upstream,
        address: &ProviderAddress,
        list: &VersionList,
        before: Option<&KeptDocument>,
    ) -> Result<Bytes, Error> {
        if !upstream.settings.keep_gone {
            return Ok(Bytes::new());
        }
        let of = address.clone();
        let named = self.on_disk(move |mirror| mirror.store.records.packages_with_names(&of)).await?;
        let mut held: BTreeMap<Version, Vec<Platform>> = BTreeMap::new();
        for Package { version, platform, .. } in named {
            if list.get(&version).is_none() {
                held.entry(version).or_default().push(platform);
            }
        }
        let earlier = before.and_then(|before| before.versions().ok());
        let dropped_before: HashSet<Version> = before.map(KeptDocument::dropped_versions).unwrap_or_default();
        let mut entries = Vec::new();
        for (version, platforms) in held {
            if !dropped_before.contains(&version) {
                tracing::warn!(provider = %address, %version, "upstream has dropped a version that is held; it stays listed (keep_gone)");
            }
            let as_written = earlier.as_ref().and_then(|list| list.get(&version)).map(|entry| entry.raw.clone());
            entries.extend(as_written.or_else(|| entry_of(&version, &platforms)));
        }
        Ok(serde_json::to_vec(&entries).map(Bytes::from).unwrap_or_default())
    }

    /// Remembers when a version was first seen, and forgets that it was not there.
    async fn note_new_versions(
        self: &Arc<Self>,
        address: &ProviderAddress,
        list: &VersionList,
        now: Timestamp,
    ) -> Result<(), Error> {
        let versions: Vec<Version> = list.versions.iter().map(|listed| listed.version.clone()).collect();
        let of = address.clone();
        let noted = self.on_disk(move |mirror| seen::note_versions(mirror, &of, &versions, now)).await;
        if let Err(error) = noted {
            tracing::error!(provider = %address, %error, "could not note when versions were first seen");
        }
        self.absent.forget(|key| match key {
            Key::ProofSet(package) => package.provider == *address && list.get(&package.version).is_some(),
            _ => false,
        });
        Ok(())
    }

    /// Keeps a document. A disk that cannot be written costs the keeping, not the answer.
    async fn keep_document(self: &Arc<Self>, key: Key, kept: KeptDocument) -> DocumentFlight {
        let kept = Arc::new(kept);
        let landed = Landed { age: kept.age(), value: Arc::clone(&kept) };
        let put =
            self.on_disk(move |mirror| mirror.put_document(&key, &kept.write(), kept.about.checked, Durability::Lazy));
        if let Err(error) = put.await {
            tracing::error!(%error, "a document could not be kept");
        }
        Ok(landed)
    }

    async fn drop_document(self: &Arc<Self>, key: Key) -> Result<(), Error> {
        self.on_disk(move |mirror| mirror.remove_document(&key)).await
    }
}

/// The entry of a version in a list, as a registry would write it.
fn entry_of(version: &Version, platforms: &[Platform]) -> Option<Box<RawValue>> {
    let platforms: Vec<_> =
        platforms.iter().map(|Platform { os, arch }| serde_json::json!({"os": os, "arch": arch})).collect();
    to_raw_value(&serde_json::json!({"version": version, "platforms": platforms})).ok()
}

impl KeptDocument {
    fn dropped_versions(&self) -> HashSet<Version> {
        let mut list = VersionList { versions: Vec::new(), rest: Default::default() };
        list.add(self.dropped());
        list.versions.into_iter().map(|listed| listed.version).collect()
    }
}
