//! The record of a bundle in parts: the bundle without its archives. With it, a lost or damaged part can be written
//! again byte for byte after the store's documents have changed, because archives never change.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::sync::Arc;

use super::open::BundleReader;
use super::write::BundleWriter;
use super::{BadBundle, BundleTrust, DigestCheck, EntryFile, FileRole, Manifest};
use crate::digest::Digest;

/// The file name of the record, beside the parts. It is the bundle's tar without the archives.
pub const RECORD_FILE: &str = "larder-bundle.record.tar";

/// No signature is required: these streams are larder's own new bundle and its record.
const TRUST: BundleTrust = BundleTrust { keys: Vec::new(), allow_unsigned: true };

impl From<BadBundle> for io::Error {
    fn from(bad: BadBundle) -> Self {
        match bad {
            BadBundle::Truncated => Self::new(io::ErrorKind::UnexpectedEof, bad),
            BadBundle::Unreadable(e) => e,
            bad => Self::other(bad),
        }
    }
}

/// Opens the record of a bundle.
///
/// # Errors
/// [`BadBundle`] where it is not a record.
pub fn open_record<R: Read>(from: R) -> Result<BundleReader<R>, BadBundle> {
    BundleReader::open(from, &TRUST)
}

/// Copies a bundle and writes its record on the fly. Returns both writers.
///
/// # Errors
/// Those of the reader and the writers; `UnexpectedEof` where the bundle is truncated.
pub fn copy_and_record<R: Read, W: Write, V: Write>(from: R, to: W, record: V) -> io::Result<(W, V)> {
    let mut coming = BundleReader::open(from, &TRUST)?;
    let manifest = Arc::clone(&coming.manifest);
    let (written, signature) = coming.head();
    let mut to = BundleWriter::begin_with(to, &written, signature.as_deref())?;
    let mut record = BundleWriter::begin_with(record, &written, signature.as_deref())?;
    for (_, file) in manifest.files() {
        if file.role == FileRole::Archive {
            to.write_file_with(&file, |out| whole(&mut coming, &file, out))?;
        } else {
            let bytes = small(&mut coming, &file)?;
            to.file(&file, bytes.as_slice())?;
            record.file(&file, bytes.as_slice())?;
        }
    }
    coming.end()?;
    Ok((to.end()?, record.end()?))
}

/// Writes a recorded bundle again, with the archives of a new bundle. Returns the writer.
///
/// # Errors
/// Those of the readers and the writer. A new bundle with other archives is refused before anything is written.
pub fn rebuild_from_record<R: Read, V: Read, W: Write>(from: R, mut record: BundleReader<V>, to: W) -> io::Result<W> {
    let mut coming = BundleReader::open(from, &TRUST)?;
    let (manifest, coming_manifest) = (Arc::clone(&record.manifest), Arc::clone(&coming.manifest));
    same_archives(&manifest, &coming_manifest)?;
    let mut files = coming_manifest.files().map(|(_, file)| file);
    let (written, signature) = record.head();
    let mut to = BundleWriter::begin_with(to, &written, signature.as_deref())?;
    for (_, file) in manifest.files() {
        if file.role != FileRole::Archive {
            to.file(&file, small(&mut record, &file)?.as_slice())?;
            continue;
        }
        for passed in files.by_ref().take_while(|passed| passed.file != file.file) {
            whole(&mut coming, &passed, &mut |_| Ok(()))?;
        }
        to.write_file_with(&file, |out| whole(&mut coming, &file, out))?;
    }
    for passed in files {
        whole(&mut coming, &passed, &mut |_| Ok(()))?;
    }
    coming.end()?;
    record.end()?;
    to.end()
}

/// Checks that both bundles have equal archives. Both list them in the order of their addresses.
fn same_archives(recorded: &Manifest, coming: &Manifest) -> io::Result<()> {
    let archives = |manifest: &Manifest| -> Vec<Digest> {
        manifest.files().filter(|(_, file)| file.role == FileRole::Archive).map(|(_, file)| file.file.sha256).collect()
    };
    let (was, now) = (archives(recorded), archives(coming));
    if was == now {
        return Ok(());
    }
    let only = |manifest: &Manifest, not_in: &[Digest]| {
        let known: HashSet<&Digest> = not_in.iter().collect();
        let entry = manifest
            .entries
            .iter()
            .find(|entry| entry.archive().is_some_and(|archive| !archive.left_out && !known.contains(&archive.sha256)));
        entry.map(|entry| entry.package_ref().to_string())
    };
    let differs = match (only(recorded, &now), only(coming, &was)) {
        (Some(was), Some(now)) => format!("it has the archive of {was}, the requested one has that of {now}"),
        (Some(was), None) => format!("it has the archive of {was}, which was not requested"),
        (None, Some(now)) => format!("it lacks the archive of {now}, which was requested"),
        (None, None) => "it has its archives in another order".to_owned(),
    };
    Err(io::Error::other(format!("there is another bundle: {differs}")))
}

/// Passes a file on and checks its digest against the manifest.
fn whole<R: Read>(
    from: &mut BundleReader<R>,
    file: &EntryFile,
    out: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    match from.file::<io::Error>(file, |piece| out(piece))? {
        DigestCheck::Matches => Ok(()),
        DigestCheck::Differs { now } => {
            let reason = format!("{} has changed: its SHA-256 is {now}", file.name());
            Err(io::Error::other(reason))
        }
    }
}

fn small<R: Read>(from: &mut BundleReader<R>, file: &EntryFile) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    whole(from, file, &mut |piece| {
        bytes.extend_from_slice(piece);
        Ok(())
    })?;
    Ok(bytes)
}
