//! The two `h1:` hashes of a provider zip, read as a stream and within limits. Which of them a client is told, and when,
//! is left to the protocols.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom};

use aws_lc_rs::digest::{Context, SHA256};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use zip::ExtraField;
use zip::read::{ZipArchive, ZipFile};
use zip::result::ZipError;

/// The most that is read to find out what an archive holds, however many entries it claims.
const MAX_DIRECTORY_BYTES: u64 = 8 << 20;

/// What a provider zip may hold at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackageLimits {
    /// Files and directories.
    pub entries: usize,
    /// Bytes of all files together, counted while they are unpacked.
    pub unpacked_bytes: u64,
    /// Bytes of one name.
    pub name_bytes: usize,
}

impl Default for PackageLimits {
    fn default() -> Self {
        Self { entries: 10_000, unpacked_bytes: 16 << 30, name_bytes: 4 << 10 }
    }
}

/// The hashes of a package as lock files and mirrors spell them. They differ only for zips with directory entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageHashes {
    /// Over every entry of the zip: what a client compares when it checks a zip.
    pub zip: String,
    /// Over the unpacked files: what a client writes into its lock file.
    pub directory: String,
}

/// Why a zip has no package hash. Names are shortened.
#[derive(Debug, thiserror::Error)]
pub enum BadPackage {
    /// The archive as a whole cannot be read.
    #[error("the package is no readable zip")]
    Unreadable(#[source] ZipError),
    /// One entry is encrypted, damaged or of an unsupported kind.
    #[error("entry {name:?} of the package cannot be unpacked")]
    Entry {
        /// Which.
        name: String,
        /// What is wrong with it.
        #[source]
        source: ZipError,
    },
    /// Too many entries.
    #[error("the package has {found} entries; at most {limit} are read")]
    TooManyEntries {
        /// How many it has.
        found: usize,
        /// How many it may have.
        limit: usize,
    },
    /// Too much content.
    #[error("the package unpacks to more than {limit} bytes")]
    TooLarge {
        /// How much it may hold.
        limit: u64,
    },
    /// The same compressed bytes serve several entries.
    #[error("the entries of the package overlap")]
    Overlap,
    /// Two entries have one name, so that it depends on the client which of them counts.
    #[error("the package has two entries of one name{}", .name.as_ref().map(|n| format!(" ({n:?})")).unwrap_or_default())]
    DuplicateName {
        /// Which, where it is known.
        name: Option<String>,
    },
    /// A name that has no package hash or would be unpacked elsewhere.
    #[error("entry {name:?} of the package has a name that {why}")]
    BadName {
        /// Which.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// An entry's size is not what it says.
    #[error("entry {name:?} of the package unpacks to {found} bytes and claims {claimed}")]
    WrongSize {
        /// Which.
        name: String,
        /// Its real size.
        found: u64,
        /// What the directory of the zip says.
        claimed: u64,
    },
}

/// Computes both hashes of a provider zip. Entries are streamed; no declared size is believed.
pub fn package_hashes<R: Read + Seek>(mut reader: R, limits: PackageLimits) -> Result<PackageHashes, BadPackage> {
    let unreadable = |error: io::Error| BadPackage::Unreadable(error.into());
    let packed_limit = reader.seek(SeekFrom::End(0)).map_err(unreadable)?;
    let budget = Cell::new(MAX_DIRECTORY_BYTES);
    let mut archive = ZipArchive::new(Metered { inner: reader, budget: &budget }).map_err(BadPackage::Unreadable)?;
    if archive.len() > limits.entries {
        return Err(BadPackage::TooManyEntries { found: archive.len(), limit: limits.entries });
    }
    if archive.has_duplicate_names() {
        return Err(BadPackage::DuplicateName { name: None });
    }
    budget.set(u64::MAX);

    let directory = archive.metadata();
    let mut listing = Listing { limits, ..Listing::default() };
    let mut packed_bytes = 0_u64;
    for index in 0..archive.len() {
        let name = || directory.entry(index).map(|entry| printable(entry.name_raw())).unwrap_or_default();
        let entry = archive.by_index(index).map_err(|source| BadPackage::Entry { name: name(), source })?;
        // Honest entries share no bytes. This bounds the work, also for streams that unpack to nothing.
        packed_bytes = packed_bytes.saturating_add(entry.compressed_size());
        if packed_bytes > packed_limit {
            return Err(BadPackage::Overlap);
        }
        listing.add(entry)?;
    }
    Ok(PackageHashes { zip: h1(&listing.entries), directory: h1(&listing.files) })
}

type ContentDigest = [u8; 32];

/// What has been read of a package: content by name, sorted bytewise as the hash wants it.
#[derive(Default)]
struct Listing {
    limits: PackageLimits,
    unpacked_bytes: u64,
    entries: BTreeMap<Vec<u8>, ContentDigest>,
    files: BTreeMap<Vec<u8>, ContentDigest>,
}

impl Listing {
    fn add<R: Read>(&mut self, mut entry: ZipFile<'_, R>) -> Result<(), BadPackage> {
        let name = entry.name_raw().to_vec();
        let bad_name = |why| BadPackage::BadName { name: printable(&name), why };
        if name.len() > self.limits.name_bytes {
            return Err(bad_name("is too long"));
        }
        if name.contains(&b'\n') {
            return Err(bad_name("holds a line break"));
        }
        // Go ignores this field, the zip crate takes the name from it.
        if entry.extra_data_fields().any(|field| matches!(field, ExtraField::UnicodePath(_))) {
            return Err(bad_name("is given twice"));
        }
        let unpacked_name = unpacked_name(&name).map_err(bad_name)?;

        let is_named_as_directory = name.ends_with(b"/");
        let has_directory_mode = entry.unix_mode().is_some_and(|mode| mode & 0o170_000 == 0o040_000);
        let digest = self.read(&mut entry, &name)?;
        if is_named_as_directory && entry.size() != 0 {
            return Err(bad_name("is a directory's, yet it has content"));
        }
        if !is_named_as_directory && !has_directory_mode && self.files.insert(unpacked_name, digest).is_some() {
            return Err(BadPackage::DuplicateName { name: Some(printable(&name)) });
        }
        self.entries.insert(name, digest);
        Ok(())
    }

    fn read<R: Read>(&mut self, entry: &mut ZipFile<'_, R>, name: &[u8]) -> Result<ContentDigest, BadPackage> {
        let mut context = Context::new(&SHA256);
        let mut chunk = [0; 16 << 10];
        let mut found = 0_u64;
        loop {
            let length = match entry.read(&mut chunk) {
                Ok(0) => break,
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(BadPackage::Entry { name: printable(name), source: error.into() }),
            };
            found = found.saturating_add(length as u64);
            self.unpacked_bytes = self.unpacked_bytes.saturating_add(length as u64);
            if self.unpacked_bytes > self.limits.unpacked_bytes {
                return Err(BadPackage::TooLarge { limit: self.limits.unpacked_bytes });
            }
            context.update(chunk.get(..length).unwrap_or_default());
        }
        if found != entry.size() {
            return Err(BadPackage::WrongSize { name: printable(name), found, claimed: entry.size() });
        }
        let mut digest = [0; 32];
        for (to, from) in digest.iter_mut().zip(context.finish().as_ref()) {
            *to = *from;
        }
        Ok(digest)
    }
}

/// The path that the clients unpack an entry to: they join and clean names, and refuse those that lead upwards.
fn unpacked_name(name: &[u8]) -> Result<Vec<u8>, &'static str> {
    let mut parts = Vec::new();
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err("leads out of the package"),
            part => parts.push(part),
        }
    }
    Ok(parts.join(&b'/'))
}

fn h1(listing: &BTreeMap<Vec<u8>, ContentDigest>) -> String {
    let mut context = Context::new(&SHA256);
    for (name, digest) in listing {
        context.update(hex::encode(digest).as_bytes());
        context.update(b"  ");
        context.update(name);
        context.update(b"\n");
    }
    format!("h1:{}", BASE64_STANDARD.encode(context.finish()))
}

fn printable(name: &[u8]) -> String {
    String::from_utf8_lossy(name).chars().take(200).collect()
}

/// A reader that stops when its budget is used up: the directory of a hostile zip can be as large as the zip.
struct Metered<'b, R> {
    inner: R,
    budget: &'b Cell<u64>,
}

impl<R: Read> Read for Metered<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        let left = self.budget.get().checked_sub(length as u64);
        self.budget.set(left.ok_or_else(|| io::Error::other("its directory is too large"))?);
        Ok(length)
    }
}

impl<R: Seek> Seek for Metered<'_, R> {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        self.inner.seek(position)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write};

    use proptest::prelude::*;
    use zip::write::{SimpleFileOptions, ZipWriter};

    use super::*;
    use crate::digest::Digest;

    enum Item<'a> {
        File(&'a str, &'a [u8]),
        Folder(&'a str),
    }
    use Item::{File, Folder};

    fn zip_of(items: &[Item<'_>]) -> Vec<u8> {
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
        assert_eq!(
            hashes(&zip_of(&[File("a", b"hi")])).unwrap().zip,
            "h1:q7EZzfscC9/EjlTEL4mjnUIfRL+sDWBc2bJcAfEYHww="
        );
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
        assert!(matches!(refused, Err(BadPackage::TooManyEntries { found: 2, limit: 1 })));
        let refused = within(PackageLimits { unpacked_bytes: 99_999, ..limits });
        assert!(matches!(refused, Err(BadPackage::TooLarge { limit: 99_999 })));
        let refused = within(PackageLimits { name_bytes: 0, ..limits });
        assert!(matches!(refused, Err(BadPackage::BadName { .. })));
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
        fn a_package_with_changed_bytes_never_panics(at in 0_usize..300, to in any::<u8>()) {
            let mut zip = zip_of(&[Folder("d/"), File("d/a", b"content"), File("b", &[7; 300])]);
            let at = at % zip.len();
            zip[at] = to;
            let _ = hashes(&zip);
        }
    }

    fn position(bytes: &[u8], wanted: &[u8]) -> usize {
        bytes.windows(wanted.len()).position(|window| window == wanted).unwrap()
    }

    fn replace(bytes: &mut [u8], from: &[u8], to: &[u8]) {
        let places: Vec<_> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(from)).collect();
        assert!(!places.is_empty());
        for at in places {
            bytes[at..at + to.len()].copy_from_slice(to);
        }
    }
}
