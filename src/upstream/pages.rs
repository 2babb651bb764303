//! Addresses of registry API pages, which list, search and describe modules and providers. Upstreams and larder use the
//! same paths.

use url::Url;

use super::discovery::Service;
use super::page_query::{PageQuery, Parameter};
use crate::address::{BadAddress, Hostname, ModuleName, Name, System, Version};

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
    /// `MODULES`: all modules.
    Modules,
    /// `MODULES/search`
    Search,
    /// `MODULES/NS`: the modules of a namespace.
    ModulesOf(ModuleName),
    /// `MODULES/NS/NAME`: the latest version of a module for each system.
    ModuleSystems(ModuleName, ModuleName),
    /// `MODULES/NS/NAME/SYSTEM`: the latest version for one system.
    Module(ModuleName, ModuleName, System),
    /// `MODULES/NS/NAME/SYSTEM/VERSION`
    ModuleVersion(ModuleName, ModuleName, System, SpelledVersion),
    /// `PROVIDERS`: all providers.
    Providers,
    /// `PROVIDERS/NS`: the providers of a namespace.
    ProvidersOf(Name),
    /// `PROVIDERS/NS/TYPE`: the latest version.
    Provider(Name, Name),
    /// `PROVIDERS/NS/TYPE/VERSION`
    ProviderVersion(Name, Name, SpelledVersion),
}

/// A version as the client spells it. Requests to upstream use this spelling.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SpelledVersion(Box<str>);

impl SpelledVersion {
    /// Accepts text that parses as a version, with or without a leading `v`.
    pub fn parse(text: &str) -> Result<Self, BadAddress> {
        Version::parse_lenient(text).map(|_| Self(text.into()))
    }

    /// The original spelling.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The parsed version.
    pub fn version(&self) -> Option<Version> {
        Version::parse_lenient(&self.0).ok()
    }
}

impl PagePath {
    /// The service that the page belongs to.
    pub fn service(&self) -> Service {
        match self {
            Self::Modules
            | Self::Search
            | Self::ModulesOf(_)
            | Self::ModuleSystems(..)
            | Self::Module(..)
            | Self::ModuleVersion(..) => Service::Modules,
            Self::Providers | Self::ProvidersOf(_) | Self::Provider(..) | Self::ProviderVersion(..) => {
                Service::Providers
            }
        }
    }

    /// The parameters that the page supports.
    pub fn parameters(&self) -> &'static [Parameter] {
        use Parameter::{Limit, Namespace, Offset, Provider, Search, Verified};
        match self {
            Self::Search => &[Limit, Namespace, Offset, Provider, Search, Verified],
            Self::Modules | Self::Providers | Self::ModulesOf(_) | Self::ProvidersOf(_) | Self::ModuleSystems(..) => {
                &[Limit, Namespace, Offset, Provider, Verified]
            }
            Self::Module(..) | Self::ModuleVersion(..) | Self::Provider(..) | Self::ProviderVersion(..) => &[],
        }
    }

    /// Path segments below the service's base. None needs encoding: the `+` of a version is literal in paths.
    pub fn segments(&self) -> Vec<&str> {
        match self {
            Self::Modules | Self::Providers => Vec::new(),
            Self::Search => vec!["search"],
            Self::ModulesOf(namespace) => vec![namespace.as_str()],
            Self::ModuleSystems(namespace, name) => vec![namespace.as_str(), name.as_str()],
            Self::Module(namespace, name, system) => vec![namespace.as_str(), name.as_str(), system.as_str()],
            Self::ModuleVersion(namespace, name, system, version) => {
                vec![namespace.as_str(), name.as_str(), system.as_str(), version.as_str()]
            }
            Self::ProvidersOf(namespace) => vec![namespace.as_str()],
            Self::Provider(namespace, type_) => vec![namespace.as_str(), type_.as_str()],
            Self::ProviderVersion(namespace, type_, version) => {
                vec![namespace.as_str(), type_.as_str(), version.as_str()]
            }
        }
    }
}

impl PageRef {
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
        let Self { host, path, query: _ } = self;
        let path_label = path.segments().join("/");
        match path {
            PagePath::Modules => format!("the list of modules of {host}"),
            PagePath::Providers => format!("the list of providers of {host}"),
            PagePath::Search => format!("a search for modules of {host}"),
            PagePath::ModulesOf(_) | PagePath::ModuleSystems(..) => {
                format!("the list of modules of {host}/{path_label}")
            }
            PagePath::ProvidersOf(_) => format!("the list of providers of {host}/{path_label}"),
            PagePath::Module(..)
            | PagePath::ModuleVersion(..)
            | PagePath::Provider(..)
            | PagePath::ProviderVersion(..) => format!("the details of {host}/{path_label}"),
        }
    }
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
            (page(PagePath::Modules, "limit=2&utm_x=x"), "https://registry.example/v1/modules?limit=2"),
            (page(PagePath::Modules, ""), "https://registry.example/v1/modules"),
            (page(PagePath::Search, "q=a b"), "https://registry.example/v1/modules/search?q=a+b"),
            (page(PagePath::ModulesOf(name("search")), ""), "https://registry.example/v1/modules/search"),
            (
                page(PagePath::ModuleVersion(name("A"), name("b"), System::parse("aws").unwrap(), version), "utm_x=1"),
                "https://registry.example/v1/modules/A/b/aws/v1.0+b",
            ),
        ] {
            let actual = page.url(&base).unwrap();
            assert_eq!(actual.as_str(), url);
            assert_eq!(page.base_of(&actual), Some(base.clone()), "{url}");
        }
        let root = Url::parse("https://registry.example/").unwrap();
        let actual = page(PagePath::Modules, "limit=2").url(&root).unwrap();
        assert_eq!(actual.as_str(), "https://registry.example/?limit=2");
        assert_eq!(page(PagePath::Modules, "").base_of(&actual), Some(root.clone()));
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
                0 => PagePath::Modules,
                1 => PagePath::Search,
                2 => PagePath::ModulesOf(a),
                _ => PagePath::ModuleSystems(a, b),
            };
            let page = page(path, "limit=3");
            prop_assert_eq!(page.base_of(&page.url(&base).unwrap()), Some(base));
        }
    }
}
