//! Version lists: entries stay as upstream wrote them, byte for byte, and the list that larder sends parses to the same list.
#![no_main]

use std::collections::HashSet;
use std::sync::LazyLock;

use larder::address::{Hostname, Name, Platform, ProviderAddress, Version};
use larder::protocol::registry::render_list;
use larder::upstream::providers::{VersionList, download_url};
use libfuzzer_sys::fuzz_target;
use url::Url;

static BASE: LazyLock<Url> = LazyLock::new(|| Url::parse("https://registry.example/v1/providers/").expect("a URL"));

static ADDRESS: LazyLock<ProviderAddress> = LazyLock::new(|| ProviderAddress {
    host: Hostname::parse("registry.example").expect("a host"),
    namespace: Name::parse("acme").expect("a name"),
    type_: Name::parse("null").expect("a name"),
});

fuzz_target!(|body: &[u8]| {
    let Ok(list) = VersionList::parse(body) else { return };
    // Clients read U+FFFD for what is not UTF-8.
    let text = String::from_utf8_lossy(body);
    let mut seen = HashSet::new();
    let mut entry_bytes = 0;
    for listed in &list.versions {
        assert!(seen.insert(listed.version.clone()), "{} twice", listed.version);
        assert_eq!(Version::parse(&listed.upstream_spelling).as_ref(), Ok(&listed.version));
        entry_bytes += listed.raw.get().len();
        let url = download_url(
            &BASE,
            &ADDRESS,
            &listed.upstream_spelling,
            &Platform::parse("linux_amd64").expect("a platform"),
        );
        let url = url.expect("a version makes a URL");
        let expected = format!("{}acme/null/{}/download/linux/amd64", BASE.as_str(), listed.upstream_spelling);
        assert_eq!(url.as_str(), expected);
    }
    assert!(entry_bytes <= text.len());
    for listed in list.versions.iter().take(20) {
        assert!(text.contains(listed.raw.get()));
        assert_eq!(list.get(&listed.version).map(|found| &found.upstream_spelling), Some(&listed.upstream_spelling));
    }
    // Clients match member names in any case, so the document must have one list only.
    assert!(!list.other_members.keys().any(|name| name.to_uppercase() == "VERSIONS"));

    let sent = render_list(&list).expect("what was JSON stays JSON");
    let read = VersionList::parse(&sent);
    if list.versions.is_empty() {
        assert!(read.is_ok_and(|read| read.versions.is_empty()));
        return;
    }
    let read = read.expect("what goes out is a version list");
    let raw = |list: &VersionList| list.versions.iter().map(|v| v.raw.get().to_owned()).collect::<Vec<_>>();
    assert_eq!(raw(&read), raw(&list));
    let rest = |list: &VersionList| {
        list.other_members.iter().map(|(k, v)| (k.clone(), v.get().to_owned())).collect::<Vec<_>>()
    };
    assert_eq!(rest(&read), rest(&list));
});
