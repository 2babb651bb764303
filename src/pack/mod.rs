//! Packaging: unpacks archives of every format into trees, and packs trees into archives with equal bytes on any
//! machine. Uses no network, and no disk but the spool file that a tree is given.

mod format;
mod glob;
mod members;
mod name;
#[expect(clippy::module_inception, reason = "what the folder is for")]
mod pack;
mod path;
mod resolve;
mod tar;
mod tree;
mod unpack;
mod xz;
mod zip;
mod zipped;

pub use self::format::ArchiveFormat;
pub use self::glob::find_folder;
pub use self::pack::{PACKER, PackResult, pack};
pub use self::path::{BadTreePath, TreePath};
pub use self::resolve::{ResolvedTree, resolve};
pub use self::tree::{Tree, TreeEntry, TreeError, TreeLimits};
pub use self::unpack::{unpack, unpack_from};
pub use self::zipped::pack_zip;
