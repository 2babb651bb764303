//! Files of the store: a record is read as it was written, or not at all.
//! An input that begins with `p` is stored as a record; any other replaces the file of a record.
#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use larder::address::Hostname;
use larder::clock::Timestamp;
use larder::store::{Durability, Key, Store, StoreError};
use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() }.expect("a folder")
});
static STORE: LazyLock<Store> = LazyLock::new(|| Store::open(FOLDER.path(), Timestamp(1)).expect("a store"));

fuzz_target!(|input: &[u8]| {
    let key = Key::discovery(&Hostname::parse("registry.example").expect("a host"));
    let path = STORE.local.root().join("documents/registry.example/discovery");
    if let Some(record) = input.strip_prefix(b"p") {
        STORE.records.put(&key, record, Durability::Lazy).expect("the record is stored");
        let file = fs::read(&path).expect("the file exists");
        let (size_bytes, _) = STORE.records.stat(&key).expect("it is readable").expect("it exists");
        assert_eq!(file.len() as u64, size_bytes);
        assert!(STORE.records.get(&key).expect("the record is readable").as_deref() == Some(record));
        // A truncated file counts as damaged.
        let truncated_bytes = record.len().min(file.len() - 1);
        fs::write(&path, &file[..truncated_bytes]).expect("the file is truncated");
        assert!(STORE.records.get(&key).expect("damage is no failure").is_none());
    } else {
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, input).expect("it is written");
        match STORE.records.get(&key) {
            Ok(Some(record)) => assert!(input.ends_with(&record)),
            Ok(None) => assert!(!path.exists(), "a damaged file is quarantined"),
            Err(StoreError::Newer { found, .. }) => assert!(found > larder::store::FORMAT),
            Err(failed) => panic!("{failed}"),
        }
    }
    for quarantined in fs::read_dir(STORE.local.root().join("aside")).expect("a folder").flatten() {
        fs::remove_file(quarantined.path()).expect("it is removed");
    }
});
