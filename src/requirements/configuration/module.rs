//! Interprets a folder's declarations: the modules and providers that it needs. The client's version is unknown here, so
//! of `required_version` only a constraint that excludes every version is a problem.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::super::request::ClientKind;
use super::declarations::{Declarations, ImportBlock, LocatedValue, ModuleCallBlock, RequiredProvider};
use super::expression::{Constant, Inputs, Scope};
use super::source::{self, ModuleSource, ProviderReference};
use super::{Module, ModuleCall, ModuleRole, Problem, ProviderRequirement, SourceLine};
use crate::address::{Constraint, ModuleConstraint, ProviderAddress, Version};

/// Interprets the declarations of a folder; `inputs` are the values of its variables.
pub(super) fn interpret(
    mut declarations: Declarations,
    role: ModuleRole,
    client: ClientKind,
    inputs: &Inputs,
) -> Module {
    let mut problems = std::mem::take(&mut declarations.problems);
    problems.extend(required_version_problems(&declarations.required_versions, client));
    let mut reader = ModuleReader {
        client,
        local_names: BTreeMap::new(),
        recorded: HashSet::new(),
        module: Module { problems, ..Module::default() },
    };
    for (name, required) in &declarations.required_providers {
        reader.add_required_provider(name, required);
    }
    for ((name, _), provider_block) in &declarations.provider_blocks {
        let (version, location) = match &provider_block.version {
            Some((version, location)) => (Some(version), location),
            None => (None, &provider_block.location),
        };
        if let Err(reason) = source::check_local_name(name) {
            reader.add_problem(&format!("provider {name:?}"), reason, location);
            continue;
        }
        reader.require_with_version(name, version, location);
    }
    if client == ClientKind::Opentofu {
        // Terraform installs nothing for providers that only a test configures.
        declarations
            .provider_blocks_in_tests
            .iter()
            .for_each(|(name, location)| reader.require_with_version(name, None, location));
    }
    for provider_use in declarations.provider_uses.values() {
        match &provider_use.provider {
            Some(name) => reader.require_by_local_name(name, &provider_use.location),
            None => reader.require_with_version(source::implied_by(&provider_use.type_), None, &provider_use.location),
        }
    }
    for import in &declarations.imports {
        if role == ModuleRole::Child {
            reader.add_problem(
                "import",
                "clients refuse an import block in a module that another one calls".to_owned(),
                &import.location,
            );
            continue;
        }
        if !import.target.first().is_some_and(|type_| {
            declarations.provider_uses.contains_key(&format!("resource.{type_}.{}", resource_name(import)))
        }) {
            reader.require_imported(import);
        }
    }
    let scope = Scope::new(client, role, &declarations.variables, &declarations.locals, inputs);
    for (name, call_block) in &declarations.calls {
        reader.call(&format!("module {name:?}"), call_block, &scope);
    }
    for (name, call_block) in &declarations.test_calls {
        // Clients do not evaluate the modules of tests.
        reader.call(name, call_block, &Scope::empty());
    }
    reader.module.inputs = deciding_variables(&declarations, client);
    reader.module.problems.sort_by(|a, b| a.location.cmp(&b.location));
    reader.module
}

/// The variables whose values decide which modules are called.
fn deciding_variables(declarations: &Declarations, client: ClientKind) -> BTreeSet<String> {
    let (mut visited_locals, mut variables) = (BTreeSet::new(), BTreeSet::new());
    match client {
        ClientKind::Terraform => {
            variables.extend(
                declarations
                    .variables
                    .iter()
                    .filter(|(_, variable)| variable.is_const == Some(true))
                    .map(|(name, _)| name.clone()),
            );
        }
        ClientKind::Opentofu => {
            let calls =
                declarations.calls.values().chain(declarations.test_calls.iter().map(|(_, call_block)| call_block));
            for (formula, _) in calls.flat_map(|call_block| call_block.source.iter().chain(&call_block.version)) {
                formula.add_variables(&declarations.locals, &mut visited_locals, &mut variables);
            }
        }
    }
    variables
}

/// The resource's name in an import address.
fn resource_name(import: &ImportBlock) -> &str {
    import.target.get(1).map(String::as_str).unwrap_or_default()
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
    fn add_problem(&mut self, subject: &str, reason: String, location: &SourceLine) {
        self.module.problems.push(Problem { subject: subject.to_owned(), reason, location: location.clone() });
    }

    /// Adds an entry of `required_providers`.
    fn add_required_provider(&mut self, name: &str, RequiredProvider { source, version, location }: &RequiredProvider) {
        let subject = format!("provider {name:?}");
        if let Err(reason) = source::check_local_name(name) {
            return self.add_problem(&subject, reason, location);
        }
        let provider = match source {
            None => source::from_local_name(name, self.client),
            Some(Constant::Text(source)) => source::parse_source(source, self.client),
            Some(_) => Err("its source is not a plain string, and clients accept nothing else".to_owned()),
        };
        match provider {
            Ok(provider) => {
                self.local_names.insert(name.to_owned(), provider.clone());
                self.add_requirement(&subject, &provider, version.as_ref(), location);
            }
            Err(reason) => self.add_problem(&subject, reason, location),
        }
    }

    /// Requires the provider with a local name that the configuration writes out.
    fn require_by_local_name(&mut self, name: &str, location: &SourceLine) {
        match source::check_local_name(name) {
            Ok(()) => self.require_with_version(name, None, location),
            Err(reason) => self.add_problem(&format!("provider {name:?}"), reason, location),
        }
    }

    /// Requires the provider with a local name, and a version of it where one is given.
    fn require_with_version(&mut self, name: &str, version: Option<&Constant>, location: &SourceLine) {
        let subject = format!("provider {name:?}");
        let provider = match self.local_names.get(name) {
            Some(provider) => Ok(provider.clone()),
            None => source::from_local_name(name, self.client),
        };
        match provider {
            Ok(provider) => self.add_requirement(&subject, &provider, version, location),
            Err(reason) => self.add_problem(&subject, reason, location),
        }
    }

    fn add_requirement(
        &mut self,
        subject: &str,
        reference: &ProviderReference,
        version: Option<&Constant>,
        location: &SourceLine,
    ) {
        let versions = match version {
            None | Some(Constant::Null) => None,
            Some(Constant::Text(version)) => match Constraint::parse(version.trim()) {
                Ok(versions) => Some(versions),
                Err(bad) => return self.add_problem(subject, bad.to_string(), location),
            },
            Some(Constant::List(_) | Constant::Object(_) | Constant::Unknown(_)) => {
                let reason = "its version is not a plain string, and clients accept nothing else";
                return self.add_problem(subject, reason.to_owned(), location);
            }
        };
        match (reference, versions) {
            (ProviderReference::Provider(provider), versions) => {
                if !self.recorded.insert((provider.clone(), versions.clone())) {
                    return;
                }
                self.module.provider_requirements.push(ProviderRequirement {
                    provider: provider.clone(),
                    versions,
                    location: location.clone(),
                });
            }
            (ProviderReference::BuiltIn, None) => {}
            (ProviderReference::BuiltIn, Some(_)) => {
                self.add_problem(
                    subject,
                    "the provider is part of the client, and has no versions to choose from".to_owned(),
                    location,
                );
            }
        }
    }

    /// Requires the provider of an `import` block.
    fn require_imported(&mut self, ImportBlock { target, provider, location }: &ImportBlock) {
        let mut address = target.as_slice();
        while let [module, _, rest @ ..] = address
            && module == "module"
        {
            // Terraform ignores imports into called modules.
            if self.client == ClientKind::Terraform {
                return;
            }
            address = rest;
        }
        let name = match (provider, address.first()) {
            (Some(name), _) => name.as_str(),
            (None, Some(type_)) => source::implied_by(type_),
            (None, None) => return,
        };
        self.require_with_version(name, None, location);
    }

    /// Adds a module call.
    fn call(&mut self, name: &str, call_block: &ModuleCallBlock, scope: &Scope<'_>) {
        let Some((source, location)) = &call_block.source else {
            return self.add_problem(name, "the module call has no source".to_owned(), &call_block.location);
        };
        let source = match scope.value(source) {
            Constant::Text(source) => source,
            other => return self.add_problem(name, unknown_reason("source", &other), location),
        };
        let versions = match &call_block.version {
            None => None,
            Some((version, location)) => match scope.value(version) {
                Constant::Null => None,
                Constant::Text(version) => match ModuleConstraint::parse(&version) {
                    Ok(versions) => Some(versions),
                    Err(bad) => return self.add_problem(&source::without_secrets(&source), bad.to_string(), location),
                },
                other => {
                    return self.add_problem(
                        &source::without_secrets(&source),
                        unknown_reason("version", &other),
                        location,
                    );
                }
            },
        };
        let has_version = call_block.has_version_beside_source || versions.is_some();
        let inputs = call_block.arguments.iter().map(|(name, value)| (name.clone(), scope.value(value))).collect();
        match ModuleSource::parse(&source, has_version, self.client) {
            Ok(module_source) => {
                let versions = versions.unwrap_or_default();
                self.module.calls.push(ModuleCall {
                    source: module_source,
                    versions,
                    inputs,
                    location: location.clone(),
                });
            }
            Err(reason) => self.add_problem(&source::without_secrets(&source), reason, location),
        }
    }
}

/// The reason why a source or version is unknown, and the remedy.
fn unknown_reason(subject: &str, value: &Constant) -> String {
    match value {
        Constant::Unknown(depends_on) => format!("its {subject} depends on {depends_on}"),
        _ => format!("its {subject} is not a string, and clients accept nothing else"),
    }
}

/// The subject of these problems.
const SUBJECT: &str = "required_version";

/// The name of a client, and its first release that installs from mirrors as today.
fn oldest(client: ClientKind) -> (&'static str, &'static str) {
    match client {
        ClientKind::Terraform => ("Terraform", "0.13.0"),
        ClientKind::Opentofu => ("OpenTofu", "1.6.0"),
    }
}

/// Problems of one folder's constraints.
fn required_version_problems(values: &[LocatedValue], client: ClientKind) -> Vec<Problem> {
    let (mut problems, mut constraints) = (Vec::new(), Vec::new());
    for (value, location) in values {
        let constraint = match value {
            Constant::Null => continue,
            Constant::Text(text) => ModuleConstraint::parse(text).map_err(|_| {
                format!(
                    "{text:?} is not a constraint: write conditions like >= 1.2, < 2.0 or ~> 1.5 between commas, and nothing else"
                )
            }),
            Constant::List(_) | Constant::Object(_) | Constant::Unknown(_) => {
                Err("required_version is not a plain string, and clients accept nothing else".to_owned())
            }
        };
        match constraint {
            Ok(constraint) if constraint.names_a_pre_release() => {
                let reason = "clients refuse pre-releases in required_version".to_owned();
                problems.push(Problem { subject: SUBJECT.to_owned(), reason, location: location.clone() });
            }
            Ok(constraint) => constraints.push((constraint, location)),
            Err(reason) => problems.push(Problem { subject: SUBJECT.to_owned(), reason, location: location.clone() }),
        }
    }
    let (name, oldest) = oldest(client);
    let all_constraints: Vec<ModuleConstraint> = constraints.iter().map(|(constraint, _)| constraint.clone()).collect();
    let can_be_met =
        Version::parse(oldest).is_ok_and(|oldest| ModuleConstraint::could_all_be_met_from(&oldest, &all_constraints));
    if let (false, Some((_, location))) = (can_be_met, constraints.first()) {
        let constraint_list = all_constraints.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let reason = format!(
            "no {name} from {oldest} on matches {constraint_list}: choose another version of the module that requires this, or change the constraint"
        );
        problems.push(Problem { subject: SUBJECT.to_owned(), reason, location: (*location).clone() });
    }
    problems
}
