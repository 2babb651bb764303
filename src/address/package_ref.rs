//! How reports and messages spell a package: `{"address":…,"version":…,"platform":…}` in JSON, `ADDRESS
//! VERSION (PLATFORM)` as text.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Artifact, Hostname, ModulePackage, Package, PackageSelector, Platform};

/// A provider, a module or a document, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PackageRef {
    /// `HOST/NAMESPACE/TYPE` or `HOST/NAMESPACE/NAME/SYSTEM`; `HOST` of a discovery document; otherwise the requested
    /// text. Older records call it `what`, and include the version.
    #[serde(alias = "what")]
    pub address: String,
    /// The version; the constraint as long as no version is chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// `OS_ARCH`; `None` for a module, which is the same for all platforms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// The kind of document, if the report is about a document: `version list` or `discovery document`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<String>,
}

impl PackageRef {
    /// A requested item: an address with its version or constraint, or any other text.
    pub fn requested(text: &str) -> Self {
        let is_address = |address: &str| {
            let host = address.split('/').next().unwrap_or_default();
            host.contains(['.', ':']) && (3..=4).contains(&address.split('/').count()) && !address.contains("//")
        };
        match text.split_once('@') {
            Some((address, version)) if is_address(address) => {
                Self { address: address.to_owned(), version: Some(version.to_owned()), ..Self::default() }
            }
            _ => Self { address: text.to_owned(), ..Self::default() },
        }
    }

    /// The version list of a provider or a module.
    pub fn version_list(address: &impl fmt::Display) -> Self {
        Self { address: address.to_string(), document: Some("version list".to_owned()), ..Self::default() }
    }

    /// The discovery document of a registry.
    pub fn discovery(host: &Hostname) -> Self {
        Self { address: host.to_string(), document: Some("discovery document".to_owned()), ..Self::default() }
    }

    /// A copy for one platform.
    #[must_use]
    pub fn on(self, platform: Option<&Platform>) -> Self {
        Self { platform: platform.map(ToString::to_string), ..self }
    }

    /// A copy without the host, if it is `default_host`.
    #[must_use]
    pub fn without(&self, default_host: &Hostname) -> Self {
        let path = self.address.strip_prefix(default_host.as_str()).and_then(|path| path.strip_prefix('/'));
        Self { address: path.unwrap_or(&self.address).to_owned(), ..self.clone() }
    }
}

impl fmt::Display for PackageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(document) = &self.document {
            write!(f, "the {document} of ")?;
        }
        f.write_str(&self.address)?;
        self.version.iter().try_for_each(|version| write!(f, " {version}"))?;
        self.platform.iter().try_for_each(|platform| write!(f, " ({platform})"))
    }
}

impl From<&Package> for PackageRef {
    fn from(package: &Package) -> Self {
        let (address, version) = (package.provider.to_string(), Some(package.version.to_string()));
        Self { address, version, ..Self::default() }.on(Some(&package.platform))
    }
}

impl From<&ModulePackage> for PackageRef {
    fn from(package: &ModulePackage) -> Self {
        Self { address: package.module.to_string(), version: Some(package.version.to_string()), ..Self::default() }
    }
}

impl From<&Artifact> for PackageRef {
    fn from(artifact: &Artifact) -> Self {
        match artifact {
            Artifact::Provider(package) => package.into(),
            Artifact::Module(package) => package.into(),
        }
    }
}

impl From<&PackageSelector> for PackageRef {
    fn from(selector: &PackageSelector) -> Self {
        Self::requested(&selector.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An address in JSON always names its host; text leaves out the default host (DESIGN, section 3).
    #[test]
    fn a_reference_names_the_default_host_in_json_and_not_in_text() {
        let host = Hostname::parse("registry.terraform.io").unwrap();
        let package = PackageRef::requested("registry.terraform.io/hashicorp/aws@5.1.0");
        let package = package.on(Some(&Platform::parse("linux_amd64").unwrap()));
        assert_eq!(
            serde_json::to_string(&package).unwrap(),
            r#"{"address":"registry.terraform.io/hashicorp/aws","version":"5.1.0","platform":"linux_amd64"}"#
        );
        assert_eq!(package.without(&host).to_string(), "hashicorp/aws 5.1.0 (linux_amd64)");
        assert_eq!(package.to_string(), "registry.terraform.io/hashicorp/aws 5.1.0 (linux_amd64)");
        let longer_host = PackageRef::requested("registry.terraform.io.example/hashicorp/aws@~> 5.0").without(&host);
        assert_eq!(longer_host.to_string(), "registry.terraform.io.example/hashicorp/aws ~> 5.0");
        assert_eq!(PackageRef::version_list(&"a.example/b/c").to_string(), "the version list of a.example/b/c");
        for text in ["git::https://git@x.example/y.git", "./prod", "./a@b/c.tf", "acme/null@1.0.0"] {
            assert_eq!(
                (PackageRef::requested(text).address.as_str(), PackageRef::requested(text).version),
                (text, None)
            );
        }
    }

    /// Older larders wrote the address as `what`.
    #[test]
    fn a_record_of_an_older_larder_is_readable() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Record {
            #[serde(flatten)]
            package: PackageRef,
            bytes: u64,
        }
        let record: Record =
            serde_json::from_str(r#"{"what":"a.example/b/c@1.0.0","platform":"linux_amd64","bytes":7}"#).unwrap();
        assert_eq!(record.package.address, "a.example/b/c@1.0.0");
        assert_eq!(record.package.platform.as_deref(), Some("linux_amd64"));
    }
}
