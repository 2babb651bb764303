//! Requirements: users' own files, and what they need from a mirror. The only user of HCL.

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

pub use self::collect::{CollectError, Collected, collect};
pub use self::configuration::GivenValues;
pub use self::files::{BadFiles, FileContents, Files, MOST_BYTES, Unreadable};
pub use self::named::LabelKind;
pub use self::order::{ClientKind, Configurations, MOST_PLATFORMS, Order, OrderEntry};
pub use self::registries::{ModuleFiles, Registries, UnlistedVersions};
pub use self::resolve::resolve;
pub use self::result::{RequiredArchive, ResolvedRequirements, UnavailableItem};
