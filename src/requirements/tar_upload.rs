//! A user's tar as if unpacked: its files, and its links as their targets.

use std::collections::BTreeMap;

use tar::EntryType;

use super::files::{BadFiles, MAX_ENTRIES, Unreadable};
use super::path;

/// Length of a chain of links, as on any system.
const MAX_LINKS: usize = 40;

/// A parsed tar.
pub(super) struct UnpackedTar<'a> {
    by_path: BTreeMap<String, TarMember<'a>>,
}

/// An entry at a path.
enum TarMember<'a> {
    File(&'a [u8]),
    /// A link to this path from the top of the tar; `None` where it leads out.
    Link(Option<String>),
    /// A pipe, a device or a sparse file.
    Other,
}

impl<'a> UnpackedTar<'a> {
    /// Parses a tar; of two entries at one path, the later one counts. Folders are left out.
    ///
    /// # Errors
    /// [`BadFiles`]: it is not a tar, or has no end.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, BadFiles> {
        let bad = |e: std::io::Error| BadFiles::NoTar(e.to_string());
        let mut by_path = BTreeMap::new();
        let mut archive = tar::Archive::new(bytes);
        for (number, entry) in archive.entries().map_err(bad)?.enumerate() {
            if number == MAX_ENTRIES {
                return Err(BadFiles::TooMany);
            }
            let entry = entry.map_err(bad)?;
            let Ok(path) = String::from_utf8(entry.path_bytes().into_owned()) else { continue };
            let path = path.strip_prefix("./").unwrap_or(&path);
            let to = || entry.link_name_bytes().and_then(|to| String::from_utf8(to.into_owned()).ok());
            let member = match entry.header().entry_type() {
                EntryType::Regular | EntryType::Continuous if path.ends_with('/') => continue,
                EntryType::Regular | EntryType::Continuous => {
                    let from = usize::try_from(entry.raw_file_position()).unwrap_or(usize::MAX);
                    let size = usize::try_from(entry.size()).unwrap_or(usize::MAX);
                    let contents = bytes.get(from..from.saturating_add(size));
                    TarMember::File(contents.ok_or_else(|| BadFiles::NoTar(format!("it ends within {path:?}")))?)
                }
                EntryType::Symlink => TarMember::Link(to().filter(|to| !to.starts_with('/')).and_then(|to| {
                    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
                    path::join(folder, &to)
                })),
                EntryType::Link => TarMember::Link(to().and_then(|to| path::join("", &to))),
                EntryType::Directory | EntryType::XGlobalHeader | EntryType::XHeader => continue,
                _ => TarMember::Other,
            };
            by_path.insert(path.to_owned(), member);
        }
        Ok(Self { by_path })
    }

    /// Every path except folders.
    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        self.by_path.keys().map(String::as_str)
    }

    /// The contents of the file at a path, through any links.
    ///
    /// # Errors
    /// There is no file.
    pub(super) fn file(&self, path: &str) -> Result<&'a [u8], Unreadable> {
        let mut path = path;
        for links in 0..MAX_LINKS {
            match self.by_path.get(path) {
                Some(TarMember::File(contents)) => return Ok(contents),
                Some(TarMember::Link(Some(to))) => path = to,
                Some(TarMember::Other) if links == 0 => return Err(Unreadable::NoFile),
                Some(TarMember::Link(None) | TarMember::Other) | None => break,
            }
        }
        Err(Unreadable::Link)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Files;
    use super::*;

    fn tar(entries: &[(EntryType, &str, &str)]) -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        for (kind, path, says) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(0o644);
            if kind.is_file() {
                header.set_size(says.len() as u64);
                tar.append_data(&mut header, path, says.as_bytes()).unwrap();
            } else {
                header.set_size(0);
                tar.append_link(&mut header, path, says).unwrap();
            }
        }
        tar.into_inner().unwrap()
    }

    #[test]
    fn a_link_is_the_file_that_it_leads_to() {
        let tar = tar(&[
            (EntryType::Regular, "common/versions.txt", "a = 1"),
            (EntryType::Symlink, "prod/versions.tf", "../common/versions.txt"),
            (EntryType::Symlink, "stage/versions.tf", "../prod/./versions.tf"),
            (EntryType::Link, "dev/versions.tf", "common/versions.txt"),
            (EntryType::Symlink, "prod/.terraform/providers/x", "/cache/x"),
        ]);
        let files = Files::from_users_tar(&tar).unwrap();
        for path in ["prod/versions.tf", "stage/versions.tf", "dev/versions.tf"] {
            assert_eq!(files.get(path), Some(Ok("a = 1")), "{path}");
        }
        assert_eq!(files.folders(), ["dev", "prod", "stage"]);
    }

    #[test]
    fn a_link_to_anything_else_stands_in_the_way_and_hides_nothing() {
        let tar = tar(&[
            (EntryType::Regular, "prod/main.tf", ""),
            (EntryType::Regular, "real/x/main.tf", ""),
            (EntryType::Symlink, "prod/out.tf", "../../out.tf"),
            (EntryType::Symlink, "prod/gone.tf", "gone"),
            (EntryType::Symlink, "prod/absolute.tf", "/prod/main.tf"),
            (EntryType::Symlink, "prod/a.tf", "b.tf"),
            (EntryType::Symlink, "prod/b.tf", "a.tf"),
            (EntryType::Symlink, "prod/modules", "../real"),
            (EntryType::Fifo, "prod/pipe.tf", "x"),
            (EntryType::Fifo, "prod/pipe", "x"),
        ]);
        let files = Files::from_users_tar(&tar).unwrap();
        for name in ["out.tf", "gone.tf", "absolute.tf", "a.tf", "b.tf"] {
            assert_eq!(files.get(&format!("prod/{name}")), Some(Err(Unreadable::Link)), "{name}");
        }
        assert_eq!(files.get("prod/pipe.tf"), Some(Err(Unreadable::NoFile)));
        assert_eq!((files.get("prod/pipe"), files.get("prod/main.tf")), (None, Some(Ok(""))));
        assert_eq!(files.describe_obstacle("prod/modules/x"), Some(("prod/modules", Unreadable::Link)));
        assert_eq!(files.describe_obstacle("real/x"), None);
        let json = serde_json::to_string(&files).unwrap();
        assert_eq!(serde_json::from_str::<Files>(&json).unwrap(), files);
    }

    #[test]
    fn a_tar_that_was_cut_is_refused() {
        let whole = tar(&[(EntryType::Regular, "main.tf", &"#".repeat(5000))]);
        assert!(Files::from_users_tar(&whole[..2000]).is_err());
    }
}
