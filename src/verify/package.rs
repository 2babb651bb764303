//! Computes the two `h1:` hashes of a provider zip as a stream, within limits. Which of them a client gets depends on
//! the protocol that the client uses.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek};

use aws_lc_rs::digest::{Context, SHA256};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use zip::read::ZipFile;
use zip::result::ZipError;

use crate::digest::Digest;
use crate::packaging::{BadZip, DuplicateNames, ZipLimits, ZipReader};

/// The most bytes read of the zip's central directory, however many entries the zip claims.
const MAX_DIRECTORY_BYTES: u64 = 8 << 20;

/// Limits of a provider zip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackageLimits {
    /// The most files and directories.
    pub entries: usize,
    /// The most bytes of all files together, counted while they are unpacked.
    pub unpacked_bytes: u64,
    /// The most bytes of one name.
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
    /// The hash over every entry of the zip. A client compares this hash when it checks a zip.
    pub zip: String,
    /// The hash over the unpacked files. A client writes this hash into its lock file.
    pub directory: String,
}

/// Why a zip has no package hash. Names in it are shortened.
#[derive(Debug, thiserror::Error)]
pub enum BadPackage {
    /// The archive as a whole cannot be read.
    #[error("the package is not a readable zip")]
    Unreadable(#[source] ZipError),
    /// One entry is encrypted, damaged or of an unsupported kind.
    #[error("entry {name:?} of the package cannot be unpacked")]
    Entry {
        /// The name of the entry.
        name: String,
        /// The zip error.
        #[source]
        source: ZipError,
    },
    /// The receiver of the contents refuses an entry, or cannot write it.
    #[error("entry {name:?} of the package cannot be written: {source}")]
    NotWritten {
        /// The name of the entry.
        name: String,
        /// The reason.
        source: io::Error,
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
    /// Two entries have one name. Which of them is used depends on the client.
    #[error("the package has two entries of one name{}", .name.as_ref().map(|n| format!(" ({n:?})")).unwrap_or_default())]
    DuplicateName {
        /// The entry, where known.
        name: Option<String>,
    },
    /// An entry has a name that cannot be hashed, or that leads out of the package.
    #[error("entry {name:?} of the package has a name that {reason}")]
    BadName {
        /// The name of the entry.
        name: String,
        /// The problem.
        reason: &'static str,
    },
    /// An entry's size differs from its header.
    #[error("entry {name:?} of the package unpacks to {actual} bytes and claims {claimed}")]
    WrongSize {
        /// The name of the entry.
        name: String,
        /// The size of the unpacked entry in bytes.
        actual: u64,
        /// The size in the zip's central directory in bytes.
        claimed: u64,
    },
}

/// Receives the contents of a package while its hashes are computed.
pub trait PackageFiles {
    /// A folder that the zip has an entry for. `path` is as for a file.
    fn folder(&mut self, path: &[u8]) -> io::Result<()>;

    /// The beginning of a file. `path` has `/` between names and leads nowhere else; `mode` is the Unix mode of its entry, with the
    /// kind of file, where the zip tells it.
    fn file(&mut self, path: &[u8], mode: Option<u32>) -> io::Result<()>;

    /// The next bytes of that file.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// Drops the contents.
impl PackageFiles for () {
    fn folder(&mut self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn file(&mut self, _: &[u8], _: Option<u32>) -> io::Result<()> {
        Ok(())
    }

    fn write(&mut self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
}

/// Computes both hashes of a provider zip. Entries are streamed. Declared sizes are not trusted.
pub fn package_hashes<R: Read + Seek>(reader: R, limits: PackageLimits) -> Result<PackageHashes, BadPackage> {
    unpack_package(reader, limits, &mut ())
}

/// Unpacks a provider zip into `files`, and computes both hashes of what it passed on. Entries are streamed. Declared sizes are not
/// trusted.
pub fn unpack_package<R: Read + Seek>(
    reader: R,
    limits: PackageLimits,
    files: &mut impl PackageFiles,
) -> Result<PackageHashes, BadPackage> {
    let zip_limits = ZipLimits {
        directory_bytes: MAX_DIRECTORY_BYTES,
        entries: limits.entries,
        duplicate_names: DuplicateNames::Refused,
    };
    let zip = ZipReader::open(reader, zip_limits)?;
    // A zip that claims too much is refused before anything is unpacked.
    if zip.claimed_bytes() > limits.unpacked_bytes {
        return Err(BadPackage::TooLarge { limit: limits.unpacked_bytes });
    }
    let mut package = PackageEntries { limits, ..PackageEntries::default() };
    zip.for_each_entry(|name, entry| package.add(name, entry, files))?;
    Ok(PackageHashes { zip: h1(&package.entries), directory: h1(&package.files) })
}

impl From<BadZip> for BadPackage {
    fn from(bad: BadZip) -> Self {
        match bad {
            BadZip::Unreadable(error) => Self::Unreadable(error),
            BadZip::TooManyEntries { actual, limit } => Self::TooManyEntries { actual, limit },
            BadZip::DuplicateName(_) => Self::DuplicateName { name: None },
            BadZip::SharedBytes(_) => Self::Overlap,
            BadZip::SecondName(name) => {
                Self::BadName { name: shortened(&name), reason: "has a second name in an extra field" }
            }
            BadZip::Entry { name, source } => Self::Entry { name: shortened(&name), source },
        }
    }
}

/// The entries read so far: digest of the contents by name, sorted by bytes as the hash requires.
#[derive(Default)]
struct PackageEntries {
    limits: PackageLimits,
    unpacked_bytes: u64,
    entries: BTreeMap<Vec<u8>, Digest>,
    files: BTreeMap<Vec<u8>, Digest>,
}

impl PackageEntries {
    fn add<R: Read>(
        &mut self,
        name: Vec<u8>,
        mut entry: ZipFile<'_, R>,
        files: &mut impl PackageFiles,
    ) -> Result<(), BadPackage> {
        let bad_name = |reason| BadPackage::BadName { name: shortened(&name), reason };
        if name.len() > self.limits.name_bytes {
            return Err(bad_name("is too long"));
        }
        if name.contains(&b'\n') {
            return Err(bad_name("contains a line break"));
        }
        let unpacked_name = unpacked_name(&name).map_err(bad_name)?;

        let is_named_as_directory = name.ends_with(b"/");
        let has_directory_mode = entry.unix_mode().is_some_and(|mode| mode & 0o170_000 == 0o040_000);
        let is_file = !is_named_as_directory && !has_directory_mode;
        let begun = match is_file {
            true => files.file(&unpacked_name, entry.unix_mode()),
            false => files.folder(&unpacked_name),
        };
        begun.map_err(|source| BadPackage::NotWritten { name: shortened(&name), source })?;
        let digest = self.read(&mut entry, &name, is_file.then_some(files))?;
        if is_named_as_directory && entry.size() != 0 {
            return Err(bad_name("is that of a directory, but the entry has content"));
        }
        if is_file && self.files.insert(unpacked_name, digest).is_some() {
            return Err(BadPackage::DuplicateName { name: Some(shortened(&name)) });
        }
        self.entries.insert(name, digest);
        Ok(())
    }

    /// Reads an entry, and passes the bytes of a file on.
    fn read<R: Read>(
        &mut self,
        entry: &mut ZipFile<'_, R>,
        name: &[u8],
        mut files: Option<&mut impl PackageFiles>,
    ) -> Result<Digest, BadPackage> {
        let mut context = Context::new(&SHA256);
        let mut buffer = [0; 16 << 10];
        let mut unpacked_bytes = 0_u64;
        loop {
            let length = match entry.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(BadPackage::Entry { name: shortened(name), source: error.into() }),
            };
            unpacked_bytes = unpacked_bytes.saturating_add(length as u64);
            self.unpacked_bytes = self.unpacked_bytes.saturating_add(length as u64);
            if self.unpacked_bytes > self.limits.unpacked_bytes {
                return Err(BadPackage::TooLarge { limit: self.limits.unpacked_bytes });
            }
            let bytes = buffer.get(..length).unwrap_or_default();
            context.update(bytes);
            if let Some(files) = &mut files {
                let written = files.write(bytes);
                written.map_err(|source| BadPackage::NotWritten { name: shortened(name), source })?;
            }
        }
        if unpacked_bytes != entry.size() {
            return Err(BadPackage::WrongSize { name: shortened(name), actual: unpacked_bytes, claimed: entry.size() });
        }
        Ok(Digest::from_context(context))
    }
}

/// The path to which the clients unpack an entry: they clean the name, and refuse one that leads upwards.
fn unpacked_name(name: &[u8]) -> Result<Vec<u8>, &'static str> {
    let mut segments = Vec::new();
    for segment in name.split(|byte| *byte == b'/') {
        match segment {
            b"" | b"." => {}
            b".." => return Err("leads out of the package"),
            segment => segments.push(segment),
        }
    }
    Ok(segments.join(&b'/'))
}

/// The `h1:` hash (dirhash) over names and digests.
fn h1(listing: &BTreeMap<Vec<u8>, Digest>) -> String {
    let mut context = Context::new(&SHA256);
    for (name, digest) in listing {
        context.update(digest.to_string().as_bytes());
        context.update(b"  ");
        context.update(name);
        context.update(b"\n");
    }
    format!("h1:{}", BASE64_STANDARD.encode(context.finish()))
}

fn shortened(name: &[u8]) -> String {
    String::from_utf8_lossy(name).chars().take(200).collect()
}

#[cfg(test)]
mod tests;
