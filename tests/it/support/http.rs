//! A plain HTTP client that sees the exact statuses, headers and bytes that a client of larder gets.

use hyper::ext::ReasonPhrase;
use reqwest::header::HeaderMap;

use super::TEST_TIMEOUT;
use super::openapi::assert_described;
use super::tls::TestCa;

/// A response with its whole body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The reason phrase, where it is not the usual one of the status.
    pub(crate) reason: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// The text of a header; empty if it is absent.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// The body as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the response; panics unless it has this status.
    pub(crate) fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text());
        self
    }

    /// True if the Cache-Status header contains this text.
    pub(crate) fn has_cache_status(&self, text: &str) -> bool {
        self.header("cache-status").contains(text)
    }
}

/// A client that follows no redirect, decodes no body and trusts no authority: reading the system's certificates takes
/// longer than most requests.
pub(crate) fn client() -> reqwest::Client {
    trusting(None)
}

/// The same client, but it trusts one authority.
pub(crate) fn client_trusting(ca: &TestCa) -> reqwest::Client {
    trusting(Some(reqwest::Certificate::from_pem(ca.pem().as_bytes()).unwrap()))
}

fn trusting(authority: Option<reqwest::Certificate>) -> reqwest::Client {
    let builder = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).no_proxy();
    builder.tls_certs_only(authority).no_gzip().timeout(TEST_TIMEOUT).build().unwrap()
}

/// Sends a request and reads the whole response; an incomplete body is an error. Asserts that a response of an admin
/// listener is one that `docs/openapi.json` describes.
pub(crate) async fn send(request: reqwest::RequestBuilder) -> Result<Answer, reqwest::Error> {
    let (client, request) = request.build_split();
    let request = request?;
    let (method, path) = (request.method().clone(), request.url().path().to_owned());
    let response = client.execute(request).await?;
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let reason = response.extensions().get::<ReasonPhrase>();
    let reason = reason.map(|phrase| String::from_utf8_lossy(phrase.as_bytes()).into_owned()).unwrap_or_default();
    let answer = Answer { status, reason, headers, body: response.bytes().await?.to_vec() };
    if answer.header("server") == "larder" {
        assert_described(method.as_str(), &path, &answer);
    }
    Ok(answer)
}

/// Requests a URL; panics on an incomplete response.
pub(crate) async fn get(url: &str) -> Answer {
    send(client().get(url)).await.unwrap_or_else(|e| panic!("{url}: {e:?}"))
}

/// A response whose body may be incomplete.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
    pub(crate) is_complete: bool,
}

/// Sends a request; returns the received part of the body even if the body ends early.
pub(crate) async fn receive(request: reqwest::RequestBuilder) -> Received {
    receive_body(request.send().await.unwrap()).await
}

/// Receives the body of an answer whose head is there.
pub(crate) async fn receive_body(mut response: reqwest::Response) -> Received {
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let mut body = Vec::new();
    let is_complete = loop {
        match response.chunk().await {
            Ok(Some(piece)) => body.extend_from_slice(&piece),
            Ok(None) => break true,
            Err(_) => break false,
        }
    };
    Received { status, headers, body, is_complete }
}
