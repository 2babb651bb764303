//! Stores across a gap: what this one gives into a bundle, and how it takes in what another gave. Everything that comes
//! in is proven here again, as if it came from an upstream. All of this blocks.

mod fit;
mod give;
mod held;
mod intake;
mod listed;
mod staying;
mod take;

pub use self::give::{Gathered, NotGathered};
pub(super) use self::intake::Source;
pub(super) use self::staying::Staying;
pub use self::take::{NotApplied, TakingIn};
