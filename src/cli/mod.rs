//! The command line: one file per command. What people see, on a terminal or as JSON.

mod bundle;
mod check;
mod client_config;
mod command;
mod doctor;
mod export;
mod import;
mod inventory;
mod missing;
mod order;
mod plan;
mod progress;
mod screen;
mod serve;
mod service;
mod status;
mod text;
mod verify;
mod warm;

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use rustix::process::Signal;
use secrecy::ExposeSecret;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};

pub use self::screen::LogOutput;

use self::screen::beside_bars;
use self::text::shown_as_text;
use crate::app::StartError;
use crate::config::{Config, Problems, Warning};
use crate::http::admin_client::NoAnswer;
use crate::protocol::admin;
use crate::store::Store;

/// The exit code of a configuration that is wrong (EX_CONFIG).
const BAD_CONFIGURATION: u8 = 78;

/// A caching pull-through mirror for Terraform and OpenTofu registries.
#[derive(Debug, Parser)]
#[command(name = "larder", version, propagate_version = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the mirror; needs no configuration
    Serve(serve::Serve),
    /// Read the configuration, report every problem at once, exit
    Check(Common),
    /// Print the CLI configuration to paste
    ClientConfig(client_config::ClientConfig),
    /// Is it working? The store, disk, clock, each upstream, and whether the clients of this machine come here
    Doctor(Common),
    /// What is stored, served and saved
    Status(Common),
    /// Will init work with the cable pulled? What is held, what is needed, and what cannot be had
    Plan(plan::PlanCommand),
    /// What was asked for while offline and is not held: with --json, as plan, warm and bundle create take it
    Missing(missing::MissingCommand),
    /// Fetch what is missing, with progress
    Warm(warm::Warm),
    /// Write a tree that filesystem_mirror and a plain web server use
    Export(export::Export),
    /// Take in a tree of `terraform providers mirror`, or one that `larder export` made
    Import(import::Import),
    /// Carry what is held across a gap
    Bundle(bundle::Bundle),
    /// What is held, for the next `bundle create --since`
    Inventory(Common),
    /// Ask upstream again now, whatever its age: the version list, and the sets that are held
    Refresh(command::Addresses),
    /// Forget documents and archives; not what was ever proven
    Purge(command::Addresses),
    /// Believe a version that upstream has published anew
    Accept(command::Addresses),
    /// Never evict what is held of these, nor purge it
    Pin(command::Addresses),
    /// Evict and purge what is held of these as anything else
    Unpin(command::Addresses),
    /// Read everything stored again, set aside what is wrong, and fetch it again
    Verify(Common),
}

/// What every command takes.
#[derive(Debug, Args)]
struct Common {
    /// The configuration; otherwise $XDG_CONFIG_HOME/larder/mirror.toml, then /etc/larder/mirror.toml, then the defaults
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Common {
    fn load(&self) -> Result<(Config, Vec<Warning>), Problems> {
        Config::load(self.config.as_deref())
    }
}

impl Arguments {
    /// What is logged where nobody says otherwise: all that a larder does; of a command, what its own words leave out.
    pub fn log_directives(&self) -> &'static str {
        match self.command {
            Command::Serve(_) => "info",
            Command::Warm(_) | Command::Export(_) => "warn,larder::jobs=error",
            // It tells of each archive itself.
            Command::Import(_) => "warn,larder::mirror::trees=error",
            Command::Bundle(_) => "warn,larder::jobs=error,larder::mirror::carry=off",
            _ => "warn",
        }
    }

    /// Runs the command. It has failed, too, where what it was asked for could not be printed; a larder that serves does
    /// not end for that.
    pub fn run(self) -> ExitCode {
        let serves = matches!(self.command, Command::Serve(_));
        let ended = self.command.run();
        let is_unprinted = !serves && IS_UNPRINTED.load(Ordering::Relaxed);
        if is_unprinted && ended == ExitCode::SUCCESS { ExitCode::FAILURE } else { ended }
    }
}

impl Command {
    fn run(self) -> ExitCode {
        let ended = match self {
            Command::Serve(serve) => serve.run().map(|()| true),
            Command::Check(common) => return check::run(&common),
            Command::ClientConfig(client_config) => client_config.run().map(|()| true),
            Command::Doctor(common) => doctor::run(&common),
            Command::Status(common) => status::run(&common).map(|()| true),
            Command::Plan(plan) => plan.run(),
            Command::Missing(missing) => missing.run().map(|()| true),
            Command::Warm(warm) => warm.run(),
            Command::Export(export) => export.run(),
            Command::Import(import) => import.run(),
            Command::Bundle(bundle) => bundle.run(),
            Command::Inventory(common) => inventory::run(&common).map(|()| true),
            Command::Refresh(addresses) => addresses.run(admin::Command::Refresh),
            Command::Purge(addresses) => addresses.run(admin::Command::Purge),
            Command::Accept(addresses) => addresses.run(admin::Command::Accept),
            Command::Pin(addresses) => addresses.run(admin::Command::Pin),
            Command::Unpin(addresses) => addresses.run(admin::Command::Unpin),
            Command::Verify(common) => verify::run(&common),
        };
        match ended {
            Ok(true) => ExitCode::SUCCESS,
            // What was not well has been said.
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                let refused = matches!(error.downcast_ref(), Some(StartError::Refused(_)));
                let bad_configuration = refused || error.downcast_ref::<Problems>().is_some();
                say_error(&told(&error));
                ExitCode::from(if bad_configuration { BAD_CONFIGURATION } else { 1 })
            }
        }
    }
}

/// Whether something that was asked for could not be printed.
static IS_UNPRINTED: AtomicBool = AtomicBool::new(false);

/// Prints what was asked for, on the standard output. Whoever closed it does not want to know.
fn say(text: &str) {
    match beside_bars(|| writeln!(std::io::stdout(), "{text}")) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe && !IS_UNPRINTED.swap(true, Ordering::Relaxed) => {
            say_error(&format!("could not print all of what was asked for: {error}"));
        }
        _ => {}
    }
}

/// Prints what went wrong, on the standard error; and nothing that a terminal would obey, whoever wrote it.
fn say_error(text: &str) {
    let lines: Vec<String> = text.split('\n').map(shown_as_text).collect();
    let _ = beside_bars(|| writeln!(std::io::stderr(), "larder: {}", lines.join("\n")));
}

/// An error with its causes, each said once: some already tell what caused them.
fn told(error: &anyhow::Error) -> String {
    let mut told = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if told.is_empty() {
            told = cause;
        } else if !told.contains(&cause) {
            told = format!("{told}: {cause}");
        }
    }
    told
}

fn runtime() -> Result<tokio::runtime::Runtime, std::io::Error> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}

/// For as long as this lives, a file that may not grow larger is an error for whoever writes it, and not the end of the
/// process.
fn ignore_file_limits() -> anyhow::Result<Signals> {
    signal(SignalKind::from_raw(Signal::XFSZ.as_raw())).context("SIGXFSZ cannot be caught")
}

/// Asks the running larder, which is shown the token. Where its store is free, whoever listens in its place is
/// somebody else, and is shown nothing.
async fn ask_running<T>(
    config: &Config,
    ask: impl AsyncFnOnce(SocketAddr, Option<&str>) -> Result<T, NoAnswer>,
) -> Result<T, NoAnswer> {
    let address = config.admin.listen;
    if Store::is_free(&config.store.path) {
        return Err(NoAnswer::NotRunning(address));
    }
    ask(address, admin_token(config).as_deref()).await
}

/// The token for a running larder: the configured one, else the one it made.
fn admin_token(config: &Config) -> Option<String> {
    let configured = config.admin.token.as_ref().map(|token| token.expose_secret().to_owned());
    configured.or_else(|| Store::read_admin_token(&config.store.path))
}
