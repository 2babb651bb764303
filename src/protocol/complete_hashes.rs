//! The hashes of every platform in a download document, in OpenTofu's form, where upstream has none and `complete_hashes` asks
//! for them (promise 5). Only hashes that a signature covers, or that larder computed.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::address::{Package, Platform};
use crate::digest::Digest;
use crate::error::Error;
use crate::mirror::{
    Connectivity, KnownArchive, Mirror, PackageHashState, ProofSet, RequestContext, VersionArchives, ZipOrigin,
};
use crate::upstream::providers::{Packages, PlatformPackage};

/// The `packages` of the document of a package. `None` where upstream has them or nobody asks for them, while the size of the
/// package's own archive is unknown, which clients compare, or where an archive of SHA256SUMS has no platform here: Terragrunt
/// reads SHA256SUMS only without the member. Asks for the archives whose hashes are unknown, in the background.
///
/// The document is of use without the member, so no failure here is one of the document.
pub(super) async fn packages(
    mirror: &Arc<Mirror>,
    package: &Package,
    set: &ProofSet,
    call: &RequestContext,
) -> Option<Packages> {
    let platforms = call.complete_hashes(&package.provider.host);
    // Clients compare the text of `shasum` with a `zh:`, which is in lower case.
    if platforms.is_empty() || set.document.has_packages() || !set.document.spells_shasum_in_lower_case() {
        return None;
    }
    let made = complete_packages(mirror, package, set, platforms).await;
    made.inspect_err(|error| tracing::debug!(%package, %error, "a document has no packages")).ok().flatten()
}

async fn complete_packages(
    mirror: &Arc<Mirror>,
    package: &Package,
    set: &ProofSet,
    platforms: &[Platform],
) -> Result<Option<Packages>, Error> {
    let Package { provider, version, platform: own } = package;
    let VersionArchives { archives, is_complete } = mirror.library.archives_of_version(package, set).await?;
    if !is_complete {
        return Ok(None);
    }
    let known = mirror.library.known_archives(provider, version, archives.clone()).await?;
    if mirror.runtime.connectivity() == Connectivity::Online {
        let is_unknown = |platform: &&Platform| {
            let known = known.get(*platform);
            archives.contains_key(*platform) && known.is_none_or(|known| known.hashes == PackageHashState::NotYet)
        };
        for platform in platforms.iter().filter(is_unknown) {
            mirror.wanted_hashes.want(Package { platform: platform.clone(), ..package.clone() });
        }
    }
    if !known.contains_key(own) {
        return Ok(None);
    }
    let signed: BTreeSet<Digest> = set.signed_digests().into_iter().collect();
    let entry = |(platform, digest): (Platform, Digest)| {
        let entry = platform_package(digest, known.get(&platform), signed.contains(&digest));
        entry.hashes.contains(&digest.zh()).then_some((platform, entry))
    };
    Ok(archives.into_iter().map(entry).collect::<Option<Packages>>())
}

/// The entry of one platform.
fn platform_package(digest: Digest, known: Option<&KnownArchive>, is_signed: bool) -> PlatformPackage {
    let is_verified_here = known.is_some_and(|known| known.zip == ZipOrigin::Published);
    let mut hashes: Vec<String> = (is_signed || is_verified_here).then(|| digest.zh()).into_iter().collect();
    if let Some(PackageHashState::Known { zip, directory }) = known.map(|known| &known.hashes) {
        hashes.push(zip.clone());
        hashes.extend(Some(directory).filter(|directory| *directory != zip).cloned());
    }
    PlatformPackage { hashes, package_size: known.map(|known| known.size_bytes) }
}
