//! The record of a request: when its answer has been sent, its counts, its line of the access log, and the decision about it.

use std::net::IpAddr;
use std::sync::Arc;

use http::{Method, StatusCode};
use tokio::time::Instant;

use super::audit::{Asked, AuditLine, Decision, End};
use super::requests::{RequestMetrics, RequestOutcome};
use super::runs::RunRequest;
use crate::audit::AuditTrail;
use crate::clock::Timestamp;
use crate::protocol::admin::RefusalKind;
use crate::protocol::rights::without_url_token;
use crate::protocol::route::RouteKind;
use crate::protocol::run::RunId;

/// The target of the access log: its lines, one for each request, are written together.
pub const REQUEST_LOG: &str = "larder::request";

/// The record of a request. Counts the request and writes its line of the access log when it is dropped: when the body
/// of the answer has been sent, or before the answer if the client disconnected.
pub(super) struct RequestLog {
    pub(super) requests: RequestMetrics,
    pub(super) request_number: u64,
    pub(super) method: Method,
    /// The path of the request. A copy: the URI itself keeps the buffer of the connection from being used again.
    pub(super) path: Box<str>,
    pub(super) client: IpAddr,
    pub(super) start: Instant,
    pub(super) route: RouteKind,
    /// The request's part in the counts of its run.
    pub(super) run: Option<RunRequest>,
    /// True for one of too many wrong tokens: it is counted, and not logged.
    pub(super) is_quiet: bool,
    /// True for one of too many refusals of strangers.
    pub(super) is_beyond_limit: bool,
    /// The status of the answer, and the outcome of the request.
    pub(super) answer: Option<(StatusCode, RequestOutcome)>,
    /// The body bytes sent, and true if larder truncated the body itself.
    pub(super) sent: (u64, bool),
    /// The time of the request.
    pub(super) now: Timestamp,
    /// The decision, and where it is written.
    pub(super) decision: Decision,
    pub(super) audit: Option<Arc<AuditTrail<AuditLine>>>,
}

impl RequestLog {
    /// Notes why a request is not answered whose client is not known; the kind is that of a refusal. Beyond a limit for its address it is neither shown nor in the audit trail, or
    /// strangers could fill both.
    pub(super) fn note_stranger(&mut self, kind: Option<RefusalKind>, reason: &str) {
        self.is_beyond_limit = self.requests.refused_strangers().exceeds(self.client);
        self.decision.note_refusal(kind, reason);
    }
}

impl Drop for RequestLog {
    fn drop(&mut self) {
        let Self { request_number, method, path: full_path, client, route, sent: (bytes, is_truncated), .. } = self;
        let outcome = match self.answer {
            Some((_, outcome)) => outcome,
            // The listener catches a panic of the handler; the client has not disconnected then.
            None if std::thread::panicking() => RequestOutcome::Error,
            None => RequestOutcome::Left,
        };
        let end = if *is_truncated { RequestOutcome::Error } else { outcome };
        if let (true, Some((status, _))) = (*is_truncated, self.answer) {
            let (_, path) = RunId::split(full_path);
            let path = without_url_token(path);
            self.requests.failures().record_broken_off(&path, status, *client, self.now);
            if let Some(run) = &mut self.run {
                run.broke_off(&path);
            }
        }
        self.requests.record_end(*route, end, outcome.body_source(), *bytes);
        if let Some(run) = &mut self.run {
            run.end(end, *bytes);
        }
        if self.is_quiet {
            return;
        }
        let status = self.answer.map(|(status, _)| status);
        let is_decision = !self.is_beyond_limit;
        if let Some(refusal) =
            status.filter(|_| is_decision).and_then(|status| self.decision.refusal(status, *client, self.now))
        {
            self.requests.refusals().record(*client, refusal);
        }
        if let Some(audit) = self.audit.as_ref().filter(|_| is_decision) {
            let path = without_url_token(RunId::without_id(full_path));
            let asked = Asked { client: *client, method, path: &path, time: self.now };
            let ended = End { status, outcome: end, bytes: *bytes, broken_off: *is_truncated };
            let line = AuditLine::of(std::mem::take(&mut self.decision), asked, ended);
            line.into_iter().for_each(|line| audit.add(line.weight(), line));
        }
        tracing::info!(
            target: REQUEST_LOG,
            request = *request_number,
            %client,
            status = status.map(|status| status.as_u16()),
            route = route.label(),
            outcome = end.label(),
            bytes = *bytes,
            ms = self.start.elapsed().as_millis() as u64,
            "{method} {}",
            // The id of a run opens its larder, the proof in a URL its archive, and logs are read by others.
            without_url_token(RunId::without_id(full_path)),
        );
    }
}
