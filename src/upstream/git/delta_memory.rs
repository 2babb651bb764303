//! Delta chains of a pack, and the memory to resolve them. An object may be stored as a delta to another one, which may
//! itself be a delta.

use std::collections::{HashMap, HashSet};

/// The longest chain; git makes none longer than 4,095.
const DEEPEST: u32 = 4096;
/// Factor for the total size of a chain in a history: chains there are as long as the history, so the total may be this
/// multiple of the memory limit.
const OF_A_HISTORY: u64 = 16;

/// Limits on objects, their sizes, and chains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PackLimits {
    pub(super) objects: u32,
    /// Size of a file.
    pub(super) blob: u64,
    /// Size of a folder, a commit or a tag.
    pub(super) other: u64,
    /// Memory that one chain needs at once.
    pub(super) chain_memory: u64,
    /// Total size of one chain: all of it is produced for the object at its end.
    pub(super) chain_total: u64,
}

impl PackLimits {
    /// Limits for the files of one commit.
    pub(super) fn of_one_commit(objects: u32, object: usize, chain_total: u64) -> Self {
        Self { objects, blob: object as u64, other: object as u64, chain_memory: chain_total, chain_total }
    }

    /// Limits for a history, which may contain larger files than the wanted commit.
    pub(super) fn of_a_history(objects: u32, object: usize, blob: usize, chain: u64) -> Self {
        let all = chain.saturating_mul(OF_A_HISTORY);
        Self { objects, blob: blob as u64, other: object as u64, chain_memory: chain, chain_total: all }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeltaBaseRef {
    /// None: the entry is not a delta.
    Nothing {
        /// True for a file.
        is_blob: bool,
    },
    /// An earlier entry of the pack, by its index.
    Before(u32),
    /// The object with this id, wherever it is.
    Named([u8; 20]),
}

#[derive(Debug, Clone, Copy)]
struct PackEntry {
    /// Declared size of the base, for a base by id.
    of_base: u64,
    /// Offset in the pack.
    offset: u64,
    size: u64,
    base: DeltaBaseRef,
    is_blob: bool,
    children: u32,
}

/// All entries of a pack, in its order.
#[derive(Debug)]
pub(super) struct DeltaChains {
    limits: PackLimits,
    entries: Vec<PackEntry>,
}

/// Cumulative sizes of a chain at one entry.
#[derive(Debug, Clone, Copy, Default)]
struct ChainLink {
    depth: u32,
    sum: u64,
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
        let found = self.entries.binary_search_by_key(&offset, |entry| entry.offset).ok()?;
        u32::try_from(found).ok()
    }

    /// Adds the next entry, whose base has `of_base` bytes.
    ///
    /// # Errors
    /// The limit that is exceeded.
    pub(super) fn add(&mut self, offset: u64, base: DeltaBaseRef, of_base: u64, size: u64) -> Result<(), String> {
        let is_blob = match base {
            DeltaBaseRef::Nothing { is_blob } => is_blob,
            DeltaBaseRef::Before(base) => self.entries.get(base as usize).is_some_and(|base| base.is_blob),
            DeltaBaseRef::Named(_) => true,
        };
        let largest = if is_blob { self.limits.blob } else { self.limits.other };
        if size.max(of_base) > largest {
            return Err(format!("{largest} bytes in one object"));
        }
        if let DeltaBaseRef::Before(base) = base
            && let Some(base) = self.entries.get_mut(base as usize)
        {
            base.children += 1;
        }
        self.entries.push(PackEntry { of_base, offset, size, base, is_blob, children: 0 });
        Ok(())
    }

    /// Checks the limits after the last entry. A base stays in memory while another delta needs it.
    ///
    /// # Errors
    /// The limit that is exceeded.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut links: Vec<ChainLink> = Vec::with_capacity(self.entries.len());
        let mut most = ChainLink::default();
        // An entry's id is unknown until it is resolved, so all entries with a base by id may form one chain.
        let mut named: HashMap<usize, ChainLink> = HashMap::new();
        let mut names = HashSet::new();
        let mut of_names: u64 = 0;
        for (index, entry) in self.entries.iter().enumerate() {
            if let DeltaBaseRef::Named(id) = entry.base
                && names.insert(id)
            {
                of_names = of_names.saturating_add(entry.of_base);
            }
            let link = match entry.base {
                DeltaBaseRef::Nothing { .. } | DeltaBaseRef::Named(_) => {
                    ChainLink { depth: 0, sum: entry.size, buffered: 0, root: index }
                }
                DeltaBaseRef::Before(base) => {
                    let (base_link, base) =
                        links.get(base as usize).zip(self.entries.get(base as usize)).ok_or("itself")?;
                    let buffered = if base.children > 1 { base.size } else { 0 };
                    ChainLink {
                        depth: base_link.depth + 1,
                        sum: base_link.sum.saturating_add(entry.size),
                        buffered: base_link.buffered.saturating_add(buffered),
                        root: base_link.root,
                    }
                }
            };
            if link.depth > DEEPEST {
                return Err(format!("{DEEPEST} objects one made out of the other"));
            }
            let is_named = matches!(self.entries.get(link.root), Some(PackEntry { base: DeltaBaseRef::Named(_), .. }));
            let group = if is_named { named.entry(link.root).or_default() } else { &mut most };
            group.sum = group.sum.max(link.sum);
            group.buffered = group.buffered.max(link.buffered);
            links.push(link);
        }
        for link in named.values() {
            most.sum = most.sum.saturating_add(link.sum);
            most.buffered = most.buffered.saturating_add(link.buffered);
        }
        most.buffered = most.buffered.saturating_add(of_names);
        let PackLimits { chain_memory, chain_total: chain, .. } = self.limits;
        if most.buffered > chain_memory {
            return Err(format!("{chain_memory} bytes in objects of which others are made"));
        }
        if most.sum > chain {
            return Err(format!("{chain} bytes in objects one made out of the other"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const ROOT: DeltaBaseRef = DeltaBaseRef::Nothing { is_blob: true };

    fn check_entries(most: PackLimits, entries: &[(DeltaBaseRef, u64)]) -> Result<(), String> {
        let mut chains = DeltaChains::new(most);
        for (number, (base, size)) in entries.iter().enumerate() {
            chains.add(number as u64 * 10, *base, *size, *size)?;
        }
        chains.check()
    }

    fn chain(length: u32, size: u64, with_siblings: bool) -> Vec<(DeltaBaseRef, u64)> {
        let mut entries = vec![(ROOT, size)];
        let mut last = 0;
        for _ in 1..length {
            entries.push((DeltaBaseRef::Before(last), size));
            if with_siblings {
                entries.push((DeltaBaseRef::Before(last), size));
            }
            last = entries.len() as u32 - 1;
        }
        entries
    }

    #[test]
    fn chains_are_limited_in_depth_and_size() {
        let one = PackLimits::of_one_commit(1000, 32 << 20, 256 << 20);
        let all = PackLimits::of_a_history(1000, 32 << 20, 256 << 20, 256 << 20);
        for (entries, in_one, in_all) in [
            (chain(8, 32 * MIB, true), true, true),
            (chain(1000, 32 * MIB, true), false, false),
            (chain(100, 32 * MIB, false), false, true),
            (chain(200, 32 * MIB, false), false, false),
            (chain(50, 10 * MIB, true), false, false),
            (chain(4097, 1, true), true, true),
            (chain(4098, 1, true), false, false),
            (vec![(ROOT, 33 * MIB)], false, true),
            (vec![(DeltaBaseRef::Nothing { is_blob: false }, 33 * MIB)], false, false),
            (vec![(ROOT, 32 * MIB); 100], true, true),
            ((0..7).map(|n| (DeltaBaseRef::Named([n; 20]), 16 * MIB)).collect(), true, true),
            ((0..100).map(|n| (DeltaBaseRef::Named([n; 20]), 16 * MIB)).collect(), false, false),
        ] {
            let first = &entries[..entries.len().min(3)];
            assert_eq!(check_entries(one, &entries).is_ok(), in_one, "{first:?}");
            assert_eq!(check_entries(all, &entries).is_ok(), in_all, "of a history: {first:?}");
        }
    }
}
