//! The types of credentials, which never print a secret, and the readers of their tables. An environment variable or a
//! file holds a secret; it is loaded when the configuration is read, and never shown.

use std::path::PathBuf;

use http::{HeaderName, HeaderValue};
use secrecy::{ExposeSecret as _, SecretString};
use toml::de::DeValue;

use super::section::Section;
use super::{os, values};
use crate::address::Hostname;

/// A secret in a request header.
#[derive(Debug, Clone)]
pub enum CredentialKind {
    /// `Authorization: Bearer …`.
    Bearer(SecretString),
    /// `Authorization: Basic …`.
    Basic {
        /// The user name; without a colon.
        user: String,
        /// The password.
        password: SecretString,
    },
    /// A custom header.
    Header {
        /// The header's name, lower-case and valid.
        name: String,
        /// The header's value, valid.
        value: SecretString,
    },
}

/// `[[credential]]`: credential for a host that is not a registry, such as a git server.
#[derive(Debug, Clone)]
pub struct Credential {
    /// The host that the credential is sent to.
    pub host: Hostname,
    /// The upstreams whose modules may use it; each is configured.
    pub upstreams: Vec<Hostname>,
    /// The header or the SSH key.
    pub access: Access,
}

/// Authentication at a host that is not a registry.
#[derive(Debug, Clone)]
pub enum Access {
    /// A header over HTTP.
    Http(CredentialKind),
    /// An SSH key.
    Ssh(SshFiles),
}

/// Files for an SSH connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshFiles {
    /// The private key.
    pub key: PathBuf,
    /// File of trusted host keys.
    pub known_hosts: PathBuf,
}

const TOKEN_EXAMPLE: &str = r#"{ env = "REGISTRY_TOKEN" }"#;
const BASIC_EXAMPLE: &str = r#"{ user = "larder", password = { env = "REGISTRY_PASSWORD" } }"#;
const HEADER_EXAMPLE: &str = r#"{ name = "X-Registry-Key", value = { env = "REGISTRY_KEY" } }"#;
const SSH_EXAMPLE: &str = r#"{ key = "id_ed25519", known_hosts = "known_hosts" }"#;

/// Headers that the connection or larder itself sets. A credential under such a name would break requests.
const RESERVED_HEADERS: [&str; 10] = [
    "accept-encoding",
    "cdn-loop",
    "connection",
    "content-length",
    "expect",
    "host",
    "range",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// Reads `token`, `basic` or `header`; at most one may be present.
pub(super) fn read_http(section: &mut Section<'_, '_, '_>) -> Option<CredentialKind> {
    let token = section.secret("token", TOKEN_EXAMPLE);
    let token = token.and_then(|token| valid_header_value(section, "token", token));
    let basic = section.optional_table("basic", BASIC_EXAMPLE, read_basic).flatten();
    let header = section.optional_table("header", HEADER_EXAMPLE, read_header).flatten();
    section.at_most_one(&["token", "basic", "header"]);
    token.map(CredentialKind::Bearer).or(basic).or(header)
}

/// Reads one `[[credential]]`. Returns its upstreams, which are checked even if the credential has problems, and the
/// credential; `None` if a required key is missing, which is recorded as a problem.
pub(super) fn read(section: &mut Section<'_, '_, '_>) -> (Vec<Hostname>, Option<Credential>) {
    section.require(&["host"]);
    let host = section.text("host", "git.corp.example", values::hostname);
    let upstreams = section.list("upstreams", r#"["registry.corp.example"]"#, values::hostname);
    let http = read_http(section);
    let ssh = section.optional_table("ssh", SSH_EXAMPLE, read_ssh).flatten();
    let kind_keys = ["token", "basic", "header", "ssh"];
    if !kind_keys.into_iter().any(|key| section.has(key)) {
        section.problem("", format!("no credential; write for example token = {TOKEN_EXAMPLE}"));
    }
    if section.has("ssh") {
        section.at_most_one(&kind_keys);
    }
    let upstreams = upstreams.unwrap_or_default();
    let access = http.map(Access::Http).or(ssh.map(Access::Ssh));
    let credential = host.zip(access).map(|(host, access)| Credential { host, upstreams: upstreams.clone(), access });
    (upstreams, credential)
}

fn read_basic(section: &mut Section<'_, '_, '_>) -> Option<CredentialKind> {
    section.require(&["user", "password"]);
    let user = section.text("user", "larder", values::user_name);
    let password = section.secret("password", r#"{ env = "REGISTRY_PASSWORD" }"#);
    Some(CredentialKind::Basic { user: user?, password: password? })
}

fn read_header(section: &mut Section<'_, '_, '_>) -> Option<CredentialKind> {
    section.require(&["name", "value"]);
    let name = section.text("name", "X-Registry-Key", header_name);
    let value = section.secret("value", r#"{ env = "REGISTRY_KEY" }"#);
    let value = value.and_then(|value| valid_header_value(section, "value", value));
    Some(CredentialKind::Header { name: name?, value: value? })
}

fn read_ssh(section: &mut Section<'_, '_, '_>) -> Option<SshFiles> {
    section.require(&["key", "known_hosts"]);
    let key = section.file("key", "id_ed25519");
    let known_hosts = section.file("known_hosts", "known_hosts");
    Some(SshFiles { key: key?, known_hosts: known_hosts? })
}

/// The secret, if a header can carry it; otherwise records a problem.
fn valid_header_value(
    section: &mut Section<'_, '_, '_>,
    key: &'static str,
    secret: SecretString,
) -> Option<SecretString> {
    let is_printable = secret.expose_secret().bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
    if is_printable && HeaderValue::from_str(secret.expose_secret()).is_ok() {
        return Some(secret);
    }
    section.problem(key, "the secret has characters that a header cannot carry, such as a line break".to_owned());
    None
}

fn header_name(value: &str) -> Result<String, String> {
    let name = HeaderName::from_bytes(value.as_bytes())
        .map_err(|_| "this is not a header name (not shown: it may hold the secret)".to_owned())?;
    if RESERVED_HEADERS.contains(&name.as_str()) {
        return Err(format!("the header {name} belongs to the connection and cannot carry a credential"));
    }
    Ok(name.as_str().to_owned())
}

/// The size limit of a secret file. A larger file is a mistake.
const SECRET_LIMIT_BYTES: u64 = 64 * 1024;

impl Section<'_, '_, '_> {
    /// Reads a secret from the environment variable or the file that the table names, without final line breaks.
    pub(super) fn secret(&mut self, key: &'static str, example: &str) -> Option<SecretString> {
        if let DeValue::String(_) = self.value_of(key, format!("{key} = {example}"))?.get_ref() {
            self.problem(
                key,
                format!(
                    "a secret is named here, never written: put it into an environment variable or a file, and write \
                         for example {key} = {example}"
                ),
            );
            return None;
        }
        self.optional_table(key, example, |section| section.secret_source(example, key)).flatten()
    }

    /// Reads a secret from the environment variable or the file that this table names, without final line breaks. `key` is that
    /// of the table.
    pub(super) fn secret_source(&mut self, example: &str, key: &str) -> Option<SecretString> {
        let variable = self.text("env", "REGISTRY_TOKEN", variable_name);
        let file = self.path("file", "/run/secrets/registry-token");
        self.at_most_one(&["env", "file"]);
        if !self.has("env") && !self.has("file") {
            self.problem("", format!("names no secret; write for example {key} = {example}"));
        }
        let (key, source, secret) = match (variable, file) {
            (Some(name), _) => {
                let secret = self.variable(&name).ok_or_else(|| "is not set, or is not text".to_owned());
                ("env", format!("the environment variable {name}"), secret)
            }
            (None, Some(path)) => {
                let secret = os::text(&path, SECRET_LIMIT_BYTES);
                let path_text = path.display().to_string();
                if secret.is_ok() && os::others_may_read(&path) {
                    let text = format!("every user of this machine may read {path_text}; chmod o-rwx {path_text}");
                    self.warning("file", text);
                }
                ("file", path_text, secret.map_err(|cause| format!("cannot be read: {cause}")))
            }
            (None, None) => return None,
        };
        let secret = secret.and_then(|mut secret| {
            secret.truncate(secret.trim_end_matches(['\r', '\n']).len());
            if secret.is_empty() { Err("is empty".to_owned()) } else { Ok(SecretString::from(secret)) }
        });
        secret.map_err(|problem| self.problem(key, format!("{source} {problem}"))).ok()
    }
}

fn variable_name(value: &str) -> Result<String, String> {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if value.is_empty() || !value.bytes().all(is_valid) {
        // Not shown: the value may be the secret itself.
        return Err("this is not the name of an environment variable".to_owned());
    }
    Ok(value.to_owned())
}
