//! A stand-in for registry.terraform.io: real zips, real SHA256SUMS, real signatures, on a port of 127.0.0.1. It
//! records requests, waits at gates, and fails in a named way. Stops when dropped.

mod answer;
mod api;
mod builder;
mod coded;
mod documents;
mod faults;
mod git;
mod modules;
mod package;
mod reply;
mod requests;
mod signing;
mod wire;

use std::sync::Arc;

use http::Response;

use self::answer::{Origin, Registry, State};
use self::faults::HoldPoint;
use self::package::Release;
use self::reply::Reply;
use self::wire::Listener;
use super::tls::TestCa;

pub(crate) use self::api::Listed;
pub(crate) use self::builder::Builder;
pub(crate) use self::faults::{Fault, Target};
pub(crate) use self::modules::{Module, Telling};
pub(crate) use self::package::{Provider, sha256_hex};
pub(crate) use self::reply::Gate;
pub(crate) use self::requests::RecordedRequest;
pub(crate) use self::signing::SigningKey;

/// A running registry.
pub(crate) struct FakeUpstream {
    registry: Arc<Registry>,
    registry_listener: Listener,
    releases_listener: Option<Listener>,
    ca: Option<TestCa>,
}

/// Where it is, and whether it is there.
impl FakeUpstream {
    /// Plain http, files at the same origin.
    pub(crate) fn builder() -> Builder {
        Builder::plain()
    }

    /// The plainest one.
    pub(crate) async fn start() -> Self {
        Self::builder().start().await
    }

    /// `http://127.0.0.1:PORT`.
    pub(crate) fn origin(&self) -> String {
        self.registry_listener.origin()
    }

    /// `127.0.0.1:PORT`, as a provider's source address begins.
    pub(crate) fn host(&self) -> String {
        self.registry_listener.address().to_string()
    }

    /// The port.
    pub(crate) fn port(&self) -> u16 {
        self.registry_listener.address().port()
    }

    /// The origin of the files.
    pub(crate) fn releases_origin(&self) -> String {
        self.releases_listener.as_ref().unwrap_or(&self.registry_listener).origin()
    }

    /// The service URL of the provider registry protocol.
    pub(crate) fn providers_url(&self) -> String {
        format!("{}/v1/providers/", self.origin())
    }

    /// The service URL of the module registry protocol.
    pub(crate) fn modules_url(&self) -> String {
        format!("{}/v1/modules/", self.origin())
    }

    /// The certificate authority to trust, with TLS.
    pub(crate) fn ca(&self) -> &TestCa {
        self.ca.as_ref().expect("only a builder with .tls() has an authority")
    }

    /// Listens no more and drops all connections: both ports refuse.
    pub(crate) async fn stop(&mut self) {
        self.registry_listener.stop().await;
        self.stop_releases().await;
    }

    /// Only the second origin is gone.
    pub(crate) async fn stop_releases(&mut self) {
        if let Some(listener) = &mut self.releases_listener {
            listener.stop().await;
        }
    }

    /// New connections are accepted and never get a byte, not even of a TLS handshake.
    pub(crate) fn fall_silent(&self) {
        self.listeners().for_each(|listener| listener.mute(true));
    }

    /// New connections are served again; those that met silence stay in it.
    pub(crate) fn speak_again(&self) {
        self.listeners().for_each(|listener| listener.mute(false));
    }

    fn listeners(&self) -> impl Iterator<Item = &Listener> {
        [&self.registry_listener].into_iter().chain(&self.releases_listener)
    }

    /// Listens again at the same ports, with the same content.
    pub(crate) async fn restart(&mut self) {
        for (origin, listener) in
            [(Origin::Registry, Some(&mut self.registry_listener)), (Origin::Releases, self.releases_listener.as_mut())]
        {
            let registry = Arc::clone(&self.registry);
            if let Some(listener) = listener {
                listener.start(move |request, wire| Arc::clone(&registry).answer(origin, request, wire));
            }
        }
    }
}

/// Content.
impl FakeUpstream {
    /// Publishes a version, or publishes it again in place of the one before.
    pub(crate) fn publish(&self, provider: Provider) {
        let mut release = Release::build(provider);
        let address = (release.provider.namespace.clone(), release.provider.name.clone());
        self.change(|state| {
            let releases = state.releases.entry(address).or_default();
            let version = &release.provider.version;
            match releases.iter_mut().find(|before| before.provider.version == *version) {
                Some(before) => {
                    release.previous_sums = Some(before.signed_sums.clone());
                    *before = release;
                }
                None => releases.push(release),
            }
        });
    }

    /// Takes a version away: not listed, and 404.
    pub(crate) fn withdraw(&self, namespace: &str, name: &str, version: &str) {
        self.change(|state| {
            if let Some(releases) = state.releases.get_mut(&(namespace.to_owned(), name.to_owned())) {
                releases.retain(|release| release.provider.version != version);
            }
        });
    }

    /// Answers this path with this page from now on, in place of whatever was there; for discovery documents,
    /// modules, API pages. Has a validator unless the status is not 200.
    pub(crate) fn serve(&self, path: &str, page: Response<String>) {
        let (parts, body) = page.into_parts();
        self.change(|state| {
            let reply = Reply {
                status: parts.status,
                headers: parts.headers,
                body: body.into(),
                last_modified: Some(format!("Tue, 02 Jan 2024 00:00:{:02} GMT", state.changes % 60)),
                can_range: false,
            };
            state.pages.insert(path.to_owned(), reply);
        });
    }

    /// Removes the content of this path.
    pub(crate) fn unserve(&self, path: &str) {
        self.change(|state| {
            state.pages.remove(path);
        });
    }

    /// `serve` of a JSON document.
    pub(crate) fn serve_json(&self, path: &str, json: &str) {
        let page = Response::builder().header("content-type", "application/json");
        self.serve(path, page.body(json.to_owned()).expect("a page"));
    }

    /// Lists these in its HTTP API, in place of those before, and their versions.
    pub(crate) fn list(&self, modules: &[Listed], providers: &[Listed]) {
        self.change(|state| {
            (state.api.modules, state.api.providers) = (modules.to_vec(), providers.to_vec());
        });
    }

    /// Every signed file URL given out so far is 403 from now on.
    pub(crate) fn expire_urls(&self) {
        self.change(|state| state.signature_number += 1);
    }

    /// The true zip.
    pub(crate) fn archive_bytes(&self, namespace: &str, name: &str, version: &str, platform: &str) -> Vec<u8> {
        self.with_release(namespace, name, version, |release| release.archives[platform].bytes.to_vec())
    }

    /// The true SHA256SUMS.
    pub(crate) fn sums_bytes(&self, namespace: &str, name: &str, version: &str) -> Vec<u8> {
        self.with_release(namespace, name, version, |release| release.signed_sums.sums.to_vec())
    }

    /// The true signature.
    pub(crate) fn signature_bytes(&self, namespace: &str, name: &str, version: &str) -> Vec<u8> {
        self.with_release(namespace, name, version, |release| release.signed_sums.signature.to_vec())
    }

    fn with_release<T>(&self, namespace: &str, name: &str, version: &str, read: impl Fn(&Release) -> T) -> T {
        let state = self.registry.state.lock();
        let releases = &state.releases[&(namespace.to_owned(), name.to_owned())];
        let release = releases.iter().find(|release| release.provider.version == version);
        read(release.expect("a version that is published"))
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.registry.state.lock();
        state.changes += 1;
        change(&mut state);
    }
}

/// Faults.
impl FakeUpstream {
    /// From now on.
    pub(crate) fn fault(&self, target: Target, fault: Fault) {
        self.registry.state.lock().rules.add(target, fault, false);
    }

    /// For the next answer that the target covers; a HEAD does not use it up.
    pub(crate) fn fault_once(&self, target: Target, fault: Fault) {
        self.registry.state.lock().rules.add(target, fault, true);
    }

    /// No fault from now on. Gates stay.
    pub(crate) fn heal(&self) {
        self.registry.state.lock().rules.heal();
    }

    /// Matching answers wait after their headers, before their body.
    pub(crate) fn hold(&self, target: Target) -> Gate {
        self.hold_after(target, 0)
    }

    /// Matching answers wait after this many bytes of their body.
    pub(crate) fn hold_after(&self, target: Target, bytes: usize) -> Gate {
        self.registry.state.lock().rules.hold(target, HoldPoint::AfterBodyBytes(bytes))
    }

    /// Matching answers wait before their status line.
    pub(crate) fn hold_silent(&self, target: Target) -> Gate {
        self.registry.state.lock().rules.hold(target, HoldPoint::BeforeHeaders)
    }
}

/// Requests.
impl FakeUpstream {
    /// Every request so far, in order of arrival.
    pub(crate) fn requests(&self) -> Vec<RecordedRequest> {
        self.registry.requests.all()
    }

    /// The number of requests with this path.
    pub(crate) fn count(&self, path: &str) -> usize {
        self.count_where(|request| request.path == path)
    }

    /// The number of requests for this kind of answer, HEAD included.
    pub(crate) fn count_of(&self, target: Target) -> usize {
        self.count_where(|request| target.covers(&request.target, &request.path))
    }

    /// The number of requests for which the predicate holds.
    pub(crate) fn count_where(&self, is_wanted: impl Fn(&RecordedRequest) -> bool) -> usize {
        self.requests().iter().filter(|request| is_wanted(request)).count()
    }

    /// The number of body bytes sent.
    pub(crate) fn bytes_sent(&self) -> u64 {
        self.requests().iter().map(|request| request.bytes_sent).sum()
    }

    /// The number of connections.
    pub(crate) fn connections(&self) -> usize {
        self.listeners().map(Listener::connections).sum()
    }

    /// Counts from nothing again.
    pub(crate) fn forget_requests(&self) {
        self.registry.requests.forget();
    }

    /// Resolves once this many requests for the target have arrived, HEAD included.
    pub(crate) async fn wait_for(&self, target: Target, requests: usize) {
        self.registry.requests.wait_for(&target, requests).await;
    }
}
