//! Documents: JSON that larder fetched from upstreams and that ages.

pub(in crate::mirror) mod discovery;
pub(in crate::mirror) mod document_fetch;
pub(in crate::mirror) mod listed;
pub(in crate::mirror) mod module_versions;
pub(in crate::mirror) mod pages;
pub(in crate::mirror) mod provider_versions;
pub(in crate::mirror) mod revalidate;
pub(in crate::mirror) mod stored;
