//! The records of a fleet in PostgreSQL. Each function asks the database; nothing is kept.
//!
//! A step reads the generation of its group, then records, and writes all changes in one statement that names this generation. If
//! another replica was faster, the statement changes nothing.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::database::{Database, DatabaseError};
use crate::address::Artifact;
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::store::{
    Change, Generation, GroupRef, IndexEntry, IndexedName, Key, NameCursor, ReadOutcome, RecordAction, RecordGroup,
    RecordScope, Records, StoreError, Striped, Turns, WriteOutcome, sort_text,
};

/// The rows that are read at a time.
const PAGE_ROWS: usize = 1000;

/// The one statement that writes. `$1`: the epoch of the fleet. `$2`: history changes. `$3`, `$4`: the group, and the generation
/// that was read, 0 for a new group. `$5`, `$6`: paths and bodies of history. `$7` to `$11`: paths, bodies, index entries and marks
/// of other records; a null body removes one. `$12`: the damaged ones among them. `$13`: the names that change; `$14`, `$15`: their
/// archives.
const WRITE: &str = "
with f as (
    select from larder.fleet
    where epoch = $1 and not sealed and (settle_until <= now() or not $2) and not pg_is_in_recovery()
), up as (
    update larder.grp set gen = nextval('larder.gen'), tx = pg_current_xact_id()
    where grp = $3 and gen = $4 and exists (select from f) returning gen
), ins as (
    insert into larder.grp select $3, nextval('larder.gen'), pg_current_xact_id() from f where $4 = 0
    on conflict do nothing returning gen
), g as (
    select gen from up union all select gen from ins
), old as (
    insert into larder.past (path, gen, body) select h.path, h.gen, h.body from larder.history h, g where h.path = any($5)
), damaged as (
    insert into larder.past (path, gen, body) select r.path, r.gen, r.body from larder.record r, g where r.path = any($12)
), hist as (
    insert into larder.history (path, grp, gen, body) select p, $3, g.gen, b from g, unnest($5, $6) u(p, b)
    on conflict (path) do update set grp = excluded.grp, gen = excluded.gen, body = excluded.body, written = now()
), rec as (
    insert into larder.record (path, grp, gen, body, entry, pinned, imported)
    select p, $3, g.gen, b, e, pin, imp from g, unnest($7, $8, $9, $10, $11) u(p, b, e, pin, imp)
    on conflict (path) do update set grp = excluded.grp, gen = excluded.gen, body = excluded.body, written = now(),
        entry = excluded.entry, pinned = excluded.pinned, imported = excluded.imported
), gone as (
    delete from larder.name_archive n using g
    where n.path = any($13) and not exists (select from unnest($14, $15) u(p, d) where u.p = n.path and u.d = n.sha256)
), named as (
    insert into larder.name_archive (path, sha256) select p, d from g, unnest($14, $15) u(p, d) on conflict do nothing
)
select gen, extract(epoch from now())::int8 from g";

/// The records of a group that changed, and its generation, in one look. `$1`: the group. `$2`: the generation after which. `$3`: true for
/// removed records, too, and for bytes, up to a megabyte in all.
const DELTA: &str = "
select g.gen, r.path, r.gen, octet_length(r.body)::int8, extract(epoch from r.written)::int8,
    case when $3 and octet_length(r.body) <= 65536
        and sum(octet_length(r.body)) over (order by r.gen, r.path) <= 1048576 then r.body end,
    r.entry
from (select 1) one left join larder.grp g on g.grp = $1
left join (
    select path, grp, gen, body, written, entry from larder.record
    where grp = $1 and gen > $2 and ($3 or body is not null)
    union all
    select path, grp, gen, body, written, null from larder.history
    where grp = $1 and gen > $2 and ($3 or body is not null)
) r on r.grp = g.grp";

/// The groups that became visible after a snapshot, and the present snapshot, also where nothing changed.
const CHANGED_SINCE: &str = "
select pg_current_snapshot()::text, g.grp from (select 1) one
left join larder.grp g on g.tx >= pg_snapshot_xmin($1::text::pg_snapshot)
    and not pg_visible_in_snapshot(g.tx, $1::text::pg_snapshot)
limit 10001";
/// The most changed groups that are named.
const MAX_CHANGED: usize = 10_000;

/// Records in the database of a fleet.
#[derive(Debug)]
pub struct DatabaseRecords {
    database: Arc<Database>,
    /// The epoch of the fleet, as this process last read it; 0 before.
    epoch: AtomicI64,
    /// Counters that grow with each write of this process.
    writes: Striped<AtomicU64>,
    turns: Turns,
}

/// The records of a group that changed since an earlier generation.
#[derive(Debug)]
pub struct Delta {
    /// The generation of the group now; 0 for one without records.
    pub generation: Generation,
    /// The records that changed; all there are, after generation 0.
    pub records: Vec<SharedRecord>,
}

/// A record in the database.
#[derive(Debug)]
pub struct SharedRecord {
    /// Its key.
    pub key: Key,
    /// The generation at which it was written.
    pub generation: Generation,
    /// Its size in bytes; `None` for one that was removed.
    pub size_bytes: Option<u64>,
    /// The time at which it was written.
    pub written: Timestamp,
    /// Its bytes, if they came along.
    pub body: Option<Vec<u8>>,
    /// Of a name: what it lists.
    pub name: Option<IndexedName>,
}

/// The groups that changed since a snapshot.
#[derive(Debug)]
pub struct Feed {
    /// The snapshot of this answer: the next question begins here.
    pub snapshot: String,
    /// The groups that have changed; `None` where any may have.
    pub changed: Option<Vec<RecordGroup>>,
}

/// The answer to a write.
#[derive(Debug, Clone, Copy)]
pub enum SharedWrite {
    /// It is in the database.
    Written(Written),
    /// It changes no record, and its group is still at the generation that was read.
    Unchanged,
    /// The group was at another generation, so nothing was written.
    Conflict,
}

/// A write that the database has taken.
#[derive(Debug, Clone, Copy)]
pub struct Written {
    /// The generation that it made.
    pub generation: Generation,
    /// Its time.
    pub at: Timestamp,
}

/// The changes of one step as the parameters of [`WRITE`].
#[derive(Debug, Default)]
struct Parameters {
    history: Vec<(String, Option<Vec<u8>>)>,
    records: Vec<RecordRow>,
    damaged: Vec<String>,
    names: Vec<String>,
    archives: Vec<(String, Vec<u8>)>,
}

#[derive(Debug)]
struct RecordRow {
    path: String,
    body: Option<Vec<u8>>,
    entry: Option<Vec<u8>>,
    pinned: bool,
    imported: bool,
}

impl Parameters {
    /// The last change to each record counts.
    fn of(changes: &[Change]) -> Self {
        let mut parameters = Self::default();
        let mut last = BTreeMap::new();
        for change in changes.iter().filter(|change| change.action != RecordAction::Keep) {
            let path = text_of(&change.key.path());
            if change.action == RecordAction::Quarantine {
                parameters.damaged.push(path.clone());
            }
            last.insert(path, change);
        }
        for (path, Change { key, action, entry }) in last {
            let body = if let RecordAction::Put(record, _) = action { Some(record.clone()) } else { None };
            if key.is_history() {
                parameters.damaged.retain(|damaged| *damaged != path);
                parameters.history.push((path, body));
                continue;
            }
            let name = match (entry, &body) {
                (IndexEntry::Name(name), Some(_)) if !name.is_empty() => Some(name),
                _ => None,
            };
            if matches!(key, Key::Name(_)) {
                let listed = name.into_iter().flat_map(|name| &name.archives);
                parameters.archives.extend(listed.map(|listed| (path.clone(), listed.digest.as_bytes().to_vec())));
                parameters.names.push(path.clone());
            }
            let (pinned, imported) = name.map_or((false, false), |name| (name.pinned, name.imported));
            let entry = name.map(IndexedName::encode);
            parameters.records.push(RecordRow { path, body, entry, pinned, imported });
        }
        parameters
    }
}

impl DatabaseRecords {
    /// The records in a database.
    pub fn of(database: Arc<Database>) -> Self {
        Self { database, epoch: AtomicI64::default(), writes: Striped::default(), turns: Turns::default() }
    }

    /// Runs one query. Its parameters have these types, in order.
    fn rows<const N: usize>(
        &self,
        sql: impl Into<String>,
        parameters: [(Box<dyn ToSql + Sync + Send>, Type); N],
    ) -> Result<Vec<Row>, DatabaseError> {
        let sql = sql.into();
        self.database.run(move |client| {
            Box::pin(async move {
                let typed: Vec<(&(dyn ToSql + Sync), Type)> =
                    parameters.iter().map(|(value, kind)| (&**value as &(dyn ToSql + Sync), kind.clone())).collect();
                client.query_typed(&sql, &typed).await
            })
        })
    }

    /// The epoch of the fleet.
    fn epoch(&self) -> Result<i64, DatabaseError> {
        match self.epoch.load(Ordering::Acquire) {
            0 => {
                let epoch = self.rows("select epoch from larder.fleet", [])?.first().map_or(0, |row| row.get(0));
                self.epoch.store(epoch, Ordering::Release);
                Ok(epoch)
            }
            epoch => Ok(epoch),
        }
    }

    /// The generation of a group in the database; 0 for one without records.
    fn stored_generation(&self, group: &RecordGroup) -> Result<Generation, DatabaseError> {
        let rows = self.rows("select gen from larder.grp where grp = $1", [text(group.name())])?;
        Ok(Generation(rows.first().map_or(0, |row| row.get::<_, i64>(0).cast_unsigned())))
    }

    /// The records of a group that changed after a generation; `None` lists all records without their bytes.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn delta(&self, group: &RecordGroup, after: Option<Generation>) -> Result<Delta, StoreError> {
        let since = after.map_or(0, |after| after.0.cast_signed());
        let rows = self.rows(
            DELTA,
            [text(group.name()), (Box::new(since), Type::INT8), (Box::new(after.is_some()), Type::BOOL)],
        )?;
        let number = |row: &Row, column| row.get::<_, Option<i64>>(column).map(i64::cast_unsigned);
        let generation = Generation(rows.first().and_then(|row| number(row, 0)).unwrap_or_default());
        let record = |row: &Row| {
            Some(SharedRecord {
                // A newer larder may have records of other kinds.
                key: Key::from_path(Path::new(row.get::<_, Option<&str>>(1)?))?,
                generation: Generation(number(row, 2)?),
                size_bytes: number(row, 3),
                written: Timestamp(number(row, 4)?),
                body: row.get(5),
                name: row.get::<_, Option<&[u8]>>(6).and_then(IndexedName::decode),
            })
        };
        Ok(Delta { generation, records: rows.iter().filter_map(record).collect() })
    }

    /// The bytes of a record, and the generation at which it was written; `None` if it is absent.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn body(&self, key: &Key) -> Result<Option<(Generation, Vec<u8>)>, StoreError> {
        let sql = format!("select gen, body from larder.{} where path = $1 and body is not null", table_of(key));
        let rows = self.rows(sql, [text(text_of(&key.path()))])?;
        Ok(rows.first().map(|row| (Generation(row.get::<_, i64>(0).cast_unsigned()), row.get(1))))
    }

    /// The groups that have changed since a snapshot.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn changes_since(&self, snapshot: Option<&str>) -> Result<Feed, StoreError> {
        let Some(last) = snapshot else {
            let rows = self.rows("select pg_current_snapshot()::text", [])?;
            let snapshot = rows.first().map(|row| row.get(0)).unwrap_or_default();
            return Ok(Feed { snapshot, changed: None });
        };
        let rows = self.rows(CHANGED_SINCE, [text(last.to_owned())])?;
        let snapshot = rows.first().map(|row| row.get(0)).unwrap_or_default();
        // A group that this larder does not know has no copy.
        let group = |row: &Row| RecordGroup::of_name(row.get::<_, Option<&str>>(1)?);
        let changed = (rows.len() <= MAX_CHANGED).then(|| rows.iter().filter_map(group).collect());
        Ok(Feed { snapshot, changed })
    }

    /// Makes changes to records of one group, if it is still at `read_at`.
    ///
    /// # Errors
    /// The database does not answer, or takes no writes.
    pub fn write_at(
        &self,
        group: &RecordGroup,
        read_at: Generation,
        changes: &[Change],
    ) -> Result<SharedWrite, StoreError> {
        debug_assert!(changes.iter().all(|change| change.key.group() == *group), "{group:?}: {changes:?}");
        let parameters = Parameters::of(changes);
        if parameters.history.is_empty() && parameters.records.is_empty() {
            // A decision that changes nothing must hold as well.
            let is_current = self.stored_generation(group)? == read_at;
            return Ok(if is_current { SharedWrite::Unchanged } else { SharedWrite::Conflict });
        }
        let changes_history = !parameters.history.is_empty();
        match self.write_rows(group, read_at, parameters) {
            Ok(Some(written)) => Ok(SharedWrite::Written(written)),
            Ok(None) if self.stored_generation(group)? != read_at => Ok(SharedWrite::Conflict),
            Ok(None) => match self.refusal(changes_history)? {
                Some(reason) => Err(StoreError::Unreachable(reason)),
                None => Ok(SharedWrite::Conflict),
            },
            // The write may have happened: the step reads again.
            Err(error) if error.may_be_repeated() => Ok(SharedWrite::Conflict),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes; `None` if the group was at another generation, or the database takes no writes.
    fn write_rows(
        &self,
        group: &RecordGroup,
        read_at: Generation,
        Parameters { history, records, damaged, names, archives }: Parameters,
    ) -> Result<Option<Written>, DatabaseError> {
        let (history_paths, history_bodies): (Vec<_>, Vec<_>) = history.into_iter().unzip();
        let changes_history = !history_paths.is_empty();
        let (archive_paths, digests): (Vec<_>, Vec<_>) = archives.into_iter().unzip();
        let column = |choose: fn(&RecordRow) -> bool| records.iter().map(choose).collect::<Vec<bool>>();
        let (pinned, imported) = (column(|row| row.pinned), column(|row| row.imported));
        let (mut paths, mut bodies, mut entries) = (Vec::new(), Vec::new(), Vec::new());
        for row in records {
            paths.push(row.path);
            bodies.push(row.body);
            entries.push(row.entry);
        }
        let rows = self.rows(
            WRITE,
            [
                (Box::new(self.epoch()?), Type::INT8),
                (Box::new(changes_history), Type::BOOL),
                text(group.name()),
                (Box::new(read_at.0.cast_signed()), Type::INT8),
                (Box::new(history_paths), Type::TEXT_ARRAY),
                (Box::new(history_bodies), Type::BYTEA_ARRAY),
                (Box::new(paths), Type::TEXT_ARRAY),
                (Box::new(bodies), Type::BYTEA_ARRAY),
                (Box::new(entries), Type::BYTEA_ARRAY),
                (Box::new(pinned), Type::BOOL_ARRAY),
                (Box::new(imported), Type::BOOL_ARRAY),
                (Box::new(damaged), Type::TEXT_ARRAY),
                (Box::new(names), Type::TEXT_ARRAY),
                (Box::new(archive_paths), Type::TEXT_ARRAY),
                (Box::new(digests), Type::BYTEA_ARRAY),
            ],
        )?;
        let written = |row: &Row| {
            let [generation, at] = [0, 1].map(|column| row.get::<_, i64>(column).cast_unsigned());
            Written { generation: Generation(generation), at: Timestamp(at) }
        };
        Ok(rows.first().map(written))
    }

    /// The reason why the database takes no such writes; `None` if it takes them.
    fn refusal(&self, changes_history: bool) -> Result<Option<String>, DatabaseError> {
        let ask = "select epoch, sealed, settle_until > now(), pg_is_in_recovery() from larder.fleet";
        let rows = self.rows(ask, [])?;
        let Some(row) = rows.first() else { return Ok(Some("the database has no fleet".to_owned())) };
        let is_other = row.get::<_, i64>(0) != self.epoch.load(Ordering::Acquire);
        let reasons = [
            // The copy may be of a database that was given up.
            (is_other, "the fleet was taken up anew from a back-up: restart this larder"),
            (row.get(3), "the database is a standby, which takes no writes"),
            (row.get(1), "the fleet is sealed"),
            (
                changes_history && row.get(2),
                "the database changed a moment ago: nothing is recorded as first until that has settled",
            ),
        ];
        Ok(reasons.into_iter().find(|(holds, _)| *holds).map(|(_, reason)| reason.to_owned()))
    }

    /// The names that a query returns, by their paths.
    fn names_by<const N: usize>(
        &self,
        sql: &str,
        parameters: [(Box<dyn ToSql + Sync + Send>, Type); N],
    ) -> Result<Vec<Artifact>, StoreError> {
        Ok(self.rows(sql, parameters)?.iter().filter_map(|row| artifact_at(row.get(0))).collect())
    }
}

impl Records for DatabaseRecords {
    fn read(&self, key: &Key) -> Result<ReadOutcome, StoreError> {
        let sql = format!("select body from larder.{} where path = $1 and body is not null", table_of(key));
        let rows = self.rows(sql, [text(text_of(&key.path()))])?;
        Ok(rows.first().map_or(ReadOutcome::Absent, |row| ReadOutcome::Intact(row.get(0))))
    }

    fn stat(&self, key: &Key) -> Result<Option<(u64, Timestamp)>, StoreError> {
        let sql = format!(
            "select octet_length(body)::int8, extract(epoch from written)::int8 from larder.{}
             where path = $1 and body is not null",
            table_of(key)
        );
        let rows = self.rows(sql, [text(text_of(&key.path()))])?;
        let [size, written] = [0, 1].map(|column| rows.first().map(|row| row.get::<_, i64>(column).unsigned_abs()));
        Ok(size.zip(written.map(Timestamp)))
    }

    fn refresh(&self, _: RecordScope<'_>) -> Result<(), StoreError> {
        // Each read asks the database.
        Ok(())
    }

    fn generation(&self, group: &RecordGroup) -> Result<Generation, StoreError> {
        Ok(self.stored_generation(group)?)
    }

    fn generation_now(&self, group: GroupRef<'_>) -> Generation {
        Generation(self.writes.of(&group).load(Ordering::Acquire))
    }

    fn write(&self, group: &RecordGroup, read_at: Generation, changes: &[Change]) -> Result<WriteOutcome, StoreError> {
        let outcome = self.write_at(group, read_at, changes)?;
        self.writes.of(&group.as_ref()).fetch_add(1, Ordering::AcqRel);
        Ok(match outcome {
            SharedWrite::Written(_) | SharedWrite::Unchanged => WriteOutcome::Written,
            SharedWrite::Conflict => WriteOutcome::Conflict,
        })
    }

    fn turns(&self) -> &Turns {
        &self.turns
    }

    fn sync(&self, key: &Key) -> Result<bool, StoreError> {
        // A statement that has ended is durable.
        Ok(self.stat(key)?.is_some())
    }

    fn page(&self, folder: &Path, after: Option<&Key>, limit: usize) -> Result<Vec<(Key, u64)>, StoreError> {
        // In the order of paths, component by component, which is that of their texts with the smallest character between them.
        let of_table = |table: &str| {
            format!(
                "select path, translate(path, '/', E'\\x01') as place, octet_length(body)::int8 as size
                 from larder.{table} where body is not null
                 and translate(path, '/', E'\\x01') > $1 and translate(path, '/', E'\\x01') < $2"
            )
        };
        let sql = format!(
            "select path, size from ({} union all {}) r order by place limit $3",
            of_table("record"),
            of_table("history")
        );
        let (from, to) = (format!("{}\u{1}", sort_text(folder)), format!("{}\u{2}", sort_text(folder)));
        let mut after = after.map(|key| sort_text(&key.path())).filter(|after| *after > from).unwrap_or(from);
        let mut keys = Vec::new();
        while keys.len() < limit {
            let wanted = limit - keys.len();
            let most: (Box<dyn ToSql + Sync + Send>, Type) =
                (Box::new(i64::try_from(wanted).unwrap_or(i64::MAX)), Type::INT8);
            let rows = self.rows(sql.clone(), [text(after.clone()), text(to.clone()), most])?;
            let is_last = rows.len() < wanted;
            for row in &rows {
                let path: &str = row.get(0);
                after = sort_text(Path::new(path));
                // A newer larder may have records of other kinds.
                keys.extend(Key::from_path(Path::new(path)).map(|key| (key, row.get::<_, i64>(1).unsigned_abs())));
            }
            if is_last {
                break;
            }
        }
        Ok(keys)
    }

    fn names_in(&self, folder: &Path) -> Result<Vec<String>, StoreError> {
        let of_table = |table: &str| {
            format!(
                "select split_part(substr(path, $3), '/', 1) from larder.{table} where body is not null
                 and path > $1 and path < $2"
            )
        };
        let sql = format!("select n from ({} union {}) r(n) order by n", of_table("record"), of_table("history"));
        let (from, to) = range_below(folder);
        let first = i32::try_from(from.chars().count() + 1).unwrap_or(i32::MAX);
        let rows = self.rows(sql, [text(from), text(to), (Box::new(first), Type::INT4)])?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    fn name(&self, artifact: &Artifact) -> Result<Option<IndexedName>, StoreError> {
        let path = text_of(&Key::Name(artifact.clone()).path());
        let rows = self.rows("select entry from larder.record where path = $1 and entry is not null", [text(path)])?;
        Ok(rows.first().and_then(|row| IndexedName::decode(row.get(0))))
    }

    fn each_name(
        &self,
        folder: &Path,
        after: Option<&NameCursor>,
        visit: &mut dyn FnMut(Artifact, IndexedName) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let (from, to) = range_below(folder);
        let mut after = after.map(NameCursor::path).filter(|after| *after > from).unwrap_or(from);
        let sql = format!(
            "select path, entry from larder.record where entry is not null and path > $1 and path < $2
             order by path limit {PAGE_ROWS}"
        );
        loop {
            let rows = self.rows(sql.clone(), [text(after.clone()), text(to.clone())])?;
            for row in &rows {
                let path: &str = row.get(0);
                if let Some((artifact, name)) = artifact_at(path).zip(IndexedName::decode(row.get(1)))
                    && visit(artifact, name).is_break()
                {
                    return Ok(());
                }
            }
            match rows.last() {
                Some(last) if rows.len() == PAGE_ROWS => after = last.get(0),
                _ => return Ok(()),
            }
        }
    }

    fn names_of(&self, digest: &Digest) -> Result<Vec<Artifact>, StoreError> {
        let digest: (Box<dyn ToSql + Sync + Send>, Type) = (Box::new(digest.as_bytes().to_vec()), Type::BYTEA);
        self.names_by("select path from larder.name_archive where sha256 = $1 order by path", [digest])
    }

    fn pinned_names(&self) -> Result<Vec<Artifact>, StoreError> {
        self.names_by("select path from larder.record where pinned order by path", [])
    }

    fn imported_names(&self, limit: usize) -> Result<Vec<Artifact>, StoreError> {
        let limit: (Box<dyn ToSql + Sync + Send>, Type) =
            (Box::new(i64::try_from(limit).unwrap_or(i64::MAX)), Type::INT8);
        self.names_by("select path from larder.record where imported order by path limit $1", [limit])
    }
}

/// A parameter of type text.
fn text(value: String) -> (Box<dyn ToSql + Sync + Send>, Type) {
    (Box::new(value), Type::TEXT)
}

/// The table of a record.
fn table_of(key: &Key) -> &'static str {
    if key.is_history() { "history" } else { "record" }
}

/// The path of a record as text. Paths are made of names, which are valid Unicode.
fn text_of(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// The bounds of the paths below a folder, as texts.
fn range_below(folder: &Path) -> (String, String) {
    let folder = text_of(folder);
    // The character after a slash.
    (format!("{folder}/"), format!("{folder}0"))
}

fn artifact_at(path: &str) -> Option<Artifact> {
    match Key::from_path(Path::new(path))? {
        Key::Name(artifact) => Some(artifact),
        _ => None,
    }
}
