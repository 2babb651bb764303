//! Trees that arrive as a tar: what is taken is a file of the layout at one path, read to its end; everything else is
//! refused with a reason, or passed over.
#![no_main]

use std::io::Read;

use larder::filesystem_mirror::carried::{ProviderTreeReader, TarEntry};
use larder::filesystem_mirror::index::VersionIndex;
use larder::filesystem_mirror::{MirrorPath, PathMeaning};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|tar: &[u8]| {
    let _ = VersionIndex::parse(tar);
    if let Ok(text) = std::str::from_utf8(tar) {
        is_sound(text);
    }
    let _ = ProviderTreeReader::new(tar).for_each_entry::<std::io::Error>(|entry| {
        match entry {
            TarEntry::File { path, meaning, mut contents } => {
                assert_eq!(MirrorPath::parse(&path), Ok(meaning));
                is_sound(&path);
                let mut bytes = Vec::new();
                contents.read_to_end(&mut bytes)?;
                assert_eq!(bytes.len() as u64, contents.size_bytes());
            }
            TarEntry::Refused { reason, .. } => assert!(!reason.is_empty()),
        }
        Ok(())
    });
});

/// A file of the layout is written and read back, and stays in its folder.
fn is_sound(path: &str) {
    if let Ok(PathMeaning::File(found)) = MirrorPath::parse(path) {
        let written = found.to_string();
        assert_eq!(written.split('/').count(), 4);
        assert!(!written.split('/').any(|segment| segment.is_empty() || segment == "." || segment == ".."));
        assert_eq!(MirrorPath::parse(&written), Ok(PathMeaning::File(found)));
    }
}
