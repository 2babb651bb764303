//! The feed: each second a replica asks which groups have changed, makes its copies of them old, and says how far it has heard.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::groups::CopiedGroups;
use super::records::{DatabaseRecords, News, Snapshot};
use super::replicas::Announcement;
use crate::store::{Contact, Index, StoreError, Unreached};

/// The time between two questions.
const INTERVAL: Duration = Duration::from_secs(1);

/// What a replica hears of the changes of others.
#[derive(Debug)]
pub struct Feed {
    shared: Arc<DatabaseRecords>,
    index: Arc<Index>,
    groups: Arc<CopiedGroups>,
    /// The snapshot of the last answer.
    heard: Mutex<Option<Snapshot>>,
    contact: Contact,
    /// What this replica says of itself, once it does.
    announcement: OnceLock<Announcement>,
}

impl Feed {
    pub(super) fn new(
        shared: Arc<DatabaseRecords>,
        index: Arc<Index>,
        groups: Arc<CopiedGroups>,
        serve_behind: Option<Duration>,
    ) -> Arc<Self> {
        let (heard, contact, announcement) = (Mutex::default(), Contact::new(serve_behind), OnceLock::new());
        Arc::new(Self { shared, index, groups, heard, contact, announcement })
    }

    /// When the database last answered.
    pub fn contact(&self) -> &Contact {
        &self.contact
    }

    /// Asks which groups have changed since the last call, and makes them old. Returns the snapshot up to which this replica has
    /// heard.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn hear(&self) -> Result<Snapshot, StoreError> {
        let mut heard = self.heard.lock();
        let asked = Instant::now();
        let News { snapshot, position, changed } = self.shared.changes_since(heard.as_ref())?;
        self.index.note_seen_life(snapshot.life, position);
        self.groups.make_groups_old(changed.as_deref());
        *heard = Some(snapshot.clone());
        self.contact.heard(asked);
        Ok(snapshot)
    }

    /// Waits until all other replicas have heard of what was written before: five seconds at most. Returns those that have not.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn spread(&self) -> Result<Vec<Unreached>, StoreError> {
        self.shared.spread(self.announcement.get())
    }

    /// Asks each second from now on, and announces this replica, until the returned value is dropped.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn follow(self: &Arc<Self>, announcement: Announcement) -> std::io::Result<Following> {
        let announcement = self.announcement.get_or_init(|| announcement).clone();
        let (feed, (stop, stopped)) = (Arc::clone(self), mpsc::channel::<()>());
        let thread = std::thread::Builder::new().name("larder-feed".to_owned()).spawn(move || {
            loop {
                let began = Instant::now();
                match feed.hear().and_then(|snapshot| feed.shared.announce(&announcement, &snapshot)) {
                    Ok(()) => {}
                    // The log says once that the database does not answer.
                    Err(error) => tracing::debug!(%error, "nothing was heard of the changes of other replicas"),
                }
                if stopped.recv_timeout(INTERVAL.saturating_sub(began.elapsed())) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
            if let Err(error) = feed.shared.leave(&announcement) {
                tracing::debug!(%error, "the other replicas wait for this one for ten seconds");
            }
        })?;
        Ok(Following { stop: Some(stop), thread: Some(thread) })
    }
}

/// A feed that is followed.
#[derive(Debug)]
pub struct Following {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Following {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Within two steps.
            let _ = thread.join();
        }
    }
}
