//! The registry HTTP API through larder: endpoints, pagination, upstream failures, limits for varied queries, and
//! responses of an offline larder.

use std::time::Duration;

use serde_json::Value;

use crate::support::http::{Answer, get};
use crate::support::larder::{HOST, Larder};
use crate::support::module_fixture::tar_gz;
use crate::support::until;
use crate::support::upstream::{FakeUpstream, Fault, ListedItem, Target};

/// Larder's path for a path of the API.
fn larder_path(path: &str) -> String {
    format!("/registry/{HOST}/v1{path}")
}

/// The number of lines in the metrics.
async fn metric_lines(larder: &Larder) -> usize {
    get(&format!("{}/metrics", larder.admin())).await.expect(200).text().lines().count()
}

fn modules() -> Vec<ListedItem> {
    vec![
        ListedItem::new("Acme-Corp/vpc/aws", &["0.9.0", "1.0.0", "1.1.0"]).verified(),
        ListedItem::new("Acme-Corp/vpc/google", &["2.0.0"]),
        ListedItem::new("Acme-Corp/network/azurerm", &["0.1.0"]),
        ListedItem::new("zoitech/network/aws", &["v0.0.3", "v0.1"]).verified(),
        ListedItem::new("zoitech/bucket/aws", &["3.2.1"]),
    ]
}

async fn upstream_with_lists() -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    let providers = [
        ListedItem::new("acme/null", &["1.0.0", "1.2.0"]),
        ListedItem::new("acme/other", &["2.0.0"]),
        ListedItem::new("zoitech/x", &["1.0.0"]),
    ];
    upstream.list(&modules(), &providers);
    upstream
}

/// The paths of every endpoint that serves a document.
const ENDPOINTS: [&str; 24] = [
    "/modules",
    "/modules/",
    "/modules?limit=2",
    "/modules/?limit=2&offset=2",
    "/modules?verified=true",
    "/modules?provider=aws&limit=1",
    "/modules/Acme-Corp",
    "/modules/Acme-Corp?limit=1&offset=1",
    "/modules/Acme-Corp/",
    "/modules/search?q=network",
    "/modules/search?q=network&limit=1",
    "/modules/search?q=vpc&provider=google&namespace=Acme-Corp",
    "/modules/search?q=nothing-has-this-name",
    "/modules/Acme-Corp/vpc",
    "/modules/Acme-Corp/vpc?limit=1",
    "/modules/Acme-Corp/vpc/aws",
    "/modules/Acme-Corp/vpc/aws/1.0.0",
    "/modules/zoitech/network/aws/v0.1",
    "/modules/zoitech/network/aws/versions",
    "/providers",
    "/providers?limit=1&offset=1",
    "/providers/acme?limit=1",
    "/providers/acme/null",
    "/providers/acme/null/1.0.0",
];

/// The page's JSON, with its URLs as upstream writes them.
fn with_upstream_urls(answer: &Answer) -> Value {
    let text = answer.text().replace(&format!("/registry/{HOST}/v1/"), "/v1/");
    serde_json::from_str(&text).unwrap()
}

/// The URL with its query parameters sorted, because their order does not matter.
fn sorted_query(url: &str) -> String {
    let (path, query) = url.split_once('?').unwrap_or((url, ""));
    let mut pairs: Vec<&str> = query.split('&').filter(|pair| *pair != "offset=0").collect();
    pairs.sort_unstable();
    format!("{path}?{}", pairs.join("&"))
}

fn with_sorted_urls(mut page: Value) -> Value {
    for name in ["next_url", "prev_url"] {
        if let Some(url) = page.pointer_mut(&format!("/meta/{name}")) {
            *url = sorted_query(url.as_str().unwrap()).into();
        }
    }
    page
}

/// Every endpoint has the same response through larder, except for URLs; cached pages are served while upstream is
/// stopped.
#[tokio::test]
async fn every_endpoint_answers_like_the_upstream_itself_and_from_the_cache_without_it() {
    let mut upstream = upstream_with_lists().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let mut seen = Vec::new();
    for path in ENDPOINTS {
        let direct = get(&format!("{}/v1{path}", upstream.origin())).await.expect(200);
        // Larder forwards the request as it came, so both answers are compared after one normalisation of their URLs.
        let through = larder.get(&larder_path(path)).await.expect(200);
        let is_a_list_of_versions = path.ends_with("/versions");
        let [direct_json, through_json] =
            [&direct, &through].map(|answer| with_sorted_urls(with_upstream_urls(answer)));
        if is_a_list_of_versions {
            assert_eq!(through_json["modules"][0]["versions"], direct_json["modules"][0]["versions"], "{path}");
        }
        assert_eq!(through_json, direct_json, "{path}");
        assert_eq!(through.header("content-type"), "application/json");
        if !through.text().contains("next_url\":") && !through.text().contains("prev_url\":") && !is_a_list_of_versions
        {
            assert_eq!(through.text(), direct.text(), "{path}: larder changed a response without page URLs");
        }
        seen.push(through);
    }
    upstream.stop().await;
    for after in [Duration::ZERO, Duration::from_secs(24 * 3600)] {
        larder.clock.advance(after);
        for (path, before) in ENDPOINTS.iter().zip(&seen) {
            let again = larder.get(&larder_path(path)).await.expect(200);
            assert_eq!(again.text(), before.text(), "{path}");
            let is_stale = !after.is_zero();
            assert_eq!(again.has_cache_status("detail=stale"), is_stale, "{path}: {:?}", again.headers);
        }
    }
}

/// Promise 5: only the URLs of a page change; numbers, spaces and unknown members stay.
#[tokio::test]
async fn only_the_urls_of_further_pages_change() {
    let upstream = upstream_with_lists().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let direct = get(&format!("{}/v1/modules?limit=2&offset=2", upstream.origin())).await.expect(200).text();
    let through = larder.get(&larder_path("/modules?limit=2&offset=2")).await.expect(200).text();
    let expected = direct
        .replace("\"/v1/modules?limit=2&offset=4\"", &format!("\"/registry/{HOST}/v1/modules?limit=2&offset=4\""))
        .replace("\"/v1/modules?limit=2&offset=0\"", &format!("\"/registry/{HOST}/v1/modules?limit=2\""));
    assert_ne!(expected, direct);
    assert_eq!(through, expected);
    assert!(through.contains("1.50E+2") && through.contains("1.10e+300") && through.contains("/images/logo.png"));
}

/// Follows the page URLs to the end and back; all of them lead to larder, also with `public_url`.
#[tokio::test]
async fn a_list_is_paged_through_to_its_end_and_back() {
    for server in ["", "public_url = \"http://mirror.example/tf/\""] {
        let upstream = upstream_with_lists().await;
        let larder = Larder::mirroring(&upstream).server(server).start().await;
        for (start, expected) in
            [("/modules?limit=2", 5), ("/modules/search?limit=1&q=aws", 3), ("/providers?limit=1", 3)]
        {
            let mut found = Vec::new();
            let mut next = format!("http://{}{}", larder.address(), larder_path(start));
            let last = loop {
                let page = get(&next).await.expect(200).json();
                let kind = if start.starts_with("/providers") { "providers" } else { "modules" };
                found.extend(
                    page[kind].as_array().unwrap().iter().map(|entry| entry["id"].as_str().unwrap().to_owned()),
                );
                let Some(url) = page["meta"]["next_url"].as_str() else { break next };
                let prefix = if server.is_empty() { "" } else { "http://mirror.example" };
                let path = url.strip_prefix(prefix).unwrap_or_else(|| panic!("{url} does not lead to larder"));
                next = format!("http://{}{path}", larder.address());
            };
            assert_eq!(found.len(), expected, "{start}: {found:?}");
            let mut unique = found.clone();
            unique.dedup();
            assert_eq!(unique, found);
            let page = get(&last).await.expect(200).json();
            let previous_url = page["meta"]["prev_url"].as_str().unwrap();
            assert!(previous_url.contains(&larder_path(start.split('?').next().unwrap())), "{previous_url}");
        }
    }
}

/// Larder cannot request a next page whose query has parameters that the protocol does not define. Larder removes such
/// a URL: a client that followed it would bypass larder.
#[tokio::test]
async fn a_next_page_url_that_larder_cannot_request_is_removed() {
    let upstream = upstream_with_lists().await;
    upstream.serve_json("/v1/modules", r#"{"meta":{"next_url":"/v1/modules?cursor=abc"},"modules":[]}"#);
    let larder = Larder::mirroring(&upstream).start().await;
    let page = larder.get(&larder_path("/modules")).await.expect(200).json();
    assert_eq!(page, serde_json::json!({"meta": {"next_url": null}, "modules": []}));
}

/// The download of the latest version is a 302 to a URL of larder.
#[tokio::test]
async fn the_latest_versions_download_is_a_redirect_to_larders_own_url() {
    let mut upstream = upstream_with_lists().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let latest = |answer: &Answer| answer.header("location").to_owned();
    let path = larder_path("/modules/Acme-Corp/vpc/aws/download");
    let found = larder.get(&path).await.expect(302);
    assert_eq!(latest(&found), larder_path("/modules/Acme-Corp/vpc/aws/1.1.0/download"));
    assert_eq!((found.body.len(), found.header("content-length")), (0, "0"));
    upstream.stop().await;
    larder.clock.advance(Duration::from_secs(24 * 3600));
    let stale = larder.get(&path).await.expect(302);
    assert_eq!(latest(&stale), latest(&found));
    assert!(stale.has_cache_status("detail=stale"), "{:?}", stale.headers);

    let fresh = upstream_with_lists().await;
    let public = Larder::mirroring(&fresh).server("public_url = \"https://mirror.example/tf/\"").start().await;
    let found = get(&format!("http://{}{path}", public.address())).await.expect(302);
    assert_eq!(
        latest(&found),
        format!("https://mirror.example/tf{}", larder_path("/modules/Acme-Corp/vpc/aws/1.1.0/download"))
    );
    assert_eq!(
        get(&format!("http://{}{}", public.address(), larder_path("/modules/acme/none/aws/download"))).await.status,
        404
    );
}

/// Under a taken-over host name, the API also works for tools that skip discovery.
#[tokio::test]
async fn a_taken_over_name_has_the_api_at_the_registrys_own_paths() {
    let upstream = upstream_with_lists().await;
    let larder = Larder::mirroring(&upstream).start().await;
    for path in ["/v1/modules?limit=2", "/v1/modules/?limit=2", "/v1/modules/search?q=vpc", "/v1/providers?limit=2"] {
        let taken_over = larder.get_with(path, &[("host", HOST)]).await.expect(200);
        let by_larder_path = larder.get(&format!("/registry/{HOST}{path}")).await.expect(200);
        assert_eq!(taken_over.text(), by_larder_path.text(), "{path}");
        assert_eq!(larder.get(path).await.status, 421, "{path}");
    }
}

/// Freshness: a page is fresh for a minute and then revalidated; all spellings of a request share one page.
#[tokio::test]
async fn a_page_is_fresh_for_a_minute_and_is_one_page_in_every_spelling() {
    let upstream = upstream_with_lists().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let spellings = [
        "/modules/search?q=vpc&limit=2",
        "/modules/search/?limit=02&q=vpc&offset=0&utm_source=x",
        "/modules/search?limit=2&q=vpc&verified=no&q=y",
    ];
    for path in spellings {
        larder.get(&larder_path(path)).await.expect(200);
    }
    assert_eq!(upstream.count("/v1/modules/search"), 1);
    assert_eq!(upstream.requests().last().unwrap().query, "limit=2&q=vpc");
    larder.clock.advance(Duration::from_secs(30));
    assert_eq!(larder.get(&larder_path(spellings[0])).await.expect(200).header("cache-status"), "larder; hit");
    larder.clock.advance(Duration::from_secs(30));
    upstream.list(&modules()[1..], &[]);
    let again = larder.get(&larder_path(spellings[0])).await.expect(200);
    assert_eq!(again.header("cache-status"), "larder; fwd=stale; stored");
    assert_eq!(again.json()["modules"].as_array().unwrap().len(), 1);
    assert_eq!(upstream.count("/v1/modules/search"), 2);
    larder.clock.advance(Duration::from_secs(60));
    larder.get(&larder_path(spellings[0])).await.expect(200);
    let requests = upstream.requests().into_iter().rfind(|request| request.path == "/v1/modules/search").unwrap();
    assert_eq!(requests.status, Some(304));
}

/// The base URL of a service without its final slash is the same page.
#[tokio::test]
async fn the_list_of_all_modules_is_cached_too() {
    let upstream = upstream_with_lists().await;
    let larder = Larder::mirroring(&upstream).store("memory = \"0B\"").start().await;
    for _ in 0..3 {
        larder.get(&larder_path("/modules?limit=2")).await.expect(200);
    }
    assert_eq!(upstream.count("/v1/modules"), 1);
}

/// With `fold_case`, all spellings of a name share one details page; without, each has its own.
#[tokio::test]
async fn spellings_of_a_name_share_a_page_only_with_fold_case() {
    for (fold_case, requests) in [(true, 1), (false, 2)] {
        let upstream = upstream_with_lists().await;
        let larder = Larder::mirroring(&upstream).upstream_lines(&format!("fold_case = {fold_case}")).start().await;
        for names in ["ACME-corp/VPC", "Acme-Corp/vpc"] {
            let details = larder.get(&larder_path(&format!("/modules/{names}/aws"))).await.expect(200).json();
            assert_eq!(details["id"], "Acme-Corp/vpc/aws/1.1.0");
        }
        let count = upstream.count_where(|request| request.path.ends_with("/aws"));
        assert_eq!(count, requests, "fold_case = {fold_case}");
        assert_eq!(upstream.count("/v1/modules/ACME-corp/VPC/aws"), 1, "the first spelling is what upstream is asked");
    }
}

/// Upstream failures with and without a cached page.
#[tokio::test]
async fn upstream_failures_of_api_pages_have_the_documented_statuses() {
    let path = larder_path("/modules/search?q=vpc");
    for (fault, status, message) in [
        (Fault::Status(404), 404, "does not exist"),
        (Fault::Status(401), 502, "credential"),
        (Fault::Status(403), 502, "credential"),
        (Fault::StatusBody(422, "{\"errors\":[\"no such filter\"]}"), 422, "no such filter"),
        (Fault::Status(429), 503, "429"),
        (Fault::Status(500), 502, "500"),
        (Fault::Html, 502, "not a JSON object"),
        (Fault::InvalidJson, 502, "not a JSON object"),
        (Fault::HugeJson, 502, "more than"),
        (Fault::Status(508), 508, "508"),
    ] {
        let upstream = upstream_with_lists().await;
        let larder = Larder::mirroring(&upstream).start().await;
        let pages = Target::Path("/v1/modules".to_owned());
        upstream.fault(pages.clone(), fault.clone());
        let answer = larder.get(&path).await;
        assert_eq!(answer.status, status, "{fault:?}: {}", answer.text());
        let errors = answer.json()["errors"].clone();
        let output = errors[0].as_str().unwrap();
        assert!(output.contains(message) && !output.contains("vpc"), "{fault:?}: {output}");

        // Only a 404 is cached, for half a minute.
        upstream.clear_faults();
        larder.clock.advance(Duration::from_secs(if status == 404 { 30 } else { 0 }));
        let stored = larder.get(&path).await.expect(200);
        larder.clock.advance(Duration::from_secs(61));
        upstream.fault(pages, fault.clone());
        let stale = larder.get(&path).await.expect(200);
        assert_eq!(stale.body, stored.body, "{fault:?}");
        let detail = if status == 404 { "detail=gone" } else { "detail=stale" };
        assert!(stale.has_cache_status(detail), "{fault:?}: {:?}", stale.headers);
    }
}

/// A search without `q` gets upstream's 4xx, which is not cached; larder itself refuses invalid parameters.
#[tokio::test]
async fn a_search_without_a_query_has_the_response_of_upstream() {
    let upstream = upstream_with_lists().await;
    let larder = Larder::mirroring(&upstream).start().await;
    for requests in 1..=2 {
        let refused = larder.get(&larder_path("/modules/search")).await.expect(400);
        assert!(refused.text().contains("search query is required"), "{}", refused.text());
        assert_eq!(upstream.count("/v1/modules/search"), requests);
    }
    upstream.forget_requests();
    for (invalid_query, message) in [
        ("?limit=x", "limit"),
        ("?offset=-1", "offset"),
        ("?provider=a%2Fb", "a/b"),
        ("?sort=name", "\"sort\""),
        ("?q=x", "\"q\""),
        ("/search?q=%00", "q must"),
        (&format!("/search?q={}", "x".repeat(129)), "q must"),
    ] {
        let refused = larder.get(&larder_path(&format!("/modules{invalid_query}"))).await.expect(400);
        assert!(refused.json()["errors"][0].as_str().unwrap().contains(message), "{}", refused.text());
    }
    assert_eq!(upstream.count_of(Target::Everything), 0);
    larder.get(&larder_path("/modules?limit=99999999999")).await.expect(200);
}

/// Neither the store nor the metrics nor memory grow with the variety of queries.
#[tokio::test]
async fn varied_queries_leave_a_limited_number_of_pages() {
    let upstream = upstream_with_lists().await;
    let folder = {
        let larder = Larder::mirroring(&upstream).page_bytes(64 * 1024).store("memory = \"0B\"").start().await;
        let lines = metric_lines(&larder).await;
        larder.get(&larder_path("/modules/search?q=kept&limit=1")).await.expect(200);
        for number in 0..120 {
            larder.get(&larder_path(&format!("/modules/search?q=query{number}&utm_{number}=y"))).await.expect(200);
            larder.clock.advance(Duration::from_secs(1));
            if number % 5 == 0 {
                // A page in use is not evicted.
                larder.get(&larder_path("/modules/search?q=kept&limit=1")).await.expect(200);
            }
        }
        let pages = async || larder.folder.files(&format!("documents/{HOST}/pages")).len();
        until("no more than 16 pages of 4 KiB are kept", async || pages().await <= 16).await;
        assert!(pages().await >= 10, "{} pages of 4 KiB are kept", pages().await);
        assert!(larder.metric("larder_evictions_total").await >= 100.0);
        assert_eq!(metric_lines(&larder).await, lines, "the metrics grew");
        upstream.forget_requests();
        larder.get(&larder_path("/modules/search?q=query119")).await.expect(200);
        larder.get(&larder_path("/modules/search?q=kept&limit=1")).await.expect(200);
        let fetched = upstream.requests().iter().filter(|request| request.status == Some(200)).count();
        assert_eq!(fetched, 0, "the last used pages are held");
        larder.get(&larder_path("/modules/search?q=query0")).await.expect(200);
        assert_eq!(upstream.requests().iter().filter(|request| request.status == Some(200)).count(), 1);
        larder.stop().await
    };
    // The count survives a restart, also without the index.
    folder.lose_index();
    let larder = Larder::mirroring(&upstream).page_bytes(32 * 1024).store_at(&folder).start().await;
    larder.get(&larder_path("/modules/search?q=one-more")).await.expect(200);
    let pages = format!("documents/{HOST}/pages");
    until("the number of pages is within the limit", async || larder.folder.files(&pages).len() <= 8).await;
}

/// Different searches leave no more than 256 pages of an upstream, and take none of another one's.
#[tokio::test]
async fn the_pages_of_an_upstream_are_limited_by_their_number() {
    let (upstream, other) = (upstream_with_lists().await, upstream_with_lists().await);
    let larder = Larder::mirroring(&upstream).upstream("other.example", &other.origin(), "").start().await;
    for number in 0..20 {
        larder.get(&format!("/registry/other.example/v1/modules/search?q=query{number}")).await.expect(200);
    }
    for number in 0..400 {
        larder.clock.advance(Duration::from_secs(1));
        larder.get(&larder_path(&format!("/modules/search?q=query{number}"))).await.expect(200);
    }
    let pages_of = |host: &str| larder.folder.files(&format!("documents/{host}/pages")).len();
    until("256 pages are kept", async || pages_of(HOST) <= 256).await;
    assert!(pages_of(HOST) >= 200, "{} pages are kept", pages_of(HOST));
    assert_eq!(pages_of("other.example"), 20, "the pages of another upstream were evicted");
    upstream.forget_requests();
    larder.get(&larder_path("/modules/search?q=query399")).await.expect(200);
    assert_eq!(upstream.requests().iter().filter(|request| request.status == Some(200)).count(), 0);
}

/// Pages never displace the archives of a small store.
#[tokio::test]
async fn api_pages_use_at_most_an_eighth_of_a_small_store() {
    let upstream = upstream_with_lists().await;
    upstream.publish(crate::support::upstream::Provider::new("acme", "big").size(700_000));
    let larder = Larder::mirroring(&upstream).store("max_size = \"1MiB\"").start().await;
    let archive = larder.archive_path("big", "1.2.0").await;
    larder.get(&archive).await.expect(200);
    for number in 0..120 {
        larder.get(&larder_path(&format!("/modules/search?q=query{number}"))).await.expect(200);
    }
    let pages = || larder.folder.files(&format!("documents/{HOST}/pages")).len();
    until("the pages use at most an eighth of the store", async || pages() <= 32).await;
    assert_eq!(larder.folder.blobs().len(), 1, "an archive went for pages");
    assert_eq!(larder.versions("big").await.expect(200).header("cache-status"), "larder; hit");
}

/// Promise 12: offline, cached pages are served; other lists and searches are answered from the store and marked.
#[tokio::test]
async fn a_sealed_mirror_answers_api_requests_from_its_store_and_marks_the_responses() {
    let upstream = upstream_with_lists().await;
    let larder = Larder::mirroring(&upstream).upstream_lines("fold_case = false").start().await;
    let stored = larder.get(&larder_path("/modules?limit=2")).await.expect(200);
    for names in ["Acme-Corp/vpc/aws", "Acme-Corp/vpc/google", "zoitech/network/aws"] {
        larder.get(&larder_path(&format!("/modules/{names}/versions"))).await.expect(200);
    }
    // Of one module only the version list is stored, so none of its versions could be installed.
    larder.get(&larder_path("/modules/zoitech/bucket/aws/versions")).await.expect(200);
    upstream.serve_file("/files/m.tar.gz", "application/gzip", tar_gz(&[("main.tf", b"# m\n")]));
    for (names, upstream_spelling, version) in [
        ("Acme-Corp/vpc/aws", "1.0.0", "1.0.0"),
        ("Acme-Corp/vpc/aws", "1.1.0", "1.1.0"),
        ("Acme-Corp/vpc/google", "2.0.0", "2.0.0"),
        ("zoitech/network/aws", "v0.1", "0.1.0"),
    ] {
        upstream.serve_json(
            &format!("/v1/modules/{names}/{upstream_spelling}/download"),
            r#"{"location":"/files/m.tar.gz"}"#,
        );
        larder.get(&larder_path(&format!("/modules/{names}/{version}/download"))).await.expect(204);
    }
    upstream.publish(crate::support::upstream::Provider::new("acme", "null"));
    larder.versions("null").await.expect(200);
    larder.get(&larder.archive_path("null", "1.2.0").await).await.expect(200);
    let folder = larder.stop().await;
    upstream.forget_requests();

    let sealed =
        Larder::mirroring(&upstream).upstream_lines("fold_case = false").network("offline = true").store_at(&folder);
    let larder = sealed.start().await;
    larder.clock.advance(Duration::from_secs(3600));
    let page = larder.get(&larder_path("/modules?limit=2")).await.expect(200);
    assert_eq!((page.body == stored.body, page.has_cache_status("detail=stale")), (true, true));

    let ids = |page: &Value, name: &str| -> Vec<String> {
        page[name].as_array().unwrap().iter().map(|entry| entry["id"].as_str().unwrap().to_owned()).collect()
    };
    let all = ["Acme-Corp/vpc/aws/1.1.0", "Acme-Corp/vpc/google/2.0.0", "zoitech/network/aws/0.1.0"];
    for (path, expected) in [
        ("/modules", &all[..]),
        ("/modules/acme-corp", &all[..2]),
        ("/modules/Acme-Corp/vpc", &all[..2]),
        ("/modules?provider=aws", &[all[0], all[2]]),
        ("/modules/search?q=VPC", &all[..2]),
        ("/modules/search?q=network+aws", &all[2..]),
        ("/modules/search?q=net&namespace=Acme-Corp", &[]),
        ("/modules/nobody", &[]),
        ("/modules?verified=true", &[]),
        ("/modules/search?q=a&offset=1&limit=1", &all[1..2]),
    ] {
        let answer = larder.get(&larder_path(path)).await.expect(200);
        let page = answer.json();
        assert_eq!(ids(&page, "modules"), expected, "{path}");
        assert!(page["warnings"][0].as_str().unwrap().contains("offline"), "{path}: {page}");
        assert!(answer.has_cache_status("detail=stale"), "{path}: {:?}", answer.headers);
    }
    let meta =
        larder.get(&larder_path("/modules/search?q=a&offset=1&limit=1")).await.expect(200).json()["meta"].clone();
    let expected = serde_json::json!({
        "limit": 1, "current_offset": 1,
        "next_offset": 2, "next_url": larder_path("/modules/search?limit=1&offset=2&q=a"),
        "prev_offset": 0, "prev_url": larder_path("/modules/search?limit=1&q=a"),
    });
    assert_eq!(meta, expected);
    let providers = larder.get(&larder_path("/providers")).await.expect(200).json();
    assert_eq!(ids(&providers, "providers"), ["acme/null/1.2.0"]);

    let details = larder.get(&larder_path("/modules/Acme-Corp/vpc/aws")).await.expect(200).json();
    assert_eq!((&details["version"], &details["provider"]), (&"1.1.0".into(), &"aws".into()));
    assert_eq!(details["versions"], serde_json::json!(["1.0.0", "1.1.0"]), "of 0.9.0 there is no archive");
    assert!(details["warnings"][0].as_str().unwrap().contains("offline"));
    assert!(details["warnings"][1].as_str().unwrap().contains("\"versions\""));
    let provider = larder.get(&larder_path("/providers/acme/null")).await.expect(200).json();
    assert_eq!(provider["versions"], serde_json::json!(["1.2.0"]));
    let one = larder.get(&larder_path("/modules/Acme-Corp/vpc/aws/1.0.0")).await.expect(200).json();
    assert_eq!(one["id"], "Acme-Corp/vpc/aws/1.0.0");
    let latest = larder.get(&larder_path("/modules/zoitech/network/aws/download")).await.expect(302);
    assert_eq!(latest.header("location"), larder_path("/modules/zoitech/network/aws/0.1.0/download"));
    for unknown in [
        "/modules/Acme-Corp/vpc/aws/0.9.0",
        "/modules/Acme-Corp/vpc/aws/7.0.0",
        "/modules/zoitech/bucket/aws",
        "/providers/acme/other",
    ] {
        let refused = larder.get(&larder_path(unknown)).await.expect(503);
        assert!(refused.text().contains("offline"), "{}", refused.text());
    }
    assert_eq!(upstream.count_of(Target::Everything), 0);
    // Online again, larder serves upstream's pages.
    let folder = larder.stop().await;
    let larder = Larder::mirroring(&upstream).upstream_lines("fold_case = false").store_at(&folder).start().await;
    let page = larder.get(&larder_path("/modules/search?q=VPC")).await.expect(200).json();
    assert!(page.get("warnings").is_none(), "{page}");
}

/// Each larder of a chain rewrites the URLs of pages.
#[tokio::test]
async fn api_pages_are_served_through_two_larders() {
    let upstream = upstream_with_lists().await;
    let inner_larder = Larder::mirroring(&upstream).start().await;
    let base = format!("{}/registry/{HOST}/", inner_larder.base());
    let outer_larder = Larder::builder().upstream("registry.other.example", &base, "").start().await;
    let page = outer_larder.get("/registry/registry.other.example/v1/modules?limit=2").await.expect(200).json();
    let next = page["meta"]["next_url"].as_str().unwrap();
    assert_eq!(next, "/registry/registry.other.example/v1/modules?limit=2&offset=2");
    assert_eq!(outer_larder.get(next).await.expect(200).json()["meta"]["current_offset"], 2);
}
