//! Verification of bytes from an upstream: checksums, signatures and package hashes, and the type [`Verified`] that the
//! store requires. This module uses neither the network nor the disk.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::labels::labelled_enum;

pub mod checksums;
pub mod jwt;
pub mod package;
pub mod signature;
mod signing_key;

pub use checksums::{BadChecksums, Checksums, digests_to_lock, platform_of};
pub use package::{BadPackage, PackageFiles, PackageHashes, PackageLimits, package_hashes, unpack_package};
pub use signature::{SignatureError, Signer, verify_detached};

labelled_enum! {
    /// The verification that an upstream's packages must pass (`verification` in the configuration).
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub VerificationPolicy {
        /// A key that the registry lists must have signed SHA256SUMS.
        Signature "signature",
        /// As `Signature` if the registry lists keys. If the registry lists no key, checksums suffice.
        SignatureIfKeys "signature-if-keys",
        /// Checksums must agree; signatures and keys are ignored.
        Checksum "checksum",
    }
}

impl VerificationPolicy {
    /// Returns true if an earlier proof meets the policy, which may be stricter now.
    pub fn is_met_by(self, basis: &ProofBasis) -> bool {
        match self {
            // The operator vouched for an import, whatever the policy requires of upstreams.
            _ if *basis == ProofBasis::Imported => true,
            Self::Checksum => !matches!(basis, ProofBasis::Tree(_)),
            Self::SignatureIfKeys => matches!(basis, ProofBasis::Signature { .. } | ProofBasis::NoKeys),
            Self::Signature => matches!(basis, ProofBasis::Signature { .. }),
        }
    }
}

impl fmt::Display for VerificationPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.label())
    }
}

/// The result of verifying a package, stored with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// The basis of the proof.
    pub how: ProofBasis,
    /// Findings that did not prevent the proof but that an operator should know, such as an expired key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// The basis of a proof.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProofBasis {
    /// A listed key signed SHA256SUMS.
    Signature {
        /// The fingerprint of the primary key, as upper-case hex, even if a subkey signed.
        fingerprint: String,
    },
    /// The checksums matched. The registry lists no key, and the policy allows that.
    NoKeys,
    /// The checksums matched. The policy requires nothing else.
    Checksum,
    /// The package was imported without a signature; the operator vouches for it.
    Imported,
    /// Larder packed the archive from a tree that matches the version's first-seen record.
    Tree(PackedTree),
}

/// The source of an archive that larder packed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedTree {
    /// Digest of the tree, independent of the packer.
    #[serde(rename = "tree")]
    pub tree_digest: Digest,
    /// The git commit; `None` if the source was not git.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The version of the packer.
    pub packer: u32,
    /// The SHA-256 of the location from which the tree was fetched.
    pub source: Digest,
    /// The module's folder in the tree, `/` between names; `None` for the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subdir: Option<String>,
}

impl ProofBasis {
    /// The fingerprint of the key that signed; `None` for any other basis.
    pub fn fingerprint(&self) -> Option<&str> {
        match self {
            Self::Signature { fingerprint } => Some(fingerprint),
            Self::NoKeys | Self::Checksum | Self::Imported | Self::Tree(_) => None,
        }
    }

    /// The packed tree; `None` if larder did not pack the archive.
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
    /// SHA256SUMS cannot be used.
    #[error(transparent)]
    Checksums(#[from] BadChecksums),
    /// SHA256SUMS has no line for the archive.
    #[error("SHA256SUMS has no SHA-256 for {filename:?}")]
    NotListed {
        /// The archive's file name.
        filename: String,
    },
    /// SHA256SUMS and the download document state different digests.
    #[error("the registry lists {} for {filename:?}, SHA256SUMS says {}", stated.in_brief(), listed.in_brief())]
    Contradiction {
        /// The archive's file name.
        filename: String,
        /// The digest in SHA256SUMS.
        listed: Digest,
        /// The `shasum` of the download document.
        stated: Digest,
    },
    /// The signature is invalid.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// The bytes have another digest than expected.
    #[error("expected SHA-256 {expected}, got {actual}")]
    Bytes {
        /// The actual digest.
        actual: Digest,
        /// The expected digest.
        expected: Digest,
    },
}

impl VerificationError {
    /// All values of [`VerificationError::metric_label`].
    pub const METRIC_LABELS: [&str; 6] =
        ["checksums", "not-listed", "contradiction", "no-keys", "signature", "archive"];

    /// The label of this error in metrics.
    pub fn metric_label(&self) -> &'static str {
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

/// Verifies a proof set (promise 1). SHA256SUMS must list `filename` with the digest `shasum`. If the policy requires a
/// signature, one of `keys` (the armoured keys that the registry lists) must have signed SHA256SUMS.
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
    let (how, warnings) = match policy {
        VerificationPolicy::Checksum => (ProofBasis::Checksum, Vec::new()),
        VerificationPolicy::SignatureIfKeys if keys.is_empty() => (ProofBasis::NoKeys, Vec::new()),
        VerificationPolicy::Signature | VerificationPolicy::SignatureIfKeys => {
            let Signer { fingerprint, warnings } = verify_detached(sums, signature, keys)?;
            (ProofBasis::Signature { fingerprint }, warnings)
        }
    };
    Ok((Proof { how, warnings }, checksums))
}

/// A value whose bytes have the expected digest. Only this module can create one, and the store publishes nothing else.
#[derive(Debug)]
pub struct Verified<T: ?Sized> {
    digest: Digest,
    value: T,
}

impl<T> Verified<T> {
    /// Marks a value as verified if the digest of its bytes, `actual`, is the expected one.
    pub fn by_digest(value: T, actual: Digest, expected: Digest) -> Result<Self, VerificationError> {
        if actual != expected {
            return Err(VerificationError::Bytes { actual, expected });
        }
        Ok(Self { value, digest: actual })
    }

    /// The value without the mark.
    pub fn into_inner(self) -> T {
        self.value
    }
}

impl<T: ?Sized> Verified<T> {
    /// The verified digest.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// A reference to the value.
    pub fn value(&self) -> &T {
        &self.value
    }
}

#[cfg(test)]
mod tests {
    pub(super) mod keys;

    use super::*;

    const NAME: &str = "terraform-provider-x_1.0.0_linux_amd64.zip";

    fn verify(
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
            let absent = verify(policy, &format!("{}  other.zip\n", Digest::of(b"zip")), &[]);
            assert!(matches!(absent, Err(VerificationError::NotListed { .. })), "{policy}");
            let differs = verify(policy, &format!("{}  {NAME}\n", Digest::of(b"zap")), &[]);
            assert!(matches!(differs, Err(VerificationError::Contradiction { .. })), "{policy}");
            let huge = vec![b' '; checksums::MAX_BYTES + 1];
            let unreadable = verify_proof_set(policy, &huge, b"", &[], NAME, &Digest::of(b"zip"));
            assert!(matches!(unreadable, Err(VerificationError::Checksums(_))), "{policy}");
        }
    }

    #[test]
    fn without_listed_keys_the_policy_decides() {
        let how = |policy| verify(policy, &good_sums(), &[]).map(|(proof, _)| proof.how);
        assert_eq!(how(VerificationPolicy::Signature), Err(VerificationError::Signature(SignatureError::NoKeys)));
        assert_eq!(how(VerificationPolicy::SignatureIfKeys), Ok(ProofBasis::NoKeys));
        assert_eq!(how(VerificationPolicy::Checksum), Ok(ProofBasis::Checksum));
    }

    #[test]
    fn listed_keys_require_a_signature_unless_the_policy_is_checksum() {
        let keys = ["a broken key is a key".to_owned()];
        for policy in [VerificationPolicy::Signature, VerificationPolicy::SignatureIfKeys] {
            assert!(matches!(verify(policy, &good_sums(), &keys), Err(VerificationError::Signature(_))), "{policy}");
        }
        let (proof, checksums) = verify(VerificationPolicy::Checksum, &good_sums(), &keys).unwrap();
        assert_eq!(proof.how, ProofBasis::Checksum);
        assert_eq!(checksums.get("other.zip"), Some(Digest::of(b"other")));
    }

    #[test]
    fn a_signature_by_a_listed_key_is_accepted_as_proof() {
        let key = keys::TestKey::new();
        let (sums, keys) = (good_sums(), [key.public(&keys::Shape::default())]);
        let signature = key.sign(sums.as_bytes());
        for policy in [VerificationPolicy::Signature, VerificationPolicy::SignatureIfKeys] {
            let verified = verify_proof_set(policy, sums.as_bytes(), &signature, &keys, NAME, &Digest::of(b"zip"));
            let (proof, checksums) = verified.unwrap();
            assert_eq!(proof.how, ProofBasis::Signature { fingerprint: key.fingerprint() });
            assert_eq!(checksums.iter().count(), 2);
        }
    }

    #[test]
    fn a_proof_meets_its_own_policy_and_weaker_ones() {
        let signed = ProofBasis::Signature { fingerprint: "AB".into() };
        for (policy, met) in [
            (VerificationPolicy::Signature, [true, false, false]),
            (VerificationPolicy::SignatureIfKeys, [true, true, false]),
            (VerificationPolicy::Checksum, [true, true, true]),
        ] {
            assert_eq!(
                [&signed, &ProofBasis::NoKeys, &ProofBasis::Checksum].map(|basis| policy.is_met_by(basis)),
                met,
                "{policy}"
            );
            assert!(policy.is_met_by(&ProofBasis::Imported), "{policy}: imported");
        }
    }

    #[test]
    fn only_the_expected_bytes_become_verified() {
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        let verified = Verified::by_digest("staged", a, a).unwrap();
        assert_eq!((verified.digest(), verified.into_inner()), (a, "staged"));
        let refused = Verified::by_digest("staged", a, b).unwrap_err();
        assert_eq!(refused.to_string(), format!("expected SHA-256 {b}, got {a}"));
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
