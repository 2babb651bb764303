//! The command line: one file for each group of commands. Prints for people on a terminal, or JSON.

mod admin_service;
mod approve;
mod bundle;
mod completions;
mod doctor;
mod explain;
mod fleet;
mod help;
mod list;
mod lock;
mod log_output;
mod logging;
mod man;
mod missing;
mod operate;
mod order;
mod plan;
mod policy;
mod run;
mod serve;
mod status;
mod terminal;
mod token;
mod trees;
mod warm;

use std::future::poll_fn;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, FromArgMatches as _, Parser, Subcommand, ValueHint};
use rustix::process::Signal;
use serde::Serialize;
use serde_json::json;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};

use self::logging::LoggingProcess;
use self::terminal::{escape_for_terminal, shell_word, with_bars_hidden};
use crate::answer_json;
use crate::app::StartError;
use crate::config::{self, Config, ConfigReading, Diagnostic, Problems, StoreNaming};
use crate::explanation::safe_text;
use crate::protocol::admin::operation::Operation;
use crate::protocol::admin::outcome_lines::{pinned_lines, purged_lines, refreshed_lines};
use crate::wording::escape_format_characters;

/// Exit code of a usage error, and of an `accept` that nobody has decided about.
const USAGE: u8 = 2;
/// Exit code of `plan` and `verify` for a finding: something is missing or damaged.
const FINDING: u8 = 3;
/// Exit code for an invalid configuration (EX_CONFIG).
const BAD_CONFIGURATION: u8 = 78;
/// Exit code of a command stopped by Ctrl-C or SIGTERM; shells use it for SIGINT.
const INTERRUPTED: u8 = 130;

/// A command was stopped by a signal.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.as_deref().unwrap_or("stopped"))]
struct Interrupted(
    /// Text to print; `None` where the command has already printed its progress.
    Option<String>,
);

impl Interrupted {
    fn with_text(text: &str) -> anyhow::Error {
        Self(Some(text.to_owned())).into()
    }
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A caching pull-through mirror for Terraform and OpenTofu registries.
#[derive(Debug, Parser)]
#[command(name = "larder", version, propagate_version = true)]
pub struct Arguments {
    #[command(flatten)]
    common: CommonOptions,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a client, such as terraform, through larder
    Run(run::Run),
    /// Run the mirror; needs no configuration
    Serve(serve::Serve),
    /// Read the configuration, report every problem at once
    Check,
    /// Print the CLI configuration to paste
    ClientConfig(doctor::ClientConfig),
    /// Make the token of a client
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Check store, disk, clock, upstreams and this machine's clients
    Doctor,
    /// Show what is stored and served, and the traffic saved
    Status,
    /// List stored packages: versions, sizes, proofs, last use
    List(list::List),
    /// Explain what a client gets, and why: an address or a URL
    Explain(explain::Explain),
    /// Report whether init will work offline, and what is missing
    Plan(plan::PlanCommand),
    /// Complete .terraform.lock.hcl with the hashes of every platform
    ///
    /// Without --platform: for `platforms` in [lock], else for this machine's. Archives whose hashes larder does not know
    /// are fetched once.
    Lock(lock::LockCommand),
    /// Show which versions may be used under the policies
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// List what was requested while offline and is not stored
    Missing(missing::MissingCommand),
    /// Fetch and verify what init needs, with progress
    Warm(warm::Warm),
    /// Write a provider tree for filesystem_mirror or a web server
    Export(trees::Export),
    /// Import a tree made by `terraform providers mirror` or export
    Import(trees::ImportCommand),
    /// Transfer stored packages across an air gap
    #[command(subcommand)]
    Bundle(bundle::BundleCommand),
    /// Print what is stored, for the next `bundle create --since`
    Inventory,
    /// Revalidate documents upstream now, fresh ones too
    Refresh(operate::Addresses),
    /// Delete documents and archives; first-seen records stay
    Purge(operate::Addresses),
    /// Accept a version whose bytes, keys or files changed upstream
    Accept(operate::Accept),
    /// Let a version be used although it is too young for a rule
    Approve(approve::Approve),
    /// Take an approval back
    Unapprove(approve::Unapprove),
    /// Exempt packages from eviction and purge
    Pin(operate::Addresses),
    /// Allow eviction and purge again
    Unpin(operate::Addresses),
    /// Re-hash everything stored; fetch damaged archives again
    Verify,
    /// Prepare the database that the replicas of a fleet share
    #[command(subcommand, hide = true)]
    Fleet(fleet::FleetCommand),
    /// Print the script that completes larder's commands in a shell
    Completions(completions::Completions),
    /// Print the manual page, or write the pages of all commands
    Man(man::ManCommand),
    /// Print the version
    Version,
}

/// Options of every command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Options of every command")]
struct CommonOptions {
    /// Configuration file [default: $LARDER_CONFIG, $XDG_CONFIG_HOME/larder/mirror.toml, /etc/larder/mirror.toml,
    /// built-in defaults]
    #[arg(long, short, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
    /// Print JSON, also for errors
    #[arg(long, global = true)]
    json: bool,
    /// Address of the admin listener; overrides `listen` in `[admin]`
    #[arg(long, global = true, value_name = "ADDRESS:PORT", value_parser = config::listening)]
    admin_listen: Option<SocketAddr>,
    /// Folder of the store; overrides `path` in `[store]`
    #[arg(long, global = true, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    store: Option<PathBuf>,
}

impl CommonOptions {
    /// Loads the configuration and applies the overrides of the command line.
    fn load(&self) -> Result<(Config, Vec<Diagnostic>), Problems> {
        self.read().valid()
    }

    /// Reads the configuration as far as it can be read, and applies the overrides of the command line.
    fn read(&self) -> ConfigReading {
        let ConfigReading { mut config, warnings, problems } = ConfigReading::of(self.config.as_deref());
        config.admin.listen = self.admin_listen.unwrap_or(config.admin.listen);
        config.admin.asked = self.admin_listen;
        if let Some(store) = &self.store {
            config.store.path.clone_from(store);
            config.store.named_by = StoreNaming::CommandLine;
        }
        ConfigReading { config, warnings, problems }
    }

    /// The options of this command line that choose the larder, for a command to paste.
    fn as_given(&self) -> String {
        let path = |name: &str, path: &Option<PathBuf>| {
            path.as_ref().map(|path| format!(" --{name} {}", shell_word(&path.display().to_string())))
        };
        let admin = self.admin_listen.map(|address| format!(" --admin-listen {address}"));
        [path("config", &self.config), admin, path("store", &self.store)].into_iter().flatten().collect()
    }

    /// The options that another command needs to find the same larder. Without overrides the configuration says it all, and
    /// the command that is advised finds that itself.
    fn connection_options(&self, admin: SocketAddr) -> String {
        let absolute = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
        let config = self.config.as_ref().map(|file| format!(" --config {:?}", absolute(file)));
        let admin = self.admin_listen.map(|_| format!(" --admin-listen {admin}"));
        let store = self.store.as_ref().map(|store| format!(" --store {:?}", absolute(store)));
        let overrides: String = admin.into_iter().chain(store).collect();
        if overrides.is_empty() { overrides } else { format!("{}{overrides}", config.unwrap_or_default()) }
    }
}

impl Arguments {
    /// Parses the command line. Prints help or a usage error and exits the process where there is no command to run.
    pub fn read() -> Self {
        let arguments =
            help::command_with_help().try_get_matches().and_then(|matches| Self::from_arg_matches(&matches));
        arguments.unwrap_or_else(|error| {
            let words: Vec<String> =
                std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
            let error = help::with_tip(error, &words);
            if error.use_stderr() && words.iter().any(|word| word == "--json") {
                let text = error.render().to_string();
                let text = text.strip_prefix("error: ").unwrap_or(&text).trim();
                print_json(&json!({ "errors": [safe_text(text)] }));
                std::process::exit(error.exit_code());
            }
            error.exit()
        })
    }

    /// Default log directives. A command omits the modules whose events it prints itself.
    fn log_directives(&self) -> &'static str {
        match self.command {
            Command::Serve(_) => "info",
            // The client prints why a request failed, and the last line names an upstream that did not answer.
            Command::Run(_) => "warn,larder::http=error,larder::upstream=error",
            Command::Warm(_) | Command::Lock(_) | Command::Export(_) => "warn,larder::jobs=error",
            // They print what the database refused.
            Command::Doctor | Command::Fleet(_) => "warn,larder::fleet=off",
            // It shows what its alarms are about.
            Command::Accept(_) => "warn,larder::mirror::library=off",
            // It prints a line for each damage itself.
            Command::Verify => "warn,larder::mirror::operate::rehash=off",
            // Import prints a line for each archive itself.
            Command::Import(_) => "warn,larder::mirror::transfer::tree=error",
            Command::Bundle(_) => "warn,larder::jobs=error,larder::mirror::transfer::bundle=off",
            _ => "warn",
        }
    }

    /// Runs the command. Failing to print the result makes the exit code a failure, except for `serve`.
    pub fn run(self) -> ExitCode {
        let serves = matches!(self.command, Command::Serve(_));
        let process = if serves { LoggingProcess::Service } else { LoggingProcess::Command };
        if let Err(error) = logging::init_logging(process, self.log_directives()) {
            print_error(&error.to_string());
            return ExitCode::from(BAD_CONFIGURATION);
        }
        let exit_code = self.command.run(&self.common);
        log_output::write_waiting_lines();
        let is_unprinted = !serves && PRINT_FAILED.load(Ordering::Relaxed);
        if is_unprinted && exit_code == ExitCode::SUCCESS { ExitCode::FAILURE } else { exit_code }
    }
}

impl Command {
    fn run(self, common: &CommonOptions) -> ExitCode {
        let exit_code_of_finding = match self {
            Command::Plan(_) | Command::Policy(_) | Command::Verify => FINDING,
            _ => 1,
        };
        let is_run = matches!(self, Command::Run(_));
        let result = match self {
            Command::Run(run) => match run.run(common) {
                Ok(code) => return ExitCode::from(code),
                Err(error) => Err(error),
            },
            Command::Serve(serve) => serve.run(common).map(|()| true),
            Command::Check => return doctor::check(common),
            Command::ClientConfig(client_config) => client_config.run(common).map(|()| true),
            Command::Token(token) => token.run(common).map(|()| true),
            Command::Doctor => doctor::run(common),
            Command::Status => status::run(common).map(|()| true),
            Command::List(list) => list.run(common).map(|()| true),
            Command::Explain(explain) => explain.run(common).map(|()| true),
            Command::Plan(plan) => plan.run(common),
            Command::Lock(lock) => match lock.run(common) {
                Ok(lock::LockOutcome::Incomplete) => return ExitCode::from(FINDING),
                outcome => outcome.map(|outcome| outcome == lock::LockOutcome::Complete),
            },
            Command::Policy(policy) => policy.run(common),
            Command::Missing(missing) => missing.run(common).map(|()| true),
            Command::Warm(warm) => warm.run(common),
            Command::Export(export) => export.run(common),
            Command::Import(import) => import.run(common),
            Command::Bundle(bundle) => bundle.run(common),
            Command::Inventory => bundle::print_inventory(common).map(|()| true),
            Command::Refresh(addresses) => addresses.run(Operation::Refresh, common, refreshed_lines),
            Command::Purge(addresses) => addresses.run(Operation::Purge, common, purged_lines),
            Command::Accept(accept) => match accept.run(common) {
                Ok(operate::Decision::Open) => return ExitCode::from(USAGE),
                decision => decision.map(|decision| decision == operate::Decision::Accepted),
            },
            Command::Approve(approve) => approve.run(common),
            Command::Unapprove(unapprove) => unapprove.run(common),
            Command::Pin(addresses) => addresses.run(Operation::Pin, common, pinned_lines),
            Command::Unpin(addresses) => addresses.run(Operation::Unpin, common, pinned_lines),
            Command::Verify => operate::verify(common),
            Command::Fleet(fleet) => fleet.run(common),
            Command::Completions(completions) => completions.run(common).map(|()| true),
            Command::Man(man) => man.run(common).map(|()| true),
            Command::Version => {
                print_line(&if common.json {
                    json!({ "version": VERSION }).to_string()
                } else {
                    format!("larder {VERSION}")
                });
                Ok(true)
            }
        };
        match result {
            Ok(true) => ExitCode::SUCCESS,
            // The command has already printed the finding.
            Ok(false) => ExitCode::from(exit_code_of_finding),
            Err(error) => {
                if matches!(error.downcast_ref(), Some(Interrupted(None))) {
                    return ExitCode::from(INTERRUPTED);
                }
                let errors = || json!({ "errors": errors(&error) });
                if is_run && common.json {
                    print_error_json(&errors());
                } else if common.json {
                    print_json(&errors());
                } else {
                    print_error(&error_chain_text(&error));
                }
                ExitCode::from(exit_code_of(&error))
            }
        }
    }
}

fn exit_code_of(error: &anyhow::Error) -> u8 {
    let is_refused = matches!(error.downcast_ref(), Some(StartError::Refused(_)));
    if let Some(run::NotStarted { code, .. }) = error.downcast_ref() {
        *code
    } else if is_refused || error.downcast_ref::<Problems>().is_some() {
        BAD_CONFIGURATION
    } else if error.downcast_ref::<Interrupted>().is_some() {
        INTERRUPTED
    } else {
        1
    }
}

/// Error texts for JSON; each problem of a configuration is one entry.
fn errors(error: &anyhow::Error) -> Vec<String> {
    let texts = match error.downcast_ref::<Problems>() {
        Some(problems) => problems.diagnostics().iter().map(ToString::to_string).collect(),
        None => vec![error_chain_text(error)],
    };
    texts.iter().map(|text| safe_text(text)).collect()
}

/// True after a result could not be printed.
static PRINT_FAILED: AtomicBool = AtomicBool::new(false);

/// Prints a result on standard output. A closed pipe is not an error.
fn print_line(text: &str) {
    match with_bars_hidden(|| writeln!(std::io::stdout(), "{text}")) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe && !PRINT_FAILED.swap(true, Ordering::Relaxed) => {
            print_error(&format!("could not print the whole result: {error}"));
        }
        _ => {}
    }
}

/// Prints a result or a step as one line of JSON.
fn print_json(value: &impl Serialize) {
    match json_line(value) {
        Ok(line) => print_line(&line),
        Err(error) => print_error(&error.to_string()),
    }
}

fn json_line(value: &impl Serialize) -> serde_json::Result<String> {
    Ok(escape_format_characters(&String::from_utf8_lossy(&answer_json::to_vec(value)?)).into_owned())
}

/// Prints an error on standard error, with control characters escaped.
fn print_error(text: &str) {
    let lines: Vec<String> = text.split('\n').map(escape_for_terminal).collect();
    let _ = with_bars_hidden(|| writeln!(std::io::stderr(), "larder: {}", lines.join("\n")));
}

/// Prints a report as one line of JSON on standard error, where standard output belongs to another program.
fn print_error_json(value: &impl Serialize) {
    match json_line(value) {
        Ok(line) => drop(with_bars_hidden(|| writeln!(std::io::stderr(), "{line}"))),
        Err(error) => print_error(&error.to_string()),
    }
}

/// An error with its causes. A cause that is already part of the text is skipped.
fn error_chain_text(error: &anyhow::Error) -> String {
    let mut chain = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if chain.is_empty() {
            chain = cause;
        } else if !chain.contains(&cause) {
            chain = format!("{chain}: {cause}");
        }
    }
    chain
}

/// Runs the work of a command. A background read or hash may still run after it: the next start repeats it where it is
/// needed.
fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.context("the runtime would not start")?;
    let result = runtime.block_on(work);
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

/// Catches SIGXFSZ: a write beyond the file size limit is then an error, not the end of the process.
fn catch_file_size_signal() -> anyhow::Result<CaughtSignals> {
    CaughtSignals::catch([(Signal::XFSZ, "SIGXFSZ")])
}

/// Signals that do not end the process.
#[derive(Debug)]
struct CaughtSignals(Vec<(Signal, Signals)>);

impl CaughtSignals {
    fn catch(wanted: impl IntoIterator<Item = (Signal, &'static str)>) -> anyhow::Result<Self> {
        let catch = |(number, name): (Signal, &str)| {
            let signals = signal(SignalKind::from_raw(number.as_raw()));
            Ok((number, signals.with_context(|| format!("{name} cannot be caught"))?))
        };
        wanted.into_iter().map(catch).collect::<anyhow::Result<_>>().map(Self)
    }

    /// Catches Ctrl-C and SIGTERM.
    fn catch_stop() -> anyhow::Result<Self> {
        Self::catch([(Signal::INT, "SIGINT"), (Signal::TERM, "SIGTERM")])
    }

    /// Waits for the next of the signals.
    async fn next(&mut self) -> Signal {
        let next = poll_fn(|context| {
            let arrived =
                |(number, signals): &mut (Signal, Signals)| signals.poll_recv(context).is_ready().then_some(*number);
            self.0.iter_mut().find_map(arrived).map_or(Poll::Pending, Poll::Ready)
        });
        next.await
    }
}
