//! Finds the source of a module in an answer: in a header, in JSON, or in a tag of a page (module registry protocol,
//! go-getter).

use serde::Deserialize;

/// Bytes of a page that are searched. The tag is in the head of the page.
const MAX_SEARCHED_BYTES: usize = 256 * 1024;
/// The longest accepted value, in bytes.
const MAX_LOCATION_BYTES: usize = 16 * 1024;

#[derive(Deserialize)]
struct DownloadJson {
    location: Option<String>,
}

/// The location in a `download` answer: its header, else the `location` of its JSON, as OpenTofu reads it.
pub fn location_in_download(header: Option<&str>, body: &[u8]) -> Option<String> {
    let in_body = || serde_json::from_slice::<DownloadJson>(body).ok()?.location;
    header.and_then(trimmed).or_else(|| trimmed(&in_body()?))
}

/// The location in a page that was requested with `terraform-get=1`: its header, else the first
/// `<meta name="terraform-get" content="…">` in its head.
pub fn location_in_page(header: Option<&str>, body: &[u8]) -> Option<String> {
    header.and_then(trimmed).or_else(|| {
        let page = String::from_utf8_lossy(body.get(..MAX_SEARCHED_BYTES).unwrap_or(body));
        find_in_head(&page).and_then(|text| trimmed(&text))
    })
}

fn trimmed(text: &str) -> Option<String> {
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// Finds the location in the head of a page. Tags are read in order, and their nesting is ignored.
fn find_in_head(page: &str) -> Option<String> {
    let lower_case_page = page.to_ascii_lowercase();
    let mut rest = page;
    while let Some((_, after)) = rest.split_once('<') {
        if let Some(comment) = after.strip_prefix("!--") {
            rest = comment.split_once("-->")?.1;
            continue;
        }
        let tag = Tag::parse(after)?;
        rest = tag.after;
        match tag.name.to_ascii_lowercase().as_str() {
            "body" | "/head" => return None,
            "meta" if tag.attribute("name").is_some_and(|name| name == "terraform-get") => {
                if let Some(content) = tag.attribute("content").filter(|content| !content.is_empty()) {
                    return (content.len() <= MAX_LOCATION_BYTES).then(|| unescape(content));
                }
            }
            // Text in these elements may look like a tag.
            raw @ ("script" | "style" | "title") => {
                let offset = page.len() - rest.len();
                let end = lower_case_page.get(offset..)?.find(&format!("</{raw}"))?;
                rest = rest.get(end..)?;
            }
            _ => {}
        }
    }
    None
}

struct Tag<'a> {
    name: &'a str,
    attributes: Vec<(&'a str, &'a str)>,
    after: &'a str,
}

impl<'a> Tag<'a> {
    /// Parses a tag after its `<`, up to its `>`. A quoted value may contain a `>`.
    fn parse(text: &'a str) -> Option<Self> {
        let end = text.find(|c: char| c.is_ascii_whitespace() || c == '>').unwrap_or(text.len());
        let (name, mut rest) = text.split_at(end);
        let mut attributes = Vec::new();
        loop {
            rest = rest.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == '/');
            if let Some(after) = rest.strip_prefix('>') {
                return Some(Self { name: name.trim_end_matches('/'), attributes, after });
            }
            let end = rest.find(|c: char| c.is_ascii_whitespace() || c == '=' || c == '>')?;
            let (key, after) = rest.split_at(end);
            let after = after.trim_start();
            let Some(value) = after.strip_prefix('=') else {
                attributes.push((key, ""));
                // The loop ends, because each pass consumes text.
                rest = after;
                continue;
            };
            let value = value.trim_start();
            let (value, after) = match value.chars().next()? {
                quote @ ('"' | '\'') => value.get(1..)?.split_once(quote)?,
                _ => value.split_at(value.find(|c: char| c.is_ascii_whitespace() || c == '>')?),
            };
            attributes.push((key, value));
            rest = after;
        }
    }

    fn attribute(&self, key: &str) -> Option<&'a str> {
        self.attributes.iter().find(|(name, _)| name.eq_ignore_ascii_case(key)).map(|(_, value)| *value)
    }
}

/// Decodes the five entities of XML, and characters by number.
fn unescape(text: &str) -> String {
    let mut unescaped = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        unescaped.push_str(before);
        let entity = after.split_once(';').and_then(|(name, after)| Some((decode_entity(name)?, after)));
        let (character, after) = entity.unwrap_or(('&', after));
        unescaped.push(character);
        rest = after;
    }
    unescaped + rest
}

fn decode_entity(name: &str) -> Option<char> {
    match name {
        "amp" => Some('&'),
        "lt" => Some('<'),
        "gt" => Some('>'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        _ => {
            let number = name.strip_prefix('#')?;
            let code = match number.strip_prefix(['x', 'X']) {
                Some(hex) => u32::from_str_radix(hex, 16).ok(),
                None => number.parse().ok(),
            };
            code.and_then(char::from_u32)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn location(page: &str) -> Option<String> {
        location_in_page(None, page.as_bytes())
    }

    #[test]
    fn a_header_takes_precedence_over_json_and_tags() {
        let page = br#"<meta name="terraform-get" content="b">"#;
        assert_eq!(location_in_page(Some("a"), page), Some("a".to_owned()));
        assert_eq!(location_in_page(Some(" "), page), Some("b".to_owned()));
        assert_eq!(location_in_download(Some("a"), br#"{"location":"b"}"#), Some("a".to_owned()));
        assert_eq!(location_in_download(None, br#"{"location":"b","other":1}"#), Some("b".to_owned()));
        for without_location in ["", "{}", "[]", r#"{"location":""}"#, r#"{"location":1}"#] {
            assert_eq!(location_in_download(None, without_location.as_bytes()), None, "{without_location}");
        }
    }

    #[test]
    fn a_tag_is_found_in_the_head_of_a_page_and_nowhere_else() {
        let expected = Some("https://h/m.zip?a=1&b=2//x".to_owned());
        for page in [
            r#"<meta name="terraform-get" content="https://h/m.zip?a=1&amp;b=2//x">"#,
            r#"<!DOCTYPE html><html><head><title>a <meta> b</title><META CONTENT='https://h/m.zip?a=1&#38;b=2//x' NAME="terraform-get"/></head>"#,
            r#"<?xml version="1.0"?><head><meta name="other" content="no"/><meta name="terraform-get"/><meta name = "terraform-get" content = "https://h/m.zip?a=1&b=2//x" /></head><body>"#,
            r#"<head><!-- <meta name="terraform-get" content="no"> --><script>if (a<b) "<body>"</script><meta charset=utf-8><meta name=terraform-get content=https://h/m.zip?a=1&#x26;b=2//x ></head>"#,
        ] {
            assert_eq!(location(page), expected, "{page}");
        }
        for page in [
            "",
            "<",
            "<meta",
            r#"<meta name="terraform-get" content=""#,
            r#"<head></head><meta name="terraform-get" content="no">"#,
            r#"<body><meta name="terraform-get" content="no">"#,
            r#"<meta name="Terraform-Get" content="no">"#,
            r#"<p title='<meta name="terraform-get" content="no">'>"#,
        ] {
            assert_eq!(location(page), None, "{page}");
        }
    }

    proptest! {
        #[test]
        fn any_page_is_parsed_without_a_panic(page in "(<|>|meta|name|content|=|\"|'|/|body|!--|-->|script|terraform-get|&|#x26;|;| |\\PC){0,40}") {
            let _ = (location(&page), location_in_download(None, page.as_bytes()));
        }
    }
}
