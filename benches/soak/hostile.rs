//! A hostile registry: it republishes versions under other file names, under unknown keys or unsigned; foreign keys
//! sign new versions, or the same bytes, before they change old ones; modules move; servers fall silent. `truth`
//! decides for each edition if larder may serve it.

use std::collections::BTreeSet;
use std::sync::Arc;

use rand::Rng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;

use crate::SoakSetup;
use crate::alarms::ExpectedAlarm;
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
    pub(crate) keys_with_new_version: u32,
    pub(crate) keys_with_same_bytes: u32,
    pub(crate) rightful_changes: u32,
    pub(crate) reverted: u32,
    pub(crate) moved: u32,
    pub(crate) silences: u32,
}

/// A version of an attacked provider.
struct AttackedVersion {
    current: Draft,
    original: Draft,
    /// The signer of a rightful edition with other bytes than the first.
    changed_by: Option<Signer>,
    right: ChangeRight,
    editions: u64,
}

impl AttackedVersion {
    /// True until an attack or a second rightful edition changes the version.
    fn is_unchanged(&self) -> bool {
        self.right == ChangeRight::Rightful && self.changed_by.is_none()
    }
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
    steps_left: u32,
}

/// The attacker.
pub(crate) struct Hostile {
    setup: Arc<SoakSetup>,
    rng: StdRng,
    targets: Vec<AttackedVersion>,
    strangers: Vec<Stranger>,
    /// A second key of each provider, which becomes known like any other.
    second_keys: Vec<(String, Signer)>,
    /// New versions by new keys.
    newcomers: Vec<(String, String)>,
    new_versions: u32,
    is_silent: bool,
    pub(crate) counts: AttackCounts,
}

impl Hostile {
    pub(crate) fn new(setup: &Arc<SoakSetup>, rng: StdRng) -> Self {
        let second_keys = ATTACKED_PROVIDERS.map(|(name, _)| (name.to_owned(), new_foreign_key()));
        Self {
            setup: Arc::clone(setup),
            rng,
            targets: Vec::new(),
            strangers: Vec::new(),
            second_keys: second_keys.into(),
            newcomers: Vec::new(),
            new_versions: 0,
            is_silent: false,
            counts: AttackCounts::default(),
        }
    }

    /// Publishes the initial versions.
    pub(crate) async fn publish_all(&mut self, upstream: &FakeUpstream) {
        for (name, size) in ATTACKED_PROVIDERS {
            self.setup.provider_names.lock().push(name.to_owned());
            for version in FIRST_VERSIONS {
                self.publish_new(upstream, Draft::new(name, version, size)).await;
            }
        }
    }

    async fn publish_new(&mut self, upstream: &FakeUpstream, draft: Draft) {
        self.setup.truth.publish(upstream, draft.clone()).await;
        self.setup.attacked.lock().push((draft.name.clone(), draft.version.clone()));
        let (current, original) = (draft.clone(), draft);
        self.targets.push(AttackedVersion {
            current,
            original,
            changed_by: None,
            right: ChangeRight::Rightful,
            editions: 1,
        });
    }

    /// A version that no client has yet.
    fn new_draft(&mut self, name: &str) -> Draft {
        self.new_versions += 1;
        let size = ATTACKED_PROVIDERS.iter().find(|(attacked, _)| *attacked == name).map_or(40_000, |(_, size)| *size);
        Draft::new(name, &format!("3.0.{}", self.new_versions), size)
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
            58..68 => self.change_rightfully(upstream, name).await,
            68..78 => self.revert_attack(upstream, name).await,
            78..86 => {
                let draft = self.new_draft(name);
                self.publish_new(upstream, draft).await;
            }
            86..92 => self.counts.moved += u32::from(self.setup.sources.move_one(&mut self.rng)),
            _ => {
                upstream.fall_silent();
                self.setup.sources.upstream.fall_silent();
                self.is_silent = true;
                self.counts.silences += 1;
            }
        }
    }

    /// Lets both upstreams answer new connections again.
    pub(crate) fn end_silence(&mut self, upstream: &FakeUpstream) {
        upstream.end_silence();
        self.setup.sources.upstream.end_silence();
        self.is_silent = false;
    }

    /// Index of a version of this provider that clients have and that was never changed.
    async fn victim(&mut self, name: &str) -> Option<usize> {
        let mut indexes = Vec::new();
        for (index, target) in self.targets.iter().enumerate() {
            let Draft { name: provider, version, .. } = &target.current;
            if provider == name && target.is_unchanged() && self.setup.truth.is_seen(name, version).await {
                indexes.push(index);
            }
        }
        indexes.choose(&mut self.rng).copied()
    }

    /// Republishes a version with other bytes, under its own or other file names.
    async fn change(&mut self, upstream: &FakeUpstream, index: usize, signer: Signer) {
        let is_renamed = self.rng.gen_bool(0.5);
        let target = &mut self.targets[index];
        target.editions += 1;
        let draft = target.original.clone().edition(target.editions).signed_by(signer.clone()).renamed(is_renamed);
        let Some(right) = self.setup.truth.publish(upstream, draft.clone()).await else { return };
        (target.current, target.right) = (draft, right);
        match right {
            ChangeRight::Rightful => {
                target.changed_by = Some(signer);
                self.counts.rightful_changes += 1;
            }
            ChangeRight::Foreign => {
                self.counts.attacks += 1;
                self.counts.renamed += u32::from(is_renamed);
                self.counts.unsigned += u32::from(matches!(signer, Signer::Nobody));
            }
        }
    }

    /// Republishes a version that clients have, unsigned or under an unknown key.
    async fn attack_outright(&mut self, upstream: &FakeUpstream, name: &str) {
        let Some(index) = self.victim(name).await else { return };
        match self.rng.gen_range(0..8) {
            // The same bytes without their signature.
            0 => {
                let target = &mut self.targets[index];
                let draft = target.original.clone().signed_by(Signer::Nobody);
                if let Some(right) = self.setup.truth.publish(upstream, draft.clone()).await {
                    (target.current, target.right) = (draft, right);
                    self.counts.attacks += 1;
                    self.counts.unsigned += 1;
                }
            }
            1 | 2 => self.change(upstream, index, Signer::Nobody).await,
            _ => self.change(upstream, index, new_foreign_key()).await,
        }
    }

    /// A foreign key signs a new version. Once larder has seen it, the key changes older versions.
    async fn sign_a_new_version(&mut self, upstream: &FakeUpstream, name: &str) {
        let mut victims = Vec::new();
        for target in self.targets.iter().filter(|target| target.current.name == name) {
            if self.setup.truth.is_seen(name, &target.current.version).await {
                victims.push(target.current.version.clone());
            }
        }
        let key = new_foreign_key();
        let draft = self.new_draft(name).signed_by(key.clone());
        let version = draft.version.clone();
        self.publish_new(upstream, draft).await;
        self.newcomers.push((name.to_owned(), version.clone()));
        self.strangers.push(Stranger { key, name: name.to_owned(), version, victims, steps_left: 1 });
        self.counts.keys_with_new_version += 1;
    }

    /// A foreign key signs the bytes of a version that clients have. Once larder has seen it, the key changes them.
    async fn sign_the_same_bytes(&mut self, upstream: &FakeUpstream, name: &str) {
        let Some(index) = self.victim(name).await else { return };
        let key = new_foreign_key();
        let draft = self.targets[index].original.clone().signed_by(key.clone());
        let version = draft.version.clone();
        if self.setup.truth.publish(upstream, draft.clone()).await.is_some() {
            self.targets[index].current = draft;
            let victims = vec![version.clone()];
            // After about four seconds clients have requested the version again.
            self.strangers.push(Stranger { key, name: name.to_owned(), version, victims, steps_left: 4 });
            self.counts.keys_with_same_bytes += 1;
        }
    }

    /// Changes older versions with foreign keys that larder knows by now.
    async fn change_by_seen_keys(&mut self, upstream: &FakeUpstream) {
        self.strangers.iter_mut().for_each(|stranger| stranger.steps_left = stranger.steps_left.saturating_sub(1));
        for index in (0..self.strangers.len()).rev() {
            let Stranger { name, version, steps_left, .. } = &self.strangers[index];
            if *steps_left > 0 || !self.setup.truth.is_seen(name, version).await {
                continue;
            }
            let Stranger { key, name, mut victims, .. } = self.strangers.swap_remove(index);
            victims.shuffle(&mut self.rng);
            for version in victims.into_iter().take(2) {
                let is_unchanged_victim = |target: &AttackedVersion| {
                    (&target.current.name, &target.current.version) == (&name, &version) && target.is_unchanged()
                };
                if let Some(victim) = self.targets.iter().position(is_unchanged_victim) {
                    self.change(upstream, victim, key.clone()).await;
                }
            }
        }
    }

    /// The provider's own second key changes a version that it signed first; publishes one first where there is none.
    async fn change_rightfully(&mut self, upstream: &FakeUpstream, name: &str) {
        let Some((_, second_key)) = self.second_keys.iter().find(|(provider, _)| provider == name).cloned() else {
            return;
        };
        for index in 0..self.targets.len() {
            let target = &self.targets[index];
            if target.current.name != name || !target.is_unchanged() || target.original.signer != second_key {
                continue;
            }
            let version = target.current.version.clone();
            let may_change =
                self.setup.truth.change_right(name, &version, &second_key).await == Some(ChangeRight::Rightful);
            if may_change && self.setup.truth.is_seen(name, &version).await {
                return self.change(upstream, index, second_key).await;
            }
        }
        let draft = self.new_draft(name);
        self.publish_new(upstream, draft.signed_by(second_key)).await;
    }

    /// The owner, back in control of the registry, publishes the original version again.
    async fn revert_attack(&mut self, upstream: &FakeUpstream, name: &str) {
        let is_foreign =
            |target: &&mut AttackedVersion| target.current.name == name && target.right == ChangeRight::Foreign;
        let Some(target) = self.targets.iter_mut().find(is_foreign) else { return };
        if let Some(right) = self.setup.truth.publish(upstream, target.original.clone()).await {
            (target.current, target.right) = (target.original.clone(), right);
            self.counts.reverted += 1;
        }
    }

    /// The versions that upstream has as larder may serve them.
    pub(crate) fn rightful(&self) -> impl Iterator<Item = (&str, &str)> {
        let rightful = self.targets.iter().filter(|target| target.right == ChangeRight::Rightful);
        rightful.map(|target| (target.current.name.as_str(), target.current.version.as_str()))
    }

    /// The alarms that larder must have raised once it has revalidated everything.
    pub(crate) async fn expected_alarms(&self) -> BTreeSet<ExpectedAlarm> {
        let mut expected = BTreeSet::new();
        for target in self.targets.iter().filter(|target| target.right == ChangeRight::Foreign) {
            let (name, version) = (&target.current.name, &target.current.version);
            let is_unsigned = matches!(target.current.signer, Signer::Nobody);
            // Where signatures are required, an unsigned version fails verification and raises no alarm.
            if is_unsigned && self.setup.requires_signatures {
                continue;
            }
            expected.insert(match is_unsigned && target.current.edition == 1 {
                true => ExpectedAlarm::signature_lost(name, version),
                false => ExpectedAlarm::waits_for_accept(name, version),
            });
        }
        for target in self.targets.iter().filter(|target| target.changed_by.is_some()) {
            expected.insert(ExpectedAlarm::republished(&target.current.name, &target.current.version));
        }
        for (name, version) in &self.newcomers {
            if self.setup.truth.is_seen(name, version).await {
                expected.insert(ExpectedAlarm::new_key(name, version));
            }
        }
        expected
    }
}

/// A new key. Each run has its own, so that runs are independent.
fn new_foreign_key() -> Signer {
    Signer::Key(SigningKey::new_key())
}
