//! The bound on what is carried out of the store at one time, and its work, which a close waits for.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;

use super::Mirror;
use crate::error::Error;

/// The most exports and bundles that are made at one time: each may hold a thread for as long as its client takes.
pub(super) const MOST_TRANSFERS: usize = 4;

/// A place among the exports and bundles that are being made: free again once it is dropped.
#[derive(Debug)]
pub struct Transfer(#[expect(dead_code, reason = "held, and never looked at")] OwnedSemaphorePermit);

impl Mirror {
    /// Takes a place for an export or a bundle.
    ///
    /// # Errors
    /// [`Error::Busy`] where there is none.
    pub fn transfer(&self) -> Result<Transfer, Error> {
        let why = || format!("{MOST_TRANSFERS} exports and bundles are being made, as many as may be at one time");
        let busy = || Error::Busy { what: "the transfer".to_owned(), why: why() };
        Arc::clone(&self.transfers).try_acquire_owned().map(Transfer).map_err(|_| busy())
    }

    /// Runs work of an operator, whoever waits for it, until it ends or the mirror closes.
    pub fn until_closed(&self, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.tasks.spawn(work));
    }

    /// Runs file work of an operator where it may block. A close waits for it.
    pub fn blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        self.tasks.spawn_blocking(work)
    }
}
