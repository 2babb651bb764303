//! The paths of a provider tree. They are parsed as Terraform's reader does (filesystem mirror layout). A zip for
//! which that reader only logs a warning is `Misnamed` here, with the reason.

use crate::address::{Hostname, Name, Package, Platform, ProviderAddress, Version};

/// The longest path in a tree, in bytes.
pub const MAX_PATH: usize = 1024;

const ZIP_SUFFIX: &str = ".zip";
const JSON_SUFFIX: &str = ".json";
const SUMS_SUFFIX: &str = "_SHA256SUMS";
const SIGNATURE_SUFFIX: &str = "_SHA256SUMS.sig";
const INDEX_NAME: &str = "index.json";

/// A file of a tree. Its text is the path below the tree's folder.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, derive_more::Display)]
#[display("{}/{}", self.folder(), self.name_of_file())]
pub struct MirrorPath {
    /// The provider in whose folder the file is.
    pub provider: ProviderAddress,
    /// The kind of file.
    pub kind: MirrorFileKind,
}

/// The kind of a file in a provider's folder.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MirrorFileKind {
    /// `index.json`
    Index,
    /// `VERSION.json`
    VersionIndex(Version),
    /// SHA256SUMS.
    Sums(SumsScope),
    /// The signature of SHA256SUMS.
    Signature(SumsScope),
    /// The download document of a package, with the publisher's keys.
    Document(Version, Platform),
    /// The archive of a package.
    Archive(Version, Platform),
}

/// The packages that a SHA256SUMS file covers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SumsScope {
    /// All packages of a version that have no SHA256SUMS of their own.
    Version(Version),
    /// One package.
    Package(Version, Platform),
}

/// The meaning of a path in the layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathMeaning {
    /// A file of the layout.
    File(MirrorPath),
    /// A file of an unpacked package, with its path in the package.
    Unpacked(Package, String),
    /// A `.zip` under a name that no reader would look for. The text says why.
    Misnamed(String),
    /// Not a part of the layout; readers ignore it.
    Foreign,
}

/// A path that no file in a tree can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{shown:?} is not the path of a file in a tree: {reason}")]
pub struct BadMirrorPath {
    shown: String,
    reason: &'static str,
}

impl MirrorPath {
    /// The path of a package's archive.
    pub fn archive(package: &Package) -> Self {
        let kind = MirrorFileKind::Archive(package.version.clone(), package.platform.clone());
        Self { provider: package.provider.clone(), kind }
    }

    /// The path of another file in this folder.
    pub fn sibling(&self, kind: MirrorFileKind) -> Self {
        Self { provider: self.provider.clone(), kind }
    }

    /// The file name in its folder.
    pub fn name_of_file(&self) -> String {
        let type_ = &self.provider.type_;
        let stem = |version: &Version| format!("terraform-provider-{type_}_{version}");
        let of_package = |version: &Version, platform: &Platform| format!("{}_{platform}", stem(version));
        let of_scope = |scope: &SumsScope| match scope {
            SumsScope::Version(version) => stem(version),
            SumsScope::Package(version, platform) => of_package(version, platform),
        };
        match &self.kind {
            MirrorFileKind::Index => INDEX_NAME.to_owned(),
            MirrorFileKind::VersionIndex(version) => format!("{version}{JSON_SUFFIX}"),
            MirrorFileKind::Sums(scope) => of_scope(scope) + SUMS_SUFFIX,
            MirrorFileKind::Signature(scope) => of_scope(scope) + SIGNATURE_SUFFIX,
            MirrorFileKind::Document(version, platform) => of_package(version, platform) + JSON_SUFFIX,
            MirrorFileKind::Archive(version, platform) => of_package(version, platform) + ZIP_SUFFIX,
        }
    }

    /// The provider's folder, relative to the tree's folder.
    pub fn folder(&self) -> String {
        let ProviderAddress { host, namespace, type_ } = &self.provider;
        format!("{}/{namespace}/{type_}", host.to_unicode())
    }

    /// Parses a path relative to the tree's folder, with `/` between segments.
    ///
    /// # Errors
    /// [`BadMirrorPath`] for a path that leads out of the tree or that no file can have.
    pub fn parse(path: &str) -> Result<PathMeaning, BadMirrorPath> {
        let bad = |reason| BadMirrorPath { shown: path.chars().take(128).collect(), reason };
        if path.len() > MAX_PATH {
            return Err(bad("it is longer than 1024 bytes"));
        }
        if path.starts_with('/') || path.chars().any(|c| c.is_control() || c == '\\') {
            return Err(bad("it is absolute, or contains a backslash or a control character"));
        }
        let segments: Vec<&str> = path.split('/').collect();
        if segments.iter().any(|segment| segment.is_empty() || *segment == "." || *segment == "..") {
            return Err(bad("it has a segment that is empty, . or .."));
        }
        Ok(match segments[..] {
            [host, namespace, type_, name] => parse_in_provider_folder(provider(host, namespace, type_), name),
            [_, _, _, _, _, ref in_package @ ..] if !in_package.is_empty() => {
                let file = in_package.join("/");
                package_of(&segments).map_or(PathMeaning::Foreign, |package| PathMeaning::Unpacked(package, file))
            }
            _ => PathMeaning::Foreign,
        })
    }
}

/// The unpacked package whose folder this path is, or lies in. The rest of the path is not checked.
pub fn enclosing_package(path: &str) -> Option<Package> {
    package_of(&path.split('/').collect::<Vec<_>>())
}

/// The folder of the unpacked package that contains a path, spelled as in the path. Two folders that
/// are spelled differently can hold the same package (a host in Unicode and in Punycode).
pub fn enclosing_package_folder(path: &str) -> &str {
    path.match_indices('/').nth(4).map_or(path, |(end, _)| &path[..end])
}

/// Parses the three segments of a provider's folder.
pub fn provider(host: &str, namespace: &str, type_: &str) -> Result<ProviderAddress, String> {
    let host = Hostname::parse(host).map_err(|e| e.to_string())?;
    let [namespace, type_] = [namespace, type_].map(|name| Name::parse(name).map_err(|e| e.to_string()));
    Ok(ProviderAddress { host, namespace: namespace?, type_: type_? })
}

/// Parses a file name in the folder of a provider, which may itself be malformed.
fn parse_in_provider_folder(provider: Result<ProviderAddress, String>, name: &str) -> PathMeaning {
    // Terraform's reader compares names in lower case.
    let is_zip = ends_with(name, ZIP_SUFFIX);
    let provider = match provider {
        Ok(provider) => provider,
        Err(reason) if is_zip => return PathMeaning::Misnamed(reason),
        Err(_) => return PathMeaning::Foreign,
    };
    match parse_file_name(&provider.type_, name) {
        Ok(Some(kind)) => PathMeaning::File(MirrorPath { provider, kind }),
        Err(reason) if is_zip => PathMeaning::Misnamed(reason),
        Ok(None) | Err(_) => PathMeaning::Foreign,
    }
}

/// Parses a file name in a provider's folder. `None` is not a part of the layout.
fn parse_file_name(type_: &Name, name: &str) -> Result<Option<MirrorFileKind>, String> {
    if name == INDEX_NAME {
        return Ok(Some(MirrorFileKind::Index));
    }
    let prefix = format!("terraform-provider-{type_}_");
    let Some(matched_prefix) = name.get(..prefix.len()).filter(|start| start.eq_ignore_ascii_case(&prefix)) else {
        let version = name.strip_suffix(JSON_SUFFIX).and_then(|version| Version::parse(version).ok());
        return match version {
            // Clients request only the canonical spelling. Every other spelling has another length.
            Some(version) if name.len() == version.as_str().len() + JSON_SUFFIX.len() => {
                Ok(Some(MirrorFileKind::VersionIndex(version)))
            }
            _ => Err(format!("its name does not begin with {prefix}")),
        };
    };
    let name = &name[matched_prefix.len()..];
    if ends_with(name, ZIP_SUFFIX) {
        // Terraform's reader ignores the text after the architecture.
        let (version, platform, _) = parse_version_and_platform(&name[..name.len() - ZIP_SUFFIX.len()])?;
        return Ok(Some(MirrorFileKind::Archive(version, platform)));
    }
    if let Some(archive_name) = name.strip_suffix(JSON_SUFFIX) {
        let (version, platform, has_more) = parse_version_and_platform(archive_name)?;
        return Ok((!has_more).then_some(MirrorFileKind::Document(version, platform)));
    }
    let (covered_name, kind): (_, fn(SumsScope) -> MirrorFileKind) =
        match (name.strip_suffix(SIGNATURE_SUFFIX), name.strip_suffix(SUMS_SUFFIX)) {
            (Some(covered_name), _) => (covered_name, MirrorFileKind::Signature),
            (None, Some(covered_name)) => (covered_name, MirrorFileKind::Sums),
            (None, None) => return Ok(None),
        };
    if !covered_name.contains('_') {
        let version = Version::parse(covered_name).map_err(|e| e.to_string())?;
        return Ok(Some(kind(SumsScope::Version(version))));
    }
    let (version, platform, has_more) = parse_version_and_platform(covered_name)?;
    Ok((!has_more).then(|| kind(SumsScope::Package(version, platform))))
}

/// Parses `VERSION_OS_ARCH`. The third value is true if another `_` and more text follow.
fn parse_version_and_platform(text: &str) -> Result<(Version, Platform, bool), String> {
    let mut parts = text.split('_');
    let (Some(version), Some(os), Some(arch)) = (parts.next(), parts.next(), parts.next()) else {
        return Err("its name does not continue with VERSION_OS_ARCH".to_owned());
    };
    let version = Version::parse(version).map_err(|e| e.to_string())?;
    let platform = Platform::new(&os.to_ascii_lowercase(), &arch.to_ascii_lowercase()).map_err(|e| e.to_string())?;
    Ok((version, platform, parts.next().is_some()))
}

/// Parses `HOST/NAMESPACE/TYPE/VERSION/OS_ARCH`, the folder of an unpacked package. More segments may follow.
fn package_of(segments: &[&str]) -> Option<Package> {
    let [host, namespace, type_, version, platform, ..] = *segments else { return None };
    let provider = provider(host, namespace, type_).ok()?;
    let version = Version::parse(version).ok()?;
    let platform = Platform::parse(platform).ok()?;
    Some(Package { provider, version, platform })
}

/// True if a name has this ending, in any case.
fn ends_with(name: &str, ending: &str) -> bool {
    // The ending is ASCII. Off a character boundary it cannot match.
    name.len()
        .checked_sub(ending.len())
        .and_then(|index| name.get(index..))
        .is_some_and(|end| end.eq_ignore_ascii_case(ending))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The kind of the file at a path of the layout.
    fn kind_of(path: &str) -> MirrorFileKind {
        match MirrorPath::parse(path).unwrap() {
            PathMeaning::File(found) => found.kind,
            meaning => panic!("{path}: {meaning:?}"),
        }
    }

    #[test]
    fn the_kind_of_each_file_is_parsed_from_its_name() {
        let folder = "registry.example/acme/null";
        let (version, linux) = (Version::parse("1.2.0-rc.1+b").unwrap(), Platform::parse("linux_amd64").unwrap());
        let package = || (version.clone(), linux.clone());
        for (name, kind) in [
            ("index.json", MirrorFileKind::Index),
            ("1.2.0-rc.1+b.json", MirrorFileKind::VersionIndex(version.clone())),
            ("terraform-provider-null_1.2.0-rc.1+b_linux_amd64.zip", MirrorFileKind::Archive(package().0, package().1)),
            // Terraform's reader takes any case and ignores the text after the architecture.
            (
                "Terraform-Provider-NULL_1.2.0-rc.1+b_Linux_AMD64_v2.ZIP",
                MirrorFileKind::Archive(package().0, package().1),
            ),
            (
                "terraform-provider-null_1.2.0-rc.1+b_linux_amd64.json",
                MirrorFileKind::Document(package().0, package().1),
            ),
            (
                "terraform-provider-null_1.2.0-rc.1+b_SHA256SUMS",
                MirrorFileKind::Sums(SumsScope::Version(version.clone())),
            ),
            (
                "terraform-provider-null_1.2.0-rc.1+b_linux_amd64_SHA256SUMS.sig",
                MirrorFileKind::Signature(SumsScope::Package(package().0, package().1)),
            ),
        ] {
            assert_eq!(kind_of(&format!("{folder}/{name}")), kind, "{name}");
        }
    }

    #[test]
    fn ignored_files_are_foreign_and_misnamed_archives_are_reported() {
        let folder = "registry.example/acme/null";
        for path in [
            "README",
            "a/b",
            "a/b/c",
            "registry.example/acme/null/README.md",
            "a b/c/d/e",
            "x/y/z/1.0.0/linux/f",
            "registry.example/acme/null/1.2.0/linux_amd64",
        ] {
            assert_eq!(MirrorPath::parse(path), Ok(PathMeaning::Foreign), "{path}");
        }
        for name in [
            "terraform-provider-other_1.2.0_linux_amd64.zip",
            "terraform-provider-null_v1.2.0_linux_amd64.zip",
            "terraform-provider-null_1.2.0_linux.zip",
            "terraform-provider-null_1.2.0_li-nux_amd64.zip",
            "null.zip",
        ] {
            let read = MirrorPath::parse(&format!("{folder}/{name}")).unwrap();
            assert!(matches!(read, PathMeaning::Misnamed(_)), "{name}: {read:?}");
        }
        let package_folder = format!("{folder}/1.2.0/linux_amd64");
        let Ok(PathMeaning::Unpacked(package, file)) = MirrorPath::parse(&format!("{package_folder}/docs/index.md"))
        else {
            panic!()
        };
        assert_eq!(package.to_string(), "registry.example/acme/null 1.2.0 (linux_amd64)");
        assert_eq!(
            (file.as_str(), enclosing_package_folder(&format!("{package_folder}/docs/index.md"))),
            ("docs/index.md", &*package_folder)
        );
        assert_eq!(enclosing_package_folder(&package_folder), package_folder);
        assert_eq!(enclosing_package(&package_folder), Some(package));
    }

    #[test]
    fn malformed_paths_and_paths_out_of_the_tree_are_refused() {
        let too_long = "a".repeat(MAX_PATH + 1);
        for path in ["", "/etc/passwd", "../x", "a/../b", "a//b", "a/./b", "a/", "a\\b", "a/\0", "a/b\n", &too_long] {
            assert!(MirrorPath::parse(path).is_err(), "{path:?}");
        }
    }

    #[test]
    fn hosts_are_written_in_unicode_and_read_in_both_spellings() {
        for host in ["bücher.example", "xn--bcher-kva.example", "BÜCHER.example"] {
            let Ok(PathMeaning::File(path)) = MirrorPath::parse(&format!("{host}/acme/null/index.json")) else {
                panic!()
            };
            assert_eq!(path.to_string(), "bücher.example/acme/null/index.json");
        }
        let Ok(PathMeaning::File(path)) = MirrorPath::parse("localhost:5000/acme/null/index.json") else { panic!() };
        assert_eq!(path.folder(), "localhost:5000/acme/null");
    }

    /// Generates every kind of file.
    fn any_kind() -> impl Strategy<Value = MirrorFileKind> {
        let version = "[0-9]{1,3}\\.[0-9]{1,3}\\.[0-9]{1,3}(-[a-zA-Z0-9.-]{1,6})?(\\+[a-zA-Z0-9]{1,4})?"
            .prop_filter_map("a version", |text| Version::parse(&text).ok());
        let platform = "[a-z0-9]{1,8}_[a-z0-9]{1,8}".prop_filter_map("a platform", |text| Platform::parse(&text).ok());
        (0..8_usize, version, platform).prop_map(|(number, version, platform)| match number {
            0 => MirrorFileKind::Index,
            1 => MirrorFileKind::VersionIndex(version),
            2 => MirrorFileKind::Sums(SumsScope::Version(version)),
            3 => MirrorFileKind::Signature(SumsScope::Version(version)),
            4 => MirrorFileKind::Sums(SumsScope::Package(version, platform)),
            5 => MirrorFileKind::Signature(SumsScope::Package(version, platform)),
            6 => MirrorFileKind::Document(version, platform),
            _ => MirrorFileKind::Archive(version, platform),
        })
    }

    proptest! {
        #[test]
        fn every_printed_path_parses_to_itself(
            host in "[a-z]{1,8}\\.example(:[1-9][0-9]{0,3})?|b[üé]{1,3}cher\\.example|xn--bcher-kva\\.example",
            namespace in "[a-z0-9][a-z0-9_-]{0,9}",
            type_ in "[a-z0-9][a-z0-9_-]{0,9}",
            kind in any_kind(),
        ) {
            let provider = provider(&host, &namespace, &type_).unwrap();
            let path = MirrorPath { provider, kind };
            prop_assert_eq!(MirrorPath::parse(&path.to_string()), Ok(PathMeaning::File(path)));
        }

        #[test]
        fn arbitrary_text_never_panics_and_a_file_stays_in_its_provider_folder(
            path in "\\PC{0,60}|[a-z./_\\\\-]{0,40}|[a-z]{1,3}/[a-z]{1,3}/[a-z]{1,3}/terraform-provider-[a-z_0-9.é-]{0,30}(\\.zip|\\.json|_SHA256SUMS(\\.sig)?)?",
        ) {
            if let Ok(PathMeaning::File(found)) = MirrorPath::parse(&path) {
                let written = found.to_string();
                prop_assert_eq!(written.split('/').count(), 4);
                prop_assert!(!written.split('/').any(|segment| segment.is_empty() || segment == "." || segment == ".."));
                prop_assert_eq!(MirrorPath::parse(&written), Ok(PathMeaning::File(found)));
            }
        }
    }
}
