//! Sixteen clients that send every kind of request at once and compare each answer with the truth.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};
use serde_json::Value;

use crate::SoakSetup;
use crate::ledger::{Acknowledged, BrokenPromise, RequestKind};
use crate::request::{BodyEnd, BodyReading, SoakRequest};
use crate::support::larder::HOST;
use crate::support::upstream::sha256_hex;
use crate::truth::{Edition, Package, Zip};

/// A client of larder.
pub(crate) struct Client {
    pub(crate) setup: Arc<SoakSetup>,
    pub(crate) http: reqwest::Client,
    pub(crate) rng: StdRng,
}

impl Client {
    /// The client of this number.
    pub(crate) fn new(setup: &Arc<SoakSetup>, number: u64, seed: u64) -> anyhow::Result<Self> {
        let builder = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).no_proxy();
        let builder = builder.no_gzip().connect_timeout(Duration::from_secs(30));
        let rng = StdRng::seed_from_u64(seed.wrapping_mul(1000).wrapping_add(number));
        Ok(Self { setup: Arc::clone(setup), http: builder.build()?, rng })
    }

    /// Sends requests until the phase is over.
    pub(crate) async fn run(mut self) {
        while !self.setup.is_over() {
            match self.rng.gen_range(0..100) {
                0..35 => self.install().await,
                35..45 => self.install_attacked().await,
                45..50 => self.install_random_module().await,
                50..70 => self.reinstall().await,
                70..85 => self.install_through_mirror().await,
                85..92 => drop(self.request_versions().await),
                92..95 => self.request_discovery().await,
                _ => self.request_absent().await,
            }
        }
    }

    /// The requests of an `init`: the list, a document, its three files.
    async fn install(&mut self) {
        let Some((name, versions)) = self.request_versions().await else { return };
        // New versions are preferred: the old ones are cached soon.
        let newest = versions.len().saturating_sub(3);
        let candidates = if self.rng.gen_bool(0.6) { &versions[newest..] } else { &versions[..] };
        let Some(version) = candidates.choose(&mut self.rng) else { return };
        let platform = crate::truth::PLATFORMS[self.rng.gen_range(0..2)].to_owned();
        self.install_package(&Package { name, version: version.clone(), platform }).await;
    }

    /// The requests of an `init` for a version that is or will be attacked.
    async fn install_attacked(&mut self) {
        let attacked = self.setup.attacked.lock().choose(&mut self.rng).cloned();
        let Some((name, version)) = attacked else { return };
        let platform = crate::truth::PLATFORMS[self.rng.gen_range(0..2)].to_owned();
        self.install_package(&Package { name, version, platform }).await;
    }

    /// Returns true if everything arrived.
    pub(crate) async fn install_package(&mut self, package: &Package) -> bool {
        let Package { name, version, platform } = package;
        let platform_path = platform.replacen('_', "/", 1);
        let path = format!("/registry/{HOST}/v1/providers/acme/{name}/{version}/download/{platform_path}");
        let Some(document) = self.request_json(RequestKind::Document, &path).await else { return false };
        let text = |field: &str| document[field].as_str().unwrap_or_default().to_owned();
        let editions = self.setup.truth.rightful_editions(name, version).await;
        let shasum = text("shasum");
        let has_archive = |edition: &&Arc<Edition>| edition.zips.get(platform).is_some_and(|zip| zip.sha256 == shasum);
        // Several signatures may exist for the same bytes.
        let matching: Vec<&Arc<Edition>> = editions.iter().filter(has_archive).collect();
        if matching.is_empty() {
            self.record_wrong_bytes(format!("{path}: no edition that may be served has the shasum {shasum}"));
            return false;
        }
        self.setup.truth.record_seen(package, &shasum).await;
        let (sums, signature, archive) = (text("shasums_url"), text("shasums_signature_url"), text("download_url"));
        let mut all_arrived = true;
        if self.rng.gen_bool(0.3) {
            let truths = [
                (RequestKind::Sums, &sums, matching.iter().map(|edition| &edition.sums).collect::<Vec<_>>()),
                (RequestKind::Signature, &signature, matching.iter().map(|edition| &edition.signature).collect()),
            ];
            for (kind, path, truths) in truths {
                match self.send(SoakRequest::complete(kind, path)).await {
                    Some(answer) if answer.is_complete(200) && !truths.contains(&&answer.body) => {
                        self.record_wrong_bytes(format!("{path} is not of the edition of its document"));
                    }
                    answer => all_arrived &= answer.is_some_and(|answer| answer.is_complete(200)),
                }
            }
        }
        let reading = match self.rng.gen_range(0..100) {
            _ if self.setup.is_over() => BodyReading::Complete,
            0..6 => BodyReading::DisconnectAfter(self.rng.gen_range(0..400_000)),
            6..10 => BodyReading::Slowly(Duration::from_millis(self.rng.gen_range(1..15))),
            10..16 => BodyReading::Http10,
            _ => BodyReading::Complete,
        };
        all_arrived & self.request_archive(package, &archive, &[], reading).await
    }

    /// Requests a complete archive again, with every kind of condition and range.
    async fn reinstall(&mut self) {
        let archives = self.setup.ledger.archives();
        let Some((path, archive)) = archives.choose(&mut self.rng) else { return };
        let Some(zip) = self.setup.truth.zip(&archive.package, &archive.sha256).await else { return };
        let size = zip.bytes.len();
        let (first, last) = (self.rng.gen_range(0..size), self.rng.gen_range(0..size));
        let (first, last) = (first.min(last), first.max(last));
        let (header, reading) = match self.rng.gen_range(0..8) {
            0 => (("range", format!("bytes={first}-{last}")), BodyReading::Complete),
            1 => (("range", format!("bytes={first}-")), BodyReading::Complete),
            2 => (("range", format!("bytes=-{}", last + 1)), BodyReading::Complete),
            3 => (("if-none-match", format!("\"{}\"", zip.sha256)), BodyReading::Complete),
            4 => (("if-none-match", "\"another\"".to_owned()), BodyReading::DisconnectAfter(last)),
            5 => (("accept", "*/*".to_owned()), BodyReading::Http10),
            6 if size < 4 << 20 => (("accept", "*/*".to_owned()), BodyReading::Slowly(Duration::from_millis(5))),
            _ => (("accept", "*/*".to_owned()), BodyReading::Complete),
        };
        let (path, package) = (path.clone(), archive.package.clone());
        self.request_archive(&package, &path, &[header], reading).await;
    }

    /// The requests of an `init` through the network mirror: the index, a version, one archive.
    async fn install_through_mirror(&mut self) {
        let name = self.setup.random_provider(&mut self.rng);
        let path = format!("/mirror/{HOST}/acme/{name}/index.json");
        let Some(index) = self.request_json(RequestKind::MirrorIndex, &path).await else { return };
        let versions: Vec<String> =
            index["versions"].as_object().into_iter().flatten().map(|(version, _)| version.clone()).collect();
        self.check_versions_exist(&name, &versions).await;
        let Some(version) = versions.choose(&mut self.rng).cloned() else { return };
        let path = format!("/mirror/{HOST}/acme/{name}/{version}.json");
        let Some(answer) = self.request_json(RequestKind::MirrorVersion, &path).await else { return };
        let mut archives = Vec::new();
        for (platform, entry) in answer["archives"].as_object().into_iter().flatten() {
            let package = Package { name: name.clone(), version: version.clone(), platform: platform.clone() };
            let hashes: Vec<&str> =
                entry["hashes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            let url = entry["url"].as_str().unwrap_or_default().to_owned();
            let zh = hashes.iter().find_map(|hash| hash.strip_prefix("zh:")).unwrap_or("no zh");
            match self.setup.truth.zip(&package, zh).await {
                Some(zip) if self.hashes_match(&hashes, &zip) && url.contains(&zip.sha256[..16]) => {
                    archives.push((package, url));
                }
                _ => self.record_wrong_bytes(format!("{path}: {entry} for {platform}")),
            }
        }
        let Some((package, url)) = archives.choose(&mut self.rng).cloned() else { return };
        self.request_archive(&package, &url, &[], BodyReading::Complete).await;
    }

    fn hashes_match(&self, hashes: &[&str], zip: &Zip) -> bool {
        hashes.iter().all(|hash| *hash == format!("zh:{}", zip.sha256) || *hash == zip.h1)
    }

    /// Requests the version list of a random provider.
    async fn request_versions(&mut self) -> Option<(String, Vec<String>)> {
        let name = self.setup.random_provider(&mut self.rng);
        let path = format!("/registry/{HOST}/v1/providers/acme/{name}/versions");
        let list = self.request_json(RequestKind::Versions, &path).await?;
        let listed = list["versions"].as_array().into_iter().flatten();
        let versions: Vec<String> = listed.filter_map(|entry| Some(entry["version"].as_str()?.to_owned())).collect();
        self.check_versions_exist(&name, &versions).await;
        Some((name, versions))
    }

    async fn check_versions_exist(&self, name: &str, versions: &[String]) {
        for version in versions {
            if !self.setup.truth.was_published(name, version).await {
                self.record_wrong_bytes(format!("a list of {name} names {version}, which was never published"));
            }
        }
    }

    async fn request_discovery(&mut self) {
        let path = format!("/registry/{HOST}/.well-known/terraform.json");
        if let Some(document) = self.request_json(RequestKind::Discovery, &path).await
            && document["providers.v1"] != format!("/registry/{HOST}/v1/providers/")
        {
            self.record_wrong_bytes(format!("{path}: {document}"));
        }
    }

    /// Requests a package that does not exist: any answer but an error is wrong.
    async fn request_absent(&mut self) {
        let number: u32 = self.rng.gen_range(0..50);
        let path = match self.rng.gen_range(0..4) {
            0 => format!("/registry/{HOST}/v1/providers/acme/nothing-{number}/versions"),
            1 => format!(
                "/registry/{HOST}/v1/providers/acme/{}/99.0.{number}/download/linux/amd64",
                self.setup.random_provider(&mut self.rng)
            ),
            2 => format!(
                "/archive/{HOST}/providers/acme/{}/1.0.0/linux_amd64/{number:016x}/x.zip",
                self.setup.random_provider(&mut self.rng)
            ),
            _ => format!("/registry/elsewhere-{number}.example/v1/providers/acme/x/versions?q={number}"),
        };
        if let Some(answer) = self.send(SoakRequest::complete(RequestKind::Absent, &path)).await
            && answer.is_complete(200)
        {
            self.record_wrong_bytes(format!("{path} was answered with {} bytes", answer.body.len()));
        }
    }

    /// Requests an archive; returns true if it arrived complete.
    pub(crate) async fn request_archive(
        &mut self,
        package: &Package,
        path: &str,
        headers: &[(&'static str, String)],
        reading: BodyReading,
    ) -> bool {
        let Some(answer) = self.send(SoakRequest { kind: RequestKind::Archive, path, headers, reading }).await else {
            return false;
        };
        if answer.ended != BodyEnd::Complete {
            return false;
        }
        let digest = path.split('/').rev().nth(1).unwrap_or_default();
        let Some(zip) = self.setup.truth.zip(package, digest).await else {
            self.record_wrong_bytes(format!("{path} names no true archive, and was answered with {}", answer.status));
            return false;
        };
        match answer.status {
            200 if answer.body == zip.bytes => {
                let archive = Acknowledged { package: package.clone(), sha256: zip.sha256 };
                self.setup.ledger.acknowledge_archive(path, archive);
                return true;
            }
            206 => {
                let range = answer.header("content-range");
                let part = range.strip_prefix("bytes ").and_then(|range| range.split_once('/'));
                let part = part.filter(|(_, total)| *total == zip.bytes.len().to_string());
                let part = part.and_then(|(part, _)| part.split_once('-'));
                let part = part.and_then(|(first, last)| Some((first.parse().ok()?, last.parse::<usize>().ok()? + 1)));
                let truth = part.and_then(|(first, end): (usize, usize)| zip.bytes.get(first..end));
                if truth != Some(&answer.body[..]) {
                    self.record_wrong_bytes(format!("{path}: {} bytes as {range}", answer.body.len()));
                }
            }
            304 => {}
            200 => {
                let (length, digest) = (answer.body.len(), sha256_hex(&answer.body));
                self.record_wrong_bytes(format!("{path}: {length} bytes with SHA-256 {digest}"));
            }
            _ => {}
        }
        false
    }

    /// Requests a JSON document.
    async fn request_json(&mut self, kind: RequestKind, path: &str) -> Option<Value> {
        let answer = self.send(SoakRequest::complete(kind, path)).await.filter(|answer| answer.is_complete(200))?;
        match serde_json::from_slice::<Value>(&answer.body) {
            Ok(json) => {
                // After a 404 of each platform's document, the list of a version is empty, and nothing is stored.
                if kind != RequestKind::MirrorVersion
                    || json["archives"].as_object().is_some_and(|archives| !archives.is_empty())
                {
                    self.setup.ledger.acknowledge_document(path);
                }
                Some(json)
            }
            Err(e) => {
                self.record_wrong_bytes(format!("{path}: {e}"));
                None
            }
        }
    }

    fn record_wrong_bytes(&self, description: String) {
        self.setup
            .ledger
            .record_broken(BrokenPromise::WrongBytes, format!("{description} [{}]", self.setup.active_faults()));
    }

    /// Records the time to the first byte.
    pub(crate) fn record_latency(&self, kind: RequestKind, began: Instant) {
        self.setup.ledger.record_latency(kind, began.elapsed());
    }
}
