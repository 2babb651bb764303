//! Serves documents and proof sets by freshness: from the store, by revalidation with patience, or by a fetch.

use std::sync::Arc;

use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout_at};

use crate::error::Error;
use crate::mirror::effects::Effects;
use crate::mirror::freshness::{
    Confirmed, FlightResult, FreshnessDecision, Revalidatable, RevalidationTarget, STORED_ANSWER_LIFETIME, decide,
};
use crate::mirror::request_context::{DocumentRequest, Urgency};
use crate::mirror::single_flight::SharedResult;
use crate::mirror::{Answer, Connectivity, Documents, FetchReason, Outcome, RequestContext};
use crate::upstream::backoff::Origin;

/// Waits for a flight until a deadline. A job waits until the flight ends, which has its own limits.
async fn await_flight<T: Clone>(call: &RequestContext, until: Instant, flight: SharedResult<T>) -> Result<T, Elapsed> {
    match call.urgency {
        Urgency::Request | Urgency::Flight => timeout_at(until, flight).await,
        Urgency::Job | Urgency::Plan | Urgency::DryRun => Ok(flight.await),
    }
}

impl Documents {
    /// Answers from the stored copy or from a flight, as freshness decides. The caller records what is refused offline.
    pub async fn serve_or_fetch<T: Revalidatable + Clone + Send + Sync + 'static>(
        self: &Arc<Self>,
        request: &DocumentRequest,
        call: &RequestContext,
        stored: Option<Confirmed<T>>,
        flight: impl FnOnce(FetchReason, &RequestContext) -> SharedResult<FlightResult<T>>,
    ) -> Result<Answer<T>, Error> {
        let DocumentRequest { subject, key, upstream, rule } = request;
        let host = &upstream.settings.host;
        let connectivity = self.runtime.connectivity();
        let until = |Confirmed { value, confirmed }, outcome, fresh_until| {
            let outcome = if confirmed.gone { Outcome::Gone } else { outcome };
            Answer { value, outcome, fresh_until, checked: confirmed.checked }
        };
        let answer = |fetched: Confirmed<T>, outcome| {
            let fresh_until = rule.fresh_until(fetched.confirmed);
            until(fetched, outcome, fresh_until)
        };
        let stale = |stored| until(stored, Outcome::Stale, call.now);
        let Some(stored) = stored else {
            if connectivity == Connectivity::Offline {
                return Err(self.library.offline_error(subject.clone()).await);
            }
            let _place = self.runtime.take_waiting_place(subject, call)?;
            return match await_flight(call, call.deadline, flight(FetchReason::NotStored, call)).await {
                Ok(fetched) => Ok(answer(fetched?, Outcome::Miss)),
                Err(_) => {
                    let late = Err(Error::Slow(subject.clone()));
                    call.record_answer(key, rule.patience, &late);
                    late
                }
            };
        };
        match decide(stored.confirmed, rule, connectivity, call.now) {
            FreshnessDecision::Serve => Ok(answer(stored, Outcome::Hit)),
            // Upstream cannot be asked, so for a moment the store need not be read again either.
            FreshnessDecision::ServeStale => Ok(until(stored, Outcome::Stale, call.now.after(STORED_ANSWER_LIFETIME))),
            FreshnessDecision::Revalidate => {
                let origins = match rule.target {
                    RevalidationTarget::SameLocation => stored.value.origins(),
                    // The backoff of the old location does not apply to the new one.
                    RevalidationTarget::NewLocation => vec![Origin::of(&upstream.settings.url)],
                };
                let Some(permit) = call.permit_to_revalidate(&origins) else {
                    tracing::debug!(subject, "its upstream's circuit breaker is open; the stored copy is served");
                    // As little can be asked as offline, so for a moment the rendered answer serves all clients.
                    let open_until = call.config.outbound.backoff.open_until(&origins, call.now).unwrap_or(call.now);
                    let lifetime_end = call.now.after(STORED_ANSWER_LIFETIME).min(open_until);
                    return Ok(until(stored, Outcome::Stale, lifetime_end));
                };
                let Ok(_place) = self.runtime.take_waiting_place(subject, call) else {
                    tracing::debug!(subject, "the limit of waiting requests is reached; the stored copy is served");
                    return Ok(stale(stored));
                };
                let patience_end = call.deadline.min(call.started + rule.patience);
                let call = RequestContext { revalidation_permit: permit, ..call.clone() };
                match await_flight(&call, patience_end, flight(FetchReason::Revalidate, &call)).await {
                    Ok(Ok(fetched)) => Ok(answer(fetched, Outcome::Revalidated)),
                    Ok(Err(error @ Error::NotFound(_))) => Err(error),
                    Ok(Err(_)) if call.effects() == Effects::None => Ok(stale(stored)),
                    Ok(Err(error @ Error::RevalidationSkipped(_))) if call.urgency == Urgency::Job => Err(error),
                    Ok(Err(error @ Error::RevalidationSkipped(_))) => {
                        tracing::debug!(subject, %error, "the stored copy is served");
                        Ok(stale(stored))
                    }
                    Ok(Err(error)) => {
                        tracing::warn!(subject, %error, "could not be revalidated; the stored copy is served");
                        Ok(stale(stored))
                    }
                    Err(_) => {
                        tracing::warn!(subject, "upstream is slow to revalidate; the stored copy is served meanwhile");
                        let now = call.now.after(call.started.elapsed());
                        call.record_answer::<()>(key, rule.patience, &Err(Error::Slow(subject.clone())));
                        call.config.outbound.backoff.record_client_timeout(host, &origins, rule.patience, now);
                        Ok(stale(stored))
                    }
                }
            }
        }
    }
}
