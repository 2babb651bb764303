//! Pages for browsers, read without one.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use larder::digest::Digest;

use super::http::Answer;

/// The text of a page without its tags, with every character reference replaced.
pub(crate) fn readable_text(page: &Answer) -> String {
    let html = page.text();
    let mut text = String::new();
    for part in without_elements(&without_elements(&html, "style"), "script").split('<') {
        text.push_str(part.split_once('>').map_or(part, |(_, after)| after));
    }
    unescaped(&text)
}

fn without_elements(html: &str, name: &str) -> String {
    let (mut kept, mut rest) = (String::new(), html);
    while let Some((before, after)) = rest.split_once(&format!("<{name}>")) {
        kept.push_str(before);
        rest = after.split_once(&format!("</{name}>")).unwrap().1;
    }
    kept + rest
}

fn unescaped(text: &str) -> String {
    let references = [("&#34;", "\""), ("&#39;", "'"), ("&#60;", "<"), ("&#62;", ">"), ("&#38;", "&")];
    let named = [("&quot;", "\""), ("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&"), ("&nbsp;", " ")];
    let all = named.into_iter().chain(references);
    all.fold(text.to_owned(), |text, (reference, character)| text.replace(reference, character))
}

/// Asserts that a page runs and loads nothing but what is in it: its policy allows its style and its script by their
/// digests, and no other source.
pub(crate) fn assert_self_contained(page: &Answer) {
    let html = page.text();
    let policy = page.header("content-security-policy").to_owned();
    for directive in ["default-src 'none'", "base-uri 'none'", "frame-ancestors 'none'", "form-action 'self'"] {
        assert!(policy.split("; ").any(|one| one == directive), "{directive} is not in {policy}");
    }
    for unsafe_source in ["unsafe", "http", "*", "strict-dynamic"] {
        assert!(!policy.contains(unsafe_source), "{policy}");
    }
    for (directive, element) in [("style-src", "style"), ("script-src", "script")] {
        let content = html.split_once(&format!("<{element}>")).unwrap().1;
        let content = content.split_once(&format!("</{element}>")).unwrap().0;
        let allowed = format!("{directive} 'sha256-{}'", STANDARD.encode(Digest::of(content.as_bytes()).as_bytes()));
        assert!(policy.split("; ").any(|one| one == allowed), "{allowed} is not in {policy}");
    }
    // No style in an attribute and no handler in one: the policy forbids both, so they would do nothing.
    let tags = html.split('<').skip(1).map(|part| part.split_once('>').map_or(part, |(tag, _)| tag));
    for tag in tags {
        let tag: String = tag.split('"').step_by(2).collect();
        for forbidden in [" style=", " onclick=", " onload=", " onerror=", " onfocus=", "javascript:", " src="] {
            assert!(!tag.contains(forbidden), "{forbidden} in <{tag}>");
        }
    }
    assert_eq!(page.header("x-content-type-options"), "nosniff");
    assert_eq!(page.header("referrer-policy"), "same-origin");
    assert_eq!(page.header("cache-control"), "no-store");
}
