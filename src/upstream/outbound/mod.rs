//! The one way out. Every request to anybody leaves here: redirects by hand, time and size limits,
//! few retries, credentials only where they belong, and nothing at all when offline.

mod documents;
mod files;
mod hops;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::sync::Semaphore;
use url::Url;

pub(super) use self::hops::Arrived;
use super::Traffic;
use super::ask::{Ask, Asker};
use super::bounds::{Bounds, GitLimits};
use super::breaker::Origin;
use super::clients::{Clients, Unbuildable};
use super::error::{Fault, UpstreamError};
use super::guard::Guard;
use super::permits::{Permit, Permits};
use super::restraint::{Leave, Rates, Restraint, Spends};
use crate::address::Hostname;
use crate::cdn_loop::OwnEntry;
use crate::clock::Timestamp;
use crate::config;

const CDN_LOOP: HeaderName = HeaderName::from_static("cdn-loop");

/// Whether anything may go out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// Upstreams may be asked.
    Online,
    /// Sealed: nothing leaves.
    Offline,
}

/// The connector.
#[derive(Debug)]
pub struct Outbound {
    pub(super) clients: Clients,
    pub(super) guard: Guard,
    /// What its own configuration says.
    link: Link,
    /// Whether all are sealed, those of earlier configurations too (promise 12).
    sealed: Arc<AtomicBool>,
    own: OwnEntry,
    pub(super) traffic: Traffic,
    pub(super) restraint: Restraint,
    pub(super) document_permits: Permits,
    pub(super) archive_permits: Permits,
    bodies: Arc<Semaphore>,
    /// The jobs of git's code.
    pub(super) git_permits: Permits,
    /// Those that only ask for names.
    pub(super) look_permits: Permits,
    pub(super) git_limits: GitLimits,
}

impl Outbound {
    /// Builds the connector: trust, addresses, proxies from the environment.
    pub fn new(
        network: &config::Network,
        upstreams: &[config::Upstream],
        own: OwnEntry,
        traffic: Traffic,
        bounds: Bounds,
    ) -> Result<Self, Unbuildable> {
        upstreams.iter().for_each(|upstream| traffic.expect(&upstream.host));
        let restraint = Restraint::new(Rates { revalidations: bounds.budget, jobs: bounds.jobs });
        let (clients, guard, link) = ways_out(network, upstreams)?;
        Ok(Self {
            clients,
            guard,
            link,
            sealed: Arc::new(AtomicBool::new(link == Link::Offline)),
            own,
            traffic,
            restraint,
            document_permits: Permits::new(bounds.documents),
            archive_permits: Permits::new(bounds.archives),
            bodies: Arc::new(Semaphore::new(bounds.bodies_kib as usize)),
            git_permits: Permits::new(bounds.git_jobs),
            look_permits: Permits::new(bounds.git_looks),
            git_limits: bounds.git,
        })
    }

    /// The connector of another configuration: what is under way, and who is left alone, counts for both. Whether
    /// anything may go out is as before until it [comes into force](Self::come_into_force).
    ///
    /// # Errors
    /// [`Unbuildable`], as ever.
    pub fn renewed(&self, network: &config::Network, upstreams: &[config::Upstream]) -> Result<Self, Unbuildable> {
        let (clients, guard, link) = ways_out(network, upstreams)?;
        upstreams.iter().for_each(|upstream| self.traffic.expect(&upstream.host));
        Ok(Self {
            clients,
            guard,
            link,
            sealed: Arc::clone(&self.sealed),
            own: self.own.clone(),
            traffic: self.traffic.clone(),
            restraint: self.restraint.clone(),
            document_permits: self.document_permits.clone(),
            archive_permits: self.archive_permits.clone(),
            bodies: Arc::clone(&self.bodies),
            git_permits: self.git_permits.clone(),
            look_permits: self.look_permits.clone(),
            git_limits: self.git_limits,
        })
    }

    /// From now on nothing goes out, or all may, as its own configuration has it: also through those of earlier ones,
    /// which what is under way still asks with.
    pub fn come_into_force(&self) {
        self.sealed.store(self.link == Link::Offline, Ordering::SeqCst);
    }

    /// Leave to ask these origins about what is held; none while one of them is left alone. `by` is the leave of the
    /// work that this is a part of.
    pub fn leave(&self, origins: &[Origin], by: &Leave, now: Timestamp) -> Option<Leave> {
        self.restraint.leave(origins, by, now)
    }

    /// Takes requests out of an upstream's budget; says whether there were so many left.
    pub fn spend(&self, upstream: &Hostname, on: Spends, requests: u32, now: Timestamp) -> bool {
        self.restraint.spend(upstream, on, requests, now)
    }

    /// Until when one of these origins has asked to be left alone, or any other that the upstream led to.
    pub fn asked_to_wait(&self, upstream: &Hostname, origins: &[Origin], now: Timestamp) -> Option<Timestamp> {
        self.restraint.asked_to_wait(upstream, origins, now)
    }

    /// Tells that somebody waited for these origins for as long as `patience`, and waits no more.
    pub fn out_of_patience(&self, upstream: &Hostname, origins: &[Origin], patience: Duration, now: Timestamp) {
        self.restraint.out_of_patience(upstream, origins, patience, now);
    }

    /// The origins that are left alone now, and until when, by the upstream that led there.
    pub fn left_alone(&self, now: Timestamp) -> Vec<(Hostname, Origin, Timestamp)> {
        self.restraint.left_alone(now)
    }

    /// Whether anything may go out.
    pub fn link(&self) -> Link {
        if self.sealed.load(Ordering::SeqCst) { Link::Offline } else { Link::Online }
    }

    /// The proxy that a request to `url` goes through, as the environment says; without any user that it names.
    pub fn proxy_for(&self, url: &Url) -> Option<String> {
        self.guard
            .proxy_for(url)
            .map(|proxy| format!("{}://{}", proxy.scheme_str().unwrap_or("http"), host_and_port(&proxy)))
    }

    /// Our own entry in CDN-Loop.
    pub fn own_entry(&self) -> &OwnEntry {
        &self.own
    }

    pub(super) async fn patiently<T, F: Future<Output = Result<T, UpstreamError>>>(
        &self,
        ask: Ask<'_>,
        once: impl FnMut() -> F,
    ) -> Result<T, UpstreamError> {
        let pauses = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(200))
            .with_max_times(ask.retries)
            .with_jitter();
        // A client waits, and a moment may help it; a job has time, and does as it is asked.
        let may_help = |fault: &Fault| fault.may_pass() && !(ask.asker == Asker::Job && fault.asks_to_wait());
        once.retry(pauses).when(|error| may_help(&error.fault)).await
    }

    /// Waits for the right to ask, and no longer than there is time for.
    async fn permit(&self, permits: &Permits, ask: Ask<'_>, of: &str) -> Result<Permit, UpstreamError> {
        let crowded = || {
            let why = format!("as many {of} are being fetched as may be at one time");
            failure(ask, ask.url, Fault::Crowded(why))
        };
        permits.take(ask.upstream, ask.asker).await.ok_or_else(crowded)
    }
}

/// All of it that the configuration decides alone.
fn ways_out(network: &config::Network, upstreams: &[config::Upstream]) -> Result<(Clients, Guard, Link), Unbuildable> {
    let guard = Guard::new(upstreams, &network.allow_private);
    let link = if network.offline { Link::Offline } else { Link::Online };
    Ok((Clients::new(network, upstreams, &guard)?, guard, link))
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: Option<&str>) {
    if let Some(value) = value.and_then(|value| HeaderValue::from_str(value).ok()) {
        headers.insert(name, value);
    }
}

/// The error of a request.
pub(super) fn failure(ask: Ask<'_>, url: &Url, fault: Fault) -> UpstreamError {
    UpstreamError { asked: ask.what.to_owned(), at: origin(url), fault }
}

fn host_and_port(uri: &http::Uri) -> String {
    let port = uri.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}{port}", uri.host().unwrap_or_default())
}

/// The part of a URL that may be told to anybody.
pub fn origin(url: &Url) -> String {
    match url.origin() {
        url::Origin::Opaque(_) => format!("{}:", url.scheme()),
        origin => origin.ascii_serialization(),
    }
}
