//! Hosts, names, platforms and file names: every spelling has one key, and every printed or serialised form parses to the same value.
#![no_main]

use std::fmt::Debug;

use larder::address::{FileName, Hostname, MAX_PART, Name, Platform};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(host) = Hostname::parse(text) {
        let key = host.as_str();
        assert_eq!(Hostname::parse(key).as_ref(), Ok(&host));
        assert_eq!(Hostname::parse(&host.to_unicode()).as_ref(), Ok(&host), "{}", host.to_unicode());
        assert!(key.len() <= MAX_PART && !key.is_empty());
        assert!(
            key.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.:".contains(&byte)),
            "{key}"
        );
        assert_eq!(host.port().map_or(host.name().to_owned(), |port| format!("{}:{port}", host.name())), key);
        assert_ne!(host.port(), Some(443));
        assert_json_round_trip(&host);
    }
    if let Ok(name) = Name::parse(text) {
        assert_eq!(name.as_str(), text.to_ascii_lowercase());
        assert_eq!(Name::parse(name.as_str()).as_ref(), Ok(&name));
        assert_is_path_segment(name.as_str());
        assert_json_round_trip(&name);
    }
    if let Ok(platform) = Platform::parse(text) {
        assert_eq!(platform.to_string(), text);
        assert_eq!(Platform::new(&platform.os, &platform.arch).as_ref(), Ok(&platform));
        assert_is_path_segment(text);
        assert_json_round_trip(&platform);
    }
    match FileName::parse(text) {
        Ok(name) => {
            assert_eq!(name.as_str(), text);
            assert_is_path_segment(text);
            assert_json_round_trip(&name);
        }
        // The error shortens the input before it shows it.
        Err(refused) => assert!(refused.to_string().len() < 2_000),
    }
});

fn assert_is_path_segment(text: &str) {
    assert!(!text.is_empty() && text.len() <= MAX_PART && text != "." && text != "..", "{text:?}");
    assert!(!text.contains(['/', '\\', '\0', '\n', '\r', ' ']), "{text:?}");
}

fn assert_json_round_trip<T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + Debug>(value: &T) {
    let json = serde_json::to_string(value).expect("an address is plain text");
    assert_eq!(serde_json::from_str::<T>(&json).ok().as_ref(), Some(value), "{json}");
}
