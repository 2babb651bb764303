//! Compares a verified proof set with the history of its version, raises and resolves alarms, and records it (DESIGN,
//! promise 14).

use std::sync::Arc;

use crate::address::Package;
use crate::clock::Timestamp;
use crate::error::Error;
use crate::mirror::Library;
use crate::mirror::counters::{REPUBLISHED, SEEN_DAMAGED, SIGNATURE_LOST};
use crate::mirror::library::proof_set::ProofSet;
use crate::mirror::library::{
    AlarmEvent, AlarmKind, AlarmPart, HistoryChange, HistoryRefusal, HistoryVerdict, Observation, Signer, observation,
};
use crate::store::StoreError;
use crate::upstream::outbound::origin;

impl Library {
    /// Admits a verified set, unless it contradicts an earlier one without the right to (DESIGN, promise 14).
    pub(in crate::mirror) async fn admit(
        self: &Arc<Self>,
        package: &Package,
        set: &ProofSet,
        signer: Signer,
        now: Timestamp,
    ) -> Result<Admission, Error> {
        let Some(sums) = set.checksums() else { return Ok(Admission::HistoryUnavailable) };
        let (owned_package, verified) = (package.clone(), set.clone());
        let admitted = self.on_disk(move |library| {
            let seen = Observation { signer, ..observation(&owned_package, &verified, &sums) };
            library.admit_blocking(&seen, now)
        });
        match admitted.await? {
            Ok(admitted) => Ok(admitted),
            Err(reason) => {
                let subject = format!("the download document of {package} from {}", origin(&set.metadata.url));
                let command = reason.command(package);
                Err(Error::Unaccepted { subject, verdict: reason.words, command })
            }
        }
    }

    /// Compares a verified set with the history of its version, raises and resolves alarms, and records it.
    pub(in crate::mirror) fn admit_blocking(
        &self,
        seen: &Observation<'_>,
        now: Timestamp,
    ) -> Result<Result<Admission, AdmissionRefusal>, StoreError> {
        let package = seen.package;
        let (provider, version) = (&package.provider, &package.version);
        let signer = match seen.signer.key() {
            Some(key) => format!("signed by key {key}"),
            None => "unsigned".to_owned(),
        };
        let judgement = self.histories.decide(seen, |judgement| {
            let known = judgement.known_keys_without_signer.as_ref().map(|known| list_keys(known));
            let is_refused = matches!(judgement.verdict, HistoryVerdict::Refused(_));
            if let (Some(known), Some(key), false) = (&known, seen.signer.key(), is_refused) {
                tracing::error!(%package, key, known, "ALARM: a key that never signed for this provider signs for it now; it may sign new versions, and vouches for no other bytes of versions that were verified before");
                let detail = format!("signed by key {key}; the keys known for this provider are {known}");
                self.raise_alarm_about_part(AlarmKind::NewKey, provider, version, AlarmPart::Key(key.to_owned()), detail, now);
            }
            match &judgement.verdict {
                HistoryVerdict::Consistent => {}
                HistoryVerdict::Republished(change) => {
                    let change = change.describe();
                    tracing::error!(%package, change, signer, "ALARM: upstream has changed a version that was verified before; a key that may vouch for it did; the new set is served");
                    self.raise_alarm(AlarmKind::Republished, provider, version, format!("its proof set {change}; {signer}"), now);
                }
                HistoryVerdict::Refused(refusal) => {
                    let kind = AdmissionRefusal::kind(refusal);
                    let words = match refusal {
                        HistoryRefusal::ChangedByUntrustedKey(change) => {
                            format!("its proof set for {} {}", package.platform, change.describe())
                        }
                        refusal => AdmissionRefusal::refusal_text(refusal),
                    };
                    tracing::error!(%package, words, signer, "ALARM: a proof set is refused until it is accepted");
                    let known = known.map(|known| format!("; the keys known for this provider are {known}"));
                    let detail = format!("{words}; {signer}{}", known.unwrap_or_default());
                    let part = match kind {
                        AlarmKind::SignatureLost => AlarmPart::Whole,
                        _ => AlarmPart::Platform(package.platform.clone()),
                    };
                    self.raise_alarm_about_part(kind, provider, version, part, detail, now);
                }
            }
            self.alarms.ensure_saved(&provider.into())
        })?;
        let Some(judgement) = judgement else { return Ok(Ok(Admission::HistoryUnavailable)) };
        match judgement.verdict {
            HistoryVerdict::Refused(refusal) => {
                self.runtime.counters.count_unverified(&provider.host, AdmissionRefusal::word(&refusal));
                let words = AdmissionRefusal::refusal_text(&refusal);
                Ok(Err(AdmissionRefusal { words, is_of_the_provider: refusal == HistoryRefusal::SignatureLost }))
            }
            verdict => {
                let admitted = AlarmEvent::Admitted { package, is_signed: seen.signer.key().is_some() };
                self.alarms.resolve(&provider.into(), &admitted);
                Ok(Ok(match verdict {
                    HistoryVerdict::Republished(change) => Admission::Changed(change),
                    HistoryVerdict::Consistent | HistoryVerdict::Refused(_) => Admission::Consistent,
                }))
            }
        }
    }
}

/// The reason for admitting a verified set.
pub(in crate::mirror) enum Admission {
    /// Consistent with everything verified before.
    Consistent,
    /// It changes the version, and its key may vouch for that.
    Changed(HistoryChange),
    /// The store is gone, so the history is unknown: the set is served but not stored.
    HistoryUnavailable,
}

/// The refusal of a verified set.
pub(in crate::mirror) struct AdmissionRefusal {
    pub(in crate::mirror) words: String,
    is_of_the_provider: bool,
}

impl AdmissionRefusal {
    fn kind(refusal: &HistoryRefusal) -> AlarmKind {
        match refusal {
            HistoryRefusal::ChangedByUntrustedKey(_) | HistoryRefusal::Full => AlarmKind::WaitsForAccept,
            HistoryRefusal::SignatureLost => AlarmKind::SignatureLost,
            HistoryRefusal::RecordLost => AlarmKind::DamagedRecord,
        }
    }

    fn word(refusal: &HistoryRefusal) -> &'static str {
        match refusal {
            HistoryRefusal::ChangedByUntrustedKey(_) | HistoryRefusal::Full => REPUBLISHED,
            HistoryRefusal::SignatureLost => SIGNATURE_LOST,
            HistoryRefusal::RecordLost => SEEN_DAMAGED,
        }
    }

    fn refusal_text(refusal: &HistoryRefusal) -> String {
        match refusal {
            HistoryRefusal::ChangedByUntrustedKey(change) => {
                format!(
                    "it was published again: its proof set {}, and no key that may vouch for that signed it",
                    change.describe()
                )
            }
            HistoryRefusal::SignatureLost => {
                "this provider was signed before, and the registry lists no key for it now".into()
            }
            HistoryRefusal::RecordLost => {
                "its first-seen record is damaged, so a change by upstream cannot be detected".into()
            }
            HistoryRefusal::Full => "as much is recorded of it, or of the versions of its provider, as may be".into(),
        }
    }

    /// The command that accepts the refused set.
    fn command(&self, package: &Package) -> String {
        let Package { provider, version, .. } = package;
        let subject = if self.is_of_the_provider { provider.to_string() } else { format!("{provider}@{version}") };
        format!("`larder accept {subject}`")
    }
}

/// Lists keys for people: the first few, and the number of the others.
fn list_keys(keys: &[String]) -> String {
    let (shown, more) = keys.split_at(keys.len().min(KEYS_SHOWN));
    match more.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// The most known keys that an alarm names.
const KEYS_SHOWN: usize = 3;
