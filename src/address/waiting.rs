//! Versions of providers that are stored and not listed: larder is offline, and lists a version when it is stored for
//! all of `[network] sealed_platforms`.

use std::collections::BTreeSet;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use super::{Platform, ProviderAddress, Version};

/// A version of a provider that is stored for some of the sealed platforms. Its text is the one sentence about it:
/// `stored for linux_amd64, waits for darwin_arm64 and windows_amd64`.
#[derive(Debug, Display, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[display("{}", Self::sentence(stored, waits_for))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WaitingVersion {
    /// The provider.
    #[serde(rename = "address", with = "super::provider_as_text")]
    #[cfg_attr(test, schemars(with = "String"))]
    pub provider: ProviderAddress,
    /// The version.
    #[serde(deserialize_with = "Version::deserialize_of_provider")]
    pub version: Version,
    /// The platforms that it is stored for.
    pub stored: BTreeSet<Platform>,
    /// The sealed platforms that it is not stored for.
    pub waits_for: BTreeSet<Platform>,
}

impl WaitingVersion {
    /// The one sentence about a stored version that waits for platforms.
    pub fn sentence(
        stored: impl IntoIterator<Item = impl ToString>,
        waits_for: impl IntoIterator<Item = impl ToString>,
    ) -> String {
        format!("stored for {}, waits for {}", listed(stored), listed(waits_for))
    }
}

/// `a`, `a and b`, or `a, b and c`.
fn listed(platforms: impl IntoIterator<Item = impl ToString>) -> String {
    let names: Vec<String> = platforms.into_iter().map(|platform| platform.to_string()).collect();
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, before)) => format!("{} and {last}", before.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_names_every_platform() {
        let sentence = |stored: &[&str], waits_for: &[&str]| {
            let json = serde_json::json!({
                "address": "r.example/acme/null", "version": "1.0.0", "stored": stored, "waits_for": waits_for,
            });
            serde_json::from_value::<WaitingVersion>(json).unwrap().to_string()
        };
        let [linux, mac, windows] = ["linux_amd64", "darwin_arm64", "windows_amd64"];
        assert_eq!(
            sentence(&[linux], &[mac, windows]),
            "stored for linux_amd64, waits for darwin_arm64 and windows_amd64"
        );
        assert_eq!(
            sentence(&[linux, mac, "linux_arm64"], &[windows]),
            "stored for darwin_arm64, linux_amd64 and linux_arm64, waits for windows_amd64"
        );
    }
}
