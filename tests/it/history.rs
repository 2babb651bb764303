//! Promises 1 and 14, against a registry that renames archives, signs with other keys, drops its signatures, or
//! exploits a damaged first-seen record.

use std::path::PathBuf;

use larder::address::{Name, ProviderAddress};
use larder::clock::Timestamp;
use larder::store::{Durability, Key};
use serde_json::{Value, json};

use crate::support::http::get;
use crate::support::larder::{Folder, HOST, Larder, open_store};
use crate::support::null_provider::{always_revalidating, upstream_with};
use crate::support::terraform::{Terraform, host_override};
use crate::support::upstream::{FakeUpstream, Provider, SigningKey, sha256_hex};

const PROVIDER: &str = "registry.terraform.io/acme/null";

fn edition(edition: u64) -> Provider {
    Provider::new("acme", "null").without_manifest_sum().edition(edition)
}

/// Version 1.2.0 with other bytes, under a file name that is in no record.
fn renamed() -> Provider {
    edition(2).filename("terraform-provider-null_1.2.0_{platform}.ZIP")
}

/// The SHA-256 of the archive that a client installs of this version, or the status of the refusal.
async fn installed_digest(larder: &Larder, version: &str) -> Result<String, u16> {
    let document = larder.document("null", version).await;
    if document.status != 200 {
        return Err(document.status);
    }
    let path = document.json()["download_url"].as_str().unwrap().to_owned();
    Ok(sha256_hex(&larder.get(&path).await.expect(200).body))
}

/// The SHA-256 of upstream's archive.
fn upstream_digest(upstream: &FakeUpstream, version: &str) -> String {
    sha256_hex(&upstream.archive_bytes("acme", "null", version, "linux_amd64"))
}

/// The kinds of the provider's alarms, each with its version.
async fn raised_alarms(larder: &Larder) -> Vec<(String, String)> {
    let alarms = larder.alarms().await;
    assert!(alarms.iter().all(|(_, address, ..)| address == PROVIDER), "{alarms:?}");
    alarms.into_iter().map(|(kind, _, version, _)| (kind, version)).collect()
}

fn expected_alarms(alarms: &[(&str, &str)]) -> Vec<(String, String)> {
    alarms.iter().map(|(kind, version)| ((*kind).to_owned(), (*version).to_owned())).collect()
}

/// Stops larder and deletes everything stored but the first-seen records and the alarms.
async fn stop_and_delete_content(larder: Larder) -> Folder {
    let folder = larder.stop().await;
    for file in ["documents", "names", "blobs"].iter().flat_map(|below| folder.files(below)) {
        folder.lose(&file);
    }
    folder
}

fn first_seen_files(folder: &Folder, ending: &str) -> Vec<PathBuf> {
    folder.files("seen").into_iter().filter(|file| file.to_str().unwrap().ends_with(ending)).collect()
}

/// Writes the record of a provider in the format of older stores: one for all versions.
fn write_legacy_record(folder: &Folder, digest: &str) {
    let provider = ProviderAddress {
        host: larder::address::Hostname::parse(HOST).unwrap(),
        namespace: Name::parse("acme").unwrap(),
        type_: Name::parse("null").unwrap(),
    };
    let record = json!({
        "keys": { SigningKey::shared().fingerprint(): 1 },
        "versions": {
            "1.2.0": {
                "first_seen": 1,
                "digests": { "terraform-provider-null_1.2.0_linux_amd64.zip": [digest] },
            },
            "1.1.0": { "first_seen": 1 },
        },
    });
    {
        let store = open_store(folder.path(), Timestamp(1));
        store.records.put(&Key::FirstSeenV0(provider), record.to_string().as_bytes(), Durability::Synced).unwrap();
        store.close().unwrap();
    }
}

/// Promise 14: the registry chooses file names, so no decision depends on them, in any mode of `verification`.
#[tokio::test]
async fn a_renamed_archive_of_a_known_platform_is_a_change() {
    for (mode, is_signed) in [("signature", true), ("signature-if-keys", true), ("checksum", false)] {
        let upstream = upstream_with(edition(1)).await;
        let builder = |upstream: &FakeUpstream| {
            always_revalidating(upstream).upstream_lines(&format!("verification = \"{mode}\""))
        };
        let larder = builder(&upstream).start().await;
        let old = installed_digest(&larder, "1.2.0").await.unwrap();
        upstream.publish(renamed().signed_by(&SigningKey::new_key()));
        assert!(installed_digest(&larder, "1.2.0").await.unwrap() == old, "{mode}");
        assert_eq!(raised_alarms(&larder).await, expected_alarms(&[("waits-for-accept", "1.2.0")]), "{mode}");
        let detail = larder.alarms().await[0].3["detail"].as_str().unwrap().to_owned();
        let signer = if is_signed { "; the keys known for this provider are " } else { "; unsigned" };
        for part in [old.as_str(), &upstream_digest(&upstream, "1.2.0"), signer] {
            assert!(detail.contains(part), "{mode}: {part} is not in {detail}");
        }

        let folder = stop_and_delete_content(larder).await;
        // An unsigned provider has a key log too: without one, every record would be read for each set.
        assert_eq!(first_seen_files(&folder, "/keys.json").len(), 1, "{mode}");
        let larder = builder(&upstream).store_at(&folder).start().await;
        assert_eq!(installed_digest(&larder, "1.2.0").await, Err(502), "{mode}");
        assert!(folder.proof_sets().is_empty() && folder.blobs().is_empty(), "{mode}");

        // A key that may vouch for the change: the new set is served, with an alarm.
        upstream.publish(renamed());
        let installed = installed_digest(&larder, "1.2.0").await;
        if is_signed {
            assert!(installed.unwrap() == upstream_digest(&upstream, "1.2.0"), "{mode}");
            assert_eq!(raised_alarms(&larder).await, expected_alarms(&[("republished", "1.2.0")]), "{mode}");
        } else {
            assert_eq!(installed, Err(502), "{mode}");
        }
    }
}

/// Promise 14: without signatures, a platform that nobody asked for yet is bound to its file of the first sums, also where the
/// file names are not conventional. A file that is added beside it is refused, until it is accepted.
#[tokio::test]
async fn a_platform_asked_for_later_gets_its_file_of_the_first_sums() {
    for pattern in ["odd-{platform}.zip", "{platform}.of.1.2.0"] {
        let unusual = edition(1).filename(pattern).platform("linux_amd64").platform("darwin_arm64");
        let upstream = upstream_with(unusual).await;
        let larder = always_revalidating(&upstream).upstream_lines("verification = \"checksum\"").start().await;
        installed_digest(&larder, "1.2.0").await.unwrap();
        let path = "/v1/providers/acme/null/1.2.0/download/darwin/arm64";
        let right = get(&format!("{}{path}", upstream.origin())).await.expect(200).text();

        let evil = b"another archive".to_vec();
        let mut document: Value = serde_json::from_str(&right).unwrap();
        let sums = String::from_utf8(upstream.sums_bytes("acme", "null", "1.2.0")).unwrap();
        document["filename"] = "evil.zip".into();
        document["shasum"] = sha256_hex(&evil).into();
        document["download_url"] = "/files/evil.zip".into();
        document["shasums_url"] = "/files/sums".into();
        upstream.serve_file("/files/sums", "text/plain", format!("{sums}{}  evil.zip\n", sha256_hex(&evil)));
        upstream.serve_file("/files/evil.zip", "application/zip", evil);
        upstream.serve_json(path, &document.to_string());
        let text = larder.document_for("null", "1.2.0", "darwin_arm64").await.expect(502).text();
        assert!(text.contains("darwin_arm64") && text.contains("larder accept"), "{text}");
        assert_eq!(raised_alarms(&larder).await, expected_alarms(&[("waits-for-accept", "1.2.0")]), "{pattern}");
        upstream.stop_serving(path);
        larder.document_for("null", "1.2.0", "darwin_arm64").await.expect(200);
        assert_eq!(raised_alarms(&larder).await, expected_alarms(&[]), "{pattern}");
    }
}

/// Promise 14: sums without any line of the record are a change, also for a platform that was never requested.
#[tokio::test]
async fn sums_that_drop_every_known_line_are_a_change() {
    let upstream = upstream_with(edition(1).filename("one.zip").platform("linux_amd64")).await;
    let larder = always_revalidating(&upstream).start().await;
    installed_digest(&larder, "1.2.0").await.unwrap();
    let other = edition(2).filename("other.zip").platform("darwin_arm64");
    upstream.publish(other.clone().signed_by(&SigningKey::new_key()));
    assert_eq!(larder.document_for("null", "1.2.0", "darwin_arm64").await.status, 502);
    assert_eq!(raised_alarms(&larder).await, expected_alarms(&[("waits-for-accept", "1.2.0")]));
    upstream.publish(other);
    larder.document_for("null", "1.2.0", "darwin_arm64").await.expect(200);
    assert_eq!(raised_alarms(&larder).await, expected_alarms(&[("republished", "1.2.0")]));
}

/// Promise 14: a new key may sign new versions, with an alarm that names both keys. It never vouches for other bytes of
/// a version that was verified before.
#[tokio::test]
async fn a_key_that_signed_a_new_version_vouches_for_no_older_one() {
    let upstream = upstream_with(edition(1)).await;
    let larder = always_revalidating(&upstream).start().await;
    let old = installed_digest(&larder, "1.2.0").await.unwrap();
    assert_eq!(raised_alarms(&larder).await, expected_alarms(&[]), "the very first key raises none");

    let stranger = SigningKey::new_key();
    upstream.publish(edition(1).version("1.3.0").signed_by(&stranger));
    assert!(installed_digest(&larder, "1.3.0").await.unwrap() == upstream_digest(&upstream, "1.3.0"));
    let raised = larder.alarms().await;
    let (kind, _, version, alarm) = &raised[0];
    assert_eq!((raised.len(), kind.as_str(), version.as_str()), (1, "new-key", "1.3.0"));
    let detail = alarm["detail"].as_str().unwrap();
    for key in [&stranger, &SigningKey::shared()] {
        assert!(detail.contains(&key.fingerprint()), "{detail}");
    }
    assert_eq!(alarm["resolve"], format!("larder accept {PROVIDER}"));
    assert_eq!(larder.metric("larder_alarms_total").await, 1.0);

    upstream.publish(edition(2).signed_by(&stranger));
    assert!(installed_digest(&larder, "1.2.0").await.unwrap() == old);
    let folder = stop_and_delete_content(larder).await;
    let larder = always_revalidating(&upstream).store_at(&folder).start().await;
    assert_eq!(installed_digest(&larder, "1.2.0").await, Err(502));
    assert_eq!(raised_alarms(&larder).await, expected_alarms(&[("waits-for-accept", "1.2.0"), ("new-key", "1.3.0")]));
}

/// Promise 14: re-signing the same bytes first does not entitle a key to sign other bytes.
#[tokio::test]
async fn a_key_that_re_signed_the_same_bytes_vouches_for_no_others() {
    let upstream = upstream_with(edition(1)).await;
    let larder = always_revalidating(&upstream).start().await;
    let old = installed_digest(&larder, "1.2.0").await.unwrap();
    let stranger = SigningKey::new_key();
    upstream.publish(edition(1).signed_by(&stranger));
    assert!(installed_digest(&larder, "1.2.0").await.unwrap() == old);
    assert_eq!(raised_alarms(&larder).await, expected_alarms(&[("new-key", "1.2.0")]));
    upstream.publish(edition(2).signed_by(&stranger));
    assert!(installed_digest(&larder, "1.2.0").await.unwrap() == old);
    // Such a key cannot add a platform either.
    upstream.publish(edition(1).platform("linux_amd64").platform("darwin_arm64").signed_by(&stranger));
    assert_eq!(larder.document_for("null", "1.2.0", "darwin_arm64").await.status, 502);
    // The original key can.
    upstream.publish(edition(1).platform("linux_amd64").platform("darwin_arm64"));
    larder.document_for("null", "1.2.0", "darwin_arm64").await.expect(200);
}

/// Promise 14: a key that signs the stored bytes again, after the first-seen records were lost, is not the first key.
#[tokio::test]
async fn a_second_key_is_not_the_first_when_the_records_are_lost() {
    let upstream = upstream_with(edition(1)).await;
    let larder = always_revalidating(&upstream).start().await;
    installed_digest(&larder, "1.2.0").await.unwrap();
    let folder = larder.stop().await;
    folder.lose_all("seen");

    let larder = always_revalidating(&upstream).store_at(&folder).start().await;
    upstream.publish(edition(1).signed_by(&SigningKey::new_key()));
    installed_digest(&larder, "1.2.0").await.unwrap();
    assert_eq!(raised_alarms(&larder).await, expected_alarms(&[("new-key", "1.2.0")]));
}

/// Promise 14: one new version and an alarm that nobody has read do not make a key vouch for a version that was verified later
/// and signed by another key. `accept` of the provider does.
#[tokio::test]
async fn a_key_that_was_admitted_beside_others_vouches_for_no_later_version() {
    let upstream = upstream_with(edition(1)).await;
    let larder = always_revalidating(&upstream).start().await;
    installed_digest(&larder, "1.2.0").await.unwrap();
    let second = SigningKey::new_key();
    upstream.publish(edition(1).version("1.3.0").signed_by(&second));
    installed_digest(&larder, "1.3.0").await.unwrap();
    upstream.publish(edition(1).version("1.4.0"));
    installed_digest(&larder, "1.4.0").await.unwrap();
    upstream.publish(edition(2).version("1.4.0").signed_by(&second));
    assert!(installed_digest(&larder, "1.4.0").await.unwrap() != upstream_digest(&upstream, "1.4.0"));
    assert_eq!(raised_alarms(&larder).await, expected_alarms(&[("waits-for-accept", "1.4.0"), ("new-key", "1.3.0")]));
    // It vouches for the version that it signed first.
    upstream.publish(edition(2).version("1.3.0").signed_by(&second));
    assert!(installed_digest(&larder, "1.3.0").await.unwrap() == upstream_digest(&upstream, "1.3.0"));
    assert!(larder.run_command("accept", "acme/null").await.ok);
    assert!(installed_digest(&larder, "1.4.0").await.unwrap() == upstream_digest(&upstream, "1.4.0"));
    upstream.publish(edition(3).version("1.4.0").signed_by(&second));
    assert!(installed_digest(&larder, "1.4.0").await.unwrap() == upstream_digest(&upstream, "1.4.0"));
}

/// Promise 14: the provider's first key vouches for versions that others signed first.
#[tokio::test]
async fn the_first_key_of_a_provider_vouches_for_its_later_versions() {
    let upstream = upstream_with(edition(1)).await;
    let larder = always_revalidating(&upstream).start().await;
    installed_digest(&larder, "1.2.0").await.unwrap();
    upstream.publish(edition(1).version("1.3.0").signed_by(&SigningKey::new_key()));
    installed_digest(&larder, "1.3.0").await.unwrap();
    upstream.publish(edition(2).version("1.3.0"));
    assert!(installed_digest(&larder, "1.3.0").await.unwrap() == upstream_digest(&upstream, "1.3.0"));
    assert_eq!(raised_alarms(&larder).await, expected_alarms(&[("republished", "1.3.0"), ("new-key", "1.3.0")]));
}

/// Promise 14: `accept` of a provider admits the key for all versions; `accept` of a version admits it for that version
/// only.
#[tokio::test]
async fn accept_makes_a_new_key_known_for_the_provider_or_for_one_version() {
    for is_for_all_versions in [true, false] {
        let upstream = upstream_with(edition(1)).await;
        upstream.publish(edition(1).version("1.1.0"));
        let larder = always_revalidating(&upstream).start().await;
        let older = installed_digest(&larder, "1.1.0").await.unwrap();
        installed_digest(&larder, "1.2.0").await.unwrap();
        let second = SigningKey::new_key();
        upstream.publish(edition(2).signed_by(&second));
        assert!(installed_digest(&larder, "1.2.0").await.unwrap() != upstream_digest(&upstream, "1.2.0"));
        let done =
            larder.run_command("accept", if is_for_all_versions { "acme/null" } else { "acme/null@1.2.0" }).await;
        assert_eq!(done.ok, Value::Bool(true), "{done}");
        assert_eq!(raised_alarms(&larder).await, expected_alarms(&[]), "{done}");
        assert!(installed_digest(&larder, "1.2.0").await.unwrap() == upstream_digest(&upstream, "1.2.0"));
        upstream.publish(edition(2).version("1.1.0").signed_by(&second));
        let installed = installed_digest(&larder, "1.1.0").await.unwrap();
        assert_eq!(installed == upstream_digest(&upstream, "1.1.0"), is_for_all_versions);
        assert_eq!(installed == older, !is_for_all_versions);
    }
}

/// Promise 14: unsigned sets of a provider that was signed are refused until they are accepted.
#[tokio::test]
async fn an_unsigned_version_of_a_signed_provider_is_refused() {
    let upstream = upstream_with(edition(1)).await;
    let larder = always_revalidating(&upstream).upstream_lines("verification = \"signature-if-keys\"").start().await;
    let old = installed_digest(&larder, "1.2.0").await.unwrap();
    upstream.publish(edition(1).version("1.3.0").without_keys());
    upstream.publish(edition(1).without_keys());
    let refused = larder.document("null", "1.3.0").await.expect(502).text();
    assert!(refused.contains("lists no key") && refused.contains("`larder accept"), "{refused}");
    assert!(installed_digest(&larder, "1.2.0").await.unwrap() == old, "stored versions stay served");
    assert_eq!(larder.document("null", "1.2.0").await.header("cache-status"), "larder; hit; detail=stale");
    let raised = larder.alarms().await;
    assert_eq!((raised.len(), raised[0].0.as_str()), (1, "signature-lost"), "{raised:?}");
    assert_eq!(raised[0].3["resolve"], format!("larder accept {PROVIDER}"));

    let done = larder.run_command("accept", "acme/null").await;
    assert_eq!(done.ok, Value::Bool(true), "{done}");
    assert_eq!(raised_alarms(&larder).await, expected_alarms(&[]));
    assert!(installed_digest(&larder, "1.3.0").await.unwrap() == upstream_digest(&upstream, "1.3.0"));
    upstream.publish(edition(1).version("1.4.0").without_keys());
    installed_digest(&larder, "1.4.0").await.unwrap();
}

/// Promise 14: a damaged record does not lead to trust on first use.
#[tokio::test]
async fn a_damaged_first_seen_record_does_not_permit_trust_on_first_use() {
    for ending in ["/1.2.0.json", "/keys.json"] {
        let upstream = upstream_with(edition(1)).await;
        let larder = always_revalidating(&upstream).start().await;
        let old = installed_digest(&larder, "1.2.0").await.unwrap();
        let folder = larder.stop().await;
        folder.damage(&first_seen_files(&folder, ending)[0]);
        // While the proof set is stored, it identifies the verified bytes: the same bytes are served, others are not.
        let larder = always_revalidating(&upstream).store_at(&folder).start().await;
        assert!(installed_digest(&larder, "1.2.0").await.unwrap() == old, "{ending}");
        upstream.publish(edition(2).signed_by(&SigningKey::new_key()));
        assert!(installed_digest(&larder, "1.2.0").await.unwrap() == old, "{ending}");
        let folder = stop_and_delete_content(larder).await;
        for file in first_seen_files(&folder, ending) {
            folder.damage(&file);
        }
        if ending == "/keys.json" {
            // Without a version record either, the provider's keys cannot be recovered.
            folder.lose(&first_seen_files(&folder, "/1.2.0.json")[0]);
        }
        upstream.publish(edition(1));
        let larder = always_revalidating(&upstream).store_at(&folder).start().await;
        let refused = larder.document("null", "1.2.0").await.expect(502).text();
        assert!(refused.contains("damaged") && refused.contains("`larder accept"), "{refused}");
        assert!(raised_alarms(&larder).await.contains(&("damaged-record".to_owned(), "1.2.0".to_owned())), "{ending}");
        assert!(larder.run_command("accept", "acme/null").await.ok);
        assert!(installed_digest(&larder, "1.2.0").await.unwrap() == old, "{ending}");
        assert_eq!(raised_alarms(&larder).await, expected_alarms(&[]), "{ending}");
    }
}

/// Promise 14: when a provider's key log is lost, the command that the alarm names ends the refusal. The key that signs
/// the accepted version vouches for no older one.
#[tokio::test]
async fn accept_after_a_lost_key_log_ends_the_refusal_and_admits_no_other_key() {
    for mode in ["signature", "checksum"] {
        let upstream = upstream_with(edition(1)).await;
        let folder = Folder::new();
        let verified_digest = upstream_digest(&upstream, "1.2.0");
        write_legacy_record(&folder, &verified_digest);
        let builder =
            || always_revalidating(&upstream).upstream_lines(&format!("verification = \"{mode}\"")).store_at(&folder);
        let larder = builder().start().await;
        // The list request splits the old record by version; nothing else of 1.2.0 is stored.
        larder.versions("null").await.expect(200);
        larder.stop().await;
        folder.damage(&first_seen_files(&folder, "/keys.json")[0]);

        let stranger = SigningKey::new_key();
        upstream.publish(edition(1).version("1.3.0").signed_by(&stranger));
        let larder = builder().start().await;
        larder.document("null", "1.3.0").await.expect(502);
        let alarm = larder.alarms().await.into_iter().find(|(_, _, version, _)| version == "1.3.0").unwrap();
        assert_eq!(alarm.0, "damaged-record", "{mode}");
        let command = alarm.3["resolve"].as_str().unwrap().strip_prefix("larder accept ").unwrap().to_owned();
        let done = larder.run_command("accept", &command).await;
        assert_eq!(done.ok, Value::Bool(true), "{mode}: {done}");
        assert!(installed_digest(&larder, "1.3.0").await.unwrap() == upstream_digest(&upstream, "1.3.0"), "{mode}");
        assert!(installed_digest(&larder, "1.2.0").await.unwrap() == verified_digest, "{mode}");
        upstream.publish(edition(1).version("1.4.0").signed_by(&stranger));
        installed_digest(&larder, "1.4.0").await.unwrap();
        // The lost log was the only evidence that the key of 1.2.0 is the provider's.
        let expected =
            if mode == "signature" { expected_alarms(&[("new-key", "1.2.0")]) } else { expected_alarms(&[]) };
        assert_eq!(raised_alarms(&larder).await, expected, "{mode}");
        upstream.publish(edition(2).signed_by(&stranger));
        assert!(
            installed_digest(&larder, "1.2.0").await.unwrap() == verified_digest,
            "{mode}: a stranger vouches for an older version"
        );
    }
}

/// Promise 14: accepting a version whose record was damaged admits no key that was foreign to that version before.
#[tokio::test]
async fn accept_of_a_version_with_a_damaged_record_admits_no_later_key() {
    let upstream = upstream_with(edition(1)).await;
    let larder = always_revalidating(&upstream).start().await;
    let old = installed_digest(&larder, "1.2.0").await.unwrap();
    let stranger = SigningKey::new_key();
    upstream.publish(edition(1).version("1.3.0").signed_by(&stranger));
    installed_digest(&larder, "1.3.0").await.unwrap();
    let folder = stop_and_delete_content(larder).await;
    folder.damage(&first_seen_files(&folder, "/1.2.0.json")[0]);
    let larder = always_revalidating(&upstream).store_at(&folder).start().await;
    assert_eq!(installed_digest(&larder, "1.2.0").await, Err(502));
    assert!(larder.run_command("accept", "acme/null@1.2.0").await.ok);
    assert!(installed_digest(&larder, "1.2.0").await.unwrap() == old);
    upstream.publish(edition(2).signed_by(&stranger));
    assert!(installed_digest(&larder, "1.2.0").await.unwrap() == old);
    assert!(raised_alarms(&larder).await.contains(&("waits-for-accept".to_owned(), "1.2.0".to_owned())));
}

/// Promise 11: first-seen records are limited, so a publisher of endless new versions cannot fill the disk.
#[tokio::test]
async fn the_number_of_first_seen_records_of_a_provider_is_limited() {
    let upstream = upstream_with(edition(1)).await;
    let larder = always_revalidating(&upstream).start().await;
    installed_digest(&larder, "1.2.0").await.unwrap();
    let folder = larder.stop().await;
    let record = first_seen_files(&folder, "/1.2.0.json").remove(0);
    let bytes = folder.bytes(&record);
    for number in 1..20_000 {
        folder.put_back(&record.with_file_name(format!("9.0.{number}.json")), &bytes);
    }
    let larder = always_revalidating(&upstream).store_at(&folder).start().await;
    upstream.publish(edition(1).version("1.3.0"));
    let refused = larder.document("null", "1.3.0").await.expect(502).text();
    assert!(refused.contains("a limit is reached") && refused.contains("`larder accept"), "{refused}");
    installed_digest(&larder, "1.2.0").await.unwrap();
}

/// A version that was unsigned before the provider's first signed one has lost no signature.
#[tokio::test]
async fn a_version_that_was_never_signed_stays_accepted_when_others_are_signed() {
    let upstream = upstream_with(edition(1).without_keys()).await;
    let larder = always_revalidating(&upstream).upstream_lines("verification = \"signature-if-keys\"").start().await;
    let unsigned = installed_digest(&larder, "1.2.0").await.unwrap();
    upstream.publish(edition(1).version("2.0.0"));
    installed_digest(&larder, "2.0.0").await.unwrap();
    upstream.publish(edition(1).without_keys());
    let document = larder.document("null", "1.2.0").await.expect(200);
    assert!(document.has_cache_status("fwd=stale; stored"), "{}", document.header("cache-status"));
    assert!(installed_digest(&larder, "1.2.0").await.unwrap() == unsigned);
    assert_eq!(raised_alarms(&larder).await, expected_alarms(&[]));
    // New versions and other bytes must be signed now.
    upstream.publish(edition(1).version("2.1.0").without_keys());
    larder.document("null", "2.1.0").await.expect(502);
    upstream.publish(edition(2).without_keys());
    assert!(installed_digest(&larder, "1.2.0").await.unwrap() == unsigned);
}

/// An older store has one first-seen record per provider: it is migrated without a loss of meaning.
#[tokio::test]
async fn first_seen_records_of_an_older_store_are_migrated() {
    let upstream = upstream_with(edition(1)).await;
    let verified_digest = upstream_digest(&upstream, "1.2.0");
    let folder = Folder::new();
    write_legacy_record(&folder, &verified_digest);
    upstream.publish(renamed().signed_by(&SigningKey::new_key()));
    let larder = always_revalidating(&upstream).store_at(&folder).start().await;
    assert_eq!(installed_digest(&larder, "1.2.0").await, Err(502));
    assert_eq!(raised_alarms(&larder).await, expected_alarms(&[("waits-for-accept", "1.2.0")]));
    upstream.publish(edition(2));
    assert!(installed_digest(&larder, "1.2.0").await.unwrap() == upstream_digest(&upstream, "1.2.0"));
    assert_eq!(raised_alarms(&larder).await, expected_alarms(&[("republished", "1.2.0")]));
    assert!(
        first_seen_files(&folder, "/acme/null.json").is_empty() && first_seen_files(&folder, "/1.2.0.json").len() == 1
    );
    assert!(
        first_seen_files(&folder, "/1.1.0.json").is_empty(),
        "a version that was only listed has no first-seen record"
    );
}

/// Promises 1, 14 and 15: the real client installs the old bytes or nothing, and the alarm names the command that
/// resolves it.
#[tokio::test]
async fn the_real_client_installs_what_was_verified_first_or_nothing() {
    let Some(client) = Terraform::find() else { return };
    let stranger = SigningKey::new_key();
    let attacks: [(&str, &str, Vec<Provider>); 3] = [
        ("renamed", "waits-for-accept", vec![renamed().signed_by(&stranger)]),
        (
            "laundered",
            "waits-for-accept",
            vec![edition(1).version("1.3.0").signed_by(&stranger), edition(2).signed_by(&stranger)],
        ),
        ("unsigned", "signature-lost", vec![edition(1).version("1.3.0").without_keys()]),
    ];
    for (attack, kind, published) in attacks {
        let upstream = upstream_with(edition(1)).await;
        let mode = if attack == "unsigned" { "signature-if-keys" } else { "signature" };
        let builder = || always_revalidating(&upstream).upstream_lines(&format!("verification = \"{mode}\""));
        let larder = builder().start().await;
        let workspace = |larder: &Larder, constraint: &str| {
            let mut workspace = client.workspace();
            workspace.require(&format!("{HOST}/acme/null"), constraint);
            workspace.cli_config(&host_override(HOST, &larder.providers_url(HOST), "http://127.0.0.1:9/v1/modules/"));
            workspace
        };
        let first = workspace(&larder, "1.2.0");
        first.init().await.expect_success();
        for provider in published {
            let version = provider.clone();
            upstream.publish(version);
            installed_digest(&larder, "1.3.0").await.ok();
        }
        // A new folder has no lock file that would detect other bytes.
        let again = workspace(&larder, "1.2.0");
        again.init().await.expect_success();
        assert_eq!(again.lock_file(), first.lock_file(), "{attack}");
        let folder = stop_and_delete_content(larder).await;
        let larder = builder().store_at(&folder).start().await;
        let constraint = if attack == "unsigned" { "1.3.0" } else { "1.2.0" };
        let output = workspace(&larder, constraint).init().await.expect_failure().text;
        assert!(output.contains("502"), "{attack}: {output}");
        let raised = larder.alarms().await;
        let (_, _, version, alarm) = raised.iter().find(|(raised, ..)| raised == kind).expect(attack);
        let subject = if kind == "signature-lost" { PROVIDER.to_owned() } else { format!("{PROVIDER}@{version}") };
        assert_eq!(alarm["resolve"], format!("larder accept {subject}"), "{attack}");
        let metrics = get(&format!("{}/metrics", larder.admin())).await.expect(200).text();
        assert!(metrics.contains(&format!("larder_alarms_total{{kind=\"{kind}\"}}")), "{metrics}");
    }
}
