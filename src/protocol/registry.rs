//! The registry protocols. Discovery is the upstream's document, in which the services that larder serves point to
//! larder, and all others are absolute URLs of the upstream (service discovery). Version lists have no entries that no
//! client can read. The three URLs of a provider's download document point to larder. The location of a
//! module version is an archive here, with a checksum that the client enforces. Everything else stays as
//! upstream wrote it.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Serialize;
use serde_json::value::{RawValue, Value, to_raw_value};
use url::Url;

use super::route::{Route, service_base};
use super::{Links, complete_hashes};
use crate::address::{Hostname, ModulePackage, Package};
use crate::error::Error;
use crate::mirror::{Answer, ClientList, HiddenVersions, Mirror, ModuleLocation, ProofSetRefs, RequestContext};
use crate::upstream::discovery::{Discovery, Service};
use crate::upstream::providers::{RawObject, VersionList};

/// The members of `login.v1` that are URLs.
const NESTED_URLS: [&str; 2] = ["authz", "token"];

/// The rewritten discovery document of an upstream.
pub(super) async fn discovery(
    mirror: &Arc<Mirror>,
    host: &Hostname,
    call: &RequestContext,
    links: Links<'_>,
) -> Result<Answer<Vec<u8>>, Error> {
    let unreadable = |reason| Error::Unreadable { subject: format!("the cached discovery document of {host}"), reason };
    let answer = mirror.documents.get(host, call).await?;
    let discovery = answer.value.discovery_for_clients().map_err(unreadable)?;
    let entries = services(discovery, host, |path| links.url(path));
    let body = serde_json::to_vec(&entries).map_err(|e| unreadable(e.to_string()))?;
    Ok(answer.map(|_| body))
}

/// Rewrites every service of a discovery document for larder's clients.
pub fn services(discovery: Discovery, host: &Hostname, link: impl Fn(&str) -> String) -> RawObject {
    let mirrored: Vec<Service> =
        Service::ALL.into_iter().filter(|service| discovery.base(*service).is_some()).collect();
    let Discovery { mut entries, url } = discovery;
    // Clients refuse a service whose URL has userinfo, and the userinfo must not be shown.
    entries.retain(|_, value| match serde_json::from_str(value.get()) {
        Ok(value) => !has_userinfo(&value, &url),
        // The value is nested too deep, or has an invalid number. Without a plain or escaped `@` it has no userinfo.
        Err(_) => !value.get().contains(['@', '\\']),
    });
    for (name, value) in &mut entries {
        let rewritten = match mirrored.iter().find(|service| service.key() == name) {
            Some(service) => to_raw_value(&link(&service_base(host, *service))).ok(),
            None => absolute(value, &url),
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

#[derive(Serialize)]
struct ProviderListBody<'a> {
    versions: Vec<&'a RawValue>,
    #[serde(flatten)]
    rest: &'a RawObject,
}

#[derive(Serialize)]
struct ModuleListBody<'a> {
    modules: [Module<'a>; 1],
    #[serde(flatten)]
    rest: &'a RawObject,
}

#[derive(Serialize)]
struct Module<'a> {
    #[serde(flatten)]
    rest: &'a RawObject,
    versions: Vec<&'a RawValue>,
}

/// The member of a provider's list whose texts clients print before they choose a version (provider registry protocol).
const WARNINGS: &str = "warnings";

/// Renders a version list: every entry and every other member as upstream wrote it. A provider's list has a warning for each
/// policy that hides versions of it. Clients of a module's list get the entries that larder cannot read, too.
pub fn render_list(ClientList { list, hidden }: &ClientList) -> serde_json::Result<Vec<u8>> {
    let versions = list.versions.iter().map(|listed| &*listed.raw);
    match list.service {
        Service::Providers => {
            let mut rest = Cow::Borrowed(&list.other_members);
            if let Some(warnings) = warnings(list, hidden) {
                rest.to_mut().insert(WARNINGS.to_owned(), to_raw_value(&warnings)?);
            }
            serde_json::to_vec(&ProviderListBody { versions: versions.collect(), rest: &rest })
        }
        Service::Modules => {
            let unreadable = list.unreadable.iter().map(|entry| &*entry.raw);
            let versions = versions.chain(unreadable).collect();
            serde_json::to_vec(&ModuleListBody {
                modules: [Module { rest: &list.module_members, versions }],
                rest: &list.other_members,
            })
        }
    }
}

/// The warnings of a list: upstream's, one for each policy that hides versions, and one for each late version. `None` if they stay
/// as they are, also where upstream's are not the array of texts that clients read.
fn warnings(list: &VersionList, hidden: &[HiddenVersions]) -> Option<Vec<String>> {
    let hidden = hidden.iter().map(|hidden| format!("this mirror hides {hidden}"));
    let own: Vec<String> = hidden.chain(list.late.iter().map(ToString::to_string)).collect();
    let upstream = list.other_members.get(WARNINGS).map(|raw| serde_json::from_str::<Option<Vec<String>>>(raw.get()));
    let upstream = upstream.transpose().ok().filter(|_| !own.is_empty())?.flatten().unwrap_or_default();
    Some(upstream.into_iter().chain(own).collect())
}

/// The download document of a package. Only its three URLs change, and where `complete_hashes` is set it may get `packages`.
pub(super) async fn provider_download(
    mirror: &Arc<Mirror>,
    package: &Package,
    call: &RequestContext,
    links: Links<'_>,
) -> Result<Answer<Vec<u8>>, Error> {
    let answer = mirror.proof_sets.proof_set(package, call).await?;
    let ProofSetRefs { archive, sums, signature } = answer.value.refs(package);
    let urls = [Route::ProviderFile(archive), Route::ProofFile(sums), Route::ProofFile(signature)]
        .map(|route| links.archive(&route));
    let packages = complete_hashes::packages(mirror, package, &answer.value, call).await;
    let body = answer.value.document.rendered(urls, packages.as_ref());
    let body = body.map_err(|e| Error::unreadable_download_document(package, e))?;
    Ok(answer.map(|_| body))
}

/// The location of a module version: a path of larder with subfolder and checksum, or upstream's location where larder
/// cannot fetch it.
pub(super) async fn module_location(
    mirror: &Arc<Mirror>,
    package: &ModulePackage,
    call: &RequestContext,
    links: Links<'_>,
) -> Result<Answer<String>, Error> {
    let answer = mirror.modules.module_location(package, call).await?;
    let mut fresh_until = answer.fresh_until;
    let answer = answer.map(|location| match location {
        ModuleLocation::External(text) => text,
        ModuleLocation::Local { archive, checksum, subdir } => {
            let mut text = links.archive(&Route::ModuleArchive(archive));
            text.extend(subdir.map(|subdir| format!("//{subdir}")));
            match checksum {
                Some(checksum) => text.push_str(&format!("?checksum=sha256:{checksum}")),
                // A location without a digest changes as soon as the archive is stored.
                None => fresh_until = call.now,
            }
            text
        }
    });
    Ok(Answer { fresh_until, ..answer })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::address::{Platform, Version};
    use crate::mirror::HiddenVersion;
    use crate::upstream::providers::DownloadDocument;

    const URL_MEMBERS: [&str; 3] = ["download_url", "shasums_url", "shasums_signature_url"];

    fn parse(body: &[u8], from: &str) -> Result<DownloadDocument, String> {
        DownloadDocument::parse(body, &Url::parse(from).unwrap(), &Platform::parse("linux_amd64").unwrap())
    }

    /// A deeply nested value neither exhausts the stack nor hides userinfo.
    #[test]
    fn a_service_nested_too_deep_hides_no_userinfo() {
        let depth = 100_000;
        let nest = |inside: &str| format!("{}{inside}{}", "{\"a\":".repeat(depth), "}".repeat(depth));
        let urls = ["\"https://me@a.example\"", "\"https://me\\u0040a.example\"", "1"].map(nest);
        let body = format!("{{\"a.v1\":{},\"b.v1\":{},\"c.v1\":{},\"flat.v1\":\"/x/\"}}", urls[0], urls[1], urls[2]);
        let original = read_discovery(body.as_bytes(), "https://registry.example/");
        let retained = services(original, &Hostname::parse("registry.example").unwrap(), str::to_owned);
        assert_eq!(retained.keys().collect::<Vec<_>>(), ["c.v1", "flat.v1"]);
    }

    #[test]
    fn a_list_has_a_warning_for_each_policy_after_those_of_upstream() {
        let hidden_version = |text: &&str| HiddenVersion { version: Version::parse(text).unwrap(), until: None };
        let versions = |texts: &[&str]| texts.iter().map(hidden_version).collect::<Vec<_>>();
        let hidden = |reason: &str, newest: &[&str], count| HiddenVersions {
            rule: "acme/*".to_owned(),
            reason: reason.to_owned(),
            newest: versions(newest),
            count,
        };
        let hidden = [hidden("one rule", &["1.3.0"], 1), hidden("another", &["1.1.0", "1.0.0"], 7)];
        let own =
            r#""this mirror hides 1.3.0: one rule","this mirror hides 1.1.0, 1.0.0 and 5 older versions: another""#;
        for (upstream, rendered) in [
            ("", format!(r#""warnings":[{own}]"#)),
            (r#""warnings":null,"#, format!(r#""warnings":[{own}]"#)),
            (r#""warnings":["moved"],"#, format!(r#""warnings":["moved",{own}]"#)),
            // Clients refuse this list, with or without larder.
            (r#""warnings":[ 7 ],"#, r#""warnings":[ 7 ]"#.to_owned()),
        ] {
            let list = VersionList::parse(format!(r#"{{{upstream}"versions":[{{"version":"1.2.0"}}]}}"#).as_bytes());
            let list = ClientList { list: list.unwrap(), hidden: hidden.to_vec() };
            let body = String::from_utf8(render_list(&list).unwrap()).unwrap();
            assert_eq!(body, format!(r#"{{"versions":[{{"version":"1.2.0"}}],{rendered}}}"#));
        }
    }

    fn read_discovery(body: &[u8], from: &str) -> Discovery {
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
            let original = read_discovery(format!("{{{}}}", members.join(",")).as_bytes(), "https://registry.example/.well-known/terraform.json");
            let host = Hostname::parse("registry.example").unwrap();
            let rewritten_body = serde_json::to_vec(&services(original.clone(), &host, str::to_owned)).unwrap();
            let rewritten = read_discovery(&rewritten_body, "http://127.0.0.1:8080/registry/x");
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

        /// Promise 5: only the three URLs of the download document change.
        #[test]
        fn only_the_three_urls_of_a_document_change(
            signature in prop::option::of("(https?://[a-z]{1,5}\\.example)?/?[a-z%?&=.]{0,12}"),
            archive in "(https?:)?//[a-z]{1,5}\\.example/[ -!#-\\[\\]-~]{0,12}",
            keys in "null|\\{\\}|\\{\"gpg_public_keys\":(null|\\[\\{\"ascii_armor\":\"[a-z]{0,3}\"\\}\\])\\}",
            other_members in prop::collection::btree_map("[a-z_]{1,4}", "null|1e400|\\[ *\\]|\\{\"a\": ?1\\.50\\}|\"\\\\\\\\u00e9\"", 0..4),
        ) {
            let mut members: Vec<String> = other_members.iter().filter(|(name, _)| name.as_str() != "os").map(|(name, value)| format!("\"{name}\": {value}")).collect();
            members.insert(members.len() / 2, format!(
                r#""os":"linux","arch":"amd64","filename":"f.zip","shasum":"{:064}","download_url":"{archive}","shasums_url":"s","signing_keys":{keys}"#, 7
            ));
            members.extend(signature.map(|signature| format!(r#""shasums_signature_url":"{signature}""#)));
            let body = format!("{{{}}}", members.join(", "));
            if let Ok(original) = parse(body.as_bytes(), "https://registry.example/v1/x") {
                let rewritten_body = original.rendered(["/a", "/b", "/c"].map(str::to_owned), None).unwrap();
                let rewritten = parse(&rewritten_body, "https://mirror.example/").unwrap();
                prop_assert_eq!((rewritten.archive_url.as_str(), rewritten.sums_url.as_str()), ("https://mirror.example/a", "https://mirror.example/b"));
                prop_assert_eq!(rewritten.signature_url.map(String::from), original.signature_url.map(|_| "https://mirror.example/c".to_owned()));
                let unchanged_members = |fields: &RawObject| fields.iter().filter(|(name, _)| !URL_MEMBERS.contains(&name.as_str())).map(|(name, value)| (name.clone(), value.get().to_owned())).collect::<Vec<_>>();
                prop_assert_eq!(unchanged_members(&rewritten.fields), unchanged_members(&original.fields));
                prop_assert!(rewritten.fields.keys().eq(original.fields.keys()));
            }
        }

        #[test]
        fn a_rendered_version_list_parses_to_the_same_entries(versions in prop::collection::vec("[0-3](\\.[0-3]){0,3}", 1..6), other_member in "[a-z]{1,8}") {
            let entries: Vec<String> = versions.iter().map(|version| format!(r#"{{"version":"{version}", "x":1e400}}"#)).collect();
            let body = format!(r#"{{"{other_member}":[ ],"versions":[{}]}}"#, entries.join(","));
            if let Ok(list) = VersionList::parse(body.as_bytes()) {
                let rendered = render_list(&ClientList { list: list.clone(), hidden: Vec::new() }).unwrap();
                let parsed = VersionList::parse(&rendered).unwrap();
                let raw = |list: &VersionList| list.versions.iter().map(|listed| listed.raw.get().to_owned()).collect::<Vec<_>>();
                prop_assert_eq!(raw(&parsed), raw(&list));
                prop_assert_eq!(parsed.other_members[&other_member].get(), "[ ]");
            }
        }
    }
}
