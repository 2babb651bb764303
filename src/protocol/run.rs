//! Tells one `larder run` from another: its URLs begin with `/run/ID`, and so do the links in its answers. By that, larder
//! counts what each run was sent, and a larder that only runs use answers nobody else.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use aws_lc_rs::error::Unspecified;
use aws_lc_rs::rand::{self, SystemRandom};
use aws_lc_rs::{constant_time, hmac};
use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::mirror::{FileAmount, PackageAmounts};

/// Bytes of the id of a run.
const ID_BYTES: usize = 16;
/// Random bytes of an id. The others prove that its run shares the larder.
const RANDOM_BYTES: usize = 8;

/// First segment of the paths of a run.
const SEGMENT: &str = "/run/";

/// The query parameter in which a run names its network: [`crate::place::Place::network_id`].
pub const RUN_NETWORK: &str = "network";

/// The id of one `larder run`: no run counts for another, and nobody else can guess it.
#[derive(Debug, Display, Clone, Copy, PartialEq, Eq, Hash)]
#[display("{}", hex::encode(_0))]
pub struct RunId([u8; ID_BYTES]);

impl RunId {
    /// Makes a new id, for a larder that does not ask for a proof.
    ///
    /// # Errors
    /// The system returned no random bytes.
    pub fn random() -> Result<Self, Unspecified> {
        Ok(Self(rand::generate(&SystemRandom::new())?.expose()))
    }

    /// Parses an id: 32 lower-case hex digits.
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0u8; ID_BYTES];
        hex::decode_to_slice(text, &mut bytes).ok()?;
        let id = Self(bytes);
        (id.to_string() == text).then_some(id)
    }

    /// Splits the path of a request into its run and the path below it. A path of no run stays whole.
    pub fn split(path: &str) -> (Option<Self>, &str) {
        let below = path.strip_prefix(SEGMENT).and_then(|rest| {
            let id = Self::parse(rest.get(..2 * ID_BYTES)?)?;
            let below = rest.get(2 * ID_BYTES..)?;
            below.starts_with('/').then_some((id, below))
        });
        below.map_or((None, path), |(id, below)| (Some(id), below))
    }

    /// The path of a request for a log: without the id, which opens the larder of its run.
    pub fn without_id(path: &str) -> &str {
        match path.strip_prefix(SEGMENT).and_then(|rest| Some((Self::parse(rest.get(..2 * ID_BYTES)?)?, rest))) {
            Some((_, rest)) => rest.get(2 * ID_BYTES..).filter(|below| !below.is_empty()).unwrap_or("/"),
            None => path,
        }
    }

    /// The beginning of every path of the run, without a final slash.
    pub fn base(self) -> String {
        format!("{SEGMENT}{self}")
    }
}

/// The ids of the runs that share one larder. Each ends in a proof that its run has the key, which every run hands to those
/// that share its larder, and keeps when it continues it. So a larder recognises the ids of all of them, also after one was
/// killed, and the ids end with the last run.
#[derive(Clone)]
pub struct RunIds(Arc<RunIdKey>);

struct RunIdKey {
    bytes: [u8; RunIds::KEY_BYTES],
    key: hmac::Key,
}

impl RunIds {
    /// The length of the key, in bytes.
    pub const KEY_BYTES: usize = 32;

    /// The ids with this key.
    pub fn with_key(bytes: [u8; Self::KEY_BYTES]) -> Self {
        Self(Arc::new(RunIdKey { key: hmac::Key::new(hmac::HMAC_SHA256, &bytes), bytes }))
    }

    /// The ids with a new key.
    ///
    /// # Errors
    /// The system returned no random bytes.
    pub fn new() -> Result<Self, Unspecified> {
        Ok(Self::with_key(rand::generate(&SystemRandom::new())?.expose()))
    }

    /// The key, for a run that shares the larder.
    pub fn key(&self) -> &[u8; Self::KEY_BYTES] {
        &self.0.bytes
    }

    /// Makes a new id.
    ///
    /// # Errors
    /// The system returned no random bytes.
    pub fn issue(&self) -> Result<RunId, Unspecified> {
        let RunId(mut id) = RunId::random()?;
        let (random, proof) = id.split_at_mut(RANDOM_BYTES);
        proof.copy_from_slice(&hmac::sign(&self.0.key, random).as_ref()[..ID_BYTES - RANDOM_BYTES]);
        Ok(RunId(id))
    }

    /// True for the id of a run that shares the larder.
    pub fn recognise(&self, RunId(id): RunId) -> bool {
        let (random, proof) = id.split_at(RANDOM_BYTES);
        let expected = hmac::sign(&self.0.key, random);
        constant_time::verify_slices_are_equal(proof, &expected.as_ref()[..ID_BYTES - RANDOM_BYTES]).is_ok()
    }
}

impl fmt::Debug for RunIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RunIds")
    }
}

/// Files sent to one run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RunReport {
    /// The files, by their path below the run.
    pub files: BTreeMap<String, SentFile>,
    /// Requests without an answer, or with one that broke off.
    pub failed: u64,
    /// The reasons, by path below the run; at most [`MAX_RUN_FAILURES`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failures: BTreeMap<String, String>,
}

/// The most failed requests of a run whose reasons are told.
pub const MAX_RUN_FAILURES: usize = 32;

/// A file that a run was sent, in one answer or more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SentFile {
    /// The registry.
    pub registry: String,
    /// The kind of file.
    #[serde(flatten)]
    pub kind: FileKind,
    /// The source of the first answer: a file that was fetched for this run is stored when the run asks again.
    pub source: FileSource,
    /// True if a document was served stale.
    pub stale: bool,
    /// Body bytes sent.
    pub bytes: u64,
}

/// Kinds of files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "kind", content = "module", rename_all = "snake_case")]
pub enum FileKind {
    /// An archive of a provider.
    Provider,
    /// An archive of this module version.
    Module(String),
    /// The location of this module version.
    ModuleLocation(String),
    /// Any other document, and checksums and signatures.
    Document,
}

/// Sources of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FileSource {
    /// The store, without a question to upstream.
    Store,
    /// Confirmed by upstream for this run.
    Confirmed,
    /// Fetched for this run.
    Fetched,
}

impl RunReport {
    /// Adds a file, or a further answer with it.
    pub fn add(&mut self, path: String, sent: SentFile) {
        let entry = self.files.entry(path).and_modify(|file| {
            file.stale |= sent.stale;
            file.bytes += sent.bytes;
        });
        entry.or_insert(sent);
    }

    /// Adds the reason of a failed request: the subject, the cause and the remedy in one sentence.
    pub fn add_failure(&mut self, path: String, reason: String) {
        if self.failures.len() < MAX_RUN_FAILURES || self.failures.contains_key(&path) {
            self.failures.insert(path, reason);
        }
    }

    /// Adds what a later larder sent the same run.
    pub fn and(mut self, later: Self) -> Self {
        later.files.into_iter().for_each(|(path, sent)| self.add(path, sent));
        later.failures.into_iter().for_each(|(path, reason)| self.add_failure(path, reason));
        self.failed += later.failed;
        self
    }

    /// Counts the files by their source.
    pub fn summary(&self) -> RunSummary {
        // A URL that was answered at last is no failure of the run.
        let lasting = self.failures.iter().filter(|(path, _)| !self.files.contains_key(*path));
        let failures: BTreeSet<String> = lasting.map(|(_, reason)| reason.clone()).collect();
        let failures = failures.into_iter().collect();
        let mut summary = RunSummary { failed: self.failed, failures, ..RunSummary::default() };
        for file in self.files.values() {
            let sources = match file.kind {
                FileKind::Provider | FileKind::Module(_) => &mut summary.packages,
                FileKind::ModuleLocation(_) | FileKind::Document => &mut summary.documents,
            };
            let amount = match self.is_from_upstream(file) {
                true => sources.upstream.entry(file.registry.clone()).or_default(),
                false => &mut sources.store,
            };
            amount.count += 1;
            amount.bytes += file.bytes;
            if file.stale {
                summary.stale.insert(file.registry.clone());
            }
        }
        summary
    }

    /// A module is fetched when its location is asked for, so its archive comes from the store a moment later.
    fn is_from_upstream(&self, file: &SentFile) -> bool {
        let FileKind::Module(module) = &file.kind else { return file.source != FileSource::Store };
        let location = FileKind::ModuleLocation(module.clone());
        let is_new = |other: &SentFile| other.kind == location && other.source == FileSource::Fetched;
        file.source != FileSource::Store || self.files.values().any(is_new)
    }
}

/// Files sent to one run, counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RunSummary {
    /// Archives of providers and modules.
    pub packages: RunSources,
    /// Everything else.
    pub documents: RunSources,
    /// Registries whose documents were served stale.
    pub stale: BTreeSet<String>,
    /// Requests without an answer, or with one that broke off.
    pub failed: u64,
    /// Why requests failed that were not answered later, each reason once.
    pub failures: Vec<String>,
}

/// Files by their source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RunSources {
    /// From the store, without a question to upstream.
    pub store: FileAmount,
    /// Fetched or confirmed for this run, by registry.
    pub upstream: BTreeMap<String, FileAmount>,
}

impl RunSources {
    /// The amounts, with the sum of all upstreams.
    pub fn amounts(&self) -> PackageAmounts {
        let upstream = self.upstream.values().fold(FileAmount::default(), |sum, amount| sum.plus(*amount));
        PackageAmounts { store: self.store, upstream }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_id_makes_a_path_one_of_a_run() {
        let id = RunId::random().unwrap();
        assert_eq!(RunId::split(&format!("{}/archive/x", id.base())), (Some(id), "/archive/x"));
        let hex = id.to_string();
        for (path, logged) in
            [("/run/ID/archive/x", "/archive/x"), ("/run/ID", "/"), ("/run/IDx", "x"), ("/run/x", "/run/x")]
        {
            assert_eq!(RunId::without_id(&path.replace("ID", &hex)), logged);
        }
        for path in [
            "/archive/x".to_owned(),
            "/run/".to_owned(),
            format!("/run/{hex}"),
            format!("/run/{hex}0/x"),
            format!("/run/{}/x", &hex[1..]),
            format!("/run/{}é/x", &hex[1..]),
            format!("/run/{}/x", "AB".repeat(16)),
        ] {
            assert_eq!(RunId::split(&path), (None, path.as_str()));
        }
    }

    #[test]
    fn only_the_ids_of_runs_that_share_a_larder_are_recognised() {
        let [own, other] = [RunIds::new().unwrap(), RunIds::new().unwrap()];
        let id = own.issue().unwrap();
        assert!(own.recognise(id) && RunIds::with_key(*own.key()).recognise(id));
        assert!(!other.recognise(id) && !own.recognise(RunId::random().unwrap()));
        for bit in 0..8 * ID_BYTES {
            let RunId(mut changed) = id;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!own.recognise(RunId(changed)), "{bit}");
        }
    }

    fn file(kind: FileKind, source: FileSource, bytes: u64) -> SentFile {
        SentFile { registry: "a.example".to_owned(), kind, source, stale: false, bytes }
    }

    #[test]
    fn the_first_answer_with_a_file_decides_its_source() {
        let mut report = RunReport::default();
        for (source, bytes) in [(FileSource::Fetched, 0), (FileSource::Store, 7)] {
            report.add("/a".to_owned(), file(FileKind::Provider, source, bytes));
        }
        let amount = FileAmount { count: 1, bytes: 7 };
        let packages = RunSources { upstream: [("a.example".to_owned(), amount)].into(), ..RunSources::default() };
        assert_eq!(report.summary(), RunSummary { packages, ..RunSummary::default() });
    }

    #[test]
    fn a_module_comes_from_where_its_location_came_from() {
        for (location, expected) in [(FileSource::Fetched, 0), (FileSource::Confirmed, 1), (FileSource::Store, 1)] {
            let mut report = RunReport::default();
            report.add("/l".to_owned(), file(FileKind::ModuleLocation("m 1.0.0".to_owned()), location, 0));
            report.add("/o".to_owned(), file(FileKind::ModuleLocation("o 1.0.0".to_owned()), FileSource::Fetched, 0));
            report.add("/m".to_owned(), file(FileKind::Module("m 1.0.0".to_owned()), FileSource::Store, 9));
            assert_eq!(report.summary().packages.store.count, expected, "{location:?}");
        }
    }
}
