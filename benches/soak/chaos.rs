//! Everything that happens to larder during the load: faults at upstream, new versions, new editions, withdrawn
//! versions, expiring URLs, upstream outages, `kill -9`.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use rand::Rng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use tokio::time::{Instant, sleep_until};

use crate::SoakSetup;
use crate::audit;
use crate::hostile::Hostile;
use crate::ledger::BrokenPromise;
use crate::support::upstream::{FakeUpstream, Fault, Target};
use crate::truth::Draft;

/// The interval of checks of upstream's request log.
const LOG_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Republications of one version: from 64 first-seen records of it on, larder waits for `accept`.
const MAX_EDITIONS: u32 = 60;

/// The faults and changes so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FaultCounts {
    pub(crate) faults: u32,
    pub(crate) kills: u32,
    pub(crate) outages: u32,
    pub(crate) versions: u32,
    pub(crate) editions: u32,
    pub(crate) withdrawn: u32,
    pub(crate) expired: u32,
    pub(crate) requests: u64,
    pub(crate) bytes_sent: u64,
}

/// The interval of kills, and their end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kills {
    pub(crate) every: Duration,
    /// No kills after this time: the last process runs long enough to measure its memory.
    pub(crate) until: Duration,
}

/// The source of faults. Owns upstream.
pub(crate) struct Chaos {
    pub(crate) setup: Arc<SoakSetup>,
    pub(crate) upstream: FakeUpstream,
    pub(crate) hostile: Hostile,
    pub(crate) rng: StdRng,
    pub(crate) kills: Kills,
    pub(crate) counts: FaultCounts,
    /// Names and versions of packages that were published once and not withdrawn.
    pub(crate) published_once: Vec<(String, String)>,
    /// The paths at upstream of the archives that clients had when the log was last checked.
    acknowledged: HashSet<String>,
}

impl Chaos {
    pub(crate) fn new(
        setup: &Arc<SoakSetup>,
        upstream: FakeUpstream,
        hostile: Hostile,
        rng: StdRng,
        kills: Kills,
    ) -> Self {
        let (setup, counts) = (Arc::clone(setup), FaultCounts::default());
        Self { setup, upstream, hostile, rng, kills, counts, published_once: Vec::new(), acknowledged: HashSet::new() }
    }

    /// Publishes the initial versions.
    pub(crate) async fn publish_all(&mut self, sizes: &[(&str, usize)]) {
        for (name, size) in sizes {
            self.setup.provider_names.lock().push((*name).to_owned());
            for version in ["1.0.0", "1.1.0", "1.2.0"] {
                self.setup.truth.publish(&self.upstream, Draft::new(name, version, *size)).await;
            }
        }
        self.hostile.publish_all(&self.upstream).await;
        self.setup.sources.publish(&self.upstream);
    }

    /// Injects faults and changes until the given time, then removes every fault.
    pub(crate) async fn run(&mut self, until: Instant) -> anyhow::Result<()> {
        let start = Instant::now();
        let in_future = |span: Duration| Instant::now() + span;
        let (mut fault, mut change, mut outage) = (start, start, in_future(Duration::from_secs(12)));
        let (mut kill, mut log_check, mut attack) = (start + self.kills.every, start, start);
        while Instant::now() < until {
            let now = Instant::now();
            if now >= fault {
                fault = in_future(self.next_fault());
                // With each fault something changes: requests for stored archives would not meet it.
                change = now;
            }
            if now >= change {
                self.change().await;
                change = in_future(Duration::from_millis(self.rng.gen_range(400..2000)));
            }
            if now >= outage {
                self.stop_upstream_briefly().await;
                outage = in_future(Duration::from_millis(self.rng.gen_range(10_000..25_000)));
            }
            if now >= kill {
                self.kill().await?;
                kill += self.kills.every;
                if kill > start + self.kills.until {
                    kill = until;
                }
            }
            if now >= attack {
                self.hostile.step(&self.upstream).await;
                attack = in_future(Duration::from_millis(self.rng.gen_range(700..2000)));
            }
            if now >= log_check {
                self.check_refetches();
                log_check = in_future(LOG_CHECK_INTERVAL);
            }
            sleep_until(fault.min(change).min(outage).min(kill).min(log_check).min(attack).min(until)).await;
        }
        self.upstream.clear_faults();
        self.hostile.end_silence(&self.upstream);
        self.setup.set_active_faults("no faults");
        self.check_refetches();
        Ok(())
    }

    /// Removes the faults, and perhaps injects others; returns the time until the next call.
    fn next_fault(&mut self) -> Duration {
        self.upstream.clear_faults();
        if self.rng.gen_bool(0.35) {
            self.setup.set_active_faults("no faults");
            return Duration::from_millis(self.rng.gen_range(500..2500));
        }
        let mut active_faults = String::new();
        for _ in 0..self.rng.gen_range(1..3) {
            let (target, fault) = any_fault(&mut self.rng);
            active_faults.push_str(&format!("{target:?} {fault:?}; "));
            if self.rng.gen_bool(0.2) {
                self.upstream.fault_once(target, fault);
            } else {
                self.upstream.fault(target, fault);
            }
            self.counts.faults += 1;
        }
        self.setup.set_active_faults(&active_faults);
        Duration::from_millis(self.rng.gen_range(800..5000))
    }

    /// Publishes a version or an edition, withdraws a version, or expires all URLs.
    async fn change(&mut self) {
        let name = self.setup.random_provider(&mut self.rng);
        match self.rng.gen_range(0..100) {
            0..70 => {
                self.counts.versions += 1;
                let version = format!("2.0.{}", self.counts.versions);
                let size = [50_000, 400_000, 1_048_000, 1_500_000, 3_000_000, 6_000_000];
                let size = *size.choose(&mut self.rng).unwrap_or(&50_000);
                self.setup.truth.publish(&self.upstream, Draft::new(&name, &version, size)).await;
                self.published_once.push((name, version));
            }
            70..80 if self.counts.editions < MAX_EDITIONS => {
                self.counts.editions += 1;
                let draft = Draft::new("third", "1.1.0", 1_040_000).edition(1 + u64::from(self.counts.editions));
                self.setup.truth.publish(&self.upstream, draft).await;
            }
            80..88 if self.published_once.len() > 8 => {
                let offset = self.rng.gen_range(0..self.published_once.len() - 4);
                let (name, version) = self.published_once.remove(offset);
                self.upstream.withdraw("acme", &name, &version);
                self.counts.withdrawn += 1;
            }
            _ => {
                self.upstream.expire_urls();
                self.counts.expired += 1;
            }
        }
    }

    async fn stop_upstream_briefly(&mut self) {
        let previous = self.setup.active_faults();
        self.setup.set_active_faults("upstream down");
        self.upstream.stop().await;
        tokio::time::sleep(Duration::from_millis(self.rng.gen_range(200..3000))).await;
        self.upstream.restart().await;
        self.setup.set_active_faults(&previous);
        self.counts.outages += 1;
    }

    /// Kills and restarts larder; sometimes with upstream down, so that only the store can answer.
    async fn kill(&mut self) -> anyhow::Result<()> {
        self.counts.kills += 1;
        let without_upstream = self.rng.gen_bool(0.4);
        self.check_refetches();
        self.setup.processes.kill();
        if without_upstream {
            self.upstream.stop().await;
            self.setup.set_active_faults("upstream down");
        }
        self.setup.processes.start().await?;
        if without_upstream {
            if self.setup.checks_acknowledged {
                audit::audit_acknowledged(&self.setup, 40).await?;
            }
            self.upstream.restart().await;
        }
        Ok(())
    }

    /// Checks that no archive that a client has is fetched again, unless it was republished.
    fn check_refetches(&mut self) {
        self.setup.processes.sample_resources();
        let mut requests = self.upstream.requests();
        self.upstream.forget_requests();
        requests.extend(self.setup.sources.upstream.requests());
        self.setup.sources.upstream.forget_requests();
        self.counts.requests += requests.len() as u64;
        self.counts.bytes_sent += requests.iter().map(|request| request.bytes_sent).sum::<u64>();
        if !self.setup.checks_acknowledged {
            return;
        }
        for request in requests.iter().filter(|request| request.target == Target::Archive) {
            if self.acknowledged.contains(&request.path) {
                self.setup.ledger.record_broken(BrokenPromise::FetchedAgain, request.path.clone());
            }
        }
        let archives_published_once =
            self.setup.ledger.archives().into_iter().filter(|(_, archive)| archive.package.version.starts_with('2'));
        self.acknowledged = archives_published_once
            .map(|(_, archive)| {
                let crate::truth::Package { name, version, platform } = archive.package;
                format!("/releases/acme/terraform-provider-{name}/{version}/terraform-provider-{name}_{version}_{platform}.zip")
            })
            .collect();
    }
}

/// A random fault at a random target.
fn any_fault(rng: &mut StdRng) -> (Target, Fault) {
    let targets = [
        Target::Discovery,
        Target::Versions,
        Target::Document,
        Target::Sums,
        Target::Signature,
        Target::Archive,
        Target::Archive,
        Target::Archive,
        Target::Everything,
    ];
    let target = targets.choose(rng).cloned().unwrap_or(Target::Archive);
    let offset = *[0, 100, 70_000, 600_000, 1_100_000, 2_500_000].choose(rng).unwrap_or(&0);
    let redirect = *[301, 302, 303, 307, 308].choose(rng).unwrap_or(&302);
    // Frequent faults are the important ones.
    if rng.gen_bool(0.1) {
        return (Target::Archive, Fault::Stalls(offset));
    }
    if rng.gen_bool(0.2) {
        return (Target::Archive, if rng.gen_bool(0.5) { Fault::WrongBytes } else { Fault::WrongLastByte });
    }
    let fault = match rng.gen_range(0..34) {
        // A list has no proof: with another digit in a version it is another list, to larder and to everybody.
        0 | 1 if matches!(target, Target::Versions | Target::Everything) => Fault::InvalidJson,
        0 | 1 => Fault::WrongBytes,
        2 | 3 => Fault::WrongLastByte,
        4 => Fault::Html,
        5 => Fault::InvalidJson,
        6 => return (Target::Versions, Fault::HugeJson),
        7 => Fault::DeepJson,
        8 => Fault::ContentType("text/html"),
        9 => Fault::NoValidators,
        10 => Fault::ArchiveNotInSums,
        11 => Fault::SumsChangedAfterSigning,
        12 => Fault::SignedByAnotherKey,
        13 => Fault::NoKeys,
        14 => Fault::UnparsableKey,
        15 => Fault::WrongShasum,
        16 | 17 => Fault::Status(*[400, 401, 403, 404, 410, 451, 500, 502, 503].choose(rng).unwrap_or(&500)),
        18 => Fault::RetryAfter(*[429, 503].choose(rng).unwrap_or(&503), 2),
        19 => Fault::StatusBody(422, "{\"errors\":[\"not like this\"]}"),
        20 => Fault::Redirect(redirect),
        21 => Fault::RedirectLoop(redirect),
        // No server listens there.
        22 => Fault::RedirectTo(redirect, "http://127.0.0.1:9/".to_owned()),
        23 => Fault::RangeIgnored,
        24 => Fault::RangeOtherBytes,
        25 | 26 => Fault::Truncated(offset),
        27 | 28 => Fault::Reset(offset),
        29 => Fault::NoLength,
        30 => Fault::NoLengthTruncated(offset),
        31 => Fault::NeverAnswers,
        32 => Fault::Stalls(offset),
        _ => Fault::Drips(64 << 10, Duration::from_millis(30)),
    };
    (target, fault)
}
