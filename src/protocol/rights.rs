//! The rights of clients that authenticate, and the archive URLs that carry them. Clients fetch archives without credentials
//! (PROTOCOL 1.4), so the URL in an answer to a client proves for two hours at most that larder gave it: it holds the hour of
//! its end, the class of rights, and an HMAC over both and the path. Who has it within that time can use it, for that path.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use secrecy::{ExposeSecret as _, SecretString};
use subtle::ConstantTimeEq as _;

use crate::address::AddressPattern;
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::policy::ClientLimits;

/// The first character of the segment that holds the proof.
pub const URL_TOKEN_MARK: char = '~';
/// The first segment of archive paths, with its slashes.
const ARCHIVE: &str = "/archive/";
/// Seconds of an hour.
const HOUR: u64 = 3600;
/// The hours that a URL counts: the one in which it is made, and the next.
const HOURS: u64 = 2;
/// Bytes of the HMAC in a URL.
const TAG_BYTES: usize = 16;
/// Bytes of the name of a class.
const CLASS_BYTES: usize = 8;
/// Bytes of the end of a URL's time.
const END_BYTES: usize = 4;
/// Separates these proofs from other uses of the key.
const PURPOSE: &[u8] = b"larder archive URL 1\0";

/// The name of a class of rights in URLs.
type ClassId = [u8; CLASS_BYTES];

/// The rights of a class of clients. Clients of one class share rendered answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RightsClass {
    addresses: Option<Vec<AddressPattern>>,
    id: ClassId,
    /// The name in hex, for the keys of rendered answers.
    tag: String,
}

impl RightsClass {
    /// The class of clients that may use these addresses; `None` for all.
    pub fn new(addresses: Option<Vec<AddressPattern>>) -> Self {
        let text = match &addresses {
            None => "*".to_owned(),
            Some(addresses) => {
                let mut texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                texts.sort();
                texts.dedup();
                texts.join("\n")
            }
        };
        let mut id = ClassId::default();
        let digest = Digest::of(text.as_bytes());
        id.iter_mut().zip(digest.as_bytes()).for_each(|(byte, of_digest)| *byte = *of_digest);
        Self { addresses, id, tag: format!("~{}", hex::encode(id)) }
    }

    /// The name of the class, for keys of rendered answers.
    pub fn tag(&self) -> &str {
        &self.tag
    }
}

/// The rights of a request.
#[derive(Debug, Clone, Default)]
pub enum Rights {
    /// Those of a larder without tokens, or of its own user: everything.
    #[default]
    All,
    /// Those of a class.
    Of(Arc<RightsClass>),
}

impl Rights {
    /// The limits of the client beside those of its view.
    pub fn limit(&self, limits: ClientLimits) -> ClientLimits {
        match self {
            Self::All => limits,
            Self::Of(class) => ClientLimits { addresses: class.addresses.clone(), ..limits },
        }
    }

    /// The class; `None` for everything.
    pub fn class(&self) -> Option<&RightsClass> {
        if let Self::Of(class) = self { Some(class) } else { None }
    }
}

/// Why an archive URL is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadArchiveUrl {
    /// It was not made here for this path.
    #[error("this archive URL was not made by this mirror for this path")]
    Forged,
    /// Its time is over.
    #[error("this archive URL has expired: ask for the document again that named it")]
    Expired,
    /// No client has these rights any more.
    #[error(
        "no client of this mirror has the rights of this archive URL any more: ask for the document again that named it"
    )]
    Withdrawn,
}

/// Makes archive URLs, and checks them.
#[derive(Debug)]
pub struct ArchiveUrls {
    /// The first one signs, all are accepted.
    keys: Vec<hmac::Key>,
    classes: HashMap<ClassId, Arc<RightsClass>>,
}

impl ArchiveUrls {
    /// URLs of these classes, made with the first of these secret keys; those made with another one are accepted.
    pub fn new(keys: &[SecretString], classes: impl IntoIterator<Item = Arc<RightsClass>>) -> Self {
        let classes = classes.into_iter().map(|class| (class.id, class)).collect();
        let key = |key: &SecretString| hmac::Key::new(hmac::HMAC_SHA256, key.expose_secret().as_bytes());
        Self { keys: keys.iter().map(key).collect(), classes }
    }

    /// The path of an archive for clients of a class: `/archive/~TOKEN/…`.
    pub fn signed(&self, class: &RightsClass, path: &str, now: Timestamp) -> String {
        let Some(below) = path.strip_prefix(ARCHIVE) else { return path.to_owned() };
        let end = u32::try_from(now.0 / HOUR + HOURS).unwrap_or(u32::MAX).to_be_bytes();
        let Some(tag) = self.keys.first().map(|key| tag(key, end, class.id, path)) else { return path.to_owned() };
        let token = [&end[..], &class.id, &tag].concat();
        format!("{ARCHIVE}{URL_TOKEN_MARK}{}/{below}", URL_SAFE_NO_PAD.encode(token))
    }

    /// The class of rights that an archive URL proves.
    ///
    /// # Errors
    /// [`BadArchiveUrl`].
    pub fn check(&self, token: &str, path: &str, now: Timestamp) -> Result<Arc<RightsClass>, BadArchiveUrl> {
        let token = URL_SAFE_NO_PAD.decode(token).map_err(|_| BadArchiveUrl::Forged)?;
        let (end, rest) = token.split_first_chunk::<END_BYTES>().ok_or(BadArchiveUrl::Forged)?;
        let (class, tag) = rest.split_first_chunk::<CLASS_BYTES>().ok_or(BadArchiveUrl::Forged)?;
        if !self.keys.iter().any(|key| bool::from(self::tag(key, *end, *class, path).ct_eq(tag))) {
            return Err(BadArchiveUrl::Forged);
        }
        let (end, hour) = (u64::from(u32::from_be_bytes(*end)), now.0 / HOUR);
        // One from the future was made before the clock was set back.
        if end <= hour || end > hour + HOURS {
            return Err(BadArchiveUrl::Expired);
        }
        self.classes.get(class).cloned().ok_or(BadArchiveUrl::Withdrawn)
    }

    /// The moment at which answers with URLs that are made now must be made anew.
    pub fn fresh_until(now: Timestamp) -> Timestamp {
        Timestamp((now.0 / HOUR + 1).saturating_mul(HOUR))
    }
}

fn tag(key: &hmac::Key, end: [u8; END_BYTES], class: ClassId, path: &str) -> [u8; TAG_BYTES] {
    let mut context = hmac::Context::with_key(key);
    for part in [PURPOSE, &end, &class, path.as_bytes()] {
        context.update(part);
    }
    let mut tag = [0; TAG_BYTES];
    tag.iter_mut().zip(context.sign().as_ref()).for_each(|(byte, of_tag)| *byte = *of_tag);
    tag
}

/// The mark as some tools spell it (RFC 3986, section 2.3).
const ENCODED_MARKS: [&str; 2] = ["%7E", "%7e"];

/// A segment without the mark of a proof, in any spelling; `None` for another segment.
fn proof_in(segment: &str) -> Option<&str> {
    let marks = ENCODED_MARKS.into_iter().find_map(|mark| segment.strip_prefix(mark));
    marks.or_else(|| segment.strip_prefix(URL_TOKEN_MARK))
}

/// Splits an archive path into its proof and the path without it. Another path stays whole.
pub fn split_url_token(path: &str) -> (Option<&str>, Cow<'_, str>) {
    let below = path.strip_prefix(ARCHIVE).and_then(|below| below.split_once('/'));
    match below.and_then(|(first, rest)| Some((proof_in(first)?, rest))) {
        Some((proof, rest)) => (Some(proof), Cow::Owned(format!("{ARCHIVE}{rest}"))),
        None => (None, Cow::Borrowed(path)),
    }
}

/// A path for people and logs, without any segment that could be a proof: whoever has that can use it.
pub fn without_url_token(path: &str) -> Cow<'_, str> {
    if !path.split('/').any(|segment| proof_in(segment).is_some()) {
        return Cow::Borrowed(path);
    }
    Cow::Owned(path.split('/').filter(|segment| proof_in(segment).is_none()).collect::<Vec<_>>().join("/"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PATH: &str = "/archive/registry.example/providers/acme/null/1.0.0/linux_amd64/0123456789abcdef/null.zip";
    const NOW: Timestamp = Timestamp(1_795_900_000);

    fn class(addresses: &[&str]) -> Arc<RightsClass> {
        let addresses = addresses.iter().map(|text| AddressPattern::parse(text).unwrap()).collect();
        Arc::new(RightsClass::new(Some(addresses)))
    }

    fn urls(classes: &[&Arc<RightsClass>]) -> ArchiveUrls {
        ArchiveUrls::new(&["a key".into()], classes.iter().map(|class| Arc::clone(class)))
    }

    #[test]
    fn a_url_counts_for_its_path_within_its_time() {
        let (one, other) = (class(&["acme/*"]), class(&["other/*"]));
        let urls = urls(&[&one, &other]);
        let signed = urls.signed(&one, PATH, NOW);
        let (token, path) = split_url_token(&signed);
        let token = token.unwrap();
        assert_eq!(path, PATH);
        for path in
            [signed.clone(), signed.replace('~', "%7E"), signed.replace('~', "%7e").replace("archive", "%61rchive")]
        {
            let logged = without_url_token(&path).into_owned();
            assert_eq!(logged.replace("%61", "a"), PATH, "{path}");
        }
        assert_eq!(split_url_token(&signed.replace('~', "%7E")).0, Some(token));
        let at = |seconds: u64| urls.check(token, PATH, Timestamp(NOW.0 + seconds)).map(|class| class.id);
        assert_eq!(at(0), Ok(one.id));
        assert_eq!(at(HOUR), Ok(one.id), "an answer is used for an hour");
        assert_eq!(at(2 * HOUR), Err(BadArchiveUrl::Expired));
        assert_eq!(urls.check(token, PATH, Timestamp(NOW.0 - 3 * HOUR)), Err(BadArchiveUrl::Expired));
        assert_eq!(urls.check(token, &PATH.replace("null", "evil"), NOW), Err(BadArchiveUrl::Forged));
        assert_eq!(ArchiveUrls::new(&["another".into()], [one]).check(token, PATH, NOW), Err(BadArchiveUrl::Forged));
        let without = ArchiveUrls::new(&["a key".into()], [other]);
        assert_eq!(without.check(token, PATH, NOW), Err(BadArchiveUrl::Withdrawn));
    }

    #[test]
    fn clients_with_the_same_addresses_are_one_class() {
        assert_eq!(class(&["a/*", "b/*"]).id, class(&["b/*", "a/*", "a/*"]).id);
        assert_ne!(class(&["a/*"]).id, class(&["*"]).id);
        assert_ne!(RightsClass::new(None).id, class(&[]).id);
    }

    proptest! {
        /// No other text than the one that larder made is a proof, and none makes it panic.
        #[test]
        fn a_changed_url_is_refused(index in any::<prop::sample::Index>(), replaced in "[A-Za-z0-9_-]", text in "\\PC{0,60}") {
            let one = class(&["acme/*"]);
            let urls = urls(&[&one]);
            let signed = urls.signed(&one, PATH, NOW);
            let token = split_url_token(&signed).0.unwrap().to_owned();
            prop_assert!(urls.check(&text, PATH, NOW).is_err());
            let mut changed = token.clone();
            let at = index.index(changed.len());
            changed.replace_range(at..=at, &replaced);
            prop_assert_eq!(urls.check(&changed, PATH, NOW).is_ok(), changed == token);
            let _ = split_url_token(&text);
            let _ = without_url_token(&text);
        }
    }
}
