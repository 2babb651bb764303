//! Promise 11: the number of fills that one client started and abandoned is limited.

use futures_util::future::join_all;

use crate::support::git_module_fixture::{download_module, download_path};
use crate::support::http::{Answer, client, send};
use crate::support::larder::{HOST, Larder};
use crate::support::module_fixture::{ModuleFixture, noise, tar_gz};
use crate::support::until;
use crate::support::upstream::{FakeUpstream, Provider, Target};

/// The limit on abandoned fills, for one client address.
const MAX_ABANDONED: usize = 16;
const LARGE_BYTES: usize = 2_000_000;

/// Sends a GET as the client of this address, behind a trusted proxy.
async fn get_as(larder: &Larder, address: &str, path: &str) -> Answer {
    larder.get_with(path, &[("x-forwarded-for", address)]).await
}

/// Sends a GET as this client and disconnects as soon as the response has begun.
async fn get_and_disconnect(larder: &Larder, address: &str, path: &str) {
    let request = client().get(format!("{}{path}", larder.base())).header("x-forwarded-for", address);
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 200, "{path}");
}

fn assert_refused(answer: Answer, subject: &str) {
    let text = answer.expect(503).text();
    assert!(text.contains(subject), "{text}");
    let reason = "16 downloads that this client address started and no client waits for are still running";
    assert!(text.contains(reason) && text.contains("ask again when they have ended"), "{text}");
}

/// Waits until larder counts this many fills whose clients have all disconnected.
async fn wait_for_abandoned_count(larder: &Larder, fills: usize) {
    until("larder counts the abandoned downloads", async || {
        larder.metric("larder_fills_unattended").await == fills as f64
    })
    .await;
}

/// A larder with the documents of these providers, and with 127.0.0.1 as a trusted proxy.
async fn larder_with_documents(upstream: &FakeUpstream, names: &[String]) -> (Larder, Vec<String>) {
    let larder = Larder::mirroring(upstream).server("trusted_proxies = [\"127.0.0.1\"]").start().await;
    let mut paths = Vec::new();
    for name in names {
        paths.push(larder.archive_path(name, "1.2.0").await);
    }
    (larder, paths)
}

async fn upstream_with_providers(count: usize) -> (FakeUpstream, Vec<String>) {
    let upstream = FakeUpstream::start().await;
    let names: Vec<String> = (0..count).map(|number| format!("p{number}")).collect();
    for name in &names {
        upstream.publish(Provider::new("acme", name).size(LARGE_BYTES));
    }
    (upstream, names)
}

/// Promises 4 and 11: clients that disconnect cancel nothing and can start a limited number of fills. Clients that join
/// a fill, other clients, and the same client after the fills are served as usual.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_client_that_abandons_many_downloads_starts_no_more_until_they_end() {
    let (upstream, names) = upstream_with_providers(MAX_ABANDONED + 2).await;
    let (larder, paths) = larder_with_documents(&upstream, &names).await;
    let gate = upstream.hold_after(Target::Archive, LARGE_BYTES / 2);
    for path in &paths[..MAX_ABANDONED] {
        get_and_disconnect(&larder, "192.0.2.1", path).await;
    }
    let refused_one = &paths[MAX_ABANDONED];
    wait_for_abandoned_count(&larder, MAX_ABANDONED).await;
    assert_refused(
        get_as(&larder, "192.0.2.1", refused_one).await,
        "the archive of registry.terraform.io/acme/p16 1.2.0",
    );
    assert_eq!(upstream.count_of(Target::Archive.with_path_part("p16")), 0);
    assert_eq!(larder.metric("larder_fills_under_way").await, MAX_ABANDONED as f64);

    let (other, joined, ()) = tokio::join!(
        get_as(&larder, "192.0.2.2", &paths[MAX_ABANDONED + 1]),
        get_as(&larder, "192.0.2.1", &paths[0]),
        async {
            upstream.wait_for(Target::Archive, MAX_ABANDONED + 1).await;
            gate.open();
        }
    );
    assert!(
        other.expect(200).body == upstream.archive_bytes("acme", &names[MAX_ABANDONED + 1], "1.2.0", "linux_amd64")
    );
    assert!(joined.expect(200).body == upstream.archive_bytes("acme", &names[0], "1.2.0", "linux_amd64"));
    wait_for_abandoned_count(&larder, 0).await;
    assert!(
        get_as(&larder, "192.0.2.1", refused_one).await.expect(200).body
            == upstream.archive_bytes("acme", &names[MAX_ABANDONED], "1.2.0", "linux_amd64")
    );
    assert_eq!(larder.folder.blobs().len(), MAX_ABANDONED + 2, "an abandoned download was not stored");
    assert_eq!(upstream.count_of(Target::Archive), MAX_ABANDONED + 2);
}

/// Promise 11: of many downloads that a client starts and then abandons, sixteen continue. The next request resumes the
/// partial files of the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_abandoned_downloads_sixteen_continue() {
    let (upstream, names) = upstream_with_providers(3 * MAX_ABANDONED).await;
    let (larder, paths) = larder_with_documents(&upstream, &names).await;
    let gate = upstream.hold_after(Target::Archive, LARGE_BYTES / 2);
    let client = client();
    let requests = paths.iter().map(|path| client.get(format!("{}{path}", larder.base())).send());
    let responses: Vec<_> = join_all(requests).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(larder.metric("larder_fills_under_way").await, (3 * MAX_ABANDONED) as f64);
    drop(responses);
    until("the downloads beyond the limit are cancelled", async || {
        larder.metric("larder_fills_under_way").await == MAX_ABANDONED as f64
    })
    .await;
    wait_for_abandoned_count(&larder, MAX_ABANDONED).await;
    gate.open();
    wait_for_abandoned_count(&larder, 0).await;
    assert_eq!(larder.folder.blobs().len(), MAX_ABANDONED, "a continued download was not stored");
    for (name, path) in names.iter().zip(&paths) {
        let zip = upstream.archive_bytes("acme", name, "1.2.0", "linux_amd64");
        assert!(larder.get(path).await.expect(200).body == zip, "{name}");
    }
    assert_eq!(upstream.count_of(Target::Archive), 5 * MAX_ABANDONED, "each cancelled download is requested once more");
}

/// Promise 11: a HEAD request does not wait for the body, so its download counts as abandoned; a GET joins it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_download_started_by_head_counts_as_unattended() {
    let (upstream, names) = upstream_with_providers(MAX_ABANDONED + 1).await;
    let (larder, paths) = larder_with_documents(&upstream, &names).await;
    let gate = upstream.hold_after(Target::Archive, LARGE_BYTES / 2);
    for path in &paths[..MAX_ABANDONED] {
        larder.head(path).await.expect(200);
    }
    wait_for_abandoned_count(&larder, MAX_ABANDONED).await;
    assert_refused(larder.get(&paths[MAX_ABANDONED]).await, "acme/p16");
    let (joined, ()) = tokio::join!(larder.get(&paths[0]), async {
        wait_for_abandoned_count(&larder, MAX_ABANDONED - 1).await;
        larder.head(&paths[MAX_ABANDONED]).await.expect(200);
        gate.open();
    });
    joined.expect(200);
    wait_for_abandoned_count(&larder, 0).await;
}

/// Promise 11: a client that stays is not limited, however many archives it waits for.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn downloads_of_a_waiting_client_are_not_limited() {
    let (upstream, names) = upstream_with_providers(2 * MAX_ABANDONED).await;
    let (larder, paths) = larder_with_documents(&upstream, &names).await;
    let gate = upstream.hold_after(Target::Archive, LARGE_BYTES / 2);
    let client = client();
    let waiting: Vec<_> =
        paths.iter().map(|path| tokio::spawn(send(client.get(format!("{}{path}", larder.base()))))).collect();
    upstream.wait_for(Target::Archive, 2 * MAX_ABANDONED).await;
    gate.open();
    for (name, answer) in names.iter().zip(join_all(waiting).await) {
        let zip = upstream.archive_bytes("acme", name, "1.2.0", "linux_amd64");
        assert!(answer.unwrap().unwrap().expect(200).body == zip, "{name}");
    }
}

/// Promise 11: the limit counts the downloads of modules and providers together, and refuses also a module document
/// that would start one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_client_that_abandons_many_module_downloads_starts_no_more_until_they_end() {
    let fixture = ModuleFixture::start().await;
    let names: Vec<String> = (0..=MAX_ABANDONED).map(|number| format!("m{number}")).collect();
    for (seed, name) in (1..).zip(&names) {
        fixture.publish_archive(name, &tar_gz(&[("noise", &noise(seed, 20_000))]));
    }
    fixture.registry.publish(Provider::new("acme", "null").size(LARGE_BYTES));
    let larder = fixture.larder().server("trusted_proxies = [\"127.0.0.1\"]").start().await;
    let archive = larder.archive_path("null", "1.2.0").await;
    let gate = fixture.archives.hold_after(Target::ModuleArchive, 10_000);
    let archive_of = |name: &str| format!("/archive/{HOST}/modules/acme/{name}/test/1.0.0/module.tar.gz");
    for (number, name) in names[..MAX_ABANDONED].iter().enumerate() {
        let path = if number % 2 == 0 { download_path(name) } else { archive_of(name) };
        let request = client().get(format!("{}{path}", larder.base())).header("x-forwarded-for", "2001:db8::1");
        let pending_request = tokio::spawn(send(request));
        until("the download is started", async || larder.metric("larder_fills_under_way").await == (number + 1) as f64)
            .await;
        pending_request.abort();
        assert!(pending_request.await.is_err());
    }
    let refused_one = &names[MAX_ABANDONED];
    wait_for_abandoned_count(&larder, MAX_ABANDONED).await;
    // A client with another address of the same network.
    let same_network = "2001:db8::2:3";
    assert_refused(
        get_as(&larder, same_network, &archive_of(refused_one)).await,
        "the archive of registry.terraform.io/acme/m16/test",
    );
    assert_refused(
        get_as(&larder, same_network, &download_path(refused_one)).await,
        "the archive of registry.terraform.io/acme/m16/test",
    );
    assert_refused(get_as(&larder, same_network, &archive).await, "acme/null");
    assert_eq!(fixture.archives.count_of(Target::ModuleArchive.with_path_part(refused_one)), 0);
    get_as(&larder, "2001:db8:0:1::1", &archive).await.expect(200);
    gate.open();
    wait_for_abandoned_count(&larder, 0).await;
    get_as(&larder, same_network, &download_path(refused_one)).await.expect(204);
    download_module(larder.base(), refused_one).await;
    assert_eq!(larder.folder.blobs().len(), MAX_ABANDONED + 2);
}
