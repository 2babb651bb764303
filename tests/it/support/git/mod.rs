//! Real repositories, made by the real `git` in a temporary folder, and a real `sshd` that serves them. The
//! fake upstream serves them over https (`FakeUpstream::host_git`).

#![expect(clippy::disallowed_methods, reason = "repositories are made outside of any store")]

mod archive;
pub(crate) mod forge;
mod repository;
mod sshd;
mod trees;

pub(crate) use self::archive::{Format, pack};
pub(crate) use self::repository::{Repositories, Repository};
pub(crate) use self::sshd::Sshd;
pub(crate) use self::trees::differences;
