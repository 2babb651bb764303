//! A plan chooses as the real client does: for dozens of configurations, its providers are those of the lock file that
//! `terraform init` writes, its modules are those that `init` installs, and its refusals are the client's refusals.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::configurations::{Configuration, publish};
use crate::support::forms::forms;
use crate::support::git_module_fixture::through;
use crate::support::http::{client, send};
use crate::support::larder::Larder;
use crate::support::reports;
use crate::support::terraform::{Terraform, Workspace};
use crate::support::upstream::FakeUpstream;

/// The number of configurations.
const CONFIGURATIONS: u64 = 90;

/// The choice of a client or of a plan: `ADDRESS@VERSION`.
#[derive(Debug, Default, PartialEq, Eq)]
struct SelectedPackages {
    providers: BTreeSet<String>,
    modules: BTreeSet<String>,
}

/// The packages that `init` left in a folder.
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

/// The packages that a plan for these folders names, and its unavailable items.
async fn planned(larder: &Larder, configuration: &Configuration, roots: &[&str]) -> (SelectedPackages, Vec<String>) {
    let body = json!({ "files": configuration.files, "roots": roots, "client": "terraform" });
    let request = client().post(format!("{}/admin/v1/plan", larder.admin())).bearer_auth(larder.token());
    let request = request.header("content-type", "application/json").body(body.to_string());
    let plan = send(request).await.unwrap().expect(200).json();
    let (mut chosen, mut cannot) = (SelectedPackages::default(), Vec::new());
    for item in plan["items"].as_array().unwrap() {
        let subject = reports::name(item);
        match (item["state"].as_str().unwrap(), item["platform"].as_str()) {
            ("cannot", _) => cannot.push(item.to_string()),
            (_, Some(_)) => drop(chosen.providers.insert(subject)),
            (_, None) => drop(chosen.modules.insert(subject)),
        }
    }
    (chosen, cannot)
}

/// The roots that the client could install, and the differences between plan and client.
async fn compare(
    client: &Terraform,
    larder: &Larder,
    name: &str,
    configuration: &Configuration,
) -> (Vec<bool>, Vec<String>) {
    let workspace = client.workspace();
    workspace.cli_config(&through(larder.base()));
    for (path, text) in &configuration.files {
        let path = workspace.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let mut all = SelectedPackages::default();
    let (mut went_well, mut otherwise) = (Vec::new(), Vec::new());
    for root in &configuration.roots {
        let (plan, cannot) = planned(larder, configuration, &[root]).await;
        let init = workspace.run(&[&format!("-chdir={root}"), "init", "-no-color", "-input=false"]).await;
        let chosen = installed(&workspace, root);
        if init.status.success() != cannot.is_empty() || (init.status.success() && plan != chosen) {
            let files = &configuration.files;
            otherwise.push(format!(
                "configuration {name}, {root}: {files:#?}\n{}\nchosen: {chosen:#?}\nplanned: {plan:#?}\n{cannot:#?}",
                init.text
            ));
        }
        all.providers.extend(plan.providers);
        all.modules.extend(plan.modules);
        went_well.push(init.status.success());
    }
    // Without a word about roots, they are found: the plan is that of all of them together.
    let (together, _) = planned(larder, configuration, &[]).await;
    if together != all {
        otherwise.push(format!("configuration {name}: {:#?}\n{together:#?}\n{all:#?}", configuration.files));
    }
    (went_well, otherwise)
}

/// Compares all of them, a few at a time: whether the client could install each root.
async fn compare_all(client: &Terraform, configurations: &[(String, Configuration)]) -> Vec<bool> {
    let upstream = FakeUpstream::start().await;
    publish(&upstream);
    let larder = Larder::mirroring(&upstream).start().await;
    let larder = &larder;
    let (mut went_well, mut otherwise) = (Vec::new(), Vec::new());
    for some in configurations.chunks(3) {
        let each = some.iter().map(|(name, configuration)| compare(client, larder, name, configuration));
        for (well, other) in futures_util::future::join_all(each).await {
            went_well.extend(well);
            otherwise.extend(other);
        }
    }
    assert!(otherwise.is_empty(), "{} of {}:\n{}", otherwise.len(), went_well.len(), otherwise.join("\n\n"));
    went_well
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_names_exactly_what_the_real_client_chooses() {
    let Some(client) = Terraform::find_since(1, 10) else { return };
    let all: Vec<_> = (0..CONFIGURATIONS).map(|number| (number.to_string(), Configuration::of(number))).collect();
    let went_well = compare_all(&client, &all).await;
    // Both ways to end are seen often enough to mean something.
    let successes = went_well.iter().filter(|well| **well).count();
    assert!(successes >= 30 && went_well.len() - successes >= 8, "{successes} of {}", went_well.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forms_that_people_write_are_read_as_the_real_client_reads_them() {
    let Some(client) = Terraform::find_since(1, 10) else { return };
    let forms = forms();
    let went_well = compare_all(&client, &forms).await;
    for ((name, form), went_well) in forms.iter().zip(went_well) {
        assert_eq!(went_well, name.starts_with("installed"), "{name}: {:#?}", form.files);
    }
}
