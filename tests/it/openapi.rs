//! The description of the admin API, `docs/openapi.json`: it names what larder's table of paths names, and larder answers
//! as it says. `support::http::send` compares every answer of an admin listener, in every test.

use std::collections::{BTreeMap, BTreeSet};

use larder::protocol::admin::PATHS;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::bundle_transfer::{BundleKey, bundle, warm_up};
use crate::support::http::{Answer, client, get, send};
use crate::support::larder::Larder;
use crate::support::openapi::{Description, KEYWORDS, PAGES, TEXT, assert_described};
use crate::support::upstream::{FakeUpstream, Provider};
use crate::support::warm_fixture::WarmFixture;

const JSON: &str = "application/json";
const TAR: &str = "application/x-tar";

/// A new row of `PATHS` fails here until it is described.
#[test]
fn the_description_has_the_paths_and_methods_of_the_table() {
    // Pages are for browsers: `status_page` and `policies_approvals` have their tests.
    let described_rows = PATHS.iter().filter(|row| !PAGES.contains(&row.path));
    let rows = described_rows.flat_map(|row| row.methods.iter().map(move |(method, _)| (method.label(), row.path)));
    let table: BTreeSet<String> = rows.clone().map(|(method, path)| format!("{method} {path}")).collect();
    let described = Description::get().operations();
    let (missing, extra): (Vec<_>, Vec<_>) =
        (table.difference(&described).collect(), described.difference(&table).collect());
    assert!(
        missing.is_empty(),
        "describe {missing:?} in `requests` of src/protocol/admin/tests/openapi.rs; then add a row to `every_described_status_is_one_that_larder_answers` in tests/it/openapi.rs"
    );
    assert!(
        extra.is_empty(),
        "remove {extra:?} from src/protocol/admin/tests/openapi.rs: no row of src/protocol/admin/routes.rs has it"
    );
    let guide = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/admin-api.md"));
    for (_, path) in rows {
        let name = path.trim_start_matches("/admin/v1/").replace("{id}", "ID");
        assert!(guide.contains(&name), "name {path} in docs/admin-api.md");
    }
}

#[tokio::test]
async fn larder_serves_the_description_of_its_version() {
    let larder = Larder::builder().start().await;
    let description = get(&format!("{}/admin/v1/openapi.json", larder.admin())).await.expect(200);
    assert_eq!(description.text(), TEXT);
    assert_eq!(description.json()["info"]["version"], env!("CARGO_PKG_VERSION"));
    let index = get(&format!("{}/admin/v1", larder.admin())).await.expect(200).json();
    assert_eq!(index["openapi"], "/admin/v1/openapi.json");
}

/// Calls a function with each value in a JSON document, and the pointer to it.
fn each_value(value: &Value, pointer: &str, visit: &mut impl FnMut(&str, &Value)) {
    visit(pointer, value);
    let members = value.as_object().into_iter().flatten().map(|(key, member)| (key.replace('/', "~1"), member));
    let elements = value.as_array().into_iter().flatten().enumerate().map(|(index, one)| (index.to_string(), one));
    for (key, member) in members.chain(elements) {
        each_value(member, &format!("{pointer}/{key}"), visit);
    }
}

#[test]
fn every_reference_of_the_description_leads_somewhere_and_every_component_is_used() {
    let description = Description::get();
    let mut used = BTreeSet::new();
    let mut names = BTreeMap::new();
    each_value(&description.0, "", &mut |pointer, value| {
        if let Some(reference) = value["$ref"].as_str() {
            description.resolve(value);
            used.insert(reference.trim_start_matches('#').to_owned());
        }
        if let Some(name) = value["operationId"].as_str() {
            assert_eq!(names.insert(name.to_owned(), pointer.to_owned()), None, "two operations are called {name}");
        }
    });
    for kind in ["schemas", "responses", "parameters"] {
        for name in description.0["components"][kind].as_object().unwrap().keys() {
            assert!(used.contains(&format!("/components/{kind}/{name}")), "nothing refers to {kind}/{name}");
        }
    }
}

/// The schemas keep to what the comparison of answers understands.
#[test]
fn schemas_use_known_keywords() {
    each_value(&Description::get().0["components"]["schemas"], "", &mut |pointer, value| {
        let is_schema = !pointer.ends_with("/properties") && value["description"].is_string();
        let keywords =
            value.as_object().filter(|_| is_schema).into_iter().flatten().map(|(keyword, _)| keyword.as_str());
        for keyword in keywords.filter(|keyword| *keyword != "examples") {
            assert!(KEYWORDS.contains(&keyword), "{pointer} has {keyword}");
        }
    });
}

/// A request, and the status of its answer.
struct Row {
    method: &'static str,
    path: String,
    content_type: &'static str,
    body: Vec<u8>,
    status: u16,
}

impl Row {
    fn of(method: &'static str, path: &str, status: u16) -> Self {
        Self { method, path: path.to_owned(), content_type: JSON, body: Vec::new(), status }
    }

    fn post(path: &str, body: &Value, status: u16) -> Self {
        Self { body: body.to_string().into_bytes(), ..Self::of("POST", path, status) }
    }

    fn tar(path: &str, body: Vec<u8>, status: u16) -> Self {
        Self { content_type: TAR, body, ..Self::of("POST", path, status) }
    }
}

/// Statuses that this test does not provoke: a body that takes too long, a failed disk or a defect, a limit that is
/// reached, a full disk. Other tests see most of them, and there they must be described, too.
const NOT_PROVOKED: [&str; 4] = ["408", "500", "503", "507"];

/// The answer to a request without a Host.
async fn answer_without_host(larder: &Larder, method: &str, path: &str) -> Answer {
    let address = larder.admin().trim_start_matches("http://").to_owned();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n\r\n").as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers = lines.map(|line| line.split_once(": ").unwrap());
    let headers = headers.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
    Answer { status, reason: String::new(), headers, body: body.as_bytes().to_vec() }
}

/// The rows that every command on addresses has; `good` is a body that succeeds.
fn rows_of_json(path: &str, good: &Value, status: u16, limit: usize) -> Vec<Row> {
    let too_large = format!("{{\"x\":\"{}\"}}", "x".repeat(limit));
    vec![
        Row::post(path, good, status),
        Row::post(path, &json!([]), 400),
        Row { content_type: "text/html", ..Row::post(path, good, 415) },
        Row { body: too_large.into_bytes(), ..Row::of("POST", path, 413) },
    ]
}

#[tokio::test]
async fn every_described_status_is_one_that_larder_answers() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let elsewhere = Larder::builder().upstream("other.example", &format!("{}/", upstream.origin()), "").start().await;
    let foreign_job = warm_up(&elsewhere, &["other.example/acme/null"], &["linux_amd64"]).await;
    let key = BundleKey::new();
    let larder = key.with_trusted_key(Larder::mirroring(&upstream)).start().await;
    let fixture = WarmFixture::for_larder(&larder);
    let own_bundle = bundle(&upstream, &key, &["acme/null"], &["linux_amd64"]).await;
    let foreign_bundle = send(
        client()
            .post(format!("{}/admin/v1/bundle", elsewhere.admin()))
            .bearer_auth(elsewhere.token())
            .header("content-type", JSON)
            .body(json!({ "job": foreign_job }).to_string()),
    );
    let foreign_bundle = foreign_bundle.await.unwrap().expect(200).body;
    let done = warm_up(&larder, &["acme/null"], &["linux_amd64"]).await;
    let failed = fixture.warm(&json!({ "what": ["acme/absent"], "platforms": ["linux_amd64"] })).await.id;
    let absent = "0123456789abcdef";

    let address = json!({ "what": ["acme/null"] });
    let order = json!({ "what": ["acme/null"], "platforms": ["linux_amd64"] });
    let (kib, mib) = (1 << 10, 1 << 20);
    let mut rows: Vec<Row> = Vec::new();
    for path in [
        "/admin/v1",
        "/admin/v1/openapi.json",
        "/admin/v1/status",
        "/admin/v1/client-config",
        "/admin/v1/list",
        "/admin/v1/explain?address=acme/null",
        "/admin/v1/policy?address=acme/null",
        "/admin/v1/held",
        "/admin/v1/runs/00112233445566778899aabbccddeeff",
        "/admin/v1/runs/00112233445566778899aabbccddeeff/client-config",
        "/admin/v1/missing",
        "/admin/v1/jobs",
        "/admin/v1/inventory",
        "/metrics",
        "/healthz",
        "/readyz",
    ] {
        rows.extend([Row::of("GET", path, 200), Row::of("HEAD", path, 200)]);
    }
    let elsewhere = "/admin/v1/runs/00112233445566778899aabbccddeeff/client-config?network=0123456789abcdef";
    rows.push(Row::of("GET", elsewhere, 409));
    for command in ["refresh", "pin", "unpin", "accept", "purge"] {
        rows.extend(rows_of_json(&format!("/admin/v1/{command}"), &address, 200, 64 * kib));
    }
    for command in ["approve", "unapprove"] {
        let decision = json!({ "what": ["acme/null@1.2.0"], "reason": "needed" });
        rows.extend(rows_of_json(&format!("/admin/v1/{command}"), &decision, 200, 64 * kib));
    }
    for command in ["pin", "unpin"] {
        rows.push(Row::post(&format!("/admin/v1/{command}"), &json!({ "job": done }), 200));
        rows.push(Row::post(&format!("/admin/v1/{command}"), &json!({ "job": absent }), 404));
    }
    let links = json!({ "client": "terraform", "data_folder": "/project/.terraform" });
    let providers = "/admin/v1/runs/00112233445566778899aabbccddeeff/providers";
    rows.extend(rows_of_json(providers, &links, 200, 2 * mib));
    rows.extend(rows_of_json("/admin/v1/plan", &order, 200, 24 * mib));
    let files = json!({ "files": { "main.tf": "terraform {\n  required_providers {\n    null = { source = \"acme/null\" }\n  }\n}\n" } });
    rows.extend(rows_of_json("/admin/v1/lock", &files, 200, 24 * mib));
    rows.extend(rows_of_json("/admin/v1/warm", &order, 202, 24 * mib));
    rows.extend(rows_of_json("/admin/v1/verify", &json!({}), 200, 64 * kib));
    rows.push(Row::of("DELETE", "/admin/v1/missing", 200));
    for job in [&done, &failed] {
        rows.push(Row::of("GET", &format!("/admin/v1/jobs/{job}"), 200));
        rows.push(Row::of("GET", &format!("/admin/v1/jobs/{job}/events"), 200));
        rows.push(Row::of("DELETE", &format!("/admin/v1/jobs/{job}"), 200));
    }
    rows.push(Row::of("GET", &format!("/admin/v1/jobs/{absent}"), 404));
    rows.push(Row::of("GET", &format!("/admin/v1/jobs/{absent}/events"), 404));
    rows.push(Row::of("DELETE", &format!("/admin/v1/jobs/{absent}"), 404));
    // The job of a warm-up that is not purged below.
    let stored = json!({ "job": warm_up(&larder, &["acme/null"], &["linux_amd64"]).await });
    for (export, limit) in [("/admin/v1/bundle", 64 * mib), ("/admin/v1/export", 4 * mib)] {
        rows.splice(0..0, rows_of_json(export, &stored, 200, limit));
        rows.push(Row::post(export, &json!({ "job": absent }), 404));
        rows.push(Row::post(export, &json!({ "job": failed }), 409));
        rows.push(Row::post(export, &json!({ "job": failed, "partial": true }), 200));
    }
    rows.extend([
        Row::tar("/admin/v1/bundle/apply", own_bundle, 200),
        Row::tar("/admin/v1/bundle/apply", b"no bundle".to_vec(), 400),
        Row::tar("/admin/v1/bundle/apply?unsigned", foreign_bundle, 409),
        Row::of("POST", "/admin/v1/bundle/apply", 415),
        Row::tar("/admin/v1/import", vec![0; 1024], 200),
        Row::tar("/admin/v1/import?signed", Vec::new(), 400),
        Row::of("POST", "/admin/v1/import", 415),
    ]);

    let description = Description::get();
    let mut answered = BTreeSet::new();
    for row in rows {
        let Row { method, path, content_type, body, status } = row;
        fixture.send(method, &path, content_type, body).await.expect(status);
        let form = description.path(path.split('?').next().unwrap()).unwrap();
        answered.insert(format!("{} {form} {status}", method.replace("HEAD", "GET")));
    }
    // An id of another form is no run.
    for form in ["/admin/v1/runs/{id}", "/admin/v1/runs/{id}/client-config"] {
        fixture.send("GET", &form.replace("{id}", "x"), JSON, Vec::new()).await.expect(404);
        answered.insert(format!("GET {form} 404"));
    }
    let providers = "/admin/v1/runs/{id}/providers";
    fixture.send("POST", &providers.replace("{id}", "x"), JSON, Vec::new()).await.expect(404);
    answered.insert(format!("POST {providers} 404"));
    for operation in description.operations() {
        let (method, form) = operation.split_once(' ').unwrap();
        let id = if form.contains("/runs/") { absent.repeat(2) } else { absent.to_owned() };
        let path = form.replace("{id}", &id);
        let without_host = answer_without_host(&larder, method, &path).await.expect(400);
        assert_described(method, &path, &without_host);
        answered.insert(format!("{operation} 400"));
        let request = || client().request(method.parse().unwrap(), format!("{}{path}", larder.admin()));
        if !form.ends_with('z') {
            send(request().header("origin", "null")).await.unwrap().expect(403);
            answered.insert(format!("{operation} 403"));
        }
        if method != "GET" {
            send(request()).await.unwrap().expect(401);
        }
        // Off loopback reading needs the token, too: a unit test of the access rules has that, because tests use loopback.
        answered.insert(format!("{operation} 401"));
    }
    for (path, item) in description.0["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap().iter().filter(|(key, _)| *key != "parameters") {
            for status in operation["responses"].as_object().unwrap().keys() {
                let row = format!("{} {path} {status}", method.to_uppercase());
                let is_provoked = answered.contains(&row) || NOT_PROVOKED.contains(&status.as_str());
                assert!(
                    is_provoked,
                    "{row} is described: add a row that provokes it, or remove it from docs/openapi.json"
                );
            }
        }
    }
}

/// The comparison sees what it is for.
#[tokio::test]
#[should_panic(expected = ".jobs is not described")]
async fn an_answer_with_a_member_that_is_not_described_fails_its_test() {
    let body = br#"{"errors":["a"],"jobs":[]}"#.to_vec();
    let headers = [("content-type".parse().unwrap(), JSON.parse().unwrap())].into_iter().collect();
    assert_described(
        "GET",
        "/admin/v1/jobs/0123456789abcdef",
        &Answer { status: 404, reason: String::new(), headers, body },
    );
}
