//! The copy of shared records that a replica keeps: what is read without the database, what is never said without it, and what many
//! replicas do to each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use larder::clock::{Clock, Timestamp};
use larder::fleet::copy::CopiedRecords;
use larder::fleet::records::DatabaseRecords;
use larder::store::{Durability, Fleet as _, IndexEntry, Key, ReadOutcome, RecordScope, Records, Store, StoreError};

use crate::fleet_database::{alarms, first_seen, race, until_answered};
use crate::support::larder::{Folder, open_store, wait_until_unlocked};
use crate::support::postgres::TestDatabase;

/// A replica: its records, and the store that they are copied to.
pub(crate) fn replica(folder: &Folder, database: &TestDatabase) -> CopiedRecords {
    let Store { records, local, .. } = open_store(folder.path(), Timestamp(1));
    let shared = DatabaseRecords::of(Arc::new(database.connect()));
    CopiedRecords::new(records, Arc::clone(&local.index), shared, None, Clock::system()).unwrap()
}

/// A replica in a folder of its own.
pub(crate) fn new_replica(database: &TestDatabase) -> (CopiedRecords, Folder) {
    let folder = Folder::new();
    (replica(&folder, database), folder)
}

pub(crate) fn read(records: &impl Records, key: &Key) -> Option<String> {
    records.read(key).unwrap().intact().map(|record| String::from_utf8(record).unwrap())
}

pub(crate) fn put(records: &impl Records, key: &Key, text: &str) {
    let records: &dyn Records = records;
    records.put(key, text.as_bytes(), Durability::Synced).unwrap();
}

/// Another replica reads a record that it never looked for at once, and a later change once it hears of it.
#[test]
fn a_change_is_seen_by_another_replica_that_hears_of_it() {
    let Some(database) = TestDatabase::new() else { return };
    let ((one, _one), (other, _other)) = (new_replica(&database), new_replica(&database));
    let (key, later) = (first_seen("null"), alarms("null"));
    other.feed().hear().unwrap();
    put(&one, &key, "first");
    assert_eq!(read(&other, &key).as_deref(), Some("first"));
    other.feed().hear().unwrap();
    assert_eq!(read(&other, &later), None);
    let generation = other.generation_now(key.group().as_ref());
    put(&one, &later, "alarm");
    // It is current, as far as it knows: a hit asks nobody.
    assert_eq!((read(&other, &later), other.generation_now(key.group().as_ref())), (None, generation));
    other.feed().hear().unwrap();
    assert_ne!(other.generation_now(key.group().as_ref()), generation, "what was rendered stays");
    assert_eq!(read(&other, &later).as_deref(), Some("alarm"));
    let generation = other.generation_now(key.group().as_ref());
    other.feed().hear().unwrap();
    assert_eq!(other.generation_now(key.group().as_ref()), generation, "nothing changed");
    put(&one, &later, "another alarm");
    let group = key.group();
    other.refresh(RecordScope::Group(&group)).unwrap();
    assert_eq!(read(&other, &later).as_deref(), Some("another alarm"));
    let generation = other.generation_now(group.as_ref());
    other.refresh(RecordScope::Group(&group)).unwrap();
    assert_eq!(other.generation_now(group.as_ref()), generation, "nothing changed");
    let records: &dyn Records = &one;
    records.remove(&later, Durability::Synced).unwrap();
    other.refresh(RecordScope::Group(&group)).unwrap();
    assert_eq!((read(&other, &later), read(&other, &key).as_deref()), (None, Some("first")));
}

/// Bytes come when they are needed; a list of a group has none.
#[test]
fn the_bytes_of_a_large_record_are_fetched_when_it_is_read() {
    let Some(database) = TestDatabase::new() else { return };
    let ((one, _one), (other, folder)) = (new_replica(&database), new_replica(&database));
    let large = "x".repeat(100_000);
    other.feed().hear().unwrap();
    put(&one, &alarms("null"), &large);
    let group = alarms("null").group();
    other.refresh(RecordScope::Group(&group)).unwrap();
    assert_eq!(other.stat(&alarms("null")).unwrap().map(|(size, _)| size), Some(100_000));
    assert!(folder.files("alarms").is_empty());
    assert_eq!(read(&other, &alarms("null")), Some(large.clone()));
    assert_eq!(folder.files("alarms").len(), 1);
    // A small change of another record leaves it here.
    put(&one, &first_seen("null"), "first");
    other.refresh(RecordScope::Group(&group)).unwrap();
    assert_eq!((folder.files("alarms").len(), folder.files("seen").len()), (1, 1));
    put(&one, &alarms("null"), &large.replace('x', "y"));
    other.refresh(RecordScope::Group(&group)).unwrap();
    assert!(folder.files("alarms").is_empty(), "an old copy stays");
    assert_eq!(read(&other, &alarms("null")), Some(large.replace('x', "y")));
}

/// A file that is lost or damaged is no lost record.
#[test]
fn a_damaged_copy_is_read_from_the_database() {
    let Some(database) = TestDatabase::new() else { return };
    let (records, folder) = new_replica(&database);
    put(&records, &first_seen("null"), "first");
    let [file] = &folder.files("seen")[..] else { panic!() };
    for damage in ["", "no record"] {
        std::fs::write(file, damage).unwrap();
        assert_eq!(read(&records, &first_seen("null")).as_deref(), Some("first"));
        assert!(std::fs::read_to_string(file).unwrap().contains("first"));
    }
    std::fs::remove_file(file).unwrap();
    assert_eq!(read(&records, &first_seen("null")).as_deref(), Some("first"));
    assert!(folder.files("aside").is_empty());
}

/// Where only the notes were lost, the files stay: nothing is fetched again.
#[test]
fn a_copy_whose_index_was_lost_is_kept() {
    let Some(database) = TestDatabase::on_its_own_server() else { return };
    let folder = Folder::new();
    let one = replica(&folder, &database);
    put(&one, &first_seen("null"), "first");
    put(&one, &alarms("null"), "alarm");
    put(&one, &alarms("other"), "old");
    drop(one);
    wait_until_unlocked(folder.path());
    folder.lose_index();
    let (another, _another) = new_replica(&database);
    put(&another, &alarms("other"), "new");
    let restarted = replica(&folder, &database);
    for name in ["null", "other"] {
        restarted.refresh(RecordScope::Group(&alarms(name).group())).unwrap();
    }
    database.freeze();
    assert_eq!(read(&restarted, &first_seen("null")).as_deref(), Some("first"));
    assert_eq!(read(&restarted, &alarms("null")).as_deref(), Some("alarm"));
    assert!(restarted.read(&alarms("other")).is_err(), "an old copy counts");
    database.unfreeze();
    assert_eq!(until_answered(|| restarted.read(&alarms("other"))).intact().as_deref(), Some(&b"new"[..]));
}

/// A disk that takes no copy costs questions to the database, and no record.
#[test]
fn a_replica_whose_disk_takes_no_copy_reads_and_writes_the_database() {
    let Some(database) = TestDatabase::new() else { return };
    let ((one, _one), (other, folder)) = (new_replica(&database), new_replica(&database));
    put(&one, &first_seen("null"), "first");
    let in_the_way = folder.path().join("v1/seen");
    std::fs::remove_dir_all(&in_the_way).unwrap();
    std::fs::write(&in_the_way, "no folder").unwrap();
    assert_eq!(read(&other, &first_seen("null")).as_deref(), Some("first"));
    assert_eq!(other.stat(&first_seen("null")).unwrap().map(|(size, _)| size), Some(5));
    put(&other, &first_seen("null"), "second");
    put(&other, &first_seen("random"), "another");
    for records in [&one, &other] {
        records.feed().hear().unwrap();
        assert_eq!(read(records, &first_seen("null")).as_deref(), Some("second"));
        assert_eq!(read(records, &first_seen("random")).as_deref(), Some("another"));
        assert_eq!(read(records, &first_seen("nothing")), None);
    }
    std::fs::remove_file(&in_the_way).unwrap();
    assert_eq!(read(&other, &first_seen("null")).as_deref(), Some("second"));
    assert_eq!(folder.files("seen").len(), 1);
}

/// Without the database a replica serves what it has, also after a restart, and says of nothing that it is absent.
#[test]
fn without_the_database_what_is_here_is_read_and_nothing_is_absent() {
    let Some(database) = TestDatabase::on_its_own_server() else { return };
    let folder = Folder::new();
    let (key, missing) = (first_seen("null"), first_seen("random"));
    for closed in [true, false] {
        let Store { records, local, .. } = open_store(folder.path(), Timestamp(1));
        let shared = DatabaseRecords::of(Arc::new(database.connect()));
        let copied = CopiedRecords::new(records, Arc::clone(&local.index), shared, None, Clock::system()).unwrap();
        put(&copied, &key, "first");
        put(&copied, &alarms("null"), if closed { "one" } else { "two" });
        database.freeze();
        let check = |copied: &CopiedRecords| {
            assert_eq!(read(copied, &key).as_deref(), Some("first"));
            for unknown in [copied.read(&missing).map(drop), copied.stat(&missing).map(drop)] {
                assert!(matches!(unknown, Err(StoreError::Unreachable(_))), "{unknown:?}");
            }
            let group = missing.group();
            assert!(copied.refresh(RecordScope::Group(&group)).is_err());
            let records: &dyn Records = copied;
            let judged = records.change(&key, |step| {
                step.put(&key, b"another".to_vec(), Durability::Synced, IndexEntry::Unindexed);
                Ok(())
            });
            assert!(matches!(judged, Err(StoreError::Unreachable(_))), "{judged:?}");
        };
        check(&copied);
        if closed {
            local.close().unwrap();
        }
        drop((copied, local));
        wait_until_unlocked(folder.path());
        let restarted = replica(&folder, &database);
        check(&restarted);
        database.unfreeze();
        assert_eq!(until_answered(|| restarted.read(&missing)), ReadOutcome::Absent);
        assert_eq!(read(&restarted, &alarms("null")).as_deref(), Some(if closed { "one" } else { "two" }));
        drop(restarted);
        wait_until_unlocked(folder.path());
    }
}

/// A restored database has forgotten records, and the copy forgets them, too.
#[test]
fn a_copy_that_is_ahead_of_a_restored_database_is_compared_whole() {
    let Some(database) = TestDatabase::new() else { return };
    let (records, _folder) = new_replica(&database);
    put(&records, &first_seen("null"), "first");
    put(&records, &alarms("null"), "alarm");
    database.sql("delete from larder.record; update larder.grp set gen = (select gen from larder.history)");
    records.refresh(RecordScope::Group(&first_seen("null").group())).unwrap();
    assert_eq!(
        (read(&records, &first_seen("null")).as_deref(), read(&records, &alarms("null"))),
        (Some("first"), None)
    );
}

/// An answer rendered from an old copy while the database was away is rendered anew when it is back.
#[test]
fn what_is_made_of_an_old_copy_does_not_outlive_the_trouble() {
    let Some(database) = TestDatabase::on_its_own_server() else { return };
    let ((one, _one), (other, folder)) = (new_replica(&database), new_replica(&database));
    let group = alarms("null").group();
    put(&one, &alarms("null"), "old");
    assert_eq!(read(&other, &alarms("null")).as_deref(), Some("old"));
    drop(other);
    wait_until_unlocked(folder.path());
    put(&one, &alarms("null"), "new");
    // After a restart nobody knows whether it is old.
    let other = replica(&folder, &database);
    database.freeze();
    let rendered_at = other.generation_now(group.as_ref());
    assert_eq!(read(&other, &alarms("null")).as_deref(), Some("old"));
    assert_ne!(other.generation_now(group.as_ref()), rendered_at, "what was rendered stays");
    database.unfreeze();
    until_answered(|| other.refresh(RecordScope::Group(&group)));
    assert_eq!(read(&other, &alarms("null")).as_deref(), Some("new"));
}

/// A copy of a process that ended without closing its index is compared whole.
#[test]
fn a_copy_that_was_not_closed_is_compared_whole() {
    let Some(database) = TestDatabase::new() else { return };
    let folder = Folder::new();
    let one = replica(&folder, &database);
    put(&one, &first_seen("null"), "first");
    put(&one, &alarms("null"), "alarm");
    drop(one);
    wait_until_unlocked(folder.path());
    let earlier = std::fs::read(&folder.files("seen")[0]).unwrap();
    let one = replica(&folder, &database);
    put(&one, &first_seen("null"), "second");
    drop(one);
    wait_until_unlocked(folder.path());
    // As after a power cut: the note is there, and the file is an earlier one. The removal by another replica is not noted.
    std::fs::write(&folder.files("seen")[0], earlier).unwrap();
    let (other, _other) = new_replica(&database);
    let other: &dyn Records = &other;
    other.remove(&alarms("null"), Durability::Synced).unwrap();
    let restarted = replica(&folder, &database);
    assert_eq!(read(&restarted, &first_seen("null")).as_deref(), Some("second"));
    assert_eq!(read(&restarted, &alarms("null")), None);
    assert!(folder.files("alarms").is_empty());
}

#[test]
fn each_version_has_one_first_among_replicas_with_copies() {
    let Some(database) = TestDatabase::on_its_own_server() else { return };
    let folders = [(); 3].map(|()| Folder::new());
    race(&database, &folders.each_ref().map(|folder| replica(folder, &database)));
}

/// Steps and news from many threads of three replicas: no step is lost, and in the end all copies are the same.
#[test]
fn steps_of_many_threads_and_replicas_lose_nothing() {
    const THREADS: usize = 12;
    const STEPS: usize = 12;
    let Some(database) = TestDatabase::new() else { return };
    let folders = [(); 3].map(|()| Folder::new());
    let replicas = folders.each_ref().map(|folder| replica(folder, &database));
    let names = ["aws", "google", "azurerm", "null"];
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let replica = &replicas[thread % 3];
                let records: &dyn Records = replica;
                scope.spawn(move || {
                    for step_number in 0..STEPS {
                        let name = names[(thread + step_number) % names.len()];
                        let [counter, double] = [first_seen(name), alarms(name)];
                        let counted = || {
                            records.change(&counter, |step| {
                                let count: usize = step.read(&counter)?.json().intact().unwrap_or_default();
                                let doubled: usize = step.read(&double)?.json().intact().unwrap_or_default();
                                // Two records of one moment, unless the step is judged again.
                                if doubled == 2 * count {
                                    step.put_json(&counter, &(count + 1), Durability::Synced);
                                    step.put_json(&double, &(2 * (count + 1)), Durability::Synced);
                                }
                                Ok(doubled == 2 * count)
                            })
                        };
                        assert!(until_answered(counted), "a step saw two moments");
                        replica.feed().hear().unwrap();
                    }
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
    for replica in &replicas {
        let counts = names.map(|name| {
            replica.refresh(RecordScope::Group(&first_seen(name).group())).unwrap();
            let count = read(replica, &first_seen(name)).unwrap().parse::<usize>().unwrap();
            assert_eq!(read(replica, &alarms(name)), Some((2 * count).to_string()));
            count
        });
        assert_eq!(counts.iter().sum::<usize>(), THREADS * STEPS, "{counts:?}");
    }
}

/// However often the records of a group change, in this replica and in another one, those who read them find a moment.
#[test]
fn a_crowd_reads_a_group_that_changes_all_the_time() {
    const CHANGES: usize = 40;
    const READERS: usize = 24;
    let Some(database) = TestDatabase::new() else { return };
    let ((one, _one), (other, _other)) = (new_replica(&database), new_replica(&database));
    let [counter, large] = [alarms("null"), first_seen("null")];
    let filling = "x".repeat(70_000);
    put(&one, &counter, "0");
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for _ in 0..READERS {
            threads.spawn(|| {
                let (mut last, group) = (0, counter.group());
                while !has_ended.load(Ordering::Acquire) {
                    one.refresh(RecordScope::Group(&group)).unwrap();
                    let count = read(&one, &counter).unwrap().parse().unwrap();
                    assert!(count >= last, "{count} after {last}");
                    last = count;
                    read(&one, &large);
                }
            });
        }
        let writers = [&one, &one, &one, &one, &other, &other].map(|replica| {
            let (counter, large, filling) = (&counter, &large, &filling);
            threads.spawn(move || {
                for _ in 0..CHANGES {
                    let records: &dyn Records = replica;
                    let counted = || {
                        records.change(counter, |step| {
                            let count: usize = step.read(counter)?.json().intact().unwrap_or_default();
                            step.put_json(counter, &(count + 1), Durability::Synced);
                            let text = format!("{count} {filling}").into_bytes();
                            step.put(large, text, Durability::Synced, IndexEntry::Unindexed);
                            Ok(())
                        })
                    };
                    counted().unwrap();
                }
            })
        });
        let ended = writers.map(|writer| writer.join());
        has_ended.store(true, Ordering::Release);
        ended.into_iter().for_each(|ended| ended.unwrap());
    });
    assert_eq!(read(&one, &counter), Some((6 * CHANGES).to_string()));
}

/// A record whose bytes come from the database may be newer than the copy. Later reads of its group are as new: a list and the times of its
/// versions are two records, and a version without a time would count as an old one.
#[test]
fn reads_after_a_newer_record_are_as_new() {
    let Some(database) = TestDatabase::new() else { return };
    let ((one, _one), (other, _other)) = (new_replica(&database), new_replica(&database));
    let [list, times] = [first_seen("null"), alarms("null")];
    let large = |text: &str| format!("{text}{}", "x".repeat(70_000));
    let change = |text: &str| {
        let records: &dyn Records = &one;
        let changed = records.change(&list, |step| {
            step.put(&list, large(text).into_bytes(), Durability::Synced, IndexEntry::Unindexed);
            step.put(&times, text.as_bytes().to_vec(), Durability::Synced, IndexEntry::Unindexed);
            Ok(())
        });
        changed.unwrap();
    };
    change("old");
    // Without the bytes of the large one.
    assert_eq!(read(&other, &times).as_deref(), Some("old"));
    change("new");
    assert_eq!(read(&other, &times).as_deref(), Some("old"), "it has heard of the change");
    assert_eq!(read(&other, &list), Some(large("new")));
    assert_eq!(read(&other, &times).as_deref(), Some("new"));
}

/// A group that this replica has heard to be changed is not served as it was: a command has returned for that.
#[test]
fn what_is_known_to_have_changed_is_not_served_without_the_database() {
    let Some(database) = TestDatabase::on_its_own_server() else { return };
    let ((one, _one), (other, _other)) = (new_replica(&database), new_replica(&database));
    put(&one, &alarms("null"), "old");
    put(&one, &alarms("same"), "same");
    for name in ["null", "same"] {
        assert!(read(&other, &alarms(name)).is_some());
    }
    other.feed().hear().unwrap();
    put(&one, &alarms("null"), "new");
    other.feed().hear().unwrap();
    database.freeze();
    assert!(other.read(&alarms("null")).is_err(), "the record is served as it was");
    assert_eq!(read(&other, &alarms("same")).as_deref(), Some("same"));
    database.unfreeze();
    assert_eq!(until_answered(|| other.read(&alarms("null"))).intact().as_deref(), Some(&b"new"[..]));
}

/// After a kill the copy has records, and nobody knows of which moment. A change that this replica heard of since holds for them, too.
#[test]
fn a_record_that_changed_since_a_kill_is_not_served_without_the_database() {
    let Some(database) = TestDatabase::on_its_own_server() else { return };
    let ((one, _one), (other, folder)) = (new_replica(&database), new_replica(&database));
    put(&one, &first_seen("null"), "old");
    put(&one, &first_seen("same"), "same");
    for name in ["null", "same"] {
        assert!(read(&other, &first_seen(name)).is_some());
    }
    // It is dropped, and not closed.
    drop(other);
    wait_until_unlocked(folder.path());
    let other = replica(&folder, &database);
    other.feed().hear().unwrap();
    put(&one, &first_seen("null"), "new");
    other.feed().hear().unwrap();
    database.freeze();
    assert!(other.read(&first_seen("null")).is_err(), "the record is served as it was");
    assert_eq!(read(&other, &first_seen("same")).as_deref(), Some("same"));
    database.unfreeze();
    assert_eq!(until_answered(|| other.read(&first_seen("null"))).intact().as_deref(), Some(&b"new"[..]));
}

/// A database that hangs costs many changes of one group the time of one: those that waited for it ask nothing afterwards.
#[test]
fn changes_of_one_group_do_not_wait_one_by_one_for_a_database_that_hangs() {
    const CHANGES: usize = 16;
    let Some(database) = TestDatabase::on_its_own_server() else { return };
    let (one, _one) = new_replica(&database);
    put(&one, &alarms("null"), "before");
    database.freeze();
    let before = one.questions();
    std::thread::scope(|threads| {
        for number in 0..CHANGES {
            let one: &dyn Records = &one;
            threads.spawn(move || {
                let refused = one.put(&alarms("null"), number.to_string().as_bytes(), Durability::Synced);
                assert!(matches!(refused, Err(StoreError::Unreachable(_))), "{refused:?}");
            });
        }
    });
    let asked = one.questions() - before;
    database.unfreeze();
    assert_eq!(asked, 1);
    until_answered(|| {
        let one: &dyn Records = &one;
        one.put(&alarms("null"), b"after", Durability::Synced)
    });
    assert_eq!(read(&one, &alarms("null")).as_deref(), Some("after"));
}
