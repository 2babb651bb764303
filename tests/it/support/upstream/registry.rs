//! Maps a request to the content that its URL names. `reply` applies the faults.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use parking_lot::Mutex;

use super::api::Api;
use super::connection::ConnectionControl;
use super::documents;
use super::faults::{Fault, Rules, Target};
use super::git::{self, GitHost};
use super::modules::Modules;
use super::package::{Release, SignedSums};
use super::reply::{Reply, ReplyBody};
use super::requests::{RecordedRequest, Requests};
use super::signing::SigningKey;

/// The listener that received a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Registry,
    Releases,
}

/// The form of the file URLs in documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileUrls {
    Plain,
    /// With `?sig=N`, valid while N is the current signature number.
    Signed,
    /// To `/redirect/…`, which answers with this status and a signed URL.
    Redirected(u16),
}

/// The settings that are fixed at the start.
pub(super) struct FixedSettings {
    pub(super) registry_origin: String,
    pub(super) releases_origin: Option<String>,
    pub(super) file_urls: FileUrls,
    pub(super) has_absolute_services: bool,
    pub(super) token: Option<String>,
}

/// The content and the faults, which tests change.
#[derive(Default)]
pub(super) struct State {
    /// The provider versions by namespace and type, in the order of publishing.
    pub(super) releases: BTreeMap<(String, String), Vec<Release>>,
    pub(super) modules: Modules,
    pub(super) git: Option<GitHost>,
    /// Replies that tests set for a path, in place of other content.
    pub(super) replies: BTreeMap<String, Reply>,
    pub(super) api: Api,
    pub(super) rules: Rules,
    /// The number in valid `?sig=` URLs.
    pub(super) signature_number: u64,
    /// Counts changes, for Last-Modified.
    pub(super) changes: u64,
}

/// The content of both listeners.
pub(super) struct Registry {
    pub(super) settings: FixedSettings,
    pub(super) state: Mutex<State>,
    pub(super) requests: Requests,
}

impl Registry {
    pub(super) async fn answer(
        self: Arc<Self>,
        origin: Origin,
        request: Request<Incoming>,
        connection: Arc<ConnectionControl>,
    ) -> Response<ReplyBody> {
        let path = request.uri().path().to_owned();
        let query = request.uri().query().unwrap_or_default().to_owned();
        let target = target_of(&path);
        let progress = self.requests.record(RecordedRequest {
            method: request.method().to_string(),
            path: path.clone(),
            query: query.clone(),
            headers: request.headers().clone(),
            target: target.clone(),
            status: None,
            bytes_sent: 0,
        });
        let (parts, body) = request.into_parts();
        let (method, headers) = (parts.method.clone(), parts.headers.clone());
        let (mut reply, active, git) = {
            let mut state = self.state.lock();
            let active = state.rules.take_matching(&target, &path, &method);
            let reply = match self.is_refused(&target, &headers) {
                true => Reply::new(401, "application/json", "{\"errors\":[\"Unauthorized\"]}"),
                false => self.content(&state, origin, &path, &query, &active.all),
            };
            (reply, active, state.git.clone().filter(|_| target == Target::Git))
        };
        if let Some(git) = git {
            // The git backend reports an incomplete body itself.
            let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            reply = git.answer(parts, body).await;
        }
        reply.supports_ranges =
            matches!(target, Target::Sums | Target::Signature | Target::Archive | Target::ModuleArchive);
        let reply = reply.finish(&path, &query, &headers, &active.matching);
        reply.send(&method, active, progress, connection).await
    }

    fn is_refused(&self, target: &Target, headers: &HeaderMap) -> bool {
        use Target::{Discovery, Document, Location, ModuleVersions, Versions};
        let is_api = matches!(target, Discovery | Versions | Document | ModuleVersions | Location);
        let Some(token) = self.settings.token.as_ref().filter(|_| is_api) else {
            return false;
        };
        headers.get(AUTHORIZATION).is_none_or(|authorization| *authorization != format!("Bearer {token}"))
    }

    fn content(&self, state: &State, origin: Origin, path: &str, query: &str, faults: &[Fault]) -> Reply {
        if let Some(reply) = state.replies.get(path) {
            return reply.clone();
        }
        let has_files = self.settings.releases_origin.is_none() || origin == Origin::Releases;
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        let found = match parts.as_slice() {
            ["releases", ..] if has_files => return self.file(state, path, query, faults),
            ["redirect", tail @ ..] if has_files => {
                let location = format!("/releases/{}?sig={}", tail.join("/"), state.signature_number);
                let FileUrls::Redirected(status) = self.settings.file_urls else {
                    return Reply::not_found();
                };
                return Reply::redirect(status, &location);
            }
            _ if origin == Origin::Releases => None,
            ["v1", "modules", tail @ ..] => {
                let found = state.modules.answer(tail).or_else(|| state.api.page(path, query));
                return found.map_or_else(Reply::not_found, |reply| dated(state, reply));
            }
            [".well-known", "terraform.json"] => {
                let prefix = match self.settings.has_absolute_services {
                    true => self.settings.registry_origin.as_str(),
                    false => "",
                };
                Some(documents::discovery(prefix))
            }
            ["v1", "providers", namespace, name, "versions"] => releases(state, namespace, name)
                .map(|releases| documents::versions(&releases.iter().collect::<Vec<_>>())),
            ["v1", "providers", namespace, name, version, "download", os, arch] => {
                let release = releases(state, namespace, name)
                    .and_then(|releases| releases.iter().find(|release| release.provider.version == *version));
                release.and_then(|release| {
                    let url = |file: &str| self.file_url(state, &format!("{}{file}", release.folder()));
                    documents::download(release, &format!("{os}_{arch}"), url, faults)
                })
            }
            _ => None,
        };
        match found {
            Some(json) => dated(state, Reply::new(200, "application/json", json)),
            None => state.api.page(path, query).map_or_else(Reply::not_found, |reply| dated(state, reply)),
        }
    }

    /// The URL under which documents name the file at this path.
    fn file_url(&self, state: &State, path: &str) -> String {
        let settings = &self.settings;
        let origin = settings.releases_origin.as_ref().unwrap_or(&settings.registry_origin);
        match settings.file_urls {
            FileUrls::Plain => format!("{origin}{path}"),
            FileUrls::Signed => format!("{origin}{path}?sig={}", state.signature_number),
            FileUrls::Redirected(_) => {
                format!("{origin}{}", path.replacen("/releases/", "/redirect/", 1))
            }
        }
    }

    fn file(&self, state: &State, path: &str, query: &str, faults: &[Fault]) -> Reply {
        let is_signed = self.settings.file_urls != FileUrls::Plain;
        let valid_signature = format!("sig={}", state.signature_number);
        if is_signed && !query.split('&').any(|parameter| parameter == valid_signature) {
            return Reply::new(403, "application/xml", "<Error><Code>AccessDenied</Code></Error>");
        }
        let found = state.releases.values().flatten().find_map(|release| {
            let file = path.strip_prefix(release.folder().as_str())?;
            let SignedSums { sums, signature } = signed_sums(release, faults);
            if file == release.sums_name() {
                return Some(("text/plain", sums));
            }
            if file.strip_suffix(".sig") == Some(release.sums_name().as_str()) {
                return Some(("application/octet-stream", signature));
            }
            let archive = release.archives.values().find(|archive| archive.filename == file)?;
            Some(("application/zip", archive.bytes.clone()))
        });
        match found {
            Some((content_type, bytes)) => dated(state, Reply::new(200, content_type, bytes)),
            None => Reply::not_found(),
        }
    }
}

fn releases<'a>(state: &'a State, namespace: &str, name: &str) -> Option<&'a Vec<Release>> {
    state.releases.get(&(namespace.to_owned(), name.to_owned()))
}

/// SHA256SUMS and signature of a release, as the active faults change them.
fn signed_sums(release: &Release, faults: &[Fault]) -> SignedSums {
    let mut signed = release.signed_sums.clone();
    for fault in faults {
        match fault {
            Fault::OldSums => {
                let previous = release.previous_sums.clone();
                signed = previous.expect("OldSums needs a version that was published twice");
            }
            Fault::ArchiveNotInSums => {
                signed.sums = release.sums_without_archives();
                signed.signature = release.provider.signing_key.sign(&signed.sums).into();
            }
            Fault::SumsChangedAfterSigning => {
                signed.sums = [&signed.sums[..], b"00  afterthought.zip\n"].concat().into();
            }
            Fault::SignedByAnotherKey => {
                signed.signature = Bytes::from(SigningKey::new_key().sign(&signed.sums));
            }
            _ => {}
        }
    }
    signed
}

/// Sets Last-Modified to a time that grows with the number of changes.
fn dated(state: &State, mut reply: Reply) -> Reply {
    let (minute, second) = (state.changes / 60 % 60, state.changes % 60);
    reply.last_modified = Some(format!("Mon, 01 Jan 2024 00:{minute:02}:{second:02} GMT"));
    reply
}

fn target_of(path: &str) -> Target {
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    match parts.as_slice() {
        [".well-known", "terraform.json"] => Target::Discovery,
        ["v1", "providers", _, _, "versions"] => Target::Versions,
        ["v1", "providers", _, _, _, "download", _, _] => Target::Document,
        ["v1", "modules", _, _, _, "versions"] => Target::ModuleVersions,
        ["v1", "modules", _, _, _, _, "download"] => Target::Location,
        ["files", ..] => Target::ModuleArchive,
        _ if git::is_of_repository(path) => Target::Git,
        ["releases", .., file] if file.ends_with("_SHA256SUMS") => Target::Sums,
        ["releases", .., file] if file.ends_with(".sig") => Target::Signature,
        ["releases", ..] => Target::Archive,
        _ => Target::Other,
    }
}
