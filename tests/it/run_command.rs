//! `larder run`: the real client through larder, with a user's own configuration, and nothing left behind.

use std::path::Path;
use std::process::Stdio;

use larder::store::Store;
use rustix::process::{Signal, kill_process_group};

use crate::support::another_user::AnotherUser;
use crate::support::command_setup::json;
use crate::support::doctor_setup::DoctorReport;
use crate::support::http::{client, get, send};
use crate::support::larder::{HOST, Larder};
use crate::support::module_fixture::tar_gz;
use crate::support::ports::free_port;
use crate::support::process::{CapturedOutput, KillOnDrop, Process, run, spawn_captured};
use crate::support::run_setup::{INIT, RunSetup};
use crate::support::terraform::host_override;
use crate::support::until;
use crate::support::upstream::{FakeUpstream, Fault, Module, Provider, RecordedRequest, Target};

const SIZE: usize = 200_000;

/// An upstream with acme/null 1.2.0 for two platforms.
async fn upstream() -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").platform("linux_amd64").platform("darwin_arm64").size(SIZE));
    upstream
}

fn is_download(request: &RecordedRequest) -> bool {
    request.method == "GET" && request.target == Target::Archive
}

/// The last line of standard error: the summary.
fn summary(err: &str) -> &str {
    err.lines().last().unwrap_or_default()
}

/// Larder's own lines, without the summary.
fn notes(err: &str) -> Vec<&str> {
    let mut notes: Vec<&str> = err.lines().filter(|line| line.starts_with("larder: ")).collect();
    notes.pop();
    notes
}

fn assert_summary(err: &str, expected: &str) {
    let line = summary(err);
    let counts = line.strip_prefix("larder: ").and_then(|line| line.rsplit_once("; ")).map(|(counts, _)| counts);
    assert_eq!(counts, Some(expected), "{err}");
    assert!(line.ends_with(" s"), "{line}");
}

/// A laptop without larder: one command, and the second one uses no network.
#[tokio::test]
async fn the_first_run_fetches_and_the_second_uses_no_network() {
    let mut upstream = upstream().await;
    let Some(setup) = RunSetup::with_terraform(&upstream) else { return };
    let package = format!("1 package from {HOST} (195.6 KiB)");
    let err = setup.require(&["acme/null"]).init(&[]).await;
    assert_summary(&err, &package);
    let sums = String::from_utf8(upstream.sums_bytes("acme", "null", "1.2.0")).unwrap();
    assert_eq!(setup.locked_hashes(), (1, sums.lines().count()), "the lock file is complete");

    upstream.forget_requests();
    let err = setup.require(&["acme/null"]).init(&[]).await;
    assert_summary(&err, "1 package from the store (195.6 KiB), nothing from upstream");
    assert_eq!(upstream.count_of(Target::Everything), 0);
    let err = setup.init(&[]).await;
    assert_summary(&err, "no packages, nothing from upstream");

    upstream.stop().await;
    let err = setup.require(&["acme/null"]).init(&[]).await;
    assert_summary(&err, "1 package from the store (195.6 KiB), nothing from upstream");
    let err = setup.require(&["acme/null"]).init(&["--offline"]).await;
    assert_summary(&err, "1 package from the store (195.6 KiB), nothing from upstream");
    assert_eq!(setup.locked_hashes(), (1, sums.lines().count()), "the lock file is complete");
}

/// Offline, the client shows why it fails, and the run has the client's exit code.
#[tokio::test]
async fn an_offline_run_without_the_package_fails_with_the_cause() {
    let upstream = upstream().await;
    let Some(setup) = RunSetup::with_terraform(&upstream) else { return };
    let output = setup.require(&["acme/null"]).run(&["--offline"], &INIT).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    let text = output.err.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ");
    assert!(text.contains("503 larder: ") && text.contains("offline"), "{output:?}");
    assert!(summary(&output.err).contains("request"), "{output:?}");
    assert_eq!(upstream.count_of(Target::Everything), 0);
}

#[tokio::test]
async fn modules_are_counted_too() {
    let upstream = upstream().await;
    let Some(setup) = RunSetup::with_terraform(&upstream) else { return };
    let archive = tar_gz(&[("main.tf", b"variable \"name\" { default = \"x\" }\n")]);
    upstream.serve_file("/modules/vpc.tar.gz", "application/gzip", archive);
    let location = format!("{}/modules/vpc.tar.gz", upstream.origin());
    upstream.publish_module(Module::new("acme", "vpc", "aws").version("5.1.0").at(&location));
    setup.require(&["acme/null"]).write(
        "work/modules.tf",
        "module \"a\" {\n  source = \"acme/vpc/aws\"\n}\nmodule \"b\" {\n  source = \"acme/vpc/aws\"\n}\n",
    );
    let err = setup.init(&[]).await;
    assert!(summary(&err).starts_with(&format!("larder: 2 packages from {HOST} (")), "{err}");
    upstream.forget_requests();
    let err = setup.require(&["acme/null"]).init(&[]).await;
    assert!(summary(&err).starts_with("larder: 2 packages from the store ("), "{err}");
    assert!(summary(&err).contains(", nothing from upstream; "), "{err}");
    assert_eq!(upstream.count_of(Target::Everything), 0);
}

/// The user's tokens, caches, other hosts and unknown settings reach the client, whatever the file, in a copy that only the
/// user can read.
#[tokio::test]
async fn the_client_gets_a_private_copy_of_every_setting() {
    let setup = RunSetup::new(&upstream().await);
    setup.write(
        "home/.terraformrc",
        "plugin_cache_dir = \"$HOME/plugins\"\ndisable_checkpoint = true\ncredentials \"app.example\" {\n  token = \"t0ken-é\\\"$\"\n}\n\
         credentials_helper \"vault\" {\n  args = [\"--path\", \"x\"]\n}\nfuture_setting {\n  level = 3\n}\n\
         host \"other.example\" {\n  services = {\n    \"modules.v1\" = \"https://other.example/m/\"\n    \"login.v1\" = { client = \"x\", ports = [1, 2] }\n  }\n}\n",
    );
    setup.write(
        "home/.terraform.d/credentials.tfrc.json",
        "{\"credentials\":{\"login.example\":{\"token\":\"by-login\"}}}",
    );
    let script =
        "cat \"$TF_CLI_CONFIG_FILE\"; stat -c %a \"$TF_CLI_CONFIG_FILE\" \"$(dirname \"$TF_CLI_CONFIG_FILE\")\"";
    let output = setup.run(&[], &["sh", "-c", script]).await;
    assert_eq!((output.code, notes(&output.err).len()), (Some(0), 0), "{output:?}");
    let (text, modes) = output.out.trim_end().rsplit_once("}\n").unwrap();
    assert_eq!(modes, "600\n700");
    let text = format!("{text}}}\n");
    for line in [
        "\"plugin_cache_dir\" = \"$HOME/plugins\"",
        "\"disable_checkpoint\" = true",
        "    \"token\" = \"t0ken-\\U000000e9\\\"$\"",
        "    \"token\" = \"by-login\"",
        "    \"args\" = [\"--path\", \"x\"]",
        "  \"level\" = 3",
        "      \"modules.v1\" = \"https://other.example/m/\"",
        "        \"ports\" = [1, 2]",
    ] {
        assert!(text.lines().any(|written| written == line), "{line}: {text}");
    }
    assert!(text.contains(&format!("/registry/{HOST}/v1/providers/")), "{text}");
    assert_eq!(setup.read("home/.terraformrc").matches("http://").count(), 0, "the user's file is as it was");
}

#[tokio::test]
async fn the_plugin_cache_of_the_user_is_used() {
    let upstream = upstream().await;
    let Some(setup) = RunSetup::with_terraform(&upstream) else { return };
    let cache = setup.path("home/plugin cache");
    std::fs::create_dir(&cache).unwrap();
    setup.write("home/.terraformrc", &format!("plugin_cache_dir = {:?}\n", cache.to_str().unwrap()));
    setup.require(&["acme/null"]).init(&[]).await;
    assert!(cache.join(HOST).join("acme/null/1.2.0/linux_amd64").is_dir());
    // Terraform takes from its cache what the lock file confirms.
    std::fs::remove_dir_all(setup.path("work/.terraform")).unwrap();
    let err = setup.init(&[]).await;
    assert!(summary(&err).starts_with("larder: no packages, "), "{err}");
}

/// Another registry, with its own services and token, is asked as without larder.
#[tokio::test]
async fn other_hosts_and_their_credentials_stay() {
    let (upstream, other) = (upstream().await, FakeUpstream::builder().token("s3cret").start().await);
    let Some(setup) = RunSetup::with_terraform(&upstream) else { return };
    other.publish(Provider::new("corp", "tool").platform("linux_amd64"));
    setup.write("home/.terraformrc", &host_override("other.example", &other.providers_url(), &other.modules_url()));
    setup.write("home/.terraform.d/tokens.tfrc", "credentials \"other.example\" {\n  token = \"s3cret\"\n}\n");
    let err = setup.require(&["acme/null", "other.example/corp/tool"]).init(&[]).await;
    assert_eq!(notes(&err), Vec::<&str>::new(), "{err}");
    assert_summary(&err, &format!("1 package from {HOST} (195.6 KiB)"));
    let asked = |request: &RecordedRequest| request.header("authorization") == Some("Bearer s3cret");
    assert!(other.count_where(asked) > 0);
    assert_eq!(upstream.count_where(|request| request.header("authorization").is_some()), 0);
}

/// Where the user's configuration decides already, it wins, and one line says so.
#[tokio::test]
async fn the_users_own_host_block_and_installation_methods_win() {
    let (upstream, direct) = (upstream().await, upstream().await);
    let Some(setup) = RunSetup::with_terraform(&upstream) else { return };
    let file = setup.write("home/.terraformrc", &host_override(HOST, &direct.providers_url(), &direct.modules_url()));
    let err = setup.require(&["acme/null"]).init(&[]).await;
    let note =
        format!("larder: {} has a host block for {HOST}, which stays: larder is not asked for {HOST}", file.display());
    assert_eq!(notes(&err), [note.as_str()], "{err}");
    assert_summary(&err, "the client asked for nothing");
    assert_eq!((upstream.count_of(Target::Everything), direct.count_where(is_download)), (0, 1));

    let mirror = setup.path("home/packages");
    std::fs::create_dir(&mirror).unwrap();
    let methods = "provider_installation {\n  filesystem_mirror {\n    path = \"MIRROR\"\n    include = [\"acme/other\"]\n  }\n  direct {\n    exclude = [\"acme/other\"]\n  }\n}\n";
    setup.write("home/.terraformrc", &methods.replace("MIRROR", mirror.to_str().unwrap()));
    let err = setup.require(&["acme/null"]).init(&[]).await;
    assert!(notes(&err).len() == 1 && notes(&err)[0].contains("has provider_installation, which stays"), "{err}");
    assert_summary(&err, &format!("1 package from {HOST} (195.6 KiB)"));
    let output = setup.require(&["acme/other"]).run(&[], &INIT).await;
    assert_eq!((output.code, upstream.count("/v1/providers/acme/other/versions")), (Some(1), 0), "{output:?}");
}

/// The lines that `larder serve` prints are larder's own: a run uses them with its own ports.
#[tokio::test]
async fn lines_that_lead_to_larder_are_not_a_contradiction() {
    let upstream = upstream().await;
    let Some(setup) = RunSetup::with_terraform(&upstream) else { return };
    let lines = run({
        let mut command = crate::support::process::command(&setup.path("home"), &["client-config"]);
        setup.adjust(&mut command);
        command
    })
    .await;
    setup.write("home/.terraformrc", &lines.out);
    let err = setup.require(&["acme/null"]).init(&[]).await;
    assert_eq!(notes(&err), Vec::<&str>::new(), "{err}");
    assert_summary(&err, &format!("1 package from {HOST} (195.6 KiB)"));
}

#[tokio::test]
async fn a_file_that_the_client_could_not_read_is_named() {
    let setup = RunSetup::new(&upstream().await);
    setup.write("home/.terraformrc", "host {{{\n");
    let output = setup.script("true").await;
    assert!(
        notes(&output.err)[0].contains(".terraformrc does not parse, so the client goes without it: line 1"),
        "{output:?}"
    );
    let mut command = setup.command(&[], &["true"]);
    command.env("TF_CLI_CONFIG_FILE", "/nowhere/ci.tfrc");
    let output = run(command).await;
    assert_eq!(notes(&output.err), ["larder: TF_CLI_CONFIG_FILE names /nowhere/ci.tfrc, which does not exist"]);
}

/// The client has the terminal: its input and output are not larder's, and its exit code is that of the run.
#[tokio::test]
async fn input_output_and_exit_codes_are_the_clients() {
    let setup = RunSetup::new(&upstream().await);
    let mut command = setup.command(&[], &["sh", "-c", "cat; echo error >&2; exit 7"]);
    let input = setup.write("work/input", "typed\n");
    command.stdin(Stdio::from(std::fs::File::open(input).unwrap()));
    let output = run(command).await;
    assert_eq!((output.code, output.out.as_str()), (Some(7), "typed\n"), "{output:?}");
    assert_eq!(output.err.lines().next(), Some("error"), "{output:?}");
    setup.assert_nothing_left();
    for (script, code) in [("exit 0", 0), ("exit 255", 255), ("kill -9 $$", 137), ("kill -TERM $$", 143)] {
        assert_eq!(setup.script(script).await.code, Some(code), "{script}");
    }
    let output = setup.run(&["--json"], &["sh", "-c", "echo out"]).await;
    let report = json(&output.err);
    assert_eq!(
        (output.out.as_str(), report["run"]["packages"]["store"]["count"].as_u64()),
        ("out\n", Some(0)),
        "{output:?}"
    );
}

#[tokio::test]
async fn a_client_that_does_not_start_is_127_or_126() {
    let setup = RunSetup::new(&upstream().await);
    let output = setup.run(&[], &["terrafrom", "init"]).await;
    assert_eq!(output.code, Some(127), "{output:?}");
    assert_eq!(
        output.err,
        "larder: terrafrom: command not found: no folder of PATH has it; install it, or write its path\n"
    );
    let output = setup.run(&[], &["./terraform"]).await;
    assert_eq!((output.code, output.err.as_str()), (Some(127), "larder: ./terraform: there is no such program\n"));
    setup.write("work/plain file", "text");
    let output = setup.run(&[], &["./plain file"]).await;
    assert!(output.code == Some(126) && output.err.contains("could not be started: Permission denied"), "{output:?}");
    let script = setup.write("work/windows.sh", "#!/bin/sh\r\necho ready\r\n");
    std::fs::set_permissions(script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let output = setup.run(&[], &["./windows.sh"]).await;
    assert!(output.code == Some(127) && output.err.contains("its interpreter or loader does not exist"), "{output:?}");
    // With --json the error is JSON, and standard output still belongs to the client.
    let output = setup.run(&["--json"], &["./terraform"]).await;
    assert_eq!((output.code, output.out.as_str()), (Some(127), ""));
    assert_eq!(json(&output.err)["errors"][0], "./terraform: there is no such program");
    let output = setup.run(&[], &[]).await;
    assert_eq!(output.code, Some(2), "{output:?}");
}

/// A Perl program that counts a signal: a shell takes two that come in one moment for one. It waits for the first, or for the
/// end of larder where the test fails before, then for 20 turns of its loop.
fn counting(signal: &str) -> String {
    format!(
        "$| = 1; $n = 0; $SIG{{{signal}}} = sub {{ $n++ }}; sub turn {{ select(undef, undef, undef, 0.01) }} \
         $larder = getppid; print \"ready\\n\"; turn until $n || getppid != $larder; turn for 1..20; print \"got $n\\n\"; exit 5"
    )
}

/// Ctrl-C reaches the client by the terminal, once; the run waits for the client and cleans up.
#[tokio::test]
async fn ctrl_c_in_a_terminal_reaches_the_client_once_and_nothing_is_left() {
    let setup = RunSetup::new(&upstream().await);
    setup.write("work/script", &counting("INT"));
    let mut command = setup.terminal_command("perl ./script");
    command.stdin(Stdio::piped());
    let (mut terminal, screen, _) = spawn_captured(command);
    screen.line_with("ready").await;
    terminal.type_keys(b"\x03");
    assert_eq!(terminal.wait_for_exit().await, Some(5), "{}", screen.text());
    screen.line_with("got 1").await;
    screen.line_with(" s").await;
    setup.assert_nothing_left();
}

/// Without a terminal, programs such as timeout(1) signal the group of the run: the client still gets the signal once.
#[tokio::test]
async fn a_signal_to_the_group_of_a_run_reaches_the_client_once() {
    let setup = RunSetup::new(&upstream().await);
    for (signal, name) in [(Signal::TERM, "TERM"), (Signal::INT, "INT"), (Signal::HUP, "HUP")] {
        let (mut larder, out, err) = spawn_captured(setup.command(&[], &["perl", "-e", &counting(name)]));
        out.line_with("ready").await;
        kill_process_group(larder.pid(), signal).unwrap();
        assert_eq!(larder.wait_for_exit().await, Some(5), "{name}: {}", err.text());
        out.line_with("got 1").await;
        err.line_with(" s").await;
        setup.assert_nothing_left();
    }
}

/// Terraform notices Ctrl-C when its download goes on or breaks off.
#[tokio::test]
async fn a_download_that_is_interrupted_is_no_success_and_the_next_run_works() {
    let mut upstream = upstream().await;
    let Some(setup) = RunSetup::with_terraform(&upstream) else { return };
    let gate = upstream.hold_body(Target::Archive);
    let (mut larder, _, err) = spawn_captured(setup.require(&["acme/null"]).command(&[], &INIT));
    upstream.wait_for(Target::Archive, 1).await;
    larder.send(Signal::INT);
    upstream.stop().await;
    assert_eq!(larder.wait_for_exit().await, Some(1), "{}", err.text());
    err.line_with("interrupt").await;
    gate.open();
    upstream.restart().await;
    setup.assert_nothing_left();
    let err = setup.require(&["acme/null"]).init(&[]).await;
    assert!(summary(&err).contains("1 package from "), "{err}");
}

/// SIGTERM and SIGHUP come from a service manager, for larder alone.
#[tokio::test]
async fn sigterm_and_sighup_are_forwarded() {
    let setup = RunSetup::new(&upstream().await);
    for (signal, name) in [(Signal::TERM, "TERM"), (Signal::HUP, "HUP")] {
        let script =
            format!("trap 'echo got {name}; exit 6' {name}; echo ready; while [ -e \"$PWD\" ]; do sleep 0.01; done");
        let (mut larder, out, err) = spawn_captured(setup.command(&[], &["sh", "-c", &script]));
        out.line_with("ready").await;
        larder.send(signal);
        assert_eq!(larder.wait_for_exit().await, Some(6), "{name}: {}", err.text());
        out.line_with(&format!("got {name}")).await;
        setup.assert_nothing_left();
    }
}

/// Two at once share one store and one larder, and each counts its own.
#[tokio::test]
async fn two_runs_at_once_share_one_store() {
    let upstream = upstream().await;
    let Some(setup) = RunSetup::with_terraform(&upstream) else { return };
    upstream.publish(Provider::new("acme", "other").platform("linux_amd64").size(SIZE));
    let (mut first, out, first_err) = waiting(&setup, "first", "true");
    out.line_with("ready").await;
    let second = run(setup.require(&["acme/null"]).command(&[], &INIT)).await;
    assert_eq!(second.code, Some(0), "{second:?}");
    assert_summary(&second.err, &format!("1 package from {HOST} (195.6 KiB)"));
    let third = run(setup.require(&["acme/null", "acme/other"]).command(&[], &INIT)).await;
    let expected = format!("1 package from the store (195.6 KiB), 1 from {HOST} (195.6 KiB)");
    assert_summary(&third.err, &expected);
    go(&setup, "first");
    assert_eq!(first.wait_for_exit().await, Some(0));
    until("the summary", async || first_err.text().ends_with(" s\n")).await;
    assert_summary(&first_err.text(), "the client asked for nothing");
    setup.assert_nothing_left();
}

/// A run whose client waits until the file `go` is in its folder, and then does the rest of a script. Where the test fails
/// before, the client ends with the folder.
fn waiting(setup: &RunSetup, folder: &str, then: &str) -> (KillOnDrop, CapturedOutput, CapturedOutput) {
    let work = setup.path("work").join(folder);
    std::fs::create_dir_all(&work).unwrap();
    let mut command = setup.command(&[], &["sh", "-c", &waiting_script(then)]);
    command.current_dir(&work);
    spawn_captured(command)
}

fn waiting_script(then: &str) -> String {
    format!("echo ready; until [ -e go ]; do sleep 0.01; [ -e \"$PWD\" ] || exit 9; done; {then}")
}

fn go(setup: &RunSetup, folder: &str) {
    std::fs::write(setup.path("work").join(folder).join("go"), "").unwrap();
}

/// Ends the client of a run that was killed: nobody else does.
async fn end_client_of_killed(setup: &RunSetup, folder: &str) {
    go(setup, folder);
    until("the client has ended", async || setup.processes().is_empty()).await;
}

/// The run that began first ends first: the others go on with the same URLs, one larder after another.
#[tokio::test]
async fn a_run_continues_the_larder_of_one_that_ends() {
    let upstream = upstream().await;
    let Some(setup) = RunSetup::with_terraform(&upstream) else { return };
    let init = format!("cd .. && {}", INIT.join(" "));
    let (mut first, out, first_err) = waiting(setup.require(&["acme/null"]), "first", "true");
    out.line_with("ready").await;
    let (mut second, out, second_err) = waiting(&setup, "second", "true");
    out.line_with("ready").await;
    let (mut third, out, third_err) = waiting(&setup, "third", &init);
    out.line_with("ready").await;
    go(&setup, "first");
    assert_eq!(first.wait_for_exit().await, Some(0), "{}", first_err.text());
    go(&setup, "second");
    assert_eq!(second.wait_for_exit().await, Some(0), "{}", second_err.text());
    go(&setup, "third");
    assert_eq!(third.wait_for_exit().await, Some(0), "{}", third_err.text());
    until("the summary", async || third_err.text().ends_with(" s\n")).await;
    assert_summary(&third_err.text(), &format!("1 package from {HOST} (195.6 KiB)"));
    setup.assert_nothing_left();
}

/// A run that asked for no network gets none, whichever run continues the larder.
#[tokio::test]
async fn an_offline_larder_stays_offline_when_a_run_with_network_continues_it() {
    let upstream = upstream().await;
    let Some(setup) = RunSetup::with_terraform(&upstream) else { return };
    let offline = |folder: &str, script: &str| {
        let mut command = setup.command(&["--offline"], &["sh", "-c", &waiting_script(script)]);
        std::fs::create_dir_all(setup.path("work").join(folder)).unwrap();
        command.current_dir(setup.path("work").join(folder));
        spawn_captured(command)
    };
    let (mut first, out, _) = offline("first", "true");
    out.line_with("ready").await;
    let init = format!("cd .. && {}", INIT.join(" "));
    let (mut second, out, second_err) = offline("second", &init);
    out.line_with("ready").await;
    let (mut third, out, third_err) = waiting(setup.require(&["acme/null"]), "third", "true");
    out.line_with("ready").await;
    third_err.line_with("is offline").await;
    // So the third continues the larder of the first.
    second.stop().await;
    go(&setup, "first");
    assert_eq!(first.wait_for_exit().await, Some(0));
    let lock = setup.store().join("v1/lock");
    until("the third run continues the larder", async || {
        std::fs::File::open(&lock).unwrap().try_lock_shared().is_err()
    })
    .await;
    second.send(Signal::CONT);
    go(&setup, "second");
    assert_eq!(second.wait_for_exit().await, Some(1), "{}", second_err.text());
    assert_eq!(upstream.requests().len(), 0);
    go(&setup, "third");
    assert_eq!(third.wait_for_exit().await, Some(0), "{}", third_err.text());
    setup.assert_nothing_left();
}

/// A run whose larder sends another run a package waits for that, and what was sent before is counted.
#[tokio::test]
async fn a_run_that_ends_lets_the_download_of_another_finish() {
    let upstream = upstream().await;
    let Some(setup) = RunSetup::with_terraform(&upstream) else { return };
    let gate = upstream.hold_body(Target::Archive);
    let (mut first, out, first_err) = waiting(&setup, "first", "true");
    out.line_with("ready").await;
    let init =
        setup.require(&["acme/null"]).command(&[], &["sh", "-c", &format!("{} 2>&1 && read -r _", INIT.join(" "))]);
    let (mut second, out, second_err) = {
        let mut command = init;
        command.stdin(Stdio::piped());
        spawn_captured(command)
    };
    upstream.wait_for(Target::Archive, 1).await;
    go(&setup, "first");
    first_err.line_with("another run still downloads through this one").await;
    gate.open();
    assert_eq!(first.wait_for_exit().await, Some(0), "{}", first_err.text());
    out.line_with("successfully initialized").await;
    second.close_input();
    let _ = second.wait_for_exit().await;
    until("the summary", async || second_err.text().ends_with(" s\n")).await;
    assert_summary(&second_err.text(), &format!("1 package from {HOST} (195.6 KiB)"));
    setup.assert_nothing_left();
}

/// A run that is killed leaves its folder with tokens, which the next run removes; the client of another is served.
#[tokio::test]
async fn a_run_continues_the_larder_of_one_that_is_killed() {
    let upstream = upstream().await;
    let Some(setup) = RunSetup::with_terraform(&upstream) else { return };
    let (first, out, _) = waiting(setup.require(&["acme/null"]), "first", "true");
    out.line_with("ready").await;
    let (mut second, out, err) = waiting(&setup, "second", &format!("cd .. && {}", INIT.join(" ")));
    out.line_with("ready").await;
    drop(first);
    go(&setup, "second");
    assert_eq!(second.wait_for_exit().await, Some(0), "{}", err.text());
    until("the summary", async || err.text().ends_with(" s\n")).await;
    assert_summary(&err.text(), &format!("1 package from {HOST} (195.6 KiB)"));
    end_client_of_killed(&setup, "first").await;
    assert_eq!(entries(&setup.path("tmp")).len(), 1);
    setup.run(&[], &["true"]).await;
}

/// A run that is killed at any moment leaves nothing that the next one does not remove.
#[tokio::test]
async fn the_next_run_removes_whatever_a_killed_one_left() {
    let upstream = upstream().await;
    let setup = RunSetup::new(&upstream);
    let has_folder = || entries(&setup.path("tmp")).first().cloned();
    let has = |name: &str| has_folder().is_some_and(|folder| setup.path("tmp").join(folder).join(name).exists());
    let moments: [(&str, &dyn Fn() -> bool); 4] = [
        ("a folder", &|| has_folder().is_some()),
        ("a lock", &|| has("lock")),
        ("a socket", &|| has("next")),
        ("a configuration with tokens", &|| has("cli.tfrc")),
    ];
    for (moment, is_reached) in moments {
        let (larder, _, _) = spawn_captured(setup.command(&[], &["sh", "-c", &waiting_script("true")]));
        until(moment, async || is_reached()).await;
        drop(larder);
        std::fs::write(setup.path("work/go"), "").unwrap();
        until("the client has ended", async || setup.processes().is_empty()).await;
        let output = setup.run(&[], &["true"]).await;
        assert_eq!(output.code, Some(0), "{moment}: {output:?}");
        std::fs::remove_file(setup.path("work/go")).unwrap();
    }
}

/// A run that begins between the end of one and the start of the run after it waits for that one: its own larder would leave
/// the client of the other without an answer.
#[tokio::test]
async fn a_run_does_not_take_the_store_from_one_that_continues() {
    let upstream = upstream().await;
    let Some(setup) = RunSetup::with_terraform(&upstream) else { return };
    let (first, out, _) = waiting(setup.require(&["acme/null"]), "first", "true");
    out.line_with("ready").await;
    let (mut second, out, second_err) = waiting(&setup, "second", &format!("cd .. && {}", INIT.join(" ")));
    out.line_with("ready").await;
    second.stop().await;
    drop(first);
    let mut third = setup.command(&[], &["true"]);
    third.env("LARDER_LOG", "debug");
    let (mut third, _, third_err) = spawn_captured(third);
    third_err.line_with("another run is about to continue the larder").await;
    second.send(Signal::CONT);
    assert_eq!(third.wait_for_exit().await, Some(0), "{}", third_err.text());
    go(&setup, "second");
    assert_eq!(second.wait_for_exit().await, Some(0), "{}", second_err.text());
    until("the summary", async || second_err.text().ends_with(" s\n")).await;
    assert_summary(&second_err.text(), &format!("1 package from {HOST} (195.6 KiB)"));
    end_client_of_killed(&setup, "first").await;
}

/// A script of a run may run larder itself.
#[tokio::test]
async fn a_run_within_a_run_uses_its_larder() {
    let upstream = upstream().await;
    let Some(setup) = RunSetup::with_terraform(&upstream) else { return };
    let script = format!("{} run -- {}", env!("CARGO_BIN_EXE_larder"), INIT.join(" "));
    let output = setup.require(&["acme/null"]).script(&script).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    let lines: Vec<&str> = output.err.lines().filter(|line| line.starts_with("larder: ")).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with(&format!("larder: 1 package from {HOST} (195.6 KiB); ")), "{lines:?}");
}

/// The client, or a program that it starts, may have another working folder.
#[tokio::test]
async fn a_relative_folder_for_temporary_files_works() {
    let setup = RunSetup::new(&upstream().await);
    let mut command = setup.command(&[], &["sh", "-c", "cd work && grep -c registry/ \"$TF_CLI_CONFIG_FILE\""]);
    command.current_dir(setup.path("work").parent().unwrap()).env("TMPDIR", "tmp");
    let output = run(command).await;
    assert_eq!((output.code, output.out.as_str()), (Some(0), "2\n"), "{output:?}");
    setup.assert_nothing_left();
}

/// Runs that begin at the same moment: one of them has the store, and the others find it.
#[tokio::test]
async fn runs_that_begin_together_all_succeed() {
    let setup = RunSetup::new(&upstream().await);
    let runs = (0..4).map(|_| run(setup.command(&[], &["sh", "-c", "grep -c registry/ \"$TF_CLI_CONFIG_FILE\""])));
    for output in futures_util::future::join_all(runs).await {
        assert_eq!((output.code, output.out.as_str()), (Some(0), "2\n"), "{output:?}");
    }
    setup.assert_nothing_left();
}

/// Promise 8: every user of the machine reaches the loopback address, and nobody but the client of a run is answered there:
/// the larder may have a credential, and its owner's packages. Neither a made-up id nor the admin listener helps.
#[tokio::test]
async fn the_larder_of_a_run_answers_its_own_client_only() {
    let upstream = upstream().await;
    let setup = RunSetup::new(&upstream);
    let script = format!("cat \"$TF_CLI_CONFIG_FILE\"; {}", waiting_script("true"));
    let (mut larder, out, err) = spawn_captured(setup.command(&[], &["sh", "-c", &script]));
    out.line_with("ready").await;
    let config = out.text();
    let (_, below) = config.split_once("http://").unwrap();
    let (main, below) = below.split_once("/run/").unwrap();
    let (id, _) = below.split_once('/').unwrap();
    let note: serde_json::Value = serde_json::from_str(&setup.read("home/cache/larder/v1/lock")).unwrap();
    assert_eq!(note["main"], main);
    let admin = note["admin"].as_str().unwrap();
    let token = setup.read("home/cache/larder/admin-token");

    let versions = format!("/registry/{HOST}/v1/providers/acme/null/versions");
    let changed = if id.ends_with('0') { '1' } else { '0' };
    for run in [String::new(), format!("/run/{:032x}", 7), format!("/run/{}{changed}", &id[..31])] {
        for (path, status) in [
            (versions.as_str(), 421),
            ("/.well-known/terraform.json", 421),
            ("/", 403),
            ("/mirror/registry.terraform.io/acme/null/index.json", 503),
            ("/archive/registry.terraform.io/providers/acme/null/1.2.0/linux_amd64/0123456789abcdef/f.zip", 403),
        ] {
            let answer = get(&format!("http://{main}{run}{path}")).await;
            assert_eq!(answer.status, status, "{run}{path}: {}", answer.text());
            assert!(answer.text().contains("`larder run -- COMMAND`"), "{}", answer.text());
        }
    }
    for path in ["/", "/admin/v1/status", "/metrics", &format!("/admin/v1/runs/{id}/client-config")] {
        assert_eq!(get(&format!("http://{admin}{path}")).await.status, 401, "{path}");
    }
    let read = client().get(format!("http://{admin}/admin/v1/status")).bearer_auth(token.trim());
    send(read).await.unwrap().expect(200);
    assert_eq!(upstream.requests().len(), 0, "a stranger's request went to the registry");
    get(&format!("http://{main}/healthz")).await.expect(200);

    get(&format!("http://{main}/run/{id}{versions}")).await.expect(200);
    let status = run(setup.larder_command(&["status"])).await;
    assert_eq!(status.code, Some(0), "{status:?}");
    // A person pastes the URLs of the larder that the configuration describes.
    let printed = run(setup.larder_command(&["client-config"])).await;
    let configured = setup.read("home/config/larder/mirror.toml");
    let listen = configured.split("listen = \"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    assert!(printed.out.contains(&format!("http://{listen}/registry/")) && !printed.out.contains(main), "{printed:?}");
    std::fs::write(setup.path("work/go"), "").unwrap();
    assert_eq!(larder.wait_for_exit().await, Some(0), "{}", err.text());
    setup.assert_nothing_left();

    // The id ends with the last run that shared the larder.
    std::fs::remove_file(setup.path("work/go")).unwrap();
    let (mut larder, out, err) = spawn_captured(setup.command(&[], &["sh", "-c", &script]));
    out.line_with("ready").await;
    let config = out.text();
    let (_, below) = config.split_once("\"providers.v1\" = \"http://").unwrap();
    let (main, _) = below.split_once("/run/").unwrap();
    let answer = get(&format!("http://{main}/run/{id}{versions}")).await;
    assert_eq!(answer.status, 421, "{}", answer.text());
    std::fs::write(setup.path("work/go"), "").unwrap();
    assert_eq!(larder.wait_for_exit().await, Some(0), "{}", err.text());
    setup.assert_nothing_left();
}

/// The larder that runs here is used: it has the store, whatever its ports.
#[tokio::test]
async fn a_running_larder_is_used() {
    let upstream = upstream().await;
    let Some(setup) = RunSetup::with_terraform(&upstream) else { return };
    let config = setup.read("home/config/larder/mirror.toml");
    let upstream_section = &config[config.find("[[upstream]]").unwrap()..];
    let listeners = "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n";
    let served = format!("{listeners}[store]\npath = {:?}\n{upstream_section}", setup.store());
    let larder = Process::serve(&served, &setup.path("home")).unwrap_or_else(|error| panic!("{error:?}"));
    let err = setup.require(&["acme/null"]).init(&[]).await;
    assert_summary(&err, &format!("1 package from {HOST} (195.6 KiB)"));
    let archive = larder.archive_path("null").await;
    larder.get(&archive).await.expect(200);
    let err = setup.require(&["acme/null"]).init(&[]).await;
    assert_summary(&err, "1 package from the store (195.6 KiB), nothing from upstream");
    let output = setup.run(&["--offline"], &["true"]).await;
    assert!(output.code == Some(1) && output.err.contains("--offline does not change that"), "{output:?}");
    assert_eq!(larder.terminate().await, Some(0));
}

/// The client says "bad response code: 502" of a refused archive and no more: the end of the run names the cause and the
/// remedy, with a larder of its own and with one that runs already.
#[tokio::test]
async fn the_end_of_a_run_says_why_a_package_was_refused() {
    let upstream = upstream().await;
    let Some(setup) = RunSetup::with_terraform(&upstream) else { return };
    upstream.fault(Target::Archive, Fault::WrongBytes);
    let expected = |err: &str| {
        let failed: Vec<&str> = err.lines().filter(|line| line.starts_with("larder: failed: ")).collect();
        assert_eq!(failed.len(), 1, "{err}");
        for part in ["acme/null", "1.2.0", "SHA-256", "its publisher or registry must mend it"] {
            assert!(failed[0].contains(part), "{part}: {err}");
        }
    };
    let output = setup.require(&["acme/null"]).run(&[], &INIT).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    expected(&output.err);
    let config = setup.read("home/config/larder/mirror.toml");
    let upstream_section = &config[config.find("[[upstream]]").unwrap()..];
    let listeners = "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n";
    let served = format!("{listeners}[store]\npath = {:?}\n{upstream_section}", setup.store());
    let larder = Process::serve(&served, &setup.path("home")).unwrap_or_else(|error| panic!("{error:?}"));
    let output = setup.require(&["acme/null"]).run(&[], &INIT).await;
    expected(&output.err);
    upstream.clear_faults();
    let err = setup.require(&["acme/null"]).init(&[]).await;
    assert!(!err.contains("larder: failed"), "{err}");
    larder.terminate_promptly().await;
}

/// `status`, `doctor` and `explain` beside a run, whose larder answers it alone.
#[tokio::test]
async fn beside_a_run_the_commands_are_about_the_runs() {
    let upstream = upstream().await;
    let Some(setup) = RunSetup::with_terraform(&upstream) else { return };
    let larder = async |arguments: &[&str]| run(setup.larder_command(arguments)).await;
    setup.require(&["acme/null"]).init(&[]).await;
    let (mut waiting, out, err) = waiting(&setup, "first", "true");
    out.line_with("ready").await;
    DoctorReport::from_output(&larder(&["doctor", "--json"]).await).assert_healthy();
    let status = larder(&["status"]).await.out;
    assert!(status.contains("(running for `larder run` alone) since "), "{status}");
    let explained = larder(&["explain", "acme/null"]).await.out;
    assert!(explained.contains("SERVED") && !explained.contains("curl"), "{explained}");
    let second = run(setup.require(&["acme/null"]).command(&[], &INIT)).await;
    assert_eq!(second.code, Some(0), "{second:?}");
    go(&setup, "first");
    assert_eq!(waiting.wait_for_exit().await, Some(0), "{}", err.text());
    let status = json(&larder(&["status", "--json"]).await.out);
    assert_eq!(status["usage"]["runs"]["store"]["count"], 1, "each run counts once");
}

/// However many ids others make up, the files of a run whose client still downloads are counted.
#[tokio::test]
async fn a_run_with_a_request_in_flight_keeps_its_counts() {
    let upstream = upstream().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let run = "00112233445566778899aabbccddeeff";
    let archive = format!("/run/{run}{}", larder.archive_path("null", "1.2.0").await);
    let gate = upstream.hold_body(Target::Archive);
    let receiving = larder.receive(&archive);
    let others = async {
        upstream.wait_for(Target::Archive, 1).await;
        for other in 0..100 {
            larder.get(&format!("/run/{other:032x}/.well-known/terraform.json")).await;
        }
        gate.open();
    };
    tokio::join!(receiving, others);
    let counts = get(&format!("{}/admin/v1/runs/{run}", larder.admin())).await.expect(200).json();
    let files = counts["files"].as_object().unwrap();
    let sources: Vec<&str> = files.values().map(|file| file["source"].as_str().unwrap()).collect();
    assert_eq!(sources, ["fetched"], "{counts}");
}

/// Nor do ids that others make up push out a run of larder's own user between two of its requests: its command asks for its counts.
#[tokio::test]
async fn a_run_of_the_own_user_keeps_its_counts() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let upstream = upstream().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let run = "00112233445566778899aabbccddeeff";
    let mut socket = tokio::net::UnixStream::connect(Store::admin_socket(larder.folder.path())).await.unwrap();
    let request =
        format!("GET /admin/v1/runs/{run}/client-config HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let archive = larder.archive_path("null", "1.2.0").await;
    larder.get(&format!("/run/{run}{archive}")).await.expect(200);
    for other in 0..100 {
        larder.get(&format!("/run/{other:032x}/.well-known/terraform.json")).await;
    }
    let counts = get(&format!("{}/admin/v1/runs/{run}", larder.admin())).await.expect(200).json();
    assert_eq!(counts["files"].as_object().unwrap().len(), 1, "{counts}");
}

/// A home that cannot be written, such as in a container: the run works and says that nothing stays.
#[tokio::test]
async fn a_home_that_cannot_be_written_gets_a_temporary_store() {
    let (upstream, user) = (upstream().await, AnotherUser::new());
    let Some(setup) = RunSetup::with_terraform(&upstream) else { return };
    let config = user.file(
        "mirror.toml",
        &format!(
            "[admin]\nlisten = \"127.0.0.1:{}\"\n[[upstream]]\nhost = \"{HOST}\"\nurl = \"{}/\"\n",
            free_port(),
            upstream.origin()
        ),
    );
    let work = user
        .file("work/main.tf", &std::fs::read_to_string(setup.require(&["acme/null"]).path("work/main.tf")).unwrap());
    let tmp = user.file("tmp/.keep", "");
    let read_only = user.path("read-only");
    std::fs::create_dir(&read_only).unwrap();
    AnotherUser::make_unwritable(&read_only);
    let init = |options: &[&str]| {
        let arguments = [&["run", "--config", config.to_str().unwrap()], options, &["--"], &INIT[..]].concat();
        let mut command = user.command(&arguments);
        setup.adjust(&mut command);
        command
            .env("HOME", &read_only)
            .env("XDG_CACHE_HOME", read_only.join("cache"))
            .env("XDG_CONFIG_HOME", &read_only);
        command.current_dir(work.parent().unwrap()).env("TMPDIR", tmp.parent().unwrap());
        run(command)
    };
    let output = init(&[]).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(notes(&output.err)[0].contains("Permission denied"), "{output:?}");
    assert!(
        notes(&output.err)[0].ends_with("this run has a temporary store, so nothing stays for the next one"),
        "{output:?}"
    );
    assert_summary(&output.err, &format!("1 package from {HOST} (195.6 KiB)"));
    assert_eq!(entries(tmp.parent().unwrap()), [".keep"]);
    let output = init(&["--offline"]).await;
    assert!(output.code == Some(1) && output.err.contains("Permission denied"), "{output:?}");
}

/// A store that exists and cannot be written is read.
#[tokio::test]
async fn a_store_that_cannot_be_written_is_read() {
    let (upstream, user) = (upstream().await, AnotherUser::new());
    let Some(setup) = RunSetup::with_terraform(&upstream) else { return };
    let upstream_lines = format!("[[upstream]]\nhost = \"{HOST}\"\nurl = \"{}/\"\n", upstream.origin());
    let config =
        user.file("mirror.toml", &format!("[admin]\nlisten = \"127.0.0.1:{}\"\n{upstream_lines}", free_port()));
    setup.require(&["acme/null"]);
    let work = user.file("work/main.tf", &setup.read("work/main.tf"));
    let command = |options: &[&str], client: &[&str]| {
        let arguments = [&["run", "--config", config.to_str().unwrap()], options, &["--"], client].concat();
        let mut command = user.command(&arguments);
        setup.adjust(&mut command);
        command.current_dir(work.parent().unwrap()).env("TMPDIR", work.parent().unwrap());
        command
    };
    assert_eq!(run(command(&[], &INIT)).await.code, Some(0));
    std::fs::remove_dir_all(user.path("work/.terraform")).unwrap();
    // As it is where only commands have filled the store.
    std::fs::remove_file(user.path("cache/larder/admin-token")).unwrap();
    AnotherUser::make_unwritable_with_contents(&user.path("cache"));
    let (mut beside, out, beside_err) = spawn_captured(command(&["--offline"], &["sh", "-c", &waiting_script("true")]));
    out.line_with("ready").await;
    let output = run(command(&["--offline"], &INIT)).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    assert_summary(&output.err, "1 package from the store (195.6 KiB), nothing from upstream");
    user.file("work/go", "");
    assert_eq!(beside.wait_for_exit().await, Some(0), "{}", beside_err.text());
    AnotherUser::make_writable(&user.path("cache"));
}

fn entries(folder: &Path) -> Vec<String> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Nothing of larder's log disturbs the client's terminal, unless `LARDER_LOG` asks for it.
#[tokio::test]
async fn the_log_is_silent_unless_it_is_asked_for() {
    let upstream = upstream().await;
    let Some(setup) = RunSetup::with_terraform(&upstream) else { return };
    let err = setup.require(&["acme/null"]).init(&[]).await;
    assert_eq!(err.lines().count(), 1, "{err}");
    let mut command = setup.require(&["acme/null"]).command(&[], &INIT);
    command.env("LARDER_LOG", "info");
    let output = run(command).await;
    assert!(output.err.contains("INFO") && output.err.contains("GET /registry/"), "{output:?}");
    assert!(!output.err.contains("/run/"), "an id that opens the larder of the run is in the log: {output:?}");
}
