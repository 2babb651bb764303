//! The JSON order of plans and warm-ups.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::address::{Hostname, PackageSelector, Platform};
use crate::requirements::{ClientKind, Configurations, FileContents, Files, Order, OrderEntry, lock_file};

/// Path of plan requests.
pub const PLAN: &str = "/admin/v1/plan";
/// Maximum number of addresses in one order.
const MAX_ADDRESSES: usize = 4096;
/// An example of a body, for error texts.
const SHAPE: &str = r#"{"what":["NAMESPACE/TYPE@CONSTRAINT"],"platforms":["OS_ARCH"]}"#;

/// The body of an order. Every member may be left out, but not all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OrderRequest {
    /// Addresses with constraints.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub what: Vec<AddressRequest>,
    /// Lock files.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lock_files: Vec<NamedText>,
    /// Files of configurations, by path.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, FileContents>,
    /// Folders of these files in which `init` is run. By default those that no other folder calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub roots: Vec<String>,
    /// The client whose rules apply to the files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<ClientKind>,
    /// The platforms. By default larder's own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub platforms: Vec<String>,
    /// Pin the packages that are warmed. Ignored by a plan.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub pin: bool,
}

/// An address, with its own platforms where they differ from the order's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum AddressRequest {
    /// With the platforms of the order.
    Text(String),
    /// With platforms for this address.
    For(AddressFor),
}

/// An address and its platforms.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddressFor {
    /// The address.
    pub address: String,
    /// As `OS_ARCH`. If empty, those of the order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub platforms: Vec<String>,
}

/// A file of a user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedText {
    /// The name, for messages.
    pub name: String,
    /// The content.
    pub text: String,
}

impl OrderRequest {
    /// Parses the body of a request.
    ///
    /// # Errors
    /// The problem.
    pub fn read(body: &[u8]) -> Result<Self, String> {
        let bad = |e| format!("the body is not {SHAPE}: {e}");
        // Only an object: serde would also read a list as the struct.
        let object: Map<String, Value> = serde_json::from_slice(body).map_err(bad)?;
        serde_json::from_value(Value::Object(object)).map_err(bad)
    }

    /// Merges another order into this one.
    ///
    /// # Errors
    /// Both have files, they name different clients, or the other has roots without files.
    pub fn add(&mut self, other: Self) -> Result<(), String> {
        let Self { what: addresses, lock_files, files, roots, client, platforms, pin } = other;
        if let (Some(own_client), Some(other_client)) = (self.client, client)
            && own_client != other_client
        {
            return Err("the order is for another client than the orders before it".to_owned());
        }
        if files.is_empty() && !roots.is_empty() {
            return Err("the order names \"roots\" but has no \"files\", of which the roots are folders".to_owned());
        }
        if !files.is_empty() {
            self.add_files(files, roots)?;
        }
        self.what.extend(addresses);
        self.lock_files.extend(lock_files);
        self.platforms.extend(platforms);
        self.client = self.client.or(client);
        self.pin |= pin;
        Ok(())
    }

    /// Adds the files of configurations, and the folders in which `init` is run.
    ///
    /// # Errors
    /// The order has files already: the paths of both could collide.
    pub fn add_files(&mut self, files: BTreeMap<String, FileContents>, roots: Vec<String>) -> Result<(), String> {
        if !self.files.is_empty() {
            return Err(
                "folders, a tar and a .json with files cannot be combined: name one of them at a time".to_owned()
            );
        }
        (self.files, self.roots) = (files, roots);
        Ok(())
    }

    /// Converts to an order. Addresses without a host get `default_host`.
    ///
    /// # Errors
    /// Every problem.
    pub fn order(&self, default_host: &Hostname) -> Result<Order, Vec<String>> {
        let (mut entries, mut problems) = (Vec::new(), Vec::new());
        if self.what.len() > MAX_ADDRESSES {
            problems.push(format!("\"what\" names {} addresses; at most {MAX_ADDRESSES} can be", self.what.len()));
        }
        for request in self.what.iter().take(MAX_ADDRESSES) {
            let (address, platforms) = match request {
                AddressRequest::Text(address) => (address, &[][..]),
                AddressRequest::For(AddressFor { address, platforms }) => (address, platforms.as_slice()),
            };
            let selector = PackageSelector::parse(address, default_host).map_err(|bad| problems.push(bad.to_string()));
            let platforms = platforms_of(platforms, &mut problems);
            if let Ok(selector) = selector {
                let address = OrderEntry::Address { what: selector, platforms };
                if !entries.contains(&address) {
                    entries.push(address);
                }
            }
        }
        for NamedText { name, text } in &self.lock_files {
            match lock_file::parse(text.as_bytes()) {
                Ok(locked) if locked.is_empty() => problems.push(format!("{name}: the lock file names no provider")),
                Ok(locked) => entries.push(OrderEntry::LockFile { name: name.clone(), locked }),
                Err(bad) => problems.extend(bad.problems().into_iter().map(|problem| format!("{name}: {problem}"))),
            }
        }
        match Files::try_from(self.files.clone()) {
            Ok(files) if files.is_empty() && self.roots.is_empty() && self.files.is_empty() => {}
            Ok(files) => match Configurations::new(files, self.roots.clone(), self.client) {
                Ok(configurations) => entries.push(OrderEntry::Configurations(configurations)),
                Err(reason) => problems.push(reason),
            },
            Err(bad) => problems.push(bad.to_string()),
        }
        let platforms = platforms_of(&self.platforms, &mut problems);
        match Order::new(entries, platforms) {
            Ok(order) if problems.is_empty() => Ok(order),
            // An empty order is not reported when every entry was invalid.
            Ok(_) => Err(problems),
            Err(_) if !problems.is_empty() => Err(problems),
            Err(other) => Err(other),
        }
    }
}

fn platforms_of(names: &[String], problems: &mut Vec<String>) -> Vec<Platform> {
    let parsed =
        names.iter().filter_map(|name| Platform::parse(name).map_err(|bad| problems.push(bad.to_string())).ok());
    parsed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_with_roots_and_no_files_cannot_be_added() {
        let read = |body: &str| OrderRequest::read(body.as_bytes()).unwrap();
        let mut request = OrderRequest::default();
        assert!(request.add(read(r#"{"roots": ["prod"]}"#)).unwrap_err().contains("\"roots\""));
        assert_eq!(request, OrderRequest::default());
        request.add(read(r#"{"files": {"prod/main.tf": ""}, "roots": ["prod"]}"#)).unwrap();
        assert_eq!(request.roots, ["prod"]);
    }
}
