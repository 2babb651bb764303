//! The retry policy for one archive: a small state machine without I/O, used by fills and by pass-through.

use std::time::Duration;

use crate::upstream::error::Fault;

/// The most consecutive breaks without a new byte.
const MOST_FRUITLESS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(200);
/// The minimum throughput over the stall time.
const LEAST_BYTES_PER_SECOND: u64 = 1024;

/// The length announced to clients. With a different length they could take a part for the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnnouncedLength {
    Nothing,
    /// This many bytes.
    Length(u64),
    /// Announced as unknown.
    NoLength,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UrlFrom {
    TheSet,
    TheDocumentAskedAnew,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Request the rest after this pause.
    AskAfter(Duration),
    /// The URL may have expired: fetch the document that names it again.
    AskTheDocumentAnew,
    /// A retry is useless.
    GiveUp,
    TooSlow,
}

/// The result of comparing upstream's announcement with the earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Agreed {
    /// They agree on this length.
    Length(Option<u64>),
    /// The partial download must be discarded.
    StartOver,
    /// They contradict each other, and clients have seen the first.
    Never { told: u64, now: u64 },
}

/// Upstream's announcement: the first byte of the body, and the length of the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Announced {
    pub(super) from: u64,
    pub(super) length: Option<u64>,
}

/// The partial download: its size, and the length announced for the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Before {
    pub(super) bytes: u64,
    pub(super) length: Option<u64>,
}

/// The state of the attempts to fetch one archive.
#[derive(Debug)]
pub(super) struct Attempts {
    told: AnnouncedLength,
    url: UrlFrom,
    fruitless: u32,
    pace: ThroughputMeter,
    stall: Duration,
}

impl Attempts {
    /// Starts without attempts. An upstream that is too slow over `stall` is given up.
    pub(super) fn new(stall: Duration) -> Self {
        Self {
            told: AnnouncedLength::Nothing,
            url: UrlFrom::TheSet,
            fruitless: 0,
            pace: ThroughputMeter::default(),
            stall,
        }
    }

    /// Records that clients may be sent this length from now on.
    pub(super) fn tell(&mut self, length: Option<u64>) {
        self.told = length.map_or(AnnouncedLength::NoLength, AnnouncedLength::Length);
    }

    pub(super) fn told(&self) -> AnnouncedLength {
        self.told
    }

    /// Counts a wait for an answer. Returns true if upstream is too slow; before anything was announced to clients,
    /// never.
    pub(super) fn is_too_slow_to_answer(&mut self, waited: Duration) -> bool {
        self.told != AnnouncedLength::Nothing && self.is_too_slow(waited, 0)
    }

    /// Counts a wait and its bytes. Returns true if upstream is too slow.
    pub(super) fn is_too_slow(&mut self, waited: Duration, brought: u64) -> bool {
        self.pace.is_too_slow(waited, brought, self.stall)
    }

    pub(super) fn refused(&mut self, fault: &Fault) -> Next {
        match self.url {
            UrlFrom::TheSet if fault.may_be_an_expired_url() => {
                self.url = UrlFrom::TheDocumentAskedAnew;
                Next::AskTheDocumentAnew
            }
            UrlFrom::TheSet | UrlFrom::TheDocumentAskedAnew => Next::GiveUp,
        }
    }

    /// Decides the next step after a connection broke with `brought` new bytes.
    pub(super) fn broke(&mut self, brought: u64) -> Next {
        if brought > 0 {
            self.fruitless = 0;
            // A long download may outlive its second URL too.
            self.url = UrlFrom::TheSet;
        } else {
            self.fruitless += 1;
        }
        let pause = PAUSE * (self.fruitless + 1);
        if self.fruitless >= MOST_FRUITLESS {
            Next::GiveUp
        } else if self.is_too_slow(pause, 0) {
            Next::TooSlow
        } else {
            Next::AskAfter(pause)
        }
    }

    pub(super) fn agreed(&self, before: Before, now: Announced) -> Agreed {
        match (self.told, now.length) {
            (AnnouncedLength::Length(told), Some(now)) if told != now => Agreed::Never { told, now },
            (AnnouncedLength::Length(told), _) => Agreed::Length(Some(told)),
            (AnnouncedLength::NoLength, _) => Agreed::Length(None),
            // The partial download of an earlier run is only useful if it fits.
            (AnnouncedLength::Nothing, length) => {
                let fits = before.length.is_none() || length.is_none() || before.length == length;
                let starts_over = now.from == 0 && before.bytes > 0;
                if starts_over || !fits { Agreed::StartOver } else { Agreed::Length(length) }
            }
        }
    }
}

/// Measures throughput over all connections of one download.
#[derive(Debug, Default)]
struct ThroughputMeter {
    waited: Duration,
    brought: u64,
}

impl ThroughputMeter {
    /// Counts a wait and its bytes. Returns true if a whole stall time had too few bytes.
    fn is_too_slow(&mut self, waited: Duration, brought: u64, stall: Duration) -> bool {
        self.waited += waited;
        self.brought += brought;
        if self.waited < stall {
            return false;
        }
        let enough = LEAST_BYTES_PER_SECOND * stall.as_secs();
        let Self { brought, .. } = std::mem::take(self);
        brought < enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALL: Duration = Duration::from_secs(30);
    const GONE: Fault = Fault::Absent(404);
    const DOWN: Fault = Fault::Trouble { status: 503, errors: Vec::new(), retry_after: None };

    enum Event {
        Refused(Fault),
        Broke(u64),
        Waited(u64, u64),
    }
    use Event::{Broke, Refused, Waited};

    const fn after(milliseconds: u64) -> Next {
        Next::AskAfter(Duration::from_millis(milliseconds))
    }

    /// Each row: a sequence of events, and the step after the last one.
    #[test]
    fn what_happened_decides_what_is_next() {
        let table: [(&[Event], Next); 12] = [
            // A URL that may have expired is replaced once.
            (&[Refused(GONE)], Next::AskTheDocumentAnew),
            (&[Refused(GONE), Refused(GONE)], Next::GiveUp),
            (&[Refused(DOWN)], Next::GiveUp),
            (&[Refused(Fault::Denied(403))], Next::AskTheDocumentAnew),
            (&[Refused(Fault::Denied(451))], Next::GiveUp),
            // And once more after bytes have arrived.
            (&[Refused(GONE), Broke(1), Refused(GONE)], Next::AskTheDocumentAnew),
            (&[Refused(GONE), Broke(0), Refused(GONE)], Next::GiveUp),
            // Breaks without bytes end the download, each after a longer pause.
            (&[Broke(1)], after(200)),
            (&[Broke(0)], after(400)),
            (&[Broke(0), Broke(0)], after(600)),
            (&[Broke(0), Broke(0), Broke(0)], Next::GiveUp),
            // Too little over the stall time.
            (&[Waited(29_900, 100), Broke(1)], Next::TooSlow),
        ];
        for (row, (events, expected)) in table.into_iter().enumerate() {
            let mut attempts = Attempts::new(STALL);
            let mut next = None;
            for event in events {
                next = Some(match event {
                    Refused(fault) => attempts.refused(fault),
                    Broke(brought) => attempts.broke(*brought),
                    Waited(milliseconds, brought) => {
                        assert!(!attempts.is_too_slow(Duration::from_millis(*milliseconds), *brought));
                        continue;
                    }
                });
            }
            assert_eq!(next, Some(expected), "row {row}");
        }
    }

    #[test]
    fn a_break_that_brought_something_forgives_those_that_did_not() {
        let mut attempts = Attempts::new(STALL);
        for _ in 0..10 {
            assert_eq!([attempts.broke(0), attempts.broke(0), attempts.broke(5)], [after(400), after(600), after(200)]);
        }
    }

    #[test]
    fn the_time_before_the_first_answer_counts_only_once_clients_wait_for_the_rest() {
        let mut attempts = Attempts::new(STALL);
        assert!(!attempts.is_too_slow_to_answer(STALL * 2));
        attempts.tell(None);
        assert!(attempts.is_too_slow_to_answer(STALL * 2));
    }

    #[test]
    fn the_pace_is_taken_over_each_stall_time() {
        let mut attempts = Attempts::new(STALL);
        assert!(!attempts.is_too_slow(STALL, 30 * 1024));
        assert!(!attempts.is_too_slow(STALL / 2, 0));
        assert!(attempts.is_too_slow(STALL / 2, 30 * 1024 - 1));
    }

    /// Each row: the announced length, the partial download with its length, upstream's announcement, and the result.
    #[test]
    fn announcements_are_held_against_each_other() {
        let (nothing, length, no_length) =
            (AnnouncedLength::Nothing, AnnouncedLength::Length(10), AnnouncedLength::NoLength);
        let table = [
            (nothing, (0, None), (0, Some(10)), Agreed::Length(Some(10))),
            (nothing, (0, None), (0, None), Agreed::Length(None)),
            (nothing, (4, Some(10)), (4, Some(10)), Agreed::Length(Some(10))),
            (nothing, (4, None), (4, Some(10)), Agreed::Length(Some(10))),
            (nothing, (4, Some(10)), (4, None), Agreed::Length(None)),
            // Another file, or one that starts over: the partial download of an earlier run is useless.
            (nothing, (4, Some(10)), (4, Some(11)), Agreed::StartOver),
            (nothing, (4, Some(10)), (0, Some(10)), Agreed::StartOver),
            // Clients have bytes of the first: a restart is compared, and another length never fits.
            (length, (4, Some(10)), (4, Some(10)), Agreed::Length(Some(10))),
            (length, (4, Some(10)), (0, Some(10)), Agreed::Length(Some(10))),
            (length, (4, Some(10)), (4, None), Agreed::Length(Some(10))),
            (length, (4, Some(10)), (4, Some(11)), Agreed::Never { told: 10, now: 11 }),
            (length, (4, Some(10)), (0, Some(9)), Agreed::Never { told: 10, now: 9 }),
            (no_length, (4, None), (4, Some(10)), Agreed::Length(None)),
            (no_length, (4, None), (0, None), Agreed::Length(None)),
        ];
        for (row, (told, (bytes, before), (from, now), expected)) in table.into_iter().enumerate() {
            let attempts = Attempts { told, ..Attempts::new(STALL) };
            let agreed = attempts.agreed(Before { bytes, length: before }, Announced { from, length: now });
            assert_eq!(agreed, expected, "row {row}");
        }
    }
}
