//! Files of bundles, which belong to the user and are not part of the store: keys, inventories, and the bundle itself as
//! its source or destination. A destination is checked before anything is fetched. What is written goes beside the target,
//! is synced and renamed.
#![expect(clippy::disallowed_methods, reason = "a bundle is a user's own file")]

use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::bundle::{
    BundleReader, BundleTrust, PartList, PartsReader, PartsWriter, REPAIR_FILE, WrittenParts, copy_with_repair_file,
    rebuild_from_repair_file,
};
use crate::clock::Timestamp;

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

/// True for `-`, unless a file has that name.
pub(super) fn is_stream(path: &Path) -> bool {
    path.as_os_str() == "-" && !path.exists()
}

/// A file under a temporary name beside its target; removed on drop unless it was finished.
pub(super) struct TempFile {
    file: BufWriter<File>,
    temp: PathBuf,
    target: PathBuf,
}

impl TempFile {
    /// Creates the file, after removing one that an earlier run left.
    fn beside(target: &Path) -> anyhow::Result<Self> {
        let mut name =
            target.file_name().with_context(|| format!("{} is not a file name", target.display()))?.to_owned();
        name.push(".new");
        let temp = target.with_file_name(name);
        match fs::symlink_metadata(&temp) {
            Ok(leftover) if leftover.is_file() => {
                fs::remove_file(&temp).with_context(|| format!("{}", temp.display()))?;
            }
            Ok(_) => bail!("{} is in the way: it is not a plain file", temp.display()),
            // Creating the file below reports the reason.
            Err(_) => {}
        }
        let file = File::create_new(&temp).with_context(|| format!("{} cannot be created", temp.display()))?;
        Ok(Self { file: BufWriter::with_capacity(WRITE_BUFFER_BYTES, file), temp, target: target.to_owned() })
    }

    /// Syncs the file and gives it its final name, which survives a power cut.
    fn finish(mut self) -> anyhow::Result<()> {
        let synced = self.file.flush().and_then(|()| self.file.get_ref().sync_all());
        let named = synced.and_then(|()| fs::rename(&self.temp, &self.target));
        named.with_context(|| format!("{} cannot be written", self.target.display()))?;
        let folder = self.target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        synced.with_context(|| format!("{} cannot be synced", folder.display()))
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        // After the rename there is nothing to remove.
        let _ = fs::remove_file(&self.temp);
    }
}

/// Writes a small file atomically.
fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let mut file = TempFile::beside(path)?;
    file.file.write_all(bytes)?;
    file.finish()
}

/// Maximum number of symbolic links to follow.
const MAX_LINKS: usize = 40;
/// Size of the write buffer, in bytes.
const WRITE_BUFFER_BYTES: usize = 1 << 20;

/// Checked destination of a bundle.
#[derive(Debug)]
pub(super) enum BundleDestination {
    /// One file; an existing one is replaced.
    File(PathBuf),
    /// Parts of one size, in a folder without parts or with those of an earlier run (`existing`).
    Parts { folder: PathBuf, part_bytes: u64, existing: Option<PartList> },
}

impl BundleDestination {
    /// Checks that a bundle can be written there, without writing anything.
    pub(super) fn at(path: &Path, part_bytes: Option<u64>) -> anyhow::Result<Self> {
        if is_stream(path) {
            bail!(
                "a bundle cannot go to standard output, because larder verifies it by reading it again; name a file (./- for a file of that name)"
            );
        }
        match part_bytes {
            None => Self::file(path),
            Some(part_bytes) => Self::parts(path, part_bytes),
        }
    }

    fn file(path: &Path) -> anyhow::Result<Self> {
        let path = match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => {
                bail!("{} is a folder; name the file of the bundle, or give --part-size", path.display())
            }
            Ok(metadata) if !metadata.is_file() => {
                let kind = kind_of(metadata.file_type());
                bail!("{} is {kind}; a bundle can only go into a plain file", path.display());
            }
            Ok(_) => fs::canonicalize(path).with_context(|| format!("{} is inaccessible", path.display()))?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => resolve_links(path)?,
            Err(e) => return Err(e).with_context(|| format!("{} is inaccessible", path.display())),
        };
        let name = path.file_name().with_context(|| format!("{} is not a file name", path.display()))?;
        let folder = path.with_file_name("");
        if !(folder.as_os_str().is_empty() || folder.is_dir()) {
            bail!("{} cannot be created: {} is not a folder", Path::new(name).display(), folder.display());
        }
        Ok(Self::File(path))
    }

    fn parts(folder: &Path, part_bytes: u64) -> anyhow::Result<Self> {
        let shown = folder.display();
        match fs::metadata(folder) {
            Ok(metadata) if !metadata.is_dir() => bail!("{shown} is not a folder; parts need one"),
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(e).with_context(|| format!("{shown} is inaccessible"));
            }
            _ => {}
        }
        let list_path = folder.join(PartList::NAME);
        let existing = if list_path.exists() { Some(PartList::read(&read(&list_path)?)?) } else { None };
        if let Some(list) = existing.as_ref().filter(|list| list.complete) {
            if list.part_bytes != part_bytes {
                bail!("{shown} already has a bundle in parts of {} bytes; name another folder", list.part_bytes);
            }
            if !folder.join(REPAIR_FILE).exists() {
                bail!(
                    "{shown} already has a bundle, which cannot be repaired without {REPAIR_FILE}; name another folder"
                );
            }
        }
        Ok(Self::Parts { folder: folder.to_owned(), part_bytes, existing })
    }
}

/// Noun for a path that is not a plain file.
fn kind_of(file_type: FileType) -> &'static str {
    if file_type.is_fifo() {
        "a FIFO"
    } else if file_type.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

/// Follows symbolic links to a path that does not exist yet.
fn resolve_links(path: &Path) -> anyhow::Result<PathBuf> {
    let mut target = path.to_owned();
    for _ in 0..MAX_LINKS {
        match fs::read_link(&target) {
            // `join` with an absolute target replaces the whole path.
            Ok(to) => target = target.with_file_name("").join(to),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => return Ok(target),
            Err(e) => return Err(e).with_context(|| format!("{} is inaccessible", target.display())),
        }
    }
    bail!("too many symbolic links from {}", path.display())
}

type Parts = Box<PartsWriter<OpenPart, FinishPart, File>>;

/// A bundle being written.
pub(super) enum BundleOutput {
    /// One file.
    File(TempFile),
    /// New parts, or parts of an interrupted run, with their repair file.
    New { parts: Parts, folder: PathBuf, repair_file: TempFile },
    /// Complete parts, some of which may be lost or damaged.
    Repair { parts: Parts, folder: PathBuf, existing: PartList },
}

/// Result of writing a bundle.
#[derive(Debug)]
pub(super) struct WrittenBundle {
    pub(super) source: BundleSource,
    /// Bytes that were already on disk.
    pub(super) reused: u64,
    /// Names of the parts that were rewritten because they were lost or damaged.
    pub(super) rewritten: Vec<String>,
}

impl BundleOutput {
    /// Opens the destination; returns it with the creation time of the bundle. An earlier run's time is reused.
    pub(super) fn begin(out: BundleDestination, now: Timestamp) -> anyhow::Result<(Self, Timestamp)> {
        let (folder, part_bytes, existing) = match out {
            BundleDestination::File(path) => return Ok((Self::File(TempFile::beside(&path)?), now)),
            BundleDestination::Parts { folder, part_bytes, existing } => (folder, part_bytes, existing),
        };
        fs::create_dir_all(&folder).with_context(|| format!("{} cannot be created", folder.display()))?;
        // With the same creation time the bytes are the same, as long as the store has not changed.
        let created = existing.as_ref().filter(|list| list.part_bytes == part_bytes).map_or(now, |list| list.created);
        let list = PartList::empty(created, part_bytes);
        let owned_folder = folder.clone();
        let open: OpenPart = Box::new(move |name| {
            OpenOptions::new().create(true).truncate(false).read(true).write(true).open(owned_folder.join(name))
        });
        let keep: FinishPart = Box::new(|file, bytes| {
            // `set_len` modifies the file even at the same length.
            if file.metadata()?.len() != bytes {
                file.set_len(bytes)?;
            }
            file.sync_all()
        });
        let parts = Box::new(PartsWriter::new(list.clone(), open, keep));
        if let Some(existing) = existing.filter(|list| list.complete) {
            return Ok((Self::Repair { parts, folder, existing }, created));
        }
        let list_path = folder.join(PartList::NAME);
        write(&list_path, &list.to_bytes())?;
        let repair_file = TempFile::beside(&folder.join(REPAIR_FILE))?;
        Ok((Self::New { parts, folder, repair_file }, created))
    }

    /// Reads a bundle from `source` and writes it. A single file may be truncated without notice here.
    ///
    /// # Errors
    /// Names the file that could not be written. `UnexpectedEof` where the bundle in parts is truncated.
    pub(super) fn write_from(self, mut source: impl Read) -> io::Result<Self> {
        let in_folder = |folder: &Path, e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", folder.display()));
        Ok(match self {
            Self::File(mut output) => {
                let copied = io::copy(&mut source, &mut output.file).and_then(|_| output.file.flush());
                let target = output.target.display();
                copied.map_err(|e| io::Error::new(e.kind(), format!("{target} cannot be written: {e}")))?;
                Self::File(output)
            }
            Self::New { parts, folder, mut repair_file } => {
                let copied = copy_with_repair_file(source, parts, &mut repair_file.file);
                let (parts, _) = copied.map_err(|e| in_folder(&folder, e))?;
                Self::New { parts, folder, repair_file }
            }
            Self::Repair { parts, folder, existing } => {
                let in_folder = |e| in_folder(&folder, e);
                let repair_file = File::open(folder.join(REPAIR_FILE)).map_err(in_folder)?;
                let repair_file =
                    BundleReader::open(repair_file, &BundleTrust::ANY).map_err(|bad| in_folder(bad.into()))?;
                if repair_file.bundle_bytes() != existing.bytes() {
                    let reason = format!("{REPAIR_FILE} belongs to another bundle than the parts");
                    return Err(in_folder(io::Error::other(reason)));
                }
                let parts = rebuild_from_repair_file(source, repair_file, parts).map_err(in_folder)?;
                Self::Repair { parts, folder, existing }
            }
        })
    }

    /// Finishes the bundle: syncs it and gives it its final name.
    pub(super) fn end(self) -> anyhow::Result<WrittenBundle> {
        match self {
            Self::File(output) => {
                let source = BundleSource::File(output.target.clone());
                output.finish()?;
                Ok(WrittenBundle { source, reused: 0, rewritten: Vec::new() })
            }
            Self::New { parts, folder, repair_file } => {
                let WrittenParts { list, reused, .. } = parts.end()?;
                repair_file.finish()?;
                let list_path = folder.join(PartList::NAME);
                write(&list_path, &list.to_bytes())?;
                Ok(WrittenBundle { source: BundleSource::Parts(folder, list), reused, rewritten: Vec::new() })
            }
            Self::Repair { parts, folder, existing } => {
                let WrittenParts { list, reused, changed } = parts.end()?;
                if list != existing {
                    bail!(
                        "rewritten parts in {} differ from the lost ones: {REPAIR_FILE} is damaged; write the bundle into another folder",
                        folder.display()
                    );
                }
                Ok(WrittenBundle { source: BundleSource::Parts(folder, list), reused, rewritten: changed })
            }
        }
    }
}
