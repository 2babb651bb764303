//! Replicas as processes: how a fleet is made, what a replica refuses to start with, and real clients that are sent from one replica to
//! the other.

use crate::support::bucket::{BucketFault, Verb};
use crate::support::fleet_setup::FleetSetup;
use crate::support::http::{client, get};
use crate::support::larder::{Folder, Larder};
use crate::support::module_fixture::{ModuleFixture, tar_gz};
use crate::support::package_fixture::SMALL_BYTES;
use crate::support::postgres::{OTHER_ROLE, RUN_ROLE, TestDatabase};
use crate::support::process::{CommandOutput, Process, command, run};
use crate::support::terraform::Terraform;
use crate::support::turns::Turns;
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target};
use crate::support::{repetitions, until};

/// A command with the configuration of a replica.
async fn larder(folder: &Folder, arguments: &[&str]) -> CommandOutput {
    let file = folder.path().join("mirror.toml");
    run(command(folder.path(), &[arguments, &["--config", file.to_str().unwrap()]].concat())).await
}

/// Done once or again: what a larder that ran alone saw first, its archives and pins are those of the fleet. What the fleet has seen
/// otherwise stays, and is an alarm.
#[tokio::test(flavor = "multi_thread")]
async fn the_store_of_a_larder_that_ran_alone_is_taken_over() {
    let Some(setup) = FleetSetup::created().await else { return };
    let mut upstream = FakeUpstream::start().await;
    for name in ["null", "both", "unasked"] {
        upstream.publish(Provider::new("acme", name).size(SMALL_BYTES));
    }
    let alone = Folder::new();
    let single = Process::start(&Larder::mirroring(&upstream).store_at(&alone), alone.path());
    let path = single.archive_path("null").await;
    for name in ["null", "both"] {
        single.get(&single.archive_path(name).await).await.expect(200);
    }
    // Of this one, only what was seen first is there.
    single.document("unasked").await.expect(200);
    larder(&alone, &["pin", "acme/null@1.2.0"]).await.expect(0);
    single.terminate_promptly().await;
    let published_before = upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64");
    for name in ["both", "unasked"] {
        upstream.publish(Provider::new("acme", name).size(SMALL_BYTES + 1));
    }
    let home = Folder::new();
    let replica = setup.start(&upstream, &home);
    let both = replica.archive_path("both").await;
    let of_fleet = replica.get(&both).await.expect(200).body;
    let in_use = larder(&home, &["fleet", "adopt", alone.path().to_str().unwrap()]).await.expect(1);
    assert!(in_use.err.contains("is in use by another larder"), "{in_use:?}");
    replica.terminate_promptly().await;

    let counts = async || {
        let output = larder(&home, &["--json", "fleet", "adopt", alone.path().to_str().unwrap()]).await.expect(1);
        let adopted: serde_json::Value = serde_json::from_str(&output.out).unwrap();
        assert_eq!(adopted["differing"].as_array().map(Vec::len), Some(1), "{adopted:#}");
        assert!(adopted["differing"][0].to_string().contains("acme/both 1.2.0"), "{adopted:#}");
        assert_eq!(adopted["left"].as_array().map(Vec::len), Some(0), "{adopted:#}");
        (adopted["archives"].as_u64().unwrap(), adopted["records"].as_u64().unwrap() > 0)
    };
    assert_eq!(counts().await, (1, true));
    assert_eq!(counts().await, (0, false), "the second time");
    assert_eq!(alone.blobs().len(), 2, "the other store is as it was");

    let empty = Folder::new();
    let replica = setup.start(&upstream, &empty);
    // Its publisher may change it, and everybody is told.
    replica.document("unasked").await.expect(200);
    upstream.fault(Target::Everything, Fault::Status(503));
    upstream.stop().await;
    assert_eq!(replica.archive_path("null").await, path);
    assert!(replica.get(&path).await.expect(200).body == published_before);
    assert!(replica.get(&both).await.expect(200).body == of_fleet);
    let pinned = setup.database.sql("select path from larder.record where pinned");
    assert!(pinned.contains("acme/null/1.2.0") && pinned.lines().count() == 1, "{pinned}");
    let alarms =
        setup.database.sql("select convert_from(body, 'utf8') from larder.record where path like 'alarms/%both.json'");
    assert!(alarms.contains("waits-for-accept") && alarms.contains("saw something else first"), "{alarms}");
}

/// Replicas with other settings say so, and the stricter verification counts for all of them, from the first answer on.
#[tokio::test(flavor = "multi_thread")]
async fn the_stricter_verification_of_two_replicas_counts() {
    let Some(setup) = FleetSetup::created().await else { return };
    let upstream = FakeUpstream::start().await;
    for name in ["null", "other"] {
        upstream.publish(Provider::new("acme", name));
    }
    upstream.fault(Target::Everything, Fault::SignedByAnotherKey);
    let (home, lax_home) = (Folder::new(), Folder::new());
    let strict = setup.start(&upstream, &home);
    let announced = "select count(*) from larder.replica where settings <> ''";
    until("it has announced itself", async || setup.database.sql(announced) == "1").await;
    let config = setup.config(&upstream, &lax_home);
    let lax = config.replacen("[[upstream]]\n", "[[upstream]]\nverification = \"checksum\"\n", 1);
    assert_ne!(lax, config);
    let lax = Process::serve(&lax, lax_home.path()).unwrap_or_else(|output| panic!("{output:?}"));
    assert_eq!(lax.document("null").await.status, 502);
    let says_so = async |replica: &Process| {
        let metrics = get(&format!("{}/metrics", replica.admin())).await.expect(200).text();
        metrics.contains("larder_fleet_alarms{kind=\"settings-differ\"} 1")
    };
    for replica in [&strict, &lax] {
        until("it says so", async || says_so(replica).await).await;
    }
    assert_eq!(lax.document("null").await.status, 502);
    strict.terminate_promptly().await;
    until("its own verification counts", async || lax.document("other").await.status == 200).await;
    until("nothing differs", async || !says_so(&lax).await).await;
}

/// A fleet is made once, by a command. A replica that meets another fleet, or none, does not start, and says what to do.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_starts_in_its_own_fleet_only() {
    let Some(setup) = FleetSetup::empty() else { return };
    let upstream = FakeUpstream::start().await;
    let folder = Folder::new();
    let missing = setup.refused(&upstream, &folder).expect(78);
    assert!(missing.err.contains("the database lacks migration 1; run larder fleet create"), "{missing:?}");
    setup.command_of_owner(Folder::new().path(), "migrate").await.expect(0);
    let unmarked = setup.refused(&upstream, &folder).expect(78);
    assert!(unmarked.err.contains("s3://larder/mirror/ belongs to no fleet yet"), "{unmarked:?}");
    let created = setup.create().await.expect(0);
    let again = setup.create().await.expect(0);
    let id = |output: &CommandOutput| output.out.trim().rsplit(' ').next().unwrap().to_owned();
    assert_eq!(id(&created), id(&again));
    assert!(
        setup
            .bucket
            .object("mirror/fleet.json")
            .is_some_and(|mark| mark.windows(36).any(|part| part == id(&created).as_bytes()))
    );
    setup.start(&upstream, &folder).terminate_promptly().await;
    let listed = "select count(*), count(*) filter (where left_at is null) from larder.replica";
    assert_eq!(setup.database.sql(listed), "1|0", "a replica that has ended is waited for");

    // The bucket and the database of two fleets.
    let Some(other) = FleetSetup::created().await else { return };
    let mixed = FleetSetup { database: TestDatabase::empty().unwrap(), bucket: other.bucket };
    let refused = mixed.create().await.expect(78);
    assert!(refused.err.contains("the database is that of the fleet"), "{refused:?}");
    // The folder of a replica of another fleet.
    let Some(third) = FleetSetup::created().await else { return };
    let strange = third.refused(&upstream, &folder).expect(78);
    assert!(
        strange.err.contains(&format!("it is the folder of a replica of the fleet {}", id(&created))),
        "{strange:?}"
    );
    // The folder of a replica, where the bucket says nothing.
    third.bucket.fail_all(BucketFault::Denied);
    let strange = third.refused(&upstream, &folder).expect(78);
    assert!(strange.err.contains("is the folder of a replica of the fleet"), "{strange:?}");
    // A prefix of the bucket that is nobody's, for a replica that has another.
    let mistyped = setup.config(&upstream, &folder).replace("s3://larder/mirror", "s3://larder/miror");
    let refused = Process::serve(&mistyped, folder.path()).err().expect("it started").expect(78);
    assert!(refused.err.contains("s3://larder/miror/ belongs to no fleet yet"), "{refused:?}");
    // The store of a larder that runs alone.
    upstream.publish(Provider::new("acme", "null"));
    let alone = Folder::new();
    let single = Larder::mirroring(&upstream).store_at(&alone);
    let running = Process::start(&single, alone.path());
    running.document("null").await.expect(200);
    running.terminate_promptly().await;
    let refused = setup.refused(&upstream, &alone).expect(78);
    assert!(refused.err.contains("is the store of a larder that runs alone"), "{refused:?}");
    // And the folder of a replica for a larder that runs alone.
    let refused = Process::serve(&Larder::mirroring(&upstream).store_at(&folder).config_text(), folder.path());
    let refused = refused.err().expect("it started").expect(78);
    assert!(refused.err.contains(&format!("is the folder of a replica of the fleet {}", id(&created))), "{refused:?}");
}

/// A replica that was killed goes on with what it has, also where neither the database nor the bucket answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_starts_again_without_the_database_and_the_bucket() {
    let Some(setup) = FleetSetup::created().await else { return };
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(200_000));
    let zip = upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64");
    let folder = Folder::new();
    let replica = setup.start(&upstream, &folder);
    let path = replica.archive_path("null").await;
    assert!(replica.get(&path).await.expect(200).body == zip);
    replica.kill();
    let config = setup.config(&upstream, &folder).replace(setup.bucket.endpoint(), "https://127.0.0.1:9");
    std::fs::write(folder.path().join("database-url"), "postgresql://larder_run@127.0.0.1:9/larder").unwrap();
    let replica = Process::serve(&config, folder.path()).unwrap_or_else(|output| panic!("{output:?}"));
    assert!(replica.get(&path).await.expect(200).body == zip);
    replica.log().line_with("nobody says which fleet this is").await;
    replica.terminate_promptly().await;
}

/// The real client, each of whose requests another replica answers: it installs providers and modules, with the lock file of a single
/// larder, and again when upstream is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_each_request_sends_to_another_replica_installs() {
    let Some(terraform) = Terraform::find() else { return };
    let Some(setup) = FleetSetup::created().await else { return };
    let mut upstream = ModuleFixture::start().await;
    // One file has the authority of the bucket, and that of the server with the modules.
    let authorities = [std::fs::read_to_string(setup.bucket.ca_file()).unwrap(), upstream.ca.pem()].concat();
    std::fs::write(setup.bucket.ca_file(), authorities).unwrap();
    for number in 0..20 {
        upstream.registry.publish(Provider::new("acme", &format!("p{number}")).size(100_000));
    }
    for number in 0..10 {
        upstream.publish_archive(&format!("m{number}"), &tar_gz(&[("main.tf", format!("# {number}\n").as_bytes())]));
    }
    let init = async |base: &str| {
        let mut workspace = terraform.workspace();
        let service = |name: &str| format!("\"{name}.v1\" = \"{base}/registry/registry.terraform.io/v1/{name}/\"");
        let services = [service("providers"), service("modules")].join(", ");
        workspace.cli_config(&format!("host \"registry.terraform.io\" {{\n  services = {{ {services} }}\n}}\n"));
        for number in 0..20 {
            workspace.require(&format!("acme/p{number}"), "1.2.0");
        }
        let module = |number| {
            format!("module \"m{number}\" {{\n  source = \"acme/m{number}/test\"\n  version = \"1.0.0\"\n}}\n")
        };
        workspace.file("modules.tf", &(0..10).map(module).collect::<String>());
        workspace.init().await.expect_success();
        workspace.lock_file()
    };
    let alone = Folder::new();
    let single = upstream.larder_on(&alone);
    let single = Process::start(&single, alone.path());
    let expected = init(single.base()).await;
    let folders = [Folder::new(), Folder::new()];
    let replicas = [&folders[0], &folders[1]].map(|folder| setup.start(&upstream.registry, folder));
    let status = larder(&folders[0], &["fleet", "status"]).await.expect(0);
    assert!(
        status.out.contains("2 heard in the last ten seconds")
            && status.out.contains("archives   0 (0 B)")
            && status.out.contains(", PostgreSQL "),
        "{status:?}"
    );
    let turns = Turns::between(replicas.iter().map(|replica| replica.base().to_owned()).collect()).await;
    assert_eq!(init(&turns.base()).await, expected);
    upstream.stop().await;
    assert_eq!(init(&turns.base()).await, expected);
    assert!(turns.answered().iter().all(|count| *count > 100), "{:?}", turns.answered());
    // Two replicas may fetch the same archive at the same moment, and keep one.
    assert_eq!(setup.database.sql("select count(*) from larder.blob"), "30");
    until("each replica says what it has", async || {
        let status = larder(&folders[0], &["fleet", "status", "--json"]).await.expect(0).out;
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        let replicas = status["replicas"].as_array().unwrap();
        // Twenty archives of 100,000 bytes.
        replicas.iter().all(|replica| replica["amounts"]["stored_bytes"].as_u64() > Some(2_000_000))
    })
    .await;
    for replica in replicas {
        replica.terminate_promptly().await;
    }
    let status = larder(&folders[0], &["fleet", "status"]).await.expect(0);
    assert!(
        status.out.contains("0 heard") && status.out.contains("archives   30 (") && status.out.contains("ended "),
        "{status:?}"
    );
    let status: serde_json::Value =
        serde_json::from_str(&larder(&folders[0], &["fleet", "status", "--json"]).await.expect(0).out).unwrap();
    assert_eq!((&status["archives"], &status["replicas"][0]["state"]), (&30.into(), &"ended".into()), "{status:#}");
}

/// A replica that is killed at any step of an upload leaves no object that nobody knows, and no name without its archive.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_killed_while_it_stores_leaves_nothing_by_half() {
    let Some(setup) = FleetSetup::created().await else { return };
    let upstream = FakeUpstream::start().await;
    let folder = Folder::new();
    let unknown = "select count(*) from unnest($$OBJECTS$$::text[]) o(name) where not exists (select from larder.blob b \
                   where 'mirror/' || b.object = o.name) and not exists (select from larder.doomed d where 'mirror/' || d.object = o.name)";
    for round in 0..repetitions(1, 75) {
        for (step, size) in
            [(Verb::Put, 200_000), (Verb::Begin, 9 << 20), (Verb::Part, 9 << 20), (Verb::Complete, 9 << 20)]
        {
            let name = format!("p{round}-{step:?}").to_lowercase();
            upstream.publish(Provider::new("acme", &name).size(size));
            let zip = upstream.archive_bytes("acme", &name, "1.2.0", "linux_amd64");
            let replica = setup.start(&upstream, &folder);
            let path = replica.archive_path(&name).await;
            let asked = setup.bucket.count(step);
            setup.bucket.hold(step);
            let url = format!("{}{path}", replica.base());
            let request = tokio::spawn(async move { client().get(url).send().await?.bytes().await });
            until("the replica is at this step", async || setup.bucket.count(step) > asked).await;
            replica.kill();
            setup.bucket.release(step);
            assert!(request.await.unwrap().is_err(), "{name}: a client got an archive whole that has no name");
            let objects = setup.bucket.objects().into_iter().filter(|object| object != "mirror/fleet.json");
            let objects = format!("{{{}}}", objects.collect::<Vec<_>>().join(","));
            assert_eq!(setup.database.sql(&unknown.replace("OBJECTS", &objects)), "0", "{name}: {objects}");
            let named = format!("select count(*) from larder.name_archive where path like '%/{name}/%'");
            assert_eq!(setup.database.sql(&named), "0", "{name}");
            let replica = setup.start(&upstream, &folder);
            assert!(replica.get(&path).await.expect(200).body == zip, "{name}");
            assert_eq!(setup.database.sql(&named), "1", "{name}");
            replica.terminate_promptly().await;
        }
    }
    // Another replica has nothing of its own.
    let asked = upstream.count_of(Target::Archive);
    let other = Folder::new();
    let replica = setup.start(&upstream, &other);
    for step in ["put", "begin", "part", "complete"] {
        let name = format!("p0-{step}");
        let path = replica.archive_path(&name).await;
        let zip = upstream.archive_bytes("acme", &name, "1.2.0", "linux_amd64");
        assert!(replica.get(&path).await.expect(200).body == zip, "{name}");
    }
    assert_eq!(upstream.count_of(Target::Archive), asked);
    replica.terminate_promptly().await;
}

/// A reload takes a new password of the role and a new key of the bucket: the replica goes on where both were refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_takes_new_keys_of_the_database_and_the_bucket() {
    let Some(setup) = FleetSetup::on_its_own_server(false).await else { return };
    let (upstream, folder) = (FakeUpstream::start().await, Folder::new());
    for name in ["before", "after"] {
        upstream.publish(Provider::new("acme", name).size(200_000));
    }
    let replica = setup.start(&upstream, &folder);
    replica.get(&replica.archive_path("before").await).await.expect(200);
    setup.database.sql(&format!(
        "alter role {RUN_ROLE} password 'another'; select pg_terminate_backend(pid) from pg_stat_activity where usename = '{RUN_ROLE}'"
    ));
    setup.bucket.take_key("another-key");
    let document = "/registry/registry.terraform.io/v1/providers/acme/after/1.2.0/download/linux/amd64";
    until("the database refuses it", async || replica.get(document).await.status == 503).await;
    let url = std::fs::read_to_string(folder.path().join("database-url")).unwrap();
    let (start, end) = (url.rfind('@').unwrap(), url.find(RUN_ROLE).unwrap() + RUN_ROLE.len());
    let url = format!("{}:another{}", &url[..end], &url[start..]);
    std::fs::write(folder.path().join("database-url"), url).unwrap();
    std::fs::write(folder.path().join("access-key"), "another-key").unwrap();
    replica.send_sighup();
    until("the database answers", async || replica.get(document).await.status == 200).await;
    replica.get(&replica.archive_path("after").await).await.expect(200);
    // Neither is owed: the bucket took the second one, too.
    assert_eq!(setup.database.sql("select count(*) from larder.blob"), "2");
    // Another role: nothing goes on by the connections of the first one, which may have no rights any more.
    let url = setup.database.url(OTHER_ROLE);
    std::fs::write(folder.path().join("database-url"), url).unwrap();
    replica.send_sighup();
    let connections = format!("select count(*) from pg_stat_activity where usename = '{RUN_ROLE}'");
    until("the first role has no connection", async || {
        replica.get(document).await.expect(200);
        setup.database.sql(&connections) == "0"
    })
    .await;
    setup.database.sql(&format!("revoke all on all tables in schema larder from {RUN_ROLE}; grant select, insert, update, delete on all tables in schema larder to {OTHER_ROLE}"));
    until("the other role serves", async || replica.get("/readyz").await.status == 200).await;
    replica.terminate_promptly().await;
}
