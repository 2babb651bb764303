//! The servers of the git module tests: a registry, an archive host, a git server over https and one over ssh, where
//! possible servers with the names of public forges, and a repository with every kind of file that a module may have.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::git::forge::FORGE_NAMES;
use super::git::{Format, Repositories, Repository, Sshd, pack};
use super::http::{Answer, get};
use super::larder::{Builder, HOST, Larder};
use super::terraform::{Terraform, Workspace, host_override};
use super::tls::TestCa;
use super::upstream::{FakeUpstream, LocationReply, Module, sha256_hex};

/// All servers, running.
pub(crate) struct GitModuleFixture {
    pub(crate) ca: TestCa,
    pub(crate) registry: FakeUpstream,
    pub(crate) archives: FakeUpstream,
    pub(crate) git: FakeUpstream,
    pub(crate) ssh: Sshd,
    /// The servers at ports 443 and 22 of the address that the names of forges resolve to.
    pub(crate) forges: Option<(FakeUpstream, Sshd)>,
    pub(crate) repositories: Repositories,
    /// acme/net: tags v1.0.0 and (annotated) v1.1.0, branches main and stable, `both` as a branch and a tag.
    pub(crate) net: Repository,
    folder: TempDir,
}

/// One published module, and how a configuration calls it.
#[derive(Clone, Debug)]
pub(crate) struct ModuleCase {
    /// The name of the module in the registry and in the configuration.
    pub(crate) name: String,
    /// The text after `acme/NAME/test` in the configuration: `//modules/x`, or nothing.
    pub(crate) subdir_suffix: &'static str,
    /// The location that the registry reports.
    pub(crate) location: String,
    pub(crate) location_reply: LocationReply,
    /// The tag of acme/net with the expected files, for modules that the client cannot install without larder. `None`
    /// for the others: larder must give the files that the client installs without it.
    pub(crate) expected_tag: Option<&'static str>,
}

impl GitModuleFixture {
    /// Prints a note and returns `None` where git or sshd cannot run. `forges` is the address of the forge names.
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
                let builder = FORGE_NAMES
                    .iter()
                    .fold(FakeUpstream::builder().tls_with(&ca), |builder, name| builder.certificate_name(name));
                let forge = builder.listen_at(SocketAddr::from((address, 443))).start().await;
                forge.host_git(&root);
                forge.serve_json("/2.0/repositories/acme/net", "{\"scm\":\"git\"}");
                let ssh = Sshd::start_at(&root, SocketAddr::from((address, 22))).await?;
                ssh.known_as("git.acme.test");
                Some((forge, ssh))
            }
        };
        let net = net_repository(&repositories, &git.origin());
        let archives = FakeUpstream::builder().tls_with(&ca).start().await;
        let registry = FakeUpstream::start().await;
        let folder = tempfile::tempdir().unwrap();
        Some(Self { ca, registry, archives, git, ssh, forges, repositories, net, folder })
    }

    /// The source `git::https://…/acme/net.git`, followed by `suffix`.
    pub(crate) fn git_https_source(&self, suffix: &str) -> String {
        format!("git::{}/acme/net.git{suffix}", self.git.origin())
    }

    /// Publishes a module at version 1.0.0.
    pub(crate) fn publish(&self, case: &ModuleCase) {
        let module = Module::new("acme", &case.name, "test");
        self.registry.publish_module(module.at(&case.location).location_reply(case.location_reply));
    }

    /// A larder that may connect to the servers of this fixture and to no other private address.
    pub(crate) fn larder(&self) -> Builder {
        self.larder_with("")
    }

    /// The same larder with further lines in its `[[upstream]]` section.
    pub(crate) fn larder_with(&self, lines: &str) -> Builder {
        let ca_file = self.folder.path().join("ca.pem");
        std::fs::write(&ca_file, self.ca.pem()).unwrap();
        let larder = Larder::mirroring(&self.registry).upstream_lines(lines).allow_private("127.0.0.1");
        let mut larder = larder.network(&format!("ca_file = {ca_file:?}"));
        let mut credentials = ssh_credential(&format!("127.0.0.1:{}", self.ssh.port()), &self.ssh);
        if let Some((_, ssh)) = &self.forges {
            larder = FORGE_NAMES.iter().fold(larder, |larder, name| larder.allow_private(name));
            credentials.push_str(&ssh_credential("git.acme.test", ssh));
        }
        larder.config_lines(&credentials)
    }

    /// A client workspace that calls these modules and can connect to the servers directly.
    pub(crate) fn workspace_calling(&self, client: &Terraform, cases: &[ModuleCase]) -> Workspace {
        let mut workspace = client.workspace();
        workspace.file("main.tf", &module_calls(cases));
        self.configure_access(&mut workspace);
        workspace
    }

    /// Gives a client the certificate authority, the ssh key and the known hosts that it needs to connect directly.
    pub(crate) fn configure_access(&self, workspace: &mut Workspace) {
        workspace.trust(&self.ca.pem());
        let ca_file = workspace.path().join("../ca.pem");
        workspace.env("GIT_SSL_CAINFO", &ca_file.to_string_lossy());
        workspace.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_TERMINAL_PROMPT", "0");
        workspace.env("GIT_SSH_COMMAND", &self.ssh_command());
    }

    /// Checks a repository out with git, with the access of `configure_access`.
    pub(crate) async fn checkout(&self, url: &str, reference: &str) -> TempDir {
        let ca_file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(ca_file.path(), self.ca.pem()).unwrap();
        let ca_file = ca_file.path().to_string_lossy().into_owned();
        let command = self.ssh_command();
        let environment = [("GIT_SSL_CAINFO", ca_file.as_str()), ("GIT_SSH_COMMAND", command.as_str())];
        self.repositories.checkout(url, reference, &environment).await
    }

    /// A CLI configuration with which a client uses the registry directly.
    pub(crate) fn direct_cli_config(&self) -> String {
        host_override(HOST, &self.registry.providers_url(), &self.registry.modules_url())
    }

    /// Stops all servers.
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
        // One ssh command for both servers; each server has its own keys.
        let Some((_, forge)) = &self.forges else { return self.ssh.client_command() };
        format!(
            "{} -i {} -o UserKnownHostsFile='{} {}'",
            self.ssh.client_command().replace(&known_hosts_option(&self.ssh), ""),
            forge.key().display(),
            self.ssh.known_hosts().display(),
            forge.known_hosts().display()
        )
    }
}

/// A configuration that calls these modules.
pub(crate) fn module_calls(cases: &[ModuleCase]) -> String {
    let mut text = String::new();
    for ModuleCase { name, subdir_suffix, .. } in cases {
        let source = format!("acme/{name}/test{subdir_suffix}");
        writeln!(text, "module \"{name}\" {{\n  source  = \"{source}\"\n  version = \"1.0.0\"\n}}").unwrap();
    }
    text
}

/// A CLI configuration with which a client uses a larder in place of the registry.
pub(crate) fn override_through(larder: &str) -> String {
    let service = |name: &str| format!("{larder}/registry/{HOST}/v1/{name}/");
    host_override(HOST, &service("providers"), &service("modules"))
}

/// The modules that a client installed: key in `modules.json`, and folder. The entry of the configuration (`""`) is
/// left out.
pub(crate) fn installed(workspace: &Workspace) -> Vec<(String, PathBuf)> {
    let text = std::fs::read_to_string(workspace.path().join(".terraform/modules/modules.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&text).unwrap();
    let modules = manifest["Modules"].as_array().unwrap().iter();
    let modules = modules.map(|module| {
        let folder = workspace.path().join(module["Dir"].as_str().unwrap());
        (module["Key"].as_str().unwrap().to_owned(), folder)
    });
    modules.filter(|(key, _)| !key.is_empty()).collect()
}

fn known_hosts_option(ssh: &Sshd) -> String {
    format!("-o UserKnownHostsFile={}", ssh.known_hosts().display())
}

fn ssh_credential(host: &str, ssh: &Sshd) -> String {
    format!(
        "[[credential]]\nhost = \"{host}\"\nupstreams = [\"{HOST}\"]\nssh = {{ key = {:?}, known_hosts = {:?} }}\n",
        ssh.key(),
        ssh.known_hosts()
    )
}

/// The repository `acme/net` with every kind of file, its submodule `acme/dep`, and the submodule of that, `acme/deep`.
fn net_repository(repositories: &Repositories, origin: &str) -> Repository {
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
    net.link("dangling", "nowhere/at/all").link("examples/x.tf", "/home/someone/x.tf").link("docs/out", "../../out");
    net.link("examples/one", "other").link("examples/other", "one");
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

/// Publishes a module for every form of location that larder can fetch.
pub(crate) async fn every_module_case(fixture: &GitModuleFixture) -> Vec<ModuleCase> {
    let mut cases = Vec::new();
    let mut add = |name: &str, location: String| {
        cases.push(ModuleCase {
            name: name.to_owned(),
            subdir_suffix: "",
            location,
            location_reply: LocationReply::NoContent,
            expected_tag: None,
        });
        cases.len() - 1
    };
    // Each module gets a repository URL of its own: if a client already has a package, it copies it without hidden
    // files.
    let own_url = |name: &str, suffix: &str| {
        fixture.repositories.alias("acme/net", &format!("acme/net-{name}"));
        format!("git::{}/acme/net-{name}.git{suffix}", fixture.git.origin())
    };
    let commit = fixture.net.id("v1.1.0^{commit}");
    add("tag", own_url("tag", "?ref=v1.0.0"));
    add("annotated", own_url("annotated", "?ref=v1.1.0"));
    add("branch", own_url("branch", "?ref=stable"));
    add("commit", own_url("commit", &format!("?ref={commit}")));
    add("short", own_url("short", &format!("?ref={}", &commit[..9])));
    add("head", own_url("head", ""));
    add("depth", own_url("depth", "?ref=v1.0.0&depth=1"));
    add("both", own_url("both", "?ref=both"));
    add("both-depth", own_url("both-depth", "?ref=both&depth=1"));
    add("subdir", own_url("subdir", "//modules/x?ref=v1.0.0"));
    let user_subdir = add("user-subdir", own_url("user-subdir", "?ref=v1.0.0"));
    let joined = add("joined", own_url("joined", "//modules?ref=v1.1.0"));
    add("ssh", format!("git::{}?ref=v1.0.0", fixture.ssh.url("acme/net")));
    if fixture.forges.is_some() {
        // Terraform recognises this form only with the user `git`.
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
    fixture.archives.serve_terraform_get("/pages/header", &own_url("header-page", "?ref=v1.1.0"));
    add("header-page", format!("{origin}/pages/header"));
    let linked_archive = format!("{}?archive=tar.gz", file("linked-archive", packed(Format::TarGz, "")));
    fixture.archives.serve_meta_tag("/pages/meta", &linked_archive);
    add("meta-page", format!("{origin}/pages/meta"));
    let wrapped = file("wrapped", packed(Format::TarGz, "acme-net-0123abc"));
    add("wrapped", format!("{wrapped}//acme-net-0123abc/modules/x?archive=tar.gz"));
    let glob = add("glob", format!("{wrapped}//*?archive=tar.gz"));
    let json = add("json", own_url("json", "?ref=v1.0.0"));
    let both = add("header-and-json", own_url("header-and-json", "?ref=v1.1.0"));
    cases[user_subdir].subdir_suffix = "//modules/x";
    cases[joined].subdir_suffix = "//x";
    cases[glob].expected_tag = Some("v1.0.0");
    cases[json].location_reply = LocationReply::Json;
    cases[json].expected_tag = Some("v1.0.0");
    cases[both].location_reply = LocationReply::HeaderAndEmptyJson;
    cases.iter().for_each(|case| fixture.publish(case));
    cases
}

/// The differences between the modules that two clients installed: folders and packages, byte for byte.
pub(crate) fn module_differences(left: &Workspace, right: &Workspace) -> Vec<String> {
    let (left_modules, right_modules) = (installed(left), installed(right));
    let mut differences = Vec::new();
    for (key, folder) in &left_modules {
        let Some((_, counterpart)) = right_modules.iter().find(|(right_key, _)| right_key == key) else {
            differences.push(format!("{key}: absent"));
            continue;
        };
        let package = |workspace: &Workspace| workspace.path().join(".terraform/modules").join(key);
        let is_same_subfolder =
            path_in_package(&package(left), folder) == path_in_package(&package(right), counterpart);
        let compared = match package(left).is_dir() && is_same_subfolder {
            true => super::git::differences(&package(left), &package(right)),
            false => super::git::differences(folder, counterpart),
        };
        differences.extend(compared.into_iter().map(|line| format!("{key}: {line}")));
    }
    if left_modules.len() != right_modules.len() {
        differences.push(format!("{} modules / {}", left_modules.len(), right_modules.len()));
    }
    differences
}

fn path_in_package(package: &Path, folder: &Path) -> Option<PathBuf> {
    folder.strip_prefix(package).ok().map(Path::to_owned)
}

/// The location of a module version, as larder reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModuleLocation {
    /// The path of the archive.
    pub(crate) path: String,
    /// The folder of the module in the archive.
    pub(crate) subdir: Option<String>,
    /// The SHA-256 that the client is to enforce.
    pub(crate) sha256: Option<String>,
}

impl ModuleLocation {
    /// Reads the location from a `204` response.
    pub(crate) fn of(response: &Answer) -> Self {
        assert_eq!(response.status, 204, "{}", response.text());
        let text = response.header("x-terraform-get");
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

/// Requests the location of a module from a larder and downloads its archive, as a client does; returns both.
pub(crate) async fn download_module(larder: &str, name: &str) -> (ModuleLocation, Vec<u8>) {
    let location = ModuleLocation::of(&get(&format!("{larder}{}", download_path(name))).await);
    let archive = get(&format!("{larder}{}", location.path)).await.expect(200).body;
    // Larder may not know the digest of the archive in its first response.
    let location = match location.sha256 {
        Some(_) => location,
        None => ModuleLocation::of(&get(&format!("{larder}{}", download_path(name))).await),
    };
    assert_eq!(location.sha256.as_deref(), Some(sha256_hex(&archive).as_str()), "{location:?}");
    (location, archive)
}

/// Downloads the archive of a module from a larder, as a client does.
pub(crate) async fn download_module_archive(larder: &str, name: &str) -> Vec<u8> {
    let (_, archive) = download_module(larder, name).await;
    archive
}
