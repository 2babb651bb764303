//! A tree of this machine on its way to a larder: what in it is sent, in which order, and what is not even sent.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::carried::Writing;
use super::folder::{BadFolder, Folder, Found, FoundKind};
use super::{Meaning, Member, TreePath};
use crate::address::Package;

/// What of a tree is sent.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sorted {
    /// The files, in the order in which they are sent: in each folder, what lies beside archives comes before them.
    pub files: Vec<String>,
    /// How many of them are archives.
    pub archives: usize,
    /// What stays, and why.
    pub refused: Vec<(String, String)>,
}

/// Sorts out what is in a tree.
///
/// # Errors
/// It cannot be read.
pub fn sorted(folder: &Folder) -> Result<Sorted, BadFolder> {
    Ok(sort(folder.all()?))
}

fn sort(found: Vec<Found>) -> Sorted {
    let mut sorted = Sorted::default();
    let mut packages: BTreeMap<Package, Vec<String>> = BTreeMap::new();
    let mut beside = Vec::new();
    for Found { path, kind } in found {
        let meaning = match kind {
            FoundKind::Refused(why) => {
                sorted.refused.push((path, why));
                continue;
            }
            // Any name in it tells what it is.
            FoundKind::Unpacked => TreePath::parse(&format!("{path}/x")),
            FoundKind::File(_) => TreePath::parse(&path),
        };
        match meaning {
            Ok(Meaning::File(TreePath { provider, member: Member::Archive(version, platform) })) => {
                packages.entry(Package { provider, version, platform }).or_default().push(path);
            }
            Ok(Meaning::File(_)) => beside.push(path),
            Ok(Meaning::Unpacked(_)) => {
                let why = "it is unpacked, and the archive that was published cannot be made of that again";
                sorted.refused.push((path, why.to_owned()));
            }
            Ok(Meaning::Misnamed(why)) => sorted.refused.push((path, why)),
            Ok(Meaning::Foreign) => {}
            Err(bad) => sorted.refused.push((path, bad.to_string())),
        }
    }
    let mut archives = Vec::new();
    for paths in packages.into_values() {
        match &paths[..] {
            [path] => archives.push(path.clone()),
            several => {
                let why = format!("{} files are the same package, and which of them counts differs", several.len());
                sorted.refused.extend(several.iter().map(|path| (path.clone(), why.clone())));
            }
        }
    }
    sorted.archives = archives.len();
    let folder_of = |path: &str| path.rsplit_once('/').map_or(String::new(), |(folder, _)| folder.to_owned());
    let ranked = beside.into_iter().map(|path| (folder_of(&path), false, path));
    let mut ranked: Vec<_> = ranked.chain(archives.into_iter().map(|path| (folder_of(&path), true, path))).collect();
    ranked.sort();
    sorted.files = ranked.into_iter().map(|(_, _, path)| path).collect();
    sorted.refused.sort();
    sorted
}

/// Sends what was sorted out.
///
/// # Errors
/// A file cannot be read any more, or nobody takes it.
pub fn send(folder: &Folder, sorted: &Sorted, out: impl Write) -> io::Result<()> {
    let mut tar = Writing::to(out);
    for path in &sorted.files {
        let (file, size_bytes) = folder.read(path).map_err(io::Error::other)?;
        tar.add(path, size_bytes, file)?;
    }
    tar.end()?.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_beside_goes_first_and_two_files_of_one_package_stay() {
        let file = |path: &str| Found { path: path.to_owned(), kind: FoundKind::File(1) };
        let null = "r.example/acme/null";
        let sorted = sort(vec![
            file(&format!("{null}/1.2.0.json")),
            file(&format!("{null}/Terraform-Provider-Null_1.3.0_linux_amd64.ZIP")),
            file(&format!("{null}/terraform-provider-null_1.2.0_linux_amd64.zip")),
            file(&format!("{null}/terraform-provider-null_1.2.0_linux_amd64_v2.zip")),
            file(&format!("{null}/terraform-provider-null_1.3.0_SHA256SUMS")),
            file(&format!("{null}/README.md")),
            file(&format!("{null}/terraform-provider-null_x_linux_amd64.zip")),
            Found { path: format!("{null}/1.2.0/linux_amd64"), kind: FoundKind::Unpacked },
            Found { path: format!("{null}/link"), kind: FoundKind::Refused("it is a link".to_owned()) },
        ]);
        assert_eq!(
            sorted.files,
            ["1.2.0.json", "terraform-provider-null_1.3.0_SHA256SUMS", "Terraform-Provider-Null_1.3.0_linux_amd64.ZIP"]
                .map(|name| format!("{null}/{name}"))
        );
        let refused: Vec<_> =
            sorted.refused.iter().map(|(path, _)| path.strip_prefix("r.example/acme/null/").unwrap()).collect();
        assert_eq!((sorted.archives, refused.len()), (1, 5), "{refused:?}");
    }
}
