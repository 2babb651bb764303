//! The `larder` binary.

use std::process::ExitCode;

use larder::cli::Arguments;

fn main() -> ExitCode {
    Arguments::read().run()
}
