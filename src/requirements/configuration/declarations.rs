//! Collects the declarations of a folder's files, with override files applied, before their meaning is known.

use std::collections::BTreeMap;

use super::block::{Block, BlockBody, Value};
use super::expression::{Constant, Formula, Variable};
use super::{FileRole, Problem, SourceLine};

/// The limit of reported problems in one folder.
const MAX_PROBLEMS: usize = 64;

/// Block types that declare something, with the number of labels that identify it: allowed once, and changed by
/// override files.
const DECLARING: [(&str, usize); 5] = [("resource", 2), ("data", 2), ("module", 1), ("variable", 1), ("output", 1)];
/// Further block types that declare something once, but that override files do not change.
const DECLARING_UNCHANGEABLE: [(&str, usize); 3] = [("ephemeral", 2), ("action", 2), ("check", 1)];
/// Block types that clients refuse in an override file.
const NEVER_OVERRIDING: [&str; 3] = ["check", "import", "moved"];

/// The limit of declarations in one folder; further files are not read.
const MAX_DECLARED: usize = 1 << 16;

/// Members of an entry of `required_providers`.
const REQUIRED_PROVIDER_MEMBERS: [&str; 3] = ["source", "version", "configuration_aliases"];

/// The declarations of one folder.
#[derive(Default)]
pub(super) struct Declarations {
    /// Module calls by name.
    pub(super) calls: BTreeMap<String, ModuleCallBlock>,
    /// Modules called by test runs.
    pub(super) test_calls: Vec<(String, ModuleCallBlock)>,
    /// Entries of `required_providers` by local name.
    pub(super) required_providers: BTreeMap<String, RequiredProvider>,
    /// `provider` blocks, by local name and alias.
    pub(super) provider_blocks: BTreeMap<(String, String), ProviderBlock>,
    /// Local names of the `provider` blocks of tests.
    pub(super) provider_blocks_in_tests: Vec<(String, SourceLine)>,
    /// The resources and data sources, by address: each uses a provider.
    pub(super) provider_uses: BTreeMap<String, ProviderUse>,
    /// `import` blocks.
    pub(super) imports: Vec<ImportBlock>,
    /// The problems of the declarations.
    pub(super) problems: Vec<Problem>,
    /// The `required_version` constraints.
    pub(super) required_versions: Vec<LocatedValue>,
    /// The variables, by name.
    pub(super) variables: BTreeMap<String, Variable>,
    /// The locals, by name.
    pub(super) locals: BTreeMap<String, Formula>,
    /// The location of the first declaration of each item that a folder may declare once.
    first_locations: BTreeMap<String, SourceLine>,
}

/// A value with its location.
pub(super) type LocatedValue = (Constant, SourceLine);

/// An expression with its location.
pub(super) type LocatedExpression = (Formula, SourceLine);

/// Arguments of a module call that are not variables of the module.
const META_ARGUMENTS: [&str; 7] =
    ["source", "version", "count", "for_each", "providers", "depends_on", "ignore_nested_deprecations"];

/// A module call.
#[derive(Clone)]
pub(super) struct ModuleCallBlock {
    pub(super) source: Option<LocatedExpression>,
    pub(super) version: Option<LocatedExpression>,
    /// Values for the module's variables.
    pub(super) arguments: BTreeMap<String, Formula>,
    /// True if source and version are in one block, which checks them against each other.
    pub(super) has_version_beside_source: bool,
    pub(super) location: SourceLine,
}

/// An entry of `required_providers`.
pub(super) struct RequiredProvider {
    pub(super) source: Option<Constant>,
    pub(super) version: Option<Constant>,
    pub(super) location: SourceLine,
}

/// A `provider` block.
pub(super) struct ProviderBlock {
    pub(super) version: Option<LocatedValue>,
    pub(super) location: SourceLine,
}

/// A use of a provider.
pub(super) struct ProviderUse {
    pub(super) type_: String,
    /// Local name of the provider, where given.
    pub(super) provider: Option<String>,
    pub(super) location: SourceLine,
}

/// An `import` block.
pub(super) struct ImportBlock {
    pub(super) target: Vec<String>,
    pub(super) provider: Option<String>,
    pub(super) location: SourceLine,
}

impl Declarations {
    /// Adds the declarations of a file.
    pub(super) fn add(&mut self, body: &BlockBody<'_>, role: FileRole, file: &str) {
        let body = *body;
        let location = |line| SourceLine { file: file.to_owned(), line };
        if role == FileRole::Test {
            self.add_test(body, file);
            return;
        }
        self.record_declarations(body, role, file);
        let terraform = body.blocks("terraform", 0);
        let versions: Vec<LocatedValue> =
            terraform.iter().filter_map(|block| located_attribute(block.body, "required_version", file)).collect();
        if role == FileRole::Override && !versions.is_empty() {
            self.required_versions.clear();
        }
        self.required_versions.extend(versions);
        for block in terraform {
            for block in block.body.blocks("required_providers", 0) {
                self.add_required_providers(&block, role, file);
            }
        }
        for block in body.blocks("module", 1) {
            self.add_call(&block, role, file);
        }
        for block in body.blocks("provider", 1) {
            self.add_provider_block(&block, file);
        }
        for block in body.blocks("variable", 1) {
            self.add_variable(&block);
        }
        for block in body.blocks("locals", 0) {
            let locals = block.body.attributes().into_iter();
            self.locals.extend(locals.map(|(name, attribute)| (name, attribute.value.formula())));
        }
        for block_type in ["resource", "data", "ephemeral", "action"] {
            for block in body.blocks(block_type, 2) {
                self.add_provider_use(block_type, &block, file);
            }
        }
        for check in body.blocks("check", 1) {
            for block in check.body.blocks("data", 2) {
                self.declare(display_name("data", &block.labels[..2]), role, location(block.line));
                self.add_provider_use("data", &block, file);
            }
        }
        for block in body.blocks("import", 0) {
            let target = block.body.attribute("to").map(|attribute| attribute.value.reference()).unwrap_or_default();
            let provider = provider_argument(block.body);
            self.imports.push(ImportBlock { target, provider, location: location(block.line) });
        }
    }

    /// Returns true if there are more declarations than larder reads.
    pub(super) fn exceed_limit(&self) -> bool {
        self.first_locations.len() > MAX_DECLARED
    }

    /// Adds a problem.
    pub(super) fn add_problem(&mut self, problem: Problem) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(problem);
        }
    }

    /// Records a file's declarations, and checks them against earlier ones.
    fn record_declarations(&mut self, body: BlockBody<'_>, role: FileRole, file: &str) {
        let location = |line| SourceLine { file: file.to_owned(), line };
        for (block_type, labels) in DECLARING {
            for block in body.blocks(block_type, labels) {
                self.declare(display_name(block_type, &block.labels[..labels]), role, location(block.line));
            }
        }
        for block in body.blocks("locals", 0) {
            for (name, attribute) in block.body.attributes() {
                self.declare(display_name("local", &[name]), role, location(attribute.line));
            }
        }
        for block in body.blocks("provider", 1) {
            let alias = alias_of(block.body, file);
            // An override file may add the first block of a provider, unlike other declarations.
            if role == FileRole::Primary || !alias.is_empty() {
                self.declare(display_name("provider", &[block.labels[0].clone(), alias]), role, location(block.line));
            }
        }
        match role {
            FileRole::Override => {
                for block_type in NEVER_OVERRIDING {
                    for block in body.blocks(block_type, 0) {
                        let reason = "clients refuse this block in an override file".to_owned();
                        self.add_problem(Problem {
                            subject: block_type.to_owned(),
                            reason,
                            location: location(block.line),
                        });
                    }
                }
            }
            FileRole::Primary | FileRole::Test => {
                for (block_type, labels) in DECLARING_UNCHANGEABLE {
                    for block in body.blocks(block_type, labels) {
                        self.declare(display_name(block_type, &block.labels[..labels]), role, location(block.line));
                    }
                }
            }
        }
    }

    /// Checks a declaration: allowed once, then only in override files.
    fn declare(&mut self, subject: String, role: FileRole, location: SourceLine) {
        let reason = match (role, self.first_locations.get(&subject)) {
            (FileRole::Override, Some(_)) => return,
            (FileRole::Override, None) => {
                "an override file cannot declare this, only change what other files declare".to_owned()
            }
            (_, Some(first)) => {
                format!("clients accept one declaration of it in a folder, and there is one at {first}")
            }
            (_, None) => {
                self.first_locations.insert(subject, location);
                return;
            }
        };
        self.add_problem(Problem { subject, reason, location });
    }

    fn add_required_providers(&mut self, block: &Block<'_>, role: FileRole, file: &str) {
        let location = |line| SourceLine { file: file.to_owned(), line };
        if role == FileRole::Primary {
            self.declare("required_providers".to_owned(), role, location(block.line));
        }
        for (name, entry) in block.body.attributes() {
            let location = location(entry.line);
            let provider = match entry.value.members() {
                Some(members) => {
                    let member = |wanted| {
                        let last = members.iter().rfind(|(name, _)| name == wanted);
                        last.map(|(_, attribute)| attribute.value.as_plain_text())
                    };
                    if let Some((other, _)) =
                        members.iter().find(|(name, _)| !REQUIRED_PROVIDER_MEMBERS.contains(&name.as_str()))
                    {
                        let reason = format!(
                            "clients refuse {other:?} in an entry of required_providers, which may have {}",
                            REQUIRED_PROVIDER_MEMBERS.join(", ")
                        );
                        self.add_problem(Problem {
                            subject: format!("provider {name:?}"),
                            reason,
                            location: location.clone(),
                        });
                    }
                    RequiredProvider { source: member("source"), version: member("version"), location }
                }
                // The form before 0.13: a version alone.
                None => {
                    let version = match entry.value.constant() {
                        Constant::Null => Constant::unknown("null"),
                        version => version,
                    };
                    RequiredProvider { source: None, version: Some(version), location }
                }
            };
            self.required_providers.insert(name, provider);
        }
    }

    fn add_call(&mut self, block: &Block<'_>, role: FileRole, file: &str) {
        let Some(name) = block.labels.first() else { return };
        let call_block = ModuleCallBlock::of(block, file);
        match (role, self.calls.get_mut(name)) {
            (FileRole::Override, Some(existing)) => existing.override_with(call_block),
            _ => drop(self.calls.insert(name.clone(), call_block)),
        }
    }

    /// Merges a variable: an override file changes only the members that it has.
    fn add_variable(&mut self, block: &Block<'_>) {
        let Some(name) = block.labels.first() else { return };
        let variable = self.variables.entry(name.clone()).or_default();
        let value_of = |name| block.body.attribute(name).map(|attribute| attribute.value.constant());
        let truth_of = |name| match value_of(name) {
            Some(Constant::Text(truth)) => Some(truth == "true"),
            Some(_) | None => None,
        };
        let is_set = |name, previous| truth_of(name).unwrap_or(previous);
        variable.is_const = truth_of("const").or(variable.is_const);
        variable.is_never_null = !is_set("nullable", !variable.is_never_null);
        variable.is_secret = is_set("sensitive", variable.is_secret) || is_set("ephemeral", variable.is_secret);
        if let Some(default) = block.body.attribute("default") {
            variable.default = Some(default.value.formula().constant());
        }
    }

    fn add_provider_block(&mut self, block: &Block<'_>, file: &str) {
        let Some(name) = block.labels.first() else { return };
        let location = |line| SourceLine { file: file.to_owned(), line };
        let version = located_attribute(block.body, "version", file);
        let key = (name.clone(), alias_of(block.body, file));
        let provider_block = self
            .provider_blocks
            .entry(key)
            .or_insert_with(|| ProviderBlock { version: None, location: location(block.line) });
        provider_block.version = version.or(provider_block.version.take());
    }

    fn add_provider_use(&mut self, block_type: &str, block: &Block<'_>, file: &str) {
        let [type_, name, ..] = block.labels.as_slice() else { return };
        let location = SourceLine { file: file.to_owned(), line: block.line };
        let entry = self.provider_uses.entry(format!("{block_type}.{type_}.{name}"));
        let provider_use = entry.or_insert_with(|| ProviderUse { type_: type_.clone(), provider: None, location });
        provider_use.provider = provider_argument(block.body).or(provider_use.provider.take());
    }

    fn add_test(&mut self, body: BlockBody<'_>, file: &str) {
        let location = |line| SourceLine { file: file.to_owned(), line };
        for block in body.blocks("provider", 1) {
            self.provider_blocks_in_tests.extend(block.labels.first().map(|name| (name.clone(), location(block.line))));
        }
        for run in body.blocks("run", 1) {
            let name = run.labels.first().map(String::as_str).unwrap_or_default();
            for module in run.body.blocks("module", 0) {
                self.test_calls.push((format!("run {name:?}"), ModuleCallBlock::of(&module, file)));
            }
        }
    }
}

impl ModuleCallBlock {
    fn of(block: &Block<'_>, file: &str) -> Self {
        let location = SourceLine { file: file.to_owned(), line: block.line };
        let (source, version) =
            (located_expression(block.body, "source", file), located_expression(block.body, "version", file));
        let arguments = block.body.attributes().into_iter();
        let arguments = arguments.filter(|(name, _)| !META_ARGUMENTS.contains(&name.as_str()));
        let arguments = arguments.map(|(name, attribute)| (name, attribute.value.formula())).collect();
        Self { has_version_beside_source: version.is_some() && source.is_some(), source, version, arguments, location }
    }

    fn override_with(&mut self, other: Self) {
        if other.source.is_some() {
            self.has_version_beside_source = other.has_version_beside_source;
            self.source = other.source;
        }
        if other.version.as_ref().is_some_and(|(version, _)| *version != Formula::Value(Constant::Null)) {
            self.version = other.version;
        }
        self.arguments.extend(other.arguments);
    }
}

fn located_attribute(body: BlockBody<'_>, name: &str, file: &str) -> Option<LocatedValue> {
    let attribute = body.attribute(name)?;
    Some((attribute.value.constant(), SourceLine { file: file.to_owned(), line: attribute.line }))
}

fn located_expression(body: BlockBody<'_>, name: &str, file: &str) -> Option<LocatedExpression> {
    let attribute = body.attribute(name)?;
    Some((attribute.value.formula(), SourceLine { file: file.to_owned(), line: attribute.line }))
}

/// The name of a declaration for people: its block type and labels.
fn display_name(block_type: &str, labels: &[String]) -> String {
    let labels = labels.iter().filter(|label| !label.is_empty());
    labels.fold(block_type.to_owned(), |name, label| format!("{name} {label:?}"))
}

/// The alias of a `provider` block; empty without one.
fn alias_of(body: BlockBody<'_>, file: &str) -> String {
    match located_attribute(body, "alias", file) {
        Some((Constant::Text(alias), _)) => alias,
        _ => String::new(),
    }
}

/// The local name in a `provider` argument: `aws` of `aws.west`.
fn provider_argument(body: BlockBody<'_>) -> Option<String> {
    let names = body.attribute("provider").map(|attribute| Value::reference(attribute.value))?;
    names.into_iter().next()
}
