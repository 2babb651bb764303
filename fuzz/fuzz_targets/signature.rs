//! Detached signatures: only a file with a signature by one of the test keys verifies the checksums, and no file verifies
//! other checksums.
#![no_main]

use std::sync::LazyLock;

use larder::verify::verify_detached;
use libfuzzer_sys::fuzz_target;

const SUMS: &[u8] = include_bytes!("../fixtures/SHA256SUMS");

/// A valid Ed25519 key, a revoked key, and an RSA key.
static KEYS: LazyLock<Vec<String>> = LazyLock::new(|| {
    [
        include_str!("../fixtures/ed25519.asc"),
        include_str!("../fixtures/revoked.asc"),
        include_str!("../fixtures/rsa.asc"),
    ]
    .map(str::to_owned)
    .into()
});

fuzz_target!(|signature: &[u8]| {
    let valid_fingerprints: [&str; 2] =
        [include_str!("../fixtures/ed25519.fingerprint"), include_str!("../fixtures/rsa.fingerprint")];
    match verify_detached(SUMS, signature, &KEYS) {
        Ok(signer) => {
            assert!(
                valid_fingerprints.iter().any(|fingerprint| fingerprint.trim() == signer.fingerprint),
                "{signer:?}"
            );
            assert!(verify_detached(b"00  other.zip\n", signature, &KEYS).is_err());
            assert!(verify_detached(SUMS, signature, &KEYS[1..2]).is_err());
        }
        Err(refused) => assert!(refused.to_string().len() < 4_000, "{refused}"),
    }
});
