//! Why larder did not start.

use std::net::SocketAddr;

use crate::http::tls::TlsError;
use crate::store::StoreError;
use crate::upstream::clients::Unbuildable;

/// Why larder did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// It would hand out what its credentials open.
    #[error("{0}")]
    Refused(String),
    /// The store would not open.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The way out could not be built.
    #[error(transparent)]
    Outbound(#[from] Unbuildable),
    /// The certificate would not load.
    #[error("[server] tls: {0}")]
    Tls(#[from] TlsError),
    /// A socket would not open.
    #[error("{section} listen = \"{address}\": {source}")]
    Listen {
        /// Which listener.
        section: &'static str,
        /// Where.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The system gave no random bytes.
    #[error("the system gives no random bytes")]
    Random,
}
