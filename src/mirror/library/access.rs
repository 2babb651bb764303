//! The policies, as the services of the mirror apply them: to a version that is asked for by number, and to a list when it is
//! rendered. Stored documents and archives stay as they are. [`Access`] is what the rules say; [`AddressAccess`] also knows how
//! old the versions of one address are.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::address::{Address, Version};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::mirror::library::Library;
use crate::mirror::library::version_ages::VersionAges;
use crate::mirror::{RequestContext, RuntimeConfig};
use crate::policy::{CLIENT, Candidate, ClientLimits, Judge, Policy, Refusal, Verdict};
use crate::store::StoreError;
use crate::upstream::providers::VersionList;
use crate::wording::format_timestamp;

/// The most versions that a person is told of for each rule.
const MAX_NAMED_VERSIONS: usize = 5;

/// The policies for a piece of work, at its time.
#[derive(Debug, Clone)]
pub struct Access {
    policy: Arc<Policy>,
    limits: ClientLimits,
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
    /// The rule, as [`Verdict::rule_name`] names it.
    pub rule: String,
    /// The reason, with the rule.
    pub reason: String,
    /// The newest of them, the newest first.
    pub newest: Vec<HiddenVersion>,
    /// The number of them all.
    pub count: usize,
}

/// A version that a rule hides, and the end where it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HiddenVersion {
    /// The version.
    pub version: Version,
    /// The moment from which it may be used.
    pub until: Option<Timestamp>,
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
    /// The rule and its reason; absent for a version that may be used. Of an approved version, the rule that holds others back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// True if the version may be used only because a person approved it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub approved: bool,
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

impl Access {
    /// The policies at a time.
    pub fn new(policy: Arc<Policy>, limits: ClientLimits, now: Timestamp) -> Self {
        Self { policy, limits, now }
    }

    /// Returns true if there is no policy, and the client has no limits.
    pub fn is_open(&self) -> bool {
        self.policy.is_empty() && self.limits == ClientLimits::NONE
    }

    /// The number of rules.
    pub fn rule_count(&self) -> usize {
        self.policy.0.len()
    }

    /// Returns true if a verdict about an address depends on the age of the version.
    pub fn needs_ages(&self, address: &Address) -> bool {
        !self.is_open() && self.judge_of(address).needs_age()
    }

    /// The policies about one address, for all its versions. `ages` are needed only if [`Self::needs_ages`].
    pub fn of(&self, address: &Address, ages: VersionAges) -> AddressAccess {
        AddressAccess { judge: self.judge_of(address), as_of: self.limits.as_of, ages, now: self.now }
    }

    /// Refuses a provider or a module of which the policies allow no version, whatever upstream lists.
    ///
    /// # Errors
    /// [`Error::Refused`], with the rule and its reason.
    pub fn permit_any(&self, address: &Address) -> Result<(), Error> {
        let judge = self.judge_of(address);
        let refusal = judge.denial_of_all().and_then(|ground| Verdict::Denied(ground).refusal());
        refusal.map_or(Ok(()), |refusal| Err(Error::Refused { subject: address.to_string(), refusal }))
    }

    fn judge_of(&self, address: &Address) -> Judge {
        self.policy.judge_of(address.clone(), self.limits.clone())
    }
}

/// The policies about one address, at the time of a piece of work.
#[derive(Debug, Clone)]
pub struct AddressAccess {
    judge: Judge,
    /// The moment whose versions the client asks for.
    as_of: Option<Timestamp>,
    ages: VersionAges,
    now: Timestamp,
}

impl AddressAccess {
    /// Returns true if a version may be used.
    pub fn allows(&self, version: &Version) -> bool {
        self.must_know_moment().is_ok() && self.verdict(version) == Verdict::Allowed
    }

    /// Returns true if a version may not be used, now and later.
    pub fn denies(&self, version: &Version) -> bool {
        matches!(self.verdict(version), Verdict::Denied(_))
    }

    /// Refuses a version that the policies do not allow.
    ///
    /// # Errors
    /// [`Error::Refused`], with the rule and its reason.
    pub fn permit(&self, version: &Version) -> Result<(), Error> {
        if !self.denies(version) {
            self.must_know_moment()?;
        }
        let subject = || format!("{} {version}", self.judge.address());
        let refusal = self.verdict(version).refusal();
        refusal.map_or(Ok(()), |refusal| Err(Error::Refused { subject: subject(), refusal }))
    }

    /// Refuses a version that the policies deny. One that is too young passes: it is hidden until its time has come.
    ///
    /// # Errors
    /// [`Error::Refused`], with the rule and its reason.
    pub fn permit_to_store(&self, version: &Version) -> Result<(), Error> {
        if self.denies(version) { self.permit(version) } else { Ok(()) }
    }

    /// Judges a version for an operator.
    pub fn judged(&self, version: Version, listed: bool) -> JudgedVersion {
        let verdict = self.verdict(&version);
        let (kind, until) = match verdict {
            Verdict::Allowed => (VerdictKind::Allowed, None),
            Verdict::Held { until, .. } => (VerdictKind::Held, until),
            Verdict::Denied(_) => (VerdictKind::Denied, None),
        };
        let unapproved = self.verdict_with(&version, None);
        let (reason, approved) =
            (unapproved.rule_text(), verdict == Verdict::Allowed && unapproved != Verdict::Allowed);
        JudgedVersion { version, verdict: kind, until, reason, approved, listed }
    }

    /// Takes the versions that the policies do not allow from a list.
    ///
    /// # Errors
    /// [`Error::Refused`] if none is left: clients take an empty list for "no such provider".
    pub fn permitted(&self, mut list: VersionList) -> Result<ClientList, Error> {
        self.must_know_moment()?;
        let mut hidden = HiddenByRule::default();
        list.versions.retain(|listed| hidden.allows(self, &listed.version));
        let hidden = hidden.finished();
        if list.versions.is_empty() && !hidden.is_empty() {
            return Err(self.refused_by(&hidden));
        }
        list.late.retain(|late| self.verdict(&late.version) == Verdict::Allowed);
        Ok(ClientList { list, hidden })
    }

    /// The refusal of the address by the rules that hide all these versions. `None` if one may be used, or if there are none.
    pub fn refusal_of_all<'v>(&self, versions: impl IntoIterator<Item = &'v Version>) -> Option<Error> {
        if let Err(unknown) = self.must_know_moment() {
            return Some(unknown);
        }
        let mut hidden = HiddenByRule::default();
        let is_one_allowed = versions.into_iter().filter(|version| hidden.allows(self, version)).count() > 0;
        let hidden = hidden.finished();
        (!is_one_allowed && !hidden.is_empty()).then(|| self.refused_by(&hidden))
    }

    /// True if a verdict depends on the age of the version.
    pub fn needs_ages(&self) -> bool {
        self.judge.needs_age()
    }

    /// The first moment at which an approval no longer counts.
    pub fn first_end_of_approval(&self) -> Option<Timestamp> {
        self.ages.first_end_of_approval()
    }

    /// True if a version of the stored list has no date, and a verdict depends on it.
    pub fn lacks_a_date(&self) -> bool {
        self.judge.needs_age() && self.ages.lacks_a_date()
    }

    /// True if a verdict depends on the age of a version, and no record tells it.
    pub fn lacks_times_of(&self, version: &Version) -> bool {
        self.judge.needs_age() && self.ages.since(version, self.now).is_none()
    }

    /// Refuses a moment before the first list, of which not all dates are known.
    fn must_know_moment(&self) -> Result<(), Error> {
        let Some(first_known) = self.as_of.and_then(|moment| self.ages.first_known_after(moment)) else {
            return Ok(());
        };
        let subject = self.judge.address().to_string();
        let cause = format!("larder knows what was listed from {} on", first_known.day());
        let refusal =
            Refusal { cause, remedy: Some("ask for that day or a later one"), rules: vec![CLIENT.to_owned()] };
        Err(Error::Refused { subject, refusal })
    }

    fn refused_by(&self, hidden: &[HiddenVersions]) -> Error {
        let causes: Vec<&str> = hidden.iter().map(|hidden| hidden.reason.as_str()).collect();
        let rules = hidden.iter().map(|hidden| hidden.rule.clone()).collect();
        Error::Refused { subject: self.judge.address().to_string(), refusal: Refusal::of_all(&causes, rules) }
    }

    fn verdict(&self, version: &Version) -> Verdict<'_> {
        self.verdict_with(version, self.ages.approved_until(version))
    }

    fn verdict_with(&self, version: &Version, approved_until: Option<Timestamp>) -> Verdict<'_> {
        let (since, listed) = match self.judge.needs_age() {
            true => (self.ages.since(version, self.now), self.as_of.and_then(|_| self.ages.listed(version, self.now))),
            false => (None, None),
        };
        self.judge.judge(Candidate { version, since, listed, approved_until }, self.now)
    }
}

/// The versions that policies hide, by rule, while a list is read.
#[derive(Debug, Default)]
struct HiddenByRule<'a>(Vec<(Verdict<'a>, Vec<HiddenVersion>)>);

impl<'a> HiddenByRule<'a> {
    /// Returns true if the version may be used; otherwise notes it with its rule.
    fn allows(&mut self, access: &'a AddressAccess, version: &Version) -> bool {
        let verdict = access.verdict(version);
        if verdict == Verdict::Allowed {
            return true;
        }
        let hidden = HiddenVersion { version: version.clone(), until: verdict.until() };
        match self.0.iter_mut().find(|(other, _)| other.is_of_same_rule(&verdict)) {
            Some((_, versions)) => versions.push(hidden),
            None => self.0.push((verdict, vec![hidden])),
        }
        false
    }

    fn finished(self) -> Vec<HiddenVersions> {
        let of_rule = |(verdict, mut versions): (Verdict<'_>, Vec<HiddenVersion>)| {
            let count = versions.len();
            versions.sort_by(|one, other| other.version.cmp(&one.version));
            versions.truncate(MAX_NAMED_VERSIONS);
            let (rule, reason) = (verdict.rule_name().unwrap_or_default(), verdict.rule_text().unwrap_or_default());
            HiddenVersions { rule, reason, newest: versions, count }
        };
        self.0.into_iter().map(of_rule).collect()
    }
}

impl fmt::Display for HiddenVersions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let newest: Vec<String> = self.newest.iter().map(ToString::to_string).collect();
        f.write_str(&newest.join(", "))?;
        match self.count.saturating_sub(newest.len()) {
            0 => {}
            1 => f.write_str(" and an older version")?,
            older => write!(f, " and {older} older versions")?,
        }
        write!(f, ": {}", self.reason)
    }
}

impl fmt::Display for HiddenVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.until {
            Some(until) => write!(f, "{} (until {})", self.version, format_timestamp(until)),
            None => self.version.fmt(f),
        }
    }
}

impl RuntimeConfig {
    /// The policies of this configuration.
    pub fn access(&self, now: Timestamp) -> Access {
        Access::new(Arc::clone(&self.policy), ClientLimits::NONE, now)
    }

    /// Returns true if the policies deny a version, or every version of an address, now and later.
    pub fn denies(&self, address: &Address, version: Option<&Version>) -> bool {
        let access = self.access(Timestamp(0));
        let denies = |version: &Version| access.of(address, VersionAges::default()).denies(version);
        !access.is_open() && (version.is_some_and(denies) || access.permit_any(address).is_err())
    }
}

impl RequestContext {
    /// The policies for this request.
    pub fn access(&self) -> Access {
        Access::new(Arc::clone(&self.policy), self.limits.clone(), self.now)
    }
}

impl Library {
    /// The policies about an address in its canonical spelling, with the times of its versions as far as they are stored. Blocks.
    pub fn read_access(
        &self,
        address: &Address,
        access: &Access,
        config: &RuntimeConfig,
    ) -> Result<AddressAccess, StoreError> {
        let ages = if access.needs_ages(address) {
            self.read_ages(address, config, access.now)?
        } else {
            VersionAges::default()
        };
        Ok(access.of(address, ages))
    }
}
