//! A throwaway certificate authority, so that the real client can use https to 127.0.0.1. It writes no files: a test
//! that needs one (`SSL_CERT_FILE`) writes the PEM text.

use std::sync::Arc;
use std::time::SystemTime;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// A certificate authority that lives as long as its last clone.
#[derive(Clone)]
pub(crate) struct TestCa {
    pem: String,
    issuer: Arc<Issuer<'static, KeyPair>>,
}

impl TestCa {
    /// A new authority with a new key.
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names to be wrong");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "larder test authority");
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key for the test authority");
        let certificate = params.self_signed(&key).expect("the authority signs itself");
        Self { pem: certificate.pem(), issuer: Arc::new(Issuer::new(params, key)) }
    }

    /// A certificate for these names that is its own authority, and its private key, both as PEM.
    pub(crate) fn self_signed(names: &[&str]) -> (String, String) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names a certificate can hold");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "larder test server");
        let key = KeyPair::generate().expect("a key for the test server");
        let certificate = params.self_signed(&key).expect("the server signs itself");
        (certificate.pem(), key.serialize_pem())
    }

    /// The authority's certificate, to be trusted by clients.
    pub(crate) fn pem(&self) -> String {
        self.pem.clone()
    }

    /// A server certificate for these names or addresses, and its private key, both as PEM.
    pub(crate) fn issue(&self, names: &[&str]) -> (String, String) {
        self.issue_until(names, None)
    }

    /// A server certificate for these names with this end of validity (default: far in the future), and its private
    /// key.
    pub(crate) fn issue_until(&self, names: &[&str], end: Option<SystemTime>) -> (String, String) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names a certificate can hold");
        params.distinguished_name.push(DnType::CommonName, "larder test server");
        if let Some(end) = end {
            params.not_after = end.into();
        }
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate().expect("a key for the test server");
        let certificate = params.signed_by(&key, &*self.issuer).expect("the test authority signs");
        (certificate.pem(), key.serialize_pem())
    }

    /// The TLS configuration of a listener for these names. ALPN offers HTTP/1.1, and HTTP/2 if `http2` is true.
    pub(crate) fn server_config(&self, names: &[&str], http2: bool) -> Arc<rustls::ServerConfig> {
        let (certificate, key) = self.issue(names);
        let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).expect("our own PEM");
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("our own PEM");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the default versions suit the default provider")
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .expect("certificate and key belong together");
        if http2 {
            config.alpn_protocols.push(b"h2".to_vec());
        }
        config.alpn_protocols.push(b"http/1.1".to_vec());
        Arc::new(config)
    }
}
