//! Streams a fill in progress to one client, from the start and at the client's speed. The last bytes are withheld
//! until the archive is verified and committed (DESIGN, promise 3).

use std::io;

use bytes::Bytes;
use futures_util::{Stream, stream};
use tokio::sync::watch;

use crate::error::Error;
use crate::mirror::library::StoredArchive;
use crate::store::{FileBytes, READ_BUFFER_BYTES, ReadShare, StoreError};

/// The number of bytes withheld at the end of a download.
pub(in crate::mirror) const TAIL_BYTES: u64 = 64 * 1024;

/// The state of a fill.
#[derive(Debug, Clone)]
pub(in crate::mirror) enum FillProgress {
    /// Upstream has not answered yet.
    Waiting,
    Streaming {
        bytes: FileBytes,
        written: u64,
        length: Option<u64>,
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

/// One client's position in a fill.
#[derive(Debug)]
pub struct TailStream {
    progress: watch::Receiver<FillProgress>,
    /// The length announced to the client, if any. A body of another length is an error.
    announced: Option<u64>,
}

impl TailStream {
    pub(in crate::mirror) fn new(progress: watch::Receiver<FillProgress>, announced: Option<u64>) -> Self {
        Self { progress, announced }
    }

    /// Waits until the archive is stored, without reading its bytes.
    ///
    /// # Errors
    /// The fill failed, or the disk could not store the archive.
    pub(in crate::mirror) async fn until_stored(mut self, subject: &str) -> Result<(), Error> {
        loop {
            match &*self.progress.borrow_and_update() {
                FillProgress::Waiting | FillProgress::Streaming { .. } => {}
                FillProgress::Committed { .. } => return Ok(()),
                FillProgress::NotStored { error: reason, .. } | FillProgress::NoSpace(reason) => {
                    return Err(reason.clone().into());
                }
                FillProgress::Failed(error) => return Err(error.clone()),
            }
            if self.progress.changed().await.is_err() {
                return Err(Error::Interrupted(subject.to_owned()));
            }
        }
    }

    /// Streams the bytes as they arrive, within the read budget `memory`. Ends in an error where the fill fails, so
    /// that the client does not take the body for complete.
    pub fn stream(self, memory: ReadShare) -> impl Stream<Item = io::Result<Bytes>> + Send {
        let announced = self.announced;
        stream::try_unfold((self.progress, 0, memory), move |(mut progress, offset, memory)| async move {
            loop {
                let state = progress.borrow_and_update().clone();
                let size_bytes = match &state {
                    FillProgress::Committed { archive, .. } => Some(archive.size_bytes),
                    FillProgress::NotStored { size_bytes, .. } => Some(*size_bytes),
                    FillProgress::Waiting
                    | FillProgress::Streaming { .. }
                    | FillProgress::NoSpace(_)
                    | FillProgress::Failed(_) => None,
                };
                if announced.is_some_and(|announced| size_bytes.is_some_and(|size_bytes| announced != size_bytes)) {
                    return Err(io::Error::other("upstream sent another length than it announced"));
                }
                if size_bytes == Some(offset) {
                    return Ok(None);
                }
                let (bytes, limit) = match state {
                    FillProgress::Waiting => (None, 0),
                    FillProgress::Streaming { bytes, written, .. } => {
                        let before_the_tail = announced.unwrap_or(written).saturating_sub(TAIL_BYTES);
                        (Some(bytes), written.min(before_the_tail))
                    }
                    FillProgress::Committed { bytes, archive } => (bytes, archive.size_bytes),
                    FillProgress::NotStored { bytes, size_bytes, .. } => (Some(bytes), size_bytes),
                    FillProgress::NoSpace(_) => {
                        return Err(io::Error::other("the disk would not take it; the next request gets it without"));
                    }
                    FillProgress::Failed(error) => return Err(io::Error::other(error.to_string())),
                };
                if let Some(bytes) = bytes.filter(|_| offset < limit) {
                    let most = usize::try_from(limit - offset).unwrap_or(READ_BUFFER_BYTES);
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
