//! Terraform and OpenTofu of many versions, on every route that they have: what `init`, `providers lock` and
//! `providers mirror` leave behind.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use crate::Tools;
use crate::connect_proxy;
use crate::report::{Report, Verdict, compared};
use crate::support::larder::{Folder, HOST, Larder};
use crate::support::module_fixture::tar_gz;
use crate::support::process::{Process, command, run as run_command};
use crate::support::terraform::{Terraform, Workspace, host_override, network_mirror};
use crate::support::tls::TestCa;
use crate::support::upstream::{FakeUpstream, Listed, Module, Provider, SigningKey, sha256_hex};
use crate::tools::with_version;

/// A client and its features.
struct Cli {
    name: String,
    client: Terraform,
    /// Major and minor of Terraform; of OpenTofu the one that it is like.
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
    /// With `trust_all_hashes`, which only OpenTofu has.
    TrustedMirror,
    TakeOver,
    OwnName,
}

impl Route {
    const THROUGH: [Self; 6] =
        [Self::Override, Self::OverrideTls, Self::Mirror, Self::TrustedMirror, Self::TakeOver, Self::OwnName];

    /// True for the route that serves providers only.
    fn is_mirror(self) -> bool {
        matches!(self, Self::Mirror | Self::TrustedMirror)
    }

    fn words(self) -> &'static str {
        match self {
            Self::Direct => "straight",
            Self::Override => "host override, http",
            Self::OverrideTls => "host override, TLS",
            Self::Mirror => "network mirror",
            Self::TrustedMirror => "network mirror, trust_all_hashes",
            Self::TakeOver => "take-over of the name",
            Self::OwnName => "own host name",
        }
    }
}

/// The result of a step: files by path with their digests, and the lock file.
pub(crate) type InstalledFiles = BTreeMap<String, String>;

pub(crate) async fn rows(tools: &Tools, report: &mut Report) {
    for (version, name) in
        [((0, 13), "0.13"), ((0, 15), "0.15"), ((1, 6), "1.6"), ((1, 13), "1.13"), ((1, 14), "1.14"), ((1, 15), "1.15")]
    {
        let title = format!("Terraform {name}");
        match tools.terraform(name) {
            Some(client) => {
                let cli = Cli { name: title, client, version, default_host: HOST };
                compare_client(&cli, report).await;
                if version >= (1, 15) {
                    compare_variable_sources(&cli, report).await;
                }
            }
            None => report.row(&title, "-", "-", Verdict::NotRun("it is not installed".to_owned())),
        }
    }
    let tofu = std::env::var("LARDER_TOFU").ok();
    match tofu.as_deref().and_then(|path| Some((path, Terraform::find_named(path)?))) {
        Some((path, client)) => {
            let name = with_version("OpenTofu", Path::new(path), "version").await;
            let cli = Cli { name, client, version: (1, 9), default_host: "registry.opentofu.org" };
            compare_client(&cli, report).await;
            compare_variable_sources(&cli, report).await;
        }
        None => report.row("OpenTofu", "-", "-", Verdict::NotRun("LARDER_TOFU names no program".to_owned())),
    }
}

/// A configuration whose module is chosen by values: `larder warm` of its folder stores everything that `init` then
/// needs without the registry.
async fn compare_variable_sources(cli: &Cli, report: &mut Report) {
    let subject = "modules chosen by variables: `larder warm FOLDER`, then `init` without the registry";
    let mut upstream = registry().await;
    let folder = Folder::new();
    let builder = Larder::builder().upstream(cli.default_host, &format!("{}/", upstream.origin()), "");
    let larder = Process::start(&builder.on(&folder), folder.path());
    let write = |workspace: &mut Workspace| {
        let main = "variable \"range\" {\n  const = true\n}\nvariable \"name\" {\n  const = true\n}\nlocals {\n  modules = { net = \"acme/vpc/aws\" }\n}\nmodule \"net\" {\n  source  = local.modules[var.name]\n  version = \"~> ${var.range}\"\n}\n";
        let required = "terraform {\n  required_providers {\n    null = { source = \"acme/null\", version = \"~> 1.1\" }\n  }\n}\n";
        workspace
            .file("main.tf", main)
            .file("required.tf", required)
            .file("terraform.tfvars", "range = \"1.0\"\n")
            .env("TF_CLI_ARGS_init", "-var=name=net");
    };
    let mut straight = cli.client.workspace();
    write(&mut straight);
    straight.cli_config(&host_override(cli.default_host, &upstream.providers_url(), &upstream.modules_url()));
    let mut through = cli.client.workspace();
    write(&mut through);
    let base = format!("{}/registry/{}/v1", larder.base(), cli.default_host);
    through.cli_config(&host_override(cli.default_host, &format!("{base}/providers/"), &format!("{base}/modules/")));
    let expected = straight.init().await;
    let (work, config) = (through.path(), folder.path().join("mirror.toml"));
    let (client, admin) = (if cli.default_host == HOST { "terraform" } else { "opentofu" }, larder.admin());
    let arguments = [
        "warm",
        &work.display().to_string(),
        "--platform",
        "linux_amd64",
        "--client",
        client,
        "--var",
        "name=net",
        "--config",
        &config.display().to_string(),
        "--admin-listen",
        admin.trim_start_matches("http://"),
    ];
    let warmed = run_command(command(folder.path(), &arguments)).await;
    upstream.stop().await;
    let left = through.init().await;
    let verdict = match (expected.status.success(), warmed.code, left.status.success()) {
        (true, Some(0), true) => differences(&left_behind(&straight.path(), HOST), &left_behind(&work, HOST)),
        _ => Verdict::Wrong(format!("{} {warmed:?} {}", expected.one_line(), left.one_line())),
    };
    report.row(&cli.name, "host override, http", subject, verdict);
}

async fn compare_client(cli: &Cli, report: &mut Report) {
    let straight = run(cli, Route::Direct).await;
    if let Some((step, Err(error))) = straight.iter().find(|(_, left)| left.is_err()) {
        return report.row(&cli.name, "straight", step, Verdict::Wrong(error.clone()));
    }
    for route in Route::THROUGH {
        if route == Route::TrustedMirror && cli.default_host == HOST {
            continue;
        }
        for (step, left) in run(cli, route).await {
            let straight = straight.iter().find(|(name, _)| *name == step).and_then(|(_, left)| left.clone().ok());
            let verdict = match (left, straight) {
                (Err(output), _) => Verdict::Wrong(output),
                (Ok(_), None) => Verdict::Wrong("there is nothing to compare it with".to_owned()),
                (Ok(left), Some(straight)) => judged(route, &straight, &left, cli),
            };
            report.row(&cli.name, route.words(), step, verdict);
        }
    }
}

fn judged(route: Route, straight: &InstalledFiles, left: &InstalledFiles, cli: &Cli) -> Verdict {
    if !route.is_mirror() {
        return differences(straight, left);
    }
    // A network mirror has no modules and no signatures: the client records only the hashes it computed (PROTOCOL 3.3).
    let no_modules = |left: &InstalledFiles| -> InstalledFiles {
        left.iter()
            .filter(|(path, _)| !path.contains("/modules/") && *path != LOCK)
            .map(|(a, b)| (a.clone(), b.clone()))
            .collect()
    };
    let (files, locks) = ([no_modules(straight), no_modules(left)], [straight, left].map(|left| left.get(LOCK)));
    match differences(&files[0], &files[1]) {
        Verdict::Same => {}
        other => return other,
    }
    let h1 = |lock: &String| -> Vec<String> {
        lock.lines().filter(|line| line.contains("\"h1:")).map(|line| line.trim().to_owned()).collect()
    };
    match locks {
        [None, None] => Verdict::ExpectedDifference(
            "at first 0.13 refuses: it knows `h1:` alone, which larder has of stored archives; `init` again",
        ),
        // All platforms' hashes are listed, and none is left out.
        [Some(straight), Some(left)] if route == Route::TrustedMirror => {
            // Two providers, and each platform that the mirror lists.
            match left.matches("\"zh:").count() == 2 * PLATFORMS.len() && left.contains("\"h1:") {
                true => Verdict::ExpectedDifference("the `zh:` of every platform, as the mirror lists them"),
                false => Verdict::Wrong(format!("straight: {straight} through larder: {left}")),
            }
        }
        [Some(straight), Some(left)] if h1(straight) == h1(left) => match left.contains("\"zh:") {
            true if cli.default_host == HOST => Verdict::Wrong(format!("zh: through a mirror: {left}")),
            true => Verdict::ExpectedDifference("of the hashes it has verified, one `zh:` for each provider"),
            false => Verdict::ExpectedDifference("the same `h1:`, no `zh:`: the client takes none from a mirror"),
        },
        [straight, left] => Verdict::Wrong(format!("lock files: {straight:?} {left:?}")),
    }
}

/// The files that are not the same.
fn differences(straight: &InstalledFiles, through: &InstalledFiles) -> Verdict {
    let select = |left: &InstalledFiles, other: &InstalledFiles| -> InstalledFiles {
        left.iter()
            .filter(|(path, shown)| other.get(*path) != Some(shown))
            .map(|(a, b)| (a.clone(), b.clone()))
            .collect()
    };
    compared(&select(straight, through), &select(through, straight))
}

/// The lock file's name in a result.
const LOCK: &str = ".terraform.lock.hcl";

/// A registry with two providers for three platforms and a module that calls another one.
pub(crate) async fn registry() -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    for version in ["1.1.0", "1.2.0", "2.0.0"] {
        upstream.publish(null(version));
    }
    let random = PLATFORMS.into_iter().fold(Provider::new("acme", "random").version("3.0.1"), Provider::platform);
    // With the hashes of all platforms, as OpenTofu's registry sends them; Terraform passes them over.
    upstream.publish(random.packages().unknown_fields().warning("moved").size(200_000).signed_by(rsa_key()));
    let calls = "module \"inner\" {\n  source = \"./inner\"\n}\n";
    let files: [(&str, &[u8]); 2] = [("main.tf", calls.as_bytes()), ("inner/main.tf", b"# inner\n")];
    upstream.serve_file("/files/vpc.tar.gz", "application/gzip", tar_gz(&files));
    upstream.list(&[Listed::new("acme/vpc/aws", &["1.0.0", "1.4.0", "2.0.0"])], &[]);
    for version in ["1.0.0", "1.4.0", "2.0.0"] {
        let location = format!("{}/files/vpc.tar.gz", upstream.origin());
        upstream.publish_module(Module::new("acme", "vpc", "aws").version(version).at(&location));
    }
    upstream
}

/// Terraform before 1.0 knows no other kind.
fn rsa_key() -> &'static SigningKey {
    static KEY: OnceLock<SigningKey> = OnceLock::new();
    KEY.get_or_init(SigningKey::another_rsa)
}

/// The result of an `init` with these services of Terraform's registry.
pub(crate) async fn left_by_init(
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
    if output.status.success() { Ok(left_behind(&workspace.path(), HOST)) } else { Err(output.one_line()) }
}

const PLATFORMS: [&str; 3] = ["linux_amd64", "darwin_arm64", "windows_amd64"];

fn null(version: &str) -> Provider {
    let null = Provider::new("acme", "null").version(version).size(3_000_000).signed_by(rsa_key());
    PLATFORMS.into_iter().fold(null, Provider::platform)
}

/// All steps of a client on one route: the result of each, or the client's error.
async fn run(cli: &Cli, route: Route) -> Vec<(&'static str, Result<InstalledFiles, String>)> {
    let (upstream, ca) = (registry().await, TestCa::new());
    let larder = Larder::builder()
        .upstream(cli.default_host, &format!("{}/", upstream.origin()), "")
        .server(&format!("default_upstream = \"{}\"", cli.default_host))
        .nothing_stays_fresh();
    let larder = match route {
        Route::Direct | Route::Override => larder.start().await,
        _ => larder.tls(&ca, &["127.0.0.1", cli.default_host]).start().await,
    };
    let own = format!("127.0.0.1:{}", larder.address().port());
    let host = if route == Route::OwnName { own.as_str() } else { cli.default_host };
    let mut workspace = cli.client.workspace();
    workspace
        .trust(&ca.pem())
        .require(&format!("{host}/acme/null"), "~> 1.1")
        .require(&format!("{host}/acme/random"), ">= 3.0.0");
    if !route.is_mirror() {
        let module = format!("module \"m\" {{\n  source  = \"{host}/acme/vpc/aws\"\n  version = \"~> 1.0\"\n}}\n");
        workspace.file("module.tf", &module);
    }
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
            let proxy = connect_proxy::leading_to(larder.address()).await;
            workspace.env("HTTPS_PROXY", &proxy);
        }
        Route::OwnName => {}
    }
    steps(cli, route, &workspace, host, &upstream).await
}

async fn steps(
    cli: &Cli,
    route: Route,
    workspace: &Workspace,
    host: &str,
    upstream: &FakeUpstream,
) -> Vec<(&'static str, Result<InstalledFiles, String>)> {
    let mut steps = Vec::new();
    let left = || left_behind(&workspace.path(), host);
    let ask = async |arguments: &[&str]| {
        let output = workspace.run(arguments).await;
        if output.status.success() { Ok(left()) } else { Err(output.one_line()) }
    };
    if (cli.version, route) == ((0, 13), Route::Mirror) {
        // Terraform 0.13 refuses here: `judged` expects that.
        let _ = ask(&["init", "-no-color", "-input=false"]).await;
    }
    steps.push(("init", ask(&["init", "-no-color", "-input=false"]).await));
    if cli.version >= (1, 0) {
        workspace.forget_installed();
        steps
            .push(("init -lockfile=readonly", ask(&["init", "-no-color", "-input=false", "-lockfile=readonly"]).await));
    }
    upstream.publish(null("1.3.0"));
    if (cli.version, route) == ((0, 13), Route::Mirror) {
        let _ = ask(&["init", "-no-color", "-input=false", "-upgrade"]).await;
    }
    steps.push(("init -upgrade", ask(&["init", "-no-color", "-input=false", "-upgrade"]).await));
    // These ask the origin, also where a mirror is configured (PROTOCOL 0).
    if !route.is_mirror() {
        let platforms = PLATFORMS.map(|platform| format!("-platform={platform}"));
        let platforms: Vec<&str> = platforms.iter().map(String::as_str).collect();
        if cli.version >= (0, 14) {
            steps.push((
                "providers lock, three platforms",
                ask(&[&["providers", "lock", "-no-color"], &platforms[..]].concat()).await,
            ));
        }
        steps.push((
            "providers mirror, three platforms",
            ask(&[&["providers", "mirror"], &platforms[..], &["mirrored"]].concat()).await,
        ));
    }
    steps
}

/// The files below a folder by their digests, and the lock file as it is; the host of addresses is left out.
fn left_behind(folder: &Path, host: &str) -> InstalledFiles {
    let neutral = |text: String| text.replace(host, "HOST").replace(&host.replace(':', "_"), "HOST");
    let mut left = InstalledFiles::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(folder_of) = waiting.pop() {
        for entry in fs::read_dir(&folder_of).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
                continue;
            }
            let name = neutral(path.strip_prefix(folder).unwrap().to_string_lossy().into_owned());
            if name.ends_with(".tf") && !name.contains('/') {
                continue;
            }
            let bytes = fs::read(&path).unwrap();
            let shown = match name.as_str() {
                name if name.ends_with("modules.json") => modules_in_order(&neutral(text(&bytes))),
                name if name == LOCK || name.ends_with(".json") => neutral(text(&bytes)),
                _ => sha256_hex(&bytes),
            };
            left.insert(name, shown);
        }
    }
    left
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Earlier clients write the list of modules in any order.
fn modules_in_order(json: &str) -> String {
    let mut all: serde_json::Value = serde_json::from_str(json).unwrap();
    if let Some(modules) = all["Modules"].as_array_mut() {
        modules.sort_by_key(|module| module["Key"].to_string());
    }
    all.to_string()
}
