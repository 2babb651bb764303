//! Source addresses, and the answers that name them: no parsed source has a password, and no subdirectory leads upwards.
#![no_main]

use larder::upstream::source::{
    Checksum, LocatedSource, PackageSource, Subdir, location_in_download, location_in_page,
};
use libfuzzer_sys::fuzz_target;
use url::Url;

fuzz_target!(|bytes: &[u8]| {
    let base = Url::parse("https://registry.example/v1/modules/a/b/c/1.0.0/download").expect("a URL");
    let _ = Checksum::in_list(bytes, &base, &base);
    for text in [location_in_download(None, bytes), location_in_page(None, bytes)].into_iter().flatten() {
        assert!(!text.trim().is_empty());
        check_source(&text, &base);
    }
    check_source(&String::from_utf8_lossy(bytes), &base);
});

fn check_source(text: &str, base: &Url) {
    match PackageSource::parse(text, base) {
        Ok(LocatedSource { source, subdir }) => {
            if let Some(Subdir::Plain(path)) = subdir {
                assert!(!path.is_root() && path.names().all(|name| name != b".." && name != b"."));
            }
            let (url, is_ssh) = match source {
                PackageSource::Git(git) => (git.url.clone(), git.url.scheme() == "ssh"),
                PackageSource::Archive(archive) => (archive.url, false),
                PackageSource::Indirect(url) => (url, false),
                PackageSource::Unsupported(unsupported) => {
                    let client_source = unsupported.for_client().unwrap_or_default();
                    assert!(client_source.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'@' && byte != b'#'));
                    return;
                }
            };
            assert!(url.has_host() && url.password().is_none() && url.fragment().is_none());
            assert!(is_ssh || (url.username().is_empty() && matches!(url.scheme(), "http" | "https")));
        }
        Err(bad) => assert!(bad.to_string().chars().count() < 400),
    }
}
