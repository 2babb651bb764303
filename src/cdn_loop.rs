//! The CDN-Loop header (RFC 8586): which proxies a request has been through, so that a ring of them ends.

use std::fmt;

const OUR_NAME: &str = "larder";
const MAX_LARDERS: usize = 4;
const LONGEST: usize = 4096;

/// This process's own entry: `larder;id=RANDOM`, new at each start.
#[derive(Debug, Clone)]
pub struct OwnEntry(String);

impl OwnEntry {
    /// Makes a new entry.
    ///
    /// # Errors
    /// Where the system gives no random bytes.
    pub fn random() -> Result<Self, aws_lc_rs::error::Unspecified> {
        let mut random = [0u8; 8];
        aws_lc_rs::rand::fill(&mut random)?;
        Ok(Self(format!("{OUR_NAME};id={}", hex::encode(random))))
    }
}

impl fmt::Display for OwnEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The CDN-Loop list of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CdnLoop(String);

impl CdnLoop {
    /// Joins the values of the CDN-Loop headers of a request, as RFC 9110 5.3 joins lists.
    pub fn received<'a>(values: impl Iterator<Item = &'a str>) -> Self {
        Self(values.collect::<Vec<_>>().join(", "))
    }

    fn entries(&self) -> impl Iterator<Item = &str> {
        self.0.split(',').map(str::trim).filter(|entry| !entry.is_empty())
    }

    fn larders(&self) -> impl Iterator<Item = &str> {
        self.entries().filter(|entry| entry.split(';').next().is_some_and(|name| name.trim() == OUR_NAME))
    }

    /// Returns true for an empty list: the client asked larder directly.
    pub fn is_empty(&self) -> bool {
        self.entries().next().is_none()
    }

    /// Returns true if another larder forwarded the request.
    pub fn names_a_larder(&self) -> bool {
        self.larders().next().is_some()
    }

    /// Returns true if the request has passed here before, or through too many larders.
    pub fn is_a_loop(&self, own: &OwnEntry) -> bool {
        self.0.len() > LONGEST || self.larders().count() > MAX_LARDERS || self.larders().any(|entry| entry == own.0)
    }

    /// The list to send on: the one received, and our own entry at its end.
    pub fn with(&self, own: &OwnEntry) -> String {
        if self.0.is_empty() { own.0.clone() } else { format!("{}, {}", self.0, own.0) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_ring_is_seen_by_our_own_entry_or_by_its_length() {
        let own = OwnEntry::random().unwrap();
        let through = |header: &str| CdnLoop::received([header].into_iter());
        assert!(!through("").is_a_loop(&own));
        assert!(!through("larder;id=1, fastly, larder;id=2").is_a_loop(&own));
        assert!(through("fastly").with(&own).ends_with(&own.to_string()));
        assert!(CdnLoop::received([through("fastly").with(&own).as_str()].into_iter()).is_a_loop(&own));
        assert!(through("larder, larder;id=2, larder;id=3, larder, larder").is_a_loop(&own));
        assert!(through("larder;id=1").names_a_larder());
        assert!(!through("notlarder;id=1, larder2").names_a_larder());
        assert!(through("").is_empty() && through(" , ").is_empty() && !through("fastly").is_empty());
    }

    proptest! {
        /// DESIGN, promise 7: our own entry is recognised among any others, and a fifth larder is too many.
        #[test]
        fn what_is_sent_on_is_known_again(values in prop::collection::vec("[ -~]{0,30}|(larder;id=[0-9]?[ ,;]*){1,3}", 0..4)) {
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
