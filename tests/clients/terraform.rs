//! Terraform and OpenTofu of many versions, on every route to larder: the files that `init`, `providers lock` and
//! `providers mirror` write.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::Tools;
use crate::connect_proxy;
use crate::report::{Report, Verdict, compare};
use crate::support::larder::{Folder, HOST, Larder};
use crate::support::module_fixture::tar_gz;
use crate::support::process::{Process, command, run as run_command};
use crate::support::terraform::{Terraform, Workspace, host_override, network_mirror};
use crate::support::tls::TestCa;
use crate::support::upstream::{FakeUpstream, ListedItem, Module, Provider, SigningKey, sha256_hex};
use crate::tools::with_version;

/// A client and its features.
struct Cli {
    name: String,
    program: PathBuf,
    /// Major and minor version of Terraform; for OpenTofu, those of the Terraform that behaves like it.
    version: (u64, u64),
    /// The host of an address that names none.
    default_host: &'static str,
}

/// The client's route to larder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route {
    Direct,
    Override,
    OverrideTls,
    Mirror,
    /// With `trust_all_hashes`, which only OpenTofu has, since 1.12.
    TrustedMirror,
    TakeOver,
    OwnName,
    /// `larder run -- CLIENT`, without a larder that runs beside.
    Run,
}

impl Cli {
    /// A new, empty folder to run this client in.
    fn workspace(&self) -> Workspace {
        workspace_of(&self.program)
    }
}

fn workspace_of(program: &Path) -> Workspace {
    Terraform::find_named(&program.display().to_string()).expect("the program is installed").workspace()
}

impl Route {
    const ALL_THROUGH_LARDER: [Self; 7] = [
        Self::Override,
        Self::OverrideTls,
        Self::Mirror,
        Self::TrustedMirror,
        Self::TakeOver,
        Self::OwnName,
        Self::Run,
    ];

    /// True for the route that serves providers only.
    fn is_mirror(self) -> bool {
        matches!(self, Self::Mirror | Self::TrustedMirror)
    }

    fn text(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Override => "host override, http",
            Self::OverrideTls => "host override, TLS",
            Self::Mirror => "network mirror",
            Self::TrustedMirror => "network mirror, trust_all_hashes",
            Self::TakeOver => "take-over of the name",
            Self::OwnName => "own host name",
            Self::Run => "larder run",
        }
    }
}

/// The result of a step: files by path with their digests, and the lock file.
pub(crate) type InstalledFiles = BTreeMap<String, String>;

pub(crate) async fn terraform_rows(tools: &Tools, report: &mut Report) {
    for (version, name) in
        [((0, 13), "0.13"), ((0, 15), "0.15"), ((1, 6), "1.6"), ((1, 13), "1.13"), ((1, 14), "1.14"), ((1, 15), "1.15")]
    {
        let title = format!("Terraform {name}");
        match tools.program(&format!("terraform-{name}")) {
            Some(program) => compare_terraform(Cli { name: title, program, version, default_host: HOST }, report).await,
            None => report.row(&title, "-", "-", Verdict::NotRun("the program is not installed".to_owned())),
        }
    }
    if let Some(program) = std::env::var_os("LARDER_TERRAFORM").map(PathBuf::from) {
        let name = with_version("Terraform", &program, "version").await;
        match major_and_minor(&name) {
            Some(version) => compare_terraform(Cli { name, program, version, default_host: HOST }, report).await,
            None => report.row(&name, "-", "-", Verdict::Wrong("LARDER_TERRAFORM tells no version".to_owned())),
        }
    }
}

/// The numbers in `Terraform 1.16.0`.
fn major_and_minor(name: &str) -> Option<(u64, u64)> {
    let mut numbers = name.rsplit(' ').next()?.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

async fn compare_terraform(cli: Cli, report: &mut Report) {
    compare_client(&cli, report).await;
    if cli.version >= (1, 15) {
        compare_variable_sources(&cli, report).await;
    }
    if cli.version >= (1, 16) {
        compare_underscores(&cli, report).await;
    }
}

pub(crate) async fn tofu_rows(tools: &Tools, report: &mut Report) {
    for (name, like) in [("1.9", (1, 9)), ("1.12", (1, 15))] {
        match tools.program(&format!("tofu-{name}")) {
            Some(program) => compare_tofu(format!("OpenTofu {name}"), program, like, report).await,
            None => {
                let reason = "there is no Go to build it with".to_owned();
                report.row(&format!("OpenTofu {name}"), "-", "-", Verdict::NotRun(reason));
            }
        }
    }
    if let Some(program) = std::env::var_os("LARDER_TOFU").map(PathBuf::from) {
        compare_tofu(with_version("OpenTofu", &program, "version").await, program, (1, 15), report).await;
    }
}

async fn compare_tofu(name: String, program: PathBuf, like: (u64, u64), report: &mut Report) {
    let cli = Cli { name, program, version: like, default_host: "registry.opentofu.org" };
    compare_client(&cli, report).await;
    if like >= (1, 15) {
        compare_variable_sources(&cli, report).await;
    }
}

/// A configuration whose module is chosen by values: `larder warm` of its folder stores everything that `init` then
/// needs without the registry.
async fn compare_variable_sources(cli: &Cli, report: &mut Report) {
    let main = "variable \"range\" {\n  const = true\n}\nvariable \"name\" {\n  const = true\n}\nlocals {\n  modules = { net = \"acme/vpc/aws\" }\n}\nmodule \"net\" {\n  source  = local.modules[var.name]\n  version = \"~> ${var.range}\"\n}\n";
    let required =
        "terraform {\n  required_providers {\n    null = { source = \"acme/null\", version = \"~> 1.1\" }\n  }\n}\n";
    let files = [("main.tf", main), ("required.tf", required), ("terraform.tfvars", "range = \"1.0\"\n")];
    let verdict = warm_then_init(cli, &files, &["name=net"]).await;
    let subject = "modules chosen by variables: `larder warm FOLDER`, then `init` without the registry";
    report.row(&cli.name, "host override, http", subject, verdict);
}

/// A provider whose namespace has an underscore, which Terraform accepts from 1.16 on.
async fn compare_underscores(cli: &Cli, report: &mut Report) {
    let main = "terraform {\n  required_providers {\n    null = { source = \"acme_corp/null\" }\n  }\n}\n";
    let verdict = warm_then_init(cli, &[("main.tf", main)], &[]).await;
    let subject = "an underscore in a namespace: `larder warm FOLDER`, then `init` without the registry";
    report.row(&cli.name, "host override, http", subject, verdict);
}

/// Compares `init` at the registry with `larder warm` of the same folder and then `init` without the registry.
async fn warm_then_init(cli: &Cli, files: &[(&str, &str)], variables: &[&str]) -> Verdict {
    let mut upstream = registry().await;
    let folder = Folder::new();
    let builder = Larder::builder().upstream(cli.default_host, &format!("{}/", upstream.origin()), "");
    let larder = Process::start(&builder.store_at(&folder), folder.path());
    let write_configuration = |workspace: &mut Workspace| {
        for (name, text) in files {
            workspace.file(name, text);
        }
        let values: Vec<String> = variables.iter().map(|variable| format!("-var={variable}")).collect();
        workspace.env("TF_CLI_ARGS_init", &values.join(" "));
    };
    let mut direct = cli.workspace();
    write_configuration(&mut direct);
    direct.cli_config(&host_override(cli.default_host, &upstream.providers_url(), &upstream.modules_url()));
    let mut through_larder = cli.workspace();
    write_configuration(&mut through_larder);
    let base = format!("{}/registry/{}/v1", larder.base(), cli.default_host);
    through_larder.cli_config(&host_override(
        cli.default_host,
        &format!("{base}/providers/"),
        &format!("{base}/modules/"),
    ));
    let expected = direct.init().await;
    let (work, config) = (through_larder.path(), folder.path().join("mirror.toml"));
    let client = if cli.default_host == HOST { "terraform" } else { "opentofu" };
    let (work_path, config, admin) = (work.display().to_string(), config.display().to_string(), larder.admin());
    let mut arguments = vec!["warm", &work_path, "--platform", "linux_amd64", "--client", client, "--config", &config];
    arguments.extend(["--admin-listen", admin.trim_start_matches("http://")]);
    arguments.extend(variables.iter().flat_map(|variable| ["--var", variable]));
    let warmed = run_command(command(folder.path(), &arguments)).await;
    upstream.stop().await;
    let installed = through_larder.init().await;
    match (expected.status.success(), warmed.code, installed.status.success()) {
        (true, Some(0), true) => differences(&installed_files(&direct.path(), HOST), &installed_files(&work, HOST)),
        _ => Verdict::Wrong(format!("{} {warmed:?} {}", expected.one_line(), installed.one_line())),
    }
}

async fn compare_client(cli: &Cli, report: &mut Report) {
    let direct = run(cli, Route::Direct).await;
    if let Some((step, Err(error))) = direct.iter().find(|(_, installed)| installed.is_err()) {
        return report.row(&cli.name, "direct", step, Verdict::Wrong(error.clone()));
    }
    for route in Route::ALL_THROUGH_LARDER {
        if route == Route::TrustedMirror && (cli.default_host == HOST || cli.version < (1, 15)) {
            continue;
        }
        for (step, installed) in run(cli, route).await {
            let direct =
                direct.iter().find(|(name, _)| *name == step).and_then(|(_, installed)| installed.clone().ok());
            let verdict = match (installed, direct) {
                (Err(output), _) => Verdict::Wrong(output),
                (Ok(_), None) => Verdict::Wrong("there is nothing to compare it with".to_owned()),
                (Ok(installed), Some(direct)) => compare_on_route(route, &direct, &installed, cli),
            };
            report.row(&cli.name, route.text(), step, verdict);
        }
    }
}

fn compare_on_route(route: Route, direct: &InstalledFiles, installed: &InstalledFiles, cli: &Cli) -> Verdict {
    if !route.is_mirror() {
        return differences(direct, installed);
    }
    // A network mirror has no modules and no signatures: the client records only the hashes it computed (provider
    // network mirror protocol).
    let no_modules = |installed: &InstalledFiles| -> InstalledFiles {
        installed
            .iter()
            .filter(|(path, _)| !path.contains("/modules/") && *path != LOCK)
            .map(|(a, b)| (a.clone(), b.clone()))
            .collect()
    };
    let (files, locks) =
        ([no_modules(direct), no_modules(installed)], [direct, installed].map(|installed| installed.get(LOCK)));
    match differences(&files[0], &files[1]) {
        Verdict::Same => {}
        other => return other,
    }
    let h1 = |lock: &String| -> Vec<String> {
        lock.lines().filter(|line| line.contains("\"h1:")).map(|line| line.trim().to_owned()).collect()
    };
    match locks {
        [None, None] => Verdict::ExpectedDifference(
            "0.13 refuses the first `init`, because it reads `h1:` only, which larder has once an archive is stored; a second `init` works",
        ),
        // All platforms' hashes are listed, and none is omitted.
        [Some(direct), Some(installed)] if route == Route::TrustedMirror => {
            // Two providers, and each platform that the mirror lists.
            match installed.matches("\"zh:").count() == 2 * PLATFORMS.len() && installed.contains("\"h1:") {
                true => Verdict::ExpectedDifference("the `zh:` of every platform, as the mirror lists them"),
                false => Verdict::Wrong(format!("direct: {direct} through larder: {installed}")),
            }
        }
        [Some(direct), Some(installed)] if h1(direct) == h1(installed) => match installed.contains("\"zh:") {
            true if cli.default_host == HOST => Verdict::Wrong(format!("zh: through a mirror: {installed}")),
            true => Verdict::ExpectedDifference("one `zh:` for each provider, of the archive that the client verified"),
            false => Verdict::ExpectedDifference("the same `h1:`, no `zh:`: the client accepts none from a mirror"),
        },
        [direct, installed] => Verdict::Wrong(format!("lock files: {direct:?} {installed:?}")),
    }
}

/// Compares two results; a wrong verdict lists the differing files only.
fn differences(direct: &InstalledFiles, through: &InstalledFiles) -> Verdict {
    let differing_files = |installed: &InstalledFiles, other: &InstalledFiles| -> InstalledFiles {
        installed
            .iter()
            .filter(|(path, content)| other.get(*path) != Some(content))
            .map(|(a, b)| (a.clone(), b.clone()))
            .collect()
    };
    compare(&differing_files(direct, through), &differing_files(through, direct))
}

/// The name of the lock file.
const LOCK: &str = ".terraform.lock.hcl";

/// A registry with two providers for three platforms and a module that calls another one.
pub(crate) async fn registry() -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    for version in ["1.1.0", "1.2.0", "2.0.0"] {
        upstream.publish(null(version));
    }
    let random = PLATFORMS.into_iter().fold(Provider::new("acme", "random").version("3.0.1"), Provider::platform);
    let null_of_corp = Provider::new("acme_corp", "null").version("1.0.0").signed_by(rsa_key());
    upstream.publish(PLATFORMS.into_iter().fold(null_of_corp, Provider::platform));
    // With the hashes of all platforms, as OpenTofu's registry sends them; Terraform ignores them.
    upstream.publish(random.packages_member().unknown_fields().warning("moved").size(200_000).signed_by(rsa_key()));
    let calls = "module \"inner\" {\n  source = \"./inner\"\n}\n";
    let files: [(&str, &[u8]); 2] = [("main.tf", calls.as_bytes()), ("inner/main.tf", b"# inner\n")];
    upstream.serve_file("/files/vpc.tar.gz", "application/gzip", tar_gz(&files));
    upstream.list(&[ListedItem::new("acme/vpc/aws", &["1.0.0", "1.4.0", "2.0.0"])], &[]);
    for version in ["1.0.0", "1.4.0", "2.0.0"] {
        let location = format!("{}/files/vpc.tar.gz", upstream.origin());
        upstream.publish_module(Module::new("acme", "vpc", "aws").version(version).at(&location));
    }
    upstream
}

/// The key that signs: Terraform before 1.0 verifies RSA signatures only.
fn rsa_key() -> &'static SigningKey {
    static KEY: OnceLock<SigningKey> = OnceLock::new();
    KEY.get_or_init(SigningKey::new_rsa_key)
}

/// The result of an `init` with these services of Terraform's registry.
pub(crate) async fn files_after_init(
    client: &Terraform,
    providers_url: &str,
    modules_url: &str,
    ca: &TestCa,
    environment: &[(&str, &str)],
) -> Result<InstalledFiles, String> {
    let mut workspace = client.workspace();
    workspace.trust(&ca.pem()).require("acme/null", "~> 1.1").require("acme/random", ">= 3.0.0");
    workspace.file("module.tf", "module \"m\" {\n  source  = \"acme/vpc/aws\"\n  version = \"~> 1.0\"\n}\n");
    workspace.cli_config(&host_override(HOST, providers_url, modules_url));
    for (name, value) in environment {
        workspace.env(name, value);
    }
    let output = workspace.init().await;
    if output.status.success() { Ok(installed_files(&workspace.path(), HOST)) } else { Err(output.one_line()) }
}

const PLATFORMS: [&str; 3] = ["linux_amd64", "darwin_arm64", "windows_amd64"];

fn null(version: &str) -> Provider {
    let null = Provider::new("acme", "null").version(version).size(3_000_000).signed_by(rsa_key());
    PLATFORMS.into_iter().fold(null, Provider::platform)
}

/// All steps of a client on one route: the result of each, or the client's error.
async fn run(cli: &Cli, route: Route) -> Vec<(&'static str, Result<InstalledFiles, String>)> {
    let (upstream, ca, folder) = (registry().await, TestCa::new(), Folder::new());
    let larder = Larder::builder()
        .upstream(cli.default_host, &format!("{}/", upstream.origin()), "")
        .server(&format!("default_upstream = \"{}\"", cli.default_host))
        .always_revalidate()
        .store_at(&folder);
    if route == Route::Run {
        let (config, program) = (folder.path().join("mirror.toml"), folder.path().join("client"));
        fs::write(&config, larder.config_text()).unwrap();
        let larder = env!("CARGO_BIN_EXE_larder");
        let command = format!("'{larder}' run --config '{}' -- '{}'", config.display(), cli.program.display());
        fs::write(&program, format!("#!/bin/sh\nexec {command} \"$@\"\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let mut workspace = workspace_of(&program);
        require_packages(&mut workspace, cli.default_host, route);
        return steps(cli, route, &workspace, cli.default_host, &upstream).await;
    }
    let larder = match route {
        Route::Direct | Route::Override => larder.start().await,
        _ => larder.tls(&ca, &["127.0.0.1", cli.default_host]).start().await,
    };
    let own_name = format!("127.0.0.1:{}", larder.address().port());
    let host = if route == Route::OwnName { own_name.as_str() } else { cli.default_host };
    let mut workspace = cli.workspace();
    workspace.trust(&ca.pem());
    require_packages(&mut workspace, host, route);
    let base = format!("{}/registry/{}", larder.base(), cli.default_host);
    match route {
        Route::Direct => {
            workspace.cli_config(&host_override(cli.default_host, &upstream.providers_url(), &upstream.modules_url()));
        }
        Route::Override | Route::OverrideTls => {
            let [providers, modules] = ["providers", "modules"].map(|service| format!("{base}/v1/{service}/"));
            workspace.cli_config(&host_override(cli.default_host, &providers, &modules));
        }
        Route::Mirror => drop(workspace.cli_config(&network_mirror(&format!("{}/mirror/", larder.base())))),
        Route::TrustedMirror => {
            let url = format!("{}/mirror/", larder.base());
            let trusting = network_mirror(&url).replace("    url", "    trust_all_hashes = true\n    url");
            workspace.cli_config(&trusting);
        }
        Route::TakeOver => {
            let proxy = connect_proxy::start_for(larder.address()).await;
            workspace.env("HTTPS_PROXY", &proxy);
        }
        Route::OwnName | Route::Run => {}
    }
    steps(cli, route, &workspace, host, &upstream).await
}

/// Writes a configuration with two providers, and a module where the route serves modules.
fn require_packages(workspace: &mut Workspace, host: &str, route: Route) {
    workspace.require(&format!("{host}/acme/null"), "~> 1.1").require(&format!("{host}/acme/random"), ">= 3.0.0");
    if !route.is_mirror() {
        let module = format!("module \"m\" {{\n  source  = \"{host}/acme/vpc/aws\"\n  version = \"~> 1.0\"\n}}\n");
        workspace.file("module.tf", &module);
    }
}

async fn steps(
    cli: &Cli,
    route: Route,
    workspace: &Workspace,
    host: &str,
    upstream: &FakeUpstream,
) -> Vec<(&'static str, Result<InstalledFiles, String>)> {
    let mut steps = Vec::new();
    let installed = || installed_files(&workspace.path(), host);
    let run_step = async |arguments: &[&str]| {
        let output = workspace.run(arguments).await;
        if output.status.success() { Ok(installed()) } else { Err(output.one_line()) }
    };
    if (cli.version, route) == ((0, 13), Route::Mirror) {
        // Terraform 0.13 refuses here: `compare_on_route` expects that.
        let _ = run_step(&["init", "-no-color", "-input=false"]).await;
    }
    steps.push(("init", run_step(&["init", "-no-color", "-input=false"]).await));
    if cli.version >= (1, 0) {
        workspace.remove_installed();
        steps.push((
            "init -lockfile=readonly",
            run_step(&["init", "-no-color", "-input=false", "-lockfile=readonly"]).await,
        ));
    }
    upstream.publish(null("1.3.0"));
    if (cli.version, route) == ((0, 13), Route::Mirror) {
        let _ = run_step(&["init", "-no-color", "-input=false", "-upgrade"]).await;
    }
    steps.push(("init -upgrade", run_step(&["init", "-no-color", "-input=false", "-upgrade"]).await));
    // These commands send requests to the origin registry even where a mirror is configured.
    if !route.is_mirror() {
        let platforms = PLATFORMS.map(|platform| format!("-platform={platform}"));
        let platforms: Vec<&str> = platforms.iter().map(String::as_str).collect();
        if cli.version >= (0, 14) {
            steps.push((
                "providers lock, three platforms",
                run_step(&[&["providers", "lock", "-no-color"], &platforms[..]].concat()).await,
            ));
        }
        steps.push((
            "providers mirror, three platforms",
            run_step(&[&["providers", "mirror"], &platforms[..], &["mirrored"]].concat()).await,
        ));
    }
    steps
}

/// The files below a folder by their digests, and the lock file as it is; the host of addresses is replaced by HOST.
fn installed_files(folder: &Path, host: &str) -> InstalledFiles {
    let without_host = |text: String| text.replace(host, "HOST").replace(&host.replace(':', "_"), "HOST");
    let mut installed = InstalledFiles::new();
    let mut pending_folders = vec![folder.to_owned()];
    while let Some(next_folder) = pending_folders.pop() {
        for entry in fs::read_dir(&next_folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending_folders.push(path);
                continue;
            }
            let name = without_host(path.strip_prefix(folder).unwrap().to_string_lossy().into_owned());
            if name.ends_with(".tf") && !name.contains('/') {
                continue;
            }
            let bytes = fs::read(&path).unwrap();
            let content = match name.as_str() {
                name if name.ends_with("modules.json") => modules_in_order(&without_host(text(&bytes))),
                name if name == LOCK || name.ends_with(".json") => without_host(text(&bytes)),
                _ => sha256_hex(&bytes),
            };
            installed.insert(name, content);
        }
    }
    installed
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The list of modules, sorted: older clients write it in any order.
fn modules_in_order(json: &str) -> String {
    let mut all: serde_json::Value = serde_json::from_str(json).unwrap();
    if let Some(modules) = all["Modules"].as_array_mut() {
        modules.sort_by_key(|module| module["Key"].to_string());
    }
    all.to_string()
}
