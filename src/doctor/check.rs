//! One thing that was looked at, and what was found.

use serde::Serialize;

use crate::config::{Config, Remark, Warning};

/// What a check came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// It works, or may; somebody should look at it.
    Warn,
    /// It does not work.
    Fail,
}

/// One line of the doctor's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at, or how it is wrong: the same word in every version.
    pub id: &'static str,
    /// What it came to.
    pub verdict: Verdict,
    /// Which of several: an upstream, a client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// What was found.
    pub found: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub to_do: Vec<String>,
    /// Lines to write somewhere, as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paste: Option<String>,
}

impl Check {
    fn new(id: &'static str, verdict: Verdict, found: impl Into<String>) -> Self {
        Self { id, verdict, of: None, found: found.into(), to_do: Vec::new(), paste: None }
    }

    /// All is well.
    pub(super) fn ok(id: &'static str, found: impl Into<String>) -> Self {
        Self::new(id, Verdict::Ok, found)
    }

    /// Somebody should look at it.
    pub(super) fn warn(id: &'static str, found: impl Into<String>) -> Self {
        Self::new(id, Verdict::Warn, found)
    }

    /// It does not work.
    pub(super) fn fail(id: &'static str, found: impl Into<String>) -> Self {
        Self::new(id, Verdict::Fail, found)
    }

    /// Which of several it is about.
    pub(super) fn of(mut self, whom: impl ToString) -> Self {
        self.of = Some(whom.to_string());
        self
    }

    /// What to do about it.
    pub(super) fn advise(mut self, what: impl Into<String>) -> Self {
        self.to_do.push(what.into());
        self
    }

    /// It may be so for the doctor only, and `why`.
    pub(super) fn no_worse_than_a_warning(mut self, why: &str) -> Self {
        self.verdict = self.verdict.min(Verdict::Warn);
        self.found.push_str(why);
        self
    }

    /// Lines to write, as they are.
    pub(super) fn paste(mut self, lines: impl Into<String>) -> Self {
        self.paste = Some(lines.into());
        self
    }
}

/// The id of everything about `mirror.toml`.
const CONFIG: &str = "config";

/// A configuration that does not load: nothing else can be looked at.
pub(super) fn of_problems(problems: &[Remark]) -> Vec<Check> {
    let check = |problem: &Remark| Check::fail(CONFIG, problem.to_string());
    let mut checks: Vec<Check> = problems.iter().map(check).collect();
    if let Some(last) = checks.last_mut() {
        last.to_do.push("mend the configuration; the rest can only be looked at once it loads".to_owned());
    }
    checks
}

/// A configuration that loads, what it warns of, and what would keep a larder from starting with it.
pub(super) fn of_configuration(config: &Config, warnings: &[Warning], problems: Vec<String>) -> Vec<Check> {
    let warnings = warnings.iter().map(|warning| Check::warn(CONFIG, warning.to_string()));
    let to_do = "mend it: larder does not start like this";
    let problems = problems.into_iter().map(|problem| Check::fail(CONFIG, problem).advise(to_do));
    let mut checks: Vec<Check> = problems.chain(warnings).collect();
    if checks.is_empty() {
        let file = config.source.as_ref().map(|file| file.display().to_string());
        checks.push(Check::ok(CONFIG, file.unwrap_or_else(|| "no file found: the defaults".to_owned())));
    }
    checks
}
