//! A server under comparison, as clients see it: its addresses, its paths for the common resources, and its processes.

use std::collections::HashMap;
use std::net::SocketAddr;

use anyhow::{Context as _, ensure};
use http::header::ACCEPT_ENCODING;

use crate::process::processor_time;

/// The compared servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerName {
    Larder,
    /// The larder of another binary.
    Beside,
    Nginx,
    Varnish,
    /// A minimal server on hyper.
    Hyper,
}

impl ServerName {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Larder => "larder",
            Self::Beside => "the other larder",
            Self::Nginx => "nginx",
            Self::Varnish => "varnish",
            Self::Hyper => "hyper",
        }
    }
}

/// The resources that every compared server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Resource {
    /// The long version list.
    VersionList,
    DownloadDocument,
    /// A `VERSION.json` of the network mirror.
    MirrorVersion,
    /// The archive of a provider, by its name.
    Archive(&'static str),
}

/// The protocol to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientProtocol {
    Http1,
    Http1Tls,
}

impl ClientProtocol {
    pub(crate) const ALL: [Self; 2] = [Self::Http1, Self::Http1Tls];

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Http1 => "HTTP/1.1",
            Self::Http1Tls => "TLS, HTTP/1.1",
        }
    }

    pub(crate) fn is_tls(self) -> bool {
        self == Self::Http1Tls
    }
}

/// The addresses at which one server listens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    pub(crate) plain: SocketAddr,
    pub(crate) tls: SocketAddr,
}

/// One compared server.
#[derive(Clone, Debug)]
pub(crate) struct ComparedServer {
    pub(crate) name: ServerName,
    pub(crate) addresses: Addresses,
    pub(crate) paths: HashMap<Resource, String>,
    pub(crate) processes: Processes,
}

/// The processes whose processor time and memory are measured: those without TLS and those with it.
#[derive(Clone, Debug)]
pub(crate) struct Processes {
    pub(crate) plain: Vec<u32>,
    pub(crate) tls: Vec<u32>,
}

impl Processes {
    /// Processes that serve both without TLS and with it.
    pub(crate) fn both(processes: Vec<u32>) -> Self {
        Self { plain: processes.clone(), tls: processes }
    }
}

impl ComparedServer {
    pub(crate) fn address(&self, protocol: ClientProtocol) -> SocketAddr {
        match protocol {
            ClientProtocol::Http1 => self.addresses.plain,
            ClientProtocol::Http1Tls => self.addresses.tls,
        }
    }

    pub(crate) fn path(&self, resource: Resource) -> anyhow::Result<&str> {
        let path = self.paths.get(&resource);
        path.map(String::as_str).with_context(|| format!("{} has no {resource:?}", self.name.text()))
    }

    /// The processes that answer in this protocol.
    pub(crate) fn processes(&self, protocol: ClientProtocol) -> &[u32] {
        if protocol.is_tls() { &self.processes.tls } else { &self.processes.plain }
    }

    /// The processor time of these processes so far, in seconds.
    pub(crate) fn processor_seconds(&self, protocol: ClientProtocol) -> f64 {
        processor_time(self.processes(protocol)).as_secs_f64()
    }
}

/// A client for requests that are not measured: trusts any certificate, and decodes no content coding.
pub(crate) fn client() -> anyhow::Result<reqwest::Client> {
    let client = reqwest::Client::builder().no_proxy().no_gzip();
    Ok(client.danger_accept_invalid_certs(true).redirect(reqwest::redirect::Policy::none()).build()?)
}

/// Repeats a request in both codings until the server reports a hit. All later requests are hits.
pub(crate) async fn warm(client: &reqwest::Client, url: &str) -> anyhow::Result<()> {
    for coding in ["gzip", "identity"] {
        let mut output = String::new();
        for _ in 0..4 {
            let answer = client.get(url).header(ACCEPT_ENCODING, coding).send().await?.error_for_status()?;
            let cache_headers = ["cache-status", "x-cache"].map(|name| answer.headers().get(name).cloned());
            output = format!("{cache_headers:?}");
            answer.bytes().await?;
        }
        ensure!(
            output.contains("larder; hit") || output.contains("HIT"),
            "{url} is not served from the cache: {output}"
        );
    }
    Ok(())
}

/// The path of an archive, as this download document names it: larder's URLs are absolute over TLS.
pub(crate) async fn archive_path(client: &reqwest::Client, document_url: &str) -> anyhow::Result<String> {
    let answer = client.get(document_url).send().await?.error_for_status()?;
    let document: serde_json::Value = serde_json::from_slice(&answer.bytes().await?)?;
    let archive_url = document["download_url"].as_str().context("a document without download_url")?;
    Ok(reqwest::Url::parse(document_url)?.join(archive_url)?.path().to_owned())
}
