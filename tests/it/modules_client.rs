//! The acceptance of modules: the real `terraform` installs every form of location that larder can fetch, the same as
//! without larder, and again when everything upstream is gone.

use crate::support::git::differences;
use crate::support::git::forge::{self, Forges};
use crate::support::git_module_fixture::{
    GitModuleFixture, ModuleCase, every_module_case, installed, module_calls, module_differences, override_through,
};
use crate::support::terraform::{Terraform, Workspace};

/// The cases that the client can install without larder too.
fn direct_cases(cases: &[ModuleCase]) -> Vec<ModuleCase> {
    cases.iter().filter(|case| case.expected_tag.is_none()).cloned().collect()
}

/// The differences between the repository and the installed modules that the client cannot install without larder.
async fn differences_from_repository(
    fixture: &GitModuleFixture,
    workspace: &Workspace,
    cases: &[ModuleCase],
) -> Vec<String> {
    let mut text = Vec::new();
    for case in cases {
        let Some(reference) = case.expected_tag else { continue };
        let expected = fixture.checkout(&format!("{}/acme/net.git", fixture.git.origin()), reference).await;
        let (_, folder) = installed(workspace).into_iter().find(|(key, _)| *key == case.name).unwrap();
        text.extend(differences(expected.path(), &folder).into_iter().map(|line| format!("{}: {line}", case.name)));
    }
    text
}

/// Baseline: without larder, the client installs all modules.
#[tokio::test]
async fn the_test_registry_works_with_the_real_client_directly() {
    let Some(client) = Terraform::find() else { return };
    let Some(fixture) = GitModuleFixture::start(None).await else { return };
    let cases = direct_cases(&every_module_case(&fixture).await);
    let direct = fixture.workspace_calling(&client, &cases);
    direct.cli_config(&fixture.direct_cli_config());
    direct.init().await.expect_success();
    assert!(installed(&direct).len() >= cases.len(), "{:?}", installed(&direct));
}

/// Runs in a namespace where the names of public forges resolve to servers of the test. Without such a namespace, the
/// forms with these names are left out.
#[tokio::test]
async fn every_form_of_module_location_installs_as_without_larder_and_again_without_upstream() {
    let name = "every_form_of_module_location_installs_as_without_larder_and_again_without_upstream";
    let Some(client) = Terraform::find() else { return };
    let forges = match forge::forges(&format!("modules_client::{name}")).await {
        Forges::Inside(address) => Some(address),
        Forges::Impossible => None,
        Forges::Succeeded => return,
    };
    let Some(mut fixture) = GitModuleFixture::start(forges).await else { return };
    let cases = every_module_case(&fixture).await;
    let direct_cases = direct_cases(&cases);
    let direct = fixture.workspace_calling(&client, &direct_cases);
    direct.cli_config(&fixture.direct_cli_config());
    direct.init().await.expect_success();

    let larder = fixture.larder().start().await;
    // The client can connect to no server but larder: it has no ssh key and no certificate authority.
    let workspace_calling = |cases: &[ModuleCase], larder: &str| {
        let mut workspace = client.workspace();
        workspace.file("main.tf", &module_calls(cases)).cli_config(&override_through(larder));
        workspace
    };
    let cold = workspace_calling(&direct_cases, larder.base());
    cold.init().await.expect_success();
    assert_eq!(module_differences(&direct, &cold), Vec::<String>::new());
    let larder_only: Vec<ModuleCase> = cases.iter().filter(|case| case.expected_tag.is_some()).cloned().collect();
    let larder_only_workspace = workspace_calling(&larder_only, larder.base());
    larder_only_workspace.init().await.expect_success();
    assert_eq!(differences_from_repository(&fixture, &larder_only_workspace, &larder_only).await, Vec::<String>::new());

    fixture.stop().await;
    let warm = workspace_calling(&direct_cases, larder.base());
    warm.init().await.expect_success();
    assert_eq!(module_differences(&direct, &warm), Vec::<String>::new());

    let folder = larder.stop().await;
    let larder = fixture.larder().store_at(&folder).start().await;
    let restarted = workspace_calling(&cases, larder.base());
    restarted.init().await.expect_success();
    // `direct` lacks the modules that the client cannot install without larder.
    let all = module_differences(&direct, &restarted);
    assert_eq!(all, [format!("{} modules / {}", installed(&direct).len(), installed(&restarted).len())]);
}
