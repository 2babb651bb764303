//! Applies `.gitattributes` to files at checkout.

use gix_attributes::StateRef;
use gix_attributes::search::{MetadataCollection, Outcome};
use gix_filter::eol::{self, AttributesDigest};
use gix_hash::ObjectId;
use gix_object::bstr::{BStr, BString, ByteSlice as _};
use gix_worktree::stack::State;
use gix_worktree::stack::state::Attributes as Rules;
use gix_worktree::stack::state::attributes::Source;

use super::encoding::{Encoded, encoded};
use super::ident_filter;

/// Attribute names, in lookup order.
const NAMES: [&str; 5] = ["crlf", "text", "eol", "ident", "working-tree-encoding"];

/// Limits for stars in a pattern. Each `**` doubles the matching time for every file; real patterns need fewer.
const MAX_DOUBLE_STARS: usize = 4;
const MAX_STARS: usize = 32;

/// The first pattern in a `.gitattributes` that is too expensive to match.
pub(super) fn costly(rules: &[u8]) -> Option<String> {
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

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct CheckoutConversion {
    lines: Option<AttributesDigest>,
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
    /// Reads these `.gitattributes` files: path and blob id of each, sorted.
    pub(super) fn new(files: Vec<(BString, ObjectId)>) -> std::io::Result<Self> {
        let mut names = MetadataCollection::default();
        let globals =
            gix_attributes::Search::new_globals(Vec::<std::path::PathBuf>::new(), &mut Vec::new(), &mut names)?;
        let rules = Rules::new(globals, None, Source::IdMapping, names);
        let case = gix_worktree::glob::pattern::Case::Sensitive;
        // Nothing is read from this folder: the rules are in the repository's objects.
        let stack = gix_worktree::Stack::new("/", State::AttributesStack(rules), case, Vec::new(), files);
        let found = stack.selected_attribute_matches(NAMES);
        Ok(Self { stack, outcome: found })
    }

    /// The conversions for the file at `path`.
    pub(super) fn of(&mut self, path: &BStr, objects: &dyn gix_object::Find) -> std::io::Result<CheckoutConversion> {
        let place = self.stack.at_entry(path, Some(gix_index::entry::Mode::FILE), objects)?;
        if !place.matching_attributes(&mut self.outcome) {
            return Ok(CheckoutConversion::default());
        }
        let mut states = self.outcome.iter_selected().map(|found| found.assignment.state);
        let mut next = || states.next().unwrap_or(StateRef::Unspecified);
        let (crlf, text, eol, ident, encoding) = (next(), next(), next(), next(), next());
        let encoding = match encoding {
            StateRef::Value(name) => Some(name.as_bstr().to_owned()),
            StateRef::Set | StateRef::Unset | StateRef::Unspecified => None,
        };
        let text = TextHandling::of(text, crlf);
        let is_whole = encoding.is_some() || (text == TextHandling::Auto && !is_value(eol, "lf"));
        let mode = if is_whole { ident_filter::IdentMode::Whole } else { ident_filter::IdentMode::PieceByPiece };
        Ok(CheckoutConversion { lines: text.lines(eol), ident: (ident == StateRef::Set).then_some(mode), encoding })
    }
}

/// Text handling by the attributes `text`, its old name `crlf`, and `eol`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TextHandling {
    Unsaid,
    Yes,
    /// Line feeds on every platform.
    WithLf,
    No,
    Auto,
}

impl TextHandling {
    fn of(text: StateRef<'_>, crlf: StateRef<'_>) -> Self {
        let read = |state: StateRef<'_>| match state {
            StateRef::Set => Self::Yes,
            StateRef::Unset => Self::No,
            StateRef::Value(value) if value.as_bstr() == "input" => Self::WithLf,
            StateRef::Value(value) if value.as_bstr() == "auto" => Self::Auto,
            StateRef::Value(_) | StateRef::Unspecified => Self::Unsaid,
        };
        match read(text) {
            Self::Unsaid => read(crlf),
            state => state,
        }
    }

    /// The conversion of line ends. On a platform with line feeds, only `eol=crlf` changes any.
    fn lines(self, eol: StateRef<'_>) -> Option<AttributesDigest> {
        match self {
            Self::Auto if is_value(eol, "crlf") => Some(AttributesDigest::TextAutoCrlf),
            Self::Unsaid | Self::Yes | Self::WithLf if is_value(eol, "crlf") => Some(AttributesDigest::TextCrlf),
            Self::No | Self::Unsaid | Self::Yes | Self::WithLf | Self::Auto => None,
        }
    }
}

fn is_value(state: StateRef<'_>, value: &str) -> bool {
    matches!(state, StateRef::Value(found) if found.as_bstr() == value)
}

impl CheckoutConversion {
    /// Converts the bytes of the object `id`: keywords, then line ends, then the encoding, as git does.
    pub(super) fn applied(&self, bytes: &[u8], id: &ObjectId) -> ConvertedFile {
        let mut now: Option<Vec<u8>> = self.ident.and_then(|mode| ident_filter::expanded(bytes, id, mode));
        if let Some(lines) = self.lines {
            let mut written = Vec::new();
            let source = now.as_deref().unwrap_or(bytes);
            if matches!(eol::convert_to_worktree(source, lines, &mut written, Default::default()), Ok(true)) {
                now = Some(written);
            }
        }
        let mut unknown_encoding = None;
        if let Some(name) = &self.encoding {
            match encoded(now.as_deref().unwrap_or(bytes), name) {
                Encoded::Same => {}
                Encoded::Now(written) => now = Some(written),
                Encoded::Unknown => unknown_encoding = Some(name.to_str_lossy().into_owned()),
            }
        }
        ConvertedFile { bytes: now, unknown_encoding }
    }
}
