//! Provider zips: both hashes, however the bytes are read, and within the limits.
#![no_main]

use std::io::{Cursor, Read, Result, Seek, SeekFrom};

use larder::verify::{BadPackage, PackageLimits, package_hashes};
use libfuzzer_sys::fuzz_target;

const LIMITS: PackageLimits = PackageLimits { entries: 64, unpacked_bytes: 4 << 20, name_bytes: 256 };

fuzz_target!(|zip: &[u8]| {
    let hashes = package_hashes(Cursor::new(zip), LIMITS);
    let slow_hashes = package_hashes(SlowReader(Cursor::new(zip)), LIMITS);
    match (hashes, slow_hashes) {
        (Ok(hashes), Ok(slow_hashes)) => {
            assert_eq!(hashes, slow_hashes);
            for hash in [&hashes.zip, &hashes.directory] {
                assert!(hash.len() == 47 && hash.starts_with("h1:"), "{hash}");
            }
        }
        (Err(error), Err(_)) => {
            let message = error.to_string();
            assert!(message.len() < 4_000, "{message}");
            assert!(!matches!(error, BadPackage::TooManyEntries { actual, limit } if actual <= limit));
        }
        (hashes, slow_hashes) => panic!("{hashes:?} read at once, {slow_hashes:?} in short reads"),
    }
});

/// A reader that returns at most seven bytes at a time.
struct SlowReader<'a>(Cursor<&'a [u8]>);

impl Read for SlowReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let length = buffer.len().min(7);
        self.0.read(&mut buffer[..length])
    }
}

impl Seek for SlowReader<'_> {
    fn seek(&mut self, position: SeekFrom) -> Result<u64> {
        self.0.seek(position)
    }
}
