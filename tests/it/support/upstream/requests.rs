//! The record of requests, kept from their arrival, and the wait for a number of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::faults::Target;

/// One request, as it was when asked about.
#[derive(Clone, Debug)]
pub(crate) struct RecordedRequest {
    /// `GET`, `HEAD`.
    pub(crate) method: String,
    /// Without the query.
    pub(crate) path: String,
    /// Without the question mark; empty if there is none.
    pub(crate) query: String,
    /// All headers, in order.
    pub(crate) headers: HeaderMap,
    /// The kind of answer.
    pub(crate) target: Target,
    /// The status answered; none while no answer was begun.
    pub(crate) status: Option<u16>,
    /// Body bytes given to the connection so far.
    pub(crate) bytes_sent: u64,
}

impl RecordedRequest {
    /// A header's text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// The part of a record that changes while the answer is sent.
#[derive(Clone, Default)]
pub(super) struct Arrival(Arc<Progress>);

#[derive(Default)]
struct Progress {
    status: AtomicU16,
    bytes_sent: AtomicU64,
}

impl Arrival {
    pub(super) fn answered(&self, status: StatusCode) {
        self.0.status.store(status.as_u16(), Ordering::Relaxed);
    }

    pub(super) fn sent(&self, bytes: usize) {
        self.0.bytes_sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// All requests, in the order of their arrival.
#[derive(Default)]
pub(super) struct Requests {
    records: Mutex<Vec<(RecordedRequest, Arrival)>>,
    came: Notify,
}

impl Requests {
    pub(super) fn arrive(&self, record: RecordedRequest) -> Arrival {
        let arrival = Arrival::default();
        self.records.lock().push((record, arrival.clone()));
        self.came.notify_waiters();
        arrival
    }

    pub(super) fn forget(&self) {
        self.records.lock().clear();
    }

    pub(super) fn all(&self) -> Vec<RecordedRequest> {
        let records = self.records.lock();
        let current = records.iter().map(|(record, Arrival(progress))| {
            let status = progress.status.load(Ordering::Relaxed);
            RecordedRequest {
                status: (status != 0).then_some(status),
                bytes_sent: progress.bytes_sent.load(Ordering::Relaxed),
                ..record.clone()
            }
        });
        current.collect()
    }

    pub(super) async fn wait_for(&self, target: &Target, wanted: usize) {
        loop {
            let came = self.came.notified();
            tokio::pin!(came);
            came.as_mut().enable();
            let covers = |record: &RecordedRequest| target.covers(&record.target, &record.path);
            if self.records.lock().iter().filter(|(record, _)| covers(record)).count() >= wanted {
                return;
            }
            came.await;
        }
    }
}
