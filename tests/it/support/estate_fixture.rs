//! An estate as teams have it: two root folders that want different versions, a local module that both call, ten modules
//! of a registry in three levels, nine providers, and a lock file in one of the folders.

use std::fmt::Write as _;
use std::path::Path;

use super::git::{Format, pack};
use super::larder::HOST;
use super::terraform::{Output, Terraform, Workspace};
use super::upstream::{FakeUpstream, Module, Provider, sha256_hex};

/// For which platforms everything is.
pub(crate) const PLATFORMS: [&str; 2] = ["linux_amd64", "darwin_arm64"];
/// The folders in which `init` is run.
pub(crate) const ROOTS: [&str; 2] = ["prod", "dev"];
/// The versions of every provider.
const VERSIONS: [&str; 4] = ["1.0.0", "1.4.2", "2.0.0", "2.1.0-rc.1"];
/// A module: its name, the modules it calls, and the providers that it requires with their constraints.
type ModuleOf = (&'static str, &'static [&'static str], &'static [(&'static str, &'static str)]);
/// The modules of the registry: what each calls, which providers it wants, and whether it has another below `../`.
const MODULES: [ModuleOf; 10] = [
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

/// The registry, and the folder that a client works in.
pub(crate) struct EstateFixture {
    pub(crate) upstream: FakeUpstream,
    pub(crate) workspace: Workspace,
}

impl EstateFixture {
    /// All of it, published.
    pub(crate) async fn new(client: &Terraform) -> Self {
        let upstream = FakeUpstream::start().await;
        for name in ["net", "compute", "disk", "login", "secret", "text", "state"] {
            publish(&upstream, "acme", name);
        }
        // No configuration requires these two: blocks imply them.
        publish(&upstream, "hashicorp", "random");
        publish(&upstream, "hashicorp", "clock");
        for (name, calls, providers) in MODULES {
            publish_module(&upstream, name, "1.0.0", &text_of_module(name, calls, providers));
        }
        // The newest version must not be chosen: it needs a provider that nobody publishes.
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

    /// Where the folders are.
    pub(crate) fn folder(&self) -> std::path::PathBuf {
        self.workspace.path()
    }

    /// `init` in one of the folders, from nothing.
    pub(crate) async fn init(&self, root: &str) -> Output {
        let _ = std::fs::remove_dir_all(self.folder().join(root).join(".terraform"));
        self.run(root, &["init", "-no-color", "-input=false"]).await
    }

    /// `providers lock` for both platforms.
    pub(crate) async fn lock(&self, root: &str) -> Output {
        let platforms = PLATFORMS.map(|platform| format!("-platform={platform}"));
        self.run(root, &["providers", "lock", "-no-color", &platforms[0], &platforms[1]]).await
    }

    async fn run(&self, root: &str, arguments: &[&str]) -> Output {
        let folder = format!("-chdir={root}");
        self.workspace.run(&[&[folder.as_str()], arguments].concat()).await
    }

    /// The versions that a folder's lock file has, by provider.
    pub(crate) fn locked(&self, root: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder().join(root).join(".terraform.lock.hcl")).unwrap();
        let mut found: Vec<String> = Vec::new();
        for line in text.lines() {
            if let Some(address) = line.strip_prefix("provider \"") {
                found.push(address.trim_end_matches("\" {").to_owned());
            } else if let Some(version) = line.trim().strip_prefix("version") {
                let version = version.trim_matches([' ', '=', '"']);
                let last = found.last_mut().unwrap();
                *last = format!("{last}@{version}");
            }
        }
        found
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
        // An older version than the newest that the constraint allows: the lock file decides.
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

/// A call of a module of the registry.
fn call(name: &str, constraint: &str) -> String {
    format!("module \"{name}\" {{\n  source  = \"acme/{name}/test\"\n  version = \"{constraint}\"\n}}\n")
}

fn text_of_module(name: &str, calls: &[&str], providers: &[(&str, &str)]) -> String {
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

/// Packs a module that also calls one of its own folders, and publishes it.
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
