//! Parses module source addresses like the clients and their go-getter (PROTOCOL, sections 4.3 and 4.4). Makes no requests.

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
    /// Addresses with userinfo are refused (DESIGN, promise 7), except `ssh://git@…`.
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

        let (package, subdir) = subdir::split(&absolute);
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
    let unsupported = |label| PackageSource::Unsupported(Unsupported::new(label, full_address));
    if !has_scheme(address) {
        let Some((getter, expanded)) = short::expand(address)? else {
            let label = forced.map_or_else(|| short::guess_label(address), scheme_label);
            return Ok(LocatedSource { source: unsupported(label), subdir: None });
        };
        let (package, subdir) = subdir::split(&expanded);
        let source = source_of_url(forced.unwrap_or(getter), parse_url(&package)?, full_address)?;
        return Ok(LocatedSource { source, subdir: Subdir::parse(&subdir)? });
    }
    let url = match address.split_once(':') {
        Some((scheme, _)) if !is_supported_scheme(scheme) => {
            let label = scheme_label(forced.unwrap_or(scheme));
            return Ok(LocatedSource { source: unsupported(label), subdir: None });
        }
        _ => parse_url(address)?,
    };
    let scheme = url.scheme().to_owned();
    Ok(LocatedSource { source: source_of_url(forced.unwrap_or(&scheme), url, full_address)?, subdir: None })
}

/// The source of a URL for this getter.
fn source_of_url(getter: &str, url: Url, full_address: &str) -> Result<PackageSource, BadSource> {
    let unsupported = |label| Ok(PackageSource::Unsupported(Unsupported::new(label, full_address)));
    match (getter, url.scheme()) {
        ("git", "http" | "https" | "ssh") => GitSource::parse(url).map(PackageSource::Git),
        ("git", _) => unsupported("git over something else than https or ssh"),
        ("http" | "https", "http" | "https") => archive::parse(url),
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

/// Returns true if Go would parse `text` as a URL with a scheme.
fn has_scheme(text: &str) -> bool {
    text.split_once(':').is_some_and(|(scheme, _)| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    })
}

/// Returns true for schemes that larder parses as URLs.
fn is_supported_scheme(scheme: &str) -> bool {
    ["http", "https", "ssh"].iter().any(|supported| scheme.eq_ignore_ascii_case(supported))
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
