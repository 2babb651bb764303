//! The one way out. Every request to anybody leaves here: redirects by hand, time and size limits,
//! few retries, credentials only where they belong, and nothing at all when offline.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect;
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use url::Url;

use super::Traffic;
use super::ask::{Ask, Document, Fetched, Incoming, Room, Validators, broken};
use super::breaker::Origin;
use super::budget::Rate;
use super::error::{Fault, UpstreamError, relayed};
use super::guard::{Guard, PublicOnly, Refusal, Way};
use super::permits::{Bound, Permit, Permits};
use super::restraint::{Leave, Moment, Restraint, Watch};
use super::retry_after::retry_after;
use crate::address::Hostname;
use crate::cdn_loop::OwnEntry;
use crate::clock::Timestamp;
use crate::config;

const MOST_HOPS: usize = 10;
const LONGEST_ERROR_BODY: u64 = 64 * 1024;
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// A body without a length takes its room in steps of this, in KiB.
const ROOM_STEP_KIB: u64 = 64;
const NO_ROOM: &str = "as many bytes of documents are in memory as may be at one time";
const CDN_LOOP: HeaderName = HeaderName::from_static("cdn-loop");

/// Whether anything may go out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// Upstreams may be asked.
    Online,
    /// Sealed: nothing leaves.
    Offline,
}

/// Which kind of answer is asked for.
#[derive(Debug, Clone, Copy)]
enum Coding {
    /// Any content coding, undone on arrival.
    Any,
    /// None: the exact bytes count.
    Identity,
}

/// Connections never pass from one to the other.
#[derive(Debug)]
struct Clients {
    documents: reqwest::Client,
    files: reqwest::Client,
}

impl Clients {
    fn new(builder: impl Fn() -> reqwest::ClientBuilder) -> Result<Self, reqwest::Error> {
        let identity = HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"))]);
        Ok(Self {
            documents: builder().build()?,
            files: builder().no_gzip().no_brotli().no_zstd().default_headers(identity).build()?,
        })
    }

    fn of(&self, coding: Coding) -> &reqwest::Client {
        match coding {
            Coding::Any => &self.documents,
            Coding::Identity => &self.files,
        }
    }
}

/// How much may be under way at one time.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Requests for documents and the files of proof sets.
    pub documents: Bound,
    /// Requests for archives, each for as long as its bytes arrive.
    pub archives: Bound,
    /// The bodies of documents in memory, in KiB.
    pub bodies_kib: u32,
    /// Requests to one upstream about what is held, and for jobs.
    pub budget: Rate,
}

impl Default for Bounds {
    fn default() -> Self {
        let bound = Bound { each: 64, all: 256, wait: Duration::from_secs(3) };
        Self { documents: bound, archives: bound, bodies_kib: 256 * 1024, budget: Rate { burst: 500, per_second: 20 } }
    }
}

/// The connector.
#[derive(Debug)]
pub struct Outbound {
    /// For what the configuration names.
    named: Clients,
    /// For everything else.
    public: Clients,
    guard: Guard,
    link: Link,
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
        let restraint = Restraint::new(bounds.budget, traffic.clone());
        let authorities = network.ca_file.as_deref().map(authorities).transpose()?.unwrap_or_default();
        let client = || {
            #[expect(clippy::disallowed_methods, reason = "this is the one way out")]
            let builder = reqwest::Client::builder()
                .user_agent(concat!("larder/", env!("CARGO_PKG_VERSION")))
                .redirect(redirect::Policy::none())
                .referer(false)
                .connect_timeout(CONNECT_WITHIN)
                .pool_idle_timeout(Duration::from_secs(60))
                .tls_certs_merge(authorities.clone());
            builder
        };
        let taken_over = upstreams.iter().filter(|upstream| !upstream.addresses.is_empty());
        let taken_over = taken_over.filter_map(|upstream| Some((upstream.url.host_str()?, &upstream.addresses)));
        let taken_over: HashMap<String, Vec<SocketAddr>> =
            taken_over.map(|(name, addresses)| (name.to_owned(), addresses.clone())).collect();
        let guard = Guard::new(upstreams, &network.allow_private);
        let public_only = Arc::new(PublicOnly::new(&guard, taken_over.clone()));
        let at_their_addresses = |builder: reqwest::ClientBuilder| {
            taken_over.iter().fold(builder, |builder, (name, at)| builder.resolve_to_addrs(name, at))
        };
        Ok(Self {
            named: Clients::new(|| at_their_addresses(client()))?,
            // The guard sends by proxy what goes by proxy on the other way.
            public: Clients::new(|| client().no_proxy().dns_resolver(Arc::clone(&public_only)))?,
            guard,
            link: if network.offline { Link::Offline } else { Link::Online },
            own,
            traffic,
            restraint,
            document_permits: Permits::new(bounds.documents),
            archive_permits: Permits::new(bounds.archives),
            bodies: Arc::new(Semaphore::new(bounds.bodies_kib as usize)),
        })
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

    /// Tells that somebody waited for these origins for as long as `patience`, and waits no more.
    pub fn out_of_patience(&self, upstream: &Hostname, origins: &[Origin], patience: Duration, now: Timestamp) {
        self.restraint.out_of_patience(upstream, origins, patience, now);
    }

    /// Whether anything may go out.
    pub fn link(&self) -> Link {
        self.link
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
            let body = self.body(response, ask, &url, limit).await;
            match (watch, &body) {
                (Some(watch), Ok(_) | Err(UpstreamError { fault: Fault::TooLarge(_) | Fault::Crowded(_), .. })) => {
                    watch.answered();
                }
                (Some(watch), Err(broken)) => watch.failed(&broken.fault.to_string()),
                (None, _) => {}
            }
            let (body, room) = body?;
            Ok(Fetched::New(Document { body, content_type, validators, url, origins, room }))
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
            let permit = self.permit(&self.archive_permits, ask, "archives").await?;
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
            upstream: ask.upstream.clone(),
            traffic: self.traffic.clone(),
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
        once.retry(pauses).when(|error| error.fault.may_pass()).await
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
                Ok(Way::Named) => self.named.of(coding),
                Ok(Way::Public) => self.public.of(coding),
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
        match self.link {
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
        while let Some(piece) = response.chunk().await.map_err(|e| failure(ask, url, broken(&e)))? {
            self.traffic.brought(ask.upstream, piece.len());
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

/// Why the connector could not be built.
#[derive(Debug, thiserror::Error)]
pub enum Unbuildable {
    /// The file of `[network] ca_file` is no list of certificates.
    #[error("[network] ca_file {path} is no PEM file of certificates: {why}", path = .path.display())]
    Authorities {
        /// The file.
        path: PathBuf,
        /// What was wrong.
        why: String,
    },
    /// TLS could not be set up.
    #[error("no TLS client could be set up: {0}")]
    Client(#[from] reqwest::Error),
}

#[expect(clippy::disallowed_methods, reason = "the trust of the one way out is read where it is used")]
fn authorities(path: &Path) -> Result<Vec<reqwest::Certificate>, Unbuildable> {
    let failed = |why: String| Unbuildable::Authorities { path: path.to_owned(), why };
    let pem = std::fs::read(path).map_err(|e| failed(e.to_string()))?;
    let found = reqwest::Certificate::from_pem_bundle(&pem).map_err(|e| failed(e.to_string()))?;
    if found.is_empty() { Err(failed("there is none in it".into())) } else { Ok(found) }
}

/// The room of a body that is still coming. It is taken or not: who has some never waits for more.
struct Growing<'a> {
    of: &'a Arc<Semaphore>,
    taken: Option<OwnedSemaphorePermit>,
}

impl<'a> Growing<'a> {
    fn new(of: &'a Arc<Semaphore>) -> Self {
        Self { of, taken: None }
    }

    fn grow_to(&mut self, bytes: u64) -> bool {
        let has = self.taken.as_ref().map_or(0, OwnedSemaphorePermit::num_permits) as u64;
        let needed = bytes.div_ceil(1024);
        if needed <= has {
            return true;
        }
        let needed = if has == 0 { needed } else { needed.next_multiple_of(ROOM_STEP_KIB) };
        let Ok(more) = u32::try_from(needed - has) else { return false };
        match (Arc::clone(self.of).try_acquire_many_owned(more), &mut self.taken) {
            (Ok(more), Some(taken)) => taken.merge(more),
            (Ok(more), none) => *none = Some(more),
            (Err(_), _) => return false,
        }
        true
    }

    fn taken(self) -> Room {
        Room(self.taken.map(Arc::new))
    }
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

/// The part of a URL that may be told to anybody.
pub fn origin(url: &Url) -> String {
    match url.origin() {
        url::Origin::Opaque(_) => format!("{}:", url.scheme()),
        origin => origin.ascii_serialization(),
    }
}

/// `bytes 5-9/10` -> (5, Some(10)). One that contradicts itself is none (RFC 9110 14.4).
pub fn content_range(value: &str) -> Option<(u64, Option<u64>)> {
    // Without the check it would read a sign, too.
    let number = |text: &str| text.parse::<u64>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    let (range, total) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (start, last) = range.split_once('-')?;
    let (start, last) = (number(start)?, number(last)?);
    let total = if total == "*" { None } else { Some(number(total)?) };
    (start <= last && total.is_none_or(|total| last < total)).then_some((start, total))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Promise 8: no userinfo and no query of an upstream URL, and no line of upstream's making.
    #[test]
    fn what_upstream_says_is_told_without_secrets_and_in_one_line() {
        for (said, told) in [
            ("no such search", "no such search"),
            ("a\nFAKE LOG LINE\u{1b}[31m", "a FAKE LOG LINE [31m"),
            ("see https://u:s3cret@x.example/p?token=s3cret", "see (a URL)"),
            ("see https://x.example/p?token=s3cret", "see https://x.example/p"),
            ("url=https://x.example/?s3cret", "url=https://x.example/"),
            ("failed:https://u:s3cret@h/p", "(a URL)"),
            ("https://a/,https://u:s3cret@b/", "(a URL)"),
            ("/v1/x?token=s3cret", "/v1/x"),
            ("u:s3cret@h/?t=s3cret", "(a URL)"),
        ] {
            assert_eq!(relayed(said), told);
        }
    }

    /// RFC 9110 14.4: a Content-Range that contradicts itself is not to be built on.
    #[test]
    fn a_content_range_that_cannot_be_is_none() {
        assert_eq!(content_range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(content_range("bytes 5-9/*"), Some((5, None)));
        for cannot_be in [
            "bytes 5-4/10",
            "bytes 5-9/2",
            "bytes 5-9/9",
            "bytes 5-9/x",
            "bytes 5-9/",
            "bytes 5-9",
            "bytes 5-/10",
            "bytes 5-x/10",
            "bytes +5-9/10",
            "bytes 5-9/+10",
            "bytes */10",
            "items 5-9/10",
        ] {
            assert_eq!(content_range(cannot_be), None, "{cannot_be}");
        }
    }

    proptest! {
        #[test]
        fn nothing_that_upstream_says_panics_or_breaks_a_line(said in "\\PC{0,60}(://)?\\PC{0,60}[\n\r\t]?", range in "[ -~]{0,40}") {
            prop_assert!(!relayed(&said).chars().any(char::is_control));
            let _ = content_range(&range);
        }

        #[test]
        fn a_content_range_is_read_as_it_was_printed(start in any::<u64>(), length in 1..u64::MAX, rest in prop::option::of(any::<u64>())) {
            let last = start.saturating_add(length - 1);
            let total = rest.map(|rest| last.saturating_add(rest)).filter(|total| *total > last);
            let printed = total.map_or("*".to_owned(), |total| total.to_string());
            prop_assert_eq!(content_range(&format!("bytes {start}-{last}/{printed}")), Some((start, total)));
        }
    }
}
