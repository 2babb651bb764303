//! Handwritten configurations with constructs that the generator does not produce. They use the same registry as the
//! generated ones (`configurations`).

use super::configurations::Configuration;

/// The files of one configuration: paths below the root folder, and contents.
type Files = &'static [(&'static str, &'static str)];

/// Configurations that terraform installs.
const INSTALLED: &[Files] = &[
    // Blocks of every type that name a provider or seem to.
    &[("main.tf", EVERY_BLOCK), ("child/main.tf", "resource \"p3_thing\" \"x\" {}\n")],
    // Override files: a provider's entry is replaced as a whole, a module call attribute by attribute.
    &[
        (
            "main.tf",
            "terraform {\n  required_providers {\n    mine = { source = \"acme/p0\", version = \"1.0.0\" }\n    other = { source = \"acme/p1\" }\n  }\n}\nmodule \"m\" {\n  source  = \"acme/bottom/test\"\n  version = \"1.1.0\"\n}\nresource \"p0_thing\" \"x\" {\n  provider = p1\n}\nvariable \"v\" {}\n",
        ),
        (
            "a_override.tf",
            "terraform {\n  required_providers {\n    mine = { source = \"acme/p2\" }\n  }\n}\nmodule \"m\" {\n  version = \"1.1.4\"\n}\n",
        ),
        (
            "override.tf",
            "resource \"p0_thing\" \"x\" {\n  provider = p3\n}\nvariable \"v\" {\n  default = 1\n}\nprovider \"p0\" {}\n",
        ),
        (
            "z_override.tf.json",
            "{\"terraform\": {\"required_providers\": {\"other\": {\"source\": \"acme/p1\", \"version\": \"< 2\"}}}}",
        ),
        ("no-override.tf", "resource \"p1_thing\" \"x\" {}\n"),
    ],
    // JSON syntax, with comments in every place where terraform accepts them.
    &[(
        "main.tf.json",
        r#"[{"//": "x", "terraform": {"required_version": ">= 1", "required_providers": {"//": "c", "q": {"source": "acme/p0"}, "p3": "~> 1.0"}}},
            {"locals": {"//": 1, "a": 2}, "resource": {"q_thing": {"x": {"//": "c", "provider": "q.y"}}}, "variable": {"v": {"//": ["c"]}},
             "module": {"m": [{"source": "acme/bottom/test", "version": "<= 1.1.4"}]}, "provider": {"q": [{"alias": "y"}]}}]"#,
    )],
    // Files that only tofu reads, editor leftovers, and ignored files.
    &[
        ("main.tf", "resource \"p0_thing\" \"x\" {}\n"),
        ("main.tofu", "resource \"nobody_has_this\" \"x\" {}\n"),
        ("main.tf~", "resource \"nobody_has_this\" \"x\" {}\n"),
        (".hidden.tf", "resource \"nobody_has_this\" \"x\" {}\n"),
        ("main.TF", "resource \"nobody_has_this\" \"x\" {}\n"),
        ("terraform.tfvars", "x = 1\n"),
    ],
    // Providers that are passed to modules under other names, and one local name for two providers.
    &[
        (
            "main.tf",
            "terraform {\n  required_providers {\n    p0 = { source = \"acme/p0\", version = \">= 1.0\" }\n  }\n}\nprovider \"p0\" {\n  alias = \"west\"\n}\nmodule \"m\" {\n  source = \"./m\"\n  providers = {\n    inner.a = p0.west\n    inner.b = p0\n  }\n}\nmodule \"n\" {\n  source = \"./n\"\n}\n",
        ),
        (
            "m/main.tf",
            "terraform {\n  required_providers {\n    inner = {\n      source                = \"acme/p0\"\n      version               = \"< 2\"\n      configuration_aliases = [inner.a, inner.b]\n    }\n  }\n}\n",
        ),
        (
            "n/main.tf",
            "terraform {\n  required_providers {\n    p0 = { source = \"acme/p1\", version = \"= 1.2.3\" }\n  }\n}\ndata \"p0_thing\" \"x\" {}\n",
        ),
    ],
    // One module in two versions, with `count` and `for_each`; subfolders of it; paths with `..`.
    &[
        (
            "main.tf",
            "variable \"n\" {\n  default = 0\n}\nmodule \"a\" {\n  source  = \"acme/bottom/test\"\n  version = \"1.1.0\"\n  count   = var.n > 0 ? 1 : 0\n}\nmodule \"b\" {\n  source   = \"acme/bottom/test//modules/../modules/part/\"\n  version  = \"1.1.4\"\n  for_each = toset([for k, v in { a = 1, a = 2 } : k if v > 1])\n}\nmodule \"c\" {\n  source = \"./gone/../deep//down/\"\n}\n",
        ),
        ("deep/down/main.tf", "module \"up\" {\n  source = \"../../deep/beside\"\n}\n"),
        ("deep/beside/main.tf", "resource \"p1_thing\" \"x\" {}\n"),
    ],
    // Test files: the modules of their runs, relative to the root. Other files in the test folder are ignored.
    &[
        ("main.tf", ""),
        (
            "a.tftest.hcl",
            "provider \"nobody-has-this\" {}\nmock_provider \"nobody-either\" {}\nvariables {\n  a = 1\n}\nrun \"a\" {\n  module {\n    source = \"./setup\"\n  }\n}\nrun \"b\" {\n  module {\n    source  = \"acme/bottom/test//modules/part\"\n    version = \"~> 1.0\"\n  }\n}\n",
        ),
        ("tests/b.tftest.json", "{\"run\": {\"c\": {\"module\": {\"source\": \"./tests/deep\"}}}}"),
        ("tests/beside.tf", "resource \"nobody_has_this\" \"x\" {}\n"),
        ("tests/deep/main.tf", "resource \"p0_thing\" \"x\" {}\n"),
        ("tests/below/c.tftest.hcl", "run \"never\" {\n  module {\n    source = \"./nowhere\"\n  }\n}\n"),
        ("setup/main.tf", "resource \"p1_thing\" \"x\" {}\n"),
        ("setup/d.tftest.hcl", "run \"never\" {\n  module {\n    source = \"./nowhere\"\n  }\n}\n"),
    ],
    // A pre-release that one condition names exactly also satisfies conditions with a limit below its release.
    &[(
        "main.tf",
        "terraform {\n  required_providers {\n    a = { source = \"acme/p0\", version = \"= 2.0.0-beta.2, ~> 1.0\" }\n    b = { source = \"acme/p1\", version = \"1.2.0-rc.1, ~> 1.1.0, != 1.2.3\" }\n    c = { source = \"acme/p2\", version = \"= 2.0.0-beta.2, < 2, >= 1\" }\n    d = { source = \"hashicorp/p3\", version = \"!= 1.2.3, != 2.0.0\" }\n  }\n}\n",
    )],
];

/// Configurations that terraform refuses.
const REFUSED: &[Files] = &[&[("main.tf", "resource \"p0_thing\" \"x\" {\n  provider = P1\n}\n")]];

const EVERY_BLOCK: &str = r#"terraform {
  required_providers {
    twice  = { source = "acme/p0", source = "acme/p1", version = "> 9", version = "~> 1.1.0" }
    quoted = { "source" = "acme/p2", "version" : "!= 2.0.0" }
    p0     = "~> 1.0"
  }
  provider_meta "nobody" {
    x = 1
  }
}
provider "p0" {
  alias = "west"
}
data "p0_thing" "x" {
  provider = p0.west
}
ephemeral "p1_thing" "x" {
  provider = "quoted"
}
resource "terraform_data" "x" {}
data "terraform_remote_state" "x" {
  backend = "local"
}
removed {
  from = nobody_thing.x
}
moved {
  from = nobody_thing.y
  to   = nobody_thing.z
}
import {
  to = p0_thing.imported["a"]
  id = "x"
}
import {
  to = module.child.nobody_thing.x
  id = "x"
}
module "child" {
  source = "./child"
}
check "c" {
  data "p1_thing" "checked" {}
  assert {
    condition     = var.v
    error_message = "no"
  }
}
variable "v" {
  type = object({ a = optional(string, "b"), c = list(any) })
}
locals {
  text = <<-EOT
    %{~ for x in [1] ~}
    resource "nobody_thing" "x" { source = "${jsonencode({ a = <<IN
module "m" { source = "./nowhere" }
IN
    })}" }
    %{~ endfor ~}
  EOT
  again = { a = 1, (var.v) = 2, "a" = 3, a = 4 }
  calls = provider::p0::function("x", [for v in var.v : v]...)
}
"#;

/// All handwritten configurations with a name each.
pub(crate) fn handwritten_configurations() -> Vec<(String, Configuration)> {
    let groups = [("installed", INSTALLED), ("refused", REFUSED)];
    let named =
        groups.iter().flat_map(|(name, group)| (0..).zip(*group).map(move |(n, files)| (format!("{name} {n}"), files)));
    let below_root =
        |files: &Files| files.iter().map(|(path, text)| (format!("one/{path}"), (*text).to_owned())).collect();
    named.map(|(name, files)| (name, Configuration { files: below_root(files), roots: vec!["one"] })).collect()
}
