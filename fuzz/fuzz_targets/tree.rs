//! Trees that arrive as a tar: every accepted entry is a file of the layout and is read to its end; every other entry is
//! refused with a reason, or skipped.
#![no_main]

use std::io::Read;

use larder::filesystem_mirror::index::VersionIndex;
use larder::filesystem_mirror::provider_tar::ProviderTreeReader;
use larder::filesystem_mirror::{MirrorPath, PathMeaning};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|tar: &[u8]| {
    let _ = VersionIndex::parse(tar);
    if let Ok(text) = std::str::from_utf8(tar) {
        assert_layout_path(text);
    }
    let mut tar = ProviderTreeReader::new(tar);
    while let Ok(Some(entry)) = tar.next_entry() {
        match entry.meaning {
            Ok(meaning) => {
                assert_eq!(MirrorPath::parse(&entry.path), Ok(meaning));
                assert_layout_path(&entry.path);
                let mut bytes = Vec::new();
                if tar.read_to_end(&mut bytes).is_err() {
                    return;
                }
                assert_eq!(bytes.len() as u64, entry.size_bytes);
            }
            Err(reason) => assert!(!reason.is_empty()),
        }
    }
});

/// A path of the layout prints as a path that parses to the same file and stays in its folder.
fn assert_layout_path(path: &str) {
    if let Ok(PathMeaning::File(found)) = MirrorPath::parse(path) {
        let printed = found.to_string();
        assert_eq!(printed.split('/').count(), 4);
        assert!(!printed.split('/').any(|segment| segment.is_empty() || segment == "." || segment == ".."));
        assert_eq!(MirrorPath::parse(&printed), Ok(PathMeaning::File(found)));
    }
}
