//! `[[warm]]`: what is warmed again and again, its defaults, and how its table is read.

use std::path::PathBuf;
use std::time::Duration;

use crate::address::{Hostname, Platform, What};
use crate::closure::{Client, Named};

use super::section::{Place, Section};
use super::values;

/// How often, where nobody says so.
const EVERY: Duration = Duration::from_secs(24 * 3600);
/// How the names of files end that are never addresses.
const FILES: [&str; 2] = [".hcl", ".tar"];

/// A recurring warm-up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warm {
    /// What it is about: at least one thing.
    pub what: Vec<WarmWhat>,
    /// For which platforms; this machine's when empty.
    pub platforms: Vec<Platform>,
    /// How long after its end it runs again.
    pub every: Duration,
    /// Whether what it warms is pinned.
    pub pin: bool,
    /// Whose rules count for folders; each folder's own files tell when absent.
    pub client: Option<Client>,
}

/// One thing that is warmed again and again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WarmWhat {
    /// An address with its constraint, as it is written: one that can be read.
    Address(String),
    /// A lock file, a folder or a tar, read anew each time.
    Path(PathBuf),
}

/// Read one `[[warm]]`; none when it is about nothing that is known (the problem is then recorded).
pub(super) fn read(section: &mut Section<'_, '_, '_>) -> Option<Warm> {
    let example = r#"["hashicorp/aws@~> 5.0", "./configurations/prod"]"#;
    let what = section.paths_or("what", example, what).unwrap_or_default();
    let (what, remarks): (Vec<WarmWhat>, Vec<Option<String>>) = what.into_iter().unzip();
    remarks.into_iter().flatten().for_each(|remark| section.warning("what", remark));
    let warm = Warm {
        what,
        platforms: section.list("platforms", r#"["linux_amd64"]"#, values::platform).unwrap_or_default(),
        every: section.text("every", "1d", values::recurrence).unwrap_or(EVERY),
        pin: section.flag("pin").unwrap_or(false),
        client: section.text("client", "terraform", client),
    };
    if !section.has("what") {
        section.problem("what", format!("missing; write for example what = {example}"));
    } else if section.is_empty_list("what") {
        section.problem("what", format!("an empty list warms nothing; write for example what = {example}"));
    }
    (!warm.what.is_empty()).then_some(warm)
}

/// What a text means, and what is to be said of it. A path that leads nowhere now may lead somewhere when its time comes:
/// a folder may be mounted later, and larder serves clients without it.
fn what(given: &str, place: Place) -> Result<(WarmWhat, Option<String>), String> {
    let is_written_as_path =
        given.starts_with(['.', '/']) || given.ends_with('/') || FILES.iter().any(|ending| given.ends_with(ending));
    if given.starts_with('~') {
        return Err(format!("{} is taken as it stands: no shell puts your home folder for ~", values::quoted(given)));
    }
    let later = "it is looked for again each time this is warmed";
    // The registry of an address that names none is known later; whether this is an address, now.
    let some_host = Hostname::parse(super::upstream::TERRAFORM).map_err(|bad| bad.to_string())?;
    match place {
        Place::There(path) => {
            return match Named::of(given, &path, &some_host)? {
                Named::Address => Ok((WarmWhat::Address(given.to_owned()), None)),
                Named::Told => {
                    Err(format!("{} is neither a lock file, nor a folder, nor a tar", values::quoted(given)))
                }
                Named::LockFile | Named::Folder | Named::Tar => Ok((WarmWhat::Path(path), None)),
            };
        }
        Place::Unreadable(path, cause) => {
            let remark = format!("{} cannot be read: {cause}; {later}", path.display());
            return Ok((WarmWhat::Path(path), Some(remark)));
        }
        Place::Empty(path) if is_written_as_path => {
            let remark = format!("there is no file and no folder {}; {later}", values::quoted(given));
            return Ok((WarmWhat::Path(path), Some(remark)));
        }
        Place::Empty(_) | Place::None => {}
    }
    What::parse(given, &some_host)
        .map_err(|bad| format!("{}: no file and no folder has this name, and it is no address: {bad}", shown(given)))?;
    Ok((WarmWhat::Address(given.to_owned()), None))
}

/// A text as messages show it. An address has an `@` and no password; a URL may have both.
fn shown(given: &str) -> String {
    if given.contains("://") { values::quoted(given) } else { format!("{given:?}") }
}

fn client(value: &str) -> Result<Client, String> {
    match value {
        "terraform" => Ok(Client::Terraform),
        "opentofu" => Ok(Client::Opentofu),
        _ => Err(format!("{} is neither terraform nor opentofu", values::quoted(value))),
    }
}
