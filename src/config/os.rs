//! Reads environment variables and files, and resolves names, for the whole configuration.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// The reason why a file could not be read.
#[derive(Debug, Error)]
pub(crate) enum Unreadable {
    /// The system returned an error.
    #[error("{0}")]
    Refused(#[from] io::Error),
    #[error("it is a folder, not a file")]
    Folder,
    /// The file exceeds the size limit of its use.
    #[error("it is larger than {0} bytes")]
    TooLarge(u64),
    #[error("it is not UTF-8 text (line {0})")]
    NotText(usize),
}

impl Unreadable {
    /// True where no such file exists.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Self::Refused(cause)
            if matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory))
    }
}

/// An environment variable that is set and is UTF-8.
#[expect(clippy::disallowed_methods, reason = "the environment is read here, for the configuration alone")]
pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// All environment variables that are UTF-8.
pub(crate) fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// Reads a text file up to a size limit.
pub(crate) fn text(path: &Path, limit_bytes: u64) -> Result<String, Unreadable> {
    let mut bytes = Vec::new();
    open(path)?.take(limit_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit_bytes {
        return Err(Unreadable::TooLarge(limit_bytes));
    }
    String::from_utf8(bytes).map_err(|cause| {
        let valid_up_to = cause.utf8_error().valid_up_to();
        let newlines = cause.as_bytes().iter().take(valid_up_to).filter(|byte| **byte == b'\n').count();
        Unreadable::NotText(newlines + 1)
    })
}

/// Checks that a file can be opened.
pub(super) fn check(path: &Path) -> Result<(), Unreadable> {
    open(path).map(drop)
}

/// Resolves a name with its port. Chooses the first IPv4 address, otherwise the first address, as clients do.
pub(super) fn address(name: &str) -> io::Result<SocketAddr> {
    let addresses: Vec<SocketAddr> = name.to_socket_addrs()?.collect();
    let chosen = addresses.iter().find(|address| address.is_ipv4()).or(addresses.first());
    chosen.copied().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address"))
}

/// The file named by `LARDER_CONFIG`, which must exist.
pub(super) fn named_file(env: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    env("LARDER_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Default locations of the configuration file.
pub(super) fn default_locations(env: &dyn Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    let user_folder = folder(env, "XDG_CONFIG_HOME").or_else(|| Some(folder(env, "HOME")?.join(".config")));
    let system_folder = PathBuf::from("/etc");
    user_folder.into_iter().chain([system_folder]).map(|folder| folder.join("larder/mirror.toml")).collect()
}

/// Default folder of the store: systemd's state folder, else the user's cache.
pub(super) fn store_folder(env: &dyn Fn(&str) -> Option<String>) -> PathBuf {
    // systemd separates several state folders with colons; the first is used.
    let first_folder = |name: &str| env(name).map(|folders| folders.split(':').next().unwrap_or_default().to_owned());
    folder(&first_folder, "STATE_DIRECTORY")
        .or_else(|| Some(folder(env, "XDG_CACHE_HOME")?.join("larder")))
        .or_else(|| Some(folder(env, "HOME")?.join(".cache/larder")))
        .unwrap_or_else(|| PathBuf::from("/var/lib/larder"))
}

#[expect(clippy::disallowed_methods, reason = "the configuration's own files are read here")]
fn open(path: &Path) -> Result<File, Unreadable> {
    let file = File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(Unreadable::Folder);
    }
    Ok(file)
}

/// The folder in an environment variable. A relative path is ignored: it would lead into the working directory.
fn folder(env: &dyn Fn(&str) -> Option<String>, name: &str) -> Option<PathBuf> {
    env(name).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// True where users other than the owner and the group may read or change a file.
pub(super) fn others_may_read(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o007 != 0)
}
