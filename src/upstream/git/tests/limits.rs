//! Tests of the limits of git fetches (promise 11). Each error names the limit that was reached.

use std::time::Duration;

use super::server::ServerBehaviour;
use super::*;
use crate::packaging::TreeError;
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::limits::DocumentMemoryLimits;

/// Fetches, and returns the fault of the expected upstream error.
async fn fault(config: &GitTestConfig, source: &GitSource) -> Fault {
    match config.fetch(source).await.unwrap_err() {
        GitError::Upstream(error) => error.fault,
        error => panic!("{error}"),
    }
}

#[tokio::test]
async fn a_server_that_falls_silent_is_given_up() {
    let forge = Forge::new();
    let r = forge.repository("r");
    commit(&r);
    let mut config = GitTestConfig::allowing(&forge.url("r"));
    config.upstream_limits.git.idle = Duration::from_millis(100);
    for silent in ["GET", "POST"] {
        forge.server.set_behaviour(move |request| {
            if request.method == silent { ServerBehaviour::NoAnswer } else { ServerBehaviour::Normal }
        });
        assert!(matches!(fault(&config, &forge.source("r", "main")).await, Fault::Slow(_)));
    }
    let partial_answer = "HTTP/1.1 200 OK\r\nContent-Type: application/x-git-upload-pack-advertisement\r\nContent-Length: 90\r\n\r\n001e#";
    let mut config = GitTestConfig::allowing(&forge.url("r"));
    config.upstream_limits.git.total = Duration::from_millis(100);
    forge.server.set_behaviour(|_| ServerBehaviour::NoAnswer);
    assert!(matches!(fault(&config, &forge.source("r", "main")).await, Fault::Slow(_)));
    forge.server.set_behaviour(move |_| ServerBehaviour::RawResponse(partial_answer.to_owned()));
    let broken = fault(&config, &forge.source("r", "main")).await;
    assert!(matches!(broken, Fault::Unreachable(_) | Fault::Unusable(_)), "{broken:?}");
}

/// The time limit until the first byte is the same for repositories as for other upstreams.
#[tokio::test]
async fn a_server_that_never_begins_to_answer_is_given_up_like_any_other() {
    let forge = Forge::new();
    commit(&forge.repository("r"));
    let mut config = GitTestConfig::allowing(&forge.url("r"));
    config.upstream_limits.give_up_after = Duration::from_secs(1);
    for silent in ["GET", "POST"] {
        forge.server.set_behaviour(move |request| {
            if request.method == silent { ServerBehaviour::NoAnswer } else { ServerBehaviour::Normal }
        });
        let slow = fault(&config, &forge.source("r", "main")).await;
        assert_eq!(slow, Fault::Slow("no byte within 1 s".to_owned()), "{silent}");
    }
}

#[tokio::test]
async fn a_huge_object_of_zeros_is_refused_before_it_is_inflated() {
    let forge = Forge::new();
    let r = forge.repository("r");
    write(&r, "data/bomb", vec![0; 64 << 20]);
    write(&r, "small", vec![0; 1 << 20]);
    commit(&r);
    let mut config = GitTestConfig::allowing(&forge.url("r"));
    config.tree_limits.file_bytes = 1 << 20;
    git(&r, &["config", "uploadpack.allowFilter", "true"]);
    let refused = config.fetch(&forge.source("r", "main")).await.unwrap_err();
    assert!(matches!(&refused, GitError::Tree { error: TreeError::LargeFile { .. }, .. }), "{refused}");
    // The second fetch, without large files, tells the name.
    assert!(refused.to_string().contains("data/bomb is 64.0 MiB; larder takes 1.0 MiB"), "{refused}");

    // A server that cannot omit files does not tell it.
    git(&r, &["config", "uploadpack.allowFilter", "false"]);
    let refused = config.fetch(&forge.source("r", "main")).await.unwrap_err();
    assert!(refused.to_string().contains("a file of its repository is 64.0 MiB; larder takes 1.0 MiB"), "{refused}");
    config.tree_limits.file_bytes = 64 << 20;
    config.fetch(&forge.source("r", "main")).await.unwrap();
}

/// Promise 11: the largest objects of all git fetches together have as much memory as documents, and one of the largest size
/// more.
#[tokio::test]
async fn large_objects_take_memory_of_the_budget() {
    let forge = Forge::new();
    let r = forge.repository("r");
    write(&r, "large", vec![0; 8 << 20]);
    commit(&r);
    let mut config = GitTestConfig::allowing(&forge.url("r"));
    config.upstream_limits.document_memory = DocumentMemoryLimits { each_kib: 0, all_kib: 0 };
    config.tree_limits.file_bytes = 8 << 20;
    let outbound = config.outbound();
    let source = forge.source("r", "main");
    config.fetch_with(&outbound, &source).await.unwrap();
    let mut others = outbound.git_memory.start(&host(), 3 * (256 << 20));
    others.grow_to(3 * (256 << 20)).unwrap();
    let refused = config.fetch_with(&outbound, &source).await.unwrap_err();
    assert!(matches!(&refused, GitError::Upstream(UpstreamError { fault: Fault::LocalLimit(_), .. })), "{refused}");
    drop(others);
    config.fetch_with(&outbound, &source).await.unwrap();
}

#[tokio::test]
async fn tree_limits_are_checked_before_a_file_is_written() {
    let forge = Forge::new();
    let r = forge.repository("r");
    for number in 0..50 {
        write(&r, &format!("d{}/{number}", number % 5), vec![b'x'; 1000]);
    }
    commit(&r);
    let mut config = GitTestConfig::allowing(&forge.url("r"));
    for (limits, message) in [
        (TreeLimits { entries: 40, ..TreeLimits::default() }, "40 files, folders and links"),
        (TreeLimits { entries: 1000, bytes: 40_000, file_bytes: 40_000 }, "40000 bytes in its files"),
    ] {
        config.tree_limits = limits;
        let refused = config.fetch(&forge.source("r", "main")).await.unwrap_err();
        assert!(refused.to_string().contains(message), "{refused}");
    }
    config.tree_limits = TreeLimits::default();
    config.upstream_limits.git.received_bytes = 500;
    assert_eq!(fault(&config, &forge.source("r", "main")).await, Fault::TooLarge(500));
}

/// Nested folders that each contain one folder twice: few objects, and an enormous number of paths.
#[tokio::test]
async fn a_tree_of_a_few_objects_and_endless_paths_is_refused() {
    let forge = Forge::new();
    let r = forge.repository("r");
    commit(&r);
    let mut tree = git(&r, &["hash-object", "-w", "-t", "tree", "/dev/null"]);
    for _ in 0..30 {
        let entries = format!("040000 tree {tree}\ta\n040000 tree {tree}\tb\n");
        write(&r, ".git/entries", entries);
        let input = fs::File::open(r.join(".git/entries")).unwrap();
        let output = git_command(&r).args(["mktree"]).stdin(input).output().unwrap();
        tree = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    }
    let commit = git(&r, &["commit-tree", "-m", "x", &tree]);
    git(&r, &["branch", "endless", &commit]);
    let refused = GitTestConfig::allowing(&forge.url("r")).fetch(&forge.source("r", "endless")).await.unwrap_err();
    assert!(refused.to_string().contains("100000 files, folders and links"), "{refused}");
}

#[tokio::test]
async fn submodules_are_limited_in_number_and_depth() {
    let forge = Forge::new();
    let r = forge.repository("r");
    write(&r, "f", "x");
    let id = commit(&r);
    // The repository is its own submodule, twice. A commit cannot contain its own id, so each names an earlier commit.
    let modules: String =
        ["a", "b"].iter().map(|name| format!("[submodule \"{name}\"]\n\tpath = {name}\n\turl = ./\n")).collect();
    let mut last = id;
    for _ in 0..4 {
        write(&r, ".gitmodules", &modules);
        git(&r, &["add", ".gitmodules"]);
        for name in ["a", "b"] {
            git(&r, &["update-index", "--add", "--cacheinfo", &format!("160000,{last},{name}")]);
        }
        git(&r, &["commit", "-q", "-m", "x"]);
        last = git(&r, &["rev-parse", "HEAD"]);
    }
    let mut config = GitTestConfig::allowing(&forge.url("r"));
    config.upstream_limits.git.submodule_depth = 3;
    let refused = config.fetch(&forge.source("r", "main")).await.unwrap_err();
    assert!(refused.to_string().contains("3 submodules one in the other"), "{refused}");
    config.upstream_limits.git.submodule_depth = 8;
    config.upstream_limits.git.submodules = 20;
    let refused = config.fetch(&forge.source("r", "main")).await.unwrap_err();
    assert!(refused.to_string().contains("20 submodules"), "{refused}");
    config.upstream_limits.git.submodules = 30;
    // 30 submodule folders, the file of each of the 31 repositories, and .gitmodules in all but the innermost 16.
    assert_eq!(tree_listing(&config.fetch(&forge.source("r", "main")).await.unwrap().tree).len(), 30 + 31 + 15);
}

#[tokio::test]
async fn a_local_disk_error_is_no_upstream_error() {
    let forge = Forge::new();
    commit(&forge.repository("r"));
    let config = GitTestConfig::allowing(&forge.url("r"));
    let tree = Tree::new(tempfile::tempfile().unwrap(), config.tree_limits);
    let (upstream, source) = (config.upstream(), forge.source("r", "main"));
    let failed = config
        .outbound()
        .git(git_request(&source, &upstream), &source, Path::new("/no/such/folder"), tree)
        .await
        .unwrap_err();
    assert!(matches!(failed, GitError::Disk { .. }), "{failed}");
}

/// The time to match a pattern grows exponentially with its `**`.
#[tokio::test]
async fn expensive_or_oversized_attributes_are_refused() {
    let forge = Forge::new();
    let r = forge.repository("r");
    let deep = format!("{}b", "a/".repeat(60));
    write(&r, &deep, "x");
    let config = GitTestConfig::allowing(&forge.url("r"));
    let stars = "**/a/".repeat(40);
    let quoted = format!("\"{}\"", stars.replace('*', "\\052"));
    for (rules, message) in [
        (format!("{stars} text\n"), "more stars"),
        (format!("# fine\n{quoted} text\n"), "more stars"),
        (format!("{}x text\n", "*a".repeat(40)), "more stars"),
        ("x text\n".repeat(40_000), "262144 bytes"),
    ] {
        for path in [".gitattributes", "a/a/.gitattributes"] {
            write(&r, path, &rules);
            commit(&r);
            let refused = config.fetch(&forge.source("r", "main")).await.unwrap_err();
            assert!(matches!(refused, GitError::Tree { .. }), "{refused}");
            assert!(refused.to_string().contains(message) && refused.to_string().contains(path), "{refused}");
            fs::remove_file(r.join(path)).unwrap();
        }
    }
    for number in 0..10 {
        write(&r, &format!("{number}/.gitattributes"), "x text\n".repeat(35_000));
    }
    commit(&r);
    let refused = config.fetch(&forge.source("r", "main")).await.unwrap_err();
    assert!(refused.to_string().contains("2097152 bytes in its .gitattributes"), "{refused}");
    (0..10).for_each(|number| fs::remove_dir_all(r.join(number.to_string())).unwrap());
    write(&r, ".gitmodules", "# x\n".repeat(70_000));
    commit(&r);
    let refused = config.fetch(&forge.source("r", "main")).await.unwrap_err();
    assert!(refused.to_string().contains("262144 bytes"), "{refused}");
    fs::remove_file(r.join(".gitmodules")).unwrap();
    write(&r, ".gitattributes", "# ****************************************\n**/a/**/a/**/b eol=crlf\n*.tf text\n");
    commit(&r);
    assert!(config.fetch(&forge.source("r", "main")).await.is_ok());
}

#[tokio::test]
async fn the_caller_gets_an_error_if_git_code_does_not_end() {
    let forge = Forge::new();
    let mut config = GitTestConfig::allowing(&forge.url("r"));
    config.upstream_limits.git.total = Duration::from_millis(50);
    config.upstream_limits.git.stop_time = Duration::from_millis(50);
    let (outbound, upstream, source) = (config.outbound(), config.upstream(), forge.source("r", "main"));
    let (allow_end, may_end) = std::sync::mpsc::channel::<()>();
    let (end_sender, ended) = std::sync::mpsc::channel();
    let endless = move |bridge: crate::upstream::git::blocking_bridge::GitBridge,
                        stop: &std::sync::atomic::AtomicBool| {
        let _ = may_end.recv();
        end_sender.send(stop.load(std::sync::atomic::Ordering::Relaxed)).unwrap();
        drop(bridge);
        Ok(())
    };
    let failed = outbound
        .run_blocking(git_request(&source, &upstream), config.upstream_limits.git.total, endless)
        .await
        .unwrap_err();
    assert!(failed.to_string().contains("too slow"), "{failed}");
    assert!(ended.try_recv().is_err(), "the code had ended");
    drop(allow_end);
    assert!(ended.recv().unwrap(), "the code was not asked to stop");
}

#[tokio::test]
async fn a_slow_server_is_given_up() {
    let forge = Forge::new();
    let r = forge.repository("r");
    let random: Vec<u8> = (0..60_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    write(&r, "f", random);
    commit(&r);
    let mut config = GitTestConfig::allowing(&forge.url("r"));
    config.upstream_limits.git.idle = Duration::from_millis(200);
    let long_preparing = config.upstream_limits.git.preparing;
    // Slow before the pack, and slow within it. The fast part of the pack exceeds one whole packet line (up to 64 KiB).
    // `preparing` stays long there, because a busy machine may take long to the first byte.
    let short_preparing = Duration::from_millis(500);
    for (method, fast_bytes, message, preparing) in
        [("GET", 260, "no byte of a pack", short_preparing), ("POST", 150_000, "1 KiB/s", long_preparing)]
    {
        config.upstream_limits.git.preparing = preparing;
        forge.server.set_behaviour(move |request| {
            let is_fetch = request.body.windows(4).any(|window| window == b"want");
            let is_slow = request.method == method && (method == "GET" || is_fetch);
            if is_slow { ServerBehaviour::SlowAnswer(fast_bytes, 20) } else { ServerBehaviour::Normal }
        });
        let slow = fault(&config, &forge.source("r", "main")).await;
        assert!(matches!(&slow, Fault::Slow(reason) if reason.contains(message)), "{method}: {slow:?}");
    }
    config.fetch(&forge.source("r", "main")).await.unwrap_err();
    forge.server.set_behaviour(|_| ServerBehaviour::Normal);
    config.fetch(&forge.source("r", "main")).await.unwrap();
}

/// Repositories that never finish do not block those of other upstreams (promise 11).
#[tokio::test]
async fn one_upstream_never_takes_all_git_fetches() {
    let (forge, stuck_forge) = (Forge::new(), Forge::new());
    commit(&forge.repository("r"));
    let mut config = GitTestConfig::allowing(&forge.url("r"));
    config.allow_private =
        vec![PrivateDestination::PlainHttp { host: "127.0.0.1".into(), port: stuck_forge.server.port }];
    config.upstream_limits.git_fetches.wait = Duration::from_millis(100);
    // The silent fetches must not time out during this test.
    let hour = Duration::from_secs(3600);
    (config.upstream_limits.give_up_after, config.upstream_limits.git.idle) = (hour, hour);
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    stuck_forge.server.set_behaviour(move |_| {
        let _ = sender.send(());
        ServerBehaviour::NoAnswer
    });
    let (outbound, upstream) = (config.outbound(), config.upstream());
    let (source, stuck_source) = (forge.source("r", "main"), stuck_forge.source("r", "main"));
    let other_host = Hostname::parse("other.example").unwrap();
    let fetch = async |host: &Hostname, source: &GitSource| {
        let scratch = tempfile::tempdir().unwrap();
        let tree = Tree::new(tempfile::tempfile().unwrap(), config.tree_limits);
        outbound
            .git(UpstreamRequest { upstream: host, ..git_request(source, &upstream) }, source, scratch.path(), tree)
            .await
    };
    let own_host = host();
    let stuck_jobs = async { tokio::join!(fetch(&own_host, &stuck_source), fetch(&own_host, &stuck_source)) };
    let further_jobs = async {
        for _ in 0..2 {
            receiver.recv().await.unwrap();
        }
        let error = fetch(&own_host, &source).await.unwrap_err().to_string();
        assert!(error.contains("the limit of concurrent git fetches is reached"), "{error}");
        fetch(&other_host, &source).await.unwrap();
    };
    tokio::select! {
        _ = stuck_jobs => panic!("the stuck jobs ended"),
        () = further_jobs => {}
    }
}

/// Progress messages do not count as pack data (promise 11).
#[tokio::test]
async fn a_server_that_sends_progress_but_no_pack_is_given_up() {
    let forge = Forge::new();
    commit(&forge.repository("r"));
    let mut config = GitTestConfig::allowing(&forge.url("r"));
    config.upstream_limits.git.preparing = Duration::from_secs(1);
    // Ends the test if the limit under test does not.
    config.upstream_limits.git.total = Duration::from_secs(15);
    forge.server.set_behaviour(|request| match request.body.windows(4).any(|window| window == b"want") {
        true => ServerBehaviour::EndlessProgress(20),
        false => ServerBehaviour::Normal,
    });
    let slow = fault(&config, &forge.source("r", "main")).await;
    assert_eq!(slow, Fault::Slow("no byte of a pack within 1 s".to_owned()));
}

#[tokio::test]
async fn the_objects_of_a_pack_are_limited() {
    let forge = Forge::new();
    let r = forge.repository("r");
    write(&r, "f", "x");
    commit(&r);
    let mut config = GitTestConfig::allowing(&forge.url("r"));
    // The pack has three objects: a commit, its tree and a blob.
    config.upstream_limits.git.objects = 2;
    let refused = config.fetch(&forge.source("r", "main")).await.unwrap_err();
    assert!(matches!(&refused, GitError::Tree { error: crate::packaging::TreeError::TooLarge(_), .. }), "{refused}");
    assert!(refused.to_string().contains("2 objects in one pack"), "{refused}");
    config.upstream_limits.git.objects = 3;
    config.fetch(&forge.source("r", "main")).await.unwrap();
}

#[tokio::test]
async fn refs_and_data_before_a_pack_are_limited() {
    let forge = Forge::new();
    let r = forge.repository("r");
    commit(&r);
    for number in 0..20 {
        git(&r, &["tag", &format!("v{number}")]);
    }
    let id = git(&r, &["rev-parse", "HEAD"]);
    for is_old in [false, true] {
        forge
            .server
            .set_behaviour(move |_| if is_old { ServerBehaviour::OldProtocol } else { ServerBehaviour::Normal });
        let mut config = GitTestConfig::allowing(&forge.url("r"));
        config.upstream_limits.git.names = 20;
        let source = forge.source("r", &id[..8]);
        for refused in [config.resolve(&source).await.map(drop), config.fetch(&source).await.map(drop)] {
            let refused = refused.unwrap_err();
            assert!(refused.to_string().contains("20 names"), "{refused}");
        }
        config.upstream_limits.git.names = 22;
        config.fetch(&source).await.unwrap();
        config.upstream_limits.git.bytes_before_pack = 500;
        assert_eq!(fault(&config, &source).await, Fault::TooLarge(500));
    }
}

#[tokio::test]
async fn resolving_a_name_has_separate_limits_and_a_full_id_needs_no_request() {
    let forge = Forge::new();
    let mut config = GitTestConfig::allowing(&forge.url("r"));
    config.upstream_limits.git.resolve_time = Duration::from_millis(100);
    config.upstream_limits.documents.all = 0;
    forge.server.set_behaviour(|_| ServerBehaviour::NoAnswer);
    let failed = config.resolve(&forge.source("r", "main")).await.unwrap_err();
    assert!(matches!(&failed, GitError::Upstream(error) if matches!(error.fault, Fault::Slow(_))), "{failed}");
    let requests_before = forge.server.requests().len();
    let id = "0123456789ABCDEF0123456789abcdef01234567";
    assert_eq!(config.resolve(&forge.source("r", id)).await.unwrap(), Some(id.to_ascii_lowercase()));
    assert_eq!(forge.server.requests().len(), requests_before);
    config.upstream_limits.git_resolves.all = 0;
    config.upstream_limits.git_resolves.wait = Duration::from_millis(10);
    let failed = config.resolve(&forge.source("r", "main")).await.unwrap_err();
    assert!(failed.to_string().contains("the limit of concurrent git ref lookups"), "{failed}");
}

/// All objects of a delta chain may be in memory at the same time.
#[tokio::test]
async fn a_pack_that_exceeds_the_chain_memory_is_refused() {
    let forge = Forge::new();
    let r = forge.repository("r");
    let line = |n: u32| format!("{:08x}{:08x}\n", n.wrapping_mul(2_654_435_761), n.wrapping_mul(40_503));
    // Each file shares most lines with the previous file, so that git packs the files as deltas.
    for number in 0..40 {
        let lines = number * 100..number * 100 + 3000 - number;
        write(&r, &format!("f{number:02}"), lines.map(line).collect::<String>());
    }
    commit(&r);
    git(&r, &["repack", "-q", "-a", "-d", "-f", "--depth=40", "--window=10"]);
    let mut config = GitTestConfig::allowing(&forge.url("r"));
    config.upstream_limits.git.chain_bytes = 200_000;
    config.tree_limits.file_bytes = 60_000;
    let refused = config.fetch(&forge.source("r", "main")).await.unwrap_err();
    assert!(matches!(&refused, GitError::Tree { error: crate::packaging::TreeError::TooLarge(_), .. }), "{refused}");
    assert!(refused.to_string().contains("200000 bytes in objects"), "{refused}");
    config.upstream_limits.git.chain_bytes = 4_000_000;
    let fetched = config.fetch(&forge.source("r", "main")).await.unwrap();
    assert_eq!(tree_listing(&fetched.tree).len(), 40);
}
