//! Interprets a folder's declarations: the modules and providers that it needs.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::super::request::ClientKind;
use super::declarations::{Declarations, ImportBlock, ModuleCallBlock, RequiredProvider};
use super::expression::{Constant, Inputs, Scope};
use super::provider::{self, ProviderReference};
use super::source::{self, ModuleSource};
use super::{FolderRole, Module, ModuleCall, Problem, ProviderRequirement, SourceLine, required_version};
use crate::address::{Constraint, ModuleConstraint, ProviderAddress};

/// Interprets declarations; `inputs` are the values of its variables.
pub(super) fn of(mut declared: Declarations, role: FolderRole, client: ClientKind, inputs: &Inputs) -> Module {
    let mut problems = std::mem::take(&mut declared.problems);
    problems.extend(required_version::problems(&declared.required_versions, client));
    let mut reading = ModuleReader {
        client,
        names: BTreeMap::new(),
        reported: HashSet::new(),
        module: Module { problems, ..Module::default() },
    };
    for (name, required) in &declared.required {
        reading.required(name, required);
    }
    for ((name, _), configured) in &declared.configured {
        let (version, location) = match &configured.version {
            Some((version, location)) => (Some(version), location),
            None => (None, &configured.location),
        };
        if let Err(reason) = provider::checked_local_name(name) {
            reading.add_problem(&format!("provider {name:?}"), reason, location);
            continue;
        }
        reading.need_with_version(name, version, location);
    }
    if client == ClientKind::Opentofu {
        // Terraform installs nothing for providers that only a test configures.
        declared
            .configured_by_tests
            .iter()
            .for_each(|(name, location)| reading.need_with_version(name, None, location));
    }
    for user in declared.users.values() {
        match &user.provider {
            Some(name) => reading.need_by_local_name(name, &user.location),
            None => reading.need_with_version(provider::implied_by(&user.type_), None, &user.location),
        }
    }
    for import in &declared.imports {
        if role == FolderRole::Called {
            reading.add_problem("import", "clients refuse it in a module that is called".to_owned(), &import.location);
            continue;
        }
        if !import
            .target
            .first()
            .is_some_and(|to| declared.users.contains_key(&format!("resource.{to}.{}", last(import))))
        {
            reading.imported(import);
        }
    }
    let scope = Scope::new(client, role, &declared.variables, &declared.locals, inputs);
    for (name, calling) in &declared.calls {
        reading.call(&format!("module {name:?}"), calling, &scope);
    }
    for (name, calling) in &declared.test_calls {
        // Clients do not evaluate the modules of tests.
        reading.call(name, calling, &Scope::empty());
    }
    reading.module.inputs = deciding(&declared, client);
    reading.module.problems.sort_by(|a, b| a.location.cmp(&b.location));
    reading.module
}

/// The variables whose values decide which modules are called.
fn deciding(declared: &Declarations, client: ClientKind) -> BTreeSet<String> {
    let (mut seen, mut variables) = (BTreeSet::new(), BTreeSet::new());
    match client {
        ClientKind::Terraform => {
            variables.extend(
                declared
                    .variables
                    .iter()
                    .filter(|(_, variable)| variable.is_const == Some(true))
                    .map(|(name, _)| name.clone()),
            );
        }
        ClientKind::Opentofu => {
            let calls = declared.calls.values().chain(declared.test_calls.iter().map(|(_, calling)| calling));
            for (formula, _) in calls.flat_map(|calling| calling.source.iter().chain(&calling.version)) {
                formula.add_variables(&declared.locals, &mut seen, &mut variables);
            }
        }
    }
    variables
}

/// The resource's name in an import address.
fn last(import: &ImportBlock) -> &str {
    import.target.get(1).map(String::as_str).unwrap_or_default()
}

struct ModuleReader {
    client: ClientKind,
    /// `required_providers` by local name.
    names: BTreeMap<String, ProviderReference>,
    /// Recorded requirements; only the first location of each is kept.
    reported: HashSet<(ProviderAddress, Option<Constraint>)>,
    module: Module,
}

impl ModuleReader {
    fn add_problem(&mut self, subject: &str, reason: String, location: &SourceLine) {
        self.module.problems.push(Problem { subject: subject.to_owned(), reason, location: location.clone() });
    }

    fn required(&mut self, name: &str, RequiredProvider { source, version, location }: &RequiredProvider) {
        let subject = format!("provider {name:?}");
        if let Err(reason) = provider::checked_local_name(name) {
            return self.add_problem(&subject, reason, location);
        }
        let named = match source {
            None => provider::of_local_name(name, self.client),
            Some(Constant::Text(source)) => provider::of_source(source, self.client),
            Some(_) => Err("its source is not a plain string, and clients take nothing else".to_owned()),
        };
        match named {
            Ok(named) => {
                self.names.insert(name.to_owned(), named.clone());
                self.add_requirement(&subject, &named, version.as_ref(), location);
            }
            Err(reason) => self.add_problem(&subject, reason, location),
        }
    }

    /// Requires the provider of an explicit local name.
    fn need_by_local_name(&mut self, name: &str, location: &SourceLine) {
        match provider::checked_local_name(name) {
            Ok(()) => self.need_with_version(name, None, location),
            Err(reason) => self.add_problem(&format!("provider {name:?}"), reason, location),
        }
    }

    fn need_with_version(&mut self, name: &str, version: Option<&Constant>, location: &SourceLine) {
        let subject = format!("provider {name:?}");
        let named = match self.names.get(name) {
            Some(named) => Ok(named.clone()),
            None => provider::of_local_name(name, self.client),
        };
        match named {
            Ok(named) => self.add_requirement(&subject, &named, version, location),
            Err(reason) => self.add_problem(&subject, reason, location),
        }
    }

    fn add_requirement(
        &mut self,
        subject: &str,
        named: &ProviderReference,
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
                let reason = "its version is not a plain string, and clients take nothing else";
                return self.add_problem(subject, reason.to_owned(), location);
            }
        };
        match (named, versions) {
            (ProviderReference::Provider(provider), versions) => {
                if !self.reported.insert((provider.clone(), versions.clone())) {
                    return;
                }
                self.module.needs.push(ProviderRequirement {
                    provider: provider.clone(),
                    versions,
                    location: location.clone(),
                });
            }
            (ProviderReference::BuiltIn, None) => {}
            (ProviderReference::BuiltIn, Some(_)) => {
                self.add_problem(
                    subject,
                    "it is part of the client, which has no choice of versions".to_owned(),
                    location,
                );
            }
        }
    }

    fn imported(&mut self, ImportBlock { target, provider, location }: &ImportBlock) {
        let mut to = target.as_slice();
        while let [module, _, rest @ ..] = to
            && module == "module"
        {
            // Terraform ignores imports into called modules.
            if self.client == ClientKind::Terraform {
                return;
            }
            to = rest;
        }
        let name = match (provider, to.first()) {
            (Some(name), _) => name.as_str(),
            (None, Some(type_)) => provider::implied_by(type_),
            (None, None) => return,
        };
        self.need_with_version(name, None, location);
    }

    fn call(&mut self, name: &str, calling: &ModuleCallBlock, scope: &Scope<'_>) {
        let Some((source, location)) = &calling.source else {
            return self.add_problem(name, "it has no source".to_owned(), &calling.location);
        };
        let given = match scope.value(source) {
            Constant::Text(given) => given,
            other => return self.add_problem(name, not_known("source", &other), location),
        };
        let versions = match &calling.version {
            None => None,
            Some((version, location)) => match scope.value(version) {
                Constant::Null => None,
                Constant::Text(version) => match ModuleConstraint::parse(&version) {
                    Ok(versions) => Some(versions),
                    Err(bad) => return self.add_problem(&source::without_secrets(&given), bad.to_string(), location),
                },
                other => {
                    return self.add_problem(&source::without_secrets(&given), not_known("version", &other), location);
                }
            },
        };
        let has_version = calling.has_version_beside_source || versions.is_some();
        let inputs = calling.arguments.iter().map(|(name, value)| (name.clone(), scope.value(value))).collect();
        match ModuleSource::parse(&given, has_version, self.client) {
            Ok(source) => {
                let versions = versions.unwrap_or_default();
                self.module.calls.push(ModuleCall { source, versions, inputs, location: location.clone() });
            }
            Err(reason) => self.add_problem(&source::without_secrets(&given), reason, location),
        }
    }
}

/// The reason why a source or version is unknown, and the remedy.
fn not_known(subject: &str, value: &Constant) -> String {
    match value {
        Constant::Unknown(depends_on) => format!("its {subject} depends on {depends_on}"),
        _ => format!("its {subject} is not a string, and clients take nothing else"),
    }
}
