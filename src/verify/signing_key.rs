//! The keys that a registry lists: reads them, and decides whether a key or subkey may sign. The OpenPGP crate computes
//! signatures only; revocation, bindings, purpose and expiry are checked here.

use std::time::{Duration, SystemTime};

use pgp::composed::{Deserializable, SignedPublicKey, SignedPublicSubKey};
use pgp::crypto::hash::HashAlgorithm;
use pgp::packet::{Signature, SignatureType, SignatureVersion, SubpacketData};
use pgp::types::{KeyDetails, KeyVersion, Tag, Timestamp, VerifyingKey};

const END: &str = "-----END PGP PUBLIC KEY BLOCK-----";

/// The most signatures of a key about itself that are checked: each costs a public-key operation.
const MAX_SELF_SIGNATURES: usize = 256;

/// Reads all keys of one entry of the list; operators paste several blocks into one.
pub(super) fn read_keys(entry: &str, max_bytes: usize) -> Result<Vec<ListedKey>, String> {
    if entry.len() > max_bytes {
        return Err(format!("has {} bytes; at most {max_bytes} are read", entry.len()));
    }
    let mut keys = Vec::new();
    // The OpenPGP crate reads the first block of a text and no more.
    for block in entry.split_inclusive(END).filter(|block| block.contains("-----BEGIN")) {
        let (parsed, _headers) = SignedPublicKey::from_armor_many_buf(block.as_bytes()).map_err(unreadable)?;
        for key in parsed {
            keys.push(ListedKey(key.map_err(unreadable)?));
        }
    }
    if keys.is_empty() {
        return Err("holds no armoured public key".to_owned());
    }
    Ok(keys)
}

/// A listed public key with its subkeys, unverified.
pub(super) struct ListedKey(SignedPublicKey);

/// The part of a key that may have made a signature.
#[derive(Clone, Copy)]
pub(super) enum Component<'k> {
    Primary(&'k SignedPublicKey),
    Subkey(&'k SignedPublicSubKey),
}

/// Why a key that did make a signature does not count.
#[derive(Debug)]
pub(super) enum KeyUnfit {
    Revoked { fingerprint: String },
    CannotSign { reason: String },
    NoUsableSelfSignature { reason: String },
}

impl ListedKey {
    /// The fingerprint of the primary key, as upper-case hex.
    pub(super) fn fingerprint(&self) -> String {
        fingerprint(&self.0.primary_key)
    }

    /// The number of self-signatures to check.
    pub(super) fn self_signatures(&self) -> usize {
        let details = &self.0.details;
        let user_id_signatures: usize = details.users.iter().map(|user| user.signatures.len()).sum();
        // A binding can embed the own signature of the subkey (RFC 9580, 5.2.1.9).
        let of_subkeys: usize = self.0.public_subkeys.iter().map(|subkey| 2 * subkey.signatures.len()).sum();
        details.revocation_signatures.len() + details.direct_signatures.len() + user_id_signatures + of_subkeys
    }

    #[cfg(test)]
    pub(super) fn primary(&self) -> Component<'_> {
        Component::Primary(&self.0)
    }

    /// The components that the signature names as its issuer. A hint, not a proof.
    pub(super) fn components_named_by<'k>(&'k self, signature: &Signature) -> impl Iterator<Item = Component<'k>> {
        let primary = is_issued_by(signature, &self.0.primary_key).then_some(Component::Primary(&self.0));
        let subkeys = self.0.public_subkeys.iter().filter(|subkey| is_issued_by(signature, &subkey.key));
        primary.into_iter().chain(subkeys.map(Component::Subkey).collect::<Vec<_>>())
    }

    /// Checks that the component may sign, and returns warnings. Expiry is measured at the time of the signature.
    pub(super) fn check_may_sign(&self, component: Component<'_>, made_at: Timestamp) -> Result<Vec<String>, KeyUnfit> {
        let primary = &self.0.primary_key;
        let about_itself = self.valid_self_signatures()?;
        if about_itself.iter().any(|signature| revokes(signature)) {
            return Err(KeyUnfit::Revoked { fingerprint: self.fingerprint() });
        }
        let own = newest(about_itself.into_iter()).ok_or_else(|| unusable("has no valid signature of itself"))?;
        let mut warnings = Warnings::default();
        warnings.add_weaknesses_of(primary, own, made_at);
        match component {
            Component::Primary(_) if !may_sign(own).unwrap_or(true) => Err(not_for_signing()),
            Component::Primary(_) => Ok(warnings.0),
            Component::Subkey(subkey) => {
                self.judge_subkey(subkey, made_at, &mut warnings)?;
                Ok(warnings.0)
            }
        }
    }

    fn judge_subkey(
        &self,
        subkey: &SignedPublicSubKey,
        made_at: Timestamp,
        warnings: &mut Warnings,
    ) -> Result<(), KeyUnfit> {
        let primary = &self.0.primary_key;
        check_signature_count(subkey.signatures.len())?;
        let valid = || subkey.signatures.iter().filter(|s| s.verify_subkey_binding(primary, &subkey.key).is_ok());
        if valid().any(|signature| signature.typ() == Some(SignatureType::SubkeyRevocation)) {
            return Err(KeyUnfit::Revoked { fingerprint: fingerprint(&subkey.key) });
        }
        let binding = newest(valid().filter(|signature| has_tolerable_digest(signature)))
            .ok_or_else(|| cannot_sign("is not validly bound to its primary key"))?;
        if !may_sign(binding).unwrap_or(true) {
            return Err(not_for_signing());
        }
        // Without the subkey's own consent, any key could adopt a foreign signing key as its subkey.
        let back_signature = binding
            .embedded_signature()
            .filter(|back| has_tolerable_digest(back))
            .filter(|back| back.verify_primary_key_binding(&subkey.key, primary).is_ok())
            .ok_or_else(|| cannot_sign("is a signing subkey that does not confirm its primary key"))?;
        warnings.add_weaknesses_of(&subkey.key, binding, made_at);
        warnings.add_digest_weakness(&subkey.key, back_signature);
        Ok(())
    }

    /// All valid statements of the primary key about itself: revocations, direct signatures, certified names.
    fn valid_self_signatures(&self) -> Result<Vec<&Signature>, KeyUnfit> {
        let primary = &self.0.primary_key;
        let details = &self.0.details;
        let direct = details.revocation_signatures.iter().chain(&details.direct_signatures);
        let about_key = direct.map(|signature| (signature, None));
        let about_names = details.users.iter().flat_map(|user| user.signatures.iter().map(|s| (s, Some(&user.id))));
        let claimed: Vec<_> =
            about_key.chain(about_names).filter(|(s, _)| is_issued_by(s, primary) || names_no_issuer(s)).collect();
        check_signature_count(claimed.len())?;
        let valid = claimed.into_iter().filter(|(signature, user)| match user {
            Some(_) if signature.typ() == Some(SignatureType::CertRevocation) => false,
            Some(id) => signature.verify_certification(primary, Tag::UserId, id).is_ok(),
            None => signature.verify_key(primary).is_ok(),
        });
        let valid = valid.map(|(signature, _)| signature);
        // A revocation counts whatever digest it used: forging one gains nothing.
        Ok(valid.filter(|signature| revokes(signature) || has_tolerable_digest(signature)).collect())
    }
}

impl Component<'_> {
    /// The fingerprint of exactly this part, as upper-case hex.
    pub(super) fn fingerprint(&self) -> String {
        match self {
            Self::Primary(key) => fingerprint(&key.primary_key),
            Self::Subkey(subkey) => fingerprint(&subkey.key),
        }
    }

    /// Checks that this key or subkey made the signature over content with this hash.
    pub(super) fn verify(&self, signature: &Signature, hash: &[u8]) -> Result<(), String> {
        let (Some(config), Some(bytes)) = (signature.config(), signature.signature()) else {
            return Err("is of an unknown version".to_owned());
        };
        if signature.signed_hash_value().as_ref().map(|first| &first[..]) != hash.get(..2) {
            return Err("signature: invalid signed hash value".to_owned());
        }
        let version = match self {
            Self::Primary(key) => key.primary_key.version(),
            Self::Subkey(subkey) => subkey.key.version(),
        };
        // Only version 6 keys make version 6 signatures, and no others (RFC 9580, 5.2).
        if (version == KeyVersion::V6) != (config.version() == SignatureVersion::V6) {
            return Err("a key of this version cannot make a signature of that version".to_owned());
        }
        match self {
            Self::Primary(key) => key.primary_key.verify(config.hash_alg, hash, bytes),
            Self::Subkey(subkey) => subkey.key.verify(config.hash_alg, hash, bytes),
        }
        .map_err(|error| pgp_error_text(&error))
    }
}

#[derive(Default)]
struct Warnings(Vec<String>);

impl Warnings {
    /// Records weak properties of a key and of the signature that describes it.
    fn add_weaknesses_of(&mut self, key: &impl KeyDetails, describing: &Signature, made_at: Timestamp) {
        self.add_digest_weakness(key, describing);
        let valid_for = describing.key_expiration_time().map_or(0, |span| span.as_secs());
        let expires = u64::from(key.created_at().as_secs()) + u64::from(valid_for);
        if valid_for != 0 && expires <= u64::from(made_at.as_secs()) {
            let day = humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + Duration::from_secs(expires));
            self.add(format!("key {} had expired on {day} when it signed", fingerprint(key)));
        }
    }

    fn add_digest_weakness(&mut self, key: &impl KeyDetails, describing: &Signature) {
        if describing.hash_alg() == Some(HashAlgorithm::Sha1) {
            self.add(format!("key {} vouches for itself with SHA-1 only", fingerprint(key)));
        }
    }

    fn add(&mut self, warning: String) {
        if !self.0.contains(&warning) {
            self.0.push(warning);
        }
    }
}

fn is_issued_by(signature: &Signature, key: &impl KeyDetails) -> bool {
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

/// The signing flag of the key flags; `None` where there are none.
fn may_sign(describing: &Signature) -> Option<bool> {
    describing.config()?.hashed_subpackets().find_map(|part| match &part.data {
        SubpacketData::KeyFlags(flags) => Some(flags.sign()),
        _ => None,
    })
}

/// SHA-1 is accepted here: keys in use have such self-signatures. Nothing older has been made for decades.
fn has_tolerable_digest(signature: &Signature) -> bool {
    !matches!(signature.hash_alg(), None | Some(HashAlgorithm::Md5 | HashAlgorithm::Ripemd160))
}

fn check_signature_count(signatures: usize) -> Result<(), KeyUnfit> {
    if signatures > MAX_SELF_SIGNATURES {
        return Err(unusable("has more signatures of itself than are checked"));
    }
    Ok(())
}

fn fingerprint(key: &impl KeyDetails) -> String {
    hex::encode_upper(key.fingerprint().as_bytes())
}

fn unreadable(error: pgp::errors::Error) -> String {
    format!("is not an OpenPGP public key ({})", pgp_error_text(&error))
}

/// Shortens an error of the OpenPGP crate to one line. Its texts contain data and stack traces, which must reach
/// neither clients nor logs.
pub(super) fn pgp_error_text(error: &pgp::errors::Error) -> String {
    const LONGEST: usize = 120;
    if let pgp::errors::Error::InvalidPacketContent { source } = error {
        return pgp_error_text(source);
    }
    let text = error.to_string();
    let text = text.split("backtrace").next().unwrap_or_default();
    let text = text.rsplit_once("message: \"").map_or(text, |(_, message)| message);
    let words: Vec<&str> =
        text.split("\\n").flat_map(|line| line.split(|c: char| c.is_whitespace() || c.is_control())).collect();
    let line: String = words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    let shortened: String = line.chars().take(LONGEST).collect();
    shortened.trim_end_matches([' ', ',', '"', '{', '\\']).to_owned()
}

fn unusable(reason: &str) -> KeyUnfit {
    KeyUnfit::NoUsableSelfSignature { reason: reason.to_owned() }
}

fn cannot_sign(reason: &str) -> KeyUnfit {
    KeyUnfit::CannotSign { reason: reason.to_owned() }
}

fn not_for_signing() -> KeyUnfit {
    cannot_sign("is not meant for signing (its key flags say so)")
}
