//! Routes as URLs, and their kinds for logs and counters.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::{MODULE_ARCHIVE, Route};
use crate::address::{Hostname, ModuleAddress, ModulePackage, Package, ProviderAddress};
use crate::mirror::{ArchiveRef, ModuleArchiveRef, ProofFileRef};
use crate::upstream::discovery::Service;
use crate::upstream::pages::PageRef;

/// Characters that are encoded in a path segment. `+` is literal in the version paths of the clients (PROTOCOL, section
/// 2.2), `:` in hosts with a port.
const ENCODED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'+').remove(b':');

/// The base of the provider network mirror, for client configurations.
pub const MIRROR_BASE: &str = "/mirror/";

impl Route {
    /// The path of the route below the mount, with its query if it has one.
    pub fn path(&self) -> String {
        let provider = |address: &ProviderAddress| {
            format!("{}/{}", encoded(address.namespace.as_str()), encoded(address.type_.as_str()))
        };
        match self {
            Self::Discovery(host) => format!("/registry/{}/.well-known/terraform.json", encoded(host.as_str())),
            Self::ProviderVersions(address) => {
                format!("{}{}/versions", providers_base(&address.host), provider(address))
            }
            Self::ProviderDownload(Package { provider: address, version, platform }) => {
                let base = providers_base(&address.host);
                let version = encoded(version.as_str());
                format!("{base}{}/{version}/download/{}/{}", provider(address), platform.os, platform.arch)
            }
            Self::MirrorIndex(address) => {
                format!("{MIRROR_BASE}{}/{}/index.json", encoded(address.host.as_str()), provider(address))
            }
            Self::MirrorVersion(address, version) => {
                let host = encoded(address.host.as_str());
                format!("{MIRROR_BASE}{host}/{}/{}.json", provider(address), encoded(version.as_str()))
            }
            Self::ProviderFile(ArchiveRef { package, digest, filename }) => {
                let Package { provider: address, version, platform } = package;
                let host = encoded(address.host.as_str());
                let (version, filename) = (encoded(version.as_str()), encoded(filename.as_str()));
                format!("/archive/{host}/providers/{}/{version}/{platform}/{digest}/{filename}", provider(address))
            }
            Self::ProofFile(ProofFileRef { provider: address, version, digest, file }) => {
                let (host, version) = (encoded(address.host.as_str()), encoded(version.as_str()));
                format!("/archive/{host}/providers/{}/{version}/{digest}/{}", provider(address), file.name())
            }
            Self::ModuleVersions(address) => {
                format!("{}{}/versions", modules_base(&address.host), below_modules(address))
            }
            Self::ModuleDownload(ModulePackage { module, version }) => {
                let base = modules_base(&module.host);
                format!("{base}{}/{}/download", below_modules(module), encoded(version.as_str()))
            }
            Self::ModuleArchive(ModuleArchiveRef { package: ModulePackage { module, version }, digest }) => {
                let host = encoded(module.host.as_str());
                let digest = digest.as_ref().map(|digest| format!("{digest}/")).unwrap_or_default();
                let version = encoded(version.as_str());
                format!("/archive/{host}/modules/{}/{version}/{digest}{MODULE_ARCHIVE}", below_modules(module))
            }
            Self::ModuleLatest(address) => {
                format!("{}{}/download", modules_base(&address.host), below_modules(address))
            }
            Self::Page(PageRef { host, path, query }) => {
                let base = match path.service() {
                    Service::Modules => modules_base(host),
                    Service::Providers => providers_base(host),
                };
                let below: Vec<String> = path.segments().into_iter().map(encoded).collect();
                let path = format!("{base}{}", below.join("/"));
                let query = query.text();
                // As in the protocol: the list of everything is at the base without its final slash.
                let path = path.trim_end_matches('/');
                if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
            }
            Self::Health => "/healthz".into(),
            Self::Ready => "/readyz".into(),
        }
    }

    /// The kind of route, for logs and counters.
    pub fn kind(&self) -> RouteKind {
        match self {
            Self::Discovery(_) => RouteKind::Discovery,
            Self::ProviderVersions(_) => RouteKind::Versions,
            Self::ProviderDownload(_) => RouteKind::Download,
            Self::MirrorIndex(_) => RouteKind::MirrorIndex,
            Self::MirrorVersion(..) => RouteKind::MirrorVersion,
            Self::ModuleVersions(_) => RouteKind::ModuleVersions,
            Self::ModuleDownload(_) | Self::ModuleLatest(_) => RouteKind::ModuleDownload,
            Self::Page(_) => RouteKind::Page,
            Self::ProviderFile(_) | Self::ProofFile(_) => RouteKind::Archive,
            Self::ModuleArchive(_) => RouteKind::ModuleArchive,
            Self::Health | Self::Ready => RouteKind::Health,
        }
    }
}

/// The base of an upstream's `providers.v1`, for discovery documents and client configurations.
pub fn providers_base(host: &Hostname) -> String {
    format!("/registry/{}/v1/providers/", encoded(host.as_str()))
}

/// The base of an upstream's `modules.v1`, for discovery documents and client configurations.
pub fn modules_base(host: &Hostname) -> String {
    format!("/registry/{}/v1/modules/", encoded(host.as_str()))
}

fn below_modules(address: &ModuleAddress) -> String {
    let ModuleAddress { namespace, name, system, .. } = address;
    format!("{}/{}/{system}", encoded(namespace.as_str()), encoded(name.as_str()))
}

fn encoded(segment: &str) -> String {
    utf8_percent_encode(segment, ENCODED).to_string()
}

/// Kinds of routes, for logs and counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RouteKind {
    /// A discovery document.
    Discovery,
    /// A version list.
    Versions,
    /// A download document.
    Download,
    /// `index.json` of a network mirror.
    MirrorIndex,
    /// `VERSION.json` of a network mirror.
    MirrorVersion,
    /// A module's version list.
    ModuleVersions,
    /// The location of a module version.
    ModuleDownload,
    /// A list, a search or details.
    Page,
    /// A provider's archive, checksums or signature.
    Archive,
    /// An archive of a module.
    ModuleArchive,
    /// A probe.
    Health,
}

impl RouteKind {
    /// The kinds whose answers are documents, which age.
    pub const DOCUMENTS: [Self; 8] = [
        Self::Discovery,
        Self::Versions,
        Self::Download,
        Self::MirrorIndex,
        Self::MirrorVersion,
        Self::ModuleVersions,
        Self::ModuleDownload,
        Self::Page,
    ];

    /// All kinds, each at the index of its discriminant.
    pub const ALL: [Self; 11] = [
        Self::Discovery,
        Self::Versions,
        Self::Download,
        Self::MirrorIndex,
        Self::MirrorVersion,
        Self::ModuleVersions,
        Self::ModuleDownload,
        Self::Page,
        Self::Archive,
        Self::ModuleArchive,
        Self::Health,
    ];

    /// The text in logs and metric labels.
    pub fn label(self) -> &'static str {
        match self {
            Self::Discovery => "discovery",
            Self::Versions => "versions",
            Self::Download => "download",
            Self::MirrorIndex => "mirror-index",
            Self::MirrorVersion => "mirror-version",
            Self::ModuleVersions => "module-versions",
            Self::ModuleDownload => "module-download",
            Self::Page => "page",
            Self::Archive => "archive",
            Self::ModuleArchive => "module-archive",
            Self::Health => "health",
        }
    }
}
