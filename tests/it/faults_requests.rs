//! Malformed and hostile requests: odd paths and hosts, partial requests, silent connections, reset storms. They get an
//! error or a closed connection, and other clients are served as usual.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::larder::{Builder, HOST, Larder};
use crate::support::upstream::{FakeUpstream, Provider, Target};
use crate::support::{TEST_TIMEOUT, eventually};

async fn upstream_with_null() -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(100_000));
    upstream
}

async fn connect(larder: &Larder) -> TcpStream {
    TcpStream::connect(larder.address()).await.unwrap()
}

/// Reads until larder closes the connection.
async fn read_to_close(stream: &mut TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    // A reset ends the connection too.
    let _ = timeout(TEST_TIMEOUT, stream.read_to_end(&mut answer)).await.expect("larder keeps the connection");
    answer
}

/// The status line and the body of the response to these bytes; empty without a response.
async fn send_raw(larder: &Larder, request: &[u8]) -> (String, String) {
    let mut stream = connect(larder).await;
    stream.write_all(request).await.unwrap();
    let answer = String::from_utf8_lossy(&read_to_close(&mut stream).await).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    (head.lines().next().unwrap_or_default().to_owned(), body.to_owned())
}

fn request_bytes(path: &[u8], host: &[u8]) -> Vec<u8> {
    [b"GET ", path, b" HTTP/1.1\r\nHost: ", host, b"\r\nConnection: close\r\n\r\n"].concat()
}

async fn assert_others_are_served(larder: &Larder) {
    let path = larder.archive_path("null", "1.2.0").await;
    larder.get(&path).await.expect(200);
    larder.get("/healthz").await.expect(200);
}

/// Promise 7: these bytes are sent as they are; a client library would normalise them.
#[tokio::test]
async fn no_path_reaches_anything_but_mirrored_content() {
    let upstream = upstream_with_null().await;
    let larder = Larder::mirroring(&upstream).start().await;
    std::fs::write(larder.folder.path().join("secret"), "s3cret").unwrap();
    let providers = format!("/registry/{HOST}/v1/providers");
    let archive = format!("/archive/{HOST}/providers/acme/null/1.2.0/linux_amd64/0123456789abcdef");
    let long = "a".repeat(60_000);
    let paths: Vec<(Vec<u8>, &[&str])> = vec![
        (b"/../secret".into(), &["400"]),
        (b"/../../../../etc/passwd".into(), &["400"]),
        (b"/%2e%2e/secret".into(), &["400"]),
        (b"/registry/../secret".into(), &["400"]),
        (b"/archive/..%2f..%2fsecret".into(), &["400"]),
        (b"/archive/..%5c..%5csecret".into(), &["400"]),
        (format!("{archive}/..%2f..%2f..%2fsecret").into(), &["400"]),
        (format!("{archive}/%2e%2e").into(), &["400"]),
        (format!("{archive}/../../../../../../../../secret").into(), &["400"]),
        (format!("{archive}/f%00.zip").into(), &["400"]),
        (format!("{providers}/acme/../../../../secret").into(), &["400"]),
        (format!("{providers}/acme/null%2fversions").into(), &["400", "404"]),
        (format!("{providers}/acme%00/null/versions").into(), &["400"]),
        (format!("{providers}/acme/%c0%ae%c0%ae/versions").into(), &["400"]),
        (format!("{providers}/acme/%ff%fe/versions").into(), &["400"]),
        (format!("{providers}/acme/{}/versions", "%41".repeat(200)).into(), &["400"]),
        (format!("{providers}/acme/{long}/versions").into(), &["400", "414", "431"]),
        ([providers.as_bytes(), b"/acme/\xff\xfe/versions"].concat(), &["400"]),
        ([providers.as_bytes(), b"/acme/\x00/versions"].concat(), &["400"]),
        ([providers.as_bytes(), "/acme/nüll/versions".as_bytes()].concat(), &["400"]),
        (format!("//{HOST}/v1/providers/acme/null/versions").into(), &["400", "404"]),
        (b"*".into(), &["400", "404"]),
        (b"http://169.254.169.254/latest/meta-data/".into(), &["400", "404"]),
        (format!("{}/v1/providers/acme/null/versions", upstream.origin()).into(), &["400", "421"]),
        (b"/registry/169.254.169.254/v1/providers/acme/null/versions".into(), &["421"]),
        (b"/registry/user:pass@registry.terraform.io/v1/providers/acme/null/versions".into(), &["400", "421"]),
        (b"/mirror/unknown.example/acme/null/index.json".into(), &["404"]),
    ];
    for (path, expected) in paths {
        let shown = String::from_utf8_lossy(&path[..path.len().min(120)]).into_owned();
        let (status, body) = send_raw(&larder, &request_bytes(&path, b"mirror.example")).await;
        assert!(expected.iter().any(|code| status.contains(code)), "{shown}: {status} {body}");
        assert!(!body.contains("s3cret") && !body.contains("root:"), "{shown}: {body}");
    }
    assert_eq!(upstream.count_of(Target::Everything), 0, "{:?}", upstream.requests());
    assert_others_are_served(&larder).await;
}

/// An unknown or malformed Host is refused with the reason, and none of these selects an upstream.
#[tokio::test]
async fn malformed_hosts_are_refused_without_an_upstream_request() {
    let upstream = upstream_with_null().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let long = "a".repeat(5000);
    let odd: [&[u8]; 15] = [
        b"",
        b" ",
        b"unknown.example",
        b"registry.terraform.io.",
        b"registry.terraform.io@evil.example",
        b"evil.example/registry.terraform.io",
        b"registry.terraform.io:99999",
        b"registry.terraform.io:80:80",
        b"[::1",
        b"..",
        b"\xff\xfe",
        b"xn--",
        b"a b",
        b"%72egistry.terraform.io",
        long.as_bytes(),
    ];
    for host in odd {
        let (status, body) = send_raw(&larder, &request_bytes(b"/.well-known/terraform.json", host)).await;
        let shown = String::from_utf8_lossy(&host[..host.len().min(60)]).into_owned();
        // A name with a final dot is the same host.
        if host == b"registry.terraform.io." && status.contains("200") {
            continue;
        }
        assert!(["400", "421"].iter().any(|code| status.contains(code)), "{shown:?}: {status} {body}");
        assert!(!body.contains("providers.v1\":"), "{shown:?}: {body}");
    }
    let two_hosts =
        b"GET /.well-known/terraform.json HTTP/1.1\r\nHost: a.example\r\nHost: b.example\r\nConnection: close\r\n\r\n";
    let no_host = b"GET /.well-known/terraform.json HTTP/1.0\r\n\r\n";
    for request in [&two_hosts[..], &no_host[..]] {
        let (status, body) = send_raw(&larder, request).await;
        assert!(["400", "421"].iter().any(|code| status.contains(code)), "{status} {body}");
    }
    assert_others_are_served(&larder).await;
}

/// Promise 11: bytes that are not HTTP end their own connection only.
#[tokio::test]
async fn garbage_on_a_connection_closes_only_that_connection() {
    let upstream = upstream_with_null().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let huge_header = [&request_bytes(b"/healthz", b"x")[..20], &b"X: ".repeat(40_000)].concat();
    let many_headers = [&b"GET /healthz HTTP/1.1\r\n"[..], &b"X-A: b\r\n".repeat(5000), b"\r\n"].concat();
    let chunks = b"GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzzzz\r\n".to_vec();
    let smuggled = b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!".to_vec();
    let tls_hello = [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &[7; 300]].concat();
    let preface = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &[0xff; 4096]].concat();
    for noise in [vec![0; 4096], vec![b'\n'; 200_000], huge_header, many_headers, chunks, smuggled, tls_hello, preface]
    {
        let mut stream = connect(&larder).await;
        // Larder may close the connection while the bytes are being sent.
        let _ = stream.write_all(&noise).await;
        let _ = stream.shutdown().await;
        let answer = String::from_utf8_lossy(&read_to_close(&mut stream).await).into_owned();
        assert!(answer.len() < 64 * 1024, "{} bytes of answer to noise", answer.len());
    }
    assert_others_are_served(&larder).await;
}

fn larder_with_short_timeouts(upstream: &FakeUpstream) -> Builder {
    Larder::mirroring(upstream).head_within(Duration::from_secs(1)).idle(Duration::from_secs(2))
}

/// Promise 11: an unfinished request is cut off wherever it stops, also when single bytes still arrive.
#[tokio::test]
async fn half_sent_requests_and_slow_heads_are_cut_off() {
    let upstream = upstream_with_null().await;
    let whole = request_bytes(b"/healthz", b"mirror.example");
    // Without the time limits, the partial requests delay no other client.
    let hour = Duration::from_secs(3600);
    let patient = Larder::mirroring(&upstream).head_within(hour).idle(hour).start().await;
    let mut hanging = Vec::new();
    for offset in (0..whole.len() - 1).step_by(9) {
        let mut stream = connect(&patient).await;
        stream.write_all(&whole[..offset]).await.unwrap();
        hanging.push(stream);
    }
    assert_others_are_served(&patient).await;
    drop(hanging);
    let larder = larder_with_short_timeouts(&upstream).start().await;
    let halves = (0..whole.len() - 1).step_by(9).map(|offset| {
        let (larder, half) = (&larder, &whole[..offset]);
        async move {
            let mut stream = connect(larder).await;
            stream.write_all(half).await.unwrap();
            read_to_close(&mut stream).await
        }
    });
    let dripping = async {
        let mut stream = connect(&larder).await;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n").await.unwrap();
        // Sends single bytes and never a complete head.
        eventually("a slow request head is cut off", async || stream.write_all(b"X").await.err()).await;
    };
    let (answers, (), ()) = tokio::join!(join_all(halves), dripping, assert_others_are_served(&larder));
    assert!(answers.iter().all(|answer| !answer.starts_with(b"HTTP/1.1 200")));
    assert_others_are_served(&larder).await;
}

/// Promise 11: idle connections are cheap, delay no other client, and are closed.
#[tokio::test]
async fn a_thousand_idle_connections_delay_no_other_client_and_are_closed() {
    let upstream = upstream_with_null().await;
    let larder = larder_with_short_timeouts(&upstream).start().await;
    let mut idle = Vec::new();
    for number in 0..1000 {
        let mut stream = connect(&larder).await;
        if number % 2 == 0 {
            // Half of them are keep-alive connections after one request.
            stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        }
        idle.push(stream);
    }
    assert_others_are_served(&larder).await;
    let ended = join_all(idle.iter_mut().map(read_to_close)).await;
    let served = ended.iter().filter(|answer| answer.starts_with(b"HTTP/1.1 200")).count();
    assert_eq!(served, 500);
    assert_others_are_served(&larder).await;
}

/// Promise 4: clients that disconnect do not affect the other clients of a shared download.
#[tokio::test]
async fn a_client_that_disconnects_half_way_does_not_affect_others_of_the_same_download() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(4_000_000));
    let larder = Larder::mirroring(&upstream).start().await;
    let path = larder.archive_path("null", "1.2.0").await;
    let gate = upstream.hold_after(Target::Archive, 2_000_000);
    let start_download = async || {
        let response = crate::support::http::client().get(format!("{}{path}", larder.base())).send().await.unwrap();
        assert_eq!(response.status(), 200);
        response
    };
    let mut first = start_download().await;
    let mut others = join_all((0..6).map(|_| start_download())).await;
    // The client that started the fill, one that resets its connection, and three of the other six disconnect.
    first.chunk().await.unwrap().unwrap();
    drop(first);
    let mut leaving = connect(&larder).await;
    leaving.write_all(&request_bytes(path.as_bytes(), b"x")).await.unwrap();
    leaving.read_exact(&mut [0; 100_000]).await.unwrap();
    leaving.set_zero_linger().unwrap();
    drop(leaving);
    others.truncate(3);
    let late_response = start_download().await;
    gate.open();
    let expected = upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64");
    for response in others.into_iter().chain([late_response]) {
        assert!(response.bytes().await.unwrap() == expected, "who stayed got other bytes");
    }
    assert_eq!((upstream.count_of(Target::Archive), larder.folder.blobs().len()), (1, 1));
    assert!(larder.get(&path).await.expect(200).has_cache_status("larder; hit"));
}

/// The first JSON error of a response with this status.
fn error_with_status(status: &str, answer: &(String, String)) -> String {
    assert!(answer.0.contains(status), "{answer:?}");
    let json: serde_json::Value = serde_json::from_str(&answer.1).unwrap_or_else(|e| panic!("{e}: {answer:?}"));
    json["errors"][0].as_str().expect("an error").to_owned()
}

/// Promise 11: a request with no Host, or with two, is refused on both listeners: a proxy in front may have routed it
/// by another name.
#[tokio::test]
async fn a_request_names_exactly_one_host() {
    let upstream = upstream_with_null().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let admin: std::net::SocketAddr = larder.admin().strip_prefix("http://").unwrap().parse().unwrap();
    for address in [larder.address(), admin] {
        let request_once = async |version: &str, hosts: &str| {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let request = format!("GET /healthz {version}\r\n{hosts}Connection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let answer = String::from_utf8_lossy(&read_to_close(&mut stream).await).into_owned();
            let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
            (head.lines().next().unwrap_or_default().to_owned(), body.to_owned())
        };
        for two in ["Host: localhost\r\nHost: localhost\r\n", "Host: a.example\r\nHost: localhost\r\n"] {
            let output = error_with_status(" 400 ", &request_once("HTTP/1.1", two).await);
            assert!(output.contains("more than one Host"), "{output}");
        }
        let output = error_with_status(" 400 ", &request_once("HTTP/1.1", "").await);
        assert!(output.contains("no Host"), "{output}");
        for (version, hosts) in [("HTTP/1.1", "Host: localhost\r\n"), ("HTTP/1.0", "")] {
            let (status, _) = request_once(version, hosts).await;
            assert!(status.contains(" 200 "), "{version} {hosts}: {status}");
        }
    }
    assert_eq!(larder.metric("larder_refusals_total").await, 6.0);
}
