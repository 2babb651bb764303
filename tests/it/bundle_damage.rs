//! Bundles that were damaged on the way: each byte of one counts, each place to break off is survived.

use larder::bundle::{Outcome, Receipt, Step};
use larder::mirror::NotApplied;
use rand::{Rng, SeedableRng};
use rustix::process::Signal;

use crate::support::gap::{BundleKey, Sealed, bundle, contents, outcomes, settled_contents};
use crate::support::larder::Folder;
use crate::support::process::{Process, command, eventually, run, serving};
use crate::support::upstream::{FakeUpstream, Module, Provider};

/// How many bytes are flipped.
const FLIPS: usize = 200;

/// A bundle that has some of everything: two platforms with one SHA256SUMS, another provider, a module.
async fn some_of_everything(key: &BundleKey) -> Vec<u8> {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").platform("linux_amd64").platform("darwin_arm64"));
    upstream.publish(Provider::new("acme", "other").size(20_000));
    publish_module(&upstream);
    let what = ["acme/null", "acme/other", "acme/net/test"];
    bundle(&upstream, key, &what, &["linux_amd64", "darwin_arm64"].map(|platform| platform)[..1]).await
}

pub(crate) fn publish_module(upstream: &FakeUpstream) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("main.tf"), "output \"is\" {\n  value = 1\n}\n").unwrap();
    let tar = crate::support::git::pack(crate::support::git::Format::TarGz, folder.path(), "");
    upstream.serve_file("/files/net.tar.gz", "application/gzip", tar);
    upstream.publish_module(Module::new("acme", "net", "test").at("/files/net.tar.gz"));
}

/// Where each file of a tar is: its name, where its header begins, and where the next one does.
fn places(tar: &[u8]) -> Vec<(String, usize, usize)> {
    let mut archive = tar::Archive::new(tar);
    let entries = archive.entries().unwrap().map(|entry| {
        let entry = entry.unwrap();
        let (at, size) = (entry.raw_header_position() as usize, entry.size() as usize);
        (entry.path().unwrap().display().to_string(), at, at + 512 + size.div_ceil(512) * 512)
    });
    entries.collect()
}

/// What somebody is told of a bundle that was not taken whole.
fn told(applied: &Result<Receipt, NotApplied>) -> String {
    match applied {
        Err(error) => error.to_string(),
        Ok(receipt) => serde_json::to_string(receipt).unwrap(),
    }
}

/// Done when 2. Signed or not: what nobody signed and was altered by chance is found, too.
#[tokio::test]
async fn each_of_200_flipped_bytes_is_refused_with_the_name_of_what_it_is_in() {
    let key = BundleKey::new();
    let signed = some_of_everything(&key).await;
    let unsigned = without_signature(&signed);
    let mut lenient = key.trust();
    lenient.trust.unsigned = true;
    let mut random = rand::rngs::StdRng::seed_from_u64(7);
    for number in 0..FLIPS {
        let (mut bytes, how) =
            if number % 2 == 0 { (signed.clone(), key.trust()) } else { (unsigned.clone(), lenient.clone()) };
        let places = places(&bytes);
        let (at, flip) = (random.gen_range(0..bytes.len()), random.gen_range(1..=u8::MAX));
        bytes[at] ^= flip;
        let there = Sealed::new(key.sealed());
        let applied = there.apply(bytes, &how).await;
        let said = told(&applied);
        assert!(!applied.as_ref().is_ok_and(|receipt| receipt.ok), "byte {at}: {said}");
        match places.iter().find(|(_, from, to)| (*from..*to).contains(&at)) {
            // The manifest speaks for all, so nothing was changed.
            Some((name, _, _)) if name.starts_with("larder-bundle") => {
                assert!(applied.is_err(), "byte {at} of {name}: {said}");
                assert!(contents(&there.folder).is_empty());
            }
            Some((name, _, _)) => {
                let receipt = applied.unwrap();
                let refused: Vec<_> =
                    receipt.entries.iter().filter(|told| matches!(told.outcome, Outcome::Refused { .. })).collect();
                assert!(!refused.is_empty(), "byte {at} of {name}: {said}");
                assert!(said.contains(name.trim_start_matches("sha256/")), "byte {at} of {name}: {said}");
            }
            // After the last file: all of it is there, and that something is wrong is said.
            None => assert!(said.contains("does not end where its manifest does"), "byte {at}: {said}"),
        }
        // What is refused is visible nowhere, and the bundle as it was heals it.
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

/// The same bundle as somebody makes it who has no key.
fn without_signature(signed: &[u8]) -> Vec<u8> {
    let (_, from, to) = places(signed).into_iter().find(|(name, _, _)| name == "larder-bundle.sig").unwrap();
    [&signed[..from], &signed[to..]].concat()
}

#[tokio::test]
async fn a_truncated_bundle_leaves_what_came_whole_and_says_where_it_ended() {
    let key = BundleKey::new();
    let whole = some_of_everything(&key).await;
    let places = places(&whole);
    let mut cuts: Vec<usize> =
        places.iter().flat_map(|(_, from, to)| [*from, from + 100, from + 512, to - 1]).collect();
    cuts.extend([0, 1, whole.len() - 1024, whole.len() - 512, whole.len() - 1]);
    for cut in cuts {
        let there = Sealed::new(key.sealed());
        let applied = there.apply(whole[..cut].to_vec(), &key.trust()).await;
        let said = told(&applied);
        assert!(said.contains("truncated"), "{cut}: {said}");
        let Ok(receipt) = applied else {
            assert!(contents(&there.folder).is_empty(), "{cut}");
            continue;
        };
        assert!(!receipt.ok);
        let words: Vec<String> = outcomes(&receipt).into_iter().map(|(_, word)| word).collect();
        let applied = words.iter().take_while(|word| *word == "applied").count();
        let rest: Vec<&str> = words[applied..].iter().map(String::as_str).collect();
        assert!(
            rest.is_empty()
                || (rest[0] == "refused" && rest[1..].iter().all(|word| *word == "missed" || *word == "not_reached")),
            "{words:?}"
        );
        let again = there.apply(whole.clone(), &key.trust()).await.unwrap();
        assert!(again.ok, "{again:#?}");
        let held = outcomes(&again).into_iter().filter(|(_, word)| word == "held").count();
        assert_eq!(held, applied, "{cut}: {again:#?}");
    }
}

#[tokio::test]
async fn what_follows_the_end_of_a_bundle_is_refused() {
    let key = BundleKey::new();
    let mut bytes = some_of_everything(&key).await;
    bytes.push(0);
    let receipt = Sealed::new(key.sealed()).apply(bytes, &key.trust()).await.unwrap();
    assert!(!receipt.ok && receipt.ended.unwrap().contains("something follows the end"));
}

/// Done when 2: `kill -9` while the running larder takes one in, at many places; the next is complete.
#[tokio::test]
async fn a_running_larder_that_is_killed_in_the_middle_takes_the_rest_the_next_time() {
    let key = BundleKey::new();
    let whole = some_of_everything(&key).await;
    let clean = Sealed::new(key.sealed());
    clean.apply(whole.clone(), &key.trust()).await.unwrap();
    let clean = contents(&clean.folder);
    for part in 1..8 {
        let folder = Folder::new();
        let running = Process::start(&key.sealed().on(&folder), folder.path());
        let token = std::fs::read_to_string(folder.path().join("admin-token")).unwrap();
        let (sent, body) = tokio::sync::mpsc::channel::<Result<Vec<u8>, std::io::Error>>(1);
        let stream =
            futures_util::stream::unfold(body, |mut body| async { body.recv().await.map(|piece| (piece, body)) });
        let place = format!("{}/admin/v1/bundle/apply", running.admin());
        let request = reqwest::Client::new().post(place).bearer_auth(token).header("content-type", "application/x-tar");
        let request = tokio::spawn(request.body(reqwest::Body::wrap_stream(stream)).send());
        let some = whole.len() * part / 8;
        sent.send(Ok(whole[..some].to_vec())).await.unwrap();
        // It has taken in what it was sent as far as it can, and waits for more; or is about to.
        if part % 2 == 0 {
            eventually("something came in", async || (!folder.files("documents").is_empty()).then_some(())).await;
        }
        running.kill();
        drop(sent);
        let _ = request.await;
        let there = Sealed::open(key.sealed(), &folder);
        let receipt = there.apply(whole.clone(), &key.trust()).await.unwrap();
        assert!(receipt.ok, "{receipt:#?}");
        assert!(contents(&folder) == clean, "{part} of 8");
    }
}

/// The same of the command that opens the store itself.
#[tokio::test]
async fn a_command_that_is_killed_in_the_middle_takes_the_rest_the_next_time() {
    const MANY: usize = 16;
    let (upstream, key) = (FakeUpstream::start().await, BundleKey::new());
    let names: Vec<String> = (0..MANY).map(|number| format!("p{number}")).collect();
    for name in &names {
        upstream.publish(Provider::new("acme", name).size(2_000_000));
    }
    let what: Vec<String> = names.iter().map(|name| format!("acme/{name}")).collect();
    let what: Vec<&str> = what.iter().map(String::as_str).collect();
    let whole = bundle(&upstream, &key, &what, &["linux_amd64"]).await;
    let folder = Folder::new();
    let (config, file) = (folder.path().join("mirror.toml"), folder.path().join("gap.tar"));
    std::fs::write(&config, key.sealed().on(&folder).config_text()).unwrap();
    std::fs::write(&file, &whole).unwrap();
    let arguments = ["bundle", "apply", file.to_str().unwrap(), "--config", config.to_str().unwrap()];
    let (mut child, _, _) = serving(command(folder.path(), &arguments));
    eventually("something came in", async || (!folder.blobs().is_empty()).then_some(())).await;
    child.send(Signal::KILL);
    child.ended().await;
    assert!(folder.blobs().len() < MANY, "it was killed too late to say anything");
    let said = run(command(folder.path(), &arguments)).await;
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.out.contains("held already"), "{said:?}");
    let clean = Sealed::new(key.sealed());
    clean.apply(whole, &key.trust()).await.unwrap();
    assert!(settled_contents(key.sealed(), &folder).await == contents(&clean.folder));
}

/// Each thing is told when it has come to its end, and the receipt comes last.
#[tokio::test]
async fn what_becomes_of_each_thing_is_told_as_it_goes_on() {
    let key = BundleKey::new();
    let whole = some_of_everything(&key).await;
    let there = Sealed::new(key.sealed());
    let (tell, told) = std::sync::mpsc::channel();
    let receipt = there.apply_telling(whole, &key.trust(), move |step| tell.send(step).unwrap()).await.unwrap();
    let steps: Vec<Step> = told.into_iter().filter(|step| !matches!(step, Step::Read { .. })).collect();
    assert!(matches!(steps.first(), Some(Step::Begun { entries, .. }) if *entries == receipt.entries.len() as u64));
    assert!(matches!(steps.last(), Some(Step::Done { receipt: told }) if *told == receipt));
    let entries: Vec<_> =
        steps.into_iter().filter_map(|step| if let Step::Entry(told) = step { Some(told) } else { None }).collect();
    assert_eq!(entries, receipt.entries);
    let kept = std::fs::read(receipt.kept.clone().unwrap()).unwrap();
    let kept: Receipt = serde_json::from_slice(&kept).unwrap();
    assert_eq!(kept, Receipt { kept: None, ..receipt });
}
