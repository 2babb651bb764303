//! Tools other than Terraform and OpenTofu: each has its own registry client, which follows absolute URLs only.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::Tools;
use crate::report::{Report, Verdict, compare};
use crate::support::larder::{HOST, Larder};
use crate::support::module_fixture::tar_gz;
use crate::support::programs::find;
use crate::support::tls::TestCa;
use crate::support::upstream::{FakeUpstream, ListedItem, Module, Provider, sha256_hex};

const PLATFORMS: [&str; 3] = ["linux_amd64", "darwin_arm64", "windows_amd64"];

/// A registry over TLS and a larder over TLS in front of it, with certificates of one authority.
struct TlsFixture {
    upstream: FakeUpstream,
    larder: Larder,
    folder: tempfile::TempDir,
}

impl TlsFixture {
    async fn new() -> Self {
        let ca = TestCa::new();
        let upstream = FakeUpstream::builder().tls_with(&ca).absolute_services().start().await;
        for version in ["1.1.0", "1.2.0"] {
            let null = Provider::new("acme", "null").version(version);
            upstream
                .publish(["linux_amd64", "darwin_arm64", "windows_amd64"].into_iter().fold(null, Provider::platform));
        }
        let bucket = "resource \"aws_s3_bucket\" \"open\" {\n  bucket = \"open\"\n  acl    = \"public-read\"\n}\n";
        upstream.serve_file("/files/vpc.tar.gz", "application/gzip", tar_gz(&[("main.tf", bucket.as_bytes())]));
        upstream.list(&[ListedItem::new("acme/vpc/aws", &["1.0.0", "1.4.0"])], &[]);
        for version in ["1.0.0", "1.4.0"] {
            let location = format!("{}/files/vpc.tar.gz", upstream.origin());
            upstream.publish_module(Module::new("acme", "vpc", "aws").version(version).at(&location));
        }
        let plain = "variable \"name\" {\n  type = string\n}\noutput \"name\" {\n  value = var.name\n}\n";
        upstream.serve_file("/files/plain.tar.gz", "application/gzip", tar_gz(&[("main.tf", plain.as_bytes())]));
        let location = format!("{}/files/plain.tar.gz", upstream.origin());
        upstream.publish_module(Module::new("acme", "plain", "aws").version("1.0.0").at(&location));
        let larder = Larder::mirroring(&upstream).trusting(&ca).server(&format!("default_upstream = \"{HOST}\""));
        let larder = larder.tls(&ca, &["127.0.0.1"]).start().await;
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), ca.pem()).unwrap();
        Self { upstream, larder, folder }
    }

    /// Route and URL: larder as a host.
    fn own_host(&self) -> (&'static str, String) {
        ("own host name", self.larder.base().to_owned())
    }

    /// Route and URL: larder's base of one registry, with a path.
    fn base_of_one_registry(&self) -> (&'static str, String) {
        ("larder's base of one registry", format!("{}/registry/{HOST}", self.larder.base()))
    }

    /// The number of lines of SHA256SUMS.
    fn hash_count(&self) -> usize {
        String::from_utf8(self.upstream.sums_bytes("acme", "null", "1.2.0")).unwrap().lines().count()
    }

    /// Compares a tool's result at the registry, which must be complete, with its result on each route. The tool gets
    /// the registry and an empty folder.
    async fn compare_routes(
        &self,
        report: &mut Report,
        (title, what): (&str, &str),
        routes: &[(&'static str, String)],
        is_complete: impl Fn(&str) -> bool,
        run: impl AsyncFn(&str, &Path) -> Result<String, String>,
    ) {
        let run_at = async |registry: &str| {
            let folder = tempfile::tempdir().unwrap();
            let host = registry.trim_start_matches("https://").split('/').next().unwrap_or_default().to_owned();
            run(registry, folder.path()).await.map(|found| found.replace(&host, "HOST"))
        };
        let direct = match run_at(&self.upstream.origin()).await {
            Ok(found) if is_complete(&found) => found,
            found => return report.row(title, "direct", what, Verdict::Wrong(format!("{found:?}"))),
        };
        for (route, registry) in routes {
            let verdict = match run_at(registry).await {
                Ok(found) => compare(&direct, &found),
                Err(output) => Verdict::Wrong(output),
            };
            report.row(title, route, what, verdict);
        }
    }

    fn ca_file(&self) -> String {
        self.folder.path().join("ca.pem").display().to_string()
    }
}

/// A program's standard output; the error is its standard error.
pub(crate) async fn output_of(
    program: &Path,
    arguments: &[&str],
    folder: &Path,
    environment: &[(&str, &str)],
) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder).env_clear().stdin(Stdio::null()).kill_on_drop(true);
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", folder);
    command.envs(environment.iter().copied());
    let ended = tokio::time::timeout(Duration::from_secs(180), command.output()).await;
    let output = ended.map_err(|_| "it took more than three minutes".to_owned())?.map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(format!("{}: {} {}", output.status, text(&output.stderr), text(&output.stdout))),
    }
}

/// The name of a program with the version that it prints.
pub(crate) async fn with_version(name: &str, program: &Path, argument: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let output =
        output_of(program, &[argument], folder.path(), &[("CHECKPOINT_DISABLE", "1")]).await.unwrap_or_default();
    let is_version = |word: &&str| word.contains('.') && word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    // A pre-release counts as its release.
    let words = output.split([' ', '\n']).map(|word| word.trim_start_matches('v'));
    let version = words.map(|word| word.split_once('-').map_or(word, |(release, _)| release)).find(is_version);
    version.map_or(name.to_owned(), |version| format!("{name} {version}"))
}

/// The files below a folder, with their digests, except the JSON files of the tool itself.
fn files_below(folder: &Path) -> String {
    let mut lines = Vec::new();
    let mut pending_folders = vec![folder.to_owned()];
    while let Some(next) = pending_folders.pop() {
        for entry in std::fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending_folders.push(path);
            } else if path.extension().is_none_or(|extension| extension != "json") {
                let digest = sha256_hex(&std::fs::read(&path).unwrap());
                lines.push(format!("{} {digest}", path.strip_prefix(folder).unwrap().display()));
            }
        }
    }
    lines.sort();
    lines.join("\n")
}

/// Renovate: versions, and the hashes for a lock file.
pub(crate) async fn renovate(tools: &Tools, report: &mut Report) {
    let (installed, title) = (tools.folder.join("renovate"), "Renovate 39.264");
    let Some(node) = find("node").filter(|_| installed.join("installed").exists()) else {
        return report.row(title, "-", "-", Verdict::NotRun("it is not installed, or node is not".to_owned()));
    };
    let fixture = TlsFixture::new().await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/renovate.js");
    let (ca, installed) = (fixture.ca_file(), installed.display().to_string());
    let is_complete = |found: &str| {
        found.matches("zh:").count() == fixture.hash_count() && found.matches("h1:").count() == PLATFORMS.len()
    };
    let run = async |registry: &str, folder: &Path| {
        let environment = [("NODE_EXTRA_CA_CERTS", ca.as_str()), ("LOG_LEVEL", "error")];
        output_of(&node, &[script, registry, &installed], folder, &environment).await
    };
    let routes = [fixture.own_host(), fixture.base_of_one_registry()];
    fixture.compare_routes(report, (title, "versions, hashes for a lock file"), &routes, is_complete, run).await;
}

/// Checkov: its findings in a module that it downloads.
pub(crate) async fn checkov(tools: &Tools, report: &mut Report) {
    let title = "Checkov 3.3.30";
    let Some(program) = tools.program("checkov") else {
        return report.row(title, "-", "-", Verdict::NotRun("the program is not installed".to_owned()));
    };
    let fixture = TlsFixture::new().await;
    // For registries Checkov trusts the authorities of certifi only, whatever the environment says.
    let trust = format!("import certifi\ncertifi.where = lambda: {:?}\n", fixture.ca_file());
    std::fs::write(fixture.folder.path().join("sitecustomize.py"), trust).unwrap();
    let python_path = fixture.folder.path().display().to_string();
    let run = async |registry: &str, folder: &Path| {
        let host = write_module_call(registry, folder);
        let environment = [("TF_HOST_NAME", host.as_str()), ("PYTHONPATH", &python_path), ("LOG_LEVEL", "WARNING")];
        let arguments =
            ["--download-external-modules", "true", "--framework", "terraform", "--soft-fail", "-o", "json"];
        let printed = output_of(&program, &[&["-d", "."], &arguments[..]].concat(), folder, &environment).await;
        printed.map(|printed| findings(&printed))
    };
    let is_complete = |found: &str| found.contains("aws_s3_bucket.open");
    fixture
        .compare_routes(report, (title, "findings in a downloaded module"), &[fixture.own_host()], is_complete, run)
        .await;
}

/// The failed checks, by resource.
fn findings(report: &str) -> String {
    let report: serde_json::Value = serde_json::from_str(report).unwrap_or_default();
    let failed = report["results"]["failed_checks"].as_array().cloned().unwrap_or_default();
    let line =
        |check: &serde_json::Value| format!("{} {} {}", check["check_id"], check["resource"], check["file_path"]);
    let mut lines: Vec<String> = failed.iter().map(line).collect();
    lines.sort();
    lines.join("\n")
}

/// Writes a configuration that calls the module of a registry; returns the registry's host.
fn write_module_call(registry: &str, folder: &Path) -> String {
    let host = registry.trim_start_matches("https://").to_owned();
    let text = format!("module \"m\" {{\n  source  = \"{host}/acme/vpc/aws\"\n  version = \"1.4.0\"\n}}\n");
    std::fs::write(folder.join("main.tf"), text).unwrap();
    host
}

/// Trivy: its findings in a module that it downloads.
pub(crate) async fn trivy(report: &mut Report) {
    let title = "Trivy";
    let Some(program) = std::env::var_os("LARDER_TRIVY") else {
        return report.row(title, "-", "-", Verdict::NotRun("LARDER_TRIVY names no program".to_owned()));
    };
    let title = with_version(title, Path::new(&program), "--version").await;
    let fixture = TlsFixture::new().await;
    let ca = fixture.ca_file();
    let run = async |registry: &str, folder: &Path| {
        write_module_call(registry, folder);
        let environment = [("SSL_CERT_FILE", ca.as_str())];
        let arguments = ["config", "--quiet", "--skip-check-update", "--format", "json", "."];
        let printed = output_of(Path::new(&program), &arguments, folder, &environment).await?;
        let found: serde_json::Value = serde_json::from_str(&printed).unwrap_or_default();
        let results = found["Results"].as_array().cloned().unwrap_or_default();
        let failed =
            results.iter().flat_map(|result| result["Misconfigurations"].as_array().cloned().unwrap_or_default());
        let mut lines: Vec<String> =
            failed.map(|finding| format!("{} {}", finding["ID"], finding["CauseMetadata"]["Resource"])).collect();
        lines.sort();
        Ok(lines.join("\n"))
    };
    let is_complete = |found: &str| found.contains("module.m");
    fixture
        .compare_routes(report, (&title, "findings in a downloaded module"), &[fixture.own_host()], is_complete, run)
        .await;
}

/// cdktf: the code that it generates of a module, which it has `terraform` fetch.
pub(crate) async fn cdktf(tools: &Tools, report: &mut Report) {
    let (installed, title) = (tools.folder.join("cdktf/node_modules/.bin/cdktf"), "cdktf 0.21.0");
    let (true, Some(terraform)) = (installed.is_file(), tools.program("terraform-1.14")) else {
        return report.row(title, "-", "-", Verdict::NotRun("it, or a terraform for it, is not installed".to_owned()));
    };
    let fixture = TlsFixture::new().await;
    let (ca, terraform) = (fixture.ca_file(), terraform.display().to_string());
    let run = async |registry: &str, folder: &Path| {
        let host = registry.trim_start_matches("https://");
        let module = serde_json::json!({ "name": "m", "source": format!("{host}/acme/plain/aws"), "version": "1.0.0" });
        let project = serde_json::json!({
            "language": "typescript", "app": "true", "projectId": "larder", "sendCrashReports": "false",
            "terraformProviders": [], "terraformModules": [module],
        });
        std::fs::write(folder.join("cdktf.json"), project.to_string()).unwrap();
        let empty_config = folder.join("none.tfrc").display().to_string();
        std::fs::write(&empty_config, "").unwrap();
        let environment = [
            ("SSL_CERT_FILE", ca.as_str()),
            ("TERRAFORM_BINARY_NAME", &terraform),
            ("TF_CLI_CONFIG_FILE", &empty_config),
            ("CHECKPOINT_DISABLE", "1"),
            ("CI", "1"),
        ];
        output_of(&installed, &["get"], folder, &environment).await?;
        std::fs::read_to_string(folder.join(".gen/modules/m.ts")).map_err(|error| error.to_string())
    };
    let is_complete = |found: &str| found.contains("name");
    fixture.compare_routes(report, (title, "the code of a module"), &[fixture.own_host()], is_complete, run).await;
}

/// Terragrunt: a module that it fetches from a registry itself (`tfr:`), and `init` in it.
pub(crate) async fn terragrunt(tools: &Tools, report: &mut Report) {
    let title = "Terragrunt";
    let Some(program) = std::env::var_os("LARDER_TERRAGRUNT") else {
        return report.row(title, "-", "-", Verdict::NotRun("LARDER_TERRAGRUNT names no program".to_owned()));
    };
    let Some(terraform) = tools.program("terraform-1.14") else {
        return report.row(title, "-", "-", Verdict::NotRun("no terraform is installed for it".to_owned()));
    };
    let title = with_version(title, Path::new(&program), "--version").await;
    let fixture = TlsFixture::new().await;
    let (ca, terraform) = (fixture.ca_file(), terraform.display().to_string());
    let run = async |registry: &str, folder: &Path| {
        let host = registry.trim_start_matches("https://");
        let source = format!(
            "terraform {{\n  source = \"tfr://{host}/acme/plain/aws?version=1.0.0\"\n}}\ninputs = {{\n  name = \"x\"\n}}\n"
        );
        std::fs::write(folder.join("terragrunt.hcl"), source).unwrap();
        let empty_config = folder.join("none.tfrc").display().to_string();
        std::fs::write(&empty_config, "").unwrap();
        let environment = [
            ("SSL_CERT_FILE", ca.as_str()),
            ("TERRAGRUNT_TFPATH", &terraform),
            ("TG_TF_PATH", &terraform),
            ("TF_CLI_CONFIG_FILE", &empty_config),
            ("CHECKPOINT_DISABLE", "1"),
        ];
        output_of(Path::new(&program), &["init", "-no-color", "-input=false"], folder, &environment).await?;
        // The folders in between are named by a hash of the source, host included.
        let found = files_below(&folder.join(".terragrunt-cache"));
        let names = found.lines().map(|line| line.rsplit('/').next().unwrap_or_default());
        Ok(names.filter(|name| name.starts_with("main.tf")).collect::<Vec<_>>().join("\n"))
    };
    let is_complete = |found: &str| found.contains("main.tf");
    fixture
        .compare_routes(report, (&title, "a module by tfr:, and init in it"), &[fixture.own_host()], is_complete, run)
        .await;
}

/// tfmodcache: the files of a module; it requests /v1/modules/ without discovery.
pub(crate) async fn tfmodcache(tools: &Tools, report: &mut Report) {
    let title = "tfmodcache 0.1.0";
    let Some(program) = tools.program("tfmodcache") else {
        return report.row(title, "-", "-", Verdict::NotRun("the program is not installed".to_owned()));
    };
    let fixture = TlsFixture::new().await;
    let ca = fixture.ca_file();
    let run = async |registry: &str, folder: &Path| {
        write_module_call(registry, folder);
        let cache = folder.join("cache").display().to_string();
        output_of(&program, &["--cache-dir", &cache, "link", "."], folder, &[("SSL_CERT_FILE", &ca)]).await?;
        Ok(files_below(&folder.join(".terraform/modules")))
    };
    let is_complete = |found: &str| found.contains("main.tf");
    fixture.compare_routes(report, (title, "the files of a module"), &[fixture.own_host()], is_complete, run).await;
}

/// terraform-registry-stub: the archives, checksums and signatures of a provider; it sends no discovery request.
pub(crate) async fn registry_stub(tools: &Tools, report: &mut Report) {
    let title = "terraform-registry-stub 0.1.0";
    let Some(program) = tools.program("terraform-registry-stub") else {
        return report.row(title, "-", "-", Verdict::NotRun("the program is not installed".to_owned()));
    };
    let fixture = TlsFixture::new().await;
    let ca = fixture.ca_file();
    let run = async |registry: &str, folder: &Path| {
        let host = registry.trim_start_matches("https://");
        let manifest = format!(
            "registry: \"{host}\"\nproviders:\n  - namespace: acme\n    type: \"null\"\n    version_constraints: [\">=1.0\"]\n    \
             platforms: [\"*\"]\ncache_options:\n  download_packages: true\n  verify_signatures: false\n"
        );
        std::fs::write(folder.join("manifest.yaml"), manifest).unwrap();
        let arguments = ["cache", "--manifest", "manifest.yaml", "--output", "cache"];
        output_of(&program, &arguments, folder, &[("SSL_CERT_FILE", &ca)]).await?;
        Ok(files_below(&folder.join("cache")))
    };
    let is_complete = |found: &str| found.matches(".zip").count() == 2 * PLATFORMS.len();
    fixture
        .compare_routes(report, (title, "archives, checksums, signatures"), &[fixture.own_host()], is_complete, run)
        .await;
}
