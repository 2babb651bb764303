//! A registry whose modules are archives, and the host of the archives: for module tests that need no git.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};

use super::larder::{Builder, Larder};
use super::tls::TestCa;
use super::upstream::{FakeUpstream, Module};

/// A registry over http, and an archive host over https.
pub(crate) struct ModuleFixture {
    pub(crate) ca: TestCa,
    pub(crate) registry: FakeUpstream,
    pub(crate) archives: FakeUpstream,
}

impl ModuleFixture {
    pub(crate) async fn start() -> Self {
        Self::with_registry(FakeUpstream::start().await).await
    }

    pub(crate) async fn with_registry(registry: FakeUpstream) -> Self {
        let ca = TestCa::new();
        let archives = FakeUpstream::builder().tls_with(&ca).start().await;
        Self { ca, registry, archives }
    }

    /// A fixture that publishes the small module acme/one/test 1.0.0.
    pub(crate) async fn with_one_module() -> Self {
        let fixture = Self::start().await;
        fixture.publish_archive("one", &tar_gz(&[("main.tf", b"# one\n"), ("modules/x/main.tf", b"# x\n")]));
        fixture
    }

    /// Serves an archive from the archive host, and publishes acme/NAME/test 1.0.0 at its URL.
    pub(crate) fn publish_archive(&self, name: &str, archive: &[u8]) {
        let url = self.file(&format!("{name}.tar.gz"), archive);
        self.publish(name, &url);
    }

    /// Publishes acme/NAME/test 1.0.0 at this location.
    pub(crate) fn publish(&self, name: &str, location: &str) {
        self.registry.publish_module(Module::new("acme", name, "test").at(location));
    }

    /// Serves a file from the archive host; returns its URL.
    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> String {
        self.archives.serve_file(&format!("/files/{name}"), "application/octet-stream", bytes.to_vec());
        self.url(name)
    }

    /// The URL of a file at the archive host.
    pub(crate) fn url(&self, name: &str) -> String {
        format!("{}/files/{name}", self.archives.origin())
    }

    /// A larder that may connect to both servers.
    pub(crate) fn larder(&self) -> Builder {
        Larder::mirroring(&self.registry).trusting(&self.ca).allow_private("127.0.0.1")
    }

    /// A larder that may connect to both servers, on an existing store.
    pub(crate) fn larder_on(&self, folder: &super::larder::Folder) -> Builder {
        Larder::mirroring(&self.registry).store_at(folder).trusting(&self.ca).allow_private("127.0.0.1")
    }

    /// Stops both servers.
    pub(crate) async fn stop(&mut self) {
        self.registry.stop().await;
        self.archives.stop().await;
    }
}

/// A tar.gz of these files.
pub(crate) fn tar_gz(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (path, bytes) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, path, *bytes).unwrap();
    }
    gz(&tar.into_inner().unwrap())
}

/// Compresses with gzip.
pub(crate) fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

/// The files of a tar.gz, by path.
pub(crate) fn unpack_tar_gz(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(archive));
    let entries = tar.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().to_string_lossy().into_owned();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        (path, bytes)
    });
    entries.filter(|(path, _)| !path.ends_with('/')).collect()
}

/// Incompressible pseudo-random bytes, the same on any machine.
pub(crate) fn noise(seed: u32, bytes: usize) -> Vec<u8> {
    let mut state = u64::from(seed) + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..bytes).map(|_| next()).collect()
}
