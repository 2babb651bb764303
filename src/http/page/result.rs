//! The page after a button of the status page was pressed: what it did, in the words of the command.

use askama::Template;
use http::{Response, StatusCode};

use super::status::token_file;
use super::{Body, Frame, page};
use crate::policy::ApprovalDecision;
use crate::protocol::admin::Operation;
use crate::protocol::admin::operation::OperationReport;
use crate::protocol::admin::outcome_lines::unreached_lines;

/// The most lines shown.
const MAX_LINES: usize = 200;

#[derive(Template)]
#[template(path = "result.html")]
struct ResultPage<'a> {
    frame: Frame,
    version: &'static str,
    class: &'static str,
    title: &'static str,
    command: &'a str,
    text: String,
    more_lines: usize,
}

/// The result of an operation on one address.
#[derive(Debug)]
pub(in crate::http) struct OperationResult {
    ok: bool,
    lines: Vec<String>,
}

impl OperationResult {
    /// The lines of all items, and the errors.
    pub(in crate::http) fn of<T>(report: OperationReport<T>, lines_of: impl Fn(&[T]) -> Vec<String>) -> Self {
        let mut lines = lines_of(&report.items);
        lines.extend(report.errors);
        lines.extend(unreached_lines(&report.unreached));
        Self { ok: report.ok, lines }
    }
}

/// The title of what an operation did.
pub(in crate::http) fn done(operation: Operation) -> &'static str {
    match operation {
        Operation::Refresh => "The registry was asked again",
        Operation::Purge => "Removed",
        Operation::Accept => "Accepted",
        Operation::Pin => "It is kept",
        Operation::Unpin => "It may be evicted again",
    }
}

/// The title of a decision about held versions.
pub(in crate::http) fn decided(decision: ApprovalDecision) -> &'static str {
    match decision {
        ApprovalDecision::Approved => "Approved",
        ApprovalDecision::TakenBack => "No longer approved",
    }
}

/// Renders what a button did.
pub(in crate::http) fn result(done: &'static str, command: &str, result: &OperationResult) -> Response<Body> {
    let (title, class) = if result.ok { (done, "good") } else { ("It did not work for everything", "bad") };
    render(StatusCode::OK, class, title, command, &result.lines)
}

/// Renders the refusal of a form without the token. `store` is the folder of the store.
pub(in crate::http) fn wrong_token(store: &str) -> Response<Body> {
    let lines = [
        "Nothing was done.".to_owned(),
        format!("The token is in {}, unless the configuration sets another.", token_file(store)),
    ];
    render(StatusCode::FORBIDDEN, "bad", "That is not the admin token", "", &lines)
}

/// Renders the refusal of a decision that lacks something.
pub(in crate::http) fn unclear_decision(problems: Vec<String>) -> Response<Body> {
    let lines: Vec<String> = ["Nothing was done.".to_owned()].into_iter().chain(problems).collect();
    render(StatusCode::BAD_REQUEST, "bad", "Something is missing", "", &lines)
}

/// Renders the refusal of an `accept` whose evidence is other than on the page with the button.
pub(in crate::http) fn changed_alarm(target: &str) -> Response<Body> {
    let lines = [
        format!("{target}: this alarm has changed since the page was loaded, or it has ended. Nothing was done."),
        "Go back to the status, and look at its evidence again.".to_owned(),
    ];
    render(StatusCode::CONFLICT, "bad", "Look again: the evidence is not the one that you saw", "", &lines)
}

fn render(
    status: StatusCode,
    class: &'static str,
    title: &'static str,
    command: &str,
    lines: &[String],
) -> Response<Body> {
    let frame = Frame::of_admin("");
    let text = lines.iter().take(MAX_LINES).map(|line| format!("{line}\n")).collect();
    let (version, more_lines) = (env!("CARGO_PKG_VERSION"), lines.len().saturating_sub(MAX_LINES));
    page(status, frame, &ResultPage { frame, version, class, title, command, text, more_lines })
}
