//! A plain web server over a folder: the real nginx, over TLS, with nothing that knows of registries.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::eventually;
use super::ports::free_port;
use super::tls::TestCa;

/// A running one. Killed when dropped.
pub(crate) struct Nginx {
    child: Child,
    address: SocketAddr,
    _folder: TempDir,
}

impl Nginx {
    /// Serves the files of `root`, with a certificate for 127.0.0.1.
    pub(crate) async fn serving(program: &Path, root: &Path, ca: &TestCa) -> Self {
        let folder = tempfile::Builder::new().prefix("larder-nginx-").tempdir().unwrap();
        let place = folder.path();
        let (certificate, key) = ca.issue(&["127.0.0.1"]);
        std::fs::write(place.join("cert.pem"), certificate).unwrap();
        std::fs::write(place.join("key.pem"), key).unwrap();
        // nginx takes no port 0.
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let (shown, root) = (place.display(), root.display());
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("    {name}_temp_path {shown}/{name};\n"))
            .concat();
        let user = if rustix::process::getuid().is_root() { "user root;\n" } else { "" };
        let config = format!(
            "daemon off;\n{user}pid {shown}/nginx.pid;\nevents {{}}\nhttp {{\n{temporary}    access_log off;\n    \
             default_type application/octet-stream;\n    types {{ application/json json; application/zip zip; }}\n    \
             server {{\n        listen {address} ssl;\n        ssl_certificate {shown}/cert.pem;\n        \
             ssl_certificate_key {shown}/key.pem;\n        root {root};\n    }}\n}}\n"
        );
        std::fs::write(place.join("nginx.conf"), config).unwrap();
        let mut command = Command::new(program);
        command.arg("-p").arg(place).arg("-c").arg(place.join("nginx.conf")).arg("-e").arg(place.join("error.log"));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut nginx = Self { child, address, _folder: folder };
        eventually("nginx listens", async || {
            let ended = nginx.child.try_wait().unwrap();
            assert!(ended.is_none(), "{}", nginx.log());
            TcpStream::connect(address).ok()
        })
        .await;
        nginx
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self._folder.path().join("error.log")).unwrap_or_else(|e| format!("no log: {e}"))
    }

    /// `https://127.0.0.1:PORT`
    pub(crate) fn origin(&self) -> String {
        format!("https://{}", self.address)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // The master ends its workers on SIGTERM, not when it is killed.
        if let Some(process) = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait();
    }
}
