//! What users write in their own files, and what it means for a mirror. The home of HCL.

pub mod cli_config;
pub mod file;
pub mod hcl;
pub mod lock_file;
