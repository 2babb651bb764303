//! Server certificates: a chain and a key from two PEM files, checked every second and swapped in place.

use std::{
    collections::HashMap,
    io,
    os::unix::fs::MetadataExt,
    panic,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use http::uri::Authority;
use parking_lot::{Mutex, RwLock};
use rustls::{
    InconsistentKeys, ServerConfig,
    client::verify_server_name,
    crypto::aws_lc_rs,
    server::{ClientHello, ParsedCertificate, ResolvesServerCert},
    sign::CertifiedKey,
};
use rustls_pki_types::{
    CertificateDer, PrivateKeyDer, ServerName,
    pem::{self, PemObject},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::protocol::route::{MAX_AUTHORITY, parse_origin};

/// Interval of the file checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The certificate chain and key for new connections; both can be replaced while connections are open.
#[derive(Debug)]
pub struct Tls {
    in_use: Arc<CurrentCertificate>,
    config: Arc<ServerConfig>,
    /// State of the files at the last read, valid or not.
    last_read: Mutex<WatchedFiles>,
}

/// Both files and their state.
#[derive(Debug, Clone, PartialEq, Eq)]
struct WatchedFiles {
    certificate: PathBuf,
    key: PathBuf,
    stamps: [Option<FileStamp>; 2],
}

impl WatchedFiles {
    fn new(certificate: &Path, key: &Path) -> Self {
        let stamps = [certificate, key].map(file_stamp);
        Self { certificate: certificate.to_owned(), key: key.to_owned(), stamps }
    }
}

/// A valid pair that is not in use yet.
#[derive(Debug)]
pub struct Renewal {
    pair: CertifiedKey,
    files: WatchedFiles,
}

impl Renewal {
    /// Reads and checks a pair of files.
    ///
    /// # Errors
    /// As [`Tls::load`].
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        // The state is taken before the files are read, so that a write in between shows as a change.
        let files = WatchedFiles::new(certificate, key);
        Ok(Self { pair: certified_key(certificate, key)?, files })
    }
}

/// An unusable certificate or key: the file, the problem, and the expected content.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}; it must be a PEM file that larder's user may read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The certificate file is not PEM, or a block in it is incomplete.
    #[error(
        "{} is not a PEM certificate chain: {problem}; the file should hold the server's certificate and then its \
         intermediates, each between -----BEGIN CERTIFICATE----- and -----END CERTIFICATE-----", path.display()
    )]
    Chain {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// The key file is not PEM, or has no usable signing key.
    #[error(
        "{} is not a usable private key: {problem}; the file should hold one RSA, EC or Ed25519 key without a passphrase, \
         between -----BEGIN PRIVATE KEY----- and -----END PRIVATE KEY-----", path.display()
    )]
    Key {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// Both files are valid, but do not belong together.
    #[error(
        "the key in {} does not belong to the first certificate in {}; the server's own certificate comes first, \
         its intermediates after it", key.display(), certificate.display()
    )]
    Mismatch {
        /// The certificate file.
        certificate: PathBuf,
        /// The key file.
        key: PathBuf,
    },
    /// The TLS library refuses its own defaults.
    #[error("cannot set up TLS: {0}")]
    Setup(#[source] rustls::Error),
}

impl Tls {
    /// Reads both files and checks that they match.
    ///
    /// # Errors
    /// A file cannot be read or parsed, or the two do not match.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let Renewal { pair, files } = Renewal::read(certificate, key)?;
        let in_use = Arc::new(CurrentCertificate(ArcSwap::from_pointee(PairInUse::new(pair))));
        let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Setup)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&in_use) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { in_use, config: Arc::new(config), last_read: Mutex::new(files) })
    }

    /// A TLS acceptor that uses the current certificate at each handshake.
    #[must_use]
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.config))
    }

    /// The origin of a `HOST[:PORT]` whose host the certificate in use covers, as a client would check it (RFC 9525).
    pub(super) fn certified_origin(&self, authority: &str) -> Option<Arc<str>> {
        self.in_use.0.load().origin(authority)
    }

    /// Uses this pair for new connections, and watches its files.
    pub fn use_pair(&self, Renewal { pair, files }: Renewal) {
        let mut last_read = self.last_read.lock();
        *last_read = files;
        self.in_use.0.store(Arc::new(PairInUse::new(pair)));
    }

    /// Checks the files every second until `stop`, and switches to a new pair once it is complete. Logs an invalid pair
    /// once and keeps the old one. Open connections keep the certificate that they began with.
    pub async fn reload_when_changed(self: Arc<Self>, stop: CancellationToken) {
        let mut previous = self.last_read.lock().clone();
        while stop.run_until_cancelled(tokio::time::sleep(CHECK_INTERVAL)).await.is_some() {
            let tls = Arc::clone(&self);
            // The check runs on a blocking thread: the files may live on a network file system that hangs.
            let last_observed = previous.clone();
            match tokio::task::spawn_blocking(move || tls.check_files(&last_observed)).await {
                Ok(observed) => previous = observed,
                // The supervisor counts the panic and restarts the task.
                Err(error) if error.is_panic() => panic::resume_unwind(error.into_panic()),
                Err(error) => tracing::error!(%error, "checking the certificate files failed"),
            }
        }
    }

    /// Runs one check: loads files that changed since the last read, but not since the check that returned `previous`.
    /// Two files are seldom replaced in one instant, so waiting for them to settle keeps half a renewal out of the log.
    fn check_files(&self, previous: &WatchedFiles) -> WatchedFiles {
        let loaded = self.last_read.lock().clone();
        let observed = WatchedFiles::new(&loaded.certificate, &loaded.key);
        if observed == loaded || observed != *previous {
            return observed;
        }
        let pair = certified_key(&observed.certificate, &observed.key);
        let mut last_read = self.last_read.lock();
        if *last_read != loaded {
            // A reload of the configuration has named other files.
            return observed;
        }
        *last_read = observed.clone();
        match pair {
            Ok(pair) => {
                self.in_use.0.store(Arc::new(PairInUse::new(pair)));
                tracing::info!(certificate = %observed.certificate.display(), "new TLS certificate in use");
            }
            Err(error) => tracing::error!(%error, "the TLS files have changed, the old certificate stays in use"),
        }
        observed
    }
}

/// The pair for the next handshake.
#[derive(Debug)]
struct CurrentCertificate(ArcSwap<PairInUse>);

/// A pair, and the origins of the hosts that clients addressed. Comparing a host with the certificate takes longer than the
/// whole answer from memory.
#[derive(Debug)]
struct PairInUse {
    pair: Arc<CertifiedKey>,
    origins: RwLock<HashMap<String, Option<Arc<str>>>>,
}

/// The most hosts whose origins are remembered. Clients use a few; somebody who makes up names costs comparisons.
const MAX_REMEMBERED: usize = 64;

impl PairInUse {
    fn new(pair: CertifiedKey) -> Self {
        Self { pair: Arc::new(pair), origins: RwLock::default() }
    }

    fn origin(&self, authority: &str) -> Option<Arc<str>> {
        if let Some(origin) = self.origins.read().get(authority) {
            return origin.clone();
        }
        let origin = self.certifies(authority).then(|| parse_origin("https", authority)).flatten().map(Arc::from);
        if authority.len() <= MAX_AUTHORITY {
            let mut origins = self.origins.write();
            if origins.len() >= MAX_REMEMBERED {
                origins.clear();
            }
            origins.insert(authority.to_owned(), origin.clone());
        }
        origin
    }

    fn certifies(&self, authority: &str) -> bool {
        let Ok(authority) = authority.parse::<Authority>() else { return false };
        let name = authority.host().trim_matches(['[', ']']);
        let Ok(name) = ServerName::try_from(name) else { return false };
        let certificate = self.pair.cert.first().and_then(|certificate| ParsedCertificate::try_from(certificate).ok());
        certificate.is_some_and(|certificate| verify_server_name(&certificate, &name).is_ok())
    }
}

impl ResolvesServerCert for CurrentCertificate {
    fn resolve(&self, _client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.load().pair))
    }
}

fn certified_key(certificate: &Path, key: &Path) -> Result<CertifiedKey, TlsError> {
    let chain_error = |problem: String| TlsError::Chain { path: certificate.to_owned(), problem };
    let key_error = |problem: String| TlsError::Key { path: key.to_owned(), problem };
    let chain = CertificateDer::pem_slice_iter(&read(certificate)?)
        .collect::<Result<Vec<_>, pem::Error>>()
        .map_err(|error| chain_error(error.to_string()))?;
    if chain.is_empty() {
        return Err(chain_error("the file holds no certificate".to_owned()));
    }
    let private = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| match error {
        pem::Error::NoItemsFound => key_error("the file holds no unencrypted private key".to_owned()),
        other => key_error(other.to_string()),
    })?;
    let signing = aws_lc_rs::sign::any_supported_type(&private).map_err(|error| key_error(error.to_string()))?;
    let pair = CertifiedKey::new(chain, signing);
    match pair.keys_match() {
        // `Unknown` is not a mismatch: the key does not expose its public half.
        Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(pair),
        Err(rustls::Error::InconsistentKeys(_)) => {
            Err(TlsError::Mismatch { certificate: certificate.to_owned(), key: key.to_owned() })
        }
        Err(error) => Err(chain_error(error.to_string())),
    }
}

/// Device, inode, length and modification time of a file, for detecting a change.
type FileStamp = (u64, u64, u64, i64, i64);

/// Follows symbolic links, because Kubernetes renews a secret by switching one. `None` if the file is not accessible.
fn file_stamp(path: &Path) -> Option<FileStamp> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino(), metadata.len(), metadata.mtime(), metadata.mtime_nsec()))
}

#[expect(
    clippy::disallowed_methods,
    reason = "certificates are read where they are used, and read again when they change"
)]
fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::Read { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "tests make their own files")]

    use std::{fs, os::unix::fs::symlink};

    use tempfile::TempDir;

    use super::*;

    fn certificate_and_key(name: &str) -> (String, String) {
        let generated = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        (generated.cert.pem(), generated.signing_key.serialize_pem())
    }

    fn write(folder: &TempDir, (certificate, key): &(String, String)) -> (PathBuf, PathBuf) {
        let paths = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        fs::write(&paths.0, certificate).unwrap();
        fs::write(&paths.1, key).unwrap();
        paths
    }

    fn der((certificate, _): &(String, String)) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()
    }

    fn in_use(tls: &Tls) -> CertificateDer<'static> {
        tls.in_use.0.load().pair.cert[0].clone()
    }

    /// Runs two checks: the first notices a change, the second finds the files unchanged since and loads them.
    fn check_until_settled(tls: &Tls) {
        let loaded = tls.last_read.lock().clone();
        let observed = tls.check_files(&loaded);
        tls.check_files(&observed);
    }

    #[test]
    fn a_matching_pair_is_loaded() {
        let folder = TempDir::new().unwrap();
        let generated = certificate_and_key("localhost");
        let (certificate, key) = write(&folder, &generated);
        assert_eq!(in_use(&Tls::load(&certificate, &key).unwrap()), der(&generated));
    }

    #[test]
    fn an_error_names_the_file_and_its_problem() {
        let good = certificate_and_key("localhost");
        let other = certificate_and_key("localhost");
        let truncated = good.0[..good.0.len() / 2].to_owned();
        let cases = [
            ((String::new(), good.1.clone()), "cert.pem is not a PEM certificate chain: the file holds no certificate"),
            (
                (good.1.clone(), good.1.clone()),
                "cert.pem is not a PEM certificate chain: the file holds no certificate",
            ),
            ((truncated, good.1.clone()), "cert.pem is not a PEM certificate chain"),
            ((good.0.clone(), good.0.clone()), "key.pem is not a usable private key: the file holds no unencrypted"),
            ((good.0.clone(), other.1), "does not belong to the first certificate"),
        ];
        for (files, expected) in cases {
            let folder = TempDir::new().unwrap();
            let (certificate, key) = write(&folder, &files);
            let message = Tls::load(&certificate, &key).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
        let message = Tls::load(Path::new("/nowhere/cert.pem"), Path::new("/nowhere/key.pem")).unwrap_err().to_string();
        assert!(message.contains("cannot read /nowhere/cert.pem"), "{message}");
    }

    #[test]
    fn a_new_pair_is_used_once_its_files_have_settled() {
        let folder = TempDir::new().unwrap();
        let (old, new) = (certificate_and_key("old"), certificate_and_key("new"));
        let (certificate, key) = write(&folder, &old);
        let tls = Tls::load(&certificate, &key).unwrap();
        let loaded = tls.last_read.lock().clone();
        fs::write(&certificate, &new.0).unwrap();
        let half_written = tls.check_files(&loaded);
        fs::write(&key, &new.1).unwrap();
        let complete = tls.check_files(&half_written);
        assert_eq!(in_use(&tls), der(&old));
        tls.check_files(&complete);
        assert_eq!(in_use(&tls), der(&new));
    }

    #[test]
    fn the_hosts_of_a_new_certificate_count_at_once_however_often_they_were_compared_before() {
        let folder = TempDir::new().unwrap();
        let (certificate, key) = write(&folder, &certificate_and_key("old.example"));
        let tls = Tls::load(&certificate, &key).unwrap();
        let origins = || ["old.example:8443", "new.example"].map(|host| tls.certified_origin(host));
        let of_old = [Some("https://old.example:8443".into()), None];
        assert_eq!(origins(), of_old);
        assert_eq!(origins(), of_old);
        // Somebody who makes up names does not fill the memory.
        for number in 0..3 * MAX_REMEMBERED {
            assert_eq!(tls.certified_origin(&format!("h{number}.example")), None);
        }
        assert_eq!(tls.certified_origin(&"a".repeat(4 * MAX_AUTHORITY)), None);
        assert!(tls.in_use.0.load().origins.read().len() <= MAX_REMEMBERED);
        assert_eq!(origins(), of_old);
        write(&folder, &certificate_and_key("new.example"));
        check_until_settled(&tls);
        assert_eq!(origins(), [None, Some("https://new.example".into())]);
    }

    #[test]
    fn the_old_certificate_stays_in_use_until_a_broken_file_is_repaired() {
        let folder = TempDir::new().unwrap();
        let (old, new) = (certificate_and_key("old"), certificate_and_key("new"));
        let (certificate, key) = write(&folder, &old);
        let tls = Tls::load(&certificate, &key).unwrap();
        fs::write(&certificate, "broken").unwrap();
        check_until_settled(&tls);
        assert_eq!(in_use(&tls), der(&old));
        fs::remove_file(&certificate).unwrap();
        check_until_settled(&tls);
        assert_eq!(in_use(&tls), der(&old));
        write(&folder, &new);
        check_until_settled(&tls);
        assert_eq!(in_use(&tls), der(&new));
    }

    #[test]
    fn switching_a_symbolic_link_is_a_change() {
        let (first, second, links) = (TempDir::new().unwrap(), TempDir::new().unwrap(), TempDir::new().unwrap());
        let new = certificate_and_key("new");
        write(&first, &certificate_and_key("old"));
        write(&second, &new);
        let data = links.path().join("..data");
        symlink(first.path(), &data).unwrap();
        let tls = Tls::load(&data.join("cert.pem"), &data.join("key.pem")).unwrap();
        let switched = links.path().join("switched");
        symlink(second.path(), &switched).unwrap();
        fs::rename(&switched, &data).unwrap();
        check_until_settled(&tls);
        assert_eq!(in_use(&tls), der(&new));
    }

    #[tokio::test]
    async fn the_reload_task_uses_a_new_pair_and_ends_on_stop() {
        let folder = TempDir::new().unwrap();
        let new = certificate_and_key("new");
        let (certificate, key) = write(&folder, &certificate_and_key("old"));
        let tls = Arc::new(Tls::load(&certificate, &key).unwrap());
        let stop = CancellationToken::new();
        let running = tokio::spawn(Arc::clone(&tls).reload_when_changed(stop.clone()));
        write(&folder, &new);
        let changed = async {
            while in_use(&tls) != der(&new) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), changed).await.unwrap();
        stop.cancel();
        running.await.unwrap();
    }
}
