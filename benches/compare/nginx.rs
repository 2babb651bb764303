//! nginx with `proxy_cache` and its manual's advice for speed, with its own configuration and cache folder.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tempfile::TempDir;

use crate::compared_server::Addresses;
use crate::larder::Log;
use crate::process::Running;
use crate::tls::Certificate;
use crate::upstream::Upstream;

const START_TIMEOUT: Duration = Duration::from_secs(10);

/// A running nginx.
pub(crate) struct Nginx {
    folder: TempDir,
    running: Running,
    pub(crate) addresses: Addresses,
}

impl Nginx {
    pub(crate) fn start(
        program: &Path,
        upstream: &Upstream,
        certificate: &Certificate,
        log: Log,
    ) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("compare-nginx-").tempdir()?;
        let [plain, tls] = free_ports()?;
        let addresses = Addresses { plain, tls };
        let file = folder.path().join("nginx.conf");
        fs::write(&file, config(folder.path(), addresses, upstream.address(), certificate, log))?;
        let mut command = Command::new(program);
        command.arg("-p").arg(folder.path()).arg("-c").arg(&file).arg("-e").arg(folder.path().join("error.log"));
        let running = Running::start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))?;
        let nginx = Self { folder, running, addresses };
        nginx
            .wait_until_listening()
            .with_context(|| fs::read_to_string(nginx.folder.path().join("error.log")).unwrap_or_default())?;
        Ok(nginx)
    }

    /// Waits until nginx listens and its workers run.
    fn wait_until_listening(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        while Instant::now() < deadline {
            if TcpStream::connect(self.addresses.plain).is_ok() && self.running.ids().len() > 1 {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("nginx does not listen")
    }

    /// The master and all workers.
    pub(crate) fn processes(&self) -> Vec<u32> {
        self.running.ids()
    }
}

/// Ports that were free a moment ago: nginx cannot listen on port 0.
fn free_ports() -> anyhow::Result<[SocketAddr; 2]> {
    let listeners = [(); 2].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let [first, second] = listeners;
    Ok([first?.local_addr()?, second?.local_addr()?])
}

fn config(folder: &Path, addresses: Addresses, upstream: SocketAddr, certificate: &Certificate, log: Log) -> String {
    let folder = folder.display();
    let Addresses { plain, tls } = addresses;
    let access_log = match log {
        Log::On => format!("{folder}/access.log"),
        Log::Off => "off".into(),
    };
    let (certificate, key) = (certificate.certificate_file.display(), certificate.key_file.display());
    // The configuration loads no modules of the distribution, because it needs none.
    format!(
        "daemon off;
user root;
worker_processes auto;
worker_rlimit_nofile 8192;
pid {folder}/nginx.pid;
events {{
    worker_connections 4096;
}}
http {{
    default_type application/octet-stream;
    access_log {access_log};
    sendfile on;
    tcp_nopush on;
    tcp_nodelay on;
    keepalive_timeout 600s;
    keepalive_requests 1000000000;
    open_file_cache max=20000 inactive=1h;
    open_file_cache_valid 1h;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/temp;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    proxy_cache_path {folder}/cache levels=1:2 keys_zone=registry:64m max_size=50g inactive=24h use_temp_path=off;
    upstream registry {{
        server {upstream};
        keepalive 64;
    }}
    server {{
        listen {plain} reuseport;
        listen {tls} ssl reuseport;
        ssl_certificate {certificate};
        ssl_certificate_key {key};
        ssl_protocols TLSv1.2 TLSv1.3;
        ssl_session_cache shared:sessions:1m;
        location / {{
            proxy_pass http://registry;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            proxy_cache registry;
            proxy_cache_valid 200 24h;
            proxy_cache_lock on;
            proxy_cache_lock_timeout 300s;
            proxy_cache_lock_age 300s;
            add_header X-Cache $upstream_cache_status;
        }}
    }}
}}
"
    )
}
