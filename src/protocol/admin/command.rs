//! Operator commands: their JSON requests and results.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::address::{Hostname, PackageSelector};
use crate::error::Error;
use crate::jobs::ToPin;
use crate::mirror::{
    AcceptOutcome, AcceptResult, Mirror, PinChange, PinOutcome, PinResult, PurgeResult, RefreshResult, RequestContext,
};

/// Maximum number of addresses in one command.
const MAX_ADDRESSES: usize = 256;

/// Operations on an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Ask upstream again now.
    Refresh,
    /// Remove from the store.
    Purge,
    /// Accept changed bytes, keys or trees.
    Accept,
    /// Never evict.
    Pin,
    /// Allow eviction again.
    Unpin,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 5] = [Self::Refresh, Self::Purge, Self::Accept, Self::Pin, Self::Unpin];

    /// The name on the command line and in the path.
    pub fn name(self) -> &'static str {
        match self {
            Self::Refresh => "refresh",
            Self::Purge => "purge",
            Self::Accept => "accept",
            Self::Pin => "pin",
            Self::Unpin => "unpin",
        }
    }

    /// The path on the admin listener.
    pub fn path(self) -> String {
        format!("/admin/v1/{}", self.name())
    }
}

/// The target of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperationTarget {
    /// The addresses.
    pub what: Vec<String>,
}

impl OperationTarget {
    /// Parses the body of a request.
    ///
    /// # Errors
    /// The problem.
    pub fn read(body: &[u8]) -> Result<Self, String> {
        let bad = |e| format!("the body is not {{\"what\":[\"NAMESPACE/TYPE@VERSION\"]}}: {e}");
        let object: Map<String, Value> = serde_json::from_slice(body).map_err(bad)?;
        serde_json::from_value(Value::Object(object)).map_err(bad)
    }

    /// The addresses without duplicates. `default_host` completes those without a host.
    ///
    /// # Errors
    /// Every problem of every address.
    pub fn addresses(&self, default_host: &Hostname) -> Result<Vec<PackageSelector>, Vec<String>> {
        if self.what.is_empty() || self.what.len() > MAX_ADDRESSES {
            return Err(vec![format!("\"what\" names {} addresses; 1 to {MAX_ADDRESSES} can be", self.what.len())]);
        }
        let (mut addresses, mut problems, mut unique) = (Vec::new(), Vec::new(), BTreeSet::new());
        for given in &self.what {
            match PackageSelector::parse(given, default_host) {
                Ok(selector) if unique.insert(selector.to_string()) => addresses.push(selector),
                Ok(_) => {}
                Err(bad) => problems.push(bad.to_string()),
            }
        }
        if problems.is_empty() { Ok(addresses) } else { Err(problems) }
    }
}

/// Accepts an empty body: nothing, or `{}`.
///
/// # Errors
/// The problem.
pub fn parse_empty_body(body: &[u8]) -> Result<(), String> {
    if body.is_empty() {
        return Ok(());
    }
    match serde_json::from_slice::<Map<String, Value>>(body) {
        Ok(object) if object.is_empty() => Ok(()),
        Ok(_) => Err("the body is not {}: this request has no options".to_owned()),
        Err(e) => Err(format!("the body is not {{}}: {e}")),
    }
}

/// Result of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationReport<T> {
    /// Everything succeeded.
    pub ok: bool,
    /// The result of each item.
    pub items: Vec<T>,
    /// Targets that failed completely, with the reason.
    pub errors: Vec<String>,
}

impl<T> OperationReport<T> {
    fn empty() -> Self {
        Self { ok: true, items: Vec::new(), errors: Vec::new() }
    }

    fn add_result(&mut self, items: Result<Vec<T>, Error>, is_success: impl Fn(&T) -> bool) {
        match items {
            Ok(items) => {
                self.ok &= items.iter().all(is_success);
                self.items.extend(items);
            }
            Err(error) => {
                self.ok = false;
                self.errors.push(error.to_string());
            }
        }
    }
}

/// Asks upstream again for each address.
pub async fn refresh(
    mirror: &Arc<Mirror>,
    addresses: &[PackageSelector],
    call: impl Fn() -> RequestContext,
) -> OperationReport<RefreshResult> {
    let mut report = OperationReport::empty();
    for selector in addresses {
        report.add_result(mirror.operations.refresh(selector, &call()).await, |refreshed| refreshed.news.succeeded());
    }
    report
}

/// Removes each address from the store.
pub async fn purge(
    mirror: &Arc<Mirror>,
    addresses: &[PackageSelector],
    call: impl Fn() -> RequestContext,
) -> OperationReport<PurgeResult> {
    let mut report = OperationReport::empty();
    for selector in addresses {
        report.add_result(
            mirror.operations.purge(selector, &call()).await.map(|purged| vec![purged]),
            PurgeResult::is_all,
        );
    }
    report
}

/// Accepts changed bytes, keys or trees of each address.
pub async fn accept(
    mirror: &Arc<Mirror>,
    addresses: &[PackageSelector],
    call: impl Fn() -> RequestContext,
) -> OperationReport<AcceptResult> {
    let mut report = OperationReport::empty();
    for selector in addresses {
        let accepted = match mirror.operations.accept(selector, &call()).await {
            Ok(accepted) if accepted.is_empty() => {
                report.ok = false;
                report.errors.push(format!(
                    "{selector}: no version of this address is stored; name a version to accept one that is not stored"
                ));
                continue;
            }
            accepted => accepted,
        };
        report.add_result(accepted, |accepted| !matches!(accepted.ruling, AcceptOutcome::Failed { .. }));
    }
    report
}

/// Pins the stored packages of each address.
pub async fn pin(
    mirror: &Arc<Mirror>,
    addresses: &[PackageSelector],
    _call: impl Fn() -> RequestContext,
) -> OperationReport<PinResult> {
    pin_or_unpin(mirror, addresses, PinChange::Set).await
}

/// Unpins the stored packages of each address.
pub async fn unpin(
    mirror: &Arc<Mirror>,
    addresses: &[PackageSelector],
    _call: impl Fn() -> RequestContext,
) -> OperationReport<PinResult> {
    pin_or_unpin(mirror, addresses, PinChange::Lift).await
}

async fn pin_or_unpin(
    mirror: &Arc<Mirror>,
    addresses: &[PackageSelector],
    pin: PinChange,
) -> OperationReport<PinResult> {
    let mut report = OperationReport::empty();
    for selector in addresses {
        report.add_result(mirror.operations.pin(selector, pin).await, PinResult::succeeded);
    }
    report
}

/// Pins or unpins the packages of a job.
pub async fn pin_job(mirror: &Arc<Mirror>, items: Vec<ToPin>, pin: PinChange) -> OperationReport<PinResult> {
    let mut report = OperationReport::empty();
    let packages = items.iter().filter_map(|item| item.package.clone()).collect();
    let results = mirror.operations.pin_artifacts(packages, pin).await.map(|results| {
        let mut results = results.into_iter();
        let pin_result = |item: ToPin| {
            let not_stored = PinResult { package: item.named, outcome: PinOutcome::NotHeld };
            let result = item.package.and_then(|_| results.next()).unwrap_or(not_stored);
            match (result.succeeded(), item.is_pending) {
                (true, _) | (false, false) => result,
                (false, true) => PinResult { outcome: pin.pending_outcome(), ..result },
            }
        };
        items.into_iter().map(pin_result).collect()
    });
    report.add_result(results, PinResult::succeeded);
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<Vec<String>, Vec<String>> {
        let request = OperationTarget::read(body.as_bytes()).map_err(|reason| vec![reason])?;
        let addresses = request.addresses(&Hostname::parse("registry.example").unwrap())?;
        Ok(addresses.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn duplicate_addresses_are_merged() {
        let body = r#"{"what":["acme/null@1.2","registry.example/acme/NULL@1.2.0","acme/null"]}"#;
        assert_eq!(read(body).unwrap(), ["registry.example/acme/null@1.2.0", "registry.example/acme/null"]);
    }

    #[test]
    fn an_invalid_command_body_is_refused() {
        for body in [
            "",
            "[]",
            "[[\"a/b\"]]",
            "{}",
            "what=acme/null",
            r#"{"what":"acme/null"}"#,
            r#"{"what":["a/b"],"all":true}"#,
        ] {
            assert!(read(body).unwrap_err()[0].starts_with("the body is not"), "{body}");
        }
        let many = vec!["\"a/b\""; 257].join(",");
        for body in [r#"{"what":[]}"#.to_owned(), format!("{{\"what\":[{many}]}}")] {
            assert!(read(&body).unwrap_err()[0].contains("1 to 256"), "{body}");
        }
        assert_eq!(read(r#"{"what":["acme/null","x","a/b/c/d"]}"#).unwrap_err().len(), 2);
    }
}
