//! Which providers an installation method is for: the patterns of `include` and `exclude`.

use super::Method;
use crate::address::Hostname;

/// A pattern such as `registry.example/*/*` or `hashicorp/*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    host: PatternHost,
    is_whole: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum PatternHost {
    Any,
    /// The registry of an address without a host.
    Default,
    Named(Hostname),
    /// An impossible pattern.
    Nothing,
}

/// Extent to which a method covers a registry's providers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Coverage {
    /// No providers.
    None,
    /// Some providers.
    Some,
    /// All providers.
    All,
}

impl Pattern {
    /// Parses a pattern; an invalid one matches no provider.
    pub fn parse(text: &str) -> Self {
        let parts: Vec<&str> = text.split('/').collect();
        let (host, rest) = match parts.as_slice() {
            ["*", rest @ ..] if rest.len() == 2 => (PatternHost::Any, rest),
            [host, rest @ ..] if rest.len() == 2 => {
                (Hostname::parse(host).map_or(PatternHost::Nothing, PatternHost::Named), rest)
            }
            rest if rest.len() == 2 => (PatternHost::Default, rest),
            _ => (PatternHost::Nothing, parts.as_slice()),
        };
        Self { host, is_whole: rest.iter().all(|part| *part == "*") }
    }

    fn coverage_of_host(&self, host: &Hostname, default_host: &str) -> Coverage {
        let is_meant = match &self.host {
            PatternHost::Any => true,
            PatternHost::Default => host.as_str() == default_host,
            PatternHost::Named(named) => named == host,
            PatternHost::Nothing => false,
        };
        match (is_meant, self.is_whole) {
            (false, _) => Coverage::None,
            (true, true) => Coverage::All,
            (true, false) => Coverage::Some,
        }
    }
}

impl Method {
    /// The extent to which this method covers the providers of `host`.
    pub fn coverage(&self, host: &Hostname, default_host: &str) -> Coverage {
        let most =
            |patterns: &[Pattern]| patterns.iter().map(|pattern| pattern.coverage_of_host(host, default_host)).max();
        let included = most(&self.include).unwrap_or(Coverage::All);
        match most(&self.exclude).unwrap_or(Coverage::None) {
            Coverage::All => Coverage::None,
            Coverage::Some => included.min(Coverage::Some),
            Coverage::None => included,
        }
    }
}
