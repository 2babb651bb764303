//! The contract with scripts and service managers: exit codes, JSON on errors, environment variables, help, the log
//! format.

use serde_json::Value;

use crate::support::another_user::AnotherUser;
use crate::support::larder::{Folder, Larder};
use crate::support::ports::free_port;
use crate::support::process::{Process, command, run, spawn_captured};
use crate::support::upstream::FakeUpstream;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| panic!("no JSON: {text}"))
}

/// With `--json` an error is JSON on the standard output, with one entry per problem of a configuration.
#[tokio::test]
async fn with_json_an_error_is_json_too() {
    let folder = Folder::new();
    let config = folder.path().join("mirror.toml");
    std::fs::write(&config, format!("[admin]\nlisten = \"127.0.0.1:{}\"\n", free_port())).unwrap();
    let file = config.to_str().unwrap();
    let output = run(command(folder.path(), &["status", "--json", "--config", file])).await;
    let errors = json(&output.out)["errors"].as_array().unwrap().clone();
    assert_eq!((output.code, errors.len(), output.err.as_str()), (Some(1), 1, ""), "{output:?}");
    assert!(errors[0].as_str().unwrap().contains("no larder"), "{output:?}");

    std::fs::write(&config, "[server]\nlisten = \"8080\"\nopne = true\n").unwrap();
    let output = run(command(folder.path(), &["plan", "acme/null", "--json", "--config", file])).await;
    assert_eq!((output.code, json(&output.out)["errors"].as_array().unwrap().len()), (Some(78), 2), "{output:?}");

    let output = run(command(folder.path(), &["plan", "--json"])).await;
    let text = json(&output.out)["errors"][0].as_str().unwrap().to_owned();
    assert!(output.code == Some(2) && output.err.is_empty() && text.contains("<WHAT>"), "{output:?}");
}

/// The lock file of the store names the larder that has it, so a command needs no more than the store.
#[tokio::test]
async fn commands_find_a_larder_by_its_store() {
    let (home, port) = (Folder::new(), free_port());
    let store = home.path().join("elsewhere");
    let config = home.path().join("mirror.toml");
    std::fs::write(&config, format!("[server]\nlisten = \"127.0.0.1:0\"\n[store]\npath = {store:?}\n")).unwrap();
    let config = ["--config", config.to_str().unwrap()];
    let admin = format!("127.0.0.1:{port}");
    let serve = [&["serve", "--offline", "--admin-listen", &admin], &config[..]].concat();
    let (larder, out, _) = spawn_captured(command(home.path(), &serve));
    out.line_with(&format!(" --admin-listen {admin}")).await;
    out.line_with("Paste into").await;
    let found = run(command(home.path(), &[&["status"], &config[..]].concat())).await;
    assert!(found.code == Some(0) && found.out.contains("(running, offline)"), "{found:?}");
    let found = run(command(home.path(), &[&["status", "--admin-listen", &admin], &config[..]].concat())).await;
    assert!(found.code == Some(0) && found.out.contains("(running, offline)"), "{found:?}");
    let store = store.to_str().unwrap();
    let found = run(command(home.path(), &["status", "--admin-listen", &admin, "--store", store])).await;
    assert!(found.code == Some(0) && found.out.contains("(running, offline)"), "{found:?}");
    drop(larder);
}

/// A larder that asks its clients for a token shows where the token goes in the lines to paste.
#[tokio::test]
async fn the_lines_to_paste_name_the_place_of_the_token() {
    let (home, port) = (Folder::new(), free_port());
    let config = home.path().join("mirror.toml");
    let sha256 = "0".repeat(64);
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[store]\npath = {:?}\n[[client]]\nname = \"ci\"\ntoken = {{ sha256 = \"{sha256}\" }}\n",
        home.path().join("store")
    );
    std::fs::write(&config, text).unwrap();
    let admin = format!("127.0.0.1:{port}");
    let serve = ["serve", "--offline", "--admin-listen", &admin, "--config", config.to_str().unwrap()];
    let (larder, out, _) = spawn_captured(command(home.path(), &serve));
    out.line_with("Paste into ~/.terraformrc or ~/.tofurc, with the client's token in place of TOKEN").await;
    out.line_with("credentials \"registry.terraform.io\" {").await;
    out.line_with("  token = \"TOKEN\"").await;
    drop(larder);
}

/// `--config`, then `LARDER_CONFIG`, then each user's default locations.
#[tokio::test]
async fn the_environment_names_the_configuration_where_the_command_does_not() {
    let folder = Folder::new();
    let (from_variable, from_option) = (folder.path().join("named.toml"), folder.path().join("other.toml"));
    std::fs::write(&from_variable, "[server]\nopen = true\n").unwrap();
    std::fs::write(&from_option, "[server]\nopen = false\n").unwrap();
    let check = |arguments: &[&str], variable: &str| {
        let mut command = command(folder.path(), arguments);
        command.env("LARDER_CONFIG", variable);
        run(command)
    };
    let output = check(&["check", "--json"], from_variable.to_str().unwrap()).await;
    assert_eq!(json(&output.out)["file"], from_variable.to_str().unwrap(), "{output:?}");
    let output =
        check(&["check", "--json", "-c", from_option.to_str().unwrap()], from_variable.to_str().unwrap()).await;
    assert_eq!(json(&output.out)["file"], from_option.to_str().unwrap(), "{output:?}");
    let output = check(&["check", "--json"], "/nowhere/mirror.toml").await;
    assert_eq!(output.code, Some(78), "the environment names a missing file: {output:?}");
    assert_eq!(json(&output.out)["file"], "/nowhere/mirror.toml", "{output:?}");
}

/// A trial run where the default ports are taken needs no configuration file.
#[tokio::test]
async fn serve_takes_its_addresses_and_its_store_from_the_command_line() {
    let (folder, store) = (Folder::new(), tempfile::tempdir().unwrap());
    let mut serve = command(folder.path(), &["serve", "--json", "--offline", "--listen", "127.0.0.1:0"]);
    serve.args(["--admin-listen", "127.0.0.1:0", "--store"]).arg(store.path());
    let larder = Process::spawn(serve).unwrap();
    assert_ne!(larder.announcement()["admin"], "127.0.0.1:8081");
    larder.get("/healthz").await.expect(200);
    assert!(store.path().join("v1").is_dir());
    assert_eq!(larder.terminate().await, Some(0));
}

#[tokio::test]
async fn the_version_is_printed_by_either_spelling() {
    let folder = Folder::new();
    let version = env!("CARGO_PKG_VERSION");
    for arguments in [&["version"][..], &["--version"]] {
        let output = run(command(folder.path(), arguments)).await;
        assert_eq!((output.code, output.out), (Some(0), format!("larder {version}\n")));
    }
    let output = run(command(folder.path(), &["version", "--json"])).await;
    assert_eq!(json(&output.out)["version"], version);
}

/// Promise 15: help groups the commands; the long form adds examples, environment and exit codes.
#[tokio::test]
async fn help_has_groups_and_its_long_form_examples_environment_and_exit_codes() {
    let folder = Folder::new();
    let short = run(command(folder.path(), &["-h"])).await.out;
    let long = run(command(folder.path(), &["--help"])).await.out;
    for group in ["Run:", "Client:", "Content:", "Air gap:", "Maintain:"] {
        assert!(short.contains(group) && long.contains(group), "{group}: {long}");
    }
    for only_long in ["Examples:", "LARDER_CONFIG", "HTTPS_PROXY", "wrong configuration", "interrupted"] {
        assert!(long.contains(only_long) && !short.contains(only_long), "{only_long}: {long}");
    }
}

/// An unknown log format or level is an error, not a silent default.
#[tokio::test]
async fn the_log_is_json_when_the_environment_asks_for_it() {
    let (upstream, folder) = (FakeUpstream::start().await, Folder::new());
    let config = Larder::mirroring(&upstream).store_at(&folder).config_text();
    let set_json_format = |command: &mut std::process::Command| {
        command.env("LARDER_LOG_FORMAT", "json");
    };
    let larder = Process::serve_with(&config, folder.path(), set_json_format).unwrap();
    larder.get("/nowhere").await.expect(404);
    let line = json(&larder.log().line_with("/nowhere").await);
    assert!(line["timestamp"].is_string() && line["level"].is_string(), "{line}");
    assert_eq!(larder.terminate().await, Some(0));

    let mut wrong_format = command(folder.path(), &["check"]);
    wrong_format.env("LARDER_LOG_FORMAT", "xml");
    let output = run(wrong_format).await;
    assert_eq!(output.code, Some(78), "{output:?}");
    assert!(output.err.contains("LARDER_LOG_FORMAT") && output.err.contains("text or json"), "{output:?}");
    let mut wrong_level = command(folder.path(), &["version"]);
    wrong_level.env("LARDER_LOG", "warn,larder::jobs=debug,loud");
    let output = run(wrong_level).await;
    assert!(output.code == Some(78) && output.err.contains("LARDER_LOG has \"loud\""), "{output:?}");
}

/// Promise 15: the error says that the user may not read the token, not that the token is wrong.
#[tokio::test]
async fn a_command_of_another_user_names_the_token_and_who_may_read_it() {
    let (upstream, folder, user) = (FakeUpstream::start().await, Folder::new(), AnotherUser::new());
    let larder = Process::start(&Larder::mirroring(&upstream).store_at(&folder), folder.path());
    let (admin, store) = (larder.announcement()["admin"].as_str().unwrap(), folder.path().display());
    let config = user.file("mirror.toml", &format!("[admin]\nlisten = \"{admin}\"\n[store]\npath = \"{store}\"\n"));
    AnotherUser::make_unreadable(&folder.path().join("admin-token"));
    let output = run(user.command(&["purge", "acme/null", "--config", config.to_str().unwrap()])).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(output.err.contains("admin-token") && output.err.contains("Permission denied"), "{output:?}");
    assert!(output.err.contains("sudo -u larder"), "{output:?}");
    assert_eq!(larder.terminate().await, Some(0));
}
