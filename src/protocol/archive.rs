//! Files that are named by their digest: archives, SHA256SUMS, signatures.

use std::sync::Arc;

use bytes::Bytes;

use super::rendered::Finished;
use crate::error::Error;
use crate::mirror::{Answer, Archive, ArchiveRef, Call, Mirror};

/// The file that a URL of ours names; and what of it can be given out again from memory.
pub(super) async fn file(
    mirror: &Arc<Mirror>,
    wanted: &ArchiveRef,
    call: &Call,
) -> Result<(Answer<Archive>, Option<Finished>), Error> {
    let answer = mirror.archive(wanted, call).await?;
    let finished = match &answer.value {
        // Bytes of its own: those of the mirror are shared by whoever reads at the same time, so they would count as
        // checked for as long as they were kept here.
        Archive::InMemory { bytes, digest } if call.now < answer.fresh_until => {
            Some(Finished::Archive { bytes: Bytes::copy_from_slice(bytes), digest: *digest })
        }
        Archive::InMemory { .. } | Archive::Held { .. } | Archive::Arriving { .. } | Archive::Passing { .. } => None,
    };
    Ok((answer, finished))
}
