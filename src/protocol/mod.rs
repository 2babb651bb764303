//! The client protocols. They turn routes into calls of the mirror, and its answers into replies.

pub mod admin;
pub mod client_config;
pub mod discovery;
mod network_mirror;
pub mod pages;
pub mod registry;
pub mod rendered;
pub mod route;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use self::rendered::{FinishedReply, RenderedAnswer, RenderedAnswers, RenderedDocument, Renderings};
use self::route::{Api, Base, Mount, Origin, Route, RouteContext, RouteError, RouteSubject};
use crate::address::ModulePackage;
use crate::cdn_loop::CdnLoop;
use crate::clock::Timestamp;
use crate::error::{Error, Explanation};
use crate::mirror::{Answer, Archive, ClientAddress, Connectivity, Mirror, Outcome, RequestContext, RuntimeConfig};

/// Answers of at least this size are compressed on a blocking thread.
const LARGE_BODY_BYTES: usize = 64 * 1024;

/// The parts of a request that protocols use.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The path as received, percent-encoded.
    pub path: &'a str,
    /// The query as received, without its question mark.
    pub query: Option<&'a str>,
    /// The Host header, or the authority.
    pub host: Option<&'a str>,
    /// The request's CDN-Loop list.
    pub via: CdnLoop,
    /// The client's address, through trusted proxies.
    pub client: ClientAddress,
    /// The origin at which the client sees larder, where known and needed.
    pub origin: Option<Origin<'a>>,
    /// Time of the request.
    pub now: Timestamp,
    /// The client accepts a body without a length.
    pub takes_unknown_length: bool,
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

/// Content of a reply.
#[derive(Debug)]
pub enum ReplyContent {
    /// A JSON document.
    Document(Arc<RenderedDocument>),
    /// A file whose URL has its digest.
    File(Archive),
    /// The location of a module, for `X-Terraform-Get` (PROTOCOL, section 4.3).
    Location(Arc<str>),
    /// A redirect to another URL of larder: the download of the latest version.
    Redirect(String),
    /// A short text for probes.
    Word {
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
    answers: RenderedAnswers,
    shared_renderings: Renderings,
}

impl Protocols {
    /// Creates the protocols of one configuration. Its settings apply only to clients that the same configuration
    /// admitted. `memory_bytes` is the memory budget for rendered answers.
    pub fn new(
        mirror: Arc<Mirror>,
        runtime_config: Arc<RuntimeConfig>,
        mount: Mount,
        route_context: RouteContext,
        memory_bytes: u64,
    ) -> Self {
        let (answers, shared_renderings) = (RenderedAnswers::up_to(memory_bytes), Renderings::default());
        Self { mirror, runtime_config, mount, route_context, answers, shared_renderings }
    }

    /// Parses a request line.
    pub fn route(&self, request: &Request<'_>) -> Result<Route, RouteError> {
        Route::parse(self.mount.without_prefix(request.path), request.query, request.host, &self.route_context)
    }

    /// Returns true if a Host is an upstream's name under which larder answers (take-over).
    pub fn is_upstream(&self, host: &str) -> bool {
        self.route_context.taken_over(Some(host)).is_some()
    }

    /// The protocol of a request line, even of one without a route.
    pub fn api(&self, request: &Request<'_>) -> Api {
        Api::of_path(self.mount.without_prefix(request.path))
    }

    /// Answers a route.
    pub async fn answer(&self, route: &Route, request: &Request<'_>) -> Result<Reply, RequestFailure> {
        self.mirror.runtime.refuse_loops(&request.via)?;
        let base = match route.has_links() {
            true => self.mount.base(&request.via, request.origin.clone()),
            false => Base::PathAbsolute,
        };
        let revision = match route.subject() {
            Some(RouteSubject::Provider(address)) => self.mirror.library.revision(address),
            Some(RouteSubject::Module(address)) => self.mirror.library.revision_of_module(address),
            Some(RouteSubject::Pages(host)) => self.mirror.library.revision_of_pages(host),
            None => 0,
        };
        if let Some(RenderedAnswer { answer, checked, outcome, .. }) =
            self.answers.fresh(route, &base, revision, request.now)
        {
            let age = matches!(answer, FinishedReply::Document(_) | FinishedReply::Location(_))
                .then(|| request.now.since(checked));
            return Ok(Reply { content: answer.into(), outcome: Some(outcome), age });
        }
        // Boxed, or every hit would reserve the memory of the largest miss.
        Box::pin(self.answer_from_mirror(route, request, &base, revision)).await
    }

    /// Answers with the location of a module version.
    async fn location(
        &self,
        route: &Route,
        package: &ModulePackage,
        request: &Request<'_>,
        links: Links<'_>,
        revision: u64,
        call: &RequestContext,
    ) -> Result<Reply, RequestFailure> {
        let Answer { value, outcome, fresh_until, checked: confirmed_at } =
            registry::module_location(&self.mirror, package, call, links).await?;
        let location: Arc<str> = value.text.into();
        // A location without a digest changes as soon as the archive is stored.
        if value.is_stable && request.now < fresh_until {
            let answer = FinishedReply::Location(Arc::clone(&location));
            let outcome = outcome.when_reused();
            let rendered =
                RenderedAnswer { answer, made: request.now, checked: confirmed_at, fresh_until, revision, outcome };
            self.answers.insert(route, links.base, rendered);
        }
        let age = Some(request.now.since(confirmed_at));
        Ok(Reply { content: ReplyContent::Location(location), outcome: Some(outcome), age })
    }

    /// Answers from the mirror when no rendered answer is in memory.
    async fn answer_from_mirror(
        &self,
        route: &Route,
        request: &Request<'_>,
        base: &Base<'_>,
        revision: u64,
    ) -> Result<Reply, RequestFailure> {
        let Request { now, takes_unknown_length, client, .. } = *request;
        let (config, via) = (Arc::clone(&self.runtime_config), request.via.clone());
        let call = self.mirror.runtime.request_context(now, config, via, Some(client), takes_unknown_length);
        let links = Links { mount: &self.mount, base };
        if let Some(list) = self.list(route, &call).await? {
            return Ok(self.document_reply(route, base, request.now, revision, list));
        }
        let document = match route {
            Route::Health => return Ok(admin::health()),
            Route::Ready => return Ok(admin::readiness(&self.mirror).await),
            Route::ProviderFile(file_ref) => {
                let file = self.mirror.archives.archive(file_ref, &call).await?;
                return Ok(self.file_reply(route, base, revision, file, &call));
            }
            Route::ProofFile(file_ref) => {
                let file = self.mirror.archives.proof_file(file_ref, &call).await?;
                return Ok(self.file_reply(route, base, revision, file, &call));
            }
            Route::ModuleDownload(package) => {
                return self.location(route, package, request, links, revision, &call).await;
            }
            Route::ModuleArchive(file_ref) => {
                let Answer { value, outcome, .. } = self.mirror.modules.module_archive(file_ref, &call).await?;
                return Ok(Reply { content: ReplyContent::File(value), outcome: Some(outcome), age: None });
            }
            Route::ModuleLatest(address) => {
                let Answer { value, outcome, checked, .. } =
                    self.mirror.offline.latest_of_module(address, &call).await?;
                let url = links.url(&Route::ModuleDownload(value).path());
                let age = Some(request.now.since(checked));
                return Ok(Reply { content: ReplyContent::Redirect(url), outcome: Some(outcome), age });
            }
            Route::Page(page) => pages::page(&self.mirror, page, &call, links).await?,
            Route::ModuleVersions(address) => registry::module_versions(&self.mirror, address, &call).await?,
            Route::Discovery(host) => discovery::rewritten_document(&self.mirror, host, &call, links).await?,
            Route::ProviderVersions(address) => registry::provider_versions(&self.mirror, address, &call).await?,
            Route::ProviderDownload(package) => {
                registry::provider_download(&self.mirror, package, &call, links).await?
            }
            Route::MirrorIndex(address) => network_mirror::index(&self.mirror, address, &call).await?,
            Route::MirrorVersion(address, version) => {
                network_mirror::version(&self.mirror, address, version, &call, links).await?
            }
        };
        let Answer { value, outcome, fresh_until, checked } = document;
        let rendered = Answer { value: Arc::new(render(value).await), outcome, fresh_until, checked };
        Ok(self.document_reply(route, base, request.now, revision, rendered))
    }

    /// Answers with a version list as upstream has it, read and rendered once for all waiting clients. `None` for other
    /// routes, and offline, where the list depends on the store.
    async fn list(&self, route: &Route, call: &RequestContext) -> Result<Option<Answer<Arc<RenderedDocument>>>, Error> {
        if self.mirror.runtime.connectivity() == Connectivity::Offline {
            return Ok(None);
        }
        let list = match route {
            Route::ProviderVersions(address) | Route::MirrorIndex(address) => {
                self.mirror.documents.provider_versions(address, call).await?
            }
            Route::ModuleVersions(address) => self.mirror.documents.module_versions(address, call).await?,
            _ => return Ok(None),
        };
        let Answer { value: document, outcome, fresh_until, checked } = list;
        let content_hash = document.content_hash();
        let rendering = match route.clone() {
            Route::ModuleVersions(address) => {
                async move { registry::rendered_module_list(&address, &document).await }.boxed()
            }
            Route::ProviderVersions(address) => {
                async move { registry::rendered_provider_list(&address, &document).await }.boxed()
            }
            Route::MirrorIndex(address) => {
                async move { network_mirror::rendered_index(&address, &document).await }.boxed()
            }
            _ => return Ok(None),
        };
        let value = self.shared_renderings.share(route, content_hash, rendering).await?;
        Ok(Some(Answer { value, outcome, fresh_until, checked }))
    }

    /// The reply for a file named by its digest. A small verified file stays in memory while it is fresh.
    fn file_reply(
        &self,
        route: &Route,
        base: &Base<'_>,
        revision: u64,
        file: Answer<Archive>,
        call: &RequestContext,
    ) -> Reply {
        let Answer { value, outcome, fresh_until, checked } = file;
        if let Archive::InMemory { bytes, digest, stored } = &value
            && call.now < fresh_until
        {
            let answer = FinishedReply::Archive { bytes: bytes.clone(), digest: *digest, stored: *stored };
            let rendered = RenderedAnswer {
                answer,
                made: call.now,
                checked,
                fresh_until,
                revision,
                outcome: outcome.when_reused(),
            };
            self.answers.insert(route, base, rendered);
        }
        Reply { content: ReplyContent::File(value), outcome: Some(outcome), age: None }
    }

    /// The reply for a rendered document, which stays in memory while it is fresh.
    fn document_reply(
        &self,
        route: &Route,
        base: &Base<'_>,
        now: Timestamp,
        revision: u64,
        document: Answer<Arc<RenderedDocument>>,
    ) -> Reply {
        let Answer { value: rendered, outcome, fresh_until, checked } = document;
        // Stored with the revision from before rendering: after a change meanwhile, the next request renders again.
        if now < fresh_until {
            let answer = FinishedReply::Document(Arc::clone(&rendered));
            let cached =
                RenderedAnswer { answer, made: now, checked, fresh_until, revision, outcome: outcome.when_reused() };
            self.answers.insert(route, base, cached);
        }
        Reply { content: ReplyContent::Document(rendered), outcome: Some(outcome), age: Some(now.since(checked)) }
    }
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
    base: &'a Base<'a>,
}

impl Links<'_> {
    fn url(&self, path: &str) -> String {
        self.mount.url(self.base, path)
    }
}
