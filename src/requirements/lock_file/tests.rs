use proptest::prelude::*;

use super::*;

const ONE: &str = r#"# This file is maintained automatically by "terraform init".
# Manual edits may be lost in future updates.

provider "registry.terraform.io/hashicorp/null" {
  version     = "3.2.2"
  constraints = "~> 3.0"
  hashes = [
    "h1:vWAsYRd7MjYr3adj8BVKRohVfHpWQdvkIwUQ2Jf5FVM=",
    "zh:3248aae6a2198f3ec8394218d05bd5e42be59f43a3a7c0b71c66ec0df08b69e7",
  ]
}
"#;

fn problems(file: &str) -> Vec<String> {
    parse(file.as_bytes()).unwrap_err().problems()
}

#[test]
fn a_lock_file_says_which_version_and_which_hashes() {
    let locked = parse(ONE.as_bytes()).unwrap();
    let [LockedProvider { provider, version, constraints, hashes }] = &locked[..] else { panic!("{locked:?}") };
    assert_eq!(provider.to_string(), "registry.terraform.io/hashicorp/null");
    assert_eq!((version.to_string(), constraints.as_deref()), ("3.2.2".to_owned(), Some("~> 3.0")));
    assert!(hashes.len() == 2 && hashes[0].starts_with("h1:vWAs") && hashes[1].starts_with("zh:3248"), "{hashes:?}");
    assert_eq!(parse(b"# nothing yet\n").unwrap(), []);
}

#[test]
fn what_clients_refuse_is_refused() {
    let provider = |address: &str, says: &str| format!("provider \"{address}\" {{\n{says}\n}}\n");
    let says = |says: &str| provider("r.example/acme/null", says);
    let constraints = |given: &str| says(&format!("version = \"1.2.0\"\nconstraints = \"{given}\""));
    let version = "version = \"1.2.0\"";
    for (file, reason) in [
        (format!("edition = 2\n{}", says(version)), "no argument \"edition\""),
        (format!("more \"x\" {{\n}}\n{}", says(version)), "no block \"more\""),
        (says(&format!("{version}\noracle = 1")), "no argument \"oracle\""),
        (says(&format!("{version}\nmore \"x\" {{\n}}")), "no block \"more\""),
        (says("version = \"1.2\""), "unless it is written 1.2.0"),
        (constraints("~>   1.0"), "one space"),
        (constraints("~> 1"), "unless they are written \"~> 1.0\""),
        (constraints("< 2.0.0, >= 1.0.0"), "unless they are written \">= 1.0.0, < 2.0.0\""),
        (constraints("= 1.2.0"), "unless they are written \"1.2.0\""),
        (provider("r.example/Acme/null", version), "unless it is written r.example/acme/null"),
        (provider("R.example/acme/null", version), "unless it is written r.example/acme/null"),
        (provider("r.example:443/acme/null", version), "unless it is written r.example/acme/null"),
        (provider("r.example/my_acme/null", version), "is not a provider name"),
        (provider("terraform.io/builtin/terraform", version), "part of the client"),
    ] {
        let message = problems(&file);
        assert!(message.len() == 1 && message[0].contains(reason), "{file}{message:?}");
    }
    // No client reads module entries yet.
    let fine =
        format!("module \"x\" {{\n  version = \"1\"\n}}\n{}{}", constraints(""), provider("r.example/a/b", version));
    assert_eq!(parse(fine.as_bytes()).unwrap().len(), 2);
}

#[test]
fn every_problem_is_named_with_its_line() {
    let file = r#"provider "r.example/acme/null" {
  version = 1
}
provider "acme/null" {
  version = "1.0.0"
}
provider "r.example/acme/vague" {
  version = "~> 1.0"
  hashes  = "h1:x"
}
provider "r.example/acme/none" {
}
provider "r.example/acme/loose" {
  version = "1.0.0"
  hashes  = ["nothing", "h1:${x}"]
}
provider "a" "b" { version = "1.0.0" }
provider "r.example/acme/twice" { version = "1.0.0" }
provider "r.example/acme/twice" { version = "1.0.0" }
"#;
    let problems = problems(file);
    for (problem, (line, expected)) in problems.iter().zip([
        (2, "version is not a plain string"),
        (4, "is not a provider's HOST/NAMESPACE/TYPE"),
        (8, "is not a version"),
        (9, "hashes is not a list"),
        (11, "has no version"),
        (15, "\"nothing\" is not a hash"),
        (17, "not one label"),
        (19, "r.example/acme/twice stands there twice"),
    ]) {
        assert!(
            problem.starts_with(&format!("the lock file: line {line}: ")) && problem.contains(expected),
            "{problem}"
        );
    }
    assert_eq!(problems.len(), 8, "{problems:?}");
    assert!(super::tests::problems("provider {")[0].starts_with("the lock file: line 1"));
}

#[test]
fn there_is_a_bound_to_all_of_it() {
    let many: String =
        (0..257).map(|n| format!("provider \"r.example/acme/p{n}\" {{ version = \"1.0.0\" }}\n")).collect();
    assert!(problems(&many)[0].contains("line 257: there are more than 256 providers"));
    let hashes =
        |hashes: &str| format!("provider \"r.example/acme/null\" {{\nversion = \"1.0.0\"\nhashes = [{hashes}]\n}}\n");
    assert!(problems(&hashes(&"\"h1:x\",".repeat(1025)))[0].contains("there are 1025 hashes"));
    assert!(problems(&hashes(&format!("\"h1:{}\"", "x".repeat(600))))[0].contains("longer than 512"));
}

#[test]
fn no_more_is_read_than_anybody_would_write() {
    let bad = |number: usize| "provider \"x\" {\n}\n".repeat(number);
    let message = problems(&bad(1000));
    assert_eq!(message.len(), MAX_PROBLEMS + 1, "{message:?}");
    assert!(message[MAX_PROBLEMS].starts_with("the lock file: line 33: there may be more"), "{message:?}");
    let unfinished = |number: usize| format!("{ONE}{}", "provider \"r.example/a/b\" {\n}\n".repeat(number));
    assert!(problems(&unfinished(300)).len() <= MAX_PROBLEMS + 2);
    let reason = &problems(&"#".repeat(LARGEST + 1))[0];
    assert!(reason.contains("at most 256 KiB is read"), "{reason}");
}

proptest! {
    #[test]
    fn what_a_client_writes_is_read_as_it_is(
        providers in prop::collection::btree_map("[a-z]{1,8}", ("[0-9]\\.[0-9]\\.[0-9](-[a-z]{1,4})?", prop::option::of("~> [0-9]\\.[0-9]|(>=|<|!=) [0-9]\\.[0-9]\\.[0-9]"), prop::collection::vec("(h1|zh|x9):[A-Za-z0-9+/=]{1,60}", 0..6)), 0..6),
    ) {
        let mut file = "# This file is maintained automatically.\n".to_owned();
        for (name, (version, constraints, hashes)) in &providers {
            let constraints = constraints.iter().map(|text| format!("  constraints = \"{text}\"\n")).collect::<String>();
            let hashes = hashes.iter().map(|hash| format!("    \"{hash}\",\n")).collect::<String>();
            file += &format!("\nprovider \"r.example/acme/{name}\" {{\n  version     = \"{version}\"\n{constraints}  hashes = [\n{hashes}  ]\n}}\n");
        }
        let locked = parse(file.as_bytes()).unwrap();
        let read = locked.into_iter().map(|one| (one.provider.type_.to_string(), (one.version.to_string(), one.constraints, one.hashes)));
        prop_assert_eq!(read.collect::<std::collections::BTreeMap<_, _>>(), providers);
    }

    #[test]
    fn any_text_is_read_or_refused_with_a_reason(
        text in "(provider|version|hashes|constraints|\"r.example/a/b\"|\"1.0\"|[a-z]{1,3}|[\"{}\\[\\]()=\n ,:$.]){0,40}",
    ) {
        if let Err(bad) = parse(text.as_bytes()) {
            prop_assert!(!bad.problems().is_empty());
        }
    }
}
