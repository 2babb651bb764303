//! SHA256SUMS: what is read of a list is what a list of only that says, and what is judged.
#![no_main]

use std::fmt::Write;

use larder::address::Platform;
use larder::verify::{Checksums, VerificationPolicy, verify_proof_set, platform_of};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(sums) = Checksums::parse(bytes) else { return };
    let mut plain = String::new();
    for (name, digest) in sums.iter() {
        assert_eq!(sums.get(name), Some(digest));
        assert!(!name.is_empty() && !name.contains(char::is_whitespace), "{name:?}");
        let _ = writeln!(plain, "{digest}  {name}");
    }
    assert!(plain.len() <= bytes.len() + 2 * sums.iter().count());
    assert_eq!(Checksums::parse(plain.as_bytes()).as_ref(), Ok(&sums), "{plain}");

    if let Some((name, digest)) = sums.iter().last() {
        assert!(verify_proof_set(VerificationPolicy::Checksum, bytes, b"", &[], name, &digest).is_ok());
        assert!(verify_proof_set(VerificationPolicy::Signature, bytes, b"", &[], name, &digest).is_err());
        assert!(verify_proof_set(VerificationPolicy::Checksum, bytes, b"", &[], "not listed", &digest).is_err());
    }
    for (name, _) in sums.iter().take(100) {
        if let Some((os, arch)) = platform_of(name, "null", &["1.0.0", "1.0"]) {
            let known = ["1.0.0", "1.0"].map(|version| format!("terraform-provider-null_{version}_{os}_{arch}.zip"));
            assert!(known.iter().any(|known| known == name), "{name}");
            // Longer words than any platform has are no platform, and are looked up as none.
            assert!(Platform::new(os, arch).is_ok() || os.len().max(arch.len()) > 32, "{name}");
        }
    }
});
