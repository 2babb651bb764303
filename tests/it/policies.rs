//! Policies on every route: what a rule does not allow is absent from lists and refused by number, with the rule and its
//! reason, also for what is stored already, by another spelling, offline and from the memory of answers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use larder::address::Hostname;
use larder::digest::Digest;
use larder::protocol::route::{Route, RouteContext};
use serde_json::{Value, json};

use crate::support::http::{Answer, get};
use crate::support::larder::{Builder, Folder, HOST, Larder};
use crate::support::markdown::blocks;
use crate::support::module_fixture::{ModuleFixture, tar_gz};
use crate::support::until;
use crate::support::upstream::{FakeUpstream, ListedItem, Module, Provider, Target};

/// A rule about one version, one about a whole provider, and an allow rule for modules.
const POLICIES: &str = r#"
[[policy]]
match = "acme/null"
versions = "= 1.3.0"
action = "deny"
reason = "1.3.0 loses state"
[[policy]]
match = "acme/evil"
action = "deny"
reason = "a typosquat"
[[policy]]
match = "acme/net/test"
versions = "< 2.0"
reason = "2.x is not reviewed"
[[policy]]
match = "acme/bad/test"
action = "deny"
"#;

const EVIL: &str = "the policy for acme/evil denies it: a typosquat";
const NULL: &str = "the policy for acme/null denies it: 1.3.0 loses state";
const NET: &str = "the policy for acme/net/test does not allow it: 2.x is not reviewed";
const BAD: &str = "the policy for acme/bad/test denies every version; ask the operator of this mirror";

/// A registry with allowed and denied versions of providers and modules, and pages about them.
struct Registry {
    fixture: ModuleFixture,
    folder: Folder,
}

impl Registry {
    async fn start() -> Self {
        let fixture = ModuleFixture::start().await;
        for version in ["1.0.0", "1.2.0", "1.3.0"] {
            fixture.registry.publish(Provider::new("acme", "null").version(version));
        }
        fixture.registry.publish(Provider::new("acme", "evil").version("1.0.0"));
        for (name, versions) in [("net", &["1.0.0", "2.0.0"][..]), ("bad", &["1.0.0"])] {
            for version in versions {
                let text = format!("# {name} {version}\n");
                let url = fixture.file(&format!("{name}-{version}.tar.gz"), &tar_gz(&[("main.tf", text.as_bytes())]));
                fixture.registry.publish_module(Module::new("acme", name, "test").version(version).at(&url));
            }
        }
        fixture.registry.list(
            &[
                ListedItem::new("acme/net/test", &["1.0.0", "2.0.0"]),
                ListedItem::new("acme/bad/test", &["1.0.0"]),
                ListedItem::new("acme/other/test", &["3.0.0"]),
            ],
            &[ListedItem::new("acme/null", &["1.0.0", "1.2.0", "1.3.0"]), ListedItem::new("acme/evil", &["1.0.0"])],
        );
        Self { fixture, folder: Folder::new() }
    }

    fn upstream(&self) -> &FakeUpstream {
        &self.fixture.registry
    }

    /// A larder without policies.
    fn open(&self) -> Builder {
        self.fixture.larder_on(&self.folder)
    }

    fn with_policies(&self) -> Builder {
        self.open().config_lines(POLICIES)
    }
}

/// The kinds of routes. A new one does not compile until it is named here, and fails the table until it has rows.
macro_rules! kinds {
    ($($kind:ident $fields:tt),*) => {
        const KINDS: &[&str] = &[$(stringify!($kind)),*];

        fn kind(route: &Route) -> &'static str {
            match route { $(kinds!(@pattern $kind $fields) => stringify!($kind)),* }
        }
    };
    (@pattern $kind:ident (..)) => { Route::$kind(..) };
    (@pattern $kind:ident ()) => { Route::$kind };
}

kinds!(
    Discovery(..),
    Versions(..),
    ProviderDownload(..),
    MirrorIndex(..),
    MirrorVersion(..),
    ProviderFile(..),
    ProofFile(..),
    ModuleDownload(..),
    ModuleArchive(..),
    ModuleLatest(..),
    Page(..),
    Health(),
    Ready(),
    Home()
);

/// The decision about a request.
#[derive(Debug, Clone)]
enum Decision {
    /// Served, as without policies.
    Same,
    /// Served, with these texts and without those.
    Filtered { with: &'static str, without: &'static str },
    /// Refused with the status for its protocol, and this cause.
    Refused(u16, &'static str),
}

use Decision::{Filtered, Refused, Same};

/// Every route, asked about allowed and denied subjects. The archive paths are those of a larder without policies.
async fn table(open: &Larder) -> Vec<(String, Decision)> {
    let providers = format!("/registry/{HOST}/v1/providers/acme");
    let modules = format!("/registry/{HOST}/v1/modules/acme");
    let mut rows = vec![
        (format!("/registry/{HOST}/.well-known/terraform.json"), Same),
        (format!("{providers}/null/versions"), Filtered { with: "1.2.0", without: "\"1.3.0\"" }),
        (format!("{providers}/evil/versions"), Refused(421, EVIL)),
        (format!("{modules}/net/test/versions"), Filtered { with: "1.0.0", without: "2.0.0" }),
        (format!("{modules}/bad/test/versions"), Refused(421, BAD)),
        (format!("{providers}/null/1.2.0/download/linux/amd64"), Same),
        (format!("{providers}/null/1.3.0/download/linux/amd64"), Refused(421, NULL)),
        (format!("{providers}/evil/1.0.0/download/linux/amd64"), Refused(421, EVIL)),
        (format!("/mirror/{HOST}/acme/null/index.json"), Filtered { with: "1.2.0", without: "1.3.0" }),
        (format!("/mirror/{HOST}/acme/evil/index.json"), Refused(503, EVIL)),
        (format!("/mirror/{HOST}/acme/null/1.2.0.json"), Same),
        (format!("/mirror/{HOST}/acme/null/1.3.0.json"), Refused(503, NULL)),
        (format!("/mirror/{HOST}/acme/evil/1.0.0.json"), Refused(503, EVIL)),
        (format!("{modules}/net/test/1.0.0/download"), Same),
        (format!("{modules}/net/test/2.0.0/download"), Refused(421, NET)),
        (format!("{modules}/bad/test/1.0.0/download"), Refused(421, BAD)),
        (format!("{modules}/net/test/download"), Filtered { with: "/1.0.0/download", without: "/2.0.0/" }),
        (format!("{modules}/bad/test/download"), Refused(421, BAD)),
        // Details: the latest version is that of the newest permitted one.
        (format!("{modules}/net/test"), Filtered { with: "\"version\":\"1.0.0\"", without: "2.0.0" }),
        (format!("{modules}/net/test/1.0.0"), Filtered { with: "\"versions\": [\"1.0.0\"]", without: "2.0.0" }),
        (format!("{modules}/net/test/2.0.0"), Refused(421, NET)),
        (format!("{modules}/bad/test"), Refused(421, BAD)),
        (format!("{providers}/null"), Filtered { with: "\"version\":\"1.2.0\"", without: "1.3.0" }),
        (format!("{providers}/null/1.3.0"), Refused(421, NULL)),
        (format!("{providers}/evil"), Refused(421, EVIL)),
        // Lists and searches.
        (format!("/registry/{HOST}/v1/modules"), Filtered { with: "acme/net/test/1.0.0", without: "acme/bad" }),
        (format!("/registry/{HOST}/v1/modules/search?q=net"), Filtered { with: "net/test/1.0.0", without: "2.0.0" }),
        (format!("{modules}/net"), Filtered { with: "acme/net/test/1.0.0", without: "2.0.0" }),
        (modules.clone(), Filtered { with: "acme/other/test/3.0.0", without: "acme/bad" }),
        (format!("/registry/{HOST}/v1/providers"), Filtered { with: "acme/null/1.2.0", without: "acme/evil" }),
        ("/healthz".to_owned(), Same),
        ("/readyz".to_owned(), Same),
        ("/".to_owned(), Same),
    ];
    for (name, version, decision) in
        [("null", "1.2.0", Same), ("null", "1.3.0", Refused(403, NULL)), ("evil", "1.0.0", Refused(403, EVIL))]
    {
        let document = open.document(name, version).await.expect(200).json();
        for member in ["download_url", "shasums_url", "shasums_signature_url"] {
            rows.push((document[member].as_str().unwrap().to_owned(), decision.clone()));
        }
    }
    for (name, version, decision) in
        [("net", "1.0.0", Same), ("net", "2.0.0", Refused(403, NET)), ("bad", "1.0.0", Refused(403, BAD))]
    {
        let location = open.get(&format!("{modules}/{name}/test/{version}/download")).await.expect(204);
        let path = location.header("x-terraform-get").split('?').next().unwrap().to_owned();
        let without_digest = format!("{}/module.tar.gz", path.rsplitn(3, '/').nth(2).unwrap());
        rows.extend([(path, decision.clone()), (without_digest, decision)]);
    }
    rows
}

fn assert_refused(path: &str, answer: &Answer, status: u16, cause: &str) {
    assert_eq!(answer.status, status, "{path}: {}", answer.text());
    let errors = answer.json()["errors"].as_array().unwrap().clone();
    assert!(errors[0].as_str().unwrap().contains(cause), "{path}: {errors:?}");
}

/// Larder without policies has stored everything that the rules then deny. Every route is asked before and after a reload, and
/// again of a larder that is offline.
#[tokio::test]
async fn every_route_obeys_the_policies_also_for_what_is_stored_and_offline() {
    let registry = Registry::start().await;
    let larder = registry.open().start().await;
    let rows = table(&larder).await;
    let context = RouteContext { upstreams: [Hostname::parse(HOST).unwrap()].into(), default_upstream: None };
    let parse = |path: &str| {
        let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
        kind(&Route::parse(path, query, None, &context).unwrap())
    };
    let asked: BTreeSet<&str> = rows.iter().map(|(path, _)| parse(path)).collect();
    assert_eq!(asked, KINDS.iter().copied().collect(), "each kind of route has rows");
    for (path, _) in &rows {
        larder.get(path).await;
    }
    let mirrored = format!("/mirror/{HOST}/acme/null/1.2.0.json");
    until("the hash of an archive", async || larder.get(&mirrored).await.text().contains("h1:")).await;
    let mut before = BTreeMap::new();
    for (path, _) in &rows {
        let answer = larder.get_with(path, &[("accept", "text/html")]).await;
        assert!(matches!(answer.status, 200 | 204 | 302), "{path}: {} {}", answer.status, answer.text());
        before.insert(path.clone(), (answer.status, answer.body));
    }
    larder.reload(registry.with_policies()).await.unwrap();
    check_rows(&larder, &rows, &before).await;
    larder.stop().await;
    let offline = registry.with_policies().network("offline = true").start().await;
    check_rows(&offline, &rows, &before).await;
}

async fn check_rows(larder: &Larder, rows: &[(String, Decision)], before: &BTreeMap<String, (u16, Vec<u8>)>) {
    for (path, decision) in rows {
        let answer = larder.get_with(path, &[("accept", "text/html")]).await;
        match decision {
            // The page for browsers names the port.
            Same if path == "/" => assert_eq!(answer.status, 200),
            Same => assert!((answer.status, &answer.body) == (before[path].0, &before[path].1), "{path}"),
            Filtered { with, without } => {
                let text = format!(
                    "{} {}",
                    answer.text(),
                    answer.headers.get("location").map_or("", |url| url.to_str().unwrap())
                );
                assert!(matches!(answer.status, 200 | 302), "{path}: {text}");
                assert!(text.contains(with) && !text.contains(without), "{path}: {text}");
            }
            Refused(status, cause) => assert_refused(path, &answer, *status, cause),
        }
    }
}

/// Every route, asked without a token, with a wrong one, with one from a foreign network, and by clients that may use everything or
/// only some addresses; for what is stored, and offline. Probes and the page for browsers are open to all.
#[tokio::test]
async fn every_route_obeys_the_tokens_and_rights_of_clients() {
    const ALL: &str = "the-token-of-the-pipelines";
    const TEAM: &str = "the-token-of-the-net-team";
    const FAR: &str = "the-token-of-somebody-far-away";
    const NOT_THEIRS: &str = "it is not among the addresses that this client may use";
    let registry = Registry::start().await;
    let open = registry.open().start().await;
    let paths: Vec<String> = table(&open).await.into_iter().map(|(path, _)| path).collect();
    for path in &paths {
        open.get(path).await;
    }
    open.stop().await;
    let client = |name: &str, token: &str, more: &str| {
        let digest = Digest::of(token.as_bytes());
        format!("[[client]]\nname = \"{name}\"\ntoken = {{ sha256 = \"{digest}\" }}\n{more}\n")
    };
    let clients = [
        client("all", ALL, ""),
        client("team", TEAM, "allow = [\"acme/null\", \"acme/net/*\", \"acme/other/*\"]"),
        client("far", FAR, "networks = [\"192.0.2.0/24\"]"),
    ]
    .concat();
    let refusal = |path: &str| match path.split('/').nth(1) {
        Some("mirror") => 503,
        Some("archive") => 403,
        _ => 421,
    };
    for offline in ["", "offline = true"] {
        let larder = registry.open().config_lines(&clients).network(offline).start().await;
        for path in &paths {
            let ask = async |token: Option<&str>| {
                let header = token.map(|token| format!("Bearer {token}"));
                let mut headers = vec![("accept", "text/html")];
                headers.extend(header.as_deref().map(|header| ("authorization", header)));
                larder.get_with(path, &headers).await
            };
            let good = ask(Some(ALL)).await;
            assert!(matches!(good.status, 200 | 204 | 302), "{path}: {} {}", good.status, good.text());
            if matches!(path.as_str(), "/healthz" | "/readyz" | "/") {
                for token in [None, Some("wrong-wrong-wrong-wrong"), Some(FAR)] {
                    assert_eq!(ask(token).await.status, 200, "{path}");
                }
                continue;
            }
            for token in [None, Some("wrong-wrong-wrong-wrong")] {
                assert_eq!(ask(token).await.status, 401, "{path}");
            }
            let far = ask(Some(FAR)).await;
            assert_eq!(far.status, refusal(path), "{path}: {}", far.text());
            let of_team = ask(Some(TEAM)).await;
            if path.contains("acme/evil") || path.contains("acme/bad") {
                assert_refused(path, &of_team, refusal(path), NOT_THEIRS);
            } else {
                assert_eq!(of_team.status, good.status, "{path}: {}", of_team.text());
                let text = of_team.text();
                assert!(!text.contains("acme/evil") && !text.contains("acme/bad"), "{path}: {text}");
            }
        }
        larder.stop().await;
    }
}

/// Nothing is asked of upstream for what a rule denies altogether.
#[tokio::test]
async fn upstream_is_not_asked_about_what_is_denied() {
    let registry = Registry::start().await;
    let larder = registry.with_policies().start().await;
    let upstream = registry.upstream();
    larder.versions("evil").await.expect(421);
    larder.document("evil", "1.0.0").await.expect(421);
    larder.document("null", "1.3.0").await.expect(421);
    larder.get(&format!("/mirror/{HOST}/acme/evil/index.json")).await.expect(503);
    larder.get(&format!("/registry/{HOST}/v1/modules/acme/bad/test/versions")).await.expect(421);
    larder.get(&format!("/registry/{HOST}/v1/modules/acme/net/test/2.0.0/download")).await.expect(421);
    assert_eq!(upstream.count_of(Target::Everything), 0, "{:?}", upstream.requests());
    assert!(larder.folder.blobs().is_empty());
}

/// Another spelling of the version, the name or the host, another method and a range lead to the same refusal.
#[tokio::test]
async fn no_other_spelling_or_method_leads_to_a_denied_archive() {
    let registry = Registry::start().await;
    registry.upstream().publish(Provider::new("acme", "null").version("1.3.0+build.7"));
    let larder = registry.open().server(&format!("default_upstream = \"{HOST}\"")).start().await;
    let archive = larder.archive_path("null", "1.3.0").await;
    let build = larder.archive_path("null", "1.3.0+build.7").await;
    let module = larder.get(&format!("/registry/{HOST}/v1/modules/acme/net/test/2.0.0/download")).await.expect(204);
    let module = module.header("x-terraform-get").split('?').next().unwrap().to_owned();
    for path in [&archive, &build, &module] {
        larder.get(path).await.expect(200);
    }
    larder.reload(registry.with_policies().server(&format!("default_upstream = \"{HOST}\""))).await.unwrap();
    let upper = HOST.to_ascii_uppercase();
    let encoded = archive.replace("null", "%6eull");
    for path in [
        archive.clone(),
        build.clone(),
        encoded,
        archive.replace(HOST, &upper),
        archive.replace(HOST, &format!("{HOST}:443")),
        archive.replace("acme/null", "ACME/Null"),
        module.replace("acme/net", "Acme/NET"),
        module.replace("/2.0.0/", "/v2.0.0/"),
    ] {
        let answer = larder.get(&path).await;
        assert_eq!(answer.status, 403, "{path}: {}", answer.text());
        assert_eq!(larder.head(&path).await.status, 403, "{path}");
        let ranged = larder.get_with(&path, &[("range", "bytes=0-9"), ("if-none-match", "*")]).await;
        assert_eq!(ranged.status, 403, "{path}: {}", ranged.text());
    }
    for path in [
        format!("/registry/{upper}/v1/providers/acme/null/1.3.0/download/linux/amd64"),
        format!("/registry/{HOST}/v1/providers/ACME/NULL/1.3.0/download/linux/amd64"),
        format!("/registry/{HOST}/v1/providers/acme/null/1.3.0%2Bbuild.7/download/linux/amd64"),
        format!("/registry/{HOST}/v1/providers/acme/null/1.3/download/linux/amd64"),
        format!("/registry/{HOST}/v1/modules/acme/net/test/v2.0.0/download"),
        format!("/registry/{HOST}/v1/modules/acme/net/test/2.0.0+x/download"),
        format!("/registry/{HOST}/v1/modules/ACME/Net/test/2/download"),
        format!("/registry/{HOST}/v1/modules/acme/net/test/3.0.0-rc.1/download"),
        // Tools that skip discovery, and a client that takes the name of the registry for larder.
        "/v1/providers/acme/null/1.3.0/download/linux/amd64".to_owned(),
        "/v1/providers/acme/evil/versions".to_owned(),
        "/v1/modules/acme/bad/test/1.0.0/download".to_owned(),
    ] {
        let answer = larder.get(&path).await;
        assert_eq!(answer.status, 421, "{path}: {}", answer.text());
        assert!(answer.text().contains("the policy for"), "{path}: {}", answer.text());
    }
    let take_over = larder.get_with("/v1/providers/acme/null/versions", &[("host", HOST)]).await.expect(200);
    assert!(!take_over.text().contains("\"version\":\"1.3.0"), "{}", take_over.text());
}

/// The memory of answers ends with a reload: a rule holds at once, and its removal too.
#[tokio::test]
async fn a_reload_in_between_changes_what_is_served() {
    let registry = Registry::start().await;
    let larder = registry.open().start().await;
    let archive = larder.archive_path("null", "1.3.0").await;
    for _ in 0..2 {
        assert!(larder.versions("null").await.expect(200).text().contains("\"1.3.0\""));
        larder.get(&archive).await.expect(200);
    }
    larder.reload(registry.with_policies()).await.unwrap();
    assert!(!larder.versions("null").await.expect(200).text().contains("\"1.3.0\""));
    assert_refused(&archive, &larder.get(&archive).await, 403, NULL);
    larder.reload(registry.open()).await.unwrap();
    assert!(larder.versions("null").await.expect(200).text().contains("\"1.3.0\""));
    larder.get(&archive).await.expect(200);
}

/// An upstream that is down, and lists that are stale, change nothing about a rule.
#[tokio::test]
async fn stale_copies_obey_the_policies() {
    let mut registry = Registry::start().await;
    let larder = registry.with_policies().start().await;
    larder.versions("null").await.expect(200);
    larder.document("null", "1.2.0").await.expect(200);
    registry.fixture.registry.stop().await;
    larder.clock.advance(std::time::Duration::from_secs(7 * 24 * 3600));
    let stale = larder.versions("null").await.expect(200);
    assert!(stale.has_cache_status("larder; hit; detail=stale"), "{:?}", stale.headers);
    assert!(stale.text().contains("1.2.0") && !stale.text().contains("\"version\":\"1.3.0"), "{}", stale.text());
    assert_refused("document", &larder.document("null", "1.3.0").await, 421, NULL);
    larder.document("null", "1.2.0").await.expect(200);
}

/// The files of the previous proof set of a denied version are denied too.
#[tokio::test]
async fn the_previous_proof_set_of_a_denied_version_is_denied() {
    let registry = Registry::start().await;
    let larder = registry.open().always_revalidate().start().await;
    let document = larder.document("null", "1.3.0").await.expect(200).json();
    let files = ["download_url", "shasums_url", "shasums_signature_url"];
    let previous: Vec<String> = files.map(|member| document[member].as_str().unwrap().to_owned()).into();
    larder.get(&previous[0]).await.expect(200);
    registry.upstream().publish(Provider::new("acme", "null").version("1.3.0").platform("linux_amd64").edition(2));
    larder.document("null", "1.3.0").await;
    for path in &previous {
        larder.get(path).await.expect(200);
    }
    larder.reload(registry.with_policies()).await.unwrap();
    for path in &previous {
        assert_refused(path, &larder.get(path).await, 403, NULL);
    }
}

/// A list of which a rule leaves nothing is refused with the rule, and never empty: clients would say that there is no such
/// provider.
#[tokio::test]
async fn a_list_that_the_rules_leave_empty_is_refused_with_each_rule() {
    let registry = Registry::start().await;
    let rules = "[[policy]]\nmatch = \"acme/null\"\nversions = \"> 1.1\"\naction = \"deny\"\n\
                 [[policy]]\nmatch = \"*\"\nversions = \">= 2.0\"\nreason = \"only new ones\"\n";
    let larder = registry.open().config_lines(rules).start().await;
    let cause = "the policy for acme/null denies the versions > 1.1; the policy for * allows only the versions >= 2.0: only new ones";
    let reversed = "the policy for * allows only the versions >= 2.0: only new ones; the policy for acme/null denies the versions > 1.1";
    let list = larder.versions("null").await;
    let text = list.text();
    assert!(text.contains(cause) || text.contains(reversed), "{text}");
    assert_eq!(list.status, 421);
    larder.get(&format!("/mirror/{HOST}/acme/null/index.json")).await.expect(503);
    let net = larder.get(&format!("/registry/{HOST}/v1/modules/acme/net/test/versions")).await.expect(200).json();
    let versions: Vec<&Value> = net["modules"][0]["versions"].as_array().unwrap().iter().collect();
    assert_eq!(versions.iter().map(|entry| entry["version"].as_str().unwrap()).collect::<Vec<_>>(), ["2.0.0"]);
}

/// A larder that has stored no list yet shows the newest permitted version of each module and provider all the same, and asks
/// for it in upstream's spelling.
#[tokio::test]
async fn pages_of_a_new_larder_show_what_may_be_used() {
    let registry = Registry::start().await;
    registry.upstream().list(
        &[ListedItem::new("acme/net/test", &["v1.0.0", "v2.0.0"])],
        &[ListedItem::new("acme/null", &["1.0.0", "1.2.0", "1.3.0"])],
    );
    let list = r#"{"modules":[{"versions":[{"version":"v1.0.0"},{"version":"v2.0.0"}]}]}"#;
    registry.upstream().serve_json("/v1/modules/acme/net/test/versions", list);
    let larder = registry.with_policies().start().await;
    let list = larder.get(&format!("/registry/{HOST}/v1/modules")).await.expect(200).text();
    assert!(list.contains("acme/net/test/1.0.0") && !list.contains("2.0.0"), "{list}");
    let list = larder.get(&format!("/registry/{HOST}/v1/providers")).await.expect(200).text();
    assert!(list.contains("acme/null/1.2.0") && !list.contains("1.3.0"), "{list}");
    let details = larder.get(&format!("/registry/{HOST}/v1/modules/acme/net/test")).await.expect(200).json();
    assert_eq!((&details["version"], &details["versions"]), (&"v1.0.0".into(), &serde_json::json!(["v1.0.0"])));
}

/// What a page writes in another form cannot be judged, and is not shown.
#[tokio::test]
async fn entries_that_cannot_be_judged_are_not_shown() {
    let registry = Registry::start().await;
    let page = r#"{"meta":{},"modules":[{"namespace":"acme","name":"bad","provider":"test"},{"namespace":"acme","name":"net","provider":"test","version":null},{"namespace":"acme","name":"other","provider":"test","version":"3.0.0"},{"namespace":"x y"}]}"#;
    registry.upstream().serve_json("/v1/modules/acme", page);
    let details =
        r#"{"id":"acme/net/test/1.0.0","version":"1.0.0","versions":[{"version":"1.0.0"},{"version":"2.0.0"}]}"#;
    registry.upstream().serve_json("/v1/modules/acme/net/test/1.0.0", details);
    let larder = registry.with_policies().start().await;
    let list = larder.get(&format!("/registry/{HOST}/v1/modules/acme")).await.expect(200).json();
    let names: Vec<&Value> = list["modules"].as_array().unwrap().iter().map(|entry| &entry["name"]).collect();
    assert_eq!(names, ["net", "other"], "{list}");
    assert_eq!(list["modules"][0]["version"], "1.0.0");
    let details = larder.get(&format!("/registry/{HOST}/v1/modules/acme/net/test/1.0.0")).await.expect(200).json();
    assert_eq!(details["versions"], serde_json::json!([]));
}

/// Offline a permitted version that is not stored is missing, not refused: a bundle can bring it. A denied one is never listed
/// as missing.
#[tokio::test]
async fn an_offline_list_tells_a_rule_from_a_missing_version() {
    let registry = Registry::start().await;
    let larder = registry.open().start().await;
    larder.get(&larder.archive_path("null", "1.3.0").await).await.expect(200);
    larder.get(&larder.archive_path("evil", "1.0.0").await).await.expect(200);
    larder.stop().await;
    let offline = registry.with_policies().network("offline = true").start().await;
    let list = offline.versions("null").await;
    assert!(list.status == 503 && list.text().contains("has not stored it"), "{} {}", list.status, list.text());
    assert_refused("evil", &offline.versions("evil").await, 421, EVIL);
    offline.document("null", "1.3.0").await.expect(421);
    let missing = get(&format!("{}/admin/v1/missing", offline.admin())).await.expect(200).text();
    assert!(missing.contains("acme/null") && !missing.contains("1.3.0") && !missing.contains("evil"), "{missing}");
    // Where the stored list names no permitted version, the rule is the reason.
    offline.stop().await;
    let rule = "[[policy]]\nmatch = \"acme/null\"\nversions = \"> 9\"\nreason = \"frozen\"\n";
    let offline = registry.open().config_lines(rule).network("offline = true").start().await;
    assert_refused("null", &offline.versions("null").await, 421, "allows only the versions > 9: frozen");
}

/// The configuration of a worked example in docs/access.md, by its number.
fn example(number: usize) -> String {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/access.md")).unwrap();
    let blocks = blocks(&page).into_iter().filter(|block| block.language == "toml");
    blocks.map(|block| block.text).nth(number).unwrap()
}

/// The first worked example of docs/access.md gives the answers of its table.
#[tokio::test]
async fn the_allow_list_of_the_documentation_gives_the_answers_that_it_says() {
    let fixture = ModuleFixture::start().await;
    for version in ["4.67.0", "5.30.0", "5.31.0", "5.32.0"] {
        fixture.registry.publish(Provider::new("hashicorp", "aws").version(version));
    }
    fixture.registry.publish(Provider::new("acme", "anything"));
    let url = fixture.file("vpc.tar.gz", &tar_gz(&[("main.tf", b"# vpc\n")]));
    fixture.registry.publish_module(Module::new("terraform-aws-modules", "vpc", "aws").version("5.1.0").at(&url));
    let larder = fixture.larder().config_lines(&example(0)).start().await;
    let providers = format!("/registry/{HOST}/v1/providers");
    let list = larder.get(&format!("{providers}/hashicorp/aws/versions")).await.expect(200).json();
    let versions: Vec<&Value> = list["versions"].as_array().unwrap().iter().map(|entry| &entry["version"]).collect();
    assert_eq!(versions, ["5.30.0", "5.32.0"]);
    for (path, cause) in [
        ("hashicorp/aws/5.31.0/download/linux/amd64", "the policy for hashicorp/aws denies it: 5.31.0 loses state"),
        (
            "hashicorp/aws/4.67.0/download/linux/amd64",
            "the policy for hashicorp/* does not allow it: older ones have no fixes",
        ),
        ("acme/anything/versions", "the policy for * denies it: ask #platform to add it"),
    ] {
        let path = format!("{providers}/{path}");
        assert_refused(&path, &larder.get(&path).await, 421, cause);
    }
    let module = format!("/registry/{HOST}/v1/modules/terraform-aws-modules/vpc/aws/5.1.0/download");
    larder.get(&module).await.expect(204);
}

/// The quarantine of docs/access.md holds a new version back for a week, with its reason, and then opens it; other addresses are
/// free.
#[tokio::test]
async fn the_quarantine_of_the_documentation_holds_a_new_version_for_a_week() {
    let upstream = FakeUpstream::start().await;
    let publish = |namespace: &str, version: &str| {
        upstream.publish(Provider::new(namespace, "aws").version(version));
    };
    publish("hashicorp", "5.30.0");
    publish("acme", "5.30.0");
    let larder = Larder::mirroring(&upstream).config_lines(&example(1)).start().await;
    let path = |namespace: &str| format!("/registry/{HOST}/v1/providers/{namespace}/aws/versions");
    let is_listed = async |namespace: &str| {
        let list = larder.get(&path(namespace)).await.expect(200).json();
        list["versions"].as_array().unwrap().iter().any(|entry| entry["version"] == "5.31.0")
    };
    let day = Duration::from_secs(24 * 3600);
    for namespace in ["hashicorp", "acme"] {
        assert!(!is_listed(namespace).await);
    }
    larder.clock.advance(day);
    for namespace in ["hashicorp", "acme"] {
        publish(namespace, "5.31.0");
    }
    assert!(!is_listed("hashicorp").await && is_listed("acme").await);
    let document = path("hashicorp").replace("versions", "5.31.0/download/linux/amd64");
    assert_refused(&document, &larder.get(&document).await, 421, "holds it back until");
    // The release that cannot wait.
    let what = ["hashicorp/aws@5.31.0"];
    larder.send_command("approve", json!({ "what": what, "reason": "fixes CVE-2026-1234" })).await;
    assert!(is_listed("hashicorp").await);
    larder.get(&document).await.expect(200);
    larder.send_command("unapprove", json!({ "what": what })).await;
    assert!(!is_listed("hashicorp").await);
    larder.clock.advance(7 * day + Duration::from_secs(60));
    assert!(is_listed("hashicorp").await);
    larder.get(&document).await.expect(200);
}
