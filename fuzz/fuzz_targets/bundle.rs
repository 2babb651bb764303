//! Bundles: the tar, the manifest, the signature, the list of parts and the inventory. What is taken is what would be
//! written, byte for byte, and every file of it comes with its digest told.
#![no_main]

use larder::bundle::{
    BadBundle, BadManifest, BundleEntry, BundleReader, BundleTrust, BundleWriter, Inventory, Manifest, PartList,
    Signature,
};
use larder::clock::Timestamp;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(manifest) = Manifest::read(bytes) {
        assert_eq!(manifest.write(), bytes);
    }
    if let Some(signature) = Signature::read(bytes) {
        assert_eq!(signature.write(), bytes);
    }
    if let Ok(inventory) = Inventory::read(bytes) {
        assert!(inventory.archives().len() <= inventory.len());
    }
    if let Ok(list) = PartList::read(bytes) {
        assert_eq!(PartList::read(&list.write()).unwrap(), list);
        assert!(list.parts.iter().all(|part| !part.name.contains(['/', '.'])));
    }
    read(bytes);
    // Past the digest of the manifest: entries that somebody made up, in a manifest that hangs together.
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    if let Ok(entries) = serde_json::from_slice::<Vec<BundleEntry>>(&bytes[..end]) {
        let manifest = Manifest::new(Timestamp(1), None, entries);
        match Manifest::read(&manifest.write()) {
            Ok(again) => assert_eq!(again, manifest),
            Err(bad) => assert!(matches!(bad, BadManifest::Refused(_) | BadManifest::Altered), "{bad}"),
        }
        if let Ok(writer) = BundleWriter::begin(Vec::new(), &manifest, None) {
            let begun = writer.end().unwrap();
            let begun = &begun[..begun.len() - 1024];
            read(&[begun, &bytes[end..]].concat());
        }
    }
});

fn read(bundle: &[u8]) {
    let trust = BundleTrust { keys: Vec::new(), allow_unsigned: true };
    let Ok(mut opened) = BundleReader::open(bundle, &trust) else { return };
    let manifest = opened.manifest.clone();
    for (number, file) in manifest.files() {
        assert!(number < manifest.entries.len());
        let mut read = 0;
        let taken = opened.file(&file, |piece| {
            read += piece.len() as u64;
            Ok::<_, BadBundle>(())
        });
        if taken.is_err() {
            return;
        }
        assert_eq!(read, file.file.bytes);
    }
    if opened.end().is_ok() {
        // Nothing of it was left unread.
        assert!(bundle.ends_with(&[0; 1024]));
    }
}
