//! What the files of one folder declare together, before it is known what it means: each thing once, as the override
//! files leave it.

use std::collections::BTreeMap;

use super::body::{Block, Body, Value};
use super::constant::Constant;
use super::which::Kind;
use super::{Place, Problem};

/// After how many problems of one folder no more is noted.
const MOST_PROBLEMS: usize = 64;

/// What an entry of `required_providers` may say.
const MEMBERS: [&str; 3] = ["source", "version", "configuration_aliases"];

/// Everything of one folder.
#[derive(Default)]
pub(super) struct Declared {
    /// Module calls, by their names.
    pub(super) calls: BTreeMap<String, Calling>,
    /// The modules that test runs call.
    pub(super) test_calls: Vec<(String, Calling)>,
    /// Entries of `required_providers`, by their local names.
    pub(super) required: BTreeMap<String, Required>,
    /// `provider` blocks, by local name and alias.
    pub(super) configured: BTreeMap<(String, String), Configured>,
    /// `provider` blocks of tests: their local names.
    pub(super) configured_by_tests: Vec<(String, Place)>,
    /// Whatever is managed or read by a provider, by its address.
    pub(super) users: BTreeMap<String, User>,
    /// `import` blocks.
    pub(super) imports: Vec<Import>,
    /// What is wrong.
    pub(super) problems: Vec<Problem>,
    /// Where the one `required_providers` block of the files that override none is.
    required_at: Option<Place>,
}

/// A value with its place.
pub(super) type Said = (Constant, Place);

/// A module call.
#[derive(Clone)]
pub(super) struct Calling {
    pub(super) source: Option<Said>,
    pub(super) version: Option<Said>,
    /// Where its source and its version were said in one block, which is where they are held against each other.
    pub(super) has_version_beside_source: bool,
    pub(super) at: Place,
}

/// An entry of `required_providers`.
pub(super) struct Required {
    pub(super) source: Option<Constant>,
    pub(super) version: Option<Constant>,
    pub(super) at: Place,
}

/// A `provider` block.
pub(super) struct Configured {
    pub(super) version: Option<Said>,
    pub(super) at: Place,
}

/// What uses a provider.
pub(super) struct User {
    pub(super) type_: String,
    /// The local name of the provider, where that is said.
    pub(super) provider: Option<String>,
    pub(super) at: Place,
}

/// An `import` block.
pub(super) struct Import {
    pub(super) to: Vec<String>,
    pub(super) provider: Option<String>,
    pub(super) at: Place,
}

impl Declared {
    /// Adds what a file says.
    pub(super) fn add(&mut self, body: &Body<'_>, kind: Kind, file: &str) {
        let body = *body;
        let at = |line| Place { file: file.to_owned(), line };
        if kind == Kind::Test {
            self.add_test(body, file);
            return;
        }
        for block in body.blocks("terraform", 0) {
            for required in block.body.blocks("required_providers", 0) {
                self.add_required(&required, kind, file);
            }
        }
        for block in body.blocks("module", 1) {
            self.add_call(&block, kind, file);
        }
        for block in body.blocks("provider", 1) {
            self.add_configured(&block, file);
        }
        for of in ["resource", "data", "ephemeral", "action"] {
            for block in body.blocks(of, 2) {
                self.add_user(of, &block, file);
            }
        }
        for check in body.blocks("check", 1) {
            for block in check.body.blocks("data", 2) {
                self.add_user("data", &block, file);
            }
        }
        for block in body.blocks("import", 0) {
            let to = block.body.attribute("to").map(|to| to.value.reference()).unwrap_or_default();
            let provider = provider_of(block.body);
            self.imports.push(Import { to, provider, at: at(block.line) });
        }
    }

    /// Notes what is wrong.
    pub(super) fn problem(&mut self, problem: Problem) {
        if self.problems.len() < MOST_PROBLEMS {
            self.problems.push(problem);
        }
    }

    fn add_required(&mut self, block: &Block<'_>, kind: Kind, file: &str) {
        let at = |line| Place { file: file.to_owned(), line };
        if kind == Kind::Primary {
            if let Some(first) = &self.required_at {
                let why =
                    format!("clients accept one required_providers block in a folder, and there is one at {first}");
                self.problem(Problem { what: "required_providers".to_owned(), why, at: at(block.line) });
            }
            self.required_at.get_or_insert(at(block.line));
        }
        for (name, entry) in block.body.attributes() {
            let at = at(entry.line);
            let required = match entry.value.members() {
                Some(members) => {
                    let member = |wanted| {
                        let found = members.iter().find(|(name, _)| name == wanted);
                        found.map(|(_, attribute)| attribute.value.plain_text())
                    };
                    if let Some((other, _)) = members.iter().find(|(name, _)| !MEMBERS.contains(&name.as_str())) {
                        let why = format!("clients refuse {other:?} in it: {} can be", MEMBERS.join(", "));
                        self.problem(Problem { what: format!("provider {name:?}"), why, at: at.clone() });
                    }
                    Required { source: member("source"), version: member("version"), at }
                }
                // As it was written before 0.13: a version alone.
                None => Required { source: None, version: Some(entry.value.constant()), at },
            };
            self.required.insert(name, required);
        }
    }

    fn add_call(&mut self, block: &Block<'_>, kind: Kind, file: &str) {
        let Some(name) = block.labels.first() else { return };
        let calling = Calling::of(block, file);
        let twice = |before: &Calling| format!("the folder calls a module {name:?} already, at {}", before.at);
        let why = match (kind, self.calls.get_mut(name)) {
            (Kind::Override, Some(before)) => {
                before.give_way_to(calling);
                return;
            }
            (Kind::Override, None) => "an override file cannot add a module, only change one".to_owned(),
            (_, Some(before)) => twice(before),
            (_, None) => {
                self.calls.insert(name.clone(), calling);
                return;
            }
        };
        self.problem(Problem { what: format!("module {name:?}"), why, at: calling.at.clone() });
        self.calls.insert(name.clone(), calling);
    }

    fn add_configured(&mut self, block: &Block<'_>, file: &str) {
        let Some(name) = block.labels.first() else { return };
        let at = |line| Place { file: file.to_owned(), line };
        let text = |name| match said(block.body, name, file) {
            Some((Constant::Text(text), _)) => text,
            _ => String::new(),
        };
        let version = said(block.body, "version", file);
        let key = (name.clone(), text("alias"));
        let configured = self.configured.entry(key).or_insert_with(|| Configured { version: None, at: at(block.line) });
        configured.version = version.or(configured.version.take());
    }

    fn add_user(&mut self, of: &str, block: &Block<'_>, file: &str) {
        let [type_, name, ..] = block.labels.as_slice() else { return };
        let at = Place { file: file.to_owned(), line: block.line };
        let user = self.users.entry(format!("{of}.{type_}.{name}"));
        let user = user.or_insert_with(|| User { type_: type_.clone(), provider: None, at });
        user.provider = provider_of(block.body).or(user.provider.take());
    }

    fn add_test(&mut self, body: Body<'_>, file: &str) {
        let at = |line| Place { file: file.to_owned(), line };
        for block in body.blocks("provider", 1) {
            self.configured_by_tests.extend(block.labels.first().map(|name| (name.clone(), at(block.line))));
        }
        for run in body.blocks("run", 1) {
            let name = run.labels.first().map(String::as_str).unwrap_or_default();
            for module in run.body.blocks("module", 0) {
                self.test_calls.push((format!("run {name:?}"), Calling::of(&module, file)));
            }
        }
    }
}

impl Calling {
    fn of(block: &Block<'_>, file: &str) -> Self {
        let at = Place { file: file.to_owned(), line: block.line };
        let (source, version) = (said(block.body, "source", file), said(block.body, "version", file));
        Self { has_version_beside_source: version.is_some() && source.is_some(), source, version, at }
    }

    fn give_way_to(&mut self, other: Self) {
        if other.source.is_some() {
            self.has_version_beside_source = other.has_version_beside_source;
            self.source = other.source;
        }
        if other.version.as_ref().is_some_and(|(version, _)| *version != Constant::Null) {
            self.version = other.version;
        }
    }
}

fn said(body: Body<'_>, name: &str, file: &str) -> Option<Said> {
    let attribute = body.attribute(name)?;
    Some((attribute.value.constant(), Place { file: file.to_owned(), line: attribute.line }))
}

/// The local name that the `provider` argument names: `aws` of `aws.west`.
fn provider_of(body: Body<'_>) -> Option<String> {
    let names = body.attribute("provider").map(|attribute| Value::reference(attribute.value))?;
    names.into_iter().next()
}
