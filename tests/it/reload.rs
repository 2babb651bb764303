//! A reload replaces upstreams, limits, clients, credentials and certificates, all or none. Requests in flight finish
//! with the configuration they began with.

use std::time::Duration;

use crate::lifecycle::{der, presented_certificate};
use crate::support::http::{client, get, receive, send};
use crate::support::larder::{Builder, Folder, HOST, Larder};
use crate::support::process::{Process, command};
use crate::support::tls::TestCa;
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target};
use crate::support::{eventually, until};

const LARGE_BYTES: usize = 3_000_000;
const SECOND: &str = "registry.second.example";

async fn upstream_publishing(names: &[&str], size: usize) -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    for name in names {
        upstream.publish(Provider::new("acme", name).size(size));
    }
    upstream
}

fn with_second_upstream(builder: Builder, second: &FakeUpstream) -> Builder {
    builder.upstream(SECOND, &format!("{}/", second.origin()), "")
}

fn list_of_second() -> String {
    format!("/registry/{SECOND}/v1/providers/acme/random/versions")
}

#[tokio::test]
async fn an_upstream_that_is_added_is_mirrored_and_one_that_is_removed_is_reported_with_the_reason() {
    let (first, second) =
        (upstream_publishing(&["null"], 10_000).await, upstream_publishing(&["random"], 10_000).await);
    let larder = Larder::mirroring(&first).start().await;
    let list = list_of_second();
    let unknown = larder.get(&list).await.expect(421);
    assert!(unknown.text().contains(SECOND), "{}", unknown.text());

    larder.reload(with_second_upstream(Larder::mirroring(&first), &second)).await.unwrap();
    larder.get(&list).await.expect(200);
    assert!(larder.get(&list).await.expect(200).has_cache_status("larder; hit"));
    larder.versions("null").await.expect(200);
    let config = get(&format!("{}/admin/v1/client-config", larder.admin())).await.expect(200).text();
    assert!(config.contains(SECOND), "{config}");

    // The list of the removed upstream is still fresh in the cache, but no longer served.
    larder.reload(Larder::mirroring(&first)).await.unwrap();
    let removed = larder.get(&list).await.expect(421);
    assert!(removed.text().contains(SECOND), "{}", removed.text());
    larder.versions("null").await.expect(200);

    // The stored copy is used when the upstream returns.
    second.forget_requests();
    larder.reload(with_second_upstream(Larder::mirroring(&first), &second)).await.unwrap();
    assert!(larder.get(&list).await.expect(200).has_cache_status("larder; hit"));
    assert_eq!(second.count_of(Target::Everything), 0);
}

#[tokio::test]
async fn a_new_freshness_lifetime_applies_to_rendered_responses_too() {
    let upstream = upstream_publishing(&["null"], 10_000).await;
    let larder = Larder::mirroring(&upstream).start().await;
    for _ in 0..2 {
        larder.versions("null").await.expect(200);
    }
    assert_eq!(upstream.count_of(Target::Versions), 1);
    larder.reload(Larder::mirroring(&upstream).always_revalidate()).await.unwrap();
    assert!(larder.versions("null").await.expect(200).has_cache_status("fwd=stale"));
    assert_eq!(upstream.count_of(Target::Versions), 2);
}

/// A smaller size limit evicts at once, not with the next archive.
#[tokio::test]
async fn a_smaller_store_evicts_at_once() {
    let upstream = upstream_publishing(&["one", "two"], 800_000).await;
    let larder = Larder::mirroring(&upstream).start().await;
    for name in ["one", "two"] {
        let path = larder.archive_path(name, "1.2.0").await;
        larder.get(&path).await.expect(200);
        larder.clock.advance(Duration::from_secs(120));
    }
    assert_eq!(larder.folder.blobs().len(), 2);
    larder.reload(Larder::mirroring(&upstream).store("max_size = \"1MiB\"")).await.unwrap();
    until("the archives beyond the new limit are evicted", async || larder.folder.blobs().len() == 1).await;
    let remaining = larder.folder.blobs();
    assert!(std::fs::read(&remaining[0]).unwrap() == upstream.archive_bytes("acme", "two", "1.2.0", "linux_amd64"));
    let status = get(&format!("{}/admin/v1/status", larder.admin())).await.expect(200).json();
    assert_eq!(status["max_size_bytes"], 1 << 20);
}

/// Promise 8: from the next request on, a reload changes which clients are allowed.
#[tokio::test]
async fn the_allowed_clients_are_those_of_the_new_configuration() {
    let upstream = upstream_publishing(&["null"], 10_000).await;
    let larder = Larder::mirroring(&upstream).start().await;
    larder.versions("null").await.expect(200);
    larder.reload(Larder::mirroring(&upstream).server("clients = [\"10.0.0.0/8\"]")).await.unwrap();
    larder.versions("null").await.expect(421);
    let behind_proxy = "clients = [\"10.0.0.0/8\"]\ntrusted_proxies = [\"127.0.0.1\"]";
    larder.reload(Larder::mirroring(&upstream).server(behind_proxy)).await.unwrap();
    let list = format!("/registry/{HOST}/v1/providers/acme/null/versions");
    assert_eq!(larder.get_with(&list, &[("x-forwarded-for", "10.1.2.3")]).await.status, 200);
    larder.reload(Larder::mirroring(&upstream).server("clients = [\"127.0.0.0/8\"]")).await.unwrap();
    larder.versions("null").await.expect(200);
}

#[tokio::test]
async fn public_url_and_default_upstream_follow_a_reload() {
    let upstream = upstream_publishing(&["null"], 10_000).await;
    let larder = Larder::mirroring(&upstream).start().await;
    assert!(larder.archive_path("null", "1.2.0").await.starts_with("/archive/"));
    larder.get("/.well-known/terraform.json").await.expect(421);
    let public_url = "public_url = \"https://m.example/base/\"";
    let own_name = format!("default_upstream = \"{HOST}\"");
    larder.reload(Larder::mirroring(&upstream).server(public_url).server(&own_name)).await.unwrap();
    assert!(larder.archive_path("null", "1.2.0").await.starts_with("https://m.example/base/archive/"));
    larder.get("/.well-known/terraform.json").await.expect(200);
    let config = get(&format!("{}/admin/v1/client-config", larder.admin())).await.expect(200).text();
    assert!(config.contains("https://m.example/base/registry/"), "{config}");
}

/// After a reload, commands need the token of the new configuration.
#[tokio::test]
async fn a_new_admin_token_replaces_the_old_one() {
    let upstream = upstream_publishing(&["null"], 10_000).await;
    let larder = Larder::mirroring(&upstream).start().await;
    let purge = async |token: &str| {
        let request = client().post(format!("{}/admin/v1/purge", larder.admin())).bearer_auth(token);
        let request = request.header("content-type", "application/json").body(r#"{"what":["acme/null"]}"#);
        send(request).await.unwrap().status
    };
    let created_token = larder.token();
    assert_eq!(purge(&created_token).await, 200);
    let file = larder.folder.path().join("other-token");
    std::fs::write(&file, "other-t0ken").unwrap();
    let text = Larder::mirroring(&upstream).store_at(&larder.folder).config_text();
    let text = text.replace("[admin]\n", &format!("[admin]\ntoken = {{ file = \"{}\" }}\n", file.display()));
    let config = larder::config::Config::parse(&text, std::path::Path::new("test.toml"), &|_| None).unwrap().0;
    larder.reload_to(config).await.unwrap();
    assert_eq!((purge(&created_token).await, purge("other-t0ken").await), (401, 200));
}

/// A file at the path of a lost store belongs to somebody else.
#[tokio::test]
async fn a_reload_while_the_store_is_missing_keeps_the_admin_token_and_creates_none() {
    let upstream = upstream_publishing(&["null"], 10_000).await;
    let larder = Larder::mirroring(&upstream).start().await;
    let (token, folder) = (larder.token(), larder.folder.path().to_owned());
    let away = folder.with_extension("away");
    std::fs::rename(&folder, &away).unwrap();
    std::fs::create_dir(&folder).unwrap();
    larder.reload(Larder::mirroring(&upstream).upstream_lines("patience = \"3s\"")).await.unwrap();
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    let refresh = client().post(format!("{}/admin/v1/refresh", larder.admin())).bearer_auth(token);
    let refresh = refresh.header("content-type", "application/json").body(r#"{"what":["acme/null"]}"#);
    assert_eq!(send(refresh).await.unwrap().status, 200);
    std::fs::remove_dir(&folder).unwrap();
    std::fs::rename(&away, &folder).unwrap();
}

#[tokio::test]
async fn a_new_upstream_token_is_sent_after_a_reload() {
    let upstream = FakeUpstream::builder().token("new-s3cret").start().await;
    upstream.publish(Provider::new("acme", "null"));
    let folder = Folder::new();
    let token = folder.path().join("token");
    std::fs::write(&token, "old-s3cret").unwrap();
    let with_token =
        || Larder::mirroring(&upstream).upstream_lines(&format!("token = {{ file = \"{}\" }}", token.display()));
    let larder = with_token().start().await;
    larder.versions("null").await.expect(502);
    std::fs::write(&token, "new-s3cret").unwrap();
    larder.versions("null").await.expect(502);
    larder.reload(with_token()).await.unwrap();
    larder.versions("null").await.expect(200);
}

/// Promise 8: a response in flight from the old address does not make larder send the new credential there.
#[tokio::test]
async fn a_new_credential_is_never_sent_to_the_former_upstream_url() {
    let old = upstream_publishing(&["null"], 10_000).await;
    let new = FakeUpstream::builder().token("new-s3cret").start().await;
    new.publish(Provider::new("acme", "null"));
    let folder = Folder::new();
    let token = folder.path().join("token");
    std::fs::write(&token, "new-s3cret").unwrap();
    let larder = Larder::mirroring(&old).start().await;
    let gate = old.hold_body(Target::Discovery);
    let list = format!("{}/registry/{HOST}/v1/providers/acme/null/versions", larder.base());
    let earlier_request = tokio::spawn(send(client().get(&list)));
    old.wait_for(Target::Discovery, 1).await;

    let with_token = Larder::mirroring(&new).upstream_lines(&format!("token = {{ file = \"{}\" }}", token.display()));
    larder.reload(with_token).await.unwrap();
    // The new requests do not wait for those to the old address.
    larder.versions("null").await.expect(200);
    gate.open();
    earlier_request.await.unwrap().unwrap().expect(200);
    larder.document("null", "1.2.0").await.expect(200);
    assert!(old.requests().iter().all(|request| !request.headers.contains_key("authorization")));
    assert_eq!(new.count_of(Target::Document), 1);
}

#[tokio::test]
async fn a_404_of_the_former_upstream_url_is_not_reused_for_the_new_one() {
    let (old, new) = (upstream_publishing(&[], 0).await, upstream_publishing(&["null"], 10_000).await);
    let larder = Larder::mirroring(&old).start().await;
    let gate = old.hold_body(Target::Everything);
    let earlier_request =
        tokio::spawn(send(client().get(format!("{}/registry/{HOST}/v1/providers/acme/null/versions", larder.base()))));
    old.wait_for(Target::Everything, 1).await;
    larder.reload(Larder::mirroring(&new)).await.unwrap();
    gate.open();
    earlier_request.await.unwrap().unwrap().expect(404);
    larder.versions("null").await.expect(200);
}

/// A fresh document of the old address may name files that are gone.
#[tokio::test]
async fn an_upstream_with_a_new_url_is_requested_there_at_once() {
    let (mut old, new) = (upstream_publishing(&["null"], 10_000).await, upstream_publishing(&["null"], 10_000).await);
    let larder = Larder::mirroring(&old).start().await;
    let path = larder.archive_path("null", "1.2.0").await;
    old.stop().await;
    larder.get(&path).await.expect(502);

    larder.reload(Larder::mirroring(&new)).await.unwrap();
    assert!(larder.versions("null").await.expect(200).has_cache_status("fwd=stale"));
    let path = larder.archive_path("null", "1.2.0").await;
    let answer = larder.get(&path).await.expect(200);
    assert!(answer.body == new.archive_bytes("acme", "null", "1.2.0", "linux_amd64"));
    // From then on the documents of the new address are fresh.
    new.forget_requests();
    assert!(larder.versions("null").await.expect(200).has_cache_status("larder; hit"));
    assert!(larder.document("null", "1.2.0").await.expect(200).has_cache_status("larder; hit"));
    assert_eq!(new.count_of(Target::Everything), 0);
}

/// Promise 7: the current configuration limits where documents lead.
#[tokio::test]
async fn a_reload_of_allow_private_changes_which_urls_documents_may_name() {
    let upstream = FakeUpstream::builder().releases_elsewhere().start().await;
    upstream.publish(Provider::new("acme", "null"));
    upstream.publish(Provider::new("acme", "random"));
    let without_private = || Larder::builder().upstream(HOST, &format!("{}/", upstream.origin()), "");
    let larder = without_private().start().await;
    let refused = larder.document("null", "1.2.0").await.expect(502);
    assert!(refused.text().contains("allow_private"), "{}", refused.text());
    larder.reload(without_private().allow_private(&upstream.releases_origin())).await.unwrap();
    larder.document("null", "1.2.0").await.expect(200);
    larder.reload(without_private()).await.unwrap();
    larder.document("random", "1.2.0").await.expect(502);
}

/// Promise 1: an archive verified under a weaker policy does not count under a stricter one.
#[tokio::test]
async fn stricter_verification_applies_to_stored_packages_too() {
    let upstream = upstream_publishing(&["null"], 10_000).await;
    upstream.fault(Target::Document, Fault::NoKeys);
    let larder = Larder::mirroring(&upstream).upstream_lines("verification = \"checksum\"").start().await;
    let path = larder.archive_path("null", "1.2.0").await;
    larder.get(&path).await.expect(200);
    larder.reload(Larder::mirroring(&upstream).upstream_lines("verification = \"signature\"")).await.unwrap();
    for refused in [larder.document("null", "1.2.0").await, larder.get(&path).await] {
        assert!(refused.expect(502).text().contains("lists no signing key"));
    }

    // The signature now verifies the stored bytes.
    upstream.clear_faults();
    assert_eq!(larder.archive_path("null", "1.2.0").await, path);
    let answer = larder.get(&path).await.expect(200);
    assert!(answer.body == upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64"));
    assert_eq!(upstream.count_of(Target::Archive), 1);
}

/// Promise 12: a reload to offline stops every request to upstreams.
#[tokio::test]
async fn after_a_reload_to_offline_nothing_is_sent() {
    let upstream = upstream_publishing(&["null", "random"], 10_000).await;
    let larder = Larder::mirroring(&upstream).start().await;
    larder.versions("null").await.expect(200);
    larder.get(&larder.archive_path("null", "1.2.0").await).await.expect(200);
    larder.reload(Larder::mirroring(&upstream).network("offline = true")).await.unwrap();
    upstream.forget_requests();
    larder.clock.advance(Duration::from_secs(3600));
    assert!(larder.versions("null").await.expect(200).has_cache_status("detail=stale"));
    larder.versions("random").await.expect(503);
    assert_eq!(upstream.count_of(Target::Everything), 0);
    larder.reload(Larder::mirroring(&upstream)).await.unwrap();
    larder.versions("random").await.expect(200);
}

/// Promise 12: requests in flight keep their configuration but send nothing either.
#[tokio::test]
async fn after_a_reload_to_offline_running_fetches_send_nothing_either() {
    let upstream = upstream_publishing(&["null"], LARGE_BYTES).await;
    let larder = Larder::mirroring(&upstream).start().await;
    let path = larder.archive_path("null", "1.2.0").await;
    let gate = upstream.hold_after(Target::Archive, LARGE_BYTES / 3);
    upstream.fault_once(Target::Archive, Fault::Truncated(LARGE_BYTES / 2));
    let pending_request = tokio::spawn(receive(client().get(format!("{}{path}", larder.base()))));
    upstream.wait_for(Target::Archive, 1).await;
    larder.reload(Larder::mirroring(&upstream).network("offline = true")).await.unwrap();
    upstream.forget_requests();
    gate.open();
    let received = pending_request.await.unwrap();
    assert!(!received.is_complete);
    assert_eq!(upstream.count_of(Target::Everything), 0);

    // The partial download is resumed when the network is back.
    larder.reload(Larder::mirroring(&upstream)).await.unwrap();
    let answer = larder.get(&path).await.expect(200);
    assert!(answer.body == upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64"));
}

/// The circuit breaker of an upstream stays open across a reload.
#[tokio::test]
async fn an_open_circuit_breaker_stays_open_across_a_reload() {
    let upstream = upstream_publishing(&["null"], 10_000).await;
    let larder = Larder::mirroring(&upstream).start().await;
    larder.versions("null").await.expect(200);
    larder.clock.advance(Duration::from_secs(400));
    upstream.fault(Target::Versions, Fault::Status(500));
    assert!(larder.versions("null").await.expect(200).has_cache_status("detail=stale"));
    upstream.clear_faults();
    upstream.forget_requests();
    larder.reload(Larder::mirroring(&upstream).upstream_lines("patience = \"3s\"")).await.unwrap();
    assert!(larder.versions("null").await.expect(200).has_cache_status("detail=stale"));
    assert_eq!(upstream.count_of(Target::Everything), 0);
    assert_eq!(larder.metric("larder_breaker_open").await, 1.0);
}

/// A download keeps its configuration, also for a resume from an upstream that is gone from the configuration, at an
/// address that nothing names any more.
#[tokio::test]
async fn a_download_that_is_interrupted_after_a_reload_is_completed() {
    let first = FakeUpstream::builder().releases_elsewhere().start().await;
    first.publish(Provider::new("acme", "null").size(LARGE_BYTES));
    let second = upstream_publishing(&["random"], 10_000).await;
    let larder = Larder::mirroring(&first).start().await;
    let path = larder.archive_path("null", "1.2.0").await;
    let gate = first.hold_after(Target::Archive, LARGE_BYTES / 3);
    first.fault_once(Target::Archive, Fault::Truncated(LARGE_BYTES / 2));
    let pending_request = tokio::spawn(send(client().get(format!("{}{path}", larder.base()))));
    first.wait_for(Target::Archive, 1).await;

    let only_second = Larder::builder().upstream(SECOND, &format!("{}/", second.origin()), "");
    larder.reload(only_second.store("max_size = \"8MiB\"")).await.unwrap();
    assert!(!pending_request.is_finished());
    larder.get(&path).await.expect(404);
    gate.open();
    let answer = pending_request.await.unwrap().unwrap().expect(200);
    assert!(answer.body == first.archive_bytes("acme", "null", "1.2.0", "linux_amd64"));
    assert_eq!(first.count_of(Target::Archive), 2, "the download did not break, or was not resumed");
    assert_eq!(larder.folder.blobs().len(), 1);
}

#[tokio::test]
async fn options_that_need_a_restart_are_reported_and_unchanged() {
    let upstream = upstream_publishing(&["null"], 10_000).await;
    let larder = Larder::mirroring(&upstream).start().await;
    let elsewhere = Folder::new();
    let ca = TestCa::new();
    let text = Larder::mirroring(&upstream)
        .store_at(&larder.folder)
        .tls(&ca, &["127.0.0.1"])
        .server("listen = \"127.0.0.1:1\"")
        .store("scrub = \"never\"")
        .upstream_lines("patience = \"3s\"")
        .config_text()
        .replace("[admin]\nlisten = \"127.0.0.1:0\"", "[admin]\nlisten = \"127.0.0.1:2\"")
        .replace(
            &format!("path = \"{}\"", larder.folder.path().display()),
            &format!("path = \"{}\"", elsewhere.path().display()),
        );
    let config = larder::config::Config::parse(&text, std::path::Path::new("test.toml"), &|_| None).unwrap().0;
    let reloaded = larder.reload_to(config).await.unwrap();
    assert_eq!(reloaded.need_restart, ["server.listen", "server.tls", "admin.listen", "store.path", "store.scrub"]);
    larder.versions("null").await.expect(200);
    assert!(larder.base().starts_with("http://"), "{}", larder.base());
    assert!(elsewhere.files("").is_empty());
    let status = get(&format!("{}/admin/v1/status", larder.admin())).await.expect(200).json();
    assert_eq!(status["store"], format!("{}/v1", larder.folder.path().display()));
    // A reload with an unchanged option reports nothing.
    assert!(larder.reload(Larder::mirroring(&upstream)).await.unwrap().need_restart.is_empty());
}

/// Promise 8: the check applies to the open listener, not to the one that the file would open after a restart.
#[tokio::test]
async fn a_reload_refuses_a_credential_while_any_client_is_allowed() {
    let upstream = upstream_publishing(&["null"], 10_000).await;
    let folder = Folder::new();
    let token = folder.path().join("token");
    std::fs::write(&token, "s3cret").unwrap();
    let everywhere = "listen = \"0.0.0.0:0\"";
    let larder = Larder::mirroring(&upstream).server(everywhere).start().await;
    let with_token =
        || Larder::mirroring(&upstream).upstream_lines(&format!("token = {{ file = \"{}\" }}", token.display()));

    for server in [everywhere, "listen = \"127.0.0.1:0\""] {
        let refused = larder.reload(with_token().server(server)).await.unwrap_err();
        assert_eq!(refused.0.len(), 1, "{refused}");
        assert!(refused.0[0].contains("list the allowed clients in [server]"), "{refused}");
        assert!(!refused.to_string().contains("s3cret"), "{refused}");
    }
    larder.versions("null").await.expect(200);
    assert!(upstream.requests().iter().all(|request| !request.headers.contains_key("authorization")));
    larder.reload(with_token().server(everywhere).server("clients = [\"127.0.0.0/8\"]")).await.unwrap();
}

/// All problems are reported together with the line; the configuration before stays in force.
#[tokio::test]
async fn a_reload_of_a_bad_file_changes_nothing_and_reports_all_problems() {
    let (first, second) =
        (upstream_publishing(&["null"], 10_000).await, upstream_publishing(&["random"], 10_000).await);
    let folder = Folder::new();
    let file = folder.path().join("mirror.toml");
    let larder = Process::start(&Larder::mirroring(&first).store_at(&folder), folder.path());
    let valid_config = with_second_upstream(Larder::mirroring(&first).store_at(&folder), &second).config_text();
    let list = list_of_second();

    std::fs::write(&file, format!("{valid_config}\nfrsh = {{}}\n[[upstream]]\nhost = \"no host\"\n")).unwrap();
    larder.send_sighup();
    larder.log().line_with("not reloaded, the previous one stays in force: 2 problems").await;
    larder.log().line_with("upstream.frsh").await;
    larder.log().line_with("upstream.host").await;
    larder.get(&list).await.expect(421);

    std::fs::remove_file(&file).unwrap();
    larder.send_sighup();
    larder.log().line_with("mirror.toml: the configuration cannot be read").await;
    larder.get(&format!("/registry/{HOST}/v1/providers/acme/null/versions")).await.expect(200);

    std::fs::write(&file, valid_config).unwrap();
    larder.send_sighup();
    larder.log().line_with("the configuration was reloaded").await;
    larder.get(&list).await.expect(200);
    assert_eq!(larder.terminate().await, Some(0));
}

/// The configuration file does not override `--offline` of the command line.
#[tokio::test]
async fn offline_by_the_command_line_survives_a_reload() {
    let upstream = upstream_publishing(&["null"], 10_000).await;
    let folder = Folder::new();
    let file = folder.path().join("mirror.toml");
    std::fs::write(&file, Larder::mirroring(&upstream).store_at(&folder).config_text()).unwrap();
    let mut serve = command(folder.path(), &["serve", "--json", "--offline", "--config"]);
    serve.arg(&file);
    let larder = Process::spawn(serve).unwrap_or_else(|error| panic!("{error:?}"));
    larder.send_sighup();
    larder.log().line_with("the configuration was reloaded").await;
    larder.get(&format!("/registry/{HOST}/v1/providers/acme/null/versions")).await.expect(503);
    assert_eq!(upstream.count_of(Target::Everything), 0);
}

#[tokio::test]
async fn a_new_certificate_is_used_after_a_reload() {
    let upstream = upstream_publishing(&["null"], 10_000).await;
    let (folder, ca) = (Folder::new(), TestCa::new());
    let larder =
        Process::start(&Larder::mirroring(&upstream).store_at(&folder).tls(&ca, &["127.0.0.1"]), folder.path());
    let address = larder.base().strip_prefix("https://").unwrap().to_owned();
    let renewed = ca.issue(&["127.0.0.1"]);
    let file = folder.path().join("mirror.toml");
    let before = std::fs::read_to_string(&file).unwrap();
    let old = der(&std::fs::read_to_string(folder.path().join("cert.pem")).unwrap());

    // The files change, but larder has not read them yet.
    std::fs::write(&file, before.replace("cert.pem", "cert2.pem").replace("key.pem", "key2.pem")).unwrap();
    std::fs::write(folder.path().join("cert2.pem"), &renewed.0).unwrap();
    std::fs::write(folder.path().join("key2.pem"), ca.issue(&["127.0.0.1"]).1).unwrap();
    larder.send_sighup();
    larder.log().line_with("does not belong to the first certificate").await;
    assert_eq!(presented_certificate(&address, &ca).await, old);

    std::fs::write(folder.path().join("key2.pem"), &renewed.1).unwrap();
    larder.send_sighup();
    larder.log().line_with("the configuration was reloaded").await;
    assert_eq!(presented_certificate(&address, &ca).await, der(&renewed.0));
    // From now on these files are read.
    let last = ca.issue(&["127.0.0.1"]);
    std::fs::write(folder.path().join("cert2.pem"), &last.0).unwrap();
    std::fs::write(folder.path().join("key2.pem"), &last.1).unwrap();
    let last_certificate = der(&last.0);
    eventually("the last certificate is presented", async || {
        (presented_certificate(&address, &ca).await == last_certificate).then_some(())
    })
    .await;
}
