//! The policies, as the services of the mirror apply them: to a version that is asked for by number, and to a list when it is
//! rendered. Stored documents and archives stay as they are.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::address::{Address, Version};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::mirror::{RequestContext, RuntimeConfig};
use crate::policy::{Candidate, ClientLimits, Judge, Policy, Refusal, Verdict};
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
        Self { version, verdict: kind, until, reason: verdict.explanation(), listed }
    }
}

impl Access {
    /// The policies at a time.
    pub fn new(policy: Arc<Policy>, now: Timestamp) -> Self {
        Self { policy, now }
    }

    /// Returns true if there is no policy.
    pub fn is_open(&self) -> bool {
        self.policy.is_empty()
    }

    /// The policies about one address, found once for all its versions.
    pub fn of<'a>(&'a self, address: &'a Address) -> AddressAccess<'a> {
        AddressAccess { judge: self.policy.judge_of(address, &NO_LIMITS), now: self.now }
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
        let refusal = self.of(&address).verdict(version).refusal();
        refusal.map_or(Ok(()), |refusal| Err(Error::Refused { subject: format!("{address} {version}"), refusal }))
    }

    /// Refuses a provider or a module of which the policies allow no version, whatever upstream lists.
    ///
    /// # Errors
    /// [`Error::Refused`], with the rule and its reason.
    pub fn permit_any(&self, address: &Address) -> Result<(), Error> {
        let denial = self.of(address).judge.denial_of_all();
        let refusal = denial.and_then(|ground| Verdict::Denied(ground).refusal());
        refusal.map_or(Ok(()), |refusal| Err(Error::Refused { subject: address.to_string(), refusal }))
    }

    /// Judges a version for an operator.
    pub fn judged(&self, address: &Address, version: Version, listed: bool) -> JudgedVersion {
        let verdict = self.of(address).verdict(&version);
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
        let (of_address, mut hidden) = (self.of(address), HiddenByRule::default());
        list.versions.retain(|listed| hidden.allows(&of_address, &listed.version));
        let hidden = hidden.finished();
        if list.versions.is_empty() && !hidden.is_empty() {
            return Err(refused_by(address, &hidden));
        }
        Ok(ClientList { list, hidden })
    }

    /// The refusal of an address by the rules that hide all these versions. `None` if one may be used, or if there are none.
    pub fn refusal_of_all<'v>(
        &self,
        address: &Address,
        versions: impl IntoIterator<Item = &'v Version>,
    ) -> Option<Error> {
        let (of_address, mut hidden) = (self.of(address), HiddenByRule::default());
        let is_one_allowed = versions.into_iter().filter(|version| hidden.allows(&of_address, version)).count() > 0;
        let hidden = hidden.finished();
        (!is_one_allowed && !hidden.is_empty()).then(|| refused_by(address, &hidden))
    }
}

/// The policies about one address, at the time of a piece of work.
#[derive(Debug, Clone)]
pub struct AddressAccess<'a> {
    judge: Judge<'a>,
    now: Timestamp,
}

impl<'a> AddressAccess<'a> {
    /// Returns true if a version may be used.
    pub fn allows(&self, version: &Version) -> bool {
        self.verdict(version) == Verdict::Allowed
    }

    /// Returns true if a version may not be used, now and later.
    pub fn denies(&self, version: &Version) -> bool {
        matches!(self.verdict(version), Verdict::Denied(_))
    }

    fn verdict(&self, version: &Version) -> Verdict<'a> {
        self.judge.judge(Candidate { version, since: None, approved_until: None }, self.now)
    }
}

/// The versions that policies hide, by rule, while a list is read.
#[derive(Debug, Default)]
struct HiddenByRule<'a>(Vec<(Verdict<'a>, Vec<Version>)>);

impl<'a> HiddenByRule<'a> {
    /// Returns true if the version may be used; otherwise notes it with its rule.
    fn allows(&mut self, access: &AddressAccess<'a>, version: &Version) -> bool {
        let verdict = access.verdict(version);
        if verdict == Verdict::Allowed {
            return true;
        }
        match self.0.iter_mut().find(|(other, _)| other.is_of_same_rule(&verdict)) {
            Some((_, versions)) => versions.push(version.clone()),
            None => self.0.push((verdict, vec![version.clone()])),
        }
        false
    }

    fn finished(self) -> Vec<HiddenVersions> {
        self.0.into_iter().map(|(verdict, versions)| HiddenVersions::of(&verdict, versions)).collect()
    }
}

fn refused_by(address: &Address, hidden: &[HiddenVersions]) -> Error {
    let causes: Vec<&str> = hidden.iter().map(|hidden| hidden.reason.as_str()).collect();
    Error::Refused { subject: address.to_string(), refusal: Refusal::of_all(&causes) }
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
        Self { reason: verdict.explanation().unwrap_or_default(), newest: versions, count }
    }
}

impl RuntimeConfig {
    /// Returns true if the policies deny a version, or every version of an address, now and later.
    pub fn denies(&self, address: &Address, version: Option<&Version>) -> bool {
        let access = self.access(Timestamp(0));
        let is_version_denied = version.is_some_and(|version| access.of(address).denies(version));
        is_version_denied || access.permit_any(address).is_err()
    }

    /// The policies of this configuration.
    pub fn access(&self, now: Timestamp) -> Access {
        Access::new(Arc::clone(&self.policy), now)
    }
}

impl RequestContext {
    /// The policies for this request.
    pub fn access(&self) -> Access {
        Access::new(Arc::clone(&self.policy), self.now)
    }

    /// Refuses a version that the policies do not allow.
    ///
    /// # Errors
    /// [`Error::Refused`], with the rule and its reason.
    pub fn permit(&self, of: impl Into<Address>, version: &Version) -> Result<(), Error> {
        self.access().permit(of, version)
    }
}
