//! Promise 12, by system calls: `strace` shows that an offline larder makes no connection and looks up no name,
//! whatever is requested.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::support::eventually;
use crate::support::git_module_fixture::{download_module, override_through};
use crate::support::http::{client, send};
use crate::support::larder::{Builder, Folder, HOST, Larder};
use crate::support::module_fixture::{ModuleFixture, tar_gz};
use crate::support::process::{CommandOutput, Process, command, run};
use crate::support::programs::find;
use crate::support::sealed::{store_archive, upstream_with_four_versions};
use crate::support::terraform::Terraform;
use crate::support::upstream::Provider;

/// System calls that make a socket or send, file opens of a name lookup, and other programs.
const CALLS: &str = "trace=socket,connect,sendto,sendmsg,sendmmsg,openat,execve";
/// Files that glibc reads to look up a name.
const LOOKUP_FILES: [&str; 5] =
    ["/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf"];

/// A program under `strace`. The process id is that of the program.
fn traced(strace: &Path, trace: &Path, program: &Command) -> Command {
    let mut traced = Command::new(strace);
    traced.args(["--seccomp-bpf", "-D", "-f", "-q", "-s", "256", "-e", CALLS, "-o"]).arg(trace);
    traced.arg(program.get_program()).args(program.get_args());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => traced.env(name, value),
            None => traced.env_remove(name),
        };
    }
    traced.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped());
    traced.stderr(std::process::Stdio::piped());
    traced
}

/// A program's system calls other than listening and answering.
#[derive(Debug, Default)]
struct OutboundCalls {
    /// Connections to internet addresses, loopback included, and datagrams without a connection.
    connections: Vec<String>,
    /// Calls that look like a name lookup.
    lookups: Vec<String>,
    /// Calls that create internet sockets, those of listeners included.
    sockets: usize,
    /// Calls that start other programs.
    programs: Vec<String>,
}

impl OutboundCalls {
    async fn from_trace(trace: &Path) -> Self {
        // The process is gone; its tracer may still be writing.
        let complete_trace = async || {
            let text = std::fs::read_to_string(trace).unwrap_or_default();
            // The first line is of the program's first thread.
            let first = text.split_whitespace().next()?;
            // strace pads short process ids.
            let is_end_of_program =
                |line: &str| line.strip_prefix(first).is_some_and(|rest| rest.trim_start().starts_with("+++ "));
            text.lines().any(is_end_of_program).then_some(text)
        };
        let text = eventually("the trace is complete", complete_trace).await;
        let mut calls = Self::default();
        for line in text.lines() {
            let call = line.split_once(' ').map_or(line, |(_, call)| call.trim_start());
            let is_call = |name: &str| call.starts_with(&format!("{name}("));
            let internet = call.contains("AF_INET");
            if ["connect", "sendto", "sendmsg", "sendmmsg"].into_iter().any(is_call) && internet {
                calls.connections.push(call.to_owned());
            }
            let asks_for_names = is_call("connect") && ["nscd", "resolve"].iter().any(|service| call.contains(service));
            let reads_names =
                is_call("openat") && LOOKUP_FILES.iter().any(|file| call.contains(&format!("\"{file}\"")));
            if asks_for_names || reads_names || (is_call("socket") && call.contains("AF_NETLINK")) {
                calls.lookups.push(call.to_owned());
            }
            calls.sockets += usize::from(is_call("socket") && internet);
            if is_call("execve") {
                calls.programs.push(call.to_owned());
            }
        }
        calls
    }
}

/// A registry whose name needs a lookup, and modules of every source kind that are not stored.
struct OfflineFixture {
    modules: ModuleFixture,
    folder: Folder,
    key: PathBuf,
}

impl OfflineFixture {
    async fn new() -> Self {
        let fixture = ModuleFixture::with_registry(upstream_with_four_versions().await).await;
        fixture.registry.publish(Provider::new("acme", "other").platform("linux_amd64"));
        fixture.publish_archive("one", &tar_gz(&[("main.tf", b"# one\n")]));
        // No server listens there: only the location is known.
        fixture.publish("git", "git::https://localhost:9/acme/net.git?ref=v1.0.0");
        fixture.publish("ssh", "git::ssh://git@localhost:9/acme/net.git?ref=v1.0.0");
        fixture.publish("zip", "https://localhost:9/net.zip");
        let folder = Folder::new();
        let key = folder.path().join("id_ed25519");
        std::fs::write(&key, "no key\n").unwrap();
        let fixture = Self { modules: fixture, folder, key };
        let larder = fixture.larder("").start().await;
        store_archive(&larder, "1.0.0", "linux_amd64").await;
        larder.versions("null").await.expect(200);
        larder.document("null", "1.1.0").await.expect(200);
        download_module(larder.base(), "one").await;
        for name in ["git", "ssh", "zip"] {
            larder.get(&download(name)).await.expect(502);
        }
        larder.get(&format!("/registry/{HOST}/v1/modules/acme/git/test/versions")).await.expect(200);
        larder.stop().await;
        fixture
    }

    fn larder(&self, network: &str) -> Builder {
        let url = format!("http://localhost:{}/", self.modules.registry.port());
        let key = &self.key;
        let credential = format!(
            "[[credential]]\nhost = \"localhost:9\"\nupstreams = [\"{HOST}\"]\nssh = {{ key = {key:?}, known_hosts = {key:?} }}"
        );
        let larder = Larder::builder().upstream(HOST, &url, "").store_at(&self.folder);
        let larder = larder.trusting(&self.modules.ca).allow_private("127.0.0.1").allow_private("localhost");
        let larder = larder.allow_private(&self.modules.registry.origin());
        let larder = larder.network(network).upstream_lines(&credential);
        if network.is_empty() {
            return larder;
        }
        // No name server knows this name, and larder must not look it up.
        larder.upstream("registry.sealed.invalid", "https://registry.sealed.invalid/", "")
    }

    fn config(&self, network: &str) -> PathBuf {
        let file = self.folder.path().join("mirror.toml");
        std::fs::write(&file, self.larder(network).config_text()).unwrap();
        file
    }
}

fn download(name: &str) -> String {
    format!("/registry/{HOST}/v1/modules/acme/{name}/test/1.0.0/download")
}

/// Sends every request that larder answers, for stored and for missing packages.
async fn send_every_request(larder: &Process, terraform: &Terraform, token: &str) {
    let mut stored = terraform.workspace();
    stored.require("acme/null", "1.0.0");
    stored.file("modules.tf", "module \"one\" {\n  source  = \"acme/one/test\"\n  version = \"1.0.0\"\n}\n");
    stored.cli_config(&override_through(larder.base()));
    stored.init().await.expect_success();
    for (provider, module) in [("acme/absent", "git"), ("acme/null", "ssh")] {
        let mut unstored = terraform.workspace();
        unstored.require(provider, "1.1.0");
        let call = format!("module \"m\" {{\n  source  = \"acme/{module}/test\"\n  version = \"1.0.0\"\n}}\n");
        unstored.file("modules.tf", &call).cli_config(&override_through(larder.base()));
        unstored.init().await.expect_failure();
    }
    let registry = |rest: &str| format!("/registry/{HOST}/v1/{rest}");
    for path in [
        "/.well-known/terraform.json".to_owned(),
        format!("/registry/{HOST}/.well-known/terraform.json"),
        "/registry/registry.sealed.invalid/.well-known/terraform.json".to_owned(),
        "/registry/registry.sealed.invalid/v1/providers/acme/null/versions".to_owned(),
        "/registry/registry.sealed.invalid/v1/modules/acme/one/test/versions".to_owned(),
        registry("providers/acme/null/1.0.0/download/darwin/arm64"),
        registry("providers/acme/other/1.2.0/download/linux/amd64"),
        registry("providers/acme/other"),
        registry("providers"),
        registry("modules"),
        registry("modules/search?q=one"),
        registry("modules/acme/one/test"),
        registry("modules/acme/one/test/download"),
        registry("modules/acme/nobody/test/versions"),
        download("git"),
        download("ssh"),
        download("zip"),
        download("nobody"),
        format!("/archive/{HOST}/modules/acme/git/test/1.0.0/module.tar.gz"),
        format!("/archive/{HOST}/modules/acme/ssh/test/1.0.0/module.tar.gz"),
        format!("/archive/{HOST}/modules/acme/one/test/1.0.0/0123456789abcdef/module.tar.gz"),
        format!("/archive/{HOST}/providers/acme/null/1.1.0/linux_amd64/0123456789abcdef/a.zip"),
        format!("/mirror/{HOST}/acme/null/index.json"),
        format!("/mirror/{HOST}/acme/null/1.0.0.json"),
        format!("/mirror/{HOST}/acme/null/1.3.0.json"),
        format!("/mirror/{HOST}/acme/nobody/index.json"),
        "/readyz".to_owned(),
    ] {
        larder.get(&path).await;
    }
    let body = |addresses: &[&str]| json!({ "what": addresses }).to_string();
    let everything = ["acme/null", "acme/other", "acme/one/test", "acme/git/test", "acme/ssh/test", "acme/nobody"];
    for (path, body) in [
        ("refresh", body(&everything)),
        ("plan", body(&everything)),
        ("warm", body(&everything)),
        ("accept", body(&["acme/null", "acme/git/test"])),
        ("pin", body(&["acme/null@1.0.0"])),
        ("unpin", body(&["acme/null@1.0.0"])),
        ("purge", body(&["acme/nobody"])),
        ("verify", "{}".to_owned()),
    ] {
        let request = client_request(larder, "POST", path, token).header("content-type", "application/json");
        send(request.body(body)).await.unwrap();
    }
    let jobs = async || {
        let jobs = send(client_request(larder, "GET", "jobs", token)).await.unwrap().text();
        (!jobs.contains("\"running\"")).then_some(())
    };
    eventually("the jobs end", jobs).await;
    for path in ["status", "missing", "client-config"] {
        send(client_request(larder, "GET", path, token)).await.unwrap().expect(200);
    }
    send(client().get(format!("{}/metrics", larder.admin()))).await.unwrap().expect(200);
    larder.send_sighup();
    larder.log().line_with("the configuration was reloaded").await;
    larder.get(&registry("providers/acme/nobody/versions")).await;
}

fn client_request(larder: &Process, method: &str, path: &str, token: &str) -> reqwest::RequestBuilder {
    let url = format!("{}/admin/v1/{path}", larder.admin());
    client().request(method.parse().unwrap(), url).bearer_auth(token)
}

fn start_larder(command: Command) -> Process {
    Process::spawn(command).unwrap_or_else(|CommandOutput { err, .. }| panic!("larder did not start: {err}"))
}

/// The same larder online shows that the test sees connections.
#[tokio::test]
async fn a_sealed_larder_makes_no_connection_and_looks_up_no_name() {
    let Some(client) = Terraform::find() else { return };
    let Some(strace) = find("strace") else { return };
    let fixture = OfflineFixture::new().await;
    let trace = fixture.folder.path().join("trace");
    let token = std::fs::read_to_string(fixture.folder.path().join("admin-token")).unwrap();

    let config = fixture.config("# sealed by the command line");
    let mut sealed = command(fixture.folder.path(), &["serve", "--json", "--offline", "--config"]);
    // A proxy is neither connected to nor looked up.
    let proxy = "http://proxy.sealed.invalid:3128";
    sealed.arg(&config).env("HTTP_PROXY", proxy).env("HTTPS_PROXY", proxy).env("http_proxy", proxy);
    let larder = start_larder(traced(&strace, &trace, &sealed));
    send_every_request(&larder, &client, &token).await;
    assert_eq!(larder.terminate().await, Some(0));
    let calls = OutboundCalls::from_trace(&trace).await;
    assert!(calls.connections.is_empty() && calls.lookups.is_empty(), "{calls:#?}");
    // The sockets of the two listeners, and larder itself.
    assert_eq!((calls.sockets, calls.programs.len()), (2, 1), "{calls:#?}");

    // The commands that open the store themselves.
    let config = fixture.config("offline = true");
    for arguments in [
        &["verify"][..],
        &["refresh", "acme/null"],
        &["accept", "acme/git/test"],
        &["warm", "acme/null", "acme/ssh/test"],
        &["missing"],
        &["status"],
        &["check"],
    ] {
        let mut without_larder = command(fixture.folder.path(), arguments);
        without_larder.arg("--config").arg(&config);
        run(traced(&strace, &trace, &without_larder)).await;
        let calls = OutboundCalls::from_trace(&trace).await;
        assert!(calls.connections.is_empty() && calls.lookups.is_empty(), "{arguments:?}: {calls:#?}");
        assert_eq!((calls.sockets, calls.programs.len()), (0, 1), "{arguments:?}: {calls:#?}");
    }

    let config = fixture.config("");
    let mut online = command(fixture.folder.path(), &["serve", "--json", "--config"]);
    online.arg(&config);
    let larder = start_larder(traced(&strace, &trace, &online));
    send_every_request(&larder, &client, &token).await;
    assert_eq!(larder.terminate().await, Some(0));
    let calls = OutboundCalls::from_trace(&trace).await;
    assert!(!calls.connections.is_empty() && !calls.lookups.is_empty(), "{calls:#?}");
    assert!(calls.sockets > 2 && calls.programs.iter().any(|program| program.contains("/ssh\"")), "{calls:#?}");
}

#[tokio::test]
async fn the_doctor_of_a_sealed_larder_connects_to_larder_only() {
    let Some(strace) = find("strace") else { return };
    let fixture = OfflineFixture::new().await;
    let trace = fixture.folder.path().join("trace");
    let config = fixture.config("offline = true");
    let larder = start_larder({
        let mut serve = command(fixture.folder.path(), &["serve", "--json", "--config"]);
        serve.arg(&config);
        serve
    });
    // The real address of the listener.
    let text = std::fs::read_to_string(&config).unwrap();
    let (main, admin) =
        (larder.announcement()["base"].as_str().unwrap(), larder.announcement()["admin"].as_str().unwrap());
    let main = main.trim_start_matches("http://");
    let text = text.replacen("127.0.0.1:0", main, 1).replacen("127.0.0.1:0", admin, 1);
    std::fs::write(&config, text).unwrap();
    let mut doctor = command(fixture.folder.path(), &["doctor", "--config"]);
    doctor.arg(&config);
    let output = run(traced(&strace, &trace, &doctor)).await;
    assert!(output.out.contains("offline"), "{output:?}");
    let calls = OutboundCalls::from_trace(&trace).await;
    let ports = [main, admin].map(|address| format!("htons({})", address.rsplit(':').next().unwrap()));
    let elsewhere: Vec<&String> =
        calls.connections.iter().filter(|call| !ports.iter().any(|port| call.contains(port))).collect();
    assert!(elsewhere.is_empty() && calls.lookups.is_empty(), "{calls:#?}\n{}", output.out);
    assert!(!calls.connections.is_empty(), "the command must use the running larder: {}", output.out);
}
