//! The files for operators, with the programs that read them: `deploy/` with promtool and Prometheus, `docs/openapi.json`
//! with schemathesis, each against a larder that has had traffic. `tests/long/run promtool openapi` installs the programs
//! and runs this.
#![expect(clippy::disallowed_methods, reason = "the limits on calls are for the modules of larder itself")]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "this program prints what it found")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../it/support/mod.rs"]
#[expect(dead_code, reason = "the behaviour tests use the rest of it")]
mod support;

mod live;
mod prometheus;
mod schemathesis;

use std::process::ExitCode;

use self::live::Live;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let problems = match arguments.first().map(String::as_str) {
        Some("promtool") => prometheus::problems(&Live::start().await).await,
        Some("openapi") => schemathesis::problems(&Live::start().await).await,
        _ => vec!["run tests/long/run promtool openapi: it installs the programs".to_owned()],
    };
    problems.iter().for_each(|problem| eprintln!("{problem}"));
    if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
