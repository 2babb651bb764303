//! The commands of an operator.

pub(in crate::mirror) mod accept;
pub(in crate::mirror) mod accept_module;
pub(in crate::mirror) mod gauges;
pub(in crate::mirror) mod pin;
pub(in crate::mirror) mod purge;
pub(in crate::mirror) mod purge_module;
pub(in crate::mirror) mod purge_pages;
pub(in crate::mirror) mod refresh;
pub(in crate::mirror) mod rehash;
pub(in crate::mirror) mod scrub;
pub(in crate::mirror) mod status;
pub(in crate::mirror) mod warm;
pub(in crate::mirror) mod warm_module;
