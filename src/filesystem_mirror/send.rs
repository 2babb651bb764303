//! Sends a provider tree of this machine to a larder: selects the files, sorts them, and reports the refused ones.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use super::folder::{ListedFile, ListedFileKind, MirrorFolder, MirrorFolderError};
use super::layout::{enclosing_package, enclosing_package_folder};
use super::written::ProviderTreeWriter;
use super::{MirrorFileKind, MirrorPath, Mode, PathMeaning};

/// The files of a tree to send.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SendPlan {
    /// The files in the order of sending. For each provider the files beside the archives are first, then the archives,
    /// then the unpacked packages, one after the other.
    pub files: Vec<Outgoing>,
    /// The number of packages, both archives and unpacked ones.
    pub packages: usize,
    /// The bytes of all files together.
    pub bytes: u64,
    /// The paths that are not sent, with the reason.
    pub refused: Vec<(String, String)>,
}

/// A file to send.
#[derive(Debug, PartialEq, Eq)]
pub struct Outgoing {
    path: String,
    mode: Mode,
}

/// The group of a file, in the order of sending.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SendOrder {
    Beside,
    Archive,
    Unpacked,
}

/// Selects and sorts the files of a tree.
///
/// # Errors
/// The folder cannot be read.
pub fn plan_send(folder: &MirrorFolder) -> Result<SendPlan, MirrorFolderError> {
    Ok(sort(folder.list_files()?))
}

fn sort(found: Vec<ListedFile>) -> SendPlan {
    let mut sorted = SendPlan::default();
    let mut files = Vec::new();
    let mut unpacked: BTreeSet<String> = BTreeSet::new();
    // A package without one of its files would be another package, so the whole package is refused.
    let mut flawed: BTreeMap<String, String> = BTreeMap::new();
    for ListedFile { path, kind } in found {
        let (size_bytes, mode) = match kind {
            ListedFileKind::File(size_bytes) => (size_bytes, Mode::Plain),
            ListedFileKind::InPackage(size_bytes, mode) => (size_bytes, mode),
            ListedFileKind::Refused(reason) => {
                refuse(path, reason, &mut flawed, &mut sorted.refused);
                continue;
            }
        };
        let turn = match MirrorPath::parse(&path) {
            Ok(PathMeaning::File(MirrorPath { kind: MirrorFileKind::Archive(..), .. })) => {
                sorted.packages += 1;
                SendOrder::Archive
            }
            Ok(PathMeaning::File(_)) => SendOrder::Beside,
            Ok(PathMeaning::Unpacked(..)) => {
                unpacked.insert(enclosing_package_folder(&path).to_owned());
                SendOrder::Unpacked
            }
            Ok(PathMeaning::Misnamed(reason)) => {
                sorted.refused.push((path, reason));
                continue;
            }
            Ok(PathMeaning::Foreign) => continue,
            Err(bad) => {
                refuse(path, bad.to_string(), &mut flawed, &mut sorted.refused);
                continue;
            }
        };
        files.push((provider_folder(&path).to_owned(), turn, path, size_bytes, mode));
    }
    files.retain(|(_, turn, path, ..)| {
        *turn != SendOrder::Unpacked || !flawed.contains_key(enclosing_package_folder(path))
    });
    files.sort_by(|one, other| (&one.0, &one.1, &one.2).cmp(&(&other.0, &other.1, &other.2)));
    sorted.packages += unpacked.iter().filter(|place| !flawed.contains_key(*place)).count();
    sorted.bytes = files.iter().map(|(_, _, _, size_bytes, _)| size_bytes).sum();
    sorted.files = files.into_iter().map(|(_, _, path, _, mode)| Outgoing { path, mode }).collect();
    sorted.refused.extend(flawed);
    sorted.refused.sort();
    sorted
}

fn refuse(path: String, reason: String, flawed: &mut BTreeMap<String, String>, refused: &mut Vec<(String, String)>) {
    let place = enclosing_package_folder(&path);
    if place == path || enclosing_package(place).is_none() {
        return refused.push((path, reason));
    }
    let reason = format!("a file in it is refused, {path:?}: {reason}");
    flawed.entry(place.to_owned()).or_insert(reason);
}

/// `HOST/NAMESPACE/TYPE`
fn provider_folder(path: &str) -> &str {
    path.match_indices('/').nth(2).map_or(path, |(end, _)| &path[..end])
}

/// Sends the selected files as a tar.
///
/// # Errors
/// A file cannot be read any more, or the receiver stopped reading.
pub fn send(folder: &MirrorFolder, sorted: &SendPlan, out: impl Write) -> io::Result<()> {
    let mut tar = ProviderTreeWriter::new(out);
    for Outgoing { path, mode } in &sorted.files {
        let (file, size_bytes) = folder.read(path).map_err(io::Error::other)?;
        tar.add_with_mode(path, *mode, size_bytes, file)?;
    }
    tar.end()?.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proof_files_are_sent_first_and_packages_whole_or_not_at_all() {
        let file = |path: &str| ListedFile { path: path.to_owned(), kind: ListedFileKind::File(1) };
        let inside =
            |path: &str| ListedFile { path: path.to_owned(), kind: ListedFileKind::InPackage(1, Mode::Executable) };
        let link =
            |path: &str| ListedFile { path: path.to_owned(), kind: ListedFileKind::Refused("it is a link".to_owned()) };
        let null = "r.example/acme/null";
        let sorted = sort(vec![
            file("r.example/acme/null-2/1.2.0.json"),
            file(&format!("{null}/1.2.0.json")),
            inside(&format!("{null}/1.2.0/linux_amd64/LICENSE")),
            inside(&format!("{null}/1.2.0/linux_amd64/terraform-provider-null")),
            file(&format!("{null}/Terraform-Provider-Null_1.3.0_linux_amd64.ZIP")),
            file(&format!("{null}/terraform-provider-null_1.3.0_SHA256SUMS")),
            file(&format!("{null}/README.md")),
            file(&format!("{null}/terraform-provider-null_x_linux_amd64.zip")),
            inside(&format!("{null}/1.4.0/linux_amd64/terraform-provider-null")),
            link(&format!("{null}/1.4.0/linux_amd64/docs/link")),
            link(&format!("{null}/1.5.0/linux_amd64")),
        ]);
        let sent: Vec<_> = sorted.files.iter().map(|file| file.path.strip_prefix("r.example/acme/").unwrap()).collect();
        assert_eq!(
            sent,
            [
                "null/1.2.0.json",
                "null/terraform-provider-null_1.3.0_SHA256SUMS",
                "null/Terraform-Provider-Null_1.3.0_linux_amd64.ZIP",
                "null/1.2.0/linux_amd64/LICENSE",
                "null/1.2.0/linux_amd64/terraform-provider-null",
                "null-2/1.2.0.json",
            ]
        );
        let refused: Vec<_> = sorted.refused.iter().map(|(path, _)| path.strip_prefix(null).unwrap()).collect();
        assert_eq!(refused, ["/1.4.0/linux_amd64", "/1.5.0/linux_amd64", "/terraform-provider-null_x_linux_amd64.zip"]);
        assert_eq!((sorted.packages, sorted.bytes), (2, 6));
    }
}
