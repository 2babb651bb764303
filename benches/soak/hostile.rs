//! A hostile registry: it republishes versions under other file names, under unknown keys or unsigned; foreign keys
//! sign new versions, or the same bytes, before they change old ones; modules move; servers fall silent. `truth`
//! decides for each edition if larder may serve it.

use std::collections::BTreeSet;
use std::sync::Arc;

use rand::Rng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;

use crate::SoakSetup;
use crate::alarms::Expected;
use crate::support::upstream::{FakeUpstream, SigningKey};
use crate::truth::{ChangeRight, Draft, Signer};

/// The providers that are attacked, with the size of their archives.
pub(crate) const ATTACKED_PROVIDERS: [(&str, usize); 3] = [("hare", 40_000), ("deer", 250_000), ("boar", 1_200_000)];
/// The versions that each of them has from the start.
pub(crate) const FIRST_VERSIONS: [&str; 3] = ["1.0.0", "1.1.0", "1.2.0"];

/// The attacks so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AttackCounts {
    pub(crate) attacks: u32,
    pub(crate) renamed: u32,
    pub(crate) unsigned: u32,
    pub(crate) strangers: u32,
    pub(crate) re_signed: u32,
    pub(crate) lawful: u32,
    pub(crate) taken_back: u32,
    pub(crate) moved: u32,
    pub(crate) silences: u32,
}

/// A version of a provider that is attacked, as upstream has it now.
struct Target {
    now: Draft,
    first: Draft,
    /// The signer of a rightful edition with other bytes than the first.
    changed_by: Option<Signer>,
    standing: ChangeRight,
    editions: u64,
}

/// A foreign key that signed something that larder may serve, and the versions that it will change later.
struct Stranger {
    key: Signer,
    /// The new version that the key signed, or the version whose bytes it signed again.
    name: String,
    version: String,
    /// Versions that clients had before the attack.
    victims: Vec<String>,
    /// Steps until the next attack.
    waits: u32,
}

/// The attacker.
pub(crate) struct Hostile {
    site: Arc<SoakSetup>,
    rng: StdRng,
    targets: Vec<Target>,
    strangers: Vec<Stranger>,
    /// A second key of each provider, which becomes known like any other.
    deputies: Vec<(String, Signer)>,
    /// New versions by new keys.
    newcomers: Vec<(String, String)>,
    versions: u32,
    is_silent: bool,
    pub(crate) done: AttackCounts,
}

impl Hostile {
    pub(crate) fn new(setup: &Arc<SoakSetup>, rng: StdRng) -> Self {
        let deputies = ATTACKED_PROVIDERS.map(|(name, _)| (name.to_owned(), stranger()));
        Self {
            site: Arc::clone(setup),
            rng,
            targets: Vec::new(),
            strangers: Vec::new(),
            deputies: deputies.into(),
            newcomers: Vec::new(),
            versions: 0,
            is_silent: false,
            done: AttackCounts::default(),
        }
    }

    /// Publishes the initial versions.
    pub(crate) async fn publish_all(&mut self, upstream: &FakeUpstream) {
        for (name, size) in ATTACKED_PROVIDERS {
            self.site.names.lock().push(name.to_owned());
            for version in FIRST_VERSIONS {
                self.publish_new(upstream, Draft::new(name, version, size)).await;
            }
        }
    }

    async fn publish_new(&mut self, upstream: &FakeUpstream, draft: Draft) {
        self.site.truth.publish(upstream, draft.clone()).await;
        self.site.attacked.lock().push((draft.name.clone(), draft.version.clone()));
        let (now, first) = (draft.clone(), draft);
        self.targets.push(Target { now, first, changed_by: None, standing: ChangeRight::Rightful, editions: 1 });
    }

    /// A version that no client has yet.
    fn new_draft(&mut self, name: &str) -> Draft {
        self.versions += 1;
        let size = ATTACKED_PROVIDERS.iter().find(|(attacked, _)| *attacked == name).map_or(40_000, |(_, size)| *size);
        Draft::new(name, &format!("3.0.{}", self.versions), size)
    }

    /// The next step of the attack.
    pub(crate) async fn step(&mut self, upstream: &FakeUpstream) {
        if self.is_silent {
            self.end_silence(upstream);
            return;
        }
        self.change_by_seen_keys(upstream).await;
        let name = ATTACKED_PROVIDERS[self.rng.gen_range(0..ATTACKED_PROVIDERS.len())].0;
        match self.rng.gen_range(0..100) {
            0..30 => self.attack_outright(upstream, name).await,
            30..45 => self.sign_a_new_version(upstream, name).await,
            45..58 => self.sign_the_same_bytes(upstream, name).await,
            58..68 => self.change_lawfully(upstream, name).await,
            68..78 => self.take_back(upstream, name).await,
            78..86 => {
                let draft = self.new_draft(name);
                self.publish_new(upstream, draft).await;
            }
            86..92 => self.done.moved += u32::from(self.site.sources.move_one(&mut self.rng)),
            _ => {
                upstream.fall_silent();
                self.site.sources.upstream.fall_silent();
                self.is_silent = true;
                self.done.silences += 1;
            }
        }
    }

    /// Lets both upstreams answer new connections again.
    pub(crate) fn end_silence(&mut self, upstream: &FakeUpstream) {
        upstream.end_silence();
        self.site.sources.upstream.end_silence();
        self.is_silent = false;
    }

    /// Index of a version of this provider that clients have and that was never changed.
    async fn victim(&mut self, name: &str) -> Option<usize> {
        let mut found = Vec::new();
        for (index, target) in self.targets.iter().enumerate() {
            let is_first = target.standing == ChangeRight::Rightful && target.changed_by.is_none();
            if target.now.name == name && is_first && self.site.truth.is_seen(name, &target.now.version).await {
                found.push(index);
            }
        }
        found.choose(&mut self.rng).copied()
    }

    /// Republishes a version with other bytes, under its own or other file names.
    async fn change(&mut self, upstream: &FakeUpstream, index: usize, signer: Signer) {
        let is_renamed = self.rng.gen_bool(0.5);
        let target = &mut self.targets[index];
        target.editions += 1;
        let draft = target.first.clone().edition(target.editions).signed_by(signer.clone()).renamed(is_renamed);
        let Some(standing) = self.site.truth.publish(upstream, draft.clone()).await else { return };
        (target.now, target.standing) = (draft, standing);
        match standing {
            ChangeRight::Rightful => {
                target.changed_by = Some(signer);
                self.done.lawful += 1;
            }
            ChangeRight::Foreign => {
                self.done.attacks += 1;
                self.done.renamed += u32::from(is_renamed);
                self.done.unsigned += u32::from(matches!(signer, Signer::Nobody));
            }
        }
    }

    async fn attack_outright(&mut self, upstream: &FakeUpstream, name: &str) {
        let Some(index) = self.victim(name).await else { return };
        match self.rng.gen_range(0..8) {
            // The same bytes without their signature.
            0 => {
                let target = &mut self.targets[index];
                let draft = target.first.clone().signed_by(Signer::Nobody);
                if let Some(standing) = self.site.truth.publish(upstream, draft.clone()).await {
                    (target.now, target.standing) = (draft, standing);
                    self.done.attacks += 1;
                    self.done.unsigned += 1;
                }
            }
            1 | 2 => self.change(upstream, index, Signer::Nobody).await,
            _ => self.change(upstream, index, stranger()).await,
        }
    }

    async fn sign_a_new_version(&mut self, upstream: &FakeUpstream, name: &str) {
        let mut victims = Vec::new();
        for target in self.targets.iter().filter(|target| target.now.name == name) {
            if self.site.truth.is_seen(name, &target.now.version).await {
                victims.push(target.now.version.clone());
            }
        }
        let key = stranger();
        let draft = self.new_draft(name).signed_by(key.clone());
        let version = draft.version.clone();
        self.publish_new(upstream, draft).await;
        self.newcomers.push((name.to_owned(), version.clone()));
        self.strangers.push(Stranger { key, name: name.to_owned(), version, victims, waits: 1 });
        self.done.strangers += 1;
    }

    async fn sign_the_same_bytes(&mut self, upstream: &FakeUpstream, name: &str) {
        let Some(index) = self.victim(name).await else { return };
        let key = stranger();
        let draft = self.targets[index].first.clone().signed_by(key.clone());
        let version = draft.version.clone();
        if self.site.truth.publish(upstream, draft.clone()).await.is_some() {
            self.targets[index].now = draft;
            let victims = vec![version.clone()];
            // Clients look again after four seconds.
            self.strangers.push(Stranger { key, name: name.to_owned(), version, victims, waits: 4 });
            self.done.re_signed += 1;
        }
    }

    /// Changes older versions with foreign keys that larder knows by now.
    async fn change_by_seen_keys(&mut self, upstream: &FakeUpstream) {
        self.strangers.iter_mut().for_each(|stranger| stranger.waits = stranger.waits.saturating_sub(1));
        for index in (0..self.strangers.len()).rev() {
            let Stranger { name, version, waits, .. } = &self.strangers[index];
            if *waits > 0 || !self.site.truth.is_seen(name, version).await {
                continue;
            }
            let Stranger { key, name, mut victims, .. } = self.strangers.swap_remove(index);
            victims.shuffle(&mut self.rng);
            for version in victims.into_iter().take(2) {
                let is_unchanged_victim = |target: &Target| {
                    (&target.now.name, &target.now.version) == (&name, &version)
                        && target.standing == ChangeRight::Rightful
                        && target.changed_by.is_none()
                };
                if let Some(victim) = self.targets.iter().position(is_unchanged_victim) {
                    self.change(upstream, victim, key.clone()).await;
                }
            }
        }
    }

    /// The provider's own second key changes a version that is younger than the key; publishes one first where there is
    /// none.
    async fn change_lawfully(&mut self, upstream: &FakeUpstream, name: &str) {
        let Some((_, deputy)) = self.deputies.iter().find(|(provider, _)| provider == name).cloned() else { return };
        for index in 0..self.targets.len() {
            let Target { now, first, changed_by, standing, .. } = &self.targets[index];
            let is_as_at_first = *standing == ChangeRight::Rightful && changed_by.is_none();
            if now.name != name || !is_as_at_first || first.signer == deputy {
                continue;
            }
            let version = now.version.clone();
            let may_change = self.site.truth.change_right(name, &version, &deputy).await == Some(ChangeRight::Rightful);
            if may_change && self.site.truth.is_seen(name, &version).await {
                return self.change(upstream, index, deputy).await;
            }
        }
        let draft = self.new_draft(name);
        let draft = if self.rng.gen_bool(0.5) { draft.signed_by(deputy) } else { draft };
        self.publish_new(upstream, draft).await;
    }

    /// The registry is back in the owner's hands and serves its first content again.
    async fn take_back(&mut self, upstream: &FakeUpstream, name: &str) {
        let is_foreign = |target: &&mut Target| target.now.name == name && target.standing == ChangeRight::Foreign;
        let Some(target) = self.targets.iter_mut().find(is_foreign) else { return };
        if let Some(standing) = self.site.truth.publish(upstream, target.first.clone()).await {
            (target.now, target.standing) = (target.first.clone(), standing);
            self.done.taken_back += 1;
        }
    }

    /// The versions that upstream has as larder may serve them.
    pub(crate) fn rightful(&self) -> impl Iterator<Item = (&str, &str)> {
        let rightful = self.targets.iter().filter(|target| target.standing == ChangeRight::Rightful);
        rightful.map(|target| (target.now.name.as_str(), target.now.version.as_str()))
    }

    /// The alarms that larder must have raised once it has revalidated everything.
    pub(crate) async fn expected(&self) -> BTreeSet<Expected> {
        let mut expected = BTreeSet::new();
        for target in self.targets.iter().filter(|target| target.standing == ChangeRight::Foreign) {
            let (name, version) = (&target.now.name, &target.now.version);
            let is_unsigned = matches!(target.now.signer, Signer::Nobody);
            // Where signatures are required, an unsigned version fails verification and raises no alarm.
            if is_unsigned && self.site.requires_signatures {
                continue;
            }
            expected.insert(match is_unsigned && target.now.edition == 1 {
                true => Expected::signature_lost(name, version),
                false => Expected::waits_for_accept(name, version),
            });
        }
        for target in self.targets.iter().filter(|target| target.changed_by.is_some()) {
            expected.insert(Expected::republished(&target.now.name, &target.now.version));
        }
        for (name, version) in &self.newcomers {
            if self.site.truth.is_seen(name, version).await {
                expected.insert(Expected::new_key(name, version));
            }
        }
        expected
    }
}

/// A new key. Each run has its own, so that runs are independent.
fn stranger() -> Signer {
    Signer::Key(SigningKey::new_key())
}
