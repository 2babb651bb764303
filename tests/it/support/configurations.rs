//! Configurations by the dozen, each made of a number: the same number always makes the same one. And the registry that
//! they are about: providers and modules in many versions, which call each other three levels deep.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;

use larder::address::Platform;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use super::upstream::{FakeUpstream, Module, Provider};

/// Every provider has these versions.
const PROVIDER_VERSIONS: [&str; 7] = ["0.9.0", "1.0.0", "1.1.0", "1.2.0-rc.1", "1.2.3", "2.0.0-beta.2", "2.0.0"];
/// Every module has these; the registry lists them in this order and spelling.
const MODULE_VERSIONS: [&str; 7] = ["2.0.0", "0.8.0", "v1.0", "1.1.0", "2.1.0-rc.1", "1.1.4", "1.2.0-alpha"];
/// Providers in their own namespaces, and those that blocks imply.
const PROVIDERS: [&str; 6] = ["acme/p0", "acme/p1", "acme/p2", "hashicorp/p0", "hashicorp/p1", "hashicorp/p3"];
/// The modules, level by level.
const LEVELS: [&[&str]; 3] = [&["top", "second"], &["middle", "other"], &["bottom"]];

/// Provider constraints.
const OF_PROVIDERS: [&str; 24] = [
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
/// Module constraints.
const OF_MODULES: [&str; 24] = [
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
];

/// Only a root may have one.
const IMPORT: &str = "import {\n  to = p1_thing.imported\n  id = \"x\"\n}\n";

/// A configuration of several folders.
pub(crate) struct Configuration {
    /// Its files, by their paths.
    pub(crate) files: BTreeMap<String, String>,
    /// The folders in which `init` is run.
    pub(crate) roots: Vec<&'static str>,
}

/// Publishes everything that the configurations are about.
pub(crate) fn publish(upstream: &FakeUpstream) {
    let here = Platform::of_this_machine().to_string();
    for name in PROVIDERS {
        let (namespace, name) = name.split_once('/').unwrap();
        for version in PROVIDER_VERSIONS {
            upstream.publish(Provider::new(namespace, name).version(version).platform(&here).size(100));
        }
    }
    for (level, names) in LEVELS.iter().enumerate() {
        for name in *names {
            for (number, version) in MODULE_VERSIONS.iter().enumerate() {
                let mut chance = StdRng::seed_from_u64((level * 1000 + number * 10 + name.len()) as u64);
                // One of them is in a folder of its package, as some registries report.
                let wrapped = *name == "second";
                let path = format!("/files/{name}-{number}.tar.gz");
                let files = module(level, wrapped, &mut chance);
                upstream.serve_file(&path, "application/gzip", packed(&files));
                let location = if wrapped { format!("{path}//package") } else { path };
                upstream.publish_module(Module::new("acme", name, "test").version(version).at(&location));
            }
        }
    }
}

/// The files of a module.
fn module(level: usize, wrapped: bool, chance: &mut StdRng) -> BTreeMap<String, String> {
    let mut main = required(chance, 2, true);
    for name in LEVELS.get(level + 1).copied().unwrap_or_default() {
        if chance.gen_bool(0.7) {
            let versions = *[None, Some("~> 1.0"), Some(">= 0.8"), Some("!= 1.1.4")].choose(chance).unwrap();
            main += &registry_call(name, &format!("acme/{name}/test"), versions);
        }
    }
    main += &local_call("part", "./modules/part");
    let top = if wrapped { "package/" } else { "" };
    let sibling = required(chance, 1, true) + &uses(chance);
    BTreeMap::from([
        (format!("{top}main.tf"), main),
        (format!("{top}modules/part/main.tf"), local_call("sibling", "../sibling/")),
        (format!("{top}modules/sibling/main.tf"), sibling),
        (format!("{top}modules/never/main.tf"), "resource \"nobody_has_this\" \"x\" {}\n".to_owned()),
    ])
}

impl Configuration {
    /// The one of this number.
    pub(crate) fn of(number: u64) -> Self {
        let mut chance = StdRng::seed_from_u64(number);
        let chance = &mut chance;
        let mut files = BTreeMap::new();
        let roots = if number.is_multiple_of(3) { vec!["one", "two"] } else { vec!["one"] };
        for root in &roots {
            let mut add = |name: &str, text: String| files.insert(format!("{root}/{name}"), text);
            if number % 7 == 3 {
                add("main.tf.json", json(chance));
            } else {
                add("main.tf", required(chance, 3, false) + &calls(chance));
            }
            if number % 4 == 1 {
                add("extra.tf", uses(chance) + &local_call("local", "./modules/local") + IMPORT);
                add(
                    "modules/local/main.tf",
                    local_call("beside", "../beside") + &local_call("shared", "../../../shared"),
                );
                add("modules/beside/main.tf", required(chance, 1, true) + &uses(chance));
            }
            if number % 5 == 2 {
                let text = format!(
                    "terraform {{\n  required_providers {{\n    p2 = {{ source = \"acme/p2\", version = \"{}\" }}\n  }}\n}}\n",
                    OF_PROVIDERS.choose(chance).unwrap()
                );
                add("settings_override.tf", text);
                if files.contains_key(&format!("{root}/main.tf")) {
                    let call = registry_call("always", "acme/bottom/test", OF_MODULES.choose(chance).copied());
                    files.insert(format!("{root}/override.tf"), call);
                    let before = local_call("always", "./modules/not-there");
                    files.get_mut(&format!("{root}/main.tf")).unwrap().push_str(&before);
                }
            }
            let mut add = |name: &str, text: String| files.insert(format!("{root}/{name}"), text);
            if number % 6 == 4 {
                add("tests/setup/main.tf", "resource \"p3_setup\" \"x\" {}\n".to_owned());
                let run = "run \"setup\" {\n  module {\n    source = \"./tests/setup\"\n  }\n}\n";
                add("tests/first.tftest.hcl", format!("provider \"nobody-has-this\" {{}}\n{run}"));
            }
            if number % 4 == 2 {
                add(".terraform.lock.hcl", lock_file(chance));
            }
        }
        if number % 4 == 1 {
            files.insert("shared/main.tf".to_owned(), uses(chance));
        }
        Self { files, roots }
    }
}

/// Up to so many required providers; lenient constraints leave versions for those of other modules.
fn required(chance: &mut StdRng, most: usize, is_lenient: bool) -> String {
    let mut text = "terraform {\n  required_providers {\n".to_owned();
    for name in PROVIDERS.choose_multiple(chance, most) {
        if chance.gen_bool(0.3) {
            continue;
        }
        let constraint = match is_lenient {
            true => *[">= 0.9", ">= 0.9.0", "!= 1.1.0", "< 3", "> 0.8"].choose(chance).unwrap(),
            false => *OF_PROVIDERS.choose(chance).unwrap(),
        };
        // Two spellings of one source are one provider; by a type alone, it is HashiCorp's.
        let (namespace, type_) = name.split_once('/').unwrap();
        let local = format!("{namespace}-{type_}");
        let entry = match (namespace, chance.gen_range(0..4)) {
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

/// Blocks that imply a provider.
fn uses(chance: &mut StdRng) -> String {
    let all = [
        "resource \"p0_thing\" \"x\" {}\n",
        "data \"p1_thing\" \"x\" {}\n",
        "ephemeral \"p3_thing\" \"x\" {}\n",
        "provider \"p3\" {}\n",
        "resource \"terraform_data\" \"x\" {}\n",
        "# nothing at all\n",
        "locals {\n  text = <<-EOT\n    resource \"nobody_has_this\" \"x\" { ${1 + 1} %{ if true }yes%{ endif }\n  EOT\n}\n",
    ];
    all.choose_multiple(chance, 2).copied().collect()
}

/// Calls of modules of the registry.
fn calls(chance: &mut StdRng) -> String {
    let mut text = String::new();
    for number in 0..chance.gen_range(0..3) {
        let name = ["top", "second", "middle", "bottom"].choose(chance).unwrap();
        let source = match chance.gen_range(0..4) {
            0 => format!("acme/{name}/test//modules/part"),
            1 => format!("registry.terraform.io/acme/{name}/test"),
            _ => format!("acme/{name}/test"),
        };
        let versions = chance.gen_bool(0.7).then(|| *OF_MODULES.choose(chance).unwrap());
        text += &registry_call(&format!("m{number}"), &source, versions);
    }
    text
}

fn registry_call(name: &str, source: &str, versions: Option<&str>) -> String {
    let version = versions.map(|versions| format!("  version = \"{versions}\"\n")).unwrap_or_default();
    format!("module \"{name}\" {{\n  source = \"{source}\"\n{version}}}\n")
}

fn local_call(name: &str, source: &str) -> String {
    format!("module \"{name}\" {{\n  source = \"{source}\"\n}}\n")
}

/// A root in the other syntax.
fn json(chance: &mut StdRng) -> String {
    let versions = OF_MODULES[..6].choose(chance).unwrap();
    let constraint = OF_PROVIDERS.choose(chance).unwrap();
    serde_json::json!({
        "//": "a comment",
        "terraform": [{ "required_providers": [{ "mine": { "source": "acme/p1", "version": constraint }, "p3": ">= 0.9" }] }],
        "module": { "m": [{ "source": "acme/middle/test", "version": versions }], "n": { "source": "acme/bottom/test//modules/part" } },
        "resource": { "p0_thing": { "json": {} } },
        "data": [{ "other_thing": { "x": { "provider": "mine.alias" } } }],
        "provider": { "mine": [{ "alias": "alias" }] },
    })
    .to_string()
}

/// A lock file of a few providers, which may or may not satisfy the constraints.
fn lock_file(chance: &mut StdRng) -> String {
    let mut names: Vec<&str> = PROVIDERS.choose_multiple(chance, 4).copied().collect();
    names.sort_unstable();
    let mut text = "# This file is maintained automatically.\n".to_owned();
    for name in names {
        let version = ["1.0.0", "1.1.0", "1.2.3", "1.2.3", "1.9.9"].choose(chance).unwrap();
        writeln!(text, "\nprovider \"registry.terraform.io/{name}\" {{\n  version = \"{version}\"\n}}").unwrap();
    }
    text
}

fn packed(files: &BTreeMap<String, String>) -> Vec<u8> {
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
