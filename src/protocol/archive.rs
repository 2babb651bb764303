//! Files that are named by their digest: archives, SHA256SUMS, signatures.

use std::sync::Arc;

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
        Archive::InMemory { bytes, digest } if call.now < answer.fresh_until => {
            Some(Finished::Archive { bytes: bytes.clone(), digest: *digest })
        }
        Archive::InMemory { .. } | Archive::Held { .. } | Archive::Arriving { .. } | Archive::Passing { .. } => None,
    };
    Ok((answer, finished))
}
