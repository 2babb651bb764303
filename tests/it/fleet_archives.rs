//! Larders that keep their archives in one bucket: what one of them has stored, another serves without upstream, and what the bucket
//! sends is trusted no more than what an upstream sends.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use larder::clock::{Clock, Timestamp};
use larder::fleet::archives::BucketArchives;
use larder::fleet::bucket::Bucket;
use larder::fleet::records::DatabaseRecords;
use larder::store::{Archives as _, FleetEvents, Store};

use crate::explain::explain;
use crate::support::bucket::{BucketFault, TestBucket, Verb};
use crate::support::bundle_transfer::{BundleKey, apply_bundle, bundle_of, ended_warm_up, warm_up};
use crate::support::http::get;
use crate::support::larder::{Builder, Folder, Larder};
use crate::support::module_fixture::ModuleFixture;
use crate::support::package_fixture::{LARGE_BYTES, SMALL_BYTES, TAIL_BYTES};
use crate::support::postgres::{RUN_ROLE, TestDatabase};
use crate::support::store_kind::{Replica, join_fleet};
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target};
use crate::support::{eventually, until};

/// More than two parts of an upload.
const IN_PARTS_BYTES: usize = 17 << 20;

/// The database and the bucket of replicas.
pub(crate) struct Shared {
    database: Arc<TestDatabase>,
    bucket: Arc<TestBucket>,
}

impl Shared {
    pub(crate) fn start() -> Option<Self> {
        Some(Self { database: Arc::new(TestDatabase::new()?), bucket: Arc::new(TestBucket::start()) })
    }

    /// A folder for one more replica.
    fn folder(&self, url: &'static str) -> Folder {
        let folder = Folder::new();
        let (database, bucket) = (Arc::clone(&self.database), Arc::clone(&self.bucket));
        let clock = Clock::system();
        join_fleet(folder.path(), &Replica { database, bucket, role: RUN_ROLE, url, serve_behind: None, clock });
        folder
    }

    /// One more replica.
    pub(crate) async fn replica(&self, url: &'static str, builder: Builder) -> Larder {
        builder.store_at(&self.folder(url)).start().await
    }

    /// Two replicas.
    async fn two(&self, upstream: &FakeUpstream) -> (Larder, Larder) {
        let one = self.replica("http://one.test:8082/", Larder::mirroring(upstream)).await;
        let other = self.replica("http://other.test:8082/", Larder::mirroring(upstream)).await;
        (one, other)
    }

    /// Asks the database.
    pub(crate) fn sql(&self, sql: &str) -> String {
        self.database.sql(sql)
    }

    /// The objects that archives have, by the database.
    fn kept(&self) -> Vec<String> {
        let kept = self.database.sql("select 'mirror/' || object from larder.blob order by object");
        kept.lines().map(str::to_owned).collect()
    }

    /// Removes the objects that must go, as housekeeping does a day later.
    fn sweep(&self) {
        self.database.sql("update larder.doomed set due = now()");
        let folder = Folder::new();
        let store = Store::open(folder.path(), Timestamp(1)).unwrap();
        let (fleet, network) = self.bucket.settings();
        let records = DatabaseRecords::of(Arc::new(self.database.connect()));
        let bucket = Bucket::new(&fleet, &network).unwrap();
        let events = Arc::new(FleetEvents::new(Clock::system()));
        let archives = BucketArchives::new(bucket, Arc::new(records), Arc::clone(&store.local.index), events).unwrap();
        tokio::task::block_in_place(|| archives.sweep()).unwrap();
    }

    /// The objects that must go.
    fn doomed(&self) -> String {
        self.database.sql("select count(*) from larder.doomed")
    }
}

fn archive(upstream: &FakeUpstream, name: &str) -> Vec<u8> {
    upstream.archive_bytes("acme", name, "1.2.0", "linux_amd64")
}

/// The hashes of an archive that a client writes into its lock file, once the `h1:` is known.
async fn locked_hashes(larder: &Larder, name: &str) -> serde_json::Value {
    let path = format!("/mirror/registry.terraform.io/acme/{name}/1.2.0.json");
    let known = eventually("the hashes are known", async || {
        let hashes = larder.get(&path).await.expect(200).json()["archives"]["linux_amd64"]["hashes"].clone();
        hashes.to_string().contains("h1:").then_some(hashes)
    });
    known.await
}

/// The archive of the module of [`ModuleFixture::with_one_module`].
async fn module_at(larder: &Larder) -> Vec<u8> {
    let location = "/registry/registry.terraform.io/v1/modules/acme/one/test/1.0.0/download";
    let location = larder.get(location).await.expect(204).header("x-terraform-get").to_owned();
    larder.get(location.split('?').next().unwrap()).await.expect(200).body
}

/// Archives of one message, of some, and of several parts come from the bucket, byte for byte, and are then here.
#[tokio::test(flavor = "multi_thread")]
async fn what_one_replica_has_stored_another_serves_without_upstream() {
    let Some(shared) = Shared::start() else { return };
    let mut upstream = FakeUpstream::start().await;
    let sizes = [("small", SMALL_BYTES), ("large", LARGE_BYTES), ("parts", IN_PARTS_BYTES)];
    for (name, size) in sizes {
        upstream.publish(Provider::new("acme", name).size(size));
    }
    let (one, other) = shared.two(&upstream).await;
    let mut paths = Vec::new();
    for (name, _) in sizes {
        let path = one.archive_path(name, "1.2.0").await;
        assert!(one.get(&path).await.expect(200).body == archive(&upstream, name), "{name}");
        paths.push((name, path));
    }
    assert_eq!((shared.kept(), shared.doomed().as_str()), (shared.bucket.objects(), "0"));
    assert_eq!((shared.bucket.objects().len(), shared.bucket.unfinished()), (3, 0));
    upstream.stop().await;
    // A list is that of the fleet: none of the files is here.
    let listed = get(&format!("{}/admin/v1/list", other.admin())).await.expect(200).json();
    assert_eq!(listed["packages"].as_array().map(Vec::len), Some(3), "{listed:#}");
    for (name, path) in &paths {
        assert_eq!(&other.archive_path(name, "1.2.0").await, path);
        let explained = explain(&other, "url", path).await;
        let steps = explained["steps"].as_array().unwrap();
        let requested = steps.iter().find(|step| step["requested"] == true).unwrap();
        assert_eq!((&requested["status"], &requested["answer"]), (&200.into(), &"served".into()), "{explained:#}");
        for _ in 0..2 {
            let answer = other.get(path).await.expect(200);
            assert!(answer.body == archive(&upstream, name), "{name}");
        }
    }
    until("they are files of the other replica", async || other.folder.blobs().len() == 3).await;
    assert_eq!((upstream.count_of(Target::Archive), shared.bucket.count(Verb::Get)), (3, 3));
    let answer = other.get(&paths[0].1).await.expect(200);
    assert!(answer.has_cache_status("larder; hit"));
    assert_eq!(other.metric("larder_damaged_total").await, 0.0, "a copy that was never here is no damage");
}

/// The same for a module: it is not packed anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_module_that_one_replica_has_stored_comes_from_the_bucket() {
    let Some(shared) = Shared::start() else { return };
    let mut fixture = ModuleFixture::with_one_module().await;
    let one = fixture.larder_on(&shared.folder("http://one.test:8082/")).start().await;
    let other = fixture.larder_on(&shared.folder("http://other.test:8082/")).start().await;
    let packed = module_at(&one).await;
    fixture.stop().await;
    assert!(module_at(&other).await == packed);
    assert_eq!((shared.bucket.objects().len(), shared.bucket.count(Verb::Get)), (1, 1));
    assert_eq!(shared.kept(), shared.bucket.objects());
}

/// A bucket that sends other bytes, or has lost them, costs a fetch from upstream, and its object is replaced.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_is_not_the_archive_is_never_served_and_is_replaced() {
    let Some(shared) = Shared::start() else { return };
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(SMALL_BYTES));
    let zip = archive(&upstream, "null");
    let first = shared.replica("http://first.test:8082/", Larder::mirroring(&upstream)).await;
    let path = first.archive_path("null", "1.2.0").await;
    first.get(&path).await.expect(200);
    let swapped: Vec<u8> = zip.iter().map(|byte| !byte).collect();
    let harms = [("other bytes", Some(&swapped[..])), ("another length", Some(&zip[1..])), ("no object", None)];
    for (asked, (name, bytes)) in harms.into_iter().enumerate() {
        let before = shared.kept();
        bytes.map_or_else(|| shared.bucket.lose_all(), |bytes| shared.bucket.replace_all(bytes));
        let other = shared.replica("http://other.test:8082/", Larder::mirroring(&upstream)).await;
        other.archive_path("null", "1.2.0").await;
        let answer = other.get(&path).await.expect(200);
        assert!(answer.body == zip, "{name}");
        assert_eq!(upstream.count_of(Target::Archive), asked + 2, "{name}");
        let kept = shared.kept();
        assert!(kept.len() == 1 && kept != before, "{name}");
        let alarms = other.fleet_alarms().await;
        let [(kind, detail)] = &alarms[..] else { panic!("{name}: {alarms:?}") };
        let object = before[0].strip_prefix("mirror/").unwrap();
        assert!(kind == "bucket-contradicts" && detail.contains(object), "{name}: {alarms:?}");
        assert_eq!(other.metric("larder_fleet_alarms").await, 1.0, "{name}");
        assert!(*shared.bucket.object(&kept[0]).unwrap() == *zip, "{name}");
        other.stop().await;
    }
    // The objects that were replaced go.
    assert_eq!(shared.doomed(), "3");
    shared.sweep();
    assert_eq!((shared.bucket.objects(), shared.doomed().as_str()), (shared.kept(), "0"));
}

/// The tail of a large archive from the bucket is withheld until the archive is verified: wrong bytes never look complete.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_bytes_of_the_bucket_never_look_complete() {
    let Some(shared) = Shared::start() else { return };
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(LARGE_BYTES));
    let (one, other) = shared.two(&upstream).await;
    let path = one.archive_path("null", "1.2.0").await;
    one.get(&path).await.expect(200);
    other.archive_path("null", "1.2.0").await;
    shared.bucket.fail_once(Verb::Get, BucketFault::Swapped);
    let received = other.receive(&path).await;
    let withheld = received.headers["content-length"].to_str().unwrap().parse::<usize>().unwrap() - received.body.len();
    assert!(received.status == 200 && !received.is_complete && withheld >= TAIL_BYTES, "{withheld} bytes");
    assert!(other.get(&path).await.expect(200).body == archive(&upstream, "null"));
    // A connection that breaks is resumed where it broke.
    let third = shared.replica("http://third.test:8082/", Larder::mirroring(&upstream)).await;
    third.archive_path("null", "1.2.0").await;
    let asked = (upstream.count_of(Target::Archive), shared.bucket.count(Verb::Get));
    shared.bucket.fail_once(Verb::Get, BucketFault::Truncated);
    assert!(third.get(&path).await.expect(200).body == archive(&upstream, "null"));
    assert_eq!((upstream.count_of(Target::Archive), shared.bucket.count(Verb::Get)), (asked.0, asked.1 + 2));
}

/// A bucket that refuses takes nothing from clients: this replica serves the archive, which is named when the bucket has it.
#[tokio::test(flavor = "multi_thread")]
async fn an_archive_that_the_bucket_refuses_is_served_from_here_and_sent_later() {
    let Some(shared) = Shared::start() else { return };
    let upstream = FakeUpstream::start().await;
    let (one, other) = shared.two(&upstream).await;
    let faults =
        [BucketFault::Denied, BucketFault::Full, BucketFault::Gone, BucketFault::Skewed, BucketFault::SlowDown];
    for (number, fault) in faults.into_iter().enumerate() {
        let name = format!("p{number}");
        let size = if number % 2 == 0 { SMALL_BYTES } else { IN_PARTS_BYTES };
        upstream.publish(Provider::new("acme", &name).size(size));
        let path = one.archive_path(&name, "1.2.0").await;
        shared.bucket.fail_all(fault);
        for _ in 0..2 {
            assert!(one.get(&path).await.expect(200).body == archive(&upstream, &name), "{fault:?}");
        }
        assert_eq!(upstream.count_of(Target::Archive), number + 1, "{fault:?}: it is here");
        assert_eq!(shared.database.sql("select count(*) from larder.name_archive"), number.to_string(), "{fault:?}");
        assert_eq!(one.metric("larder_owed_archives").await, 1.0, "{fault:?}");
        shared.bucket.heal();
        until("the bucket has it", async || one.metric("larder_owed_archives").await == 0.0).await;
        assert_eq!(shared.kept().len(), number + 1, "{fault:?}");
        assert_eq!(other.archive_path(&name, "1.2.0").await, path);
        assert!(other.get(&path).await.expect(200).body == archive(&upstream, &name), "{fault:?}");
    }
    assert_eq!(upstream.count_of(Target::Archive), faults.len());
    shared.sweep();
    assert_eq!((shared.kept(), shared.doomed().as_str()), (shared.bucket.objects(), "0"));
    assert_eq!(shared.bucket.unfinished(), 0);
}

/// What is owed outlives a restart and a full folder, and its hashes are known when it gets its name.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_owed_is_sent_after_a_restart_too() {
    let Some(database) = TestDatabase::on_its_own_server() else { return };
    let shared = Shared { database: Arc::new(database), bucket: Arc::new(TestBucket::start()) };
    let mut upstream = FakeUpstream::start().await;
    for name in ["owed", "other", "third"] {
        upstream.publish(Provider::new("acme", name).size(SMALL_BYTES));
    }
    let folder = shared.folder("http://one.test:8082/");
    let builder = || Larder::mirroring(&upstream).store("max_size = \"1MiB\"").store_at(&folder);
    let one = builder().start().await;
    let path = one.archive_path("owed", "1.2.0").await;
    shared.bucket.fail_all(BucketFault::Denied);
    one.get(&path).await.expect(200);
    let locked = locked_hashes(&one, "owed").await;
    one.stop().await;
    // It needs neither the bucket nor the database.
    shared.database.freeze();
    let one = builder().start().await;
    assert!(one.get(&path).await.expect(200).body == archive(&upstream, "owed"));
    shared.database.unfreeze();
    until("the database answers", async || one.get(&path).await.header("cache-status") == "larder; hit").await;
    // A quarter of the store is for what is owed. The rest passes through.
    for name in ["other", "other", "third"] {
        let path = one.archive_path(name, "1.2.0").await;
        one.get(&path).await.expect(200);
    }
    assert_eq!((upstream.count_of(Target::Archive), one.folder.blobs().len()), (4, 1));
    assert_eq!(one.folder.partial_downloads(), Vec::<PathBuf>::new());
    upstream.stop().await;
    assert!(one.get(&path).await.expect(200).body == archive(&upstream, "owed"));
    shared.bucket.heal();
    until("the bucket has it", async || one.metric("larder_owed_archives").await == 0.0).await;
    let other = shared.replica("http://other.test:8082/", Larder::mirroring(&upstream)).await;
    assert!(other.get(&path).await.expect(200).body == archive(&upstream, "owed"));
    assert_eq!(locked_hashes(&other, "owed").await, locked);
}

/// A job is done when nothing is owed: before that, the loss of one machine loses what it was to keep.
#[tokio::test(flavor = "multi_thread")]
async fn a_warm_up_is_not_done_while_its_archives_are_owed() {
    let Some(shared) = Shared::start() else { return };
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(SMALL_BYTES));
    let (one, _other) = shared.two(&upstream).await;
    shared.bucket.fail_all(BucketFault::Full);
    for _ in 0..2 {
        let job = ended_warm_up(&one, &["acme/null@1.2.0"], &["linux_amd64"]).await;
        assert!(job.to_string().contains("the bucket does not have it yet"), "{job:#}");
    }
    shared.bucket.heal();
    until("the bucket has it", async || one.metric("larder_owed_archives").await == 0.0).await;
    warm_up(&one, &["acme/null@1.2.0"], &["linux_amd64"]).await;
    assert_eq!(upstream.count_of(Target::Archive), 1);
}

/// The same for an import, however often it is tried.
#[tokio::test(flavor = "multi_thread")]
async fn an_import_is_not_done_while_its_archives_are_owed() {
    let Some(shared) = Shared::start() else { return };
    let (upstream, key) = (FakeUpstream::start().await, BundleKey::new());
    upstream.publish(Provider::new("acme", "null").size(SMALL_BYTES));
    let source = key.with_signing_key(Larder::mirroring(&upstream)).start().await;
    let job = warm_up(&source, &["acme/null@1.2.0"], &["linux_amd64"]).await;
    let bundle = bundle_of(&source, &job, None).await;
    let one = shared.replica("http://one.test:8082/", key.with_trusted_key(Larder::mirroring(&upstream))).await;
    shared.bucket.fail_all(BucketFault::Denied);
    for _ in 0..2 {
        let applied = apply_bundle(&one, bundle.clone()).await.text();
        assert!(applied.contains("the bucket does not have it yet"), "{applied}");
    }
    shared.bucket.heal();
    until("the bucket has it", async || one.metric("larder_owed_archives").await == 0.0).await;
    let applied = apply_bundle(&one, bundle).await.text();
    assert!(!applied.contains("does not have it"), "{applied}");
    assert_eq!(shared.kept().len(), 1);
}

/// A replica that found an object lost, and cannot replace it, knows that after a restart, too: its file is the last one.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_object_is_owed_after_a_restart() {
    let Some(shared) = Shared::start() else { return };
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(SMALL_BYTES));
    let first = shared.replica("http://first.test:8082/", Larder::mirroring(&upstream)).await;
    let path = first.archive_path("null", "1.2.0").await;
    first.get(&path).await.expect(200);
    first.stop().await;
    let folder = shared.folder("http://one.test:8082/");
    let builder = || Larder::mirroring(&upstream).store_at(&folder);
    let one = builder().start().await;
    shared.bucket.lose_all();
    shared.bucket.fail(Verb::Put, BucketFault::Denied);
    one.archive_path("null", "1.2.0").await;
    one.get(&path).await.expect(200);
    one.stop().await;
    let attempts = shared.bucket.count(Verb::Put);
    let one = builder().start().await;
    until("it is tried again", async || shared.bucket.count(Verb::Put) > attempts).await;
    assert_eq!(one.metric("larder_owed_archives").await, 1.0);
    shared.bucket.heal();
    until("the bucket has it", async || one.metric("larder_owed_archives").await == 0.0).await;
    assert!(*shared.bucket.object(&shared.kept()[0]).unwrap() == *archive(&upstream, "null"));
}

/// A purge ends what is owed, on whichever replica it runs.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_purged_is_owed_no_more() {
    let Some(shared) = Shared::start() else { return };
    let upstream = FakeUpstream::start().await;
    let (one, other) = shared.two(&upstream).await;
    for (name, purging) in [("here", &one), ("there", &other)] {
        upstream.publish(Provider::new("acme", name).size(SMALL_BYTES));
        let path = one.archive_path(name, "1.2.0").await;
        shared.bucket.fail_all(BucketFault::Denied);
        one.get(&path).await.expect(200);
        assert_eq!(one.metric("larder_owed_archives").await, 1.0, "{name}");
        purging.run_command("purge", &format!("acme/{name}@1.2.0")).await;
        shared.bucket.heal();
        until("nothing is owed", async || one.metric("larder_owed_archives").await == 0.0).await;
        assert_eq!(shared.kept(), Vec::<String>::new(), "{name}");
        assert_eq!(shared.database.sql("select count(*) from larder.name_archive"), "0", "{name}");
    }
}

/// As archives of providers, so those of modules.
#[tokio::test(flavor = "multi_thread")]
async fn a_module_that_the_bucket_refuses_is_served_from_here_and_sent_later() {
    let Some(shared) = Shared::start() else { return };
    let mut fixture = ModuleFixture::with_one_module().await;
    let one = fixture.larder_on(&shared.folder("http://one.test:8082/")).start().await;
    let other = fixture.larder_on(&shared.folder("http://other.test:8082/")).start().await;
    shared.bucket.fail_all(BucketFault::Denied);
    let packed = module_at(&one).await;
    fixture.stop().await;
    assert!(module_at(&one).await == packed);
    shared.bucket.heal();
    until("the bucket has it", async || one.metric("larder_owed_archives").await == 0.0).await;
    assert!(module_at(&other).await == packed);
}

/// An answer that is lost makes no second object that counts.
#[tokio::test(flavor = "multi_thread")]
async fn an_upload_whose_answer_is_lost_is_complete() {
    let Some(shared) = Shared::start() else { return };
    let upstream = FakeUpstream::start().await;
    let (one, _other) = shared.two(&upstream).await;
    for (name, verb, size) in [
        ("put", Verb::Put, SMALL_BYTES),
        ("begin", Verb::Begin, IN_PARTS_BYTES),
        ("part", Verb::Part, IN_PARTS_BYTES),
        ("complete", Verb::Complete, IN_PARTS_BYTES),
    ] {
        upstream.publish(Provider::new("acme", name).size(size));
        let path = one.archive_path(name, "1.2.0").await;
        shared.bucket.fail_once(verb, BucketFault::LostAnswer);
        one.get(&path).await.expect(200);
        let kept = shared.kept();
        assert!(kept.iter().any(|kept| *shared.bucket.object(kept).unwrap() == *archive(&upstream, name)), "{name}");
    }
    assert_eq!((shared.kept().len(), shared.doomed().as_str()), (4, "0"));
}

/// Two replicas that fetch the same archive at once keep one object; the other one goes.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_upload_one_archive_at_once_keep_one_object() {
    let Some(shared) = Shared::start() else { return };
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(SMALL_BYTES));
    let (one, other) = shared.two(&upstream).await;
    let path = one.archive_path("null", "1.2.0").await;
    other.archive_path("null", "1.2.0").await;
    let gate = shared.bucket.hold(Verb::Put);
    let (first, second, ()) = tokio::join!(one.get(&path), other.get(&path), async {
        until("both send their object", async || shared.bucket.count(Verb::Put) == 2).await;
        gate.add_permits(2);
    });
    let zip = archive(&upstream, "null");
    assert!(first.expect(200).body == zip && second.expect(200).body == zip);
    assert_eq!((shared.kept().len(), shared.bucket.objects().len(), shared.doomed().as_str()), (1, 2, "1"));
    shared.sweep();
    assert_eq!((shared.kept(), shared.doomed().as_str()), (shared.bucket.objects(), "0"));
}

/// A replica whose disk is small keeps copies of what was used last. The others stay in the fleet.
#[tokio::test(flavor = "multi_thread")]
async fn an_archive_that_a_replica_has_no_room_for_stays_in_the_fleet() {
    let Some(shared) = Shared::start() else { return };
    let mut upstream = FakeUpstream::start().await;
    let names: Vec<String> = (0..6).map(|number| format!("p{number}")).collect();
    for name in &names {
        upstream.publish(Provider::new("acme", name).size(SMALL_BYTES));
    }
    let builder = Larder::mirroring(&upstream).store("max_size = \"1MiB\"");
    let one = shared.replica("http://one.test:8082/", builder).await;
    let mut paths = Vec::new();
    for name in &names {
        let path = one.archive_path(name, "1.2.0").await;
        one.get(&path).await.expect(200);
        paths.push(path);
    }
    until("it is within its limit", async || one.folder.size_of(&one.folder.blobs()) <= 1 << 20).await;
    assert!(one.folder.blobs().len() < names.len());
    upstream.stop().await;
    for (name, path) in names.iter().zip(&paths) {
        assert!(one.get(path).await.expect(200).body == archive(&upstream, name), "{name}");
    }
    assert_eq!((upstream.count_of(Target::Archive), shared.kept().len()), (names.len(), names.len()));
}

/// The bucket serves while the database does not answer: a replica knows where the archives are that it has met.
#[tokio::test(flavor = "multi_thread")]
async fn an_archive_comes_from_the_bucket_while_the_database_is_gone() {
    let Some(database) = TestDatabase::on_its_own_server() else { return };
    let shared = Shared { database: Arc::new(database), bucket: Arc::new(TestBucket::start()) };
    let mut upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(LARGE_BYTES));
    let (one, other) = shared.two(&upstream).await;
    let path = one.archive_path("null", "1.2.0").await;
    one.get(&path).await.expect(200);
    // Without the database, the other one serves nothing that it knows to have changed since it read it.
    locked_hashes(&one, "null").await;
    assert_eq!(other.archive_path("null", "1.2.0").await, path);
    other.get(&path).await.expect(200);
    until("it is a file", async || !other.folder.blobs().is_empty()).await;
    other.folder.lose_all("blobs");
    shared.database.freeze();
    upstream.stop().await;
    let answer = other.get(&path).await.expect(200);
    assert!(answer.body == archive(&upstream, "null"));
    shared.database.unfreeze();
}

/// A bucket that hangs costs a client no more than a few seconds, and no wrong answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_hangs_delays_a_client_and_no_more() {
    let Some(shared) = Shared::start() else { return };
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(SMALL_BYTES));
    let (one, other) = shared.two(&upstream).await;
    let path = one.archive_path("null", "1.2.0").await;
    one.get(&path).await.expect(200);
    other.archive_path("null", "1.2.0").await;
    shared.bucket.fail_all(BucketFault::Hang);
    let answered = tokio::time::timeout(Duration::from_secs(60), other.get(&path)).await;
    assert!(answered.unwrap().expect(200).body == archive(&upstream, "null"));
}

/// A bucket that is slow is no failure: clients get the archive as it comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_is_slow_is_waited_for() {
    let Some(shared) = Shared::start() else { return };
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(LARGE_BYTES));
    let (one, other) = shared.two(&upstream).await;
    let path = one.archive_path("null", "1.2.0").await;
    one.get(&path).await.expect(200);
    other.archive_path("null", "1.2.0").await;
    shared.bucket.fail(Verb::Get, BucketFault::Limited(10_000_000));
    assert!(other.get(&path).await.expect(200).body == archive(&upstream, "null"));
    assert_eq!((upstream.count_of(Target::Archive), shared.bucket.count(Verb::Get)), (1, 1));
}

/// A module that the bucket does not send is fetched again: the client gets it, and no 404.
#[tokio::test(flavor = "multi_thread")]
async fn a_module_that_the_bucket_does_not_send_is_fetched_again() {
    let Some(shared) = Shared::start() else { return };
    let fixture = ModuleFixture::with_one_module().await;
    let one = fixture.larder_on(&shared.folder("http://one.test:8082/")).start().await;
    let other = fixture.larder_on(&shared.folder("http://other.test:8082/")).start().await;
    let packed = module_at(&one).await;
    shared.bucket.fail_all(BucketFault::Denied);
    assert!(module_at(&other).await == packed);
    assert_eq!(shared.kept(), shared.bucket.objects());
}

/// A pin is one of the fleet: a full replica brings archives also where all of them are pinned, while the database does not
/// answer, and offline.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_replica_makes_room_for_copies_whatever_is_pinned_or_gone() {
    let Some(database) = TestDatabase::on_its_own_server() else { return };
    let shared = Shared { database: Arc::new(database), bucket: Arc::new(TestBucket::start()) };
    let mut upstream = FakeUpstream::start().await;
    let names: Vec<String> = (0..8).map(|number| format!("p{number}")).collect();
    let builder = || Larder::mirroring(&upstream).store("max_size = \"1MiB\"");
    let folder = shared.folder("http://one.test:8082/");
    let one = builder().store_at(&folder).start().await;
    let mut paths = Vec::new();
    for name in &names {
        upstream.publish(Provider::new("acme", name).size(SMALL_BYTES));
        let path = one.archive_path(name, "1.2.0").await;
        one.get(&path).await.expect(200);
        one.run_command("pin", &format!("acme/{name}@1.2.0")).await;
        paths.push(path);
    }
    assert_eq!(shared.database.sql("select count(*) from larder.record where pinned"), names.len().to_string());
    let installs = async |larder: &Larder| {
        for (name, path) in names.iter().zip(&paths) {
            assert!(larder.get(path).await.expect(200).body == archive(&upstream, name), "{name}");
        }
        until("it is within its limit", async || larder.folder.size_of(&larder.folder.blobs()) <= 1 << 20).await;
    };
    shared.database.freeze();
    installs(&one).await;
    shared.database.unfreeze();
    one.stop().await;
    let offline = builder().network("offline = true").store_at(&folder).start().await;
    installs(&offline).await;
    assert_eq!(upstream.count_of(Target::Archive), names.len());
    upstream.stop().await;
}

/// A document for which one replica has no room stays in the fleet.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_a_replica_has_no_room_for_stays_in_the_fleet() {
    let Some(shared) = Shared::start() else { return };
    let mut upstream = FakeUpstream::start().await;
    let versions: Vec<_> = (0..2_000).map(|patch| serde_json::json!({"version": format!("1.0.{patch}")})).collect();
    let list = serde_json::json!({ "versions": versions }).to_string();
    let names: Vec<String> = (0..40).map(|number| format!("listed{number}")).collect();
    let builder = Larder::mirroring(&upstream).store("max_size = \"1MiB\"");
    let one = shared.replica("http://one.test:8082/", builder).await;
    for name in &names {
        upstream.serve_json(&format!("/v1/providers/acme/{name}/versions"), &list);
        one.versions(name).await.expect(200);
    }
    let size = |folder: &str| one.folder.size_of(&one.folder.files(folder));
    until("it is within its limit", async || size("documents") <= 1 << 20).await;
    upstream.stop().await;
    let other = shared.replica("http://other.test:8082/", Larder::mirroring(&upstream)).await;
    for name in &names {
        for larder in [&one, &other] {
            assert!(larder.versions(name).await.expect(200).text().contains("1.0.1999"), "{name}");
        }
    }
}

/// The verdict of one replica about an object takes no name from the fleet.
#[tokio::test(flavor = "multi_thread")]
async fn an_archive_that_seems_to_be_lost_everywhere_keeps_its_name() {
    let Some(shared) = Shared::start() else { return };
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(SMALL_BYTES));
    let (one, other) = shared.two(&upstream).await;
    let path = one.archive_path("null", "1.2.0").await;
    one.get(&path).await.expect(200);
    other.archive_path("null", "1.2.0").await;
    shared.bucket.lose_all();
    upstream.fault(Target::Archive, Fault::Status(404));
    assert_ne!(other.get(&path).await.status, 200);
    assert_eq!(shared.database.sql("select count(*) from larder.name_archive"), "1");
    assert!(one.get(&path).await.expect(200).body == archive(&upstream, "null"), "the other replica has it");
}

/// An object that stops to arrive breaks one answer. The next one comes from upstream.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_stalls_breaks_one_answer_at_most() {
    let Some(shared) = Shared::start() else { return };
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(LARGE_BYTES));
    let builder = || Larder::mirroring(&upstream).stall_timeout(Duration::from_secs(3));
    let one = shared.replica("http://one.test:8082/", builder()).await;
    let other = shared.replica("http://other.test:8082/", builder()).await;
    let path = one.archive_path("null", "1.2.0").await;
    one.get(&path).await.expect(200);
    other.archive_path("null", "1.2.0").await;
    shared.bucket.fail(Verb::Get, BucketFault::Stalled);
    let received = other.receive(&path).await;
    assert!(received.status == 200 && !received.is_complete);
    assert!(other.get(&path).await.expect(200).body == archive(&upstream, "null"));
    assert_eq!(upstream.count_of(Target::Archive), 2);
}

/// The parts of a large archive are sent while it arrives. One that does not arrive as it should leaves nothing that counts.
#[tokio::test(flavor = "multi_thread")]
async fn the_parts_of_an_archive_are_sent_while_it_arrives() {
    let Some(shared) = Shared::start() else { return };
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "parts").size(IN_PARTS_BYTES));
    upstream.publish(Provider::new("acme", "wrong").size(IN_PARTS_BYTES));
    let (one, _other) = shared.two(&upstream).await;
    let path = one.archive_path("parts", "1.2.0").await;
    let gate = upstream.hold_after(Target::Archive, IN_PARTS_BYTES - 1000);
    let (answer, ()) = tokio::join!(one.get(&path), async {
        until("two parts are in the bucket", async || shared.bucket.count(Verb::Part) == 2).await;
        assert!(shared.bucket.objects().is_empty(), "nobody sees an upload before its archive is proven");
        gate.open();
    });
    assert!(answer.expect(200).body == archive(&upstream, "parts"));
    assert_eq!((shared.bucket.count(Verb::Part), shared.kept().len()), (3, 1));
    assert_eq!((shared.kept(), shared.doomed().as_str()), (shared.bucket.objects(), "0"));

    let path = one.archive_path("wrong", "1.2.0").await;
    upstream.fault_once(Target::Archive, Fault::WrongBytes);
    assert!(!one.receive(&path).await.is_complete);
    until("the upload is given up", async || shared.bucket.unfinished() == 0).await;
    assert_eq!((shared.kept().len(), shared.bucket.objects().len()), (1, 1));
    assert!(one.get(&path).await.expect(200).body == archive(&upstream, "wrong"));
    assert_eq!((shared.kept(), shared.kept().len()), (shared.bucket.objects(), 2));
}

/// A hiccup while an archive arrives is forgotten once it is there: it is sent from its staged bytes.
#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_was_in_trouble_while_an_archive_arrived_gets_it_at_the_end() {
    let Some(shared) = Shared::start() else { return };
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "parts").size(IN_PARTS_BYTES));
    let (one, _other) = shared.two(&upstream).await;
    let path = one.archive_path("parts", "1.2.0").await;
    let gate = upstream.hold_after(Target::Archive, IN_PARTS_BYTES - 1000);
    shared.bucket.fail(Verb::Part, BucketFault::Denied);
    let (answer, ()) = tokio::join!(one.get(&path), async {
        until("the upload is given up", async || shared.bucket.count(Verb::Abort) == 1).await;
        shared.bucket.heal();
        gate.open();
    });
    assert!(answer.expect(200).has_cache_status("stored"));
    assert!(*shared.bucket.object(&shared.kept()[0]).unwrap() == *archive(&upstream, "parts"));
}

/// The object of an archive is doomed while upstream is asked. Where upstream has no such archive, nothing is left of that, and the bucket
/// has got nothing.
#[tokio::test(flavor = "multi_thread")]
async fn an_archive_that_does_not_arrive_dooms_no_object() {
    let Some(shared) = Shared::start() else { return };
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(SMALL_BYTES));
    let one = shared.replica("http://one.test:8082/", Larder::mirroring(&upstream)).await;
    upstream.fault(Target::Archive, Fault::Status(404));
    let gate = upstream.hold_headers(Target::Archive);
    let path = one.archive_path("null", "1.2.0").await;
    let url = format!("{}{path}", one.base());
    let request = tokio::spawn(async move { get(&url).await });
    until("its object is doomed", async || shared.doomed() == "1").await;
    gate.open();
    let answer = request.await.unwrap();
    assert!(answer.status >= 400, "{}", answer.status);
    until("no object is doomed", async || shared.doomed() == "0").await;
    assert_eq!(shared.bucket.count(Verb::Put), 0);
}
