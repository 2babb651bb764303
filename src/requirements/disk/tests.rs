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
    collect(&folders.iter().map(|folder| top.path().join(folder)).collect::<Vec<_>>(), &CommandLineValues::default())
        .unwrap()
}

fn paths(files: &Files) -> Vec<String> {
    BTreeMap::from(files.clone()).into_keys().collect()
}

fn calls(source: &str) -> String {
    format!("module \"m\" {{\n  source = \"{source}\"\n}}\n")
}

#[test]
fn the_files_that_clients_read_are_loaded_with_the_local_modules_they_call() {
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
fn a_folder_without_a_configuration_is_searched_for_roots() {
    let top = folder(&[
        ("a/main.tf", &calls("../shared")),
        ("a/tests/main.tf", ""),
        ("b/c/main.tf", ""),
        // This folder has test files, so it is a folder of tests and no root.
        ("b/c/tests/main.tf", ""),
        ("b/c/tests/x.tftest.hcl", ""),
        ("shared/main.tf", ""),
        (".git/main.tf", ""),
        ("a/.terraform/main.tf", ""),
    ]);
    assert_eq!(collected(&top, &[""]).roots, ["a", "a/tests", "b/c"]);
    let empty = folder(&[("x.txt", "")]);
    let refused = |path: PathBuf| collect(&[path], &CommandLineValues::default()).unwrap_err();
    assert!(refused(empty.path().to_owned()).contains("neither this folder nor one below it has a configuration"));
    assert!(refused(empty.path().join("none")).contains("cannot be read"));
}

#[test]
fn links_are_followed_as_clients_follow_them() {
    let top = folder(&[("real/x/main.tf", &calls("../y")), ("real/y/main.tf", ""), ("root/main.tf", &calls("./link"))]);
    std::os::unix::fs::symlink("../real/x", top.path().join("root/link")).unwrap();
    std::os::unix::fs::symlink("root", top.path().join("linked")).unwrap();
    let Collected { files, roots, .. } = collected(&top, &["linked"]);
    assert_eq!(roots, [""]);
    // Calls in a linked folder are relative to the link's target.
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
    // A folder that links to itself and calls the link is refused.
    let cyclic = folder(&[("main.tf", &calls("./again"))]);
    std::os::unix::fs::symlink(".", cyclic.path().join("again")).unwrap();
    let refused = collect(&[cyclic.path().to_owned()], &CommandLineValues::default()).unwrap_err();
    assert!(refused.contains("folders are in this folder") || refused.contains("is not a path of a file"), "{refused}");
}

#[test]
fn special_files_are_refused_and_other_text_encodings_are_unreadable() {
    let top = folder(&[("main.tf", "")]);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        top.path().join("pipe.tf"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    let refused = collect(&[top.path().to_owned()], &CommandLineValues::default()).unwrap_err();
    assert!(refused.contains("pipe.tf") && refused.contains("not a regular file"), "{refused}");
    fs::remove_file(top.path().join("pipe.tf")).unwrap();
    fs::create_dir(top.path().join("folder.tf")).unwrap();
    assert_eq!(paths(&collected(&top, &[""]).files), ["main.tf"]);
    fs::write(top.path().join("bytes.tf"), [0xff, 0xfe]).unwrap();
    assert_eq!(collected(&top, &[""]).files.get("bytes.tf"), Some(Err(Unreadable::NotUtf8)));
}

/// An editor may remove a file after its folder was listed and before the file is read.
#[test]
fn a_file_that_vanishes_during_loading_is_skipped() {
    let top = folder(&[("prod/main.tf", "")]);
    let (path, stop) = (top.path().join("prod/now.tf"), std::sync::atomic::AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                fs::write(&path, "").unwrap();
                fs::remove_file(&path).unwrap();
            }
        });
        let results: Vec<_> =
            (0..2000).map(|_| collect(&[top.path().to_owned()], &CommandLineValues::default())).collect();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let passed_over: Vec<String> = results.into_iter().flat_map(|result| result.unwrap().passed_over).collect();
        assert!(passed_over.iter().all(|note| note.contains("now.tf")), "{passed_over:?}");
    });
}

/// Values of `-var` and `-var-file` override those of files beside a root, and do not apply to child modules.
#[test]
fn command_line_values_decide_which_local_modules_are_loaded() {
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
    let mut values = CommandLineValues::default();
    let paths = |values: &CommandLineValues| {
        let collected = collect(&[top.path().join("root")], values).unwrap();
        let texts = serde_json::to_string(&collected.files).unwrap();
        assert!(!texts.contains("s3cret"), "{texts}");
        let mut folders: Vec<String> = collected.files.folders().iter().map(|folder| (*folder).to_owned()).collect();
        folders.retain(|folder| !folder.is_empty());
        folders.iter().map(|folder| folder.trim_start_matches("root/").to_owned()).collect::<Vec<_>>()
    };
    let joined_paths = |values: &CommandLineValues| paths(values).join(" ");
    assert!(joined_paths(&values).contains("b/x"), "{}", joined_paths(&values));
    values.add_file("prod.tfvars", "v = \"c\"\nlist = [\"y\"]\npassword = \"s3cret\"\n").unwrap();
    let loaded = joined_paths(&values);
    assert!(loaded.contains("c/y") && loaded.contains("c/own") && !loaded.contains("b/x"), "{loaded}");
    values.add("v=d").unwrap();
    values.add("list=[\"y\", \"z\"]").unwrap();
    assert!(joined_paths(&values).contains("d/y"), "{}", joined_paths(&values));
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

#[test]
fn an_argument_that_is_both_a_folder_and_an_address_is_refused_with_the_two_spellings() {
    let top = tempfile::tempdir().unwrap();
    fs::create_dir_all(top.path().join("envs/prod")).unwrap();
    fs::create_dir_all(top.path().join("hashicorp/null")).unwrap();
    for file in ["envs/prod/main.tf", "x.tar", "x.tar.gz", "x.tgz", "x.gz", "envs/x", ".terraform.lock.hcl"] {
        fs::write(top.path().join(file), "").unwrap();
    }
    let host = Hostname::parse("registry.example").unwrap();
    let interpret = |given: &str| ArgumentKind::of(given, &top.path().join(given), &host);
    let refused = interpret("envs/prod").unwrap_err();
    assert!(refused.contains("\"./envs/prod\"") && refused.contains("registry.example/envs/prod"), "{refused}");
    for (given, expected) in [
        ("./envs/prod", ArgumentKind::Folder),
        ("envs/prod/", ArgumentKind::Folder),
        ("envs", ArgumentKind::Folder),
        ("hashicorp/null", ArgumentKind::Address),
        ("hashicorp/null@~> 3.0", ArgumentKind::Address),
        ("envs/x", ArgumentKind::LockFile),
        (".terraform.lock.hcl", ArgumentKind::LockFile),
        ("x.tar", ArgumentKind::Tar),
        ("x.tar.gz", ArgumentKind::Tar),
        ("x.tgz", ArgumentKind::Tar),
        ("x.gz", ArgumentKind::LockFile),
    ] {
        assert_eq!(interpret(given), Ok(expected), "{given}");
    }
    for given in ["./none", "none.tar", "none/", "none"] {
        assert!(interpret(given).unwrap_err().contains("there is no file and no folder"), "{given}");
    }
    for given in ["./envs/prod/main.tf", "envs/prod/main.tf"] {
        assert!(interpret(given).unwrap_err().contains("name the folder"), "{given}");
    }
}
