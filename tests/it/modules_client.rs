//! The acceptance of modules: the real `terraform` installs every form that larder can fetch, the same as without
//! larder, and again when everything upstream is gone.

use crate::support::git::{differences, forge};
use crate::support::module_scene::{Form, ModuleScene, every_form, installed, same_modules, through};
use crate::support::terraform::{Terraform, Workspace};

/// The forms that the client installs without larder too.
fn direct_forms(forms: &[Form]) -> Vec<Form> {
    forms.iter().filter(|form| form.instead_of_direct.is_none()).cloned().collect()
}

/// What is wrong with the forms that the client cannot install itself: they are what the repository holds.
async fn unlike_the_repository(scene: &ModuleScene, workspace: &Workspace, forms: &[Form]) -> Vec<String> {
    let mut told = Vec::new();
    for form in forms {
        let Some(reference) = form.instead_of_direct else { continue };
        let truth = scene.checkout(&format!("{}/acme/net.git", scene.git.origin()), reference).await;
        let (_, folder) = installed(workspace).into_iter().find(|(key, _)| *key == form.name).unwrap();
        told.extend(differences(truth.path(), &folder).into_iter().map(|line| format!("{}: {line}", form.name)));
    }
    told
}

/// What the tests here stand on: without larder, all of it installs.
#[tokio::test]
async fn the_scene_is_one_that_the_client_installs_from_directly() {
    let Some(client) = Terraform::find() else { return };
    let Some(scene) = ModuleScene::start(None).await else { return };
    let forms = direct_forms(&every_form(&scene).await);
    let direct = scene.calling(&client, &forms);
    direct.cli_config(&scene.direct());
    direct.init().await.expect_success();
    assert!(installed(&direct).len() >= forms.len(), "{:?}", installed(&direct));
}
