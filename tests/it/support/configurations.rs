//! Generated configurations: the same seed always makes the same one. Also publishes the registry that they use:
//! providers and modules in many versions; the modules call each other three levels deep.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;

use larder::address::Platform;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use super::upstream::{FakeUpstream, Module, Provider};

/// The versions of every provider.
const PROVIDER_VERSIONS: [&str; 7] = ["0.9.0", "1.0.0", "1.1.0", "1.2.0-rc.1", "1.2.3", "2.0.0-beta.2", "2.0.0"];
/// The versions of every module, in the order and spelling in which the registry lists them.
const MODULE_VERSIONS: [&str; 11] = [
    "2.0.0",
    "0.8.0",
    "v1.0",
    "1.1.0",
    "2.1.0-rc.1",
    "1.1.4",
    "1.2.0-alpha",
    "1.1.4.1",
    "latest",
    "1.1.3.9.1",
    "1.1.4rc2",
];
/// All providers. Blocks without a source imply the `hashicorp` ones.
const PROVIDERS: [&str; 6] = ["acme/p0", "acme/p1", "acme/p2", "hashicorp/p0", "hashicorp/p1", "hashicorp/p3"];
/// The names of the modules by level; modules of a level may call those of the next level.
const LEVELS: [&[&str]; 3] = [&["top", "second"], &["middle", "other"], &["bottom"]];

const PROVIDER_CONSTRAINTS: [&str; 24] = [
    ">= 0.9",
    ">= 1.0.0",
    ">=1",
    "> 0.9.0",
    "> 1.0, < 2",
    "~> 1.0",
    "~> 1",
    "~>1.1",
    "~> 1.1.0",
    "~> 1.2.0-rc.1",
    "!= 2.0.0",
    "!= 1.2.3, >= 1.0",
    "<= 1.2.3",
    "<= 2.0.0-beta.2",
    "< 2.0.0",
    "1.1",
    "= 1.0.0",
    "1.2.0-rc.1",
    "= 2.0.0-beta.2",
    ">= 1.0, ~> 1.1, != 1.1.0",
    "  >= 1.0 , <= 2.0.0  ",
    "01.02.03",
    "> 2",
    ">= 0.9.0, >= 1.0.0",
];
const MODULE_CONSTRAINTS: [&str; 30] = [
    "~> 1",
    "~> 1.0",
    "~> 1.1.0",
    "~> 0.8",
    ">= 1.0",
    ">=1.0,<2.0",
    "> 1.1.0",
    "< 2",
    "<= 1.1.4",
    "!= 2.0.0",
    "1.1.4",
    "= 1.1",
    "v1.1.0",
    ">= v1.0",
    "1.0.0.0",
    "2.1.0-rc.1",
    "=1.2.0-alpha",
    "= 2.1.0-rc.1",
    ">= 2.1.0-rc.1",
    "~> 1.2.0-alpha",
    "<= 2.1.0-rc.1",
    ">= 0.8, != 2.0.0, != 1.1.4",
    "2.0.0+build",
    "01.01.04",
    "1.1.4.1",
    "= 1.1.4.1.0",
    "> 1.1.4, < 1.2",
    "~> 1.1.3.9",
    "<= 1.1.3.10",
    "1.1.4-rc2",
];

/// An `import` block; only a root module may contain one.
const IMPORT: &str = "import {\n  to = p1_thing.imported\n  id = \"x\"\n}\n";

/// A configuration of several folders.
pub(crate) struct Configuration {
    /// The contents of its files by path.
    pub(crate) files: BTreeMap<String, String>,
    /// The root folders: those in which a client runs `init`.
    pub(crate) roots: Vec<&'static str>,
}

/// Publishes every provider and module that the configurations use, for this machine's platform.
pub(crate) fn publish(upstream: &FakeUpstream) {
    publish_for(upstream, &[&Platform::of_this_machine().to_string()]);
}

/// Publishes every provider and module that the configurations use, for these platforms.
pub(crate) fn publish_for(upstream: &FakeUpstream, platforms: &[&str]) {
    for name in PROVIDERS {
        let (namespace, name) = name.split_once('/').unwrap();
        for version in PROVIDER_VERSIONS {
            let provider = Provider::new(namespace, name).version(version).size(100);
            upstream.publish(platforms.iter().fold(provider, |provider, platform| provider.platform(platform)));
        }
    }
    for (level, names) in LEVELS.iter().enumerate() {
        for name in *names {
            for (number, version) in MODULE_VERSIONS.iter().enumerate() {
                // Each version of each module has a seed of its own.
                let mut rng = StdRng::seed_from_u64((level * 1000 + number * 10 + name.len()) as u64);
                // The module `second` lies in a subfolder of its package: some registries report such locations.
                let is_in_subfolder = *name == "second";
                let path = format!("/files/{name}-{number}.tar.gz");
                let files = module_files(level, is_in_subfolder, &mut rng);
                upstream.serve_file(&path, "application/gzip", tar_gz(&files));
                let location = if is_in_subfolder { format!("{path}//package") } else { path };
                upstream.publish_module(Module::new("acme", name, "test").version(version).at(&location));
            }
        }
    }
}

/// The files of one module, by path.
fn module_files(level: usize, is_in_subfolder: bool, rng: &mut StdRng) -> BTreeMap<String, String> {
    let mut main = required_providers(rng, 2, true);
    for name in LEVELS.get(level + 1).copied().unwrap_or_default() {
        if rng.gen_bool(0.7) {
            let constraint = *[None, Some("~> 1.0"), Some(">= 0.8"), Some("!= 1.1.4")].choose(rng).unwrap();
            main += &registry_call(name, &format!("acme/{name}/test"), constraint);
        }
    }
    main += &local_call("part", "./modules/part");
    let prefix = if is_in_subfolder { "package/" } else { "" };
    let sibling = required_providers(rng, 1, true) + &implied_providers(rng);
    BTreeMap::from([
        (format!("{prefix}main.tf"), main),
        (format!("{prefix}modules/part/main.tf"), local_call("sibling", "../sibling/")),
        (format!("{prefix}modules/sibling/main.tf"), sibling),
        (format!("{prefix}modules/never/main.tf"), "resource \"nobody_has_this\" \"x\" {}\n".to_owned()),
    ])
}

impl Configuration {
    /// The configuration of a seed. Each construct occurs for one remainder of the seed. The divisors differ, so that
    /// the constructs occur together in many combinations.
    pub(crate) fn from_seed(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let rng = &mut rng;
        let mut files = BTreeMap::new();
        let roots = if seed.is_multiple_of(3) { vec!["one", "two"] } else { vec!["one"] };
        for root in &roots {
            let mut add = |name: &str, text: String| files.insert(format!("{root}/{name}"), text);
            if seed % 7 == 3 {
                add("main.tf.json", json_syntax(rng));
            } else {
                add("main.tf", required_providers(rng, 3, false) + &module_calls(rng));
            }
            if seed % 4 == 1 {
                add("extra.tf", implied_providers(rng) + &local_call("local", "./modules/local") + IMPORT);
                add(
                    "modules/local/main.tf",
                    local_call("beside", "../beside") + &local_call("shared", "../../../shared"),
                );
                add("modules/beside/main.tf", required_providers(rng, 1, true) + &implied_providers(rng));
            }
            if seed % 5 == 2 {
                let text = format!(
                    "terraform {{\n  required_providers {{\n    p2 = {{ source = \"acme/p2\", version = \"{}\" }}\n  }}\n}}\n",
                    PROVIDER_CONSTRAINTS.choose(rng).unwrap()
                );
                add("settings_override.tf", text);
                if files.contains_key(&format!("{root}/main.tf")) {
                    let call = registry_call("always", "acme/bottom/test", MODULE_CONSTRAINTS.choose(rng).copied());
                    files.insert(format!("{root}/override.tf"), call);
                    let overridden = local_call("always", "./modules/not-there");
                    files.get_mut(&format!("{root}/main.tf")).unwrap().push_str(&overridden);
                }
            }
            let mut add = |name: &str, text: String| files.insert(format!("{root}/{name}"), text);
            if seed % 6 == 4 {
                add("tests/setup/main.tf", "resource \"p3_setup\" \"x\" {}\n".to_owned());
                let run = "run \"setup\" {\n  module {\n    source = \"./tests/setup\"\n  }\n}\n";
                add("tests/first.tftest.hcl", format!("provider \"nobody-has-this\" {{}}\n{run}"));
            }
            if seed % 4 == 2 {
                add(".terraform.lock.hcl", lock_file(rng));
            }
        }
        if seed % 4 == 1 {
            files.insert("shared/main.tf".to_owned(), implied_providers(rng));
        }
        Self { files, roots }
    }
}

/// A `required_providers` block of at most `max_providers` entries. Lenient constraints match most versions, so that
/// the constraints of other modules can be met too.
fn required_providers(rng: &mut StdRng, max_providers: usize, is_lenient: bool) -> String {
    let mut text = "terraform {\n  required_providers {\n".to_owned();
    for name in PROVIDERS.choose_multiple(rng, max_providers) {
        if rng.gen_bool(0.3) {
            continue;
        }
        let constraint = match is_lenient {
            true => *[">= 0.9", ">= 0.9.0", "!= 1.1.0", "< 3", "> 0.8"].choose(rng).unwrap(),
            false => *PROVIDER_CONSTRAINTS.choose(rng).unwrap(),
        };
        // Sources are written in several spellings; a type alone means a provider of HashiCorp.
        let (namespace, type_) = name.split_once('/').unwrap();
        let local = format!("{namespace}-{type_}");
        let entry = match (namespace, rng.gen_range(0..4)) {
            ("hashicorp", 0) => format!("{type_} = \"{constraint}\""),
            ("hashicorp", 1) => format!("{local} = {{ source = \"{type_}\", version = \"{constraint}\" }}"),
            (_, 2) => format!(
                "{local} = {{\n      version = \"{constraint}\"\n      source  = \"Registry.Terraform.io/{}/{type_}\"\n    }}",
                namespace.to_uppercase()
            ),
            (_, 3) => format!("{local} = {{ source = \"{name}\" }}"),
            _ => format!("{local} = {{ source = \"{name}\", version = \"{constraint}\" }}"),
        };
        writeln!(text, "    {entry}").unwrap();
    }
    text + "  }\n}\n"
}

/// Two random blocks; most of them imply a provider.
fn implied_providers(rng: &mut StdRng) -> String {
    let blocks = [
        "resource \"p0_thing\" \"x\" {}\n",
        "data \"p1_thing\" \"x\" {}\n",
        "ephemeral \"p3_thing\" \"x\" {}\n",
        "provider \"p3\" {}\n",
        "resource \"terraform_data\" \"x\" {}\n",
        "# nothing at all\n",
        "locals {\n  text = <<-EOT\n    resource \"nobody_has_this\" \"x\" { ${1 + 1} %{ if true }yes%{ endif }\n  EOT\n}\n",
    ];
    blocks.choose_multiple(rng, 2).copied().collect()
}

/// Up to two calls of registry modules.
fn module_calls(rng: &mut StdRng) -> String {
    let mut text = String::new();
    for number in 0..rng.gen_range(0..3) {
        let name = ["top", "second", "middle", "bottom"].choose(rng).unwrap();
        let source = match rng.gen_range(0..4) {
            0 => format!("acme/{name}/test//modules/part"),
            1 => format!("registry.terraform.io/acme/{name}/test"),
            _ => format!("acme/{name}/test"),
        };
        let constraint = rng.gen_bool(0.7).then(|| *MODULE_CONSTRAINTS.choose(rng).unwrap());
        text += &registry_call(&format!("m{number}"), &source, constraint);
    }
    text
}

fn registry_call(name: &str, source: &str, constraint: Option<&str>) -> String {
    let version = constraint.map(|constraint| format!("  version = \"{constraint}\"\n")).unwrap_or_default();
    format!("module \"{name}\" {{\n  source = \"{source}\"\n{version}}}\n")
}

fn local_call(name: &str, source: &str) -> String {
    format!("module \"{name}\" {{\n  source = \"{source}\"\n}}\n")
}

/// A root module in JSON syntax.
fn json_syntax(rng: &mut StdRng) -> String {
    let module_constraint = MODULE_CONSTRAINTS[..6].choose(rng).unwrap();
    let provider_constraint = PROVIDER_CONSTRAINTS.choose(rng).unwrap();
    serde_json::json!({
        "//": "a comment",
        "terraform": [{ "required_providers": [{ "mine": { "source": "acme/p1", "version": provider_constraint }, "p3": ">= 0.9" }] }],
        "module": { "m": [{ "source": "acme/middle/test", "version": module_constraint }], "n": { "source": "acme/bottom/test//modules/part" } },
        "resource": { "p0_thing": { "json": {} } },
        "data": [{ "other_thing": { "x": { "provider": "mine.alias" } } }],
        "provider": { "mine": [{ "alias": "alias" }] },
    })
    .to_string()
}

/// A lock file of a few providers; its versions may violate the constraints.
fn lock_file(rng: &mut StdRng) -> String {
    let mut names: Vec<&str> = PROVIDERS.choose_multiple(rng, 4).copied().collect();
    names.sort_unstable();
    let mut text = "# This file is maintained automatically.\n".to_owned();
    for name in names {
        let version = ["1.0.0", "1.1.0", "1.2.3", "1.2.3", "1.9.9"].choose(rng).unwrap();
        writeln!(text, "\nprovider \"registry.terraform.io/{name}\" {{\n  version = \"{version}\"\n}}").unwrap();
    }
    text
}

fn tar_gz(files: &BTreeMap<String, String>) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, text) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, path, text.as_bytes()).unwrap();
    }
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    out.write_all(&archive.into_inner().unwrap()).unwrap();
    out.finish().unwrap()
}
