//! The page of what rules hold back and until when, and of what is approved. It works without JavaScript.

use askama::Template;
use http::{Response, StatusCode};

use super::status::{shown, token_file, without_host};
use super::{Body, Frame, Moment, page};
use crate::address::Hostname;
use crate::clock::Timestamp;
use crate::mirror::HeldPage;
use crate::policy::Approval;
use crate::protocol::admin::approval::held_query;

/// The value of the button that approves.
pub(in crate::http) const APPROVE_BUTTON: &str = "approve";
/// The value of the button that takes approvals back.
pub(in crate::http) const UNAPPROVE_BUTTON: &str = "unapprove";

/// The data of the page.
#[derive(Debug)]
pub(in crate::http) struct HeldData {
    pub(in crate::http) held: HeldPage,
    pub(in crate::http) approvals: Vec<Approval>,
    /// The folder of the store.
    pub(in crate::http) store: String,
    pub(in crate::http) default_host: Hostname,
    pub(in crate::http) now: Timestamp,
}

#[derive(Template)]
#[template(path = "held.html")]
struct HeldPageView {
    frame: Frame,
    version: &'static str,
    held: Vec<HeldView>,
    approvals: Vec<ApprovalView>,
    /// The query of the next page; empty on the last one.
    next: String,
    approve: &'static str,
    unapprove: &'static str,
    token_file: String,
}

struct HeldView {
    /// `ADDRESS@VERSION`, as a command takes it.
    what: String,
    /// `None` where nobody knows.
    until: Option<Moment>,
    reason: String,
}

struct ApprovalView {
    what: String,
    since: Moment,
    /// `None` for no end.
    until: Option<Moment>,
    reason: String,
    by: String,
    from_bundle: bool,
}

/// Renders the page.
pub(in crate::http) fn held(data: &HeldData) -> Response<Body> {
    let HeldData { held: HeldPage { held, next }, approvals, store, default_host, now } = data;
    let what = |address: &str, version| format!("{}@{version}", without_host(address, default_host));
    let template = HeldPageView {
        frame: Frame::of_admin(""),
        version: env!("CARGO_PKG_VERSION"),
        held: held
            .iter()
            .map(|held| HeldView {
                what: what(&held.address, &held.version),
                until: held.until.map(|until| Moment::until(until, *now)),
                reason: shown(&held.reason),
            })
            .collect(),
        approvals: approvals
            .iter()
            .map(|approval| ApprovalView {
                what: what(&approval.address, &approval.version),
                since: Moment::ago(approval.since, *now),
                until: approval.until.map(|until| Moment::until(until, *now)),
                reason: shown(&approval.reason),
                by: shown(approval.by.as_deref().unwrap_or_default()),
                from_bundle: approval.from_bundle,
            })
            .collect(),
        next: next.as_deref().map(held_query).unwrap_or_default(),
        approve: APPROVE_BUTTON,
        unapprove: UNAPPROVE_BUTTON,
        token_file: token_file(store),
    };
    page(StatusCode::OK, template.frame, &template)
}
