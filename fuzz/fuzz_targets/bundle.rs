//! Bundles: the tar, the manifest, the signature, the list of parts and the inventory. What parses is
//! written again byte for byte, and every file has a digest in the manifest.
#![no_main]

use larder::bundle::{
    BadManifest, BundleEntry, BundleReader, BundleTrust, BundleWriter, Inventory, Manifest, PartList, Signature,
};
use larder::clock::Timestamp;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(manifest) = Manifest::read(bytes) {
        assert_eq!(manifest.to_bytes(), bytes);
    }
    if let Some(signature) = Signature::read(bytes) {
        assert_eq!(signature.to_bytes(), bytes);
    }
    if let Ok(inventory) = Inventory::read(bytes) {
        assert!(inventory.archives().len() <= inventory.len());
    }
    if let Ok(list) = PartList::read(bytes) {
        assert_eq!(PartList::read(&list.to_bytes()).unwrap(), list);
        assert!(list.parts.iter().all(|part| !part.name.contains(['/', '.'])));
    }
    assert_readable_or_refused(bytes);
    // Invented entries in a manifest with the right digest: the fuzzer would not get past the digest.
    let json_end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    if let Ok(entries) = serde_json::from_slice::<Vec<BundleEntry>>(&bytes[..json_end]) {
        let manifest = Manifest::new(Timestamp(1), None, entries);
        match Manifest::read(&manifest.to_bytes()) {
            Ok(reparsed) => assert_eq!(reparsed, manifest),
            Err(bad) => assert!(matches!(bad, BadManifest::Refused(_) | BadManifest::Altered), "{bad}"),
        }
        if let Ok(writer) = BundleWriter::begin(Vec::new(), &manifest, None) {
            let empty_bundle = writer.end().unwrap();
            let without_end = &empty_bundle[..empty_bundle.len() - 1024];
            assert_readable_or_refused(&[without_end, &bytes[json_end..]].concat());
        }
    }
});

fn assert_readable_or_refused(bundle: &[u8]) {
    let trust = BundleTrust { keys: Vec::new(), allow_unsigned: true };
    let Ok(mut opened) = BundleReader::open(bundle, &trust) else { return };
    let manifest = opened.manifest.clone();
    for (number, file) in manifest.files() {
        assert!(number < manifest.entries.len());
        let mut received_bytes = 0;
        if opened.file(&file, |chunk| received_bytes += chunk.len() as u64).is_err() {
            return;
        }
        assert_eq!(received_bytes, file.file.bytes);
    }
    if opened.end().is_ok() {
        // The reader consumed the whole bundle, up to the end marker of the tar.
        assert!(bundle.ends_with(&[0; 1024]));
    }
}
