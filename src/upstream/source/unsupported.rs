//! Sources that larder cannot fetch, and what clients may see of them.

use url::form_urlencoded;

use super::forced_getter;

/// Query parameters that may reach a client, because none of them is a secret (DESIGN 6).
const HARMLESS: [&str; 7] = ["ref", "archive", "checksum", "depth", "version", "tag", "digest"];

/// A source that only the client itself can fetch.
#[derive(Clone, PartialEq, Eq)]
pub struct Unsupported {
    label: &'static str,
    text: String,
}

impl Unsupported {
    pub(super) fn new(label: &'static str, text: &str) -> Self {
        Self { label, text: text.to_owned() }
    }

    /// A label for people: "an Amazon S3 bucket".
    pub fn kind_name(&self) -> &'static str {
        self.label
    }

    /// Its host, without userinfo and port: the only part that may be shown.
    pub fn host(&self) -> Option<String> {
        let (_, host) = self.authority().rsplit_once('@').unwrap_or(("", self.authority()));
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
        let (path, query) = self.text.split_once('?').unwrap_or((&self.text, ""));
        let is_harmless =
            |pair: &str| form_urlencoded::parse(pair.as_bytes()).all(|(key, _)| HARMLESS.contains(&key.as_ref()));
        // Anything that may be userinfo or hide a query is treated as such. The address becomes a header, which is
        // ASCII only.
        let is_plain = !path.contains(['@', '#', ' ']) && !query.contains(['@', '#', ' ', ';', '?']);
        let is_for_a_header = self.text.bytes().all(|byte| byte.is_ascii_graphic());
        (is_plain && is_for_a_header && query.split('&').all(is_harmless)).then_some(&self.text)
    }

    fn authority(&self) -> &str {
        let (_, after_getter) = forced_getter(&self.text);
        let after_scheme = after_getter.split_once("://").map_or(after_getter, |(_, rest)| rest);
        after_scheme.split(['/', '?', '#']).next().unwrap_or_default()
    }
}

impl std::fmt::Debug for Unsupported {
    /// Without the address, which may contain secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unsupported").field("what", &self.label).field("host", &self.host()).finish_non_exhaustive()
    }
}
