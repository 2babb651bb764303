//! Tokens of CI systems: JSON Web Tokens (RFC 7519) that an issuer signed, checked with its keys (RFC 7517). Only signatures by
//! public keys count: never `none`, never a shared secret.

use std::collections::BTreeMap;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, Validation, decode, decode_header};
use serde::Deserialize;
use serde_json::Value;

use crate::clock::Timestamp;
use crate::digest::Digest;

/// The most keys of an issuer.
const MAX_KEYS: usize = 64;
/// The longest token, in bytes.
const MAX_TOKEN_BYTES: usize = 16 << 10;
/// The most characters of a key's name that are shown: nobody has proven it.
const MAX_KEY_NAME_CHARS: usize = 64;
/// The shortest modulus of an RSA key, in characters of Base64: 2048 bits.
const MIN_MODULUS_CHARS: usize = 342;
/// Seconds by which the clocks of larder and of the issuer may differ.
const CLOCK_SKEW: u64 = 60;

/// The public keys of an issuer.
#[derive(Clone)]
pub struct IssuerKeys {
    id: Digest,
    keys: Vec<(Option<String>, AlgorithmFamily, DecodingKey)>,
}

/// Why a token does not count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadJwt {
    /// It is no JWT, or a claim that decides has another form.
    #[error("it is not a JSON Web Token, or a claim of it has another form")]
    Malformed,
    /// Its signature is by a method that is not taken.
    #[error("it is signed by a method that is not taken here: only signatures by RSA, ECDSA and Ed25519 are")]
    Algorithm,
    /// The issuer has no such key.
    #[error("the issuer has no key {0}")]
    UnknownKey(String),
    /// It names no key, and the issuer has several.
    #[error("it names none of the issuer's keys")]
    NamesNoKey,
    /// No key of the issuer made the signature.
    #[error("no key of the issuer signed it")]
    Signature,
    /// A claim that every token has is missing.
    #[error("it has no claim {0}")]
    Lacks(String),
    /// It has expired.
    #[error("it expired at {}", .0.date_time())]
    Expired(Timestamp),
    /// It counts later.
    #[error("it counts from {} on", .0.date_time())]
    NotYet(Timestamp),
    /// It is for somebody else.
    #[error("it is not for the audience {0}")]
    Audience(String),
}

impl BadJwt {
    /// Returns true if another set of keys could have verified the token.
    pub fn may_be_of_another_key(&self) -> bool {
        matches!(self, Self::UnknownKey(_) | Self::NamesNoKey | Self::Signature)
    }
}

/// A token whose signature, issuer and time were checked.
#[derive(Debug, Clone)]
pub struct Jwt {
    /// The last moment at which it counts.
    pub expires: Timestamp,
    /// Its id (`jti`), where it has one.
    pub id: Option<String>,
    audiences: Vec<String>,
    claims: BTreeMap<String, Value>,
}

/// The claims that decide here.
#[derive(Debug, Deserialize)]
struct Claims {
    #[serde(default)]
    exp: f64,
    #[serde(default)]
    nbf: Option<f64>,
    #[serde(default)]
    jti: Option<Value>,
    #[serde(default)]
    aud: OneOrMany,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl Default for OneOrMany {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl std::fmt::Debug for IssuerKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.keys.iter().map(|(id, family, _)| (id, family))).finish()
    }
}

impl IssuerKeys {
    /// Reads a set of keys (RFC 7517, section 5). Keys of other kinds than those that count are left out.
    ///
    /// # Errors
    /// The problem.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let set: JwkSet =
            serde_json::from_slice(text).map_err(|bad| format!("it is not a set of JSON Web Keys: {bad}"))?;
        let usable = set.keys.iter().filter_map(|key| {
            let family = match &key.algorithm {
                AlgorithmParameters::RSA(rsa) if rsa.n.len() >= MIN_MODULUS_CHARS => AlgorithmFamily::Rsa,
                AlgorithmParameters::EllipticCurve(point)
                    if matches!(point.curve, EllipticCurve::P256 | EllipticCurve::P384) =>
                {
                    AlgorithmFamily::Ec
                }
                AlgorithmParameters::OctetKeyPair(pair) if matches!(pair.curve, EllipticCurve::Ed25519) => {
                    AlgorithmFamily::Ed
                }
                _ => return None,
            };
            let is_for_signatures = !matches!(key.common.public_key_use, Some(PublicKeyUse::Encryption));
            let decoding = DecodingKey::from_jwk(key).ok().filter(|_| is_for_signatures)?;
            Some((key.common.key_id.clone(), family, decoding))
        });
        let keys: Vec<_> = usable.take(MAX_KEYS + 1).collect();
        match keys.len() {
            0 => Err("it has no public key for signatures by RSA (2048 bits or more), ECDSA (P-256, P-384) or Ed25519"
                .to_owned()),
            1..=MAX_KEYS => Ok(Self { id: Digest::of(text), keys }),
            _ => Err(format!("it has more than {MAX_KEYS} keys")),
        }
    }

    /// The number of keys, without those that do not count.
    pub fn count(&self) -> usize {
        self.keys.len()
    }

    /// The digest of the set of keys, which differs from that of every other set.
    pub fn id(&self) -> &Digest {
        &self.id
    }
}

/// The issuer that a token names; nothing of it is proven.
pub fn claimed_issuer(token: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Issuer {
        iss: String,
    }
    if token.len() > MAX_TOKEN_BYTES || token.split('.').count() != 3 {
        return None;
    }
    jsonwebtoken::dangerous::insecure_decode_claims::<Issuer>(token).ok().map(|claims| claims.iss)
}

/// The time at which a token says that it was made (`iat`); nothing of it is proven.
pub fn made_at(token: &str) -> Option<Timestamp> {
    #[derive(Deserialize)]
    struct Made {
        iat: f64,
    }
    let made = jsonwebtoken::dangerous::insecure_decode_claims::<Made>(token).ok()?;
    Some(Timestamp(made.iat.max(0.0) as u64))
}

impl Jwt {
    /// Checks the signature, the issuer and the time of a token.
    ///
    /// # Errors
    /// [`BadJwt`].
    pub fn verified(token: &str, keys: &IssuerKeys, issuer: &str, now: Timestamp) -> Result<Self, BadJwt> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(BadJwt::Malformed);
        }
        let header = decode_header(token).map_err(|bad| match bad.kind() {
            // Of its members only the method is limited to known names.
            ErrorKind::Json(bad) if bad.is_data() => BadJwt::Algorithm,
            _ => BadJwt::Malformed,
        })?;
        // None of the extensions that a token can demand is known here (RFC 7515, section 4.1.11).
        if header.crit.is_some() {
            return Err(BadJwt::Malformed);
        }
        let family = family_of(header.alg).ok_or(BadJwt::Algorithm)?;
        let named = |id: &Option<String>| header.kid.is_none() || *id == header.kid;
        let mut candidates = keys.keys.iter().filter(|(id, of, _)| *of == family && named(id));
        match (candidates.clone().count(), &header.kid) {
            (0, kid) => {
                return Err(BadJwt::UnknownKey(kid.as_deref().map_or_else(|| "for its signature".to_owned(), shown)));
            }
            (2.., None) => return Err(BadJwt::NamesNoKey),
            _ => {}
        }
        let mut validation = Validation::new(header.alg);
        // Time is judged below, by the time of the request.
        (validation.validate_exp, validation.validate_aud) = (false, false);
        validation.set_required_spec_claims(&["exp", "iss"]);
        validation.set_issuer(&[issuer]);
        let read = candidates.find_map(|(_, _, key)| {
            decode::<Claims>(token, key, &validation).map(Some).or_else(|bad| judged(&bad)).transpose()
        });
        let Claims { exp, nbf, jti, aud, others } = read.unwrap_or(Err(BadJwt::Signature))?.claims;
        let at = |time: f64| Timestamp(time.max(0.0) as u64);
        let (expires, begins) = (at(exp), nbf.map(at));
        if now.0 > expires.0.saturating_add(CLOCK_SKEW) {
            return Err(BadJwt::Expired(expires));
        }
        if let Some(begins) = begins.filter(|begins| begins.0 > now.0.saturating_add(CLOCK_SKEW)) {
            return Err(BadJwt::NotYet(begins));
        }
        let audiences = match aud {
            OneOrMany::One(audience) => vec![audience],
            OneOrMany::Many(audiences) => audiences,
        };
        let expires = Timestamp(expires.0.saturating_add(CLOCK_SKEW));
        let id = jti.map(|id| id.as_str().map_or_else(|| id.to_string(), str::to_owned));
        Ok(Self { expires, id, audiences, claims: others })
    }

    /// Returns true if the token is for an audience.
    pub fn is_for(&self, audience: &str) -> bool {
        self.audiences.iter().any(|of_token| of_token == audience)
    }

    /// Returns true if a claim is a text, a number or a truth value that is accepted, or a list with one.
    pub fn has_claim(&self, name: &str, accepts: impl Fn(&str) -> bool) -> bool {
        let is_accepted = |value: &Value| match value {
            Value::String(text) => accepts(text),
            Value::Number(_) | Value::Bool(_) => accepts(&value.to_string()),
            Value::Null | Value::Array(_) | Value::Object(_) => false,
        };
        match self.claims.get(name) {
            Some(Value::Array(values)) => values.iter().any(is_accepted),
            Some(value) => is_accepted(value),
            None => false,
        }
    }
}

/// A key's name for messages.
fn shown(kid: &str) -> String {
    kid.chars().filter(char::is_ascii_graphic).take(MAX_KEY_NAME_CHARS).collect()
}

/// Reads an error as a verdict about the token; `None` where another key may have signed it.
fn judged<T>(bad: &jsonwebtoken::errors::Error) -> Result<Option<T>, BadJwt> {
    match bad.kind() {
        ErrorKind::MissingRequiredClaim(claim) => Err(BadJwt::Lacks(claim.clone())),
        ErrorKind::Json(_) | ErrorKind::Utf8(_) | ErrorKind::Base64(_) => Err(BadJwt::Malformed),
        _ => Ok(None),
    }
}

/// The family of a method that is taken.
fn family_of(algorithm: Algorithm) -> Option<AlgorithmFamily> {
    use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
    match algorithm {
        RS256 | RS384 | RS512 | PS256 | PS384 | PS512 => Some(AlgorithmFamily::Rsa),
        ES256 | ES384 => Some(AlgorithmFamily::Ec),
        EdDSA => Some(AlgorithmFamily::Ed),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEYS: &str = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

    #[test]
    fn only_public_keys_for_signatures_are_keys() {
        assert_eq!(IssuerKeys::parse(KEYS.as_bytes()).unwrap().keys.len(), 1);
        for (set, problem) in [
            ("{}", "not a set"),
            (r#"{"keys":[]}"#, "no public key"),
            (r#"{"keys":[{"kty":"oct","k":"c2VjcmV0"}]}"#, "no public key"),
            (&KEYS.replace("\"kty\"", "\"use\":\"enc\",\"kty\""), "no public key"),
            (r#"{"keys":[{"kty":"EC","crv":"P-521","x":"AAAA","y":"AAAA"}]}"#, "no public key"),
            (r#"{"keys":[{"kty":"RSA","n":"AAAA","e":"AQAB"}]}"#, "2048 bits"),
            (&format!("{{\"keys\":[{}]}}", [&KEYS[9..KEYS.len() - 2]; 65].join(",")), "more than 64"),
        ] {
            assert!(IssuerKeys::parse(set.as_bytes()).unwrap_err().contains(problem), "{set}");
        }
    }

    proptest! {
        #[test]
        fn foreign_text_is_no_token_and_makes_nothing_panic(
            text in "\\PC{0,80}|([A-Za-z0-9_-]{0,40}\\.){2}[A-Za-z0-9_-]{0,40}",
            header in "\\{\"alg\":\"(EdDSA|none|HS256|RS256|x)\"(,\"kid\":\"[a-z]{0,3}\")?\\}",
            body in "\\{(\"iss\":\"x\",)?\"exp\":(1e400|-1|9|null|\"9\"),\"aud\":(\"a\"|\\[\\]|3)\\}",
        ) {
            use base64::Engine as _;
            let keys = IssuerKeys::parse(KEYS.as_bytes()).unwrap();
            let part = |text: &str| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text);
            for token in [text.clone(), format!("{}.{}.AAAA", part(&header), part(&body))] {
                let _ = claimed_issuer(&token);
                prop_assert!(Jwt::verified(&token, &keys, "x", Timestamp(1)).is_err());
            }
            let _ = IssuerKeys::parse(text.as_bytes());
        }
    }
}
