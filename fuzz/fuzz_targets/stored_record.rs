//! Records of the store: a parsed record is written again with the same content, and the upstream bytes in it are unchanged.
//! The first byte of the input says which kind of record the rest is.
#![no_main]

use larder::address::{Address, Artifact, Hostname, Name, Package, Platform, ProviderAddress, Version};
use larder::mirror::record::rewrite_record;
use larder::store::Key;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((kind, record)) = input.split_first() else { return };
    let provider = ProviderAddress {
        host: Hostname::parse("registry.example").expect("a host"),
        namespace: Name::parse("acme").expect("a name"),
        type_: Name::parse("null").expect("a name"),
    };
    let package = Package {
        provider: provider.clone(),
        version: Version::parse("1.0.0").expect("a version"),
        platform: Platform::parse("linux_amd64").expect("a platform"),
    };
    let key = match kind {
        b'd' => Key::discovery(&provider.host),
        b'v' => Key::version_list(&provider),
        b's' => Key::ProofSet(package),
        b'n' => Key::Name(Artifact::Provider(package)),
        b'm' => Key::Missing,
        b'u' => Key::Usage,
        b'f' => Key::FirstSeen(provider, package.version),
        b'k' => Key::SigningKeyLog(provider),
        b'l' => Key::FirstListed(provider),
        b'a' => Key::Alarms(Address::Provider(provider)),
        _ => Key::FirstSeenV0(provider),
    };
    let Some(rewritten) = rewrite_record(&key, record.to_vec()) else { return };
    // URLs and names grow by percent-encoding and punycode at most, and members that had a default are written.
    assert!(rewritten.len() <= 9 * record.len() + 1_000, "{} became {}", record.len(), rewritten.len());
    assert!(rewrite_record(&key, rewritten.clone()).as_ref() == Some(&rewritten));
    if let b'd' | b'v' | b's' = kind {
        let upstream_bytes =
            |record: &[u8]| record.iter().position(|byte| *byte == b'\n').map(|start| record[start..].to_vec());
        assert!(upstream_bytes(record) == upstream_bytes(&rewritten));
    }
});
