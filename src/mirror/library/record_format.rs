//! The format of each record of the store, by the kind of its key. A record with foreign bytes is one line of JSON with
//! metadata and part lengths, then the parts as they were received.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::mirror::library::NameRecord;
use crate::mirror::library::missing::MissingRequests;
use crate::mirror::library::module_history::ModuleFirstSeenRecord;
use crate::mirror::library::owed::Receipts;
use crate::mirror::library::proof_set::StoredProofSet;
use crate::mirror::library::stored_document::StoredDocument;
use crate::mirror::library::usage::Usage;
use crate::mirror::library::{AlarmsRecord, FirstListed, ProviderRecordV0, SigningKeyLog, VersionHistory};
use crate::policy::Approvals;
use crate::store::{Key, to_json};

/// Parses a record and writes it again; `None` where it cannot be read and would be quarantined.
pub fn rewrite_record(key: &Key, record: Vec<u8>) -> Option<Vec<u8>> {
    match key {
        Key::Document(_) => StoredDocument::read(record).map(|document| document.write()),
        Key::ProofSet(package) => StoredProofSet::read(record, package).map(|document| document.write()),
        Key::Name(_) => as_json::<NameRecord>(&record),
        Key::FirstSeenV0(_) => as_json::<ProviderRecordV0>(&record),
        Key::FirstSeen(..) => as_json::<VersionHistory>(&record),
        Key::SigningKeyLog(_) => as_json::<SigningKeyLog>(&record),
        Key::FirstListed(_) => as_json::<FirstListed>(&record),
        Key::Alarms(_) => as_json::<AlarmsRecord>(&record),
        Key::Approvals(_) => as_json::<Approvals>(&record),
        Key::ModuleFirstSeen(_) => as_json::<ModuleFirstSeenRecord>(&record),
        // The job code reads these, so any JSON is valid here.
        Key::Job(_) | Key::RecurringJobs | Key::Traffic(_) => as_json::<serde_json::Value>(&record),
        Key::Owed(_) => as_json::<Receipts>(&record),
        Key::Usage => as_json::<Usage>(&record),
        Key::LatestTime => as_json::<Timestamp>(&record),
        Key::Missing => MissingRequests::read(&record).map(|requests| requests.write()),
    }
}

fn as_json<T: Serialize + DeserializeOwned>(record: &[u8]) -> Option<Vec<u8>> {
    serde_json::to_vec(&serde_json::from_slice::<T>(record).ok()?).ok()
}

#[derive(Serialize, Deserialize)]
struct RecordHead<M> {
    about: M,
    parts: Vec<usize>,
}

/// Writes the metadata and the parts.
pub fn write<M: Serialize>(metadata: &M, parts: &[&[u8]]) -> Vec<u8> {
    let mut record = to_json(&RecordHead { about: metadata, parts: parts.iter().map(|part| part.len()).collect() });
    record.push(b'\n');
    for part in parts {
        record.extend_from_slice(part);
    }
    record
}

/// Parses a record of [`write()`]; `None` where it is malformed.
pub fn read<M: DeserializeOwned>(record: Vec<u8>) -> Option<(M, Vec<Bytes>)> {
    let record = Bytes::from(record);
    let end = record.iter().position(|byte| *byte == b'\n')?;
    let head: RecordHead<M> = serde_json::from_slice(&record[..end]).ok()?;
    let mut rest = record.slice(end + 1..);
    let mut parts = Vec::with_capacity(head.parts.len());
    for length in head.parts {
        if length > rest.len() {
            return None;
        }
        parts.push(rest.split_to(length));
    }
    rest.is_empty().then_some((head.about, parts))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::address::{Artifact, Hostname, Name, Package, Platform, ProviderAddress, Version};
    use crate::digest::Digest;

    const ABOUT: &str = r#"{"asked":"https://registry.example/x","url":"https://registry.example/x","validators":{},"sums_validators":{},"signature_validators":{"etag":"\"1\""},"fetched":1,"checked":2,"proof":{"how":"no-keys"}}"#;

    pub fn package() -> Package {
        let host = Hostname::parse("registry.example").unwrap();
        let [namespace, type_] = ["acme", "null"].map(|name| Name::parse(name).unwrap());
        let platform = Platform::parse("linux_amd64").unwrap();
        let provider = ProviderAddress { host, namespace, type_ };
        Package { provider, version: Version::parse("1.0.0").unwrap(), platform }
    }

    fn keys() -> [Key; 5] {
        let package = package();
        let provider = package.provider.clone();
        [
            Key::discovery(&provider.host),
            Key::version_list(&provider),
            Key::FirstSeenV0(provider),
            Key::ProofSet(package.clone()),
            Key::Name(Artifact::Provider(package)),
        ]
    }

    fn record(metadata: &str, parts: &[&[u8]]) -> Vec<u8> {
        super::write(&serde_json::from_str::<serde_json::Value>(metadata).unwrap(), parts)
    }

    fn after_the_head(record: &[u8]) -> &[u8] {
        &record[record.iter().position(|byte| *byte == b'\n').unwrap()..]
    }

    proptest! {
        #[test]
        fn a_document_record_round_trips_its_bytes(
            parts in prop::array::uniform2(prop::collection::vec(any::<u8>(), 0..80)),
            damage in any::<prop::sample::Index>(),
            to in any::<u8>(),
        ) {
            let [discovery, ..] = keys();
            let mut record = record(ABOUT, &[&parts[0], &parts[1]]);
            let written = rewrite_record(&discovery, record.clone()).unwrap();
            prop_assert_eq!(after_the_head(&written), after_the_head(&record));
            let cut = damage.index(record.len());
            prop_assert_eq!(rewrite_record(&discovery, record[..cut].to_vec()), None);
            prop_assert_eq!(rewrite_record(&discovery, [&record[..], &[to]].concat()), None);
            record[cut] = to;
            let _ = rewrite_record(&discovery, record);
        }

        #[test]
        fn a_proof_set_record_round_trips_with_its_predecessor(
            sums in prop::collection::vec(any::<u8>(), 0..80),
            signature in prop::collection::vec(any::<u8>(), 0..80),
            has_predecessor in any::<bool>(),
        ) {
            let shasum = Digest::of(b"zip");
            let document = format!(r#"{{"os":"linux","arch":"amd64","filename":"f.zip","shasum":"{shasum}","download_url":"f.zip","shasums_url":"s"}}"#);
            let set: [&[u8]; 3] = [document.as_bytes(), &sums, &signature];
            let before = if has_predecessor { format!("[{ABOUT},3]") } else { "null".to_owned() };
            let metadata = format!(r#"{{"checked":2,"gone":true,"current":{ABOUT},"predecessor":{before}}}"#);
            let record = record(&metadata, &if has_predecessor { [set, set].concat() } else { set.to_vec() });
            let key = Key::ProofSet(package());
            let written = rewrite_record(&key, record.clone()).unwrap();
            prop_assert_eq!(after_the_head(&written), after_the_head(&record));
            prop_assert_eq!(rewrite_record(&key, written.clone()), Some(written));
        }

        #[test]
        fn malformed_records_are_rejected_without_a_panic(
            head in "\\{\"about\":(\\{\\}|null),\"parts\":\\[[0-9]{0,20}\\]\\}|[ -~]{0,40}",
            rest in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let record = [head.as_bytes(), b"\n", &rest].concat();
            // Any JSON object is a valid first-seen record, possibly an empty one.
            for key in keys().into_iter().filter(|key| !matches!(key, Key::FirstSeenV0(_))) {
                prop_assert_eq!(rewrite_record(&key, record.clone()), None);
            }
        }
    }

    #[test]
    fn a_record_with_surplus_parts_is_rejected() {
        let shasum = Digest::of(b"zip");
        let document = format!(
            r#"{{"os":"linux","arch":"amd64","filename":"f.zip","shasum":"{shasum}","download_url":"f.zip","shasums_url":"s"}}"#
        );
        let metadata = format!(r#"{{"checked":2,"gone":true,"current":{ABOUT},"predecessor":null}}"#);
        let [discovery, ..] = keys();
        for (key, metadata, parts) in [
            (discovery, ABOUT, vec![&b"{}"[..], b""]),
            (Key::ProofSet(package()), metadata.as_str(), vec![document.as_bytes(), b"sums", b"signature"]),
        ] {
            assert!(rewrite_record(&key, record(metadata, &parts)).is_some());
            let more = [&parts[..], &[b"more"]].concat();
            assert!(rewrite_record(&key, record(metadata, &more)).is_none());
        }
    }

    #[test]
    fn name_and_first_seen_records_round_trip_unchanged() {
        let (zip, other) = (Digest::of(b"zip"), Digest::of(b"other"));
        let name_record = format!(
            r#"{{"digest":"{zip}","fast":"{other}","filename":"f.zip","size_bytes":3,"hashes":{{"known":{{"zip":"h1:a","directory":"h1:b"}}}},"proof":{{"how":{{"signature":{{"fingerprint":"AB"}}}},"warnings":["old"]}},"origin":"https://files.example","kept":7}}"#
        );
        let seen = format!(
            r#"{{"keys":{{"AB":1}},"versions":{{"1.0.0-rc.1+b":{{"first_seen":2,"digests":{{"f.zip":["{zip}","{other}"]}}}}}}}}"#
        );
        let [_, _, seen_key, _, name_key] = keys();
        for (key, record) in [(name_key, format!(r#"{{"archives":[{name_record}],"pinned":true}}"#)), (seen_key, seen)]
        {
            let written =
                rewrite_record(&key, record.clone().into_bytes()).map(|written| String::from_utf8(written).unwrap());
            assert_eq!(written, Some(record));
        }
    }
}
