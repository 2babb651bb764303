//! The missing list of an offline larder, as an order. Plans, warm-ups and bundles of a connected larder accept it
//! unchanged.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::order::{AddressFor, AddressRequest, OrderRequest};
use crate::address::{Platform, Version};
use crate::mirror::MissingPackage;

/// Path of the missing list.
pub const MISSING: &str = "/admin/v1/missing";

/// The order for the missing packages: each provider version once, with its platforms. An entry without a platform is
/// for `default_platforms`; if these are empty, for the platforms of the larder that fetches the package.
pub fn order_of(missing: &[MissingPackage], default_platforms: &[Platform]) -> OrderRequest {
    let mut platforms_by_address: BTreeMap<String, BTreeSet<&Platform>> = BTreeMap::new();
    for package in missing {
        match package {
            MissingPackage::Provider { of: address, version, platform } => {
                let platforms = platforms_by_address.entry(address_text(address, version.as_ref())).or_default();
                match platform {
                    Some(platform) => drop(platforms.insert(platform)),
                    None => platforms.extend(default_platforms),
                }
            }
            MissingPackage::Module { of: address, version } => {
                platforms_by_address.entry(address_text(address, version.as_ref())).or_default();
            }
        }
    }
    let request = |(address, platforms): (String, BTreeSet<&Platform>)| {
        AddressRequest::For(AddressFor { address, platforms: platforms.into_iter().map(ToString::to_string).collect() })
    };
    OrderRequest { what: platforms_by_address.into_iter().map(request).collect(), ..OrderRequest::default() }
}

/// The address as an operator writes it.
fn address_text(address: &impl fmt::Display, version: Option<&Version>) -> String {
    version.map_or_else(|| address.to_string(), |version| format!("{address}@{version}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{Hostname, Name, ProviderAddress, Version};
    use crate::requirements::OrderEntry;

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
}
