//! Orders for warming and pinning: their content, their authorisation, and their limits.

use std::time::Duration;

use serde_json::json;

use crate::support::command_setup::{CommandSetup, json as parse_json};
use crate::support::http::{client, send};
use crate::support::larder::{Folder, HOST, Larder};
use crate::support::process::Process;
use crate::support::reports::CommandReport;
use crate::support::upstream::{FakeUpstream, Provider, Target};
use crate::support::warm_fixture::{PLATFORMS, WarmFixture, both_platforms};

async fn upstream_with(names: &[&str], size: usize) -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    for name in names {
        upstream.publish(both_platforms(Provider::new("acme", name).size(size)));
    }
    upstream
}

/// The time between two uses, so that larder evicts the archive of the earlier one first.
const BETWEEN_USES: Duration = Duration::from_secs(120);
const LOCK_FILE: &str = "provider \"registry.terraform.io/acme/null\" {\n  version = \"1.2.0\"\n}\n";

/// A request that changes something needs the token. With an `Origin` or a foreign `Host` it is refused even with the
/// token, because it may come from a web page.
#[tokio::test]
async fn jobs_are_started_and_stopped_with_the_token_only_and_never_by_a_web_page() {
    let upstream = upstream_with(&["null"], 100).await;
    let larder = Larder::mirroring(&upstream).start().await;
    let held_requests = upstream.hold_body(Target::Archive);
    let fixture = WarmFixture::for_larder(&larder);
    let path = fixture.start_job(&json!({ "what": ["acme/null"] })).await;
    let bearer = format!("Bearer {}", larder.token());
    let port = larder.admin().rsplit_once(':').unwrap().1.to_owned();
    let jobs = fixture.get("/admin/v1/jobs").await.expect(200).json();
    for (method, path, content_type, body) in [
        ("POST", "/admin/v1/warm", "application/json", r#"{"what":["acme/null"]}"#),
        ("POST", "/admin/v1/warm", "text/plain", LOCK_FILE),
        ("DELETE", path.as_str(), "application/json", ""),
    ] {
        let request_once = |headers: &[(&str, &str)]| {
            let request = client().request(method.parse().unwrap(), format!("{}{path}", larder.admin()));
            let request = request.header("content-type", content_type).body(body);
            send(headers.iter().fold(request, |request, (name, value)| request.header(*name, *value)))
        };
        request_once(&[]).await.unwrap().expect(401);
        request_once(&[("authorization", "Bearer x")]).await.unwrap().expect(401);
        let valid_token = ("authorization", bearer.as_str());
        for origin in ["null", "https://evil.example", &larder.admin()] {
            request_once(&[valid_token, ("origin", origin)]).await.unwrap().expect(403);
        }
        request_once(&[valid_token, ("host", &format!("evil.example:{port}"))]).await.unwrap().expect(403);
    }
    for path in ["/admin/v1/jobs", &path] {
        let page_request = client().get(format!("{}{path}", larder.admin())).header("origin", "https://evil.example");
        send(page_request).await.unwrap().expect(403);
    }
    // No job was started, and none was stopped.
    let jobs_afterwards = fixture.get("/admin/v1/jobs").await.expect(200).json();
    assert_eq!(jobs_afterwards["jobs"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&jobs_afterwards["jobs"][0]["id"], &jobs_afterwards["jobs"][0]["state"]),
        (&jobs["jobs"][0]["id"], &json!("running"))
    );
    held_requests.open();
    assert_eq!(fixture.finished_job(&path).await.state, "done");
}

#[tokio::test]
async fn without_a_platform_this_machines_own_is_warmed() {
    let upstream = upstream_with(&["null"], 100).await;
    let larder = Larder::mirroring(&upstream).start().await;
    let fixture = WarmFixture::for_larder(&larder);
    let platform = larder::address::Platform::of_this_machine().to_string();
    let job = fixture.warm(&json!({ "what": ["acme/null"] })).await;
    assert_eq!((&job.platforms, &job.items[0].package.platform), (&vec![platform.clone()], &Some(platform.clone())));
    let path = fixture.start_lock_file_job(LOCK_FILE, "").await;
    assert_eq!(fixture.job(&path).await.platforms, [platform]);
}

#[tokio::test]
async fn every_problem_of_a_warm_up_request_is_reported_and_no_job_starts() {
    let upstream = upstream_with(&["null"], 100).await;
    let larder = Larder::mirroring(&upstream).start().await;
    let fixture = WarmFixture::for_larder(&larder);
    let problems = |answer: crate::support::http::Answer| answer.expect(400).json()["errors"].clone();
    let invalid_request =
        json!({ "what": ["null", "acme/null@=> 1", "acme/vpc/AWS"], "platforms": ["linux"], "pin": true });
    let errors = problems(fixture.post("/admin/v1/warm", &invalid_request).await);
    assert_eq!(errors.as_array().unwrap().len(), 4, "{errors}");
    for body in [json!([]), json!({ "what": "acme/null" }), json!({ "what": ["acme/null"], "force": true })] {
        let output = problems(fixture.post("/admin/v1/warm", &body).await);
        assert!(output[0].as_str().unwrap().contains("the body is not {\"what\""), "{output}");
    }
    for (body, reason) in [
        (json!({}), "no address, lock file or folder is named"),
        (json!({ "what": [{ "address": "acme/null", "platform": "linux_amd64" }] }), "the body is not"),
        (json!({ "what": [{ "address": "acme/null", "platforms": ["linux"] }] }), "\"linux\" is not a platform"),
        (
            json!({ "lock_files": [{ "name": "a/.terraform.lock.hcl", "text": "provider {" }] }),
            "a/.terraform.lock.hcl: ",
        ),
        (json!({ "lock_files": [{ "name": "empty", "text": "" }] }), "empty: the lock file names no provider"),
        (json!({ "files": { "../main.tf": "" } }), "is not a path of a file in a folder"),
        (json!({ "files": { "main.tf": "" }, "roots": ["prod"] }), "there is no file that a client reads in \"prod\""),
        (json!({ "files": { "readme.md": "" } }), "there is no file that a client reads"),
        (json!({ "files": { "main.tf": "" }, "client": "pulumi" }), "the body is not"),
    ] {
        for path in ["/admin/v1/warm", "/admin/v1/plan"] {
            let output = problems(fixture.post(path, &body).await);
            assert!(output[0].as_str().unwrap().contains(reason), "{body}: {output}");
        }
    }
    let query = fixture.post("/admin/v1/warm?pin", &json!({ "what": ["acme/null"] })).await;
    assert!(problems(query)[0].as_str().unwrap().contains("no query"));
    let addresses: Vec<String> = (0..1024).map(|number| format!("acme/p{number}")).collect();
    let platforms: Vec<String> = (0..9).map(|number| format!("linux_a{number}")).collect();
    let output = problems(fixture.post("/admin/v1/warm", &json!({ "what": addresses, "platforms": platforms })).await);
    assert!(output[0].as_str().unwrap().contains("about 9216 archives"), "{output}");

    let broken = "provider \"x\" {\n  version = 1\n}\nprovider \"r.example/a/b\" {\n}\n";
    let sent = fixture.send("POST", "/admin/v1/warm?platform=linux&pin=yes&speed=9", "text/plain", broken).await;
    let output = problems(sent);
    let output: Vec<&str> = output.as_array().unwrap().iter().map(|problem| problem.as_str().unwrap()).collect();
    for part in ["\"speed\"", "pin is true or false", "\"linux\"", "line 1:", "line 2:", "line 4:"] {
        assert!(output.iter().any(|problem| problem.contains(part)), "{part} is not in {output:?}");
    }
    let large = "#".repeat((1 << 20) + 1);
    fixture.send("POST", "/admin/v1/warm", "text/plain", large.clone()).await.expect(413);
    fixture.send("POST", "/admin/v1/warm", "application/json", large[..70_000].to_owned()).await.expect(400);
    fixture.send("POST", "/admin/v1/warm", "application/json", large.repeat(25)).await.expect(413);
    fixture.send("POST", "/admin/v1/warm", "application/x-tar", large.repeat(33)).await.expect(413);
    for (tar, query, reason) in [
        (&large[..], "", "it is not a tar of files"),
        ("", "", "the tar holds no file that a client reads"),
        ("", "?platform=linux_amd64&root=prod", "the tar holds no file that a client reads"),
    ] {
        let sent = fixture.send("POST", &format!("/admin/v1/warm{query}"), "application/x-tar", tar.to_owned()).await;
        let output = problems(sent);
        assert!(output[0].as_str().unwrap().contains(reason), "{output}");
    }
    // A lock file of many providers is larger than any command.
    let long_lock_file = format!("{}{LOCK_FILE}", "# a comment\n".repeat(10_000));
    fixture.send("POST", "/admin/v1/warm", "text/plain; charset=utf-8", long_lock_file).await.expect(202);
    for kind in ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "text/html"] {
        fixture.send("POST", "/admin/v1/warm", kind, LOCK_FILE).await.expect(415);
    }
    assert_eq!(fixture.send("GET", "/admin/v1/warm", "text/plain", "").await.expect(405).header("allow"), "POST");
    assert_eq!(fixture.send("POST", "/admin/v1/jobs", "text/plain", "").await.expect(405).header("allow"), "GET, HEAD");
    let allowed = fixture.send("POST", "/admin/v1/jobs/0011223344556677", "text/plain", "").await.expect(405);
    assert_eq!(allowed.header("allow"), "GET, HEAD, DELETE");
    for (path, method) in [("/admin/v1/jobs/0011223344556677", "GET"), ("/admin/v1/jobs/0011223344556677", "DELETE")] {
        let missing = fixture.send(method, path, "text/plain", "").await.expect(404);
        assert!(missing.text().contains("there is no job 0011223344556677"), "{}", missing.text());
    }
    let events = "/admin/v1/jobs/0011223344556677/events";
    assert_eq!(fixture.send("POST", events, "text/plain", "").await.expect(405).header("allow"), "GET, HEAD");
    assert_eq!(fixture.send("DELETE", events, "text/plain", "").await.expect(405).header("allow"), "GET, HEAD");
    for path in ["/admin/v1/jobs/x/events", "/admin/v1/jobs/0011223344556677/events/", "/admin/v1/jobs//events"] {
        fixture.get(path).await.expect(404);
    }
    fixture.get(events).await.expect(404);
    for path in ["/admin/v1/jobs/", "/admin/v1/jobs/x", "/admin/v1/jobs/00112233445566AA"] {
        fixture.get(path).await.expect(404);
    }
    assert_eq!(fixture.get("/admin/v1/jobs").await.json()["jobs"].as_array().unwrap().len(), 1);
}

/// Promise 11: running and remembered jobs are limited.
#[tokio::test]
async fn the_number_of_jobs_is_limited() {
    let upstream = upstream_with(&["null"], 100).await;
    let larder = Larder::mirroring(&upstream).start().await;
    let fixture = WarmFixture::for_larder(&larder);
    let gate = upstream.hold_headers(Target::Versions);
    let order = json!({ "what": ["acme/null"], "platforms": ["linux_amd64"] });
    let mut paths = Vec::new();
    for _ in 0..8 {
        paths.push(fixture.start_job(&order).await);
    }
    let refused = fixture.post("/admin/v1/warm", &order).await.expect(503);
    assert!(refused.text().contains("8 jobs run") && refused.header("retry-after").is_empty(), "{}", refused.text());
    fixture.send("DELETE", &paths[7], "text/plain", "").await.expect(200);
    paths.push(fixture.start_job(&order).await);
    gate.open();
    for path in &paths {
        assert_ne!(fixture.finished_job(path).await.state, "failed");
    }
    for _ in 0..10 {
        let path = fixture.start_job(&order).await;
        fixture.finished_job(&path).await;
        paths.push(path);
    }
    let listed = fixture.get("/admin/v1/jobs").await.json();
    let listed: Vec<&str> = listed["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap()).collect();
    let newest: Vec<&str> = paths.iter().rev().take(16).map(|path| path.rsplit('/').next().unwrap()).collect();
    assert_eq!(listed, newest);
    fixture.get(&paths[0]).await.expect(404);
}

/// True if larder serves the archive without a request to upstream. The call stores a missing one.
async fn is_stored(larder: &Larder, upstream: &FakeUpstream, name: &str) -> bool {
    let path = larder.archive_path(name, "1.2.0").await;
    let before = upstream.count_of(Target::Archive);
    larder.get(&path).await.expect(200);
    upstream.count_of(Target::Archive) == before
}

/// Pinned archives are never evicted. A job is pinned when it starts, or afterwards.
#[tokio::test]
async fn packages_that_a_job_warmed_and_pinned_survive_an_eviction() {
    for afterwards in [false, true] {
        let mut upstream = upstream_with(&["one", "two", "three", "four"], 300_000).await;
        let larder = Larder::mirroring(&upstream).store("max_size = \"1MiB\"").start().await;
        let fixture = WarmFixture::for_larder(&larder);
        let order = json!({ "what": ["acme/one", "acme/two"], "platforms": ["linux_amd64"], "pin": !afterwards });
        let path = fixture.start_job(&order).await;
        let job = fixture.finished_job(&path).await;
        assert_eq!((job.states(), job.pin), (vec!["fetched"; 2], !afterwards), "{job}");
        if afterwards {
            let done =
                CommandReport::parse(fixture.post("/admin/v1/pin", &json!({ "job": job.id })).await.expect(200).json());
            assert_eq!(done.outcomes().iter().map(|(_, outcome)| *outcome).collect::<Vec<_>>(), ["pinned"; 2]);
        }
        for name in ["three", "four"] {
            larder.clock.advance(BETWEEN_USES);
            let path = larder.archive_path(name, "1.2.0").await;
            larder.get(&path).await.expect(200);
        }
        for (name, stored) in [("one", true), ("two", true), ("three", false)] {
            assert_eq!(is_stored(&larder, &upstream, name).await, stored, "{name}");
        }
        // Pinned archives are not evicted even for a new archive, which then does not fit.
        let job =
            fixture.warm(&json!({ "what": ["acme/three", "acme/four"], "platforms": PLATFORMS, "pin": true })).await;
        assert_eq!(job.state, "failed", "{job}");
        for name in ["one", "two"] {
            assert!(is_stored(&larder, &upstream, name).await, "{name}");
        }

        let done = fixture
            .post("/admin/v1/unpin", &json!({ "what": ["acme/one", "acme/two", "acme/three", "acme/four"] }))
            .await;
        assert!(done.status == 200, "{}", done.text());
        larder.clock.advance(BETWEEN_USES);
        for (name, platform) in
            [("three", PLATFORMS[1]), ("four", PLATFORMS[1]), ("three", PLATFORMS[0]), ("four", PLATFORMS[0])]
        {
            let document = larder.document_for(name, "1.2.0", platform).await.expect(200).json();
            larder.get(document["download_url"].as_str().unwrap()).await.expect(200);
        }
        assert!(!is_stored(&larder, &upstream, "one").await, "it is still pinned");
        upstream.stop().await;
    }
}

/// A pinned archive could not be installed without its documents, so they are not evicted either.
#[tokio::test]
async fn the_documents_of_pinned_packages_are_not_evicted() {
    let mut upstream = upstream_with(&["pinned"], 1_030_000).await;
    let names: Vec<String> = (0..20).map(|number| format!("p{number}")).collect();
    for name in &names {
        upstream.publish(Provider::new("acme", name).size(100).unknown_fields());
    }
    let larder = Larder::mirroring(&upstream).store("max_size = \"1MiB\"").start().await;
    let fixture = WarmFixture::for_larder(&larder);
    let job = fixture.warm(&json!({ "what": ["acme/pinned"], "platforms": ["linux_amd64"], "pin": true })).await;
    assert_eq!(job.state, "done", "{job}");
    for name in &names {
        larder.clock.advance(BETWEEN_USES);
        larder.document(name, "1.2.0").await.expect(200);
    }
    assert!(larder.folder.proof_sets().len() < names.len(), "no document was evicted");
    upstream.stop().await;
    let path = larder.archive_path("pinned", "1.2.0").await;
    assert!(larder.get(&path).await.expect(200).has_cache_status("larder; hit"));
    larder.versions("pinned").await.expect(200);
    larder.get(&format!("/registry/{HOST}/.well-known/terraform.json")).await.expect(200);
}

#[tokio::test]
async fn pinning_a_package_that_is_not_stored_is_an_error() {
    let upstream = upstream_with(&["null"], 100).await;
    upstream.publish(both_platforms(Provider::new("acme", "null").version("1.3.0")));
    let larder = Larder::mirroring(&upstream).start().await;
    let fixture = WarmFixture::for_larder(&larder);
    let pin = async |subject: &str| {
        let answer = fixture.post("/admin/v1/pin", &json!({ "what": [subject] })).await;
        CommandReport::parse(answer.expect(200).json())
    };
    let done = pin("acme/null").await;
    assert_eq!((done.outcomes(), done.ok), (vec![("registry.terraform.io/acme/null", "not_held")], false));
    fixture.warm(&json!({ "what": ["acme/null@1.2.0", "acme/null@1.3.0"], "platforms": PLATFORMS })).await;
    let done = pin("acme/null@< 1.3").await;
    let [first, second] =
        ["darwin_arm64", "linux_amd64"].map(|platform| format!("registry.terraform.io/acme/null 1.2.0 ({platform})"));
    assert_eq!((done.outcomes(), done.ok), (vec![(first.as_str(), "pinned"), (second.as_str(), "pinned")], true));
    let done = pin("acme/null").await;
    let outcomes: Vec<&str> = done.outcomes().iter().map(|(_, outcome)| *outcome).collect();
    assert_eq!(outcomes, ["as_before", "as_before", "pinned", "pinned"]);
    let purged = larder.run_command("purge", "acme/null").await;
    assert_eq!((purged.items[0].pinned.as_ref().unwrap().len(), purged.ok), (4, false));
    let done = CommandReport::parse(
        fixture.post("/admin/v1/unpin", &json!({ "what": ["acme/null@1.2.0"] })).await.expect(200).json(),
    );
    assert_eq!(done.outcomes().iter().map(|(_, outcome)| *outcome).collect::<Vec<_>>(), ["unpinned"; 2]);
    assert_eq!(larder.run_command("purge", "acme/null@~> 1.2.0").await.items[0].archives, Some(2));
    for body in [json!({}), json!({ "what": ["acme/null"], "job": "0011223344556677" }), json!({ "job": "x" })] {
        fixture.post("/admin/v1/pin", &body).await.expect(400);
    }
    fixture.post("/admin/v1/unpin", &json!({ "job": "0011223344556677" })).await.expect(404);
}

/// Commands use the running larder; without one, they open the store themselves.
#[tokio::test]
async fn pin_and_unpin_on_the_command_line_work_with_a_running_larder_and_without() {
    let upstream = upstream_with(&["null"], 100).await;
    let setup = CommandSetup::new(&upstream);
    let larder = setup.serve();
    let path = larder.archive_path("null").await;
    larder.get(&path).await.expect(200);
    let package = format!("{HOST}/acme/null 1.2.0 (linux_amd64)");
    assert_eq!(
        setup.stdout_of(&["pin", "acme/null@~> 1.0"]).await,
        "acme/null 1.2.0 (linux_amd64): pinned: never evicted, and not purged\n"
    );
    assert_eq!(larder.terminate().await, Some(0));
    assert_eq!(setup.stdout_of(&["pin", "acme/null"]).await, "acme/null 1.2.0 (linux_amd64): unchanged\n");
    let output = setup.run(&["pin", "acme/other"]).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(output.out.contains("acme/other: not stored"), "{output:?}");
    let done = CommandReport::parse(parse_json(&setup.stdout_of(&["unpin", "acme/null", "--json"]).await));
    assert_eq!((done.outcomes(), done.ok), (vec![(package.as_str(), "unpinned")], true));
}

/// A package that upstream does not have is not pinned, and the report of the job says why.
#[tokio::test]
async fn an_archive_that_was_not_warmed_is_not_pinned_with_its_job() {
    let upstream = upstream_with(&["null"], 100).await;
    let larder = Larder::mirroring(&upstream).start().await;
    let fixture = WarmFixture::for_larder(&larder);
    let path = fixture
        .start_job(&json!({ "what": ["acme/null", "acme/never"], "platforms": ["linux_amd64", "plan9_386"] }))
        .await;
    let job = fixture.finished_job(&path).await;
    assert_eq!(job.states(), ["fetched", "failed", "failed", "failed"]);
    assert!(job.error(1).contains("404"), "{job}");
    let done = CommandReport::parse(fixture.post("/admin/v1/pin", &json!({ "job": job.id })).await.expect(200).json());
    let outcomes: Vec<&str> = done.outcomes().iter().map(|(_, outcome)| *outcome).collect();
    assert_eq!((outcomes, done.ok), (vec!["pinned", "not_held", "not_held", "not_held"], false), "{done}");
    assert_eq!(done.outcomes()[2].0, format!("{HOST}/acme/never (linux_amd64)"));
}

/// A running job can be pinned: its later archives are pinned as they are stored.
#[tokio::test]
async fn a_job_can_be_pinned_before_it_has_fetched_anything() {
    let upstream = upstream_with(&["null"], 100).await;
    let larder = Larder::mirroring(&upstream).start().await;
    let fixture = WarmFixture::for_larder(&larder);
    let order = json!({ "what": ["acme/null"], "platforms": PLATFORMS });
    let gate = upstream.hold_body(Target::Versions);
    let path = fixture.start_job(&order).await;
    let job = json!({ "job": path.rsplit('/').next().unwrap() });
    let run_for_job = async |command: &str| {
        let done = fixture.post(&format!("/admin/v1/{command}"), &job).await.expect(200).json();
        let done = CommandReport::parse(done);
        let outcomes: Vec<String> = done.outcomes().iter().map(|(_, outcome)| (*outcome).to_owned()).collect();
        (outcomes, done.ok)
    };
    assert_eq!(run_for_job("unpin").await, (vec!["unpinned".to_owned(); 2], true));
    assert_eq!(run_for_job("pin").await, (vec!["when_it_comes".to_owned(); 2], true));
    gate.open();
    let ended = fixture.finished_job(&path).await;
    assert_eq!((ended.states(), ended.pin), (vec!["fetched"; 2], true), "{ended}");
    assert_eq!(run_for_job("pin").await, (vec!["as_before".to_owned(); 2], true));
    let purged = larder.run_command("purge", "acme/null").await;
    assert_eq!(purged.items[0].pinned.as_ref().unwrap().len(), 2, "{purged}");
}

/// A client would get the archive passed through; the job fails and gives the reason.
#[tokio::test]
async fn an_archive_that_could_not_be_stored_is_not_reported_as_warm() {
    let upstream = upstream_with(&["null"], 3_000_000).await;
    let folder = Folder::new();
    let larder = Process::start(&Larder::mirroring(&upstream).store_at(&folder), folder.path());
    let fixture =
        WarmFixture::for_process(&larder, std::fs::read_to_string(folder.path().join("admin-token")).unwrap());
    let order = json!({ "what": ["acme/null"], "platforms": ["linux_amd64"] });
    larder.limit_file_size(Some(1_000_000));
    let job = fixture.warm(&order).await;
    assert_eq!((job.states(), folder.blobs().len()), (vec!["failed"], 0), "{job}");
    assert!(job.error(0).contains("the store failed"), "{job}");
    larder.limit_file_size(None);
    assert_eq!(fixture.warm(&order).await.states(), ["fetched"]);
}
