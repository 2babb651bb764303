//! Removes the query parameters that are for go-getter, because they must not be sent.

use url::{Url, form_urlencoded};

/// The removed parameters.
pub(super) struct TakenParameters(Vec<(String, String)>);

impl TakenParameters {
    /// The first value of a key, like Go's `Query().Get`.
    pub(super) fn first(&self, key: &str) -> Option<String> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone())
    }
}

/// Removes `keys` from the query. All other parameters stay byte for byte, because they may be signed.
pub(super) fn take(url: &mut Url, keys: &[&str]) -> TakenParameters {
    let mut taken = Vec::new();
    let mut remaining = Vec::new();
    for pair in url.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        match form_urlencoded::parse(pair.as_bytes()).next() {
            Some((key, value)) if keys.contains(&key.as_ref()) => taken.push((key.into_owned(), value.into_owned())),
            _ => remaining.push(pair.to_owned()),
        }
    }
    if !taken.is_empty() {
        url.set_query(Some(remaining.join("&")).as_deref().filter(|query| !query.is_empty()));
    }
    TakenParameters(taken)
}
