//! What users write in their own files, and what it means for a mirror. The home of HCL.

pub mod file;
pub mod hcl;
