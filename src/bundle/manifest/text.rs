//! Serialises addresses in JSON as the text that people write.

/// A provider as `HOST/NAMESPACE/TYPE`.
pub(super) mod provider {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::address::{Hostname, Name, ProviderAddress};

    pub(crate) fn serialize<S: Serializer>(address: &ProviderAddress, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(address)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ProviderAddress, D::Error> {
        let text = String::deserialize(from)?;
        let [host, namespace, type_] = super::parts(&text).ok_or_else(|| D::Error::custom("it is not a provider"))?;
        Ok(ProviderAddress {
            host: Hostname::parse(host).map_err(D::Error::custom)?,
            namespace: Name::parse(namespace).map_err(D::Error::custom)?,
            type_: Name::parse(type_).map_err(D::Error::custom)?,
        })
    }
}

/// A module as `HOST/NAMESPACE/NAME/SYSTEM`.
pub(super) mod module {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::address::{Hostname, ModuleAddress, ModuleName, System};

    pub(crate) fn serialize<S: Serializer>(address: &ModuleAddress, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(address)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ModuleAddress, D::Error> {
        let text = String::deserialize(from)?;
        let [host, namespace, name, system] =
            super::parts(&text).ok_or_else(|| D::Error::custom("it is not a module"))?;
        Ok(ModuleAddress {
            host: Hostname::parse(host).map_err(D::Error::custom)?,
            namespace: ModuleName::parse(namespace).map_err(D::Error::custom)?,
            name: ModuleName::parse(name).map_err(D::Error::custom)?,
            system: System::parse(system).map_err(D::Error::custom)?,
        })
    }
}

fn parts<const N: usize>(text: &str) -> Option<[&str; N]> {
    text.split('/').collect::<Vec<_>>().try_into().ok()
}
