//! Where each file of a tree lies. Paths are read as Terraform's own reader reads them (PROTOCOL 7), and stricter where
//! it would only write a warning to its log.

use std::fmt;

use crate::address::{Hostname, Name, Package, Platform, ProviderAddress, Version};

/// The longest path in a tree, in bytes.
pub const LONGEST_PATH: usize = 1024;

const ZIP: &str = ".zip";
const JSON: &str = ".json";
const SUMS: &str = "_SHA256SUMS";
const SIGNATURE: &str = "_SHA256SUMS.sig";
const INDEX: &str = "index.json";

/// A file of a tree.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TreePath {
    /// Whose folder it is in.
    pub provider: ProviderAddress,
    /// What it is.
    pub member: Member,
}

/// What a file of a provider's folder is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Member {
    /// `index.json`
    Index,
    /// `VERSION.json`
    VersionIndex(Version),
    /// SHA256SUMS.
    Sums(Covers),
    /// The signature of SHA256SUMS.
    Signature(Covers),
    /// The download document of a package, with the publisher's keys.
    Document(Version, Platform),
    /// The archive of a package.
    Archive(Version, Platform),
}

/// For which packages a SHA256SUMS is there.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Covers {
    /// Those of a version that have none of their own.
    Version(Version),
    /// One package.
    Package(Version, Platform),
}

/// What a path means to a reader of the layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meaning {
    /// A file of the layout.
    File(TreePath),
    /// It lies in an unpacked package.
    Unpacked(Package),
    /// It looks like an archive, and is none that a reader would find.
    Misnamed(String),
    /// It is no part of the layout: readers pass it over.
    Foreign,
}

/// A path that no file below a folder has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{shown:?} is no path of a file in a tree: {why}")]
pub struct BadPath {
    shown: String,
    why: &'static str,
}

impl TreePath {
    /// The file of a package.
    pub fn archive(package: &Package) -> Self {
        let member = Member::Archive(package.version.clone(), package.platform.clone());
        Self { provider: package.provider.clone(), member }
    }

    /// Another file in the same folder.
    pub fn beside(&self, member: Member) -> Self {
        Self { provider: self.provider.clone(), member }
    }

    /// What it is called in its folder.
    pub fn file_name(&self) -> String {
        let type_ = &self.provider.type_;
        let of = |version: &Version| format!("terraform-provider-{type_}_{version}");
        let of_package = |version: &Version, platform: &Platform| format!("{}_{platform}", of(version));
        let covering = |covers: &Covers| match covers {
            Covers::Version(version) => of(version),
            Covers::Package(version, platform) => of_package(version, platform),
        };
        match &self.member {
            Member::Index => INDEX.to_owned(),
            Member::VersionIndex(version) => format!("{version}{JSON}"),
            Member::Sums(covers) => covering(covers) + SUMS,
            Member::Signature(covers) => covering(covers) + SIGNATURE,
            Member::Document(version, platform) => of_package(version, platform) + JSON,
            Member::Archive(version, platform) => of_package(version, platform) + ZIP,
        }
    }

    /// The folder it is in, below the tree's.
    pub fn folder(&self) -> String {
        let ProviderAddress { host, namespace, type_ } = &self.provider;
        format!("{}/{namespace}/{type_}", host.to_unicode())
    }

    /// What a path below the tree's folder means; segments between `/`.
    ///
    /// # Errors
    /// [`BadPath`]: it leads out of the tree, or no file has such a path.
    pub fn parse(path: &str) -> Result<Meaning, BadPath> {
        let bad = |why| BadPath { shown: path.chars().take(128).collect(), why };
        if path.len() > LONGEST_PATH {
            return Err(bad("it is longer than 1024 bytes"));
        }
        if path.starts_with('/') || path.chars().any(|c| c.is_control() || c == '\\') {
            return Err(bad("it is absolute, or holds a backslash or a control character"));
        }
        let segments: Vec<&str> = path.split('/').collect();
        if segments.iter().any(|segment| segment.is_empty() || *segment == "." || *segment == "..") {
            return Err(bad("it has a segment that is empty, . or .."));
        }
        Ok(match segments[..] {
            [host, namespace, type_, name] => in_folder(provider(host, namespace, type_), name),
            [host, namespace, type_, version, platform, ..] => {
                unpacked(host, namespace, type_, version, platform).map_or(Meaning::Foreign, Meaning::Unpacked)
            }
            _ => Meaning::Foreign,
        })
    }
}

impl fmt::Display for TreePath {
    /// The path below the tree's folder.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.folder(), self.file_name())
    }
}

/// The provider whose folder this is.
pub fn provider(host: &str, namespace: &str, type_: &str) -> Result<ProviderAddress, String> {
    let host = Hostname::parse(host).map_err(|e| e.to_string())?;
    let [namespace, type_] = [namespace, type_].map(|name| Name::parse(name).map_err(|e| e.to_string()));
    Ok(ProviderAddress { host, namespace: namespace?, type_: type_? })
}

fn in_folder(provider: Result<ProviderAddress, String>, name: &str) -> Meaning {
    // The reader compares names in lower case.
    let is_zip = ends_with(name, ZIP);
    let provider = match provider {
        Ok(provider) => provider,
        Err(why) if is_zip => return Meaning::Misnamed(why),
        Err(_) => return Meaning::Foreign,
    };
    match member(&provider.type_, name) {
        Ok(Some(member)) => Meaning::File(TreePath { provider, member }),
        Err(why) if is_zip => Meaning::Misnamed(why),
        Ok(None) | Err(_) => Meaning::Foreign,
    }
}

/// Which file of a provider has this name; nothing where it is none of the layout.
fn member(type_: &Name, name: &str) -> Result<Option<Member>, String> {
    if name == INDEX {
        return Ok(Some(Member::Index));
    }
    let prefix = format!("terraform-provider-{type_}_");
    let Some(rest) = name.get(..prefix.len()).filter(|start| start.eq_ignore_ascii_case(&prefix)) else {
        let version = name.strip_suffix(JSON).and_then(|version| Version::parse(version).ok());
        return match version {
            // Only the spelling that clients ask for.
            Some(version) if name.len() == version.as_str().len() + JSON.len() => {
                Ok(Some(Member::VersionIndex(version)))
            }
            _ => Err(format!("its name does not begin {prefix}")),
        };
    };
    let rest = &name[rest.len()..];
    if ends_with(rest, ZIP) {
        // What follows the architecture is ignored, as the reader does.
        let (version, platform, _) = parts(&rest[..rest.len() - ZIP.len()])?;
        return Ok(Some(Member::Archive(version, platform)));
    }
    if let Some(of) = rest.strip_suffix(JSON) {
        let (version, platform, more) = parts(of)?;
        return Ok((!more).then_some(Member::Document(version, platform)));
    }
    let (of, member): (_, fn(Covers) -> Member) = match (rest.strip_suffix(SIGNATURE), rest.strip_suffix(SUMS)) {
        (Some(of), _) => (of, Member::Signature),
        (None, Some(of)) => (of, Member::Sums),
        (None, None) => return Ok(None),
    };
    if !of.contains('_') {
        let version = Version::parse(of).map_err(|e| e.to_string())?;
        return Ok(Some(member(Covers::Version(version))));
    }
    let (version, platform, more) = parts(of)?;
    Ok((!more).then(|| member(Covers::Package(version, platform))))
}

/// `VERSION_OS_ARCH`, and whether more follows.
fn parts(text: &str) -> Result<(Version, Platform, bool), String> {
    let mut parts = text.split('_');
    let (Some(version), Some(os), Some(arch)) = (parts.next(), parts.next(), parts.next()) else {
        return Err("its name does not go on VERSION_OS_ARCH".to_owned());
    };
    let version = Version::parse(version).map_err(|e| e.to_string())?;
    let platform = Platform::new(&os.to_ascii_lowercase(), &arch.to_ascii_lowercase()).map_err(|e| e.to_string())?;
    Ok((version, platform, parts.next().is_some()))
}

fn unpacked(host: &str, namespace: &str, type_: &str, version: &str, platform: &str) -> Option<Package> {
    let provider = provider(host, namespace, type_).ok()?;
    let version = Version::parse(version).ok()?;
    let platform = Platform::parse(platform).ok()?;
    Some(Package { provider, version, platform })
}

fn ends_with(name: &str, ending: &str) -> bool {
    // The ending is ASCII: where it is not on a boundary, it is not there.
    name.len()
        .checked_sub(ending.len())
        .and_then(|at| name.get(at..))
        .is_some_and(|end| end.eq_ignore_ascii_case(ending))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(path: &str) -> Member {
        match TreePath::parse(path).unwrap() {
            Meaning::File(found) => found.member,
            other => panic!("{path}: {other:?}"),
        }
    }

    #[test]
    fn each_file_of_the_layout_is_known_by_its_name() {
        let folder = "registry.example/acme/null";
        let (version, linux) = (Version::parse("1.2.0-rc.1+b").unwrap(), Platform::parse("linux_amd64").unwrap());
        let package = || (version.clone(), linux.clone());
        for (name, member) in [
            ("index.json", Member::Index),
            ("1.2.0-rc.1+b.json", Member::VersionIndex(version.clone())),
            ("terraform-provider-null_1.2.0-rc.1+b_linux_amd64.zip", Member::Archive(package().0, package().1)),
            // As the reader has it: any case, and what follows is ignored.
            ("Terraform-Provider-NULL_1.2.0-rc.1+b_Linux_AMD64_v2.ZIP", Member::Archive(package().0, package().1)),
            ("terraform-provider-null_1.2.0-rc.1+b_linux_amd64.json", Member::Document(package().0, package().1)),
            ("terraform-provider-null_1.2.0-rc.1+b_SHA256SUMS", Member::Sums(Covers::Version(version.clone()))),
            (
                "terraform-provider-null_1.2.0-rc.1+b_linux_amd64_SHA256SUMS.sig",
                Member::Signature(Covers::Package(package().0, package().1)),
            ),
        ] {
            assert_eq!(file(&format!("{folder}/{name}")), member, "{name}");
        }
    }

    #[test]
    fn what_a_reader_would_pass_over_is_foreign_and_what_looks_like_an_archive_is_told() {
        let folder = "registry.example/acme/null";
        for path in
            ["README", "a/b", "a/b/c", "registry.example/acme/null/README.md", "a b/c/d/e", "x/y/z/1.0.0/linux/f"]
        {
            assert_eq!(TreePath::parse(path), Ok(Meaning::Foreign), "{path}");
        }
        for name in [
            "terraform-provider-other_1.2.0_linux_amd64.zip",
            "terraform-provider-null_v1.2.0_linux_amd64.zip",
            "terraform-provider-null_1.2.0_linux.zip",
            "terraform-provider-null_1.2.0_li-nux_amd64.zip",
            "null.zip",
        ] {
            let read = TreePath::parse(&format!("{folder}/{name}")).unwrap();
            assert!(matches!(read, Meaning::Misnamed(_)), "{name}: {read:?}");
        }
        let unpacked = TreePath::parse(&format!("{folder}/1.2.0/linux_amd64/terraform-provider-null_v1.2.0")).unwrap();
        let Meaning::Unpacked(package) = unpacked else { panic!("{unpacked:?}") };
        assert_eq!(package.to_string(), "registry.example/acme/null 1.2.0 for linux_amd64");
    }

    #[test]
    fn a_path_that_leads_elsewhere_is_refused() {
        let longest = "a".repeat(LONGEST_PATH + 1);
        for path in ["", "/etc/passwd", "../x", "a/../b", "a//b", "a/./b", "a/", "a\\b", "a/\0", "a/b\n", &longest] {
            assert!(TreePath::parse(path).is_err(), "{path:?}");
        }
    }

    #[test]
    fn a_host_stands_there_as_its_users_write_it_and_both_spellings_are_read() {
        for host in ["bücher.example", "xn--bcher-kva.example", "BÜCHER.example"] {
            let Ok(Meaning::File(path)) = TreePath::parse(&format!("{host}/acme/null/index.json")) else { panic!() };
            assert_eq!(path.to_string(), "bücher.example/acme/null/index.json");
        }
        let Ok(Meaning::File(path)) = TreePath::parse("localhost:5000/acme/null/index.json") else { panic!() };
        assert_eq!(path.folder(), "localhost:5000/acme/null");
    }

    fn any_member() -> impl Strategy<Value = Member> {
        let version = "[0-9]{1,3}\\.[0-9]{1,3}\\.[0-9]{1,3}(-[a-zA-Z0-9.-]{1,6})?(\\+[a-zA-Z0-9]{1,4})?"
            .prop_filter_map("a version", |text| Version::parse(&text).ok());
        let platform = "[a-z0-9]{1,8}_[a-z0-9]{1,8}".prop_filter_map("a platform", |text| Platform::parse(&text).ok());
        (0..8_usize, version, platform).prop_map(|(kind, version, platform)| match kind {
            0 => Member::Index,
            1 => Member::VersionIndex(version),
            2 => Member::Sums(Covers::Version(version)),
            3 => Member::Signature(Covers::Version(version)),
            4 => Member::Sums(Covers::Package(version, platform)),
            5 => Member::Signature(Covers::Package(version, platform)),
            6 => Member::Document(version, platform),
            _ => Member::Archive(version, platform),
        })
    }

    proptest! {
        #[test]
        fn every_path_that_is_written_is_read_back(
            host in "[a-z]{1,8}\\.example(:[1-9][0-9]{0,3})?|b[üé]{1,3}cher\\.example|xn--bcher-kva\\.example",
            namespace in "[a-z0-9][a-z0-9_-]{0,9}",
            type_ in "[a-z0-9][a-z0-9_-]{0,9}",
            member in any_member(),
        ) {
            let provider = provider(&host, &namespace, &type_).unwrap();
            let path = TreePath { provider, member };
            prop_assert_eq!(TreePath::parse(&path.to_string()), Ok(Meaning::File(path)));
        }

        #[test]
        fn no_text_panics_and_what_is_a_file_stays_in_its_folder(
            path in "\\PC{0,60}|[a-z./_\\\\-]{0,40}|[a-z]{1,3}/[a-z]{1,3}/[a-z]{1,3}/terraform-provider-[a-z_0-9.é-]{0,30}(\\.zip|\\.json|_SHA256SUMS(\\.sig)?)?",
        ) {
            if let Ok(Meaning::File(found)) = TreePath::parse(&path) {
                let written = found.to_string();
                prop_assert_eq!(written.split('/').count(), 4);
                prop_assert!(!written.split('/').any(|segment| segment.is_empty() || segment == "." || segment == ".."));
                prop_assert_eq!(TreePath::parse(&written), Ok(Meaning::File(found)));
            }
        }
    }
}
