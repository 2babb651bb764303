//! The audit trail: a line for each decision, where `[audit] path` says. Nothing waits for it, and nothing is lost in silence.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use larder::clock::Clock;
use larder::digest::Digest;
use serde_json::Value;

use crate::support::ci_tokens::{Issuer, job_claims};
use crate::support::http::{Answer, get};
use crate::support::larder::{Builder, Folder, HOST, Larder};
use crate::support::module_fixture::{ModuleFixture, tar_gz};
use crate::support::upstream::{Module, Provider};

const CI: &str = "the-token-of-the-pipelines";
const TEAM: &str = "the-token-of-the-net-team";
const ISSUER: &str = "https://ci.example";

/// A registry with acme/null, acme/evil and the module acme/net/test; two clients with tokens, jobs, and a rule about evil.
struct Site {
    fixture: ModuleFixture,
    folder: Folder,
    issuer: Issuer,
}

impl Site {
    async fn new() -> Self {
        let fixture = ModuleFixture::start().await;
        fixture.registry.publish(Provider::new("acme", "null").version("1.0.0").size(50_000));
        fixture.registry.publish(Provider::new("acme", "null").version("2.0.0").size(3 << 20));
        fixture.registry.publish(Provider::new("acme", "evil"));
        let url = fixture.file("net.tar.gz", &tar_gz(&[("main.tf", b"# module\n")]));
        fixture.registry.publish_module(Module::new("acme", "net", "test").version("1.0.0").at(&url));
        let site = Self { fixture, folder: Folder::new(), issuer: Issuer::new("one") };
        std::fs::write(site.folder.path().join("ci.jwks"), site.issuer.keys()).unwrap();
        site
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("audit.jsonl")
    }

    /// A larder whose trail is a file in the site's folder, or at another place.
    fn larder(&self, target: &str) -> Builder {
        let target = self.folder.path().join(target);
        self.without_trail().config_lines(&format!("[audit]\npath = {target:?}\n"))
    }

    fn without_trail(&self) -> Builder {
        let digest = |token: &str| format!("{{ sha256 = \"{}\" }}", Digest::of(token.as_bytes()));
        let jwks = self.folder.path().join("ci.jwks");
        self.fixture.larder_on(&self.folder).clock(&Clock::frozen()).config_lines(&format!(
            "[[policy]]\nmatch = \"acme/evil\"\naction = \"deny\"\nreason = \"it is evil\"\n\
             [[policy]]\nmatch = \"acme/null\"\nversions = \"< 2.0.0\"\nreason = \"2.0.0 loses state\"\n\
             [[client]]\nname = \"ci\"\ntoken = {}\n\
             [[client]]\nname = \"net\"\ntoken = {}\nallow = [\"acme/net/*\"]\n\
             [[client]]\nname = \"far\"\ntoken = {}\nnetworks = [\"192.0.2.0/24\"]\n\
             [[client]]\nname = \"jobs\"\noidc = {{ issuer = \"{ISSUER}\", audience = \"larder\", claims = {{ repository = \"acme/*\" }}, jwks = {{ file = {jwks:?} }} }}\n",
            digest(CI),
            digest(TEAM),
            digest("the-token-of-somebody-far-away"),
        ))
    }

    /// The lines so far. Those of requests whose answers have arrived are in it after a stop.
    fn lines(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.file()).unwrap();
        assert!(text.ends_with('\n'), "{text}");
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|bad| panic!("{bad}: {line}"))).collect()
    }
}

async fn with(larder: &Larder, token: &str, path: &str) -> Answer {
    larder.get_with(path, &[("authorization", &format!("Bearer {token}"))]).await
}

async fn status(larder: &Larder) -> Value {
    get(&format!("{}/admin/v1/status", larder.admin())).await.expect(200).json()
}

fn providers(rest: &str) -> String {
    format!("/registry/{HOST}/v1/providers/acme/{rest}")
}

/// Asserts that a line has these members, and these values of them.
#[track_caller]
fn assert_line(line: &Value, expected: &Value) {
    for (member, value) in expected.as_object().unwrap() {
        assert_eq!(&line[member], value, "{member} of {line}");
    }
}

/// Each decision has its line: who asked for what, which rule decided, and how it ended. An archive is fetched without a token: its
/// line has the class of its URL, which is that of the client's.
#[tokio::test]
async fn every_decision_has_a_line() {
    let site = Site::new().await;
    let larder = site.larder("audit.jsonl").start().await;
    let now = larder.clock.now();
    let list = with(&larder, CI, &providers("null/versions")).await.expect(200);
    let document = with(&larder, CI, &providers("null/1.0.0/download/linux/amd64")).await.expect(200).json();
    let archive = document["download_url"].as_str().unwrap().to_owned();
    let zip = larder.get(&archive).await.expect(200);
    larder.get(&archive).await.expect(200);
    with(&larder, CI, &providers("null/2.0.0/download/linux/amd64")).await.expect(421);
    with(&larder, CI, &providers("evil/versions")).await.expect(421);
    with(&larder, TEAM, &providers("null/versions")).await.expect(421);
    with(&larder, "the-token-of-somebody-far-away", &providers("null/versions")).await.expect(421);
    larder.get(&providers("null/versions")).await.expect(401);
    with(&larder, "wrong-wrong-wrong-wrong", "/nothing/at/all").await.expect(401);
    with(&larder, &site.issuer.token(&job_claims(ISSUER, now)), &providers("null/versions")).await.expect(200);
    let module = with(&larder, TEAM, &format!("/registry/{HOST}/v1/modules/acme/net/test/1.0.0/download")).await;
    let location = module.header("x-terraform-get").split('?').next().unwrap().to_owned();
    larder.get(&location).await.expect(200);
    let forged = archive.replacen("/archive/~", "/archive/~A", 1);
    larder.get(&forged).await.expect(401);
    with(&larder, CI, &format!("/age/1d{}", providers("null/versions"))).await.expect(200);
    with(&larder, CI, &format!("/mirror/{HOST}/acme/evil/index.json")).await.expect(503);
    with(&larder, CI, &providers("none/versions")).await.expect(404);
    with(&larder, CI, &format!("/registry/{HOST}/.well-known/terraform.json")).await.expect(200);
    for path in ["/healthz", "/readyz"] {
        larder.get(path).await.expect(200);
    }
    with(&larder, CI, "/nothing").await.expect(404);
    with(&larder, CI, "/registry/Other.Example/v1/providers/a/b/versions").await.expect(421);
    let headers = [("authorization", &*format!("Bearer {CI}")), ("range", "bytes=0-9")];
    larder.get_with(&archive, &headers).await.expect(206);
    larder.head(&archive).await.expect(200);
    larder.stop().await;
    let lines = site.lines();
    let (null, ci_class) = (format!("{HOST}/acme/null"), lines[0]["class"].clone());
    let (digest, file) = (Digest::of(&zip.body).to_string(), archive.rsplit('/').next().unwrap().to_owned());
    let hidden = serde_json::json!([{ "rule": "acme/null", "versions": 1, "newest": ["2.0.0"] }]);
    let expected = [
        serde_json::json!({ "client": "127.0.0.1", "name": "ci", "route": "versions", "address": "NULL", "outcome": "miss",
            "status": 200, "bytes": list.body.len(), "hidden": hidden, "reason": Value::Null, "path": Value::Null }),
        serde_json::json!({ "name": "ci", "route": "download", "address": "NULL", "version": "1.0.0",
            "platform": "linux_amd64", "status": 200 }),
        serde_json::json!({ "name": Value::Null, "route": "archive", "address": "NULL", "version": "1.0.0",
            "platform": "linux_amd64", "digest": digest, "bytes": zip.body.len(), "outcome": "miss" }),
        serde_json::json!({ "route": "archive", "digest": digest, "outcome": "hit" }),
        serde_json::json!({ "name": "ci", "version": "2.0.0", "refused_by": "policy", "rules": ["acme/null"],
            "reason": "the policy for acme/null does not allow it: 2.0.0 loses state", "outcome": "refused", "status": 421 }),
        serde_json::json!({ "name": "ci", "address": format!("{HOST}/acme/evil"), "refused_by": "policy", "rules": ["acme/evil"] }),
        serde_json::json!({ "name": "net", "refused_by": "policy", "rules": ["client"] }),
        serde_json::json!({ "name": "far", "refused_by": "network", "status": 421, "address": "NULL", "class": ci_class }),
        serde_json::json!({ "name": Value::Null, "refused_by": "token", "status": 401, "address": "NULL" }),
        serde_json::json!({ "refused_by": "token", "status": 401, "path": "/nothing/at/all", "address": Value::Null }),
        serde_json::json!({ "name": "jobs", "job": "job-1", "status": 200, "hidden": hidden }),
        serde_json::json!({ "name": "net", "route": "module-download", "address": format!("{HOST}/acme/net/test"), "version": "1.0.0" }),
        serde_json::json!({ "route": "module-archive", "address": format!("{HOST}/acme/net/test"), "version": "1.0.0", "status": 200 }),
        serde_json::json!({ "route": "archive", "refused_by": "token", "status": 401, "address": "NULL", "digest": Value::Null }),
        serde_json::json!({ "name": "ci", "view": "age/1d", "route": "versions" }),
        serde_json::json!({ "route": "mirror-index", "refused_by": "policy", "rules": ["acme/evil"], "status": 503 }),
        serde_json::json!({ "outcome": "absent", "status": 404, "refused_by": Value::Null }),
        serde_json::json!({ "route": "discovery", "path": format!("/registry/{HOST}/.well-known/terraform.json") }),
        serde_json::json!({ "name": "ci", "refused_by": "host", "status": 421,
            "reason": "other.example is not an upstream of this mirror" }),
        serde_json::json!({ "method": "GET", "status": 206, "bytes": 10, "digest": digest }),
        serde_json::json!({ "method": "HEAD", "status": 200, "bytes": 0, "digest": digest, "file": file }),
    ];
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for (line, mut expected) in lines.iter().zip(expected) {
        if expected["address"] == "NULL" {
            expected["address"] = null.clone().into();
        }
        assert_line(line, &expected);
        assert_eq!(line["time"], now.date_time());
    }
    // The document's client and the archive's URL have one class, and a team with other rights another.
    let [ci, of_archive, again, net] = [1, 2, 3, 11].map(|line: usize| lines[line]["class"].as_str().unwrap());
    assert!(ci == of_archive && of_archive == again && net != ci);
    // The id of a proof opens nothing, and no line has a proof.
    assert!(lines[2]["url"].as_str().unwrap().len() == 16 && lines[2]["url"] == lines[3]["url"]);
    let proof = archive.split_once('~').unwrap().1.split_once('/').unwrap().0;
    let text = std::fs::read_to_string(site.file()).unwrap();
    assert!(!text.contains(proof) && !text.contains(CI) && !text.contains("wrong-wrong"), "{text}");
    // The members are those of the documentation.
    let page = std::fs::read_to_string("docs/audit.md").unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| `")).map(|line| line.split('|').nth(1).unwrap());
    let documented: BTreeSet<&str> = rows.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let members: BTreeSet<&str> = lines
        .iter()
        .flat_map(|line| line.as_object().unwrap().keys().map(String::as_str))
        .chain(["broken_off", "own_run"])
        .collect();
    assert_eq!(members, documented);
    for block in page.split("```json\n").skip(1).map(|rest| rest.split("```").next().unwrap()) {
        for line in block.lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            assert!(line.as_object().unwrap().keys().all(|member| members.contains(member.as_str())), "{line}");
        }
    }
}

/// A rotated file is left alone after a reload, and the new one has what follows. A file that cannot be opened leaves the old
/// configuration in force, and a start without it fails.
#[tokio::test]
async fn a_reload_opens_the_file_anew() {
    let site = Site::new().await;
    let larder = site.larder("audit.jsonl").start().await;
    with(&larder, CI, &providers("null/versions")).await.expect(200);
    let rotated = site.folder.path().join("audit.jsonl.1");
    std::fs::rename(site.file(), &rotated).unwrap();
    larder.reload(site.larder("audit.jsonl")).await.unwrap();
    with(&larder, CI, &providers("evil/versions")).await.expect(421);
    let refused = larder.reload(site.larder("absent/audit.jsonl")).await.unwrap_err().to_string();
    assert!(refused.contains("[audit] path: there is no folder"), "{refused}");
    with(&larder, CI, &providers("evil/versions")).await.expect(421);
    larder.stop().await;
    let of_first = std::fs::read_to_string(&rotated).unwrap();
    assert_eq!(of_first.lines().count(), 1, "{of_first}");
    assert_eq!(site.lines().len(), 2);
    let failed = site.larder("absent/audit.jsonl").try_start().await.err().unwrap();
    assert!(failed.to_string().contains("absent/audit.jsonl cannot be opened"), "{failed}");
}

/// A disk that takes no line delays no answer. What is lost is counted, and the first thing that a person reads.
#[tokio::test]
async fn a_full_disk_delays_no_answer_and_is_reported() {
    let site = Site::new().await;
    let larder = site.larder("/dev/full").start().await;
    for _ in 0..3 {
        with(&larder, CI, &providers("null/versions")).await.expect(200);
    }
    let status = crate::support::eventually("the lost lines", async || {
        let status = status(&larder).await;
        (status["since_start"]["lost_audit_lines"] == 3).then_some(status)
    })
    .await;
    assert_eq!(status["since_start"]["lost_audit_lines"], 3);
}

/// Strangers cannot fill the trail, or the list of refusals: beyond sixty a minute they are counted only. A client's own decisions have
/// their lines all the same.
#[tokio::test]
async fn strangers_do_not_fill_the_trail() {
    let site = Site::new().await;
    let larder = site.larder("audit.jsonl").start().await;
    for number in 0..70 {
        larder.get(&format!("/registry/{HOST}/v1/providers/acme/x{number}/versions")).await.expect(401);
    }
    with(&larder, TEAM, &providers("null/versions")).await.expect(421);
    let refusals = status(&larder).await["since_start"]["refusals"].clone();
    assert_eq!((refusals[0]["name"].as_str(), refusals[1]["times"].as_u64()), (Some("net"), Some(60)), "{refusals:#}");
    larder.stop().await;
    let lines = site.lines();
    assert_eq!((lines.len(), lines[60]["name"].as_str()), (61, Some("net")));
}

/// `status` and the page show the last refusals with the client, its name and the count, also without an audit trail.
#[tokio::test]
async fn the_status_shows_the_last_refusals() {
    let site = Site::new().await;
    let larder = site.without_trail().start().await;
    for _ in 0..3 {
        with(&larder, TEAM, &providers("null/versions")).await.expect(421);
    }
    larder.clock.advance(Duration::from_secs(1));
    with(&larder, CI, &providers("evil/versions")).await.expect(421);
    larder.clock.advance(Duration::from_secs(1));
    larder.get(&providers("null/versions")).await.expect(401);
    larder.get(&providers("evil/versions")).await.expect(401);
    let refusals = status(&larder).await["since_start"]["refusals"].clone();
    let expected = [
        serde_json::json!({ "kind": "policy", "name": "ci", "subject": format!("{HOST}/acme/evil"), "rules": ["acme/evil"], "times": 1 }),
        serde_json::json!({ "kind": "policy", "name": "net", "subject": format!("{HOST}/acme/null"), "rules": ["client"], "times": 3 }),
        serde_json::json!({ "kind": "token", "client": "127.0.0.1", "times": 2, "status": 401 }),
    ];
    assert_eq!(refusals.as_array().unwrap().len(), expected.len(), "{refusals:#}");
    for (refusal, expected) in refusals.as_array().unwrap().iter().zip(&expected) {
        assert_line(refusal, expected);
    }
    let page = get(&format!("{}/", larder.admin())).await.expect(200).text();
    assert!(page.contains("Refused requests") && page.contains("3 requests of net at 127.0.0.1"), "{page}");
    assert!(page.contains("the policy for acme/evil denies it: it is evil"), "{page}");
}
