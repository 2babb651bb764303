//! The feed: each second a replica asks which groups have changed, makes its copies of them old, and says how far it has heard.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::groups::CopiedGroups;
use super::records::{DatabaseRecords, News, Snapshot};
use super::replicas::{Announcement, Report};
use crate::clock::Clock;
use crate::store::{Contact, FleetAlarmKind, FleetEvents, Index, Moment, RecordGroup, SeenLife, StoreError, Unreached};

/// The time between two notes of the life of the database, where it stays the same.
const NOTE_INTERVAL: Duration = Duration::from_secs(60);
/// The time between two questions.
const INTERVAL: Duration = Duration::from_secs(1);

/// The news of other replicas, as one replica hears them.
#[derive(Debug)]
pub struct Feed {
    shared: Arc<DatabaseRecords>,
    index: Arc<Index>,
    groups: Arc<CopiedGroups>,
    news: Mutex<LastNews>,
    contact: Contact,
    clock: Clock,
    events: Arc<FleetEvents>,
    /// The announcement of this replica, once it is made.
    announcement: OnceLock<Announcement>,
}

/// The last news, and the last life of the database.
#[derive(Debug)]
struct LastNews {
    /// The life of the database, by its hash, also as an earlier process met it; `None` for a folder that has met none.
    life: Option<u64>,
    heard: Option<Heard>,
}

/// The last answer of this process.
#[derive(Debug)]
struct Heard {
    snapshot: Snapshot,
    /// When the life of the database was noted last.
    noted: Instant,
}

impl Feed {
    pub(super) fn new(
        shared: Arc<DatabaseRecords>,
        index: Arc<Index>,
        groups: Arc<CopiedGroups>,
        contact: Contact,
        clock: Clock,
        events: Arc<FleetEvents>,
        life: Option<u64>,
    ) -> Arc<Self> {
        let (news, announcement) = (Mutex::new(LastNews { life, heard: None }), OnceLock::new());
        Arc::new(Self { shared, index, groups, news, contact, clock, events, announcement })
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
        let mut news = self.news.lock();
        let asked = Instant::now();
        let News { snapshot, log, position, changed } =
            self.shared.changes_since(news.heard.as_ref().map(|last| &last.snapshot))?;
        match changed {
            None => self.groups.make_all_old(),
            Some(changed) => changed.iter().try_for_each(|(group, at)| self.has_changed(group, *at))?,
        }
        if news.life.replace(snapshot.life).is_some_and(|before| before != snapshot.life) {
            let detail =
                "the database was restored, or a standby took over: nothing was recorded as first for a minute";
            self.events.note(FleetAlarmKind::DatabaseForgot, detail.to_owned());
        }
        let is_noted = |last: &&Heard| last.snapshot.life == snapshot.life && last.noted.elapsed() < NOTE_INTERVAL;
        let noted = match news.heard.as_ref().filter(is_noted) {
            Some(last) => last.noted,
            None => {
                self.index.note_seen_life(SeenLife { life: snapshot.life, log, position, at: self.clock.now() });
                asked
            }
        };
        news.heard = Some(Heard { snapshot: snapshot.clone(), noted });
        Ok(snapshot)
    }

    /// Makes a group old that has changed, unless its copy has the change: this replica may have made it.
    fn has_changed(&self, group: &RecordGroup, at: Moment) -> Result<(), StoreError> {
        let stripe = self.groups.of(&group.as_ref());
        // Without a moment there may still be records: of a process that was killed, or of a change that the disk did not take.
        if !self.index.copied_moment(group)?.is_some_and(|copied| copied.has(at)) {
            stripe.has_changed(group, at);
        }
        Ok(())
    }

    /// Asks like [`Feed::hear`], for a request: not while the database is left alone, because it does not answer.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn hear_now(&self) -> Result<(), StoreError> {
        self.shared.admit()?;
        self.hear().map(drop)
    }

    /// Waits until all other replicas have heard of what was written before: five seconds at most. Returns those that have not.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn spread(&self) -> Result<Vec<Unreached>, StoreError> {
        self.shared.spread(self.announcement.get())
    }

    /// The settings of the other replicas that run, each with its URL.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn settings_of_others(&self) -> Result<Vec<(String, String)>, StoreError> {
        self.shared.settings_of_others(self.announcement.get())
    }

    /// Announces something else of this replica from now on. Does nothing where it is not announced.
    pub fn announce(&self, change: impl FnOnce(&mut Report)) {
        if let Some(announcement) = self.announcement.get() {
            announcement.change(change);
        }
    }

    /// Claims work that one replica does for all. Returns false if another one has it, or this one is not announced.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn claim(&self, work: &str) -> Result<bool, StoreError> {
        self.announcement.get().map_or(Ok(false), |own| self.shared.claim(work, own))
    }

    /// The work that other replicas have claimed, each with the URL of the replica.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn claims_of_others(&self) -> Result<Vec<(String, String)>, StoreError> {
        self.shared.claims_of_others(self.announcement.get())
    }

    /// Gives up work that this replica may have claimed.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn give_up(&self, work: &str) -> Result<(), StoreError> {
        self.announcement.get().map_or(Ok(()), |own| self.shared.give_up(work, own))
    }

    /// Asks each second from now on, and announces this replica, until the returned value is dropped.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn follow(self: &Arc<Self>, announcement: Announcement) -> std::io::Result<Following> {
        let announcement = self.announcement.get_or_init(|| announcement).clone();
        let (feed, (stop, stopped)) = (Arc::clone(self), mpsc::channel::<()>());
        let thread = std::thread::Builder::new().name("larder-feed".to_owned()).spawn(move || {
            let mut is_told = false;
            let answers = loop {
                let began = Instant::now();
                let serve_behind = feed.contact.serve_behind();
                let said =
                    feed.hear().and_then(|snapshot| feed.shared.announce(&announcement, &snapshot, serve_behind));
                // Commands wait for those that are announced: another one must not serve as if it knew.
                if said.is_ok() {
                    feed.contact.heard(began);
                }
                if matches!(said, Ok(true)) && !std::mem::replace(&mut is_told, true) {
                    tracing::error!(
                        url = announcement.url(),
                        "another replica that runs has the same URL, so commands wait for one of them only: set [fleet] \
                         advertise to the URL of each"
                    );
                }
                // The log says once that the database does not answer.
                let answers =
                    said.inspect_err(|error| tracing::debug!(%error, "nothing was heard of other replicas")).is_ok();
                if stopped.recv_timeout(INTERVAL.saturating_sub(began.elapsed())) != Err(RecvTimeoutError::Timeout) {
                    break answers;
                }
            };
            if answers && let Err(error) = feed.shared.leave(&announcement) {
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
            // Its steps have limits, so this takes a few seconds at most, where the database hangs.
            let _ = thread.join();
        }
    }
}
