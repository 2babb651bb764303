//! A minimal server on hyper, as an upper bound for larder, which is built on hyper too: this program in a process of
//! its own, with complete answers in a map. It copies its answers from larder, headers included, when it starts.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::Context as _;
use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, DATE, HeaderMap, TRANSFER_ENCODING};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::compared_server::{self, Addresses};
use crate::process::Running;
use crate::tls::{self, Certificate};
use crate::upstream::accepts_gzip;

/// The argument that makes this program the hyper server.
pub(crate) const ARGUMENT: &str = "hyper-server";

/// Parameters of the hyper server.
#[derive(Serialize, Deserialize)]
struct HyperServerOptions {
    larder: SocketAddr,
    paths: Vec<String>,
    certificate: PathBuf,
    key: PathBuf,
}

/// The addresses that the hyper server prints when it listens.
#[derive(Serialize, Deserialize)]
struct ReadyLine {
    plain: SocketAddr,
    tls: SocketAddr,
}

/// A running hyper server.
pub(crate) struct HyperServer {
    running: Running,
    pub(crate) addresses: Addresses,
}

impl HyperServer {
    /// Starts the server with larder's answers for these paths.
    pub(crate) fn start(larder: SocketAddr, paths: Vec<String>, certificate: &Certificate) -> anyhow::Result<Self> {
        let options = HyperServerOptions {
            larder,
            paths,
            certificate: certificate.certificate_file.clone(),
            key: certificate.key_file.clone(),
        };
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg(format!("--{ARGUMENT}"))
            .arg(serde_json::to_string(&options)?)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut running = Running::start(&mut command)?;
        let mut line = String::new();
        BufReader::new(running.child().stdout.take().context("its output is piped")?).read_line(&mut line)?;
        let ReadyLine { plain, tls } = serde_json::from_str(&line).context("the hyper server did not start")?;
        Ok(Self { running, addresses: Addresses { plain, tls } })
    }

    pub(crate) fn processes(&self) -> Vec<u32> {
        self.running.ids()
    }
}

/// Runs the hyper server until the process is killed, on the same kind of runtime as larder.
pub(crate) fn serve_until_killed(options: &str) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(serve(serde_json::from_str(options)?))
}

/// The plain and the gzip answer of each path.
type Answers = HashMap<String, [(HeaderMap, Bytes); 2]>;

async fn serve(options: HyperServerOptions) -> anyhow::Result<()> {
    let client = compared_server::client()?;
    let mut answers = Answers::new();
    for path in options.paths {
        let plain = fetch(&client, options.larder, &path, "identity").await?;
        let gzip = fetch(&client, options.larder, &path, "gzip").await?;
        answers.insert(path, [plain, gzip]);
    }
    let answers = Arc::new(answers);
    let acceptor = TlsAcceptor::from(tls::server_config(&options.certificate, &options.key)?);
    let plain = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let secure = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let ready = ReadyLine { plain: plain.local_addr()?, tls: secure.local_addr()? };
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&ready)?)?;
    tokio::join!(accept(plain, None, Arc::clone(&answers)), accept(secure, Some(acceptor), answers));
    Ok(())
}

async fn fetch(
    client: &reqwest::Client,
    larder: SocketAddr,
    path: &str,
    coding: &str,
) -> anyhow::Result<(HeaderMap, Bytes)> {
    let request = client.get(format!("http://{larder}{path}")).header(ACCEPT_ENCODING, coding);
    let answer = request.send().await?.error_for_status()?;
    let mut headers = answer.headers().clone();
    for connection_header in [CONNECTION, CONTENT_LENGTH, DATE, TRANSFER_ENCODING] {
        headers.remove(connection_header);
    }
    Ok((headers, answer.bytes().await?))
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, answers: Arc<Answers>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (tls, answers) = (tls.clone(), Arc::clone(&answers));
        tokio::spawn(async move {
            let _ = stream.set_nodelay(true);
            serve_connection(stream, tls, &answers).await;
        });
    }
}

async fn serve_connection(stream: TcpStream, tls: Option<TlsAcceptor>, answers: &Answers) {
    let service = service_fn(|request| std::future::ready(Ok::<_, Infallible>(answer(&request, answers))));
    let http = http1::Builder::new();
    // A client may close its connection.
    match tls {
        None => drop(http.serve_connection(TokioIo::new(stream), service).await),
        Some(tls) => {
            if let Ok(stream) = tls.accept(stream).await {
                drop(http.serve_connection(TokioIo::new(stream), service).await);
            }
        }
    }
}

fn answer(request: &Request<Incoming>, answers: &Answers) -> Response<Full<Bytes>> {
    let Some(answer) = answers.get(request.uri().path()) else {
        let mut not_found = Response::new(Full::default());
        *not_found.status_mut() = StatusCode::NOT_FOUND;
        return not_found;
    };
    let (headers, body) = &answer[usize::from(accepts_gzip(request.headers()))];
    let mut response = Response::new(Full::new(body.clone()));
    *response.headers_mut() = headers.clone();
    response
}
