//! JSON as the clients read it. They decode lists and documents of registries with `json.Decoder`: the first value counts and
//! bytes after it do not, bytes that are not UTF-8 become U+FFFD, members match in any case, and the last of two counts.
//! Discovery they read with `json.Unmarshal` into a map, which is as strict about what follows as larder's parser, and
//! matches names exactly (Go's encoding/json; compared with it in `tests/fixtures/go-json.tsv`).

use std::ops::Deref;

use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::providers::RawObject;
use crate::json_members::Members;

/// The members of the object that a body begins with. Those that clients read, `read_members`, have these names whatever their
/// case was, and occur once.
///
/// # Errors
/// The body does not begin with a JSON object.
pub(super) fn object(body: &[u8], read_members: &[&str]) -> serde_json::Result<RawObject> {
    members(&String::from_utf8_lossy(body), read_members)
}

/// The members of the object that a text begins with: see [`object`].
///
/// # Errors
/// The text does not begin with a JSON object.
pub(super) fn members(text: &str, read_members: &[&str]) -> serde_json::Result<RawObject> {
    members_as(text, read_members)
}

/// The members of the object that a text begins with, as parts of that text: see [`object`].
///
/// # Errors
/// The text does not begin with a JSON object.
pub(super) fn borrowed_members<'t>(
    text: &'t str,
    read_members: &[&str],
) -> serde_json::Result<IndexMap<String, &'t RawValue>> {
    members_as(text, read_members)
}

fn members_as<'t, V: Deserialize<'t> + Deref<Target = RawValue>>(
    text: &'t str,
    read_members: &[&str],
) -> serde_json::Result<IndexMap<String, V>> {
    // Without a check of the end.
    let Members(members) = Members::<V>::deserialize(&mut serde_json::Deserializer::from_str(text))?;
    let mut object = IndexMap::with_capacity(members.len());
    for (name, value) in members {
        let read = read_members.iter().find(|read| is_same_name(read, &name));
        let name = read.map_or(name, |read| (*read).to_owned());
        // A null changes nothing that was read before.
        if value.get() != "null" || !object.contains_key(&name) {
            object.insert(name, value);
        }
    }
    Ok(object)
}

/// Returns true if clients take one name for the other. Nearly all names are ASCII, and folding them by Unicode took a sixth of the
/// time of a list.
pub(super) fn is_same_name(read: &str, name: &str) -> bool {
    if name.is_ascii() && read.is_ascii() {
        return read.eq_ignore_ascii_case(name);
    }
    case_folded(read).eq(case_folded(name))
}

/// Folds the case of a name at least as widely as the clients do. They also fold the Kelvin sign to K and the long s to
/// S, which lower case followed by upper case covers.
fn case_folded(name: &str) -> impl Iterator<Item = char> {
    name.chars().flat_map(char::to_lowercase).flat_map(char::to_uppercase)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::upstream::providers::VersionList;

    /// Lists, with the versions that a program with Go's decoder reads from them.
    #[test]
    fn lists_have_the_versions_that_clients_read() {
        let mut count = 0;
        for line in include_str!("../../tests/fixtures/go-json.tsv").lines() {
            let [kind, hex, versions] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let body = hex::decode(hex).unwrap();
            let shown = String::from_utf8_lossy(&body);
            let list = match kind {
                "provider" => VersionList::parse(&body),
                _ => VersionList::parse_of_module(&body),
            };
            let list = list.unwrap_or_else(|reason| panic!("{reason}: {shown}"));
            let read: Vec<&str> = list.versions.iter().map(|listed| &*listed.upstream_spelling).collect();
            assert_eq!(read.join(" "), versions, "{kind}: {shown}");
            let named = list.versions.iter().map(|listed| listed.version.clone()).collect();
            assert_eq!(VersionList::named(list.service, &body), Ok(named), "{kind}: {shown}");
            count += 1;
        }
        assert_eq!(count, 300);
    }

    #[test]
    fn the_last_member_in_any_case_counts_and_other_members_stay() {
        let read = |text: &str| serde_json::to_string(&members(text, &["kind", "os"]).unwrap()).unwrap();
        for (text, expected) in [
            (r#"{"x":1,"Kind":2,"kind":3,"KIND":4,"y":5}"#, r#"{"x":1,"kind":4,"y":5}"#),
            (r#"{"kind":1,"Kind":null,"X":2,"x":3}"#, r#"{"kind":1,"X":2,"x":3}"#),
            ("{\"o\u{17f}\":1e400}", r#"{"os":1e400}"#),
            (r#"{"\u212aind":1}{"kind":2} and so on"#, r#"{"kind":1}"#),
        ] {
            assert_eq!(read(text), expected);
        }
        for text in ["", "[]", "7", "{", "{\"kind\":1", "\u{feff}{}"] {
            assert!(members(text, &["kind"]).is_err(), "{text}");
        }
        assert_eq!(object(b"{\"caf\xe9\":\"\xff\"}", &[]).unwrap()["caf\u{fffd}"].get(), "\"\u{fffd}\"");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = object(&body, &["versions"]);
        }
    }
}
