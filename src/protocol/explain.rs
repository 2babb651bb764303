//! Explains answers: runs the requests of a client dry, by the code that answers clients, and reports each with the facts
//! behind it.

mod advice;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::IgnoredAny;
use url::{Position, Url};

use self::advice::{advice, verdict};
use super::admin::explain::{
    ExpectedAnswer, ExplainReport, ExplainRequest, ExplainStep, ExplainSubject, Rule, StepKind, Verdict, VersionChoice,
    VersionSummary,
};
use super::rights::split_url_token;
use super::route::{Api, Route, RouteError};
use super::run::RunId;
use super::view::View;
use super::{Links, Protocols, ReplyContent, RequestFailure};
use crate::address::{
    Address, Artifact, Hostname, ModulePackage, Package, PackageRef, PackageSelector, Platform, Version, Versions,
    WaitingVersion,
};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::explanation::safe_text;
use crate::mirror::{
    Alarm, Answer, Connectivity, ExplainedObject, ModuleLocation, ObjectFacts, Outcome, RequestContext,
};
use crate::policy::Approval;
use crate::upstream::providers::VersionList;

/// The most versions of each kind in a report.
const MAX_VERSIONS: usize = 100;

/// The answers of the HTTP layer.
#[derive(Debug, Clone, Copy)]
pub struct HttpAnswers {
    /// The status and the reason phrase of a failure.
    pub failure: fn(&RequestFailure, Api) -> (u16, String),
    /// The `Cache-Status` of an outcome.
    pub cache_status: fn(Outcome) -> &'static str,
}

/// A request of a client that is run dry.
#[derive(Debug, Clone)]
struct PlannedStep {
    kind: StepKind,
    /// `None` while a step before decides about it.
    route: Option<Route>,
    object: Option<ExplainedObject>,
}

impl PlannedStep {
    fn new(kind: StepKind, route: Route, object: ExplainedObject) -> Self {
        Self { kind, route: Some(route), object: Some(object) }
    }
}

/// The subject of an explanation, in its parts.
#[derive(Debug, Clone)]
struct Subject {
    host: Hostname,
    address: Option<Address>,
    version: Option<Version>,
    /// The address and the constraint in question.
    asked: Option<String>,
    /// The origin of the version.
    choice: Option<VersionChoice>,
    /// The platform of a provider's package.
    platform: Option<Platform>,
    /// The requested URL.
    requested: Option<Route>,
}

impl Subject {
    /// The subject of which only the host is known.
    fn of_host(host: &Hostname) -> Self {
        let host = host.clone();
        Self { host, address: None, version: None, asked: None, choice: None, platform: None, requested: None }
    }

    fn package(&self) -> PackageRef {
        let Some(address) = &self.address else { return PackageRef::discovery(&self.host) };
        let version = self.version.as_ref().map(ToString::to_string);
        let platform = self.platform.as_ref().filter(|_| version.is_some());
        PackageRef { address: address.to_string(), version, ..PackageRef::default() }.on(platform)
    }

    /// The archive's package.
    fn artifact(&self) -> Option<Artifact> {
        match (self.address.clone()?, self.version.clone()?) {
            (Address::Provider(provider), version) => {
                Some(Artifact::Provider(Package { provider, version, platform: self.platform.clone()? }))
            }
            (Address::Module(module), version) => Some(Artifact::Module(ModulePackage { module, version })),
        }
    }
}

/// The context of one explanation.
#[derive(Debug, Clone, Copy)]
struct ExplainContext<'a> {
    protocols: &'a Protocols,
    call: &'a RequestContext,
    /// The URL of larder for clients; empty where there is none.
    base: &'a str,
    /// The view of the client in question.
    view: Option<View>,
    http: HttpAnswers,
}

impl Protocols {
    /// Explains what a client gets, at the URL `base`, which is empty where no larder serves. Asks no upstream and has no
    /// effect.
    ///
    /// # Errors
    /// The store failed.
    pub async fn explain(
        &self,
        request: &ExplainRequest,
        base: &str,
        now: Timestamp,
        http: HttpAnswers,
    ) -> Result<ExplainReport, Error> {
        let call = self.mirror.runtime.dry_run_context(now, Arc::clone(&self.runtime_config));
        let platform = request.platform.clone().unwrap_or_else(Platform::of_this_machine);
        let of_client = |view, call| ExplainContext { protocols: self, call, base, view, http };
        match &request.subject {
            ExplainSubject::Address(selector) => {
                self.mirror.library.refresh((&selector.address()).into()).await?;
                let explanation = of_client(None, &call);
                let subject = explanation.subject_of(selector, platform).await;
                // Boxed: the compiler takes minutes over the nested futures.
                let waiting = Box::pin(explanation.waiting_version(selector, &subject)).await?;
                explanation.report(subject, waiting).await
            }
            ExplainSubject::Url(given) => match self.route_of_url(given) {
                Ok((route, view)) => {
                    let call = call.limited_to(View::limits_of(view));
                    let explanation = of_client(view, &call);
                    if let Some(subject) = route.subject() {
                        self.mirror.library.refresh(subject.group()).await?;
                    }
                    let subject = explanation.subject_of_route(route, platform).await?;
                    explanation.report(subject, None).await
                }
                Err((error, api)) => Ok(of_client(None, &call).report_without_route(given, error, api)),
            },
        }
    }

    /// Parses one of larder's URLs, from a log, an error or a client's output.
    fn route_of_url(&self, given: &str) -> Result<(Route, Option<View>), (RouteError, Api)> {
        let url = Url::parse(given).ok();
        let (path, query, host) = match &url {
            // An upstream may have a port, which is part of its name.
            Some(url) => (url.path(), url.query(), Some(&url[Position::BeforeHost..Position::AfterPort])),
            None => match given.split_once('?') {
                Some((path, query)) => (path, Some(query), None),
                None => (given, None, None),
            },
        };
        // A client writes the folder of a module behind a double slash.
        let path = path.split_once("//").map_or(path, |(archive, _)| archive);
        let (_, path) = RunId::split(path);
        let path = self.mount.without_prefix(path);
        let (_, path) = split_url_token(path);
        let (view, path) = View::split(&path).map_err(|error| (error, Api::of_path(&path)))?;
        let api = Api::of_path(path);
        match Route::parse(path, query, host, &self.route_context) {
            Ok(Route::Health | Route::Ready | Route::Home) => {
                Err((RouteError::Unknown(format!("{path} says nothing about packages")), api))
            }
            parsed => parsed.map(|route| (route, view)).map_err(|error| (error, api)),
        }
    }
}

impl ExplainContext<'_> {
    /// Chooses the version of a selector as `init` does without a lock file. Without a version list the list itself
    /// explains the answer.
    async fn subject_of(&self, selector: &PackageSelector, platform: Platform) -> Subject {
        let address = selector.address();
        let mut subject = Subject {
            address: Some(address.clone()),
            asked: Some(selector.to_string()),
            platform: matches!(address, Address::Provider(_)).then_some(platform),
            ..Subject::of_host(address.host())
        };
        if let Versions::Exactly(version) = selector.versions() {
            (subject.version, subject.choice) = (Some(version.clone()), Some(VersionChoice::Request));
        }
        let Ok(list) = self.client_versions(&address).await else { return subject };
        let listed: Vec<&Version> = list.versions.iter().map(|listed| &listed.version).collect();
        match (selector.choose(&listed), &subject.choice) {
            // A list may spell the version of a module in another way, and clients ask for that one.
            (Ok(version), Some(_)) => subject.version = Some(version.clone()),
            (Ok(version), None) => {
                subject.version = Some(version.clone());
                subject.choice = Some(VersionChoice::Client { listed: listed.len() });
            }
            (Err(_), Some(_)) => {}
            (Err(reason), None) => subject.choice = Some(VersionChoice::None { reason }),
        }
        subject
    }

    async fn subject_of_route(&self, route: Route, platform: Platform) -> Result<Subject, Error> {
        let of_host = |host: &Hostname| Subject { requested: Some(route.clone()), ..Subject::of_host(host) };
        let of = |address: Address, version: Option<Version>, platform: Option<Platform>| {
            let subject = of_host(address.host());
            Subject { address: Some(address), version, platform, ..subject }
        };
        let provider = |package: &Package| {
            of((&package.provider).into(), Some(package.version.clone()), Some(package.platform.clone()))
        };
        Ok(match &route {
            Route::Discovery(host) => of_host(host),
            Route::Versions(address @ Address::Provider(_)) => of(address.clone(), None, Some(platform)),
            Route::Versions(address @ Address::Module(_)) => of(address.clone(), None, None),
            Route::ProviderDownload(package) => provider(package),
            Route::ProviderFile(target) => provider(&target.package),
            Route::MirrorIndex(address) => of(address.into(), None, Some(platform)),
            Route::MirrorVersion(address, version) => of(address.into(), Some(version.clone()), Some(platform)),
            Route::ProofFile(target) => {
                let mirror = &self.protocols.mirror;
                let stored = mirror.library.platforms_with_sets(&target.provider, &target.version).await?;
                let platform =
                    if stored.contains(&platform) { None } else { stored.into_iter().next() }.unwrap_or(platform);
                of((&target.provider).into(), Some(target.version.clone()), Some(platform))
            }
            Route::ModuleDownload(package) => of((&package.module).into(), Some(package.version.clone()), None),
            Route::ModuleArchive(target) => {
                of((&target.package.module).into(), Some(target.package.version.clone()), None)
            }
            Route::ModuleLatest(module) => {
                let latest = self.protocols.mirror.offline.latest_of_module(module, self.call).await;
                of(module.into(), latest.ok().map(|latest| latest.value.version), None)
            }
            Route::Page(page) => match page.details_of() {
                Some((address, _)) => of(address, None, None),
                None => of_host(&page.host),
            },
            Route::Health | Route::Ready | Route::Home => {
                return Err(Error::NotFound("it is about no package".to_owned()));
            }
        })
    }

    async fn client_versions(&self, address: &Address) -> Result<VersionList, Error> {
        Ok(self.protocols.mirror.offline.client_versions(address, self.call).await?.value.list)
    }

    /// The stored version that waits for sealed platforms: the one in question, or the one that a client would choose if it
    /// were listed.
    async fn waiting_version(
        &self,
        selector: &PackageSelector,
        subject: &Subject,
    ) -> Result<Option<WaitingVersion>, Error> {
        let PackageSelector::Provider(selection) = selector else { return Ok(None) };
        let address = Address::from(&selection.of);
        let waiting = self.protocols.mirror.offline.waiting_versions(&address, self.call).await?;
        let versions: Vec<&Version> = waiting.iter().map(|waiting| &waiting.version).collect();
        let version = match (&subject.version, &subject.choice) {
            (Some(version), Some(VersionChoice::Request)) => Some(version),
            (listed, _) => selection.choose(&versions).ok().filter(|newest| Some(*newest) > listed.as_ref()),
        };
        let version = version.cloned();
        Ok(waiting.into_iter().find(|waiting| Some(&waiting.version) == version.as_ref()))
    }

    async fn report(&self, subject: Subject, waiting: Option<WaitingVersion>) -> Result<ExplainReport, Error> {
        let mirror = &self.protocols.mirror;
        let rules = mirror.operations.upstream_rules(&subject.host, self.call);
        let mut steps = Vec::new();
        for planned in self.plan(&subject).await {
            steps.push(self.run_dry(planned, &subject).await?);
        }
        let (verdict, decided_by) = verdict(&steps);
        let versions = match &subject.address {
            Some(address) if rules.is_some() => Some(self.versions(address).await?),
            _ => None,
        };
        let (alarms, approvals) = (self.alarms(&subject), self.approvals(&subject).await?);
        let decisive = decided_by.and_then(|index| steps.get(index));
        let to_do = advice(&subject, decisive, waiting.as_ref(), &alarms, rules.as_ref());
        Ok(ExplainReport {
            package: subject.package(),
            choice: subject.choice,
            now: self.call.now,
            verdict,
            decided_by,
            rules,
            steps,
            waiting,
            versions,
            alarms,
            approvals,
            to_do,
        })
    }

    /// The report about a URL that leads nowhere.
    fn report_without_route(&self, given: &str, error: RouteError, api: Api) -> ExplainReport {
        let (shown, answer) = (safe_text(given), self.refused(&RequestFailure::NoRoute(error), api));
        let step = ExplainStep {
            step: StepKind::Url,
            url: Some(if given.starts_with('/') { format!("{}{shown}", self.base) } else { shown.clone() }),
            requested: true,
            answer,
            rule: Rule::NoRoute,
            facts: ObjectFacts::default(),
        };
        ExplainReport {
            package: PackageRef::requested(&shown),
            choice: None,
            now: self.call.now,
            verdict: Verdict::Refused,
            decided_by: Some(0),
            rules: None,
            steps: vec![step],
            waiting: None,
            versions: None,
            alarms: Vec::new(),
            approvals: Vec::new(),
            to_do: Vec::new(),
        }
    }

    /// The requests of a client, in its order. The archive is known once the step before it is served.
    async fn plan(&self, subject: &Subject) -> Vec<PlannedStep> {
        let Subject { host, address, requested, .. } = subject;
        let mut steps = vec![PlannedStep::new(
            StepKind::Discovery,
            Route::Discovery(host.clone()),
            ExplainedObject::Discovery(host.clone()),
        )];
        if let Some(address) = address {
            let list = ExplainedObject::Versions(address.clone());
            steps.push(PlannedStep::new(StepKind::VersionList, Route::Versions(address.clone()), list.clone()));
            match (subject.artifact(), address) {
                (Some(Artifact::Provider(package)), _) => steps.extend(self.provider_steps(package, requested).await),
                (Some(Artifact::Module(package)), _) => steps.extend(self.module_steps(package, requested).await),
                (None, Address::Provider(provider)) => {
                    steps.push(PlannedStep::new(StepKind::NetworkMirror, Route::MirrorIndex(provider.clone()), list));
                }
                (None, Address::Module(_)) => {}
            }
        }
        let is_planned = |route: &Route| steps.iter().any(|step| step.route.as_ref() == Some(route));
        if let Some(route) = requested.as_ref().filter(|route| !is_planned(route)) {
            steps.push(self.requested_step(route));
        }
        steps
    }

    /// The step of a requested URL that the chain does not contain.
    fn requested_step(&self, route: &Route) -> PlannedStep {
        let (kind, object) = match route {
            Route::Page(page) => (StepKind::Page, Some(ExplainedObject::Page(page.clone()))),
            Route::ProofFile(_) => (StepKind::ProofFile, None),
            Route::MirrorIndex(provider) => (StepKind::NetworkMirror, Some(ExplainedObject::Versions(provider.into()))),
            Route::ModuleLatest(module) => (StepKind::Location, Some(ExplainedObject::Versions(module.into()))),
            Route::ProviderFile(target) => {
                (StepKind::Archive, Some(ExplainedObject::Archive((&target.package).into())))
            }
            Route::ModuleArchive(target) => {
                (StepKind::Archive, Some(ExplainedObject::Archive((&target.package).into())))
            }
            _ => (StepKind::Url, None),
        };
        PlannedStep { kind, route: Some(route.clone()), object }
    }

    async fn provider_steps(&self, package: Package, requested: &Option<Route>) -> Vec<PlannedStep> {
        let archive = match requested {
            Some(route @ Route::ProviderFile(_)) => Some(route.clone()),
            _ => {
                let set = self.protocols.mirror.proof_sets.proof_set(&package, self.call).await;
                set.ok().map(|set| Route::ProviderFile(set.value.refs(&package).archive))
            }
        };
        let version = Route::MirrorVersion(package.provider.clone(), package.version.clone());
        let set = ExplainedObject::ProofSet(package.clone());
        let archive_object = ExplainedObject::Archive(Artifact::Provider(package.clone()));
        vec![
            PlannedStep::new(StepKind::DownloadDocument, Route::ProviderDownload(package), set.clone()),
            PlannedStep { kind: StepKind::Archive, route: archive, object: Some(archive_object) },
            PlannedStep::new(StepKind::NetworkMirror, version, set),
        ]
    }

    async fn module_steps(&self, package: ModulePackage, requested: &Option<Route>) -> Vec<PlannedStep> {
        let archive = match requested {
            Some(route @ Route::ModuleArchive(_)) => Some(route.clone()),
            _ => match self.protocols.mirror.modules.module_location(&package, self.call).await {
                Ok(Answer { value: ModuleLocation::Local { archive, .. }, .. }) => Some(Route::ModuleArchive(archive)),
                Ok(Answer { value: ModuleLocation::External(_), .. }) | Err(_) => None,
            },
        };
        let location = ExplainedObject::Location(package.clone());
        let archive_object = ExplainedObject::Archive(Artifact::Module(package.clone()));
        vec![
            PlannedStep::new(StepKind::Location, Route::ModuleDownload(package), location),
            PlannedStep { kind: StepKind::Archive, route: archive, object: Some(archive_object) },
        ]
    }

    async fn run_dry(&self, planned: PlannedStep, subject: &Subject) -> Result<ExplainStep, Error> {
        let PlannedStep { kind, route, object } = planned;
        let mirror = &self.protocols.mirror;
        let facts = match object {
            Some(object) => match mirror.operations.facts(&object, self.call).await {
                Err(Error::UnknownHost(_)) => ObjectFacts::default(),
                facts => facts?,
            },
            None => ObjectFacts::default(),
        };
        let requested = route.is_some() && route == subject.requested;
        let Some(route) = route else {
            let (answer, rule) = (ExpectedAnswer::Unknown, Rule::StepBefore);
            return Ok(ExplainStep { step: kind, url: None, requested, answer, rule, facts });
        };
        let path = route.path();
        let view = self.view.filter(|_| View::may_begin(&path));
        let url = Some(format!("{}{}{path}", self.base, view.map(|view| view.to_string()).unwrap_or_default()));
        let is_offline = mirror.runtime.connectivity() == Connectivity::Offline;
        let links = Links { mount: &self.protocols.mount, base: "", view: self.view, proofs: None, now: self.call.now };
        let (answer, rule) = match self.protocols.answer_from_services(&route, self.call, links).await {
            Ok(answer) => {
                let is_listed = self.names_subject(kind, &answer.value, subject).await;
                let rule = match is_listed {
                    true if facts.elsewhere => Rule::Elsewhere,
                    true => rule_of_outcome(&answer, &facts, is_offline, self.call.now),
                    false => Rule::NotListed,
                };
                let cache_status = (self.http.cache_status)(answer.outcome).to_owned();
                (ExpectedAnswer::Served { status: status_of(&answer.value), cache_status }, rule)
            }
            Err(RequestFailure::Mirror(Error::WouldAsk(_))) => (ExpectedAnswer::AsksUpstream, Rule::NotStored),
            Err(failure) => {
                let rule = match &failure {
                    // Offline, no client is sent to another source.
                    RequestFailure::Mirror(Error::Upstream(_)) if facts.elsewhere => Rule::Elsewhere,
                    failure => rule_of_failure(failure, is_offline),
                };
                (self.refused(&failure, Api::of_path(&path)), rule)
            }
        };
        Ok(ExplainStep { step: kind, url, requested, answer, rule, facts })
    }

    fn refused(&self, failure: &RequestFailure, api: Api) -> ExpectedAnswer {
        let (status, reason) = (self.http.failure)(failure, api);
        let explained = failure.explain();
        let remedy = explained.remedy.as_deref().map(safe_text);
        ExpectedAnswer::Refused { status, reason, cause: safe_text(&explained.cause), remedy }
    }

    /// Returns false for a list that does not name the version, or no version to choose, and for a network mirror's list
    /// that does not name the platform.
    async fn names_subject(&self, kind: StepKind, content: &ReplyContent, subject: &Subject) -> bool {
        match (kind, content, &subject.address, &subject.version, &subject.platform) {
            (StepKind::VersionList | StepKind::NetworkMirror, _, _, None, _) => {
                !matches!(subject.choice, Some(VersionChoice::None { .. }))
            }
            (StepKind::VersionList, _, Some(address), Some(version), _) => {
                self.client_versions(address).await.is_ok_and(|list| list.get(version).is_some())
            }
            (StepKind::NetworkMirror, ReplyContent::Document(rendered), _, Some(_), Some(platform)) => {
                #[derive(Deserialize)]
                struct VersionDocument {
                    archives: BTreeMap<String, IgnoredAny>,
                }
                let document: Result<VersionDocument, _> = serde_json::from_slice(&rendered.plain.body);
                document.is_ok_and(|document| document.archives.contains_key(&platform.to_string()))
            }
            _ => true,
        }
    }

    async fn versions(&self, address: &Address) -> Result<VersionSummary, Error> {
        let mut facts = self.protocols.mirror.operations.version_facts(address, self.call).await?;
        let offline = &self.protocols.mirror.offline;
        let (list, hidden) = match offline.client_versions(address, self.call).await {
            Ok(answer) => (Some(answer.value.list), answer.value.hidden),
            Err(_) => (None, Vec::new()),
        };
        let hidden = hidden.iter().map(ToString::to_string).collect();
        let newest = list.as_ref().and_then(|list| {
            let versions = list.versions.iter().map(|listed| &listed.version);
            versions.max_by_key(|version| (!version.is_pre_release(), *version)).map(ToString::to_string)
        });
        let stored_versions = facts.stored.iter().filter(|stored| stored.waits_for.is_empty()).count();
        facts.stored.truncate(MAX_VERSIONS);
        facts.dropped.truncate(MAX_VERSIONS);
        facts.unreadable.truncate(MAX_VERSIONS);
        Ok(VersionSummary { listed: list.map(|list| list.versions.len()), newest, hidden, facts, stored_versions })
    }

    /// The approvals of the version in question, or of all versions.
    async fn approvals(&self, subject: &Subject) -> Result<Vec<Approval>, Error> {
        let Some(address) = &subject.address else { return Ok(Vec::new()) };
        let (address, now) = (self.call.canonical(address), self.call.now);
        let mut approvals =
            self.protocols.mirror.library.on_disk(move |library| library.approvals_of(&address, now)).await?;
        approvals.retain(|approval| subject.version.as_ref().is_none_or(|version| approval.version == *version));
        Ok(approvals)
    }

    /// The alarms about the subject.
    fn alarms(&self, subject: &Subject) -> Vec<Alarm> {
        let Some(address) = &subject.address else { return Vec::new() };
        let canonical = match (address, subject.version.clone()) {
            (Address::Module(module), Some(version)) => {
                let package = ModulePackage { module: module.clone(), version };
                Address::from(&self.protocols.mirror.runtime.artifact_of(&package)).to_string()
            }
            (address, _) => address.to_string(),
        };
        // A question about the address as a whole is about the alarms of every version.
        let named = subject.version.as_ref().filter(|_| !matches!(subject.choice, Some(VersionChoice::Client { .. })));
        let version = named.map(ToString::to_string);
        let is_about = |alarm: &Alarm| {
            alarm.address == canonical && version.as_ref().is_none_or(|version| alarm.version == *version)
        };
        self.protocols.mirror.library.alarms().into_iter().filter(is_about).collect()
    }
}

fn status_of(content: &ReplyContent) -> u16 {
    match content {
        ReplyContent::Document(_) | ReplyContent::File(_) | ReplyContent::Health { .. } | ReplyContent::Home(_) => 200,
        ReplyContent::Location(_) => 204,
        ReplyContent::Redirect(_) => 302,
    }
}

fn rule_of_outcome(answer: &Answer<ReplyContent>, facts: &ObjectFacts, is_offline: bool, now: Timestamp) -> Rule {
    let is_archive = matches!(answer.value, ReplyContent::File(_));
    match answer.outcome {
        Outcome::Hit if is_archive => Rule::Stored,
        Outcome::Hit => Rule::Fresh,
        Outcome::Revalidated => Rule::Revalidated,
        Outcome::Gone => Rule::Gone,
        Outcome::Miss | Outcome::Pending | Outcome::PassedThrough => Rule::NotStored,
        Outcome::Stale if is_offline => Rule::Offline,
        Outcome::Stale => match (&facts.left_alone, &facts.last_answer) {
            (Some(_), _) => Rule::LeftAlone,
            (None, Some(last)) if last.failure.is_some() => Rule::LastAnswerFailed,
            (None, Some(last)) if last.at <= now => Rule::LastAnswerLate,
            (None, _) => Rule::NotConfirmed,
        },
    }
}

fn rule_of_failure(failure: &RequestFailure, is_offline: bool) -> Rule {
    match failure {
        RequestFailure::NoRoute(_) | RequestFailure::Mirror(Error::UnknownHost(_)) => Rule::NoRoute,
        RequestFailure::Mirror(error) => match error {
            Error::Unaccepted { .. } => Rule::WaitsForAccept,
            Error::Refused { .. } => Rule::Policy,
            Error::Offline(_) | Error::WaitsForPlatforms(_) | Error::Sealed(_) => Rule::Offline,
            // A known version on a platform that is not stored.
            Error::NotFound(_) if is_offline => Rule::Offline,
            Error::NotFound(_) => Rule::NotListed,
            Error::Unverified { .. } => Rule::NotVerified,
            Error::Upstream(_) => Rule::LastAnswerFailed,
            Error::Slow(_) => Rule::LastAnswerLate,
            _ => Rule::Own,
        },
    }
}
