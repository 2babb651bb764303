//! The declarations of a folder's files, with override files applied, and the modules and providers that they need.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::super::ClientKind;
use super::block::{Block, BlockBody};
use super::expression::{Constant, ExpressionText, References, Scope, Variable, VariableValues};
use super::source::{self, ModuleSource, ProviderReference};
use super::{FileRole, Module, ModuleCall, ModuleRole, Problem, ProviderRequirement, SourceLine};
use crate::address::{Constraint, ModuleConstraint, ProviderAddress};

/// The limit of declarations in one folder; further files are not read.
const MAX_DECLARED: usize = 1 << 16;

/// Arguments of a module call that are not variables of the module.
const META_ARGUMENTS: [&str; 7] =
    ["source", "version", "count", "for_each", "providers", "depends_on", "ignore_nested_deprecations"];

/// The declarations of one folder.
#[derive(Default)]
pub(super) struct Declarations {
    /// Module calls by name.
    calls: BTreeMap<String, ModuleCallBlock>,
    /// Modules called by test runs.
    test_calls: Vec<(String, ModuleCallBlock)>,
    /// Entries of `required_providers` by local name.
    required_providers: BTreeMap<String, RequiredProvider>,
    /// `provider` blocks, by local name and alias: the version, where given, with its location or that of the block.
    provider_blocks: BTreeMap<(String, String), (Option<Constant>, SourceLine)>,
    /// Local names of the `provider` blocks of tests.
    provider_blocks_in_tests: Vec<(String, SourceLine)>,
    /// The resources and data sources, by block type, type and name.
    provider_uses: BTreeMap<[String; 3], ProviderUse>,
    /// `import` blocks.
    imports: Vec<ImportBlock>,
    variables: BTreeMap<String, Variable>,
    locals: BTreeMap<String, ExpressionText>,
}

/// An expression with its location.
type LocatedExpression = (ExpressionText, SourceLine);

/// A module call.
struct ModuleCallBlock {
    source: Option<LocatedExpression>,
    version: Option<LocatedExpression>,
    /// Values for the module's variables.
    arguments: BTreeMap<String, ExpressionText>,
    /// True if source and version are in one block, which checks them against each other.
    has_version_beside_source: bool,
    location: SourceLine,
}

/// An entry of `required_providers`.
struct RequiredProvider {
    source: Option<Constant>,
    version: Option<Constant>,
    location: SourceLine,
}

/// A use of a provider.
struct ProviderUse {
    /// Local name of the provider, where given.
    provider: Option<String>,
    location: SourceLine,
}

/// An `import` block.
struct ImportBlock {
    target: Vec<String>,
    provider: Option<String>,
    location: SourceLine,
}

impl Declarations {
    /// Adds the declarations of a file. Of two declarations in primary files, which clients refuse, the last one counts.
    pub(super) fn add(&mut self, body: BlockBody<'_>, role: FileRole) {
        if role == FileRole::Test {
            self.add_test(body);
            return;
        }
        for terraform in body.blocks("terraform", 0) {
            for block in terraform.body.blocks("required_providers", 0) {
                let entries = block.body.attributes().into_iter();
                self.required_providers.extend(entries.map(|(name, entry)| {
                    let (source, version) = match entry.value.members() {
                        Some(members) => ["source", "version"].map(|wanted| {
                            let last = members.iter().rfind(|(name, _)| name == wanted);
                            last.map(|(_, attribute)| attribute.value.constant())
                        }),
                        // The form before 0.13: a version alone.
                        None => [None, Some(entry.value.constant())],
                    }
                    .into();
                    (name, RequiredProvider { source, version, location: entry.location })
                }));
            }
        }
        for block in body.blocks("module", 1) {
            let call_block = ModuleCallBlock::of(&block);
            match (role, self.calls.get_mut(&block.labels[0])) {
                (FileRole::Override, Some(existing)) => existing.override_with(call_block),
                _ => drop(self.calls.insert(block.labels[0].clone(), call_block)),
            }
        }
        for block in body.blocks("provider", 1) {
            let alias = match block.body.attribute("alias").map(|attribute| attribute.value.constant()) {
                Some(Constant::Text(alias)) => alias,
                _ => String::new(),
            };
            let version = block.body.attribute("version");
            let entry = self.provider_blocks.entry((block.labels[0].clone(), alias));
            let provider_block = entry.or_insert((None, block.location));
            if let Some(version) = version {
                *provider_block = (Some(version.value.constant()), version.location);
            }
        }
        for block in body.blocks("variable", 1) {
            self.variables.entry(block.labels[0].clone()).or_default().add(block.body);
        }
        for block in body.blocks("locals", 0) {
            let locals = block.body.attributes().into_iter();
            self.locals.extend(locals.map(|(name, attribute)| (name, attribute.value.text())));
        }
        for block_type in ["resource", "data", "ephemeral", "action"] {
            body.blocks(block_type, 2).into_iter().for_each(|block| self.add_provider_use(block_type, block));
        }
        for check in body.blocks("check", 1) {
            check.body.blocks("data", 2).into_iter().for_each(|block| self.add_provider_use("data", block));
        }
        self.imports.extend(body.blocks("import", 0).into_iter().map(|block| ImportBlock {
            target: block.body.attribute("to").map(|attribute| attribute.value.reference()).unwrap_or_default(),
            provider: provider_argument(block.body),
            location: block.location,
        }));
    }

    /// Returns true if there are more declarations than larder reads.
    pub(super) fn exceed_limit(&self) -> bool {
        let named = self.calls.len() + self.required_providers.len() + self.variables.len() + self.locals.len();
        let providers = self.provider_blocks.len() + self.provider_uses.len() + self.imports.len();
        named + providers + self.test_calls.len() + self.provider_blocks_in_tests.len() > MAX_DECLARED
    }

    fn add_provider_use(&mut self, block_type: &str, block: Block<'_>) {
        let [type_, name] = [&block.labels[0], &block.labels[1]].map(String::clone);
        let entry = self.provider_uses.entry([block_type.to_owned(), type_, name]);
        let provider_use = entry.or_insert(ProviderUse { provider: None, location: block.location });
        provider_use.provider = provider_argument(block.body).or(provider_use.provider.take());
    }

    fn add_test(&mut self, body: BlockBody<'_>) {
        let blocks = body.blocks("provider", 1).into_iter();
        self.provider_blocks_in_tests.extend(blocks.map(|block| (block.labels[0].clone(), block.location)));
        for run in body.blocks("run", 1) {
            let modules = run.body.blocks("module", 0).into_iter();
            let name = format!("run {:?}", run.labels[0]);
            self.test_calls.extend(modules.map(|module| (name.clone(), ModuleCallBlock::of(&module))));
        }
    }

    /// The variables whose values decide which modules are called.
    fn deciding_variables(&self, client: ClientKind) -> BTreeSet<String> {
        if client == ClientKind::Terraform {
            let constant = self.variables.iter().filter(|(_, variable)| variable.is_const == Some(true));
            return constant.map(|(name, _)| name.clone()).collect();
        }
        let (mut variables, mut visited_locals) = (BTreeSet::new(), BTreeSet::new());
        let calls = self.calls.values().chain(self.test_calls.iter().map(|(_, call_block)| call_block));
        let located = calls.flat_map(|call_block| call_block.source.iter().chain(&call_block.version));
        let mut pending: Vec<&ExpressionText> = located.map(|(text, _)| text).collect();
        while let Some(text) = pending.pop() {
            let references = References::of(text);
            variables.extend(references.variables);
            let locals = references.locals.iter().filter_map(|name| self.locals.get_key_value(name));
            pending.extend(locals.filter(|(name, _)| visited_locals.insert(*name)).map(|(_, text)| text));
        }
        variables
    }
}

impl Variable {
    /// Applies a `variable` block: one of an override file changes only the arguments that it has.
    fn add(&mut self, body: BlockBody<'_>) {
        let truth_of = |name| match body.attribute(name)?.value.constant() {
            Constant::Text(truth) => Some(truth == "true"),
            _ => None,
        };
        self.is_const = truth_of("const").or(self.is_const);
        self.is_never_null = truth_of("nullable").map_or(self.is_never_null, |nullable| !nullable);
        self.is_secret = ["sensitive", "ephemeral"].iter().any(|name| truth_of(name).unwrap_or(self.is_secret));
        if let Some(default) = body.attribute("default") {
            self.default = Some(default.value.text().constant());
        }
    }
}

impl ModuleCallBlock {
    fn of(block: &Block<'_>) -> Self {
        let located = |name| {
            let attribute = block.body.attribute(name)?;
            Some((attribute.value.text(), attribute.location))
        };
        let (source, version) = (located("source"), located("version"));
        let arguments = block.body.attributes().into_iter();
        let arguments = arguments.filter(|(name, _)| !META_ARGUMENTS.contains(&name.as_str()));
        Self {
            has_version_beside_source: version.is_some() && source.is_some(),
            source,
            version,
            arguments: arguments.map(|(name, attribute)| (name, attribute.value.text())).collect(),
            location: block.location.clone(),
        }
    }

    fn override_with(&mut self, other: Self) {
        if other.source.is_some() {
            self.has_version_beside_source = other.has_version_beside_source;
            self.source = other.source;
        }
        if other.version.as_ref().is_some_and(|(version, _)| version.constant() != Constant::Null) {
            self.version = other.version;
        }
        self.arguments.extend(other.arguments);
    }
}

/// The local name in a `provider` argument: `aws` of `aws.west`.
fn provider_argument(body: BlockBody<'_>) -> Option<String> {
    body.attribute("provider")?.value.reference().into_iter().next()
}

/// Interprets the declarations of a folder; `values` are those of its variables.
pub(super) fn interpret(
    declarations: &Declarations,
    role: ModuleRole,
    client: ClientKind,
    values: &VariableValues,
) -> Module {
    let (local_names, recorded, module) = (BTreeMap::new(), HashSet::new(), Module::default());
    let mut reader = ModuleReader { client, local_names, recorded, module };
    for (name, required) in &declarations.required_providers {
        let resolved = reader.add_required_provider(name, required);
        reader.record_provider_problem(name, resolved, &required.location);
    }
    for ((name, _), (version, location)) in &declarations.provider_blocks {
        reader.require_written(name, version.as_ref(), location);
    }
    if client == ClientKind::Opentofu {
        // Terraform installs nothing for providers that only a test configures.
        declarations.provider_blocks_in_tests.iter().for_each(|(name, location)| reader.require(name, None, location));
    }
    for ([_, type_, _], ProviderUse { provider, location }) in &declarations.provider_uses {
        match provider {
            Some(name) => reader.require_written(name, None, location),
            None => reader.require(source::implied_by(type_), None, location),
        }
    }
    // Clients accept imports in a root only. An imported resource that is declared has its own provider.
    for ImportBlock { target, provider, location } in declarations.imports.iter().filter(|_| role == ModuleRole::Root) {
        let mut address = target.as_slice();
        while let [module, _, inner @ ..] = address
            && module == "module"
        {
            address = inner;
        }
        let is_of_called_module = address.len() < target.len();
        let (type_, name) = (address.first().cloned(), address.get(1).cloned().unwrap_or_default());
        let implied = address.first().map(|type_| source::implied_by(type_));
        let Some(needed) = provider.as_deref().or(implied) else { continue };
        let resource = type_.map(|type_| ["resource".to_owned(), type_, name]);
        let is_declared = resource.is_some_and(|resource| declarations.provider_uses.contains_key(&resource));
        // Terraform ignores imports into called modules.
        let is_ignored = if is_of_called_module { client == ClientKind::Terraform } else { is_declared };
        if !is_ignored {
            reader.require(needed, None, location);
        }
    }
    let scope = Scope::new(client, role, &declarations.variables, &declarations.locals, values);
    let calls = declarations.calls.iter().map(|(name, block)| (format!("module {name:?}"), block, &scope));
    // Clients do not evaluate the modules of tests.
    let empty_scope = Scope::empty();
    let test_calls = declarations.test_calls.iter().map(|(name, block)| (name.clone(), block, &empty_scope));
    for (name, block, scope) in calls.chain(test_calls) {
        match module_call(&name, block, scope, client) {
            Ok(call) => reader.module.calls.push(call),
            Err(problem) => reader.module.problems.push(problem),
        }
    }
    reader.module.deciding_variables = declarations.deciding_variables(client);
    reader.module
}

struct ModuleReader {
    client: ClientKind,
    /// The providers in `required_providers`, by local name.
    local_names: BTreeMap<String, ProviderReference>,
    /// The recorded requirements: only the first location of each is recorded.
    recorded: HashSet<(ProviderAddress, Option<Constraint>)>,
    module: Module,
}

impl ModuleReader {
    fn record_provider_problem(&mut self, name: &str, resolved: Result<(), String>, location: &SourceLine) {
        self.module.problems.extend(resolved.err().map(|reason| {
            let subject = format!("provider {name:?}");
            Problem { subject, reason, location: location.clone() }
        }));
    }

    /// Adds an entry of `required_providers`.
    fn add_required_provider(&mut self, name: &str, required: &RequiredProvider) -> Result<(), String> {
        source::check_local_name(name)?;
        let provider = match &required.source {
            None => source::from_local_name(name, self.client),
            Some(Constant::Text(source)) => source::parse_source(source, self.client),
            Some(_) => Err("its source is not a plain string, and clients accept nothing else".to_owned()),
        }?;
        self.local_names.insert(name.to_owned(), provider.clone());
        self.add_requirement(provider, required.version.as_ref(), &required.location)
    }

    /// Requires the provider with a local name that the configuration writes out.
    fn require_written(&mut self, name: &str, version: Option<&Constant>, location: &SourceLine) {
        match source::check_local_name(name) {
            Ok(()) => self.require(name, version, location),
            refused => self.record_provider_problem(name, refused, location),
        }
    }

    /// Requires the provider with a local name, and a version of it where one is given.
    fn require(&mut self, name: &str, version: Option<&Constant>, location: &SourceLine) {
        let provider = match self.local_names.get(name) {
            Some(provider) => Ok(provider.clone()),
            None => source::from_local_name(name, self.client),
        };
        let required = provider.and_then(|provider| self.add_requirement(provider, version, location));
        self.record_provider_problem(name, required, location);
    }

    fn add_requirement(
        &mut self,
        reference: ProviderReference,
        version: Option<&Constant>,
        location: &SourceLine,
    ) -> Result<(), String> {
        let versions = match version {
            None | Some(Constant::Null) => None,
            Some(Constant::Text(version)) => Some(Constraint::parse(version.trim()).map_err(|bad| bad.to_string())?),
            Some(Constant::List(_) | Constant::Object(_) | Constant::Unknown(_)) => {
                return Err("its version is not a plain string, and clients accept nothing else".to_owned());
            }
        };
        match (reference, versions) {
            (ProviderReference::Provider(provider), versions) => {
                if self.recorded.insert((provider.clone(), versions.clone())) {
                    let requirement = ProviderRequirement { provider, versions, location: location.clone() };
                    self.module.provider_requirements.push(requirement);
                }
                Ok(())
            }
            (ProviderReference::BuiltIn, None) => Ok(()),
            (ProviderReference::BuiltIn, Some(_)) => {
                Err("the provider is part of the client, and has no versions to choose from".to_owned())
            }
        }
    }
}

/// Interprets a module call; `name` is its name for people.
fn module_call(
    name: &str,
    block: &ModuleCallBlock,
    scope: &Scope<'_>,
    client: ClientKind,
) -> Result<ModuleCall, Problem> {
    let problem = |subject: &str, reason, location: &SourceLine| {
        let (subject, location) = (subject.to_owned(), location.clone());
        Problem { subject, reason, location }
    };
    let Some((source, location)) = &block.source else {
        return Err(problem(name, "the module call has no source".to_owned(), &block.location));
    };
    let source = match scope.value(source) {
        Constant::Text(source) => source,
        other => return Err(problem(name, unknown_reason("source", &other), location)),
    };
    let shown = source::without_secrets(&source);
    let versions = match &block.version {
        None => None,
        Some((version, location)) => match scope.value(version) {
            Constant::Null => None,
            Constant::Text(version) => {
                let versions = ModuleConstraint::parse(&version);
                Some(versions.map_err(|bad| problem(&shown, bad.to_string(), location))?)
            }
            other => return Err(problem(&shown, unknown_reason("version", &other), location)),
        },
    };
    let has_version = block.has_version_beside_source || versions.is_some();
    let arguments = block.arguments.iter().map(|(name, value)| (name.clone(), scope.value(value))).collect();
    let module_source = ModuleSource::parse(&source, has_version, client);
    Ok(ModuleCall {
        source: module_source.map_err(|reason| problem(&shown, reason, location))?,
        versions: versions.unwrap_or_default(),
        arguments,
        location: location.clone(),
    })
}

/// The reason why a source or version is unknown, and the remedy.
fn unknown_reason(subject: &str, value: &Constant) -> String {
    match value {
        Constant::Unknown(cause) => format!("its {subject} depends on {cause}"),
        _ => format!("its {subject} is not a string, and clients accept nothing else"),
    }
}
