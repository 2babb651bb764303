//! The decisions about requests: the lines of the audit trail, and the refusals of the last day.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;
use serde::{Serialize, Serializer};

use super::client_tokens::Identity;
use super::failures::make_room;
use super::requests::RequestOutcome;
use crate::address::{Address, Platform, Version};
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::error::Error;
use crate::explanation::safe_text;
use crate::mirror::{Archive, ArchiveRef, HiddenVersions, ModuleArchiveRef, ProofFileRef};
use crate::protocol::admin::{RecentRefusal, RefusalKind};
use crate::protocol::rights::{Rights, RightsClass};
use crate::protocol::route::{Route, RouteKind};
use crate::protocol::view::View;
use crate::protocol::{Reply, ReplyContent, RequestFailure};

/// The most refusals that are remembered, and the time for which.
const MAX_REFUSALS: usize = 200;
const REMEMBERED_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// The most bytes of a path or an id that somebody else chose.
const MAX_TEXT_BYTES: usize = 1024;
/// Hex digits of the id of a URL's proof.
const URL_ID_DIGITS: usize = 16;

/// What is known about the decision on a request.
#[derive(Debug, Default)]
pub(super) struct Decision {
    /// The client that authenticated, or whose rights the URL proves.
    pub(super) who: Who,
    /// The view that the path names.
    pub(super) view: Option<View>,
    /// The route, where there is an audit trail.
    pub(super) route: Option<Route>,
    /// The id of the proof in the URL.
    url: Option<String>,
    digest: Option<Digest>,
    /// What a list does not show.
    hidden: Arc<[HiddenVersions]>,
    /// Why there is no good answer.
    cause: Option<Cause>,
}

/// The client of a request, as far as it proved that.
#[derive(Debug, Default)]
pub(super) enum Who {
    /// No client needs to prove anything here, or it proved nothing and is refused.
    #[default]
    Anybody,
    /// A client of this name; its token does not count from there.
    Named(Arc<str>),
    /// One that authenticated.
    Client(Identity),
    /// Somebody with a URL that larder made for clients of this class.
    OfClass(Arc<RightsClass>),
}

impl Who {
    /// The rights of the request.
    pub(super) fn rights(&self) -> Rights {
        match self {
            Self::Anybody | Self::Named(_) => Rights::All,
            Self::Client(Identity { class, .. }) | Self::OfClass(class) => Rights::Of(Arc::clone(class)),
        }
    }
}

#[derive(Debug)]
struct Cause {
    /// The kind of a refusal; `None` for a failure.
    refusal: Option<RefusalKind>,
    subject: Option<String>,
    text: String,
    rules: Vec<String>,
}

impl Decision {
    /// Notes the proof in the URL of an archive, by an id that opens nothing.
    pub(super) fn note_url(&mut self, proof: Option<&str>) {
        self.url = proof.map(|proof| Digest::of(proof.as_bytes()).to_string().chars().take(URL_ID_DIGITS).collect());
    }

    /// Notes a refusal before any route.
    pub(super) fn note_refusal(&mut self, kind: RefusalKind, text: &str) {
        self.cause = Some(Cause { refusal: Some(kind), subject: None, text: text.to_owned(), rules: Vec::new() });
    }

    /// Notes a failure, or the refusal of a rule.
    pub(super) fn note_failure(&mut self, failure: &RequestFailure) {
        let explanation = failure.explain();
        let (refusal, rules) = match failure {
            RequestFailure::Mirror(Error::Refused { refusal, .. }) => {
                (Some(RefusalKind::Policy), refusal.rules.clone())
            }
            _ => (None, Vec::new()),
        };
        self.cause = Some(Cause { refusal, subject: explanation.subject, text: explanation.cause, rules });
    }

    /// Notes a good answer.
    pub(super) fn note_reply(&mut self, reply: &Reply) {
        match &reply.content {
            ReplyContent::File(Archive::InMemory { digest, .. } | Archive::OnDisk { digest, .. }) => {
                self.digest = Some(*digest);
            }
            ReplyContent::Document(rendered) if !rendered.hidden.is_empty() => {
                self.hidden = Arc::clone(&rendered.hidden);
            }
            _ => {}
        }
    }

    fn name(&self) -> Option<&Arc<str>> {
        match &self.who {
            Who::Named(name) => Some(name),
            Who::Client(identity) => Some(&identity.name),
            Who::Anybody | Who::OfClass(_) => None,
        }
    }

    /// The refusal, for people; `None` for other decisions.
    pub(super) fn refusal(&self, status: StatusCode, client: IpAddr, now: Timestamp) -> Option<RecentRefusal> {
        let Cause { refusal, subject, text, rules } = self.cause.as_ref()?;
        Some(RecentRefusal {
            kind: (*refusal)?,
            subject: subject.as_deref().map(safe_text),
            reason: safe_text(text),
            rules: rules.clone(),
            status: status.as_u16(),
            client: client.to_string(),
            name: self.name().map(|name| name.to_string()),
            times: 1,
            first: now,
            last: now,
        })
    }
}

/// A line of the audit trail: one decision. `docs/audit.md` has the members; absent ones are unknown, or do not apply.
#[derive(Debug, Serialize)]
pub struct AuditLine {
    #[serde(serialize_with = "as_date_time")]
    time: Timestamp,
    client: IpAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<String>,
    route: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    view: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<Version>,
    #[serde(skip_serializing_if = "Option::is_none")]
    platform: Option<Platform>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    bytes: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    broken_off: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused_by: Option<RefusalKind>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rules: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hidden: Vec<HiddenByRule>,
}

/// The versions that one rule takes from a list.
#[derive(Debug, Serialize)]
struct HiddenByRule {
    rule: String,
    versions: usize,
    newest: Vec<Version>,
}

/// The end of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    pub(super) status: Option<StatusCode>,
    pub(super) outcome: RequestOutcome,
    pub(super) bytes: u64,
    pub(super) broken_off: bool,
}

impl AuditLine {
    /// The line of a request that has ended. `None` for what is no decision: probes, the page for browsers, paths without a route.
    pub(super) fn of(decision: Decision, client: IpAddr, path: &str, end: End, now: Timestamp) -> Option<Self> {
        let name = decision.name().map(|name| name.to_string());
        let Decision { who, view, route, url, digest, hidden, cause } = decision;
        let refused_by = cause.as_ref().and_then(|cause| cause.refusal);
        let kind = route.as_ref().map_or(RouteKind::NoRoute, Route::kind);
        if matches!(kind, RouteKind::NoRoute | RouteKind::Health | RouteKind::Home) && refused_by.is_none() {
            return None;
        }
        let (job, class) = match who {
            Who::Client(Identity { job, class, .. }) => (job.map(|job| job.to_string()), Some(class)),
            Who::OfClass(class) => (None, Some(class)),
            Who::Anybody | Who::Named(_) => (None, None),
        };
        let (address, version, platform, prefix) = route.map_or((None, None, None, None), parts);
        let path = address.is_none().then(|| shortened(path));
        let (rules, reason) = cause.map_or((Vec::new(), None), |cause| (cause.rules, Some(safe_text(&cause.text))));
        let of_rule = |hidden: &HiddenVersions| HiddenByRule {
            rule: hidden.rule.clone(),
            versions: hidden.count,
            newest: hidden.newest.iter().map(|hidden| hidden.version.clone()).collect(),
        };
        Some(Self {
            time: now,
            client,
            name,
            job,
            class: class.map(|class| class.tag().trim_start_matches('~').to_owned()),
            route: kind.label(),
            view: view.map(|view| view.to_string().trim_start_matches('/').to_owned()),
            address: address.map(|address| address.to_string()),
            version,
            platform,
            path,
            outcome: end.outcome.label(),
            status: end.status.map(|status| status.as_u16()),
            bytes: end.bytes,
            broken_off: end.broken_off,
            digest: digest.map(|digest| digest.to_string()).or(prefix),
            url,
            refused_by,
            rules,
            reason,
            hidden: hidden.iter().map(of_rule).collect(),
        })
    }
}

fn as_date_time<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&time.date_time())
}

fn shortened(path: &str) -> String {
    let end = path.char_indices().map(|(at, _)| at).take_while(|at| *at <= MAX_TEXT_BYTES).last();
    safe_text(path.get(..end.filter(|_| path.len() > MAX_TEXT_BYTES).unwrap_or(path.len())).unwrap_or_default())
}

/// The subject of a route, with the digest that its path names.
fn parts(route: Route) -> (Option<Address>, Option<Version>, Option<Platform>, Option<String>) {
    let of_module =
        |package: crate::address::ModulePackage| (Some(Address::Module(package.module)), Some(package.version));
    match route {
        Route::Versions(address) => (Some(address), None, None, None),
        Route::MirrorIndex(provider) => (Some(Address::Provider(provider)), None, None, None),
        Route::MirrorVersion(provider, version) => (Some(Address::Provider(provider)), Some(version), None, None),
        Route::ProviderDownload(package) => {
            (Some(Address::Provider(package.provider)), Some(package.version), Some(package.platform), None)
        }
        Route::ProviderFile(ArchiveRef { package, digest, .. }) => {
            let digest = Some(digest.to_string());
            (Some(Address::Provider(package.provider)), Some(package.version), Some(package.platform), digest)
        }
        Route::ProofFile(ProofFileRef { provider, version, digest, .. }) => {
            (Some(Address::Provider(provider)), Some(version), None, Some(digest.to_string()))
        }
        Route::ModuleDownload(package) => {
            let (address, version) = of_module(package);
            (address, version, None, None)
        }
        Route::ModuleArchive(ModuleArchiveRef { package, digest }) => {
            let (address, version) = of_module(package);
            (address, version, None, digest.map(|digest| digest.to_string()))
        }
        Route::ModuleLatest(module) => (Some(Address::Module(module)), None, None, None),
        Route::Discovery(_) | Route::Page(_) | Route::Health | Route::Ready | Route::Home => (None, None, None, None),
    }
}

/// The address of a client, and what it was refused.
type RefusalKey = (String, RefusalKind, Option<String>);

/// The refusals of the last day, by client and subject. A bounded list in memory, for people; the audit trail has all of them.
#[derive(Debug, Default)]
pub(super) struct RecentRefusals(Mutex<BTreeMap<RefusalKey, RecentRefusal>>);

impl RecentRefusals {
    /// Records a refusal.
    pub(super) fn record(&self, refusal: RecentRefusal) {
        if refusal.subject.as_ref().is_some_and(|subject| subject.len() > MAX_TEXT_BYTES) {
            return;
        }
        let key = (refusal.client.clone(), refusal.kind, refusal.subject.clone());
        let mut by_client = self.0.lock();
        make_room(&mut by_client, &key, MAX_REFUSALS, |refusal| refusal.last);
        let before = by_client.get(&key).map(|before| (before.first, before.times));
        let (first, times) = before.map_or((refusal.first, 1), |(first, times)| (first, times.saturating_add(1)));
        by_client.insert(key, RecentRefusal { first, times, ..refusal });
    }

    /// The refusals of the last day, the newest first.
    pub(super) fn list(&self, now: Timestamp) -> Vec<RecentRefusal> {
        let mut by_client = self.0.lock();
        by_client.retain(|_, refusal| now.since(refusal.last) < REMEMBERED_FOR);
        let mut listed: Vec<RecentRefusal> = by_client.values().cloned().collect();
        listed.sort_by_key(|refusal| std::cmp::Reverse(refusal.last));
        listed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(client: u32, last: u64) -> RecentRefusal {
        RecentRefusal {
            kind: RefusalKind::Policy,
            subject: Some("registry.example/acme/evil".to_owned()),
            reason: "denied".to_owned(),
            rules: vec!["acme/*".to_owned()],
            status: 421,
            client: std::net::Ipv4Addr::from(client).to_string(),
            name: None,
            times: 1,
            first: Timestamp(last),
            last: Timestamp(last),
        }
    }

    #[test]
    fn refusals_are_counted_by_client_and_bounded() {
        let refusals = RecentRefusals::default();
        (0..3).for_each(|now| refusals.record(refusal(1, now)));
        let listed = refusals.list(Timestamp(5));
        assert_eq!((listed.len(), listed[0].times, listed[0].first.0, listed[0].last.0), (1, 3, 0, 2));
        (0..1000).for_each(|client| refusals.record(refusal(client, 10 + u64::from(client))));
        let listed = refusals.list(Timestamp(1010));
        assert_eq!((listed.len(), listed[0].last.0), (MAX_REFUSALS, 1009));
        assert!(refusals.list(Timestamp(1009 + REMEMBERED_FOR.as_secs())).is_empty());
    }

    #[test]
    fn a_long_path_is_cut_at_a_character() {
        assert_eq!(shortened("/é"), "/é");
        assert!(shortened(&"é".repeat(2000)).len() <= MAX_TEXT_BYTES);
    }
}
