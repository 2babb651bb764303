//! Integrity of modules: the same archive at every larder, trust on first use, and one fetch for all clients.

use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::support::git_module_fixture::{
    GitModuleFixture, ModuleCase, ModuleLocation, download_module, download_module_archive, download_path,
    module_calls, override_through,
};
use crate::support::http::{client, get, send};
use crate::support::larder::{Builder, Folder, HOST, Larder};
use crate::support::process::Process;
use crate::support::terraform::Terraform;
use crate::support::upstream::{LocationReply, Target};
use crate::support::{TEST_TIMEOUT, eventually, until};

/// One module at this location.
fn module_case(name: &str, location: String) -> ModuleCase {
    ModuleCase {
        name: name.to_owned(),
        subdir_suffix: "",
        location,
        location_reply: LocationReply::NoContent,
        expected_tag: None,
    }
}

/// The fixture with acme/one at this reference of acme/net.
async fn fixture_at(reference: &str) -> Option<GitModuleFixture> {
    let fixture = GitModuleFixture::start(None).await?;
    fixture.publish(&module_case("one", fixture.git_https_source(&format!("?ref={reference}"))));
    Some(fixture)
}

/// The packed archive depends on the version only.
#[tokio::test]
async fn two_larders_and_two_transports_produce_the_same_archive() {
    let Some(fixture) = fixture_at("v1.0.0").await else { return };
    fixture.publish(&module_case("two", format!("git::{}?ref=v1.0.0", fixture.ssh.url("acme/net"))));
    let (first_larder, second_larder) = (fixture.larder().start().await, fixture.larder().start().await);
    let (location, archive) = download_module(first_larder.base(), "one").await;
    let (other_location, other) = download_module(second_larder.base(), "one").await;
    assert!(location == other_location && archive == other);
    assert!(download_module_archive(second_larder.base(), "two").await == archive);
    let folder = first_larder.stop().await;
    let first_larder = fixture.larder().store_at(&folder).start().await;
    let (location_again, again) = download_module(first_larder.base(), "one").await;
    assert!(location_again == location && again == archive);
}

/// Promise 9: a partial archive left by a kill is never taken for a complete one.
#[tokio::test]
async fn a_kill_in_the_middle_of_packing_changes_nothing_about_the_archive() {
    let Some(fixture) = GitModuleFixture::start(None).await else { return };
    let large = fixture.repositories.repository("acme/large");
    for number in 0_u32..3 {
        large.bytes(&format!("noise{number}"), &noise(number, 2_000_000));
    }
    large.commit("large");
    large.tag("v1.0.0");
    fixture.publish(&module_case("large", format!("git::{}/acme/large.git?ref=v1.0.0", fixture.git.origin())));
    let undisturbed = fixture.larder().start().await;
    let (location, archive) = download_module(undisturbed.base(), "large").await;

    let folder = Folder::new();
    let larder = Process::start(&fixture.larder().store_at(&folder), folder.path());
    let pending_request = tokio::spawn(send(client().get(format!("{}{}", larder.base(), download_path("large")))));
    eventually("a part of the archive is packed", async || {
        let packed = folder.files("staging").into_iter().filter(|file| !file.to_string_lossy().contains("/scratch-"));
        let bytes = packed.filter_map(|file| file.metadata().ok()).map(|file| file.len()).max()?;
        (bytes > 0).then_some(())
    })
    .await;
    larder.kill();
    assert!(folder.blobs().is_empty(), "the archive was complete before the kill");
    // On a slow machine larder has answered already, without the digest; otherwise the kill broke the connection.
    assert!(pending_request.await.unwrap().iter().all(|answer| ModuleLocation::of(answer).sha256.is_none()));
    let larder = Process::start(&fixture.larder().store_at(&folder), folder.path());
    let (location_again, again) = download_module(larder.base(), "large").await;
    assert!(location_again == location && again == archive);
    assert!(folder.files("staging").is_empty(), "{:?}", folder.files("staging"));
}

/// Pseudo-random bytes: the same on any machine, and incompressible.
fn noise(seed: u32, bytes: usize) -> Vec<u8> {
    let mut state = u64::from(seed) + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..bytes).map(|_| next()).collect()
}

/// A larder that revalidates the location of a module at each request.
fn always_revalidating(fixture: &GitModuleFixture) -> Builder {
    let upstream_lines =
        "fresh = { versions = \"0s\", discovery = \"0s\", download = \"0s\", api = \"0s\", not_found = \"0s\" }";
    // Added before the `[[credential]]` of the fixture, which begins another section.
    fixture.larder_with(upstream_lines)
}

/// True if an alarm reports that the module waits for `accept`.
async fn is_reported(larder: &Larder) -> bool {
    let status = get(&format!("{}/admin/v1/status", larder.admin())).await.expect(200).json();
    let alarms = status["alarms"].as_array().unwrap();
    let address = format!("{HOST}/acme/one/test");
    alarms.iter().any(|alarm| {
        (&alarm["address"], &alarm["version"], &alarm["kind"])
            == (&address.as_str().into(), &"1.0.0".into(), &"moved".into())
            && alarm["resolve"] == format!("larder accept {address}@1.0.0")
    })
}

/// Moves the tag `moving` of acme/net to another commit.
fn move_the_tag(fixture: &GitModuleFixture) {
    fixture.net.file("main.tf", "output \"is\" {\n  value = \"moved\"\n}\n").commit("moved");
    fixture.net.tag("moving");
}

/// The stored first-seen tree stays served, and the operator gets an alarm.
#[tokio::test]
async fn a_moved_tag_is_reported_and_the_first_tree_stays_served() {
    let Some(fixture) = GitModuleFixture::start(None).await else { return };
    fixture.net.tag("moving");
    fixture.publish(&module_case("one", fixture.git_https_source("?ref=moving")));
    let folder = Folder::new();
    let larder = always_revalidating(&fixture).store_at(&folder).start().await;
    let (location, archive) = download_module(larder.base(), "one").await;
    assert!(!is_reported(&larder).await);
    move_the_tag(&fixture);
    until("the moved tag is reported", async || {
        let (current_location, bytes) = download_module(larder.base(), "one").await;
        assert!(current_location == location && bytes == archive);
        is_reported(&larder).await
    })
    .await;
    until("the alarm is counted", async || larder.metric("larder_alarms_total").await >= 1.0).await;
    let (current_location, bytes) = download_module(larder.base(), "one").await;
    assert!(current_location == location && bytes == archive);

    // The alarm is also reported after a restart, before any request.
    larder.stop().await;
    let larder = always_revalidating(&fixture).store_at(&folder).start().await;
    assert!(is_reported(&larder).await);
    assert!(download_module(larder.base(), "one").await == (location, archive));
    assert!(is_reported(&larder).await);
}

/// Without the archive there is nothing to serve, also after a restart; the operator decides.
#[tokio::test]
async fn a_moved_tag_is_refused_when_the_first_archive_is_gone_until_it_is_accepted() {
    let Some(fixture) = GitModuleFixture::start(None).await else { return };
    fixture.net.tag("moving");
    fixture.publish(&module_case("one", fixture.git_https_source("?ref=moving")));
    let folder = Folder::new();
    let larder = Process::start(&always_revalidating(&fixture).store_at(&folder), folder.path());
    let (location, archive) = download_module(larder.base(), "one").await;
    drop(larder);
    move_the_tag(&fixture);
    let larder = always_revalidating(&fixture).store_at(&folder).start().await;
    larder.run_command("purge", "acme/one/test@1.0.0").await;
    assert!(folder.blobs().is_empty(), "{:?}", folder.blobs());
    larder.stop().await;

    let larder = Process::start(&always_revalidating(&fixture).store_at(&folder), folder.path());
    let refused = larder.get(&download_path("one")).await.expect(502).text();
    let digests = |text: &str| {
        let words = text.split(|c: char| !c.is_ascii_hexdigit());
        let mut digests: Vec<String> = words.filter(|word| word.len() == 64).map(str::to_owned).collect();
        digests.sort();
        digests.dedup();
        digests
    };
    assert_eq!(digests(&refused).len(), 2, "{refused}");
    assert!(refused.contains("larder accept"), "{refused}");
    larder.log().line_with("ALARM").await;
    let metrics = get(&format!("{}/metrics", larder.admin())).await.expect(200).text();
    assert!(metrics.contains("larder_alarms_total{kind=\"moved\"} 1"), "{metrics}");
    larder.get(&location.path).await.expect(502);
    drop(larder);

    let larder = always_revalidating(&fixture).store_at(&folder).start().await;
    larder.get(&download_path("one")).await.expect(502);
    assert!(is_reported(&larder).await);
    let done = larder.run_command("accept", "acme/one/test@1.0.0").await;
    let item = &done.items[0];
    assert_eq!((done.ok, item.outcome.as_deref()), (true, Some("accepted_tree")), "{done}");
    let mut trees = [&item.tree_before, &item.tree].map(|tree| tree.clone().unwrap());
    trees.sort();
    assert_eq!(trees.as_slice(), digests(&refused), "{done}");
    let (current_location, moved) = download_module(larder.base(), "one").await;
    assert!(current_location.path != location.path && moved != archive);
    assert!(!is_reported(&larder).await);
}

/// The client enforces the checksum, so nothing between larder and the client can change a module.
#[tokio::test]
async fn an_archive_that_a_proxy_altered_is_refused_by_the_client() {
    let Some(terraform) = Terraform::find() else { return };
    let Some(fixture) = fixture_at("v1.0.0").await else { return };
    let larder = fixture.larder().start().await;
    download_module(larder.base(), "one").await;
    for tampers in [false, true] {
        let tampering_proxy = tampering_proxy(larder.base().to_owned(), tampers).await;
        let mut workspace = terraform.workspace();
        workspace
            .file("main.tf", &module_calls(&[module_case("one", String::new())]))
            .cli_config(&override_through(&tampering_proxy));
        let output = workspace.init().await;
        match tampers {
            false => drop(output.expect_success()),
            true => assert!(output.expect_failure().text.contains("Checksums did not match")),
        }
    }
}

/// A proxy between a client and larder; with `tampers`, it flips one bit in the middle of each archive.
async fn tampering_proxy(larder: String, tampers: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let larder: Arc<str> = larder.into();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(proxy_request(stream, Arc::clone(&larder), tampers));
        }
    });
    format!("http://{address}")
}

async fn proxy_request(mut stream: TcpStream, larder: Arc<str>, tampers: bool) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let head = String::from_utf8(head).unwrap();
    let [method, path, ..] = head.split(' ').collect::<Vec<_>>()[..] else { return };
    let request = client().request(method.parse().unwrap(), format!("{larder}{path}"));
    let mut answer = send(request).await.unwrap();
    if tampers && path.starts_with("/archive/") && !answer.body.is_empty() {
        let middle = answer.body.len() / 2;
        answer.body[middle] ^= 1;
    }
    let mut output = format!("HTTP/1.1 {} OK\r\nconnection: close\r\n", answer.status);
    for (name, value) in &answer.headers {
        if name != "connection" && name != "transfer-encoding" {
            output.push_str(&format!("{name}: {}\r\n", value.to_str().unwrap()));
        }
    }
    output.push_str("\r\n");
    // The client may be gone.
    let _ = stream.write_all(&[output.as_bytes(), &answer.body].concat()).await;
    let _ = stream.shutdown().await;
}

/// Promise 4: simultaneous clients of an uncached module cause one fetch of each repository.
#[tokio::test]
async fn fifty_clients_of_a_cold_module_cause_one_fetch_of_each_repository() {
    let Some(fixture) = fixture_at("v1.0.0").await else { return };
    // Fifty clients at one time take a slow machine longer than the usual client timeout.
    let larder = fixture.larder().answer_within(std::time::Duration::from_secs(120)).start().await;
    let gate = fixture.git.hold_headers(Target::Git);
    let clients: Vec<_> = (0..50)
        .map(|_| {
            let base = larder.base().to_owned();
            tokio::spawn(async move { download_module(&base, "one").await })
        })
        .collect();
    let requests = fixture.git.wait_for(Target::Git, 1);
    tokio::time::timeout(TEST_TIMEOUT, requests).await.unwrap();
    gate.open();
    let mut archives = Vec::new();
    for client in clients {
        archives.push(client.await.unwrap());
    }
    assert!(archives.iter().all(|got| *got == archives[0]));
    let fetches = ["acme/net", "acme/dep", "acme/deep"].map(|repository| fixture.git.git_fetches(repository));
    assert_eq!(fetches, [1, 1, 1]);
    assert_eq!(fixture.registry.count_of(Target::Location), 1);
}
