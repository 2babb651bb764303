//! `[[client]]`: a client that authenticates, and the reader of its table.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use secrecy::ExposeSecret as _;
use toml::de::DeValue;

use super::section::Section;
use super::{Upstream, values};
use crate::address::AddressPattern;
use crate::digest::Digest;

/// A client that authenticates. Its tokens are known by their digests alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// Its name in logs and in the audit.
    pub name: String,
    /// The SHA-256 of each of its tokens.
    pub tokens: Vec<Digest>,
    /// The networks from which its tokens count; `None` for all.
    pub networks: Option<Vec<IpNet>>,
    /// The addresses that it may use; `None` for all.
    pub allow: Option<Vec<AddressPattern>>,
}

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
    let networks = section.list("networks", r#"["10.0.0.0/8"]"#, values::network);
    if section.is_empty_list("networks") {
        section.problem("networks", "an empty list allows no network; omit it to allow every network".to_owned());
    }
    let pattern = |text: &str| AddressPattern::parse(text).map_err(|bad| bad.to_string());
    let allow = section.list("allow", r#"["hashicorp/*"]"#, pattern);
    if section.is_empty_list("allow") {
        section.problem("allow", "an empty list allows nothing; omit it to allow every address".to_owned());
    }
    section.require(&["name", "token"]);
    (section.line_of(""), name.map(|name| Client { name, tokens, networks, allow }))
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
