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
    /// Final URL after redirects.
    pub(in crate::upstream) url: Url,
    /// The requested origins, in the order of the redirects.
    pub(in crate::upstream) origins: Vec<Origin>,
    /// Observes the last hop until its body is complete. `None` if the status of that hop was not a success.
    pub(in crate::upstream) observer: Option<RequestObserver>,
}

impl Outbound {
    /// Sends a GET request and follows its redirects.
    pub(in crate::upstream) async fn follow(
        &self,
        coding: AcceptedCoding,
        request: UpstreamRequest<'_>,
        conditions: &HeaderMap,
        request_time: RequestTime,
    ) -> Result<UpstreamResponse, UpstreamError> {
        self.follow_with_method(Method::GET, coding, request, conditions, request_time).await
    }

    /// Like [`follow`](Self::follow), with another safe method.
    pub(in crate::upstream) async fn follow_with_method(
        &self,
        method: Method,
        coding: AcceptedCoding,
        request: UpstreamRequest<'_>,
        conditions: &HeaderMap,
        request_time: RequestTime,
    ) -> Result<UpstreamResponse, UpstreamError> {
        let mut url = request.url.clone();
        let mut origins = Vec::new();
        for _ in 0..=MAX_HOPS {
            origins.push(Origin::of(&url));
            let build = |builder: RequestBuilder| builder.headers(conditions.clone());
            let (response, observer) = self.hop(coding, method.clone(), request, &url, build, request_time).await?;
            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(UpstreamResponse { response, url, origins, observer });
            }
            let location = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
            let target_url = location.and_then(|location| url.join(location).ok());
            url = target_url
                .ok_or_else(|| failure(request, &url, Fault::Unusable("a redirect without a valid Location".into())))?;
        }
        Err(failure(request, &url, Fault::Unusable(format!("more than {MAX_HOPS} redirects"))))
    }

    /// Sends one request to one origin, with the credential for that origin. A redirect is returned as an answer.
    pub(in crate::upstream) async fn hop(
        &self,
        coding: AcceptedCoding,
        method: Method,
        request: UpstreamRequest<'_>,
        url: &Url,
        build: impl FnOnce(RequestBuilder) -> RequestBuilder,
        request_time: RequestTime,
    ) -> Result<(reqwest::Response, Option<RequestObserver>), UpstreamError> {
        let client = match self.checked_client(url, request) {
            Ok(kind) => self.clients.client(kind, coding),
            Err(refusal) => return Err(self.refusal_error(request, url, refusal)),
        };
        let mut builder =
            build(client.request(method, url.clone())).header(CDN_LOOP, request.via.with(&self.own_entry));
        if let Some((name, value)) = request.credentials.header_for(url) {
            builder = builder.header(name, value);
        }
        let observer = self.backoff.observe(request.upstream, url, request_time);
        let response = match builder.send().await.map_err(|e| fault_of_client_error(&e)) {
            Ok(response) => response,
            Err(Fault::Refused(refusal)) => return Err(self.refusal_error(request, url, refusal)),
            Err(fault) => {
                self.traffic.count_request(request.upstream, None);
                observer.record_failure(&fault.to_string());
                return Err(failure(request, url, fault));
            }
        };
        self.traffic.count_request(request.upstream, Some(response.status().as_u16()));
        let observer = observer.record_head(response.status(), response.headers());
        Ok((response, observer))
    }

    fn checked_client(&self, url: &Url, request: UpstreamRequest<'_>) -> Result<HttpClientKind, EgressRefusal> {
        match self.connectivity() {
            Connectivity::Online => self.egress_policy.check(url, request.credentials),
            Connectivity::Offline => Err(EgressRefusal::Offline),
        }
    }

    /// Counts a refusal and makes its error.
    pub(in crate::upstream) fn refusal_error(
        &self,
        request: UpstreamRequest<'_>,
        url: &Url,
        refusal: EgressRefusal,
    ) -> UpstreamError {
        self.traffic.count_refusal(request.upstream, &refusal);
        failure(request, url, Fault::Refused(refusal))
    }
}
