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
fn a_lock_file_has_versions_constraints_and_hashes() {
    let locked = parse(ONE.as_bytes()).unwrap();
    let [LockedProvider { provider, version, constraints, hashes }] = &locked[..] else { panic!("{locked:?}") };
    assert_eq!(provider.to_string(), "registry.terraform.io/hashicorp/null");
    assert_eq!((version.to_string(), constraints.as_deref()), ("3.2.2".to_owned(), Some("~> 3.0")));
    assert!(hashes.len() == 2 && hashes[0].starts_with("h1:vWAs") && hashes[1].starts_with("zh:3248"), "{hashes:?}");
    assert_eq!(parse(b"# nothing yet\n").unwrap(), []);
}

#[test]
fn lock_files_that_clients_refuse_are_refused() {
    let provider = |address: &str, body: &str| format!("provider \"{address}\" {{\n{body}\n}}\n");
    let null_provider = |body: &str| provider("r.example/acme/null", body);
    let constraints = |text: &str| null_provider(&format!("version = \"1.2.0\"\nconstraints = \"{text}\""));
    let version = "version = \"1.2.0\"";
    for (file, reason) in [
        (format!("edition = 2\n{}", null_provider(version)), "no argument \"edition\""),
        (format!("more \"x\" {{\n}}\n{}", null_provider(version)), "no block \"more\""),
        (null_provider(&format!("{version}\noracle = 1")), "no argument \"oracle\""),
        (null_provider(&format!("{version}\nmore \"x\" {{\n}}")), "no block \"more\""),
        (null_provider("version = \"1.2\""), "unless it is written 1.2.0"),
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
    let accepted =
        format!("module \"x\" {{\n  version = \"1\"\n}}\n{}{}", constraints(""), provider("r.example/a/b", version));
    assert_eq!(parse(accepted.as_bytes()).unwrap().len(), 2);
}

#[test]
fn every_problem_is_reported_with_its_line() {
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
        (17, "exactly one label"),
        (19, "r.example/acme/twice is locked twice"),
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
fn providers_hashes_and_strings_are_limited() {
    let many: String =
        (0..257).map(|n| format!("provider \"r.example/acme/p{n}\" {{ version = \"1.0.0\" }}\n")).collect();
    assert!(problems(&many)[0].contains("line 257: there are more than 256 providers"));
    let hashes =
        |hashes: &str| format!("provider \"r.example/acme/null\" {{\nversion = \"1.0.0\"\nhashes = [{hashes}]\n}}\n");
    assert!(problems(&hashes(&"\"h1:x\",".repeat(1025)))[0].contains("there are 1025 hashes"));
    assert!(problems(&hashes(&format!("\"h1:{}\"", "x".repeat(600))))[0].contains("longer than 512"));
}

#[test]
fn reading_stops_after_many_problems_and_beyond_the_maximum_size() {
    let bad = |number: usize| "provider \"x\" {\n}\n".repeat(number);
    let message = problems(&bad(1000));
    assert_eq!(message.len(), MAX_PROBLEMS + 1, "{message:?}");
    assert!(message[MAX_PROBLEMS].starts_with("the lock file: line 33: too many problems"), "{message:?}");
    let unfinished = |number: usize| format!("{ONE}{}", "provider \"r.example/a/b\" {\n}\n".repeat(number));
    assert!(problems(&unfinished(300)).len() <= MAX_PROBLEMS + 2);
    let reason = &problems(&"#".repeat(MAX_LOCK_FILE_BYTES + 1))[0];
    assert!(reason.contains("at most 256 KiB is read"), "{reason}");
}

proptest! {
    #[test]
    fn a_lock_file_in_the_clients_form_round_trips(
        providers in prop::collection::btree_map("[a-z]{1,8}", ("[0-9]\\.[0-9]\\.[0-9](-[a-z]{1,4})?", prop::option::of("~> [0-9]\\.[0-9]|(>=|<|!=) [0-9]\\.[0-9]\\.[0-9]"), prop::collection::vec("(h1|zh|x9):[A-Za-z0-9+/=]{1,60}", 0..6)), 0..6),
    ) {
        let mut file = "# This file is maintained automatically.\n".to_owned();
        for (name, (version, constraints, hashes)) in &providers {
            let constraints = constraints.iter().map(|text| format!("  constraints = \"{text}\"\n")).collect::<String>();
            let hashes = hashes.iter().map(|hash| format!("    \"{hash}\",\n")).collect::<String>();
            file += &format!("\nprovider \"r.example/acme/{name}\" {{\n  version     = \"{version}\"\n{constraints}  hashes = [\n{hashes}  ]\n}}\n");
        }
        let locked = parse(file.as_bytes()).unwrap();
        let read = locked.into_iter().map(|entry| (entry.provider.type_.to_string(), (entry.version.to_string(), entry.constraints, entry.hashes)));
        prop_assert_eq!(read.collect::<std::collections::BTreeMap<_, _>>(), providers);
    }

    #[test]
    fn any_text_is_parsed_or_refused_with_a_reason(
        text in "(provider|version|hashes|constraints|\"r.example/a/b\"|\"1.0\"|[a-z]{1,3}|[\"{}\\[\\]()=\n ,:$.]){0,40}",
    ) {
        if let Err(bad) = parse(text.as_bytes()) {
            prop_assert!(!bad.problems().is_empty());
        }
    }
}
