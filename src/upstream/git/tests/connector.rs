//! All traffic of git jobs goes through the connector, which checks every hop.

use std::sync::Arc;

use secrecy::SecretString;

use super::server::ServerBehaviour;
use super::*;
use crate::config::{Access, CredentialKind};
use crate::upstream::error::Fault;

fn simple(forge: &Forge) -> PathBuf {
    let r = forge.repository("r");
    write(&r, "main.tf", "x\n");
    commit(&r);
    r
}

fn redirect(to: impl std::fmt::Display) -> ServerBehaviour {
    ServerBehaviour::Say(format!(
        "HTTP/1.1 302 Found\r\nConnection: close\r\nContent-Length: 0\r\nLocation: {to}\r\n\r\n"
    ))
}

#[tokio::test]
async fn a_repository_that_has_moved_is_fetched_at_its_new_place() {
    let forge = Forge::new();
    simple(&forge);
    let port = forge.server.port;
    forge.server.set_behaviour(move |request| match request.target.strip_prefix("/old/") {
        Some(rest) => redirect(format!("http://127.0.0.1:{port}/r/{rest}")),
        None => ServerBehaviour::Nothing,
    });
    let setting = GitTestSetting::of_registry(&forge.url("r"));
    let fetched = setting.fetch(&forge.source("old", "main")).await.unwrap();
    assert!(listed(&fetched.tree).contains_key(&b"main.tf"[..]));
    let request = forge.server.requests();
    let posts: Vec<_> =
        request.iter().filter(|request| request.method == "POST").map(|request| request.target.as_str()).collect();
    assert_eq!(posts, ["/r/.git/git-upload-pack"; 2]);
    assert!(request.iter().all(|asked| asked.header("cdn-loop").is_some_and(|list| list.contains("larder;id="))));
}

/// DESIGN, promise 7, on every hop.
#[tokio::test]
async fn a_redirect_against_the_egress_policy_is_refused() {
    let forge = Forge::new();
    simple(&forge);
    let setting = GitTestSetting::of_registry(&forge.url("r"));
    let other = Forge::new();
    let places = ["https://127.0.0.1:1/".to_owned(), "https://10.1.2.3/".to_owned(), other.url("r").to_string()];
    for (place, line) in places.into_iter().zip(["\"127.0.0.1\"", "\"10.1.2.3\"", "\"http://127.0.0.1:"]) {
        forge.server.set_behaviour(move |request| redirect(format!("{place}{}", request.target)));
        let refused = setting.fetch(&forge.source("r", "main")).await.unwrap_err();
        let GitError::Upstream(error) = &refused else { panic!("{refused}") };
        assert!(matches!(error.fault, Fault::Refused(_)), "{error}");
        assert!(error.to_string().contains(line), "{error}");
    }
    assert_eq!(other.server.requests().len(), 0);
}

#[tokio::test]
async fn a_redirect_of_a_post_is_not_followed() {
    let forge = Forge::new();
    simple(&forge);
    forge.server.set_behaviour(|request| {
        if request.method == "POST" { redirect("/r/.git/git-upload-pack") } else { ServerBehaviour::Nothing }
    });
    let refused = GitTestSetting::of_registry(&forge.url("r")).fetch(&forge.source("r", "main")).await.unwrap_err();
    assert!(refused.to_string().contains("not sent twice"), "{refused}");
    assert_eq!(forge.server.requests().len(), 2);
}

/// DESIGN, promise 8: a credential is sent to its host, and to no other after a redirect.
#[tokio::test]
async fn a_credential_is_sent_to_its_host_only() {
    let (private, public) = (Forge::new(), Forge::new());
    simple(&private);
    simple(&public);
    let token = SecretString::from("s3cret");
    let host = Hostname::parse(&format!("127.0.0.1:{}", private.server.port)).unwrap();
    let access = Access::Http(CredentialKind::Bearer(token));
    let credential = Credential { host, upstreams: vec![super::host()], access };
    let mut setting = GitTestSetting::of_registry(&public.url("r"));
    setting.credentials = vec![credential];
    let port = private.server.port;
    setting.allow_private = vec![PrivateDestination::PlainHttp { host: "127.0.0.1".into(), port }];
    setting.fetch(&private.source("r", "main")).await.unwrap();
    let shown = |forge: &Forge| {
        forge.server.requests().iter().filter(|request| request.header("authorization").is_some()).count()
    };
    assert_eq!(shown(&private), private.server.requests().len());
    let elsewhere = public.url("r");
    private.server.set_behaviour(move |request| {
        let tail = request.target.split_once("/.git").map(|(_, tail)| tail.to_owned()).unwrap();
        redirect(format!("{elsewhere}{tail}"))
    });
    setting.fetch(&private.source("r", "main")).await.unwrap();
    assert_eq!((shown(&public), public.server.requests().len()), (0, 3));
    // The credential is not for the modules of another upstream.
    setting.credentials[0].upstreams = vec![Hostname::parse("other.example").unwrap()];
    private.server.set_behaviour(|_| ServerBehaviour::Nothing);
    let before = shown(&private);
    setting.fetch(&private.source("r", "main")).await.unwrap();
    assert_eq!(shown(&private), before);
}

#[tokio::test]
async fn an_http_error_of_a_forge_is_reported_as_such() {
    let forge = Forge::new();
    let setting = GitTestSetting::of_registry(&forge.url("r"));
    for (answer, message) in [
        ("401 Unauthorized", "refused larder's request"),
        ("500 Oops", "answered 500"),
        ("200 OK", "unusable"),
        ("400 Bad Request", "unusable: status 400"),
        ("405 Method Not Allowed", "unusable: status 405"),
        ("409 Conflict", "unusable: status 409"),
        ("422 Unprocessable Content", "unusable: status 422"),
    ] {
        forge.server.set_behaviour(move |_| {
            ServerBehaviour::Say(format!("HTTP/1.1 {answer}\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno"))
        });
        let error = setting.fetch(&forge.source("r", "main")).await.unwrap_err();
        assert!(error.to_string().contains(message), "{answer}: {error}");
        assert!(matches!(error, GitError::Upstream(_)), "{answer}: {error}");
    }
}

/// DESIGN, promise 12: sealed means sealed.
#[tokio::test]
async fn offline_nothing_is_asked_and_no_ssh_started() {
    let forge = Forge::new();
    simple(&forge);
    let mut setting = GitTestSetting::of_registry(&forge.url("r"));
    setting.network.offline = true;
    for url in [forge.url("r"), Url::parse("ssh://git@127.0.0.1/x").unwrap()] {
        let source = GitSource { url, reference: None, depth: None };
        let error = setting.fetch(&source).await.unwrap_err();
        assert!(error.to_string().contains("larder is offline"), "{error}");
    }
    assert_eq!(forge.server.requests().len(), 0);
}

/// A cancelled job ends and releases its permit.
#[tokio::test]
async fn a_cancelled_job_ends_and_releases_its_permit() {
    let forge = Forge::new();
    simple(&forge);
    let mut setting = GitTestSetting::of_registry(&forge.url("r"));
    setting.bounds.git_jobs.per_upstream = 1;
    setting.bounds.git_jobs.all = 1;
    let outbound = Arc::new(setting.outbound());
    let (started, heard) = std::sync::mpsc::channel();
    forge.server.set_behaviour(move |_| {
        let _ = started.send(());
        ServerBehaviour::Silence
    });
    let source = forge.source("r", "main");
    let waiting = {
        let (outbound, source) = (Arc::clone(&outbound), source.clone());
        let setting = GitTestSetting { bounds: setting.bounds, ..GitTestSetting::of_registry(&forge.url("r")) };
        tokio::spawn(async move { setting.fetch_with(&outbound, &source).await.map(|fetched| fetched.commit) })
    };
    tokio::task::spawn_blocking(move || heard.recv().unwrap()).await.unwrap();
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    forge.server.set_behaviour(|_| ServerBehaviour::Nothing);
    setting.fetch_with(&outbound, &source).await.unwrap();
}

/// DESIGN, promise 8: a secret that a server quotes is not shown.
#[tokio::test]
async fn a_text_that_quotes_a_credential_is_not_shown() {
    let forge = Forge::new();
    simple(&forge);
    let host = Hostname::parse(&format!("127.0.0.1:{}", forge.server.port)).unwrap();
    let access = Access::Http(CredentialKind::Bearer(SecretString::from("s3cret")));
    let mut setting = GitTestSetting::of_registry(&forge.url("r"));
    setting.credentials = vec![Credential { host, upstreams: vec![super::host()], access }];
    for text in ["ERR who is s3cret", "ERR who is there"] {
        let line = format!("{:04x}{text}", text.len() + 4);
        let head =
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/x-git-upload-pack-advertisement\r\n\r\n";
        let answer = format!("{head}001e# service=git-upload-pack\n0000{line}");
        forge.server.set_behaviour(move |_| ServerBehaviour::Say(answer.clone()));
        let error = setting.fetch(&forge.source("r", "main")).await.unwrap_err().to_string();
        assert!(!error.contains("s3cret"), "{error}");
        assert_eq!(error.contains("not shown"), text.contains("s3cret"), "{error}");
        assert_eq!(error.contains("who is there"), text.contains("there"), "{error}");
    }
}
