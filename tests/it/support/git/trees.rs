//! The content of a folder as a client sees it: links followed, `.git` ignored.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// A file.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) bytes: Vec<u8>,
    /// By its owner; the client's umask decides on the rest.
    pub(crate) is_executable: bool,
}

/// Every file of a folder by its path. Links lead to copies, dangling ones to nothing; empty folders do not count.
pub(crate) fn tree(folder: &Path) -> BTreeMap<String, Found> {
    let mut found = BTreeMap::new();
    gather(folder, "", &mut found);
    found
}

fn gather(folder: &Path, prefix: &str, found: &mut BTreeMap<String, Found>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for entry in entries.map(Result::unwrap).filter(|entry| entry.file_name() != ".git") {
        let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
        let Ok(led_to) = fs::metadata(entry.path()) else { continue };
        if led_to.is_dir() {
            gather(&entry.path(), &format!("{path}/"), found);
        } else {
            let is_executable = led_to.permissions().mode() & 0o100 != 0;
            found.insert(path, Found { bytes: fs::read(entry.path()).unwrap(), is_executable });
        }
    }
}

/// Where two folders differ, a line each; empty where they are the same.
pub(crate) fn differences(one: &Path, other: &Path) -> Vec<String> {
    let (one, other) = (tree(one), tree(other));
    let mut paths: Vec<&String> = one.keys().chain(other.keys()).collect();
    paths.sort();
    paths.dedup();
    let differing = paths.into_iter().filter(|path| one.get(*path) != other.get(*path));
    let text = |found: Option<&Found>| match found {
        None => "absent".to_owned(),
        Some(Found { bytes, is_executable }) => {
            let mode = if *is_executable { "executable" } else { "plain" };
            format!("{mode}, {} bytes {:?}", bytes.len(), String::from_utf8_lossy(&bytes[..bytes.len().min(80)]))
        }
    };
    differing.map(|path| format!("{path}: {} / {}", text(one.get(path)), text(other.get(path)))).collect()
}
