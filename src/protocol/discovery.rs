//! Service discovery: the upstream's document, in which the services that larder serves point to larder, and all others
//! are absolute URLs of the upstream (PROTOCOL 1.1).

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
pub(super) async fn document(
    mirror: &Arc<Mirror>,
    host: &Hostname,
    call: &RequestContext,
    links: Links<'_>,
) -> Result<Answer<Vec<u8>>, Error> {
    let Answer { value, outcome, fresh_until, checked } = mirror.discovery(host, call).await?;
    let discovery = value.discovery_for_clients().map_err(|reason| unreadable(host, &reason))?;
    let entries = services(discovery, host, |path| links.url(path));
    let body = serde_json::to_vec(&entries).map_err(|e| unreadable(host, &e.to_string()))?;
    Ok(Answer { value: body, outcome, fresh_until, checked })
}

/// Rewrites every service of a discovery document for larder's clients.
pub fn services(discovery: Discovery, host: &Hostname, link: impl Fn(&str) -> String) -> RawObject {
    let has = |service: Service| discovery.base(service).is_some();
    let (has_providers, has_modules) = (has(Service::Providers), has(Service::Modules));
    let Discovery { mut entries, url } = discovery;
    // Clients refuse such a service, and its userinfo must not be shown.
    entries.retain(|_, value| match serde_json::from_str(value.get()) {
        Ok(value) => !has_userinfo(&value, &url),
        // Nested too deep, or an invalid number: without a plain or escaped `@` it has no userinfo.
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

fn unreadable(host: &Hostname, reason: &str) -> Error {
    Error::Interrupted(format!("the cached discovery document of {host} cannot be read: {reason}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Deep nesting exhausts no stack, and hides no userinfo.
    #[test]
    fn a_service_nested_too_deep_hides_no_userinfo() {
        let depth = 100_000;
        let deep = |inside: &str| format!("{}{inside}{}", "{\"a\":".repeat(depth), "}".repeat(depth));
        let urls = ["\"https://me@a.example\"", "\"https://me\\u0040a.example\"", "1"].map(deep);
        let body = format!("{{\"a.v1\":{},\"b.v1\":{},\"c.v1\":{},\"flat.v1\":\"/x/\"}}", urls[0], urls[1], urls[2]);
        let before = read(body.as_bytes(), "https://registry.example/");
        let kept = services(before, &Hostname::parse("registry.example").unwrap(), str::to_owned);
        assert_eq!(kept.keys().collect::<Vec<_>>(), ["c.v1", "flat.v1"]);
    }

    fn read(body: &[u8], from: &str) -> Discovery {
        Discovery::parse(body, Url::parse(from).unwrap()).unwrap()
    }

    proptest! {
        #[test]
        fn every_service_leads_where_it_led_before_but_for_the_ones_larder_serves(
            services_of in prop::collection::btree_map(
                "providers\\.v1|modules\\.v1|[a-z]{1,3}\\.v[12]",
                "\"(https?:)?(//)?([a-z]{1,3}(:[a-z]{0,2})?@)?([a-z]{1,5}\\.example)?[/a-z?#%. ]{0,12}\"|null|1e400|\\[\"a\"\\]|\\{\"authz\":\"x\"\\}",
                0..5,
            ),
        ) {
            let members: Vec<String> = services_of.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
            let before = read(format!("{{{}}}", members.join(",")).as_bytes(), "https://registry.example/.well-known/terraform.json");
            let host = Hostname::parse("registry.example").unwrap();
            let sent = serde_json::to_vec(&services(before.clone(), &host, str::to_owned)).unwrap();
            let after = read(&sent, "http://127.0.0.1:8080/registry/x");
            let left_out = |value: &str| value.contains('@');
            let kept = services_of.iter().filter(|(_, value)| !left_out(value));
            prop_assert!(kept.clone().all(|(name, _)| after.entries.contains_key(name)));
            let urls = after.entries.values().filter_map(|value| Url::parse(serde_json::from_str(value.get()).ok()?).ok());
            prop_assert!(urls.into_iter().all(|url| url.username().is_empty() && url.password().is_none()));
            for (name, value) in kept {
                let (before_url, leads) = (before.service(name), after.service(name));
                let served = [("providers.v1", "providers"), ("modules.v1", "modules")];
                let served = served.into_iter().find(|(service, _)| service == name);
                if let Some((_, folder)) = served.filter(|_| before_url.is_some()) {
                    let ours = format!("http://127.0.0.1:8080/registry/registry.example/v1/{folder}/");
                    prop_assert_eq!(leads.as_ref().map(Url::as_str), Some(ours.as_str()));
                } else if before_url.is_none() || value.starts_with("\"#") || value == "\"\"" {
                    prop_assert!(leads.is_none() || after.entries[name].get() == value);
                } else {
                    prop_assert_eq!(leads, before_url, "{}", name);
                }
            }
        }
    }
}
