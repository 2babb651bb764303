//! What the configuration takes from outside: environment variables, files, and the folders that both lead to.
//! The only place that reads either.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why a file could not be read.
#[derive(Debug, Error)]
pub(crate) enum Unreadable {
    /// The system said no.
    #[error("{0}")]
    Refused(#[from] io::Error),
    /// It is a folder.
    #[error("it is a folder, not a file")]
    Folder,
    /// It is larger than anything we expect in its place.
    #[error("it is larger than {0} bytes")]
    TooLarge(u64),
    /// It is no text.
    #[error("it is not UTF-8 text (line {0})")]
    NotText(usize),
}

impl Unreadable {
    /// Whether there is simply no such file.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Self::Refused(cause)
            if matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory))
    }
}

/// An environment variable, when it is set and is text.
#[expect(clippy::disallowed_methods, reason = "the environment is read here, for the configuration alone")]
pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The whole environment, as far as it is text.
pub(crate) fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// The text of a file, up to a limit.
pub(crate) fn text(path: &Path, limit_bytes: u64) -> Result<String, Unreadable> {
    let mut bytes = Vec::new();
    open(path)?.take(limit_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit_bytes {
        return Err(Unreadable::TooLarge(limit_bytes));
    }
    String::from_utf8(bytes).map_err(|cause| {
        let good = cause.utf8_error().valid_up_to();
        let newlines = cause.as_bytes().iter().take(good).filter(|byte| **byte == b'\n').count();
        Unreadable::NotText(newlines + 1)
    })
}

/// A file that another part will read: it must be there, and ours to read.
pub(super) fn check(path: &Path) -> Result<(), Unreadable> {
    open(path).map(drop)
}

/// The address of a name with its port: the first, and of IPv4 where there is one, as clients take it.
pub(super) fn address(name: &str) -> io::Result<SocketAddr> {
    let found: Vec<SocketAddr> = name.to_socket_addrs()?.collect();
    let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
    first.copied().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address"))
}

/// The file that the environment names, which must be there.
pub(super) fn named(env: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    env("LARDER_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Where a configuration file is looked for when none is named.
pub(super) fn places(env: &dyn Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    let user = folder(env, "XDG_CONFIG_HOME").or_else(|| Some(folder(env, "HOME")?.join(".config")));
    let system = PathBuf::from("/etc");
    user.into_iter().chain([system]).map(|folder| folder.join("larder/mirror.toml")).collect()
}

/// Where the store is when the configuration does not say: the state folder that systemd gives, else the user's cache.
pub(super) fn store_folder(env: &dyn Fn(&str) -> Option<String>) -> PathBuf {
    let state = |name: &str| env(name).map(|folders| folders.split(':').next().unwrap_or_default().to_owned());
    // systemd separates several state folders with colons.
    folder(&state, "STATE_DIRECTORY")
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

// A relative folder would lead into the working directory.
fn folder(env: &dyn Fn(&str) -> Option<String>, name: &str) -> Option<PathBuf> {
    env(name).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Whether users that are neither the owner nor of the group may read or change a file.
pub(super) fn others_may_read(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o007 != 0)
}
