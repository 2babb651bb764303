//! The registry's content: documents, zips, sums and signatures of providers, each with the path at which it is served.

use std::io::{Cursor, Write as _};

use anyhow::Context as _;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, RngCore as _, SeedableRng as _};
use serde_json::{Value, json};
use zip::CompressionMethod;
use zip::write::SimpleFileOptions;

use crate::support::upstream::{SigningKey, sha256_hex};
use crate::upstream::ServedFile;

/// The platforms of a list entry, as the larger providers have them.
const PLATFORMS: [&str; 13] = [
    "darwin_amd64",
    "darwin_arm64",
    "freebsd_386",
    "freebsd_amd64",
    "freebsd_arm",
    "freebsd_arm64",
    "linux_386",
    "linux_amd64",
    "linux_arm",
    "linux_arm64",
    "openbsd_amd64",
    "windows_386",
    "windows_amd64",
];

/// Versions in the long list.
const LISTED_VERSIONS: usize = 104;

/// The platform that is downloaded.
pub(crate) const PLATFORM: &str = "linux_amd64";

/// One version of acme/NAME with one archive for each platform.
pub(crate) struct Release<'a> {
    pub(crate) name: &'a str,
    pub(crate) version: &'a str,
    pub(crate) platforms: &'a [&'a str],
    pub(crate) archive_bytes: usize,
}

impl<'a> Release<'a> {
    /// Version 1.0.0 for one platform.
    pub(crate) fn new(name: &'a str, archive_bytes: usize) -> Self {
        Self { name, version: "1.0.0", platforms: &[PLATFORM], archive_bytes }
    }

    /// Everything that is served of the release except the version list, by path. The URLs in documents are relative,
    /// so that they lead through a server in front of the registry.
    pub(crate) fn served_files(&self) -> anyhow::Result<Vec<(String, ServedFile)>> {
        let Self { name, version, .. } = self;
        let key = SigningKey::shared();
        let folder = format!("/releases/acme/{name}/{version}");
        let sums_name = format!("terraform-provider-{name}_{version}_SHA256SUMS");
        let mut sums = String::new();
        let mut files = Vec::new();
        for platform in self.platforms {
            let (os, arch) = platform.split_once('_').context("a platform is written OS_ARCH")?;
            let filename = format!("terraform-provider-{name}_{version}_{platform}.zip");
            let zip = self.zip(platform)?;
            let shasum = sha256_hex(&zip);
            sums.push_str(&format!("{shasum}  {filename}\n"));
            let document = json!({
                "protocols": ["5.0"],
                "os": os,
                "arch": arch,
                "filename": filename,
                "download_url": format!("{folder}/{filename}"),
                "shasums_url": format!("{folder}/{sums_name}"),
                "shasums_signature_url": format!("{folder}/{sums_name}.sig"),
                "shasum": shasum,
                "signing_keys": {"gpg_public_keys": [{
                    "key_id": key.id(),
                    "ascii_armor": key.armored(),
                    "trust_signature": "",
                    "source": "Acme",
                    "source_url": null,
                }]},
            });
            files.push((document_path(name, version, platform), ServedFile::json(document.to_string())?));
            files.push((format!("{folder}/{filename}"), ServedFile::file("application/zip", zip)));
        }
        let signature = key.sign(sums.as_bytes());
        files.push((format!("{folder}/{sums_name}"), ServedFile::file("text/plain", sums)));
        files.push((format!("{folder}/{sums_name}.sig"), ServedFile::file("application/octet-stream", signature)));
        Ok(files)
    }

    /// A zip of incompressible bytes, the same for the same name, version and platform.
    fn zip(&self, platform: &str) -> anyhow::Result<Vec<u8>> {
        let mut noise = vec![0; self.archive_bytes];
        let identity = format!("{}/{}/{platform}", self.name, self.version);
        let seed = blake3::hash(identity.as_bytes());
        StdRng::from_seed(*seed.as_bytes()).fill_bytes(&mut noise);
        let mut zip = zip::ZipWriter::new(Cursor::new(Vec::with_capacity(self.archive_bytes + 4096)));
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        zip.start_file(format!("terraform-provider-{}_v{}", self.name, self.version), options.unix_permissions(0o755))?;
        zip.write_all(b"#!/bin/sh\nexit 1\n")?;
        zip.write_all(&noise)?;
        Ok(zip.finish()?.into_inner())
    }
}

/// The path of a download document.
pub(crate) fn document_path(name: &str, version: &str, platform: &str) -> String {
    format!("/v1/providers/acme/{name}/{version}/download/{}", platform.replace('_', "/"))
}

/// The path of a version list.
pub(crate) fn list_path(name: &str) -> String {
    format!("/v1/providers/acme/{name}/versions")
}

/// The version list of a provider that has one version for one platform.
pub(crate) fn list(version: &str) -> anyhow::Result<ServedFile> {
    versions([entry(version, &["5.0"], &[PLATFORM])].into())
}

/// A version list of 32 KB, the size of the larger providers' lists: 1.0.0 first, then versions without archives. As in
/// the registry, the platforms of each version differ in number and order.
pub(crate) fn long_list() -> anyhow::Result<ServedFile> {
    let mut rng = StdRng::seed_from_u64(32);
    let mut entries = vec![entry("1.0.0", &["5.0"], &[PLATFORM])];
    for number in 1..LISTED_VERSIONS {
        let mut platforms = PLATFORMS.to_vec();
        platforms.shuffle(&mut rng);
        platforms.truncate(rng.gen_range(4..=PLATFORMS.len()));
        let protocols = [&["5.0"][..], &["4.0", "5.0"], &["5.1"], &["6.0"]][rng.gen_range(0..4)];
        entries.push(entry(&format!("0.{}.{}", number / 4, number % 4), protocols, &platforms));
    }
    versions(entries)
}

/// A version list of this many versions without archives, each for three platforms.
pub(crate) fn list_of(count: usize) -> anyhow::Result<ServedFile> {
    let number = |number: usize| format!("{}.{}.{}", number / 100, number / 10 % 10, number % 10);
    versions((1..=count).map(|version| entry(&number(version), &["5.0"], &PLATFORMS[..3])).collect())
}

fn versions(entries: Vec<Value>) -> anyhow::Result<ServedFile> {
    ServedFile::json(json!({"versions": entries, "warnings": null}).to_string())
}

fn entry(version: &str, protocols: &[&str], platforms: &[&str]) -> Value {
    let platform = |platform: &&str| {
        let (os, arch) = platform.split_once('_').unwrap_or_default();
        json!({"os": os, "arch": arch})
    };
    let platforms: Vec<Value> = platforms.iter().map(platform).collect();
    json!({"version": version, "protocols": protocols, "platforms": platforms})
}

/// The discovery document.
pub(crate) fn discovery() -> anyhow::Result<ServedFile> {
    ServedFile::json(json!({"providers.v1": "/v1/providers/", "modules.v1": "/v1/modules/"}).to_string())
}

/// Compresses as fast and as well as registries do while they answer.
pub(crate) fn gzip(body: &[u8]) -> anyhow::Result<Bytes> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::new(6));
    gzip.write_all(body)?;
    Ok(gzip.finish()?.into())
}
