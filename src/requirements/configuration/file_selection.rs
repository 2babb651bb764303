//! Selects and sorts the files of a folder that a client reads.

use super::super::request::ClientKind;
use super::super::{Files, Unreadable};
use super::ModuleRole;

/// A file that is read.
pub(super) struct SelectedFile<'a> {
    /// The path of the file.
    pub(super) path: String,
    /// The text of the file.
    pub(super) text: Result<&'a str, Unreadable>,
    /// The role of the file in its folder.
    pub(super) role: FileRole,
}

/// Role of a file in its folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FileRole {
    /// A primary file.
    Primary,
    /// An override file; read after all primary ones.
    Override,
    /// A test file.
    Test,
}

/// Endings of configuration files, `(OpenTofu, Terraform)`. For OpenTofu, a file with its own ending replaces the other.
const CONFIGURATION: [(&str, &str); 2] = [(".tofu", ".tf"), (".tofu.json", ".tf.json")];
/// Endings of test files, `(OpenTofu, Terraform)`.
const TESTS: [(&str, &str); 2] = [(".tofutest.hcl", ".tftest.hcl"), (".tofutest.json", ".tftest.json")];
/// The second folder of tests, besides the root itself.
pub(in super::super) const TEST_FOLDER: &str = "tests";

/// Returns true for configuration files of any client: no tests, no lock files.
pub(in super::super) fn is_configuration(name: &str) -> bool {
    CONFIGURATION.iter().any(|(tofu, terraform)| name.ends_with(tofu) || name.ends_with(terraform))
}

/// Returns true for test files of any client.
pub(in super::super) fn is_test(name: &str) -> bool {
    TESTS.iter().any(|(tofu, terraform)| name.ends_with(tofu) || name.ends_with(terraform))
}

/// Returns true for files that only OpenTofu reads.
pub(in super::super) fn is_for_opentofu_only(name: &str) -> bool {
    CONFIGURATION.iter().any(|(tofu, _)| name.ends_with(tofu))
}

/// The files of a folder that a client reads, in order.
pub(super) fn in_folder<'a>(
    files: &'a Files,
    folder: &str,
    role: ModuleRole,
    client: ClientKind,
) -> Vec<SelectedFile<'a>> {
    let mut selected = Vec::new();
    select(&mut selected, files, folder, &CONFIGURATION, client);
    if role == ModuleRole::Root {
        select(&mut selected, files, folder, &TESTS, client);
        select(&mut selected, files, &join(folder, TEST_FOLDER), &TESTS, client);
    }
    selected.sort_by(|a, b| (a.role, &a.path).cmp(&(b.role, &b.path)));
    selected
}

/// Adds the files of a folder that have one of these endings and that the client reads.
fn select<'a>(
    selected: &mut Vec<SelectedFile<'a>>,
    files: &'a Files,
    folder: &str,
    endings: &[(&str, &str)],
    client: ClientKind,
) {
    for (name, text) in files.in_folder(folder) {
        let stem_if_read = |(tofu, terraform): &(&str, &str)| {
            if let Some(stem) = name.strip_suffix(tofu) {
                return (client == ClientKind::Opentofu).then(|| stem.to_owned());
            }
            let stem = name.strip_suffix(terraform)?;
            let replacement = join(folder, &format!("{stem}{tofu}"));
            let is_replaced = client == ClientKind::Opentofu && files.get(&replacement).is_some();
            (!is_replaced).then(|| stem.to_owned())
        };
        let Some(stem) = endings.iter().find_map(stem_if_read) else { continue };
        let role = match () {
            () if endings == TESTS => FileRole::Test,
            () if stem == "override" || stem.ends_with("_override") => FileRole::Override,
            () => FileRole::Primary,
        };
        selected.push(SelectedFile { path: join(folder, name), text, role });
    }
}

fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}
