//! Import and export of bundles, for stores without a network between them. Imported entries are verified like
//! responses from upstream.

mod archives;
mod entry;
pub(super) mod export;
pub(super) mod import;
