//! The operations on addresses, each with its report: for the commands, and for the buttons of the status page.

use std::fmt::Display;

use super::Admin;
use crate::address::PackageSelector;
use crate::error::Error;
use crate::mirror::{
    AcceptOutcome, AcceptResult, ApprovalResult, ApprovalWords, DecidedVersion, EvidenceName, PinChange, PinResult,
    PurgeResult, RefreshResult,
};
use crate::policy::ApprovalDecision;
use crate::protocol::admin::operation::OperationReport;

impl Admin {
    /// Asks upstream again.
    pub(super) async fn refresh(&self, addresses: Vec<PackageSelector>) -> OperationReport<RefreshResult> {
        let operations = &self.mirror.operations;
        let refresh = |selector| async move { operations.refresh(&selector, &self.job_context()).await };
        self.report_each(addresses, refresh, |refreshed| refreshed.outcome.succeeded()).await
    }

    /// Removes from the store.
    pub(super) async fn purge(&self, addresses: Vec<PackageSelector>) -> OperationReport<PurgeResult> {
        let operations = &self.mirror.operations;
        let purge = |selector| async move { operations.purge(&selector).await.map(|purged| vec![purged]) };
        self.report_each(addresses, purge, PurgeResult::removed_everything).await
    }

    /// Accepts changed bytes, keys or trees.
    pub(super) async fn accept(
        &self,
        addresses: Vec<PackageSelector>,
        shown: &[EvidenceName],
    ) -> OperationReport<AcceptResult> {
        let operations = &self.mirror.operations;
        let accept = |selector| async move {
            match operations.accept(&selector, shown, &self.job_context()).await {
                Ok(accepted) if accepted.is_empty() => Err(format!(
                    "{selector}: no version of this address is stored; name a version to accept one that is not stored"
                )),
                accepted => accepted.map_err(|error| error.to_string()),
            }
        };
        let is_accepted = |accepted: &AcceptResult| {
            !matches!(accepted.outcome, AcceptOutcome::Failed { .. } | AcceptOutcome::Undecided(_))
        };
        self.report_each(addresses, accept, is_accepted).await
    }

    /// Approves versions, or takes approvals back.
    pub(super) async fn approve(
        &self,
        decision: ApprovalDecision,
        versions: Vec<DecidedVersion>,
        words: &ApprovalWords,
    ) -> OperationReport<ApprovalResult> {
        let operations = &self.mirror.operations;
        let call = self.mirror.runtime.job_context(self.clock.now());
        let decide = |version: DecidedVersion| {
            let call = &call;
            async move { Ok::<_, Error>(vec![operations.decide(decision, &version, words, call).await?]) }
        };
        self.report_each(versions, decide, ApprovalResult::succeeded).await
    }

    /// Pins or unpins.
    pub(super) async fn change_pin(
        &self,
        addresses: Vec<PackageSelector>,
        pin: PinChange,
    ) -> OperationReport<PinResult> {
        let operations = &self.mirror.operations;
        let change_pin = |selector| async move { operations.pin(&selector, pin).await };
        self.report_each(addresses, change_pin, PinResult::succeeded).await
    }

    /// Runs an operation on each subject, and reports all results once the other replicas have heard of them.
    async fn report_each<S, T, E: Display, F: Future<Output = Result<Vec<T>, E>>>(
        &self,
        subjects: Vec<S>,
        run: impl Fn(S) -> F,
        is_success: impl Fn(&T) -> bool,
    ) -> OperationReport<T> {
        let mut results = Vec::new();
        for subject in subjects {
            results.push(run(subject).await);
        }
        OperationReport::of(results, is_success).spread(self.mirror.library.spread().await)
    }
}
