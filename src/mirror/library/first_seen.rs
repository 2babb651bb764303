//! Trust on first use for providers: the rules that compare a new proof set with the verified history of its version
//! and with the provider's signing-key log (promise 14). Pure: `history` reads and writes the records.

use std::collections::{BTreeMap, BTreeSet};

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::address::{Package, Platform};
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::mirror::library::evidence::EvidenceFact;
use crate::mirror::library::{PackageHashState, is_default};
use crate::upstream::error::sanitized;
use crate::verify::{Checksums, ProofBasis};

/// Maximum number of records per version. Beyond it, only `accept` adds one.
const MAX_RECORDS_PER_VERSION: usize = 64;
/// Maximum number of SHA256SUMS lines over all records of a version. The first record may exceed it; otherwise only
/// `accept` adds more.
const MAX_RECORDED_FILES: usize = 20_000;
/// Maximum total length of the file names over all records of a version, in bytes.
const MAX_RECORDED_NAME_BYTES: usize = 1 << 20;
/// Maximum number of keys per provider. Beyond it, only `accept` adds one.
const MAX_KEYS_PER_PROVIDER: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signer {
    /// The fingerprint of the key that signed SHA256SUMS.
    Key(String),
    /// The registry lists no key for the provider.
    Unsigned,
    /// No signer that counts: `verification` is `checksum`, the set was imported, or nothing vouches for its key. It
    /// adds no key to the log and vouches for no change.
    NotChecked,
}

impl Signer {
    pub fn of(how: &ProofBasis) -> Self {
        match how {
            ProofBasis::Signature { fingerprint } => Self::Key(fingerprint.clone()),
            ProofBasis::NoKeys => Self::Unsigned,
            ProofBasis::Checksum | ProofBasis::Imported | ProofBasis::Tree(_) => Self::NotChecked,
        }
    }

    /// The fingerprint, if a key signed.
    pub fn key(&self) -> Option<&str> {
        if let Self::Key(key) = self { Some(key) } else { None }
    }
}

/// The facts that a verified proof set states about a version.
#[derive(Debug)]
pub struct Observation<'a> {
    /// The package of the download document.
    pub package: &'a Package,
    /// The digest that the document names for the package's platform, whatever the file name.
    pub archive: Digest,
    pub sums: &'a Checksums,
    pub signer: Signer,
    pub observed: Timestamp,
}

/// The facts that one proof set added to the history of its version. Records are appended and never changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstSeen {
    /// 1 for the set that was verified first. A version whose first record was lost starts with a higher number.
    number: u32,
    at: Timestamp,
    /// The fingerprint of the key that signed; absent for unsigned sets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// True if an operator accepted the set.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    accepted: bool,
    /// Lines of SHA256SUMS that no earlier record contains.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    files: BTreeMap<String, Digests>,
    /// The digest that a download document names for a platform, where no file name binds the platform to it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    platforms: BTreeMap<Platform, Digest>,
}

impl FirstSeen {
    fn files(&self) -> impl Iterator<Item = (&str, Digest)> {
        self.files.iter().flat_map(|(name, digests)| digests.iter().map(|digest| (name.as_str(), *digest)))
    }
}

/// The digests of one file. More than one only in a record converted from the older layout, one record per provider.
type Digests = Vec<Digest>;

/// The size and the hashes of an evicted archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppedArchive {
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its `h1:` hashes, or why it has none.
    pub hashes: PackageHashState,
}

/// The verified history of one version.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct VersionHistory {
    /// The length of the provider's signing-key log when the version was first verified.
    known_keys: usize,
    records: Vec<FirstSeen>,
    /// The evicted archives, so that none is fetched again for its hashes. Only digests of the records are here.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    dropped: BTreeMap<Digest, DroppedArchive>,
}

/// The keys that ever signed for a provider, in the order of their first signature.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SigningKeyLog {
    entries: Vec<KeyEntry>,
    /// The number of the first entry. Not less than the `known_keys` of any version if an earlier log was lost.
    #[serde(default, skip_serializing_if = "is_default")]
    begins: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct KeyEntry {
    /// The position in the log. Strictly increasing, without gaps unless the log was lost once.
    number: usize,
    /// The fingerprint; absent for unsigned sets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    at: Timestamp,
    /// True if an operator accepted the key for the provider.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    accepted: bool,
}

/// A change that a proof set makes. Displayed to follow "its proof set …"; text from upstream is shortened and stripped of
/// control characters.
#[derive(Debug, Clone, PartialEq, Eq, Display)]
pub enum HistoryChange {
    /// A platform or a file has another digest than in every earlier set.
    #[display(
        "gives {} the SHA-256 {now}; it was {} when this version was first verified",
        sanitized(subject),
        before.first().map(ToString::to_string).unwrap_or_default()
    )]
    OtherBytes {
        /// The file name, or the platform.
        subject: String,
        before: Vec<Digest>,
        now: Digest,
    },
    /// SHA256SUMS contains none of the lines recorded before.
    #[display("lists none of the files that it listed when this version was first verified")]
    DropsEveryLine,
    /// A key that may not vouch for the version adds a file or a platform to it.
    #[display("adds {} ({now}) to a version that was verified before", sanitized(file))]
    Added {
        /// The file name, or the platform.
        file: String,
        now: Digest,
    },
}

impl HistoryChange {
    /// True if the archive with this digest is one that was not there before.
    fn is_of_archive(&self, digest: Digest) -> bool {
        matches!(self, Self::OtherBytes { now, .. } if *now == digest)
    }

    /// The change with the first digits of each digest, for a reason phrase.
    fn in_brief(&self) -> String {
        match self {
            Self::OtherBytes { subject, before, now } => {
                let before = before.first().map(Digest::in_brief).unwrap_or_default();
                format!("{} was {before} and is {} now", sanitized(subject), now.in_brief())
            }
            Self::DropsEveryLine => format!("its proof set {self}"),
            Self::Added { file, now } => format!("its proof set adds {} ({})", sanitized(file), now.in_brief()),
        }
    }
}

/// Reasons to refuse a proof set until an operator accepts it.
#[derive(Debug, Clone, PartialEq, Eq, Display)]
pub enum HistoryRefusal {
    /// It changes the version, and its signer may not vouch for that.
    #[display(
        "it was published again: {}, and no key that may vouch for that signed it",
        of_archive.as_ref().unwrap_or(first).in_brief()
    )]
    ChangedByUntrustedKey {
        /// The first change, which the sets of all platforms have in common where they share a SHA256SUMS.
        first: HistoryChange,
        /// The change of the archive that was asked for, if it is another one.
        of_archive: Option<HistoryChange>,
    },
    /// The provider was signed before, and the registry lists no key for it now.
    #[display("this provider was signed before, and the registry lists no key for it now")]
    SignatureLost,
    /// The record of the version or the signing-key log is damaged and cannot be rebuilt from stored sets.
    #[display("its first-seen record is damaged, so a change by upstream cannot be detected")]
    RecordLost,
    /// The limit of records per version or of keys per provider is reached.
    #[display(
        "a limit is reached: of digests recorded for this version, or of versions or keys recorded for its provider"
    )]
    Full,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HistoryVerdict {
    Consistent,
    /// It changes the version, and its key may vouch for that.
    Republished(HistoryChange),
    Refused(HistoryRefusal),
}

/// The verdict on a proof set, and the keys that it is a stranger to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    pub verdict: HistoryVerdict,
    /// The keys recorded before, if the set's key is not among them.
    pub(super) known_keys_if_signer_is_new: Option<Vec<String>>,
    /// True if an `accept` of the provider would make this signer, or its absence, vouch for it anew.
    pub(super) signer_is_untrusted: bool,
}

impl SigningKeyLog {
    /// The fingerprints, in log order.
    pub fn keys(&self) -> Vec<String> {
        self.entries.iter().filter_map(|entry| entry.key.clone()).collect()
    }

    /// Builds a log from keys with the times of their signatures, oldest first. `begins` is the number of the first entry.
    pub(super) fn of_keys(begins: usize, mut keys: Vec<(Timestamp, String)>, accepted: bool) -> Self {
        keys.sort();
        let mut log = Self { begins, ..Self::default() };
        for (time, key) in keys {
            log.append(&Signer::Key(key), time, accepted);
        }
        log
    }

    pub fn contains(&self, key: &str) -> bool {
        self.entries.iter().any(|entry| entry.key.as_deref() == Some(key))
    }

    /// True for a key that may vouch for every version: the provider's first key, or one accepted for the provider.
    pub fn trusts(&self, key: Option<&str>) -> bool {
        let is_trusted = |entry: &KeyEntry| entry.number == 0 || entry.accepted || self.is_first_key(entry);
        self.entries.iter().any(|entry| entry.key.as_deref() == key && is_trusted(entry))
    }

    /// True for the provider's very first key: it was admitted beside no other. A log that was lost once has none.
    fn is_first_key(&self, entry: &KeyEntry) -> bool {
        let first = self.entries.iter().find(|entry| entry.key.is_some());
        self.begins == 0 && first.is_some_and(|first| first.number == entry.number)
    }

    /// True if the provider has keys, and this signer, or its absence, may not vouch for every version.
    fn distrusts(&self, signer: &Signer) -> bool {
        *signer != Signer::NotChecked && self.has_keys() && !self.trusts(signer.key())
    }

    fn has_keys(&self) -> bool {
        self.entries.iter().any(|entry| entry.key.is_some())
    }

    /// True if this is the provider's first key, and it was in the log before the version was first verified, or if this key
    /// (or its absence) was accepted for the provider. A key that was admitted beside others waits for that: one new version
    /// and an unread alarm must not make it vouch for every version verified later.
    fn may_vouch(&self, key: Option<&str>, known_keys: usize) -> bool {
        let may_vouch = |entry: &KeyEntry| entry.accepted || (self.is_first_key(entry) && entry.number < known_keys);
        self.entries.iter().any(|entry| entry.key.as_deref() == key && may_vouch(entry))
    }

    /// The number of the next entry.
    fn next_number(&self) -> usize {
        self.entries.last().map_or(self.begins, |last| last.number + 1)
    }

    /// Appends the signer unless it is listed. Returns true if the log changed.
    fn append(&mut self, signer: &Signer, time: Timestamp, accepted: bool) -> bool {
        if *signer == Signer::NotChecked {
            return false;
        }
        let key = signer.key();
        let number = self.next_number();
        match self.entries.iter_mut().find(|entry| entry.key.as_deref() == key) {
            Some(entry) if accepted && !entry.accepted => {
                entry.accepted = true;
                true
            }
            Some(_) => false,
            None => {
                self.entries.push(KeyEntry { number, key: key.map(str::to_owned), at: time, accepted });
                true
            }
        }
    }

    /// Rebuilds a missing or lost log from the records of the provider's versions. It begins at the greatest
    /// `known_keys` of all versions, so each key vouches only for the versions that it signed.
    pub(super) fn of_versions(versions: &[VersionHistory]) -> Self {
        let records = versions.iter().flat_map(|version| &version.records);
        let keys = records.filter_map(|record| Some((record.at, record.key.clone()?)));
        let begins = versions.iter().map(|version| version.known_keys).max().unwrap_or_default();
        Self::of_keys(begins, keys.collect(), false)
    }
}

impl VersionHistory {
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Every digest that a verified set ever named for the archive of a platform.
    pub fn digests_of(&self, platform: &Platform) -> Vec<Digest> {
        let mut digests = Vec::new();
        for (of, digest) in self.platforms() {
            if of == *platform && !digests.contains(&digest) {
                digests.push(digest);
            }
        }
        digests
    }

    /// Returns the size and the hashes of an evicted archive.
    pub(super) fn dropped(&self, digest: &Digest) -> Option<&DroppedArchive> {
        self.dropped.get(digest)
    }

    /// Keeps what is known of an archive. Returns true if it is new, and of an archive that a verified set named.
    pub(super) fn keep_dropped(&mut self, digest: Digest, archive: DroppedArchive) -> bool {
        let is_named = self.files().any(|(_, named)| named == digest) || self.platforms().any(|(_, of)| of == digest);
        is_named && self.dropped.insert(digest, archive.clone()).as_ref() != Some(&archive)
    }

    /// The history as a larder takes it over that knows other keys of the provider. Nothing vouches for a change of it: as for a version
    /// whose first record was lost.
    pub(super) fn vouched_for_by_nobody(mut self) -> Self {
        self.known_keys = 0;
        for record in &mut self.records {
            record.number += 1;
            record.accepted = false;
        }
        self
    }

    /// The first file or platform for which this history has other digests than `ours`, in words.
    pub(super) fn contradiction_of(&self, ours: &Self) -> Option<String> {
        let [theirs, ours] = [self, ours].map(|history| {
            let mut digests: BTreeMap<String, BTreeSet<Digest>> = BTreeMap::new();
            let platforms = history.platforms().map(|(platform, digest)| (platform.to_string(), digest));
            let files = history.files().map(|(name, digest)| (name.to_owned(), digest));
            for (subject, digest) in files.chain(platforms) {
                digests.entry(subject).or_default().insert(digest);
            }
            digests
        });
        theirs.iter().find_map(|(subject, theirs)| {
            let ours = ours.get(subject).filter(|ours| ours.is_disjoint(theirs))?;
            let (theirs, ours) = (theirs.first()?, ours.first()?);
            Some(format!("{} with the SHA-256 {theirs}, and the fleet with {ours}", sanitized(subject)))
        })
    }

    fn files(&self) -> impl Iterator<Item = (&str, Digest)> {
        self.records.iter().flat_map(FirstSeen::files)
    }

    /// The files whose names bind a platform to their digests: those of the first sums, and those that a key signed or a person
    /// accepted. Where nobody vouches for a later line, it says nothing of a platform that no client has asked for.
    fn binding_files(&self) -> impl Iterator<Item = (&str, Digest)> {
        let binds = |(number, record): &(usize, &FirstSeen)| *number == 0 || record.key.is_some() || record.accepted;
        self.records.iter().enumerate().filter(binds).flat_map(|(_, record)| record.files())
    }

    /// The platforms with their digests: as names of files bind them, then as download documents named them.
    fn platforms(&self) -> impl Iterator<Item = (Platform, Digest)> {
        let bound = self.binding_files().filter_map(|(name, digest)| Some((platform_in_name(name)?, digest)));
        let named = self.records.iter().flat_map(|record| &record.platforms);
        bound.chain(named.map(|(platform, digest)| (platform.clone(), *digest)))
    }

    /// True for a key that may vouch for other bytes (promise 14): it signed the version when that was first verified, is the
    /// provider's first key, or was accepted. An unsigned set vouches for nothing.
    fn may_be_changed_by(&self, key: Option<&str>, log: &SigningKeyLog) -> bool {
        let Some(key) = key else { return false };
        let signed_it =
            |record: &FirstSeen| record.key.as_deref() == Some(key) && (record.number == 1 || record.accepted);
        log.may_vouch(Some(key), self.known_keys) || self.records.iter().any(signed_it)
    }

    /// The changes that a set makes, the most serious first. `is_vouched_for`: the signer may add files to the version.
    fn changes(&self, seen: &Observation<'_>, is_vouched_for: bool) -> Vec<HistoryChange> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut by_name: BTreeMap<&str, Vec<Digest>> = BTreeMap::new();
        let mut by_platform: BTreeMap<Platform, Vec<Digest>> = BTreeMap::new();
        for (name, digest) in self.files() {
            by_name.entry(name).or_default().push(digest);
        }
        for (platform, digest) in self.platforms() {
            by_platform.entry(platform).or_default().push(digest);
        }
        let other = |subject: String, before: Option<&Vec<Digest>>, now: Digest| {
            let before = before.filter(|before| !before.contains(&now))?.clone();
            Some(HistoryChange::OtherBytes { subject, before, now })
        };
        let of_line = |(name, now): (&str, Digest)| {
            let before = by_name.get(name).or_else(|| by_platform.get(&platform_in_name(name)?));
            other(name.to_owned(), before, now)
        };
        let mut changes: Vec<HistoryChange> = seen.sums.iter().filter_map(of_line).collect();
        if !changes.iter().any(|change| change.is_of_archive(seen.archive)) {
            let platform = &seen.package.platform;
            changes.extend(other(platform.to_string(), by_platform.get(platform), seen.archive));
        }
        let known: BTreeSet<Digest> = by_name.values().flatten().copied().collect();
        let keeps_one = seen.sums.iter().any(|(_, digest)| known.contains(&digest));
        if changes.is_empty() && !known.is_empty() && !keeps_one && !self.lists_only_other_platforms(seen) {
            changes.push(HistoryChange::DropsEveryLine);
        }
        let platform = &seen.package.platform;
        if changes.is_empty() && !is_vouched_for && self.is_unsigned(seen) && !by_platform.contains_key(platform) {
            changes.extend(self.not_the_first_file_of(platform, seen.archive));
        }
        if changes.is_empty() && !is_vouched_for && !self.is_unsigned(seen) {
            let is_known =
                |(name, digest): &(&str, Digest)| by_name.get(name).is_some_and(|known| known.contains(digest));
            let added = seen.sums.iter().find(|line| !is_known(line)).map(|(file, now)| (file.to_owned(), now));
            let new_platform = || (!by_platform.contains_key(platform)).then(|| (platform.to_string(), seen.archive));
            changes.extend(added.or_else(new_platform).map(|(file, now)| HistoryChange::Added { file, now }));
        }
        changes
    }

    /// The change that an archive makes for a platform that no set named before: it is none of the files that the first sums
    /// meant for the platform. Those are the files whose names state it, and those whose names state no platform. Where none
    /// is left for it, because the first set was of the only one, the platform is a new one.
    fn not_the_first_file_of(&self, platform: &Platform, now: Digest) -> Option<HistoryChange> {
        let first = self.records.first()?;
        let has_zip = first.files.keys().any(|name| is_zip(name));
        let (mut stated, mut unstated) = (Vec::new(), Vec::new());
        for (name, digests) in first.files.iter().filter(|(name, _)| is_zip(name) || !has_zip && may_be_archive(name)) {
            match stated_platform(name) {
                Some(of) if of == *platform => stated.extend(digests),
                Some(_) => {}
                None => unstated.extend(digests),
            }
        }
        if stated.contains(&now) || unstated.contains(&now) {
            return None;
        }
        if !stated.is_empty() {
            return Some(HistoryChange::OtherBytes { subject: platform.to_string(), before: stated, now });
        }
        let is_of_first_set = |digest: &Digest| first.platforms.values().any(|of| of == digest);
        let is_left = !unstated.iter().all(is_of_first_set);
        is_left.then(|| HistoryChange::Added { file: platform.to_string(), now })
    }

    /// True if neither the version nor the set was ever signed. Then no signer is new.
    fn is_unsigned(&self, seen: &Observation<'_>) -> bool {
        seen.signer.key().is_none() && self.records.iter().all(|record| record.key.is_none())
    }

    /// True for an unsigned set that lists only other platforms: some registries publish one SHA256SUMS per platform.
    fn lists_only_other_platforms(&self, seen: &Observation<'_>) -> bool {
        let known: BTreeSet<Platform> = self.platforms().map(|(platform, _)| platform).collect();
        let mut named = seen.sums.iter().map(|(name, digest)| match platform_in_name(name) {
            None if digest == seen.archive => Some(seen.package.platform.clone()),
            platform => platform,
        });
        self.is_unsigned(seen)
            && !known.is_empty()
            && named.all(|platform| platform.is_some_and(|platform| !known.contains(&platform)))
    }

    /// Appends the facts that no record contains yet. Returns true if anything was appended.
    fn append(&mut self, seen: &Observation<'_>, known_keys: usize, accepted: bool) -> bool {
        let (platform, key) = (&seen.package.platform, seen.signer.key());
        let mut files: BTreeMap<String, Digests> = BTreeMap::new();
        let known: BTreeSet<(&str, Digest)> = self.files().collect();
        for (name, digest) in seen.sums.iter().filter(|line| !known.contains(line)) {
            files.entry(name.to_owned()).or_default().push(digest);
        }
        let names_bind = self.records.is_empty() || key.is_some() || accepted;
        let is_told = self.digests_of(platform).contains(&seen.archive) || (names_bind && seen.sums_state_platform());
        let platforms = if is_told { BTreeMap::new() } else { [(platform.clone(), seen.archive)].into() };
        let is_signed_anew =
            !self.records.iter().any(|record| record.key.as_deref() == key && (record.accepted || !accepted));
        if files.is_empty() && platforms.is_empty() && !is_signed_anew {
            return false;
        }
        if self.records.is_empty() {
            self.known_keys = known_keys;
        }
        let number = self.records.last().map_or(1, |last| last.number + 1);
        let key = key.map(str::to_owned);
        self.records.push(FirstSeen { number, at: seen.observed, key, accepted, files, platforms });
        true
    }

    fn is_full(&self) -> bool {
        let (files, bytes) = self.files().fold((0, 0), |(files, bytes), (name, _)| (files + 1, bytes + name.len()));
        let is_large = files > MAX_RECORDED_FILES || bytes > MAX_RECORDED_NAME_BYTES;
        self.records.len() > MAX_RECORDS_PER_VERSION || (self.records.len() > 1 && is_large)
    }

    /// True if the last record contains files or platforms, not just a signer.
    fn last_adds_bytes(&self) -> bool {
        self.records.last().is_some_and(|last| !last.files.is_empty() || !last.platforms.is_empty())
    }

    /// Rebuilds the history of a version whose record was lost from stored sets. It contains their digests, but no
    /// signer that may vouch for other bytes: no record has number 1.
    pub(super) fn from_stored_sets(sets: &[Observation<'_>]) -> Self {
        let mut rebuilt = Self::default();
        for seen in sets {
            rebuilt.append(seen, 0, false);
        }
        for record in &mut rebuilt.records {
            record.number += 1;
        }
        rebuilt
    }

    /// Converts one version of a record of the whole provider. `known_keys`: how many keys of the log may vouch for it.
    pub(super) fn from_provider_record(time: Timestamp, files: BTreeMap<String, Digests>, known_keys: usize) -> Self {
        let record = FirstSeen { number: 1, at: time, key: None, accepted: false, files, platforms: BTreeMap::new() };
        Self { known_keys, records: vec![record], dropped: BTreeMap::new() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Recoverable<T> {
    /// The record, as it was written or rebuilt from stored sets.
    Available(T),
    #[default]
    Absent,
    /// The record existed and cannot be rebuilt. Contains the value with which `accept` starts over: it is
    /// empty, but the number of a key log's next entry is kept.
    Lost(T),
}

/// The records that a new set is judged by.
#[derive(Debug, Clone, Default)]
pub struct HistoryRecords {
    pub version: Recoverable<VersionHistory>,
    pub keys: Recoverable<SigningKeyLog>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct HistoryUpdate {
    /// Written first, so that the signing-key log never names a key that no version admitted.
    pub version: Option<VersionHistory>,
    pub keys: Option<SigningKeyLog>,
}

impl HistoryRecords {
    /// Judges a verified set. Returns the verdict and the records to write; none if the set is refused.
    pub fn decide(self, seen: &Observation<'_>) -> (Judgement, HistoryUpdate) {
        let signer_is_untrusted = match &self.keys {
            Recoverable::Available(keys) => keys.distrusts(&seen.signer),
            Recoverable::Absent => false,
            Recoverable::Lost(_) => true,
        };
        let judged =
            |verdict, stranger_to| Judgement { verdict, known_keys_if_signer_is_new: stranger_to, signer_is_untrusted };
        let refused =
            |refusal, stranger_to| (judged(HistoryVerdict::Refused(refusal), stranger_to), HistoryUpdate::default());
        // Without a log, each judgement would read all records of the provider to build one. So the first set writes
        // one.
        let has_log = matches!(self.keys, Recoverable::Available(_));
        let (mut version, mut keys) = match (self.version, self.keys) {
            (Recoverable::Lost(_), _) | (_, Recoverable::Lost(_)) => return refused(HistoryRefusal::RecordLost, None),
            (version, keys) => (version.into_value(), keys.into_value()),
        };
        let stranger_to = match seen.signer.key() {
            Some(key) if keys.has_keys() && !keys.contains(key) => Some(keys.keys()),
            _ => None,
        };
        let is_vouched_for = version.may_be_changed_by(seen.signer.key(), &keys);
        let mut changes = version.changes(seen, is_vouched_for).into_iter();
        let verdict = match changes.next() {
            Some(first) if !is_vouched_for => {
                let is_told = first.is_of_archive(seen.archive);
                let of_archive = changes.find(|change| change.is_of_archive(seen.archive)).filter(|_| !is_told);
                return refused(HistoryRefusal::ChangedByUntrustedKey { first, of_archive }, stranger_to);
            }
            _ if version.has_lost_its_signature(seen, &keys) => return refused(HistoryRefusal::SignatureLost, None),
            Some(change) => HistoryVerdict::Republished(change),
            None => HistoryVerdict::Consistent,
        };
        let known_keys = keys.next_number();
        let is_new = version.append(seen, known_keys, false);
        if is_new && version.is_full() {
            // A new signature may go unrecorded. New files may not: a later change of them would go unnoticed.
            let is_change = !matches!(verdict, HistoryVerdict::Consistent) || version.last_adds_bytes();
            return if is_change || stranger_to.is_some() {
                refused(HistoryRefusal::Full, stranger_to)
            } else {
                (judged(verdict, stranger_to), HistoryUpdate::default())
            };
        }
        let has_new_key = keys.append(&seen.signer, seen.observed, false);
        if has_new_key && keys.entries.len() > MAX_KEYS_PER_PROVIDER {
            return refused(HistoryRefusal::Full, stranger_to);
        }
        let keys = (has_new_key || !has_log).then_some(keys);
        let to_write = HistoryUpdate { version: is_new.then_some(version), keys };
        (judged(verdict, stranger_to), to_write)
    }
}

impl VersionHistory {
    /// True if the provider was signed before and this set is unsigned. Not so if an operator accepted that for the
    /// provider or the version, or if the version is older than the provider's first key and unchanged.
    fn has_lost_its_signature(&self, seen: &Observation<'_>, keys: &SigningKeyLog) -> bool {
        let accepted_here = self.records.iter().any(|record| record.key.is_none() && record.accepted);
        let is_lost = seen.signer == Signer::Unsigned && keys.has_keys() && !keys.may_vouch(None, 0);
        is_lost && !accepted_here && (!self.is_older_than_any_key(keys) || self.is_added_to_by(seen))
    }

    fn is_added_to_by(&self, seen: &Observation<'_>) -> bool {
        let mut with_it = self.clone();
        with_it.append(seen, self.known_keys, false) && with_it.last_adds_bytes()
    }

    fn is_older_than_any_key(&self, keys: &SigningKeyLog) -> bool {
        let is_first_unsigned = self.records.first().is_some_and(|record| record.number == 1 && record.key.is_none());
        let is_signed_since = self.records.iter().any(|record| record.key.is_some());
        let knew_a_key = keys.entries.iter().any(|entry| entry.key.is_some() && entry.number < self.known_keys);
        // A log that was lost once says nothing about the keys before it.
        let is_told = self.known_keys == 0 || keys.begins == 0;
        is_first_unsigned && !is_signed_since && !knew_a_key && is_told
    }
}

impl<T: Default> Recoverable<T> {
    pub fn into_value(self) -> T {
        match self {
            Self::Available(value) | Self::Lost(value) => value,
            Self::Absent => T::default(),
        }
    }
}

impl Observation<'_> {
    /// True if the name of a file in SHA256SUMS states the platform of the archive.
    fn sums_state_platform(&self) -> bool {
        let platform = Some(&self.package.platform);
        self.sums.iter().any(|(name, digest)| digest == self.archive && platform_in_name(name).as_ref() == platform)
    }

    /// The facts of the set about its version, for a decision about it.
    pub fn facts(&self) -> Vec<EvidenceFact> {
        let Package { version, platform, .. } = self.package;
        let mut lines: Vec<String> = self.sums.iter().map(|(name, digest)| format!("{digest} {name}\n")).collect();
        lines.sort_unstable();
        let key = self.signer.key().map(str::to_owned);
        let lines = Digest::of(lines.concat().as_bytes());
        let checksums = EvidenceFact::Checksums { version: version.clone(), key, lines };
        if self.sums_state_platform() {
            return vec![checksums];
        }
        let archive =
            EvidenceFact::Archive { version: version.clone(), platform: platform.clone(), digest: self.archive };
        vec![checksums, archive]
    }

    /// The fact that its signer, or its absence, is to vouch for the provider.
    pub fn signer_fact(&self) -> EvidenceFact {
        EvidenceFact::Signer { key: self.signer.key().map(str::to_owned) }
    }
}

/// The decisions about a set that an operator owes before it is accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undecided {
    /// Empty if nothing is at stake: accepting the set changes no trust.
    pub facts: Vec<EvidenceFact>,
    /// Every change that the set makes.
    pub changes: Vec<HistoryChange>,
}

impl HistoryRecords {
    /// The decisions that an operator owes before [`Self::accept`] of the set. `has_alarm`: an alarm that an accept of this scope
    /// ends is about the set.
    pub fn undecided(self, seen: &Observation<'_>, scope: AcceptScope, has_alarm: bool) -> Undecided {
        let is_lost = matches!(self.version, Recoverable::Lost(_)) || matches!(self.keys, Recoverable::Lost(_));
        let (version, keys) = (self.version.into_value(), self.keys.into_value());
        let key = seen.signer.key();
        let is_vouched_for = version.may_be_changed_by(key, &keys);
        let changes = version.changes(seen, is_vouched_for);
        let is_stranger = match scope {
            AcceptScope::Provider => keys.distrusts(&seen.signer),
            AcceptScope::Version => version.is_stranger(&seen.signer, seen, &keys),
        };
        let mut facts = Vec::new();
        if !changes.is_empty() || is_lost || has_alarm || (is_stranger && scope == AcceptScope::Version) {
            facts = seen.facts();
        }
        if scope == AcceptScope::Provider && (is_stranger || is_lost) {
            facts.push(seen.signer_fact());
        }
        Undecided { facts, changes }
    }
}

impl VersionHistory {
    /// True for a signer, or its absence, that an `accept` of the version lets vouch for it anew.
    fn is_stranger(&self, signer: &Signer, seen: &Observation<'_>, keys: &SigningKeyLog) -> bool {
        match signer {
            Signer::NotChecked => false,
            Signer::Key(key) if self.is_empty() => keys.has_keys() && !keys.contains(key),
            Signer::Key(key) => !self.may_be_changed_by(Some(key), keys),
            Signer::Unsigned => self.has_lost_its_signature(seen, keys),
        }
    }

    /// The fingerprints of the keys that signed for the version.
    pub fn signers(&self) -> BTreeSet<&str> {
        self.records.iter().filter_map(|record| record.key.as_deref()).collect()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceptScope {
    /// All versions: the current signer, or its absence, becomes the provider's.
    Provider,
    Version,
}

impl HistoryRecords {
    /// Accepts a set whatever was verified before. Returns every change that it makes, and the records to write.
    pub fn accept(self, seen: &Observation<'_>, scope: AcceptScope) -> (Vec<HistoryChange>, HistoryUpdate) {
        let (is_lost, has_log) =
            (matches!(self.version, Recoverable::Lost(_)), matches!(self.keys, Recoverable::Available(_)));
        let (mut version, mut keys) = (self.version.into_value(), self.keys.into_value());
        let is_vouched_for = version.may_be_changed_by(seen.signer.key(), &keys);
        let changes = version.changes(seen, is_vouched_for);
        // Trust that nobody decides about is not given: the conditions are those of `undecided`. A signer that was not
        // checked is none.
        let is_stranger = version.is_stranger(&seen.signer, seen, &keys);
        let is_accepted = seen.signer != Signer::NotChecked && (!changes.is_empty() || is_stranger || is_lost);
        let is_trusted_anew = scope == AcceptScope::Provider && (is_lost || keys.distrusts(&seen.signer));
        // The keys that preceded a version are unknown once its record is lost.
        let known_keys = if is_lost { 0 } else { keys.next_number() };
        let is_new = version.append(seen, known_keys, is_accepted);
        let has_new_key = keys.append(&seen.signer, seen.observed, is_trusted_anew);
        let keys = (has_new_key || !has_log).then_some(keys);
        (changes, HistoryUpdate { version: is_new.then_some(version), keys })
    }
}

/// The platform at the end of a conventional archive name, in any case: `…_linux_amd64.zip`.
fn platform_in_name(name: &str) -> Option<Platform> {
    let name = name.to_ascii_lowercase();
    let (rest, arch) = name.strip_suffix(".zip")?.rsplit_once('_')?;
    let (_, os) = rest.rsplit_once('_')?;
    Platform::parse(&format!("{os}_{arch}")).ok()
}

fn is_zip(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with(".zip")
}

/// False for files that publishers list beside archives: manifests, signatures, bills of materials. Clients ask no name of an
/// archive, so this counts only where no name ends in `.zip`.
fn may_be_archive(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ![".json", ".jsonl", ".txt", ".md", ".sig", ".asc", ".pem", ".sbom", ".sha256"]
        .iter()
        .any(|end| name.ends_with(end))
}

/// The platform that an archive name states: at its end, as conventional names do, else by two words beside each other, in any
/// case, and by the names that publishers give to platforms: `plugin-linux-amd64-v1.zip`, `Plugin_Darwin_x86_64.zip`. `None`
/// for a platform that is not known here.
fn stated_platform(name: &str) -> Option<Platform> {
    let lower = name.to_ascii_lowercase().replace("x86_64", "amd64").replace("x86-64", "amd64");
    let words: Vec<&str> = lower.split(|character: char| !character.is_ascii_alphanumeric()).collect();
    let known = |pair: &[&str]| {
        let [os, arch] = pair else { return None };
        let os = match *os {
            "macos" | "osx" => "darwin",
            os => OSES.iter().find(|known| **known == os)?,
        };
        let arch = match *arch {
            "aarch64" => "arm64",
            "i386" | "x86" => "386",
            "armv5" | "armv6" | "armv7" => "arm",
            arch => ARCHES.iter().find(|known| **known == arch)?,
        };
        Platform::parse(&format!("{os}_{arch}")).ok()
    };
    // The name of the provider itself may have such words.
    words.windows(2).rev().find_map(known)
}

/// The operating systems of Terraform's and OpenTofu's builds, and of providers.
const OSES: [&str; 8] = ["darwin", "freebsd", "linux", "netbsd", "openbsd", "solaris", "illumos", "windows"];
/// The architectures of the same, as Go names them.
const ARCHES: [&str; 12] =
    ["386", "amd64", "arm", "arm64", "loong64", "mips", "mips64", "mips64le", "mipsle", "ppc64le", "riscv64", "s390x"];

#[cfg(test)]
mod tests;
