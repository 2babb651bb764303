//! The routes of the main listener: parsed from a request line, and printed as URLs. Every printed URL parses back to the
//! same route.

mod mount;

use std::borrow::Cow;
use std::collections::BTreeSet;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

pub use self::mount::{MAX_AUTHORITY, Mount, parse_origin};
use crate::address::{
    Address, FileName, Hostname, MAX_PART, ModuleAddress, ModuleName, ModulePackage, Name, Package, Platform,
    ProviderAddress, System, Version,
};
use crate::digest::DigestPrefix;
use crate::error::Error;
use crate::explanation::Explanation;
use crate::labels::labelled_enum;
use crate::mirror::{ArchiveRef, ModuleArchiveRef, ProofFile, ProofFileRef};
use crate::store::RecordGroup;
use crate::upstream::discovery::Service;
use crate::upstream::pages::{PagePath, PageQuery, PageRef, SpelledVersion};

/// Segments of the longest valid path.
const MAX_SEGMENTS: usize = 11;

/// File name of every module archive.
const MODULE_ARCHIVE: &str = "module.tar.gz";

/// The base of the provider network mirror, for client configurations.
pub const MIRROR_BASE: &str = "/mirror/";

/// Characters that are encoded in a path. `+` is literal in the version paths of the clients (provider registry
/// protocol), `:` in hosts with a port.
const ENCODED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'+').remove(b':');

/// Everything that clients can request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Route {
    /// `/registry/HOST/.well-known/terraform.json`, or the root one where the Host or `default_upstream` names an
    /// upstream.
    Discovery(Hostname),
    /// `/registry/HOST/v1/providers/NS/TYPE/versions` and `/registry/HOST/v1/modules/NS/NAME/SYSTEM/versions`
    Versions(Address),
    /// `/registry/HOST/v1/providers/NS/TYPE/VERSION/download/OS/ARCH`
    ProviderDownload(Package),
    /// `/mirror/HOST/NS/TYPE/index.json`
    MirrorIndex(ProviderAddress),
    /// `/mirror/HOST/NS/TYPE/VERSION.json`
    MirrorVersion(ProviderAddress, Version),
    /// `/archive/HOST/providers/NS/TYPE/VERSION/OS_ARCH/DIGEST/FILENAME`
    ProviderFile(ArchiveRef),
    /// `/archive/HOST/providers/NS/TYPE/VERSION/DIGEST/SHA256SUMS`, and `…/SHA256SUMS.sig`
    ProofFile(ProofFileRef),
    /// `/registry/HOST/v1/modules/NS/NAME/SYSTEM/VERSION/download`
    ModuleDownload(ModulePackage),
    /// `/archive/HOST/modules/NS/NAME/SYSTEM/VERSION/DIGEST/module.tar.gz`, or without the digest
    ModuleArchive(ModuleArchiveRef),
    /// `/registry/HOST/v1/modules/NS/NAME/SYSTEM/download`, for the latest version
    ModuleLatest(ModuleAddress),
    /// `/registry/HOST/v1/modules…?…` and `/registry/HOST/v1/providers…?…`: lists, searches and details
    Page(PageRef),
    /// `/healthz`
    Health,
    /// `/readyz`
    Ready,
    /// `/`, for browsers
    Home,
}

/// A name that no provider or module can have. `larder doctor` requests it, to see whether larder answers at a URL.
pub const PROBE: &str = "~";

/// Returns true for the path of a probe, wherever larder is mounted.
pub fn is_probe(path: &str) -> bool {
    path.rsplit('/').skip(1).take(2).all(|segment| segment == PROBE)
}

/// Failures to find the route of a request line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// No name, version or platform has this form: 400.
    #[error("{0}")]
    Malformed(String),
    /// Unknown path: 404.
    #[error("{0}")]
    Unknown(String),
    /// The path names a host that is not an upstream.
    #[error("{}", Error::UnknownHost(.0.clone()))]
    UnknownHost(Hostname),
    /// The client's configuration uses a wrong URL for a protocol.
    #[error("{explanation}")]
    Misdirected {
        /// The protocol.
        api: Api,
        /// The mistake, and the line to write.
        explanation: Explanation,
    },
}

/// The protocols by path: clients show different error statuses for each (client behaviour).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// Discovery and the registry protocols.
    Registry,
    /// The provider network mirror protocol.
    NetworkMirror,
    /// Files, for which clients show nothing of an error.
    Archive,
    /// Anything else.
    Other,
}

impl Api {
    /// The protocol that a path below the mount belongs to.
    pub fn of_path(path: &str) -> Self {
        match path.split('/').nth(1) {
            Some("registry" | ".well-known" | "v1") => Self::Registry,
            Some("mirror") => Self::NetworkMirror,
            Some("archive") => Self::Archive,
            _ => Self::Other,
        }
    }
}

impl RouteError {
    /// The error of a path without a route.
    pub fn nothing_at(path: &str) -> Self {
        Self::Unknown(format!("there is nothing at {path}"))
    }
}

impl From<crate::address::BadAddress> for RouteError {
    fn from(bad: crate::address::BadAddress) -> Self {
        Self::Malformed(bad.to_string())
    }
}

impl From<crate::digest::BadDigest> for RouteError {
    fn from(bad: crate::digest::BadDigest) -> Self {
        Self::Malformed(bad.to_string())
    }
}

/// Settings for parsing paths.
#[derive(Debug, Clone, Default)]
pub struct RouteContext {
    /// The configured upstreams.
    pub upstreams: BTreeSet<Hostname>,
    /// The upstream behind larder's own host name.
    pub default_upstream: Option<Hostname>,
}

impl RouteContext {
    /// The upstream whose name the client uses for larder (take-over). The Host header may carry the port that larder
    /// happens to listen on.
    pub fn taken_over(&self, host: Option<&str>) -> Option<&Hostname> {
        let named = Hostname::parse(host?).ok()?;
        let without_port = Hostname::parse(named.name()).ok()?;
        self.upstreams.get(&named).or_else(|| self.upstreams.get(&without_port))
    }

    /// The upstream of the paths at the root of a host: the upstream of that name, else `default_upstream`, which also
    /// serves tools that skip discovery.
    fn root_upstream(&self, host: Option<&str>) -> Result<&Hostname, RouteError> {
        let name = host.and_then(|host| host.split(':').next()).unwrap_or_default();
        if name.ends_with('.') {
            return Err(RouteError::Misdirected { api: Api::Registry, explanation: final_dot(name) });
        }
        self.taken_over(host).or(self.default_upstream.as_ref()).ok_or_else(|| {
            misdirected(
                "this host name stands for no registry",
                "use a host override with /registry/HOST/v1/..., or have the operator set default_upstream",
            )
        })
    }

    /// Parses a host segment. A host that is not an upstream is an error that names it.
    fn host(&self, segment: &str) -> Result<Hostname, RouteError> {
        if let Some(host) = self.upstreams.get(segment) {
            return Ok(host.clone());
        }
        let host = Hostname::parse(segment)?;
        if self.upstreams.contains(&host) {
            return Ok(host);
        }
        Err(RouteError::UnknownHost(host))
    }
}

impl Route {
    /// Parses the path of a request without its mount prefix, and the query, which only pages have. `host` is the Host
    /// header, and `context` the configured upstreams.
    ///
    /// # Errors
    /// [`RouteError`], with the reason for the client.
    pub fn parse(
        path: &str,
        query: Option<&str>,
        host: Option<&str>,
        context: &RouteContext,
    ) -> Result<Self, RouteError> {
        let decoded = decode_path(path)?;
        let mut segments = Vec::with_capacity(MAX_SEGMENTS);
        segments.extend(decoded.split('/').skip(1));
        match segments.as_slice() {
            ["registry" | "mirror" | "archive", host, ..] if host.ends_with('.') => {
                Err(RouteError::Misdirected { api: Api::of_path(path), explanation: final_dot(host) })
            }
            [""] => Ok(Self::Home),
            ["healthz"] => Ok(Self::Health),
            ["readyz"] => Ok(Self::Ready),
            [".well-known", "terraform.json"] => Ok(Self::Discovery(context.root_upstream(host)?.clone())),
            ["registry", host, ".well-known", "terraform.json"] => Ok(Self::Discovery(context.host(host)?)),
            ["registry", host, "v1", "providers", rest @ ..] => Self::providers(context.host(host)?, rest, query, path),
            ["v1", "providers", rest @ ..] => Self::providers(context.root_upstream(host)?.clone(), rest, query, path),
            ["registry", host, "v1", "modules", rest @ ..] => Self::modules(context.host(host)?, rest, query, path),
            ["v1", "modules", rest @ ..] => Self::modules(context.root_upstream(host)?.clone(), rest, query, path),
            // Clients resolve a provider's path against the service URL: without its final slash the last segment is
            // lost.
            ["registry", host, "v1", _, _, "versions"] | ["registry", host, "v1", _, _, _, "download", _, _] => {
                let host = context.host(host)?;
                Err(misdirected(
                    "providers.v1 in the client's host block has no slash at its end",
                    format!("write \"providers.v1\" = \".../registry/{host}/v1/providers/\""),
                ))
            }
            [host, _, _, file] if file.ends_with(".json") && context.upstreams.contains(*host) => {
                Err(RouteError::Misdirected {
                    api: Api::NetworkMirror,
                    explanation: Explanation::of("the url of the client's network_mirror has no slash at its end")
                        .remedied_by("write url = \".../mirror/\""),
                })
            }
            ["mirror", host, namespace, type_, file] => {
                let address = provider(context.host(host)?, namespace, type_)?;
                match file.strip_suffix(".json") {
                    Some("index") => Ok(Self::MirrorIndex(address)),
                    Some(version) => Ok(Self::MirrorVersion(address, Version::parse(version)?)),
                    None => Err(RouteError::nothing_at(path)),
                }
            }
            ["v2", ..] => Err(match context.root_upstream(host) {
                Ok(registry) => RouteError::Unknown(format!(
                    "there is nothing at {path}: larder mirrors v1 of {registry} (providers and modules), and its v2 is another API"
                )),
                Err(_) => RouteError::nothing_at(path),
            }),
            ["archive", host, "providers", namespace, type_, version, platform, digest, filename] => {
                let package = Package {
                    provider: provider(context.host(host)?, namespace, type_)?,
                    version: Version::parse(version)?,
                    platform: Platform::parse(platform)?,
                };
                let (digest, filename) = (DigestPrefix::parse(digest)?, FileName::parse(filename)?);
                Ok(Self::ProviderFile(ArchiveRef { package, digest, filename }))
            }
            ["archive", host, "providers", namespace, type_, version, digest, filename] => {
                let provider = provider(context.host(host)?, namespace, type_)?;
                let (version, digest) = (Version::parse(version)?, DigestPrefix::parse(digest)?);
                let file = ProofFile::parse(filename).ok_or_else(|| RouteError::nothing_at(path))?;
                Ok(Self::ProofFile(ProofFileRef { provider, version, digest, file }))
            }
            ["archive", host, "modules", namespace, name, system, version, rest @ ..] => {
                let digest = match rest {
                    [MODULE_ARCHIVE] => None,
                    [digest, MODULE_ARCHIVE] => Some(DigestPrefix::parse(digest)?),
                    _ => return Err(RouteError::nothing_at(path)),
                };
                let module = module(context.host(host)?, namespace, name, system)?;
                let package = ModulePackage { module, version: Version::parse_of_module(version)? };
                Ok(Self::ModuleArchive(ModuleArchiveRef { package, digest }))
            }
            _ => Err(RouteError::nothing_at(path)),
        }
    }

    fn modules(host: Hostname, rest: &[&str], query: Option<&str>, path: &str) -> Result<Self, RouteError> {
        match rest {
            [namespace, name, system, "versions"] => {
                Ok(Self::Versions(Address::Module(module(host, namespace, name, system)?)))
            }
            [namespace, name, system, version, "download"] => Ok(Self::ModuleDownload(ModulePackage {
                module: module(host, namespace, name, system)?,
                version: Version::parse_of_module(version)?,
            })),
            [_, _, _, last_segment @ "versions", ""] | [_, _, _, _, last_segment @ "download", ""] => {
                Err(slash_after(last_segment))
            }
            [namespace, name, system, "download"] => Ok(Self::ModuleLatest(module(host, namespace, name, system)?)),
            _ => {
                let name = |given: &str| ModuleName::parse(given);
                let address = match without_last_slash(rest) {
                    [] => PagePath::Modules(None),
                    ["search"] => PagePath::Search,
                    [namespace] => PagePath::Modules(Some(name(namespace)?)),
                    [namespace, module] => PagePath::ModuleSystems(name(namespace)?, name(module)?),
                    [namespace, module, system, version @ ..] if version.len() < 2 => {
                        let version = version.first().map(|version| SpelledVersion::parse(version)).transpose()?;
                        PagePath::Module(name(namespace)?, name(module)?, System::parse(system)?, version)
                    }
                    _ => return Err(RouteError::nothing_at(path)),
                };
                page(host, address, query)
            }
        }
    }

    fn providers(host: Hostname, rest: &[&str], query: Option<&str>, path: &str) -> Result<Self, RouteError> {
        match rest {
            [namespace, type_, "versions"] => Ok(Self::Versions(Address::Provider(provider(host, namespace, type_)?))),
            [_, _, last_segment @ "versions", ""] => Err(slash_after(last_segment)),
            [namespace, type_, version, "download", os, arch] => Ok(Self::ProviderDownload(Package {
                provider: provider(host, namespace, type_)?,
                version: Version::parse(version)?,
                platform: Platform::new(os, arch)?,
            })),
            _ => {
                let address = match without_last_slash(rest) {
                    [] => PagePath::Providers(None),
                    [namespace] => PagePath::Providers(Some(Name::parse(namespace)?)),
                    [namespace, type_, version @ ..] if version.len() < 2 => {
                        let version = version.first().map(|version| SpelledVersion::parse(version)).transpose()?;
                        PagePath::Provider(Name::parse(namespace)?, Name::parse(type_)?, version)
                    }
                    _ => return Err(RouteError::nothing_at(path)),
                };
                page(host, address, query)
            }
        }
    }

    /// The path of the route below the mount, with its query if it has one.
    pub fn path(&self) -> String {
        let path = match self {
            Self::Discovery(host) => format!("/registry/{host}/.well-known/terraform.json"),
            Self::Versions(address) => {
                format!("{}{}/versions", service_base(address.host(), address.into()), address.path())
            }
            Self::ProviderDownload(Package { provider, version, platform: Platform { os, arch } }) => {
                let address = Address::from(provider);
                format!("{}{}/{version}/download/{os}/{arch}", providers_base(&provider.host), address.path())
            }
            Self::MirrorIndex(provider) => format!("{MIRROR_BASE}{provider}/index.json"),
            Self::MirrorVersion(provider, version) => format!("{MIRROR_BASE}{provider}/{version}.json"),
            Self::ProviderFile(ArchiveRef { package, digest, filename }) => {
                let Package { provider, version, platform } = package;
                let path = Address::from(provider).path();
                format!("/archive/{}/providers/{path}/{version}/{platform}/{digest}/{filename}", provider.host)
            }
            Self::ProofFile(ProofFileRef { provider, version, digest, file }) => {
                let (path, name) = (Address::from(provider).path(), file.name());
                format!("/archive/{}/providers/{path}/{version}/{digest}/{name}", provider.host)
            }
            Self::ModuleDownload(ModulePackage { module, version }) => {
                format!("{}{}/{version}/download", modules_base(&module.host), Address::from(module).path())
            }
            Self::ModuleArchive(ModuleArchiveRef { package: ModulePackage { module, version }, digest }) => {
                let digest = digest.as_ref().map(|digest| format!("{digest}/")).unwrap_or_default();
                let path = Address::from(module).path();
                format!("/archive/{}/modules/{path}/{version}/{digest}{MODULE_ARCHIVE}", module.host)
            }
            Self::ModuleLatest(module) => {
                format!("{}{}/download", modules_base(&module.host), Address::from(module).path())
            }
            Self::Page(PageRef { host, path, query }) => {
                let path = format!("{}{}", service_base(host, path.service()), path.segments().join("/"));
                // As in the protocol: the list of everything is at the base without its final slash.
                let (path, query) = (encoded(path.trim_end_matches('/')), query.text());
                return if query.is_empty() { path } else { format!("{path}?{query}") };
            }
            Self::Health => "/healthz".into(),
            Self::Ready => "/readyz".into(),
            Self::Home => "/".into(),
        };
        encoded(&path)
    }

    /// The kind of route, for logs and counters.
    pub fn kind(&self) -> RouteKind {
        match self {
            Self::Discovery(_) => RouteKind::Discovery,
            Self::Versions(Address::Provider(_)) => RouteKind::Versions,
            Self::Versions(Address::Module(_)) => RouteKind::ModuleVersions,
            Self::ProviderDownload(_) => RouteKind::Download,
            Self::MirrorIndex(_) => RouteKind::MirrorIndex,
            Self::MirrorVersion(..) => RouteKind::MirrorVersion,
            Self::ModuleDownload(_) | Self::ModuleLatest(_) => RouteKind::ModuleDownload,
            Self::Page(_) => RouteKind::Page,
            Self::ProviderFile(_) | Self::ProofFile(_) => RouteKind::Archive,
            Self::ModuleArchive(_) => RouteKind::ModuleArchive,
            Self::Health | Self::Ready => RouteKind::Health,
            Self::Home => RouteKind::Home,
        }
    }

    /// Returns true for a path whose registry is the one of the host that the client addressed.
    pub fn is_at_root(path: &str) -> bool {
        path.starts_with("/v1/") || path.starts_with("/.well-known/")
    }

    /// Returns true if the answer contains larder's URLs, and so depends on the base.
    pub fn has_links(&self) -> bool {
        use RouteKind::{Discovery, Download, Home, MirrorVersion, ModuleDownload, Page};
        matches!(self.kind(), Discovery | Download | MirrorVersion | ModuleDownload | Page | Home)
    }

    /// The subject whose changes invalidate the answer.
    pub fn subject(&self) -> Option<RouteSubject<'_>> {
        match self {
            Self::Versions(Address::Provider(address))
            | Self::MirrorIndex(address)
            | Self::MirrorVersion(address, _) => Some(RouteSubject::Provider(address)),
            Self::ProviderDownload(package) => Some(RouteSubject::Provider(&package.provider)),
            Self::ProviderFile(target) => Some(RouteSubject::Provider(&target.package.provider)),
            Self::ProofFile(target) => Some(RouteSubject::Provider(&target.provider)),
            Self::Versions(Address::Module(address)) | Self::ModuleLatest(address) => {
                Some(RouteSubject::Module(address))
            }
            Self::ModuleDownload(package) => Some(RouteSubject::Module(&package.module)),
            Self::ModuleArchive(target) => Some(RouteSubject::Module(&target.package.module)),
            Self::Page(page) => Some(RouteSubject::Pages(&page.host)),
            Self::Discovery(_) | Self::Health | Self::Ready | Self::Home => None,
        }
    }
}

/// Subject of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteSubject<'a> {
    /// A provider.
    Provider(&'a ProviderAddress),
    /// A module, as the client spells it.
    Module(&'a ModuleAddress),
    /// The pages of a registry.
    Pages(&'a Hostname),
}

impl RouteSubject<'_> {
    /// The provider or the module; `None` for pages.
    pub fn address(self) -> Option<Address> {
        match self {
            Self::Provider(provider) => Some(provider.into()),
            Self::Module(module) => Some(module.into()),
            Self::Pages(_) => None,
        }
    }

    /// The records that the answer is made of.
    pub fn group(self) -> RecordGroup {
        match self {
            Self::Provider(provider) => RecordGroup::Provider(provider.clone()),
            Self::Module(module) => RecordGroup::Module(module.folded()),
            Self::Pages(host) => RecordGroup::Registry(host.clone()),
        }
    }
}

/// Drops a final slash: the base of a service, and each page, is the same with and without it.
fn without_last_slash<'a, 'b>(rest: &'a [&'b str]) -> &'a [&'b str] {
    match rest {
        [without_slash @ .., ""] => without_slash,
        rest => rest,
    }
}

fn page(host: Hostname, path: PagePath, query: Option<&str>) -> Result<Route, RouteError> {
    let query = PageQuery::parse(query.unwrap_or_default(), path.parameters());
    let query = query.map_err(|bad| RouteError::Malformed(bad.to_string()))?;
    Ok(Route::Page(PageRef { host, path, query }))
}

fn module(host: Hostname, namespace: &str, name: &str, system: &str) -> Result<ModuleAddress, RouteError> {
    let [namespace, name] = [ModuleName::parse(namespace)?, ModuleName::parse(name)?];
    Ok(ModuleAddress { host, namespace, name, system: System::parse(system)? })
}

fn provider(host: Hostname, namespace: &str, type_: &str) -> Result<ProviderAddress, RouteError> {
    Ok(ProviderAddress { host, namespace: Name::parse(namespace)?, type_: Name::parse(type_)? })
}

/// Decodes a path, and checks that every segment could be a name.
fn decode_path(path: &str) -> Result<Cow<'_, str>, RouteError> {
    let malformed = |reason: &str| RouteError::Malformed(format!("the path {reason}"));
    if !path.starts_with('/') {
        return Err(malformed("must begin with a slash"));
    }
    let is_plain = path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'%' && byte != b'\\');
    let mut decoded = if is_plain { Cow::Borrowed(path) } else { Cow::Owned(String::with_capacity(path.len())) };
    for segment in path.split('/').skip(1) {
        let segment = match &mut decoded {
            Cow::Borrowed(_) => Cow::Borrowed(segment),
            Cow::Owned(decoded_path) => {
                let segment = percent_decode_str(segment).decode_utf8().map_err(|_| malformed("is not UTF-8"))?;
                decoded_path.push('/');
                decoded_path.push_str(&segment);
                segment
            }
        };
        if segment.len() > MAX_PART {
            return Err(malformed("has a segment of more than 128 bytes"));
        }
        let has_forbidden_character = || segment.chars().any(|c| c == '/' || c == '\\' || c.is_control());
        if segment == "." || segment == ".." || (!is_plain && has_forbidden_character()) {
            return Err(malformed("has a segment with a slash, a dot name or a control character in it"));
        }
    }
    Ok(decoded)
}

/// Explains the refusal of a host with a final dot (RFC 1034 3.1). The dot does not make another spelling of a registry's
/// host: clients refuse it, too.
fn final_dot(host: &str) -> Explanation {
    let without = host.trim_end_matches('.');
    Explanation::of(format!("the host name {host} has a dot at its end")).remedied_by(format!("ask for {without}"))
}

/// Refuses a list with a final slash. A list has one URL: the client would resolve the answer's references against
/// another one, and miss.
fn slash_after(last_segment: &str) -> RouteError {
    misdirected(&format!("the path has a slash after \"{last_segment}\""), "ask for it without that slash")
}

fn misdirected(reason: &str, remedy: impl Into<String>) -> RouteError {
    RouteError::Misdirected { api: Api::Registry, explanation: Explanation::of(reason).remedied_by(remedy) }
}

/// The base of a service of an upstream, for discovery documents and client configurations.
pub fn service_base(host: &Hostname, service: Service) -> String {
    match service {
        Service::Providers => providers_base(host),
        Service::Modules => modules_base(host),
    }
}

/// The base of an upstream's `providers.v1`.
pub fn providers_base(host: &Hostname) -> String {
    format!("/registry/{host}/v1/providers/")
}

/// The base of an upstream's `modules.v1`.
pub fn modules_base(host: &Hostname) -> String {
    format!("/registry/{host}/v1/modules/")
}

/// Encodes a path. Only the name of a file can have a character that needs it.
fn encoded(path: &str) -> String {
    utf8_percent_encode(path, ENCODED).to_string()
}

labelled_enum! {
    /// Kinds of routes, for logs and counters. The kinds whose answers are documents come first.
    pub RouteKind {
        /// A discovery document.
        Discovery "discovery",
        /// A version list.
        Versions "versions",
        /// A download document.
        Download "download",
        /// `index.json` of a network mirror.
        MirrorIndex "mirror-index",
        /// `VERSION.json` of a network mirror.
        MirrorVersion "mirror-version",
        /// A module's version list.
        ModuleVersions "module-versions",
        /// The location of a module version.
        ModuleDownload "module-download",
        /// A list, a search or details.
        Page "page",
        /// A provider's archive, checksums or signature.
        Archive "archive",
        /// An archive of a module.
        ModuleArchive "module-archive",
        /// A probe.
        Health "health",
        /// The page for browsers.
        Home "home",
        /// A request without a route.
        NoRoute "none",
    }
}

impl RouteKind {
    /// Number of kinds whose answers are documents, which age.
    pub const DOCUMENTS: usize = Self::Page as usize + 1;
}

#[cfg(test)]
mod tests;
