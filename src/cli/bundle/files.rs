//! Files of bundles, which belong to the user and are not part of the store. Small files are written beside the target,
//! synced and renamed.
#![expect(clippy::disallowed_methods, reason = "a bundle is a user's own file")]

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::bundle::{PartList, PartsReader};

/// Size limit of an inventory or a part list, in bytes.
const MAX_BYTES: u64 = 64 << 20;

pub(super) type OpenPart = Box<dyn FnMut(&str) -> io::Result<File> + Send>;
pub(super) type FinishPart = Box<dyn FnMut(File, u64) -> io::Result<()> + Send>;

/// Writes a new file that only this user can read.
pub(super) fn write_secret(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    if is_stream(path) {
        bail!("a key cannot go to standard output; name a file (./- for a file of that name)");
    }
    let created = OpenOptions::new().create_new(true).write(true).mode(0o600).open(path);
    let mut file = created.with_context(|| format!("{} cannot be created", path.display()))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).with_context(|| format!("{}", path.display()))
}

/// Reads a file of [`write_secret`]; `None` where it does not exist.
pub(super) fn read_secret(path: &Path) -> anyhow::Result<Option<String>> {
    if is_stream(path) || !path.exists() {
        return Ok(None);
    }
    let text = String::from_utf8(read(path)?);
    text.map(Some).map_err(|_| anyhow::anyhow!("{} is not a bundle key, and is not replaced", path.display()))
}

pub(super) fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let read = File::open(path).and_then(|file| {
        let mut bytes = Vec::new();
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    });
    let bytes = read.with_context(|| format!("{} cannot be read", path.display()))?;
    if bytes.len() as u64 > MAX_BYTES {
        bail!("{} is larger than {} MiB", path.display(), MAX_BYTES >> 20);
    }
    Ok(bytes)
}

/// A bundle to read: one file, or parts in a folder.
#[derive(Debug)]
pub(super) enum BundleSource {
    File(PathBuf),
    Parts(PathBuf, PartList),
}

impl BundleSource {
    /// Finds the bundle at a path; all parts must exist with their sizes.
    pub(super) fn at(path: &Path) -> anyhow::Result<Self> {
        if is_stream(path) {
            bail!("a bundle cannot be read from standard input; name its file");
        }
        if !path.is_dir() {
            return Ok(Self::File(path.to_owned()));
        }
        let list = path.join(PartList::NAME);
        if !list.exists() {
            bail!(
                "{} is a folder without {}: name the bundle itself, or the folder of its parts",
                path.display(),
                PartList::NAME
            );
        }
        let list = PartList::read(&read(&list)?)?;
        list.check_sizes(|name| match fs::metadata(path.join(name)) {
            Ok(metadata) => Ok(Some(metadata.len())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        })
        .with_context(|| format!("the parts in {}", path.display()))?;
        Ok(Self::Parts(path.to_owned(), list))
    }

    /// Size in bytes.
    pub(super) fn bytes(&self) -> anyhow::Result<u64> {
        match self {
            Self::File(path) => {
                Ok(fs::metadata(path).with_context(|| format!("{} cannot be read", path.display()))?.len())
            }
            Self::Parts(_, list) => Ok(list.bytes()),
        }
    }

    pub(super) fn open(&self) -> anyhow::Result<Box<dyn Read + Send>> {
        Ok(match self {
            Self::File(path) => {
                Box::new(File::open(path).with_context(|| format!("{} cannot be read", path.display()))?)
            }
            Self::Parts(folder, list) => {
                let folder = folder.clone();
                let open: OpenPart = Box::new(move |name| File::open(folder.join(name)));
                Box::new(PartsReader::new(list.clone(), open))
            }
        })
    }
}

/// The temporary path beside a target.
pub(super) fn temp_path(target: &Path) -> anyhow::Result<PathBuf> {
    let name = target.file_name().with_context(|| format!("{} is not a file name", target.display()))?;
    let mut temp_name = name.to_owned();
    temp_name.push(".new");
    Ok(target.with_file_name(temp_name))
}

/// True for `-`, unless a file has that name.
pub(super) fn is_stream(path: &Path) -> bool {
    path.as_os_str() == "-" && !path.exists()
}

/// Writes a small file atomically.
pub(super) fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let temp = temp_path(path)?;
    let mut file = File::create(&temp)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temp, path)?;
    sync_folder_of(path)
}

/// Syncs the folder of a file, so that its name survives a power cut.
pub(super) fn sync_folder_of(path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.with_context(|| format!("{} cannot be synced", folder.display()))
}
