//! Resolves an order to the archives that an `init` needs, as the clients do. Unavailable items are listed; everything
//! else is still resolved.

mod queries;
#[cfg(test)]
mod tests;
mod tree;
mod versions;

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;

use self::queries::{LocalModules, RegistryQueries};
use super::configuration::{
    self, ModuleRole, ModuleSource, NO_PACKAGE, TEST_FOLDER, VariableValues, is_configuration, is_for_opentofu_only,
    is_test,
};
use super::files::child_path;
use super::files::{LOCK_FILE, resolve_path};
use super::{
    ClientKind, Configurations, Files, Order, OrderEntry, Registries, RequiredArchive, ResolvedRequirements,
    ResolvedRoot, UnavailableItem, Unreadable, lock_file,
};
use crate::address::{Artifact, Platform};

/// Resolves an order. Each list and module is queried once, a few at a time.
///
/// The chosen versions are those of an `init` in folders without installed providers, from the registries' current
/// lists. A provider is required for every platform; a module once.
pub async fn resolve(order: &Order, registries: &impl Registries) -> ResolvedRequirements {
    let queries = RegistryQueries::new(registries);
    let resolutions = order.given.iter().map(|entry| async {
        match entry {
            OrderEntry::Address { what: selector, platforms } => {
                let platforms = if platforms.is_empty() { &order.platforms } else { platforms };
                versions::resolve_address(&queries, selector, platforms, &[], &selector.to_string()).await
            }
            OrderEntry::LockFile { name, locked } => {
                versions::resolve_lock_file(&queries, name, locked, &order.platforms).await
            }
            OrderEntry::Configurations(configurations) => {
                resolve_configurations(&queries, configurations, &order.platforms).await
            }
        }
    });
    let results = join_all(resolutions.collect::<Vec<_>>()).await;
    results.into_iter().collect::<ResolutionResult>().into_requirements()
}

/// Resolves the roots of configurations, one after the other, so that a query of several roots is sent once.
async fn resolve_configurations(
    queries: &RegistryQueries<'_, impl Registries>,
    configurations: &Configurations,
    platforms: &[Platform],
) -> ResolutionResult {
    let mut result = ResolutionResult::default();
    let local = LocalModules::new(configurations);
    let (roots, problems) = local.roots().await;
    problems.into_iter().for_each(|reason| result.add_unavailable(CONFIGURATION, reason, []));
    result.notes.extend(roots.iter().filter_map(|root| root.note.clone()));
    for root in roots {
        result.extend([tree::resolve_root(queries, &local, &root, platforms).await]);
    }
    result
}

/// The name of an order's files, for people.
const CONFIGURATION: &str = "the configuration";
/// The most roots of one order.
const MAX_ROOTS: usize = 512;

/// A root module.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Root {
    /// The folder of the root in the order's files; `""` is the top.
    folder: String,
    /// The client whose rules apply.
    client: ClientKind,
    /// A sentence about the choice of the client, where the files are for both.
    note: Option<String>,
}

impl Root {
    /// The name of the root, for people.
    fn name(&self) -> &str {
        if self.folder.is_empty() { CONFIGURATION } else { &self.folder }
    }
}

/// The roots that the order names; if it names none, those of [`root_folders`]. Also returns the problems that concern no single root.
fn find_roots(configurations: &Configurations) -> (Vec<Root>, Vec<String>) {
    let mut problems = Vec::new();
    let Configurations { files, roots, client, .. } = configurations;
    let folders: BTreeSet<String> = match roots.as_slice() {
        [] => root_folders(files).into_iter().collect(),
        roots => roots.iter().cloned().collect(),
    };
    let root = |folder: String| {
        let detected = client_of(files, &folder);
        let note = client.is_none().then(|| note_on_client(files, &folder, detected)).flatten();
        Root { client: client.unwrap_or(detected), folder, note }
    };
    let mut roots: Vec<Root> = folders.into_iter().map(root).collect();
    if roots.is_empty() {
        let reason = "every folder is called as a module by another one: name the folders in which init runs";
        problems.push(reason.to_owned());
    }
    if roots.len() > MAX_ROOTS {
        problems.push(format!(
            "there are {} folders in which init would run, and at most {MAX_ROOTS} can be resolved at once: name fewer",
            roots.len()
        ));
        roots.truncate(MAX_ROOTS);
    }
    (roots, problems)
}

/// The folders with a configuration that no other folder calls, and those with a lock file, in which `init` ran. Calls in test
/// files count too. A folder of tests is not a root.
pub(super) fn root_folders(files: &Files) -> Vec<String> {
    let has_file =
        |folder: &str, matches: fn(&str) -> bool| files.in_folder(folder).iter().any(|(name, _)| matches(name));
    let has_configuration = |folder: &str| has_file(folder, is_configuration);
    let is_test_folder = |folder: &str| {
        let (parent, name) = folder.rsplit_once('/').unwrap_or(("", folder));
        name == TEST_FOLDER && has_file(folder, is_test) && has_configuration(parent)
    };
    let called = called_folders(files);
    let folders = files.folders().into_iter().filter(|folder| has_configuration(folder));
    let is_root = |folder: &str| !called.contains(folder) || has_file(folder, |name| name == LOCK_FILE);
    folders.filter(|folder| is_root(folder) && !is_test_folder(folder)).map(str::to_owned).collect()
}

/// The folders that the configurations call by a local path, but for their own.
pub(super) fn called_folders(files: &Files) -> BTreeSet<String> {
    let mut called = BTreeSet::new();
    for folder in files.folders() {
        let module = configuration::read(
            files,
            folder,
            ModuleRole::Root,
            client_of(files, folder),
            NO_PACKAGE,
            &VariableValues::new(),
        );
        for call in module.calls {
            let ModuleSource::Local(call_path) = call.source else { continue };
            called.extend(resolve_path(folder, &call_path).filter(|target| target != folder));
        }
    }
    called
}

/// A sentence about the choice of a root's client, where its lock file names the registries of both.
fn note_on_client(files: &Files, folder: &str, client: ClientKind) -> Option<String> {
    let path = child_path(folder, LOCK_FILE);
    let locked = lock_file::parse(files.get(&path)?.ok()?.as_bytes()).ok()?;
    let names = |client: ClientKind| locked.iter().any(|locked| locked.provider.host.as_str() == client.default_host());
    let other = ClientKind::ALL.into_iter().find(|other| *other != client)?;
    (names(client) && names(other)).then(|| {
        format!(
            "{path} names the registries of both clients; addresses without a host are of {}, as for {} (--client {} for the other)",
            client.default_host(),
            client.label(),
            other.label(),
        )
    })
}

/// The client of a root: OpenTofu if a file there is for OpenTofu only, or if OpenTofu wrote the lock file; otherwise
/// Terraform.
fn client_of(files: &Files, folder: &str) -> ClientKind {
    let is_for_opentofu = |(name, text): &(&str, Result<&str, Unreadable>)| match *name {
        LOCK_FILE => lock_file::parse(text.unwrap_or_default().as_bytes()).is_ok_and(|locked| {
            locked.iter().any(|locked| locked.provider.host.as_str() == ClientKind::Opentofu.default_host())
        }),
        name => is_for_opentofu_only(name),
    };
    if files.in_folder(folder).iter().any(is_for_opentofu) { ClientKind::Opentofu } else { ClientKind::Terraform }
}

/// The maximum number of requirements listed for one item.
const MAX_REQUIRED_BY: usize = 16;

/// The maximum length of the subject and of the reason of one item, in characters.
const MAX_TEXT_CHARS: usize = 4096;

/// The maximum number of unavailable items.
const MAX_UNAVAILABLE: usize = 4096;

/// The requirements and unavailable items found so far.
#[derive(Debug, Default)]
struct ResolutionResult {
    required: BTreeMap<Artifact, RequirementDetails>,
    /// The requirements that name each unavailable item, by its subject and reason.
    unavailable: BTreeMap<(String, String), BTreeSet<String>>,
    /// Sentences about choices, for people.
    notes: BTreeSet<String>,
    roots: Vec<ResolvedRoot>,
}

/// The lock-file hashes of a required artifact, and the requirements that name it.
#[derive(Debug, Default)]
struct RequirementDetails {
    hashes: BTreeSet<Vec<String>>,
    required_by: BTreeSet<String>,
}

impl ResolutionResult {
    /// Requires an artifact; `required_by` names the requirements, `hashes` are those of a lock file.
    fn require(&mut self, artifact: Artifact, hashes: &[String], required_by: impl IntoIterator<Item = String>) {
        let details = self.required.entry(artifact).or_default();
        if !hashes.is_empty() {
            let mut hashes = hashes.to_vec();
            hashes.sort();
            hashes.dedup();
            details.hashes.insert(hashes);
        }
        details.required_by.extend(required_by);
    }

    /// Adds an unavailable item.
    fn add_unavailable(
        &mut self,
        subject: impl Into<String>,
        reason: impl Into<String>,
        required_by: impl IntoIterator<Item = String>,
    ) {
        self.add_unavailable_item((shortened_text(subject.into()), shortened_text(reason.into())), required_by);
    }

    fn add_unavailable_item(&mut self, item: (String, String), required_by: impl IntoIterator<Item = String>) {
        if self.unavailable.len() < MAX_UNAVAILABLE || self.unavailable.contains_key(&item) {
            self.unavailable.entry(item).or_default().extend(required_by);
        }
    }

    /// The unavailable items, for people.
    fn unavailable_items(&self) -> Vec<UnavailableItem> {
        let items = self.unavailable.iter().map(|((subject, reason), required_by)| UnavailableItem {
            subject: subject.clone(),
            reason: reason.clone(),
            required_by: shortened_list(required_by.clone(), MAX_REQUIRED_BY),
        });
        items.collect()
    }

    /// Converts into the final requirements.
    fn into_requirements(self) -> ResolvedRequirements {
        let unavailable = self.unavailable_items();
        let archives = self.required.into_iter().map(|(artifact, details)| RequiredArchive {
            artifact,
            hashes: details.hashes.into_iter().collect(),
            required_by: shortened_list(details.required_by, MAX_REQUIRED_BY),
        });
        let truncation_notice = (self.unavailable.len() >= MAX_UNAVAILABLE).then(|| UnavailableItem {
            subject: "further items".to_owned(),
            reason: format!("{MAX_UNAVAILABLE} items are unavailable (stopped there); fix these first"),
            required_by: Vec::new(),
        });
        ResolvedRequirements {
            archives: archives.collect(),
            unavailable: unavailable.into_iter().chain(truncation_notice).collect(),
            notes: self.notes.into_iter().collect(),
            roots: self.roots,
        }
    }
}

impl Extend<ResolutionResult> for ResolutionResult {
    fn extend<T: IntoIterator<Item = ResolutionResult>>(&mut self, results: T) {
        for ResolutionResult { required, unavailable, notes, roots } in results {
            for (artifact, RequirementDetails { hashes, required_by }) in required {
                let details = self.required.entry(artifact).or_default();
                details.hashes.extend(hashes);
                details.required_by.extend(required_by);
            }
            unavailable.into_iter().for_each(|(item, required_by)| self.add_unavailable_item(item, required_by));
            self.notes.extend(notes);
            self.roots.extend(roots);
        }
    }
}

impl FromIterator<ResolutionResult> for ResolutionResult {
    fn from_iter<T: IntoIterator<Item = ResolutionResult>>(results: T) -> Self {
        let mut merged = Self::default();
        merged.extend(results);
        merged
    }
}

/// Truncates a text: users' texts may have any length.
fn shortened_text(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(MAX_TEXT_CHARS) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// The first `max` names, and the number of the others.
fn shortened_list(names: BTreeSet<String>, max: usize) -> Vec<String> {
    let omitted = names.len().saturating_sub(max);
    let mut named: Vec<String> = names.into_iter().take(max).collect();
    if omitted > 0 {
        named.push(format!("and {omitted} more"));
    }
    named
}
