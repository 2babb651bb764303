//! Stores across a gap: what this one gives into a bundle, and how it takes in what another gave. Everything that comes
//! in is proven here again, as if it came from an upstream. All of this blocks.

mod archives;
mod documents;
mod fit;
mod give;
mod held;
mod intake;
mod listed;
mod sets;
mod shared;
mod staying;
mod take;

pub(super) use self::archives::{ArchiveBytesSource, StagedBundleArchive};
pub use self::give::{Gathered, NotGathered};
pub(super) use self::intake::{Judging, store_failed};
pub(super) use self::staying::Staying;
pub use self::take::{NotApplied, TakingIn};
