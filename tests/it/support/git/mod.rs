//! Real repositories, made by the real `git` in a folder of the test's own, and a real `sshd` in front of them. Over
//! https they are served by the fake upstream (`FakeUpstream::host_git`).

#![expect(clippy::disallowed_methods, reason = "repositories are made outside of any store")]

mod archive;
pub(crate) mod forge;
mod repository;
mod sshd;
mod trees;

pub(crate) use self::archive::{Format, pack};
pub(crate) use self::repository::{Repositories, Repository};
pub(crate) use self::sshd::Sshd;
pub(crate) use self::trees::differences;

use std::io::Write as _;
use std::path::PathBuf;

/// A program on PATH or where servers are. Where it is absent this says what was not run, and panics when
/// `LARDER_REQUIRE_CLIENT=1`.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    let found = folders.map(|folder| folder.join(program)).find(|file| file.is_file());
    if found.is_none() {
        cannot(&format!("{program} is not installed"));
    }
    found
}

/// Says that a test was not run, and panics when it must be.
pub(crate) fn cannot(why: &str) {
    let missing = format!("{why}: some tests were not run");
    assert!(std::env::var("LARDER_REQUIRE_CLIENT").as_deref() != Ok("1"), "{missing}");
    // Straight to the terminal: the test runner would swallow what is printed by a test that passes.
    let _ = writeln!(std::io::stderr(), "\n*** {missing} ***\n");
}
