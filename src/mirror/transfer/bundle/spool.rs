//! Files that several entries of a bundle share. The bundle contains them once, with the first entry, so they are
//! spooled for the others.

use crate::mirror::Library;
use std::collections::HashMap;
use std::os::unix::fs::FileExt;

use crate::bundle::{BundleEntry, EntryFile, Manifest};
use crate::digest::Digest;
use crate::store::{Scratch, StoreError};

/// Small files shared by several entries, such as the SHA256SUMS of a version.
pub(in crate::mirror) struct SharedFiles {
    /// The digests of shared files, each with the name of the first entry that has it.
    wanted: HashMap<Digest, String>,
    offsets: HashMap<Digest, (u64, u64)>,
    file: std::fs::File,
    written: u64,
    _scratch: Scratch,
}

impl SharedFiles {
    pub(in crate::mirror) fn of(library: &Library, manifest: &Manifest) -> Result<Self, StoreError> {
        let mut first: HashMap<Digest, &BundleEntry> = HashMap::new();
        let mut wanted = HashMap::new();
        for entry in &manifest.entries {
            for file in entry.files() {
                match first.get(&file.file.sha256) {
                    None => {
                        first.insert(file.file.sha256, entry);
                    }
                    Some(first) => {
                        wanted.entry(file.file.sha256).or_insert_with(|| first.package_ref().to_string());
                    }
                }
            }
        }
        let scratch = library.store.blobs.scratch()?;
        Ok(Self { wanted, offsets: HashMap::new(), file: scratch.file()?, written: 0, _scratch: scratch })
    }

    pub(in crate::mirror) fn store_if_shared(&mut self, file: &EntryFile, bytes: &[u8]) -> Result<(), String> {
        if !self.wanted.contains_key(&file.file.sha256) {
            return Ok(());
        }
        let written = self.file.write_all_at(bytes, self.written);
        written.map_err(|e| format!("its {} could not be stored for later entries: {e}", file.role))?;
        self.offsets.insert(file.file.sha256, (self.written, bytes.len() as u64));
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// The refusal text for a file whose first entry was refused.
    pub(in crate::mirror) fn refusal(&self, file: &EntryFile) -> String {
        let EntryFile { role, .. } = file;
        match self.wanted.get(&file.file.sha256) {
            Some(first) => format!("its {role} ({}) came with {first}, and was refused there", file.name()),
            None => format!("its {role} ({}) is not in the bundle", file.name()),
        }
    }

    pub(in crate::mirror) fn get(&self, shared: &EntryFile) -> Result<Vec<u8>, String> {
        let EntryFile { role, file, .. } = shared;
        let (offset, size) = *self.offsets.get(&file.sha256).ok_or_else(|| self.refusal(shared))?;
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
        let read = self.file.read_exact_at(&mut bytes, offset);
        read.map_err(|e| format!("its {role} cannot be read again: {e}"))?;
        Ok(bytes)
    }
}
