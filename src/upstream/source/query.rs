//! Parameters that are for go-getter, and not for whoever is asked.

use url::{Url, form_urlencoded};

/// What was taken off a URL.
pub(super) struct TakenParameters(Vec<(String, String)>);

impl TakenParameters {
    /// The first value of a key, as Go's `Query().Get` has it.
    pub(super) fn first(&self, key: &str) -> Option<String> {
        self.0.iter().find(|(found, _)| found == key).map(|(_, value)| value.clone())
    }
}

/// Takes `keys` off the query. What stays is left byte for byte as it was: it may be signed.
pub(super) fn take(url: &mut Url, keys: &[&str]) -> TakenParameters {
    let mut taken = Vec::new();
    let mut kept = Vec::new();
    for pair in url.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        match form_urlencoded::parse(pair.as_bytes()).next() {
            Some((key, value)) if keys.contains(&key.as_ref()) => taken.push((key.into_owned(), value.into_owned())),
            _ => kept.push(pair.to_owned()),
        }
    }
    if !taken.is_empty() {
        url.set_query(Some(kept.join("&")).as_deref().filter(|query| !query.is_empty()));
    }
    TakenParameters(taken)
}
