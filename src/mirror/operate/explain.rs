//! The facts behind an answer: what is stored of one object, what upstream last answered about it, and whether its
//! upstream is left alone. Nothing here has an effect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::address::{Address, Artifact, Hostname, ModulePackage, Package, Platform, Version};
use crate::clock::Timestamp;
use crate::config::FreshnessLifetimes;
use crate::error::Error;
use crate::explanation::safe_text;
use crate::mirror::documents::DocumentKind;
use crate::mirror::documents::module_location::LocationDocument;
use crate::mirror::freshness::{Confirmation, FreshnessRule, Revalidatable};
use crate::mirror::library::default_if_store_unavailable;
use crate::mirror::library::stored_document::DocumentMetadata;
use crate::mirror::operate::list::{PackageArchive, VerifiedBy};
use crate::mirror::operate::status::OriginBackoff;
use crate::mirror::request_context::DocumentRequest;
use crate::mirror::required_platforms::StoredVersions;
use crate::mirror::{Connectivity, Library, Operations, RequestContext, RuntimeConfig};
use crate::store::{Key, StoreError};
use crate::upstream::Upstream;
use crate::upstream::backoff::Origin;
use crate::upstream::discovery::Service;
use crate::upstream::pages::PageRef;
use crate::upstream::source::PackageSource;

/// An object that a request is about.
#[derive(Debug, Clone)]
pub enum ExplainedObject {
    /// The discovery document of an upstream.
    Discovery(Hostname),
    /// The version list of a provider or a module.
    Versions(Address),
    /// The download document of a package, with its SHA256SUMS and signature.
    ProofSet(Package),
    /// The location of a module version.
    Location(ModulePackage),
    /// A page of the registry HTTP API.
    Page(PageRef),
    /// The archive of a package.
    Archive(Artifact),
}

/// The facts about one object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ObjectFacts {
    /// The stored copy of a document or proof set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<StoredCopy>,
    /// The stored archives, the one that was stored last first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub archives: Vec<PackageArchive>,
    /// Upstream's last answer, if it failed or was late.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_answer: Option<AnswerFacts>,
    /// The origin that is left alone after failures, if one of the object's is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_alone: Option<OriginBackoff>,
    /// True for the location of a module that is not stored, at a source that larder cannot fetch.
    #[serde(skip)]
    pub elsewhere: bool,
}

/// The stored copy of a document or a proof set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StoredCopy {
    /// The time when upstream sent it.
    pub fetched: Timestamp,
    /// The time when upstream last confirmed it.
    pub checked: Timestamp,
    /// The end of its freshness. Not after `checked` if its upstream has moved since.
    pub fresh_until: Timestamp,
    /// True if upstream said then that it no longer exists.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gone: bool,
    /// True if a bundle brought it, and upstream has not confirmed it since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub from_bundle: bool,
    /// For a proof set: how it was verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<SetProof>,
}

/// The proof of a stored proof set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SetProof {
    /// The proof.
    #[serde(flatten)]
    pub verified: VerifiedBy,
    /// Findings that did not prevent the proof, such as an expired key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// True while the set before it is served instead, because only that one's archive is stored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub predecessor_served: bool,
}

/// An answer of upstream that failed or was late.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AnswerFacts {
    /// The time of the answer.
    pub at: Timestamp,
    /// The time that it took, in milliseconds.
    pub milliseconds: u64,
    /// The failure; absent for an answer that was only late.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// True if clients had the status line by then, and saw a body that broke off.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub broke_off: bool,
}

/// The known versions of a provider or a module.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct VersionFacts {
    /// The versions that can be installed from the store, the newest first.
    pub stored: Vec<StoredVersion>,
    /// The versions that upstream has dropped from its list and that stay listed, the newest first.
    pub dropped: Vec<String>,
    /// The versions in upstream's list that larder cannot read, as upstream spells them.
    #[serde(default)]
    pub unreadable: Vec<String>,
}

/// A version that can be installed from the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StoredVersion {
    /// The version.
    pub version: String,
    /// Its platforms; none for a module.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub platforms: Vec<String>,
    /// The sealed platforms that it must be stored for before larder lists it, while offline.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<String>,
}

/// The settings of an upstream that decide about answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UpstreamRules {
    /// `verification`
    pub verification: String,
    /// `keep_gone`
    pub keep_gone: bool,
    /// `[network] offline`, or `larder serve --offline`
    pub offline: bool,
    /// `[network] sealed_platforms`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sealed_platforms: Vec<String>,
}

impl Operations {
    /// Returns the settings of an upstream that decide about answers; `None` if the host is not an upstream.
    pub fn upstream_rules(&self, host: &Hostname, call: &RequestContext) -> Option<UpstreamRules> {
        let settings = &call.config.upstreams.get(host)?.settings;
        Some(UpstreamRules {
            verification: settings.verification.to_string(),
            keep_gone: settings.keep_gone,
            offline: self.runtime.connectivity() == Connectivity::Offline,
            sealed_platforms: self.runtime.sealed_platforms().iter().map(ToString::to_string).collect(),
        })
    }

    /// Returns the facts about an object.
    ///
    /// # Errors
    /// The host is not an upstream, or the store failed.
    pub async fn facts(&self, object: &ExplainedObject, call: &RequestContext) -> Result<ObjectFacts, Error> {
        match object {
            ExplainedObject::Discovery(host) => self.document_facts(host, call).await,
            ExplainedObject::Versions(address) => self.document_facts(address, call).await,
            ExplainedObject::Location(package) => {
                let elsewhere = self.is_elsewhere(package, call).await?;
                Ok(ObjectFacts { elsewhere, ..self.document_facts(package, call).await? })
            }
            ExplainedObject::Page(page) => self.document_facts(page, call).await,
            ExplainedObject::ProofSet(package) => self.set_facts(package, call).await,
            ExplainedObject::Archive(artifact) => self.archive_facts(artifact, call).await,
        }
    }

    /// True for a module version that is not stored, and whose location is a source that larder cannot fetch.
    async fn is_elsewhere(&self, package: &ModulePackage, call: &RequestContext) -> Result<bool, Error> {
        let key = call.config.key_of_package(package);
        let Some(stored) = self.library.stored_document(&Key::location(&key)).await? else { return Ok(false) };
        let is_unsupported =
            |location: LocationDocument| matches!(location.parsed.source, PackageSource::Unsupported(_));
        Ok(stored.value.as_location(package).is_ok_and(is_unsupported)
            && self.library.stored_module(&key).await?.is_none())
    }

    async fn document_facts<K: DocumentKind>(&self, kind: &K, call: &RequestContext) -> Result<ObjectFacts, Error> {
        let request = DocumentRequest::of(kind, call)?;
        let stored = self.library.stored_document(&request.key).await?;
        let rule = match (kind.service(), &stored) {
            (Some(service), Some(stored)) if !stored.confirmed.gone => {
                let url = &stored.value.metadata.asked;
                self.documents.rule_if_service_moved(service, url, &request.upstream, request.rule).await?
            }
            _ => request.rule,
        };
        let copy = stored.as_ref().map(|stored| {
            let DocumentMetadata { fetched, from_bundle, .. } = stored.value.metadata;
            StoredCopy { from_bundle, ..StoredCopy::of(fetched, stored.confirmed, &rule) }
        });
        let origins = origins_of(stored.as_ref().map(|stored| &stored.value), &request.upstream);
        Ok(ObjectFacts { stored: copy, ..self.upstream_facts(&request.key, &origins, call) })
    }

    async fn set_facts(&self, package: &Package, call: &RequestContext) -> Result<ObjectFacts, Error> {
        let upstream = call.upstream(&package.provider.host)?;
        let mut rule = upstream.freshness_rule(|fresh: &FreshnessLifetimes| fresh.download);
        let usable = self.proof_sets.usable_set(package, call).await?;
        if let Some(usable) = usable.as_ref().filter(|usable| !usable.stored_set.confirmed.gone) {
            let url = &usable.stored_set.current.metadata.asked;
            rule = self.documents.rule_if_service_moved(Service::Providers, url, upstream, rule).await?;
        }
        let origins = origins_of(usable.as_ref().map(|usable| &usable.stored_set), upstream);
        let stored = usable.map(|usable| {
            let (set, proof) = (&usable.stored_set, usable.stored_set.current.proof());
            let proof = SetProof {
                verified: VerifiedBy::from(&proof.how),
                warnings: proof.warnings.clone(),
                predecessor_served: usable.fallback.is_some(),
            };
            StoredCopy { proof: Some(proof), ..StoredCopy::of(set.current.fetched(), set.confirmed, &rule) }
        });
        Ok(ObjectFacts { stored, ..self.upstream_facts(&Key::ProofSet(package.clone()), &origins, call) })
    }

    async fn archive_facts(&self, artifact: &Artifact, call: &RequestContext) -> Result<ObjectFacts, Error> {
        let upstream = call.upstream(artifact.host())?;
        let artifact = self.runtime.canonical(artifact.clone());
        let key = Key::Name(artifact.clone());
        let stored = self.library.on_disk(move |library| library.stored_package(&artifact)).await?;
        let archives = stored.map(|stored| stored.archives).unwrap_or_default();
        Ok(ObjectFacts { archives, ..self.upstream_facts(&key, &[Origin::of(&upstream.settings.url)], call) })
    }

    fn upstream_facts(&self, key: &Key, origins: &[Origin], call: &RequestContext) -> ObjectFacts {
        let last_answer = call.config.last_answers.get(key, call.now).map(|last| AnswerFacts {
            at: last.at,
            milliseconds: u64::try_from(last.took.as_millis()).unwrap_or(u64::MAX),
            broke_off: last.failure.as_ref().is_some_and(|failure| failure.broke_off),
            failure: last.failure.map(|failure| safe_text(&failure.error.explain().cause)),
        });
        let open = call.config.outbound.backoff.open_breakers(call.now);
        let of_it = open.into_iter().filter(|(_, origin, _)| origins.contains(origin));
        let left_alone = of_it.max_by_key(|(_, _, until)| *until);
        let left_alone = left_alone.map(|(_, origin, until)| OriginBackoff::until(until, &origin, call.now));
        ObjectFacts { last_answer, left_alone, ..ObjectFacts::default() }
    }

    /// Returns what is known of the versions of an address.
    ///
    /// # Errors
    /// The store failed.
    pub async fn version_facts(&self, address: &Address, call: &RequestContext) -> Result<VersionFacts, Error> {
        let (canonical, config) = (call.config.canonical(address), Arc::clone(&call.config));
        let list = self.library.stored_document(&Key::version_list(&canonical)).await?;
        let (mut dropped, mut unreadable) = (Vec::new(), Vec::new());
        if let Some(list) = list {
            dropped.extend(list.value.dropped_versions(address.into()).into_iter().map(|listed| listed.version));
            let versions = list.value.versions(address.into()).await.map(|list| list.unreadable);
            unreadable.extend(versions.into_iter().flatten().map(|entry| entry.upstream_spelling));
        }
        dropped.sort_by(|one, other| other.cmp(one));
        let read = move |library: &Library| library.stored_version_facts(&canonical, &config);
        let stored = self.library.on_disk(read).await?;
        Ok(VersionFacts { stored, dropped: dropped.iter().map(ToString::to_string).collect(), unreadable })
    }
}

impl Library {
    fn stored_version_facts(
        &self,
        address: &Address,
        config: &RuntimeConfig,
    ) -> Result<Vec<StoredVersion>, StoreError> {
        let stored: StoredVersions = default_if_store_unavailable(self.read_stored_versions(address, config))?;
        let waiting = self.waiting_among(address, &stored, config).into_iter();
        let waiting: BTreeMap<Version, BTreeSet<Platform>> =
            waiting.map(|waiting| (waiting.version, waiting.waits_for)).collect();
        let names = |platforms: &BTreeSet<Platform>| platforms.iter().map(ToString::to_string).collect();
        let version = |(version, platforms): (Version, BTreeSet<Platform>)| StoredVersion {
            platforms: names(&platforms),
            waits_for: waiting.get(&version).map(names).unwrap_or_default(),
            version: version.to_string(),
        };
        Ok(stored.into_iter().rev().map(version).collect())
    }
}

impl StoredCopy {
    fn of(fetched: Timestamp, confirmed: Confirmation, rule: &FreshnessRule) -> Self {
        let (Confirmation { checked, gone }, fresh_until) = (confirmed, rule.fresh_until(confirmed));
        Self { fetched, checked, fresh_until, gone, from_bundle: false, proof: None }
    }
}

/// The origins that a request for an object contacts: those of the stored copy, and the upstream's own.
fn origins_of<T: Revalidatable>(stored: Option<&T>, upstream: &Upstream) -> Vec<Origin> {
    stored.map_or_else(|| vec![Origin::of(&upstream.settings.url)], Revalidatable::origins)
}
