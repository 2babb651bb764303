//! Tells one `larder run` from another: its URLs begin with `/run/ID`, and so do the links in its answers. By that, larder
//! counts what each run was sent.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

/// Bytes of the id of a run.
const ID_BYTES: usize = 16;

/// First segment of the paths of a run.
const SEGMENT: &str = "/run/";

/// The id of one `larder run`: random, so that no run counts for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RunId([u8; ID_BYTES]);

impl RunId {
    /// Makes a new id.
    ///
    /// # Errors
    /// The system returned no random bytes.
    pub fn random() -> Result<Self, aws_lc_rs::error::Unspecified> {
        let mut random = [0u8; ID_BYTES];
        aws_lc_rs::rand::fill(&mut random)?;
        Ok(Self(random))
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

    /// The beginning of every path of the run, without a final slash.
    pub fn base(self) -> String {
        format!("{SEGMENT}{self}")
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// What one run was sent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunReport {
    /// Archives of providers and modules, each counted once.
    pub packages: RunSources,
    /// Version lists and all other documents, checksums and signatures.
    pub documents: RunSources,
    /// Registries whose documents were served stale.
    pub stale: BTreeSet<String>,
    /// Requests without an answer, or with one that broke off.
    pub failed: u64,
}

/// Content by its source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSources {
    /// From the store, without a question to upstream.
    pub store: RunAmount,
    /// Fetched or confirmed for this run, by registry.
    pub upstream: BTreeMap<String, RunAmount>,
}

/// An amount of content.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunAmount {
    /// Different files.
    pub count: u64,
    /// Body bytes sent.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_id_makes_a_path_one_of_a_run() {
        let id = RunId::random().unwrap();
        assert_eq!(RunId::split(&format!("{}/archive/x", id.base())), (Some(id), "/archive/x"));
        let hex = id.to_string();
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
}
