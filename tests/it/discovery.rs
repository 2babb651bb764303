//! Service discovery: the upstream that a host name selects, the rewritten service URLs, and failures.

use http::Response;

use crate::support::http::{Answer, client, get, send};
use crate::support::larder::{Folder, HOST, Larder};
use crate::support::published_module::publish_net_module;
use crate::support::until;
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target};

/// The second upstream, in tests with two.
const OTHER: &str = "registry.opentofu.org";
const WELL_KNOWN: &str = "/.well-known/terraform.json";

fn discovery_of(host: &str) -> String {
    format!("/registry/{host}{WELL_KNOWN}")
}

fn providers_of(host: &str) -> String {
    format!("/registry/{host}/v1/providers/")
}

fn modules_of(host: &str) -> String {
    format!("/registry/{host}/v1/modules/")
}

fn publish_null(upstream: &FakeUpstream) {
    upstream.publish(Provider::new("acme", "null"));
}

/// Two upstreams behind one larder.
async fn two_upstreams(server: &str) -> (FakeUpstream, FakeUpstream, Larder) {
    let (first, second) = (FakeUpstream::start().await, FakeUpstream::start().await);
    let builder = Larder::mirroring(&first).upstream(OTHER, &format!("{}/", second.origin()), "").server(server);
    let larder = builder.start().await;
    (first, second, larder)
}

fn only_error(answer: &Answer) -> String {
    let errors = answer.json()["errors"].as_array().expect("errors are a list").clone();
    assert_eq!(errors.len(), 1, "{errors:?}");
    errors[0].as_str().unwrap().to_owned()
}

/// Sends a request to larder's real address, whatever its `public_url`, with this CDN-Loop list.
async fn get_with_cdn_loop(larder: &Larder, path: &str, cdn_loop: &str) -> Answer {
    let request = client().get(format!("http://{}{path}", larder.address()));
    send(request.header("cdn-loop", cdn_loop)).await.unwrap()
}

fn is_json(answer: &Answer) -> bool {
    answer.header("content-type") == "application/json"
}

#[tokio::test]
async fn each_upstream_has_a_rewritten_document_of_its_own() {
    let (first, second, larder) = two_upstreams("").await;
    for (host, upstream) in [(HOST, &first), (OTHER, &second)] {
        let answer = larder.get(&discovery_of(host)).await.expect(200);
        assert!(is_json(&answer), "{:?}", answer.headers);
        let services = answer.json();
        assert_eq!(services["providers.v1"], providers_of(host));
        assert_eq!(services["modules.v1"], modules_of(host));
        assert_eq!(services["login.v1"]["token"], format!("{}/oauth/token", upstream.origin()));
        assert_eq!(upstream.count_of(Target::Everything), 1);
    }
}

#[tokio::test]
async fn larders_own_host_name_selects_the_default_upstream() {
    let (first, second, larder) = two_upstreams(&format!("default_upstream = \"{OTHER}\"")).await;
    let own = larder.get(WELL_KNOWN).await.expect(200);
    assert!(is_json(&own));
    assert_eq!(own.json()["providers.v1"], providers_of(OTHER));
    let any_name = larder.get_with(WELL_KNOWN, &[("host", "mirror.corp.example")]).await.expect(200);
    assert_eq!(any_name.json()["providers.v1"], providers_of(OTHER));
    assert_eq!((first.count_of(Target::Everything), second.count_of(Target::Everything)), (0, 1));
}

#[tokio::test]
async fn without_a_default_upstream_larders_own_name_is_421_with_the_reason() {
    let (first, second, larder) = two_upstreams("").await;
    let answer = larder.get(WELL_KNOWN).await.expect(421);
    assert!(is_json(&answer));
    assert!(only_error(&answer).contains("default_upstream"), "{}", answer.text());
    assert_eq!(first.count_of(Target::Everything) + second.count_of(Target::Everything), 0);
}

#[tokio::test]
async fn a_taken_over_host_name_selects_its_upstream_with_and_without_a_port() {
    let (_first, _second, larder) = two_upstreams(&format!("default_upstream = \"{OTHER}\"")).await;
    let port = larder.address().port();
    for (host, expected_host) in [
        (HOST.to_owned(), HOST),
        (format!("{HOST}:{port}"), HOST),
        (format!("{HOST}:443"), HOST),
        ("Registry.TERRAFORM.io".to_owned(), HOST),
        (OTHER.to_owned(), OTHER),
        (format!("{OTHER}:{port}"), OTHER),
    ] {
        let services = larder.get_with(WELL_KNOWN, &[("host", &host)]).await.expect(200).json();
        assert_eq!(services["providers.v1"], providers_of(expected_host), "{host}");
    }
}

#[tokio::test]
async fn a_host_that_is_no_upstream_is_421_with_the_reason() {
    let upstream = FakeUpstream::start().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let answer = larder.get(&discovery_of("registry.elsewhere.example")).await.expect(421);
    let error = only_error(&answer);
    assert!(error.contains("registry.elsewhere.example") && error.contains("[[upstream]]"), "{error}");
    assert_eq!(upstream.count_of(Target::Everything), 0);
}

/// Promise 5, for discovery: unknown fields pass through byte for byte.
#[tokio::test]
async fn every_other_service_is_made_absolute_and_unknown_fields_survive() {
    let upstream = FakeUpstream::start().await;
    let document = r#"{
        "x-first" :	1e400, "providers.v1": "/v1/providers/", "modules.v1": "/v1/modules/",
        "tfe.v2": "api/v2/?a=b", "state.v2": "https://state.example/s/", "x-null": null, "x-list": [ 1.00, "/a" ],
        "login.v1": { "client" : "terraform-cli", "x-odd": 1.50E+0, "authz": "/oauth/authorization?x=1",
                      "token": "token", "ports": [10000, 10010], "x-deep": {"authz" : "/stays"} }
    }"#;
    upstream.serve_json(WELL_KNOWN, document);
    let larder = Larder::mirroring(&upstream).start().await;
    let text = larder.get(&discovery_of(HOST)).await.expect(200).text();
    let origin = upstream.origin();
    let expected = format!(
        "{{\"x-first\":1e400,\"providers.v1\":\"{providers}\",\"modules.v1\":\"{modules}\",\
         \"tfe.v2\":\"{origin}/.well-known/api/v2/?a=b\",\"state.v2\":\"https://state.example/s/\",\"x-null\":null,\
         \"x-list\":[ 1.00, \"/a\" ],\"login.v1\":{{\"client\":\"terraform-cli\",\"x-odd\":1.50E+0,\
         \"authz\":\"{origin}/oauth/authorization?x=1\",\"token\":\"{origin}/.well-known/token\",\
         \"ports\":[10000, 10010],\"x-deep\":{{\"authz\" : \"/stays\"}}}}}}",
        providers = providers_of(HOST),
        modules = modules_of(HOST),
    );
    assert_eq!(text, expected);
}

#[tokio::test]
async fn relative_and_absolute_service_urls_are_both_followed() {
    for is_absolute in [false, true] {
        let builder = FakeUpstream::builder();
        let builder = if is_absolute { builder.absolute_services() } else { builder };
        let upstream = builder.start().await;
        publish_null(&upstream);
        let larder = Larder::mirroring(&upstream).start().await;
        let services = larder.get(&discovery_of(HOST)).await.expect(200).json();
        assert_eq!(services["providers.v1"], providers_of(HOST));
        assert_eq!(services["login.v1"]["token"], format!("{}/oauth/token", upstream.origin()));
        larder.versions("null").await.expect(200);
        assert_eq!(upstream.count_of(Target::Versions), 1);
    }
}

/// Relative services resolve against the final URL.
#[tokio::test]
async fn the_services_of_a_redirected_document_resolve_against_its_final_url() {
    let upstream = FakeUpstream::builder().releases_elsewhere().start().await;
    let elsewhere = upstream.releases_origin();
    upstream.fault(Target::Discovery, Fault::RedirectTo(302, format!("{elsewhere}/deep/services.json")));
    upstream
        .serve_json("/deep/services.json", r#"{"providers.v1":"api/p/","modules.v1":"/m/","login.v1":{"authz":"a"}}"#);
    upstream.serve_json("/deep/api/p/acme/null/versions", r#"{"versions":[{"version":"7.0.0"}]}"#);
    let larder = Larder::mirroring(&upstream).start().await;
    let answer = larder.get(&discovery_of(HOST)).await.expect(200);
    assert_eq!(answer.header("location"), "");
    let services = answer.json();
    assert_eq!(services["providers.v1"], providers_of(HOST));
    assert_eq!(services["modules.v1"], modules_of(HOST));
    assert_eq!(services["login.v1"]["authz"], format!("{elsewhere}/deep/a"));
    assert_eq!(larder.versions("null").await.expect(200).json()["versions"][0]["version"], "7.0.0");
}

/// Promise 8: when the discovery document is redirected to another origin, that origin chooses the services. They are
/// requested without the upstream's credential, unless `credentials_for` names their origin.
#[tokio::test]
async fn services_named_by_another_origin_get_no_credential_of_the_upstream() {
    let (upstream, elsewhere) = (FakeUpstream::start().await, FakeUpstream::start().await);
    for registry in [&upstream, &elsewhere] {
        publish_null(registry);
    }
    let host = elsewhere.host();
    let absolute_services = |registry: &FakeUpstream| {
        format!("{{\"providers.v1\":\"{}\",\"modules.v1\":\"{}\"}}", registry.providers_url(), registry.modules_url())
    };
    // `relative.json` has relative service URLs. `chosen.json` lies at the upstream, but a foreign origin redirects to
    // it.
    elsewhere.serve_json("/relative.json", r#"{"providers.v1":"/v1/providers/","modules.v1":"/v1/modules/"}"#);
    upstream.serve_json("/chosen.json", &absolute_services(&elsewhere));
    let redirect_to_upstream =
        Response::builder().status(302).header("location", format!("{}/chosen.json", upstream.origin()));
    elsewhere.serve("/back.json", redirect_to_upstream.body(String::new()).unwrap());
    for (path, credentials_for, is_sent) in [
        ("/relative.json", "", false),
        ("/back.json", "", false),
        ("/relative.json", host.as_str(), true),
        ("/back.json", host.as_str(), true),
    ] {
        let folder = Folder::new();
        let secret = folder.path().join("token");
        std::fs::write(&secret, "s3cret").unwrap();
        let credential_hosts =
            if credentials_for.is_empty() { String::new() } else { format!("\"{credentials_for}\"") };
        let upstream_lines =
            format!("token = {{ file = \"{}\" }}\ncredentials_for = [{credential_hosts}]", secret.display());
        let builder = || {
            let larder =
                Larder::mirroring(&upstream).upstream_lines(&upstream_lines).allow_private(&elsewhere.origin());
            larder.store_at(&folder)
        };
        upstream.fault(Target::Discovery, Fault::RedirectTo(302, format!("{}{path}", elsewhere.origin())));
        let larder = builder().start().await;
        let request_all = async |larder: &Larder| {
            larder.archive_path("null", "1.2.0").await;
            larder.get(&format!("{}acme/none/aws/versions", modules_of(HOST))).await.expect(404);
        };
        request_all(&larder).await;
        larder.stop().await;
        // A cached discovery document is trusted no more than when it was fetched.
        let larder = builder().start().await;
        larder.run_command("purge", "acme/null").await;
        request_all(&larder).await;
        larder.stop().await;
        for target in [Target::Versions, Target::Document, Target::ModuleVersions] {
            let requests = elsewhere.count_of(target.clone());
            let with_credential =
                elsewhere.requests().into_iter().filter(|request| request.header("authorization").is_some());
            let with_credential = with_credential.filter(|request| request.target == target).count();
            assert!(requests > 0, "{target:?}");
            assert_eq!(with_credential, if is_sent { requests } else { 0 }, "{path} {credentials_for:?} {target:?}");
        }
        elsewhere.forget_requests();
        upstream.clear_faults();
    }
    assert!(
        upstream.count_where(|request| request.header("authorization").is_some()) > 0,
        "larder sent no credential at all"
    );
}

#[tokio::test]
async fn larder_follows_every_kind_of_redirect_itself() {
    for status in [301, 302, 303, 307, 308] {
        let upstream = FakeUpstream::start().await;
        upstream.fault(Target::Discovery, Fault::Redirect(status));
        let larder = Larder::mirroring(&upstream).start().await;
        let answer = larder.get(&discovery_of(HOST)).await.expect(200);
        assert_eq!(answer.header("location"), "", "{status}");
        assert_eq!(upstream.count_of(Target::Discovery), 2, "{status}");
    }
}

#[tokio::test]
async fn the_well_known_path_is_appended_to_the_upstreams_own_base() {
    let upstream = FakeUpstream::start().await;
    upstream.serve_json("/base/.well-known/terraform.json", r#"{"providers.v1":"../api/","tfe.v2":"/root/"}"#);
    upstream.serve_json("/base/api/acme/null/versions", r#"{"versions":[{"version":"7.0.0"}]}"#);
    let larder = Larder::builder().upstream(HOST, &format!("{}/base", upstream.origin()), "").start().await;
    let services = larder.get(&discovery_of(HOST)).await.expect(200).json();
    assert_eq!(services["tfe.v2"], format!("{}/root/", upstream.origin()));
    larder.versions("null").await.expect(200);
}

#[tokio::test]
async fn urls_begin_with_public_url_unless_another_larder_requests_them() {
    let upstream = FakeUpstream::start().await;
    publish_null(&upstream);
    let larder = Larder::mirroring(&upstream).server("public_url = \"https://mirror.example/tf/\"").start().await;
    let document = format!("{}acme/null/1.2.0/download/linux/amd64", providers_of(HOST));
    for (cdn_loop, prefix) in [
        ("", "https://mirror.example/tf"),
        ("fastly", "https://mirror.example/tf"),
        ("larder;id=1", "/tf"),
        ("fastly, larder", "/tf"),
    ] {
        for mount in ["", "/tf"] {
            let services = get_with_cdn_loop(&larder, &format!("{mount}{}", discovery_of(HOST)), cdn_loop)
                .await
                .expect(200)
                .json();
            assert_eq!(services["providers.v1"], format!("{prefix}{}", providers_of(HOST)), "{cdn_loop:?} {mount:?}");
            let urls = get_with_cdn_loop(&larder, &format!("{mount}{document}"), cdn_loop).await.expect(200).json();
            for name in ["download_url", "shasums_url", "shasums_signature_url"] {
                let url = urls[name].as_str().unwrap();
                assert!(
                    url.starts_with(&format!("{prefix}/archive/{HOST}/providers/acme/null/")),
                    "{cdn_loop:?} {url}"
                );
            }
        }
    }
}

#[tokio::test]
async fn without_public_url_answers_do_not_depend_on_the_host_header() {
    let upstream = FakeUpstream::start().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let without_host_header = larder.get(&discovery_of(HOST)).await.expect(200);
    let with_host_header = larder.get_with(&discovery_of(HOST), &[("host", "evil.example")]).await.expect(200);
    assert_eq!(without_host_header.body, with_host_header.body);
    assert_eq!(without_host_header.json()["providers.v1"], providers_of(HOST));
}

#[tokio::test]
async fn an_unusable_discovery_document_is_502_with_the_cause_and_not_cached() {
    for (fault, cause) in [
        (Fault::Status(404), "404"),
        (Fault::Status(410), "410"),
        (Fault::Html, "text/html"),
        (Fault::ContentType("text/plain"), "text/plain"),
        (Fault::InvalidJson, "JSON"),
        (Fault::StatusBody(200, "[1]"), "JSON"),
        (Fault::DeepJson, "JSON"),
        (Fault::HugeJson, "1048576 bytes"),
        (Fault::Status(401), "401"),
        (Fault::Status(403), "403"),
        (Fault::Status(501), "501"),
        (Fault::RedirectLoop(302), "redirects"),
    ] {
        let upstream = FakeUpstream::start().await;
        publish_null(&upstream);
        upstream.fault(Target::Discovery, fault.clone());
        let larder = Larder::mirroring(&upstream).start().await;
        for answer in [larder.get(&discovery_of(HOST)).await.expect(502), larder.versions("null").await.expect(502)] {
            let error = only_error(&answer);
            assert!(error.contains(cause) && error.contains(HOST), "{fault:?}: {error}");
            assert!(error.contains(&upstream.origin()), "{fault:?} names no upstream: {error}");
        }
        assert_eq!(upstream.count_of(Target::Versions), 0, "{fault:?}");

        upstream.clear_faults();
        upstream.forget_requests();
        larder.get(&discovery_of(HOST)).await.expect(200);
        larder.versions("null").await.expect(200);
        assert_eq!(upstream.count_of(Target::Discovery), 1, "{fault:?}");
    }
}

#[tokio::test]
async fn a_registry_without_providers_is_502_with_the_cause_and_not_cached() {
    for document in [
        r#"{"modules.v1":"/v1/modules/"}"#,
        r#"{"providers.v1":7}"#,
        r#"{"providers.v1":null}"#,
        r#"{"providers.v1":"ftp://registry.example/"}"#,
        r#"{"providers.v1":"https://user:hunter2@registry.example/"}"#,
    ] {
        let upstream = FakeUpstream::start().await;
        publish_null(&upstream);
        upstream.serve_json(WELL_KNOWN, document);
        let larder = Larder::mirroring(&upstream).start().await;
        let error = only_error(&larder.versions("null").await.expect(502));
        assert!(error.contains("providers.v1") && error.contains(HOST), "{document}: {error}");
        assert!(!error.contains("hunter2"), "{error}");

        upstream.serve_json(WELL_KNOWN, r#"{"providers.v1":"/v1/providers/"}"#);
        let retried = larder.versions("null").await;
        assert_eq!(retried.status, 200, "{document} was cached: {}", retried.text());
    }
}

/// Promise 6, for each service by itself: a missing service does not affect the other one, and its stored documents are
/// served.
#[tokio::test]
async fn a_service_dropped_from_discovery_stays_available_and_so_does_the_other() {
    let upstream = FakeUpstream::start().await;
    publish_null(&upstream);
    let larder = Larder::mirroring(&upstream).always_revalidate().start().await;
    let stored = larder.versions("null").await.expect(200);
    for (document, detail) in [
        (r#"{"modules.v1":"/v1/modules/"}"#, "detail=stale"),
        (r#"{"modules.v1":"/v1/modules/","x.v1":"/x/"}"#, "detail=stale"),
        (r#"{"providers.v1":null}"#, "detail=stale"),
        (r#"{"providers.v1":"/v1/providers/"}"#, "fwd=stale; stored"),
    ] {
        upstream.serve_json(WELL_KNOWN, document);
        let services = larder.get(&discovery_of(HOST)).await.expect(200).json();
        assert_eq!(services["providers.v1"], providers_of(HOST), "{document}");
        assert_eq!(services["modules.v1"], modules_of(HOST), "{document}");
        let again = larder.versions("null").await.expect(200);
        assert_eq!(again.body, stored.body);
        assert!(again.has_cache_status(detail), "{document}: {}", again.header("cache-status"));
    }
    let modules = larder.get(&format!("{}acme/none/aws/versions", modules_of(HOST))).await;
    assert_eq!(modules.status, 502, "the upstream no longer names modules.v1: {}", modules.text());
}

/// Promise 6: stored documents are served while discovery fails.
#[tokio::test]
async fn a_cached_discovery_document_is_served_stale_while_the_upstreams_is_unusable() {
    let upstream = FakeUpstream::start().await;
    let larder = Larder::mirroring(&upstream).always_revalidate().start().await;
    let cached = larder.get(&discovery_of(HOST)).await.expect(200);
    for fault in [Fault::Status(404), Fault::Html, Fault::InvalidJson, Fault::Status(500)] {
        upstream.fault(Target::Discovery, fault.clone());
        let stored = larder.get(&discovery_of(HOST)).await.expect(200);
        assert_eq!(stored.body, cached.body);
        assert!(stored.has_cache_status("detail=stale"), "{fault:?}: {}", stored.header("cache-status"));
        upstream.clear_faults();
    }
}

/// Promise 7: the CDN-Loop list is passed on with larder's own entry at its end.
#[tokio::test]
async fn the_cdn_loop_list_is_extended_and_sent_upstream() {
    let upstream = FakeUpstream::start().await;
    let larder = Larder::mirroring(&upstream).start().await;
    larder.get_with(&discovery_of(HOST), &[("cdn-loop", "fastly"), ("cdn-loop", "larder;id=77")]).await.expect(200);
    let sent = upstream.requests()[0].header("cdn-loop").unwrap().to_owned();
    let own_id = sent.strip_prefix("fastly, larder;id=77, larder;id=").unwrap_or_else(|| panic!("{sent}"));
    assert!(own_id.len() >= 16 && own_id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{sent}");
}

/// Promise 7: larder's own id, or more than four larders, is 508 at once, and never remembered.
#[tokio::test]
async fn a_request_loop_is_508_without_an_upstream_request() {
    let upstream = FakeUpstream::start().await;
    let larder = Larder::mirroring(&upstream).start().await;
    larder.get(&discovery_of(OTHER)).await.expect(421);
    let five_larders = "larder;id=1, larder;id=2, larder;id=3, larder;id=4, larder;id=5";
    let refused = larder.get_with(&discovery_of(HOST), &[("cdn-loop", five_larders)]).await.expect(508);
    assert!(only_error(&refused).contains("larder"));
    assert_eq!(upstream.count_of(Target::Everything), 0);

    let four_larders = "larder;id=1, larder;id=2, other, larder;id=3, larder;id=4";
    larder.get_with(&discovery_of(HOST), &[("cdn-loop", four_larders)]).await.expect(200);
    let sent = upstream.requests()[0].header("cdn-loop").unwrap().to_owned();
    let own_id = sent.rsplit(", ").next().unwrap();
    // A request loop gets 508 for a document in memory too.
    larder.get_with(&discovery_of(HOST), &[("cdn-loop", own_id)]).await.expect(508);
    larder.get(&discovery_of(HOST)).await.expect(200);
    assert_eq!(upstream.count_of(Target::Everything), 1);
}

/// Promise 11: an upstream's response to one client's CDN-Loop list is never shared with a client that sent none, not
/// even when both wait for the same object.
#[tokio::test]
async fn a_508_for_one_clients_cdn_loop_is_not_shared_with_others() {
    let download = format!("{}acme/null/1.2.0/download/linux/amd64", providers_of(HOST));
    let module = format!("{}acme/net/test", modules_of(HOST));
    for (target, path) in [
        (Target::Discovery, discovery_of(HOST)),
        (Target::Versions, format!("{}acme/null/versions", providers_of(HOST))),
        (Target::Document, download.clone()),
        (Target::Sums, download),
        (Target::Archive, String::new()),
        (Target::ModuleVersions, format!("{module}/versions")),
        (Target::Location, format!("{module}/1.0.0/download")),
        (Target::ModuleArchive, format!("/archive/{HOST}/modules/acme/net/test/1.0.0/module.tar.gz")),
    ] {
        let upstream = FakeUpstream::start().await;
        publish_null(&upstream);
        publish_net_module(&upstream);
        let larder = Larder::mirroring(&upstream).start().await;
        let path = if target == Target::Archive { larder.archive_path("null", "1.2.0").await } else { path };
        upstream.fault_once(target.clone(), Fault::Status(508));
        let gate = upstream.hold_headers(target.clone());
        let url = format!("{}{path}", larder.base());
        let with_cdn_loop =
            tokio::spawn(send(client().get(&url).header("cdn-loop", "larder;id=1, other, larder;id=2")));
        upstream.wait_for(target.clone(), 1).await;
        let without_cdn_loop = tokio::spawn(send(client().get(&url)));
        until("both requests wait for the upstream", async || larder.metric("larder_waiting_requests").await == 2.0)
            .await;
        gate.open();
        assert_eq!(with_cdn_loop.await.unwrap().unwrap().status, 508, "{target:?}");
        let without_cdn_loop = without_cdn_loop.await.unwrap().unwrap();
        assert!(
            [200, 204].contains(&without_cdn_loop.status),
            "{target:?}: {} {}",
            without_cdn_loop.status,
            without_cdn_loop.text()
        );
    }
}

#[tokio::test]
async fn a_508_from_upstream_is_passed_on_and_not_retried() {
    let upstream = FakeUpstream::start().await;
    upstream.fault(Target::Discovery, Fault::Status(508));
    let larder = Larder::mirroring(&upstream).start().await;
    larder.get(&discovery_of(HOST)).await.expect(508);
    assert_eq!(upstream.count_of(Target::Discovery), 1);
    upstream.clear_faults();
    larder.get(&discovery_of(HOST)).await.expect(200);
}

#[tokio::test]
async fn media_type_parameters_do_not_matter() {
    let upstream = FakeUpstream::start().await;
    let response = Response::builder().header("content-type", "Application/JSON; charset=utf-8");
    upstream.serve(WELL_KNOWN, response.body(r#"{"providers.v1":"/v1/providers/"}"#.to_owned()).unwrap());
    let larder = Larder::mirroring(&upstream).start().await;
    let answer = get(&format!("{}{}", larder.base(), discovery_of(HOST))).await.expect(200);
    assert!(is_json(&answer));
}
