//! Checks of the documentation: its commands run, its links resolve, and its code blocks have a language.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::http::get;
use crate::support::larder::{Folder, HOST};
use crate::support::markdown::blocks;
use crate::support::module_fixture::tar_gz;
use crate::support::ports::free_port;
use crate::support::process::{CommandOutput, Process, command, demo, run};
use crate::support::programs::find;
use crate::support::upstream::{FakeUpstream, Module, Provider};

const PLATFORMS: [&str; 2] = ["linux_amd64", "darwin_arm64"];
const CONFIGURATION: &str = r#"terraform {
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 5.0"
    }
  }
}

module "vpc" {
  source  = "terraform-aws-modules/vpc/aws"
  version = "~> 5.1"
}
"#;
const LOCK_FILE: &str = r#"provider "registry.terraform.io/hashicorp/random" {
  version = "3.6.0"
  hashes  = []
}
"#;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The text of every documentation page, by its path in the repository.
fn pages() -> BTreeMap<String, String> {
    let folders = ["", "docs", "docs/decisions"].map(|folder| root().join(folder));
    let files = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap()).map(|entry| entry.unwrap().path());
    let pages = files.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages
        .map(|path| {
            let text = std::fs::read_to_string(&path).unwrap();
            (path.strip_prefix(root()).unwrap().to_string_lossy().into_owned(), text)
        })
        .collect()
}

/// The text outside of code, which is where links are.
fn prose(page: &str) -> String {
    let outside = page.split("```").step_by(2);
    outside.flat_map(|part| part.split('`').step_by(2)).collect()
}

/// The anchor that a forge gives a heading.
fn anchor(heading: &str) -> String {
    let allowed = heading
        .to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .collect::<String>();
    allowed.replace(' ', "-")
}

#[test]
fn every_link_of_every_page_leads_to_a_file_and_a_heading() {
    let pages = pages();
    let mut link_count = 0;
    for (path, page) in &pages {
        let prose = prose(page);
        let links = prose.split("](").skip(1).map(|rest| rest.split(')').next().unwrap());
        for link in links.filter(|link| !link.starts_with("https://")) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target =
                if file.is_empty() { root().join(path) } else { root().join(path).parent().unwrap().join(file) };
            assert!(target.exists(), "{path}: {link} leads to no file");
            if !heading.is_empty() {
                let text = std::fs::read_to_string(&target).unwrap();
                let headings = text.lines().filter_map(|line| line.trim_start_matches('#').strip_prefix(' '));
                let is_row = text.contains(&format!("<a id=\"{heading}\"></a>"));
                let is_heading = headings.into_iter().any(|text| anchor(text) == heading);
                assert!(is_row || is_heading, "{path}: {link} leads to no heading");
            }
            link_count += 1;
        }
    }
    assert!(link_count > 40, "only {link_count} links were found");
}

/// The files that the Debian package installs as documentation, by their path in the repository.
fn installed_documents() -> BTreeSet<PathBuf> {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let assets = manifest.lines().filter(|line| line.contains("\"usr/share/doc/larder/")).map(|line| {
        let mut words = line.split('"').skip(1).step_by(2);
        (words.next().unwrap(), words.next().unwrap().strip_prefix("usr/share/doc/larder/").unwrap())
    });
    let files = assets.flat_map(|(source, folder)| {
        let (from, pattern) = source.rsplit_once('/').unwrap_or(("", source));
        assert_eq!(folder.trim_end_matches('/'), from, "{source} is installed elsewhere, and its links would not hold");
        let ending = pattern.strip_prefix('*');
        let names = std::fs::read_dir(root().join(from))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let chosen = names.filter(move |name| ending.map_or(name == pattern, |ending| name.ends_with(ending)));
        chosen.map(move |name| Path::new(from).join(name)).collect::<Vec<_>>()
    });
    files.collect()
}

#[test]
fn every_link_of_an_installed_page_leads_to_an_installed_file() {
    let installed = installed_documents();
    for (path, page) in pages().into_iter().filter(|(path, _)| installed.contains(Path::new(path))) {
        let prose = prose(&page);
        for link in prose.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            let file = link.split('#').next().unwrap();
            if link.starts_with("https://") || file.is_empty() {
                continue;
            }
            let mut target = Path::new(&path).parent().unwrap().to_owned();
            for part in file.split('/').filter(|part| !part.is_empty()) {
                match part {
                    ".." => assert!(target.pop(), "{path}: {link}"),
                    part => target.push(part),
                }
            }
            // A link to a folder leads to what is installed of it.
            assert!(installed.iter().any(|file| file.starts_with(&target)), "{path}: {link} is not installed");
        }
    }
}

/// The sources of all behaviour tests, without their fixtures.
fn test_sources() -> String {
    let folder = std::fs::read_dir(root().join("tests/it")).unwrap();
    let files = folder.map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    files.map(|file| std::fs::read_to_string(file).unwrap()).collect()
}

#[test]
fn each_promise_has_a_test_that_names_it() {
    let page = std::fs::read_to_string(root().join("docs/promises.md")).unwrap();
    let promises: BTreeSet<u32> = page.lines().filter_map(|line| line.split_once(". **")?.0.parse().ok()).collect();
    let named: BTreeSet<u32> = test_sources()
        .lines()
        .filter_map(|line| line.trim_start_matches(['/', '!', ' ']).strip_prefix("Promise"))
        .filter_map(|rest| rest.trim_start_matches(['s', ' ']).split(':').next())
        .flat_map(|numbers| numbers.split([',', ' ']).filter_map(|number| number.parse().ok()).collect::<Vec<_>>())
        .collect();
    assert_eq!(named, promises, "the numbers in doc comments, and those of docs/promises.md");
    assert_eq!(promises, (1..=16).collect());
}

/// A page of a few screens is read; a longer one is not.
#[test]
fn no_page_is_longer_than_130_lines() {
    let pages = pages().into_iter().filter(|(path, _)| path == "README.md" || path.starts_with("docs/"));
    let long: Vec<String> = pages.filter(|(_, page)| page.lines().count() > 130).map(|(path, _)| path).collect();
    assert!(long.is_empty(), "{long:?}");
}

#[test]
fn every_block_has_a_language_and_a_command_that_does_not_run_has_a_reason() {
    let known = ["sh", "hcl", "json", "yaml", "groovy", "nginx", "toml", "text"];
    let runnable = ["sh", "yaml", "groovy"];
    for (path, page) in pages() {
        for block in blocks(&page) {
            let location = format!("{path}:{}", block.line);
            assert!(
                known.contains(&block.language.as_str()),
                "{location}: {:?} is not a known language",
                block.language
            );
            if let Some(reason) = block.comment_above.strip_prefix("not run:") {
                assert!(reason.trim().len() > 10, "{location}: a reason is missing");
            } else {
                assert!(
                    block.language == "sh" || !runnable.contains(&block.language.as_str()),
                    "{location}: no test runs this block"
                );
            }
        }
    }
}

/// A reader's larder: a configuration file, a store, and free ports in place of the default ones.
struct DocumentedLarder {
    home: Folder,
    listen: u16,
    admin: u16,
    extra_config: String,
    running: Option<Process>,
}

impl DocumentedLarder {
    fn new() -> Self {
        Self {
            home: Folder::new(),
            listen: free_port(),
            admin: free_port(),
            extra_config: String::new(),
            running: None,
        }
    }

    /// Starts larder, or restarts larder with `extra_config`.
    async fn serve(&mut self, upstream: &str, network: &str) {
        if let Some(running) = self.running.take() {
            assert_eq!(running.terminate().await, Some(0));
        }
        let Self { home, listen, admin, extra_config, .. } = self;
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:{listen}\"\n[admin]\nlisten = \"127.0.0.1:{admin}\"\n[store]\npath = {:?}\n\
             [network]\n{network}\n{extra_config}\n[[upstream]]\nhost = \"{HOST}\"\nurl = \"{upstream}/\"\n",
            home.path()
        );
        let config = home.path().join("config/larder");
        std::fs::create_dir_all(&config).unwrap();
        std::fs::write(config.join("mirror.toml"), &text).unwrap();
        self.running = Some(Process::serve(&text, home.path()).unwrap_or_else(|error| panic!("{error:?}")));
    }

    /// Runs a block of a page in this folder, with this larder.
    async fn run(&self, work: &Path, text: &str) -> CommandOutput {
        let token = format!("cat '{}'", self.home.path().join("admin-token").display());
        let text = text
            .replace(
                "cargo run --example demo",
                &demo().map_or("true".to_owned(), |demo| format!("'{}'", demo.display())),
            )
            .replace("cargo run -- ", "larder ")
            .replace("127.0.0.1:8080", &format!("127.0.0.1:{}", self.listen))
            .replace("127.0.0.1:8081", &format!("127.0.0.1:{}", self.admin))
            .replace("sudo cat /var/lib/larder/admin-token", &token);
        let larder = command(self.home.path(), &[]);
        let mut shell = Command::new("/bin/sh");
        shell.args([
            "-e",
            "-c",
            &format!("larder() {{ '{}' \"$@\"; }}\n{text}", larder.get_program().to_string_lossy()),
        ]);
        for (name, value) in larder.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        shell.env_remove("TF_CLI_CONFIG_FILE").env("CHECKPOINT_DISABLE", "1");
        shell.current_dir(work).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        run(shell).await
    }
}

/// A registry with the packages that the pages use.
async fn registry() -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    for (name, version) in [("aws", "5.0.0"), ("aws", "5.1.0"), ("random", "3.6.0")] {
        let provider = Provider::new("hashicorp", name).version(version);
        upstream.publish(PLATFORMS.iter().fold(provider, |provider, platform| provider.platform(platform)));
    }
    let archive = tar_gz(&[("main.tf", b"variable \"name\" {}\n")]);
    upstream.serve_file("/modules/vpc.tar.gz", "application/gzip", archive);
    let location = format!("{}/modules/vpc.tar.gz", upstream.origin());
    upstream.publish_module(Module::new("terraform-aws-modules", "vpc", "aws").version("5.1.0").at(&location));
    upstream
}

/// Writes the configuration folders that the pages use.
fn write_configurations(work: &Path) {
    for folder in ["prod", "dev"] {
        std::fs::create_dir(work.join(folder)).unwrap();
        std::fs::write(work.join(folder).join("main.tf"), CONFIGURATION).unwrap();
    }
    std::fs::write(work.join(".terraform.lock.hcl"), LOCK_FILE).unwrap();
    let first = Path::new("examples/first/main.tf");
    std::fs::create_dir_all(work.join(first).parent().unwrap()).unwrap();
    std::fs::copy(root().join(first), work.join(first)).unwrap();
}

/// Runs the commands of a page in order, each outside or inside the air gap.
async fn run_page_commands(path: &str) {
    let text = std::fs::read_to_string(root().join(path)).unwrap();
    let (upstream, work) = (registry().await, tempfile::tempdir().unwrap());
    write_configurations(work.path());
    let (mut outside, mut inside) = (DocumentedLarder::new(), DocumentedLarder::new());
    outside.serve(&upstream.origin(), "").await;
    let mut block_count = 0;
    for block in
        blocks(&text).iter().filter(|block| block.language == "sh" && !block.comment_above.starts_with("not run:"))
    {
        if block.comment_above == "on: inside" && inside.running.is_none() {
            inside.serve("http://127.0.0.1:9", "offline = true").await;
        }
        let larder = if block.comment_above == "on: inside" { &inside } else { &outside };
        block_count += 1;
        if block.text.contains("terraform") && block.text.contains(" run -- ") && find("terraform").is_none() {
            continue;
        }
        if block.text.contains("larder missing") {
            // A client inside requests a package that is not stored, so that a package is missing.
            let providers = format!("http://127.0.0.1:{}/registry/{HOST}/v1/providers", inside.listen);
            get(&format!("{providers}/hashicorp/random/3.6.0/download/linux/amd64")).await.expect(503);
        }
        if block.text.contains("larder import") && !work.path().join("tree").exists() {
            let tree =
                "larder warm hashicorp/random --platform linux_amd64 && larder export tree --for hashicorp/random";
            assert_eq!(outside.run(work.path(), tree).await.code, Some(0), "{path}");
        }
        let output = larder.run(work.path(), &block.text).await;
        assert_eq!(output.code, Some(0), "{path}:{}:\n{}\n{}\n{}", block.line, block.text, output.out, output.err);
        if block.text.contains("keygen") {
            let line = |name: &str| output.out.lines().find(|line| line.trim().starts_with(name)).unwrap();
            outside.extra_config = format!("[bundle]\n{}", line("signing_key"));
            inside.extra_config = format!("[bundle]\n{}", line("trusted_keys"));
            outside.serve(&upstream.origin(), "").await;
        }
    }
    assert!(block_count > 0, "{path} has no command");
}

#[tokio::test]
async fn the_commands_of_the_readme_run() {
    run_page_commands("README.md").await;
}

#[tokio::test]
async fn the_commands_of_the_page_on_runs_run() {
    run_page_commands("docs/run.md").await;
}

/// The README begins with the main job, in one command that needs no internet.
#[test]
fn the_first_command_of_the_readme_shows_a_client_going_through_larder() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let first = blocks(&readme).into_iter().find(|block| block.language == "sh").unwrap();
    assert!(first.text.starts_with("cargo run --example demo ") && first.comment_above.is_empty(), "{first:?}");
}

#[tokio::test]
async fn the_commands_of_the_page_on_warm_ups_run() {
    run_page_commands("docs/warm.md").await;
}

#[tokio::test]
async fn the_commands_of_the_page_on_air_gaps_run() {
    run_page_commands("docs/air-gap.md").await;
}

#[tokio::test]
async fn the_commands_of_the_page_on_commands_run() {
    run_page_commands("docs/commands.md").await;
}

#[tokio::test]
async fn the_commands_of_the_page_on_other_mirrors_run() {
    run_page_commands("docs/from-artifactory.md").await;
}

#[tokio::test]
async fn the_commands_about_access_run() {
    run_page_commands("docs/access.md").await;
    run_page_commands("docs/views.md").await;
    run_page_commands("docs/tokens.md").await;
}

#[tokio::test]
async fn the_commands_of_the_page_on_lock_files_run() {
    run_page_commands("docs/lock-files.md").await;
}

#[tokio::test]
async fn the_commands_of_the_page_on_configuration_run() {
    run_page_commands("docs/configuration.md").await;
}

#[tokio::test]
async fn the_commands_of_the_page_on_the_admin_api_run() {
    run_page_commands("docs/admin-api.md").await;
}

#[tokio::test]
async fn the_commands_of_the_page_on_ci_run() {
    run_page_commands("docs/ci.md").await;
}

#[test]
fn no_page_with_commands_is_left_out() {
    let test_source = std::fs::read_to_string(root().join("tests/it/documents.rs")).unwrap();
    let with_commands = pages().into_iter().filter(|(_, page)| {
        blocks(page).iter().any(|block| block.language == "sh" && !block.comment_above.starts_with("not run:"))
    });
    let missing: BTreeSet<PathBuf> = with_commands
        .map(|(path, _)| path)
        .filter(|path| !test_source.contains(&format!("run_page_commands(\"{path}\")")))
        .map(PathBuf::from)
        .collect();
    assert!(missing.is_empty(), "no test runs the commands of {missing:?}");
}
