//! Selects and sorts the files of a folder that a client reads.

use super::super::request::ClientKind;
use super::super::{Files, Unreadable};
use super::FolderRole;

/// A file that is read.
pub(super) struct SelectedFile<'a> {
    /// Its path.
    pub(super) path: String,
    /// Its text.
    pub(super) text: Result<&'a str, Unreadable>,
    /// Its role in the folder.
    pub(super) kind: Kind,
}

/// Role of a file in its folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A primary file.
    Primary,
    /// An override file; read after all primary ones.
    Override,
    /// A test file.
    Test,
}

/// Endings of configuration files; OpenTofu's first, because they replace the others.
const CONFIGURATION: [(&str, &str); 2] = [(".tofu", ".tf"), (".tofu.json", ".tf.json")];
/// Endings of test files.
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
    role: FolderRole,
    client: ClientKind,
) -> Vec<SelectedFile<'a>> {
    let mut read = Vec::new();
    add(&mut read, files, folder, &CONFIGURATION, client);
    if role == FolderRole::Root {
        add(&mut read, files, folder, &TESTS, client);
        add(&mut read, files, &below(folder, TEST_FOLDER), &TESTS, client);
    }
    read.sort_by(|a, b| (a.kind, &a.path).cmp(&(b.kind, &b.path)));
    read
}

fn add<'a>(
    read: &mut Vec<SelectedFile<'a>>,
    files: &'a Files,
    folder: &str,
    endings: &[(&str, &str)],
    client: ClientKind,
) {
    for (name, text) in files.in_folder(folder) {
        let takes = |(tofu, terraform): &(&str, &str)| {
            if let Some(stem) = name.strip_suffix(tofu) {
                return (client == ClientKind::Opentofu).then(|| stem.to_owned());
            }
            let stem = name.strip_suffix(terraform)?;
            let other = below(folder, &format!("{stem}{tofu}"));
            let is_replaced = client == ClientKind::Opentofu && files.get(&other).is_some();
            (!is_replaced).then(|| stem.to_owned())
        };
        let Some(stem) = endings.iter().find_map(takes) else { continue };
        let kind = match () {
            () if endings == TESTS => Kind::Test,
            () if stem == "override" || stem.ends_with("_override") => Kind::Override,
            () => Kind::Primary,
        };
        read.push(SelectedFile { path: below(folder, name), text, kind });
    }
}

fn below(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}
