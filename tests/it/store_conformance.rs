//! Every implementation of [`Records`] passes these, and the archives of this machine. An implementation that writes in
//! steps also survives a crash between any two of them (promise 9).

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::fleet_copy::replica;
use crate::support::lagging_records::LaggingRecords;
use crate::support::memory_records::MemoryRecords;
use crate::support::postgres::TestDatabase;
use larder::address::{
    Address, AddressFilter, Artifact, Hostname, ModuleAddress, ModuleName, ModulePackage, Name, Package, Platform,
    ProviderAddress, System, Version,
};
use larder::clock::Timestamp;
use larder::digest::Digest;
use larder::fleet::records::DatabaseRecords;
use larder::store::{
    Change, Durability, IndexEntry, IndexedName, Key, ListedArchive, Local, NameCursor, ReadOutcome, RecordAction,
    RecordStep, Records, ResumeNote, Store, StoreError, WriteOutcome,
};
use larder::verify::Verified;

use crate::support::larder::{Folder, open_store};

fn provider(name: &str) -> ProviderAddress {
    let [namespace, type_] = ["acme", name].map(|name| Name::parse(name).unwrap());
    ProviderAddress { host: Hostname::parse("registry.example").unwrap(), namespace, type_ }
}

fn version(number: &str) -> Version {
    Version::parse(number).unwrap()
}

fn proof_set_key(name: &str, number: &str) -> Key {
    let platform = Platform::parse("linux_amd64").unwrap();
    Key::ProofSet(Package { provider: provider(name), version: version(number), platform })
}

fn provider_artifact(name: &str, number: &str) -> Artifact {
    let platform = Platform::parse("linux_amd64").unwrap();
    Artifact::Provider(Package { provider: provider(name), version: version(number), platform })
}

fn first_seen_key(name: &str, number: &str) -> Key {
    Key::FirstSeen(provider(name), version(number))
}

fn module(name: &str) -> ModulePackage {
    let [namespace, name] = ["Acme", name].map(|name| ModuleName::parse(name).unwrap());
    let (host, system) = (Hostname::parse("registry.example").unwrap(), System::parse("aws").unwrap());
    ModulePackage { module: ModuleAddress { host, namespace, name, system }, version: version("1.0.0") }
}

fn put_change(key: &Key, record: &str) -> Change {
    let action = RecordAction::Put(record.as_bytes().to_vec(), Durability::Synced);
    Change { key: key.clone(), action, entry: IndexEntry::Unindexed }
}

fn record_text(records: &dyn Records, key: &Key) -> Option<String> {
    records.get(key).unwrap().map(|record| String::from_utf8(record).unwrap())
}

fn publish(local: &Local, name: &str, bytes: &[u8]) -> Digest {
    let mut staged = local.staging.stage(name).unwrap();
    staged.append(bytes).unwrap();
    let (digest, _) = staged.hashes();
    local.archives.publish(Verified::by_digest(staged, digest, digest).unwrap(), Durability::Synced).unwrap();
    digest
}

fn every_record_is_whole_or_absent(records: &dyn Records) {
    let key = proof_set_key("null", "1.0.0");
    assert_eq!(records.read(&key).unwrap(), ReadOutcome::Absent);
    assert!(records.stat(&key).unwrap().is_none() && !records.sync(&key).unwrap());
    for record in ["first", "", "the second\nwith a line"] {
        records.put(&key, record.as_bytes(), Durability::Lazy).unwrap();
        assert_eq!(records.read(&key).unwrap(), ReadOutcome::Intact(record.as_bytes().to_vec()));
        assert!(records.stat(&key).unwrap().is_some() && records.sync(&key).unwrap());
    }
    records.remove(&key, Durability::Synced).unwrap();
    records.remove(&key, Durability::Lazy).unwrap();
    assert_eq!(records.read(&key).unwrap(), ReadOutcome::Absent);
    records.put(&key, b"not what it should be", Durability::Synced).unwrap();
    let quarantine = |step: &mut RecordStep<'_>| {
        step.change(&key, RecordAction::Quarantine, IndexEntry::Gone);
        Ok(())
    };
    records.change(&key, quarantine).unwrap();
    assert_eq!(records.read(&key).unwrap(), ReadOutcome::Absent);
}

/// Listings of one address contain nothing of another whose name begins with its own.
fn a_name_that_is_a_prefix_of_another_lists_its_own(records: &dyn Records) {
    for (name, number) in
        [("aws", "1.0.0"), ("aws", "1.0.0-beta"), ("aws2", "2.0.0"), ("aws-x", "3.0.0"), ("aw", "4.0.0")]
    {
        records.put(&proof_set_key(name, number), b"set", Durability::Lazy).unwrap();
        records.put(&first_seen_key(name, number), b"seen", Durability::Lazy).unwrap();
    }
    records.put(&Key::FirstSeenV0(provider("aws")), b"old", Durability::Lazy).unwrap();
    records.put(&Key::SigningKeyLog(provider("aws")), b"keys", Durability::Lazy).unwrap();
    let seen = records.change(&Key::SigningKeyLog(provider("aws")), |step| step.first_seen(&provider("aws")));
    assert_eq!(seen.unwrap(), BTreeSet::from([first_seen_key("aws", "1.0.0"), first_seen_key("aws", "1.0.0-beta")]));
    assert_eq!(records.packages_with_sets(&provider("aws2")).unwrap().len(), 1);
    assert_eq!(records.platforms_with_sets(&provider("aws"), &version("1.0.0")).unwrap().len(), 1);
    assert_eq!(
        records.names_in(Path::new("documents/registry.example/providers/acme")).unwrap(),
        ["aw", "aws", "aws-x", "aws2"]
    );
    assert!(records.names_in(Path::new("documents/registry.example/providers/ac")).unwrap().is_empty());
    assert!(records.keys_below(Path::new("documents/registry.example/providers/ac")).unwrap().is_empty());
    assert_eq!(records.keys_below(Path::new("seen")).unwrap().len(), 7);
    assert_eq!(records.all().unwrap().len(), 12);
    let spellings = [module("vpc"), module("VPC"), module("vpc2")];
    for package in &spellings {
        records.put(&Key::ModuleFirstSeen(package.clone()), b"seen", Durability::Lazy).unwrap();
    }
    let modules = [&spellings[0].module, &spellings[1].module];
    assert_eq!(records.spellings_seen(modules[0]).unwrap(), [modules[1].clone()]);
    assert_eq!(Key::ModuleFirstSeen(spellings[0].clone()).group(), Key::ModuleFirstSeen(spellings[1].clone()).group());
}

/// A page of keys continues after the last one of the page before, wherever it ended.
fn pages_of_keys_continue_where_they_ended(records: &dyn Records) {
    let folder = Path::new("documents/registry.example");
    let keys = [("aws", "1.0.0"), ("aws", "1.0.0-beta"), ("aws", "2.0.0"), ("aws-x", "1.0.0"), ("awsx", "1.0.0")];
    for (name, number) in keys {
        records.put(&proof_set_key(name, number), b"set", Durability::Lazy).unwrap();
    }
    let all = records.keys_below(folder).unwrap();
    let expected = keys.map(|(name, number)| proof_set_key(name, number));
    assert_eq!(all.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>(), expected);
    for limit in 1..=keys.len() + 1 {
        let (mut read, mut after) = (Vec::new(), None);
        loop {
            let page = records.page(folder, after.as_ref(), limit).unwrap();
            assert!(page.len() <= limit);
            after = page.last().map(|(key, _)| key.clone());
            read.extend(page);
            if after.is_none() {
                break;
            }
        }
        assert_eq!(read, all, "{limit}");
    }
    // The last key of a page may be gone by the next one.
    let gone = proof_set_key("aws", "1.5.0");
    assert_eq!(records.page(folder, Some(&gone), 9).unwrap(), all[2..]);
    assert!(records.page(Path::new("names"), None, 9).unwrap().is_empty());
}

/// The listed values of names are known without reading the names, in the order of their cursors.
fn names_are_found_by_what_they_list(records: &dyn Records) {
    let [one, other] = ["one", "other"].map(|bytes| Digest::of(bytes.as_bytes()));
    let artifact = provider_artifact;
    let listed = |digest| ListedArchive { digest, lacks_hashes: false };
    let put = |artifact: &Artifact, pinned: bool, archives: &[Digest]| {
        let name = IndexedName { pinned, imported: pinned, archives: archives.iter().copied().map(listed).collect() };
        let key = Key::Name(artifact.clone());
        let action = match archives {
            [] => RecordAction::Remove(Durability::Lazy),
            _ => RecordAction::Put(b"{}".to_vec(), Durability::Lazy),
        };
        let changed = records.change(&key, |step| {
            step.change(&key, action.clone(), IndexEntry::Name(name.clone()));
            Ok(())
        });
        changed.unwrap();
    };
    let [first, second, third] = [("aws", "1.0.0"), ("aws", "2.0.0"), ("null", "1.0.0")].map(|(a, b)| artifact(a, b));
    put(&second, true, &[one, other]);
    put(&third, false, &[other]);
    put(&first, false, &[one]);
    let after = |after: Option<&Artifact>, most: usize| {
        let (mut found, cursor) = (Vec::new(), after.map(NameCursor::of));
        let visit = &mut |artifact, _| {
            found.push(artifact);
            if found.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        records.each_name_of(&AddressFilter::Host(provider("aws").host), cursor.as_ref(), visit).unwrap();
        found
    };
    assert_eq!(after(None, 2), [first.clone(), second.clone()]);
    assert_eq!(after(Some(&second), 2), std::slice::from_ref(&third));
    assert_eq!(records.names_of(&one).unwrap(), [first.clone(), second.clone()]);
    assert_eq!(records.pinned_names().unwrap(), std::slice::from_ref(&second));
    assert_eq!(records.imported_names(9).unwrap(), std::slice::from_ref(&second));
    put(&second, false, &[other]);
    put(&first, false, &[]);
    assert!(records.names_of(&one).unwrap().is_empty() && records.pinned_names().unwrap().is_empty());
    assert!(records.imported_names(9).unwrap().is_empty());
    [&second, &third].into_iter().for_each(|artifact| put(artifact, true, &[other]));
    assert_eq!(records.imported_names(1).unwrap(), std::slice::from_ref(&second));
    [&second, &third].into_iter().for_each(|artifact| put(artifact, false, &[other]));
    assert!(records.pinned_names().unwrap().is_empty());
    assert_eq!(records.name(&second).unwrap().map(|name| name.archives.len()), Some(1));
    assert_eq!(records.names(|artifact, _| Some(artifact)).unwrap(), [second, third]);
    assert!(records.name(&first).unwrap().is_none() && records.unreadable_name().is_none());
}

/// A filter finds what it names in the order of cursors, and a module in every spelling.
fn names_are_found_by_filters(records: &dyn Records) {
    let host = provider("aws").host;
    let module = |namespace: &str, name: &str, number: &str| {
        let [namespace, name] = [namespace, name].map(|name| ModuleName::parse(name).unwrap());
        let module = ModuleAddress { host: host.clone(), namespace, name, system: System::parse("aws").unwrap() };
        Artifact::Module(ModulePackage { module, version: version(number) })
    };
    let stored = [
        module("ACME", "vpc", "1.0.0"),
        module("Acme", "other", "1.0.0"),
        module("acme", "VPC", "2.0.0"),
        module("acme2", "vpc", "1.0.0"),
        provider_artifact("vpc", "1.0.0"),
        provider_artifact("vpc", "2.0.0"),
        provider_artifact("vpc2", "1.0.0"),
    ];
    for artifact in &stored {
        let archives = vec![ListedArchive { digest: Digest::of(b"one"), lacks_hashes: false }];
        let name = IndexedName { pinned: false, imported: false, archives };
        let changed = records.change(&Key::Name(artifact.clone()), |step| {
            let record = RecordAction::Put(b"{}".to_vec(), Durability::Lazy);
            step.change(&Key::Name(artifact.clone()), record, IndexEntry::Name(name.clone()));
            Ok(())
        });
        changed.unwrap();
    }
    for (filter, expected) in [
        ("registry.example", &[0, 1, 2, 3, 4, 5, 6][..]),
        ("acme", &[0, 1, 2, 4, 5, 6]),
        ("acme/vpc", &[0, 2, 4, 5]),
        ("ACME/vpc/aws", &[0, 2]),
        ("acme/vpc@> 1.0", &[5]),
        ("other", &[]),
        ("other.example", &[]),
    ] {
        let filter = AddressFilter::parse(filter, &host).unwrap();
        // A page of one name, again and again.
        let (mut found, mut visited) = (Vec::<Artifact>::new(), 0);
        loop {
            let (cursor, before) = (found.last().map(NameCursor::of), found.len());
            let visit = &mut |artifact, _| {
                found.push(artifact);
                visited += 1;
                ControlFlow::Break(())
            };
            records.each_name_of(&filter, cursor.as_ref(), visit).unwrap();
            if found.len() == before {
                break;
            }
        }
        assert_eq!(found, expected.iter().map(|number| stored[*number].clone()).collect::<Vec<_>>(), "{filter}");
        assert_eq!(visited, expected.len(), "{filter}");
    }
}

/// Everything that is read and changed together is one group, whatever its kind.
fn a_write_names_the_generation_it_read(records: &dyn Records) {
    let (version, keys) = (first_seen_key("aws", "1.0.0"), Key::SigningKeyLog(provider("aws")));
    let name = Key::Name(provider_artifact("aws", "1.0.0"));
    let group = version.group();
    assert!([&keys, &name, &proof_set_key("aws", "9.0.0")].iter().all(|key| key.group() == group));
    assert_eq!(Key::Alarms(Address::Provider(provider("aws"))).group(), group);
    let read_at = records.generation(&group).unwrap();
    assert_eq!(records.write(&group, read_at, &[]).unwrap(), WriteOutcome::Written);
    let both = [put_change(&version, "mine"), put_change(&keys, "mine")];
    assert_eq!(records.write(&group, read_at, &both).unwrap(), WriteOutcome::Written);
    let late = [put_change(&version, "late"), put_change(&name, "late")];
    assert_eq!(records.write(&group, read_at, &late).unwrap(), WriteOutcome::Conflict);
    assert_eq!(records.write(&group, read_at, &[]).unwrap(), WriteOutcome::Conflict);
    assert_eq!((record_text(records, &version).unwrap(), record_text(records, &name)), ("mine".to_owned(), None));
    let read_at = records.generation(&group).unwrap();
    let (removed, kept) = (RecordAction::Remove(Durability::Synced), RecordAction::Keep);
    let changes = [(&version, removed), (&keys, kept)].map(|(key, action)| Change {
        key: key.clone(),
        action,
        entry: IndexEntry::Unindexed,
    });
    assert_eq!(records.write(&group, read_at, &changes).unwrap(), WriteOutcome::Written);
    assert_eq!((record_text(records, &version), record_text(records, &keys).unwrap()), (None, "mine".to_owned()));
}

/// The judgement is repeated with what the faster writer wrote, and reads what the step itself changes.
fn a_conflict_is_judged_again(records: &dyn Records) {
    let (key, other) = (first_seen_key("null", "1.0.0"), first_seen_key("null", "2.0.0"));
    let mut attempts = 0;
    let before = records.change(&key, |step| {
        attempts += 1;
        let before = step.read(&key)?.intact();
        if attempts == 1 {
            records.put(&other, b"faster", Durability::Lazy)?;
        }
        let mine = [step.read(&other)?.intact().unwrap_or_default(), b" mine".to_vec()].concat();
        step.put(&key, mine.clone(), Durability::Lazy, IndexEntry::Unindexed);
        assert_eq!(step.read(&key)?, ReadOutcome::Intact(mine));
        step.change(&other, RecordAction::Remove(Durability::Lazy), IndexEntry::Unindexed);
        assert_eq!(step.read(&other)?, ReadOutcome::Absent);
        Ok(before)
    });
    assert_eq!((before.unwrap(), attempts), (None, 2));
    assert_eq!((record_text(records, &key).unwrap(), record_text(records, &other)), ("faster mine".to_owned(), None));
}

fn writers_of_one_address_lose_nothing(records: &dyn Records) {
    let key = first_seen_key("counter", "1.0.0");
    let count =
        |record: Option<Vec<u8>>| record.map_or(0, |record| String::from_utf8(record).unwrap().parse().unwrap());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..25 {
                    let counted = records.change(&key, |step| {
                        let next: u32 = count(step.read(&key)?.intact()) + 1;
                        step.put_json(&key, &next, Durability::Lazy);
                        Ok(next)
                    });
                    assert!(counted.unwrap() > 0);
                }
            });
        }
    });
    assert_eq!(count(records.get(&key).unwrap()), 200);
}

/// Runs a step that another writer tries to overtake at each attempt; returns the number of attempts.
fn attempts_while_overtaken(records: &dyn Records) -> u32 {
    let (key, other, mut attempts) = (first_seen_key("slow", "1.0.0"), first_seen_key("slow", "2.0.0"), 0);
    std::thread::scope(|scope| {
        let changed = records.change(&key, |step| {
            attempts += 1;
            let (done, is_done) = mpsc::channel();
            let other = &other;
            // At most twenty times: a step that is always overtaken would never end.
            if attempts < 20 {
                scope.spawn(move || {
                    records.put(other, b"faster", Durability::Lazy).unwrap();
                    let _ = done.send(());
                });
            }
            // While the step has its turn, the other writer waits for the end of the step.
            let _ = is_done.recv_timeout(Duration::from_secs(1));
            step.put(&key, b"slow".to_vec(), Durability::Lazy, IndexEntry::Unindexed);
            Ok(())
        });
        changed.unwrap();
    });
    assert_eq!(
        (record_text(records, &key).unwrap(), record_text(records, &other).unwrap()),
        ("slow".into(), "faster".into())
    );
    attempts
}

fn a_step_that_lost_is_not_overtaken_for_ever(records: &dyn Records) {
    let attempts = attempts_while_overtaken(records);
    assert!(attempts <= 4, "{attempts}");
}

/// Each writer reads, lets the others go first, and writes. Without turns, a writer could lose every round.
fn slow_writers_of_one_address_all_end(records: &dyn Records) {
    let (key, rounds) = (first_seen_key("crowded", "1.0.0"), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..10 {
                    let changed = records.change(&key, |step| {
                        rounds.fetch_add(1, Ordering::Relaxed);
                        let number: u32 = step.read(&key)?.json().intact().unwrap_or_default();
                        (0..1000).for_each(|_| std::thread::yield_now());
                        step.put_json(&key, &(number + 1), Durability::Lazy);
                        Ok(())
                    });
                    changed.unwrap();
                }
            });
        }
    });
    assert_eq!(record_text(records, &key).as_deref(), Some("80"));
    assert!(rounds.into_inner() > 80, "they never met");
}

/// A group that changes in every round is busy; nothing waits for ever.
fn a_step_that_always_loses_is_busy(records: &dyn Records) {
    let (key, other) = (first_seen_key("busy", "1.0.0"), first_seen_key("busy", "2.0.0"));
    let group = key.group();
    let changed = records.change(&key, |step| {
        // A writer beside this process, which takes no turn.
        let read_at = records.generation(&group)?;
        records.write(&group, read_at, &[put_change(&other, "faster")])?;
        step.put(&key, b"slow".to_vec(), Durability::Lazy, IndexEntry::Unindexed);
        Ok(())
    });
    assert!(matches!(&changed, Err(StoreError::Busy(group)) if group.contains("acme/busy")), "{changed:?}");
    assert_eq!(record_text(records, &key), None);
}

#[test]
fn staged_archives_are_invisible_and_visible_ones_are_complete() {
    let folder = Folder::new();
    let store = reopened(&folder);
    let (archives, staging) = (&store.local.archives, &store.local.staging);
    let bytes = b"the bytes of an archive";
    let digest = Digest::of(bytes);
    let mut staged = staging.stage("download").unwrap();
    staged.append(&bytes[..9]).unwrap();
    let note = ResumeNote { etag: Some("\"1\"".to_owned()), ..ResumeNote::default() };
    staged.remember(note, bytes.len() as u64).unwrap();
    assert!(archives.open(&digest).unwrap().is_none() && archives.all().unwrap().is_empty());
    drop(staged);
    // A broken download is resumed with its note.
    let mut staged = staging.stage("download").unwrap();
    assert_eq!((staged.written(), staged.note().unwrap().etag.as_deref()), (9, Some("\"1\"")));
    staged.append(&bytes[9..]).unwrap();
    assert!(!archives.contains(&digest).unwrap());
    archives.publish(Verified::by_digest(staged, digest, digest).unwrap(), Durability::Synced).unwrap();
    let blob = archives.open(&digest).unwrap().unwrap();
    assert_eq!((blob.size_bytes(), blob.read_all().unwrap()), (bytes.len() as u64, bytes.to_vec()));
    assert_eq!(blob.hashes().unwrap().0, digest);
    assert_eq!(archives.stat(&digest).unwrap().unwrap().0, bytes.len() as u64);
    assert_eq!(staging.stage("download").unwrap().written(), 0);
    // Two writers of one archive, and a reader of the first one's.
    publish(&store.local, "other", bytes);
    assert_eq!(archives.all().unwrap().len(), 1);
    assert!(!archives.quarantine_unless_replaced(&digest, &blob).unwrap());
    archives.remove(&digest, Durability::Synced).unwrap();
    archives.remove(&digest, Durability::Lazy).unwrap();
    assert!(!archives.contains(&digest).unwrap());
    assert_eq!(blob.read_all().unwrap(), bytes);
    publish(&store.local, "again", bytes);
    let blob = archives.open(&digest).unwrap().unwrap();
    assert!(archives.quarantine_unless_replaced(&digest, &blob).unwrap() && !archives.contains(&digest).unwrap());
    staging.stage("unwanted").unwrap().discard().unwrap();
    assert!(staging.scratch().unwrap().file().is_ok());
}

const RECORD_TESTS: [fn(&dyn Records); 11] = [
    every_record_is_whole_or_absent,
    a_name_that_is_a_prefix_of_another_lists_its_own,
    pages_of_keys_continue_where_they_ended,
    names_are_found_by_what_they_list,
    names_are_found_by_filters,
    a_write_names_the_generation_it_read,
    a_conflict_is_judged_again,
    writers_of_one_address_lose_nothing,
    a_step_that_lost_is_not_overtaken_for_ever,
    slow_writers_of_one_address_all_end,
    a_step_that_always_loses_is_busy,
];

#[test]
fn the_store_in_memory_conforms() {
    for test in RECORD_TESTS {
        test(&MemoryRecords::default());
    }
}

#[test]
fn a_copy_that_lags_behind_shared_records_conforms() {
    for test in RECORD_TESTS {
        test(&LaggingRecords::default());
    }
}

#[test]
fn the_store_in_postgresql_conforms() {
    for test in RECORD_TESTS {
        let Some(database) = database_with_archives() else { return };
        test(&DatabaseRecords::of(Arc::new(database.connect())));
    }
}

#[test]
fn a_copy_of_the_store_in_postgresql_conforms() {
    for test in RECORD_TESTS {
        let Some(database) = database_with_archives() else { return };
        let folder = Folder::new();
        test(&replica(&folder, &database));
    }
}

/// A database in which the archives that names list are secured.
fn database_with_archives() -> Option<TestDatabase> {
    let database = TestDatabase::new()?;
    let secured = ["one", "other"].map(|bytes| Digest::of(bytes.as_bytes()));
    let rows = secured.map(|digest| format!("('\\x{digest}', '{digest}', 1)")).join(",");
    database.sql(&format!("insert into larder.blob (sha256, object, size) values {rows}"));
    Some(database)
}

#[test]
fn the_store_in_a_folder_conforms() {
    for test in RECORD_TESTS {
        let folder = Folder::new();
        test(&*open_store(folder.path(), Timestamp(1)).records);
    }
}

fn reopened(folder: &Folder) -> Store {
    open_store(folder.path(), Timestamp(1))
}

/// Whatever a power cut leaves of a record's file, it is read whole or not at all.
#[test]
fn a_torn_file_is_never_read() {
    let folder = Folder::new();
    let store = reopened(&folder);
    let (document, seen) = (proof_set_key("null", "1.0.0"), first_seen_key("null", "1.0.0"));
    let file = |folder: &str, end: &str| {
        store.local.root().join(folder).join("registry.example/providers/acme/null").join(end)
    };
    let files = [file("documents", "1.0.0/linux_amd64.set"), file("seen", "1.0.0.json")];
    store.records.put(&document, b"a whole record", Durability::Synced).unwrap();
    let whole = std::fs::read(&files[0]).unwrap();
    for length in 0..whole.len() {
        store.records.put(&seen, b"a whole record", Durability::Synced).unwrap();
        for file in &files {
            std::fs::write(file, &whole[..length]).unwrap();
        }
        for _ in 0..2 {
            assert_eq!(store.records.read(&document).unwrap(), ReadOutcome::Damaged, "{length}: a read never writes");
        }
        // Quarantined, unlike a first-seen record: the next version must not pass for the first.
        assert_eq!(store.records.get(&document).unwrap(), None, "{length}");
        assert_eq!(store.records.read(&document).unwrap(), ReadOutcome::Absent, "{length}");
        for _ in 0..2 {
            assert_eq!(store.records.read(&seen).unwrap(), ReadOutcome::Damaged, "{length}");
        }
    }
}

/// A step that reads a torn record quarantines it with its own changes: it is judged once, and every read says the same.
#[test]
fn a_damaged_record_is_quarantined_with_the_step_that_read_it() {
    let folder = Folder::new();
    let store = reopened(&folder);
    let (torn, other) = (proof_set_key("null", "1.0.0"), first_seen_key("null", "1.0.0"));
    let file = store.local.root().join("documents/registry.example/providers/acme/null/1.0.0/linux_amd64.set");
    for replacement in [None, Some("new")] {
        store.records.put(&torn, b"old", Durability::Lazy).unwrap();
        std::fs::write(&file, "torn").unwrap();
        let mut attempts = 0;
        let changed = store.records.change(&torn, |step| {
            attempts += 1;
            for _ in 0..2 {
                assert_eq!(step.read(&torn)?, ReadOutcome::Damaged);
            }
            assert_eq!(std::fs::read(&file).unwrap(), b"torn", "a read inside a step writes nothing");
            step.put(&other, b"cause".to_vec(), Durability::Lazy, IndexEntry::Unindexed);
            if let Some(replacement) = replacement {
                step.put(&torn, replacement.into(), Durability::Lazy, IndexEntry::Unindexed);
            }
            Ok(())
        });
        changed.unwrap();
        assert_eq!((attempts, record_text(&*store.records, &torn).as_deref()), (1, replacement));
        assert_eq!(record_text(&*store.records, &other).as_deref(), Some("cause"));
    }
    assert_eq!(std::fs::read_dir(store.local.root().join("aside")).unwrap().count(), 2);
}

/// A reader of a torn file quarantines that file only, not the record that another thread wrote in its place.
#[test]
fn a_record_that_replaces_a_torn_one_is_not_quarantined() {
    let folder = Folder::new();
    let store = reopened(&folder);
    let key = proof_set_key("null", "1.0.0");
    let file = store.local.root().join("documents/registry.example/providers/acme/null/1.0.0/linux_amd64.set");
    for round in 0..300 {
        store.records.put(&key, b"old", Durability::Lazy).unwrap();
        std::fs::write(&file, "torn").unwrap();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| store.records.get(&key).unwrap());
            }
            scope.spawn(|| store.records.put(&key, b"new", Durability::Lazy).unwrap());
        });
        assert_eq!(record_text(&*store.records, &key).as_deref(), Some("new"), "{round}");
    }
}

/// The changes of a step are made in their order. A crash leaves the first of them, and the next start removes the rest.
#[test]
fn a_crash_between_two_changes_leaves_the_first() {
    let folder = Folder::new();
    let store = reopened(&folder);
    let (first, second) = (first_seen_key("null", "1.0.0"), Key::version_list(&provider("null")));
    // A file where the second change needs a folder stops the step there.
    let obstacle = store.local.root().join("documents/registry.example");
    std::fs::write(&obstacle, "in the way").unwrap();
    let group = first.group();
    let read_at = store.records.generation(&group).unwrap();
    assert!(store.records.write(&group, read_at, &[put_change(&first, "new"), put_change(&second, "new")]).is_err());
    let rest = [put_change(&first, "older")];
    assert_eq!(store.records.write(&group, read_at, &rest).unwrap(), WriteOutcome::Conflict);
    std::fs::remove_file(&obstacle).unwrap();
    assert_eq!(
        (record_text(&*store.records, &first).unwrap(), record_text(&*store.records, &second)),
        ("new".to_owned(), None)
    );
    // Between the write of a record's file and its rename.
    std::fs::write(store.local.root().join("staging/record-7"), "half of a rec").unwrap();
    drop(store);
    let store = reopened(&folder);
    assert!(std::fs::read_dir(store.local.root().join("staging")).unwrap().next().is_none());
    assert_eq!(
        (record_text(&*store.records, &first).unwrap(), record_text(&*store.records, &second)),
        ("new".to_owned(), None)
    );
}

/// The steps of a publication: the bytes are staged, renamed, and the note of the download is removed.
#[test]
fn a_crash_between_the_steps_of_a_publication_loses_no_archive() {
    let folder = Folder::new();
    let (bytes, note) = (b"the bytes of an archive", ResumeNote { length: Some(23), ..ResumeNote::default() });
    let store = reopened(&folder);
    let mut staged = store.local.staging.stage("download").unwrap();
    staged.remember(note.clone(), 23).unwrap();
    staged.append(bytes).unwrap();
    drop((staged, store));
    let store = reopened(&folder);
    assert!(store.local.archives.all().unwrap().is_empty());
    let staged = store.local.staging.stage("download").unwrap();
    assert_eq!((staged.written(), staged.hashes().0), (23, Digest::of(bytes)));
    drop(staged);
    let digest = publish(&store.local, "download", b"");
    assert_eq!(digest, Digest::of(bytes));
    // As if the crash came before the note was removed: it is no note of the bytes staged next.
    store.local.staging.stage("download").unwrap().remember(note, 0).unwrap();
    drop(store);
    let store = reopened(&folder);
    assert_eq!(store.local.archives.open(&digest).unwrap().unwrap().read_all().unwrap(), bytes);
    assert_eq!(store.local.staging.stage("download").unwrap().written(), 0);
}
