//! Applies `.gitattributes` to files at checkout: line ends, `ident` and `working-tree-encoding`.

use gix_attributes::StateRef;
use gix_attributes::search::{MetadataCollection, Outcome};
use gix_filter::eol::{self, AttributesDigest};
use gix_filter::worktree::{encode_to_worktree, encoding};
use gix_hash::ObjectId;
use gix_object::bstr::{BStr, BString, ByteSlice as _};
use gix_worktree::stack::State;
use gix_worktree::stack::state::Attributes as Rules;
use gix_worktree::stack::state::attributes::Source;

/// Attribute names, in lookup order.
const NAMES: [&str; 5] = ["crlf", "text", "eol", "ident", "working-tree-encoding"];

/// Limit for `**` in a pattern. Each doubles the matching time for every file; real patterns need fewer.
const MAX_DOUBLE_STARS: usize = 4;
/// Limit for stars in a pattern.
const MAX_STARS: usize = 32;

/// The first pattern in a `.gitattributes` that is too expensive to match.
pub(super) fn find_costly_pattern(rules: &[u8]) -> Option<String> {
    let patterns = gix_attributes::parse(rules).filter_map(|line| match line {
        Ok((gix_attributes::parse::Kind::Pattern(pattern), ..)) => Some(pattern.text),
        Ok((gix_attributes::parse::Kind::Macro(_), ..)) | Err(_) => None,
    });
    let mut costly = patterns.filter(|pattern| {
        let double = pattern.split(|byte| *byte != b'*').filter(|stars| stars.len() > 1).count();
        let stars = pattern.iter().filter(|byte| **byte == b'*').count();
        double > MAX_DOUBLE_STARS || stars > MAX_STARS
    });
    costly.next().map(|pattern| pattern.to_str_lossy().chars().take(100).collect())
}

/// The attributes of the files of one commit.
pub(super) struct Attributes {
    stack: gix_worktree::Stack,
    outcome: Outcome,
}

/// The checked-out bytes of one file.
#[derive(Debug, Default)]
pub(super) struct ConvertedFile {
    /// The bytes, if they differ from those in the repository.
    pub(super) bytes: Option<Vec<u8>>,
    /// The requested encoding, if larder does not support it.
    pub(super) unknown_encoding: Option<String>,
}

impl Attributes {
    /// Reads these `.gitattributes` files. Each has a path and a blob id, and the list is sorted.
    pub(super) fn new(files: Vec<(BString, ObjectId)>) -> std::io::Result<Self> {
        let mut names = MetadataCollection::default();
        let globals =
            gix_attributes::Search::new_globals(Vec::<std::path::PathBuf>::new(), &mut Vec::new(), &mut names)?;
        let rules = Rules::new(globals, None, Source::IdMapping, names);
        let case = gix_worktree::glob::pattern::Case::Sensitive;
        // Nothing is read from this folder: the rules are in the repository's objects.
        let stack = gix_worktree::Stack::new("/", State::AttributesStack(rules), case, Vec::new(), files);
        let outcome = stack.selected_attribute_matches(NAMES);
        Ok(Self { stack, outcome })
    }

    /// Converts the bytes of the file at `path`, the blob `id`: keywords, then line ends, then the encoding, as git does.
    pub(super) fn convert(
        &mut self,
        path: &BStr,
        bytes: &[u8],
        id: &ObjectId,
        objects: &dyn gix_object::Find,
    ) -> std::io::Result<ConvertedFile> {
        let entry = self.stack.at_entry(path, Some(gix_index::entry::Mode::FILE), objects)?;
        if !entry.matching_attributes(&mut self.outcome) {
            return Ok(ConvertedFile::default());
        }
        let mut states = self.outcome.iter_selected().map(|attribute| attribute.assignment.state);
        let mut next = || states.next().unwrap_or(StateRef::Unspecified);
        let (crlf, text, eol, ident, encoding) = (next(), next(), next(), next(), next());
        let text = TextHandling::of(text, crlf);
        let mut converted = None;
        if ident == StateRef::Set {
            let has_encoding = matches!(encoding, StateRef::Value(_));
            let is_read_whole = has_encoding || (text == TextHandling::Auto && !is_value(eol, "lf"));
            converted = if is_read_whole { expand_by_search(bytes, id) } else { expand_by_streaming(bytes, id) };
        }
        if let Some(digest) = text.line_ends(eol) {
            let mut written = Vec::new();
            let source = converted.as_deref().unwrap_or(bytes);
            if matches!(eol::convert_to_worktree(source, digest, &mut written, Default::default()), Ok(true)) {
                converted = Some(written);
            }
        }
        let mut unknown_encoding = None;
        if let StateRef::Value(name) = encoding {
            match encode(converted.as_deref().unwrap_or(bytes), name.as_bstr()) {
                Encoded::Unchanged => {}
                Encoded::Converted(written) => converted = Some(written),
                Encoded::Unsupported => unknown_encoding = Some(name.as_bstr().to_str_lossy().into_owned()),
            }
        }
        Ok(ConvertedFile { bytes: converted, unknown_encoding })
    }
}

/// Text handling by the attributes `text`, its old name `crlf`, and `eol`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TextHandling {
    Text,
    Binary,
    /// Text, if the contents look like text.
    Auto,
}

impl TextHandling {
    fn of(text: StateRef<'_>, crlf: StateRef<'_>) -> Self {
        let handling = |state: StateRef<'_>| match state {
            StateRef::Unset => Some(Self::Binary),
            StateRef::Value(value) if value.as_bstr() == "auto" => Some(Self::Auto),
            StateRef::Set => Some(Self::Text),
            StateRef::Value(value) if value.as_bstr() == "input" => Some(Self::Text),
            StateRef::Value(_) | StateRef::Unspecified => None,
        };
        // Without `text`, `eol` alone makes a file text.
        handling(text).or_else(|| handling(crlf)).unwrap_or(Self::Text)
    }

    /// The conversion of line ends. On a platform whose lines end with line feeds, only `eol=crlf` needs one.
    fn line_ends(self, eol: StateRef<'_>) -> Option<AttributesDigest> {
        match self {
            Self::Auto if is_value(eol, "crlf") => Some(AttributesDigest::TextAutoCrlf),
            Self::Text if is_value(eol, "crlf") => Some(AttributesDigest::TextCrlf),
            Self::Binary | Self::Text | Self::Auto => None,
        }
    }
}

fn is_value(state: StateRef<'_>, value: &str) -> bool {
    matches!(state, StateRef::Value(actual) if actual.as_bstr() == value)
}

/// The result of a conversion.
#[derive(Debug, PartialEq, Eq)]
enum Encoded {
    Unchanged,
    /// The converted bytes.
    Converted(Vec<u8>),
    /// Larder does not support the encoding; git may.
    Unsupported,
}

/// Converts `bytes` from UTF-8 to the encoding `name`, like git's checkout. Text that the encoding cannot represent stays
/// unchanged, as in git.
fn encode(bytes: &[u8], name: &[u8]) -> Encoded {
    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
    if bytes.is_empty() || name.is_empty() || matches!(name.as_str(), "utf-8" | "utf8") {
        return Encoded::Unchanged;
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return Encoded::Unchanged };
    let utf16 = |to_bytes: fn(u16) -> [u8; 2], has_bom: bool| {
        let units = has_bom.then_some(0xFEFF).into_iter().chain(text.encode_utf16());
        Encoded::Converted(units.flat_map(to_bytes).collect())
    };
    let utf32 = |to_bytes: fn(u32) -> [u8; 4], has_bom: bool| {
        let units = has_bom.then_some(0xFEFF).into_iter().chain(text.chars().map(u32::from));
        Encoded::Converted(units.flat_map(to_bytes).collect())
    };
    let single_bytes = |max: u32| {
        let bytes: Option<Vec<u8>> =
            text.chars().map(|c| u8::try_from(u32::from(c)).ok().filter(|byte| u32::from(*byte) <= max)).collect();
        bytes.map_or(Encoded::Unchanged, Encoded::Converted)
    };
    let name = name.strip_prefix("utf").map_or(name.clone(), |rest| format!("utf-{}", rest.trim_start_matches('-')));
    match name.as_str() {
        "utf-16" | "utf-16le-bom" => utf16(u16::to_le_bytes, true),
        "utf-16be-bom" => utf16(u16::to_be_bytes, true),
        "utf-16le" => utf16(u16::to_le_bytes, false),
        "utf-16be" => utf16(u16::to_be_bytes, false),
        "utf-32" | "utf-32le-bom" => utf32(u32::to_le_bytes, true),
        "utf-32be-bom" => utf32(u32::to_be_bytes, true),
        "utf-32le" => utf32(u32::to_le_bytes, false),
        "utf-32be" => utf32(u32::to_be_bytes, false),
        "us-ascii" | "ascii" => single_bytes(0x7F),
        // `encoding::for_label` would take this name for windows-1252, as browsers do.
        "iso-8859-1" | "iso8859-1" | "iso_8859-1" | "latin1" | "latin-1" => single_bytes(0xFF),
        label => {
            let Ok(encoding) = encoding::for_label(label) else { return Encoded::Unsupported };
            let mut converted = Vec::new();
            match encode_to_worktree(bytes, encoding, &mut converted) {
                Ok(()) => Encoded::Converted(converted),
                Err(_) => Encoded::Unchanged,
            }
        }
    }
}

const KEYWORD_START: &[u8] = b"$Id";

/// Expands `$Id$` to `$Id: BLOB_ID $` in a file that git streams, which are most files. `None` if there is no keyword.
///
/// Copies bytes up to the next keyword, without ever going back. A byte that rules out a keyword is copied with it, even if it is the dollar
/// sign of the next one.
fn expand_by_streaming(bytes: &[u8], id: &ObjectId) -> Option<Vec<u8>> {
    let mut written = Vec::new();
    let mut rest = bytes;
    let mut has_any = false;
    while !rest.is_empty() {
        let matching = rest.iter().zip(KEYWORD_START).take_while(|(byte, expected)| byte == expected).count();
        let after_start = rest.strip_prefix(KEYWORD_START);
        let (length, is_keyword) = match after_start {
            Some([b'$', ..]) => (KEYWORD_START.len() + 1, true),
            Some([b':', value @ ..]) => match value.iter().position(|byte| matches!(byte, b'$' | b'\n')) {
                Some(end) => (KEYWORD_START.len() + 1 + end + 1, value[end] == b'$' && !is_other_system(&value[..end])),
                None => (rest.len(), false),
            },
            // Git treats a NUL at this point as one more byte of the start of the keyword.
            Some([0, _, ..]) => (KEYWORD_START.len() + 2, false),
            _ => ((matching + 1).min(rest.len()), false),
        };
        if is_keyword {
            written.extend_from_slice(format!("$Id: {id} $").as_bytes());
            has_any = true;
        } else {
            written.extend_from_slice(&rest[..length]);
        }
        rest = &rest[length..];
    }
    has_any.then_some(written)
}

/// Returns true for a value that contains blanks, which another version control system has written.
fn is_other_system(value: &[u8]) -> bool {
    let Some(value) = value.strip_prefix(b" ") else { return false };
    let checked = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    (0..checked).any(|index| matches!(value[index], b' ' | b'\t' | b'\r') && index + 1 < value.len())
}

/// Expands `$Id$` to `$Id: BLOB_ID $` in a file that git reads whole, because of `text=auto` or another encoding. git's
/// algorithm for such files differs in odd cases from that for streamed ones. `None` if there is no keyword.
fn expand_by_search(bytes: &[u8], id: &ObjectId) -> Option<Vec<u8>> {
    let mut written = Vec::new();
    let mut rest = bytes;
    let mut has_any = false;
    while let Some(dollar) = rest.iter().position(|byte| *byte == b'$') {
        let (through_dollar, after_dollar) = rest.split_at(dollar + 1);
        written.extend_from_slice(through_dollar);
        rest = after_dollar;
        let Some(length) = keyword_length(rest) else { continue };
        rest = &rest[length..];
        written.extend_from_slice(format!("Id: {id} $").as_bytes());
        has_any = true;
    }
    written.extend_from_slice(rest);
    has_any.then_some(written)
}

/// Length of the keyword after a dollar sign, if there is a keyword: `Id$`, or an expanded keyword that does not span
/// lines or look like the keyword of another system.
fn keyword_length(after_dollar: &[u8]) -> Option<usize> {
    let value = match after_dollar.strip_prefix(b"Id")? {
        [b'$', ..] => return Some(3),
        [b':', value @ ..] => value,
        _ => return None,
    };
    let end = value.iter().position(|byte| *byte == b'$')?;
    let value = &value[..end];
    if value.contains(&b'\n') {
        return None;
    }
    // A value may begin with one space and end with one.
    let inner = value.get(1..).unwrap_or_default();
    let space = inner.iter().position(|byte| *byte == b' ');
    if space.is_some_and(|index| index + 1 < inner.len()) {
        return None;
    }
    Some(b"Id:".len() + end + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn unencodable_text_stays_unchanged() {
        assert_eq!(encode("aé".as_bytes(), b"UTF-16LE"), Encoded::Converted(b"a\0\xE9\0".to_vec()));
        assert_eq!(encode("a".as_bytes(), b"UTF-16"), Encoded::Converted(b"\xFF\xFEa\0".to_vec()));
        assert_eq!(encode("é".as_bytes(), b"latin-1"), Encoded::Converted(vec![0xE9]));
        assert_eq!(encode("€".as_bytes(), b"ISO-8859-1"), Encoded::Unchanged);
        assert_eq!(encode("€".as_bytes(), b"windows-1252"), Encoded::Converted(vec![0x80]));
        assert_eq!(encode(&[0xFF], b"UTF-16"), Encoded::Unchanged);
        assert_eq!(encode(b"x", b"no-such"), Encoded::Unsupported);
        assert_eq!(encode(b"x", b"utf8"), Encoded::Unchanged);
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_encoding_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..60), name in "(utf-?(8|16|32)(le|be)?(-bom)?|\\PC{0,12})") {
            let _ = encode(&bytes, name.as_bytes());
        }
    }

    /// A few cases. `tests::checkouts` compares many more with git 2.47.
    #[test]
    fn only_keywords_of_git_are_expanded() {
        let id = ObjectId::from_hex(&[b'a'; 40]).unwrap();
        let expanded = format!("$Id: {id} $");
        for (text, by_search, by_streaming) in [
            ("$Id$", Some(expanded.clone()), Some(expanded.clone())),
            ("x $Id: old $ y", Some(format!("x {expanded} y")), Some(format!("x {expanded} y"))),
            ("$Id:$", Some(expanded.clone()), Some(expanded.clone())),
            ("$Id: a b $", None, None),
            ("$Id:a b $", None, Some(expanded.clone())),
            ("$Id: two\nlines $", None, None),
            ("$Id", None, None),
            ("$Idx$", None, None),
            ("$$Id$", Some(format!("${expanded}")), None),
            ("$Id: a b $Id$", Some(format!("$Id: a b {expanded}")), None),
            ("nothing", None, None),
        ] {
            let as_text = |bytes: Option<Vec<u8>>| bytes.map(|bytes| String::from_utf8(bytes).unwrap());
            assert_eq!(as_text(expand_by_search(text.as_bytes(), &id)), by_search, "{text}");
            assert_eq!(as_text(expand_by_streaming(text.as_bytes(), &id)), by_streaming, "{text}");
        }
    }

    proptest! {
        #[test]
        fn nothing_but_keywords_is_changed(bytes in "[$Id: x\n\0]{0,30}") {
            let id = ObjectId::from_hex(&[b'a'; 40]).unwrap();
            for expand in [expand_by_search, expand_by_streaming] {
                if let Some(expanded) = expand(bytes.as_bytes(), &id) {
                    let expanded = String::from_utf8(expanded).unwrap();
                    let keyword = format!("$Id: {id} $");
                    prop_assert!(expanded.contains(&keyword));
                    // Expanding the result again changes nothing.
                    let again = expand(expanded.as_bytes(), &id).unwrap();
                    prop_assert_eq!(again, expanded.into_bytes());
                }
            }
        }
    }
}
