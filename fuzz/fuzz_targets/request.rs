//! Complete requests, as bytes on a connection, through the HTTP server and the main listener of an offline larder. The
//! response is valid HTTP, and never a 500.
#![no_main]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use larder::app::{StartSettings, mirror};
use larder::clock::Clock;
use larder::config::Config;
use larder::http::clients::Clients;
use larder::http::listener::Peer;
use larder::http::{MainListener, RequestMetrics, Runs};
use larder::protocol::Protocols;
use larder::protocol::route::{Mount, RouteContext};
use larder::store::ReadBudget;
use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;

/// The statuses that a request may get. Left out are 500, and 204, 206, 302, 502 and 504: this larder has nothing to
/// send or to redirect to, and no upstream.
const POSSIBLE_STATUSES: [&str; 15] =
    ["200", "304", "400", "403", "404", "405", "411", "413", "414", "416", "421", "431", "501", "503", "508"];

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime"));

static LARDER: LazyLock<(Arc<MainListener>, TempDir)> = LazyLock::new(|| {
    let memory = PathBuf::from("/dev/shm");
    let folder = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() }.expect("a folder");
    let text = format!(
        "[server]\ndefault_upstream = 'registry.example'\nclients = ['10.0.0.0/8']\ntrusted_proxies = ['10.9.0.5']\n\
         [network]\noffline = true\n[store]\npath = '{}'\n[[upstream]]\nhost = 'registry.example'\n",
        folder.path().display()
    );
    let (config, _) = Config::parse(&text, "/nowhere/mirror.toml".as_ref(), &|_| None).expect("a configuration");
    let (mirror, _, _) = mirror(&config, &StartSettings::default()).expect("a mirror");
    let hosts = config.upstreams.iter().map(|upstream| upstream.host.clone());
    let routes = RouteContext { upstreams: hosts.collect(), default_upstream: config.server.default_upstream.clone() };
    let config_in_use = mirror.runtime.config();
    let runs = Runs::new(&mirror.library, Clock::system());
    // Without a `public_url` larder is mounted at the root: paths have no prefix.
    let protocols = Protocols::new(mirror, config_in_use, Mount::new(None), routes, 1 << 20);
    let (allowed, trusted_proxies) = (config.server.clients, config.server.trusted_proxies);
    let clients = Clients { allowed, runs: None, trusted_proxies };
    (MainListener::new(Arc::new(protocols), RequestMetrics::default(), clients, runs, Clock::system()), folder)
});

fuzz_target!(|request: &[u8]| {
    let answers = RUNTIME.block_on(respond(request));
    let mut remaining = answers.as_slice();
    if remaining.is_empty() {
        return;
    }
    let Some(status) = remaining.strip_prefix(b"HTTP/1.1 ").or(remaining.strip_prefix(b"HTTP/1.0 ")) else {
        panic!("{}", String::from_utf8_lossy(remaining));
    };
    let status = std::str::from_utf8(&status[..3]).expect("digits");
    assert!(POSSIBLE_STATUSES.contains(&status), "{}", String::from_utf8_lossy(&answers));
    // No header of the request is echoed in the response.
    let end = remaining.windows(4).position(|window| window == b"\r\n\r\n").expect("the headers end");
    remaining = &remaining[..end];
    let names = remaining.split(|byte| *byte == b'\n').skip(1).map(|line| line.split(|byte| *byte == b':').next());
    const RESPONSE_HEADERS: [&str; 15] = [
        "content-type",
        "content-length",
        "cache-control",
        "cache-status",
        "date",
        "etag",
        "vary",
        "allow",
        "accept-ranges",
        "content-range",
        "content-encoding",
        "connection",
        "content-security-policy",
        "referrer-policy",
        "x-content-type-options",
    ];
    for name in names.flatten() {
        let name = String::from_utf8_lossy(name).to_lowercase();
        assert!(RESPONSE_HEADERS.contains(&name.as_str()) || name == "transfer-encoding", "{name}");
    }
});

async fn respond(request: &[u8]) -> Vec<u8> {
    let (mut client, server) = tokio::io::duplex(1 << 20);
    let main = Arc::clone(&LARDER.0);
    let peer =
        Peer { address: SocketAddr::from(([10, 9, 0, 5], 4711)), tls: None, memory: ReadBudget::new(1 << 20).share() };
    let service = service_fn(move |request| {
        let (main, peer) = (Arc::clone(&main), peer.clone());
        async move { Ok::<_, std::convert::Infallible>(main.handle(request, peer).await) }
    });
    let serving = tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(server), service));
    let mut answers = Vec::new();
    if client.write_all(request).await.is_ok() && client.shutdown().await.is_ok() {
        // The server may close the connection after a bad request; the bytes received so far count.
        let _ = client.read_to_end(&mut answers).await;
    }
    drop(client);
    let ended = serving.await;
    assert!(ended.is_ok(), "{ended:?}");
    answers
}
