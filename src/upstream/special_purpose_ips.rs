//! Classifies addresses outside the public internet (the IANA special-purpose registries, RFC 6890), in every written
//! form.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

/// Class of a special-purpose address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpecialPurpose {
    /// "This host": `0.0.0.0/8`, `::`.
    Unspecified,
    /// Loopback: this machine.
    Loopback,
    /// Private networks, including the shared address space of carriers.
    Private,
    /// The local link only; cloud metadata services are here.
    LinkLocal,
    /// Multicast groups.
    Multicast,
    /// Reserved for documentation, benchmarks and protocols, or unassigned.
    Reserved,
}

impl SpecialPurpose {
    /// All classes.
    pub(super) const ALL: [Self; 6] =
        [Self::Unspecified, Self::Loopback, Self::Private, Self::LinkLocal, Self::Multicast, Self::Reserved];

    /// The metrics label. Messages use the same word.
    pub fn metrics_label(self) -> &'static str {
        match self {
            Self::Unspecified => "unspecified",
            Self::Loopback => "loopback",
            Self::Private => "private",
            Self::LinkLocal => "link-local",
            Self::Multicast => "multicast",
            Self::Reserved => "reserved",
        }
    }
}

impl fmt::Display for SpecialPurpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let article = if *self == Self::Unspecified { "an" } else { "a" };
        write!(f, "{article} {} address", self.metrics_label())
    }
}

const fn v4(a: u8, b: u8, c: u8, d: u8, length: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), length)
}

const fn v6(a: u16, b: u16, c: u16, length: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0), length)
}

const SPECIAL_V4: [(Ipv4Net, SpecialPurpose); 16] = [
    (v4(0, 0, 0, 0, 8), SpecialPurpose::Unspecified),
    (v4(10, 0, 0, 0, 8), SpecialPurpose::Private),
    (v4(100, 64, 0, 0, 10), SpecialPurpose::Private),
    (v4(127, 0, 0, 0, 8), SpecialPurpose::Loopback),
    (v4(169, 254, 0, 0, 16), SpecialPurpose::LinkLocal),
    (v4(172, 16, 0, 0, 12), SpecialPurpose::Private),
    (v4(192, 0, 0, 0, 24), SpecialPurpose::Reserved),
    (v4(192, 0, 2, 0, 24), SpecialPurpose::Reserved),
    (v4(192, 88, 99, 0, 24), SpecialPurpose::Reserved),
    (v4(192, 168, 0, 0, 16), SpecialPurpose::Private),
    (v4(198, 18, 0, 0, 15), SpecialPurpose::Reserved),
    (v4(198, 51, 100, 0, 24), SpecialPurpose::Reserved),
    (v4(203, 0, 113, 0, 24), SpecialPurpose::Reserved),
    (v4(224, 0, 0, 0, 4), SpecialPurpose::Multicast),
    (v4(240, 0, 0, 0, 4), SpecialPurpose::Reserved),
    (v4(255, 255, 255, 255, 32), SpecialPurpose::Reserved),
];

/// All public IPv6 addresses are in this range.
const GLOBAL_UNICAST: Ipv6Net = v6(0x2000, 0, 0, 3);

const SPECIAL_V6: [(Ipv6Net, SpecialPurpose); 8] = [
    (Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 128), SpecialPurpose::Unspecified),
    (Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128), SpecialPurpose::Loopback),
    (v6(0xfc00, 0, 0, 7), SpecialPurpose::Private),
    (v6(0xfec0, 0, 0, 10), SpecialPurpose::Private),
    // RFC 8215: each network decides which IPv4 addresses these translate to.
    (v6(0x64, 0xff9b, 1, 48), SpecialPurpose::Private),
    (v6(0xfe80, 0, 0, 10), SpecialPurpose::LinkLocal),
    (v6(0xff00, 0, 0, 8), SpecialPurpose::Multicast),
    // Protocol assignments, including Teredo, which embeds IPv4 addresses.
    (v6(0x2001, 0, 0, 23), SpecialPurpose::Reserved),
];

const DOCUMENTATION_V6: [Ipv6Net; 2] = [v6(0x2001, 0xdb8, 0, 32), v6(0x3fff, 0, 0, 20)];

/// The class of an address; `None` for a public one.
pub fn class_of(address: IpAddr) -> Option<SpecialPurpose> {
    match address {
        IpAddr::V4(address) => class_of_v4(address),
        IpAddr::V6(address) => class_of_v6(address),
    }
}

fn class_of_v4(address: Ipv4Addr) -> Option<SpecialPurpose> {
    SPECIAL_V4.iter().find(|(network, _)| network.contains(&address)).map(|(_, class)| *class)
}

fn class_of_v6(address: Ipv6Addr) -> Option<SpecialPurpose> {
    if let Some((_, class)) = SPECIAL_V6.iter().find(|(network, _)| network.contains(&address)) {
        return Some(*class);
    }
    if let Some(inner) = embedded_v4(address) {
        return class_of_v4(inner);
    }
    let is_public = GLOBAL_UNICAST.contains(&address) && !DOCUMENTATION_V6.iter().any(|net| net.contains(&address));
    (!is_public).then_some(SpecialPurpose::Reserved)
}

/// The IPv4 address embedded in an IPv6 address: mapped, translated (NAT64, RFC 6052) or tunnelled (6to4).
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let joined = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    match (a, b, c, d, e, f) {
        (0, 0, 0, 0, 0, 0xffff | 0) | (0, 0, 0, 0, 0xffff, 0) | (0x64, 0xff9b, 0, 0, 0, 0) => Some(joined(g, h)),
        (0x2002, ..) => Some(joined(b, c)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Covers literal, mapped, translated and tunnelled forms of every class (DESIGN, promise 7).
    #[test]
    fn every_special_purpose_address_has_its_class() {
        for (address, class) in [
            ("0.0.0.0", SpecialPurpose::Unspecified),
            ("0.1.2.3", SpecialPurpose::Unspecified),
            ("::", SpecialPurpose::Unspecified),
            ("127.0.0.1", SpecialPurpose::Loopback),
            ("127.255.255.254", SpecialPurpose::Loopback),
            ("::1", SpecialPurpose::Loopback),
            ("::ffff:127.0.0.1", SpecialPurpose::Loopback),
            ("::127.0.0.1", SpecialPurpose::Loopback),
            ("::ffff:0:127.0.0.1", SpecialPurpose::Loopback),
            ("64:ff9b::127.0.0.1", SpecialPurpose::Loopback),
            ("2002:7f00:1::", SpecialPurpose::Loopback),
            ("10.0.0.1", SpecialPurpose::Private),
            ("172.16.0.1", SpecialPurpose::Private),
            ("172.31.255.255", SpecialPurpose::Private),
            ("192.168.1.1", SpecialPurpose::Private),
            ("100.64.0.1", SpecialPurpose::Private),
            ("::ffff:10.0.0.1", SpecialPurpose::Private),
            ("64:ff9b::192.168.0.1", SpecialPurpose::Private),
            ("64:ff9b:1::8.8.8.8", SpecialPurpose::Private),
            ("2002:a00:1::1", SpecialPurpose::Private),
            ("fd00::1", SpecialPurpose::Private),
            ("fc00::1", SpecialPurpose::Private),
            ("fec0::1", SpecialPurpose::Private),
            ("169.254.169.254", SpecialPurpose::LinkLocal),
            ("::ffff:169.254.169.254", SpecialPurpose::LinkLocal),
            ("64:ff9b::a9fe:a9fe", SpecialPurpose::LinkLocal),
            ("fe80::1", SpecialPurpose::LinkLocal),
            ("febf::1", SpecialPurpose::LinkLocal),
            ("224.0.0.1", SpecialPurpose::Multicast),
            ("239.255.255.255", SpecialPurpose::Multicast),
            ("ff02::1", SpecialPurpose::Multicast),
            ("192.0.0.1", SpecialPurpose::Reserved),
            ("192.0.2.1", SpecialPurpose::Reserved),
            ("198.18.0.1", SpecialPurpose::Reserved),
            ("198.51.100.1", SpecialPurpose::Reserved),
            ("203.0.113.1", SpecialPurpose::Reserved),
            ("240.0.0.1", SpecialPurpose::Reserved),
            ("255.255.255.255", SpecialPurpose::Reserved),
            ("2001:db8::1", SpecialPurpose::Reserved),
            ("3fff::1", SpecialPurpose::Reserved),
            ("2001::1", SpecialPurpose::Reserved),
            ("100::1", SpecialPurpose::Reserved),
            ("5f00::1", SpecialPurpose::Reserved),
            ("4000::1", SpecialPurpose::Reserved),
        ] {
            assert_eq!(class_of(address.parse().unwrap()), Some(class), "{address}");
        }
    }

    #[test]
    fn public_addresses_have_no_class_in_any_written_form() {
        for address in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "140.82.121.4",
            "2606:4700:4700::1111",
            "2a00:1450:4001:80e::200e",
            "::ffff:140.82.121.4",
            "64:ff9b::140.82.121.4",
            "2002:8c52:7904::1",
        ] {
            assert_eq!(class_of(address.parse().unwrap()), None, "{address}");
        }
    }

    proptest! {
        #[test]
        fn an_embedding_form_is_classified_as_its_embedded_address(bits: u32) {
            let inner = Ipv4Addr::from(bits);
            let [high, low] = [(bits >> 16) as u16, bits as u16];
            for form in [
                inner.to_ipv6_mapped(),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
            ] {
                prop_assert_eq!(class_of(form.into()), class_of(inner.into()), "{}", form);
            }
        }
    }
}
