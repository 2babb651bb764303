//! Hostile archives through larder: refused with the entry named, nothing stored, and no failure after the archive is
//! repaired.

use std::io::Write as _;

use tar::EntryType;

use crate::support::git_module_fixture::{download_path, fetch};
use crate::support::module_fixture::{ModuleFixture, gz, tar_gz};

/// An entry of a tar with any name, also one that no honest writer takes.
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

/// The zip with one name replaced by another of the same length, everywhere.
fn renamed(mut zip: Vec<u8>, from: &str, to: &str) -> Vec<u8> {
    let places: Vec<usize> =
        (0..zip.len() - from.len()).filter(|offset| zip[*offset..].starts_with(from.as_bytes())).collect();
    for offset in places {
        zip[offset..offset + to.len()].copy_from_slice(to.as_bytes());
    }
    zip
}

/// A larder refuses this archive with these words, keeps nothing, and takes the next one.
async fn refuses(name: &str, archive: &[u8], words: &[&str]) {
    refuses_within(name, archive, words, 64 << 20).await;
}

async fn refuses_within(name: &str, archive: &[u8], words: &[&str], most: u64) {
    let fixture = ModuleFixture::start().await;
    let url = fixture.file(name, archive);
    fixture.publish("one", &url);
    let larder = fixture.larder().archive_bytes(most).answer_within(crate::support::HANGS_AFTER).start().await;
    for _ in 0..2 {
        let text = larder.get(&download_path("one")).await.expect(502).text();
        assert!(words.iter().all(|word| text.contains(word)), "{words:?}: {text}");
        assert!(larder.folder.blobs().is_empty() && larder.folder.files("names").is_empty(), "{words:?}");
        assert!(larder.folder.files("seen").is_empty(), "{words:?}");
        assert_eq!(larder.folder.files("staging"), Vec::<std::path::PathBuf>::new(), "{words:?}");
    }
    assert!(larder.metric("larder_verification_failures_total").await >= 2.0, "{words:?}");
    let honest = if name.ends_with(".zip") { zip_of(&[("main.tf", b"")]) } else { tar_gz(&[("main.tf", b"")]) };
    fixture.file(name, &honest);
    fetch(larder.base(), "one").await;
    assert_eq!((larder.folder.blobs().len(), larder.folder.staged().len()), (1, 0));
}

#[tokio::test]
async fn an_entry_that_leads_out_is_refused() {
    refuses("m.tar.gz", &tar_of(&[("../escaped.tf", EntryType::Regular, "")]), &["../escaped.tf", "contains .."]).await;
    refuses("m.tar.gz", &tar_of(&[("a/../../b.tf", EntryType::Regular, "")]), &["a/../../b.tf"]).await;
    refuses("m.zip", &renamed(zip_of(&[("xx/escaped.tf", b"")]), "xx/esc", "../esc"), &["../escaped.tf"]).await;
}

#[tokio::test]
async fn an_absolute_entry_is_refused() {
    refuses("m.tar.gz", &tar_of(&[("/etc/cron.d/x", EntryType::Regular, "")]), &["/etc/cron.d/x", "absolute"]).await;
    refuses("m.zip", &renamed(zip_of(&[("xetc/passwd", b"")]), "xetc", "/etc"), &["/etc/passwd"]).await;
}

#[tokio::test]
async fn a_device_or_a_pipe_is_refused() {
    for kind in [EntryType::Block, EntryType::Char, EntryType::Fifo] {
        refuses("m.tar.gz", &tar_of(&[("main.tf", EntryType::Regular, ""), ("odd", kind, "")]), &["odd"]).await;
    }
}

#[tokio::test]
async fn a_link_out_of_the_package_is_refused_and_into_it_is_not() {
    refuses("m.tar.gz", &tar_of(&[("l", EntryType::Symlink, "../../etc/passwd")]), &["l", "out of the package"]).await;
    refuses("m.tar.gz", &tar_of(&[("deep/l", EntryType::Symlink, "/etc/passwd")]), &["deep/l", "absolute"]).await;
    refuses("m.tar.gz", &tar_of(&[("l", EntryType::Link, "../out")]), &["l", "out of the archive"]).await;
    refuses(
        "m.tar.gz",
        &tar_of(&[("l", EntryType::Symlink, "m"), ("m", EntryType::Symlink, "l")]),
        &["a link to itself"],
    )
    .await;
}

#[tokio::test]
async fn two_entries_of_one_name_or_of_names_that_differ_in_case_are_refused() {
    let zip = renamed(zip_of(&[("main.tf", b"1"), ("mbin.tf", b"2")]), "mbin.tf", "main.tf");
    refuses("m.zip", &zip, &["main.tf"]).await;
    let clash = [("main.tf", EntryType::Regular, ""), ("MAIN.tf", EntryType::Regular, "")];
    refuses("m.tar.gz", &tar_of(&clash), &["main.tf", "MAIN.tf", "case"]).await;
    refuses("m.zip", &zip_of(&[("a/x", b""), ("A/y", b"")]), &["case"]).await;
    let below = [("main.tf", EntryType::Regular, ""), ("main.tf/inner", EntryType::Regular, "")];
    refuses("m.tar.gz", &tar_of(&below), &["main.tf"]).await;
}

/// Bounded in bytes, however little they take before they are unpacked.
#[tokio::test]
async fn a_bomb_is_refused() {
    let zeros = vec![0; 3_000_000];
    refuses_within("m.tar.gz", &tar_gz(&[("zeros", &zeros)]), &["more than"], 1 << 20).await;
    refuses_within("m.zip", &zip_of(&[("zeros", &zeros)]), &["more than"], 1 << 20).await;
}

/// Bounded in number: names are in memory.
#[tokio::test]
async fn more_entries_than_may_be_are_refused() {
    let names: Vec<String> = (0..100_001).map(|number| format!("f{number}")).collect();
    let entries: Vec<_> = names.iter().map(|name| (name.as_str(), EntryType::Directory, "")).collect();
    refuses("m.tar.gz", &tar_of(&entries), &["more than"]).await;
}

#[tokio::test]
async fn files_that_are_no_archive_or_a_truncated_one_are_refused() {
    let whole = tar_gz(&[("main.tf", &crate::support::module_fixture::noise(1, 100_000))]);
    refuses("m.tar.gz", &whole[..50_000], &["cannot be read"]).await;
    refuses("m.tar.gz", b"<html>sign in</html>", &["cannot be read"]).await;
    refuses("m.zip", b"PK but no zip", &["cannot be read"]).await;
    refuses("m.tar.gz", &gz(&[0; 1024]), &["acme/one/test"]).await;
}
