//! A demonstration without internet: a registry with real zips and signatures and a larder in front of it, in one
//! process. Runs the real `terraform init` four times, at last with the registry stopped.
//!
//! `cargo run --example demo`; with `-- --keep` both serve until Ctrl-C, and the commands find them. With `-- --registry` only the
//! registry serves, until its standard input ends, and prints the `[[upstream]]` that leads to it: `docs/transcript` uses that.
#![expect(clippy::disallowed_methods, reason = "a demonstration is not a module of larder, whose calls are limited")]
#![expect(clippy::print_stdout, reason = "a demonstration prints its results")]

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use comfy_table::{CellAlignment, Table, presets};
use larder::app::{App, StartSettings};
use larder::config::{ByteSize, Config};
use tokio::signal::unix::{SignalKind, signal};
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
/// The machines that may run this.
const PLATFORMS: [&str; 4] = ["linux_amd64", "linux_arm64", "darwin_amd64", "darwin_arm64"];
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
        registry.publish(PLATFORMS.iter().fold(provider, |provider, platform| provider.platform(platform)));
    }
    let folder = tempfile::tempdir()?;
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    let config_text = configuration(&registry, folder.path(), [any_port; 2]);
    let config = Config::parse(&config_text, Path::new("demo.toml"), &|name| std::env::var(name).ok())?.0;
    let app = App::start(&config, StartSettings::default()).await?;
    let (base, admin) = (app.base().to_owned(), format!("http://{}", app.admin_address()));
    let listeners = [app.address(), app.admin_address()];
    let cli_config = app.client_config().await?.lines;
    let stop = CancellationToken::new();
    let serving = tokio::spawn(app.serve(stop.clone()));

    let archive_bytes = PROVIDERS.iter().map(|(_, _, size)| *size as u64).sum();
    println!(
        "A registry in place of {HOST}, with 3 signed providers of {}, and a larder before it:",
        amount(archive_bytes)
    );
    println!("all on this machine, without internet.");
    println!("\nThese lines in ~/.terraformrc lead a client to this larder. No `source` changes.\n");
    cli_config.lines().for_each(|line| println!("    {line}"));
    let client = Client::find(&base, &cli_config);
    println!("\n{}\n", client.introduction());

    let direct = client.run("directly from the registry", true, &registry, &admin).await?;
    let cold = client.run("through larder, the first time", false, &registry, &admin).await?;
    let warm = client.run("through larder, again", false, &registry, &admin).await?;
    registry.stop().await;
    let offline = client.run("through larder, registry stopped", false, &registry, &admin).await?;
    print_runs(&[&direct, &cold, &warm, &offline]);
    println!("{}", client.compare_lock_files()?);
    for run in [&cold, &warm, &offline] {
        ensure!(run.larder_bytes >= archive_bytes, "larder sent {} bytes {}", run.larder_bytes, run.label);
    }
    if std::env::args().any(|argument| argument == "--keep") {
        registry.restart().await;
        let file = folder.path().join("mirror.toml");
        std::fs::write(&file, configuration(&registry, folder.path(), listeners))?;
        println!("{}", keeping(&file, &admin));
        let mut end = signal(SignalKind::terminate())?;
        tokio::select! {
            pressed = tokio::signal::ctrl_c() => pressed?,
            _ = end.recv() => {}
        }
    } else {
        println!("{NEXT}");
    }

    stop.cancel();
    serving.await??;
    Ok(())
}

const NEXT: &str = "
Nothing stays: this larder ends here, and its store is removed. What next:

  cargo run --example demo -- --keep                  the same, and both stay up: for the commands and the status page
  cargo run -- run -- terraform -chdir=FOLDER init    your own configuration, through larder (needs its registry once)
  cargo run -- serve                                  the mirror of this machine; README.md says how a network uses it";

/// The ways to look at the demonstration while it goes on.
fn keeping(file: &Path, admin: &str) -> String {
    format!(
        "
The registry is back, and both go on until Ctrl-C. The status page is at {admin}. In another terminal, in this folder:

  export LARDER_CONFIG='{}'
  cargo run -- status                      stored, served, saved
  cargo run -- list                        every package, with its proof
  cargo run -- explain acme/cloud          what a client gets, and why
  cargo run -- doctor                      does it work? (your own ~/.terraformrc does not lead here: it says so)",
        file.display()
    )
}

/// The provider of `examples/first`, for every machine that runs it.
async fn serve_registry(registry: &FakeUpstream) -> anyhow::Result<()> {
    let provider = Provider::new("hashicorp", "random").version("3.6.3").size(5_000_000);
    registry.publish(PLATFORMS.iter().fold(provider, |provider, platform| provider.platform(platform)));
    println!("[[upstream]]\nhost = \"{HOST}\"\nurl = \"{}/\"", registry.origin());
    tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink())).await??;
    Ok(())
}

/// The configuration of a larder before the registry, with its main listener and its admin listener.
fn configuration(registry: &FakeUpstream, store: &Path, [main, admin]: [SocketAddr; 2]) -> String {
    format!(
        "server.listen = \"{main}\"\nadmin.listen = \"{admin}\"\nstore.path = {:?}\n[[upstream]]\nhost = \"{HOST}\"\nurl = \"{}/\"\n",
        store,
        registry.origin(),
    )
}

/// The real client if installed; else the same requests over plain HTTP.
enum Client {
    Terraform { client: Terraform, cli_config: String, lock_files: std::sync::Mutex<Vec<String>> },
    PlainHttp { base: String },
}

impl Client {
    fn find(base: &str, cli_config: &str) -> Self {
        match programs::look_for("terraform").and_then(|_| Terraform::find()) {
            Some(client) => {
                Self::Terraform { client, cli_config: cli_config.to_owned(), lock_files: Default::default() }
            }
            None => Self::PlainHttp { base: base.to_owned() },
        }
    }

    fn introduction(&self) -> &'static str {
        match self {
            Self::Terraform { .. } => "Each line is a real `terraform init` in an empty folder:",
            Self::PlainHttp { .. } => {
                "There is no terraform on the PATH. So each line is the requests of an `init`, made by this program:"
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
        let Self::Terraform { lock_files, .. } = self else {
            return Ok("With terraform on the PATH, this also compares the lock files of the four.".to_owned());
        };
        let lock_files = lock_files.lock().map_err(|_| anyhow::anyhow!("a run panicked"))?;
        let first = &lock_files[0];
        ensure!(
            lock_files.iter().all(|lock_file| lock_file == first),
            "the lock files differ:\n{}",
            lock_files.join("\n")
        );
        let (h1, zh) = (first.matches("\"h1:").count(), first.matches("\"zh:").count());
        Ok(format!(
            "All {} lock files are the same, byte for byte: {h1} h1: and {zh} zh: hashes, so every platform is locked.",
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

/// As the rest of larder writes amounts.
fn amount(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

fn print_runs(runs: &[&InitRun]) {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(["init", "time", "registry requests", "sent by registry", "sent by larder"]);
    for run in runs {
        let bytes = |bytes: u64| if bytes == 0 { "-".to_owned() } else { amount(bytes) };
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
