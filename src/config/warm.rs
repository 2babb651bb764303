//! `[[warm]]`: a recurring warm-up, its defaults, and the reader of its table.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::address::{Hostname, PackageSelector, Platform, TERRAFORM_REGISTRY};
use crate::requirements::{ArgumentKind, ClientKind};

use super::os::Unreadable;
use super::section::Section;
use super::{os, values};

/// The default interval.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(24 * 3600);
/// File name endings that never occur in an address.
const FILE_ENDINGS: [&str; 2] = [".hcl", ".tar"];

/// A recurring warm-up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecurringWarmUp {
    /// Addresses and paths to warm; at least one.
    pub targets: Vec<RecurringWarmTarget>,
    /// Platforms to fetch for; empty means this machine's.
    pub platforms: Vec<Platform>,
    /// Interval from the end of one run to the start of the next.
    pub every: Duration,
    /// Pin the fetched packages.
    pub pin: bool,
    /// Client whose rules apply to folders; `None` detects it from each folder's files.
    pub client: Option<ClientKind>,
}

/// One entry of a recurring warm-up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecurringWarmTarget {
    /// A valid address with a constraint, as written.
    Address(String),
    /// A lock file, folder or tar, read again at each run.
    Path(PathBuf),
}

/// Reads one `[[warm]]`. `None` if no entry is valid, which is recorded as a problem.
pub(super) fn read(section: &mut Section<'_, '_, '_>) -> Option<RecurringWarmUp> {
    let example = r#"["hashicorp/aws@~> 5.0", "./configurations/prod"]"#;
    let folder = section.folder();
    let targets = section.list("what", example, |text| warm_target(text, folder)).unwrap_or_default();
    let (targets, warnings): (Vec<RecurringWarmTarget>, Vec<Option<String>>) = targets.into_iter().unzip();
    warnings.into_iter().flatten().for_each(|warning| section.warning("what", warning));
    let warm = RecurringWarmUp {
        targets,
        platforms: section.list("platforms", r#"["linux_amd64"]"#, values::platform).unwrap_or_default(),
        every: section.text("every", "1d", values::warm_interval).unwrap_or(DEFAULT_INTERVAL),
        pin: section.flag("pin").unwrap_or(false),
        client: section.text("client", "terraform", client),
    };
    section.require(&["what"]);
    if section.is_empty_list("what") {
        section.problem("what", format!("an empty list warms nothing; write for example what = {example}"));
    }
    (!warm.targets.is_empty()).then_some(warm)
}

/// Parses one entry, with an optional warning. An absent path is only a warning: a folder may be mounted later, and
/// larder serves clients without it.
fn warm_target(text: &str, folder: &Path) -> Result<(RecurringWarmTarget, Option<String>), String> {
    let is_written_as_path =
        text.starts_with(['.', '/']) || text.ends_with('/') || FILE_ENDINGS.iter().any(|ending| text.ends_with(ending));
    if text.starts_with('~') {
        return Err(format!("{} is not expanded: write the home folder in place of ~", values::quoted(text)));
    }
    let checked_later = "it is checked again at each run";
    // The default registry is not available yet; any host will do to check the syntax.
    let some_host = Hostname::parse(TERRAFORM_REGISTRY).map_err(|bad| bad.to_string())?;
    let path = folder.join(text);
    match os::check(&path) {
        _ if text.is_empty() || text.contains('\0') => {}
        Ok(()) | Err(Unreadable::Folder) => {
            return match ArgumentKind::of(text, &path, &some_host)? {
                ArgumentKind::Address => Ok((RecurringWarmTarget::Address(text.to_owned()), None)),
                ArgumentKind::OrderJson => {
                    Err(format!("{} is neither a lock file, nor a folder, nor a tar", values::quoted(text)))
                }
                ArgumentKind::LockFile | ArgumentKind::Folder | ArgumentKind::Tar => {
                    Ok((RecurringWarmTarget::Path(path), None))
                }
            };
        }
        Err(cause) if !cause.is_absent() => {
            let warning = format!("{} cannot be read: {cause}; {checked_later}", path.display());
            return Ok((RecurringWarmTarget::Path(path), Some(warning)));
        }
        Err(_) if is_written_as_path => {
            let warning = format!("there is no file and no folder {}; {checked_later}", values::quoted(text));
            return Ok((RecurringWarmTarget::Path(path), Some(warning)));
        }
        Err(_) => {}
    }
    PackageSelector::parse(text, &some_host).map_err(|bad| {
        format!("{}: no file or folder has this name, and it is not an address: {bad}", quoted_address(text))
    })?;
    Ok((RecurringWarmTarget::Address(text.to_owned()), None))
}

/// Quotes a text for messages. `values::quoted` would hide every address with an `@`, which only in a URL may belong to
/// a password.
fn quoted_address(text: &str) -> String {
    if text.contains("://") { values::quoted(text) } else { format!("{text:?}") }
}

fn client(value: &str) -> Result<ClientKind, String> {
    ClientKind::parse(value).ok_or_else(|| format!("{} is neither terraform nor opentofu", values::quoted(value)))
}
