//! A fleet: larders on many machines that share one store. PostgreSQL has the records, and decides what was first.
//!
//! This folder has the connection to the database, its schema, the records in it, and the copy of them that each
//! replica keeps; and the bucket, which keeps the archives. What is not built yet: two replicas may fetch the same archive at once.

pub mod archives;
pub mod bucket;
pub mod copy;
pub mod database;
pub mod examine;
pub mod feed;
mod groups;
pub mod identity;
pub mod life;
mod objects;
pub mod open;
pub mod records;
pub mod replicas;
pub mod schema;
pub mod services;
mod tls;
mod trouble;
mod upload;
