//! Trust on first use of providers: what each version was when it was verified, which keys signed for the provider, and
//! how a new proof set stands to both (promise 14). Pure: reading and writing the records is left to `history`.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::address::{Package, Platform};
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::upstream::error::relayed;
use crate::verify::{Checksums, How};

/// The most records of a version; then only `accept` adds one.
const MOST_RECORDS: usize = 64;
/// The most lines of sums over all records of a version, beside what was verified first; then only `accept` adds some.
const MOST_FILES: usize = 20_000;
/// The most bytes of their names.
const MOST_NAME_BYTES: usize = 1 << 20;
/// The most keys of a provider; then only `accept` adds one.
const MOST_KEYS: usize = 256;

/// The party that vouches for a proof set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::mirror) enum Signer {
    /// The key with this fingerprint signed SHA256SUMS.
    Key(String),
    /// The registry lists no key for it.
    Nobody,
    /// `verification` is `checksum`: signatures and keys are not looked at.
    NotChecked,
}

impl Signer {
    /// The signer that the proof of a set names.
    pub(in crate::mirror) fn of(how: &How) -> Self {
        match how {
            How::Signature { fingerprint } => Self::Key(fingerprint.clone()),
            How::NoKeys => Self::Nobody,
            How::Checksum | How::Imported | How::Tree(_) => Self::NotChecked,
        }
    }

    /// The fingerprint, where a key signed.
    pub(in crate::mirror) fn key(&self) -> Option<&str> {
        if let Self::Key(key) = self { Some(key) } else { None }
    }
}

/// The facts that a verified proof set states about a version.
#[derive(Debug)]
pub(in crate::mirror) struct Observation<'a> {
    /// The package of its download document.
    pub(in crate::mirror) package: &'a Package,
    /// The digest that the document names for the package's platform, under whatever file name.
    pub(in crate::mirror) archive: Digest,
    /// Every line of SHA256SUMS.
    pub(in crate::mirror) sums: &'a Checksums,
    pub(in crate::mirror) signer: Signer,
    pub(in crate::mirror) at: Timestamp,
}

/// The facts that one proof set added to the history of its version. Records are appended and never changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::mirror) struct FirstSeen {
    /// 1 for the set that was verified first; a version whose first record was lost begins with a higher one.
    number: u32,
    at: Timestamp,
    /// The fingerprint of the key that signed; absent where none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// True after `accept`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    accepted: bool,
    /// Lines of SHA256SUMS that no earlier record holds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    files: BTreeMap<String, Digests>,
    /// The digest that a download document names for a platform, where the file's name does not tell the platform.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    platforms: BTreeMap<Platform, Digest>,
}

/// The digests of one file: one, unless the record was carried over from a store that kept them together.
type Digests = Vec<Digest>;

/// Everything that was ever verified of one version.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(in crate::mirror) struct VersionHistory {
    /// The length of the provider's key log when the version was first verified.
    known_keys: usize,
    records: Vec<FirstSeen>,
}

/// The keys that ever signed for a provider, in the order in which they came.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(in crate::mirror) struct KeyLog {
    entries: Vec<KeyEntry>,
    /// The place of the first entry: beyond what was known for any version, where an earlier log was lost.
    #[serde(default, skip_serializing_if = "is_zero")]
    begins: usize,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct KeyEntry {
    /// Its place; greater than those before it, without gaps unless the log was lost once.
    number: usize,
    /// The fingerprint; absent for sets that nobody signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    at: Timestamp,
    /// True after `accept` of the provider.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    accepted: bool,
}

/// A difference between a proof set and the history of its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::mirror) enum Change {
    /// A platform or a file has another digest than in every set before.
    OtherBytes {
        /// The file's name, or the platform.
        of: String,
        before: Vec<Digest>,
        now: Digest,
    },
    /// None of the lines known before is left.
    DropsEveryLine,
    /// A key that may not vouch for the version adds a file or a platform to it.
    Added {
        /// The file's name, or the platform.
        file: String,
        now: Digest,
    },
}

impl Change {
    /// In words, as the end of "its proof set …". What upstream wrote is cut short and holds nothing for a terminal.
    pub(in crate::mirror) fn words(&self) -> String {
        match self {
            Self::OtherBytes { of, before, now } => {
                let before = before.first().map(ToString::to_string).unwrap_or_default();
                let of = relayed(of);
                format!("gives {of} the SHA-256 {now}; it was {before} when this version was first verified")
            }
            Self::DropsEveryLine => {
                "lists none of the files that it listed when this version was first verified".into()
            }
            Self::Added { file, now } => {
                format!("adds {} ({now}) to a version that was verified before", relayed(file))
            }
        }
    }
}

/// Why a proof set is refused until an operator accepts it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::mirror) enum Refusal {
    /// It changes the version, and who signed it may not vouch for that.
    Changed(Change),
    /// The provider was signed before, and the registry lists no key for it now.
    SignatureLost,
    /// The record of the version, or of the provider's keys, is damaged, and nothing stored tells what it said.
    RecordLost,
    /// There are as many records of the version, or keys of the provider, as there may be.
    Full,
}

/// The outcome of comparing a proof set with the history of its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::mirror) enum Verdict {
    /// It changes nothing that was verified before.
    Consistent,
    /// It changes the version, and a key that may vouch for that signed it.
    Republished(Change),
    Refused(Refusal),
}

/// The verdict on a proof set, and whether its key is new.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::mirror) struct Judgement {
    pub(in crate::mirror) verdict: Verdict,
    /// The keys that were known, where the set is signed by none of them.
    pub(in crate::mirror) stranger_to: Option<Vec<String>>,
}

impl KeyLog {
    /// The fingerprints, in the order in which they came.
    pub(in crate::mirror) fn keys(&self) -> Vec<String> {
        self.entries.iter().filter_map(|entry| entry.key.clone()).collect()
    }

    /// A log of these, in this order.
    pub(in crate::mirror) fn of_keys(keys: impl IntoIterator<Item = (String, Timestamp)>) -> Self {
        let mut log = Self::default();
        for (key, at) in keys {
            log.note(&Signer::Key(key), at, false);
        }
        log
    }

    /// True for a key that signed for the provider before.
    pub(in crate::mirror) fn knows(&self, key: &str) -> bool {
        self.entries.iter().any(|entry| entry.key.as_deref() == Some(key))
    }

    /// True for a key that may vouch for all versions: the provider's first, or one that an operator accepted for it.
    pub(in crate::mirror) fn trusts(&self, key: Option<&str>) -> bool {
        self.entries.iter().any(|entry| entry.key.as_deref() == key && (entry.number == 0 || entry.accepted))
    }

    fn has_keys(&self) -> bool {
        self.entries.iter().any(|entry| entry.key.is_some())
    }

    /// True where this key (or its absence) was the provider's before a version was first verified, or an operator
    /// said that it is.
    fn vouches(&self, key: Option<&str>, known_keys: usize) -> bool {
        self.entries.iter().any(|entry| entry.key.as_deref() == key && (entry.number < known_keys || entry.accepted))
    }

    /// The place of the next entry.
    fn next(&self) -> usize {
        self.entries.last().map_or(self.begins, |last| last.number + 1)
    }

    /// Appends who signed, unless it is there. Says whether anything changed.
    fn note(&mut self, signer: &Signer, at: Timestamp, accepted: bool) -> bool {
        if *signer == Signer::NotChecked {
            return false;
        }
        let key = signer.key();
        let number = self.next();
        match self.entries.iter_mut().find(|entry| entry.key.as_deref() == key) {
            Some(entry) if accepted && !entry.accepted => {
                entry.accepted = true;
                true
            }
            Some(_) => false,
            None => {
                self.entries.push(KeyEntry { number, key: key.map(str::to_owned), at, accepted });
                true
            }
        }
    }

    /// The log as the records of a provider's versions tell it, in place of one that is not there or was lost. No place in
    /// it lies before any of these versions: each of its keys vouches only for what it signed.
    pub(in crate::mirror) fn of_versions<'a>(versions: impl IntoIterator<Item = &'a VersionHistory>) -> Self {
        let mut log = Self::default();
        let mut found: Vec<(Timestamp, String)> = Vec::new();
        for version in versions {
            log.begins = log.begins.max(version.known_keys);
            found.extend(version.records.iter().filter_map(|record| record.key.clone().map(|key| (record.at, key))));
        }
        found.sort();
        for (at, key) in found {
            log.note(&Signer::Key(key), at, false);
        }
        log
    }
}

impl VersionHistory {
    /// True while nothing of the version has been verified.
    pub(in crate::mirror) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Every digest that a verified set ever gave the archive of a platform.
    pub(in crate::mirror) fn digests_of(&self, platform: &Platform) -> Vec<Digest> {
        let named = self.files().filter(|(name, _)| platform_in_name(name).as_ref() == Some(platform));
        let stated = self.records.iter().filter_map(|record| record.platforms.get(platform).copied());
        let mut digests = Vec::new();
        for digest in named.map(|(_, digest)| digest).chain(stated) {
            if !digests.contains(&digest) {
                digests.push(digest);
            }
        }
        digests
    }

    fn files(&self) -> impl Iterator<Item = (&str, Digest)> {
        self.records.iter().flat_map(|record| {
            record.files.iter().flat_map(|(name, digests)| digests.iter().map(|digest| (name.as_str(), *digest)))
        })
    }

    /// The platforms that anything is known of.
    fn platforms(&self) -> BTreeSet<Platform> {
        let stated = self.records.iter().flat_map(|record| record.platforms.keys().cloned());
        self.files().filter_map(|(name, _)| platform_in_name(name)).chain(stated).collect()
    }

    /// True for a key that may vouch for other bytes: it signed the version when that was first
    /// verified, was the provider's before that, or was accepted (promise 14). An unsigned set vouches for nothing.
    fn is_vouched_for_by(&self, key: Option<&str>, log: &KeyLog) -> bool {
        let Some(key) = key else { return false };
        let signed_it =
            |record: &FirstSeen| record.key.as_deref() == Some(key) && (record.number == 1 || record.accepted);
        log.vouches(Some(key), self.known_keys) || self.records.iter().any(signed_it)
    }

    /// The changes that a set makes, the most telling first; `is_vouched_for` tells whether who signed may add to the version.
    fn changes(&self, seen: &Observation<'_>, is_vouched_for: bool) -> Vec<Change> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut by_name: BTreeMap<&str, Vec<Digest>> = BTreeMap::new();
        let mut by_platform: BTreeMap<Platform, Vec<Digest>> = BTreeMap::new();
        for (name, digest) in self.files() {
            by_name.entry(name).or_default().push(digest);
            if let Some(platform) = platform_in_name(name) {
                by_platform.entry(platform).or_default().push(digest);
            }
        }
        for (platform, digest) in self.records.iter().flat_map(|record| &record.platforms) {
            by_platform.entry(platform.clone()).or_default().push(*digest);
        }
        let other = |of: String, before: Option<&Vec<Digest>>, now: Digest| {
            let before = before.filter(|before| !before.contains(&now))?.clone();
            Some(Change::OtherBytes { of, before, now })
        };
        let of_line = |(name, now): (&str, Digest)| {
            let before = by_name.get(name).or_else(|| by_platform.get(&platform_in_name(name)?));
            other(name.to_owned(), before, now)
        };
        let mut changes: Vec<Change> = seen.sums.iter().filter_map(of_line).collect();
        let is_told =
            changes.iter().any(|change| matches!(change, Change::OtherBytes { now, .. } if *now == seen.archive));
        if !is_told {
            let platform = &seen.package.platform;
            changes.extend(other(platform.to_string(), by_platform.get(platform), seen.archive));
        }
        let known: BTreeSet<Digest> = by_name.values().flatten().copied().collect();
        let keeps_one = seen.sums.iter().any(|(_, digest)| known.contains(&digest));
        if changes.is_empty() && !known.is_empty() && !keeps_one && !self.is_of_other_platforms(seen) {
            changes.push(Change::DropsEveryLine);
        }
        if changes.is_empty() && !is_vouched_for && !self.is_unsigned(seen) {
            let is_known =
                |(name, digest): &(&str, Digest)| by_name.get(name).is_some_and(|known| known.contains(digest));
            let added = seen.sums.iter().find(|line| !is_known(line)).map(|(file, now)| (file.to_owned(), now));
            let platform = &seen.package.platform;
            let new_platform = || (!by_platform.contains_key(platform)).then(|| (platform.to_string(), seen.archive));
            changes.extend(added.or_else(new_platform).map(|(file, now)| Change::Added { file, now }));
        }
        changes
    }

    /// True where neither the version nor the set was ever signed: then no signer is a stranger.
    fn is_unsigned(&self, seen: &Observation<'_>) -> bool {
        seen.signer.key().is_none() && self.records.iter().all(|record| record.key.is_none())
    }

    /// True for an unsigned set that lists other platforms only: some registries publish a SHA256SUMS for each platform.
    fn is_of_other_platforms(&self, seen: &Observation<'_>) -> bool {
        let known = self.platforms();
        let mut named = seen.sums.iter().map(|(name, digest)| match platform_in_name(name) {
            None if digest == seen.archive => Some(seen.package.platform.clone()),
            platform => platform,
        });
        self.is_unsigned(seen)
            && !known.is_empty()
            && named.all(|platform| platform.is_some_and(|platform| !known.contains(&platform)))
    }

    /// Appends what a set says that no record holds yet. Says whether anything was appended.
    fn note(&mut self, seen: &Observation<'_>, known_keys: usize, accepted: bool) -> bool {
        let (platform, key) = (&seen.package.platform, seen.signer.key());
        let mut files: BTreeMap<String, Digests> = BTreeMap::new();
        let known: BTreeSet<(&str, Digest)> = self.files().collect();
        for (name, digest) in seen.sums.iter().filter(|line| !known.contains(line)) {
            files.entry(name.to_owned()).or_default().push(digest);
        }
        let is_in_sums = |(name, digest): (&str, Digest)| {
            digest == seen.archive && platform_in_name(name).as_ref() == Some(platform)
        };
        let is_told = self.digests_of(platform).contains(&seen.archive) || seen.sums.iter().any(is_in_sums);
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
        self.records.push(FirstSeen { number, at: seen.at, key, accepted, files, platforms });
        true
    }

    fn is_full(&self) -> bool {
        let (files, bytes) = self.files().fold((0, 0), |(files, bytes), (name, _)| (files + 1, bytes + name.len()));
        let is_large = files > MOST_FILES || bytes > MOST_NAME_BYTES;
        self.records.len() > MOST_RECORDS || (self.records.len() > 1 && is_large)
    }

    /// True where the last record is about bytes, and not about a signer alone.
    fn last_adds_bytes(&self) -> bool {
        self.records.last().is_some_and(|last| !last.files.is_empty() || !last.platforms.is_empty())
    }

    /// The history that stored sets prove, for a version whose record was lost: their bytes, and nothing of who may vouch for others.
    pub(in crate::mirror) fn rebuilt(sets: &[Observation<'_>]) -> Self {
        let mut rebuilt = Self::default();
        for seen in sets {
            rebuilt.note(seen, 0, false);
        }
        for record in &mut rebuilt.records {
            record.number += 1;
        }
        rebuilt
    }

    /// The history of one version from a record of the provider as a whole: `known_keys` of the log were known for it.
    pub(in crate::mirror) fn carried_over(at: Timestamp, files: BTreeMap<String, Digests>, known_keys: usize) -> Self {
        let record = FirstSeen { number: 1, at, key: None, accepted: false, files, platforms: BTreeMap::new() };
        Self { known_keys, records: vec![record] }
    }
}

/// The state of a record in the store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::mirror) enum Readable<T> {
    Whole(T),
    #[default]
    Absent,
    /// It was there, and nothing stored tells what it said; what may begin in its place.
    Lost(T),
}

/// The records of a version and of its provider's keys, as a new set finds them.
#[derive(Debug, Clone, Default)]
pub(in crate::mirror) struct History {
    pub(in crate::mirror) version: Readable<VersionHistory>,
    pub(in crate::mirror) keys: Readable<KeyLog>,
}

/// The records to write after a set was judged.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::mirror) struct ToWrite {
    /// Written first: the log of keys names none that no version admitted.
    pub(in crate::mirror) version: Option<VersionHistory>,
    pub(in crate::mirror) keys: Option<KeyLog>,
}

impl History {
    /// Judges a verified set, and says what to write of it; nothing where it is refused.
    pub(in crate::mirror) fn judge(self, seen: &Observation<'_>) -> (Judgement, ToWrite) {
        let refused =
            |refusal, stranger_to| (Judgement { verdict: Verdict::Refused(refusal), stranger_to }, ToWrite::default());
        // Without a log, every record of the provider is read to make one: so there is one from the first set on.
        let has_log = matches!(self.keys, Readable::Whole(_));
        let (mut version, mut keys) = match (self.version, self.keys) {
            (Readable::Lost(_), _) | (_, Readable::Lost(_)) => return refused(Refusal::RecordLost, None),
            (version, keys) => (version.or_default(), keys.or_default()),
        };
        let stranger_to = match seen.signer.key() {
            Some(key) if keys.has_keys() && !keys.knows(key) => Some(keys.keys()),
            _ => None,
        };
        let is_vouched_for = version.is_vouched_for_by(seen.signer.key(), &keys);
        let change = version.changes(seen, is_vouched_for).into_iter().next();
        let verdict = match change {
            Some(change) if !is_vouched_for => return refused(Refusal::Changed(change), stranger_to),
            _ if version.has_lost_its_signature(seen, &keys) => return refused(Refusal::SignatureLost, None),
            Some(change) => Verdict::Republished(change),
            None => Verdict::Consistent,
        };
        let known_keys = keys.next();
        let is_new = version.note(seen, known_keys, false);
        if is_new && version.is_full() {
            // What is signed anew may go on unrecorded; other files may not, for nobody would know them again.
            let is_change = !matches!(verdict, Verdict::Consistent) || version.last_adds_bytes();
            return if is_change || stranger_to.is_some() {
                refused(Refusal::Full, stranger_to)
            } else {
                (Judgement { verdict, stranger_to }, ToWrite::default())
            };
        }
        let has_new_key = keys.note(&seen.signer, seen.at, false);
        if has_new_key && keys.entries.len() > MOST_KEYS {
            return refused(Refusal::Full, stranger_to);
        }
        let keys = (has_new_key || !has_log).then_some(keys);
        let to_write = ToWrite { version: is_new.then_some(version), keys };
        (Judgement { verdict, stranger_to }, to_write)
    }
}

impl VersionHistory {
    /// True where the provider was signed before, and nobody signs this set; unless an operator has accepted that, of
    /// the provider or of the version, or the version was there before anybody signed for the provider and is as it was.
    fn has_lost_its_signature(&self, seen: &Observation<'_>, keys: &KeyLog) -> bool {
        let accepted_here = self.records.iter().any(|record| record.key.is_none() && record.accepted);
        let is_lost = seen.signer == Signer::Nobody && keys.has_keys() && !keys.vouches(None, 0);
        is_lost && !accepted_here && (!self.is_older_than_any_key(keys) || self.is_added_to_by(seen))
    }

    fn is_added_to_by(&self, seen: &Observation<'_>) -> bool {
        let mut with_it = self.clone();
        with_it.note(seen, self.known_keys, false) && with_it.last_adds_bytes()
    }

    fn is_older_than_any_key(&self, keys: &KeyLog) -> bool {
        let is_first_unsigned = self.records.first().is_some_and(|record| record.number == 1 && record.key.is_none());
        let is_signed_since = self.records.iter().any(|record| record.key.is_some());
        let knew_a_key = keys.entries.iter().any(|entry| entry.key.is_some() && entry.number < self.known_keys);
        // A log that was lost once tells nothing of the keys before it.
        let is_told = self.known_keys == 0 || keys.begins == 0;
        is_first_unsigned && !is_signed_since && !knew_a_key && is_told
    }
}

impl<T: Default> Readable<T> {
    /// What there is, or what may begin in its place.
    pub(in crate::mirror) fn or_default(self) -> T {
        match self {
            Self::Whole(value) | Self::Lost(value) => value,
            Self::Absent => T::default(),
        }
    }
}

/// The scope of an `accept`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::mirror) enum AcceptedFor {
    /// All versions: the key that signs now, or its absence, is the provider's.
    Provider,
    /// This version alone.
    Version,
}

impl History {
    /// The records to write because an operator accepts a set, whatever was verified before; and every change that
    /// it makes.
    pub(in crate::mirror) fn accept(self, seen: &Observation<'_>, of: AcceptedFor) -> (Vec<Change>, ToWrite) {
        let (is_lost, has_log) = (matches!(self.version, Readable::Lost(_)), matches!(self.keys, Readable::Whole(_)));
        let (mut version, mut keys) = (self.version.or_default(), self.keys.or_default());
        let is_vouched_for = version.is_vouched_for_by(seen.signer.key(), &keys);
        let changes = version.changes(seen, is_vouched_for);
        let is_accepted = !changes.is_empty() || !is_vouched_for || is_lost;
        // Nobody knows any more which keys were known for a version whose record is lost.
        let known_keys = if is_lost { 0 } else { keys.next() };
        let is_new = version.note(seen, known_keys, is_accepted);
        let has_new_key = keys.note(&seen.signer, seen.at, of == AcceptedFor::Provider);
        let keys = (has_new_key || !has_log).then_some(keys);
        (changes, ToWrite { version: is_new.then_some(version), keys })
    }
}

/// The platform that the conventional name of an archive ends in, in whatever case: `…_linux_amd64.zip`.
fn platform_in_name(name: &str) -> Option<Platform> {
    let name = name.to_ascii_lowercase();
    let (rest, arch) = name.strip_suffix(".zip")?.rsplit_once('_')?;
    let (_, os) = rest.rsplit_once('_')?;
    Platform::parse(&format!("{os}_{arch}")).ok()
}

#[cfg(test)]
mod tests;
