//! Reads the keys that a registry lists, and decides whether a key or subkey may sign. The OpenPGP crate only verifies
//! signatures; this module checks revocation, subkey bindings, key flags and expiry.

use std::time::{Duration, SystemTime};

use pgp::composed::{Deserializable, SignedPublicKey, SignedPublicSubKey};
use pgp::crypto::hash::HashAlgorithm;
use pgp::packet::{Signature, SignatureType, SignatureVersion, SubpacketData};
use pgp::types::{KeyDetails, KeyVersion, Tag, Timestamp, VerifyingKey};

use super::signature::SignatureError;

const ARMOR_END: &str = "-----END PGP PUBLIC KEY BLOCK-----";

/// The most self-signatures of one key that are checked. Each costs a public-key operation.
const MAX_SELF_SIGNATURES: usize = 256;

/// Reads all keys in one entry of the registry's list. Publishers sometimes paste several armour blocks into one entry.
/// `number` is the position of the entry in the list, from 1.
///
/// # Errors
/// [`SignatureError::UnparsableKey`].
pub(super) fn read_keys(entry: &str, number: usize, max_bytes: usize) -> Result<Vec<ListedKey>, SignatureError> {
    let refused = |reason| SignatureError::UnparsableKey { number, reason };
    let unreadable = |error| refused(format!("is not an OpenPGP public key ({})", pgp_error_text(&error)));
    if entry.len() > max_bytes {
        return Err(refused(format!("has {} bytes; at most {max_bytes} are read", entry.len())));
    }
    let mut keys = Vec::new();
    // The OpenPGP crate reads only the first armour block of a text.
    for block in entry.split_inclusive(ARMOR_END).filter(|block| block.contains("-----BEGIN")) {
        let (parsed, _headers) = SignedPublicKey::from_armor_many_buf(block.as_bytes()).map_err(unreadable)?;
        for key in parsed {
            keys.push(ListedKey { key: key.map_err(unreadable)?, number });
        }
    }
    if keys.is_empty() {
        return Err(refused("contains no armoured public key".to_owned()));
    }
    Ok(keys)
}

/// A listed public key with its subkeys, unverified.
pub(super) struct ListedKey {
    key: SignedPublicKey,
    /// The position of its entry in the registry's list, from 1.
    number: usize,
}

/// A primary key or a subkey, either of which may have made a signature.
#[derive(Clone, Copy)]
pub(super) struct Component<'k> {
    key: &'k dyn VerifyingKey,
    /// The subkey with its bindings; `None` for the primary key.
    subkey: Option<&'k SignedPublicSubKey>,
}

impl ListedKey {
    /// The fingerprint of the primary key, as upper-case hex.
    pub(super) fn fingerprint(&self) -> String {
        fingerprint(&self.key.primary_key)
    }

    /// The number of self-signatures to check.
    pub(super) fn self_signature_count(&self) -> usize {
        let details = &self.key.details;
        let user_id_signatures: usize = details.users.iter().map(|user| user.signatures.len()).sum();
        // A subkey binding can embed a second signature, made by the subkey (RFC 9580, section 5.2.1.9).
        let subkey_signatures: usize = self.key.public_subkeys.iter().map(|subkey| 2 * subkey.signatures.len()).sum();
        details.revocation_signatures.len() + details.direct_signatures.len() + user_id_signatures + subkey_signatures
    }

    pub(super) fn primary(&self) -> Component<'_> {
        Component { key: &self.key.primary_key, subkey: None }
    }

    /// The components that the signature names as its issuer. That is only a hint: anyone can name any key.
    pub(super) fn components_named_by(&self, signature: &Signature) -> impl Iterator<Item = Component<'_>> {
        let subkeys = self.key.public_subkeys.iter();
        let subkeys = subkeys.map(|subkey| Component { key: &subkey.key, subkey: Some(subkey) });
        std::iter::once(self.primary()).chain(subkeys).filter(move |component| is_issued_by(signature, component.key))
    }

    /// Checks that the component may sign, and returns warnings. A key that had expired when it signed gives a warning.
    pub(super) fn check_may_sign(
        &self,
        component: Component<'_>,
        made_at: Timestamp,
    ) -> Result<Vec<String>, SignatureError> {
        let primary = &self.key.primary_key;
        let self_signatures = self.valid_self_signatures()?;
        if self_signatures.iter().any(|signature| revokes(signature)) {
            return Err(SignatureError::Revoked { fingerprint: self.fingerprint() });
        }
        let self_signature =
            newest(self_signatures.into_iter()).ok_or_else(|| self.unusable("has no valid self-signature"))?;
        let mut warnings = Warnings::default();
        warnings.add_weaknesses_of(primary, self_signature, made_at);
        match component.subkey {
            Some(subkey) => self.check_subkey_may_sign(subkey, made_at, &mut warnings)?,
            None => check_signing_flag(primary, self_signature)?,
        }
        Ok(warnings.0)
    }

    fn check_subkey_may_sign(
        &self,
        subkey: &SignedPublicSubKey,
        made_at: Timestamp,
        warnings: &mut Warnings,
    ) -> Result<(), SignatureError> {
        let primary = &self.key.primary_key;
        self.check_signature_count(subkey.signatures.len())?;
        let valid = || subkey.signatures.iter().filter(|s| s.verify_subkey_binding(primary, &subkey.key).is_ok());
        if valid().any(|signature| signature.typ() == Some(SignatureType::SubkeyRevocation)) {
            return Err(SignatureError::Revoked { fingerprint: fingerprint(&subkey.key) });
        }
        let binding = newest(valid().filter(|signature| has_tolerable_digest(signature)))
            .ok_or_else(|| cannot_sign(&subkey.key, "is not validly bound to its primary key"))?;
        check_signing_flag(&subkey.key, binding)?;
        // The subkey must confirm the binding too. Otherwise any key could adopt a foreign signing key as its subkey.
        let back_signature = binding
            .embedded_signature()
            .filter(|back| has_tolerable_digest(back))
            .filter(|back| back.verify_primary_key_binding(&subkey.key, primary).is_ok())
            .ok_or_else(|| cannot_sign(&subkey.key, "is a signing subkey that does not confirm its primary key"))?;
        warnings.add_weaknesses_of(&subkey.key, binding, made_at);
        warnings.add_digest_weakness(&subkey.key, back_signature);
        Ok(())
    }

    /// The valid self-signatures of the primary key: revocations, direct signatures and certifications of user IDs.
    fn valid_self_signatures(&self) -> Result<Vec<&Signature>, SignatureError> {
        let primary = &self.key.primary_key;
        let details = &self.key.details;
        let direct = details.revocation_signatures.iter().chain(&details.direct_signatures);
        let on_key = direct.map(|signature| (signature, None));
        let on_user_ids =
            details.users.iter().flat_map(|user| user.signatures.iter().map(|signature| (signature, Some(&user.id))));
        let claimed: Vec<_> =
            on_key.chain(on_user_ids).filter(|(s, _)| is_issued_by(s, primary) || names_no_issuer(s)).collect();
        self.check_signature_count(claimed.len())?;
        let valid = claimed.into_iter().filter(|(signature, user)| match user {
            Some(_) if signature.typ() == Some(SignatureType::CertRevocation) => false,
            Some(id) => signature.verify_certification(primary, Tag::UserId, id).is_ok(),
            None => signature.verify_key(primary).is_ok(),
        });
        let valid = valid.map(|(signature, _)| signature);
        // A revocation counts whatever digest it used: forging one gains nothing.
        Ok(valid.filter(|signature| revokes(signature) || has_tolerable_digest(signature)).collect())
    }

    fn check_signature_count(&self, signatures: usize) -> Result<(), SignatureError> {
        if signatures > MAX_SELF_SIGNATURES {
            return Err(self.unusable("has more self-signatures than are checked"));
        }
        Ok(())
    }

    fn unusable(&self, reason: &str) -> SignatureError {
        SignatureError::UnparsableKey { number: self.number, reason: reason.to_owned() }
    }
}

impl Component<'_> {
    /// The fingerprint of this key or subkey itself, as upper-case hex.
    pub(super) fn fingerprint(&self) -> String {
        fingerprint(self.key)
    }

    /// Checks that this key or subkey made the signature over content with this hash.
    pub(super) fn verify(&self, signature: &Signature, hash: &[u8]) -> Result<(), String> {
        let (Some(config), Some(bytes)) = (signature.config(), signature.signature()) else {
            return Err("is of an unknown version".to_owned());
        };
        if signature.signed_hash_value().as_ref().map(|first| &first[..]) != hash.get(..2) {
            return Err("signature: invalid signed hash value".to_owned());
        }
        // Only version 6 keys make version 6 signatures, and no others (RFC 9580, section 5.2).
        if (self.key.version() == KeyVersion::V6) != (config.version() == SignatureVersion::V6) {
            return Err("a key of this version cannot make a signature of that version".to_owned());
        }
        self.key.verify(config.hash_alg, hash, bytes).map_err(|error| pgp_error_text(&error))
    }
}

#[derive(Default)]
struct Warnings(Vec<String>);

impl Warnings {
    /// Records the weaknesses of a key and of the self-signature or binding with its properties.
    fn add_weaknesses_of(&mut self, key: &impl KeyDetails, self_signature: &Signature, made_at: Timestamp) {
        self.add_digest_weakness(key, self_signature);
        let valid_for_seconds = self_signature.key_expiration_time().map_or(0, |span| span.as_secs());
        let expires = u64::from(key.created_at().as_secs()) + u64::from(valid_for_seconds);
        if valid_for_seconds != 0 && expires <= u64::from(made_at.as_secs()) {
            let expiry = humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + Duration::from_secs(expires));
            self.add(format!("key {} had expired on {expiry} when it signed", fingerprint(key)));
        }
    }

    fn add_digest_weakness(&mut self, key: &impl KeyDetails, self_signature: &Signature) {
        if self_signature.hash_alg() == Some(HashAlgorithm::Sha1) {
            self.add(format!("key {} vouches for itself with SHA-1 only", fingerprint(key)));
        }
    }

    fn add(&mut self, warning: String) {
        if !self.0.contains(&warning) {
            self.0.push(warning);
        }
    }
}

fn is_issued_by(signature: &Signature, key: &(impl KeyDetails + ?Sized)) -> bool {
    signature.issuer_key_id().contains(&&key.legacy_key_id())
        || signature.issuer_fingerprint().contains(&&key.fingerprint())
}

fn revokes(signature: &Signature) -> bool {
    signature.typ() == Some(SignatureType::KeyRevocation)
}

fn names_no_issuer(signature: &Signature) -> bool {
    signature.issuer_key_id().is_empty() && signature.issuer_fingerprint().is_empty()
}

fn newest<'k>(signatures: impl Iterator<Item = &'k Signature>) -> Option<&'k Signature> {
    signatures.max_by_key(|signature| signature.created())
}

/// Refuses a key whose self-signature or binding has key flags without the flag for signing.
fn check_signing_flag(key: &impl KeyDetails, self_signature: &Signature) -> Result<(), SignatureError> {
    let mut subpackets = self_signature.config().into_iter().flat_map(|config| config.hashed_subpackets());
    let flags = subpackets.find_map(|subpacket| match &subpacket.data {
        SubpacketData::KeyFlags(flags) => Some(flags),
        _ => None,
    });
    match flags {
        Some(flags) if !flags.sign() => Err(cannot_sign(key, "is not meant for signing (its key flags say so)")),
        _ => Ok(()),
    }
}

fn cannot_sign(key: &impl KeyDetails, reason: &str) -> SignatureError {
    SignatureError::CannotSign { fingerprint: fingerprint(key), reason: reason.to_owned() }
}

/// True unless the digest is MD5 or RIPEMD-160. SHA-1 is accepted in self-signatures, because keys in use have such
/// signatures.
fn has_tolerable_digest(signature: &Signature) -> bool {
    !matches!(signature.hash_alg(), None | Some(HashAlgorithm::Md5 | HashAlgorithm::Ripemd160))
}

fn fingerprint(key: &(impl KeyDetails + ?Sized)) -> String {
    hex::encode_upper(key.fingerprint().as_bytes())
}

/// Shortens an error of the OpenPGP crate to one line. Its texts contain data and stack traces, which must reach
/// neither clients nor logs.
pub(super) fn pgp_error_text(error: &pgp::errors::Error) -> String {
    const MAX_CHARS: usize = 120;
    if let pgp::errors::Error::InvalidPacketContent { source } = error {
        return pgp_error_text(source);
    }
    let text = error.to_string();
    let text = text.split("backtrace").next().unwrap_or_default();
    let text = text.rsplit_once("message: \"").map_or(text, |(_, message)| message);
    let words: Vec<&str> =
        text.split("\\n").flat_map(|line| line.split(|c: char| c.is_whitespace() || c.is_control())).collect();
    let line: String = words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    let shortened: String = line.chars().take(MAX_CHARS).collect();
    shortened.trim_end_matches([' ', ',', '"', '{', '\\']).to_owned()
}
