//! `[[client]]`: a client that authenticates, and the reader of its table.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use ipnet::IpNet;
use secrecy::ExposeSecret as _;
use toml::de::DeValue;
use url::Url;

use super::section::Section;
use super::{Upstream, os, values};
use crate::address::{AddressPattern, Hostname};
use crate::digest::Digest;
use crate::verify::jwt::IssuerKeys;

/// A client that authenticates. Its tokens are known by their digests alone.
#[derive(Debug, Clone)]
pub struct Client {
    /// Its name in logs and in the audit.
    pub name: String,
    /// The SHA-256 of each of its tokens.
    pub tokens: Vec<Digest>,
    /// The tokens of a CI system that are its own.
    pub oidc: Option<Oidc>,
    /// The networks from which its tokens count; `None` for all.
    pub networks: Option<Vec<IpNet>>,
    /// The addresses that it may use; `None` for all.
    pub allow: Option<Vec<AddressPattern>>,
}

/// The tokens of a CI system that count for a client (OpenID Connect).
#[derive(Debug, Clone)]
pub struct Oidc {
    /// The issuer, as its tokens name it.
    pub issuer: String,
    /// The audience that a token must be for.
    pub audience: String,
    /// The claims that a token must have, each with its pattern; never none.
    pub claims: Vec<(String, ClaimPattern)>,
    /// The source of its keys.
    pub keys: KeySource,
}

/// The source of the keys of an issuer.
#[derive(Debug, Clone)]
pub enum KeySource {
    /// A file.
    File(IssuerKeys),
    /// The issuer itself.
    Issuer(IssuerSettings),
}

/// An issuer that larder asks for its keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuerSettings {
    /// Its host.
    pub host: Hostname,
    /// Its URL, with a final slash.
    pub url: Url,
    /// The file of authorities that may sign its certificate, beside those of the system.
    pub ca: Option<PathBuf>,
}

/// A text that a claim must have. `*` stands for anything, a slash too.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimPattern(String);

impl ClaimPattern {
    /// Returns true if a text has this form.
    pub fn matches(&self, text: &str) -> bool {
        let mut parts = self.0.split('*');
        let (first, last) = (parts.next().unwrap_or_default(), parts.next_back());
        let Some(last) = last else { return text == first };
        let Some(mut rest) = text.strip_prefix(first) else { return false };
        for part in parts {
            let Some((_, after)) = rest.split_once(part) else { return false };
            rest = after;
        }
        rest.ends_with(last)
    }
}

const OIDC_EXAMPLE: &str = r#"{ issuer = "https://token.actions.githubusercontent.com", audience = "larder", claims = { repository = "acme/*" } }"#;
const NO_HOST: &str =
    "larder cannot ask an issuer at this address: name the file with its keys, jwks = { file = \"kubernetes.jwks\" }";
const CLAIMS_EXAMPLE: &str = r#"{ repository = "acme/*" }"#;
const JWKS_EXAMPLE: &str = r#"{ file = "github.jwks" }"#;
/// The claims that every token is judged by: who signed it, for whom, and when.
const JUDGED_CLAIMS: [&str; 5] = ["iss", "aud", "exp", "nbf", "jti"];
/// The most bytes of a file with keys.
const MAX_JWKS_BYTES: u64 = 1 << 20;
const TOKEN_EXAMPLE: &str = r#"{ file = "/etc/larder/ci.token" }"#;
/// The shortest token, in bytes: `larder token new` makes longer ones.
const MIN_TOKEN_BYTES: usize = 20;
/// The longest token, in bytes. Clients send it with every request.
const MAX_TOKEN_BYTES: usize = 1024;
/// The most characters of a name.
const MAX_NAME_CHARS: usize = 64;

/// Reads one `[[client]]`, with its line. `None` where its problems leave no client.
pub(super) fn read(section: &mut Section<'_, '_, '_>) -> (usize, Option<Client>) {
    let name = section.text("name", "ci", parse_name);
    let tokens = read_tokens(section);
    let oidc = section.optional_table("oidc", OIDC_EXAMPLE, read_oidc).flatten();
    let networks = section.list("networks", r#"["10.0.0.0/8"]"#, values::network);
    if section.is_empty_list("networks") {
        section.problem("networks", "an empty list allows no network; omit it to allow every network".to_owned());
    }
    let pattern = |text: &str| AddressPattern::parse(text).map_err(|bad| bad.to_string());
    let allow = section.list("allow", r#"["hashicorp/*"]"#, pattern);
    if section.is_empty_list("allow") {
        section.problem("allow", "an empty list allows nothing; omit it to allow every address".to_owned());
    }
    section.require(if section.has("oidc") { &["name"] } else { &["name", "token"] });
    (section.line_of(""), name.map(|name| Client { name, tokens, oidc, networks, allow }))
}

/// Reads the token, or the list of tokens.
fn read_tokens(section: &mut Section<'_, '_, '_>) -> Vec<Digest> {
    const KEY: &str = "token";
    let is_list = section
        .value_of(KEY, format!("{KEY} = {TOKEN_EXAMPLE}"))
        .is_some_and(|value| matches!(value.get_ref(), DeValue::Array(_)));
    if is_list {
        if section.is_empty_list(KEY) {
            section.problem(KEY, "an empty list lets nobody in; name a token".to_owned());
        }
        return section.tables(KEY, read_token).unwrap_or_default().into_iter().flatten().collect();
    }
    if section.is_text(KEY) {
        let text = format!("a secret is named here, never written; write for example {KEY} = {TOKEN_EXAMPLE}");
        section.problem(KEY, text);
        return Vec::new();
    }
    section.optional_table(KEY, TOKEN_EXAMPLE, read_token).flatten().into_iter().collect()
}

/// Reads one token: its digest, or where it is.
fn read_token(section: &mut Section<'_, '_, '_>) -> Option<Digest> {
    let digest = section.text("sha256", "9f86d081884c7d65…", |text| {
        Digest::parse(text).map_err(|_| "a SHA-256 has 64 hex digits; `larder token new` prints it".to_owned())
    });
    if section.has("sha256") {
        section.at_most_one(&["sha256", "env", "file"]);
        return digest;
    }
    let token = section.secret_source(TOKEN_EXAMPLE, "token")?;
    match check_token(token.expose_secret()) {
        Ok(()) => Some(Digest::of(token.expose_secret().as_bytes())),
        Err(problem) => {
            section.problem("", problem);
            None
        }
    }
}

/// Reads the table of a CI system.
fn read_oidc(section: &mut Section<'_, '_, '_>) -> Option<Oidc> {
    let issuer = section.text("issuer", "https://token.actions.githubusercontent.com", parse_issuer);
    let audience = section.text("audience", "larder", |text| {
        if text.is_empty() { Err("an audience is not empty".to_owned()) } else { Ok(text.to_owned()) }
    });
    let claims = section.texts("claims", CLAIMS_EXAMPLE);
    if claims.as_ref().is_some_and(Vec::is_empty) {
        section.problem(
            "claims",
            "without a claim every job of that issuer is this client; name one, such as repository or sub".to_owned(),
        );
    }
    for (name, pattern) in claims.iter().flatten() {
        if JUDGED_CLAIMS.contains(&name.as_str()) {
            let text = format!("{name} is judged already; name one that tells jobs apart, such as repository or sub");
            section.problem("claims", text);
        } else if pattern.chars().all(|character| character == '*') {
            let text = format!("{name} = {pattern:?} is true for every job of that issuer; name a part that is fixed");
            section.problem("claims", text);
        }
    }
    section.at_most_one(&["jwks", "ca"]);
    let ca = section.path("ca", "/etc/larder/kubernetes-ca.pem");
    let has_file = section.has("jwks");
    let of_file = section.optional_table("jwks", JWKS_EXAMPLE, |section| {
        section.require(&["file"]);
        let path = section.path("file", "github.jwks")?;
        let keys = os::text(&path, MAX_JWKS_BYTES)
            .map_err(|cause| format!("cannot be read: {cause}"))
            .and_then(|text| IssuerKeys::parse(text.as_bytes()));
        keys.map_err(|problem| section.problem("file", format!("{}: {problem}", path.display()))).ok()
    });
    section.require(&["issuer", "audience", "claims"]);
    let claims = claims?.into_iter().map(|(name, pattern)| (name, ClaimPattern(pattern))).collect();
    let (issuer, url) = issuer?;
    let keys = if has_file {
        KeySource::File(of_file.flatten()?)
    } else {
        let host = Hostname::parse(url.authority()).map_err(|_| section.problem("issuer", NO_HOST.to_owned())).ok()?;
        KeySource::Issuer(IssuerSettings { host, url, ca })
    };
    Some(Oidc { issuer, audience: audience?, claims, keys })
}

/// The name of an issuer in tokens, and its URL with a final slash (OpenID Connect Discovery 1.0, section 2).
fn parse_issuer(text: &str) -> Result<(String, Url), String> {
    let bad = || "an issuer is an https URL, as its tokens name it: without query, fragment and userinfo".to_owned();
    let mut url = Url::parse(text).map_err(|_| bad())?;
    let is_plain =
        url.query().is_none() && url.fragment().is_none() && url.username().is_empty() && url.password().is_none();
    if url.scheme() != "https" || !is_plain {
        return Err(bad());
    }
    if !url.path().ends_with('/') {
        url.set_path(&format!("{}/", url.path()));
    }
    Ok((text.to_owned(), url))
}

/// Checks that clients can send a token, and that nobody guesses it.
fn check_token(token: &str) -> Result<(), String> {
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("the token has a character that no header can hold: use visible ASCII, without spaces".to_owned());
    }
    match token.len() {
        ..MIN_TOKEN_BYTES => {
            Err(format!("the token has fewer than {MIN_TOKEN_BYTES} characters; `larder token new` makes one"))
        }
        length if length > MAX_TOKEN_BYTES => Err(format!("the token has more than {MAX_TOKEN_BYTES} characters")),
        _ => Ok(()),
    }
}

/// Parses the name of a client.
///
/// # Errors
/// The form of a name.
pub fn parse_name(name: &str) -> Result<String, String> {
    let is_valid = |character: char| character.is_ascii_alphanumeric() || "._-".contains(character);
    if name.is_empty() || name.len() > MAX_NAME_CHARS || !name.chars().all(is_valid) {
        return Err(format!("a name has 1 to {MAX_NAME_CHARS} letters, digits, dots, hyphens and underscores"));
    }
    Ok(name.to_owned())
}

/// The clients that were read. Reports names and tokens that two of them have, and warns about addresses of no upstream.
pub(super) fn distinct(
    root: &mut Section<'_, '_, '_>,
    clients: Vec<(usize, Option<Client>)>,
    upstreams: &[Upstream],
) -> Vec<Client> {
    let (mut lines_by_name, mut lines_by_token) = (BTreeMap::new(), BTreeMap::new());
    let (mut lines_by_jobs, mut sources_by_issuer) = (BTreeMap::new(), BTreeMap::new());
    let mut distinct = Vec::new();
    for (line, client) in clients {
        let Some(client) = client else { continue };
        if let Some(first) = lines_by_name.insert(client.name.clone(), line) {
            root.problem_at(line, "client.name", format!("{} is a client already, on line {first}", client.name));
        }
        for token in client.tokens.iter().collect::<BTreeSet<_>>() {
            if let Some(first) = lines_by_token.insert(*token, line) {
                let text = format!("this token is that of the client on line {first}, too; each needs its own");
                root.problem_at(line, "client.token", text);
            }
        }
        if let Some(oidc) = &client.oidc {
            let asked = if let KeySource::Issuer(settings) = &oidc.keys { Some(settings.clone()) } else { None };
            let (first, source) = sources_by_issuer.entry(oidc.issuer.clone()).or_insert((line, asked.clone()));
            if *source != asked {
                let text = format!(
                    "the client on line {first} has the keys of this issuer from elsewhere; write jwks and ca alike"
                );
                root.problem_at(line, "client.oidc", text);
            }
            let claims: BTreeMap<_, _> = oidc.claims.iter().cloned().collect();
            let jobs = (oidc.issuer.clone(), oidc.audience.clone(), claims, client.networks.clone());
            if let Some(first) = lines_by_jobs.insert(jobs, line) {
                let text =
                    format!("these jobs are those of the client on line {first}, too; each needs its own claims");
                root.problem_at(line, "client.oidc", text);
            }
        }
        for pattern in client.allow.iter().flatten() {
            if let Some(host) = pattern.host()
                && !upstreams.iter().any(|upstream| upstream.host == *host)
            {
                root.warning_at(line, "client.allow", format!("{host} is not one of the upstreams"));
            }
        }
        distinct.push(client);
    }
    distinct
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_in_a_claim_stands_for_anything() {
        for (pattern, text, matches) in [
            ("acme/app", "acme/app", true),
            ("acme/app", "acme/app2", false),
            ("acme/*", "acme/app", true),
            ("acme/*", "acme/", true),
            ("acme/*", "acmeevil/app", false),
            ("repo:acme/*:ref:refs/heads/main", "repo:acme/app:ref:refs/heads/main", true),
            ("repo:acme/*:ref:refs/heads/main", "repo:acme/app:ref:refs/heads/other", false),
            ("a*a", "a", false),
            ("*", "", true),
        ] {
            assert_eq!(ClaimPattern(pattern.to_owned()).matches(text), matches, "{pattern} {text}");
        }
    }
}
