//! The query of a registry API page: supported parameters with valid values, in a fixed order. This limits the number of
//! cached pages, because each page has one spelling.

use url::form_urlencoded::{Serializer, parse};

use crate::address::{BadAddress, ModuleName};

/// The longest search text, in characters.
const MAX_SEARCH_CHARS: usize = 128;

/// Prefix of link-tracking parameters, which registries ignore.
const TRACKING_PREFIX: &str = "utm_";
/// Characters of an unsupported parameter that an error quotes.
const MAX_QUOTED_CHARS: usize = 64;

/// A parameter of the registry API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Parameter {
    /// Page size.
    Limit,
    /// Filter by namespace.
    Namespace,
    /// Number of entries to skip.
    Offset,
    /// Filter by module system or provider.
    Provider,
    /// Search text.
    Search,
    /// Verified entries only.
    Verified,
}

impl Parameter {
    const ALL: [Self; 6] = [Self::Limit, Self::Namespace, Self::Offset, Self::Provider, Self::Search, Self::Verified];

    fn key(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Namespace => "namespace",
            Self::Offset => "offset",
            Self::Provider => "provider",
            Self::Search => "q",
            Self::Verified => "verified",
        }
    }

    fn from_key(key: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|parameter| parameter.key() == key)
    }
}

/// An invalid query.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadQuery {
    /// A parameter that the page does not have.
    #[error("there is no parameter {0:?} here")]
    Unknown(String),
    /// Not a number.
    #[error("{0} must be a number")]
    NoNumber(&'static str),
    /// Not a valid name.
    #[error(transparent)]
    NoName(#[from] BadAddress),
    /// Not a valid search text.
    #[error("q must be text of at most {MAX_SEARCH_CHARS} characters, without control characters")]
    NoSearch,
}

/// Parameters of a page.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct PageQuery {
    /// Page size.
    pub limit: Option<u32>,
    /// Filter by namespace.
    pub namespace: Option<ModuleName>,
    /// Number of entries to skip; `None` is 0, the protocol's default.
    pub offset: Option<u32>,
    /// Filter by module system or provider.
    pub provider: Option<ModuleName>,
    /// Search text.
    pub search: Option<Box<str>>,
    /// Verified entries only: `true` means yes, any other value no.
    pub is_verified_only: bool,
}

impl PageQuery {
    /// Parses a query. Link-tracking parameters (`utm_…`) and empty values are dropped. Of repeated parameters the
    /// first is used. A number that is too large becomes the maximum.
    ///
    /// # Errors
    /// [`BadQuery`] names the parameter that is not in `supported`, or the invalid value.
    pub fn parse(query: &str, supported: &[Parameter]) -> Result<Self, BadQuery> {
        let mut page_query = Self::default();
        let mut parsed = Vec::new();
        for (key, value) in parse(query.as_bytes()) {
            if key.starts_with(TRACKING_PREFIX) {
                continue;
            }
            let known = Parameter::from_key(&key).filter(|parameter| supported.contains(parameter));
            let parameter = known.ok_or_else(|| BadQuery::Unknown(key.chars().take(MAX_QUOTED_CHARS).collect()))?;
            if value.is_empty() || parsed.contains(&parameter) {
                continue;
            }
            parsed.push(parameter);
            match parameter {
                Parameter::Limit => page_query.limit = Some(parse_number(parameter, &value)?),
                Parameter::Offset => {
                    page_query.offset = Some(parse_number(parameter, &value)?).filter(|offset| *offset > 0)
                }
                Parameter::Namespace => page_query.namespace = Some(ModuleName::parse(&value)?),
                Parameter::Provider => page_query.provider = Some(ModuleName::parse(&value)?),
                Parameter::Search => page_query.search = Some(parse_search(&value)?),
                Parameter::Verified => page_query.is_verified_only = value == "true",
            }
        }
        Ok(page_query)
    }

    /// The query in its normal form; empty if no parameter is set.
    pub fn text(&self) -> String {
        let mut serializer = Serializer::new(String::new());
        let mut add = |parameter: Parameter, value: Option<&str>| {
            if let Some(value) = value {
                serializer.append_pair(parameter.key(), value);
            }
        };
        let digits = |number: Option<u32>| number.map(|number| number.to_string());
        add(Parameter::Limit, digits(self.limit).as_deref());
        add(Parameter::Namespace, self.namespace.as_ref().map(ModuleName::as_str));
        add(Parameter::Offset, digits(self.offset).as_deref());
        add(Parameter::Provider, self.provider.as_ref().map(ModuleName::as_str));
        add(Parameter::Search, self.search.as_deref());
        add(Parameter::Verified, self.is_verified_only.then_some("true"));
        serializer.finish()
    }

    /// A copy with another offset, for the previous or next page.
    pub fn with_offset(&self, offset: u32) -> Self {
        Self { offset: Some(offset).filter(|offset| *offset > 0), ..self.clone() }
    }
}

fn parse_number(parameter: Parameter, value: &str) -> Result<u32, BadQuery> {
    if !value.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(BadQuery::NoNumber(parameter.key()));
    }
    // Digits alone can fail only by overflow.
    Ok(value.parse().unwrap_or(u32::MAX))
}

fn parse_search(value: &str) -> Result<Box<str>, BadQuery> {
    let is_valid = value.chars().count() <= MAX_SEARCH_CHARS && !value.chars().any(char::is_control);
    if is_valid { Ok(value.into()) } else { Err(BadQuery::NoSearch) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn normalized(query: &str) -> Result<String, BadQuery> {
        PageQuery::parse(query, &Parameter::ALL).map(|parsed| parsed.text())
    }

    #[test]
    fn a_query_has_one_spelling_and_only_supported_parameters() {
        for (query, normal_form) in [
            ("", ""),
            ("offset=4&limit=2", "limit=2&offset=4"),
            ("limit=02&offset=0&limit=9", "limit=2"),
            ("verified=true&utm_source=y&utm_=z", "verified=true"),
            ("limit=4294967296&offset=99999999999999999999999999", "limit=4294967295&offset=4294967295"),
            ("verified=false&verified=true", ""),
            ("verified=1", ""),
            ("q=a+b%20c%26&provider=AWS", "provider=AWS&q=a+b+c%26"),
            ("q=&provider=&namespace=", ""),
        ] {
            assert_eq!(normalized(query).as_deref(), Ok(normal_form), "{query}");
        }
        for bad in ["limit=-1", "limit=x", "offset=%2B1", "provider=a/b", "namespace=..", "q=%00"] {
            assert!(normalized(bad).is_err(), "{bad}");
        }
        assert!(
            normalized(&format!("q={}", "é".repeat(128))).is_ok()
                && normalized(&format!("q={}", "é".repeat(129))).is_err()
        );
        assert_eq!(
            PageQuery::parse("utm_x=%00&offset=1", &[Parameter::Offset]).map(|parsed| parsed.text()),
            Ok("offset=1".into())
        );
        for (query, unknown) in [("limit=2&cursor=x", "cursor"), ("Limit=2", "Limit"), ("x", "x"), ("=x", "")] {
            assert_eq!(normalized(query), Err(BadQuery::Unknown(unknown.to_owned())));
        }
        let unsupported = PageQuery::parse("q=x", &[Parameter::Offset]);
        assert_eq!(unsupported.unwrap_err().to_string(), "there is no parameter \"q\" here");
    }

    proptest! {
        #[test]
        fn any_parsed_query_is_bounded_and_round_trips(query in "\\PC{0,60}|((limit|offset|q|verified|namespace|provider|utm_x)=[a-z0-9%+&é]{0,9}&?){0,8}") {
            if let Ok(parsed) = PageQuery::parse(&query, &Parameter::ALL) {
                prop_assert_eq!(PageQuery::parse(&parsed.text(), &Parameter::ALL), Ok(parsed.clone()));
                prop_assert!(parsed.text().is_ascii() && parsed.text().len() < 2_200);
            }
        }
    }
}
