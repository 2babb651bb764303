//! `larder`: a caching pull-through mirror for Terraform and OpenTofu registries.
//!
//! Folders are layers, and arrows run one way:
//!
//! ```text
//! main -> cli -> app -> http -> protocol -> mirror -> upstream
//!                  \--> jobs ---------------^  |----> store
//!                                              '----> verify, pack
//! ```
//!
//! A request becomes a [`protocol::route::Route`], the route an answer of the [`mirror::Mirror`], which
//! serves what it holds, asks upstream again, or fills; every fill is proven before it is kept.

pub mod address;
pub mod app;
pub mod bundle;
pub mod cdn_loop;
pub mod cli;
pub mod clock;
pub mod closure;
pub mod config;
pub mod digest;
pub mod doctor;
pub mod error;
pub mod filesystem_mirror;
pub mod http;
pub mod jobs;
pub mod mirror;
pub mod pack;
pub mod protocol;
pub mod store;
pub mod supervisor;
pub mod upstream;
pub mod verify;
