//! Provider trees as `terraform providers mirror` writes them, for `filesystem_mirror` or a plain web server
//! (filesystem mirror layout): the layout, the index files, and the transfer as a tar. [`PathMeaning`] classifies any
//! path, [`MirrorFileKind`] a file of the layout.
//!
//! ```text
//! HOST/NAMESPACE/TYPE/index.json                                           the versions of the provider
//! HOST/NAMESPACE/TYPE/VERSION.json                                         its archives, with hashes
//! HOST/NAMESPACE/TYPE/terraform-provider-TYPE_VERSION_OS_ARCH.zip          an archive
//! HOST/NAMESPACE/TYPE/VERSION/OS_ARCH/…                                    an unpacked package
//! ```
//!
//! The layout has no files for signatures and keys. Larder adds some, under names that other readers ignore:
//!
//! ```text
//! …/terraform-provider-TYPE_VERSION_SHA256SUMS, …_SHA256SUMS.sig           of a version, as the publisher signed it
//! …/terraform-provider-TYPE_VERSION_OS_ARCH_SHA256SUMS, ….sig              of one package, where they differ from those
//! …/terraform-provider-TYPE_VERSION_OS_ARCH.json                           its download document, with the keys
//! ```
//!
//! HOST is spelled in Unicode, because clients refuse labels that begin `xn--`, and includes a port. Clients request
//! the ASCII spelling from a web server. If the two differ, [`folder`] adds a relative symbolic link with the ASCII
//! spelling.

pub mod folder;
pub mod index;
pub mod layout;
pub mod provider_tar;
pub mod receive;
pub mod send;

pub use self::layout::{BadMirrorPath, MirrorFileKind, MirrorPath, PathMeaning, SumsScope};

/// The mode of a file: executable or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Not executable.
    Plain,
    /// Executable.
    Executable,
}

impl Mode {
    /// The mode for these permission bits; executable if any execute bit is set. Their type depends on the system.
    pub fn of(bits: impl Into<u32>) -> Self {
        if bits.into() & 0o111 == 0 { Self::Plain } else { Self::Executable }
    }

    /// The permission bits that larder writes for this mode.
    pub fn bits(self) -> u32 {
        match self {
            Self::Plain => 0o644,
            Self::Executable => 0o755,
        }
    }
}
