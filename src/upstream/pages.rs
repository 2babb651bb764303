//! Addresses of registry API pages, which list, search and describe modules and providers. Upstreams and larder use the
//! same paths. A query has supported parameters with valid values, in a fixed order. This limits the number of cached
//! pages, because each page has one spelling.

use url::Url;
use url::form_urlencoded::{Serializer, parse};

use super::discovery::Service;
use crate::address::{
    Address, BadAddress, Hostname, ModuleAddress, ModuleName, Name, ProviderAddress, System, Version,
};

/// The address of one registry API page.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PageRef {
    /// The registry's host.
    pub host: Hostname,
    /// The page.
    pub path: PagePath,
    /// The parameters of the page, all of which it supports.
    pub query: PageQuery,
}

/// The path of a page below the base URL of its service. Module names keep their case.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PagePath {
    /// `MODULES/search`
    Search,
    /// `MODULES` or `MODULES/NS`: all modules, or those of a namespace.
    Modules(Option<ModuleName>),
    /// `MODULES/NS/NAME`: the latest version of a module for each system.
    ModuleSystems(ModuleName, ModuleName),
    /// `MODULES/NS/NAME/SYSTEM` or `MODULES/NS/NAME/SYSTEM/VERSION`: the latest version for one system, or the given one.
    Module(ModuleName, ModuleName, System, Option<SpelledVersion>),
    /// `PROVIDERS` or `PROVIDERS/NS`: all providers, or those of a namespace.
    Providers(Option<Name>),
    /// `PROVIDERS/NS/TYPE` or `PROVIDERS/NS/TYPE/VERSION`: the latest version, or the given one.
    Provider(Name, Name, Option<SpelledVersion>),
}

/// A version as the client spells it. Requests to upstream use this spelling.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SpelledVersion(Box<str>);

impl SpelledVersion {
    /// Accepts text that parses as a version, with or without a leading `v`.
    pub fn parse(text: &str) -> Result<Self, BadAddress> {
        Version::parse_of_module(text).map(|_| Self(text.into()))
    }

    /// The original spelling.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The parsed version.
    pub fn version(&self) -> Option<Version> {
        Version::parse_of_module(&self.0).ok()
    }
}

impl PagePath {
    /// The service that the page belongs to.
    pub fn service(&self) -> Service {
        match self {
            Self::Search | Self::Modules(_) | Self::ModuleSystems(..) | Self::Module(..) => Service::Modules,
            Self::Providers(_) | Self::Provider(..) => Service::Providers,
        }
    }

    /// The names of the parameters that the page supports.
    pub fn parameters(&self) -> &'static [&'static str] {
        match self {
            Self::Search => &["limit", "namespace", "offset", "provider", "q", "verified"],
            Self::Modules(_) | Self::Providers(_) | Self::ModuleSystems(..) => {
                &["limit", "namespace", "offset", "provider", "verified"]
            }
            Self::Module(..) | Self::Provider(..) => &[],
        }
    }

    /// Path segments below the service's base. None needs encoding: the `+` of a version is literal in paths.
    pub fn segments(&self) -> Vec<&str> {
        match self {
            Self::Search => vec!["search"],
            Self::Modules(namespace) => namespace.iter().map(ModuleName::as_str).collect(),
            Self::ModuleSystems(namespace, name) => vec![namespace.as_str(), name.as_str()],
            Self::Module(namespace, name, system, version) => {
                let names = [namespace.as_str(), name.as_str(), system.as_str()];
                names.into_iter().chain(version.as_ref().map(SpelledVersion::as_str)).collect()
            }
            Self::Providers(namespace) => namespace.iter().map(Name::as_str).collect(),
            Self::Provider(namespace, type_, version) => {
                let names = [namespace.as_str(), type_.as_str()];
                names.into_iter().chain(version.as_ref().map(SpelledVersion::as_str)).collect()
            }
        }
    }
}

impl PageRef {
    /// The provider or module whose details the page has, and its version where the path names one.
    pub fn details_of(&self) -> Option<(Address, Option<Version>)> {
        let host = self.host.clone();
        let (address, version) = match self.path.clone() {
            PagePath::Module(namespace, name, system, version) => {
                (Address::Module(ModuleAddress { host, namespace, name, system }), version)
            }
            PagePath::Provider(namespace, type_, version) => {
                (Address::Provider(ProviderAddress { host, namespace, type_ }), version)
            }
            PagePath::Search | PagePath::Modules(_) | PagePath::ModuleSystems(..) | PagePath::Providers(_) => {
                return None;
            }
        };
        Some((address, version.and_then(|version| version.version())))
    }

    /// The page with the details of one version.
    pub fn of_version(&self, version: SpelledVersion) -> Self {
        let spelled = Some(version);
        let path = match self.path.clone() {
            PagePath::Module(namespace, name, system, _) => PagePath::Module(namespace, name, system, spelled),
            PagePath::Provider(namespace, type_, _) => PagePath::Provider(namespace, type_, spelled),
            path => path,
        };
        Self { path, ..self.clone() }
    }

    /// The page's URL below the base of its service. The list of all modules or providers is at the base itself, without
    /// the final slash.
    pub fn url(&self, base: &Url) -> Result<Url, url::ParseError> {
        let mut url = base.join(&self.path.segments().join("/"))?;
        if self.path.segments().is_empty() {
            let path = url.path().trim_end_matches('/').to_owned();
            url.set_path(&path);
        }
        let query = self.query.text();
        url.set_query(Some(query.as_str()).filter(|query| !query.is_empty()));
        Ok(url)
    }

    /// Recovers the base of the service from a URL of this page. The URL may spell the page in any case.
    pub fn base_of(&self, url: &Url) -> Option<Url> {
        let mut path = url.path().trim_end_matches('/');
        for segment in self.path.segments().into_iter().rev() {
            let (parent, last) = path.rsplit_once('/')?;
            if !last.eq_ignore_ascii_case(segment) {
                return None;
            }
            path = parent;
        }
        let mut base = url.clone();
        base.set_path(&format!("{path}/"));
        base.set_query(None);
        base.set_fragment(None);
        Some(base)
    }

    /// Text that identifies the page within its host.
    pub fn text(&self) -> String {
        format!("{}?{}", self.path_text(), self.query.text())
    }

    /// The identifying [`text`](Self::text), with its path in lower case.
    pub fn folded_text(&self) -> String {
        format!("{}?{}", self.path_text().to_ascii_lowercase(), self.query.text())
    }

    fn path_text(&self) -> String {
        let path: String = self.path.segments().into_iter().map(|segment| format!("/{segment}")).collect();
        format!("{}{path}", self.path.service().key())
    }

    /// A label for people, without the search text.
    pub fn label(&self) -> String {
        let names = [vec![self.host.as_str()], self.path.segments()].concat();
        let place = names.join("/");
        match self.path {
            PagePath::Search => format!("a search for modules of {}", self.host),
            PagePath::Modules(_) | PagePath::ModuleSystems(..) => format!("the list of modules of {place}"),
            PagePath::Providers(_) => format!("the list of providers of {place}"),
            PagePath::Module(..) | PagePath::Provider(..) => format!("the details of {place}"),
        }
    }
}

/// The longest search text, in characters.
const MAX_SEARCH_CHARS: usize = 128;

/// Prefix of link-tracking parameters, which registries ignore.
const TRACKING_PREFIX: &str = "utm_";
/// Characters of an unsupported parameter that an error quotes.
const MAX_QUOTED_CHARS: usize = 64;

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
    pub fn parse(query: &str, supported: &[&'static str]) -> Result<Self, BadQuery> {
        let mut page_query = Self::default();
        let mut parsed = Vec::new();
        for (key, value) in parse(query.as_bytes()) {
            if key.starts_with(TRACKING_PREFIX) {
                continue;
            }
            let known = supported.iter().copied().find(|parameter| *parameter == key);
            let parameter = known.ok_or_else(|| BadQuery::Unknown(key.chars().take(MAX_QUOTED_CHARS).collect()))?;
            if value.is_empty() || parsed.contains(&parameter) {
                continue;
            }
            parsed.push(parameter);
            match parameter {
                "limit" => page_query.limit = Some(parse_number(parameter, &value)?),
                "offset" => page_query.offset = Some(parse_number(parameter, &value)?).filter(|offset| *offset > 0),
                "namespace" => page_query.namespace = Some(ModuleName::parse(&value)?),
                "provider" => page_query.provider = Some(ModuleName::parse(&value)?),
                "q" => page_query.search = Some(parse_search(&value)?),
                _ => page_query.is_verified_only = value == "true",
            }
        }
        Ok(page_query)
    }

    /// The query in its normal form; empty if no parameter is set.
    pub fn text(&self) -> String {
        let digits = |number: Option<u32>| number.map(|number| number.to_string());
        let (limit, offset) = (digits(self.limit), digits(self.offset));
        let pairs = [
            ("limit", limit.as_deref()),
            ("namespace", self.namespace.as_ref().map(ModuleName::as_str)),
            ("offset", offset.as_deref()),
            ("provider", self.provider.as_ref().map(ModuleName::as_str)),
            ("q", self.search.as_deref()),
            ("verified", self.is_verified_only.then_some("true")),
        ];
        let set_pairs = pairs.into_iter().filter_map(|(parameter, value)| Some((parameter, value?)));
        Serializer::new(String::new()).extend_pairs(set_pairs).finish()
    }

    /// A copy with another offset, for the previous or next page.
    pub fn with_offset(&self, offset: u32) -> Self {
        Self { offset: Some(offset).filter(|offset| *offset > 0), ..self.clone() }
    }
}

fn parse_number(parameter: &'static str, value: &str) -> Result<u32, BadQuery> {
    if !value.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(BadQuery::NoNumber(parameter));
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

    fn page(path: PagePath, query: &str) -> PageRef {
        let query = PageQuery::parse(query, path.parameters()).unwrap();
        PageRef { host: Hostname::parse("registry.example").unwrap(), path, query }
    }

    fn name(name: &str) -> ModuleName {
        ModuleName::parse(name).unwrap()
    }

    #[test]
    fn page_urls_follow_the_protocol() {
        let base = Url::parse("https://registry.example/v1/modules/").unwrap();
        let version = SpelledVersion::parse("v1.0+b").unwrap();
        for (page, url) in [
            (page(PagePath::Modules(None), "limit=2&utm_x=x"), "https://registry.example/v1/modules?limit=2"),
            (page(PagePath::Modules(None), ""), "https://registry.example/v1/modules"),
            (page(PagePath::Search, "q=a b"), "https://registry.example/v1/modules/search?q=a+b"),
            (page(PagePath::Modules(Some(name("search"))), ""), "https://registry.example/v1/modules/search"),
            (
                page(PagePath::Module(name("A"), name("b"), System::parse("aws").unwrap(), Some(version)), "utm_x=1"),
                "https://registry.example/v1/modules/A/b/aws/v1.0+b",
            ),
        ] {
            let actual = page.url(&base).unwrap();
            assert_eq!(actual.as_str(), url);
            assert_eq!(page.base_of(&actual), Some(base.clone()), "{url}");
        }
        let root = Url::parse("https://registry.example/").unwrap();
        let actual = page(PagePath::Modules(None), "limit=2").url(&root).unwrap();
        assert_eq!(actual.as_str(), "https://registry.example/?limit=2");
        assert_eq!(page(PagePath::Modules(None), "").base_of(&actual), Some(root.clone()));
        assert_eq!(page(PagePath::Search, "").base_of(&actual), None);
    }

    proptest! {
        #[test]
        fn the_base_of_a_page_url_is_the_base_it_was_built_from(
            base in "/([a-zA-Z0-9.]{1,5}/){0,3}",
            names in prop::array::uniform3("[a-zA-Z0-9][a-zA-Z0-9_-]{0,6}"),
            page_kind in 0..4usize,
        ) {
            let base = Url::parse("https://registry.example").unwrap().join(&base).unwrap();
            let [a, b, _] = names.each_ref().map(|text| name(text));
            let path = match page_kind {
                0 => PagePath::Modules(None),
                1 => PagePath::Search,
                2 => PagePath::Modules(Some(a)),
                _ => PagePath::ModuleSystems(a, b),
            };
            let page = page(path, "limit=3");
            prop_assert_eq!(page.base_of(&page.url(&base).unwrap()), Some(base));
        }
    }

    fn normalized(query: &str) -> Result<String, BadQuery> {
        PageQuery::parse(query, PagePath::Search.parameters()).map(|parsed| parsed.text())
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
            PageQuery::parse("utm_x=%00&offset=1", &["offset"]).map(|parsed| parsed.text()),
            Ok("offset=1".into())
        );
        for (query, unknown) in [("limit=2&cursor=x", "cursor"), ("Limit=2", "Limit"), ("x", "x"), ("=x", "")] {
            assert_eq!(normalized(query), Err(BadQuery::Unknown(unknown.to_owned())));
        }
        let unsupported = PageQuery::parse("q=x", &["offset"]);
        assert_eq!(unsupported.unwrap_err().to_string(), "there is no parameter \"q\" here");
    }

    proptest! {
        #[test]
        fn any_parsed_query_is_bounded_and_round_trips(query in "\\PC{0,60}|((limit|offset|q|verified|namespace|provider|utm_x)=[a-z0-9%+&é]{0,9}&?){0,8}") {
            if let Ok(parsed) = PageQuery::parse(&query, PagePath::Search.parameters()) {
                prop_assert_eq!(PageQuery::parse(&parsed.text(), PagePath::Search.parameters()), Ok(parsed.clone()));
                prop_assert!(parsed.text().is_ascii() && parsed.text().len() < 2_200);
            }
        }
    }
}
