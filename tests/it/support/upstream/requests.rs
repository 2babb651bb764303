//! Records requests when they arrive, and waits for a number of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::faults::Target;

/// One request, with the state of its answer when the record was read.
#[derive(Clone, Debug)]
pub(crate) struct RecordedRequest {
    /// `GET`, `HEAD`.
    pub(crate) method: String,
    /// The path without the query.
    pub(crate) path: String,
    /// The query without the question mark; empty if there is none.
    pub(crate) query: String,
    /// All headers, in order.
    pub(crate) headers: HeaderMap,
    /// The content that the URL names.
    pub(crate) target: Target,
    /// The status of the answer; `None` until the answer begins.
    pub(crate) status: Option<u16>,
    /// Body bytes handed to the connection so far.
    pub(crate) bytes_sent: u64,
}

impl RecordedRequest {
    /// A header as text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// The part of a record that changes while the answer is sent.
#[derive(Clone, Default)]
pub(super) struct AnswerProgress(Arc<ProgressCounters>);

#[derive(Default)]
struct ProgressCounters {
    status: AtomicU16,
    bytes_sent: AtomicU64,
}

impl AnswerProgress {
    pub(super) fn set_status(&self, status: StatusCode) {
        self.0.status.store(status.as_u16(), Ordering::Relaxed);
    }

    pub(super) fn add_sent_bytes(&self, bytes: usize) {
        self.0.bytes_sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// All requests, in the order of their arrival.
#[derive(Default)]
pub(super) struct Requests {
    records: Mutex<Vec<(RecordedRequest, AnswerProgress)>>,
    arrived: Notify,
}

impl Requests {
    /// Adds a request; returns the part of its record that changes.
    pub(super) fn record(&self, request: RecordedRequest) -> AnswerProgress {
        let progress = AnswerProgress::default();
        self.records.lock().push((request, progress.clone()));
        self.arrived.notify_waiters();
        progress
    }

    pub(super) fn forget(&self) {
        self.records.lock().clear();
    }

    pub(super) fn all(&self) -> Vec<RecordedRequest> {
        let records = self.records.lock();
        let current = records.iter().map(|(record, AnswerProgress(progress))| {
            let status = progress.status.load(Ordering::Relaxed);
            RecordedRequest {
                status: (status != 0).then_some(status),
                bytes_sent: progress.bytes_sent.load(Ordering::Relaxed),
                ..record.clone()
            }
        });
        current.collect()
    }

    pub(super) async fn wait_for(&self, target: &Target, count: usize) {
        loop {
            let arrived = self.arrived.notified();
            tokio::pin!(arrived);
            arrived.as_mut().enable();
            let covers = |record: &RecordedRequest| target.covers(&record.target, &record.path);
            if self.records.lock().iter().filter(|(record, _)| covers(record)).count() >= count {
                return;
            }
            arrived.await;
        }
    }
}
