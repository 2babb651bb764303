//! The registry HTTP API for a small set of modules and providers, paged and filtered as the protocol says. Its JSON
//! has unusual but valid spelling.

use serde_json::json;

use super::reply::Reply;

/// A module or a provider that the API lists.
#[derive(Clone)]
pub(crate) struct ListedItem {
    names: Vec<String>,
    versions: Vec<String>,
    is_verified: bool,
}

impl ListedItem {
    /// A module (`NS/NAME/SYSTEM`) or a provider (`NS/TYPE`); versions oldest first.
    pub(crate) fn new(names: &str, versions: &[&str]) -> Self {
        let names: Vec<String> = names.split('/').map(str::to_owned).collect();
        assert!(matches!(names.len(), 2 | 3), "{names:?}");
        Self { names, versions: versions.iter().map(|&version| version.to_owned()).collect(), is_verified: false }
    }

    /// Marks the item as verified by the registry.
    pub(crate) fn verified(mut self) -> Self {
        self.is_verified = true;
        self
    }

    fn latest(&self) -> &str {
        self.versions.last().expect("a version")
    }

    /// True if the item is below this path of names.
    fn is_below(&self, names: &[&str]) -> bool {
        self.names.len() >= names.len()
            && self.names.iter().zip(names).all(|(name, part)| name.eq_ignore_ascii_case(part))
    }

    fn entry(&self, version: &str) -> String {
        let id = format!("{}/{version}", self.names.join("/"));
        let system = self.names.get(2).map_or(String::new(), |system| format!("\"provider\":{},", json!(system)));
        format!(
            "{{\"id\":{},\"owner\":\"\", \"namespace\":{},\"name\":{},{system}\"version\":{},\"downloads\" : 1.50E+2,\
             \"x-huge\":1.10e+300,\"source\":\"/v1/modules/is-no-page\",\"logo_url\":\"/images/logo.png\",\"verified\":{}}}",
            json!(id),
            json!(self.names[0]),
            json!(self.names[1]),
            json!(version),
            self.is_verified
        )
    }

    fn details(&self, version: &str) -> String {
        let entry = self.entry(version);
        let entry = entry.strip_suffix('}').expect("an object");
        let readme = "# \\u00e9\\n\\tsee next_url";
        let versions = json!(self.versions);
        format!(
            "{entry}, \"root\": {{\"path\":\"\",\"readme\":\"{readme}\",\"inputs\":[ ]}},\n \"versions\": {versions}}}"
        )
    }

    fn version_list(&self) -> String {
        let entries: Vec<String> = self
            .versions
            .iter()
            .map(|version| format!("{{\"version\":{}, \"root\":{{\"x\":1.10e+300}}}}", json!(version)))
            .collect();
        format!(
            "{{\"x-first\":[ 1.00 ],\"modules\":[{{\"source\":{},\"versions\":[{}]}}]}}",
            json!(self.names.join("/")),
            entries.join(", ")
        )
    }
}

/// The listed modules and providers, in this order.
#[derive(Clone, Default)]
pub(crate) struct Api {
    pub(super) modules: Vec<ListedItem>,
    pub(super) providers: Vec<ListedItem>,
}

impl Api {
    /// The reply at a path of the API.
    pub(super) fn page(&self, path: &str, query: &str) -> Option<Reply> {
        if self.modules.is_empty() && self.providers.is_empty() {
            return None;
        }
        let parts: Vec<&str> = path.trim_end_matches('/').split('/').skip(1).collect();
        let ok = |json: String| Some(Reply::new(200, "application/json", json));
        match parts.as_slice() {
            ["v1", "modules", tail @ ..] => match tail {
                ["search"] if parameter(query, "q").is_none() => {
                    Some(Reply::new(400, "application/json", "{\"errors\":[\"search query is required\"]}"))
                }
                [] | ["search"] | [_] | [_, _] => ok(list("modules", &self.modules, path, tail, query)?),
                [_, _, _] => ok(self.module(tail)?.details(self.module(tail)?.latest())),
                [names @ .., "versions"] => ok(self.module(names)?.version_list()),
                [names @ .., "download"] if names.len() == 3 => {
                    let location =
                        format!("{}/{}/download", path.trim_end_matches("/download"), self.module(names)?.latest());
                    Some(Reply::redirect(302, &location))
                }
                [names @ .., version] => {
                    let module = self.module(names)?;
                    module
                        .versions
                        .iter()
                        .find(|existing| existing == version)
                        .and_then(|version| ok(module.details(version)))
                }
            },
            ["v1", "providers", tail @ ..] => match tail {
                [] | [_] => ok(list("providers", &self.providers, path, tail, query)?),
                [namespace, name] => {
                    let provider = self.providers.iter().find(|listed| listed.is_below(&[namespace, name]))?;
                    ok(provider.details(provider.latest()))
                }
                [namespace, name, version] => {
                    let provider = self.providers.iter().find(|listed| listed.is_below(&[namespace, name]))?;
                    provider
                        .versions
                        .iter()
                        .find(|existing| existing == version)
                        .and_then(|version| ok(provider.details(version)))
                }
                _ => None,
            },
            _ => None,
        }
    }

    fn module(&self, names: &[&str]) -> Option<&ListedItem> {
        self.modules.iter().find(|listed| names.len() == 3 && listed.is_below(names))
    }
}

fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.into_iter().find(|(key, value)| *key == name && !value.is_empty()).map(|(_, value)| value)
}

/// A page of the matching items; `None` if no item is below the path.
fn list(member: &str, items: &[ListedItem], path: &str, tail: &[&str], query: &str) -> Option<String> {
    let names = if tail == ["search"] { &[][..] } else { tail };
    let candidates: Vec<&ListedItem> = items.iter().filter(|listed| listed.is_below(names)).collect();
    if candidates.is_empty() {
        return None;
    }
    let matches = |name: &str, condition: &dyn Fn(&str) -> bool| parameter(query, name).is_none_or(condition);
    let found: Vec<&ListedItem> = candidates
        .into_iter()
        .filter(|listed| {
            matches("verified", &|value| value != "true" || listed.is_verified)
                && matches("provider", &|value| listed.names[2] == value)
                && matches("namespace", &|value| listed.names[0] == value)
                && (tail != ["search"] || matches("q", &|value| listed.names.join("/").contains(value)))
        })
        .collect();
    let number =
        |name, default| parameter(query, name).map_or(default, |value| value.parse::<usize>().expect("a number"));
    let (offset, limit) = (number("offset", 0), number("limit", 15).clamp(1, 100));
    let other_parameters: Vec<&str> = query
        .split('&')
        .filter(|pair| !pair.is_empty() && !pair.starts_with("limit=") && !pair.starts_with("offset="))
        .collect();
    let url = |offset: usize| {
        let query = [
            &[format!("limit={limit}"), format!("offset={offset}")][..],
            &other_parameters.iter().map(|&pair| pair.to_owned()).collect::<Vec<_>>(),
        ]
        .concat();
        json!(format!("{}?{}", path.trim_end_matches('/'), query.join("&")))
    };
    let mut meta = format!("\"limit\" : {limit},\"current_offset\":{offset}, \"x-cost\":1.0e0");
    if offset + limit < found.len() {
        meta.push_str(&format!(",\"next_offset\":{},\"next_url\": {}", offset + limit, url(offset + limit)));
    }
    if offset > 0 {
        let previous_offset = offset.saturating_sub(limit);
        meta.push_str(&format!(",\"prev_offset\":{previous_offset},\"prev_url\":{}", url(previous_offset)));
    }
    let entries: Vec<String> =
        found.iter().skip(offset).take(limit).map(|listed| listed.entry(listed.latest())).collect();
    Some(format!("{{ \"meta\": {{{meta}}},\n\"{member}\":[{}],\"x-last\":null}}", entries.join(" ,")))
}
