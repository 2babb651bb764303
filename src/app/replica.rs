//! A larder that is a replica of a fleet: how its store is opened, and the secrets that all replicas have.

use aws_lc_rs::hmac;
use secrecy::{ExposeSecret as _, SecretString};

use super::{StartError, StartSettings};
use crate::config::{Config, Fleet};
use crate::store::Store;

/// Opens the store of a replica.
///
/// # Errors
/// Returns a [`StartError`] that says what to change.
#[cfg(feature = "fleet")]
pub(super) fn open_store(config: &Config, fleet: &Fleet, settings: &StartSettings) -> Result<Store, StartError> {
    use crate::fleet::open::{OpenError, Presence, open};

    let presence = if settings.is_command { Presence::Unlisted } else { Presence::Listed };
    open(config, fleet, presence, &settings.clock).map_err(|error| match error {
        OpenError::Refused(reason) => StartError::Refused(reason),
        OpenError::Store(error) => StartError::Store(error),
    })
}

/// Refuses to be a replica.
///
/// # Errors
/// Always.
#[cfg(not(feature = "fleet"))]
pub(super) fn open_store(_: &Config, fleet: &Fleet, _: &StartSettings) -> Result<Store, StartError> {
    Err(StartError::Refused(format!(
        "this larder was built without the feature fleet, so it cannot be a replica that keeps its archives in {}: build it with cargo build \
         --features fleet, or remove [fleet]",
        fleet.bucket
    )))
}

/// A secret of all replicas for one purpose, made of a secret of the fleet.
pub(super) fn secret_for(purpose: &str, secret: &SecretString) -> SecretString {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.expose_secret().as_bytes());
    SecretString::from(hex::encode(hmac::sign(&key, format!("larder: {purpose}").as_bytes())))
}
