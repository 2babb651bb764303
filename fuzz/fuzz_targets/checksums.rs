//! SHA256SUMS: reparsing the normalized list gives the same result, and verification uses that result.
#![no_main]

use std::fmt::Write;

use larder::address::Platform;
use larder::verify::{Checksums, VerificationPolicy, platform_of, verify_proof_set};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(sums) = Checksums::parse(bytes) else { return };
    let mut normalized = String::new();
    for (name, digest) in sums.iter() {
        assert_eq!(sums.get(name), Some(digest));
        assert!(!name.is_empty() && !name.contains(char::is_whitespace), "{name:?}");
        let _ = writeln!(normalized, "{digest}  {name}");
    }
    // A byte that is not UTF-8 becomes U+FFFD, which has three.
    assert!(normalized.len() <= 3 * bytes.len() + 2 * sums.iter().count());
    assert_eq!(Checksums::parse(normalized.as_bytes()).as_ref(), Ok(&sums), "{normalized}");

    if let Some((name, digest)) = sums.iter().last() {
        assert!(verify_proof_set(VerificationPolicy::Checksum, bytes, b"", &[], name, &digest).is_ok());
        assert!(verify_proof_set(VerificationPolicy::Signature, bytes, b"", &[], name, &digest).is_err());
        assert!(verify_proof_set(VerificationPolicy::Checksum, bytes, b"", &[], "not listed", &digest).is_err());
    }
    for (name, _) in sums.iter().take(100) {
        if let Some((os, arch)) = platform_of(name, "null", &["1.0.0", "1.0"]) {
            let possible_names =
                ["1.0.0", "1.0"].map(|version| format!("terraform-provider-null_{version}_{os}_{arch}.zip"));
            assert!(possible_names.iter().any(|possible| possible == name), "{name}");
            // Parts longer than any platform has are no platform.
            assert!(Platform::new(os, arch).is_ok() || os.len().max(arch.len()) > 32, "{name}");
        }
    }
});
