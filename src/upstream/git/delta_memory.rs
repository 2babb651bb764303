//! Limits the delta chains of a pack, and the memory to resolve them. An object may be stored as a delta to a base object,
//! which may itself be a delta.

use std::collections::{HashMap, HashSet};

/// Number of deltas in a chain. Git makes at most 4,095.
const MAX_CHAIN_LENGTH: u32 = 4096;
/// Factor for the total size of a chain in a history. Chains of a history are as long as the history, so their total size
/// may be this multiple of the memory limit.
const HISTORY_CHAIN_FACTOR: u64 = 16;

/// Limits for one pack: the number of objects, their sizes in bytes, and their delta chains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PackLimits {
    pub(super) objects: u32,
    /// Size of a blob (a file).
    pub(super) blob_bytes: u64,
    /// Size of any other object: a tree, a commit or a tag.
    pub(super) other_bytes: u64,
    /// Bytes of the bases that stay in memory at one time while the deltas of one chain are resolved.
    pub(super) buffered_base_bytes: u64,
    /// Bytes of all objects of one chain, one after the other. Each is made of the one before, up to the last.
    pub(super) chain_object_bytes: u64,
}

impl PackLimits {
    /// Limits for the files of one commit.
    pub(super) fn for_one_commit(objects: u32, object_bytes: usize, chain_object_bytes: u64) -> Self {
        let object_bytes = object_bytes as u64;
        Self {
            objects,
            blob_bytes: object_bytes,
            other_bytes: object_bytes,
            buffered_base_bytes: chain_object_bytes,
            chain_object_bytes,
        }
    }

    /// Limits for a history, which may contain larger files than the wanted commit.
    pub(super) fn for_history(objects: u32, other_bytes: usize, blob_bytes: usize, buffered_base_bytes: u64) -> Self {
        let chain_object_bytes = buffered_base_bytes.saturating_mul(HISTORY_CHAIN_FACTOR);
        let (blob_bytes, other_bytes) = (blob_bytes as u64, other_bytes as u64);
        Self { objects, blob_bytes, other_bytes, buffered_base_bytes, chain_object_bytes }
    }
}

/// The base of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeltaBaseRef {
    /// The entry is a whole object, not a delta.
    NotADelta {
        /// True for a blob (a file).
        is_blob: bool,
    },
    /// An earlier entry of the pack, by its index.
    Entry(u32),
    /// The object with this id, which may be anywhere in the pack.
    Id([u8; 20]),
}

#[derive(Debug, Clone, Copy)]
struct PackEntry {
    /// Size of the base as the delta declares it; 0 for a whole object.
    base_size: u64,
    /// Offset in the pack.
    offset: u64,
    size: u64,
    base: DeltaBaseRef,
    is_blob: bool,
    /// Number of deltas with this entry as base.
    children: u32,
}

/// All entries of a pack, in the order of the pack.
#[derive(Debug)]
pub(super) struct DeltaChains {
    limits: PackLimits,
    entries: Vec<PackEntry>,
}

/// Cumulative sizes of a chain at one entry.
#[derive(Debug, Clone, Copy, Default)]
struct ChainLink {
    depth: u32,
    /// Total size of the objects.
    total: u64,
    /// Total size of the bases that stay in memory.
    buffered: u64,
    /// Index of the chain's first entry.
    root: usize,
}

impl DeltaChains {
    pub(super) fn new(limits: PackLimits) -> Self {
        Self { limits, entries: Vec::new() }
    }

    /// The index of the entry at this offset.
    pub(super) fn index_at(&self, offset: u64) -> Option<u32> {
        let index = self.entries.binary_search_by_key(&offset, |entry| entry.offset).ok()?;
        u32::try_from(index).ok()
    }

    /// Adds the next entry, whose base has `base_size` bytes.
    ///
    /// # Errors
    /// The limit that is exceeded.
    pub(super) fn add(&mut self, offset: u64, base: DeltaBaseRef, base_size: u64, size: u64) -> Result<(), String> {
        let is_blob = match base {
            DeltaBaseRef::NotADelta { is_blob } => is_blob,
            DeltaBaseRef::Entry(base) => self.entries.get(base as usize).is_some_and(|base| base.is_blob),
            DeltaBaseRef::Id(_) => true,
        };
        let largest = if is_blob { self.limits.blob_bytes } else { self.limits.other_bytes };
        if size.max(base_size) > largest {
            return Err(format!("{largest} bytes in one object"));
        }
        if let DeltaBaseRef::Entry(base) = base
            && let Some(base) = self.entries.get_mut(base as usize)
        {
            base.children += 1;
        }
        self.entries.push(PackEntry { base_size, offset, size, base, is_blob, children: 0 });
        Ok(())
    }

    /// Checks the limits after the last entry. A base stays in memory while another delta needs it.
    ///
    /// # Errors
    /// The limit that is exceeded.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut links: Vec<ChainLink> = Vec::with_capacity(self.entries.len());
        let mut max = ChainLink::default();
        // The id of an entry is unknown until the entry is resolved, so all chains with a base by id may form one chain.
        let mut chains_by_id: HashMap<usize, ChainLink> = HashMap::new();
        let mut base_ids = HashSet::new();
        let mut base_sizes: u64 = 0;
        for (index, entry) in self.entries.iter().enumerate() {
            if let DeltaBaseRef::Id(id) = entry.base
                && base_ids.insert(id)
            {
                base_sizes = base_sizes.saturating_add(entry.base_size);
            }
            let link = match entry.base {
                DeltaBaseRef::NotADelta { .. } | DeltaBaseRef::Id(_) => {
                    ChainLink { depth: 0, total: entry.size, buffered: 0, root: index }
                }
                DeltaBaseRef::Entry(base) => {
                    let (base_link, base) = links
                        .get(base as usize)
                        .zip(self.entries.get(base as usize))
                        .ok_or("the entries before a delta")?;
                    let buffered = if base.children > 1 { base.size } else { 0 };
                    ChainLink {
                        depth: base_link.depth + 1,
                        total: base_link.total.saturating_add(entry.size),
                        buffered: base_link.buffered.saturating_add(buffered),
                        root: base_link.root,
                    }
                }
            };
            if link.depth > MAX_CHAIN_LENGTH {
                return Err(format!("{MAX_CHAIN_LENGTH} objects one made out of the other"));
            }
            let has_base_by_id =
                matches!(self.entries.get(link.root), Some(PackEntry { base: DeltaBaseRef::Id(_), .. }));
            let group = if has_base_by_id { chains_by_id.entry(link.root).or_default() } else { &mut max };
            group.total = group.total.max(link.total);
            group.buffered = group.buffered.max(link.buffered);
            links.push(link);
        }
        for link in chains_by_id.values() {
            max.total = max.total.saturating_add(link.total);
            max.buffered = max.buffered.saturating_add(link.buffered);
        }
        max.buffered = max.buffered.saturating_add(base_sizes);
        let PackLimits { buffered_base_bytes, chain_object_bytes, .. } = self.limits;
        if max.buffered > buffered_base_bytes {
            return Err(format!("{buffered_base_bytes} bytes in objects of which others are made"));
        }
        if max.total > chain_object_bytes {
            return Err(format!("{chain_object_bytes} bytes in objects one made out of the other"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const ROOT: DeltaBaseRef = DeltaBaseRef::NotADelta { is_blob: true };

    fn check_entries(limits: PackLimits, entries: &[(DeltaBaseRef, u64)]) -> Result<(), String> {
        let mut chains = DeltaChains::new(limits);
        for (index, (base, size)) in entries.iter().enumerate() {
            chains.add(index as u64 * 10, *base, *size, *size)?;
        }
        chains.check()
    }

    fn chain(length: u32, size: u64, with_siblings: bool) -> Vec<(DeltaBaseRef, u64)> {
        let mut entries = vec![(ROOT, size)];
        let mut last = 0;
        for _ in 1..length {
            entries.push((DeltaBaseRef::Entry(last), size));
            if with_siblings {
                entries.push((DeltaBaseRef::Entry(last), size));
            }
            last = entries.len() as u32 - 1;
        }
        entries
    }

    #[test]
    fn chains_are_limited_in_depth_and_size() {
        let commit_limits = PackLimits::for_one_commit(1000, 32 << 20, 256 << 20);
        let history_limits = PackLimits::for_history(1000, 32 << 20, 256 << 20, 256 << 20);
        for (entries, fits_commit, fits_history) in [
            (chain(8, 32 * MIB, true), true, true),
            (chain(1000, 32 * MIB, true), false, false),
            (chain(100, 32 * MIB, false), false, true),
            (chain(200, 32 * MIB, false), false, false),
            (chain(50, 10 * MIB, true), false, false),
            (chain(4097, 1, true), true, true),
            (chain(4098, 1, true), false, false),
            (vec![(ROOT, 33 * MIB)], false, true),
            (vec![(DeltaBaseRef::NotADelta { is_blob: false }, 33 * MIB)], false, false),
            (vec![(ROOT, 32 * MIB); 100], true, true),
            ((0..7).map(|n| (DeltaBaseRef::Id([n; 20]), 16 * MIB)).collect(), true, true),
            ((0..100).map(|n| (DeltaBaseRef::Id([n; 20]), 16 * MIB)).collect(), false, false),
        ] {
            let first = &entries[..entries.len().min(3)];
            assert_eq!(check_entries(commit_limits, &entries).is_ok(), fits_commit, "{first:?}");
            assert_eq!(check_entries(history_limits, &entries).is_ok(), fits_history, "in a history: {first:?}");
        }
    }
}
