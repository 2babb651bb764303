//! Requirements: users' own files, and what they need from a mirror. The only user of HCL.

mod argument;
pub mod cli_config;
mod configuration;
pub mod file;
mod files;
pub mod hcl;
mod load_directories;
pub mod lock_file;
mod path;
mod registries;
mod request;
mod resolve;
mod result;
mod tar_upload;

pub use self::argument::ArgumentKind;
pub use self::configuration::GivenValues;
pub use self::files::{BadFiles, FileContents, Files, MAX_BYTES, Unreadable};
pub use self::load_directories::{CollectError, Collected, collect};
pub use self::registries::{ModuleFiles, Registries, UnlistedVersions};
pub use self::request::{ClientKind, Configurations, MAX_PLATFORMS, Order, OrderEntry};
pub use self::resolve::resolve;
pub use self::result::{RequiredArchive, ResolvedRequirements, UnavailableItem};
