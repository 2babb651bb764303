//! Servers in front of larder, and a proxy between larder and the registry: `init` writes the same files.

use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::Tools;
use crate::report::{Report, Verdict, compare};
use crate::support::eventually;
use crate::support::http::{client_trusting, send};
use crate::support::larder::{Folder, HOST, Larder};
use crate::support::ports::free_port;
use crate::support::process::Process;
use crate::support::programs::find;
use crate::support::terraform::Terraform;
use crate::support::tls::TestCa;
use crate::terraform::{InstalledFiles, files_after_init, registry};

/// A server with a configuration file, ended when dropped.
struct Server {
    child: Child,
    address: SocketAddr,
    folder: tempfile::TempDir,
}

impl Server {
    /// Starts a program once its configuration is written: `@LISTEN@`, `@UPSTREAM@`, `@CERT@` and `@FOLDER@` are filled in,
    /// and `@CONFIG@` in the arguments.
    async fn start(program: &Path, arguments: &[&str], config: &str, upstream: SocketAddr, ca: &TestCa) -> Self {
        let folder = tempfile::Builder::new().prefix("larder-proxy-").tempdir().unwrap();
        let folder_path = folder.path().display().to_string();
        // Some programs drop root for another user.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let (certificate, key) = ca.issue(&["127.0.0.1", "localhost"]);
        std::fs::write(folder.path().join("cert.pem"), format!("{certificate}{key}")).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let fill_in = |text: &str| {
            text.replace("@LISTEN@", &address.to_string())
                .replace("@PORT@", &address.port().to_string())
                .replace("@UPSTREAM@", &upstream.to_string())
                .replace("@UPSTREAM_HOST@", &upstream.ip().to_string())
                .replace("@UPSTREAM_PORT@", &upstream.port().to_string())
                .replace("@CERT@", &format!("{folder_path}/cert.pem"))
                .replace("@CONFIG@", &format!("{folder_path}/config"))
                .replace("@FOLDER@", &folder_path)
        };
        std::fs::write(folder.path().join("config"), fill_in(config)).unwrap();
        let log = std::fs::File::create(folder.path().join("output")).unwrap();
        let mut command = Command::new(program);
        command.args(arguments.iter().map(|argument| fill_in(argument))).current_dir(folder.path());
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let mut child = command.spawn().unwrap();
        eventually("the proxy listens", async || {
            let output = || std::fs::read_to_string(folder.path().join("output")).unwrap_or_default();
            assert!(child.try_wait().unwrap().is_none(), "{program:?} ended: {}", output());
            TcpStream::connect(address).ok()
        })
        .await;
        Self { child, address, folder }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(process) = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

const NGINX_ARGUMENTS: [&str; 6] = ["-p", "@FOLDER@", "-c", "@CONFIG@", "-e", "@FOLDER@/log"];

/// A configuration of nginx, with these lines in its `server` block.
fn nginx(server: &str) -> String {
    let user = if rustix::process::getuid().is_root() { "user root;\n" } else { "" };
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("  {name}_temp_path @FOLDER@/{name};\n"))
        .concat();
    format!(
        "daemon off;\n{user}pid @FOLDER@/pid;\nevents {{}}\nhttp {{\n{temporary}  access_log off;\n  server {{\n{server}  }}\n}}\n"
    )
}

const NGINX_PLAIN: &str = "    listen @LISTEN@;\n    location / { proxy_pass http://@UPSTREAM@; }\n";

const NGINX_TLS: &str = "    listen @LISTEN@ ssl;\n    ssl_certificate @CERT@;\n    ssl_certificate_key @CERT@;\n    location / {\n      proxy_pass http://@UPSTREAM@;\n      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;\n      proxy_set_header X-Forwarded-Host $http_host;\n      proxy_set_header X-Forwarded-Proto $scheme;\n    }\n";

const HAPROXY: &str = "global\n  maxconn 256\ndefaults\n  mode http\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\nfrontend front\n  bind @LISTEN@ ssl crt @CERT@ alpn h2,http/1.1\n  option forwardfor\n  http-request set-header X-Forwarded-Host %[req.hdr(Host)]\n  http-request set-header X-Forwarded-Proto https\n  default_backend larder\nbackend larder\n  server larder @UPSTREAM@\n";

const VARNISH: &str =
    "vcl 4.1;\nbackend default {\n  .host = \"@UPSTREAM_HOST@\";\n  .port = \"@UPSTREAM_PORT@\";\n}\n";

const SQUID: &str = "http_port @LISTEN@\nacl all_ports port 1-65535\nhttp_access allow all\ncache deny all\ncache_mem 0 MB\naccess_log stdio:@FOLDER@/access.log\ncache_log @FOLDER@/log\npid_filename @FOLDER@/pid\ncoredump_dir @FOLDER@\nshutdown_lifetime 0 seconds\n";

pub(crate) async fn rows(tools: &Tools, report: &mut Report) {
    let subject = "init: files, lock file, modules";
    let Some(client) = ["1.15", "1.14"].iter().find_map(|name| tools.client(&format!("terraform-{name}"))) else {
        return report.row("proxies", "-", subject, Verdict::NotRun("no terraform is installed".to_owned()));
    };
    let ca = TestCa::new();
    let direct = {
        let upstream = registry().await;
        files_after_init(&client, &upstream.providers_url(), &upstream.modules_url(), &ca, &[]).await
    };
    for (name, program, arguments, config, scheme) in [
        ("nginx, bare proxy_pass, http", "nginx", &NGINX_ARGUMENTS[..], nginx(NGINX_PLAIN), "http"),
        ("nginx, TLS, X-Forwarded-Host and -Proto", "nginx", &NGINX_ARGUMENTS, nginx(NGINX_TLS), "https"),
        (
            "haproxy, TLS and HTTP/2, X-Forwarded-Host and -Proto",
            "haproxy",
            &["-f", "@CONFIG@"],
            HAPROXY.to_owned(),
            "https",
        ),
        (
            "varnish, http",
            "varnishd",
            &["-F", "-a", "@LISTEN@", "-f", "@CONFIG@", "-n", "@FOLDER@/work", "-s", "malloc,64m"],
            VARNISH.to_owned(),
            "http",
        ),
    ] {
        let Some(program) = find(program) else {
            report.row(name, "before larder", subject, Verdict::NotRun("the program is not installed".to_owned()));
            continue;
        };
        let upstream = registry().await;
        let larder = Larder::mirroring(&upstream).server("trusted_proxies = [\"127.0.0.1\"]").start().await;
        let server = Server::start(&program, arguments, &config, larder.address(), &ca).await;
        let base = format!("{scheme}://{}/registry/{HOST}", server.address);
        for round in ["cold", "stored"] {
            let installed =
                files_after_init(&client, &format!("{base}/v1/providers/"), &format!("{base}/v1/modules/"), &ca, &[])
                    .await;
            report.row(name, "before larder", &format!("{subject}, {round}"), verdict(&direct, installed));
        }
        if scheme == "https" {
            let request = client_trusting(&ca).get(format!("{base}/v1/providers/acme/null/1.2.0/download/linux/amd64"));
            let document = send(request).await.unwrap().expect(200).json();
            let url = document["download_url"].as_str().unwrap_or_default().to_owned();
            let expected = format!("https://{}/archive/", server.address);
            let is_absolute = if url.starts_with(&expected) { Verdict::Same } else { Verdict::Wrong(url) };
            report.row(name, "before larder", "URLs begin with the proxy's own name", is_absolute);
        }
    }
    squid(&client, &direct, report, subject, &ca).await;
}

fn verdict(direct: &Result<InstalledFiles, String>, installed: Result<InstalledFiles, String>) -> Verdict {
    match (direct, installed) {
        (Ok(direct), Ok(installed)) => compare(direct, &installed),
        (Err(output), _) => Verdict::Wrong(format!("direct: {output}")),
        (_, Err(output)) => Verdict::Wrong(output),
    }
}

/// Squid as the proxy between larder and the registry.
async fn squid(
    client: &Terraform,
    direct: &Result<InstalledFiles, String>,
    report: &mut Report,
    subject: &str,
    ca: &TestCa,
) {
    let Some(program) = find("squid") else {
        return report.row("squid", "-", subject, Verdict::NotRun("the program is not installed".to_owned()));
    };
    let upstream = registry().await;
    let unused_address = SocketAddr::from(([127, 0, 0, 1], 9));
    let server = Server::start(&program, &["-N", "-f", "@CONFIG@"], SQUID, unused_address, ca).await;
    let proxy = format!("http://{}", server.address);
    let folder = Folder::new();
    let config = Larder::mirroring(&upstream).store_at(&folder).config_text();
    let larder = Process::serve_with(&config, folder.path(), |command| {
        command.env("HTTP_PROXY", &proxy).env("http_proxy", &proxy).env_remove("NO_PROXY");
    });
    let larder = match larder {
        Ok(larder) => larder,
        Err(output) => return report.row("squid", "behind larder", subject, Verdict::Wrong(output.err)),
    };
    let base = format!("{}/registry/{HOST}", larder.base());
    let installed =
        files_after_init(client, &format!("{base}/v1/providers/"), &format!("{base}/v1/modules/"), ca, &[]).await;
    report.row("squid", "behind larder", subject, verdict(direct, installed));
    let log = std::fs::read_to_string(server.folder.path().join("access.log")).unwrap_or_default();
    let squid_verdict =
        if log.contains("/v1/providers/acme/null/versions") { Verdict::Same } else { Verdict::Wrong(log) };
    report.row("squid", "behind larder", "requests go through it", squid_verdict);
}
