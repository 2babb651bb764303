//! Walks the module calls of one root, and collects the requirements of all its modules.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::join_all;

use super::super::Registries;
use super::super::configuration::{FolderRole, Module, ModuleCall, ProviderRequirement};
use super::local::LocalFolders;
use super::module_calls::{self, CallTarget, CalledFolder, UnavailableCall};
use super::providers;
use super::registry_queries::RegistryQueries;
use super::resolution_result::ResolutionResult;
use super::root_modules::Root;
use crate::address::{Artifact, Platform};

/// Depth of module calls.
const DEEPEST: usize = 64;
/// The most folders of one root.
const MAX_FOLDERS: usize = 4096;
/// The maximum number of calls followed in one level.
const MAX_CALLS: usize = 8192;

/// Collects the requirements of `init` in a root.
pub(super) async fn of_root(
    queries: &RegistryQueries<'_, impl Registries>,
    local: &LocalFolders,
    root: &Root,
    platforms: &[Platform],
    found: &mut ResolutionResult,
) {
    let mut walk =
        RequirementsWalk { queries, local, root, result: found, visited: BTreeMap::new(), needs: Vec::new() };
    walk.walk().await;
    let needs = std::mem::take(&mut walk.needs);
    providers::choose(queries, local.files(), root, &needs, platforms, found).await;
}

struct RequirementsWalk<'a, R> {
    queries: &'a RegistryQueries<'a, R>,
    local: &'a LocalFolders,
    root: &'a Root,
    result: &'a mut ResolutionResult,
    /// The calls of each folder.
    visited: BTreeMap<CalledFolder, BTreeMap<CalledFolder, String>>,
    needs: Vec<ProviderRequirement>,
}

impl<R: Registries> RequirementsWalk<'_, R> {
    /// Reads folders level by level, each once.
    async fn walk(&mut self) {
        let top = CalledFolder { package: None, folder: self.root.folder.clone(), inputs: Arc::default() };
        let mut level = BTreeSet::from([top.clone()]);
        for _ in 0..DEEPEST {
            if level.is_empty() || self.visited.len() + level.len() > MAX_FOLDERS {
                break;
            }
            level = self.next_level(level, &top).await;
        }
        if !level.is_empty() {
            let reason =
                format!("modules call each other more than {DEEPEST} deep, or are more than {MAX_FOLDERS} folders");
            self.result.add_unavailable(self.name(), reason, []);
        }
        self.refuse_cycles(&top);
    }

    async fn next_level(&mut self, level: BTreeSet<CalledFolder>, top: &CalledFolder) -> BTreeSet<CalledFolder> {
        let (queries, local, client) = (self.queries, self.local, self.root.client);
        let read = level.iter().map(|spot| async move {
            match &spot.package {
                Some(package) => queries.module(package, &spot.folder, client, &spot.inputs).await,
                None => {
                    let role = if spot == top { FolderRole::Root } else { FolderRole::Called };
                    Ok(local.module(&spot.folder, role, client, &spot.inputs).await)
                }
            }
        });
        let modules: Vec<Result<Arc<Module>, String>> = join_all(read.collect::<Vec<_>>()).await;
        // Unreadable folders were reported when the call was followed.
        let modules: Vec<(&CalledFolder, Arc<Module>)> =
            level.iter().zip(modules).filter_map(|(spot, module)| Some((spot, module.ok()?))).collect();
        let mut calls: Vec<(&CalledFolder, &ModuleCall)> = Vec::new();
        for (spot, module) in &modules {
            calls.extend(module.calls.iter().map(|call| (*spot, call)));
        }
        if calls.len() > MAX_CALLS {
            let reason = format!("there are more than {MAX_CALLS} module calls in it: the others were not resolved");
            self.result.add_unavailable(self.name(), reason, []);
            calls.truncate(MAX_CALLS);
        }
        if let Err(reason) = queries.may_follow(calls.len()) {
            self.result.add_unavailable(self.name(), reason, []);
            calls.clear();
        }
        // Cached answers complete without waiting; let other tasks run.
        tokio::task::yield_now().await;
        let mut follow = Vec::with_capacity(calls.len());
        for (spot, call) in calls {
            follow.push(async move { (spot, call, module_calls::follow(queries, local, spot, call, client).await) });
        }
        let targets = join_all(follow).await;
        for (spot, module) in &modules {
            self.visited.entry((*spot).clone()).or_default();
            self.needs.extend(module.needs.iter().cloned());
            for problem in &module.problems {
                self.result.add_unavailable(&problem.subject, &problem.reason, [problem.location.to_string()]);
            }
        }
        let mut next = BTreeSet::new();
        for (spot, call, targets) in targets {
            self.follow_calls(spot, call, targets, &mut next);
        }
        next
    }

    fn follow_calls(
        &mut self,
        from: &CalledFolder,
        call: &ModuleCall,
        CallTarget { target, through }: CallTarget,
        next: &mut BTreeSet<CalledFolder>,
    ) {
        let required_by = call.location.to_string();
        if let Some(package) = through {
            self.result.require(Artifact::Module(package), &[], [required_by.clone()]);
        }
        match target {
            Ok(to) => {
                if !self.visited.contains_key(&to) {
                    next.insert(to.clone());
                }
                self.visited.entry(from.clone()).or_default().entry(to).or_insert(required_by);
            }
            Err(UnavailableCall { subject, reason }) => self.result.add_unavailable(subject, reason, [required_by]),
        }
    }

    /// Clients follow a cycle until their paths are too long.
    fn refuse_cycles(&mut self, top: &CalledFolder) {
        let (mut done, mut above) = (BTreeSet::new(), BTreeSet::from([top]));
        let mut path: Vec<(&CalledFolder, Vec<(&CalledFolder, &String)>)> = vec![(top, self.called_by(top))];
        let mut round = Vec::new();
        while let Some((spot, rest)) = path.last_mut() {
            let Some((to, required_by)) = rest.pop() else {
                done.insert(*spot);
                above.remove(*spot);
                path.pop();
                continue;
            };
            if above.contains(to) {
                round.push(required_by.clone());
            } else if !done.contains(to) {
                let calls = self.called_by(to);
                above.insert(to);
                path.push((to, calls));
            }
        }
        for required_by in round {
            let reason = "it leads back to a folder that it is called by: no client comes to an end with it";
            self.result.add_unavailable(format!("the module called at {required_by}"), reason, [required_by]);
        }
    }

    fn called_by(&self, spot: &CalledFolder) -> Vec<(&CalledFolder, &String)> {
        self.visited.get(spot).into_iter().flatten().collect()
    }

    fn name(&self) -> String {
        match self.root.folder.as_str() {
            "" => "the configuration".to_owned(),
            folder => folder.to_owned(),
        }
    }
}
