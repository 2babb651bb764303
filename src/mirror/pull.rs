//! The way of every document, alone or in a set: serve it, ask again with patience, or fetch it.

use std::sync::Arc;

use tokio::time::timeout_at;

use super::freshness::{Age, Rule, Verdict, decide};
use super::single_flight::Awaited;
use super::{Answer, Call, Mirror, Outcome};
use crate::address::Hostname;
use crate::error::Error;
use crate::upstream::error::{Fault, UpstreamError};

/// What a flight brought back.
#[derive(Debug, Clone)]
pub(super) struct Landed<T> {
    pub(super) value: T,
    pub(super) age: Age,
}

pub(super) type Flight<T> = Result<Landed<T>, Error>;

impl Mirror {
    /// Answers from `held` or from a flight, as freshness decides.
    pub(super) async fn pull<T: Clone + Send + Sync + 'static>(
        &self,
        what: &str,
        call: &Call,
        rule: &Rule,
        held: Option<Landed<T>>,
        flight: impl FnOnce() -> Awaited<Flight<T>>,
    ) -> Result<Answer<T>, Error> {
        let verdict = decide(held.as_ref().map(|held| held.age), rule, self.link(), call.now);
        let answer = |landed: Landed<T>, outcome| Answer {
            outcome: if landed.age.gone { Outcome::Gone } else { outcome },
            fresh_until: rule.fresh_until(landed.age),
            value: landed.value,
        };
        let stale = |held: Landed<T>| Answer {
            outcome: if held.age.gone { Outcome::Gone } else { Outcome::Stale },
            fresh_until: call.now,
            value: held.value,
        };
        match (verdict, held) {
            (Verdict::Serve, Some(held)) => Ok(answer(held, Outcome::Hit)),
            (Verdict::ServeStale, Some(held)) => Ok(stale(held)),
            (Verdict::Revalidate, Some(held)) => {
                let patience = call.deadline.min(call.began + rule.patience);
                match timeout_at(patience, flight()).await {
                    Ok(Ok(landed)) => Ok(answer(landed, Outcome::Revalidated)),
                    Ok(Err(error @ Error::NotFound(_))) => Err(error),
                    Ok(Err(error)) => {
                        tracing::warn!(what, %error, "could not be revalidated; what is held is served");
                        Ok(stale(held))
                    }
                    Err(_) => {
                        tracing::warn!(what, "upstream is slow to revalidate; what is held is served meanwhile");
                        Ok(stale(held))
                    }
                }
            }
            (Verdict::Refuse, _) => Err(self.missing(what.to_owned())),
            (_, None) | (Verdict::Fetch, _) => match timeout_at(call.deadline, flight()).await {
                Ok(landed) => Ok(answer(landed?, Outcome::Miss)),
                Err(_) => Err(Error::Slow(what.to_owned())),
            },
        }
    }

    /// Gives a flight for a document its time limit.
    pub(super) async fn within_limits<T>(
        self: &Arc<Self>,
        what: &str,
        host: &Hostname,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let limit = self.limits.give_up_after;
        match tokio::time::timeout(limit, work).await {
            Ok(done) => done,
            Err(_) => Err(Error::from(UpstreamError {
                asked: what.to_owned(),
                at: host.to_string(),
                fault: Fault::Slow(format!("no whole answer within {} s", limit.as_secs())),
            })),
        }
    }
}
