//! The jobs that run and the last that ended: started, told of, stopped. They live as long as the process; what they
//! fetched is in the store, so a job that a restart ended is simply told again.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::report::{Item, ItemCounts, ItemState, Job, JobState, Listed};
use super::warm::{self, WarmUp};
use crate::address::Artifact;
use crate::clock::Clock;
use crate::digest::Digest;
use crate::mirror::{Came, Mirror, Pin};

/// How many archives are warmed at one time, in all jobs.
const AT_ONE_TIME: usize = 4;
/// How many jobs may run.
const MOST_RUNNING: usize = 8;
/// How many jobs are kept in mind, with those that run.
const MOST_KEPT: usize = 16;
/// The most that is told of one failure, in characters.
const LONGEST_ERROR: usize = 400;
/// What is told of an item whose job died.
const LOST: &str = "its job ended unexpectedly: larder's log says why; tell it the same again";

/// Every job of this process.
#[derive(Debug)]
pub struct Jobs {
    mirror: Arc<Mirror>,
    clock: Clock,
    kept: Mutex<VecDeque<Arc<Under>>>,
    turns: Arc<Semaphore>,
    changes: Arc<watch::Sender<u64>>,
    stop: CancellationToken,
    running: TaskTracker,
}

/// The name of a job: sixteen hex digits that nobody can guess.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct JobId([u8; 8]);

impl JobId {
    /// Parses what it prints.
    pub fn parse(given: &str) -> Option<Self> {
        let mut id = [0; 8];
        hex::decode_to_slice(given, &mut id).ok()?;
        Some(Self(id)).filter(|id| id.to_string() == given)
    }

    fn random() -> Option<Self> {
        let mut id = [0; 8];
        aws_lc_rs::rand::fill(&mut id).ok()?;
        Some(Self(id))
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// An archive that a job is about, as it is pinned with its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToPin {
    /// What it is called where nothing of it is held.
    pub what: String,
    /// Once its version is chosen.
    pub package: Option<Artifact>,
    /// Whether its job is still at it, and pins it then.
    pub is_coming: bool,
}

/// Why a job was not taken on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotStarted {
    /// As many run as may.
    #[error("{MOST_RUNNING} jobs run, and no more may at one time: wait for one to end, or stop one")]
    TooMany,
    /// Larder is about to end.
    #[error("larder is stopping: ask again when it is back")]
    Stopping,
    /// A job has no name without them.
    #[error("the system gives no random bytes")]
    Random,
}

/// One job, while it runs and after.
#[derive(Debug)]
pub(super) struct Under {
    id: JobId,
    told: Mutex<Told>,
    pub(super) turns: Arc<Semaphore>,
    changes: Arc<watch::Sender<u64>>,
    stop: CancellationToken,
}

/// How a job came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// It went through all of it.
    Reached,
    /// It was told to stop.
    Stopped,
    /// Its task died.
    Lost,
}

/// Ends a job that has not ended when this is dropped: else it would run for ever, and keep its place.
struct Ends {
    under: Arc<Under>,
    clock: Clock,
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.under.has_come_to_its_end(End::Lost, &self.clock);
    }
}

/// What is told of a job, and what each item stands for once that is known.
#[derive(Debug)]
struct Told {
    job: Job,
    about: Vec<(Option<Artifact>, Option<Digest>)>,
}

impl Jobs {
    /// No job yet.
    pub fn new(mirror: Arc<Mirror>, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            mirror,
            clock,
            kept: Mutex::default(),
            turns: Arc::new(Semaphore::new(AT_ONE_TIME)),
            changes: Arc::new(watch::Sender::new(0)),
            stop: CancellationToken::new(),
            running: TaskTracker::new(),
        })
    }

    /// Takes a warm-up on, and says how it looks at its beginning.
    ///
    /// # Errors
    /// [`NotStarted`].
    pub fn start(&self, warm_up: WarmUp) -> Result<(JobId, Job), NotStarted> {
        let id = JobId::random().ok_or(NotStarted::Random)?;
        let under = Arc::new(Under::new(id, &warm_up, self));
        let job = under.job();
        {
            let mut kept = self.kept.lock();
            if self.stop.is_cancelled() {
                return Err(NotStarted::Stopping);
            }
            if kept.iter().filter(|under| !under.has_ended()).count() >= MOST_RUNNING {
                return Err(NotStarted::TooMany);
            }
            while kept.len() >= MOST_KEPT {
                let Some(oldest) = kept.iter().position(|under| under.has_ended()) else { break };
                kept.remove(oldest);
            }
            kept.push_back(Arc::clone(&under));
        }
        tracing::info!(job = %id, what = job.what.len(), items = job.items.len(), pin = job.pin, "a warm-up begins");
        let (mirror, clock) = (Arc::clone(&self.mirror), self.clock.clone());
        self.running.spawn(async move {
            let ends = Ends { under, clock };
            let work = warm::run(&mirror, &ends.clock, &ends.under, &warm_up);
            let ended = ends.under.stop.run_until_cancelled(work).await;
            let how = if ended.is_some() { End::Reached } else { End::Stopped };
            ends.under.has_come_to_its_end(how, &ends.clock);
        });
        Ok((id, job))
    }

    /// Every job that is kept in mind, the newest first; without its items.
    pub fn all(&self) -> Vec<Listed> {
        self.kept.lock().iter().rev().map(|under| under.listed()).collect()
    }

    /// All of one job; `None` where it was forgotten or never was.
    pub fn report(&self, id: JobId) -> Option<Job> {
        Some(self.find(id)?.job())
    }

    /// Stops a job, unless it has ended. Says how it looks then.
    ///
    /// What it fetched stays. A download that is under way goes on behind, as for any other who leaves.
    pub fn cancel(&self, id: JobId) -> Option<Job> {
        let under = self.find(id)?;
        under.stop.cancel();
        under.has_come_to_its_end(End::Stopped, &self.clock);
        Some(under.job())
    }

    /// What a job is about, to be pinned or unpinned now. Of a job that runs, what is still to come is from now on, too.
    pub fn to_pin(&self, id: JobId, pin: Pin) -> Option<Vec<ToPin>> {
        let under = self.find(id)?;
        under.tell(|told| told.job.pin = pin == Pin::Set);
        let told = under.told.lock();
        let items = told.job.items.iter().zip(&told.about).map(|(item, (package, _))| ToPin {
            what: item.called(),
            package: package.clone(),
            is_coming: !item.state.has_ended(),
        });
        Some(items.collect())
    }

    /// Changes with everything that any job tells.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Stops all of them, and takes on no more.
    pub async fn stop(&self) {
        let all: Vec<_> = {
            let kept = self.kept.lock();
            self.stop.cancel();
            kept.iter().cloned().collect()
        };
        for under in all {
            under.stop.cancel();
        }
        self.running.close();
        self.running.wait().await;
    }

    fn find(&self, id: JobId) -> Option<Arc<Under>> {
        self.kept.lock().iter().find(|under| under.id == id).cloned()
    }
}

impl Under {
    fn new(id: JobId, warm_up: &WarmUp, jobs: &Jobs) -> Self {
        let WarmUp { wanted, platforms, pin } = warm_up;
        let what: Vec<String> = wanted.iter().map(|wanted| wanted.what.to_string()).collect();
        let items: Vec<Item> = warm_up
            .items()
            .map(|(wanted, platform)| Item {
                what: wanted.what.to_string(),
                platform: platform.map(ToString::to_string),
                state: ItemState::Waiting,
                bytes: 0,
                size_bytes: None,
                unconfirmed: None,
            })
            .collect();
        let platforms: Vec<String> = platforms.iter().map(ToString::to_string).collect();
        let about = vec![(None, None); items.len()];
        let (started, state) = (jobs.clock.now(), JobState::Running);
        let job = Job { id: id.to_string(), state, started, ended: None, what, platforms, pin: *pin, items };
        Self {
            id,
            told: Mutex::new(Told { job, about }),
            turns: Arc::clone(&jobs.turns),
            changes: Arc::clone(&jobs.changes),
            stop: jobs.stop.child_token(),
        }
    }

    fn job(&self) -> Job {
        self.told.lock().job.clone()
    }

    fn has_ended(&self) -> bool {
        self.told.lock().job.state.has_ended()
    }

    fn listed(&self) -> Listed {
        let told = self.told.lock();
        let Job { id, state, started, ended, what, platforms, pin, items } = &told.job;
        Listed {
            id: id.clone(),
            state: *state,
            started: *started,
            ended: *ended,
            what: what.clone(),
            platforms: platforms.clone(),
            pin: *pin,
            items: ItemCounts::of(items),
        }
    }

    /// Changes what is told, unless the job has ended: then nothing is news any more.
    fn tell(&self, change: impl FnOnce(&mut Told)) {
        {
            let mut told = self.told.lock();
            if told.job.state.has_ended() {
                return;
            }
            change(&mut told);
        }
        self.changes.send_modify(|changes| *changes = changes.wrapping_add(1));
    }

    fn tell_of(&self, item: usize, change: impl FnOnce(&mut Item)) {
        self.tell(|told| {
            if let Some(item) = told.job.items.get_mut(item) {
                change(item);
            }
        });
    }

    /// Whether what is warmed is to be pinned; that can be told while the job runs.
    pub(super) fn pins(&self) -> bool {
        self.told.lock().job.pin
    }

    pub(super) fn is_now(&self, item: usize, state: ItemState) {
        self.tell_of(item, |item| item.state = state);
    }

    /// The version of an item was chosen; it waits for its turn again.
    pub(super) fn is_about(&self, item: usize, of: &Artifact) {
        self.tell(|told| {
            if let (Some(item), Some(about)) = (told.job.items.get_mut(item), told.about.get_mut(item)) {
                item.what = match of {
                    Artifact::Provider(package) => format!("{}@{}", package.provider, package.version),
                    Artifact::Module(package) => package.to_string(),
                };
                item.state = ItemState::Waiting;
                about.0 = Some(of.clone());
            }
        });
    }

    /// Upstream could not be asked about something that an item is chosen by.
    pub(super) fn is_unconfirmed(&self, item: usize, why: String) {
        self.tell_of(item, |item| {
            tracing::warn!(job = %self.id, what = item.called(), why, "warmed by what is held");
            item.unconfirmed.get_or_insert(why);
        });
    }

    pub(super) fn arriving(&self, item: usize, bytes: u64, length: Option<u64>) {
        self.tell_of(item, |item| (item.bytes, item.size_bytes) = (bytes, length.or(item.size_bytes)));
    }

    pub(super) fn is_held(&self, item: usize, came: Came, digest: Digest, size_bytes: u64) {
        let state = match came {
            Came::Held => ItemState::Held,
            Came::Fetched => ItemState::Fetched,
        };
        self.tell(|told| {
            if let (Some(item), Some(about)) = (told.job.items.get_mut(item), told.about.get_mut(item)) {
                (item.state, item.bytes, item.size_bytes) = (state, size_bytes, Some(size_bytes));
                about.1 = Some(digest);
            }
        });
    }

    pub(super) fn has_failed(&self, item: usize, error: String) {
        let error: String = error.chars().take(LONGEST_ERROR).collect();
        self.tell_of(item, |item| {
            tracing::warn!(job = %self.id, what = item.called(), error, "could not be warmed");
            item.state = ItemState::Failed { error };
        });
    }

    /// The items that are held, and what they are.
    pub(super) fn all_held(&self) -> Vec<(usize, Artifact, Digest)> {
        let told = self.told.lock();
        let held = told.job.items.iter().zip(&told.about).enumerate();
        held.filter(|(_, (item, _))| matches!(item.state, ItemState::Held | ItemState::Fetched))
            .filter_map(|(number, (_, (package, digest)))| Some((number, package.clone()?, (*digest)?)))
            .collect()
    }

    fn has_come_to_its_end(&self, how: End, clock: &Clock) {
        self.tell(|told| {
            let job = &mut told.job;
            for item in job.items.iter_mut().filter(|item| !item.state.has_ended()) {
                item.state = match how {
                    End::Reached | End::Stopped => ItemState::Cancelled,
                    End::Lost => ItemState::Failed { error: LOST.to_owned() },
                };
            }
            let is_well = |item: &Item| matches!(item.state, ItemState::Held | ItemState::Fetched);
            job.state = match how {
                End::Stopped => JobState::Cancelled,
                End::Reached if job.items.iter().all(is_well) => JobState::Done,
                End::Reached | End::Lost => JobState::Failed,
            };
            job.ended = Some(clock.now());
            tracing::info!(job = job.id, state = ?job.state, "a warm-up ended");
        });
    }
}
