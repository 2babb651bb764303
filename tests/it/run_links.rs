//! `larder run` with unpacked providers: `init` links what the lock file names, and whatever becomes of the links, every later
//! `init` works and runs the right provider.

use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};

use crate::support::larder::HOST;
use crate::support::process::{CommandOutput, run};
use crate::support::run_setup::RunSetup;
use crate::support::upstream::{FakeUpstream, Provider, Target};

const SIZE: usize = 300_000;
const PLACE: &str = "registry.terraform.io/acme/null/1.2.0/linux_amd64";

/// The name of the client: terraform, or tofu where `LARDER_RUN_CLIENT` says so.
fn init_command() -> [&'static str; 4] {
    let is_tofu = std::env::var("LARDER_RUN_CLIENT").is_ok_and(|client| client == "tofu");
    [if is_tofu { "tofu" } else { "terraform" }, "init", "-no-color", "-input=false"]
}

/// Runs `init` through larder, which must succeed; returns all that a terminal shows.
async fn init(setup: &RunSetup, options: &[&str]) -> String {
    let output = setup.run(options, &init_command()).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    output.err
}

async fn upstream() -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").platform("linux_amd64").platform("darwin_arm64").size(SIZE));
    upstream
}

/// A user with a folder whose lock file is complete and in which nothing is installed.
async fn locked_project(upstream: &FakeUpstream) -> Option<RunSetup> {
    let setup = RunSetup::with_terraform(upstream)?;
    setup.require(&["registry.terraform.io/acme/null"]);
    init(&setup, &["--copy"]).await;
    assert!(!installed(&setup).is_symlink(), "--copy makes no link");
    remove_installed(&setup);
    Some(setup)
}

fn remove_installed(setup: &RunSetup) {
    fs::remove_dir_all(setup.path("work/.terraform")).unwrap();
}

fn installed(setup: &RunSetup) -> PathBuf {
    setup.path("work/.terraform/providers").join(PLACE)
}

fn trees(setup: &RunSetup) -> PathBuf {
    setup.store().join("v1/unpacked")
}

/// The one tree of the store.
fn tree_of_store(setup: &RunSetup) -> PathBuf {
    let names = fs::read_dir(trees(setup)).unwrap().map(|entry| entry.unwrap().path());
    let digests: Vec<PathBuf> = names.filter(|path| !path.ends_with("seals")).collect();
    assert_eq!(digests.len(), 1, "{digests:?}");
    digests[0].join(PLACE)
}

/// The tree to which the installed provider leads.
fn tree(setup: &RunSetup) -> PathBuf {
    let tree = fs::read_link(installed(setup)).unwrap();
    assert!(tree.starts_with(trees(setup)) && tree.ends_with(PLACE), "{}", tree.display());
    tree
}

fn program(folder: &Path) -> PathBuf {
    folder.join("terraform-provider-null_v1.2.0")
}

/// The bytes of the provider in a zip of the upstream.
fn published(upstream: &FakeUpstream) -> Vec<u8> {
    let zip = upstream.archive_bytes("acme", "null", "1.2.0", "linux_amd64");
    let mut zip = zip::ZipArchive::new(std::io::Cursor::new(zip)).unwrap();
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut zip.by_name("terraform-provider-null_v1.2.0").unwrap(), &mut bytes).unwrap();
    bytes
}

/// `init` of the client alone, without larder, at a registry.
async fn init_without_larder(setup: &RunSetup, upstream: &FakeUpstream) {
    let output = try_init_without_larder(setup, upstream).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(fs::read(program(&installed(setup))).unwrap() == published(upstream));
}

async fn try_init_without_larder(setup: &RunSetup, upstream: &FakeUpstream) -> CommandOutput {
    let hosts = crate::support::terraform::host_override(HOST, &upstream.providers_url(), &upstream.modules_url());
    let config = setup.write("home/plain.tfrc", &hosts);
    let mut command = setup.plain_command(&init_command());
    command.env("TF_CLI_CONFIG_FILE", config);
    run(command).await
}

fn set_writable(path: &Path) {
    fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
}

/// The providers of the lock file are linked, and the lock file stays as it is.
#[tokio::test]
async fn a_locked_provider_is_linked_and_unpacked_once() {
    let upstream = upstream().await;
    let Some(setup) = locked_project(&upstream).await else { return };
    let lock_file = setup.read("work/.terraform.lock.hcl");
    upstream.forget_requests();
    let err = init(&setup, &[]).await;
    assert!(err.lines().last().unwrap().starts_with("larder: 1 provider linked, nothing from upstream; "), "{err}");
    assert_eq!(setup.read("work/.terraform.lock.hcl"), lock_file);
    let tree = tree(&setup);
    assert!(fs::read(program(&tree)).unwrap() == published(&upstream));
    assert_eq!(upstream.count_of(Target::Everything), 0);
    // Nobody but root can write there.
    for path in [tree.clone(), program(&tree), tree.join("LICENSE.txt")] {
        assert_eq!(fs::symlink_metadata(&path).unwrap().mode() & 0o222, 0, "{}", path.display());
    }
    assert_eq!(fs::symlink_metadata(program(&tree)).unwrap().mode() & 0o111, 0o111);
    // Another folder with the same lock file gets the same tree.
    let inode = fs::metadata(program(&tree)).unwrap().ino();
    remove_installed(&setup);
    init(&setup, &[]).await;
    assert_eq!(fs::metadata(program(&installed(&setup))).unwrap().ino(), inode);
    let err = init(&setup, &[]).await;
    assert!(err.lines().last().unwrap().starts_with("larder: no packages, nothing from upstream; "), "{err}");
    init_without_larder(&setup, &upstream).await;
}

/// Only where the lock file has the `h1:` of this platform does a client take the folder behind a link for installed. Otherwise it
/// unpacks an archive through the link, so there is none.
#[tokio::test]
async fn a_lock_file_that_lacks_hashes_gets_copies_and_no_link_stays() {
    let upstream = upstream().await;
    let Some(setup) = locked_project(&upstream).await else { return };
    let whole = setup.read("work/.terraform.lock.hcl");
    let without = |word: &str| -> String {
        whole.lines().filter(|line| !line.contains(word)).map(|line| format!("{line}\n")).collect()
    };
    let only_zh = without("\"h1:");
    let foreign = "  hashes = [\n    \"h1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\",\n";
    for (case, text) in [
        ("zh alone", only_zh.clone()),
        ("h1 alone", without("\"zh:")),
        ("a foreign h1", only_zh.replace("  hashes = [\n", foreign)),
        ("no entry", String::new()),
    ] {
        for is_linked_before in [false, true] {
            let _ = fs::remove_dir_all(setup.path("work/.terraform"));
            if is_linked_before {
                setup.write("work/.terraform.lock.hcl", &whole);
                init(&setup, &[]).await;
                tree(&setup);
            }
            // As by a checkout of another branch.
            setup.write("work/.terraform.lock.hcl", &text);
            init(&setup, &[]).await;
            assert!(!installed(&setup).is_symlink(), "{case}, {is_linked_before}");
            assert!(fs::read(program(&installed(&setup))).unwrap() == published(&upstream), "{case}");
            if case != "a foreign h1" {
                assert_eq!(setup.read("work/.terraform.lock.hcl"), whole, "{case}");
            }
        }
    }
    assert_eq!(fs::read_dir(tree_of_store(&setup)).unwrap().count(), 2, "nothing was written into the tree");
}

/// Where the person says where providers come from, nothing is linked.
#[tokio::test]
async fn a_plugin_cache_an_installation_block_or_plugins_of_ones_own_win() {
    let upstream = upstream().await;
    let Some(setup) = locked_project(&upstream).await else { return };
    for (case, file, text) in [
        ("a plugin cache", "home/.terraformrc", format!("plugin_cache_dir = \"{}\"\n", setup.path("tmp").display())),
        ("an installation block", "home/.terraformrc", "provider_installation {\n  direct {}\n}\n".to_owned()),
        ("plugins of one's own", "home/.terraform.d/plugins/README", String::new()),
    ] {
        let file = setup.write(file, &text);
        let output = run(setup.command(&[], &init_command())).await;
        assert_eq!(output.code, Some(0), "{case}: {output:?}");
        assert!(!trees(&setup).exists(), "{case}");
        fs::remove_file(&file).unwrap();
        remove_installed(&setup);
        fs::remove_dir_all(setup.path("tmp")).unwrap();
        fs::create_dir(setup.path("tmp")).unwrap();
    }
    fs::remove_dir(setup.path("home/.terraform.d/plugins")).unwrap();
    init(&setup, &[]).await;
    assert!(installed(&setup).is_symlink());
}

/// Damage to a tree: each is noticed before the client sees it, and the tree is made anew at the same place.
#[tokio::test]
async fn a_tree_that_is_not_as_it_was_unpacked_is_replaced() {
    let upstream = upstream().await;
    let Some(setup) = locked_project(&upstream).await else { return };
    init(&setup, &[]).await;
    let tree = tree(&setup);
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 9] = [
        ("a flipped byte", |tree| {
            set_writable(&program(tree));
            let mut bytes = fs::read(program(tree)).unwrap();
            bytes[100] ^= 1;
            fs::write(program(tree), bytes).unwrap();
            fs::set_permissions(program(tree), Permissions::from_mode(0o555)).unwrap();
        }),
        ("a truncated file", |tree| {
            set_writable(&program(tree));
            OpenOptions::new().write(true).open(program(tree)).unwrap().set_len(9).unwrap();
        }),
        ("an added file", |tree| {
            set_writable(tree);
            fs::write(tree.join("terraform-provider-null_v0"), "#!/bin/sh\n").unwrap();
            fs::set_permissions(tree, Permissions::from_mode(0o555)).unwrap();
        }),
        ("a removed file", |tree| {
            set_writable(tree);
            fs::remove_file(tree.join("LICENSE.txt")).unwrap();
        }),
        ("a replaced file", |tree| {
            set_writable(tree);
            fs::rename(program(tree), tree.join("old")).unwrap();
            fs::copy(tree.join("old"), program(tree)).unwrap();
            fs::remove_file(tree.join("old")).unwrap();
        }),
        ("a link in place of a file", |tree| {
            set_writable(tree);
            fs::remove_file(program(tree)).unwrap();
            std::os::unix::fs::symlink("/bin/true", program(tree)).unwrap();
        }),
        ("another owner", |tree| {
            if rustix::process::geteuid().is_root() {
                std::os::unix::fs::chown(program(tree), Some(65534), None).unwrap();
            }
        }),
        ("no permission", |tree| fs::set_permissions(tree, Permissions::from_mode(0o0)).unwrap()),
        ("no tree", |tree| {
            set_writable(tree.parent().unwrap());
            set_writable(tree);
            fs::remove_dir_all(tree).unwrap();
        }),
    ];
    let locked = setup.read("work/.terraform.lock.hcl");
    for (case, damage) in damages {
        damage(&tree);
        let err = init(&setup, &[]).await;
        assert!(installed(&setup).is_symlink(), "{case}: {err}");
        assert_eq!(fs::read_link(installed(&setup)).unwrap(), tree, "{case}");
        assert!(fs::read(program(&tree)).unwrap() == published(&upstream), "{case}");
        assert_eq!(fs::read_dir(&tree).unwrap().count(), 2, "{case}");
        assert_eq!(setup.read("work/.terraform.lock.hcl"), locked, "{case}");
    }
}

/// A provider that was changed behind a link, and then the client alone: it notices by the `h1:`. Some clients take the archive of the
/// registry, others refuse the link; none runs what was changed, and the next run through larder mends it.
#[tokio::test]
async fn the_client_alone_runs_no_provider_that_was_changed() {
    let upstream = upstream().await;
    let Some(setup) = locked_project(&upstream).await else { return };
    init(&setup, &[]).await;
    let tree = tree(&setup);
    set_writable(&tree);
    set_writable(&program(&tree));
    fs::write(program(&tree), "#!/bin/sh\n").unwrap();
    fs::set_permissions(program(&tree), Permissions::from_mode(0o555)).unwrap();
    fs::set_permissions(&tree, Permissions::from_mode(0o555)).unwrap();
    let output = try_init_without_larder(&setup, &upstream).await;
    let is_right = fs::read(program(&installed(&setup))).is_ok_and(|bytes| bytes == published(&upstream));
    assert_eq!(output.code == Some(0), is_right, "{output:?}");
    init(&setup, &[]).await;
    assert!(fs::read(program(&tree)).unwrap() == published(&upstream));
    init_without_larder(&setup, &upstream).await;
}

/// A store that was removed leaves links that lead nowhere: a run takes them away, also one of another store.
#[tokio::test]
async fn links_that_lead_nowhere_are_removed_before_the_client_begins() {
    let upstream = upstream().await;
    let Some(setup) = locked_project(&upstream).await else { return };
    init(&setup, &[]).await;
    // As by a person who empties the cache.
    let folders = ["chmod", "-R", "u+w"].map(str::to_owned);
    let mut command = std::process::Command::new(&folders[0]);
    assert!(command.args(&folders[1..]).arg(trees(&setup)).status().unwrap().success());
    fs::remove_dir_all(trees(&setup)).unwrap();
    assert!(installed(&setup).is_symlink() && !installed(&setup).exists());
    init(&setup, &["--copy"]).await;
    assert!(!installed(&setup).is_symlink());
    init_without_larder(&setup, &upstream).await;

    // A link of another machine, and one that is none of larder's.
    let digest = "0".repeat(64);
    for (target, is_ours) in [
        (format!("/home/other/.cache/larder/v1/unpacked/{digest}/{PLACE}"), true),
        (installed(&setup).with_extension("own").display().to_string(), false),
    ] {
        fs::rename(installed(&setup), installed(&setup).with_extension("own")).unwrap();
        std::os::unix::fs::symlink(&target, installed(&setup)).unwrap();
        init(&setup, &[]).await;
        assert_eq!(fs::read_link(installed(&setup)).ok() == Some(target.into()), !is_ours);
        fs::remove_dir_all(setup.path("work/.terraform")).unwrap();
        init(&setup, &["--copy"]).await;
    }
}

/// Unused trees go after 30 days, and the links to them before them.
#[tokio::test]
async fn an_unused_tree_is_removed_with_the_links_to_it() {
    let upstream = upstream().await;
    upstream.publish(Provider::new("acme", "other").size(1000));
    let Some(setup) = locked_project(&upstream).await else { return };
    init(&setup, &[]).await;
    let tree = tree(&setup);
    age(&setup, &tree);
    // A run of another project sweeps.
    let elsewhere = setup.path("elsewhere");
    fs::create_dir_all(&elsewhere).unwrap();
    let main =
        "terraform {\n  required_providers {\n    other = { source = \"registry.terraform.io/acme/other\" }\n  }\n}\n";
    fs::write(elsewhere.join("main.tf"), main).unwrap();
    for options in [&["--copy"][..], &[]] {
        let mut command = setup.command(options, &init_command());
        command.current_dir(&elsewhere);
        let output = run(command).await;
        assert_eq!(output.code, Some(0), "{output:?}");
        let _ = fs::remove_dir_all(elsewhere.join(".terraform"));
    }
    crate::support::eventually("the tree is gone", async || (!tree.exists()).then_some(())).await;
    assert!(fs::symlink_metadata(installed(&setup)).is_err(), "no link leads nowhere");
    assert_eq!(fs::read_dir(trees(&setup).join("seals")).unwrap().count(), 1, "the other project's tree stays");
    init_without_larder(&setup, &upstream).await;
    init(&setup, &[]).await;
}

/// Makes a tree look as if it was used 31 days ago.
fn age(setup: &RunSetup, tree: &Path) {
    let day = 24 * 3600;
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(31 * day);
    for entry in fs::read_dir(trees(setup).join("seals")).unwrap() {
        let path = entry.unwrap().path();
        let mut seal: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let seconds = long_ago.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        seal["used"] = seconds.into();
        fs::write(&path, seal.to_string()).unwrap();
    }
    for entry in fs::read_dir(tree).unwrap() {
        let file = fs::File::open(entry.unwrap().path()).unwrap();
        file.set_times(fs::FileTimes::new().set_accessed(long_ago)).unwrap();
    }
}

/// Runs that begin together, in folders of their own with one lock file: each archive is fetched once and unpacked once.
#[tokio::test]
async fn parallel_runs_share_one_tree_of_each_provider() {
    const RUNS: usize = 8;
    let upstream = FakeUpstream::start().await;
    let names = ["one", "two", "three"];
    names.iter().for_each(|name| upstream.publish(Provider::new("acme", name).size(SIZE)));
    let Some(first) = RunSetup::with_terraform(&upstream) else { return };
    let sources = names.map(|name| format!("{HOST}/acme/{name}"));
    first.require(&sources.each_ref().map(String::as_str));
    init(&first, &["--copy"]).await;
    let (main, lock_file) = (first.read("work/main.tf"), first.read("work/.terraform.lock.hcl"));

    // Another machine, with an empty store.
    let setup = RunSetup::new(&upstream);
    upstream.forget_requests();
    let folders: Vec<PathBuf> = (0..RUNS).map(|number| setup.path(&format!("work{number}"))).collect();
    let runs = folders.iter().map(|folder| {
        fs::create_dir(folder).unwrap();
        fs::write(folder.join("main.tf"), &main).unwrap();
        fs::write(folder.join(".terraform.lock.hcl"), &lock_file).unwrap();
        let mut command = setup.command(&[], &init_command());
        command.current_dir(folder);
        run(command)
    });
    for output in futures_util::future::join_all(runs).await {
        assert_eq!(output.code, Some(0), "{output:?}");
    }
    let downloads = upstream.count_where(|request| request.method == "GET" && request.target == Target::Archive);
    assert_eq!(downloads, names.len());
    for name in names {
        let place = format!(".terraform/providers/{HOST}/acme/{name}/1.2.0/linux_amd64");
        let trees: Vec<PathBuf> = folders.iter().map(|folder| fs::read_link(folder.join(&place)).unwrap()).collect();
        assert!(trees.iter().all(|tree| *tree == trees[0] && tree.is_dir()), "{trees:?}");
    }
    for folder in &folders {
        assert_eq!(fs::read_to_string(folder.join(".terraform.lock.hcl")).unwrap(), lock_file);
    }
    assert_eq!(fs::read_dir(trees(&setup).join("seals")).unwrap().count(), names.len());
}

/// `kill -9` at each step of unpacking: what it leaves never counts, and the next run unpacks anew.
#[tokio::test]
async fn a_kill_at_any_step_of_unpacking_leaves_nothing_that_counts() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").platform("linux_amd64").platform("darwin_arm64").size(20_000_000));
    let Some(setup) = locked_project(&upstream).await else { return };
    let (staging, trees) = (setup.store().join("v1/staging"), trees(&setup));
    let names = |folder: &Path| -> Vec<String> {
        let names = fs::read_dir(folder).into_iter().flatten().flatten();
        names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    let scratch = || names(&staging).into_iter().find(|name| !name.contains('.') && staging.join(name).is_dir());
    let tree = || {
        let digest = names(&trees).into_iter().find(|name| name != "seals");
        digest.map(|digest| trees.join(digest).join(PLACE)).filter(|tree| tree.exists())
    };
    let staged_bytes = || {
        let file = staging.join(scratch()?).join("new/terraform-provider-null_v1.2.0");
        fs::metadata(file).ok().map(|metadata| metadata.len())
    };
    let steps: [(&str, &dyn Fn() -> bool); 6] = [
        ("a folder in staging", &|| scratch().is_some()),
        ("the first bytes", &|| staged_bytes().is_some_and(|bytes| bytes > 0)),
        ("the last bytes", &|| staged_bytes().is_some_and(|bytes| bytes > 20_000_000)),
        ("the tree in its place", &|| tree().is_some()),
        ("the folder of seals", &|| trees.join("seals").exists()),
        ("the seal", &|| !names(&trees.join("seals")).is_empty()),
    ];
    for (step, is_reached) in steps {
        let mut killed = 0;
        // The last steps may be over before anybody sees them, and so may the others, now and then.
        let is_short = step.contains("seal");
        for _ in 0..if is_short { 2 } else { 20 } {
            if killed == 2 {
                break;
            }
            let mut running = setup.command(&[], &init_command()).spawn().unwrap();
            let ended = loop {
                if is_reached() {
                    running.kill().unwrap();
                    break running.wait().unwrap();
                }
                if let Some(ended) = running.try_wait().unwrap() {
                    break ended;
                }
                std::thread::yield_now();
            };
            killed += usize::from(ended.signal() == Some(9));
            crate::support::eventually("the client ends", async || setup.processes().is_empty().then_some(())).await;
            init(&setup, &[]).await;
            assert!(fs::read(program(&installed(&setup))).unwrap() == published(&upstream), "{step}");
            assert!(scratch().is_none(), "{step}: {:?}", scratch());
            remove_installed(&setup);
            let writable = std::process::Command::new("chmod").args(["-R", "u+w"]).arg(&trees).status().unwrap();
            assert!(writable.success());
            fs::remove_dir_all(&trees).unwrap();
        }
        assert!(killed > 0 || is_short, "{step}");
    }
}

/// A disk that is full, files that may not be so large, and a file system of its own for the trees: the client gets a copy, and the
/// person is told why.
#[tokio::test]
async fn where_a_provider_cannot_be_unpacked_the_client_gets_a_copy() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").platform("linux_amd64").platform("darwin_arm64").size(3_000_000));
    let Some(setup) = locked_project(&upstream).await else { return };
    if !crate::support::small_disk::SmallDisk::is_possible() {
        return;
    }
    let on_small_disk =
        "cp -a \"$V1\" \"$V1.old\" && mount -t tmpfs -o size=12m none \"$V1\" && cp -a \"$V1.old/.\" \"$V1\"";
    let elsewhere = "rm -rf \"$V1.old\"; mkdir -p \"$V1/unpacked\" && mount -t tmpfs none \"$V1/unpacked\"";
    for (case, preparation, cause) in [
        ("a full disk", on_small_disk, "no storage space"),
        ("a file system of its own", elsewhere, "cross-device link"),
    ] {
        let larder = setup.command(&[], &init_command());
        let mut command = std::process::Command::new("unshare");
        command.args(["-rm", "sh", "-c", &format!("{preparation} && exec \"$@\""), "sh"]);
        command.arg(larder.get_program()).args(larder.get_args()).env("V1", setup.store().join("v1"));
        for (name, value) in larder.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.current_dir(larder.get_current_dir().unwrap());
        let output = run(command).await;
        assert_eq!(output.code, Some(0), "{case}: {output:?}");
        let note = output.err.lines().find(|line| line.contains("is not linked")).unwrap_or_default();
        assert!(note.contains(&format!("{HOST}/acme/null 1.2.0")) && note.contains(cause), "{case}: {output:?}");
        assert!(!installed(&setup).is_symlink(), "{case}");
        assert!(fs::read(program(&installed(&setup))).unwrap() == published(&upstream), "{case}");
        remove_installed(&setup);
    }
}

/// `-upgrade` sees versions that are not unpacked, beside the one that is.
#[tokio::test]
async fn an_upgrade_sees_newer_versions() {
    let upstream = upstream().await;
    if crate::support::programs::find("terraform").is_none() {
        return;
    }
    let setup = RunSetup::with_config(&format!(
        "[[upstream]]\nhost = \"{HOST}\"\nurl = \"{}/\"\nfresh = {{ versions = \"0s\" }}\n",
        upstream.origin()
    ));
    setup.require(&["registry.terraform.io/acme/null"]);
    init(&setup, &["--copy"]).await;
    remove_installed(&setup);
    init(&setup, &[]).await;
    tree(&setup);
    upstream.publish(Provider::new("acme", "null").version("1.3.0").platform("linux_amd64").size(SIZE));
    let upgrade = [&init_command()[..], &["-upgrade"]].concat();
    let output = setup.run(&[], &upgrade).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(setup.read("work/.terraform.lock.hcl").contains("\"1.3.0\""));
    let newer = setup.path("work/.terraform/providers/registry.terraform.io/acme/null/1.3.0/linux_amd64");
    assert!(newer.is_dir() && !newer.is_symlink());
}
