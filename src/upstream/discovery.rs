//! Parses discovery documents (service discovery).

use url::Url;

use super::providers::RawObject;
use crate::address::Address;

/// The largest discovery document that clients accept, in bytes.
pub const MAX_DOCUMENT_BYTES: u64 = 1 << 20;

/// A registry service that larder uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Service {
    /// The provider registry.
    Providers,
    /// The module registry.
    Modules,
}

impl Service {
    /// All services.
    pub const ALL: [Self; 2] = [Self::Providers, Self::Modules];

    /// The key of the service in the discovery document.
    pub fn key(self) -> &'static str {
        match self {
            Self::Providers => "providers.v1",
            Self::Modules => "modules.v1",
        }
    }
}

impl From<&Address> for Service {
    fn from(address: &Address) -> Self {
        match address {
            Address::Provider(_) => Self::Providers,
            Address::Module(_) => Self::Modules,
        }
    }
}

/// The services an upstream offers.
#[derive(Debug, Clone)]
pub struct Discovery {
    /// The members of the document, in upstream's order and spelling.
    pub entries: RawObject,
    /// URL of the document. Relative URLs in the entries resolve against this URL.
    pub url: Url,
}

impl Discovery {
    /// Parses a document.
    ///
    /// # Errors
    /// The reason why the document is invalid, for an operator.
    pub fn parse(body: &[u8], url: Url) -> Result<Self, String> {
        let entries = serde_json::from_str(&String::from_utf8_lossy(body));
        let entries = entries.map_err(|e| format!("its discovery document is not a JSON object: {e}"))?;
        Ok(Self { entries, url })
    }

    /// Returns true for a media type that clients accept for this document.
    pub fn accepts(content_type: Option<&str>) -> bool {
        let media_type = content_type.and_then(|value| value.split(';').next()).unwrap_or_default();
        media_type.trim().eq_ignore_ascii_case("application/json")
    }

    /// The base URL of a service that larder uses: the [`service`](Self::service) URL, for modules with a final slash
    /// added, as clients do (service discovery).
    pub fn base(&self, service: Service) -> Option<Url> {
        let mut base = self.service(service.key())?;
        if service == Service::Modules && !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        Some(base)
    }

    /// The URL of the entry `key`, as clients parse it. `None` for an entry that is not a string, for a scheme other than
    /// http and https, and for a URL with userinfo. A fragment is removed. Relative URLs resolve against the document's
    /// URL.
    pub fn service(&self, key: &str) -> Option<Url> {
        let reference: String = serde_json::from_str(self.entries.get(key)?.get()).ok()?;
        let mut url = self.url.join(&reference).ok()?;
        let is_usable =
            matches!(url.scheme(), "http" | "https") && url.username().is_empty() && url.password().is_none();
        url.set_fragment(None);
        is_usable.then_some(url)
    }
}
