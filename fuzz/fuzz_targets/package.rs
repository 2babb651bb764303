//! Provider zips: both hashes, however the bytes are read, and within the limits.
#![no_main]

use std::io::{Cursor, Read, Result, Seek, SeekFrom};

use larder::verify::{BadPackage, PackageLimits, package_hashes};
use libfuzzer_sys::fuzz_target;

const LIMITS: PackageLimits = PackageLimits { entries: 64, unpacked_bytes: 4 << 20, name_bytes: 256 };

fuzz_target!(|zip: &[u8]| {
    let hashes = package_hashes(Cursor::new(zip), LIMITS);
    let again = package_hashes(Drip(Cursor::new(zip)), LIMITS);
    match (hashes, again) {
        (Ok(hashes), Ok(again)) => {
            assert_eq!(hashes, again);
            for hash in [&hashes.zip, &hashes.directory] {
                assert!(hash.len() == 47 && hash.starts_with("h1:"), "{hash}");
            }
        }
        (Err(error), Err(_)) => {
            let said = error.to_string();
            assert!(said.len() < 4_000, "{said}");
            assert!(!matches!(error, BadPackage::TooManyEntries { actual, limit } if actual <= limit));
        }
        (hashes, again) => panic!("{hashes:?} read at once, {again:?} byte by byte"),
    }
});

/// A reader that brings a few bytes at a time.
struct Drip<'a>(Cursor<&'a [u8]>);

impl Read for Drip<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let few = buffer.len().min(7);
        self.0.read(&mut buffer[..few])
    }
}

impl Seek for Drip<'_> {
    fn seek(&mut self, position: SeekFrom) -> Result<u64> {
        self.0.seek(position)
    }
}
