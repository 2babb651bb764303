//! Proof: what makes bytes from an upstream trustworthy, and the marker that lets them into the store. Fetching, keeping
//! and answering are left to others; nothing here touches the network or the disk.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

pub mod checksums;
pub mod package;
pub mod signature;
mod signing_key;
#[cfg(test)]
mod test_keys;

pub use checksums::{BadChecksums, Checksums, platform_of};
pub use package::{BadPackage, PackageHashes, PackageLimits, package_hashes};
pub use signature::{SignatureError, Signer, verify_detached};

/// Verification level of an upstream (`verification` in the configuration).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VerificationPolicy {
    /// A listed key signs SHA256SUMS.
    Signature,
    /// As `signature` where the registry lists keys; checksums suffice where it lists none.
    SignatureIfKeys,
    /// Checksums must agree; signatures and keys are ignored.
    Checksum,
}

impl VerificationPolicy {
    /// Returns true if an earlier proof meets the policy, which may be stricter now.
    pub fn is_met_by(self, how: &ProofBasis) -> bool {
        match self {
            // Its operator vouched for it, whatever is asked of upstreams.
            _ if *how == ProofBasis::Imported => true,
            Self::Checksum => !matches!(how, ProofBasis::Tree(_)),
            Self::SignatureIfKeys => matches!(how, ProofBasis::Signature { .. } | ProofBasis::NoKeys),
            Self::Signature => matches!(how, ProofBasis::Signature { .. }),
        }
    }
}

impl fmt::Display for VerificationPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Signature => "signature",
            Self::SignatureIfKeys => "signature-if-keys",
            Self::Checksum => "checksum",
        })
    }
}

/// Proof of a proof set, stored with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// By what.
    pub how: ProofBasis,
    /// Accepted findings that an operator should know, such as an expired key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Basis of a proof.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProofBasis {
    /// A listed key signed SHA256SUMS.
    Signature {
        /// The fingerprint of the key, as upper-case hex; of its primary key where a subkey signed.
        fingerprint: String,
    },
    /// The registry lists no key, and the policy lets checksums suffice then.
    NoKeys,
    /// The policy asks for checksums only.
    Checksum,
    /// Imported without a signature; the operator vouches for it.
    Imported,
    /// It is packed by larder, of a tree that is the one which was seen first.
    Tree(PackedTree),
}

/// The source of an archive that larder packed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedTree {
    /// Digest of the tree, independent of the packer.
    pub tree: Digest,
    /// Which commit it is, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The version of the packer.
    pub packer: u32,
    /// The SHA-256 of the location that led there.
    pub source: Digest,
    /// Where in it the module is, `/` between names; none where it is the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subdir: Option<String>,
}

impl ProofBasis {
    /// The fingerprint of the key that vouches, if one does.
    pub fn fingerprint(&self) -> Option<&str> {
        match self {
            Self::Signature { fingerprint } => Some(fingerprint),
            Self::NoKeys | Self::Checksum | Self::Imported | Self::Tree(_) => None,
        }
    }

    /// The packed tree, if larder packed it.
    pub fn tree(&self) -> Option<&PackedTree> {
        match self {
            Self::Tree(packed) => Some(packed),
            Self::Signature { .. } | Self::NoKeys | Self::Checksum | Self::Imported => None,
        }
    }
}

/// Reasons for a failed verification.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VerificationError {
    /// The list of checksums is unusable.
    #[error(transparent)]
    Checksums(#[from] BadChecksums),
    /// The archive has no line in the list.
    #[error("SHA256SUMS has no SHA-256 for {filename:?}")]
    NotListed {
        /// The archive's file name.
        filename: String,
    },
    /// The list and the document name different digests.
    #[error("SHA256SUMS lists {filename:?} as {listed}, the download document as {stated}")]
    Contradiction {
        /// The archive's file name.
        filename: String,
        /// The digest in SHA256SUMS.
        listed: Digest,
        /// The `shasum` of the document.
        stated: Digest,
    },
    /// The signature is invalid.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// The bytes are others than were expected.
    #[error("the bytes have SHA-256 {actual}, expected was {expected}")]
    Bytes {
        /// The actual digest.
        actual: Digest,
        /// The expected digest.
        expected: Digest,
    },
}

impl VerificationError {
    /// Every word that there is for one.
    pub const WORDS: [&str; 6] = ["checksums", "not-listed", "contradiction", "no-keys", "signature", "archive"];

    /// One word for it, for metrics.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Checksums(_) => "checksums",
            Self::NotListed { .. } => "not-listed",
            Self::Contradiction { .. } => "contradiction",
            Self::Signature(SignatureError::NoKeys) => "no-keys",
            Self::Signature(_) => "signature",
            Self::Bytes { .. } => "archive",
        }
    }
}

/// DESIGN, promise 1: verifies a proof set. SHA256SUMS must list `filename` with exactly `shasum`, and one of `keys`,
/// the armoured keys that the registry lists, must have signed it if the policy requires that.
pub fn verify_proof_set(
    policy: VerificationPolicy,
    sums: &[u8],
    signature: &[u8],
    keys: &[String],
    filename: &str,
    shasum: &Digest,
) -> Result<(Proof, Checksums), VerificationError> {
    let checksums = Checksums::parse(sums)?;
    let listed =
        checksums.get(filename).ok_or_else(|| VerificationError::NotListed { filename: filename.to_owned() })?;
    if listed != *shasum {
        return Err(VerificationError::Contradiction { filename: filename.to_owned(), listed, stated: *shasum });
    }
    let proof = match policy {
        VerificationPolicy::Checksum => Proof { how: ProofBasis::Checksum, warnings: Vec::new() },
        VerificationPolicy::SignatureIfKeys if keys.is_empty() => {
            Proof { how: ProofBasis::NoKeys, warnings: Vec::new() }
        }
        VerificationPolicy::Signature | VerificationPolicy::SignatureIfKeys => {
            let Signer { fingerprint, warnings } = verify_detached(sums, signature, keys)?;
            Proof { how: ProofBasis::Signature { fingerprint }, warnings }
        }
    };
    Ok((proof, checksums))
}

/// A value whose bytes are what they were expected to be. It is made only here, and the store publishes nothing else.
#[derive(Debug)]
pub struct Verified<T> {
    value: T,
    digest: Digest,
}

impl<T> Verified<T> {
    /// Vouches for a value whose bytes hashed to `actual`, if that is what they should hash to.
    pub fn by_digest(value: T, actual: Digest, expected: Digest) -> Result<Self, VerificationError> {
        if actual != expected {
            return Err(VerificationError::Bytes { actual, expected });
        }
        Ok(Self { value, digest: actual })
    }

    /// The verified digest.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// A reference to the value.
    pub fn value(&self) -> &T {
        &self.value
    }

    /// The value itself; the proof ends here.
    pub fn into_inner(self) -> T {
        self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "terraform-provider-x_1.0.0_linux_amd64.zip";

    fn verified(
        policy: VerificationPolicy,
        sums: &str,
        keys: &[String],
    ) -> Result<(Proof, Checksums), VerificationError> {
        verify_proof_set(policy, sums.as_bytes(), b"no signature", keys, NAME, &Digest::of(b"zip"))
    }

    fn good_sums() -> String {
        format!("{}  other.zip\n{}  {NAME}\n", Digest::of(b"other"), Digest::of(b"zip"))
    }

    #[test]
    fn the_archive_must_be_listed_with_exactly_its_digest_under_every_policy() {
        for policy in [VerificationPolicy::Signature, VerificationPolicy::SignatureIfKeys, VerificationPolicy::Checksum]
        {
            let absent = verified(policy, &format!("{}  other.zip\n", Digest::of(b"zip")), &[]);
            assert!(matches!(absent, Err(VerificationError::NotListed { .. })), "{policy}");
            let differs = verified(policy, &format!("{}  {NAME}\n", Digest::of(b"zap")), &[]);
            assert!(matches!(differs, Err(VerificationError::Contradiction { .. })), "{policy}");
            let unreadable = verify_proof_set(policy, b"\xff", b"", &[], NAME, &Digest::of(b"zip"));
            assert!(matches!(unreadable, Err(VerificationError::Checksums(_))), "{policy}");
        }
    }

    #[test]
    fn without_keys_the_policy_decides() {
        let how = |policy| verified(policy, &good_sums(), &[]).map(|(proof, _)| proof.how);
        assert_eq!(how(VerificationPolicy::Signature), Err(VerificationError::Signature(SignatureError::NoKeys)));
        assert_eq!(how(VerificationPolicy::SignatureIfKeys), Ok(ProofBasis::NoKeys));
        assert_eq!(how(VerificationPolicy::Checksum), Ok(ProofBasis::Checksum));
    }

    #[test]
    fn listed_keys_make_a_signature_mandatory_unless_only_checksums_count() {
        let keys = ["a broken key is a key".to_owned()];
        for policy in [VerificationPolicy::Signature, VerificationPolicy::SignatureIfKeys] {
            assert!(matches!(verified(policy, &good_sums(), &keys), Err(VerificationError::Signature(_))), "{policy}");
        }
        let (proof, checksums) = verified(VerificationPolicy::Checksum, &good_sums(), &keys).unwrap();
        assert_eq!(proof.how, ProofBasis::Checksum);
        assert_eq!(checksums.get("other.zip"), Some(Digest::of(b"other")));
    }

    #[test]
    fn a_good_signature_by_a_listed_key_is_the_proof() {
        let key = test_keys::TestKey::new();
        let (sums, keys) = (good_sums(), [key.public(&test_keys::Shape::default())]);
        let signature = key.sign(sums.as_bytes());
        for policy in [VerificationPolicy::Signature, VerificationPolicy::SignatureIfKeys] {
            let verified = verify_proof_set(policy, sums.as_bytes(), &signature, &keys, NAME, &Digest::of(b"zip"));
            let (proof, checksums) = verified.unwrap();
            assert_eq!(proof.how, ProofBasis::Signature { fingerprint: key.fingerprint() });
            assert_eq!(checksums.iter().count(), 2);
        }
    }

    #[test]
    fn what_was_proven_meets_the_policy_that_it_was_proven_under_and_those_that_ask_for_less() {
        let signed = ProofBasis::Signature { fingerprint: "AB".into() };
        for (policy, met) in [
            (VerificationPolicy::Signature, [true, false, false]),
            (VerificationPolicy::SignatureIfKeys, [true, true, false]),
            (VerificationPolicy::Checksum, [true, true, true]),
        ] {
            assert_eq!(
                [&signed, &ProofBasis::NoKeys, &ProofBasis::Checksum].map(|how| policy.is_met_by(how)),
                met,
                "{policy}"
            );
            assert!(policy.is_met_by(&ProofBasis::Imported), "{policy}: what the operator vouched for");
        }
    }

    #[test]
    fn only_the_expected_bytes_become_verified() {
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        let verified = Verified::by_digest("staged", a, a).unwrap();
        assert_eq!((verified.digest(), verified.into_inner()), (a, "staged"));
        let refused = Verified::by_digest("staged", a, b).unwrap_err();
        assert_eq!(refused.to_string(), format!("the bytes have SHA-256 {a}, expected was {b}"));
    }

    #[test]
    fn policies_and_proofs_keep_their_spelling() {
        for policy in [VerificationPolicy::Signature, VerificationPolicy::SignatureIfKeys, VerificationPolicy::Checksum]
        {
            assert_eq!(serde_json::to_string(&policy).unwrap(), format!("\"{policy}\""));
        }
        let proof = Proof { how: ProofBasis::Signature { fingerprint: "AB".into() }, warnings: vec!["old".into()] };
        let json = serde_json::to_string(&proof).unwrap();
        assert_eq!(json, r#"{"how":{"signature":{"fingerprint":"AB"}},"warnings":["old"]}"#);
        assert_eq!(serde_json::from_str::<Proof>(&json).unwrap(), proof);
        let bare: Proof = serde_json::from_str(r#"{"how":"no-keys"}"#).unwrap();
        assert_eq!(bare, Proof { how: ProofBasis::NoKeys, warnings: Vec::new() });
    }
}
