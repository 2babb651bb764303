use proptest::prelude::*;

use super::reading::MAX_SUMS_BYTES;
use super::*;

fn fetch_origin() -> FetchOrigin {
    let url = Url::parse("https://registry.example/v1/providers/acme/null/1.0.0/download/linux/amd64").unwrap();
    FetchOrigin { url: url.clone(), asked: url, fetched: Timestamp(1), checked: Timestamp(2), gone: false }
}

fn file(content: &str) -> BundledFile {
    BundledFile { sha256: Digest::of(content.as_bytes()), bytes: content.len() as u64 }
}

fn archive(content: &str, left_out: bool) -> BundledArchive {
    let BundledFile { sha256, bytes } = file(content);
    BundledArchive { sha256, bytes, left_out }
}

fn discovery() -> BundleEntry {
    let document = BundledDocument { said: fetch_origin(), document: file("{}"), dropped: Some(file("[]")) };
    BundleEntry::Discovery { host: Hostname::parse("registry.example:8443").unwrap(), document }
}

fn provider(platform: &str, left_out: bool) -> BundleEntry {
    let json = serde_json::json!({
        "provider": "registry.example/acme/null", "version": "1.0.0", "platform": platform, "signed_by": "AB",
        "said": fetch_origin(), "document": file(platform), "sums": file("sums"), "signature": file("signature"),
        "archive": archive(&format!("zip of {platform}"), left_out),
    });
    BundleEntry::Provider(Box::new(serde_json::from_value(json).unwrap()))
}

fn module() -> BundleEntry {
    let json = serde_json::json!({
        "module": "registry.example/Acme/vpc/aws", "version": "1.2.0", "commit": "c0ffee", "tree": Digest::of(b"tree"),
        "packer": 1, "subdir": "modules/x", "source": Digest::of(b"source"), "origin": "https://git.example",
        "first_seen": 3, "said": fetch_origin(), "location": file("git::https://git.example/x"), "archive": archive("tgz", false),
    });
    BundleEntry::Module(Box::new(serde_json::from_value(json).unwrap()))
}

fn manifest(entries: Vec<BundleEntry>) -> Manifest {
    Manifest::new(Timestamp(1_795_293_761), Some(Digest::of(b"inventory")), entries)
}

#[test]
fn a_manifest_round_trips_and_has_one_line_per_entry() {
    let manifest = manifest(vec![discovery(), provider("linux_amd64", false), module()]);
    let written = manifest.write();
    assert_eq!(Manifest::read(&written).unwrap(), manifest);
    let text = String::from_utf8(written).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| line.contains(r#""kind""#)).collect();
    assert_eq!(lines.len(), 3);
    assert!(lines[1].contains(r#""kind":"provider","provider":"registry.example/acme/null","version":"1.0.0","#));
    assert!(lines[2].contains(r#""module":"registry.example/Acme/vpc/aws","version":"1.2.0","commit":"c0ffee","#));
}

#[test]
fn each_file_is_listed_once_and_the_archive_of_an_entry_last() {
    let manifest = manifest(vec![provider("linux_amd64", false), provider("linux_arm64", true)]);
    let files: Vec<_> = manifest.files().map(|(entry, file)| (entry, file.role)).collect();
    let of_first_entry =
        [FileRole::Document, FileRole::Sums, FileRole::Signature, FileRole::Archive].map(|role| (0, role));
    assert_eq!(files, [&of_first_entry[..], &[(1, FileRole::Document)]].concat());
}

#[test]
fn an_invalid_entry_is_refused_and_named() {
    let refusal = |entries: Vec<BundleEntry>| Manifest::read(&manifest(entries).write()).unwrap_err().to_string();
    assert!(refusal(vec![module(), module()]).contains("registry.example/Acme/vpc/aws 1.2.0 is listed twice"));
    let refusal_with = |change: &dyn Fn(&mut ProviderEntry)| {
        let BundleEntry::Provider(mut entry) = provider("linux_amd64", false) else { unreachable!() };
        change(&mut entry);
        refusal(vec![BundleEntry::Provider(entry)])
    };
    assert!(
        refusal_with(&|entry| entry.sums.bytes = MAX_SUMS_BYTES + 1)
            .contains("acme/null 1.0.0 (linux_amd64): its SHA256SUMS")
    );
    assert!(refusal_with(&|entry| entry.archive.sha256 = entry.sums.sha256).contains("has two sizes"));
    assert!(refusal_with(&|entry| entry.archive.bytes = u64::MAX).contains("larger than any disk"));
    assert!(refusal_with(&|entry| entry.signed_by = Some("A\u{1b}[2J".into())).contains("characters"));
    assert!(refusal_with(&|entry| entry.said.url.set_query(Some("token=x"))).contains("without a query"));
    assert!(
        refusal_with(&|entry| entry.said.asked = Url::parse("file:///etc").unwrap()).contains("must be an http(s) URL")
    );
}

#[test]
fn a_manifest_of_a_newer_format_is_refused_as_newer() {
    let written = String::from_utf8(manifest(vec![]).write()).unwrap();
    let newer = written.replace(r#""format":1"#, r#""format":2,"more":{}"#);
    assert_eq!(Manifest::read(newer.as_bytes()), Err(BadManifest::Newer(2)));
}

proptest! {
    /// The manifest contains its own digest, so an altered byte is found even without a signature.
    #[test]
    fn any_altered_byte_of_a_manifest_is_refused(index in any::<prop::sample::Index>(), flip in 1u8..) {
        let mut written = manifest(vec![discovery(), provider("linux_amd64", true), module()]).write();
        let index = index.index(written.len());
        written[index] ^= flip;
        prop_assert!(Manifest::read(&written).is_err());
        written[index] ^= flip;
        prop_assert!(Manifest::read(&written[..index]).is_err());
        written.insert(index, flip);
        prop_assert!(Manifest::read(&written).is_err());
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), text in "\\PC{0,200}") {
        let _ = Manifest::read(&bytes);
        let _ = Manifest::read(format!(r#"{{"format":1,"larder":"x","created":1,"entries":[{text}],"digest":""}}"#).as_bytes());
    }
}
