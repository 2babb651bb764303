//! `larder warm`: tells the running larder what to fetch, and shows how far it is.

mod drawing;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use self::drawing::{Name, Speed, Total, bars, items, name_of, newly_ended, summary, what_stays};
use super::text::{width_of_stderr, width_of_stdout};
use super::{Common, admin_token, ask_running, runtime, say, say_error};
use crate::address::{Hostname, Platform, What};
use crate::closure::file;
use crate::config::Config;
use crate::http::admin_client::{self, NoAnswer};
use crate::jobs::report::{Job, JobState};

/// How long is waited between two looks at the jobs.
const LOOKS_EVERY: Duration = Duration::from_millis(200);
const WARM: &str = "/admin/v1/warm";
const JOBS: &str = "/admin/v1/jobs";

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

/// What one job is told.
#[derive(Debug, PartialEq, Eq)]
enum Order {
    /// Addresses with their constraints.
    Addresses(Vec<String>),
    /// What a lock file names.
    LockFile(PathBuf, Bytes),
}

impl Warm {
    /// Runs it; says whether all of it is held now.
    pub(super) fn run(self) -> anyhow::Result<bool> {
        let (config, _) = self.common.load()?;
        for platform in &self.platforms {
            Platform::parse(platform)?;
        }
        let orders = orders(&self.what, &config.default_host())?;
        let (for_all, json) = (ForAll { platforms: self.platforms, pin: self.pin }, self.common.json);
        runtime()?.block_on(async {
            // Caught from here on, also while nobody waits for it.
            let mut interrupts = signal(SignalKind::interrupt()).context("Ctrl-C cannot be caught")?;
            let warming = Warming::begin(&config, &orders, &for_all, &mut interrupts).await?;
            warming.watch(json, &mut interrupts).await
        })
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

/// What holds for every order.
#[derive(Debug)]
struct ForAll {
    platforms: Vec<String>,
    pin: bool,
}

/// Who does it: the running larder.
#[derive(Debug)]
struct Running {
    at: SocketAddr,
    token: Option<String>,
}

impl Running {
    /// Takes an order on.
    async fn start(&self, order: &Order, for_all: &ForAll) -> Result<Bytes, NoAnswer> {
        let (at, token) = (self.at, self.token.as_deref());
        match order {
            Order::Addresses(what) => {
                let ForAll { platforms, pin } = for_all;
                let told = serde_json::json!({ "what": what, "platforms": platforms, "pin": pin }).to_string();
                admin_client::post(at, WARM, token, told.into()).await
            }
            Order::LockFile(_, bytes) => {
                let mut query = url::form_urlencoded::Serializer::new(String::new());
                query.extend_pairs(for_all.platforms.iter().map(|platform| ("platform", platform)));
                if for_all.pin {
                    query.append_pair("pin", "true");
                }
                let query = query.finish();
                let path = if query.is_empty() { WARM.to_owned() } else { format!("{WARM}?{query}") };
                admin_client::post_text(at, &path, token, bytes.clone()).await
            }
        }
    }

    /// How far a job is.
    async fn report(&self, id: &str) -> Result<Bytes, NoAnswer> {
        admin_client::get(self.at, &format!("{JOBS}/{id}"), self.token.as_deref()).await
    }

    /// Tells a job to stop.
    async fn cancel(&self, id: &str) -> Result<Bytes, NoAnswer> {
        admin_client::delete(self.at, &format!("{JOBS}/{id}"), self.token.as_deref()).await
    }
}

fn job(answer: &[u8]) -> anyhow::Result<Job> {
    serde_json::from_slice(answer).context("the running larder is of another version")
}

/// The jobs of one command, shown as one.
#[derive(Debug)]
struct Warming {
    by: Running,
    jobs: Vec<Job>,
    began: Instant,
}

impl Warming {
    async fn begin(
        config: &Config,
        orders: &[Order],
        for_all: &ForAll,
        interrupts: &mut Signal,
    ) -> anyhow::Result<Self> {
        let by = Running { at: config.admin.listen, token: admin_token(config) };
        let mut warming = Self { by, jobs: Vec::new(), began: Instant::now() };
        for order in orders {
            let started = tokio::select! {
                started = ask_running(config, async |_, _| warming.by.start(order, for_all).await) => started,
                _ = interrupts.recv() => {
                    warming.cancel().await;
                    bail!("stopped; larder may still be at what it was told last");
                }
            };
            let started = match (started, order) {
                (Err(NoAnswer::NotRunning(at)), _) => {
                    Err(anyhow!("no larder listens on {at}: start `larder serve` first, it does the fetching"))
                }
                (Err(error), Order::LockFile(path, _)) => Err(error).with_context(|| path.display().to_string()),
                (started, _) => started.map_err(Into::into),
            };
            match started.and_then(|answer| job(&answer)) {
                Ok(job) => warming.jobs.push(job),
                Err(error) => {
                    // Half of what was asked for is not what was asked for.
                    warming.cancel().await;
                    return Err(error);
                }
            }
        }
        Ok(warming)
    }

    /// Shows how far it is until its end; says whether all of it is held then.
    async fn watch(mut self, json: bool, interrupts: &mut Signal) -> anyhow::Result<bool> {
        let mut screen = Screen::new(json);
        let mut is_stopped = false;
        loop {
            screen.show(&self.jobs, self.began.elapsed());
            if self.jobs.iter().all(|job| job.state.has_ended()) {
                break;
            }
            tokio::select! {
                () = tokio::time::sleep(LOOKS_EVERY) => self.look().await?,
                _ = interrupts.recv() => {
                    if std::mem::replace(&mut is_stopped, true) {
                        bail!("stopped watching; larder may still be at it");
                    }
                    self.cancel().await;
                }
            }
        }
        screen.end();
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
            let answer = self.by.report(&known.id).await.map_err(|error| match error {
                NoAnswer::NotRunning(_) => {
                    anyhow!(
                        "larder has stopped; what it fetched is kept, and the same command goes on once it runs again"
                    )
                }
                error => error.into(),
            })?;
            *known = job(&answer)?;
        }
        Ok(())
    }

    /// Tells all that still run to stop. What they came to is seen at the next look.
    async fn cancel(&mut self) {
        for running in self.jobs.iter_mut().filter(|job| !job.state.has_ended()) {
            match self.by.cancel(&running.id).await {
                Ok(_) => {}
                Err(error) => say_error(&format!("job {} could not be stopped: {error}", running.id)),
            }
        }
    }
}

/// Where it is shown: bars on a terminal, lines for archives that ended anywhere.
struct Screen {
    /// All lines in one, so that they change together.
    bars: Option<ProgressBar>,
    lines: bool,
    told: HashSet<(usize, Name)>,
    speeds: HashMap<Name, Speed>,
    speed: Speed,
}

impl Screen {
    fn new(json: bool) -> Self {
        let bars = width_of_stderr().map(|_| {
            // Its lines are made elsewhere, to the width of the terminal.
            let style = ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_spinner());
            ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_style(style)
        });
        Self { bars, lines: !json, told: HashSet::new(), speeds: HashMap::new(), speed: Speed::default() }
    }

    fn show(&mut self, jobs: &[Job], at: Duration) {
        let ended = newly_ended(jobs, &mut self.told, width_of_stdout()).filter(|_| self.lines);
        let Some(bar) = &self.bars else {
            ended.iter().for_each(|lines| say(lines));
            return;
        };
        if let Some(lines) = ended {
            bar.suspend(|| say(&lines));
        }
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
        bar.set_message(lines.join("\n"));
        bar.tick();
    }

    /// Takes the bars off the terminal.
    fn end(&mut self) {
        self.bars.iter().for_each(ProgressBar::finish_and_clear);
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
