//! Reason phrases: the one text of an HTTP/1.1 error that Terraform and OpenTofu print whole, `502 larder: cause; remedy`
//! (PROTOCOL 10). HTTP/2 has none, and leaves them out.

use hyper::ext::ReasonPhrase;

use crate::error::Explanation;

/// In bytes: as long as a terminal shows without burying the rest.
const LONGEST: usize = 200;
const BEGIN: &str = "larder: ";
const CUT: &str = "...";

/// The phrase of an error, in printable ASCII. Of one that is too long the cause is cut, so that the remedy stays.
pub(super) fn of(why: &Explanation) -> Option<ReasonPhrase> {
    ReasonPhrase::try_from(text(why).into_bytes()).ok()
}

fn text(why: &Explanation) -> String {
    // The usual scheme says nothing, and takes room.
    let cause = printable(&why.cause).replace("https://", "");
    let remedy = why.remedy.as_deref().map(|remedy| format!("; {}", printable(remedy))).unwrap_or_default();
    let room = LONGEST - BEGIN.len();
    // A remedy that leaves no room for the cause is none for a phrase.
    let remedy = if remedy.len() <= room / 2 || cause.len() + remedy.len() <= room { remedy } else { String::new() };
    format!("{BEGIN}{}{remedy}", cut(cause, room - remedy.len()))
}

fn printable(text: &str) -> String {
    let letter = |letter: char| match letter {
        '\u{2026}' => CUT.to_owned(),
        letter if letter.is_ascii_graphic() => letter.to_string(),
        letter if letter.is_whitespace() || letter.is_control() => " ".to_owned(),
        _ => "?".to_owned(),
    };
    let letters: String = text.chars().map(letter).collect();
    letters.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

fn cut(mut text: String, room: usize) -> String {
    if text.len() > room {
        text.truncate(room - CUT.len());
        text.push_str(CUT);
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn explanation(cause: &str, remedy: &str) -> Explanation {
        let why = Explanation::of(cause);
        if remedy.is_empty() { why } else { why.remedied_by(remedy) }
    }

    /// Promise 15: cause first, remedy second, no subject.
    #[test]
    fn a_phrase_tells_the_cause_and_the_remedy_and_leaves_the_subject_to_the_client() {
        let why = explanation("https://registry.example: name not found", "check larder's DNS")
            .about("the list of acme/null");
        assert_eq!(text(&why), "larder: registry.example: name not found; check larder's DNS");
        let long = explanation(&"c".repeat(300), "run `larder accept hashicorp/null@1.0.0`");
        assert!(text(&long).ends_with("ccc...; run `larder accept hashicorp/null@1.0.0`"));
        assert_eq!(text(&long).len(), LONGEST);
        assert_eq!(text(&explanation("cause", &"r".repeat(300))), "larder: cause");
        assert_eq!(text(&explanation("a\r\nb\t\u{2026}\u{e9}\0", "")), "larder: a b ...?");
    }

    proptest! {
        /// Promise 15: nothing breaks the status line, or makes it long.
        #[test]
        fn any_error_makes_a_phrase_of_printable_ascii(cause in "(?s).{0,300}", remedy in "(?s).{0,300}") {
            let text = text(&explanation(&cause, &remedy));
            prop_assert!(text.len() <= LONGEST && text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()));
            prop_assert!(of(&explanation(&cause, &remedy)).is_some());
        }
    }
}
