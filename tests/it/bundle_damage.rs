//! Bundles damaged in transit: every flipped byte is detected, and every truncation is survived.

use std::io::{Cursor, Read, Write};

use larder::bundle::{ApplyEvent, ApplyOutcome, EntryOutcome, Manifest, PartList, PartsReader, PartsWriter, Receipt};
use larder::clock::Timestamp;
use larder::mirror::ApplyError;
use rand::{Rng, SeedableRng};
use rustix::process::Signal;

use crate::support::bundle_transfer::{BundleKey, BundleUpload, Sealed, bundle, contents, outcomes, settled_contents};
use crate::support::eventually;
use crate::support::larder::Folder;
use crate::support::process::{Process, command, run, spawn_captured};
use crate::support::published_module::publish_module;
use crate::support::upstream::{FakeUpstream, Provider};

const FLIPS: usize = 200;

/// A bundle with two platforms under one SHA256SUMS, another provider, and a module.
async fn mixed_bundle(key: &BundleKey) -> Vec<u8> {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").platform("linux_amd64").platform("darwin_arm64"));
    upstream.publish(Provider::new("acme", "other").size(20_000));
    publish_module(&upstream);
    let addresses = ["acme/null", "acme/other", "acme/net/test"];
    bundle(&upstream, key, &addresses, &["linux_amd64"]).await
}

/// A file of a bundle: its name, the offset of its header, and the offset of the next header.
struct BundleFile {
    name: String,
    from: usize,
    to: usize,
    /// The entry that the file belongs to, and its role there; none for the manifest and its signature.
    entry_and_role: Option<(String, String)>,
}

impl BundleFile {
    /// Tells if this refusal names both the entry and the damaged file.
    fn matches_refusal(&self, entry: &EntryOutcome) -> bool {
        let ApplyOutcome::Refused { why: reason } = &entry.outcome else { return false };
        let (subject, role) = self.entry_and_role.as_ref().unwrap();
        entry.package.to_string() == *subject
            && reason.starts_with(&format!("its {role} "))
            && reason.contains(self.name.strip_prefix("sha256/").unwrap())
    }
}

/// Locates the files of a bundle.
fn locate_files(bundle: &[u8]) -> Vec<BundleFile> {
    let (mut archive, mut manifest) = (tar::Archive::new(bundle), Vec::new());
    let mut places = Vec::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let (from, size) = (entry.raw_header_position() as usize, entry.size() as usize);
        let name = entry.path().unwrap().display().to_string();
        if name == "larder-bundle.json" {
            entry.read_to_end(&mut manifest).unwrap();
        }
        places.push(BundleFile { name, from, to: from + 512 + size.div_ceil(512) * 512, entry_and_role: None });
    }
    let manifest = Manifest::read(&manifest).unwrap();
    for (number, file) in manifest.files() {
        let place = places.iter_mut().find(|place| place.name == file.name()).unwrap();
        place.entry_and_role = Some((manifest.entries[number].package_ref().to_string(), file.role.to_string()));
    }
    places
}

fn file_at(places: &[BundleFile], offset: usize) -> Option<&BundleFile> {
    places.iter().find(|place| (place.from..place.to).contains(&offset))
}

fn first_refused(receipt: &Receipt) -> &EntryOutcome {
    let is_refused = |entry: &&EntryOutcome| matches!(entry.outcome, ApplyOutcome::Refused { .. });
    receipt.entries.iter().find(is_refused).unwrap_or_else(|| panic!("{receipt:#?}"))
}

/// The text of an error or of a receipt.
fn outcome_text(applied: &Result<Receipt, ApplyError>) -> String {
    match applied {
        Err(error) => error.to_string(),
        Ok(receipt) => serde_json::to_string(receipt).unwrap(),
    }
}

/// Accidental damage is found in unsigned bundles too.
#[tokio::test]
async fn each_of_200_flipped_bytes_is_refused_with_the_name_of_what_it_is_in() {
    let key = BundleKey::new();
    let signed = mixed_bundle(&key).await;
    let unsigned = without_signature(&signed);
    let lenient = key.trust_or_unsigned();
    let mut random = rand::rngs::StdRng::seed_from_u64(7);
    for number in 0..FLIPS {
        let (mut bytes, how) =
            if number % 2 == 0 { (signed.clone(), key.trust()) } else { (unsigned.clone(), lenient.clone()) };
        let places = locate_files(&bytes);
        let (offset, flip) = (random.gen_range(0..bytes.len()), random.gen_range(1..=u8::MAX));
        bytes[offset] ^= flip;
        let there = Sealed::new(key.sealed());
        let applied = there.apply(bytes, &how).await;
        let text = outcome_text(&applied);
        assert!(!applied.as_ref().is_ok_and(|receipt| receipt.ok), "byte {offset}: {text}");
        match file_at(&places, offset) {
            // The manifest covers everything, so nothing is imported if it is damaged.
            Some(BundleFile { name, entry_and_role: None, .. }) => {
                assert!(applied.is_err(), "byte {offset} of {name}: {text}");
                assert!(contents(&there.folder).is_empty(), "byte {offset} of {name}");
            }
            Some(place) => {
                assert!(
                    place.matches_refusal(first_refused(&applied.unwrap())),
                    "byte {offset} of {:?}: {text}",
                    place.entry_and_role
                );
            }
            // Damage after the last file: everything is imported, and the damage is reported.
            None => assert!(text.contains("does not end after its manifest's files"), "byte {offset}: {text}"),
        }
        // No refused entry is visible, and the undamaged bundle completes the import.
        if number % 20 == 0 {
            let receipt = there.apply(signed.clone(), &key.trust()).await.unwrap();
            assert!(receipt.ok, "{receipt:#?}");
            let clean = Sealed::new(key.sealed());
            clean.apply(signed.clone(), &key.trust()).await.unwrap();
            let (healed, clean) = (contents(&there.folder), contents(&clean.folder));
            assert_eq!(healed.keys().collect::<Vec<_>>(), clean.keys().collect::<Vec<_>>());
            assert!(healed == clean);
        }
    }
}

fn without_signature(signed: &[u8]) -> Vec<u8> {
    let places = locate_files(signed);
    let signature = places.iter().find(|place| place.name == "larder-bundle.sig").unwrap();
    [&signed[..signature.from], &signed[signature.to..]].concat()
}

#[tokio::test]
async fn a_truncated_bundle_stores_its_complete_entries_and_reports_where_it_ended() {
    let key = BundleKey::new();
    let whole = mixed_bundle(&key).await;
    let places = locate_files(&whole);
    let mut cuts: Vec<usize> =
        places.iter().flat_map(|BundleFile { from, to, .. }| [*from, from + 100, from + 512, to - 1]).collect();
    cuts.extend([0, 1, whole.len() - 1024, whole.len() - 512, whole.len() - 1]);
    for cut in cuts {
        let there = Sealed::new(key.sealed());
        let applied = there.apply(whole[..cut].to_vec(), &key.trust()).await;
        let text = outcome_text(&applied);
        assert!(text.contains("truncated"), "{cut}: {text}");
        assert!(there.folder.partial_downloads().is_empty(), "{cut}");
        let Ok(receipt) = applied else {
            assert!(contents(&there.folder).is_empty(), "{cut}");
            continue;
        };
        assert!(!receipt.ok, "{cut}");
        // A cut inside a file is reported with its entry and role.
        if let Some(place) = file_at(&places, cut) {
            let (subject, role) = place.entry_and_role.as_ref().unwrap();
            let ended = receipt.ended.as_deref().unwrap();
            assert!(ended.starts_with(&format!("{subject}: its {role} ")), "{cut}: {ended}");
            assert!(place.matches_refusal(first_refused(&receipt)), "{cut}: {receipt:#?}");
        }
        let words: Vec<String> = outcomes(&receipt).into_iter().map(|(_, word)| word).collect();
        let applied = words.iter().take_while(|word| *word == "applied").count();
        let rest: Vec<&str> = words[applied..].iter().map(String::as_str).collect();
        assert!(
            rest.is_empty()
                || (rest[0] == "refused" && rest[1..].iter().all(|word| *word == "missed" || *word == "not_reached")),
            "{cut}: {words:?}"
        );
        let again = there.apply(whole.clone(), &key.trust()).await.unwrap();
        assert!(again.ok, "{cut}: {again:#?}");
        let stored = outcomes(&again).into_iter().filter(|(_, word)| word == "held").count();
        assert_eq!(stored, applied, "{cut}: {again:#?}");
    }
}

/// A bundle in parts of 1 MiB, in memory.
struct Parts {
    list: PartList,
    parts: Vec<Vec<u8>>,
}

impl Parts {
    fn of(bundle: &[u8]) -> Self {
        let list = PartList::empty(Timestamp(1), PART as u64);
        let mut writer = PartsWriter::new(list, |_: &str| Ok(Cursor::new(Vec::new())), |_, _| Ok(()));
        writer.write_all(bundle).unwrap();
        Self { list: writer.end().unwrap().list, parts: bundle.chunks(PART).map(<[u8]>::to_vec).collect() }
    }

    fn read(&self) -> impl Read + Send + use<> {
        let (names, parts) = (self.list.parts.clone(), self.parts.clone());
        PartsReader::new(self.list.clone(), move |name: &str| {
            Ok(Cursor::new(parts[names.iter().position(|part| part.name == name).unwrap()].clone()))
        })
    }
}

const PART: usize = 1 << 20;

/// Parts have their own digests: the error names the damaged part as well as the entry.
#[tokio::test]
async fn damage_in_one_of_several_parts_is_named_as_in_a_whole_bundle() {
    let (upstream, key) = (FakeUpstream::start().await, BundleKey::new());
    for name in ["one", "three", "two"] {
        upstream.publish(Provider::new("acme", name).size(900_000));
    }
    let whole = bundle(&upstream, &key, &["acme/one", "acme/two", "acme/three"], &["linux_amd64"]).await;
    let places = locate_files(&whole);
    let applied = async |parts: &Parts| Sealed::new(key.sealed()).apply_from(parts.read(), &key.trust()).await;
    assert!(applied(&Parts::of(&whole)).await.unwrap().ok);
    let mut random = rand::rngs::StdRng::seed_from_u64(8);
    let mut offset: Vec<usize> = (0..FLIPS / 5).map(|_| random.gen_range(0..whole.len())).collect();
    // At least one byte of each file, however small.
    offset.extend(places.iter().map(|place| place.from + 512));
    for offset in offset {
        let mut parts = Parts::of(&whole);
        let part = PartList::part_name(offset / PART + 1);
        parts.parts[offset / PART][offset % PART] ^= random.gen_range(1..=u8::MAX);
        let flipped = applied(&parts).await;
        let text = outcome_text(&flipped);
        parts.parts[offset / PART].truncate(offset % PART);
        let truncated = applied(&parts).await;
        match file_at(&places, offset) {
            Some(BundleFile { entry_and_role: None, .. }) => {
                assert!(flipped.is_err() && truncated.is_err(), "byte {offset}: {text}")
            }
            Some(place) => {
                let (flipped, truncated) = (flipped.unwrap(), truncated.unwrap());
                assert!(
                    place.matches_refusal(first_refused(&flipped)),
                    "byte {offset} of {:?}: {text}",
                    place.entry_and_role
                );
                let ended = flipped.ended.unwrap();
                let is_found = ended.contains(&format!("{part} has changed")) || ended.contains("was altered");
                assert!(is_found, "byte {offset}: {ended}");
                assert!(place.matches_refusal(first_refused(&truncated)), "byte {offset}: {truncated:#?}");
                let ended = truncated.ended.unwrap();
                assert!(ended.contains(&format!("{part} ends too early")), "byte {offset}: {ended}");
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
    let receipt = Sealed::new(key.sealed()).apply(bytes, &key.trust()).await.unwrap();
    assert!(!receipt.ok && receipt.ended.unwrap().contains("data follows the end"));
}

/// `kill -9` during an import, at several points; the next import completes it.
#[tokio::test]
async fn a_running_larder_that_is_killed_in_the_middle_takes_the_rest_the_next_time() {
    let key = BundleKey::new();
    let whole = mixed_bundle(&key).await;
    let clean = Sealed::new(key.sealed());
    clean.apply(whole.clone(), &key.trust()).await.unwrap();
    let clean = contents(&clean.folder);
    for part in 1..8 {
        let folder = Folder::new();
        let running = Process::start(&key.sealed().store_at(&folder), folder.path());
        let giving = BundleUpload::to(&running, &folder);
        let some = whole.len() * part / 8;
        giving.send_piece(&whole[..some]).await;
        // Half of the kills wait until something was imported; the others come at once.
        if part % 2 == 0 {
            eventually("something came in", async || (!folder.files("documents").is_empty()).then_some(())).await;
        }
        running.kill();
        giving.disconnect().await;
        let there = Sealed::open(key.sealed(), &folder);
        let receipt = there.apply(whole.clone(), &key.trust()).await.unwrap();
        assert!(receipt.ok, "{part} of 8: {receipt:#?}");
        assert!(contents(&folder) == clean, "{part} of 8");
    }
}

/// The command opens the store itself.
#[tokio::test]
async fn a_command_that_is_killed_in_the_middle_takes_the_rest_the_next_time() {
    const MANY: usize = 16;
    let (upstream, key) = (FakeUpstream::start().await, BundleKey::new());
    let names: Vec<String> = (0..MANY).map(|number| format!("p{number}")).collect();
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
    eventually("something came in", async || (!folder.blobs().is_empty()).then_some(())).await;
    child.send(Signal::KILL);
    child.wait_for_exit().await;
    assert!(folder.blobs().len() < MANY, "it was killed too late to say anything");
    let output = run(command(folder.path(), &arguments)).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.out.contains("already stored"), "{output:?}");
    let clean = Sealed::new(key.sealed());
    clean.apply(whole, &key.trust()).await.unwrap();
    assert!(settled_contents(key.sealed(), &folder).await == contents(&clean.folder));
}

/// The receipt is the last event.
#[tokio::test]
async fn the_outcome_of_each_entry_is_reported_as_it_happens() {
    let key = BundleKey::new();
    let whole = mixed_bundle(&key).await;
    let there = Sealed::new(key.sealed());
    let (tell, receiver) = std::sync::mpsc::channel();
    let receipt =
        there.apply_with_events(Cursor::new(whole), &key.trust(), move |step| tell.send(step).unwrap()).await.unwrap();
    let steps: Vec<ApplyEvent> = receiver.into_iter().filter(|step| !matches!(step, ApplyEvent::Read { .. })).collect();
    assert!(
        matches!(steps.first(), Some(ApplyEvent::Begun { entries, .. }) if *entries == receipt.entries.len() as u64)
    );
    assert!(matches!(steps.last(), Some(ApplyEvent::Done { receipt: told }) if *told == receipt));
    let entries: Vec<_> = steps
        .into_iter()
        .filter_map(|step| if let ApplyEvent::Entry(entry) = step { Some(entry) } else { None })
        .collect();
    assert_eq!(entries, receipt.entries);
    let kept = std::fs::read(receipt.kept.clone().unwrap()).unwrap();
    let kept: Receipt = serde_json::from_slice(&kept).unwrap();
    assert_eq!(kept, Receipt { kept: None, ..receipt });
}
