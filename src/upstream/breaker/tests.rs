//! The breaker as a table of events and results, and its invariants.

use proptest::prelude::*;

use super::*;

fn origin(host: &str) -> Origin {
    Origin::of(&Url::parse(&format!("https://{host}/a/path?with=query")).unwrap())
}

/// An event at an origin, with the expected result.
enum BreakerEvent {
    Fails(Option<u64>, BreakerChange),
    Answers(bool),
    MayAsk(bool),
}

use BreakerChange::{Opened, Reopened, StillOpen};
use BreakerEvent::{Answers, Fails, MayAsk};

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// DESIGN 4: a Retry-After delays jobs; our own pauses do not.
#[test]
fn only_a_retry_after_delays_jobs() {
    let (mut breaker, retry_after, silent) = (Breaker::default(), origin("a.example"), origin("b.example"));
    breaker.failed(&silent, None, 0.5, Timestamp(1000), || ());
    breaker.failed(&retry_after, Some(seconds(60)), 0.5, Timestamp(1000), || ());
    let both = [silent, retry_after];
    assert_eq!(breaker.retry_after_until(|_, ()| true, Timestamp(1001)), Some(Timestamp(1060)));
    assert_eq!(breaker.retry_after_until(|origin, ()| *origin == both[0], Timestamp(1001)), None);
    assert_eq!(breaker.retry_after_until(|_, ()| true, Timestamp(1060)), None);
    // An answer does not end a Retry-After; a clock that was set back does.
    breaker.answered(&both[1], Timestamp(1010));
    assert_eq!(breaker.retry_after_until(|_, ()| true, Timestamp(1011)), Some(Timestamp(1060)));
    assert_eq!(breaker.retry_after_until(|_, ()| true, Timestamp(100)), None);
}

/// Plays events at one origin, with a jitter of 0.5.
fn run_events(story: &str, happenings: Vec<(u64, BreakerEvent)>) {
    let (mut breaker, origin) = (Breaker::default(), origin("a.example"));
    for (number, (now, happens)) in happenings.into_iter().enumerate() {
        let now = Timestamp(now);
        match happens {
            Fails(retry_after, expected) => {
                let found = breaker.failed(&origin, retry_after.map(Duration::from_secs), 0.5, now, || ());
                assert_eq!(found, expected, "{story}, step {number}");
            }
            Answers(back) => assert_eq!(breaker.answered(&origin, now).is_some(), back, "{story}, step {number}"),
            MayAsk(may) => {
                let probes = breaker.admit(std::slice::from_ref(&origin), &[], now);
                assert_eq!(probes.is_some(), may, "{story}, step {number}");
            }
        }
    }
}

/// DESIGN, promise 11, DESIGN 4: pauses are short and grow, one probe follows each, and a Retry-After is bounded.
#[test]
fn the_breaker_follows_the_table_of_events() {
    run_events("one that never failed", vec![(1000, MayAsk(true)), (1000, MayAsk(true)), (1000, Answers(false))]);
    run_events(
        "a failure, the first while, one probe, and back",
        vec![
            (1000, Fails(None, Opened(seconds(5)))),
            (1000, MayAsk(false)),
            (1004, MayAsk(false)),
            (1005, MayAsk(true)),
            (1005, MayAsk(false)),
            (1006, Answers(true)),
            (1006, MayAsk(true)),
            (1006, MayAsk(true)),
        ],
    );
    let growing = [10, 20, 40, 80, 160, 300, 300];
    let mut story = vec![(1000, Fails(None, Opened(seconds(5))))];
    let mut now = 1005;
    for time in growing {
        story.extend([(now, MayAsk(true)), (now, Fails(None, Reopened(seconds(time))))]);
        story.extend([(now + time - 1, MayAsk(false))]);
        now += time;
    }
    run_events("every probe fails", story);
    run_events(
        "many requests fail in one outage",
        vec![
            (1000, Fails(None, Opened(seconds(5)))),
            (1001, Fails(None, StillOpen)),
            (1004, Fails(None, StillOpen)),
            (1005, MayAsk(true)),
            (1006, Fails(None, Reopened(seconds(10)))),
            (1015, MayAsk(false)),
            (1016, MayAsk(true)),
        ],
    );
    run_events(
        "a fill answers while it is left alone",
        vec![(1000, Fails(None, Opened(seconds(5)))), (1002, Answers(true)), (1002, MayAsk(true))],
    );
    run_events(
        "upstream asks for a while, and a fill does not end it",
        vec![
            (1000, Fails(Some(600), Opened(seconds(600)))),
            (1010, Answers(false)),
            (1599, MayAsk(false)),
            (1600, MayAsk(true)),
            (1601, Answers(true)),
        ],
    );
    run_events("it asks for less than our own", vec![(1000, Fails(Some(1), Opened(seconds(5))))]);
    run_events(
        "it asks for a year",
        vec![(1000, Fails(Some(31_536_000), Opened(seconds(3600)))), (4600, MayAsk(true))],
    );
    run_events(
        "it asks later than it failed",
        vec![
            (1000, Fails(None, Opened(seconds(5)))),
            (1003, Fails(Some(60), StillOpen)),
            (1062, MayAsk(false)),
            (1063, MayAsk(true)),
        ],
    );
    run_events("the clock is set back", vec![(90_000, Fails(Some(3600), Opened(seconds(3600)))), (1000, MayAsk(true))]);
    run_events(
        "the clock is set back a little",
        vec![(1000, Fails(None, Opened(seconds(5)))), (990, MayAsk(false)), (1005, MayAsk(true))],
    );
    run_events(
        "what happened long ago is forgotten",
        vec![
            (1000, Fails(None, Opened(seconds(5)))),
            (1005, Fails(None, Reopened(seconds(10)))),
            (9000, Fails(None, Reopened(seconds(5)))),
        ],
    );
}

#[test]
fn a_probe_belongs_to_one_caller_and_can_be_returned() {
    let mut breaker = Breaker::default();
    let (a, b) = (origin("a.example"), origin("b.example"));
    for origin in [&a, &b] {
        breaker.failed(origin, None, 0.5, Timestamp(1000), || ());
    }
    let now = Timestamp(1005);
    let of_a = breaker.admit(&[a.clone(), a.clone()], &[], now).unwrap();
    assert_eq!(of_a.len(), 1);
    assert!(breaker.admit(std::slice::from_ref(&a), &[], now).is_none());
    assert!(breaker.admit(&[b.clone(), a.clone()], &[], now).is_none(), "all or nothing");
    assert_eq!(breaker.admit(std::slice::from_ref(&a), &of_a, now).unwrap(), []);
    let of_b = breaker.admit(&[a.clone(), b.clone()], &of_a, now).unwrap();
    assert_eq!(of_b.len(), 1, "nothing was taken of it before");
    breaker.return_probe(&of_a[0]);
    assert_eq!(breaker.admit(std::slice::from_ref(&a), &[], now).unwrap().len(), 1);
    breaker.return_probe(&of_a[0]);
    assert!(breaker.admit(std::slice::from_ref(&a), &[], now).is_none(), "an old probe gives nothing back");
}

#[test]
fn the_number_of_open_breakers_is_limited() {
    let mut breaker = Breaker::default();
    for number in 0..3 * MAX_ORIGINS as u64 {
        breaker.failed(&origin(&format!("h{number}.example")), None, 0.5, Timestamp(1000), || ());
        assert!(breaker.open.len() <= MAX_ORIGINS);
    }
}

proptest! {
    /// In any sequence of events, there is one probe at a time, no pause exceeds its limit, and none survives a
    /// clock that is set back.
    #[test]
    fn every_pause_ends(
        happenings in proptest::collection::vec((0u8..3, 0u64..400, 0u64..100_000, 0.0f64..1.0), 1..60),
    ) {
        let (mut breaker, origin) = (Breaker::default(), origin("a.example"));
        let origins = std::slice::from_ref(&origin);
        let mut now = 1_000_000;
        let mut probing = false;
        for (happening, later, retry_after, jitter) in happenings {
            now += later;
            match happening {
                0 => {
                    let found = breaker.failed(&origin, (retry_after % 2 == 0).then(|| Duration::from_secs(retry_after)), jitter, Timestamp(now), || ());
                    probing &= found == BreakerChange::StillOpen;
                }
                1 => { probing &= breaker.answered(&origin, Timestamp(now)).is_none(); }
                _ => {
                    let admitted = breaker.admit(origins, &[], Timestamp(now));
                    prop_assert!(!(probing && admitted.as_ref().is_some_and(|probes| !probes.is_empty())));
                    probing |= admitted.is_some_and(|probes| !probes.is_empty());
                }
            }
            if let Some(left) = breaker.open.get(&origin) {
                prop_assert!(left.until <= Timestamp(now + 3600));
                prop_assert!(!left.is_open_at(Timestamp(now - 100_000)));
            }
        }
    }

    #[test]
    fn a_pause_varies_by_a_quarter(failures in 1u32..100, jitter in 0.0f64..1.0) {
        let (least, most, some) = (pause(failures, 0.0), pause(failures, 1.0), pause(failures, jitter));
        prop_assert!(seconds(4) <= least && least <= some && some <= most && most <= seconds(375));
    }
}
