//! The refused requests of the last day, by client and subject. Bounded lists in memory, for people; the audit trail has all of them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;

use super::audit::MAX_TEXT_BYTES;
use super::client_tokens::counted_address;
use super::failures::make_room;
use crate::clock::Timestamp;
use crate::protocol::admin::{RecentRefusal, RefusalKind};

/// The most refusals that are remembered: by rules, and of others; of one address; and the time for which.
const MAX_REFUSALS: usize = 100;
const MAX_REFUSALS_OF_ADDRESS: usize = 20;
const REMEMBERED_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// A client, as far as it is known, and what it was refused. Where nothing was asked for by name, the reason tells them apart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct RefusalKey {
    address: IpAddr,
    name: Option<String>,
    what: String,
}

/// The refusals of the last day, by client and subject. Bounded lists in memory, for people; the audit trail has all of them. Those
/// by rules are apart: strangers cannot push them out.
#[derive(Debug, Default)]
pub(super) struct RecentRefusals {
    by_rules: Mutex<BTreeMap<RefusalKey, RecentRefusal>>,
    others: Mutex<BTreeMap<RefusalKey, RecentRefusal>>,
}

impl RecentRefusals {
    /// Records a refusal of a client at an address.
    pub(super) fn record(&self, address: IpAddr, refusal: RecentRefusal) {
        let what = refusal.subject.clone().unwrap_or_else(|| refusal.reason.clone());
        if what.len() > MAX_TEXT_BYTES {
            return;
        }
        let key = RefusalKey { address: counted_address(address), name: refusal.name.clone(), what };
        let of_kind = if refusal.kind == RefusalKind::Policy { &self.by_rules } else { &self.others };
        let mut refusals = of_kind.lock();
        let last = |refusal: &RecentRefusal| refusal.last;
        if !refusals.contains_key(&key) {
            let of_address = || refusals.iter().filter(|(other, _)| other.address == key.address);
            if of_address().count() >= MAX_REFUSALS_OF_ADDRESS {
                let oldest = of_address().min_by_key(|(_, refusal)| last(refusal)).map(|(key, _)| key.clone());
                oldest.and_then(|oldest| refusals.remove(&oldest));
            }
        }
        make_room(&mut refusals, &key, MAX_REFUSALS, last);
        let before = refusals.get(&key).map(|before| (before.first, before.times));
        let (first, times) = before.map_or((refusal.first, 1), |(first, times)| (first, times.saturating_add(1)));
        refusals.insert(key, RecentRefusal { first, times, ..refusal });
    }

    /// The refusals of the last day: those by rules, then the others, the newest first of each.
    pub(super) fn list(&self, now: Timestamp) -> Vec<RecentRefusal> {
        let listed = [&self.by_rules, &self.others].map(|refusals| {
            let mut refusals = refusals.lock();
            refusals.retain(|_, refusal| now.since(refusal.last) < REMEMBERED_FOR);
            let mut listed: Vec<RecentRefusal> = refusals.values().cloned().collect();
            listed.sort_by_key(|refusal| std::cmp::Reverse(refusal.last));
            listed
        });
        listed.concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(client: u32, last: u64) -> RecentRefusal {
        RecentRefusal {
            kind: RefusalKind::Policy,
            subject: Some("registry.example/acme/evil".to_owned()),
            reason: "denied".to_owned(),
            rules: vec!["acme/*".to_owned()],
            status: 421,
            client: std::net::Ipv4Addr::from(client).to_string(),
            name: None,
            times: 1,
            first: Timestamp(last),
            last: Timestamp(last),
        }
    }

    #[test]
    fn refusals_are_counted_by_client_and_bounded() {
        let refusals = RecentRefusals::default();
        let record = |kind, subject: &str, name: Option<&str>, client: u32, now| {
            let subject = (!subject.is_empty()).then(|| subject.to_owned());
            let address = std::net::Ipv4Addr::from(client).into();
            let name = name.map(str::to_owned);
            refusals.record(address, RecentRefusal { kind, subject, name, ..refusal(client, now) });
        };
        (0..3).for_each(|now| record(RefusalKind::Policy, "acme/evil", Some("net"), 1, now));
        // Another client at the same address.
        record(RefusalKind::Policy, "acme/evil", Some("ci"), 1, 3);
        let listed = refusals.list(Timestamp(5));
        let lines: Vec<_> =
            listed.iter().map(|refusal| (refusal.name.as_deref(), refusal.times, refusal.first.0)).collect();
        assert_eq!(lines, [(Some("ci"), 1, 3), (Some("net"), 3, 0)]);
        // One client has a share, and strangers push out none of the others.
        (0..300).for_each(|number| record(RefusalKind::Policy, &format!("acme/x{number}"), Some("ci"), 2, 10 + number));
        (0..1000).for_each(|client| record(RefusalKind::Token, "", None, client, 10 + u64::from(client)));
        let listed = refusals.list(Timestamp(1010));
        let of = |kind| listed.iter().filter(|refusal| refusal.kind == kind).count();
        assert_eq!((of(RefusalKind::Policy), of(RefusalKind::Token)), (2 + MAX_REFUSALS_OF_ADDRESS, MAX_REFUSALS));
        assert!(listed.iter().any(|refusal| refusal.name.as_deref() == Some("net")));
        assert!(refusals.list(Timestamp(1009 + REMEMBERED_FOR.as_secs())).is_empty());
    }
}
