//! Bundles: packages warmed on one side of an air gap install on the other, and only verified ones are imported.

use http::Method;
use serde_json::{Value, json};

use crate::support::bundle_commands::{larder_in, write_beside};
use crate::support::bundle_transfer::{BundleKey, Sealed, bundle, bundle_of, contents, outcomes, sealed, warmed};
use crate::support::estate_fixture::{EstateFixture, PLATFORMS, ROOTS};
use crate::support::git_module_fixture::{Form, ModuleScene, through};
use crate::support::http::{client, get, send};
use crate::support::larder::{Folder, HOST, Larder};
use crate::support::process::{CommandOutput, Process};
use crate::support::terraform::Terraform;
use crate::support::upstream::{FakeUpstream, Provider, Telling};

/// The arguments that select every configuration and platform of the estate.
fn estate_arguments() -> Vec<String> {
    let platforms = PLATFORMS.map(|platform| format!("--platform={platform}"));
    [vec!["--for=prod".to_owned(), "--for=dev".to_owned()], platforms.to_vec()].concat()
}

async fn create(estate: &EstateFixture, folder: &Folder, out: &str, more: &[&str]) -> CommandOutput {
    let whole = estate_arguments();
    let whole: Vec<&str> = whole.iter().map(String::as_str).collect();
    let output = larder_in(&estate.folder(), folder, &[&["bundle", "create", out], &whole[..], more].concat()).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    output
}

/// Through running larders: the receiving one serves the imported packages without a restart.
#[tokio::test]
async fn a_bundle_applied_to_a_sealed_larder_installs_in_every_folder() {
    let Some(client) = Terraform::find() else { return };
    let (mut estate, key) = (EstateFixture::new(&client).await, BundleKey::new());
    let (here, there) = (Folder::new(), Folder::new());
    let making = Process::start(&key.signs(Larder::mirroring(&estate.upstream).on(&here)), here.path());
    write_beside(&here, &making);
    let output = create(&estate, &here, "gap.tar", &[]).await;
    assert!(output.out.contains(&format!("signed by key {}", key.key.public().id())), "{output:?}");
    drop(making);
    estate.upstream.stop().await;

    let receiving = Process::start(&key.sealed().on(&there), there.path());
    write_beside(&there, &receiving);
    estate.workspace.cli_config(&through(receiving.base()));
    estate.init("prod").await.expect_failure();
    let output = larder_in(&estate.folder(), &there, &["bundle", "apply", "gap.tar"]).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.out.contains("which is trusted here") && !output.out.contains("REFUSED"), "{output:?}");
    for root in ROOTS {
        estate.init(root).await.expect_success();
        estate.lock(root).await.expect_success();
    }
    let lock = std::fs::read_to_string(estate.folder().join("dev/.terraform.lock.hcl")).unwrap();
    assert!(lock.contains("\"h1:") && lock.contains("\"zh:"), "{lock}");
    assert_eq!(there.files("receipts").len(), 1);

    let again = larder_in(&estate.folder(), &there, &["bundle", "apply", "gap.tar", "--json"]).await;
    let receipt: Value = serde_json::from_str(again.out.lines().last().unwrap()).unwrap();
    let receipt = &receipt["receipt"];
    assert_eq!((again.code, receipt["ok"].clone()), (Some(0), json!(true)), "{again:?}");
    let entries = receipt["entries"].as_array().unwrap();
    assert!(entries.iter().all(|told| told["outcome"] == "held"), "{receipt:#}");
}

/// Without running larders: the commands open the stores themselves.
#[tokio::test]
async fn a_bundle_applied_to_an_unserved_store_installs_once_larder_serves_it() {
    let Some(client) = Terraform::find() else { return };
    let (mut estate, key) = (EstateFixture::new(&client).await, BundleKey::new());
    let (here, there) = (Folder::new(), Folder::new());
    let making = key.signs(Larder::mirroring(&estate.upstream)).on(&here).config_text();
    std::fs::write(here.path().join("mirror.toml"), making).unwrap();
    std::fs::write(there.path().join("mirror.toml"), key.sealed().on(&there).config_text()).unwrap();
    create(&estate, &here, "gap.tar", &["--json"]).await;
    estate.upstream.stop().await;
    let output = larder_in(&estate.folder(), &there, &["bundle", "apply", "gap.tar"]).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    let receiving = Process::start(&key.sealed().on(&there), there.path());
    estate.workspace.cli_config(&through(receiving.base()));
    for root in ROOTS {
        estate.init(root).await.expect_success();
    }
}

/// The output of `larder missing` is a valid input of `bundle create`.
#[tokio::test]
async fn the_missing_list_of_a_sealed_larder_makes_the_next_bundle() {
    let Some(client) = Terraform::find() else { return };
    let (estate, key) = (EstateFixture::new(&client).await, BundleKey::new());
    let (here, there) = (Folder::new(), Folder::new());
    let making = Process::start(&key.signs(Larder::mirroring(&estate.upstream).on(&here)), here.path());
    write_beside(&here, &making);
    let receiving = Process::start(&key.sealed().on(&there), there.path());
    write_beside(&there, &receiving);
    let mut workspace = client.workspace();
    workspace.require("acme/text", ">= 1.0.0").cli_config(&through(receiving.base()));
    workspace.init().await.expect_failure();
    let work = estate.folder();
    let missing = larder_in(&work, &there, &["missing", "--json"]).await;
    assert!(missing.code == Some(0) && missing.out.contains("acme/text"), "{missing:?}");
    std::fs::write(work.join("missing.json"), &missing.out).unwrap();

    let output = larder_in(&work, &here, &["bundle", "create", "more.tar", "--for", "missing.json"]).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    let output = larder_in(&work, &there, &["bundle", "apply", "more.tar"]).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    workspace.init().await.expect_success();
    assert!(workspace.lock_file().contains("2.0.0"), "{}", workspace.lock_file());
    let missing = larder_in(&work, &there, &["missing", "--json"]).await;
    assert!(!missing.out.contains("acme/text"), "{missing:?}");
}

/// A delta contains the new packages, the documents that lead to them, and nothing else.
#[tokio::test]
async fn a_delta_is_as_large_as_what_is_new() {
    const OLD: usize = 3_000_000;
    const NEW: usize = 500_000;
    let (upstream, key) = (FakeUpstream::start().await, BundleKey::new());
    for name in ["one", "two", "three"] {
        upstream.publish(Provider::new("acme", name).size(OLD));
    }
    let larder = key.signs(Larder::mirroring(&upstream)).start().await;
    let job = warmed(&larder, &["acme/one", "acme/two", "acme/three"], &["linux_amd64"]).await;
    let whole = bundle_of(&larder, &job, None).await;
    assert!(whole.len() > 3 * OLD);
    let there = Sealed::new(key.sealed());
    assert!(there.apply(whole.clone(), &key.trust()).await.unwrap().ok);
    let inventory = serde_json::to_value(there.mirror.inventory(larder::clock::Timestamp(1)).unwrap()).unwrap();

    upstream.publish(Provider::new("acme", "two").version("1.3.0").size(NEW));
    larder.tell("refresh", "acme/two").await;
    let job = warmed(&larder, &["acme/one", "acme/two", "acme/three"], &["linux_amd64"]).await;
    let delta = bundle_of(&larder, &job, Some(inventory)).await;
    assert!((NEW..NEW + 40_000).contains(&delta.len()), "{} bytes", delta.len());
    let receipt = there.apply(delta, &key.trust()).await.unwrap();
    assert!(receipt.ok, "{receipt:#?}");
    let outcomes: Vec<String> = outcomes(&receipt).into_iter().map(|(subject, _)| subject).collect();
    assert_eq!(
        outcomes,
        [
            format!("the discovery document of {HOST}"),
            format!("the version list of {HOST}/acme/two"),
            format!("{HOST}/acme/two 1.3.0 (linux_amd64)"),
        ]
    );
    let folder = there.close().await;
    let there = key.sealed().on(&folder).start().await;
    let listed = there.versions("two").await.expect(200).text();
    assert!(listed.contains("1.2.0") && listed.contains("1.3.0"), "{listed}");
    let path = there.archive_path("two", "1.3.0").await;
    assert!(there.get(&path).await.expect(200).body == upstream.archive_bytes("acme", "two", "1.3.0", "linux_amd64"));

    // A delta to a complete inventory contains no packages.
    let inventory = get(&format!("{}/admin/v1/inventory", larder.admin())).await.expect(200).json();
    let nothing = bundle_of(&larder, &job, Some(inventory)).await;
    assert!(nothing.len() < 4096, "{}", nothing.len());
}

/// A delta with a new proof set omits the unchanged archive.
#[tokio::test]
async fn a_delta_leaves_out_an_archive_that_is_there_and_brings_its_new_proof() {
    let (upstream, key) = (FakeUpstream::start().await, BundleKey::new());
    upstream.publish(Provider::new("acme", "null").size(900_000));
    let larder = key.signs(Larder::mirroring(&upstream)).start().await;
    let job = warmed(&larder, &["acme/null"], &["linux_amd64"]).await;
    let there = Sealed::new(key.sealed());
    let whole = bundle_of(&larder, &job, None).await;
    assert!(there.apply(whole, &key.trust()).await.unwrap().ok);
    let inventory = there.mirror.inventory(larder::clock::Timestamp(1)).unwrap();
    upstream.publish(Provider::new("acme", "null").size(900_000).unknown_fields());
    larder.tell("refresh", "acme/null").await;
    let job = warmed(&larder, &["acme/null"], &["linux_amd64"]).await;
    let delta = bundle_of(&larder, &job, Some(serde_json::to_value(inventory).unwrap())).await;
    assert!(delta.len() < 60_000, "{}", delta.len());
    let receipt = there.apply(delta.clone(), &key.trust()).await.unwrap();
    assert!(receipt.ok, "{receipt:#?}");
    // A store without the archives of that inventory refuses the delta's entry.
    let receipt = Sealed::new(key.sealed()).apply(delta, &key.trust()).await.unwrap();
    let (subject, reason) = crate::support::bundle_transfer::refusal(&receipt);
    assert_eq!(subject, format!("{HOST}/acme/null 1.2.0 (linux_amd64)"));
    assert!(reason.contains("a delta for an inventory of another store"), "{reason}");
}

/// Equal contents and time give equal bytes, in an ordinary tar.
#[tokio::test]
async fn a_bundle_made_twice_is_the_same_and_opens_as_any_tar() {
    let (upstream, key) = (FakeUpstream::start().await, BundleKey::new());
    let provider = Provider::new("acme", "null").platform("linux_amd64").platform("darwin_arm64");
    upstream.publish(provider);
    upstream.publish(Provider::new("acme", "other"));
    let larder = key.signs(Larder::mirroring(&upstream)).start().await;
    let first = warmed(&larder, &["acme/null", "acme/other"], &["linux_amd64"]).await;
    let second = warmed(&larder, &["acme/other", "acme/null"], &["linux_amd64"]).await;
    let first = bundle_of(&larder, &first, None).await;
    assert!(first == bundle_of(&larder, &second, None).await);
    let mut archive = tar::Archive::new(&first[..]);
    let names: Vec<String> =
        archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string()).collect();
    assert_eq!(names[..2], ["larder-bundle.json", "larder-bundle.sig"]);
    assert!(names[2..].iter().all(|name| name.starts_with("sha256/")));
    let distinct: std::collections::BTreeSet<&String> = names.iter().collect();
    assert_eq!(distinct.len(), names.len());
}

/// The manifest records commit and tree of a git module; the import digests the tree again.
#[tokio::test]
async fn a_module_of_a_repository_is_carried_with_its_commit_and_installs() {
    let Some(client) = Terraform::find() else { return };
    let Some(mut fixture) = ModuleScene::start(None).await else { return };
    let key = BundleKey::new();
    let location = fixture.over_https("?ref=v1.0.0");
    let form =
        Form { name: "net".to_owned(), called: "", location, telling: Telling::NoContent, instead_of_direct: None };
    fixture.publish(&form);
    let larder = key.signs(fixture.larder()).start().await;
    let job = warmed(&larder, &["acme/net/test@1.0.0"], &[]).await;
    let bundle = bundle_of(&larder, &job, None).await;
    let manifest = String::from_utf8_lossy(&bundle[512..8192]).into_owned();
    assert!(manifest.contains(r#""kind":"module","module":"registry.terraform.io/acme/net/test""#), "{manifest}");
    assert!(manifest.contains(r#""commit":""#) && manifest.contains(r#""tree":""#), "{manifest}");
    fixture.stop().await;
    let there = Sealed::new(key.sealed());
    let receipt = there.apply(bundle, &key.trust()).await.unwrap();
    assert!(receipt.ok, "{receipt:#?}");
    let folder = there.close().await;
    let there = key.sealed().on(&folder).start().await;
    let mut workspace = client.workspace();
    workspace.file("main.tf", &crate::support::git_module_fixture::calls(&[form])).cli_config(&through(there.base()));
    workspace.init().await.expect_success();
}

/// A bundle exported from the receiving store is identical to the first one.
#[tokio::test]
async fn applied_packages_can_be_bundled_again() {
    let (upstream, key) = (FakeUpstream::start().await, BundleKey::new());
    upstream.publish(Provider::new("acme", "null"));
    let first = bundle(&upstream, &key, &["acme/null"], &["linux_amd64"]).await;
    let there = Sealed::new(key.sealed());
    assert!(there.apply(first.clone(), &key.trust()).await.unwrap().ok);
    let folder = there.close().await;
    let middle = key.signs(sealed()).on(&folder).start().await;
    let job = warmed(&middle, &["acme/null"], &["linux_amd64"]).await;
    assert!(bundle_of(&middle, &job, None).await == first);
}

#[tokio::test]
async fn the_admin_listener_reports_why_it_makes_no_bundle() {
    let (upstream, key) = (FakeUpstream::start().await, BundleKey::new());
    upstream.publish(Provider::new("acme", "null"));
    let larder = key.signs(Larder::mirroring(&upstream)).start().await;
    let ask = async |method: Method, path: &str, kind: &str, body: String| {
        let request = client().request(method, format!("{}{path}", larder.admin())).bearer_auth(larder.token());
        send(request.header("content-type", kind).body(body)).await.unwrap()
    };
    let (bundle, json) = ("/admin/v1/bundle", "application/json");
    for (body, status, reason) in [
        ("{}", 400, "missing field"),
        (r#"{"job":"0011223344556677"}"#, 404, "no job"),
        (r#"{"job":"x"}"#, 400, "not a job id"),
    ] {
        let answer = ask(Method::POST, bundle, json, body.to_owned()).await.expect(status);
        assert!(answer.text().contains(reason), "{body}: {}", answer.text());
    }
    ask(Method::GET, bundle, json, String::new()).await.expect(405);
    let apply = "/admin/v1/bundle/apply";
    ask(Method::POST, apply, json, String::new()).await.expect(415);
    let tar = "application/x-tar";
    let answer = ask(Method::POST, apply, tar, "x".repeat(2000)).await.expect(400);
    assert!(answer.text().contains("not a larder bundle"), "{}", answer.text());
    let answer = ask(Method::POST, apply, tar, String::new()).await.expect(400);
    assert!(answer.text().contains("truncated"), "{}", answer.text());
    let answer = ask(Method::POST, &format!("{apply}?trusted"), tar, String::new()).await.expect(400);
    assert!(answer.text().contains("?unsigned"), "{}", answer.text());
    let request = client().post(format!("{}{apply}", larder.admin())).header("content-type", tar).body("");
    send(request).await.unwrap().expect(401);
}

#[tokio::test]
async fn an_older_bundle_replaces_nothing_newer() {
    let (upstream, key) = (FakeUpstream::start().await, BundleKey::new());
    upstream.publish(Provider::new("acme", "null"));
    let older = bundle(&upstream, &key, &["acme/null"], &["linux_amd64"]).await;
    upstream.publish(Provider::new("acme", "null").version("1.3.0"));
    let larder = key.signs(Larder::mirroring(&upstream)).start().await;
    // Times have a resolution of one second: only a later second makes the list newer.
    larder.clock.advance(std::time::Duration::from_secs(5));
    let job = warmed(&larder, &["acme/null"], &["linux_amd64"]).await;
    let newer = bundle_of(&larder, &job, None).await;
    let there = Sealed::new(key.sealed());
    assert!(there.apply(newer, &key.trust()).await.unwrap().ok);
    let before = contents(&there.folder);
    let receipt = there.apply(older, &key.trust()).await.unwrap();
    assert!(receipt.ok);
    let after = contents(&there.folder);
    for (name, file) in before {
        if !name.starts_with("seen/") {
            assert!(after[&name] == file, "{name}");
        }
    }
    let lists = format!("documents/{HOST}/providers/acme/null/versions");
    assert!(String::from_utf8_lossy(&after[&lists]).contains("1.3.0"));
}
