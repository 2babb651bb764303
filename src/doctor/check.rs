//! One check and its result.

use serde::Serialize;

use crate::config::{Config, Remark, Warning};

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckResult {
    /// The subject works.
    Ok,
    /// The subject works or may work, but needs attention.
    Warn,
    /// The subject does not work.
    Fail,
}

/// One line of the doctor's report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Identifier of the subject or of the fault; stable across versions.
    pub id: &'static str,
    /// Result of the check.
    pub verdict: CheckResult,
    /// The upstream or client that the check is about, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// The finding.
    pub found: String,
    /// What to do, one step per entry.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub to_do: Vec<String>,
    /// Lines for a configuration file, to paste verbatim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paste: Option<String>,
}

impl Check {
    fn new(id: &'static str, verdict: CheckResult, found: impl Into<String>) -> Self {
        Self { id, verdict, of: None, found: found.into(), to_do: Vec::new(), paste: None }
    }

    pub(super) fn ok(id: &'static str, found: impl Into<String>) -> Self {
        Self::new(id, CheckResult::Ok, found)
    }

    pub(super) fn warn(id: &'static str, found: impl Into<String>) -> Self {
        Self::new(id, CheckResult::Warn, found)
    }

    pub(super) fn fail(id: &'static str, found: impl Into<String>) -> Self {
        Self::new(id, CheckResult::Fail, found)
    }

    /// Sets the upstream or client that the check is about.
    pub(super) fn of(mut self, subject: impl ToString) -> Self {
        self.of = Some(subject.to_string());
        self
    }

    /// Adds a step to the advice.
    pub(super) fn advise(mut self, advice: impl Into<String>) -> Self {
        self.to_do.push(advice.into());
        self
    }

    /// Limits the result to a warning, because the client's request may take another way than the doctor's. Appends
    /// `reason`.
    pub(super) fn at_most_warn(mut self, reason: &str) -> Self {
        self.verdict = self.verdict.min(CheckResult::Warn);
        self.found.push_str(reason);
        self
    }

    /// Sets the lines to paste.
    pub(super) fn paste(mut self, lines: impl Into<String>) -> Self {
        self.paste = Some(lines.into());
        self
    }
}

/// Identifier of checks of `mirror.toml`.
const CONFIG: &str = "config";

/// Checks for a configuration that does not load; no other checks are possible.
pub(super) fn of_problems(problems: &[Remark]) -> Vec<Check> {
    let check = |problem: &Remark| Check::fail(CONFIG, problem.to_string());
    let mut checks: Vec<Check> = problems.iter().map(check).collect();
    if let Some(last) = checks.last_mut() {
        last.to_do.push("fix the configuration; other checks are possible only once it loads".to_owned());
    }
    checks
}

/// Checks for a configuration that loads: its warnings, and the problems that would prevent a start.
pub(super) fn of_configuration(config: &Config, warnings: &[Warning], problems: Vec<String>) -> Vec<Check> {
    let warnings = warnings.iter().map(|warning| Check::warn(CONFIG, warning.to_string()));
    let to_do = "fix this problem; larder does not start otherwise";
    let problems = problems.into_iter().map(|problem| Check::fail(CONFIG, problem).advise(to_do));
    let mut checks: Vec<Check> = problems.chain(warnings).collect();
    if checks.is_empty() {
        let file = config.source.as_ref().map(|file| file.display().to_string());
        checks.push(Check::ok(CONFIG, file.unwrap_or_else(|| "no file found: the defaults".to_owned())));
    }
    checks
}
