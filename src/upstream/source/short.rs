//! Expands go-getter's short forms of addresses, which have no scheme.

use super::BadSource;

/// Expands a short form to its getter and full address; `None` for text that is no short form.
pub(super) fn expand(text: &str) -> Result<Option<(&'static str, String)>, BadSource> {
    let (path, query) = match text.split_once('?') {
        Some((path, query)) => (path, format!("?{query}")),
        None => (text, String::new()),
    };
    let expanded = if ["github.com/", "gitlab.com/"].iter().any(|host| path.starts_with(host)) {
        let mut names = path.splitn(4, '/');
        let (Some(host), Some(owner), Some(repository)) = (names.next(), names.next(), names.next()) else {
            return Err(BadSource::new("is short for a repository, but is not HOST/OWNER/REPOSITORY"));
        };
        let subdir = names.next().map_or_else(String::new, |subdir| format!("//{subdir}"));
        format!("https://{host}/{owner}/{}{subdir}{query}", with_git_suffix(repository))
    } else if path.starts_with("bitbucket.org/") {
        format!("https://{}{query}", with_git_suffix(path))
    } else if let Some((host, path)) = path.strip_prefix("git@").and_then(|server| server.split_once(':')) {
        format!("ssh://git@{host}/{}{query}", path.strip_prefix('/').unwrap_or(path))
    } else {
        return Ok(None);
    };
    Ok(Some(("git", expanded)))
}

fn with_git_suffix(repository: &str) -> String {
    if repository.ends_with(".git") { repository.to_owned() } else { format!("{repository}.git") }
}

/// Guesses what an address without a scheme is, as a label for people.
pub(super) fn guess_label(text: &str) -> &'static str {
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
