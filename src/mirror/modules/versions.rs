//! Pull-through for the version lists of modules: what upstream lists, and what it has dropped and is still held.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use serde_json::value::{RawValue, to_raw_value};

use super::super::discovery::Faith;
use super::super::documents::{DocumentFlight, KeptDocument, Meanwhile};
use super::super::freshness::Age;
use super::super::pages::latest;
use super::super::single_flight::Awaited;
use super::super::{AlarmKind, Answer, Call, Errand, Mirror, unless_gone};
use crate::address::{ModuleAddress, ModulePackage, Version};
use crate::error::Error;
use crate::store::Key;
use crate::upstream::Upstream;
use crate::upstream::ask::Fetched;
use crate::upstream::discovery::Service;
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::modules::{ModuleVersionList, versions_url};
use crate::upstream::outbound::origin;

impl Mirror {
    /// The version list of a module. `address` is as the client spells it, and upstream is asked for that.
    pub async fn module_versions(
        self: &Arc<Self>,
        address: &ModuleAddress,
        call: &Call,
    ) -> Result<Answer<Arc<KeptDocument>>, Error> {
        let upstream = Arc::clone(call.upstream(&address.host)?);
        let what = format!("the version list of {address}");
        let mut rule = upstream.rule(|fresh| fresh.versions);
        let key = Key::ModuleVersions(call.terms.key_of(address));
        let held = self.held_document(&key).await?;
        if held.is_none()
            && let Some(said) = call.terms.absent.get(&key, call.now)
        {
            return Err(Error::NotFound(said));
        }
        if let Some(held) = held.as_ref().filter(|held| !held.age.gone) {
            rule = self.rule_for_what_is_of(Service::Modules, &held.value.about.asked, &upstream, rule).await?;
        }
        let seen = held.as_ref().map(|held| held.age);
        let fly =
            |errand, call: &Call| self.fly_for_module_versions(what.clone(), upstream, address, seen, errand, call);
        self.pull(&what, &address.host, call, &rule, held, fly).await
    }

    /// Joins the flight for a version list, or starts it. `seen` is what the caller saw held.
    pub(in crate::mirror) fn fly_for_module_versions(
        self: &Arc<Self>,
        what: String,
        upstream: Arc<Upstream>,
        address: &ModuleAddress,
        seen: Option<Age>,
        errand: Errand,
        call: &Call,
    ) -> Awaited<DocumentFlight> {
        let rule = upstream.rule(|fresh| fresh.versions);
        let key = Key::ModuleVersions(call.terms.key_of(address));
        let of = (key.clone(), errand, call.terms.generation);
        self.documents.share(&self.tasks, of, Err(Error::Interrupted(what.clone())), || {
            let (mirror, call, address) = (Arc::clone(self), self.inner(call), address.clone());
            async move {
                let work = async {
                    match mirror.landed_meanwhile(&key, seen, &rule, &call).await? {
                        Meanwhile::Landed(landed) => Ok(landed),
                        Meanwhile::Held(before) => {
                            mirror.spend(&what, &address.host, errand, 1, &call)?;
                            mirror.fetch_module_versions(&what, &upstream, &address, before, &call).await
                        }
                    }
                };
                mirror.within_limits(&what, &address.host, work).await
            }
        })
    }

    async fn fetch_module_versions(
        self: &Arc<Self>,
        what: &str,
        upstream: &Upstream,
        address: &ModuleAddress,
        before: Option<Arc<KeptDocument>>,
        call: &Call,
    ) -> DocumentFlight {
        let unusable = |why: String| UpstreamError {
            asked: what.to_owned(),
            at: origin(&upstream.settings.url),
            fault: Fault::Unusable(why),
        };
        let faith = Faith::for_what_is_held(before.as_ref());
        let (base, grant) = self.service(Service::Modules, upstream, faith, call).await?;
        let asked = versions_url(&base, address).map_err(|e| unusable(e.to_string()))?;
        let fetched =
            self.ask(what, &asked, upstream, &grant, before.as_deref(), self.limits.document_bytes, call).await;
        let module = call.terms.key_of(address);
        let key = Key::ModuleVersions(module.clone());
        let kept = match (fetched, before) {
            (Ok(Fetched::Unchanged), Some(before)) => {
                let of_upstream = Arc::new(KeptDocument { dropped: Bytes::new(), ..(*before).clone() });
                let list = of_upstream.module_versions().await.map_err(&unusable)?;
                let dropped = self.dropped_modules(upstream, &module, &list, Some(&before), call).await?;
                KeptDocument { dropped, ..before.checked_again(call.now, false) }
            }
            (Ok(Fetched::Unchanged), None) => return Err(unusable("304 to an unconditional request".into()).into()),
            (Ok(Fetched::New(document)), before) => {
                let mut kept = KeptDocument::of(document, asked, call.now);
                let list = Arc::new(kept.clone()).module_versions().await;
                let list = list.map_err(|why| unusable(format!("its version list: {why}")))?;
                kept.dropped = self.dropped_modules(upstream, &module, &list, before.as_ref(), call).await?;
                call.terms.absent.forget(|key| match key {
                    Key::ModuleLocation(package) => package.module == module && list.get(&package.version).is_some(),
                    _ => false,
                });
                kept
            }
            (Err(error), Some(before)) if matches!(error.fault, Fault::Absent(_)) && upstream.settings.keep_gone => {
                if !before.about.gone {
                    tracing::warn!(module = %address, %error, "upstream has deleted the module; what is held is kept (keep_gone)");
                }
                before.checked_again(call.now, true)
            }
            (Err(error), before) if matches!(error.fault, Fault::Absent(_)) => {
                let until = call.now.after(upstream.rule(|fresh| fresh.versions).believed());
                call.terms.absent.put(key.clone(), error.to_string(), until, call.now);
                if before.is_some() && self.is_on_these_terms(call) {
                    self.drop_document(key).await?;
                }
                return Err(Error::NotFound(error.to_string()));
            }
            (Err(error), _) => return Err(error.into()),
        };
        let landed = self.keep_document(key, kept).await;
        self.module_changed(&module);
        landed
    }

    /// The entries of versions that upstream has dropped and whose archives are held: as upstream wrote them, or made
    /// anew where nobody remembers that.
    async fn dropped_modules(
        self: &Arc<Self>,
        upstream: &Upstream,
        module: &ModuleAddress,
        list: &ModuleVersionList,
        before: Option<&Arc<KeptDocument>>,
        call: &Call,
    ) -> Result<Bytes, Error> {
        if !upstream.settings.keep_gone {
            return Ok(Bytes::new());
        }
        let of = module.clone();
        let named = self.on_disk(move |mirror| unless_gone(mirror.store.records.module_packages_with_names(&of)));
        let held: BTreeSet<Version> = named.await?.into_iter().map(|package| package.version).collect();
        let earlier = match before {
            Some(before) => before.module_versions().await.ok(),
            None => None,
        };
        let dropped_before: HashSet<Version> = before.map(|before| before.dropped_modules()).unwrap_or_default();
        for version in dropped_before.iter().filter(|version| !held.contains(version)) {
            self.settled(module, version, AlarmKind::Dropped);
        }
        let mut entries = Vec::new();
        for version in held.into_iter().filter(|version| list.get(version).is_none()) {
            if !dropped_before.contains(&version) {
                tracing::warn!(%module, %version, "upstream has dropped a version that is held; it stays listed (keep_gone)");
                self.alarm(module, &version, AlarmKind::Dropped, None, call.now);
            }
            let as_written = earlier.as_ref().and_then(|list| list.get(&version)).map(|listed| listed.raw.clone());
            entries.extend(as_written.or_else(|| to_raw_value(&serde_json::json!({ "version": version })).ok()));
        }
        Ok(serde_json::to_vec::<Vec<Box<RawValue>>>(&entries).map(Bytes::from).unwrap_or_default())
    }

    /// The latest version of a module that its list names: a pre-release only where there is nothing else.
    pub async fn latest_of_module(
        self: &Arc<Self>,
        address: &ModuleAddress,
        call: &Call,
    ) -> Result<Answer<ModulePackage>, Error> {
        let Answer { value, outcome, fresh_until, checked } = self.module_versions(address, call).await?;
        let unreadable =
            |why: String| Error::Interrupted(format!("the held version list of {address} cannot be read: {why}"));
        let list = value.module_versions().await.map_err(unreadable)?;
        let versions: Vec<Version> = list.versions.into_iter().map(|listed| listed.version).collect();
        let none = || Error::NotFound(format!("the version list of {address} names no version"));
        let version = latest(&versions).cloned().ok_or_else(none)?;
        let value = ModulePackage { module: address.clone(), version };
        Ok(Answer { value, outcome, fresh_until, checked })
    }

    /// The version as the upstream's own list spells it; as clients spell it where the list cannot tell.
    pub(super) async fn module_spelling(self: &Arc<Self>, package: &ModulePackage, call: &Call) -> Spelling {
        let as_clients_do = package.version.to_string();
        let list = match Box::pin(self.module_versions(&package.module, call)).await {
            Ok(list) => list.value.module_versions().await.ok(),
            Err(Error::NotFound(_)) => None,
            Err(error) => return Spelling { spelled: as_clients_do, listed: Err(error) },
        };
        match list.as_ref().and_then(|list| list.get(&package.version)) {
            Some(listed) => Spelling { spelled: listed.spelled.clone(), listed: Ok(true) },
            None => Spelling { spelled: as_clients_do, listed: Ok(false) },
        }
    }
}

/// How upstream wants to be asked for a version.
pub(super) struct Spelling {
    pub(super) spelled: String,
    /// Whether its list names it; why that cannot be told, where it cannot.
    pub(super) listed: Result<bool, Error>,
}

impl KeptDocument {
    /// The document as a module's version list, with what upstream has dropped and larder still holds.
    pub async fn module_versions(self: &Arc<Self>) -> Result<ModuleVersionList, String> {
        self.read_as(Self::as_module_versions).await
    }

    pub(in crate::mirror) fn as_module_versions(&self) -> Result<ModuleVersionList, String> {
        let mut list = ModuleVersionList::parse(&self.body)?;
        list.add(self.dropped());
        Ok(list)
    }

    fn dropped_modules(&self) -> HashSet<Version> {
        let mut list = ModuleVersionList { versions: Vec::new(), module: Default::default(), rest: Default::default() };
        list.add(self.dropped());
        list.versions.into_iter().map(|listed| listed.version).collect()
    }
}
