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
    /// A file of an unpacked package, at this path in it.
    Unpacked(Package, String),
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
            [_, _, _, _, _, ref within @ ..] if !within.is_empty() => {
                let file = within.join("/");
                unpacked(&segments).map_or(Meaning::Foreign, |package| Meaning::Unpacked(package, file))
            }
            _ => Meaning::Foreign,
        })
    }
}

/// The unpacked package that something at this path is, or lies in; whatever else is wrong with the path.
pub fn package_around(path: &str) -> Option<Package> {
    unpacked(&path.split('/').collect::<Vec<_>>())
}

/// The folder of the unpacked package that a path leads into, as the path spells it: two folders can be one package.
pub fn unpacked_place(path: &str) -> &str {
    path.match_indices('/').nth(4).map_or(path, |(end, _)| &path[..end])
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

fn unpacked(segments: &[&str]) -> Option<Package> {
    let [host, namespace, type_, version, platform, ..] = *segments else { return None };
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
mod tests;
