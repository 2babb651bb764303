//! `larder warm`: says what to fetch, to the running larder or to one of its own, and shows how far it is.

mod drawing;
mod larder;

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use self::drawing::{Name, Speed, Total, bars, items, name_of, newly_ended, summary, what_stays};
use self::larder::{ForAll, Larder, Order};
use super::screen::Bars;
use super::text::{width_of_stderr, width_of_stdout};
use super::{Common, ignore_file_limits, runtime, say, say_error};
use crate::address::{Hostname, Platform, What};
use crate::closure::file;
use crate::config::Config;
use crate::http::admin_client::NoAnswer;
use crate::jobs::report::{Job, JobState};

/// How long is waited between two looks at the jobs.
const LOOKS_EVERY: Duration = Duration::from_millis(200);

#[derive(Debug, Args)]
pub(super) struct Warm {
    #[command(flatten)]
    common: Common,
    /// Each is `[HOST/]NAMESPACE/TYPE[@CONSTRAINT]`, such as 'hashicorp/aws@~> 5.0', or the path of a .terraform.lock.hcl
    #[arg(required = true, value_name = "WHAT")]
    what: Vec<String>,
    /// For this platform, such as linux_amd64; may be given several times; otherwise for that of the machine where larder runs
    #[arg(long = "platform", value_name = "OS_ARCH")]
    platforms: Vec<String>,
    /// Never evict what is warmed
    #[arg(long)]
    pin: bool,
}

impl Warm {
    /// Runs it; says whether all of it is held now.
    pub(super) fn run(self) -> anyhow::Result<bool> {
        let (config, _) = self.common.load()?;
        let platforms = self.platforms.iter().map(|platform| Platform::parse(platform)).collect::<Result<_, _>>()?;
        let orders = orders(&self.what, &config.default_host())?;
        let (for_all, json) = (ForAll { platforms, pin: self.pin }, self.common.json);
        let runtime = runtime()?;
        let warmed = runtime.block_on(warm(&config, &orders, &for_all, json));
        // What still reads or hashes a file for nobody is not worth waiting for.
        runtime.shutdown_timeout(Duration::from_secs(1));
        warmed
    }
}

async fn warm(config: &Config, orders: &[Order], for_all: &ForAll, json: bool) -> anyhow::Result<bool> {
    // Caught from here on, also while nobody waits for them.
    let mut interrupts = Interrupts::catch()?;
    let _too_large = ignore_file_limits()?;
    let mut warming = Warming { by: Larder::running(config), jobs: Vec::new(), began: Instant::now() };
    let warmed = match warming.begin(config, orders, for_all, json, &mut interrupts).await {
        Ok(()) => warming.watch(json, &mut interrupts).await,
        Err(error) => Err(error),
    };
    let closed = warming.by.close().await;
    let is_all_held = warmed?;
    closed?;
    Ok(is_all_held)
}

/// Ctrl-C and SIGTERM.
#[derive(Debug)]
struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    fn catch() -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("Ctrl-C cannot be caught")?,
            terminate: signal(SignalKind::terminate()).context("SIGTERM cannot be caught")?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Sorts what is meant: the files each to a job of their own, and all addresses to one.
fn orders(what: &[String], default_host: &Hostname) -> anyhow::Result<Vec<Order>> {
    let (mut addresses, mut orders) = (Vec::new(), Vec::new());
    for given in what {
        let path = Path::new(given);
        let is_written_as_path = given.starts_with(['.', '/', '~']) || given.ends_with('/');
        if path.is_file() || given.ends_with(".hcl") {
            let bytes = file::read(path).with_context(|| format!("{given} cannot be read"))?;
            orders.push(Order::LockFile(path.to_owned(), bytes.into()));
        } else if path.is_dir() && (is_written_as_path || What::parse(given, default_host).is_err()) {
            bail!("{given} is a folder, and configurations are not read yet: name the .terraform.lock.hcl in it");
        } else if is_written_as_path {
            bail!("there is no file {given}");
        } else {
            addresses.push(given.clone());
        }
    }
    if !addresses.is_empty() {
        orders.insert(0, Order::Addresses(addresses));
    }
    Ok(orders)
}

/// The jobs of one command, shown as one.
#[derive(Debug)]
struct Warming {
    by: Larder,
    jobs: Vec<Job>,
    began: Instant,
}

impl Warming {
    async fn begin(
        &mut self,
        config: &Config,
        orders: &[Order],
        for_all: &ForAll,
        json: bool,
        interrupts: &mut Interrupts,
    ) -> anyhow::Result<()> {
        for order in orders {
            let started = tokio::select! {
                started = self.start(config, order, for_all, json) => started,
                () = interrupts.next() => {
                    self.cancel().await;
                    return Err(self.by.stopped());
                }
            };
            match (started, order) {
                (Ok(job), _) => self.jobs.push(job),
                (Err(error), order) => {
                    // Half of what was asked for is not what was asked for.
                    self.cancel().await;
                    return Err(match order {
                        Order::LockFile(path, _) => error.context(path.display().to_string()),
                        Order::Addresses(_) => error,
                    });
                }
            }
        }
        Ok(())
    }

    /// Takes an order on. What no larder was told of before, and none runs to be told, is done here.
    async fn start(&mut self, config: &Config, order: &Order, for_all: &ForAll, json: bool) -> anyhow::Result<Job> {
        match self.by.start(config, order, for_all).await {
            Err(error) if self.jobs.is_empty() && matches!(error.downcast_ref(), Some(NoAnswer::NotRunning(_))) => {
                self.by = Larder::own(config)?;
                if !json {
                    let store = config.store.path.display();
                    say_error(&format!("no larder runs here, so this command itself fetches into the store {store}"));
                }
                self.by.start(config, order, for_all).await
            }
            started => started,
        }
    }

    /// Shows how far it is until its end; says whether all of it is held then.
    async fn watch(&mut self, json: bool, interrupts: &mut Interrupts) -> anyhow::Result<bool> {
        let mut screen = Screen::new(json);
        let mut is_stopped = false;
        loop {
            screen.show(&self.jobs, self.began.elapsed());
            if self.jobs.iter().all(|job| job.state.has_ended()) {
                break;
            }
            tokio::select! {
                () = tokio::time::sleep(LOOKS_EVERY) => self.look().await?,
                () = interrupts.next() => {
                    if std::mem::replace(&mut is_stopped, true) {
                        return Err(self.by.stopped());
                    }
                    self.cancel().await;
                }
            }
        }
        drop(screen);
        if json {
            for job in &self.jobs {
                say(&serde_json::to_string(job)?);
            }
        } else {
            say(&summary(&self.jobs, self.began.elapsed()));
        }
        if is_stopped {
            say_error(&what_stays(&self.jobs));
        }
        Ok(self.jobs.iter().all(|job| job.state == JobState::Done))
    }

    async fn look(&mut self) -> anyhow::Result<()> {
        for known in self.jobs.iter_mut().filter(|job| !job.state.has_ended()) {
            *known = self.by.report(&known.id).await?;
        }
        Ok(())
    }

    /// Tells all that still run to stop. What they came to is seen at the next look.
    async fn cancel(&mut self) {
        for running in self.jobs.iter_mut().filter(|job| !job.state.has_ended()) {
            match self.by.cancel(&running.id).await {
                Ok(()) => {}
                Err(error) => say_error(&format!("job {} could not be stopped: {error}", running.id)),
            }
        }
    }
}

/// Where it is shown: bars on a terminal, lines for archives that ended anywhere.
struct Screen {
    bars: Option<Bars>,
    lines: bool,
    told: HashSet<(usize, Name)>,
    speeds: HashMap<Name, Speed>,
    speed: Speed,
}

impl Screen {
    fn new(json: bool) -> Self {
        let bars = width_of_stderr().map(|_| Bars::on_stderr());
        Self { bars, lines: !json, told: HashSet::new(), speeds: HashMap::new(), speed: Speed::default() }
    }

    fn show(&mut self, jobs: &[Job], at: Duration) {
        let ended = newly_ended(jobs, &mut self.told, width_of_stdout()).filter(|_| self.lines);
        ended.iter().for_each(|lines| say(lines));
        let Some(on_screen) = &self.bars else { return };
        let mut speeds = std::mem::take(&mut self.speeds);
        for item in items(jobs).filter(|item| !item.state.has_ended()) {
            let mut speed = speeds.remove(&name_of(item)).unwrap_or_default();
            speed.observe(at, item.bytes);
            self.speeds.insert(name_of(item), speed);
        }
        let total = Total::of(jobs);
        self.speed.observe(at, total.bytes.0);
        // Terminals may be made wider or narrower meanwhile. In the last column, some break the line.
        let width = width_of_stderr().unwrap_or(80).saturating_sub(1);
        let mut lines = bars(jobs, |name| self.speeds.get(name).and_then(Speed::per_second), width);
        lines.push(total.line(self.speed.per_second(), width));
        on_screen.draw(&lines);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_addresses_are_told_apart_and_a_folder_is_refused_clearly() {
        let host = Hostname::parse("registry.terraform.io").unwrap();
        let of = |what: &[&str]| orders(&what.iter().map(|given| (*given).to_owned()).collect::<Vec<_>>(), &host);
        let addresses = ["hashicorp/aws@~> 5.0", "r.example/acme/null"];
        assert_eq!(of(&addresses).unwrap(), [Order::Addresses(addresses.map(str::to_owned).to_vec())]);
        let both = of(&["Cargo.toml", "acme/null", "Cargo.lock"]).unwrap();
        assert!(matches!(&both[..], [Order::Addresses(_), Order::LockFile(..), Order::LockFile(..)]), "{both:?}");
        for (given, said) in [
            ("src", "src is a folder"),
            ("./src/", "./src/ is a folder"),
            ("no/such.hcl", "no/such.hcl cannot be read"),
            ("./acme/null", "there is no file ./acme/null"),
        ] {
            let error = of(&[given]).unwrap_err().to_string();
            assert!(error.contains(said), "{given}: {error}");
        }
        // An address stays one where a folder happens to be called so.
        assert_eq!(of(&["src/cli"]).unwrap(), [Order::Addresses(vec!["src/cli".to_owned()])]);
    }
}
