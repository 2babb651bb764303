//! A git server for tests: `git http-backend` behind a loopback socket, which can misbehave on request.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use parking_lot::Mutex;
use percent_encoding::percent_decode_str;

#[derive(Debug, Clone, Default)]
pub(super) struct ReceivedRequest {
    pub(super) method: String,
    /// The path and the query.
    pub(super) target: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl ReceivedRequest {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// The server's behaviour for one request.
#[derive(Clone)]
pub(super) enum ServerBehaviour {
    /// The answer of `git http-backend`.
    Normal,
    /// This text as the complete response.
    RawResponse(String),
    /// The answer of an old server, without protocol version 2.
    OldProtocol,
    /// No answer until the client closes the connection.
    NoAnswer,
    /// Endless progress messages, this many milliseconds apart, and no pack.
    EndlessProgress(u64),
    /// A normal answer: this many bytes at once, then single bytes, this many milliseconds apart.
    SlowAnswer(usize, u64),
}

/// Chooses the behaviour for a request.
type Behaviour = Box<dyn Fn(&ReceivedRequest) -> ServerBehaviour + Send>;

pub(super) struct Server {
    pub(super) port: u16,
    requests: Arc<Mutex<Vec<ReceivedRequest>>>,
    behaviour: Arc<Mutex<Behaviour>>,
}

impl Server {
    pub(super) fn start(root: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let behaviour: Arc<Mutex<Behaviour>> = Arc::new(Mutex::new(Box::new(|_| ServerBehaviour::Normal)));
        let (root, log, chosen_behaviour) = (root.to_owned(), Arc::clone(&requests), Arc::clone(&behaviour));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (root, log, behaviour) = (root.clone(), Arc::clone(&log), Arc::clone(&chosen_behaviour));
                std::thread::spawn(move || serve(stream.unwrap(), &root, &log, &behaviour));
            }
        });
        Self { port, requests, behaviour }
    }

    pub(super) fn set_behaviour(&self, behaviour: impl Fn(&ReceivedRequest) -> ServerBehaviour + Send + 'static) {
        *self.behaviour.lock() = Box::new(behaviour);
    }

    pub(super) fn requests(&self) -> Vec<ReceivedRequest> {
        self.requests.lock().clone()
    }
}

fn serve(stream: TcpStream, root: &Path, log: &Mutex<Vec<ReceivedRequest>>, behaviour: &Mutex<Behaviour>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    let Some(request) = read_request(&mut reader) else { return };
    log.lock().push(request.clone());
    let behaviour = (behaviour.lock())(&request);
    let _ = match behaviour {
        ServerBehaviour::Normal => answer(&mut writer, root, &request, true),
        ServerBehaviour::OldProtocol => answer(&mut writer, root, &request, false),
        ServerBehaviour::RawResponse(text) => writer.write_all(text.as_bytes()),
        ServerBehaviour::SlowAnswer(fast_bytes, delay_ms) => {
            let delay = std::time::Duration::from_millis(delay_ms);
            let mut slow_writer = SlowWriter { writer, fast_bytes, delay };
            answer(&mut slow_writer, root, &request, true)
        }
        ServerBehaviour::EndlessProgress(delay_ms) => {
            send_progress(&mut writer, std::time::Duration::from_millis(delay_ms))
        }
        ServerBehaviour::NoAnswer => std::io::copy(&mut reader, &mut std::io::sink()).map(drop),
    };
}

/// Sends progress messages until the client disconnects.
fn send_progress(writer: &mut TcpStream, delay: std::time::Duration) -> std::io::Result<()> {
    let packet_line = |text: &str| format!("{:04x}{text}", text.len() + 4);
    let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/x-git-upload-pack-result\r\n\r\n";
    write!(writer, "{head}{}", packet_line("packfile\n"))?;
    loop {
        writer.write_all(packet_line(&format!("\u{2}Counting objects: {}\r", "x".repeat(900))).as_bytes())?;
        std::thread::sleep(delay);
    }
}

fn read_request(reader: &mut impl BufRead) -> Option<ReceivedRequest> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let mut request = ReceivedRequest {
        method: words.next()?.to_owned(),
        target: words.next()?.to_owned(),
        ..ReceivedRequest::default()
    };
    loop {
        line.clear();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        request.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length = request.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    request.body = body;
    Some(request)
}

/// A writer that is slow after its first bytes.
struct SlowWriter {
    writer: TcpStream,
    fast_bytes: usize,
    /// Pause before each further byte.
    delay: std::time::Duration,
}

impl Write for SlowWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.fast_bytes > 0 {
            let written = self.writer.write(&bytes[..bytes.len().min(self.fast_bytes)])?;
            self.fast_bytes -= written;
            return Ok(written);
        }
        // The delay itself is under test.
        std::thread::sleep(self.delay);
        self.writer.write(&bytes[..bytes.len().min(1)])
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.writer.flush()
    }
}

/// Answers a request by `git http-backend`.
fn answer(writer: &mut impl Write, root: &Path, request: &ReceivedRequest, allows_v2: bool) -> std::io::Result<()> {
    let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
    let path = percent_decode_str(path).decode_utf8_lossy().into_owned();
    let mut command = Command::new("git");
    command.arg("http-backend").env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", root.join("gitconfig"));
    command.env("GIT_PROJECT_ROOT", root).env("GIT_HTTP_EXPORT_ALL", "1").env("PATH_INFO", path);
    command.env("QUERY_STRING", query).env("REQUEST_METHOD", &request.method);
    command.env("CONTENT_TYPE", request.header("content-type").unwrap_or_default());
    command.env("CONTENT_LENGTH", request.body.len().to_string());
    if let Some(protocol) = request.header("git-protocol").filter(|_| allows_v2) {
        command.env("GIT_PROTOCOL", protocol);
    }
    if let Some(coding) = request.header("content-encoding") {
        command.env("HTTP_CONTENT_ENCODING", coding);
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut stdin = child.stdin.take().unwrap();
    let body = request.body.clone();
    let input_thread = std::thread::spawn(move || stdin.write_all(&body));
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let (mut status, mut headers, mut line) = ("200 OK".to_owned(), String::new(), String::new());
    loop {
        line.clear();
        stdout.read_line(&mut line)?;
        match line.trim_end().split_once(": ") {
            Some(("Status", value)) => status = value.to_owned(),
            Some(_) => headers.push_str(&line),
            None => break,
        }
    }
    write!(writer, "HTTP/1.1 {status}\r\nConnection: close\r\n{headers}\r\n")?;
    let copied = std::io::copy(&mut stdout, writer);
    drop(stdout);
    let _ = input_thread.join();
    child.wait()?;
    copied.map(drop)
}

/// Path of the server's git configuration file.
pub(super) fn server_config_path(root: &Path) -> PathBuf {
    root.join("gitconfig")
}
