//! The `larder` binary: arguments, logging, run, exit code.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use larder::cli::{Arguments, LogOutput};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let filter = filter(arguments.log_directives());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| LogOutput)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        // A log that cannot be written is lost; to say so would need a log that can.
        .log_internal_errors(false)
        .init();
    arguments.run()
}

#[expect(clippy::disallowed_methods, reason = "whatever is read first may have to be logged")]
fn filter(otherwise: &str) -> EnvFilter {
    let told = std::env::var("LARDER_LOG").ok().filter(|told| !told.trim().is_empty());
    let builder = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into());
    builder.parse_lossy(told.as_deref().unwrap_or(otherwise))
}
