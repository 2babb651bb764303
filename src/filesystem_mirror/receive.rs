//! Writes a provider tree, which a larder sends as a tar, into a folder. Archives are checked against the index files
//! in the tar. Other files in the folder stay. The folder's index files are rebuilt from all its archives, as
//! `terraform providers mirror` does.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, BufReader, Read};

use bytes::Bytes;
use serde::Serialize;

use super::folder::{MirrorFolder, MirrorFolderError};
use super::index::{self, ArchiveHashes, VersionIndex, index_files};
use super::provider_tar::{ProviderTreeReader, TarEntry};
use super::{MirrorFileKind, MirrorPath, PathMeaning, SumsScope};
use crate::address::{Hostname, Package, ProviderAddress, Version};
use crate::digest::Digest;
use crate::verify::{PackageLimits, checksums, package_hashes};

/// The size limit of every file other than an archive.
const MAX_SMALL_FILE_BYTES: usize = checksums::MAX_BYTES;

/// The outcome of receiving a tree.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ReceiveSummary {
    /// The number of archives written.
    pub written: u64,
    /// The bytes of the archives written.
    pub written_bytes: u64,
    /// The number of archives that the folder already contained.
    pub there: u64,
    /// The number of packages without signatures: the tree has no download document for them.
    pub unsigned: u64,
    /// Hosts with a port. No client can use a network mirror for them.
    pub with_port: BTreeSet<Hostname>,
    /// Notes for the operator about files that were in the folder before.
    pub notes: Vec<String>,
}

/// Receives a tree into a folder.
///
/// # Errors
/// The tar is truncated, a file does not match the index, or the folder cannot be written. Files written until then are
/// complete and stay.
pub fn receive(tar: impl Read, folder: &MirrorFolder) -> io::Result<ReceiveSummary> {
    let mut receiver = TreeReceiver {
        folder,
        sent_indexes: BTreeMap::new(),
        version_sums: HashMap::new(),
        signed: BTreeSet::new(),
        received_archives: BTreeSet::new(),
        swept: BTreeSet::new(),
        summary: ReceiveSummary::default(),
    };
    let mut tar = ProviderTreeReader::new(tar);
    while let Some(entry) = tar.next_entry()? {
        receiver.receive_entry(entry, &mut tar)?;
    }
    receiver.finish()
}

struct TreeReceiver<'a> {
    folder: &'a MirrorFolder,
    /// The index files in the tar.
    sent_indexes: BTreeMap<ProviderAddress, BTreeMap<Version, VersionIndex>>,
    /// Received SHA256SUMS and signatures of versions for which the folder already has another SHA256SUMS. They are
    /// written once per package instead.
    version_sums: HashMap<(ProviderAddress, Version), (Bytes, Option<Bytes>)>,
    /// Archives whose download document is in the tree.
    signed: BTreeSet<MirrorPath>,
    /// Archives that were in the tar.
    received_archives: BTreeSet<MirrorPath>,
    /// Providers whose folder was already swept of temporary files.
    swept: BTreeSet<ProviderAddress>,
    summary: ReceiveSummary,
}

impl TreeReceiver<'_> {
    /// Receives one entry of the tar.
    fn receive_entry(&mut self, entry: TarEntry, tar: &mut ProviderTreeReader<impl Read>) -> io::Result<()> {
        let not_in_tree = |path: &str| io::Error::other(format!("{path:?} is not a file of a provider tree"));
        let Ok(PathMeaning::File(path)) = entry.meaning else { return Err(not_in_tree(&entry.path)) };
        if self.swept.insert(path.provider.clone()) {
            self.folder.sweep(&path.folder())?;
        }
        if let MirrorFileKind::Archive(version, platform) = &path.kind {
            let index = self.sent_indexes.get(&path.provider).and_then(|versions| versions.get(version));
            let expected = index.and_then(|index| index.digest_of(platform));
            let expected = expected.ok_or_else(|| not_in_tree(&path.to_string()))?;
            return self.receive_archive(path, expected, entry.size_bytes, tar);
        }
        let Some(bytes) = tar.read_at_most(MAX_SMALL_FILE_BYTES)? else {
            return Err(io::Error::other(format!("{path} has more than {MAX_SMALL_FILE_BYTES} bytes")));
        };
        self.receive_small_file(path, bytes.into())
    }

    /// Writes an archive unless the folder already has it.
    fn receive_archive(
        &mut self,
        path: MirrorPath,
        expected: Digest,
        size_bytes: u64,
        contents: impl Read,
    ) -> io::Result<()> {
        if self.folder.digest(&path.to_string())? == Some(expected) {
            self.summary.there += 1;
        } else {
            self.folder.write(&path, contents, Some(expected))?;
            self.summary.written += 1;
            self.summary.written_bytes += size_bytes;
        }
        self.received_archives.insert(path);
        Ok(())
    }

    /// Writes a file other than an archive, or remembers its contents for later.
    fn receive_small_file(&mut self, path: MirrorPath, bytes: Bytes) -> io::Result<()> {
        let bad = |reason: String| io::Error::other(format!("{path}: {reason}"));
        let version_key = |version: &Version| (path.provider.clone(), version.clone());
        match &path.kind {
            // `finish` rebuilds the index from the archives in the folder.
            MirrorFileKind::Index => return Ok(()),
            MirrorFileKind::VersionIndex(version) => {
                let index = VersionIndex::parse(&bytes).map_err(bad)?;
                self.sent_indexes.entry(path.provider.clone()).or_default().insert(version.clone(), index);
                return Ok(());
            }
            MirrorFileKind::Sums(SumsScope::Version(version)) if self.has_other_sums(&path, &bytes)? => {
                self.version_sums.insert(version_key(version), (bytes, None));
                return Ok(());
            }
            MirrorFileKind::Signature(SumsScope::Version(version)) => {
                if let Some((_, signature)) = self.version_sums.get_mut(&version_key(version)) {
                    *signature = Some(bytes);
                    return Ok(());
                }
            }
            MirrorFileKind::Document(version, platform) => {
                self.signed.insert(path.sibling(MirrorFileKind::Archive(version.clone(), platform.clone())));
                if let Some((sums, signature)) = self.version_sums.get(&version_key(version)) {
                    let scope = || SumsScope::Package(version.clone(), platform.clone());
                    let write_sibling = |kind, bytes: &[u8]| self.folder.write_small(&path.sibling(kind), bytes);
                    write_sibling(MirrorFileKind::Sums(scope()), sums)?;
                    if let Some(signature) = signature {
                        write_sibling(MirrorFileKind::Signature(scope()), signature)?;
                    }
                }
            }
            MirrorFileKind::Sums(_)
            | MirrorFileKind::Signature(SumsScope::Package(..))
            | MirrorFileKind::Archive(..) => {}
        }
        Ok(self.folder.write_small(&path, &bytes)?)
    }

    /// True if the folder has another SHA256SUMS of the version, which covers the packages that were there before.
    fn has_other_sums(&self, path: &MirrorPath, bytes: &[u8]) -> io::Result<bool> {
        let existing = self.folder.read_at_most(&path.to_string(), MAX_SMALL_FILE_BYTES)?;
        Ok(existing.is_some_and(|existing| existing != bytes))
    }

    fn finish(mut self) -> io::Result<ReceiveSummary> {
        for (provider, versions) in std::mem::take(&mut self.sent_indexes) {
            let mut expected: HashMap<MirrorPath, ArchiveHashes> = HashMap::new();
            for (version, index) in &versions {
                for (platform, listed) in &index.archives {
                    let Ok(platform) = crate::address::Platform::parse(platform) else { continue };
                    let Some(digest) = index.digest_of(&platform) else { continue };
                    let h1 = listed.hashes.iter().find(|hash| hash.starts_with("h1:")).cloned();
                    let kind = MirrorFileKind::Archive(version.clone(), platform);
                    expected.insert(MirrorPath { provider: provider.clone(), kind }, ArchiveHashes { digest, h1 });
                }
            }
            for (path, hashes) in &expected {
                self.summary.unsigned += u64::from(!self.signed.contains(path));
                if self.received_archives.contains(path) {
                    continue;
                }
                // The sender leaves out archives that the folder already has.
                if self.folder.digest(&path.to_string())? != Some(hashes.digest) {
                    return Err(io::Error::other(format!("{path} was neither sent nor found; export again")));
                }
                self.summary.there += 1;
            }
            self.rebuild_index(&provider, &expected)?;
            self.folder.link_spelling(&provider.host)?;
            if provider.host.port().is_some() {
                self.summary.with_port.insert(provider.host.clone());
            }
        }
        Ok(self.summary)
    }

    /// Rebuilds the index files of a provider from every archive in its folder.
    fn rebuild_index(
        &mut self,
        provider: &ProviderAddress,
        expected: &HashMap<MirrorPath, ArchiveHashes>,
    ) -> Result<(), MirrorFolderError> {
        let folder = MirrorPath { provider: provider.clone(), kind: MirrorFileKind::Index }.folder();
        let mut versions: BTreeMap<Version, VersionIndex> = BTreeMap::new();
        for (path, archive) in self.folder.archives(&folder)? {
            let MirrorFileKind::Archive(version, platform) = &archive.kind else { continue };
            let has_larder_name = path == archive.to_string();
            let hashes = match expected.get(&archive).filter(|_| has_larder_name) {
                Some(hashes) => Ok(hashes.clone()),
                None => self.hash_archive(&path)?,
            };
            let hashes = match hashes {
                Ok(hashes) => hashes,
                Err(reason) => {
                    let note = format!("{path} existed before, and is left out of the index: {reason}");
                    self.summary.notes.push(note);
                    continue;
                }
            };
            let index = versions.entry(version.clone()).or_default();
            if index.archives.contains_key(&platform.to_string()) && !has_larder_name {
                let note = format!("{path} is a second file of one package, and is left out of the index");
                self.summary.notes.push(note);
                continue;
            }
            let name = path.rsplit('/').next().unwrap_or(&path);
            index.add(name, platform, &hashes);
        }
        // `index.json` is written last, so that every version it lists is complete.
        index_files(provider, &versions).iter().try_for_each(|(path, bytes)| self.folder.write_small(path, bytes))
    }

    /// The hashes of an archive that was in the folder before. The inner error says why they cannot be computed.
    fn hash_archive(&self, path: &str) -> Result<Result<ArchiveHashes, String>, MirrorFolderError> {
        let Some(digest) = self.folder.digest(path)? else { return Ok(Err("it was removed".to_owned())) };
        let (file, _) = self.folder.read(path)?;
        let hashes = package_hashes(BufReader::with_capacity(64 << 10, file), PackageLimits::default());
        Ok(hashes.map(|hashes| ArchiveHashes { digest, h1: Some(hashes.zip) }).map_err(|bad| bad.to_string()))
    }
}

/// Returns the digests of these packages' archives in the folder. They are not compared with anything.
///
/// # Errors
/// An archive cannot be read.
pub fn existing_archive_digests<'a>(
    folder: &MirrorFolder,
    packages: impl IntoIterator<Item = &'a Package>,
) -> Result<BTreeSet<Digest>, MirrorFolderError> {
    packages
        .into_iter()
        .filter_map(|package| folder.digest(&MirrorPath::archive(package).to_string()).transpose())
        .collect()
}

// `VersionIndex::parse` checks the limit of index files, which are read as small files first.
const _: () = assert!(index::MAX_INDEX_BYTES <= MAX_SMALL_FILE_BYTES);

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::packaging::TarWriter;

    const NULL: &str = "r.example/acme/null";

    fn zip(content: &str) -> Vec<u8> {
        use std::io::Write;
        let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
        zip.start_file("terraform-provider-null", zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(content.as_bytes()).unwrap();
        zip.finish().unwrap().into_inner()
    }

    fn index_of(archives: &[(&str, &[u8])]) -> Vec<u8> {
        let mut index = VersionIndex::default();
        for (platform, bytes) in archives {
            let platform = crate::address::Platform::parse(platform).unwrap();
            let name = format!("terraform-provider-null_1.2.0_{platform}.zip");
            index.add(&name, &platform, &ArchiveHashes { digest: Digest::of(bytes), h1: None });
        }
        serde_json::to_vec(&index).unwrap()
    }

    fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut tar = TarWriter::new(Vec::new());
        for (name, bytes) in files {
            tar.file(format!("{NULL}/{name}").as_bytes(), 0o644, bytes.len() as u64, *bytes).unwrap();
        }
        tar.end().unwrap()
    }

    /// An empty folder; it is deleted with the first value.
    fn folder() -> (tempfile::TempDir, MirrorFolder) {
        let temp_dir = tempfile::tempdir().unwrap();
        let folder = MirrorFolder::open_or_create(&temp_dir.path().join("out")).unwrap();
        (temp_dir, folder)
    }

    #[test]
    fn a_received_tree_is_merged_and_existing_archives_are_not_rewritten() {
        let (_temp_dir, folder) = folder();
        let (linux, darwin) = (zip("linux"), zip("darwin"));
        let [linux_name, darwin_name] =
            ["linux_amd64", "darwin_arm64"].map(|platform| format!("terraform-provider-null_1.2.0_{platform}.zip"));
        let of_linux = [("1.2.0.json", &index_of(&[("linux_amd64", &linux)])[..]), (&linux_name, &linux)];
        let received = receive(&tar(&of_linux)[..], &folder).unwrap();
        assert_eq!((received.written, received.there, received.unsigned), (1, 0, 1));
        let of_darwin = [("1.2.0.json", &index_of(&[("darwin_arm64", &darwin)])[..]), (&darwin_name, &darwin)];
        assert_eq!(receive(&tar(&of_darwin)[..], &folder).unwrap().written, 1);
        let index =
            VersionIndex::parse(&folder.read_at_most(&format!("{NULL}/1.2.0.json"), 9999).unwrap().unwrap()).unwrap();
        assert_eq!(index.archives.len(), 2);
        assert!(index.archives["linux_amd64"].hashes.iter().any(|hash| hash.starts_with("h1:")));
        // A second transfer sends the archive again, or leaves it out because the folder has it.
        assert_eq!(receive(&tar(&of_linux)[..], &folder).unwrap().there, 1);
        assert_eq!(receive(&tar(&of_linux[..1])[..], &folder).unwrap().there, 1);
    }

    #[test]
    fn files_that_contradict_the_index_are_refused_and_removed() {
        let (_temp_dir, folder) = folder();
        let (good, bad) = (zip("good"), zip("bad"));
        let name = "terraform-provider-null_1.2.0_linux_amd64.zip";
        let index = index_of(&[("linux_amd64", &good)]);
        for files in [
            vec![("1.2.0.json", &index[..]), (name, &bad)],
            // An archive without an index file, then an index file without its archive.
            vec![(name, &good)],
            vec![("1.2.0.json", &index)],
            vec![("README.md", b"x")],
        ] {
            assert!(receive(&tar(&files)[..], &folder).is_err());
        }
        let whole = tar(&[("1.2.0.json", &index), (name, &good)]);
        assert!(receive(&whole[..whole.len() - 1024], &folder).is_err(), "a tar without an end");
        let remaining = folder.list_files().unwrap();
        assert!(remaining.iter().all(|file| file.path.ends_with(name)), "{remaining:?}");
    }

    #[test]
    fn existing_sums_stay_and_new_ones_are_written_per_package() {
        let (_temp_dir, folder) = folder();
        let (linux, name) = (zip("linux"), "terraform-provider-null_1.2.0_linux_amd64.zip");
        let index = index_of(&[("linux_amd64", &linux)]);
        let (sums, package_sums) =
            ("terraform-provider-null_1.2.0_SHA256SUMS", "terraform-provider-null_1.2.0_linux_amd64_SHA256SUMS");
        let (signature, document) = (format!("{sums}.sig"), "terraform-provider-null_1.2.0_linux_amd64.json");
        let tar_with_sums = |text: &'static str| {
            tar(&[
                ("1.2.0.json", &index),
                (sums, text.as_bytes()),
                (&signature, text.as_bytes()),
                (document, b"{}"),
                (name, &linux),
            ])
        };
        let read = |name: &str| folder.read_at_most(&format!("{NULL}/{name}"), 999).unwrap();
        receive(&tar_with_sums("old")[..], &folder).unwrap();
        assert_eq!((read(sums), read(package_sums)), (Some(b"old".to_vec()), None));
        assert_eq!(receive(&tar_with_sums("new")[..], &folder).unwrap().unsigned, 0);
        assert_eq!((read(sums), read(package_sums)), (Some(b"old".to_vec()), Some(b"new".to_vec())));
        assert_eq!(read(&format!("{package_sums}.sig")), Some(b"new".to_vec()));
    }

    #[test]
    fn the_ascii_spelling_of_a_host_is_a_link_and_links_are_never_followed() {
        let (temp_dir, folder) = folder();
        let zip = zip("linux");
        let mut tar = TarWriter::new(Vec::new());
        let index = index_of(&[("linux_amd64", &zip)]);
        let name = "terraform-provider-null_1.2.0_linux_amd64.zip";
        for (path, bytes) in [("1.2.0.json", &index[..]), (name, &zip)] {
            let path = format!("bücher.example:8443/acme/null/{path}");
            tar.file(path.as_bytes(), 0o644, bytes.len() as u64, bytes).unwrap();
        }
        let received = receive(&tar.end().unwrap()[..], &folder).unwrap();
        assert_eq!(received.with_port.len(), 1);
        let out = temp_dir.path().join("out");
        let ascii_path = out.join("xn--bcher-kva.example:8443/acme/null/index.json");
        assert!(ascii_path.exists());
        let found = folder.list_files().unwrap();
        assert!(found.iter().all(|found| found.path.starts_with("bücher.example:8443/")), "{found:?}");
        std::os::unix::fs::symlink("/etc", out.join("evil.example")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", out.join("bücher.example:8443/acme/null/9.9.9.json")).unwrap();
        let refused = super::super::send::plan_send(&folder).unwrap().refused;
        assert_eq!(refused.len(), 2, "{refused:?}");
    }
}
