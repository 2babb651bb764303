//! The failed requests of clients, each with its cause, remedy, client and count. A bounded list in memory,
//! for people; the metrics count everything.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;

use crate::clock::Timestamp;
use crate::error::Error;
use crate::explanation::{Explanation, safe_text};
use crate::protocol::RequestFailure;
use crate::protocol::admin::RecentFailure;
use crate::wording::shell_word;

/// The most failures that are remembered, and the time for which.
const MAX_FAILURES: usize = 200;
const REMEMBERED_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// The most bytes of a path that is remembered. Clients' own paths are shorter.
pub(super) const MAX_PATH_BYTES: usize = 1024;

/// The failures, by path.
#[derive(Debug, Default)]
pub(super) struct RecentFailures {
    /// The number of those that are not over, so that a good answer costs one load where there are none.
    open: AtomicUsize,
    by_path: Mutex<BTreeMap<String, RecentFailure>>,
}

impl RecentFailures {
    /// Records a failed request. A 404 is an answer, and `missing` lists the packages that are not there while offline.
    pub(super) fn record(
        &self,
        path: &str,
        failure: &RequestFailure,
        status: StatusCode,
        client: IpAddr,
        now: Timestamp,
    ) {
        let RequestFailure::Mirror(error) = failure else { return };
        if status == StatusCode::NOT_FOUND {
            return;
        }
        match error {
            Error::UnknownHost(_)
            | Error::Refused { .. }
            | Error::Offline(_)
            | Error::WaitsForPlatforms(_)
            | Error::Sealed(_)
            | Error::WouldAsk(_)
            // A limit of a moment, or a client's own doing.
            | Error::Busy { .. }
            | Error::TooManyUnattendedFills { .. }
            | Error::Looped => {}
            error => self.add(path, &error.explain(), status, client, now),
        }
    }

    /// Records an answer whose body broke off.
    pub(super) fn record_broken_off(&self, path: &str, status: StatusCode, client: IpAddr, now: Timestamp) {
        let cause = Explanation::of("the body broke off, because it could not be fetched or verified to its end");
        let explained = cause.remedied_by(format!("`larder explain {}` says why", shell_word(path)));
        self.add(path, &explained, status, client, now);
    }

    fn add(&self, path: &str, explained: &Explanation, status: StatusCode, client: IpAddr, now: Timestamp) {
        if path.len() > MAX_PATH_BYTES {
            return;
        }
        let mut by_path = self.by_path.lock();
        by_path.retain(|_, failure| now.since(failure.last) < REMEMBERED_FOR);
        make_room(&mut by_path, &path.to_owned(), MAX_FAILURES, |failure| failure.last);
        let before = by_path.get(path).map(|failure| (failure.first, failure.times));
        let (first, times) = before.unwrap_or((now, 0));
        let failure = RecentFailure {
            path: path.to_owned(),
            subject: explained.subject.as_deref().map(safe_text),
            status: status.as_u16(),
            cause: safe_text(&explained.cause),
            remedy: explained.remedy.as_deref().map(safe_text),
            client: client.to_string(),
            times: times.saturating_add(1),
            first,
            last: now,
            is_over: false,
        };
        by_path.insert(path.to_owned(), failure);
        self.count_open(&by_path);
    }

    fn count_open(&self, by_path: &BTreeMap<String, RecentFailure>) {
        self.open.store(by_path.values().filter(|failure| !failure.is_over).count(), Ordering::Relaxed);
    }

    /// Notes that a path was answered.
    pub(super) fn note_answered<'a>(&self, path: impl FnOnce() -> Cow<'a, str>) {
        if self.open.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut by_path = self.by_path.lock();
        if let Some(failure) = by_path.get_mut(&*path()) {
            failure.is_over = true;
            self.count_open(&by_path);
        }
    }

    /// The failures of the last day: those that still are, then those that are over, the newest first of each.
    pub(super) fn list(&self, now: Timestamp) -> Vec<RecentFailure> {
        let mut by_path = self.by_path.lock();
        by_path.retain(|_, failure| now.since(failure.last) < REMEMBERED_FOR);
        self.count_open(&by_path);
        let mut listed: Vec<RecentFailure> = by_path.values().cloned().collect();
        listed.sort_by_key(|failure| (failure.is_over, std::cmp::Reverse(failure.last)));
        listed
    }
}

/// Makes room for a key in a bounded map: the oldest entry goes.
pub(super) fn make_room<K: Ord + Clone, V>(
    map: &mut BTreeMap<K, V>,
    key: &K,
    most: usize,
    last: impl Fn(&V) -> Timestamp,
) {
    if !map.contains_key(key) && map.len() >= most {
        let oldest = map.iter().min_by_key(|(_, entry)| last(entry)).map(|(key, _)| key.clone());
        oldest.and_then(|oldest| map.remove(&oldest));
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn fail(failures: &RecentFailures, path: &str, now: u64) {
        let failure = RequestFailure::Mirror(Error::Unverified {
            subject: "the proof set of x".to_owned(),
            verdict: "signed by key X".to_owned(),
            instead: None,
        });
        failures.record(path, &failure, StatusCode::BAD_GATEWAY, CLIENT, Timestamp(now));
    }

    #[test]
    fn failures_are_counted_by_path_and_are_over_with_a_good_answer() {
        let failures = RecentFailures::default();
        (0..3).for_each(|now| fail(&failures, "/a", now));
        fail(&failures, "/b", 1);
        failures.note_answered(|| "/a".into());
        failures.note_answered(|| "/never".into());
        let listed = failures.list(Timestamp(9));
        let lines: Vec<(&str, u64, bool)> =
            listed.iter().map(|failure| (failure.path.as_str(), failure.times, failure.is_over)).collect();
        assert_eq!(lines, [("/b", 1, false), ("/a", 3, true)]);
        assert!(failures.list(Timestamp(REMEMBERED_FOR.as_secs() + 9)).is_empty());
    }

    #[test]
    fn the_list_is_bounded_and_what_does_not_exist_is_no_failure() {
        let failures = RecentFailures::default();
        (0..1_000).for_each(|number| fail(&failures, &format!("/{number}"), number));
        fail(&failures, &"x".repeat(5_000), 2_000);
        let listed = failures.list(Timestamp(2_000));
        assert_eq!((listed.len(), listed[0].path.as_str()), (MAX_FAILURES, "/999"));
        let failures = RecentFailures::default();
        for error in [Error::NotFound("x".to_owned()), Error::Offline("x".to_owned())] {
            failures.record("/x", &RequestFailure::Mirror(error), StatusCode::NOT_FOUND, CLIENT, Timestamp(1));
        }
        assert!(failures.list(Timestamp(1)).is_empty());
    }
}
