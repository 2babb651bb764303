//! Across an air gap with users' own files: folders are warmed, `plan` confirms it, and everything installs without an
//! upstream.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::estate_fixture::{EstateFixture, PLATFORMS, ROOTS};
use crate::support::git_module_fixture::through;
use crate::support::http::{client, send};
use crate::support::larder::{Folder, Larder};
use crate::support::process::{CommandOutput, Process, command, run};
use crate::support::reports::name;
use crate::support::terraform::Terraform;

/// Runs `larder COMMAND prod dev` for both platforms, beside the folders.
async fn larder(command_name: &str, estate: &EstateFixture, folder: &Folder, more: &[&str]) -> CommandOutput {
    let config = folder.path().join("beside.toml");
    let config = config.to_string_lossy();
    let platforms = PLATFORMS.map(|platform| format!("--platform={platform}"));
    let arguments = [&[command_name, "prod", "dev", &platforms[0], &platforms[1], "--config", &*config], more].concat();
    let mut command = command(folder.path(), &arguments);
    command.current_dir(estate.folder());
    run(command).await
}

/// The configuration by which commands find the running larder, whose ports are random.
fn write_beside(folder: &Folder, running: &Process) {
    let text = format!(
        "[admin]\nlisten = \"{}\"\n[store]\npath = {:?}\n",
        running.admin().trim_start_matches("http://"),
        folder.path()
    );
    std::fs::write(folder.path().join("beside.toml"), text).unwrap();
}

/// The items of a plan that are not `have`, each as its name and platform.
fn unavailable_items(plan: &Value) -> BTreeSet<String> {
    let items = plan["items"].as_array().unwrap().iter();
    items.filter(|item| item["state"] != "have").map(item_name).collect()
}

fn item_name(item: &Value) -> String {
    format!("{} {}", name(item), item["platform"].as_str().unwrap_or(""))
}

/// True if this record is needed for the plan's item `subject`.
fn is_needed_for(record: &Path, subject: &str) -> bool {
    let (name, platform) = subject.rsplit_once(' ').unwrap();
    let (host, name) = name.split('@').next().unwrap().split_once('/').unwrap();
    let record = record.to_string_lossy();
    let mut folders = ["providers", "modules"].iter().map(|kind| format!("/{host}/{kind}/{name}/"));
    folders.any(|folder| record.contains(&folder)) && record.contains(platform)
}

/// The running larder's plan for a tar of the folders.
async fn plan_of_tar(estate: &EstateFixture, larder: &Process, token: &str) -> Value {
    let mut tar = tar::Builder::new(Vec::new());
    for folder in ["prod", "dev", "common"] {
        tar.append_dir_all(folder, estate.folder().join(folder)).unwrap();
    }
    let query = "root=prod&root=dev&platform=linux_amd64&platform=darwin_arm64";
    let request = client().post(format!("{}/admin/v1/plan?{query}", larder.admin())).bearer_auth(token);
    let request = request.header("content-type", "application/x-tar").body(tar.into_inner().unwrap());
    send(request).await.unwrap().expect(200).json()
}

#[tokio::test]
async fn warmed_folders_install_offline_as_plan_predicted() {
    let Some(client) = Terraform::find() else { return };
    let mut estate = EstateFixture::new(&client).await;
    let folder = Folder::new();
    let running = Process::start(&Larder::mirroring(&estate.upstream).on(&folder), folder.path());
    write_beside(&folder, &running);
    estate.workspace.cli_config(&through(running.base()));

    let before = larder("plan", &estate, &folder, &["--json"]).await;
    assert_eq!(before.code, Some(3), "{before:?}");
    let before: Value = serde_json::from_str(&before.out).unwrap_or_else(|_| panic!("{before:?}"));
    // The plan stored the modules that it had to read, and no provider.
    assert_eq!((before["ready"].clone(), before["sums"]["have"].clone()), (json!(false), json!(10)), "{before:#}");

    let warmed = larder("warm", &estate, &folder, &[]).await;
    assert_eq!(warmed.code, Some(0), "{warmed:?}");
    estate.upstream.stop().await;

    let plan = larder("plan", &estate, &folder, &["--json"]).await;
    assert_eq!(plan.code, Some(0), "{plan:?}");
    let plan: Value = serde_json::from_str(&plan.out).unwrap();
    let wanted: BTreeSet<String> = plan["items"].as_array().unwrap().iter().map(item_name).collect();
    assert_eq!(wanted, before["items"].as_array().unwrap().iter().map(item_name).collect());
    let modules = wanted.iter().filter(|subject| subject.contains("/test@")).count();
    assert_eq!(modules, 10, "{wanted:#?}");
    for root in ROOTS {
        estate.init(root).await.expect_success();
        for provider in estate.locked(root) {
            assert!(PLATFORMS.iter().all(|platform| wanted.contains(&format!("{provider} {platform}"))), "{provider}");
        }
        estate.lock(root).await.expect_success();
    }
    assert!(estate.locked("prod").iter().any(|locked| locked.ends_with("acme/state@1.0.0")));
    assert!(estate.locked("dev").iter().any(|locked| locked.ends_with("acme/state@2.1.0-rc.1")));
    let providers: BTreeSet<&str> = wanted
        .iter()
        .filter(|subject| !subject.contains("/test@"))
        .map(|subject| subject.split('@').next().unwrap())
        .collect();
    assert!(providers.len() >= 8, "{providers:?}");

    // Whichever archive is removed, the plan names the items that lack it.
    let token = std::fs::read_to_string(folder.path().join("admin-token")).unwrap();
    let aside = folder.path().join("taken-away");
    let mut named = BTreeSet::new();
    for blob in folder.blobs() {
        std::fs::rename(&blob, &aside).unwrap();
        let plan = plan_of_tar(&estate, &running, &token).await;
        std::fs::rename(&aside, &blob).unwrap();
        assert_eq!(plan["ready"], false, "{plan:#}");
        let lacking = unavailable_items(&plan);
        assert!(!lacking.is_empty() && lacking.is_subset(&wanted), "{lacking:?}");
        named.extend(lacking);
    }
    assert_eq!(named, wanted);
    assert_eq!(running.terminate().await, Some(0));

    // Package records and proof sets give this result too, offline, where nothing could be fetched again.
    let sealed = || Larder::mirroring(&estate.upstream).network("offline = true").on(&folder);
    let running = Process::start(&sealed(), folder.path());
    let (sets, others): (Vec<_>, Vec<_>) =
        folder.files("documents").into_iter().partition(|path| path.extension().is_some_and(|ending| ending == "set"));
    for record in folder.files("names").into_iter().chain(sets) {
        std::fs::rename(&record, &aside).unwrap();
        let plan = plan_of_tar(&estate, &running, &token).await;
        std::fs::rename(&aside, &record).unwrap();
        let lacking = unavailable_items(&plan);
        assert_eq!(plan["ready"], false, "{}: {plan:#}", record.display());
        assert!(!lacking.is_empty() && lacking.iter().all(|what| is_needed_for(&record, what)), "{lacking:?}");
    }
    assert_eq!(running.terminate().await, Some(0));

    // An offline larder derives lists, locations and discovery from what is stored, so the plan does not need those
    // documents.
    assert!(others.len() > 20, "{others:?}");
    others.iter().for_each(|record| std::fs::remove_file(record).unwrap());
    let running = Process::start(&sealed(), folder.path());
    write_beside(&folder, &running);
    estate.workspace.cli_config(&through(running.base()));
    assert_eq!(plan_of_tar(&estate, &running, &token).await["ready"], true);
    for root in ROOTS {
        estate.init(root).await.expect_success();
    }
    let taken = &folder.blobs()[0];
    std::fs::remove_file(taken).unwrap();
    let plan = larder("plan", &estate, &folder, &[]).await;
    assert!(plan.code == Some(3) && plan.out.contains("`init` will fail"), "{plan:?}");
}
