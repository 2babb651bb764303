//! Problems of a first-time user, each reported with the line that helps (promise 15).

use crate::support::another_user::AnotherUser;
use crate::support::command_setup::{CommandSetup, json};
use crate::support::doctor_setup::{configure_client, examine, small_store_setup};
use crate::support::git_module_fixture::override_through;
use crate::support::larder::{Folder, HOST, Larder};
use crate::support::module_fixture::tar_gz;
use crate::support::ports::free_port;
use crate::support::process::{Process, command, run, spawn_captured};
use crate::support::terraform::Terraform;
use crate::support::upstream::{FakeUpstream, Module, Provider, Target};

async fn upstream_publishing_null() -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("hashicorp", "null"));
    upstream
}

/// A client whose larder is stopped, as docs/trouble.md describes it.
#[tokio::test]
async fn while_larder_is_stopped_only_init_fails_and_names_its_address() {
    let Some(client) = Terraform::find() else { return };
    let upstream = FakeUpstream::start().await;
    upstream.serve_file(
        "/vpc.tar.gz",
        "application/gzip",
        tar_gz(&[("main.tf", b"resource \"terraform_data\" \"x\" {}\n")]),
    );
    let location = format!("{}/vpc.tar.gz", upstream.origin());
    upstream.publish_module(Module::new("acme", "vpc", "aws").version("1.0.0").at(&location));
    upstream.publish(Provider::new("hashicorp", "null"));
    let setup = CommandSetup::new(&upstream);
    let larder = setup.serve();
    let mut installed = client.workspace();
    installed.require("hashicorp/null", "1.2.0").cli_config(&override_through(&setup.base()));
    installed.init().await.expect_success();
    let mut workspace = client.workspace();
    workspace
        .file("main.tf", "module \"vpc\" {\n  source = \"acme/vpc/aws\"\n}\n")
        .cli_config(&override_through(&setup.base()));
    workspace.init().await.expect_success();
    larder.terminate_promptly().await;
    for command in [&["validate", "-no-color"][..], &["plan", "-no-color"], &["apply", "-no-color", "-auto-approve"]] {
        workspace.run(command).await.expect_success();
    }
    // Everything is installed and locked, and `init` asks for the version list all the same.
    let text = installed.init().await.expect_failure().one_line();
    assert!(text.contains("connection refused") && text.contains(&setup.base().replace("http://", "")), "{text}");
}

/// The default limit fits the disk, so a fresh start has no warnings.
#[tokio::test]
async fn a_fresh_start_has_a_limit_that_its_disk_can_hold() {
    let upstream = upstream_publishing_null().await;
    let setup = CommandSetup::new(&upstream);
    assert!(!setup.text.contains("max_size"), "{}", setup.text);
    let _larder = setup.serve();
    configure_client(&setup);
    examine(&setup, &[]).await.assert_healthy();
    let status = json(&setup.stdout_of(&["status", "--json"]).await);
    let (limit, free) = (status["max_size_bytes"].as_u64().unwrap(), status["free_bytes"].as_u64().unwrap());
    assert!(limit <= 200 << 30 && limit < free && limit > 0, "{limit} of {free}");
}

/// The real socket is printed beside `public_url`, and Terraform's block, which most users need, comes first.
#[tokio::test]
async fn serve_prints_its_real_socket_and_terraforms_block_first() {
    let home = Folder::new();
    let text = "[server]\nlisten = \"127.0.0.1:0\"\npublic_url = \"https://mirror.example/\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
                [network]\noffline = true\n";
    std::fs::write(home.path().join("mirror.toml"), text).unwrap();
    let file = home.path().join("mirror.toml");
    let (child, out, _) = spawn_captured(command(home.path(), &["serve", "--config", file.to_str().unwrap()]));
    let listen_line = out.line_with(" listens on 127.0.0.1:").await;
    assert!(listen_line.ends_with("; clients reach it at https://mirror.example"), "{listen_line}");
    out.line_with("host \"registry.opentofu.org\" {").await;
    let blocks: Vec<String> = out.text().lines().filter(|line| line.starts_with("host ")).map(str::to_owned).collect();
    assert_eq!(blocks, ["host \"registry.terraform.io\" {", "host \"registry.opentofu.org\" {"]);
    drop(child);
}

#[tokio::test]
async fn serve_logs_one_line_for_an_unreachable_upstream() {
    let mut upstream = upstream_publishing_null().await;
    let origin = upstream.origin();
    upstream.stop().await;
    let folder = Folder::new();
    let larder =
        Process::start(&Larder::builder().upstream(HOST, &format!("{origin}/"), "").store_at(&folder), folder.path());
    let line = larder.log().line_with("see `larder doctor`").await;
    let expected = format!("127.0.0.1:{}: connection refused", origin.rsplit(':').next().unwrap());
    assert!(line.contains(&expected) && line.contains("stored copies are served"), "{line}");
    assert_eq!(larder.log().text().matches(&expected).count(), 1, "{}", larder.log().text());
    assert_eq!(larder.terminate().await, Some(0));
}

/// The third way to use a mirror: clients find larder by its own host name, over https only.
#[tokio::test]
async fn client_config_supports_larders_own_host_name() {
    let upstream = upstream_publishing_null().await;
    let mut setup = small_store_setup(&upstream);
    let output = setup.run(&["client-config", "--own-name"]).await;
    assert!(output.code == Some(1) && output.err.contains("[server] public_url"), "{output:?}");
    let config_with = |line: &str| setup.text.replace("[server]\n", &format!("[server]\n{line}\n"));
    let (http, prefixed, good) = (
        config_with("public_url = \"http://mirror.example/\""),
        config_with("public_url = \"https://mirror.example/tools/\""),
        config_with("public_url = \"https://mirror.example:8443/\""),
    );
    for text in [http, prefixed] {
        setup.text = text;
        let output = setup.run(&["client-config", "--own-name"]).await;
        assert!(output.code == Some(1) && output.err.contains("over https, at its root"), "{output:?}");
    }
    setup.text = good;
    let output = setup.run(&["client-config", "--own-name"]).await;
    assert!(output.code == Some(1) && output.err.contains("[server] default_upstream"), "{output:?}");
    setup.text = setup.text.replace("[server]\n", &format!("[server]\ndefault_upstream = \"{HOST}\"\n"));
    let output = setup.stdout_of(&["client-config", "--own-name"]).await;
    for part in
        ["source = \"mirror.example:8443/hashicorp/aws\"", "source = \"mirror.example:8443/terraform-aws-modules/"]
    {
        assert!(output.contains(part), "{part}: {output}");
    }
}

#[tokio::test]
async fn a_refresh_of_a_nonexistent_package_fails() {
    let upstream = upstream_publishing_null().await;
    let setup = small_store_setup(&upstream);
    let _larder = setup.serve();
    let output = setup.run(&["refresh", "hashicorp/none"]).await;
    assert!(output.code == Some(1) && output.out.contains("not found"), "{output:?}");
    let output = setup.run(&["refresh", "hashicorp/null"]).await;
    assert_eq!(output.code, Some(0), "{output:?}");
}

#[tokio::test]
async fn the_admin_listener_may_have_a_host_name() {
    let upstream = upstream_publishing_null().await;
    let mut setup = small_store_setup(&upstream);
    let admin = setup.text.split("[admin]\nlisten = \"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let port = admin.rsplit(':').next().unwrap();
    setup.text = setup.text.replace(&admin, &format!("localhost:{port}"));
    let larder = setup.serve();
    assert_eq!(larder.announcement()["admin"], format!("127.0.0.1:{port}"));
    setup.stdout_of(&["status"]).await;
    setup.text = setup.text.replace("localhost", "no-such-name.invalid");
    let output = setup.run(&["check"]).await;
    assert!(output.code == Some(78) && output.err.contains("\"no-such-name.invalid:"), "{output:?}");
    assert!(output.err.contains("admin.listen") && output.err.contains("does not resolve"), "{output:?}");
}

/// Configurations next to an unreadable folder are still read.
#[tokio::test]
async fn an_unreadable_folder_without_configurations_is_skipped_with_a_note() {
    let (upstream, user) = (upstream_publishing_null().await, AnotherUser::new());
    let requirements = "terraform {\n  required_providers {\n    null = { source = \"hashicorp/null\" }\n  }\n}\n";
    user.file("work/prod/main.tf", requirements);
    let unreadable = user.file("work/locked/main.tf", requirements);
    AnotherUser::make_unreadable(unreadable.parent().unwrap());
    let (store, port) = (user.path("store"), free_port());
    let config = user.file(
        "mirror.toml",
        &format!(
            "[admin]\nlisten = \"127.0.0.1:{port}\"\n[store]\npath = {store:?}\n[[upstream]]\nhost = \"{HOST}\"\nurl = \"{}/\"\n",
            upstream.origin()
        ),
    );
    let work = user.path("work");
    let config = ["--config", config.to_str().unwrap()];
    let warm = [&["warm", work.to_str().unwrap(), "--platform", "linux_amd64"], &config[..]].concat();
    let output = run(user.command(&warm)).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(
        output.err.contains("skipped: ") && output.err.contains("work/locked cannot be read: Permission denied"),
        "{output:?}"
    );
    assert_eq!(upstream.count_of(Target::Archive), 1);
    let plan = [&["plan", work.to_str().unwrap(), "--platform", "linux_amd64"], &config[..]].concat();
    let output = run(user.command(&plan)).await;
    assert!(
        output.code == Some(0) && output.err.contains("work/locked cannot be read: Permission denied"),
        "{output:?}"
    );
}

/// In an unquoted constraint, the shell takes the `>` as a redirection.
#[tokio::test]
async fn a_constraint_that_the_shell_truncated_gets_the_advice_to_quote_it() {
    let upstream = upstream_publishing_null().await;
    let setup = small_store_setup(&upstream);
    let config = setup.file();
    let work = tempfile::tempdir().unwrap();
    let line = format!("{} plan hashicorp/null@~> 1.0 --config {}", env!("CARGO_BIN_EXE_larder"), config.display());
    let mut shell = std::process::Command::new("/bin/sh");
    shell.arg("-c").arg(line).current_dir(work.path()).stdin(std::process::Stdio::null());
    shell.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let output = run(shell).await;
    assert!(output.code == Some(1) && output.err.contains("quote the constraint"), "{output:?}");
    assert!(output.err.contains("'hashicorp/null@~> 5.0'"), "{output:?}");
}
