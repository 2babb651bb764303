//! Bundles damaged in transit: every changed byte is detected, and after every truncation the import can be completed.

use std::io::{Cursor, Read, Write};

use larder::bundle::{ApplyEvent, ApplyOutcome, EntryOutcome, Manifest, PartList, PartsReader, PartsWriter, Receipt};
use larder::clock::Timestamp;
use larder::mirror::ApplyError;
use rand::{Rng, SeedableRng};
use rustix::process::Signal;

use crate::support::bundle_transfer::{
    BundleKey, BundleUpload, SealedStore, bundle, contents, outcomes, settled_contents,
};
use crate::support::larder::Folder;
use crate::support::process::{Process, command, run, spawn_captured};
use crate::support::published_module::publish_net_module;
use crate::support::upstream::{FakeUpstream, Provider};
use crate::support::{eventually, repetitions};

fn changed_bytes() -> usize {
    repetitions(40, 200)
}

/// The size of the blocks that a tar consists of: each header is one, and contents are padded to whole ones.
const TAR_BLOCK: usize = 512;

/// A bundle with two platforms under one SHA256SUMS, another provider, and a module.
async fn mixed_bundle(key: &BundleKey) -> Vec<u8> {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").platform("linux_amd64").platform("darwin_arm64"));
    upstream.publish(Provider::new("acme", "other").size(20_000));
    publish_net_module(&upstream);
    let addresses = ["acme/null", "acme/other", "acme/net/test"];
    bundle(&upstream, key, &addresses, &["linux_amd64"]).await
}

/// A file of a bundle: its name, the offset of its header, and the offset of the next header.
struct BundleFile {
    name: String,
    start: usize,
    end: usize,
    /// The entry that the file belongs to, and its role there; none for the manifest and its signature.
    entry_and_role: Option<(String, String)>,
}

impl BundleFile {
    /// True if this refusal names both the entry and the damaged file.
    fn matches_refusal(&self, entry: &EntryOutcome) -> bool {
        let ApplyOutcome::Refused { why: reason, .. } = &entry.outcome else { return false };
        let (subject, role) = self.entry_and_role.as_ref().unwrap();
        entry.package.to_string() == *subject
            && reason.starts_with(&format!("its {role} "))
            && reason.contains(self.name.strip_prefix("sha256/").unwrap())
    }
}

/// Locates the files of a bundle.
fn locate_files(bundle: &[u8]) -> Vec<BundleFile> {
    let (mut archive, mut manifest) = (tar::Archive::new(bundle), Vec::new());
    let mut files = Vec::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let (start, size) = (entry.raw_header_position() as usize, entry.size() as usize);
        let name = entry.path().unwrap().display().to_string();
        if name == "larder-bundle.json" {
            entry.read_to_end(&mut manifest).unwrap();
        }
        let end = start + TAR_BLOCK + size.div_ceil(TAR_BLOCK) * TAR_BLOCK;
        files.push(BundleFile { name, start, end, entry_and_role: None });
    }
    let manifest = Manifest::read(&manifest).unwrap();
    for (number, file) in manifest.files() {
        let located = files.iter_mut().find(|located: &&mut BundleFile| located.name == file.name()).unwrap();
        located.entry_and_role = Some((manifest.entries[number].package_ref().to_string(), file.role.to_string()));
    }
    files
}

fn file_at(files: &[BundleFile], offset: usize) -> Option<&BundleFile> {
    files.iter().find(|file| (file.start..file.end).contains(&offset))
}

fn first_refused(receipt: &Receipt) -> &EntryOutcome {
    let is_refused = |entry: &&EntryOutcome| matches!(entry.outcome, ApplyOutcome::Refused { .. });
    receipt.entries.iter().find(is_refused).unwrap_or_else(|| panic!("{receipt:#?}"))
}

/// The text of an error or of a receipt.
fn outcome_text(result: &Result<Receipt, ApplyError>) -> String {
    match result {
        Err(error) => error.to_string(),
        Ok(receipt) => serde_json::to_string(receipt).unwrap(),
    }
}

/// Accidental damage is found in unsigned bundles too.
#[tokio::test]
async fn a_changed_byte_is_refused_with_the_name_of_its_file() {
    let key = BundleKey::new();
    let signed = mixed_bundle(&key).await;
    let unsigned = without_signature(&signed);
    let with_unsigned = key.trust_or_unsigned();
    let mut random = rand::rngs::StdRng::seed_from_u64(7);
    for number in 0..changed_bytes() {
        let (mut bytes, options) =
            if number % 2 == 0 { (signed.clone(), key.trust()) } else { (unsigned.clone(), with_unsigned.clone()) };
        let files = locate_files(&bytes);
        let (offset, flip) = (random.gen_range(0..bytes.len()), random.gen_range(1..=u8::MAX));
        bytes[offset] ^= flip;
        let importer = SealedStore::new(key.sealed());
        let applied = importer.apply(bytes, &options).await;
        let text = outcome_text(&applied);
        assert!(!applied.as_ref().is_ok_and(|receipt| receipt.ok), "byte {offset}: {text}");
        match file_at(&files, offset) {
            // The manifest covers everything, so nothing is imported if it is damaged.
            Some(BundleFile { name, entry_and_role: None, .. }) => {
                assert!(applied.is_err(), "byte {offset} of {name}: {text}");
                assert!(contents(&importer.folder).is_empty(), "byte {offset} of {name}");
            }
            Some(file) => {
                assert!(
                    file.matches_refusal(first_refused(&applied.unwrap())),
                    "byte {offset} of {:?}: {text}",
                    file.entry_and_role
                );
            }
            // Damage after the last file: everything is imported, and the damage is reported.
            None => assert!(text.contains("does not end after its manifest's files"), "byte {offset}: {text}"),
        }
        // No refused entry is visible, and the undamaged bundle completes the import.
        if number % 20 == 0 {
            let receipt = importer.apply(signed.clone(), &key.trust()).await.unwrap();
            assert!(receipt.ok, "{receipt:#?}");
            let clean = SealedStore::new(key.sealed());
            clean.apply(signed.clone(), &key.trust()).await.unwrap();
            let (completed, clean) = (contents(&importer.folder), contents(&clean.folder));
            assert_eq!(completed.keys().collect::<Vec<_>>(), clean.keys().collect::<Vec<_>>());
            assert!(completed == clean);
        }
    }
}

fn without_signature(signed: &[u8]) -> Vec<u8> {
    let files = locate_files(signed);
    let signature = files.iter().find(|file| file.name == "larder-bundle.sig").unwrap();
    [&signed[..signature.start], &signed[signature.end..]].concat()
}

#[tokio::test]
async fn a_truncated_bundle_stores_its_complete_entries_and_reports_where_it_ended() {
    let key = BundleKey::new();
    let whole = mixed_bundle(&key).await;
    let files = locate_files(&whole);
    let mut cuts: Vec<usize> = files
        .iter()
        .flat_map(|BundleFile { start, end, .. }| [*start, start + 100, start + TAR_BLOCK, end - 1])
        .collect();
    cuts.extend([0, 1, whole.len() - 1024, whole.len() - 512, whole.len() - 1]);
    for cut in cuts.into_iter().step_by(repetitions(3, 1)) {
        let importer = SealedStore::new(key.sealed());
        let applied = importer.apply(whole[..cut].to_vec(), &key.trust()).await;
        let text = outcome_text(&applied);
        assert!(text.contains("truncated"), "{cut}: {text}");
        assert!(importer.folder.partial_downloads().is_empty(), "{cut}");
        let Ok(receipt) = applied else {
            assert!(contents(&importer.folder).is_empty(), "{cut}");
            continue;
        };
        assert!(!receipt.ok, "{cut}");
        // A cut inside a file is reported with its entry and role.
        if let Some(file) = file_at(&files, cut) {
            let (subject, role) = file.entry_and_role.as_ref().unwrap();
            let ended = receipt.ended.as_deref().unwrap();
            assert!(ended.starts_with(&format!("{subject}: its {role} ")), "{cut}: {ended}");
            assert!(file.matches_refusal(first_refused(&receipt)), "{cut}: {receipt:#?}");
        }
        let words: Vec<String> = outcomes(&receipt).into_iter().map(|(_, outcome)| outcome).collect();
        let applied_count = words.iter().take_while(|outcome| *outcome == "applied").count();
        let rest: Vec<&str> = words[applied_count..].iter().map(String::as_str).collect();
        assert!(
            rest.is_empty()
                || (rest[0] == "refused"
                    && rest[1..].iter().all(|outcome| *outcome == "missed" || *outcome == "not_reached")),
            "{cut}: {words:?}"
        );
        let again = importer.apply(whole.clone(), &key.trust()).await.unwrap();
        assert!(again.ok, "{cut}: {again:#?}");
        let already_stored = outcomes(&again).into_iter().filter(|(_, outcome)| outcome == "held").count();
        assert_eq!(already_stored, applied_count, "{cut}: {again:#?}");
    }
}

/// A bundle in parts of 1 MiB, in memory.
struct Parts {
    list: PartList,
    parts: Vec<Vec<u8>>,
}

impl Parts {
    fn split(bundle: &[u8]) -> Self {
        let list = PartList::empty(Timestamp(1), PART_BYTES as u64);
        let mut writer = PartsWriter::new(list, |_: &str| Ok(Cursor::new(Vec::new())), |_, _| Ok(()));
        writer.write_all(bundle).unwrap();
        Self { list: writer.end().unwrap().list, parts: bundle.chunks(PART_BYTES).map(<[u8]>::to_vec).collect() }
    }

    /// A reader of the whole bundle.
    fn read(&self) -> impl Read + Send + use<> {
        let (names, parts) = (self.list.parts.clone(), self.parts.clone());
        PartsReader::new(self.list.clone(), move |name: &str| {
            Ok(Cursor::new(parts[names.iter().position(|part| part.name == name).unwrap()].clone()))
        })
    }
}

const PART_BYTES: usize = 1 << 20;

/// Each part has a digest of its own: the error names the damaged part as well as the entry.
#[tokio::test]
async fn damage_in_one_of_several_parts_is_named_as_in_a_whole_bundle() {
    let (upstream, key) = (FakeUpstream::start().await, BundleKey::new());
    for name in ["one", "three", "two"] {
        upstream.publish(Provider::new("acme", name).size(900_000));
    }
    let whole = bundle(&upstream, &key, &["acme/one", "acme/two", "acme/three"], &["linux_amd64"]).await;
    let files = locate_files(&whole);
    let apply = async |parts: &Parts| SealedStore::new(key.sealed()).apply_from(parts.read(), &key.trust()).await;
    assert!(apply(&Parts::split(&whole)).await.unwrap().ok);
    let mut random = rand::rngs::StdRng::seed_from_u64(8);
    let mut offsets: Vec<usize> = (0..changed_bytes() / 5).map(|_| random.gen_range(0..whole.len())).collect();
    // At least one byte of each file, however small.
    offsets.extend(files.iter().map(|file| file.start + TAR_BLOCK));
    for offset in offsets {
        let mut parts = Parts::split(&whole);
        let part_name = PartList::part_name(offset / PART_BYTES + 1);
        parts.parts[offset / PART_BYTES][offset % PART_BYTES] ^= random.gen_range(1..=u8::MAX);
        let changed = apply(&parts).await;
        let text = outcome_text(&changed);
        parts.parts[offset / PART_BYTES].truncate(offset % PART_BYTES);
        let truncated = apply(&parts).await;
        match file_at(&files, offset) {
            Some(BundleFile { entry_and_role: None, .. }) => {
                assert!(changed.is_err() && truncated.is_err(), "byte {offset}: {text}")
            }
            Some(file) => {
                let (changed, truncated) = (changed.unwrap(), truncated.unwrap());
                assert!(
                    file.matches_refusal(first_refused(&changed)),
                    "byte {offset} of {:?}: {text}",
                    file.entry_and_role
                );
                let ended = changed.ended.unwrap();
                let names_the_change =
                    ended.contains(&format!("{part_name} has changed")) || ended.contains("was altered");
                assert!(names_the_change, "byte {offset}: {ended}");
                assert!(file.matches_refusal(first_refused(&truncated)), "byte {offset}: {truncated:#?}");
                let ended = truncated.ended.unwrap();
                assert!(ended.contains(&format!("{part_name} ends too early")), "byte {offset}: {ended}");
            }
            None => assert!(text.contains("does not end after its manifest's files"), "byte {offset}: {text}"),
        }
    }
}

#[tokio::test]
async fn bytes_behind_the_end_of_a_bundle_are_refused() {
    let key = BundleKey::new();
    let mut bytes = mixed_bundle(&key).await;
    bytes.push(0);
    let receipt = SealedStore::new(key.sealed()).apply(bytes, &key.trust()).await.unwrap();
    assert!(!receipt.ok && receipt.ended.unwrap().contains("data follows the end"));
}

/// `kill -9` during an import, at several points; the next import completes it.
#[tokio::test]
async fn an_import_that_a_kill_of_larder_interrupts_is_completed_by_the_next() {
    let key = BundleKey::new();
    let whole = mixed_bundle(&key).await;
    // A kill between the times of a list and the list makes its versions count from the second import, an hour later here.
    let contents = |folder: &Folder| {
        let mut contents = contents(folder);
        contents.retain(|path, _| !path.ends_with("listed.json"));
        contents
    };
    let clean = SealedStore::new(key.sealed());
    clean.apply(whole.clone(), &key.trust()).await.unwrap();
    let clean = contents(&clean.folder);
    for part in 1..8 {
        let folder = Folder::new();
        let running = Process::start(&key.sealed().store_at(&folder), folder.path());
        let upload = BundleUpload::start(&running, &folder);
        let sent_bytes = whole.len() * part / 8;
        upload.send_piece(&whole[..sent_bytes]).await;
        // Half of the kills wait until a document was imported; the others come at once.
        if part % 2 == 0 {
            eventually("a document is imported", async || (!folder.files("documents").is_empty()).then_some(())).await;
        }
        running.kill();
        upload.disconnect().await;
        let importer = SealedStore::open(key.sealed(), &folder);
        let receipt = importer.apply(whole.clone(), &key.trust()).await.unwrap();
        assert!(receipt.ok, "{part} of 8: {receipt:#?}");
        assert!(contents(&folder) == clean, "{part} of 8");
    }
}

/// No larder runs: the command opens the store itself.
#[tokio::test]
async fn an_import_that_a_kill_of_the_command_interrupts_is_completed_by_the_next() {
    const PROVIDERS: usize = 16;
    let (upstream, key) = (FakeUpstream::start().await, BundleKey::new());
    let names: Vec<String> = (0..PROVIDERS).map(|number| format!("p{number}")).collect();
    for name in &names {
        upstream.publish(Provider::new("acme", name).size(2_000_000));
    }
    let addresses: Vec<String> = names.iter().map(|name| format!("acme/{name}")).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let whole = bundle(&upstream, &key, &addresses, &["linux_amd64"]).await;
    let folder = Folder::new();
    let (config, file) = (folder.path().join("mirror.toml"), folder.path().join("gap.tar"));
    std::fs::write(&config, key.sealed().store_at(&folder).config_text()).unwrap();
    std::fs::write(&file, &whole).unwrap();
    let arguments = ["bundle", "apply", file.to_str().unwrap(), "--config", config.to_str().unwrap()];
    let (mut child, _, _) = spawn_captured(command(folder.path(), &arguments));
    eventually("an archive is imported", async || (!folder.blobs().is_empty()).then_some(())).await;
    child.send(Signal::KILL);
    child.wait_for_exit().await;
    assert!(folder.blobs().len() < PROVIDERS, "the whole bundle was imported before the kill");
    let output = run(command(folder.path(), &arguments)).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.out.contains("already stored"), "{output:?}");
    let clean = SealedStore::new(key.sealed());
    clean.apply(whole, &key.trust()).await.unwrap();
    assert!(settled_contents(key.sealed(), &folder).await == contents(&clean.folder));
}

/// The event of an entry comes when the entry is done; the receipt is the last event.
#[tokio::test]
async fn the_outcome_of_each_entry_is_reported_as_it_happens() {
    let key = BundleKey::new();
    let whole = mixed_bundle(&key).await;
    let importer = SealedStore::new(key.sealed());
    let (sender, receiver) = std::sync::mpsc::channel();
    let receipt = importer
        .apply_with_events(Cursor::new(whole), &key.trust(), move |event| sender.send(event).unwrap())
        .await
        .unwrap();
    let events: Vec<ApplyEvent> =
        receiver.into_iter().filter(|event| !matches!(event, ApplyEvent::Read { .. })).collect();
    assert!(
        matches!(events.first(), Some(ApplyEvent::Begun { entries, .. }) if *entries == receipt.entries.len() as u64)
    );
    assert!(matches!(events.last(), Some(ApplyEvent::Done { receipt: reported }) if *reported == receipt));
    let entries: Vec<_> = events
        .into_iter()
        .filter_map(|event| if let ApplyEvent::Entry(entry) = event { Some(entry) } else { None })
        .collect();
    assert_eq!(entries, receipt.entries);
    let receipt_file = std::fs::read(receipt.kept.clone().unwrap()).unwrap();
    let stored_receipt: Receipt = serde_json::from_slice(&receipt_file).unwrap();
    assert_eq!(stored_receipt, Receipt { kept: None, ..receipt });
}
