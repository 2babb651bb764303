//! Checks the detached OpenPGP signature over SHA256SUMS against the keys that a registry lists, as strictly as the
//! clients do and more strictly where they are lax. Whether a key may sign at all is judged in `signing_key`.

use pgp::crypto::hash::HashAlgorithm;
use pgp::packet::{Packet, PacketParser, Signature, SignatureType, SignatureVersion, SubpacketData};
use pgp::types::Timestamp;

use super::signing_key::{Component, ListedKey, Unfit, read_keys};

/// The largest signature file that is read.
pub const MAX_SIGNATURE_BYTES: usize = 64 << 10;

/// The largest entry of a registry's list of keys that is read.
pub const MAX_KEY_BYTES: usize = 1 << 20;

/// The longest list of keys that is tried.
pub const MAX_KEYS: usize = 64;

/// The most signatures that one signature file may hold: each may cost a public-key operation per key.
const MAX_SIGNATURES: usize = 16;

/// Who signed, and what is to be said about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signer {
    /// The fingerprint of the primary key, as upper-case hex.
    pub fingerprint: String,
    /// What is accepted, because the clients accept it, but is no good sign.
    pub warnings: Vec<String>,
}

/// Why no listed key vouches for the document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// There is no key to try.
    #[error("the registry lists no signing key for SHA256SUMS")]
    NoKeys,
    /// More keys than are tried.
    #[error("the registry lists {found} signing keys; at most {MAX_KEYS} are tried")]
    TooManyKeys {
        /// How many it lists.
        found: usize,
    },
    /// A key that stands before any match cannot be used; the clients fail there too.
    #[error("signing key {which} of the registry's list cannot be used: it {why}")]
    UnparsableKey {
        /// Its place in the list, from 1.
        which: usize,
        /// What is wrong with it.
        why: String,
    },
    /// The signature file itself is unusable.
    #[error("the signature of SHA256SUMS cannot be used: it {why}")]
    UnparsableSignature {
        /// What is wrong with it.
        why: String,
    },
    /// A key that is not listed made the signature.
    #[error("SHA256SUMS is signed by key {issuer}, which the registry does not list")]
    UnknownIssuer {
        /// The key id that the signature names, or the fingerprint where it names no id, as upper-case hex.
        issuer: String,
    },
    /// The digest that was signed can be forged.
    #[error("the signature of SHA256SUMS uses {algorithm}, which is too weak to prove anything")]
    WeakDigest {
        /// MD5, SHA-1 or RIPEMD-160.
        algorithm: String,
    },
    /// The key, or its subkey that signed, has been revoked.
    #[error("SHA256SUMS is signed by key {fingerprint}, which has been revoked")]
    Revoked {
        /// The revoked key, as upper-case hex.
        fingerprint: String,
    },
    /// The key is not one that may sign.
    #[error("SHA256SUMS is signed by key {fingerprint}, which {why}")]
    CannotSign {
        /// The key or subkey, as upper-case hex.
        fingerprint: String,
        /// Why it may not.
        why: String,
    },
    /// A listed key is named as the issuer, but the signature is not over these bytes.
    #[error("the signature by key {fingerprint} does not match SHA256SUMS ({why})")]
    Mismatch {
        /// The key or subkey, as upper-case hex.
        fingerprint: String,
        /// What failed.
        why: String,
    },
}

/// Promise 1: finds the listed key that signed the document. Keys are tried in order, keys that issued none of the
/// signatures are skipped, and of several signatures one good one suffices.
pub fn verify_detached(document: &[u8], signature: &[u8], armored_keys: &[String]) -> Result<Signer, SignatureError> {
    match armored_keys.len() {
        0 => return Err(SignatureError::NoKeys),
        found if found > MAX_KEYS => return Err(SignatureError::TooManyKeys { found }),
        _ => {}
    }
    let signatures = read_signatures(signature)?;
    let mut refusal = None;
    for (which, entry) in (1..).zip(armored_keys) {
        let keys = match read_keys(entry, MAX_KEY_BYTES) {
            Ok(keys) => keys,
            Err(why) => return Err(refusal.unwrap_or(SignatureError::UnparsableKey { which, why })),
        };
        for (key, signature) in keys.iter().flat_map(|key| signatures.iter().map(move |signature| (key, signature))) {
            for component in key.components_named_by(&signature.packet) {
                match signature.verify(document, key, component) {
                    Ok(signer) => return Ok(signer),
                    Err(error) => {
                        refusal.get_or_insert_with(|| error.in_entry(which));
                    }
                }
            }
        }
    }
    Err(refusal.unwrap_or_else(|| SignatureError::UnknownIssuer { issuer: issuers(&signatures) }))
}

/// One signature over a document, of a form the clients accept.
struct DocumentSignature {
    packet: Signature,
    made_at: Timestamp,
    digest: HashAlgorithm,
}

impl DocumentSignature {
    fn from_packet(packet: Signature) -> Result<Self, String> {
        // The clients know no older version than 4.
        let (Some(config), SignatureVersion::V4 | SignatureVersion::V6) = (packet.config(), packet.version()) else {
            return Err(format!("is of version {}, not 4 or 6", u8::from(packet.version())));
        };
        if config.typ() != SignatureType::Binary {
            return Err(format!(
                "is of type {:#04x}, not a signature of a binary document (0x00)",
                u8::from(config.typ())
            ));
        }
        let unknown = config.hashed_subpackets().any(|part| {
            part.is_critical && matches!(part.data, SubpacketData::Other(..) | SubpacketData::Experimental(..))
        });
        if unknown {
            return Err("has a critical part of an unknown kind".to_owned());
        }
        if config.issuer_key_id().is_empty() && config.issuer_fingerprint().is_empty() {
            return Err("names no issuer".to_owned());
        }
        let made_at = config.created().ok_or("does not say when it was made")?;
        let digest = config.hash_alg;
        Ok(Self { packet, made_at, digest })
    }

    fn verify(&self, document: &[u8], key: &ListedKey, component: Component<'_>) -> Result<Signer, Refusal> {
        if let Some(algorithm) = weak_digest(self.digest) {
            return Err(Refusal::Final(SignatureError::WeakDigest { algorithm: algorithm.to_owned() }));
        }
        let fingerprint = || component.fingerprint();
        component
            .verify(&self.packet, document)
            .map_err(|why| SignatureError::Mismatch { fingerprint: fingerprint(), why })
            .map_err(Refusal::Final)?;
        match key.judge(component, self.made_at) {
            Ok(warnings) => Ok(Signer { fingerprint: key.fingerprint(), warnings }),
            Err(Unfit::Revoked { fingerprint }) => Err(Refusal::Final(SignatureError::Revoked { fingerprint })),
            Err(Unfit::CannotSign { why }) => {
                Err(Refusal::Final(SignatureError::CannotSign { fingerprint: fingerprint(), why }))
            }
            Err(Unfit::Unusable { why }) => Err(Refusal::Key { why }),
        }
    }
}

/// A refusal that does not know the key's place in the list yet.
enum Refusal {
    Final(SignatureError),
    Key { why: String },
}

impl Refusal {
    fn in_entry(self, which: usize) -> SignatureError {
        match self {
            Self::Final(error) => error,
            Self::Key { why } => SignatureError::UnparsableKey { which, why },
        }
    }
}

fn read_signatures(bytes: &[u8]) -> Result<Vec<DocumentSignature>, SignatureError> {
    let unparsable = |why: String| SignatureError::UnparsableSignature { why };
    if bytes.len() > MAX_SIGNATURE_BYTES {
        return Err(unparsable(format!("has {} bytes; at most {MAX_SIGNATURE_BYTES} are read", bytes.len())));
    }
    if bytes.trim_ascii_start().starts_with(b"-----BEGIN") {
        return Err(unparsable("is ASCII-armoured; the clients accept the binary form only".to_owned()));
    }
    let mut signatures = Vec::new();
    let mut refusal = None;
    for packet in PacketParser::new(bytes).take(MAX_SIGNATURES) {
        let read = match packet {
            Ok(Packet::Signature(signature)) => DocumentSignature::from_packet(signature),
            Ok(_) => Err("holds something else than a signature".to_owned()),
            Err(error) => Err(format!("is no OpenPGP signature ({error})")),
        };
        match read {
            Ok(signature) => signatures.push(signature),
            Err(why) => {
                refusal.get_or_insert(why);
            }
        }
    }
    if signatures.is_empty() {
        return Err(unparsable(refusal.unwrap_or_else(|| "is empty or cut short".to_owned())));
    }
    Ok(signatures)
}

/// The name of a digest that must not prove a document.
fn weak_digest(algorithm: HashAlgorithm) -> Option<&'static str> {
    match algorithm {
        HashAlgorithm::Md5 => Some("MD5"),
        HashAlgorithm::Sha1 => Some("SHA-1"),
        HashAlgorithm::Ripemd160 => Some("RIPEMD-160"),
        _ => None,
    }
}

fn issuers(signatures: &[DocumentSignature]) -> String {
    let mut named = Vec::new();
    for signature in signatures {
        let ids = signature.packet.issuer_key_id().into_iter().map(hex::encode_upper);
        let fingerprints = signature.packet.issuer_fingerprint().into_iter().map(|of| hex::encode_upper(of.as_bytes()));
        named.extend(ids.chain(fingerprints).next());
    }
    named.join(", ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::verify::test_keys::{RSA, Shape, TestKey, flags};

    const SUMS: &[u8] = b"00  one.zip\n";
    const DOCS_KEY: &str = include_str!("../../tests/fixtures/registry-docs-key.asc");

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
    fn a_listed_key_vouches_for_what_it_signed() {
        let (key, outcome) = check_shape(&good(), by_primary);
        assert_eq!(outcome, Ok(Signer { fingerprint: key.fingerprint(), warnings: vec![] }));
    }

    #[test]
    fn a_signing_subkey_counts_as_its_primary_key() {
        let (key, outcome) = check_shape(&good(), by_subkey);
        assert_eq!(outcome, Ok(Signer { fingerprint: key.fingerprint(), warnings: vec![] }));
    }

    #[test]
    fn an_rsa_key_vouches_too() {
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
        let (key, other) = (TestKey::new(), TestKey::new());
        let keys = [other.public(&good()), key.public(&good())];
        assert_eq!(check(&key.sign(SUMS), &keys).unwrap().fingerprint, key.fingerprint());
    }

    #[test]
    fn an_issuer_that_is_not_listed_is_named() {
        let (key, other) = (TestKey::new(), TestKey::new());
        let refused = check(&key.sign(SUMS), &[other.public(&good())]);
        assert_eq!(refused, Err(SignatureError::UnknownIssuer { issuer: key.fingerprint() }));
    }

    #[test]
    fn several_keys_in_one_entry_are_all_read() {
        let (key, other) = (TestKey::new(), TestKey::new());
        for glue in ["", "\n", "\r\n\r\nthe new key:\r\n"] {
            let pasted = format!("{}{glue}{}", other.public(&good()).trim_end(), key.public(&good()));
            assert!(check(&key.sign(SUMS), &[pasted]).is_ok(), "{glue:?}");
        }
        let windows = key.public(&good()).replace('\n', "\r\n");
        assert!(check(&key.sign(SUMS), &[windows]).is_ok());
    }

    #[test]
    fn a_broken_key_fails_before_the_match_and_is_not_reached_behind_it() {
        let key = TestKey::new();
        let cut = key.public(&good()).replace("-----END", "----");
        for broken in ["", "garbage", cut.as_str(), "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n!\n"] {
            let before = check(&key.sign(SUMS), &[broken.to_owned(), key.public(&good())]);
            assert!(matches!(before, Err(SignatureError::UnparsableKey { which: 1, .. })), "{before:?}");
            assert!(check(&key.sign(SUMS), &[key.public(&good()), broken.to_owned()]).is_ok());
        }
    }

    #[test]
    fn without_a_key_nothing_is_proven_and_too_many_are_not_tried() {
        let key = TestKey::new();
        assert_eq!(check(&key.sign(SUMS), &[]), Err(SignatureError::NoKeys));
        let many = vec![key.public(&good()); MAX_KEYS + 1];
        assert_eq!(check(&key.sign(SUMS), &many), Err(SignatureError::TooManyKeys { found: MAX_KEYS + 1 }));
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
    fn sha1_in_a_keys_own_signatures_is_accepted_with_a_warning() {
        let old = RSA.public(&Shape { self_digest: HashAlgorithm::Sha1, ..good() });
        let by_primary = check(&RSA.sign(SUMS), std::slice::from_ref(&old)).unwrap();
        assert_eq!(by_primary.warnings, [format!("key {} vouches for itself with SHA-1 only", RSA.fingerprint())]);
        assert_eq!(check(&RSA.sign_by_subkey(SUMS), &[old]).unwrap().warnings.len(), 2);
    }

    #[test]
    fn md5_in_a_keys_own_signatures_counts_as_none() {
        let ancient = RSA.public(&Shape { self_digest: HashAlgorithm::Md5, ..good() });
        let refused = check(&RSA.sign(SUMS), &[ancient]);
        assert!(matches!(refused, Err(SignatureError::UnparsableKey { which: 1, .. })), "{refused:?}");
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
    fn a_revocation_by_somebody_else_revokes_nothing() {
        let (key, other) = (TestKey::new(), TestKey::new());
        let mut public = pgp::composed::SignedPublicKey::from(key.secret.clone());
        let foreign = other.public(&Shape { is_revoked: true, ..good() });
        let (foreign, _) =
            <pgp::composed::SignedPublicKey as pgp::composed::Deserializable>::from_string(&foreign).unwrap();
        public.details.revocation_signatures = foreign.details.revocation_signatures;
        let armored = public.to_armored_string(pgp::composed::ArmorOptions::default()).unwrap();
        assert!(check(&key.sign(SUMS), &[armored]).is_ok());
    }

    #[test]
    fn key_flags_decide_who_may_sign_and_their_absence_permits() {
        let encrypts = Shape { primary_flags: Some(flags(false)), subkey_flags: Some(flags(false)), ..good() };
        for sign in [by_primary, by_subkey] {
            let (_, outcome) = check_shape(&encrypts, sign);
            assert!(matches!(outcome, Err(SignatureError::CannotSign { .. })), "{outcome:?}");
            let silent = Shape { primary_flags: None, subkey_flags: None, ..good() };
            assert!(check_shape(&silent, sign).1.is_ok());
        }
        let only_certifies = Shape { primary_flags: Some(flags(false)), ..good() };
        assert!(check_shape(&only_certifies, by_subkey).1.is_ok());
    }

    #[test]
    fn a_subkey_that_does_not_confirm_its_primary_key_is_refused() {
        let (_, outcome) = check_shape(&Shape { has_consent: false, ..good() }, by_subkey);
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
    fn a_key_that_says_nothing_about_itself_is_refused() {
        let (_, outcome) = check_shape(&Shape { has_name: false, ..good() }, by_primary);
        assert!(matches!(outcome, Err(SignatureError::UnparsableKey { which: 1, .. })), "{outcome:?}");
    }

    #[test]
    fn one_good_signature_of_several_suffices() {
        let (key, other) = (TestKey::new(), TestKey::new());
        for both in [[other.sign(SUMS), key.sign(SUMS)], [key.sign(b"else"), key.sign(SUMS)]] {
            assert!(check(&both.concat(), &[key.public(&good())]).is_ok());
        }
    }

    #[test]
    fn signatures_that_the_clients_do_not_take_are_refused() {
        let key = TestKey::new();
        let huge = vec![0; MAX_SIGNATURE_BYTES + 1];
        let key_file = b"\x99\x00\x03\x04\x00\x00".to_vec();
        for unusable in [key.sign_armored(SUMS), key.sign_text(SUMS), huge, key_file, b"404 not found".to_vec()] {
            let refused = check(&unusable, &[key.public(&good())]);
            assert!(matches!(refused, Err(SignatureError::UnparsableSignature { .. })), "{refused:?}");
        }
    }

    #[test]
    fn nothing_that_is_cut_short_proves_anything() {
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
        let other = TestKey::new();
        let refused = check(&other.sign(SUMS), &[DOCS_KEY.to_owned()]);
        assert_eq!(refused, Err(SignatureError::UnknownIssuer { issuer: other.fingerprint() }));

        let keys = read_keys(DOCS_KEY, MAX_KEY_BYTES).unwrap();
        let key = keys.first().unwrap();
        let warnings = key.judge(key.primary(), Timestamp::from_secs(1_400_000_000)).unwrap();
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
        fn changed_bytes_in_key_or_signature_never_panic(at in any::<prop::sample::Index>(), to in any::<u8>()) {
            let mut signature = RSA.sign(SUMS);
            let place = at.index(signature.len());
            signature[place] = to;
            let _ = check(&signature, &[RSA.public(&good())]);
            let mut key = pgp::ser::Serialize::to_bytes(&pgp::composed::SignedPublicKey::from(RSA.secret.clone())).unwrap();
            let place = at.index(key.len());
            key[place] = to;
            let _ = check(&RSA.sign_by_subkey(SUMS), &[armored(&key)]);
        }
    }

    fn armored(packets: &[u8]) -> String {
        use base64::Engine;
        let base64 = base64::prelude::BASE64_STANDARD.encode(packets);
        format!("-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n{base64}\n-----END PGP PUBLIC KEY BLOCK-----\n")
    }
}
