//! Commands beside a running larder whose configuration file they cannot use: a mistake since its start, or a secret that
//! this user does not have. The larder goes on, so it is asked; no other larder is taken for it.

use crate::support::command_setup::{CommandSetup, json};
use crate::support::doctor_setup::{DoctorReport, small_store_setup};
use crate::support::ports::free_port;
use crate::support::process::{CommandOutput, Process, command, run};
use crate::support::upstream::{FakeUpstream, Provider};

/// A setup with a stored archive, and its larder.
async fn running() -> (FakeUpstream, CommandSetup, Process) {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let setup = small_store_setup(&upstream);
    let larder = setup.serve();
    larder.get(&larder.archive_path("null").await).await.expect(200);
    (upstream, setup, larder)
}

/// Breaks the text of a setup in ways that a person or a tool does.
fn breakages(text: &str) -> Vec<(&'static str, String)> {
    let replaced = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}: {text}");
        text.replacen(from, to, 1)
    };
    vec![
        ("an unknown key", format!("{text}typo = true\n")),
        ("a syntax error at the end", format!("{text}[[upstream\n")),
        ("a broken header of [store]", replaced("[store]", "[store")),
        ("a broken path of the store", replaced("path = \"", "path = ")),
        ("a broken [admin] listen", replaced("[admin]\nlisten = \"", "[admin]\nlisten = ")),
        (
            "a secret of the service's environment",
            replaced("[admin]\n", "[admin]\ntoken = { env = \"NO_SUCH_VARIABLE\" }\n"),
        ),
        ("not text", "\0\0\0".to_owned()),
        ("nothing readable", String::new()),
    ]
}

/// Runs a command with a broken file. `--store` leads to the larder where the file's own line is broken.
async fn ask(setup: &CommandSetup, arguments: &[&str]) -> CommandOutput {
    let (file, store) = (setup.home.path().join("mirror.toml"), setup.home.path());
    let more = ["--config", file.to_str().unwrap(), "--store", store.to_str().unwrap()];
    run(command(setup.home.path(), &[arguments, &more].concat())).await
}

#[tokio::test]
async fn commands_warn_and_ask_the_larder_that_runs() {
    let (_upstream, setup, larder) = running().await;
    let file = setup.home.path().join("mirror.toml");
    for (what, text) in breakages(&setup.text) {
        // An empty file is valid: it is removed instead.
        match text.is_empty() {
            true => std::fs::remove_file(&file).unwrap(),
            false => std::fs::write(&file, text).unwrap(),
        }
        for (arguments, expected) in [
            (&["status"][..], "verdict      All is well"),
            (&["list"], "acme/null\n"),
            (&["explain", "acme/null"], "SERVED"),
            (&["explain"], "verdict "),
            (&["missing"], "nothing"),
            (&["plan", "acme/null@1.2.0", "--platform", "linux_amd64"], "init"),
            (&["pin", "acme/null@1.2.0"], "acme/null 1.2.0"),
            (&["verify"], ""),
        ] {
            let output = ask(&setup, arguments).await;
            assert_eq!(output.code, Some(0), "{what}, {arguments:?}: {output:?}");
            assert!(output.out.contains(expected), "{what}, {arguments:?}: {output:?}");
            let warning = output.err.lines().next().unwrap_or_default();
            for part in ["the larder that runs is asked", "mirror.toml", "`larder check --config "] {
                assert!(warning.contains(part), "{what}, {arguments:?}: {output:?}");
            }
        }
        let status = json(&ask(&setup, &["status", "--json"]).await.out);
        assert_eq!(status["archives"], 1, "{what}: {status}");
        let report = DoctorReport::from_output(&ask(&setup, &["doctor", "--json"]).await);
        assert_eq!(report.ids("fail"), Vec::<&str>::new(), "{what}: {report:#?}");
        assert!(report.ids("warn").iter().all(|id| *id == "config"), "{what}: {report:#?}");
        assert!(report.ids("ok").contains(&"running"), "{what}: {report:#?}");
    }
    larder.terminate_promptly().await;
    // Without a larder the file decides, and it is not usable.
    let output = ask(&setup, &["status"]).await;
    assert_eq!(output.code, Some(78), "{output:?}");
    assert!(output.err.contains("1 problem in the configuration"), "{output:?}");
    let report = DoctorReport::from_output(&ask(&setup, &["doctor", "--json"]).await);
    assert_eq!(report.ids("fail"), ["config"], "{report:#?}");
}

/// The defaults may lead to another larder where the lines that lead to the right one are broken. It must not answer.
#[tokio::test]
async fn another_larder_is_never_asked_for_the_one_of_the_file() {
    let (_upstream, setup, larder) = running().await;
    let home = setup.home.path();
    // A larder of another file, in the default store, and one of this file that the command line sent there.
    let other = home.join("other.toml");
    let (listen, admin) = (free_port().to_string(), free_port().to_string());
    let addresses = [format!("127.0.0.1:{listen}"), format!("127.0.0.1:{admin}")];
    let default_store = home.join("cache/larder");
    std::fs::write(&other, setup.text.replacen(home.to_str().unwrap(), default_store.to_str().unwrap(), 1)).unwrap();
    let file = setup.file();
    for (config, options) in [(&other, &[][..]), (&file, &["--store", default_store.to_str().unwrap()][..])] {
        let mut serve = command(home, &["serve", "--json", "--listen", &addresses[0], "--admin-listen", &addresses[1]]);
        serve.args(options).arg("--config").arg(config);
        let second = Process::spawn(serve).unwrap_or_else(|error| panic!("{error:?}"));
        let broken = setup.text.replacen("path = \"", "path = ", 1);
        std::fs::write(&file, broken).unwrap();
        for arguments in [&["status"][..], &["list"], &["purge", "acme/null"]] {
            let with_file = [arguments, &["--config", file.to_str().unwrap()]].concat();
            let output = run(command(home, &with_file)).await;
            assert_eq!((output.code, output.out.as_str()), (Some(78), ""), "{arguments:?}: {output:?}");
            assert!(output.err.contains("mirror.toml:"), "{arguments:?}: {output:?}");
        }
        setup.file();
        second.terminate_promptly().await;
    }
    // A person who names the store or the listener means the larder there.
    std::fs::write(&other, "typo = true\n").unwrap();
    let listener = larder.admin().strip_prefix("http://").unwrap().to_owned();
    let named_store = ["--store", home.to_str().unwrap()];
    for named in [[&named_store[..], &["--admin-listen", &listener]].concat(), named_store.to_vec()] {
        let arguments = [&["status", "--config", other.to_str().unwrap()], &named[..]].concat();
        let output = run(command(home, &arguments)).await;
        assert!(output.code == Some(0) && output.out.contains("All is well"), "{output:?}");
    }
    larder.terminate_promptly().await;
}

/// A mistake that leaves the lines to the larder alone needs no option.
#[tokio::test]
async fn the_larder_of_the_file_is_found_without_options() {
    let (_upstream, setup, larder) = running().await;
    let file = setup.home.path().join("mirror.toml");
    std::fs::write(&file, format!("{}typo = true\n", setup.text)).unwrap();
    let output = run(command(setup.home.path(), &["list", "--config", file.to_str().unwrap()])).await;
    assert!(output.code == Some(0) && output.out.contains("acme/null"), "{output:?}");
    larder.terminate_promptly().await;
}

/// A replica needs its fleet: a store of its own could take other bytes for the first of a version.
#[tokio::test]
async fn no_command_opens_a_store_of_its_own_where_the_configuration_names_a_fleet() {
    let home = tempfile::tempdir().unwrap();
    let [file, store] = ["mirror.toml", "store"].map(|name| home.path().join(name));
    std::fs::write(home.path().join("database-url"), "postgresql://larder@127.0.0.1:9/larder").unwrap();
    std::fs::write(home.path().join("fleet-secret"), "0123456789abcdef0123456789abcdef").unwrap();
    let text = "[store]\npath = \"store\"\n[fleet]\ndatabase = { file = \"database-url\" }\nbucket = \"s3://larder\"\n\
                secret = [{ file = \"fleet-secret\" }]\nlisten = \"0.0.0.0:0\"\nadvertise = \"http://10.0.0.7:8082/\"\n";
    std::fs::write(&file, text).unwrap();
    for arguments in [&["serve"][..], &["warm", "acme/null"], &["run", "--", "true"]] {
        let arguments = [&arguments[..1], &["--config", file.to_str().unwrap()], &arguments[1..]].concat();
        let output = run(command(home.path(), &arguments)).await;
        assert_ne!(output.code, Some(0), "{arguments:?}: {output:?}");
        assert!(output.err.contains("a new replica must reach both once"), "{arguments:?}: {output:?}");
    }
    assert!(!store.exists());
}
