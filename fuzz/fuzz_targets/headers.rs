//! X-Forwarded-For, CDN-Loop, Content-Range, and the errors of an upstream. Each line of the input is one value.
#![no_main]

use std::net::IpAddr;
use std::sync::LazyLock;

use http::header::{HeaderMap, HeaderValue};
use larder::cdn_loop::{CdnLoop, OwnEntry};
use larder::http::clients::Clients;
use larder::upstream::error::sanitized;
use larder::upstream::request::content_range;
use libfuzzer_sys::fuzz_target;

static OWN_ENTRY: LazyLock<OwnEntry> = LazyLock::new(|| OwnEntry::random().expect("random bytes"));

static CLIENTS: LazyLock<Clients> = LazyLock::new(|| Clients {
    allowed: Some(["10.1.0.0/16", "::1/128"].map(|net| net.parse().expect("a network")).into()),
    trusted_proxies: ["10.9.0.0/24", "fd00::/8"].map(|net| net.parse().expect("a network")).into(),
    runs: None,
});

fuzz_target!(|input: &[u8]| {
    let lines = input.split(|byte| *byte == b'\n').take(8);
    let values: Vec<HeaderValue> = lines.filter_map(|line| HeaderValue::from_bytes(line).ok()).collect();
    check_forwarded_for(&values);
    check_loop_detection(&values);
    if let Ok(text) = std::str::from_utf8(input) {
        check_content_range(text);
        let message = sanitized(text);
        assert!(!message.contains(['?', '#', '@']) && !message.chars().any(char::is_control), "{message}");
        assert!(message.chars().count() <= 300 && message.matches("://").count() <= text.matches("://").count());
    }
});

/// Only the X-Forwarded-For entry that a trusted proxy added counts, whatever the client sent before it (promise 8).
fn check_forwarded_for(values: &[HeaderValue]) {
    let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
    let (client, stranger, proxy) = (ip("10.1.2.3"), ip("192.0.2.1"), ip("10.9.0.5"));
    let headers_with = |last: Option<&'static str>| {
        let values = values.iter().cloned().chain(last.map(HeaderValue::from_static));
        let mut headers = HeaderMap::new();
        values.for_each(|value| {
            headers.append("x-forwarded-for", value);
        });
        headers
    };
    let admits = |peer, headers: &HeaderMap| CLIENTS.admit(&CLIENTS.client(peer, headers), None).is_ok();
    for last in [None, Some("10.1.2.3"), Some("nonsense")] {
        assert!(admits(client, &headers_with(last)));
        assert!(!admits(stranger, &headers_with(last)));
    }
    for (last, admitted) in [("10.1.2.3", true), ("::1, fd00::1", true), ("192.0.2.1", false), ("nonsense", false)] {
        assert_eq!(admits(proxy, &headers_with(Some(last))), admitted, "{last}");
    }
    // Without an entry of the proxy, either decision is right; a panic is not.
    admits(proxy, &headers_with(None));
}

/// CDN-Loop of an upstream request ends with larder's own entry, and larder recognises that entry when the request
/// returns (promise 7).
fn check_loop_detection(values: &[HeaderValue]) {
    let texts: Vec<&str> = values.iter().filter_map(|value| value.to_str().ok()).collect();
    let received = CdnLoop::received(texts.iter().copied());
    let sent = received.with(&OWN_ENTRY);
    assert!(HeaderValue::from_str(&sent).is_ok(), "{sent:?}");
    assert!(sent.ends_with(&OWN_ENTRY.to_string()) && sent.starts_with(&texts.join(", ")));
    let returned = CdnLoop::received([sent.as_str()].into_iter());
    assert!(returned.names_a_larder() && returned.is_a_loop(&OWN_ENTRY), "{sent:?}");
    let mut chain = received;
    for _ in 0..5 {
        let other = OwnEntry::random().expect("random bytes");
        chain = CdnLoop::received([chain.with(&other).as_str()].into_iter());
    }
    assert!(chain.is_a_loop(&OWN_ENTRY), "five larders are too many");
}

fn check_content_range(text: &str) {
    let Some((start, total)) = content_range(text) else { return };
    assert!(total.is_none_or(|total| start < total), "{text:?}");
    let total = total.map_or("*".to_owned(), |total| total.to_string());
    assert_eq!(content_range(&format!("bytes {start}-{start}/{total}")).map(|range| range.0), Some(start), "{text:?}");
}
