//! A place that does not answer: it is left alone for a moment, in which all callers are told why. Of those that come afterwards, one is
//! let through at a time.

use std::time::{Duration, Instant};

/// The trouble with a place; none at the start.
#[derive(Debug)]
pub(super) struct Trouble<E> {
    left_alone: Duration,
    /// The moment until which the place is left alone, and the last failure.
    now: Option<(Instant, E)>,
}

impl<E: Clone> Trouble<E> {
    /// A place that is left alone for so long after each failure.
    pub(super) fn new(left_alone: Duration) -> Self {
        Self { left_alone, now: None }
    }

    /// True while the place does not answer.
    pub(super) fn is_here(&self) -> bool {
        self.now.is_some()
    }

    /// Lets a caller through, unless the place did not answer a moment ago.
    ///
    /// # Errors
    /// The failure.
    pub(super) fn admit(&mut self, now: Instant) -> Result<(), E> {
        match &mut self.now {
            Some((until, error)) if now < *until => Err(error.clone()),
            Some((until, _)) => {
                *until = now + self.left_alone;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Notes a failure. Returns true if it is the first one.
    pub(super) fn note(&mut self, error: E, now: Instant) -> bool {
        self.now.replace((now + self.left_alone, error)).is_none()
    }

    /// Notes an answer. Returns true if that ends the trouble.
    pub(super) fn end(&mut self) -> bool {
        self.now.take().is_some()
    }
}
