//! Results of resolving, merged by item.

use std::collections::{BTreeMap, BTreeSet};

use super::super::{RequiredArchive, ResolvedRequirements, UnavailableItem};
use crate::address::Artifact;

/// The maximum number of requirements listed for one item.
const MAX_REQUIRED_BY: usize = 16;

/// The maximum length of the subject and of the reason of one item, in characters.
const MAX_TEXT_CHARS: usize = 4096;

/// The maximum number of unavailable items.
const MAX_UNAVAILABLE: usize = 4096;

/// The requirements and unavailable items found so far.
#[derive(Debug, Default)]
pub(super) struct ResolutionResult {
    required: BTreeMap<Artifact, RequirementDetails>,
    /// The requirements that name each unavailable item, by its subject and reason.
    unavailable: BTreeMap<(String, String), BTreeSet<String>>,
}

/// The lock-file hashes of a required artifact, and the requirements that name it.
#[derive(Debug, Default)]
struct RequirementDetails {
    hashes: BTreeSet<Vec<String>>,
    required_by: BTreeSet<String>,
}

impl ResolutionResult {
    /// Requires an artifact; `required_by` names the requirements, `hashes` are those of a lock file.
    pub(super) fn require(
        &mut self,
        artifact: Artifact,
        hashes: &[String],
        required_by: impl IntoIterator<Item = String>,
    ) {
        let details = self.required.entry(artifact).or_default();
        if !hashes.is_empty() {
            let mut hashes = hashes.to_vec();
            hashes.sort();
            hashes.dedup();
            details.hashes.insert(hashes);
        }
        details.required_by.extend(required_by);
    }

    /// Adds an unavailable item.
    pub(super) fn add_unavailable(
        &mut self,
        subject: impl Into<String>,
        reason: impl Into<String>,
        required_by: impl IntoIterator<Item = String>,
    ) {
        let item = (shortened_text(subject.into()), shortened_text(reason.into()));
        if self.unavailable.len() < MAX_UNAVAILABLE || self.unavailable.contains_key(&item) {
            self.unavailable.entry(item).or_default().extend(required_by);
        }
    }

    /// Merges another result into this one.
    pub(super) fn merge(mut self, other: Self) -> Self {
        for (artifact, details) in other.required {
            let merged = self.required.entry(artifact).or_default();
            merged.hashes.extend(details.hashes);
            merged.required_by.extend(details.required_by);
        }
        other
            .unavailable
            .into_iter()
            .for_each(|((subject, reason), required_by)| self.add_unavailable(subject, reason, required_by));
        self
    }

    /// Converts into the final requirements.
    pub(super) fn into_requirements(self) -> ResolvedRequirements {
        let archives = self.required.into_iter().map(|(artifact, details)| RequiredArchive {
            artifact,
            hashes: details.hashes.into_iter().collect(),
            required_by: shortened_list(details.required_by),
        });
        let truncation_notice = (self.unavailable.len() >= MAX_UNAVAILABLE).then(|| UnavailableItem {
            subject: "further items".to_owned(),
            reason: format!("{MAX_UNAVAILABLE} items are unavailable (stopped there); fix these first"),
            required_by: Vec::new(),
        });
        let unavailable = self.unavailable.into_iter().map(|((subject, reason), required_by)| UnavailableItem {
            subject,
            reason,
            required_by: shortened_list(required_by),
        });
        ResolvedRequirements { archives: archives.collect(), cannot: unavailable.chain(truncation_notice).collect() }
    }
}

/// Truncates a text: users' texts may have any length.
fn shortened_text(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(MAX_TEXT_CHARS) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// The first few names, and the number of the others.
fn shortened_list(required_by: BTreeSet<String>) -> Vec<String> {
    let omitted = required_by.len().saturating_sub(MAX_REQUIRED_BY);
    let mut named: Vec<String> = required_by.into_iter().take(MAX_REQUIRED_BY).collect();
    if omitted > 0 {
        named.push(format!("and {omitted} more"));
    }
    named
}
