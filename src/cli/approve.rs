//! `larder approve` and `larder unapprove`: a person's decisions about versions that rules hold back.

use clap::Args;

use super::CommonOptions;
use super::admin_service::{ask, config_to_ask};
use super::operate::print_result;
use crate::mirror::ApprovalResult;
use crate::policy::ApprovalDecision;
use crate::protocol::admin::approval::{ApprovalRequest, decision_path};
use crate::protocol::admin::operation::OperationReport;
use crate::protocol::admin::outcome_lines::decided_lines;

#[derive(Debug, Args)]
pub(super) struct Approve {
    /// `[HOST/]NAMESPACE/TYPE@VERSION`, or for a module `[HOST/]NAMESPACE/NAME/SYSTEM@VERSION`
    #[arg(required = true, value_name = "ADDRESS@VERSION")]
    versions: Vec<String>,
    /// Why it may be used before its time: one line of at most 150 characters
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// The person who decides, recorded as given
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// The last day for which it counts (UTC), such as 2026-12-31, or the last moment, such as 2026-12-31T12:00:00Z. Without
    /// it the approval has no end
    #[arg(long, value_name = "DATE")]
    until: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct Unapprove {
    /// `[HOST/]NAMESPACE/TYPE@VERSION`, or for a module `[HOST/]NAMESPACE/NAME/SYSTEM@VERSION`
    #[arg(required = true, value_name = "ADDRESS@VERSION")]
    versions: Vec<String>,
    /// Why: one line of at most 150 characters
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// The person who decides, recorded as given
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
}

impl Approve {
    /// Approves the versions; returns true if it succeeded for each.
    pub(super) fn run(self, common: &CommonOptions) -> anyhow::Result<bool> {
        let Self { versions, reason, by, until } = self;
        let request = ApprovalRequest { what: versions, reason: Some(reason), by, until };
        decide(ApprovalDecision::Approved, &request, common)
    }
}

impl Unapprove {
    /// Takes the approvals back; returns true if it succeeded for each.
    pub(super) fn run(self, common: &CommonOptions) -> anyhow::Result<bool> {
        let Self { versions, reason, by } = self;
        let request = ApprovalRequest { what: versions, reason, by, until: None };
        decide(ApprovalDecision::TakenBack, &request, common)
    }
}

fn decide(decision: ApprovalDecision, request: &ApprovalRequest, common: &CommonOptions) -> anyhow::Result<bool> {
    let config = config_to_ask(common)?;
    let report: OperationReport<ApprovalResult> =
        ask(&config, async |larder| larder.post(decision_path(decision), request).await)?;
    let host = config.default_host();
    print_result(&report, common.json, |items| decided_lines(items, &host))
}
