//! The operator's view: `check`, `client-config` and `status`, with and without a running larder, and the admin
//! listener behind them.

use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::support::command_setup::{CommandSetup, json};
use crate::support::http::{client, get, send};
use crate::support::larder::{HOST, Larder};
use crate::support::ports::free_port;
use crate::support::process::Process;
use crate::support::tls::TestCa;
use crate::support::upstream::{FakeUpstream, Provider, SigningKey};

#[tokio::test]
async fn check_reports_a_valid_configuration() {
    let setup = CommandSetup::new(&FakeUpstream::start().await);
    assert_eq!(setup.stdout_of(&["check"]).await, format!("{} is valid\n", setup.file().display()));
    let output = json(&setup.stdout_of(&["check", "--json"]).await);
    assert_eq!(output["ok"], true);
    assert_eq!(output["file"], setup.file().to_str().unwrap());
    assert_eq!(output["problems"], Value::Array(vec![]));
}

/// `check` reports every problem at once, with its line.
#[tokio::test]
async fn check_reports_every_problem_of_a_bad_configuration() {
    let mut setup = CommandSetup::new(&FakeUpstream::start().await);
    setup.text = "[server]\nlisten = \"8080\"\n[stor]\n[network]\noffline = \"no\"\n".to_owned();
    let output = setup.run(&["check"]).await;
    assert_eq!((output.code, output.out.as_str()), (Some(78), ""), "{output:?}");
    let lines = ["mirror.toml:2: server.listen", "mirror.toml:3: stor", "mirror.toml:5: network.offline"];
    for line in lines {
        assert!(output.err.contains(line), "{line} is not in: {}", output.err);
    }
    let output = setup.run(&["check", "--json"]).await;
    assert_eq!(output.code, Some(78), "{output:?}");
    let output = json(&output.out);
    assert_eq!(output["ok"], false);
    let problems = output["problems"].as_array().unwrap();
    assert_eq!(problems.len(), lines.len());
    for (problem, line) in problems.iter().zip(lines) {
        assert!(problem.as_str().unwrap().contains(line), "{problem}");
    }
}

/// Promise 8: `check` also reports what `serve` would refuse.
#[tokio::test]
async fn check_reports_everything_that_serve_would_refuse() {
    let mut setup = CommandSetup::new(&FakeUpstream::start().await);
    std::fs::write(setup.home.path().join("token"), "s3cret-s3cret").unwrap();
    setup.text =
        "[server]\nlisten = \"0.0.0.0:8080\"\n[[upstream]]\nhost = \"r.example\"\ntoken = { file = \"token\" }\n"
            .to_owned();
    let output = setup.run(&["check"]).await;
    assert_eq!(output.code, Some(78), "{output:?}");
    assert!(output.err.contains("list the allowed clients in [server]"), "{output:?}");
    let output = json(&setup.run(&["check", "--json"]).await.out);
    assert_eq!((&output["ok"], output["problems"].as_array().unwrap().len()), (&Value::Bool(false), 1));
}

/// `client-config` prints every service of the cached discovery document; without one, the two defaults, and a line on
/// standard error that says so.
#[tokio::test]
async fn client_config_is_the_same_whether_larder_runs_or_not() {
    let upstream = FakeUpstream::start().await;
    let setup = CommandSetup::new(&upstream);
    let first = setup.run(&["client-config"]).await;
    assert!(
        first.code == Some(0) && first.err.contains(&format!("{HOST}: its own list of services is not stored here")),
        "{first:?}"
    );
    let before = first.out;
    let providers = format!("\"providers.v1\" = \"{}/registry/{HOST}/v1/providers/\"", setup.base());
    let modules = format!("\"modules.v1\" = \"{}/registry/{HOST}/v1/modules/\"", setup.base());
    assert!(before.contains(&providers) && before.contains(&modules), "{before}");
    assert!(!before.contains('#'), "the block to paste has the services alone: {before}");
    assert!(!before.contains("login.v1"), "{before}");
    assert_eq!(upstream.requests().len(), 0, "printing a configuration asked an upstream");
    let offline = Process::serve(&format!("{}[network]\noffline = true\n", setup.text), setup.home.path()).unwrap();
    assert_eq!(setup.stdout_of(&["client-config"]).await, before);
    assert_eq!(offline.terminate().await, Some(0));

    let larder = setup.serve();
    larder.get(&format!("/registry/{HOST}/.well-known/terraform.json")).await.expect(200);
    let asked = setup.run(&["client-config"]).await;
    assert!(asked.code == Some(0) && asked.err.is_empty(), "{asked:?}");
    let running = asked.out;
    for service in ["providers.v1", "modules.v1", "login.v1"] {
        assert!(running.contains(&format!("\"{service}\" = ")), "{service} is not in: {running}");
    }
    assert!(running.contains(&providers) && running.contains(&modules), "{running}");
    assert!(running.contains(&format!("\"authz\" = \"{}/oauth/authorization\"", upstream.origin())), "{running}");
    assert_eq!(json(&setup.stdout_of(&["client-config", "--json"]).await)["client_config"], running);
    assert_eq!(larder.terminate().await, Some(0));
    assert_eq!(setup.stdout_of(&["client-config"]).await, running);
}

#[tokio::test]
async fn client_config_for_a_network_mirror_sends_all_configured_hosts_there() {
    let mut setup = CommandSetup::new(&FakeUpstream::start().await);
    let refused = setup.run(&["client-config", "--mirror"]).await;
    assert_eq!((refused.code, refused.out.as_str()), (Some(1), ""), "{refused:?}");
    assert!(refused.err.contains("over https only") && refused.err.contains("set [server] tls"), "{refused:?}");
    setup.text = setup.text.replacen("[server]\n", "[server]\npublic_url = \"https://mirror.example/tf/\"\n", 1);
    let check = |text: &str, base: &str| {
        assert!(text.contains(&format!("url     = \"{base}/mirror/\"")), "{text}");
        assert!(text.contains(&format!("include = [\"{HOST}/*/*\"]")), "{text}");
        assert!(text.contains(&format!("exclude = [\"{HOST}/*/*\"]")), "{text}");
    };
    let stopped = setup.stdout_of(&["client-config", "--mirror"]).await;
    check(&stopped, "https://mirror.example/tf");
    assert!(!stopped.contains("https only"), "{stopped}");
    let larder = setup.serve();
    assert_eq!(setup.stdout_of(&["client-config", "--mirror"]).await, stopped);
    larder.kill();
}

#[tokio::test]
async fn status_reports_the_store_whether_larder_runs_or_not() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let setup = CommandSetup::new(&upstream);
    let length = upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64").len();
    let larder = setup.serve();
    let path = larder.archive_path("null").await;
    for _ in 0..2 {
        larder.get(&path).await.expect(200);
    }

    let status = json(&setup.stdout_of(&["status", "--json"]).await);
    assert_eq!((&status["archives"], &status["archive_bytes"]), (&1.into(), &length.into()), "{status}");
    assert_eq!(status["upstreams"], serde_json::json!([HOST]));
    let since = &status["since_start"];
    assert_eq!((&since["requests"]["miss"], &since["requests"]["hit"]), (&2.into(), &1.into()), "{status}");
    assert!(since["sent_bytes"].as_u64().unwrap() > 2 * length as u64, "{status}");
    assert!(since["upstream_bytes"].as_u64().unwrap() > length as u64, "{status}");
    let table = setup.stdout_of(&["status"]).await;
    for part in ["running", HOST, "1 hit", "2 miss"] {
        assert!(table.contains(part), "{part} is not in: {table}");
    }

    assert_eq!(larder.terminate().await, Some(0));
    let stopped = json(&setup.stdout_of(&["status", "--json"]).await);
    for field in ["archives", "archive_bytes", "documents", "document_bytes", "upstreams", "store", "version"] {
        assert_eq!(stopped[field], status[field], "{field}");
    }
    assert_eq!(stopped["since_start"], Value::Null);
    assert!(setup.stdout_of(&["status"]).await.contains("not running"));
}

/// `status` shows what needs an operator: a version that waits for a decision, an open breaker, refused clients, a store
/// that is no longer at its path.
#[tokio::test]
async fn status_shows_alarms_that_a_person_must_resolve() {
    let mut upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let mut setup = CommandSetup::new(&upstream);
    setup.text.push_str("fresh = { versions = \"0s\", discovery = \"0s\", download = \"0s\", not_found = \"0s\" }\n");
    let larder = setup.serve();
    larder.document("null").await.expect(200);
    let healthy = setup.stdout_of(&["status"]).await;
    for part in ["store        ready", "refused    none"] {
        assert!(healthy.contains(part), "{part} is not in: {healthy}");
    }
    assert!(!healthy.contains("alarms") && !healthy.contains("BACKING OFF"), "{healthy}");

    upstream.publish(Provider::new("acme", "null").edition(2).signed_by(&SigningKey::new_key()));
    larder.document("null").await.expect(200);
    larder.get("/nowhere").await.expect(404);
    upstream.stop().await;
    larder.document("null").await.expect(200);
    let (store, moved_store) = (setup.home.path().join("v1"), setup.home.path().join("away"));
    std::fs::rename(&store, &moved_store).unwrap();
    let shown = setup.stdout_of(&["status"]).await;
    let accept = format!("larder accept {HOST}/acme/null@1.2.0");
    for part in ["store        GONE", &accept, "BACKING OFF after failures: http://127.0.0.1:", "1 no-route"] {
        assert!(shown.contains(part), "{part} is not in: {shown}");
    }
    let status = json(&setup.stdout_of(&["status", "--json"]).await);
    assert_eq!((&status["store_state"], &status["alarms"][0]["kind"]), (&"gone".into(), &"waits-for-accept".into()));
    assert_eq!(status["since_start"]["upstreams"][0]["left_alone"].as_array().unwrap().len(), 1, "{status}");
    std::fs::rename(&moved_store, &store).unwrap();
}

/// Commands find the token in its default file or in the configured one.
#[tokio::test]
async fn commands_reach_an_admin_listener_off_loopback_with_its_token() {
    let upstream = FakeUpstream::start().await;
    for configured in ["", "token = { file = \"our-token\" }"] {
        let admin = format!("listen = \"0.0.0.0:{}\"\n{configured}", free_port());
        let setup = CommandSetup::with_admin(&upstream, &admin);
        std::fs::write(setup.home.path().join("our-token"), "0123456789abcdef0123456789abcdef").unwrap();
        let _larder = setup.serve();
        assert!(setup.stdout_of(&["status"]).await.contains("(running)"), "{configured}");
        assert!(setup.stdout_of(&["client-config"]).await.contains(&setup.base()), "{configured}");
    }
}

/// A command that finds no larder at the admin address of its configuration, although one uses the store, of a version that
/// does not note where it listens.
#[tokio::test]
async fn a_command_reports_that_the_store_is_in_use() {
    let upstream = FakeUpstream::start().await;
    let mut setup = CommandSetup::new(&upstream);
    let _larder = setup.serve();
    let elsewhere = format!("[admin]\nlisten = \"127.0.0.1:{}\"", free_port());
    let admin = setup.text.find("[admin]").unwrap()..setup.text.find("[store]").unwrap();
    setup.text.replace_range(admin, &format!("{elsewhere}\n"));
    assert_eq!(setup.run(&["status"]).await.code, Some(0), "the lock file names the larder");
    std::fs::write(setup.home.path().join("v1/lock"), "").unwrap();
    let output = setup.run(&["status"]).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(output.err.contains("is in use") && output.err.contains("--admin-listen"), "{output:?}");
}

/// Requests with an Origin, or on loopback with a foreign Host, are refused.
#[tokio::test]
async fn the_admin_listener_refuses_web_pages_and_foreign_names() {
    let larder = Larder::mirroring(&FakeUpstream::start().await).start().await;
    for path in ["/metrics", "/admin/v1/status", "/admin/v1/client-config"] {
        let url = format!("{}{path}", larder.admin());
        get(&url).await.expect(200);
        send(client().get(&url).header("host", "localhost:8081")).await.unwrap().expect(200);
        for (name, value) in [("host", "evil.example"), ("host", "10.0.0.1:8081"), ("origin", "http://localhost")] {
            let refused = send(client().get(&url).header(name, value)).await.unwrap().expect(403);
            assert_eq!(refused.json()["errors"].as_array().unwrap().len(), 1, "{path} {name} {value}");
        }
    }
    get(&format!("{}/admin/v1/nothing", larder.admin())).await.expect(404);
    for path in ["/metrics", "/admin/v1/status"] {
        larder.get(path).await.expect(404);
    }
}

/// Reading needs the token unless the listener is on loopback; health probes never need it.
#[tokio::test]
async fn off_loopback_the_admin_listener_requires_its_token() {
    let upstream = FakeUpstream::start().await;
    let setup = CommandSetup::with_admin(&upstream, &format!("listen = \"0.0.0.0:{}\"", free_port()));
    let larder = setup.serve();
    let file = setup.home.path().join("admin-token");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let token = std::fs::read_to_string(&file).unwrap();
    let admin = larder.admin().replace("0.0.0.0", "127.0.0.1");
    for probe in ["/healthz", "/readyz"] {
        get(&format!("{admin}{probe}")).await.expect(200);
    }
    for path in ["/metrics", "/admin/v1/status", "/admin/v1/client-config"] {
        let url = format!("{admin}{path}");
        let request_with = async |token: &str| send(client().get(&url).bearer_auth(token)).await.unwrap();
        get(&url).await.expect(401);
        request_with("").await.expect(401);
        request_with(&token[1..]).await.expect(401);
        request_with(&token).await.expect(200);
        send(client().get(&url).bearer_auth(&token).header("origin", "null")).await.unwrap().expect(403);
    }
    larder.kill();
    let larder = setup.serve();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), token, "a restart made another token");
    drop(larder);
}

#[tokio::test]
async fn metrics_count_requests_by_route_and_outcome_and_upstream_traffic_by_host() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let larder = Larder::mirroring(&upstream).start().await;
    let path = larder.archive_path("null", "1.2.0").await;
    for _ in 0..3 {
        larder.get(&path).await.expect(200);
    }
    larder.versions("absent").await.expect(404);
    let metrics = get(&format!("{}/metrics", larder.admin())).await.expect(200);
    assert!(metrics.header("content-type").starts_with("application/openmetrics-text"));
    let text = metrics.text();
    assert!(text.ends_with("# EOF\n"), "{text}");
    let requests = upstream.requests();
    let with_status = |status| requests.iter().filter(|request| request.status == Some(status)).count();
    let bytes: u64 = requests.iter().map(|request| request.bytes_sent).sum();
    for line in [
        "larder_requests_total{route=\"archive\",outcome=\"miss\"} 1".to_owned(),
        "larder_requests_total{route=\"archive\",outcome=\"hit\"} 2".to_owned(),
        "larder_requests_total{route=\"download\",outcome=\"miss\"} 1".to_owned(),
        "larder_requests_total{route=\"versions\",outcome=\"absent\"} 1".to_owned(),
        format!("larder_upstream_requests_total{{host=\"{HOST}\",status=\"200\"}} {}", with_status(200)),
        format!("larder_upstream_requests_total{{host=\"{HOST}\",status=\"404\"}} {}", with_status(404)),
        format!("larder_upstream_bytes_total{{host=\"{HOST}\"}} {bytes}"),
        "larder_fills_under_way 0".to_owned(),
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in: {text}");
    }
    assert!(larder.metric("larder_sent_bytes_total").await > 3.0 * 4096.0);
}

/// `check` reports a key that does not belong to the certificate, with which `serve` would not start.
#[tokio::test]
async fn check_refuses_a_certificate_that_serve_would_refuse() {
    let mut setup = CommandSetup::new(&FakeUpstream::start().await);
    let ca = TestCa::new();
    let ((certificate, _), (_, key)) = (ca.issue(&["localhost"]), ca.issue(&["localhost"]));
    std::fs::write(setup.home.path().join("cert.pem"), certificate).unwrap();
    std::fs::write(setup.home.path().join("key.pem"), key).unwrap();
    setup.text = "[server]\ntls = { certificate = \"cert.pem\", key = \"key.pem\" }\n".to_owned();
    let output = setup.run(&["check"]).await;
    assert_eq!(output.code, Some(78), "{output:?}");
    assert!(output.err.contains("server.tls") && output.err.contains("cert.pem"), "{output:?}");
}

/// On a machine where larder never ran, these commands create no files.
#[tokio::test]
async fn status_and_client_config_create_no_store() {
    let setup = CommandSetup::new(&FakeUpstream::start().await);
    let store = setup.home.path().join("v1");
    assert!(setup.stdout_of(&["client-config"]).await.contains("providers.v1"));
    let output = setup.run(&["status"]).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(output.err.contains("there is no store in"), "{output:?}");
    assert!(!store.exists());
}
