//! The status page, and its form, which does what the commands do.

use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;

use super::super::body::Body;
use super::super::page::{
    self, APPROVE_BUTTON, HeldData, JobOnPage, OperationResult, StatusData, TrafficOfDay, UNAPPROVE_BUTTON,
};
use super::super::requests::Refusal;
use super::{Admin, Answer, bodies, refused};
use crate::address::PackageSelector;
use crate::jobs::JobId;
use crate::jobs::job_report::JobState;
use crate::mirror::{AcceptOutcome, EvidenceName, PinChange};
use crate::policy::ApprovalDecision;
use crate::protocol::admin::Operation;
use crate::protocol::admin::approval::ApprovalRequest;
use crate::protocol::admin::outcome_lines::{
    accepted_lines, decided_lines, pinned_lines, purged_lines, refreshed_lines,
};

/// The archives listed as the largest, and as the longest unused.
const NOTABLE_ARCHIVES: usize = 10;

/// The failures shown of a job.
const MAX_FAILURES: usize = 3;

impl Admin {
    /// Renders the status page. Reads the disk.
    pub(super) fn status_page(&self) -> Response<Body> {
        let traffic = self.process.serving().map(|serving| TrafficOfDay::of(&serving.traffic));
        let jobs = self.jobs.all().into_iter().map(|summary| {
            let failed = JobId::parse(&summary.id).filter(|_| summary.state == JobState::Failed);
            let failures = failed.and_then(|id| self.jobs.find(id)).map(|job| job.first_failures(MAX_FAILURES));
            JobOnPage { summary, failures: failures.unwrap_or_default() }
        });
        page::status(&StatusData {
            report: self.status(),
            jobs: jobs.collect(),
            traffic,
            archives: self.mirror.operations.notable_archives(NOTABLE_ARCHIVES).map_err(|error| error.to_string()),
            default_host: self.default_host.clone(),
            base: self.base.clone(),
            now: self.clock.now(),
        })
    }

    /// Does what a button of the status page says, if its form has the token.
    pub(super) async fn submit_form(self: &Arc<Self>, request: Request<Incoming>) -> Answer {
        let fields = bodies::read_form(request).await?;
        let field = |name: &str| fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str());
        if let Some(serving) = self.process.serving()
            && !field("token").is_some_and(|token| serving.access.is_token(token.trim()))
        {
            self.requests.record_refusal(Refusal::AdminToken);
            return Ok(page::wrong_token(&self.mirror.library.folder().display().to_string()));
        }
        let decision = match field("do") {
            Some(APPROVE_BUTTON) => Some(ApprovalDecision::Approved),
            Some(UNAPPROVE_BUTTON) => Some(ApprovalDecision::TakenBack),
            _ => None,
        };
        if let Some(decision) = decision {
            let given = |name: &str| field(name).map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned);
            let what = fields.iter().filter(|(name, _)| name == "what").map(|(_, value)| value.clone()).collect();
            // The end is for approvals; the form has one field for both buttons.
            let until = given("until").filter(|_| decision == ApprovalDecision::Approved);
            let asked = ApprovalRequest { what, reason: given("reason"), by: given("by"), until };
            return Ok(self.decide_by_form(decision, asked).await);
        }
        let (operation, shown, selector) =
            self.parse_button(field("do").unwrap_or_default()).map_err(|reason| refused(vec![reason]))?;
        let target = selector.to_string();
        let command = format!("larder {} {target}", operation.label());
        // The operation goes on when the browser leaves, as one of a command does.
        let admin = Arc::clone(self);
        let operating = tokio::spawn(async move { admin.operate(operation, shown, selector).await });
        match operating.await.map_err(|_| super::internal("the operation ended unexpectedly"))? {
            Some(result) => Ok(page::result(page::done(operation), &command, &result)),
            None => Ok(page::changed_alarm(&target)),
        }
    }

    /// Approves the versions that a person selected, or takes their approvals back.
    async fn decide_by_form(self: &Arc<Self>, decision: ApprovalDecision, asked: ApprovalRequest) -> Response<Body> {
        let (versions, words) = match asked.parsed(decision, &self.default_host, self.clock.now()) {
            Ok(parsed) => parsed,
            Err(problems) => return page::unclear_decision(problems),
        };
        let report = self.approve(decision, versions, &words).await;
        let result = OperationResult::of(report, |items| decided_lines(items, &self.default_host));
        page::result(page::decided(decision), "", &result)
    }

    /// Renders the page of held versions.
    pub(super) async fn held_page(&self, query: Option<&str>) -> Answer {
        let held = self.held(query).await?;
        let (library, now) = (Arc::clone(&self.mirror.library), self.clock.now());
        let approvals = self.mirror.runtime.spawn_blocking(move || library.approvals_in_force(now)).await;
        let approvals = approvals.map_err(|_| super::internal("reading the approvals ended unexpectedly"))?;
        Ok(page::held(&HeldData {
            held,
            approvals: approvals.map_err(|error| super::internal(&error.to_string()))?,
            store: self.mirror.library.folder().display().to_string(),
            default_host: self.default_host.clone(),
            now,
        }))
    }

    /// Parses the value of a button: an operation, with `:` and the evidence that its page showed, and an address.
    ///
    /// # Errors
    /// The problem.
    fn parse_button(&self, value: &str) -> Result<(Operation, Vec<EvidenceName>, PackageSelector), String> {
        let (word, address) = value.split_once(' ').unwrap_or((value, ""));
        let (word, evidence) = word.split_once(':').unwrap_or((word, ""));
        let operation = Operation::ALL.into_iter().find(|operation| operation.label() == word);
        let operation = operation.ok_or("the form names no operation of larder: load the status page again")?;
        let selector = PackageSelector::parse(address, &self.default_host).map_err(|bad| bad.to_string())?;
        Ok((operation, EvidenceName::parse(evidence).into_iter().collect(), selector))
    }

    /// The result; `None` for evidence that the page did not show: a person accepts what it showed, and not what upstream has
    /// by now.
    async fn operate(
        &self,
        operation: Operation,
        shown: Vec<EvidenceName>,
        selector: PackageSelector,
    ) -> Option<OperationResult> {
        let (addresses, host) = (vec![selector], &self.default_host);
        Some(match operation {
            Operation::Refresh => {
                OperationResult::of(self.refresh(addresses).await, |items| refreshed_lines(items, host))
            }
            Operation::Purge => OperationResult::of(self.purge(addresses).await, |items| purged_lines(items, host)),
            Operation::Accept => {
                let report = self.accept(addresses, &shown).await;
                if report.items.iter().any(|item| matches!(item.outcome, AcceptOutcome::Undecided(_))) {
                    return None;
                }
                OperationResult::of(report, |items| accepted_lines(items, host))
            }
            Operation::Pin => {
                OperationResult::of(self.change_pin(addresses, PinChange::Set).await, |items| pinned_lines(items, host))
            }
            Operation::Unpin => OperationResult::of(self.change_pin(addresses, PinChange::Lift).await, |items| {
                pinned_lines(items, host)
            }),
        })
    }
}
