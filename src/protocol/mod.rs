//! The client protocols. They turn routes into calls of the mirror, and its answers into replies.

pub mod admin;
pub mod client_config;
mod complete_hashes;
pub mod explain;
mod home;
pub mod linked_providers;
mod network_mirror;
pub mod pages;
pub mod registry;
pub mod rendered;
pub mod rights;
pub mod route;
pub mod run;
pub mod view;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

pub use self::home::HomeConfig;
use self::rendered::{
    AgesBasis, AnswerBasis, FinishedReply, KnownPath, RenderedAnswer, RenderedAnswers, RenderedDocument, RenderedList,
    Renderings, path_of,
};
use self::rights::{ArchiveUrls, BadArchiveUrl, Rights, RightsClass, split_url_token};
use self::route::{Api, Mount, Route, RouteContext, RouteError, RouteSubject};
use self::run::RunId;
use self::view::View;
use crate::address::Address;
use crate::cdn_loop::CdnLoop;
use crate::clock::Timestamp;
use crate::error::Error;
use crate::explanation::Explanation;
use crate::mirror::{
    Answer, Archive, ClientAddress, ClientList, Connectivity, Mirror, Outcome, RequestContext, RuntimeConfig,
};
use crate::store::Standing;

/// Answers of at least this size are compressed on a blocking thread.
const LARGE_BODY_BYTES: usize = 64 * 1024;

/// The parts of a request that protocols use.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The path as received, percent-encoded, without the prefix of a run.
    pub path: &'a str,
    /// The `larder run` whose client sent the request.
    pub run: Option<RunId>,
    /// The view that the path names.
    pub view: Option<View>,
    /// The proof in the URL of an archive.
    pub url_token: Option<&'a str>,
    /// The rights of the client.
    pub rights: Rights,
    /// The query as received, without its question mark.
    pub query: Option<&'a str>,
    /// The Host header, or the authority.
    pub host: Option<&'a str>,
    /// The request's CDN-Loop list.
    pub cdn_loop: CdnLoop,
    /// The client's address, through trusted proxies.
    pub client: ClientAddress,
    /// The origin at which the client sees larder, where known and needed: `https://mirror.example`.
    pub origin: Option<Arc<str>>,
    /// Time of the request.
    pub now: Timestamp,
    /// The client accepts a body without a length.
    pub takes_unknown_length: bool,
}

/// The target of a request line.
#[derive(Debug)]
pub struct Target {
    /// The route.
    pub route: Arc<Route>,
    /// The rendered answers for it.
    known: Option<Arc<KnownPath>>,
}

/// An answer that is not HTTP yet.
#[derive(Debug)]
pub struct Reply {
    /// The content.
    pub content: ReplyContent,
    /// The cache outcome; `None` where the mirror was not involved.
    pub outcome: Option<Outcome>,
    /// Time since upstream last confirmed the document; `None` for archives and texts of larder.
    pub age: Option<Duration>,
}

impl Reply {
    fn of(answer: Answer<ReplyContent>, now: Timestamp) -> Self {
        let Answer { value: content, outcome, checked, .. } = answer;
        let age = (!matches!(content, ReplyContent::File(_))).then(|| now.since(checked));
        Self { content, outcome: Some(outcome), age }
    }
}

/// The facts of a request that decide its answer, besides its path: caches must tell such requests apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VariesBy {
    /// None.
    Nothing,
    /// The host that the client addressed: paths at the root of a host are those of one registry.
    Host,
    /// The list of proxies: a larder among them gets links without an origin.
    Proxies,
    /// The origin at which the client sees larder: the host that it addressed, or what proxies say.
    Origin,
    /// The client, who authenticated: its answers are for no other.
    Client,
}

/// Content of a reply.
#[derive(Debug)]
pub enum ReplyContent {
    /// A JSON document.
    Document(Arc<RenderedDocument>),
    /// A file whose URL has its digest.
    File(Archive),
    /// The location of a module, for `X-Terraform-Get` (module registry protocol).
    Location(Arc<str>),
    /// A redirect to another URL of larder: the download of the latest version.
    Redirect(String),
    /// The page for browsers.
    Home(HomeConfig),
    /// A short text for probes.
    Health {
        /// True if ready.
        is_ready: bool,
        /// The text.
        text: &'static str,
    },
}

impl From<FinishedReply> for ReplyContent {
    fn from(finished: FinishedReply) -> Self {
        match finished {
            FinishedReply::Document(rendered) => Self::Document(rendered),
            FinishedReply::Location(location) => Self::Location(location),
            FinishedReply::Archive { bytes, digest, stored } => Self::File(Archive::InMemory { bytes, digest, stored }),
        }
    }
}

impl FinishedReply {
    /// The content that can be sent again: a document, a location, or a small archive that was checked when it was read.
    fn of(content: &ReplyContent) -> Option<Self> {
        match content {
            ReplyContent::Document(rendered) => Some(Self::Document(Arc::clone(rendered))),
            ReplyContent::Location(location) => Some(Self::Location(Arc::clone(location))),
            ReplyContent::File(Archive::InMemory { bytes, digest, stored }) => {
                Some(Self::Archive { bytes: bytes.clone(), digest: *digest, stored: *stored })
            }
            ReplyContent::File(_) | ReplyContent::Redirect(_) | ReplyContent::Home(_) | ReplyContent::Health { .. } => {
                None
            }
        }
    }
}

/// The failure of a request.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RequestFailure {
    /// The request line has no route.
    #[error(transparent)]
    NoRoute(#[from] RouteError),
    /// The mirror could not answer.
    #[error(transparent)]
    Mirror(#[from] Error),
}

impl RequestFailure {
    /// Returns the subject, cause and remedy of the failure.
    pub fn explain(&self) -> Explanation {
        match self {
            Self::NoRoute(RouteError::Malformed(reason) | RouteError::Unknown(reason)) => Explanation::of(reason),
            Self::NoRoute(RouteError::UnknownHost(host)) => Error::UnknownHost(host.clone()).explain(),
            Self::NoRoute(RouteError::Misdirected { explanation, .. }) => explanation.clone(),
            Self::Mirror(error) => error.explain(),
        }
    }
}

/// The protocols over one mirror.
#[derive(Debug)]
pub struct Protocols {
    mirror: Arc<Mirror>,
    runtime_config: Arc<RuntimeConfig>,
    mount: Mount,
    route_context: RouteContext,
    /// The URLs of archives for clients that authenticate; `None` where none needs to.
    archive_urls: Option<Arc<ArchiveUrls>>,
    answers: RenderedAnswers,
    shared_renderings: Renderings,
}

/// The part of the memory for rendered answers that the last renderings of lists, and stale lists, get besides.
const STALE_SHARE: u64 = 4;

impl Protocols {
    /// Creates the protocols of one configuration. Its settings apply only to clients that the same configuration
    /// admitted. `memory_bytes` is the memory budget for rendered answers.
    pub fn new(
        mirror: Arc<Mirror>,
        runtime_config: Arc<RuntimeConfig>,
        mount: Mount,
        route_context: RouteContext,
        archive_urls: Option<Arc<ArchiveUrls>>,
        memory_bytes: u64,
    ) -> Self {
        // Both share the bytes of a document that is in both, so the second budget is only for stale ones.
        let (answers, shared_renderings) =
            (RenderedAnswers::up_to(memory_bytes), Renderings::up_to(memory_bytes / STALE_SHARE));
        Self { mirror, runtime_config, mount, route_context, archive_urls, answers, shared_renderings }
    }

    /// Finds the target of a request line, and notes its view and the proof in its path. Returns the protocol of its path even
    /// without a route.
    pub fn target<'a>(&self, request: &mut Request<'a>) -> (Result<Target, RouteError>, Api) {
        let path: &'a str = request.path;
        let path = self.mount.without_prefix(path);
        let (url_token, path) = split_url_token(path);
        request.url_token = url_token;
        let path = &*path;
        if request.query.is_none()
            && let Some(known) = self.answers.known(path)
        {
            request.view = known.view();
            let (route, api) = (Arc::clone(known.route()), known.api());
            return (Ok(Target { route, known: Some(known) }), api);
        }
        let below_view = match View::split(path) {
            Ok((view, below)) => {
                request.view = view;
                below
            }
            Err(error) => return (Err(error), Api::Registry),
        };
        let route = Route::parse(below_view, request.query, request.host, &self.route_context);
        let target = route.map(|route| {
            // The client may have written the path in another way.
            let known = self.answers.known(&path_of(&route, request.view));
            Target { route: Arc::new(route), known }
        });
        (target, Api::of_path(below_view))
    }

    /// The rights that the proof in the URL of an archive gives to whoever has it. `None` for a request without one, or where
    /// no client needs to authenticate.
    ///
    /// # Errors
    /// The proof does not count.
    pub fn rights_of_url(
        &self,
        route: &Route,
        request: &Request<'_>,
    ) -> Option<Result<Arc<RightsClass>, BadArchiveUrl>> {
        let (urls, token) = (self.archive_urls.as_ref()?, request.url_token?);
        Some(urls.check(token, &route.path(), request.now))
    }

    /// Returns true if a Host is an upstream's name under which larder answers (take-over).
    pub fn is_upstream(&self, host: &str) -> bool {
        self.route_context.taken_over(Some(host)).is_some()
    }

    /// The standing of this replica: its answers may be behind those of others.
    pub fn standing(&self) -> Standing {
        self.mirror.library.standing()
    }

    /// The facts of a request that decide its answer, besides its path. `may_know_origin` says whether requests of this kind
    /// can have an [origin](Request::origin).
    pub fn varies_by(&self, route: &Route, request: &Request<'_>, may_know_origin: bool) -> VariesBy {
        let is_at_root = Route::is_at_root(self.mount.without_prefix(request.path));
        let has_links = route.has_links() && request.run.is_none();
        match (has_links && self.mount.is_configured(), is_at_root) {
            (true, true) => VariesBy::Origin,
            (true, false) => VariesBy::Proxies,
            (false, _) if has_links && may_know_origin => VariesBy::Origin,
            (false, true) => VariesBy::Host,
            (false, false) => VariesBy::Nothing,
        }
    }

    /// Answers a route.
    pub async fn answer(&self, target: &Target, request: &Request<'_>) -> Result<Reply, RequestFailure> {
        let route = &target.route;
        self.mirror.runtime.refuse_loops(&request.cdn_loop)?;
        if let Some(run) = request.run.filter(|_| route.has_links()) {
            // The links are paths below those of the run, whatever the public URL: its client asks the listener itself. They
            // are of use to one run alone, so the answer is not kept.
            return Box::pin(self.answer_from_mirror(route, request, &run.base(), None)).await;
        }
        let base = match route.has_links() {
            true => self.mount.base(&request.cdn_loop, request.origin.as_deref()),
            false => "",
        };
        let generation = match route.subject() {
            Some(RouteSubject::Provider(address)) => self.mirror.library.generation(address),
            Some(RouteSubject::Module(address)) => self.mirror.library.generation_of_module(address),
            Some(RouteSubject::Pages(host)) => self.mirror.library.generation_of_pages(host),
            None => 0,
        };
        let basis = AnswerBasis { generation, closings: self.runtime_config.outbound.backoff.closings() };
        // A class of rights counts as a base of its own: so their number in memory has a limit, too.
        let variant = match request.rights.class() {
            None => Cow::Borrowed(base),
            Some(class) if base.is_empty() => Cow::Borrowed(class.tag()),
            Some(class) => Cow::Owned([base, class.tag()].concat()),
        };
        let fresh = target.known.as_ref().and_then(|known| known.fresh(&variant, basis, request.now));
        if let Some(answer) = fresh {
            return Ok(Reply::of(answer.map(ReplyContent::from), request.now));
        }
        // Boxed, or every hit would reserve the memory of the largest miss.
        Box::pin(self.answer_from_mirror(route, request, base, Some((basis, &variant)))).await
    }

    /// Answers from the mirror when no rendered answer is in memory. Keeps the answer for the variant in `kept`, if there is one.
    async fn answer_from_mirror(
        &self,
        route: &Arc<Route>,
        request: &Request<'_>,
        base: &str,
        kept: Option<(AnswerBasis, &str)>,
    ) -> Result<Reply, RequestFailure> {
        let Request { now, takes_unknown_length, client, .. } = *request;
        let (mirror, config, cdn_loop) = (&self.mirror, Arc::clone(&self.runtime_config), request.cdn_loop.clone());
        let call = mirror.runtime.request_context(now, config, cdn_loop, Some(client), takes_unknown_length);
        let call = call.limited_to(request.rights.limit(View::limits_of(request.view)));
        let proofs = self.archive_urls.as_deref().zip(request.rights.class());
        let links = Links { mount: &self.mount, base, view: request.view, proofs, now };
        let answer = match &**route {
            Route::Health => return Ok(admin::health()),
            Route::Ready => return Ok(Box::pin(admin::readiness(mirror)).await),
            Route::Home => return Ok(Box::pin(home::reply(mirror, links, self.archive_urls.is_some())).await?),
            route => self.answer_from_services(route, &call, links).await?,
        };
        // Stored with the state from before rendering: after a change meanwhile, the next request renders again.
        if now < answer.fresh_until
            && let Some((basis, variant)) = kept
            && let Some(value) = FinishedReply::of(&answer.value)
        {
            let Answer { outcome, checked, .. } = answer;
            let end = match route.subject().and_then(RouteSubject::address) {
                Some(address) => mirror.documents.first_end_of_approval(&address, &call).await?,
                None => None,
            };
            let end_of_urls = proofs.map(|_| ArchiveUrls::fresh_until(now));
            let ends = end.into_iter().chain(end_of_urls);
            let fresh_until = ends.fold(answer.fresh_until, Timestamp::min);
            let answer = Answer { value, outcome: outcome.when_reused(), fresh_until, checked };
            self.answers.insert(route, request.view, variant, RenderedAnswer { answer, made: now, basis });
        }
        Ok(Reply::of(answer, now))
    }

    /// Answers a route by the services of the mirror, for a client or for a dry run.
    async fn answer_from_services(
        &self,
        route: &Route,
        call: &RequestContext,
        links: Links<'_>,
    ) -> Result<Answer<ReplyContent>, RequestFailure> {
        let mirror = &self.mirror;
        // Boxed, or each client that waits for a list would take the memory of the largest of these.
        Ok(match route {
            Route::Health | Route::Ready | Route::Home => {
                return Err(
                    RouteError::Unknown("a probe and the home page have no answer of the mirror".to_owned()).into()
                );
            }
            Route::ProviderFile(target) => {
                Box::pin(mirror.archives.archive(target, call)).await?.map(ReplyContent::File)
            }
            Route::ProofFile(target) => {
                let file = Box::pin(mirror.proof_sets.proof_file(target, call)).await?;
                file.map(|file| ReplyContent::File(file.into()))
            }
            Route::ModuleArchive(target) => {
                let archive = Box::pin(mirror.modules.module_archive(target, call)).await?;
                // Read from the store each time.
                Answer { fresh_until: call.now, ..archive.map(ReplyContent::File) }
            }
            Route::ModuleDownload(package) => {
                let location = Box::pin(registry::module_location(mirror, package, call, links)).await?;
                location.map(|text| ReplyContent::Location(text.into()))
            }
            Route::ModuleLatest(module) => {
                let latest = Box::pin(mirror.offline.latest_of_module(module, call)).await?;
                latest.map(|package| ReplyContent::Redirect(links.url(&Route::ModuleDownload(package).path())))
            }
            Route::Versions(address) => self.list(route, address, registry::render_list, call).await?,
            Route::MirrorIndex(provider) => {
                self.list(route, &provider.into(), network_mirror::render_index, call).await?
            }
            Route::Page(page) => document(Box::pin(pages::page(mirror, page, call, links)).await?).await,
            Route::Discovery(host) => document(Box::pin(registry::discovery(mirror, host, call, links)).await?).await,
            Route::ProviderDownload(package) => {
                document(Box::pin(registry::provider_download(mirror, package, call, links)).await?).await
            }
            Route::MirrorVersion(provider, version) => {
                document(Box::pin(network_mirror::version(mirror, provider, version, call, links)).await?).await
            }
        })
    }

    /// Answers with a version list. Online it is as upstream has it, read and rendered once for all waiting clients.
    /// Offline it depends on the store.
    async fn list(
        &self,
        route: &Route,
        address: &Address,
        render_list: fn(&ClientList) -> serde_json::Result<Vec<u8>>,
        call: &RequestContext,
    ) -> Result<Answer<ReplyContent>, Error> {
        if self.mirror.runtime.connectivity() == Connectivity::Offline {
            let list = self.mirror.offline.client_versions(address, call).await?;
            let body = render_list(&list.value).map_err(|e| Error::unreadable_list(address, e))?;
            let rendered = RenderedDocument { hidden: list.value.hidden.as_slice().into(), ..render(body).await };
            return Ok(list.map(|_| ReplyContent::Document(Arc::new(rendered))));
        }
        call.access().permit_any(address)?;
        let list = self.mirror.documents.get(address, call).await?;
        // From before: what the ages change meanwhile makes a rendering of another generation.
        let generation = self.mirror.library.generation_of_address(&call.canonical(address));
        let access = self.mirror.documents.access_to(address, call).await?;
        let basis = || AgesBasis::new(call, generation, access.first_end_of_approval());
        let ages = access.needs_ages().then(basis);
        let (document, address) = (Arc::clone(&list.value), address.clone());
        let rendering = async move {
            let list = document
                .versions((&address).into())
                .await
                .map_err(|reason| Error::unreadable_list(&address, reason))?;
            let list = access.permitted(list)?;
            let body = render_list(&list).map_err(|e| Error::unreadable_list(&address, e))?;
            Ok(RenderedList { body, hidden: list.hidden })
        };
        let rendered = self.shared_renderings.share(route, &list, ages.clone(), rendering).await?;
        let fresh_until = ages.map_or(list.fresh_until, |_| list.fresh_until.min(call.now.after(AgesBasis::LIFETIME)));
        Ok(Answer { fresh_until, ..list.map(|_| ReplyContent::Document(rendered)) })
    }
}

/// Makes the reply of a document from its body.
async fn document(body: Answer<Vec<u8>>) -> Answer<ReplyContent> {
    let Answer { value, outcome, fresh_until, checked } = body;
    let rendered = Arc::new(render(value).await);
    Answer { value: ReplyContent::Document(rendered), outcome, fresh_until, checked }
}

/// Compresses an answer; a large one on a blocking thread.
async fn render(body: Vec<u8>) -> RenderedDocument {
    if body.len() < LARGE_BODY_BYTES {
        return RenderedDocument::new(body);
    }
    let plain = body.clone();
    tokio::task::spawn_blocking(move || RenderedDocument::new(body))
        .await
        .unwrap_or_else(|_| RenderedDocument::plain(plain))
}

/// Writes larder's URLs in one answer.
#[derive(Debug, Clone, Copy)]
struct Links<'a> {
    mount: &'a Mount,
    base: &'a str,
    /// The view of the client, which it keeps on registry and mirror routes.
    view: Option<View>,
    /// The proofs in the URLs of archives, for clients of a class of rights.
    proofs: Option<(&'a ArchiveUrls, &'a RightsClass)>,
    now: Timestamp,
}

impl Links<'_> {
    /// The URL of an archive.
    fn archive(&self, route: &Route) -> String {
        let path = route.path();
        match self.proofs {
            Some((urls, class)) => self.url(&urls.signed(class, &path, self.now)),
            None => self.url(&path),
        }
    }

    fn url(&self, path: &str) -> String {
        url_in_view(self.mount, self.base, self.view, path)
    }
}

/// The URL of one of our paths for a client with this view.
fn url_in_view(mount: &Mount, base: &str, view: Option<View>, path: &str) -> String {
    match view.filter(|_| View::may_begin(path)) {
        Some(view) => mount.url(base, &format!("{view}{path}")),
        None => mount.url(base, path),
    }
}
