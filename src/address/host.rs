//! Host names of registries. All spellings of one host are one key.

use std::borrow::Borrow;

use idna::uts46::{AsciiDenyList, DnsLength, Hyphens, Uts46};
use serde::{Deserialize, Serialize};

use super::{BadAddress, MAX_PART};

/// The host name of a registry in normal form: lower-case ASCII (punycode), without `:443`, with any other port.
///
/// Accepts the spellings of terraform-svchost (PROTOCOL, section 1.1): Unicode or punycode, any case, no trailing dot,
/// no underscore.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Hostname(String);

impl Hostname {
    /// Parses `registry.example`, `Bücher.example:8443`, `xn--bcher-kva.example`.
    pub fn parse(text: &str) -> Result<Self, BadAddress> {
        let bad = |reason| BadAddress::new("host name", text, reason);
        let (name, port) = match text.rsplit_once(':') {
            None => (text, None),
            Some((name, port)) => {
                let is_number = !port.is_empty() && port.len() <= 5 && port.bytes().all(|b| b.is_ascii_digit());
                let port = port.parse::<u16>().ok().filter(|port| is_number && *port != 0);
                (name, Some(port.ok_or_else(|| bad("its port is not a number from 1 to 65535"))?))
            }
        };
        let ascii = to_ascii(name).ok_or_else(|| bad("it is not a domain name"))?;
        // Users write the Unicode spelling, so that must parse to the same name. UTS 46 decodes labels like `xn--xn--…`
        // to other names.
        if ascii.contains("xn--") && to_ascii(&idna::domain_to_unicode(&ascii).0).as_ref() != Some(&ascii) {
            return Err(bad("it has no spelling in Unicode that is a domain name"));
        }
        if ascii.len() > MAX_PART - ":65535".len() {
            return Err(bad("it is longer than 122 bytes"));
        }
        Ok(match port {
            None | Some(443) => Self(ascii),
            Some(port) => Self(format!("{ascii}:{port}")),
        })
    }

    /// The host name in normal form, as in larder's URLs, file names and logs.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name without its port.
    pub fn name(&self) -> &str {
        self.0.split_once(':').map_or(self.0.as_str(), |(name, _)| name)
    }

    /// The port, where it is not 443.
    pub fn port(&self) -> Option<u16> {
        self.0.split_once(':').and_then(|(_, port)| port.parse().ok())
    }

    /// The spelling that users write: clients refuse labels beginning `xn--` in their configuration.
    pub fn to_unicode(&self) -> String {
        let (unicode, _) = idna::domain_to_unicode(self.name());
        match self.port() {
            Some(port) => format!("{unicode}:{port}"),
            None => unicode,
        }
    }
}

/// Converts a domain name to lower-case ASCII; `None` if it is not a domain name.
fn to_ascii(name: &str) -> Option<String> {
    let ascii = Uts46::new().to_ascii(name.as_bytes(), AsciiDenyList::STD3, Hyphens::Allow, DnsLength::Verify);
    ascii.ok().map(|ascii| ascii.into_owned())
}

/// Allows lookups in maps by a text that is in normal form.
impl Borrow<str> for Hostname {
    fn borrow(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn host(given: &str) -> String {
        Hostname::parse(given).map_or_else(|_| "refused".to_owned(), |host| host.to_string())
    }

    #[test]
    fn every_spelling_of_a_host_is_one_key() {
        for (given, key) in [
            ("registry.terraform.io", "registry.terraform.io"),
            ("Registry.Terraform.IO", "registry.terraform.io"),
            ("registry.terraform.io:443", "registry.terraform.io"),
            ("registry.terraform.io:8443", "registry.terraform.io:8443"),
            ("registry.terraform.io:08443", "registry.terraform.io:8443"),
            ("Bücher.example", "xn--bcher-kva.example"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("XN--BCHER-KVA.example:443", "xn--bcher-kva.example"),
            ("localhost:5000", "localhost:5000"),
            ("127.0.0.1:8443", "127.0.0.1:8443"),
            ("registry.terraform.io.", "refused"),
            ("", "refused"),
            (":443", "refused"),
            ("a b", "refused"),
            ("a/b", "refused"),
            ("..", "refused"),
            ("a..b", "refused"),
            ("host:", "refused"),
            ("host:0", "refused"),
            ("host:65536", "refused"),
            ("host:+80", "refused"),
            ("user@host", "refused"),
            ("under_score.example", "refused"),
            ("[::1]:80", "refused"),
            ("xn--zzzzzz--.example", "refused"),
            ("xn--xn--bcher-n--bcher-kva.example", "refused"),
        ] {
            assert_eq!(host(given), key, "{given}");
        }
        assert_eq!(Hostname::parse("xn--bcher-kva.example:81").map(|h| h.to_unicode()), Ok("bücher.example:81".into()));
    }

    proptest! {
        #[test]
        fn a_parsed_host_parses_to_itself(given in "\\PC{0,40}|[a-zA-Zé.-]{1,20}(:[0-9]{1,5})?|(xn--)?[a-z0-9-]{1,20}") {
            if let Ok(parsed) = Hostname::parse(&given) {
                prop_assert_eq!(Hostname::parse(parsed.as_str()), Ok(parsed.clone()));
                prop_assert!(!parsed.as_str().contains('/'));
                prop_assert_eq!(Hostname::parse(&parsed.to_unicode()), Ok(parsed));
            }
        }
    }
}
