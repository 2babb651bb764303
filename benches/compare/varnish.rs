//! Varnish with its defaults, which cache what the registry sends for a day: for documents without TLS, which it does not speak.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::bail;
use tempfile::TempDir;

use crate::compared_server::Addresses;
use crate::process::Running;
use crate::upstream::Upstream;

const START_TIMEOUT: Duration = Duration::from_secs(10);

/// A running varnish.
pub(crate) struct Varnish {
    _folder: TempDir,
    running: Running,
    pub(crate) addresses: Addresses,
}

impl Varnish {
    pub(crate) fn start(program: &Path, upstream: &Upstream) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("compare-varnish-").tempdir()?;
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let file = folder.path().join("registry.vcl");
        fs::write(&file, config(upstream.address()))?;
        let mut command = Command::new(program);
        command.arg("-F").arg("-n").arg(folder.path().join("work"));
        command.arg("-a").arg(address.to_string()).arg("-f").arg(&file);
        let running = Running::start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))?;
        let deadline = Instant::now() + START_TIMEOUT;
        while TcpStream::connect(address).is_err() {
            if Instant::now() > deadline {
                bail!("varnish does not listen");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // It has no TLS: both are the same, and the rows with TLS leave it out.
        Ok(Self { _folder: folder, running, addresses: Addresses { plain: address, tls: address } })
    }

    /// The manager and the child that serves.
    pub(crate) fn processes(&self) -> Vec<u32> {
        self.running.ids()
    }
}

fn config(upstream: SocketAddr) -> String {
    let (host, port) = (upstream.ip(), upstream.port());
    format!(
        "vcl 4.1;
backend default {{ .host = \"{host}\"; .port = \"{port}\"; }}
sub vcl_backend_response {{ set beresp.ttl = 1d; }}
sub vcl_deliver {{ if (obj.hits > 0) {{ set resp.http.X-Cache = \"HIT\"; }} }}
"
    )
}
