//! What users write in their own files, and what it means for a mirror. The home of HCL.

pub mod cli_config;
mod collect;
mod configuration;
pub mod file;
mod files;
pub mod hcl;
pub mod lock_file;
mod named;
mod order;
mod path;
mod registries;
mod resolve;
mod result;
mod unpacked;

pub use self::collect::{Collected, NotCollected, collect};
pub use self::files::{BadFiles, Contents, Files, MOST_BYTES, Unreadable};
pub use self::named::Named;
pub use self::order::{Client, Configurations, Given, MOST_PLATFORMS, Order};
pub use self::registries::{Beyond, ModuleFiles, Registries};
pub use self::resolve::resolve;
pub use self::result::{Cannot, Closure, Wanted};

/// The files of a user's own tar that say what a configuration needs. Of the values in `*.tfvars` only those are left that
/// decide it: the others may be secrets.
///
/// # Errors
/// [`BadFiles`].
pub fn of_users_tar(tar: &[u8]) -> Result<Files, BadFiles> {
    let mut files = Files::from_users_tar(tar)?;
    configuration::forget_other_values(&mut files);
    Ok(files)
}
