//! Modules and their archive host. Some modules are intact, some move, and some lead to HTML pages, checksum lists or
//! archives that never end.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use rand::Rng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;

use crate::clients::Client;
use crate::ledger::{BrokenPromise, RequestKind};
use crate::request::{BodyEnd, SoakRequest};
use crate::support::larder::HOST;
use crate::support::module_fixture::{noise, tar_gz, unpack_tar_gz};
use crate::support::upstream::{FakeUpstream, Fault, Module, Target, sha256_hex};

/// The files of a module.
type Tree = BTreeMap<String, Vec<u8>>;

/// Modules that can be installed.
const INTACT: [&str; 3] = ["sound-small", "sound-large", "sound-page"];
/// Modules whose archives become other ones.
const MOVING: [&str; 4] = ["moving-one", "moving-two", "moving-three", "moving-four"];
/// Sources whose answers never end, each with its fault.
const ENDLESS: [(&str, Fault); 4] = [
    ("never", Fault::NeverAnswers),
    ("stalls", Fault::Stalls(500)),
    ("drips", Fault::Drips(1, Duration::from_millis(300))),
    ("endless", Fault::Endless),
];

/// The archive host and its true content.
pub(crate) struct Sources {
    pub(crate) upstream: FakeUpstream,
    /// The first tree, by module name.
    truth: BTreeMap<String, Tree>,
    names: Vec<String>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Modules that clients have, with the SHA-256 of the archive that larder made of each.
    seen: BTreeMap<String, String>,
    moved: Vec<String>,
}

impl Sources {
    /// Starts the host; `publish` makes a registry lead to it.
    pub(crate) async fn start() -> Self {
        let upstream = FakeUpstream::start().await;
        let mut truth = BTreeMap::new();
        let mut names = Vec::new();
        for (number, name) in (0..).zip(INTACT.into_iter().chain(MOVING)) {
            let size = if name == "sound-large" { 3_000_000 } else { 30_000 };
            let tree = tree(name, number, size);
            upstream.serve_file(&format!("/files/{name}.tar.gz"), "application/gzip", packed(&tree));
            truth.insert(name.to_owned(), tree);
            names.push(name.to_owned());
        }
        let archive = format!("{}/files/sound-page.tar.gz", upstream.origin());
        upstream.serve_terraform_get("/pages/sound", &archive);
        for (name, fault) in ENDLESS {
            for path in [format!("/pages/{name}"), format!("/sums/{name}")] {
                upstream.serve_file(&path, "text/plain", vec![b'x'; 1000]);
                upstream.fault(Target::Path(path), fault.clone());
            }
            let path = format!("/files/{name}.tar.gz");
            upstream.serve_file(&path, "application/gzip", packed(&tree(name, 99, 30_000)));
            upstream.fault(Target::Path(path), fault);
            names.extend(["page", "list", "archive"].map(|endless| format!("{name}-{endless}")));
        }
        Self { upstream, truth, names, state: Mutex::default() }
    }

    /// Publishes every module at a registry.
    pub(crate) fn publish(&self, registry: &FakeUpstream) {
        let origin = self.upstream.origin();
        let publish = |name: &str, location: String| {
            registry.publish_module(Module::new("acme", name, "test").at(&location));
        };
        for name in INTACT.into_iter().chain(MOVING).filter(|name| *name != "sound-page") {
            publish(name, format!("{origin}/files/{name}.tar.gz"));
        }
        publish("sound-page", format!("{origin}/pages/sound"));
        for (name, _) in ENDLESS {
            publish(&format!("{name}-page"), format!("{origin}/pages/{name}"));
            publish(
                &format!("{name}-list"),
                format!("{origin}/files/sound-small.tar.gz?checksum=file:{origin}/sums/{name}"),
            );
            publish(&format!("{name}-archive"), format!("{origin}/files/{name}.tar.gz"));
        }
    }

    /// Replaces the tree of a module that clients have, under the same URL. Returns false if clients have no unmoved
    /// one.
    pub(crate) fn move_one(&self, rng: &mut StdRng) -> bool {
        let mut state = self.state.lock();
        let unmoved =
            MOVING.iter().filter(|name| state.seen.contains_key(**name) && !state.moved.contains(&(**name).into()));
        let Some(name) = unmoved.copied().collect::<Vec<_>>().choose(rng).copied() else { return false };
        let new_tree = tree(name, 1000, 30_000);
        self.upstream.serve_file(&format!("/files/{name}.tar.gz"), "application/gzip", packed(&new_tree));
        state.moved.push(name.to_owned());
        true
    }

    /// The modules that were moved.
    pub(crate) fn moved(&self) -> Vec<String> {
        self.state.lock().moved.clone()
    }

    /// Modules that can be installed when nothing fails.
    pub(crate) fn intact(&self) -> [&'static str; 3] {
        INTACT
    }

    fn random_name(&self, rng: &mut StdRng) -> String {
        // A client waits long for an endless source, so the others are preferred.
        let candidates = if rng.gen_bool(0.7) { &self.names[..INTACT.len() + MOVING.len()] } else { &self.names[..] };
        candidates.choose(rng).cloned().unwrap_or_default()
    }

    /// The modules that clients have, with the SHA-256 of the archive that larder made of each.
    pub(crate) fn seen(&self) -> BTreeMap<String, String> {
        self.state.lock().seen.clone()
    }
}

/// `/archive/HOST/modules/…/DIGEST/module.tar.gz`.
pub(crate) fn archive_path(name: &str, sha256: &str) -> String {
    format!("/archive/{HOST}/modules/acme/{name}/test/1.0.0/{}/module.tar.gz", &sha256[..16])
}

/// `/registry/HOST/v1/modules/…/download`.
pub(crate) fn download_path(name: &str) -> String {
    format!("/registry/{HOST}/v1/modules/acme/{name}/test/1.0.0/download")
}

fn tree(name: &str, number: u32, size: usize) -> Tree {
    let text = format!("# {name} {number}\n").into_bytes();
    [("main.tf".to_owned(), text), ("noise".to_owned(), noise(number, size))].into()
}

fn packed(tree: &Tree) -> Vec<u8> {
    let files: Vec<(&str, &[u8])> = tree.iter().map(|(path, bytes)| (path.as_str(), bytes.as_slice())).collect();
    tar_gz(&files)
}

impl Client {
    /// Installs a random module as a client does: its location, then its archive.
    pub(crate) async fn install_random_module(&mut self) {
        let name = self.setup.sources.random_name(&mut self.rng);
        self.install_module(&name).await;
    }

    /// Returns true if everything arrived.
    pub(crate) async fn install_module(&mut self, name: &str) -> bool {
        let download = download_path(name);
        let Some(answer) = self.send(SoakRequest::complete(RequestKind::ModuleLocation, &download)).await else {
            return false;
        };
        if !answer.is_complete(204) {
            return false;
        }
        let location = answer.header("x-terraform-get");
        let (path, query) = location.split_once('?').unwrap_or((&location, ""));
        let sha256 = query.strip_prefix("checksum=sha256:");
        let Some(archive) = self.send(SoakRequest::complete(RequestKind::ModuleArchive, path)).await else {
            return false;
        };
        if archive.ended != BodyEnd::Complete || archive.status != 200 {
            return false;
        }
        let digest = sha256_hex(&archive.body);
        let is_correct = sha256.is_none_or(|sha256| sha256 == digest)
            // `unpack_tar_gz` panics for bytes that are no archive.
            && self.setup.sources.truth.get(name).is_some_and(|tree| {
                let body = &archive.body;
                std::panic::catch_unwind(|| unpack_tar_gz(body)).is_ok_and(|found| found == *tree)
            });
        if !is_correct {
            self.setup.ledger.record_broken(
                BrokenPromise::WrongBytes,
                format!("{path} of {name}: SHA-256 {digest} [{}]", self.setup.active_faults()),
            );
            return false;
        }
        let previous = self.setup.sources.state.lock().seen.insert(name.to_owned(), digest.clone());
        if previous.is_some_and(|previous| previous != digest) {
            self.setup
                .ledger
                .record_broken(BrokenPromise::WrongBytes, format!("{name} was packed twice, with different bytes"));
        }
        if sha256.is_some() {
            self.setup.ledger.acknowledge_document(&download);
        }
        true
    }
}
