//! The files of a folder as a client sees them: symbolic links are followed and `.git` is ignored.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// The bytes and the mode of one file.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct TreeFile {
    pub(crate) bytes: Vec<u8>,
    /// True if its owner may run it; the other mode bits depend on the client's umask.
    pub(crate) is_executable: bool,
}

/// Every file below a folder, by path. A symbolic link counts as a copy of its target; dangling links and empty folders
/// are skipped.
pub(crate) fn tree(folder: &Path) -> BTreeMap<String, TreeFile> {
    let mut files = BTreeMap::new();
    gather(folder, "", &mut files);
    files
}

fn gather(folder: &Path, prefix: &str, files: &mut BTreeMap<String, TreeFile>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for entry in entries.map(Result::unwrap).filter(|entry| entry.file_name() != ".git") {
        let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
        let Ok(metadata) = fs::metadata(entry.path()) else { continue };
        if metadata.is_dir() {
            gather(&entry.path(), &format!("{path}/"), files);
        } else {
            let is_executable = metadata.permissions().mode() & 0o100 != 0;
            files.insert(path, TreeFile { bytes: fs::read(entry.path()).unwrap(), is_executable });
        }
    }
}

/// One line for each path where two folders differ; empty if they are equal.
pub(crate) fn differences(left: &Path, right: &Path) -> Vec<String> {
    let (left, right) = (tree(left), tree(right));
    let mut paths: Vec<&String> = left.keys().chain(right.keys()).collect();
    paths.sort();
    paths.dedup();
    let differing = paths.into_iter().filter(|path| left.get(*path) != right.get(*path));
    let describe = |file: Option<&TreeFile>| match file {
        None => "absent".to_owned(),
        Some(TreeFile { bytes, is_executable }) => {
            let mode = if *is_executable { "executable" } else { "plain" };
            format!("{mode}, {} bytes {:?}", bytes.len(), String::from_utf8_lossy(&bytes[..bytes.len().min(80)]))
        }
    };
    differing.map(|path| format!("{path}: {} / {}", describe(left.get(path)), describe(right.get(path)))).collect()
}
