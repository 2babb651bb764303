//! Files that are named by their digest: archives, SHA256SUMS, signatures.

use std::sync::Arc;

use super::{Content, Reply};
use crate::error::Error;
use crate::mirror::{ArchiveRef, Call, Mirror};

/// The file that a URL of ours names.
pub(super) async fn file(mirror: &Arc<Mirror>, wanted: &ArchiveRef, call: &Call) -> Result<Reply, Error> {
    let answer = mirror.archive(wanted, call).await?;
    Ok(Reply { content: Content::File(answer.value), outcome: Some(answer.outcome), age: None })
}
