//! Resolves the parameter `ref` like `git checkout REF` in a fresh clone, which go-getter runs. With the parameter `depth`,
//! `ref` is resolved like `git clone --branch REF`.

use gix_hash::ObjectId;

/// Git's minimum length of an abbreviated id.
const MIN_ABBREVIATED_ID: usize = 4;
/// Length of a full id in hex.
const FULL_ID: usize = 40;

/// The prefixes of all refs whose commits a source can name.
pub(super) const TIP_PREFIXES: [&str; 3] = ["HEAD", "refs/heads/", "refs/tags/"];

/// A parsed `ref` parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reference {
    /// No reference, or `HEAD`.
    Head,
    /// A full object id.
    Id(ObjectId),
    /// A name as `git checkout` reads it, or an abbreviated id.
    Name(String),
    /// A branch or a tag, as `git clone --branch` reads it.
    Branch(String),
    /// No reference, with a depth. go-getter then asks for the branch that `HEAD` points to, or `master` if `HEAD` is
    /// detached.
    DefaultBranch,
}

/// One ref that a repository offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OfferedRef {
    /// The full name: `HEAD`, `refs/heads/main`.
    pub(super) name: Vec<u8>,
    /// The id of the ref; for an annotated tag, the tag object.
    pub(super) id: ObjectId,
    /// The peeled id; for an annotated tag, its target.
    pub(super) peeled: ObjectId,
    /// The target of a symbolic ref.
    pub(super) symbolic_target: Option<Vec<u8>>,
}

/// Result of resolving a reference among the offered refs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ResolvedRef {
    Offered(OfferedRef),
    /// An id without a ref; the server may still send it.
    Id(ObjectId),
    /// Possibly an abbreviated id, in lower case.
    AbbreviatedId(String),
    NotFound,
}

impl Reference {
    /// Parses a reference.
    ///
    /// # Errors
    /// The reason: for an invalid ref name, and for revision expressions.
    pub(super) fn parse(text: Option<&str>, has_depth: bool) -> Result<Self, &'static str> {
        let text = match text {
            None | Some("") if has_depth => return Ok(Self::DefaultBranch),
            None | Some("") => return Ok(Self::Head),
            Some(text) => text,
        };
        if text.starts_with('-') {
            return Err("a reference must not begin with a dash");
        }
        if text.len() > 1024 {
            return Err("a reference of more than 1024 bytes");
        }
        let has = |sequence: &str| text.contains(sequence);
        if text.chars().any(|c| c.is_control() || " ~^:?*[\\".contains(c)) || has("..") || has("@{") {
            return Err("larder resolves branches, tags and commit ids only, not expressions with ^, ~, .. or @{");
        }
        if has_depth {
            return Ok(Self::Branch(text.to_owned()));
        }
        if text == "HEAD" {
            return Ok(Self::Head);
        }
        if text.len() == FULL_ID && is_hex(text) {
            let id = ObjectId::from_hex(text.to_ascii_lowercase().as_bytes());
            return id.map(Self::Id).map_err(|_| "no id of a commit");
        }
        Ok(Self::Name(text.to_owned()))
    }

    /// The ref prefixes to ask the server for.
    pub(super) fn prefixes(&self) -> Vec<String> {
        let mut prefixes = vec!["HEAD".to_owned()];
        match self {
            Self::Head => {}
            Self::Id(_) => return TIP_PREFIXES.map(str::to_owned).into(),
            Self::Name(name) if abbreviated_id(name).is_some() => return TIP_PREFIXES.map(str::to_owned).into(),
            Self::Name(name) => {
                // Which branch is the default is not known yet, so any branch might be the local branch of the clone.
                let candidates = candidates(name, |_| true);
                prefixes.extend(candidates.map(|name| String::from_utf8_lossy(&name).into_owned()));
            }
            Self::Branch(name) => prefixes.extend([format!("refs/heads/{name}"), format!("refs/tags/{name}")]),
            Self::DefaultBranch => prefixes.extend(["refs/heads/master".to_owned(), "refs/tags/master".to_owned()]),
        }
        prefixes
    }

    /// Resolves the reference among the offered refs.
    pub(super) fn resolve(&self, offered: &[OfferedRef]) -> ResolvedRef {
        let find = |name: &[u8]| offered.iter().find(|offered| offered.name == name).cloned();
        let found = match self {
            Self::Head => find(b"HEAD"),
            Self::DefaultBranch => match find(b"HEAD") {
                Some(head) if head.symbolic_target.is_some() => Some(head),
                Some(_) | None => find(b"refs/heads/master").or_else(|| find(b"refs/tags/master")),
            },
            Self::Id(id) => {
                let tip = offered.iter().find(|offered| offered.id == *id || offered.peeled == *id);
                // The fetch uses the id of the ref itself, because old servers serve no other. For an annotated tag, that
                // is the id of the tag object.
                return tip.cloned().map_or(ResolvedRef::Id(*id), ResolvedRef::Offered);
            }
            Self::Branch(name) => {
                find(format!("refs/heads/{name}").as_bytes()).or_else(|| find(format!("refs/tags/{name}").as_bytes()))
            }
            Self::Name(name) => {
                let default = find(b"HEAD").and_then(|head| head.symbolic_target);
                let is_default = |branch: &[u8]| default.as_deref() == Some(branch);
                let found = candidates(name, is_default).find_map(|name| find(&name));
                match (found, abbreviated_id(name)) {
                    (None, Some(id)) => return ResolvedRef::AbbreviatedId(id),
                    (found, _) => found,
                }
            }
        };
        found.map_or(ResolvedRef::NotFound, ResolvedRef::Offered)
    }
}

/// The server's refs that `git checkout NAME` tries in a clone, in order. A clone has one local branch, the server's
/// default, which wins over a tag of that name. All other branches are `origin/…` in the clone.
fn candidates(name: &str, is_default: impl Fn(&[u8]) -> bool) -> impl Iterator<Item = Vec<u8>> {
    let branch = |name: &str| format!("refs/heads/{name}").into_bytes();
    let local = |name: &str| Some(branch(name)).filter(|branch| is_default(branch));
    let below_refs = name.strip_prefix("refs/").unwrap_or(name);
    let qualified = match below_refs.split_once('/') {
        Some(("tags", _)) => Some(format!("refs/{below_refs}").into_bytes()),
        Some(("heads", name)) => local(name),
        _ => None,
    };
    let remote = below_refs.strip_prefix("remotes/").unwrap_or(below_refs);
    let remote = match remote {
        "origin" | "origin/HEAD" => Some(b"HEAD".to_vec()),
        _ => remote.strip_prefix("origin/").map(branch),
    };
    let tag = format!("refs/tags/{name}").into_bytes();
    [local(name), qualified, Some(tag), remote, Some(branch(name))].into_iter().flatten()
}

/// The abbreviated id that a name may be, in lower case.
fn abbreviated_id(name: &str) -> Option<String> {
    let is_abbreviated_id = (MIN_ABBREVIATED_ID..FULL_ID).contains(&name.len()) && is_hex(name);
    is_abbreviated_id.then(|| name.to_ascii_lowercase())
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(digit: u8) -> ObjectId {
        ObjectId::from_hex(&[digit; 40]).unwrap()
    }

    fn offered() -> Vec<OfferedRef> {
        let offered_ref = |name: &str, digit: u8| OfferedRef {
            name: name.as_bytes().to_vec(),
            id: id(digit),
            peeled: id(digit),
            symbolic_target: (name == "HEAD").then(|| b"refs/heads/main".to_vec()),
        };
        let mut refs = vec![
            offered_ref("HEAD", b'1'),
            offered_ref("refs/heads/main", b'1'),
            offered_ref("refs/heads/both", b'2'),
            offered_ref("refs/heads/abcd", b'3'),
            offered_ref("refs/tags/both", b'4'),
            offered_ref("refs/tags/main", b'5'),
            offered_ref("refs/tags/v1", b'6'),
        ];
        refs.push(OfferedRef { peeled: id(b'8'), ..offered_ref("refs/tags/annotated", b'7') });
        refs
    }

    fn resolved(text: Option<&str>, depth: bool) -> Option<String> {
        match Reference::parse(text, depth).unwrap().resolve(&offered()) {
            ResolvedRef::Offered(offered) => Some(String::from_utf8(offered.name).unwrap()),
            ResolvedRef::Id(id) => Some(format!("id {}", &id.to_string()[..4])),
            ResolvedRef::AbbreviatedId(id) => Some(format!("abbreviated {id}")),
            ResolvedRef::NotFound => None,
        }
    }

    /// Results of `git checkout` in clones of such a repository (git 2.47).
    #[test]
    fn a_reference_resolves_as_in_a_checkout() {
        for (reference, name) in [
            ("HEAD", "HEAD"),
            ("main", "refs/heads/main"),
            ("both", "refs/tags/both"),
            ("abcd", "refs/heads/abcd"),
            ("tags/both", "refs/tags/both"),
            ("refs/tags/both", "refs/tags/both"),
            ("heads/main", "refs/heads/main"),
            ("refs/heads/main", "refs/heads/main"),
            ("origin/both", "refs/heads/both"),
            ("refs/remotes/origin/both", "refs/heads/both"),
            ("remotes/origin/abcd", "refs/heads/abcd"),
            ("origin", "HEAD"),
            ("origin/HEAD", "HEAD"),
            ("annotated", "refs/tags/annotated"),
            ("ABCDEF", "abbreviated abcdef"),
            (&"9".repeat(40), "id 9999"),
            (&"6".repeat(40), "refs/tags/v1"),
        ] {
            assert_eq!(resolved(Some(reference), false).as_deref(), Some(name), "{reference}");
        }
        for unresolvable in ["heads/both", "refs/heads/both", "v2", "v", "origin/v1"] {
            assert_eq!(resolved(Some(unresolvable), false), None, "{unresolvable}");
        }
        assert_eq!(resolved(None, false).as_deref(), Some("HEAD"));
    }

    /// Results of `git checkout` in a clone without a local branch, and of go-getter with a depth.
    #[test]
    fn a_clone_of_a_detached_head_has_no_local_branch() {
        let mut detached = offered();
        detached[0].symbolic_target = None;
        let resolved = |text, depth| match Reference::parse(text, depth).unwrap().resolve(&detached) {
            ResolvedRef::Offered(offered) => Some(String::from_utf8(offered.name).unwrap()),
            _ => None,
        };
        assert_eq!(resolved(Some("main"), false).as_deref(), Some("refs/tags/main"));
        assert_eq!(resolved(Some("abcd"), false).as_deref(), Some("refs/heads/abcd"));
        assert_eq!(resolved(None, false).as_deref(), Some("HEAD"));
        for unresolvable in ["heads/main", "refs/heads/main", "heads/both"] {
            assert_eq!(resolved(Some(unresolvable), false), None, "{unresolvable}");
        }
        assert_eq!(resolved(None, true), None);
        detached[1].name = b"refs/heads/master".to_vec();
        let found = Reference::parse(None, true).unwrap().resolve(&detached);
        assert!(matches!(found, ResolvedRef::Offered(found) if found.name == b"refs/heads/master"));
    }

    #[test]
    fn with_a_depth_a_branch_wins_over_a_tag_and_ids_do_not_resolve() {
        assert_eq!(resolved(None, true).as_deref(), Some("HEAD"));
        assert_eq!(resolved(Some("both"), true).as_deref(), Some("refs/heads/both"));
        assert_eq!(resolved(Some("v1"), true).as_deref(), Some("refs/tags/v1"));
        for unresolvable in ["HEAD", "tags/v1", "refs/heads/main", "abcdef", &"1".repeat(40)] {
            assert_eq!(resolved(Some(unresolvable), true), None, "{unresolvable}");
        }
    }

    #[test]
    fn an_invalid_ref_name_is_refused() {
        for bad in ["--upload-pack=x", "HEAD~1", "v1^{}", "a b", "a..b", "main@{1}", "a:b", "x\n"] {
            assert!(Reference::parse(Some(bad), false).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_resolved_ref_begins_with_a_requested_prefix(text in "(refs/|tags/|heads/|origin/|remotes/)?[a-f0-9v/]{0,8}|main|both|\\PC{0,20}", depth in any::<bool>()) {
            let Ok(reference) = Reference::parse(Some(&text), depth) else { return Ok(()) };
            if let ResolvedRef::Offered(resolved) = reference.resolve(&offered()) {
                prop_assert!(reference.prefixes().iter().any(|prefix| resolved.name.starts_with(prefix.as_bytes())), "{:?}", resolved);
            }
        }
    }
}
