//! Packages with and without folders, and hostile ones.

use std::io::{Cursor, Write};

use proptest::prelude::*;
use zip::write::{SimpleFileOptions, ZipWriter};

use super::*;
use crate::digest::Digest;

/// An entry to write into a test zip.
enum ZipItem<'a> {
    File(&'a str, &'a [u8]),
    Folder(&'a str),
}
use ZipItem::{File, Folder};

fn zip_of(items: &[ZipItem<'_>]) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default();
    for item in items {
        match item {
            File(name, content) => {
                writer.start_file(*name, options).unwrap();
                writer.write_all(content).unwrap();
            }
            Folder(name) => writer.add_directory(*name, options).unwrap(),
        }
    }
    writer.finish().unwrap().into_inner()
}

fn hashes(zip: &[u8]) -> Result<PackageHashes, BadPackage> {
    package_hashes(Cursor::new(zip), PackageLimits::default())
}

/// Computes the `h1:` hash from its definition.
fn expected_h1(lines: &[(&str, &[u8])]) -> String {
    let text: String = lines.iter().map(|(name, content)| format!("{}  {name}\n", Digest::of(content))).collect();
    format!("h1:{}", BASE64_STANDARD.encode(Digest::of(text.as_bytes()).as_bytes()))
}

#[test]
fn without_directory_entries_both_hashes_are_equal() {
    let zip = zip_of(&[File("terraform-provider-x", b"binary"), File("LICENSE", b"text")]);
    // Sorted bytewise: upper case first.
    let expected = expected_h1(&[("LICENSE", b"text"), ("terraform-provider-x", b"binary")]);
    assert_eq!(hashes(&zip).unwrap(), PackageHashes { zip: expected.clone(), directory: expected });
}

#[test]
fn the_hash_of_a_fixed_package_is_the_one_of_other_tools() {
    // printf '%s  a\n' "$(printf hi | sha256sum | cut -d' ' -f1)" | openssl dgst -sha256 -binary | base64
    assert_eq!(hashes(&zip_of(&[File("a", b"hi")])).unwrap().zip, "h1:q7EZzfscC9/EjlTEL4mjnUIfRL+sDWBc2bJcAfEYHww=");
}

#[test]
fn directory_entries_count_in_the_zip_hash_only() {
    let zip = zip_of(&[Folder("docs/"), File("docs/readme", b"text"), File("./docs//more", b"more")]);
    let found = hashes(&zip).unwrap();
    assert_eq!(found.zip, expected_h1(&[("./docs//more", b"more"), ("docs/", b""), ("docs/readme", b"text")]));
    assert_eq!(found.directory, expected_h1(&[("docs/more", b"more"), ("docs/readme", b"text")]));
}

#[test]
fn an_empty_package_has_the_hash_of_nothing() {
    assert_eq!(hashes(&zip_of(&[])).unwrap().zip, expected_h1(&[]));
}

#[test]
fn a_package_that_exceeds_a_limit_is_refused() {
    let zip = zip_of(&[File("a", &[0; 50_000]), File("b", &[0; 50_000])]);
    let hashes_with = |limits| package_hashes(Cursor::new(&zip), limits);
    let limits = PackageLimits::default();
    assert!(hashes_with(PackageLimits { entries: 2, unpacked_bytes: 100_000, name_bytes: 1 }).is_ok());
    let refused = hashes_with(PackageLimits { entries: 1, ..limits });
    assert!(matches!(refused, Err(BadPackage::TooManyEntries { actual: 2, limit: 1 })));
    let refused = hashes_with(PackageLimits { unpacked_bytes: 99_999, ..limits });
    assert!(matches!(refused, Err(BadPackage::TooLarge { limit: 99_999 })));
    let refused = hashes_with(PackageLimits { name_bytes: 0, ..limits });
    assert!(matches!(refused, Err(BadPackage::BadName { .. })));
}

#[test]
fn a_package_that_claims_too_much_is_refused_before_it_is_unpacked() {
    let mut zip = zip_of(&[File("a", &[1; 500]), File("b", &[0; 50_000])]);
    let content = position(&zip, b"a") + 1;
    zip[content..content + 3].fill(0xff);
    assert!(matches!(hashes(&zip), Err(BadPackage::Entry { .. })));
    let limits = PackageLimits { unpacked_bytes: 10_000, ..PackageLimits::default() };
    let refused = package_hashes(Cursor::new(&zip), limits);
    assert!(matches!(refused, Err(BadPackage::TooLarge { limit: 10_000 })), "{refused:?}");
}

/// No package makes larder unpack more than 4 GiB (promise 11).
#[test]
fn a_package_that_claims_to_unpack_to_more_than_4_gib_is_refused() {
    let mut zip = zip_of(&[File("a", b"x"), File("b", b"y")]);
    let central = position(&zip, b"PK\x01\x02");
    let second = central + 4 + position(&zip[central + 4..], b"PK\x01\x02");
    for entry in [central, second] {
        // Sets the unpacked size, a field of 4 bytes (APPNOTE, section 4.3.12).
        zip[entry + 24..entry + 28].copy_from_slice(&0xc000_0000_u32.to_le_bytes());
    }
    let refused = hashes(&zip);
    assert!(matches!(refused, Err(BadPackage::TooLarge { limit: 0x1_0000_0000 })), "{refused:?}");
}

#[test]
fn names_with_line_breaks_and_names_that_lead_out_are_refused() {
    for name in ["a\nb", "../a", "a/../../b"] {
        assert!(matches!(hashes(&zip_of(&[File(name, b"x")])), Err(BadPackage::BadName { .. })), "{name:?}");
    }
    let twice = hashes(&zip_of(&[File("a/b", b"1"), File("a//b", b"2")])).unwrap_err();
    assert_eq!(twice.to_string(), "the package has two entries of one name (\"a//b\")");
}

#[test]
fn a_duplicate_name_is_refused() {
    let mut zip = zip_of(&[File("aaaa", b"1"), File("bbbb", b"2")]);
    replace(&mut zip, b"bbbb", b"aaaa");
    assert!(matches!(hashes(&zip), Err(BadPackage::DuplicateName { name: None })));
}

#[test]
fn damaged_content_and_a_false_size_are_refused() {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    writer.start_file("a", stored).unwrap();
    writer.write_all(b"content").unwrap();
    let good = writer.finish().unwrap().into_inner();
    assert!(hashes(&good).is_ok());

    let mut damaged = good.clone();
    replace(&mut damaged, b"content", b"c0ntent");
    let refused = hashes(&damaged).unwrap_err();
    assert_eq!(refused.to_string(), "entry \"a\" of the package cannot be unpacked");

    let mut false_size = good;
    let directory = position(&false_size, b"PK\x01\x02");
    false_size[directory + 24] = 6;
    assert!(hashes(&false_size).is_err());
}

#[test]
fn an_encrypted_entry_is_refused() {
    let mut zip = zip_of(&[File("a", b"content")]);
    let directory = position(&zip, b"PK\x01\x02");
    zip[directory + 8] |= 1;
    assert!(matches!(hashes(&zip), Err(BadPackage::Entry { .. })));
}

#[test]
fn entries_that_share_their_bytes_are_refused() {
    // The contents do not compress, so that reading them twice exceeds the size of the archive.
    let noise: Vec<u8> = (0_u32..4000).flat_map(|n| *Digest::of(&n.to_le_bytes()).as_bytes()).collect();
    let mut zip = zip_of(&[File("aaaa", &noise), File("bbbb", b"")]);
    let first = position(&zip, b"PK\x01\x02");
    let second = first + 4 + position(&zip[first + 4..], b"PK\x01\x02");
    // Copies the method, the checksum and the sizes, then the offset of the local header.
    for field in [10..12, 16..28, 42..46] {
        let copied = zip[first + field.start..first + field.end].to_vec();
        zip[second + field.start..second + field.end].copy_from_slice(&copied);
    }
    assert!(matches!(hashes(&zip), Err(BadPackage::Overlap)), "{:?}", hashes(&zip));
}

#[test]
fn a_central_directory_above_the_limit_is_not_read() {
    let names: Vec<String> = (0..2_500).map(|n| format!("{n:04}{}", "x".repeat(4_000))).collect();
    let items: Vec<_> = names.iter().map(|name| File(name, b"")).collect();
    let refused = hashes(&zip_of(&items)).unwrap_err();
    assert!(matches!(refused, BadPackage::Unreadable(ZipError::Io(_))), "{refused:?}");
}

#[test]
fn a_truncated_package_is_refused_at_every_length() {
    let zip = zip_of(&[Folder("d/"), File("d/a", b"content")]);
    for length in 0..zip.len() {
        assert!(hashes(&zip[..length]).is_err(), "{length}");
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = hashes(&bytes);
    }

    #[test]
    fn a_package_with_changed_bytes_never_panics(offset in 0_usize..300, to in any::<u8>()) {
        let mut zip = zip_of(&[Folder("d/"), File("d/a", b"content"), File("b", &[7; 300])]);
        let offset = offset % zip.len();
        zip[offset] = to;
        let _ = hashes(&zip);
    }
}

/// The offset of the first occurrence.
fn position(bytes: &[u8], pattern: &[u8]) -> usize {
    bytes.windows(pattern.len()).position(|window| window == pattern).unwrap()
}

/// Replaces every occurrence with bytes of the same length.
fn replace(bytes: &mut [u8], from: &[u8], to: &[u8]) {
    let offsets: Vec<_> = (0..bytes.len()).filter(|offset| bytes[*offset..].starts_with(from)).collect();
    assert!(!offsets.is_empty());
    for offset in offsets {
        bytes[offset..offset + to.len()].copy_from_slice(to);
    }
}
