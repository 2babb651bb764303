//! Sends a provider tree of this machine to a larder: selects the files, sorts them, and reports the refused ones.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use super::folder::{ListedFile, MirrorFolder, MirrorFolderError};
use super::layout::{enclosing_package, enclosing_package_folder};
use super::{MirrorFileKind, MirrorPath, Mode, PathMeaning};
use crate::packaging::TarWriter;

/// The files of a tree to send.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SendPlan {
    /// The files in the order of sending. For each provider, index files and proof files come first, then the archives,
    /// then the unpacked packages.
    pub files: Vec<Outgoing>,
    /// The number of packages, both archives and unpacked ones.
    pub packages: usize,
    /// The bytes of all files together.
    pub bytes: u64,
    /// The paths that are not sent, with the reason.
    pub refused: Vec<(String, String)>,
}

/// A file to send. Its fields are in the order that files are sorted by.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Outgoing {
    provider_folder: String,
    send_order: SendOrder,
    path: String,
    size_bytes: u64,
    mode: Mode,
}

/// The group of a file, in the order of sending.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SendOrder {
    IndexOrProof,
    Archive,
    Unpacked,
}

/// Selects and sorts the files of a tree.
///
/// # Errors
/// The folder cannot be read.
pub fn plan_send(folder: &MirrorFolder) -> Result<SendPlan, MirrorFolderError> {
    Ok(plan_files(folder.list_files()?))
}

/// Selects and sorts listed files.
fn plan_files(listed: Vec<ListedFile>) -> SendPlan {
    let mut plan = SendPlan::default();
    let mut unpacked_packages: BTreeSet<String> = BTreeSet::new();
    // A package without one of its files would be another package, so the whole package is refused.
    let mut refused_packages: BTreeMap<String, String> = BTreeMap::new();
    for ListedFile { path, file } in listed {
        let meaning = MirrorPath::parse(&path).map_err(|bad| bad.to_string());
        let ((size_bytes, mode), meaning) = match file.and_then(|file| Ok((file, meaning?))) {
            Ok(found) => found,
            Err(reason) => {
                refuse(path, reason, &mut refused_packages, &mut plan.refused);
                continue;
            }
        };
        let send_order = match meaning {
            PathMeaning::File(MirrorPath { kind: MirrorFileKind::Archive(..), .. }) => {
                plan.packages += 1;
                SendOrder::Archive
            }
            PathMeaning::File(_) => SendOrder::IndexOrProof,
            PathMeaning::Unpacked(..) => {
                unpacked_packages.insert(enclosing_package_folder(&path).to_owned());
                SendOrder::Unpacked
            }
            PathMeaning::Misnamed(reason) => {
                plan.refused.push((path, reason));
                continue;
            }
            PathMeaning::Foreign => continue,
        };
        plan.files.push(Outgoing {
            provider_folder: provider_folder(&path).to_owned(),
            send_order,
            path,
            size_bytes,
            mode,
        });
    }
    plan.files.retain(|file| {
        file.send_order != SendOrder::Unpacked || !refused_packages.contains_key(enclosing_package_folder(&file.path))
    });
    plan.files.sort();
    plan.packages +=
        unpacked_packages.iter().filter(|package_folder| !refused_packages.contains_key(*package_folder)).count();
    plan.bytes = plan.files.iter().map(|file| file.size_bytes).sum();
    plan.refused.extend(refused_packages);
    plan.refused.sort();
    plan
}

/// Refuses a file, or the whole unpacked package that contains it.
fn refuse(
    path: String,
    reason: String,
    refused_packages: &mut BTreeMap<String, String>,
    refused: &mut Vec<(String, String)>,
) {
    let package_folder = enclosing_package_folder(&path);
    if package_folder == path || enclosing_package(package_folder).is_none() {
        return refused.push((path, reason));
    }
    let reason = format!("a file in it is refused, {path:?}: {reason}");
    refused_packages.entry(package_folder.to_owned()).or_insert(reason);
}

/// The first three segments of a path: `HOST/NAMESPACE/TYPE`.
fn provider_folder(path: &str) -> &str {
    path.match_indices('/').nth(2).map_or(path, |(end, _)| &path[..end])
}

/// Sends the selected files as a tar.
///
/// # Errors
/// A file cannot be read any more, or the receiver stopped reading.
pub fn send(folder: &MirrorFolder, plan: &SendPlan, out: impl Write) -> io::Result<()> {
    let mut tar = TarWriter::new(out);
    for Outgoing { path, mode, .. } in &plan.files {
        let (file, size_bytes) = folder.read(path)?;
        tar.file(path.as_bytes(), mode.bits(), size_bytes, file)?;
    }
    tar.end().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_and_proof_files_are_sent_first_and_packages_as_a_whole_or_not_at_all() {
        let file = |path: &str| ListedFile { path: path.to_owned(), file: Ok((1, Mode::Plain)) };
        let in_package = |path: &str| ListedFile { path: path.to_owned(), file: Ok((1, Mode::Executable)) };
        let link = |path: &str| ListedFile { path: path.to_owned(), file: Err("it is a link".to_owned()) };
        let null = "r.example/acme/null";
        let plan = plan_files(vec![
            file("r.example/acme/null-2/1.2.0.json"),
            file(&format!("{null}/1.2.0.json")),
            in_package(&format!("{null}/1.2.0/linux_amd64/LICENSE")),
            in_package(&format!("{null}/1.2.0/linux_amd64/terraform-provider-null")),
            file(&format!("{null}/Terraform-Provider-Null_1.3.0_linux_amd64.ZIP")),
            file(&format!("{null}/terraform-provider-null_1.3.0_SHA256SUMS")),
            file(&format!("{null}/README.md")),
            file(&format!("{null}/terraform-provider-null_x_linux_amd64.zip")),
            in_package(&format!("{null}/1.4.0/linux_amd64/terraform-provider-null")),
            link(&format!("{null}/1.4.0/linux_amd64/docs/link")),
            link(&format!("{null}/1.5.0/linux_amd64")),
        ]);
        let sent: Vec<_> = plan.files.iter().map(|file| file.path.strip_prefix("r.example/acme/").unwrap()).collect();
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
        let refused: Vec<_> = plan.refused.iter().map(|(path, _)| path.strip_prefix(null).unwrap()).collect();
        assert_eq!(refused, ["/1.4.0/linux_amd64", "/1.5.0/linux_amd64", "/terraform-provider-null_x_linux_amd64.zip"]);
        assert_eq!((plan.packages, plan.bytes), (2, 6));
    }
}
