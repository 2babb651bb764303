//! TLS between a command and an admin listener elsewhere, with a key that both make from the admin token. Only a listener
//! that knows the token can prove that key, so a command sends the token, and believes an answer, after the handshake
//! alone. A program between the two sees ciphertext.
//!
//! The key is a raw public key (RFC 7250) in TLS 1.3; there is no certificate. Whoever may connect can test guesses of the
//! token against it, as with any proof by a shared secret: a configured token must be random, as the one that larder makes is.

use std::sync::Arc;

use aws_lc_rs::hmac;
use aws_lc_rs::signature::Ed25519KeyPair;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs as provider, verify_tls13_signature_with_raw_key};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, PeerIncompatible, ServerConfig, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use secrecy::{ExposeSecret, SecretString};
use tokio_rustls::TlsConnector;

/// The first byte of a TLS connection: a handshake record (RFC 8446, section 5.1). No HTTP method begins with it.
pub(super) const TLS_RECORD: u8 = 0x16;

/// The purpose of the derived key. The same token makes other keys for other purposes.
const PURPOSE: &[u8] = b"larder admin listener, Ed25519, 1";

/// The side of the listener.
///
/// # Errors
/// The TLS library refuses the key.
pub fn server_config(token: &SecretString) -> Result<Arc<ServerConfig>, Error> {
    let (key, public) = key_of(token)?;
    let pair = CertifiedKey::new(vec![CertificateDer::from(public.to_vec())], key);
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider::default_provider()))
        .with_protocol_versions(&[&TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::new(pair))));
    // Each request has a connection of its own, and a command may be gone before it reads a ticket.
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// The side of the command: the handshake fails with a listener that does not know the token.
///
/// # Errors
/// The TLS library refuses the key.
pub(super) fn connector(token: &SecretString) -> Result<TlsConnector, Error> {
    let (_, public) = key_of(token)?;
    let provider = Arc::new(provider::default_provider());
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(OneKey { public, provider }))
        .with_no_client_auth();
    config.enable_sni = false;
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The name in the handshake, which nobody reads.
pub(super) fn server_name() -> ServerName<'static> {
    ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into())
}

/// The key that the token makes, and its public half.
fn key_of(token: &SecretString) -> Result<(Arc<dyn SigningKey>, SubjectPublicKeyInfoDer<'static>), Error> {
    let seed = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, token.expose_secret().as_bytes()), PURPOSE);
    let failed = || Error::General("the admin token makes no key".to_owned());
    let pair = Ed25519KeyPair::from_seed_unchecked(seed.as_ref()).map_err(|_| failed())?;
    let private = pair.to_pkcs8v1().map_err(|_| failed())?;
    let key = provider::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(private.as_ref()))?;
    let public = key.public_key().ok_or_else(failed)?.into_owned();
    Ok((key, public))
}

/// Accepts one public key and nothing else.
#[derive(Debug)]
struct OneKey {
    public: SubjectPublicKeyInfoDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for OneKey {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match end_entity.as_ref() == self.public.as_ref() {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(CertificateError::UnknownIssuer.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(cert.as_ref());
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &key, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio_rustls::TlsAcceptor;

    use super::*;

    fn token(text: &str) -> SecretString {
        SecretString::from(text)
    }

    /// Sends a text from the command to the listener; returns what the listener reads.
    async fn exchange(listener: &str, command: &str) -> Result<String, std::io::Error> {
        let (near, far) = duplex(1 << 16);
        let accepting = TlsAcceptor::from(server_config(&token(listener)).unwrap());
        let reading = tokio::spawn(async move {
            let mut text = String::new();
            accepting.accept(far).await?.read_to_string(&mut text).await?;
            Ok(text)
        });
        let connected = connector(&token(command)).unwrap().connect(server_name(), near).await;
        if let Ok(mut connection) = connected {
            connection.write_all(b"token").await?;
            connection.shutdown().await?;
        }
        reading.await.unwrap()
    }

    #[tokio::test]
    async fn a_command_sends_only_to_a_listener_with_the_same_token() {
        assert_eq!(exchange("a token", "a token").await.unwrap(), "token");
        assert!(exchange("a token", "another").await.is_err());
    }

    #[test]
    fn the_key_of_a_token_stays_the_same() {
        let (first, second) = (key_of(&token("t")).unwrap().1, key_of(&token("t")).unwrap().1);
        assert_eq!(first.as_ref(), second.as_ref());
        assert_ne!(first.as_ref(), key_of(&token("u")).unwrap().1.as_ref());
    }
}
