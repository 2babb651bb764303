//! Totals of the store, and the mark of a clean close that contains them.

use super::super::FORMAT;
use super::entry::{ARCHIVE, PAGE};

/// The version of the index. Version 1, of older larders, has no names.
const INDEX_VERSION: u32 = 2;

/// Totals of the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// The number of archives.
    pub archives: u64,
    /// The size of all archives, in bytes.
    pub archive_bytes: u64,
    /// The number of documents, proof sets and pages.
    pub documents: u64,
    /// The size of all documents, proof sets and pages, in bytes.
    pub document_bytes: u64,
    /// The part of `document_bytes` of pages of the registry HTTP API.
    pub page_bytes: u64,
}

impl Totals {
    pub(super) fn add(&mut self, kind: u8, size_bytes: u64) {
        self.change(kind, |number| number.saturating_add(1), |bytes| bytes.saturating_add(size_bytes));
    }

    pub(super) fn subtract(&mut self, kind: u8, size_bytes: u64) {
        self.change(kind, |number| number.saturating_sub(1), |bytes| bytes.saturating_sub(size_bytes));
    }

    fn change(&mut self, kind: u8, number: impl Fn(u64) -> u64, bytes: impl Fn(u64) -> u64) {
        if kind == PAGE {
            self.page_bytes = bytes(self.page_bytes);
        }
        let (numbers, sizes) = match kind {
            ARCHIVE => (&mut self.archives, &mut self.archive_bytes),
            _ => (&mut self.documents, &mut self.document_bytes),
        };
        (*numbers, *sizes) = (number(*numbers), bytes(*sizes));
    }

    fn members(&mut self) -> [&mut u64; 5] {
        let Self { archives, archive_bytes, documents, document_bytes, page_bytes } = self;
        [archives, archive_bytes, documents, document_bytes, page_bytes]
    }

    /// The mark of a clean close: the format, the index version, and these totals.
    pub(super) fn mark(mut self) -> Vec<u8> {
        let mut mark = [FORMAT.to_be_bytes(), INDEX_VERSION.to_be_bytes()].concat();
        self.members().iter().for_each(|number| mark.extend_from_slice(&number.to_be_bytes()));
        mark
    }

    /// The totals in a mark; `None` for the mark of another format or index version.
    pub(super) fn in_mark(mark: &[u8]) -> Option<Self> {
        let (header, numbers) = mark.split_at_checked(8)?;
        let mut totals = Self::default();
        let is_current =
            header == [FORMAT.to_be_bytes(), INDEX_VERSION.to_be_bytes()].concat() && numbers.len() == 5 * 8;
        for (member, bytes) in totals.members().into_iter().zip(numbers.chunks_exact(8)) {
            *member = u64::from_be_bytes(bytes.try_into().ok()?);
        }
        is_current.then_some(totals)
    }

    /// All bytes that count against the size limit.
    pub fn bytes(&self) -> u64 {
        self.archive_bytes.saturating_add(self.document_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An index that an older larder closed cleanly has no names, so it is incomplete (DESIGN, promise 9).
    #[test]
    fn only_a_mark_of_the_current_index_version_is_trusted() {
        let totals = Totals { archives: 1, archive_bytes: 2, documents: 3, document_bytes: 4, page_bytes: 5 };
        let mark = totals.mark();
        assert_eq!(Totals::in_mark(&mark), Some(totals));
        let (of_older, of_newer) = (FORMAT.to_be_bytes().to_vec(), [&FORMAT.to_be_bytes()[..], &[9; 44]].concat());
        for other in [Vec::new(), of_older, of_newer, mark[..mark.len() - 1].to_vec(), [&mark[..], &[0]].concat()] {
            assert_eq!(Totals::in_mark(&other), None, "{other:?}");
        }
    }
}
