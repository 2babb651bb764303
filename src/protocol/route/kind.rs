//! Kinds of routes, for logs and counters.

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
