//! A real `terraform init` of twenty providers, from each source that can provide them.

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

use crate::Bench;
use crate::catalog::{self, PLATFORM, Release};
use crate::larder::{self, Larder, Log};
use crate::measure::{median, rounds};
use crate::nginx::Nginx;
use crate::report::{ResultTable, Target, cell};
use crate::support::larder::HOST;
use crate::support::terraform::{Terraform, host_override};

const PROVIDERS: usize = 20;
const VERSION: &str = "1.0.0";

const MAX_WARM_RATIO: f64 = 1.05;

/// The source of the providers of an `init`: the registry itself, larder with an empty or a filled store, nginx, or a
/// folder in the layout of `filesystem_mirror`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Source {
    Registry,
    Cold,
    Warm,
    Nginx,
    Folder,
}

/// Measures the selected rows.
pub(crate) fn table(bench: &Bench) -> anyhow::Result<Option<ResultTable>> {
    let megabytes = if bench.options.quick { 1 } else { 5 };
    let name = format!("init of {PROVIDERS} providers of {megabytes} MB");
    if !bench.wants(&name) || bench.terraform.is_none() {
        return Ok(None);
    }
    bench.progress(&name);
    let names: Vec<String> = (0..PROVIDERS).map(|number| format!("init{number}")).collect();
    let folder = publish(bench, &names, megabytes * 1_000_000)?;
    let Bench { upstream, certificate, .. } = bench;
    let warm = Larder::start(bench, None, Log::Off)?;
    let nginx = bench.nginx.as_ref();
    let nginx = nginx.map(|program| Nginx::start(program, upstream, certificate, Log::Off)).transpose()?;
    let run = |source: Source| {
        let cli_config_with_override = |address: SocketAddr, path: &str| {
            host_override(HOST, &format!("http://{address}{path}"), "http://127.0.0.1:9/")
        };
        match source {
            Source::Registry => init(bench, &names, &cli_config_with_override(upstream.address(), "/v1/providers/")),
            Source::Cold => {
                let larder = Larder::start(bench, None, Log::Off)?;
                init(bench, &names, &cli_config_with_override(larder.address, &larder::larder_path("/v1/providers/")))
            }
            Source::Warm => {
                init(bench, &names, &cli_config_with_override(warm.address, &larder::larder_path("/v1/providers/")))
            }
            Source::Nginx => {
                let nginx = nginx.as_ref().context("nginx is not installed")?;
                init(bench, &names, &cli_config_with_override(nginx.addresses.plain, "/v1/providers/"))
            }
            Source::Folder => {
                let path = folder.path();
                let cli_config =
                    format!("provider_installation {{\n  filesystem_mirror {{\n    path = {path:?}\n  }}\n}}\n");
                init(bench, &names, &cli_config)
            }
        }
    };
    let mut sources = vec![Source::Registry, Source::Cold, Source::Warm, Source::Folder];
    sources.extend(nginx.as_ref().map(|_| Source::Nginx));
    for source in sources.iter().filter(|source| matches!(source, Source::Warm | Source::Nginx)) {
        run(*source)?;
    }
    let seconds = rounds(&sources, bench.options.rounds(), |source| run(*source))?;
    let seconds: HashMap<Source, f64> = sources.into_iter().zip(seconds.into_iter().map(median)).collect();
    let text = |source: Source| cell(seconds.get(&source).map(|seconds| format!("{seconds:.2} s")));
    let ratio = seconds.get(&Source::Nginx).map(|nginx| seconds[&Source::Warm] / nginx);
    let mut cells: Vec<String> =
        [Source::Cold, Source::Warm, Source::Registry, Source::Nginx, Source::Folder].map(text).into();
    cells.push(cell(ratio.map(|ratio| format!("{ratio:.2}"))));
    let target = ratio.map(|ratio| Target { met: ratio <= MAX_WARM_RATIO, text: format!("{MAX_WARM_RATIO} x nginx") });
    let columns = ["", "cold", "warm", "direct", "nginx", "filesystem_mirror", "warm/nginx"];
    let mut table = ResultTable::new("terraform init (one platform, no lock file)", &columns);
    table.add_row(&name, cells, target.into_iter().collect());
    Ok(Some(table))
}

/// Publishes the providers; returns a folder with their archives in the layout of `filesystem_mirror`.
fn publish(bench: &Bench, names: &[String], bytes: usize) -> anyhow::Result<TempDir> {
    let folder = tempfile::Builder::new().prefix("compare-mirror-").tempdir()?;
    for name in names {
        let release = Release { name, version: VERSION, platforms: &[PLATFORM], archive_bytes: bytes };
        let provider_folder = folder.path().join(HOST).join("acme").join(name);
        fs::create_dir_all(&provider_folder)?;
        for (path, file) in release.served_files()? {
            if file.is_archive() {
                let filename = path.rsplit('/').next().unwrap_or_default();
                fs::write(provider_folder.join(filename), file.body())?;
            }
            bench.upstream.publish(path, file);
        }
        bench.upstream.publish(catalog::list_path(name), catalog::list(VERSION)?);
    }
    Ok(folder)
}

/// Seconds of an `init` in a folder without installed packages and without a lock file.
fn init(bench: &Bench, names: &[String], cli_config: &str) -> anyhow::Result<f64> {
    let terraform = Terraform::find().context("terraform is not installed")?;
    let mut workspace = terraform.workspace();
    for name in names {
        workspace.require(&format!("acme/{name}"), VERSION);
    }
    workspace.cli_config(cli_config);
    let began = Instant::now();
    let output = bench.block_on(workspace.init());
    let took = began.elapsed().as_secs_f64();
    ensure!(output.status.success(), "terraform failed:\n{}", output.text);
    Ok(took)
}
