//! A stand-in for registry.terraform.io: real zips, real SHA256SUMS, real signatures, on a port of 127.0.0.1. It
//! records requests, waits at gates, and fails in a named way. Stops when dropped.

mod api;
mod builder;
mod connection;
mod documents;
mod faults;
mod git;
mod hostile_gzip;
mod modules;
mod package;
mod registry;
mod reply;
mod requests;
mod signing;

use std::sync::Arc;

use http::Response;
use http::header::LAST_MODIFIED;

use self::connection::Listener;
use self::faults::HoldPoint;
use self::package::Release;
use self::registry::{Origin, Registry, State};
use self::reply::Reply;
use super::tls::TestCa;

pub(crate) use self::api::ListedItem;
pub(crate) use self::builder::Builder;
pub(crate) use self::faults::{Fault, Target};
pub(crate) use self::modules::{LocationReply, Module};
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

/// Addresses, start and stop.
impl FakeUpstream {
    /// The default settings: plain http, files at the same origin.
    pub(crate) fn builder() -> Builder {
        Builder::plain()
    }

    /// Starts an upstream with the default settings.
    pub(crate) async fn start() -> Self {
        Self::builder().start().await
    }

    /// `http://127.0.0.1:PORT`.
    pub(crate) fn origin(&self) -> String {
        self.registry_listener.origin()
    }

    /// `127.0.0.1:PORT`, the host part of a provider's source address.
    pub(crate) fn host(&self) -> String {
        self.registry_listener.address().to_string()
    }

    /// The port of the registry.
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

    /// The certificate authority of an upstream with TLS.
    pub(crate) fn ca(&self) -> &TestCa {
        self.ca.as_ref().expect("only a builder with .tls() has an authority")
    }

    /// Stops listening and drops all connections; both ports then refuse connections.
    pub(crate) async fn stop(&mut self) {
        self.registry_listener.stop().await;
        self.stop_releases().await;
    }

    /// Stops the second origin only.
    pub(crate) async fn stop_releases(&mut self) {
        if let Some(listener) = &mut self.releases_listener {
            listener.stop().await;
        }
    }

    /// From now on, new connections are accepted and never get a byte, not even of a TLS handshake.
    pub(crate) fn fall_silent(&self) {
        self.listeners().for_each(|listener| listener.set_silent(true));
    }

    /// From now on, new connections are served again; silent ones stay silent.
    pub(crate) fn end_silence(&self) {
        self.listeners().for_each(|listener| listener.set_silent(false));
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
                listener.start(move |request, connection| Arc::clone(&registry).answer(origin, request, connection));
            }
        }
    }
}

/// The published content.
impl FakeUpstream {
    /// Publishes a provider version; replaces an earlier edition of the version.
    pub(crate) fn publish(&self, provider: Provider) {
        let mut release = Release::build(provider);
        let address = (release.provider.namespace.clone(), release.provider.name.clone());
        self.change(|state| {
            let releases = state.releases.entry(address).or_default();
            let version = &release.provider.version;
            match releases.iter_mut().find(|existing| existing.provider.version == *version) {
                Some(existing) => {
                    release.previous_sums = Some(existing.signed_sums.clone());
                    *existing = release;
                }
                None => releases.push(release),
            }
        });
    }

    /// Removes a version: it is no longer listed, and its URLs are 404.
    pub(crate) fn withdraw(&self, namespace: &str, name: &str, version: &str) {
        self.change(|state| {
            if let Some(releases) = state.releases.get_mut(&(namespace.to_owned(), name.to_owned())) {
                releases.retain(|release| release.provider.version != version);
            }
        });
    }

    /// Serves this response at this path from now on, in place of other content. A response with status 200 has
    /// validators; its Last-Modified is any date unless it has one.
    pub(crate) fn serve(&self, path: &str, response: Response<String>) {
        let (mut parts, body) = response.into_parts();
        let written = parts.headers.remove(LAST_MODIFIED).map(|date| date.to_str().expect("a date").to_owned());
        self.change(|state| {
            let any_date = format!("Tue, 02 Jan 2024 00:00:{:02} GMT", state.changes % 60);
            let reply = Reply {
                status: parts.status,
                headers: parts.headers,
                body: body.into(),
                last_modified: written.or(Some(any_date)),
                supports_ranges: false,
            };
            state.replies.insert(path.to_owned(), reply);
        });
    }

    /// Removes the content that `serve`, `serve_json` or `serve_file` set for this path.
    pub(crate) fn stop_serving(&self, path: &str) {
        self.change(|state| {
            state.replies.remove(path);
        });
    }

    /// Serves a JSON document at this path, as `serve` does.
    pub(crate) fn serve_json(&self, path: &str, json: &str) {
        let response = Response::builder().header("content-type", "application/json");
        self.serve(path, response.body(json.to_owned()).expect("a response"));
    }

    /// Sets the modules and providers that the registry HTTP API lists.
    pub(crate) fn list(&self, modules: &[ListedItem], providers: &[ListedItem]) {
        self.change(|state| {
            (state.api.modules, state.api.providers) = (modules.to_vec(), providers.to_vec());
        });
    }

    /// Makes all signed file URLs of earlier documents invalid: 403.
    pub(crate) fn expire_urls(&self) {
        self.change(|state| state.signature_number += 1);
    }

    /// The published zip, without faults.
    pub(crate) fn archive_bytes(&self, namespace: &str, name: &str, version: &str, platform: &str) -> Vec<u8> {
        self.with_release(namespace, name, version, |release| release.archives[platform].bytes.to_vec())
    }

    /// The published SHA256SUMS, without faults.
    pub(crate) fn sums_bytes(&self, namespace: &str, name: &str, version: &str) -> Vec<u8> {
        self.with_release(namespace, name, version, |release| release.signed_sums.sums.to_vec())
    }

    /// The published signature, without faults.
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

/// Faults and gates.
impl FakeUpstream {
    /// Applies a fault to every answer that the target covers, from now on.
    pub(crate) fn fault(&self, target: Target, fault: Fault) {
        self.registry.state.lock().rules.add(target, fault, false);
    }

    /// Applies a fault to the next answer that the target covers. A HEAD request does not count.
    pub(crate) fn fault_once(&self, target: Target, fault: Fault) {
        self.registry.state.lock().rules.add(target, fault, true);
    }

    /// Ends all faults. Gates stay.
    pub(crate) fn clear_faults(&self) {
        self.registry.state.lock().rules.clear();
    }

    /// Matching answers wait after their headers, before their body.
    pub(crate) fn hold_body(&self, target: Target) -> Gate {
        self.hold_after(target, 0)
    }

    /// Matching answers wait after this many bytes of their body.
    pub(crate) fn hold_after(&self, target: Target, bytes: usize) -> Gate {
        self.registry.state.lock().rules.hold(target, HoldPoint::AfterBodyBytes(bytes))
    }

    /// Matching answers wait before their status line.
    pub(crate) fn hold_headers(&self, target: Target) -> Gate {
        self.registry.state.lock().rules.hold(target, HoldPoint::BeforeHeaders)
    }
}

/// The recorded requests.
impl FakeUpstream {
    /// Every request so far, in order of arrival.
    pub(crate) fn requests(&self) -> Vec<RecordedRequest> {
        self.registry.requests.all()
    }

    /// The number of requests with this path.
    pub(crate) fn count(&self, path: &str) -> usize {
        self.count_where(|request| request.path == path)
    }

    /// The number of requests that the target covers, HEAD included.
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

    /// Forgets the recorded requests, so that all counts start at 0 again.
    pub(crate) fn forget_requests(&self) {
        self.registry.requests.forget();
    }

    /// Resolves once this many requests for the target have arrived, HEAD included.
    pub(crate) async fn wait_for(&self, target: Target, requests: usize) {
        self.registry.requests.wait_for(&target, requests).await;
    }
}
