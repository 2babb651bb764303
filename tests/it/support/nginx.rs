//! A plain web server: the real nginx serves a folder over TLS.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::eventually;
use super::ports::free_port;
use super::tls::TestCa;

/// A running nginx. Stopped when dropped.
pub(crate) struct Nginx {
    child: Child,
    address: SocketAddr,
    folder: TempDir,
}

impl Nginx {
    /// Serves the files of `root`, with a certificate for 127.0.0.1.
    pub(crate) async fn serve(program: &Path, root: &Path, ca: &TestCa) -> Self {
        let folder = tempfile::Builder::new().prefix("larder-nginx-").tempdir().unwrap();
        let path = folder.path();
        let (certificate, key) = ca.issue(&["127.0.0.1"]);
        std::fs::write(path.join("cert.pem"), certificate).unwrap();
        std::fs::write(path.join("key.pem"), key).unwrap();
        // nginx does not accept port 0.
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let (folder_path, root) = (path.display(), root.display());
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("    {name}_temp_path {folder_path}/{name};\n"))
            .concat();
        let user = if rustix::process::getuid().is_root() { "user root;\n" } else { "" };
        let config = format!(
            "daemon off;\n{user}pid {folder_path}/nginx.pid;\nevents {{}}\nhttp {{\n{temporary}    access_log off;\n    \
             default_type application/octet-stream;\n    types {{ application/json json; application/zip zip; }}\n    \
             server {{\n        listen {address} ssl;\n        ssl_certificate {folder_path}/cert.pem;\n        \
             ssl_certificate_key {folder_path}/key.pem;\n        root {root};\n    }}\n}}\n"
        );
        std::fs::write(path.join("nginx.conf"), config).unwrap();
        let mut command = Command::new(program);
        command.arg("-p").arg(path).arg("-c").arg(path.join("nginx.conf")).arg("-e").arg(path.join("error.log"));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut nginx = Self { child, address, folder };
        eventually("nginx listens", async || {
            let exit = nginx.child.try_wait().unwrap();
            assert!(exit.is_none(), "{}", nginx.log());
            TcpStream::connect(address).ok()
        })
        .await;
        nginx
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("error.log")).unwrap_or_else(|e| format!("no log: {e}"))
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
