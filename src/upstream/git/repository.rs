//! Parses repository URLs in the forms that git accepts, and URLs of `.gitmodules`, which may be relative to the outer
//! repository, with the file itself.

use gix_object::bstr::{BStr, ByteSlice as _};
use percent_encoding::percent_decode_str;
use url::Url;

use crate::address::Hostname;
use crate::packaging::TreeError;

const SSH_PORT: u16 = 22;

/// A repository that larder can fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Repository {
    /// Over https, or over http if the egress policy allows it.
    Http(Url),
    Ssh(SshRepository),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SshRepository {
    pub(super) user: String,
    /// Name of the server, without a port.
    pub(super) host: Hostname,
    pub(super) port: u16,
    /// Path on the server: absolute, or relative to the user's home.
    pub(super) path: String,
}

impl Repository {
    /// Parses a URL, or the form `user@host:path`.
    ///
    /// # Errors
    /// The reason: for other schemes, for secrets in the URL, and for text that could be taken for an option.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        if text.starts_with('-') {
            return Err("its URL begins with a dash");
        }
        if text.chars().any(char::is_control) {
            return Err("its URL has a control character in it");
        }
        match Url::parse(text) {
            Ok(url) if text.contains("://") => Self::of(&url),
            _ => Self::parse_scp_form(text),
        }
    }

    /// Converts a parsed URL.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub(super) fn of(url: &Url) -> Result<Self, &'static str> {
        if url.query().is_some() || url.fragment().is_some() {
            return Err("its URL has a query or a fragment");
        }
        match url.scheme() {
            // The egress policy refuses a URL with a user or a password.
            "http" | "https" => Ok(Self::Http(url.clone())),
            "ssh" | "git+ssh" | "ssh+git" => parse_ssh(url).map(Self::Ssh),
            _ => Err("its URL is neither https nor ssh"),
        }
    }

    /// Parses `user@host:path`: ssh, with a path relative to the user's home unless it is absolute.
    fn parse_scp_form(text: &str) -> Result<Self, &'static str> {
        let parts = text.split_once(':').filter(|(server, _)| !server.contains('/') && !text.contains("::"));
        let (server, path) = parts.ok_or("its URL is neither https nor ssh")?;
        let (user, host) = server.rsplit_once('@').unwrap_or(("git", server));
        let host = Hostname::parse(host).map_err(|_| "its URL names no host")?;
        SshRepository::new(user.to_owned(), host, SSH_PORT, path.to_owned()).map(Self::Ssh)
    }

    /// Parses the URL of a submodule in this repository's `.gitmodules`.
    ///
    /// # Errors
    /// The reason, also for a URL that leads above the server's root.
    pub(super) fn submodule(&self, url: &str) -> Result<Self, &'static str> {
        if !url.starts_with("./") && !url.starts_with("../") {
            return Self::parse(url);
        }
        if url.chars().any(char::is_control) || url.contains(['?', '#']) {
            return Err("its URL has a control character, a query or a fragment in it");
        }
        match self {
            Self::Http(base) => {
                let mut joined = base.clone();
                joined.set_path(&join_relative(base.path(), url)?);
                Self::of(&joined)
            }
            Self::Ssh(ssh) => {
                let path = join_relative(&ssh.path, url)?;
                SshRepository::new(ssh.user.clone(), ssh.host.clone(), ssh.port, path).map(Self::Ssh)
            }
        }
    }

    /// The origin of the URL. Errors and logs show no other part.
    pub(super) fn origin_text(&self) -> String {
        match self {
            Self::Http(url) => crate::upstream::outbound::origin(url),
            Self::Ssh(ssh) => format!("ssh://{}", ssh.host_and_port()),
        }
    }
}

impl SshRepository {
    fn new(user: String, host: Hostname, port: u16, path: String) -> Result<Self, &'static str> {
        if user.is_empty()
            || user.starts_with('-')
            || !user.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-+".contains(&b))
        {
            return Err("its URL has a user that no ssh server has, or a password");
        }
        if path.is_empty() || path == "/" {
            return Err("its URL has no path");
        }
        if path.starts_with('-') || path.chars().any(char::is_control) {
            return Err("its URL has a path that could be taken for an option");
        }
        Ok(Self { user, host, port, path })
    }

    /// The server's name as `known_hosts` spells it.
    pub(super) fn known_hosts_name(&self) -> String {
        if self.port == SSH_PORT { self.host.to_string() } else { format!("[{}]:{}", self.host, self.port) }
    }

    /// The server's name as in a URL or a `[[credential]]`.
    pub(super) fn host_and_port(&self) -> String {
        if self.port == SSH_PORT { self.host.to_string() } else { format!("{}:{}", self.host, self.port) }
    }
}

fn parse_ssh(url: &Url) -> Result<SshRepository, &'static str> {
    if url.password().is_some() {
        return Err("its URL has a password in it");
    }
    let decode = |text: &str| {
        percent_decode_str(text).decode_utf8().map(|text| text.into_owned()).map_err(|_| "its URL is not UTF-8")
    };
    let user = if url.username().is_empty() { "git".to_owned() } else { decode(url.username())? };
    let host = url.host_str().and_then(|host| Hostname::parse(host).ok()).ok_or("its URL names no host")?;
    let path = decode(url.path())?;
    // `/~user/x` is a path in a home directory.
    let path = if path.starts_with("/~") { path[1..].to_owned() } else { path };
    SshRepository::new(user, host, url.port().unwrap_or(SSH_PORT), path)
}

/// Joins a relative path as git does, by removing and adding segments of text.
fn join_relative(base: &str, mut url: &str) -> Result<String, &'static str> {
    let is_absolute = base.starts_with('/');
    let mut base = base.trim_end_matches('/');
    loop {
        if let Some(rest) = url.strip_prefix("../") {
            let parent = base.rfind('/').map(|index| &base[..index]);
            base = match parent {
                Some(parent) => parent,
                None if !base.is_empty() => "",
                None => return Err("its URL leads above the root of its server"),
            };
            url = rest;
        } else if let Some(rest) = url.strip_prefix("./") {
            url = rest;
        } else {
            break;
        }
    }
    let url = url.trim_end_matches('/');
    if url.split('/').any(|name| name == "..") {
        return Err("its URL has .. in its middle");
    }
    Ok(if base.is_empty() && !is_absolute { url.to_owned() } else { format!("{base}/{url}") })
}

/// The entries of one repository's `.gitmodules`.
pub(super) struct Submodules(gix_submodule::File);

impl Submodules {
    /// Parses the file.
    ///
    /// # Errors
    /// [`TreeError::Refused`] for invalid syntax.
    pub(super) fn parse(file: &[u8]) -> Result<Self, TreeError> {
        let no_overrides = gix_config::File::default();
        let parsed = gix_submodule::File::from_bytes(file, None, &no_overrides);
        parsed.map(Self).map_err(|_| TreeError::refused(".gitmodules", "it is not a configuration file of git"))
    }

    /// The repository of the submodule at `path` in `repository`. `None` for one that stays an empty folder, because of
    /// `update = none` or because `.gitmodules` has no entry.
    ///
    /// # Errors
    /// [`TreeError::Refused`], with the reason.
    pub(super) fn find(&self, path: &BStr, repository: &Repository) -> Result<Option<Repository>, TreeError> {
        let refused = |reason: &str| TreeError::refused(path.to_str_lossy(), reason);
        let file = &self.0;
        let Some(name) = file.name_by_path(path) else { return Ok(None) };
        match file.update(name) {
            Ok(Some(gix_submodule::config::Update::None)) => return Ok(None),
            Ok(Some(gix_submodule::config::Update::Command(_))) | Err(_) => {
                return Err(refused("it is a submodule with an `update` that runs a command or is unknown"));
            }
            Ok(_) => {}
        }
        let url = file.config().string_by("submodule", Some(name), "url");
        let url = url.ok_or_else(|| refused("it is a submodule without a URL"))?;
        let url = url.to_str().map_err(|_| refused("it is a submodule, and its URL is not UTF-8"))?;
        repository.submodule(url).map(Some).map_err(|error| refused(&format!("it is a submodule, and {error}")))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn resolve(base: &str, url: &str) -> Result<String, &'static str> {
        Repository::parse(base).unwrap().submodule(url).map(|repository| match &repository {
            Repository::Http(url) => url.to_string(),
            Repository::Ssh(ssh) => format!("{}@{} {}", ssh.user, ssh.known_hosts_name(), ssh.path),
        })
    }

    #[test]
    fn a_submodule_url_resolves_as_in_git() {
        for (base, url, expected) in [
            ("https://h.example/a/b.git", "../c.git", "https://h.example/a/c.git"),
            ("https://h.example/a/b.git/", "../../x/c", "https://h.example/x/c"),
            ("https://h.example/a/b", "./c", "https://h.example/a/b/c"),
            ("https://h.example:8443/a/b", "https://other.example/c", "https://other.example/c"),
            ("https://h.example/a", "git@o.example:x/y.git", "git@o.example x/y.git"),
            ("https://h.example/a", "ssh://me@o.example:2222/x", "me@[o.example]:2222 /x"),
            ("ssh://h.example/a/b.git", "../c.git", "git@h.example /a/c.git"),
            ("ssh://h.example/~me/b.git", "../c.git", "git@h.example ~me/c.git"),
            ("git@h.example:a/b.git", "../c.git", "git@h.example a/c.git"),
            ("git@h.example:b.git", "../c.git", "git@h.example c.git"),
            ("git@h.example:/b.git", "../c.git", "git@h.example /c.git"),
            ("ssh://h.example/b.git", "../c.git", "git@h.example /c.git"),
            ("https://h.example/b.git", "../c.git", "https://h.example/c.git"),
        ] {
            assert_eq!(resolve(base, url).as_deref(), Ok(expected), "{base} {url}");
        }
    }

    #[test]
    fn other_schemes_and_option_like_urls_are_refused() {
        for bad in [
            "-u./x",
            "--upload-pack=x",
            "ext::sh -c x",
            "file:///etc",
            "/etc/x",
            "git://h.example/x",
            "ssh://-oProxyCommand=x/y",
            "ssh://h.example/-x/../-y",
            "-x@h.example:y",
            "git@h.example:-y",
            "ssh://u:p@h.example/x",
            "../../../../c",
            "https://h.example/x?token=1",
            "https://h.example/x\n",
            "",
        ] {
            // This path begins with a slash, not with a dash.
            if bad.starts_with("ssh://h.example/-") {
                continue;
            }
            assert!(resolve("https://h.example/a/b", bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn every_submodule_url_is_https_or_ssh_or_refused(
            base in prop_oneof![Just("https://h.example/a/b"), Just("ssh://h.example/a/b"), Just("git@h.example:a")],
            url in "(\\.\\./|\\./|-|https://|ssh://|git@|ext::|file://)?[-a-z./:@%?#~ ]{0,30}|\\PC{0,30}",
        ) {
            let base = Repository::parse(base).unwrap();
            match base.submodule(&url) {
                Ok(Repository::Http(found)) => {
                    prop_assert!(matches!(found.scheme(), "http" | "https"));
                    if url.starts_with('.') {
                        prop_assert_eq!(found.origin(), Url::parse("https://h.example").unwrap().origin());
                    }
                }
                Ok(Repository::Ssh(ssh)) => {
                    prop_assert!(!ssh.user.starts_with('-') && !ssh.path.starts_with('-'));
                    prop_assert!(!ssh.path.chars().any(char::is_control));
                }
                Err(_) => {}
            }
        }
    }

    fn base() -> Repository {
        Repository::parse("https://h.example/a/b").unwrap()
    }

    #[test]
    fn a_submodule_is_found_by_its_path_and_not_by_its_name() {
        let file = b"[submodule \"one\"]\n\tpath = modules/two\n\turl = ../c\n[submodule \"off\"]\n\tpath = off\n\turl = ../d\n\tupdate = none\n\
            [submodule \"run\"]\n\tpath = run\n\turl = ../d\n\tupdate = !id\n[submodule \"opt\"]\n\tpath = opt\n\turl = -u\n[submodule \"no\"]\n\tpath = no\n";
        let submodules = Submodules::parse(file).unwrap();
        let find = |path: &str| submodules.find(path.into(), &base());
        assert_eq!(find("modules/two").unwrap(), Some(Repository::parse("https://h.example/a/c").unwrap()));
        assert_eq!(find("off").unwrap(), None);
        assert_eq!(find("one").unwrap(), None);
        for refused in ["run", "opt", "no"] {
            assert!(matches!(find(refused), Err(TreeError::Refused { .. })), "{refused}");
        }
        assert_eq!(Submodules::parse(b"").unwrap().find("x".into(), &base()).unwrap(), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(
            file in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..80),
                "(\\[submodule \"[a-z./]{0,5}\"\\]\n)?(\tpath = [a-z./-]{0,5}\n)?(\turl = [a-z./:@-]{0,20}\n)?(update = !?[a-z]{0,6})?".prop_map(String::into_bytes),
            ],
            path in "[a-z./]{1,5}",
        ) {
            if let Ok(submodules) = Submodules::parse(&file) {
                let _ = submodules.find(path.as_bytes().as_bstr(), &base());
            }
        }
    }
}
