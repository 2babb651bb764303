//! Applies `.gitattributes` to files at checkout.

use gix_attributes::StateRef;
use gix_attributes::search::{MetadataCollection, Outcome};
use gix_filter::eol::{self, AttributesDigest};
use gix_hash::ObjectId;
use gix_object::bstr::{BStr, BString, ByteSlice as _};
use gix_worktree::stack::State;
use gix_worktree::stack::state::Attributes as Rules;
use gix_worktree::stack::state::attributes::Source;

use super::encoding::{Encoded, encode};
use super::ident_filter;

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

/// The conversions of one file at checkout.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct CheckoutConversion {
    line_ends: Option<AttributesDigest>,
    ident: Option<ident_filter::IdentMode>,
    encoding: Option<BString>,
}

/// The checked-out bytes of one file.
#[derive(Debug)]
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

    /// The conversions for the file at `path`.
    pub(super) fn conversion(
        &mut self,
        path: &BStr,
        objects: &dyn gix_object::Find,
    ) -> std::io::Result<CheckoutConversion> {
        let entry = self.stack.at_entry(path, Some(gix_index::entry::Mode::FILE), objects)?;
        if !entry.matching_attributes(&mut self.outcome) {
            return Ok(CheckoutConversion::default());
        }
        let mut states = self.outcome.iter_selected().map(|attribute| attribute.assignment.state);
        let mut next = || states.next().unwrap_or(StateRef::Unspecified);
        let (crlf, text, eol, ident, encoding) = (next(), next(), next(), next(), next());
        let encoding = match encoding {
            StateRef::Value(name) => Some(name.as_bstr().to_owned()),
            StateRef::Set | StateRef::Unset | StateRef::Unspecified => None,
        };
        let text = TextHandling::of(text, crlf);
        let reads_whole_file = encoding.is_some() || (text == TextHandling::Auto && !is_value(eol, "lf"));
        let mode = if reads_whole_file { ident_filter::IdentMode::Search } else { ident_filter::IdentMode::Streaming };
        Ok(CheckoutConversion {
            line_ends: text.line_ends(eol),
            ident: (ident == StateRef::Set).then_some(mode),
            encoding,
        })
    }
}

/// Text handling by the attributes `text`, its old name `crlf`, and `eol`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TextHandling {
    Unspecified,
    Text,
    /// Text with line feeds on every platform.
    TextWithLf,
    Binary,
    Auto,
}

impl TextHandling {
    fn of(text: StateRef<'_>, crlf: StateRef<'_>) -> Self {
        let handling = |state: StateRef<'_>| match state {
            StateRef::Set => Self::Text,
            StateRef::Unset => Self::Binary,
            StateRef::Value(value) if value.as_bstr() == "input" => Self::TextWithLf,
            StateRef::Value(value) if value.as_bstr() == "auto" => Self::Auto,
            StateRef::Value(_) | StateRef::Unspecified => Self::Unspecified,
        };
        match handling(text) {
            Self::Unspecified => handling(crlf),
            handling => handling,
        }
    }

    /// The conversion of line ends. On a platform whose lines end with line feeds, only `eol=crlf` needs one.
    fn line_ends(self, eol: StateRef<'_>) -> Option<AttributesDigest> {
        match self {
            Self::Auto if is_value(eol, "crlf") => Some(AttributesDigest::TextAutoCrlf),
            Self::Unspecified | Self::Text | Self::TextWithLf if is_value(eol, "crlf") => {
                Some(AttributesDigest::TextCrlf)
            }
            Self::Binary | Self::Unspecified | Self::Text | Self::TextWithLf | Self::Auto => None,
        }
    }
}

fn is_value(state: StateRef<'_>, value: &str) -> bool {
    matches!(state, StateRef::Value(actual) if actual.as_bstr() == value)
}

impl CheckoutConversion {
    /// Converts the bytes of the object `id`: keywords, then line ends, then the encoding, as git does.
    pub(super) fn apply(&self, bytes: &[u8], id: &ObjectId) -> ConvertedFile {
        let mut converted: Option<Vec<u8>> = self.ident.and_then(|mode| ident_filter::expand(bytes, id, mode));
        if let Some(digest) = self.line_ends {
            let mut written = Vec::new();
            let source = converted.as_deref().unwrap_or(bytes);
            if matches!(eol::convert_to_worktree(source, digest, &mut written, Default::default()), Ok(true)) {
                converted = Some(written);
            }
        }
        let mut unknown_encoding = None;
        if let Some(name) = &self.encoding {
            match encode(converted.as_deref().unwrap_or(bytes), name) {
                Encoded::Unchanged => {}
                Encoded::Converted(written) => converted = Some(written),
                Encoded::Unsupported => unknown_encoding = Some(name.to_str_lossy().into_owned()),
            }
        }
        ConvertedFile { bytes: converted, unknown_encoding }
    }
}
