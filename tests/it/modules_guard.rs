//! Promise 7 for modules: the egress policy applies to URLs that a repository, page or redirect names as to the
//! location itself, over https and ssh. The configuration allows the servers of the fixture and no other private
//! address.

use crate::support::git::{Repository, Sshd};
use crate::support::git_module_fixture::{GitModuleFixture, ModuleCase, download_path, fetch};
use crate::support::http::Answer;
use crate::support::larder::{HOST, Larder};
use crate::support::upstream::{FakeUpstream, Fault, LocationReply, Target};

/// The fixture, and servers of the same kind that the configuration does not allow.
struct Guarded {
    scene: GitModuleFixture,
    private: FakeUpstream,
    private_ssh: Sshd,
    larder: Larder,
}

impl Guarded {
    /// The configuration allows the git server as `localhost`, and has a `[[credential]]` for the ssh server.
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
        let larder = larder.upstream_lines(&credential).start().await;
        Some(Self { scene: fixture, private, private_ssh, larder })
    }

    /// The URL of a repository under the allowed host name.
    fn allowed(&self, repository: &str) -> String {
        format!("https://localhost:{}/{repository}.git", self.scene.git.port())
    }

    /// Creates a repository with the tag v1.0.0.
    fn repository(&self, name: &str, fill: impl FnOnce(&Repository)) {
        let repository = self.scene.repositories.repository(name);
        repository.file("main.tf", "");
        fill(&repository);
        repository.commit("one");
        repository.tag("v1.0.0");
    }

    /// Publishes a module at this location and requests it.
    async fn request_once(&self, name: &str, location: &str) -> Answer {
        self.scene.publish(&ModuleCase {
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
    let Some(guarded) = Guarded::start().await else { return };
    guarded.repository("acme/plain", |_| {});
    let git_https_source = format!("git::{}?ref=v1.0.0", guarded.allowed("acme/plain"));
    guarded.request_once("https", &git_https_source).await.expect(204);
    guarded.request_once("ssh", &format!("git::{}?ref=v1.0.0", guarded.scene.ssh.url("acme/plain"))).await.expect(204);
    assert!(fetch(guarded.larder.base(), "https").await.1 == fetch(guarded.larder.base(), "ssh").await.1);
}

#[tokio::test]
async fn a_location_a_submodule_and_a_redirect_to_a_private_address_are_refused() {
    let Some(guarded) = Guarded::start().await else { return };
    let private = format!("{}/acme/deep.git", guarded.private.origin());
    guarded.assert_refused(guarded.request_once("direct", &format!("git::{private}?ref=main")).await, "allow_private");

    let commit = guarded.scene.repositories.head("acme/deep");
    guarded.repository("acme/outer", |outer| {
        outer.submodule("private", &private, &commit);
    });
    let git_https_source = format!("git::{}?ref=v1.0.0", guarded.allowed("acme/outer"));
    guarded.assert_refused(guarded.request_once("submodule", &git_https_source).await, "allow_private");
    let over_ssh = format!("git::{}?ref=v1.0.0", guarded.scene.ssh.url("acme/outer"));
    guarded.assert_refused(guarded.request_once("submodule-of-ssh", &over_ssh).await, "allow_private");

    guarded.repository("acme/moved", |_| {});
    let elsewhere = format!("{}/acme/moved.git/info/refs?service=git-upload-pack", guarded.private.origin());
    guarded.scene.git.fault(Target::Path("/acme/moved.git/".into()), Fault::RedirectTo(302, elsewhere));
    let redirected = format!("git::{}?ref=v1.0.0", guarded.allowed("acme/moved"));
    guarded.assert_refused(guarded.request_once("redirect", &redirected).await, "allow_private");
}

/// A key is offered to the hosts of its `[[credential]]` only; a host without a credential is not contacted.
#[tokio::test]
async fn an_ssh_host_that_no_credential_names_is_refused() {
    let Some(guarded) = Guarded::start().await else { return };
    let private = guarded.private_ssh.url("acme/deep");
    guarded.assert_refused(guarded.request_once("direct", &format!("git::{private}?ref=main")).await, "[[credential]]");

    let commit = guarded.scene.repositories.head("acme/deep");
    guarded.repository("acme/outer", |outer| {
        outer.submodule("private", &private, &commit);
    });
    let git_https_source = format!("git::{}?ref=v1.0.0", guarded.allowed("acme/outer"));
    guarded.assert_refused(guarded.request_once("submodule", &git_https_source).await, "[[credential]]");
    let over_ssh = format!("git::{}?ref=v1.0.0", guarded.scene.ssh.url("acme/outer"));
    guarded.assert_refused(guarded.request_once("submodule-of-ssh", &over_ssh).await, "[[credential]]");
}

/// As in git: a redirect of the first request is followed where the egress policy allows it, and the rest of the
/// conversation goes there.
#[tokio::test]
async fn a_redirect_of_the_first_git_request_to_an_allowed_host_is_followed() {
    let Some(guarded) = Guarded::start().await else { return };
    guarded.repository("acme/new-name", |_| {});
    let elsewhere = format!("{}/info/refs?service=git-upload-pack", guarded.allowed("acme/new-name"));
    guarded.scene.git.fault(Target::Path("/acme/old-name.git/info/refs".into()), Fault::RedirectTo(301, elsewhere));
    let location = format!("git::{}?ref=v1.0.0", guarded.allowed("acme/old-name"));
    guarded.request_once("renamed", &location).await.expect(204);
    assert_eq!(guarded.scene.git.git_fetches("acme/new-name"), 1);
}

/// Submodule URLs of other schemes are refused; git would run some of them as a shell command.
#[tokio::test]
async fn a_submodule_at_anything_but_https_and_ssh_is_refused() {
    let Some(guarded) = Guarded::start().await else { return };
    let commit = guarded.scene.repositories.head("acme/deep");
    let root = guarded.scene.repositories.root();
    let local = format!("file://{}/acme/deep.git", root.display());
    for (number, url) in ["ext::sh -c true", "-oProxyCommand=true", local.as_str(), "git://127.0.0.1/acme/deep.git"]
        .into_iter()
        .enumerate()
    {
        let name = format!("acme/hostile{number}");
        guarded.repository(&name, |outer| {
            outer.submodule("inner", url, &commit);
        });
        let answer =
            guarded.request_once(&format!("hostile{number}"), &format!("git::{}", guarded.allowed(&name))).await;
        guarded.assert_refused(answer, "");
    }
}

/// Forges serve commits of forks and deleted branches by id; a clone and a checkout do not.
#[tokio::test]
async fn a_commit_that_no_branch_and_no_tag_contains_is_refused() {
    let Some(guarded) = Guarded::start().await else { return };
    let repository = guarded.scene.repositories.repository("acme/forked");
    repository.file("main.tf", "").commit("one");
    let commit = repository.branch("fork").file("evil.tf", "").commit("evil");
    repository.switch("main").delete_branch("fork");
    let location = format!("git::{}?ref={commit}", guarded.allowed("acme/forked"));
    guarded.assert_refused(guarded.request_once("fork", &location).await, &commit[..7]);
}
