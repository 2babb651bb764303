//! A database that has forgotten something: replicas compare their copies with it, and record nothing as first for a minute.

use larder::store::{Durability, FleetAlarmKind, RecordScope, Records, StoreError};
use rand::{Rng as _, SeedableRng as _};

use crate::fleet_copy::{new_replica, put, read, replica};
use crate::fleet_database::{alarms, first_seen, until_answered};
use crate::support::larder::wait_until_unlocked;
use crate::support::postgres::TestDatabase;

/// The way in which a database forgets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    /// A dump is restored.
    Dump,
    /// The disk is set back to a former state, as that of a virtual machine.
    Disk,
}

fn generation(database: &TestDatabase) -> String {
    database.sql(&format!("select gen from larder.grp where grp = '{}'", alarms("null").group().name()))
}

/// Promise 16: whatever the way back, and whoever notices first: what the database has forgotten, the replicas forget, too, also where it has come
/// to the same generation with another record.
#[test]
fn what_a_database_has_forgotten_is_forgotten_by_the_replicas() {
    for loss in [Loss::Dump, Loss::Disk] {
        let Some(database) = TestDatabase::on_its_own_server() else { return };
        let ((one, _one), (other, folder)) = (new_replica(&database), new_replica(&database));
        put(&one, &first_seen("null"), "first");
        put(&one, &alarms("null"), "kept");
        match loss {
            Loss::Dump => database.dump(),
            Loss::Disk => database.keep_disk(),
        }
        until_answered(|| one.feed().hear());
        let life = database.sql("select life from larder.fleet");
        // Much more than the log has afterwards, which nothing compresses.
        let mut random = rand::rngs::StdRng::seed_from_u64(1);
        for number in 0..20 {
            let noise: [u8; 16384] = std::array::from_fn(|_| random.r#gen());
            put(&one, &alarms(&format!("p{number}")), &hex::encode(noise));
        }
        put(&one, &alarms("null"), "lost");
        let lost_generation = generation(&database);
        for replica in [&one, &other] {
            until_answered(|| replica.feed().hear());
            assert_eq!(read(replica, &alarms("null")).as_deref(), Some("lost"));
        }
        drop(other);
        wait_until_unlocked(folder.path());

        match loss {
            Loss::Dump => database.restore(),
            Loss::Disk => database.set_disk_back(),
        }
        assert_eq!(database.sql("select life from larder.fleet"), life);
        // A replica without a memory comes to the same generation.
        let (third, _third) = new_replica(&database);
        for number in 0..20 {
            let records: &dyn Records = &third;
            let other = alarms(&format!("q{number}"));
            until_answered(|| records.put(&other, b"", Durability::Synced));
        }
        put(&third, &alarms("null"), "another");
        assert_eq!(generation(&database), lost_generation, "{loss:?}: a test of nothing");

        let restarted = replica(&folder, &database);
        for replica in [&restarted, &one] {
            until_answered(|| replica.feed().hear());
            assert_eq!(read(replica, &alarms("null")).as_deref(), Some("another"), "{loss:?}");
            assert_eq!(read(replica, &alarms("p0")), None, "{loss:?}");
            let told = replica.fleet().unwrap().events().told();
            assert!(matches!(&told[..], [told] if told.kind == FleetAlarmKind::DatabaseForgot), "{loss:?}: {told:?}");
        }
        let now = database.sql("select life from larder.fleet");
        assert_ne!(now, life);
        for replica in [&restarted, &one, &third] {
            let records: &dyn Records = replica;
            let refused = records.put(&first_seen("random"), b"first", Durability::Synced).unwrap_err();
            assert!(
                matches!(&refused, StoreError::Unreachable(reason) if reason.contains("for a minute")),
                "{refused}"
            );
            put(replica, &alarms("null"), "known");
        }
        database.sql("update larder.fleet set settle_until = now()");
        for (name, replica) in [("a", &restarted), ("b", &one), ("c", &third)] {
            put(replica, &first_seen(name), "first");
        }
        assert_eq!(database.sql("select life from larder.fleet"), now, "noticed more than once");
    }
}

/// Promise 16: a standby that is promoted may lack what was acknowledged last.
#[test]
fn a_promoted_standby_begins_another_life() {
    let Some(database) = TestDatabase::on_its_own_server() else { return };
    let ((one, _one), (other, _other)) = (new_replica(&database), new_replica(&database));
    put(&one, &first_seen("null"), "first");
    assert_eq!(read(&other, &first_seen("null")).as_deref(), Some("first"));
    database.promote();
    for replica in [&one, &other] {
        let records: &dyn Records = replica;
        until_answered(|| records.put(&alarms("null"), b"alarm", Durability::Synced));
        let refused = records.put(&first_seen("random"), b"first", Durability::Synced).unwrap_err();
        assert!(refused.to_string().contains("for a minute"), "{refused}");
        assert_eq!(read(replica, &first_seen("null")).as_deref(), Some("first"));
    }
    database.sql("update larder.fleet set settle_until = now()");
    put(&other, &first_seen("random"), "first");
}

/// A crash forgets nothing that was acknowledged, so it is no other life.
#[test]
fn a_crash_begins_no_other_life() {
    let Some(database) = TestDatabase::on_its_own_server() else { return };
    let (one, _one) = new_replica(&database);
    put(&one, &first_seen("null"), "first");
    until_answered(|| one.feed().hear());
    let life = database.sql("select life from larder.fleet");
    for number in 0..5 {
        // Positions beyond what is on the disk are seen by nobody.
        let records: &dyn Records = &one;
        until_answered(|| records.put(&alarms("null"), &vec![b'x'; 100_000], Durability::Synced));
        database.leave_open();
        until_answered(|| one.feed().hear());
        database.crash();
        until_answered(|| one.refresh(RecordScope::Group(&alarms("null").group())));
        let name = format!("p{number}");
        until_answered(|| records.put(&first_seen(&name), b"first", Durability::Synced));
    }
    assert_eq!(database.sql("select life from larder.fleet"), life);
    assert_eq!(one.fleet().unwrap().events().told(), []);
}

/// A dump has the transactions of the server that it was made on, which may be far ahead of those of the server that it is restored
/// into: no group is changed for that.
#[test]
fn a_dump_of_another_server_is_no_change_of_each_group() {
    let Some(former) = TestDatabase::on_its_own_server() else { return };
    let (one, _one) = new_replica(&former);
    put(&one, &first_seen("null"), "first");
    former.sql("update larder.grp set tx = '900000000'");
    former.dump();
    let Some(database) = TestDatabase::on_its_own_server() else { return };
    database.restore_from(&former);
    let (other, _other) = new_replica(&database);
    until_answered(|| other.feed().hear());
    let group = first_seen("null").group();
    assert_eq!(read(&other, &first_seen("null")).as_deref(), Some("first"));
    let generation = other.generation_now(group.as_ref());
    other.feed().hear().unwrap();
    assert_eq!(other.generation_now(group.as_ref()), generation, "nothing changed");
}

/// Bytes that are the same stay where they are: a database that fails again is the usual case.
#[test]
fn a_copy_of_another_life_keeps_what_is_the_same() {
    let Some(database) = TestDatabase::on_its_own_server() else { return };
    let (one, folder) = new_replica(&database);
    put(&one, &first_seen("null"), "first");
    put(&one, &alarms("null"), "alarm");
    database.promote();
    until_answered(|| one.feed().hear());
    assert_eq!(read(&one, &first_seen("null")).as_deref(), Some("first"));
    assert_eq!((folder.files("seen").len(), folder.files("alarms").len()), (1, 1));
    database.freeze();
    for (key, text) in [(first_seen("null"), "first"), (alarms("null"), "alarm")] {
        assert_eq!(read(&one, &key).as_deref(), Some(text));
    }
    database.unfreeze();
}
