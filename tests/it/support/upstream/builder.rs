//! The fixed settings of a fake upstream: TLS, origins and file URLs.

use std::net::SocketAddr;
use std::sync::Arc;

use super::super::tls::TestCa;
use super::FakeUpstream;
use super::connection::Listener;
use super::registry::{FileUrls, FixedSettings, Registry, State};
use super::requests::Requests;

/// The settings of a fake upstream before it starts.
pub(crate) struct Builder {
    ca: Option<TestCa>,
    releases_ca: Option<TestCa>,
    names: Vec<String>,
    has_http2: bool,
    has_releases_elsewhere: bool,
    has_absolute_services: bool,
    file_urls: FileUrls,
    token: Option<String>,
    address: SocketAddr,
}

impl Builder {
    /// Plain http, files at the same origin, URLs that do not expire.
    pub(super) fn plain() -> Self {
        Self {
            ca: None,
            releases_ca: None,
            names: Vec::new(),
            has_http2: false,
            has_releases_elsewhere: false,
            has_absolute_services: false,
            file_urls: FileUrls::Plain,
            token: None,
            address: ([127, 0, 0, 1], 0).into(),
        }
    }

    /// Listens with https, with a new certificate authority (`ca`).
    pub(crate) fn tls(self) -> Self {
        self.tls_with(&TestCa::new())
    }

    /// Listens with https, with a certificate from this authority.
    pub(crate) fn tls_with(mut self, ca: &TestCa) -> Self {
        self.ca = Some(ca.clone());
        self
    }

    /// Adds a name to the certificate, which already names 127.0.0.1 and localhost.
    pub(crate) fn certificate_name(mut self, name: &str) -> Self {
        self.names.push(name.to_owned());
        self
    }

    /// Offers HTTP/2 over TLS. Connection faults then break the stream, not the connection.
    pub(crate) fn http2(mut self) -> Self {
        self.has_http2 = true;
        self
    }

    /// Serves files from a second origin, as registry.terraform.io does with the files at GitHub.
    pub(crate) fn releases_elsewhere(mut self) -> Self {
        self.has_releases_elsewhere = true;
        self
    }

    /// Serves files from a second origin over https, with a certificate of another authority.
    pub(crate) fn releases_tls_with(mut self, ca: &TestCa) -> Self {
        self.releases_ca = Some(ca.clone());
        self.releases_elsewhere()
    }

    /// Makes the discovery document name services by absolute URLs.
    pub(crate) fn absolute_services(mut self) -> Self {
        self.has_absolute_services = true;
        self
    }

    /// Makes documents name files by URLs that `expire_urls` makes invalid (403).
    pub(crate) fn signed_urls(mut self) -> Self {
        self.file_urls = FileUrls::Signed;
        self
    }

    /// Makes documents name files by permanent URLs that redirect (with this status) to URLs that expire.
    pub(crate) fn redirected_urls(mut self, status: u16) -> Self {
        self.file_urls = FileUrls::Redirected(status);
        self
    }

    /// Requires this bearer token for discovery and documents (else 401).
    pub(crate) fn token(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    /// Listens at this address. Forge URLs name no port, so the server of a forge listens at port 443, which a test may
    /// do in a namespace of its own (`git::forge`).
    pub(crate) fn listen_at(mut self, address: SocketAddr) -> Self {
        self.address = address;
        self
    }

    /// Starts the upstream.
    pub(crate) async fn start(self) -> FakeUpstream {
        let tls_config_by = |ca: &TestCa| {
            let names = self.names.iter().map(String::as_str);
            let names: Vec<&str> = ["127.0.0.1", "localhost"].into_iter().chain(names).collect();
            ca.server_config(&names, self.has_http2)
        };
        let tls = self.ca.as_ref().map(tls_config_by);
        let releases_tls = self.releases_ca.as_ref().map(tls_config_by).or_else(|| tls.clone());
        let registry_listener = Listener::reserve_at(self.address, tls);
        let releases_listener = self.has_releases_elsewhere.then(|| Listener::reserve(releases_tls));
        let registry = Registry {
            settings: FixedSettings {
                registry_origin: registry_listener.origin(),
                releases_origin: releases_listener.as_ref().map(Listener::origin),
                file_urls: self.file_urls,
                has_absolute_services: self.has_absolute_services,
                token: self.token,
            },
            state: State::default().into(),
            requests: Requests::default(),
        };
        let mut upstream =
            FakeUpstream { registry: Arc::new(registry), registry_listener, releases_listener, ca: self.ca };
        upstream.restart().await;
        upstream
    }
}
