//! A git server in the fake upstream: requests below a repository (`/acme/net.git/…`) go to the real `git http-backend`
//! as CGI. Faults apply to its answers as to all others, and a test can hold them back (`hold_headers`, `hold_body`).

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use flate2::read::GzDecoder;
use http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE};
use http::request::Parts;
use parking_lot::Mutex;

use super::FakeUpstream;
use super::reply::Reply;

/// A folder of bare repositories, and the credentials that it requires.
#[derive(Clone, Debug)]
pub(super) struct GitHost {
    root: PathBuf,
    authorization: Option<String>,
    /// The repository of each fetched pack.
    fetched: Arc<Mutex<Vec<String>>>,
}

/// True for a path of a repository.
pub(super) fn is_of_repository(path: &str) -> bool {
    path.contains(".git/")
}

impl GitHost {
    /// Answers a request to a repository, once the backend has ended.
    pub(super) async fn answer(self, parts: Parts, body: Bytes) -> Reply {
        let authorization = parts.headers.get(AUTHORIZATION).map(|value| value.as_bytes().to_vec());
        if self.authorization.as_ref().is_some_and(|required| authorization.as_deref() != Some(required.as_bytes())) {
            return Reply::new(401, "text/plain", "who are you?\n").with_header("www-authenticate", "Basic realm=git");
        }
        if is_pack_request(&parts, &body) {
            let path = parts.uri.path();
            let repository = path.trim_start_matches('/').split_once(".git/").map_or(path, |(name, _)| name);
            self.fetched.lock().push(repository.to_owned());
        }
        let reply = tokio::task::spawn_blocking(move || self.run_backend(&parts, &body)).await;
        reply.expect("the backend's thread does not panic")
    }

    /// Runs the backend for one request.
    fn run_backend(&self, parts: &Parts, body: &Bytes) -> Reply {
        let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let mut command = Command::new("git");
        command
            .arg("http-backend")
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", &self.root)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_PROJECT_ROOT", &self.root)
            .env("GIT_HTTP_EXPORT_ALL", "1")
            .env("REQUEST_METHOD", parts.method.as_str())
            .env("PATH_INFO", parts.uri.path())
            .env("QUERY_STRING", parts.uri.query().unwrap_or_default())
            .env("CONTENT_TYPE", header(CONTENT_TYPE.as_str()))
            .env("CONTENT_LENGTH", body.len().to_string())
            .env("HTTP_CONTENT_ENCODING", header(CONTENT_ENCODING.as_str()))
            .env("GIT_PROTOCOL", header("git-protocol"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut backend = command.spawn().expect("git is installed");
        let (mut stdin, mut stdout) = (backend.stdin.take().expect("piped"), backend.stdout.take().expect("piped"));
        let mut output = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // A backend that refuses does not read its input to the end.
                let _ = stdin.write_all(body);
            });
            stdout.read_to_end(&mut output).expect("the output of the backend");
        });
        backend.wait().expect("the backend can be waited for");
        parse(output)
    }
}

/// True for a request that fetches objects (POST to `git-upload-pack` with `want` lines).
fn is_pack_request(parts: &Parts, body: &Bytes) -> bool {
    let mut decoded_body = Vec::new();
    let decoding = match parts.headers.get(CONTENT_ENCODING) {
        Some(_) => GzDecoder::new(&body[..]).read_to_end(&mut decoded_body),
        None => (&body[..]).read_to_end(&mut decoded_body),
    };
    let has_want_line = decoded_body.windows(5).any(|window| window == b"want ");
    decoding.is_ok() && parts.uri.path().ends_with("/git-upload-pack") && has_want_line
}

/// Parses the output of a CGI program: header lines, an empty line, the body.
fn parse(output: Vec<u8>) -> Reply {
    let output = Bytes::from(output);
    let end = output.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or(output.len());
    let head = String::from_utf8_lossy(&output[..end]).into_owned();
    let lines = || head.lines().filter_map(|line| line.split_once(": "));
    let status = lines().find(|(name, _)| *name == "Status").and_then(|(_, value)| value.get(..3)?.parse().ok());
    let without_headers = Reply::new(status.unwrap_or(200), "text/plain", output.slice((end + 4).min(output.len())..));
    lines()
        .filter(|(name, _)| *name != "Status")
        .fold(without_headers, |reply, (name, value)| reply.with_header(name, value))
}

/// Git repositories.
impl FakeUpstream {
    /// Serves the bare repositories of a folder from now on: `acme/net.git` in it as `/acme/net.git`.
    pub(crate) fn host_git(&self, root: &Path) {
        let host = GitHost { root: root.to_owned(), authorization: None, fetched: Arc::default() };
        self.change(|state| state.git = Some(host));
    }

    /// Requires this `Authorization` header for repositories (else 401).
    pub(crate) fn require_git_authorization(&self, authorization: &str) {
        self.change(|state| {
            let host = state.git.as_mut().expect("repositories are hosted");
            host.authorization = Some(authorization.to_owned());
        });
    }

    /// The number of packs fetched from this repository (`acme/net`).
    pub(crate) fn git_fetches(&self, repository: &str) -> usize {
        let host = self.registry.state.lock().git.clone();
        host.map_or(0, |host| host.fetched.lock().iter().filter(|fetched| *fetched == repository).count())
    }
}
