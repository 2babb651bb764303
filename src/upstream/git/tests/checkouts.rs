//! Tests that the fetched tree equals the result of `git clone`, `git checkout` and `git submodule update --init --recursive`.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::server::{ReceivedRequest, ServerBehaviour, server_config_path};
use super::*;

#[tokio::test]
async fn the_tree_equals_a_clone_with_submodules() {
    let forge = Forge::new();
    let inner = forge.repository("deep/inner");
    write(&inner, "inner.tf", "inner\n");
    write(&inner, ".gitattributes", "*.tf eol=crlf\n");
    commit(&inner);
    let middle = forge.repository("deep/middle");
    write(&middle, "middle.tf", "middle\n");
    git(&middle, &["submodule", "--quiet", "add", "../../inner/.git", "vendor/inner"]);
    commit(&middle);
    let outer = forge.repository("outer");
    write(&outer, "main.tf", "main\n");
    write(&outer, "modules/a/main.tf", "a\n");
    write(&outer, "bin/run", "#!/bin/sh\n");
    fs::set_permissions(outer.join("bin/run"), fs::Permissions::from_mode(0o755)).unwrap();
    write(&outer, ".gitattributes", "docs export-ignore\n*.id ident\nversion export-subst\n*.bat text eol=crlf\n");
    write(&outer, "docs/readme", "kept\n");
    write(&outer, "version", "$Format:%H$\n");
    write(&outer, "a.id", "x $Id$ y\n");
    write(&outer, "a.bat", "one\ntwo\n");
    write(&outer, "Case", "1");
    write(&outer, "case", "2");
    write(&outer, "aux", "Windows reserves this name");
    write(&outer, "big.bin", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n");
    symlink("modules/a", outer.join("linked")).unwrap();
    symlink("../../../etc/passwd", outer.join("modules/out")).unwrap();
    git(&outer, &["submodule", "--quiet", "add", "../../deep/middle/.git", "modules/middle"]);
    git(&outer, &["config", "-f", ".gitmodules", "submodule.modules/middle.branch", "main"]);
    let id = commit(&outer);

    let config = GitTestConfig::allowing(&forge.url("outer"));
    let fetched = config.fetch(&forge.source("outer", "main")).await.unwrap();
    assert_eq!(fetched.commit, id);
    assert_eq!(fetched.notes, ["pointers of Git LFS stay pointers: big.bin"]);
    let listing = tree_listing(&fetched.tree);
    assert_same_listing(&listing, &clone_listing(&forge.url("outer"), "main").unwrap());
    assert_eq!(listing[&b"modules/middle/vendor/inner/inner.tf"[..]], TreeItem::File(0o644, b"inner\r\n".to_vec()));
    assert_eq!(listing[&b"linked"[..]], TreeItem::Link(b"modules/a".to_vec()));
}

/// A name with control characters is escaped, in the target of a link, too. Everything else is as in a clone.
#[tokio::test]
async fn names_with_control_characters_are_escaped() {
    let forge = Forge::new();
    let repository = forge.repository("r");
    write(&repository, "Icon\r", "icon\n");
    write(&repository, "folder\x1b[2J/main.tf", "main\n");
    symlink("Icon\r", repository.join("link")).unwrap();
    commit(&repository);
    let fetched = GitTestConfig::allowing(&forge.url("r")).fetch(&forge.source("r", "main")).await.unwrap();
    let expected: Listing = [
        ("Icon%0D", TreeItem::File(0o644, b"icon\n".to_vec())),
        ("folder%1B[2J", TreeItem::Folder),
        ("folder%1B[2J/main.tf", TreeItem::File(0o644, b"main\n".to_vec())),
        ("link", TreeItem::Link(b"Icon%0D".to_vec())),
    ]
    .map(|(name, item)| (name.as_bytes().to_vec(), item))
    .into();
    assert_same_listing(&tree_listing(&fetched.tree), &expected);
}

/// Every content with every attribute, compared with git.
#[tokio::test]
async fn attributes_are_applied_as_git_applies_them() {
    let forge = Forge::new();
    let repository = forge.repository("r");
    let contents: &[(&str, &[u8])] = &[
        ("lf", b"one\ntwo\n"),
        ("crlf", b"one\r\ntwo\r\n"),
        ("mixed", b"one\r\ntwo\nthree\n"),
        ("cr", b"one\rtwo\n"),
        ("none", b"one"),
        ("empty", b""),
        ("nul", b"one\0\ntwo\n"),
        ("binary", b"\x01\x02\x03\x04\n\x05\n"),
        ("eof", b"one\ntwo\n\x1a"),
        ("utf8", "zw\u{f6}lf \u{20ac}\nend\n".as_bytes()),
        ("latin", "zw\u{f6}lf\n".as_bytes()),
        ("notutf8", b"\xff\xfe\n"),
        ("id", b"a $Id$ b\n$Id: old $\n$Id: two words $ $Id$\n$Id:$\n$Id: a\nb$ $Id$\n$$Id$"),
        ("idend", b"$Id: no end\n"),
        ("idcut", b"x $Id"),
        ("idspaces", b"$Id:a b $ $Id: a b $Id$ $I$Id$ $Id\0$Id$ $Id: \0 x$ $Id: x\t\0$ $Id: x\tyy $ $Id: \r$"),
        ("idodd", b"$Id$Id$ $Id: $ $Id:  $ $Idx$ $Id:x$ $Id: x$ $Id:x $"),
    ];
    let attributes = [
        "text",
        "-text",
        "!text",
        "text=auto",
        "text=auto eol=crlf",
        "text=auto eol=lf",
        "text eol=crlf",
        "-text eol=crlf",
        "eol=crlf",
        "eol=lf",
        "eol=CRLF",
        "crlf",
        "-crlf",
        "crlf=input",
        "crlf=auto eol=crlf",
        "text=input eol=crlf",
        "text=other crlf=auto eol=crlf",
        "binary",
        "binary eol=crlf",
        "binary text eol=crlf",
        "ident",
        "ident text=auto",
        "ident text=auto eol=lf",
        "ident !text",
        "ident -text",
        "ident text",
        "-ident",
        "ident eol=crlf",
        "ident text=auto eol=crlf",
        "filter=absent",
        "working-tree-encoding=UTF-16",
        "working-tree-encoding=UTF-16LE",
        "working-tree-encoding=utf-16be",
        "working-tree-encoding=UTF-16LE-BOM",
        "working-tree-encoding=UTF-16BE-BOM",
        "working-tree-encoding=UTF-32",
        "working-tree-encoding=UTF-32BE",
        "working-tree-encoding=UTF-8",
        "working-tree-encoding=ISO-8859-1",
        "working-tree-encoding=ISO-8859-15",
        "working-tree-encoding=windows-1252",
        "working-tree-encoding=US-ASCII",
        "working-tree-encoding=SHIFT_JIS",
        "working-tree-encoding=UTF-16LE eol=crlf ident",
        "working-tree-encoding=no-such",
        "lines ident",
        "export-ignore export-subst diff=x",
    ];
    let mut rules = String::from("[attr]lines text eol=crlf\n* text=auto\n");
    let objects: Vec<_> = contents.iter().map(|(name, bytes)| (name, store_blob(&repository, bytes))).collect();
    let mut index = String::new();
    for (number, attribute) in attributes.iter().enumerate() {
        rules.push_str(&format!("d{number:02}/* {attribute}\n"));
        let nested_rules = store_blob(&repository, format!("* !text\n[lu]* {attribute}\n").as_bytes());
        index.push_str(&format!("100644 {nested_rules}\tnested/d{number:02}/.gitattributes\n"));
        for (name, object) in &objects {
            index.push_str(&format!("100644 {object}\td{number:02}/{name}\n"));
            index.push_str(&format!("100644 {object}\tnested/d{number:02}/{name}\n"));
        }
    }
    index.push_str(&format!("100644 {}\t.gitattributes\n", store_blob(&repository, rules.as_bytes())));
    // Written without git's own conversion, because the test is about checkout.
    write(&repository, ".git/entries", index);
    let entries = fs::File::open(repository.join(".git/entries")).unwrap();
    assert!(git_command(&repository).args(["update-index", "--index-info"]).stdin(entries).status().unwrap().success());
    git(&repository, &["commit", "-q", "-m", "x"]);

    let fetched = GitTestConfig::allowing(&forge.url("r")).fetch(&forge.source("r", "")).await.unwrap();
    assert_eq!(fetched.notes.len(), 1, "{:?}", fetched.notes);
    assert!(fetched.notes[0].contains("(no-such)"), "{:?}", fetched.notes);
    assert_same_listing(&tree_listing(&fetched.tree), &clone_listing(&forge.url("r"), "").unwrap());
}

/// Stores a blob with exactly these bytes. Returns its id.
fn store_blob(repository: &Path, bytes: &[u8]) -> String {
    use std::io::Write as _;
    let mut command = git_command(repository);
    command.args(["hash-object", "-w", "--stdin", "--no-filters"]);
    let mut child = command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap().trim().to_owned()
}

/// Mode, name and content of a tree entry.
type CraftedEntry<'a> = (&'a str, &'a str, &'a [u8]);

/// Commits a tree of arbitrary entries to the branch `crafted`.
fn commit_crafted_tree(repository: &Path, entries: &[CraftedEntry<'_>]) {
    let mut bytes = Vec::new();
    for (mode, name, content) in entries {
        let id = if *mode == "160000" { "1".repeat(40) } else { store_blob(repository, content) };
        bytes.extend_from_slice(format!("{mode} {name}\0").as_bytes());
        bytes.extend_from_slice(&hex::decode(id).unwrap());
    }
    let path = repository.join(".git/crafted");
    fs::write(&path, bytes).unwrap();
    let tree = git(repository, &["hash-object", "-w", "--literally", "-t", "tree", ".git/crafted"]);
    let commit = git(repository, &["commit-tree", "-m", "x", &tree]);
    git(repository, &["update-ref", "refs/heads/crafted", &commit]);
}

#[tokio::test]
async fn a_name_that_git_forbids_is_refused() {
    let forge = Forge::new();
    let repository = forge.repository("r");
    commit(&repository);
    let config = GitTestConfig::allowing(&forge.url("r"));
    let cases: &[(&str, &[CraftedEntry<'_>])] = &[
        (".git", &[("100644", ".git", b"x")]),
        (".GiT", &[("100644", ".GiT", b"x")]),
        ("git~1", &[("100644", "git~1", b"x")]),
        ("..", &[("100644", "..", b"x")]),
        ("a/b", &[("100644", "a/b", b"x")]),
        (".gitmodules", &[("120000", ".gitmodules", b"x")]),
        ("a", &[("100644", "a", b"x"), ("100644", "a", b"y")]),
        ("link", &[("120000", "link", b"a\0b")]),
        ("link", &[("120000", "link", b"")]),
    ];
    for (name, entries) in cases {
        commit_crafted_tree(&repository, entries);
        let refused = config.fetch(&forge.source("r", "crafted")).await.unwrap_err();
        assert!(matches!(refused, GitError::Tree { .. }), "{name}: {refused}");
        assert!(refused.to_string().contains(name), "{name}: {refused}");
    }
}

#[tokio::test]
async fn submodules_are_fetched_only_over_https_and_ssh_and_stay_empty_without_an_entry_in_gitmodules() {
    let forge = Forge::new();
    let repository = forge.repository("r");
    commit(&repository);
    let config = GitTestConfig::allowing(&forge.url("r"));
    commit_crafted_tree(&repository, &[("160000", "gone", b"")]);
    let fetched = config.fetch(&forge.source("r", "crafted")).await.unwrap();
    assert_eq!(tree_listing(&fetched.tree), Listing::from([(b"gone".to_vec(), TreeItem::Folder)]));
    for (url, message) in [
        ("-u./x", "dash"),
        ("ext::sh -c x", "neither https nor ssh"),
        ("file:///etc", "neither https nor ssh"),
        ("https://127.0.0.1/x", "allow_private"),
        ("https://169.254.169.254/x", "allow_private"),
        ("http://public.example/x", "http://public.example:80"),
        ("ssh://git@git.example/x", "[[credential]]"),
        ("git@git.example:x", "host = \"git.example\""),
    ] {
        let modules = format!("[submodule \"s\"]\n\tpath = s\n\turl = {url}\n");
        commit_crafted_tree(&repository, &[("100644", ".gitmodules", modules.as_bytes()), ("160000", "s", b"")]);
        let refused = config.fetch(&forge.source("r", "crafted")).await.unwrap_err().to_string();
        assert!(refused.contains(message), "{url}: {refused}");
    }
}

/// Makes a repository with branches and tags of the same names, nested tags, and commits without a branch. Returns the
/// commit ids by the content of the commits.
fn make_ambiguous_repository(forge: &Forge) -> BTreeMap<&'static str, String> {
    let r = forge.repository("r");
    let mut ids = BTreeMap::new();
    let mut add_commit = |name: &'static str, arguments: &[&str]| {
        if !arguments.is_empty() {
            git(&r, arguments);
        }
        write(&r, "content", name);
        ids.insert(name, commit(&r));
    };
    add_commit("first", &[]);
    add_commit("tagged", &[]);
    git(&r, &["tag", "both"]);
    git(&r, &["tag", "main"]);
    git(&r, &["tag", "-a", "-m", "x", "annotated"]);
    git(&r, &["tag", "-a", "-m", "x", "twice", "annotated"]);
    add_commit("both", &["checkout", "-q", "-b", "both"]);
    // The name of this branch is the beginning of a tag's name.
    add_commit("prefix", &["checkout", "-q", "-b", "v1.0"]);
    git(&r, &["tag", "v1.0.0-rc", "both~1"]);
    // A commit that only a tag leads to.
    add_commit("noted", &["checkout", "-q", "--detach"]);
    git(&r, &["tag", "-a", "-m", "x", "note"]);
    add_commit("lost", &["checkout", "-q", "--detach", "HEAD~1"]);
    git(&r, &["checkout", "-q", "main", "--"]);
    add_commit("main", &["checkout", "-q", "-B", "main", "refs/heads/main"]);
    ids
}

/// The content of the only file of the fetched tree.
fn content(fetched: &GitTree) -> String {
    let TreeItem::File(_, bytes) = &tree_listing(&fetched.tree)[&b"content"[..]] else { panic!() };
    String::from_utf8(bytes.clone()).unwrap()
}

#[tokio::test]
async fn a_reference_resolves_as_in_a_clone_and_checkout() {
    let forge = Forge::new();
    let ids = make_ambiguous_repository(&forge);
    // A server that can omit trees (`allowFilter`), one that cannot, and one of the old protocol, which also serves no
    // commit by its id unless a ref names it.
    for (allows_filter, is_old) in [("true", false), ("false", false), ("false", true)] {
        fs::write(server_config_path(forge.folder.path()), format!("[uploadpack]\n\tallowFilter = {allows_filter}\n"))
            .unwrap();
        forge
            .server
            .set_behaviour(move |_| if is_old { ServerBehaviour::OldProtocol } else { ServerBehaviour::Normal });
        let config = GitTestConfig::allowing(&forge.url("r"));
        let first = &ids["first"];
        let abbreviated = first[..10].to_owned();
        for reference in [
            "",
            "HEAD",
            "main",
            "both",
            "annotated",
            "twice",
            "v1.0",
            "tags/both",
            "origin/both",
            "note",
            first,
            &ids["noted"],
            &abbreviated,
        ] {
            let expected = clone_listing(&forge.url("r"), reference).unwrap();
            let fetched = config.fetch(&forge.source("r", reference)).await;
            let fetched = fetched.unwrap_or_else(|e| panic!("{reference} ({allows_filter}, {is_old}): {e}"));
            assert_same_listing(&tree_listing(&fetched.tree), &expected);
            assert_eq!(fetched.commit, ids[content(&fetched).as_str()], "{reference}");
            let resolved = config.resolve(&forge.source("r", reference)).await.unwrap();
            // The refs do not resolve an abbreviated id; only a fetch does.
            let expected = if reference == abbreviated { None } else { Some(fetched.commit.clone()) };
            assert_eq!(resolved, expected, "{reference}");
        }
        for unresolvable in ["absent", "v1", "heads/both", "0000", "both~1"] {
            let refused = config.fetch(&forge.source("r", unresolvable)).await.unwrap_err();
            assert!(refused.to_string().contains(unresolvable), "{unresolvable}: {refused}");
            // `0000` may be an abbreviated id, so only a fetch shows that it does not exist.
            assert!(
                config.resolve(&forge.source("r", unresolvable)).await.is_err() || unresolvable == "0000",
                "{unresolvable}"
            );
        }
        // Forges serve commits that no branch leads to, but a checkout in a clone fails. Larder fails like the
        // checkout.
        for lost in [&ids["lost"], &"1".repeat(40)] {
            assert_eq!(clone_listing(&forge.url("r"), lost), None);
            let refused = config.fetch(&forge.source("r", lost)).await.unwrap_err();
            assert!(refused.to_string().contains("no branch and no tag leads to"), "{refused}");
        }
    }
}

/// Gerrit refuses ids without a ref, even in protocol version 2.
#[tokio::test]
async fn a_commit_refused_by_its_id_is_found_by_fetching_everything() {
    let forge = Forge::new();
    let (r, outer) = (forge.repository("r"), forge.repository("outer"));
    write(&r, "content", "first");
    let first = commit(&r);
    write(&r, "content", "second");
    commit(&r);
    write(&outer, ".gitmodules", "[submodule \"s\"]\n\tpath = s\n\turl = ../../r/.git\n");
    git(&outer, &["add", ".gitmodules"]);
    git(&outer, &["update-index", "--add", "--cacheinfo", &format!("160000,{first},s")]);
    git(&outer, &["commit", "-q", "-m", "x"]);
    fs::write(server_config_path(forge.folder.path()), "[uploadpack]\n\tallowFilter = true\n").unwrap();
    let (want, message) = (format!("want {first}"), format!("ERR upload-pack: not our ref {first}"));
    let wants_the_id =
        move |request: &ReceivedRequest| request.body.windows(want.len()).any(|window| window == want.as_bytes());
    let is_refused = wants_the_id.clone();
    forge.server.set_behaviour(move |request| {
        let packet_line = format!("{:04x}{message}", message.len() + 4);
        let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/x-git-upload-pack-result\r\n\r\n";
        if is_refused(request) {
            ServerBehaviour::RawResponse(format!("{head}{packet_line}"))
        } else {
            ServerBehaviour::Normal
        }
    });
    let config = GitTestConfig::allowing(&forge.url("r"));
    let fetched = config.fetch(&forge.source("r", &first)).await.unwrap();
    assert_eq!((content(&fetched).as_str(), &fetched.commit), ("first", &first));
    let fetched = config.fetch(&forge.source("outer", "")).await.unwrap();
    assert_eq!(tree_listing(&fetched.tree)[&b"s/content"[..]], TreeItem::File(0o644, b"first".to_vec()));
    assert!(forge.server.requests().iter().any(wants_the_id), "no request was refused");
}

#[tokio::test]
async fn with_a_depth_a_branch_wins_over_a_tag_and_ids_do_not_resolve() {
    let forge = Forge::new();
    let ids = make_ambiguous_repository(&forge);
    let config = GitTestConfig::allowing(&forge.url("r"));
    let source_with_depth = |reference: &str, depth| GitSource { depth: Some(depth), ..forge.source("r", reference) };
    for (reference, expected) in [("both", "both"), ("main", "main"), ("annotated", "tagged"), ("", "main")] {
        let fetched = config.fetch(&source_with_depth(reference, 1)).await.unwrap();
        assert_eq!((content(&fetched).as_str(), &fetched.commit), (expected, &ids[expected]), "{reference}");
    }
    assert!(config.fetch(&source_with_depth(&ids["first"], 1)).await.is_err());
    assert_eq!(content(&config.fetch(&source_with_depth("both", 0)).await.unwrap()), "tagged");
}

#[tokio::test]
async fn a_tag_that_moved_names_another_commit() {
    let forge = Forge::new();
    let ids = make_ambiguous_repository(&forge);
    let config = GitTestConfig::allowing(&forge.url("r"));
    let source = forge.source("r", "annotated");
    assert_eq!(config.resolve(&source).await.unwrap().as_ref(), Some(&ids["tagged"]));
    git(&forge.folder.path().join("r"), &["tag", "-f", "-a", "-m", "y", "annotated", &ids["both"]]);
    assert_eq!(config.resolve(&source).await.unwrap().as_ref(), Some(&ids["both"]));
    assert_eq!(config.fetch(&source).await.unwrap().commit, ids["both"]);
}

#[tokio::test]
async fn an_absent_or_empty_repository_is_an_upstream_error() {
    let forge = Forge::new();
    forge.repository("empty");
    let config = GitTestConfig::allowing(&forge.url("empty"));
    for (name, message) in [("absent", "no such repository"), ("empty", "without a commit")] {
        let error = config.fetch(&forge.source(name, "")).await.unwrap_err();
        let GitError::Upstream(error) = error else { panic!("{error}") };
        assert!(matches!(error.fault, crate::upstream::error::Fault::Unusable(_)), "{error}");
        assert!(error.to_string().contains(message), "{error}");
    }
}
