//! `larder lock` writes what the client's own `providers lock` writes, byte for byte: for generated configurations of several
//! hosts, with lock files that other tools wrote.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use larder::address::Platform;
use larder::verify::{PackageLimits, package_hashes};

use crate::support::command_setup::CommandSetup;
use crate::support::configurations::{Configuration, publish_for};
use crate::support::http::client_trusting;
use crate::support::larder::{Folder, HOST, Larder};
use crate::support::process::CommandOutput;
use crate::support::terraform::{Terraform, Workspace, host_override, network_mirror};
use crate::support::tls::TestCa;
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target, sha256_hex};
use crate::support::warm_fixture::WarmFixture;
use crate::support::{eventually, repetitions};

/// The number of projects.
fn projects() -> u64 {
    repetitions(12, 40) as u64
}
/// A registry of a company.
const CORP: &str = "registry.corp.example";
/// OpenTofu's registry.
const TOFU: &str = "registry.opentofu.org";
const PLATFORMS: [&str; 4] = ["linux_amd64", "darwin_arm64", "windows_amd64", "freebsd_386"];

/// A registry under several names, a larder in front of it, and the client.
struct Site {
    client: Terraform,
    upstream: FakeUpstream,
    setup: CommandSetup,
    is_tofu: bool,
}

impl Site {
    async fn start() -> Option<Self> {
        let client = Terraform::find_since(1, 10)?;
        let is_tofu = client.workspace().run(&["version"]).await.expect_success().text.contains("OpenTofu");
        let upstream = FakeUpstream::start().await;
        publish_for(&upstream, &PLATFORMS);
        for version in ["1.0.0", "1.4.0"] {
            let provider = Provider::new("acme", "folders").version(version).directory_entries().size(100);
            upstream.publish(PLATFORMS.iter().fold(provider, |provider, platform| provider.platform(platform)));
        }
        let mut setup = CommandSetup::new(&upstream);
        for host in [CORP, TOFU] {
            setup.text += &format!("[[upstream]]\nhost = \"{host}\"\nurl = \"{}/\"\n", upstream.origin());
        }
        Some(Self { client, upstream, setup, is_tofu })
    }

    /// A workspace of a client that asks the registries themselves for providers. It asks larder for modules: this registry
    /// knows the versions of modules by one spelling each.
    fn workspace(&self, files: &BTreeMap<String, String>) -> Workspace {
        let workspace = self.client.workspace();
        let modules = |host: &str| format!("{}/registry/{host}/v1/modules/", self.setup.base());
        let direct = |host| host_override(host, &self.upstream.providers_url(), &modules(host));
        workspace.cli_config(&[HOST, CORP, TOFU].map(direct).concat());
        for (path, text) in files {
            let path = workspace.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        workspace
    }

    /// Locks a root with the client: the lock file after it, or its error.
    async fn lock_with_client(&self, workspace: &Workspace, root: &str, platforms: &[&str]) -> Result<String, String> {
        let folder = format!("-chdir={root}");
        let get = workspace.run(&[&folder, "get", "-no-color"]).await;
        if !get.status.success() {
            return Err(get.text);
        }
        let platforms: Vec<String> = platforms.iter().map(|platform| format!("-platform={platform}")).collect();
        let lock = [&folder, "providers", "lock", "-no-color"];
        let arguments: Vec<&str> = lock.into_iter().chain(platforms.iter().map(String::as_str)).collect();
        let locked = workspace.run(&arguments).await;
        if !locked.status.success() {
            return Err(locked.text);
        }
        Ok(lock_file(&workspace.path().join(root)))
    }

    /// Locks a folder with larder: the lock file after it, or its error.
    async fn lock(&self, folder: &Path, platforms: &[&str]) -> Result<String, String> {
        let client = if self.is_tofu { "opentofu" } else { "terraform" };
        let options = platforms.iter().flat_map(|platform| ["--platform", platform]);
        let arguments: Vec<&str> =
            ["lock", folder.to_str().unwrap(), "--client", client].into_iter().chain(options).collect();
        let output = self.setup.run(&arguments).await;
        match output.code {
            Some(0) => Ok(lock_file(folder)),
            _ => Err(format!("{}{}", output.out, output.err)),
        }
    }
}

/// The lock file in a folder; empty if there is none.
fn lock_file(folder: &Path) -> String {
    std::fs::read_to_string(folder.join(".terraform.lock.hcl")).unwrap_or_default()
}

/// The files of a project. Some require providers of other hosts, too.
fn project(seed: u64) -> (BTreeMap<String, String>, Vec<&'static str>) {
    let Configuration { mut files, roots } = Configuration::from_seed(seed);
    if seed % 3 != 1 {
        let constraint = ["~> 1.0", ">= 1.0.0, != 1.4.0", "1.0.0", ">= 0.9,<3"][seed as usize % 4];
        let requirements = format!(
            "terraform {{\n  required_providers {{\n    a = {{ source = \"{CORP}/acme/folders\", version = \"{constraint}\" }}\n    \
             b = {{ source = \"{CORP}/acme/p0\" }}\n    c = {{ source = \"acme/folders\" }}\n  }}\n}}\n"
        );
        for root in &roots {
            files.insert(format!("{root}/hosts/main.tf"), requirements.clone());
            let call = "module \"hosts\" {\n  source = \"./hosts\"\n}\n";
            files.insert(format!("{root}/hosts.tf"), call.to_owned());
        }
    }
    (files, roots)
}

/// A lock file as another tool leaves it: without the `zh:`, without the `h1:`, in another layout, or with entries that nothing
/// requires.
fn as_of_another_tool(lock_file: &str, seed: u64) -> String {
    let without = |scheme: &str| {
        let lines = lock_file.lines().filter(|line| !line.trim_start().starts_with(&format!("\"{scheme}:")));
        lines.map(|line| format!("{line}\n")).collect::<String>()
    };
    match seed % 5 {
        0 => without("zh"),
        1 => without("h1"),
        2 => lock_file.replace("  version     = ", "  version = ").replace("# Manual", "# by hand\n# Manual"),
        3 => {
            let stray = format!(
                "\nprovider \"{CORP}/zzz/stray\" {{\n  version = \"9.9.9\"\n  hashes = [\n    \"zh:{}\",\n    \"h1:abc=\",\n  ]\n}}\n",
                "ab".repeat(32)
            );
            lock_file.replace("  hashes = [\n", "  hashes = [\n    \"x9:unknown\",\n") + &stray
        }
        _ => without("zh").replace("  hashes = [\n  ]\n", "").replace('\n', "\r\n"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn larder_lock_writes_what_the_clients_own_command_writes() {
    let Some(site) = Site::start().await else { return };
    let _larder = site.setup.serve();
    // Before commands read it beside each other.
    site.setup.file();
    let (mut locked, mut differences) = (0, Vec::new());
    let seeds: Vec<u64> = (0..projects()).collect();
    for chunk in seeds.chunks(3) {
        let compared = join_all(chunk.iter().map(|seed| compare(&site, *seed))).await;
        for (successes, found) in compared {
            locked += successes;
            differences.extend(found);
        }
    }
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n\n"));
    assert!(locked * 2 >= projects(), "only {locked} of {} projects could be locked", projects());
}

/// The lines of one text alone.
fn difference(expected: &str, found: &str) -> String {
    let only = |sign: &str, of: &str, other: &str| {
        let lines = of.lines().filter(|line| !other.lines().any(|other| other == *line));
        lines.map(|line| format!("{sign} {line}\n")).collect::<String>()
    };
    only("-", expected, found) + &only("+", found, expected)
}

/// Locks the roots of a project with both; returns the number of roots that both could lock, and the differences.
async fn compare(site: &Site, seed: u64) -> (u64, Vec<String>) {
    let (mut files, roots) = project(seed);
    if site.is_tofu {
        // `tofu providers lock` leaves out the providers of tests, which `tofu init` locks.
        files.retain(|path, _| !path.contains("/tests/"));
    }
    let [of_client, of_larder] = [(); 2].map(|()| site.workspace(&files));
    let (mut locked, mut differences) = (0, Vec::new());
    for root in roots {
        let folder = of_larder.path().join(root);
        for platforms in [&PLATFORMS[..1], &PLATFORMS[..3]] {
            let expected = site.lock_with_client(&of_client, root, platforms).await;
            let found = site.lock(&folder, platforms).await;
            match (&expected, &found) {
                (Ok(expected), Ok(found)) if expected == found => locked += 1,
                (Err(_), Err(_)) => {}
                _ => differences.push(format!(
                    "project {seed}, {root}, {platforms:?}: {files:#?}\n{}",
                    difference(expected.as_ref().unwrap_or_else(|e| e), found.as_ref().unwrap_or_else(|e| e))
                )),
            }
            // The second time, with more platforms, the lock file is that of another tool.
            if folder.join(".terraform.lock.hcl").exists() {
                let other = as_of_another_tool(&lock_file(&folder), seed);
                for workspace in [&of_client, &of_larder] {
                    std::fs::write(workspace.path().join(root).join(".terraform.lock.hcl"), &other).unwrap();
                }
            }
        }
    }
    (locked, differences)
}

/// A provider for these platforms.
fn provider(name: &str, version: &str, platforms: &[&str]) -> Provider {
    let provider = Provider::new("acme", name).version(version).size(100);
    platforms.iter().fold(provider, |provider, platform| provider.platform(platform))
}

/// A project that requires one provider of this constraint, and the commands on it.
struct Project {
    upstream: FakeUpstream,
    setup: CommandSetup,
    folder: Folder,
}

impl Project {
    async fn requiring(constraint: &str) -> Self {
        let upstream = FakeUpstream::start().await;
        let (setup, folder) = (CommandSetup::new(&upstream), Folder::new());
        std::fs::write(folder.path().join("main.tf"), required("null", constraint)).unwrap();
        Self { upstream, setup, folder }
    }

    async fn lock(&self, options: &[&str]) -> CommandOutput {
        let arguments = [&["lock", self.folder.path().to_str().unwrap()], options].concat();
        self.setup.run(&arguments).await
    }

    fn lock_file(&self) -> String {
        lock_file(self.folder.path())
    }

    fn write(&self, text: &str) {
        std::fs::write(self.folder.path().join(".terraform.lock.hcl"), text).unwrap();
    }

    /// The number of hashes of these schemes in the lock file: `h1:` and `zh:`.
    fn counts(&self) -> (usize, usize) {
        let text = self.lock_file();
        (text.matches("\"h1:").count(), text.matches("\"zh:").count())
    }
}

fn required(name: &str, constraint: &str) -> String {
    format!(
        "terraform {{\n  required_providers {{\n    p = {{ source = \"acme/{name}\", version = \"{constraint}\" }}\n  }}\n}}\n"
    )
}

const TWO: [&str; 4] = ["--platform", "linux_amd64", "--platform", "darwin_arm64"];

#[tokio::test]
async fn a_check_prints_what_is_missing_and_writes_nothing() {
    let project = Project::requiring("~> 1.0").await;
    project.upstream.publish(provider("null", "1.0.0", &["linux_amd64", "darwin_arm64"]));
    let _larder = project.setup.serve();
    let check = [&TWO[..], &["--check"]].concat();
    let absent = project.lock(&check).await;
    assert_eq!((absent.code, project.lock_file()), (Some(3), String::new()), "{absent:?}");
    assert!(absent.out.contains("acme/null 1.0.0: a new entry, 2 h1 and 3 zh hashes"), "{}", absent.out);
    let written = project.lock(&TWO).await;
    assert_eq!((written.code, project.counts()), (Some(0), (2, 3)), "{written:?}");

    let complete = project.lock_file();
    let line = complete.lines().find(|line| line.contains("\"h1:")).unwrap();
    project.write(&complete.replace(&format!("{line}\n"), ""));
    let one = project.lock(&check).await;
    assert_eq!(one.code, Some(3), "{one:?}");
    assert!(one.out.contains(line.trim()) && one.out.contains("1 h1 hash"), "{}", one.out);
    assert!(one.out.contains("1 of 1 lock file incomplete for darwin_arm64, linux_amd64: `"), "{}", one.out);
    let json: serde_json::Value =
        serde_json::from_str(&project.lock(&[&check[..], &["--json"]].concat()).await.out).unwrap();
    assert_eq!(
        (&json["files"][0]["state"], &json["written"]),
        (&"incomplete".into(), &serde_json::json!([])),
        "{json:#}"
    );

    project.lock(&TWO).await;
    assert_eq!(project.lock_file(), complete);
    let again = project.lock(&check).await;
    assert_eq!(again.code, Some(0), "{again:?}");
    // Both archives came once, for all of these commands.
    assert_eq!(project.upstream.count_of(Target::Archive), 2);
}

/// The platforms of a team stand in the configuration; without them the lock file is for this machine, and the person is told.
#[tokio::test]
async fn the_platforms_are_those_of_the_configuration_else_this_machines() {
    let mut project = Project::requiring("~> 1.0").await;
    let own = Platform::of_this_machine().to_string();
    project.upstream.publish(provider("null", "1.0.0", &[&own, "windows_386", "darwin_arm64"]));
    let output = project.lock(&[]).await;
    assert_eq!((output.code, project.counts()), (Some(0), (1, 4)), "{output:?}");
    assert_eq!(output.err.matches(&format!("so this is for {own}, this machine's")).count(), 1, "{}", output.err);
    project.setup.text += "[lock]\nplatforms = [\"windows_386\", \"darwin_arm64\"]\n";
    let output = project.lock(&[]).await;
    assert_eq!((output.code, project.counts()), (Some(0), (3, 4)), "{output:?}");
    assert!(!output.err.contains("this machine's") && output.out.contains("darwin_arm64, windows_386"), "{output:?}");
}

/// Folders that nothing could be said about are no success.
#[tokio::test]
async fn folders_without_a_root_and_lock_files_that_cannot_be_read_are_told() {
    let project = Project::requiring("~> 1.0").await;
    project.upstream.publish(provider("null", "1.0.0", &["linux_amd64"]));
    std::fs::remove_file(project.folder.path().join("main.tf")).unwrap();
    let folder = |name: &str, text: &str| {
        let folder = project.folder.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("main.tf"), text).unwrap();
        folder
    };
    for (name, other) in [("circle/a", "b"), ("circle/b", "a")] {
        folder(name, &format!("module \"m\" {{\n  source = \"../{other}\"\n}}\n"));
    }
    for options in [&["--platform", "linux_amd64"][..], &["--platform", "linux_amd64", "--check"]] {
        let output = project.lock(options).await.expect(1);
        assert!(output.out.contains("name the folders in which init runs"), "{}", output.out);
    }
    std::fs::remove_dir_all(project.folder.path().join("circle")).unwrap();

    // A folder that another one calls is a root, too, if `init` ran there.
    let base = folder("base", &required("null", "~> 1.0"));
    folder("prod", "module \"base\" {\n  source = \"../base\"\n}\n");
    let lock = base.join(".terraform.lock.hcl");
    std::os::unix::fs::symlink("gone", &lock).unwrap();
    let output = project.lock(&["--platform", "linux_amd64"]).await.expect(1);
    assert!(output.out.contains("base/.terraform.lock.hcl: not written"), "{}", output.out);
    assert!(output.out.contains("prod/.terraform.lock.hcl: written"), "{}", output.out);
    assert_eq!(std::fs::read_link(&lock).unwrap(), Path::new("gone"));
    std::fs::remove_file(&lock).unwrap();
    std::fs::write(&lock, "").unwrap();
    project.lock(&["--platform", "linux_amd64"]).await.expect(0);
    assert_eq!(lock_file(&base), lock_file(&project.folder.path().join("prod")));
}

/// Larder reads again the file that it writes: also the constraints of sixty modules.
#[tokio::test]
async fn the_constraints_of_many_modules_are_read_again() {
    let project = Project::requiring("~> 1.0").await;
    project.upstream.publish(provider("null", "1.90.0", &["linux_amd64"]));
    let mut calls = required("null", "~> 1.0");
    for number in 0..60 {
        let folder = project.folder.path().join(format!("m{number}"));
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("main.tf"), required("null", &format!(">= 1.{number}.0"))).unwrap();
        calls += &format!("module \"m{number}\" {{\n  source = \"./m{number}\"\n}}\n");
    }
    std::fs::write(project.folder.path().join("main.tf"), calls).unwrap();
    project.lock(&["--platform", "linux_amd64"]).await.expect(0);
    assert!(project.lock_file().contains(">= 1.58.0, >= 1.59.0\""), "{}", project.lock_file());
    project.lock(&["--platform", "linux_amd64", "--check"]).await.expect(0);
}

/// Two larders in one folder: none says that it wrote what the other one replaced.
#[tokio::test]
async fn of_two_commands_in_one_folder_none_loses_what_the_other_wrote() {
    let project = Project::requiring("~> 1.0").await;
    project.upstream.publish(provider("null", "1.0.0", &["linux_amd64", "darwin_arm64"]));
    let _larder = project.setup.serve();
    project.lock(&TWO).await.expect(0);
    for round in 0..12 {
        project.write("");
        let (linux, darwin) =
            tokio::join!(project.lock(&["--platform", "linux_amd64"]), project.lock(&["--platform", "darwin_arm64"]));
        let written = [linux, darwin].into_iter().filter(|output| output.code == Some(0)).count();
        assert_eq!(project.counts().0, written, "round {round}");
        let names: Vec<_> =
            std::fs::read_dir(project.folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "{names:?}");
    }
}

#[tokio::test]
async fn an_upgrade_locks_the_newest_version_that_the_constraints_allow() {
    let project = Project::requiring("~> 1.0").await;
    project.upstream.publish(provider("null", "1.0.0", &["linux_amd64", "darwin_arm64"]));
    let _larder = project.setup.serve();
    project.lock(&TWO).await;
    let old = project.lock_file();
    for version in ["1.5.0", "2.0.0"] {
        project.upstream.publish(provider("null", version, &["linux_amd64", "darwin_arm64"]));
    }
    project.setup.stdout_of(&["refresh", "acme/null"]).await;
    project.lock(&TWO).await;
    assert_eq!(project.lock_file(), old);
    let upgraded = project.lock(&[&TWO[..], &["--upgrade"]].concat()).await;
    assert_eq!((upgraded.code, project.counts()), (Some(0), (2, 3)), "{upgraded:?}");
    assert!(upgraded.out.contains("acme/null 1.5.0: in place of 1.0.0, 2 h1 and 3 zh hashes"), "{}", upgraded.out);
    assert!(project.lock_file().contains("version     = \"1.5.0\""), "{}", project.lock_file());
}

/// A file that is none stays as it is, whatever else is written.
#[tokio::test]
async fn a_lock_file_that_cannot_be_parsed_is_never_touched() {
    let project = Project::requiring("~> 1.0").await;
    project.upstream.publish(provider("null", "1.0.0", &["linux_amd64"]));
    std::fs::remove_file(project.folder.path().join("main.tf")).unwrap();
    let conflict = "<<<<<<< HEAD\nprovider \"registry.terraform.io/acme/null\" {\n";
    for (root, lock) in [("bad", Some(conflict)), ("good", None)] {
        let folder = project.folder.path().join(root);
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("main.tf"), required("null", "~> 1.0")).unwrap();
        lock.into_iter().for_each(|lock| std::fs::write(folder.join(".terraform.lock.hcl"), lock).unwrap());
    }
    let output = project.lock(&["--platform", "linux_amd64"]).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    assert_eq!(lock_file(&project.folder.path().join("bad")), conflict);
    assert!(lock_file(&project.folder.path().join("good")).contains("\"h1:"), "{output:?}");
    let out = &output.out;
    assert!(out.contains("bad/.terraform.lock.hcl: not written") && out.contains("line 1"), "{out}");
    assert!(out.contains("good/.terraform.lock.hcl: written"), "{out}");
    let names: Vec<_> = std::fs::read_dir(project.folder.path().join("good")).unwrap().collect();
    assert_eq!(names.len(), 2, "a temporary file is left: {names:?}");
}

/// A version that its publisher re-created is not locked beside the one of before.
#[tokio::test]
async fn a_lock_file_that_contradicts_the_signed_sums_is_not_written() {
    let project = Project::requiring("1.0.0").await;
    project.upstream.publish(provider("null", "1.0.0", &["linux_amd64", "darwin_arm64"]));
    project.lock(&["--platform", "linux_amd64"]).await.expect(0);
    let of_before = project.lock_file();
    // The manifest stays the same, so one line of the sums does.
    project.upstream.publish(provider("null", "1.0.0", &["linux_amd64", "darwin_arm64"]).edition(2));
    // Only one platform has its documents here, and they are of before.
    let mixed = project.lock(&TWO).await.expect(1);
    assert!(mixed.out.contains("the cached SHA256SUMS differ between its platforms"), "{}", mixed.out);
    assert_eq!(project.lock_file(), of_before);
    project.setup.run(&["refresh", "acme/null@1.0.0"]).await;
    let output = project.lock(&TWO).await.expect(1);
    assert_eq!(project.lock_file(), of_before, "{output:?}");
    let text = output.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("its SHA256SUMS does not list, and lacks an archive that it lists"), "{text}");
    assert!(text.contains("remove the provider's block"), "{text}");
}

/// Promise 1: only what a signature covers, or what larder computed.
#[tokio::test]
async fn of_an_unsigned_set_only_the_archives_that_larder_verified_are_locked() {
    let mut project = Project::requiring("1.0.0").await;
    project.upstream.publish(provider("null", "1.0.0", &["linux_amd64", "darwin_arm64", "windows_386"]).without_keys());
    project.setup.text += "verification = \"checksum\"\n";
    let output = project.lock(&TWO).await;
    assert_eq!((output.code, project.counts()), (Some(0), (2, 2)), "{output:?}");
    for platform in ["linux_amd64", "darwin_arm64"] {
        let archive = project.upstream.archive_bytes("acme", "null", "1.0.0", platform);
        assert!(project.lock_file().contains(&format!("\"zh:{}\"", sha256_hex(&archive))), "{}", project.lock_file());
    }
}

#[tokio::test]
async fn a_platform_that_a_provider_is_not_published_for_is_named_and_left_out() {
    let project = Project::requiring("1.0.0").await;
    project.upstream.publish(provider("null", "1.0.0", &["linux_amd64"]));
    let output = project.lock(&TWO).await;
    assert_eq!((output.code, project.counts()), (Some(0), (1, 2)), "{output:?}");
    let text = output.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        text.contains("unpublished no lock file can have the hashes of these: acme/null 1.0.0 (darwin_arm64)"),
        "{text}"
    );
    assert!(
        text.ends_with("now complete for darwin_arm64, linux_amd64, as far as the providers are published"),
        "{text}"
    );
    let none = project.lock(&["--platform", "darwin_arm64"]).await;
    assert_eq!(none.code, Some(1), "{none:?}");
    assert!(none.out.contains("published for none of these platforms"), "{}", none.out);
}

/// An archive that cannot be fetched is no reason for half a lock file.
#[tokio::test]
async fn without_an_archive_the_cause_is_told_and_nothing_is_written() {
    let project = Project::requiring("1.0.0").await;
    project.upstream.publish(provider("null", "1.0.0", &["linux_amd64", "darwin_arm64"]));
    project.upstream.fault(Target::Archive.with_path_part("darwin"), Fault::Status(503));
    let output = project.lock(&TWO).await;
    assert_eq!((output.code, project.lock_file()), (Some(1), String::new()), "{output:?}");
    assert!(output.out.contains("acme/null 1.0.0 (darwin_arm64)") && output.out.contains("503"), "{}", output.out);
}

/// The hashes of an evicted archive stay: a lock file needs no download of it.
#[tokio::test]
async fn the_hashes_of_an_evicted_archive_need_no_download() {
    let upstream = FakeUpstream::start().await;
    for name in ["one", "two", "three", "four"] {
        upstream.publish(Provider::new("acme", name).size(300_000));
    }
    let larder = Larder::mirroring(&upstream).store("max_size = \"1MiB\"").start().await;
    let lock = async |name: &str| {
        let order =
            serde_json::json!({ "files": { "main.tf": required(name, "1.2.0") }, "platforms": ["linux_amd64"] });
        WarmFixture::for_larder(&larder).post("/admin/v1/lock", &order).await.expect(200).json()
    };
    let install = async |name: &str| {
        larder.get(&larder.archive_path(name, "1.2.0").await).await.expect(200);
        eventually("the hashes", async || larder.folder.has_all_hashes().then_some(())).await;
        larder.clock.advance(Duration::from_secs(120));
    };
    assert_eq!(lock("one").await["files"][0]["state"], "unknown");
    for name in ["one", "two", "three"] {
        install(name).await;
    }
    let before = lock("one").await;
    assert_eq!(before["files"][0]["state"], "incomplete", "{before:#}");
    larder.clock.advance(Duration::from_secs(120));
    for name in ["two", "three", "four"] {
        install(name).await;
    }
    let one = upstream.archive_bytes("acme", "one", "1.2.0", "linux_amd64");
    assert!(
        !larder.folder.blobs().iter().any(|path| std::fs::read(path).unwrap() == one),
        "the archive is still stored"
    );
    upstream.forget_requests();
    assert_eq!(lock("one").await, before);
    assert_eq!(upstream.count_of(Target::Archive), 0);
}

/// A plan names the platforms for which a lock file lacks hashes: the order's, and those of the team.
#[tokio::test]
async fn a_plan_says_which_lock_files_are_incomplete_for_which_platform() {
    let mut project = Project::requiring("~> 1.0").await;
    project.upstream.publish(provider("null", "1.0.0", &["linux_amd64", "darwin_arm64", "windows_386"]));
    project.setup.text += "[lock]\nplatforms = [\"linux_amd64\", \"darwin_arm64\"]\n";
    project.lock(&["--platform", "linux_amd64"]).await;
    let complete = project.lock_file();
    let folder = project.folder.path().to_str().unwrap();
    let plan = async || project.setup.run(&["plan", folder, "--platform", "linux_amd64"]).await;
    assert!(!plan().await.out.contains("lock files"), "{complete}");
    // As a network mirror leaves it: the h1 of one platform.
    let lines = complete.lines().filter(|line| !line.contains("\"zh:")).map(|line| format!("{line}\n"));
    project.write(&lines.collect::<String>());
    let output = plan().await;
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.out.contains(".terraform.lock.hcl, for darwin_arm64\n    acme/null 1.0.0\n"), "{}", output.out);
    assert!(!output.out.contains("windows_386") && !output.out.contains("for linux_amd64"), "{}", output.out);
    assert!(output.out.contains("`larder lock`"), "{}", output.out);
    project.lock(&[]).await;
    assert!(!plan().await.out.contains("lock files"), "{}", project.lock_file());
}

/// A file that another process changed meanwhile is not lost.
#[tokio::test]
async fn a_lock_file_that_changes_meanwhile_is_not_replaced() {
    let project = Project::requiring("~> 1.0").await;
    project.upstream.publish(provider("null", "1.0.0", &["linux_amd64"]));
    let _larder = project.setup.serve();
    let gate = project.upstream.hold_body(Target::Archive);
    let (output, ()) = tokio::join!(project.lock(&["--platform", "linux_amd64"]), async {
        project.upstream.wait_for(Target::Archive, 1).await;
        project.write("# of somebody else\n");
        gate.open();
    });
    assert_eq!((output.code, project.lock_file()), (Some(1), "# of somebody else\n".to_owned()), "{output:?}");
    assert!(output.out.contains("was changed meanwhile"), "{}", output.out);
}

/// After larder, the client has nothing to change: not in ten rounds, and not where two clients take turns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_rounds_of_init_upgrade_change_no_line_that_larder_wrote() {
    let Some(site) = Site::start().await else { return };
    let second = std::env::var("LARDER_SECOND_CLIENT").ok().and_then(|path| Terraform::find_named(&path));
    let _larder = site.setup.serve();
    let [of_client, of_larder] = [(); 2].map(|()| {
        let mut workspace = site.workspace(&BTreeMap::new());
        workspace.require(&format!("{CORP}/acme/folders"), "~> 1.0").require(&format!("{HOST}/acme/p1"), ">= 1.0, < 2");
        workspace
    });
    let platforms: Vec<&str> = PLATFORMS[..3].to_vec();
    site.lock(&of_larder.path(), &platforms).await.unwrap();
    let locked = of_larder.lock_file();
    for round in 0..10 {
        for workspace in [&of_client, &of_larder] {
            let client = second.as_ref().filter(|_| round % 2 == 1).unwrap_or(&site.client);
            let init = workspace.run_with(client, &["init", "-upgrade", "-no-color", "-input=false"]).await;
            init.expect_success();
        }
        let added = difference(&of_larder.lock_file(), &locked);
        let by_client_alone = difference(&of_client.lock_file(), &locked);
        let unexpected: Vec<&str> =
            added.lines().filter(|line| line.starts_with("- ") && !by_client_alone.contains(line)).collect();
        assert_eq!(unexpected, [""; 0], "round {round}");
        assert!(!added.lines().any(|line| line.starts_with("+ ") && !line.contains("init")), "round {round}: {added}");
        if second.is_none() {
            assert_eq!(of_larder.lock_file(), locked, "round {round}");
        }
        site.lock(&of_larder.path(), &platforms).await.unwrap();
    }
    assert_eq!(of_larder.lock_file(), locked);
}

/// The rows of the page, measured with the client that is installed here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_says_how_many_hashes_each_way_gives() {
    let Some(client) = Terraform::find_since(1, 10) else { return };
    let upstream = FakeUpstream::start().await;
    upstream.publish(provider("p", "1.0.0", &PLATFORMS));
    let (ca, own) = (TestCa::new(), Platform::of_this_machine().to_string());
    let completed = "complete_hashes = [\"linux_amd64\", \"darwin_arm64\", \"windows_amd64\"]";
    let larder = Larder::mirroring(&upstream).upstream(TOFU, &format!("{}/", upstream.origin()), completed);
    let larder = larder.tls(&ca, &["localhost"]).start().await;
    let base = format!("https://localhost:{}", larder.address().port());
    let tree = Folder::new();
    let folder = tree.path().join(format!("{HOST}/acme/p"));
    std::fs::create_dir_all(&folder).unwrap();
    let zip = folder.join(format!("terraform-provider-p_1.0.0_{own}.zip"));
    std::fs::write(zip, upstream.archive_bytes("acme", "p", "1.0.0", &own)).unwrap();
    let from_tree = format!(
        "provider_installation {{\n  filesystem_mirror {{\n    path = \"{}\"\n  }}\n}}\n",
        tree.path().display()
    );
    let overridden = |host: &str| {
        let service = |name: &str| format!("{base}/registry/{host}/v1/{name}/");
        host_override(host, &service("providers"), &service("modules"))
    };
    let document = format!("{base}/registry/{TOFU}/v1/providers/acme/p/1.0.0");
    let trusting = client_trusting(&ca);
    let get = async |url: &str| trusting.get(url).send().await.unwrap().bytes().await.unwrap();
    get(&format!("{base}/registry/{TOFU}/v1/providers/acme/p/versions")).await;
    eventually("the hashes of three platforms", async || {
        for platform in &PLATFORMS[..3] {
            let url = format!("{document}/download/{}", platform.replace('_', "/"));
            let document: serde_json::Value = serde_json::from_slice(&get(&url).await).unwrap();
            if document["packages"].to_string().matches("\"h1:").count() < 3 {
                return None;
            }
        }
        Some(())
    })
    .await;
    let mut measured = Vec::new();
    for (way, config, host) in [
        ("`init`, `host` override", overridden(HOST).as_str(), HOST),
        ("`init`, network mirror", network_mirror(&format!("{base}/mirror/")).as_str(), HOST),
        ("`init`, provider tree as `filesystem_mirror`", from_tree.as_str(), HOST),
        ("`init`, `complete_hashes` for three platforms, provider of registry.opentofu.org", &overridden(TOFU), TOFU),
        ("`providers lock`, three platforms", overridden(HOST).as_str(), HOST),
    ] {
        let mut workspace = client.workspace();
        workspace.trust(&ca.pem()).require(&format!("{host}/acme/p"), "1.0.0");
        workspace.cli_config(config);
        if way.contains("providers lock") {
            let platforms = PLATFORMS[..3].iter().map(|platform| format!("-platform={platform}")).collect::<Vec<_>>();
            let arguments: Vec<&str> =
                ["providers", "lock"].into_iter().chain(platforms.iter().map(String::as_str)).collect();
            workspace.run(&arguments).await.expect_success();
        } else {
            workspace.init().await.expect_success();
        }
        measured.push((way, workspace.lock_file()));
    }
    let files = serde_json::json!({ "main.tf": required("p", "1.0.0") });
    let order = serde_json::json!({ "files": files, "platforms": &PLATFORMS[..3] });
    let report = WarmFixture::for_larder(&larder).post("/admin/v1/lock", &order).await.expect(200).json();
    measured.push(("`larder lock`, three platforms", report["files"][0]["text"].as_str().unwrap().to_owned()));

    let column = if client.workspace().run(&["version"]).await.text.contains("OpenTofu") { 2 } else { 1 };
    let page = std::fs::read_to_string("docs/lock-files.md").unwrap();
    for (way, lock_file) in measured {
        let row = page.lines().find(|line| line.starts_with(&format!("| {way} |"))).expect(way);
        let told = row.split('|').nth(column + 1).unwrap().trim();
        let count = |scheme: &str| lock_file.matches(&format!("\"{scheme}:")).count();
        assert_eq!(told, format!("{} h1, {} zh", count("h1"), count("zh")), "{way}");
    }
}

/// Promise 1: whatever a registry publishes, each hash of a lock file is of a line that a key signed, or larder computed it.
#[tokio::test]
async fn no_hash_is_written_that_no_signature_covers_and_larder_did_not_compute() {
    let upstream = FakeUpstream::start().await;
    let completed = "complete_hashes = [\"linux_amd64\", \"darwin_arm64\"]";
    let larder = Larder::mirroring(&upstream)
        .upstream_lines(completed)
        .upstream(CORP, &format!("{}/", upstream.origin()), &format!("verification = \"checksum\"\n{completed}"))
        .start()
        .await;
    let fixture = WarmFixture::for_larder(&larder);
    let (asked, all) = (&PLATFORMS[..2], &PLATFORMS[..3]);
    let (mut written, mut with_packages) = ([0, 0], 0);
    for bits in 0..64_u32 {
        let has = |bit: u32| bits & (1 << bit) != 0;
        let name = format!("p{bits}");
        let mut release = provider(&name, "1.0.0", all);
        if has(0) {
            release = release.without_keys();
        }
        if has(1) {
            release = release.filename("renamed-{platform}.zip");
        }
        if has(2) {
            release = release.packages_member();
        }
        if has(3) {
            release = release.directory_entries();
        }
        if has(4) {
            release = if has(2) { release.other_sums_before() } else { release.other_sums_after() };
        }
        upstream.publish(release);
        let host = if has(5) { CORP } else { HOST };
        let address = format!("{host}/acme/{name}");
        let order = serde_json::json!({ "what": [format!("{address}@1.0.0")], "platforms": asked });
        fixture.warm(&order).await;
        let files =
            serde_json::json!({ "main.tf": required(&name, "1.0.0").replace("acme/", &format!("{host}/acme/")) });
        let order = serde_json::json!({ "files": files, "platforms": asked });
        let report = fixture.post("/admin/v1/lock", &order).await.expect(200).json();
        let Some(text) = report["files"][0]["text"].as_str() else { continue };
        let archives = asked.iter().map(|platform| upstream.archive_bytes("acme", &name, "1.0.0", platform));
        let (mut allowed, mut zip_flavours): (BTreeSet<String>, BTreeSet<String>) = Default::default();
        for archive in archives {
            let hashes = package_hashes(std::io::Cursor::new(&archive), PackageLimits::default()).unwrap();
            zip_flavours.insert(hashes.zip);
            allowed.extend([hashes.directory, format!("zh:{}", sha256_hex(&archive))]);
        }
        if !has(0) && !has(5) {
            let sums = String::from_utf8(upstream.sums_bytes("acme", &name, "1.0.0")).unwrap();
            allowed.extend(sums.lines().map(|line| format!("zh:{}", line.split_whitespace().next().unwrap())));
        }
        let [locked] = &larder::requirements::lock_file::parse(text.as_bytes()).unwrap()[..] else { panic!("{text}") };
        let foreign: Vec<_> = locked.hashes.iter().filter(|hash| !allowed.contains(*hash)).collect();
        assert!(foreign.is_empty() && !locked.hashes.is_empty(), "{bits:06b}: {foreign:?} in {text}");
        written[usize::from(has(5))] += 1;
        if has(2) {
            continue;
        }
        let document = format!("/registry/{host}/v1/providers/acme/{name}/1.0.0/download/linux/amd64");
        let packages = larder.get(&document).await.expect(200).json()["packages"].clone();
        with_packages += usize::from(packages.is_object());
        for hash in
            packages.as_object().into_iter().flatten().flat_map(|(_, entry)| entry["hashes"].as_array().unwrap())
        {
            let hash = hash.as_str().unwrap();
            assert!(allowed.contains(hash) || zip_flavours.contains(hash), "{bits:06b}: {hash} in {packages:#}");
        }
    }
    assert_eq!(with_packages, 4);
    // Without keys, clients of the first registry are refused; other sums before the right ones are refused by all.
    assert_eq!(written, [12, 24]);
}
