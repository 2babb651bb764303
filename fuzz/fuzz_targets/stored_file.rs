//! Files of the store: a record comes back as it was put, or not at all.
//! An input that begins with `p` is put; any other is what somebody left in a record's place.
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
    let key = Key::Discovery(Hostname::parse("registry.example").expect("a host"));
    let path = STORE.root().join("documents/registry.example/discovery");
    if let Some(record) = input.strip_prefix(b"p") {
        let size_bytes = STORE.records.put(&key, record, Durability::Lazy).expect("it is put");
        let file = fs::read(&path).expect("it is there");
        assert_eq!(file.len() as u64, size_bytes);
        assert!(STORE.records.get(&key).expect("it is read").as_deref() == Some(record));
        // Cut anywhere, it is damage.
        let cut = record.len().min(file.len() - 1);
        fs::write(&path, &file[..cut]).expect("it is cut");
        assert!(STORE.records.get(&key).expect("damage is no failure").is_none());
    } else {
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, input).expect("it is written");
        match STORE.records.get(&key) {
            Ok(Some(record)) => assert!(input.ends_with(&record)),
            Ok(None) => assert!(!path.exists(), "what is damaged is set aside"),
            Err(StoreError::Newer { found, .. }) => assert!(found > larder::store::FORMAT),
            Err(failed) => panic!("{failed}"),
        }
    }
    for aside in fs::read_dir(STORE.root().join("aside")).expect("a folder").flatten() {
        fs::remove_file(aside.path()).expect("it is removed");
    }
});
