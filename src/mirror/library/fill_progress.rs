//! The state of a fill, as those see it who wait for it.

use crate::error::Error;
use crate::mirror::library::StoredArchive;
use crate::store::{FileBytes, StoreError};

/// The state of a fill.
#[derive(Debug, Clone)]
pub enum FillProgress {
    /// Upstream has not answered yet.
    Waiting,
    Streaming {
        bytes: FileBytes,
        written: u64,
        length: Option<u64>,
    },
    /// Verified. The larder keeps the archive elsewhere, and clients may have its last bytes while it is stored on this machine, too.
    Verified {
        bytes: FileBytes,
        size_bytes: u64,
    },
    /// Verified and stored.
    Committed {
        bytes: Option<FileBytes>,
        archive: Box<StoredArchive>,
    },
    /// Verified, but the disk could not store it. It is readable while its file is open.
    NotStored {
        bytes: FileBytes,
        size_bytes: u64,
        error: StoreError,
    },
    /// The disk cannot take it. Clients without any of its bytes get it passed through from upstream.
    NoSpace(StoreError),
    Failed(Error),
}
