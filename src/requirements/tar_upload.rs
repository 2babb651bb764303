//! A tar that a user sent: its files in memory, with links resolved to the files that they lead to.

use std::collections::BTreeMap;

use tar::EntryType;

use super::files::{BadFiles, TAR_LIMITS, Unreadable};
use super::path;
use crate::packaging::TarReader;

/// The maximum number of links from a path to its file, as on Linux.
const MAX_LINKS: usize = 40;

/// The entries of a parsed tar by path, without folders.
pub(super) struct UnpackedTar<'a> {
    by_path: BTreeMap<String, TarMember<'a>>,
}

/// The entry at a path.
enum TarMember<'a> {
    File(&'a [u8]),
    /// A symbolic or hard link, with its target as a path in the tar; `None` if the target is outside the tar.
    Link(Option<String>),
    /// A pipe, a device or a sparse file.
    Other,
}

impl<'a> UnpackedTar<'a> {
    /// Parses a tar. Of several entries at one path, the last one counts. Folders are dropped.
    ///
    /// # Errors
    /// [`BadFiles`]: the bytes are not a tar, are cut short, or have too many entries.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, BadFiles> {
        let mut by_path = BTreeMap::new();
        let mut tar = TarReader::new(bytes, TAR_LIMITS);
        while let Some(entry) = tar.next_member()? {
            let Ok(path) = String::from_utf8(entry.name.clone()) else { continue };
            let path = path.strip_prefix("./").unwrap_or(&path);
            let link_target = || entry.link.clone().and_then(|name| String::from_utf8(name).ok());
            let member = match entry.kind() {
                _ if entry.is_sparse => TarMember::Other,
                EntryType::Regular | EntryType::Continuous if path.ends_with('/') => continue,
                EntryType::Regular | EntryType::Continuous => {
                    let contents = tar.input().get(..usize::try_from(entry.size_bytes).unwrap_or(usize::MAX));
                    TarMember::File(
                        contents.ok_or_else(|| BadFiles::InvalidTar(format!("the tar ends within {path:?}")))?,
                    )
                }
                EntryType::Symlink => {
                    // A relative target is relative to the folder of the link.
                    let relative_target = link_target().filter(|target| !target.starts_with('/'));
                    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
                    TarMember::Link(relative_target.and_then(|target| path::join(folder, &target)))
                }
                // The target of a hard link is relative to the top of the tar.
                EntryType::Link => TarMember::Link(link_target().and_then(|target| path::join("", &target))),
                EntryType::Directory => continue,
                _ => TarMember::Other,
            };
            by_path.insert(path.to_owned(), member);
        }
        Ok(Self { by_path })
    }

    /// The paths of all entries.
    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        self.by_path.keys().map(String::as_str)
    }

    /// The contents of the file at a path. Links are followed.
    ///
    /// # Errors
    /// [`Unreadable`]: the entry is not a file, or a link that leads to none.
    pub(super) fn file(&self, path: &str) -> Result<&'a [u8], Unreadable> {
        let mut path = path;
        for followed_links in 0..MAX_LINKS {
            match self.by_path.get(path) {
                Some(TarMember::File(contents)) => return Ok(contents),
                Some(TarMember::Link(Some(target))) => path = target,
                Some(TarMember::Other) if followed_links == 0 => return Err(Unreadable::SpecialFile),
                Some(TarMember::Link(None) | TarMember::Other) | None => break,
            }
        }
        Err(Unreadable::LinkWithoutFile)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Files;
    use super::*;

    /// A tar of entries `(type, path, contents or link target)`.
    fn tar(entries: &[(EntryType, &str, &str)]) -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        for (entry_type, path, contents) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(*entry_type);
            header.set_mode(0o644);
            if entry_type.is_file() {
                header.set_size(contents.len() as u64);
                tar.append_data(&mut header, path, contents.as_bytes()).unwrap();
            } else {
                header.set_size(0);
                tar.append_link(&mut header, path, contents).unwrap();
            }
        }
        tar.into_inner().unwrap()
    }

    #[test]
    fn a_link_to_a_file_has_the_contents_of_that_file() {
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
    fn other_links_and_special_files_are_recorded_as_unreadable() {
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
            assert_eq!(files.get(&format!("prod/{name}")), Some(Err(Unreadable::LinkWithoutFile)), "{name}");
        }
        assert_eq!(files.get("prod/pipe.tf"), Some(Err(Unreadable::SpecialFile)));
        assert_eq!((files.get("prod/pipe"), files.get("prod/main.tf")), (None, Some(Ok(""))));
        assert_eq!(files.blocking_entry("prod/modules/x"), Some(("prod/modules", Unreadable::LinkWithoutFile)));
        assert_eq!(files.blocking_entry("real/x"), None);
        let json = serde_json::to_string(&files).unwrap();
        assert_eq!(serde_json::from_str::<Files>(&json).unwrap(), files);
    }

    #[test]
    fn a_truncated_tar_is_refused() {
        let complete = tar(&[(EntryType::Regular, "main.tf", &"#".repeat(5000))]);
        assert!(Files::from_users_tar(&complete[..2000]).is_err());
    }
}
