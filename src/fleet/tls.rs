//! TLS to the database. Its certificate and its name are always verified, whatever the URL asks for.

use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::ServerName;
use rustls_platform_verifier::Verifier;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::upstream::clients::{ConnectorError, read_authorities};

/// Makes the TLS connections to a database.
#[derive(Clone)]
pub(super) struct DatabaseTls(TlsConnector);

impl DatabaseTls {
    /// Trusts the authorities of a file only, or those of the system.
    ///
    /// # Errors
    /// The file has no certificates, or those of the system cannot be read.
    pub(super) fn trusting(authorities: Option<&Path>) -> Result<Self, ConnectorError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder =
            ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
        let builder = builder.dangerous();
        let config = match authorities {
            None => builder.with_custom_certificate_verifier(Arc::new(Verifier::new(provider)?)),
            Some(path) => {
                let mut trusted = RootCertStore::empty();
                trusted.add_parsable_certificates(read_authorities("[fleet] database_ca", path)?);
                let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(trusted), provider).build();
                let verifier = verifier.map_err(|e| rustls::Error::General(e.to_string()))?;
                builder.with_custom_certificate_verifier(verifier)
            }
        };
        Ok(Self(TlsConnector::from(Arc::new(config.with_no_client_auth()))))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for DatabaseTls {
    type Stream = DatabaseStream<S>;
    type TlsConnect = Handshake;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<Handshake> {
        let name = ServerName::try_from(host.to_owned()).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        Ok(Handshake { connector: self.0.clone(), name })
    }
}

/// One TLS handshake, with the name that the certificate must have.
pub(super) struct Handshake {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Handshake {
    type Stream = DatabaseStream<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<DatabaseStream<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move { self.connector.connect(self.name, stream).await.map(DatabaseStream) })
    }
}

/// A TLS connection to the database.
pub(super) struct DatabaseStream<S>(TlsStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> tokio_postgres::tls::TlsStream for DatabaseStream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        // The certificate is verified; the password is never sent in the clear.
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for DatabaseStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for DatabaseStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
