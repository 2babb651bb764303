//! Limits concurrent exports and bundles, and tracks their work until shutdown.

use crate::mirror::Transfers;
use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use crate::error::Error;

/// The most exports and bundles created at a time. Each may occupy a thread for as long as its client takes.
pub(in crate::mirror) const MAX_TRANSFERS: usize = 4;

/// A permit for one export or bundle, released on drop.
#[derive(Debug)]
pub struct TransferPermit(#[expect(dead_code, reason = "held only for its Drop")] OwnedSemaphorePermit);

impl Transfers {
    /// Takes a permit for an export or a bundle.
    ///
    /// # Errors
    /// [`Error::Busy`] where none is free.
    pub fn transfer(&self) -> Result<TransferPermit, Error> {
        let reason = || format!("{MAX_TRANSFERS} exports and bundles are being made, as many as may be at one time");
        let busy = || Error::Busy { subject: "the transfer".to_owned(), reason: reason() };
        Arc::clone(&self.permits).try_acquire_owned().map(TransferPermit).map_err(|_| busy())
    }
}
