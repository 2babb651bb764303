//! The repair file of a bundle in parts: the bundle without its archives. With it, a lost or damaged part can be written
//! again byte for byte after the store's documents have changed, because archives never change.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::sync::Arc;

use super::{BundleReader, BundleTrust, BundleWriter, EntryFile, FileRole, Manifest};
use crate::digest::Digest;

/// The name of the repair file, in the folder of the parts.
pub const REPAIR_FILE: &str = "larder-bundle.record.tar";

/// Copies a bundle and writes its repair file on the way. Returns both writers.
///
/// # Errors
/// Those of the reader and the writers; `UnexpectedEof` where the bundle is truncated.
pub fn copy_with_repair_file<R: Read, W: Write, V: Write>(input: R, output: W, repair_file: V) -> io::Result<(W, V)> {
    let mut bundle = BundleReader::open(input, &BundleTrust::ANY)?;
    let manifest = Arc::clone(&bundle.manifest);
    let (manifest_bytes, signature) = bundle.manifest_and_signature();
    let mut output = BundleWriter::begin_serialized(output, &manifest_bytes, signature.as_deref())?;
    let mut repair_file = BundleWriter::begin_serialized(repair_file, &manifest_bytes, signature.as_deref())?;
    for (_, file) in manifest.files() {
        if file.role == FileRole::Archive {
            bundle.begin_file(&file)?;
            output.file(&file, &mut bundle)?;
        } else {
            let bytes = read_file(&mut bundle, &file)?;
            output.file(&file, bytes.as_slice())?;
            repair_file.file(&file, bytes.as_slice())?;
        }
    }
    bundle.end()?;
    Ok((output.end()?, repair_file.end()?))
}

/// Writes a bundle again, byte for byte: its repair file, with the archives of a new bundle (`input`). Returns the writer.
///
/// # Errors
/// Those of the readers and the writer. A new bundle with other archives is refused before anything is written.
pub fn rebuild_from_repair_file<R: Read, V: Read, W: Write>(
    input: R,
    mut repair_file: BundleReader<V>,
    output: W,
) -> io::Result<W> {
    let mut bundle = BundleReader::open(input, &BundleTrust::ANY)?;
    let (old_manifest, new_manifest) = (Arc::clone(&repair_file.manifest), Arc::clone(&bundle.manifest));
    check_same_archives(&old_manifest, &new_manifest)?;
    let mut new_files = new_manifest.files().map(|(_, file)| file);
    let (manifest_bytes, signature) = repair_file.manifest_and_signature();
    let mut output = BundleWriter::begin_serialized(output, &manifest_bytes, signature.as_deref())?;
    for (_, file) in old_manifest.files() {
        if file.role != FileRole::Archive {
            output.file(&file, read_file(&mut repair_file, &file)?.as_slice())?;
            continue;
        }
        for skipped in new_files.by_ref().take_while(|new_file| new_file.file != file.file) {
            skipped.check_digest(bundle.file(&skipped, |_| {})?).map_err(io::Error::other)?;
        }
        bundle.begin_file(&file)?;
        output.file(&file, &mut bundle)?;
    }
    for skipped in new_files {
        skipped.check_digest(bundle.file(&skipped, |_| {})?).map_err(io::Error::other)?;
    }
    bundle.end()?;
    repair_file.end()?;
    output.end()
}

/// Checks that both bundles have equal archives. Both list them in the order of their addresses.
fn check_same_archives(old: &Manifest, new: &Manifest) -> io::Result<()> {
    let archives = |manifest: &Manifest| -> Vec<Digest> {
        manifest.files().filter(|(_, file)| file.role == FileRole::Archive).map(|(_, file)| file.file.sha256).collect()
    };
    let (old_archives, new_archives) = (archives(old), archives(new));
    if old_archives == new_archives {
        return Ok(());
    }
    let first_not_in = |others: &[Digest], manifest: &Manifest| {
        let others: HashSet<&Digest> = others.iter().collect();
        let entry = manifest.entries.iter().find(|entry| {
            entry.package_archive().is_some_and(|(_, archive)| !archive.left_out && !others.contains(&archive.sha256))
        });
        entry.map(|entry| entry.package_ref().to_string())
    };
    let differs = match (first_not_in(&new_archives, old), first_not_in(&old_archives, new)) {
        (Some(extra), Some(lacking)) => {
            format!("it has the archive of {extra}, the requested one has that of {lacking}")
        }
        (Some(extra), None) => format!("it has the archive of {extra}, which was not requested"),
        (None, Some(lacking)) => format!("it lacks the archive of {lacking}, which was requested"),
        (None, None) => "it has its archives in another order".to_owned(),
    };
    Err(io::Error::other(format!("there is another bundle: {differs}")))
}

/// Reads the next file into memory.
fn read_file<R: Read>(bundle: &mut BundleReader<R>, file: &EntryFile) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bundle.begin_file(file)?;
    bundle.read_to_end(&mut bytes)?;
    Ok(bytes)
}
