//! Download documents: larder rewrites the three URLs and changes nothing else.
#![no_main]

use std::sync::LazyLock;

use larder::address::Platform;
use larder::upstream::providers::DownloadDocument;
use libfuzzer_sys::fuzz_target;
use url::Url;

const NAMES: [&str; 3] = ["download_url", "shasums_url", "shasums_signature_url"];

static DOCUMENT_URL: LazyLock<Url> =
    LazyLock::new(|| Url::parse("https://registry.example/v1/x?token=t").expect("a URL"));
static PLATFORM: LazyLock<Platform> = LazyLock::new(|| Platform::parse("linux_amd64").expect("a platform"));

fuzz_target!(|body: &[u8]| {
    let Ok(document) = DownloadDocument::parse(body, &DOCUMENT_URL, &PLATFORM) else { return };
    // Clients read U+FFFD for what is not UTF-8.
    let text = String::from_utf8_lossy(body);
    for url in [&document.archive_url, &document.sums_url].into_iter().chain(&document.signature_url) {
        assert!(matches!(url.scheme(), "http" | "https") && url.has_host(), "{url}");
    }
    let urls = ["/archive/a", "/archive/b", "/archive/c"].map(str::to_owned);
    let sent = document.with_urls(urls.clone()).expect("what was JSON stays JSON");
    let base = Url::parse("https://mirror.example/").expect("a URL");
    let read = DownloadDocument::parse(&sent, &base, &PLATFORM).expect("what goes out is a download document");

    assert_eq!(read.archive_url.path(), "/archive/a");
    assert_eq!(read.sums_url.path(), "/archive/b");
    assert_eq!(read.signature_url.as_ref().map(Url::path), document.signature_url.as_ref().map(|_| "/archive/c"));
    assert_eq!(
        read.signature_url.and_then(|url| url.host_str().map(str::to_owned)).as_deref().unwrap_or("mirror.example"),
        "mirror.example"
    );
    assert_eq!((&read.filename, read.shasum, &read.keys), (&document.filename, document.shasum, &document.keys));
    assert!(read.fields.keys().eq(document.fields.keys()));
    for (name, value) in &document.fields {
        if !NAMES.contains(&name.as_str()) {
            assert_eq!(read.fields.get(name).map(|value| value.get()), Some(value.get()), "{name}");
            assert!(text.contains(value.get()));
            // Clients match member names in any case and use the last one, so no other spelling of a URL member may remain.
            assert!(
                !NAMES.iter().any(|url_name| name.to_lowercase().to_uppercase() == url_name.to_uppercase()),
                "{name}"
            );
        }
    }
});
