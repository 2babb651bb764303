//! Provider packages: `Provider` describes one version of one provider, `Release` has its real zips, real checksums and
//! real signature. `documents` makes the registry's JSON.

use std::collections::BTreeMap;
use std::io::{Cursor, Write};

use bytes::Bytes;
use rand::{RngCore, SeedableRng};
use zip::CompressionMethod;
use zip::write::SimpleFileOptions;

use super::signing::SigningKey;

/// One version of one provider, as its author describes it. The same description always yields the same bytes, in any
/// namespace.
#[derive(Clone)]
pub(crate) struct Provider {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) version: String,
    pub(super) platforms: Vec<String>,
    pub(super) unlisted_platforms: Vec<String>,
    pub(super) protocols: Vec<String>,
    pub(super) warnings: Vec<String>,
    pub(super) invalid_versions: Vec<String>,
    pub(super) signing_key: SigningKey,
    pub(super) listed_keys: Option<Vec<SigningKey>>,
    pub(super) has_unknown_fields: bool,
    pub(super) has_packages: bool,
    filename: Option<String>,
    size_bytes: usize,
    edition: u64,
    has_directory_entries: bool,
    lists_manifest: bool,
    other_sums: OtherSums,
}

/// Lines in SHA256SUMS beside those of the archives, with other digests for their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OtherSums {
    None,
    Before,
    After,
}

impl Provider {
    /// Version 1.2.0 of `namespace/name`, for linux_amd64 unless `platform` says otherwise.
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            version: "1.2.0".to_owned(),
            platforms: Vec::new(),
            unlisted_platforms: Vec::new(),
            protocols: vec!["5.0".to_owned()],
            warnings: Vec::new(),
            invalid_versions: Vec::new(),
            signing_key: SigningKey::shared(),
            listed_keys: None,
            has_unknown_fields: false,
            has_packages: false,
            filename: None,
            size_bytes: 4096,
            edition: 1,
            has_directory_entries: false,
            lists_manifest: true,
            other_sums: OtherSums::None,
        }
    }

    /// Sets the version, in the spelling that the list and every URL use (`01.2` is possible).
    pub(crate) fn version(mut self, spelling: &str) -> Self {
        self.version = spelling.to_owned();
        self
    }

    /// Adds a platform, such as `linux_amd64`.
    pub(crate) fn platform(mut self, platform: &str) -> Self {
        self.platforms.push(platform.to_owned());
        self
    }

    /// Adds a platform that can be downloaded although the version list does not mention it.
    pub(crate) fn unlisted_platform(mut self, platform: &str) -> Self {
        self.unlisted_platforms.push(platform.to_owned());
        self
    }

    /// Sets the size in bytes of the incompressible payload of each zip; the zip is little larger.
    pub(crate) fn size(mut self, bytes: usize) -> Self {
        self.size_bytes = bytes;
        self
    }

    /// Sets the edition: another edition of the same version has other bytes.
    pub(crate) fn edition(mut self, edition: u64) -> Self {
        self.edition = edition;
        self
    }

    /// Sets the plugin protocols (default: 5.0).
    pub(crate) fn protocols(mut self, protocols: &[&str]) -> Self {
        self.protocols = protocols.iter().map(|protocol| (*protocol).to_owned()).collect();
        self
    }

    /// Adds a warning to the version list.
    pub(crate) fn warning(mut self, text: &str) -> Self {
        self.warnings.push(text.to_owned());
        self
    }

    /// Adds an entry to the version list that no client can parse.
    pub(crate) fn invalid_version(mut self, text: &str) -> Self {
        self.invalid_versions.push(text.to_owned());
        self
    }

    /// Sets an unconventional file name; `{platform}` stands for the platform.
    pub(crate) fn filename(mut self, pattern: &str) -> Self {
        self.filename = Some(pattern.to_owned());
        self
    }

    /// Leaves the manifest out of SHA256SUMS, which then lists the archives only.
    pub(crate) fn without_manifest_sum(mut self) -> Self {
        self.lists_manifest = false;
        self
    }

    /// `namespace/name`.
    pub(crate) fn source(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Lists each archive a second time in SHA256SUMS, with another digest, before the right lines.
    pub(crate) fn other_sums_before(mut self) -> Self {
        self.other_sums = OtherSums::Before;
        self
    }

    /// Lists each archive a second time in SHA256SUMS, with another digest, after the right lines.
    pub(crate) fn other_sums_after(mut self) -> Self {
        self.other_sums = OtherSums::After;
        self
    }

    /// Adds unknown fields, a number beyond any float and unusual whitespace at every level of every document.
    pub(crate) fn unknown_fields(mut self) -> Self {
        self.has_unknown_fields = true;
        self
    }

    /// Adds the member `packages` to the download document, an object that OpenTofu 1.12 reads.
    pub(crate) fn packages_member(mut self) -> Self {
        self.has_packages = true;
        self
    }

    /// Adds folder entries to the zip; the two variants of its `h1:` hash then differ.
    pub(crate) fn directory_entries(mut self) -> Self {
        self.has_directory_entries = true;
        self
    }

    /// Signs with this key in place of the shared one.
    pub(crate) fn signed_by(mut self, key: &SigningKey) -> Self {
        self.signing_key = key.clone();
        self
    }

    /// Lists these keys in the document, whether or not one of them signed.
    pub(crate) fn listed_keys(mut self, keys: &[SigningKey]) -> Self {
        self.listed_keys = Some(keys.to_vec());
        self
    }

    /// Lists no key in the document, as registry.opentofu.org does for many providers.
    pub(crate) fn without_keys(self) -> Self {
        self.listed_keys(&[])
    }

    fn file_name(&self, platform: &str) -> String {
        match &self.filename {
            Some(pattern) => pattern.replace("{platform}", platform),
            None => format!("terraform-provider-{}_{}_{platform}.zip", self.name, self.version),
        }
    }

    fn zip(&self, platform: &str) -> Vec<u8> {
        let mut zip = zip::ZipWriter::new(Cursor::new(Vec::with_capacity(self.size_bytes + 4096)));
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        if self.has_directory_entries {
            zip.add_directory("docs/", options.unix_permissions(0o755)).expect("a folder in a zip in memory");
        }
        let mut write = |name: &str, mode: u32, content: &[u8]| {
            zip.start_file(name, options.unix_permissions(mode)).expect("a file in a zip in memory");
            zip.write_all(content).expect("content of a zip in memory");
        };
        if self.has_directory_entries {
            write("docs/index.md", 0o644, b"# Acme\n");
        }
        write("LICENSE.txt", 0o644, b"Do as you like.\n");
        let executable = format!("terraform-provider-{}_v{}", self.name, self.version);
        write(&executable, 0o755, &self.payload(platform));
        zip.finish().expect("a zip in memory").into_inner()
    }

    /// The provider executable: two lines of shell script, then random bytes that the description determines.
    fn payload(&self, platform: &str) -> Vec<u8> {
        let identity = format!("{}/{}/{platform}/{}/{}", self.name, self.version, self.size_bytes, self.edition);
        let mut seed = [0; 32];
        seed.copy_from_slice(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, identity.as_bytes()).as_ref());
        let mut noise = vec![0; self.size_bytes];
        rand::rngs::StdRng::from_seed(seed).fill_bytes(&mut noise);
        [b"#!/bin/sh\nexit 1\n".as_slice(), &noise].concat()
    }
}

/// One zip for one platform.
#[derive(Clone)]
pub(super) struct Archive {
    pub(super) filename: String,
    pub(super) bytes: Bytes,
    pub(super) sha256: String,
}

/// SHA256SUMS and the signature over it.
#[derive(Clone)]
pub(super) struct SignedSums {
    pub(super) sums: Bytes,
    pub(super) signature: Bytes,
}

/// The result of publishing a `Provider`.
#[derive(Clone)]
pub(super) struct Release {
    pub(super) provider: Provider,
    pub(super) archives: BTreeMap<String, Archive>,
    pub(super) signed_sums: SignedSums,
    /// The sums of the previous edition, if the version was published again.
    pub(super) previous_sums: Option<SignedSums>,
}

impl Release {
    pub(super) fn build(mut provider: Provider) -> Self {
        if provider.platforms.is_empty() {
            provider.platforms.push("linux_amd64".to_owned());
        }
        let platforms = provider.platforms.iter().chain(&provider.unlisted_platforms);
        let archives: BTreeMap<String, Archive> = platforms
            .map(|platform| {
                let bytes = provider.zip(platform);
                let archive =
                    Archive { filename: provider.file_name(platform), sha256: sha256_hex(&bytes), bytes: bytes.into() };
                (platform.clone(), archive)
            })
            .collect();
        let mut sums: Vec<(String, String)> =
            archives.values().map(|archive| (archive.filename.clone(), archive.sha256.clone())).collect();
        let manifest = format!("terraform-provider-{}_{}_manifest.json", provider.name, provider.version);
        let manifest_sha256 = sha256_hex(format!("{manifest} edition {}", provider.edition).as_bytes());
        if provider.lists_manifest {
            sums.push((manifest, manifest_sha256));
        }
        let others =
            archives.values().map(|archive| (archive.filename.clone(), sha256_hex(archive.filename.as_bytes())));
        let others: Vec<(String, String)> = others.collect();
        let sums = sums_text(&match provider.other_sums {
            OtherSums::None => sums,
            OtherSums::Before => [others, sums].concat(),
            OtherSums::After => [sums, others].concat(),
        });
        let signature = provider.signing_key.sign(&sums).into();
        Self { provider, archives, signed_sums: SignedSums { sums, signature }, previous_sums: None }
    }

    /// The sums without any zip, as an author's broken release script leaves them.
    pub(super) fn sums_without_archives(&self) -> Bytes {
        sums_text(&[("unrelated.zip".to_owned(), sha256_hex(b"unrelated"))])
    }

    /// `terraform-provider-null_1.2.0_SHA256SUMS`.
    pub(super) fn sums_name(&self) -> String {
        format!("terraform-provider-{}_{}_SHA256SUMS", self.provider.name, self.provider.version)
    }

    /// The folder of this release's files, from the root of their origin.
    pub(super) fn folder(&self) -> String {
        let Provider { namespace, name, version, .. } = &self.provider;
        format!("/releases/{namespace}/terraform-provider-{name}/{version}/")
    }
}

fn sums_text(lines: &[(String, String)]) -> Bytes {
    let text: String = lines.iter().map(|(name, sha256)| format!("{sha256}  {name}\n")).collect();
    text.into()
}

/// The SHA-256 of bytes, in lower-case hexadecimal digits.
pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    hex::encode(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes).as_ref())
}
