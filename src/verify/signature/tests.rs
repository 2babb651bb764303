//! Signatures made by throwaway keys, good and bad.

use proptest::prelude::*;

use super::*;
use crate::verify::tests::keys::{RSA, Shape, TestKey, flags};

const SUMS: &[u8] = b"00  one.zip\n";
const DOCS_KEY: &str = include_str!("../../../tests/fixtures/registry-docs-key.asc");

fn check(signature: &[u8], keys: &[String]) -> Result<Signer, SignatureError> {
    verify_detached(SUMS, signature, keys)
}

fn check_shape(shape: &Shape, sign: impl Fn(&TestKey) -> Vec<u8>) -> (TestKey, Result<Signer, SignatureError>) {
    let key = TestKey::new();
    let outcome = check(&sign(&key), &[key.public(shape)]);
    (key, outcome)
}

fn by_primary(key: &TestKey) -> Vec<u8> {
    key.sign(SUMS)
}

fn by_subkey(key: &TestKey) -> Vec<u8> {
    key.sign_by_subkey(SUMS)
}

fn good() -> Shape {
    Shape::default()
}

#[test]
fn a_signature_by_a_listed_key_is_accepted() {
    let (key, outcome) = check_shape(&good(), by_primary);
    assert_eq!(outcome, Ok(Signer { fingerprint: key.fingerprint(), warnings: vec![] }));
}

#[test]
fn a_signature_by_a_subkey_is_reported_under_its_primary_key() {
    let (key, outcome) = check_shape(&good(), by_subkey);
    assert_eq!(outcome, Ok(Signer { fingerprint: key.fingerprint(), warnings: vec![] }));
}

#[test]
fn rsa_signatures_are_accepted() {
    assert!(check(&RSA.sign(SUMS), &[RSA.public(&good())]).is_ok());
    assert!(check(&RSA.sign_by_subkey(SUMS), &[RSA.public(&good())]).is_ok());
}

#[test]
fn a_changed_document_is_a_mismatch() {
    let key = TestKey::new();
    for signature in [key.sign(b"00  two.zip\n"), key.sign_by_subkey(b"")] {
        let refused = check(&signature, &[key.public(&good())]);
        assert!(matches!(refused, Err(SignatureError::Mismatch { .. })), "{refused:?}");
    }
}

#[test]
fn keys_that_did_not_sign_are_skipped() {
    let (key, other_key) = (TestKey::new(), TestKey::new());
    let keys = [other_key.public(&good()), key.public(&good())];
    assert_eq!(check(&key.sign(SUMS), &keys).unwrap().fingerprint, key.fingerprint());
}

#[test]
fn an_issuer_that_is_not_listed_is_named() {
    let (key, other_key) = (TestKey::new(), TestKey::new());
    let refused = check(&key.sign(SUMS), &[other_key.public(&good())]);
    assert_eq!(refused, Err(SignatureError::UnknownIssuer { issuer: key.fingerprint() }));
}

#[test]
fn several_keys_in_one_entry_are_all_read() {
    let (key, other_key) = (TestKey::new(), TestKey::new());
    for separator in ["", "\n", "\r\n\r\nthe new key:\r\n"] {
        let pasted = format!("{}{separator}{}", other_key.public(&good()).trim_end(), key.public(&good()));
        assert!(check(&key.sign(SUMS), &[pasted]).is_ok(), "{separator:?}");
    }
    let windows = key.public(&good()).replace('\n', "\r\n");
    assert!(check(&key.sign(SUMS), &[windows]).is_ok());
}

#[test]
fn a_broken_key_is_an_error_only_if_no_earlier_key_matches() {
    let key = TestKey::new();
    let cut = key.public(&good()).replace("-----END", "----");
    for broken in ["", "garbage", cut.as_str(), "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n!\n"] {
        let broken_first = check(&key.sign(SUMS), &[broken.to_owned(), key.public(&good())]);
        assert!(matches!(broken_first, Err(SignatureError::UnparsableKey { number: 1, .. })), "{broken_first:?}");
        assert!(check(&key.sign(SUMS), &[key.public(&good()), broken.to_owned()]).is_ok());
    }
}

#[test]
fn no_keys_too_many_keys_and_huge_keys_are_errors() {
    let key = TestKey::new();
    assert_eq!(check(&key.sign(SUMS), &[]), Err(SignatureError::NoKeys));
    let many = vec![key.public(&good()); MAX_KEYS + 1];
    assert_eq!(check(&key.sign(SUMS), &many), Err(SignatureError::TooManyKeys { actual: MAX_KEYS + 1 }));
    let huge = " ".repeat(MAX_KEY_BYTES + 1);
    assert!(matches!(check(&key.sign(SUMS), &[huge]), Err(SignatureError::UnparsableKey { .. })));
}

#[test]
fn weak_digests_over_the_document_are_refused() {
    for (digest, name) in
        [(HashAlgorithm::Sha1, "SHA-1"), (HashAlgorithm::Md5, "MD5"), (HashAlgorithm::Ripemd160, "RIPEMD-160")]
    {
        let refused = check(&RSA.sign_with(SUMS, digest), &[RSA.public(&good())]);
        assert_eq!(refused, Err(SignatureError::WeakDigest { algorithm: name.to_owned() }));
    }
    assert!(check(&RSA.sign_with(SUMS, HashAlgorithm::Sha512), &[RSA.public(&good())]).is_ok());
}

#[test]
fn sha1_self_signatures_are_accepted_with_a_warning() {
    let old = RSA.public(&Shape { self_digest: HashAlgorithm::Sha1, ..good() });
    let by_primary = check(&RSA.sign(SUMS), std::slice::from_ref(&old)).unwrap();
    assert_eq!(by_primary.warnings, [format!("key {} vouches for itself with SHA-1 only", RSA.fingerprint())]);
    assert_eq!(check(&RSA.sign_by_subkey(SUMS), &[old]).unwrap().warnings.len(), 2);
}

#[test]
fn md5_self_signatures_do_not_count_but_md5_revocations_do() {
    let ancient = RSA.public(&Shape { self_digest: HashAlgorithm::Md5, ..good() });
    let refused = check(&RSA.sign(SUMS), &[ancient]);
    assert!(matches!(refused, Err(SignatureError::UnparsableKey { number: 1, .. })), "{refused:?}");
    let revoked = RSA.public(&Shape { self_digest: HashAlgorithm::Md5, is_revoked: true, ..good() });
    assert!(matches!(check(&RSA.sign(SUMS), &[revoked]), Err(SignatureError::Revoked { .. })));
}

#[test]
fn a_revoked_key_is_refused_and_so_are_its_subkeys() {
    for sign in [by_primary, by_subkey] {
        let (key, outcome) = check_shape(&Shape { is_revoked: true, ..good() }, sign);
        assert_eq!(outcome, Err(SignatureError::Revoked { fingerprint: key.fingerprint() }));
    }
}

#[test]
fn a_revoked_subkey_is_refused_but_its_primary_key_is_not() {
    let shape = Shape { is_subkey_revoked: true, ..good() };
    let (key, outcome) = check_shape(&shape, by_subkey);
    assert_eq!(outcome, Err(SignatureError::Revoked { fingerprint: key.subkey_fingerprint() }));
    assert!(check_shape(&shape, by_primary).1.is_ok());
}

#[test]
fn a_revocation_by_another_key_has_no_effect() {
    let (key, other_key) = (TestKey::new(), TestKey::new());
    let mut public = pgp::composed::SignedPublicKey::from(key.secret.clone());
    let foreign = other_key.public(&Shape { is_revoked: true, ..good() });
    let (foreign, _) =
        <pgp::composed::SignedPublicKey as pgp::composed::Deserializable>::from_string(&foreign).unwrap();
    public.details.revocation_signatures = foreign.details.revocation_signatures;
    let armored = public.to_armored_string(pgp::composed::ArmorOptions::default()).unwrap();
    assert!(check(&key.sign(SUMS), &[armored]).is_ok());
}

#[test]
fn key_flags_decide_which_keys_may_sign_and_no_flags_allow_signing() {
    let encrypts = Shape { primary_flags: Some(flags(false)), subkey_flags: Some(flags(false)), ..good() };
    for sign in [by_primary, by_subkey] {
        let (_, outcome) = check_shape(&encrypts, sign);
        assert!(matches!(outcome, Err(SignatureError::CannotSign { .. })), "{outcome:?}");
        let without_flags = Shape { primary_flags: None, subkey_flags: None, ..good() };
        assert!(check_shape(&without_flags, sign).1.is_ok());
    }
    let only_certifies = Shape { primary_flags: Some(flags(false)), ..good() };
    assert!(check_shape(&only_certifies, by_subkey).1.is_ok());
}

#[test]
fn a_subkey_that_does_not_confirm_its_primary_key_is_refused() {
    let (_, outcome) = check_shape(&Shape { has_back_signature: false, ..good() }, by_subkey);
    assert!(matches!(outcome, Err(SignatureError::CannotSign { .. })), "{outcome:?}");
}

#[test]
fn an_expired_key_is_accepted_with_a_warning() {
    let (key, outcome) = check_shape(&Shape { expires_after: Some(86_400), ..good() }, by_primary);
    let warning = format!("key {} had expired on 2023-11-15T22:13:20Z when it signed", key.fingerprint());
    assert_eq!(outcome.unwrap().warnings, [warning]);
    let (_, outcome) = check_shape(&Shape { expires_after: Some(86_400), ..good() }, by_subkey);
    assert_eq!(outcome.unwrap().warnings.len(), 2);
    let (_, outcome) = check_shape(&Shape { expires_after: Some(2_000_000), ..good() }, by_primary);
    assert_eq!(outcome.unwrap().warnings.len(), 0);
}

#[test]
fn a_key_without_a_self_signature_is_refused() {
    let (_, outcome) = check_shape(&Shape { has_user_id: false, ..good() }, by_primary);
    assert!(matches!(outcome, Err(SignatureError::UnparsableKey { number: 1, .. })), "{outcome:?}");
}

#[test]
fn one_good_signature_of_several_suffices() {
    let (key, other_key) = (TestKey::new(), TestKey::new());
    for both in [[other_key.sign(SUMS), key.sign(SUMS)], [key.sign(b"else"), key.sign(SUMS)]] {
        assert!(check(&both.concat(), &[key.public(&good())]).is_ok());
    }
}

/// A registry cannot make larder do unlimited work with long lists of keys and signatures (promise 11).
#[test]
fn lists_that_need_too_many_public_key_operations_are_refused() {
    let (stranger, keys): (TestKey, Vec<TestKey>) = (TestKey::new(), (0..40).map(|_| TestKey::new()).collect());
    let listed: Vec<String> = keys.iter().map(|key| key.public(&good())).collect();
    let signature = stranger.sign_in_the_name_of(SUMS, &keys);
    assert!(matches!(check(&signature, &listed), Err(SignatureError::Mismatch { .. })));
    let many = [signature.as_slice()].repeat(MAX_SIGNATURES).concat();
    assert_eq!(check(&many, &listed), Err(SignatureError::TooManyOperations));
    // A key is tried once for each signature, however often the key is listed.
    let copies = vec![listed[0].clone(); MAX_KEYS];
    assert!(matches!(check(&many, &copies), Err(SignatureError::Mismatch { .. })));
    let one_good = [many, keys[0].sign(SUMS)].concat();
    assert!(check(&one_good[signature.len()..], &copies).is_ok(), "one good signature suffices");
}

#[test]
fn signature_files_that_the_clients_refuse_are_refused() {
    let key = TestKey::new();
    let huge = vec![0; MAX_SIGNATURE_BYTES + 1];
    let key_file = b"\x99\x00\x03\x04\x00\x00".to_vec();
    for unusable in [key.sign_armored(SUMS), huge, key_file, b"404 not found".to_vec()] {
        let refused = check(&unusable, &[key.public(&good())]);
        assert!(matches!(refused, Err(SignatureError::UnparsableSignature { .. })), "{refused:?}");
    }
}

/// `gpg --textmode --detach-sign`: the clients accept such signatures.
#[test]
fn a_signature_of_a_text_document_is_accepted_with_either_line_end() {
    let key = TestKey::new();
    let keys = [key.public(&good())];
    let document = |line_end: &str| format!("{line_end}one{line_end}two{line_end}").into_bytes();
    for signed in ["\n", "\r\n"] {
        let signature = key.sign_text(&document(signed));
        for sent in ["\n", "\r\n"] {
            let signer = verify_detached(&document(sent), &signature, &keys).unwrap();
            assert_eq!(signer.fingerprint, key.fingerprint(), "{signed:?} {sent:?}");
        }
        let refused = verify_detached(&document("\n\n"), &signature, &keys);
        assert!(matches!(refused, Err(SignatureError::Mismatch { .. })), "{refused:?}");
    }
}

/// As ProtonMail's library, with which the clients verify.
#[test]
fn line_ends_of_a_text_become_canonical() {
    for (text, canonical) in
        [("a\nb\n", "a\r\nb\r\n"), ("a\r\nb\r", "a\r\nb\r"), ("a\r\r\nb", "a\r\r\r\nb"), ("\n\r\n\n", "\r\n\r\n\r\n")]
    {
        assert_eq!(with_canonical_line_ends(text.as_bytes()), canonical.as_bytes(), "{text:?}");
    }
}

/// The OpenPGP crate prints whole stack traces into its errors, which go to clients and logs.
#[test]
fn error_messages_are_one_short_line() {
    let key = TestKey::new();
    let (signature, public) = (key.sign(SUMS), key.public(&good()));
    let packets = pgp::ser::Serialize::to_bytes(&pgp::composed::SignedPublicKey::from(key.secret.clone())).unwrap();
    let mut errors = Vec::new();
    for index in 0..signature.len() {
        let mut changed = signature.clone();
        changed[index] ^= 0x14;
        errors.extend(check(&changed, std::slice::from_ref(&public)).err());
    }
    for index in 0..packets.len() {
        let mut changed = packets.clone();
        changed[index] ^= 0x14;
        errors.extend(check(&signature, &[armored(&changed)]).err());
    }
    for error in errors {
        let message = error.to_string();
        assert!(
            message.chars().count() < 300 && !message.contains('\n') && !message.contains("backtrace"),
            "{message}"
        );
    }
}

#[test]
fn truncated_signatures_and_keys_are_refused() {
    let key = TestKey::new();
    let (signature, public) = (key.sign(SUMS), key.public(&good()));
    for length in 0..signature.len() {
        assert!(check(&signature[..length], std::slice::from_ref(&public)).is_err(), "{length}");
    }
    for length in 0..public.trim_end().len() - "-----".len() {
        assert!(check(&signature, &[public[..length].to_owned()]).is_err(), "{length}");
    }
}

#[test]
fn the_key_in_the_protocol_documentation_is_usable() {
    let other_key = TestKey::new();
    let refused = check(&other_key.sign(SUMS), &[DOCS_KEY.to_owned()]);
    assert_eq!(refused, Err(SignatureError::UnknownIssuer { issuer: other_key.fingerprint() }));

    let keys = read_keys(DOCS_KEY, 1, MAX_KEY_BYTES).unwrap();
    let key = keys.first().unwrap();
    let warnings = key.check_may_sign(key.primary(), Timestamp::from_secs(1_400_000_000)).unwrap();
    assert_eq!(warnings, [format!("key {} vouches for itself with SHA-1 only", key.fingerprint())]);
}

proptest! {
    #[test]
    fn any_signature_file_is_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(check(&bytes, &[DOCS_KEY.to_owned()]).is_err());
    }

    #[test]
    fn any_key_text_is_refused_without_a_panic(text in "(-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n)?[ -~\n]{0,200}(-----END PGP PUBLIC KEY BLOCK-----)?") {
        prop_assert!(check(&RSA.sign(SUMS), &[text]).is_err());
    }

    #[test]
    fn any_key_packets_are_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(check(&RSA.sign(SUMS), &[armored(&bytes)]).is_err());
    }

    #[test]
    fn changed_bytes_in_key_or_signature_never_panic(index in any::<prop::sample::Index>(), to in any::<u8>()) {
        let mut signature = RSA.sign(SUMS);
        let changed_byte = index.index(signature.len());
        signature[changed_byte] = to;
        let _ = check(&signature, &[RSA.public(&good())]);
        let mut key = pgp::ser::Serialize::to_bytes(&pgp::composed::SignedPublicKey::from(RSA.secret.clone())).unwrap();
        let changed_byte = index.index(key.len());
        key[changed_byte] = to;
        let _ = check(&RSA.sign_by_subkey(SUMS), &[armored(&key)]);
    }
}

fn armored(packets: &[u8]) -> String {
    use base64::Engine;
    let base64 = base64::prelude::BASE64_STANDARD.encode(packets);
    format!("-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n{base64}\n-----END PGP PUBLIC KEY BLOCK-----\n")
}
