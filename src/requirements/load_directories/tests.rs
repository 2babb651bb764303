use std::fs;

use tempfile::TempDir;

use super::super::Unreadable;
use super::*;

fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

fn collected(top: &TempDir, folders: &[&str]) -> Collected {
    collect(&folders.iter().map(|folder| top.path().join(folder)).collect::<Vec<_>>(), &GivenValues::default()).unwrap()
}

fn paths(files: &Files) -> Vec<String> {
    BTreeMap::from(files.clone()).into_keys().collect()
}

fn calls(source: &str) -> String {
    format!("module \"m\" {{\n  source = \"{source}\"\n}}\n")
}

#[test]
fn what_a_client_reads_of_directories_is_read_with_the_modules_they_call() {
    let top = folder(&[
        ("envs/prod/main.tf", &calls("../../modules/x")),
        ("envs/prod/.terraform.lock.hcl", ""),
        ("envs/prod/README.md", ""),
        ("envs/prod/.hidden.tf", ""),
        ("envs/prod/old.tf~", ""),
        ("envs/prod/.terraform/modules/m/main.tf", ""),
        ("envs/prod/unused/main.tf", ""),
        ("envs/prod/tests/a.tftest.hcl", "run \"r\" {\n  module {\n    source = \"./tests/setup\"\n  }\n}\n"),
        ("envs/prod/tests/setup/main.tf", ""),
        ("envs/dev/main.tofu", &calls("./only-here")),
        ("envs/dev/only-here/main.tf", &calls("../../../modules/gone")),
        ("envs/other/main.tf", ""),
        ("modules/x/main.tf", &calls("../y")),
        ("modules/x/x.tftest.hcl", ""),
        ("modules/y/main.tf.json", "{}"),
    ]);
    let Collected { files, roots, .. } = collected(&top, &["envs/prod", "envs/dev/../dev/"]);
    assert_eq!(roots, ["envs/dev", "envs/prod"]);
    assert_eq!(
        paths(&files),
        [
            "envs/dev/main.tofu",
            "envs/dev/only-here/main.tf",
            "envs/prod/.terraform.lock.hcl",
            "envs/prod/main.tf",
            "envs/prod/tests/a.tftest.hcl",
            "envs/prod/tests/setup/main.tf",
            "modules/x/main.tf",
            "modules/x/x.tftest.hcl",
            "modules/y/main.tf.json",
        ]
    );
    let Collected { files, roots, .. } = collected(&top, &["envs/other"]);
    assert_eq!((paths(&files), roots), (vec!["main.tf".to_owned()], vec![String::new()]));
}

#[test]
fn below_a_folder_without_a_configuration_its_roots_are_looked_for() {
    let top = folder(&[
        ("a/main.tf", &calls("../shared")),
        ("a/tests/main.tf", ""),
        ("b/c/main.tf", ""),
        // Its client reads the tests in it, and nothing else.
        ("b/c/tests/main.tf", ""),
        ("b/c/tests/x.tftest.hcl", ""),
        ("shared/main.tf", ""),
        (".git/main.tf", ""),
        ("a/.terraform/main.tf", ""),
    ]);
    assert_eq!(collected(&top, &[""]).roots, ["a", "a/tests", "b/c"]);
    let nothing = folder(&[("x.txt", "")]);
    assert!(matches!(collect(&[nothing.path().to_owned()], &GivenValues::default()), Err(CollectError::Nothing(_))));
    assert!(matches!(
        collect(&[nothing.path().join("none")], &GivenValues::default()),
        Err(CollectError::Unreadable { .. })
    ));
}

#[test]
fn links_are_followed_as_the_client_follows_them() {
    let top = folder(&[("real/x/main.tf", &calls("../y")), ("real/y/main.tf", ""), ("root/main.tf", &calls("./link"))]);
    std::os::unix::fs::symlink("../real/x", top.path().join("root/link")).unwrap();
    std::os::unix::fs::symlink("root", top.path().join("linked")).unwrap();
    let Collected { files, roots, .. } = collected(&top, &["linked"]);
    assert_eq!(roots, [""]);
    // Calls of the linked folder are relative to its real place.
    assert_eq!(paths(&files), ["link/main.tf", "main.tf", "y/main.tf"]);
    // A path is normalised before it is looked up.
    let top = folder(&[
        ("main.tf", &calls("./gone/../link/../y")),
        ("y/main.tf", ""),
        ("far/x/main.tf", ""),
        ("far/y/main.tf", "#"),
    ]);
    std::os::unix::fs::symlink("far/x", top.path().join("link")).unwrap();
    assert_eq!(collected(&top, &[""]).files.get("y/main.tf"), Some(Ok("")));
    // Round and round: the folders have no end, and so they are refused.
    let round = folder(&[("main.tf", &calls("./again"))]);
    std::os::unix::fs::symlink(".", round.path().join("again")).unwrap();
    assert!(matches!(
        collect(&[round.path().to_owned()], &GivenValues::default()),
        Err(CollectError::TooMany(_) | CollectError::Bad { .. })
    ));
}

#[test]
fn what_is_no_file_or_no_text_is_refused_with_its_name() {
    let top = folder(&[("main.tf", "")]);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        top.path().join("pipe.tf"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    let refused = collect(&[top.path().to_owned()], &GivenValues::default()).unwrap_err().to_string();
    assert!(refused.contains("pipe.tf") && refused.contains("not a file"), "{refused}");
    fs::remove_file(top.path().join("pipe.tf")).unwrap();
    fs::create_dir(top.path().join("folder.tf")).unwrap();
    assert_eq!(paths(&collected(&top, &[""]).files), ["main.tf"]);
    fs::write(top.path().join("bytes.tf"), [0xff, 0xfe]).unwrap();
    assert_eq!(collected(&top, &[""]).files.get("bytes.tf"), Some(Err(Unreadable::NoText)));
}

/// An editor or a pull may take a file away between the look into its folder and the look into the file.
#[test]
fn a_file_that_vanishes_while_it_is_read_is_no_failure() {
    let top = folder(&[("prod/main.tf", "")]);
    let (path, until) = (top.path().join("prod/now.tf"), std::sync::atomic::AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !until.load(std::sync::atomic::Ordering::Relaxed) {
                fs::write(&path, "").unwrap();
                fs::remove_file(&path).unwrap();
            }
        });
        let all: Vec<_> = (0..2000).map(|_| collect(&[top.path().to_owned()], &GivenValues::default())).collect();
        until.store(true, std::sync::atomic::Ordering::Relaxed);
        let passed_over: Vec<String> = all.into_iter().flat_map(|one| one.unwrap().passed_over).collect();
        assert!(passed_over.iter().all(|note| note.contains("now.tf")), "{passed_over:?}");
    });
}

/// As `-var` and `-var-file`: before every file beside a root, and of no module that is called.
#[test]
fn values_of_the_command_line_win_and_lead_to_local_modules() {
    let main = "variable \"v\" {\n  const = true\n}\nvariable \"list\" {\n  const = true\n}\nvariable \"password\" {}\nmodule \"m\" {\n  source = \"./${var.v}/${var.list[0]}\"\n}\n";
    let called =
        "variable \"v\" {\n  const = true\n  default = \"own\"\n}\nmodule \"n\" {\n  source = \"../${var.v}\"\n}\n";
    let top = folder(&[
        ("root/main.tf", main),
        ("root/terraform.tfvars", "v = \"a\"\nlist = [\"x\"]\npassword = \"s3cret\"\n"),
        ("root/z.auto.tfvars", "v = \"b\"\n"),
        ("root/a/x/main.tf", ""),
        ("root/b/x/main.tf", ""),
        ("root/c/y/main.tf", called),
        ("root/c/own/main.tf", ""),
        ("root/d/y/main.tf", ""),
    ]);
    let mut values = GivenValues::default();
    let paths = |values: &GivenValues| {
        let collected = collect(&[top.path().join("root")], values).unwrap();
        let texts = serde_json::to_string(&collected.files).unwrap();
        assert!(!texts.contains("s3cret"), "{texts}");
        let mut folders: Vec<String> = collected.files.folders().iter().map(|folder| (*folder).to_owned()).collect();
        folders.retain(|folder| !folder.is_empty());
        folders.iter().map(|folder| folder.trim_start_matches("root/").to_owned()).collect::<Vec<_>>()
    };
    let joined = |values: &GivenValues| paths(values).join(" ");
    assert!(joined(&values).contains("b/x"), "{}", joined(&values));
    values.add_file("prod.tfvars", "v = \"c\"\nlist = [\"y\"]\npassword = \"s3cret\"\n").unwrap();
    let found = joined(&values);
    assert!(found.contains("c/y") && found.contains("c/own") && !found.contains("b/x"), "{found}");
    values.add("v=d").unwrap();
    values.add("list=[\"y\", \"z\"]").unwrap();
    assert!(joined(&values).contains("d/y"), "{}", joined(&values));
    for (bad, reason) in [
        ("v", "is not NAME=VALUE"),
        ("=x", "is not a variable name"),
        ("a b=c", "is not a variable name"),
        ("v=[", "v: line 1"),
    ] {
        assert!(values.clone().add(bad).unwrap_err().contains(reason), "{bad}: {:?}", values.clone().add(bad));
    }
    assert!(values.add_file("x.tfvars", "v = {").unwrap_err().contains("line 1"));
}
