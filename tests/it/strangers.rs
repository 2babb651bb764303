//! Another program listens where a command expects larder: no token reaches it, and nothing that it says is believed. A
//! listener records every byte that it gets.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use larder::clock::Timestamp;
use larder::place::Place;
use larder::store::{ListenerNote, OwnerNote, Store, StoreOwner};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::task::JoinHandle;

use crate::support::another_user::AnotherUser;
use crate::support::command_setup::CommandSetup;
use crate::support::http::get;
use crate::support::larder::{HOST, Larder, open_store, wait_until_unlocked};
use crate::support::process::{CommandOutput, Process, run};
use crate::support::upstream::{FakeUpstream, Provider};

/// A name that is in every answer of a stranger, and nowhere else.
const STRANGE: &str = "stranger.invalid";

/// Commands that read, that change, that look, and one that leads a client somewhere.
const COMMANDS: [&[&str]; 7] = [
    &["status"],
    &["purge", "acme/null"],
    &["client-config"],
    &["explain", "acme/null"],
    &["warm", "acme/null@1.2.0"],
    &["doctor"],
    &["run", "--", "sh", "-c", "cat \"$TF_CLI_CONFIG_FILE\""],
];

/// The behaviour of a stranger on a connection.
#[derive(Clone, Copy)]
enum Trick {
    /// Answers every request as larder would.
    AnswersAsLarder,
    /// Sends back what it gets.
    Echoes,
    /// Reads, and answers nothing.
    IsSilent,
    /// Relays to the real larder, and reads what passes.
    RelaysTo(SocketAddr),
}

/// A listener that records every byte.
struct Stranger {
    address: SocketAddr,
    received: Arc<Mutex<Vec<u8>>>,
    task: JoinHandle<()>,
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Stranger {
    async fn at(address: &str, trick: Trick) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::<Mutex<Vec<u8>>>::default();
        let recorded = Arc::clone(&received);
        let task = tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                tokio::spawn(play(connection, trick, Arc::clone(&recorded)));
            }
        });
        Self { address, received, task }
    }

    async fn somewhere(trick: Trick) -> Self {
        Self::at("127.0.0.1:0", trick).await
    }

    /// Asserts that it got neither the token nor a request in plain text, but for the doctor's sign of life.
    fn assert_blind(&self, token: &str, shape: &str) {
        let received = String::from_utf8_lossy(&self.received.lock()).into_owned();
        assert!(!received.contains(token), "{shape}: the token left: {received}");
        let received = received.replace("GET /healthz HTTP/1.1", "");
        for part in ["HTTP/1.1", "Bearer", "authorization"] {
            assert!(!received.contains(part), "{shape}: a request left: {received}");
        }
    }

    /// Asserts that it got nothing but a sign of life by the doctor.
    fn assert_nothing_but_a_probe(&self, shape: &str) {
        let received = String::from_utf8_lossy(&self.received.lock()).into_owned();
        for head in received.split("\r\n\r\n").filter(|head| !head.is_empty()) {
            assert!(head.starts_with("GET /healthz HTTP/1.1") && !head.contains("earer"), "{shape}: {received}");
        }
    }
}

async fn play(mut connection: TcpStream, trick: Trick, recorded: Arc<Mutex<Vec<u8>>>) {
    if let Trick::RelaysTo(real) = trick {
        let Ok(mut real) = TcpStream::connect(real).await else { return };
        let mut recording = Recording { connection, recorded };
        let _ = copy_bidirectional(&mut recording, &mut real).await;
        return;
    }
    let mut buffer = [0; 4096];
    loop {
        let Ok(count @ 1..) = connection.read(&mut buffer).await else { return };
        recorded.lock().extend_from_slice(&buffer[..count]);
        match trick {
            Trick::Echoes => drop(connection.write_all(&buffer[..count]).await),
            Trick::AnswersAsLarder => drop(connection.write_all(false_answer(&buffer[..count]).as_bytes()).await),
            Trick::IsSilent | Trick::RelaysTo(_) => {}
        }
    }
}

/// Something for every command: a status, a report, a configuration that leads to the stranger.
fn false_answer(request: &[u8]) -> String {
    let body = match String::from_utf8_lossy(request).contains("client-config") {
        true => format!(
            "host \"{HOST}\" {{\n  services = {{ \"providers.v1\" = \"http://{STRANGE}/v1/providers/\" }}\n}}\n"
        ),
        false => format!("{{\"offline\":false,\"version\":\"{STRANGE}\",\"results\":[],\"addresses\":[]}}"),
    };
    format!("HTTP/1.1 200 OK\r\nServer: larder\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// A connection whose bytes are recorded when they are read.
struct Recording {
    connection: TcpStream,
    recorded: Arc<Mutex<Vec<u8>>>,
}

impl tokio::io::AsyncRead for Recording {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let read = std::pin::Pin::new(&mut self.connection).poll_read(cx, buffer);
        self.recorded.lock().extend_from_slice(&buffer.filled()[before..]);
        read
    }
}

impl tokio::io::AsyncWrite for Recording {
    fn poll_write(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> std::task::Poll<std::io::Result<usize>> {
        std::pin::Pin::new(&mut self.connection).poll_write(cx, bytes)
    }

    fn poll_flush(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::pin::Pin::new(&mut self.connection).poll_flush(cx)
    }

    fn poll_shutdown(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::pin::Pin::new(&mut self.connection).poll_shutdown(cx)
    }
}

/// A configuration whose admin address is the stranger's, and its store with a token.
struct Scene {
    setup: CommandSetup,
    stranger: Stranger,
    token: String,
    _upstream: FakeUpstream,
}

impl Scene {
    async fn new(trick: Trick) -> Self {
        let stranger = Stranger::somewhere(trick).await;
        let upstream = FakeUpstream::start().await;
        upstream.publish(Provider::new("acme", "null").size(5_000));
        let setup = CommandSetup::with_admin_port(&upstream, stranger.address.port());
        let store = open_store(setup.home.path(), Timestamp(1));
        let token = store.local.admin_token().unwrap();
        drop(store);
        wait_until_unlocked(setup.home.path());
        setup.file();
        Self { setup, stranger, token, _upstream: upstream }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.setup.home.path().join(name)
    }

    /// Opens the store in this process, as a command that works for long.
    fn take_store(&self) -> Store {
        open_store(self.setup.home.path(), Timestamp(1))
    }

    /// Writes what a lock file may hold, under the lock of another process.
    fn note(&self, text: &str) {
        std::fs::write(self.path("v1/lock"), text).unwrap();
    }

    /// The note of a larder that listens where the stranger does.
    fn note_of_larder(&self, place: Place) -> String {
        let address = self.stranger.address;
        let listeners = ListenerNote { main: address, admin: address, handover: None };
        let note = OwnerNote { place, process: std::process::id(), owner: StoreOwner::Larder(listeners) };
        serde_json::to_string(&note).unwrap()
    }

    /// Runs commands that read, that change, that a client takes URLs from; returns what they print.
    async fn run_commands(&self, options: &[&str]) -> Vec<CommandOutput> {
        futures_util::future::join_all(COMMANDS.map(|command| self.run(command, options))).await
    }

    /// [`Self::run_commands`], one after another: each has the store for itself.
    async fn run_in_turn(&self, options: &[&str]) -> Vec<CommandOutput> {
        let mut outputs = Vec::new();
        for command in COMMANDS {
            outputs.push(self.run(command, options).await);
        }
        outputs
    }

    async fn run(&self, command: &[&str], options: &[&str]) -> CommandOutput {
        let file = self.path("mirror.toml");
        let common = [options, &["--config", file.to_str().unwrap()]].concat();
        // Arguments after `--` are the client's.
        let arguments = [&command[..1], &common[..], &command[1..]].concat();
        run(crate::support::process::command(self.setup.home.path(), &arguments)).await
    }

    /// Asserts that nothing was sent to the stranger and nothing of it believed.
    fn assert_safe(&self, shape: &str, outputs: &[CommandOutput]) {
        self.assert_unbelieved(shape, outputs);
        self.stranger.assert_nothing_but_a_probe(shape);
        let received = String::from_utf8_lossy(&self.stranger.received.lock()).into_owned();
        assert!(!received.contains(&self.token), "{shape}: the token left");
    }

    fn assert_unbelieved(&self, shape: &str, outputs: &[CommandOutput]) {
        for output in outputs {
            assert!(!output.out.contains(STRANGE) && !output.err.contains(STRANGE), "{shape}: {output:?}");
            assert!(!output.out.contains(&self.token) && !output.err.contains(&self.token), "{shape}: {output:?}");
            let address = format!("127.0.0.1:{}/", self.stranger.address.port());
            assert!(!output.out.contains(&address), "{shape}: {output:?}");
        }
    }
}

/// The store is free: no larder, one that has ended, one that starts in a moment.
#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_at_the_address_of_a_larder_that_does_not_run_is_not_asked() {
    let scene = Scene::new(Trick::AnswersAsLarder).await;
    let outputs = scene.run_in_turn(&[]).await;
    scene.assert_safe("a free lock", &outputs);
    assert_eq!(outputs[0].code, Some(0), "{outputs:?}");
    // A larder that was killed leaves its note.
    scene.note(&scene.note_of_larder(Place::here()));
    scene.assert_safe("a stale note", &scene.run_in_turn(&[]).await);
    std::fs::remove_dir_all(scene.path("v1")).unwrap();
    let outputs = scene.run_in_turn(&[]).await;
    scene.assert_unbelieved("no store", &outputs);
    scene.stranger.assert_blind(&scene.token, "no store");
}

/// A command has the store: `warm`, `import`, `verify`, `bundle apply`; or a larder that does not listen yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_is_not_asked_while_a_command_has_the_store() {
    let scene = Scene::new(Trick::AnswersAsLarder).await;
    let store = scene.take_store();
    let outputs = scene.run_commands(&[]).await;
    scene.assert_safe("a command has the store", &outputs);
    for (number, output) in outputs.into_iter().enumerate() {
        if number == 2 {
            // The configuration says where the clients of its larder go.
            assert!(output.out.contains(&scene.setup.base()), "{output:?}");
            continue;
        }
        assert_ne!(output.code, Some(0), "{output:?}");
        assert!(format!("{}{}", output.out, output.err).contains("is in use by process"), "{output:?}");
    }
    scene.note("");
    scene.assert_safe("no note", &scene.run_commands(&[]).await);
    scene.note("{\"main\":\"127.0.0.1:1\",\"admin\":\"127.0.0.1:1\"}");
    scene.assert_safe("the note of an older version", &scene.run_commands(&[]).await);
    drop(store);
}

/// The note of a larder that has just ended, read in the moment before the next owner of the lock writes its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_at_a_noted_address_gets_no_more_than_a_handshake() {
    let shapes = [
        ("a noted stranger that answers as larder", Trick::AnswersAsLarder),
        ("a noted stranger that echoes", Trick::Echoes),
        ("a noted stranger that is silent", Trick::IsSilent),
    ];
    let tries = shapes.map(|(shape, trick)| async move {
        let scene = Scene::new(trick).await;
        let _store = scene.take_store();
        scene.note(&scene.note_of_larder(Place::here()));
        let outputs = scene.run_commands(&[]).await;
        scene.assert_unbelieved(shape, &outputs);
        scene.stranger.assert_blind(&scene.token, shape);
        assert!(outputs.iter().all(|output| output.code != Some(0)), "{shape}: {outputs:?}");
    });
    futures_util::future::join_all(tries).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_note_of_another_machine_or_network_is_not_followed() {
    let scene = Scene::new(Trick::AnswersAsLarder).await;
    let _store = scene.take_store();
    let here = Place::here();
    for (shape, place) in [
        ("another network", Place { network: "net:[1]".to_owned(), ..here.clone() }),
        ("another machine", Place { host: "elsewhere".to_owned(), kernel: "k".to_owned(), ..here }),
    ] {
        scene.note(&scene.note_of_larder(place));
        let outputs = scene.run_commands(&[]).await;
        scene.assert_safe(shape, &outputs);
        for output in outputs {
            assert_ne!(output.code, Some(0), "{shape}: {output:?}");
        }
    }
}

/// `--admin-listen` names a listener elsewhere: it proves that it knows the token, or gets nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_named_listener_that_cannot_prove_itself_gets_no_more_than_a_handshake() {
    for (shape, address, trick) in [
        ("named, answers as larder", "127.0.0.1:0", Trick::AnswersAsLarder),
        ("named, echoes", "127.0.0.1:0", Trick::Echoes),
        ("named, IPv6", "[::1]:0", Trick::AnswersAsLarder),
    ] {
        let mut scene = Scene::new(Trick::AnswersAsLarder).await;
        scene.stranger = Stranger::at(address, trick).await;
        let named = scene.stranger.address.to_string();
        let outputs = scene.run_commands(&["--admin-listen", &named]).await;
        scene.assert_unbelieved(shape, &outputs);
        scene.stranger.assert_blind(&scene.token, shape);
        assert!(outputs[..5].iter().all(|output| output.code == Some(1)), "{shape}: {outputs:?}");
        assert!(outputs[0].err.contains("does not prove that it knows the admin token"), "{outputs:?}");
    }
}

/// A relay sees ciphertext, and cannot change an answer. So a command through a port forwarding works, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_before_the_real_larder_reads_and_changes_nothing() {
    let mut scene = Scene::new(Trick::AnswersAsLarder).await;
    let file = scene.setup.file();
    let admin = crate::support::ports::free_port();
    let text = std::fs::read_to_string(&file).unwrap();
    let strange = scene.stranger.address.port().to_string();
    scene.setup.text = text.replace(&strange, &admin.to_string());
    scene.setup.file();
    let _larder = scene.setup.serve();
    scene.stranger = Stranger::somewhere(Trick::RelaysTo(SocketAddr::from(([127, 0, 0, 1], admin)))).await;
    let named = scene.stranger.address.to_string();
    // In turn: a purge may take what a warm-up has just stored.
    let outputs = scene.run_in_turn(&["--admin-listen", &named]).await;
    scene.assert_unbelieved("a relay", &outputs);
    scene.stranger.assert_blind(&scene.token, "a relay");
    for output in &outputs[..5] {
        assert_eq!(output.code, Some(0), "{output:?}");
    }
    assert!(!scene.stranger.received.lock().is_empty(), "the relay was not used");
    assert!(outputs[6].out.contains("127.0.0.1"), "the client was led to the real larder: {:?}", outputs[6]);
}

/// A larder with another token is a stranger, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_larder_with_another_token_is_not_asked() {
    let mut scene = Scene::new(Trick::AnswersAsLarder).await;
    let other = Scene::new(Trick::IsSilent).await;
    let address = crate::support::ports::free_port();
    let mut other_setup = other.setup;
    other_setup.text = other_setup.text.replace(&other.stranger.address.port().to_string(), &address.to_string());
    let _other_larder = other_setup.serve();
    scene.stranger = Stranger::somewhere(Trick::RelaysTo(SocketAddr::from(([127, 0, 0, 1], address)))).await;
    let outputs = scene.run_commands(&["--admin-listen", &scene.stranger.address.to_string()]).await;
    scene.stranger.assert_blind(&scene.token, "another larder");
    assert!(outputs[..5].iter().all(|output| output.code == Some(1)), "{outputs:?}");
}

/// A link, a file or a folder in place of the socket is not followed, and a socket of another user is left alone.
#[tokio::test(flavor = "multi_thread")]
async fn what_lies_in_place_of_the_socket_is_not_trusted() {
    let scene = Scene::new(Trick::AnswersAsLarder).await;
    let _store = scene.take_store();
    scene.note(&scene.note_of_larder(Place::here()));
    let socket = Store::admin_socket(scene.setup.home.path());
    let elsewhere = scene.path("strange.sock");
    let listener = UnixListener::bind(&elsewhere).unwrap();
    let received = Arc::<Mutex<Vec<u8>>>::default();
    let recorded = Arc::clone(&received);
    let task = tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = connection.read(&mut buffer).await {
                recorded.lock().extend_from_slice(&buffer[..count]);
                let _ = connection.write_all(false_answer(&buffer[..count]).as_bytes()).await;
            }
        }
    });
    for shape in ["a link in place of the socket", "a file in place of the socket", "a folder in place of the socket"] {
        match shape.split(' ').nth(1) {
            Some("link") => std::os::unix::fs::symlink(&elsewhere, &socket).unwrap(),
            Some("file") => std::fs::write(&socket, "").unwrap(),
            _ => std::fs::create_dir(&socket).unwrap(),
        }
        let outputs = scene.run_commands(&[]).await;
        scene.assert_unbelieved(shape, &outputs);
        scene.stranger.assert_blind(&scene.token, shape);
        assert!(received.lock().is_empty(), "{shape}");
        std::fs::remove_file(&socket).or_else(|_| std::fs::remove_dir(&socket)).unwrap();
    }
    task.abort();
}

/// Only root can try this: for another user the folder of the socket is closed.
#[tokio::test(flavor = "multi_thread")]
async fn a_socket_of_another_user_is_not_asked() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let scene = Scene::new(Trick::AnswersAsLarder).await;
    let user = AnotherUser::new();
    let lines = "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n";
    let config = user.file("home/mirror.toml", lines);
    let store = user.path("home/store");
    let mut command = user.command(&["serve", "--offline", "--json", "--config", config.to_str().unwrap(), "--store"]);
    command.arg(&store);
    let other = Process::spawn(command).unwrap();
    let _store = scene.take_store();
    scene.note(&scene.note_of_larder(Place::here()));
    let socket = Store::admin_socket(scene.setup.home.path());
    std::fs::rename(Store::admin_socket(&store), &socket).unwrap();
    let outputs = scene.run_commands(&[]).await;
    scene.assert_unbelieved("a socket of another user", &outputs);
    scene.stranger.assert_blind(&scene.token, "a socket of another user");
    assert!(outputs.iter().all(|output| output.code != Some(0)), "{outputs:?}");
    assert_eq!(other.get("/healthz").await.status, 200, "the other larder runs");
}

/// A larder answers the commands of its own user without a token, at a socket that only this user can reach.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_reaches_its_own_larder_at_the_socket_of_the_store() {
    use std::os::unix::fs::PermissionsExt as _;
    let scene = Scene::new(Trick::AnswersAsLarder).await;
    let mut setup = scene.setup;
    let port = scene.stranger.address.port().to_string();
    setup.text = setup.text.replace(&port, &crate::support::ports::free_port().to_string());
    let larder = setup.serve();
    let socket = Store::admin_socket(setup.home.path());
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::metadata(socket.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
    // A wrong token in the file changes nothing for the commands of this user.
    std::fs::write(setup.home.path().join("admin-token"), "0".repeat(64)).unwrap();
    // A configuration that names the stranger leads to the larder of the store all the same.
    setup.text = setup.text.replace(&larder.admin().replace("http://127.0.0.1:", ""), &port);
    assert!(setup.stdout_of(&["status"]).await.contains("(running)"));
    setup.stdout_of(&["warm", "acme/null@1.2.0", "--platform", "linux_amd64"]).await;
    setup.stdout_of(&["purge", "acme/null"]).await;
    scene.stranger.assert_nothing_but_a_probe("the larder of the store");
    larder.terminate().await;
    assert!(!socket.exists(), "the socket is left behind");
}

/// A run in another container would lead its client to whatever listens on the loopback address there.
#[tokio::test]
async fn a_run_in_another_network_gets_no_loopback_urls() {
    let upstream = FakeUpstream::start().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let url = format!("{}/admin/v1/runs/{}/client-config", larder.admin(), "a".repeat(32));
    let here = Place::here().network_id();
    assert!(get(&format!("{url}?network={here}")).await.expect(200).text().contains(larder.base()));
    let refused = get(&format!("{url}?network=0123456789abcdef")).await.expect(409);
    assert!(refused.text().contains("set [server] public_url"), "{}", refused.text());
}
