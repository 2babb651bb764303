//! Sources that larder cannot fetch, and the check that they are safe to show to clients.

use url::form_urlencoded;

use super::split_forced_getter;

/// Query parameters that may reach a client, because none of them is a secret (DESIGN, section 6).
const HARMLESS_PARAMETERS: [&str; 7] = ["ref", "archive", "checksum", "depth", "version", "tag", "digest"];

/// A source that only the client itself can fetch.
#[derive(Clone, PartialEq, Eq)]
pub struct Unsupported {
    label: &'static str,
    address: String,
}

impl Unsupported {
    pub(super) fn new(label: &'static str, address: &str) -> Self {
        Self { label, address: address.to_owned() }
    }

    /// A label for people: "an Amazon S3 bucket".
    pub fn kind_name(&self) -> &'static str {
        self.label
    }

    /// The host of the address, without userinfo and port. No other part may be shown.
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

    fn authority(&self) -> &str {
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
