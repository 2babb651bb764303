//! References, and the commits they resolve to.

use super::server::{ServerBehaviour, settings};
use super::*;

/// Makes a repository with a branch and a tag of the same name, and more. Returns its commit ids by name.
fn tangled(forge: &Forge) -> BTreeMap<&'static str, String> {
    let r = forge.repository("r");
    let mut ids = BTreeMap::new();
    let mut next = |name: &'static str, arguments: &[&str]| {
        if !arguments.is_empty() {
            git(&r, arguments);
        }
        write(&r, "content", name);
        ids.insert(name, commit(&r));
    };
    next("first", &[]);
    next("tagged", &[]);
    git(&r, &["tag", "both"]);
    git(&r, &["tag", "main"]);
    git(&r, &["tag", "-a", "-m", "x", "annotated"]);
    git(&r, &["tag", "-a", "-m", "x", "twice", "annotated"]);
    next("both", &["checkout", "-q", "-b", "both"]);
    next("prefix", &["checkout", "-q", "-b", "v1.0"]);
    git(&r, &["tag", "v1.0.0-rc", "both~1"]);
    // A commit that only a tag leads to.
    next("noted", &["checkout", "-q", "--detach"]);
    git(&r, &["tag", "-a", "-m", "x", "note"]);
    next("lost", &["checkout", "-q", "--detach", "HEAD~1"]);
    git(&r, &["checkout", "-q", "main", "--"]);
    next("main", &["checkout", "-q", "-B", "main", "refs/heads/main"]);
    ids
}

fn content(fetched: &GitTree) -> String {
    let TreeItem::File(_, bytes) = &listed(&fetched.tree)[&b"content"[..]] else { panic!() };
    String::from_utf8(bytes.clone()).unwrap()
}

#[tokio::test]
async fn a_reference_resolves_as_in_a_clone_and_checkout() {
    let forge = Forge::new();
    let ids = tangled(&forge);
    // Some servers can omit trees, others cannot, and old ones can do neither that nor serve most ids.
    for (filter, old) in [("true", false), ("false", false), ("false", true)] {
        fs::write(settings(forge.folder.path()), format!("[uploadpack]\n\tallowFilter = {filter}\n")).unwrap();
        forge.server.set_behaviour(move |_| if old { ServerBehaviour::AsOld } else { ServerBehaviour::Nothing });
        let setting = GitTestSetting::of_registry(&forge.url("r"));
        let first = &ids["first"];
        let short = first[..10].to_owned();
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
            &short,
        ] {
            let theirs = cloned(&forge.url("r"), reference).unwrap();
            let fetched = setting.fetch(&forge.source("r", reference)).await;
            let fetched = fetched.unwrap_or_else(|e| panic!("{reference} ({filter}, {old}): {e}"));
            assert_same(&listed(&fetched.tree), &theirs);
            assert_eq!(fetched.commit, ids[content(&fetched).as_str()], "{reference}");
            let looked = setting.resolve(&forge.source("r", reference)).await.unwrap();
            let shown = if reference == short { None } else { Some(fetched.commit.clone()) };
            assert_eq!(looked, shown, "{reference}");
        }
        for nothing in ["absent", "v1", "heads/both", "0000", "both~1"] {
            let refused = setting.fetch(&forge.source("r", nothing)).await.unwrap_err();
            assert!(refused.to_string().contains(nothing), "{nothing}: {refused}");
            assert!(setting.resolve(&forge.source("r", nothing)).await.is_err() || nothing == "0000", "{nothing}");
        }
        // Forges serve commits that no branch leads to, but a checkout in a clone fails. Larder fails like the
        // checkout.
        for lost in [&ids["lost"], &"1".repeat(40)] {
            assert_eq!(cloned(&forge.url("r"), lost), None);
            let refused = setting.fetch(&forge.source("r", lost)).await.unwrap_err();
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
    fs::write(settings(forge.folder.path()), "[uploadpack]\n\tallowFilter = true\n").unwrap();
    let want = format!("want {first}");
    forge.server.set_behaviour(move |request| {
        let is_refused = request.body.windows(want.len()).any(|part| part == want.as_bytes());
        let line = format!("ERR upload-pack: not our ref {}", &want[5..]);
        let line = format!("{:04x}{line}", line.len() + 4);
        let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/x-git-upload-pack-result\r\n\r\n";
        if is_refused { ServerBehaviour::Say(format!("{head}{line}")) } else { ServerBehaviour::Nothing }
    });
    let setting = GitTestSetting::of_registry(&forge.url("r"));
    let fetched = setting.fetch(&forge.source("r", &first)).await.unwrap();
    assert_eq!((content(&fetched).as_str(), &fetched.commit), ("first", &first));
    let fetched = setting.fetch(&forge.source("outer", "")).await.unwrap();
    assert_eq!(listed(&fetched.tree)[&b"s/content"[..]], TreeItem::File(0o644, b"first".to_vec()));
    assert!(forge.server.requests().len() > 6, "it was refused nothing");
}

#[tokio::test]
async fn with_a_depth_a_branch_wins_and_ids_are_nothing() {
    let forge = Forge::new();
    let ids = tangled(&forge);
    let setting = GitTestSetting::of_registry(&forge.url("r"));
    let deep = |reference: &str, depth| GitSource { depth: Some(depth), ..forge.source("r", reference) };
    for (reference, found) in [("both", "both"), ("main", "main"), ("annotated", "tagged"), ("", "main")] {
        let fetched = setting.fetch(&deep(reference, 1)).await.unwrap();
        assert_eq!((content(&fetched).as_str(), &fetched.commit), (found, &ids[found]), "{reference}");
    }
    assert!(setting.fetch(&deep(&ids["first"], 1)).await.is_err());
    assert_eq!(content(&setting.fetch(&deep("both", 0)).await.unwrap()), "tagged");
}

#[tokio::test]
async fn a_tag_that_moved_names_another_commit() {
    let forge = Forge::new();
    let ids = tangled(&forge);
    let setting = GitTestSetting::of_registry(&forge.url("r"));
    let source = forge.source("r", "annotated");
    assert_eq!(setting.resolve(&source).await.unwrap().as_ref(), Some(&ids["tagged"]));
    git(&forge.folder.path().join("r"), &["tag", "-f", "-a", "-m", "y", "annotated", &ids["both"]]);
    assert_eq!(setting.resolve(&source).await.unwrap().as_ref(), Some(&ids["both"]));
    assert_eq!(setting.fetch(&source).await.unwrap().commit, ids["both"]);
}

#[tokio::test]
async fn an_absent_or_empty_repository_is_an_upstream_error() {
    let forge = Forge::new();
    forge.repository("empty");
    let setting = GitTestSetting::of_registry(&forge.url("empty"));
    for (name, message) in [("absent", "no such repository"), ("empty", "without a commit")] {
        let error = setting.fetch(&forge.source(name, "")).await.unwrap_err();
        let GitError::Upstream(error) = error else { panic!("{error}") };
        assert!(matches!(error.fault, crate::upstream::error::Fault::Unusable(_)), "{error}");
        assert!(error.to_string().contains(message), "{error}");
    }
}
