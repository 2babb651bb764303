//! go-getter's short forms of addresses, without a scheme.

use super::BadSource;

/// Expands a short form to its getter and full address; `None` if it is not one.
pub(super) fn expand(text: &str) -> Result<Option<(&'static str, String)>, BadSource> {
    let (path, query) = match text.split_once('?') {
        Some((path, query)) => (path, format!("?{query}")),
        None => (text, String::new()),
    };
    let full = if ["github.com/", "gitlab.com/"].iter().any(|host| path.starts_with(host)) {
        let mut names = path.splitn(4, '/');
        let (Some(host), Some(owner), Some(repository)) = (names.next(), names.next(), names.next()) else {
            return Err(BadSource::new("is short for a repository, but is not HOST/OWNER/REPOSITORY"));
        };
        let below = names.next().map_or_else(String::new, |below| format!("//{below}"));
        format!("https://{host}/{owner}/{}{below}{query}", with_git(repository))
    } else if path.starts_with("bitbucket.org/") {
        format!("https://{}{query}", with_git(path))
    } else if let Some((host, path)) = path.strip_prefix("git@").and_then(|rest| rest.split_once(':')) {
        format!("ssh://git@{host}/{}{query}", path.strip_prefix('/').unwrap_or(path))
    } else {
        return Ok(None);
    };
    Ok(Some(("git", full)))
}

fn with_git(repository: &str) -> String {
    if repository.ends_with(".git") { repository.to_owned() } else { format!("{repository}.git") }
}

/// A label for people, by a guess at an address without a scheme.
pub(super) fn suggestion(text: &str) -> &'static str {
    let host = text.split('/').next().unwrap_or_default();
    let is_name =
        |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    let names: Vec<&str> = text.split('/').collect();
    match host {
        "www.googleapis.com" => "a Google Cloud Storage bucket",
        host if host.ends_with(".amazonaws.com") => "an Amazon S3 bucket",
        _ if text.starts_with('.') || text.contains('\\') => "a path on the client's own machine",
        host if names.len() == 4 && host.contains('.') && names[1..].iter().all(|name| is_name(name)) => {
            "a registry address"
        }
        _ if names.len() == 3 && names.iter().all(|name| is_name(name)) => "a registry address",
        _ => "a kind of source that it does not know",
    }
}
