//! Verifies the detached OpenPGP signature of SHA256SUMS against the keys that a registry lists, at least as strictly
//! as the clients. `signing_key` decides which keys may sign.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::HashSet;

use pgp::crypto::hash::HashAlgorithm;
use pgp::packet::{
    Packet, PacketParser, Signature, SignatureType, SignatureVersion, SignatureVersionSpecific, SubpacketData,
};
use pgp::types::Timestamp;

use super::signing_key::{Component, ListedKey, pgp_error_text, read_keys};

/// The size limit of a signature file, in bytes.
pub const MAX_SIGNATURE_BYTES: usize = 64 << 10;

/// The size limit of one entry in a registry's list of keys, in bytes.
pub const MAX_KEY_BYTES: usize = 1 << 20;

/// The most keys that a registry may list.
pub const MAX_KEYS: usize = 64;

/// The most signatures in one file. Each may cost a public-key operation per key.
const MAX_SIGNATURES: usize = 16;

/// The most public-key operations for one verification, including the self-signatures of keys. A signature by the only
/// listed key takes about five.
const MAX_OPERATIONS: usize = 512;

/// The key that signed, and warnings about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signer {
    /// The fingerprint of the primary key, as upper-case hex.
    pub fingerprint: String,
    /// Accepted findings, such as an expired key.
    pub warnings: Vec<String>,
}

/// Why the document has no acceptable signature by a listed key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// The registry lists no key.
    #[error("the registry lists no signing key for SHA256SUMS")]
    NoKeys,
    /// The registry lists more than [`MAX_KEYS`] keys.
    #[error("the registry lists {actual} signing keys; at most {MAX_KEYS} are tried")]
    TooManyKeys {
        /// Actual count.
        actual: usize,
    },
    /// Verification would take more than `MAX_OPERATIONS` operations, which only a hostile list needs.
    #[error("the signing keys and signatures of SHA256SUMS take more than {MAX_OPERATIONS} public-key operations")]
    TooManyOperations,
    /// A listed key cannot be used, and no earlier key matched. The clients fail there too.
    #[error("signing key {number} of the registry's list cannot be used: it {reason}")]
    UnparsableKey {
        /// The position of the key in the list, from 1.
        number: usize,
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
    /// The signature uses a digest that can be forged.
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
    /// The key or subkey is not allowed to sign.
    #[error("SHA256SUMS is signed by key {fingerprint}, which {reason}")]
    CannotSign {
        /// The key or subkey, as upper-case hex.
        fingerprint: String,
        /// The reason.
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

/// Promise 1: finds the listed key that signed the document. Keys are tried in order, keys that issued none of the
/// signatures are skipped, and of several signatures one good one suffices.
pub fn verify_detached(document: &[u8], signature: &[u8], armored_keys: &[String]) -> Result<Signer, SignatureError> {
    match armored_keys.len() {
        0 => return Err(SignatureError::NoKeys),
        found if found > MAX_KEYS => return Err(SignatureError::TooManyKeys { actual: found }),
        _ => {}
    }
    let signatures = read_signatures(signature)?;
    let mut operations = Operations(0);
    // A key may be listed many times. One failed check of a signature rules out every copy of the key.
    let mut failed = HashSet::new();
    let mut refusal = None;
    for (number, entry) in (1..).zip(armored_keys) {
        let keys = read_keys(entry, number, MAX_KEY_BYTES).map_err(|error| refusal.take().unwrap_or(error))?;
        let indexed_signatures = || signatures.iter().enumerate();
        let pairs = keys.iter().flat_map(|key| indexed_signatures().map(move |indexed| (key, indexed)));
        for (key, (signature_index, signature)) in pairs {
            for component in key.components_named_by(&signature.packet) {
                if failed.contains(&(signature_index, component.fingerprint())) {
                    continue;
                }
                match signature.verify(document, key, component, &mut operations) {
                    Ok(signer) => return Ok(signer),
                    Err(SignatureError::TooManyOperations) => return Err(SignatureError::TooManyOperations),
                    Err(error) => {
                        if matches!(error, SignatureError::Mismatch { .. }) {
                            failed.insert((signature_index, component.fingerprint()));
                        }
                        refusal.get_or_insert(error);
                    }
                }
            }
        }
    }
    Err(refusal.unwrap_or_else(|| SignatureError::UnknownIssuer { issuer: issuers(&signatures) }))
}

/// The number of public-key operations that a verification has taken so far.
struct Operations(usize);

impl Operations {
    /// Counts operations. Fails above [`MAX_OPERATIONS`].
    fn add(&mut self, count: usize) -> Result<(), SignatureError> {
        self.0 = self.0.saturating_add(count);
        if self.0 > MAX_OPERATIONS { Err(SignatureError::TooManyOperations) } else { Ok(()) }
    }
}

/// One signature over the document, in a form that the clients accept.
struct DocumentSignature {
    packet: Signature,
    made_at: Timestamp,
    digest: HashAlgorithm,
    /// The hash that was signed, computed once for all keys.
    hash: OnceCell<Result<Vec<u8>, String>>,
}

impl DocumentSignature {
    fn from_packet(packet: Signature) -> Result<Self, String> {
        // The clients accept no version before 4.
        let (Some(config), SignatureVersion::V4 | SignatureVersion::V6) = (packet.config(), packet.version()) else {
            return Err(format!("is of version {}, not 4 or 6", u8::from(packet.version())));
        };
        if !matches!(config.typ(), SignatureType::Binary | SignatureType::Text) {
            return Err(format!(
                "is of type {:#04x}, not a signature of a document (0x00, 0x01)",
                u8::from(config.typ())
            ));
        }
        let has_unknown_critical = config.hashed_subpackets().any(|subpacket| {
            subpacket.is_critical
                && matches!(subpacket.data, SubpacketData::Other(..) | SubpacketData::Experimental(..))
        });
        if has_unknown_critical {
            return Err("has an unknown critical subpacket".to_owned());
        }
        if config.issuer_key_id().is_empty() && config.issuer_fingerprint().is_empty() {
            return Err("names no issuer".to_owned());
        }
        let made_at = config.created().ok_or("has no creation time")?;
        let digest = config.hash_alg;
        Ok(Self { packet, made_at, digest, hash: OnceCell::new() })
    }

    /// The hash that was signed (RFC 9580, section 5.2.4). It covers the salt of a version 6 signature, the document,
    /// and the hashed part of the signature packet.
    fn hash_of(&self, document: &[u8]) -> Result<&[u8], String> {
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
            let document = match config.typ() {
                SignatureType::Text => Cow::Owned(with_canonical_line_ends(document)),
                _ => Cow::Borrowed(document),
            };
            config.hash_data_to_sign(&mut hasher, &*document).map_err(unhashable)?;
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
    ) -> Result<Signer, SignatureError> {
        if let Some(algorithm) = weak_digest(self.digest) {
            return Err(SignatureError::WeakDigest { algorithm: algorithm.to_owned() });
        }
        operations.add(1)?;
        self.hash_of(document)
            .and_then(|hash| component.verify(&self.packet, hash))
            .map_err(|reason| SignatureError::Mismatch { fingerprint: component.fingerprint(), reason })?;
        operations.add(key.self_signature_count())?;
        let warnings = key.check_may_sign(component, self.made_at)?;
        Ok(Signer { fingerprint: key.fingerprint(), warnings })
    }
}

/// A text as its signature covers it: with CR LF at the end of each line (RFC 9580, section 5.2.1.2). A lone CR stays, as for the
/// clients.
fn with_canonical_line_ends(text: &[u8]) -> Vec<u8> {
    let mut canonical = Vec::with_capacity(text.len() + text.len() / 32);
    let mut follows_return = false;
    for &byte in text {
        if byte == b'\n' && !follows_return {
            canonical.push(b'\r');
        }
        canonical.push(byte);
        // Of two returns in a row the second one counts as no return.
        follows_return = byte == b'\r' && !follows_return;
    }
    canonical
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
            Ok(_) => Err("contains something other than a signature".to_owned()),
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

/// The name of a digest that is too weak for a document signature; `None` for any other digest.
fn weak_digest(algorithm: HashAlgorithm) -> Option<&'static str> {
    match algorithm {
        HashAlgorithm::Md5 => Some("MD5"),
        HashAlgorithm::Sha1 => Some("SHA-1"),
        HashAlgorithm::Ripemd160 => Some("RIPEMD-160"),
        _ => None,
    }
}

/// The issuers that the signatures name, for messages.
fn issuers(signatures: &[DocumentSignature]) -> String {
    let issuer_of = |signature: &DocumentSignature| match signature.packet.issuer_key_id().first() {
        Some(id) => Some(hex::encode_upper(id)),
        None => signature.packet.issuer_fingerprint().first().map(|found| hex::encode_upper(found.as_bytes())),
    };
    signatures.iter().filter_map(issuer_of).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
