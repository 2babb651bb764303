//! The reloadable settings (upstreams, size limit), swapped atomically. A request keeps the settings that it began
//! with, and so does the work that it starts.

use std::sync::Arc;

use crate::address::{Address, Artifact, Hostname, ModuleAddress, ModulePackage, Package, Versions};
use crate::error::Error;
use crate::mirror::library::installable::RequiredPlatforms;
use crate::mirror::ttl_cache::TtlCache;
use crate::mirror::{RequestContext, Runtime};
use crate::store::{Key, SizeLimit};
use crate::upstream::outbound::Outbound;
use crate::upstream::{Upstream, Upstreams};

/// The reloadable settings, and the caches that are only valid under them.
#[derive(Debug)]
pub struct RuntimeConfig {
    /// The mirrored registries.
    pub upstreams: Upstreams,
    /// The connector to them.
    pub outbound: Outbound,
    /// The size limit of the store.
    pub size_limit: SizeLimit,
    /// The platforms that must be stored for a version to be listed while offline.
    pub required_platforms: RequiredPlatforms,
    pub(in crate::mirror) generation: ConfigGeneration,
    /// Cached 404s of upstreams. They end with a reload, because another URL or another credential may have the object.
    pub(in crate::mirror) not_found: TtlCache<Key, String>,
    /// The packages whose sets were revalidated in vain, for the lifetime of a 404.
    pub(in crate::mirror) refetched_sets: TtlCache<Package, ()>,
    /// The modules whose locations were revalidated in vain, for the lifetime of a 404.
    pub(in crate::mirror) refetched_locations: TtlCache<ModulePackage, ()>,
    /// The subdirectory of a module in the archive that a page led to, while that archive is being fetched.
    pub(in crate::mirror) pending_subdirs: TtlCache<ModulePackage, Option<String>>,
    /// The modules whose trees were rechecked a moment ago.
    pub(in crate::mirror) recently_rechecked: TtlCache<ModulePackage, ()>,
}

/// The number of a configuration, part of every flight's key. A request that joined a flight of another configuration
/// would follow another upstream's document, and send it the credential meant for this one (DESIGN, promise 8).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(in crate::mirror) struct ConfigGeneration(u64);

impl RuntimeConfig {
    /// The settings at the start.
    pub fn new(
        upstreams: Upstreams,
        outbound: Outbound,
        size_limit: SizeLimit,
        required_platforms: RequiredPlatforms,
    ) -> Self {
        Self {
            upstreams,
            outbound,
            size_limit,
            required_platforms,
            generation: ConfigGeneration(0),
            not_found: TtlCache::default(),
            refetched_sets: TtlCache::default(),
            refetched_locations: TtlCache::default(),
            pending_subdirs: TtlCache::default(),
            recently_rechecked: TtlCache::default(),
        }
    }

    /// The settings of a reload, not active yet.
    pub fn reloaded(
        &self,
        upstreams: Upstreams,
        outbound: Outbound,
        size_limit: SizeLimit,
        sealed_for: RequiredPlatforms,
    ) -> Self {
        let generation = ConfigGeneration(self.generation.0 + 1);
        Self { generation, ..Self::new(upstreams, outbound, size_limit, sealed_for) }
    }

    pub(in crate::mirror) fn upstream(&self, host: &Hostname) -> Result<&Arc<Upstream>, Error> {
        self.upstreams.get(host).ok_or_else(|| Error::UnknownHost(host.clone()))
    }

    /// Every spelling under which a module may be stored, since `fold_case` may have changed.
    pub(in crate::mirror) fn keys_of(&self, address: &ModuleAddress) -> Vec<ModuleAddress> {
        let mut keys = vec![self.key_of(address)];
        for other in [address.clone(), address.folded()] {
            if !keys.contains(&other) {
                keys.push(other);
            }
        }
        keys
    }

    /// The canonical spelling of a module, which is its store key.
    pub(in crate::mirror) fn key_of(&self, address: &ModuleAddress) -> ModuleAddress {
        let folds = self.upstreams.get(&address.host).is_some_and(|upstream| upstream.settings.fold_case);
        if folds { address.folded() } else { address.clone() }
    }

    /// The canonical spelling of an address.
    pub(in crate::mirror) fn canonical_address(&self, address: &Address) -> Address {
        match address {
            Address::Provider(_) => address.clone(),
            Address::Module(module) => Address::Module(self.key_of(module)),
        }
    }

    /// The canonical spelling of a version's module.
    pub(in crate::mirror) fn key_of_package(&self, package: &ModulePackage) -> ModulePackage {
        ModulePackage { module: self.key_of(&package.module), version: package.version.clone() }
    }
}

impl Runtime {
    /// The active settings.
    pub fn config(&self) -> Arc<RuntimeConfig> {
        self.config.load_full()
    }

    /// Activates settings for new requests.
    pub fn activate(&self, terms: Arc<RuntimeConfig>) {
        terms.upstreams.hosts().into_iter().for_each(|host| self.counters.register_host(host));
        terms.outbound.apply_connectivity();
        self.config.store(terms);
    }

    /// Returns true if a request's settings are still active. An answer under former ones removes nothing from the
    /// store.
    pub(in crate::mirror) fn is_current_config(&self, call: &RequestContext) -> bool {
        self.config.load().generation == call.config.generation
    }

    /// The store key of a version's archive, in the canonical spelling.
    pub fn artifact_of(&self, package: &ModulePackage) -> Artifact {
        Artifact::Module(self.config().key_of_package(package))
    }

    /// The package under its canonical spelling, which is its store key.
    pub(in crate::mirror) fn canonical(&self, artifact: Artifact) -> Artifact {
        match artifact {
            Artifact::Module(package) => self.artifact_of(&package),
            Artifact::Provider(_) => artifact,
        }
    }

    pub(in crate::mirror) fn must_be_online(&self, subject: &str) -> Result<(), Error> {
        match self.connectivity() {
            crate::mirror::Connectivity::Online => Ok(()),
            crate::mirror::Connectivity::Offline => Err(Error::Sealed(subject.to_owned())),
        }
    }

    /// Forgets cached 404s and recent checks of the selected versions. `address` is the canonical spelling.
    pub(in crate::mirror) fn forget_absences(&self, address: &Address, versions: &Versions) {
        let config = self.config();
        match address {
            Address::Provider(provider) => {
                let is_meant = |package: &Package| package.provider == *provider && versions.include(&package.version);
                config.not_found.remove_if(|key| match key {
                    Key::ProofSet(package) => is_meant(package),
                    Key::ProviderVersions(address) => address == provider,
                    _ => false,
                });
                config.refetched_sets.remove_if(is_meant);
            }
            Address::Module(module) => {
                let is_meant =
                    |package: &ModulePackage| package.module == *module && versions.include(&package.version);
                config.not_found.remove_if(|key| match key {
                    Key::ModuleVersions(address) => address == module,
                    Key::ModuleLocation(package) => is_meant(package),
                    _ => false,
                });
                config.refetched_locations.remove_if(is_meant);
                config.recently_rechecked.remove_if(is_meant);
            }
        }
    }
}
