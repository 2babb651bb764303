//! The acceptance of modules: the real `terraform` installs every form that larder can fetch, the same as without
//! larder, and again when everything upstream is gone.

use crate::support::git::differences;
use crate::support::git::forge::{self, Forges};
use crate::support::git_module_fixture::{Form, ModuleScene, calls, every_form, installed, same_modules, through};
use crate::support::terraform::{Terraform, Workspace};

/// The forms that the client installs without larder too.
fn direct_forms(forms: &[Form]) -> Vec<Form> {
    forms.iter().filter(|form| form.instead_of_direct.is_none()).cloned().collect()
}

/// The files of the forms that the client cannot install itself, compared with those of the repository.
async fn unlike_the_repository(fixture: &ModuleScene, workspace: &Workspace, forms: &[Form]) -> Vec<String> {
    let mut text = Vec::new();
    for form in forms {
        let Some(reference) = form.instead_of_direct else { continue };
        let truth = fixture.checkout(&format!("{}/acme/net.git", fixture.git.origin()), reference).await;
        let (_, folder) = installed(workspace).into_iter().find(|(key, _)| *key == form.name).unwrap();
        text.extend(differences(truth.path(), &folder).into_iter().map(|line| format!("{}: {line}", form.name)));
    }
    text
}

/// Baseline: without larder, all of it installs.
#[tokio::test]
async fn the_test_registry_works_with_the_real_client_directly() {
    let Some(client) = Terraform::find() else { return };
    let Some(fixture) = ModuleScene::start(None).await else { return };
    let forms = direct_forms(&every_form(&fixture).await);
    let direct = fixture.calling(&client, &forms);
    direct.cli_config(&fixture.direct());
    direct.init().await.expect_success();
    assert!(installed(&direct).len() >= forms.len(), "{:?}", installed(&direct));
}

/// In a namespace where the names of public forges lead to the test's own servers; without those names where
/// there can be no such namespace.
#[tokio::test]
async fn every_form_of_a_module_installs_as_it_does_directly_and_again_without_any_upstream() {
    let name = "every_form_of_a_module_installs_as_it_does_directly_and_again_without_any_upstream";
    let Some(client) = Terraform::find() else { return };
    let forges = match forge::forges(&format!("modules_client::{name}")).await {
        Forges::Here(address) => Some(address),
        Forges::Nowhere => None,
        Forges::Done => return,
    };
    let Some(mut fixture) = ModuleScene::start(forges).await else { return };
    let forms = every_form(&fixture).await;
    let direct_forms = direct_forms(&forms);
    let direct = fixture.calling(&client, &direct_forms);
    direct.cli_config(&fixture.direct());
    direct.init().await.expect_success();

    let larder = fixture.larder().start().await;
    // The client can reach no server but larder: it has no key and no certificate authority.
    let calling = |forms: &[Form], larder: &str| {
        let mut workspace = client.workspace();
        workspace.file("main.tf", &calls(forms)).cli_config(&through(larder));
        workspace
    };
    let cold = calling(&direct_forms, larder.base());
    cold.init().await.expect_success();
    assert_eq!(same_modules(&direct, &cold), Vec::<String>::new());
    let rest: Vec<Form> = forms.iter().filter(|form| form.instead_of_direct.is_some()).cloned().collect();
    let not_direct = calling(&rest, larder.base());
    not_direct.init().await.expect_success();
    assert_eq!(unlike_the_repository(&fixture, &not_direct, &rest).await, Vec::<String>::new());

    fixture.stop().await;
    let warm = calling(&direct_forms, larder.base());
    warm.init().await.expect_success();
    assert_eq!(same_modules(&direct, &warm), Vec::<String>::new());

    let folder = larder.stop().await;
    let larder = fixture.larder().on(&folder).start().await;
    let restarted = calling(&forms, larder.base());
    restarted.init().await.expect_success();
    // `direct` lacks the few that it cannot have.
    let all = same_modules(&direct, &restarted);
    assert_eq!(all, [format!("{} modules / {}", installed(&direct).len(), installed(&restarted).len())]);
}
