//! Throwaway OpenPGP keys for tests, with every property that a key in a registry may have.

use std::sync::LazyLock;

use pgp::composed::{
    ArmorOptions, DetachedSignature, EncryptionCaps, KeyType, SecretKeyParamsBuilder, SignedKeyDetails,
    SignedPublicKey, SignedPublicSubKey, SignedSecretKey, SubkeyParamsBuilder, SubpacketConfig,
};
use pgp::crypto::hash::HashAlgorithm;
use pgp::packet::{KeyFlags, Signature, SignatureConfig, SignatureType, Subpacket, SubpacketData, UserId};
use pgp::ser::Serialize;
use pgp::types::{Duration, Fingerprint, KeyDetails, Password, SignedUser, SigningKey, Tag, Timestamp};

/// The creation time of every test key, in epoch seconds.
pub(in crate::verify) const KEY_CREATED: u32 = 1_700_000_000;

/// The creation time of every test signature, in epoch seconds.
pub(in crate::verify) const SIGNED_AT: u32 = KEY_CREATED + 1_000_000;

/// An RSA key, generated once. Only RSA test keys can sign with SHA-1.
pub(in crate::verify) static RSA: LazyLock<TestKey> = LazyLock::new(|| TestKey::generate(KeyType::Rsa(2048)));

/// Properties of a test key. The default is a plain good key.
pub(in crate::verify) struct Shape {
    pub(in crate::verify) self_digest: HashAlgorithm,
    pub(in crate::verify) primary_flags: Option<KeyFlags>,
    pub(in crate::verify) subkey_flags: Option<KeyFlags>,
    pub(in crate::verify) expires_after: Option<u32>,
    pub(in crate::verify) is_revoked: bool,
    pub(in crate::verify) is_subkey_revoked: bool,
    pub(in crate::verify) has_back_signature: bool,
    pub(in crate::verify) has_user_id: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            self_digest: HashAlgorithm::Sha256,
            primary_flags: Some(flags(true)),
            subkey_flags: Some(flags(true)),
            expires_after: None,
            is_revoked: false,
            is_subkey_revoked: false,
            has_back_signature: true,
            has_user_id: true,
        }
    }
}

/// A key pair with a signing subkey.
pub(in crate::verify) struct TestKey {
    pub(in crate::verify) secret: SignedSecretKey,
}

impl TestKey {
    pub(in crate::verify) fn new() -> Self {
        Self::generate(KeyType::Ed25519Legacy)
    }

    fn generate(kind: KeyType) -> Self {
        let subkey = SubkeyParamsBuilder::default()
            .key_type(kind.clone())
            .can_sign(true)
            .can_encrypt(EncryptionCaps::None)
            .created_at(Timestamp::from_secs(KEY_CREATED))
            .build()
            .unwrap();
        let mut parameters = SecretKeyParamsBuilder::default();
        parameters
            .key_type(kind)
            .can_certify(true)
            .can_sign(true)
            .can_encrypt(EncryptionCaps::None)
            .created_at(Timestamp::from_secs(KEY_CREATED))
            .primary_user_id("Test <test@example.com>".to_owned())
            .subkeys(vec![subkey]);
        Self { secret: parameters.build().unwrap().generate(rand::thread_rng()).unwrap() }
    }

    pub(in crate::verify) fn fingerprint(&self) -> String {
        hex::encode_upper(self.secret.primary_key.fingerprint().as_bytes())
    }

    pub(in crate::verify) fn subkey_fingerprint(&self) -> String {
        hex::encode_upper(self.secret.secret_subkeys[0].key.fingerprint().as_bytes())
    }

    /// The armoured public key, with self-signatures as the shape says.
    pub(in crate::verify) fn public(&self, shape: &Shape) -> String {
        let primary = &self.secret.primary_key;
        let subkey = &self.secret.secret_subkeys[0].key;
        let public = primary.public_key();
        let no_password = &Password::empty();

        let id = UserId::from_str(Default::default(), "Test <test@example.com>").unwrap();
        let certificate = config(primary, SignatureType::CertPositive, shape, shape.primary_flags.clone())
            .sign_certification(primary, public, no_password, Tag::UserId, &id)
            .unwrap();
        let users = if shape.has_user_id { vec![SignedUser::new(id, vec![certificate])] } else { Vec::new() };
        let revocation =
            || config(primary, SignatureType::KeyRevocation, shape, None).sign_key(primary, no_password, public);
        let revocations = if shape.is_revoked { vec![revocation().unwrap()] } else { Vec::new() };

        let mut binding = config(primary, SignatureType::SubkeyBinding, shape, shape.subkey_flags.clone());
        if shape.has_back_signature {
            let back_signature = config(subkey, SignatureType::KeyBinding, shape, None)
                .sign_primary_key_binding(subkey, subkey.public_key(), no_password, public)
                .unwrap();
            binding.hashed_subpackets.push(subpacket(SubpacketData::EmbeddedSignature(Box::new(back_signature))));
        }
        let bind = |config: SignatureConfig| -> Signature {
            config.sign_subkey_binding(primary, public, no_password, subkey.public_key()).unwrap()
        };
        let mut bindings = vec![bind(binding)];
        if shape.is_subkey_revoked {
            bindings.push(bind(config(primary, SignatureType::SubkeyRevocation, shape, None)));
        }
        SignedPublicKey::new(
            public.clone(),
            SignedKeyDetails::new(revocations, Vec::new(), users, Vec::new()),
            vec![SignedPublicSubKey::new(subkey.public_key().clone(), bindings)],
        )
        .to_armored_string(ArmorOptions::default())
        .unwrap()
    }

    /// The binary signature of the primary key over a document.
    pub(in crate::verify) fn sign(&self, document: &[u8]) -> Vec<u8> {
        self.sign_with(document, HashAlgorithm::Sha256)
    }

    pub(in crate::verify) fn sign_with(&self, document: &[u8], digest: HashAlgorithm) -> Vec<u8> {
        signature(&self.secret.primary_key, document, digest).to_bytes().unwrap()
    }

    pub(in crate::verify) fn sign_by_subkey(&self, document: &[u8]) -> Vec<u8> {
        signature(&self.secret.secret_subkeys[0].key, document, HashAlgorithm::Sha256).to_bytes().unwrap()
    }

    /// A correct signature by this key that names other keys as its issuers.
    pub(in crate::verify) fn sign_in_the_name_of(&self, document: &[u8], issuers: &[Self]) -> Vec<u8> {
        let issuers = issuers.iter().map(|key| key.secret.primary_key.fingerprint()).collect();
        signature_in_the_name_of(issuers, &self.secret.primary_key, document, HashAlgorithm::Sha256).to_bytes().unwrap()
    }

    pub(in crate::verify) fn sign_armored(&self, document: &[u8]) -> Vec<u8> {
        signature(&self.secret.primary_key, document, HashAlgorithm::Sha256)
            .to_armored_bytes(ArmorOptions::default())
            .unwrap()
    }

    pub(in crate::verify) fn sign_text(&self, document: &[u8]) -> Vec<u8> {
        let (rng, key, password) = (rand::thread_rng(), &self.secret.primary_key, &Password::empty());
        let signature = DetachedSignature::sign_text_data(rng, key, password, HashAlgorithm::Sha256, document);
        signature.unwrap().to_bytes().unwrap()
    }
}

pub(in crate::verify) fn flags(sign: bool) -> KeyFlags {
    let mut flags = KeyFlags::default();
    flags.set_certify(true);
    flags.set_sign(sign);
    flags
}

fn signature(key: &impl SigningKey, document: &[u8], digest: HashAlgorithm) -> DetachedSignature {
    signature_in_the_name_of(vec![key.fingerprint()], key, document, digest)
}

fn signature_in_the_name_of(
    issuers: Vec<Fingerprint>,
    key: &impl SigningKey,
    document: &[u8],
    digest: HashAlgorithm,
) -> DetachedSignature {
    let time = SubpacketData::SignatureCreationTime(Timestamp::from_secs(SIGNED_AT));
    let hashed = issuers.into_iter().map(SubpacketData::IssuerFingerprint).chain([time]).map(subpacket).collect();
    let subpackets = SubpacketConfig::UserDefined { hashed, unhashed: Vec::new() };
    let (rng, password) = (rand::thread_rng(), &Password::empty());
    DetachedSignature::sign_binary_data_with_subpackets(rng, key, password, digest, document, subpackets).unwrap()
}

fn config(
    signer: &impl SigningKey,
    signature_type: SignatureType,
    shape: &Shape,
    flags: Option<KeyFlags>,
) -> SignatureConfig {
    let mut config = SignatureConfig::v4(signature_type, signer.algorithm(), shape.self_digest);
    config.hashed_subpackets = vec![
        subpacket(SubpacketData::IssuerFingerprint(signer.fingerprint())),
        subpacket(SubpacketData::SignatureCreationTime(Timestamp::from_secs(KEY_CREATED))),
    ];
    config.hashed_subpackets.extend(flags.map(SubpacketData::KeyFlags).map(subpacket));
    let expiry = shape.expires_after.map(Duration::from_secs).map(SubpacketData::KeyExpirationTime);
    config.hashed_subpackets.extend(expiry.map(subpacket));
    config
}

fn subpacket(data: SubpacketData) -> Subpacket {
    Subpacket::regular(data).unwrap()
}
