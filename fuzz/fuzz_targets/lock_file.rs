//! Lock files: what is read is within its bounds, and what is refused is refused with a reason.
#![no_main]

use std::collections::HashSet;

use larder::requirements::lock_file;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|file: &[u8]| match lock_file::parse(file) {
    Ok(locked) => {
        assert!(locked.len() <= 256);
        let providers: HashSet<_> = locked.iter().map(|one| &one.provider).collect();
        assert_eq!(providers.len(), locked.len(), "a provider stands there twice");
        for one in &locked {
            assert!(one.hashes.len() <= 1024 && one.hashes.iter().all(|hash| hash.len() <= 512 && hash.contains(':')));
        }
    }
    Err(bad) => {
        let problems = bad.problems();
        assert!(!problems.is_empty() && problems.iter().all(|problem| problem.starts_with("the lock file: ")));
        assert!(problems.iter().all(|problem| problem.len() < 4_000), "{problems:?}");
    }
});
