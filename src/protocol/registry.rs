//! The version lists of providers and modules without entries that no client can read, the download document of a
//! provider with its three URLs pointed to larder (PROTOCOL, section 2), and the location of a module version: an archive
//! here, with a checksum that the client enforces (section 4). Everything else stays as upstream wrote it.

use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;

use super::Links;
use super::route::Route;
use crate::address::{ModulePackage, Package};
use crate::error::Error;
use crate::mirror::{Answer, Mirror, ModuleLocation, ProofSetRefs, RequestContext};
use crate::upstream::discovery::Service;
use crate::upstream::providers::{RawObject, VersionList};

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

/// Renders a version list: every entry and every other member as upstream wrote it.
pub fn render_list(list: &VersionList) -> serde_json::Result<Vec<u8>> {
    let versions = list.versions.iter().map(|listed| &*listed.raw).collect();
    match list.service {
        Service::Providers => serde_json::to_vec(&ProviderListBody { versions, rest: &list.other_members }),
        Service::Modules => serde_json::to_vec(&ModuleListBody {
            modules: [Module { rest: &list.module_members, versions }],
            rest: &list.other_members,
        }),
    }
}

/// The download document of a package. Only its three URLs change.
pub(super) async fn provider_download(
    mirror: &Arc<Mirror>,
    package: &Package,
    call: &RequestContext,
    links: Links<'_>,
) -> Result<Answer<Vec<u8>>, Error> {
    let answer = mirror.proof_sets.proof_set(package, call).await?;
    let ProofSetRefs { archive, sums, signature } = answer.value.refs(package);
    let urls = [Route::ProviderFile(archive), Route::ProofFile(sums), Route::ProofFile(signature)]
        .map(|route| links.url(&route.path()));
    let body =
        answer.value.document.with_urls(urls).map_err(|e| {
            Error::Interrupted(format!("the cached download document of {package} cannot be read: {e}"))
        })?;
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
    let Answer { value, outcome, fresh_until, checked } = mirror.modules.module_location(package, call).await?;
    Ok(match value {
        ModuleLocation::External(text) => Answer { value: text, outcome, fresh_until, checked },
        ModuleLocation::Local { archive, checksum, subdir } => {
            let mut text = links.url(&Route::ModuleArchive(archive).path());
            if let Some(subdir) = subdir {
                text.push_str("//");
                text.push_str(&subdir);
            }
            if let Some(checksum) = checksum {
                text.push_str(&format!("?checksum=sha256:{checksum}"));
            }
            // A location without a digest changes as soon as the archive is stored.
            let fresh_until = if checksum.is_some() { fresh_until } else { call.now };
            Answer { value: text, outcome, fresh_until, checked }
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use url::Url;

    use super::*;
    use crate::address::Platform;
    use crate::upstream::providers::DownloadDocument;

    const URL_MEMBERS: [&str; 3] = ["download_url", "shasums_url", "shasums_signature_url"];

    fn parse(body: &[u8], from: &str) -> Result<DownloadDocument, String> {
        DownloadDocument::parse(body, &Url::parse(from).unwrap(), &Platform::parse("linux_amd64").unwrap())
    }

    proptest! {
        /// DESIGN, promise 5: only the three URLs of the download document change.
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
                let rewritten_body = original.with_urls(["/a", "/b", "/c"].map(str::to_owned)).unwrap();
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
                let parsed = VersionList::parse(&render_list(&list).unwrap()).unwrap();
                let raw = |list: &VersionList| list.versions.iter().map(|listed| listed.raw.get().to_owned()).collect::<Vec<_>>();
                prop_assert_eq!(raw(&parsed), raw(&list));
                prop_assert_eq!(parsed.other_members[&other_member].get(), "[ ]");
            }
        }
    }
}
