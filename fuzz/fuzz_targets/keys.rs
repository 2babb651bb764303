//! Public keys as a download document lists them, armoured or as bare packets: only the key that made a signature
//! verifies it.
#![no_main]

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use larder::verify::verify_detached;
use libfuzzer_sys::fuzz_target;

const SUMS: &[u8] = include_bytes!("../fixtures/SHA256SUMS");

fuzz_target!(|key: &[u8]| {
    // Bare packets are armoured here: the fuzzer would not get through the base64.
    let armored = match std::str::from_utf8(key) {
        Ok(text) if text.contains("-----BEGIN") => text.to_owned(),
        _ => {
            let base64 = BASE64_STANDARD.encode(key);
            format!("-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n{base64}\n-----END PGP PUBLIC KEY BLOCK-----\n")
        }
    };
    let cases: [(&[u8], &str); 3] = [
        (include_bytes!("../fixtures/ed25519.sig"), include_str!("../fixtures/ed25519.fingerprint")),
        (include_bytes!("../fixtures/ed25519-subkey.sig"), include_str!("../fixtures/ed25519.fingerprint")),
        (include_bytes!("../fixtures/rsa.sig"), include_str!("../fixtures/rsa.fingerprint")),
    ];
    for (signature, fingerprint) in cases {
        match verify_detached(SUMS, signature, std::slice::from_ref(&armored)) {
            Ok(signer) => assert_eq!(signer.fingerprint, fingerprint.trim()),
            Err(refused) => assert!(refused.to_string().len() < 4_000, "{refused}"),
        }
    }
});
