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

/// The `packages` of the document of a package; `None` where upstream has them, where nobody asks for them, while the size of the
/// package's own archive is unknown, which clients compare, or where a platform of the version has no hash: Terragrunt reads
/// SHA256SUMS only without the member. Asks for the archives whose hashes are unknown, in the background.
pub(super) async fn packages(
    mirror: &Arc<Mirror>,
    package: &Package,
    set: &ProofSet,
    call: &RequestContext,
) -> Result<Option<Packages>, Error> {
    let Package { provider, version, platform } = package;
    let platforms_to_fetch = call.complete_hashes(&provider.host)?;
    if platforms_to_fetch.is_empty() || set.document.has_packages() {
        return Ok(None);
    }
    let VersionArchives { archives, is_complete } = mirror.library.archives_of_version(package, set).await?;
    let known = mirror.library.known_archives(provider, version, archives.clone()).await?;
    let lacks = |platform: &&Platform| {
        let is_published = archives.contains_key(*platform);
        is_published && known.get(*platform).is_none_or(|known| known.hashes == PackageHashState::NotYet)
    };
    if mirror.runtime.connectivity() == Connectivity::Online
        && platforms_to_fetch.iter().any(|platform| lacks(&platform))
    {
        mirror.wanted_hashes.want(provider, version);
    }
    if !is_complete || !known.contains_key(platform) {
        return Ok(None);
    }
    // Clients compare each `zh:` of their own platform with the document, so there is one.
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
