//! Throwaway OpenPGP keys and the detached signatures that provider authors put beside SHA256SUMS.

use std::sync::{Arc, OnceLock};

use pgp::composed::{
    ArmorOptions, DetachedSignature, EncryptionCaps, KeyType, SecretKeyParamsBuilder, SignedSecretKey,
};
use pgp::crypto::hash::HashAlgorithm;
use pgp::packet::{SignatureConfig, SignatureType, Subpacket, SubpacketData};
use pgp::ser::Serialize;
use pgp::types::{KeyDetails, Password, Timestamp};

/// The key of a provider author. Clones share the key.
#[derive(Clone)]
pub(crate) struct SigningKey {
    secret: Arc<SignedSecretKey>,
    armored: Arc<str>,
    digest: HashAlgorithm,
    /// True if its signatures are of text documents.
    signs_text: bool,
}

impl SigningKey {
    /// The signing key of most providers; made once per test process.
    pub(crate) fn shared() -> Self {
        static SHARED: OnceLock<SigningKey> = OnceLock::new();
        SHARED.get_or_init(Self::new_key).clone()
    }

    /// A new key.
    pub(crate) fn new_key() -> Self {
        Self::generate(KeyType::Ed25519Legacy)
    }

    /// A new RSA key, as most published providers use; slow to make.
    pub(crate) fn new_rsa_key() -> Self {
        Self::generate(KeyType::Rsa(2048))
    }

    /// A new key whose signatures use SHA-1.
    pub(crate) fn new_sha1_key() -> Self {
        Self { digest: HashAlgorithm::Sha1, ..Self::new_rsa_key() }
    }

    /// A new key that signs as `gpg --textmode` does.
    pub(crate) fn new_text_key() -> Self {
        Self { signs_text: true, ..Self::new_key() }
    }

    /// A new key that its owner has revoked; it still makes signatures.
    pub(crate) fn new_revoked_key() -> Self {
        let key = Self::new_key();
        let (primary, mut public) = (&key.secret.primary_key, key.secret.to_public_key());
        let mut config = SignatureConfig::v4(SignatureType::KeyRevocation, primary.algorithm(), HashAlgorithm::Sha256);
        config.hashed_subpackets = [
            SubpacketData::IssuerFingerprint(primary.fingerprint()),
            SubpacketData::SignatureCreationTime(Timestamp::now()),
        ]
        .map(|data| Subpacket::regular(data).expect("a signature subpacket"))
        .into();
        let revocation = config.sign_key(primary, &Password::empty(), primary.public_key());
        public.details.revocation_signatures.push(revocation.expect("a revocation"));
        let armored = public.to_armored_string(ArmorOptions::default()).expect("a public key has an armored form");
        Self { armored: armored.into(), ..key }
    }

    fn generate(key_type: KeyType) -> Self {
        let secret = SecretKeyParamsBuilder::default()
            .key_type(key_type)
            .can_certify(true)
            .can_sign(true)
            .can_encrypt(EncryptionCaps::None)
            .primary_user_id("Acme Providers <providers@acme.test>".to_owned())
            .build()
            .expect("parameters of a signing key")
            .generate(rand::thread_rng())
            .expect("a new signing key");
        let armored = secret
            .to_public_key()
            .to_armored_string(ArmorOptions::default())
            .expect("a public key has an armored form");
        Self { secret: Arc::new(secret), armored: armored.into(), digest: HashAlgorithm::Sha256, signs_text: false }
    }

    /// The public key in ASCII armor, as `signing_keys` lists it.
    pub(crate) fn armored(&self) -> &str {
        &self.armored
    }

    /// The key's `key_id`: sixteen upper-case hexadecimal digits.
    pub(crate) fn id(&self) -> String {
        hex::encode_upper(self.secret.primary_key.legacy_key_id().as_ref())
    }

    /// The fingerprint, as upper-case hexadecimal digits.
    pub(crate) fn fingerprint(&self) -> String {
        hex::encode_upper(self.secret.primary_key.fingerprint().as_bytes())
    }

    /// A detached signature over `content`.
    pub(crate) fn sign(&self, content: &[u8]) -> Vec<u8> {
        let (key, password) = (&self.secret.primary_key, Password::empty());
        let signed = match self.signs_text {
            true => DetachedSignature::sign_text_data(rand::thread_rng(), key, &password, self.digest, content),
            false => DetachedSignature::sign_binary_data(rand::thread_rng(), key, &password, self.digest, content),
        };
        signed.expect("an unlocked key signs").to_bytes().expect("a signature has a binary form")
    }
}
