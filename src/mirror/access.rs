//! The policies, as the services of the mirror apply them: to a version that is asked for by number, and to a list when it is
//! rendered. Stored documents and archives stay as they are.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::address::{Address, Version};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::mirror::{RequestContext, RuntimeConfig};
use crate::policy::{Candidate, ClientLimits, Judge, Policy, Verdict};
use crate::upstream::providers::VersionList;

/// The most versions that a person is told of for each rule.
const MAX_NAMED_VERSIONS: usize = 5;

/// A client without limits of its own.
static NO_LIMITS: ClientLimits = ClientLimits::NONE;

/// The policies for a piece of work, at its time.
#[derive(Debug, Clone)]
pub struct Access {
    policy: Arc<Policy>,
    now: Timestamp,
}

/// A version list for clients, and what the policies took from it.
#[derive(Debug, Clone)]
pub struct ClientList {
    /// The list of the versions that may be used.
    pub list: VersionList,
    /// The other versions, by the rule that hides them.
    pub hidden: Vec<HiddenVersions>,
}

/// The versions that one rule hides: `6.1.0, 6.0.0 and 3 older versions: the policy for …`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HiddenVersions {
    /// The reason, with the rule.
    pub reason: String,
    /// The newest of them, the newest first.
    pub newest: Vec<Version>,
    /// The number of them all.
    pub count: usize,
}

/// The verdict about one version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JudgedVersion {
    /// The version.
    pub version: Version,
    /// The verdict.
    pub verdict: VerdictKind,
    /// The moment from which a version that is held may be used; absent where nobody knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub until: Option<Timestamp>,
    /// The rule and its reason; absent for a version that may be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// True if upstream lists it.
    pub listed: bool,
}

/// The kind of a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum VerdictKind {
    /// It may be used.
    Allowed,
    /// It is too young.
    Held,
    /// It may not be used.
    Denied,
}

impl JudgedVersion {
    fn new(version: Version, verdict: &Verdict<'_>, listed: bool) -> Self {
        let (kind, until) = match verdict {
            Verdict::Allowed => (VerdictKind::Allowed, None),
            Verdict::Held { until, .. } => (VerdictKind::Held, *until),
            Verdict::Denied(_) => (VerdictKind::Denied, None),
        };
        Self { version, verdict: kind, until, reason: verdict.refusal(), listed }
    }
}

impl Access {
    /// Returns true if there is no policy.
    pub fn is_open(&self) -> bool {
        self.policy.is_empty()
    }

    /// Returns the reason why a version may not be used. `None` if it may be used.
    pub fn refusal(&self, address: &Address, version: &Version) -> Option<String> {
        self.verdict(&self.judge_of(address), version).refusal()
    }

    /// Refuses a version that the policies do not allow.
    ///
    /// # Errors
    /// [`Error::Refused`], with the rule and its reason.
    pub fn permit(&self, of: impl Into<Address>, version: &Version) -> Result<(), Error> {
        if self.is_open() {
            return Ok(());
        }
        let address = of.into();
        let refusal = self.refusal(&address, version);
        refusal.map_or(Ok(()), |cause| Err(Error::Refused { subject: format!("{address} {version}"), cause }))
    }

    /// Refuses a provider or a module of which the policies allow no version, whatever upstream lists.
    ///
    /// # Errors
    /// [`Error::Refused`], with the rule and its reason.
    pub fn permit_any(&self, address: &Address) -> Result<(), Error> {
        let denial = self.judge_of(address).denial_of_all();
        let refusal = denial.and_then(|ground| Verdict::Denied(ground).refusal());
        refusal.map_or(Ok(()), |cause| Err(Error::Refused { subject: address.to_string(), cause }))
    }

    /// Judges a version for an operator.
    pub fn judged(&self, address: &Address, version: Version, listed: bool) -> JudgedVersion {
        let judge = self.judge_of(address);
        let verdict = self.verdict(&judge, &version);
        JudgedVersion::new(version.clone(), &verdict, listed)
    }

    /// The number of rules.
    pub fn rule_count(&self) -> usize {
        self.policy.0.len()
    }

    /// Takes the versions that the policies do not allow from a list.
    ///
    /// # Errors
    /// [`Error::Refused`] if none is left: clients take an empty list for "no such provider".
    pub fn permitted(&self, address: &Address, mut list: VersionList) -> Result<ClientList, Error> {
        if self.is_open() {
            return Ok(ClientList { list, hidden: Vec::new() });
        }
        let judge = self.judge_of(address);
        let mut hidden: Vec<(Verdict<'_>, Vec<Version>)> = Vec::new();
        list.versions.retain(|listed| {
            let verdict = self.verdict(&judge, &listed.version);
            if verdict == Verdict::Allowed {
                return true;
            }
            match hidden.iter_mut().find(|(other, _)| other.is_of_same_rule(&verdict)) {
                Some((_, versions)) => versions.push(listed.version.clone()),
                None => hidden.push((verdict, vec![listed.version.clone()])),
            }
            false
        });
        let hidden: Vec<HiddenVersions> =
            hidden.into_iter().map(|(verdict, versions)| HiddenVersions::of(&verdict, versions)).collect();
        if list.versions.is_empty() && !hidden.is_empty() {
            let causes: Vec<&str> = hidden.iter().map(|hidden| hidden.reason.as_str()).collect();
            return Err(Error::Refused { subject: address.to_string(), cause: causes.join("; ") });
        }
        Ok(ClientList { list, hidden })
    }

    fn judge_of<'p>(&'p self, address: &'p Address) -> Judge<'p> {
        self.policy.judge_of(address, &NO_LIMITS)
    }

    fn verdict<'p>(&self, judge: &Judge<'p>, version: &Version) -> Verdict<'p> {
        judge.judge(Candidate { version, since: None, approved_until: None }, self.now)
    }
}

impl fmt::Display for HiddenVersions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let newest: Vec<&str> = self.newest.iter().map(Version::as_str).collect();
        f.write_str(&newest.join(", "))?;
        match self.count.saturating_sub(newest.len()) {
            0 => {}
            1 => f.write_str(" and an older version")?,
            older => write!(f, " and {older} older versions")?,
        }
        write!(f, ": {}", self.reason)
    }
}

impl HiddenVersions {
    fn of(verdict: &Verdict<'_>, mut versions: Vec<Version>) -> Self {
        let count = versions.len();
        versions.sort_by(|one, other| other.cmp(one));
        versions.truncate(MAX_NAMED_VERSIONS);
        Self { reason: verdict.refusal().unwrap_or_default(), newest: versions, count }
    }
}

impl RuntimeConfig {
    /// The policies of this configuration.
    pub fn access(&self, now: Timestamp) -> Access {
        Access { policy: Arc::clone(&self.policy), now }
    }
}

impl RequestContext {
    /// The policies for this request.
    pub fn access(&self) -> Access {
        Access { policy: Arc::clone(&self.policy), now: self.now }
    }

    /// Refuses a version that the policies do not allow.
    ///
    /// # Errors
    /// [`Error::Refused`], with the rule and its reason.
    pub fn permit(&self, of: impl Into<Address>, version: &Version) -> Result<(), Error> {
        self.access().permit(of, version)
    }
}
