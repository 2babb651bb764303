//! A plan chooses as the real client does: for dozens of configurations, its providers are those of the lock file that
//! `terraform init` writes, its modules are those that `init` installs, and its refusals are the client's refusals.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::configurations::{Configuration, publish};
use crate::support::git_module_fixture::override_through;
use crate::support::handwritten_configurations::handwritten_configurations;
use crate::support::http::{client, send};
use crate::support::larder::Larder;
use crate::support::reports;
use crate::support::terraform::{Terraform, Workspace};
use crate::support::upstream::FakeUpstream;

/// The number of configurations.
const CONFIGURATIONS: u64 = 90;

/// The packages that a client or a plan chose, as `ADDRESS@VERSION`.
#[derive(Debug, Default, PartialEq, Eq)]
struct SelectedPackages {
    providers: BTreeSet<String>,
    modules: BTreeSet<String>,
}

/// The packages that `init` installed in a root folder.
fn installed(workspace: &Workspace, root: &str) -> SelectedPackages {
    let read = |path: &str| std::fs::read_to_string(workspace.path().join(root).join(path)).unwrap_or_default();
    let mut chosen = SelectedPackages::default();
    let mut address = String::new();
    for line in read(".terraform.lock.hcl").lines() {
        if let Some(label) = line.strip_prefix("provider \"") {
            address = label.trim_end_matches("\" {").to_owned();
        } else if let Some(version) = line.trim().strip_prefix("version") {
            chosen.providers.insert(format!("{address}@{}", version.trim_matches([' ', '=', '"'])));
        }
    }
    let modules: Value = serde_json::from_str(&read(".terraform/modules/modules.json")).unwrap_or_default();
    for module in modules["Modules"].as_array().into_iter().flatten() {
        if let Some(version) = module["Version"].as_str() {
            let source = module["Source"].as_str().unwrap().split("//").next().unwrap().to_owned();
            chosen.modules.insert(format!("{source}@{version}"));
        }
    }
    chosen
}

/// The packages of a plan for these root folders, and its unavailable items.
async fn planned(larder: &Larder, configuration: &Configuration, roots: &[&str]) -> (SelectedPackages, Vec<String>) {
    let body = json!({ "files": configuration.files, "roots": roots, "client": "terraform" });
    let request = client().post(format!("{}/admin/v1/plan", larder.admin())).bearer_auth(larder.token());
    let request = request.header("content-type", "application/json").body(body.to_string());
    let plan = send(request).await.unwrap().expect(200).json();
    let (mut chosen, mut unavailable) = (SelectedPackages::default(), Vec::new());
    for item in plan["items"].as_array().unwrap() {
        let package = reports::name(item);
        match (item["state"].as_str().unwrap(), item["platform"].as_str()) {
            ("cannot", _) => unavailable.push(item.to_string()),
            (_, Some(_)) => drop(chosen.providers.insert(package)),
            (_, None) => drop(chosen.modules.insert(package)),
        }
    }
    (chosen, unavailable)
}

/// For each root folder, whether the client could install it; and the differences between plan and client.
async fn compare_plan_and_client(
    client: &Terraform,
    larder: &Larder,
    name: &str,
    configuration: &Configuration,
) -> (Vec<bool>, Vec<String>) {
    let workspace = client.workspace();
    workspace.cli_config(&override_through(larder.base()));
    for (path, text) in &configuration.files {
        let path = workspace.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let mut combined = SelectedPackages::default();
    let (mut successes, mut differences) = (Vec::new(), Vec::new());
    for root in &configuration.roots {
        let (plan, unavailable) = planned(larder, configuration, &[root]).await;
        let init = workspace.run(&[&format!("-chdir={root}"), "init", "-no-color", "-input=false"]).await;
        let chosen = installed(&workspace, root);
        if init.status.success() != unavailable.is_empty() || (init.status.success() && plan != chosen) {
            let files = &configuration.files;
            differences.push(format!(
                "configuration {name}, {root}: {files:#?}\n{}\nchosen: {chosen:#?}\nplanned: {plan:#?}\n{unavailable:#?}",
                init.text
            ));
        }
        combined.providers.extend(plan.providers);
        combined.modules.extend(plan.modules);
        successes.push(init.status.success());
    }
    // A request without `roots` makes larder find the root folders; its plan covers all of them.
    let (found_roots_plan, _) = planned(larder, configuration, &[]).await;
    if found_roots_plan != combined {
        differences
            .push(format!("configuration {name}: {:#?}\n{found_roots_plan:#?}\n{combined:#?}", configuration.files));
    }
    (successes, differences)
}

/// Compares plan and client for all configurations, a few at a time; returns for each root whether the client installed
/// it.
async fn compare_all(client: &Terraform, configurations: &[(String, Configuration)]) -> Vec<bool> {
    let upstream = FakeUpstream::start().await;
    publish(&upstream);
    let larder = Larder::mirroring(&upstream).start().await;
    let larder = &larder;
    let (mut successes, mut differences) = (Vec::new(), Vec::new());
    for chunk in configurations.chunks(3) {
        let comparisons =
            chunk.iter().map(|(name, configuration)| compare_plan_and_client(client, larder, name, configuration));
        for (chunk_successes, chunk_differences) in futures_util::future::join_all(comparisons).await {
            successes.extend(chunk_successes);
            differences.extend(chunk_differences);
        }
    }
    assert!(differences.is_empty(), "{} of {}:\n{}", differences.len(), successes.len(), differences.join("\n\n"));
    successes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_names_exactly_what_the_real_client_chooses() {
    let Some(client) = Terraform::find_since(1, 10) else { return };
    let configurations: Vec<_> =
        (0..CONFIGURATIONS).map(|seed| (seed.to_string(), Configuration::from_seed(seed))).collect();
    let successes = compare_all(&client, &configurations).await;
    // Enough configurations succeed and enough fail for the comparison to mean something.
    let success_count = successes.iter().filter(|is_success| **is_success).count();
    assert!(success_count >= 30 && successes.len() - success_count >= 8, "{success_count} of {}", successes.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_matches_the_real_client_for_handwritten_configurations() {
    let Some(client) = Terraform::find_since(1, 10) else { return };
    let configurations = handwritten_configurations();
    let successes = compare_all(&client, &configurations).await;
    for ((name, configuration), is_success) in configurations.iter().zip(successes) {
        assert_eq!(is_success, name.starts_with("installed"), "{name}: {:#?}", configuration.files);
    }
}
