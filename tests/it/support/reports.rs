//! Types of larder's JSON reports. The format is a contract, so the tests do not reuse the types that larder writes it
//! with.

use std::fmt;

use larder::address::PackageRef;
use larder::clock::Timestamp;
use serde::Deserialize;
use serde_json::Value;

/// A job: `GET /admin/v1/jobs/ID`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct JobReport {
    pub(crate) id: String,
    pub(crate) state: String,
    pub(crate) started: Timestamp,
    pub(crate) ended: Option<Timestamp>,
    pub(crate) what: Vec<String>,
    pub(crate) platforms: Vec<String>,
    pub(crate) pin: bool,
    #[serde(default)]
    pub(crate) resolving: bool,
    pub(crate) items: Vec<JobItemReport>,
}

/// One archive of a job.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct JobItemReport {
    #[serde(flatten)]
    pub(crate) package: PackageRef,
    pub(crate) state: String,
    pub(crate) bytes: u64,
    pub(crate) size_bytes: Option<u64>,
    pub(crate) error: Option<String>,
    pub(crate) unconfirmed: Option<String>,
}

impl JobReport {
    pub(crate) fn parse(json: Value) -> Self {
        serde_json::from_value(json.clone()).unwrap_or_else(|e| panic!("not a job: {e}: {json:#}"))
    }

    /// The state of each item.
    pub(crate) fn states(&self) -> Vec<&str> {
        self.items.iter().map(|item| item.state.as_str()).collect()
    }

    /// The reason why an item failed.
    pub(crate) fn error(&self, item: usize) -> &str {
        self.items[item].error.as_deref().unwrap_or_else(|| panic!("item {item} did not fail: {self}"))
    }
}

impl fmt::Display for JobReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:#?}")
    }
}

impl JobItemReport {
    /// The address in the form that commands accept: `ADDRESS@VERSION`.
    pub(crate) fn name(&self) -> String {
        address_and_version(&self.package)
    }
}

/// The response of the admin API to refresh, purge, pin, unpin and accept.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct CommandReport {
    pub(crate) ok: bool,
    #[serde(default)]
    pub(crate) items: Vec<CommandItem>,
    #[serde(default)]
    pub(crate) errors: Vec<String>,
}

/// One item of a command report; each command sets its own fields.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct CommandItem {
    #[serde(flatten)]
    pub(crate) package: PackageRef,
    /// The package in the form of messages: `ADDRESS VERSION (PLATFORM)`.
    #[serde(skip)]
    pub(crate) display_name: String,
    pub(crate) outcome: Option<String>,
    pub(crate) error: Option<String>,
    pub(crate) archives: Option<u64>,
    pub(crate) archive_bytes: Option<u64>,
    pub(crate) documents: Option<u64>,
    pub(crate) shared: Option<u64>,
    pub(crate) pinned: Option<Vec<Value>>,
    pub(crate) seen_is_kept: Option<bool>,
    pub(crate) left: Option<Vec<String>>,
    pub(crate) unreadable: Option<Vec<Value>>,
    pub(crate) files: Option<Vec<Value>>,
    pub(crate) key: Option<String>,
    pub(crate) keys_before: Option<Vec<String>>,
    pub(crate) tree: Option<String>,
    pub(crate) tree_before: Option<String>,
    pub(crate) evidence: Option<String>,
    pub(crate) versions: Option<Vec<Value>>,
    pub(crate) known_keys: Option<Vec<Value>>,
}

impl CommandReport {
    /// The evidence that nobody has decided about.
    pub(crate) fn undecided(&self) -> Option<&str> {
        let item = self.items.iter().find(|item| item.outcome.as_deref() == Some("undecided"));
        item.map(|item| item.evidence.as_deref().unwrap())
    }

    pub(crate) fn parse(json: Value) -> Self {
        let report: Result<Self, _> = serde_json::from_value(json.clone());
        let mut report = report.unwrap_or_else(|e| panic!("not a report of a command: {e}: {json:#}"));
        report.items.iter_mut().for_each(|item| item.display_name = item.package.to_string());
        report
    }

    /// The name and the outcome of each item.
    pub(crate) fn outcomes(&self) -> Vec<(&str, &str)> {
        self.items.iter().map(|item| (item.display_name.as_str(), item.outcome.as_deref().unwrap_or("none"))).collect()
    }
}

impl fmt::Display for CommandReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:#?}")
    }
}

impl CommandItem {
    /// The address in the form that commands accept: `ADDRESS@VERSION`.
    pub(crate) fn name(&self) -> String {
        address_and_version(&self.package)
    }
}

fn package(item: &Value) -> PackageRef {
    serde_json::from_value(item.clone()).unwrap_or_else(|e| panic!("{e}: {item}"))
}

fn address_and_version(package: &PackageRef) -> String {
    let address = package.address.clone();
    package.version.as_ref().map_or(address.clone(), |version| format!("{address}@{version}"))
}

/// The package of a JSON item in the form of messages: `ADDRESS VERSION (PLATFORM)`.
pub(crate) fn display_name(item: &Value) -> String {
    package(item).to_string()
}

/// The package of a JSON item in the form that commands accept: `ADDRESS@VERSION`.
pub(crate) fn name(item: &Value) -> String {
    address_and_version(&package(item))
}

/// The seconds since 1970 of a time in an answer.
pub(crate) fn seconds(time: &Value) -> u64 {
    serde_json::from_value::<Timestamp>(time.clone()).unwrap().0
}
