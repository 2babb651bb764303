//! A `.terraform.lock.hcl`: the version of each provider, and the accepted hashes of its archives.

use std::collections::BTreeMap;
use std::ops::Range;

use hcl_edit::Span;
use hcl_edit::expr::Expression;
use hcl_edit::structure::{Attribute, Block, Body};
use serde::{Deserialize, Serialize};

use super::configuration;
use super::hcl::{self, BadHcl, LineIndex};
use crate::address::{Constraint, Hostname, Name, ProviderAddress, Version};

/// The largest lock file, in bytes: clients write one or two kilobytes for each provider.
pub const LARGEST: usize = 256 << 10;
/// The limit of reported problems.
const MAX_PROBLEMS: usize = 32;
/// The most providers in one file.
const MAX_PROVIDERS: usize = 256;
/// The most hashes of one provider: those of its platforms, several for each.
const MAX_HASHES: usize = 1024;
/// The longest text in it, in bytes.
const MAX_TEXT: usize = 512;
/// Address of the built-in provider.
const BUILT_IN: (&str, &str) = ("terraform.io", "builtin");
/// Quoted length of a wrong text, in characters.
const SHOWN: usize = 128;

/// One provider of a lock file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockedProvider {
    /// The provider.
    pub provider: ProviderAddress,
    /// The locked version.
    pub version: Version,
    /// Its constraints, verbatim.
    pub constraints: Option<String>,
    /// Accepted hashes as written: `h1:…`, `zh:…`. Empty if the file has none; then any archive is accepted.
    pub hashes: Vec<String>,
}

/// Every problem of a lock file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadLockFile {
    /// It is not HCL.
    #[error("the lock file: {0}")]
    Hcl(#[from] BadHcl),
    /// Invalid contents; each problem with its line.
    #[error("the lock file: {}", .0.join("; "))]
    Wrong(Vec<String>),
}

impl BadLockFile {
    /// Adds a problem.
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
/// Everything that a client would refuse: unknown members, and any form other than the one that clients write (observed
/// with Terraform 1.11.4).
pub fn parse(file: &[u8]) -> Result<Vec<LockedProvider>, BadLockFile> {
    if file.len() > LARGEST {
        let reason = format!("it has {} bytes; at most {} KiB is read", file.len(), LARGEST >> 10);
        return Err(BadLockFile::Wrong(vec![reason]));
    }
    let body = hcl::parse(file)?;
    let mut reading = LockFileReader { lines: LineIndex::of(file), problems: Vec::new() };
    reading.allow_only(&body, None, &[], &["provider", "module"]);
    let mut locked: BTreeMap<ProviderAddress, LockedProvider> = BTreeMap::new();
    for (number, block) in body.blocks().filter(|block| block.has_ident("provider")).enumerate() {
        if number == MAX_PROVIDERS {
            reading.add_problem(block.span(), &format!("there are more than {MAX_PROVIDERS} providers"));
            break;
        }
        if reading.problems.len() >= MAX_PROBLEMS {
            reading.add_problem(block.span(), "there may be more that is wrong from here on; it was not read");
            break;
        }
        let Some(one) = reading.provider(block) else { continue };
        if locked.contains_key(&one.provider) {
            reading.add_problem(block.span(), &format!("{} stands there twice", one.provider));
        }
        locked.insert(one.provider.clone(), one);
    }
    if reading.problems.is_empty() {
        Ok(locked.into_values().collect())
    } else {
        Err(BadLockFile::Wrong(reading.problems))
    }
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

    /// Returns a part, or records its problem and returns `None`.
    fn or_record<T>(&mut self, span: Option<Range<usize>>, read: Result<T, String>) -> Option<T> {
        match read {
            Ok(read) => Some(read),
            Err(problem) => {
                self.add_problem(span, &problem);
                None
            }
        }
    }

    /// Reports unknown attributes and blocks.
    fn allow_only(&mut self, body: &Body, span: Option<Range<usize>>, attributes: &[&str], blocks: &[&str]) {
        let other_attribute = body.attributes().find(|attribute| !attributes.contains(&attribute.key.as_str()));
        let other_block = body.blocks().find(|block| !blocks.contains(&block.ident.as_str()));
        if let Some(other) = other_attribute {
            self.add_problem(
                other.span().or(span.clone()),
                &format!("clients know no argument {}", shortened(other.key.as_str())),
            );
        }
        if let Some(other) = other_block {
            self.add_problem(
                other.span().or(span),
                &format!("clients know no block {}", shortened(other.ident.as_str())),
            );
        }
    }

    fn provider(&mut self, block: &Block) -> Option<LockedProvider> {
        self.allow_only(&block.body, block.span(), &["version", "constraints", "hashes"], &[]);
        let address = address(block);
        let provider = self.or_record(block.span(), address);
        let version = self.version(block);
        let constraints = block.body.get_attribute("constraints");
        let constraints = match constraints {
            None => Some(None),
            Some(attribute) => self
                .or_record(attribute.span(), text(&attribute.value, "constraints").and_then(constraints_of))
                .map(Some),
        };
        let hashes = match block.body.get_attribute("hashes") {
            None => Some(Vec::new()),
            Some(attribute) => self.hashes(attribute),
        };
        Some(LockedProvider { provider: provider?, version: version?, constraints: constraints?, hashes: hashes? })
    }

    fn version(&mut self, block: &Block) -> Option<Version> {
        let Some(attribute) = block.body.get_attribute("version") else {
            self.add_problem(block.span(), "a provider has no version");
            return None;
        };
        let read = text(&attribute.value, "version");
        let read = read.and_then(|given| match Version::parse(&given) {
            Ok(version) if version.as_str() == given => Ok(version),
            Ok(version) => {
                Err(format!("clients refuse the version {} unless it is written {version}", shortened(&given)))
            }
            Err(bad) => Err(bad.to_string()),
        });
        self.or_record(attribute.span(), read)
    }

    fn hashes(&mut self, attribute: &Attribute) -> Option<Vec<String>> {
        let Some(list) = attribute.value.as_array() else {
            self.add_problem(attribute.span(), "hashes is not a list");
            return None;
        };
        if list.len() > MAX_HASHES {
            self.add_problem(
                attribute.span(),
                &format!("there are {} hashes; at most {MAX_HASHES} can be", list.len()),
            );
            return None;
        }
        let mut hashes = Vec::with_capacity(list.len());
        for value in list.iter() {
            let read = text(value, "a hash").and_then(|hash| match hash.split_once(':') {
                Some((scheme, rest)) if !scheme.is_empty() && !rest.is_empty() => Ok(hash),
                _ => Err(format!("{} is not a hash: it begins with h1:, zh: or the like", shortened(&hash))),
            });
            hashes.push(self.or_record(value.span().or(attribute.span()), read)?);
        }
        Some(hashes)
    }
}

/// The address in a block's label, which always has its host.
fn address(block: &Block) -> Result<ProviderAddress, String> {
    let [label] = block.labels.as_slice() else {
        return Err("a provider has not one label, which is its address".to_owned());
    };
    let given = label.as_str();
    let parts: Vec<&str> = given.split('/').collect();
    let [host, namespace, type_] = parts.as_slice() else {
        return Err(format!("{} is not a provider's HOST/NAMESPACE/TYPE", shortened(given)));
    };
    if (*host, *namespace) == BUILT_IN {
        return Err(format!("{} is part of the client, and clients refuse a lock file with it", shortened(given)));
    }
    configuration::checked(namespace)?;
    configuration::checked(type_)?;
    let address = Hostname::parse(host)
        .and_then(|host| Ok(ProviderAddress { host, namespace: Name::parse(namespace)?, type_: Name::parse(type_)? }));
    let address = address.map_err(|bad| bad.to_string())?;
    let form = address.to_string();
    // Clients write a host with other than ASCII letters in Unicode.
    if given.is_ascii() && form != given && !form.contains("xn--") {
        return Err(format!("clients refuse {} unless it is written {form}", shortened(given)));
    }
    Ok(address)
}

/// Constraints as clients write them; there may be none.
fn constraints_of(given: String) -> Result<String, String> {
    if given.is_empty() {
        return Ok(given);
    }
    let each: Result<Vec<Constraint>, _> = given.split(',').map(Constraint::parse).collect();
    let form = Constraint::all(&each.map_err(|bad| bad.to_string())?).lock_file_text();
    if form != given {
        return Err(format!("clients refuse the constraints {} unless they are written {form:?}", shortened(&given)));
    }
    Ok(given)
}

/// A string without interpolation.
fn text(value: &Expression, name: &str) -> Result<String, String> {
    let text = value.as_str().ok_or_else(|| format!("{name} is not a plain string"))?;
    if text.len() > MAX_TEXT {
        return Err(format!("{name} is longer than {MAX_TEXT} bytes"));
    }
    Ok(text.to_owned())
}

fn shortened(given: &str) -> String {
    format!("{:?}", given.chars().take(SHOWN).collect::<String>())
}

#[cfg(test)]
mod tests;
