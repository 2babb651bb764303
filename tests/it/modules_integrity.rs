//! Integrity of modules: the same archive at every larder, trust on first use, and one fetch for all clients.

use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::support::git_module_fixture::{Form, ModuleScene, calls, download_path, fetch, through};
use crate::support::http::{client, get, send};
use crate::support::larder::{Builder, Folder, HOST, Larder};
use crate::support::process::Process;
use crate::support::terraform::Terraform;
use crate::support::upstream::{Target, Telling};
use crate::support::{HANGS_AFTER, eventually, until};

/// One module at this place.
fn form(name: &str, location: String) -> Form {
    Form { name: name.to_owned(), called: "", location, telling: Telling::NoContent, instead_of_direct: None }
}

/// A scene with acme/one at this reference of acme/net.
async fn scene_at(reference: &str) -> Option<ModuleScene> {
    let fixture = ModuleScene::start(None).await?;
    fixture.publish(&form("one", fixture.over_https(&format!("?ref={reference}"))));
    Some(fixture)
}

/// The packed archive depends on the version only.
#[tokio::test]
async fn two_larders_make_the_same_archive_and_so_does_one_over_another_way() {
    let Some(fixture) = scene_at("v1.0.0").await else { return };
    fixture.publish(&form("two", format!("git::{}?ref=v1.0.0", fixture.ssh.url("acme/net"))));
    let (one, another) = (fixture.larder().start().await, fixture.larder().start().await);
    let (place, archive) = fetch(one.base(), "one").await;
    let (other_place, other) = fetch(another.base(), "one").await;
    assert!(place == other_place && archive == other);
    assert!(fetch(another.base(), "two").await.1 == archive);
    let folder = one.stop().await;
    let one = fixture.larder().on(&folder).start().await;
    let (place_again, again) = fetch(one.base(), "one").await;
    assert!(place_again == place && again == archive);
}

/// DESIGN, promise 9: a partial archive left by a kill is never taken for a complete one.
#[tokio::test]
async fn a_kill_in_the_middle_of_packing_changes_nothing_about_the_archive() {
    let Some(fixture) = ModuleScene::start(None).await else { return };
    let large = fixture.repositories.repository("acme/large");
    for number in 0_u32..3 {
        large.bytes(&format!("noise{number}"), &noise(number, 2_000_000));
    }
    large.commit("large");
    large.tag("v1.0.0");
    fixture.publish(&form("large", format!("git::{}/acme/large.git?ref=v1.0.0", fixture.git.origin())));
    let undisturbed = fixture.larder().start().await;
    let (place, archive) = fetch(undisturbed.base(), "large").await;

    let folder = Folder::new();
    let larder = Process::start(&fixture.larder().on(&folder), folder.path());
    let asking = tokio::spawn(send(client().get(format!("{}{}", larder.base(), download_path("large")))));
    eventually("some of the archive is packed", async || {
        let packed = folder.files("staging").into_iter().filter(|file| !file.to_string_lossy().contains("/scratch-"));
        let bytes = packed.filter_map(|file| file.metadata().ok()).map(|file| file.len()).max()?;
        (bytes > 0).then_some(())
    })
    .await;
    larder.kill();
    assert!(asking.await.unwrap().is_err(), "it was packed before it could be killed");
    assert!(folder.blobs().is_empty());
    let larder = Process::start(&fixture.larder().on(&folder), folder.path());
    let (place_again, again) = fetch(larder.base(), "large").await;
    assert!(place_again == place && again == archive);
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

/// Each request asks upstream whether a location is still the same.
fn impatient(fixture: &ModuleScene) -> Builder {
    let more = "fresh = { versions = \"0s\", discovery = \"0s\", download = \"0s\", api = \"0s\", not_found = \"0s\" }";
    // Before the scene's `[[credential]]`, which begins another section.
    fixture.larder_with(more)
}

/// An alarm says that this module waits for `accept`.
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
fn move_the_tag(fixture: &ModuleScene) {
    fixture.net.file("main.tf", "output \"is\" {\n  value = \"moved\"\n}\n").commit("moved");
    fixture.net.tag("moving");
}

/// The stored first-seen tree stays served, and the operator gets an alarm.
#[tokio::test]
async fn a_moved_tag_is_reported_and_the_first_tree_stays_served() {
    let Some(fixture) = ModuleScene::start(None).await else { return };
    fixture.net.tag("moving");
    fixture.publish(&form("one", fixture.over_https("?ref=moving")));
    let folder = Folder::new();
    let larder = impatient(&fixture).on(&folder).start().await;
    let (place, archive) = fetch(larder.base(), "one").await;
    assert!(!is_reported(&larder).await);
    move_the_tag(&fixture);
    until("the moved tag is reported", async || {
        let (now, bytes) = fetch(larder.base(), "one").await;
        assert!(now == place && bytes == archive);
        is_reported(&larder).await
    })
    .await;
    assert!(larder.metric("larder_alarms_total").await >= 1.0);
    let (now, bytes) = fetch(larder.base(), "one").await;
    assert!(now == place && bytes == archive);

    // Also after a restart, before any request.
    larder.stop().await;
    let larder = impatient(&fixture).on(&folder).start().await;
    assert!(is_reported(&larder).await);
    assert!(fetch(larder.base(), "one").await == (place, archive));
    assert!(is_reported(&larder).await);
}

/// Without the archive there is nothing to serve, also after a restart; the operator decides.
#[tokio::test]
async fn a_moved_tag_is_refused_when_the_first_archive_is_gone_until_it_is_accepted() {
    let Some(fixture) = ModuleScene::start(None).await else { return };
    fixture.net.tag("moving");
    fixture.publish(&form("one", fixture.over_https("?ref=moving")));
    let folder = Folder::new();
    let larder = Process::start(&impatient(&fixture).on(&folder), folder.path());
    let (place, archive) = fetch(larder.base(), "one").await;
    drop(larder);
    move_the_tag(&fixture);
    let larder = impatient(&fixture).on(&folder).start().await;
    larder.tell("purge", "acme/one/test@1.0.0").await;
    assert!(folder.blobs().is_empty(), "{:?}", folder.blobs());
    larder.stop().await;

    let larder = Process::start(&impatient(&fixture).on(&folder), folder.path());
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
    larder.get(&place.path).await.expect(502);
    drop(larder);

    let larder = impatient(&fixture).on(&folder).start().await;
    larder.get(&download_path("one")).await.expect(502);
    assert!(is_reported(&larder).await);
    let done = larder.tell("accept", "acme/one/test@1.0.0").await;
    let item = &done.items[0];
    assert_eq!((done.ok, item.outcome.as_deref()), (true, Some("accepted_tree")), "{done}");
    let mut trees = [&item.tree_before, &item.tree].map(|tree| tree.clone().unwrap());
    trees.sort();
    assert_eq!(trees.as_slice(), digests(&refused), "{done}");
    let (now, moved) = fetch(larder.base(), "one").await;
    assert!(now.path != place.path && moved != archive);
    assert!(!is_reported(&larder).await);
}

/// The checksum is the client's to enforce: nothing between larder and it can change a module.
#[tokio::test]
async fn an_archive_that_is_tampered_with_on_its_way_is_refused_by_the_client() {
    let Some(terraform) = Terraform::find() else { return };
    let Some(fixture) = scene_at("v1.0.0").await else { return };
    let larder = fixture.larder().start().await;
    fetch(larder.base(), "one").await;
    for tampers in [false, true] {
        let between = between(larder.base().to_owned(), tampers).await;
        let mut workspace = terraform.workspace();
        workspace.file("main.tf", &calls(&[form("one", String::new())])).cli_config(&through(&between));
        let output = workspace.init().await;
        match tampers {
            false => drop(output.expect_success()),
            true => assert!(output.expect_failure().text.contains("Checksums did not match")),
        }
    }
}

/// A place between a client and larder; where it tampers, one bit in the middle of each archive is another.
async fn between(larder: String, tampers: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let larder: Arc<str> = larder.into();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(pass_on(stream, Arc::clone(&larder), tampers));
        }
    });
    format!("http://{address}")
}

async fn pass_on(mut stream: TcpStream, larder: Arc<str>, tampers: bool) {
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
    // A client that has gone needs no answer.
    let _ = stream.write_all(&[output.as_bytes(), &answer.body].concat()).await;
    let _ = stream.shutdown().await;
}

/// Done when 5 and DESIGN, promise 4.
#[tokio::test]
async fn fifty_clients_of_a_cold_module_cause_one_fetch_of_each_repository() {
    let Some(fixture) = scene_at("v1.0.0").await else { return };
    // Fifty at one time take a slow machine longer than a client waits.
    let larder = fixture.larder().answer_within(std::time::Duration::from_secs(120)).start().await;
    let stored = fixture.git.hold_silent(Target::Git);
    let clients: Vec<_> = (0..50)
        .map(|_| {
            let base = larder.base().to_owned();
            tokio::spawn(async move { fetch(&base, "one").await })
        })
        .collect();
    let requests = fixture.git.wait_for(Target::Git, 1);
    tokio::time::timeout(HANGS_AFTER, requests).await.unwrap();
    stored.open();
    let mut archives = Vec::new();
    for client in clients {
        archives.push(client.await.unwrap());
    }
    assert!(archives.iter().all(|got| *got == archives[0]));
    let fetches = ["acme/net", "acme/dep", "acme/deep"].map(|repository| fixture.git.git_fetches(repository));
    assert_eq!(fetches, [1, 1, 1]);
    assert_eq!(fixture.registry.count_of(Target::Location), 1);
}
