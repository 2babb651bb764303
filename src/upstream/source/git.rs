//! Parses `git::` sources.

use url::Url;

use super::BadSource;
use super::query;

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
        let parameters = query::take(&mut url, &["ref", "depth", "sshkey", "archive", "checksum"]);
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
