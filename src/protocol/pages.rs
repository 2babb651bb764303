//! The registry HTTP API: lists, searches and details as upstream wrote them. Only the URLs of other pages change, to
//! point to larder. Offline, pages are made from the store.

mod permitted;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use indexmap::IndexMap;
use serde::Serialize;
use serde_json::value::{RawValue, Value};
use url::Url;

use self::permitted::{ShownEntries, keep_entries, listed_entries, version_of_details};
use super::route::{Route, RouteContext, service_base};
use super::{Links, url_in_view};
use crate::address::{Address, Hostname, Version};
use crate::error::Error;
use crate::mirror::{
    Answer, Connectivity, Mirror, PageSource, RequestContext, StoredDocument, StoredEntry, StoredList, UpstreamPage,
    latest_version,
};
use crate::upstream::discovery::Service;
use crate::upstream::pages::{PageRef, SpelledVersion};

/// Depth of the search for page URLs: in `meta`, and in the entries of a list.
const MAX_DEPTH: usize = 4;
/// The most version lists that are read for one page, and those that are read at the same time. Pages have at most a hundred
/// entries; under policies further ones are not shown.
const MAX_LISTS: usize = 100;
const CONCURRENT_LISTS: usize = 8;

/// The warning on every page built from the store.
const BUILT_FROM_STORE: &str = "this mirror is offline and has not stored this page: the page was built from the stored packages, and the registry may have more";
const ONLY_STORED_VERSIONS: &str =
    "\"versions\" lists only the versions that can be downloaded while the mirror is offline";
const NONE_VERIFIED: &str = "which modules the registry has verified is not known offline";

/// A page of the registry HTTP API.
pub(super) async fn page(
    mirror: &Arc<Mirror>,
    page: &PageRef,
    call: &RequestContext,
    links: Links<'_>,
) -> Result<Answer<Vec<u8>>, Error> {
    let (page, answer) = permitted_page(mirror, page, call).await?;
    let Answer { value, outcome, fresh_until, checked } = answer;
    let unreadable = |reason| Error::Unreadable { subject: page.label(), reason };
    let body = match value {
        PageSource::Upstream(document) => {
            let (mount, base, view, host) = (links.mount.clone(), links.base.to_owned(), links.view, page.host.clone());
            let service = page.path.service();
            let installable = match mirror.runtime.connectivity() {
                Connectivity::Online => None,
                Connectivity::Offline => mirror.offline.versions_for_page(&page, call).await?,
            };
            let entries = shown_entries(mirror, &page, &document, call).await?;
            let access = match page.details_of().filter(|_| installable.is_some() || !call.access().is_open()) {
                Some((address, _)) => Some(mirror.documents.access_to(&address, call).await?),
                None => None,
            };
            let rewrite = move |mut page: UpstreamPage| {
                if let Some(access) = &access {
                    page.body = keep_versions(&page.body, |version| {
                        let is_installable = installable.as_ref().is_none_or(|versions| versions.contains(version));
                        is_installable && access.allows(version)
                    })?;
                }
                if let Some(entries) = &entries {
                    page.body = keep_entries(&page.body, service, &host, entries)?;
                }
                with_links(&page, service, &host, |path| url_in_view(&mount, &base, view, path))
                    .map_err(|e| e.to_string())
            };
            document.read_page(&page, rewrite).await
        }
        PageSource::List(list) => render_list(&list, &page, links).map_err(|e| e.to_string()),
        PageSource::Details(entry) => render_details(&entry).map_err(|e| e.to_string()),
    };
    Ok(Answer { value: body.map_err(unreadable)?, outcome, fresh_until, checked })
}

/// The page that answers a request under the policies, and its address. The details of the latest version become those of the
/// newest permitted one.
///
/// # Errors
/// [`Error::Refused`] for a version, or an address, that no policy allows.
async fn permitted_page(
    mirror: &Arc<Mirror>,
    page: &PageRef,
    call: &RequestContext,
) -> Result<(PageRef, Answer<PageSource>), Error> {
    let details = page.details_of().filter(|_| !call.access().is_open());
    match &details {
        Some((address, Some(version))) => mirror.documents.permit(address, version, call).await?,
        Some((address, None)) => call.access().permit_any(address)?,
        None => {}
    }
    let answer = mirror.offline.page(page, call).await?;
    let (Some((address, None)), PageSource::Upstream(document)) = (&details, &answer.value) else {
        return Ok((page.clone(), answer));
    };
    let unreadable = |reason| Error::Unreadable { subject: page.label(), reason };
    let latest = document.read_page(page, |page| Ok(version_of_details(&page.body))).await.map_err(unreadable)?;
    if let Some(latest) = latest
        && mirror.documents.access_to(address, call).await?.allows(&latest)
    {
        return Ok((page.clone(), answer));
    }
    let list = mirror.offline.client_versions(address, call).await?.value.list;
    let newest = latest_version(list.versions.iter().map(|listed| &listed.version)).and_then(|newest| list.get(newest));
    let spelling = newest.and_then(|newest| SpelledVersion::parse(&newest.upstream_spelling).ok());
    let spelling =
        spelling.ok_or_else(|| Error::NotFound(format!("the version list of {address} names no version")))?;
    let page = page.of_version(spelling);
    let answer = mirror.offline.page(&page, call).await?;
    Ok((page, answer))
}

/// The versions to show in the entries of a list; `None` without policies, which leave a list as it is.
async fn shown_entries(
    mirror: &Arc<Mirror>,
    page: &PageRef,
    document: &Arc<StoredDocument>,
    call: &RequestContext,
) -> Result<Option<ShownEntries>, Error> {
    let access = call.access();
    if page.details_of().is_some() || access.is_open() {
        return Ok(None);
    }
    let (service, host) = (page.path.service(), page.host.clone());
    let listed = document.read_page(page, move |page| Ok(listed_entries(&page.body, service, &host))).await;
    let listed = listed.map_err(|reason| Error::Unreadable { subject: page.label(), reason })?;
    let judged = listed.into_iter().filter(|(address, _)| access.permit_any(address).is_ok()).take(MAX_LISTS);
    let judge = |(address, version): (Address, Option<Version>)| async move {
        // An entry without a verdict is not shown.
        if let Some(version) = version
            && mirror.documents.access_to(&address, call).await.ok()?.allows(&version)
        {
            return Some((address, version));
        }
        let list = mirror.offline.client_versions(&address, call).await.ok()?.value.list;
        let newest = latest_version(list.versions.iter().map(|listed| &listed.version))?.clone();
        Some((address, newest))
    };
    let shown = stream::iter(judged).map(judge).buffer_unordered(CONCURRENT_LISTS).collect::<Vec<_>>().await;
    Ok(Some(shown.into_iter().flatten().collect()))
}

/// Reduces the `versions` of a details page to those that are `kept`. Everything else stays as upstream wrote it, byte for byte.
///
/// # Errors
/// The reason why the page cannot be read.
pub fn keep_versions(page: &Bytes, is_kept: impl Fn(&Version) -> bool) -> Result<Bytes, String> {
    let text = std::str::from_utf8(page).map_err(|e| e.to_string())?;
    let members: IndexMap<Cow<'_, str>, &RawValue> = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let Some(listed) = members.get("versions") else { return Ok(page.clone()) };
    // What is no list of strings is not read by any client, and cannot be judged.
    let entries: Vec<Value> = serde_json::from_str(listed.get()).unwrap_or_default();
    let is_kept = |entry: &Value| {
        let version = entry.as_str().and_then(|entry| Version::parse_of_module(entry).ok());
        version.is_some_and(|version| is_kept(&version))
    };
    let kept: Vec<Value> = entries.into_iter().filter(is_kept).collect();
    Ok(with_edits(text, &[Edit::new(listed, kept)]).into())
}

/// A value in a page, and its replacement.
struct Edit<'a> {
    original: &'a RawValue,
    /// As JSON.
    replacement: String,
}

impl<'a> Edit<'a> {
    fn new(original: &'a RawValue, replacement: impl Into<Value>) -> Self {
        Self { original, replacement: replacement.into().to_string() }
    }

    /// The position of the value in memory, which orders the values of one text.
    fn position(&self) -> usize {
        self.original.get().as_ptr() as usize
    }
}

/// Replaces values in the text of a page. The edits are in the order of the text.
fn with_edits(text: &str, edits: &[Edit<'_>]) -> String {
    let mut body = String::with_capacity(text.len() + 64 * edits.len());
    let mut copied_bytes = 0;
    for Edit { original, replacement } in edits {
        // Raw values borrow from the text, so the difference of the pointers is the offset in the text.
        let start = original.get().as_ptr() as usize - text.as_ptr() as usize;
        body.push_str(text.get(copied_bytes..start).unwrap_or_default());
        body.push_str(replacement);
        copied_bytes = start + original.get().len();
    }
    body.push_str(text.get(copied_bytes..).unwrap_or_default());
    body
}

/// Rewrites the URLs of other pages in a page: members that end in `_url` and point below a base of its service. A URL
/// that larder cannot serve, and a next or previous page that is not below a base, become null: they would bypass
/// larder, or reveal an address that only larder can reach. Everything else stays as upstream wrote it, byte for byte.
pub fn with_links(
    page: &UpstreamPage,
    service: Service,
    host: &Hostname,
    link: impl Fn(&str) -> String,
) -> serde_json::Result<Vec<u8>> {
    let text = std::str::from_utf8(&page.body).map_err(serde::de::Error::custom)?;
    let root: &RawValue = serde_json::from_str(text)?;
    let mut edits = Vec::new();
    let rewrite = |name: &str, reference: &str| {
        let rewritten = rewrite_url(name, reference, page, service, host, &link);
        if rewritten == Some(Value::Null) {
            tracing::debug!(registry = %host, member = name, "a URL in a page cannot be served by larder, and becomes null");
        }
        rewritten
    };
    find_links(root, MAX_DEPTH, &rewrite, &mut edits);
    Ok(with_edits(text, &edits).into_bytes())
}

/// Finds the URLs to replace, in the order of the text.
fn find_links<'a>(
    raw: &'a RawValue,
    depth: usize,
    rewrite: &impl Fn(&str, &str) -> Option<Value>,
    edits: &mut Vec<Edit<'a>>,
) {
    let text = raw.get();
    if depth == 0 || !text.contains("_url\"") {
        return;
    }
    if text.starts_with('[') {
        let entries: Vec<&RawValue> = serde_json::from_str(text).unwrap_or_default();
        entries.into_iter().for_each(|entry| find_links(entry, depth - 1, rewrite, edits));
        return;
    }
    let members: IndexMap<Cow<'a, str>, &RawValue> = serde_json::from_str(text).unwrap_or_default();
    let mut member_edits = Vec::new();
    for (name, value) in members {
        match name.ends_with("_url").then(|| serde_json::from_str::<String>(value.get()).ok()).flatten() {
            Some(url) => member_edits.extend(rewrite(&name, &url).map(|replacement| Edit::new(value, replacement))),
            None => find_links(value, depth - 1, rewrite, &mut member_edits),
        }
    }
    // Of two members with the same name the map has the last value at the position of the first, so the edits are sorted
    // by their position in the text.
    member_edits.sort_by_key(Edit::position);
    edits.append(&mut member_edits);
}

/// Members that point to the next and previous page of a list.
const PAGING_MEMBERS: [&str; 2] = ["next_url", "prev_url"];

/// Returns the replacement of the URL `reference` in the member `name`: a URL of larder, or null if larder cannot serve
/// the page. `None` if the URL stays.
fn rewrite_url(
    name: &str,
    reference: &str,
    page: &UpstreamPage,
    service: Service,
    host: &Hostname,
    link: &impl Fn(&str) -> String,
) -> Option<Value> {
    if reference.is_empty() {
        return None;
    }
    let null_if_paging = || PAGING_MEMBERS.contains(&name).then_some(Value::Null);
    let Ok(url) = page.url.join(reference) else { return null_if_paging() };
    let base = service_base(host, service);
    let Some(path_below_base) = page.bases.iter().find_map(|base| path_below_base(&url, base)) else {
        return null_if_paging();
    };
    let route_context = RouteContext { upstreams: [host.clone()].into(), default_upstream: None };
    let route = Route::parse(&format!("{base}{path_below_base}"), url.query(), None, &route_context).ok();
    Some(route.map(|route| link(&route.path())).into())
}

/// The path of a URL below a base. The list of everything may lack the base's final slash.
fn path_below_base<'a>(url: &'a Url, base: &Url) -> Option<&'a str> {
    if url.origin() != base.origin() {
        return None;
    }
    let (path, base) = (url.path(), base.path());
    if Some(path) == base.strip_suffix('/') { Some("") } else { path.strip_prefix(base) }
}

#[derive(Serialize)]
struct PageListBody<'a> {
    meta: Meta,
    /// The list, named by the service.
    #[serde(flatten)]
    entries: BTreeMap<&'static str, Vec<PageEntry<'a>>>,
    warnings: Vec<&'static str>,
}

/// The position of a page in its list, in the protocol's form.
#[derive(Serialize)]
struct Meta {
    limit: u32,
    current_offset: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_offset: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prev_offset: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prev_url: Option<String>,
}

/// A module or provider, described without its registry.
#[derive(Serialize)]
struct PageEntry<'a> {
    id: String,
    namespace: &'a str,
    name: &'a str,
    version: &'a Version,
    #[serde(skip_serializing_if = "Option::is_none")]
    provider: Option<&'a str>,
}

impl<'a> From<&'a StoredEntry> for PageEntry<'a> {
    fn from(entry: &'a StoredEntry) -> Self {
        let id = format!("{}/{}", entry.address.path(), entry.version);
        let (namespace, name, provider) = match &entry.address {
            Address::Module(module) => (module.namespace.as_str(), module.name.as_str(), Some(module.system.as_str())),
            Address::Provider(provider) => (provider.namespace.as_str(), provider.type_.as_str(), None),
        };
        Self { id, namespace, name, version: &entry.version, provider }
    }
}

#[derive(Serialize)]
struct Details<'a> {
    #[serde(flatten)]
    entry: PageEntry<'a>,
    versions: &'a [Version],
    warnings: [&'static str; 2],
}

fn render_details(entry: &StoredEntry) -> serde_json::Result<Vec<u8>> {
    let warnings = [BUILT_FROM_STORE, ONLY_STORED_VERSIONS];
    serde_json::to_vec(&Details { entry: entry.into(), versions: &entry.versions, warnings })
}

fn render_list(list: &StoredList, page: &PageRef, links: Links<'_>) -> serde_json::Result<Vec<u8>> {
    let StoredList { entries, total, offset, limit } = list;
    let next = offset.saturating_add(*limit);
    let next = Some(next).filter(|next| (*next as usize) < *total);
    let previous = Some(offset.saturating_sub(*limit)).filter(|_| *offset > 0);
    let page_at = |offset: u32| {
        let page = PageRef { query: page.query.with_offset(offset), ..page.clone() };
        links.url(&Route::Page(page).path())
    };
    let meta = Meta {
        limit: *limit,
        current_offset: *offset,
        next_offset: next,
        next_url: next.map(page_at),
        prev_offset: previous,
        prev_url: previous.map(page_at),
    };
    let name = match page.path.service() {
        Service::Modules => "modules",
        Service::Providers => "providers",
    };
    let verified_warning = page.query.is_verified_only.then_some(NONE_VERIFIED);
    serde_json::to_vec(&PageListBody {
        meta,
        entries: [(name, entries.iter().map(PageEntry::from).collect())].into(),
        warnings: [BUILT_FROM_STORE].into_iter().chain(verified_warning).collect(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::upstream::providers::RawObject;

    const PAGE_URL: &str = "https://registry.example/v1/modules?limit=2";

    fn rewrite_links(body: &str) -> String {
        let page = UpstreamPage {
            body: body.to_owned().into(),
            url: Url::parse(PAGE_URL).unwrap(),
            bases: vec![Url::parse("https://registry.example/v1/modules/").unwrap()],
        };
        let host = Hostname::parse("registry.example").unwrap();
        String::from_utf8(with_links(&page, Service::Modules, &host, str::to_owned).unwrap()).unwrap()
    }

    #[test]
    fn page_urls_are_rewritten_or_nulled_and_other_urls_stay() {
        let larder_path = "/registry/registry.example/v1/modules";
        for (given, rewritten) in [
            ("/v1/modules?limit=2&offset=2", Some(format!("{larder_path}?limit=2&offset=2"))),
            ("/v1/modules/?offset=2&limit=2", Some(format!("{larder_path}?limit=2&offset=2"))),
            ("?offset=4", Some(format!("{larder_path}?offset=4"))),
            (
                "https://registry.example/v1/modules/search?q=a+b&offset=2",
                Some(format!("{larder_path}/search?offset=2&q=a+b")),
            ),
            ("modules/A/b/aws/1.0.0/download", Some(format!("{larder_path}/A/b/aws/1.0.0/download"))),
            ("/v1/modules?offset=2&utm_source=x", Some(format!("{larder_path}?offset=2"))),
            ("", None),
        ] {
            let body = format!(r#"{{ "meta" : {{"next_url":"{given}","x":1e400}},"modules":[ 1.50 ]}}"#);
            let expected = match rewritten {
                Some(rewritten) => body.replace(&format!("\"{given}\""), &format!("\"{rewritten}\"")),
                None => body.clone(),
            };
            assert_eq!(rewrite_links(&body), expected, "{given}");
        }
        // A `next_url` or `prev_url` that larder cannot serve becomes null: it would bypass larder, or reveal an address that
        // only larder reaches.
        for unservable_url in [
            "/v1/modules?cursor=abc",
            "/v1/modules?offset=x",
            "http://10.0.0.1/v1/modules?token=secret",
            "https://elsewhere.example/v1/modules?offset=2",
            "/v1/modulesque?offset=2",
            "https://[",
        ] {
            for name in ["next_url", "prev_url"] {
                let body =
                    format!(r#"{{ "meta" : {{"{name}":"{unservable_url}","next_offset":2}},"modules":[ 1.50 ]}}"#);
                assert_eq!(
                    rewrite_links(&body),
                    body.replace(&format!("\"{unservable_url}\""), "null"),
                    "{unservable_url}"
                );
            }
        }
        // Any other `_url` member becomes null if it points to a page of the API that larder cannot serve.
        let unservable_page = r#"{"page_url":"/v1/modules?cursor=abc"}"#;
        assert_eq!(rewrite_links(unservable_page), r#"{"page_url":null}"#);
        // URLs outside of the API stay.
        let outside = r#"{"logo_url":"/images/logo.png","page_url":"https://elsewhere.example/v1/modules?offset=2"}"#;
        assert_eq!(rewrite_links(outside), outside);
        let list = r#"{"modules":[{"x": 1e400,"page_url":"/v1/modules/a"},{"source":"/v1/modules/a"}]}"#;
        let expected_body =
            list.replace("\"page_url\":\"/v1/modules/a\"", &format!("\"page_url\":\"{larder_path}/a\""));
        assert_eq!(rewrite_links(list), expected_body);
        // Of two members with the same name the last counts.
        let duplicate = r#"{"next_url":"/v1/modules/a","x":{"y_url":"/v1/modules/b"},"next_url":"\/v1/modules/c"}"#;
        let expected_body = duplicate
            .replace("/v1/modules/b", &format!("{larder_path}/b"))
            .replace("\\/v1/modules/c", &format!("{larder_path}/c"));
        assert_eq!(rewrite_links(duplicate), expected_body);
    }

    proptest! {
        #[test]
        fn invalid_pages_do_not_panic_and_only_url_members_change(
            members in prop::collection::btree_map("[a-z_\\\\\"é]{0,4}(_url)?", "null|1e400|\\[ *\\]|\"\\PC{0,20}\"|\"(https?:)?(//)?[a-z./?&=@:]{0,20}\"", 0..5),
            body in "\\PC{0,60}",
        ) {
            let page = |body: String| UpstreamPage { body: body.into(), url: Url::parse(PAGE_URL).unwrap(), bases: vec![Url::parse("https://registry.example/v1/modules/").unwrap()] };
            let host = Hostname::parse("registry.example").unwrap();
            let _ = with_links(&page(body), Service::Modules, &host, str::to_owned);
            let members: Vec<String> = members.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
            let body = format!("{{\"meta\": {{{}}}}}", members.join(" , "));
            let Ok(original) = serde_json::from_str::<indexmap::IndexMap<String, RawObject>>(&body) else { return Ok(()) };
            let Ok(rewritten_body) = with_links(&page(body.clone()), Service::Modules, &host, str::to_owned) else { return Ok(()) };
            let rewritten: indexmap::IndexMap<String, RawObject> = serde_json::from_slice(&rewritten_body).unwrap();
            for (name, value) in &original["meta"] {
                let new_value = rewritten["meta"][name].get();
                let is_rewritten = name.ends_with("_url") && (new_value.contains("/registry/registry.example/v1/") || new_value == "null");
                prop_assert!(new_value == value.get() || is_rewritten, "{name}: {} became {new_value}", value.get());
            }
        }
    }

    /// Reduces the versions of a details page to `versions`.
    fn kept_versions(body: &str, versions: &[&str]) -> Result<String, String> {
        let versions: Vec<Version> = versions.iter().map(|version| Version::parse(version).unwrap()).collect();
        keep_versions(&Bytes::copy_from_slice(body.as_bytes()), |version| versions.contains(version))
            .map(|page| String::from_utf8(page.to_vec()).unwrap())
    }

    #[test]
    fn only_the_versions_of_a_details_page_change() {
        let stored = ["1.0.0", "1.1.0"];
        for (body, expected) in [
            (
                r#"{ "a" : 1e400,"versions":[ "1.0","v1.1.0", "2.0.0" ] , "b":"ü"}"#,
                r#"{ "a" : 1e400,"versions":["1.0","v1.1.0"] , "b":"ü"}"#,
            ),
            (r#"{"versions":["2.0.0","no version"]}"#, r#"{"versions":[]}"#),
            (r#"{"versions":[]}"#, r#"{"versions":[]}"#),
            // Text that is no version is not shown.
            (r#"{"versions":7,"x":[]}"#, r#"{"versions":[],"x":[]}"#),
            (r#"{"versions":[{"version":"1.0.0"}, "1.0.0"]}"#, r#"{"versions":["1.0.0"]}"#),
            // Without a top-level list of versions the page stays as it is.
            (r#"{"meta":{"versions":["2.0.0"]}}"#, r#"{"meta":{"versions":["2.0.0"]}}"#),
        ] {
            assert_eq!(kept_versions(body, &stored), Ok(expected.to_owned()));
        }
        assert!(kept_versions("[]", &stored).is_err());
    }

    proptest! {
        #[test]
        fn filtering_versions_keeps_only_the_given_ones_and_is_idempotent(text in "\\PC{0,60}|\\{\"versions\":\\[(\"[0-9.v]{0,6}\",?){0,4}\\](,\"x\":\\PC{0,9})?\\}") {
            if let Ok(filtered) = kept_versions(&text, &["1.0.0"]) {
                let page: serde_json::Value = serde_json::from_str(&filtered).unwrap();
                let listed = page["versions"].as_array().into_iter().flatten().filter_map(|entry| entry.as_str());
                prop_assert!(page["versions"].as_array().is_none_or(|entries| entries.iter().any(|entry| !entry.is_string())) || listed.into_iter().all(|entry| Version::parse_of_module(entry).is_ok_and(|version| version.as_str() == "1.0.0")));
                prop_assert_eq!(kept_versions(&filtered, &["1.0.0"]), Ok(filtered.clone()));
            }
        }
    }
}
