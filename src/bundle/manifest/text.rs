//! Serialises provider and module addresses as text: `HOST/NAMESPACE/TYPE` and `HOST/NAMESPACE/NAME/SYSTEM`.

/// A provider as `HOST/NAMESPACE/TYPE`.
pub(super) mod provider {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::address::{Hostname, Name, ProviderAddress};

    pub(crate) fn serialize<S: Serializer>(address: &ProviderAddress, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(address)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ProviderAddress, D::Error> {
        let text = String::deserialize(deserializer)?;
        let [host, namespace, type_] =
            super::segments(&text).ok_or_else(|| D::Error::custom("not a provider address"))?;
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

    pub(crate) fn serialize<S: Serializer>(address: &ModuleAddress, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(address)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ModuleAddress, D::Error> {
        let text = String::deserialize(deserializer)?;
        let [host, namespace, name, system] =
            super::segments(&text).ok_or_else(|| D::Error::custom("not a module address"))?;
        Ok(ModuleAddress {
            host: Hostname::parse(host).map_err(D::Error::custom)?,
            namespace: ModuleName::parse(namespace).map_err(D::Error::custom)?,
            name: ModuleName::parse(name).map_err(D::Error::custom)?,
            system: System::parse(system).map_err(D::Error::custom)?,
        })
    }
}

/// Splits an address into its segments; `None` if their number is not `N`.
fn segments<const N: usize>(text: &str) -> Option<[&str; N]> {
    text.split('/').collect::<Vec<_>>().try_into().ok()
}
