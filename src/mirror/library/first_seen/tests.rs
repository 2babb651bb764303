//! Property tests of the judgement: a registry publishes arbitrary sets in any order.

use proptest::prelude::*;

use super::*;
use crate::address::{Hostname, Name, ProviderAddress, Version};

/// The records of one provider, as the store keeps them.
#[derive(Default)]
struct StoredRecords {
    versions: BTreeMap<u8, VersionHistory>,
    keys: Option<SigningKeyLog>,
}

/// A set that a registry may publish.
#[derive(Debug, Clone)]
struct PublishedSet {
    version: u8,
    platform: u8,
    key: Option<u8>,
    name: u8,
    content: u8,
    also_lists: Vec<(u8, u8)>,
}

fn content(number: u8) -> Digest {
    Digest::of(&[number])
}

fn platform(number: u8) -> Platform {
    Platform::parse(["linux_amd64", "darwin_arm64"][usize::from(number)]).unwrap()
}

fn file(name: u8) -> &'static str {
    ["p_1_linux_amd64.zip", "p_1_darwin_arm64.zip", "P_1_LINUX_AMD64.ZIP", "any.zip", "other.bin"][usize::from(name)]
}

impl StoredRecords {
    fn apply(&mut self, set: &PublishedSet, judge: impl FnOnce(HistoryRecords, &Observation<'_>) -> HistoryUpdate) {
        let provider = ProviderAddress {
            host: Hostname::parse("registry.example").unwrap(),
            namespace: Name::parse("acme").unwrap(),
            type_: Name::parse("p").unwrap(),
        };
        let version = Version::parse(&format!("{}.0.0", set.version)).unwrap();
        let package = Package { provider, version, platform: platform(set.platform) };
        let mut lines: BTreeMap<&str, Digest> =
            set.also_lists.iter().map(|(name, digest)| (file(*name), content(*digest))).collect();
        lines.insert(file(set.name), content(set.content));
        let text: String = lines.iter().map(|(name, digest)| format!("{digest}  {name}\n")).collect();
        let sums = Checksums::parse(text.as_bytes()).unwrap();
        let signer = set.key.map_or(Signer::Unsigned, |key| Signer::Key(format!("K{key}")));
        let archive = content(set.content);
        let seen = Observation { package: &package, archive, sums: &sums, signer, observed: Timestamp(1) };
        let readable = |record: Option<VersionHistory>| record.map_or(Recoverable::Absent, Recoverable::Available);
        let history = HistoryRecords {
            version: readable(self.versions.get(&set.version).cloned()),
            keys: self.keys.clone().map_or(Recoverable::Absent, Recoverable::Available),
        };
        let HistoryUpdate { version, keys } = judge(history, &seen);
        self.versions.extend(version.map(|version| (set.version, version)));
        self.keys = keys.or(self.keys.take());
    }

    fn decide(&mut self, set: &PublishedSet) -> Judgement {
        let mut last_judgement = None;
        self.apply(set, |history, seen| {
            let (judgement, to_write) = history.decide(seen);
            last_judgement = Some(judgement);
            to_write
        });
        last_judgement.unwrap()
    }
}

fn set(version: u8, key: u8, content: u8) -> PublishedSet {
    PublishedSet { version, platform: 0, key: Some(key), name: 0, content, also_lists: vec![] }
}

fn is_refused(judgement: &Judgement) -> bool {
    matches!(judgement.verdict, HistoryVerdict::Refused(_))
}

fn published() -> impl Strategy<Value = PublishedSet> {
    let lists = prop::collection::vec((0..5_u8, 0..4_u8), 0..3);
    let key = prop_oneof![4 => (0..3_u8).prop_map(Some), 1 => Just(None)];
    (1..4_u8, 0..2_u8, key, 0..5_u8, 0..4_u8, lists).prop_map(|(version, platform, key, name, content, also_lists)| {
        PublishedSet { version, platform, key, name, content, also_lists }
    })
}

proptest! {
    /// Promise 14: for any sets in any order, a platform of a version changes its bytes only if the signer signed the
    /// version first or was in the provider's log before it.
    #[test]
    fn no_order_of_sets_lets_an_unknown_key_change_bytes(sets in prop::collection::vec(published(), 1..24)) {
        let mut records = StoredRecords::default();
        let mut known_keys: Vec<u8> = Vec::new();
        let mut first: BTreeMap<u8, (Option<u8>, Vec<u8>)> = BTreeMap::new();
        let mut contents: BTreeMap<(u8, Platform), BTreeSet<u8>> = BTreeMap::new();
        for set in sets {
            let judgement = records.decide(&set);
            prop_assert_eq!(
                judgement.known_keys_if_signer_is_new.is_some(),
                set.key.is_some_and(|key| !known_keys.is_empty() && !known_keys.contains(&key))
            );
            if is_refused(&judgement) {
                continue;
            }
            let is_first = !first.contains_key(&set.version);
            let (signer, before) = first.entry(set.version).or_insert_with(|| (set.key, known_keys.clone()));
            let may_vouch = set.key.is_some() && (*signer == set.key || set.key.is_some_and(|key| before.contains(&key)));
            let mut lines: BTreeMap<u8, u8> = set.also_lists.iter().copied().collect();
            lines.insert(set.name, set.content);
            let digests = lines.into_iter().filter_map(|(name, digest)| Some((platform_in_name(file(name))?, digest)));
            let digests: Vec<(Platform, u8)> = [(platform(set.platform), set.content)].into_iter().chain(digests).collect();
            for (platform, digest) in &digests {
                let had = contents.get(&(set.version, platform.clone()));
                let is_known = had.is_some_and(|had| had.contains(digest));
                let is_new_and_unsigned = had.is_none() && set.key.or(*signer).is_none();
                prop_assert!(is_first || is_known || may_vouch || is_new_and_unsigned, "{:?}", set);
            }
            for (platform, digest) in digests {
                contents.entry((set.version, platform)).or_default().insert(digest);
            }
            if let Some(key) = set.key && !known_keys.contains(&key) {
                known_keys.push(key);
            }
            let was_there_before_any_key = signer.is_none() && before.is_empty();
            let may_be_unsigned = known_keys.is_empty() || was_there_before_any_key;
            prop_assert!(set.key.is_some() || may_be_unsigned, "a signed provider was taken unsigned");
        }
    }

    /// An admitted set is never refused later, and adds no record.
    #[test]
    fn an_admitted_set_is_admitted_again(sets in prop::collection::vec(published(), 1..12)) {
        let mut store = StoredRecords::default();
        for set in sets {
            if is_refused(&store.decide(&set)) {
                continue;
            }
            let records = store.versions[&set.version].records.len();
            let again = store.decide(&set);
            prop_assert_eq!(again.verdict, HistoryVerdict::Consistent);
            prop_assert_eq!(store.versions[&set.version].records.len(), records);
        }
    }
}

#[test]
fn a_version_has_at_most_64_records_and_then_only_accept_adds_one() {
    let mut records = StoredRecords::default();
    for content in 0..64 {
        assert!(!is_refused(&records.decide(&set(1, 0, content))), "{content}");
    }
    assert_eq!(records.decide(&set(1, 0, 64)).verdict, HistoryVerdict::Refused(HistoryRefusal::Full));
    assert!(!is_refused(&records.decide(&set(1, 0, 63))), "what is recorded goes on");
    let added = PublishedSet { platform: 1, name: 1, ..set(1, 0, 0) };
    assert_eq!(
        records.decide(&added).verdict,
        HistoryVerdict::Refused(HistoryRefusal::Full),
        "it would be recorded nowhere"
    );
    records.apply(&set(1, 0, 64), |history, seen| history.accept(seen, AcceptScope::Version).1);
    assert!(!is_refused(&records.decide(&set(1, 0, 64))));
}

#[test]
fn after_a_lost_key_log_a_key_vouches_only_for_versions_it_signed() {
    let mut records = StoredRecords::default();
    for (version, key) in [(1, 0), (2, 1), (3, 0)] {
        records.decide(&set(version, key, version));
    }
    let mut lost = StoredRecords {
        keys: Some(SigningKeyLog::of_versions(&records.versions.values().cloned().collect::<Vec<_>>())),
        ..records
    };
    assert_eq!(
        lost.decide(&set(2, 0, 9)).verdict,
        HistoryVerdict::Refused(HistoryRefusal::ChangedByUntrustedKey {
            first: HistoryChange::OtherBytes { subject: file(0).to_owned(), before: vec![content(2)], now: content(9) },
            of_archive: None,
        })
    );
    assert!(matches!(lost.decide(&set(2, 1, 9)).verdict, HistoryVerdict::Republished(_)));
    assert_eq!(lost.decide(&set(4, 2, 4)).known_keys_if_signer_is_new, Some(vec!["K0".to_owned(), "K1".to_owned()]));
}

#[test]
fn a_version_unsigned_before_any_key_may_stay_but_not_change() {
    let mut records = StoredRecords::default();
    let unsigned = PublishedSet { key: None, ..set(1, 0, 1) };
    for set in [&unsigned, &set(2, 0, 2), &unsigned] {
        assert_eq!(records.decide(set).verdict, HistoryVerdict::Consistent, "{set:?}");
    }
    let darwin = PublishedSet { platform: 1, name: 1, content: 3, ..unsigned.clone() };
    assert_eq!(records.decide(&darwin).verdict, HistoryVerdict::Refused(HistoryRefusal::SignatureLost));
    assert!(is_refused(&records.decide(&PublishedSet { content: 3, ..unsigned })));
}

#[test]
fn an_unsigned_registry_may_publish_one_sums_file_per_platform() {
    let mut records = StoredRecords::default();
    let linux = PublishedSet { key: None, ..set(1, 0, 1) };
    let darwin = PublishedSet { platform: 1, name: 1, content: 2, ..linux.clone() };
    for set in [&linux, &darwin, &linux, &darwin] {
        assert_eq!(records.decide(set).verdict, HistoryVerdict::Consistent, "{set:?}");
    }
    assert!(is_refused(&records.decide(&PublishedSet { content: 3, ..darwin })));
}

#[test]
fn the_platform_in_a_file_name_is_read_in_any_case() {
    let platform_of = |name| platform_in_name(name).map(|platform| platform.to_string());
    for name in ["terraform-provider-x_1.0.0_linux_amd64.zip", "X_LINUX_AMD64.ZIP", "a_b_c_linux_amd64.Zip"] {
        assert_eq!(platform_of(name).as_deref(), Some("linux_amd64"), "{name}");
    }
    for name in ["linux_amd64.zip", "x_linux_amd64.tar.gz", "", "_.zip", "x__.zip", "manifest.json"] {
        assert_eq!(platform_of(name), None, "{name}");
    }
}

/// The archive of a platform, and the lines of SHA256SUMS.
type UncheckedSet<'a> = (&'a str, u8, &'a [(&'a str, u8)]);

/// Judges sets of one version whose signatures are not checked, in their order; returns which are refused.
fn refusals_of_unchecked(sets: &[UncheckedSet<'_>]) -> Vec<bool> {
    let mut version = Recoverable::Absent;
    let decide = |(platform, archive, lines): &UncheckedSet<'_>| {
        let provider = ProviderAddress {
            host: Hostname::parse("registry.example").unwrap(),
            namespace: Name::parse("acme").unwrap(),
            type_: Name::parse("p").unwrap(),
        };
        let platform = Platform::parse(platform).unwrap();
        let package = Package { provider, version: Version::parse("1.0.0").unwrap(), platform };
        let text: String = lines.iter().map(|(name, digest)| format!("{}  {name}\n", content(*digest))).collect();
        let sums = Checksums::parse(text.as_bytes()).unwrap();
        let signer = Signer::NotChecked;
        let seen =
            Observation { package: &package, archive: content(*archive), sums: &sums, signer, observed: Timestamp(1) };
        let (judgement, to_write) =
            HistoryRecords { version: version.clone(), keys: Recoverable::Absent }.decide(&seen);
        if let Some(written) = to_write.version {
            version = Recoverable::Available(written);
        }
        is_refused(&judgement)
    };
    sets.iter().map(decide).collect()
}

/// With `verification = "checksum"` and names that are not conventional, a platform that is asked for later gets a file of the
/// first sums.
#[test]
fn a_platform_that_nobody_asked_for_yet_is_bound_to_the_first_sums() {
    let named = [("odd-linux-amd64.zip", 0), ("Odd-Darwin-ARM64-v1.zip", 1)];
    let released = [("p_Linux_x86_64.zip", 0), ("p_macOS_aarch64.zip", 1), ("p_1.0.tar.gz", 8), ("LICENSE", 9)];
    let unnamed = [("a.zip", 0), ("b.zip", 1), ("manifest.json", 9)];
    let bare = [("a", 0), ("b", 1), ("manifest.json", 9)];
    let conventional = [("p_1_linux_amd64.zip", 0), ("p_1.intoto.jsonl", 9)];
    for (lines, rows) in [
        (&named[..], &[(1, false), (0, true), (2, true)][..]),
        (&released, &[(1, false), (0, true), (2, true), (9, true)]),
        // The file of another platform may be for both.
        (&unnamed, &[(1, false), (0, false), (2, true), (9, true)]),
        (&bare, &[(1, false), (0, false), (2, true), (9, true)]),
        // The first sums name nothing but the file of another platform.
        (&named[..1], &[(0, false), (2, false)]),
        (&unnamed[..1], &[(0, false), (2, false)]),
        (&[unnamed[0], unnamed[2]], &[(2, false)]),
        (&conventional, &[(2, false)]),
    ] {
        for (archive, is_refused) in rows {
            let first = ("linux_amd64", 0, lines);
            for evil in [
                "evil.zip",
                "p_1_darwin_arm64.zip",
                "other-darwin-arm64.zip",
                "x_linux_amd64_darwin_arm64.zip",
                "x_darwin_arm64_linux_amd64.zip",
                "x_linux_ppc64.zip",
            ] {
                if evil.ends_with("linux_amd64.zip") && !is_refused {
                    // Such a line changes the file of linux_amd64.
                    continue;
                }
                let added = [lines, &[(evil, 2)]].concat();
                let later = ("darwin_arm64", *archive, if *archive == 2 { &added[..] } else { lines });
                assert_eq!(refusals_of_unchecked(&[first, later]), [false, *is_refused], "{lines:?}: {archive} {evil}");
                // A line that comes between, or the file of a third platform, changes nothing.
                for (platform, content) in [("linux_amd64", 0), ("windows_amd64", 1)] {
                    let between = (platform, content, &added[..]);
                    let refusals = refusals_of_unchecked(&[first, between, later]);
                    assert_eq!((refusals[0], refusals[2]), (false, *is_refused), "{lines:?}: {archive} {evil}");
                }
            }
        }
    }
    // A line that is added honestly stops nobody else.
    let more = [named[0], named[1], ("docs.zip", 7), ("odd-freebsd-amd64.zip", 5)];
    let sets = [("linux_amd64", 0, &more[..3]), ("darwin_arm64", 1, &more[..]), ("linux_amd64", 0, &more[..])];
    assert_eq!(refusals_of_unchecked(&sets), [false, false, false]);
    // One SHA256SUMS for each platform.
    let alone = [("linux_amd64", 0, &[("x.zip", 0)][..]), ("darwin_arm64", 1, &[("y.zip", 1)])];
    assert_eq!(refusals_of_unchecked(&alone), [false, false]);
    // A further platform, where the first sums say which file is whose.
    let windows = [named[0], named[1], ("odd-windows-amd64.zip", 3)];
    let sets = [("linux_amd64", 0, &named[..]), ("windows_amd64", 3, &windows[..])];
    assert_eq!(refusals_of_unchecked(&sets), [false, false]);
}

#[test]
fn names_state_a_platform_by_two_words() {
    for (name, expected) in [
        ("terraform-provider-x_1.0_linux_amd64.zip", Some("linux_amd64")),
        ("plugin-linux-amd64-v1.zip", Some("linux_amd64")),
        ("Plugin.Windows.386.zip", Some("windows_386")),
        ("p_Darwin_x86_64.zip", Some("darwin_amd64")),
        ("p-macOS-aarch64.zip", Some("darwin_arm64")),
        ("p_Darwin_all.zip", None),
        ("my_cool_provider.zip", None),
        ("amd64-linux.zip", None),
        ("linux64.zip", None),
        ("", None),
    ] {
        assert_eq!(stated_platform(name).map(|platform| platform.to_string()).as_deref(), expected, "{name}");
    }
}
