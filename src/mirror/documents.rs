//! Pull-through for documents that stand alone: discovery and version lists.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use url::Url;

use super::freshness::{Age, Rule};
use super::pull::{Flight, Landed};
use super::{Answer, Call, Mirror, parts, seen};
use crate::address::{Hostname, ProviderAddress, Version};
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

    /// A discovery document that lacks the service is given out, and asked for again the next time.
    fn asked_again_without_service(self) -> Self {
        if self.discovery().is_ok_and(|discovery| discovery.service(PROVIDERS).is_some()) {
            return self;
        }
        let about = About { checked: Timestamp(0), ..self.about.clone() };
        Self { about, ..self }
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
        let before = held.as_ref().map(|held| Arc::clone(&held.value));
        self.pull(&what, call, &rule, held, || {
            self.documents.share(&self.tasks, key, Err(Error::Interrupted(what.clone())), || {
                let (mirror, what, call) = (Arc::clone(self), what.clone(), self.inner(call));
                async move {
                    let work = mirror.fetch_discovery(&what, &upstream, before, &call);
                    mirror.within_limits(&what, &upstream.settings.host, work).await
                }
            })
        })
        .await
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
        let before = held.as_ref().map(|held| Arc::clone(&held.value));
        self.pull(&what, call, &rule, held, || {
            self.documents.share(&self.tasks, key, Err(Error::Interrupted(what.clone())), || {
                let (mirror, what, call) = (Arc::clone(self), what.clone(), self.inner(call));
                let address = address.clone();
                async move {
                    let work = mirror.fetch_versions(&what, &upstream, &address, before, &call);
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
        call: &Call,
    ) -> Result<(Url, Grant), Error> {
        let host = &upstream.settings.host;
        let document = Box::pin(self.discovery(host, call)).await?.value;
        let service = document.discovery().ok().and_then(|discovery| discovery.service(PROVIDERS));
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
        let host = settings.host.clone();
        self.keep_document(Key::Discovery(host), kept.asked_again_without_service()).await
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
        let (base, grant) = self.providers_service(upstream, call).await?;
        let asked = versions_url(&base, address).map_err(|e| unusable(e.to_string()))?;
        let fetched =
            self.ask(what, &asked, upstream, &grant, before.as_deref(), self.limits.document_bytes, call).await;
        let key = Key::ProviderVersions(address.clone());
        let kept = match (fetched, before) {
            (Ok(Fetched::Unchanged), Some(before)) => before.checked_again(call.now, false),
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

    /// The entries of the list before that upstream has dropped, of versions whose archives are held.
    async fn dropped_but_held(
        self: &Arc<Self>,
        upstream: &Upstream,
        address: &ProviderAddress,
        list: &VersionList,
        before: Option<&KeptDocument>,
    ) -> Result<Bytes, Error> {
        let Some(before) = before.filter(|_| upstream.settings.keep_gone) else { return Ok(Bytes::new()) };
        let folder = Key::names_of(address);
        let held = self.on_disk(move |mirror| mirror.store.records.list(&folder)).await?;
        let held: HashSet<Version> = held.iter().filter_map(|version| Version::parse(version).ok()).collect();
        let known: HashSet<Version> = before.dropped_versions();
        let missing = |entry: &&crate::upstream::providers::ListedVersion| {
            held.contains(&entry.version) && list.get(&entry.version).is_none()
        };
        let before = before.versions().map(|list| list.versions).unwrap_or_default();
        let dropped: Vec<_> = before.iter().filter(missing).collect();
        for entry in dropped.iter().filter(|entry| !known.contains(&entry.version)) {
            tracing::warn!(provider = %address, version = %entry.version, "upstream has dropped a version that is held; it stays listed (keep_gone)");
        }
        let entries: Vec<&RawValue> = dropped.iter().map(|entry| &*entry.raw).collect();
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

impl KeptDocument {
    fn dropped_versions(&self) -> HashSet<Version> {
        let mut list = VersionList { versions: Vec::new(), rest: Default::default() };
        list.add(self.dropped());
        list.versions.into_iter().map(|listed| listed.version).collect()
    }
}
