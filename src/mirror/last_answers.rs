//! Upstream's last answers that a client would notice: failures, and answers that came late. A dry run reads them as the
//! result of asking again. They are in memory, and their number and age are limited.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::address::{Address, Artifact, Versions};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::mirror::effects::Effects;
use crate::mirror::runtime::TtlCache;
use crate::store::{DocumentKey, Key};

/// The time after which an answer is forgotten.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// Upstream's last answer about one object.
#[derive(Debug, Clone)]
pub struct LastAnswer {
    /// The time of the answer.
    pub at: Timestamp,
    /// The time that it took.
    pub took: Duration,
    /// The failure; `None` for a good answer, which was late.
    pub failure: Option<Failure>,
}

/// A failed answer.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The error.
    pub error: Error,
    /// True if clients had a status line by then: they saw a body that broke off.
    pub broke_off: bool,
}

/// The last answers, by the record of the object: a document, a proof set, or the name of an archive.
#[derive(Debug, Default)]
pub struct LastAnswers(TtlCache<Key, LastAnswer>);

impl LastAnswers {
    /// Records an answer, which took this long. A good one removes an earlier answer, unless a client that waits for
    /// `patience` would not have seen it.
    pub fn record(&self, key: &Key, failure: Option<Failure>, took: Duration, patience: Duration, now: Timestamp) {
        match &failure {
            None if took < patience => return self.0.remove(key),
            // Other errors say nothing about upstream.
            Some(Failure { error, .. }) if !is_of_upstream(error) => return,
            Some(_) | None => {}
        }
        let answer = LastAnswer { at: now, took, failure };
        // A full memory starts anew: the latest answers are the ones that a person asks about.
        if !self.0.insert(Effects::Real, key.clone(), answer.clone(), LIFETIME, now) {
            self.0.remove_if(|_| true);
            self.0.insert(Effects::Real, key.clone(), answer, LIFETIME, now);
        }
    }

    /// Forgets the answers about an address in its canonical spelling, after an operator accepted what it has now.
    pub fn forget_address(&self, address: &Address) {
        self.0.remove_if(|key| is_about(key, address, &Versions::All));
    }

    /// Forgets 404s about the selected versions of an address in its canonical spelling.
    pub fn forget_absences(&self, address: &Address, versions: &Versions) {
        let is_absent = |last: &LastAnswer| matches!(&last.failure, Some(Failure { error: Error::NotFound(_), .. }));
        let absent = self.0.keys_if(|key, last| is_absent(last) && is_about(key, address, versions));
        absent.iter().for_each(|key| self.0.remove(key));
    }

    /// Forgets the answer about one object.
    pub fn forget(&self, key: &Key) {
        self.0.remove(key);
    }

    /// The packages that answers are about, of the selected versions of an address in its canonical spelling.
    pub fn packages(&self, address: &Address, versions: &Versions, now: Timestamp) -> BTreeSet<Artifact> {
        let keys = self.0.keys_if(|key, _| is_about(key, address, versions));
        let packages = keys.into_iter().filter(|key| self.get(key, now).is_some()).filter_map(|key| match key {
            Key::ProofSet(package) => Some(Artifact::Provider(package)),
            Key::Document(DocumentKey::Location(package)) => Some(Artifact::Module(package)),
            Key::Name(artifact) => Some(artifact),
            _ => None,
        });
        packages.collect()
    }

    /// Upstream's last answer about this object, if it failed or was late.
    pub fn get(&self, key: &Key, now: Timestamp) -> Option<LastAnswer> {
        self.0.get(key, now)
    }

    /// The result of asking upstream again for an object that `subject` names, if it answers as it last did and a client
    /// waits for `patience`. A body that broke off had a good status.
    ///
    /// # Errors
    /// The failure, or [`Error::Slow`] for an answer that would come later.
    pub fn replay(&self, key: &Key, subject: &str, patience: Duration, now: Timestamp) -> Result<(), Error> {
        match self.get(key, now) {
            Some(LastAnswer { took, .. }) if took >= patience => Err(Error::Slow(subject.to_owned())),
            Some(LastAnswer { failure: Some(Failure { error, broke_off: false }), .. }) => Err(error),
            Some(_) | None => Ok(()),
        }
    }
}

/// True for the version list of an address, and for the objects of its selected versions.
fn is_about(key: &Key, address: &Address, versions: &Versions) -> bool {
    match key {
        Key::Name(artifact) => Address::from(artifact) == *address && versions.include(artifact.version()),
        key => key.is_document_of(address, |version| versions.include(version)),
    }
}

/// True for an error that upstream's answer caused, or its silence.
pub fn is_of_upstream(error: &Error) -> bool {
    match error {
        Error::NotFound(_)
        | Error::Upstream(_)
        | Error::Unverified { .. }
        | Error::BeyondLimit { .. }
        | Error::Unaccepted { .. }
        | Error::Slow(_) => true,
        Error::UnknownHost(_)
        | Error::Refused { .. }
        | Error::Offline(_)
        | Error::WaitsForPlatforms(_)
        | Error::Sealed(_)
        | Error::Busy { .. }
        | Error::TooManyUnattendedFills { .. }
        | Error::RevalidationSkipped(_)
        | Error::HeldBack { .. }
        | Error::NotStored(_)
        | Error::Unreadable { .. }
        | Error::Looped
        | Error::Store(_)
        | Error::Interrupted(_)
        | Error::WouldAsk(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Hostname;

    const PATIENCE: Duration = Duration::from_secs(2);

    fn failed(broke_off: bool) -> Option<Failure> {
        Some(Failure { error: Error::NotFound("it is not there".to_owned()), broke_off })
    }

    fn replayed(answers: &LastAnswers, key: &Key, now: Timestamp) -> &'static str {
        match answers.replay(key, "it", PATIENCE, now) {
            Ok(()) => "good",
            Err(Error::Slow(_)) => "slow",
            Err(_) => "failed",
        }
    }

    #[test]
    fn a_request_is_expected_to_end_as_the_last_one_did() {
        let (key, now) = (Key::discovery(&Hostname::parse("registry.example").unwrap()), Timestamp(1_000));
        let (fast, slow) = (Duration::from_millis(5), Duration::from_secs(3));
        for (failure, took, expected) in [
            (None, fast, "good"),
            (None, slow, "slow"),
            (failed(false), fast, "failed"),
            (failed(false), slow, "slow"),
            (failed(true), fast, "good"),
            (Some(Failure { error: Error::Looped, broke_off: false }), fast, "good"),
        ] {
            let answers = LastAnswers::default();
            answers.record(&key, failure, took, PATIENCE, now);
            assert_eq!(replayed(&answers, &key, now), expected, "{took:?}");
            assert_eq!(replayed(&answers, &key, now.after(LIFETIME)), "good", "an old answer counts");
            answers.record(&key, None, fast, PATIENCE, now);
            assert!(answers.get(&key, now).is_none(), "a good answer did not replace {expected}");
        }
    }

    /// Promise 11: requests for many objects that do not exist neither fill the memory nor hide the next failure.
    #[test]
    fn the_latest_failure_is_known_however_many_there_were() {
        let (answers, now) = (LastAnswers::default(), Timestamp(1_000));
        let key = |number: usize| Key::discovery(&Hostname::parse(&format!("r{number}.example")).unwrap());
        for number in 0..25_000 {
            answers.record(&key(number), failed(false), Duration::ZERO, PATIENCE, now);
        }
        assert_eq!(replayed(&answers, &key(24_999), now), "failed");
        let known = (0..25_000).filter(|number| answers.get(&key(*number), now).is_some()).count();
        assert!(known <= 10_000, "{known}");
    }
}
