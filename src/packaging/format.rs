//! Archive formats, and the suffixes by which clients recognise them.

/// The archive formats that go-getter unpacks (PROTOCOL, section 4.4). Plain tar and zstd are not among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ArchiveFormat {
    /// A zip.
    Zip,
    /// A tar under gzip.
    TarGz,
    /// A tar under bzip2.
    TarBz2,
    /// A tar under xz.
    TarXz,
    /// One file under gzip.
    Gz,
    /// One file under bzip2.
    Bz2,
    /// One file under xz.
    Xz,
}

/// The suffixes without their dot, which are also the values of `?archive=`. Only Terraform knows `tbz2`.
const SUFFIXES: [(&str, ArchiveFormat); 11] = [
    ("zip", ArchiveFormat::Zip),
    ("tar.gz", ArchiveFormat::TarGz),
    ("tgz", ArchiveFormat::TarGz),
    ("tar.bz2", ArchiveFormat::TarBz2),
    ("tar.tbz2", ArchiveFormat::TarBz2),
    ("tbz2", ArchiveFormat::TarBz2),
    ("tar.xz", ArchiveFormat::TarXz),
    ("txz", ArchiveFormat::TarXz),
    ("bz2", ArchiveFormat::Bz2),
    ("gz", ArchiveFormat::Gz),
    ("xz", ArchiveFormat::Xz),
];

impl ArchiveFormat {
    /// The format for a value of `?archive=`.
    pub fn named(name: &str) -> Option<Self> {
        SUFFIXES.iter().find(|(suffix, _)| *suffix == name).map(|(_, format)| *format)
    }

    /// The format for the suffix of a path. The longest matching suffix counts.
    pub fn of_path(path: &[u8]) -> Option<Self> {
        let ends_with = |suffix: &str| path.strip_suffix(suffix.as_bytes()).is_some_and(|stem| stem.ends_with(b"."));
        let matching = SUFFIXES.iter().filter(|(suffix, _)| ends_with(suffix));
        matching.max_by_key(|(suffix, _)| suffix.len()).map(|(_, format)| *format)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_suffix_of_a_path_determines_the_format() {
        for (path, format) in [
            ("/m.zip", Some(ArchiveFormat::Zip)),
            ("/m.tar.gz", Some(ArchiveFormat::TarGz)),
            ("/m.tgz", Some(ArchiveFormat::TarGz)),
            ("/m.gz", Some(ArchiveFormat::Gz)),
            ("/m.tar.bz2", Some(ArchiveFormat::TarBz2)),
            ("/m.tar.tbz2", Some(ArchiveFormat::TarBz2)),
            ("/m.tbz2", Some(ArchiveFormat::TarBz2)),
            ("/m.bz2", Some(ArchiveFormat::Bz2)),
            ("/m.tar.xz", Some(ArchiveFormat::TarXz)),
            ("/m.txz", Some(ArchiveFormat::TarXz)),
            ("/m.xz", Some(ArchiveFormat::Xz)),
            ("/m.tar", None),
            ("/m.tar.zst", None),
            ("/mzip", None),
            ("/m.ZIP", None),
            ("/m.zip/", None),
        ] {
            assert_eq!(ArchiveFormat::of_path(path.as_bytes()), format, "{path}");
        }
        assert_eq!(ArchiveFormat::named("tgz"), Some(ArchiveFormat::TarGz));
        assert_eq!(ArchiveFormat::named("tar"), None);
    }
}
