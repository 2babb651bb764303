//! Tests of references, and of the commits that they resolve to.

use super::server::{ServerBehaviour, server_config_path};
use super::*;

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
    // Some servers can omit trees, others cannot, and old ones can do neither that nor serve most ids.
    for (allows_filter, is_old) in [("true", false), ("false", false), ("false", true)] {
        fs::write(server_config_path(forge.folder.path()), format!("[uploadpack]\n\tallowFilter = {allows_filter}\n"))
            .unwrap();
        forge
            .server
            .set_behaviour(move |_| if is_old { ServerBehaviour::OldProtocol } else { ServerBehaviour::Normal });
        let config = GitTestConfig::for_registry(&forge.url("r"));
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
            let expected = if reference == abbreviated { None } else { Some(fetched.commit.clone()) };
            assert_eq!(resolved, expected, "{reference}");
        }
        for unresolvable in ["absent", "v1", "heads/both", "0000", "both~1"] {
            let refused = config.fetch(&forge.source("r", unresolvable)).await.unwrap_err();
            assert!(refused.to_string().contains(unresolvable), "{unresolvable}: {refused}");
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
    let want = format!("want {first}");
    forge.server.set_behaviour(move |request| {
        let is_refused = request.body.windows(want.len()).any(|window| window == want.as_bytes());
        let message = format!("ERR upload-pack: not our ref {}", &want[5..]);
        let packet_line = format!("{:04x}{message}", message.len() + 4);
        let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/x-git-upload-pack-result\r\n\r\n";
        if is_refused { ServerBehaviour::RawResponse(format!("{head}{packet_line}")) } else { ServerBehaviour::Normal }
    });
    let config = GitTestConfig::for_registry(&forge.url("r"));
    let fetched = config.fetch(&forge.source("r", &first)).await.unwrap();
    assert_eq!((content(&fetched).as_str(), &fetched.commit), ("first", &first));
    let fetched = config.fetch(&forge.source("outer", "")).await.unwrap();
    assert_eq!(tree_listing(&fetched.tree)[&b"s/content"[..]], TreeItem::File(0o644, b"first".to_vec()));
    assert!(forge.server.requests().len() > 6, "no request was refused");
}

#[tokio::test]
async fn with_a_depth_a_branch_wins_over_a_tag_and_ids_do_not_resolve() {
    let forge = Forge::new();
    let ids = make_ambiguous_repository(&forge);
    let config = GitTestConfig::for_registry(&forge.url("r"));
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
    let config = GitTestConfig::for_registry(&forge.url("r"));
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
    let config = GitTestConfig::for_registry(&forge.url("empty"));
    for (name, message) in [("absent", "no such repository"), ("empty", "without a commit")] {
        let error = config.fetch(&forge.source(name, "")).await.unwrap_err();
        let GitError::Upstream(error) = error else { panic!("{error}") };
        assert!(matches!(error.fault, crate::upstream::error::Fault::Unusable(_)), "{error}");
        assert!(error.to_string().contains(message), "{error}");
    }
}
