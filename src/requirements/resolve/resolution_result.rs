//! Results of resolving, merged by item.

use std::collections::{BTreeMap, BTreeSet};

use super::super::{RequiredArchive, ResolvedRequirements, UnavailableItem};
use crate::address::Artifact;

/// Names of requirements listed for one item.
const MAX_BY: usize = 16;

/// Length of the texts about one item, in characters.
const LONGEST: usize = 4096;

/// Unavailable items listed.
const MAX_CANNOT: usize = 4096;

/// Results so far.
#[derive(Debug, Default)]
pub(super) struct ResolutionResult {
    required: BTreeMap<Artifact, RequiredVersions>,
    cannot: BTreeMap<(String, String), BTreeSet<String>>,
}

#[derive(Debug, Default)]
struct RequiredVersions {
    hashes: BTreeSet<Vec<String>>,
    required_by: BTreeSet<String>,
}

impl ResolutionResult {
    /// Requires an artifact for these places, with the hashes of a lock file if there are any.
    pub(super) fn require(
        &mut self,
        artifact: Artifact,
        hashes: &[String],
        required_by: impl IntoIterator<Item = String>,
    ) {
        let terms = self.required.entry(artifact).or_default();
        if !hashes.is_empty() {
            let mut hashes = hashes.to_vec();
            hashes.sort();
            hashes.dedup();
            terms.hashes.insert(hashes);
        }
        terms.required_by.extend(required_by);
    }

    /// Adds an unavailable item.
    pub(super) fn add_unavailable(
        &mut self,
        subject: impl Into<String>,
        reason: impl Into<String>,
        required_by: impl IntoIterator<Item = String>,
    ) {
        let item = (shortened(subject.into()), shortened(reason.into()));
        if self.cannot.len() < MAX_CANNOT || self.cannot.contains_key(&item) {
            self.cannot.entry(item).or_default().extend(required_by);
        }
    }

    /// Merges another result into this one.
    pub(super) fn and(mut self, other: Self) -> Self {
        for (artifact, terms) in other.required {
            let own = self.required.entry(artifact).or_default();
            own.hashes.extend(terms.hashes);
            own.required_by.extend(terms.required_by);
        }
        other
            .cannot
            .into_iter()
            .for_each(|((subject, reason), required_by)| self.add_unavailable(subject, reason, required_by));
        self
    }

    /// Converts into the final requirements.
    pub(super) fn into_requirements(self) -> ResolvedRequirements {
        let wanted = self.required.into_iter().map(|(artifact, terms)| RequiredArchive {
            artifact,
            hashes: terms.hashes.into_iter().collect(),
            required_by: limited(terms.required_by),
        });
        let there_may_be_more = (self.cannot.len() >= MAX_CANNOT).then(|| UnavailableItem {
            subject: "the rest".to_owned(),
            reason: format!("{MAX_CANNOT} items are unavailable (stopped there); fix these first"),
            required_by: Vec::new(),
        });
        let cannot = self.cannot.into_iter().map(|((subject, reason), required_by)| UnavailableItem {
            subject,
            reason,
            required_by: limited(required_by),
        });
        ResolvedRequirements { archives: wanted.collect(), cannot: cannot.chain(there_may_be_more).collect() }
    }
}

/// Truncates a text: users' texts may have any length.
fn shortened(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(LONGEST) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// The first few names, and the number of the others.
pub(super) fn limited(required_by: BTreeSet<String>) -> Vec<String> {
    let more = required_by.len().saturating_sub(MAX_BY);
    let mut named: Vec<String> = required_by.into_iter().take(MAX_BY).collect();
    if more > 0 {
        named.push(format!("and {more} more"));
    }
    named
}
