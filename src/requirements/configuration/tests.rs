use proptest::prelude::*;

use super::*;

fn files(texts: &[(&str, &str)]) -> Files {
    let mut files = Files::default();
    texts.iter().for_each(|(path, text)| files.insert(path, text.as_bytes()).unwrap());
    files
}

/// The module that Terraform reads from these files.
fn terraform(texts: &[(&str, &str)]) -> Module {
    read(&files(texts), "", ModuleRole::Root, ClientKind::Terraform, NO_PACKAGE, &VariableValues::new())
}

/// The module that OpenTofu reads from these files.
fn opentofu(texts: &[(&str, &str)]) -> Module {
    read(&files(texts), "", ModuleRole::Root, ClientKind::Opentofu, NO_PACKAGE, &VariableValues::new())
}

/// `ADDRESS CONSTRAINT` of each provider requirement, each once and sorted.
fn requirements_of(module: &Module) -> Vec<String> {
    let text = |requirement: &ProviderRequirement| match &requirement.versions {
        Some(versions) => format!("{} {versions}", requirement.provider),
        None => requirement.provider.to_string(),
    };
    let mut texts: Vec<String> = module.provider_requirements.iter().map(text).collect();
    texts.sort();
    texts.dedup();
    texts.iter().map(|text| text.trim_start_matches("registry.terraform.io/").to_owned()).collect()
}

fn calls(module: &Module) -> Vec<String> {
    let call = |call: &ModuleCall| match &call.source {
        ModuleSource::Local(path) => path.clone(),
        ModuleSource::Registry { module, subdir } => {
            format!("{module} {subdir} {}", call.versions).trim_end().to_owned()
        }
    };
    module.calls.iter().map(call).collect()
}

fn problems(module: &Module) -> Vec<String> {
    module
        .problems
        .iter()
        .map(|Problem { subject, reason, location }| format!("{location}: {subject}: {reason}"))
        .collect()
}

/// Asserts the problems of `module` in order. `…` in an expected text stands for any text.
#[track_caller]
fn assert_problems(module: &Module, expected: &[&str]) {
    let problems = problems(module);
    assert_eq!(problems.len(), expected.len(), "{problems:#?}");
    for (problem, expected) in problems.iter().zip(expected) {
        assert!(expected.split(" … ").all(|part| problem.contains(part)), "{problem:?} lacks {expected:?}");
    }
}

/// Each line was observed with Terraform 1.11.4.
#[test]
fn every_block_that_requires_a_provider_is_recognised() {
    let module = terraform(&[(
        "main.tf",
        r#"
terraform {
  required_providers {
    a    = { source = "x/a", version = ">= 1.0" }
    b    = "~> 1.2"
    c    = { configuration_aliases = [c.x] }
    d    = { "source" = "Other.Example/X/D" }
    tf   = { source = "terraform.io/builtin/terraform" }
    same = {
      version = "< 2"
      source  = "X/A"
    }
  }
  provider_meta "meta" {}
}
resource "r_x" "y" { count = 0 }
data "d_x" "y" {}
ephemeral "e_x" "y" {}
resource "noscore" "y" {}
resource "a_x" "y" {}
resource "q_x" "y" { provider = "quoted.foo" }
resource "p_x" "y" { provider = named.foo }
resource "terraform_data" "x" {}
data "terraform_remote_state" "x" { backend = "local" }
provider "pb" { version = "1.0.0" }
provider "pb" { alias = "two" }
import {
  to = i1_x.y
  id = "x"
}
import {
  to       = i2_x.y["k"]
  id       = "x"
  provider = ip.foo
}
import {
  to = r_x.y
  id = "z"
}
import {
  to = module.m.i3_x.y
  id = "z"
}
removed { from = removed_x.y }
moved {
  from = moved_x.y
  to   = moved_too_x.y
}
check "c" {
  data "cd_x" "y" {}
}
"#,
    )]);
    assert_eq!(problems(&module), Vec::<String>::new());
    assert_eq!(
        requirements_of(&module),
        [
            "other.example/x/d",
            "hashicorp/b ~> 1.2",
            "hashicorp/c",
            "hashicorp/cd",
            "hashicorp/e",
            "hashicorp/i1",
            "hashicorp/ip",
            "hashicorp/named",
            "hashicorp/noscore",
            "hashicorp/pb",
            "hashicorp/pb = 1.0.0",
            "hashicorp/quoted",
            "hashicorp/r",
            "x/a",
            "x/a < 2.0.0",
            "x/a >= 1.0.0",
        ]
    );
}

#[test]
fn an_address_without_a_host_belongs_to_the_clients_default_registry() {
    let given = [("main.tf", "resource \"r_x\" \"y\" {}\nmodule \"m\" {\n  source = \"a/b/c\"\n}\n")];
    let (terraform, opentofu) = (terraform(&given), opentofu(&given));
    assert_eq!(terraform.provider_requirements[0].provider.to_string(), "registry.terraform.io/hashicorp/r");
    assert_eq!(opentofu.provider_requirements[0].provider.to_string(), "registry.opentofu.org/hashicorp/r");
    assert_eq!(
        (calls(&terraform), calls(&opentofu)),
        (vec!["registry.terraform.io/a/b/c".to_owned()], vec!["registry.opentofu.org/a/b/c".to_owned()])
    );
}

#[test]
fn json_syntax_declares_the_same_requirements() {
    let module = terraform(&[(
        "main.tf.json",
        r#"{
  "//": "a comment",
  "terraform": [{"required_providers": [{"a": {"source": "x/a", "version": "1.0.0"}, "b": "~> 1.2"}]}],
  "resource": {"r_x": {"y": {"provider": "pp.foo"}, "z": [{}]}},
  "data": [{"d_x": {"y": {}}}],
  "module": [{"m": {"source": "./m"}}, {"n": [{"source": "a/b/c//x", "version": "1"}]}, {"o": {"source": "a/b/d", "version": null}}],
  "provider": [{"pa": {}}, {"pb": [{"alias": "x"}]}],
  "import": [{"to": "ij_x.y", "id": "x"}, {"to": "${r_x.y}", "id": "x"}],
  "check": {"c": {"data": {"cj_x": {"y": {}}}}},
  "ephemeral": {"e_x": {"y": {}}}
}"#,
    )]);
    assert_eq!(
        requirements_of(&module),
        [
            "hashicorp/b ~> 1.2",
            "hashicorp/cj",
            "hashicorp/d",
            "hashicorp/e",
            "hashicorp/ij",
            "hashicorp/pa",
            "hashicorp/pb",
            "hashicorp/pp",
            "hashicorp/r",
            "x/a = 1.0.0"
        ]
    );
    let host = "registry.terraform.io";
    assert_eq!(calls(&module), ["./m", &format!("{host}/a/b/c x 1"), &format!("{host}/a/b/d")]);
    assert_eq!(problems(&module), Vec::<String>::new());
    // A source with a version argument, even null, has to be the address of a registry.
    let module = terraform(&[("a.tf.json", r#"{"module": {"m": {"source": "./m", "version": null}}}"#)]);
    assert_problems(&module, &["a.tf.json:1: ./m: a path has no version"]);
}

/// Clients apply override files one by one, in the order of their names.
#[test]
fn override_files_change_what_other_files_declare() {
    let module = terraform(&[
        (
            "a.tf",
            r#"
terraform {
  required_providers {
    a = { source = "x/a", version = "1.0.0" }
    b = { source = "x/b", version = "1.2.0" }
  }
}
module "version" {
  source  = "acme/net/test"
  version = "1.0.0"
}
module "source" {
  source  = "acme/net/test"
  version = "1.0.0"
}
module "registry" { source = "./l" }
provider "p" { version = "1.0.0" }
resource "q_x" "y" { provider = first }
"#,
        ),
        (
            "b_override.tf",
            r#"
terraform {
  required_providers {
    b = { source = "y/b" }
    c = { source = "x/c" }
  }
}
module "version" { version = "1.2.0" }
module "source" { source = "acme/other/test" }
module "registry" {
  source  = "acme/third/test"
  version = "2.0.0"
}
provider "p" { version = "1.2.0" }
provider "new" {}
resource "q_x" "y" { provider = second }
"#,
        ),
        ("override.tf", "terraform {\n  required_providers {\n    c = { source = \"z/c\" }\n  }\n}\n"),
    ]);
    assert_eq!(problems(&module), Vec::<String>::new());
    assert_eq!(
        requirements_of(&module),
        ["hashicorp/new", "hashicorp/p = 1.2.0", "hashicorp/second", "x/a = 1.0.0", "y/b", "z/c"]
    );
    let host = "registry.terraform.io";
    assert_eq!(
        calls(&module),
        [
            format!("{host}/acme/third/test  2.0.0"),
            format!("{host}/acme/other/test  1.0.0"),
            format!("{host}/acme/net/test  1.2.0")
        ]
    );
}

#[test]
fn a_problem_has_its_line_and_hides_no_other_requirement() {
    let module = terraform(&[
        ("a.tf", "terraform {\n  required_providers {\n    a = { source = \"x/a\" }\n  }\n}\n"),
        ("b.tf", "terraform {\n  required_providers {\n    b = { source = \"x/b\" }\n  }\n}\n"),
        ("broken.tf", "resource \"x_y\" {\n"),
        (
            "main.tf",
            r#"module "local" {
  source  = "./m"
  version = "1.0"
}
module "git" {
  source = "git::https://user:secret@git.example/x.git//sub?ref=v1&token=secret"
}
module "computed" {
  source = "./${var.x}"
}
module "none" {}
module "bare" { source = "modules/x" }
module "bad" {
  source  = "a/b/c"
  version = "=> 1"
}
module "function" {
  source  = "a/b/c"
  version = file("v")
}
terraform {
  required_version = ">= 99"
}
provider "v" { version = "v1.0.0" }
resource "Ü_x" "y" {}
module "good" { source = "a/b/c" }
module "good" { source = "a/b/d" }
"#,
        ),
        ("x_override.tf", "module \"unknown\" { source = \"a/b/e\" }\n"),
    ]);
    assert_problems(
        &module,
        &[
            "broken.tf:1: broken.tf: … larder does not read this file",
            "main.tf:2: ./m: a path has no version",
            "main.tf:6: git::https://git.example/x.git//sub?ref=v1: the source bypasses registries",
            "main.tf:9: module \"computed\": … var.x, which nothing declares: write a plain string instead",
            "main.tf:11: module \"none\": the module call has no source",
            "main.tf:12: modules/x: … write \"./modules/x\"",
            "main.tf:15: a/b/c: … between commas",
            "main.tf:19: a/b/c: its version depends on the function file()",
            "main.tf:24: provider \"v\" … \"v\" in front",
            "main.tf:25: provider \"Ü\" … is not a provider name",
        ],
    );
    assert_eq!(calls(&module), ["registry.terraform.io/a/b/d", "registry.terraform.io/a/b/e"]);
    assert_eq!(requirements_of(&module), ["x/a", "x/b"]);
    assert!(!format!("{module:?}").contains("secret"));
    assert_problems(
        &opentofu(&[("main.tf", "module \"m\" {\n  source = var.x\n}\n")]),
        &["main.tf:2: module \"m\": its source depends on var.x, which nothing declares: write a plain string instead"],
    );
}

/// Terraform refuses these; larder leaves that to it, and finds what each declaration needs.
#[test]
fn a_repeated_declaration_and_a_new_one_in_an_override_file_count() {
    let module = terraform(&[
        (
            "a.tf",
            "module \"m\" { source = \"a/b/c\" }\nresource \"a_x\" \"y\" {}\nvariable \"v\" {}\nvariable \"v\" {}\n",
        ),
        (
            "b.tf",
            "module \"m\" { source = \"a/b/d\" }\nresource \"a_x\" \"y\" {}\nterraform {\n  required_version = \"< 0.1\"\n}\n",
        ),
        (
            "override.tf",
            "resource \"b_x\" \"y\" {}\nprovider \"c\" { alias = \"d\" }\nmoved {}\nimport {\n  to = e_x.y\n}\nmodule \"n\" { source = \"./n\" }\n",
        ),
    ]);
    assert_eq!(problems(&module), [""; 0]);
    assert_eq!(requirements_of(&module), ["hashicorp/a", "hashicorp/b", "hashicorp/c", "hashicorp/e"]);
    assert_eq!(calls(&module), ["registry.terraform.io/a/b/d", "./n"]);
    // Clients refuse an import in a called module.
    let called = files(&[("main.tf", "import {\n  to = a_x.y\n  id = \"x\"\n}\n")]);
    let called = read(&called, "", ModuleRole::Child, ClientKind::Terraform, NO_PACKAGE, &VariableValues::new());
    assert_eq!(called, Module::default());
}

/// Each file is within its limits; the total of a folder is limited, too.
#[test]
fn a_folder_with_too_many_declarations_is_not_read_to_its_end() {
    let many = |from: usize| (from..from + 36_000).map(|n| format!("variable \"{n}\" {{}}\n")).collect::<String>();
    let (one, two) = (many(0), many(36_000));
    let last = "resource \"a_x\" \"y\" {}\n";
    let module = terraform(&[("a.tf", &one), ("b.tf", &two), ("c.tf", last)]);
    assert_problems(&module, &["c.tf:1: c.tf: the files before this one declare too much"]);
    assert_eq!(requirements_of(&module), [""; 0]);
    assert_eq!(requirements_of(&terraform(&[("a.tf", &one), ("c.tf", last)])), ["hashicorp/a"]);
}

#[test]
fn unusual_syntax_that_clients_accept_is_read() {
    let bom = "\u{feff}terraform {\r\n  required_providers {\r\n    a = { source = \"x/a\", version : \">= 1\" }\r\n  }\r\n}\r\n";
    let module = terraform(&[
        ("bom.tf", bom),
        ("comments.tf", "# nothing\n/* here\n*/ // at all"),
        ("empty.tf", ""),
        (
            "main.tf",
            r#"
module "a" { source = "${"./a"}" }
module "b" { source = ("./b") }
module "c" { source = true ? "./c" : "./n" }
module "d" { source = "./${"d"}" }
module "e" {
  source  = "a/b/c"
  version = 1.2
}
module "f" {
  source  = "a/b/c"
  version = <<EOT
1.3.0
EOT
}
module "g" { source = ".\\g" }
locals {
  text = <<-EOT
    %{ for x in [1, 2] ~}
    ${x} %{ if x == 1 }one%{ else }more%{ endif }
    %{ endfor ~}
    source = "not/a/module"
  EOT
  splat  = var.list[*].name
  legacy = var.list.*.name
  index  = var.list.0.name
  object = { (var.key) = 1, "quoted" : 2, plain = { for k, v in var.map : k => v... if v != null } }
  call   = merge(var.a, var.b...)
  sum    = 1 + 2 * -3 % 4 >= 5 && !false || true ? "a" : "b"
  scoped = provider::time::rfc3339_parse("x")
}
"#,
        ),
    ]);
    assert_eq!(problems(&module), Vec::<String>::new());
    let host = "registry.terraform.io";
    assert_eq!(
        calls(&module),
        ["./a", "./b", "./c", "./d", &format!("{host}/a/b/c  1.2"), &format!("{host}/a/b/c  1.3.0"), "./g"]
    );
    assert_eq!(requirements_of(&module), ["x/a >= 1.0.0"]);
}

/// Terraform 1.11 accepts this file.
#[test]
fn every_form_of_hcl_syntax_is_read() {
    let module = terraform(&[(
        "main.tf",
        r##"
variable "nested" {
  type = list(object({ a = optional(string, "x"), b = map(any), }))
  default = [
    { a = "1", b = {} }, # a comment
    /* another */ { a = "2", b = { "k-1" = 1e5, k_2 = -0.5 } },
  ]
  validation {
    condition = (
      length(var.nested) > 0
      && !(contains(["a", "b"], "c"))
    )
    error_message = "It is \"quoted\", $${escaped} and %%{escaped}, \u00e9 and \\."
  }
}
locals {
  quoted   = "${lookup({ a = "b" }, "a", "${"c"}")}-${join(",", [for n in var.nested : upper(n["a"]) if n.a != ""])}"
  chained  = true ? "b" : false ? "d" : "e"
  full     = var.nested[*].b["k"][0]
  call     = format(<<-EOT
    one ${"two"}
    EOT
    , "x")
  grouped  = { for k, v in { a = 1 } : v => k... }
  ünïcode  = 1 + 2 - 3 * 4 / 5 % 6
  dash-ed  = var.nested == null || 1 <= 2
  text     = <<EOT
line with "quotes", ${trimspace(<<IN
inner
IN
)} and ~ ${~ "x" ~}
EOT
}
resource a_thing unquoted { count = 1 }
dynamic_like "x" "y" "z" {}
resource "b_thing" "x" {
  dynamic "block" {
    for_each = toset([])
    content { value = block.value }
  }
  lifecycle { ignore_changes = [tags["x"], all] }
}
"##,
    )]);
    assert_eq!(
        (problems(&module), requirements_of(&module)),
        (vec![], vec!["hashicorp/a".to_owned(), "hashicorp/b".to_owned()])
    );
}

#[test]
fn a_tofu_file_replaces_the_tf_file_of_the_same_name_for_opentofu_only() {
    let given = [
        ("a.tf", "resource \"a_x\" \"y\" {}"),
        ("a.tofu", "resource \"b_x\" \"y\" {}"),
        ("a.tf.json", "{\"resource\": {\"c_x\": {\"y\": {}}}}"),
        ("b.tofu.json", "{\"resource\": {\"d_x\": {\"y\": {}}}}"),
    ];
    assert_eq!(requirements_of(&terraform(&given)), ["hashicorp/a", "hashicorp/c"]);
    let namespace = "registry.opentofu.org/hashicorp";
    assert_eq!(
        requirements_of(&opentofu(&given)),
        [format!("{namespace}/b"), format!("{namespace}/c"), format!("{namespace}/d")]
    );
}

/// Terraform 1.11 installs the modules of test runs, but no provider that only a test configures; OpenTofu installs both.
#[test]
fn test_files_of_a_root_are_read_as_init_reads_them() {
    let test = r#"
provider "p" {}
mock_provider "mocked" {}
run "setup" {
  module { source = "./tests/setup" }
}
run "q" {
  module {
    source  = "acme/net/test"
    version = "1.0.0"
  }
}
"#;
    let given = [
        ("main.tf", ""),
        ("a.tftest.hcl", test),
        ("tests/b.tftest.json", r#"{"run": {"x": {"module": {"source": "./b"}}}}"#),
    ];
    let module = terraform(&given);
    assert_eq!(calls(&module), ["./tests/setup", "registry.terraform.io/acme/net/test  1.0.0", "./b"]);
    assert_eq!(requirements_of(&module), Vec::<String>::new());
    assert_eq!(requirements_of(&opentofu(&given)), ["registry.opentofu.org/hashicorp/p"]);
    let called = read(&files(&given), "", ModuleRole::Child, ClientKind::Terraform, NO_PACKAGE, &VariableValues::new());
    assert_eq!(called, Module::default());
}

#[test]
fn sources_are_parsed_as_the_clients_parse_them() {
    let parse = |given: &str| ModuleSource::parse(given, false, ClientKind::Terraform);
    for (given, parsed) in [
        ("a/b/c//modules/x", "registry.terraform.io/a/b/c modules/x"),
        ("a/b/c//./modules/x/", "registry.terraform.io/a/b/c modules/x"),
        ("a/b/c///modules/../modules/x", "registry.terraform.io/a/b/c modules/x"),
        ("a/b/c//", "registry.terraform.io/a/b/c "),
        ("REGISTRY.terraform.io:443/A/b_c/d1", "registry.terraform.io/A/b_c/d1 "),
        ("127.0.0.1:8443/a/b/c", "127.0.0.1:8443/a/b/c "),
        ("gitlab.com/a/b/c", "gitlab.com/a/b/c "),
        ("bücher.example/a/b/c", "xn--bcher-kva.example/a/b/c "),
    ] {
        let Ok(ModuleSource::Registry { module, subdir }) = parse(given) else { panic!("{given}: {:?}", parse(given)) };
        assert_eq!(format!("{module} {subdir}"), parsed, "{given}");
    }
    for given in ["./m/", "../m//x", "./"] {
        assert_eq!(parse(given), Ok(ModuleSource::Local(given.to_owned())));
    }
    for given in [
        "",
        ".",
        "m",
        "/m",
        "a/b",
        "a/b/C",
        "a/b_/c",
        "a/b/c/d",
        "localhost/a/b/c",
        "github.com/a/b/c",
        "a/b/c?ref=1",
        "github.com/a/b",
        "xn--bcher-kva.example/a/b/c",
        " a/b/c",
        "a/b/c//../x",
        "git@github.com:a/b.git",
        "https://x.example/a.zip",
        "s3::https://x.example/a",
        "file://m",
    ] {
        assert!(parse(given).is_err(), "{given}");
    }
    assert!(
        ModuleSource::parse("https://x.example/a.zip", true, ClientKind::Terraform)
            .unwrap_err()
            .contains("with a version")
    );
}

#[test]
fn a_shown_source_contains_no_secret() {
    for (given, shown) in [
        ("git::https://u:p@git.example/a.git//b?ref=v1&sshkey=secret", "git::https://git.example/a.git//b?ref=v1"),
        ("https://token@x.example/a.zip?X-Sig=secret", "https://x.example/a.zip"),
        ("git::ssh://git@git.example/a", "git::ssh://git@git.example/a"),
        ("git::ssh://git:secret@git.example/a", "git::ssh://git.example/a"),
        ("git@github.com:a/b.git", "git@github.com:a/b.git"),
        ("u:secret@github.com/a", "github.com/a"),
        ("a\u{1b}[31m/b", "a\u{fffd}[31m/b"),
        ("git::https://user:pa/secret@host.example/x.git", "git::https://host.example/x.git"),
        ("https://user:p?secret@host.example/x.zip", "https://…"),
        ("https://user:p#secret@host.example/x.zip", "https://…"),
        ("https://h.example/x.zip?token=a@secret", "https://…"),
        ("https://h.example/x.zip#token=secret", "https://h.example/x.zip"),
        ("secret@github.com/a/b", "github.com/a/b"),
        ("git::ssh://secret@host.example/x", "git::ssh://host.example/x"),
        ("hg::ssh://secret@host.example/x", "hg::ssh://host.example/x"),
        ("user:pa/secret@host.example/x", "host.example/x"),
        ("acme/vpc/aws@1.0", "acme/vpc/aws@1.0"),
    ] {
        assert_eq!(source::without_secrets(given), shown, "{given}");
    }
    for given in
        ["git::https://u:secret@h.example/../../../x", "secret@h.example/a/b/c", "https://h.example/a?x=secret"]
    {
        for has_version in [true, false] {
            let refused = ModuleSource::parse(given, has_version, ClientKind::Terraform).unwrap_err();
            assert!(!refused.contains("secret"), "{refused}");
        }
    }
}

#[test]
fn an_absolute_path_is_refused_as_a_source() {
    for given in ["/opt/modules/x", "file:///opt/modules/x", "git::file:///opt/x.git"] {
        let refused = ModuleSource::parse(given, false, ClientKind::Terraform).unwrap_err();
        assert!(refused.contains("absolute path"), "{refused}");
    }
}

/// Terraform 1.11.4 refuses each.
#[test]
fn entries_of_required_providers_that_clients_refuse_are_problems() {
    for (entry, reason) in [
        ("a = { source = \"x/a\", version = [] }", "version is not a plain string"),
        ("a = { source = null }", "source is not a plain string"),
        ("D = { source = \"x/a\" }", "lower case"),
        ("my_a = { source = \"x/a\" }", "not a provider name"),
        ("my--a = { source = \"x/a\" }", "not a provider name"),
        ("a = { source = \"x/my_a\" }", "not a provider name"),
        ("a = { source = \"_x/a\" }", "not a provider's namespace"),
        ("a = { source = \"x/a\", version = \">=  1.0\" }", "one space"),
    ] {
        let text = format!("terraform {{\n  required_providers {{\n    {entry}\n  }}\n}}\n");
        assert_problems(&terraform(&[("main.tf", &text)]), &[&format!("main.tf:3: … {reason}")]);
    }
    let json = r#"{"terraform": {"required_providers": {"a": {"source": "x/a", "version": 1.2}}}}"#;
    assert_eq!(requirements_of(&terraform(&[("main.tf.json", json)])), ["x/a = 1.2.0"]);
    assert_problems(&terraform(&[("main.tf.json", &format!("\u{feff}{json}"))]), &["not JSON"]);
    assert_eq!(problems(&terraform(&[("main.tf", "\u{feff}locals {}\n")])), [""; 0]);
}

#[test]
fn an_unreadable_file_is_a_problem_of_its_folder_only() {
    let mut files = files(&[("main.tf", "resource \"r_x\" \"y\" {}\n"), ("b/main.tf", "")]);
    files.insert("b/odd.tf", &[0xff]).unwrap();
    files.insert("b/large.tf", &vec![b'#'; (1 << 20) + 1]).unwrap();
    let read_folder =
        |folder| read(&files, folder, ModuleRole::Root, ClientKind::Terraform, NO_PACKAGE, &VariableValues::new());
    assert_eq!(
        (problems(&read_folder("")), requirements_of(&read_folder(""))),
        (vec![], vec!["hashicorp/r".to_owned()])
    );
    assert_problems(&read_folder("b"), &["b/large.tf:1: … more than 1 MiB", "b/odd.tf:1: … not UTF-8"]);
}

proptest! {
    #[test]
    fn reading_any_text_ends_without_panic(
        name in "(main|a_override|override)\\.(tf|tf\\.json|tofu|tofu\\.json|tftest\\.hcl)",
        text in "\\PC{0,80}|(module|provider|required_providers|terraform|resource|import|\"[a-z./$%{}]{0,6}\"|source|version|=|[{}\\[\\]()\n ,:?]){0,60}",
    ) {
        let given = files(&[(&name, &text), ("b.tf", "module \"b\" {\n  source = \"./b\"\n}\n")]);
        for client in [ClientKind::Terraform, ClientKind::Opentofu] {
            let module = read(&given, "", ModuleRole::Root, client, NO_PACKAGE, &VariableValues::new());
            // A broken file hides no call of another file.
            prop_assert!(calls(&module).contains(&"./b".to_owned()) || text.contains("module"));
        }
    }

    #[test]
    fn reading_any_json_ends_without_panic(
        text in "(\\{|\\}|\\[|\\]|\"module\":|\"terraform\":|\"required_providers\":|\"m\":|\"source\":|\"[a-z./]{0,6}\"|null|1|,){0,40}",
    ) {
        let given = files(&[("main.tf.json", &text)]);
        read(&given, "", ModuleRole::Root, ClientKind::Terraform, NO_PACKAGE, &VariableValues::new());
    }

    #[test]
    fn any_source_is_parsed_or_refused(given in "\\PC{0,60}|[a-z./:?@=-]{0,40}", has_version: bool) {
        let _ = ModuleSource::parse(&given, has_version, ClientKind::Opentofu);
        prop_assert!(!source::without_secrets(&given).contains(char::is_control));
    }
}

/// Variables and locals of every kind around each source.
const SURROUNDINGS: &str = r#"
variable "c" {
  const   = true
  default = "acme"
}
variable "plain" {
  default = "acme"
}
variable "never" {
  const   = false
  default = "acme"
}
variable "secret" {
  default   = "acme"
  sensitive = true
}
variable "unset" {
  const = true
}
variable "list" {
  const   = true
  default = ["zero", "one"]
}
locals {
  whole  = "${var.c}/vpc/aws"
  again  = local.whole
  map    = { vpc = "acme/vpc/aws", other = var.plain, 2 = "two" }
  "name" = "vpc"
  round  = local.trip
  trip   = local.round
  alone  = "acme/vpc/aws"
  flag   = var.c == "acme" && !(var.c != "acme")
}
"#;

/// The source of one module call, or its problem.
fn source_of(source: &str, client: ClientKind) -> String {
    let text = format!("{SURROUNDINGS}\nmodule \"m\" {{\n  source = {source}\n}}\n").replace("\"name\" =", "name =");
    let given = files(&[("main.tf", &text)]);
    let module = read(&given, "", ModuleRole::Root, client, NO_PACKAGE, &VariableValues::new());
    match (&module.calls[..], problems(&module).as_slice()) {
        ([call], []) => match &call.source {
            ModuleSource::Local(path) => path.clone(),
            ModuleSource::Registry { module, .. } => {
                module.to_string().replace("registry.terraform.io/", "").replace("registry.opentofu.org/", "")
            }
        },
        ([], [problem]) => problem.clone(),
        (_, problems) => panic!("{source}: {problems:#?}"),
    }
}

/// Each line was observed with Terraform 1.15.5 and OpenTofu 1.12.6. `…` means: the same result as Terraform.
#[test]
fn sources_are_evaluated_as_each_client_does() {
    for (source, terraform, opentofu) in [
        ("\"${var.c}/vpc/aws\"", "acme/vpc/aws", "…"),
        ("var.c == \"acme\" ? \"acme/vpc/aws\" : \"./x\"", "acme/vpc/aws", "…"),
        ("local.flag ? \"acme/vpc/aws\" : \"./x\"", "acme/vpc/aws", "…"),
        ("local.again", "acme/vpc/aws", "…"),
        ("local.alone", "acme/vpc/aws", "…"),
        ("local.map.vpc", "acme/vpc/aws", "…"),
        ("local.map[local.name]", "acme/vpc/aws", "…"),
        ("\"./${local.map[2]}/${var.list[1]}\"", "./two/one", "…"),
        ("\"./${var.list.0}\"", "./zero", "…"),
        ("\"${path.module}/sub\"", "./sub", "…"),
        ("\"${path.root}/sub\"", "./sub", "…"),
        ("format(\"%s/%s/aws\", var.c, lower(\"VPC\"))", "acme/vpc/aws", "…"),
        ("join(\"/\", [var.c, \"vpc\", trimspace(\" aws \")])", "acme/vpc/aws", "…"),
        ("lookup(local.map, \"nothing\", \"./x\")", "./x", "…"),
        ("replace(\"./a-b\", \"-\", \"_\")", "./a_b", "…"),
        ("coalesce(null, \"\", \"./x\")", "./x", "…"),
        ("\"./${trimprefix(\"v1.0\", \"v\")}/${upper(trimsuffix(\"abc\", \"c\"))}\"", "./1.0/AB", "…"),
        ("\"${var.plain}/vpc/aws\"", "var.plain, which has no const = true", "acme/vpc/aws"),
        ("\"${local.map.other}/vpc/aws\"", "var.plain, which has no const = true", "acme/vpc/aws"),
        ("\"${var.never}/vpc/aws\"", "no const = true", "var.never, which has const = false"),
        ("\"${var.secret}/vpc/aws\"", "no const = true", "var.secret, which is sensitive or ephemeral"),
        ("\"./${terraform.workspace}\"", "terraform.workspace, which larder does not know", "./default"),
        ("\"${var.unset}/vpc/aws\"", "var.unset, which has no default and no value that larder sees", "…"),
        ("var.nobody", "var.nobody, which nothing declares", "…"),
        ("local.nobody", "local.nobody, which nothing declares", "…"),
        ("local.round", "which refers to itself", "…"),
        ("local.map.nothing", "local.map.nothing, which does not exist", "…"),
        ("var.list[7]", "does not exist", "…"),
        ("each.key", "each.key, which no client knows at init", "…"),
        ("module.other.source", "module.other.source, which no client knows at init", "…"),
        ("aws_thing.x.y", "aws_thing.x.y, which larder does not know", "…"),
        ("timestamp()", "the function timestamp()", "…"),
        ("replace(\"./a\", \"/a/\", \"b\")", "the function replace()", "…"),
        ("\"./${1 + 1}\"", "depends on arithmetic", "…"),
        ("[\"./x\"]", "its source is not a string", "…"),
        ("null", "its source is not a string", "…"),
        ("\"./${null}\"", "a value in it that is not a string", "…"),
    ] {
        let expected = [
            (ClientKind::Terraform, terraform),
            (ClientKind::Opentofu, if opentofu == "…" { terraform } else { opentofu }),
        ];
        for (client, expected) in expected {
            let result = source_of(source, client);
            let matches = if expected.contains(' ') { result.contains(expected) } else { result == expected };
            assert!(matches, "{source} to {client:?}: {result}");
        }
    }
}

/// A null version means no constraint.
#[test]
fn versions_and_templates_in_json_are_evaluated() {
    let hcl = "variable \"v\" {\n  const = true\n  default = \"~> 1.0\"\n}\nvariable \"n\" {\n  const = true\n  default = null\n}\n";
    for (version, expected) in [
        ("var.v", "registry.terraform.io/acme/vpc/aws  ~> 1.0"),
        ("\"${var.v}, < 1.4\"", "registry.terraform.io/acme/vpc/aws  ~> 1.0, < 1.4"),
        ("var.n", "registry.terraform.io/acme/vpc/aws"),
        ("null", "registry.terraform.io/acme/vpc/aws"),
    ] {
        let text = format!("{hcl}module \"m\" {{\n  source = \"acme/vpc/aws\"\n  version = {version}\n}}\n");
        let module = terraform(&[("main.tf", &text)]);
        assert_eq!((calls(&module), problems(&module)), (vec![expected.to_owned()], Vec::new()), "{version}");
    }
    let json = r#"{"variable": {"v": {"const": true, "default": {"a": ["1.2"]}}}, "locals": {"n": "vpc"},
        "module": {"m": {"source": "acme/${local.n}/aws", "version": "~> ${var.v.a[0]}"}}}"#;
    let module = terraform(&[("main.tf.json", json)]);
    assert_eq!(calls(&module), ["registry.terraform.io/acme/vpc/aws  ~> 1.2"], "{:#?}", problems(&module));
}

/// Override files change a default, and a local sees the merged value.
#[test]
fn the_values_of_override_files_and_of_tfvars_win_in_the_clients_order() {
    let main = "variable \"v\" {\n  const = true\n  default = \"a\"\n}\nmodule \"m\" {\n  source = \"./${var.v}\"\n}\n";
    let calls_with = |further_files: &[(&str, &str)]| {
        let module = terraform(&[&[("main.tf", main)], further_files].concat());
        assert_eq!(problems(&module), Vec::<String>::new());
        calls(&module)
    };
    assert_eq!(calls_with(&[]), ["./a"]);
    assert_eq!(calls_with(&[("x_override.tf", "variable \"v\" {\n  default = \"b\"\n}\n")]), ["./b"]);
    assert_eq!(calls_with(&[("terraform.tfvars", "v = \"c\"\nother = 1\n")]), ["./c"]);
    assert_eq!(calls_with(&[("terraform.tfvars", "v = \"c\"\n"), ("terraform.tfvars.json", r#"{"v": "d"}"#)]), ["./d"]);
    assert_eq!(
        calls_with(&[
            ("terraform.tfvars", "v = \"c\"\n"),
            ("a.auto.tfvars", "v = \"e\"\n"),
            ("b.auto.tfvars.json", r#"{"v": "f"}"#)
        ]),
        ["./f"]
    );
    assert_eq!(calls_with(&[("prod.tfvars", "v = \"c\"\n"), ("terraform.tfvars", "v = {")]), ["./a"]);
    // Values files of a called module are not read.
    let given = files(&[("main.tf", main), ("terraform.tfvars", "v = \"c\"\n")]);
    let given_a_value = VariableValues::from([("v".to_owned(), expression::Constant::Text("g".to_owned()))]);
    for (values, expected) in [(&VariableValues::new(), "./a"), (&given_a_value, "./g")] {
        assert_eq!(calls(&read(&given, "", ModuleRole::Child, ClientKind::Terraform, NO_PACKAGE, values)), [expected]);
    }
}

/// Values files may contain secrets.
#[test]
fn only_values_that_decide_which_modules_are_called_remain() {
    let main = "variable \"v\" {\n  const = true\n}\nvariable \"tofu\" {}\nvariable \"password\" {}\nlocals {\n  l = { path = var.tofu, never_evaluated = [for p in [var.password] : p] }\n}\nmodule \"m\" {\n  source   = \"./${var.v}/${local.l.path}\"\n  password = var.password\n}\n";
    let mut given = files(&[
        ("a/main.tf", main),
        ("a/terraform.tfvars", "v = \"x\"\npassword = \"s3cret\"\n"),
        ("a/z.auto.tfvars.json", r#"{"tofu": "y", "undeclared": "s3cret"}"#),
        ("b/main.tf", "variable \"password\" {}\n"),
        ("b/terraform.tfvars", "password = \"s3cret\"\n"),
    ]);
    keep_deciding_values(&mut given);
    let texts = serde_json::to_string(&given).unwrap();
    assert!(!texts.contains("s3cret") && !texts.contains("undeclared"), "{texts}");
    let module = read(&given, "a", ModuleRole::Root, ClientKind::Opentofu, NO_PACKAGE, &VariableValues::new());
    assert_eq!(calls(&module), ["./x/y"], "{texts}");
    assert!(given.in_folder("b").iter().all(|(name, _)| *name == "main.tf"), "{texts}");
}

proptest! {
    /// No expression takes unlimited time or memory.
    #[test]
    fn evaluating_locals_that_double_each_other_ends(depth in 1..300usize, joined in any::<bool>()) {
        let local = |number: usize| match (number == depth, joined) {
            (true, _) => format!("  l{number} = \"./xxxxxxxx\"\n"),
            (false, true) => format!("  l{number} = \"${{local.l{0}}}${{local.l{0}}}\"\n", number + 1),
            (false, false) => format!("  l{number} = [local.l{0}, local.l{0}]\n", number + 1),
        };
        let locals: String = (0..=depth).map(local).collect();
        let calls = "module \"m\" {\n  source = local.l0\n}\nmodule \"n\" {\n  source = \"./n\"\n  x = local.l0\n}\n";
        let module = terraform(&[("main.tf", &format!("locals {{\n{locals}}}\n{calls}"))]);
        prop_assert_eq!(module.calls.len() + module.problems.len(), 2);
        // Calls are compared when the called folder is looked up.
        prop_assert_eq!(&module.calls.clone(), &module.calls);
    }
}

/// A hostile file may repeat an expensive expression thousands of times.
#[test]
fn large_values_that_are_used_often_are_evaluated_quickly() {
    let list = format!("[{}]", "\"0123456789abcdef\",".repeat(20_000));
    let text = "x".repeat(4000);
    let uses = |value: &str| -> String {
        let arguments: String = (0..5_000).map(|number| format!("  a{number} = {value}\n")).collect();
        format!("module \"m\" {{\n  source = \"./m\"\n{arguments}}}\n")
    };
    for (declared, value) in [
        (format!("variable \"v\" {{\n  const = true\n  default = {list}\n}}\n"), "var.v"),
        (format!("locals {{\n  t = \"{text}\"\n  l = [{}]\n}}\n", "local.t,".repeat(4000)), "join(\",\", local.l)"),
        (format!("locals {{\n  t = \"{text}\"\n}}\n"), "replace(local.t, \"x\", local.t)"),
        (format!("locals {{\n  t = \"{text}\"\n  l = [{}]\n}}\n", "local.t,".repeat(4000)), "local.l == local.l"),
        (format!("locals {{\n  l = [{}]\n}}\n", "1,".repeat(4000)), "[local.l]"),
    ] {
        let module = terraform(&[("a.tf", &declared), ("b.tf", &uses(value))]);
        assert_eq!((calls(&module), problems(&module)), (vec!["./m".to_owned()], Vec::new()), "{value}");
        assert_eq!(module.calls[0].arguments.len(), 5_000, "{value}");
    }
}

/// A file of 1 MiB can nest a template in a string of JSON half a million times.
#[test]
fn deeply_nested_templates_in_json_are_refused() {
    for (open, close) in
        [("${", "}"), ("${(", ")}"), ("${\"", "\"}"), ("${[", "]}"), ("${f(", ")}"), ("${!", "}"), ("%{if ", "}")]
    {
        for depth in [10, 63, 100, 10_000, 100_000] {
            let text = format!("{}x{}", open.repeat(depth), close.repeat(depth));
            let json = serde_json::json!({ "module": { "m": { "source": text } } }).to_string();
            let module = terraform(&[("main.tf.json", &json)]);
            assert_eq!((module.calls.len(), module.problems.len()), (0, 1), "{open} {depth}");
        }
    }
}

/// The parser prints some texts differently than it read them, so locals are evaluated from the source itself.
#[test]
fn a_text_after_a_nested_template_is_evaluated_as_it_is_written() {
    let main = r#"
        variable "a" {
          default = "x"
        }
        locals {
          m = { src = "./x", doc = "${join(",", ["${var.a}"])} says \"hi\"" }
        }
        module "a" {
          source = local.m.src
        }
    "#;
    let module = opentofu(&[("main.tf", main)]);
    assert_eq!((calls(&module), problems(&module)), (vec!["./x".to_owned()], Vec::new()));
}

/// An import into a called module has no resource type here, but it may name a provider.
#[test]
fn an_import_that_names_only_a_provider_requires_it() {
    let main = "import {\n to = module.m[\"k\"]\n provider = foo.x\n id = \"z\"\n}\n";
    assert_eq!(requirements_of(&opentofu(&[("main.tf", main)])), ["registry.opentofu.org/hashicorp/foo"]);
}
