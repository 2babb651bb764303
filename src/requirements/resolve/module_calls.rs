//! Follows module calls: to another folder of the same files, or into a registry's module.

use std::sync::Arc;

use super::super::configuration::{self, Inputs, ModuleCall, ModuleRole, ModuleSource};
use super::super::request::ClientKind;
use super::super::{Files, Registries, path};
use super::local::LocalModules;
use super::registry_queries::RegistryQueries;
use super::versions;
use crate::address::{ModuleAddress, ModuleConstraint, ModulePackage, Version};

/// A folder to read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CalledFolder {
    /// The registry module that contains the folder; `None` for a user's own files.
    pub(super) package: Option<ModulePackage>,
    /// The path of the folder in that module, or in the user's files.
    pub(super) folder: String,
    /// The values of variables that decide which modules the folder calls; empty for a root, whose values are in files.
    pub(super) inputs: Arc<Inputs>,
}

/// The target of a call.
pub(super) struct CallTarget {
    /// The called folder, or the reason why there is none.
    pub(super) target: Result<CalledFolder, UnavailableCall>,
    /// The registry module that the call names. Its archive is required even if the folder in it is unavailable.
    pub(super) required_package: Option<ModulePackage>,
}

/// A call whose module is unavailable.
pub(super) struct UnavailableCall {
    /// The source of the call, for people.
    pub(super) subject: String,
    /// The reason.
    pub(super) reason: String,
}

/// Follows a call in the folder `caller`.
pub(super) async fn follow(
    queries: &RegistryQueries<'_, impl Registries>,
    local: &LocalModules,
    caller: &CalledFolder,
    call: &ModuleCall,
    client: ClientKind,
) -> CallTarget {
    let CallTarget { target, required_package } = resolve_call(queries, local.files(), caller, call, client).await;
    match target {
        Ok(called) => {
            CallTarget { target: Ok(with_inputs(queries, local, called, call, client).await), required_package }
        }
        unavailable => CallTarget { target: unavailable, required_package },
    }
}

/// Adds the values of a call that decide which modules the called folder calls. Without such values, all callers share
/// one entry for the folder.
async fn with_inputs(
    queries: &RegistryQueries<'_, impl Registries>,
    local: &LocalModules,
    called: CalledFolder,
    call: &ModuleCall,
    client: ClientKind,
) -> CalledFolder {
    if call.inputs.is_empty() {
        return called;
    }
    let module = match &called.package {
        Some(package) => match queries.module(package, &called.folder, client, &called.inputs).await {
            Ok(module) => module,
            Err(_) => return called,
        },
        None => local.module(&called.folder, ModuleRole::Child, client, &called.inputs).await,
    };
    let deciding = call.inputs.iter().filter(|(name, _)| module.inputs.contains(*name));
    let inputs: Inputs = deciding.map(|(name, value)| (name.clone(), value.clone())).collect();
    CalledFolder { inputs: Arc::new(inputs), ..called }
}

async fn resolve_call(
    queries: &RegistryQueries<'_, impl Registries>,
    files: &Files,
    caller: &CalledFolder,
    call: &ModuleCall,
    client: ClientKind,
) -> CallTarget {
    match &call.source {
        ModuleSource::Local(path) => {
            CallTarget { target: resolve_local_call(queries, files, caller, path).await, required_package: None }
        }
        ModuleSource::Registry { module, subdir } => match choose_version(queries, module, &call.versions).await {
            Ok(package) => CallTarget {
                target: resolve_subfolder(queries, &package, subdir, client).await,
                required_package: Some(package),
            },
            Err(reason) => CallTarget {
                target: Err(UnavailableCall { subject: describe_module(module, &call.versions), reason }),
                required_package: None,
            },
        },
    }
}

async fn resolve_local_call(
    queries: &RegistryQueries<'_, impl Registries>,
    files: &Files,
    caller: &CalledFolder,
    call_path: &str,
) -> Result<CalledFolder, UnavailableCall> {
    let unavailable = |reason: String| UnavailableCall { subject: configuration::without_secrets(call_path), reason };
    let Some(folder) = path::join(&caller.folder, call_path) else {
        return Err(unavailable(match &caller.package {
            Some(package) => {
                format!("the path leads out of {package}, which clients refuse: the module's publisher has to change the path")
            }
            None => "the path leads out of the folders that larder was given: give larder a folder that contains both modules".to_owned(),
        }));
    };
    let has_folder = match &caller.package {
        // The caller was read from these files, so they are loaded.
        Some(package) => queries.module_files(package).await.is_ok_and(|files| files.files.has_folder(&folder)),
        None => files.has_folder(&folder),
    };
    if let (None, Some((path, reason))) = (&caller.package, files.blocking_entry(&folder)) {
        return Err(unavailable(format!("{path}: {reason}")));
    }
    if !has_folder {
        return Err(unavailable(match &caller.package {
            Some(package) => format!("{package} has no file that a client reads in {folder:?}"),
            None => format!(
                "{folder:?} does not exist, or has no configuration: give larder that folder too, or correct the path"
            ),
        }));
    }
    Ok(CalledFolder { package: caller.package.clone(), folder, inputs: Arc::default() })
}

/// The newest version that a call allows.
async fn choose_version(
    queries: &RegistryQueries<'_, impl Registries>,
    module: &ModuleAddress,
    versions: &ModuleConstraint,
) -> Result<ModulePackage, String> {
    let choose =
        |listed: &[Version]| versions.newest(listed).cloned().ok_or_else(|| no_match_reason(versions, listed.len()));
    let version = versions::choose_module_version(queries, module, choose).await?;
    Ok(ModulePackage { module: module.clone(), version })
}

fn no_match_reason(versions: &ModuleConstraint, listed: usize) -> String {
    if *versions == ModuleConstraint::default() {
        return format!("none of the {listed} versions that are listed is a release");
    }
    format!(
        "none of the {listed} versions that are listed matches {versions:?}: change the constraint",
        versions = versions.to_string()
    )
}

/// The folder `subdir` of a registry module, below the folder that the registry names.
async fn resolve_subfolder(
    queries: &RegistryQueries<'_, impl Registries>,
    package: &ModulePackage,
    subdir: &str,
    client: ClientKind,
) -> Result<CalledFolder, UnavailableCall> {
    let unavailable = |reason| UnavailableCall { subject: package.to_string(), reason };
    let unreadable_reason = |reason| {
        format!("the modules and providers that it needs are unknown, because its files could not be read: {reason}")
    };
    let files = queries.module_files(package).await.map_err(|reason| unavailable(unreadable_reason(reason)))?;
    let folder = path::join(&files.subdir, subdir);
    let folder = folder.filter(|folder| files.files.has_folder(folder));
    let folder =
        folder.ok_or_else(|| unavailable(format!("the module has no file that a client reads in {subdir:?}")))?;
    let called = CalledFolder { package: Some(package.clone()), folder, inputs: Arc::default() };
    queries
        .module(package, &called.folder, client, &called.inputs)
        .await
        .map(|_| called)
        .map_err(|reason| unavailable(unreadable_reason(reason)))
}

/// A module with its constraint.
fn describe_module(module: &ModuleAddress, versions: &ModuleConstraint) -> String {
    if *versions == ModuleConstraint::default() { module.to_string() } else { format!("{module}@{versions}") }
}
