//! Parses the sources that larder fetches: git repositories, and http or https sources, which are archives or pages that
//! name the source. Query parameters that are for go-getter are removed, because they must not be sent.

use percent_encoding::percent_decode_str;
use url::{Url, form_urlencoded};

use super::checksum::ExpectedChecksum;
use super::{BadSource, PackageSource};
use crate::packaging::ArchiveFormat;

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
/// inspected (PROTOCOL, section 4.4).
pub(super) fn parse_http(mut url: Url) -> Result<PackageSource, BadSource> {
    if !url.username().is_empty() || url.password().is_some() {
        return Err(BadSource::for_url(&url, "holds a user or a password"));
    }
    url.set_fragment(None);
    let parameters = take_parameters(&mut url, &["archive", "checksum"]);
    let format = match parameters.first("archive").filter(|value| !value.is_empty()) {
        Some(value) if FALSE.contains(&value.as_str()) => None,
        Some(value) => ArchiveFormat::named(&value),
        None => ArchiveFormat::of_path(&percent_decode_str(url.path()).collect::<Vec<u8>>()),
    };
    let checksum = parameters.first("checksum").filter(|value| !value.is_empty());
    match (format, checksum) {
        (Some(format), None) => Ok(PackageSource::Archive(ArchiveSource { url, format, checksum: None })),
        (Some(format), Some(checksum)) => {
            let expected = ExpectedChecksum::parse(&checksum).map_err(|error| BadSource::for_url(&url, error.0))?;
            Ok(PackageSource::Archive(ArchiveSource { url, format, checksum: Some(expected) }))
        }
        (None, Some(_)) => Err(BadSource::for_url(&url, "has a checksum, but is not an archive")),
        (None, None) => {
            url.query_pairs_mut().append_pair("terraform-get", "1");
            Ok(PackageSource::Indirect(url))
        }
    }
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
    pub(super) fn parse(mut url: Url) -> Result<Self, BadSource> {
        if url.password().is_some() || (url.scheme() != "ssh" && !url.username().is_empty()) {
            return Err(BadSource::for_url(&url, "holds a user or a password"));
        }
        let parameters = take_parameters(&mut url, &["ref", "depth", "sshkey", "archive", "checksum"]);
        if ["archive", "checksum"].iter().any(|key| parameters.first(key).is_some_and(|value| !value.is_empty())) {
            return Err(BadSource::for_url(&url, "wants an archive or a checksum of a git repository"));
        }
        url.set_fragment(None);
        let depth = parameters.first("depth").and_then(|depth| depth.parse::<i64>().ok()).filter(|depth| *depth > 0);
        Ok(Self {
            reference: parameters.first("ref").filter(|reference| !reference.is_empty()),
            depth: depth.map(|depth| u32::try_from(depth).unwrap_or(u32::MAX)),
            url,
        })
    }
}

/// The removed parameters.
struct TakenParameters(Vec<(String, String)>);

impl TakenParameters {
    /// The first value of a key, like Go's `Query().Get`.
    fn first(&self, key: &str) -> Option<String> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone())
    }
}

/// Removes `keys` from the query. All other parameters stay byte for byte, because they may be signed.
fn take_parameters(url: &mut Url, keys: &[&str]) -> TakenParameters {
    let mut taken = Vec::new();
    let mut remaining = Vec::new();
    for pair in url.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        match form_urlencoded::parse(pair.as_bytes()).next() {
            Some((key, value)) if keys.contains(&key.as_ref()) => taken.push((key.into_owned(), value.into_owned())),
            _ => remaining.push(pair.to_owned()),
        }
    }
    if !taken.is_empty() {
        url.set_query(Some(remaining.join("&")).as_deref().filter(|query| !query.is_empty()));
    }
    TakenParameters(taken)
}
