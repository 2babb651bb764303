//! The registry HTTP API: lists, searches and details as upstream wrote them. Only the URLs of other pages change, to
//! point to larder (seed 002). Offline, pages are made from the store.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use indexmap::IndexMap;
use serde::Serialize;
use serde_json::value::RawValue;
use url::Url;

use super::Links;
use super::route::{Route, RouteContext, modules_base, providers_base};
use crate::address::{Hostname, ModuleAddress, ProviderAddress, Version};
use crate::error::Error;
use crate::mirror::{
    Answer, Connectivity, Mirror, PageFromStore, PageSource, RequestContext, StoredDetails, StoredEntry, StoredList,
    StoredSubject, UpstreamPage,
};
use crate::upstream::discovery::Service;
use crate::upstream::pages::PageRef;

/// Depth of the search for page URLs: in `meta`, and in the entries of a list.
const DEPTH: usize = 4;

/// The warning on every page made from the store.
const FROM_STORE: &str = "this mirror is offline and does not hold this page: the answer is made of what it has stored, and is not all that the registry has";
const ONLY_HELD_ARE_LISTED: &str = "\"versions\" lists those that can be downloaded while it is offline, and no others";
const NONE_VERIFIED: &str = "which modules the registry has verified is not known offline";

/// A page of the registry HTTP API.
pub(super) async fn page(
    mirror: &Arc<Mirror>,
    page: &PageRef,
    call: &RequestContext,
    links: Links<'_>,
) -> Result<Answer<Vec<u8>>, Error> {
    let Answer { value, outcome, fresh_until, checked } = mirror.page(page, call).await?;
    let unreadable = |reason: String| Error::Interrupted(format!("{} cannot be read: {reason}", page.label()));
    let body = match value {
        PageSource::Upstream(document) => {
            let (mount, base, host) = (links.mount.clone(), links.base.clone().into_owned(), page.host.clone());
            let service = page.path.service();
            let installable = match mirror.connectivity() {
                Connectivity::Online => None,
                Connectivity::Offline => mirror.versions_for_page(page).await?,
            };
            let rewritten = move |found: UpstreamPage| {
                let found = match &installable {
                    Some(versions) => UpstreamPage { body: keep_versions(&found.body, versions)?, ..found },
                    None => found,
                };
                with_links(&found, service, &host, |path| mount.url(&base, path)).map_err(|e| e.to_string())
            };
            document.read_page(page, rewritten).await.map_err(unreadable)?
        }
        PageSource::Built(found) => match *found {
            PageFromStore::List(list) => list_of(&list, page, links),
            PageFromStore::Details(details) => details_of(&details),
        }
        .map_err(|e| unreadable(e.to_string()))?,
    };
    Ok(Answer { value: body, outcome, fresh_until, checked })
}

/// Reduces the `versions` of a details page to these. Everything else stays as upstream wrote it, byte for byte.
///
/// # Errors
/// The reason why the page cannot be read.
pub fn keep_versions(page: &Bytes, versions: &[Version]) -> Result<Bytes, String> {
    let text = std::str::from_utf8(page).map_err(|e| e.to_string())?;
    let members: IndexMap<Cow<'_, str>, &RawValue> = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let Some(listed) = members.get("versions") else { return Ok(page.clone()) };
    // Not a list of strings: no client can choose from it.
    let Ok(entries) = serde_json::from_str::<Vec<String>>(listed.get()) else { return Ok(page.clone()) };
    let is_among = |entry: &String| Version::parse_lenient(entry).is_ok_and(|version| versions.contains(&version));
    let left: Vec<&String> = entries.iter().filter(|entry| is_among(entry)).collect();
    let left = serde_json::to_string(&left).map_err(|e| e.to_string())?;
    // Raw values borrow from the text, so the difference of the pointers is the offset.
    let start = listed.get().as_ptr() as usize - text.as_ptr() as usize;
    let (before, after) = (text.get(..start), text.get(start + listed.get().len()..));
    Ok([before.unwrap_or_default(), &left, after.unwrap_or_default()].concat().into())
}

/// Rewrites the URLs of other pages in a page: members that end in `_url` and point below a base of its service. A URL
/// that larder cannot serve, and a further page that is not below a base, become null: they would bypass larder, or
/// reveal an address that only larder can reach. Everything else stays as upstream wrote it, byte for byte.
pub fn with_links(
    page: &UpstreamPage,
    service: Service,
    host: &Hostname,
    link: impl Fn(&str) -> String,
) -> serde_json::Result<Vec<u8>> {
    let text = std::str::from_utf8(&page.body).map_err(serde::de::Error::custom)?;
    let whole: &RawValue = serde_json::from_str(text)?;
    let mut edits = Vec::new();
    let rewrite = |name: &str, reference: &str| {
        let rewritten = rewrite_url(name, reference, page, service, host, &link);
        if rewritten == Some(RewrittenUrl::Null) {
            tracing::debug!(registry = %host, member = name, "a page leads to one that cannot be asked for here; it is left out");
        }
        rewritten
    };
    find_links(whole, DEPTH, &rewrite, &mut edits);
    let mut body = String::with_capacity(text.len() + 64 * edits.len());
    let mut copied = 0;
    for UrlEdit { original, rewritten } in edits {
        // Raw values borrow from the text, in its order.
        let start = original.get().as_ptr() as usize - text.as_ptr() as usize;
        body.push_str(text.get(copied..start).unwrap_or_default());
        match rewritten {
            RewrittenUrl::ToLarder(url) => body.push_str(&serde_json::to_string(&url)?),
            RewrittenUrl::Null => body.push_str("null"),
        }
        copied = start + original.get().len();
    }
    body.push_str(text.get(copied..).unwrap_or_default());
    Ok(body.into_bytes())
}

/// A string in a page, and its replacement.
struct UrlEdit<'a> {
    original: &'a RawValue,
    rewritten: RewrittenUrl,
}

/// The replacement of a URL.
#[derive(Debug, PartialEq, Eq)]
enum RewrittenUrl {
    /// A URL of larder.
    ToLarder(String),
    /// Larder has no such page: null.
    Null,
}

/// Finds the URLs to replace, in the order of the text.
fn find_links<'a>(
    raw: &'a RawValue,
    depth: usize,
    rewrite: &impl Fn(&str, &str) -> Option<RewrittenUrl>,
    edits: &mut Vec<UrlEdit<'a>>,
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
    let mut of_members = Vec::new();
    for (name, value) in members {
        match name.ends_with("_url").then(|| serde_json::from_str::<String>(value.get()).ok()).flatten() {
            Some(url) => {
                of_members.extend(rewrite(&name, &url).map(|rewritten| UrlEdit { original: value, rewritten }))
            }
            None => find_links(value, depth - 1, rewrite, &mut of_members),
        }
    }
    // Of two members with one name the last counts, but the map has it at the position of the first.
    of_members.sort_by_key(|edit| edit.original.get().as_ptr() as usize);
    edits.append(&mut of_members);
}

/// Members that point to other pages of a list.
const FURTHER: [&str; 2] = ["next_url", "prev_url"];

/// Rewrites a URL in a page; `None` if it points to no page.
fn rewrite_url(
    name: &str,
    reference: &str,
    page: &UpstreamPage,
    service: Service,
    host: &Hostname,
    link: &impl Fn(&str) -> String,
) -> Option<RewrittenUrl> {
    if reference.is_empty() {
        return None;
    }
    let elsewhere = || FURTHER.contains(&name).then_some(RewrittenUrl::Null);
    let Ok(url) = page.url.join(reference) else { return elsewhere() };
    let base = match service {
        Service::Modules => modules_base(host),
        Service::Providers => providers_base(host),
    };
    let Some(below) = page.bases.iter().find_map(|base| below(&url, base)) else { return elsewhere() };
    let door = RouteContext { upstreams: [host.clone()].into(), default_upstream: None };
    let route = Route::parse(&format!("{base}{below}"), url.query(), None, &door).ok();
    Some(route.map_or(RewrittenUrl::Null, |route| RewrittenUrl::ToLarder(link(&route.path()))))
}

/// The path of a URL below a base. The list of everything may lack the base's final slash.
fn below<'a>(url: &'a Url, base: &Url) -> Option<&'a str> {
    if url.origin() != base.origin() {
        return None;
    }
    let (path, base) = (url.path(), base.path());
    if Some(path) == base.strip_suffix('/') { Some("") } else { path.strip_prefix(base) }
}

#[derive(Serialize)]
struct PageListBody<'a> {
    meta: Meta,
    #[serde(skip_serializing_if = "Option::is_none")]
    modules: Option<Vec<PageEntry<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    providers: Option<Vec<PageEntry<'a>>>,
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
        let id = format!("{}/{}", entry.subject.path(), entry.version);
        let (namespace, name, provider) = match &entry.subject {
            StoredSubject::Module(ModuleAddress { namespace, name, system, .. }) => {
                (namespace.as_str(), name.as_str(), Some(system.as_str()))
            }
            StoredSubject::Provider(ProviderAddress { namespace, type_, .. }) => {
                (namespace.as_str(), type_.as_str(), None)
            }
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

fn details_of(details: &StoredDetails) -> serde_json::Result<Vec<u8>> {
    let StoredDetails { entry, versions } = details;
    let warnings = [FROM_STORE, ONLY_HELD_ARE_LISTED];
    serde_json::to_vec(&Details { entry: entry.into(), versions, warnings })
}

fn list_of(list: &StoredList, page: &PageRef, links: Links<'_>) -> serde_json::Result<Vec<u8>> {
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
    let entries = Some(entries.iter().map(PageEntry::from).collect());
    let (modules, providers) = match page.path.service() {
        Service::Modules => (entries, None),
        Service::Providers => (None, entries),
    };
    let unknown = page.query.is_verified_only.then_some(NONE_VERIFIED);
    serde_json::to_vec(&PageListBody {
        meta,
        modules,
        providers,
        warnings: [FROM_STORE].into_iter().chain(unknown).collect(),
    })
}

#[cfg(test)]
mod tests;
