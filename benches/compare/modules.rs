//! A real `terraform init` of ten modules whose sources are git repositories: directly, and through larder. The git
//! server answers each request after 50 ms.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use crate::Bench;
use crate::larder::{Home, Larder, Log};
use crate::measure::{median, rounds};
use crate::report::{ResultTable, Target as Goal, cell};
use crate::support::git::Repositories;
use crate::support::git_module_fixture::override_through;
use crate::support::larder::HOST;
use crate::support::terraform::{Terraform, Workspace, host_override};
use crate::support::tls::TestCa;
use crate::support::upstream::{FakeUpstream, Fault, Module, Target};

const MODULES: usize = 10;
const LATENCY: Duration = Duration::from_millis(50);
/// Files and commits of a repository, as many as a typical module for a cloud has; a clone downloads all of them.
const FILES: usize = 40;
const COMMITS: usize = 60;

const MAX_COLD_RATIO: f64 = 0.6;
const MAX_WARM_RATIO: f64 = 0.3;

/// The source of the modules of an `init`: none, the git server itself, or larder with an empty or a filled store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Source {
    NoModules,
    Direct,
    Cold,
    Warm,
}

/// The registry and the git server of the modules.
struct Forge {
    ca: TestCa,
    registry: FakeUpstream,
    git: FakeUpstream,
    _repositories: Repositories,
}

/// Measures the selected rows.
pub(crate) fn table(bench: &Bench) -> anyhow::Result<Option<ResultTable>> {
    let row = |reference: &str| format!("init of {MODULES} modules by {reference}");
    let wanted: Vec<&str> = ["tag", "commit"].into_iter().filter(|reference| bench.wants(&row(reference))).collect();
    if wanted.is_empty() || bench.terraform.is_none() {
        return Ok(None);
    }
    let columns = ["", "cold", "warm", "direct", "without modules", "cold/direct", "warm/direct"];
    let title = format!("terraform init of modules, their git server {} ms away", LATENCY.as_millis());
    let mut table = ResultTable::new(&title, &columns);
    for reference in wanted {
        let name = row(reference);
        bench.progress(&name);
        let forge = bench.block_on(forge(reference))?;
        let seconds = measure(bench, &forge)?;
        let seconds_of = |source: Source| seconds[&source].iter().copied();
        // Ratio within each round, after subtracting the time of the round's `init` without modules.
        let ratio_to_direct =
            |source: Source| {
                let rounds = seconds_of(source).zip(seconds_of(Source::Direct)).zip(seconds_of(Source::NoModules));
                median(rounds.map(|((seconds, direct), without_modules)| {
                    (seconds - without_modules) / (direct - without_modules)
                }))
            };
        let mut cells: Vec<String> = [Source::Cold, Source::Warm, Source::Direct, Source::NoModules]
            .map(|source| cell(Some(format!("{:.2} s", median(seconds_of(source))))))
            .into();
        let mut goals = Vec::new();
        for (source, max_ratio) in [(Source::Cold, MAX_COLD_RATIO), (Source::Warm, MAX_WARM_RATIO)] {
            let ratio = ratio_to_direct(source);
            cells.push(format!("{ratio:.2}"));
            goals.push(Goal {
                met: ratio <= max_ratio,
                text: format!("{source:?} at most {max_ratio} x direct").to_lowercase(),
            });
        }
        table.add_row(&name, cells, goals);
    }
    Ok(Some(table))
}

/// Seconds of each source in each round.
fn measure(bench: &Bench, forge: &Forge) -> anyhow::Result<HashMap<Source, Vec<f64>>> {
    let larder = || Larder::in_front_of(bench, forge);
    let warm = larder()?;
    let base = |larder: &Larder| format!("http://{}", larder.address);
    let directly = host_override(HOST, &forge.registry.providers_url(), &forge.registry.modules_url());
    let run = |source: Source| match source {
        Source::NoModules => init(bench, forge, 0, &directly),
        Source::Direct => init(bench, forge, MODULES, &directly),
        Source::Warm => init(bench, forge, MODULES, &override_through(&base(&warm))),
        Source::Cold => {
            let cold = larder()?;
            init(bench, forge, MODULES, &override_through(&base(&cold)))
        }
    };
    run(Source::Warm)?;
    let sources = [Source::NoModules, Source::Direct, Source::Cold, Source::Warm];
    let seconds = rounds(&sources, bench.options.rounds(), |source| run(*source))?;
    Ok(sources.into_iter().zip(seconds).collect())
}

impl Larder {
    fn in_front_of(bench: &Bench, forge: &Forge) -> anyhow::Result<Self> {
        let home = Home::in_front_of(bench, &format!("{}/", forge.registry.origin()), None, Log::Off)?;
        let ca_file = home.file("ca.pem", &forge.ca.pem())?;
        home.network(&format!("allow_private = [\"127.0.0.1\"]\nca_file = {ca_file:?}"))?.start()
    }
}

/// Makes one repository, serves it at ten paths, and publishes a module for each path.
async fn forge(reference_kind: &str) -> anyhow::Result<Forge> {
    let repositories = Repositories::new().context("git is not installed")?;
    let repository = repositories.repository("acme/m0");
    for file in 0..FILES {
        repository.file(&format!("files/part{file}.txt"), &lines(file, 200));
    }
    for commit in 0..COMMITS {
        repository.file("main.tf", &format!("output \"edition\" {{\n  value = {commit}\n}}\n"));
        repository.file(&format!("files/part{}.txt", commit % FILES), &lines(commit + 1000, 200));
        repository.commit(&format!("edition {commit}"));
    }
    repository.tag("v1.0.0");
    let reference = if reference_kind == "tag" { "v1.0.0".to_owned() } else { repository.id("HEAD") };
    let ca = TestCa::new();
    let registry = FakeUpstream::start().await;
    let git = FakeUpstream::builder().tls_with(&ca).start().await;
    git.host_git(&repositories.root());
    git.fault(Target::Everything, Fault::Late(LATENCY));
    for number in 0..MODULES {
        if number > 0 {
            repositories.alias("acme/m0", &format!("acme/m{number}"));
        }
        let location = format!("git::{}/acme/m{number}.git?ref={reference}", git.origin());
        registry.publish_module(Module::new("acme", &format!("m{number}"), "test").at(&location));
    }
    Ok(Forge { ca, registry, git, _repositories: repositories })
}

/// Lines that compress about as well as real configurations.
fn lines(seed: usize, count: usize) -> String {
    let line = |number: usize| {
        format!("resource \"acme_thing\" \"n{}\" {{ size = {} }}\n", seed * 7 + number, number * seed % 97)
    };
    (0..count).map(line).collect()
}

/// Seconds of an `init` in a folder without installed modules.
fn init(bench: &Bench, forge: &Forge, modules: usize, cli_config: &str) -> anyhow::Result<f64> {
    let terraform = Terraform::find().context("terraform is not installed")?;
    let mut workspace: Workspace = terraform.workspace();
    let call =
        |number| format!("module \"m{number}\" {{\n  source  = \"acme/m{number}/test\"\n  version = \"1.0.0\"\n}}\n");
    workspace.file("main.tf", &(0..modules).map(call).collect::<String>());
    workspace.trust(&forge.ca.pem());
    // `trust` writes this file.
    let ca_file = workspace.path().join("../ca.pem");
    workspace.env("GIT_SSL_CAINFO", &ca_file.to_string_lossy()).env("GIT_CONFIG_NOSYSTEM", "1");
    workspace.cli_config(cli_config);
    let began = Instant::now();
    let output = bench.block_on(workspace.init());
    let took = began.elapsed().as_secs_f64();
    ensure!(output.status.success(), "terraform failed:\n{}", output.text);
    ensure!(forge.git.connections() > 0 || modules == 0, "the git server received no connection");
    Ok(took)
}
