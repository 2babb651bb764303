//! Operations on addresses and jobs: their JSON requests and results.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{job_id, object_of, or_problem};
use crate::address::{Hostname, PackageSelector};
use crate::jobs::{JobId, ToPin};
use crate::labels::labelled_enum;
use crate::mirror::{EvidenceName, Mirror, PinChange, PinOutcome, PinResult};
use crate::store::Unreached;

/// Maximum number of addresses in one request.
const MAX_ADDRESSES: usize = 256;

labelled_enum! {
    /// Operations on an address. The label is the name on the command line and in the path.
    pub Operation {
        /// Ask upstream again now.
        Refresh "refresh",
        /// Remove from the store.
        Purge "purge",
        /// Accept changed bytes, keys or trees.
        Accept "accept",
        /// Never evict.
        Pin "pin",
        /// Allow eviction again.
        Unpin "unpin",
    }
}

impl Operation {
    /// The path on the admin listener.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Refresh => "/admin/v1/refresh",
            Self::Purge => "/admin/v1/purge",
            Self::Accept => "/admin/v1/accept",
            Self::Pin => "/admin/v1/pin",
            Self::Unpin => "/admin/v1/unpin",
        }
    }
}

/// The addresses of an operation: the body of its request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TargetAddresses {
    /// `[HOST/]NAMESPACE/TYPE[@CONSTRAINT]` or `[HOST/]NAMESPACE/NAME/SYSTEM[@CONSTRAINT]`, each.
    #[cfg_attr(test, schemars(length(min = 1, max = 256)))]
    pub what: Vec<String>,
}

impl TargetAddresses {
    /// Parses the body of a request.
    ///
    /// # Errors
    /// The problem.
    pub fn read(body: &[u8]) -> Result<Self, String> {
        object_of(body, r#"{"what":["NAMESPACE/TYPE@VERSION"]}"#)
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
            let selector = or_problem(PackageSelector::parse(given, default_host), &mut problems);
            addresses.extend(selector.filter(|selector| unique.insert(selector.to_string())));
        }
        if problems.is_empty() { Ok(addresses) } else { Err(problems) }
    }
}

/// The body of an `accept`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AcceptRequest {
    /// `[HOST/]NAMESPACE/TYPE[@CONSTRAINT]` or `[HOST/]NAMESPACE/NAME/SYSTEM[@CONSTRAINT]`, each.
    #[cfg_attr(test, schemars(length(min = 1, max = 256)))]
    pub what: Vec<String>,
    /// The evidence that a person has seen. Nothing else is accepted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<EvidenceName>,
}

impl AcceptRequest {
    /// Parses the body of a request.
    ///
    /// # Errors
    /// The problem.
    pub fn read(body: &[u8]) -> Result<Self, String> {
        object_of(body, r#"{"what":["NAMESPACE/TYPE@VERSION"],"evidence":["0123456789abcdef0123456789abcdef"]}"#)
    }
}

/// The target of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OperationTarget {
    /// The stored packages of these addresses.
    Addresses(TargetAddresses),
    /// The packages of a job, for pin and unpin only.
    Job(JobId),
}

impl OperationTarget {
    /// Parses the body of a pin or unpin request.
    ///
    /// # Errors
    /// The problem.
    pub fn read(body: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum Target {
            What(Vec<String>),
            Job(String),
        }
        match object_of(body, r#"{"what":["NAMESPACE/TYPE@CONSTRAINT"]} or {"job":"ID"}"#)? {
            Target::What(what) => Ok(Self::Addresses(TargetAddresses { what })),
            Target::Job(job) => job_id(&job).map(Self::Job),
        }
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
    match object_of::<Map<String, Value>>(body, "{}")? {
        object if object.is_empty() => Ok(()),
        _ => Err("the body is not {}: this request has no options".to_owned()),
    }
}

/// Result of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "{T}s"))]
pub struct OperationReport<T> {
    /// Everything succeeded.
    pub ok: bool,
    /// The result of each item.
    pub items: Vec<T>,
    /// Targets that failed completely, with the reason.
    pub errors: Vec<String>,
    /// Of a fleet: the replicas that may still serve what was changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreached: Vec<Unreached>,
}

impl<T> OperationReport<T> {
    /// Collects the results for each address.
    pub fn of<E: Display>(results: Vec<Result<Vec<T>, E>>, is_success: impl Fn(&T) -> bool) -> Self {
        let mut report = Self { ok: true, items: Vec::new(), errors: Vec::new(), unreached: Vec::new() };
        for result in results {
            match result {
                Ok(items) => report.items.extend(items),
                Err(error) => report.errors.push(error.to_string()),
            }
        }
        report.ok = report.errors.is_empty() && report.items.iter().all(is_success);
        report
    }

    /// Adds what is known of the other replicas. A silent one may be gone, and is only named.
    pub fn spread(mut self, spread: Result<Vec<Unreached>, impl Display>) -> Self {
        match spread {
            Ok(unreached) => {
                self.ok &= !unreached.iter().any(|replica| replica.is_heard);
                self.unreached = unreached;
            }
            Err(error) => {
                self.ok = false;
                self.errors.push(format!(
                    "this is done here, but nobody knows whether the other replicas have heard of it: {error}"
                ));
            }
        }
        self
    }
}

/// Pins or unpins the packages of a job.
pub async fn pin_job(mirror: &Arc<Mirror>, items: Vec<ToPin>, pin: PinChange) -> OperationReport<PinResult> {
    let packages = items.iter().filter_map(|item| item.package.clone()).collect();
    let results = mirror.operations.pin_artifacts(packages, pin).await.map(|results| {
        let mut results = results.into_iter();
        let pin_result = |item: ToPin| {
            let not_stored = PinResult { package: item.named, outcome: PinOutcome::NotStored };
            let result = item.package.and_then(|_| results.next()).unwrap_or(not_stored);
            match (result.succeeded(), item.is_pending) {
                (true, _) | (false, false) => result,
                (false, true) => PinResult { outcome: pin.pending_outcome(), ..result },
            }
        };
        items.into_iter().map(pin_result).collect()
    });
    OperationReport::of(vec![results], PinResult::succeeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<Vec<String>, Vec<String>> {
        let request = TargetAddresses::read(body.as_bytes()).map_err(|reason| vec![reason])?;
        let addresses = request.addresses(&Hostname::parse("registry.example").unwrap())?;
        Ok(addresses.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn duplicate_addresses_are_merged() {
        let body = r#"{"what":["acme/null@1.2","registry.example/acme/NULL@1.2.0","acme/null"]}"#;
        assert_eq!(read(body).unwrap(), ["registry.example/acme/null@1.2.0", "registry.example/acme/null"]);
    }

    #[test]
    fn an_invalid_body_of_an_operation_is_refused() {
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

    #[test]
    fn a_pin_request_names_addresses_or_a_job() {
        let id = "00112233aabbccdd";
        assert_eq!(
            OperationTarget::read(format!(r#"{{"job":"{id}"}}"#).as_bytes()),
            Ok(OperationTarget::Job(JobId::parse(id).unwrap()))
        );
        assert!(matches!(OperationTarget::read(br#"{"what":["a/b"]}"#), Ok(OperationTarget::Addresses(_))));
        for body in [
            "{}",
            r#"{"what":["a/b"],"job":"00112233aabbccdd"}"#,
            r#"{"job":"x"}"#,
            r#"{"job":"00112233AABBCCDD"}"#,
            "[]",
            r#"{"what":[],"x":1}"#,
        ] {
            assert!(OperationTarget::read(body.as_bytes()).is_err(), "{body}");
        }
    }
}
