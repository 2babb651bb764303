//! A store that an earlier larder wrote: it opens, and everything in it is served as that larder served it.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::support::http::get;
use crate::support::larder::{Folder, Larder};
use crate::support::module_fixture::unpack_tar_gz;
use crate::support::reports::seconds;
use crate::support::upstream::{FakeUpstream, Target, sha256_hex};

/// The contents of `store-v1.json`: what the earlier larder answered, offline.
#[derive(Deserialize)]
struct Recorded {
    answers: Vec<RecordedAnswer>,
    alarms: Value,
    missing: Value,
    job: Value,
}

#[derive(Debug, PartialEq, Deserialize)]
struct RecordedAnswer {
    path: String,
    status: u16,
    /// The header X-Terraform-Get; empty without one.
    location: String,
    sha256: String,
}

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)).unwrap()
}

/// The earlier larder's store, without the files that `leave_out` selects.
fn earlier_store(leave_out: impl Fn(&str) -> bool) -> Folder {
    let folder = Folder::new();
    for (path, bytes) in unpack_tar_gz(&fixture("store-v1.tar.gz")).into_iter().filter(|(path, _)| !leave_out(path)) {
        let file = folder.path().join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, bytes).unwrap();
    }
    folder
}

/// The answer as larder gave it when the store was made: with times in seconds since 1970.
fn with_seconds(answer: &Value) -> Value {
    match answer {
        Value::Object(members) => members.iter().map(|(name, member)| (name.clone(), with_seconds(member))).collect(),
        Value::Array(elements) => elements.iter().map(with_seconds).collect(),
        Value::String(text) if humantime::parse_rfc3339(text).is_ok() => seconds(answer).into(),
        other => other.clone(),
    }
}

async fn assert_serves_everything(folder: &Folder, recorded: &Recorded) {
    let upstream = FakeUpstream::start().await;
    let larder = Larder::mirroring(&upstream).network("offline = true").store_at(folder).start().await;
    for expected in &recorded.answers {
        let answer = larder.get(&expected.path).await;
        let received = RecordedAnswer {
            path: expected.path.clone(),
            status: answer.status,
            location: answer.header("x-terraform-get").to_owned(),
            sha256: sha256_hex(&answer.body),
        };
        assert_eq!(&received, expected, "{}", answer.text());
    }
    let status = get(&format!("{}/admin/v1/status", larder.admin())).await.expect(200).json();
    // The alarms were recorded online. Offline, the command that resolves one brings its files with a bundle.
    let alarms = recorded.alarms.to_string().replace("\"larder accept ", "\"larder bundle apply BUNDLE --accept ");
    assert_eq!(with_seconds(&status["alarms"]).to_string(), alarms);
    let missing = get(&format!("{}/admin/v1/missing", larder.admin())).await.expect(200).json();
    assert_eq!(missing, recorded.missing);
    let jobs = get(&format!("{}/admin/v1/jobs", larder.admin())).await.expect(200).json();
    assert_eq!(with_seconds(&jobs["jobs"][0]), recorded.job);
    assert_eq!(upstream.count_of(Target::Everything), 0);
    larder.stop().await;
}

/// Promise 9: an update loses nothing that is stored, with the index of the earlier larder and without one.
#[tokio::test]
async fn everything_in_a_store_of_an_earlier_larder_is_served() {
    let recorded: Recorded = serde_json::from_slice(&fixture("store-v1.json")).unwrap();
    assert_serves_everything(&earlier_store(|_| false), &recorded).await;
    assert_serves_everything(&earlier_store(|path| path.starts_with("v1/index/")), &recorded).await;
}

/// The operator pinned a provider and a module; neither can be purged, and everything else can.
#[tokio::test]
async fn pins_in_a_store_of_an_earlier_larder_still_hold() {
    let folder = earlier_store(|_| false);
    let upstream = FakeUpstream::start().await;
    let larder = Larder::mirroring(&upstream).store_at(&folder).start().await;
    for package in ["acme/null", "acme/gone", "acme/keys", "acme/one/test"] {
        larder.run_command("purge", package).await;
    }
    larder.stop().await;
    let names: Vec<_> = folder.files("names").iter().map(|file| file.display().to_string()).collect();
    let [module, provider] = names.as_slice() else { panic!("not two names: {names:?}") };
    assert!(module.contains("acme/one/test") && provider.contains("acme/null"), "{names:?}");
}
