//! Module packages: archives of every format into trees, and trees into archives that come out the same on any
//! machine. No network; of the disk only the spool that a tree is given.

mod format;
mod path;
mod tree;

pub use self::format::ArchiveFormat;
pub use self::path::{BadPath, TreePath};
pub use self::tree::{Entry, Tree, TreeError, TreeLimits};
