//! Follows module calls: to another folder of the same files, or into a registry's module.

use std::sync::Arc;

use super::super::configuration::{self, FolderRole, Inputs, ModuleCall, ModuleSource};
use super::super::request::ClientKind;
use super::super::{Files, Registries, path};
use super::local::LocalFolders;
use super::registry_queries::RegistryQueries;
use super::version_selection;
use crate::address::{ModuleAddress, ModuleConstraint, ModulePackage, Version};

/// A folder to read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CalledFolder {
    /// Its module; `None` for a user's own files.
    pub(super) package: Option<ModulePackage>,
    /// Its path there.
    pub(super) folder: String,
    /// The values that decide its calls; empty for a root, whose values are in files.
    pub(super) inputs: Arc<Inputs>,
}

/// The target of a call.
pub(super) struct CallTarget {
    /// The called folder, or the reason why there is none.
    pub(super) target: Result<CalledFolder, UnavailableCall>,
    /// The registry module that it passes through, which is required in any case.
    pub(super) through: Option<ModulePackage>,
}

/// A call whose module is unavailable.
pub(super) struct UnavailableCall {
    /// The source of the call, for people.
    pub(super) subject: String,
    /// The reason.
    pub(super) reason: String,
}

/// Follows a call in the folder at `from`.
pub(super) async fn follow(
    queries: &RegistryQueries<'_, impl Registries>,
    local: &LocalFolders,
    from: &CalledFolder,
    call: &ModuleCall,
    client: ClientKind,
) -> CallTarget {
    let CallTarget { target, through } = resolve_call(queries, local.files(), from, call, client).await;
    match target {
        Ok(to) => CallTarget { target: Ok(with_inputs(queries, local, to, call, client).await), through },
        refused => CallTarget { target: refused, through },
    }
}

/// The folder with the values of a call that decide what it calls. Without any, all callers share it.
async fn with_inputs(
    queries: &RegistryQueries<'_, impl Registries>,
    local: &LocalFolders,
    to: CalledFolder,
    call: &ModuleCall,
    client: ClientKind,
) -> CalledFolder {
    if call.inputs.is_empty() {
        return to;
    }
    let module = match &to.package {
        Some(package) => match queries.module(package, &to.folder, client, &to.inputs).await {
            Ok(module) => module,
            Err(_) => return to,
        },
        None => local.module(&to.folder, FolderRole::Called, client, &to.inputs).await,
    };
    let deciding = call.inputs.iter().filter(|(name, _)| module.inputs.contains(*name));
    let inputs: Inputs = deciding.map(|(name, value)| (name.clone(), value.clone())).collect();
    CalledFolder { inputs: Arc::new(inputs), ..to }
}

async fn resolve_call(
    queries: &RegistryQueries<'_, impl Registries>,
    files: &Files,
    from: &CalledFolder,
    call: &ModuleCall,
    client: ClientKind,
) -> CallTarget {
    match &call.source {
        ModuleSource::Local(to) => {
            CallTarget { target: resolve_local_call(queries, files, from, to).await, through: None }
        }
        ModuleSource::Registry { module, subdir } => match choose(queries, module, &call.versions).await {
            Ok(package) => {
                CallTarget { target: folder_within(queries, &package, subdir, client).await, through: Some(package) }
            }
            Err(reason) => CallTarget {
                target: Err(UnavailableCall { subject: describe_module(module, &call.versions), reason }),
                through: None,
            },
        },
    }
}

async fn resolve_local_call(
    queries: &RegistryQueries<'_, impl Registries>,
    files: &Files,
    from: &CalledFolder,
    to: &str,
) -> Result<CalledFolder, UnavailableCall> {
    let refused = |reason: String| UnavailableCall { subject: configuration::without_secrets(to), reason };
    let Some(folder) = path::join(&from.folder, to) else {
        return Err(refused(match &from.package {
            Some(package) => {
                format!("it leads out of {package}, and clients refuse that: its publisher has to change it")
            }
            None => "it leads out of the files that were handed over: hand over a folder that has both".to_owned(),
        }));
    };
    let has_folder = match &from.package {
        // The caller was read from these files, so they are loaded.
        Some(package) => queries.module_files(package).await.is_ok_and(|files| files.files.has_folder(&folder)),
        None => files.has_folder(&folder),
    };
    if let (None, Some((path, reason))) = (&from.package, files.describe_obstacle(&folder)) {
        return Err(refused(format!("{path}: {reason}")));
    }
    if !has_folder {
        return Err(refused(match &from.package {
            Some(package) => format!("{package} has no file that a client reads in {folder:?}"),
            None => format!(
                "{folder:?} is not there, or has no configuration: hand that folder over too, or correct the path"
            ),
        }));
    }
    Ok(CalledFolder { package: from.package.clone(), folder, inputs: Arc::default() })
}

/// The newest version that a call allows.
async fn choose(
    queries: &RegistryQueries<'_, impl Registries>,
    module: &ModuleAddress,
    versions: &ModuleConstraint,
) -> Result<ModulePackage, String> {
    let choose =
        |listed: &[Version]| versions.newest(listed).cloned().ok_or_else(|| no_version(versions, listed.len()));
    let version = version_selection::of_module(queries, module, choose).await?;
    Ok(ModulePackage { module: module.clone(), version })
}

fn no_version(versions: &ModuleConstraint, number: usize) -> String {
    if *versions == ModuleConstraint::default() {
        return format!("none of the {number} versions that are listed is a release");
    }
    format!(
        "none of the {number} versions that are listed is what {versions:?} asks for: change the constraint",
        versions = versions.to_string()
    )
}

async fn folder_within(
    queries: &RegistryQueries<'_, impl Registries>,
    package: &ModulePackage,
    subdir: &str,
    client: ClientKind,
) -> Result<CalledFolder, UnavailableCall> {
    let refused = |reason| UnavailableCall { subject: package.to_string(), reason };
    let unread =
        |reason| format!("what it calls and needs is not known, because its files could not be read: {reason}");
    let files = queries.module_files(package).await.map_err(|reason| refused(unread(reason)))?;
    let folder = path::join(&files.subdir, subdir);
    let folder = folder.filter(|folder| files.files.has_folder(folder));
    let folder = folder.ok_or_else(|| refused(format!("it has no file that a client reads in {subdir:?}")))?;
    let called = CalledFolder { package: Some(package.clone()), folder, inputs: Arc::default() };
    queries
        .module(package, &called.folder, client, &called.inputs)
        .await
        .map(|_| called)
        .map_err(|reason| refused(unread(reason)))
}

/// A module with its constraint.
fn describe_module(module: &ModuleAddress, versions: &ModuleConstraint) -> String {
    if *versions == ModuleConstraint::default() { module.to_string() } else { format!("{module}@{versions}") }
}
