//! Archives as forges and archive hosts serve them, in every format that go-getter unpacks.

use std::io::{Cursor, Write as _};
use std::path::Path;

use super::trees::{TreeFile, tree};

/// Archive formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Zip,
    TarGz,
    TarBz2,
    TarXz,
}

/// Packs the files of a folder, without `.git` and with symbolic links followed. `wrapper` is the folder that they get
/// in the archive (empty for none).
pub(crate) fn pack(format: Format, folder: &Path, wrapper: &str) -> Vec<u8> {
    let files = tree(folder).into_iter().map(|(path, file)| match wrapper {
        "" => (path, file),
        wrapper => (format!("{wrapper}/{path}"), file),
    });
    match format {
        Format::Zip => zip(files),
        Format::TarGz => {
            let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            out.write_all(&tar(files)).unwrap();
            out.finish().unwrap()
        }
        Format::TarBz2 => {
            let mut out = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::default());
            out.write_all(&tar(files)).unwrap();
            out.finish().unwrap()
        }
        Format::TarXz => {
            let mut out = liblzma::write::XzEncoder::new(Vec::new(), 1);
            out.write_all(&tar(files)).unwrap();
            out.finish().unwrap()
        }
    }
}

fn zip(files: impl Iterator<Item = (String, TreeFile)>) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (path, TreeFile { bytes, is_executable }) in files {
        let mode = if is_executable { 0o755 } else { 0o644 };
        zip.start_file(path, zip::write::SimpleFileOptions::default().unix_permissions(mode)).unwrap();
        zip.write_all(&bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// A tar archive with directory entries, and with the pax global header that forges write first.
fn tar(files: impl Iterator<Item = (String, TreeFile)>) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    let comment = b"52 comment=0123456789012345678901234567890123456789\n";
    let mut global = header(comment.len(), 0o644);
    global.set_entry_type(tar::EntryType::XGlobalHeader);
    tar.append_data(&mut global, "pax_global_header", &comment[..]).unwrap();
    let mut folders = Vec::new();
    for (path, TreeFile { bytes, is_executable }) in files {
        for (offset, _) in path.match_indices('/') {
            let folder = path[..=offset].to_owned();
            if !folders.contains(&folder) {
                let mut entry = header(0, 0o755);
                entry.set_entry_type(tar::EntryType::Directory);
                tar.append_data(&mut entry, &folder, &b""[..]).unwrap();
                folders.push(folder);
            }
        }
        let mode = if is_executable { 0o755 } else { 0o644 };
        tar.append_data(&mut header(bytes.len(), mode), &path, &bytes[..]).unwrap();
    }
    tar.into_inner().unwrap()
}

fn header(bytes: usize, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_size(bytes as u64);
    header.set_mode(mode);
    header.set_mtime(1_704_067_200);
    header
}
