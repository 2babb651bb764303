//! Walks the module calls of one root, and collects the requirements of all its modules.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::join_all;

use super::super::Registries;
use super::super::configuration::{Module, ModuleCall, ModuleRole, ProviderRequirement};
use super::local::{LocalModules, Root};
use super::module_calls::{self, CallTarget, CalledFolder, UnavailableCall};
use super::registry_queries::RegistryQueries;
use super::resolution_result::ResolutionResult;
use super::versions;
use crate::address::{Artifact, Platform};

/// The maximum depth of module calls.
const MAX_DEPTH: usize = 64;
/// The most folders of one root.
const MAX_FOLDERS: usize = 4096;
/// The maximum number of calls followed in one level.
const MAX_CALLS: usize = 8192;

/// Collects the requirements of `init` in a root.
pub(super) async fn resolve_root(
    queries: &RegistryQueries<'_, impl Registries>,
    local: &LocalModules,
    root: &Root,
    platforms: &[Platform],
    result: &mut ResolutionResult,
) {
    let mut walk =
        RequirementsWalk { queries, local, root, result, visited: BTreeMap::new(), provider_requirements: Vec::new() };
    walk.visit_all().await;
    let provider_requirements = std::mem::take(&mut walk.provider_requirements);
    versions::choose_versions(queries, local.files(), root, &provider_requirements, platforms, result).await;
}

struct RequirementsWalk<'a, R> {
    queries: &'a RegistryQueries<'a, R>,
    local: &'a LocalModules,
    root: &'a Root,
    result: &'a mut ResolutionResult,
    /// The folders that each visited folder calls, with the location of the call.
    visited: BTreeMap<CalledFolder, BTreeMap<CalledFolder, String>>,
    provider_requirements: Vec<ProviderRequirement>,
}

impl<R: Registries> RequirementsWalk<'_, R> {
    /// Reads folders level by level, each once.
    async fn visit_all(&mut self) {
        let root_folder = CalledFolder { package: None, folder: self.root.folder.clone(), inputs: Arc::default() };
        let mut level = BTreeSet::from([root_folder.clone()]);
        for _ in 0..MAX_DEPTH {
            if level.is_empty() || self.visited.len() + level.len() > MAX_FOLDERS {
                break;
            }
            level = self.visit_level(level, &root_folder).await;
        }
        if !level.is_empty() {
            let reason =
                format!("modules call each other more than {MAX_DEPTH} deep, or are more than {MAX_FOLDERS} folders");
            self.result.add_unavailable(self.name(), reason, []);
        }
        self.report_cycles(&root_folder);
    }

    /// Reads the folders of one level, and returns those of the next.
    async fn visit_level(
        &mut self,
        level: BTreeSet<CalledFolder>,
        root_folder: &CalledFolder,
    ) -> BTreeSet<CalledFolder> {
        let (queries, local, client) = (self.queries, self.local, self.root.client);
        let reads = level.iter().map(|folder| async move {
            match &folder.package {
                Some(package) => queries.module(package, &folder.folder, client, &folder.inputs).await,
                None => {
                    let role = if folder == root_folder { ModuleRole::Root } else { ModuleRole::Child };
                    Ok(local.module(&folder.folder, role, client, &folder.inputs).await)
                }
            }
        });
        let modules: Vec<Result<Arc<Module>, String>> = join_all(reads.collect::<Vec<_>>()).await;
        // Unreadable folders were reported when the call was followed.
        let modules: Vec<(&CalledFolder, Arc<Module>)> =
            level.iter().zip(modules).filter_map(|(folder, module)| Some((folder, module.ok()?))).collect();
        let mut calls: Vec<(&CalledFolder, &ModuleCall)> = Vec::new();
        for (folder, module) in &modules {
            calls.extend(module.calls.iter().map(|call| (*folder, call)));
        }
        if calls.len() > MAX_CALLS {
            let reason = format!(
                "one level of the configuration has more than {MAX_CALLS} module calls: the others were not resolved"
            );
            self.result.add_unavailable(self.name(), reason, []);
            calls.truncate(MAX_CALLS);
        }
        if let Err(reason) = queries.count_calls(calls.len()) {
            self.result.add_unavailable(self.name(), reason, []);
            calls.clear();
        }
        // Cached answers complete without waiting; let other tasks run.
        tokio::task::yield_now().await;
        let mut followed = Vec::with_capacity(calls.len());
        for (folder, call) in calls {
            followed
                .push(async move { (folder, call, module_calls::follow(queries, local, folder, call, client).await) });
        }
        let targets = join_all(followed).await;
        for (folder, module) in &modules {
            self.visited.entry((*folder).clone()).or_default();
            self.provider_requirements.extend(module.provider_requirements.iter().cloned());
            for problem in &module.problems {
                self.result.add_unavailable(&problem.subject, &problem.reason, [problem.location.to_string()]);
            }
        }
        let mut next = BTreeSet::new();
        for (folder, call, target) in targets {
            self.record_target(folder, call, target, &mut next);
        }
        next
    }

    /// Records the target of a call, and adds it to the next level unless it was visited.
    fn record_target(
        &mut self,
        caller: &CalledFolder,
        call: &ModuleCall,
        CallTarget { target, required_package }: CallTarget,
        next: &mut BTreeSet<CalledFolder>,
    ) {
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
            Err(UnavailableCall { subject, reason }) => self.result.add_unavailable(subject, reason, [required_by]),
        }
    }

    /// Reports calls that lead back to one of their own callers. Clients follow such a cycle until their paths are too
    /// long.
    fn report_cycles(&mut self, root_folder: &CalledFolder) {
        let (mut finished, mut ancestors) = (BTreeSet::new(), BTreeSet::from([root_folder]));
        let mut path: Vec<(&CalledFolder, Vec<(&CalledFolder, &String)>)> =
            vec![(root_folder, self.called_by(root_folder))];
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
                let calls = self.called_by(called);
                ancestors.insert(called);
                path.push((called, calls));
            }
        }
        for required_by in cycle_calls {
            let reason = "the call leads back to one of its own callers: clients never finish loading it";
            self.result.add_unavailable(format!("the module called at {required_by}"), reason, [required_by]);
        }
    }

    fn called_by(&self, folder: &CalledFolder) -> Vec<(&CalledFolder, &String)> {
        self.visited.get(folder).into_iter().flatten().collect()
    }

    /// The name of the root, for people.
    fn name(&self) -> String {
        match self.root.folder.as_str() {
            "" => "the configuration".to_owned(),
            folder => folder.to_owned(),
        }
    }
}
