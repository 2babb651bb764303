//! The estate: a large configuration as teams have it, with two root folders that need different
//! versions, a local module that both call, ten registry modules in three levels, nine providers, and a lock file in
//! one of the folders.

use std::fmt::Write as _;
use std::path::Path;

use super::git::{Format, pack};
use super::larder::HOST;
use super::terraform::{ClientOutput, Terraform, Workspace};
use super::upstream::{FakeUpstream, Module, Provider, sha256_hex};

/// The platforms of every provider version.
pub(crate) const PLATFORMS: [&str; 2] = ["linux_amd64", "darwin_arm64"];
/// The root folders: those in which a client runs `init`.
pub(crate) const ROOTS: [&str; 2] = ["prod", "dev"];
/// The versions of every provider.
const VERSIONS: [&str; 4] = ["1.0.0", "1.4.2", "2.0.0", "2.1.0-rc.1"];
/// A module: its name, the modules it calls, and the providers that it requires with their constraints.
type ModuleSpec = (&'static str, &'static [&'static str], &'static [(&'static str, &'static str)]);
/// The modules of the registry.
const MODULES: [ModuleSpec; 10] = [
    ("network", &["subnet", "labels"], &[("acme/net", "~> 1.0")]),
    ("cluster", &["nodes", "network"], &[("acme/compute", ">= 1.0.0")]),
    ("storage", &["labels"], &[("acme/disk", "!= 2.0.0")]),
    ("access", &["keys"], &[("acme/login", "~> 1.4.0")]),
    ("subnet", &["labels"], &[("acme/net", "< 2.0.0")]),
    ("nodes", &["image"], &[("acme/compute", "< 3.0.0")]),
    ("keys", &["random"], &[("acme/secret", "2.1.0-rc.1")]),
    ("labels", &[], &[("acme/text", ">= 1.0.0, < 2.0.0")]),
    ("image", &[], &[("acme/disk", ">= 1.0.0")]),
    ("random", &[], &[]),
];

/// The registry that publishes everything, and the working folder of a client.
pub(crate) struct EstateFixture {
    pub(crate) upstream: FakeUpstream,
    pub(crate) workspace: Workspace,
}

impl EstateFixture {
    /// Publishes all providers and modules, and writes the configuration.
    pub(crate) async fn new(client: &Terraform) -> Self {
        let upstream = FakeUpstream::start().await;
        for name in ["net", "compute", "disk", "login", "secret", "text", "state"] {
            publish(&upstream, "acme", name);
        }
        // Blocks imply these two providers; no `required_providers` entry names them.
        publish(&upstream, "hashicorp", "random");
        publish(&upstream, "hashicorp", "clock");
        for (name, calls, providers) in MODULES {
            publish_module(&upstream, name, "1.0.0", &module_source(name, calls, providers));
        }
        // The constraints exclude this version; it requires a provider that does not exist, so choosing it fails.
        publish_module(
            &upstream,
            "network",
            "2.0.0",
            "terraform {\n  required_providers {\n    none = { source = \"acme/none\" }\n  }\n}\n",
        );
        let workspace = client.workspace();
        let estate = Self { upstream, workspace };
        estate.write_folders();
        estate
    }

    /// The folder that contains the root folders.
    pub(crate) fn folder(&self) -> std::path::PathBuf {
        self.workspace.path()
    }

    /// Runs `init` in a root folder without installed packages.
    pub(crate) async fn init(&self, root: &str) -> ClientOutput {
        let _ = std::fs::remove_dir_all(self.folder().join(root).join(".terraform"));
        self.run(root, &["init", "-no-color", "-input=false"]).await
    }

    /// Runs `providers lock` in a root folder for both platforms.
    pub(crate) async fn lock(&self, root: &str) -> ClientOutput {
        let platforms = PLATFORMS.map(|platform| format!("-platform={platform}"));
        self.run(root, &["providers", "lock", "-no-color", &platforms[0], &platforms[1]]).await
    }

    async fn run(&self, root: &str, arguments: &[&str]) -> ClientOutput {
        let folder = format!("-chdir={root}");
        self.workspace.run(&[&[folder.as_str()], arguments].concat()).await
    }

    /// The entries of a root folder's lock file, as `ADDRESS@VERSION`.
    pub(crate) fn locked(&self, root: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder().join(root).join(".terraform.lock.hcl")).unwrap();
        let mut locked: Vec<String> = Vec::new();
        for line in text.lines() {
            if let Some(address) = line.strip_prefix("provider \"") {
                locked.push(address.trim_end_matches("\" {").to_owned());
            } else if let Some(version) = line.trim().strip_prefix("version") {
                let version = version.trim_matches([' ', '=', '"']);
                let last = locked.last_mut().unwrap();
                *last = format!("{last}@{version}");
            }
        }
        locked
    }

    fn write_folders(&self) {
        let write = |path: &str, text: &str| {
            let path = self.folder().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(
            "prod/main.tf",
            &format!(
                "terraform {{\n  required_providers {{\n    state = {{ source = \"acme/state\", version = \"~> 1.0\" }}\n  }}\n}}\n{}{}{}",
                call("cluster", "~> 1.0"),
                call("access", ">= 1.0.0"),
                "module \"common\" {\n  source = \"../common\"\n}\nresource \"clock_tick\" \"t\" {}\n",
            ),
        );
        write(
            "dev/main.tf",
            &format!(
                "terraform {{\n  required_providers {{\n    state = {{ source = \"acme/state\", version = \"2.1.0-rc.1\" }}\n  }}\n}}\n{}{}",
                call("network", "1.0.0"),
                "module \"common\" {\n  source = \"../common\"\n}\n",
            ),
        );
        write("common/main.tf", &format!("{}data \"clock_now\" \"n\" {{}}\n", call("storage", "< 2.0.0")));
        // The lock file selects an older version than the newest that the constraint allows.
        let hashes: String = PLATFORMS
            .iter()
            .map(|platform| {
                format!(
                    "    \"zh:{}\",\n",
                    sha256_hex(&self.upstream.archive_bytes("acme", "state", "1.0.0", platform))
                )
            })
            .collect();
        write(
            "prod/.terraform.lock.hcl",
            &format!(
                "provider \"{HOST}/acme/state\" {{\n  version     = \"1.0.0\"\n  constraints = \"~> 1.0\"\n  hashes = [\n{hashes}  ]\n}}\n"
            ),
        );
    }
}

fn publish(upstream: &FakeUpstream, namespace: &str, name: &str) {
    for version in VERSIONS {
        let provider = Provider::new(namespace, name).version(version);
        upstream.publish(PLATFORMS.iter().fold(provider, |provider, platform| provider.platform(platform)));
    }
}

/// A `module` block that calls a registry module.
fn call(name: &str, constraint: &str) -> String {
    format!("module \"{name}\" {{\n  source  = \"acme/{name}/test\"\n  version = \"{constraint}\"\n}}\n")
}

fn module_source(name: &str, calls: &[&str], providers: &[(&str, &str)]) -> String {
    let mut text = String::from("terraform {\n  required_providers {\n");
    for (source, constraint) in providers {
        let local = source.rsplit('/').next().unwrap();
        writeln!(text, "    {local} = {{ source = \"{source}\", version = \"{constraint}\" }}").unwrap();
    }
    text.push_str("  }\n}\n");
    calls.iter().for_each(|called| text.push_str(&call(called, "~> 1.0")));
    if name == "random" {
        text.push_str("resource \"random_pet\" \"p\" {}\n");
    }
    text
}

/// Publishes a module that also calls one of its own subfolders.
fn publish_module(upstream: &FakeUpstream, name: &str, version: &str, text: &str) {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path: &Path = &folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("main.tf", &format!("{text}module \"own\" {{\n  source = \"./parts/own\"\n}}\n"));
    write("parts/own/main.tf", "module \"beside\" {\n  source = \"../beside\"\n}\n");
    write("parts/beside/main.tf", "output \"is\" {\n  value = 1\n}\n");
    let path = format!("/files/{name}-{version}.tar.gz");
    upstream.serve_file(&path, "application/gzip", pack(Format::TarGz, folder.path(), ""));
    upstream.publish_module(Module::new("acme", name, "test").version(version).at(&path));
}
