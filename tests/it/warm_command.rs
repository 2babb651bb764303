//! `larder warm` on the command line: its request to the running larder, its output, its exit status.

use std::process::Command;

use http::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::admin::{FakeAdmin, JobScript, TOKEN};
use crate::support::command_setup;
use crate::support::eventually;
use crate::support::larder::{Folder, HOST};
use crate::support::ports::free_port;
use crate::support::process::{CommandOutput, command, run, spawn_captured};
use crate::support::reports::JobReport;
use crate::support::upstream::{FakeUpstream, Fault, Provider, Target};
use crate::support::warm_fixture::{both_platforms, items};

const AWS: &str = "registry.terraform.io/hashicorp/aws@5.31.0";
const NULL: &str = "registry.terraform.io/hashicorp/null@3.2.2";
const LOCK: &str = "provider \"registry.terraform.io/hashicorp/aws\" {\n  version = \"5.31.0\"\n}\n";

fn item(subject: &str, state: &str, bytes: u64, size_bytes: Option<u64>) -> Value {
    let (address, version) = subject.split_once('@').unwrap();
    json!({
        "address": address, "version": version, "platform": "linux_amd64",
        "state": state, "bytes": bytes, "size_bytes": size_bytes,
    })
}

fn failed(subject: &str, error: &str) -> Value {
    let mut item = item(subject, "failed", 0, None);
    item["error"] = error.into();
    item
}

/// A job report of the fake admin listener, which numbers its jobs.
fn job(id: usize, state: &str, items: &[Value]) -> Value {
    let ended = (state != "running").then_some(1_795_293_770);
    json!({
        "id": id.to_string(), "state": state, "started": 1_795_293_761, "ended": ended, "what": ["hashicorp/aws"],
        "platforms": ["linux_amd64"], "pin": false, "items": items,
    })
}

/// A configuration whose admin listener is the fake one, and a folder to work in.
struct WarmCommandSetup {
    home: Folder,
    admin: FakeAdmin,
}

impl WarmCommandSetup {
    async fn with_scripts(scripts: Vec<JobScript>) -> Self {
        let (home, admin) = (Folder::new(), FakeAdmin::start(scripts).await);
        let token = "token = { file = \"our-token\" }";
        let text = format!(
            "[admin]\nlisten = \"{}\"\n{token}\n[store]\npath = \"{}\"\n",
            admin.address(),
            home.path().display()
        );
        std::fs::write(home.path().join("mirror.toml"), text).unwrap();
        std::fs::write(home.path().join("our-token"), TOKEN).unwrap();
        std::fs::write(home.path().join(".terraform.lock.hcl"), LOCK).unwrap();
        Self { home, admin }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let arguments = [&["warm"], arguments, &["--config", "mirror.toml"]].concat();
        let mut command = command(self.home.path(), &arguments);
        command.current_dir(self.home.path());
        command
    }

    async fn run(&self, arguments: &[&str]) -> CommandOutput {
        run(self.command(arguments)).await
    }
}

/// Plain lines without a terminal: one for each archive when it ends, and a summary.
#[tokio::test]
async fn each_archive_has_a_line_when_it_ends_and_then_there_is_a_summary() {
    let running = |aws: Value, null: Value| job(0, "running", &[aws, null]);
    let setup = WarmCommandSetup::with_scripts(vec![JobScript::of(vec![
        running(item(AWS, "waiting", 0, None), item(NULL, "waiting", 0, None)),
        running(item(AWS, "fetching", 1 << 20, Some(3 << 20)), item(NULL, "held", 0, Some(4096))),
        running(item(AWS, "fetching", 2 << 20, Some(3 << 20)), item(NULL, "held", 0, Some(4096))),
        job(0, "done", &[item(AWS, "fetched", 3 << 20, Some(3 << 20)), item(NULL, "held", 0, Some(4096))]),
    ])])
    .await;
    let arguments =
        ["hashicorp/aws@~> 5.0", "hashicorp/null", "--platform", "linux_amd64", "--platform", "darwin_arm64"];
    let output = setup.run(&arguments).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    let stored = "stored    hashicorp/null 3.2.2 (linux_amd64)  4.0 KiB\n";
    let fetched = "fetched   hashicorp/aws 5.31.0 (linux_amd64)  3.0 MiB\n";
    let summary = output.out.strip_prefix(&format!("{stored}{fetched}")).unwrap_or_else(|| panic!("{output:?}"));
    assert!(summary.starts_with("2 archives: 1 already stored, 1 fetched; 3.0 MiB in "), "{summary}");
    assert_eq!(output.err, "");

    let requests = setup.admin.requests();
    assert_eq!((&requests[0].method, requests[0].path.as_str()), (&Method::POST, "/admin/v1/warm"));
    assert_eq!(requests[0].headers["content-type"], "application/json");
    assert_eq!(requests[0].headers["authorization"], "Bearer 0123456789abcdef0123456789abcdef");
    let request = json!({
        "what": ["hashicorp/aws@~> 5.0", "hashicorp/null"], "platforms": ["linux_amd64", "darwin_arm64"]
    });
    assert_eq!(serde_json::from_str::<Value>(&requests[0].body).unwrap(), request);
    let polls = &requests[1..];
    assert!(polls.iter().all(|poll| poll.method == Method::GET && poll.path == "/admin/v1/jobs/0"), "{polls:?}");
    assert_eq!(polls.len(), 3, "it polled after the end");
}

#[tokio::test]
async fn everything_that_one_command_names_is_one_job() {
    let items = [item(NULL, "fetched", 5, Some(5)), item(AWS, "fetched", 5, Some(5))];
    let setup = WarmCommandSetup::with_scripts(vec![JobScript::of(vec![job(0, "done", &items)])]).await;
    let arguments = [".terraform.lock.hcl", "hashicorp/null", "--pin", "--platform", "linux_amd64"];
    let output = setup.run(&arguments).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.out.contains("2 archives: 2 fetched; 10 B in 0 s"), "{output:?}");
    let requests = setup.admin.requests();
    assert_eq!((requests.len(), requests[0].path.as_str()), (1, "/admin/v1/warm"));
    let request = json!({
        "what": ["hashicorp/null"], "lock_files": [{ "name": ".terraform.lock.hcl", "text": LOCK }],
        "platforms": ["linux_amd64"], "pin": true,
    });
    assert_eq!(serde_json::from_str::<Value>(&requests[0].body).unwrap(), request);
}

/// `--json` prints the job's last report and nothing else.
#[tokio::test]
async fn as_json_the_last_report_of_each_job_is_printed() {
    let last = job(0, "done", &[item(AWS, "fetched", 5, Some(5))]);
    let script = JobScript::of(vec![job(0, "running", &[item(AWS, "resolving", 0, None)]), last.clone()]);
    let output = WarmCommandSetup::with_scripts(vec![script]).await.run(&["hashicorp/aws", "--json"]).await;
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""), "{output:?}");
    // A running larder of an older version sends seconds.
    let mut expected = last;
    expected["started"] = json!("2026-11-21T20:42:41Z");
    expected["ended"] = json!("2026-11-21T20:42:50Z");
    assert_eq!(serde_json::from_str::<Value>(&output.out).unwrap(), expected);
}

#[tokio::test]
async fn one_failing_archive_is_reported_with_its_reason_and_is_exit_status_1() {
    let reason =
        "the archive of registry.terraform.io/hashicorp/aws 5.31.0 (linux_amd64): https://x.example answered 500";
    let items = [failed(AWS, reason), item(NULL, "fetched", 5, Some(5))];
    let output = WarmCommandSetup::with_scripts(vec![JobScript::of(vec![job(0, "failed", &items)])])
        .await
        .run(&["hashicorp/aws"])
        .await;
    assert_eq!(output.code, Some(1), "{output:?}");
    for part in [
        &format!("FAILED    hashicorp/aws 5.31.0 (linux_amd64)\n          {reason}\n"),
        "2 archives: 1 fetched, 1 failed;",
    ] {
        assert!(output.out.contains(part), "{part} is not in {output:?}");
    }
}

#[tokio::test]
async fn ctrl_c_cancels_the_job_and_reports_stored_archives() {
    let fetching = job(0, "running", &[item(NULL, "fetched", 5, Some(5)), item(AWS, "fetching", 1, Some(9))]);
    let cancelled = job(0, "cancelled", &[item(NULL, "fetched", 5, Some(5)), item(AWS, "cancelled", 1, Some(9))]);
    let setup = WarmCommandSetup::with_scripts(vec![JobScript::of(vec![fetching]).when_cancelled(cancelled)]).await;
    let mut child = setup.command(&["hashicorp/aws"]).spawn().unwrap();
    let id = rustix::process::Pid::from_raw(child.id().try_into().unwrap()).unwrap();
    eventually("the command polls the job", async || (setup.admin.count(&Method::GET) >= 2).then_some(())).await;
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    let code = eventually("the command ends", async || child.try_wait().unwrap()).await.code();
    let output = child.wait_with_output().unwrap();
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(code, Some(130), "{out}{err}");
    assert_eq!(setup.admin.count(&Method::DELETE), 1);
    assert!(out.contains("cancelled hashicorp/aws 5.31.0 (linux_amd64)\n"), "{out}");
    assert!(out.contains("2 archives: 1 fetched, 1 cancelled"), "{out}");
    assert!(err.contains("stopped: 1 archive is stored"), "{err}");
}

#[tokio::test]
async fn a_refused_warm_up_is_reported() {
    let setup = WarmCommandSetup::with_scripts(Vec::new()).await;
    setup.admin.refuse(400, "line 1, column 9: expected `{`");
    let output = setup.run(&["hashicorp/null", ".terraform.lock.hcl"]).await;
    assert_eq!((output.code, output.out.as_str()), (Some(1), ""), "{output:?}");
    assert!(output.err.contains("line 1, column 9"), "{output:?}");
}

#[tokio::test]
async fn an_invalid_warm_up_is_refused_before_any_request() {
    let setup = WarmCommandSetup::with_scripts(Vec::new()).await;
    for (arguments, reason) in [
        (&["./no-such"][..], "there is no file and no folder \"./no-such\""),
        (&["no.hcl"], "there is no file and no folder \"no.hcl\""),
        (&["hashicorp/aws", "--platform", "linux"], "\"linux\" is not a platform"),
    ] {
        let ended = setup.run(arguments).await;
        assert!(matches!(ended.code, Some(1 | 2)), "{ended:?}");
        assert!(ended.err.contains(reason), "{arguments:?}: {ended:?}");
    }
    assert_eq!(setup.run(&[]).await.code, Some(2));
    assert!(setup.admin.requests().is_empty());
}

/// A configuration for which no larder runs, and its upstream.
async fn setup_without_larder() -> (command_setup::CommandSetup, FakeUpstream) {
    let upstream = FakeUpstream::start().await;
    for name in ["null", "other"] {
        upstream.publish(both_platforms(Provider::new("acme", name)));
    }
    let mut setup = command_setup::CommandSetup::new(&upstream);
    // The folder of the store and the folder that contains it do not exist yet.
    let home = setup.home.path().display().to_string();
    setup.text = setup.text.replace(&format!("path = \"{home}\""), &format!("path = \"{home}/a/store\""));
    (setup, upstream)
}

/// Asserts that a larder serves list, document and archive of the provider without a request to upstream.
async fn assert_served(setup: &command_setup::CommandSetup, upstream: &FakeUpstream, name: &str) {
    upstream.forget_requests();
    let larder = setup.serve();
    larder.get(&format!("/registry/{HOST}/v1/providers/acme/{name}/versions")).await.expect(200);
    let path = larder.archive_path(name).await;
    let zip = upstream.archive_bytes("acme", name, "1.2.0", "linux_amd64");
    assert!(larder.get(&path).await.expect(200).body == zip);
    assert_eq!(upstream.requests().len(), 0);
    assert_eq!(larder.terminate().await, Some(0));
}

/// A command without a running larder opens the store itself, and creates it if it does not exist.
#[tokio::test]
async fn without_a_running_larder_warm_creates_a_store_and_fetches_into_it() {
    let (setup, upstream) = setup_without_larder().await;
    let lock = setup.home.path().join(".terraform.lock.hcl");
    std::fs::write(&lock, format!("provider \"{HOST}/acme/other\" {{\n  version = \"1.2.0\"\n}}\n")).unwrap();
    let warm = ["warm", "acme/null@~> 1.0", lock.to_str().unwrap(), "--platform", "linux_amd64"];
    let output = setup.run(&warm).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.out.contains("fetched   acme/null 1.2.0 (linux_amd64)  "), "{output:?}");
    assert!(output.out.contains("fetched   acme/other 1.2.0 (linux_amd64)  "), "{output:?}");
    assert!(output.out.contains("2 archives: 2 fetched; "), "{output:?}");
    // One line, without lines of a log.
    assert!(output.err.starts_with("larder: no larder runs here") && output.err.lines().count() == 1, "{output:?}");

    let requests = upstream.requests().len();
    let again = setup.run(&[&warm[..], &["--json"]].concat()).await;
    assert_eq!((again.code, again.err.as_str()), (Some(0), ""), "{again:?}");
    assert_eq!(
        items(&JobReport::parse(command_setup::json(again.out.trim()))),
        ["null@1.2.0 linux_amd64 held", "other@1.2.0 linux_amd64 held"]
    );
    assert_eq!(upstream.requests().len(), requests);

    assert_served(&setup, &upstream, "null").await;
    assert_served(&setup, &upstream, "other").await;
}

#[tokio::test]
async fn without_a_running_larder_a_failure_is_reported_once_and_the_other_archives_are_stored() {
    let (setup, upstream) = setup_without_larder().await;
    upstream.fault(Target::Archive.with_path_part("other"), Fault::WrongBytes);
    let output = setup.run(&["warm", "acme/null", "acme/other", "--platform", "linux_amd64"]).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(output.out.contains("FAILED    acme/other 1.2.0 (linux_amd64)\n"), "{output:?}");
    assert!(output.out.contains("2 archives: 1 fetched, 1 failed; "), "{output:?}");
    assert!(!output.err.contains("could not be warmed"), "{output:?}");
    assert_served(&setup, &upstream, "null").await;
}

/// The command closes the store, so that the next one can open it.
#[tokio::test]
async fn without_a_running_larder_a_refused_warm_up_is_reported_too() {
    let (setup, upstream) = setup_without_larder().await;
    let lock = setup.home.path().join(".terraform.lock.hcl");
    std::fs::write(&lock, "provider {").unwrap();
    let output = setup.run(&["warm", "acme/null", lock.to_str().unwrap(), "--platform", "linux_amd64"]).await;
    assert_eq!((output.code, output.out.as_str()), (Some(1), ""), "{output:?}");
    assert!(output.err.contains(".terraform.lock.hcl: the lock file: line 1"), "{output:?}");
    assert_eq!(upstream.requests().len(), 0);
    assert_eq!(setup.run(&["warm", "acme/null", "--platform", "linux_amd64"]).await.code, Some(0));
}

#[tokio::test]
async fn without_a_running_larder_ctrl_c_and_sigterm_end_warm_and_fetched_archives_stay() {
    for signal in [Signal::INT, Signal::TERM] {
        let (setup, upstream) = setup_without_larder().await;
        let gate = upstream.hold_body(Target::Archive.with_path_part("other"));
        let file = setup.file();
        let arguments =
            ["warm", "acme/null", "acme/other", "--platform", "linux_amd64", "--config", file.to_str().unwrap()];
        let (mut child, out, err) = spawn_captured(command(setup.home.path(), &arguments));
        out.line_with("fetched ").await;
        upstream.wait_for(Target::Archive.with_path_part("other"), 1).await;
        child.send(signal);
        let code = child.wait_for_exit().await;
        assert_eq!(code, Some(130), "{}{}", out.text(), err.text());
        out.line_with("2 archives: 1 fetched, 1 cancelled").await;
        err.line_with("stopped: 1 archive is stored").await;
        drop(gate);
        assert_served(&setup, &upstream, "null").await;
    }
}

/// A larder with another admin address uses the store, and is of a version that does not note it there.
#[tokio::test]
async fn a_store_that_is_in_use_is_left_untouched() {
    let (mut setup, _upstream) = setup_without_larder().await;
    let larder = setup.serve();
    setup.text = setup.text.replace("[admin]\nlisten", &format!("[admin]\nlisten = \"127.0.0.1:{}\" #", free_port()));
    std::fs::write(setup.home.path().join("a/store/v1/lock"), "").unwrap();
    let output = setup.run(&["warm", "acme/null"]).await;
    assert_eq!((output.code, output.out.as_str()), (Some(1), ""), "{output:?}");
    assert!(output.err.contains("is in use") && output.err.contains("--admin-listen"), "{output:?}");
    assert_eq!(larder.terminate().await, Some(0));
}

/// `--var` and `--var-file` correspond to `-var` and `-var-file` of the client. With an address they are an error.
#[tokio::test]
async fn values_of_the_command_line_choose_the_module_that_is_warmed() {
    let (setup, upstream) = setup_without_larder().await;
    let folder = setup.home.path().join("work");
    std::fs::create_dir(&folder).unwrap();
    let main = "variable \"v\" {\n  const = true\n}\nmodule \"m\" {\n  source  = \"acme/${var.v}/test\"\n  version = \"1.0.0\"\n}\n";
    std::fs::write(folder.join("main.tf"), main).unwrap();
    std::fs::write(setup.home.path().join("prod.tfvars"), "v = \"absent\"\n").unwrap();
    let (work, file) = (folder.to_str().unwrap(), setup.home.path().join("prod.tfvars"));
    let file = file.to_str().unwrap();
    let plan =
        async |options: &[&str]| setup.run(&[&["plan", work, "--platform", "linux_amd64"], options].concat()).await;
    assert_eq!(setup.run(&["warm", "acme/null", "--platform", "linux_amd64"]).await.code, Some(0));
    let output = plan(&[]).await;
    assert!(output.out.contains("var.v, which has no default and no value that larder sees"), "{output:?}");
    for (options, name) in [(&["--var-file", file][..], "absent"), (&["--var-file", file, "--var", "v=other"], "other")]
    {
        let output = plan(options).await;
        assert!(output.out.contains(&format!("acme/{name}/test")) && output.code == Some(3), "{output:?}");
    }
    assert!(upstream.requests().iter().any(|request| request.path.ends_with("/acme/other/test/versions")));
    for (options, reason) in
        [(["--var", "v"], "is not NAME=VALUE"), (["--var-file", "/nowhere"], "/nowhere cannot be read")]
    {
        let output = plan(&options).await;
        assert!(output.code == Some(1) && output.err.contains(reason), "{output:?}");
    }
    let output = setup.run(&["plan", "acme/null", "--var", "v=x"]).await;
    assert!(output.code == Some(1) && output.err.contains("are for folders"), "{output:?}");
}

/// Terraform 1.16 accepts an underscore in a namespace, in a configuration and in a lock file. OpenTofu accepts none.
#[tokio::test]
async fn a_namespace_may_contain_an_underscore() {
    let (setup, upstream) = setup_without_larder().await;
    upstream.publish(both_platforms(Provider::new("acme_corp", "null")));
    let folder = setup.home.path().join("work");
    std::fs::create_dir(&folder).unwrap();
    let source = "terraform {\n  required_providers {\n    null = { source = \"acme_corp/null\" }\n  }\n}\n";
    std::fs::write(folder.join("main.tf"), source).unwrap();
    let on_this_folder = async |command: &str, options: &[&str]| {
        setup.run(&[&[command, folder.to_str().unwrap(), "--platform", "linux_amd64"], options].concat()).await
    };
    assert_eq!(setup.run(&["warm", "acme/null", "--platform", "linux_amd64"]).await.code, Some(0));
    let planned = on_this_folder("plan", &[]).await;
    assert!(planned.code == Some(3) && planned.out.contains("acme_corp/null 1.2.0"), "{planned:?}");
    let refused = on_this_folder("plan", &["--client", "opentofu"]).await;
    assert!(refused.code != Some(0) && refused.out.contains("OpenTofu accepts no underscore"), "{refused:?}");
    let warmed = on_this_folder("warm", &[]).await;
    // Its archive has the bytes of acme/null's, which are stored.
    assert!(warmed.code == Some(0) && warmed.out.contains("stored    acme_corp/null 1.2.0"), "{warmed:?}");
    let lock = format!("provider \"{HOST}/acme_corp/null\" {{\n  version = \"1.2.0\"\n}}\n");
    std::fs::write(folder.join(".terraform.lock.hcl"), lock).unwrap();
    let planned = on_this_folder("plan", &[]).await;
    assert!(planned.code == Some(0) && planned.out.contains("have         1 archive"), "{planned:?}");
}
