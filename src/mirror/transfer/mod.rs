//! Archives carried in and out: bundles and provider trees.

pub(in crate::mirror) mod bundle;
pub(in crate::mirror) mod permits;
pub(in crate::mirror) mod tree;
