//! Parses discovery documents (PROTOCOL 1.1).

use url::Url;

use super::providers::RawObject;

/// The largest discovery document that clients accept, in bytes.
pub const LIMIT: u64 = 1 << 20;

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

    /// Its key in the discovery document.
    pub fn key(self) -> &'static str {
        match self {
            Self::Providers => "providers.v1",
            Self::Modules => "modules.v1",
        }
    }
}

/// The services an upstream offers.
#[derive(Debug, Clone)]
pub struct Discovery {
    /// All entries, in upstream's order and spelling.
    pub entries: RawObject,
    /// URL of the document: relative entries resolve against it.
    pub url: Url,
}

impl Discovery {
    /// Parses a document.
    ///
    /// # Errors
    /// The reason why it is invalid, for an operator.
    pub fn parse(body: &[u8], url: Url) -> Result<Self, String> {
        let entries =
            serde_json::from_slice(body).map_err(|e| format!("its discovery document is not a JSON object: {e}"))?;
        Ok(Self { entries, url })
    }

    /// Returns true for a media type that clients accept for this document.
    pub fn accepts(content_type: Option<&str>) -> bool {
        let essence = content_type.and_then(|value| value.split(';').next()).unwrap_or_default();
        essence.trim().eq_ignore_ascii_case("application/json")
    }

    /// The base URL of a service. For modules a final slash is added, as clients do (PROTOCOL 1.1).
    pub fn base(&self, service: Service) -> Option<Url> {
        let mut base = self.service(service.key())?;
        if service == Service::Modules && !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        Some(base)
    }

    /// The base URL of a service, parsed like the clients do: a string, http or https, no userinfo, no fragment,
    /// relative to the document's URL.
    pub fn service(&self, name: &str) -> Option<Url> {
        let reference: String = serde_json::from_str(self.entries.get(name)?.get()).ok()?;
        let mut url = self.url.join(&reference).ok()?;
        let plain = matches!(url.scheme(), "http" | "https") && url.username().is_empty() && url.password().is_none();
        url.set_fragment(None);
        plain.then_some(url)
    }
}
