//! A module with a packed archive, published by the fake upstream.

use super::upstream::{FakeUpstream, Module};

/// Publishes acme/net/test 1.0.0.
pub(crate) fn publish_net_module(upstream: &FakeUpstream) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("main.tf"), "output \"is\" {\n  value = 1\n}\n").unwrap();
    let tar = crate::support::git::pack(crate::support::git::Format::TarGz, folder.path(), "");
    upstream.serve_file("/files/net.tar.gz", "application/gzip", tar);
    upstream.publish_module(Module::new("acme", "net", "test").at("/files/net.tar.gz"));
}
