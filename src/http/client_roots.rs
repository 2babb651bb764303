//! The TLS roots that the clients trust on this machine, found as Go's standard library does: both clients are written
//! in Go (PROTOCOL, section 1.3).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

/// Go reads the first of these files that exists.
const FILES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Go reads all files in these folders.
const FOLDERS: [&str; 2] = ["/etc/ssl/certs", "/etc/pki/tls/certs"];
/// Size limit of a file of certificates. Larger files are skipped.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// Limit of the files read from a folder. A usual one has some hundreds of roots, and a link to each.
const MAX_FILES: usize = 4096;

/// The authorities that a client trusts.
#[derive(Debug, Clone)]
pub struct ClientRoots {
    pub(super) roots: Arc<RootCertStore>,
    /// The file named by `SSL_CERT_FILE`, if it could not be read.
    pub unreadable: Option<PathBuf>,
}

impl ClientRoots {
    /// Finds the roots of a client with this `SSL_CERT_FILE` and `SSL_CERT_DIR`. Each replaces only the default paths
    /// of its kind. Blocks.
    pub fn of_clients(file: Option<&str>, folders: Option<&str>) -> Self {
        let non_empty = |value: Option<&str>| value.filter(|value| !value.is_empty()).map(str::to_owned);
        let (file, folders) = (non_empty(file), non_empty(folders));
        let files = file.clone().map_or_else(|| FILES.map(PathBuf::from).to_vec(), |file| vec![PathBuf::from(file)]);
        let folders = folders.map_or_else(
            || FOLDERS.map(PathBuf::from).to_vec(),
            |folders| folders.split(':').map(PathBuf::from).collect(),
        );
        let bundle = files.iter().find_map(|file| read(file));
        let unreadable = file.filter(|_| bundle.is_none()).map(PathBuf::from);
        let mut certificates: Vec<CertificateDer<'static>> = bundle.unwrap_or_default();
        certificates
            .extend(folders.iter().flat_map(|folder| files_in(folder)).filter_map(|file| read(&file)).flatten());
        certificates.sort_unstable_by(|a, b| a.as_ref().cmp(b.as_ref()));
        certificates.dedup();
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates);
        Self { roots: Arc::new(roots), unreadable }
    }
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries.take(MAX_FILES).filter_map(|entry| entry.ok().map(|entry| entry.path())).collect()
}

/// Reads the certificates in a file and skips everything else, as Go does. `None` if the file cannot be read.
#[expect(clippy::disallowed_methods, reason = "the trusted roots are read where they are used")]
fn read(file: &Path) -> Option<Vec<CertificateDer<'static>>> {
    let is_file = std::fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.len() <= MAX_FILE_BYTES);
    let pem = if is_file { std::fs::read(file).ok()? } else { return None };
    Some(CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok).collect())
}
