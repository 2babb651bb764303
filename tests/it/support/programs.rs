//! Finds the real programs that tests run, and prints a note if one is missing.

use std::io::Write as _;
use std::path::PathBuf;

/// Finds a program on PATH or in the folders of servers. Prints a note if it is missing; panics with
/// `LARDER_REQUIRE_CLIENT=1`.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let file = look_for(program);
    if file.is_none() {
        skip(&format!("{program} is not installed"));
    }
    file
}

/// Finds a program as [`find`] does, without a note.
pub(crate) fn look_for(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let servers = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let mut candidates = std::env::split_paths(&path).chain(servers).map(|folder| folder.join(program));
    candidates.find(|file| file.is_file())
}

/// Prints that a test was skipped, and why; panics with `LARDER_REQUIRE_CLIENT=1`.
pub(crate) fn skip(reason: &str) {
    let note = format!("{reason}: some tests were not run");
    assert!(std::env::var("LARDER_REQUIRE_CLIENT").as_deref() != Ok("1"), "{note}");
    // Written to stderr directly: the test runner captures only what the print macros write.
    let _ = writeln!(std::io::stderr(), "\n*** {note} ***\n");
}
