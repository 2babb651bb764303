//! The answers that clients got, and every broken promise.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::truth::Package;

/// The kind of a request, by what it requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum RequestKind {
    Discovery,
    Versions,
    Document,
    Sums,
    Signature,
    Archive,
    MirrorIndex,
    MirrorVersion,
    ModuleLocation,
    ModuleArchive,
    Absent,
}

impl RequestKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Discovery => "discovery",
            Self::Versions => "version list",
            Self::Document => "download document",
            Self::Sums => "SHA256SUMS",
            Self::Signature => "signature",
            Self::Archive => "archive",
            Self::MirrorIndex => "index.json",
            Self::MirrorVersion => "VERSION.json",
            Self::ModuleLocation => "module location",
            Self::ModuleArchive => "module archive",
            Self::Absent => "absent path",
        }
    }

    /// True for a kind that is streamed.
    pub(crate) fn is_archive(self) -> bool {
        matches!(self, Self::Archive | Self::ModuleArchive)
    }
}

/// A promise that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BrokenPromise {
    WrongBytes,
    ArchiveLost,
    FetchedAgain,
    StoredRefused,
    StoredTruncated,
    NotRecovered,
    UnexpectedStatus,
    NoAnswer,
    ProcessEnded,
    Panicked,
    Quarantined,
    Leaked,
    WrongAlarm,
    MemoryLimitExceeded,
}

impl BrokenPromise {
    pub(crate) const ALL: [Self; 14] = [
        Self::WrongBytes,
        Self::ArchiveLost,
        Self::FetchedAgain,
        Self::StoredRefused,
        Self::StoredTruncated,
        Self::NotRecovered,
        Self::UnexpectedStatus,
        Self::NoAnswer,
        Self::ProcessEnded,
        Self::Panicked,
        Self::Quarantined,
        Self::Leaked,
        Self::WrongAlarm,
        Self::MemoryLimitExceeded,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::WrongBytes => "wrong bytes served as complete",
            Self::ArchiveLost => "acknowledged archives lost",
            Self::FetchedAgain => "acknowledged archives fetched again",
            Self::StoredRefused => "refusals of stored content",
            Self::StoredTruncated => "stored archives truncated",
            Self::NotRecovered => "failures without any fault",
            Self::UnexpectedStatus => "unexpected statuses",
            Self::NoAnswer => "requests without an answer in time",
            Self::ProcessEnded => "larder ended, or would not start",
            Self::Panicked => "panics in the log",
            Self::Quarantined => "files quarantined as damaged",
            Self::Leaked => "descriptors or staged records leaked",
            Self::WrongAlarm => "attacks without their alarm, and alarms without an attack",
            Self::MemoryLimitExceeded => "memory samples above the limit",
        }
    }
}

/// An archive that a client received completely.
#[derive(Clone, Debug)]
pub(crate) struct Acknowledged {
    pub(crate) package: Package,
    pub(crate) sha256: String,
}

/// Examples shown of each broken promise.
const EXAMPLES: usize = 8;

#[derive(Default)]
struct Inner {
    answers: BTreeMap<(RequestKind, String), u64>,
    broken: BTreeMap<BrokenPromise, (u64, Vec<String>)>,
    archives: HashMap<String, Acknowledged>,
    documents: HashSet<String>,
    bytes: u64,
    slowest: BTreeMap<RequestKind, Duration>,
}

/// Results of all clients.
pub(crate) struct Ledger {
    began: Instant,
    inner: Mutex<Inner>,
}

impl Ledger {
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), inner: Mutex::default() }
    }

    /// Counts an answer by its outcome: a status, or another end.
    pub(crate) fn count(&self, kind: RequestKind, outcome: &str) {
        *self.inner.lock().answers.entry((kind, outcome.to_owned())).or_default() += 1;
    }

    /// Counts body bytes.
    pub(crate) fn count_bytes(&self, bytes: usize) {
        self.inner.lock().bytes += bytes as u64;
    }

    /// Records the time until an answer began.
    pub(crate) fn record_latency(&self, kind: RequestKind, time: Duration) {
        let mut inner = self.inner.lock();
        let slowest = inner.slowest.entry(kind).or_default();
        *slowest = time.max(*slowest);
    }

    /// Records a broken promise.
    pub(crate) fn record_broken(&self, promise: BrokenPromise, details: String) {
        let seconds = self.began.elapsed().as_secs_f64();
        let mut inner = self.inner.lock();
        let (count, examples) = inner.broken.entry(promise).or_default();
        *count += 1;
        if examples.len() < EXAMPLES {
            examples.push(format!("{seconds:.1} s: {details}"));
        }
    }

    /// Records that a client received this archive completely: from now on larder must not lose it.
    pub(crate) fn acknowledge_archive(&self, path: &str, archive: Acknowledged) {
        self.inner.lock().archives.insert(path.to_owned(), archive);
    }

    /// Records that a client received this document: from now on larder must have it cached.
    pub(crate) fn acknowledge_document(&self, path: &str) {
        let mut inner = self.inner.lock();
        if !inner.documents.contains(path) {
            inner.documents.insert(path.to_owned());
        }
    }

    /// True if a client has received the content of this path.
    pub(crate) fn is_acknowledged(&self, path: &str) -> bool {
        let inner = self.inner.lock();
        inner.archives.contains_key(path) || inner.documents.contains(path)
    }

    pub(crate) fn archives(&self) -> Vec<(String, Acknowledged)> {
        self.inner.lock().archives.iter().map(|(path, archive)| (path.clone(), archive.clone())).collect()
    }

    pub(crate) fn documents(&self) -> Vec<String> {
        self.inner.lock().documents.iter().cloned().collect()
    }

    pub(crate) fn answers(&self) -> BTreeMap<(RequestKind, String), u64> {
        self.inner.lock().answers.clone()
    }

    pub(crate) fn broken_promises(&self) -> BTreeMap<BrokenPromise, (u64, Vec<String>)> {
        self.inner.lock().broken.clone()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.inner.lock().bytes
    }

    pub(crate) fn slowest(&self, is_included: impl Fn(RequestKind) -> bool) -> Duration {
        let inner = self.inner.lock();
        inner.slowest.iter().filter(|(kind, _)| is_included(**kind)).map(|(_, time)| *time).max().unwrap_or_default()
    }
}
