//! One request and its redirects. Every hop is checked against the egress policy, counted and observed here.

use http::Method;
use http::header::{self, HeaderMap};
use reqwest::RequestBuilder;
use url::Url;

use super::{CDN_LOOP, Connectivity, Outbound, failure};
use crate::upstream::backoff::{RequestObserver, RequestTime};
use crate::upstream::breaker::Origin;
use crate::upstream::clients::AcceptedCoding;
use crate::upstream::egress_policy::{EgressRefusal, HttpClientKind};
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::request::{UpstreamRequest, fault_of_client_error};

const MAX_HOPS: usize = 10;

/// The answer after redirects, with its body unread.
pub(in crate::upstream) struct UpstreamResponse {
    pub(in crate::upstream) response: reqwest::Response,
    pub(in crate::upstream) url: Url,
    pub(in crate::upstream) origins: Vec<Origin>,
    /// The observation of the last hop; `None` unless its status was a success.
    pub(in crate::upstream) watch: Option<RequestObserver>,
}

impl Outbound {
    /// Sends a GET request and follows its redirects.
    pub(in crate::upstream) async fn follow(
        &self,
        coding: AcceptedCoding,
        ask: UpstreamRequest<'_>,
        conditions: &HeaderMap,
        request_time: RequestTime,
    ) -> Result<UpstreamResponse, UpstreamError> {
        self.follow_by(Method::GET, coding, ask, conditions, request_time).await
    }

    /// Like [`follow`](Self::follow), with another safe method.
    pub(in crate::upstream) async fn follow_by(
        &self,
        method: Method,
        coding: AcceptedCoding,
        ask: UpstreamRequest<'_>,
        conditions: &HeaderMap,
        request_time: RequestTime,
    ) -> Result<UpstreamResponse, UpstreamError> {
        let mut url = ask.url.clone();
        let mut origins = Vec::new();
        for _ in 0..=MAX_HOPS {
            origins.push(Origin::of(&url));
            let build = |request: RequestBuilder| request.headers(conditions.clone());
            let (response, watch) = self.hop(coding, method.clone(), ask, &url, build, request_time).await?;
            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(UpstreamResponse { response, url, origins, watch });
            }
            let location = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
            let next = location.and_then(|location| url.join(location).ok());
            url = next.ok_or_else(|| failure(ask, &url, Fault::Unusable("a redirect to nowhere".into())))?;
        }
        Err(failure(ask, &url, Fault::Unusable(format!("more than {MAX_HOPS} redirects"))))
    }

    /// Sends one request to one origin, with the credential for that origin. A redirect is returned as an answer.
    pub(in crate::upstream) async fn hop(
        &self,
        coding: AcceptedCoding,
        method: Method,
        ask: UpstreamRequest<'_>,
        url: &Url,
        build: impl FnOnce(RequestBuilder) -> RequestBuilder,
        request_time: RequestTime,
    ) -> Result<(reqwest::Response, Option<RequestObserver>), UpstreamError> {
        let client = match self.checked_client(url, ask) {
            Ok(kind) => self.clients.of(kind, coding),
            Err(refusal) => return Err(self.refused(ask, url, refusal)),
        };
        let mut request = build(client.request(method, url.clone())).header(CDN_LOOP, ask.via.with(&self.own));
        if let Some((name, value)) = ask.credentials.header_for(url) {
            request = request.header(name, value);
        }
        let watch = self.backoff.observe(ask.upstream, url, request_time);
        let response = match request.send().await.map_err(|e| fault_of_client_error(&e)) {
            Ok(response) => response,
            Err(Fault::Refused(refusal)) => return Err(self.refused(ask, url, refusal)),
            Err(fault) => {
                self.traffic.count_request(ask.upstream, None);
                watch.record_failure(&fault.to_string());
                return Err(failure(ask, url, fault));
            }
        };
        self.traffic.count_request(ask.upstream, Some(response.status().as_u16()));
        let watch = watch.record_head(response.status(), response.headers());
        Ok((response, watch))
    }

    fn checked_client(&self, url: &Url, ask: UpstreamRequest<'_>) -> Result<HttpClientKind, EgressRefusal> {
        match self.connectivity() {
            Connectivity::Online => self.guard.check(url, ask.credentials),
            Connectivity::Offline => Err(EgressRefusal::Offline),
        }
    }

    pub(in crate::upstream) fn refused(
        &self,
        ask: UpstreamRequest<'_>,
        url: &Url,
        refusal: EgressRefusal,
    ) -> UpstreamError {
        self.traffic.refused(ask.upstream, &refusal);
        failure(ask, url, Fault::Refused(refusal))
    }
}
