//! Bare repositories in one folder, each with a work tree beside it. Dates and authors are always the same, and nothing
//! of the user's configuration counts: the same calls give the same commit ids on any machine.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

use crate::support::programs::find;

/// A folder of repositories, removed when the last of them is dropped.
#[derive(Clone)]
pub(crate) struct Repositories {
    folder: Arc<TempDir>,
    git: PathBuf,
}

/// One repository: files are written into its work tree, and `commit` takes all of them.
#[derive(Clone)]
pub(crate) struct Repository {
    repositories: Repositories,
    bare: PathBuf,
    work: PathBuf,
    /// The number of git commands so far: each one gets the next second as its date.
    clock: Arc<AtomicU32>,
}

impl Repositories {
    /// An empty folder. Prints a note and returns `None` where git is not installed.
    pub(crate) fn new() -> Option<Self> {
        let git = find("git")?;
        let folder = tempfile::Builder::new().prefix("larder-git-").tempdir().unwrap();
        fs::create_dir(folder.path().join("served")).unwrap();
        Some(Self { folder: Arc::new(folder), git })
    }

    /// The folder of bare repositories that servers serve.
    pub(crate) fn root(&self) -> PathBuf {
        self.folder.path().join("served")
    }

    /// An empty repository, `acme/net` served as `/acme/net.git`, on the branch `main`.
    pub(crate) fn repository(&self, name: &str) -> Repository {
        let bare = self.root().join(format!("{name}.git"));
        let work = self.folder.path().join("work").join(name);
        fs::create_dir_all(&work).unwrap();
        let repository = Repository { repositories: self.clone(), bare, work, clock: Arc::default() };
        let path = repository.bare.to_string_lossy().into_owned();
        self.run(Command::new(&self.git).args(["init", "--quiet", "--bare", "--initial-branch=main", &path]));
        // Forges allow filters; `without_filter` makes a server that does not.
        repository.git(&["config", "uploadpack.allowFilter", "true"]);
        repository
    }

    /// Serves a repository at one more path.
    pub(crate) fn alias(&self, name: &str, path: &str) {
        symlink(self.root().join(format!("{name}.git")), self.root().join(format!("{path}.git"))).unwrap();
    }

    /// The commit that a repository's head is at.
    pub(crate) fn head(&self, name: &str) -> String {
        let bare = self.root().join(format!("{name}.git"));
        self.run(Command::new(&self.git).current_dir(bare).args(["rev-parse", "HEAD"]))
    }

    /// The files after a clone, a checkout and an update of all submodules, in a folder that is removed with the value.
    pub(crate) async fn checkout(&self, url: &str, reference: &str, environment: &[(&str, &str)]) -> TempDir {
        let folder = tempfile::Builder::new().prefix("larder-checkout-").tempdir().unwrap();
        let steps = [
            vec!["clone", "--quiet", "--no-checkout", url, "."],
            vec!["checkout", "--quiet", reference],
            vec!["submodule", "--quiet", "update", "--init", "--recursive"],
        ];
        for arguments in steps {
            let mut command = Command::new(&self.git);
            command.args(arguments).current_dir(folder.path()).envs(environment.iter().copied());
            let repositories = self.clone();
            // The server may run on this thread, so the thread must not wait for git.
            tokio::task::spawn_blocking(move || repositories.run(&mut command)).await.unwrap();
        }
        folder
    }

    /// Runs git without this machine's configuration; returns its output, or panics with it.
    fn run(&self, command: &mut Command) -> String {
        command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_TERMINAL_PROMPT", "0");
        command.env("HOME", self.folder.path()).env("XDG_CONFIG_HOME", self.folder.path()).env("LC_ALL", "C");
        // Ignores the machine's attributes, and the repository in whose hook the tests may run.
        command.env("GIT_ATTR_NOSYSTEM", "1").env("GIT_DEFAULT_HASH", "sha1");
        for variable in ["GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"] {
            if command.get_envs().all(|(name, _)| name != variable) {
                command.env_remove(variable);
            }
        }
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?} failed: {stderr}");
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }
}

/// Changes to the work tree.
impl Repository {
    /// A file with this text.
    pub(crate) fn file(&self, path: &str, text: &str) -> &Self {
        self.bytes(path, text.as_bytes())
    }

    /// A file with these bytes.
    pub(crate) fn bytes(&self, path: &str, bytes: &[u8]) -> &Self {
        fs::write(self.path_with_parents(path), bytes).unwrap();
        self
    }

    /// An executable file.
    pub(crate) fn executable(&self, path: &str, text: &str) -> &Self {
        self.file(path, text);
        fs::set_permissions(self.work.join(path), fs::Permissions::from_mode(0o755)).unwrap();
        self
    }

    /// A symbolic link.
    pub(crate) fn link(&self, path: &str, target: &str) -> &Self {
        symlink(target, self.path_with_parents(path)).unwrap();
        self
    }

    /// Removes a file or a folder.
    pub(crate) fn remove(&self, path: &str) -> &Self {
        let path = self.work.join(path);
        let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        removed.unwrap();
        self
    }

    /// A submodule: its entry in `.gitmodules`, and the commit. Relative urls begin with `../`.
    pub(crate) fn submodule(&self, path: &str, url: &str, commit: &str) -> &Self {
        let modules = self.work.join(".gitmodules");
        let mut text = fs::read_to_string(&modules).unwrap_or_default();
        text.push_str(&format!("[submodule \"{path}\"]\n\tpath = {path}\n\turl = {url}\n"));
        fs::write(modules, text).unwrap();
        self.gitlink(path, commit)
    }

    /// The commit of a submodule alone: `.gitmodules` does not mention the path.
    pub(crate) fn gitlink(&self, path: &str, commit: &str) -> &Self {
        fs::create_dir_all(self.work.join(path)).unwrap();
        self.git(&["update-index", "--add", "--cacheinfo", &format!("160000,{commit},{path}")]);
        self
    }

    fn path_with_parents(&self, path: &str) -> PathBuf {
        let path = self.work.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }
}

/// The history: commits, branches and tags.
impl Repository {
    /// Commits the whole work tree to the branch that is checked out; returns the id of the commit.
    pub(crate) fn commit(&self, message: &str) -> String {
        self.git(&["add", "--all", "."]);
        self.git(&["commit", "--quiet", "--allow-empty", "--message", message]);
        self.id("HEAD")
    }

    /// A lightweight tag at HEAD; an existing tag of that name moves.
    pub(crate) fn tag(&self, name: &str) -> &Self {
        self.git(&["tag", "--force", name]);
        self
    }

    /// An annotated tag.
    pub(crate) fn annotated_tag(&self, name: &str) -> &Self {
        self.git(&["tag", "--force", "--annotate", "--message", name, name]);
        self
    }

    /// A branch at HEAD, checked out from now on.
    pub(crate) fn branch(&self, name: &str) -> &Self {
        // Not `checkout`: the work tree stays as it is.
        self.git(&["update-ref", &format!("refs/heads/{name}"), "HEAD"]);
        self.switch(name)
    }

    /// Commits go to this branch from now on; the work tree stays as it is.
    pub(crate) fn switch(&self, name: &str) -> &Self {
        self.git(&["symbolic-ref", "HEAD", &format!("refs/heads/{name}")]);
        self
    }

    /// Deletes a branch: its own commits stay as unreachable objects.
    pub(crate) fn delete_branch(&self, name: &str) -> &Self {
        self.git(&["update-ref", "-d", &format!("refs/heads/{name}")]);
        self
    }

    /// Makes the server refuse `filter`, as some servers do.
    pub(crate) fn without_filter(&self) -> &Self {
        self.git(&["config", "uploadpack.allowFilter", "false"]);
        self
    }

    /// The full id of the commit or object that this name (a branch, a tag, `HEAD`) stands for.
    pub(crate) fn id(&self, name: &str) -> String {
        self.git(&["rev-parse", name])
    }

    /// Runs git in this repository; returns its output.
    pub(crate) fn git(&self, arguments: &[&str]) -> String {
        let second = self.clock.fetch_add(1, Ordering::Relaxed);
        let date = format!("2024-01-01T00:{:02}:{:02}Z", second / 60 % 60, second % 60);
        let mut command = Command::new(&self.repositories.git);
        command.args(["-c", "gc.auto=0", "-c", "core.autocrlf=false", "-c", "core.safecrlf=false"]).args(arguments);
        command.current_dir(&self.work).env("GIT_DIR", &self.bare).env("GIT_WORK_TREE", &self.work);
        for role in ["AUTHOR", "COMMITTER"] {
            command.env(format!("GIT_{role}_NAME"), "Acme").env(format!("GIT_{role}_EMAIL"), "acme@acme.test");
            command.env(format!("GIT_{role}_DATE"), &date);
        }
        self.repositories.run(&mut command)
    }
}
