//! Patterns of addresses, as policies and clients have them: `hashicorp/*`, `registry.corp.example/*`.

use derive_more::Display;

use super::{Address, BadAddress, Hostname, MAX_PART, ModuleName};

/// The term for patterns in error texts.
const KIND: &str = "pattern of addresses";

/// Providers and modules: `[HOST/]NAMESPACE/TYPE` is one provider, `[HOST/]NAMESPACE/NAME/SYSTEM` one module, of every
/// registry where it names no host. A last `*` stands for one name or more, so `hashicorp/*` matches providers and modules of
/// a namespace, and `*` everything. The case of names does not matter.
#[derive(Debug, Display, Clone, PartialEq, Eq, Hash)]
#[display("{given}")]
pub struct AddressPattern {
    given: String,
    host: Option<Hostname>,
    /// In lower case.
    names: Vec<String>,
    /// True for a last `*`.
    is_open: bool,
}

impl AddressPattern {
    /// Parses a pattern. A first segment with a dot or a port is a host.
    ///
    /// # Errors
    /// [`BadAddress`], with the reason.
    pub fn parse(given: &str) -> Result<Self, BadAddress> {
        let bad = |reason| BadAddress::new(KIND, given, reason);
        if given.len() > 4 * MAX_PART {
            return Err(bad("it is too long"));
        }
        let mut segments: Vec<&str> = given.split('/').collect();
        let is_open = segments.pop_if(|last| *last == "*").is_some();
        let has_host = segments.first().is_some_and(|first| first.contains(['.', ':']));
        let host = if has_host { Some(Hostname::parse(segments.remove(0))?) } else { None };
        if segments.iter().any(|name| name.contains('*')) {
            return Err(bad("a * stands for whole names, and is the last one: hashicorp/*"));
        }
        let names = segments.into_iter().map(|name| Ok(ModuleName::parse(name)?.as_str().to_ascii_lowercase()));
        let names = names.collect::<Result<Vec<String>, BadAddress>>()?;
        match (names.len(), is_open) {
            (0..=2, true) | (2..=3, false) => Ok(Self { given: given.to_owned(), host, names, is_open }),
            _ => Err(bad("write [HOST/]NAMESPACE/TYPE, [HOST/]NAMESPACE/NAME/SYSTEM, or their beginning and a last *")),
        }
    }

    /// The registry whose addresses the pattern matches; `None` for every registry.
    pub fn host(&self) -> Option<&Hostname> {
        self.host.as_ref()
    }

    /// Returns true if the pattern names no host, and its first name is this.
    pub fn begins_with_name(&self, name: &str) -> bool {
        self.host.is_none() && self.names.first().is_some_and(|first| first == name)
    }

    /// Returns true for an address that the pattern matches.
    pub fn matches(&self, address: &Address) -> bool {
        let path = address.path().to_ascii_lowercase();
        let names: Vec<&str> = path.split('/').collect();
        let has_names = if self.is_open {
            names.len() > self.names.len() && names.iter().zip(&self.names).all(|(name, own)| name == own)
        } else {
            names == self.names
        };
        has_names && self.host.as_ref().is_none_or(|host| host == address.host())
    }

    /// Returns true if this pattern matches every address that `other` matches.
    pub fn covers(&self, other: &Self) -> bool {
        let has_host = self.host.is_none() || self.host == other.host;
        let has_names = match (self.is_open, other.is_open) {
            (false, false) => self.names == other.names,
            (false, true) => false,
            (true, _) => {
                let fewest = other.names.len() + usize::from(other.is_open);
                fewest > self.names.len() && other.names.starts_with(&self.names)
            }
        };
        has_host && has_names
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::address::{ModuleAddress, Name, ProviderAddress, System};

    fn provider(host: &str, namespace: &str, type_: &str) -> Address {
        let [namespace, type_] = [namespace, type_].map(|name| Name::parse(name).unwrap());
        Address::Provider(ProviderAddress { host: Hostname::parse(host).unwrap(), namespace, type_ })
    }

    fn module(host: &str, namespace: &str, name: &str, system: &str) -> Address {
        let [namespace, name] = [namespace, name].map(|name| ModuleName::parse(name).unwrap());
        let (host, system) = (Hostname::parse(host).unwrap(), System::parse(system).unwrap());
        Address::Module(ModuleAddress { host, namespace, name, system })
    }

    #[test]
    fn a_pattern_matches_the_addresses_that_it_says() {
        let addresses = [
            provider("registry.terraform.io", "hashicorp", "aws"),
            provider("registry.corp.example", "hashicorp", "aws"),
            provider("registry.terraform.io", "hashicorp", "null"),
            module("registry.terraform.io", "Hashicorp", "Consul", "aws"),
            module("registry.terraform.io", "hashicorp", "aws", "aws"),
        ];
        for (pattern, matched) in [
            ("*", &[0, 1, 2, 3, 4][..]),
            ("hashicorp/*", &[0, 1, 2, 3, 4]),
            ("HashiCorp/AWS", &[0, 1]),
            ("registry.terraform.io/*", &[0, 2, 3, 4]),
            ("Registry.Terraform.io:443/hashicorp/aws", &[0]),
            ("hashicorp/aws/*", &[4]),
            ("hashicorp/consul/aws", &[3]),
            ("registry.corp.example/hashicorp/*", &[1]),
            ("hashicorp/a", &[]),
            ("registry.corp.example:8443/*", &[]),
        ] {
            let pattern = AddressPattern::parse(pattern).unwrap();
            let found = addresses.iter().enumerate().filter(|(_, address)| pattern.matches(address));
            assert_eq!(found.map(|(index, _)| index).collect::<Vec<_>>(), matched, "{pattern}");
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for bad in [
            "",
            "/",
            "hashicorp",
            "hashicorp/",
            "a/b/c/d",
            "a/b/c/*",
            "has*/aws",
            "*/aws",
            "**",
            "a/*/b",
            "x.y",
            "a b/c",
        ] {
            assert!(AddressPattern::parse(bad).is_err(), "{bad}");
        }
    }

    fn pattern() -> impl Strategy<Value = String> {
        let names = || prop::sample::select(&["a", "b"][..]);
        let hosts = prop::sample::select(&["", "x.example/", "y.example/"][..]);
        let rest = prop_oneof![
            Just("*".to_owned()),
            names().prop_map(|a| format!("{a}/*")),
            (names(), names()).prop_map(|(a, b)| format!("{a}/{b}")),
            (names(), names()).prop_map(|(a, b)| format!("{a}/{b}/*")),
            (names(), names(), names()).prop_map(|(a, b, c)| format!("{a}/{b}/{c}")),
        ];
        (hosts, rest).prop_map(|(host, rest)| format!("{host}{rest}"))
    }

    proptest! {
        #[test]
        fn a_pattern_that_covers_another_matches_what_that_matches(one in pattern(), other in pattern()) {
            let patterns = [&one, &other].map(|text| AddressPattern::parse(text).unwrap());
            let mut addresses = Vec::new();
            for host in ["x.example", "y.example"] {
                for (a, b) in [("a", "a"), ("a", "b"), ("b", "a"), ("b", "b")] {
                    addresses.push(provider(host, a, b));
                    addresses.extend(["a", "b"].map(|system| module(host, a, b, system)));
                }
            }
            let is_covered = addresses.iter().all(|address| !patterns[1].matches(address) || patterns[0].matches(address));
            // Two registries are not all there are.
            prop_assert!(is_covered || !patterns[0].covers(&patterns[1]));
            prop_assert!(patterns[0].covers(&patterns[0]));
        }

        #[test]
        fn any_text_is_a_pattern_or_refused(text in "([a-z]|[/*.:@ ]){0,20}") {
            if let Ok(pattern) = AddressPattern::parse(&text) {
                prop_assert_eq!(AddressPattern::parse(&pattern.to_string()), Ok(pattern));
            }
        }
    }
}
