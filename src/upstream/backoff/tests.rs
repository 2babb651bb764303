//! Tests of the circuit breakers and rate limits: tables of events with their results, and invariants.

use proptest::prelude::*;

use super::*;

fn origin(host: &str) -> Origin {
    Origin::of(&Url::parse(&format!("https://{host}/a/path?with=query")).unwrap())
}

fn upstream() -> Hostname {
    Hostname::parse("registry.example").unwrap()
}

/// An event at an origin, with the expected result.
enum BreakerEvent {
    /// A failure with this Retry-After in seconds, and the change of the breaker.
    Fails(Option<u64>, BreakerChange),
    /// An answer; true if it closes the breaker.
    Answers(bool),
    /// True if a revalidation is admitted.
    MayRevalidate(bool),
}

use BreakerChange::{Opened, Reopened, StillOpen};
use BreakerEvent::{Answers, Fails, MayRevalidate};

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A Retry-After delays jobs; a pause without one does not.
#[test]
fn only_a_retry_after_delays_jobs() {
    let (mut breakers, retry_after, silent) = (Breakers::default(), origin("a.example"), origin("b.example"));
    breakers.record_failure(&silent, None, 0.5, Timestamp(1000), &upstream());
    breakers.record_failure(&retry_after, Some(seconds(60)), 0.5, Timestamp(1000), &upstream());
    let origins = [silent, retry_after];
    assert_eq!(breakers.retry_after_until(|_, _| true, Timestamp(1001)), Some(Timestamp(1060)));
    assert_eq!(breakers.retry_after_until(|origin, _| *origin == origins[0], Timestamp(1001)), None);
    assert_eq!(breakers.retry_after_until(|_, _| true, Timestamp(1060)), None);
    // An answer does not end a Retry-After; a clock that was set back does.
    breakers.record_answer(&origins[1], Timestamp(1010));
    assert_eq!(breakers.retry_after_until(|_, _| true, Timestamp(1011)), Some(Timestamp(1060)));
    assert_eq!(breakers.retry_after_until(|_, _| true, Timestamp(100)), None);
}

/// Runs events at one origin, each with its time, and checks their results. The jitter is 0.5.
fn assert_events(scenario: &str, events: Vec<(u64, BreakerEvent)>) {
    let (mut breakers, origin) = (Breakers::default(), origin("a.example"));
    for (number, (now, event)) in events.into_iter().enumerate() {
        let now = Timestamp(now);
        match event {
            Fails(retry_after, expected) => {
                let change =
                    breakers.record_failure(&origin, retry_after.map(Duration::from_secs), 0.5, now, &upstream());
                assert_eq!(change, expected, "{scenario}, step {number}");
            }
            Answers(closes) => {
                assert_eq!(breakers.record_answer(&origin, now), closes, "{scenario}, step {number}");
            }
            MayRevalidate(may) => {
                let probes = breakers.admit(std::slice::from_ref(&origin), &[], now);
                assert_eq!(probes.is_some(), may, "{scenario}, step {number}");
            }
        }
    }
}

/// Pauses are short and grow, one probe follows each, and a Retry-After is limited (promise 11).
#[test]
fn the_breaker_follows_the_table_of_events() {
    assert_events(
        "an origin that never failed",
        vec![(1000, MayRevalidate(true)), (1000, MayRevalidate(true)), (1000, Answers(false))],
    );
    assert_events(
        "a failure, a first pause, one probe, and an answer",
        vec![
            (1000, Fails(None, Opened(seconds(5)))),
            (1000, MayRevalidate(false)),
            (1004, MayRevalidate(false)),
            (1005, MayRevalidate(true)),
            (1005, MayRevalidate(false)),
            (1006, Answers(true)),
            (1006, MayRevalidate(true)),
            (1006, MayRevalidate(true)),
        ],
    );
    let growing = [10, 20, 40, 80, 160, 300, 300];
    let mut events = vec![(1000, Fails(None, Opened(seconds(5))))];
    let mut now = 1005;
    for pause in growing {
        events.extend([(now, MayRevalidate(true)), (now, Fails(None, Reopened(seconds(pause))))]);
        events.extend([(now + pause - 1, MayRevalidate(false))]);
        now += pause;
    }
    assert_events("every probe fails", events);
    assert_events(
        "many requests fail in one outage",
        vec![
            (1000, Fails(None, Opened(seconds(5)))),
            (1001, Fails(None, StillOpen)),
            (1004, Fails(None, StillOpen)),
            (1005, MayRevalidate(true)),
            (1006, Fails(None, Reopened(seconds(10)))),
            (1015, MayRevalidate(false)),
            (1016, MayRevalidate(true)),
        ],
    );
    assert_events(
        "a client's fetch is answered during the pause",
        vec![(1000, Fails(None, Opened(seconds(5)))), (1002, Answers(true)), (1002, MayRevalidate(true))],
    );
    assert_events(
        "a Retry-After is not ended by an answer",
        vec![
            (1000, Fails(Some(600), Opened(seconds(600)))),
            (1010, Answers(false)),
            (1599, MayRevalidate(false)),
            (1600, MayRevalidate(true)),
            (1601, Answers(true)),
        ],
    );
    assert_events("a Retry-After that is shorter than the pause", vec![(1000, Fails(Some(1), Opened(seconds(5))))]);
    assert_events(
        "a Retry-After of a year",
        vec![(1000, Fails(Some(31_536_000), Opened(seconds(3600)))), (4600, MayRevalidate(true))],
    );
    assert_events(
        "a Retry-After during the pause",
        vec![
            (1000, Fails(None, Opened(seconds(5)))),
            (1003, Fails(Some(60), StillOpen)),
            (1062, MayRevalidate(false)),
            (1063, MayRevalidate(true)),
        ],
    );
    assert_events(
        "the clock is set back",
        vec![(90_000, Fails(Some(3600), Opened(seconds(3600)))), (1000, MayRevalidate(true))],
    );
    assert_events(
        "the clock is set back a little",
        vec![(1000, Fails(None, Opened(seconds(5)))), (990, MayRevalidate(false)), (1005, MayRevalidate(true))],
    );
    assert_events(
        "old failures are forgotten",
        vec![
            (1000, Fails(None, Opened(seconds(5)))),
            (1005, Fails(None, Reopened(seconds(10)))),
            (9000, Fails(None, Reopened(seconds(5)))),
        ],
    );
}

#[test]
fn a_probe_belongs_to_one_caller_and_can_be_returned() {
    let mut breakers = Breakers::default();
    let (a, b) = (origin("a.example"), origin("b.example"));
    for origin in [&a, &b] {
        breakers.record_failure(origin, None, 0.5, Timestamp(1000), &upstream());
    }
    let now = Timestamp(1005);
    let probes_a = breakers.admit(&[a.clone(), a.clone()], &[], now).unwrap();
    assert_eq!(probes_a.len(), 1);
    assert!(breakers.admit(std::slice::from_ref(&a), &[], now).is_none());
    assert!(breakers.admit(&[b.clone(), a.clone()], &[], now).is_none(), "all or nothing");
    assert_eq!(breakers.admit(std::slice::from_ref(&a), &probes_a, now).unwrap(), []);
    let probes_b = breakers.admit(&[a.clone(), b.clone()], &probes_a, now).unwrap();
    assert_eq!(probes_b.len(), 1, "the probe of b was not taken before");
    breakers.return_probe(&probes_a[0]);
    assert_eq!(breakers.admit(std::slice::from_ref(&a), &[], now).unwrap().len(), 1);
    breakers.return_probe(&probes_a[0]);
    assert!(breakers.admit(std::slice::from_ref(&a), &[], now).is_none(), "a probe is returned only once");
}

#[test]
fn the_number_of_open_breakers_is_limited() {
    let mut breakers = Breakers::default();
    for number in 0..3 * MAX_ORIGINS as u64 {
        breakers.record_failure(&origin(&format!("h{number}.example")), None, 0.5, Timestamp(1000), &upstream());
        assert!(breakers.by_origin.len() <= MAX_ORIGINS);
    }
}

proptest! {
    /// In any sequence of events, there is one probe at a time, no pause exceeds its limit, and none survives a
    /// clock that is set back.
    #[test]
    fn every_pause_ends(
        events in proptest::collection::vec((0u8..3, 0u64..400, 0u64..100_000, 0.0f64..1.0), 1..60),
    ) {
        let (mut breakers, origin) = (Breakers::default(), origin("a.example"));
        let origins = std::slice::from_ref(&origin);
        let mut now = 1_000_000;
        let mut probing = false;
        for (event, seconds_later, retry_after, jitter) in events {
            now += seconds_later;
            match event {
                0 => {
                    let change = breakers.record_failure(&origin, (retry_after % 2 == 0).then(|| Duration::from_secs(retry_after)), jitter, Timestamp(now), &upstream());
                    probing &= change == BreakerChange::StillOpen;
                }
                1 => { probing &= !breakers.record_answer(&origin, Timestamp(now)); }
                _ => {
                    let admitted = breakers.admit(origins, &[], Timestamp(now));
                    prop_assert!(!(probing && admitted.as_ref().is_some_and(|probes| !probes.is_empty())));
                    probing |= admitted.is_some_and(|probes| !probes.is_empty());
                }
            }
            if let Some(state) = breakers.by_origin.get(&origin) {
                prop_assert!(state.until <= Timestamp(now + 3600));
                prop_assert!(!state.is_open_at(Timestamp(now - 100_000)));
            }
        }
    }

    #[test]
    fn a_pause_varies_by_a_quarter(failures in 1u32..100, jitter in 0.0f64..1.0) {
        let [min, pause, max] = [0.0, jitter, 1.0].map(|jitter| pause_after(failures, jitter));
        prop_assert!(seconds(4) <= min && min <= pause && pause <= max && max <= seconds(375));
    }
}

const RATE: Rate = Rate { burst: 5, per_second: 2 };

#[test]
fn a_bucket_allows_a_burst_and_then_a_rate() {
    let mut bucket = TokenBucket::full(RATE, Timestamp(1000));
    for (now, requests, is_allowed) in [
        (1000, 3, true),
        (1000, 3, false),
        (1000, 2, true),
        (1000, 1, false),
        (999, 1, false),
        (1001, 2, true),
        (1001, 1, false),
        (9000, 6, false),
        (9000, 5, true),
        (1000, 1, false),
        (1001, 2, true),
        (1001, 1, false),
    ] {
        assert_eq!(bucket.spend(requests, RATE, Timestamp(now)), is_allowed, "{requests} at {now}");
    }
}

/// Larder may stop reading a body for reasons of its own, such as a cancelled job.
#[test]
fn an_abandoned_body_is_no_failure_of_its_origin_but_an_abandoned_wait_for_an_answer_is() {
    let backoff = UpstreamBackoff::new(RATE, RATE);
    let observe = |host: &str| {
        let url = Url::parse(&format!("https://{host}/")).unwrap();
        backoff.observe(&upstream(), &url, RequestTime::new(Timestamp(1000)))
    };
    let body = observe("answers.example").record_head(StatusCode::OK, &HeaderMap::new());
    let wait = observe("silent.example");
    std::thread::sleep(MIN_ABANDONED_WAIT);
    drop((body, wait));
    let open: Vec<Origin> = backoff.open_breakers(Timestamp(1002)).into_iter().map(|(_, origin, _)| origin).collect();
    assert_eq!(open, [origin("silent.example")]);
}
