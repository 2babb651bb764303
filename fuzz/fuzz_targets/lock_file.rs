//! Lock files: a parsed file is within the limits, and every error has a reason.
#![no_main]

use std::collections::HashSet;

use larder::requirements::lock_file;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|file: &[u8]| match lock_file::parse(file) {
    Ok(locked) => {
        assert!(locked.len() <= 256);
        let providers: HashSet<_> = locked.iter().map(|entry| &entry.provider).collect();
        assert_eq!(providers.len(), locked.len(), "a provider is listed twice");
        for entry in &locked {
            assert!(
                entry.hashes.len() <= 1024 && entry.hashes.iter().all(|hash| hash.len() <= 512 && hash.contains(':'))
            );
        }
    }
    Err(bad) => {
        let problems = bad.problems();
        assert!(!problems.is_empty() && problems.iter().all(|problem| problem.starts_with("the lock file: ")));
        assert!(problems.iter().all(|problem| problem.len() < 4_000), "{problems:?}");
    }
});
