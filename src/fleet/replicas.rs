//! The replicas of a fleet, as they announce themselves in the database.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_lc_rs::error::Unspecified;
use parking_lot::Mutex;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::database::Line;
use super::records::{DatabaseRecords, Snapshot, text};
use crate::store::{ReplicaAmounts, StoreError, Unreached};

/// The longest time for which a command waits for the replicas.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// The time for which a replica and the one that it replaces are both in the list.
const REPLACED_WITHIN: Duration = Duration::from_secs(10);
/// The time between two looks at them.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// `$1`: the replica. `$2`: its URL. `$3`: its version. `$4`: the snapshot up to which it has heard. `$5`: the seconds after which it
/// serves nothing. `$6`: its settings. `$7` to `$9`: its amounts. Another process at this URL has ended, unless it was heard a moment
/// ago: the answer says how many were. Rows of which nobody needs to know any more go.
const ANNOUNCE: &str = "
with ended as (
    update larder.replica set left_at = now()
    where url = $2 and id <> $1::text::uuid and left_at is null and seen < now() - interval '3 seconds'
), forgotten as (
    delete from larder.replica where id <> $1::text::uuid and (left_at < now() - interval '1 day'
        or seen < now() - least(serve_behind, 604800) * interval '1 second' - interval '1 day')
)
insert into larder.replica
    (id, url, version, applied, serve_behind, settings, stored_bytes, owed_archives, owed_bytes)
values ($1::text::uuid, $2, $3, $4, $5, $6, $7, $8, $9)
on conflict (id) do update set url = excluded.url, version = excluded.version, applied = excluded.applied,
    serve_behind = excluded.serve_behind, settings = excluded.settings, seen = now(), left_at = null,
    stored_bytes = excluded.stored_bytes, owed_archives = excluded.owed_archives, owed_bytes = excluded.owed_bytes
returning (select count(*) from larder.replica r where r.url = $2 and r.id <> $1::text::uuid and r.left_at is null
    and r.seen > now() - interval '3 seconds')";

/// The replicas that have not heard of a transaction, with the seconds since each was heard, as long as they serve: a week at most. `$1`:
/// the transaction. `$2`: the replica that asks.
const UNREACHED: &str = "
select url, extract(epoch from now() - seen)::int8, seen > now() - interval '10 seconds' from larder.replica
where left_at is null and id <> $2::text::uuid and seen > now() - least(serve_behind, 604800) * interval '1 second'
    and not (applied <> '' and pg_visible_in_snapshot($1::text::xid8, applied::pg_snapshot))
order by url";

/// The settings of the replicas that were heard in the last ten seconds, but for one. `$1`: that one.
const SETTINGS: &str = "
select url, settings from larder.replica
where left_at is null and id <> $1::text::uuid and seen > now() - interval '10 seconds' and settings <> '' order by url";

/// A claim of work for half a minute. `$1`: the work. `$2`: the replica, which is announced. That of one that ended, or that is over, is
/// lost.
const CLAIM: &str = "
insert into larder.claim as c (work, replica, until)
select $1, id, now() + interval '30 seconds' from larder.replica where id = $2::text::uuid and left_at is null
on conflict (work) do update set replica = excluded.replica, until = excluded.until
where c.replica = excluded.replica or c.until < now()
    or not exists (select from larder.replica r where r.id = c.replica and r.left_at is null)
returning 1";

/// The work that replicas have claimed, but for one. `$1`: that one. Claims that ended long ago go.
const CLAIMS: &str = "
with forgotten as (delete from larder.claim where until < now() - interval '1 day')
select c.work, r.url from larder.claim c join larder.replica r on r.id = c.replica
where c.replica <> $1::text::uuid and c.until > now() and r.left_at is null";

/// The report of a replica about itself.
#[derive(Debug, Clone)]
pub struct Report {
    /// The settings that all replicas must have in common, as this one has them.
    pub settings: String,
    /// The amounts of its folder; `None` until they are known.
    pub amounts: Option<ReplicaAmounts>,
}

/// The announcement of a replica.
#[derive(Debug, Clone)]
pub struct Announcement {
    /// This process, as 32 hexadecimal digits.
    id: String,
    /// The URL at which the other replicas reach it.
    url: String,
    report: Arc<Mutex<Report>>,
    /// When it began.
    began: Instant,
}

impl Announcement {
    /// This process, which the other replicas reach at `url`, with these settings.
    ///
    /// # Errors
    /// The system returns no random bytes.
    pub fn new(url: String, settings: String) -> Result<Self, Unspecified> {
        let mut id = [0; 16];
        aws_lc_rs::rand::fill(&mut id)?;
        let report = Arc::new(Mutex::new(Report { settings, amounts: None }));
        Ok(Self { id: hex::encode(id), url, report, began: Instant::now() })
    }

    /// Changes the report of this replica.
    pub fn change(&self, change: impl FnOnce(&mut Report)) {
        change(&mut self.report.lock());
    }

    /// The URL.
    pub fn url(&self) -> &str {
        &self.url
    }
}

/// The id that no replica has: a command that runs by itself asks about all.
fn nobody() -> String {
    "0".repeat(32)
}

impl DatabaseRecords {
    /// Announces a replica that has heard of everything in a snapshot, and serves nothing after a silence of `serve_behind`. Returns true
    /// if another one announces itself at the same URL.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn announce(
        &self,
        Announcement { id, url, report, began }: &Announcement,
        heard: &Snapshot,
        serve_behind: Option<Duration>,
    ) -> Result<bool, StoreError> {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let seconds = serve_behind.map(|limit| i64::try_from(limit.as_secs()).unwrap_or(i64::MAX));
        let Report { settings, amounts } = report.lock().clone();
        let [id, url, version, heard, settings] =
            [id.clone(), url.clone(), version, heard.text.clone(), settings].map(text);
        let amount = |of: fn(&ReplicaAmounts) -> u64| amounts.as_ref().map(|amounts| of(amounts).cast_signed());
        let [stored, owed, owed_bytes] = [
            amount(|amounts| amounts.stored_bytes),
            amount(|amounts| amounts.owed_archives),
            amount(|amounts| amounts.owed_bytes),
        ];
        let [seconds, stored, owed, owed_bytes] =
            [seconds, stored, owed, owed_bytes].map(|number| (Box::new(number) as _, Type::INT8));
        let parameters = [id, url, version, heard, seconds, settings, stored, owed, owed_bytes];
        let rows = self.rows_on(Line::Apart, ANNOUNCE, parameters)?;
        let others: i64 = rows.first().map_or(0, |row| row.get(0));
        // The one that it replaces may have ended a moment ago.
        Ok(others > 0 && began.elapsed() > REPLACED_WITHIN)
    }

    /// The settings of the other replicas that run, each with its URL. `own` is the replica that asks.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn settings_of_others(&self, own: Option<&Announcement>) -> Result<Vec<(String, String)>, StoreError> {
        let id = own.map_or_else(nobody, |own| own.id.clone());
        let rows = self.rows_on(Line::Shared, SETTINGS, [text(id)])?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    /// Claims work for a replica. Returns false if another one has it.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn claim(&self, work: &str, own: &Announcement) -> Result<bool, StoreError> {
        let rows = self.rows_on(Line::Shared, CLAIM, [text(work.to_owned()), text(own.id.clone())])?;
        Ok(!rows.is_empty())
    }

    /// The work that other replicas have claimed, each with the URL of the replica. `own` is the replica that asks.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn claims_of_others(&self, own: Option<&Announcement>) -> Result<Vec<(String, String)>, StoreError> {
        let id = own.map_or_else(nobody, |own| own.id.clone());
        let rows = self.rows_on(Line::Shared, CLAIMS, [text(id)])?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    /// Gives up the work of a replica.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn give_up(&self, work: &str, own: &Announcement) -> Result<(), StoreError> {
        let end = "delete from larder.claim where work = $1 and replica = $2::text::uuid";
        self.rows_on(Line::Shared, end, [text(work.to_owned()), text(own.id.clone())])?;
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
        let id = own.map_or_else(nobody, |own| own.id.clone());
        // A snapshot that has a transaction which begins now has all that have ended.
        let mark = "select pg_current_xact_id()::text";
        let rows = self.rows_on(Line::Shared, mark, [])?;
        let transaction: String = rows.first().map(|row| row.get(0)).unwrap_or_default();
        let deadline = Instant::now() + LONGEST_WAIT;
        let unreached = |row: &Row| Unreached {
            url: row.get(0),
            silent_seconds: row.get::<_, i64>(1).unsigned_abs(),
            is_heard: row.get(2),
        };
        loop {
            let looked = self.rows_on(Line::Shared, UNREACHED, [text(transaction.clone()), text(id.clone())]);
            let looked = looked.map(|rows| rows.iter().map(unreached).collect::<Vec<_>>());
            let is_awaited = looked.as_ref().map_or(true, |unreached| unreached.iter().any(|replica| replica.is_heard));
            if !is_awaited || Instant::now() >= deadline {
                return Ok(looked?);
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }
}
