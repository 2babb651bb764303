//! The canonical form of a manifest: JSON with one line per entry, and a digest over all of it.

use serde::Serialize;

use super::Manifest;
use crate::digest::Digest;

impl Manifest {
    /// The bytes of the manifest in a bundle.
    pub fn write(&self) -> Vec<u8> {
        self.write_with_digest(&self.digest.to_string())
    }

    /// Writes the manifest with this text in its digest field.
    fn write_with_digest(&self, digest: &str) -> Vec<u8> {
        let Self { format, created, larder, since, .. } = self;
        let larder = json(larder);
        let since = since.map_or_else(String::new, |since| format!(",\n \"since\":\"{since}\""));
        let head = format!("{{\"format\":{format},\n \"larder\":{larder},\n \"created\":{}{since},\n", created.0);
        let mut written = head.into_bytes();
        written.extend_from_slice(b" \"entries\":[");
        for (index, entry) in self.entries.iter().enumerate() {
            written.extend_from_slice(if index == 0 { b"\n  " } else { b",\n  " });
            written.extend_from_slice(json(entry).as_bytes());
        }
        written.extend_from_slice(format!("],\n \"digest\":\"{digest}\"}}\n").as_bytes());
        written
    }

    /// The SHA-256 of the manifest with zeros in its digest field.
    pub(super) fn own_digest(&self) -> Digest {
        Digest::of(&self.write_with_digest(&"0".repeat(64)))
    }
}

fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("names and numbers always serialise")
}
