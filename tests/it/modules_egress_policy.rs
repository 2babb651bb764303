//! Promise 7 for modules: the egress policy applies to the location of a module, and to each URL that a repository,
//! page or redirect names, over https and ssh. The configuration allows the servers of the fixture and no other private
//! address.

use crate::support::git::{Repository, Sshd};
use crate::support::git_module_fixture::{GitModuleFixture, ModuleCase, download_module_archive, download_path};
use crate::support::http::Answer;
use crate::support::larder::{HOST, Larder};
use crate::support::upstream::{FakeUpstream, Fault, LocationReply, Target};

/// The fixture, and servers of the same kind that the configuration does not allow.
struct EgressFixture {
    fixture: GitModuleFixture,
    private: FakeUpstream,
    private_ssh: Sshd,
    larder: Larder,
}

impl EgressFixture {
    /// The configuration allows the git server as `localhost`, and has a `[[credential]]` for the ssh server.
    /// `None` on a machine without git or sshd.
    async fn start() -> Option<Self> {
        let fixture = GitModuleFixture::start(None).await?;
        let private = FakeUpstream::builder().tls_with(&fixture.ca).start().await;
        private.host_git(&fixture.repositories.root());
        let private_ssh = Sshd::start(&fixture.repositories.root()).await?;
        let larder = Larder::mirroring(&fixture.registry).trusting(&fixture.ca).allow_private("localhost");
        let credential = format!(
            "[[credential]]\nhost = \"127.0.0.1:{}\"\nupstreams = [\"{HOST}\"]\nssh = {{ key = {:?}, known_hosts = {:?} }}",
            fixture.ssh.port(),
            fixture.ssh.key(),
            fixture.ssh.known_hosts()
        );
        let larder = larder.config_lines(&credential).start().await;
        Some(Self { fixture, private, private_ssh, larder })
    }

    /// The URL of a repository under the allowed host name.
    fn allowed(&self, repository: &str) -> String {
        format!("https://localhost:{}/{repository}.git", self.fixture.git.port())
    }

    /// Creates a repository with the tag v1.0.0. `acme/deep` is a repository of the fixture.
    fn repository(&self, name: &str, add_content: impl FnOnce(&Repository)) {
        let repository = self.fixture.repositories.repository(name);
        repository.file("main.tf", "");
        add_content(&repository);
        repository.commit("one");
        repository.tag("v1.0.0");
    }

    /// Publishes a module at this location and requests it.
    async fn publish_and_request(&self, name: &str, location: &str) -> Answer {
        self.fixture.publish(&ModuleCase {
            name: name.to_owned(),
            subdir_suffix: "",
            location: location.to_owned(),
            location_reply: LocationReply::NoContent,
            expected_tag: None,
        });
        self.larder.get(&download_path(name)).await
    }

    /// Asserts that the response is the refusal and that no connection was made to the private servers.
    fn assert_refused(&self, answer: Answer, reason: &str) {
        let text = answer.expect(502).text();
        assert!(text.contains(reason), "{text}");
        assert_eq!((self.private.connections(), self.private_ssh.commands()), (0, vec![]), "{text}");
        assert!(self.larder.folder.blobs().is_empty());
    }
}

/// Baseline: the configured hosts are fetched over both transports.
#[tokio::test]
async fn configured_git_hosts_are_fetched_over_https_and_ssh() {
    let Some(egress_fixture) = EgressFixture::start().await else { return };
    egress_fixture.repository("acme/plain", |_| {});
    let git_https_source = format!("git::{}?ref=v1.0.0", egress_fixture.allowed("acme/plain"));
    egress_fixture.publish_and_request("https", &git_https_source).await.expect(204);
    egress_fixture
        .publish_and_request("ssh", &format!("git::{}?ref=v1.0.0", egress_fixture.fixture.ssh.url("acme/plain")))
        .await
        .expect(204);
    assert!(
        download_module_archive(egress_fixture.larder.base(), "https").await
            == download_module_archive(egress_fixture.larder.base(), "ssh").await
    );
}

#[tokio::test]
async fn a_location_a_submodule_and_a_redirect_to_a_private_address_are_refused() {
    let Some(egress_fixture) = EgressFixture::start().await else { return };
    let private = format!("{}/acme/deep.git", egress_fixture.private.origin());
    egress_fixture.assert_refused(
        egress_fixture.publish_and_request("direct", &format!("git::{private}?ref=main")).await,
        "allow_private",
    );

    let commit = egress_fixture.fixture.repositories.head("acme/deep");
    egress_fixture.repository("acme/outer", |outer| {
        outer.submodule("private", &private, &commit);
    });
    let git_https_source = format!("git::{}?ref=v1.0.0", egress_fixture.allowed("acme/outer"));
    egress_fixture
        .assert_refused(egress_fixture.publish_and_request("submodule", &git_https_source).await, "allow_private");
    let over_ssh = format!("git::{}?ref=v1.0.0", egress_fixture.fixture.ssh.url("acme/outer"));
    egress_fixture
        .assert_refused(egress_fixture.publish_and_request("submodule-of-ssh", &over_ssh).await, "allow_private");

    egress_fixture.repository("acme/moved", |_| {});
    let elsewhere = format!("{}/acme/moved.git/info/refs?service=git-upload-pack", egress_fixture.private.origin());
    egress_fixture.fixture.git.fault(Target::Path("/acme/moved.git/".into()), Fault::RedirectTo(302, elsewhere));
    let redirected = format!("git::{}?ref=v1.0.0", egress_fixture.allowed("acme/moved"));
    egress_fixture.assert_refused(egress_fixture.publish_and_request("redirect", &redirected).await, "allow_private");
}

/// A key is offered to the hosts of its `[[credential]]` only; a host without a credential is not contacted.
#[tokio::test]
async fn an_ssh_host_that_no_credential_names_is_refused() {
    let Some(egress_fixture) = EgressFixture::start().await else { return };
    let private = egress_fixture.private_ssh.url("acme/deep");
    egress_fixture.assert_refused(
        egress_fixture.publish_and_request("direct", &format!("git::{private}?ref=main")).await,
        "[[credential]]",
    );

    let commit = egress_fixture.fixture.repositories.head("acme/deep");
    egress_fixture.repository("acme/outer", |outer| {
        outer.submodule("private", &private, &commit);
    });
    let git_https_source = format!("git::{}?ref=v1.0.0", egress_fixture.allowed("acme/outer"));
    egress_fixture
        .assert_refused(egress_fixture.publish_and_request("submodule", &git_https_source).await, "[[credential]]");
    let over_ssh = format!("git::{}?ref=v1.0.0", egress_fixture.fixture.ssh.url("acme/outer"));
    egress_fixture
        .assert_refused(egress_fixture.publish_and_request("submodule-of-ssh", &over_ssh).await, "[[credential]]");
}

/// As in git: a redirect of the first request is followed where the egress policy allows it, and the rest of the
/// conversation goes there.
#[tokio::test]
async fn a_redirect_of_the_first_git_request_to_an_allowed_host_is_followed() {
    let Some(egress_fixture) = EgressFixture::start().await else { return };
    egress_fixture.repository("acme/new-name", |_| {});
    let elsewhere = format!("{}/info/refs?service=git-upload-pack", egress_fixture.allowed("acme/new-name"));
    egress_fixture
        .fixture
        .git
        .fault(Target::Path("/acme/old-name.git/info/refs".into()), Fault::RedirectTo(301, elsewhere));
    let location = format!("git::{}?ref=v1.0.0", egress_fixture.allowed("acme/old-name"));
    egress_fixture.publish_and_request("renamed", &location).await.expect(204);
    assert_eq!(egress_fixture.fixture.git.git_fetches("acme/new-name"), 1);
}

/// Submodule URLs of other schemes are refused; git would run some of them as a shell command.
#[tokio::test]
async fn a_submodule_at_anything_but_https_and_ssh_is_refused() {
    let Some(egress_fixture) = EgressFixture::start().await else { return };
    let commit = egress_fixture.fixture.repositories.head("acme/deep");
    let root = egress_fixture.fixture.repositories.root();
    let local = format!("file://{}/acme/deep.git", root.display());
    for (number, url) in ["ext::sh -c true", "-oProxyCommand=true", local.as_str(), "git://127.0.0.1/acme/deep.git"]
        .into_iter()
        .enumerate()
    {
        let name = format!("acme/hostile{number}");
        egress_fixture.repository(&name, |outer| {
            outer.submodule("inner", url, &commit);
        });
        let answer = egress_fixture
            .publish_and_request(&format!("hostile{number}"), &format!("git::{}", egress_fixture.allowed(&name)))
            .await;
        egress_fixture.assert_refused(answer, "");
    }
}

/// Forges serve commits of forks and deleted branches by id; a checkout in a clone does not find them.
#[tokio::test]
async fn a_commit_that_no_branch_and_no_tag_contains_is_refused() {
    let Some(egress_fixture) = EgressFixture::start().await else { return };
    let repository = egress_fixture.fixture.repositories.repository("acme/forked");
    repository.file("main.tf", "").commit("one");
    let commit = repository.branch("fork").file("evil.tf", "").commit("evil");
    repository.switch("main").delete_branch("fork");
    let location = format!("git::{}?ref={commit}", egress_fixture.allowed("acme/forked"));
    egress_fixture.assert_refused(egress_fixture.publish_and_request("fork", &location).await, &commit[..7]);
}
