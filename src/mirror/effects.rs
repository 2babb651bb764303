//! The effects of a request: what it counts, records, remembers and starts. A look at the answer that a client would get
//! has none. Caches that remember and flights that start work take [`Effects`], so that no caller can forget them.

/// The effects of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effects {
    /// A client, a job or a plan asks.
    Real,
    /// `explain` looks. Where a request would ask upstream, upstream's last answer counts.
    None,
}

impl Effects {
    /// Counts, records or logs, unless there are no effects.
    pub fn run(self, effect: impl FnOnce()) {
        if self == Self::Real {
            effect();
        }
    }
}
