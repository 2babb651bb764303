//! Unpacks tars. Extension headers are read here, with a limit, because the tar crate would load one of any length into
//! memory.

use std::io::{self, Read};

use ::tar::{Archive, Entry, EntryType};

use super::name::{clean_path, refused};
use super::{Tree, TreeError};

/// The size limit of an extension header, in bytes.
const MAX_EXTENSION_BYTES: u64 = 1 << 20;
const BLOCK: u64 = 512;

/// The values of extension headers for the next entry. Names from GNU headers take precedence over pax, as in Go.
#[derive(Default)]
struct ExtensionHeaders {
    pax: Pax,
    gnu_path: Option<Vec<u8>>,
    gnu_link: Option<Vec<u8>>,
}

/// The values of the latest pax header.
#[derive(Default)]
struct Pax {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    is_sparse: bool,
}

/// Unpacks a tar as go-getter does: `..` is refused, global headers are skipped, and a tar without a file is an error.
pub(super) fn unpack(from: &mut dyn Read, tree: &mut Tree) -> Result<(), TreeError> {
    let mut archive = Archive::new(&mut *from);
    let mut has_file = false;
    let mut headers = ExtensionHeaders::default();
    let mut remaining_entries = tree.limits().entries;
    for entry in archive.entries().map_err(unreadable)?.raw(true) {
        let mut entry = entry.map_err(unreadable)?;
        match entry.header().entry_type() {
            EntryType::XGlobalHeader => {}
            EntryType::XHeader => headers.pax = Pax::parse(&read_extension(&mut entry)?)?,
            EntryType::GNULongName => headers.gnu_path = until_nul(read_extension(&mut entry)?),
            EntryType::GNULongLink => headers.gnu_link = until_nul(read_extension(&mut entry)?),
            _ => {
                // Entries are counted here, because the tree does not count a folder that is repeated.
                remaining_entries = remaining_entries.checked_sub(1).ok_or_else(|| {
                    TreeError::TooLarge(format!("{} files, folders and links", tree.limits().entries))
                })?;
                has_file |= add(&mut entry, std::mem::take(&mut headers), tree)?;
            }
        }
    }
    // The end is two zero blocks, or the end of the stream. Go rejects other bytes after a single zero block.
    let mut block = Vec::new();
    from.take(BLOCK).read_to_end(&mut block).map_err(unreadable)?;
    if !matches!(block.len() as u64, 0 | BLOCK) || block.iter().any(|byte| *byte != 0) {
        return Err(TreeError::Unreadable("there is data after its end".to_owned()));
    }
    // The checksums of the compression are verified at the end of the stream.
    io::copy(from, &mut io::sink()).map_err(unreadable)?;
    if !has_file {
        return Err(TreeError::Unreadable("it contains no file".to_owned()));
    }
    Ok(())
}

/// Adds an entry. Returns false for a folder.
fn add<R: Read>(entry: &mut Entry<'_, R>, headers: ExtensionHeaders, tree: &mut Tree) -> Result<bool, TreeError> {
    let ExtensionHeaders { pax, gnu_path, gnu_link } = headers;
    let name = gnu_path.or(pax.path).unwrap_or_else(|| entry.header().path_bytes().into_owned());
    let refuse = |reason: &str| Err(refused(&name, reason));
    if pax.is_sparse {
        return refuse("it is a sparse file");
    }
    if pax.size.is_some_and(|size| size != entry.size()) {
        return refuse("it has two sizes");
    }
    let extension_link = gnu_link.or(pax.link);
    let target = || extension_link.clone().or_else(|| entry.header().link_name_bytes().map(|name| name.into_owned()));
    let path = clean_path(&name)?;
    let mode = entry.header().mode().map_err(|e| refused(&name, format!("its mode cannot be read: {e}")))?;
    match entry.header().entry_type() {
        EntryType::Directory => tree.add_folder(&path).map(|()| false),
        EntryType::Regular | EntryType::Continuous if name.ends_with(b"/") || path.is_root() => {
            if entry.size() > 0 {
                return refuse("it is a folder, but has content");
            }
            tree.add_folder(&path).map(|()| false)
        }
        EntryType::Regular | EntryType::Continuous => {
            let size = entry.size();
            // The tar crate takes the end of the archive for the end of the file.
            if tree.add_file(&path, mode, entry)? != size {
                return Err(TreeError::Unreadable(format!("it ends in the middle of {path}")));
            }
            Ok(true)
        }
        EntryType::Symlink => {
            let Some(target) = target() else { return refuse("it is a link without a target") };
            tree.add_symlink(&path, &target).map(|()| true)
        }
        EntryType::Link => {
            let Some(target) = target() else { return refuse("it is a link without a target") };
            let target = clean_path(&target).map_err(|_| refused(&name, "it is a hard link out of the archive"))?;
            tree.add_hard_link(&path, &target).map(|()| true)
        }
        EntryType::Char | EntryType::Block => refuse("it is a device"),
        EntryType::Fifo => refuse("it is a pipe"),
        EntryType::GNUSparse => refuse("it is a sparse file"),
        _ => refuse("its entry type is not supported"),
    }
}

impl Pax {
    /// Parses the records of a pax header, each `LENGTH KEY=VALUE\n`. The last record of a key counts. An empty value
    /// unsets the key.
    fn parse(records: &[u8]) -> Result<Self, TreeError> {
        let mut pax = Self::default();
        let malformed = || TreeError::Unreadable("one of its pax headers is malformed".to_owned());
        let mut remaining = records;
        while !remaining.is_empty() {
            let length_digits =
                remaining.iter().position(|byte| *byte == b' ').filter(|index| *index < 10).ok_or_else(malformed)?;
            let length: usize = remaining
                .get(..length_digits)
                .and_then(|text| std::str::from_utf8(text).ok()?.parse().ok())
                .ok_or_else(malformed)?;
            let record = remaining.get(length_digits + 1..length).ok_or_else(malformed)?;
            remaining = remaining.get(length..).ok_or_else(malformed)?;
            let record = record.strip_suffix(b"\n").ok_or_else(malformed)?;
            let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(malformed)?;
            let (key, value) = (record.get(..equals).unwrap_or_default(), record.get(equals + 1..).unwrap_or_default());
            match key {
                b"path" => pax.path = Some(value.to_vec()).filter(|path| !path.is_empty()),
                b"linkpath" => pax.link = Some(value.to_vec()).filter(|link| !link.is_empty()),
                b"size" if value.is_empty() => pax.size = None,
                b"size" => {
                    let size = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                    pax.size = Some(size.ok_or_else(malformed)?);
                }
                key => pax.is_sparse |= key.starts_with(b"GNU.sparse."),
            }
        }
        Ok(pax)
    }
}

/// Reads an extension header, up to its size limit.
fn read_extension<R: Read>(entry: &mut Entry<'_, R>) -> Result<Vec<u8>, TreeError> {
    if entry.size() > MAX_EXTENSION_BYTES {
        return Err(TreeError::TooLarge(format!("{MAX_EXTENSION_BYTES} bytes in one extension header")));
    }
    let mut bytes = Vec::new();
    entry.take(MAX_EXTENSION_BYTES).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

/// A name up to its zero byte; `None` if it is empty.
fn until_nul(mut bytes: Vec<u8>) -> Option<Vec<u8>> {
    bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
    Some(bytes).filter(|bytes| !bytes.is_empty())
}

fn unreadable(error: io::Error) -> TreeError {
    TreeError::Unreadable(error.to_string())
}
