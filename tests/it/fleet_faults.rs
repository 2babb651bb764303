//! A fleet in trouble while sixteen clients ask: the database or the bucket fails in each way for a while. What a replica has is served,
//! what cannot be judged is refused with the cause, and everything is whole again when the trouble ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::support::bucket::BucketFault;
use crate::support::fleet_setup::FleetSetup;
use crate::support::http::{Answer, client, send};
use crate::support::larder::Folder;
use crate::support::package_fixture::{LARGE_BYTES, SMALL_BYTES};
use crate::support::postgres::RUN_ROLE;
use crate::support::process::Process;
use crate::support::repetitions;
use crate::support::upstream::{FakeUpstream, Provider};

const CLIENTS: usize = 16;
/// The time after which a refusal is no answer of use.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The time after which a replica must be whole again.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(3);
/// What a busy machine may add to a time.
const SLACK: Duration = Duration::from_secs(2);

/// A way to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    DatabaseFrozen,
    BucketHangs,
    BothGone,
    DatabaseKilled,
    DatabaseReadOnly,
    NoConnections,
    DatabaseDiskFull,
    BucketGone,
    BucketDenied,
    BucketFull,
}

impl Trouble {
    const ALL: [Self; 10] = [
        Self::DatabaseFrozen,
        Self::BucketHangs,
        Self::BothGone,
        Self::DatabaseKilled,
        Self::DatabaseReadOnly,
        Self::NoConnections,
        Self::DatabaseDiskFull,
        Self::BucketGone,
        Self::BucketDenied,
        Self::BucketFull,
    ];

    fn begin(self, FleetSetup { database, bucket }: &FleetSetup) {
        match self {
            Self::DatabaseFrozen => database.freeze(),
            Self::BothGone => {
                database.freeze();
                bucket.fail_all(BucketFault::Hang);
            }
            Self::DatabaseKilled => database.kill(),
            Self::DatabaseReadOnly => database.set_read_only(true),
            Self::NoConnections => {
                database.sql(&format!(
                    "alter role {RUN_ROLE} connection limit 0;
                     select pg_terminate_backend(pid) from pg_stat_activity where usename = '{RUN_ROLE}'"
                ));
            }
            Self::DatabaseDiskFull => database.fill_disk(),
            Self::BucketHangs => bucket.fail_all(BucketFault::Hang),
            Self::BucketGone => bucket.fail_all(BucketFault::Gone),
            Self::BucketDenied => bucket.fail_all(BucketFault::Denied),
            Self::BucketFull => bucket.fail_all(BucketFault::Full),
        }
    }

    fn end(self, FleetSetup { database, bucket }: &FleetSetup) {
        bucket.heal();
        match self {
            Self::DatabaseFrozen | Self::BothGone => database.unfreeze(),
            Self::DatabaseKilled => database.start_again(),
            Self::DatabaseReadOnly => database.set_read_only(false),
            Self::NoConnections => drop(database.sql(&format!("alter role {RUN_ROLE} connection limit -1"))),
            Self::DatabaseDiskFull => database.empty_disk(),
            Self::BucketHangs | Self::BucketGone | Self::BucketDenied | Self::BucketFull => {}
        }
    }

    /// True if the database answers nothing, so nothing new can be judged.
    fn ends_judgement(self) -> bool {
        matches!(self, Self::DatabaseFrozen | Self::BothGone | Self::DatabaseKilled | Self::NoConnections)
    }

    /// True if a new package is judged as always: the bucket alone is in trouble.
    fn leaves_judgement(self) -> bool {
        matches!(self, Self::BucketHangs | Self::BucketGone | Self::BucketDenied | Self::BucketFull)
    }
}

/// Clients that ask a replica for what it has, until they are stopped.
struct Load {
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicUsize>,
    clients: JoinSet<()>,
}

impl Load {
    fn start(replica: &Process, stored: &Arc<Vec<(String, Vec<u8>)>>) -> Self {
        let (stop, answers) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            let (stop, answers, stored) = (Arc::clone(&stop), Arc::clone(&answers), Arc::clone(stored));
            let base = replica.base().to_owned();
            clients.spawn(async move {
                let client = client();
                for turn in number.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let (path, bytes) = &stored[turn % stored.len()];
                    let answer = send(client.get(format!("{base}{path}"))).await.unwrap();
                    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
                    assert!(answer.body == *bytes, "{path}: other bytes");
                    answers.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        Self { stop, answers, clients }
    }

    /// Stops the clients. Returns the number of their answers, of which each was right.
    async fn stop(mut self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.clients.join_next().await {
            ended.unwrap();
        }
        self.answers.load(Ordering::Relaxed)
    }
}

/// The documents and archives of these packages, as a replica serves them.
async fn served(replica: &Process, names: &[String]) -> Vec<(String, Vec<u8>)> {
    let mut served = Vec::new();
    for name in names {
        let document = format!("/registry/registry.terraform.io/v1/providers/acme/{name}/1.2.0/download/linux/amd64");
        for path in [document, replica.archive_path(name).await] {
            let body = replica.get(&path).await.expect(200).body;
            served.push((path, body));
        }
    }
    served
}

/// Asks for a package that nobody has asked for.
async fn ask_anew(replica: &Process, name: &str) -> (Answer, Duration) {
    let began = Instant::now();
    (replica.document(name).await, began.elapsed())
}

/// Promises 15 and 16, in each trouble, with a replica that is restarted meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_fails_what_a_replica_has_is_served() {
    let lasts = Duration::from_secs(repetitions(1, 60) as u64);
    let is_long = lasts > Duration::from_secs(1);
    // The rest takes minutes.
    let troubles = if is_long { &Trouble::ALL[..] } else { &Trouble::ALL[..3] };
    let Some(setup) = FleetSetup::on_its_own_server(is_long).await else { return };
    let upstream = FakeUpstream::start().await;
    let names: Vec<String> = (0..6).map(|number| format!("p{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        upstream.publish(Provider::new("acme", name).size(if number % 2 == 0 { SMALL_BYTES } else { LARGE_BYTES }));
    }
    let (home, other_home) = (Folder::new(), Folder::new());
    let replica = setup.start(&upstream, &home);
    let mut other = setup.start(&upstream, &other_home);
    let stored = Arc::new(served(&replica, &names).await);
    assert_eq!(served(&other, &names).await, *stored);
    for trouble in troubles {
        if *trouble == Trouble::DatabaseDiskFull && !setup.database.has_its_own_disk() {
            continue;
        }
        let new = |part: &str, number: usize| format!("{part}-{trouble:?}-{number}").to_lowercase();
        let publish = |name: &str| upstream.publish(Provider::new("acme", name));
        let load = Load::start(&replica, &stored);
        trouble.begin(&setup);
        let began = Instant::now();
        // A restart has no trouble with it, either.
        other.terminate_promptly().await;
        other = setup.start(&upstream, &other_home);
        for number in 0.. {
            let name = new("meanwhile", number);
            publish(&name);
            let (answer, took) = ask_anew(&replica, &name).await;
            match answer.status {
                200 => assert!(!trouble.ends_judgement(), "{trouble:?}: nobody can have judged it"),
                503 => assert!(
                    !trouble.leaves_judgement() && answer.text().contains("fleet"),
                    "{trouble:?}: {}",
                    answer.text()
                ),
                status => panic!("{trouble:?}: {status}: {}", answer.text()),
            }
            assert!(took < ANSWER_TIMEOUT + SLACK, "{trouble:?}: an answer after {took:?}");
            assert_eq!(served(&other, &names[..2]).await, stored[..4], "{trouble:?}, after a restart");
            if began.elapsed() >= lasts {
                break;
            }
        }
        trouble.end(&setup);
        let ended = Instant::now();
        for number in 0.. {
            let name = new("afterwards", number);
            publish(&name);
            let (answer, _) = ask_anew(&replica, &name).await;
            if answer.status == 200 {
                break;
            }
            assert!(ended.elapsed() < RECOVERY_TIMEOUT + SLACK, "{trouble:?} has ended: {}", answer.text());
        }
        let whole = ended.elapsed();
        let answers = load.stop().await;
        assert!(answers > CLIENTS, "{trouble:?}: {answers}");
        if is_long {
            eprintln!("{trouble:?}: {answers} right answers, whole again after {} ms", whole.as_millis());
        }
    }
}
