//! The one way out. Every request to anybody leaves here: redirects by hand, time and size limits,
//! few retries, credentials only where they belong, and nothing at all when offline.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use tokio::sync::Semaphore;
use url::Url;

use super::Traffic;
use super::ask::{Ask, Asker, Document, Fetched, Incoming, Validators, broken};
use super::bounds::Bounds;
use super::breaker::Origin;
use super::clients::{Clients, Coding, Unbuildable};
use super::content_range::content_range;
use super::error::{Fault, UpstreamError, relayed};
use super::guard::{Guard, Refusal, Way};
use super::permits::{Permit, Permits};
use super::restraint::{Leave, Moment, Restraint, Watch};
use super::retry_after::{date, retry_after};
use super::room::{Growing, Room};
use crate::address::Hostname;
use crate::cdn_loop::OwnEntry;
use crate::clock::Timestamp;
use crate::config;

const MOST_HOPS: usize = 10;
const LONGEST_ERROR_BODY: u64 = 64 * 1024;
const NO_ROOM: &str = "as many bytes of documents are in memory as may be at one time";
const CDN_LOOP: HeaderName = HeaderName::from_static("cdn-loop");
const X_TERRAFORM_GET: HeaderName = HeaderName::from_static("x-terraform-get");

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
    clients: Clients,
    guard: Guard,
    /// What its own configuration says.
    link: Link,
    /// Whether all are sealed, those of earlier configurations too (promise 12).
    sealed: Arc<AtomicBool>,
    own: OwnEntry,
    traffic: Traffic,
    restraint: Restraint,
    document_permits: Permits,
    archive_permits: Permits,
    bodies: Arc<Semaphore>,
}

/// An answer whose body is still to come, after redirects.
struct Arrived {
    response: reqwest::Response,
    url: Url,
    origins: Vec<Origin>,
    /// Unless its status was a failure.
    watch: Option<Watch>,
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
        let restraint = Restraint::new(bounds.budget);
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

    /// Takes requests about what is held out of an upstream's budget; says whether there were so many left.
    pub fn spend(&self, upstream: &Hostname, requests: u32, now: Timestamp) -> bool {
        self.restraint.spend(upstream, requests, now)
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

    /// Asks for a document of at most `limit` bytes; conditionally, where `held` says what we have.
    pub async fn document(
        &self,
        ask: Ask<'_>,
        held: Option<&Validators>,
        limit: u64,
    ) -> Result<Fetched, UpstreamError> {
        self.whole(Coding::Any, ask, held, limit).await
    }

    /// The same for a file whose exact bytes count: without content codings.
    pub async fn small_file(
        &self,
        ask: Ask<'_>,
        held: Option<&Validators>,
        limit: u64,
    ) -> Result<Fetched, UpstreamError> {
        self.whole(Coding::Identity, ask, held, limit).await
    }

    async fn whole(
        &self,
        coding: Coding,
        ask: Ask<'_>,
        held: Option<&Validators>,
        limit: u64,
    ) -> Result<Fetched, UpstreamError> {
        let mut conditions = HeaderMap::new();
        if let Some(held) = held {
            insert(&mut conditions, header::IF_NONE_MATCH, held.etag.as_deref());
            insert(&mut conditions, header::IF_MODIFIED_SINCE, held.last_modified.as_deref());
        }
        let asked = Moment::new(ask.now);
        let once = || async {
            let _permit = self.permit(&self.document_permits, ask, "documents").await?;
            let Arrived { response, url, origins, watch } = self.follow(coding, ask, &conditions, asked).await?;
            if response.status() == http::StatusCode::NOT_MODIFIED && !conditions.is_empty() {
                return Ok(Fetched::Unchanged);
            }
            let response = self.successful(response, ask, &url, asked).await?;
            let content_type = response.headers().get(header::CONTENT_TYPE);
            let content_type = content_type.and_then(|value| value.to_str().ok()).map(str::to_owned);
            let validators = Validators::of(response.headers());
            let date = date(response.headers());
            let location = response.headers().get(X_TERRAFORM_GET).and_then(|value| value.to_str().ok());
            let location = location.map(str::to_owned);
            let body = self.body(response, ask, &url, limit).await;
            match (watch, &body) {
                (Some(watch), Ok(_) | Err(UpstreamError { fault: Fault::TooLarge(_) | Fault::Crowded(_), .. })) => {
                    watch.answered();
                }
                (Some(watch), Err(broken)) => watch.failed(&broken.fault.to_string()),
                (None, _) => {}
            }
            let (body, room) = body?;
            Ok(Fetched::New(Document { body, content_type, validators, url, origins, location, date, room }))
        };
        self.patiently(ask, once).await
    }

    /// Asks for a file, from byte `from` on where `note` says what is there already.
    ///
    /// The server may start over all the same: [`Incoming::from`] tells.
    pub async fn file(&self, ask: Ask<'_>, from: u64, held: &Validators) -> Result<Incoming, UpstreamError> {
        let mut conditions = HeaderMap::new();
        if from > 0 {
            insert(&mut conditions, header::RANGE, Some(&format!("bytes={from}-")));
            insert(&mut conditions, header::IF_RANGE, held.for_range());
        }
        let asked = Moment::new(ask.now);
        let once = || async {
            let midway = from > 0 && ask.asker == Asker::Client;
            let turn = if midway { Ask { asker: Asker::ClientMidway, ..ask } } else { ask };
            let permit = self.permit(&self.archive_permits, turn, "archives").await?;
            let mut arrived = self.follow(Coding::Identity, ask, &conditions, asked).await?;
            let mut from = from;
            if arrived.response.status() == http::StatusCode::RANGE_NOT_SATISFIABLE && from > 0 {
                arrived = self.follow(Coding::Identity, ask, &HeaderMap::new(), asked).await?;
                from = 0;
            }
            // Its bytes have their own time, and are asked for again where they break off.
            arrived.watch.into_iter().for_each(Watch::answered);
            let response = self.successful(arrived.response, ask, &arrived.url, asked).await?;
            self.incoming(response, ask, &arrived.url, from, permit)
        };
        self.patiently(ask, once).await
    }

    fn incoming(
        &self,
        response: reqwest::Response,
        ask: Ask<'_>,
        url: &Url,
        asked_from: u64,
        permit: Permit,
    ) -> Result<Incoming, UpstreamError> {
        let failed = |why: &str| failure(ask, url, Fault::Unusable(why.to_owned()));
        let announced = response.headers().get(header::CONTENT_LENGTH).map(|value| {
            value
                .to_str()
                .ok()
                .and_then(|text| text.parse::<u64>().ok())
                .ok_or_else(|| failed("a Content-Length that is no number"))
        });
        let announced = announced.transpose()?;
        let (from, length) = match response.status().as_u16() {
            206 => {
                let range = response.headers().get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok());
                let (start, total) =
                    range.and_then(content_range).ok_or_else(|| failed("a 206 without a usable Content-Range"))?;
                if start != asked_from {
                    return Err(failed("another range than the one asked for"));
                }
                (start, total.or(announced.and_then(|rest| start.checked_add(rest))))
            }
            _ => (0, announced),
        };
        let validators = Validators::of(response.headers());
        Ok(Incoming {
            response,
            from,
            length,
            validators,
            what: ask.what.to_owned(),
            at: origin(url),
            brought: self.traffic.brought_by(ask.upstream),
            _permit: permit,
        })
    }

    async fn patiently<T, F: Future<Output = Result<T, UpstreamError>>>(
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

    /// One request and its redirects. Every hop passes here, and is judged here.
    async fn follow(
        &self,
        coding: Coding,
        ask: Ask<'_>,
        conditions: &HeaderMap,
        asked: Moment,
    ) -> Result<Arrived, UpstreamError> {
        let mut url = ask.url.clone();
        let mut origins = Vec::new();
        for _ in 0..=MOST_HOPS {
            let client = match self.way(&url, ask) {
                Ok(way) => self.clients.of(way, coding),
                Err(refusal) => return Err(self.refused(ask, &url, refusal)),
            };
            let mut request =
                client.get(url.clone()).headers(conditions.clone()).header(CDN_LOOP, ask.via.with(&self.own));
            if let Some((name, value)) = ask.grant.header_for(&url) {
                request = request.header(name, value);
            }
            let watch = self.restraint.watch(ask.upstream, &url, asked);
            origins.push(Origin::of(&url));
            let response = match request.send().await.map_err(|e| broken(&e)) {
                Ok(response) => response,
                Err(Fault::Refused(refusal)) => return Err(self.refused(ask, &url, refusal)),
                Err(fault) => {
                    self.traffic.asked(ask.upstream, None);
                    watch.failed(&fault.to_string());
                    return Err(failure(ask, &url, fault));
                }
            };
            self.traffic.asked(ask.upstream, Some(response.status().as_u16()));
            let watch = watch.saw(response.status(), response.headers());
            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(Arrived { response, url, origins, watch });
            }
            let location = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
            let next = location.and_then(|location| url.join(location).ok());
            url = next.ok_or_else(|| failure(ask, &url, Fault::Unusable("a redirect to nowhere".into())))?;
        }
        Err(failure(ask, &url, Fault::Unusable(format!("more than {MOST_HOPS} redirects"))))
    }

    fn way(&self, url: &Url, ask: Ask<'_>) -> Result<Way, Refusal> {
        match self.link() {
            Link::Online => self.guard.judge(url, ask.grant),
            Link::Offline => Err(Refusal::Offline),
        }
    }

    fn refused(&self, ask: Ask<'_>, url: &Url, refusal: Refusal) -> UpstreamError {
        self.traffic.refused(ask.upstream, &refusal);
        failure(ask, url, Fault::Refused(refusal))
    }

    async fn successful(
        &self,
        response: reqwest::Response,
        ask: Ask<'_>,
        url: &Url,
        asked: Moment,
    ) -> Result<reqwest::Response, UpstreamError> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let retry_after = retry_after(response.headers(), asked.now());
        // The errors are an extra; that they could not be read is not the failure to tell.
        let (body, _room) = self.body(response, ask, url, LONGEST_ERROR_BODY).await.unwrap_or_default();
        let errors = serde_json::from_slice::<Errors>(&body).map(|body| body.errors).unwrap_or_default();
        let errors = errors.iter().take(8).map(|text| relayed(ask.grant.unless_quoted_in(text))).collect();
        let fault = Fault::of_status(status.as_u16(), retry_after, errors);
        Err(failure(ask, url, fault))
    }

    async fn body(
        &self,
        mut response: reqwest::Response,
        ask: Ask<'_>,
        url: &Url,
        limit: u64,
    ) -> Result<(Bytes, Room), UpstreamError> {
        let too_large = || failure(ask, url, Fault::TooLarge(limit));
        if response.content_length().is_some_and(|length| length > limit) {
            return Err(too_large());
        }
        let mut body = BytesMut::new();
        let mut room = Growing::new(&self.bodies);
        if !room.grow_to(response.content_length().unwrap_or_default()) {
            return Err(failure(ask, url, Fault::Crowded(NO_ROOM.to_owned())));
        }
        let brought = self.traffic.brought_by(ask.upstream);
        while let Some(piece) = response.chunk().await.map_err(|e| failure(ask, url, broken(&e)))? {
            brought.inc_by(piece.len() as u64);
            if (body.len() + piece.len()) as u64 > limit {
                return Err(too_large());
            }
            if !room.grow_to((body.len() + piece.len()) as u64) {
                return Err(failure(ask, url, Fault::Crowded(NO_ROOM.to_owned())));
            }
            body.extend_from_slice(&piece);
        }
        Ok((body.freeze(), room.taken()))
    }
}

/// All of it that the configuration decides alone.
fn ways_out(network: &config::Network, upstreams: &[config::Upstream]) -> Result<(Clients, Guard, Link), Unbuildable> {
    let guard = Guard::new(upstreams, &network.allow_private);
    let link = if network.offline { Link::Offline } else { Link::Online };
    Ok((Clients::new(network, upstreams, &guard)?, guard, link))
}

#[derive(Deserialize)]
struct Errors {
    errors: Vec<String>,
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: Option<&str>) {
    if let Some(value) = value.and_then(|value| HeaderValue::from_str(value).ok()) {
        headers.insert(name, value);
    }
}

fn failure(ask: Ask<'_>, url: &Url, fault: Fault) -> UpstreamError {
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
