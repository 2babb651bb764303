//! A demonstration without internet: a registry with real zips and signatures and a larder in front of it, in one
//! process. Runs the real `terraform init` cold, then warm with the registry stopped.
//!
//! `cargo run --example demo`; with `-- --keep` both serve until Ctrl-C. With `-- --registry` only the registry serves, until
//! its standard input ends, and prints the `[[upstream]]` that leads to it: `docs/transcript` uses that.
#![expect(clippy::disallowed_methods, reason = "a demonstration is not a module of larder, whose calls are limited")]
#![expect(clippy::print_stdout, reason = "a demonstration prints its results")]

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use comfy_table::{CellAlignment, Table, presets};
use larder::app::{App, StartSettings};
use larder::config::{ByteSize, Config};
use larder::protocol::client_config::ClientRoute;
use tokio_util::sync::CancellationToken;

use self::terraform::Terraform;
use self::upstream::{FakeUpstream, Provider};

#[path = "../tests/it/support/programs.rs"]
mod programs;
#[path = "../tests/it/support/terraform.rs"]
#[expect(dead_code, reason = "the tests use the rest of it")]
mod terraform;
#[path = "../tests/it/support/tls.rs"]
#[expect(dead_code, reason = "the tests use the rest of it")]
mod tls;
#[path = "../tests/it/support/upstream/mod.rs"]
#[expect(dead_code, unused_imports, reason = "the tests use the rest of it")]
mod upstream;

const HOST: &str = "registry.terraform.io";
/// Installed providers: name, version, size in bytes.
const PROVIDERS: [(&str, &str, usize); 3] =
    [("cloud", "5.31.0", 60_000_000), ("network", "2.4.1", 25_000_000), ("random", "3.6.0", 5_000_000)];

/// Measurements of one `init`.
struct InitRun {
    label: &'static str,
    took: Duration,
    upstream_requests: usize,
    upstream_bytes: u64,
    larder_bytes: u64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut registry = FakeUpstream::start().await;
    if std::env::args().any(|argument| argument == "--registry") {
        return serve_registry(&registry).await;
    }
    for (name, version, size) in PROVIDERS {
        let provider = Provider::new("acme", name).version(version).size(size);
        registry.publish(provider.platform("linux_amd64").platform("darwin_arm64").platform("windows_amd64"));
    }
    let folder = tempfile::tempdir()?;
    let app = App::start(&configuration(&registry, folder.path())?, StartSettings::default()).await?;
    let (base, admin) = (app.base().to_owned(), format!("http://{}", app.admin_address()));
    let cli_config = app.client_config(ClientRoute::HostOverride).await?;
    let stop = CancellationToken::new();
    let serving = tokio::spawn(app.serve(stop.clone()));

    println!("Registry on {} (in place of {HOST}), larder on {base}.", registry.origin());
    println!("The lines that point a client to larder:\n\n{cli_config}");
    let client = Client::find(&base, &cli_config)?;
    println!("{}\n", client.introduction());

    let direct = client.run("directly from the registry", true, &registry, &admin).await?;
    let cold = client.run("through larder, cold", false, &registry, &admin).await?;
    let warm = client.run("through larder, again", false, &registry, &admin).await?;
    registry.stop().await;
    let offline = client.run("through larder, registry stopped", false, &registry, &admin).await?;
    print_runs(&[&direct, &cold, &warm, &offline]);
    let archive_bytes = PROVIDERS.iter().map(|(_, _, size)| *size as u64).sum();
    println!("{}", client.compare_lock_files()?);
    for run in [&cold, &warm, &offline] {
        ensure!(run.larder_bytes >= archive_bytes, "larder sent {} bytes {}", run.larder_bytes, run.label);
    }
    if std::env::args().any(|argument| argument == "--keep") {
        registry.restart().await;
        println!(
            "\nThe registry is back. The token of the admin listener ({admin}) is in {}.",
            folder.path().join("admin-token").display()
        );
        println!("Ctrl-C ends both.");
        tokio::signal::ctrl_c().await?;
    }

    stop.cancel();
    serving.await??;
    Ok(())
}

/// The provider of `examples/first`, for every machine that runs it.
async fn serve_registry(registry: &FakeUpstream) -> anyhow::Result<()> {
    let provider = Provider::new("hashicorp", "random").version("3.6.3").size(5_000_000);
    let platforms = ["linux_amd64", "linux_arm64", "darwin_amd64", "darwin_arm64"];
    registry.publish(platforms.iter().fold(provider, |provider, platform| provider.platform(platform)));
    println!("[[upstream]]\nhost = \"{HOST}\"\nurl = \"{}/\"", registry.origin());
    tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink())).await??;
    Ok(())
}

fn configuration(registry: &FakeUpstream, store: &Path) -> anyhow::Result<Config> {
    let text = format!(
        "server.listen = \"127.0.0.1:0\"\nadmin.listen = \"127.0.0.1:0\"\nstore.path = \"{}\"\n[[upstream]]\nhost = \"{HOST}\"\nurl = \"{}/\"\n",
        store.display(),
        registry.origin(),
    );
    Ok(Config::parse(&text, Path::new("demo.toml"), &|name| std::env::var(name).ok())?.0)
}

/// The real client if installed; else the same requests over plain HTTP.
enum Client {
    Terraform { client: Terraform, cli_config: String, lock_files: std::sync::Mutex<Vec<String>> },
    PlainHttp { base: String },
}

impl Client {
    fn find(base: &str, cli_config: &str) -> anyhow::Result<Self> {
        Ok(match Terraform::find() {
            Some(client) => {
                Self::Terraform { client, cli_config: cli_config.to_owned(), lock_files: Default::default() }
            }
            None => Self::PlainHttp { base: base.to_owned() },
        })
    }

    fn introduction(&self) -> &'static str {
        match self {
            Self::Terraform { .. } => "Each line below is a real `terraform init` in an empty folder:",
            Self::PlainHttp { .. } => {
                "No terraform on the PATH: each line below shows the same requests over plain HTTP."
            }
        }
    }

    async fn run(
        &self,
        label: &'static str,
        is_direct: bool,
        registry: &FakeUpstream,
        admin: &str,
    ) -> anyhow::Result<InitRun> {
        registry.forget_requests();
        let served_before = bytes_sent_to_clients(admin).await?;
        let began = Instant::now();
        match self {
            Self::Terraform { client, cli_config, lock_files } => {
                let mut workspace = client.workspace();
                for (name, version, _) in PROVIDERS {
                    workspace.require(&format!("{HOST}/acme/{name}"), version);
                }
                let direct_config = terraform::host_override(HOST, &registry.providers_url(), &registry.modules_url());
                workspace.cli_config(if is_direct { &direct_config } else { cli_config });
                let init = workspace.init().await;
                ensure!(init.status.success(), "terraform init failed:\n{}", init.text);
                if let Ok(mut lock_files) = lock_files.lock() {
                    lock_files.push(workspace.lock_file());
                }
            }
            Self::PlainHttp { base } => {
                let through_larder = format!("{base}/registry/{HOST}/v1/providers/");
                let providers = if is_direct { registry.providers_url() } else { through_larder };
                for (name, version, _) in PROVIDERS {
                    plain_install(&providers, name, version).await?;
                }
            }
        }
        let took = began.elapsed();
        let upstream_requests = registry.count_of(upstream::Target::Everything);
        let larder_bytes = if is_direct { 0 } else { bytes_sent_to_clients(admin).await? - served_before };
        Ok(InitRun { label, took, upstream_requests, upstream_bytes: registry.bytes_sent(), larder_bytes })
    }

    fn compare_lock_files(&self) -> anyhow::Result<String> {
        let Self::Terraform { lock_files, .. } = self else { return Ok(String::new()) };
        let lock_files = lock_files.lock().map_err(|_| anyhow::anyhow!("a run panicked"))?;
        let first = &lock_files[0];
        ensure!(
            lock_files.iter().all(|lock_file| lock_file == first),
            "the lock files differ:\n{}",
            lock_files.join("\n")
        );
        let (h1, zh) = (first.matches("\"h1:").count(), first.matches("\"zh:").count());
        Ok(format!(
            "All {} lock files are the same, byte for byte: {h1} h1 and {zh} zh hashes, so every platform is locked.",
            lock_files.len()
        ))
    }
}

/// The requests of one install (provider registry protocol), without the client.
async fn plain_install(providers: &str, name: &str, version: &str) -> anyhow::Result<()> {
    let get = async |url: &str| reqwest::get(url).await?.error_for_status()?.bytes().await;
    get(&format!("{providers}acme/{name}/versions")).await?;
    let url = format!("{providers}acme/{name}/{version}/download/linux/amd64");
    let document: serde_json::Value = serde_json::from_slice(&get(&url).await?)?;
    for field in ["shasums_url", "shasums_signature_url", "download_url"] {
        let file = document[field].as_str().context("a document without its URLs")?;
        get(reqwest::Url::parse(&url)?.join(file)?.as_str()).await?;
    }
    Ok(())
}

/// Body bytes that larder has sent to clients.
async fn bytes_sent_to_clients(admin: &str) -> anyhow::Result<u64> {
    let metrics = reqwest::get(format!("{admin}/metrics")).await?.text().await?;
    let lines = metrics.lines().filter(|line| line.starts_with("larder_sent_bytes_total"));
    let bytes: Vec<u64> =
        lines.map(|line| line.rsplit(' ').next().unwrap_or_default().parse()).collect::<Result<_, _>>()?;
    ensure!(!bytes.is_empty(), "no such metric");
    Ok(bytes.iter().sum())
}

fn print_runs(runs: &[&InitRun]) {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(["init", "time", "registry requests", "sent by registry", "sent by larder"]);
    for run in runs {
        let bytes = |bytes: u64| if bytes == 0 { "-".to_owned() } else { ByteSize(bytes).display().si().to_string() };
        table.add_row([
            run.label.to_owned(),
            format!("{:.2} s", run.took.as_secs_f64()),
            run.upstream_requests.to_string(),
            bytes(run.upstream_bytes),
            bytes(run.larder_bytes),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("{table}");
}
