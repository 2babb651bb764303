//! Issuers that larder asks for their keys: `[[client]] oidc` without `jwks`. The issuer may be slow to change its keys, sent
//! elsewhere, or gone.

use std::time::Duration;

use http::{Response, StatusCode};
use larder::clock::{Clock, Timestamp};
use larder::digest::Digest;

use crate::support::ci_tokens::{Issuer, job_claims};
use crate::support::doctor_setup::{examine, small_store_setup};
use crate::support::http::Answer;
use crate::support::larder::{Builder, Folder, HOST, Larder};
use crate::support::markdown::blocks;
use crate::support::until;
use crate::support::upstream::{FakeUpstream, Provider, Target};

const CONFIGURATION: &str = "/tenant/.well-known/openid-configuration";
const KEYS: &str = "/tenant/keys";

fn discovery() -> String {
    format!("/registry/{HOST}/.well-known/terraform.json")
}

/// A registry, and an issuer at `https://localhost:PORT/tenant` whose certificate is by an authority of its own.
struct Site {
    registry: FakeUpstream,
    ci: FakeUpstream,
    folder: Folder,
}

impl Site {
    async fn new(keys: &Issuer) -> Self {
        let site = Self {
            registry: FakeUpstream::start().await,
            ci: FakeUpstream::builder().tls().start().await,
            folder: Folder::new(),
        };
        std::fs::write(site.folder.path().join("ca.pem"), site.ci.ca().pem()).unwrap();
        site.ci.serve_json(CONFIGURATION, &site.configuration(&site.name(), &format!("{}/keys", site.name())));
        site.ci.serve_json(KEYS, &keys.keys());
        site
    }

    /// The issuer as its tokens name it.
    fn name(&self) -> String {
        format!("https://localhost:{}/tenant", self.ci.port())
    }

    fn configuration(&self, issuer: &str, keys: &str) -> String {
        serde_json::json!({ "issuer": issuer, "jwks_uri": keys, "response_types_supported": ["id_token"] }).to_string()
    }

    /// A larder that asks the issuer. `rest` is the rest of the table.
    fn larder_with(&self, rest: &str) -> Builder {
        Larder::mirroring(&self.registry).store_at(&self.folder).config_lines(&self.client(rest))
    }

    fn client(&self, rest: &str) -> String {
        format!(
            "[[client]]\nname = \"pipelines\"\noidc = {{ issuer = \"{}\", audience = \"larder\", claims = {{ repository = \"acme/*\" }}{rest} }}\n",
            self.name()
        )
    }

    fn larder(&self) -> Builder {
        let ca = self.folder.path().join("ca.pem");
        self.larder_with(&format!(", ca = {ca:?}")).clock(&Clock::frozen())
    }

    /// The requests for the configuration, and for the keys.
    fn asked(&self) -> (usize, usize) {
        (self.ci.count(CONFIGURATION), self.ci.count(KEYS))
    }

    /// Requests what a client asks for first, with the token of a job.
    async fn ask(&self, larder: &Larder, issuer: &Issuer, job: &str) -> Answer {
        let mut claims = job_claims(&self.name(), larder.clock.now());
        claims["jti"] = job.into();
        let token = issuer.token(&claims);
        larder.get_with(&discovery(), &[("authorization", &format!("Bearer {token}"))]).await
    }
}

/// The issuer is asked once for its keys, by the certificate that `ca` names, and all jobs of an hour use what it said. It learns
/// nothing about them.
#[tokio::test]
async fn an_issuer_is_asked_once_for_its_keys() {
    let key = Issuer::new("one");
    let site = Site::new(&key).await;
    let larder = site.larder().start().await;
    let jobs = ["a", "b", "c", "d"];
    let answers = futures_util::future::join_all(jobs.map(|job| site.ask(&larder, &key, job))).await;
    assert!(answers.iter().all(|answer| answer.status == 200), "{:?}", answers[0].text());
    assert_eq!(site.asked(), (1, 1));
    for request in site.ci.requests() {
        assert!(request.header("authorization").is_none());
    }
    larder.clock.advance(Duration::from_secs(3599));
    site.ask(&larder, &key, "e").await.expect(200);
    assert_eq!(site.asked(), (1, 1));
    larder.clock.advance(Duration::from_secs(1));
    site.ask(&larder, &key, "f").await.expect(200);
    assert_eq!(site.asked(), (2, 2));
    // A start and a reload ask, so that an operator can end a key that the issuer has withdrawn.
    let clock = larder.clock.clone();
    larder.stop().await;
    let larder = site.larder().clock(&clock).start().await;
    for job in ["g", "h"] {
        site.ask(&larder, &key, job).await.expect(200);
        assert_eq!(site.asked(), (3, 3));
    }
    larder.reload(site.larder()).await.unwrap();
    for job in ["i", "j"] {
        site.ask(&larder, &key, job).await.expect(200);
        assert_eq!(site.asked(), (4, 4));
    }
}

/// A job of the minute after a change of keys has a key that larder has not seen: the issuer is asked again at once. Tokens of keys
/// that nobody has cause one request a minute, and the old key ends with the issuer's next answer.
#[tokio::test]
async fn a_new_key_counts_at_once() {
    let (one, two, nobody) = (Issuer::new("one"), Issuer::new("two"), Issuer::new("nobody"));
    let site = Site::new(&one).await;
    let larder = site.larder().start().await;
    site.ask(&larder, &one, "a").await.expect(200);
    site.ci.serve_json(KEYS, &two.keys());
    site.ask(&larder, &two, "b").await.expect(200);
    assert_eq!(site.asked(), (2, 2));
    let refused = site.ask(&larder, &one, "c").await.expect(401).text();
    assert!(refused.contains("the issuer has no key one"), "{refused}");
    for job in ["d", "e", "f"] {
        site.ask(&larder, &nobody, job).await.expect(401);
    }
    // It may have made a key since: larder cannot know, and says so.
    larder.clock.advance(Duration::from_secs(10));
    let unjudged = site.ask(&larder, &nobody, "later").await.expect(503).text();
    assert!(unjudged.contains("it had no key nobody when it was asked a moment ago"), "{unjudged}");
    assert_eq!(site.asked(), (2, 2));
    larder.clock.advance(Duration::from_secs(50));
    let answers = ["g", "h", "i"].map(|job| site.ask(&larder, &nobody, job));
    assert!(futures_util::future::join_all(answers).await.iter().all(|answer| answer.status == 401));
    assert_eq!(site.asked(), (3, 3));
    // The issuer names its new key as it named the old one.
    let again = Issuer::new("two");
    site.ci.serve_json(KEYS, &again.keys());
    larder.clock.advance(Duration::from_secs(60));
    site.ask(&larder, &again, "j").await.expect(200);
    site.ask(&larder, &two, "k").await.expect(401);
}

/// Anybody can send tokens with unknown keys, and leave at once: the issuer is asked once all the same.
#[tokio::test]
async fn clients_that_leave_do_not_have_the_issuer_asked_again() {
    let (one, nobody) = (Issuer::new("one"), Issuer::new("nobody"));
    let site = Site::new(&one).await;
    let larder = site.larder().start().await;
    site.ask(&larder, &one, "a").await.expect(200);
    let gate = site.ci.hold_headers(Target::Path(KEYS.to_owned()));
    tokio::select! {
        answer = site.ask(&larder, &nobody, "b") => panic!("{}", answer.status),
        () = until("the issuer is asked", async || site.asked() == (2, 2)) => {}
    }
    gate.open();
    for job in ["c", "d", "e"] {
        site.ask(&larder, &nobody, job).await.expect(401);
    }
    assert_eq!(site.asked(), (2, 2));
}

/// A token that counted is verified again after five minutes, with the keys of then.
#[tokio::test]
async fn a_withdrawn_key_ends_with_the_issuers_next_answer() {
    let (one, two) = (Issuer::new("one"), Issuer::new("two"));
    let site = Site::new(&one).await;
    let larder = site.larder().start().await;
    let mut claims = job_claims(&site.name(), larder.clock.now());
    claims["exp"] = (larder.clock.now().0 + 7200).into();
    let (token, path) = (one.token(&claims), discovery());
    let headers = [("authorization", &*format!("Bearer {token}"))];
    larder.get_with(&path, &headers).await.expect(200);
    site.ci.serve_json(KEYS, &two.keys());
    larder.get_with(&path, &headers).await.expect(200);
    larder.clock.advance(Duration::from_secs(3600));
    larder.get_with(&path, &headers).await.expect(401);
}

/// While the issuer is gone, and offline at any age, the keys that are stored count. A key that is not among them cannot be judged:
/// that is a failure with its cause, and not a wrong token.
#[tokio::test]
async fn stored_keys_count_while_the_issuer_is_gone() {
    let (one, two) = (Issuer::new("one"), Issuer::new("two"));
    let mut site = Site::new(&one).await;
    let larder = site.larder().start().await;
    site.ask(&larder, &one, "a").await.expect(200);
    site.ci.stop().await;
    larder.clock.advance(Duration::from_secs(2 * 3600));
    site.ask(&larder, &one, "b").await.expect(200);
    let unjudged = site.ask(&larder, &two, "c").await;
    assert_eq!(unjudged.status, 502, "{}", unjudged.text());
    assert!(unjudged.text().contains("the keys of its issuer https://localhost"), "{}", unjudged.text());
    assert!(unjudged.text().contains("connection refused"), "{}", unjudged.text());
    let (clock, year) = (larder.clock.clone(), Duration::from_secs(365 * 24 * 3600));
    larder.stop().await;
    clock.advance(year);
    let offline = site.larder().network("offline = true").clock(&clock).start().await;
    site.ask(&offline, &one, "d").await.expect(200);
    let unjudged = site.ask(&offline, &two, "e").await.expect(503).text();
    assert!(unjudged.contains("offline"), "{unjudged}");
}

/// No token can be judged while nothing is stored and the issuer gives no keys. The cause is told, the issuer is not asked for each
/// token, and tokens count as soon as it answers.
#[tokio::test]
async fn an_issuer_that_gives_no_keys_is_named_with_the_cause() {
    let key = Issuer::new("one");
    let site = Site::new(&key).await;
    let (good, keys_url) =
        (site.configuration(&site.name(), &format!("{}/keys", site.name())), format!("{}/keys", site.name()));
    let elsewhere = format!("https://127.0.0.1:{}/tenant/keys", site.ci.port());
    for (configuration, reason) in [
        ("{".to_owned(), "is not JSON with an issuer and a jwks_uri"),
        ("{\"issuer\": \"x\"}".to_owned(), "is not JSON with an issuer and a jwks_uri"),
        (site.configuration("https://evil.example", &keys_url), "is that of another issuer, https://evil.example"),
        (site.configuration(&format!("{}/", site.name()), &keys_url), "is that of another issuer"),
        (site.configuration(&site.name(), &elsewhere), "allow_private"),
        (site.configuration(&site.name(), &keys_url.replace("https", "http")), "keys count over https only"),
        (site.configuration(&site.name(), &keys_url.replace("keys", "none")), "it has no keys (404)"),
        (site.configuration(&site.name(), &keys_url.replace("keys", "empty")), "it has no public key for signatures"),
    ] {
        let folder = Folder::new();
        site.ci.serve_json(CONFIGURATION, &configuration);
        site.ci.serve_json("/tenant/empty", "{\"keys\": []}");
        // Permission for plain http is for packages, whose signatures are checked.
        let plain = format!("http://localhost:{}", site.ci.port());
        let larder = site.larder().store_at(&folder).allow_private(&plain).start().await;
        let refused = site.ask(&larder, &key, "a").await;
        assert_eq!(refused.status, 502, "{reason}: {}", refused.text());
        assert!(refused.text().contains(reason), "{reason}: {}", refused.text());
        let asked = site.asked();
        site.ask(&larder, &key, "b").await.expect(502);
        assert_eq!(site.asked(), asked);
        site.ci.serve_json(CONFIGURATION, &good);
        larder.clock.advance(Duration::from_secs(10));
        site.ask(&larder, &key, "c").await.expect(200);
    }
    // A certificate that nobody here trusts, and a configuration that is not there.
    let untrusting = site.larder_with("").store_at(&Folder::new()).clock(&Clock::frozen()).start().await;
    let refused = site.ask(&untrusting, &key, "a").await.expect(502).text();
    assert!(refused.contains("certificate"), "{refused}");
    site.ci.stop_serving(CONFIGURATION);
    let larder = site.larder().store_at(&Folder::new()).start().await;
    let refused = site.ask(&larder, &key, "a").await.expect(502).text();
    assert!(refused.contains("it has no OpenID configuration (404)"), "{refused}");
}

/// Tokens that cannot be judged are not a way to fill the audit trail: beyond sixty a minute they have no line.
#[tokio::test]
async fn tokens_that_cannot_be_judged_do_not_fill_the_audit_trail() {
    let (key, nobody) = (Issuer::new("one"), Issuer::new("nobody"));
    let site = Site::new(&key).await;
    let file = site.folder.path().join("audit.jsonl");
    let larder = site.larder().config_lines(&format!("[audit]\npath = {file:?}\n")).start().await;
    site.ask(&larder, &key, "a").await.expect(200);
    site.ask(&larder, &nobody, "b").await.expect(401);
    larder.clock.advance(Duration::from_secs(10));
    for job in 0..80 {
        site.ask(&larder, &nobody, &format!("c{job}")).await.expect(503);
    }
    site.ask(&larder, &key, "d").await.expect(200);
    larder.stop().await;
    let lines = std::fs::read_to_string(file).unwrap();
    assert_eq!(lines.lines().count(), 62, "{lines}");
    assert!(lines.lines().last().unwrap().contains("\"job\":\"d\""), "{lines}");
}

/// The doctor asks the issuer as larder does, and says what to change where it gives no keys.
#[tokio::test]
async fn the_doctor_asks_the_issuer() {
    let key = Issuer::new("one");
    let site = Site::new(&key).await;
    let mut setup = small_store_setup(&site.registry);
    let ca = site.folder.path().join("ca.pem");
    let text = setup.text.clone();
    setup.text.push_str(&site.client(&format!(", ca = {ca:?}")));
    let _larder = setup.serve();
    let report = examine(&setup, &[]).await;
    assert!(report.finding_of("issuer.keys", &site.name()).starts_with("1 key, in "), "{report:#?}");
    site.ci.serve_json(KEYS, "{\"keys\": []}");
    let report = examine(&setup, &[]).await;
    assert!(report.ids("fail").contains(&"issuer.keys"), "{report:#?}");
    assert!(report.finding("issuer.keys").contains("it has no public key for signatures"), "{report:#?}");
    setup.text = text + &site.client("");
    let report = examine(&setup, &[]).await;
    assert!(report.advice("issuer.keys").contains("oidc.ca"), "{report:#?}");
}

/// The third worked example of docs/access.md: each team has its token, the jobs have those of their CI system, and all have the
/// rights that the page says.
#[tokio::test]
async fn the_teams_and_jobs_of_the_documentation_have_their_rights() {
    const PLATFORM: &str = "the-token-of-the-platform-team";
    const PAYMENTS: &str = "the-token-of-the-payments-team";
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/access.md")).unwrap();
    let example = blocks(&page).into_iter().filter(|block| block.language == "toml").nth(2).unwrap().text;
    let mut digests = example.split("sha256 = \"").skip(1).map(|rest| rest.split('"').next().unwrap());
    let (platform, payments) = (digests.next().unwrap(), digests.next().unwrap());
    let key = Issuer::new("one");
    let site = Site::new(&key).await;
    let ca = site.folder.path().join("ca.pem");
    let lines = example
        .replace(platform, &Digest::of(PLATFORM.as_bytes()).to_string())
        .replace(payments, &Digest::of(PAYMENTS.as_bytes()).to_string())
        .replace("10.20.0.0/16", "127.0.0.0/8")
        .replace("https://token.actions.githubusercontent.com", &site.name())
        .replace("\"acme/*\" } }", &format!("\"acme/*\" }}, ca = {ca:?} }}"));
    for namespace in ["hashicorp", "acme"] {
        site.registry.publish(Provider::new(namespace, "anything"));
    }
    let larder = Larder::mirroring(&site.registry).config_lines(&lines).start().await;
    let ask = async |token: &str, namespace: &str| {
        let path = format!("/registry/{HOST}/v1/providers/{namespace}/anything/versions");
        larder.get_with(&path, &[("authorization", &format!("Bearer {token}"))]).await
    };
    ask("nobody-nobody-nobody-nobody", "hashicorp").await.expect(401);
    let job = key.token(&job_claims(&site.name(), larder.clock.now()));
    for namespace in ["hashicorp", "acme"] {
        ask(PLATFORM, namespace).await.expect(200);
        ask(&job, namespace).await.expect(200);
    }
    ask(PAYMENTS, "hashicorp").await.expect(200);
    let refused = ask(PAYMENTS, "acme").await.expect(421).text();
    assert!(refused.contains("it is not among the addresses that this client may use"), "{refused}");
    let text = page.split_once("## Teams with tokens").unwrap().1;
    assert!(text.contains("it is not among the addresses that this client may use"), "the page says it otherwise");
}

/// An answer of the issuer without keys changes nothing that is stored.
#[tokio::test]
async fn a_bad_answer_of_the_issuer_leaves_the_stored_keys() {
    let key = Issuer::new("one");
    let site = Site::new(&key).await;
    let larder = site.larder().start().await;
    site.ask(&larder, &key, "a").await.expect(200);
    let answer = |status: u16, body: &str| {
        Response::builder().status(StatusCode::from_u16(status).unwrap()).body(body.to_owned()).unwrap()
    };
    let huge = format!("{{\"keys\": [{}]}}", " ".repeat(1 << 20));
    let answers =
        [(404, "gone"), (500, "trouble"), (200, "<html>sign in</html>"), (200, "{\"keys\": []}"), (200, &huge)];
    for (number, (status, body)) in answers.into_iter().enumerate() {
        for path in [KEYS, CONFIGURATION] {
            site.ci.serve(path, answer(status, body));
            larder.clock.advance(Duration::from_secs(3600));
            site.ask(&larder, &key, &format!("{number}{path}")).await.expect(200);
        }
    }
    let requests = site.ci.requests().len();
    assert!(requests > 4, "it was asked: {requests}");
}

/// Only the issuers of the configuration are asked, by their exact names.
#[tokio::test]
async fn tokens_of_other_issuers_ask_nobody() {
    let (key, stranger) = (Issuer::new("one"), Issuer::new("stranger"));
    let site = Site::new(&key).await;
    let larder = site.larder().start().await;
    for issuer in [format!("{}/", site.name()), site.name().replace("tenant", "other"), "https://ci.example".to_owned()]
    {
        let token = stranger.token(&job_claims(&issuer, Timestamp(larder.clock.now().0)));
        larder.get_with(&discovery(), &[("authorization", &format!("Bearer {token}"))]).await.expect(401);
    }
    assert_eq!(site.asked(), (0, 0));
}
