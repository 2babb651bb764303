//! The identity of a fleet: one id in its database, in its bucket, and in the folder of each replica. Two ids are two fleets, and what
//! one of them recorded as first is nothing to the other.

use std::io;

use derive_more::Display;
use serde::{Deserialize, Serialize};
use tokio::runtime::Builder;

use super::bucket::{Bucket, BucketError};
use super::database::{Database, DatabaseError};
use super::schema::{self, SchemaError};

/// The format of `fleet.json`.
const FORMAT: u32 = 1;

/// The id of a fleet.
#[derive(Debug, Clone, PartialEq, Eq, Display, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FleetId(pub String);

/// `fleet.json` in the bucket.
#[derive(Debug, Serialize, Deserialize)]
struct Mark {
    fleet: FleetId,
    format: u32,
}

/// The database and the bucket are not those of one fleet, or cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The schema is missing, or another one.
    #[error("{0}; run larder fleet create --serve-as ROLE, with the URL of the role that owns the schema")]
    Schema(SchemaError),
    /// The bucket is nobody's.
    #[error(
        "{bucket} belongs to no fleet yet; run larder fleet create --serve-as ROLE, with the URL of the role that owns the schema"
    )]
    Unmarked {
        /// The bucket.
        bucket: String,
    },
    /// The database and the bucket are those of two fleets.
    #[error(
        "the database is that of the fleet {database}, and {bucket} is that of the fleet {marked}; name both of one fleet in [fleet]"
    )]
    Two {
        /// The bucket.
        bucket: String,
        /// The fleet of the database.
        database: FleetId,
        /// The fleet of the bucket.
        marked: FleetId,
    },
    /// The folder is that of a replica of another fleet.
    #[error(
        "it is the folder of a replica of the fleet {folder}, and [fleet] names a part of the fleet {other}; name all of one fleet"
    )]
    Folder {
        /// The fleet of the folder.
        folder: FleetId,
        /// The fleet of the database or the bucket.
        other: FleetId,
    },
    /// The mark of the bucket is that of a newer larder, or of something else.
    #[error("fleet.json in {bucket} is not one that this larder can read: {reason}")]
    Unreadable {
        /// The bucket.
        bucket: String,
        /// The reason.
        reason: String,
    },
    /// The database does not answer.
    #[error("the database cannot be reached: {0}")]
    Database(DatabaseError),
    /// The bucket does not answer.
    #[error(transparent)]
    Bucket(BucketError),
    /// The system refuses a thread.
    #[error("no thread for the bucket: {0}")]
    Thread(#[from] io::Error),
}

impl IdentityError {
    /// True if nothing is known: the database or the bucket did not answer.
    pub fn is_unknown(&self) -> bool {
        match self {
            Self::Database(_) | Self::Bucket(_) => true,
            Self::Thread(_)
            | Self::Schema(_)
            | Self::Unmarked { .. }
            | Self::Two { .. }
            | Self::Folder { .. }
            | Self::Unreadable { .. } => false,
        }
    }
}

/// The id of the fleet that the database and the bucket belong to. `folder` is the fleet of the folder of this replica.
///
/// # Errors
/// They are not of one fleet, or one of them does not answer.
pub fn of_both(database: &Database, bucket: &Bucket, folder: Option<&FleetId>) -> Result<FleetId, IdentityError> {
    let (of_bucket, of_database) = beside(of_bucket(bucket), || of_database(database))?;
    // The answer of one of them counts, also where the other one gives none.
    let known = [of_database.as_ref().ok(), of_bucket.as_ref().ok().and_then(Option::as_ref)];
    if let Some(folder) = folder
        && let Some(other) = known.into_iter().flatten().find(|known| *known != folder)
    {
        return Err(IdentityError::Folder { folder: folder.clone(), other: other.clone() });
    }
    let database = of_database?;
    match of_bucket? {
        None => Err(IdentityError::Unmarked { bucket: bucket.place() }),
        Some(marked) if marked != database => Err(IdentityError::Two { bucket: bucket.place(), database, marked }),
        Some(_) => Ok(database),
    }
}

/// Marks the bucket as that of the fleet of the database. Returns its id; does nothing if it has that mark.
///
/// # Errors
/// The bucket is that of another fleet, or one of them does not answer.
pub fn mark(database: &Database, bucket: &Bucket) -> Result<FleetId, IdentityError> {
    let id = of_database(database)?;
    match on_its_own_thread(of_bucket(bucket))?? {
        Some(marked) if marked != id => Err(IdentityError::Two { bucket: bucket.place(), database: id, marked }),
        Some(_) => Ok(id),
        None => {
            let mark = Mark { fleet: id.clone(), format: FORMAT };
            let text = serde_json::to_vec(&mark)
                .map_err(|e| IdentityError::Unreadable { bucket: bucket.place(), reason: e.to_string() })?;
            on_its_own_thread(bucket.put_mark(text.into()))?.map_err(IdentityError::Bucket)?;
            Ok(id)
        }
    }
}

/// Waits for work on a thread with a runtime of its own: callers may be on one of a runtime.
fn on_its_own_thread<T: Send>(work: impl Future<Output = T> + Send) -> io::Result<T> {
    beside(work, || ()).map(|(done, ())| done)
}

/// Does `work` on a thread with a runtime of its own, and `meanwhile` on this one.
fn beside<T: Send, U>(work: impl Future<Output = T> + Send, meanwhile: impl FnOnce() -> U) -> io::Result<(T, U)> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    at_once(move || runtime.block_on(work), meanwhile)
}

/// Does `work` on a thread of its own, and `meanwhile` on this one.
pub(super) fn at_once<T: Send, U>(
    work: impl FnOnce() -> T + Send,
    meanwhile: impl FnOnce() -> U,
) -> io::Result<(T, U)> {
    std::thread::scope(|scope| {
        let worker = std::thread::Builder::new().name("larder-fleet".into()).spawn_scoped(scope, work)?;
        let done = meanwhile();
        Ok((worker.join().map_err(|_| io::Error::other("it panicked"))?, done))
    })
}

fn of_database(database: &Database) -> Result<FleetId, IdentityError> {
    schema::check(database).map_err(|error| match error {
        SchemaError::Database(error) => IdentityError::Database(error),
        error => IdentityError::Schema(error),
    })?;
    let ask = "select id::text from larder.fleet";
    let asked = database.run(move |client| Box::pin(async move { client.query_typed(ask, &[]).await }));
    let rows = asked.map_err(IdentityError::Database)?;
    let none = || IdentityError::Database(DatabaseError::Unreachable("the database has no fleet".to_owned()));
    rows.first().map(|row| FleetId(row.get(0))).ok_or_else(none)
}

async fn of_bucket(bucket: &Bucket) -> Result<Option<FleetId>, IdentityError> {
    let Some(text) = bucket.mark().await.map_err(IdentityError::Bucket)? else { return Ok(None) };
    let unreadable = |reason: String| IdentityError::Unreadable { bucket: bucket.place(), reason };
    let mark: Mark = serde_json::from_slice(&text).map_err(|bad| unreadable(bad.to_string()))?;
    match mark.format {
        FORMAT => Ok(Some(mark.fleet)),
        newer => Err(unreadable(format!("it has format {newer}, and this larder reads {FORMAT}"))),
    }
}
