//! The bytes of a fill under way, for one client: from the start, at the client's own pace, and the last
//! of them only once the archive is proven and committed (promise 3).

use std::io;

use bytes::Bytes;
use futures_util::{Stream, stream};
use tokio::sync::watch;

use super::library::StoredArchive;
use crate::error::Error;
use crate::store::{FileBytes, READ_AT_ONCE, ReadShare, StoreError};

/// What is held back at the end of what has arrived, in bytes.
pub(super) const TAIL_BYTES: u64 = 64 * 1024;

/// How far a fill is.
#[derive(Debug, Clone)]
pub(super) enum Progress {
    /// Upstream has not answered yet.
    Asking,
    /// Bytes arrive.
    Streaming { bytes: FileBytes, written: u64, length: Option<u64> },
    /// Proven and kept.
    Committed { bytes: Option<FileBytes>, held: Box<StoredArchive> },
    /// Proven, but the disk would not keep it: it lives as long as its file is open.
    Unkept { bytes: FileBytes, size_bytes: u64, why: StoreError },
    /// The disk would not take it: whoever has nothing of it yet gets it straight from upstream.
    NoPlace(StoreError),
    /// It came to nothing.
    Failed(Error),
}

/// One client's place in a fill.
#[derive(Debug)]
pub struct Follow {
    progress: watch::Receiver<Progress>,
    /// The length the client was told, if any: no other one makes a whole body for it.
    told: Option<u64>,
}

impl Follow {
    pub(super) fn new(progress: watch::Receiver<Progress>, told: Option<u64>) -> Self {
        Self { progress, told }
    }

    /// Waits until the archive is kept, and reads nothing of it.
    ///
    /// # Errors
    /// Why it is not: the disk would not keep it, or it did not come.
    pub(super) async fn until_kept(mut self, what: &str) -> Result<(), Error> {
        loop {
            match &*self.progress.borrow_and_update() {
                Progress::Asking | Progress::Streaming { .. } => {}
                Progress::Committed { .. } => return Ok(()),
                Progress::Unkept { why, .. } | Progress::NoPlace(why) => return Err(why.clone().into()),
                Progress::Failed(error) => return Err(error.clone()),
            }
            if self.progress.changed().await.is_err() {
                return Err(Error::Interrupted(what.to_owned()));
            }
        }
    }

    /// The bytes, as they arrive and `memory` has room for them. Ends in an error where the fill fails: then the client
    /// must not take what it has for complete.
    pub fn stream(self, memory: ReadShare) -> impl Stream<Item = io::Result<Bytes>> + Send {
        let told = self.told;
        stream::try_unfold((self.progress, 0, memory), move |(mut progress, offset, memory)| async move {
            loop {
                let state = progress.borrow_and_update().clone();
                let size_bytes = match &state {
                    Progress::Committed { held, .. } => Some(held.size_bytes),
                    Progress::Unkept { size_bytes, .. } => Some(*size_bytes),
                    Progress::Asking | Progress::Streaming { .. } | Progress::NoPlace(_) | Progress::Failed(_) => None,
                };
                if told.is_some_and(|told| size_bytes.is_some_and(|size_bytes| told != size_bytes)) {
                    return Err(io::Error::other("upstream sent another length than it announced"));
                }
                if size_bytes == Some(offset) {
                    return Ok(None);
                }
                let (bytes, limit) = match state {
                    Progress::Asking => (None, 0),
                    Progress::Streaming { bytes, written, .. } => {
                        let before_the_tail = told.unwrap_or(written).saturating_sub(TAIL_BYTES);
                        (Some(bytes), written.min(before_the_tail))
                    }
                    Progress::Committed { bytes, held } => (bytes, held.size_bytes),
                    Progress::Unkept { bytes, size_bytes, .. } => (Some(bytes), size_bytes),
                    Progress::NoPlace(_) => {
                        return Err(io::Error::other("the disk would not take it; the next request gets it without"));
                    }
                    Progress::Failed(error) => return Err(io::Error::other(error.to_string())),
                };
                if let Some(bytes) = bytes.filter(|_| offset < limit) {
                    let most = usize::try_from(limit - offset).unwrap_or(READ_AT_ONCE);
                    let piece = bytes.read_at(offset, most, &memory).await?;
                    if piece.is_empty() {
                        return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
                    }
                    let next = offset + piece.len() as u64;
                    return Ok(Some((piece, (progress, next, memory))));
                }
                if progress.changed().await.is_err() {
                    return Err(io::Error::other("the fill was interrupted"));
                }
            }
        })
    }
}
