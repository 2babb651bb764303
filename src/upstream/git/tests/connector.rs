//! Tests that all traffic of git jobs goes through the outbound connector, which checks every hop.

use std::sync::Arc;

use secrecy::SecretString;

use super::server::ServerBehaviour;
use super::*;
use crate::config::{Access, CredentialKind};
use crate::upstream::error::Fault;

/// Makes the repository `r` with one commit.
fn make_repository(forge: &Forge) {
    let r = forge.repository("r");
    write(&r, "main.tf", "x\n");
    commit(&r);
}

/// A redirect to `target_url`.
fn redirect(target_url: impl std::fmt::Display) -> ServerBehaviour {
    ServerBehaviour::RawResponse(format!(
        "HTTP/1.1 302 Found\r\nConnection: close\r\nContent-Length: 0\r\nLocation: {target_url}\r\n\r\n"
    ))
}

#[tokio::test]
async fn a_repository_that_has_moved_is_fetched_at_its_new_url() {
    let forge = Forge::new();
    make_repository(&forge);
    let port = forge.server.port;
    forge.server.set_behaviour(move |request| match request.target.strip_prefix("/old/") {
        Some(path) => redirect(format!("http://127.0.0.1:{port}/r/{path}")),
        None => ServerBehaviour::Normal,
    });
    let config = GitTestConfig::for_registry(&forge.url("r"));
    let fetched = config.fetch(&forge.source("old", "main")).await.unwrap();
    assert!(tree_listing(&fetched.tree).contains_key(&b"main.tf"[..]));
    let requests = forge.server.requests();
    let posts: Vec<_> =
        requests.iter().filter(|request| request.method == "POST").map(|request| request.target.as_str()).collect();
    assert_eq!(posts, ["/r/.git/git-upload-pack"; 2]);
    assert!(requests.iter().all(|request| request.header("cdn-loop").is_some_and(|list| list.contains("larder;id="))));
}

/// The egress policy applies to every hop (DESIGN, promise 7).
#[tokio::test]
async fn a_redirect_against_the_egress_policy_is_refused() {
    let forge = Forge::new();
    make_repository(&forge);
    let config = GitTestConfig::for_registry(&forge.url("r"));
    let other_forge = Forge::new();
    let targets = ["https://127.0.0.1:1/".to_owned(), "https://10.1.2.3/".to_owned(), other_forge.url("r").to_string()];
    for (target, allow_entry) in targets.into_iter().zip(["\"127.0.0.1\"", "\"10.1.2.3\"", "\"http://127.0.0.1:"]) {
        forge.server.set_behaviour(move |request| redirect(format!("{target}{}", request.target)));
        let refused = config.fetch(&forge.source("r", "main")).await.unwrap_err();
        let GitError::Upstream(error) = &refused else { panic!("{refused}") };
        assert!(matches!(error.fault, Fault::Refused(_)), "{error}");
        assert!(error.to_string().contains(allow_entry), "{error}");
    }
    assert_eq!(other_forge.server.requests().len(), 0);
}

#[tokio::test]
async fn a_redirect_of_a_post_is_not_followed() {
    let forge = Forge::new();
    make_repository(&forge);
    forge.server.set_behaviour(|request| {
        if request.method == "POST" { redirect("/r/.git/git-upload-pack") } else { ServerBehaviour::Normal }
    });
    let refused = GitTestConfig::for_registry(&forge.url("r")).fetch(&forge.source("r", "main")).await.unwrap_err();
    assert!(refused.to_string().contains("not sent twice"), "{refused}");
    assert_eq!(forge.server.requests().len(), 2);
}

/// A credential is sent to its host, and not to another host after a redirect (DESIGN, promise 8).
#[tokio::test]
async fn a_credential_is_sent_to_its_host_only() {
    let (private, public) = (Forge::new(), Forge::new());
    make_repository(&private);
    make_repository(&public);
    let token = SecretString::from("s3cret");
    let host = Hostname::parse(&format!("127.0.0.1:{}", private.server.port)).unwrap();
    let access = Access::Http(CredentialKind::Bearer(token));
    let credential = Credential { host, upstreams: vec![super::host()], access };
    let mut config = GitTestConfig::for_registry(&public.url("r"));
    config.credentials = vec![credential];
    let port = private.server.port;
    config.allow_private = vec![PrivateDestination::PlainHttp { host: "127.0.0.1".into(), port }];
    config.fetch(&private.source("r", "main")).await.unwrap();
    let count_authorized = |forge: &Forge| {
        forge.server.requests().iter().filter(|request| request.header("authorization").is_some()).count()
    };
    assert_eq!(count_authorized(&private), private.server.requests().len());
    let public_url = public.url("r");
    private.server.set_behaviour(move |request| {
        let path = request.target.split_once("/.git").map(|(_, path)| path.to_owned()).unwrap();
        redirect(format!("{public_url}{path}"))
    });
    config.fetch(&private.source("r", "main")).await.unwrap();
    assert_eq!((count_authorized(&public), public.server.requests().len()), (0, 3));
    // The credential is not for the modules of another upstream.
    config.credentials[0].upstreams = vec![Hostname::parse("other.example").unwrap()];
    private.server.set_behaviour(|_| ServerBehaviour::Normal);
    let authorized_before = count_authorized(&private);
    config.fetch(&private.source("r", "main")).await.unwrap();
    assert_eq!(count_authorized(&private), authorized_before);
}

#[tokio::test]
async fn an_http_error_of_a_forge_is_reported_as_such() {
    let forge = Forge::new();
    let config = GitTestConfig::for_registry(&forge.url("r"));
    for (status, message) in [
        ("401 Unauthorized", "refused larder's request"),
        ("500 Oops", "answered 500"),
        ("200 OK", "unusable"),
        ("400 Bad Request", "unusable: status 400"),
        ("405 Method Not Allowed", "unusable: status 405"),
        ("409 Conflict", "unusable: status 409"),
        ("422 Unprocessable Content", "unusable: status 422"),
    ] {
        forge.server.set_behaviour(move |_| {
            ServerBehaviour::RawResponse(format!(
                "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno"
            ))
        });
        let error = config.fetch(&forge.source("r", "main")).await.unwrap_err();
        assert!(error.to_string().contains(message), "{status}: {error}");
        assert!(matches!(error, GitError::Upstream(_)), "{status}: {error}");
    }
}

/// Offline, nothing is sent (DESIGN, promise 12).
#[tokio::test]
async fn offline_no_request_is_sent_and_no_ssh_process_started() {
    let forge = Forge::new();
    make_repository(&forge);
    let mut config = GitTestConfig::for_registry(&forge.url("r"));
    config.network.offline = true;
    for url in [forge.url("r"), Url::parse("ssh://git@127.0.0.1/x").unwrap()] {
        let source = GitSource { url, reference: None, depth: None };
        let error = config.fetch(&source).await.unwrap_err();
        assert!(error.to_string().contains("larder is offline"), "{error}");
    }
    assert_eq!(forge.server.requests().len(), 0);
}

#[tokio::test]
async fn a_cancelled_job_ends_and_releases_its_permit() {
    let forge = Forge::new();
    make_repository(&forge);
    let mut config = GitTestConfig::for_registry(&forge.url("r"));
    config.upstream_limits.git_jobs.per_upstream = 1;
    config.upstream_limits.git_jobs.all = 1;
    let outbound = Arc::new(config.outbound());
    let (started_sender, started) = std::sync::mpsc::channel();
    forge.server.set_behaviour(move |_| {
        let _ = started_sender.send(());
        ServerBehaviour::NoAnswer
    });
    let source = forge.source("r", "main");
    let running_job = {
        let (outbound, source) = (Arc::clone(&outbound), source.clone());
        let config =
            GitTestConfig { upstream_limits: config.upstream_limits, ..GitTestConfig::for_registry(&forge.url("r")) };
        tokio::spawn(async move { config.fetch_with(&outbound, &source).await.map(|fetched| fetched.commit) })
    };
    tokio::task::spawn_blocking(move || started.recv().unwrap()).await.unwrap();
    running_job.abort();
    assert!(running_job.await.unwrap_err().is_cancelled());
    forge.server.set_behaviour(|_| ServerBehaviour::Normal);
    config.fetch_with(&outbound, &source).await.unwrap();
}

/// A secret that a server quotes is not shown (DESIGN, promise 8).
#[tokio::test]
async fn a_text_that_quotes_a_credential_is_not_shown() {
    let forge = Forge::new();
    make_repository(&forge);
    let host = Hostname::parse(&format!("127.0.0.1:{}", forge.server.port)).unwrap();
    let access = Access::Http(CredentialKind::Bearer(SecretString::from("s3cret")));
    let mut config = GitTestConfig::for_registry(&forge.url("r"));
    config.credentials = vec![Credential { host, upstreams: vec![super::host()], access }];
    for text in ["ERR who is s3cret", "ERR who is there"] {
        let packet_line = format!("{:04x}{text}", text.len() + 4);
        let head =
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/x-git-upload-pack-advertisement\r\n\r\n";
        let answer = format!("{head}001e# service=git-upload-pack\n0000{packet_line}");
        forge.server.set_behaviour(move |_| ServerBehaviour::RawResponse(answer.clone()));
        let error = config.fetch(&forge.source("r", "main")).await.unwrap_err().to_string();
        assert!(!error.contains("s3cret"), "{error}");
        assert_eq!(error.contains("not shown"), text.contains("s3cret"), "{error}");
        assert_eq!(error.contains("who is there"), text.contains("there"), "{error}");
    }
}
