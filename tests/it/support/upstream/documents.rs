//! The JSON of a registry. Lists and download documents are written by hand, so that a test can have invalid, reordered or
//! unknown fields.

use serde_json::{Value, json};

use super::faults::Fault;
use super::package::{Provider, Release, sha256_hex};
use super::signing::SigningKey;

/// Unknown fields, put first into each object if a test wants them.
const UNKNOWN_FIELDS: &str =
    "\"x-huge\" :\t1e400 ,\r\n  \"x-nested\": {\"deep\" : [ 1 ,{\"er\":null} ]},\"x-text\":\"\\u00e9 \\/\",";

/// The discovery document, with service URLs below `prefix` (empty for relative ones).
pub(super) fn discovery(prefix: &str) -> String {
    json!({
        "providers.v1": format!("{prefix}/v1/providers/"),
        "modules.v1": format!("{prefix}/v1/modules/"),
        "login.v1": {
            "client": "terraform-cli",
            "grant_types": ["authz_code"],
            "authz": format!("{prefix}/oauth/authorization"),
            "token": format!("{prefix}/oauth/token"),
            "ports": [10000, 10010],
        },
    })
    .to_string()
}

/// The version list of one provider.
pub(super) fn versions(releases: &[&Release]) -> String {
    let providers = || releases.iter().map(|release| &release.provider);
    let unknown = unknown_fields(providers().any(|provider| provider.has_unknown_fields));
    let mut entries: Vec<String> = providers().map(version_entry).collect();
    for invalid in providers().flat_map(|provider| &provider.invalid_versions) {
        entries.push(json!({"version": invalid, "protocols": ["5.0"], "platforms": []}).to_string());
    }
    let warnings: Vec<&String> = providers().flat_map(|provider| &provider.warnings).collect();
    let warnings = if warnings.is_empty() { Value::Null } else { json!(warnings) };
    format!("{{{unknown}\"versions\":[{}],\"warnings\":{warnings}}}", entries.join(","))
}

fn version_entry(provider: &Provider) -> String {
    let unknown = unknown_fields(provider.has_unknown_fields);
    let platforms: Vec<String> = provider
        .platforms
        .iter()
        .map(|platform| {
            let (os, arch) = split_platform(platform);
            format!("{{{unknown}\"os\":{},\"arch\":{}}}", json!(os), json!(arch))
        })
        .collect();
    format!(
        "{{{unknown}\"version\":{},\"protocols\":{},\"platforms\":[{}]}}",
        json!(provider.version),
        json!(provider.protocols),
        platforms.join(",")
    )
}

/// The download document of one platform; `url` makes a URL from a file name.
pub(super) fn download(
    release: &Release,
    platform: &str,
    url: impl Fn(&str) -> String,
    faults: &[Fault],
) -> Option<String> {
    let archive = release.archives.get(platform)?;
    let provider = &release.provider;
    let unknown = unknown_fields(provider.has_unknown_fields);
    let (os, arch) = split_platform(platform);
    let shasum = match faults.iter().any(|fault| matches!(fault, Fault::WrongShasum)) {
        true => sha256_hex(b"something else"),
        false => archive.sha256.clone(),
    };
    let packages = match provider.has_packages {
        true => format!("\"packages\":{},", packages(release)),
        false => String::new(),
    };
    Some(format!(
        "{{{unknown}{packages}\"protocols\":{},\"os\":{},\"arch\":{},\"filename\":{},\"download_url\":{},\
         \"shasums_url\":{},\"shasums_signature_url\":{},\"shasum\":{},\
         \"signing_keys\":{{{unknown}\"gpg_public_keys\":[{}]}}}}",
        json!(provider.protocols),
        json!(os),
        json!(arch),
        json!(archive.filename),
        json!(url(&archive.filename)),
        json!(url(&release.sums_name())),
        json!(url(&format!("{}.sig", release.sums_name()))),
        json!(shasum),
        keys(provider, faults).join(","),
    ))
}

fn keys(provider: &Provider, faults: &[Fault]) -> Vec<String> {
    if faults.iter().any(|fault| matches!(fault, Fault::NoKeys)) {
        return Vec::new();
    }
    let is_unparsable = faults.iter().any(|fault| matches!(fault, Fault::UnparsableKey));
    let unknown = unknown_fields(provider.has_unknown_fields);
    let key = |key: &SigningKey| {
        let armor = match is_unparsable {
            true => "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nbm90IGEga2V5\n-----END PGP PUBLIC KEY BLOCK-----",
            false => key.armored(),
        };
        format!(
            "{{{unknown}\"key_id\":{},\"ascii_armor\":{},\"trust_signature\":\"\",\"source\":\"Acme\",\"source_url\":null}}",
            json!(key.id()),
            json!(armor)
        )
    };
    match &provider.listed_keys {
        Some(keys) => keys.iter().map(key).collect(),
        None => vec![key(&provider.signing_key)],
    }
}

/// The `packages` object that OpenTofu 1.12 reads: every platform's hashes and size.
fn packages(release: &Release) -> Value {
    let packages = release.archives.iter().map(|(platform, archive)| {
        let hashes = [format!("zh:{}", archive.sha256)];
        (platform.clone(), json!({"hashes": hashes, "package_size": archive.bytes.len()}))
    });
    Value::Object(packages.collect())
}

fn unknown_fields(wanted: bool) -> &'static str {
    if wanted { UNKNOWN_FIELDS } else { "" }
}

fn split_platform(platform: &str) -> (&str, &str) {
    platform.split_once('_').expect("a platform is written OS_ARCH")
}
