//! `modules.v1`: the version list, and the location of a version: an archive here, with a checksum that the client
//! enforces (PROTOCOL, section 4).

use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;

use super::Links;
use super::route::Route;
use crate::address::{ModuleAddress, ModulePackage};
use crate::error::Error;
use crate::mirror::{Answer, Mirror, ModuleLocation, RequestContext, StoredDocument};
use crate::upstream::modules::ModuleVersionList;
use crate::upstream::providers::RawObject;

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

/// The version list of a module, without entries that no client can read.
pub(super) async fn versions(
    mirror: &Arc<Mirror>,
    address: &ModuleAddress,
    call: &RequestContext,
) -> Result<Answer<Vec<u8>>, Error> {
    let Answer { value: list, outcome, fresh_until, checked } =
        mirror.offline.client_module_versions(address, call).await?;
    let unwritable = |e| Error::Interrupted(format!("the version list of {address} cannot be written: {e}"));
    let body = render_list(&list).map_err(unwritable)?;
    Ok(Answer { value: body, outcome, fresh_until, checked })
}

/// Renders upstream's version list for clients.
pub(super) async fn rendered_list(address: &ModuleAddress, document: &Arc<StoredDocument>) -> Result<Vec<u8>, Error> {
    let unreadable =
        |reason| Error::Interrupted(format!("the cached version list of {address} cannot be read: {reason}"));
    let list = document.module_versions().await.map_err(unreadable)?;
    render_list(&list).map_err(|e| unreadable(e.to_string()))
}

/// Renders a version list: every entry and every other member as upstream wrote it.
fn render_list(list: &ModuleVersionList) -> serde_json::Result<Vec<u8>> {
    let versions = list.versions.iter().map(|listed| &*listed.raw).collect();
    serde_json::to_vec(&ModuleListBody {
        modules: [Module { rest: &list.module_members, versions }],
        rest: &list.other_members,
    })
}

/// Content of `X-Terraform-Get`.
pub(super) struct LocationHeader {
    pub(super) text: String,
    /// True for a location that stays valid until something changes.
    pub(super) is_stable: bool,
}

/// The location of a module version: a path of larder with subfolder and checksum, or upstream's location where larder
/// cannot fetch it.
pub(super) async fn location(
    mirror: &Arc<Mirror>,
    package: &ModulePackage,
    call: &RequestContext,
    links: Links<'_>,
) -> Result<Answer<LocationHeader>, Error> {
    let Answer { value, outcome, fresh_until, checked } = mirror.modules.module_location(package, call).await?;
    let location = match value {
        ModuleLocation::External(text) => LocationHeader { text, is_stable: true },
        ModuleLocation::Local { archive, checksum, subdir } => {
            let mut text = links.url(&Route::ModuleArchive(archive).path());
            if let Some(subdir) = subdir {
                text.push_str("//");
                text.push_str(&subdir);
            }
            if let Some(checksum) = checksum {
                text.push_str(&format!("?checksum=sha256:{checksum}"));
            }
            LocationHeader { text, is_stable: checksum.is_some() }
        }
    };
    Ok(Answer { value: location, outcome, fresh_until, checked })
}
