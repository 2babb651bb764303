//! Parses module source addresses like the clients and their go-getter (module registry protocol, go-getter). Makes no
//! requests.

mod checksum;
mod indirection;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use percent_encoding::percent_decode_str;
use url::{Url, form_urlencoded};

pub use self::checksum::{Checksum, ChecksumKind, ExpectedChecksum};
pub use self::indirection::{location_in_download, location_in_page};
use crate::packaging::{ArchiveFormat, TreePath};

/// The longest accepted source address, in bytes.
const MAX_ADDRESS_BYTES: usize = 8 * 1024;

/// The source of a module: its package, and the folder in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocatedSource {
    /// The package.
    pub source: PackageSource,
    /// The module's folder in the package; `None` for the root.
    pub subdir: Option<Subdir>,
}

/// The source of a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PackageSource {
    /// One commit of a git repository.
    Git(GitSource),
    /// An archive over http or https.
    Archive(ArchiveSource),
    /// A page that names the source. The page is requested at exactly this URL, which includes `terraform-get=1`, and its
    /// answer is parsed with this URL as base.
    Indirect(Url),
    /// A source that only clients can fetch.
    Unsupported(Unsupported),
}

/// The longest DNS name, in characters (RFC 1035, section 2.3.4).
const MAX_HOST_CHARS: usize = 255;

/// An invalid or forbidden source address. The error names the host at most, because the rest may contain secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the source address{} {reason}", host.as_ref().map_or_else(String::new, |host| format!(" at {host}")))]
pub struct BadSource {
    /// The host, if the address has one, cut to the longest DNS name.
    pub host: Option<String>,
    /// The problem.
    pub reason: &'static str,
}

impl BadSource {
    fn new(reason: &'static str) -> Self {
        Self { host: None, reason }
    }

    fn for_url(url: &Url, reason: &'static str) -> Self {
        Self { host: url.host_str().map(|host| host.chars().take(MAX_HOST_CHARS).collect()), reason }
    }
}

impl PackageSource {
    /// Parses the location of a module. `base` is the requested URL, against which `/…`, `./…` and `../…` resolve.
    /// Addresses with userinfo are refused (promise 7), except `ssh://git@…`.
    ///
    /// # Errors
    /// [`BadSource`] for an unusable or forbidden address.
    pub fn parse(text: &str, base: &Url) -> Result<LocatedSource, BadSource> {
        let address = text.trim_matches(|c: char| c.is_ascii_whitespace());
        if address.len() > MAX_ADDRESS_BYTES {
            return Err(BadSource::new("is longer than 8 KiB"));
        }
        if address.is_empty() || address.chars().any(char::is_control) {
            return Err(BadSource::new("is empty, or has control characters in it"));
        }
        let is_relative = ["/", "./", "../"].iter().any(|prefix| address.starts_with(prefix));
        let absolute = match is_relative {
            true => base.join(address).map_err(|_| BadSource::for_url(base, "is relative, and leads nowhere"))?.into(),
            false => address.to_owned(),
        };

        let (package, subdir) = split_subdir(&absolute);
        let mut located = parse_package(&package, &absolute)?;
        if let Some(subdir) = Subdir::parse(&subdir)? {
            located.subdir = Some(match located.subdir {
                Some(outer) => outer.join(&subdir)?,
                None => subdir,
            });
        }
        Ok(located)
    }
}

/// Parses a package's address without its `//subdir`. A short form may contain another `//subdir`. `full_address` is the
/// address with everything, for unsupported sources.
fn parse_package(package: &str, full_address: &str) -> Result<LocatedSource, BadSource> {
    let (forced, address) = split_forced_getter(package);
    let unsupported = |label| {
        let source = PackageSource::Unsupported(Unsupported::new(label, full_address));
        Ok(LocatedSource { source, subdir: None })
    };
    let Some(scheme) = scheme_of(address) else {
        let Some(expanded) = expand_short_form(address)? else {
            return unsupported(forced.map_or_else(|| guess_label(address), scheme_label));
        };
        let (package, subdir) = split_subdir(&expanded);
        let source = source_of_url(forced.unwrap_or("git"), parse_url(&package)?, full_address)?;
        return Ok(LocatedSource { source, subdir: Subdir::parse(&subdir)? });
    };
    let scheme = scheme.to_ascii_lowercase();
    if !["http", "https", "ssh"].contains(&scheme.as_str()) {
        return unsupported(scheme_label(forced.unwrap_or(&scheme)));
    }
    let source = source_of_url(forced.unwrap_or(&scheme), parse_url(address)?, full_address)?;
    Ok(LocatedSource { source, subdir: None })
}

/// The source of a URL for this getter.
fn source_of_url(getter: &str, url: Url, full_address: &str) -> Result<PackageSource, BadSource> {
    let unsupported = |label| Ok(PackageSource::Unsupported(Unsupported::new(label, full_address)));
    match (getter, url.scheme()) {
        ("git", "http" | "https" | "ssh") => GitSource::parse(url).map(PackageSource::Git),
        ("git", _) => unsupported("git over something else than https or ssh"),
        ("http" | "https", "http" | "https") => parse_http(url),
        (getter, _) => unsupported(scheme_label(getter)),
    }
}

/// Splits `git::ADDRESS` into getter and address.
fn split_forced_getter(text: &str) -> (Option<&str>, &str) {
    match text.split_once("::") {
        Some((name, address))
            if !name.is_empty() && !address.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric()) =>
        {
            (Some(name), address)
        }
        _ => (None, text),
    }
}

/// The scheme of `text`, if Go would parse `text` as a URL with a scheme.
fn scheme_of(text: &str) -> Option<&str> {
    let (scheme, _) = text.split_once(':')?;
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    is_scheme.then_some(scheme)
}

fn parse_url(text: &str) -> Result<Url, BadSource> {
    let url = Url::parse(text).map_err(|_| BadSource::new("is not a URL that can be read"))?;
    if !url.has_host() {
        return Err(BadSource::new("names no host"));
    }
    Ok(url)
}

/// A label for people, for a getter or scheme.
fn scheme_label(scheme: &str) -> &'static str {
    match scheme.to_ascii_lowercase().as_str() {
        "s3" => "an Amazon S3 bucket",
        "gcs" => "a Google Cloud Storage bucket",
        "hg" => "a Mercurial repository",
        "oci" => "an OCI registry",
        "file" => "a path on the client's own machine",
        "git" => "git over something else than https or ssh",
        "ssh" => "ssh without git::",
        _ => "a kind of source that it does not know",
    }
}

/// Expands a short form of a git repository to its full address; `None` for text that is no short form.
fn expand_short_form(text: &str) -> Result<Option<String>, BadSource> {
    let (path, query) = text.split_at(text.find('?').unwrap_or(text.len()));
    let expanded = if ["github.com/", "gitlab.com/"].iter().any(|host| path.starts_with(host)) {
        let mut names = path.splitn(4, '/');
        let (Some(host), Some(owner), Some(repository)) = (names.next(), names.next(), names.next()) else {
            return Err(BadSource::new("is short for a repository, but is not HOST/OWNER/REPOSITORY"));
        };
        let subdir = names.next().map_or_else(String::new, |subdir| format!("//{subdir}"));
        format!("https://{host}/{owner}/{}{subdir}{query}", with_git_suffix(repository))
    } else if path.starts_with("bitbucket.org/") {
        format!("https://{}{query}", with_git_suffix(path))
    } else if let Some((host, path)) = path.strip_prefix("git@").and_then(|server| server.split_once(':')) {
        format!("ssh://git@{host}/{}{query}", path.strip_prefix('/').unwrap_or(path))
    } else {
        return Ok(None);
    };
    Ok(Some(expanded))
}

fn with_git_suffix(repository: &str) -> String {
    if repository.ends_with(".git") { repository.to_owned() } else { format!("{repository}.git") }
}

/// Guesses what an address without a scheme is, as a label for people.
fn guess_label(text: &str) -> &'static str {
    let host = text.split('/').next().unwrap_or_default();
    let is_name =
        |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    let names: Vec<&str> = text.split('/').collect();
    match host {
        "www.googleapis.com" => "a Google Cloud Storage bucket",
        host if host.ends_with(".amazonaws.com") => "an Amazon S3 bucket",
        _ if text.starts_with('.') || text.contains('\\') => "a path on the client's own machine",
        host if names.len() == 4 && host.contains('.') && names[1..].iter().all(|name| is_name(name)) => {
            "a registry address"
        }
        _ if names.len() == 3 && names.iter().all(|name| is_name(name)) => "a registry address",
        _ => "a kind of source that it does not know",
    }
}

/// Query parameters that may reach a client, because none of them is a secret.
const HARMLESS_PARAMETERS: [&str; 7] = ["ref", "archive", "checksum", "depth", "version", "tag", "digest"];

/// A source that only the client itself can fetch.
#[derive(Clone, PartialEq, Eq)]
pub struct Unsupported {
    label: &'static str,
    address: String,
}

impl Unsupported {
    fn new(label: &'static str, address: &str) -> Self {
        Self { label, address: address.to_owned() }
    }

    /// A label for people: "an Amazon S3 bucket".
    pub fn kind_name(&self) -> &'static str {
        self.label
    }

    /// The kind and the host, for people: "an Amazon S3 bucket at s3.example".
    pub fn describe(&self) -> String {
        format!("{} at {}", self.label, self.host().as_deref().unwrap_or("an unknown host"))
    }

    /// The host of the address, without userinfo and port. No other part may be shown.
    pub fn host(&self) -> Option<String> {
        let (_, host) = self.authority_text().rsplit_once('@').unwrap_or(("", self.authority_text()));
        let name = match host.strip_prefix('[') {
            Some(address) => address.split(']').next().unwrap_or_default(),
            None => host.split(':').next().unwrap_or_default(),
        };
        let is_host = name.contains(['.', ':'])
            && name.len() <= 253
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-:".contains(&byte));
        is_host.then(|| name.to_ascii_lowercase())
    }

    /// The address as upstream gave it, if a client may see it: without userinfo, and without a query that could be a
    /// secret. A registry's own credentials must not reach clients.
    pub fn for_client(&self) -> Option<&str> {
        let (path, query) = self.address.split_once('?').unwrap_or((&self.address, ""));
        let is_harmless = |pair: &str| {
            form_urlencoded::parse(pair.as_bytes()).all(|(key, _)| HARMLESS_PARAMETERS.contains(&key.as_ref()))
        };
        // Anything that may be userinfo or hide a query is treated as such. The address becomes the value of a header,
        // which is ASCII only.
        let is_plain = !path.contains(['@', '#', ' ']) && !query.contains(['@', '#', ' ', ';', '?']);
        let is_header_value = self.address.bytes().all(|byte| byte.is_ascii_graphic());
        (is_plain && is_header_value && query.split('&').all(is_harmless)).then_some(&self.address)
    }

    fn authority_text(&self) -> &str {
        let (_, without_getter) = split_forced_getter(&self.address);
        let without_scheme = without_getter.split_once("://").map_or(without_getter, |(_, rest)| rest);
        without_scheme.split(['/', '?', '#']).next().unwrap_or_default()
    }
}

impl std::fmt::Debug for Unsupported {
    /// Omits the address, which may contain secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unsupported").field("label", &self.label).field("host", &self.host()).finish_non_exhaustive()
    }
}

/// Pattern characters of Go's `filepath.Glob`. A `?` starts the query, so it never occurs in a subdir.
const GLOB_CHARS: [char; 3] = ['*', '[', '\\'];

/// The folder of a module in its package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subdir {
    /// A folder by its path.
    Plain(TreePath),
    /// A folder below the folder that a pattern matches. Clients do not expand patterns for registry modules
    /// (go-getter), so larder makes the matched folder the root of the package that it serves.
    Glob {
        /// The pattern, up to the last segment with a pattern character.
        wrapper: String,
        /// The path below the matched folder.
        rest: TreePath,
    },
}

impl Subdir {
    /// Parses the text after the `//`. Empty text and `.` are the root.
    fn parse(text: &str) -> Result<Option<Self>, BadSource> {
        let names: Vec<&str> = text.split('/').filter(|name| !name.is_empty() && *name != ".").collect();
        if names.contains(&"..") {
            return Err(BadSource::new("has a .. in its //subdir"));
        }
        let pattern_end = names.iter().rposition(|name| name.contains(GLOB_CHARS)).map_or(0, |last| last + 1);
        let (wrapper, rest) = names.split_at(pattern_end);
        let rest = TreePath::parse(rest.join("/").as_bytes());
        let rest = rest.map_err(|_| BadSource::new("has a //subdir that no folder can have"))?;
        Ok(match wrapper {
            [] if rest.is_root() => None,
            [] => Some(Self::Plain(rest)),
            wrapper => Some(Self::Glob { wrapper: wrapper.join("/"), rest }),
        })
    }

    /// The path in the served package, whose root is the folder that a pattern matched; `None` for the root.
    pub fn in_package(&self) -> Option<&TreePath> {
        let (Self::Plain(path) | Self::Glob { rest: path, .. }) = self;
        Some(path).filter(|path| !path.is_root())
    }

    /// Appends `inner`. `self` is the subdir that an indirection names, `inner` that of the address before it.
    ///
    /// # Errors
    /// [`BadSource`] if the result is too long.
    pub fn join(&self, inner: &Self) -> Result<Self, BadSource> {
        let join = |outer: &TreePath, inner: &TreePath| {
            outer.join(inner).map_err(|_| BadSource::new("has a //subdir that is too long"))
        };
        Ok(match (self, inner) {
            (Self::Plain(outer), Self::Plain(inner)) => Self::Plain(join(outer, inner)?),
            (Self::Glob { wrapper, rest }, Self::Plain(inner)) => {
                Self::Glob { wrapper: wrapper.clone(), rest: join(rest, inner)? }
            }
            (outer, Self::Glob { wrapper, rest }) => {
                Self::Glob { wrapper: format!("{outer}/{wrapper}"), rest: rest.clone() }
            }
        })
    }
}

impl std::fmt::Display for Subdir {
    /// The subdir as in an address, without the two slashes.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Plain(path) => path.fmt(f),
            Self::Glob { wrapper, rest } if rest.is_root() => f.write_str(wrapper),
            Self::Glob { wrapper, rest } => write!(f, "{wrapper}/{rest}"),
        }
    }
}

/// Splits an address into its package, query included, and its subdir, as go-getter does.
fn split_subdir(text: &str) -> (String, String) {
    let (path, query) = text.split_at(text.find('?').unwrap_or(text.len()));
    let (scheme, path) = path.split_at(path.find("://").map_or(0, |index| index + 3));
    match path.split_once("//") {
        Some((package, subdir)) => (format!("{scheme}{package}{query}"), subdir.to_owned()),
        None => (text.to_owned(), String::new()),
    }
}

/// An archive to download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveSource {
    /// The URL, without go-getter's parameters.
    pub url: Url,
    /// The archive format.
    pub format: ArchiveFormat,
    /// Expected checksum, if the address has one.
    pub checksum: Option<ExpectedChecksum>,
}

/// The values that Go's `strconv.ParseBool` parses as false.
const FALSE: [&str; 6] = ["0", "f", "F", "false", "FALSE", "False"];

/// Parses an http or https source. `?archive=` or the suffix of the path makes it an archive; the content is never
/// inspected (go-getter).
fn parse_http(mut url: Url) -> Result<PackageSource, BadSource> {
    if !url.username().is_empty() || url.password().is_some() {
        return Err(BadSource::for_url(&url, "holds a user or a password"));
    }
    url.set_fragment(None);
    let parameters = take_parameters(&mut url, &["archive", "checksum"]);
    let format = match parameters.get("archive") {
        Some(value) if FALSE.contains(&value.as_str()) => None,
        Some(value) => ArchiveFormat::named(value),
        None => ArchiveFormat::of_path(&percent_decode_str(url.path()).collect::<Vec<u8>>()),
    };
    let checksum = parameters.get("checksum");
    let Some(format) = format else {
        if checksum.is_some() {
            return Err(BadSource::for_url(&url, "has a checksum, but is not an archive"));
        }
        url.query_pairs_mut().append_pair("terraform-get", "1");
        return Ok(PackageSource::Indirect(url));
    };
    let checksum = checksum.map(|text| ExpectedChecksum::parse(text)).transpose();
    let checksum = checksum.map_err(|reason| BadSource::for_url(&url, reason))?;
    Ok(PackageSource::Archive(ArchiveSource { url, format, checksum }))
}

/// One commit of a repository, as a source address names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitSource {
    /// The repository URL: https, http or ssh, without go-getter's parameters. No userinfo, except the user of ssh.
    pub url: Url,
    /// The parameter `ref`: a branch, a tag or a commit. `None` is upstream's HEAD.
    pub reference: Option<String>,
    /// The parameter `depth`. With a depth, clients prefer a branch to a tag of the same name, and accept no commit ids.
    pub depth: Option<u32>,
}

impl GitSource {
    /// Removes go-getter's parameters from the URL; other parameters stay. An `sshkey` is dropped, because the operator
    /// configures the key.
    fn parse(mut url: Url) -> Result<Self, BadSource> {
        if url.password().is_some() || (url.scheme() != "ssh" && !url.username().is_empty()) {
            return Err(BadSource::for_url(&url, "holds a user or a password"));
        }
        let mut parameters = take_parameters(&mut url, &["ref", "depth", "sshkey", "archive", "checksum"]);
        if parameters.contains_key("archive") || parameters.contains_key("checksum") {
            return Err(BadSource::for_url(&url, "wants an archive or a checksum of a git repository"));
        }
        url.set_fragment(None);
        let depth = parameters.get("depth").and_then(|depth| depth.parse::<i64>().ok()).filter(|depth| *depth > 0);
        Ok(Self {
            reference: parameters.remove("ref"),
            depth: depth.map(|depth| u32::try_from(depth).unwrap_or(u32::MAX)),
            url,
        })
    }
}

/// Removes `keys` from the query, and returns the first value of each, like Go's `Query().Get`. Empty values count as
/// absent. All other parameters stay byte for byte, because they may be signed.
fn take_parameters(url: &mut Url, keys: &[&str]) -> HashMap<String, String> {
    let mut taken = HashMap::new();
    let mut remaining = Vec::new();
    for pair in url.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        match form_urlencoded::parse(pair.as_bytes()).next() {
            Some((key, value)) if keys.contains(&key.as_ref()) => {
                taken.entry(key.into_owned()).or_insert(value.into_owned());
            }
            _ => remaining.push(pair.to_owned()),
        }
    }
    if !taken.is_empty() {
        url.set_query(Some(remaining.join("&")).as_deref().filter(|query| !query.is_empty()));
    }
    taken.retain(|_, value| !value.is_empty());
    taken
}
