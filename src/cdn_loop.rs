//! The CDN-Loop header (RFC 8586), which lists the proxies that a request has passed. It ends request loops.

use derive_more::Display;

const CDN_ID: &str = "larder";
const MAX_LARDERS: usize = 4;
const MAX_HEADER_BYTES: usize = 4096;

/// This process's own entry: `larder;id=RANDOM`, new at each start.
#[derive(Debug, Display, Clone)]
pub struct OwnEntry(String);

impl OwnEntry {
    /// Makes a new entry.
    ///
    /// # Errors
    /// The system returns no random bytes.
    pub fn random() -> Result<Self, aws_lc_rs::error::Unspecified> {
        let mut random = [0u8; 8];
        aws_lc_rs::rand::fill(&mut random)?;
        Ok(Self(format!("{CDN_ID};id={}", hex::encode(random))))
    }
}

/// The CDN-Loop list of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CdnLoop(String);

impl CdnLoop {
    /// Joins the values of the CDN-Loop headers of a request, as RFC 9110, section 5.3, joins lists.
    pub fn received<'a>(values: impl Iterator<Item = &'a str>) -> Self {
        Self(values.collect::<Vec<_>>().join(", "))
    }

    fn entries(&self) -> impl Iterator<Item = &str> {
        self.0.split(',').map(str::trim).filter(|entry| !entry.is_empty())
    }

    /// The entries that larders have added.
    fn larder_entries(&self) -> impl Iterator<Item = &str> {
        self.entries().filter(|entry| entry.split(';').next().is_some_and(|name| name.trim() == CDN_ID))
    }

    /// Returns true for an empty list: the request came from a client, not from a proxy.
    pub fn is_empty(&self) -> bool {
        self.entries().next().is_none()
    }

    /// Returns true if another larder forwarded the request.
    pub fn names_a_larder(&self) -> bool {
        self.larder_entries().next().is_some()
    }

    /// Returns true if the request has passed this larder before, or has passed too many larders.
    pub fn is_a_loop(&self, own: &OwnEntry) -> bool {
        !self.0.is_empty()
            && (self.0.len() > MAX_HEADER_BYTES
                || self.larder_entries().count() > MAX_LARDERS
                || self.larder_entries().any(|entry| entry == own.0))
    }

    /// The list to send upstream: the received list with this larder's own entry at its end.
    pub fn with(&self, own: &OwnEntry) -> String {
        if self.0.is_empty() { own.0.clone() } else { format!("{}, {}", self.0, own.0) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_loop_is_detected_by_the_own_entry_or_by_the_number_of_larders() {
        let own = OwnEntry::random().unwrap();
        let received = |header: &str| CdnLoop::received([header].into_iter());
        assert!(!received("").is_a_loop(&own));
        assert!(!received("larder;id=1, fastly, larder;id=2").is_a_loop(&own));
        assert!(received("fastly").with(&own).ends_with(&own.to_string()));
        assert!(CdnLoop::received([received("fastly").with(&own).as_str()].into_iter()).is_a_loop(&own));
        assert!(received("larder, larder;id=2, larder;id=3, larder, larder").is_a_loop(&own));
        assert!(received("larder;id=1").names_a_larder());
        assert!(!received("notlarder;id=1, larder2").names_a_larder());
        assert!(received("").is_empty() && received(" , ").is_empty() && !received("fastly").is_empty());
    }

    proptest! {
        /// The own entry is recognised among any others, and a fifth larder is too many (promise 7).
        #[test]
        fn a_list_that_this_larder_sent_is_a_loop_when_it_returns(values in prop::collection::vec("[ -~]{0,30}|(larder;id=[0-9]?[ ,;]*){1,3}", 0..4)) {
            let own = OwnEntry::random().unwrap();
            let mut list = CdnLoop::received(values.iter().map(String::as_str));
            for _ in 0..=MAX_LARDERS {
                let sent = list.with(&own);
                prop_assert!(sent.starts_with(&values.join(", ")) && sent.ends_with(&own.to_string()));
                list = CdnLoop::received([sent.as_str()].into_iter());
                prop_assert!(list.names_a_larder() && list.is_a_loop(&own), "{}", sent);
            }
            prop_assert!(list.is_a_loop(&OwnEntry::random().unwrap()));
        }
    }
}
