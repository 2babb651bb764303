//! `//SUBDIR`: the folder of a module in its package.

use super::BadSource;
use crate::pack::TreePath;

/// Pattern characters of Go's `filepath.Glob`. A `?` starts the query, so it never occurs in a subdir.
const GLOB_CHARS: [char; 3] = ['*', '[', '\\'];

/// The folder of a module in its package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subdir {
    /// A folder by its path.
    Plain(TreePath),
    /// A folder below the folder that a pattern matches. Clients do not expand patterns for registry modules (PROTOCOL,
    /// section 4.4), so larder makes the matched folder the root of the package that it serves.
    Glob {
        /// The pattern, up to the last segment with a pattern character.
        wrapper: String,
        /// The path below the matched folder.
        rest: TreePath,
    },
}

impl Subdir {
    /// Parses the text after the `//`. Empty text and `.` are the root.
    pub(super) fn parse(text: &str) -> Result<Option<Self>, BadSource> {
        let names: Vec<&str> = text.split('/').filter(|name| !name.is_empty() && *name != ".").collect();
        if names.contains(&"..") {
            return Err(BadSource::new("has a .. in its //subdir"));
        }
        let pattern_end = names.iter().rposition(|name| name.contains(GLOB_CHARS)).map_or(0, |last| last + 1);
        let (wrapper, rest) = names.split_at(pattern_end);
        let rest = parse_path(rest.join("/").as_bytes())?;
        Ok(match wrapper {
            [] if rest.is_root() => None,
            [] => Some(Self::Plain(rest)),
            wrapper => Some(Self::Glob { wrapper: wrapper.join("/"), rest }),
        })
    }

    /// The path in the served package, whose root is the folder that a pattern matched; `None` for the root.
    pub fn in_package(&self) -> Option<&TreePath> {
        let (Self::Plain(path) | Self::Glob { rest: path, .. }) = self;
        Some(path).filter(|path| !path.is_root())
    }

    /// Appends `inner`. `self` is the subdir that an indirection names, `inner` that of the address before it.
    ///
    /// # Errors
    /// [`BadSource`] if the result is too long.
    pub fn join(&self, inner: &Self) -> Result<Self, BadSource> {
        let join_paths = |outer: &TreePath, inner: &TreePath| outer.join(inner).map_err(|_| too_long());
        let join_patterns =
            |outer: String, inner: &str| if outer.is_empty() { inner.to_owned() } else { outer + "/" + inner };
        Ok(match (self, inner) {
            (Self::Plain(outer), Self::Plain(inner)) => Self::Plain(join_paths(outer, inner)?),
            (Self::Glob { wrapper, rest }, Self::Plain(inner)) => {
                Self::Glob { wrapper: wrapper.clone(), rest: join_paths(rest, inner)? }
            }
            (outer, Self::Glob { wrapper, rest }) => {
                Self::Glob { wrapper: join_patterns(outer.to_string(), wrapper), rest: rest.clone() }
            }
        })
    }
}

impl std::fmt::Display for Subdir {
    /// The subdir as in an address, without the two slashes.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Plain(path) => path.fmt(f),
            Self::Glob { wrapper, rest } if rest.is_root() => f.write_str(wrapper),
            Self::Glob { wrapper, rest } => write!(f, "{wrapper}/{rest}"),
        }
    }
}

/// Splits an address into its package, query included, and its subdir, as go-getter does.
pub(super) fn split(text: &str) -> (String, String) {
    let (path, query) = text.split_at(text.find('?').unwrap_or(text.len()));
    let after_scheme = path.find("://").map_or(0, |index| index + 3);
    match path[after_scheme..].find("//") {
        Some(index) => {
            let index = after_scheme + index;
            (format!("{}{query}", &path[..index]), path[index + 2..].to_owned())
        }
        None => (text.to_owned(), String::new()),
    }
}

fn parse_path(text: &[u8]) -> Result<TreePath, BadSource> {
    TreePath::parse(text).map_err(|_| BadSource::new("has a //subdir that no folder can have"))
}

fn too_long() -> BadSource {
    BadSource::new("has a //subdir that is too long")
}
