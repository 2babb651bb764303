//! The bytes of a fill under way, for one client: from the start, at the client's own pace, and the last
//! of them only once the archive is proven and committed (promise 3).

use std::io;

use bytes::Bytes;
use futures_util::{Stream, stream};
use tokio::sync::watch;

use super::fill::Progress;
use crate::store::READ_AT_ONCE;

/// What is held back at the end of what has arrived, in bytes.
const TAIL_BYTES: u64 = 64 * 1024;

/// One client's place in a fill.
#[derive(Debug)]
pub struct Follow {
    progress: watch::Receiver<Progress>,
}

impl Follow {
    pub(super) fn new(progress: watch::Receiver<Progress>) -> Self {
        Self { progress }
    }

    /// The bytes, as they arrive. Ends in an error where the fill fails: then the client must not take
    /// what it has for complete.
    pub fn stream(self) -> impl Stream<Item = io::Result<Bytes>> + Send {
        stream::try_unfold((self.progress, 0), |(mut progress, offset)| async move {
            loop {
                let state = progress.borrow_and_update().clone();
                let (bytes, limit) = match state {
                    Progress::Asking => (None, 0),
                    Progress::Streaming { bytes, written, length } => {
                        let whole = length.unwrap_or(written).min(written.saturating_add(TAIL_BYTES));
                        (Some(bytes), written.min(whole.saturating_sub(TAIL_BYTES)))
                    }
                    Progress::Committed { bytes, held } => {
                        if offset == held.size_bytes {
                            return Ok(None);
                        }
                        (bytes, held.size_bytes)
                    }
                    Progress::Failed(error) => return Err(io::Error::other(error.to_string())),
                };
                if let Some(bytes) = bytes.filter(|_| offset < limit) {
                    let most = usize::try_from(limit - offset).unwrap_or(READ_AT_ONCE);
                    let piece = bytes.read_at(offset, most).await?;
                    if piece.is_empty() {
                        return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
                    }
                    let next = offset + piece.len() as u64;
                    return Ok(Some((piece, (progress, next))));
                }
                if progress.changed().await.is_err() {
                    return Err(io::Error::other("the fill was interrupted"));
                }
            }
        })
    }
}
