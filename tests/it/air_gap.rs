//! Configurations across an air gap: after `warm`, `plan` reports them ready and they install without an upstream.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::estate_fixture::{EstateFixture, PLATFORMS, ROOTS};
use crate::support::git_module_fixture::override_through;
use crate::support::http::{client, send};
use crate::support::larder::{Folder, Larder};
use crate::support::process::{CommandOutput, Process, command, run};
use crate::support::repetitions;
use crate::support::reports::name;
use crate::support::terraform::Terraform;

/// Runs `larder COMMAND prod dev` for both platforms, in the folder that contains both root folders.
async fn run_larder(command_name: &str, estate: &EstateFixture, folder: &Folder, extra: &[&str]) -> CommandOutput {
    let config = folder.path().join("running.toml");
    let config = config.to_string_lossy();
    let platforms = PLATFORMS.map(|platform| format!("--platform={platform}"));
    let arguments =
        [&[command_name, "prod", "dev", &platforms[0], &platforms[1], "--config", &*config], extra].concat();
    let mut command = command(folder.path(), &arguments);
    command.current_dir(estate.folder());
    run(command).await
}

/// Writes a configuration by which commands find the running larder, whose ports are random.
fn write_config_of_running(folder: &Folder, running: &Process) {
    let text = format!(
        "[admin]\nlisten = \"{}\"\n[store]\npath = {:?}\n",
        running.admin().trim_start_matches("http://"),
        folder.path()
    );
    std::fs::write(folder.path().join("running.toml"), text).unwrap();
}

/// The items of a plan that are not stored (state `have`), each as its name and platform.
fn unavailable_items(plan: &Value) -> BTreeSet<String> {
    let items = plan["items"].as_array().unwrap().iter();
    items.filter(|item| item["state"] != "have").map(item_name).collect()
}

fn item_name(item: &Value) -> String {
    format!("{} {}", name(item), item["platform"].as_str().unwrap_or(""))
}

/// True if the plan's item `item` (`ADDRESS@VERSION PLATFORM`) needs this record.
fn is_needed_for(record: &Path, item: &str) -> bool {
    let (name, platform) = item.rsplit_once(' ').unwrap();
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
    let running = Process::start(&Larder::mirroring(&estate.upstream).store_at(&folder), folder.path());
    write_config_of_running(&folder, &running);
    estate.workspace.cli_config(&override_through(running.base()));

    let plan_before = run_larder("plan", &estate, &folder, &["--json"]).await;
    assert_eq!(plan_before.code, Some(3), "{plan_before:?}");
    let plan_before: Value = serde_json::from_str(&plan_before.out).unwrap_or_else(|_| panic!("{plan_before:?}"));
    // The plan stored the modules that it had to read, and no provider.
    assert_eq!(
        (plan_before["ready"].clone(), plan_before["sums"]["have"].clone()),
        (json!(false), json!(10)),
        "{plan_before:#}"
    );

    let warm = run_larder("warm", &estate, &folder, &[]).await;
    assert_eq!(warm.code, Some(0), "{warm:?}");
    estate.upstream.stop().await;

    let plan = run_larder("plan", &estate, &folder, &["--json"]).await;
    assert_eq!(plan.code, Some(0), "{plan:?}");
    let plan: Value = serde_json::from_str(&plan.out).unwrap();
    let planned: BTreeSet<String> = plan["items"].as_array().unwrap().iter().map(item_name).collect();
    assert_eq!(planned, plan_before["items"].as_array().unwrap().iter().map(item_name).collect());
    let modules = planned.iter().filter(|item| item.contains("/test@")).count();
    assert_eq!(modules, 10, "{planned:#?}");
    for root in ROOTS {
        estate.init(root).await.expect_success();
        for provider in estate.locked(root) {
            assert!(PLATFORMS.iter().all(|platform| planned.contains(&format!("{provider} {platform}"))), "{provider}");
        }
        estate.lock(root).await.expect_success();
    }
    assert!(estate.locked("prod").iter().any(|locked| locked.ends_with("acme/state@1.0.0")));
    assert!(estate.locked("dev").iter().any(|locked| locked.ends_with("acme/state@2.1.0-rc.1")));
    let providers: BTreeSet<&str> =
        planned.iter().filter(|item| !item.contains("/test@")).map(|item| item.split('@').next().unwrap()).collect();
    assert!(providers.len() >= 8, "{providers:?}");

    // For each removed archive, the plan reports the items that need it as unavailable.
    let token = std::fs::read_to_string(folder.path().join("admin-token")).unwrap();
    let removed = folder.path().join("removed");
    let mut reported = BTreeSet::new();
    for blob in folder.blobs() {
        std::fs::rename(&blob, &removed).unwrap();
        let plan = plan_of_tar(&estate, &running, &token).await;
        std::fs::rename(&removed, &blob).unwrap();
        assert_eq!(plan["ready"], false, "{plan:#}");
        let unavailable = unavailable_items(&plan);
        assert!(!unavailable.is_empty() && unavailable.is_subset(&planned), "{unavailable:?}");
        reported.extend(unavailable);
    }
    assert_eq!(reported, planned);
    assert_eq!(running.terminate().await, Some(0));

    // The same holds for each removed package record and proof set, while larder is offline and cannot fetch them
    // again.
    let sealed = || Larder::mirroring(&estate.upstream).network("offline = true").store_at(&folder);
    let running = Process::start(&sealed(), folder.path());
    let (proof_sets, other_documents): (Vec<_>, Vec<_>) = folder
        .files("documents")
        .into_iter()
        .partition(|path| path.extension().is_some_and(|extension| extension == "set"));
    for record in folder.files("names").into_iter().chain(proof_sets).step_by(repetitions(3, 1)) {
        std::fs::rename(&record, &removed).unwrap();
        let plan = plan_of_tar(&estate, &running, &token).await;
        std::fs::rename(&removed, &record).unwrap();
        let unavailable = unavailable_items(&plan);
        assert_eq!(plan["ready"], false, "{}: {plan:#}", record.display());
        assert!(
            !unavailable.is_empty() && unavailable.iter().all(|item| is_needed_for(&record, item)),
            "{unavailable:?}"
        );
    }
    assert_eq!(running.terminate().await, Some(0));

    // An offline larder derives lists, locations and discovery from what is stored, so the plan does not need those
    // documents.
    assert!(other_documents.len() > 20, "{other_documents:?}");
    other_documents.iter().for_each(|record| folder.lose(record));
    let running = Process::start(&sealed(), folder.path());
    write_config_of_running(&folder, &running);
    estate.workspace.cli_config(&override_through(running.base()));
    assert_eq!(plan_of_tar(&estate, &running, &token).await["ready"], true);
    for root in ROOTS {
        estate.init(root).await.expect_success();
    }
    let archive = &folder.blobs()[0];
    std::fs::remove_file(archive).unwrap();
    let plan = run_larder("plan", &estate, &folder, &[]).await;
    assert!(plan.code == Some(3) && plan.out.contains("`init` will fail"), "{plan:?}");
}
