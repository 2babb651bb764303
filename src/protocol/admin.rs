//! The admin API: access rules, probes, and the status report. `routes` has the paths.

pub mod approval;
pub mod bundle;
pub mod explain;
pub mod list;
pub mod operation;
pub mod order;
pub(crate) mod outcome_lines;
pub mod policy;
mod routes;
pub mod verdict;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use secrecy::{ExposeSecret, SecretString};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use subtle::ConstantTimeEq;

pub use self::operation::Operation;
pub use self::routes::{
    APPLY, AdminMethod, AdminPath, AdminRoute, BUNDLE, CLIENT_CONFIG, DESCRIPTION, EXPLAIN, EXPORT, HELD_PAGE, IMPORT,
    INDEX, INVENTORY, JOBS, LIST, LOCK, MISSING, PATHS, PLAN, RUNS, STATUS, VERIFY, WARM, index,
};

use super::{Reply, ReplyContent};
use crate::address::Hostname;
use crate::bundle::BundleKeyIds;
use crate::clock::Timestamp;
use crate::config::StoreNaming;
use crate::jobs::{JobId, RecurringState};
use crate::mirror::{Mirror, NotReady, Status, UpstreamState};

/// The answer to `/healthz`: this process runs.
pub(super) fn health() -> Reply {
    Reply { content: ReplyContent::Health { is_ready: true, text: "ok" }, outcome: None, age: None }
}

/// The answer to `/readyz`: the store is open, whatever the upstreams do.
pub(super) async fn readiness(mirror: &Arc<Mirror>) -> Reply {
    let ready = mirror.library.ready().await;
    let text = ready.map_or_else(NotReady::describe, |()| "ready");
    Reply { content: ReplyContent::Health { is_ready: ready.is_ok(), text }, outcome: None, age: None }
}

/// Reads a JSON object and nothing else: serde would also read a list as the struct. `shape` is an example.
///
/// # Errors
/// The problem.
fn object_of<T: DeserializeOwned>(body: &[u8], shape: &str) -> Result<T, String> {
    let bad = |e| format!("the body is not {shape}: {e}");
    let object: Map<String, Value> = serde_json::from_slice(body).map_err(bad)?;
    serde_json::from_value(Value::Object(object)).map_err(bad)
}

/// Parses the id of a job in a request.
///
/// # Errors
/// The problem.
fn job_id(text: &str) -> Result<JobId, String> {
    JobId::parse(text).ok_or_else(|| format!("{:?} is not a job id: those have sixteen hex digits", short(text)))
}

/// The parsed value; a problem is added to the others.
fn or_problem<T, E: Display>(parsed: Result<T, E>, problems: &mut Vec<String>) -> Option<T> {
    parsed.map_err(|bad| problems.push(bad.to_string())).ok()
}

/// The beginning of a text that a message quotes.
pub(super) fn short(text: &str) -> String {
    text.chars().take(64).collect()
}

/// Access rules of the admin listener.
#[derive(Debug)]
pub struct Access {
    token: SecretString,
    listens_on_loopback: bool,
    reads: ReadAccess,
}

/// The processes of this machine that may read over the loopback address without the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadAccess {
    /// All of them.
    Open,
    /// None: the larder belongs to one user.
    Token,
}

/// Headers of a request that decide if it is allowed.
#[derive(Debug, Clone, Copy, Default)]
pub struct AccessHeaders<'a> {
    /// The Origin header, which browsers send.
    pub origin: Option<&'a str>,
    /// The Sec-Fetch-Site header, which browsers send even without an Origin.
    pub site: Option<&'a str>,
    /// The Sec-Fetch-Dest header, which browsers send: what the answer is for.
    pub destination: Option<&'a str>,
    /// The Host header, or the authority.
    pub host: Option<&'a str>,
    /// The Authorization header.
    pub authorization: Option<&'a str>,
}

/// Reasons for refusing a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AdminRefusal {
    /// Sent by a web page: 403.
    #[error("requests from web pages are refused")]
    WebPage,
    /// A foreign Host on loopback: 403. It may be a name that DNS rebinding points here.
    #[error("on loopback, the Host must be localhost or a loopback address")]
    ForeignHost,
    /// The token is missing or wrong: 401.
    #[error(
        "the admin token is missing or wrong: this needs it as a bearer token, and it is in admin-token in the store folder, unless configured"
    )]
    NoToken,
}

impl Access {
    /// The rules for one listener. Away from loopback reads always need the token.
    pub fn new(token: SecretString, listener: IpAddr, reads: ReadAccess) -> Self {
        Self { token, listens_on_loopback: listener.is_loopback(), reads }
    }

    /// Checks that a read may be answered. Browsers send the token as the password of HTTP Basic (RFC 7617).
    pub fn may_read(&self, headers: AccessHeaders<'_>) -> Result<(), AdminRefusal> {
        self.refuse_web_page(headers)?;
        let is_open = self.listens_on_loopback && self.reads == ReadAccess::Open;
        if is_open || self.has_token(headers) || self.has_password(headers) {
            Ok(())
        } else {
            Err(AdminRefusal::NoToken)
        }
    }

    /// Checks that the status page may be opened: as a read, and also by a link on another site, which cannot see it.
    pub fn may_open_page(&self, headers: AccessHeaders<'_>) -> Result<(), AdminRefusal> {
        let is_link = headers.origin.is_none() && headers.destination == Some("document");
        self.may_read(AccessHeaders { site: headers.site.filter(|_| !is_link), ..headers })
    }

    /// Checks that a form comes from the status page itself. The form must also have the token: see [`Self::is_token`].
    pub fn may_send_form(&self, headers: AccessHeaders<'_>) -> Result<(), AdminRefusal> {
        let is_own = |origin: &str| {
            let authority = ["http://", "https://"].iter().find_map(|scheme| origin.strip_prefix(scheme));
            authority.zip(headers.host).is_some_and(|(authority, host)| authority.eq_ignore_ascii_case(host))
        };
        if !headers.origin.is_none_or(is_own) {
            return Err(AdminRefusal::WebPage);
        }
        self.refuse_web_page(AccessHeaders { origin: None, ..headers })
    }

    /// Compares a text with the token, in constant time.
    pub fn is_token(&self, text: &str) -> bool {
        bool::from(text.as_bytes().ct_eq(self.token.expose_secret().as_bytes()))
    }

    /// Checks that a change may be made. It always needs the token, because every user and web page of this machine
    /// reaches its loopback.
    pub fn may_change(&self, headers: AccessHeaders<'_>) -> Result<(), AdminRefusal> {
        self.refuse_web_page(headers)?;
        if self.has_token(headers) { Ok(()) } else { Err(AdminRefusal::NoToken) }
    }

    fn refuse_web_page(&self, headers: AccessHeaders<'_>) -> Result<(), AdminRefusal> {
        // `none`: a person typed the URL. `same-origin`: a page of this origin asked. Any other value means a foreign
        // page.
        if headers.origin.is_some() || headers.site.is_some_and(|site| !matches!(site, "none" | "same-origin")) {
            return Err(AdminRefusal::WebPage);
        }
        // On other addresses larder cannot know its names, and every route needs the token.
        if self.listens_on_loopback && !headers.host.is_some_and(is_local) {
            return Err(AdminRefusal::ForeignHost);
        }
        Ok(())
    }

    fn has_token(&self, headers: AccessHeaders<'_>) -> bool {
        credentials(headers, "bearer").is_some_and(|token| self.is_token(token))
    }

    fn has_password(&self, headers: AccessHeaders<'_>) -> bool {
        let decoded = credentials(headers, "basic").and_then(|encoded| STANDARD.decode(encoded).ok());
        let password = decoded.as_deref().and_then(|decoded| std::str::from_utf8(decoded).ok()?.split_once(':'));
        password.is_some_and(|(_, password)| self.is_token(password))
    }
}

/// The credentials of the Authorization header, if they have this scheme.
fn credentials<'a>(headers: AccessHeaders<'a>, scheme: &str) -> Option<&'a str> {
    let (given, credentials) = headers.authorization?.split_once(' ')?;
    given.eq_ignore_ascii_case(scheme).then(|| credentials.trim())
}

fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// The data of `larder status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StatusReport {
    /// The mirror itself.
    #[serde(flatten)]
    pub mirror: Status,
    /// The process that answers.
    #[serde(default)]
    pub process: ProcessKind,
    /// The file of its configuration; `None` for the defaults.
    #[serde(default)]
    pub config_file: Option<String>,
    /// The origin of the path of its store.
    #[serde(default)]
    pub store_named_by: StoreNaming,
    /// The registry for addresses that name no host; `None` from an older larder.
    #[serde(default)]
    pub default_host: Option<Hostname>,
    /// Counters since the start; absent without a running larder.
    pub since_start: Option<SinceStart>,
    /// The recurring warm-ups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warm_ups: Vec<RecurringState>,
    /// The bundle keys in use.
    #[serde(default)]
    pub bundle_keys: BundleKeyIds,
}

/// The processes that answer the admin API.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ProcessKind {
    /// `larder serve`, for every client.
    #[default]
    Service,
    /// `larder run`, for its own client.
    Run,
    /// One command, for itself.
    Command,
}

/// Counters of a running larder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SinceStart {
    /// Start time.
    pub started: Timestamp,
    /// Uptime, in seconds.
    pub seconds: u64,
    /// Requests by outcome.
    pub requests: BTreeMap<String, u64>,
    /// Refused requests, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Requests that are waiting for an upstream.
    pub waiting_requests: u64,
    /// Body bytes sent to clients.
    pub sent_bytes: u64,
    /// Bytes served from the store without asking upstream.
    pub saved_bytes: u64,
    /// Body bytes received from upstreams.
    pub upstream_bytes: u64,
    /// Downloads in progress.
    pub fills_under_way: i64,
    /// The state of each upstream.
    pub upstreams: Vec<UpstreamState>,
    /// The requests of clients that failed in the last day: those that still are, then those that are over, the newest
    /// first of each; at most 200.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<RecentFailure>,
    /// The refusals of the last day: those by rules, then the others, the newest first of each; at most 200.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<RecentRefusal>,
    /// The lines that the audit trail did not take in time.
    #[serde(default)]
    pub lost_audit_lines: u64,
}

/// Refused requests of one client for one subject.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RecentRefusal {
    /// The decision that it is.
    pub kind: RefusalKind,
    /// The provider or module, with its version where one was requested; absent where the client may ask for nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// The reason.
    pub reason: String,
    /// The rules, by their `match`; `client` for the limits of the client: its `allow`, or the view that it chose.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
    /// The status of the last answer.
    pub status: u16,
    /// The address of the client.
    pub client: String,
    /// The name of the client, where its token proved it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The number of refused requests.
    pub times: u64,
    /// The time of the first.
    pub first: Timestamp,
    /// The time of the last.
    pub last: Timestamp,
}

impl RecentRefusal {
    /// The client, for people: its address, with its name where it proved that.
    pub fn whom(&self) -> String {
        match &self.name {
            Some(name) => format!("{name} at {}", self.client),
            None => self.client.clone(),
        }
    }
}

/// The kinds of refusals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum RefusalKind {
    /// A rule, or what the client may use.
    Policy,
    /// The address of the client.
    Network,
    /// The token of the client, or the proof in its URL.
    Token,
    /// The registry that it asked for, which is not an upstream.
    Host,
}

/// Failed requests of clients for one URL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RecentFailure {
    /// The path of the URL, for `larder explain`.
    pub path: String,
    /// The item that could not be answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// The status of the last answer.
    pub status: u16,
    /// The cause.
    pub cause: String,
    /// The remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// The address of the client that failed last.
    pub client: String,
    /// The number of failed requests.
    pub times: u64,
    /// The time of the first.
    pub first: Timestamp,
    /// The time of the last.
    pub last: Timestamp,
    /// True if the URL was answered since.
    pub is_over: bool,
}

#[cfg(test)]
mod tests {
    mod openapi;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn web_pages_and_foreign_hosts_are_refused_on_loopback() {
        let local = Access::new(SecretString::from("t0ken"), IpAddr::from([127, 0, 0, 1]), ReadAccess::Open);
        let headers = |host| AccessHeaders { host: Some(host), ..Default::default() };
        for host in ["localhost", "LOCALHOST:8081", "127.0.0.1:8081", "[::1]:8081", "127.9.9.9"] {
            assert_eq!(local.may_read(headers(host)), Ok(()), "{host}");
        }
        for host in ["evil.example", "evil.example:8081", "127.0.0.1.evil.example", "", "10.0.0.1"] {
            assert_eq!(local.may_read(headers(host)), Err(AdminRefusal::ForeignHost), "{host}");
        }
        let page = AccessHeaders { origin: Some("null"), ..headers("localhost") };
        assert_eq!(local.may_read(page), Err(AdminRefusal::WebPage));
    }

    /// Requests that change something always need the bearer token.
    #[test]
    fn changes_need_the_token_even_on_loopback() {
        let local = Access::new(SecretString::from("t0ken"), IpAddr::from([127, 0, 0, 1]), ReadAccess::Open);
        let headers =
            |authorization| AccessHeaders { host: Some("localhost:8081"), authorization, ..Default::default() };
        assert_eq!(local.may_change(headers(Some("bearer t0ken"))), Ok(()));
        for wrong in [None, Some("Bearer"), Some("Bearer t0ken2"), Some("Basic t0ken")] {
            assert_eq!(local.may_change(headers(wrong)), Err(AdminRefusal::NoToken), "{wrong:?}");
        }
        let with_token = headers(Some("Bearer t0ken"));
        let page = AccessHeaders { origin: Some("http://localhost:8081"), ..with_token };
        assert_eq!(local.may_change(page), Err(AdminRefusal::WebPage));
        let rebound = AccessHeaders { host: Some("evil.example"), ..with_token };
        assert_eq!(local.may_change(rebound), Err(AdminRefusal::ForeignHost));
    }

    /// A form of another site is refused, and so is one that a browser sends for a page without an origin.
    #[test]
    fn only_the_status_page_itself_can_send_a_form() {
        let addresses = [[127, 0, 0, 1], [10, 0, 0, 1]];
        let [local, open] =
            addresses.map(|ip| Access::new(SecretString::from("t0ken"), IpAddr::from(ip), ReadAccess::Open));
        fn form<'a>(host: &'a str, origin: Option<&'a str>, site: Option<&'a str>) -> AccessHeaders<'a> {
            AccessHeaders { host: Some(host), origin, site, ..Default::default() }
        }
        for (access, host) in [(&local, "localhost:8081"), (&open, "admin.corp")] {
            let own = format!("http://{host}");
            assert_eq!(access.may_send_form(form(host, Some(own.as_str()), Some("same-origin"))), Ok(()), "{host}");
            // A proxy in front may end TLS. Programs send neither header.
            assert_eq!(access.may_send_form(form(host, Some(&format!("https://{host}")), None)), Ok(()), "{host}");
            assert_eq!(access.may_send_form(form(host, None, None)), Ok(()), "{host}");
            for (origin, site) in [
                (Some("null"), Some("same-origin")),
                (Some("https://evil.example"), Some("cross-site")),
                (Some("https://evil.example"), None),
                (Some(own.as_str()), Some("cross-site")),
                (Some(own.as_str()), Some("same-site")),
                (Some(host), None),
                (Some("ftp://admin.corp"), None),
                (Some(""), None),
                (None, Some("cross-site")),
            ] {
                let refused = access.may_send_form(form(host, origin, site));
                assert_eq!(refused, Err(AdminRefusal::WebPage), "{host} {origin:?} {site:?}");
            }
        }
        let rebound = form("evil.example", Some("http://evil.example"), Some("same-origin"));
        assert_eq!(local.may_send_form(rebound), Err(AdminRefusal::ForeignHost));
    }

    /// A link on another site opens the status page, and nothing else of it can read or change anything.
    #[test]
    fn a_link_on_another_site_opens_the_page_alone() {
        let local = Access::new(SecretString::from("t0ken"), IpAddr::from([127, 0, 0, 1]), ReadAccess::Open);
        let headers = |destination, origin| AccessHeaders {
            host: Some("localhost:8081"),
            site: Some("cross-site"),
            destination,
            origin,
            ..Default::default()
        };
        assert_eq!(local.may_open_page(headers(Some("document"), None)), Ok(()));
        assert_eq!(local.may_read(headers(Some("document"), None)), Err(AdminRefusal::WebPage));
        for (destination, origin) in [
            (None, None),
            (Some("iframe"), None),
            (Some("empty"), None),
            (Some("document"), Some("https://evil.example")),
        ] {
            assert_eq!(
                local.may_open_page(headers(destination, origin)),
                Err(AdminRefusal::WebPage),
                "{destination:?}"
            );
        }
    }

    #[test]
    fn reads_need_the_token_on_other_addresses_than_loopback() {
        let open = Access::new(SecretString::from("t0ken"), IpAddr::from([10, 0, 0, 1]), ReadAccess::Open);
        fn headers(authorization: Option<&str>) -> AccessHeaders<'_> {
            AccessHeaders { host: Some("admin.corp"), authorization, ..Default::default() }
        }
        assert_eq!(open.may_read(headers(Some("Bearer t0ken"))), Ok(()));
        // As browsers send it, with any user name.
        for (user, password, expected) in [
            ("", "t0ken", Ok(())),
            ("admin", "t0ken", Ok(())),
            ("t0ken", "", Err(AdminRefusal::NoToken)),
            ("admin", "t0ken2", Err(AdminRefusal::NoToken)),
            ("admin", ":t0ken", Err(AdminRefusal::NoToken)),
        ] {
            let basic = format!("Basic {}", STANDARD.encode(format!("{user}:{password}")));
            assert_eq!(open.may_read(headers(Some(basic.as_str()))), expected, "{user}:{password}");
            assert_eq!(open.may_open_page(headers(Some(basic.as_str()))), expected, "{user}:{password}");
            // A browser sends it by itself, also for a page of another site.
            assert_eq!(open.may_change(headers(Some(basic.as_str()))), Err(AdminRefusal::NoToken));
        }
        for wrong in [None, Some("Bearer"), Some("Bearer t0ke"), Some("Basic t0ken"), Some("t0ken"), Some("Bearer ")] {
            assert_eq!(open.may_read(headers(wrong)), Err(AdminRefusal::NoToken), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn without_the_token_no_request_is_allowed_off_loopback(
            host in prop::option::of("[ -~]{0,20}|localhost(:[0-9]{1,5})?"),
            authorization in prop::option::of("(?i:bearer) {1,2}[t0ken]{0,6}|[ -~]{0,20}"),
            origin in prop::option::of("null|https?://[a-z]{1,5}"),
        ) {
            let (host, authorization) = (host.as_deref(), authorization.as_deref());
            let headers = AccessHeaders { host, authorization, origin: origin.as_deref(), ..Default::default() };
            let [local, open] = [[127, 0, 0, 1], [10, 0, 0, 1]].map(|ip| Access::new(SecretString::from("t0ken"), IpAddr::from(ip), ReadAccess::Open));
            prop_assert!(origin.is_none() || (local.may_read(headers).is_err() && open.may_read(headers).is_err()));
            let has_token = authorization.is_some_and(|token: &str| token.split_whitespace().last() == Some("t0ken"));
            prop_assert!(has_token || open.may_read(headers).is_err());
            let good = AccessHeaders { authorization: Some("Bearer t0ken"), origin: None, ..headers };
            prop_assert_eq!(open.may_read(good), Ok(()));
        }
    }
}
