//! Approvals of versions that a rule holds back, and the list of what is held back now.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::address::{Address, PackageRef, PackageSelector, Version, Versions};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::mirror::{Access, JudgedVersion, Library, Operations, RequestContext, RuntimeConfig, VerdictKind};
use crate::policy::{ApprovalDecision, ApprovalEntry, MAX_DECISIONS};
use crate::store::{Key, StoreError};

/// The most addresses that one page of held versions reads.
const MAX_ADDRESSES: usize = 500;
/// The number of versions with which a page ends.
const MAX_VERSIONS: usize = 200;

/// One version of a provider or a module, for a decision about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecidedVersion {
    selector: PackageSelector,
    version: Version,
}

impl DecidedVersion {
    /// The version that a selector names.
    ///
    /// # Errors
    /// The selector names several.
    pub fn of(selector: PackageSelector) -> Result<Self, String> {
        match selector.versions().clone() {
            Versions::Exactly(version) => Ok(Self { selector, version }),
            _ => Err(format!("{selector} is not one version: write ADDRESS@VERSION, with the whole version")),
        }
    }
}

/// The words of a person who decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalWords {
    /// The reason; one who takes an approval back need not give any.
    pub reason: Option<String>,
    /// The name of the person, as given.
    pub by: Option<String>,
    /// The last moment for which the approval counts.
    pub until: Option<Timestamp>,
}

/// The result of approving one version, or of taking its approval back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ApprovalResult {
    /// The version.
    #[serde(flatten)]
    pub package: PackageRef,
    /// The outcome.
    #[serde(flatten)]
    pub outcome: ApprovalOutcome,
}

/// The outcome of approving one version, or of taking its approval back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum ApprovalOutcome {
    /// The version may be used, whatever its age.
    Approved {
        /// The last moment for which that counts; null for no end.
        until: Option<Timestamp>,
        /// The rule that held it back; null if none does.
        lifted: Option<String>,
        /// True if upstream's list does not name it.
        unlisted: bool,
    },
    /// Upstream's list does not name the version. Nothing is approved: without an end, whatever is published under this version
    /// one day could be used at once.
    Unlisted,
    /// A rule denies the version, and an approval lifts only its age. Nothing is approved.
    Denied {
        /// The rule.
        reason: String,
    },
    /// The approval no longer counts.
    TakenBack {
        /// The rule that holds the version back now; null if none does.
        held: Option<String>,
        /// The moment from which it may be used without an approval, where it is known.
        until: Option<Timestamp>,
    },
    /// The version was not approved.
    NotApproved,
}

impl ApprovalResult {
    /// Returns true if the change was made.
    pub fn succeeded(&self) -> bool {
        matches!(self.outcome, ApprovalOutcome::Approved { .. } | ApprovalOutcome::TakenBack { .. })
    }
}

/// A version that a rule holds back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HeldVersion {
    /// `HOST/NAMESPACE/TYPE`, or `HOST/NAMESPACE/NAME/SYSTEM`
    pub address: String,
    /// The version.
    pub version: Version,
    /// The moment from which it may be used; null where its age is not known.
    pub until: Option<Timestamp>,
    /// The rule and its reason.
    pub reason: String,
}

/// A page of what is held back, by address, the newest version first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HeldPage {
    /// The versions.
    pub held: Vec<HeldVersion>,
    /// The address after which the next page begins; null at the end.
    pub next: Option<String>,
}

impl Operations {
    /// Approves one version, or takes its approval back. Before an approval, upstream is asked whether it lists the version.
    ///
    /// # Errors
    /// The disk failed, or the record is full.
    pub async fn decide(
        &self,
        decision: ApprovalDecision,
        version: &DecidedVersion,
        words: &ApprovalWords,
        call: &RequestContext,
    ) -> Result<ApprovalResult, Error> {
        self.library.refresh((&version.selector.address()).into()).await?;
        let outcome = match decision {
            ApprovalDecision::Approved => self.approve(version, words, call).await?,
            ApprovalDecision::TakenBack => self.unapprove(version, words, call).await?,
        };
        Ok(ApprovalResult { package: (&version.selector).into(), outcome })
    }

    async fn approve(
        &self,
        decided: &DecidedVersion,
        words: &ApprovalWords,
        call: &RequestContext,
    ) -> Result<ApprovalOutcome, Error> {
        let latest = self.library.latest_time(call.now);
        if words.until.is_some_and(|until| until < latest) {
            return Err(Error::BeyondLimit {
                subject: format!("the approval of {}", decided.selector),
                cause: format!(
                    "it would have ended: the latest time that this larder has seen is {}",
                    latest.date_time()
                ),
                remedy: "correct the clock (larder doctor)",
            });
        }
        let verdicts = self.policy_verdicts(&decided.selector, call).await?;
        let is_list_known = verdicts.no_list.is_none();
        let judged = verdicts.versions.into_iter().find(|judged| judged.version == decided.version);
        let (kind, rule, unlisted) = match judged {
            Some(JudgedVersion { verdict, reason, listed, .. }) => (verdict, reason, is_list_known && !listed),
            None => (VerdictKind::Allowed, None, false),
        };
        Ok(match kind {
            VerdictKind::Denied => ApprovalOutcome::Denied { reason: rule.unwrap_or_default() },
            VerdictKind::Allowed | VerdictKind::Held if unlisted && words.until.is_none() => ApprovalOutcome::Unlisted,
            VerdictKind::Allowed | VerdictKind::Held => {
                self.record(decided, ApprovalDecision::Approved, words, call).await?;
                ApprovalOutcome::Approved { until: words.until, lifted: rule, unlisted }
            }
        })
    }

    async fn unapprove(
        &self,
        decided: &DecidedVersion,
        words: &ApprovalWords,
        call: &RequestContext,
    ) -> Result<ApprovalOutcome, Error> {
        let (address, now) = (call.config.canonical(&decided.selector.address()), call.now);
        let version = decided.version.clone();
        let of_address = address.clone();
        let read = move |library: &Library| Ok(library.read_approvals(&of_address)?.ends(library.latest_time(now)));
        let approved = self.library.on_disk(read).await?;
        if !approved.contains_key(&version) {
            return Ok(ApprovalOutcome::NotApproved);
        }
        self.record(decided, ApprovalDecision::TakenBack, words, call).await?;
        let (access, config) = (call.access(), Arc::clone(&call.config));
        let judging =
            move |library: &Library| Ok(library.read_access(&address, &access, &config)?.judged(version, true));
        let JudgedVersion { until, reason, .. } = self.library.on_disk(judging).await?;
        Ok(ApprovalOutcome::TakenBack { held: reason, until })
    }

    /// Records a decision.
    async fn record(
        &self,
        decided: &DecidedVersion,
        decision: ApprovalDecision,
        words: &ApprovalWords,
        call: &RequestContext,
    ) -> Result<(), Error> {
        let (address, version) = (call.config.canonical(&decided.selector.address()), decided.version.clone());
        let ApprovalWords { reason, by, until } = words.clone();
        tracing::info!(%address, %version, ?decision, reason, by, until = until.map(Timestamp::date_time), "an operator decides about a version");
        let entry = ApprovalEntry { version, decision, time: call.now, until, reason, by, received: None };
        let of_address = address.clone();
        let added = self.library.on_disk(move |library| library.add_approvals(&of_address, &[entry])).await?;
        if added.left_out == 0 {
            return Ok(());
        }
        Err(Error::BeyondLimit {
            subject: format!("the approvals of {address}"),
            cause: format!("there are {MAX_DECISIONS} decisions about its versions, and none is ever removed"),
            remedy: "lower the age by a rule for these versions",
        })
    }

    /// A page of what rules hold back now, after an address. An address counts once its version list is stored.
    ///
    /// # Errors
    /// The disk failed.
    pub async fn held(&self, after: Option<Address>, now: Timestamp) -> Result<HeldPage, Error> {
        // Each page reads the names of all addresses.
        let _one = self.held_lock.lock().await;
        self.library.refresh_all().await?;
        self.library.on_disk(move |library| library.held_after(after.as_ref(), now)).await
    }
}

impl Library {
    fn held_after(&self, after: Option<&Address>, now: Timestamp) -> Result<HeldPage, StoreError> {
        let config = self.runtime.config();
        let access = config.access(now);
        let mut page = HeldPage::default();
        if access.is_open() {
            return Ok(page);
        }
        let mut addresses = BTreeSet::new();
        for host in config.upstreams.hosts() {
            for service in ["providers", "modules"] {
                addresses.extend(self.addresses_of(host, service)?);
            }
        }
        let of_rules = |address: &Address| access.needs_ages(address) && after.is_none_or(|after| address > after);
        let mut left = addresses.into_iter().filter(of_rules).peekable();
        let mut count = 0;
        while let Some(address) = left.next() {
            page.held.extend(self.held_of(&address, &access, &config)?);
            count += 1;
            if (count >= MAX_ADDRESSES || page.held.len() >= MAX_VERSIONS) && left.peek().is_some() {
                page.next = Some(address.to_string());
                break;
            }
        }
        Ok(page)
    }

    /// The versions of an address that are held back, the newest first.
    fn held_of(
        &self,
        address: &Address,
        access: &Access,
        config: &RuntimeConfig,
    ) -> Result<Vec<HeldVersion>, StoreError> {
        let Some(list) = self.read_document(&Key::version_list(address))? else { return Ok(Vec::new()) };
        let Ok(list) = list.as_versions(address.into()) else { return Ok(Vec::new()) };
        let of_address = self.read_access(address, access, config)?;
        let judged = list.versions.into_iter().map(|listed| of_address.judged(listed.version, true));
        let held = judged.filter(|judged| judged.verdict == VerdictKind::Held).map(|judged| HeldVersion {
            address: address.to_string(),
            version: judged.version,
            until: judged.until,
            reason: judged.reason.unwrap_or_default(),
        });
        let mut held: Vec<HeldVersion> = held.collect();
        held.sort_by(|one, other| other.version.cmp(&one.version));
        Ok(held)
    }
}
