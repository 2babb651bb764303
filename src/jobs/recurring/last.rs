//! Last runs and due times of recurring warm-ups. The caller passes the current time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::MIN_RETRY_DELAY;
use crate::clock::Timestamp;
use crate::config::{RecurringWarmTarget, RecurringWarmUp};
use crate::jobs::job_report::{ItemCounts, JobState, JobSummary};

/// The random delay is at most the interval divided by this, so that several larders do not start at once.
const JITTER_DIVISOR: u32 = 20;
/// After this many consecutive failures the pause no longer grows.
const MAX_DOUBLINGS: u32 = 16;

/// The last run of a recurring warm-up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastRun {
    /// When the run ended, in seconds since 1970.
    pub ended: Timestamp,
    /// The result.
    pub state: JobState,
    /// ID of the run's job; `None` if the run did not begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// Archives of the run, by state.
    pub items: ItemCounts,
    /// The reason why the run did not begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Consecutive failures.
    pub failures: u32,
}

/// A recurring warm-up in `GET /admin/v1/status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecurringState {
    /// The configured addresses and paths.
    pub what: Vec<String>,
    /// Interval between the end of a run and the next, in seconds.
    pub every_seconds: u64,
    /// The job of the current run.
    pub running: Option<String>,
    /// The last run; `None` before the first.
    pub last: Option<LastRun>,
    /// The due time, in seconds since 1970; `None` during a run, and where larder is offline or does not run.
    pub next: Option<Timestamp>,
}

impl RecurringState {
    pub(super) fn of(
        entry: &RecurringWarmUp,
        last: Option<&LastRun>,
        running: Option<String>,
        is_scheduled: bool,
        now: Timestamp,
    ) -> Self {
        let next = (is_scheduled && running.is_none()).then(|| last.map_or(now, |last| last.due(entry.every, now)));
        let display_name = |target: &RecurringWarmTarget| match target {
            RecurringWarmTarget::Address(address) => address.clone(),
            RecurringWarmTarget::Path(path) => path.display().to_string(),
        };
        let targets = entry.targets.iter().map(display_name).collect();
        Self { what: targets, every_seconds: entry.every.as_secs(), running, last: last.cloned(), next }
    }
}

impl LastRun {
    /// The due time of the next run.
    pub(super) fn due(&self, every: Duration, now: Timestamp) -> Timestamp {
        let pause = match self.failures.checked_sub(1) {
            None => every,
            Some(doublings) => {
                let delay = MIN_RETRY_DELAY.saturating_mul(1 << doublings.min(MAX_DOUBLINGS));
                delay.min(every.max(MIN_RETRY_DELAY))
            }
        };
        // A clock that was set back must not lengthen the pause.
        self.ended.min(now).after(pause)
    }
}

/// The last runs of all recurring warm-ups.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct LastRuns(BTreeMap<String, LastRun>);

impl LastRuns {
    pub(super) fn get(&self, key: &str) -> Option<&LastRun> {
        self.0.get(key)
    }

    /// The next due time; `None` before the first run.
    ///
    /// A run that ended in the future, because the clock was set back, counts as ended now. Otherwise each call would
    /// return a later time.
    pub(super) fn due(&mut self, key: &str, every: Duration, now: Timestamp) -> Option<Timestamp> {
        let last = self.0.get_mut(key)?;
        last.ended = last.ended.min(now);
        Some(last.due(every, now))
    }

    /// Records a run that ended unobserved, unless a later run is recorded.
    pub(super) fn record_finished_run(&mut self, key: &str, run: JobSummary, now: Timestamp) {
        if self.0.get(key).is_none_or(|last| run.ended > Some(last.ended)) {
            self.put(key, Ok(run), now);
        }
    }

    /// Records a finished run, or the reason why it did not begin. A run counts once, however often it is recorded.
    pub(super) fn put(&mut self, key: &str, ended: Result<JobSummary, String>, now: Timestamp) {
        let previous = self.0.get(key);
        if let (Some(last), Ok(run)) = (previous, &ended)
            && last.job.as_ref() == Some(&run.id)
        {
            return;
        }
        let failures = previous.map_or(0, |last| last.failures).saturating_add(1);
        let last = match ended {
            Ok(JobSummary { id, state, ended, items, .. }) => LastRun {
                ended: ended.unwrap_or(now),
                state,
                job: Some(id),
                items,
                error: None,
                failures: if state == JobState::Failed { failures } else { 0 },
            },
            Err(error) => LastRun {
                ended: now,
                state: JobState::Failed,
                job: None,
                items: ItemCounts::default(),
                error: Some(error),
                failures,
            },
        };
        self.0.insert(key.to_owned(), last);
    }

    /// Removes the runs of all other keys.
    pub(super) fn keep_only(&mut self, keys: impl Iterator<Item = String>) {
        let keys: BTreeSet<String> = keys.collect();
        self.0.retain(|key, _| keys.contains(key));
    }
}

/// Key of a recurring warm-up, from all its settings but the interval.
pub(super) fn key(entry: &RecurringWarmUp) -> String {
    let RecurringWarmUp { targets, platforms, every: _, pin, client } = entry;
    let named = targets.iter().map(|target| match target {
        RecurringWarmTarget::Address(address) => format!("a{address}"),
        RecurringWarmTarget::Path(path) => format!("p{}", path.display()),
    });
    let named: Vec<String> = named.collect();
    let platforms: Vec<String> = platforms.iter().map(ToString::to_string).collect();
    let text = format!("{named:?}{platforms:?}{pin}{client:?}");
    blake3::hash(text.as_bytes()).to_hex().chars().take(16).collect()
}

/// Adds jitter to a due time in the future.
pub(super) fn with_jitter(due: Timestamp, now: Timestamp) -> Timestamp {
    let mut random = [0u8; 4];
    // Without random bytes there is no jitter.
    let _ = aws_lc_rs::rand::fill(&mut random);
    let fraction = f64::from(u32::from_le_bytes(random)) / f64::from(u32::MAX);
    due.after((due.since(now) / JITTER_DIVISOR).mul_f64(fraction))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn summary(state: JobState) -> JobSummary {
        JobSummary {
            id: "1".to_owned(),
            state,
            started: Timestamp(900),
            ended: Some(Timestamp(1000)),
            what: vec![],
            platforms: vec![],
            pin: false,
            resolving: false,
            items: ItemCounts::default(),
        }
    }

    #[test]
    fn retries_of_a_failed_run_back_off_up_to_the_configured_interval() {
        let mut runs = LastRuns::default();
        let pauses: Vec<u64> = (0..12)
            .map(|number| {
                runs.put("a", Ok(JobSummary { id: number.to_string(), ..summary(JobState::Failed) }), Timestamp(1000));
                runs.get("a").unwrap().due(DAY, Timestamp(1000)).0 - 1000
            })
            .collect();
        assert_eq!(pauses[..4], [300, 600, 1200, 2400]);
        assert_eq!(pauses[11], DAY.as_secs());
        runs.put("a", Ok(JobSummary { id: "done".to_owned(), ..summary(JobState::Done) }), Timestamp(1000));
        assert_eq!(runs.get("a").unwrap().due(DAY, Timestamp(5000)).0, 1000 + DAY.as_secs());
        runs.put("a", Err("no such folder".to_owned()), Timestamp(2000));
        assert_eq!(runs.get("a").unwrap().due(DAY, Timestamp(2000)).0, 2300);
    }

    #[test]
    fn a_clock_set_back_does_not_lengthen_the_pause() {
        let mut runs = LastRuns::default();
        runs.put("a", Ok(summary(JobState::Done)), Timestamp(1000));
        assert_eq!(runs.get("a").unwrap().due(DAY, Timestamp(10)).0, 10 + DAY.as_secs());
    }

    #[tokio::test]
    async fn a_clock_set_back_during_the_wait_does_not_lengthen_it() {
        let clock = Clock::system();
        let year = 365 * DAY;
        clock.advance(year);
        let ended = clock.now();
        let mut runs = LastRuns::default();
        runs.put("a", Ok(JobSummary { ended: Some(ended), ..summary(JobState::Done) }), ended);
        let waiting = clock.until_due(|now| runs.due("a", DAY, now).unwrap());
        let set_back = async {
            tokio::task::yield_now().await;
            clock.set_back(year);
            tokio::task::yield_now().await;
            clock.advance(DAY + Duration::from_secs(1));
        };
        let both = async { tokio::join!(waiting, set_back) };
        tokio::time::timeout(Duration::from_secs(20), both)
            .await
            .expect("the wait took the year by which the clock was set back");
        assert!(clock.now() < ended);
    }

    #[test]
    fn an_unobserved_run_is_recorded_once_and_never_over_a_later_one() {
        let mut runs = LastRuns::default();
        let run = |id: &str, ended| JobSummary {
            id: id.to_owned(),
            ended: Some(Timestamp(ended)),
            ..summary(JobState::Failed)
        };
        runs.record_finished_run("a", run("1", 1000), Timestamp(1500));
        runs.put("a", Ok(run("1", 1000)), Timestamp(1600));
        assert_eq!((runs.get("a").unwrap().failures, runs.get("a").unwrap().ended), (1, Timestamp(1000)));
        runs.put("a", Err("no such folder".to_owned()), Timestamp(2000));
        runs.record_finished_run("a", run("1", 1000), Timestamp(2500));
        assert_eq!((runs.get("a").unwrap().failures, runs.get("a").unwrap().job.as_deref()), (2, None));
        runs.record_finished_run("a", run("2", 3000), Timestamp(3500));
        assert_eq!((runs.get("a").unwrap().failures, runs.get("a").unwrap().job.as_deref()), (3, Some("2")));
    }

    #[test]
    fn jitter_adds_at_most_a_twentieth_and_never_makes_a_run_early() {
        for _ in 0..100 {
            let due = with_jitter(Timestamp(1000 + DAY.as_secs()), Timestamp(1000));
            assert!((DAY.as_secs()..=DAY.as_secs() * 21 / 20).contains(&(due.0 - 1000)), "{due:?}");
            assert_eq!(with_jitter(Timestamp(5), Timestamp(1000)), Timestamp(5));
        }
    }
}
