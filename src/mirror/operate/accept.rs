//! Operator acceptance: trusts what a person has seen, even where it contradicts what was verified before. What upstream has
//! now is fetched and verified first. It is accepted only if the person has named the evidence that it gives; else that
//! evidence is returned, and its alarms are raised.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};

use crate::address::{
    Address, ModuleAddress, ModulePackage, Package, PackageRef, PackageSelector, Platform, ProviderAddress, Selection,
    Version, Versions,
};
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::library::evidence::{Evidence, EvidenceFact, EvidenceName};
use crate::mirror::library::first_seen::{HistoryRecords, Undecided};
use crate::mirror::library::intake::TreeExpectation;
use crate::mirror::library::module_history::{self, ComparisonPurpose};
use crate::mirror::library::proof_set::ProofSet;
use crate::mirror::library::{
    AcceptScope, AcceptedFinding, AlarmEvent, AlarmPart, AlarmSubject, HistoryChange, Observation, observation,
};
use crate::mirror::proof_sets::fetch::SetBasis;
use crate::mirror::proof_sets::is_absent;
use crate::mirror::{AlarmKind, Library, Operations, Outcome, RequestContext};
use crate::store::ReadOutcome;
use crate::upstream::discovery::Service;
use crate::upstream::source::PackageSource;
use crate::verify::PackedTree;

/// The most sets fetched at a time.
const AT_ONE_TIME: usize = 8;

/// A file with a digest that no earlier verified set gave it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ChangedFile {
    /// Its name, or its platform where only the download document names it.
    pub file: String,
    /// Every digest that it had before; empty for a file that the version did not have.
    pub before: Vec<Digest>,
    /// Its digest now.
    pub now: Digest,
}

impl ChangedFile {
    fn of(change: HistoryChange, set: &ProofSet) -> Self {
        match change {
            HistoryChange::OtherBytes { subject, before, now } => Self { file: subject, before, now },
            HistoryChange::Added { file, now } => Self { file, before: Vec::new(), now },
            HistoryChange::DropsEveryLine => {
                let file = set.document.filename.as_str().to_owned();
                Self { file, before: Vec::new(), now: set.document.shasum }
            }
        }
    }
}

/// The result of accepting one package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AcceptResult {
    /// The package.
    #[serde(flatten)]
    pub package: PackageRef,
    /// The outcome.
    #[serde(flatten)]
    pub outcome: AcceptOutcome,
}

/// The outcome of accepting one package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum AcceptOutcome {
    /// The set that upstream has now is trusted from now on.
    Accepted {
        /// The changed files.
        files: Vec<ChangedFile>,
        /// The fingerprints of the keys known for the provider before.
        keys_before: Vec<String>,
        /// The fingerprint of the signing key; `None` for an unsigned set.
        key: Option<String>,
    },
    /// The tree that upstream has now for a module version is its first-seen tree from now on.
    AcceptedTree {
        /// The digest of the first-seen tree before, if any.
        tree_before: Option<Digest>,
        /// The digest of the first-seen tree now.
        tree: Digest,
        /// The commit before, if it came from git.
        commit_before: Option<String>,
        /// The commit now, if it comes from git.
        commit: Option<String>,
    },
    /// A module version is at a source that larder cannot fetch: clients are sent there, and nothing is verified.
    AcceptedElsewhere {
        /// The digest of the first-seen tree before, if it is still known.
        tree_before: Option<Digest>,
        /// The source, for people.
        source: String,
    },
    /// Nothing was accepted: a person decides about this evidence first.
    Undecided(UndecidedEvidence),
    /// Upstream has nothing that differs from what was verified before.
    NothingToAccept,
    /// Upstream no longer has it. Nothing was accepted, and its alarms are resolved.
    Withdrawn {
        /// Upstream's answer.
        error: String,
    },
    /// The fetch or the verification failed. Nothing was accepted.
    Failed {
        /// The cause.
        error: String,
    },
}

/// Evidence that a person decides about, each fact once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UndecidedEvidence {
    /// Its name, for `--evidence`.
    pub evidence: EvidenceName,
    /// The keys that signed for the provider so far.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known_keys: Vec<KnownKey>,
    /// The signers that are to vouch for the provider from now on; `null` for its absence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub new_signers: Vec<Option<String>>,
    /// The versions.
    pub versions: Vec<UndecidedVersion>,
}

/// A key of a provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct KnownKey {
    /// The fingerprint.
    pub key: String,
    /// The number of versions that it signed.
    pub versions: usize,
}

/// A version, as a person sees it who decides about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum UndecidedVersion {
    /// A version of a provider.
    Provider {
        /// The version.
        version: String,
        /// The fingerprint of the key that signed its checksums; `None` for unsigned ones.
        key: Option<String>,
        /// The number of files with another digest than before.
        changed: usize,
        /// The number of files that the version did not have.
        added: usize,
        /// The first changed or added file.
        file: Option<ChangedFile>,
    },
    /// A version of a module.
    Module {
        /// The version.
        version: String,
        /// The first-seen tree, if it is known.
        tree_before: Option<Digest>,
        /// Its commit, if it came from git.
        commit_before: Option<String>,
        /// The tree now; `None` at a source that larder cannot fetch.
        tree: Option<Digest>,
        /// Its commit, if it comes from git.
        commit: Option<String>,
        /// The source that larder cannot fetch.
        source: Option<String>,
    },
}

impl Operations {
    /// Fetches what upstream has now, verifies it as always, and trusts it whatever was verified before, if the evidence that
    /// it gives is among `shown`. For a provider as a whole or a constraint, this covers every package whose set is stored.
    /// Where nothing is at stake, no evidence is needed.
    ///
    /// # Errors
    /// [`Error::Sealed`] while offline, [`Error::UnknownHost`], and errors of fetching the version list.
    pub async fn accept(
        self: &Arc<Self>,
        selector: &PackageSelector,
        shown: &[EvidenceName],
        call: &RequestContext,
    ) -> Result<Vec<AcceptResult>, Error> {
        self.runtime.must_be_online(&format!("accepting {selector}"))?;
        call.upstream(selector.host())?;
        self.library.refresh((&selector.address()).into()).await?;
        // A separate task: a client that disconnects must not leave half a decision.
        let (operations, owned_selector, call) =
            (Arc::clone(self), selector.clone(), self.runtime.flight_context(call));
        let shown = shown.to_vec();
        let work = self.runtime.tasks.spawn(async move {
            match &owned_selector {
                PackageSelector::Provider(selection) => operations.accept_all(selection, &shown, &call).await,
                PackageSelector::Module(selection) => operations.accept_module(selection, &shown, &call).await,
            }
        });
        match work.await {
            Ok(Some(accepted)) => accepted,
            Ok(None) | Err(_) => Err(Error::Interrupted(format!("accepting {selector}"))),
        }
    }

    async fn accept_all(
        &self,
        selection: &Selection<ProviderAddress>,
        shown: &[EvidenceName],
        call: &RequestContext,
    ) -> Result<Vec<AcceptResult>, Error> {
        self.runtime.forget_absences(&(&selection.of).into(), &selection.versions);
        let (packages, unlisted) = self.packages_to_accept(selection, call).await?;
        let fetching = packages.into_iter().map(|package| async move {
            let fetched = self.current_set(&package, call).await;
            (package, fetched)
        });
        let mut fetching = stream::iter(fetching).buffered(AT_ONE_TIME);
        let mut found: BTreeMap<Version, AcceptedFinding> = BTreeMap::new();
        let (mut proven, mut others) = (Vec::new(), Vec::new());
        while let Some((package, fetched)) = fetching.next().await {
            let Package { version, platform, .. } = package.clone();
            let found = found.entry(version).or_default();
            match fetched {
                Ok(set) => {
                    found.accepted.insert(platform, set.proof().how.fingerprint().map(str::to_owned));
                    proven.push((package, set));
                }
                Err(error) => {
                    if is_absent(&error) { &mut found.gone } else { &mut found.failed }.insert(platform);
                    others.push((package, error));
                }
            }
        }
        for version in unlisted.keys() {
            found.entry(version.clone()).or_default().is_unlisted = true;
        }
        // Compare all sets with the history before any is recorded: the sums of one version list all its platforms.
        let withdrawn: BTreeSet<Version> =
            found.iter().filter(|(_, found)| found.is_withdrawn()).map(|(version, _)| version.clone()).collect();
        let (provider, now) = (selection.of.clone(), call.present());
        let scope =
            if matches!(selection.versions, Versions::All) { AcceptScope::Provider } else { AcceptScope::Version };
        let proven = Arc::new(proven);
        let (undecided, decided) = self.undecided(selection, Arc::clone(&proven), scope).await?;
        if let Some(undecided) = undecided.filter(|undecided| !shown.contains(&undecided.evidence)) {
            self.raise_alarms_of(&proven, call).await;
            let package = PackageRef::requested(&selection.to_string());
            return Ok(vec![AcceptResult { package, outcome: AcceptOutcome::Undecided(undecided) }]);
        }
        let recording = self.library.on_disk(move |library| {
            let sums: Vec<_> = proven.iter().map(|(_, set)| set.checksums().unwrap_or_default()).collect();
            let observations = proven.iter().zip(&sums);
            let observations: Vec<_> =
                observations.map(|((package, set), sums)| observation(package, set, sums)).collect();
            let before = library.histories.keys_of(&provider)?.unwrap_or_default();
            // A client may have made larder record another set meanwhile.
            let alarms = library.alarms.subjects(&(&provider).into(), AlarmSubject::is_resolved_by_accept);
            let undecided = |seen: &Observation<'_>, history: HistoryRecords| {
                let has_alarm = alarms.iter().any(|alarm| alarm.is_about(seen.package, seen.signer.key(), scope));
                let facts = history.undecided(seen, scope, has_alarm).facts;
                facts.iter().any(|fact| !decided.0.contains(fact))
            };
            let Some(recorded) = library.histories.accept(&provider, &observations, scope, undecided)? else {
                return Ok(None);
            };
            let after = library.histories.keys_of(&provider)?.unwrap_or_default();
            drop(observations);
            let changed = proven.iter().cloned().zip(recorded.changes).collect::<Vec<_>>();
            let resolved =
                library.alarms.resolve(&(&provider).into(), &AlarmEvent::Accepted { scope, findings: &found });
            Ok(Some((changed, recorded.keys_before, (before, after), resolved)))
        });
        let Some((changed, keys_before, (before, after), resolved)) = recording.await? else {
            let package = PackageRef::requested(&selection.to_string());
            let error = "another set was recorded meanwhile, and nothing was accepted: look again".to_owned();
            return Ok(vec![AcceptResult { package, outcome: AcceptOutcome::Failed { error } }]);
        };
        call.config.last_answers.forget_address(&(&selection.of).into());
        let mut accepted = withdrawn_or_failed(selection, others, unlisted, &withdrawn, &resolved)?;
        for ((package, set), changes) in changed {
            let key = set.proof().how.fingerprint().map(str::to_owned);
            let files: Vec<_> = changes.into_iter().map(|change| ChangedFile::of(change, &set)).collect();
            let is_trusted_anew = !before.trusts(key.as_deref()) && after.trusts(key.as_deref());
            let is_new_key = key.as_ref().is_some_and(|key| !keys_before.is_empty() && !keys_before.contains(key));
            let has_lost_key = key.is_none() && !keys_before.is_empty();
            self.proof_sets.store_set(&package, set, now, now).await?;
            let subject = PackageRef::from(&package);
            let is_recorded_anew = resolved
                .iter()
                .any(|subject| subject.kind == AlarmKind::DamagedRecord && subject.version == package.version);
            let is_as_before = files.is_empty() && !is_new_key && !has_lost_key;
            let outcome = if is_as_before && !is_trusted_anew && !is_recorded_anew {
                AcceptOutcome::NothingToAccept
            } else {
                tracing::warn!(%package, files = files.len(), key, "accepted by the operator");
                AcceptOutcome::Accepted { files, keys_before: keys_before.clone(), key }
            };
            accepted.push(AcceptResult { package: subject, outcome });
        }
        accepted.sort_by(|one, other| one.package.cmp(&other.package));
        Ok(accepted)
    }

    /// The evidence that a person decides about before these sets are accepted, `None` if nothing is at stake, and its facts.
    async fn undecided(
        &self,
        selection: &Selection<ProviderAddress>,
        proven: Arc<Vec<(Package, ProofSet)>>,
        scope: AcceptScope,
    ) -> Result<(Option<UndecidedEvidence>, Evidence), Error> {
        let provider = selection.of.clone();
        let alarms = self.library.alarms.subjects(&(&provider).into(), AlarmSubject::is_resolved_by_accept);
        let reading = self.library.on_disk(move |library| {
            let sums: Vec<_> = proven.iter().map(|(_, set)| set.checksums().unwrap_or_default()).collect();
            let observations: Vec<_> =
                proven.iter().zip(&sums).map(|((package, set), sums)| observation(package, set, sums)).collect();
            let undecided = library.histories.undecided(&provider, &observations, scope, &alarms)?;
            let mut evidence = Evidence::default();
            let mut versions: BTreeMap<_, BTreeMap<String, ChangedFile>> = BTreeMap::new();
            for ((package, set), Undecided { facts, changes }) in proven.iter().zip(undecided) {
                if facts.iter().any(|fact| !matches!(fact, EvidenceFact::Signer { .. })) {
                    let key = set.proof().how.fingerprint().map(str::to_owned);
                    let files = versions.entry((package.version.clone(), key)).or_default();
                    for change in changes {
                        let file = ChangedFile::of(change, set);
                        files.insert(file.file.clone(), file);
                    }
                }
                evidence.0.extend(facts);
            }
            if evidence.is_empty() {
                return Ok((None, evidence));
            }
            let version = |((version, key), files): ((Version, _), BTreeMap<String, ChangedFile>)| {
                let added = files.values().filter(|file| file.before.is_empty()).count();
                let changed = files.len() - added;
                let file =
                    files.into_values().max_by_key(|file| (!file.before.is_empty(), file.file.ends_with(".zip")));
                UndecidedVersion::Provider { version: version.to_string(), key, changed, added, file }
            };
            let known_keys = library.histories.known_keys(&provider)?;
            let signers = evidence.0.iter().filter_map(|fact| match fact {
                EvidenceFact::Signer { key } => Some(key.clone()),
                _ => None,
            });
            let undecided = UndecidedEvidence {
                evidence: evidence.name(&(&provider).into()),
                known_keys: known_keys.into_iter().map(|(key, versions)| KnownKey { key, versions }).collect(),
                new_signers: signers.collect(),
                versions: versions.into_iter().map(version).collect(),
            };
            Ok((Some(undecided), evidence))
        });
        reading.await
    }

    /// Judges sets as if a client had asked for them, so that alarms show what upstream has now. Of platforms with the same
    /// checksums, one is enough, unless others have alarms.
    async fn raise_alarms_of(&self, proven: &[(Package, ProofSet)], call: &RequestContext) {
        let mut judged_checksums = BTreeSet::new();
        let has_alarm = |package: &Package| {
            let is_of = |subject: &AlarmSubject| {
                subject.version == package.version && subject.part == AlarmPart::Platform(package.platform.clone())
            };
            !self.library.alarms.subjects(&(&package.provider).into(), is_of).is_empty()
        };
        let mut proven: Vec<_> = proven.iter().map(|(package, set)| (has_alarm(package), package, set)).collect();
        // Those with an alarm first.
        proven.sort_by_key(|(is_alarmed, ..)| !is_alarmed);
        for (is_alarmed, package, set) in proven {
            let fingerprint = set.proof().how.fingerprint().map(str::to_owned);
            let is_new = judged_checksums.insert((package.version.clone(), fingerprint, set.sums_digest()));
            if !is_alarmed && !is_new {
                continue;
            }
            let judged = self.proof_sets.judge_set(package, set.clone(), call).await;
            if let Err(error) = judged {
                tracing::debug!(%package, %error, "the set that upstream has now is refused");
            }
        }
    }

    /// Returns the stored packages, those that an alarm is about, and all platforms that upstream lists of the versions
    /// that are named exactly or have an alarm. Also returns the versions that upstream does not list, with its answer.
    async fn packages_to_accept(
        &self,
        selection: &Selection<ProviderAddress>,
        call: &RequestContext,
    ) -> Result<(BTreeSet<Package>, BTreeMap<Version, Error>), Error> {
        let stored = self.library.packages_with_sets_in(selection).await?;
        // A package with an alarm may not be stored, because it is refused.
        let is_selected =
            |subject: &AlarmSubject| subject.is_resolved_by_accept() && selection.versions.include(&subject.version);
        let alarmed = self.library.alarms.subjects(&(&selection.of).into(), is_selected);
        let mut versions: BTreeSet<Version> = alarmed.iter().map(|subject| subject.version.clone()).collect();
        if let Versions::Exactly(version) = &selection.versions {
            versions.insert(version.clone());
        }
        let package = |version: &Version, platform| Package {
            provider: selection.of.clone(),
            version: version.clone(),
            platform,
        };
        let mut packages: BTreeSet<Package> = stored.iter().cloned().collect();
        for AlarmSubject { version, part, .. } in &alarmed {
            if let AlarmPart::Platform(platform) = part {
                packages.insert(package(version, platform.clone()));
            }
        }
        let mut unlisted = BTreeMap::new();
        for version in versions {
            match self.listed_platforms(selection, &version, call).await {
                Ok(Ok(platforms)) => packages.extend(platforms.into_iter().map(|platform| package(&version, platform))),
                Ok(Err(error)) => drop(unlisted.insert(version, error)),
                Err(error) if packages.is_empty() => return Err(error),
                Err(error) => {
                    tracing::warn!(%selection, %version, %error, "the version list cannot be read: only stored platforms are accepted");
                }
            }
        }
        Ok((packages, unlisted))
    }

    /// The platforms that upstream lists of a version. The inner error says why it lists none.
    pub(super) async fn listed_platforms(
        &self,
        selection: &Selection<ProviderAddress>,
        version: &Version,
        call: &RequestContext,
    ) -> Result<Result<Vec<Platform>, Error>, Error> {
        let answer = match self.documents.get(&Address::from(&selection.of), call).await {
            Err(error @ Error::NotFound(_)) => return Ok(Err(error)),
            answer => answer?,
        };
        let list = answer.value.versions(Service::Providers).await;
        let list = list.map_err(|reason| Error::NotFound(format!("the version list of {}: {reason}", selection.of)))?;
        match list.get(version) {
            Some(listed) => Ok(Ok(listed.platforms())),
            None => {
                let error = Error::NotFound(format!("upstream lists no {selection}"));
                // A stale list does not show what upstream has now.
                if answer.outcome == Outcome::Stale { Err(error) } else { Ok(Err(error)) }
            }
        }
    }

    /// Fetches and verifies the set that upstream has now. Uses nothing of the stored set, so that it is judged as a
    /// whole.
    async fn current_set(&self, package: &Package, call: &RequestContext) -> Result<ProofSet, Error> {
        self.documents.permit(&package.provider, &package.version, call).await?;
        let work = self.proof_sets.fetch_verified_set(package, SetBasis::Rejudged, call);
        self.runtime.with_deadline(&self.proof_sets.set_request(package, call)?, call, work).await
    }
}

/// Builds the results for packages and versions without a set: withdrawn if their alarms were resolved, else failed.
///
/// # Errors
/// Upstream does not list the one version that was selected, and there is no other result for it.
fn withdrawn_or_failed(
    selection: &Selection<ProviderAddress>,
    others: Vec<(Package, Error)>,
    mut unlisted: BTreeMap<Version, Error>,
    withdrawn: &BTreeSet<Version>,
    resolved: &[AlarmSubject],
) -> Result<Vec<AcceptResult>, Error> {
    let mut accepted = Vec::new();
    for (package, error) in others {
        let is_about = |subject: &AlarmSubject| {
            subject.version == package.version
                && (subject.part == AlarmPart::Platform(package.platform.clone())
                    || withdrawn.contains(&package.version))
        };
        let is_withdrawn = is_absent(&error) && resolved.iter().any(is_about);
        let error = error.to_string();
        let outcome = if is_withdrawn { AcceptOutcome::Withdrawn { error } } else { AcceptOutcome::Failed { error } };
        unlisted.remove(&package.version);
        accepted.push(AcceptResult { package: (&package).into(), outcome });
    }
    for (version, error) in unlisted {
        if resolved.iter().any(|subject| subject.version == version) {
            let outcome = AcceptOutcome::Withdrawn { error: error.to_string() };
            accepted
                .push(AcceptResult { package: PackageRef::requested(&format!("{}@{version}", selection.of)), outcome });
        } else if matches!(selection.versions, Versions::Exactly(_)) {
            return Err(error);
        }
    }
    Ok(accepted)
}

/// A version of a module, as upstream has it now.
struct ModuleNow {
    /// As it was requested.
    package: ModulePackage,
    /// As it is stored.
    key: ModulePackage,
    before: Option<PackedTree>,
    content: ModuleContent,
}

/// The content that upstream has for a version of a module.
enum ModuleContent {
    /// The first-seen tree, or a tree of a version that was never seen.
    AsBefore(PackedTree),
    /// Another tree, or one whose first-seen record is lost.
    Tree(PackedTree),
    /// A source that larder cannot fetch: its kind, and its description.
    Elsewhere(&'static str, String),
}

impl ModuleNow {
    fn fact(&self) -> Option<EvidenceFact> {
        let version = &self.key.version;
        match &self.content {
            ModuleContent::AsBefore(_) => None,
            ModuleContent::Tree(tree) => Some(tree.fact(version)),
            ModuleContent::Elsewhere(_, source) => {
                Some(EvidenceFact::Source { version: version.clone(), source: source.clone() })
            }
        }
    }

    /// The version, as a person sees it.
    fn undecided(&self) -> UndecidedVersion {
        let (tree, source) = match &self.content {
            ModuleContent::AsBefore(tree) | ModuleContent::Tree(tree) => (Some(tree), None),
            ModuleContent::Elsewhere(_, source) => (None, Some(source.clone())),
        };
        UndecidedVersion::Module {
            version: self.key.version.to_string(),
            tree_before: self.before.as_ref().map(|before| before.tree_digest),
            commit_before: self.before.as_ref().and_then(|before| before.commit.clone()),
            tree: tree.map(|tree| tree.tree_digest),
            commit: tree.and_then(|tree| tree.commit.clone()),
            source,
        }
    }
}

impl Operations {
    /// Looks at the selected versions, and makes their current trees the first-seen ones if a person has seen them. For a
    /// whole module or a constraint, that is every version that has moved or whose record is lost.
    async fn accept_module(
        &self,
        selection: &Selection<ModuleAddress>,
        shown: &[EvidenceName],
        call: &RequestContext,
    ) -> Result<Vec<AcceptResult>, Error> {
        let Selection { of: module, versions } = selection;
        let module_key = call.config.key_of(module);
        let mut packages = match versions {
            Versions::Exactly(version) => vec![ModulePackage { module: module_key, version: version.clone() }],
            versions => self.moved_modules(module_key, versions.clone()).await?,
        };
        packages.sort();
        let (mut accepted, mut found) = (Vec::new(), Vec::new());
        for key in packages {
            let package = ModulePackage { module: module.clone(), version: key.version.clone() };
            match self.look_at_module(package, key.clone(), call).await {
                Ok(now) => found.push(now),
                Err(error) => {
                    let is_withdrawn =
                        matches!(error, Error::NotFound(_)) && self.library.resolve_tree_alarms_async(&key).await? > 0;
                    let error = error.to_string();
                    let outcome =
                        if is_withdrawn { AcceptOutcome::Withdrawn { error } } else { AcceptOutcome::Failed { error } };
                    call.config.last_answers.forget_address(&(&key.module).into());
                    accepted.push(AcceptResult { package: (&key).into(), outcome });
                }
            }
        }
        let evidence = Evidence(found.iter().filter_map(ModuleNow::fact).collect());
        let address = Address::from(&call.config.key_of(module));
        let name = evidence.name(&address);
        if !evidence.is_empty() && !shown.contains(&name) {
            let undecided = found.iter().filter(|now| now.fact().is_some()).map(ModuleNow::undecided).collect();
            let undecided = UndecidedEvidence {
                evidence: name,
                known_keys: Vec::new(),
                new_signers: Vec::new(),
                versions: undecided,
            };
            let package = PackageRef::requested(&selection.to_string());
            accepted.push(AcceptResult { package, outcome: AcceptOutcome::Undecided(undecided) });
            return Ok(accepted);
        }
        for now in found {
            let package = PackageRef::from(&now.key);
            let address = (&now.key.module).into();
            let outcome = self.accept_package(now, call).await;
            call.config.last_answers.forget_address(&address);
            let outcome = outcome.unwrap_or_else(|error| AcceptOutcome::Failed { error: error.to_string() });
            accepted.push(AcceptResult { package, outcome });
        }
        accepted.sort_by(|one, other| one.package.cmp(&other.package));
        Ok(accepted)
    }

    async fn moved_modules(&self, address: ModuleAddress, versions: Versions) -> Result<Vec<ModulePackage>, Error> {
        let search = move |library: &Library| {
            let mut moved = library.module_packages_seen(&address)?;
            moved.retain(|package| versions.include(&package.version));
            let mut waiting = Vec::new();
            for package in moved {
                let is_waiting = match module_history::read_first_seen(library, &package)? {
                    ReadOutcome::Intact(seen) => seen.has_moved(),
                    ReadOutcome::Damaged => true,
                    ReadOutcome::Absent => false,
                };
                waiting.extend(is_waiting.then_some(package));
            }
            Ok(waiting)
        };
        self.library.on_disk(search).await
    }

    /// Fetches the location and the tree that upstream has now, compares them with the record, and raises or resolves the
    /// alarms about it. Stores no archive.
    async fn look_at_module(
        &self,
        package: ModulePackage,
        key: ModulePackage,
        call: &RequestContext,
    ) -> Result<ModuleNow, Error> {
        self.documents.permit(&package.module, &package.version, call).await?;
        // Refetches the location even if the cached one is fresh.
        let confirmed = self.documents.get(&package, call).await?.value.confirmation();
        let fetched = self.documents.fetch_now(&package, Some(confirmed), call).await?;
        if fetched.confirmed.gone {
            return Err(Error::NotFound(format!("upstream no longer has {package}")));
        }
        let location = fetched.value.as_location(&package)?;
        let owned_key = key.clone();
        let lookup = self.library.on_disk(move |library| module_history::read_first_seen(library, &owned_key)).await?;
        let was_seen = lookup != ReadOutcome::Absent;
        let before = lookup.intact().map(|seen| seen.tree.packed);
        if let PackageSource::Unsupported(source) = &location.parsed.source
            && was_seen
        {
            let content = ModuleContent::Elsewhere(source.kind_name(), source.describe().to_string());
            self.modules.check_external_move(&package, &key, source, call).await?;
            return Ok(ModuleNow { package, key, before, content });
        }
        let tree = self.modules.observe(&package, &location, call).await?;
        let packed = tree.packed.clone();
        let (owned_package, owned_key) = (package.clone(), key.clone());
        let purpose = ComparisonPurpose::Recheck { location_checked: location.confirmed.checked };
        let comparing = self.library.on_disk(move |library| {
            let comparison = module_history::compare(library, &owned_key, &tree, purpose)?;
            let command = format!("`larder accept {owned_key}`");
            let is_as_before =
                library.require_first_seen_tree(&owned_package, &owned_key, &tree, comparison, &command).is_ok();
            if is_as_before {
                library.resolve_tree_alarms(&owned_key);
            }
            Ok(is_as_before)
        });
        let content = if comparing.await? { ModuleContent::AsBefore(packed) } else { ModuleContent::Tree(packed) };
        Ok(ModuleNow { package, key, before, content })
    }

    async fn accept_package(&self, now: ModuleNow, call: &RequestContext) -> Result<AcceptOutcome, Error> {
        let ModuleNow { package, key, before, content } = now;
        let decided = match content {
            ModuleContent::Elsewhere(kind, _) => {
                let (owned_key, now) = (key.clone(), call.now);
                let forget = move |library: &Library| {
                    library.clear_name(&owned_key)?;
                    module_history::forget(library, &owned_key, now)
                };
                self.library.on_disk(forget).await?;
                self.library.resolve_tree_alarms_async(&key).await?;
                tracing::warn!(%package, kind, "accepted by the operator: clients fetch it directly from now on");
                let tree_before = before.map(|before| before.tree_digest);
                return Ok(AcceptOutcome::AcceptedElsewhere { tree_before, source: kind.to_owned() });
            }
            ModuleContent::AsBefore(_) if before.is_some() => return Ok(AcceptOutcome::NothingToAccept),
            // Nobody decided: what is stored meanwhile is the first.
            ModuleContent::AsBefore(_) => TreeExpectation::FirstSeen,
            ModuleContent::Tree(tree) => TreeExpectation::Decided(tree),
        };
        let archive = self.modules.fill_module(&package, decided, call).await?;
        let Some(now) = archive.proof.how.tree() else {
            return Err(Error::Interrupted(format!("accepting {package}")));
        };
        tracing::warn!(%package, tree = %now.tree_digest, commit = now.commit, "accepted by the operator: another tree is the first-seen one from now on");
        Ok(AcceptOutcome::AcceptedTree {
            tree_before: before.as_ref().map(|before| before.tree_digest),
            tree: now.tree_digest,
            commit_before: before.and_then(|before| before.commit),
            commit: now.commit.clone(),
        })
    }
}
