//! Clients that authenticate: the routes of registries need a token, archives a URL that an answer to a client named. What a
//! client may not use, it neither sees nor gets.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use larder::app::StartError;
use larder::clock::Clock;
use larder::digest::Digest;
use serde_json::Value;

use crate::support::ci_tokens::{Issuer, job_claims};
use crate::support::command_setup::json;
use crate::support::doctor_setup::{examine, registry, small_store_setup, write};
use crate::support::http::{Answer, get};
use crate::support::larder::{Builder, Folder, HOST, Larder};
use crate::support::module_fixture::{ModuleFixture, tar_gz};
use crate::support::process::Process;
use crate::support::run_setup::RunSetup;
use crate::support::terraform::{Terraform, Workspace, network_mirror};
use crate::support::tls::TestCa;
use crate::support::upstream::{FakeUpstream, Module, Provider};

const CI: &str = "the-token-of-the-pipelines";
const TEAM: &str = "the-token-of-the-net-team";

fn digest(token: &str) -> String {
    format!("{{ sha256 = \"{}\" }}", Digest::of(token.as_bytes()))
}

/// A client that may use everything, and a team that may use what is below acme/net and acme/null.
fn two_clients() -> String {
    format!(
        "[[client]]\nname = \"ci\"\ntoken = {}\n[[client]]\nname = \"net\"\ntoken = {}\nallow = [\"acme/net/*\", \"acme/null\"]\n",
        digest(CI),
        digest(TEAM)
    )
}

/// A registry with providers null and evil and the module net, and its larder.
struct Site {
    fixture: ModuleFixture,
    folder: Folder,
}

impl Site {
    async fn new() -> Self {
        let fixture = ModuleFixture::start().await;
        for name in ["null", "evil"] {
            fixture.registry.publish(Provider::new("acme", name).version("1.0.0").size(50_000));
        }
        for name in ["net", "bad"] {
            let url = fixture.file(&format!("{name}.tar.gz"), &tar_gz(&[("main.tf", b"# module\n")]));
            fixture.registry.publish_module(Module::new("acme", name, "test").version("1.0.0").at(&url));
        }
        Self { fixture, folder: Folder::new() }
    }

    fn larder(&self) -> Builder {
        self.fixture.larder_on(&self.folder).clock(&Clock::frozen()).config_lines(&two_clients())
    }
}

/// Requests a path with a token.
async fn with(larder: &Larder, token: &str, path: &str) -> Answer {
    larder.get_with(path, &[("authorization", &format!("Bearer {token}"))]).await
}

fn providers(rest: &str) -> String {
    format!("/registry/{HOST}/v1/providers/acme/{rest}")
}

fn modules(rest: &str) -> String {
    format!("/registry/{HOST}/v1/modules/acme/{rest}")
}

fn url(answer: &Answer, member: &str) -> String {
    answer.json()[member].as_str().unwrap().to_owned()
}

/// The path of a module's archive in the answer to its download.
fn location(answer: &Answer) -> String {
    answer.header("x-terraform-get").split('?').next().unwrap().to_owned()
}

/// Every route of a registry needs a token; probes and the page for browsers do not. A wrong token is as good as none, and
/// neither shows which registries are mirrored.
#[tokio::test]
async fn the_routes_of_registries_need_a_token() {
    let site = Site::new().await;
    let larder = site.larder().start().await;
    let document = with(&larder, CI, &providers("null/1.0.0/download/linux/amd64")).await.expect(200);
    let paths = [
        format!("/registry/{HOST}/.well-known/terraform.json"),
        providers("null/versions"),
        providers("null/1.0.0/download/linux/amd64"),
        providers("null"),
        modules("net/test/versions"),
        modules("net/test/1.0.0/download"),
        format!("/mirror/{HOST}/acme/null/index.json"),
        format!("/mirror/{HOST}/acme/null/1.0.0.json"),
        format!("/age/1d{}", providers("null/versions")),
    ];
    for path in &paths {
        for headers in [
            &[][..],
            &[("authorization", "Bearer wrong-wrong-wrong-wrong")],
            &[("authorization", &*format!("Basic {CI}"))],
            &[("authorization", &*format!("Bearer {CI}x"))],
        ] {
            let refused = larder.get_with(path, headers).await.expect(401);
            assert_eq!(refused.header("www-authenticate"), "Bearer realm=\"larder\"", "{path}");
            assert!(refused.text().contains("token"), "{path}: {}", refused.text());
        }
        let answer = with(&larder, CI, path).await;
        assert!(matches!(answer.status, 200 | 204 | 404), "{path}: {} {}", answer.status, answer.text());
        assert!(answer.status == 404 || answer.header("cache-control").contains("private"), "{path}");
    }
    // Without a token nobody learns which registries are mirrored, or which paths exist.
    for path in ["/registry/other.example/v1/providers/a/b/versions", "/v2/x", "/archive/x", "/nothing"] {
        larder.get(path).await.expect(401);
    }
    // An archive without a proof needs the token, too.
    let archive = url(&document, "download_url");
    let plain = format!("/archive/{}", archive.split_once("/archive/~").unwrap().1.split_once('/').unwrap().1);
    larder.get(&plain).await.expect(401);
    with(&larder, CI, &plain).await.expect(200);
    for path in ["/healthz", "/readyz"] {
        larder.get(path).await.expect(200);
    }
    let home = larder.get_with("/", &[("accept", "text/html")]).await.expect(200).text();
    assert!(home.contains("Its clients need a token") && !home.contains(HOST), "{home}");
    // A client's token goes nowhere.
    let requests = site.fixture.registry.requests();
    assert!(!requests.is_empty() && requests.iter().all(|request| request.header("authorization").is_none()));
}

/// Archive URLs are signed: they serve whoever has them, for their path, for one to two hours. Answers that name them are
/// made anew each hour.
#[tokio::test]
async fn archive_urls_count_for_their_path_and_their_time() {
    let site = Site::new().await;
    let larder = site.larder().start().await;
    let path = providers("null/1.0.0/download/linux/amd64");
    let document = with(&larder, CI, &path).await.expect(200);
    let files = ["download_url", "shasums_url", "shasums_signature_url"].map(|member| url(&document, member));
    let mirrored = with(&larder, CI, &format!("/mirror/{HOST}/acme/null/1.0.0.json")).await.expect(200).json();
    let mirrored = mirrored["archives"]["linux_amd64"]["url"].as_str().unwrap().to_owned();
    assert_eq!(mirrored, files[0], "clients of one class share URLs within an hour");
    let module = location(&with(&larder, CI, &modules("net/test/1.0.0/download")).await.expect(204));
    for file in files.iter().chain([&module]) {
        assert!(file.starts_with("/archive/~"), "{file}");
        larder.get(file).await.expect(200);
        larder.head(file).await.expect(200);
        assert!(larder.get(file).await.header("cache-control").contains("private"), "{file}");
        // Another path, another class, another proof.
        let (token, below) = file.strip_prefix("/archive/~").unwrap().split_once('/').unwrap();
        let other = with(&larder, TEAM, &path).await.expect(200);
        let other_token = url(&other, "download_url");
        let other_token = other_token.strip_prefix("/archive/~").unwrap().split_once('/').unwrap().0.to_owned();
        assert_ne!(token, other_token);
        for forged in [
            format!("/archive/~{token}/{}", below.replacen("acme/n", "acme/m", 1)),
            format!("/archive/~{other_token}/{}", below.replace("1.0.0", "1.0.1")),
            format!("/archive/~{}/{below}", token.to_uppercase()),
            format!("/archive/~{}/{below}", &token[..token.len() - 1]),
            format!("/archive/~/{below}"),
            format!("/archive/{below}"),
        ] {
            larder.get(&forged).await.expect(401);
        }
    }
    larder.clock.advance(Duration::from_secs(3600));
    larder.get(&files[0]).await.expect(200);
    let later = url(&with(&larder, CI, &path).await.expect(200), "download_url");
    assert_ne!(later, files[0], "a new hour has new URLs");
    larder.clock.advance(Duration::from_secs(3600));
    for file in files.iter().chain([&module]) {
        let expired = larder.get(file).await.expect(401).text();
        assert!(expired.contains("has expired"), "{expired}");
    }
    larder.get(&later).await.expect(200);
    with(&larder, CI, &files[0]).await.expect(200);
    let encoded = later.replace('~', "%7E");
    larder.get(&encoded).await.expect(200);
}

/// A client gets what its patterns name, and nothing else by any way; another client's answers in memory are not its own.
#[tokio::test]
async fn a_client_gets_only_what_it_may_use() {
    let site = Site::new().await;
    let larder = site.larder().start().await;
    let denied = [
        (providers("evil/versions"), 421),
        (providers("evil/1.0.0/download/linux/amd64"), 421),
        (modules("bad/test/versions"), 421),
        (modules("bad/test/1.0.0/download"), 421),
        (format!("/mirror/{HOST}/acme/evil/index.json"), 503),
        (format!("/mirror/{HOST}/acme/evil/1.0.0.json"), 503),
    ];
    for _ in 0..2 {
        for (path, status) in &denied {
            let answer = with(&larder, CI, path).await;
            assert!(matches!(answer.status, 200 | 204), "{path}: {}", answer.status);
            let refused = with(&larder, TEAM, path).await.expect(*status).text();
            assert!(refused.contains("it is not among the addresses that this client may use"), "{refused}");
        }
        with(&larder, TEAM, &providers("null/versions")).await.expect(200);
        with(&larder, TEAM, &modules("net/test/1.0.0/download")).await.expect(204);
    }
    // No request about what it may not use reaches the registry, by a view neither.
    site.fixture.registry.forget_requests();
    for path in [providers("secret/1.0.0/download/linux/amd64"), modules("secret/test/1.0.0/download")] {
        for view in ["", "/age/7d", "/as-of/2020-01-01"] {
            let refused = with(&larder, TEAM, &format!("{view}{path}")).await.expect(421).text();
            assert!(refused.contains("it is not among the addresses"), "{view}{path}: {refused}");
        }
    }
    assert!(site.fixture.registry.requests().is_empty(), "{:?}", site.fixture.registry.requests());
    // The archive with the team's own token, and by a URL that was made for another client.
    let of_ci = url(&with(&larder, CI, &denied[1].0).await, "download_url");
    let plain = format!("/archive/{}", of_ci.strip_prefix("/archive/~").unwrap().split_once('/').unwrap().1);
    with(&larder, TEAM, &plain).await.expect(403);
    with(&larder, TEAM, &of_ci).await.expect(200);
    // Its rights end with a reload, also for URLs that it has.
    let own = url(&with(&larder, TEAM, &providers("null/1.0.0/download/linux/amd64")).await, "download_url");
    larder.get(&own).await.expect(200);
    let without_team = format!("[[client]]\nname = \"ci\"\ntoken = {}\n", digest(CI));
    larder.reload(site.fixture.larder_on(&site.folder).config_lines(&without_team)).await.unwrap();
    let withdrawn = larder.get(&own).await.expect(401).text();
    assert!(withdrawn.contains("no client of this mirror has the rights"), "{withdrawn}");
    larder.get(&of_ci).await.expect(200);
    with(&larder, TEAM, &providers("null/versions")).await.expect(401);
}

/// Tokens rotate by a reload: for a while both count. A token counts only from its client's networks.
#[tokio::test]
async fn tokens_rotate_and_belong_to_networks() {
    let site = Site::new().await;
    let builder = |tokens: &str, networks: &str| {
        let lines = format!("[[client]]\nname = \"ci\"\ntoken = {tokens}\n{networks}\n");
        site.fixture.larder_on(&site.folder).config_lines(&lines)
    };
    let versions = providers("null/versions");
    let larder = builder(&digest("the-first-token-of-all"), "").start().await;
    for (tokens, first, second) in [
        (format!("[{}, {}]", digest("the-first-token-of-all"), digest("the-second-token-of-all")), 200, 200),
        (digest("the-second-token-of-all"), 401, 200),
    ] {
        larder.reload(builder(&tokens, "")).await.unwrap();
        with(&larder, "the-first-token-of-all", &versions).await.expect(first);
        with(&larder, "the-second-token-of-all", &versions).await.expect(second);
    }
    let second = digest("the-second-token-of-all");
    larder.reload(builder(&second, "networks = [\"192.0.2.0/24\"]")).await.unwrap();
    for (path, status) in [(versions.clone(), 421), (format!("/mirror/{HOST}/acme/null/index.json"), 503)] {
        let refused = with(&larder, "the-second-token-of-all", &path).await.expect(status).text();
        assert!(refused.contains("the token of client ci does not count from 127.0.0.1"), "{refused}");
    }
    larder.reload(builder(&second, "networks = [\"127.0.0.0/8\"]")).await.unwrap();
    with(&larder, "the-second-token-of-all", &versions).await.expect(200);
}

/// A client's token is in no log, no failure and no status, nor is the proof in an archive URL.
#[tokio::test]
async fn no_proof_reaches_what_others_read() {
    let site = Site::new().await;
    let larder = site.larder().start().await;
    let document = with(&larder, CI, &providers("null/1.0.0/download/linux/amd64")).await.expect(200);
    let archive = url(&document, "download_url");
    let token = archive.strip_prefix("/archive/~").unwrap().split_once('/').unwrap().0.to_owned();
    larder.get(&archive).await.expect(200);
    let absent = archive.replace("1.0.0", "1.0.9");
    larder.get(&absent).await.expect(401);
    let status = get(&format!("{}/admin/v1/status", larder.admin())).await.text();
    for secret in [CI, &token] {
        assert!(!status.contains(secret), "{status}");
    }
    assert!(!larder.folder.files("names").is_empty());
}

/// Sixty wrong tokens a minute are answered in full, further ones are only counted; right ones always pass.
#[tokio::test]
async fn many_wrong_tokens_do_not_keep_a_right_one_out() {
    let site = Site::new().await;
    let larder = site.larder().start().await;
    for _ in 0..80 {
        with(&larder, "a-guess-a-guess-a-guess", &providers("null/versions")).await.expect(401);
    }
    with(&larder, CI, &providers("null/versions")).await.expect(200);
    let metric = larder.metric("larder_refusals_total").await;
    assert_eq!(metric as u64, 80);
}

/// Tokens that would cross a network in plain text are refused at the start and by a reload, unless a proxy ends TLS.
#[tokio::test]
async fn tokens_need_tls_off_loopback() {
    let site = Site::new().await;
    let off_loopback =
        |more: &str| site.larder().store_at(&Folder::new()).server("listen = \"0.0.0.0:0\"").server(more);
    match off_loopback("").try_start().await {
        Err(StartError::Refused(text)) => assert!(text.contains("without TLS"), "{text}"),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("tokens are sent in plain text"),
    }
    let plain_url = site.larder().store_at(&Folder::new()).server("public_url = \"http://mirror.example/\"");
    assert!(matches!(plain_url.try_start().await, Err(StartError::Refused(text)) if text.contains("public_url")));
    let behind_proxy = off_loopback("trusted_proxies = [\"127.0.0.1\"]").start().await;
    let of_proxy = async |scheme: &str| {
        let token = format!("Bearer {CI}");
        let headers =
            [("authorization", &*token), ("x-forwarded-proto", scheme), ("x-forwarded-host", "mirror.example")];
        behind_proxy.get_with(&providers("null/versions"), &headers).await
    };
    of_proxy("https").await.expect(200);
    assert!(of_proxy("http").await.expect(421).text().contains("over https only"));
    off_loopback("").tls(&TestCa::new(), &["localhost"]).start().await;
}

/// Offline, tokens count as online.
#[tokio::test]
async fn tokens_count_offline() {
    let site = Site::new().await;
    let larder = site.larder().start().await;
    let path = providers("null/1.0.0/download/linux/amd64");
    larder.get(&url(&with(&larder, CI, &path).await, "download_url")).await.expect(200);
    larder.stop().await;
    let offline = site.larder().network("offline = true").start().await;
    larder_needs_token(&offline, &path).await;
    larder_needs_token(&offline, &providers("null/versions")).await;
    offline.get(&url(&with(&offline, TEAM, &path).await, "download_url")).await.expect(200);
}

async fn larder_needs_token(larder: &Larder, path: &str) {
    larder.get(path).await.expect(401);
    with(larder, TEAM, path).await.expect(200);
}

/// A workspace whose client has this token for a host.
fn workspace_with(client: &Terraform, config: &str, host: &str, token: Option<&str>) -> Workspace {
    let workspace = client.workspace();
    let credentials = token.map(|token| format!("credentials \"{host}\" {{\n  token = \"{token}\"\n}}\n"));
    workspace.cli_config(&format!("{config}{}", credentials.unwrap_or_default()));
    workspace
}

/// The real client sends its token by an override, by a mirror and to larder's own name, and installs with a complete proof.
#[tokio::test]
async fn the_real_client_installs_with_its_token_by_every_way_in() {
    let Some(client) = Terraform::find() else { return };
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null").size(10_000));
    let ca = TestCa::new();
    let clients = format!(
        "[[client]]\nname = \"ci\"\ntoken = [{}, {}]\n[[client]]\nname = \"far\"\ntoken = {}\nnetworks = [\"192.0.2.0/24\"]\n",
        digest(CI),
        digest("the-next-token-of-the-pipelines"),
        digest("the-token-of-somebody-far-away")
    );
    let plain = Larder::mirroring(&upstream).config_lines(&clients).start().await;
    let larder = Larder::mirroring(&upstream).config_lines(&clients);
    let larder = larder.server(&format!("default_upstream = \"{HOST}\"")).tls(&ca, &["localhost"]).start().await;
    let own = format!("localhost:{}", larder.address().port());
    let mirror = network_mirror(&format!("https://{own}/mirror/"));
    for (config, host, source) in [
        (plain.client_config(), HOST, format!("{HOST}/acme/null")),
        (&mirror, &own, format!("{HOST}/acme/null")),
        ("", &own, format!("{own}/acme/null")),
    ] {
        let install = async |token: Option<&str>| {
            let mut workspace = workspace_with(&client, config, host, token);
            workspace.trust(&ca.pem()).require(&source, "1.2.0");
            (workspace.init().await, workspace)
        };
        let (output, workspace) = install(Some(CI)).await;
        output.expect_success();
        // The network mirror protocol gives the client no hashes of other platforms.
        let hash = if config == mirror { "h1:" } else { "zh:" };
        assert!(workspace.lock_file().contains(hash), "{source}: {}", workspace.lock_file());
        // While tokens rotate, both count.
        install(Some("the-next-token-of-the-pipelines")).await.0.expect_success();
        let foreign = install(Some("the-token-of-somebody-far-away")).await.0.expect_failure().one_line();
        assert!(foreign.contains("the token of client far does not count from"), "{source}: {foreign}");
        for token in [None, Some("wrong-wrong-wrong-wrong")] {
            let text = install(token).await.0.expect_failure().one_line();
            let expected = ["requires authentication credentials", "rejected the given authentication credentials"];
            assert!(
                expected.iter().any(|text_of_client| text.contains(text_of_client)) || text.contains("401"),
                "{source}: {text}"
            );
        }
    }
}

/// The real client fetches a module with its token: the archive's URL carries the proof.
#[tokio::test]
async fn the_real_client_fetches_a_module_with_its_token() {
    let Some(client) = Terraform::find() else { return };
    let site = Site::new().await;
    let larder = site.larder().start().await;
    for (token, name, works) in
        [(Some(CI), "bad", true), (Some(TEAM), "net", true), (Some(TEAM), "bad", false), (None, "net", false)]
    {
        let mut workspace = workspace_with(&client, larder.client_config(), HOST, token);
        workspace.file("main.tf", &format!("module \"m\" {{\n  source = \"{HOST}/acme/{name}/test\"\n}}\n"));
        let output = workspace.init().await;
        if works {
            output.expect_success();
        } else {
            let text = output.expect_failure().one_line();
            let expected = if token.is_some() { "it is not among the addresses" } else { "401" };
            assert!(text.contains(expected), "{text}");
        }
    }
}

/// `larder token new` prints a token once, with the lines for both sides: pasted, they work, and `doctor` says so. It says what
/// is wrong where the client has no token, or an old one.
#[tokio::test]
async fn the_lines_of_a_new_token_work_on_both_sides() {
    let upstream = registry().await;
    let mut setup = small_store_setup(&upstream);
    let made = json(&setup.stdout_of(&["token", "new", "--name", "laptop", "--json"]).await);
    let [token, server, credentials] =
        ["token", "mirror_toml", "client_config"].map(|member| made[member].as_str().unwrap().to_owned());
    assert!(token.starts_with("larder_") && token.len() == 50, "{token}");
    assert!(server.contains("name = \"laptop\"") && !server.contains(&token), "{server}");
    let shown = setup.stdout_of(&["token", "new"]).await;
    assert!(shown.contains("TF_TOKEN_registry_terraform_io=larder_") && shown.contains("[[client]]"), "{shown}");
    let bad = setup.run(&["token", "new", "--name", "a b"]).await;
    assert_eq!(bad.code, Some(2), "{bad:?}");
    setup.text.push_str(&server);
    let _larder = setup.serve();
    let pasted = setup.stdout_of(&["client-config"]).await;
    assert!(pasted.contains(&format!("credentials \"{HOST}\" {{\n  token = \"TOKEN\"\n}}")), "{pasted}");
    let blocks = pasted.split_once("credentials").unwrap().0;
    write(&setup, ".terraformrc", blocks);
    let report = examine(&setup, &[]).await;
    report.assert_fails(&["client.token"], "asks for a token, and the client has none for registry.terraform.io");
    write(&setup, ".terraformrc", &format!("{blocks}{credentials}"));
    let report = examine(&setup, &[]).await;
    report.assert_healthy();
    assert!(report.finding("client.token").contains("knows the client's token"), "{report:#?}");
    let report = examine(&setup, &[("TF_TOKEN_registry_terraform_io", "an-old-token-an-old-token")]).await;
    report.assert_fails(&["client.token"], "refuses the client's token for registry.terraform.io");
}

/// `larder run` of larder's own user needs no token: it may do everything anyway.
#[tokio::test]
async fn a_run_of_the_own_user_needs_no_token() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let Some(setup) = RunSetup::with_terraform(&upstream) else { return };
    let config = format!("{}{}", setup.read("home/config/larder/mirror.toml"), two_clients());
    setup.write("home/config/larder/mirror.toml", &config);
    let served = format!("{config}[store]\npath = {:?}\n", setup.store());
    let serving = Process::serve(&served, &setup.path("home")).unwrap_or_else(|error| panic!("{error:?}"));
    setup.require(&[&format!("{HOST}/acme/null")]);
    setup.init(&[]).await;
    assert!(setup.read("work/.terraform.lock.hcl").contains("zh:"));
    drop(serving);
    // One that starts its own larder needs none either.
    setup.require(&[&format!("{HOST}/acme/null")]);
    setup.init(&[]).await;
}

const ISSUER: &str = "https://ci.example";

/// A job of a CI system authenticates with the token that the system signs for it. Only the claims, the audience, the issuer, the
/// key and the time that the configuration names will do.
#[tokio::test]
async fn a_job_authenticates_with_the_token_of_its_ci_system() {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "null"));
    let (issuer, of_rsa, folder) = (Issuer::new("one"), Issuer::rsa("rsa"), Folder::new());
    let keys = folder.path().join("ci.jwks");
    std::fs::write(&keys, Issuer::keys_of(&[&issuer, &of_rsa, &Issuer::new("more")])).unwrap();
    let lines = format!(
        "[[client]]\nname = \"elsewhere\"\nnetworks = [\"192.0.2.0/24\"]\nallow = [\"acme/other\"]\n\
         oidc = {{ issuer = \"{ISSUER}\", audience = \"larder\", claims = {{ repository = \"acme/app\" }}, jwks = {{ file = {keys:?} }} }}\n\
         [[client]]\nname = \"pipelines\"\nallow = [\"acme/null\"]\noidc = {{ issuer = \"{ISSUER}\", audience = \"larder\", \
         claims = {{ repository = \"acme/*\" }}, jwks = {{ file = {keys:?} }} }}\n[[client]]\nname = \"ci\"\ntoken = {}\n",
        digest(CI)
    );
    let builder = || Larder::mirroring(&upstream).store_at(&folder).config_lines(&lines);
    let larder = builder().clock(&Clock::frozen()).start().await;
    let (path, now) = (providers("null/1.2.0/download/linux/amd64"), larder.clock.now());
    let good = issuer.token(&job_claims(ISSUER, now));
    let document = with(&larder, &good, &path).await.expect(200);
    larder.get(&url(&document, "download_url")).await.expect(200);
    with(&larder, &good, &providers("evil/versions")).await.expect(421);
    with(&larder, CI, &path).await.expect(200);
    with(&larder, &of_rsa.token(&job_claims(ISSUER, now)), &path).await.expect(200);
    let changed = |name: &str, value: Value| {
        let mut claims = job_claims(ISSUER, now);
        claims[name] = value;
        claims
    };
    let without = |name: &str| {
        let mut claims = job_claims(ISSUER, now);
        claims.as_object_mut().unwrap().remove(name);
        issuer.token(&claims)
    };
    let hmac = {
        let header = Header { kid: Some("one".to_owned()), ..Header::new(Algorithm::HS256) };
        encode(&header, &job_claims(ISSUER, now), &EncodingKey::from_secret(issuer.keys().as_bytes())).unwrap()
    };
    let nameless = encode(&Header::new(Algorithm::ES256), &job_claims(ISSUER, now), &issuer.key).unwrap();
    let by_method = |name: &str| {
        let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
        format!("{}.{}.AAAA", part(serde_json::json!({ "alg": name, "kid": "one" })), part(job_claims(ISSUER, now)))
    };
    let mut altered = good.clone().into_bytes();
    let middle = good.find('.').unwrap() + 20;
    altered[middle] = if altered[middle] == b'A' { b'B' } else { b'A' };
    for (token, reason) in [
        (issuer.token(&changed("repository", "evil/app".into())), "its claim repository is not"),
        (issuer.token(&changed("repository", Value::Null)), "its claim repository is not"),
        (issuer.token(&changed("aud", "other".into())), "it is not for the audience larder"),
        (issuer.token(&changed("exp", (now.0 - 61).into())), "it expired at"),
        (issuer.token(&changed("nbf", (now.0 + 61).into())), "it counts from"),
        (issuer.token(&changed("exp", "soon".into())), "a claim of it has another form"),
        (without("exp"), "it has no claim exp"),
        (without("aud"), "it is not for the audience larder"),
        (issuer.token(&changed("iss", "https://other.example".into())), "does not know the token"),
        (Issuer::new("one").token(&job_claims(ISSUER, now)), "no key of the issuer signed it"),
        (Issuer::new("two").token(&job_claims(ISSUER, now)), "the issuer has no key two"),
        (String::from_utf8(altered).unwrap(), "does not know the token"),
        (hmac, "signed by a method that is not taken"),
        (by_method("none"), "signed by a method that is not taken"),
        (by_method("ES512"), "signed by a method that is not taken"),
        (nameless, "it names none of the issuer's keys"),
        (Issuer::new(&"k".repeat(99)).token(&job_claims(ISSUER, now)), &format!("no key {}\"", "k".repeat(64))),
    ] {
        let refused = with(&larder, &token, &path).await.expect(401).text();
        assert!(refused.contains(reason), "{reason}: {refused}");
    }
    // A list of audiences, and times within the skew of clocks.
    let mut skewed = changed("aud", serde_json::json!(["other", "larder"]));
    (skewed["exp"], skewed["nbf"]) = ((now.0 - 59).into(), (now.0 + 59).into());
    with(&larder, &issuer.token(&skewed), &path).await.expect(200);
    // A token counts until its end, and no longer, from memory neither.
    larder.clock.advance(Duration::from_secs(360));
    with(&larder, &good, &path).await.expect(200);
    larder.clock.advance(Duration::from_secs(1));
    with(&larder, &good, &path).await.expect(401);
    // The issuer has new keys: after a reload those count, and the old ones do not.
    let (next, now) = (Issuer::new("two"), larder.clock.now());
    std::fs::write(&keys, next.keys()).unwrap();
    let fresh = issuer.token(&job_claims(ISSUER, now));
    with(&larder, &fresh, &path).await.expect(200);
    larder.reload(builder()).await.unwrap();
    with(&larder, &fresh, &path).await.expect(401);
    with(&larder, &next.token(&job_claims(ISSUER, now)), &path).await.expect(200);
    // Offline the stored keys count.
    let clock = larder.clock.clone();
    larder.stop().await;
    let offline = builder().network("offline = true").clock(&clock).start().await;
    with(&offline, &next.token(&job_claims(ISSUER, now)), &path).await.expect(200);
}
