//! Packages with and without folders, and hostile ones.

use std::io::{Cursor, Write};

use proptest::prelude::*;
use zip::write::{SimpleFileOptions, ZipWriter};

use super::*;
use crate::digest::Digest;

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

fn by_hand(lines: &[(&str, &[u8])]) -> String {
    let text: String = lines.iter().map(|(name, content)| format!("{}  {name}\n", Digest::of(content))).collect();
    format!("h1:{}", BASE64_STANDARD.encode(Digest::of(text.as_bytes()).as_bytes()))
}

#[test]
fn without_directory_entries_both_flavours_are_the_hash_made_by_hand() {
    let zip = zip_of(&[File("terraform-provider-x", b"binary"), File("LICENSE", b"text")]);
    // Sorted bytewise: upper case first.
    let expected = by_hand(&[("LICENSE", b"text"), ("terraform-provider-x", b"binary")]);
    assert_eq!(hashes(&zip).unwrap(), PackageHashes { zip: expected.clone(), directory: expected });
}

#[test]
fn the_hash_of_a_fixed_text_is_known() {
    // printf '%s  a\n' "$(printf hi | sha256sum | cut -d' ' -f1)" | openssl dgst -sha256 -binary | base64
    assert_eq!(hashes(&zip_of(&[File("a", b"hi")])).unwrap().zip, "h1:q7EZzfscC9/EjlTEL4mjnUIfRL+sDWBc2bJcAfEYHww=");
}

#[test]
fn directory_entries_count_in_the_zip_flavour_only() {
    let zip = zip_of(&[Folder("docs/"), File("docs/readme", b"text"), File("./docs//more", b"more")]);
    let found = hashes(&zip).unwrap();
    assert_eq!(found.zip, by_hand(&[("./docs//more", b"more"), ("docs/", b""), ("docs/readme", b"text")]));
    assert_eq!(found.directory, by_hand(&[("docs/more", b"more"), ("docs/readme", b"text")]));
}

#[test]
fn an_empty_package_has_the_hash_of_nothing() {
    assert_eq!(hashes(&zip_of(&[])).unwrap().zip, by_hand(&[]));
}

#[test]
fn what_goes_beyond_a_limit_is_refused() {
    let zip = zip_of(&[File("a", &[0; 50_000]), File("b", &[0; 50_000])]);
    let within = |limits| package_hashes(Cursor::new(&zip), limits);
    let limits = PackageLimits::default();
    assert!(within(PackageLimits { entries: 2, unpacked_bytes: 100_000, name_bytes: 1 }).is_ok());
    let refused = within(PackageLimits { entries: 1, ..limits });
    assert!(matches!(refused, Err(BadPackage::TooManyEntries { actual: 2, limit: 1 })));
    let refused = within(PackageLimits { unpacked_bytes: 99_999, ..limits });
    assert!(matches!(refused, Err(BadPackage::TooLarge { limit: 99_999 })));
    let refused = within(PackageLimits { name_bytes: 0, ..limits });
    assert!(matches!(refused, Err(BadPackage::BadName { .. })));
}

#[test]
fn what_a_package_says_of_itself_refuses_it_before_anything_is_unpacked() {
    let mut zip = zip_of(&[File("a", &[1; 500]), File("b", &[0; 50_000])]);
    let content = position(&zip, b"a") + 1;
    zip[content..content + 3].fill(0xff);
    assert!(matches!(hashes(&zip), Err(BadPackage::Entry { .. })));
    let limits = PackageLimits { unpacked_bytes: 10_000, ..PackageLimits::default() };
    let refused = package_hashes(Cursor::new(&zip), limits);
    assert!(matches!(refused, Err(BadPackage::TooLarge { limit: 10_000 })), "{refused:?}");
}

/// DESIGN, promise 11: no package makes larder unpack more than 4 GiB.
#[test]
fn a_package_that_says_it_unpacks_to_more_than_four_gib_is_refused() {
    let mut zip = zip_of(&[File("a", b"x"), File("b", b"y")]);
    let central = position(&zip, b"PK\x01\x02");
    let second = central + 4 + position(&zip[central + 4..], b"PK\x01\x02");
    for entry in [central, second] {
        // The unpacked size of an entry, of 4 bytes: APPNOTE 4.3.12.
        zip[entry + 24..entry + 28].copy_from_slice(&0xc000_0000_u32.to_le_bytes());
    }
    let refused = hashes(&zip);
    assert!(matches!(refused, Err(BadPackage::TooLarge { limit: 0x1_0000_0000 })), "{refused:?}");
}

#[test]
fn names_that_have_no_hash_or_lead_elsewhere_are_refused() {
    for name in ["a\nb", "../a", "a/../../b"] {
        assert!(matches!(hashes(&zip_of(&[File(name, b"x")])), Err(BadPackage::BadName { .. })), "{name:?}");
    }
    let twice = hashes(&zip_of(&[File("a/b", b"1"), File("a//b", b"2")])).unwrap_err();
    assert_eq!(twice.to_string(), "the package has two entries of one name (\"a//b\")");
}

#[test]
fn one_name_listed_twice_is_refused() {
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

    let mut lying = good;
    let directory = position(&lying, b"PK\x01\x02");
    lying[directory + 24] = 6;
    assert!(hashes(&lying).is_err());
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
    // Incompressible, so that two readings of one entry exceed the archive.
    let noise: Vec<u8> = (0_u32..4000).flat_map(|n| *Digest::of(&n.to_le_bytes()).as_bytes()).collect();
    let mut zip = zip_of(&[File("aaaa", &noise), File("bbbb", b"")]);
    let first = position(&zip, b"PK\x01\x02");
    let second = first + 4 + position(&zip[first + 4..], b"PK\x01\x02");
    // Method, checksum and sizes, then the offset of the local header.
    for field in [10..12, 16..28, 42..46] {
        let copied = zip[first + field.start..first + field.end].to_vec();
        zip[second + field.start..second + field.end].copy_from_slice(&copied);
    }
    assert!(matches!(hashes(&zip), Err(BadPackage::Overlap)), "{:?}", hashes(&zip));
}

#[test]
fn a_directory_larger_than_any_honest_one_is_not_read() {
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
    fn any_bytes_have_hashes_or_none_but_never_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
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

fn position(bytes: &[u8], wanted: &[u8]) -> usize {
    bytes.windows(wanted.len()).position(|window| window == wanted).unwrap()
}

fn replace(bytes: &mut [u8], from: &[u8], to: &[u8]) {
    let places: Vec<_> = (0..bytes.len()).filter(|offset| bytes[*offset..].starts_with(from)).collect();
    assert!(!places.is_empty());
    for offset in places {
        bytes[offset..offset + to.len()].copy_from_slice(to);
    }
}
