//! Hostile module archives: larder refuses them, names the entry, stores nothing, and serves the repaired archive.

use std::io::{Read as _, Write as _};

use tar::EntryType;

use crate::support::git_module_fixture::{download_module, download_path};
use crate::support::module_fixture::{ModuleFixture, gz, tar_gz, unpack_tar_gz};

/// Appends a tar entry with any name, also one that tar writers refuse.
fn entry(tar: &mut tar::Builder<Vec<u8>>, name: &str, kind: EntryType, target: &str, bytes: &[u8]) {
    let mut header = tar::Header::new_ustar();
    header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
    header.as_mut_bytes()[157..157 + target.len()].copy_from_slice(target.as_bytes());
    header.set_entry_type(kind);
    header.set_size(bytes.len() as u64);
    header.set_mode(0o644);
    header.set_cksum();
    tar.append(&header, bytes).unwrap();
}

fn tar_of(entries: &[(&str, EntryType, &str)]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, kind, target) in entries {
        let bytes: &[u8] = if *kind == EntryType::Regular { b"# text\n" } else { b"" };
        entry(&mut tar, name, *kind, target, bytes);
    }
    gz(&tar.into_inner().unwrap())
}

fn zip_of(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        zip.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// Replaces a file name everywhere in a zip by another of the same length.
fn with_renamed_entry(mut zip: Vec<u8>, from: &str, to: &str) -> Vec<u8> {
    let offsets: Vec<usize> =
        (0..zip.len() - from.len()).filter(|offset| zip[*offset..].starts_with(from.as_bytes())).collect();
    for offset in offsets {
        zip[offset..offset + to.len()].copy_from_slice(to.as_bytes());
    }
    zip
}

/// Asserts that larder refuses this archive with these words, stores nothing, and then serves a valid archive.
async fn assert_refused(name: &str, archive: &[u8], words: &[&str]) {
    assert_refused_within(name, archive, words, 64 << 20).await;
}

async fn assert_refused_within(name: &str, archive: &[u8], words: &[&str], max_bytes: u64) {
    let fixture = ModuleFixture::start().await;
    let url = fixture.file(name, archive);
    fixture.publish("one", &url);
    let larder = fixture.larder().archive_bytes(max_bytes).answer_within(crate::support::TEST_TIMEOUT).start().await;
    for _ in 0..2 {
        let text = larder.get(&download_path("one")).await.expect(502).text();
        assert!(words.iter().all(|word| text.contains(word)), "{words:?}: {text}");
        assert!(larder.folder.blobs().is_empty() && larder.folder.files("names").is_empty(), "{words:?}");
        assert!(larder.folder.first_seen().is_empty(), "{words:?}");
        assert_eq!(larder.folder.files("staging"), Vec::<std::path::PathBuf>::new(), "{words:?}");
    }
    assert!(larder.metric("larder_verification_failures_total").await >= 2.0, "{words:?}");
    let valid = if name.ends_with(".zip") { zip_of(&[("main.tf", b"")]) } else { tar_gz(&[("main.tf", b"")]) };
    fixture.file(name, &valid);
    download_module(larder.base(), "one").await;
    assert_eq!((larder.folder.blobs().len(), larder.folder.partial_downloads().len()), (1, 0));
}

#[tokio::test]
async fn an_entry_outside_the_package_is_refused() {
    assert_refused(
        "m.tar.gz",
        &tar_of(&[("../escaped.tf", EntryType::Regular, "")]),
        &["../escaped.tf", "contains .."],
    )
    .await;
    assert_refused("m.tar.gz", &tar_of(&[("a/../../b.tf", EntryType::Regular, "")]), &["a/../../b.tf"]).await;
    assert_refused(
        "m.zip",
        &with_renamed_entry(zip_of(&[("xx/escaped.tf", b"")]), "xx/esc", "../esc"),
        &["../escaped.tf"],
    )
    .await;
}

#[tokio::test]
async fn an_absolute_entry_is_refused() {
    assert_refused("m.tar.gz", &tar_of(&[("/etc/cron.d/x", EntryType::Regular, "")]), &["/etc/cron.d/x", "absolute"])
        .await;
    assert_refused("m.zip", &with_renamed_entry(zip_of(&[("xetc/passwd", b"")]), "xetc", "/etc"), &["/etc/passwd"])
        .await;
}

/// The client fails on such archives, too.
#[tokio::test]
async fn a_file_that_is_a_folder_for_other_entries_is_refused() {
    let below = [("main.tf", EntryType::Regular, ""), ("main.tf/inner", EntryType::Regular, "")];
    assert_refused("m.tar.gz", &tar_of(&below), &["main.tf"]).await;
    let through_a_link = [("l", EntryType::Symlink, "/etc"), ("l/x", EntryType::Regular, "")];
    assert_refused("m.tar.gz", &tar_of(&through_a_link), &["l/x"]).await;
}

/// The unpacked bytes of an archive are limited, however small the archive is.
#[tokio::test]
async fn a_decompression_bomb_is_refused() {
    let zeros = vec![0; 3_000_000];
    assert_refused_within("m.tar.gz", &tar_gz(&[("zeros", &zeros)]), &["more than"], 1 << 20).await;
    assert_refused_within("m.zip", &zip_of(&[("zeros", &zeros)]), &["more than"], 1 << 20).await;
}

/// The number of entries of an archive is limited, because their names are in memory.
#[tokio::test]
async fn too_many_entries_are_refused() {
    let names: Vec<String> = (0..100_001).map(|number| format!("f{number}")).collect();
    let entries: Vec<_> = names.iter().map(|name| (name.as_str(), EntryType::Directory, "")).collect();
    assert_refused("m.tar.gz", &tar_of(&entries), &["more than"]).await;
}

#[tokio::test]
async fn files_that_are_no_archive_and_truncated_archives_are_refused() {
    let whole = tar_gz(&[("main.tf", &crate::support::module_fixture::noise(1, 100_000))]);
    assert_refused("m.tar.gz", &whole[..50_000], &["cannot be read"]).await;
    assert_refused("m.tar.gz", b"<html>sign in</html>", &["cannot be read"]).await;
    assert_refused("m.zip", b"PK but no zip", &["cannot be read"]).await;
    assert_refused("m.tar.gz", &gz(&[0; 1024]), &["acme/one/test"]).await;
}

/// A name can control the terminal of everybody who lists the module. So it is escaped, and the module is served: macOS has a file whose name ends in a carriage return.
#[tokio::test]
async fn names_with_control_characters_are_escaped_in_the_packed_module() {
    let hostile = ["Icon\r", "x\u{1b}]0;title\u{7}.tf", "c1\u{9b}2J/main.tf", "\n"];
    let entries: Vec<(&str, EntryType, &str)> = hostile.iter().map(|name| (*name, EntryType::Regular, "")).collect();
    let files: Vec<(&str, &[u8])> = hostile.iter().map(|name| (*name, &b"# text\n"[..])).collect();
    for (name, archive) in [("one.tar.gz", tar_of(&entries)), ("one.zip", zip_of(&files))] {
        let fixture = ModuleFixture::start().await;
        let url = fixture.file(name, &archive);
        fixture.publish("one", &url);
        let larder = fixture.larder().start().await;
        let (_, packed) = download_module(larder.base(), "one").await;
        let unpacked = unpack_tar_gz(&packed);
        let expected = ["%0A", "Icon%0D", "c1%C2%9B2J/main.tf", "x%1B]0;title%07.tf"];
        assert_eq!(unpacked.keys().collect::<Vec<_>>(), expected, "{name}");
        assert!(unpacked.values().all(|bytes| bytes.is_empty() || bytes == b"# text\n"), "{name}");
        let mut tar = Vec::new();
        flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut tar).unwrap();
        assert!(!tar.windows(5).any(|bytes| bytes == b"Icon\r"), "{name}");
    }
}
