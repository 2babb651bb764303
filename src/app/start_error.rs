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
    #[error("{section} listen = \"{address}\": {source}{}", to_do(.source))]
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

/// What helps where the system gives no socket.
fn to_do(source: &std::io::Error) -> &'static str {
    match source.kind() {
        std::io::ErrorKind::AddrInUse => {
            "; see what listens there (ss -ltnp), or choose other ports (larder serve --listen 127.0.0.1:9080 --admin-listen 127.0.0.1:9081)"
        }
        std::io::ErrorKind::PermissionDenied => "; choose a port from 1024 on, or let larder's user have this one",
        std::io::ErrorKind::AddrNotAvailable => "; choose an address that this machine has",
        _ => "",
    }
}
