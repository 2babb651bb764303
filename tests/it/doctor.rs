//! `larder doctor` on larder's own side: the running larder, its store, disk, clock, token and upstreams. Each fault
//! fails exactly one check, identified by its id, with advice.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::support::command_setup::{CommandSetup, json};
use crate::support::doctor_setup::{
    DoctorReport, configure_client, doctor, enable_tls, examine, providers_url, registry, small_store_setup, write,
};
use crate::support::larder::HOST;
use crate::support::ports::free_port;
use crate::support::process::run;
use crate::support::small_disk::SmallDisk;
use crate::support::terraform::host_override;
use crate::support::tls::TestCa;
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target};

fn files_below(folder: &Path) -> Vec<String> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { files.push(path.display().to_string()) }
        }
    }
    files.sort();
    files
}

#[tokio::test]
async fn the_doctor_reports_a_healthy_setup_and_changes_nothing() {
    let upstream = registry().await;
    let setup = small_store_setup(&upstream);
    let larder = setup.serve();
    configure_client(&setup);
    // The start may fetch discovery too: complete that before counting requests.
    larder.get(&format!("/registry/{HOST}/.well-known/terraform.json")).await.expect(200);
    upstream.forget_requests();
    let upstream_requests = larder.metric("larder_upstream_requests_total").await;
    let files_before = files_below(&setup.home.path().join("v1"));
    let report = examine(&setup, &[]).await;
    report.assert_healthy();
    for id in ["config", "running", "token", "store", "disk", "listener", "client.files", "client.override", "clock"] {
        report.finding(id);
    }
    assert!(report.finding("upstream.discovery").contains("providers.v1 and modules.v1"), "{report:#?}");
    assert!(report.finding("upstream.list").contains("hashicorp/null has 1 version"), "{report:#?}");
    assert!(report.finding("token").contains("has the same"), "{report:#?}");
    let links = report.finding("listener.links");
    assert!(links.contains("Checkov, Trivy, Renovate and others need [server] public_url"), "{links}");
    assert!(report.finding("clock").contains(HOST), "{report:#?}");
    assert_eq!(files_below(&setup.home.path().join("v1")), files_before);
    assert_eq!((upstream.count_of(Target::Discovery), upstream.count_of(Target::Versions)), (1, 1));
    let upstream_requests_afterwards = larder.metric("larder_upstream_requests_total").await;
    assert_eq!(upstream_requests_afterwards, upstream_requests, "the doctor made larder send requests to its upstream");
    // The doctor's probes are not counted as requests or refusals of clients.
    let status = json(&setup.stdout_of(&["status", "--json"]).await);
    assert_eq!(status["since_start"]["refused"], serde_json::json!({}), "{status:#}");
    assert_eq!(
        status["since_start"]["requests"].as_object().unwrap().values().filter_map(Value::as_u64).sum::<u64>(),
        1
    );
}

/// A result (`ok`, `FAIL`) starts each line, and output that is not a terminal has no colours.
#[tokio::test]
async fn each_check_is_a_line_with_its_advice_below() {
    let mut upstream = registry().await;
    let setup = small_store_setup(&upstream);
    let _larder = setup.serve();
    configure_client(&setup);
    let output = run(doctor(&setup, &[], &[])).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    let (checks, summary) = output.out.trim_end().split_once("\n\n").unwrap();
    assert!(checks.lines().all(|line| line.starts_with("ok    ")), "{output:?}");
    assert_eq!(summary, "no problems");
    upstream.stop().await;
    let output = run(doctor(&setup, &[], &[])).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    let lines: Vec<&str> = output.out.lines().collect();
    let failed_line = lines.iter().position(|line| line.starts_with("FAIL  upstream.connection")).unwrap();
    assert!(lines[failed_line + 1].starts_with("      -> "), "{output:?}");
    assert!(output.out.ends_with("\n1 problem\n"), "{output:?}");
    assert!(!output.out.contains('\u{1b}'), "{output:?}");
}

#[tokio::test]
async fn a_configuration_that_does_not_load_is_reported_problem_by_problem() {
    let mut setup = CommandSetup::new(&registry().await);
    setup.text = "[server]\nlisten = \"8080\"\n[stor]\n".to_owned();
    let report = examine(&setup, &[]).await;
    report.assert_fails(&["config", "config"], "stor");
    assert_eq!(report.checks.len(), 2);
}

#[tokio::test]
async fn without_a_running_larder_the_other_checks_still_run() {
    let upstream = registry().await;
    let setup = small_store_setup(&upstream);
    configure_client(&setup);
    let report = examine(&setup, &[]).await;
    report.assert_fails(&["running"], "no larder runs");
    assert!(report.finding("upstream.list").contains("hashicorp/null"), "{report:#?}");
    assert!(report.finding("client.override").contains("which does not run"), "{report:#?}");
    assert!(report.finding("store").contains("created at the first start"), "{report:#?}");
    assert!(!setup.home.path().join("v1").exists(), "the doctor created a store");
}

#[tokio::test]
async fn a_larder_with_another_configuration_is_distinguished_from_none() {
    let upstream = registry().await;
    let mut setup = small_store_setup(&upstream);
    let _larder = setup.serve();
    configure_client(&setup);
    let original_config = setup.text.clone();
    let port = original_config.split("[admin]\nlisten = \"127.0.0.1:").nth(1).unwrap().split('"').next().unwrap();
    setup.text = original_config.replace(port, &free_port().to_string());
    let report = examine(&setup, &[]).await;
    // A command finds the larder by its store.
    report.assert_warns("running", "larder runs with its admin listener on");
    // The reverse: the right admin listener, and a store path that the running larder does not use.
    setup.text = original_config.replace("path = \"", "path = \"/nowhere");
    let report = examine(&setup, &[]).await;
    assert!(report.finding("running").contains("is not in use"), "{report:#?}");
}

/// Promise 15: the doctor and every command distinguish another program on the port from a larder that hangs.
#[tokio::test]
async fn another_program_on_the_port_of_the_admin_listener_is_reported() {
    let upstream = registry().await;
    let mut setup = small_store_setup(&upstream);
    let larder = setup.serve();
    let port = setup.text.split("[admin]\nlisten = \"127.0.0.1:").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let upstream_port = url::Url::parse(&upstream.origin()).unwrap().port().unwrap();
    setup.text = setup.text.replace(&port, &upstream_port.to_string());
    // A command finds the larder by its store.
    assert_eq!(setup.run(&["status"]).await.code, Some(0));
    larder.terminate().await;
    let report = examine(&setup, &[]).await;
    assert_eq!(report.ids("fail"), ["running"]);
    let message = format!("something else answers on 127.0.0.1:{upstream_port}, and not larder (404");
    assert!(report.finding("running").contains(&message), "{report:#?}");
    assert!(report.advice("running").contains("[admin] listen"), "{report:#?}");
    // A named listener must prove itself to every command.
    let named = format!("127.0.0.1:{upstream_port}");
    let output = setup.run(&["status", "--admin-listen", &named]).await;
    assert!(
        output.code == Some(1) && output.err.contains("does not prove that it knows the admin token"),
        "{output:?}"
    );
}

#[tokio::test]
async fn an_upstream_that_is_down_is_reported_as_refusing() {
    let mut upstream = registry().await;
    let setup = small_store_setup(&upstream);
    let _larder = setup.serve();
    configure_client(&setup);
    upstream.stop().await;
    examine(&setup, &[]).await.assert_fails(&["upstream.connection"], "connection refused");
}

#[tokio::test]
async fn an_upstream_whose_name_does_not_resolve_fails_its_name_check() {
    let upstream = registry().await;
    let mut setup = small_store_setup(&upstream);
    setup.text = setup.text.replace(&upstream.origin(), "https://no-such-registry.invalid");
    let _larder = setup.serve();
    configure_client(&setup);
    let report = examine(&setup, &[]).await;
    report.assert_fails(&["upstream.name"], "no-such-registry.invalid does not resolve");
}

#[tokio::test]
async fn each_kind_of_upstream_failure_has_its_own_error() {
    let upstream = registry().await;
    let setup = small_store_setup(&upstream);
    let _larder = setup.serve();
    configure_client(&setup);
    for (target, fault, id, finding) in [
        (Target::Discovery, Fault::Html, "upstream.discovery", "expected application/json, got text/html"),
        (Target::Discovery, Fault::InvalidJson, "upstream.discovery", "is not a JSON object"),
        (Target::Discovery, Fault::Status(503), "upstream.discovery", "answered 503"),
        (Target::Discovery, Fault::Status(404), "upstream.discovery", "does not exist (404)"),
        (Target::Discovery, Fault::Status(401), "upstream.discovery", "refused larder's request (401)"),
        (
            Target::Discovery,
            Fault::RedirectTo(302, "http://127.0.0.2:9/".into()),
            "upstream.discovery",
            "allow_private",
        ),
        (Target::Versions, Fault::Html, "upstream.list", "hashicorp/null is invalid"),
        (Target::Versions, Fault::Status(500), "upstream.list", "answered 500"),
    ] {
        upstream.fault(target, fault);
        examine(&setup, &[]).await.assert_fails(&[id], finding);
        upstream.clear_faults();
    }
    upstream.fault(Target::Versions, Fault::Status(404));
    examine(&setup, &[]).await.assert_warns("upstream.list", "(404)");
}

#[tokio::test]
async fn an_upstream_with_an_untrusted_certificate_fails_its_tls_check() {
    let upstream = FakeUpstream::builder().tls().start().await;
    upstream.publish(Provider::new("hashicorp", "null"));
    let mut setup = small_store_setup(&upstream);
    let larder = setup.serve();
    configure_client(&setup);
    let report = examine(&setup, &[]).await;
    report.assert_fails(&["upstream.tls"], "is not trusted");
    assert!(report.finding("upstream.connection").contains("connected"), "{report:#?}");
    larder.kill();
    write(&setup, "ca.pem", &upstream.ca().pem());
    setup.text = format!("{}[network]\nca_file = \"ca.pem\"\n", setup.text);
    let _larder = setup.serve();
    let report = examine(&setup, &[]).await;
    report.assert_healthy();
    assert!(report.finding("upstream.tls").contains("trusted"), "{report:#?}");
}

/// Neither a silent upstream nor a silent program on larder's own port makes the doctor hang.
#[tokio::test]
async fn an_upstream_that_never_answers_is_not_waited_for() {
    let upstream = registry().await;
    let setup = small_store_setup(&upstream);
    configure_client(&setup);
    let admin = setup.text.split("[admin]\nlisten = \"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let _silent = std::net::TcpListener::bind(admin).unwrap();
    upstream.fault(Target::Discovery, Fault::NeverAnswers);
    let report = examine(&setup, &[]).await;
    report.assert_fails(&["running", "upstream.connection"], "no answer from");
}

/// Promise 12: the doctor sends nothing to the upstreams of an offline larder.
#[tokio::test]
async fn the_doctor_sends_nothing_upstream_when_the_configuration_is_offline() {
    let upstream = registry().await;
    let mut setup = small_store_setup(&upstream);
    setup.text = format!("{}[network]\noffline = true\n", setup.text);
    let _larder = setup.serve();
    configure_client(&setup);
    let report = examine(&setup, &[]).await;
    report.assert_healthy();
    assert!(report.finding("upstreams").contains("offline"), "{report:#?}");
    assert_eq!(upstream.requests().len(), 0);
}

/// `serve --offline` makes larder offline although the configuration file, which the doctor reads, does not.
#[tokio::test]
async fn the_doctor_sends_nothing_upstream_when_only_the_running_larder_is_offline() {
    let upstream = registry().await;
    let mut setup = small_store_setup(&upstream);
    let online = setup.text.clone();
    setup.text.push_str("[network]\noffline = true\n");
    let _larder = setup.serve();
    setup.text = online;
    configure_client(&setup);
    let report = examine(&setup, &[]).await;
    report.assert_healthy();
    assert!(report.finding("upstreams").contains("offline"), "{report:#?}");
    assert_eq!(upstream.requests().len(), 0);
}

/// A URL in a client's configuration may belong to anyone, unless it is this larder.
#[tokio::test]
async fn offline_urls_of_the_client_configuration_are_not_probed() {
    let upstream = registry().await;
    let mut setup = small_store_setup(&upstream);
    setup.text = format!("{}[network]\noffline = true\n", setup.text);
    let _larder = setup.serve();
    let (upstream_providers, modules) = (upstream.providers_url(), format!("{}/v1/modules/", upstream.origin()));
    write(&setup, ".terraformrc", &host_override(HOST, &upstream_providers, &modules));
    examine(&setup, &[]).await.assert_warns("client.override", "is not checked: larder is offline");
    assert_eq!(upstream.requests().len(), 0);
}

#[tokio::test]
async fn a_clock_that_is_off_by_a_day_fails_and_one_by_minutes_is_a_warning() {
    let upstream = registry().await;
    let setup = small_store_setup(&upstream);
    let _larder = setup.serve();
    configure_client(&setup);
    for (seconds, finding) in [(86_430, "1day behind"), (-86_430, "1day ahead of")] {
        upstream.fault(Target::Discovery, Fault::ClockOff(seconds));
        examine(&setup, &[]).await.assert_fails(&["clock"], finding);
        upstream.clear_faults();
    }
    upstream.fault(Target::Discovery, Fault::ClockOff(1200));
    examine(&setup, &[]).await.assert_warns("clock", "behind registry.terraform.io");
}

#[tokio::test]
async fn a_missing_token_is_distinguished_from_a_wrong_one() {
    let upstream = registry().await;
    let setup = small_store_setup(&upstream);
    let _larder = setup.serve();
    configure_client(&setup);
    let file = setup.home.path().join("admin-token");
    let token = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    examine(&setup, &[]).await.assert_fails(&["token"], "missing");
    std::fs::write(&file, "0123456789abcdef".repeat(4)).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    examine(&setup, &[]).await.assert_fails(&["token"], "has another token than");
    std::fs::write(&file, "").unwrap();
    examine(&setup, &[]).await.assert_fails(&["token"], "has no token");
    std::fs::write(&file, token).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    examine(&setup, &[]).await.assert_fails(&["token"], "mode 0644");
}

/// Root ignores permissions, so the store's parent is a file.
#[tokio::test]
async fn a_store_that_cannot_be_created_fails_the_store_check() {
    let upstream = registry().await;
    let mut setup = small_store_setup(&upstream);
    write(&setup, "file", "no folder");
    let file = setup.home.path().join("file").display().to_string();
    let path = format!("path = \"{}\"", setup.home.path().display());
    setup.text = setup.text.replace(&path, &format!("path = \"{file}/store\""));
    configure_client(&setup);
    examine(&setup, &[]).await.assert_fails(&["running", "store"], &file);
}

/// Runs the doctor in a mount namespace that this shell line has prepared.
async fn examine_in_mount_namespace(preparation: &str, setup: &CommandSetup) -> DoctorReport {
    let larder = doctor(setup, &["--json"], &[]);
    let mut shell = Command::new("unshare");
    shell.args(["-rm", "/bin/sh", "-c", &format!("{preparation} && exec \"$@\""), "sh"]);
    shell.arg(larder.get_program()).args(larder.get_args());
    for (name, value) in larder.get_envs().filter(|(name, _)| *name != "PATH") {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    DoctorReport::from_output(&run(shell).await)
}

/// The doctor finds the read-only disk although larder is running.
#[tokio::test]
async fn a_store_that_cannot_be_written_fails_the_store_check() {
    if !SmallDisk::is_possible() {
        return;
    }
    let upstream = registry().await;
    let setup = small_store_setup(&upstream);
    let _larder = setup.serve();
    configure_client(&setup);
    let v1 = setup.home.path().join("v1").display().to_string();
    let read_only = format!("mount --bind '{v1}' '{v1}' && mount -o remount,bind,ro '{v1}'");
    let report = examine_in_mount_namespace(&read_only, &setup).await;
    report.assert_fails(&["store"], "not writable");
    assert!(report.finding("store").contains("Read-only file system"), "{report:#?}");
    assert!(report.finding("store").contains(&v1), "{report:#?}");
}

#[tokio::test]
async fn a_disk_that_is_nearly_full_fails_the_disk_check() {
    if !SmallDisk::is_possible() {
        return;
    }
    let upstream = registry().await;
    let setup = small_store_setup(&upstream);
    configure_client(&setup);
    let store = setup.home.path().join("v1");
    std::fs::create_dir_all(&store).unwrap();
    let small_disk = format!("mount -t tmpfs -o size=40m none '{}'", store.display());
    examine_in_mount_namespace(&small_disk, &setup)
        .await
        .assert_fails(&["running", "disk"], "nearly full: 40.0 MiB free of 40.0 MiB");
}

/// The store would fill its disk before larder evicts anything.
#[tokio::test]
async fn a_limit_that_is_larger_than_the_disk_is_a_warning() {
    let upstream = registry().await;
    let mut setup = small_store_setup(&upstream);
    setup.text = setup.text.replace("64MiB", "900PiB");
    let _larder = setup.serve();
    configure_client(&setup);
    examine(&setup, &[]).await.assert_warns("disk", "beyond its disk");
}

/// The doctor connects to the public address as a client would, and checks the certificate against this machine's
/// roots.
#[tokio::test]
async fn a_listener_certificate_that_clients_would_reject_fails_the_check() {
    let upstream = registry().await;
    let ca = TestCa::new();
    for (names, trusted, fault) in [
        (&["127.0.0.1"][..], true, None),
        (&["127.0.0.1"], false, Some("not trusted here")),
        (&["mirror.example"], true, Some("is for mirror.example, and not for this name")),
    ] {
        let mut setup = small_store_setup(&upstream);
        let (certificate, key) = ca.issue(names);
        enable_tls(&mut setup, &certificate, &key);
        write(&setup, "ca.pem", &ca.pem());
        let _larder = setup.serve();
        let file = setup.home.path().join("ca.pem");
        let environment = [("SSL_CERT_FILE", file.to_str().unwrap())];
        let report = examine(&setup, if trusted { &environment } else { &[] }).await;
        match fault {
            None => {
                report.assert_warns("client.files", "no CLI configuration");
                assert!(report.finding("listener.certificate").contains("trusted here"), "{report:#?}");
            }
            Some(finding) => report.assert_fails(&["listener.certificate"], finding),
        }
    }
}

/// A certificate that expires within two weeks is a warning; an expired one fails both the listener and the client
/// check.
#[tokio::test]
async fn a_certificate_is_reported_before_and_after_it_expires() {
    let upstream = registry().await;
    let ca = TestCa::new();
    let (now, day) = (SystemTime::now(), Duration::from_secs(24 * 3600));
    for end in [now + 3 * day, now + 30 * day, now - 3 * day] {
        let mut setup = small_store_setup(&upstream);
        let (certificate, key) = ca.issue_until(&["127.0.0.1"], Some(end));
        enable_tls(&mut setup, &certificate, &key);
        write(&setup, "ca.pem", &ca.pem());
        let _larder = setup.serve();
        let providers = providers_url(&setup).replace("http:", "https:");
        write(&setup, ".terraformrc", &host_override(HOST, &providers, &format!("https://{HOST}/v1/modules/")));
        let file = setup.home.path().join("ca.pem");
        let report = examine(&setup, &[("SSL_CERT_FILE", file.to_str().unwrap())]).await;
        let date = humantime::format_rfc3339_seconds(end).to_string()[..10].to_owned();
        if end > now + 14 * day {
            report.assert_healthy();
        } else if end > now {
            report.assert_warns("listener.certificate", &format!("expires soon ({date})"));
        } else {
            let finding = format!("its certificate has expired ({date})");
            report.assert_fails(&["listener.certificate", "client.certificate"], &finding);
        }
    }
}

/// Promise 8: no secret is printed, from any file or variable.
#[tokio::test]
async fn no_secret_is_printed() {
    let upstream = FakeUpstream::builder().token("s3cret-of-larder").start().await;
    let mut setup = small_store_setup(&upstream);
    write(&setup, "upstream-token", "s3cret-of-larder");
    setup.text.push_str("token = { file = \"upstream-token\" }\n");
    let _larder = setup.serve();
    configure_client(&setup);
    let credentials = "credentials \"registry.terraform.io\" {\n  token = \"s3cret-of-client\"\n}\n";
    write(&setup, ".terraform.d/a.tfrc", credentials);
    let admin_token = std::fs::read_to_string(setup.home.path().join("admin-token")).unwrap();
    let environment =
        [("TF_TOKEN_app_terraform_io", "s3cret-of-env"), ("HTTPS_PROXY", "http://me:s3cret-of-proxy@127.0.0.1:9")];
    for arguments in [&["--json"][..], &[]] {
        let output = run(doctor(&setup, arguments, &environment)).await;
        let text = format!("{}{}", output.out, output.err);
        assert!(text.contains("client.files"), "{text}");
        assert!(!text.contains("s3cret") && !text.contains(&admin_token), "{text}");
    }
}
