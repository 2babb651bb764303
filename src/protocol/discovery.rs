//! Service discovery: the upstream's document, in which the services that larder serves point to larder, and all others
//! are absolute URLs of the upstream (PROTOCOL, section 1.1).

use std::sync::Arc;

use serde_json::value::{RawValue, Value, to_raw_value};
use url::Url;

use super::Links;
use super::route::{modules_base, providers_base};
use crate::address::Hostname;
use crate::error::Error;
use crate::mirror::{Answer, Mirror, RequestContext};
use crate::upstream::discovery::{Discovery, Service};
use crate::upstream::providers::RawObject;

/// The members of `login.v1` that are URLs.
const NESTED_URLS: [&str; 2] = ["authz", "token"];

/// The rewritten discovery document of an upstream.
pub(super) async fn rewritten_document(
    mirror: &Arc<Mirror>,
    host: &Hostname,
    call: &RequestContext,
    links: Links<'_>,
) -> Result<Answer<Vec<u8>>, Error> {
    let unreadable =
        |reason| Error::Interrupted(format!("the cached discovery document of {host} cannot be read: {reason}"));
    let answer = mirror.documents.discovery(host, call).await?;
    let discovery = answer.value.discovery_for_clients().map_err(unreadable)?;
    let entries = services(discovery, host, |path| links.url(path));
    let body = serde_json::to_vec(&entries).map_err(|e| unreadable(e.to_string()))?;
    Ok(answer.map(|_| body))
}

/// Rewrites every service of a discovery document for larder's clients.
pub fn services(discovery: Discovery, host: &Hostname, link: impl Fn(&str) -> String) -> RawObject {
    let has = |service: Service| discovery.base(service).is_some();
    let (has_providers, has_modules) = (has(Service::Providers), has(Service::Modules));
    let Discovery { mut entries, url } = discovery;
    // Clients refuse a service whose URL has userinfo, and the userinfo must not be shown.
    entries.retain(|_, value| match serde_json::from_str(value.get()) {
        Ok(value) => !has_userinfo(&value, &url),
        // The value is nested too deep, or has an invalid number. Without a plain or escaped `@` it has no userinfo.
        Err(_) => !value.get().contains(['@', '\\']),
    });
    for (name, value) in &mut entries {
        let rewritten = match name.as_str() {
            "providers.v1" if has_providers => to_raw_value(&link(&providers_base(host))).ok(),
            "modules.v1" if has_modules => to_raw_value(&link(&modules_base(host))).ok(),
            _ => absolute(value, &url),
        };
        if let Some(rewritten) = rewritten {
            *value = rewritten;
        }
    }
    entries
}

/// Makes a service absolute; `None` if it stays as upstream wrote it.
fn absolute(value: &RawValue, base: &Url) -> Option<Box<RawValue>> {
    if let Ok(reference) = serde_json::from_str::<String>(value.get()) {
        return resolved(&reference, base);
    }
    let mut members: RawObject = serde_json::from_str(value.get()).ok()?;
    for name in NESTED_URLS {
        if let Some(member) = members.get_mut(name)
            && let Ok(reference) = serde_json::from_str::<String>(member.get())
            && let Some(rewritten) = resolved(&reference, base)
        {
            *member = rewritten;
        }
    }
    to_raw_value(&members).ok()
}

/// Returns true if an entry contains a URL with userinfo.
fn has_userinfo(value: &Value, base: &Url) -> bool {
    match value {
        Value::String(reference) => {
            base.join(reference).is_ok_and(|url| !url.username().is_empty() || url.password().is_some())
        }
        Value::Array(members) => members.iter().any(|member| has_userinfo(member, base)),
        Value::Object(members) => members.values().any(|member| has_userinfo(member, base)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Resolves a URL. Text that is not a URL stays unchanged, because clients ignore it; so does a reference to the document
/// itself.
fn resolved(reference: &str, base: &Url) -> Option<Box<RawValue>> {
    if reference.is_empty() || reference.starts_with('#') {
        return None;
    }
    to_raw_value(base.join(reference).ok()?.as_str()).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A deeply nested value neither exhausts the stack nor hides userinfo.
    #[test]
    fn a_service_nested_too_deep_hides_no_userinfo() {
        let depth = 100_000;
        let nest = |inside: &str| format!("{}{inside}{}", "{\"a\":".repeat(depth), "}".repeat(depth));
        let urls = ["\"https://me@a.example\"", "\"https://me\\u0040a.example\"", "1"].map(nest);
        let body = format!("{{\"a.v1\":{},\"b.v1\":{},\"c.v1\":{},\"flat.v1\":\"/x/\"}}", urls[0], urls[1], urls[2]);
        let original = read(body.as_bytes(), "https://registry.example/");
        let retained = services(original, &Hostname::parse("registry.example").unwrap(), str::to_owned);
        assert_eq!(retained.keys().collect::<Vec<_>>(), ["c.v1", "flat.v1"]);
    }

    fn read(body: &[u8], from: &str) -> Discovery {
        Discovery::parse(body, Url::parse(from).unwrap()).unwrap()
    }

    proptest! {
        #[test]
        fn only_the_services_that_larder_mirrors_point_elsewhere_after_rewriting(
            services_of in prop::collection::btree_map(
                "providers\\.v1|modules\\.v1|[a-z]{1,3}\\.v[12]",
                "\"(https?:)?(//)?([a-z]{1,3}(:[a-z]{0,2})?@)?([a-z]{1,5}\\.example)?[/a-z?#%. ]{0,12}\"|null|1e400|\\[\"a\"\\]|\\{\"authz\":\"x\"\\}",
                0..5,
            ),
        ) {
            let members: Vec<String> = services_of.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
            let original = read(format!("{{{}}}", members.join(",")).as_bytes(), "https://registry.example/.well-known/terraform.json");
            let host = Hostname::parse("registry.example").unwrap();
            let rewritten_body = serde_json::to_vec(&services(original.clone(), &host, str::to_owned)).unwrap();
            let rewritten = read(&rewritten_body, "http://127.0.0.1:8080/registry/x");
            let has_userinfo = |value: &str| value.contains('@');
            let retained = services_of.iter().filter(|(_, value)| !has_userinfo(value));
            prop_assert!(retained.clone().all(|(name, _)| rewritten.entries.contains_key(name)));
            let urls = rewritten.entries.values().filter_map(|value| Url::parse(serde_json::from_str(value.get()).ok()?).ok());
            prop_assert!(urls.into_iter().all(|url| url.username().is_empty() && url.password().is_none()));
            for (name, value) in retained {
                let (original_url, rewritten_url) = (original.service(name), rewritten.service(name));
                let mirrored = [("providers.v1", "providers"), ("modules.v1", "modules")];
                let mirrored = mirrored.into_iter().find(|(service, _)| service == name);
                if let Some((_, folder)) = mirrored.filter(|_| original_url.is_some()) {
                    let larder_url = format!("http://127.0.0.1:8080/registry/registry.example/v1/{folder}/");
                    prop_assert_eq!(rewritten_url.as_ref().map(Url::as_str), Some(larder_url.as_str()));
                } else if original_url.is_none() || value.starts_with("\"#") || value == "\"\"" {
                    prop_assert!(rewritten_url.is_none() || rewritten.entries[name].get() == value);
                } else {
                    prop_assert_eq!(rewritten_url, original_url, "{}", name);
                }
            }
        }
    }
}
