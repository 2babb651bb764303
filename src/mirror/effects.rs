//! The effects of a request: what it counts, records, remembers and starts. A look at the answer that a client would get
//! has none. What has an effect asks for [`Effects`], so that a caller cannot forget them.

/// The effects of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effects {
    /// A client, a job or a plan asks.
    Real,
    /// `explain` looks. Where a request would ask upstream, upstream's last answer counts.
    None,
}

impl Effects {
    /// Does what has an effect: counts, records or logs.
    pub fn run(self, effect: impl FnOnce()) {
        if self == Self::Real {
            effect();
        }
    }
}
