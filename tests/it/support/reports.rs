//! Readers of larder's JSON reports.

use larder::address::PackageRef;
use serde_json::Value;

fn package(item: &Value) -> PackageRef {
    serde_json::from_value(item.clone()).unwrap_or_else(|e| panic!("{e}: {item}"))
}

/// As people read it: `ADDRESS VERSION (PLATFORM)`.
pub(crate) fn called(item: &Value) -> String {
    package(item).to_string()
}

/// As an operator writes it: `ADDRESS@VERSION`.
pub(crate) fn name(item: &Value) -> String {
    let PackageRef { address, version, .. } = package(item);
    version.map_or(address.clone(), |version| format!("{address}@{version}"))
}
