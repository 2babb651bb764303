//! The files of bundles: a user's own, and no part of the store. Written beside and renamed, and synced.
#![expect(clippy::disallowed_methods, reason = "a bundle is a user's own file")]

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::bundle::{PartList, PartsReader, PartsWriter};
use crate::clock::Timestamp;

/// The largest inventory and the largest list of parts that are read, in bytes.
const LARGEST: u64 = 64 << 20;

type Opening = Box<dyn FnMut(&str) -> io::Result<File> + Send>;
type Keeping = Box<dyn FnMut(File, u64) -> io::Result<()> + Send>;

/// Writes a file that only this user can read, where there is none.
pub(super) fn write_secret(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let made = OpenOptions::new().create_new(true).write(true).mode(0o600).open(path);
    let mut file = made.with_context(|| format!("{} cannot be made", path.display()))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).with_context(|| format!("{}", path.display()))
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
        list.is_all_there(|name| match fs::metadata(path.join(name)) {
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

/// A bundle to be written.
pub(super) enum Target {
    File { file: BufWriter<File>, beside: PathBuf, path: PathBuf },
    Parts { writer: Box<PartsWriter<Opening, Keeping, File>>, folder: PathBuf },
}

/// What was written.
#[derive(Debug)]
pub(super) struct Written {
    /// Where.
    pub(super) source: Source,
    /// How many bytes of it lay there already.
    pub(super) reused: u64,
}

impl Target {
    /// Begins one file beside `path`.
    pub(super) fn file(path: &Path) -> anyhow::Result<Self> {
        if path.is_dir() {
            bail!("{} is a folder: name the file of the bundle, or say --part-size", path.display());
        }
        let name = path.file_name().with_context(|| format!("{} is no name of a file", path.display()))?;
        let mut beside = name.to_owned();
        beside.push(".new");
        let beside = path.with_file_name(beside);
        let file = File::create(&beside).with_context(|| format!("{} cannot be made", beside.display()))?;
        Ok(Self::File { file: BufWriter::with_capacity(1 << 20, file), beside, path: path.to_owned() })
    }

    /// Begins parts in a folder, or goes on with those that an earlier run left; and when that was.
    pub(super) fn parts(folder: &Path, part_bytes: u64, now: Timestamp) -> anyhow::Result<(Self, Timestamp)> {
        fs::create_dir_all(folder).with_context(|| format!("{} cannot be made", folder.display()))?;
        let place = folder.join(PartList::NAME);
        let before = if place.exists() { Some(PartList::read(&read(&place)?)?) } else { None };
        let list = match before {
            Some(list) if list.complete => {
                bail!("there is a bundle in {}: name another folder", folder.display());
            }
            // Made again with the same time its bytes are the same, as far as the store has not changed.
            Some(list) if list.part_bytes == part_bytes => list,
            Some(_) | None => PartList::begun(now, part_bytes),
        };
        let list = PartList::begun(list.created, part_bytes);
        write(&place, &list.write()).with_context(|| format!("{}", place.display()))?;
        let created = list.created;
        let of = folder.to_owned();
        let open: Opening = Box::new(move |name| {
            OpenOptions::new().create(true).truncate(false).read(true).write(true).open(of.join(name))
        });
        let keep: Keeping = Box::new(|file, bytes| file.set_len(bytes).and_then(|()| file.sync_all()));
        Ok((Self::Parts { writer: Box::new(PartsWriter::new(list, open, keep)), folder: folder.to_owned() }, created))
    }

    /// That was all: it is there under its name, and on the disk.
    pub(super) fn end(self) -> anyhow::Result<Written> {
        match self {
            Self::File { file, beside, path } => {
                let ended = file.into_inner().map_err(io::IntoInnerError::into_error).and_then(|file| file.sync_all());
                ended.and_then(|()| fs::rename(&beside, &path)).with_context(|| format!("{}", beside.display()))?;
                sync_folder_of(&path)?;
                Ok(Written { source: Source::File(path), reused: 0 })
            }
            Self::Parts { writer, folder } => {
                let (list, reused) = writer.end()?;
                let place = folder.join(PartList::NAME);
                write(&place, &list.write()).with_context(|| format!("{}", place.display()))?;
                Ok(Written { source: Source::Parts(folder, list), reused })
            }
        }
    }
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::File { file, .. } => file.write(bytes),
            Self::Parts { writer, .. } => writer.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::File { file, .. } => file.flush(),
            Self::Parts { writer, .. } => writer.flush(),
        }
    }
}

fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let beside = path.with_extension("json.new");
    let mut file = File::create(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    sync_folder_of(path)
}

fn sync_folder_of(path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.with_context(|| format!("{} cannot be synced", folder.display()))
}
