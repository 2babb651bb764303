//! The command line: one file per command. What people see, on a terminal or as JSON.

mod bundle;
mod check;
mod client_config;
mod command;
mod doctor;
mod export;
mod help;
mod import;
mod inventory;
mod logging;
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
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use clap::{Args, FromArgMatches as _, Parser, Subcommand};
use rustix::process::Signal;
use secrecy::ExposeSecret;
use serde_json::json;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};

use self::screen::LogOutput;

use self::screen::beside_bars;
use self::text::shown_as_text;
use crate::app::StartError;
use crate::config::{self, Config, Problems, Warning};
use crate::error::public_text;
use crate::http::admin_client::NoAnswer;
use crate::protocol::admin;
use crate::store::Store;

/// The exit code of a plan or a check that found something: the command itself worked.
const NOT_READY: u8 = 3;
/// The exit code of a configuration that is wrong (EX_CONFIG).
const BAD_CONFIGURATION: u8 = 78;
/// The exit code of a command that Ctrl-C or SIGTERM stopped, as shells have it for SIGINT.
const INTERRUPTED: u8 = 130;

/// A command stopped by a signal.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.as_deref().unwrap_or("stopped"))]
struct Interrupted(
    /// The text to print; absent where the command has printed how far it came.
    Option<String>,
);

impl Interrupted {
    fn told(text: &str) -> anyhow::Error {
        Self(Some(text.to_owned())).into()
    }
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

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
    /// Read the configuration, report every problem at once
    Check(Common),
    /// Print the CLI configuration to paste
    ClientConfig(client_config::ClientConfig),
    /// Check store, disk, clock, upstreams and this machine's clients
    Doctor(Common),
    /// What is stored, served and saved
    Status(Common),
    /// Will init work offline? What is stored, needed, unavailable
    Plan(plan::PlanCommand),
    /// What was asked for while offline and is not stored
    Missing(missing::MissingCommand),
    /// Fetch what is missing, with progress
    Warm(warm::Warm),
    /// Write a tree for filesystem_mirror or a plain web server
    Export(export::Export),
    /// Take in a tree of `terraform providers mirror` or of export
    Import(import::Import),
    /// Carry what is stored across an air gap
    Bundle(bundle::Bundle),
    /// What is stored, for the next `bundle create --since`
    Inventory(Common),
    /// Ask upstream again now, however fresh it is
    Refresh(command::Addresses),
    /// Forget documents and archives; not what was ever verified
    Purge(command::Addresses),
    /// Accept a version that upstream has published anew
    Accept(command::Addresses),
    /// Never evict nor purge these
    Pin(command::Addresses),
    /// Evict and purge these like anything else
    Unpin(command::Addresses),
    /// Read everything stored again, and fetch again what is damaged
    Verify(Common),
    /// Print the version
    Version(Common),
}

/// What every command takes.
#[derive(Debug, Args)]
struct Common {
    /// The configuration; otherwise $LARDER_CONFIG, $XDG_CONFIG_HOME/larder/mirror.toml, /etc/larder/mirror.toml, the defaults
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON, errors too
    #[arg(long)]
    json: bool,
    /// The admin listener, instead of `listen` of the configuration's `admin`
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = config::listening)]
    admin_listen: Option<SocketAddr>,
    /// The store, instead of `path` of the configuration's `store`
    #[arg(long, value_name = "FOLDER")]
    store: Option<PathBuf>,
}

impl Common {
    fn load(&self) -> Result<(Config, Vec<Warning>), Problems> {
        self.load_from(self.config.as_deref())
    }

    /// The configuration of a file, as the command line changes it.
    fn load_from(&self, file: Option<&Path>) -> Result<(Config, Vec<Warning>), Problems> {
        let (mut config, warnings) = Config::load(file)?;
        config.admin.listen = self.admin_listen.unwrap_or(config.admin.listen);
        if let Some(store) = &self.store {
            config.store.path.clone_from(store);
        }
        Ok((config, warnings))
    }

    /// The options by which another command finds the same larder.
    fn to_find_it(&self, admin: SocketAddr) -> String {
        let absolute = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
        let config = self.config.as_ref().map(|file| format!(" --config {:?}", absolute(file)));
        let admin = self.admin_listen.map(|_| format!(" --admin-listen {admin}"));
        let store = self.store.as_ref().map(|store| format!(" --store {:?}", absolute(store)));
        let moved: String = admin.into_iter().chain(store).collect();
        if moved.is_empty() { moved } else { format!("{}{moved}", config.unwrap_or_default()) }
    }
}

impl Arguments {
    /// Reads the command line; prints help or a mistake in it, and ends the process, where that is all there is to do.
    pub fn read() -> Self {
        let wants_json = || std::env::args_os().any(|argument| argument == "--json");
        let read = help::described().try_get_matches().and_then(|matches| Self::from_arg_matches(&matches));
        read.unwrap_or_else(|error| {
            if error.use_stderr() && wants_json() {
                let text = error.render().to_string();
                let text = text.strip_prefix("error: ").unwrap_or(&text).trim();
                say(&json!({ "errors": [public_text(text)] }).to_string());
                std::process::exit(error.exit_code());
            }
            error.exit()
        })
    }

    /// What is logged where nobody says otherwise: all that a larder does; of a command, what its own words leave out.
    fn log_directives(&self) -> &'static str {
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
        if let Err(bad) = logging::begin(self.log_directives()) {
            say_error(&bad.to_string());
            return ExitCode::from(BAD_CONFIGURATION);
        }
        let serves = matches!(self.command, Command::Serve(_));
        let ended = self.command.run();
        let is_unprinted = !serves && IS_UNPRINTED.load(Ordering::Relaxed);
        if is_unprinted && ended == ExitCode::SUCCESS { ExitCode::FAILURE } else { ended }
    }
}

impl Command {
    fn run(self) -> ExitCode {
        let json = self.common().json;
        let not_well = match self {
            Command::Plan(_) | Command::Verify(_) => NOT_READY,
            _ => 1,
        };
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
            Command::Version(common) => {
                say(&if common.json { json!({ "version": VERSION }).to_string() } else { format!("larder {VERSION}") });
                Ok(true)
            }
        };
        match ended {
            Ok(true) => ExitCode::SUCCESS,
            // What was not well has been said.
            Ok(false) => ExitCode::from(not_well),
            Err(error) => {
                if matches!(error.downcast_ref(), Some(Interrupted(None))) {
                    return ExitCode::from(INTERRUPTED);
                }
                if json {
                    say(&json!({ "errors": errors(&error) }).to_string());
                } else {
                    say_error(&told(&error));
                }
                ExitCode::from(code(&error))
            }
        }
    }

    fn common(&self) -> &Common {
        match self {
            Command::Serve(serve) => serve.common(),
            Command::ClientConfig(client_config) => client_config.common(),
            Command::Plan(plan) => plan.common(),
            Command::Missing(missing) => missing.common(),
            Command::Warm(warm) => warm.common(),
            Command::Export(export) => export.common(),
            Command::Import(import) => import.common(),
            Command::Bundle(bundle) => bundle.common(),
            Command::Refresh(addresses)
            | Command::Purge(addresses)
            | Command::Accept(addresses)
            | Command::Pin(addresses)
            | Command::Unpin(addresses) => addresses.common(),
            Command::Check(common)
            | Command::Doctor(common)
            | Command::Status(common)
            | Command::Inventory(common)
            | Command::Verify(common)
            | Command::Version(common) => common,
        }
    }
}

/// The exit code of an error.
fn code(error: &anyhow::Error) -> u8 {
    let is_refused = matches!(error.downcast_ref(), Some(StartError::Refused(_)));
    if is_refused || error.downcast_ref::<Problems>().is_some() {
        BAD_CONFIGURATION
    } else if error.downcast_ref::<Interrupted>().is_some() {
        INTERRUPTED
    } else {
        1
    }
}

/// The texts of an error for JSON: each problem of a configuration is one.
fn errors(error: &anyhow::Error) -> Vec<String> {
    let texts = match error.downcast_ref::<Problems>() {
        Some(problems) => problems.remarks().iter().map(ToString::to_string).collect(),
        None => vec![told(error)],
    };
    texts.iter().map(|text| public_text(text)).collect()
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
    let token = admin_token(config);
    let asked = ask(address, token.as_deref()).await;
    if matches!(asked, Err(NoAnswer::NotRunning(_))) && Store::exists(&config.store.path).unwrap_or(false) {
        return Err(NoAnswer::Elsewhere { store: config.store.path.clone(), address });
    }
    match Store::admin_token_is_private(&config.store.path) {
        Some(why) if token.is_none() && matches!(asked, Err(NoAnswer::Refused { .. })) => {
            Err(NoAnswer::TokenIsPrivate { address, why: why.to_string() })
        }
        _ => asked,
    }
}

/// The token for a running larder: the configured one, else the one it made.
fn admin_token(config: &Config) -> Option<String> {
    let configured = config.admin.token.as_ref().map(|token| token.expose_secret().to_owned());
    configured.or_else(|| Store::read_admin_token(&config.store.path))
}
