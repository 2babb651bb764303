//! One certificate for all servers, and one cipher suite for all clients: the first choice of Go's clients.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::support::tls::TestCa;

/// The name of the cipher suite, for the report.
pub(crate) const SUITE: &str = "TLS 1.3, AES-128-GCM";

/// A certificate in files.
#[derive(Clone, Debug)]
pub(crate) struct Certificate {
    pub(crate) certificate_file: PathBuf,
    pub(crate) key_file: PathBuf,
    pub(crate) authority_file: PathBuf,
}

impl Certificate {
    /// A new one for loopback, in this folder.
    pub(crate) fn new(folder: &Path) -> anyhow::Result<Self> {
        let authority = TestCa::new();
        let (certificate, key) = authority.issue(&["127.0.0.1", "localhost"]);
        let files = ["certificate.pem", "key.pem", "authority.pem"].map(|name| folder.join(name));
        for (file, text) in files.iter().zip([certificate, key, authority.pem()]) {
            fs::write(file, text)?;
        }
        let [certificate_file, key_file, authority_file] = files;
        Ok(Self { certificate_file, key_file, authority_file })
    }

    /// The configuration of a client that offers this application protocol only.
    pub(crate) fn client_config(&self, protocol: &[u8]) -> anyhow::Result<Arc<ClientConfig>> {
        let mut provider = aws_lc_rs::default_provider();
        provider.cipher_suites = vec![aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256];
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&self.authority_file)?)?;
        let config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[&rustls::version::TLS13])?;
        let mut config = config.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols.push(protocol.to_vec());
        Ok(Arc::new(config))
    }
}

/// The TLS configuration of a server, from the files of a [`Certificate`].
pub(crate) fn server_config(certificate_file: &Path, key_file: &Path) -> anyhow::Result<Arc<ServerConfig>> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_file(certificate_file)?],
            PrivateKeyDer::from_pem_file(key_file)?,
        )?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
