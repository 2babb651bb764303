//! `larder list`: what is stored, by address, over HTTP and on the command line.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::command_setup::{CommandSetup, json as parse};
use crate::support::eventually;
use crate::support::http::{Answer, get};
use crate::support::larder::{HOST, Larder};
use crate::support::null_provider::{edition, install, upstream_with};
use crate::support::published_module::publish_net_module;
use crate::support::reports::seconds;
use crate::support::upstream::{FakeUpstream, Provider};

/// Four versions of acme/null, one of them for two platforms.
async fn upstream_of_many() -> FakeUpstream {
    let upstream = upstream_with(edition(1).platform("linux_amd64").platform("darwin_arm64")).await;
    for version in ["1.9.0", "1.10.0", "2.0.0-rc.1"] {
        upstream.publish(edition(1).version(version));
    }
    upstream.publish(Provider::new("acme", "other"));
    publish_net_module(&upstream);
    upstream
}

/// Every package of `upstream_of_many`, as `ADDRESS VERSION PLATFORM`.
const ALL: [&str; 7] = [
    "acme/net/test 1.0.0 -",
    "acme/null 1.10.0 linux_amd64",
    "acme/null 1.2.0 darwin_arm64",
    "acme/null 1.2.0 linux_amd64",
    "acme/null 1.9.0 linux_amd64",
    "acme/null 2.0.0-rc.1 linux_amd64",
    "acme/other 1.2.0 linux_amd64",
];

/// Stores every package, by the requests of a client.
async fn store_all(get: impl AsyncFn(&str) -> Answer) {
    let download = async |name: &str, version: &str, platform: &str| {
        let (os, arch) = platform.split_once('_').unwrap();
        let path = format!("/registry/{HOST}/v1/providers/acme/{name}/{version}/download/{os}/{arch}");
        let document = get(&path).await.expect(200).json();
        get(document["download_url"].as_str().unwrap()).await.expect(200);
    };
    for version in ["1.2.0", "1.9.0", "1.10.0", "2.0.0-rc.1"] {
        download("null", version, "linux_amd64").await;
    }
    download("null", "1.2.0", "darwin_arm64").await;
    download("other", "1.2.0", "linux_amd64").await;
    get(&format!("/registry/{HOST}/v1/modules/acme/net/test/1.0.0/download")).await.expect(204);
}

/// The packages of a page, as `ADDRESS VERSION PLATFORM` without the host.
fn packages(page: &Value) -> Vec<String> {
    let text = |package: &Value, name: &str| package[name].as_str().unwrap_or("-").to_owned();
    let packages = page["packages"].as_array().unwrap_or_else(|| panic!("{page}")).iter().map(|package| {
        let address = text(package, "address");
        let path = address.strip_prefix(&format!("{HOST}/")).unwrap_or(&address);
        format!("{path} {} {}", text(package, "version"), text(package, "platform"))
    });
    packages.collect()
}

async fn list(larder: &Larder, query: &str) -> Answer {
    get(&format!("{}/admin/v1/list{query}", larder.admin())).await
}

#[tokio::test]
async fn every_stored_package_is_listed_with_its_proof_and_its_last_use() {
    let upstream = upstream_of_many().await;
    let larder = Larder::mirroring(&upstream).allow_private("127.0.0.1").start().await;
    store_all(async |path: &str| larder.get(path).await).await;
    larder.run_command("pin", "acme/null@1.9.0").await;
    let page = list(&larder, "").await.expect(200).json();
    assert_eq!((packages(&page), &page["next"]), (ALL.map(str::to_owned).to_vec(), &Value::Null));
    let by_name = |name: &str| {
        let position = packages(&page).iter().position(|package| package.starts_with(name)).unwrap();
        page["packages"][position].clone()
    };
    let null = by_name("acme/null 1.9.0");
    let bytes = upstream.archive_bytes("acme", "null", "1.9.0", "linux_amd64").len();
    assert_eq!((&null["pinned"], &null["archives"][0]["bytes"]), (&json!(true), &json!(bytes)), "{null}");
    assert_eq!(by_name("acme/null 1.2.0")["pinned"], json!(false));
    let archive = &null["archives"][0];
    assert_eq!((&archive["verified"], archive["key"].as_str().unwrap().len()), (&json!("signature"), 40), "{null}");
    let tree = &by_name("acme/net/test")["archives"][0];
    assert_eq!((&tree["verified"], tree["tree"].as_str().unwrap().len()), (&json!("tree"), 64), "{tree}");

    // A client's request moves the last use, and a list does not.
    let last_use = || async {
        let page = list(&larder, "?address=acme/null@1.2.0").await.expect(200).json();
        seconds(&page["packages"][1]["archives"][0]["last_use"])
    };
    let before = last_use().await;
    larder.clock.advance(Duration::from_secs(7200));
    assert_eq!(last_use().await, before);
    install(&larder).await;
    eventually("the last use is recorded", async || (last_use().await >= before + 7200).then_some(())).await;

    larder.run_command("purge", "acme/null@< 1.10").await;
    let left = list(&larder, "?address=acme/null").await.expect(200).json();
    // A purge leaves what is pinned.
    assert_eq!(
        packages(&left),
        ["acme/null 1.10.0 linux_amd64", "acme/null 1.9.0 linux_amd64", "acme/null 2.0.0-rc.1 linux_amd64"]
    );
}

#[tokio::test]
async fn a_list_shows_the_packages_whose_address_and_version_match() {
    let upstream = upstream_of_many().await;
    let larder = Larder::mirroring(&upstream)
        .allow_private("127.0.0.1")
        .upstream("second.example", &format!("{}/", upstream.origin()), "")
        .start()
        .await;
    store_all(async |path: &str| larder.get(path).await).await;
    store_all(async |path: &str| larder.get(&path.replace(HOST, "second.example")).await).await;
    let second: Vec<String> = ALL.iter().map(|package| format!("second.example/{package}")).collect();
    let [all, second] = [ALL.map(str::to_owned).to_vec(), second];
    for (address, expected) in [
        (HOST, &all[..]),
        ("second.example", &second),
        ("second.example/", &second),
        ("acme", &all),
        ("ACME", &all),
        ("second.example/acme", &second),
        ("acme/null", &all[1..6]),
        ("acme/net", &all[..1]),
        ("Acme/Net/test", &all[..1]),
        ("acme/null@1.2", &all[2..4]),
        ("acme/null@>= 1.3, < 2", &[all[1].clone(), all[4].clone()]),
        ("acme/nul", &[]),
        ("third.example", &[]),
    ] {
        let query: String =
            url::form_urlencoded::Serializer::new("?".to_owned()).append_pair("address", address).finish();
        let page = list(&larder, &query).await.expect(200).json();
        assert_eq!(packages(&page), expected, "{address}");
    }
    for (query, problem) in [
        ("?address=acme@1.0", "is not an address"),
        ("?address=", "is not a module name"),
        ("?limit=0", "limit"),
        ("?page=2", "no option"),
    ] {
        let refused = list(&larder, query).await.expect(400);
        assert!(refused.text().contains(problem), "{query}: {}", refused.text());
    }
}

/// No answer grows with the store: a page has at most the archives that its request names, and names the next page.
#[tokio::test]
async fn the_pages_of_a_list_have_every_package_once() {
    let upstream = upstream_of_many().await;
    let larder = Larder::mirroring(&upstream).allow_private("127.0.0.1").start().await;
    store_all(async |path: &str| larder.get(path).await).await;
    for limit in [1, 2, 3, 7] {
        let (mut listed, mut after, mut pages) = (Vec::new(), String::new(), 0);
        loop {
            let page = list(&larder, &format!("?limit={limit}{after}")).await.expect(200).json();
            assert!(packages(&page).len() <= limit, "{page}");
            listed.extend(packages(&page));
            pages += 1;
            let Some(next) = page["next"].as_str() else { break };
            let mut query = url::form_urlencoded::Serializer::new("&".to_owned());
            after = query.append_pair("after", next).finish();
            // The end of a page may be removed before the next one is read.
            if limit == 1 && next.contains("1.10.0") {
                larder.run_command("purge", "acme/null@1.10.0").await;
            }
        }
        let mut expected = ALL.map(str::to_owned).to_vec();
        expected.retain(|package| limit == 1 || !package.contains("1.10.0"));
        assert_eq!((listed, pages), (expected.clone(), expected.len().div_ceil(limit)), "{limit}");
    }
}

/// The command prints the same with the running larder and without one, for people and as JSON.
#[tokio::test]
async fn the_command_groups_versions_by_address_with_the_newest_first() {
    let upstream = upstream_of_many().await;
    let mut setup = CommandSetup::new(&upstream);
    setup.text = format!("[network]\nallow_private = [\"127.0.0.1\"]\n{}", setup.text);
    let running = setup.serve();
    store_all(async |path: &str| running.get(path).await).await;
    let pinned = setup.stdout_of(&["pin", "acme/null@1.9.0"]).await;
    assert!(pinned.contains("pinned"), "{pinned}");
    let with_larder = setup.stdout_of(&["list"]).await;
    let of_one = setup.stdout_of(&["list", "acme/null"]).await;
    let as_json = parse(&setup.stdout_of(&["list", "--json"]).await);
    running.terminate_promptly().await;
    assert_eq!(setup.stdout_of(&["list"]).await, with_larder);
    assert_eq!(packages(&as_json), ALL);
    assert_eq!(packages(&parse(&setup.stdout_of(&["list", "acme/null@1.2.0", "--json"]).await)), ALL[2..4]);

    let lines: Vec<&str> = with_larder.lines().collect();
    let address_lines: Vec<&str> = lines.iter().copied().filter(|line| line.starts_with("acme/")).collect();
    let addresses: Vec<&str> = address_lines.iter().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(addresses, ["acme/net/test", "acme/null", "acme/other"], "{with_larder}");
    assert!(address_lines[1].contains("4 versions, 5 archives, "), "{with_larder}");
    let versions: Vec<&str> = of_one.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next()).collect();
    assert_eq!(versions, ["2.0.0-rc.1", "1.10.0", "1.9.0", "1.2.0"], "{of_one}");
    let line_of = |version: &str| of_one.lines().find(|line| line.starts_with(&format!("  {version} "))).unwrap();
    assert!(
        line_of("1.2.0").contains("darwin_arm64, linux_amd64") && line_of("1.2.0").contains("signed by "),
        "{of_one}"
    );
    assert!(line_of("1.9.0").ends_with("linux_amd64; pinned"), "{of_one}");
    assert!(lines.last().unwrap().starts_with("3 addresses, 6 versions, 7 archives, "), "{with_larder}");
    let words: BTreeSet<&str> = with_larder.split_whitespace().collect();
    assert!(!words.iter().any(|word| word.contains(HOST)), "the default host is left out: {with_larder}");

    let none = setup.stdout_of(&["list", "acme/never"]).await;
    assert!(none.contains("acme/never") && none.contains("`larder list`"), "{none}");
    let wrong = setup.run(&["list", "a b"]).await;
    assert_eq!((wrong.code, wrong.err.contains("is not")), (Some(1), true), "{wrong:?}");
}
