//! The request for an explanation, and the report: the chain of requests that a client makes for a package, each with the
//! answer that the client would get and the facts behind it.

use serde::{Deserialize, Serialize};

use super::{EXPLAIN, or_problem, short};
use crate::address::{Hostname, PackageRef, PackageSelector, Platform, WaitingVersion};
use crate::clock::Timestamp;
use crate::labels::labelled_enum;
use crate::mirror::{Alarm, ObjectFacts, UpstreamRules, VersionFacts};
use crate::policy::Approval;

/// The most bytes of a URL to explain.
const MAX_URL_BYTES: usize = 4096;

/// A request for an explanation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExplainRequest {
    /// The package or the URL to explain.
    pub subject: ExplainSubject,
    /// The client's platform; that of larder's machine by default.
    pub platform: Option<Platform>,
}

/// The subject of an explanation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExplainSubject {
    /// A provider or a module, as a whole or one version.
    Address(Box<PackageSelector>),
    /// One of larder's URLs, absolute or as a path.
    Url(String),
}

impl ExplainRequest {
    /// Parses the query: `address` or `url`, and `platform`.
    ///
    /// # Errors
    /// Every problem.
    pub fn parse(query: Option<&str>, default_host: &Hostname) -> Result<Self, Vec<String>> {
        let (mut subject, mut platform, mut problems) = (None, None, Vec::new());
        for (name, value) in url::form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            match &*name {
                "address" | "url" if subject.is_some() => problems.push("name one address or one url".to_owned()),
                "address" => {
                    let selector = or_problem(PackageSelector::parse(&value, default_host), &mut problems);
                    subject = selector.map(|selector| ExplainSubject::Address(Box::new(selector)));
                }
                "url" if value.len() > MAX_URL_BYTES => {
                    problems.push(format!("the url is longer than {MAX_URL_BYTES} bytes"));
                }
                "url" => subject = Some(ExplainSubject::Url(value.into_owned())),
                "platform" => platform = or_problem(Platform::parse(&value), &mut problems),
                _ => problems
                    .push(format!("the query has no option {:?}: write ?address=, ?url= or ?platform=", short(&name))),
            }
        }
        match subject {
            Some(subject) if problems.is_empty() => Ok(Self { subject, platform }),
            None if problems.is_empty() => Err(vec!["name what to explain: ?address= or ?url=".to_owned()]),
            _ => Err(problems),
        }
    }
}

/// The path of an explanation. `given` is an address, or one of larder's URLs: a text with `://`, or a path.
pub fn explain_path(given: &str, platform: Option<&Platform>) -> String {
    let name = if is_url(given) { "url" } else { "address" };
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query.append_pair(name, given);
    query.extend_pairs(platform.map(|platform| ("platform", platform.to_string())));
    format!("{EXPLAIN}?{}", query.finish())
}

/// True for a text that is a URL or a path, and no address.
pub fn is_url(given: &str) -> bool {
    given.starts_with('/') || given.contains("://")
}

/// The report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ExplainReport {
    /// The package, or as much of it as the request names.
    #[serde(flatten)]
    pub package: PackageRef,
    /// The origin of the version; absent for a URL, and where no version list is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choice: Option<VersionChoice>,
    /// The time of the report.
    pub now: Timestamp,
    /// The outcome for a client, all in all.
    pub verdict: Verdict,
    /// The index in `steps` of the step that decides; null if every step is served fresh.
    pub decided_by: Option<usize>,
    /// The settings that decide about answers; null for a host that is no upstream here.
    pub rules: Option<UpstreamRules>,
    /// The requests of a client, in its order.
    pub steps: Vec<ExplainStep>,
    /// The version that a client would get once it is stored for all sealed platforms; absent if none waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<WaitingVersion>,
    /// The versions of the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versions: Option<VersionSummary>,
    /// The unresolved alarms about the version, or about the address as a whole.
    pub alarms: Vec<Alarm>,
    /// The approvals of the version, or of all versions of the address, that count now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvals: Vec<Approval>,
    /// Advice for a person.
    pub to_do: Vec<Advice>,
}

/// The origin of the version that a report is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "by", rename_all = "kebab-case")]
pub enum VersionChoice {
    /// The request names it.
    Request,
    /// A client without a lock file chooses it now.
    Client {
        /// The number of versions that the client chooses from.
        listed: usize,
    },
    /// A client would choose none.
    None {
        /// The reason.
        reason: String,
    },
}

/// The outcome for a client, all in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Everything, from the store.
    Served,
    /// Missing content is fetched from upstream when a client asks.
    AsksUpstream,
    /// The location of a module at a source that larder cannot fetch. The client fetches it from there itself.
    Elsewhere,
    /// An error.
    Refused,
}

labelled_enum! {
    /// The requests of clients. The label is their name for people.
    #[derive(Serialize, Deserialize)]
    #[cfg_attr(test, derive(schemars::JsonSchema))]
    #[serde(rename_all = "kebab-case")]
    pub StepKind {
        /// The discovery document. A client with a host override skips it; larder itself needs it to ask upstream.
        Discovery "discovery",
        /// The version list.
        VersionList "version list",
        /// The download document of a provider.
        DownloadDocument "download document",
        /// The location of a module.
        Location "location",
        /// The archive.
        Archive "archive",
        /// SHA256SUMS or its signature.
        ProofFile "proof file",
        /// `index.json` or `VERSION.json` of the network mirror, which other clients ask instead of the registry.
        NetworkMirror "network mirror",
        /// A page of the registry HTTP API.
        Page "page",
        /// A URL that leads nowhere.
        Url "url",
    }
}

/// One request of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ExplainStep {
    /// The request.
    pub step: StepKind,
    /// Its URL at larder, or its path where no larder serves; null while it is unknown, because a step before names it.
    pub url: Option<String>,
    /// True for the URL that the explanation is about.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub requested: bool,
    /// The answer that a client would get now.
    #[serde(flatten)]
    pub answer: ExpectedAnswer,
    /// The reason for this answer.
    pub rule: Rule,
    /// The facts about the object that the answer is made of.
    #[serde(flatten)]
    pub facts: ObjectFacts,
}

/// The answer that a client would get now, if upstream answers as it last did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum ExpectedAnswer {
    /// Content.
    Served {
        /// The status.
        status: u16,
        /// The `Cache-Status` header.
        cache_status: String,
    },
    /// An error.
    Refused {
        /// The status.
        status: u16,
        /// The reason phrase, which Terraform and OpenTofu print.
        reason: String,
        /// The cause.
        cause: String,
        /// The remedy.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        remedy: Option<String>,
    },
    /// It is not stored, and no earlier answer of upstream is known: larder asks.
    AsksUpstream,
    /// A step before decides about it.
    Unknown,
}

/// The reason for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// Stored, and within its freshness lifetime.
    Fresh,
    /// Stored. An archive never ages.
    Stored,
    /// Stored and not fresh: upstream is asked first, and confirms it.
    Revalidated,
    /// larder is offline.
    Offline,
    /// The circuit breaker of its upstream is open after failures.
    LeftAlone,
    /// Upstream's last answer was a failure.
    LastAnswerFailed,
    /// Upstream's last content does not verify.
    NotVerified,
    /// Upstream's last answer came later than a client waits.
    LastAnswerLate,
    /// It cannot be confirmed for another reason, such as the document before it.
    NotConfirmed,
    /// Deleted upstream. The stored copy stays (`keep_gone`).
    Gone,
    /// Not stored: upstream is asked.
    NotStored,
    /// The list that clients get does not name the version, or the platform.
    NotListed,
    /// A policy of the operator does not allow it.
    Policy,
    /// It changed, and waits for `larder accept`.
    WaitsForAccept,
    /// It is at a source that larder cannot fetch: clients get the upstream's location.
    Elsewhere,
    /// The host or the path is none of larder's.
    NoRoute,
    /// A limit of larder, or a failure of its own.
    Own,
    /// A step before decides about it.
    StepBefore,
}

/// The versions of an address, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct VersionSummary {
    /// The number of versions in the list that clients get; null if they get none.
    pub listed: Option<usize>,
    /// The newest of them, a pre-release only if there is no release.
    pub newest: Option<String>,
    /// The versions that policies hide from that list, by rule: the newest of them, and the rule with its reason.
    #[serde(default)]
    pub hidden: Vec<String>,
    /// The stored and the dropped versions; each at most a hundred.
    #[serde(flatten)]
    pub facts: VersionFacts,
    /// The number of versions that can be installed from the store.
    pub stored_versions: usize,
}

/// Advice for a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Advice {
    /// The advice.
    pub text: String,
    /// The command that does it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explanation_is_about_one_address_or_one_url() {
        let host = Hostname::parse("registry.example").unwrap();
        let parse = |query: &str| ExplainRequest::parse(Some(query), &host);
        let of = |given: &str, platform: Option<&str>| {
            let platform = platform.map(|platform| Platform::parse(platform).unwrap());
            let path = explain_path(given, platform.as_ref());
            parse(path.split_once('?').unwrap().1).unwrap()
        };
        let request = of("acme/null@~> 1.0", Some("linux_amd64"));
        let ExplainSubject::Address(selector) = &request.subject else { panic!("{request:?}") };
        assert_eq!(selector.to_string(), "registry.example/acme/null@~> 1.0");
        assert_eq!(request.platform, Some(Platform::parse("linux_amd64").unwrap()));
        for url in ["/registry/x/v1/modules/a?b=c&d", "http://127.0.0.1:8080/mirror/a/b/c/index.json"] {
            assert_eq!(of(url, None), ExplainRequest { subject: ExplainSubject::Url(url.to_owned()), platform: None });
        }
        let long = format!("url=/{}", "x".repeat(5000));
        for bad in
            ["", "address=x", "address=a/b&url=/c", "address=a/b&address=c/d", "address=a/b&platform=x", "x=1", &long]
        {
            assert_eq!(parse(bad).unwrap_err().len(), 1, "{bad}");
        }
    }
}
