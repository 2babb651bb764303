//! The `larder` binary: arguments, logging, run, exit code.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use larder::cli::Arguments;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::INFO.into())
        .with_env_var("LARDER_LOG")
        .from_env_lossy();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        // A log that cannot be written is lost; to say so would need a log that can.
        .log_internal_errors(false)
        .init();
    arguments.run()
}
