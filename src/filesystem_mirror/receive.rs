//! A tree that a larder sends, on its way into a folder: held against the digests that it names itself, added to what is
//! there, and its index files written anew from all that lies there then, as `terraform providers mirror` does.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, BufReader, Read};

use bytes::Bytes;
use serde::Serialize;

use super::carried::{Carried, Contents, Tar};
use super::folder::{BadFolder, Folder};
use super::index::{self, Hashes, Index, VersionIndex, written};
use super::{Covers, Meaning, Member, TreePath};
use crate::address::{Hostname, Package, ProviderAddress, Version};
use crate::digest::Digest;
use crate::verify::{PackageLimits, checksums, package_hashes};

const LARGEST_SMALL: usize = checksums::MAX_BYTES;

/// What came of a tree.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Received {
    /// How many archives were written.
    pub written: u64,
    /// Their bytes.
    pub written_bytes: u64,
    /// How many archives were there already.
    pub there: u64,
    /// Packages without signatures: nothing lies beside them.
    pub unsigned: u64,
    /// Hosts with a port: no client can use a network mirror for them.
    pub with_port: BTreeSet<Hostname>,
    /// What should be known of files that were there before.
    pub notes: Vec<String>,
}

/// Takes a tree in.
///
/// # Errors
/// It broke off, is not what it says, or the folder cannot be written. What was written until then is whole, and stays.
pub fn receive(tar: impl Read, folder: &Folder) -> io::Result<Received> {
    let mut receiving = Receiving {
        folder,
        indexes: BTreeMap::new(),
        shared: HashMap::new(),
        signed: BTreeSet::new(),
        arrived: BTreeSet::new(),
        swept: BTreeSet::new(),
        received: Received::default(),
    };
    Tar::new(tar).each(|entry| receiving.entry(entry))?;
    receiving.finish()
}

struct Receiving<'a> {
    folder: &'a Folder,
    /// What the tree says of itself.
    indexes: BTreeMap<ProviderAddress, BTreeMap<Version, VersionIndex>>,
    /// Sums and signatures whose place in the folder is taken by others: each package gets them for itself.
    shared: HashMap<(ProviderAddress, Version), (Bytes, Option<Bytes>)>,
    /// Packages that have a document.
    signed: BTreeSet<TreePath>,
    arrived: BTreeSet<TreePath>,
    swept: BTreeSet<ProviderAddress>,
    received: Received,
}

impl Receiving<'_> {
    fn entry<R: Read>(&mut self, entry: Carried<'_, R>) -> io::Result<()> {
        let foreign = |path: &str| io::Error::other(format!("{path:?} is no file of such a tree"));
        let (path, mut contents) = match entry {
            Carried::File { meaning: Meaning::File(path), contents, .. } => (path, contents),
            Carried::File { path, .. } | Carried::Refused { path, .. } => return Err(foreign(&path)),
        };
        if self.swept.insert(path.provider.clone()) {
            self.folder.sweep(&path.folder()).map_err(io::Error::other)?;
        }
        if let Member::Archive(version, platform) = &path.member {
            let named = self.indexes.get(&path.provider).and_then(|versions| versions.get(version));
            let expected = named.and_then(|index| index.digest_of(platform));
            let expected = expected.ok_or_else(|| foreign(&path.to_string()))?;
            return self.archive(path, expected, &mut contents);
        }
        let Some(bytes) = contents.small(LARGEST_SMALL)? else {
            return Err(io::Error::other(format!("{path} has more than {LARGEST_SMALL} bytes")));
        };
        self.small(path, bytes.into())
    }

    fn archive<R: Read>(&mut self, path: TreePath, expected: Digest, contents: &mut Contents<'_, R>) -> io::Result<()> {
        let size_bytes = contents.size_bytes();
        if self.folder.digest(&path.to_string()).map_err(io::Error::other)? == Some(expected) {
            self.received.there += 1;
        } else {
            self.folder.write(&path, contents, Some(expected)).map_err(io::Error::other)?;
            self.received.written += 1;
            self.received.written_bytes += size_bytes;
        }
        self.arrived.insert(path);
        Ok(())
    }

    fn small(&mut self, path: TreePath, bytes: Bytes) -> io::Result<()> {
        let bad = |why: String| io::Error::other(format!("{path}: {why}"));
        let version_wide = |version: &Version| (path.provider.clone(), version.clone());
        match &path.member {
            // Written anew from what lies there in the end.
            Member::Index => return Ok(()),
            Member::VersionIndex(version) => {
                let index = VersionIndex::parse(&bytes).map_err(bad)?;
                self.indexes.entry(path.provider.clone()).or_default().insert(version.clone(), index);
                return Ok(());
            }
            Member::Sums(Covers::Version(version)) if self.is_taken_by_others(&path, &bytes)? => {
                self.shared.insert(version_wide(version), (bytes, None));
                return Ok(());
            }
            Member::Signature(Covers::Version(version)) => {
                if let Some((_, signature)) = self.shared.get_mut(&version_wide(version)) {
                    *signature = Some(bytes);
                    return Ok(());
                }
            }
            Member::Document(version, platform) => {
                let package =
                    Package { provider: path.provider.clone(), version: version.clone(), platform: platform.clone() };
                self.signed.insert(TreePath::archive(&package));
                if let Some((sums, signature)) = self.shared.get(&version_wide(version)) {
                    let own = || Covers::Package(version.clone(), platform.clone());
                    let put = |member, bytes: &[u8]| self.folder.write_small(&path.beside(member), bytes);
                    put(Member::Sums(own()), sums).map_err(io::Error::other)?;
                    if let Some(signature) = signature {
                        put(Member::Signature(own()), signature).map_err(io::Error::other)?;
                    }
                }
            }
            Member::Sums(_) | Member::Signature(Covers::Package(..)) | Member::Archive(..) => {}
        }
        self.folder.write_small(&path, &bytes).map_err(io::Error::other)
    }

    /// Whether other sums of the version lie there, and other packages that they are for.
    fn is_taken_by_others(&self, path: &TreePath, bytes: &[u8]) -> io::Result<bool> {
        let there = self.folder.small(&path.to_string(), LARGEST_SMALL).map_err(io::Error::other)?;
        Ok(there.is_some_and(|there| there != bytes))
    }

    fn finish(mut self) -> io::Result<Received> {
        for (provider, versions) in std::mem::take(&mut self.indexes) {
            let mut known: HashMap<Digest, Hashes> = HashMap::new();
            let mut expected: HashMap<TreePath, Digest> = HashMap::new();
            for (version, index) in &versions {
                for (platform, listed) in &index.archives {
                    let Ok(platform) = crate::address::Platform::parse(platform) else { continue };
                    let Some(digest) = index.digest_of(&platform) else { continue };
                    let h1 = listed.hashes.iter().find(|hash| hash.starts_with("h1:")).cloned();
                    known.insert(digest, Hashes { digest, h1 });
                    let package = Package { provider: provider.clone(), version: version.clone(), platform };
                    expected.insert(TreePath::archive(&package), digest);
                }
            }
            for (path, digest) in &expected {
                if !self.signed.contains(path) {
                    self.received.unsigned += 1;
                }
                if self.arrived.contains(path) {
                    continue;
                }
                // It was left out because it is here.
                if self.folder.digest(&path.to_string()).map_err(io::Error::other)? != Some(*digest) {
                    return Err(io::Error::other(format!("{path} was neither sent nor there: run it again")));
                }
                self.received.there += 1;
            }
            self.index(&provider, &known, &expected).map_err(io::Error::other)?;
            self.folder.link_spelling(&provider.host).map_err(io::Error::other)?;
            if provider.host.port().is_some() {
                self.received.with_port.insert(provider.host.clone());
            }
        }
        Ok(self.received)
    }

    /// Writes the index files of a provider anew, from every archive in its folder.
    fn index(
        &mut self,
        provider: &ProviderAddress,
        known: &HashMap<Digest, Hashes>,
        expected: &HashMap<TreePath, Digest>,
    ) -> Result<(), BadFolder> {
        let of = |member| TreePath { provider: provider.clone(), member };
        let folder = of(Member::Index).folder();
        let mut versions: BTreeMap<Version, VersionIndex> = BTreeMap::new();
        for (path, archive) in self.folder.archives(&folder)? {
            let Member::Archive(version, platform) = &archive.member else { continue };
            let is_ours = path == archive.to_string();
            let digest = expected.get(&archive).copied().filter(|_| is_ours);
            let hashes = match digest.and_then(|digest| known.get(&digest)) {
                Some(hashes) => hashes.clone(),
                None => match self.hashes(&path)? {
                    Ok(hashes) => hashes,
                    Err(why) => {
                        self.received
                            .notes
                            .push(format!("{path} was there before, and is left out of the index: {why}"));
                        continue;
                    }
                },
            };
            let index = versions.entry(version.clone()).or_default();
            if index.archives.contains_key(&platform.to_string()) && !is_ours {
                self.received
                    .notes
                    .push(format!("{path} is a second file of one package, and is left out of the index"));
                continue;
            }
            let name = path.rsplit('/').next().unwrap_or(&path);
            index.add(name, platform, &hashes);
        }
        let text = |index: serde_json::Result<Vec<u8>>| index.unwrap_or_default();
        for (version, index) in &versions {
            self.folder.write_small(&of(Member::VersionIndex(version.clone())), &text(written(index)))?;
        }
        // Last: what it lists is there.
        self.folder.write_small(&of(Member::Index), &text(written(&Index::of(versions.keys()))))
    }

    /// The hashes of an archive that was there before; inside, why it has none.
    fn hashes(&self, path: &str) -> Result<Result<Hashes, String>, BadFolder> {
        let Some(digest) = self.folder.digest(path)? else { return Ok(Err("it is gone".to_owned())) };
        let (file, _) = self.folder.read(path)?;
        let hashes = package_hashes(BufReader::with_capacity(64 << 10, file), PackageLimits::default());
        Ok(hashes.map(|hashes| Hashes { digest, h1: Some(hashes.zip) }).map_err(|bad| bad.to_string()))
    }
}

/// The archives of these packages that are there, as they should be or not.
///
/// # Errors
/// They cannot be read.
pub fn there<'a>(
    folder: &Folder,
    packages: impl IntoIterator<Item = &'a Package>,
) -> Result<BTreeSet<Digest>, BadFolder> {
    let mut there = BTreeSet::new();
    for package in packages {
        there.extend(folder.digest(&TreePath::archive(package).to_string())?);
    }
    Ok(there)
}

/// How large an index file may be is bounded where it is read.
const _: () = assert!(index::LARGEST <= LARGEST_SMALL);

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::super::carried::Writing;
    use super::*;

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
            index.add(&name, &platform, &Hashes { digest: Digest::of(bytes), h1: None });
        }
        written(&index).unwrap()
    }

    fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut tar = Writing::to(Vec::new());
        for (name, bytes) in files {
            tar.add(&format!("{NULL}/{name}"), bytes.len() as u64, *bytes).unwrap();
        }
        tar.end().unwrap()
    }

    fn folder() -> (tempfile::TempDir, Folder) {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::make(&place.path().join("out")).unwrap();
        (place, folder)
    }

    #[test]
    fn a_tree_is_added_to_what_is_there_and_an_archive_that_is_there_is_left_alone() {
        let (_place, folder) = folder();
        let (linux, darwin) = (zip("linux"), zip("darwin"));
        let [l, d] =
            ["linux_amd64", "darwin_arm64"].map(|platform| format!("terraform-provider-null_1.2.0_{platform}.zip"));
        let of_linux = [("1.2.0.json", &index_of(&[("linux_amd64", &linux)])[..]), (&l, &linux)];
        let received = receive(&tar(&of_linux)[..], &folder).unwrap();
        assert_eq!((received.written, received.there, received.unsigned), (1, 0, 1));
        let of_darwin = [("1.2.0.json", &index_of(&[("darwin_arm64", &darwin)])[..]), (&d, &darwin)];
        assert_eq!(receive(&tar(&of_darwin)[..], &folder).unwrap().written, 1);
        let index = VersionIndex::parse(&folder.small(&format!("{NULL}/1.2.0.json"), 9999).unwrap().unwrap()).unwrap();
        assert_eq!(index.archives.len(), 2);
        assert!(index.archives["linux_amd64"].hashes.iter().any(|hash| hash.starts_with("h1:")));
        // The second time: sent again, or left out because it is there.
        assert_eq!(receive(&tar(&of_linux)[..], &folder).unwrap().there, 1);
        assert_eq!(receive(&tar(&of_linux[..1])[..], &folder).unwrap().there, 1);
    }

    #[test]
    fn what_is_not_what_the_tree_says_of_it_leaves_nothing_behind() {
        let (_place, folder) = folder();
        let (good, bad) = (zip("good"), zip("bad"));
        let name = "terraform-provider-null_1.2.0_linux_amd64.zip";
        let index = index_of(&[("linux_amd64", &good)]);
        for files in [
            vec![("1.2.0.json", &index[..]), (name, &bad)],
            // Of which nothing was said, or which was not sent.
            vec![(name, &good)],
            vec![("1.2.0.json", &index)],
            vec![("README.md", b"x")],
        ] {
            assert!(receive(&tar(&files)[..], &folder).is_err());
        }
        let whole = tar(&[("1.2.0.json", &index), (name, &good)]);
        assert!(receive(&whole[..whole.len() - 1024], &folder).is_err(), "a tar without an end");
        let left = folder.all().unwrap();
        assert!(left.iter().all(|found| found.path.ends_with(name)), "{left:?}");
    }

    #[test]
    fn sums_that_are_there_for_others_stay_and_the_new_ones_go_beside_their_package() {
        let (_place, folder) = folder();
        let (linux, name) = (zip("linux"), "terraform-provider-null_1.2.0_linux_amd64.zip");
        let index = index_of(&[("linux_amd64", &linux)]);
        let (sums, own) =
            ("terraform-provider-null_1.2.0_SHA256SUMS", "terraform-provider-null_1.2.0_linux_amd64_SHA256SUMS");
        let (signature, document) = (format!("{sums}.sig"), "terraform-provider-null_1.2.0_linux_amd64.json");
        let of = |text: &'static str| {
            tar(&[
                ("1.2.0.json", &index),
                (sums, text.as_bytes()),
                (&signature, text.as_bytes()),
                (document, b"{}"),
                (name, &linux),
            ])
        };
        let read = |name: &str| folder.small(&format!("{NULL}/{name}"), 999).unwrap();
        receive(&of("old")[..], &folder).unwrap();
        assert_eq!((read(sums), read(own)), (Some(b"old".to_vec()), None));
        assert_eq!(receive(&of("new")[..], &folder).unwrap().unsigned, 0);
        assert_eq!((read(sums), read(own)), (Some(b"old".to_vec()), Some(b"new".to_vec())));
        assert_eq!(read(&format!("{own}.sig")), Some(b"new".to_vec()));
    }

    #[test]
    fn the_spelling_that_a_web_server_is_asked_for_is_a_link_and_no_link_is_followed() {
        let (place, folder) = folder();
        let zip = zip("linux");
        let mut tar = Writing::to(Vec::new());
        let index = index_of(&[("linux_amd64", &zip)]);
        let name = "terraform-provider-null_1.2.0_linux_amd64.zip";
        for (path, bytes) in [("1.2.0.json", &index[..]), (name, &zip)] {
            tar.add(&format!("bücher.example:8443/acme/null/{path}"), bytes.len() as u64, bytes).unwrap();
        }
        let received = receive(&tar.end().unwrap()[..], &folder).unwrap();
        assert_eq!(received.with_port.len(), 1);
        let out = place.path().join("out");
        let through_the_link = out.join("xn--bcher-kva.example:8443/acme/null/index.json");
        assert!(through_the_link.exists());
        let found = folder.all().unwrap();
        assert!(found.iter().all(|found| found.path.starts_with("bücher.example:8443/")), "{found:?}");
        std::os::unix::fs::symlink("/etc", out.join("evil.example")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", out.join("bücher.example:8443/acme/null/9.9.9.json")).unwrap();
        let refused = super::super::send::sorted(&folder).unwrap().refused;
        assert_eq!(refused.len(), 2, "{refused:?}");
    }
}
