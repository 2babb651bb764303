//! Requirements: users' own files, and what they need from a mirror. The only user of HCL.

pub mod cli_config;
mod configuration;
pub mod file;
mod files;
pub mod hcl;
mod load_directories;
pub mod lock_file;
mod path;
mod request;
mod resolve;
mod tar_upload;

pub use self::configuration::GivenValues;
pub use self::file::ArgumentKind;
pub use self::files::{BadFiles, FileContents, Files, MAX_BYTES, Unreadable};
pub use self::load_directories::{CollectError, Collected, collect};
pub use self::request::{
    ClientKind, Configurations, MAX_PLATFORMS, ModuleFiles, Order, OrderEntry, Registries, RequiredArchive,
    ResolvedRequirements, UnavailableItem, UnlistedVersions,
};
pub use self::resolve::resolve;
