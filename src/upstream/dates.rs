//! The dates at which the versions of a provider or module were published. registry.terraform.io tells those of all versions in
//! one JSON:API document: `/v2/providers/NS/TYPE?include=provider-versions`, `/v2/modules/NS/NAME/SYSTEM?include=module-versions`.
//! No protocol of registries has them.

use std::collections::BTreeMap;

use serde::Deserialize;
use url::Url;

use super::providers::MAX_VERSIONS;
use crate::address::{Address, Version};
use crate::clock::Timestamp;

/// The URL of the dates. `base` is the origin of the registry.
pub fn dates_url(base: &Url, address: &Address) -> Result<Url, url::ParseError> {
    let (kind, included) = match address {
        Address::Provider(_) => ("providers", "provider-versions"),
        Address::Module(_) => ("modules", "module-versions"),
    };
    base.join(&format!("v2/{kind}/{}?include={included}", address.path()))
}

#[derive(Deserialize)]
struct DatesDocument {
    #[serde(default)]
    included: Vec<Included>,
}

#[derive(Deserialize)]
struct Included {
    #[serde(default)]
    attributes: Attributes,
}

/// Members of other types than these are as good as none.
#[derive(Default, Deserialize)]
struct Attributes {
    #[serde(default)]
    version: serde_json::Value,
    #[serde(rename = "published-at", default)]
    published_at: serde_json::Value,
}

/// Parses a registry's document. Entries without a readable version and date are left out.
///
/// # Errors
/// The reason why it is no such document.
pub fn parse(body: &[u8]) -> Result<BTreeMap<Version, Timestamp>, String> {
    let document: DatesDocument =
        serde_json::from_slice(body).map_err(|e| format!("it has no dates of versions: {e}"))?;
    let date = |Included { attributes: Attributes { version, published_at } }: Included| {
        let version = Version::parse_of_module(version.as_str()?).ok()?;
        Some((version, serde_json::from_value::<Timestamp>(published_at.as_str()?.into()).ok()?))
    };
    Ok(document.included.into_iter().take(MAX_VERSIONS).filter_map(date).collect())
}

/// Writes dates as larder stores them, much smaller than the registry's document.
pub fn write(dates: &BTreeMap<Version, Timestamp>) -> Vec<u8> {
    serde_json::to_vec(dates).unwrap_or_default()
}

/// Reads what [`write()`] wrote; nothing from anything else.
pub fn dates_of_record(body: &[u8]) -> BTreeMap<Version, Timestamp> {
    serde_json::from_slice(body).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_dates_of_a_document_are_read_and_written() {
        let body = br#"{"data":{"type":"providers","id":"323"},"included":[
            {"type":"provider-versions","id":"1","attributes":{"version":"5.1.0","published-at":"2023-06-08T18:46:20Z","tag":"v5.1.0"}},
            {"type":"provider-versions","id":"2","attributes":{"version":"v5.2.0","published-at":"2023-06-22T00:00:00.123456Z"}},
            {"type":"provider-versions","attributes":{"version":"5.3.0","published-at":null}},
            {"attributes":{"version":7,"published-at":"2023-06-22T00:00:00Z"}}, {"type":"categories"}]}"#;
        let dates = parse(body).unwrap();
        let texts: Vec<String> =
            dates.iter().map(|(version, date)| format!("{version} {}", date.date_time())).collect();
        assert_eq!(texts, ["5.1.0 2023-06-08T18:46:20Z", "5.2.0 2023-06-22T00:00:00Z"]);
        assert_eq!(dates_of_record(&write(&dates)), dates);
        assert!(parse(b"7").is_err() && parse(b"{\"included\":7}").is_err());
        assert!(parse(b"{}").unwrap().is_empty() && dates_of_record(b"no record").is_empty());
    }

    proptest! {
        #[test]
        fn any_document_is_read_or_refused(body in "\\PC{0,80}|\\{\"included\":\\[(\\{\"attributes\":\\{(\"version\":\"[0-9.v]{0,6}\",)?\"published-at\":\"[-0-9TZ:.]{0,24}\"\\}\\},?){0,3}\\]\\}") {
            if let Ok(dates) = parse(body.as_bytes()) {
                prop_assert_eq!(dates_of_record(&write(&dates)), dates);
            }
        }
    }
}
