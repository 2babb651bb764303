//! The database of a fleet: races of many writers, a server that crashes, hangs or refuses, and the rights of each role.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rsa::{KeyPair, KeySize};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use larder::address::{Address, Hostname, Name, ProviderAddress, Version};
use larder::fleet::database::{Database, DatabaseError};
use larder::fleet::records::DatabaseRecords;
use larder::fleet::schema::{self, SchemaError};
use larder::store::{
    Change, Durability, IndexEntry, Key, ReadOutcome, RecordAction, Records, StoreError, WriteOutcome,
};
use serde_json::Value;

use crate::support::bucket::{self, ACCESS_KEY, BucketFault, SERVICE_ACCOUNT, TestBucket, Verb};
use crate::support::larder::Folder;
use crate::support::ports::free_port;
use crate::support::postgres::{OWNER, RUN_ROLE, TestDatabase};
use crate::support::process::{CommandOutput, command, run};
use crate::support::repetitions;

fn provider(name: &str) -> ProviderAddress {
    let [namespace, type_] = ["acme", name].map(|name| Name::parse(name).unwrap());
    ProviderAddress { host: Hostname::parse("registry.example").unwrap(), namespace, type_ }
}

pub(crate) fn first_seen(name: &str) -> Key {
    Key::FirstSeen(provider(name), Version::parse("1.0.0").unwrap())
}

pub(crate) fn alarms(name: &str) -> Key {
    Key::Alarms(Address::Provider(provider(name)))
}

fn records(database: &TestDatabase) -> DatabaseRecords {
    DatabaseRecords::of(Arc::new(database.connect()))
}

/// Repeats until the database answers.
pub(crate) fn until_answered<T>(mut step: impl FnMut() -> Result<T, StoreError>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match step() {
            Ok(done) => return done,
            Err(StoreError::Unreachable(reason)) => assert!(Instant::now() < deadline, "{reason}"),
            Err(StoreError::Busy(_)) => {}
            Err(error) => panic!("{error}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The versions of each provider in a race.
const VERSIONS: usize = 4;

/// The records of a round: a version, and the alarms of its provider.
fn keys_of(round: usize) -> (Key, Key) {
    let name = format!("p{}", round / VERSIONS);
    let version = Version::parse(&format!("1.{}.0", round % VERSIONS)).unwrap();
    (Key::FirstSeen(provider(&name), version), alarms(&name))
}

/// The rounds of a race: fewer here than in the long run.
fn rounds() -> usize {
    repetitions(40, 1000)
}

/// Promise 16.
#[test]
fn each_version_has_one_first_whatever_crashes() {
    let Some(database) = TestDatabase::on_its_own_server() else { return };
    race(&database, &[(); 3].map(|()| records(&database)));
}

/// Many writers record the first of each version, with an alarm in the same step, while the server crashes three times.
///
/// The versions of a provider are of one group: the first of them makes it, and the others change it.
pub(crate) fn race(database: &TestDatabase, replicas: &[impl Records; 3]) {
    const WRITERS: usize = 8;
    let rounds = rounds();
    let (start, round_now) = (Barrier::new(WRITERS), AtomicUsize::new(0));
    let firsts: Mutex<BTreeMap<usize, Vec<usize>>> = Mutex::default();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (records, start, round_now, firsts) = (&replicas[writer % 3], &start, &round_now, &firsts);
            scope.spawn(move || {
                for round in 0..rounds {
                    start.wait();
                    round_now.store(round, Ordering::Release);
                    let (seen, alarms) = keys_of(round);
                    let mine = format!("writer {writer}").into_bytes();
                    let record = || {
                        let records: &dyn Records = records;
                        records.change(&seen, |step| match step.read(&seen)? {
                            ReadOutcome::Absent => {
                                step.put(&seen, mine.clone(), Durability::Synced, IndexEntry::Unindexed);
                                step.put(&alarms, mine.clone(), Durability::Synced, IndexEntry::Unindexed);
                                Ok(true)
                            }
                            ReadOutcome::Intact(first) => Ok(first == mine),
                            ReadOutcome::Damaged => panic!("damaged"),
                        })
                    };
                    if until_answered(record) {
                        firsts.lock().unwrap().entry(round).or_default().push(writer);
                    }
                }
            });
        }
        for crash in 1..=3 {
            while round_now.load(Ordering::Acquire) < rounds * crash / 4 {
                std::thread::sleep(Duration::from_millis(1));
            }
            database.crash();
        }
    });
    let firsts = firsts.into_inner().unwrap();
    assert_eq!(firsts.len(), rounds);
    let records: &dyn Records = &replicas[0];
    for (round, writers) in firsts {
        let [writer] = writers[..] else { panic!("round {round} was acknowledged to {writers:?}") };
        let (seen, _) = keys_of(round);
        let first = String::from_utf8(until_answered(|| records.get(&seen)).unwrap()).unwrap();
        assert_eq!(first, format!("writer {writer}"), "round {round}");
    }
    assert_eq!(database.sql("select count(*) from larder.past"), "0", "a first was replaced");
    // The alarm that stands is of the last first of its provider, and of the same step.
    let last = "select count(*) from larder.record r join larder.grp g on g.grp = r.grp and g.gen = r.gen
        join larder.history h on h.gen = g.gen and h.body = r.body";
    assert_eq!(database.sql(last), rounds.div_ceil(VERSIONS).to_string());
}

/// A server that does not answer costs each caller at most two seconds, and most of them nothing; when it goes on, so do they.
#[test]
fn a_server_that_hangs_is_told_in_time_and_left_alone() {
    let Some(database) = TestDatabase::on_its_own_server() else { return };
    let replica = records(&database);
    let records: &dyn Records = &replica;
    records.put(&first_seen("null"), b"first", Durability::Synced).unwrap();
    database.freeze();
    let begun = Instant::now();
    let error = records.get(&first_seen("null")).unwrap_err();
    assert!(
        matches!(&error, StoreError::Unreachable(reason) if reason.contains("no answer within 1500 ms")),
        "{error}"
    );
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    let again = Instant::now();
    (0..100).for_each(|_| drop(records.get(&first_seen("null")).unwrap_err()));
    assert!(again.elapsed() < Duration::from_secs(2), "{:?}", again.elapsed());
    database.unfreeze();
    let back = Instant::now();
    assert_eq!(until_answered(|| records.get(&first_seen("null"))), Some(b"first".to_vec()));
    assert!(back.elapsed() < Duration::from_secs(3), "{:?}", back.elapsed());
}

/// A refused write is not taken for a lost race.
#[test]
fn a_database_that_takes_no_writes_says_why() {
    let Some(database) = TestDatabase::new() else { return };
    let replica = records(&database);
    let records: &dyn Records = &replica;
    records.put(&first_seen("null"), b"first", Durability::Synced).unwrap();
    let refused = |reason: &str| {
        let error = records.put(&first_seen("other"), b"first", Durability::Synced).unwrap_err();
        assert!(matches!(&error, StoreError::Unreachable(text) if text.contains(reason)), "{error}");
    };
    database.sql("update larder.fleet set settle_until = now() + interval '1 minute'");
    refused("nothing is recorded as first for a minute");
    // Other records may change meanwhile.
    records.put(&alarms("other"), b"alarm", Durability::Synced).unwrap();
    database.sql("update larder.fleet set settle_until = now(), sealed = true");
    refused("the fleet is sealed");
    database.sql("update larder.fleet set sealed = false");
    records.put(&first_seen("other"), b"first", Durability::Synced).unwrap();
    database.sql("update larder.fleet set epoch = epoch + 1");
    records.put(&first_seen("third"), b"first", Durability::Synced).unwrap();
    let name = database.sql("select current_database()");
    database.sql(&format!("alter database {name} set default_transaction_read_only = on"));
    database.sql("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'larder_run' and datname = current_database()");
    let error = until_refused(|| records.put(&first_seen("third"), b"first", Durability::Synced));
    assert!(error.to_string().contains("no connection to the database"), "{error}");
}

/// Repeats while broken connections are replaced.
fn until_refused(mut step: impl FnMut() -> Result<(), StoreError>) -> StoreError {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match step() {
            Err(error) if !error.to_string().contains("broke") => return error,
            other => assert!(Instant::now() < deadline, "{other:?}"),
        }
    }
}

/// Every earlier body of a history, and every damaged record, stays.
#[test]
fn nothing_that_was_recorded_is_lost() {
    let Some(database) = TestDatabase::new() else { return };
    let replica = records(&database);
    let records: &dyn Records = &replica;
    for body in ["one", "two", "three"] {
        records.put(&first_seen("null"), body.as_bytes(), Durability::Synced).unwrap();
        records.put(&alarms("null"), body.as_bytes(), Durability::Synced).unwrap();
    }
    records.remove(&first_seen("null"), Durability::Synced).unwrap();
    let quarantine = Change { key: alarms("null"), action: RecordAction::Quarantine, entry: IndexEntry::Gone };
    let group = alarms("null").group();
    let read_at = records.generation(&group).unwrap();
    assert_eq!(records.write(&group, read_at, &[quarantine]).unwrap(), WriteOutcome::Written);
    assert_eq!((records.get(&first_seen("null")).unwrap(), records.get(&alarms("null")).unwrap()), (None, None));
    let past = "select path || ' ' || convert_from(body, 'utf8') from larder.past order by gen";
    let [seen, alarm] =
        ["seen/registry.example/providers/acme/null/1.0.0.json", "alarms/registry.example/providers/acme/null.json"];
    assert_eq!(database.sql(past), format!("{seen} one\n{seen} two\n{seen} three\n{alarm} three"));
}

/// The role that serves can add to what must not be forgotten, and can take nothing of it away.
#[test]
fn the_role_that_serves_forgets_nothing() {
    let Some(database) = TestDatabase::new() else { return };
    let run = database.connect();
    for statement in [
        "delete from larder.history",
        "delete from larder.past",
        "update larder.past set body = null",
        "delete from larder.grp",
        "truncate larder.history",
        "delete from larder.fleet",
        "insert into larder.migration values (9, '', '')",
        "drop table larder.record",
        "create table larder.mine (a int)",
    ] {
        let refused = run.run(move |client| Box::pin(client.batch_execute(statement))).unwrap_err();
        assert!(
            matches!(&refused, DatabaseError::Refused { state, .. } if state.code() == "42501"),
            "{statement}: {refused}"
        );
    }
}

#[test]
fn a_schema_is_made_once_and_one_that_does_not_fit_is_refused() {
    let Some(database) = TestDatabase::empty() else { return };
    let (owner, run) = (database.connect_as_owner(), database.connect());
    assert!(matches!(schema::check(&run), Err(SchemaError::Missing(1))));
    // Two at once: one makes it.
    let other = database.connect_as_owner();
    let made: Vec<Vec<i32>> = std::thread::scope(|scope| {
        let threads =
            [&owner, &other].map(|database| scope.spawn(move || schema::migrate(database, RUN_ROLE).unwrap()));
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let last = schema::MIGRATIONS.len() as i32;
    assert_eq!(made.concat(), (1..=last).collect::<Vec<_>>(), "{made:?}");
    schema::check(&run).unwrap();
    assert_eq!(schema::migrate(&owner, RUN_ROLE).unwrap(), Vec::<i32>::new());
    let next = last + 1;
    database.sql(&format!("insert into larder.migration (n, sha256, oldest_binary) values ({next}, 'x', '0.0.9')"));
    schema::check(&run).unwrap();
    database.sql(&format!("update larder.migration set oldest_binary = '99.0.0' where n = {next}"));
    let newer = schema::check(&run).unwrap_err().to_string();
    assert_eq!(newer, format!("the database has migration {next}, which needs larder 99.0.0 or newer"));
    assert!(matches!(schema::migrate(&owner, RUN_ROLE), Err(SchemaError::Newer { number, .. }) if number == next));
    database.sql(&format!(
        "delete from larder.migration where n = {next}; update larder.migration set sha256 = 'x' where n = 1"
    ));
    assert!(matches!(schema::check(&run), Err(SchemaError::Other(1))));
}

/// A folder with a configuration of a fleet on this database, as this role, and on this bucket.
fn configured(database: &TestDatabase, role: &str, bucket: &TestBucket) -> Folder {
    let home = Folder::new();
    let write = |name: &str, text: &str| std::fs::write(home.path().join(name), text).unwrap();
    write("database-url", &database.url(role));
    write("fleet-secret", "0123456789abcdef0123456789abcdef");
    write("access-key", ACCESS_KEY);
    write("bucket-secret", bucket::SECRET);
    let (ca, bucket_ca, endpoint) = (database.ca(), bucket.ca_file(), bucket.endpoint());
    write(
        "mirror.toml",
        &format!(
            "[store]\npath = \"store\"\n[network]\nca_file = {bucket_ca:?}\n[fleet]\ndatabase = {{ file = \"database-url\" }}\n\
             database_ca = {ca:?}\nbucket = \"s3://larder\"\nendpoint = \"{endpoint}\"\n\
             bucket_key = {{ access_key = {{ file = \"access-key\" }}, secret = {{ file = \"bucket-secret\" }} }}\nsecret = [{{ file = \"fleet-secret\" }}]\nlisten = \"0.0.0.0:0\"\n\
             advertise = \"http://10.0.0.7:8082/\"\n"
        ),
    );
    home
}

async fn larder(home: &Folder, arguments: &[&str]) -> CommandOutput {
    let config = home.path().join("mirror.toml");
    run(command(home.path(), &[arguments, &["--config", config.to_str().unwrap()]].concat())).await
}

/// The checks of the doctor about the fleet: id, verdict and finding.
async fn doctor(home: &Folder) -> Vec<(String, String, String)> {
    let report: Value = serde_json::from_str(&larder(home, &["doctor", "--json"]).await.out).unwrap();
    let text = |check: &Value, member: &str| check[member].as_str().unwrap().to_owned();
    let checks = report["checks"].as_array().unwrap().iter();
    let of_fleet = checks.filter(|check| check["id"].as_str().unwrap().starts_with("fleet."));
    of_fleet.map(|check| (text(check, "id"), text(check, "verdict"), text(check, "found"))).collect()
}

/// Google's own protocol, with the key of a service account.
#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_of_google_takes_what_a_replica_sends() {
    let Some(database) = TestDatabase::new() else { return };
    let bucket = TestBucket::start();
    let home = configured(&database, RUN_ROLE, &bucket);
    let file = home.path().join("mirror.toml");
    let is_kept = |line: &&str| !line.starts_with("bucket_key");
    let lines = std::fs::read_to_string(&file).unwrap().replace("s3://larder", "gs://larder/mirror");
    std::fs::write(&file, lines.lines().filter(is_kept).collect::<Vec<_>>().join("\n")).unwrap();
    let key = KeyPair::generate(KeySize::Rsa2048).unwrap();
    let key = AsDer::<Pkcs8V1Der<'_>>::as_der(&key).unwrap();
    let key = STANDARD.encode(key.as_ref());
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{key}\n-----END PRIVATE KEY-----\n");
    for (account, verdict, part) in [
        (SERVICE_ACCOUNT, "warn", "gs://larder/mirror/ takes bytes that changed on the way"),
        ("another@test.iam", "fail", "401 InvalidToken"),
    ] {
        let credentials = serde_json::json!({
            "type": "service_account", "private_key": pem, "private_key_id": "1", "client_email": account,
        });
        let key_file = home.path().join("google.json");
        std::fs::write(&key_file, credentials.to_string()).unwrap();
        let mut doctor = command(home.path(), &["doctor", "--json", "--config", file.to_str().unwrap()]);
        doctor.env("GOOGLE_APPLICATION_CREDENTIALS", &key_file);
        let report: Value = serde_json::from_str(&run(doctor).await.out).unwrap();
        let checks = report["checks"].as_array().unwrap();
        let told = checks.iter().find(|check| check["id"] == "fleet.bucket").unwrap();
        assert!(told["verdict"] == verdict && told["found"].as_str().unwrap().contains(part), "{told:#}");
    }
    let sent = [Verb::Put, Verb::Begin, Verb::Part, Verb::Complete, Verb::Abort, Verb::Get, Verb::Delete];
    assert!(sent.iter().all(|verb| bucket.count(*verb) > 0) && bucket.objects().is_empty() && bucket.unfinished() == 0);
}

/// The operator makes the schema as its owner; the doctor says what is missing before, and what is wrong afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_and_fleet_migrate_lead_to_a_database_that_fits() {
    // Of its own: the role that it limits is that of all tests.
    let Some(database) = TestDatabase::on_its_own_server() else { return };
    database.sql("drop schema larder cascade");
    let bucket = TestBucket::start();
    let [replica, owner] = [RUN_ROLE, OWNER].map(|role| configured(&database, role, &bucket));
    let found = |checks: &[(String, String, String)], id: &str, verdict: &str, part: &str| {
        let fits = |(i, v, f): &(String, String, String)| i == id && v == verdict && f.contains(part);
        assert!(checks.iter().any(fits), "{id} {verdict} {part}: {checks:#?}");
    };
    let before = doctor(&replica).await;
    found(&before, "fleet.database", "ok", "as larder_run");
    found(&before, "fleet.database", "warn", "a commit waits for no standby");
    found(&before, "fleet.schema", "fail", "the database lacks migration 1");
    let refused = larder(&replica, &["fleet", "migrate", "--serve-as", RUN_ROLE]).await;
    assert!(refused.code == Some(1) && refused.err.contains("permission denied"), "{refused:?}");
    let made = larder(&owner, &["fleet", "migrate", "--serve-as", RUN_ROLE]).await;
    let all: Vec<String> = schema::MIGRATIONS.iter().map(|migration| migration.number.to_string()).collect();
    let told = format!("made migration {}; \"larder_run\" may serve", all.join(", "));
    assert_eq!((made.code, made.out.trim()), (Some(0), &*told), "{made:?}");
    let again = larder(&owner, &["fleet", "migrate", "--serve-as", RUN_ROLE, "--json"]).await;
    assert_eq!(serde_json::from_str::<Value>(&again.out).unwrap()["made"], serde_json::json!([]));
    let after = doctor(&replica).await;
    found(&after, "fleet.schema", "ok", "every migration");
    found(&after, "fleet.rights", "ok", "delete nothing of it");
    let takes = "s3://larder/ takes, sends and removes objects, and checks their bytes";
    found(&after, "fleet.bucket", "ok", takes);
    assert!(bucket.objects().is_empty() && bucket.unfinished() == 0, "the doctor leaves nothing behind");
    for (verb, fault, part) in [
        (Verb::Put, BucketFault::Denied, "s3://larder/ could not take b/"),
        (Verb::Part, BucketFault::Full, "QuotaExceeded"),
        (Verb::Complete, BucketFault::FailsLate, "InternalError"),
        (Verb::Get, BucketFault::Swapped, "a range has other bytes"),
        (Verb::Delete, BucketFault::Denied, "could not remove b/"),
    ] {
        bucket.fail(verb, fault);
        found(&doctor(&replica).await, "fleet.bucket", "fail", part);
        bucket.heal();
    }
    assert_eq!(bucket.unfinished(), 0);
    database.sql("revoke usage on schema larder from larder_run");
    found(&doctor(&replica).await, "fleet.rights", "fail", "larder_run may not read the schema");
    database.sql("grant usage on schema larder to larder_run");
    database.sql("revoke insert on larder.past from larder_run; grant delete on larder.history to larder_run");
    database.sql("revoke execute on function larder.moment from public, larder_run");
    database.sql("alter role larder_run connection limit 5");
    let wrong = doctor(&replica).await;
    database.sql("alter role larder_run connection limit -1");
    found(&wrong, "fleet.rights", "fail", "larder_run lacks rights: insert on larder.past");
    found(&wrong, "fleet.rights", "fail", "execute on function larder.moment");
    found(&wrong, "fleet.rights", "warn", "delete on larder.history");
    found(&wrong, "fleet.database", "warn", "larder_run gets 5 connections, and 1 replica may take 8");
    found(&doctor(&owner).await, "fleet.rights", "warn", "larder_owner may do more than it should");
    std::fs::write(replica.path().join("database-url"), database.url(RUN_ROLE).replace("for-tests-only", "s3cret"))
        .unwrap();
    let refused = doctor(&replica).await;
    found(&refused, "fleet.database", "fail", "authentication failed");
    assert!(!format!("{refused:?}").contains("s3cret"));
}

/// A password or an authority that is not right is told as such, and the password is in no message.
#[test]
fn a_connection_that_is_refused_says_why() {
    let Some(database) = TestDatabase::new() else { return };
    let ask = |database: &Database| {
        database.run(|client| Box::pin(client.query_typed("select 1", &[]))).unwrap_err().to_string()
    };
    let url = database.url(RUN_ROLE);
    let wrong = Database::new(&url.replace("for-tests-only", "s3cret"), Some(&database.ca())).unwrap();
    let error = ask(&wrong);
    assert!(error.contains("authentication failed") && !error.contains("s3cret"), "{error}");
    let untrusted = ask(&Database::new(&url, None).unwrap());
    assert!(untrusted.contains("certificate"), "{untrusted}");
    let other_name = ask(&Database::new(&url.replace("127.0.0.1", "127.0.0.2"), Some(&database.ca())).unwrap());
    assert!(other_name.contains("refused") || other_name.contains("not valid for name"), "{other_name}");
    let missing = ask(&Database::new(&format!("{url}x"), Some(&database.ca())).unwrap());
    assert!(missing.contains("does not exist"), "{missing}");
}

/// The former primary hangs, and another host leads nowhere: the connection is to the one that answers.
#[test]
fn a_host_that_hangs_does_not_hide_the_primary() {
    let Some(database) = TestDatabase::new() else { return };
    let hangs = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = hangs.local_addr().unwrap().port();
    let hosts = format!("@127.0.0.1:{port},127.0.0.1:{},127.0.0.1:", free_port());
    let url = database.url(RUN_ROLE).replace("@127.0.0.1:", &hosts);
    let several = Database::new(&url, Some(&database.ca())).unwrap();
    several.run(|client| Box::pin(client.query_typed("select 1", &[]))).unwrap();
}

/// Only so many wait for the database; the next is told at once.
#[test]
fn a_crowd_at_the_database_is_told_that_it_is_busy() {
    const CROWD: usize = 140;
    let Some(database) = TestDatabase::new() else { return };
    let pool = database.connect();
    let told: usize = std::thread::scope(|scope| {
        let ask = || scope.spawn(|| pool.run(|client| Box::pin(client.query_typed("select pg_sleep(0.3)", &[]))));
        let asked: Vec<_> = (0..CROWD).map(|_| ask()).collect();
        let answers = asked.into_iter().map(|thread| thread.join().unwrap());
        answers.filter(|answer| matches!(answer, Err(DatabaseError::Busy))).count()
    });
    assert!((CROWD - 128..=CROWD - 8).contains(&told), "{told}");
}
