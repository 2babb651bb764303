//! The files of bundles: a user's own, and no part of the store. Written beside and renamed, and synced.
#![expect(clippy::disallowed_methods, reason = "a bundle is a user's own file")]

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::bundle::{PartList, PartsReader};

/// The largest inventory and the largest list of parts that are read, in bytes.
const LARGEST: u64 = 64 << 20;

pub(super) type Opening = Box<dyn FnMut(&str) -> io::Result<File> + Send>;
pub(super) type Keeping = Box<dyn FnMut(File, u64) -> io::Result<()> + Send>;

/// Writes a file that only this user can read, where there is none.
pub(super) fn write_secret(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    if is_stream(path) {
        bail!("a key goes into a file, and not to the standard output: name one (./- for one of that name)");
    }
    let made = OpenOptions::new().create_new(true).write(true).mode(0o600).open(path);
    let mut file = made.with_context(|| format!("{} cannot be made", path.display()))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).with_context(|| format!("{}", path.display()))
}

/// Reads what [`write_secret`] wrote; nothing where there is no file.
pub(super) fn read_secret(path: &Path) -> anyhow::Result<Option<String>> {
    if is_stream(path) || !path.exists() {
        return Ok(None);
    }
    let text = String::from_utf8(read(path)?);
    text.map(Some).map_err(|_| anyhow::anyhow!("{} is no key of a bundle, and is not replaced", path.display()))
}

/// Reads a small file of a user's.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let read = File::open(path).and_then(|file| {
        let mut bytes = Vec::new();
        file.take(LARGEST + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    });
    let bytes = read.with_context(|| format!("{} cannot be read", path.display()))?;
    if bytes.len() as u64 > LARGEST {
        bail!("{} has more than {} MiB", path.display(), LARGEST >> 20);
    }
    Ok(bytes)
}

/// A bundle to be read: one file, or parts in a folder.
#[derive(Debug)]
pub(super) enum Source {
    File(PathBuf),
    Parts(PathBuf, PartList),
}

impl Source {
    /// Finds out what lies there; of parts, whether all of them do.
    pub(super) fn at(path: &Path) -> anyhow::Result<Self> {
        if is_stream(path) {
            bail!("there is no file of the name -, and a bundle is not read from the standard input: name its file");
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
            Ok(found) => Ok(Some(found.len())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        })
        .with_context(|| format!("the parts in {}", path.display()))?;
        Ok(Self::Parts(path.to_owned(), list))
    }

    /// How many bytes it has.
    pub(super) fn bytes(&self) -> anyhow::Result<u64> {
        match self {
            Self::File(path) => {
                Ok(fs::metadata(path).with_context(|| format!("{} cannot be read", path.display()))?.len())
            }
            Self::Parts(_, list) => Ok(list.bytes()),
        }
    }

    /// Opens it.
    pub(super) fn open(&self) -> anyhow::Result<Box<dyn Read + Send>> {
        Ok(match self {
            Self::File(path) => {
                Box::new(File::open(path).with_context(|| format!("{} cannot be read", path.display()))?)
            }
            Self::Parts(folder, list) => {
                let folder = folder.clone();
                let open: Opening = Box::new(move |name| File::open(folder.join(name)));
                Box::new(PartsReader::new(list.clone(), open))
            }
        })
    }
}

/// The file beside a place, which is written first.
pub(super) fn beside(place: &Path) -> anyhow::Result<PathBuf> {
    let name = place.file_name().with_context(|| format!("{} is no name of a file", place.display()))?;
    let mut beside = name.to_owned();
    beside.push(".new");
    Ok(place.with_file_name(beside))
}

/// Whether a path means a stream elsewhere, and no file here has that name.
pub(super) fn is_stream(path: &Path) -> bool {
    path.as_os_str() == "-" && !path.exists()
}

/// Writes a small file of a user's, whole or not at all.
pub(super) fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let beside = beside(path)?;
    let mut file = File::create(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    sync_folder_of(path)
}

/// Makes the names in the folder of a file survive a power cut.
pub(super) fn sync_folder_of(path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.with_context(|| format!("{} cannot be synced", folder.display()))
}
