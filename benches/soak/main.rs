//! A mixed load: real archives, sixteen clients with every kind of request, others that read nothing, a fault at
//! upstream every few seconds, `kill -9` and a restart every half minute; and a hostile upstream that republishes old
//! versions under other names and keys and sends answers that never end. An audit of the store follows. Nine minutes
//! with a large store, one minute with a store that is too small and evicts all the time.
//!
//! The seed decides every random choice but the keys, on which no choice depends.
//!
//! `cargo bench --bench soak -- --seed 7`
#![expect(clippy::disallowed_methods, reason = "the limits on calls are for the modules of larder itself")]

mod alarms;
mod audit;
mod chaos;
mod clients;
mod hostile;
mod idlers;
mod ledger;
mod process;
mod request;
mod sources;
mod summary;
mod truth;

#[path = "../../tests/it/support/mod.rs"]
#[expect(dead_code, clippy::unwrap_used, reason = "the tests use the rest of it, and may fail")]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Parser;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};
use tokio::task::JoinSet;

use crate::chaos::{Chaos, Kills};
use crate::clients::Client;
use crate::hostile::{ATTACKED_PROVIDERS, FIRST_VERSIONS, Hostile};
use crate::idlers::{IDLERS, UnreadAnswers};
use crate::ledger::{BrokenPromise, Ledger, RequestKind};
use crate::process::LarderProcesses;
use crate::sources::Sources;
use crate::summary::Totals;
use crate::support::larder::{Folder, Larder};
use crate::support::upstream::FakeUpstream;
use crate::truth::{PLATFORMS, Package, Truth};

/// Name and archive size of the initial providers.
const PROVIDERS: [(&str, usize); 6] = [
    ("first", 50_000),
    ("second", 300_000),
    ("third", 1_040_000),
    ("fourth", 3_000_000),
    ("fifth", 8_000_000),
    ("sixth", 30_000_000),
];

/// The limit of larder's resident anonymous memory, whatever clients and upstreams do: the budgets for rendered answers
/// (64 MiB), small archives in flight (64 MiB), reads of large archives (64 MiB) and arriving documents (256 MiB). They
/// are never all full at once, so everything else fits, too.
const MAX_MEMORY_KIB: u64 = 512 << 10;

/// The time for clients to finish at the end, and for fills after them.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(150);

#[derive(Debug, Parser)]
struct Options {
    /// Seconds of the phase with a large store
    #[arg(long, default_value_t = 540)]
    seconds: u64,
    /// Seconds of the phase with a small store
    #[arg(long, default_value_t = 60)]
    eviction_seconds: u64,
    /// Seed of the random choices; random unless given
    #[arg(long)]
    seed: Option<u64>,
    /// Number of clients
    #[arg(long, default_value_t = 16)]
    clients: u64,
    /// Seconds between kills
    #[arg(long, default_value_t = 30)]
    kill_every: u64,
    /// Set by `cargo bench`; without it nothing runs
    #[arg(long, hide = true)]
    bench: bool,
    /// Set by `cargo test`
    #[arg(long, hide = true)]
    test: bool,
}

/// The state shared by all tasks.
pub(crate) struct SoakSetup {
    processes: LarderProcesses,
    truth: Truth,
    sources: Sources,
    ledger: Arc<Ledger>,
    /// The names of all providers.
    provider_names: Mutex<Vec<String>>,
    /// Names and versions of the attacked providers.
    attacked: Mutex<Vec<(String, String)>>,
    unread_answers: UnreadAnswers,
    /// The faults that upstream injects now, for reports of broken promises.
    active_faults: Mutex<String>,
    is_over: AtomicBool,
    /// True if acknowledged archives must stay stored; false where eviction may remove them.
    checks_acknowledged: bool,
    /// True if a provider without keys must be refused.
    requires_signatures: bool,
}

impl SoakSetup {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn active_faults(&self) -> String {
        self.active_faults.lock().clone()
    }

    fn set_active_faults(&self, active_faults: &str) {
        active_faults.clone_into(&mut self.active_faults.lock());
    }

    fn random_provider(&self, rng: &mut StdRng) -> String {
        self.provider_names.lock().choose(rng).cloned().unwrap_or_default()
    }
}

/// A run with one store.
struct Phase {
    title: &'static str,
    max_size: &'static str,
    verification: &'static str,
    checks_acknowledged: bool,
    seconds: u64,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    if !options.bench || options.test {
        return Ok(());
    }
    let seed = options.seed.unwrap_or_else(|| rand::thread_rng().gen_range(1..10_000));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let large_store = Phase {
        title: "A store of 20 GiB, large enough for everything",
        max_size: "20GiB",
        verification: "signature-if-keys",
        checks_acknowledged: true,
        seconds: options.seconds,
    };
    let small_store = Phase {
        title: "A store of 96 MiB, too small",
        max_size: "96MiB",
        verification: "signature",
        checks_acknowledged: false,
        seconds: options.eviction_seconds,
    };
    let mut broken = 0;
    for phase in [large_store, small_store].into_iter().filter(|phase| phase.seconds > 0) {
        broken += runtime.block_on(run(&options, phase, seed))?;
    }
    print_line(&format!("\nseed {seed}, {} clients: {broken} promises broken", options.clients));
    ensure!(broken == 0, "promises were broken");
    Ok(())
}

async fn run(options: &Options, phase: Phase, seed: u64) -> anyhow::Result<u64> {
    let began = Instant::now();
    let folder = Folder::new();
    let upstream = FakeUpstream::builder().releases_elsewhere().signed_urls().start().await;
    let sources = Sources::start().await;
    let config = Larder::mirroring(&upstream)
        .store_at(&folder)
        .allow_private(&sources.upstream.origin())
        .store(&format!("max_size = \"{}\"", phase.max_size))
        .upstream_lines(&format!("verification = \"{}\"", phase.verification))
        .upstream_lines("patience = \"500ms\"")
        .upstream_lines(
            "fresh = { versions = \"2s\", discovery = \"5s\", download = \"4s\", api = \"1s\", not_found = \"1s\" }",
        )
        .config_text();
    let ledger = Arc::new(Ledger::new());
    let setup = Arc::new(SoakSetup {
        processes: LarderProcesses::new(folder.path(), &config, &ledger)?,
        truth: Truth::default(),
        sources,
        ledger,
        provider_names: Mutex::default(),
        attacked: Mutex::default(),
        unread_answers: UnreadAnswers::default(),
        active_faults: Mutex::new("no faults".into()),
        is_over: AtomicBool::new(false),
        checks_acknowledged: phase.checks_acknowledged,
        requires_signatures: phase.verification == "signature",
    });
    print_line(&format!("\n{}: {} s with seed {seed}", phase.title, phase.seconds));
    let hostile = Hostile::new(&setup, StdRng::seed_from_u64(seed.wrapping_add(1 << 32)));
    let kills =
        Kills { every: Duration::from_secs(options.kill_every), until: Duration::from_secs(phase.seconds * 2 / 3) };
    let mut chaos = Chaos::new(&setup, upstream, hostile, StdRng::seed_from_u64(seed), kills);
    chaos.publish_all(&PROVIDERS).await;
    setup.processes.start().await?;
    let watched_setup = Arc::clone(&setup);
    let memory_watch =
        AbortOnDrop(tokio::spawn(async move { watched_setup.processes.watch_memory(MAX_MEMORY_KIB).await }));
    fetch_every_provider(&setup, seed).await?;
    let mut clients = JoinSet::new();
    for number in 0..options.clients {
        clients.spawn(Client::new(&setup, number, seed)?.run());
    }
    for number in 0..IDLERS {
        clients.spawn(idlers::idle(Arc::clone(&setup), number, seed));
    }
    chaos.run(tokio::time::Instant::now() + Duration::from_secs(phase.seconds)).await?;
    setup.is_over.store(true, Ordering::Relaxed);
    settle(&setup, clients).await;
    check_recovery(&setup, &chaos, seed).await?;
    let alarms = alarms::compare_alarms(&setup, &chaos.hostile).await?;
    let descriptors = setup.processes.usage().descriptors;
    if descriptors > 150 {
        setup.ledger.record_broken(
            BrokenPromise::Leaked,
            format!("{descriptors} descriptors are open while no client is connected"),
        );
    }

    // Without upstream, only the store can answer; the kill leaves it without a clean close.
    chaos.upstream.stop().await;
    setup.set_active_faults("upstream down");
    setup.processes.kill();
    setup.processes.start().await?;
    if phase.checks_acknowledged {
        audit::audit_acknowledged(&setup, usize::MAX).await?;
    }
    let code = setup.processes.terminate().await;
    if code != Some(0) {
        setup.ledger.record_broken(BrokenPromise::ProcessEnded, format!("SIGTERM ended it with {code:?}"));
    }
    drop(memory_watch);
    let audit = audit::audit_store(&setup, &folder).await?;
    let totals = Totals { faults: chaos.counts, attacks: chaos.hostile.counts, alarms, audit };
    Ok(summary::print(phase.title, &setup, totals, began.elapsed()))
}

/// Fetches every provider once before any attack: its key is then known, and a later unsigned version is suspicious.
async fn fetch_every_provider(setup: &Arc<SoakSetup>, seed: u64) -> anyhow::Result<()> {
    let mut client = Client::new(setup, 999, seed)?;
    for (name, _) in PROVIDERS.into_iter().chain(ATTACKED_PROVIDERS) {
        let (version, platform) = (FIRST_VERSIONS[0].into(), PLATFORMS[0].into());
        let package = Package { name: name.into(), version, platform };
        let mut is_installed = false;
        // A client may disconnect in the middle by a random choice, several times in a row.
        for _ in 0..20 {
            is_installed = is_installed || client.install_package(&package).await;
        }
        ensure!(is_installed, "{package:?} cannot be installed");
    }
    Ok(())
}

/// Waits until the clients have finished, and then the fills.
async fn settle(setup: &Arc<SoakSetup>, mut clients: JoinSet<()>) {
    let all = async {
        while let Some(ended) = clients.join_next().await {
            if let Err(e) = ended {
                setup.ledger.record_broken(BrokenPromise::NoAnswer, format!("a client of this bench: {e}"));
            }
        }
    };
    if tokio::time::timeout(SETTLE_TIMEOUT, all).await.is_err() {
        setup
            .ledger
            .record_broken(BrokenPromise::NoAnswer, format!("clients that still wait after {SETTLE_TIMEOUT:?}"));
    }
    let admin = setup.processes.wait_until_running().await.admin;
    let deadline = Instant::now() + SETTLE_TIMEOUT;
    while Instant::now() < deadline {
        let metrics = match reqwest::get(format!("{admin}/metrics")).await {
            Ok(answer) => answer.text().await.unwrap_or_default(),
            Err(_) => break,
        };
        if metrics.lines().any(|line| line == "larder_fills_under_way 0") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    setup
        .ledger
        .record_broken(BrokenPromise::NoAnswer, format!("fills still run {SETTLE_TIMEOUT:?} after the last fault"));
}

/// Without faults the next request succeeds: every published package can be installed.
async fn check_recovery(setup: &Arc<SoakSetup>, chaos: &Chaos, seed: u64) -> anyhow::Result<()> {
    // A "not found" is cached for a second.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let old = PROVIDERS.iter().flat_map(|(name, _)| FIRST_VERSIONS.map(|version| (*name, version)));
    let new = chaos.published_once.iter().map(|(name, version)| (name.as_str(), version.as_str()));
    let mut client = Client::new(setup, 1000, seed)?;
    for (name, version) in old.chain(new).chain(chaos.hostile.rightful()) {
        for platform in PLATFORMS {
            let package = Package { name: name.into(), version: version.into(), platform: platform.into() };
            // Two attempts: a download that was both corrupted and interrupted fails verification when it is resumed.
            if !client.install_package(&package).await && !client.install_package(&package).await {
                setup.ledger.record_broken(BrokenPromise::NotRecovered, format!("{package:?} cannot be installed"));
            }
        }
    }
    for name in setup.sources.intact() {
        if !client.install_module(name).await && !client.install_module(name).await {
            setup.ledger.record_broken(BrokenPromise::NotRecovered, format!("the module {name} cannot be installed"));
        }
    }
    let answers = setup.ledger.answers();
    let installed = answers.get(&(RequestKind::Archive, "200".to_owned())).copied().unwrap_or_default();
    if installed == 0 {
        setup.ledger.record_broken(BrokenPromise::NotRecovered, "no archive was ever installed".into());
    }
    drop(client);
    tokio::time::sleep(Duration::from_secs(1)).await;
    setup.processes.sample_resources();
    Ok(())
}

/// A task that ends when its handle is dropped.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[expect(clippy::print_stdout, reason = "progress for the person who runs it")]
fn print_line(text: &str) {
    println!("{text}");
}
