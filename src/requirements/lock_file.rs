//! A `.terraform.lock.hcl`: the version of each provider, and the accepted hashes of its archives.

mod complete;
mod coverage;

use std::collections::BTreeMap;
use std::ops::Range;

use hcl_edit::Span;
use hcl_edit::expr::Expression;
use hcl_edit::structure::{Block, Body};
use serde::{Deserialize, Serialize};

use super::hcl::{self, BadHcl, LineIndex};
use super::{ClientKind, configuration};
use crate::address::{Constraint, ProviderAddress, Version};

pub use self::complete::{CompletedLockFile, LockChange, ProviderToLock, complete};
pub use self::coverage::{PlatformArchive, lacking_platforms};

/// The maximum size of a lock file, in bytes: clients write one or two kilobytes for each provider.
pub const MAX_LOCK_FILE_BYTES: usize = 1 << 20;
/// The maximum number of reported problems.
const MAX_PROBLEMS: usize = 32;
/// The maximum number of providers in one file.
const MAX_PROVIDERS: usize = 4096;
/// The maximum number of hashes of one provider, over all platforms.
const MAX_HASHES: usize = 16_384;
/// The maximum length of one string in a lock file, in bytes.
const MAX_TEXT_BYTES: usize = 512;
/// The maximum length of the constraints of all modules together, in bytes.
const MAX_CONSTRAINTS_BYTES: usize = 64 << 10;
/// Address of the built-in provider.
const BUILT_IN: (&str, &str) = ("terraform.io", "builtin");
/// The maximum length of a string quoted in a problem, in characters.
const MAX_QUOTED_CHARS: usize = 128;

/// One provider of a lock file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockedProvider {
    /// The provider.
    pub provider: ProviderAddress,
    /// The locked version.
    pub version: Version,
    /// The provider's constraints, verbatim.
    pub constraints: Option<String>,
    /// Accepted hashes as written: `h1:…`, `zh:…`. Empty if the file has none; then any archive is accepted.
    pub hashes: Vec<String>,
}

/// Every problem of a lock file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadLockFile {
    /// The lock file is not HCL.
    #[error("the lock file: {0}")]
    Hcl(#[from] BadHcl),
    /// Invalid contents; each problem with its line.
    #[error("the lock file: {}", .0.join("; "))]
    Wrong(Vec<String>),
}

impl BadLockFile {
    /// Each problem as a message.
    pub fn problems(&self) -> Vec<String> {
        match self {
            Self::Hcl(_) => vec![self.to_string()],
            Self::Wrong(problems) => problems.iter().map(|problem| format!("the lock file: {problem}")).collect(),
        }
    }
}

/// Parses a lock file.
///
/// # Errors
/// Everything that a client would refuse: unknown attributes and blocks, and any form other than the one that clients
/// write (observed with Terraform 1.11.4).
pub fn parse(file: &[u8]) -> Result<Vec<LockedProvider>, BadLockFile> {
    if file.len() > MAX_LOCK_FILE_BYTES {
        let reason = format!("the file has {} bytes; at most {} KiB is read", file.len(), MAX_LOCK_FILE_BYTES >> 10);
        return Err(BadLockFile::Wrong(vec![reason]));
    }
    let (body, _) = hcl::parse(file)?;
    let mut reader = LockFileReader { lines: LineIndex::of(file), problems: Vec::new() };
    reader.allow_only(&body, None, &[], &["provider", "module"]);
    let mut locked: BTreeMap<ProviderAddress, LockedProvider> = BTreeMap::new();
    for (number, block) in body.blocks().filter(|block| block.has_ident("provider")).enumerate() {
        if number == MAX_PROVIDERS {
            reader.add_problem(block.span(), &format!("there are more than {MAX_PROVIDERS} providers"));
            break;
        }
        if reader.problems.len() >= MAX_PROBLEMS {
            reader.add_problem(block.span(), "too many problems; the file was not read from here on");
            break;
        }
        let Some(entry) = reader.provider(block) else { continue };
        if locked.contains_key(&entry.provider) {
            reader.add_problem(block.span(), &format!("{} is locked twice", entry.provider));
        }
        locked.insert(entry.provider.clone(), entry);
    }
    if reader.problems.is_empty() {
        Ok(locked.into_values().collect())
    } else {
        Err(BadLockFile::Wrong(reader.problems))
    }
}

/// The text of a lock file as a client writes it: its header, the providers by address, the hashes of each as sorted text,
/// each once (`depsfile/locks_file.go`).
pub fn write(providers: &[LockedProvider], client: ClientKind) -> String {
    let mut providers: Vec<&LockedProvider> = providers.iter().collect();
    providers.sort_by(|a, b| a.provider.cmp(&b.provider));
    let mut text = format!(
        "# This file is maintained automatically by \"{} init\".\n# Manual edits may be lost in future updates.\n",
        client.program()
    );
    for LockedProvider { provider, version, constraints, hashes } in providers {
        let address = format!("{}/{}/{}", provider.host.to_unicode(), provider.namespace, provider.type_);
        let constraints = constraints.as_deref().filter(|constraints| !constraints.is_empty());
        // Clients align the values of attributes that follow each other on one line each.
        let gap = if constraints.is_some() { "    " } else { "" };
        text += &format!("\nprovider {} {{\n  version{gap} = {}\n", hcl_text(&address), hcl_text(version.as_str()));
        text.extend(constraints.map(|constraints| format!("  constraints = {}\n", hcl_text(constraints))));
        let mut hashes: Vec<&String> = hashes.iter().collect();
        hashes.sort();
        hashes.dedup();
        if !hashes.is_empty() {
            let lines = hashes.into_iter().map(|hash| format!("    {},\n", hcl_text(hash)));
            text += &format!("  hashes = [\n{}  ]\n", lines.collect::<String>());
        }
        text += "}\n";
    }
    text
}

/// A text as a string of HCL.
fn hcl_text(text: &str) -> String {
    Expression::from(text).to_string()
}

/// Parser state of a lock file.
struct LockFileReader {
    lines: LineIndex,
    problems: Vec<String>,
}

impl LockFileReader {
    fn add_problem(&mut self, span: Option<Range<usize>>, problem: &str) {
        self.problems.push(match span {
            Some(span) => format!("line {}: {problem}", self.lines.number(span.start)),
            None => problem.to_owned(),
        });
    }

    /// Returns a parsed value; records a problem and returns `None` for an error.
    fn or_record<T>(&mut self, parsed: Located<T>) -> Option<T> {
        parsed.map_err(|(span, problem)| self.add_problem(span, &problem)).ok()
    }

    /// Reports unknown attributes and blocks.
    fn allow_only(&mut self, body: &Body, span: Option<Range<usize>>, attributes: &[&str], blocks: &[&str]) {
        let attribute = body.attributes().find(|attribute| !attributes.contains(&attribute.key.as_str()));
        let block = body.blocks().find(|block| !blocks.contains(&block.ident.as_str()));
        let attribute = attribute.map(|attribute| (attribute.span(), "argument", attribute.key.as_str()));
        let block = block.map(|block| (block.span(), "block", block.ident.as_str()));
        for (own_span, kind, name) in attribute.into_iter().chain(block) {
            self.add_problem(own_span.or(span.clone()), &format!("clients know no {kind} {}", quoted(name)));
        }
    }

    fn provider(&mut self, block: &Block) -> Option<LockedProvider> {
        self.allow_only(&block.body, block.span(), &["version", "constraints", "hashes"], &[]);
        let provider = self.or_record(address(block).map_err(|problem| (block.span(), problem)));
        let version = self.or_record(version(block));
        let constraints = self.or_record(constraints(block));
        let hashes = self.or_record(hashes(block));
        Some(LockedProvider { provider: provider?, version: version?, constraints: constraints?, hashes: hashes? })
    }
}

/// A parsed part, or its problem with the position.
type Located<T> = Result<T, (Option<Range<usize>>, String)>;

fn version(block: &Block) -> Located<Version> {
    let attribute = block.body.get_attribute("version");
    let attribute = attribute.ok_or_else(|| (block.span(), "a provider has no version".to_owned()))?;
    let version = text(&attribute.value, "version").and_then(|written| match Version::parse(&written) {
        Ok(version) if version.as_str() == written => Ok(version),
        Ok(version) => Err(format!("clients refuse the version {} unless it is written {version}", quoted(&written))),
        Err(bad) => Err(bad.to_string()),
    });
    version.map_err(|problem| (attribute.span(), problem))
}

fn constraints(block: &Block) -> Located<Option<String>> {
    let Some(attribute) = block.body.get_attribute("constraints") else { return Ok(None) };
    let written = text_of_at_most(MAX_CONSTRAINTS_BYTES, &attribute.value, "constraints");
    let checked = written.and_then(check_constraints);
    checked.map(Some).map_err(|problem| (attribute.span(), problem))
}

fn hashes(block: &Block) -> Located<Vec<String>> {
    let Some(attribute) = block.body.get_attribute("hashes") else { return Ok(Vec::new()) };
    let bad = |problem: String| (attribute.span(), problem);
    let list = attribute.value.as_array().ok_or_else(|| bad("hashes is not a list".to_owned()))?;
    if list.len() > MAX_HASHES {
        return Err(bad(format!("there are {} hashes; the maximum is {MAX_HASHES}", list.len())));
    }
    let hash = |value: &Expression| {
        let hash = text(value, "a hash").and_then(|hash| match hash.split_once(':') {
            Some((scheme, digest)) if !scheme.is_empty() && !digest.is_empty() => Ok(hash),
            _ => Err(format!("{} is not a hash: a hash begins with h1:, zh: or another scheme", quoted(&hash))),
        });
        hash.map_err(|problem| (value.span().or(attribute.span()), problem))
    };
    list.iter().map(hash).collect()
}

/// The address in a block's label, which always has its host.
fn address(block: &Block) -> Result<ProviderAddress, String> {
    let [label] = block.labels.as_slice() else {
        return Err("a provider block needs exactly one label, the provider's address".to_owned());
    };
    let written = label.as_str();
    let parts: Vec<&str> = written.split('/').collect();
    let [host, namespace, type_] = parts.as_slice() else {
        return Err(format!("{} is not a provider's HOST/NAMESPACE/TYPE", quoted(written)));
    };
    if (*host, *namespace) == BUILT_IN {
        return Err(format!("{} is part of the client, and clients refuse a lock file with it", quoted(written)));
    }
    let address = configuration::parse_address([host, namespace, type_])?;
    let normalized = address.to_string();
    // Clients write a host with letters beyond ASCII in Unicode.
    if written.is_ascii() && normalized != written && !normalized.contains("xn--") {
        return Err(format!("clients refuse {} unless it is written {normalized}", quoted(written)));
    }
    Ok(address)
}

/// Checks that constraints are written as clients write them. The text may be empty.
fn check_constraints(written: String) -> Result<String, String> {
    if written.is_empty() {
        return Ok(written);
    }
    let constraints: Result<Vec<Constraint>, _> = written.split(',').map(Constraint::parse).collect();
    let normalized = Constraint::all(&constraints.map_err(|bad| bad.to_string())?).lock_file_text();
    if normalized != written {
        return Err(format!(
            "clients refuse the constraints {} unless they are written {normalized:?}",
            quoted(&written)
        ));
    }
    Ok(written)
}

/// A string without interpolation.
fn text(value: &Expression, name: &str) -> Result<String, String> {
    text_of_at_most(MAX_TEXT_BYTES, value, name)
}

/// A string without interpolation, of at most `max_bytes` bytes.
fn text_of_at_most(max_bytes: usize, value: &Expression, name: &str) -> Result<String, String> {
    let text = value.as_str().ok_or_else(|| format!("{name} is not a plain string"))?;
    if text.len() > max_bytes {
        return Err(format!("{name} is longer than {max_bytes} bytes"));
    }
    Ok(text.to_owned())
}

/// A user's text, shortened, escaped and in quotes.
fn quoted(text: &str) -> String {
    format!("{:?}", text.chars().take(MAX_QUOTED_CHARS).collect::<String>())
}

#[cfg(test)]
mod tests {
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
    fn a_file_is_written_as_clients_write_it() {
        let locked = parse(ONE.as_bytes()).unwrap();
        assert_eq!(write(&locked, ClientKind::Terraform), ONE);
        assert_eq!(write(&locked, ClientKind::Opentofu), ONE.replace("terraform init", "tofu init"));
        let unicode = "provider \"bücher.example/acme/null\" {\n  version = \"1.0.0\"\n}\n";
        let text = write(&parse(unicode.as_bytes()).unwrap(), ClientKind::Terraform);
        assert!(text.ends_with(&format!("\n\n{unicode}")), "{text}");
    }

    #[test]
    fn a_lock_file_has_versions_constraints_and_hashes() {
        let locked = parse(ONE.as_bytes()).unwrap();
        let [LockedProvider { provider, version, constraints, hashes }] = &locked[..] else { panic!("{locked:?}") };
        assert_eq!(provider.to_string(), "registry.terraform.io/hashicorp/null");
        assert_eq!((version.to_string(), constraints.as_deref()), ("3.2.2".to_owned(), Some("~> 3.0")));
        assert!(
            hashes.len() == 2 && hashes[0].starts_with("h1:vWAs") && hashes[1].starts_with("zh:3248"),
            "{hashes:?}"
        );
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
            (provider("r.example/_acme/null", version), "is not a provider's namespace"),
            (provider("r.example/acme/my_null", version), "is not a provider name"),
            (provider("terraform.io/builtin/terraform", version), "part of the client"),
        ] {
            let message = problems(&file);
            assert!(message.len() == 1 && message[0].contains(reason), "{file}{message:?}");
        }
        // No client reads module entries yet.
        let accepted = format!(
            "module \"x\" {{\n  version = \"1\"\n}}\n{}{}",
            constraints(""),
            provider("r.example/a_a/b", version)
        );
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
            (0..4097).map(|n| format!("provider \"r.example/acme/p{n}\" {{ version = \"1.0.0\" }}\n")).collect();
        assert!(problems(&many)[0].contains("line 4097: there are more than 4096 providers"));
        let hashes = |hashes: &str| {
            format!("provider \"r.example/acme/null\" {{\nversion = \"1.0.0\"\nhashes = [{hashes}]\n}}\n")
        };
        assert!(problems(&hashes(&"\"h1:x\",".repeat(16_385)))[0].contains("there are 16385 hashes"));
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
        assert!(reason.contains("at most 1024 KiB is read"), "{reason}");
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
}
