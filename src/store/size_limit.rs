//! Limit of a store's size.

/// The limit for archives and documents together: `[store] max_size`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeLimit {
    /// A configured number of bytes.
    Bytes(u64),
    /// Four fifths of the disk space available to the store, at most 200 GiB: the default. Bytes already stored count
    /// as available, so that other users of the disk do not cause evictions at each start.
    ShareOfDisk,
}

impl SizeLimit {
    /// The largest default limit, in bytes.
    pub const MAX_SHARE: u64 = 200 << 30;

    /// The limit in bytes, for a disk with this much stored by larder and this much free.
    pub fn bytes(self, stored_bytes: u64, free_bytes: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::ShareOfDisk => Self::MAX_SHARE.min(stored_bytes.max(stored_bytes.saturating_add(free_bytes) / 5 * 4)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The default limit of a new store fits its disk (DESIGN, promise 9).
    #[test]
    fn the_default_limit_fits_the_disk_and_does_not_shrink_as_it_fills() {
        const GIB: u64 = 1 << 30;
        let share = SizeLimit::ShareOfDisk;
        assert_eq!((share.bytes(0, 50 * GIB), share.bytes(40 * GIB, 10 * GIB)), (40 * GIB, 40 * GIB));
        assert_eq!(share.bytes(40 * GIB, 0), 40 * GIB);
        assert_eq!((share.bytes(0, 4_000 * GIB), share.bytes(u64::MAX, 1)), (200 * GIB, 200 * GIB));
        assert_eq!((SizeLimit::Bytes(7).bytes(0, 0), share.bytes(0, 0)), (7, 0));
    }
}
