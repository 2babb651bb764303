//! Orders: the request bodies of plans, warm-ups and bundles. An order is JSON, or a user's file (a lock file, a tar) with
//! the options in the query. The missing list of an offline larder is an order that a connected larder accepts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use url::form_urlencoded;

use super::policy::RuleText;
use super::{object_of, or_problem, short};
use crate::address::{Hostname, PackageSelector, Platform, Version};
use crate::mirror::MissingPackage;
use crate::requirements::{
    ClientKind, Configurations, FileContents, Files, LockedVersions, MAX_PLATFORMS, Order, OrderEntry, lock_file,
};

/// Maximum number of addresses in one order.
const MAX_ADDRESSES: usize = 4096;
/// An example of a body, for error texts.
const SHAPE: &str = r#"{"what":["NAMESPACE/TYPE@CONSTRAINT"],"platforms":["OS_ARCH"]}"#;

/// The body of an order. Every member may be left out, but not all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct OrderRequest {
    /// Addresses with constraints.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(test, schemars(length(max = 4096)))]
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
    /// Choose the newest versions that the constraints of the files allow, whatever their lock files have, as `init -upgrade`
    /// does.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub upgrade: bool,
    /// For a plan: the platforms that lock files should have hashes for, besides those of the order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lock_platforms: Vec<String>,
    /// Pin the packages that are warmed. Ignored by a plan.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub pin: bool,
    /// For a plan: the policies to try in place of those of this larder, in their order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Vec<RuleText>>,
}

/// An address, with its own platforms where they differ from the order's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum AddressRequest {
    /// With the platforms of the order.
    Text(String),
    /// With platforms for this address.
    For(AddressFor),
}

/// An address and its platforms.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
        object_of(body, SHAPE)
    }

    /// An order of these addresses, each once, with all its platforms.
    pub fn of_addresses(addresses: impl IntoIterator<Item = (String, Vec<String>)>) -> Self {
        let mut platforms_by_address: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (address, platforms) in addresses {
            platforms_by_address.entry(address).or_default().extend(platforms);
        }
        let request = |(address, platforms): (String, BTreeSet<String>)| {
            AddressRequest::For(AddressFor { address, platforms: platforms.into_iter().collect() })
        };
        Self { what: platforms_by_address.into_iter().map(request).collect(), ..Self::default() }
    }

    /// Merges another order into this one.
    ///
    /// # Errors
    /// Both have files, they name different clients, or the other has roots without files.
    pub fn add(&mut self, other: Self) -> Result<(), String> {
        let Self { what: addresses, lock_files, files, roots, client, platforms, upgrade, lock_platforms, pin, policy } =
            other;
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
        self.upgrade |= upgrade;
        self.lock_platforms.extend(lock_platforms);
        self.pin |= pin;
        self.policy = self.policy.take().or(policy);
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

    /// The platforms that lock files should have hashes for, besides those of the order.
    ///
    /// # Errors
    /// Every problem.
    pub fn lock_platforms(&self) -> Result<Vec<Platform>, Vec<String>> {
        let mut problems = Vec::new();
        let platforms = platforms_of(&self.lock_platforms, &mut problems);
        if platforms.len() > MAX_PLATFORMS {
            problems.push(format!("\"lock_platforms\" names more than {MAX_PLATFORMS} platforms"));
        }
        if problems.is_empty() { Ok(platforms) } else { Err(problems) }
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
            let selector = or_problem(PackageSelector::parse(address, default_host), &mut problems);
            let platforms = platforms_of(platforms, &mut problems);
            if let Some(selector) = selector {
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
        if !self.files.is_empty() || !self.roots.is_empty() {
            let files = Files::try_from(self.files.clone()).map_err(|bad| bad.to_string());
            let configurations = files.and_then(|files| Configurations::new(files, self.roots.clone(), self.client));
            let locked_versions = if self.upgrade { LockedVersions::Upgraded } else { LockedVersions::Kept };
            let configurations = configurations.map(|files| Configurations { locked_versions, ..files });
            entries.extend(or_problem(configurations, &mut problems).map(OrderEntry::Configurations));
        }
        let platforms = platforms_of(&self.platforms, &mut problems);
        // An empty order is not reported when every entry was invalid.
        if problems.is_empty() { Order::new(entries, platforms) } else { Err(problems) }
    }
}

fn platforms_of(names: &[String], problems: &mut Vec<String>) -> Vec<Platform> {
    names.iter().filter_map(|name| or_problem(Platform::parse(name), problems)).collect()
}

/// The longest accepted root, in bytes.
const MAX_ROOT_BYTES: usize = 1024;
/// Maximum number of options in one query.
const MAX_OPTIONS: usize = 1024;

/// An order as far as it is read from the query, and later from the body.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OrderDraft {
    /// The options; the body has the rest.
    pub options: OrderRequest,
    /// Every problem so far.
    pub problems: Vec<String>,
}

/// Kinds of bodies, which have different options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderBodyKind {
    /// A lock file.
    LockFile,
    /// A tar of configurations.
    Tar,
}

impl OrderDraft {
    /// Parses the query of a request with a body of this kind.
    pub fn read(query: Option<&str>, kind: OrderBodyKind) -> Self {
        let (mut options, mut problems) = (OrderRequest::default(), Vec::new());
        for (index, (key, value)) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()).enumerate() {
            if index == MAX_OPTIONS {
                problems.push(format!("the query: more than {MAX_OPTIONS} options"));
                break;
            }
            match (&*key, &*value, kind) {
                ("platform", platform, _) => options.platforms.push(platform.to_owned()),
                ("pin", "" | "true", _) => options.pin = true,
                ("pin", "false", _) => options.pin = false,
                ("pin", value, _) => {
                    problems.push(format!("the query: pin is true or false, not {:?}", short(value)));
                }
                ("root", root, OrderBodyKind::Tar) if root.len() <= MAX_ROOT_BYTES => options.roots.push(folder(root)),
                ("root", root, OrderBodyKind::Tar) => {
                    problems.push(format!("the query: {:?}… is too long for a folder of a tar", short(root)));
                }
                ("client", value, OrderBodyKind::Tar) => {
                    options.client = ClientKind::parse(value).or(options.client);
                    if ClientKind::parse(value).is_none() {
                        problems.push(format!("the query: client is terraform or opentofu, not {:?}", short(value)));
                    }
                }
                (name, _, kind) => {
                    let option_names = match kind {
                        OrderBodyKind::LockFile => "platform and pin",
                        OrderBodyKind::Tar => "platform, root, client and pin",
                    };
                    problems.push(format!(
                        "the query: no option is named {:?}; the options are {option_names}",
                        short(name)
                    ));
                }
            }
        }
        Self { options, problems }
    }
}

/// Normalises a folder to the form of paths in a tar: without `./` before it and `/` after it; `.` is the top.
fn folder(text: &str) -> String {
    let folder = text.trim_end_matches('/');
    let folder = folder.strip_prefix("./").unwrap_or(folder);
    if folder == "." { String::new() } else { folder.to_owned() }
}

/// The order for the missing packages: each provider version once, with its platforms. An entry without a platform is
/// for `default_platforms`; if these are empty, for the platforms of the larder that fetches the package.
pub fn order_of(missing: &[MissingPackage], default_platforms: &[Platform]) -> OrderRequest {
    let texts = |platforms: &[Platform]| platforms.iter().map(ToString::to_string).collect();
    OrderRequest::of_addresses(missing.iter().map(|package| match package {
        MissingPackage::Provider { of: address, version, platform } => {
            let platforms = platform.as_ref().map_or(default_platforms, std::slice::from_ref);
            (address_text(address, version.as_ref()), texts(platforms))
        }
        MissingPackage::Module { of: address, version } => (address_text(address, version.as_ref()), Vec::new()),
    }))
}

/// The address as an operator writes it.
fn address_text(address: &impl fmt::Display, version: Option<&Version>) -> String {
    version.map_or_else(|| address.to_string(), |version| format!("{address}@{version}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::address::{Name, ProviderAddress};

    #[test]
    fn an_order_with_roots_and_no_files_cannot_be_added() {
        let read = |body: &str| OrderRequest::read(body.as_bytes()).unwrap();
        let mut request = OrderRequest::default();
        assert!(request.add(read(r#"{"roots": ["prod"]}"#)).unwrap_err().contains("\"roots\""));
        assert_eq!(request, OrderRequest::default());
        request.add(read(r#"{"files": {"prod/main.tf": ""}, "roots": ["prod"]}"#)).unwrap();
        assert_eq!(request.roots, ["prod"]);
    }

    #[test]
    fn a_query_sets_platforms_roots_pin_and_client() {
        let query = "root=prod&root=./stage/&root=.&platform=linux_amd64&platform=darwin_arm64&client=opentofu&pin";
        let OrderDraft { options, problems } = OrderDraft::read(Some(query), OrderBodyKind::Tar);
        assert_eq!(problems, [""; 0]);
        assert_eq!(
            (options.roots, options.platforms),
            (
                vec!["prod".to_owned(), "stage".to_owned(), String::new()],
                vec!["linux_amd64".to_owned(), "darwin_arm64".to_owned()]
            )
        );
        assert_eq!((options.client, options.pin), (Some(ClientKind::Opentofu), true));
        assert_eq!(OrderDraft::read(None, OrderBodyKind::LockFile), OrderDraft::default());
    }

    #[test]
    fn every_problem_of_a_query_is_reported() {
        let query = "pin=yes&plattform=linux_amd64&root=prod&client=terraform";
        assert_eq!(OrderDraft::read(Some(query), OrderBodyKind::LockFile).problems.len(), 4);
        let long = format!("root={}&client=pulumi", "x".repeat(2000));
        assert_eq!(OrderDraft::read(Some(&long), OrderBodyKind::Tar).problems.len(), 2);
        let many = "root=a&".repeat(5000);
        assert!(OrderDraft::read(Some(&many), OrderBodyKind::Tar).options.roots.len() <= MAX_OPTIONS);
    }

    #[test]
    fn the_missing_list_is_a_valid_order() {
        let address = ProviderAddress {
            host: Hostname::parse("registry.example:8443").unwrap(),
            namespace: Name::parse("acme").unwrap(),
            type_: Name::parse("null").unwrap(),
        };
        let [linux, darwin] = ["linux_amd64", "darwin_arm64"].map(|name| Platform::parse(name).unwrap());
        let version = Some(Version::parse("1.0.0-rc.1+b").unwrap());
        let missing = [
            MissingPackage::Provider { of: address.clone(), version: None, platform: None },
            MissingPackage::Provider { of: address.clone(), version: version.clone(), platform: None },
            MissingPackage::Provider { of: address.clone(), version: version.clone(), platform: Some(linux.clone()) },
            MissingPackage::Provider { of: address.clone(), version, platform: Some(darwin.clone()) },
        ];
        let text = |order: &OrderRequest| serde_json::to_string(order).unwrap();
        assert_eq!(
            text(&order_of(&missing, &[])),
            r#"{"what":[{"address":"registry.example:8443/acme/null"},{"address":"registry.example:8443/acme/null@1.0.0-rc.1+b","platforms":["darwin_arm64","linux_amd64"]}]}"#
        );
        let for_linux = text(&order_of(&missing, std::slice::from_ref(&linux)));
        assert!(for_linux.contains(r#"acme/null","platforms":["linux_amd64"]}"#), "{for_linux}");
        let order = OrderRequest::read(for_linux.as_bytes()).unwrap().order(&Hostname::parse("other.example").unwrap());
        let given = order.unwrap().given;
        assert!(
            matches!(&given[0], OrderEntry::Address { what, platforms } if what.host() == &address.host && platforms == &[linux])
        );
        assert_eq!(text(&order_of(&[], &[])), "{}");
    }

    proptest! {
        #[test]
        fn any_query_is_parsed_or_refused_with_short_problems(query in "([a-z]{1,8}(=[^&]{0,40})?&){0,12}|\\PC{0,200}") {
            for OrderDraft { options, problems } in [OrderDraft::read(Some(&query), OrderBodyKind::Tar), OrderDraft::read(Some(&query), OrderBodyKind::LockFile)] {
                prop_assert!(problems.iter().all(|problem| problem.len() < 1000));
                prop_assert!(options.what.is_empty() && options.files.is_empty() && options.lock_files.is_empty());
            }
        }
    }
}
