//! Verifies the detached OpenPGP signature of SHA256SUMS against the keys that a registry lists, at least as strictly
//! as the clients. `signing_key` decides which keys may sign.

use std::cell::OnceCell;
use std::collections::HashSet;

use pgp::crypto::hash::HashAlgorithm;
use pgp::packet::{
    Packet, PacketParser, Signature, SignatureType, SignatureVersion, SignatureVersionSpecific, SubpacketData,
};
use pgp::types::Timestamp;

use super::signing_key::{Component, KeyUnfit, ListedKey, pgp_error_text, read_keys};

/// The largest signature file that is read.
pub const MAX_SIGNATURE_BYTES: usize = 64 << 10;

/// The largest entry of a registry's list of keys that is read.
pub const MAX_KEY_BYTES: usize = 1 << 20;

/// The longest list of keys that is tried.
pub const MAX_KEYS: usize = 64;

/// Each signature may cost a public-key operation per key.
const MAX_SIGNATURES: usize = 16;

/// The most public-key operations that one verdict takes, self-signatures of keys among them. A list of one key that signed
/// takes about five.
const MAX_OPERATIONS: usize = 512;

/// The signing key, and remarks about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signer {
    /// The fingerprint of the primary key, as upper-case hex.
    pub fingerprint: String,
    /// Accepted findings, such as an expired key.
    pub warnings: Vec<String>,
}

/// Why no listed key vouches for the document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// There is no key to try.
    #[error("the registry lists no signing key for SHA256SUMS")]
    NoKeys,
    /// More keys than are tried.
    #[error("the registry lists {actual} signing keys; at most {MAX_KEYS} are tried")]
    TooManyKeys {
        /// Actual count.
        actual: usize,
    },
    /// So many keys and signatures are an attempt to be expensive.
    #[error("the signing keys and signatures of SHA256SUMS take more than {MAX_OPERATIONS} public-key operations")]
    TooManyOperations,
    /// A key that stands before any match cannot be used; the clients fail there too.
    #[error("signing key {which} of the registry's list cannot be used: it {reason}")]
    UnparsableKey {
        /// Its place in the list, from 1.
        which: usize,
        /// The problem.
        reason: String,
    },
    /// The signature file itself is unusable.
    #[error("the signature of SHA256SUMS cannot be used: it {reason}")]
    UnparsableSignature {
        /// The problem.
        reason: String,
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
    #[error("SHA256SUMS is signed by key {fingerprint}, which {reason}")]
    CannotSign {
        /// The key or subkey, as upper-case hex.
        fingerprint: String,
        /// Why it may not.
        reason: String,
    },
    /// A listed key is named as the issuer, but the signature is not over these bytes.
    #[error("the signature by key {fingerprint} does not match SHA256SUMS ({reason})")]
    Mismatch {
        /// The key or subkey, as upper-case hex.
        fingerprint: String,
        /// The failure.
        reason: String,
    },
}

/// DESIGN, promise 1: finds the listed key that signed the document. Keys are tried in order, keys that issued none of
/// the signatures are skipped, and of several signatures one good one suffices.
pub fn verify_detached(document: &[u8], signature: &[u8], armored_keys: &[String]) -> Result<Signer, SignatureError> {
    match armored_keys.len() {
        0 => return Err(SignatureError::NoKeys),
        found if found > MAX_KEYS => return Err(SignatureError::TooManyKeys { actual: found }),
        _ => {}
    }
    let signatures = read_signatures(signature)?;
    let mut operations = Operations(0);
    // A key may be listed many times; one failed check rules out every copy.
    let mut failed = HashSet::new();
    let mut refusal = None;
    for (which, entry) in (1..).zip(armored_keys) {
        let keys = match read_keys(entry, MAX_KEY_BYTES) {
            Ok(keys) => keys,
            Err(reason) => return Err(refusal.unwrap_or(SignatureError::UnparsableKey { which, reason })),
        };
        let numbered = || signatures.iter().enumerate();
        for (key, (number, signature)) in keys.iter().flat_map(|key| numbered().map(move |numbered| (key, numbered))) {
            for component in key.components_named_by(&signature.packet) {
                if failed.contains(&(number, component.fingerprint())) {
                    continue;
                }
                match signature.verify(document, key, component, &mut operations) {
                    Ok(signer) => return Ok(signer),
                    Err(KeyRefusal::Final(SignatureError::TooManyOperations)) => {
                        return Err(SignatureError::TooManyOperations);
                    }
                    Err(error) => {
                        if matches!(error, KeyRefusal::Final(SignatureError::Mismatch { .. })) {
                            failed.insert((number, component.fingerprint()));
                        }
                        refusal.get_or_insert_with(|| error.in_entry(which));
                    }
                }
            }
        }
    }
    Err(refusal.unwrap_or_else(|| SignatureError::UnknownIssuer { issuer: issuers(&signatures) }))
}

/// The public-key operations that a verdict has taken.
struct Operations(usize);

impl Operations {
    fn take(&mut self, number: usize) -> Result<(), KeyRefusal> {
        self.0 = self.0.saturating_add(number);
        if self.0 > MAX_OPERATIONS { Err(KeyRefusal::Final(SignatureError::TooManyOperations)) } else { Ok(()) }
    }
}

/// One signature over a document, of a form the clients accept.
struct DocumentSignature {
    packet: Signature,
    made_at: Timestamp,
    digest: HashAlgorithm,
    /// Hash of the signed document, computed once for all keys.
    hash: OnceCell<Result<Vec<u8>, String>>,
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
        Ok(Self { packet, made_at, digest, hash: OnceCell::new() })
    }

    /// The digest that was signed (RFC 9580, 5.2.4): of the salt of a version 6 signature, the document, and the signed part
    /// of the signature.
    fn hash(&self, document: &[u8]) -> Result<&[u8], String> {
        let hash = self.hash.get_or_init(|| {
            let config = self.packet.config().ok_or("is of an unknown version")?;
            let unhashable = |error: pgp::errors::Error| pgp_error_text(&error);
            let mut hasher = config.hash_alg.new_hasher().map_err(|error| error.to_string())?;
            if let SignatureVersionSpecific::V6 { salt } = &config.version_specific {
                if config.hash_alg.salt_len() != Some(salt.len()) {
                    return Err("has a salt of the wrong length".to_owned());
                }
                hasher.update(salt);
            }
            config.hash_data_to_sign(&mut hasher, document).map_err(unhashable)?;
            let length = config.hash_signature_data(&mut hasher).map_err(unhashable)?;
            hasher.update(&config.trailer(length).map_err(unhashable)?);
            Ok(hasher.finalize().into_vec())
        });
        hash.as_deref().map_err(Clone::clone)
    }

    fn verify(
        &self,
        document: &[u8],
        key: &ListedKey,
        component: Component<'_>,
        operations: &mut Operations,
    ) -> Result<Signer, KeyRefusal> {
        if let Some(algorithm) = weak_digest(self.digest) {
            return Err(KeyRefusal::Final(SignatureError::WeakDigest { algorithm: algorithm.to_owned() }));
        }
        let fingerprint = || component.fingerprint();
        operations.take(1)?;
        self.hash(document)
            .and_then(|hash| component.verify(&self.packet, hash))
            .map_err(|reason| SignatureError::Mismatch { fingerprint: fingerprint(), reason })
            .map_err(KeyRefusal::Final)?;
        operations.take(key.self_signatures())?;
        match key.check_may_sign(component, self.made_at) {
            Ok(warnings) => Ok(Signer { fingerprint: key.fingerprint(), warnings }),
            Err(KeyUnfit::Revoked { fingerprint }) => Err(KeyRefusal::Final(SignatureError::Revoked { fingerprint })),
            Err(KeyUnfit::CannotSign { reason }) => {
                Err(KeyRefusal::Final(SignatureError::CannotSign { fingerprint: fingerprint(), reason }))
            }
            Err(KeyUnfit::NoUsableSelfSignature { reason }) => Err(KeyRefusal::Key { reason }),
        }
    }
}

/// A refusal that does not know the key's place in the list yet.
enum KeyRefusal {
    Final(SignatureError),
    Key { reason: String },
}

impl KeyRefusal {
    fn in_entry(self, which: usize) -> SignatureError {
        match self {
            Self::Final(error) => error,
            Self::Key { reason } => SignatureError::UnparsableKey { which, reason },
        }
    }
}

fn read_signatures(bytes: &[u8]) -> Result<Vec<DocumentSignature>, SignatureError> {
    let unparsable = |reason: String| SignatureError::UnparsableSignature { reason };
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
            Err(error) => Err(format!("is not an OpenPGP signature ({})", pgp_error_text(&error))),
        };
        match read {
            Ok(signature) => signatures.push(signature),
            Err(reason) => {
                refusal.get_or_insert(reason);
            }
        }
    }
    if signatures.is_empty() {
        return Err(unparsable(refusal.unwrap_or_else(|| "is empty or cut short".to_owned())));
    }
    Ok(signatures)
}

/// Names a digest that must not be used for a document signature.
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
        let fingerprints = signature
            .packet
            .issuer_fingerprint()
            .into_iter()
            .map(|fingerprint| hex::encode_upper(fingerprint.as_bytes()));
        named.extend(ids.chain(fingerprints).next());
    }
    named.join(", ")
}

#[cfg(test)]
mod tests;
