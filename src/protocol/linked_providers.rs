//! The unpacked providers that the client of a `larder run` may link, for what its project's lock file names. Only where that
//! leaves the lock file as an `init` without links would leave it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};

use crate::address::{Package, Platform};
use crate::error::Error;
use crate::mirror::{Answer, Mirror, Outcome, RequestContext};
use crate::protocol::complete_hashes;
use crate::requirements::ClientKind;
use crate::requirements::lock_file::{self, LockedProvider};
use crate::store::SealedTree;

/// Providers that are looked at together.
const MAX_CONCURRENT: usize = 8;
/// The most installed packages of a client that are looked at.
const MAX_PACKAGES: usize = 4096;

/// A request for the providers that a client may link.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LinkRequest {
    /// The text of the project's lock file; null or absent if it has none.
    #[serde(default)]
    pub lock_file: Option<String>,
    /// The client.
    pub client: ClientKind,
    /// The client's data folder (`.terraform`), absolute.
    pub data_folder: PathBuf,
    /// The packages that are in that folder as copies: `HOST/NAMESPACE/TYPE/VERSION/OS_ARCH`. They are not unpacked.
    #[serde(default)]
    pub copies: Vec<PathBuf>,
}

/// The providers that a client may link.
#[derive(Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LinkAnswer {
    /// The providers.
    pub providers: Vec<LinkedProvider>,
    /// The number of locked providers about which a registry was asked for this, or of which it was fetched.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub upstream: BTreeMap<String, u64>,
    /// Why a provider could not be unpacked, for the person; the client gets it as without links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A provider that a client may link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LinkedProvider {
    /// `HOST/NAMESPACE/TYPE`.
    pub provider: String,
    /// The folder to name as a `filesystem_mirror` for it.
    pub mirror: PathBuf,
    /// The folder of its package in that, to which the client links.
    pub tree: PathBuf,
}

impl LinkRequest {
    /// Parses a request.
    ///
    /// # Errors
    /// The request is not JSON of this shape, or breaks a limit; the text names the fault.
    pub fn read(body: &[u8]) -> Result<Self, String> {
        let request: Self = serde_json::from_slice(body).map_err(|e| format!("the request: {e}"))?;
        if !request.data_folder.is_absolute() {
            return Err("data_folder must be absolute".to_owned());
        }
        let count = request.copies.len();
        if count > MAX_PACKAGES {
            return Err(format!("there are {count} installed packages; at most {MAX_PACKAGES} are looked at"));
        }
        Ok(request)
    }
}

/// The providers that a client may link. A provider that cannot be had that way is left out, because the client gets it as without
/// links.
///
/// # Errors
/// The disk failed.
pub async fn linked_providers(
    mirror: &Arc<Mirror>,
    request: &LinkRequest,
    call: &RequestContext,
) -> Result<LinkAnswer, Error> {
    if !mirror.library.may_unpack() {
        return Ok(LinkAnswer::default());
    }
    // The client itself reports a lock file that it cannot parse.
    let locked =
        request.lock_file.as_deref().and_then(|text| lock_file::parse(text.as_bytes()).ok()).unwrap_or_default();
    let linked = locked.into_iter().map(|locked| async move {
        let mut asked = false;
        let linked = linked_provider(mirror, &locked, request, &mut asked, call).await;
        (locked, asked, linked)
    });
    let mut linked = stream::iter(linked).buffered(MAX_CONCURRENT);
    let mut answer = LinkAnswer::default();
    while let Some((LockedProvider { provider, version, .. }, asked, linked)) = linked.next().await {
        if asked {
            *answer.upstream.entry(provider.host.to_string()).or_default() += 1;
        }
        match linked {
            Ok(Some(SealedTree { mirror, tree, .. })) => {
                answer.providers.push(LinkedProvider { provider: provider.to_string(), mirror, tree });
            }
            Ok(None) => {}
            // The disk, or the contents of the archive. What upstream or a rule says, the client hears itself.
            Err(error @ (Error::Store(_) | Error::Unreadable { .. })) => {
                tracing::debug!(%provider, %version, %error, "a provider cannot be unpacked for links");
                answer.note.get_or_insert_with(|| {
                    format!("{provider} {version} is not linked, the client unpacks a copy: {}", error.explain())
                });
            }
            Err(error) => tracing::debug!(%provider, %version, %error, "a provider is not linked"),
        }
    }
    // After every use is noted.
    mirror.unpacked.sweep_if_due(call.present());
    Ok(answer)
}

/// The unpacked archive of a locked provider. `None` where an `init` by the registry protocol would change the lock file in another
/// way, or refuse the archive. `asked` becomes true where upstream was asked.
async fn linked_provider(
    mirror: &Arc<Mirror>,
    locked: &LockedProvider,
    request: &LinkRequest,
    asked: &mut bool,
    call: &RequestContext,
) -> Result<Option<SealedTree>, Error> {
    let LinkRequest { client, data_folder, copies, .. } = request;
    let LockedProvider { provider, version, hashes, .. } = locked;
    // The folders of a filesystem mirror have the name in Unicode, which clients alone write.
    if provider.host.as_str().contains("xn--") {
        return Ok(None);
    }
    let platform = Platform::of_this_machine();
    let place: PathBuf = [&provider.to_string(), version.as_str(), &platform.to_string()].iter().collect();
    if copies.contains(&place) {
        return Ok(None);
    }
    let package = Package { provider: provider.clone(), version: version.clone(), platform };
    let hashes: BTreeSet<&str> = hashes.iter().map(String::as_str).collect();
    let Answer { value: set, outcome, .. } = mirror.proof_sets.proof_set(&package, call).await?;
    *asked = matches!(outcome, Outcome::Miss | Outcome::Revalidated);
    let mut added = set.hashes_of_init();
    if *client == ClientKind::Opentofu {
        added.extend(set.document.hashes_in_packages());
        let made = complete_hashes::packages(mirror, &package, &set, call).await.unwrap_or_default();
        added.extend(made.into_values().flat_map(|package| package.hashes));
    }
    let has_h1 = hashes.iter().any(|hash| hash.starts_with("h1:"));
    if !has_h1 || !added.iter().all(|hash| hashes.contains(hash.as_str())) {
        return Ok(None);
    }
    let (tree, is_fetched) = mirror.unpacked.tree(&package, &set, call).await?;
    *asked |= is_fetched;
    // Without it a later `init` by the client alone would not take the folder behind the link for installed, and unpack an archive
    // through the link.
    if !hashes.contains(tree.package_hash.as_str()) {
        return Ok(None);
    }
    let is_noted = mirror.unpacked.note_use(&package, &set, data_folder, call.present()).await?;
    Ok(is_noted.then_some(tree))
}
