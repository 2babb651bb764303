//! `providers.v1`: the version list, and the download document with its three URLs led back here
//! (PROTOCOL 2). Everything else stays as upstream wrote it.

use std::sync::Arc;

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::Links;
use super::route::Route;
use crate::address::{Package, ProviderAddress};
use crate::error::Error;
use crate::mirror::{Answer, Call, Mirror};
use crate::upstream::providers::RawObject;

#[derive(Serialize)]
struct List<'a> {
    versions: Vec<&'a RawValue>,
    #[serde(flatten)]
    rest: &'a RawObject,
}

/// The version list of a provider, without what no client could read.
pub(super) async fn versions(
    mirror: &Arc<Mirror>,
    address: &ProviderAddress,
    call: &Call,
) -> Result<Answer<Vec<u8>>, Error> {
    let Answer { value, outcome, fresh_until } = mirror.provider_versions(address, call).await?;
    let unreadable =
        |why: String| Error::Interrupted(format!("the held version list of {address} cannot be read: {why}"));
    let list = value.versions().await.map_err(unreadable)?;
    let versions = list.versions.iter().map(|listed| &*listed.raw).collect();
    let body = serde_json::to_vec(&List { versions, rest: &list.rest }).map_err(|e| unreadable(e.to_string()))?;
    Ok(Answer { value: body, outcome, fresh_until })
}

/// The download document of a package. Only its three URLs change.
pub(super) async fn download(
    mirror: &Arc<Mirror>,
    package: &Package,
    call: &Call,
    links: Links<'_>,
) -> Result<Answer<Vec<u8>>, Error> {
    let Answer { value: set, outcome, fresh_until } = mirror.proof_set(package, call).await?;
    let unreadable =
        |why: String| Error::Interrupted(format!("the held download document of {package} cannot be read: {why}"));
    let references = set.references(package).map_err(|e| unreadable(e.to_string()))?;
    let mut fields = set.document.fields.clone();
    let names = ["download_url", "shasums_url", "shasums_signature_url"];
    for (name, reference) in names.into_iter().zip(references) {
        if name == "shasums_signature_url" && set.document.signature_url.is_none() {
            // A document that names no signature goes out without one, too.
            continue;
        }
        if let Some(field) = fields.get_mut(name) {
            let url = links.to(&Route::ProviderFile(reference).path());
            *field = to_raw_value(&url).map_err(|e| unreadable(e.to_string()))?;
        }
    }
    let body = serde_json::to_vec(&fields).map_err(|e| unreadable(e.to_string()))?;
    Ok(Answer { value: body, outcome, fresh_until })
}
