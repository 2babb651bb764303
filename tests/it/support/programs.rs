//! Real programs of the machine: their paths, and a note where one is absent.

use std::io::Write as _;
use std::path::PathBuf;

/// A program on PATH or in the folders of servers. A missing program is printed; with `LARDER_REQUIRE_CLIENT=1` it is a
/// panic.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let servers = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let found = std::env::split_paths(&path).chain(servers).map(|folder| folder.join(program));
    let found = found.into_iter().find(|file| file.is_file());
    if found.is_none() {
        cannot(&format!("{program} is not installed"));
    }
    found
}

/// Says that a test was not run, and panics when it must be.
pub(crate) fn cannot(reason: &str) {
    let missing = format!("{reason}: some tests were not run");
    assert!(std::env::var("LARDER_REQUIRE_CLIENT").as_deref() != Ok("1"), "{missing}");
    // Straight to the terminal: the test runner hides the output of a passing test.
    let _ = writeln!(std::io::stderr(), "\n*** {missing} ***\n");
}
