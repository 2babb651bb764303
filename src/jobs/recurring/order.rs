//! Builds the order of a recurring warm-up. Its files are read again for each run.

use std::path::{Path, PathBuf};

use crate::address::{Hostname, PackageSelector};
use crate::config::{RecurringWarmTarget, RecurringWarmUp};
use crate::requirements::{self, ArgumentKind, Configurations, Order, OrderEntry, file, lock_file};

/// Reads the order.
///
/// # Errors
/// Every problem of the named files.
pub(super) fn read(entry: &RecurringWarmUp, default_host: &Hostname) -> Result<Order, Vec<String>> {
    let (mut given, mut folders, mut problems) = (Vec::new(), Vec::new(), Vec::new());
    for target in &entry.targets {
        let read = match target {
            RecurringWarmTarget::Address(address) => match PackageSelector::parse(address, default_host) {
                Ok(selector) => Ok(OrderEntry::Address { what: selector, platforms: Vec::new() }),
                Err(bad) => Err(vec![bad.to_string()]),
            },
            RecurringWarmTarget::Path(path) => match ArgumentKind::of_path(path) {
                Some(ArgumentKind::Folder) => {
                    folders.push(path.clone());
                    continue;
                }
                Some(ArgumentKind::Tar) => read_tar(path, entry),
                _ => read_lock_file(path),
            },
        };
        match read {
            Ok(order_entry) => given.push(order_entry),
            Err(found) => problems.extend(found),
        }
    }
    if !folders.is_empty() {
        match read_folders(&folders, entry) {
            Ok(configurations) => given.push(configurations),
            Err(reason) => problems.push(reason),
        }
    }
    if problems.is_empty() { Order::new(given, entry.platforms.clone()) } else { Err(problems) }
}

fn read_lock_file(path: &Path) -> Result<OrderEntry, Vec<String>> {
    let name = path.display().to_string();
    let text = file::read_lock_file(path).map_err(|reason| vec![reason])?;
    let with_name = |problem: String| format!("{name}: {problem}");
    let locked = lock_file::parse(text.as_bytes())
        .map_err(|bad| bad.problems().into_iter().map(with_name).collect::<Vec<_>>())?;
    Ok(OrderEntry::LockFile { name, locked })
}

fn read_tar(path: &Path, entry: &RecurringWarmUp) -> Result<OrderEntry, Vec<String>> {
    let files = file::read_tar(path).map_err(|reason| vec![reason])?;
    let configurations = Configurations::new(files, Vec::new(), entry.client);
    Ok(OrderEntry::Configurations(configurations.map_err(|reason| vec![format!("{}: {reason}", path.display())])?))
}

fn read_folders(folders: &[PathBuf], entry: &RecurringWarmUp) -> Result<OrderEntry, String> {
    let collected =
        requirements::collect(folders, &requirements::GivenValues::default()).map_err(|bad| bad.to_string())?;
    Ok(OrderEntry::Configurations(Configurations::new(collected.files, collected.roots, entry.client)?))
}
