//! Tests with real repositories, made and served by git, whose own checkouts are the expected result.

#![expect(clippy::disallowed_methods, reason = "repositories are made on a disk, away from the store")]

mod checkouts;
mod connector;
mod limits;
mod server;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use url::Url;

use self::server::Server;
use super::{GitError, GitSource, GitTree};
use crate::address::Hostname;
use crate::cdn_loop::{CdnLoop, OwnEntry};
use crate::clock::Timestamp;
use crate::config::{self, Credential, Network, PrivateDestination};
use crate::packaging::{Tree, TreeEntry, TreeLimits};
use crate::upstream::backoff::RequestTime;
use crate::upstream::limits::UpstreamLimits;
use crate::upstream::outbound::Outbound;
use crate::upstream::request::{RequestPriority, UpstreamRequest};
use crate::upstream::{Traffic, Upstream, Upstreams};

/// Runs git without any user configuration, and returns its output.
fn git(folder: &Path, arguments: &[&str]) -> String {
    let output = git_command(folder).args(arguments).output().unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn git_command(folder: &Path) -> Command {
    let mut command = Command::new("git");
    command.current_dir(folder).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    // Neither this machine's settings, nor a repository whose hook runs the tests, may have an effect.
    command
        .env("GIT_ATTR_NOSYSTEM", "1")
        .env("GIT_DEFAULT_HASH", "sha1")
        .env("HOME", folder)
        .env("XDG_CONFIG_HOME", folder);
    command.env_remove("GIT_DIR").env_remove("GIT_INDEX_FILE").env_remove("GIT_WORK_TREE");
    for role in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{role}_NAME"), "t").env(format!("GIT_{role}_EMAIL"), "t@example.com");
    }
    for (key, value) in [("protocol.file.allow", "always"), ("core.autocrlf", "false")] {
        command.args(["-c", &format!("{key}={value}")]);
    }
    command
}

/// A folder of repositories, each with a working tree, and a server for them.
struct Forge {
    folder: TempDir,
    server: Server,
}

impl Forge {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(folder.path());
        Self { folder, server }
    }

    /// A new repository on the branch `main`.
    fn repository(&self, name: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::create_dir_all(&path).unwrap();
        git(&path, &["init", "-q", "-b", "main"]);
        // The base of relative submodule URLs.
        git(&path, &["remote", "add", "origin", &path.join(".git").to_string_lossy()]);
        path
    }

    fn url(&self, name: &str) -> Url {
        Url::parse(&format!("http://127.0.0.1:{}/{name}/.git", self.server.port)).unwrap()
    }

    fn source(&self, name: &str, reference: &str) -> GitSource {
        GitSource { url: self.url(name), reference: Some(reference.to_owned()), depth: None }
    }
}

fn write(folder: &Path, name: &str, bytes: impl AsRef<[u8]>) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// Commits all files. Returns the commit's id.
fn commit(folder: &Path) -> String {
    git(folder, &["add", "-A"]);
    git(folder, &["commit", "-q", "--allow-empty", "-m", "x"]);
    git(folder, &["rev-parse", "HEAD"])
}

/// The configuration of a test: the upstream `registry.example`, at the origin of `registry`, and limits.
struct GitTestConfig {
    registry: Url,
    allow_private: Vec<PrivateDestination>,
    credentials: Vec<Credential>,
    upstream_limits: UpstreamLimits,
    network: Network,
    tree_limits: TreeLimits,
}

impl GitTestConfig {
    /// Allows requests to the origin of this URL, which is that of the upstream, and to no other private address.
    fn allowing(registry: &Url) -> Self {
        let network = config::Config::default().network;
        Self {
            registry: registry.clone(),
            allow_private: Vec::new(),
            credentials: Vec::new(),
            upstream_limits: UpstreamLimits::default(),
            network,
            tree_limits: TreeLimits::default(),
        }
    }

    fn outbound(&self) -> Outbound {
        let upstreams = [self.upstream_section()];
        let mut network = self.network.clone();
        network.allow_private.clone_from(&self.allow_private);
        let own_entry = OwnEntry::random().unwrap();
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        Outbound::new(&network, &upstreams, own_entry, Traffic::default(), self.upstream_limits).unwrap()
    }

    fn upstream_section(&self) -> config::Upstream {
        let mut origin = self.registry.clone();
        origin.set_path("/");
        config::Upstream::at(host(), origin)
    }

    /// The upstream with its credentials.
    fn upstream(&self) -> std::sync::Arc<Upstream> {
        let upstreams = Upstreams::new(&[self.upstream_section()], &self.credentials, &self.allow_private);
        std::sync::Arc::clone(upstreams.get(&host()).unwrap())
    }

    async fn fetch(&self, source: &GitSource) -> Result<GitTree, GitError> {
        self.fetch_with(&self.outbound(), source).await
    }

    async fn fetch_with(&self, outbound: &Outbound, source: &GitSource) -> Result<GitTree, GitError> {
        let scratch = tempfile::tempdir().unwrap();
        let tree = Tree::new(tempfile::tempfile().unwrap(), self.tree_limits);
        let upstream = self.upstream();
        outbound.git(git_request(source, &upstream), source, scratch.path(), tree).await
    }

    async fn resolve(&self, source: &GitSource) -> Result<Option<String>, GitError> {
        let upstream = self.upstream();
        self.outbound().git_commit(git_request(source, &upstream), source).await
    }
}

fn host() -> Hostname {
    Hostname::parse("registry.example").unwrap()
}

fn git_request<'a>(source: &'a GitSource, upstream: &'a Upstream) -> UpstreamRequest<'a> {
    static CDN_LOOP: std::sync::LazyLock<CdnLoop> = std::sync::LazyLock::new(CdnLoop::default);
    UpstreamRequest {
        subject: "the module",
        url: &source.url,
        upstream: &upstream.settings.host,
        credentials: &upstream.credential_scope,
        cdn_loop: &CDN_LOOP,
        retries: 0,
        priority: RequestPriority::Client,
        request_time: RequestTime::new(Timestamp(1_700_000_000)),
    }
}

/// An entry of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
enum TreeItem {
    Folder,
    File(u32, Vec<u8>),
    Link(Vec<u8>),
}

/// The entries of a tree by path.
type Listing = BTreeMap<Vec<u8>, TreeItem>;

/// The entries of a fetched tree.
fn tree_listing(tree: &Tree) -> Listing {
    let item = |entry: &TreeEntry| match entry {
        TreeEntry::Folder => TreeItem::Folder,
        TreeEntry::Link(target) => TreeItem::Link(target.clone()),
        TreeEntry::File(file) => {
            let mut bytes = Vec::new();
            tree.contents(file).read_to_end(&mut bytes).unwrap();
            TreeItem::File(file.mode, bytes)
        }
    };
    tree.entries().map(|(path, entry)| (path.as_bytes().to_vec(), item(entry))).collect()
}

/// The files of a git checkout, without `.git`.
fn folder_listing(folder: &Path) -> Listing {
    let mut listing = Listing::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(current) = folders.pop() {
        for entry in fs::read_dir(current).unwrap() {
            let path = entry.unwrap().path();
            if path.file_name() == Some(OsStr::new(".git")) {
                continue;
            }
            let metadata = fs::symlink_metadata(&path).unwrap();
            let name = path.strip_prefix(folder).unwrap().as_os_str().as_bytes().to_vec();
            let item = if metadata.is_symlink() {
                TreeItem::Link(fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec())
            } else if metadata.is_dir() {
                folders.push(path);
                TreeItem::Folder
            } else {
                // Git leaves the other permission bits to the umask.
                let mode = if metadata.permissions().mode() & 0o100 == 0 { 0o644 } else { 0o755 };
                TreeItem::File(mode, fs::read(&path).unwrap())
            };
            listing.insert(name, item);
        }
    }
    listing
}

/// The files of a clone with submodules that checks out `reference`; `None` if that fails.
fn clone_listing(url: &Url, reference: &str) -> Option<Listing> {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let output = git_command(folder.path()).args(arguments).output().unwrap();
        // The test runner prints this text if the test fails.
        println!("{}", String::from_utf8_lossy(&output.stderr));
        output.status.success()
    };
    assert!(run(&["clone", "-q", url.as_str(), "."]), "no clone of {url}");
    if !reference.is_empty() && !run(&["checkout", "-q", reference]) {
        return None;
    }
    assert!(run(&["submodule", "-q", "update", "--init", "--recursive"]), "no submodules of {url}");
    Some(folder_listing(folder.path()))
}

/// Compares two listings entry by entry, so that a failure is readable.
fn assert_same_listing(actual: &Listing, expected: &Listing) {
    for (path, expected_item) in expected {
        let name = String::from_utf8_lossy(path);
        let actual_item = actual.get(path);
        let shortened = |item: &TreeItem| match item {
            TreeItem::File(mode, bytes) => format!("{mode:o} {}", bytes.escape_ascii()).chars().take(900).collect(),
            item => format!("{item:?}"),
        };
        assert!(
            actual_item == Some(expected_item),
            "{name}: {:?} instead of {}",
            actual_item.map(shortened),
            shortened(expected_item)
        );
    }
    for path in actual.keys() {
        assert!(expected.contains_key(path), "unexpected entry {}", String::from_utf8_lossy(path));
    }
}
