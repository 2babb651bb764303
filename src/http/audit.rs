//! The decisions about requests, and their lines in the audit trail.

use std::net::IpAddr;
use std::sync::Arc;

use http::{Method, StatusCode};
use serde::{Serialize, Serializer};

use super::client_tokens::Identity;
use super::requests::RequestOutcome;
use crate::address::{Address, ModulePackage, Platform, Version};
use crate::audit::Weight;
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::error::Error;
use crate::explanation::safe_text;
use crate::mirror::{Archive, ArchiveRef, HiddenVersions, ModuleArchiveRef, ProofFileRef};
use crate::protocol::admin::{RecentRefusal, RefusalKind};
use crate::protocol::rights::{Rights, RightsClass};
use crate::protocol::route::{Route, RouteError, RouteKind};
use crate::protocol::view::View;
use crate::protocol::{Reply, ReplyContent, RequestFailure};

/// The most bytes of a path or an id that somebody else chose.
pub(super) const MAX_TEXT_BYTES: usize = 1024;
/// Hex digits of the id of a URL's proof.
const URL_ID_DIGITS: usize = 16;

/// The decision on a request, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct Decision {
    /// The client that authenticated, or whose rights the URL proves.
    pub(super) who: Who,
    /// The view that the path names.
    pub(super) view: Option<View>,
    /// The route, where there is an audit trail.
    pub(super) route: Option<Arc<Route>>,
    /// The id of the proof in the URL.
    url: Option<String>,
    digest: Option<Digest>,
    /// The versions that a list does not show.
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
    /// A `larder run` of larder's own user.
    OwnRun,
    /// One with this token, whether it counts from there or not.
    Client(Identity),
    /// Somebody with a URL that larder made for clients of this class.
    OfClass(Arc<RightsClass>),
}

impl Who {
    /// The rights of the request.
    pub(super) fn rights(&self) -> Rights {
        match self {
            Self::Anybody | Self::OwnRun => Rights::All,
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

    /// Notes why there is no good answer, whatever was asked for; the kind is that of a refusal.
    pub(super) fn note_refusal(&mut self, refusal: Option<RefusalKind>, text: &str) {
        self.cause = Some(Cause { refusal, subject: None, text: text.to_owned(), rules: Vec::new() });
    }

    /// Notes a failure, or the refusal of a rule.
    pub(super) fn note_failure(&mut self, failure: &RequestFailure) {
        let explanation = failure.explain();
        let (refusal, rules) = match failure {
            RequestFailure::Mirror(Error::UnknownHost(_)) | RequestFailure::NoRoute(RouteError::UnknownHost(_)) => {
                (Some(RefusalKind::Host), Vec::new())
            }
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
            Who::Client(identity) => Some(&identity.name),
            Who::Anybody | Who::OwnRun | Who::OfClass(_) => None,
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
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    own_run: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<String>,
    method: String,
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
    file: Option<String>,
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

/// The request: its client, its path and its time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) client: IpAddr,
    pub(super) method: &'a Method,
    pub(super) path: &'a str,
    pub(super) time: Timestamp,
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
    /// Its weight while lines are being lost.
    pub(super) fn weight(&self) -> Weight {
        if self.address.is_some() { Weight::Package } else { Weight::Other }
    }

    /// The line of a request that has ended. `None` for what is no decision: probes, the page for browsers, paths without a route.
    pub(super) fn of(decision: Decision, asked: Asked<'_>, end: End) -> Option<Self> {
        let name = decision.name().map(|name| name.to_string());
        let Decision { who, view, route, url, digest, hidden, cause } = decision;
        let refused_by = cause.as_ref().and_then(|cause| cause.refusal);
        let kind = route.as_ref().map_or(RouteKind::NoRoute, |route| route.kind());
        if matches!(kind, RouteKind::NoRoute | RouteKind::Health | RouteKind::Home) && refused_by.is_none() {
            return None;
        }
        let own_run = matches!(who, Who::OwnRun);
        let (job, class) = match who {
            Who::Client(Identity { job, class, .. }) => (job.map(|job| job.to_string()), Some(class)),
            Who::OfClass(class) => (None, Some(class)),
            Who::Anybody | Who::OwnRun => (None, None),
        };
        // The route's own path names the registry, in the one spelling that larder has for it.
        let canonical = route.as_ref().map(|route| route.path());
        let Subject { address, version, platform, file, digest: prefix } =
            route.map(|route| Subject::of(Arc::unwrap_or_clone(route))).unwrap_or_default();
        let path = address.is_none().then(|| shortened(canonical.as_deref().unwrap_or(asked.path)));
        let is_good = cause.is_none();
        let (rules, reason) = cause.map_or((Vec::new(), None), |cause| (cause.rules, Some(safe_text(&cause.text))));
        let of_rule = |hidden: &HiddenVersions| HiddenByRule {
            rule: hidden.rule.clone(),
            versions: hidden.count,
            newest: hidden.newest.iter().map(|hidden| hidden.version.clone()).collect(),
        };
        Some(Self {
            time: asked.time,
            client: asked.client,
            own_run,
            name,
            job,
            class: class.map(|class| class.tag().trim_start_matches('~').to_owned()),
            method: asked.method.to_string(),
            route: kind.label(),
            view: view.map(|view| view.to_string().trim_start_matches('/').to_owned()),
            address: address.map(|address| address.to_string()),
            version,
            platform,
            file,
            path,
            outcome: end.outcome.label(),
            status: end.status.map(|status| status.as_u16()),
            bytes: end.bytes,
            broken_off: end.broken_off,
            digest: digest.map(|digest| digest.to_string()).or(prefix.filter(|_| is_good)),
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

/// The subject of a route.
#[derive(Debug, Default)]
struct Subject {
    address: Option<Address>,
    version: Option<Version>,
    platform: Option<Platform>,
    file: Option<String>,
    /// The digest that the path names.
    digest: Option<String>,
}

impl Subject {
    fn of(route: Route) -> Self {
        let about = |address: Address| Self { address: Some(address), ..Self::default() };
        let of_module =
            |ModulePackage { module, version }| Self { version: Some(version), ..about(Address::Module(module)) };
        match route {
            Route::Versions(address) => about(address),
            Route::MirrorIndex(provider) => about(Address::Provider(provider)),
            Route::MirrorVersion(provider, version) => {
                Self { version: Some(version), ..about(Address::Provider(provider)) }
            }
            Route::ProviderDownload(package) => Self {
                version: Some(package.version),
                platform: Some(package.platform),
                ..about(Address::Provider(package.provider))
            },
            Route::ProviderFile(ArchiveRef { package, digest, filename }) => Self {
                digest: Some(digest.to_string()),
                file: Some(filename.to_string()),
                ..Self::of(Route::ProviderDownload(package))
            },
            Route::ProofFile(ProofFileRef { provider, version, digest, file }) => Self {
                version: Some(version),
                digest: Some(digest.to_string()),
                file: Some(file.name().to_owned()),
                ..about(Address::Provider(provider))
            },
            Route::ModuleDownload(package) => of_module(package),
            Route::ModuleArchive(ModuleArchiveRef { package, digest }) => {
                Self { digest: digest.map(|digest| digest.to_string()), ..of_module(package) }
            }
            Route::ModuleLatest(module) => about(Address::Module(module)),
            Route::Discovery(_) | Route::Page(_) | Route::Health | Route::Ready | Route::Home => Self::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_is_cut_at_a_character() {
        assert_eq!(shortened("/é"), "/é");
        assert!(shortened(&"é".repeat(2000)).len() <= MAX_TEXT_BYTES);
    }
}
