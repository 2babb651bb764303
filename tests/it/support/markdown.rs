//! Pages of the documentation.

use std::fmt::Write as _;

/// A fenced block of a page.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) line: usize,
    pub(crate) language: String,
    /// The HTML comment directly above the block.
    pub(crate) comment_above: String,
    pub(crate) text: String,
}

/// The fenced blocks of a page, in order.
pub(crate) fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut comment, mut is_open) = ("", false);
    for (number, line) in page.lines().enumerate() {
        match line.strip_prefix("```") {
            Some(_) if is_open => is_open = false,
            Some(language) => {
                let (line, language) = (number + 1, language.to_owned());
                blocks.push(Block { line, language, comment_above: comment.to_owned(), text: String::new() });
                is_open = true;
            }
            None if is_open => writeln!(blocks.last_mut().unwrap().text, "{line}").unwrap(),
            None => {}
        }
        comment = line.strip_prefix("<!-- ").and_then(|comment| comment.strip_suffix(" -->")).unwrap_or("");
    }
    blocks
}
