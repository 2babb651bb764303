//! Version constraints: a parsed constraint prints as text that parses to the same constraint.
//! Lines of the input: a constraint, then versions to test against it.
#![no_main]

use larder::address::{Constraint, Hostname, PackageSelector, Version};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let mut lines = text.lines();
    let constraint_text = lines.next().unwrap_or_default();
    let host = Hostname::parse("registry.example").expect("a host name");
    if let Ok(selector) = PackageSelector::parse(constraint_text, &host) {
        assert_eq!(PackageSelector::parse(&selector.to_string(), &host).as_ref(), Ok(&selector), "{selector}");
    }
    match Constraint::parse(constraint_text) {
        Ok(constraint) => {
            let printed = constraint.to_string();
            assert_eq!(Constraint::parse(&printed).as_ref(), Ok(&constraint), "{printed}");
            if let Some(version) = constraint.exact_version() {
                assert!(constraint.allows(version), "{printed}");
            }
            for version in lines.take(4).filter_map(|line| Version::parse(line).ok()) {
                if constraint.allows(&version) && version.is_pre_release() {
                    assert!(printed.contains(version.as_str()), "{printed} allows {version}");
                }
            }
        }
        // The error shortens the input before it shows it.
        Err(refused) => assert!(refused.to_string().len() < 2_000),
    }
});
