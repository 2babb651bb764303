//! Which packages list an archive: what may go is what no name lists, and no name must be pinned that does.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use super::Mirror;
use crate::address::Artifact;
use crate::digest::Digest;
use crate::store::{Key, StoreError};

/// A name that lists an archive.
pub(super) struct Named {
    pub(super) of: Artifact,
    pub(super) pinned: bool,
}

/// Which packages list an archive; and the first name that could not be read.
pub(super) struct Names {
    pub(super) by_digest: HashMap<Digest, Vec<Named>>,
    pub(super) unreadable: Option<StoreError>,
}

impl Names {
    pub(super) fn of(&self, digest: &Digest) -> &[Named] {
        self.by_digest.get(digest).map_or(&[], Vec::as_slice)
    }

    fn cannot_read(&mut self, why: StoreError) {
        self.unreadable.get_or_insert(why);
    }
}

impl Mirror {
    /// What to say of a name that was damaged, and whose archive nothing else tells.
    fn lost(&self, of: &Artifact) -> StoreError {
        let path = self.store.root().join(Key::Name(of.clone()).path());
        let why = "it was damaged, and was set aside just now; nothing else tells which archive it named";
        StoreError::Io { doing: "read", path, source: Arc::new(io::Error::other(why)) }
    }

    /// The archive that the proof set of a package names; a module has none.
    fn named_by_set(&self, of: &Artifact) -> Result<Option<Digest>, StoreError> {
        match of {
            Artifact::Provider(package) => Ok(self.read_set(package)?.map(|held| held.kept.current.document.shasum)),
            Artifact::Module(_) => Ok(None),
        }
    }

    pub(super) fn names_by_digest(&self) -> Result<Names, StoreError> {
        let mut names = Names { by_digest: HashMap::new(), unreadable: None };
        for of in self.store.records.all_named()? {
            match self.catalog.name(&of) {
                Ok(name) if name.archives.is_empty() && !name.pinned => {
                    // Damaged, and set aside just now: its proof set says which archive it named.
                    match self.named_by_set(&of) {
                        Ok(Some(digest)) => {
                            tracing::warn!(package = %of, "a name was lost; its archive is taken for the one its proof set names");
                            names.by_digest.entry(digest).or_default().push(Named { of, pinned: false });
                        }
                        Ok(None) => names.cannot_read(self.lost(&of)),
                        Err(error) => names.cannot_read(error),
                    }
                }
                Ok(name) => {
                    for held in name.archives {
                        let named = Named { of: of.clone(), pinned: name.pinned };
                        names.by_digest.entry(held.digest).or_default().push(named);
                    }
                }
                Err(error) => {
                    tracing::error!(package = %of, %error, "a name cannot be read; nothing unnamed is evicted");
                    names.cannot_read(error);
                }
            }
        }
        Ok(names)
    }
}
