//! The page at the root of the main listener, which a person gets who opens larder's address in a browser.

use crate::support::http::{Answer, client, get, send};
use crate::support::larder::{HOST, Larder};
use crate::support::pages::{assert_self_contained, readable_text};
use crate::support::upstream::{FakeUpstream, Provider, Target};

/// What browsers send.
const BROWSER: (&str, &str) = ("accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8");

async fn open(larder: &Larder, headers: &[(&str, &str)]) -> Answer {
    larder.get_with("/", &[&[BROWSER], headers].concat()).await
}

/// The text to paste is the one that `larder client-config` prints, and no upstream is asked for it.
#[tokio::test]
async fn a_browser_gets_the_configuration_to_paste() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let larder = Larder::mirroring(&upstream).start().await;
    let page = open(&larder, &[]).await.expect(200);
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    let text = readable_text(&page);
    assert!(text.contains(larder.client_config()), "{text}");
    assert!(text.contains(env!("CARGO_PKG_VERSION")), "{text}");
    assert_eq!(upstream.count_of(Target::Everything), 0);
    // After the first answer of the registry the text names each of its services.
    larder.get(&format!("/registry/{HOST}/.well-known/terraform.json")).await.expect(200);
    let services = open(&larder, &[]).await.expect(200);
    assert!(readable_text(&services).contains("login.v1"), "{}", services.text());
}

/// Its style and script are in the page, and the browser may load nothing else, put it in no frame, and not guess its type.
#[tokio::test]
async fn the_page_loads_nothing_and_runs_only_its_own_script() {
    let larder = Larder::builder().start().await;
    let page = open(&larder, &[]).await.expect(200);
    assert_self_contained(&page);
    assert!(page.body.len() < 20_000, "{}", page.body.len());
}

#[tokio::test]
async fn head_has_the_length_of_the_page() {
    let larder = Larder::builder().start().await;
    let page = open(&larder, &[]).await.expect(200);
    let request = client().head(format!("{}/", larder.base())).header(BROWSER.0, BROWSER.1);
    let head = send(request).await.unwrap().expect(200);
    assert!(head.body.is_empty());
    assert_eq!(head.header("content-length"), page.body.len().to_string());
}

/// Clients and tools that open the root still see that there is nothing for them.
#[tokio::test]
async fn what_does_not_ask_for_html_gets_404() {
    let larder = Larder::builder().start().await;
    for accept in ["*/*", "application/json", "text/*", "text/html;q=0", "application/xhtml+xml", ""] {
        let answer = larder.get_with("/", &[("accept", accept)]).await.expect(404);
        assert_eq!(answer.json()["errors"][0], "there is nothing at /", "{accept}");
    }
    larder.get("/").await.expect(404);
    open(&larder, &[]).await.expect(200);
    larder.get_with("/index.html", &[BROWSER]).await.expect(404);
}

/// The URLs to paste begin with the address that the browser asked, unless `public_url` names one.
#[tokio::test]
async fn the_urls_to_paste_begin_with_the_address_of_the_browser() {
    let upstream = FakeUpstream::start().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let local = larder.base().to_owned();
    for (headers, expected) in [
        (&[("host", "mirror.corp:8080")][..], "http://mirror.corp:8080"),
        (&[("host", "Mirror.Corp:80")][..], "http://mirror.corp"),
        // A proxy may have another name for larder, and a hostile Host is none.
        (&[("host", "inner:8080"), ("x-forwarded-for", "10.0.0.1")][..], local.as_str()),
        (&[("host", "mirror.corp\"><script>")][..], local.as_str()),
        // The registry's own name needs no configuration.
        (&[("host", HOST)][..], local.as_str()),
    ] {
        let page = open(&larder, headers).await.expect(200);
        let text = readable_text(&page);
        let line = format!("\"providers.v1\" = \"{expected}/registry/{HOST}/v1/providers/\"");
        assert!(text.contains(&line), "{headers:?}: {text}");
        assert!(text.contains("public_url"), "{text}");
        assert!(!page.text().contains("corp\">"), "{}", page.text());
    }
    let mounted = Larder::mirroring(&upstream).server("public_url = \"https://mirror.example/tf/\"").start().await;
    for path in ["/", "/tf/"] {
        let request = client().get(format!("http://{}{path}", mounted.address())).header(BROWSER.0, BROWSER.1);
        let page = send(request.header("host", "other.corp")).await.unwrap().expect(200);
        let text = readable_text(&page);
        assert!(text.contains(mounted.client_config()), "{text}");
        assert!(text.contains("https://mirror.example/tf/registry/") && !text.contains("public_url"), "{text}");
    }
}

/// Promise 8: who may not ask the mirror learns nothing about it, and the page holds nothing that is not public.
#[tokio::test]
async fn the_page_shows_nothing_that_is_not_public() {
    let upstream = FakeUpstream::start().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let text = open(&larder, &[]).await.expect(200).text();
    for private in [upstream.origin(), larder.token(), larder.folder.path().display().to_string(), larder.admin()] {
        assert!(!text.contains(&private), "{private}");
    }
    let closed = Larder::mirroring(&upstream).server("clients = [\"10.0.0.0/8\"]").start().await;
    let refused = open(&closed, &[]).await.expect(403).text();
    assert!(refused.contains("is not among the clients") && !refused.contains(HOST), "{refused}");
}

/// A page is neither a hit nor a miss.
#[tokio::test]
async fn the_page_is_counted_apart_from_requests_of_clients() {
    let larder = Larder::builder().start().await;
    open(&larder, &[]).await.expect(200);
    let metrics = get(&format!("{}/metrics", larder.admin())).await.text();
    assert!(metrics.contains("larder_requests_total{route=\"home\",outcome=\"none\"} 1"), "{metrics}");
}
