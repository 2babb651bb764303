//! The replicas of a fleet, as they announce themselves in the database.

use std::time::{Duration, Instant};

use aws_lc_rs::error::Unspecified;
use tokio_postgres::Row;

use super::database::Line;
use super::records::{DatabaseRecords, Snapshot, text};
use crate::store::{StoreError, Unreached};

/// The longest time for which a command waits for the replicas.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// The time between two looks at them.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// `$1`: the replica. `$2`: its URL. `$3`: its version. `$4`: the snapshot up to which it has heard. What another process has announced
/// at this URL has ended.
const ANNOUNCE: &str = "
with ended as (
    update larder.replica set left_at = now() where url = $2 and id <> $1::text::uuid and left_at is null
)
insert into larder.replica (id, url, version, applied) values ($1::text::uuid, $2, $3, $4)
on conflict (id) do update set url = excluded.url, version = excluded.version, applied = excluded.applied, seen = now(),
    left_at = null";

/// The replicas that have not heard of a transaction, with the seconds since each was heard: those of the last day. `$1`: the
/// transaction. `$2`: the replica that asks.
const UNREACHED: &str = "
select url, extract(epoch from now() - seen)::int8, seen > now() - interval '10 seconds' from larder.replica
where left_at is null and seen > now() - interval '1 day' and id <> $2::text::uuid
    and not (applied <> '' and pg_visible_in_snapshot($1::text::xid8, applied::pg_snapshot))
order by url";

/// What a replica says of itself.
#[derive(Debug, Clone)]
pub struct Announcement {
    /// This process, as 32 hexadecimal digits.
    id: String,
    /// Where the other replicas reach it.
    url: String,
}

impl Announcement {
    /// This process, which the other replicas reach at `url`.
    ///
    /// # Errors
    /// The system returns no random bytes.
    pub fn new(url: String) -> Result<Self, Unspecified> {
        let mut id = [0; 16];
        aws_lc_rs::rand::fill(&mut id)?;
        Ok(Self { id: hex::encode(id), url })
    }
}

impl DatabaseRecords {
    /// Announces a replica that has heard of everything in a snapshot.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn announce(&self, Announcement { id, url }: &Announcement, heard: &Snapshot) -> Result<(), StoreError> {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let parameters = [text(id.clone()), text(url.clone()), text(version), text(heard.text.clone())];
        self.rows_on(Line::Apart, ANNOUNCE, parameters)?;
        Ok(())
    }

    /// Says that a replica ends.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn leave(&self, Announcement { id, .. }: &Announcement) -> Result<(), StoreError> {
        let leave = "update larder.replica set left_at = now() where id = $1::text::uuid";
        self.rows_on(Line::Apart, leave, [text(id.clone())])?;
        Ok(())
    }

    /// Waits until all other replicas have heard of everything that was written before: five seconds at most. Returns those that have
    /// not. `own` is the replica that asks.
    ///
    /// # Errors
    /// The database does not answer: nobody knows.
    pub fn spread(&self, own: Option<&Announcement>) -> Result<Vec<Unreached>, StoreError> {
        // Nobody has this id: a command that runs by itself waits for all.
        let id = own.map_or_else(|| "0".repeat(32), |own| own.id.clone());
        // What a snapshot has of a transaction that begins now, it has of all that have ended.
        let mark = "select pg_current_xact_id()::text";
        let rows = self.rows_on(Line::Shared, mark, [])?;
        let transaction: String = rows.first().map(|row| row.get(0)).unwrap_or_default();
        let deadline = Instant::now() + LONGEST_WAIT;
        loop {
            let rows = self.rows_on(Line::Shared, UNREACHED, [text(transaction.clone()), text(id.clone())])?;
            let unreached = |row: &Row| Unreached {
                url: row.get(0),
                silent_seconds: row.get::<_, i64>(1).unsigned_abs(),
                is_heard: row.get(2),
            };
            let unreached: Vec<_> = rows.iter().map(unreached).collect();
            if !unreached.iter().any(|replica| replica.is_heard) || Instant::now() >= deadline {
                return Ok(unreached);
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }
}
