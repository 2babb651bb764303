//! Walks the module calls of one root, in its own files and into registries' modules, and collects the requirements of
//! all its modules.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::join_all;

use super::super::configuration::{
    self, Module, ModuleCall, ModuleRole, ModuleSource, Problem, ProviderRequirement, VariableValues,
};
use super::super::{Registries, files};
use super::queries::{LocalModules, RegistryQueries};
use super::{ResolutionResult, Root, versions};
use crate::address::{Artifact, ModuleAddress, ModuleConstraint, ModulePackage, Platform, Version};

/// The maximum depth of module calls.
const MAX_DEPTH: usize = 64;
/// The most folders of one root.
const MAX_FOLDERS: usize = 4096;
/// The maximum number of calls followed in one level.
const MAX_CALLS: usize = 8192;

/// A folder to read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct CalledFolder {
    /// The registry module that contains the folder; `None` for a user's own files.
    package: Option<ModulePackage>,
    /// The path of the folder in that module, or in the user's files.
    folder: String,
    /// The values of variables that decide which modules the folder calls; empty for a root, whose values are in files.
    values: Arc<VariableValues>,
}

/// Collects the requirements of `init` in a root.
pub(super) async fn resolve_root(
    queries: &RegistryQueries<'_, impl Registries>,
    local: &LocalModules,
    root: &Root,
    platforms: &[Platform],
) -> ResolutionResult {
    let (visited, provider_requirements) = (BTreeMap::new(), Vec::new());
    let result = ResolutionResult::default();
    let mut walk = RequirementsWalk { queries, local, root, visited, provider_requirements, result };
    walk.visit_all().await;
    let RequirementsWalk { provider_requirements, result, .. } = walk;
    versions::choose_versions(queries, &local.configurations, root, &provider_requirements, platforms, result).await
}

/// A walk through the modules of one root.
struct RequirementsWalk<'a, R> {
    queries: &'a RegistryQueries<'a, R>,
    local: &'a LocalModules,
    root: &'a Root,
    /// The folders that each visited folder calls, with the location of the call.
    visited: BTreeMap<CalledFolder, BTreeMap<CalledFolder, String>>,
    provider_requirements: Vec<ProviderRequirement>,
    /// The requirements found so far.
    result: ResolutionResult,
}

impl<R: Registries> RequirementsWalk<'_, R> {
    /// Reads folders level by level, each once.
    async fn visit_all(&mut self) {
        let root_folder = CalledFolder { package: None, folder: self.root.folder.clone(), values: Arc::default() };
        let mut level = BTreeSet::from([root_folder.clone()]);
        for depth in 0..MAX_DEPTH {
            if level.is_empty() || self.visited.len() + level.len() > MAX_FOLDERS {
                break;
            }
            let role = if depth == 0 { ModuleRole::Root } else { ModuleRole::Child };
            level = self.visit_level(level, role).await;
        }
        if !level.is_empty() {
            self.report_limit(format!(
                "modules call each other more than {MAX_DEPTH} deep, or are more than {MAX_FOLDERS} folders"
            ));
        }
        self.report_cycles(&root_folder);
    }

    /// Reads the folders of one level, and returns those of the next.
    async fn visit_level(&mut self, level: BTreeSet<CalledFolder>, role: ModuleRole) -> BTreeSet<CalledFolder> {
        let modules = join_all(level.iter().map(|folder| self.module(folder, role)).collect::<Vec<_>>()).await;
        // Unreadable folders were reported when the call was followed.
        let modules: Vec<(&CalledFolder, Arc<Module>)> =
            level.iter().zip(modules).filter_map(|(folder, module)| Some((folder, module.ok()?))).collect();
        let calls = modules.iter().flat_map(|(folder, module)| module.calls.iter().map(move |call| (*folder, call)));
        let mut calls: Vec<(&CalledFolder, &ModuleCall)> = calls.collect();
        if calls.len() > MAX_CALLS {
            self.report_limit(format!(
                "one level of the configuration has more than {MAX_CALLS} module calls: the others were not resolved"
            ));
            calls.truncate(MAX_CALLS);
        }
        if let Err(reason) = self.queries.calls.count(calls.len()) {
            self.report_limit(reason);
            calls.clear();
        }
        // Cached answers complete without waiting; let other tasks run.
        tokio::task::yield_now().await;
        let targets = join_all(calls.iter().map(|(folder, call)| self.follow(folder, call)).collect::<Vec<_>>()).await;
        for (folder, module) in &modules {
            self.visited.entry((*folder).clone()).or_default();
            self.provider_requirements.extend(module.provider_requirements.iter().cloned());
            module.problems.iter().for_each(|problem| self.report(problem));
        }
        let mut next = BTreeSet::new();
        for ((caller, call), (required_package, target)) in calls.into_iter().zip(targets) {
            let required_by = call.location.to_string();
            if let Some(package) = required_package {
                self.result.require(Artifact::Module(package), &[], [required_by.clone()]);
            }
            match target {
                Ok(called) => {
                    if !self.visited.contains_key(&called) {
                        next.insert(called.clone());
                    }
                    self.visited.entry(caller.clone()).or_default().entry(called).or_insert(required_by);
                }
                Err(problem) => self.report(&problem),
            }
        }
        next
    }

    /// Reports calls that lead back to one of their own callers. Clients follow such a cycle until their paths are too
    /// long.
    fn report_cycles(&mut self, root_folder: &CalledFolder) {
        let called_by = |folder| self.visited.get(folder).into_iter().flatten().collect::<Vec<_>>();
        let (mut finished, mut ancestors) = (BTreeSet::new(), BTreeSet::from([root_folder]));
        let mut path = vec![(root_folder, called_by(root_folder))];
        let mut cycle_calls = Vec::new();
        while let Some((folder, unfollowed)) = path.last_mut() {
            let Some((called, required_by)) = unfollowed.pop() else {
                finished.insert(*folder);
                ancestors.remove(*folder);
                path.pop();
                continue;
            };
            if ancestors.contains(called) {
                cycle_calls.push(required_by.clone());
            } else if !finished.contains(called) {
                ancestors.insert(called);
                path.push((called, called_by(called)));
            }
        }
        for required_by in cycle_calls {
            let reason = "the call leads back to one of its own callers: clients never finish loading it";
            self.result.add_unavailable(format!("the module called at {required_by}"), reason, [required_by]);
        }
    }

    fn report(&mut self, Problem { subject, reason, location }: &Problem) {
        self.result.add_unavailable(subject, reason, [location.to_string()]);
    }

    fn report_limit(&mut self, reason: String) {
        self.result.add_unavailable(self.root.name(), reason, []);
    }

    /// The module in a folder.
    async fn module(&self, called: &CalledFolder, role: ModuleRole) -> Result<Arc<Module>, String> {
        let CalledFolder { package, folder, values } = called;
        match package {
            Some(package) => self.queries.module(package, folder, self.root.client, values).await,
            None => Ok(self.local.module(folder, role, self.root.client, values).await),
        }
    }

    /// Follows a call in the folder `caller`. Returns the registry module that the call names, whose archive is required
    /// even if the folder in it is unavailable; and the called folder, or the reason why there is none.
    async fn follow(
        &self,
        caller: &CalledFolder,
        call: &ModuleCall,
    ) -> (Option<ModulePackage>, Result<CalledFolder, Problem>) {
        let problem = |(subject, reason)| Problem { subject, reason, location: call.location.clone() };
        let (package, target) = match &call.source {
            ModuleSource::Local(path) => (None, self.local_target(caller, path).await),
            ModuleSource::Registry { module, subdir } => match self.choose_version(module, &call.versions).await {
                Ok(package) => {
                    let target = self.registry_target(&package, subdir).await;
                    (Some(package.clone()), target.map_err(|reason| (package.to_string(), reason)))
                }
                Err(reason) => (None, Err((describe_module(module, &call.versions), reason))),
            },
        };
        match target {
            Ok(called) => (package, Ok(self.with_arguments(called, call).await)),
            Err(unavailable) => (package, Err(problem(unavailable))),
        }
    }

    /// Adds the values of a call that decide which modules the called folder calls. Without such values, all callers share
    /// one entry for the folder.
    async fn with_arguments(&self, called: CalledFolder, call: &ModuleCall) -> CalledFolder {
        if call.arguments.is_empty() {
            return called;
        }
        let Ok(module) = self.module(&called, ModuleRole::Child).await else { return called };
        let deciding = call.arguments.iter().filter(|(name, _)| module.deciding_variables.contains(*name));
        let values: VariableValues = deciding.map(|(name, value)| (name.clone(), value.clone())).collect();
        CalledFolder { values: Arc::new(values), ..called }
    }

    /// The folder at a path relative to the caller; an error is a subject and a reason.
    async fn local_target(&self, caller: &CalledFolder, call_path: &str) -> Result<CalledFolder, (String, String)> {
        let unavailable = |reason: String| (configuration::without_secrets(call_path), reason);
        let Some(folder) = files::resolve_path(&caller.folder, call_path) else {
            return Err(unavailable(match &caller.package {
                Some(package) => {
                    format!("the path leads out of {package}, which clients refuse: the module's publisher has to change the path")
                }
                None => "the path leads out of the folders that larder was given: give larder a folder that contains both modules".to_owned(),
            }));
        };
        match &caller.package {
            // The caller was read from these files, so they are loaded.
            Some(package) => {
                if !self.queries.module_files(package).await.is_ok_and(|files| files.files.has_folder(&folder)) {
                    return Err(unavailable(format!("{package} has no file that a client reads in {folder:?}")));
                }
            }
            None => {
                let files = &self.local.configurations.files;
                if let Some((path, reason)) = files.blocking_entry(&folder) {
                    return Err(unavailable(format!("{path}: {reason}")));
                }
                if !files.has_folder(&folder) {
                    return Err(unavailable(format!(
                        "{folder:?} does not exist, or has no configuration: give larder that folder too, or correct the path"
                    )));
                }
            }
        }
        Ok(CalledFolder { package: caller.package.clone(), folder, values: Arc::default() })
    }

    /// The newest version that a call allows.
    async fn choose_version(
        &self,
        module: &ModuleAddress,
        versions: &ModuleConstraint,
    ) -> Result<ModulePackage, String> {
        let choose = |listed: &[Version]| {
            let reason = match *versions == ModuleConstraint::default() {
                true => "is a release".to_owned(),
                false => format!("matches {:?}: change the constraint", versions.to_string()),
            };
            let no_match = format!("none of the {} versions that are listed {reason}", listed.len());
            versions.newest(listed).cloned().ok_or(no_match)
        };
        let chosen = versions::choose(self.queries, &module.into(), None, choose).await?;
        Ok(ModulePackage { module: module.clone(), version: chosen.version })
    }

    /// The folder `subdir` of a registry module, below the folder that the registry names.
    async fn registry_target(&self, package: &ModulePackage, subdir: &str) -> Result<CalledFolder, String> {
        let unreadable = |reason| {
            format!(
                "the modules and providers that it needs are unknown, because its files could not be read: {reason}"
            )
        };
        let files = self.queries.module_files(package).await.map_err(unreadable)?;
        let folder = files::resolve_path(&files.subdir, subdir).filter(|folder| files.files.has_folder(folder));
        let folder = folder.ok_or_else(|| format!("the module has no file that a client reads in {subdir:?}"))?;
        let called = CalledFolder { package: Some(package.clone()), folder, values: Arc::default() };
        self.module(&called, ModuleRole::Child).await.map_err(unreadable)?;
        Ok(called)
    }
}

/// A module with its constraint.
fn describe_module(module: &ModuleAddress, versions: &ModuleConstraint) -> String {
    if *versions == ModuleConstraint::default() { module.to_string() } else { format!("{module}@{versions}") }
}
