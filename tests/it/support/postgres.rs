//! A real PostgreSQL: one server for each test process, with TLS by an authority made here, and one database for each test; a test
//! that harms its server has one of its own. A server ends, and its folder goes, with the process that started it, however that
//! ends. Where `LARDER_TEST_PGBOUNCER` is 1, larder reaches it through PgBouncer in transaction mode (`tests/long/run fleet`).

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use larder::fleet::database::Database;
use larder::fleet::schema;

use rustix::process::{Pid, Signal, kill_process};

use super::ports::free_port;
use super::programs;
use super::tls::TestCa;

/// The password of every role.
const PASSWORD: &str = "for-tests-only";
/// The role that serves, and the one that owns the schema.
pub(crate) const RUN_ROLE: &str = "larder_run";
/// A role with the same rights: that of a replica whose connections a test cuts.
pub(crate) const OTHER_ROLE: &str = "larder_other";
pub(crate) const OWNER: &str = "larder_owner";
/// The superuser.
const SUPERUSER: &str = "super";
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    folder: PathBuf,
    programs: PathBuf,
    port: u16,
    /// The port for larder: that of the server, or of PgBouncer.
    port_of_larder: u16,
    /// The shell that ends the server when its input closes, at the latest with this process.
    guard: Child,
    /// True where the folder is a disk of its own.
    has_disk: bool,
}

/// The size of the disk of a server that has its own, in bytes.
const DISK_BYTES: u64 = 200 << 20;

/// A database of its own, with the schema of a fleet.
#[derive(Debug)]
pub(crate) struct TestDatabase {
    name: String,
    server: Arc<Server>,
}

/// The server of this process; `None`, with a note, where PostgreSQL is not installed.
fn shared_server() -> Option<Arc<Server>> {
    static SERVER: OnceLock<Option<Arc<Server>>> = OnceLock::new();
    SERVER.get_or_init(|| Some(Arc::new(Server::start(&folder_of_programs()?, false)))).clone()
}

/// The newest of the versioned folders of the Debian package, which are not on PATH.
fn folder_of_programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let number = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions.map(|entry| entry.unwrap().path()).filter(|path| number(path).is_some()).max_by_key(number);
    let folder = newest.map(|path| path.join("bin")).filter(|folder| folder.join("postgres").is_file());
    if folder.is_none() {
        programs::skip("PostgreSQL is not installed");
    }
    folder
}

impl Server {
    /// Starts a server; on a small disk of its own if `wants_disk`, and if a disk can be mounted here.
    fn start(programs: &Path, wants_disk: bool) -> Self {
        let folder = tempfile::Builder::new().prefix("larder-postgres-").tempdir().unwrap().keep();
        let has_disk = wants_disk && mount_disk(&folder);
        let port = free_port();
        let server_folder = folder.display();
        let ca = TestCa::new();
        let (certificate, key) = ca.issue(&["localhost", "127.0.0.1"]);
        for (name, text) in
            [("ca.pem", ca.pem()), ("server.pem", certificate), ("server.key", key), ("password", PASSWORD.to_owned())]
        {
            std::fs::write(folder.join(name), text).unwrap();
        }
        let settings = format!(
            "listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = '{server_folder}'\nssl = on\n\
             ssl_cert_file = '{server_folder}/server.pem'\nssl_key_file = '{server_folder}/server.key'\n\
             max_connections = 200\nshared_buffers = 32MB\n"
        );
        // TLS only, and never a connection without the password.
        let access = "local all all scram-sha-256\nhostssl all all 127.0.0.1/32 scram-sha-256\n";
        std::fs::write(folder.join("settings"), settings).unwrap();
        std::fs::write(folder.join("access"), access).unwrap();
        let script = format!(
            "set -e; cd {server_folder}; umask 077; chmod 600 server.key
             {programs}/initdb -D data -U {SUPERUSER} -A scram-sha-256 --pwfile password -E UTF8 --locale C -k > log 2>&1
             cat settings >> data/postgresql.conf; cp access data/pg_hba.conf",
            programs = programs.display()
        );
        if rustix::process::geteuid().is_root() {
            // PostgreSQL refuses to run as root.
            let owned = Command::new("chown").args(["-R", "postgres"]).arg(&folder).status().unwrap();
            assert!(owned.success());
        }
        let made = as_its_user("sh").args(["-c", &script]).output().unwrap();
        assert!(made.status.success(), "{}", log_of(&folder));
        let bouncer = (std::env::var("LARDER_TEST_PGBOUNCER").as_deref() == Ok("1")).then(free_port);
        let run_bouncer = bouncer.map(|bouncer| {
            write_bouncer_settings(&folder, bouncer, port);
            "PATH=$PATH:/usr/sbin pgbouncer -q bouncer.ini >> log 2>&1 & bouncer=$!;"
        });
        let run = format!(
            "cd {server_folder}; {programs}/postgres -D data >> log 2>&1 & server=$!; {} read _; \
             [ -z \"$bouncer\" ] || kill -KILL $bouncer; {programs}/pg_ctl -D data -m fast stop >> log 2>&1 || kill -INT $server; wait; cd /; rm -rf {server_folder}",
            run_bouncer.unwrap_or_default(),
            programs = programs.display()
        );
        let mut guard = as_its_user("sh");
        // Its own group: a Ctrl-C for the tests must not reach it before the server has ended.
        let guard = guard.args(["-c", &run]).stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0);
        let guard = guard.spawn().unwrap();
        let server = Self {
            folder: folder.clone(),
            programs: programs.to_owned(),
            port,
            port_of_larder: bouncer.unwrap_or(port),
            guard,
            has_disk,
        };
        let deadline = Instant::now() + START_TIMEOUT;
        let roles = format!(
            "create role {OWNER} login password '{PASSWORD}'; create role {RUN_ROLE} login password '{PASSWORD}';
             create role {OTHER_ROLE} login password '{PASSWORD}' in role {RUN_ROLE}"
        );
        while let failed @ Output { .. } = server.psql("postgres", &roles)
            && !failed.status.success()
        {
            assert!(Instant::now() < deadline, "{}{}", String::from_utf8_lossy(&failed.stderr), log_of(&folder));
            std::thread::sleep(Duration::from_millis(20));
        }
        while std::net::TcpStream::connect(("127.0.0.1", server.port_of_larder)).is_err() {
            assert!(Instant::now() < deadline, "{}", log_of(&folder));
            std::thread::sleep(Duration::from_millis(20));
        }
        let through = if bouncer.is_some() { " through PgBouncer in transaction mode" } else { "" };
        let version = server.psql("postgres", "show server_version");
        let note = format!("PostgreSQL {}{through}", String::from_utf8_lossy(&version.stdout).trim());
        // Written to stderr directly: the test runner captures only what the print macros write.
        let _ = writeln!(std::io::stderr(), "{note}");
        server
    }

    fn psql(&self, database: &str, sql: &str) -> Output {
        let mut command = Command::new(self.programs.join("psql"));
        command.args(["-qXtA", "-v", "ON_ERROR_STOP=1", "-U", SUPERUSER, "-d", database, "-h"]).arg(&self.folder);
        command.env("PGPASSWORD", PASSWORD).env("PGPORT", self.port.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // It may end before it has read anything: then it says why.
        let _ = child.stdin.take().unwrap().write_all(sql.as_bytes());
        child.wait_with_output().unwrap()
    }
}

impl Server {
    /// The process that accepts connections, and all that it has started.
    fn processes(&self) -> Vec<u32> {
        let noted = std::fs::read_to_string(self.folder.join("data/postmaster.pid")).unwrap_or_default();
        let Some(main) = noted.lines().next().and_then(|line| line.parse::<u32>().ok()) else { return Vec::new() };
        let children = std::fs::read_to_string(format!("/proc/{main}/task/{main}/children")).unwrap_or_default();
        std::iter::once(main).chain(children.split_whitespace().map(|child| child.parse().unwrap())).collect()
    }

    /// Runs a script as the user of the server, in its folder. `pg_ctl` and `pg_dump` are functions in it.
    fn run(&self, script: &str) {
        let programs = self.programs.display();
        let script = format!(
            "set -e; cd {folder}; export PGPASSWORD={PASSWORD} PGPORT={port} PGHOST={folder} PGUSER={SUPERUSER}
             pg_ctl() {{ {programs}/pg_ctl -D data -l log -w \"$@\" >> log 2>&1; }}
             pg_dump() {{ {programs}/pg_dump \"$@\"; }}
             {script}",
            folder = self.folder.display(),
            port = self.port
        );
        let done = as_its_user("sh").args(["-c", &script]).output().unwrap();
        assert!(done.status.success(), "{script}: {}{}", String::from_utf8_lossy(&done.stderr), log_of(&self.folder));
    }

    fn signal(processes: impl IntoIterator<Item = u32>, signal: Signal) {
        for process in processes {
            // A process may have ended meanwhile.
            let _ = kill_process(Pid::from_raw(process.cast_signed()).unwrap(), signal);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        Self::signal(self.processes(), Signal::CONT);
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
        if self.has_disk {
            let _ = Command::new("umount").arg(&self.folder).status();
            let _ = std::fs::remove_dir(&self.folder);
        }
    }
}

/// Mounts a small disk. Returns false, with a note, where that is not permitted.
fn mount_disk(folder: &Path) -> bool {
    let size = format!("size={DISK_BYTES}");
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", &size, "none"]).arg(folder).stderr(Stdio::null());
    let is_mounted = mount.status().is_ok_and(|status| status.success());
    if !is_mounted {
        programs::skip("no tmpfs can be mounted here");
    }
    is_mounted
}

/// Writes the settings of PgBouncer: TLS on both sides, and few connections to the server, so that statements share them.
fn write_bouncer_settings(folder: &Path, bouncer: u16, port: u16) {
    let at = folder.display();
    let settings = format!(
        "[databases]\n* = host=127.0.0.1 port={port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {bouncer}\n\
         unix_socket_dir =\nauth_type = scram-sha-256\nauth_file = {at}/users\npool_mode = transaction\n\
         default_pool_size = 4\nmax_client_conn = 200\nclient_tls_sslmode = require\n\
         client_tls_cert_file = {at}/server.pem\nclient_tls_key_file = {at}/server.key\n\
         server_tls_sslmode = verify-full\nserver_tls_ca_file = {at}/ca.pem\nserver_login_retry = 1\n"
    );
    let users = [RUN_ROLE, OTHER_ROLE, OWNER].map(|role| format!("\"{role}\" \"{PASSWORD}\"\n")).concat();
    for (name, text) in [("bouncer.ini", settings), ("users", users)] {
        std::fs::write(folder.join(name), text).unwrap();
    }
}

/// A command that runs as the user of the server.
fn as_its_user(program: &str) -> Command {
    if rustix::process::geteuid().is_root() {
        let mut command = Command::new("runuser");
        command.args(["-u", "postgres", "--", program]);
        return command;
    }
    Command::new(program)
}

fn log_of(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("log")).unwrap_or_default()
}

impl TestDatabase {
    /// A new database with the schema; `None`, with a note, where PostgreSQL is not installed.
    pub(crate) fn new() -> Option<Self> {
        let database = Self::empty()?;
        schema::migrate(&database.connect_as(OWNER), RUN_ROLE).unwrap();
        Some(database)
    }

    /// A new database without the schema.
    pub(crate) fn empty() -> Option<Self> {
        Some(Self::on(shared_server()?))
    }

    /// A new database with the schema, on a server that a test may harm.
    pub(crate) fn on_its_own_server() -> Option<Self> {
        let database = Self::empty_on_its_own_server(false)?;
        schema::migrate(&database.connect_as(OWNER), RUN_ROLE).unwrap();
        Some(database)
    }

    /// A new database without the schema, on a server that a test may harm; on a small disk of its own, where that is possible and asked
    /// for.
    pub(crate) fn empty_on_its_own_server(with_disk: bool) -> Option<Self> {
        Some(Self::on(Arc::new(Server::start(&folder_of_programs()?, with_disk))))
    }

    /// True where the server has a disk that a test may fill.
    pub(crate) fn has_its_own_disk(&self) -> bool {
        self.server.has_disk
    }

    /// Fills the disk of the server.
    pub(crate) fn fill_disk(&self) {
        let full = std::fs::write(self.ballast(), vec![7; DISK_BYTES as usize]);
        assert!(full.is_err(), "the disk is larger than it should be");
    }

    /// Removes what fills the disk. A server that has ended for lack of space is started again.
    pub(crate) fn empty_disk(&self) {
        std::fs::remove_file(self.ballast()).unwrap();
        self.server.run("pg_ctl status || pg_ctl start");
    }

    fn ballast(&self) -> PathBuf {
        self.server.folder.join("ballast")
    }

    /// Ends the server at once, as a power cut does.
    pub(crate) fn kill(&self) {
        self.server.run("pg_ctl -m immediate stop");
    }

    /// Starts the server after [`Self::kill`].
    pub(crate) fn start_again(&self) {
        self.server.run("pg_ctl start");
    }

    /// Lets the server take no writes, as one does that runs out of transactions, or that a person has set so.
    pub(crate) fn set_read_only(&self, is_read_only: bool) {
        let value = if is_read_only { "on" } else { "off" };
        self.sql(&format!(
            "set default_transaction_read_only = off;
             alter system set default_transaction_read_only = {value};
             select pg_reload_conf();"
        ));
    }

    fn on(server: Arc<Server>) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("larder{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let made = server.psql("postgres", &format!("create database {name} owner {OWNER}"));
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Self { name, server }
    }

    /// Kills a process of the server that serves a connection, as the system does that lacks memory. The server ends all others,
    /// and recovers as after a power cut. Returns when all others have ended.
    pub(crate) fn crash(&self) {
        let processes = self.server.processes();
        let [_, others @ ..] = &processes[..] else { panic!("no process: {}", log_of(&self.server.folder)) };
        // The newest may end by itself just now, and is killed by nobody then.
        let mut newest = others.iter().rev();
        let mut killed = Instant::now();
        Server::signal(newest.next().copied(), Signal::KILL);
        while others.iter().any(|process| Path::new(&format!("/proc/{process}")).exists()) {
            std::thread::sleep(Duration::from_millis(5));
            if killed.elapsed() > Duration::from_secs(2) {
                Server::signal(newest.next().copied(), Signal::KILL);
                killed = Instant::now();
            }
        }
    }

    /// Stops all processes of the server, which answer nothing until they go on.
    pub(crate) fn freeze(&self) {
        Server::signal(self.server.processes(), Signal::STOP);
    }

    /// Lets the processes go on.
    pub(crate) fn unfreeze(&self) {
        Server::signal(self.server.processes(), Signal::CONT);
    }

    /// Keeps the disk of the server as it is now.
    pub(crate) fn keep_disk(&self) {
        self.server.run("pg_ctl -m fast stop; cp -a data kept; pg_ctl start");
    }

    /// Sets the disk back to what was kept, as a snapshot of a virtual machine does.
    pub(crate) fn set_disk_back(&self) {
        self.server.run("pg_ctl -m immediate stop; rm -rf data; mv kept data; pg_ctl start");
    }

    /// Makes the server a standby without a primary, and promotes it.
    pub(crate) fn promote(&self) {
        self.server.run("pg_ctl -m fast stop; touch data/standby.signal; pg_ctl start; pg_ctl promote");
    }

    /// Writes a dump of the database.
    pub(crate) fn dump(&self) {
        self.server.run(&format!("pg_dump --clean --if-exists -f dump.sql {}", self.name));
    }

    /// Restores the dump.
    pub(crate) fn restore(&self) {
        self.restore_from(self);
    }

    /// The URL of a role, with its password.
    pub(crate) fn url(&self, role: &str) -> String {
        format!("postgresql://{role}:{PASSWORD}@127.0.0.1:{}/{}", self.server.port_of_larder, self.name)
    }

    /// The authority of the server's certificate.
    pub(crate) fn ca(&self) -> PathBuf {
        self.server.folder.join("ca.pem")
    }

    /// Leaves a transaction open that has written much which nobody has acknowledged, so that it is not on the disk yet.
    pub(crate) fn leave_open(&self) {
        let (server, name) = (Arc::clone(&self.server), self.name.clone());
        let noise = "insert into larder.past select 'noise' || i, i, gen_random_uuid()::text::bytea from generate_series(1, 3000) i";
        // It may recover from a crash.
        while !server.psql(&name, "select 1").status.success() {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::spawn(move || {
            // It ends with the server.
            let _ = server.psql(&name, &format!("begin; {noise}; select pg_sleep(600);"));
        });
        let sleeps =
            "select count(*) from pg_stat_activity where state = 'active' and query like 'select pg_sleep(600)%'";
        while self.sql(sleeps) == "0" {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Restores the dump of another database into this one.
    pub(crate) fn restore_from(&self, other: &Self) {
        let dump = std::fs::read_to_string(other.server.folder.join("dump.sql")).unwrap();
        self.sql(&dump);
    }

    /// Ends all connections of a role, and refuses new ones.
    pub(crate) fn cut(&self, role: &str) {
        self.sql(&format!(
            "alter role {role} nologin; select pg_terminate_backend(pid) from pg_stat_activity where usename = '{role}'"
        ));
    }

    /// Lets a role connect again.
    pub(crate) fn mend(&self, role: &str) {
        self.sql(&format!("alter role {role} login"));
    }

    /// Connections of the role that serves.
    pub(crate) fn connect(&self) -> Database {
        self.connect_as(RUN_ROLE)
    }

    /// Connections of the role that owns the schema.
    pub(crate) fn connect_as_owner(&self) -> Database {
        self.connect_as(OWNER)
    }

    pub(crate) fn connect_as(&self, role: &str) -> Database {
        Database::new(&self.url(role), Some(&self.ca())).unwrap()
    }

    /// The output of statements of the superuser: one line for each row.
    pub(crate) fn sql(&self, statements: &str) -> String {
        let done = self.server.psql(&self.name, statements);
        assert!(done.status.success(), "{statements}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap().trim_end().to_owned()
    }
}
