//! Computes the two `h1:` hashes of a provider zip as a stream, within limits. The protocols decide which one a client
//! gets.

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

/// Maximum size of the zip directory that is read, however many entries it claims.
const MAX_DIRECTORY_BYTES: u64 = 8 << 20;

/// Limits of a provider zip.
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
        Self { entries: 10_000, unpacked_bytes: 4 << 30, name_bytes: 4 << 10 }
    }
}

/// The hashes of a package as lock files and mirrors spell them. They differ only for zips with directory entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageHashes {
    /// Over every entry of the zip: a client compares it when it checks a zip.
    pub zip: String,
    /// Over the unpacked files: a client writes it into its lock file.
    pub directory: String,
}

/// Why a zip has no package hash. Names are shortened.
#[derive(Debug, thiserror::Error)]
pub enum BadPackage {
    /// The archive as a whole cannot be read.
    #[error("the package is not a readable zip")]
    Unreadable(#[source] ZipError),
    /// One entry is encrypted, damaged or of an unsupported kind.
    #[error("entry {name:?} of the package cannot be unpacked")]
    Entry {
        /// Which.
        name: String,
        /// The zip error.
        #[source]
        source: ZipError,
    },
    /// Too many entries.
    #[error("the package has {actual} entries; at most {limit} are read")]
    TooManyEntries {
        /// Actual count.
        actual: usize,
        /// Allowed count.
        limit: usize,
    },
    /// Too much content.
    #[error("the package unpacks to more than {limit} bytes")]
    TooLarge {
        /// Allowed bytes.
        limit: u64,
    },
    /// Several entries share the same compressed bytes.
    #[error("the entries of the package overlap")]
    Overlap,
    /// Two entries have one name, so that it depends on the client which of them counts.
    #[error("the package has two entries of one name{}", .name.as_ref().map(|n| format!(" ({n:?})")).unwrap_or_default())]
    DuplicateName {
        /// The entry, where known.
        name: Option<String>,
    },
    /// A name that has no package hash or would be unpacked elsewhere.
    #[error("entry {name:?} of the package has a name that {reason}")]
    BadName {
        /// Which.
        name: String,
        /// The problem.
        reason: &'static str,
    },
    /// An entry's size differs from its header.
    #[error("entry {name:?} of the package unpacks to {actual} bytes and claims {claimed}")]
    WrongSize {
        /// Which.
        name: String,
        /// Its real size.
        actual: u64,
        /// The size in the zip directory.
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
        return Err(BadPackage::TooManyEntries { actual: archive.len(), limit: limits.entries });
    }
    if archive.has_duplicate_names() {
        return Err(BadPackage::DuplicateName { name: None });
    }
    budget.set(u64::MAX);

    let directory = archive.metadata();
    // The claimed sizes are enough to refuse it before anything is unpacked.
    let (mut packed_bytes, mut claimed_bytes) = (0_u64, 0_u64);
    for entry in (0..archive.len()).filter_map(|index| directory.entry(index).ok()) {
        packed_bytes = packed_bytes.saturating_add(entry.compressed_size());
        claimed_bytes = claimed_bytes.saturating_add(entry.size());
    }
    // Honest entries share no bytes. This bounds the work, also for streams that unpack to nothing.
    if packed_bytes > packed_limit {
        return Err(BadPackage::Overlap);
    }
    if claimed_bytes > limits.unpacked_bytes {
        return Err(BadPackage::TooLarge { limit: limits.unpacked_bytes });
    }
    let mut listing = PackageEntries { limits, ..PackageEntries::default() };
    for index in 0..archive.len() {
        let name = || directory.entry(index).map(|entry| printable(entry.name_raw())).unwrap_or_default();
        let entry = archive.by_index(index).map_err(|source| BadPackage::Entry { name: name(), source })?;
        listing.add(entry)?;
    }
    Ok(PackageHashes { zip: h1(&listing.entries), directory: h1(&listing.files) })
}

type ContentDigest = [u8; 32];

/// Entries of a package read so far: content by name, sorted bytewise as the hash needs it.
#[derive(Default)]
struct PackageEntries {
    limits: PackageLimits,
    unpacked_bytes: u64,
    entries: BTreeMap<Vec<u8>, ContentDigest>,
    files: BTreeMap<Vec<u8>, ContentDigest>,
}

impl PackageEntries {
    fn add<R: Read>(&mut self, mut entry: ZipFile<'_, R>) -> Result<(), BadPackage> {
        let name = entry.name_raw().to_vec();
        let bad_name = |reason| BadPackage::BadName { name: printable(&name), reason };
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
            return Err(BadPackage::WrongSize { name: printable(name), actual: found, claimed: entry.size() });
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
mod tests;
