//! How a record that carries foreign bytes is written: one line of JSON about them, then the bytes as
//! they came.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Head<M> {
    about: M,
    parts: Vec<usize>,
}

/// Writes what is known about the parts, and the parts.
pub(super) fn write<M: Serialize>(about: &M, parts: &[&[u8]]) -> Vec<u8> {
    let head = Head { about, parts: parts.iter().map(|part| part.len()).collect() };
    let mut record = serde_json::to_vec(&head).expect("our own records are plain data, which always serialises");
    record.push(b'\n');
    for part in parts {
        record.extend_from_slice(part);
    }
    record
}

/// Reads what [`write()`] wrote; `None` where it is something else.
pub(super) fn read<M: DeserializeOwned>(record: Vec<u8>) -> Option<(M, Vec<Bytes>)> {
    let record = Bytes::from(record);
    let end = record.iter().position(|byte| *byte == b'\n')?;
    let head: Head<M> = serde_json::from_slice(&record[..end]).ok()?;
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
