use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use proptest::prelude::*;

use super::*;
use crate::address::{Address, Artifact, Hostname, ModulePackage, PackageSelector, Platform, Version};
use crate::requirements::{ClientKind, Configurations, Files, ModuleFiles, UnavailableItem, lock_file};

/// Registries with fixed contents, which count queries.
#[derive(Default)]
struct KnownRegistries {
    providers: BTreeMap<String, Vec<&'static str>>,
    modules: BTreeMap<String, BTreeMap<&'static str, ModuleFiles>>,
    queries: Mutex<BTreeMap<String, usize>>,
    open: AtomicUsize,
    most_open: AtomicUsize,
}

impl KnownRegistries {
    /// Adds a provider, `namespace/type`, to both public registries.
    fn provider(mut self, name: &str, versions: &[&'static str]) -> Self {
        for host in ["registry.terraform.io", "registry.opentofu.org"] {
            self.providers.insert(format!("{host}/{name}"), versions.to_vec());
        }
        self
    }

    /// Adds a version of the module `acme/NAME/test` to registry.terraform.io.
    fn module(mut self, name: &str, version: &'static str, files: &[(&str, &str)]) -> Self {
        let module = ModuleFiles { files: in_memory(files), subdir: String::new() };
        self.modules.entry(format!("registry.terraform.io/acme/{name}/test")).or_default().insert(version, module);
        self
    }

    async fn answer<T>(&self, subject: String, answer: Option<T>) -> Result<T, String> {
        let open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_open.fetch_max(open, Ordering::Relaxed);
        tokio::task::yield_now().await;
        self.open.fetch_sub(1, Ordering::Relaxed);
        *self.queries.lock().entry(subject.clone()).or_default() += 1;
        answer.ok_or_else(|| format!("the registry does not have {subject}"))
    }
}

impl Registries for KnownRegistries {
    type Error = String;

    async fn versions(&self, address: &Address) -> Result<Vec<Version>, String> {
        let versions = match address {
            Address::Provider(address) => {
                self.providers.get(&address.to_string()).map(|versions| parsed(versions.iter()))
            }
            Address::Module(address) => self.modules.get(&address.to_string()).map(|versions| parsed(versions.keys())),
        };
        self.answer(address.to_string(), versions).await
    }

    async fn module_files(&self, package: &ModulePackage) -> Result<ModuleFiles, String> {
        let files = self
            .modules
            .get(&package.module.to_string())
            .and_then(|versions| versions.get(package.version.as_str()).cloned());
        self.answer(package.to_string(), files).await
    }
}

fn parsed<'a>(versions: impl Iterator<Item = &'a &'static str>) -> Vec<Version> {
    versions.map(|version| Version::parse(version).unwrap()).collect()
}

fn in_memory(given: &[(&str, &str)]) -> Files {
    let mut files = Files::default();
    given.iter().for_each(|(path, text)| files.insert(path, text.as_bytes()).unwrap());
    files
}

fn order(given: OrderEntry) -> Order {
    Order::new(vec![given], vec![Platform::parse("linux_amd64").unwrap()]).unwrap()
}

fn configurations(given: &[(&str, &str)], roots: &[&str], client: Option<ClientKind>) -> Order {
    let roots = roots.iter().map(|root| (*root).to_owned()).collect();
    order(OrderEntry::Configurations(Configurations::new(in_memory(given), roots, client).unwrap()))
}

fn run(order: &Order, registries: &KnownRegistries) -> ResolvedRequirements {
    // Fails to compile if the future is not Send.
    fn assert_send<T: Send>(future: T) -> T {
        future
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(assert_send(resolve(order, registries)))
}

/// `ADDRESS@VERSION` of each requirement, without the host of Terraform's registry.
fn archives_of(requirements: &ResolvedRequirements) -> Vec<String> {
    let name = |artifact: &Artifact| match artifact {
        Artifact::Provider(package) => format!("{}@{}", package.provider, package.version),
        Artifact::Module(package) => package.to_string(),
    };
    let mut names: Vec<String> = requirements
        .archives
        .iter()
        .map(|archive| name(&archive.artifact).trim_start_matches("registry.terraform.io/").to_owned())
        .collect();
    names.dedup();
    names
}

fn problems_of(requirements: &ResolvedRequirements) -> Vec<String> {
    let problem_text = |UnavailableItem { subject, reason, required_by }: &UnavailableItem| {
        format!("{subject}: {reason} [{}]", required_by.join(", "))
    };
    requirements.unavailable.iter().map(problem_text).collect()
}

#[track_caller]
fn assert_resolved(requirements: &ResolvedRequirements, archives: &[&str], expected_problems: &[&str]) {
    assert_eq!(archives_of(requirements), archives, "{:#?}", problems_of(requirements));
    let problems = problems_of(requirements);
    assert_eq!(problems.len(), expected_problems.len(), "{problems:#?}");
    for (problem, expected) in problems.iter().zip(expected_problems) {
        assert!(expected.split(" … ").all(|part| problem.contains(part)), "{problem:?} lacks {expected:?}");
    }
}

const NEEDS_A: &str =
    "terraform {\n  required_providers {\n    a = { source = \"x/a\", version = \"~> 1.0\" }\n  }\n}\n";

fn calls(name: &str, source: &str) -> String {
    format!("module \"{name}\" {{\n  source = \"{source}\"\n}}\n")
}

/// Observed with Terraform 1.15.5: each level needs `const = true`, and a folder that is called with different values is
/// a different module for each.
#[test]
fn const_variables_are_passed_from_call_to_call() {
    const DECLARED: &str = "variable \"v\" {\n  const = true\n  default = \"1.0.0\"\n}\n";
    let given =
        |name: &str, source: &str, v: &str| format!("module \"{name}\" {{\n  source = \"{source}\"\n  v = {v}\n}}\n");
    let net = |v: &str| format!("module \"net\" {{\n  source = \"acme/net/test\"\n  version = {v}\n}}\n");
    let registries = KnownRegistries::default()
        .module("net", "1.0.0", &[("main.tf", "")])
        .module("net", "1.1.0", &[("main.tf", "")])
        .module("net", "2.0.0", &[("main.tf", "")])
        .module(
            "wrap",
            "1.0.0",
            &[
                ("main.tf", &format!("{DECLARED}{}", given("inner", "./inner", "var.v"))),
                ("inner/main.tf", &format!("{DECLARED}{}", net("var.v"))),
            ],
        );
    let main = [
        DECLARED,
        &given("own", "./child", "var.v"),
        &given("other", "./child", "local.two"),
        &given("through", "acme/wrap/test", "\"1.1.0\""),
        "locals {\n  two = \"2.0.0\"\n}\n",
    ]
    .concat();
    let child = format!("{DECLARED}{}", net("var.v"));
    let files = [("main.tf", main.as_str()), ("child/main.tf", &child)];
    let archives = ["acme/net/test@1.0.0", "acme/net/test@1.1.0", "acme/net/test@2.0.0", "acme/wrap/test@1.0.0"];
    assert_resolved(&run(&configurations(&files, &[""], Some(ClientKind::Terraform)), &registries), &archives, &[]);

    let with_values = [&files[..], &[("terraform.tfvars", "v = \"1.1.0\"\n")]].concat();
    assert_resolved(
        &run(&configurations(&with_values, &[""], Some(ClientKind::Terraform)), &registries),
        &archives[1..],
        &[],
    );

    // A value known after `init` is not a version, and hides nothing else.
    let later = main.replace("local.two", "data.x.y.z");
    let files = [("main.tf", later.as_str()), ("child/main.tf", &child)];
    let problems = ["child/main.tf … its version depends on data.x.y.z, which no client knows at init"];
    let requirements = run(&configurations(&files, &[""], Some(ClientKind::Terraform)), &registries);
    assert_resolved(&requirements, &[archives[0], archives[1], archives[3]], &problems);
}

/// Thousands of calls that differ only in variables that no source depends on.
#[test]
fn calls_with_different_irrelevant_values_share_one_folder() {
    let registries =
        KnownRegistries::default().provider("x/a", &["1.0.0"]).module("net", "1.0.0", &[("main.tf", NEEDS_A)]);
    let call =
        |number: usize| format!("module \"m{number}\" {{\n  source = \"acme/net/test\"\n  name = \"n{number}\"\n}}\n");
    let main: String = (0..5_000).map(call).collect();
    for client in [ClientKind::Terraform, ClientKind::Opentofu] {
        let main = match client {
            ClientKind::Terraform => main.clone(),
            ClientKind::Opentofu => main.replace("acme/net", "registry.terraform.io/acme/net"),
        };
        let requirements = run(&configurations(&[("main.tf", &main)], &[""], Some(client)), &registries);
        assert_eq!(problems_of(&requirements), Vec::<String>::new());
        assert_eq!(requirements.archives.len(), 2, "{client:?}");
    }
}

#[test]
fn calls_are_followed_through_packages_and_paths_and_their_constraints_are_combined() {
    let registries = KnownRegistries::default()
        .provider("x/a", &["1.0.0", "1.2.0", "1.3.0", "2.0.0"])
        .provider("hashicorp/deep", &["0.1.0", "0.2.0-rc.1"])
        .module("net", "1.0.0", &[("main.tf", "")])
        .module(
            "net",
            "1.1.0",
            &[
                ("main.tf", NEEDS_A),
                ("modules/x/main.tf", &(calls("y", "../y") + &calls("deep", "acme/deep/test//sub"))),
                ("modules/y/main.tf", &NEEDS_A.replace("~> 1.0", "!= 1.3.0")),
            ],
        )
        .module("deep", "3.0.0", &[("sub/main.tf", "resource \"deep_x\" \"y\" {}\n"), ("other/main.tf", "broken {")]);
    let main = calls("local", "./modules/local") + &calls("again", "acme/net/test");
    let local = "module \"net\" {\n  source  = \"acme/net/test//modules/x\"\n  version = \"~> 1.1\"\n}\n";
    let requirements =
        run(&configurations(&[("main.tf", &main), ("modules/local/main.tf", local)], &[""], None), &registries);
    assert_resolved(
        &requirements,
        &["hashicorp/deep@0.1.0", "x/a@1.2.0", "acme/deep/test@3.0.0", "acme/net/test@1.1.0"],
        &[],
    );
    assert_eq!(requirements.archives[3].required_by, ["main.tf:5", "modules/local/main.tf:2"]);
    assert_eq!(
        requirements.archives[1].required_by,
        [
            "registry.terraform.io/acme/net/test@1.1.0//main.tf:3",
            "registry.terraform.io/acme/net/test@1.1.0//modules/y/main.tf:3"
        ]
    );
    assert!(registries.queries.lock().values().all(|times| *times == 1), "{:?}", registries.queries.lock());
}

#[test]
fn a_subfolder_is_relative_to_the_folder_that_the_registry_names() {
    let mut registries = KnownRegistries::default().provider("hashicorp/r", &["1.0.0"]).module(
        "net",
        "1.0.0",
        &[("top/sub/main.tf", &calls("up", "../../other")), ("other/main.tf", "resource \"r_x\" \"y\" {}\n")],
    );
    registries.modules.values_mut().flat_map(BTreeMap::values_mut).for_each(|files| files.subdir = "top".to_owned());
    let main = calls("a", "acme/net/test//sub") + &calls("b", "acme/net/test//other");
    let requirements = run(&configurations(&[("main.tf", &main)], &[], None), &registries);
    assert_resolved(
        &requirements,
        &["hashicorp/r@1.0.0", "acme/net/test@1.0.0"],
        &["acme/net/test@1.0.0: the module has no file that a client reads in \"other\" [main.tf:5]"],
    );
}

#[test]
fn each_root_chooses_its_own_versions() {
    let registries = KnownRegistries::default().provider("x/a", &["1.0.0", "2.0.0"]);
    let files = [("dev/main.tf", &*NEEDS_A.replace("~> 1.0", ">= 1.0")), ("prod/main.tf", NEEDS_A)];
    let requirements = run(&configurations(&files, &["prod", "dev"], None), &registries);
    assert_resolved(&requirements, &["x/a@1.0.0", "x/a@2.0.0"], &[]);
    assert_eq!(
        (&*requirements.archives[0].required_by, &*requirements.archives[1].required_by),
        (&["prod/main.tf:3".to_owned()][..], &["dev/main.tf:3".to_owned()][..])
    );
    assert_resolved(&run(&configurations(&files, &["prod"], None), &registries), &["x/a@1.0.0"], &[]);
}

#[test]
fn without_named_roots_the_roots_are_the_folders_that_no_other_folder_calls() {
    let registries = ["a", "b", "c", "d", "e", "f", "t"]
        .iter()
        .fold(KnownRegistries::default(), |known, name| known.provider(&format!("hashicorp/{name}"), &["1.0.0"]));
    let uses = |name: &str| format!("resource \"{name}_x\" \"y\" {{}}\n");
    let files = [
        ("one/main.tf", uses("a") + &calls("m", "../shared/m")),
        ("one/tests/x.tftest.hcl", "run \"x\" {\n  module {\n    source = \"./tests/setup\"\n  }\n}\n".to_owned()),
        ("one/tests/setup/main.tf", uses("t")),
        ("shared/tests/main.tf", uses("f")),
        ("shared/m/main.tf", uses("b")),
        ("two/main.tofu", uses("c")),
        ("three/main.tf", uses("d")),
        (
            "three/.terraform.lock.hcl",
            "provider \"registry.opentofu.org/x/y\" {\n  version = \"1.0.0\"\n}\n".to_owned(),
        ),
        ("one/.terraform/modules/x/main.tf", uses("installed")),
        ("itself/main.tf", uses("e") + &calls("round", "./")),
    ];
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (*path, text.as_str())).collect();
    let requirements = run(&configurations(&files, &[], None), &registries);
    let tofu = "registry.opentofu.org/hashicorp";
    assert_resolved(
        &requirements,
        &[
            &format!("{tofu}/c@1.0.0"),
            &format!("{tofu}/d@1.0.0"),
            "hashicorp/a@1.0.0",
            "hashicorp/b@1.0.0",
            "hashicorp/e@1.0.0",
            "hashicorp/f@1.0.0",
            "hashicorp/t@1.0.0",
        ],
        &["the module called at itself/main.tf:3: the call leads back"],
    );
    let round = [("a/main.tf", &*calls("b", "../b")), ("b/main.tf", &*calls("a", "../a"))];
    assert_resolved(
        &run(&configurations(&round, &[], None), &registries),
        &[],
        &["every folder is called as a module by another one"],
    );
}

#[test]
fn cycles_and_endless_chains_of_calls_are_reported() {
    let registries = KnownRegistries::default()
        .module("a", "1.0.0", &[("main.tf", &calls("b", "acme/b/test"))])
        .module("b", "1.0.0", &[("main.tf", &calls("a", "acme/a/test"))]);
    let requirements = run(&configurations(&[("main.tf", &calls("a", "acme/a/test"))], &[], None), &registries);
    assert_resolved(
        &requirements,
        &["acme/a/test@1.0.0", "acme/b/test@1.0.0"],
        &["acme/b/test@1.0.0//main.tf:2: the call leads back"],
    );
    // A folder with two callers is not a cycle.
    let shared = [
        ("main.tf", &*(calls("a", "./a") + &calls("b", "./b"))),
        ("a/main.tf", &*calls("b", "../b")),
        ("b/main.tf", ""),
    ];
    assert_resolved(&run(&configurations(&shared, &[""], None), &registries), &[], &[]);
    let mut chain: Vec<(String, String)> =
        (0..80).map(|n| (format!("m{n}/main.tf"), calls("next", &format!("../m{}", n + 1)))).collect();
    chain.push(("m80/main.tf".to_owned(), String::new()));
    let chain: Vec<(&str, &str)> = chain.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    assert_resolved(
        &run(&configurations(&chain, &["m0"], None), &registries),
        &[],
        &["m0: modules call each other more than 64 deep"],
    );
}

#[test]
fn unavailable_items_are_listed_and_the_others_are_still_resolved() {
    let registries = KnownRegistries::default()
        .provider("x/a", &["1.0.0", "2.0.0"])
        .provider("x/pre", &["1.0.0-rc.1"])
        .provider("hashicorp/fine", &["1.0.0"])
        .module("net", "1.0.0", &[("main.tf", &calls("out", "../../x")), ("README.tf", "")]);
    let main = calls("net", "acme/net/test")
        + &calls("gone", "acme/gone/test")
        + "module \"old\" {\n  source  = \"acme/net/test\"\n  version = \"< 1\"\n}\n"
        + &calls("git", "git::https://user:secret@git.example/x")
        + &calls("missing", "./missing")
        + &calls("above", "../above")
        + &calls("b", "./b")
        + "resource \"fine_x\" \"y\" {}\nresource \"unknown_x\" \"y\" {}\n"
        + NEEDS_A
        + "provider \"pre\" {}\n";
    let main = main.replace("  }\n}\nprovider", "    pre = { source = \"x/pre\" }\n  }\n}\nprovider");
    let files = [("main.tf", main.as_str()), ("b/main.tf", &*NEEDS_A.replace("~> 1.0", ">= 2")), ("broken.tf", "x {")];
    assert_resolved(
        &run(&configurations(&files, &[""], None), &registries),
        &["hashicorp/fine@1.0.0", "acme/net/test@1.0.0"],
        &[
            "../../x: the path leads out of registry.terraform.io/acme/net/test@1.0.0 … [registry.terraform.io/acme/net/test@1.0.0//main.tf:2]",
            "../above: the path leads out of the folders that larder was given … [main.tf:",
            "./missing: \"missing\" does not exist, or has no configuration … [main.tf:",
            "broken.tf: … [broken.tf:1]",
            "git::https://git.example/x: the source bypasses registries … [main.tf:",
            "registry.terraform.io/acme/gone/test: the registry does not have … [main.tf:5]",
            "registry.terraform.io/acme/net/test@< 1: none of the 1 versions that are listed matches \"< 1\" … [main.tf:8]",
            "registry.terraform.io/hashicorp/unknown: the registry does not have",
            "registry.terraform.io/x/a@>= 2.0.0, ~> 1.0: none of the 2 versions that are listed matches all of: >= 2.0.0 (b/main.tf:3); ~> 1.0 (main.tf:",
            "registry.terraform.io/x/pre: none of the 1 versions that are listed is a release",
        ],
    );
}

#[test]
fn a_module_whose_files_are_unreadable_is_still_required() {
    let mut registries = KnownRegistries::default().module("net", "1.0.0", &[]);
    registries.modules.values_mut().for_each(|versions| {
        versions.insert("2.0.0", ModuleFiles::default());
    });
    let requirements = run(&configurations(&[("main.tf", &calls("net", "acme/net/test//x"))], &[], None), &registries);
    assert_resolved(&requirements, &["acme/net/test@2.0.0"], &["the module has no file that a client reads in \"x\""]);
}

const LOCKED: &str =
    "provider \"registry.terraform.io/x/a\" {\n  version = \"1.1.0\"\n  hashes = [\"zh:one\", \"h1:two\"]\n}\n";

/// Observed with Terraform 1.11.
#[test]
fn the_locked_version_is_chosen_before_newer_ones() {
    let registries = KnownRegistries::default().provider("x/a", &["1.0.0", "1.1.0", "1.2.0", "2.0.0"]);
    let resolve_locked = |lock: &str, main: &str| {
        run(&configurations(&[(".terraform.lock.hcl", lock), ("main.tf", main)], &[], None), &registries)
    };
    let requirements = resolve_locked(LOCKED, NEEDS_A);
    assert_resolved(&requirements, &["x/a@1.1.0"], &[]);
    assert_eq!(requirements.archives[0].hashes, [["h1:two".to_owned(), "zh:one".to_owned()]]);
    assert_resolved(
        &resolve_locked(LOCKED, &NEEDS_A.replace("~> 1.0", ">= 2")),
        &[],
        &[
            "x/a@>= 2.0.0: the lock file has 1.1.0, which does not match all of: >= 2.0.0 (main.tf:3). Run `larder lock --upgrade`",
        ],
    );
    let without_constraint = NEEDS_A.replace(", version = \"~> 1.0\"", "");
    assert_ne!(without_constraint, NEEDS_A);
    for (main, subject, mismatch) in
        [(NEEDS_A, "x/a@~> 1.0", ", which does not match all of: ~> 1.0 (main.tf:3)"), (&without_constraint, "x/a", "")]
    {
        let lock = LOCKED.replace("1.1.0", "1.1.0-rc1");
        let expected =
            format!("{subject}: the lock file has 1.1.0-rc1{mismatch}; clients take a pre-release only where");
        assert_resolved(&resolve_locked(&lock, main), &[], &[expected.as_str()]);
    }
    assert_resolved(
        &resolve_locked(&LOCKED.replace("1.1.0", "1.1.9"), NEEDS_A),
        &[],
        &["x/a@~> 1.0: the lock file has 1.1.9, which is none of the 4 versions"],
    );
    assert_resolved(
        &resolve_locked("provider \"x\" {\n}\n", NEEDS_A),
        &["x/a@1.2.0"],
        &[
            ".terraform.lock.hcl: the lock file: line 1: \"x\" is not",
            ".terraform.lock.hcl: the lock file: line 1: a provider has no version",
        ],
    );
}

#[test]
fn an_archive_keeps_the_hashes_of_every_lock_file_that_names_it() {
    let registries = KnownRegistries::default().provider("x/a", &["1.1.0"]);
    let bare = "provider \"registry.terraform.io/x/a\" {\n  version = \"1.1.0\"\n}\n";
    let other = LOCKED.replace("zh:one", "zh:other");
    let files: Vec<(String, &str)> = [LOCKED, bare, &other, LOCKED]
        .iter()
        .enumerate()
        .flat_map(|(n, lock)| [(format!("r{n}/.terraform.lock.hcl"), *lock), (format!("r{n}/main.tf"), NEEDS_A)])
        .collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
    let requirements = run(&configurations(&files, &[], None), &registries);
    assert_resolved(&requirements, &["x/a@1.1.0"], &[]);
    assert_eq!(requirements.archives[0].hashes, [["h1:two", "zh:one"], ["h1:two", "zh:other"]]);
}

#[test]
fn opentofu_uses_the_versions_that_terraform_locked() {
    let lock = "provider \"registry.terraform.io/hashicorp/a\" {\n  version = \"1.0.0\"\n  hashes = [\"zh:x\"]\n}\n";
    let registries = KnownRegistries::default().provider("hashicorp/a", &["1.0.0", "2.0.0"]);
    let files = [(".terraform.lock.hcl", lock), ("main.tf", "resource \"a_x\" \"y\" {}\n")];
    let requirements = run(&configurations(&files, &[], Some(ClientKind::Opentofu)), &registries);
    assert_resolved(&requirements, &["registry.opentofu.org/hashicorp/a@1.0.0"], &[]);
    assert_eq!(requirements.archives[0].hashes, Vec::<Vec<String>>::new());
    assert_resolved(&run(&configurations(&files, &[], None), &registries), &["hashicorp/a@1.0.0"], &[]);
}

#[test]
fn addresses_and_lock_files_require_their_own_archives() {
    let registries = KnownRegistries::default().provider("x/a", &["1.0.0", "1.1.0", "2.0.0-rc.1"]).module(
        "net",
        "1.0.0",
        &[("main.tf", "resource \"r_x\" \"y\" {}\n")],
    );
    let host = Hostname::parse("registry.terraform.io").unwrap();
    let address = |selector: &str, platforms: &[&str]| {
        let platforms = platforms.iter().map(|platform| Platform::parse(platform).unwrap()).collect();
        order(OrderEntry::Address { what: PackageSelector::parse(selector, &host).unwrap(), platforms })
    };
    assert_resolved(&run(&address("x/a", &[]), &registries), &["x/a@1.1.0"], &[]);
    assert_resolved(&run(&address("x/a@2.0.0-rc.1", &[]), &registries), &["x/a@2.0.0-rc.1"], &[]);
    assert_resolved(&run(&address("x/a@~> 1.0.0", &[]), &registries), &["x/a@1.0.0"], &[]);
    assert_resolved(&run(&address("acme/net/test", &[]), &registries), &["acme/net/test@1.0.0"], &[]);
    assert_resolved(
        &run(&address("x/a@3.0.0", &[]), &registries),
        &[],
        &["x/a@3.0.0: … is none of the 3 versions that are listed"],
    );
    assert_resolved(&run(&address("x/b", &[]), &registries), &[], &["x/b: the registry does not have"]);
    let requirements = run(&address("x/a", &["darwin_arm64", "windows_amd64"]), &registries);
    let artifacts: Vec<String> = requirements.archives.iter().map(|archive| archive.artifact.to_string()).collect();
    assert_eq!(
        artifacts,
        ["registry.terraform.io/x/a 1.1.0 (darwin_arm64)", "registry.terraform.io/x/a 1.1.0 (windows_amd64)"]
    );
    let lock_file = |text: &str| {
        order(OrderEntry::LockFile { name: "l".to_owned(), locked: lock_file::parse(text.as_bytes()).unwrap() })
    };
    let requirements = run(&lock_file(LOCKED), &registries);
    assert_resolved(&requirements, &["x/a@1.1.0"], &[]);
    assert_eq!(
        (requirements.archives[0].hashes.len(), &*requirements.archives[0].required_by),
        (1, &["l".to_owned()][..])
    );
    assert_resolved(
        &run(&lock_file(&LOCKED.replace("1.1.0", "9.0.0")), &registries),
        &[],
        &["x/a@9.0.0: … is none of the 3 versions"],
    );
}

#[test]
fn at_most_sixteen_queries_are_in_flight() {
    let names: Vec<String> = (0..100).map(|n| format!("p{n}")).collect();
    let registries = names
        .iter()
        .fold(KnownRegistries::default(), |known, name| known.provider(&format!("hashicorp/{name}"), &["1.0.0"]));
    let main: String = names.iter().map(|name| format!("resource \"{name}_x\" \"y\" {{}}\n")).collect();
    let requirements = run(&configurations(&[("main.tf", &main)], &[], None), &registries);
    assert_eq!((requirements.archives.len(), registries.most_open.load(Ordering::Relaxed)), (100, 16));
}

proptest! {
    #[test]
    fn resolving_any_files_ends_without_panic(
        files in prop::collection::btree_map(
            "(a/|b/|a/b/|tests/)?(main\\.tf|x_override\\.tf|main\\.tofu|x\\.tftest\\.hcl|main\\.tf\\.json|\\.terraform\\.lock\\.hcl)",
            "(module \"[ab]\" \\{\n  source = \"(\\./|\\.\\./|\\./a|\\.\\./b|acme/net/test|acme/net/test//x)\"\n\\}\n|resource \"a_x\" \"y\" \\{\\}\n|\\}|\\{){0,4}",
            1..8,
        ),
    ) {
        let registries = KnownRegistries::default().module("net", "1.0.0", &[("main.tf", "module \"x\" {\n  source = \"./x\"\n}\n"), ("x/main.tf", "module \"x\" {\n  source = \"../\"\n}\n")]);
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        let requirements = run(&configurations(&files, &[], None), &registries);
        prop_assert!(requirements.archives.iter().all(|archive| matches!(archive.artifact, Artifact::Module(_))));
    }
}

/// Roots that share all their modules would each visit all of them.
#[test]
fn calls_and_comparisons_are_limited_per_order() {
    let known = KnownRegistries::default();
    let queries = RegistryQueries::new(&known);
    assert_eq!((0..32).filter(|_| queries.calls.count(8192).is_ok()).count(), 32);
    assert!(queries.calls.count(1).unwrap_err().contains("name fewer folders"));
    assert_eq!((0..128).filter(|_| queries.comparisons.count(1 << 20).is_ok()).count(), 128);
    assert!(queries.comparisons.count(usize::MAX).unwrap_err().contains("name fewer folders"));
}

#[test]
fn the_texts_about_an_item_are_shortened() {
    let text = format!("resource \"a_x\" \"y\" {{\n  provider = {}\n}}\n", "É".repeat(100_000));
    let requirements = run(&configurations(&[("main.tf", &text)], &[""], None), &KnownRegistries::default());
    let [item] = requirements.unavailable.as_slice() else { panic!("{}", requirements.unavailable.len()) };
    assert!(
        item.subject.len() < 10_000 && item.reason.len() < 10_000 && item.reason.ends_with('…'),
        "{} {}",
        item.subject.len(),
        item.reason.len()
    );
}
