//! Bundle signatures: Ed25519 over the bytes of the manifest, and the keys that are trusted.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use secrecy::{ExposeSecret, SecretBox, SecretString};
use serde::{Deserialize, Serialize};

use crate::digest::{Digest, DigestPrefix};

const PUBLIC_KEY_PREFIX: &str = "ed25519:";
const PRIVATE_KEY_PREFIX: &str = "ed25519-private:";
const KEY_BYTES: usize = 32;

/// Why a key cannot be parsed or generated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadKey {
    /// The text is not a private key. The text is never printed.
    #[error(
        "it is not a private key for bundles, which begins with {PRIVATE_KEY_PREFIX}; `larder bundle keygen` makes one"
    )]
    Private,
    /// A private key was given in place of a public one.
    #[error("it is a private key (keep it in its own file); use the public key that `larder bundle keygen` printed")]
    PrivateForPublic,
    /// The text is not a public key.
    #[error(
        "it is not a public key for bundles, which begins with {PUBLIC_KEY_PREFIX}; `larder bundle keygen` prints one"
    )]
    Public,
    /// The system's random generator failed.
    #[error("the system's random generator failed")]
    Random,
}

/// The private key that signs bundles. `Debug` prints only its public key.
#[derive(Clone)]
pub struct SigningKey {
    seed: Arc<SecretBox<[u8; KEY_BYTES]>>,
    pair: Arc<Ed25519KeyPair>,
}

impl SigningKey {
    /// Generates a new key.
    ///
    /// # Errors
    /// [`BadKey::Random`].
    pub fn generate() -> Result<Self, BadKey> {
        let mut seed = [0; KEY_BYTES];
        aws_lc_rs::rand::fill(&mut seed).map_err(|_| BadKey::Random)?;
        Self::from_seed(seed)
    }

    /// Parses the text that [`SigningKey::text`] returns.
    ///
    /// # Errors
    /// [`BadKey::Private`], which does not contain the text.
    pub fn parse(text: &str) -> Result<Self, BadKey> {
        let bytes = text.trim().strip_prefix(PRIVATE_KEY_PREFIX).and_then(key_bytes).ok_or(BadKey::Private)?;
        Self::from_seed(bytes)
    }

    /// The text form of the private key, for a key file.
    pub fn text(&self) -> SecretString {
        SecretString::from(format!("{PRIVATE_KEY_PREFIX}{}\n", STANDARD.encode(self.seed.expose_secret())))
    }

    /// The public key that others trust.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.pair.public_key().as_ref().try_into().expect("an Ed25519 key has 32 bytes"))
    }

    /// Signs the bytes of a manifest.
    pub fn sign(&self, manifest: &[u8]) -> Signature {
        Signature { key: self.public().id(), signature: STANDARD.encode(self.pair.sign(manifest)) }
    }

    fn from_seed(seed: [u8; KEY_BYTES]) -> Result<Self, BadKey> {
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).map_err(|_| BadKey::Private)?;
        Ok(Self { seed: Arc::new(SecretBox::new(Box::new(seed))), pair: Arc::new(pair) })
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SigningKey").field(&self.public()).finish()
    }
}

/// A public key that verifies signatures. Its text form is `ed25519:` and base64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, derive_more::Display)]
#[display("{PUBLIC_KEY_PREFIX}{}", STANDARD.encode(_0))]
pub struct PublicKey([u8; KEY_BYTES]);

impl PublicKey {
    /// Parses the text form.
    ///
    /// # Errors
    /// [`BadKey`]. A private key is reported as [`BadKey::PrivateForPublic`] and not printed.
    pub fn parse(text: &str) -> Result<Self, BadKey> {
        if text.starts_with(PRIVATE_KEY_PREFIX) {
            return Err(BadKey::PrivateForPublic);
        }
        text.strip_prefix(PUBLIC_KEY_PREFIX).and_then(key_bytes).map(Self).ok_or(BadKey::Public)
    }

    /// The short identifier that signatures contain.
    pub fn id(&self) -> KeyId {
        Digest::of(&self.0).prefix()
    }
}

/// The identifier of a key: the first 16 hex digits of the SHA-256 of its bytes.
pub type KeyId = DigestPrefix;

/// The contents of `larder-bundle.sig`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signature {
    /// The key that made the signature.
    pub key: KeyId,
    signature: String,
}

impl Signature {
    /// Parses the bytes that [`Signature::to_bytes`] makes. Any other spelling is `None`.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let signature: Self = serde_json::from_slice(bytes).ok()?;
        (signature.to_bytes() == bytes).then_some(signature)
    }

    /// The bytes of the file in a bundle.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut written = serde_json::to_vec(self).unwrap_or_default();
        written.push(b'\n');
        written
    }

    /// True if the key made this signature over the manifest.
    fn is_valid(&self, key: &PublicKey, manifest: &[u8]) -> bool {
        let signature = STANDARD.decode(&self.signature);
        signature.is_ok_and(|signature| UnparsedPublicKey::new(&ED25519, key.0).verify(manifest, &signature).is_ok())
    }
}

/// The keys whose bundles are accepted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BundleTrust {
    /// The keys that are trusted.
    pub keys: Vec<PublicKey>,
    /// The operator's choice to accept bundles that are unsigned or signed by another key.
    pub allow_unsigned: bool,
}

/// The keys and age limit of `[bundle]` in the configuration.
#[derive(Debug, Clone, Default)]
pub struct BundleKeys {
    /// The key that signs new bundles.
    pub signing: Option<SigningKey>,
    /// The keys that are trusted.
    pub trusted: Vec<PublicKey>,
    /// The largest age of a bundle when it is applied, by its manifest's creation time. `None` means any age.
    pub max_age: Option<Duration>,
    /// The treatment of the sender's notes.
    pub notes: NotesPolicy,
}

/// The treatment of the notes in a bundle: approvals, and the ages of versions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NotesPolicy {
    /// Those of a bundle that a trusted key signed count.
    #[default]
    Take,
    /// None counts.
    Ignore,
}

/// The identifiers of [`BundleKeys`], for output that must not contain the keys.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BundleKeyIds {
    /// The key that signs new bundles.
    pub signing: Option<KeyId>,
    /// The keys that are trusted.
    pub trusted: Vec<KeyId>,
}

impl BundleKeys {
    /// The identifiers of the keys.
    pub fn ids(&self) -> BundleKeyIds {
        let signing = self.signing.as_ref().map(|key| key.public().id());
        BundleKeyIds { signing, trusted: self.trusted.iter().map(PublicKey::id).collect() }
    }
}

/// The outcome of checking a bundle's signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SignatureStatus {
    /// A trusted key signed it.
    SignedBy(KeyId),
    /// The signature names a key that is not trusted here, so it cannot be verified.
    UntrustedKey(KeyId),
    /// The bundle has no signature.
    Unsigned,
}

impl BundleTrust {
    /// No signature is required: for reading what larder wrote itself, and for looking at a bundle before it is applied.
    pub const ANY: Self = Self { keys: Vec::new(), allow_unsigned: true };

    /// Verifies the signature of a manifest.
    ///
    /// # Errors
    /// The reason to refuse the bundle. A wrong signature in a trusted key's name is refused even with
    /// `allow_unsigned`.
    pub fn verify_manifest(&self, manifest: &[u8], signature: Option<&Signature>) -> Result<SignatureStatus, String> {
        let Some(signature) = signature else {
            let unsigned = "it is not signed; create it with [bundle] signing_key set, or apply it with --unsigned";
            return self.allow_unsigned.then_some(SignatureStatus::Unsigned).ok_or_else(|| unsigned.to_owned());
        };
        let id = signature.key;
        match self.keys.iter().find(|key| key.id() == id) {
            Some(key) if signature.is_valid(key, manifest) => Ok(SignatureStatus::SignedBy(id)),
            Some(_) => Err(format!("key {id} did not sign this manifest: it was altered in transit")),
            None if self.allow_unsigned => Ok(SignatureStatus::UntrustedKey(id)),
            None => Err(format!(
                "it is signed by key {id}, which is not in [bundle] trusted_keys; add its public key (`larder bundle keygen FILE` prints it where the bundle was made), or apply it with --unsigned"
            )),
        }
    }
}

/// Decodes a key in canonical base64.
fn key_bytes(text: &str) -> Option<[u8; KEY_BYTES]> {
    let bytes: [u8; KEY_BYTES] = STANDARD.decode(text).ok()?.try_into().ok()?;
    (STANDARD.encode(bytes) == text).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trust_in(keys: &[&SigningKey], unsigned: bool) -> BundleTrust {
        BundleTrust { keys: keys.iter().map(|key| key.public()).collect(), allow_unsigned: unsigned }
    }

    #[test]
    fn a_key_round_trips_and_is_never_printed() {
        let key = SigningKey::generate().unwrap();
        let again = SigningKey::parse(key.text().expose_secret()).unwrap();
        assert_eq!(again.public(), key.public());
        assert_eq!(PublicKey::parse(&key.public().to_string()), Ok(key.public()));
        let secret = key.text().expose_secret().trim().replace(PRIVATE_KEY_PREFIX, "");
        assert!(!format!("{key:?}").contains(&secret));
        assert_eq!(PublicKey::parse(key.text().expose_secret()), Err(BadKey::PrivateForPublic));
        for bad in ["", "ed25519:", "ed25519:AAAA", "AAAA", "ed25519-private:", "ed25519-private:AAAA"] {
            assert!(SigningKey::parse(bad).is_err() && PublicKey::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_trusted_keys_are_accepted_unless_unsigned_is_allowed() {
        let (ours, foreign) = (SigningKey::generate().unwrap(), SigningKey::generate().unwrap());
        let manifest = b"{}";
        let (signed, signed_by_foreign) = (ours.sign(manifest), foreign.sign(manifest));
        let (strict, lenient) = (trust_in(&[&ours], false), trust_in(&[&ours], true));
        assert_eq!(strict.verify_manifest(manifest, Some(&signed)), Ok(SignatureStatus::SignedBy(ours.public().id())));
        assert!(strict.verify_manifest(manifest, None).unwrap_err().contains("--unsigned"));
        assert!(
            strict
                .verify_manifest(manifest, Some(&signed_by_foreign))
                .unwrap_err()
                .contains(&foreign.public().id().to_string())
        );
        assert_eq!(lenient.verify_manifest(manifest, None), Ok(SignatureStatus::Unsigned));
        assert_eq!(
            lenient.verify_manifest(manifest, Some(&signed_by_foreign)),
            Ok(SignatureStatus::UntrustedKey(foreign.public().id()))
        );
        for trust in [strict, lenient] {
            assert!(trust.verify_manifest(b"{ }", Some(&signed)).unwrap_err().contains("altered"));
            let forged = Signature { key: ours.public().id(), ..signed_by_foreign.clone() };
            assert!(trust.verify_manifest(manifest, Some(&forged)).unwrap_err().contains("altered"));
        }
    }

    #[test]
    fn a_signature_has_one_spelling() {
        let written = SigningKey::generate().unwrap().sign(b"{}").to_bytes();
        assert!(Signature::read(&written).is_some());
        for index in 0..written.len() {
            let mut altered = written.clone();
            altered[index] ^= 1;
            assert!(Signature::read(&altered).is_none_or(|read| read.to_bytes() == altered));
        }
        assert!(Signature::read(&[&written[..], b" "].concat()).is_none());
    }
}
