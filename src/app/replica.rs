//! A larder that is a replica of a fleet: how its store is opened, the secrets that all replicas have, and the settings that they must
//! have in common.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use aws_lc_rs::hmac;
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};

use super::{RunningApp, SettingsOfOthers, StartError, StartSettings};
use crate::config::{self, Config, VerificationPolicy};
use crate::store::Store;

/// Opens the store of a replica.
///
/// # Errors
/// Returns a [`StartError`] that says what to change.
#[cfg(feature = "fleet")]
pub(super) fn open_store(
    config: &Config,
    fleet: &config::Fleet,
    settings: &StartSettings,
) -> Result<(Store, Keys), StartError> {
    use crate::fleet::open::{OpenError, Presence, open};

    let presence = if settings.is_command { Presence::Unlisted } else { Presence::Listed };
    let opened = open(config, fleet, presence, settings_text(config), &settings.clock);
    opened.map(|(store, keys)| (store, Keys(Some(keys)))).map_err(|error| match error {
        OpenError::Refused(reason) => StartError::Refused(reason),
        OpenError::Store(error) => StartError::Store(error),
    })
}

/// Refuses to be a replica.
///
/// # Errors
/// Always.
#[cfg(not(feature = "fleet"))]
pub(super) fn open_store(_: &Config, fleet: &config::Fleet, _: &StartSettings) -> Result<(Store, Keys), StartError> {
    Err(StartError::Refused(format!(
        "this larder was built without the feature fleet, so it cannot be a replica that keeps its archives in {}: build it with cargo build \
         --features fleet, or remove [fleet]",
        fleet.bucket
    )))
}

/// The keys of a replica for its database and its bucket, which a reload renews; none for a larder that runs alone.
#[derive(Debug, Default)]
pub(super) struct Keys(#[cfg(feature = "fleet")] Option<crate::fleet::open::Keys>);

impl Keys {
    /// Uses the keys of another configuration from now on, whose database and bucket are the same.
    ///
    /// # Errors
    /// One of them cannot be used: then neither is.
    #[cfg(feature = "fleet")]
    pub(super) fn renew(&self, config: &Config) -> Result<(), String> {
        let Some((keys, fleet)) = self.0.as_ref().zip(config.fleet.as_ref()) else { return Ok(()) };
        keys.renew(fleet, &config.network).map_err(|error| error.to_string())
    }

    /// Does nothing: there are none.
    ///
    /// # Errors
    /// Never.
    #[cfg(not(feature = "fleet"))]
    pub(super) fn renew(&self, _: &Config) -> Result<(), String> {
        Ok(())
    }
}

/// A secret of all replicas for one purpose, made of a secret of the fleet.
pub(super) fn secret_for(purpose: &str, secret: &SecretString) -> SecretString {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.expose_secret().as_bytes());
    SecretString::from(hex::encode(hmac::sign(&key, format!("larder: {purpose}").as_bytes())))
}

/// The settings of an upstream that all replicas must have in common: they decide what is stored of it, and under which names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct UpstreamSettings {
    url: String,
    verification: String,
    fold_case: bool,
}

impl UpstreamSettings {
    /// Each setting, and its value as the configuration has it.
    fn values(&self) -> [(&'static str, String); 3] {
        let Self { url, verification, fold_case } = self;
        [("url", url.clone()), ("verification", verification.clone()), ("fold_case", fold_case.to_string())]
    }
}

fn settings_of(config: &Config) -> BTreeMap<String, UpstreamSettings> {
    let of_upstream = config.upstreams.iter().map(|upstream| {
        let (url, verification) = (upstream.url.to_string(), upstream.verification.label().to_owned());
        (upstream.host.to_string(), UpstreamSettings { url, verification, fold_case: upstream.fold_case })
    });
    of_upstream.collect()
}

/// The settings that all replicas must have in common, as a replica announces them.
pub(super) fn settings_text(config: &Config) -> String {
    serde_json::to_string(&settings_of(config)).unwrap_or_default()
}

/// The differences of a replica to the others.
#[derive(Debug, Default)]
pub(super) struct Differences {
    /// Each in words.
    pub(super) found: Vec<String>,
    /// The verification of another one that is stricter, by host.
    pub(super) stricter: Stricter,
}

/// The stricter verification of other replicas, by the host of the upstream.
pub(super) type Stricter = BTreeMap<String, VerificationPolicy>;

/// Compares the settings of this replica with those of others, each with its URL.
pub(super) fn differences(config: &Config, others: &[(String, String)]) -> Differences {
    let (ours, mut differences) = (settings_of(config), Differences::default());
    for (url, text) in others {
        // Those of a newer larder may say more.
        let Ok(theirs) = serde_json::from_str::<BTreeMap<String, UpstreamSettings>>(text) else { continue };
        for (host, our) in &ours {
            let Some(their) = theirs.get(host) else {
                differences.found.push(format!("{url} has no upstream {host}"));
                continue;
            };
            for ((name, our), (_, their)) in our.values().into_iter().zip(their.values()) {
                if our != their {
                    differences.found.push(format!("{url} has {name} = {their} for {host}, and this replica {our}"));
                }
            }
            let strictness =
                |label: &str| VerificationPolicy::ALL.into_iter().position(|policy| policy.label() == label);
            if let Some(theirs) = strictness(&their.verification)
                && strictness(&our.verification).is_some_and(|ours| theirs < ours)
            {
                let stricter = differences.stricter.entry(host.clone()).or_insert(VerificationPolicy::ALL[theirs]);
                if strictness(stricter.label()).is_some_and(|so_far| theirs < so_far) {
                    *stricter = VerificationPolicy::ALL[theirs];
                }
            }
        }
        let only_there = theirs.keys().filter(|host| !ours.contains_key(*host));
        differences
            .found
            .extend(only_there.map(|host| format!("{url} has the upstream {host}, and this replica has not")));
    }
    differences
}

/// A configuration with the stricter verification of other replicas.
pub(super) fn effective(config: &Config, others: &[(String, String)]) -> Config {
    let Differences { stricter, .. } = differences(config, others);
    let mut config = config.clone();
    for upstream in &mut config.upstreams {
        if let Some(policy) = stricter.get(upstream.host.as_str()) {
            upstream.verification = *policy;
        }
    }
    config
}

/// The time between two words with the other replicas.
const TALK_INTERVAL: Duration = Duration::from_secs(5);

/// Says to the other replicas what this one has, and compares its settings with theirs, again and again: a stricter verification is taken
/// over for as long as another one has it. Ends at once for a larder that runs alone.
pub(super) async fn talk_to_others(running: Weak<RunningApp>) {
    while let Some(running) = running.upgrade() {
        let library = Arc::clone(&running.parts.mirror.library);
        let others = tokio::task::spawn_blocking(move || {
            let fleet = library.fleet()?;
            fleet.announce_amounts(library.amounts());
            Some(fleet.settings_of_others())
        });
        match others.await {
            Ok(None) => return,
            Ok(Some(Ok(others))) => compare(&running, others).await,
            // Where nobody says, what was known last counts.
            Ok(Some(Err(_))) | Err(_) => {}
        }
        drop(running);
        tokio::time::sleep(TALK_INTERVAL).await;
    }
}

/// Compares the settings of this replica with those of the others, which must have the same.
async fn compare(running: &RunningApp, others: SettingsOfOthers) {
    let config = running.config.lock().await.clone();
    let Differences { found, stricter } = differences(&config, &others);
    if let Some(fleet) = running.parts.mirror.library.fleet()
        && fleet.events().set_differing(found.clone())
    {
        for differs in found {
            tracing::error!(differs, "replicas have other settings, where all must have the same");
        }
    }
    let in_force = differences(&config, &running.others.lock()).stricter;
    if in_force != stricter
        && let Err(problems) = running.reload_beside(others).await
    {
        tracing::error!(%problems, "the verification of the other replicas could not be taken over; it is tried again");
    }
}
