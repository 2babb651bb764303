//! Opens the store of a replica: its folder, the database, the bucket.

use std::io;
use std::path::Path;
use std::sync::Arc;

use secrecy::ExposeSecret as _;

use super::archives::BucketArchives;
use super::bucket::Bucket;
use super::copy::CopiedRecords;
use super::database::{Database, hosts_of};
use super::identity::{self, FleetId, IdentityError};
use super::records::DatabaseRecords;
use super::replicas::Announcement;
use crate::clock::Clock;
use crate::config;
use crate::store::{Fleet as _, Local, Store, StoreError};

/// The kind of larder that opens the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// A replica that serves: it announces itself, and hears of the others each second.
    Listed,
    /// A command that works without a running larder: nobody lists it.
    Unlisted,
}

/// The store of a replica cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The configuration is wrong, or names what belongs to another fleet.
    #[error("{0}")]
    Refused(String),
    /// The folder, the database or the bucket cannot be used at this moment.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The keys of a replica for its database and its bucket.
#[derive(Debug)]
pub struct Keys {
    database: Arc<Database>,
    bucket: Bucket,
}

impl Keys {
    /// Uses the keys of another configuration from now on, whose database and bucket are the same. What is under way goes on by the old ones.
    ///
    /// # Errors
    /// One of them cannot be used: then neither is.
    pub fn renew(&self, fleet: &config::Fleet, network: &config::Network) -> Result<(), OpenError> {
        let hosts = hosts_of(fleet.database.expose_secret()).map_err(|error| OpenError::Refused(error.to_string()))?;
        let bucket = Bucket::new(fleet, network).map_err(|error| OpenError::Refused(error.to_string()))?;
        self.database.use_hosts(hosts);
        self.bucket.use_key_of(&bucket);
        Ok(())
    }
}

/// Opens the store of a replica in the folder of the configuration; it announces these settings. A folder that has been a replica's is opened without the database
/// and the bucket, too. Blocks for some seconds at most.
///
/// # Errors
/// The folder, the database and the bucket are not of one fleet, or nothing is known of one of them.
pub fn open(
    config: &config::Config,
    fleet: &config::Fleet,
    presence: Presence,
    settings: String,
    clock: &Clock,
) -> Result<(Store, Keys), OpenError> {
    let refused = |reason: String| OpenError::Refused(reason);
    let failed = |error: io::Error| StoreError::Unreachable(format!("no thread for the fleet: {error}"));
    let database = Database::new(fleet.database.expose_secret(), fleet.database_ca.as_deref())
        .map_err(|error| refused(error.to_string()))?;
    let bucket = Bucket::new(fleet, &config.network).map_err(|error| refused(error.to_string()))?;
    let (database, folder) = (Arc::new(database), &config.store.path);
    let keys = Keys { database: Arc::clone(&database), bucket: bucket.clone() };
    let marked = Local::fleet_of(folder)?.map(FleetId);
    if marked.is_none() && Store::is_used(folder)? {
        return Err(refused(format!(
            "{} is the store of a larder that runs alone; a replica needs a folder of its own: name another in [store] path, and take this \
             one over with larder fleet adopt {}",
            folder.display(),
            folder.display()
        )));
    }
    if presence == Presence::Listed {
        database.connect_ahead();
    }
    let ask = || identity::of_both(&database, &bucket, marked.as_ref());
    let open_folder = || Store::open(folder, clock.now()).map(Store::into_folder);
    let (local, records) = if let Some(marked) = &marked {
        let (asked, opened) = identity::at_once(ask, open_folder).map_err(failed)?;
        match (id_of(asked, Some(marked), folder), opened) {
            (Ok(_), opened) => opened?,
            (Err(refused), opened) => {
                // An index that was not closed is compared with the files.
                drop(opened.map(|(local, _)| local.close()));
                return Err(refused);
            }
        }
    } else {
        let id = id_of(ask(), None, folder)?;
        let (local, records) = open_folder()?;
        local.note_fleet(&id.0)?;
        (local, records)
    };
    let shared = DatabaseRecords::of(database);
    let index = Arc::clone(&local.index);
    let records = CopiedRecords::new(records, Arc::clone(&index), shared, fleet.serve_behind, clock.clone())?;
    if presence == Presence::Listed {
        let random = |_| StoreError::Unreachable("the system returns no random bytes".to_owned());
        let announcement = Announcement::new(fleet.advertise.to_string(), settings).map_err(random)?;
        records.join_fleet(announcement).map_err(failed)?;
    }
    let archives =
        BucketArchives::new(bucket, records.shared(), index, Arc::clone(records.events())).map_err(failed)?;
    Ok((Store::assemble(Box::new(records), Box::new(archives), local), keys))
}

/// The id of the fleet of a replica, by what its database and its bucket answered. `marked` is the id in its folder.
fn id_of(asked: Result<FleetId, IdentityError>, marked: Option<&FleetId>, folder: &Path) -> Result<FleetId, OpenError> {
    match (asked, marked) {
        (Ok(id), _) => Ok(id),
        (Err(unknown), Some(marked)) if unknown.is_unknown() => {
            tracing::error!(%unknown, "nobody says which fleet this is; the replica starts with what it has");
            Ok(marked.clone())
        }
        (Err(unknown), None) if unknown.is_unknown() => {
            Err(StoreError::Unreachable(format!("a new replica must reach both once: {unknown}")).into())
        }
        (Err(wrong @ IdentityError::Folder { .. }), _) => {
            Err(OpenError::Refused(format!("{}: {wrong}", folder.display())))
        }
        (Err(wrong), _) => Err(OpenError::Refused(wrong.to_string())),
    }
}
