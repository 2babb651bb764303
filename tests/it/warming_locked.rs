//! Warm-ups of lock files. A killed one continues, the real client installs from a warmed store, and an archive that the
//! client would refuse fails its item.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::json;

use crate::support::eventually;
use crate::support::larder::{Folder, HOST, Larder};
use crate::support::process::{Process, run};
use crate::support::programs::find;
use crate::support::reports::{JobItemReport, JobReport};
use crate::support::terraform::{Terraform, Workspace, host_override, network_mirror};
use crate::support::tls::TestCa;
use crate::support::upstream::{FakeUpstream, Provider, RecordedRequest, Target};
use crate::support::warm_fixture::{PLATFORMS, WarmFixture, both_platforms, items};

/// The base of a modules service that these tests do not use: nothing listens there.
const NO_MODULES: &str = "http://127.0.0.1:9/v1/modules/";
const BOTH_PLATFORMS: &str = "platform=linux_amd64&platform=darwin_arm64";
/// A job fetches eight archives above 1 MiB at a time.
const ARCHIVES_AT_A_TIME: usize = 8;
const ARCHIVE_BYTES: usize = 1_500_000;
const HALF_BYTES: usize = ARCHIVE_BYTES / 2;

fn provider_names() -> Vec<String> {
    (1..=8).map(|number| format!("p{number}")).collect()
}

async fn upstream_with_eight_providers() -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    for name in provider_names() {
        upstream.publish(both_platforms(Provider::new("acme", &name).size(ARCHIVE_BYTES)));
        upstream.publish(both_platforms(Provider::new("acme", &name).version("1.3.0").size(100)));
    }
    upstream
}

fn lock_file_block(name: &str, hashes: &[String]) -> String {
    let hashes: String = hashes.iter().map(|hash| format!("    \"{hash}\",\n")).collect();
    format!(
        "provider \"{HOST}/acme/{name}\" {{\n  version     = \"1.2.0\"\n  constraints = \"~> 1.2.0\"\n  hashes = [\n{hashes}  ]\n}}\n\n"
    )
}

/// Every `zh:` of version 1.2.0's verified sums, as clients record them.
fn hashes(upstream: &FakeUpstream, name: &str) -> Vec<String> {
    let sums = String::from_utf8(upstream.sums_bytes("acme", name, "1.2.0")).unwrap();
    sums.lines().map(|line| format!("zh:{}", line.split(' ').next().unwrap())).collect()
}

fn lock_file(upstream: &FakeUpstream) -> String {
    let header = "# This file is maintained automatically by \"terraform init\".\n\n";
    header.to_owned()
        + &provider_names().iter().map(|name| lock_file_block(name, &hashes(upstream, name))).collect::<String>()
}

fn workspace_requiring_all(client: &Terraform, lock: &str) -> Workspace {
    let mut workspace = client.workspace();
    for name in provider_names() {
        workspace.require(&format!("{HOST}/acme/{name}"), "~> 1.2.0");
    }
    workspace.file(".terraform.lock.hcl", lock);
    workspace
}

fn token(folder: &Folder) -> String {
    std::fs::read_to_string(folder.path().join("admin-token")).unwrap()
}

fn archive_requests(upstream: &FakeUpstream) -> Vec<RecordedRequest> {
    upstream.requests().into_iter().filter(|request| request.target == Target::Archive).collect()
}

/// The number of bytes that upstream sent of one archive in all requests.
fn bytes_sent_of(requests: &[RecordedRequest], path: &str) -> u64 {
    requests.iter().filter(|request| request.path == path).map(|request| request.bytes_sent).sum()
}

/// The client's own commands, in both protocols, with upstream stopped.
#[tokio::test]
async fn a_lock_file_that_was_warmed_is_installed_and_locked_with_the_upstream_stopped() {
    let Some(client) = Terraform::find() else { return };
    let mut upstream = upstream_with_eight_providers().await;
    let lock = lock_file(&upstream);
    let ca = TestCa::new();
    let larder = Larder::mirroring(&upstream).always_revalidate().tls(&ca, &["127.0.0.1"]).start().await;
    let fixture = WarmFixture::for_larder(&larder);
    let path = fixture.start_lock_file_job(&lock, BOTH_PLATFORMS).await;
    let job = fixture.finished_job(&path).await;
    assert_eq!((job.states(), &*job.state), (vec!["fetched"; 16], "done"), "{job}");
    assert_eq!(upstream.count_of(Target::Archive), 16);
    upstream.stop().await;

    let cli_config = host_override(HOST, &larder.providers_url(HOST), NO_MODULES);
    let mut workspace = workspace_requiring_all(&client, &lock);
    workspace.trust(&ca.pem());
    workspace.cli_config(&cli_config);
    workspace.init().await.expect_success();
    assert!(workspace.lock_file().contains(&hashes(&upstream, "p8")[0]));
    let flags: Vec<String> = PLATFORMS.iter().map(|platform| format!("-platform={platform}")).collect();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    workspace.run(&[&["providers", "lock"], &flags[..]].concat()).await.expect_success();
    assert_eq!(workspace.lock_file().matches("\"h1:").count(), 16, "{}", workspace.lock_file());

    // Without a lock file the version is chosen again: the list is cached, and ~> 1.2.0 selects the warmed version.
    workspace.remove_lock_and_installed();
    workspace.run(&[&["providers", "lock"], &flags[..]].concat()).await.expect_success();
    workspace.remove_lock_and_installed();
    workspace.init().await.expect_success();
    let mut mirror_workspace = workspace_requiring_all(&client, &lock);
    mirror_workspace.trust(&ca.pem());
    mirror_workspace.cli_config(&network_mirror(&format!("{}/mirror/", larder.base())));
    mirror_workspace.init().await.expect_success();
}

/// A job that is killed continues after the restart.
#[tokio::test]
async fn a_killed_warm_up_continues_and_fetches_no_archive_twice() {
    let mut upstream = upstream_with_eight_providers().await;
    let lock = lock_file(&upstream);
    let folder = Folder::new();
    let builder = || Larder::mirroring(&upstream).always_revalidate().store_at(&folder);
    let archives = provider_names().into_iter().flat_map(|name| PLATFORMS.map(|platform| (name.clone(), platform)));
    let hold_archive = |(name, platform): &(String, &str)| {
        upstream.hold_after(Target::Archive.with_path_part(&format!("-{name}_1.2.0_{platform}")), HALF_BYTES)
    };
    let gates: BTreeMap<_, _> = archives.map(|archive| (archive.clone(), hold_archive(&archive))).collect();
    let is_of =
        |item: &str, (name, platform): &(String, &str)| item.contains(&format!("/{name}@")) && item.contains(platform);
    let larder = Process::start(&builder(), folder.path());
    let fixture = WarmFixture::for_process(&larder, token(&folder));
    let path = fixture.start_lock_file_job(&lock, BOTH_PLATFORMS).await;
    let half_fetched = |job: &JobReport| {
        let is_half_fetched = |item: &&JobItemReport| item.state == "fetching" && item.bytes == HALF_BYTES as u64;
        let archive = |item: &JobItemReport| format!("{} {}", item.name(), item.package.platform.as_deref().unwrap());
        job.items.iter().filter(is_half_fetched).map(archive).collect::<Vec<_>>()
    };
    // The archives of the first turn arrive completely, those of the second stop in the middle.
    let first_turn = fixture.wait_for_job(&path, |job| half_fetched(job).len() == ARCHIVES_AT_A_TIME).await;
    let (opened, closed): (Vec<_>, Vec<_>) =
        gates.iter().partition(|(archive, _)| half_fetched(&first_turn).iter().any(|item| is_of(item, archive)));
    opened.iter().for_each(|(_, gate)| gate.open());
    let fetched_count = |job: &JobReport| job.states().iter().filter(|state| **state == "fetched").count();
    // An archive behind an open gate is half fetched, too, for a moment: only those behind a closed one stay so.
    let stays_half_fetched = |item: &String| closed.iter().any(|(archive, _)| is_of(item, archive));
    let second_turn = fixture
        .wait_for_job(&path, |job| {
            let held = half_fetched(job).into_iter().filter(stays_half_fetched).count();
            let ended_or_waiting = job.states().iter().filter(|state| ["waiting", "fetched"].contains(state)).count();
            // Nothing else happens when larder is killed.
            held == ARCHIVES_AT_A_TIME && held + ended_or_waiting == job.items.len() && fetched_count(job) >= held
        })
        .await;
    larder.kill();
    let stored_count = folder.blobs().len();
    assert_eq!(stored_count, fetched_count(&second_turn));
    let requests_before_kill = archive_requests(&upstream).len();
    assert_eq!(requests_before_kill, stored_count + ARCHIVES_AT_A_TIME);
    gates.values().for_each(|gate| gate.open());

    let larder = Process::start(&builder(), folder.path());
    let fixture = WarmFixture::for_process(&larder, token(&folder));
    let job = fixture.finished_job(&path).await;
    assert_eq!((&*job.state, job.items.len()), ("done", 16), "{job}");
    assert_eq!(job.states().iter().filter(|state| **state == "held").count(), stored_count, "{job}");
    assert_eq!((folder.blobs().len(), folder.partial_downloads().len()), (16, 0));

    let requests = archive_requests(&upstream);
    assert_eq!(requests.len() - requests_before_kill, 16 - stored_count, "a stored archive was fetched again");
    let resumed = requests[requests_before_kill..]
        .iter()
        .filter(|request| request.header("range") == Some(&format!("bytes={HALF_BYTES}-")));
    assert_eq!(resumed.count(), ARCHIVES_AT_A_TIME);
    for name in provider_names() {
        for platform in PLATFORMS {
            let file = format!(
                "/releases/acme/terraform-provider-{name}/1.2.0/terraform-provider-{name}_1.2.0_{platform}.zip"
            );
            let size = upstream.archive_bytes("acme", &name, "1.2.0", platform).len() as u64;
            // The upstream sent more bytes than arrived before the kill, but never the whole archive twice.
            assert!(
                (size..2 * size).contains(&bytes_sent_of(&requests, &file)),
                "{file}: {} of {size}",
                bytes_sent_of(&requests, &file)
            );
        }
    }

    upstream.stop().await;
    let Some(client) = Terraform::find() else { return };
    let workspace = workspace_requiring_all(&client, &lock);
    workspace.cli_config(&host_override(HOST, &format!("{}/registry/{HOST}/v1/providers/", larder.base()), NO_MODULES));
    workspace.init().await.expect_success();
    workspace.remove_installed();
    workspace.run(&["providers", "lock", "-platform=linux_amd64", "-platform=darwin_arm64"]).await.expect_success();
}

/// The warm-up chooses the same version as the client.
#[tokio::test]
async fn the_client_chooses_the_version_that_was_warmed() {
    let Some(client) = Terraform::find() else { return };
    let mut upstream = FakeUpstream::start().await;
    for version in
        ["0.9.0", "1.0.0", "1.0.1", "1.2.0", "1.2.3", "1.3.0-beta.1", "1.3.0", "2.0.0-rc.1", "2.0.0", "2.1.0-rc.1"]
    {
        upstream.publish(Provider::new("acme", "null").version(version).size(100));
    }
    let larder = Larder::mirroring(&upstream).start().await;
    let fixture = WarmFixture::for_larder(&larder);
    let cli_config = host_override(HOST, &larder.providers_url(HOST), NO_MODULES);
    let constraints = [
        "1.0",
        "= 1.2.0",
        "~> 1",
        "~> 1.0",
        "~> 1.0.0",
        "~> 1.2.0-beta.1",
        "~> 0.9",
        ">= 1.0, < 1.3",
        "> 1.0.0, != 2.0.0",
        "< 2.0.0",
        "<= 1.2.3",
        ">= 2.0.0-rc.1",
        "1.3.0-beta.1",
        "2.1.0-rc.1, > 1.0.0",
    ];
    let mut chosen = Vec::new();
    for constraint in constraints {
        let order = json!({ "what": [format!("acme/null@{constraint}")], "platforms": ["linux_amd64"] });
        let job = fixture.warm(&order).await;
        assert_eq!(job.state, "done", "{constraint}: {job}");
        chosen.push(job.items[0].package.version.clone().unwrap());
    }
    upstream.stop().await;
    for (constraint, version) in constraints.iter().zip(chosen) {
        let mut workspace = client.workspace();
        workspace.require("acme/null", constraint).cli_config(&cli_config);
        workspace.init().await.expect_success();
        let lock = workspace.lock_file();
        assert!(lock.contains(&format!("version     = \"{version}\"")), "{constraint}: {version} was warmed: {lock}");
    }
}

/// A lock file can be warmed with `curl` alone.
#[tokio::test]
async fn curl_warms_a_lock_file() {
    let Some(curl) = find("curl") else { return };
    let upstream = upstream_with_eight_providers().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let file = larder.folder.path().join(".terraform.lock.hcl");
    std::fs::write(&file, lock_file(&upstream)).unwrap();
    let curl = |arguments: &[&str]| {
        let mut command = Command::new(&curl);
        // Ignores the curl configuration of this machine.
        command
            .args(["-q", "--noproxy", "*", "-sS", "-f", "-H", &format!("Authorization: Bearer {}", larder.token())])
            .args(arguments);
        run(command)
    };
    let url = format!("{}/admin/v1/warm?{BOTH_PLATFORMS}", larder.admin());
    let body = format!("@{}", file.display());
    let output = curl(&["-H", "Content-Type: text/plain", "--data-binary", &body, "-i", &url]).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.out.starts_with("HTTP/1.1 202"), "{output:?}");
    let location = output.out.lines().find_map(|line| line.strip_prefix("location: ")).unwrap().to_owned();
    let address = format!("{}{location}", larder.admin());
    let done = eventually("the job ends", async || {
        let output = curl(&[&address]).await;
        Some(JobReport::parse(serde_json::from_str(&output.out).unwrap())).filter(|job| job.state != "running")
    });
    let done = done.await;
    assert_eq!((&*done.state, done.states()), ("done", vec!["fetched"; 16]), "{done}");
}

/// A job must not outlive the shutdown; it continues after the next start and resumes its partial files.
#[tokio::test]
async fn sigterm_ends_a_warm_up_at_once_and_the_next_start_resumes_it() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(3_000_000));
    let folder = Folder::new();
    let builder = || Larder::mirroring(&upstream).store_at(&folder);
    let gate = upstream.hold_after(Target::Archive, 1_000_000);
    let larder = Process::start(&builder(), folder.path());
    let order = json!({ "what": ["acme/null"], "platforms": ["linux_amd64"] });
    let fixture = WarmFixture::for_process(&larder, token(&folder));
    let path = fixture.start_job(&order).await;
    fixture.wait_for_job(&path, |job| job.items[0].bytes == 1_000_000).await;
    larder.terminate_promptly().await;
    gate.open();
    upstream.forget_requests();

    let larder = Process::start(&builder(), folder.path());
    let job = WarmFixture::for_process(&larder, token(&folder)).finished_job(&path).await;
    assert_eq!(items(&job), ["null@1.2.0 linux_amd64 fetched"]);
    assert_eq!(archive_requests(&upstream)[0].header("range"), Some("bytes=1000000-"));
}

/// A verified archive that the client would refuse for its lock file is a failed item.
#[tokio::test]
async fn an_archive_without_a_matching_locked_hash_fails_its_item() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(both_platforms(Provider::new("acme", "null").directory_entries()));
    let larder = Larder::mirroring(&upstream).start().await;
    let fixture = WarmFixture::for_larder(&larder);
    let warm = async |hashes: &[&str]| {
        let hashes: Vec<String> = hashes.iter().map(|hash| (*hash).to_owned()).collect();
        let path = fixture.start_lock_file_job(&lock_file_block("null", &hashes), BOTH_PLATFORMS).await;
        fixture.finished_job(&path).await
    };
    let foreign_hash = format!("zh:{}", "0".repeat(64));
    let job = warm(&[&foreign_hash]).await;
    assert_eq!(job.states(), ["failed"; 2]);
    assert!(job.error(0).contains("none of the 1 hashes in the lock file matches"), "{job}");
    assert!(job.error(0).contains("`larder lock --platform darwin_arm64`"), "{job}");
    assert_eq!(upstream.count_of(Target::Archive), 0, "an archive was fetched");

    // An `h1:` can be compared with the archive only, so the archives are fetched.
    let job = warm(&["h1:bm90aGluZw==", &foreign_hash]).await;
    assert_eq!((job.states(), larder.folder.blobs().len()), (vec!["failed"; 2], 2), "{job}");
    // Hashes of one platform only are locked.
    let listed = larder.get(&format!("/mirror/{HOST}/acme/null/1.2.0.json")).await.expect(200).json();
    let hashes = listed["archives"]["linux_amd64"]["hashes"].as_array().unwrap().clone();
    let h1 = hashes.iter().map(|hash| hash.as_str().unwrap()).find(|hash| hash.starts_with("h1:")).unwrap();
    let job = warm(&[&foreign_hash, h1]).await;
    assert_eq!(items(&job), ["null@1.2.0 darwin_arm64 failed", "null@1.2.0 linux_amd64 held"]);
    // One match is enough, and a lock file without hashes takes the verified archive.
    let locked = hashes.iter().map(|hash| hash.as_str().unwrap()).find(|hash| hash.starts_with("zh:")).unwrap();
    assert_eq!(warm(&[&foreign_hash, locked]).await.states(), ["failed", "held"]);
    assert_eq!(warm(&[]).await.states(), ["held", "held"]);
    // Clients ignore hashes of an unknown kind.
    assert_eq!(warm(&["x9:unheard-of"]).await.states(), ["held", "held"]);
}
