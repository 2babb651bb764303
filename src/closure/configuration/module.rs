//! What the declarations of a folder mean: which modules and providers it needs.

use std::collections::{BTreeMap, HashSet};

use super::super::order::Client;
use super::constant::Constant;
use super::declared::{Calling, Declared, Import, Required};
use super::provider::{self, Named};
use super::source::{self, Source};
use super::{Call, Module, Need, Place, Problem, Standing, required_version};
use crate::address::{Constraint, ModuleConstraint, ProviderAddress};

/// What is declared, as it is meant.
pub(super) fn of(mut declared: Declared, standing: Standing, client: Client) -> Module {
    let mut problems = std::mem::take(&mut declared.problems);
    problems.extend(required_version::problems(&declared.required_versions, client));
    let mut reading = Reading {
        client,
        names: BTreeMap::new(),
        said: HashSet::new(),
        module: Module { problems, ..Module::default() },
    };
    for (name, required) in &declared.required {
        reading.required(name, required);
    }
    for ((name, _), configured) in &declared.configured {
        let (version, at) = match &configured.version {
            Some((version, at)) => (Some(version), at),
            None => (None, &configured.at),
        };
        if let Err(why) = provider::checked_local_name(name) {
            reading.wrong(&format!("provider {name:?}"), why, at);
            continue;
        }
        reading.needed(name, version, at);
    }
    if client == Client::Opentofu {
        // To Terraform, what only a test configures is nothing that `init` installs.
        declared.configured_by_tests.iter().for_each(|(name, at)| reading.needed(name, None, at));
    }
    for user in declared.users.values() {
        match &user.provider {
            Some(name) => reading.named(name, &user.at),
            None => reading.needed(provider::implied_by(&user.type_), None, &user.at),
        }
    }
    for import in &declared.imports {
        if standing == Standing::Called {
            reading.wrong("import", "clients refuse it in a module that is called".to_owned(), &import.at);
            continue;
        }
        if !import.to.first().is_some_and(|to| declared.users.contains_key(&format!("resource.{to}.{}", last(import))))
        {
            reading.imported(import);
        }
    }
    for (name, calling) in &declared.calls {
        reading.call(&format!("module {name:?}"), calling);
    }
    for (name, calling) in &declared.test_calls {
        reading.call(name, calling);
    }
    reading.module.problems.sort_by(|a, b| a.at.cmp(&b.at));
    reading.module
}

/// The name of the resource that an import is to, where its type is the first of its names.
fn last(import: &Import) -> &str {
    import.to.get(1).map(String::as_str).unwrap_or_default()
}

struct Reading {
    client: Client,
    /// What `required_providers` says of local names.
    names: BTreeMap<String, Named>,
    /// What is needed already: the first place that says so is enough.
    said: HashSet<(ProviderAddress, Option<Constraint>)>,
    module: Module,
}

impl Reading {
    fn wrong(&mut self, what: &str, why: String, at: &Place) {
        self.module.problems.push(Problem { what: what.to_owned(), why, at: at.clone() });
    }

    fn required(&mut self, name: &str, Required { source, version, at }: &Required) {
        let what = format!("provider {name:?}");
        if let Err(why) = provider::checked_local_name(name) {
            return self.wrong(&what, why, at);
        }
        let named = match source {
            None => provider::of_local_name(name, self.client),
            Some(Constant::Text(source)) => provider::of_source(source, self.client),
            Some(_) => Err("its source is not a plain string, and clients take nothing else".to_owned()),
        };
        match named {
            Ok(named) => {
                self.names.insert(name.to_owned(), named.clone());
                self.need(&what, &named, version.as_ref(), at);
            }
            Err(why) => self.wrong(&what, why, at),
        }
    }

    /// The provider of a local name that something names itself.
    fn named(&mut self, name: &str, at: &Place) {
        match provider::checked_local_name(name) {
            Ok(()) => self.needed(name, None, at),
            Err(why) => self.wrong(&format!("provider {name:?}"), why, at),
        }
    }

    fn needed(&mut self, name: &str, version: Option<&Constant>, at: &Place) {
        let what = format!("provider {name:?}");
        let named = match self.names.get(name) {
            Some(named) => Ok(named.clone()),
            None => provider::of_local_name(name, self.client),
        };
        match named {
            Ok(named) => self.need(&what, &named, version, at),
            Err(why) => self.wrong(&what, why, at),
        }
    }

    fn need(&mut self, what: &str, named: &Named, version: Option<&Constant>, at: &Place) {
        let versions = match version {
            None | Some(Constant::Null) => None,
            Some(Constant::Text(version)) => match Constraint::parse(version.trim()) {
                Ok(versions) => Some(versions),
                Err(bad) => return self.wrong(what, bad.to_string(), at),
            },
            Some(Constant::Composed | Constant::Computed) => {
                let why = "its version is not a plain string, and clients take nothing else";
                return self.wrong(what, why.to_owned(), at);
            }
        };
        match (named, versions) {
            (Named::Provider(provider), versions) => {
                if !self.said.insert((provider.clone(), versions.clone())) {
                    return;
                }
                self.module.needs.push(Need { provider: provider.clone(), versions, at: at.clone() });
            }
            (Named::BuiltIn, None) => {}
            (Named::BuiltIn, Some(_)) => {
                self.wrong(what, "it is part of the client, which has no choice of versions".to_owned(), at);
            }
        }
    }

    fn imported(&mut self, Import { to, provider, at }: &Import) {
        let mut to = to.as_slice();
        while let [module, _, rest @ ..] = to
            && module == "module"
        {
            // What is imported into another module is that module's affair to Terraform.
            if self.client == Client::Terraform {
                return;
            }
            to = rest;
        }
        let name = match (provider, to.first()) {
            (Some(name), _) => name.as_str(),
            (None, Some(type_)) => provider::implied_by(type_),
            (None, None) => return,
        };
        self.needed(name, None, at);
    }

    fn call(&mut self, name: &str, calling: &Calling) {
        let (given, at) = match &calling.source {
            Some((Constant::Text(given), at)) => (given, at),
            Some((_, at)) => return self.wrong(name, computed("source", self.client), at),
            None => return self.wrong(name, "it has no source".to_owned(), &calling.at),
        };
        let versions = match &calling.version {
            None | Some((Constant::Null, _)) => None,
            Some((Constant::Text(version), at)) => match ModuleConstraint::parse(version) {
                Ok(versions) => Some(versions),
                Err(bad) => return self.wrong(&source::shown(given), bad.to_string(), at),
            },
            Some((_, at)) => return self.wrong(&source::shown(given), computed("version", self.client), at),
        };
        let has_version = calling.has_version_beside_source || versions.is_some();
        match Source::parse(given, has_version, self.client) {
            Ok(source) => {
                self.module.calls.push(Call { source, versions: versions.unwrap_or_default(), at: at.clone() });
            }
            Err(why) => self.wrong(&source::shown(given), why, at),
        }
    }
}

/// Why something that is worked out cannot be told.
fn computed(what: &str, client: Client) -> String {
    match client {
        Client::Terraform => format!("its {what} is not a plain string, and Terraform takes nothing else"),
        Client::Opentofu => format!(
            "its {what} depends on other values. OpenTofu may work it out, this cannot: write it as a plain string, or name what it comes to"
        ),
    }
}
