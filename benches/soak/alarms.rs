//! The alarms that an attack must raise: one each, with the command that resolves it, and none without an attack.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::SoakSetup;
use crate::hostile::{ATTACKED_PROVIDERS, Hostile};
use crate::ledger::BrokenPromise;
use crate::sources::download_path;
use crate::support::larder::HOST;
use crate::truth::PLATFORMS;

/// The time larder has for revalidating everything without faults.
const TIME_LIMIT: Duration = Duration::from_secs(90);

/// An alarm that larder must have raised.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ExpectedAlarm {
    kind: &'static str,
    address: String,
    /// `None` for an alarm about the provider as a whole.
    version: Option<String>,
    resolve: String,
    /// The request that makes larder ask upstream.
    path: String,
}

impl ExpectedAlarm {
    /// Other bytes under a key that may not change the version.
    pub(crate) fn waits_for_accept(name: &str, version: &str) -> Self {
        let address = format!("{HOST}/acme/{name}");
        let resolve = format!("larder accept {address}@{version}");
        let (version, path) = (Some(version.to_owned()), document_path(name, version));
        Self { kind: "waits-for-accept", address, version, resolve, path }
    }

    /// Other bytes under a key that may change the version.
    pub(crate) fn republished(name: &str, version: &str) -> Self {
        Self { kind: "republished", ..Self::waits_for_accept(name, version) }
    }

    /// The same bytes without a signature.
    pub(crate) fn signature_lost(name: &str, version: &str) -> Self {
        let (address, path) = (format!("{HOST}/acme/{name}"), document_path(name, version));
        let resolve = format!("larder accept {address}");
        Self { kind: "signature-lost", address, version: None, resolve, path }
    }

    /// A version by a key that never signed for the provider.
    pub(crate) fn new_key(name: &str, version: &str) -> Self {
        let resolve = format!("larder accept {HOST}/acme/{name}");
        Self { kind: "new-key", resolve, ..Self::waits_for_accept(name, version) }
    }

    /// A module version with another tree than before.
    pub(crate) fn moved(name: &str) -> Self {
        let address = format!("{HOST}/acme/{name}/test");
        let resolve = format!("larder accept {address}@1.0.0");
        Self { kind: "moved", address, version: Some("1.0.0".into()), resolve, path: download_path(name) }
    }

    fn matches(&self, alarm: &Value) -> bool {
        let has_version = self.version.as_ref().is_none_or(|version| alarm["version"] == **version);
        alarm["kind"] == self.kind && alarm["address"] == *self.address && has_version
    }
}

fn document_path(name: &str, version: &str) -> String {
    let platform = PLATFORMS[0].replacen('_', "/", 1);
    format!("/registry/{HOST}/v1/providers/acme/{name}/{version}/download/{platform}")
}

/// Makes larder revalidate everything, and compares its alarms with the attacks; returns their number.
pub(crate) async fn compare_alarms(setup: &Arc<SoakSetup>, hostile: &Hostile) -> anyhow::Result<usize> {
    let mut expected = hostile.expected_alarms().await;
    expected.extend(setup.sources.moved().iter().map(|name| ExpectedAlarm::moved(name)));
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(60)).build()?;
    let process = setup.processes.wait_until_running().await;
    let deadline = Instant::now() + TIME_LIMIT;
    let mut missing: Vec<&ExpectedAlarm> = expected.iter().collect();
    let alarms = loop {
        let status = client.get(format!("{}/admin/v1/status", process.admin)).send().await?.bytes().await?;
        let status: Value = serde_json::from_slice(&status)?;
        let alarms = status["alarms"].as_array().cloned().unwrap_or_default();
        missing.retain(|wanted| !alarms.iter().any(|alarm| wanted.matches(alarm)));
        if missing.is_empty() || Instant::now() > deadline {
            break alarms;
        }
        // Only packages whose alarm is missing are requested: larder limits the rate of its revalidations.
        for wanted in &missing {
            // The answer does not matter: the alarm that follows is checked below.
            let _ = client.get(format!("{}{}", process.base, wanted.path)).send().await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    for wanted in &expected {
        match alarms.iter().find(|alarm| wanted.matches(alarm)) {
            None => {
                let answer = client.get(format!("{}{}", process.base, wanted.path)).send().await?;
                let state = answer.headers().get("cache-status").cloned();
                let (status, text) = (answer.status(), answer.text().await?);
                let other_alarms: Vec<_> = alarms.iter().filter(|alarm| alarm["address"] == *wanted.address).collect();
                let line = format!(
                    "no alarm: {wanted:?}; the answer is {status} {state:?} {text}, and the alarms are {other_alarms:?}"
                );
                setup.ledger.record_broken(BrokenPromise::WrongAlarm, line);
            }
            Some(alarm) if alarm["resolve"] != *wanted.resolve => {
                setup.ledger.record_broken(
                    BrokenPromise::WrongAlarm,
                    format!("another remedy than `{}`: {alarm}", wanted.resolve),
                );
            }
            Some(_) => {}
        }
    }
    let attacked: BTreeSet<String> = ATTACKED_PROVIDERS.iter().map(|(name, _)| format!("{HOST}/acme/{name}")).collect();
    for alarm in alarms.iter().filter(|alarm| alarm["kind"] == "waits-for-accept") {
        if !attacked.contains(alarm["address"].as_str().unwrap_or_default()) {
            setup.ledger.record_broken(BrokenPromise::WrongAlarm, format!("an alarm without an attack: {alarm}"));
        }
    }
    Ok(alarms.len())
}
