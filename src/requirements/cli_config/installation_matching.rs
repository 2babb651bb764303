//! Matches providers to installation methods: the patterns of `include` and `exclude`.

use super::Method;
use crate::address::Hostname;

/// A pattern such as `registry.example/*/*` or `hashicorp/*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    host: PatternHost,
    /// Namespace and type are both `*`.
    matches_whole_host: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum PatternHost {
    Any,
    /// The registry of an address without a host.
    Default,
    Named(Hostname),
    /// No host: the pattern is invalid.
    Invalid,
}

/// The extent to which a method covers a registry's providers.
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
        let (host, namespace_and_type) = match parts.as_slice() {
            ["*", names @ ..] if names.len() == 2 => (PatternHost::Any, names),
            [host, names @ ..] if names.len() == 2 => {
                (Hostname::parse(host).map_or(PatternHost::Invalid, PatternHost::Named), names)
            }
            names if names.len() == 2 => (PatternHost::Default, names),
            _ => (PatternHost::Invalid, parts.as_slice()),
        };
        Self { host, matches_whole_host: namespace_and_type.iter().all(|part| *part == "*") }
    }

    fn coverage_of_host(&self, host: &Hostname, default_host: &str) -> Coverage {
        let matches_host = match &self.host {
            PatternHost::Any => true,
            PatternHost::Default => host.as_str() == default_host,
            PatternHost::Named(named) => named == host,
            PatternHost::Invalid => false,
        };
        match (matches_host, self.matches_whole_host) {
            (false, _) => Coverage::None,
            (true, true) => Coverage::All,
            (true, false) => Coverage::Some,
        }
    }
}

impl Method {
    /// The extent to which this method covers the providers of `host`.
    pub fn coverage(&self, host: &Hostname, default_host: &str) -> Coverage {
        let max_coverage =
            |patterns: &[Pattern]| patterns.iter().map(|pattern| pattern.coverage_of_host(host, default_host)).max();
        let included = max_coverage(&self.include).unwrap_or(Coverage::All);
        match max_coverage(&self.exclude).unwrap_or(Coverage::None) {
            Coverage::All => Coverage::None,
            Coverage::Some => included.min(Coverage::Some),
            Coverage::None => included,
        }
    }
}
