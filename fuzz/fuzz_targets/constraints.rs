//! Version constraints: what parses prints and parses again, and both allow the same.
//! Lines of the input: a constraint, and versions to hold against it.
#![no_main]

use larder::address::{Constraint, Hostname, PackageSelector, Version};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let mut lines = text.lines();
    let given = lines.next().unwrap_or_default();
    let host = Hostname::parse("registry.example").expect("a host name");
    if let Ok(what) = PackageSelector::parse(given, &host) {
        assert_eq!(PackageSelector::parse(&what.to_string(), &host).as_ref(), Ok(&what), "{what}");
    }
    match Constraint::parse(given) {
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
        // What was given is shortened before it is shown.
        Err(refused) => assert!(refused.to_string().len() < 2_000),
    }
});
