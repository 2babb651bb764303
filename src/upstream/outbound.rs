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
use url::Url;

use super::Traffic;
use super::ask::{Ask, Document, Fetched, Incoming, Validators, broken};
use super::error::{Fault, UpstreamError};
use super::guard::{Guard, PublicOnly, Refusal, Way};
use crate::cdn_loop::OwnEntry;
use crate::config;

const MOST_HOPS: usize = 10;
const LONGEST_ERROR_BODY: u64 = 64 * 1024;
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
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
}

impl Outbound {
    /// Builds the connector: trust, addresses, proxies from the environment.
    pub fn new(
        network: &config::Network,
        upstreams: &[config::Upstream],
        own: OwnEntry,
        traffic: Traffic,
    ) -> Result<Self, Unbuildable> {
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
        })
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
        let once = || async {
            let (response, url) = self.follow(coding, ask, &conditions).await?;
            if response.status() == http::StatusCode::NOT_MODIFIED && !conditions.is_empty() {
                return Ok(Fetched::Unchanged);
            }
            let response = self.successful(response, ask, &url).await?;
            let content_type = response.headers().get(header::CONTENT_TYPE);
            let content_type = content_type.and_then(|value| value.to_str().ok()).map(str::to_owned);
            let validators = Validators::of(response.headers());
            let body = self.body(response, ask, &url, limit).await?;
            Ok(Fetched::New(Document { body, content_type, validators, url }))
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
        let once = || async {
            let (response, url) = self.follow(Coding::Identity, ask, &conditions).await?;
            if response.status() == http::StatusCode::RANGE_NOT_SATISFIABLE && from > 0 {
                let (response, url) = self.follow(Coding::Identity, ask, &HeaderMap::new()).await?;
                return self.incoming(self.successful(response, ask, &url).await?, ask, &url, 0);
            }
            self.incoming(self.successful(response, ask, &url).await?, ask, &url, from)
        };
        self.patiently(ask, once).await
    }

    fn incoming(
        &self,
        response: reqwest::Response,
        ask: Ask<'_>,
        url: &Url,
        asked_from: u64,
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

    /// One request and its redirects. Every hop passes here, and is judged here.
    async fn follow(
        &self,
        coding: Coding,
        ask: Ask<'_>,
        conditions: &HeaderMap,
    ) -> Result<(reqwest::Response, Url), UpstreamError> {
        let mut url = ask.url.clone();
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
            let response = match request.send().await.map_err(|e| broken(&e)) {
                Ok(response) => response,
                Err(Fault::Refused(refusal)) => return Err(self.refused(ask, &url, refusal)),
                Err(fault) => {
                    self.traffic.asked(ask.upstream, None);
                    return Err(failure(ask, &url, fault));
                }
            };
            self.traffic.asked(ask.upstream, Some(response.status().as_u16()));
            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok((response, url));
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
    ) -> Result<reqwest::Response, UpstreamError> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let retry_after =
            response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        // The errors are an extra; that they could not be read is not the failure to tell.
        let body = self.body(response, ask, url, LONGEST_ERROR_BODY).await.unwrap_or_default();
        let errors = serde_json::from_slice::<Errors>(&body).map(|body| body.errors).unwrap_or_default();
        let errors = errors.iter().take(8).map(|text| relayed(text)).collect();
        let fault = Fault::of_status(status.as_u16(), retry_after.map(Duration::from_secs), errors);
        Err(failure(ask, url, fault))
    }

    async fn body(
        &self,
        mut response: reqwest::Response,
        ask: Ask<'_>,
        url: &Url,
        limit: u64,
    ) -> Result<Bytes, UpstreamError> {
        let too_large = || failure(ask, url, Fault::TooLarge(limit));
        if response.content_length().is_some_and(|length| length > limit) {
            return Err(too_large());
        }
        let mut body = BytesMut::new();
        while let Some(piece) = response.chunk().await.map_err(|e| failure(ask, url, broken(&e)))? {
            self.traffic.brought(ask.upstream, piece.len());
            if (body.len() + piece.len()) as u64 > limit {
                return Err(too_large());
            }
            body.extend_from_slice(&piece);
        }
        Ok(body.freeze())
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

/// A text of upstream's as it may be told to anybody: one line, no control characters, and nothing that could
/// be the userinfo or the query of a URL, which may be secrets.
pub fn relayed(text: &str) -> String {
    const LONGEST: usize = 300;
    let word = |word: &str| {
        let shown = word.split(['?', '#']).next().unwrap_or_default();
        // Whatever could be userinfo is not worth telling apart from a secret.
        if shown.contains('@') || shown.matches("://").count() > 1 { "(a URL)".to_owned() } else { shown.to_owned() }
    };
    let printable: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let words: Vec<String> = printable.split_whitespace().map(word).collect();
    words.join(" ").chars().take(LONGEST).collect()
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
