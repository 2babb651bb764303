//! Versions: a parsed version prints as text that parses to the same version, and the order is total.
#![no_main]

use std::cmp::Ordering;

use larder::address::Version;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    // Three versions, one a line: enough to check that the order is transitive.
    let versions: Vec<Version> = text.lines().take(3).filter_map(|line| Version::parse(line).ok()).collect();
    for version in &versions {
        let printed = version.to_string();
        assert_eq!(Version::parse(&printed).as_ref(), Ok(version), "{printed}");
        assert_eq!(printed, version.as_str());
        assert!(printed.len() <= 128 - ".json".len(), "does not fit into a path segment: {printed}");
        assert!(printed.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-+".contains(&byte)));
    }
    for a in &versions {
        for b in &versions {
            assert_eq!(a.cmp(b), b.cmp(a).reverse(), "{a} {b}");
            assert_eq!(a.cmp(b) == Ordering::Equal, a == b, "{a} {b}");
            for c in &versions {
                assert!(!(a <= b && b <= c) || a <= c, "{a} {b} {c}");
            }
        }
    }
});
