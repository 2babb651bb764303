//! A fleet: larders on many machines that share one store. PostgreSQL has the records, and decides what was first.
//!
//! This folder has the connection to the database, its schema, the records in it, and the copy of them that each
//! replica keeps. The bucket is not built yet, so no larder starts as a replica.

pub mod copy;
pub mod database;
pub mod examine;
pub mod feed;
mod groups;
pub mod life;
pub mod records;
pub mod replicas;
pub mod schema;
mod tls;
