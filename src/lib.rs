//! `larder`: a caching pull-through mirror for Terraform and OpenTofu registries.
//!
//! Folders are layers, and arrows run one way:
//!
//! ```text
//! main -> cli -> app -> http -> protocol -> mirror -> upstream
//!                  \--> jobs ---------------^  |----> store
//!                                              '----> verify, packaging
//! ```
//!
//! A request becomes a [`protocol::route::Route`]. A service of the [`mirror::Mirror`] answers the route: it serves stored data,
//! revalidates it, or fills. Every fill is verified before it is stored.

pub mod address;
mod answer_json;
pub mod app;
pub mod audit;
pub mod bundle;
pub mod cdn_loop;
pub mod cli;
pub mod clock;
pub mod config;
pub mod digest;
pub mod doctor;
pub mod error;
pub mod explanation;
pub mod filesystem_mirror;
#[cfg(feature = "fleet")]
pub mod fleet;
pub mod http;
pub mod jobs;
mod json_members;
mod labels;
pub mod mirror;
pub mod packaging;
pub mod place;
pub mod policy;
pub mod protocol;
pub mod requirements;
pub mod store;
pub mod supervisor;
pub mod upstream;
pub mod verify;
mod wording;
