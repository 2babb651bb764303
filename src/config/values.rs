//! Parses the text of one option into its checked type. An error is a sentence about the value, and never shows a value
//! that may hold a secret.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytesize::ByteSize;
use ipnet::IpNet;
use url::{Host, Url};

use super::os;
use crate::address::{Hostname, Platform};
use crate::verify::VerificationPolicy;

/// The longest duration. A longer one could overflow a timestamp.
const MAX_DURATION: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);

/// The longest `patience`. Every request for a document is answered within this time.
const MAX_PATIENCE: Duration = Duration::from_secs(8);

/// The shortest interval of a scrub, which reads the whole store.
const MIN_SCRUB_INTERVAL: Duration = Duration::from_secs(3600);

/// The shortest interval of a recurring warm-up, which sends requests to upstreams.
const MIN_WARM_INTERVAL: Duration = Duration::from_secs(5 * 60);

/// The most characters of a value in a message.
const MAX_SHOWN_CHARS: usize = 80;

/// An error in a value.
pub(super) struct ValueError {
    /// A sentence about the value.
    pub(super) text: String,
    /// The value that the user probably meant.
    pub(super) suggestion: Option<String>,
}

impl From<String> for ValueError {
    fn from(text: String) -> Self {
        Self { text, suggestion: None }
    }
}

/// Quotes a value for messages: escaped and shortened. A value that may contain a password is not shown.
pub(super) fn quoted(value: &str) -> String {
    if may_hold_secret(value) {
        return "the value (not shown: it may hold a password)".to_owned();
    }
    if value.chars().count() <= MAX_SHOWN_CHARS {
        return format!("{value:?}");
    }
    let head: String = value.chars().take(MAX_SHOWN_CHARS).collect();
    format!("{head:?}…")
}

pub(super) fn socket(value: &str) -> Result<SocketAddr, String> {
    value.parse().map_err(|_| format!("{} is not an address with a port", quoted(value)))
}

/// Parses a network; a single address is a network of one.
pub(super) fn network(value: &str) -> Result<IpNet, String> {
    network_or_address(value).ok_or_else(|| format!("{} is neither a network nor an address", quoted(value)))
}

/// Parses a host name with an optional port. A URL is an error that proposes its host.
pub(super) fn hostname(value: &str) -> Result<Hostname, ValueError> {
    Hostname::parse(value).map_err(|cause| {
        // The error of `Hostname::parse` shows the value, which may hold a secret.
        if may_hold_secret(value) {
            return format!("{} is not a host name", quoted(value)).into();
        }
        let url = Url::parse(value).ok().filter(|_| value.contains("://"));
        match url.as_ref().and_then(|url| Some((url.host_str()?, url.port()))) {
            Some((host, port)) => {
                let text = format!("{} is a URL, not a host name", quoted(value));
                let port = port.map(|port| format!(":{port}")).unwrap_or_default();
                ValueError { text, suggestion: Some(format!("{host}{port}")) }
            }
            None => cause.to_string().into(),
        }
    })
}

/// Parses a socket address; a host name is resolved.
pub(crate) fn listening(value: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = value.parse() {
        return Ok(address);
    }
    let is_name_with_port = value.rsplit_once(':').is_some_and(|(name, port)| {
        let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
        !name.is_empty() && is_name && port.parse::<u16>().is_ok() && name.parse::<IpAddr>().is_err()
    });
    if !is_name_with_port {
        return Err(format!("{} is not an address or a host name with a port", quoted(value)));
    }
    os::address(value).map_err(|cause| format!("{} does not resolve: {cause}", quoted(value)))
}

pub(super) fn platform(value: &str) -> Result<Platform, String> {
    Platform::parse(value).map_err(|_| format!("{} is not a platform", quoted(value)))
}

/// Parses a base URL: http or https, without userinfo, query or fragment. Adds a missing final slash.
pub(super) fn base_url(value: &str) -> Result<Url, String> {
    let mut url = Url::parse(value).map_err(|cause| format!("{} is not a URL: {cause}", quoted(value)))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("{} begins with neither https:// nor http://", quoted(value)));
    }
    // A bare `@` parses to an empty user name, yet clients differ on its meaning.
    if !url.username().is_empty() || url.password().is_some() || authority(value).contains('@') {
        return Err(
            "a URL with a user name or password is refused: secrets are named with token, basic or header".to_owned()
        );
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("a base URL has no query and no fragment".to_owned());
    }
    if !url.path().ends_with('/') {
        let path = format!("{}/", url.path());
        url.set_path(&path);
    }
    Ok(url)
}

/// Returns true if a URL leads to the machine that it is used on.
pub(crate) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => IpAddr::V6(address).to_canonical().is_loopback(),
        None => false,
    }
}

/// Parses one entry of `network.allow_private`.
pub(super) fn private_destination(value: &str) -> Result<super::PrivateDestination, String> {
    use super::PrivateDestination;
    if value.contains("://") {
        let (host, port) = plain_http_origin(value).ok_or_else(|| {
            format!("{} does not have the form http://name:port, the only URL allowed here", quoted(value))
        })?;
        return Ok(PrivateDestination::PlainHttp { host, port });
    }
    if let Some(network) = network_or_address(value) {
        return Ok(PrivateDestination::Network(network));
    }
    let bad = || format!("{} is neither a network, nor an address, nor a host name", quoted(value));
    let host = Hostname::parse(value).map_err(|_| bad())?;
    if host.port().is_some() || value.contains(':') {
        return Err(format!("{} has a port; a name or an address covers all its ports", quoted(value)));
    }
    Ok(PrivateDestination::Name(host.to_string()))
}

pub(super) fn policy(value: &str) -> Result<VerificationPolicy, String> {
    let named = VerificationPolicy::ALL.into_iter().find(|policy| policy.label() == value);
    named.ok_or_else(|| format!("{} is none of signature, signature-if-keys, checksum", quoted(value)))
}

pub(super) fn duration(value: &str) -> Result<Duration, String> {
    let duration =
        humantime::parse_duration(value).map_err(|_| format!("{} is not a duration with its unit", quoted(value)))?;
    if duration > MAX_DURATION {
        return Err(format!("{} is longer than ten years", quoted(value)));
    }
    Ok(duration)
}

/// Parses a time that a request may wait.
pub(super) fn patience(value: &str) -> Result<Duration, String> {
    let duration = self::duration(value)?;
    if duration > MAX_PATIENCE {
        return Err(format!("{} is longer than 8s, the limit for every document", quoted(value)));
    }
    Ok(duration)
}

/// Parses the interval of a scrub; `never` disables it.
pub(super) fn scrub_interval(value: &str) -> Result<Option<Duration>, String> {
    if value == "never" {
        return Ok(None);
    }
    let duration = self::duration(value)?;
    if duration < MIN_SCRUB_INTERVAL {
        return Err(format!("{} is less than an hour; \"never\" disables it", quoted(value)));
    }
    Ok(Some(duration))
}

/// Parses the interval of a recurring warm-up.
pub(super) fn warm_interval(value: &str) -> Result<Duration, String> {
    let duration = self::duration(value)?;
    if duration < MIN_WARM_INTERVAL {
        return Err(format!("{} is less than the minimum of 5m", quoted(value)));
    }
    Ok(duration)
}

pub(super) fn size(value: &str) -> Result<ByteSize, String> {
    // `ByteSize` saturates on overflow, so the largest value is refused.
    value
        .parse::<ByteSize>()
        .ok()
        .filter(|size| size.as_u64() < u64::MAX && value.starts_with(|c: char| c.is_ascii_digit()))
        .ok_or_else(|| format!("{} is not a size with its unit", quoted(value)))
}

/// Parses a size limit: at least 1 MiB.
pub(super) fn capacity(value: &str) -> Result<ByteSize, String> {
    let size = size(value)?;
    if size < ByteSize::mib(1) {
        return Err(format!("{} is too small; 1MiB is the minimum", quoted(value)));
    }
    Ok(size)
}

/// Parses the user name of HTTP basic authentication.
pub(super) fn user_name(value: &str) -> Result<String, String> {
    if value.is_empty() || value.contains(':') || value.chars().any(char::is_control) {
        return Err("a user name must have neither a colon nor control characters, and not be empty".to_owned());
    }
    Ok(value.to_owned())
}

fn may_hold_secret(value: &str) -> bool {
    value.contains(['@', '?', '#'])
}

fn authority(value: &str) -> &str {
    let after = value.split_once("//").map_or(value, |(_, after)| after);
    after.split(['/', '\\', '?', '#']).next().unwrap_or(after)
}

fn network_or_address(value: &str) -> Option<IpNet> {
    let network = value.parse::<IpNet>().ok();
    network.or_else(|| value.parse::<IpAddr>().ok().map(IpNet::from)).map(|network| network.trunc())
}

/// Parses `http://HOST:PORT`, without a path.
fn plain_http_origin(value: &str) -> Option<(String, u16)> {
    let origin = value.strip_prefix("http://")?;
    let origin = origin.strip_suffix('/').unwrap_or(origin);
    let (host, port) = origin.rsplit_once(':')?;
    if host.is_empty() || host.contains(['/', '\\', '@', '?', '#']) || !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let port = port.parse().ok().filter(|port| *port != 0)?;
    let url = Url::parse(value).ok()?;
    Some((url.host_str()?.to_owned(), port))
}

/// The Levenshtein distance of two names.
pub(super) fn edit_distance(name: &[char], other: &str) -> usize {
    let mut row: Vec<usize> = (0..=name.len()).collect();
    for (row_index, other_char) in other.chars().enumerate() {
        let mut distance = row_index + 1;
        let mut next_row = vec![distance];
        for (name_char, pair) in name.iter().zip(row.windows(2)) {
            let [diagonal, above] = pair else { continue };
            distance = (distance + 1).min(above + 1).min(diagonal + usize::from(*name_char != other_char));
            next_row.push(distance);
        }
        row = next_row;
    }
    row.last().copied().unwrap_or_default()
}
