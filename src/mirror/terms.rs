//! What the configuration says of upstreams and of room: exchanged as one by a reload. A call keeps the terms that it
//! began on, and so does what it sets off.

use std::sync::Arc;

use super::remembered::Remembered;
use super::sealed::RequiredPlatforms;
use super::{Mirror, RequestContext, StoreError};
use crate::address::{Hostname, ModulePackage, Package};
use crate::error::Error;
use crate::store::{Key, SizeLimit};
use crate::upstream::outbound::Outbound;
use crate::upstream::{Upstream, Upstreams};

/// What the configuration says of upstreams and of room.
#[derive(Debug)]
pub struct RuntimeConfig {
    /// The registries that are mirrored.
    pub upstreams: Upstreams,
    /// The way to them.
    pub outbound: Outbound,
    /// What may be stored.
    pub size_limit: SizeLimit,
    /// What a version must be held for to be listed while sealed.
    pub sealed_for: RequiredPlatforms,
    pub(super) generation: Generation,
    /// What upstreams say that they have not. Another place, or another credential, may have it: so what was said on
    /// other terms says nothing on these.
    pub(super) absent: Remembered<Key, String>,
    /// Which sets were asked again in vain, for the same time.
    pub(super) asked_anew: Remembered<Package, ()>,
    /// The same of modules' locations.
    pub(super) asked_anew_of_module: Remembered<ModulePackage, ()>,
    /// Where in what a page named the module is, while the archive is on its way.
    pub(super) led_to: Remembered<ModulePackage, Option<String>>,
    /// What a location led to was looked at a moment ago.
    pub(super) looked_at: Remembered<ModulePackage, ()>,
}

/// Which terms: a part of every flight's key. Whoever joined a flight of other terms would be led by what another
/// place says, and show it the credential that is for this one (promise 8).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Generation(u64);

impl RuntimeConfig {
    /// The first terms of a mirror.
    pub fn new(upstreams: Upstreams, outbound: Outbound, size_limit: SizeLimit, sealed_for: RequiredPlatforms) -> Self {
        Self {
            upstreams,
            outbound,
            size_limit,
            sealed_for,
            generation: Generation(0),
            absent: Remembered::default(),
            asked_anew: Remembered::default(),
            asked_anew_of_module: Remembered::default(),
            led_to: Remembered::default(),
            looked_at: Remembered::default(),
        }
    }

    /// The terms that come after these. Nobody goes by them yet.
    pub fn followed_by(
        &self,
        upstreams: Upstreams,
        outbound: Outbound,
        size_limit: SizeLimit,
        sealed_for: RequiredPlatforms,
    ) -> Self {
        let generation = Generation(self.generation.0 + 1);
        Self { generation, ..Self::new(upstreams, outbound, size_limit, sealed_for) }
    }

    pub(super) fn upstream(&self, host: &Hostname) -> Result<&Arc<Upstream>, Error> {
        self.upstreams.get(host).ok_or_else(|| Error::UnknownHost(host.clone()))
    }
}

impl Mirror {
    /// What holds for whoever comes now.
    pub fn terms(&self) -> Arc<RuntimeConfig> {
        self.terms.load_full()
    }

    /// Exchanges the terms, for whoever comes from now on.
    pub fn renew(&self, terms: Arc<RuntimeConfig>) {
        terms.upstreams.hosts().into_iter().for_each(|host| self.counters.expect(host));
        terms.outbound.come_into_force();
        self.terms.store(terms);
    }

    /// Whether a call goes by the terms of now: what was said on others removes nothing.
    pub(super) fn is_on_these_terms(&self, call: &RequestContext) -> bool {
        self.terms.load().generation == call.terms.generation
    }

    /// Evicts what there is no room for any more.
    pub async fn make_room(self: &Arc<Self>) -> Result<(), Error> {
        self.on_disk(|mirror| {
            mirror.store_bytes_now();
            mirror.keep_to_the_limit();
            Ok::<_, StoreError>(())
        })
        .await
    }
}
