//! A process from start to end: configuration, readiness, certificates, the log, and shutdown.

use std::fmt::Write;
use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;

use crate::support::eventually;
use crate::support::http::{client, get, send};
use crate::support::larder::{Folder, HOST, Larder};
use crate::support::process::{CommandOutput, Process, command, run, spawn_captured};
use crate::support::tls::TestCa;
use crate::support::upstream::{FakeUpstream, Provider, Target};

const LARGE_BYTES: usize = 3_000_000;

/// SIGTERM refuses new connections and lets downloads in flight finish.
#[tokio::test]
async fn sigterm_lets_a_running_download_finish_and_refuses_new_connections() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(LARGE_BYTES));
    let folder = Folder::new();
    let gate = upstream.hold_after(Target::Archive, LARGE_BYTES / 2);
    let mut larder = Process::start(&Larder::mirroring(&upstream).store_at(&folder), folder.path());
    let path = larder.archive_path("null").await;
    let pending_request = tokio::spawn(send(client().get(format!("{}{path}", larder.base()))));
    upstream.wait_for(Target::Archive, 1).await;

    larder.send_sigterm();
    let addresses = ["listen", "admin"].map(|name| larder.announcement()[name].as_str().unwrap().to_owned());
    for address in addresses {
        eventually("new connections are refused", async || TcpStream::connect(&address).await.err()).await;
    }
    assert!(!pending_request.is_finished(), "the download ended before its upstream did");
    gate.open();
    let answer = pending_request.await.unwrap().unwrap().expect(200);
    assert!(answer.body == upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64"));
    assert_eq!(larder.wait_for_exit().await, Some(0));

    let larder = Process::start(&Larder::mirroring(&upstream).store_at(&folder), folder.path());
    assert!(larder.get(&path).await.expect(200).has_cache_status("larder; hit"));
}

#[tokio::test]
async fn sigterm_without_downloads_exits_at_once_despite_open_connections() {
    let upstream = FakeUpstream::start().await;
    let folder = Folder::new();
    let larder = Process::start(&Larder::mirroring(&upstream).store_at(&folder), folder.path());
    let (client, probe) = (client(), format!("{}/healthz", larder.base()));
    send(client.get(&probe)).await.unwrap().expect(200);
    let _silent = TcpStream::connect(larder.base().strip_prefix("http://").unwrap()).await.unwrap();
    larder.terminate_promptly().await;
}

/// Promise 8: documents contain signed URLs, so only larder's own user may read the store, whatever mode its folder was
/// in.
#[tokio::test]
async fn the_store_folder_becomes_private_whatever_its_mode_was() {
    let (upstream, folder) = (FakeUpstream::start().await, Folder::new());
    let v1 = folder.path().join("v1");
    std::fs::create_dir(&v1).unwrap();
    std::fs::set_permissions(&v1, Permissions::from_mode(0o755)).unwrap();
    let _larder = Larder::mirroring(&upstream).store_at(&folder).start().await;
    assert_eq!(v1.metadata().unwrap().permissions().mode() & 0o777, 0o700);
}

/// Both listeners report readiness. Ready means that the store is usable, whatever the upstreams do.
#[tokio::test]
async fn readiness_follows_the_store_and_not_the_upstreams() {
    let mut upstream = FakeUpstream::start().await;
    let larder = Larder::mirroring(&upstream).start().await;
    upstream.stop().await;
    for listener in [larder.base().to_owned(), larder.admin()] {
        get(&format!("{listener}/healthz")).await.expect(200);
        get(&format!("{listener}/readyz")).await.expect(200);
    }
    let (v1, away) = (larder.folder.path().join("v1"), larder.folder.path().join("away"));
    std::fs::rename(&v1, &away).unwrap();
    for listener in [larder.base().to_owned(), larder.admin()] {
        get(&format!("{listener}/healthz")).await.expect(200);
        get(&format!("{listener}/readyz")).await.expect(503);
    }
    std::fs::rename(&away, &v1).unwrap();
    larder.get("/readyz").await.expect(200);
}

/// All problems are reported together, each with its line.
#[tokio::test]
async fn all_problems_of_a_bad_configuration_are_reported_at_once_with_their_lines() {
    let folder = Folder::new();
    let text =
        "[server]\nlisten = \"8080\"\nopne = true\n[store]\nmax_size = \"much\"\n[[upstream]]\nurl = \"ftp://x/\"\n";
    let error = Process::serve(text, folder.path()).err().expect("larder started");
    assert_eq!(error.code, Some(78), "{error:?}");
    let report: serde_json::Value = serde_json::from_str(&error.out).unwrap();
    assert_eq!(report["errors"].as_array().unwrap().len(), 5, "{error:?}");
    for problem in ["mirror.toml:2: server.listen", "mirror.toml:3: server.opne", "mirror.toml:5: store.max_size"] {
        assert!(error.err.contains(problem), "{problem} is not in: {}", error.err);
    }
    assert!(error.err.contains("mirror.toml:7: upstream.url"), "{}", error.err);
    assert!(!folder.path().join("v1").exists(), "a store was made all the same");
}

#[tokio::test]
async fn a_missing_configuration_file_that_was_named_is_an_error() {
    let folder = Folder::new();
    let CommandOutput { code, err, .. } = run(command(folder.path(), &["serve", "--config", "nowhere.toml"])).await;
    assert_eq!(code, Some(78), "{err}");
    assert!(err.contains("nowhere.toml: the configuration cannot be read"), "{err}");
}

/// Without any settings for them, both registries are mirrored, and the CLI configuration is printed.
#[tokio::test]
async fn serve_prints_its_address_and_the_client_configuration() {
    let home = Folder::new();
    let config = home.path().join("config/larder");
    std::fs::create_dir_all(&config).unwrap();
    // The default ports may be in use on this machine.
    std::fs::write(config.join("mirror.toml"), "[server]\nlisten='127.0.0.1:0'\n[admin]\nlisten='127.0.0.1:0'\n")
        .unwrap();
    let (child, out, _) = spawn_captured(command(home.path(), &["serve"]));
    let listens = out.line_with(" listens on http://127.0.0.1:").await;
    let base = listens.split(" on ").nth(1).unwrap().to_owned();
    for host in ["registry.opentofu.org", "registry.terraform.io"] {
        out.line_with(&format!("host \"{host}\" {{")).await;
        out.line_with(&format!("\"providers.v1\" = \"{base}/registry/{host}/v1/providers/\"")).await;
        out.line_with(&format!("\"modules.v1\" = \"{base}/registry/{host}/v1/modules/\"")).await;
    }
    out.line_with(&format!("store    {}", home.path().join("cache/larder").display())).await;
    out.line_with(&config.join("mirror.toml").display().to_string()).await;
    get(&format!("{base}/readyz")).await.expect(200);
    drop(child);
}

/// The working directory is never searched.
#[tokio::test]
async fn a_configuration_in_the_working_directory_is_not_read() {
    let home = Folder::new();
    std::fs::write(home.path().join("mirror.toml"), "[server]\nlisten = 'nonsense'\n").unwrap();
    std::fs::create_dir(home.path().join("larder")).unwrap();
    std::fs::write(home.path().join("larder/mirror.toml"), "[server]\nlisten = 'nonsense'\n").unwrap();
    let mut check = command(home.path(), &["check"]);
    check.current_dir(home.path());
    let output = run(check).await;
    assert_eq!(
        (output.code, output.out.trim()),
        (Some(0), "no configuration file found: the defaults are used"),
        "{output:?}"
    );
}

/// The certificate that the server presents to a new connection.
pub(crate) async fn presented_certificate(address: &str, ca: &TestCa) -> Vec<u8> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.pem().as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(config.with_root_certificates(roots).with_no_client_auth());
    let socket = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let stream = tokio_rustls::TlsConnector::from(config).connect(name, socket).await.unwrap();
    stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

pub(crate) fn der(pem: &str) -> Vec<u8> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap().to_vec()
}

/// PEM files are reloaded when they change.
#[tokio::test]
async fn a_certificate_is_reloaded_when_its_files_change_and_kept_when_they_become_invalid() {
    let upstream = FakeUpstream::start().await;
    let (folder, ca) = (Folder::new(), TestCa::new());
    let builder = Larder::mirroring(&upstream).store_at(&folder).tls(&ca, &["127.0.0.1"]);
    let larder = Process::start(&builder, folder.path());
    let address = larder.base().strip_prefix("https://").unwrap().to_owned();
    let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    assert_eq!(presented_certificate(&address, &ca).await, der(&std::fs::read_to_string(&certificate).unwrap()));

    let renewed = ca.issue(&["127.0.0.1"]);
    std::fs::write(&certificate, &renewed.0).unwrap();
    std::fs::write(&key, &renewed.1).unwrap();
    let new = der(&renewed.0);
    eventually("the new certificate is presented", async || {
        (presented_certificate(&address, &ca).await == new).then_some(())
    })
    .await;

    std::fs::write(&certificate, "-----BEGIN CERTIFICATE-----\nhalf of one").unwrap();
    larder.log().line_with("the TLS files have changed, the old certificate stays in use").await;
    assert_eq!(presented_certificate(&address, &ca).await, new);
    // Two valid files that do not belong together are rejected too.
    std::fs::write(&certificate, &renewed.0).unwrap();
    std::fs::write(&key, ca.issue(&["127.0.0.1"]).1).unwrap();
    larder.log().line_with("does not belong to the first certificate").await;
    assert_eq!(presented_certificate(&address, &ca).await, new);

    let last = ca.issue(&["127.0.0.1"]);
    std::fs::write(&certificate, &last.0).unwrap();
    std::fs::write(&key, &last.1).unwrap();
    let last_certificate = der(&last.0);
    eventually("the last certificate is presented", async || {
        (presented_certificate(&address, &ca).await == last_certificate).then_some(())
    })
    .await;
}

/// Promise 8: one log line per request, without anything that could be a secret.
#[tokio::test]
async fn a_request_is_logged_with_its_route_outcome_bytes_and_time_but_not_its_query() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let folder = Folder::new();
    let larder = Process::start(&Larder::mirroring(&upstream).store_at(&folder), folder.path());
    let list = format!("/registry/{HOST}/v1/providers/acme/null/versions");
    let length = larder.get(&format!("{list}?token=s3cret")).await.expect(200).body.len();
    let path = larder.archive_path("null").await;
    larder.get(&path).await.expect(200);
    larder.get(&path).await.expect(200);
    larder.get("/registry/elsewhere.example/v1/providers/acme/null/versions").await.expect(421);

    let line = larder.log().line_with(&format!("GET {list}")).await;
    for field in ["status=200", "route=\"versions\"", "outcome=\"miss\"", &format!("bytes={length} "), "ms="] {
        assert!(line.contains(field), "{field} is not in: {line}");
    }
    let archive = larder.log().line_with("route=\"archive\" outcome=\"hit\"").await;
    assert!(archive.contains(&path), "{archive}");
    larder.log().line_with("outcome=\"refused\"").await;
    assert_eq!(larder.terminate().await, Some(0));
}

#[tokio::test]
async fn no_query_reaches_the_log_although_the_upstream_signs_its_urls() {
    let upstream = FakeUpstream::builder().redirected_urls(302).start().await;
    upstream.publish(Provider::new("acme", "null"));
    upstream.fault(Target::Archive, crate::support::upstream::Fault::Status(503));
    let folder = Folder::new();
    let larder = Process::start(&Larder::mirroring(&upstream).store_at(&folder), folder.path());
    let path = larder.archive_path("null").await;
    let answer = larder.get(&format!("{path}?token=s3cret")).await;
    assert!(answer.status >= 500, "{}", answer.status);
    larder.log().line_with("route=\"archive\"").await;
    let log = larder.log().text();
    assert!(!log.contains("s3cret") && !log.contains("sig="), "{log}");
    assert!(!answer.text().contains("sig="), "{}", answer.text());
}

/// Promise 8: with a credential, and reachable from other machines, larder refuses to start.
#[tokio::test]
async fn credentials_and_a_listener_off_loopback_need_a_clients_or_open_setting() {
    let folder = Folder::new();
    std::fs::write(folder.path().join("token"), "s3cret-s3cret").unwrap();
    let config = |server: &str| {
        let mut text =
            format!("[server]\n{server}\n[admin]\nlisten='127.0.0.1:0'\n[store]\npath='{}'\n", folder.path().display());
        writeln!(text, "[[upstream]]\nhost='r.example'\ntoken={{file='{}'}}", folder.path().join("token").display())
            .unwrap();
        text
    };
    // The refusal precedes the bind, so it is tested on machines without IPv6 too.
    let reachable_listeners = [
        "listen='[::]:0'",
        "listen='0.0.0.0:0'",
        "listen='127.0.0.1:0'\npublic_url='https://m.example/'",
        "listen='127.0.0.1:0'\ntrusted_proxies=['10.0.0.5']",
    ];
    let has_ipv6 = std::net::TcpListener::bind("[::]:0").is_ok();
    for reachable in reachable_listeners {
        let error = Process::serve(&config(reachable), folder.path()).err().expect("larder started");
        assert_eq!(error.code, Some(78), "{error:?}");
        assert!(error.err.contains("[[upstream]] r.example"), "{error:?}");
        assert!(error.err.contains("list the allowed clients in [server]"), "{error:?}");
        assert!(!error.err.contains("s3cret"), "{error:?}");
        for setting in ["clients=['10.0.0.0/8']", "open=true"] {
            if reachable.contains("::") && !has_ipv6 {
                eprintln!("this machine has no IPv6: {reachable} was not started");
                continue;
            }
            let started = Process::serve(&config(&format!("{reachable}\n{setting}")), folder.path());
            assert_eq!(started.unwrap_or_else(|error| panic!("{error:?}")).terminate().await, Some(0));
        }
    }
    let started = Process::serve(&config("listen='127.0.0.1:0'"), folder.path());
    assert_eq!(started.unwrap_or_else(|error| panic!("{error:?}")).terminate().await, Some(0));
}

/// Promise 8: no secret is logged, even at log level `trace`.
#[tokio::test]
async fn no_secret_reaches_the_log_at_level_trace() {
    let upstream = FakeUpstream::builder().token("s3cret-t0ken").signed_urls().start().await;
    upstream.publish(Provider::new("acme", "null"));
    let folder = Folder::new();
    std::fs::write(folder.path().join("token"), "s3cret-t0ken").unwrap();
    let config =
        Larder::mirroring(&upstream).store_at(&folder).upstream_lines("token = { file = \"token\" }").config_text();
    let larder = Process::serve_with(&config, folder.path(), |command| {
        command.env("LARDER_LOG", "trace");
    });
    let larder = larder.unwrap_or_else(|error| panic!("{error:?}"));
    let path = larder.archive_path("null").await;
    larder.get(&format!("{path}?token=cl1ents")).await.expect(200);
    larder.log().line_with("route=\"archive\"").await;
    let log = larder.log().text();
    let leaks: Vec<&str> = log
        .lines()
        .filter(|line| ["s3cret-t0ken", "sig=", "cl1ents"].iter().any(|secret| line.contains(secret)))
        .collect();
    assert!(leaks.is_empty(), "{leaks:#?}");
}

#[tokio::test]
async fn a_port_in_use_is_reported_with_its_configuration_section() {
    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = taken.local_addr().unwrap();
    for (section, other) in [("[server]", "[admin]"), ("[admin]", "[server]")] {
        let folder = Folder::new();
        let store = folder.path().display();
        let text = format!(
            "{section}\nlisten = \"{address}\"\n{other}\nlisten = \"127.0.0.1:0\"\n[store]\npath = \"{store}\"\n"
        );
        let error = Process::serve(&text, folder.path()).err().expect("larder started");
        assert_eq!(error.code, Some(1), "{error:?}");
        assert!(error.err.contains(&format!("{section} listen = \"{address}\"")), "{error:?}");
    }
}

/// A log that cannot be written loses its lines only.
#[tokio::test]
async fn a_log_that_cannot_be_written_fails_no_request() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let folder = Folder::new();
    let file = folder.path().join("mirror.toml");
    std::fs::write(&file, Larder::mirroring(&upstream).store_at(&folder).config_text()).unwrap();
    let mut command = command(folder.path(), &["serve", "--json", "--config"]);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut larder = command.arg(&file).stderr(full).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(larder.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let report: serde_json::Value = serde_json::from_str(&line).unwrap();
    let list = format!("{}/registry/{HOST}/v1/providers/acme/null/versions", report["base"].as_str().unwrap());
    for _ in 0..3 {
        get(&list).await.expect(200);
    }
    larder.kill().unwrap();
    larder.wait().unwrap();
}
