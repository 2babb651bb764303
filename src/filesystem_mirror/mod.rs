//! Trees as `terraform providers mirror` makes them, and as `filesystem_mirror` and a plain web server read them
//! (PROTOCOL 7): where each file lies, what the index files say, and how a tree travels as a tar.
//!
//! ```text
//! HOST/NAMESPACE/TYPE/index.json                                           which versions there are
//! HOST/NAMESPACE/TYPE/VERSION.json                                         its archives, with hashes
//! HOST/NAMESPACE/TYPE/terraform-provider-TYPE_VERSION_OS_ARCH.zip          an archive
//! HOST/NAMESPACE/TYPE/VERSION/OS_ARCH/…                                    the same, unpacked
//! ```
//!
//! Beside them larder puts what the layout loses, under names that readers pass over:
//!
//! ```text
//! …/terraform-provider-TYPE_VERSION_SHA256SUMS, …_SHA256SUMS.sig           as the publisher signed them
//! …/terraform-provider-TYPE_VERSION_OS_ARCH_SHA256SUMS, ….sig              of one package that has others
//! …/terraform-provider-TYPE_VERSION_OS_ARCH.json                           its download document, with the keys
//! ```
//!
//! HOST is the spelling in Unicode, because clients refuse labels that begin `xn--`; a port is kept. A web server is
//! asked for the spelling in ASCII: where the two differ, [`folder`] puts a relative link of that name beside it.

pub mod carried;
pub mod folder;
pub mod index;
pub mod layout;
pub mod receive;
pub mod send;
pub mod written;

pub use self::layout::{BadPath, Covers, Meaning, Member, TreePath};

/// Whether a file is there to be executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Nobody executes it.
    Plain,
    /// Its owner does, at least.
    Executable,
}

impl Mode {
    /// That of a file with these permission bits.
    pub fn of(bits: u32) -> Self {
        if bits & 0o111 == 0 { Self::Plain } else { Self::Executable }
    }

    /// The permission bits of such a file in anything that larder writes.
    pub fn bits(self) -> u32 {
        match self {
            Self::Plain => 0o644,
            Self::Executable => 0o755,
        }
    }
}
