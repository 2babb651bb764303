//! Promise 11: connection limits, so that no client can use up all connections. On Linux, tests can connect from any
//! address in 127.0.0.0/8.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use larder::app::StartSettings;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::support::larder::{Builder, Folder, HOST, Larder};
use crate::support::larder_commands::run_larder_in;
use crate::support::process::Process;
use crate::support::upstream::{FakeUpstream, Provider, Target};
use crate::support::{TEST_TIMEOUT, until};

/// Longer than any test.
const HOUR: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(300);

/// A larder that closes no idle connections. Its clients are 127.0.0.1 and 127.0.0.9.
fn larder_without_idle_limit(upstream: &FakeUpstream) -> Builder {
    let larder = Larder::mirroring(upstream).head_within(HOUR).idle(HOUR);
    larder.server("clients = [\"127.0.0.1\", \"127.0.0.9\"]")
}

async fn connect_from(address: &str, target: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{address}:0").parse().unwrap()).unwrap();
    socket.connect(target).await.unwrap()
}

/// Sends a keep-alive request and reads one response; empty if larder closes the connection without one.
async fn request_once(stream: &mut TcpStream, path: &str, headers: &str) -> String {
    // A closed connection fails here or at the read below.
    let _ = stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n").as_bytes()).await;
    let mut answer = Vec::new();
    let one_answer = async {
        loop {
            let text = String::from_utf8_lossy(&answer).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
                if body.len() >= length.parse::<usize>().unwrap() {
                    return text;
                }
            }
            match stream.read_u8().await {
                Ok(byte) => answer.push(byte),
                Err(_) => return text,
            }
        }
    };
    timeout(TEST_TIMEOUT, one_answer).await.expect("a response or the end of the connection")
}

/// True if larder closes the connection and sends nothing more.
async fn is_closed(stream: &mut TcpStream) -> bool {
    let mut further_bytes = Vec::new();
    // A reset ends the connection too.
    let _ = timeout(TEST_TIMEOUT, stream.read_to_end(&mut further_bytes)).await.expect("larder keeps the connection");
    further_bytes.is_empty()
}

#[test]
fn outsiders_and_each_address_get_at_most_a_quarter_of_the_connections() {
    let limits = StartSettings::default().connections;
    assert_eq!((limits.connections, limits.outsiders, limits.each_address), (4096, 1024, 1024));
    assert_eq!(limits.outsider_time, Duration::from_secs(10));
}

/// Promise 11: addresses that are not clients cannot lock out clients, and their refused connections are counted.
#[tokio::test]
async fn idle_connections_of_outsiders_do_not_lock_out_clients() {
    let upstream = FakeUpstream::start().await;
    let larder = larder_without_idle_limit(&upstream).connections(|limits| {
        (limits.connections, limits.outsiders, limits.outsider_time) = (8, 2, HOUR);
    });
    let larder = larder.start().await;
    let mut idle = Vec::new();
    for number in 0..12 {
        idle.push(connect_from(&format!("127.0.1.{number}"), larder.address()).await);
    }
    larder.get("/healthz").await.expect(200);
    let refused = "larder_connections_refused_total";
    until("the refused connections are counted", async || larder.metric(refused).await == 10.0).await;
    // Admitted outsiders may still send a request; when one of them ends, another is admitted.
    assert!(request_once(&mut idle[0], "/nowhere", "").await.starts_with("HTTP/1.1 403 "));
    until("another connection is admitted", async || {
        let mut another = connect_from("127.0.2.1", larder.address()).await;
        request_once(&mut another, "/nowhere", "").await.starts_with("HTTP/1.1 403 ")
    })
    .await;
    for stream in &mut idle[2..] {
        assert!(is_closed(stream).await);
    }
}

/// Promise 11: one response with the reason, then the connection is closed; also for a health probe.
#[tokio::test]
async fn an_outsider_gets_one_response_per_connection() {
    let upstream = FakeUpstream::start().await;
    let larder = larder_without_idle_limit(&upstream).start().await;
    for (path, status) in [("/nowhere", "403"), ("/healthz", "200")] {
        let mut outsider = connect_from("127.0.0.2", larder.address()).await;
        let answer = request_once(&mut outsider, path, "").await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert!(answer.contains("connection: close\r\n"), "{answer}");
        assert!(is_closed(&mut outsider).await);
    }
    let mut client = connect_from("127.0.0.9", larder.address()).await;
    for _ in 0..3 {
        let answer = request_once(&mut client, "/healthz", "").await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && !answer.contains("connection: close"), "{answer}");
    }
}

/// Promise 11: an outsider that sends no complete request loses its connection, whatever it sends instead.
#[tokio::test]
async fn an_outsider_without_a_request_is_disconnected_after_a_time() {
    let upstream = FakeUpstream::start().await;
    let larder = larder_without_idle_limit(&upstream);
    let larder = larder.connections(|limits| limits.outsider_time = SHORT).start().await;
    let silent = [&b""[..], b"GET /healthz HTT", b"PRI"].map(|bytes| async {
        let mut outsider = connect_from("127.0.0.2", larder.address()).await;
        outsider.write_all(bytes).await.unwrap();
        is_closed(&mut outsider).await
    });
    let mut client = connect_from("127.0.0.9", larder.address()).await;
    join_all(silent).await;
    let refused = "larder_connections_refused_total";
    until("the disconnected outsiders are counted", async || larder.metric(refused).await == 3.0).await;
    assert!(
        request_once(&mut client, "/healthz", "").await.starts_with("HTTP/1.1 200 "),
        "the time limit of outsiders applied to a client"
    );
}

/// Promise 11: one address leaves connections for others, loopback included; a trusted proxy is exempt because it
/// connects for many.
#[tokio::test]
async fn connections_of_one_address_are_limited_unless_it_is_a_trusted_proxy() {
    let upstream = FakeUpstream::start().await;
    for clients in ["", "clients = [\"127.0.0.0/8\"]"] {
        let larder = Larder::mirroring(&upstream).head_within(HOUR).idle(HOUR).server(clients);
        let larder = larder.server("trusted_proxies = [\"127.0.0.3\"]");
        let larder = larder.connections(|limits| limits.each_address = 8).start().await;
        let mut connections = Vec::new();
        for _ in 0..8 {
            connections.push(connect_from("127.0.0.2", larder.address()).await);
        }
        let mut ninth = connect_from("127.0.0.2", larder.address()).await;
        assert!(request_once(&mut ninth, "/nowhere", "").await.starts_with("HTTP/1.1 503 "), "{clients}");
        let refused = "larder_connections_refused_total";
        until("the refused connection is counted", async || larder.metric(refused).await == 1.0).await;
        larder.get("/healthz").await.expect(200);
        for stream in &mut connections {
            assert!(request_once(stream, "/healthz", "").await.starts_with("HTTP/1.1 200 "));
        }
        drop(connections.pop());
        until("another connection is admitted", async || {
            let mut another = connect_from("127.0.0.2", larder.address()).await;
            request_once(&mut another, "/nowhere", "").await.starts_with("HTTP/1.1 404 ")
        })
        .await;
        let mut proxy_connections = Vec::new();
        for _ in 0..20 {
            let mut stream = connect_from("127.0.0.3", larder.address()).await;
            for _ in 0..2 {
                assert!(request_once(&mut stream, "/healthz", "").await.starts_with("HTTP/1.1 200 "));
            }
            proxy_connections.push(stream);
        }
    }
}

/// Promise 11: clients keep connections that they no longer need. Where all are taken, or all of an address, the one that is
/// idle for the longest time gives way, and none that is in use.
#[tokio::test]
async fn an_idle_connection_gives_way_to_a_request() {
    for is_limit_of_address in [false, true] {
        let upstream = FakeUpstream::start().await;
        upstream.publish(Provider::new("acme", "null"));
        let larder = larder_without_idle_limit(&upstream).connections(|limits| match is_limit_of_address {
            true => limits.each_address = 4,
            false => limits.connections = 4,
        });
        let larder = larder.start().await;
        let new = || connect_from("127.0.0.9", larder.address());
        let mut kept = [new().await, new().await, new().await, new().await];
        // In use since before the others, or never used: that is not idle.
        let gate = upstream.hold_headers(Target::Versions);
        let list = format!("GET /registry/{HOST}/v1/providers/acme/null/versions HTTP/1.1\r\nHost: localhost\r\n\r\n");
        kept[2].write_all(list.as_bytes()).await.unwrap();
        upstream.wait_for(Target::Versions, 1).await;
        for number in [1, 0] {
            assert!(request_once(&mut kept[number], "/nowhere", "").await.starts_with("HTTP/1.1 404 "));
        }
        for longest_idle in [1, 0] {
            let mut another = new().await;
            let answer = request_once(&mut another, "/nowhere", "").await;
            assert!(answer.starts_with("HTTP/1.1 404 ") && !answer.contains("connection: close"), "{answer}");
            assert!(is_closed(&mut kept[longest_idle]).await);
            kept[longest_idle] = another;
        }
        gate.open();
        let mut start = [0; 12];
        kept[2].read_exact(&mut start).await.unwrap();
        assert_eq!(&start, b"HTTP/1.1 200");
        for number in [0, 1, 3] {
            assert!(request_once(&mut kept[number], "/nowhere", "").await.starts_with("HTTP/1.1 404 "));
        }
    }
}

/// Promise 11: an address that is no client takes no connection from one.
#[tokio::test]
async fn no_connection_gives_way_to_an_outsider() {
    let upstream = FakeUpstream::start().await;
    let larder = larder_without_idle_limit(&upstream).connections(|limits| {
        (limits.connections, limits.slot_wait) = (1, SHORT);
    });
    let larder = larder.start().await;
    let mut client = connect_from("127.0.0.9", larder.address()).await;
    assert!(request_once(&mut client, "/nowhere", "").await.starts_with("HTTP/1.1 404 "));
    let refused = request_once(&mut connect_from("127.0.1.1", larder.address()).await, "/nowhere", "").await;
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    assert!(request_once(&mut client, "/nowhere", "").await.starts_with("HTTP/1.1 404 "));
}

/// Promise 8: a refused client behind a trusted proxy does not close the proxy's connection.
#[tokio::test]
async fn a_trusted_proxys_connection_continues_after_a_refusal() {
    let upstream = FakeUpstream::start().await;
    let larder = larder_without_idle_limit(&upstream).server("trusted_proxies = [\"127.0.0.3\"]").start().await;
    let mut proxy = connect_from("127.0.0.3", larder.address()).await;
    for (client, status) in [("192.0.2.1", "403"), ("127.0.0.9", "404"), ("192.0.2.1", "403"), ("127.0.0.1", "404")] {
        let answer = request_once(&mut proxy, "/nowhere", &format!("X-Forwarded-For: {client}\r\n")).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{client}: {answer}");
    }
}

/// Promise 11: two thousand clients of one address that read nothing take neither the connections of others, nor the files of
/// the store, nor the admin service, whatever the limit of open files is.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_do_not_read_leave_descriptors_for_others() {
    for (limits, is_short) in [("ulimit -Sn 1024 && ulimit -Hn 4096", true), ("ulimit -n 1024", true)] {
        let upstream = FakeUpstream::start().await;
        upstream.publish(Provider::new("acme", "null").size(12_000_000));
        upstream.publish(Provider::new("acme", "other").size(12_000_000));
        let folder = Folder::new();
        let larder =
            Process::serve_after(limits, &Larder::mirroring(&upstream).store_at(&folder), folder.path()).unwrap();
        let [archive, other] = [larder.archive_path("null").await, larder.archive_path("other").await];
        for path in [&archive, &other] {
            assert_eq!(larder.get(path).await.status, 200);
        }
        let target: SocketAddr = larder.base().strip_prefix("http://").unwrap().parse().unwrap();
        let idle = Arc::new(Mutex::new(Vec::new()));
        let crowd = tokio::spawn({
            let (archive, idle) = (archive.clone(), Arc::clone(&idle));
            async move {
                for _ in 0..2000 {
                    let mut client = connect_from("127.0.0.5", target).await;
                    let head = format!("GET {archive} HTTP/1.1\r\nHost: localhost\r\n\r\n");
                    // Larder may have closed it already.
                    let _ = client.write_all(head.as_bytes()).await;
                    idle.lock().push(client);
                }
            }
        });
        let mut worst = Duration::ZERO;
        let mut rounds_after = 0;
        while rounds_after < 5 {
            rounds_after += usize::from(crowd.is_finished());
            let list = format!("/registry/{HOST}/v1/providers/acme/null/versions");
            for (from, path) in [("127.0.0.5", "/healthz"), ("127.0.0.9", "/healthz"), ("127.0.0.9", &*list)] {
                let asked = Instant::now();
                let mut answer;
                // The crowd connects faster than it is refused, so a probe from its own address may have to try again.
                loop {
                    answer = request_once(&mut connect_from(from, target).await, path, "").await;
                    if !answer.is_empty() || from != "127.0.0.5" || asked.elapsed() > TEST_TIMEOUT {
                        break;
                    }
                }
                assert!(answer.starts_with("HTTP/1.1 200 "), "{limits}: {from} {path}: {answer}");
                worst = worst.max(asked.elapsed());
            }
            let asked = Instant::now();
            let status = run_larder_in(folder.path(), &folder, &["status"]).await;
            assert_eq!(status.code, Some(0), "{limits}: {status:?}");
            worst = worst.max(asked.elapsed());
        }
        crowd.await.unwrap();
        let held = idle.lock().len();
        println!("{limits}: {held} clients connected, the slowest of the other answers took {worst:?}");
        // All clients of one archive share its file.
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", larder.id())).unwrap();
        let opened = descriptors.filter_map(|descriptor| std::fs::read_link(descriptor.ok()?.path()).ok());
        assert_eq!(opened.filter(|file| file.to_string_lossy().contains("/blobs/sha256/")).count(), 1, "{limits}");
        // An archive that nobody has open yet is served, too.
        let mut reader = connect_from("127.0.0.9", target).await;
        let head = format!("GET {other} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        reader.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        timeout(TEST_TIMEOUT, reader.read_to_end(&mut answer)).await.unwrap().unwrap();
        assert!(answer.len() > 12_000_000, "{limits}: {} bytes", answer.len());
        let doctor = run_larder_in(folder.path(), &folder, &["doctor"]).await;
        assert_eq!(doctor.out.contains("LimitNOFILE="), is_short, "{doctor:?}");
        let log = larder.log().text();
        assert!(log.contains("the limit of open files is") && !log.contains("cannot accept connections"), "{log}");
    }
}

/// A connection beyond the limit of its address is told so, and may ask for the health.
#[tokio::test]
async fn a_connection_beyond_the_limit_of_its_address_is_told_so() {
    let upstream = FakeUpstream::start().await;
    let larder = Larder::mirroring(&upstream).connections(|limits| limits.each_address = 2).start().await;
    let _idle = [connect_from("127.0.0.5", larder.address()).await, connect_from("127.0.0.5", larder.address()).await];
    let mut third = connect_from("127.0.0.5", larder.address()).await;
    let healthy = request_once(&mut third, "/healthz", "").await;
    assert!(healthy.starts_with("HTTP/1.1 200 ") && healthy.contains("connection: close"), "{healthy}");
    assert!(is_closed(&mut third).await);
    let mut third = connect_from("127.0.0.5", larder.address()).await;
    let refused = request_once(&mut third, "/", "").await;
    let reason = "HTTP/1.1 503 larder: 127.0.0.5 has 2 connections, which is as many as one address may have";
    assert!(refused.starts_with(reason) && refused.contains("connection: close"), "{refused}");
    assert!(is_closed(&mut third).await);
    let mut other = connect_from("127.0.0.6", larder.address()).await;
    assert!(!request_once(&mut other, "/", "").await.contains(" 503 "));
}
