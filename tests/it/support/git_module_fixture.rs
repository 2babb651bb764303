//! The scene of the module tests: a registry, an archive host, a git server over https and one over ssh, where it can
//! be with the names of public forges, and one repository that has everything a module may have.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::git::forge::NAMES;
use super::git::{Format, Repositories, Repository, Sshd, pack};
use super::http::{Answer, get};
use super::larder::{Builder, HOST, Larder};
use super::terraform::{Terraform, Workspace, host_override};
use super::tls::TestCa;
use super::upstream::{FakeUpstream, Module, Telling, sha256_hex};

/// Everything, running.
pub(crate) struct ModuleScene {
    pub(crate) ca: TestCa,
    pub(crate) registry: FakeUpstream,
    pub(crate) archives: FakeUpstream,
    pub(crate) git: FakeUpstream,
    pub(crate) ssh: Sshd,
    /// 443 and 22 of the address that the names of forges lead to.
    pub(crate) forges: Option<(FakeUpstream, Sshd)>,
    pub(crate) repositories: Repositories,
    /// acme/net: tags v1.0.0 and (annotated) v1.1.0, branches main and stable, `both` as a branch and a tag.
    pub(crate) net: Repository,
    folder: TempDir,
}

/// One module: its published files, and its call in a configuration.
#[derive(Clone, Debug)]
pub(crate) struct Form {
    /// Its name in the registry, and in the configuration.
    pub(crate) name: String,
    /// The text after `acme/NAME/test` in the configuration: `//modules/x`, or nothing.
    pub(crate) called: &'static str,
    pub(crate) location: String,
    pub(crate) telling: Telling,
    /// The tag of acme/net whose content it must have; for forms that the client itself does not install.
    pub(crate) instead_of_direct: Option<&'static str>,
}

impl ModuleScene {
    /// `None` where git or sshd cannot run, with a note. `forges` is the address of the forge names.
    pub(crate) async fn start(forges: Option<Ipv4Addr>) -> Option<Self> {
        let repositories = Repositories::new()?;
        let root = repositories.root();
        let ssh = Sshd::start(&root).await?;
        let ca = TestCa::new();
        let git = FakeUpstream::builder().tls_with(&ca).start().await;
        git.host_git(&root);
        let forges = match forges {
            None => None,
            Some(address) => {
                let names = NAMES.iter().fold(FakeUpstream::builder().tls_with(&ca), |forge, name| forge.name(name));
                let forge = names.at(SocketAddr::from((address, 443))).start().await;
                forge.host_git(&root);
                forge.serve_json("/2.0/repositories/acme/net", "{\"scm\":\"git\"}");
                let ssh = Sshd::start_at(&root, SocketAddr::from((address, 22))).await?;
                ssh.known_as("git.acme.test");
                Some((forge, ssh))
            }
        };
        let net = everything(&repositories, &git.origin());
        let archives = FakeUpstream::builder().tls_with(&ca).start().await;
        let registry = FakeUpstream::start().await;
        let folder = tempfile::tempdir().unwrap();
        Some(Self { ca, registry, archives, git, ssh, forges, repositories, net, folder })
    }

    /// `git::https://…/acme/net.git` and this.
    pub(crate) fn over_https(&self, rest: &str) -> String {
        format!("git::{}/acme/net.git{rest}", self.git.origin())
    }

    /// Publishes a module at version 1.0.0.
    pub(crate) fn publish(&self, form: &Form) {
        let module = Module::new("acme", &form.name, "test");
        self.registry.publish_module(module.at(&form.location).told(form.telling));
    }

    /// A larder that may reach the servers of the scene, and nothing else that is private.
    pub(crate) fn larder(&self) -> Builder {
        self.larder_with("")
    }

    /// The same with more lines for its upstream.
    pub(crate) fn larder_with(&self, more: &str) -> Builder {
        let authority = self.folder.path().join("ca.pem");
        std::fs::write(&authority, self.ca.pem()).unwrap();
        let larder = Larder::mirroring(&self.registry).with(more).allow_private("127.0.0.1");
        let mut larder = larder.network(&format!("ca_file = {authority:?}"));
        let mut credentials = ssh_credential(&format!("127.0.0.1:{}", self.ssh.port()), &self.ssh);
        if let Some((_, ssh)) = &self.forges {
            larder = NAMES.iter().fold(larder, |larder, name| larder.allow_private(name));
            credentials.push_str(&ssh_credential("git.acme.test", ssh));
        }
        larder.with(&credentials)
    }

    /// A folder that calls these modules, for a client that trusts the scene's servers and is let in by them.
    pub(crate) fn calling(&self, client: &Terraform, forms: &[Form]) -> Workspace {
        let mut workspace = client.workspace();
        workspace.file("main.tf", &calls(forms));
        self.let_in(&mut workspace);
        workspace
    }

    /// Gives a client the keys and names that it needs to reach the servers directly.
    pub(crate) fn let_in(&self, workspace: &mut Workspace) {
        workspace.trust(&self.ca.pem());
        let authority = workspace.path().join("../ca.pem");
        workspace.env("GIT_SSL_CAINFO", &authority.to_string_lossy());
        workspace.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_TERMINAL_PROMPT", "0");
        workspace.env("GIT_SSH_COMMAND", &self.ssh_command());
    }

    /// The same for git.
    pub(crate) async fn checkout(&self, url: &str, reference: &str) -> TempDir {
        let authority = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(authority.path(), self.ca.pem()).unwrap();
        let authority = authority.path().to_string_lossy().into_owned();
        let command = self.ssh_command();
        let environment = [("GIT_SSL_CAINFO", authority.as_str()), ("GIT_SSH_COMMAND", command.as_str())];
        self.repositories.checkout(url, reference, &environment).await
    }

    /// A CLI configuration for direct access to the registry.
    pub(crate) fn direct(&self) -> String {
        host_override(HOST, &self.registry.providers_url(), &self.registry.modules_url())
    }

    /// Everything upstream is gone.
    pub(crate) async fn stop(&mut self) {
        self.registry.stop().await;
        self.archives.stop().await;
        self.git.stop().await;
        self.ssh.stop();
        if let Some((forge, ssh)) = &mut self.forges {
            forge.stop().await;
            ssh.stop();
        }
    }

    fn ssh_command(&self) -> String {
        // One client for both servers, each with its own keys.
        let Some((_, forge)) = &self.forges else { return self.ssh.client_command() };
        format!(
            "{} -i {} -o UserKnownHostsFile='{} {}'",
            self.ssh.client_command().replace(&known_option(&self.ssh), ""),
            forge.key().display(),
            self.ssh.known_hosts().display(),
            forge.known_hosts().display()
        )
    }
}

/// A configuration that calls these modules.
pub(crate) fn calls(forms: &[Form]) -> String {
    let mut text = String::new();
    for Form { name, called, .. } in forms {
        let source = format!("acme/{name}/test{called}");
        writeln!(text, "module \"{name}\" {{\n  source  = \"{source}\"\n  version = \"1.0.0\"\n}}").unwrap();
    }
    text
}

/// The override through a larder.
pub(crate) fn through(larder: &str) -> String {
    let service = |name: &str| format!("{larder}/registry/{HOST}/v1/{name}/");
    host_override(HOST, &service("providers"), &service("modules"))
}

/// The folder of each module that a client installed, by its key in `modules.json`; `""` is the configuration.
pub(crate) fn installed(workspace: &Workspace) -> Vec<(String, PathBuf)> {
    let text = std::fs::read_to_string(workspace.path().join(".terraform/modules/modules.json")).unwrap();
    let text: serde_json::Value = serde_json::from_str(&text).unwrap();
    let modules = text["Modules"].as_array().unwrap().iter();
    let modules = modules.map(|module| {
        let folder = workspace.path().join(module["Dir"].as_str().unwrap());
        (module["Key"].as_str().unwrap().to_owned(), folder)
    });
    modules.filter(|(key, _)| !key.is_empty()).collect()
}

fn known_option(ssh: &Sshd) -> String {
    format!("-o UserKnownHostsFile={}", ssh.known_hosts().display())
}

fn ssh_credential(host: &str, ssh: &Sshd) -> String {
    format!(
        "[[credential]]\nhost = \"{host}\"\nupstreams = [\"{HOST}\"]\nssh = {{ key = {:?}, known_hosts = {:?} }}\n",
        ssh.key(),
        ssh.known_hosts()
    )
}

/// The repository that has everything, `acme/net`, and those it needs: `acme/dep` in it, `acme/deep` in that.
fn everything(repositories: &Repositories, origin: &str) -> Repository {
    let deep = repositories.repository("acme/deep");
    deep.file("deep.txt", "deep\n").file("attributes.crlf", "one\ntwo\n").file(".gitattributes", "*.crlf eol=crlf\n");
    let deep_commit = deep.commit("deep");
    let dep = repositories.repository("acme/dep");
    dep.file("dep.txt", "dep\n").submodule("deep", &format!("{origin}/acme/deep.git"), &deep_commit);
    let dep_commit = dep.commit("dep");
    let net = repositories.repository("acme/net");
    net.file("main.tf", "output \"is\" {\n  value = \"one\"\n}\n").file("README.md", "# Net\n");
    net.file("docs/index.md", "docs\n").file(".terraform-docs.yml", "hidden: true\n").file(".dotted/file", "dotted\n");
    net.executable("run.sh", "#!/bin/sh\nexit 0\n");
    net.link("linked.md", "README.md").link("docs-too", "docs").link("docs/up.md", "../README.md");
    net.link("dangling", "nowhere/at/all");
    net.file(
        ".gitattributes",
        "*.crlf text eol=crlf\nident.txt ident\nsubst.txt export-subst\nsecret export-ignore\n\
         *.psd filter=lfs diff=lfs merge=lfs -text\n*.dat binary\nlatin.txt working-tree-encoding=ISO-8859-1\n",
    );
    net.file("windows.crlf", "first\nsecond\n").file("ident.txt", "$Id$\n").file("subst.txt", "$Format:%H$\n");
    net.file("secret/kept.txt", "kept\n").bytes("noise.dat", &[0, 13, 10, 255, 10, 7]).bytes("latin.txt", b"caf\xe9\n");
    net.file(
        "large.psd",
        "version https://git-lfs.github.com/spec/v1\n\
         oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n",
    );
    net.file("modules/x/main.tf", "module \"sibling\" {\n  source = \"../sibling\"\n}\n");
    net.file("modules/sibling/main.tf", "output \"sibling\" {\n  value = 1\n}\n");
    net.submodule("vendor/dep", "../dep.git", &dep_commit);
    net.commit("one");
    net.tag("v1.0.0").branch("both").file("which.txt", "the branch\n").commit("the branch");
    net.switch("main").file("which.txt", "the tag\n").commit("two");
    net.annotated_tag("v1.1.0").git(&["tag", "both"]);
    net.branch("stable").file("stable.txt", "stable\n").commit("stable");
    net.switch("main").remove("stable.txt").file("main.tf", "output \"is\" {\n  value = \"head\"\n}\n").commit("head");
    net
}

/// Every form that larder can fetch, published.
pub(crate) async fn every_form(fixture: &ModuleScene) -> Vec<Form> {
    let mut forms = Vec::new();
    let mut add = |name: &str, location: String| {
        forms.push(Form {
            name: name.to_owned(),
            called: "",
            location,
            telling: Telling::NoContent,
            instead_of_direct: None,
        });
        forms.len() - 1
    };
    // Each from its own address: of a package that it already has, a client makes copies without hidden files.
    let own = |name: &str, rest: &str| {
        fixture.repositories.alias("acme/net", &format!("acme/net-{name}"));
        format!("git::{}/acme/net-{name}.git{rest}", fixture.git.origin())
    };
    let commit = fixture.net.id("v1.1.0^{commit}");
    add("tag", own("tag", "?ref=v1.0.0"));
    add("annotated", own("annotated", "?ref=v1.1.0"));
    add("branch", own("branch", "?ref=stable"));
    add("commit", own("commit", &format!("?ref={commit}")));
    add("short", own("short", &format!("?ref={}", &commit[..9])));
    add("head", own("head", ""));
    add("depth", own("depth", "?ref=v1.0.0&depth=1"));
    add("both", own("both", "?ref=both"));
    add("both-depth", own("both-depth", "?ref=both&depth=1"));
    add("subdir", own("subdir", "//modules/x?ref=v1.0.0"));
    let user_subdir = add("user-subdir", own("user-subdir", "?ref=v1.0.0"));
    let joined = add("joined", own("joined", "//modules?ref=v1.1.0"));
    add("ssh", format!("git::{}?ref=v1.0.0", fixture.ssh.url("acme/net")));
    if fixture.forges.is_some() {
        // With any other user, Terraform takes it for no address at all.
        add("scp", "git@git.acme.test:acme/net.git?ref=v1.0.0".to_owned());
        add("scp-forced", "git::git@git.acme.test:acme/net.git//modules/x?ref=v1.1.0".to_owned());
        add("github", "github.com/acme/net?ref=v1.0.0".to_owned());
        add("github-subdir", "github.com/acme/net//modules/x?ref=v1.1.0".to_owned());
        add("bitbucket", "bitbucket.org/acme/net?ref=v1.0.0".to_owned());
    }
    let origin = fixture.archives.origin();
    let work = fixture.checkout(&format!("{}/acme/net.git", fixture.git.origin()), "v1.0.0").await;
    let packed = |format, wrapper: &str| pack(format, work.path(), wrapper);
    let file = |name: &str, bytes: Vec<u8>| {
        fixture.archives.serve_file(&format!("/files/{name}"), "application/octet-stream", bytes);
        format!("{origin}/files/{name}")
    };
    for (suffix, format) in [
        ("zip", Format::Zip),
        ("tar.gz", Format::TarGz),
        ("tgz", Format::TarGz),
        ("tar.bz2", Format::TarBz2),
        ("tbz2", Format::TarBz2),
        ("tar.xz", Format::TarXz),
        ("txz", Format::TarXz),
    ] {
        let name = suffix.replace('.', "-");
        add(&name, file(&format!("net.{suffix}"), packed(format, "")));
    }
    add("archive", format!("{}?archive=tar.gz", file("net", packed(Format::TarGz, ""))));
    let bytes = packed(Format::Zip, "");
    let digest = sha256_hex(&bytes);
    add("checksum", format!("{}?checksum=sha256:{digest}", file("checked.zip", bytes)));
    for name in ["rooted", "relative"] {
        let bytes = packed(Format::TarGz, "");
        fixture.registry.serve_file(&format!("/files/{name}.tar.gz"), "application/gzip", bytes);
    }
    add("rooted", "/files/rooted.tar.gz".to_owned());
    add("relative", "../../../../../../files/relative.tar.gz//modules/x".to_owned());
    fixture.archives.serve_terraform_get("/pages/header", &own("header-page", "?ref=v1.1.0"));
    add("header-page", format!("{origin}/pages/header"));
    let led_to = format!("{}?archive=tar.gz", file("led-to", packed(Format::TarGz, "")));
    fixture.archives.serve_meta_tag("/pages/meta", &led_to);
    add("meta-page", format!("{origin}/pages/meta"));
    let wrapped = file("wrapped", packed(Format::TarGz, "acme-net-0123abc"));
    add("wrapped", format!("{wrapped}//acme-net-0123abc/modules/x?archive=tar.gz"));
    let glob = add("glob", format!("{wrapped}//*?archive=tar.gz"));
    let json = add("json", own("json", "?ref=v1.0.0"));
    let both = add("header-and-json", own("header-and-json", "?ref=v1.1.0"));
    forms[user_subdir].called = "//modules/x";
    forms[joined].called = "//x";
    forms[glob].instead_of_direct = Some("v1.0.0");
    forms[json].telling = Telling::Json;
    forms[json].instead_of_direct = Some("v1.0.0");
    forms[both].telling = Telling::HeaderAndEmptyJson;
    forms.iter().for_each(|form| fixture.publish(form));
    forms
}

/// The differences between two clients' modules, byte for byte: each module's folder, and its package.
pub(crate) fn same_modules(one: &Workspace, other: &Workspace) -> Vec<String> {
    let (one_has, other_has) = (installed(one), installed(other));
    let mut text = Vec::new();
    for (key, folder) in &one_has {
        let Some((_, counterpart)) = other_has.iter().find(|(other, _)| other == key) else {
            text.push(format!("{key}: absent"));
            continue;
        };
        let package = |workspace: &Workspace| workspace.path().join(".terraform/modules").join(key);
        let is_whole = within(&package(one), folder) == within(&package(other), counterpart);
        let compared = match package(one).is_dir() && is_whole {
            true => super::git::differences(&package(one), &package(other)),
            false => super::git::differences(folder, counterpart),
        };
        text.extend(compared.into_iter().map(|line| format!("{key}: {line}")));
    }
    if one_has.len() != other_has.len() {
        text.push(format!("{} modules / {}", one_has.len(), other_has.len()));
    }
    text
}

fn within(package: &Path, folder: &Path) -> Option<PathBuf> {
    folder.strip_prefix(package).ok().map(Path::to_owned)
}

/// Where larder says that a version of a module is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The path of the archive.
    pub(crate) path: String,
    pub(crate) subdir: Option<String>,
    /// The SHA-256 that the client is to enforce.
    pub(crate) sha256: Option<String>,
}

impl Place {
    /// The location in a `204`.
    pub(crate) fn of(answer: &Answer) -> Self {
        assert_eq!(answer.status, 204, "{}", answer.text());
        let text = answer.header("x-terraform-get");
        let (text, query) = text.split_once('?').map_or((text, None), |(text, query)| (text, Some(query)));
        let sha256 = query.map(|query| query.strip_prefix("checksum=sha256:").unwrap_or_else(|| panic!("{query}")));
        let (path, subdir) = text.split_once("//").map_or((text, None), |(path, subdir)| (path, Some(subdir)));
        Self { path: path.to_owned(), subdir: subdir.map(str::to_owned), sha256: sha256.map(str::to_owned) }
    }
}

/// Larder's path for the location of version 1.0.0 of `acme/NAME/test`.
pub(crate) fn download_path(name: &str) -> String {
    format!("/registry/{HOST}/v1/modules/acme/{name}/test/1.0.0/download")
}

/// Requests a module's location from a larder and fetches it: the last location, and the archive.
pub(crate) async fn fetch(larder: &str, name: &str) -> (Place, Vec<u8>) {
    let text = Place::of(&get(&format!("{larder}{}", download_path(name))).await);
    let archive = get(&format!("{larder}{}", text.path)).await.expect(200).body;
    // The first answer may precede the archive's digest.
    let text = match text.sha256 {
        Some(_) => text,
        None => Place::of(&get(&format!("{larder}{}", download_path(name))).await),
    };
    assert_eq!(text.sha256.as_deref(), Some(sha256_hex(&archive).as_str()), "{text:?}");
    (text, archive)
}
