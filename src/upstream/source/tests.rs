//! Tests of source addresses of every form, and of addresses that are refused.

use proptest::prelude::*;

use super::*;
use crate::packaging::{ArchiveFormat, TreePath};

fn base() -> Url {
    Url::parse("https://registry.example/v1/modules/a/b/c/1.0.0/download").unwrap()
}

fn parse(text: &str) -> LocatedSource {
    PackageSource::parse(text, &base()).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn plain_subdir(text: &str) -> Option<Subdir> {
    Some(Subdir::Plain(TreePath::parse(text.as_bytes()).unwrap()))
}

/// Parses a source, and prints it as one line of text.
fn parse_and_print(text: &str) -> String {
    let LocatedSource { source, subdir } = parse(text);
    let subdir = subdir.map_or_else(String::new, |subdir| format!(" in {subdir}"));
    match source {
        PackageSource::Git(GitSource { url, reference, depth }) => {
            let reference = reference.map_or_else(String::new, |reference| format!(" at {reference}"));
            let depth = depth.map_or_else(String::new, |depth| format!(" depth {depth}"));
            format!("git {url}{reference}{depth}{subdir}")
        }
        PackageSource::Archive(ArchiveSource { url, format, checksum }) => {
            let checksum = checksum.map_or_else(String::new, |checksum| format!(" {checksum:?}"));
            format!("{format:?} {url}{checksum}{subdir}")
        }
        PackageSource::Indirect(url) => format!("page {url}{subdir}"),
        PackageSource::Unsupported(unsupported) => format!("{}{subdir}", unsupported.kind_name()),
    }
}

#[test]
fn git_sources_of_every_form_are_parsed() {
    for (text, expected) in [
        ("git::https://github.com/o/r?ref=v1.0.0", "git https://github.com/o/r at v1.0.0"),
        ("git::https://git.example/r.git?ref=0123abc&depth=1", "git https://git.example/r.git at 0123abc depth 1"),
        ("git::https://git.example/r.git//modules/x?ref=a%2Fb", "git https://git.example/r.git at a/b in modules/x"),
        ("git::http://git.example:8080/r.git", "git http://git.example:8080/r.git"),
        ("git::ssh://git@git.example:2222/o/r.git?ref=v1", "git ssh://git@git.example:2222/o/r.git at v1"),
        ("git::git@git.example:o/r.git//x?ref=v1", "git ssh://git@git.example/o/r.git at v1 in x"),
        ("git@git.example:/o/r.git", "git ssh://git@git.example/o/r.git"),
        ("github.com/o/r", "git https://github.com/o/r.git"),
        ("github.com/o/r.git//x/y?ref=v1", "git https://github.com/o/r.git at v1 in x/y"),
        ("github.com/o/r/x//y?ref=v1", "git https://github.com/o/r.git at v1 in x/y"),
        ("git::github.com/o/r", "git https://github.com/o/r.git"),
        ("gitlab.com/o/r?ref=v1", "git https://gitlab.com/o/r.git at v1"),
        ("bitbucket.org/o/r//x?ref=v1", "git https://bitbucket.org/o/r.git at v1 in x"),
        ("git::https://git.example/r?ref=&depth=0&sshkey=c2VjcmV0", "git https://git.example/r"),
        ("git::https://git.example/r?depth=x&other=a%2fb&ref=v1", "git https://git.example/r?other=a%2fb at v1"),
        ("git::https://git.example/r?ref=first&ref=second", "git https://git.example/r at first"),
        (" git::https://git.example/r ", "git https://git.example/r"),
        ("git::https://git.example/r//.//x/./y/", "git https://git.example/r in x/y"),
    ] {
        assert_eq!(parse_and_print(text), expected, "{text}");
    }
}

#[test]
fn archives_are_recognised_by_parameter_or_suffix_and_other_urls_are_pages() {
    for (text, expected) in [
        ("https://h.example/m.zip", "Zip https://h.example/m.zip"),
        ("https://h.example/m.tar.gz//top/x", "TarGz https://h.example/m.tar.gz in top/x"),
        ("http://h.example/m.txz?token=a%2fb", "TarXz http://h.example/m.txz?token=a%2fb"),
        ("https::https://h.example/m.tbz2", "TarBz2 https://h.example/m.tbz2"),
        ("https://h.example/dl?archive=tgz&a=%2f&b", "TarGz https://h.example/dl?a=%2f&b"),
        ("https://h.example/dl?archive=tar.gz", "TarGz https://h.example/dl"),
        ("https://h.example/m.zip?archive=", "Zip https://h.example/m.zip"),
        ("https://h.example/m%2ezip", "Zip https://h.example/m%2ezip"),
        ("https://h.example/tarball/v1//*?archive=tar.gz", "TarGz https://h.example/tarball/v1 in *"),
        (
            "https://h.example/m.zip?checksum=md5:900150983cd24fb0d6963f7d28e17f72&x=1",
            "Zip https://h.example/m.zip?x=1 Is(md5:900150983cd24fb0d6963f7d28e17f72)",
        ),
        ("/archives/m.tgz//x", "TarGz https://registry.example/archives/m.tgz in x"),
        ("./m.zip?a=1", "Zip https://registry.example/v1/modules/a/b/c/1.0.0/m.zip?a=1"),
        ("../../m.zip", "Zip https://registry.example/v1/modules/a/b/m.zip"),
        ("//h.example/m.zip", "Zip https://h.example/m.zip"),
        ("https://h.example/module", "page https://h.example/module?terraform-get=1"),
        ("https://h.example/m.zip//x?archive=false&a=1", "page https://h.example/m.zip?a=1&terraform-get=1 in x"),
        ("https://h.example/m?archive=tar", "page https://h.example/m?terraform-get=1"),
        ("https://h.example/m.tar", "page https://h.example/m.tar?terraform-get=1"),
        ("https://h.example/m.zip#part", "Zip https://h.example/m.zip"),
    ] {
        assert_eq!(parse_and_print(text), expected, "{text}");
    }
    let PackageSource::Archive(archive) =
        parse("https://h.example/m?archive=xz&checksum=file:https://h.example/SUMS").source
    else {
        panic!()
    };
    assert_eq!(archive.format, ArchiveFormat::Xz);
    assert_eq!(archive.checksum, Some(ExpectedChecksum::Listed(Url::parse("https://h.example/SUMS").unwrap())));
}

#[test]
fn an_unsupported_source_has_a_label_and_a_host() {
    for (text, label, host) in [
        ("s3::https://s3.amazonaws.com/bucket/m.zip", "an Amazon S3 bucket", Some("s3.amazonaws.com")),
        ("s3-eu-west-1.amazonaws.com/bucket/m.zip", "an Amazon S3 bucket", Some("s3-eu-west-1.amazonaws.com")),
        (
            "gcs::https://www.googleapis.com/storage/v1/b/m.zip",
            "a Google Cloud Storage bucket",
            Some("www.googleapis.com"),
        ),
        ("www.googleapis.com/storage/v1/b/m.zip", "a Google Cloud Storage bucket", Some("www.googleapis.com")),
        ("hg::https://User:Pass@HG.example:8443/r", "a Mercurial repository", Some("hg.example")),
        ("oci://oci.example/r?tag=v1", "an OCI registry", Some("oci.example")),
        ("git::git://git.example/r", "git over something else than https or ssh", Some("git.example")),
        ("git://git.example/r", "git over something else than https or ssh", Some("git.example")),
        ("ssh://git@git.example/r", "ssh without git::", Some("git.example")),
        ("file:///etc/m", "a path on the client's own machine", None),
        ("file::/etc/m", "a path on the client's own machine", None),
        ("hashicorp/consul/aws", "a registry address", None),
        ("registry.example/hashicorp/consul/aws", "a registry address", Some("registry.example")),
        ("nonsense", "a kind of source that it does not know", None),
        ("smb::https://[2001:db8::1]:1/x", "a kind of source that it does not know", Some("2001:db8::1")),
    ] {
        let PackageSource::Unsupported(unsupported) = parse(text).source else { panic!("{text}") };
        assert_eq!((unsupported.kind_name(), unsupported.host().as_deref()), (label, host), "{text}");
        assert!(!format!("{unsupported:?}").contains("Pass"));
    }
}

/// A registry's own secrets must not reach clients.
#[test]
fn only_sources_without_secrets_reach_a_client() {
    let for_client = |text: &str| match parse(text).source {
        PackageSource::Unsupported(unsupported) => unsupported.for_client().map(str::to_owned),
        source => panic!("{text}: {source:?}"),
    };
    for text in [
        "s3::https://s3.amazonaws.com/bucket/m.zip",
        "s3::https://s3.amazonaws.com/bucket/m.zip//x?archive=zip&checksum=md5:00&depth=1&version=v1",
        "oci://oci.example/r?tag=v1",
        "oci://oci.example/r?digest=sha256:00",
        "hg::https://hg.example/r?ref=v1",
    ] {
        assert_eq!(for_client(text).as_deref(), Some(text));
    }
    for text in [
        "s3::https://s3.amazonaws.com/bucket/m.zip?aws_access_key_id=x&aws_access_key_secret=s3cret",
        "s3::https://s3.amazonaws.com/bucket/m.zip?ref=a&X-Amz-Signature=s3cret",
        "s3::https://s3.amazonaws.com/bucket/m.zip?ref=a;token=s3cret",
        "s3::https://s3.amazonaws.com/bucket/m.zip?ref=a?token=s3cret",
        "s3::https://s3.amazonaws.com/bucket/m.zip?s3cret",
        "s3::https://s3.amazonaws.com/bucket/m.zip?%73shkey=s3cret",
        "hg::https://user:s3cret@hg.example/r",
        "hg::https://token@hg.example/r",
        "hg::https://hg.example/r#s3cret",
        "oci://oci.example/r\u{e9}",
    ] {
        assert_eq!(for_client(text), None, "{text}");
    }
}

#[test]
fn an_invalid_or_forbidden_source_is_refused_without_its_secrets() {
    let long = format!("https://h.example/{}", "x".repeat(9000));
    for (text, reason) in [
        ("", "empty"),
        ("https://h.example/m.zip\nX-Evil: 1", "control characters"),
        (long.as_str(), "8 KiB"),
        ("https://user:s3cret@h.example/m.zip", "a user or a password"),
        ("https://s3cret@h.example/m", "a user or a password"),
        ("git::https://user:s3cret@h.example/r", "a user or a password"),
        ("git::https://s3cret@h.example/r", "a user or a password"),
        ("git::ssh://git:s3cret@h.example/r", "a user or a password"),
        ("//user:s3cret@h.example/m.zip", "a user or a password"),
        ("https://h.example/m.zip?checksum=file:https://s3cret@h.example/SUMS", "cannot be fetched"),
        ("https://h.example/m.zip?checksum=sha256:s3cret", "not of its length"),
        ("https://h.example/m?checksum=sha256:s3cret", "not an archive"),
        ("git::https://h.example/r?archive=zip", "an archive or a checksum"),
        ("git::https://h.example/r//../x", ".. in its //subdir"),
        ("git::https://h.example/r//x/../../s3cret", ".. in its //subdir"),
        ("github.com/o", "HOST/OWNER/REPOSITORY"),
        ("https://", "not a URL"),
        ("git::https://h.example:99999/r", "not a URL"),
        ("git::ssh:x", "names no host"),
    ] {
        let error = PackageSource::parse(text, &base()).expect_err(text).to_string();
        assert!(error.contains(reason) && !error.contains("s3cret"), "{text}: {error}");
    }
    let error = PackageSource::parse("https://user:s3cret@h.example/m.zip", &base()).unwrap_err();
    assert_eq!(error.to_string(), "the source address at h.example holds a user or a password");
}

#[test]
fn a_glob_subdir_is_split_after_its_last_pattern() {
    let glob = |wrapper: &str, rest: &str| {
        Some(Subdir::Glob { wrapper: wrapper.to_owned(), rest: TreePath::parse(rest.as_bytes()).unwrap() })
    };
    for (text, expected) in [
        ("https://h.example/m.zip", None),
        ("https://h.example/m.zip//", None),
        ("https://h.example/m.zip//.", None),
        ("https://h.example/m.zip//x", plain_subdir("x")),
        ("https://h.example/m.zip//*", glob("*", "")),
        ("https://h.example/m.zip//*/modules/x", glob("*", "modules/x")),
        ("https://h.example/m.zip//a/r-[0-9]*/x/*/y", glob("a/r-[0-9]*/x/*", "y")),
    ] {
        assert_eq!(parse(text).subdir, expected, "{text}");
    }
}

/// The subdir of an indirection is the outer folder of the subdir of the address before it.
#[test]
fn subdirs_are_joined_from_the_outside_in() {
    let subdir = |text: &str| Subdir::parse(text).unwrap().unwrap();
    for (outer, inner, joined) in [
        ("a", "b/c", "a/b/c"),
        ("*", "b", "*/b"),
        ("a", "*/b", "a/*/b"),
        ("*/a", "*/b", "*/a/*/b"),
        ("a*", "b*", "a*/b*"),
    ] {
        assert_eq!(subdir(outer).join(&subdir(inner)).unwrap(), subdir(joined), "{outer} {inner}");
    }
    assert!(subdir(&"a/".repeat(1500)).join(&subdir(&"b/".repeat(1500))).is_err());
}

fn any_address() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        "git::|hg::|s3::|https::|https://|http://|ssh://|file://|git@|github.com/|gitlab.com/|bitbucket.org/|//|/|\\./|\\.\\./|:|@|\\?|&|=|#|%2f|%40|%3f|\\*|\\[|;",
        "user:s3cret@|s3cret@",
        "ref=v1|archive=zip|archive=false|checksum=|sha256:|file:|depth=1|sshkey=a",
        "h.example|\\[::1\\]|a|b|\\.zip|\\.tar\\.gz|\\.\\.|\\PC",
    ];
    prop::collection::vec(part, 0..14).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn any_address_is_parsed_or_refused_and_reveals_no_secret(text in any_address()) {
        match PackageSource::parse(&text, &base()) {
            Ok(LocatedSource { source, subdir }) => {
                if let Some(Subdir::Plain(path)) = &subdir {
                    prop_assert!(!path.is_root() && path.names().all(|name| name != b".."));
                }
                match source {
                    PackageSource::Git(GitSource { url, reference, depth }) => {
                        prop_assert!(matches!(url.scheme(), "http" | "https" | "ssh") && url.password().is_none());
                        prop_assert!(url.scheme() == "ssh" || url.username().is_empty());
                        prop_assert!(reference.is_none_or(|reference| !reference.is_empty()) && depth != Some(0));
                    }
                    PackageSource::Archive(ArchiveSource { url, .. }) | PackageSource::Indirect(url) => {
                        prop_assert!(matches!(url.scheme(), "http" | "https") && url.host().is_some());
                        prop_assert!(url.username().is_empty() && url.password().is_none() && url.fragment().is_none());
                    }
                    PackageSource::Unsupported(unsupported) => {
                        let for_client = unsupported.for_client().unwrap_or_default();
                        prop_assert!(!for_client.contains('@') && http::HeaderValue::from_str(for_client).is_ok());
                        prop_assert!(!unsupported.host().unwrap_or_default().contains("s3cret") || !text.contains('@'));
                    }
                }
            }
            Err(error) => prop_assert!(error.to_string().len() < 400),
        }
    }
}

/// A URL spells each character of this host with nine. The error must not become kilobytes long.
#[test]
fn an_error_about_a_long_host_is_short() {
    let base = Url::parse("https://registry.example/v1/").unwrap();
    let text = format!("git@{}.example:o/r?archive=tgz", "\u{fffd}".repeat(200));
    let error = PackageSource::parse(&text, &base).unwrap_err().to_string();
    assert!(error.chars().count() < 400, "{} characters", error.chars().count());
}
