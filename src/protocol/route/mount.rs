//! Where larder is mounted, and how its own URLs are written.

use url::Url;

use crate::cdn_loop::CdnLoop;

/// How URLs are written in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// From the root of whatever host the client used: `/archive/…`.
    PathAbsolute,
    /// With `public_url` in front.
    Public,
}

/// Where larder is mounted: `public_url`, taken apart.
#[derive(Debug, Clone, Default)]
pub struct Mount {
    origin: Option<String>,
    prefix: String,
}

impl Mount {
    /// Takes `public_url` apart; without one, larder is at the root of whatever host it is asked at.
    pub fn new(public_url: Option<&Url>) -> Self {
        public_url.map_or_else(Self::default, |url| Self {
            origin: Some(url.origin().ascii_serialization()),
            prefix: url.path().trim_end_matches('/').to_owned(),
        })
    }

    /// The form of the URLs in the answer to a request that came through `via`. Another larder in front
    /// of this one resolves paths against where it asked, and must not be led to our public name.
    pub fn form(&self, via: &CdnLoop) -> Form {
        if self.origin.is_some() && !via.names_a_larder() { Form::Public } else { Form::PathAbsolute }
    }

    /// A path of ours as it is written in an answer.
    pub fn url(&self, form: Form, path: &str) -> String {
        let origin = self.origin.as_deref().filter(|_| form == Form::Public).unwrap_or_default();
        format!("{origin}{}{path}", self.prefix)
    }

    /// The path below the mount. Requests come with the prefix, or without where a proxy took it off.
    pub fn below<'a>(&self, path: &'a str) -> &'a str {
        match path.strip_prefix(&self.prefix) {
            Some(below) if below.starts_with('/') => below,
            _ => path,
        }
    }
}
