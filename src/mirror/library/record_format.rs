//! The format of a record with foreign bytes: one line of JSON with metadata and part lengths, then the parts as they
//! were received.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct RecordHead<M> {
    about: M,
    parts: Vec<usize>,
}

/// Writes the metadata and the parts.
pub(in crate::mirror) fn write<M: Serialize>(metadata: &M, parts: &[&[u8]]) -> Vec<u8> {
    let head = RecordHead { about: metadata, parts: parts.iter().map(|part| part.len()).collect() };
    let mut record = serde_json::to_vec(&head).expect("our own records are plain data, which always serialises");
    record.push(b'\n');
    for part in parts {
        record.extend_from_slice(part);
    }
    record
}

/// Parses a record of [`write()`]; `None` where it is malformed.
pub(in crate::mirror) fn read<M: DeserializeOwned>(record: Vec<u8>) -> Option<(M, Vec<Bytes>)> {
    let record = Bytes::from(record);
    let end = record.iter().position(|byte| *byte == b'\n')?;
    let head: RecordHead<M> = serde_json::from_slice(&record[..end]).ok()?;
    let mut rest = record.slice(end + 1..);
    let mut parts = Vec::with_capacity(head.parts.len());
    for length in head.parts {
        if length > rest.len() {
            return None;
        }
        parts.push(rest.split_to(length));
    }
    rest.is_empty().then_some((head.about, parts))
}
