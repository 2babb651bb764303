//! Errors that prevent a start.

use std::net::SocketAddr;

use crate::http::tls::TlsError;
use crate::store::StoreError;
use crate::upstream::clients::ConnectorError;

/// The reason why larder did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration would serve credentialed upstreams to unknown clients (DESIGN, promise 8).
    #[error("{0}")]
    Refused(String),
    /// The store could not be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The outbound connector could not be built.
    #[error(transparent)]
    Outbound(#[from] ConnectorError),
    /// The certificate could not be loaded.
    #[error("[server] tls: {0}")]
    Tls(#[from] TlsError),
    /// A socket could not be bound.
    #[error("{section} listen = \"{address}\": {source}{}", advice(.source))]
    Listen {
        /// Section of the listener, such as `[server]`.
        section: &'static str,
        /// Configured address.
        address: SocketAddr,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The system returned no random bytes.
    #[error("the system returned no random bytes")]
    Random,
}

/// Advice for a socket that could not be bound.
fn advice(source: &std::io::Error) -> &'static str {
    match source.kind() {
        std::io::ErrorKind::AddrInUse => {
            "; see what listens there (ss -ltnp), or choose other ports (larder serve --listen 127.0.0.1:9080 --admin-listen 127.0.0.1:9081)"
        }
        std::io::ErrorKind::PermissionDenied => "; choose a port from 1024 on, or allow larder's user to bind this one",
        std::io::ErrorKind::AddrNotAvailable => "; choose an address that this machine has",
        _ => "",
    }
}
