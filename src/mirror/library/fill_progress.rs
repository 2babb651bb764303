//! The state of a fill, as those see it who wait for it.

use bytes::Bytes;

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
    /// A small archive from where all replicas keep it, verified. This machine stores it while clients get it from memory.
    Verified {
        content: Bytes,
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
