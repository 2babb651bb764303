//! The final audit: with upstream down, everything that clients have received must come from the store; then the store
//! itself, file by file.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;

use crate::SoakSetup;
use crate::ledger::BrokenPromise;
use crate::sources::archive_path;
use crate::support::larder::Folder;
use crate::support::upstream::sha256_hex;

/// The findings of an audit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AuditResult {
    pub(crate) blobs: usize,
    pub(crate) bytes: u64,
    pub(crate) partial_downloads: usize,
}

/// Requests acknowledged archives and documents from a larder whose upstream is down, at most this many of each.
pub(crate) async fn audit_acknowledged(setup: &Arc<SoakSetup>, at_most: usize) -> anyhow::Result<usize> {
    let client = reqwest::Client::builder().no_proxy().no_gzip();
    let client = client.timeout(Duration::from_secs(60)).build()?;
    let base = setup.processes.wait_until_running().await.base;
    let mut rng = StdRng::seed_from_u64(u64::from(setup.processes.number()));
    let mut archives = setup.ledger.archives();
    archives.shuffle(&mut rng);
    for (path, archive) in archives.iter().take(at_most) {
        let truth = setup.truth.zip(&archive.package, &archive.sha256).await;
        let answer = async {
            let response = client.get(format!("{base}{path}")).send().await?;
            let status = response.status().as_u16();
            Ok::<_, reqwest::Error>((status, response.bytes().await?))
        };
        match answer.await {
            Ok((200, body)) if truth.as_ref().is_some_and(|zip| zip.bytes == body) => {}
            Ok((200, _)) => {
                setup.ledger.record_broken(BrokenPromise::WrongBytes, format!("{path}, with upstream down"))
            }
            Ok((status, body)) => {
                let reason = String::from_utf8_lossy(&body).into_owned();
                setup.ledger.record_broken(BrokenPromise::ArchiveLost, format!("{path}: {status} {reason}"));
            }
            Err(e) => setup.ledger.record_broken(BrokenPromise::ArchiveLost, format!("{path}: {e:?}")),
        }
    }
    let mut documents = setup.ledger.documents();
    documents.shuffle(&mut rng);
    for path in documents.iter().take(at_most) {
        let status = match client.get(format!("{base}{path}")).send().await {
            Ok(response) if matches!(response.status().as_u16(), 200 | 204) => continue,
            Ok(response) => format!("{} {}", response.status(), response.text().await.unwrap_or_default()),
            Err(e) => format!("{e:?}"),
        };
        setup.ledger.record_broken(BrokenPromise::StoredRefused, format!("{path}, with upstream down: {status}"));
    }
    for (name, sha256) in setup.sources.seen() {
        let path = archive_path(&name, &sha256);
        let promise = match client.get(format!("{base}{path}")).send().await {
            Ok(response) if response.status().as_u16() == 200 => match response.bytes().await {
                Ok(body) if sha256_hex(&body) == sha256 => continue,
                Ok(_) => BrokenPromise::WrongBytes,
                Err(_) => BrokenPromise::ArchiveLost,
            },
            _ => BrokenPromise::ArchiveLost,
        };
        setup.ledger.record_broken(promise, format!("{path}, with upstream down"));
    }
    Ok(archives.len().min(at_most))
}

/// Checks every file of a closed store.
pub(crate) async fn audit_store(setup: &SoakSetup, folder: &Folder) -> anyhow::Result<AuditResult> {
    let mut true_digests = setup.truth.rightful_digests().await;
    true_digests.extend(setup.sources.seen().into_values());
    let mut result = AuditResult { partial_downloads: folder.partial_downloads().len(), ..AuditResult::default() };
    for blob in folder.blobs() {
        let bytes = fs::read(&blob)?;
        let name = blob.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if sha256_hex(&bytes) != name || !true_digests.contains(&name) {
            setup.ledger.record_broken(BrokenPromise::WrongBytes, format!("the store's {}", blob.display()));
        }
        result.blobs += 1;
        result.bytes += bytes.len() as u64;
    }
    for file in quarantined_files(folder.path()) {
        setup.ledger.record_broken(BrokenPromise::Quarantined, file.display().to_string());
    }
    let records = folder.files("staging").len() - result.partial_downloads;
    if records > 0 {
        setup.ledger.record_broken(BrokenPromise::Leaked, format!("{records} records in staging"));
    }
    Ok(result)
}

fn quarantined_files(store: &Path) -> Vec<PathBuf> {
    let entries = |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_damaged_index =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("index."));
    entries(store.join("v1")).filter(is_damaged_index).chain(entries(store.join("v1/aside"))).collect()
}
