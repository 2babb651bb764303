//! Packaging: unpacks archives of every format into trees, and packs trees into archives. Equal trees give equal bytes
//! on any machine. This module uses no network, and of the disk only the spool file that a tree is given.

mod chunks;
mod compression;
mod meter;
mod pack;
mod path;
mod tar;
mod tree;
mod unpack;
mod zip;

pub use self::pack::{PACKER, PackResult, ResolvedTree, pack, resolve};
pub use self::path::{BadTreePath, TreePath, find_folder, printable};
pub use self::tar::{BLOCK, BadTar, TarLimits, TarMember, TarReader, TarWriter, padding_bytes};
pub use self::tree::{Tree, TreeEntry, TreeError, TreeFile, TreeLimits};
pub use self::unpack::{ArchiveFormat, unpack};
pub use self::zip::{BadZip, DuplicateNames, ZipLimits, ZipReader, pack_zip};
