//! Issuers of tokens: the keys that a CI system publishes, and the tokens that it signs for its jobs.

use aws_lc_rs::encoding::{AsDer as _, Pkcs8V1Der};
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::{EcdsaKeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use larder::clock::Timestamp;
use serde_json::Value;

/// An issuer of tokens with one key.
pub(crate) struct Issuer {
    algorithm: Algorithm,
    pub(crate) key: EncodingKey,
    id: String,
    /// The public key, as a JSON Web Key.
    public: Value,
}

impl Issuer {
    /// One with a new ECDSA key of this name.
    pub(crate) fn new(id: &str) -> Self {
        let random = aws_lc_rs::rand::SystemRandom::new();
        let signing = &aws_lc_rs::signature::ECDSA_P256_SHA256_FIXED_SIGNING;
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(signing, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(signing, pkcs8.as_ref()).unwrap();
        let point = pair.public_key().as_ref();
        let [x, y] = [&point[1..33], &point[33..]].map(|part| URL_SAFE_NO_PAD.encode(part));
        let public =
            serde_json::json!({ "kty": "EC", "crv": "P-256", "x": x, "y": y, "kid": id, "use": "sig", "alg": "ES256" });
        Self { algorithm: Algorithm::ES256, key: EncodingKey::from_ec_der(pkcs8.as_ref()), id: id.to_owned(), public }
    }

    /// An issuer that signs by RSA, as most do.
    pub(crate) fn rsa(id: &str) -> Self {
        /// The bytes around the RSAPrivateKey in a PKCS #8 key, and around the modulus in an RSAPublicKey, of 2048 bits.
        const PRIVATE: usize = 26;
        const MODULUS: std::ops::Range<usize> = 9..265;
        let pair = KeyPair::generate(KeySize::Rsa2048).unwrap();
        let pkcs8: Pkcs8V1Der<'_> = pair.as_der().unwrap();
        let modulus = URL_SAFE_NO_PAD.encode(&pair.public_key().as_ref()[MODULUS]);
        let public = serde_json::json!({
            "kty": "RSA", "n": modulus, "e": "AQAB", "kid": id, "use": "sig", "alg": "RS256", "x5c": ["MIIB"], "x5t": "AAAA",
        });
        let key = EncodingKey::from_rsa_der(&pkcs8.as_ref()[PRIVATE..]);
        Self { algorithm: Algorithm::RS256, key, id: id.to_owned(), public }
    }

    /// The set of keys, as the issuer publishes it.
    pub(crate) fn keys(&self) -> String {
        Self::keys_of(&[self])
    }

    /// The set of the keys of several, between keys that are of no use here.
    pub(crate) fn keys_of(issuers: &[&Self]) -> String {
        let mut keys = vec![serde_json::json!({ "kty": "of tomorrow", "kid": "x", "alg": "y" })];
        keys.extend(issuers.iter().map(|issuer| issuer.public.clone()));
        keys.push(serde_json::json!({ "kty": "oct", "k": "c2VjcmV0", "kid": "one" }));
        serde_json::json!({ "keys": keys }).to_string()
    }

    /// A token with these claims.
    pub(crate) fn token(&self, claims: &Value) -> String {
        let header = Header { kid: Some(self.id.clone()), ..Header::new(self.algorithm) };
        encode(&header, claims, &self.key).unwrap()
    }
}

/// The claims of a job of acme/app at a time, by an issuer.
pub(crate) fn job_claims(issuer: &str, now: Timestamp) -> Value {
    serde_json::json!({
        "iss": issuer, "aud": "larder", "sub": "repo:acme/app:ref:refs/heads/main", "repository": "acme/app",
        "iat": now.0, "nbf": now.0, "exp": now.0 + 300, "jti": "job-1",
    })
}
