//! The request for a list of what is stored: a page of it, by the query.

use std::borrow::Cow;

use super::{LIST, or_problem, short};
use crate::address::{AddressFilter, Hostname};
use crate::store::NameCursor;

/// The most archives of a page.
const MAX_ARCHIVES: usize = 1000;
/// The archives of a page where the request names no limit.
const DEFAULT_ARCHIVES: usize = 250;

/// A request for a page of what is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListRequest {
    /// The packages that are listed.
    pub filter: AddressFilter,
    /// The end of the page before.
    pub after: Option<NameCursor>,
    /// The most archives of the page.
    pub max_archives: usize,
}

impl ListRequest {
    /// Parses the query: `address`, the beginning of an address with an optional `@VERSION`; `after`, the `next` of the
    /// page before; `limit`, the most archives of the page.
    ///
    /// # Errors
    /// Every problem.
    pub fn parse(query: Option<&str>, default_host: &Hostname) -> Result<Self, Vec<String>> {
        let mut request = Self { filter: AddressFilter::All, after: None, max_archives: DEFAULT_ARCHIVES };
        let mut problems = Vec::new();
        for (name, value) in url::form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            match &*name {
                "address" => {
                    let filter = AddressFilter::parse(&value, default_host);
                    request.filter = or_problem(filter, &mut problems).unwrap_or_default();
                }
                "after" => {
                    let bad = || format!("{:?}... is not the \"next\" of a page", short(&value));
                    request.after = or_problem(NameCursor::parse(&value).ok_or_else(bad), &mut problems);
                }
                "limit" => match value.parse() {
                    Ok(limit @ 1..=MAX_ARCHIVES) => request.max_archives = limit,
                    _ => problems.push(format!("limit is {:?}; 1 to {MAX_ARCHIVES} can be", short(&value))),
                },
                _ => problems
                    .push(format!("the query has no option {:?}: write ?address=, ?after= or ?limit=", short(&name))),
            }
        }
        if problems.is_empty() { Ok(request) } else { Err(problems) }
    }
}

/// The path of a page of the list: of the packages whose address begins like this, after the end of the page before.
pub fn list_path(address: Option<&str>, after: Option<&str>) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(address.map(|address| ("address", Cow::from(address))));
    query.extend_pairs(after.map(|after| ("after", Cow::from(after))));
    query.append_pair("limit", &MAX_ARCHIVES.to_string());
    format!("{LIST}?{}", query.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_of_a_list_survive_the_query() {
        let host = Hostname::parse("registry.example").unwrap();
        let parse = |query: Option<&str>| ListRequest::parse(query, &host);
        let path = list_path(Some("acme/null@~> 1.0"), Some("registry.example/providers/acme/null/1.0.0+b/x_y.json"));
        let request = parse(path.split_once('?').map(|(_, query)| query)).unwrap();
        assert_eq!(request.filter.to_string(), "registry.example/acme/null@~> 1.0");
        let after = request.after.as_ref().map(NameCursor::as_str);
        assert_eq!(after, Some("registry.example/providers/acme/null/1.0.0+b/x_y.json"));
        assert_eq!(request.max_archives, MAX_ARCHIVES);
        let all = parse(None).unwrap();
        assert_eq!((all.filter, all.after, all.max_archives), (AddressFilter::All, None, DEFAULT_ARCHIVES));
        let long = format!("after={}", "x".repeat(2000));
        for bad in ["address=", "limit=0", "limit=1001", "limit=x", "page=2", &long] {
            assert_eq!(parse(Some(bad)).unwrap_err().len(), 1, "{bad}");
        }
        assert_eq!(parse(Some("limit=0&page=2&address=a%20b")).unwrap_err().len(), 3);
    }
}
