//! Parses module source addresses like the clients and their go-getter (PROTOCOL 4.3, 4.4). Makes no requests.

mod archive;
mod checksum;
mod git;
mod indirection;
mod query;
mod short;
mod subdir;
#[cfg(test)]
mod tests;
mod unsupported;

use url::Url;

pub use self::archive::ArchiveSource;
pub use self::checksum::{BadChecksum, Checksum, ChecksumKind, ExpectedChecksum};
pub use self::git::GitSource;
pub use self::indirection::{location_in_download, location_in_page};
pub use self::subdir::Subdir;
pub use self::unsupported::Unsupported;

/// The longest accepted source address, in bytes.
const LONGEST: usize = 8 * 1024;

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
    /// A page that names the source. It is requested at exactly this URL, which includes `terraform-get=1`. Its answer
    /// is parsed with this URL as base.
    Indirect(Url),
    /// A source that only clients can fetch.
    Unsupported(Unsupported),
}

/// The longest DNS name, in characters (RFC 1035, section 2.3.4).
const MAX_HOST: usize = 255;

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
        Self { host: url.host_str().map(|host| host.chars().take(MAX_HOST).collect()), reason }
    }
}

impl PackageSource {
    /// Parses the location of a module. `base` is the requested URL, against which `/…`, `./…` and `../…` resolve.
    /// Addresses with userinfo are refused (DESIGN, promise 7), except `ssh://git@…`.
    ///
    /// # Errors
    /// [`BadSource`] for an unusable or forbidden address.
    pub fn parse(text: &str, base: &Url) -> Result<LocatedSource, BadSource> {
        let given = text.trim_matches(|c: char| c.is_ascii_whitespace());
        if given.len() > LONGEST {
            return Err(BadSource::new("is longer than 8 KiB"));
        }
        if given.is_empty() || given.chars().any(char::is_control) {
            return Err(BadSource::new("is empty, or has control characters in it"));
        }
        let is_relative = ["/", "./", "../"].iter().any(|start| given.starts_with(start));
        let absolute = match is_relative {
            true => base.join(given).map_err(|_| BadSource::for_url(base, "is relative, and leads nowhere"))?.into(),
            false => given.to_owned(),
        };

        let (package, below) = subdir::split(&absolute);
        let mut found = package_of(&package, &absolute)?;
        if let Some(below) = Subdir::parse(&below)? {
            found.subdir = Some(match found.subdir {
                Some(outer) => outer.join(&below)?,
                None => below,
            });
        }
        Ok(found)
    }
}

/// Parses a package's address without its `//subdir`; short forms may contain another.
fn package_of(package: &str, whole: &str) -> Result<LocatedSource, BadSource> {
    let (forced, rest) = forced_getter(package);
    let unsupported = |label| PackageSource::Unsupported(Unsupported::new(label, whole));
    if !has_scheme(rest) {
        let Some((getter, full)) = short::expand(rest)? else {
            let label = forced.map_or_else(|| short::suggestion(rest), scheme_name);
            return Ok(LocatedSource { source: unsupported(label), subdir: None });
        };
        let (package, below) = subdir::split(&full);
        let source = of_url(forced.unwrap_or(getter), parse_url(&package)?, whole)?;
        return Ok(LocatedSource { source, subdir: Subdir::parse(&below)? });
    }
    let url = match rest.split_once(':') {
        Some((scheme, _)) if !is_known(scheme) => {
            let label = scheme_name(forced.unwrap_or(scheme));
            return Ok(LocatedSource { source: unsupported(label), subdir: None });
        }
        _ => parse_url(rest)?,
    };
    let scheme = url.scheme().to_owned();
    Ok(LocatedSource { source: of_url(forced.unwrap_or(&scheme), url, whole)?, subdir: None })
}

/// The source of a URL for this getter.
fn of_url(getter: &str, url: Url, whole: &str) -> Result<PackageSource, BadSource> {
    let unsupported = |label| Ok(PackageSource::Unsupported(Unsupported::new(label, whole)));
    match (getter, url.scheme()) {
        ("git", "http" | "https" | "ssh") => GitSource::parse(url).map(PackageSource::Git),
        ("git", _) => unsupported("git over something else than https or ssh"),
        ("http" | "https", "http" | "https") => archive::parse(url),
        (other, _) => unsupported(scheme_name(other)),
    }
}

/// Splits `git::rest` into getter and rest.
fn forced_getter(text: &str) -> (Option<&str>, &str) {
    match text.split_once("::") {
        Some((name, rest))
            if !name.is_empty() && !rest.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric()) =>
        {
            (Some(name), rest)
        }
        _ => (None, text),
    }
}

/// Returns true if Go would parse it as a URL with a scheme.
fn has_scheme(text: &str) -> bool {
    text.split_once(':').is_some_and(|(scheme, _)| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    })
}

/// Returns true for schemes that larder parses as URLs.
fn is_known(scheme: &str) -> bool {
    ["http", "https", "ssh"].iter().any(|known| scheme.eq_ignore_ascii_case(known))
}

fn parse_url(text: &str) -> Result<Url, BadSource> {
    let url = Url::parse(text).map_err(|_| BadSource::new("is not a URL that can be read"))?;
    if !url.has_host() {
        return Err(BadSource::new("names no host"));
    }
    Ok(url)
}

/// A label for people, for a getter or scheme.
fn scheme_name(scheme: &str) -> &'static str {
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
