//! Receives trees into folders.

use std::io::Cursor;

use super::super::carried::ProviderTreeWriter;
use super::*;

const NULL: &str = "r.example/acme/null";

fn zip(content: &str) -> Vec<u8> {
    use std::io::Write;
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    zip.start_file("terraform-provider-null", zip::write::SimpleFileOptions::default()).unwrap();
    zip.write_all(content.as_bytes()).unwrap();
    zip.finish().unwrap().into_inner()
}

fn index_of(archives: &[(&str, &[u8])]) -> Vec<u8> {
    let mut index = VersionIndex::default();
    for (platform, bytes) in archives {
        let platform = crate::address::Platform::parse(platform).unwrap();
        let name = format!("terraform-provider-null_1.2.0_{platform}.zip");
        index.add(&name, &platform, &ArchiveHashes { digest: Digest::of(bytes), h1: None });
    }
    to_pretty_json(&index).unwrap()
}

fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut tar = ProviderTreeWriter::new(Vec::new());
    for (name, bytes) in files {
        tar.add(&format!("{NULL}/{name}"), bytes.len() as u64, *bytes).unwrap();
    }
    tar.end().unwrap()
}

/// An empty folder; it is deleted with the first value.
fn folder() -> (tempfile::TempDir, MirrorFolder) {
    let temp_dir = tempfile::tempdir().unwrap();
    let folder = MirrorFolder::open_or_create(&temp_dir.path().join("out")).unwrap();
    (temp_dir, folder)
}

#[test]
fn a_received_tree_is_merged_and_existing_archives_are_not_rewritten() {
    let (_temp_dir, folder) = folder();
    let (linux, darwin) = (zip("linux"), zip("darwin"));
    let [linux_name, darwin_name] =
        ["linux_amd64", "darwin_arm64"].map(|platform| format!("terraform-provider-null_1.2.0_{platform}.zip"));
    let of_linux = [("1.2.0.json", &index_of(&[("linux_amd64", &linux)])[..]), (&linux_name, &linux)];
    let received = receive(&tar(&of_linux)[..], &folder).unwrap();
    assert_eq!((received.written, received.there, received.unsigned), (1, 0, 1));
    let of_darwin = [("1.2.0.json", &index_of(&[("darwin_arm64", &darwin)])[..]), (&darwin_name, &darwin)];
    assert_eq!(receive(&tar(&of_darwin)[..], &folder).unwrap().written, 1);
    let index =
        VersionIndex::parse(&folder.read_at_most(&format!("{NULL}/1.2.0.json"), 9999).unwrap().unwrap()).unwrap();
    assert_eq!(index.archives.len(), 2);
    assert!(index.archives["linux_amd64"].hashes.iter().any(|hash| hash.starts_with("h1:")));
    // A second transfer sends the archive again, or leaves it out because the folder has it.
    assert_eq!(receive(&tar(&of_linux)[..], &folder).unwrap().there, 1);
    assert_eq!(receive(&tar(&of_linux[..1])[..], &folder).unwrap().there, 1);
}

#[test]
fn files_that_contradict_the_index_are_refused_and_removed() {
    let (_temp_dir, folder) = folder();
    let (good, bad) = (zip("good"), zip("bad"));
    let name = "terraform-provider-null_1.2.0_linux_amd64.zip";
    let index = index_of(&[("linux_amd64", &good)]);
    for files in [
        vec![("1.2.0.json", &index[..]), (name, &bad)],
        // An archive without an index file, then an index file without its archive.
        vec![(name, &good)],
        vec![("1.2.0.json", &index)],
        vec![("README.md", b"x")],
    ] {
        assert!(receive(&tar(&files)[..], &folder).is_err());
    }
    let whole = tar(&[("1.2.0.json", &index), (name, &good)]);
    assert!(receive(&whole[..whole.len() - 1024], &folder).is_err(), "a tar without an end");
    let remaining = folder.list_files().unwrap();
    assert!(remaining.iter().all(|file| file.path.ends_with(name)), "{remaining:?}");
}

#[test]
fn existing_sums_stay_and_new_ones_are_written_per_package() {
    let (_temp_dir, folder) = folder();
    let (linux, name) = (zip("linux"), "terraform-provider-null_1.2.0_linux_amd64.zip");
    let index = index_of(&[("linux_amd64", &linux)]);
    let (sums, package_sums) =
        ("terraform-provider-null_1.2.0_SHA256SUMS", "terraform-provider-null_1.2.0_linux_amd64_SHA256SUMS");
    let (signature, document) = (format!("{sums}.sig"), "terraform-provider-null_1.2.0_linux_amd64.json");
    let tar_with_sums = |text: &'static str| {
        tar(&[
            ("1.2.0.json", &index),
            (sums, text.as_bytes()),
            (&signature, text.as_bytes()),
            (document, b"{}"),
            (name, &linux),
        ])
    };
    let read = |name: &str| folder.read_at_most(&format!("{NULL}/{name}"), 999).unwrap();
    receive(&tar_with_sums("old")[..], &folder).unwrap();
    assert_eq!((read(sums), read(package_sums)), (Some(b"old".to_vec()), None));
    assert_eq!(receive(&tar_with_sums("new")[..], &folder).unwrap().unsigned, 0);
    assert_eq!((read(sums), read(package_sums)), (Some(b"old".to_vec()), Some(b"new".to_vec())));
    assert_eq!(read(&format!("{package_sums}.sig")), Some(b"new".to_vec()));
}

#[test]
fn the_ascii_spelling_of_a_host_is_a_link_and_links_are_never_followed() {
    let (temp_dir, folder) = folder();
    let zip = zip("linux");
    let mut tar = ProviderTreeWriter::new(Vec::new());
    let index = index_of(&[("linux_amd64", &zip)]);
    let name = "terraform-provider-null_1.2.0_linux_amd64.zip";
    for (path, bytes) in [("1.2.0.json", &index[..]), (name, &zip)] {
        tar.add(&format!("bücher.example:8443/acme/null/{path}"), bytes.len() as u64, bytes).unwrap();
    }
    let received = receive(&tar.end().unwrap()[..], &folder).unwrap();
    assert_eq!(received.with_port.len(), 1);
    let out = temp_dir.path().join("out");
    let ascii_path = out.join("xn--bcher-kva.example:8443/acme/null/index.json");
    assert!(ascii_path.exists());
    let found = folder.list_files().unwrap();
    assert!(found.iter().all(|found| found.path.starts_with("bücher.example:8443/")), "{found:?}");
    std::os::unix::fs::symlink("/etc", out.join("evil.example")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", out.join("bücher.example:8443/acme/null/9.9.9.json")).unwrap();
    let refused = super::super::send::plan_send(&folder).unwrap().refused;
    assert_eq!(refused.len(), 2, "{refused:?}");
}
